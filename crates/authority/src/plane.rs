//! The authority plane, first part: mint writer, stores, connect reader, issuance log and its prune timer
//! (contract 05 §8.2 steps 1, 2, 4 and 16).
use std::{sync::Arc, time::Duration};
use cotal_broker::Connector;
use cotal_wire::{Actor, BearerClaims, Clock, CredentialId, DerivedOwner, Entropy, EpError, LifecycleUid};
use crate::{connect_reader::ConnectReader, issuance::IssuanceLog};

/// What a plane is opened from.
pub struct PlaneInputs {
    /// Opens the plane's connections.
    pub connector: Connector,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Entropy.
    pub entropy: Arc<dyn Entropy>,
    /// Prune interval; default 60 s.
    pub native_issuance_prune: Duration,
}

/// An open plane.
pub struct Plane { _private: () }

impl Plane {
    /// Opens every step in order; a failed open unwinds in reverse.
    pub async fn open(_inputs: PlaneInputs) -> Result<Arc<Self>, EpError> { todo!() }
    /// The connect reader.
    pub fn reader(&self) -> &Arc<ConnectReader> { todo!() }
    /// The issuance log.
    pub fn issuance(&self) -> &Arc<IssuanceLog> { todo!() }
    /// Credential arm of a connect; refuses once fenced.
    pub async fn authorize_connect_credential(&self, _claims: &BearerClaims) -> Result<(), EpError> { todo!() }
    /// Ensures the root credential under `auth-service:<space>`; refuses once fenced.
    pub async fn mint_connect_credential(&self, _owner: &DerivedOwner, _actor: &Actor, _uid: &LifecycleUid) -> Result<CredentialId, EpError> { todo!() }
    /// Resolves with the reason once the plane is fenced; never otherwise.
    pub async fn fenced(&self) -> String { todo!() }
    /// Closes: stop the timer, reader, writer.
    pub async fn close(&self) -> Result<(), EpError> { todo!() }
}
