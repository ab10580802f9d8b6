//! What the tests stand on: a real nats-server, a provisioned space on disk, a raw protocol client.

pub mod broker;
pub mod raw;
pub mod space;
pub mod stage;
