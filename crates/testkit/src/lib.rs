//! What the tests stand on: a real nats-server, a provisioned space on disk, its daemons as processes, a raw protocol
//! client, a network that can be cut.

pub mod broker;
pub mod daemons;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod space;
pub mod stage;
