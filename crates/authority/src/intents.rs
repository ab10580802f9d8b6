//! Operation intents `stage.<op>`: a barrier writes down what it sets out to do before it moves anything, so that
//! whoever knows the operation can end it, the next boot included (contract 07 §4.6, §6.6; 05 §8.8).

use cotal_broker::kv::LeaderRead;
use cotal_wire::{
    EpCode, EpError, LifecycleUid, OpId, Principal, names,
    rows::{AgentGate, GateState, HeadState, Intent, IntentHeader, LifecycleHead, OpKind},
};
use futures::{StreamExt as _, stream};

use crate::{
    barrier::{BarrierDeps, Sight, look, look_at_gate, look_at_head},
    credential::create_same,
    retire::resume_retirement,
    scanner::Scanned,
    store::at_key,
    takeover::resume_takeover,
};

/// Gates that are asked for at once while the boot looks for what is owed.
const LOOKS_AT_ONCE: usize = 64;
/// Operations that are resumed at once. Each may wait for an eviction.
const RESUMES_AT_ONCE: usize = 4;
const PREFIX: &str = "stage.";

/// What the boot made of the intents that it found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootResume {
    /// Operations that were owed and have ended now, in order.
    pub resumed: Vec<OpId>,
    /// Operations that are owed still, or of which nobody can say; their aliases stay as they are.
    pub failed: Vec<(OpId, EpError)>,
    /// Those of the failed that may end when they are run again: somebody did not answer.
    pub owed: Vec<Discovered>,
    /// How many intents owed nothing.
    pub skipped: usize,
}

/// A discovered intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovered {
    /// The operation.
    pub op: OpId,
    /// What it is.
    pub header: IntentHeader,
}

/// Whether an operation is owed, as far as its gate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GateSays {
    /// It is owed.
    Owed,
    /// It is not.
    NotOwed,
    /// A retirement whose gate is final: its head says.
    AskHead,
}

// === deciding =================================================================================================

/// Reads the intents of a scan: session pins are no operations; a marker is `failed-precondition`, and what cannot be
/// read `internal`.
pub fn discover(rows: Vec<Scanned>) -> Result<Vec<Discovered>, EpError> {
    let mut found = Vec::with_capacity(rows.len());
    for Scanned { key, value, .. } in rows {
        let tail = key.strip_prefix(PREFIX).unwrap_or(&key);
        if tail.contains('.') {
            continue;
        }
        let Some(value) = value else {
            return Err(EpError::failed_precondition(format!(
                "{}: a deletion marker stands where an operation intent was; restore it from a backup",
                key.escape_default()
            )));
        };
        let op = OpId::parse(tail).map_err(|_| EpError::internal("a stored intent names no operation id"));
        let op = at_key(&key, op)?;
        let header = at_key(&key, IntentHeader::parse(&value))?;
        found.push(Discovered { op, header });
    }
    Ok(found)
}

/// What the gate of an intent's incarnation says (contract 05 §8.8).
pub fn owed_by_gate(op: &OpId, kind: OpKind, gate: Option<&AgentGate>) -> GateSays {
    match gate.map(AgentGate::state) {
        Some(GateState::Frozen(held)) if held.op_id() == op => GateSays::Owed,
        Some(GateState::Retired(held)) if held.op_id() == op && kind == OpKind::Retirement => {
            GateSays::AskHead
        }
        _ => GateSays::NotOwed,
    }
}

/// What the head says once the gate is final: a retirement is over when its own head is, or when a successor stands
/// in its place.
pub fn owed_by_head(uid: &LifecycleUid, head: Option<&LifecycleHead>) -> bool {
    head.is_none_or(|head| head.lifecycle_uid() == uid && *head.state() != HeadState::Retired)
}

/// The intent that a call finds under its operation must be its own.
pub(crate) fn require_same(
    intent: &Intent,
    principal: &Principal,
    uid: &LifecycleUid,
    kind: OpKind,
) -> Result<(), EpError> {
    let found = match intent {
        Intent::Takeover(_) => OpKind::Takeover,
        Intent::Retirement(_) => OpKind::Retirement,
    };
    if intent.principal() == principal && intent.lifecycle_uid() == uid && found == kind {
        return Ok(());
    }
    Err(EpError::permission_denied("barrier: this operation id belongs to another operation"))
}

// === driving ==================================================================================================

/// Reads an operation's intent.
pub(crate) async fn find(deps: &BarrierDeps, op: &OpId) -> Result<Option<Intent>, EpError> {
    let names = deps.names();
    let seen =
        look(deps.stores.auth_store(), &names::stage_key(op), |bytes| Intent::parse(&names, bytes)).await?;
    Ok(match seen {
        Sight::At(intent, _) => Some(intent),
        Sight::Absent | Sight::Unread => None,
    })
}

