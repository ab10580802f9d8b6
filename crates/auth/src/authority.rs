//! What an exchange may sign, as the ledger and the plane say now: the hooks of both arms.

use std::sync::Arc;

use async_trait::async_trait;
use cotal_authority::{
    Plane,
    activation::ActivationFailure,
    retirement::{Retirement, RetirementFailure},
};
use cotal_ledger::{AuthorizedGrant, Ledger, LedgerError};
use cotal_trust::bearer::BearerGrant;
use cotal_wire::{Actor, CredentialId, DerivedOwner, EpError, LifecycleUid, Principal};

use crate::{
    bridge::{BridgeHooks, BridgeRefusal},
    http::doors::LifecycleDoor,
};

/// Makes the root credential of an incarnation durable.
#[async_trait]
pub trait ConnectCredentials: Send + Sync {
    /// The incarnation's live root credential; durable authority exists before it returns.
    async fn mint_connect_credential(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        lifecycle_uid: &LifecycleUid,
    ) -> Result<CredentialId, EpError>;
}

#[async_trait]
impl ConnectCredentials for Plane {
    async fn mint_connect_credential(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        lifecycle_uid: &LifecycleUid,
    ) -> Result<CredentialId, EpError> {
        Self::mint_connect_credential(self, owner, actor, lifecycle_uid).await
    }
}

#[async_trait]
impl LifecycleDoor for Plane {
    fn check_open(&self) -> Result<(), EpError> {
        Self::check_open(self)
    }

    async fn retire_interactive(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        Self::retire_interactive(self, principal, uid).await
    }

    async fn retire_managed(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        Self::retire_managed(self, principal, uid).await
    }

    async fn activate_managed(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<(), ActivationFailure> {
        Self::activate_managed(self, principal, uid).await
    }
}

/// The actor ledger and the authority behind it. Ledger rows are files, read fresh at every exchange, so each read
/// leaves the async threads.
#[derive(Clone)]
pub(crate) struct ExchangeAuthority {
    ledger: Ledger,
    credentials: Arc<dyn ConnectCredentials>,
}

/// What a caller is told when trusted state cannot be read: which file it is, the log says.
const LEDGER_UNREADABLE: &str =
    "the actor ledger cannot be read for this principal; ask the operator of the space";

impl ExchangeAuthority {
    pub(crate) fn new(ledger: Ledger, credentials: Arc<dyn ConnectCredentials>) -> Self {
        Self { ledger, credentials }
    }

    /// The managed grant that an agent's secret opens.
    pub(crate) async fn authorize_agent(
        &self,
        owner: DerivedOwner,
        actor: Actor,
        secret: zeroize::Zeroizing<String>,
    ) -> Result<AuthorizedGrant, BridgeRefusal> {
        self.read(move |ledger| ledger.authorize_agent_exchange(&owner, &actor, &secret)).await
    }

    /// The root credential of the grant's incarnation.
    pub(crate) async fn credential(&self, grant: &AuthorizedGrant) -> Result<CredentialId, BridgeRefusal> {
        Ok(self.credentials.mint_connect_credential(&grant.owner, &grant.actor, &grant.lifecycle_uid).await?)
    }

    async fn read<F>(&self, read: F) -> Result<AuthorizedGrant, BridgeRefusal>
    where
        F: FnOnce(&Ledger) -> Result<AuthorizedGrant, LedgerError> + Send + 'static,
    {
        let ledger = self.ledger.clone();
        let outcome = tokio::task::spawn_blocking(move || read(&ledger)).await.map_err(|error| {
            tracing::error!(%error, "a ledger read did not end");
            BridgeRefusal(LEDGER_UNREADABLE.to_owned())
        })?;
        outcome.map_err(|error| match error {
            LedgerError::Refused(sentence) => BridgeRefusal(sentence),
            LedgerError::Broken(detail) => {
                tracing::error!(%detail, "the actor ledger is broken");
                BridgeRefusal(LEDGER_UNREADABLE.to_owned())
            }
        })
    }
}

/// The plain bearer of a grant: what both arms sign, before either adds what its request asked for.
pub(crate) fn bearer_of(grant: AuthorizedGrant, credential_id: CredentialId) -> BearerGrant {
    BearerGrant {
        owner: grant.owner,
        actor: grant.actor,
        scope: Some(grant.scope),
        parent: grant.parent,
        lifecycle_uid: grant.lifecycle_uid,
        credential_id,
        view: None,
        manager_instance_id: None,
        session: None,
        transfer_writer: None,
        ttl_secs: None,
        not_after: None,
    }
}

#[async_trait]
impl BridgeHooks for ExchangeAuthority {
    async fn authorize_actor(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
    ) -> Result<AuthorizedGrant, BridgeRefusal> {
        let (owner, actor) = (owner.clone(), actor.clone());
        self.read(move |ledger| ledger.authorize_grant(&owner, &actor)).await
    }

    async fn mint_connect_credential(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        lifecycle_uid: &LifecycleUid,
    ) -> Result<CredentialId, BridgeRefusal> {
        Ok(self.credentials.mint_connect_credential(owner, actor, lifecycle_uid).await?)
    }
}
