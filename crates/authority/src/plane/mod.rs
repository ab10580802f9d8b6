//! The authority plane of a space: one process owns it, proves it, and through it credentials are minted and lifecycles
//! end (contract 05 §8).
//!
//! [`Plane::open`] takes the claim and starts everything in the contract's order; [`Plane::close`] gives it back. From
//! the moment that the plane is fenced or closes, everything that it hands out refuses.

mod barriers;
mod close;
mod instances;
mod managers;
mod open;
mod sessions;

use std::{sync::Arc, time::Duration};

use cotal_broker::{Connection, Connector};
use cotal_wire::{
    Actor, Clock, CredentialId, DerivedOwner, Entropy, EpError, InstanceId, KeySegment, LifecycleUid, Nkey,
    OpId, Principal, Space, User,
    delivery_admin::{BUDGET_SECS, LEASE_TTL_SECS},
};
use tokio::sync::{Mutex, Notify};

use crate::{
    activation::{ActivationFailure, activate_managed},
    connect_reader::ConnectReader,
    delivery_admin::DeliveryAdmin,
    drain::Retiring,
    fence::Fence,
    handle_revocation::HandleRevocation,
    intents::BootResume,
    issuance::IssuanceLog,
    past::RememberPast,
    plane_claim::ClaimHold,
    rail::AuthRail,
    registration::OwnRegistration,
    retirement::{Retirement, RetirementFailure},
    retirements::Retirements,
    root_credential::ensure_root_credential,
    stores::AuthorityStores,
    takeover::TakeoverReport,
};
use barriers::Barriers;

/// How long after a successful prune the next one runs, unless told otherwise (contract 05 §8.4).
pub const NATIVE_ISSUANCE_PRUNE: Duration = Duration::from_secs(60);
/// How long an open waits for the delivery daemon to say whether a dead predecessor is gone, unless told otherwise.
///
/// The broker forgets a killed process's connections within moments. But when the delivery daemon was killed too, as
/// when a machine restarts, its successor waits out the lease of the one that died before it answers anybody.
pub const CLAIM_PATIENCE: Duration = Duration::from_secs(LEASE_TTL_SECS + BUDGET_SECS);

/// What a plane is opened from.
pub struct PlaneInputs {
    /// Opens the plane's connections.
    pub connector: Connector,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Entropy.
    pub entropy: Arc<dyn Entropy>,
    /// Who the plane's own endpoint is.
    pub identity: PlaneIdentity,
    /// Prune interval; default [`NATIVE_ISSUANCE_PRUNE`].
    pub native_issuance_prune: Duration,
    /// How long an inconclusive look at a dead predecessor is repeated; default [`CLAIM_PATIENCE`].
    pub claim_patience: Duration,
    /// Where it is kept how far the past is over. Without, each open looks at every operation that there ever was.
    pub past: Option<Arc<dyn RememberPast>>,
}

/// The kept identity of the plane's own endpoint `auth`: each start under it is one epoch on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaneIdentity {
    /// The instance.
    pub instance: InstanceId,
    /// The key that its serving principal is named by.
    pub serve: Nkey<User>,
}

/// An open plane.
pub struct Plane {
    space: Space,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    fence: Arc<Fence>,
    writer: Connection,
    barrier: Connection,
    stores: AuthorityStores,
    reader: Arc<ConnectReader>,
    issuance: Arc<IssuanceLog>,
    hold: Arc<ClaimHold>,
    barriers: Arc<Barriers>,
    delivery: DeliveryAdmin,
    gates: managers::ManagerGates,
    instances: instances::Instances,
    /// Told of each session that is bound.
    session_bound: Arc<Notify>,
    retirements: Arc<Retirements>,
    boot: BootResume,
    registration: OwnRegistration,
    rail: Arc<AuthRail>,
    closing: Mutex<close::Closing>,
}

/// The managerInstance under which the service mints (contract 05 §13).
fn manager_instance(space: &Space) -> String {
    format!("auth-service:{space}")
}

