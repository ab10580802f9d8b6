//! Who says that the authority of a narrowed view lives: the row of the actor does not hold it (contract 05 §13, 04 §9).
//!
//! A session and a manager instance are asked about at the connect itself, whatever the exchange was told. A connect without
//! such a view asks nobody: it neither reads nor writes here.

use std::sync::Arc;

use async_trait::async_trait;
use cotal_authority::issued::IssuerSession;
use cotal_wire::{DerivedOwner, EpError, InstanceId, LifecycleUid, Principal, SessionClaim};

/// Says whether a principal holds a redeemed session now (contract 04 §11.2).
#[async_trait]
pub trait SessionVerifier: Send + Sync {
    /// The session as its row has it: its expiry is the row's, in whole seconds.
    async fn verify_session(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
        session: &SessionClaim,
    ) -> Result<SessionClaim, EpError>;
}

/// Says whether a manager instance serves an owner now (contract 05 §5).
#[async_trait]
pub trait ManagerAuthorizer: Send + Sync {
    /// Refuses unless a caller of `owner` may be given permissions on this instance.
    async fn authorize_manager_caller(
        &self,
        owner: &DerivedOwner,
        instance: &InstanceId,
    ) -> Result<(), EpError>;
}

/// Who is asked. A view whose answer is missing here is refused; a caller whose issuer is missing gets no issued pair.
#[derive(Clone, Default)]
pub struct Callers {
    /// For `session-caller`.
    pub sessions: Option<Arc<dyn SessionVerifier>>,
    /// For `manager-caller`.
    pub managers: Option<Arc<dyn ManagerAuthorizer>>,
    /// Issues the pair of a `manager-caller` (contract 03 §H.8). It dials when it is first needed.
    pub issuer: Option<IssuerSession>,
}