/// Reads an operation's intent for a resume: `not-found` when there is none.
pub(crate) async fn require(deps: &BarrierDeps, op: &OpId) -> Result<Intent, EpError> {
    let found = find(deps, op).await?;
    found.ok_or_else(|| {
        EpError::new(EpCode::NotFound, format!("barrier: there is no operation {op} to resume"))
    })
}

/// Writes an operation's intent, byte-idempotent, and reads it back: what is stored is what the barrier goes by.
pub(crate) async fn record(deps: &BarrierDeps, op: &OpId, intent: &Intent) -> Result<Intent, EpError> {
    create_same(deps.stores.auth_store(), &names::stage_key(op), intent.to_bytes(), "barrier: intent")
        .await?;
    let stored = find(deps, op).await?;
    stored.ok_or_else(|| EpError::internal("barrier: the intent vanished right after it was written"))
}

/// Ends what the last run of this plane left half done (contract 05 §8.8).
///
/// One operation that fails is logged and left as it is; an intent store that cannot be read fails the boot.
pub async fn resume_owed(deps: &BarrierDeps) -> Result<BootResume, EpError> {
    deps.stores.auth_store().count_request();
    let found = discover(deps.ledger.intents().await?)?;
    let mut outcome = BootResume::default();
    let owed = sort_out(deps, found, &mut outcome).await?;

    let mut resumes = stream::iter(owed)
        .map(|Discovered { op, header }| async move {
            let ended = match header.kind {
                OpKind::Retirement => {
                    resume_retirement(deps, &op).await.map(drop).map_err(|failure| failure.error)
                }
                _ => resume_takeover(deps, &op).await.map(drop),
            };
            (Discovered { op, header }, ended)
        })
        .buffered(RESUMES_AT_ONCE);
    while let Some((intent, ended)) = resumes.next().await {
        match ended {
            Ok(()) => outcome.resumed.push(intent.op),
            Err(refusal) => {
                let op = intent.op.clone();
                if refusal.code == EpCode::Unavailable {
                    outcome.owed.push(intent);
                }
                outcome.failed.push((op, refusal));
            }
        }
    }
    drop(resumes);
    for (op, refusal) in &outcome.failed {
        tracing::warn!(%op, %refusal, "auth-plane: an operation of an earlier run is still owed; its alias stays frozen");
    }
    Ok(outcome)
}

/// Which of the intents are owed. An intent is never deleted, so nearly all of them are of a past that is over: their
/// gates are read many at once, and the heads of final gates in batches.
async fn sort_out(
    deps: &BarrierDeps,
    found: Vec<Discovered>,
    outcome: &mut BootResume,
) -> Result<Vec<Discovered>, EpError> {
    let mut gates = stream::iter(found)
        .map(|intent| async move {
            let gate = look_at_gate(deps, &intent.header.lifecycle_uid).await;
            let says = gate.map(|gate| owed_by_gate(&intent.op, intent.header.kind, gate.row()));
            (intent, says)
        })
        .buffered(LOOKS_AT_ONCE);
    let (mut owed, mut ask_head) = (Vec::new(), Vec::new());
    while let Some((intent, says)) = gates.next().await {
        match says {
            Ok(GateSays::Owed) => owed.push(intent),
            Ok(GateSays::NotOwed) => outcome.skipped += 1,
            Ok(GateSays::AskHead) => ask_head.push(intent),
            Err(refusal) => outcome.failed.push((intent.op, refusal)),
        }
    }
    drop(gates);

    // A replica that lags shows an earlier head. That one is proof where it is the incarnation's own last, as nearly all
    // are; the leader is asked for the rest, since the head of another incarnation may be a predecessor's.
    let keys: Vec<_> = ask_head.iter().map(|intent| names::head_key(&intent.header.principal)).collect();
    let heads = deps.stores.records().direct_read_many(&keys).await?;
    let (mut over, mut unproved) = (0, Vec::new());
    for (intent, key) in ask_head.into_iter().zip(keys) {
        let IntentHeader { principal, lifecycle_uid, .. } = &intent.header;
        let proved = match heads.get(&key) {
            Some(LeaderRead::Value(entry)) => {
                LifecycleHead::parse(principal, &entry.value).is_ok_and(|head| {
                    head.lifecycle_uid() == lifecycle_uid && *head.state() == HeadState::Retired
                })
            }
            Some(LeaderRead::Marker(_) | LeaderRead::Absent) | None => false,
        };
        if proved {
            over += 1;
        } else {
            unproved.push(intent);
        }
    }
    let mut leaders = stream::iter(unproved)
        .map(|intent| async move {
            let head = look_at_head(deps, &intent.header.principal).await;
            // What cannot be read is for the resume to say.
            let owed = head.map_or(true, |head| owed_by_head(&intent.header.lifecycle_uid, head.row()));
            (intent, owed)
        })
        .buffered(LOOKS_AT_ONCE);
    while let Some((intent, is_owed)) = leaders.next().await {
        if is_owed {
            owed.push(intent);
        } else {
            over += 1;
        }
    }
    drop(leaders);
    outcome.skipped += over;
    Ok(owed)
}