impl Plane {
    /// Opens every step in order; a failed open unwinds in reverse (contract 05 §8.2).
    ///
    /// A plane that another process owns is refused with a [`crate::plane_claim::ClaimRefusal`] in its details.
    pub async fn open(inputs: PlaneInputs) -> Result<Arc<Self>, EpError> {
        open::open(inputs).await
    }

    /// The connect reader. It refuses once the plane is fenced.
    pub fn reader(&self) -> &Arc<ConnectReader> {
        &self.reader
    }

    /// The issuance log. It refuses once the plane is fenced.
    pub fn issuance(&self) -> &Arc<IssuanceLog> {
        &self.issuance
    }

    /// The proved stores, over the mint writer's connection.
    pub fn stores(&self) -> &AuthorityStores {
        &self.stores
    }

    /// The proved stores over the barrier executor's connection: what retirements read and write goes through them.
    pub fn barrier_stores(&self) -> &AuthorityStores {
        &self.barriers.deps().stores
    }

    /// The claim that this plane holds.
    pub fn claim(&self) -> &ClaimHold {
        &self.hold
    }

    /// The client of the space's delivery daemon.
    pub fn delivery(&self) -> &DeliveryAdmin {
        &self.delivery
    }

    /// What opening made of the operations that an earlier run had begun.
    pub fn boot(&self) -> &BootResume {
        &self.boot
    }

    /// What the plane's own endpoint `auth` is registered as, and serves.
    pub fn registration(&self) -> &OwnRegistration {
        &self.registration
    }

    /// Refuses once the plane is fenced or closes.
    pub fn check_open(&self) -> Result<(), EpError> {
        self.fence.check()
    }

    /// Ensures the root credential under `auth-service:<space>`; refuses once fenced.
    pub async fn mint_connect_credential(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        uid: &LifecycleUid,
    ) -> Result<CredentialId, EpError> {
        self.fence.check()?;
        let principal = Principal::new(owner, actor.clone());
        let authority = manager_instance(&self.space);
        let id = ensure_root_credential(
            &self.stores,
            &principal,
            uid,
            &authority,
            self.clock.as_ref(),
            self.entropy.as_ref(),
        )
        .await?;
        // A plane that was fenced meanwhile hands nothing out any more.
        self.fence.check()?;
        Ok(id)
    }

    /// Retires an interactive lifecycle for good (contract 05 §7.1).
    pub async fn retire_interactive(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        self.retirements.retire_interactive(principal, uid).await
    }

    /// Retires a managed lifecycle for good; asked for twice, it runs once (contract 05 §7.2, §12).
    pub async fn retire_managed(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        self.retirements.retire_managed(principal, uid).await
    }

    /// Activates a managed lifecycle at this uid (contract 05 §7.3).
    pub async fn activate_managed(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<(), ActivationFailure> {
        self.fence.check().map_err(|error| ActivationFailure { error, began: false })?;
        activate_managed(&self.stores, principal, uid, &manager_instance(&self.space), self.entropy.as_ref())
            .await
    }

    /// Takes an active incarnation over: every credential is revoked, every connection ended, its epoch advances
    /// (contract 07 §5). `op` names the operation; the same one again ends what an earlier call began. It does not stop
    /// when its caller does, and one that failed because somebody did not answer is run again by the plane.
    pub async fn take_over(
        &self,
        op: &OpId,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<TakeoverReport, EpError> {
        self.fence.check()?;
        let of = Retiring { op: op.clone(), principal: principal.clone(), uid: uid.clone() };
        self.barriers.take_over(of).await
    }

    /// Revokes a capability handle and everything that was minted from it (contract 07 §5.1); asked again, it ends what
    /// an earlier call began.
    pub async fn revoke_handle(
        &self,
        issuer_key: &KeySegment,
        id: &KeySegment,
    ) -> Result<HandleRevocation, EpError> {
        self.fence.check()?;
        self.barriers.revoke_handle(issuer_key, id).await
    }

    /// Resolves with the reason once the plane is fenced; never otherwise.
    pub async fn fenced(&self) -> String {
        self.fence.tripped().await
    }
}
