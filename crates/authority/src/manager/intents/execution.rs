//! A manager executes what was admitted, and just that (contract 06 §13.2).

use cotal_wire::{
    Account, EpError, InstanceId, LifecycleUid, Nkey, OpId, Owner, Principal, Sha256Hex, Space, UnixMillis,
    manager_authority::{EnrollmentTarget, Execution, ExecutionRequest, Incarnation, RequestId},
    rows::EndpointGate,
};

use super::{IntentHost, Unobserved, not_assigned};
use crate::manager::{holder::Assignment, registration::check_current};

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
        host.has_assigned(assignment, &record.instance)
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
