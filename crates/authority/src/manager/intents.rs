//! The two decisions of a delegated user intent, for a host that composes them (contract 06 §13).
//!
//! A user asks that a manager launch or retire an agent; the host records what it admitted; the manager executes just
//! that. The stock service refuses both kinds: who keeps the records is the host.

use cotal_trust::registration_proof::RegistrationProofKey;
use cotal_wire::{Account, Nkey};
use cotal_wire::{
    EpError, InstanceId, LifecycleUid, OpId, Owner, OwnerKind, Principal, Sha256Hex, Space,
    manager_authority::{
        EnrollmentTarget, Execution, ExecutionRequest, Incarnation, Intent, IntentRequest, RequestId, SPAWN,
        serve_principal,
    },
    rows::EndpointGate,
    time::UnixMillis,
};

use super::{
    holder::Assignment,
    registration::{check_current, open},
};

/// How long an admitted intent may wait for its execution at most.
pub const MAX_INTENT_TTL_SECS: u64 = 300;

/// What the host that decides is.
#[derive(Debug, Clone, Copy)]
pub struct IntentHost<'a> {
    /// Its space.
    pub space: &'a Space,
    /// Its data account.
    pub account: &'a Nkey<Account>,
    /// The platform's owner, who assigns managers.
    pub platform: &'a Owner,
    /// The key of current registrations.
    pub proof: &'a RegistrationProofKey,
}

/// Why something that was to be observed was not: the answer is then `unavailable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unobserved;

impl From<Unobserved> for EpError {
    fn from(Unobserved: Unobserved) -> Self {
        Self::unavailable("the manager's assignment or registration could not be read; retry")
    }
}

/// What an admission of a launch or a retirement rests on, as it was read.
pub struct AdmissionView<'a> {
    /// The scope of the asking actor's row, `None` when there is no row.
    pub scope: Option<&'a [String]>,
    /// The assignment of the manager.
    pub assignment: Result<Option<&'a Assignment>, Unobserved>,
    /// The manager's gate.
    pub gate: Result<Option<&'a EndpointGate>, Unobserved>,
    /// For a launch: the walk of the delegation envelope of the row that would be written.
    pub envelope: Result<(), EpError>,
    /// For a launch: whether a record of this owner and agent holds the alias.
    pub alias_held: bool,
    /// For a retirement: the record of the launch at the target's incarnation.
    pub launch: Option<&'a LaunchRecord>,
}

/// What the record of an enrolled launch says, as far as its retirement asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchRecord {
    /// The owner who asked for it.
    pub owner: Owner,
    /// The agent that was launched.
    pub target_actor: cotal_wire::Actor,
    /// Through which manager.
    pub instance: InstanceId,
    /// In which lifecycle of it.
    pub manager_lifecycle_uid: LifecycleUid,
    /// Under which assignment.
    pub assignment_revision: u64,
    /// At which serving epoch.
    pub serve_epoch: u64,
    /// Whether its outcome is `enrolled`.
    pub enrolled: bool,
}

/// An intent that may be recorded as admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmittedIntent {
    /// The manager's lifecycle.
    pub manager_lifecycle_uid: LifecycleUid,
    /// The assignment's revision.
    pub assignment_revision: u64,
    /// The serving epoch that it is bound to; `None` for a retirement whose holder is gone.
    pub serve_epoch: Option<u64>,
    /// `<owner>.<actor>` of the user: the parent of what is launched.
    pub parent: Principal,
}

