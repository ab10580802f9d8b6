//! The endpoint issuance gate in its store (contract 07 §11.8).

use cotal_broker::kv::{LeaderRead, WriteOutcome};
use cotal_wire::{
    EpError, OpId, Principal, Revision, names,
    rows::{EndpointGate, GateCoordinate},
};

use super::EndpointInstance;
use crate::{
    credential::create_same,
    store::{ambiguous, at_key, unsent},
    stores::AuthorityStores,
};

/// A gate as a leader read found it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GateAt {
    /// The row.
    pub gate: EndpointGate,
    /// Its revision.
    pub revision: Revision,
}

/// A gate that a registration holds frozen. The token is the revision of the freeze: only the one who can still write
/// over exactly that revision reopens the gate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Frozen {
    pub(crate) gate: EndpointGate,
    pub(crate) token: Revision,
    pub(crate) op: OpId,
}

fn key(at: &EndpointInstance) -> String {
    names::epgate_key(&at.endpoint, &at.instance)
}

/// Reads the gate: `failed-precondition` on a marker, `internal` on a garbled row.
pub async fn observe(stores: &AuthorityStores, at: &EndpointInstance) -> Result<Option<GateAt>, EpError> {
    let key = key(at);
    let Some(entry) = stores.auth_store().read(&key).await? else { return Ok(None) };
    let gate = at_key(&key, EndpointGate::parse(&entry.value))?;
    Ok(Some(GateAt { gate, revision: entry.revision }))
}

/// Creates the gate open at zero, for this serving principal. The same again is no failure; anything else that stands
/// there is `conflict`.
pub async fn provision(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    principal: &Principal,
) -> Result<(), EpError> {
    let row = EndpointGate::provisioned(principal).to_bytes();
    create_same(stores.auth_store(), &key(at), row, "endpoint gate").await.map(drop)
}

/// How often a gate is tried against writers that keep winning (contract 05 §17).
const RETIRE_ATTEMPTS: usize = 4;

/// Closes a gate of this principal for ever, one that was never provisioned too: nothing is minted behind it any more, and
/// nothing registers. The same again is no failure.
///
/// A marker is `failed-precondition`, another principal's gate `permission-denied`, an ambiguous write `unavailable`, and a
/// gate that moved at every attempt `conflict`.
pub async fn retire(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    principal: &Principal,
    op: &OpId,
) -> Result<(), EpError> {
    const WHAT: &str = "retiring the endpoint gate";
    for _ in 0..RETIRE_ATTEMPTS {
        let outcome = match observe(stores, at).await? {
            None => {
                let row = EndpointGate::born_retired(principal, op).to_bytes();
                stores.auth_store().create(&key(at), row).await
            }
            Some(seen) if seen.gate.principal() != principal => {
                return Err(EpError::permission_denied(format!(
                    "the gate of {at} is another principal's; nothing of it was retired"
                )));
            }
            Some(seen) if seen.gate.is_retired() => return Ok(()),
            Some(seen) => {
                let row = seen.gate.retire(op).to_bytes();
                stores.auth_store().update(&key(at), row, seen.revision).await
            }
        };
        match outcome {
            WriteOutcome::Written(_) => return Ok(()),
            WriteOutcome::Lost => {}
            WriteOutcome::Ambiguous(why) => return Err(ambiguous(WHAT, &why)),
            WriteOutcome::Refused(why) => return Err(unsent(WHAT, &why)),
        }
    }
    Err(EpError::conflict(format!("the gate of {at} kept moving; retire it again")))
}

/// Freezes the gate that was observed, by a registration. `None` when it moved since; an ambiguous write is
/// `unavailable`, and the same operation may find itself the holder.
pub(crate) async fn freeze(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    seen: GateAt,
    op: &OpId,
) -> Result<Option<Frozen>, EpError> {
    let Ok(gate) = seen.gate.freeze(op) else { return Ok(None) };
    let written = write(stores, at, &gate, seen.revision, "freezing the endpoint gate").await?;
    Ok(written.map(|token| Frozen { gate, token, op: op.clone() }))
}

/// Reopens the gate at a successor, pinned to the freeze. `None` when the freeze is no longer what stands there.
pub(crate) async fn reopen(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    frozen: &Frozen,
    successor: GateCoordinate,
) -> Result<Option<GateAt>, EpError> {
    let gate = frozen.gate.clone().reopen(&frozen.op, successor)?;
    let written = write(stores, at, &gate, frozen.token, "reopening the endpoint gate").await?;
    Ok(written.map(|revision| GateAt { gate, revision }))
}

/// Rewrites the gate's own bytes at the revision that was observed: what releases a mint. `false` when the gate moved,
/// closed or went.
pub(crate) async fn touch(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    observed: Revision,
) -> Result<bool, EpError> {
    let key = key(at);
    let LeaderRead::Value(entry) = stores.auth().leader_read(&key).await? else { return Ok(false) };
    let gate = at_key(&key, EndpointGate::parse(&entry.value))?;
    if entry.revision != observed || !gate.is_open() {
        return Ok(false);
    }
    match stores.auth_store().update(&key, entry.value, observed).await {
        WriteOutcome::Written(_) => Ok(true),
        WriteOutcome::Lost => Ok(false),
        WriteOutcome::Ambiguous(why) => Err(ambiguous("touching the endpoint gate", &why)),
        WriteOutcome::Refused(why) => Err(unsent("touching the endpoint gate", &why)),
    }
}

async fn write(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    gate: &EndpointGate,
    over: Revision,
    what: &str,
) -> Result<Option<Revision>, EpError> {
    match stores.auth_store().update(&key(at), gate.to_bytes(), over).await {
        WriteOutcome::Written(revision) => Ok(Some(revision)),
        WriteOutcome::Lost => Ok(None),
        WriteOutcome::Ambiguous(why) => Err(ambiguous(what, &why)),
        WriteOutcome::Refused(why) => Err(unsent(what, &why)),
    }
}
