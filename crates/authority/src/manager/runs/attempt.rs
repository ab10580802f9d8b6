//! Whose turn it is at a run: a driver's next attempt, or an operator's look or answer (contract 06 §12.2).

use cotal_wire::{
    EndpointName, EpError, IdToken, InstanceId, Owner, OwnerKind, Space,
    es_value::EsValue,
    manager_authority::{Answers, Attempt, Kind, OperatorTurn, RunAttemptRequest, RunId, RunOperation, Turn},
    rows::{CheckpointStatus, PauseWanted, RunAdmission, RunStatus},
};

use super::{
    RunWorld, raw_instance,
    served::{Forward, Serving, check_served},
};
use crate::manager::{Holder, LifecycleHost};

/// A turn that may be signed for. Only [`decide_attempt`] builds one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedTurn {
    request: RunAttemptRequest,
    pins: TurnPins,
}

/// What the credentials of a turn are pinned to, beside what was asked for. All of it was read, and none of it is the
/// manager's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnPins {
    /// A driver and its mediator, for the owner that was admitted.
    Attempt {
        /// As it was asked for.
        attempt: Attempt,
        /// The admission's owner.
        run_owner: Owner,
    },
    /// An operator.
    Operator {
        /// As it was asked for.
        turn: OperatorTurn,
        /// The one checkpoint that it may answer, off the run's journal.
        token: Option<IdToken>,
    },
}

impl GrantedTurn {
    /// What was asked for.
    pub fn request(&self) -> &RunAttemptRequest {
        &self.request
    }

    /// What its credentials are pinned to.
    pub fn pins(&self) -> &TurnPins {
        &self.pins
    }
}

/// Decides an attempt, in the order of contract 06 §12.2: holder, parse, registration, and then what the turn stands on.
pub async fn decide_attempt(
    world: &dyn RunWorld,
    host: LifecycleHost<'_>,
    holder: &Holder,
    request: &EsValue,
) -> Result<GrantedTurn, EpError> {
    holder.may_ask(Kind::RunAttempt.scope(), raw_instance(request))?;
    let request = RunAttemptRequest::parse(request)?;
    let (envelope, owner) = (&request.envelope, holder.owner());
    let serving = Serving::registered(world, host, envelope, &request.pins, owner).await?;
    let pins = match &request.turn {
        Turn::Attempt(attempt) => next_attempt(world, &serving, attempt).await?,
        Turn::Operator(turn) => operator(world, &serving, turn).await?,
    };
    world.check_open()?;
    Ok(GrantedTurn { request, pins })
}

/// Admitted, then who asks to resume, then that the run has not ended, then that this is exactly its next epoch and token.
async fn next_attempt(
    world: &dyn RunWorld,
    serving: &Serving<'_>,
    attempt: &Attempt,
) -> Result<TurnPins, EpError> {
    let admission = admitted(world, serving, &attempt.run_id).await?;
    if let Some(subject) = &attempt.served {
        let wanted = RunOperation::Resume { run: attempt.run_id.clone() };
        let forward = Forward { subject, wanted: &wanted, run_owner: admission.owner() };
        check_served(world, serving, &forward).await?;
    }
    is_next(attempt, world.status(&attempt.run_id).await?.as_ref())?;
    Ok(TurnPins::Attempt { attempt: attempt.clone(), run_owner: admission.owner().clone() })
}

/// The run, if it is one's own to see; the answer, if a step is answered.
async fn operator(
    world: &dyn RunWorld,
    serving: &Serving<'_>,
    turn: &OperatorTurn,
) -> Result<TurnPins, EpError> {
    if let Some(run) = &turn.run_id {
        admitted(world, serving, run).await?;
    }
    let token = match &turn.answers {
        Some(answers) => Some(answer(world, serving, turn, answers).await?),
        None => None,
    };
    Ok(TurnPins::Operator { turn: turn.clone(), token })
}

/// Admitted, the pause off the journal, how its checkpoint stands, that a request is served at all, and who asked it.
async fn answer(
    world: &dyn RunWorld,
    serving: &Serving<'_>,
    turn: &OperatorTurn,
    answers: &Answers,
) -> Result<IdToken, EpError> {
    admitted(world, serving, &answers.run_id).await?;
    let wanted = if answers.amend { PauseWanted::Settled } else { PauseWanted::Open };
    let token = world.pause_token(&answers.run_id, &answers.step_key, wanted).await?;
    admits_answer(world.checkpoint(&token).await?, answers.amend)?;
    let subject = turn.served.as_ref().ok_or_else(|| {
        EpError::permission_denied(
            "an answer needs the run-answer request that it serves: nobody answers on a manager's own account",
        )
    })?;
    let wanted = RunOperation::Answer {
        endpoint: EndpointName::manager(),
        run: answers.run_id.clone(),
        step_key: answers.step_key.clone(),
        amend: answers.amend,
    };
    check_served(world, serving, &Forward { subject, wanted: &wanted, run_owner: serving.owner }).await?;
    Ok(token)
}

