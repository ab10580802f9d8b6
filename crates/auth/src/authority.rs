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
use cotal_workspace::file;
use tokio::sync::Semaphore;

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
    reads: Arc<Semaphore>,
}

/// Reads of one space's ledger in progress. Anybody may ask for one, and one of a disk that hangs holds a thread of the
/// process for as long, whether its request is still waited for or not: the others' ledgers are read by the same threads.
const READS_AT_ONCE: usize = 32;

/// What a caller is told when trusted state cannot be read: which file it is, the log says.
const LEDGER_UNREADABLE: &str =
    "the actor ledger cannot be read for this principal; ask the operator of the space";

impl ExchangeAuthority {
    pub(crate) fn new(ledger: Ledger, credentials: Arc<dyn ConnectCredentials>) -> Self {
        Self { ledger, credentials, reads: Arc::new(Semaphore::new(READS_AT_ONCE)) }
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
        let unended = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "a ledger read did not end");
            BridgeRefusal(LEDGER_UNREADABLE.to_owned())
        };
        let turn = Arc::clone(&self.reads).acquire_owned().await.map_err(|error| unended(&error))?;
        let ledger = self.ledger.clone();
        let outcome = file::blocking(move || {
            let _turn = turn;
            read(&ledger)
        });
        let outcome = outcome.await.map_err(|error| unended(&error))?;
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    struct Nobody;

    #[async_trait]
    impl ConnectCredentials for Nobody {
        async fn mint_connect_credential(
            &self,
            _owner: &DerivedOwner,
            _actor: &Actor,
            _lifecycle_uid: &LifecycleUid,
        ) -> Result<CredentialId, EpError> {
            Err(EpError::unavailable("nobody"))
        }
    }

    /// More reads than the process has threads for: those of one space leave the others theirs.
    #[tokio::test]
    async fn a_ledger_that_hangs_takes_no_more_threads_than_its_own() {
        let authority =
            ExchangeAuthority::new(Ledger::at(std::path::Path::new("/nowhere")), Arc::new(Nobody));
        let (hold, held) = mpsc::channel::<()>();
        let held = Arc::new(parking_lot::Mutex::new(held));
        let mut asked = tokio::task::JoinSet::new();
        for _ in 0..600 {
            let (authority, held) = (authority.clone(), Arc::clone(&held));
            asked.spawn(async move {
                // The disk: every read waits until the test lets go of its end.
                let read = move |_: &Ledger| {
                    let _ = held.lock().recv();
                    Err(LedgerError::Refused("gone".to_owned()))
                };
                authority.read(read).await
            });
        }
        while authority.reads.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let other = tokio::time::timeout(Duration::from_secs(60), file::blocking(|| ()));
        other.await.expect("another space's read has a thread").unwrap();
        drop(hold);
        assert!(asked.join_all().await.iter().all(Result::is_err));
    }
}
