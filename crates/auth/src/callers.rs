//! Who answers for the narrowed views of a space, at the exchange and again at each connect (contract 05 §4.5, §13).
//!
//! One reader answers both: what it says is read from the stores each time, leader-served, and refused once the plane is
//! fenced. A replica asks over a reader of its own. At the exchange a plane also writes whose the session is.

use std::sync::Arc;

use async_trait::async_trait;
use cotal_authority::{ConnectReader, Plane, ReadLocalManager, Redemption, issued::IssuerSession};
use cotal_callout::{Callers, ManagerAuthorizer, SessionVerifier};
use cotal_wire::{DerivedOwner, EpError, InstanceId, LifecycleUid, Principal, SessionClaim};

use crate::sessions::{SessionCoordinates, SessionDirectory};

/// Redeems sessions and authorizes manager callers over a connect reader.
#[derive(Clone)]
pub struct LiveCallers {
    reader: Arc<ConnectReader>,
    local: Arc<dyn ReadLocalManager>,
    plane: Option<Arc<Plane>>,
}

impl LiveCallers {
    /// Over this reader, on a host with this manager: for the connects of a process that has no plane.
    pub fn new(reader: Arc<ConnectReader>, local: Arc<dyn ReadLocalManager>) -> Self {
        Self { reader, local, plane: None }
    }

    /// Over this plane's reader, for connects and exchanges: a session that an exchange redeems is from then on its holder's
    /// owner's, and no manager of another owner is granted its serving side.
    pub fn of_plane(plane: Arc<Plane>, local: Arc<dyn ReadLocalManager>) -> Self {
        Self { reader: Arc::clone(plane.reader()), local, plane: Some(plane) }
    }

    /// What a callout is given: these answers, and the issuer.
    pub(crate) fn with_issuer(&self, issuer: IssuerSession) -> Callers {
        Callers {
            sessions: Some(Arc::new(self.clone())),
            managers: Some(Arc::new(self.clone())),
            issuer: Some(issuer),
        }
    }

    async fn redeem(&self, asked: Redemption<'_>) -> Result<SessionClaim, EpError> {
        let local = self.local.read_local_manager().await?;
        self.reader.redeem_session(&asked, local.as_ref()).await
    }
}

#[async_trait]
impl SessionDirectory for LiveCallers {
    async fn verify(
        &self,
        principal: &Principal,
        lifecycle_uid: &LifecycleUid,
        coordinates: &SessionCoordinates,
    ) -> Result<SessionClaim, EpError> {
        let SessionCoordinates { endpoint, session_id, epoch, grant_sig } = coordinates;
        let asked = Redemption {
            principal,
            uid: lifecycle_uid,
            endpoint,
            session: session_id,
            epoch: *epoch,
            grant_sig: grant_sig.as_deref(),
        };
        let Some(plane) = &self.plane else { return self.redeem(asked).await };
        let local = self.local.read_local_manager().await?;
        plane.redeem_session(&asked, local.as_ref()).await
    }
}

#[async_trait]
impl SessionVerifier for LiveCallers {
    async fn verify_session(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
        session: &SessionClaim,
    ) -> Result<SessionClaim, EpError> {
        let SessionClaim { endpoint, session_id, epoch, exp: _ } = session;
        self.redeem(Redemption {
            principal,
            uid,
            endpoint,
            session: session_id,
            epoch: *epoch,
            grant_sig: None,
        })
        .await
    }
}

#[async_trait]
impl ManagerAuthorizer for LiveCallers {
    async fn authorize_manager_caller(
        &self,
        owner: &DerivedOwner,
        instance: &InstanceId,
    ) -> Result<(), EpError> {
        let local = self.local.read_local_manager().await?;
        self.reader.authorize_manager_caller(owner, instance, local.as_ref()).await
    }
}
