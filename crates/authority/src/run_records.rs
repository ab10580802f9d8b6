//! A run's record, its journal and its checkpoints, read through their leaders (contract 03 §L, 02 §6 and §11).

use std::time::Duration;

use cotal_broker::{Connector, Lifetime, SubjectReplay};
use cotal_wire::{
    EndpointName, EndpointToken, Entropy, EpCode, EpError, IdToken, InfraRole, InstanceId, Names, Nkey, User,
    grants::runs::{OperatorPin, run_operator},
    manager_authority::{RunId, Takeover},
    names::{checkpoint_status_key, replay_consumer, run_spec_key, run_status_key},
    rows::{CheckpointStatus, PauseReader, PauseWanted, RunState, RunStatus, check_run_spec},
};

use crate::{manager::ObservedRun, store::at_key, stores::AuthorityStores};

/// Lifetime of a journal reader's credential, in seconds (contract 05 §6.3).
const READER_TTL_SECS: u64 = 60;
/// Most records of a journal that are replayed for one answer.
pub const MAX_JOURNAL_RECORDS: u64 = 262_144;
/// How often a record is read again whose two halves do not fit yet, and the pause in between.
const READS: u32 = 3;
const READ_PAUSE: Duration = Duration::from_millis(50);

fn manager() -> EndpointToken {
    EndpointName::manager().token()
}

/// How a run stands by its record; `None` when it has none, or no driver has reported yet.
///
/// `failed-precondition` for a status without a spec or a deletion marker, `internal` for a garbled row, and
/// `deadline-exceeded` for a status that was written under a spec which cannot be seen.
pub async fn run_status(stores: &AuthorityStores, run: &RunId) -> Result<Option<RunStatus>, EpError> {
    let (spec_key, status_key) = (run_spec_key(&manager(), run), run_status_key(&manager(), run));
    for read in 1..=READS {
        let Some(entry) = stores.records().read_authority(&status_key).await? else { return Ok(None) };
        let status = at_key(&status_key, RunStatus::parse(&entry.value))?;
        // Read after the status: a spec that stands before it is seen.
        let spec = stores.records().read_authority(&spec_key).await?;
        match spec {
            Some(spec) => {
                at_key(&spec_key, check_run_spec(run, &spec.value))?;
                if status.observed_spec_revision <= spec.revision {
                    return Ok(Some(status));
                }
            }
            None if read == READS => {
                return Err(EpError::failed_precondition(format!("{status_key} stands without a spec")));
            }
            None => {}
        }
        tokio::time::sleep(READ_PAUSE).await;
    }
    Err(EpError::new(
        EpCode::DeadlineExceeded,
        format!("{status_key} was written under a spec that cannot be seen yet; retry"),
    ))
}

/// The run as a renewal of its driver is decided on (contract 06 §4.4 step 6): `None` when it has no record, or when its holder
/// is not this very supervisor.
pub async fn observe_run(
    stores: &AuthorityStores,
    run: &RunId,
    supervisor: &Nkey<User>,
    instance: &InstanceId,
) -> Result<Option<ObservedRun>, EpError> {
    Ok(run_status(stores, run).await?.and_then(|status| observed(&status, supervisor, instance)))
}

/// Splits the holder at its last dot; the instance is bound when what stands before it is the supervisor's key.
fn observed(status: &RunStatus, supervisor: &Nkey<User>, instance: &InstanceId) -> Option<ObservedRun> {
    let (key, takeover) = status.holder_parts()?;
    (key == supervisor.as_str()).then(|| ObservedRun {
        running: status.state == RunState::Running,
        instance: instance.to_string(),
        holder: status.holder.clone(),
        takeover_id: takeover.to_owned(),
        epoch: status.epoch,
        fencing_token: status.fencing_token,
    })
}

/// How a checkpoint of a run stands.
pub async fn checkpoint_status(
    stores: &AuthorityStores,
    token: &IdToken,
) -> Result<Option<CheckpointStatus>, EpError> {
    let key = checkpoint_status_key(&manager(), token);
    let Some(entry) = stores.records().read_authority(&key).await? else { return Ok(None) };
    at_key(&key, CheckpointStatus::parse(&entry.value)).map(Some)
}

/// The token of a step's pause, read off the run's own journal over a connection that may read that run's alone.
///
/// `failed-precondition` when there is no such pause; `internal` for a journal that is not the run's own;
/// `resource-exhausted` for one of more than [`MAX_JOURNAL_RECORDS`]; `unavailable` when it cannot be read whole.
pub async fn pause_token(
    connector: &Connector,
    entropy: &dyn Entropy,
    (run, step_key): (&RunId, &str),
    wanted: PauseWanted,
) -> Result<IdToken, EpError> {
    let space = connector.space();
    let (token, takeover) = (space.token(), Takeover::mint(entropy));
    let pin = OperatorPin {
        endpoint: manager(),
        takeover: takeover.clone(),
        run: Some(run.clone()),
        answers: None,
    };
    let lifetime = Lifetime::OneShot { ttl_secs: READER_TTL_SECS, principal: None };
    let grants = |inbox: &cotal_wire::ConnId| run_operator(&token, &pin, inbox);
    let connection = connector.open(InfraRole::RUN_ATTEMPT_READER.label(space), &grants, lifetime).await?;
    let names = Names::new(&token);
    let replay = SubjectReplay::new(
        &names.wfj_stream(),
        &replay_consumer(run, &takeover),
        &names.run_journal_subject(run),
    );
    let mut reader = PauseReader::new(run, step_key);
    let replayed = replay.run(&connection, MAX_JOURNAL_RECORDS, &mut |record| reader.take(record)).await;
    if let Err(refusal) = connection.close().await {
        tracing::warn!(%refusal, "a journal reader's connection did not end");
    }
    replayed?;
    reader.token(wanted)
}

#[cfg(test)]
mod tests {
    use cotal_wire::Revision;

    use super::*;

    #[test]
    fn a_run_is_bound_to_the_manager_whose_supervisor_holds_it() {
        let key = |letter: &str| Nkey::<User>::parse(&format!("U{}", letter.repeat(55))).unwrap();
        let instance = InstanceId::parse(&"i".repeat(26)).unwrap();
        let status = |holder: &str, state| RunStatus {
            state,
            holder: holder.to_owned(),
            epoch: 2,
            fencing_token: 3,
            observed_spec_revision: Revision(1),
        };
        let held = format!("{}.0123456789abcdef", key("A"));
        let seen = observed(&status(&held, RunState::Running), &key("A"), &instance).unwrap();
        assert_eq!((seen.running, seen.holder.as_str()), (true, held.as_str()));
        assert_eq!((seen.takeover_id.as_str(), seen.epoch, seen.fencing_token), ("0123456789abcdef", 2, 3));
        assert_eq!(seen.instance, instance.as_str());
        assert_eq!(observed(&status(&held, RunState::Running), &key("B"), &instance), None);
        assert_eq!(observed(&status("nodot", RunState::Running), &key("A"), &instance), None);
        assert!(!observed(&status(&held, RunState::Released), &key("A"), &instance).unwrap().running);
    }
}