/// Decides an admission (contract 06 §13.1). `owner` is the owner of the verified sign-in.
pub fn decide_admission(
    host: IntentHost<'_>,
    owner: &Owner,
    request: &IntentRequest,
    view: &AdmissionView<'_>,
) -> Result<AdmittedIntent, EpError> {
    if request.space != host.space.as_str() || request.account != *host.account {
        return Err(EpError::permission_denied("the intent is of another space or data account"));
    }
    if owner.kind() != OwnerKind::Derived {
        return Err(EpError::permission_denied("an intent is a signed-in user's"));
    }
    if !view.scope.is_some_and(|scope| scope.iter().any(|held| held == SPAWN)) {
        return Err(EpError::permission_denied(format!("the actor's grant has no scope \"{SPAWN}\"")));
    }
    let assignment = view.assignment.map_err(EpError::from)?;
    let gate = view.gate.map_err(EpError::from)?;
    let parent = Principal::new(owner.clone(), request.actor.clone());
    match &request.intent {
        Intent::Launch(_) => {
            let assignment = assignment
                .filter(|assignment| {
                    assignment.assigned
                        && assignment.space == *host.space
                        && assignment.account == *host.account
                        && assignment.instance == request.instance_id
                })
                .ok_or_else(not_assigned)?;
            let gate = open(gate)?;
            of_platform(host, gate, &request.instance_id)?;
            view.envelope.clone()?;
            if view.alias_held {
                return Err(EpError::failed_precondition(
                    "an earlier intent holds this agent's name; end that one first",
                ));
            }
            Ok(AdmittedIntent {
                manager_lifecycle_uid: assignment.lifecycle_uid.clone(),
                assignment_revision: assignment.revision,
                serve_epoch: Some(gate.coordinate().process_epoch),
                parent,
            })
        }
        Intent::Retire(target) => {
            if target.owner != *owner {
                return Err(EpError::permission_denied("the target belongs to another owner"));
            }
            let launch = view
                .launch
                .filter(|launch| {
                    launch.owner == *owner
                        && launch.enrolled
                        && launch.target_actor == target.actor
                        && launch.instance == request.instance_id
                })
                .ok_or_else(|| {
                    EpError::failed_precondition("no launch through this manager enrolled that incarnation")
                })?;
            let holds = assignment.is_some_and(|assignment| {
                assignment.assigned
                    && assignment.lifecycle_uid == launch.manager_lifecycle_uid
                    && assignment.revision == launch.assignment_revision
            }) && gate.is_some_and(|gate| {
                gate.is_open()
                    && *gate.principal() == serve_principal(host.platform, &request.instance_id)
                    && gate.coordinate().process_epoch == launch.serve_epoch
            });
            Ok(AdmittedIntent {
                manager_lifecycle_uid: launch.manager_lifecycle_uid.clone(),
                assignment_revision: launch.assignment_revision,
                serve_epoch: holds.then_some(launch.serve_epoch),
                parent,
            })
        }
    }
}

fn not_assigned() -> EpError {
    EpError::permission_denied("the platform has not assigned this manager instance to the space")
}

fn of_platform(host: IntentHost<'_>, gate: &EndpointGate, instance: &InstanceId) -> Result<(), EpError> {
    if *gate.principal() == serve_principal(host.platform, instance) {
        Ok(())
    } else {
        Err(EpError::permission_denied("this manager instance is registered by another principal"))
    }
}

/// An admitted intent as its record stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentRecord {
    /// Its id.
    pub intent_id: LifecycleUid,
    /// The space.
    pub space: Space,
    /// The data account.
    pub account: Nkey<Account>,
    /// The owner who asked.
    pub owner: Owner,
    /// The parent of what is launched.
    pub parent: Principal,
    /// The manager.
    pub instance: InstanceId,
    /// Its lifecycle.
    pub manager_lifecycle_uid: LifecycleUid,
    /// The assignment's revision.
    pub assignment_revision: u64,
    /// The epoch that it is bound to.
    pub serve_epoch: Option<u64>,
    /// What was admitted.
    pub intent: AdmittedTarget,
    /// Until when it may be executed.
    pub expires_at: UnixMillis,
    /// The pins of an execution that has consumed it; `None` while it is only admitted.
    pub consumed: Option<ExecutionPins>,
}

