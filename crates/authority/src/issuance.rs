//! Native issuance rows and their prune (contract 05 §8.4, 10 §5, decision D13).
use cotal_wire::{Actor, Clock, CredentialId, DerivedOwner, EpError, LifecycleUid, Nkey, Space, UnixSecs, User, View};
use std::sync::Arc;
use crate::stores::AuthorityStores;

/// One `natkey.<user nkey>` row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatkeyRow {
    /// The broker's user key for this connect: the row's key.
    pub user: Nkey<User>,
    /// Space.
    pub space: Space,
    /// Owner.
    pub owner: DerivedOwner,
    /// Actor.
    pub actor: Actor,
    /// Lifecycle.
    pub lifecycle_uid: LifecycleUid,
    /// Credential.
    pub credential_id: CredentialId,
    /// View, if any.
    pub view: Option<View>,
    /// `iat` of the minted JWT.
    pub iat: UnixSecs,
    /// `exp` of the minted JWT.
    pub exp: UnixSecs,
}

/// Writes and prunes issuance rows.
pub struct IssuanceLog { _private: () }

impl IssuanceLog {
    /// Over proved stores whose connection may publish `$KV.<auth>.natkey.>`.
    pub fn new(_stores: AuthorityStores, _clock: Arc<dyn Clock>) -> Self { todo!() }
    /// Create-only. An existing row is `conflict`, an ambiguous write `unavailable`.
    pub async fn record(&self, _row: &NatkeyRow) -> Result<(), EpError> { todo!() }
    /// Removes rows whose `exp` + 5 s has passed; a corrupt row is an error. Returns how many were removed.
    pub async fn prune(&self) -> Result<usize, EpError> { todo!() }
}
