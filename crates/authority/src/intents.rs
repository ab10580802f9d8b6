//! Operation intents `stage.<op>`: a barrier writes down what it sets out to do before it moves anything, so that
//! whoever knows the operation can end it, the next boot included (contract 07 §4.6, §6.6; 05 §8.8).

use std::{collections::HashMap, time::Duration};

use cotal_broker::kv::LeaderRead;
use cotal_wire::{
    EpCode, EpError, LifecycleUid, OpId, Principal, Revision, names,
    rows::{AgentGate, GateState, HeadState, Intent, IntentHeader, LifecycleHead, OpKind},
};
use futures::{StreamExt as _, channel::mpsc, stream};
use tokio::time::Instant;

use crate::{
    barrier::{BarrierDeps, Sight, look, look_at_gate, look_at_head},
    credential::create_same,
    past::{End, Looked, RememberPast, Tails, look_since},
    plane_claim::When,
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
pub fn discover(rows: &[Scanned]) -> Result<Vec<Discovered>, EpError> {
    let read = |row: &Scanned| discover_one(&row.key, row.value.as_deref()).transpose();
    rows.iter().filter_map(read).collect()
}

/// The operation of one row; `None` for a session pin.
pub(crate) fn discover_one(key: &str, value: Option<&[u8]>) -> Result<Option<Discovered>, EpError> {
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
///
/// With a `past`, intents that were over before are not looked at again; without, or when the stream does not confirm its
/// note, all of them are.
pub async fn resume_owed(
    deps: &BarrierDeps,
    past: Option<&dyn RememberPast>,
    patience: Duration,
) -> Result<BootResume, EpError> {
    let until = Instant::now() + patience;
    let note = match past {
        Some(past) => past.load().await,
        None => None,
    };
    deps.ledger.claim().assert_held(When::Before).await?;
    let (looked, heads) = match look_since(deps, note.as_deref()).await? {
        Some(looked) => {
            let heads = heads_of(deps, &looked.found).await?;
            (looked, heads)
        }
        None => survey(deps, past.is_some()).await?,
    };
    let mut outcome = BootResume::default();
    let Sorted { owed, open, ended } = sort_out(deps, &looked.found, &heads, &mut outcome).await?;
    deps.ledger.claim().assert_held(When::After).await?;
    if let Some(past) = past {
        keep(past, note, looked.note(deps.stores.space(), &open, &ended)).await;
    }

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

/// Looks at what came since the last note and notes it too, so that the next boot need not. Without a note that the stream
/// confirms it does nothing: the next boot looks at everything, and makes one.
pub(crate) async fn remember(deps: &BarrierDeps, past: &dyn RememberPast) -> Result<(), EpError> {
    let note = past.load().await;
    let Some(looked) = look_since(deps, note.as_deref()).await? else { return Ok(()) };
    let heads = heads_of(deps, &looked.found).await?;
    let Sorted { open, ended, .. } =
        sort_out(deps, &looked.found, &heads, &mut BootResume::default()).await?;
    keep(past, note, looked.note(deps.stores.space(), &open, &ended)).await;
    Ok(())
}

async fn keep(past: &dyn RememberPast, was: Option<Vec<u8>>, now: Option<Vec<u8>>) {
    if let Some(now) = now
        && was.as_ref() != Some(&now)
    {
        past.save(now).await;
    }
}

/// Every intent, and the heads of the retirements among them by their keys.
///
/// The heads are read in batches while the scan still runs. What is read of a retirement that is over does not change
/// any more, whenever it is read.
async fn survey(deps: &BarrierDeps, to_note: bool) -> Result<(Looked, HashMap<String, LeaderRead>), EpError> {
    let tails = if to_note { Some(Tails::read(deps).await?) } else { None };
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
    let (rows, heads) = (rows?, heads?);
    let found = discover(&rows)?;
    Ok((Looked::at_everything(&rows, found, tails), heads))
}

/// The heads of the retirements among these by their keys.
async fn heads_of(deps: &BarrierDeps, found: &[Discovered]) -> Result<HashMap<String, LeaderRead>, EpError> {
    let retirements = found.iter().filter(|intent| intent.header.kind == OpKind::Retirement);
    let keys: Vec<_> = retirements.map(|intent| names::head_key(&intent.header.principal)).collect();
    deps.stores.records().direct_read_many(stream::iter(keys)).await
}

/// What of the intents is owed, and what is not over.
struct Sorted {
    owed: Vec<Discovered>,
    open: Vec<OpId>,
    /// The newest of those that a head says are over.
    ended: Vec<End>,
}

/// How an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    /// It is owed.
    Owed,
    /// It is not, and may yet be: one that was written down and never begun, or a takeover of a living incarnation.
    NotOwed,
    /// It never will be again, by its gate.
    Over,
    /// Nor this one, by the head at this revision.
    OverBy(Revision),
}

/// Which of the intents are owed, and which are not over.
///
/// An intent is never deleted, so nearly all of them are of a past that is over, and a boot must not ask for each of
/// their gates: a retirement whose own head is retired has ended, for that write is its last and its gate was final
/// before it. Gates are asked for one by one, many at once, where a head proves nothing.
async fn sort_out(
    deps: &BarrierDeps,
    found: &[Discovered],
    heads: &HashMap<String, LeaderRead>,
    outcome: &mut BootResume,
) -> Result<Sorted, EpError> {
    let (over, unproved): (Vec<_>, Vec<_>) = found.iter().partition(|intent| {
        let head = match heads.get(&names::head_key(&intent.header.principal)) {
            Some(LeaderRead::Value(entry)) => {
                LifecycleHead::parse(&intent.header.principal, &entry.value).ok()
            }
            Some(LeaderRead::Marker(_) | LeaderRead::Absent) | None => None,
        };
        is_over(&intent.header, head.as_ref())
    });
    outcome.skipped += over.len();
    let head_of = |intent: &Discovered| {
        let key = names::head_key(&intent.header.principal);
        match heads.get(&key) {
            Some(LeaderRead::Value(entry)) => Some((key, entry.clone())),
            Some(LeaderRead::Marker(_) | LeaderRead::Absent) | None => None,
        }
    };
    let ended =
        over.iter().filter_map(|intent| head_of(intent).map(|(key, head)| (intent.op.clone(), key, head)));
    let mut ended: Vec<_> = ended.collect();

    let mut gates = stream::iter(unproved.into_iter().cloned())
        .map(|intent| async move {
            let stands = stands(deps, &intent).await;
            (intent, stands)
        })
        .buffered(LOOKS_AT_ONCE);
    let (mut owed, mut open) = (Vec::new(), Vec::new());
    while let Some((intent, stands)) = gates.next().await {
        // A head that was read elsewhere, or has moved since, confirms nothing later: such a one is looked at again.
        let by = match stands {
            Ok(Stands::OverBy(revision)) => head_of(&intent).filter(|(_, head)| head.revision == revision),
            _ => None,
        };
        match by {
            Some((key, head)) => ended.push((intent.op.clone(), key, head)),
            None if stands == Ok(Stands::Over) => {}
            None => open.push(intent.op.clone()),
        }
        match stands {
            Ok(Stands::Owed) => owed.push(intent),
            Ok(Stands::NotOwed | Stands::Over | Stands::OverBy(_)) => outcome.skipped += 1,
            Err(refusal) => outcome.failed.push((intent.op, refusal)),
        }
    }
    drop(gates);
    Ok(Sorted { owed, open, ended: End::newest(ended) })
}

/// How an operation stands, by leader reads.
async fn stands(deps: &BarrierDeps, Discovered { op, header }: &Discovered) -> Result<Stands, EpError> {
    let gate = look_at_gate(deps, &header.lifecycle_uid).await?;
    Ok(match owed_by_gate(op, header.kind, gate.row()) {
        GateSays::Owed => Stands::Owed,
        // A final gate is never frozen again.
        GateSays::NotOwed => match gate.row().map(AgentGate::state) {
            Some(GateState::Retired(_)) => Stands::Over,
            _ => Stands::NotOwed,
        },
        // What cannot be read is for the resume to say.
        GateSays::AskHead => match look_at_head(deps, &header.principal).await {
            Ok(Sight::At(head, revision)) if !owed_by_head(&header.lifecycle_uid, Some(&head)) => {
                Stands::OverBy(revision)
            }
            Ok(_) | Err(_) => Stands::Owed,
        },
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
