//! What the barriers share: their dependencies, and how they look at the gate and the head of an incarnation
//! (contract 07 §5, §6; 02 §3.10, §3.11).
//!
//! A barrier is a durable intent, a frozen gate, and containment behind it. Each is driven by a function without I/O
//! that names the one next step from what this run has seen; a step that lost a race only makes the run look again.

use std::{collections::BTreeSet, sync::Arc};

use cotal_broker::kv::{Entry, WriteOutcome};
use cotal_wire::{
    EpCode, EpError, LifecycleUid, Names, OpId, Principal, Revision,
    rows::{AgentGate, GateState, LifecycleHead, OpKind},
};

use crate::{
    activation::{Resumed, resume_activation},
    drain::Drain,
    evict::{Evictor, evict_verified},
    gate::{self, read_gate},
    head::{self, read_head},
    plane_claim::When,
    scanner::{LedgerScanner, RecordsScanner},
    session_pairs::SessionPairs,
    store::{Store, ambiguous, at_key, unsent},
    stores::AuthorityStores,
};

/// How often one run looks again at a gate or a head that moved under it.
pub(crate) const TRIES: usize = 5;

/// What a barrier acts through.
#[derive(Clone)]
pub struct BarrierDeps {
    /// The proved stores, over the barrier executor's connection.
    pub stores: AuthorityStores,
    /// Enumerates the auth stream.
    pub ledger: Arc<LedgerScanner>,
    /// Enumerates the records stream.
    pub records: Arc<RecordsScanner>,
    /// Ends live connections, and proves it.
    pub evictor: Arc<dyn Evictor>,
    /// Ends session pairs. Without it a family that holds a session is `failed-precondition`.
    pub sessions: Option<Arc<dyn SessionPairs>>,
    /// Drains obligations and cleans pools.
    pub drain: Arc<Drain>,
}

impl BarrierDeps {
    pub(crate) fn names(&self) -> Names {
        Names::new(&self.stores.space().token())
    }

    /// Refuses once the plane is fenced or closes: between two steps, without asking anybody.
    pub(crate) fn check(&self) -> Result<(), EpError> {
        self.ledger.claim().check()
    }

    /// Evicts all of them and proves it, when the claim is still this process's: what a scan found may be long ago by
    /// now, and an eviction reaches whoever has the principal today.
    pub(crate) async fn evict(&self, principals: &BTreeSet<Principal>) -> Result<Vec<Principal>, EpError> {
        self.ledger.claim().assert_held(When::BeforeEviction).await?;
        evict_verified(self.evictor.as_ref(), principals).await
    }
}

/// A row as far as this run has looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sight<T> {
    Unread,
    Absent,
    At(T, Revision),
}

impl<T> Sight<T> {
    pub(crate) fn row(&self) -> Option<&T> {
        match self {
            Self::At(row, _) => Some(row),
            Self::Unread | Self::Absent => None,
        }
    }
}

/// Counts how often a run may lose a race.
pub(crate) struct Tries(usize);

impl Tries {
    pub(crate) fn new() -> Self {
        Self(0)
    }

    /// One more loss: `conflict` once there were too many.
    pub(crate) fn lost(&mut self, what: &str) -> Result<(), EpError> {
        self.0 += 1;
        if self.0 < TRIES {
            return Ok(());
        }
        Err(EpError::conflict(format!("{what}: it kept moving under this operation; retry")))
    }
}

/// Reads the gate.
pub(crate) async fn look_at_gate(
    deps: &BarrierDeps,
    uid: &LifecycleUid,
) -> Result<Sight<AgentGate>, EpError> {
    let seen = read_gate(&deps.stores, uid).await?;
    Ok(seen.map_or(Sight::Absent, |at| Sight::At(at.gate, at.revision)))
}

/// Reads the head.
pub(crate) async fn look_at_head(
    deps: &BarrierDeps,
    principal: &Principal,
) -> Result<Sight<LifecycleHead>, EpError> {
    deps.stores.records_store().count_request();
    let seen = read_head(deps.stores.records(), principal).await?;
    Ok(seen.map_or(Sight::Absent, |at| Sight::At(at.head, at.revision)))
}

/// Reads one row: `failed-precondition` on a marker, `internal` on a garbled row.
pub(crate) async fn look<T>(
    store: &Store,
    key: &str,
    parse: impl FnOnce(&[u8]) -> Result<T, EpError>,
) -> Result<Sight<T>, EpError> {
    let Some(Entry { value, revision, .. }) = store.read(key).await? else { return Ok(Sight::Absent) };
    Ok(Sight::At(at_key(key, parse(&value))?, revision))
}

