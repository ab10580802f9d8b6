//! The envelope that the kinds share: who asks, for which manager (contract 06 §1.1-1.3).

use serde::Serialize;

use super::{Kind, fields::Fields, tokens::RequestId};
use crate::{
    endpoint_token::DigestRef,
    error::EpError,
    token::{Actor, InstanceId, LifecycleUid, Nkey, Owner, Principal, User},
};

/// Version of every request and result.
pub const VERSION: u64 = 1;

/// One of the five standing identities of a manager, in the order of every digest (contract 06 §1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StandingRole {
    /// Asks for authority, and renews it.
    Supervisor,
    /// Registers and runs.
    Executor,
    /// Serves the manager endpoint.
    Serve,
    /// Writes goals.
    GoalWriter,
    /// Keeps the session ledger.
    SessionLedger,
}

impl StandingRole {
    /// All five, in order.
    pub const ALL: [Self; 5] =
        [Self::Supervisor, Self::Executor, Self::Serve, Self::GoalWriter, Self::SessionLedger];

    /// The member that names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Executor => "executor",
            Self::Serve => "serve",
            Self::GoalWriter => "goalWriter",
            Self::SessionLedger => "sessionLedger",
        }
    }

    /// The actor under which it connects: derived by the server, never an input (contract 06 §1.2).
    pub fn actor(self, instance: &InstanceId) -> Actor {
        let infix = match self {
            Self::Supervisor => "",
            Self::Executor => "exec_",
            Self::Serve => "serve_",
            Self::GoalWriter => "goal_",
            Self::SessionLedger => "session_",
        };
        Actor::of_checked(&format!("manager_{infix}{instance}"))
    }
}

/// The principal that serves a manager's endpoint (contract 06 §1.2).
pub fn serve_principal(owner: &Owner, instance: &InstanceId) -> Principal {
    Principal::new(owner.clone(), StandingRole::Serve.actor(instance))
}

/// A public key in the place where a request holds one: exactly `{ "id" }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The public key; its seed never crosses.
    pub id: Nkey<User>,
}

/// The five standing identities of a manager (contract 06 §1.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Identities {
    /// Asks for authority, and renews it.
    pub supervisor: Holder,
    /// Registers and runs.
    pub executor: Holder,
    /// Serves the manager endpoint.
    pub serve: Holder,
    /// Writes goals.
    pub goal_writer: Holder,
    /// Keeps the session ledger.
    pub session_ledger: Holder,
}

impl Identities {
    /// The key of a role.
    pub fn of(&self, role: StandingRole) -> &Nkey<User> {
        let holder = match role {
            StandingRole::Supervisor => &self.supervisor,
            StandingRole::Executor => &self.executor,
            StandingRole::Serve => &self.serve,
            StandingRole::GoalWriter => &self.goal_writer,
            StandingRole::SessionLedger => &self.session_ledger,
        };
        &holder.id
    }

    pub(super) fn read(envelope: &Fields<'_>) -> Result<Self, EpError> {
        let names = StandingRole::ALL.map(StandingRole::as_str);
        let fields = envelope.inner("identities", "identities")?.exactly(&names)?;
        let holder = |role: StandingRole| {
            let id =
                fields.inner("identities: each identity", role.as_str())?.exactly(&["id"])?.token("id")?;
            Ok::<_, EpError>(Holder { id })
        };
        Ok(Self {
            supervisor: holder(StandingRole::Supervisor)?,
            executor: holder(StandingRole::Executor)?,
            serve: holder(StandingRole::Serve)?,
            goal_writer: holder(StandingRole::GoalWriter)?,
            session_ledger: holder(StandingRole::SessionLedger)?,
        })
    }
}

/// The actors of the five standing identities, as results and proofs name them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StandingActors {
    /// `manager_<instance>`
    pub supervisor: Actor,
    /// `manager_exec_<instance>`
    pub executor: Actor,
    /// `manager_serve_<instance>`
    pub serve: Actor,
    /// `manager_goal_<instance>`
    pub goal_writer: Actor,
    /// `manager_session_<instance>`
    pub session_ledger: Actor,
}

