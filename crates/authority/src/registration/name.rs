//! Who may register an endpoint of which name (contract 02 §7.3, 05 §8.3).

use async_trait::async_trait;
use cotal_wire::{EndpointName, EpError, Owner};

/// One snapshot of the name authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameVerdict {
    /// Whether this owner may.
    pub authorized: bool,
    /// The revision that this was so at; a registration holds only while it stands.
    pub revision: u64,
}

/// Decides who may register which endpoint name.
#[async_trait]
pub trait NameAuthority: Send + Sync {
    /// One snapshot; both members belong to the same instant.
    async fn authorize(&self, name: &EndpointName, owner: &Owner) -> Result<NameVerdict, EpError>;
}

/// The name authority of a service that registers its own endpoint: exactly this name, for exactly this owner, at
/// revision 0.
#[derive(Debug, Clone)]
pub struct OwnName {
    /// The endpoint.
    pub name: EndpointName,
    /// Its owner.
    pub owner: Owner,
}

#[async_trait]
impl NameAuthority for OwnName {
    async fn authorize(&self, name: &EndpointName, owner: &Owner) -> Result<NameVerdict, EpError> {
        Ok(NameVerdict { authorized: self.name == *name && self.owner == *owner, revision: 0 })
    }
}
