//! The only room that speaks to NATS: connections in custody with self-minted renewing credentials, leader reads,
//! conditional writes, and the provisioning of a space's streams and buckets.

mod api;
pub mod broker_floor;
pub mod connection;
pub mod connector;
pub mod contract_store;
pub mod creds_connector;
pub mod custody;
mod denials;
pub mod durable;
pub mod journal;
pub mod kv;
pub mod provision;
pub mod pull;
pub mod replay;
pub mod scan;
pub mod servers;
mod session;
pub mod shape;
pub mod stream;
mod streams;
pub mod sys;

pub use connection::{Connection, ConnectionState, ConnectionTuple, Message, Subscription};
pub use connector::{Connector, Lifetime};
pub use contract_store::ContractStore;
pub use creds_connector::{CredsConnector, RenewableCreds};
pub use custody::Custody;
pub use journal::Journal;
pub use pull::PullDurable;
pub use replay::SubjectReplay;
pub use scan::SealedScan;
pub use servers::Servers;
pub use session::RAIL_CAPACITY;
