//! The status of an instance: its own word, fenced by its epoch (contract 02 §7.5, 07 §11.5).

use cotal_broker::kv::LeaderRead;
use cotal_wire::{EpCode, EpError, Revision, names, rows::ServiceStatus};

use super::{
    EndpointInstance, gate,
    spec::{self, SpecSeen},
};
use crate::{
    store::{at_key, must_land},
    stores::AuthorityStores,
};

/// A status to write.
pub struct StatusWrite<'a> {
    /// The instance.
    pub at: &'a EndpointInstance,
    /// The epoch that the writer is authenticated at.
    pub writer_epoch: u64,
    /// What it says.
    pub status: ServiceStatus,
    /// Whether the writer supervises the instance. Nobody else escalates, or says when it restarted.
    pub supervisor: bool,
    /// The revision that the stored status must be at, when the writer has read one.
    pub expected: Option<Revision>,
}

/// What stands at a status key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StatusSeen {
    /// `None` when it was never written, or deleted.
    pub(crate) status: Option<ServiceStatus>,
    /// 0 when it was never written.
    pub(crate) revision: Revision,
}

// === deciding =================================================================================================

/// What to do with the word of an instance, before anything is read.
fn admissible(write: StatusWrite<'_>) -> Result<ServiceStatus, EpError> {
    let StatusWrite { status, supervisor, writer_epoch, .. } = write;
    if !supervisor && status.state().is_escalated() {
        return Err(EpError::failed_precondition("status: only a supervisor escalates an instance"));
    }
    let status = if supervisor { status } else { status.without_supervisor_fields() };
    if status.retired_at().is_some() && !status.state().is_escalated() {
        return Err(EpError::internal("status: only an escalated status carries retiredAt"));
    }
    if status.epoch() != writer_epoch {
        return Err(EpError::internal("status: it is of another epoch than its writer"));
    }
    Ok(status)
}

/// What to write, given everything that was read (contract 02 §7.5, in its order).
fn decide(
    status: ServiceStatus,
    spec: &SpecSeen,
    current_epoch: Option<u64>,
    stored: &StatusSeen,
    expected: Option<Revision>,
) -> Result<ServiceStatus, EpError> {
    let SpecSeen::Registered(_, spec_revision) = spec else {
        return Err(EpError::failed_precondition("status: the instance is not registered"));
    };
    if status.observed_spec_revision() > *spec_revision {
        return Err(EpError::failed_precondition("status: it observed a spec that is not there yet"));
    }
    if current_epoch != Some(status.epoch()) {
        return Err(EpError::new(EpCode::Expired, "status: its epoch is not the instance's current one"));
    }
    if expected.is_some_and(|expected| expected != stored.revision) {
        return Err(EpError::conflict("status: it was written meanwhile; read it again"));
    }
    let Some(before) = &stored.status else { return Ok(status) };
    if before.state().is_escalated() {
        return Err(EpError::failed_precondition("status: the instance was escalated, which is final"));
    }
    if status.epoch() < before.epoch() {
        return Err(EpError::conflict("status: a later epoch has written already"));
    }
    Ok(status.carry_supervisor_fields(before))
}

// === driving ==================================================================================================

/// Writes a status. Returns its revision.
///
/// Refusals in order: `failed-precondition` for an escalation that is not a supervisor's; `internal` for an epoch that is
/// not the writer's; `failed-precondition` without a registered spec, or for a revision beyond it; `expired` for an epoch
/// that is not current; `conflict` when the stored status moved; `failed-precondition` over an escalated one; `conflict`
/// for an epoch below the stored one.
pub async fn write_status(stores: &AuthorityStores, write: StatusWrite<'_>) -> Result<Revision, EpError> {
    let (at, expected) = (write.at, write.expected);
    let status = admissible(write)?;
    let spec = spec::read(stores, at).await?;
    let current = gate::observe(stores, at).await?;
    let current = current.map(|seen| seen.gate.coordinate().process_epoch);
    let stored = read_status(stores, at).await?;
    let next = decide(status, &spec, current, &stored, expected)?;
    let key = names::service_status_key(&at.endpoint, &at.instance);
    let outcome = stores.records_store().update(&key, next.to_bytes(), stored.revision).await;
    must_land(outcome, "status")
}

pub(crate) async fn read_status(
    stores: &AuthorityStores,
    at: &EndpointInstance,
) -> Result<StatusSeen, EpError> {
    let key = names::service_status_key(&at.endpoint, &at.instance);
    Ok(match stores.records().leader_read(&key).await? {
        LeaderRead::Absent => StatusSeen { status: None, revision: Revision(0) },
        LeaderRead::Marker(revision) => StatusSeen { status: None, revision },
        LeaderRead::Value(entry) => {
            let status = at_key(&key, ServiceStatus::parse(&entry.value))?;
            StatusSeen { status: Some(status), revision: entry.revision }
        }
    })
}