impl StandingActors {
    /// Those of an instance.
    pub fn of(instance: &InstanceId) -> Self {
        Self {
            supervisor: StandingRole::Supervisor.actor(instance),
            executor: StandingRole::Executor.actor(instance),
            serve: StandingRole::Serve.actor(instance),
            goal_writer: StandingRole::GoalWriter.actor(instance),
            session_ledger: StandingRole::SessionLedger.actor(instance),
        }
    }
}

/// Whether a kind carries a registration proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProofMember {
    Required,
    Absent,
}

/// Who asks, for which manager. Nothing in it is proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The space as it was named; authorization compares it with the host's.
    pub space: String,
    /// The interactive actor whose ledger row decides.
    pub actor: Actor,
    /// The manager's instance.
    pub instance_id: InstanceId,
    /// The manager's lifecycle.
    pub manager_lifecycle_uid: LifecycleUid,
    /// The participant's name of this request.
    pub request_id: RequestId,
    /// The registration proof, of the kinds that carry one.
    pub registration_proof: Option<DigestRef>,
    /// The five standing identities.
    pub identities: Identities,
}

impl Envelope {
    /// Steps 4 to 9 of contract 06 §1.3; the members were found known before.
    pub(super) fn read(fields: &Fields<'_>, kind: Kind, proof: ProofMember) -> Result<Self, EpError> {
        version_and_kind(fields, kind)?;
        let space = fields.text("space")?.to_owned();
        for member in ["actor", "instanceId", "managerLifecycleUid", "requestId"] {
            fields.text(member)?;
        }
        let actor = fields.token("actor")?;
        let instance_id = fields.token("instanceId")?;
        let manager_lifecycle_uid = fields.token("managerLifecycleUid")?;
        let request_id = fields.token("requestId")?;
        let registration_proof = match proof {
            ProofMember::Required => Some(fields.token("registrationProof")?),
            ProofMember::Absent => fields.absent("registrationProof").map(|()| None)?,
        };
        let identities = Identities::read(fields)?;
        Ok(Self {
            space,
            actor,
            instance_id,
            manager_lifecycle_uid,
            request_id,
            registration_proof,
            identities,
        })
    }
}

/// Step 4: `v` is 1 and `kind` is the literal.
pub(super) fn version_and_kind(fields: &Fields<'_>, kind: Kind) -> Result<(), EpError> {
    if fields.integer("v", VERSION).ok() != Some(VERSION) {
        return Err(fields.bad("v", "1"));
    }
    fields.literal("kind", kind.as_str())
}

/// The members of the envelope, for the kinds that carry all of it.
pub(super) const ENVELOPE: [&str; 8] =
    ["v", "kind", "space", "actor", "instanceId", "managerLifecycleUid", "requestId", "identities"];

/// The envelope's members and more.
pub(super) fn known<const N: usize>(more: [&'static str; N]) -> Vec<&'static str> {
    ENVELOPE.into_iter().chain(more).collect()
}

/// Who a human's, and who a platform's, request may name as a managed agent's owner (contract 06 §4.1).
pub(super) fn target_owner(fields: &Fields<'_>, holder: HolderKind) -> Result<Owner, EpError> {
    use crate::token::OwnerKind;
    let owner: Owner = fields.token("owner")?;
    match (owner.kind(), holder) {
        (OwnerKind::Derived, _) | (OwnerKind::Platform, HolderKind::Platform) => Ok(owner),
        _ => Err(fields.bad("owner", "an owner derived from a sign-in")),
    }
}

/// On whose account a request is read (contract 06 §2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderKind {
    /// A person who signed in.
    Human,
    /// The platform that assigned the manager.
    Platform,
}

/// One managed agent in one incarnation: exactly `{ owner, actor, lifecycleUid }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Incarnation {
    /// The owner.
    pub owner: Owner,
    /// The actor.
    pub actor: Actor,
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
}

impl Incarnation {
    pub(super) fn read(
        parent: &Fields<'_>,
        path: &'static str,
        member: &str,
        holder: HolderKind,
    ) -> Result<Self, EpError> {
        let fields = parent.inner(path, member)?.exactly(&["owner", "actor", "lifecycleUid"])?;
        Ok(Self {
            owner: target_owner(&fields, holder)?,
            actor: fields.token("actor")?,
            lifecycle_uid: fields.token("lifecycleUid")?,
        })
    }
}
