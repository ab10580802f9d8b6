//! The terminal retirement barrier: an incarnation ends for good, and its alias is free only after the last write
//! (contract 07 §6, 02 §3.11).
//!
//! Any failure behind the freeze leaves the gate frozen and the head as it is; the same operation, run again, ends it.

use std::collections::BTreeSet;

use cotal_broker::{kv::WriteOutcome, stream};
use cotal_wire::{
    EndpointToken, EpError, LifecycleUid, OpId, Principal, Revision, names,
    rows::{AgentGate, FrontierRecord, Intent, OpKind, RetirementIntent},
};

use crate::{
    barrier::{
        BarrierDeps, Sight, Tries, look, look_at_activated_gate, look_at_gate, look_at_head,
        require_active_head, require_open_gate, write_gate, write_head,
    },
    containment::contain,
    drain::{OwedRow, Retiring, repair_principals},
    intents,
    retirement::{RetirementFailure, RetirementReport},
    retirement_step::{Phase, RetirementRun, RetirementStep, own_frontier},
    scanner::Obligations,
    store::{ambiguous, unsent},
};

/// How many passes may drain before a row that is left is `unavailable`.
const DRAIN_PASSES: usize = 4;

/// Retires an incarnation under this operation, or ends what an earlier run of it began.
pub async fn retire(
    deps: &BarrierDeps,
    op: &OpId,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<RetirementReport, RetirementFailure> {
    let refused = |error| RetirementFailure { error, began: false };
    let (intent, gate) = if let Some(found) = intents::find(deps, op).await.map_err(refused)? {
        intents::require_same(&found, principal, uid, OpKind::Retirement).map_err(refused)?;
        (found, Sight::Unread)
    } else {
        let (intent, gate) = capture(deps, principal, uid).await.map_err(refused)?;
        (intents::record(deps, op, &Intent::Retirement(intent)).await.map_err(begun)?, gate)
    };
    run(deps, op, principal, uid, intent, gate).await.map_err(begun)
}

/// Ends a retirement of which only the operation is known; `not-found` when there is none.
pub async fn resume_retirement(deps: &BarrierDeps, op: &OpId) -> Result<RetirementReport, RetirementFailure> {
    let refused = |error| RetirementFailure { error, began: false };
    let intent = intents::require(deps, op).await.map_err(refused)?;
    let (principal, uid) = (intent.principal().clone(), intent.lifecycle_uid().clone());
    run(deps, op, &principal, &uid, intent, Sight::Unread).await.map_err(begun)
}

fn begun(error: EpError) -> RetirementFailure {
    RetirementFailure { error, began: true }
}

/// What the operation sets out to do, from the head and the gate as they stand.
async fn capture(
    deps: &BarrierDeps,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<(RetirementIntent, Sight<AgentGate>), EpError> {
    let head = look_at_head(deps, principal).await?;
    require_active_head(&head, uid)?;
    let gate = look_at_activated_gate(deps, principal, uid).await?;
    let intent = RetirementIntent {
        lifecycle_uid: uid.clone(),
        principal: principal.clone(),
        from_generation: require_open_gate(&gate)?.generation(),
        frontier_streams: deps.names().frontier_streams().to_vec(),
    };
    Ok((intent, gate))
}

async fn run(
    deps: &BarrierDeps,
    op: &OpId,
    principal: &Principal,
    uid: &LifecycleUid,
    intent: Intent,
    gate: Sight<AgentGate>,
) -> Result<RetirementReport, EpError> {
    intents::require_same(&intent, principal, uid, OpKind::Retirement)?;
    let Intent::Retirement(intent) = intent else {
        return Err(EpError::internal("retirement: the intent is of another kind"));
    };
    let retiring = Retiring { op: op.clone(), principal: principal.clone(), uid: uid.clone() };
    let mut run = RetirementRun::from_gate(gate);
    let mut tries = Tries::new();
    let mut report = RetirementReport::default();
    loop {
        deps.check()?;
        match run.next(op, &intent)? {
            RetirementStep::ReadGate => run.gate = look_at_gate(deps, uid).await?,
            RetirementStep::ReadHead => run.head = look_at_head(deps, principal).await?,
            RetirementStep::Freeze(next, read_at) | RetirementStep::RetireGate(next, read_at) => {
                if let Some(at) = write_gate(deps, next, read_at).await? {
                    run.gate = at;
                } else {
                    tries.lost("retirement: the issuance gate")?;
                    run.lost_gate();
                }
            }
            RetirementStep::BeginHead(next, read_at) | RetirementStep::CompleteHead(next, read_at) => {
                if let Some(at) = write_head(deps, next, read_at).await? {
                    run.head = at;
                } else {
                    tries.lost("retirement: the lifecycle head")?;
                    run.head = Sight::Unread;
                }
            }
            RetirementStep::Contain => {
                // First of all, like every row: whoever is evicted must not come back by what was issued to it.
                deps.drain.end_issuance(principal, uid).await?;
                let contained = contain(deps, principal, uid).await?;
                report.revoked_rows = contained.revoked_rows;
                report.evicted = contained.evicted;
                run.done = Phase::Contained;
            }
            RetirementStep::Drain => {
                report.drained_endpoints = drain(deps, &retiring).await?;
                run.done = Phase::Drained;
            }
            RetirementStep::FenceRepairs => {
                // Even when no repair ran: an earlier run may have opened one.
                let repairs = repair_principals(op).into();
                deps.evict(&repairs).await?;
                run.done = Phase::Fenced;
            }
            RetirementStep::CleanPools => {
                for (endpoint, pools) in OwedRow::pools(&obligations(deps, uid).await?)? {
                    let cleaned =
                        deps.drain.clean(&retiring, &endpoint, &pools, deps.evictor.as_ref()).await?;
                    let named =
                        cleaned.into_iter().map(|(pool, cleaned)| (format!("{endpoint}/{pool}"), cleaned));
                    report.cleaned.extend(named);
                }
                run.done = Phase::Cleaned;
            }
            RetirementStep::RecordFrontier => run.frontier = Some(record_frontier(deps, op, &intent).await?),
            RetirementStep::ProveFrontier => run.frontier = Some(prove_frontier(deps, op, uid).await?),
            RetirementStep::Done => {
                report.frontiers = run.frontier.map(|record| record.streams()).unwrap_or_default();
                return Ok(report);
            }
        }
    }
}

// === obligations ==============================================================================================

async fn obligations(deps: &BarrierDeps, uid: &LifecycleUid) -> Result<Vec<OwedRow>, EpError> {
    deps.stores.records_store().count_request();
    OwedRow::read_all(&deps.records.obligations(&Obligations::OfTarget(uid.clone())).await?)
}

/// The endpoints that must be drained: something of theirs is not over, and its route was not verified as it stands.
fn endpoints_to_drain(
    rows: &[OwedRow],
    verified: &BTreeSet<(String, Revision)>,
) -> Result<BTreeSet<EndpointToken>, EpError> {
    let verified = |row: &OwedRow| row.is_accepted_epf() && verified.contains(&coordinate(row));
    rows.iter().filter(|row| row.is_owed() && !verified(row)).map(OwedRow::endpoint).collect()
}

fn coordinate(row: &OwedRow) -> (String, Revision) {
    (row.key.clone(), row.revision)
}

/// Drains until nothing is owed that was not verified as it stands (contract 07 §6.3 phase 4).
async fn drain(deps: &BarrierDeps, retiring: &Retiring) -> Result<Vec<String>, EpError> {
    let mut verified = BTreeSet::new();
    let mut drained = BTreeSet::new();
    for pass in 0..=DRAIN_PASSES {
        let rows = obligations(deps, &retiring.uid).await?;
        let owing = endpoints_to_drain(&rows, &verified)?;
        let Some(first) = owing.first() else { break };
        if pass == DRAIN_PASSES {
            return Err(EpError::unavailable(format!(
                "retirement: obligations of {first} keep coming after {DRAIN_PASSES} passes; run it again"
            )));
        }
        for endpoint in owing {
            deps.drain.drain(retiring, &endpoint).await?;
            for row in rows.iter().filter(|row| row.is_accepted_epf()) {
                if row.endpoint()? == endpoint {
                    verified.insert(coordinate(row));
                }
            }
            drained.insert(endpoint);
        }
    }
    Ok(drained.iter().map(EndpointToken::to_string).collect())
}

// === frontier =================================================================================================

/// Uses this operation's record, or makes it (contract 07 §6.3 phase 8).
async fn record_frontier(
    deps: &BarrierDeps,
    op: &OpId,
    intent: &RetirementIntent,
) -> Result<FrontierRecord, EpError> {
    let (store, uid) = (deps.stores.records_store(), &intent.lifecycle_uid);
    let key = names::frontier_key(uid);
    if let Sight::At(record, _) = look(store, &key, FrontierRecord::parse).await? {
        return own_frontier(record, uid, op);
    }
    let mut streams = Vec::with_capacity(intent.frontier_streams.len());
    for name in &intent.frontier_streams {
        store.count_request();
        let last = stream::last_sequence(deps.stores.connection(), name).await?;
        streams.push((name.clone(), last.0));
    }
    let record = FrontierRecord::new(uid, op, streams);
    let what = "retirement: frontier record";
    let refusal = match store.create(&key, record.to_bytes()).await {
        WriteOutcome::Written(_) => return Ok(record),
        WriteOutcome::Refused(why) => return Err(unsent(what, &why)),
        WriteOutcome::Lost => EpError::conflict(format!("{what}: another writer came first; retry")),
        WriteOutcome::Ambiguous(why) => ambiguous(what, &why),
    };
    match look(store, &key, FrontierRecord::parse).await? {
        Sight::At(record, _) => own_frontier(record, uid, op),
        Sight::Absent | Sight::Unread => Err(refusal),
    }
}

/// The record of a retirement whose gate is final.
async fn prove_frontier(
    deps: &BarrierDeps,
    op: &OpId,
    uid: &LifecycleUid,
) -> Result<FrontierRecord, EpError> {
    let key = names::frontier_key(uid);
    match look(deps.stores.records_store(), &key, FrontierRecord::parse).await? {
        Sight::At(record, _) if record.is_of(uid, op) => Ok(record),
        Sight::At(..) => Err(EpError::internal(
            "retirement: the gate is final but another operation recorded its frontier",
        )),
        Sight::Absent | Sight::Unread => {
            Err(EpError::internal("retirement: the gate is final but no frontier was recorded"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scanner::Scanned;

    fn scanned(endpoint: &str, id: &str, revision: u64, state: &str, work: &str) -> Scanned {
        let uid = "a".repeat(26);
        let key = format!("oblig.{uid}.{endpoint}.local.caller.{uid}.{id}");
        let work = match work {
            "self" => format!(
                "\"decision\":\"self\",\"opId\":\"{uid}\",\"mappingRevision\":1,\"commitKey\":\"goal.x\",\
                 \"commitBaseRevision\":0,\"commitValue\":{{\"enc\":\"b64u\",\"bytes\":\"e30\"}},\
                 \"commitDigest\":\"sha256:{}\"",
                "0".repeat(64)
            ),
            route => format!(
                "\"decision\":\"epf\",\"opId\":\"{uid}\",\"mappingRevision\":1,\"fingerprint\":\"f\",\"sourceSeq\":1,\
                 \"route\":\"{route}\""
            ),
        };
        let row = format!("{{\"state\":\"{state}\",{work}}}");
        Scanned { key, revision: Revision(revision), value: Some(row.into()) }
    }

    fn parsed(rows: &[(&str, &str, u64, &str, &str)]) -> Vec<OwedRow> {
        let scan = |(e, id, revision, state, work): &(&str, &str, u64, &str, &str)| {
            scanned(e, id, *revision, state, work)
        };
        OwedRow::read_all(&rows.iter().map(scan).collect::<Vec<_>>()).unwrap()
    }

    fn to_drain(rows: &[OwedRow], verified: &BTreeSet<(String, Revision)>) -> Vec<String> {
        endpoints_to_drain(rows, verified).unwrap().iter().map(EndpointToken::to_string).collect()
    }

    #[test]
    fn an_endpoint_is_drained_while_a_row_of_it_is_owed_and_was_not_verified_as_it_stands() {
        let rows = parsed(&[
            ("a", "i1", 1, "provisional", "effects"),
            ("b", "i1", 2, "provisional", "self"),
            ("c", "i1", 3, "accepted", "self"),
            ("d", "i1", 4, "accepted", "effects"),
            ("e", "i1", 5, "accepted", "pool.p"),
            ("f", "i1", 6, "rejected", "effects"),
            ("g", "i1", 7, "terminal", "self"),
        ]);
        assert_eq!(to_drain(&rows, &BTreeSet::new()), ["a", "b", "c", "d", "e"]);
        // What was verified stays so at that revision alone, and only accepted facts can be.
        let verified: BTreeSet<_> = rows.iter().map(coordinate).collect();
        assert_eq!(to_drain(&rows, &verified), ["a", "b", "c"]);
        let moved = parsed(&[("d", "i1", 8, "accepted", "effects")]);
        assert_eq!(to_drain(&moved, &verified), ["d"]);
    }
}
