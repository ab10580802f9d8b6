//! The agent issuance gate: reads and the writes of an activation (contract 07 §2.3, §2.4).

use cotal_broker::kv::WriteOutcome;
use cotal_wire::{
    EpError, LifecycleUid, OpId, Principal, Revision, names,
    rows::{AgentGate, UidReservation},
};

use crate::{store::at_key, stores::AuthorityStores};

/// A gate as a leader read found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GateAt {
    pub(crate) gate: AgentGate,
    pub(crate) revision: Revision,
}

/// Proof that the uid is reserved: a reservation is never deleted, so it stays true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reserved {
    uid: LifecycleUid,
}

#[cfg(test)]
impl Reserved {
    pub(crate) fn for_test(uid: &LifecycleUid) -> Self {
        Self { uid: uid.clone() }
    }
}

/// Reads the gate: `failed-precondition` on a marker, `internal` on a garbled row.
pub(crate) async fn read_gate(
    stores: &AuthorityStores,
    uid: &LifecycleUid,
) -> Result<Option<GateAt>, EpError> {
    let key = names::gate_key(uid);
    let Some(entry) = stores.auth_store().read(&key).await? else { return Ok(None) };
    let gate = at_key(&key, AgentGate::parse(uid, &entry.value))?;
    Ok(Some(GateAt { gate, revision: entry.revision }))
}

/// Reads who holds a reservation.
pub(crate) async fn read_reservation(
    stores: &AuthorityStores,
    uid: &LifecycleUid,
) -> Result<Option<(UidReservation, Reserved)>, EpError> {
    let key = names::uid_key(uid);
    let Some(entry) = stores.records_store().read(&key).await? else { return Ok(None) };
    let reservation = at_key(&key, UidReservation::parse(&entry.value))?;
    Ok(Some((reservation, Reserved { uid: uid.clone() })))
}

/// Reserves a uid. `None` when the candidate is burned.
pub(crate) async fn reserve(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
    manager_instance: &str,
) -> Result<Option<Reserved>, EpError> {
    let row = UidReservation::new(principal, manager_instance);
    match stores.records_store().create(&names::uid_key(uid), row.to_bytes()).await {
        WriteOutcome::Written(_) => Ok(Some(Reserved { uid: uid.clone() })),
        WriteOutcome::Lost => Ok(None),
        WriteOutcome::Ambiguous(why) => Err(crate::store::ambiguous("uid reservation", &why)),
        WriteOutcome::Refused(why) => Err(crate::store::unsent("uid reservation", &why)),
    }
}

/// Creates the gate of a reserved uid, frozen at generation 0 by an activation.
pub(crate) async fn create_frozen(
    stores: &AuthorityStores,
    reserved: &Reserved,
    op: &OpId,
) -> (AgentGate, WriteOutcome) {
    let gate = AgentGate::born(&reserved.uid, op);
    let outcome = stores.auth_store().create(&names::gate_key(&reserved.uid), gate.to_bytes()).await;
    (gate, outcome)
}

/// Writes the gate's next state, pinned to the revision that its present one was read at.
pub(crate) async fn write_gate(
    stores: &AuthorityStores,
    uid: &LifecycleUid,
    next: &AgentGate,
    read_at: Revision,
) -> WriteOutcome {
    stores.auth_store().update(&names::gate_key(uid), next.to_bytes(), read_at).await
}
