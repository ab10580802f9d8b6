//! Admitting a run, under an id of the host's or of the caller's (contract 06 §12.1, 10 §3.5).

use cotal_wire::{
    EpError, Revision,
    es_value::EsValue,
    manager_authority::{
        Kind, RUN_START, RUN_SUBMIT, RunAdmissionRequest, RunAdmissionResult, RunId, RunOperation,
        RunSubmissionRequest, RunSubmissionResult,
    },
    rows::{IssuedAuthorityRef, RunAdmission, RunSubmissionRow},
};

use super::{
    AdmitterPurpose, Landing, RunAdmitter, RunWorld, in_words, manager, raw_instance,
    served::{Serving, issued_subject, same_owner, was_observed, within_ceiling},
};
use crate::manager::{Holder, LifecycleHost};

const SUBMISSION_NEEDS: &str = "keyed run submission needs scope \"supervise\"";
const NO_KEYED_CONTRACT: &str = "registered manager has no keyed contract";

/// Admits a first run, in the order of contract 06 §12.1: holder, parse, registration, subject, observation, owner, issuance,
/// ceiling, and then the one create-only write. A run that was admitted before for the same issuance and instance gets the
/// admission that stands.
pub async fn admit(
    world: &dyn RunWorld,
    host: LifecycleHost<'_>,
    holder: &Holder,
    request: &EsValue,
) -> Result<RunAdmissionResult, EpError> {
    holder.may_ask(Kind::RunAdmission.scope(), raw_instance(request))?;
    let request = RunAdmissionRequest::parse(request)?;
    let (envelope, owner) = (&request.envelope, holder.owner());
    let serving = Serving::registered(world, host, envelope, &request.pins, owner).await?;
    let (subject, reference) = issued_subject(&serving, RUN_START, &request.subject)?;
    was_observed(world.take_served(&request.subject).await?, RUN_START)?;
    same_owner(&subject.caller, owner)?;
    let row = admissible(world, &serving, &request.run_id, (reference.clone(), &request.subject)).await?;
    world.check_open()?;
    let admitter = world.admitter(AdmitterPurpose::Admission(&request.run_id)).await?;
    let written = write_admission(world, &*admitter, &row, &reference).await;
    admitter.close().await;
    let (admission, revision) = written?;
    Ok(RunAdmissionResult {
        request_id: request.envelope.request_id,
        run_id: request.run_id,
        revision,
        admission,
    })
}

/// Admits a run under an id that its caller chose: the id stands for one run, whoever forwards it and however often. The order
/// is that of [`admit`], and after the observation what the caller asked for, its binding and its contract.
///
/// The id is bound first, then the run that it stands for is admitted: whatever is cut off in between, the same submission
/// again ends it.
pub async fn submit(
    world: &dyn RunWorld,
    host: LifecycleHost<'_>,
    holder: &Holder,
    request: &EsValue,
) -> Result<RunSubmissionResult, EpError> {
    let asks = holder.may_ask(Kind::RunSubmission.scope(), raw_instance(request));
    in_words(holder, asks, SUBMISSION_NEEDS)?;
    let request = RunSubmissionRequest::parse(request)?;
    let (envelope, owner) = (&request.envelope, holder.owner());
    let serving = Serving::registered(world, host, envelope, &request.pins, owner).await?;
    let (subject, reference) = issued_subject(&serving, RUN_SUBMIT, &request.subject)?;
    let observed = was_observed(world.take_served(&request.subject).await?, RUN_SUBMIT)?;
    let asked = RunOperation::Submit { submission: request.submission_id.clone() };
    serving.check_asked(world, &observed, &asked, NO_KEYED_CONTRACT).await?;
    same_owner(&subject.caller, owner)?;
    let proposed = RunSubmissionRow {
        space: reference.space.clone(),
        endpoint: manager(),
        submission: request.submission_id.clone(),
        owner: subject.caller.principal.owner.clone(),
        run: request.run_id.clone(),
        instance: envelope.instance_id.clone(),
        created_at: world.now(),
    };
    let row = admissible(world, &serving, &request.run_id, (reference.clone(), &request.subject)).await?;
    let bound = world.submission(&proposed).await?.map(|bound| bound_here(bound, &proposed)).transpose()?;
    world.check_open()?;
    let (admission, revision, created) = match bound {
        Some(run) => admit_bound(world, &row, &reference, &proposed, run).await?,
        None => bind(world, &row, &reference, &proposed).await?,
    };
    Ok(RunSubmissionResult {
        request_id: request.envelope.request_id,
        submission_id: request.submission_id,
        run_id: admission.run().clone(),
        revision,
        admission,
        created,
    })
}

