//! Which manager instance a `manager-caller` bearer is bound to (contract 05 §5).

use async_trait::async_trait;
use cotal_wire::{DerivedOwner, InstanceId};

/// Why no manager instance was selected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionRefusal {
    /// Nothing was named, and no instance of the owner is live.
    #[error("{0}")]
    NoLiveManager(String),
    /// Nothing was named, and more than one instance of the owner is live.
    #[error("{0}")]
    Ambiguous(String),
    /// The named instance is not a candidate, or its name is malformed.
    #[error("{0}")]
    NotACandidate(String),
    /// The gates could not be read.
    #[error("{0}")]
    Unavailable(String),
}

/// The manager instances of a space, as its authority sees them now.
#[async_trait]
pub trait ManagerDirectory: Send + Sync {
    /// The instance that a bearer of `owner` is bound to: exactly the requested one, else the only live one.
    async fn select(
        &self,
        owner: &DerivedOwner,
        requested: Option<&InstanceId>,
    ) -> Result<InstanceId, SelectionRefusal>;
}

/// The directory of a space in which no manager can register: this service keeps no manager gates yet, so every
/// instance is unknown and none is live.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoManagers;

#[async_trait]
impl ManagerDirectory for NoManagers {
    async fn select(
        &self,
        owner: &DerivedOwner,
        requested: Option<&InstanceId>,
    ) -> Result<InstanceId, SelectionRefusal> {
        Err(match requested {
            Some(id) => SelectionRefusal::NotACandidate(format!("manager instance {id} is unknown")),
            None => SelectionRefusal::NoLiveManager(format!(
                "manager-caller selection found no manager candidate for owner {owner}; start one with `cotal manager start`"
            )),
        })
    }
}
