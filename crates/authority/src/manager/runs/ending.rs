//! Ending a run for good: by its owner or an admin on the route, or by whoever asks its manager (contract 06 §12.4, 10 §3.3).

use cotal_ledger::{RowKind, TaggedRow};
use cotal_wire::{
    EpError, Owner, SpaceToken,
    endpoint_subject::EndpointCaller,
    es_value::EsValue,
    manager_authority::{
        ADMIN, Kind, RUN_CANCEL, RunCancelRequest, RunId, RunOperation, RunRevocationResult,
        RunRevokeRequest, StandingRole,
    },
    rows::{KnownSource, RunAdmission, RunRevocation, SourceRef},
};

use super::{
    AdmitterPurpose, RunWorld, check_registered, in_words,
    served::{Serving, issued_subject, was_observed, within_ceiling},
};
use crate::manager::{Holder, LifecycleHost};

const CANCEL_NEEDS: &str = "manager run cancellation needs scope \"supervise\"";
const NO_CANCEL_CONTRACT: &str = "registered manager has no run-cancel contract";
/// What a cancellation's marker says, for its request says nothing.
const CANCELLED: &str = "cancelled by a served run-cancel request";

/// Revokes a run, in the order of contract 06 §12.4. A marker that stands stays as it is, and is the answer.
pub async fn revoke(
    world: &dyn RunWorld,
    host: LifecycleHost<'_>,
    holder: &Holder,
    request: &EsValue,
) -> Result<RunRevocationResult, EpError> {
    let request = RunRevokeRequest::parse(request)?;
    let envelope = &request.envelope;
    let admission = admitted_on(world, &request.run_id, &envelope.instance_id).await?;
    let Holder::Human { owner, scope } = holder else {
        return Err(EpError::permission_denied("a platform revokes no run: its owner does, or an admin"));
    };
    may_end(owner, Some(scope), &admission)?;
    let gate = world.gate(&envelope.instance_id).await?;
    let serve = StandingRole::Serve.actor(&envelope.instance_id);
    let manager_owner = gate
        .as_ref()
        .filter(|gate| gate.principal().actor == serve)
        .map(|gate| gate.principal().owner.clone())
        .ok_or_else(|| EpError::failed_precondition("no manager is registered under this instance"))?;
    check_registered(host, envelope, &request.pins, &manager_owner, gate.as_ref())?;
    let marker = RunRevocation {
        run: request.run_id.clone(),
        by: format!("{owner}.{}", envelope.actor),
        reason: request.reason,
        revoked_at: world.now(),
    };
    let revocation = mark(world, AdmitterPurpose::Revocation(&request.run_id), &marker).await?;
    Ok(RunRevocationResult { request_id: request.envelope.request_id, run_id: request.run_id, revocation })
}

/// Cancels a run for the caller of a served `run-cancel` request: parse, holder, registration, subject, observation, what was
/// asked for, its binding and contract, the caller's issuance, the run's admission, and then whether that caller may end it.
pub async fn cancel(
    world: &dyn RunWorld,
    host: LifecycleHost<'_>,
    holder: &Holder,
    request: &EsValue,
) -> Result<RunRevocationResult, EpError> {
    let request = RunCancelRequest::parse(request)?;
    let envelope = &request.envelope;
    let asks = holder.may_ask(Kind::RunCancel.scope(), envelope.instance_id.as_str());
    in_words(holder, asks, CANCEL_NEEDS)?;
    let owner = holder.owner();
    let serving = Serving::registered(world, host, envelope, &request.pins, owner).await?;
    let (subject, reference) = issued_subject(&serving, RUN_CANCEL, &request.subject)?;
    let observed = was_observed(world.take_cancel(&request.subject).await?, RUN_CANCEL)?;
    let asked = RunOperation::Cancel { run: request.run_id.clone() };
    serving.check_asked(world, &observed, &asked, NO_CANCEL_CONTRACT).await?;
    let resolved = world.resolve(&reference).await?;
    within_ceiling(&reference, &resolved, &request.subject)?;
    let admission = admitted_on(world, &request.run_id, serving.instance).await?;
    let caller = &subject.caller;
    let sources = resolved.evidence.sources();
    let scope = if interactive_source(&subject.space, caller, sources) {
        interactive_scope(world.row(&caller.principal).await?, caller)
    } else {
        None
    };
    may_end(&caller.principal.owner, scope.as_deref(), &admission)?;
    let marker = RunRevocation {
        run: request.run_id.clone(),
        by: caller.principal.key(),
        reason: CANCELLED.to_owned(),
        revoked_at: world.now(),
    };
    let revocation = mark(world, AdmitterPurpose::Cancel(&request.run_id), &marker).await?;
    Ok(RunRevocationResult { request_id: request.envelope.request_id, run_id: request.run_id, revocation })
}

/// The admission of a run on this instance.
async fn admitted_on(
    world: &dyn RunWorld,
    run: &RunId,
    instance: &cotal_wire::InstanceId,
) -> Result<RunAdmission, EpError> {
    let Some((admission, _)) = world.admission(run).await? else {
        return Err(EpError::permission_denied(format!("run {run} was never admitted")));
    };
    if admission.instance() == instance {
        Ok(admission)
    } else {
        Err(EpError::permission_denied(format!("run {run} was admitted on another manager instance")))
    }
}

/// The owner that was admitted, or an admin. `supervise` takes no part.
fn may_end(owner: &Owner, scope: Option<&[String]>, admission: &RunAdmission) -> Result<(), EpError> {
    let is_admin = scope.is_some_and(|scope| scope.iter().any(|held| held == ADMIN));
    if *admission.owner() == *owner || is_admin {
        Ok(())
    } else {
        Err(EpError::permission_denied(format!(
            "run {} is ended by the owner that was admitted, or by an admin",
            admission.run()
        )))
    }
}

/// Whether the issuance rests on exactly one thing, and that is the caller's own row of this space's ledger.
fn interactive_source(space: &SpaceToken, caller: &EndpointCaller, sources: &[SourceRef]) -> bool {
    let [only] = sources else { return false };
    only.space() == space
        && only.known()
            == Some(KnownSource::ActorLedger {
                principal: caller.principal.clone(),
                uid: caller.lifecycle_uid.clone(),
            })
}

/// The scope of the caller's interactive row at this incarnation; a managed agent never has one here.
fn interactive_scope(row: Option<TaggedRow>, caller: &EndpointCaller) -> Option<Vec<String>> {
    let tagged = row?;
    let current = tagged.row.lifecycle_uid.as_deref() == Some(caller.lifecycle_uid.as_str());
    (tagged.kind == RowKind::Interactive && current).then_some(tagged.row.scope)
}

/// Creates the marker, or leaves the one that stands, and reads it back.
async fn mark(
    world: &dyn RunWorld,
    purpose: AdmitterPurpose<'_>,
    marker: &RunRevocation,
) -> Result<RunRevocation, EpError> {
    world.check_open()?;
    let admitter = world.admitter(purpose).await?;
    let written = admitter.create_revocation(marker).await;
    admitter.close().await;
    written?;
    world.revocation(&marker.run).await?.ok_or_else(|| {
        EpError::internal(format!("run {}: its revocation was written and cannot be read", marker.run))
    })
}
