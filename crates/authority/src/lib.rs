//! Durable authority of a space: the two stores and their shape proof, lifecycle activation, the mint ceremony, the
//! root credential, the supervised connect reader, native issuance rows, the plane claim with its sealed scanners, and
//! the barriers that take a lifecycle over or end it.
//! (contract 07; 02 §3; 03 §E, §G, §H; 04 §10; 05 §8)
//!
//! Each module decides purely and acts thinly: what was read goes into a function without I/O, which names the one
//! conditional write that may follow.

pub mod activation;
pub mod barrier;
#[cfg(test)]
mod barrier_model;
pub mod claim_oracle;
pub mod connect_reader;
mod containment;
pub mod credential;
pub mod delivery_admin;
pub mod deprovision;
pub mod drain;
pub mod evict;
#[cfg(any(test, feature = "failpoints"))]
pub mod failpoint;
mod fence;
pub mod flights;
mod gate;
pub mod handle_revocation;
pub mod head;
pub mod intents;
pub mod issuance;
mod issuance_memory;
pub mod issued;
pub mod plane;
pub mod plane_claim;
mod prune_timer;
pub mod rail;
pub mod registration;
pub mod retire;
pub mod retirement;
mod retirement_step;
pub mod retirements;
pub mod root_credential;
pub mod scanner;
pub mod scanner_death;
pub mod session_pairs;
mod store;
pub mod stores;
pub mod takeover;
mod takeover_step;
pub mod turns;

pub use connect_reader::ConnectReader;
pub use issuance::{IssuanceLog, NatkeyRow};
pub use plane::{Plane, PlaneInputs};
pub use stores::AuthorityStores;
