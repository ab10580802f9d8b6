//! Durable authority of a space: its two stores, lifecycles and their credentials, the barriers that take them back,
//! the claim by which one process owns all of it, and the plane that puts these together (contract 07; 05 §8; 03 §G-H).
//!
//! Each module decides purely and acts thinly: what was read goes into a function without I/O, which names the one
//! conditional write that may follow. [`Plane::open`] is where to begin.
//!
//! Some of it the auth service itself never calls: it is for a host that embeds the plane or serves endpoints beside it.
//! These are [`Plane::take_over`] and [`Plane::revoke_handle`], [`activation::activate_fresh`], [`deprovision`],
//! and of [`registration`] serve grants, sibling issuance and reconciliation.

pub mod activation;
pub mod agent_durables;
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
pub mod foresight;
mod gate;
pub mod handle_revocation;
pub mod head;
pub mod intents;
pub mod issuance;
mod issuance_memory;
pub mod issued;
pub mod managed_agents;
pub mod manager;
pub mod manager_verdict;
mod mint_step;
mod ownership;
pub mod past;
pub mod plane;
pub mod plane_claim;
mod prune_timer;
pub mod rail;
pub mod registration;
pub mod replica;
pub mod retire;
pub mod retirement;
mod retirement_step;
pub mod retirements;
pub mod root_credential;
pub mod run_records;
pub mod run_rows;
pub mod scanner;
pub mod scanner_death;
mod session_ownership;
pub mod session_pairs;
pub mod session_redemption;
pub mod shared_sweeps;
mod sharing;
mod store;
pub mod stores;
pub mod takeover;
mod takeover_step;
pub mod turns;

pub use connect_reader::ConnectReader;
pub use issuance::{IssuanceLog, NatkeyRow};
pub use manager_verdict::{LocalManager, ManagerVerdict, NoLocalManager, ReadLocalManager};
pub use plane::{Plane, PlaneInputs};
pub use replica::ReplicaStores;
pub use session_ownership::{NotOwn, SESSION_TTL_SECS};
pub use session_redemption::Redemption;
pub use store::landed;
pub use stores::AuthorityStores;
