//! Contract artifacts: what an endpoint publishes of itself, and how it hangs together by digests (contract 02 §8).
//!
//! Everything is stored once, under the digest of its canonical bytes. A closure is a manifest and what the manifest
//! names; what a registration pins is the digest of the manifest.

mod artifact;
mod cluster;
mod descriptor;
mod manifest;
mod schema;

pub use artifact::Artifact;
pub use cluster::{AdmissionCeiling, ClusterCommand, ClusterDocument, CommandMode};
pub use descriptor::{DescribedCluster, Descriptor};
pub use manifest::{MAX_MEMBERS, Manifest};
pub use schema::{MAX_SCHEMA_DEPTH, check_schema};

use crate::error::{EpCode, EpError};

/// `contract-invalid`: an artifact that is outside the profile.
fn invalid(message: impl Into<String>) -> EpError {
    EpError::new(EpCode::ContractInvalid, message)
}