#[cfg(test)]
mod tests {
    use cotal_wire::{
        DigestRef, EndpointName, EndpointToken, InstanceId, Owner,
        canonical::VOID_CLOSURE_DIGEST,
        rows::{ServiceSpec, StatusState, SupervisorRestart},
    };

    use super::*;

    fn at() -> EndpointInstance {
        EndpointInstance {
            endpoint: EndpointToken::parse("auth").unwrap(),
            instance: InstanceId::parse(&"i".repeat(26)).unwrap(),
        }
    }

    fn registered(revision: u64) -> SpecSeen {
        let digest = DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap();
        let name = EndpointName::parse("auth").unwrap();
        SpecSeen::Registered(
            ServiceSpec::new(&name, &Owner::local(), vec![digest]).unwrap(),
            Revision(revision),
        )
    }

    fn status(epoch: u64, state: StatusState, observed: u64) -> ServiceStatus {
        ServiceStatus::new(epoch, state, Revision(observed))
    }

    fn seen(status: Option<ServiceStatus>, revision: u64) -> StatusSeen {
        StatusSeen { status, revision: Revision(revision) }
    }

    /// Each row mends the fault of the one before it.
    #[test]
    fn a_status_is_refused_in_the_contracts_order() {
        use EpCode::{Conflict, Expired, FailedPrecondition};
        let escalated = seen(Some(status(9, StatusState::escalated(), 1)), 4);
        let later = seen(Some(status(9, StatusState::ready(), 1)), 4);
        let rows = [
            (SpecSeen::Absent, 9, None, &escalated, Some(Revision(3)), FailedPrecondition),
            (SpecSeen::Deregistered(Revision(5)), 9, None, &escalated, Some(Revision(3)), FailedPrecondition),
            (registered(5), 9, None, &escalated, Some(Revision(3)), FailedPrecondition),
            (registered(9), 9, None, &escalated, Some(Revision(3)), Expired),
            (registered(9), 9, Some(3), &escalated, Some(Revision(3)), Expired),
            (registered(9), 9, Some(2), &escalated, Some(Revision(3)), Conflict),
            (registered(9), 9, Some(2), &escalated, Some(Revision(4)), FailedPrecondition),
            (registered(9), 9, Some(2), &later, Some(Revision(4)), Conflict),
        ];
        for (index, (spec, observed, current, stored, expected, code)) in rows.into_iter().enumerate() {
            let write = status(2, StatusState::ready(), observed);
            let refusal = decide(write, &spec, current, stored, expected).unwrap_err();
            assert_eq!(refusal.code, code, "row {index}: {refusal}");
        }
        let fine = seen(Some(status(2, StatusState::exited(), 1)), 4);
        let write = status(2, StatusState::ready(), 9);
        assert!(decide(write, &registered(9), Some(2), &fine, None).is_ok());
    }

    #[test]
    fn only_a_supervisor_escalates_or_counts_restarts() {
        let restarts = Some(vec![SupervisorRestart { t: 1, epoch: 1 }]);
        let escalated = || status(2, StatusState::escalated(), 1).supervised(restarts.clone(), Some(7));
        let write = |status, supervisor, writer_epoch| {
            admissible(StatusWrite { at: &at(), writer_epoch, status, supervisor, expected: None })
        };
        // Before its epoch is looked at.
        assert_eq!(write(escalated(), false, 3).unwrap_err().code, EpCode::FailedPrecondition);
        assert_eq!(write(escalated(), true, 3).unwrap_err().code, EpCode::Internal);
        assert_eq!(write(escalated(), true, 2).unwrap(), escalated());
        let own = status(2, StatusState::ready(), 1).supervised(restarts.clone(), Some(7));
        let stripped = write(own.clone(), false, 2).unwrap();
        assert_eq!((stripped.restarts(), stripped.retired_at()), (None, None));
        assert_eq!(
            write(own, true, 2).unwrap_err().code,
            EpCode::Internal,
            "retiredAt is of an escalated one"
        );
        let stored = seen(Some(status(1, StatusState::ready(), 1).supervised(restarts.clone(), None)), 4);
        let carried = decide(stripped, &registered(1), Some(2), &stored, None).unwrap();
        assert_eq!(carried.restarts(), restarts.as_deref(), "carried forward");
    }
}