/// A run that was admitted on this very instance, and not revoked.
async fn admitted(world: &dyn RunWorld, serving: &Serving<'_>, run: &RunId) -> Result<RunAdmission, EpError> {
    let Some((admission, _)) = world.admission(run).await? else {
        return Err(EpError::permission_denied(format!("run {run} was never admitted")));
    };
    if world.revocation(run).await?.is_some() {
        return Err(EpError::permission_denied(format!("run {run} was revoked: nothing is issued for it")));
    }
    is_here(&admission, serving, run)?;
    of_owner(&admission, serving.owner)?;
    Ok(admission)
}

fn is_here(admission: &RunAdmission, serving: &Serving<'_>, run: &RunId) -> Result<(), EpError> {
    admitted_here(admission, run, serving.instance, serving.space)
}

/// Instance, endpoint and space of an admission.
fn admitted_here(
    admission: &RunAdmission,
    run: &RunId,
    instance: &InstanceId,
    space: &Space,
) -> Result<(), EpError> {
    let here = admission.run() == run
        && admission.instance() == instance
        && *admission.endpoint() == super::manager()
        && *admission.space() == space.token();
    if here {
        Ok(())
    } else {
        Err(EpError::permission_denied(format!("run {run} was admitted on another manager instance")))
    }
}

/// Whose a run is whose driver is renewed: that of its admission, which must be of this very manager, as for the attempt that is
/// renewed. A revoked run is renewed no more.
///
/// What a run's record says of its holder is compared with a key that the request names, and nobody proves to hold: only the
/// admission binds a run to a manager.
pub fn decide_renewed_run(
    admission: Option<&RunAdmission>,
    revoked: bool,
    run: &RunId,
    (owner, instance, space): (&Owner, &InstanceId, &Space),
) -> Result<Owner, EpError> {
    let admission =
        admission.ok_or_else(|| EpError::permission_denied(format!("run {run} was never admitted")))?;
    if revoked {
        return Err(EpError::permission_denied(format!("run {run} was revoked: nothing is issued for it")));
    }
    admitted_here(admission, run, instance, space)?;
    of_owner(admission, owner)?;
    Ok(admission.owner().clone())
}

/// A person's run is driven by a manager of that person alone. An admission was held to it already; whoever took the instance
/// over since is held to it here.
fn of_owner(admission: &RunAdmission, owner: &Owner) -> Result<(), EpError> {
    if admission.owner().kind() != OwnerKind::Derived || admission.owner() == owner {
        return Ok(());
    }
    Err(EpError::permission_denied(format!("run {} was admitted for another owner", admission.run())))
}

/// Not ended, then exactly one on from what its record says; 1 and 1 when there is none.
fn is_next(attempt: &Attempt, status: Option<&RunStatus>) -> Result<(), EpError> {
    if let Some(status) = status.filter(|status| status.state.is_terminal()) {
        return Err(EpError::failed_precondition(format!(
            "run {} is {}: it is attempted no more",
            attempt.run_id,
            status.state.as_str()
        )));
    }
    let (epoch, token) = status.map_or((0, 0), |status| (status.epoch, status.fencing_token));
    if (attempt.epoch, attempt.fencing_token) == (epoch + 1, token + 1) {
        Ok(())
    } else {
        Err(EpError::conflict(format!(
            "run {} is at epoch {epoch} and fencing token {token}; its next attempt is the one after each",
            attempt.run_id
        )))
    }
}

/// An answer needs a checkpoint that waits; an amendment one that was resumed by an answer.
fn admits_answer(checkpoint: Option<CheckpointStatus>, amend: bool) -> Result<(), EpError> {
    match (amend, checkpoint) {
        (false, Some(CheckpointStatus::Waiting))
        | (true, Some(CheckpointStatus::Resumed { answered: true })) => Ok(()),
        (false, _) => {
            Err(EpError::failed_precondition("the checkpoint does not wait for an answer any more"))
        }
        (true, _) => Err(EpError::failed_precondition(
            "the checkpoint was not resumed by an answer: there is none to amend",
        )),
    }
}