/// Writes the next gate: where it stands then, or `None` when the race was lost.
pub(crate) async fn write_gate(
    deps: &BarrierDeps,
    next: AgentGate,
    read_at: Revision,
) -> Result<Option<Sight<AgentGate>>, EpError> {
    let outcome = gate::write_gate(&deps.stores, next.lifecycle_uid(), &next, read_at).await;
    Ok(landed(outcome, "barrier: gate")?.map(|revision| Sight::At(next, revision)))
}

/// Writes the next head: where it stands then, or `None` when the race was lost.
pub(crate) async fn write_head(
    deps: &BarrierDeps,
    next: LifecycleHead,
    read_at: Revision,
) -> Result<Option<Sight<LifecycleHead>>, EpError> {
    let outcome = head::write_head(&deps.stores, &next, read_at).await;
    Ok(landed(outcome, "barrier: head")?.map(|revision| Sight::At(next, revision)))
}

fn landed(outcome: WriteOutcome, what: &str) -> Result<Option<Revision>, EpError> {
    match outcome {
        WriteOutcome::Written(revision) => Ok(Some(revision)),
        WriteOutcome::Lost => Ok(None),
        WriteOutcome::Ambiguous(why) => Err(ambiguous(what, &why)),
        WriteOutcome::Refused(why) => Err(unsent(what, &why)),
    }
}

/// The gate of an incarnation whose head is active, as a barrier captures it.
///
/// A gate that an activation left frozen is opened first, by that activation's own operation id: its head is placed, so
/// what is left of it is this one write, and whoever is to be taken over or retired must not have to log in for it
/// (contract 07 §3.3).
pub(crate) async fn look_at_activated_gate(
    deps: &BarrierDeps,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<Sight<AgentGate>, EpError> {
    let gate = look_at_gate(deps, uid).await?;
    if end_activation(&deps.stores, principal, uid, gate.row()).await? {
        return look_at_gate(deps, uid).await;
    }
    Ok(gate)
}

/// Ends the activation that holds this gate, if one does; says whether the gate is to be looked at again.
pub(crate) async fn end_activation(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
    gate: Option<&AgentGate>,
) -> Result<bool, EpError> {
    let Some(GateState::Frozen(held)) = gate.map(AgentGate::state) else { return Ok(false) };
    if held.kind() != OpKind::Activation {
        return Ok(false);
    }
    match resume_activation(stores, principal, uid, held.op_id()).await {
        Ok(ended) => {
            if ended != Resumed::AlreadySettled {
                tracing::info!(%principal, %uid, op = %held.op_id(), ?ended, "authority: an activation that was cut off has ended");
            }
            Ok(true)
        }
        // The login itself came first: the gate says what it came to.
        Err(refusal) if refusal.code == EpCode::Conflict => Ok(true),
        Err(refusal) => Err(refusal),
    }
}

/// The head that a barrier captures: active as this incarnation (contract 07 §5 step 0, §6.3 phase 0).
pub(crate) fn require_active_head<'a>(
    head: &'a Sight<LifecycleHead>,
    uid: &LifecycleUid,
) -> Result<&'a LifecycleHead, EpError> {
    head.row().filter(|head| head.is_active_at(uid)).ok_or_else(|| {
        let refusal = EpError::failed_precondition(
            "barrier: the alias is not active as this lifecycle uid; read it again",
        );
        head.row().map_or_else(|| refusal.clone(), |head| head.state().blocks(refusal.clone()))
    })
}

/// The gate that a barrier captures: open, and mintable before (contract 07 §5 step 0, §6.3 phase 0).
pub(crate) fn require_open_gate(gate: &Sight<AgentGate>) -> Result<&AgentGate, EpError> {
    let Some(gate) = gate.row() else {
        return Err(EpError::failed_precondition("barrier: this incarnation has no issuance gate"));
    };
    if !gate.is_open() {
        let refusal = EpError::failed_precondition("barrier: the issuance gate is not open");
        return Err(gate.state().blocks(refusal));
    }
    if gate.generation() == 0 {
        return Err(EpError::failed_precondition("barrier: the issuance gate was never open before"));
    }
    Ok(gate)
}

/// Whether this operation, of this kind, holds the gate that it names.
pub(crate) fn is_held_by(gate: &AgentGate, op: &OpId, kind: OpKind) -> bool {
    gate.state().op().is_some_and(|held| held.op_id() == op && held.kind() == kind)
}

/// The refusal of a gate that another operation froze.
pub(crate) fn held_by_another(gate: &AgentGate) -> EpError {
    gate.state().blocks(EpError::failed_precondition(
        "barrier: another operation holds this incarnation's issuance gate; retry when that has ended",
    ))
}