/// The admission to write, once the issuance was resolved and its ceiling admits the subject.
async fn admissible(
    world: &dyn RunWorld,
    serving: &Serving<'_>,
    run: &RunId,
    (reference, subject): (IssuedAuthorityRef, &str),
) -> Result<RunAdmission, EpError> {
    let resolved = world.resolve(&reference).await?;
    within_ceiling(&reference, &resolved, subject)?;
    let ceiling = resolved.evidence.permissions().clone();
    Ok(RunAdmission::issued(
        &manager(),
        run,
        serving.instance,
        (reference, resolved.revision),
        ceiling,
        world.now(),
    ))
}

/// The create-only write, and what a lost one means: the same admission is answered as it stands, another is `conflict`.
async fn write_admission(
    world: &dyn RunWorld,
    admitter: &dyn RunAdmitter,
    row: &RunAdmission,
    reference: &IssuedAuthorityRef,
) -> Result<(RunAdmission, Revision), EpError> {
    match admitter.create_admission(row).await? {
        Landing::Created(revision) => Ok((row.clone(), revision)),
        Landing::Stands => match world.admission(row.run()).await? {
            Some((standing, revision)) if standing.is_same_admission(reference, row.instance()) => {
                Ok((standing, revision))
            }
            _ => Err(EpError::conflict(format!(
                "run {} is admitted already, for another caller or on another manager instance",
                row.run()
            ))),
        },
    }
}

/// Binds the id to the proposed run, and admits the run that it then stands for.
async fn bind(
    world: &dyn RunWorld,
    row: &RunAdmission,
    reference: &IssuedAuthorityRef,
    proposed: &RunSubmissionRow,
) -> Result<(RunAdmission, Revision, bool), EpError> {
    let digest = RunSubmissionRow::digest_of(&proposed.owner, &proposed.submission);
    let admitter = world.admitter(AdmitterPurpose::Submission(&proposed.run, &digest)).await?;
    let written = match admitter.create_submission(proposed).await {
        Ok(Landing::Created(_)) => write_admission(world, &*admitter, row, reference).await.map(Some),
        Ok(Landing::Stands) => Ok(None),
        Err(refusal) => Err(refusal),
    };
    admitter.close().await;
    if let Some((admission, revision)) = written? {
        return Ok((admission, revision, true));
    }
    // Another forward of the same id came between the read and the write.
    let bound = world
        .submission(proposed)
        .await?
        .ok_or_else(|| EpError::internal("a submission stands and cannot be read back"))?;
    admit_bound(world, row, reference, proposed, bound_here(bound, proposed)?).await
}

/// Admits the run that an id stands for already.
async fn admit_bound(
    world: &dyn RunWorld,
    row: &RunAdmission,
    reference: &IssuedAuthorityRef,
    proposed: &RunSubmissionRow,
    run: RunId,
) -> Result<(RunAdmission, Revision, bool), EpError> {
    let digest = RunSubmissionRow::digest_of(&proposed.owner, &proposed.submission);
    let row = row.of_run(&run);
    let admitter = world.admitter(AdmitterPurpose::Submission(&run, &digest)).await?;
    let written = write_admission(world, &*admitter, &row, reference).await;
    admitter.close().await;
    let (admission, revision) = written?;
    Ok((admission, revision, false))
}

/// The run of a submission that stands: of the same owner, on the same instance.
fn bound_here(bound: RunSubmissionRow, proposed: &RunSubmissionRow) -> Result<RunId, EpError> {
    if bound.owner == proposed.owner && bound.instance == proposed.instance {
        Ok(bound.run)
    } else {
        Err(EpError::conflict("that submission id stands for a run on another manager instance"))
    }
}
