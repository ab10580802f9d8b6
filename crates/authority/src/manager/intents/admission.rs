//! A user's intent is admitted, or not (contract 06 §13.1).

use cotal_wire::{
    Actor, EpError, InstanceId, LifecycleUid, Owner, OwnerKind, Principal,
    manager_authority::{Intent, IntentRequest, Kind, serve_principal},
    rows::EndpointGate,
};

use super::{IntentHost, Unobserved, not_assigned};
use crate::manager::{holder::Assignment, registration::open};

/// What an admission of a launch or a retirement rests on, as it was read.
#[derive(Debug, Clone)]
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
    /// The incarnation that it enrolled.
    pub lifecycle_uid: LifecycleUid,
    /// The agent that was launched.
    pub target_actor: Actor,
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
    let needed = Kind::DelegatedIntent.scope().capability().unwrap_or_default();
    if !view.scope.is_some_and(|scope| scope.iter().any(|held| held == needed)) {
        return Err(EpError::permission_denied(format!("the actor's grant has no scope \"{needed}\"")));
    }
    let assignment = view.assignment.map_err(EpError::from)?;
    let gate = view.gate.map_err(EpError::from)?;
    let parent = Principal::new(owner.clone(), request.actor.clone());
    match &request.intent {
        Intent::Launch(_) => {
            let assignment = assignment
                .filter(|assignment| host.has_assigned(assignment, &request.instance_id))
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
                        && launch.lifecycle_uid == target.lifecycle_uid
                        && launch.target_actor == target.actor
                        && launch.instance == request.instance_id
                })
                .ok_or_else(|| {
                    EpError::failed_precondition("no launch through this manager enrolled that incarnation")
                })?;
            let holds = assignment.is_some_and(|assignment| {
                host.has_assigned(assignment, &request.instance_id)
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

fn of_platform(host: IntentHost<'_>, gate: &EndpointGate, instance: &InstanceId) -> Result<(), EpError> {
    if *gate.principal() == serve_principal(host.platform, instance) {
        Ok(())
    } else {
        Err(EpError::permission_denied("this manager instance is registered by another principal"))
    }
}
