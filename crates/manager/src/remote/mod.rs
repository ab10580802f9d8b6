//! A participant: the client side of the manager authority (contract 08 §8, 06).
//!
//! | step | module |
//! |---|---|
//! | who this manager is, for good | [`identity`] |
//! | what it asks, and how it is carried | [`requests`], [`host`], [`authority`] |
//! | what of an answer is used | [`binding`], [`results`] |
//! | registering with the credential of `prepare`, in turn | [`registration`], [`contract`] |
//! | serving its endpoint | [`serving`] |
//! | keeping its five standing credentials alive | [`standing`] |
//! | a session served, a transcript read, a run driven | [`one_shots`], [`runs`] |
//! | an agent's life: enrolled, signed in, retired | [`agents`], [`exchange`], [`rail`] |
//! | all of it in order | [`participant`] |
//!
//! The seeds of the five standing keys and of each one-shot key never leave this process, apart from the five in the
//! identity file. The secret of an agent never leaves this machine but in that agent's own exchange: the host gets its
//! SHA-256.

pub mod agents;
pub mod authority;
mod backoff;
pub mod binding;
pub mod contract;
mod error;
pub mod exchange;
pub mod host;
pub mod identity;
pub mod one_shots;
pub mod participant;
pub mod rail;
pub mod registration;
pub mod requests;
pub mod results;
pub mod runs;
pub mod serving;
pub mod standing;

use cotal_wire::Space;

pub use error::RemoteError;
pub use host::{HostRefusal, IdpTokens, ManagerHost, RefusalKind};
pub use identity::ManagerIdentity;
pub use participant::{Active, Participant, Prepared, Registered, Setup};

/// The name of a participant's connection: `cotal:<role>:<space>`.
fn label(role: &str, space: &Space) -> String {
    format!("cotal:{role}:{space}")
}