/// What was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmittedTarget {
    /// A launch.
    Launch(Box<EnrollmentTarget>),
    /// A retirement.
    Retire(Incarnation),
}

/// What an execution pinned when it consumed the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionPins {
    /// Its request, when a manager made one.
    pub request_id: Option<RequestId>,
    /// Its epoch.
    pub serve_epoch: Option<u64>,
    /// The digest of the agent's token, of a launch.
    pub token_hash: Option<Sha256Hex>,
}

/// An execution that may consume its record, or go on with one that it consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedExecution {
    /// Whether it goes on with what the same request began.
    pub resume: bool,
    /// What is done.
    pub act: Act,
}

/// What an execution does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Enrols the admitted target with this digest.
    Launch(Sha256Hex),
    /// Retires under this operation.
    Retire(OpId),
}

/// Decides an execution (contract 06 §13.2).
pub fn decide_execution(
    host: IntentHost<'_>,
    request: &ExecutionRequest,
    record: Option<&IntentRecord>,
    assignment: Result<Option<&Assignment>, Unobserved>,
    gate: Option<&EndpointGate>,
    now: UnixMillis,
) -> Result<DecidedExecution, EpError> {
    let envelope = &request.envelope;
    if envelope.space != host.space.as_str() || request.account != *host.account {
        return Err(EpError::permission_denied("the execution is of another space or data account"));
    }
    let record = record
        .filter(|record| {
            record.intent_id == request.intent_id
                && record.space == *host.space
                && record.account == *host.account
        })
        .ok_or_else(|| EpError::failed_precondition("there is no such intent"))?;
    let resume = match &record.consumed {
        None if record.expires_at <= now => {
            return Err(EpError::failed_precondition("the intent has expired; the user must ask again"));
        }
        None => false,
        Some(pins) => {
            let hash = match &request.execute {
                Execution::Launch { token_hash, .. } => Some(token_hash),
                Execution::Retire(_) => None,
            };
            let same = pins.request_id.as_ref() == Some(&envelope.request_id)
                && pins.serve_epoch == Some(request.serve_epoch)
                && (hash.is_none() || pins.token_hash.as_ref() == hash);
            if !same {
                return Err(EpError::failed_precondition("another execution has consumed this intent"));
            }
            true
        }
    };
    let same_operation = matches!(
        (&record.intent, &request.execute),
        (AdmittedTarget::Launch(_), Execution::Launch { .. })
            | (AdmittedTarget::Retire(_), Execution::Retire(_))
    );
    if record.instance != envelope.instance_id
        || record.manager_lifecycle_uid != envelope.manager_lifecycle_uid
        || record.assignment_revision != request.assignment_revision
        || !same_operation
    {
        return Err(EpError::permission_denied("the intent was admitted for another manager or operation"));
    }
    let assignment = assignment.map_err(EpError::from)?;
    let current = assignment.is_some_and(|assignment| {
        assignment.assigned
            && assignment.instance == record.instance
            && assignment.revision == record.assignment_revision
            && assignment.lifecycle_uid == record.manager_lifecycle_uid
    });
    if !current {
        return Err(not_assigned());
    }
    check_current(gate, envelope, Some(request.serve_epoch), host.platform, host.proof)?;
    if record.serve_epoch != Some(request.serve_epoch) {
        return Err(EpError::permission_denied("the intent is bound to another serving epoch"));
    }
    let act = match (&record.intent, &request.execute) {
        (AdmittedTarget::Launch(admitted), Execution::Launch { actor, token_hash })
            if admitted.actor == *actor =>
        {
            Act::Launch(token_hash.clone())
        }
        (AdmittedTarget::Retire(admitted), Execution::Retire(target)) if admitted == target => {
            Act::Retire(OpId::managed_retirement(&target.lifecycle_uid))
        }
        _ => return Err(EpError::permission_denied("the intent was admitted for another target")),
    };
    Ok(DecidedExecution { resume, act })
}
