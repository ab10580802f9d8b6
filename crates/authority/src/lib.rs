//! Durable authority of a space, first part: the two stores and their shape proof, lifecycle activation, the mint
//! ceremony, the root credential, the supervised connect reader, and native issuance rows.
//! (contract 07 §1-4, §7.5, §10; 04 §10; 05 §8.4)
//!
//! Each module decides purely and acts thinly: what was read goes into a function without I/O, which names the one
//! conditional write that may follow. Barriers, eviction and the plane claim are not here yet.

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
