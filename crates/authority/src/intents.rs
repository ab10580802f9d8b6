//! Operation intents `stage.<op>`: a barrier writes down what it sets out to do before it moves anything, so that
//! whoever knows the operation can end it, the next boot included (contract 07 §4.6, §6.6; 05 §8.8).

use std::{collections::HashMap, time::Duration};

use cotal_broker::kv::LeaderRead;
use cotal_wire::{
    EpCode, EpError, LifecycleUid, OpId, Principal, names,
    rows::{AgentGate, GateState, HeadState, Intent, IntentHeader, LifecycleHead, OpKind},
};
use futures::{StreamExt as _, channel::mpsc, stream};
use tokio::time::Instant;

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
    let read = |row: Scanned| discover_one(&row.key, row.value.as_deref()).transpose();
    rows.into_iter().filter_map(read).collect()
}

/// The operation of one row; `None` for a session pin.
fn discover_one(key: &str, value: Option<&[u8]>) -> Result<Option<Discovered>, EpError> {
    let tail = key.strip_prefix(PREFIX).unwrap_or(key);
    if tail.contains('.') {
        return Ok(None);
    }
    let Some(value) = value else {
        return Err(EpError::failed_precondition(format!(
            "{}: a deletion marker stands where an operation intent was; restore it from a backup",
            key.escape_default()
        )));
    };
    let op = OpId::parse(tail).map_err(|_| EpError::internal("a stored intent names no operation id"));
    let op = at_key(key, op)?;
    let header = at_key(key, IntentHeader::parse(value))?;
    Ok(Some(Discovered { op, header }))
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

/// Whether a retirement is over by its own head. A replica that lags shows an earlier one, and no earlier head of an
/// incarnation is retired.
pub fn is_over(intent: &IntentHeader, head: Option<&LifecycleHead>) -> bool {
    intent.kind == OpKind::Retirement
        && head.is_some_and(|head| {
            *head.lifecycle_uid() == intent.lifecycle_uid && *head.state() == HeadState::Retired
        })
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
/// One operation that fails is logged and left as it is; an intent store that cannot be read fails the boot. None is begun
/// after `patience`: nobody waits at the door for a delivery daemon that does not answer. Those are owed still.
pub async fn resume_owed(deps: &BarrierDeps, patience: Duration) -> Result<BootResume, EpError> {
    let until = Instant::now() + patience;
    let (found, heads) = survey(deps).await?;
    let mut outcome = BootResume::default();
    let owed = sort_out(deps, found, &heads, &mut outcome).await?;

    let mut resumes = stream::iter(owed)
        .map(|Discovered { op, header }| async move {
            let ended = match header.kind {
                _ if Instant::now() >= until => {
                    Err(EpError::unavailable("the boot has waited long enough for others; it is run again"))
                }
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
        tracing::warn!(
            space = %deps.stores.space(), %op, %refusal,
            "auth-plane: an operation of an earlier run is still owed; its alias stays frozen"
        );
    }
    Ok(outcome)
}

/// Every intent, and the heads of the retirements among them by their keys.
///
/// The heads are read in batches while the scan still runs. What is read of a retirement that is over does not change
/// any more, whenever it is read.
async fn survey(deps: &BarrierDeps) -> Result<(Vec<Discovered>, HashMap<String, LeaderRead>), EpError> {
    deps.stores.auth_store().count_request();
    let (seen, keys) = mpsc::unbounded();
    let scan = async move {
        let see = |key: &str, value: Option<&[u8]>| {
            if let Ok(Some(Discovered { header, .. })) = discover_one(key, value)
                && header.kind == OpKind::Retirement
            {
                // Nobody listens once reading heads has failed, which is said below.
                let _ = seen.unbounded_send(names::head_key(&header.principal));
            }
        };
        deps.ledger.intents(&see).await
    };
    let (rows, heads) = futures::join!(scan, deps.stores.records().direct_read_many(keys));
    Ok((discover(rows?)?, heads?))
}

/// Which of the intents are owed.
///
/// An intent is never deleted, so nearly all of them are of a past that is over, and a boot must not ask for each of
/// their gates: a retirement whose own head is retired has ended, for that write is its last and its gate was final
/// before it. Gates are asked for one by one, many at once, where a head proves nothing.
async fn sort_out(
    deps: &BarrierDeps,
    found: Vec<Discovered>,
    heads: &HashMap<String, LeaderRead>,
    outcome: &mut BootResume,
) -> Result<Vec<Discovered>, EpError> {
    let (over, unproved): (Vec<_>, Vec<_>) = found.into_iter().partition(|intent| {
        let head = match heads.get(&names::head_key(&intent.header.principal)) {
            Some(LeaderRead::Value(entry)) => {
                LifecycleHead::parse(&intent.header.principal, &entry.value).ok()
            }
            Some(LeaderRead::Marker(_) | LeaderRead::Absent) | None => None,
        };
        is_over(&intent.header, head.as_ref())
    });
    outcome.skipped += over.len();

    let mut gates = stream::iter(unproved)
        .map(|intent| async move {
            let owed = is_owed(deps, &intent).await;
            (intent, owed)
        })
        .buffered(LOOKS_AT_ONCE);
    let mut owed = Vec::new();
    while let Some((intent, is_owed)) = gates.next().await {
        match is_owed {
            Ok(true) => owed.push(intent),
            Ok(false) => outcome.skipped += 1,
            Err(refusal) => outcome.failed.push((intent.op, refusal)),
        }
    }
    drop(gates);
    Ok(owed)
}

/// Whether an operation is owed, by leader reads.
async fn is_owed(deps: &BarrierDeps, Discovered { op, header }: &Discovered) -> Result<bool, EpError> {
    let gate = look_at_gate(deps, &header.lifecycle_uid).await?;
    Ok(match owed_by_gate(op, header.kind, gate.row()) {
        GateSays::Owed => true,
        GateSays::NotOwed => false,
        // What cannot be read is for the resume to say.
        GateSays::AskHead => look_at_head(deps, &header.principal)
            .await
            .map_or(true, |head| owed_by_head(&header.lifecycle_uid, head.row())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retirement_is_over_by_its_own_head_alone() {
        let principal = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.bob").unwrap();
        let uid = |c: char| LifecycleUid::parse(&c.to_string().repeat(26)).unwrap();
        let head = |uid: &LifecycleUid, state: &str| {
            let op = if state == "retiring" {
                format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", "f".repeat(26))
            } else {
                String::new()
            };
            let row = format!(
                "{{\"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"actor\":\"bob\",\"lifecycleUid\":\"{uid}\",\
                 \"managerInstance\":\"m\",\"processEpoch\":1,\"state\":\"{state}\"{op}}}"
            );
            LifecycleHead::parse(&principal, row.as_bytes()).unwrap()
        };
        let intent = |kind| IntentHeader { kind, lifecycle_uid: uid('a'), principal: principal.clone() };
        for (kind, head, over) in [
            (OpKind::Retirement, Some(head(&uid('a'), "retired")), true),
            (OpKind::Retirement, Some(head(&uid('a'), "retiring")), false),
            (OpKind::Retirement, Some(head(&uid('a'), "active")), false),
            // A predecessor's, or a successor's: a replica that lags cannot tell which.
            (OpKind::Retirement, Some(head(&uid('b'), "retired")), false),
            (OpKind::Retirement, None, false),
            (OpKind::Takeover, Some(head(&uid('a'), "retired")), false),
        ] {
            assert_eq!(is_over(&intent(kind), head.as_ref()), over, "{kind:?} {head:?}");
        }
    }
}
