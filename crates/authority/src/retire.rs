//! The terminal retirement barrier: an incarnation ends for good, and its alias is free only after the last write
//! (contract 07 §6, 02 §3.11).
//!
//! Any failure behind the freeze leaves the gate frozen and the head as it is; the same operation, run again, ends it.

use std::collections::{BTreeMap, BTreeSet};

use cotal_broker::{kv::WriteOutcome, stream};
use cotal_wire::{
    Command, EndpointToken, EpError, LifecycleUid, OpId, Principal, Revision, names,
    rows::{
        AgentGate, FactWork, FrontierRecord, Intent, Obligation, ObligationKey, ObligationState, OpKind,
        Owed, RetirementIntent,
    },
};

use crate::{
    barrier::{
        BarrierDeps, Sight, Tries, look, look_at_gate, look_at_head, require_active_head, require_open_gate,
        write_gate, write_head,
    },
    containment::{contain, deleted},
    drain::{Retiring, repair_principals},
    evict::evict_verified,
    intents,
    retirement::{RetirementFailure, RetirementReport},
    retirement_step::{Phase, RetirementRun, RetirementStep, own_frontier},
    scanner::{Obligations, Scanned},
    store::{ambiguous, at_key, unsent},
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
    let (intent, gate) = match intents::find(deps, op).await.map_err(refused)? {
        Some(found) => {
            intents::require_same(&found, principal, uid, OpKind::Retirement).map_err(refused)?;
            (found, Sight::Unread)
        }
        None => {
            let (intent, gate) = capture(deps, principal, uid).await.map_err(refused)?;
            (intents::record(deps, op, &Intent::Retirement(intent)).await.map_err(begun)?, gate)
        }
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
    let gate = look_at_gate(deps, uid).await?;
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
        match run.next(op, &intent)? {
            RetirementStep::ReadGate => run.gate = look_at_gate(deps, uid).await?,
            RetirementStep::ReadHead => run.head = look_at_head(deps, principal).await?,
            RetirementStep::Freeze(next, read_at) | RetirementStep::RetireGate(next, read_at) => {
                match write_gate(deps, next, read_at).await? {
                    Some(at) => run.gate = at,
                    None => {
                        tries.lost("retirement: the issuance gate")?;
                        run.lost_gate();
                    }
                }
            }
            RetirementStep::BeginHead(next, read_at) | RetirementStep::CompleteHead(next, read_at) => {
                match write_head(deps, next, read_at).await? {
                    Some(at) => run.head = at,
                    None => {
                        tries.lost("retirement: the lifecycle head")?;
                        run.head = Sight::Unread;
                    }
                }
            }
            RetirementStep::Contain => {
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
                let repairs = repair_principals(op).into_iter().collect();
                evict_verified(deps.evictor.as_ref(), &repairs).await?;
                run.done = Phase::Fenced;
            }
            RetirementStep::CleanPools => {
                for (endpoint, pools) in inventory(&obligations(deps, uid).await?)? {
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

/// An obligation, as a scan found it.
struct Owing {
    at: (String, Revision),
    endpoint: EndpointToken,
    row: Obligation,
}

impl Owing {
    fn parse(Scanned { key, revision, value }: Scanned) -> Result<Self, EpError> {
        let Some(value) = value else { return Err(deleted(&key)) };
        let endpoint = at_key(&key, ObligationKey::parse(&key))?.endpoint;
        let row = at_key(&key, Obligation::parse(&value))?;
        Ok(Self { at: (key, revision), endpoint, row })
    }

    /// Accepted work whose decision is a fact: what became of it, its route says.
    fn accepted_fact(&self) -> Option<&FactWork> {
        match self.row.owed() {
            Owed::Epf(work) if self.row.state() == ObligationState::Accepted => Some(work),
            Owed::Epf(_) | Owed::SelfCommit(_) => None,
        }
    }

    /// Whether its endpoint must be drained: it is not over, and its route was not verified as it stands.
    fn needs_drain(&self, verified: &BTreeSet<(String, Revision)>) -> bool {
        self.row.state().is_owed() && !(self.accepted_fact().is_some() && verified.contains(&self.at))
    }
}

async fn obligations(deps: &BarrierDeps, uid: &LifecycleUid) -> Result<Vec<Owing>, EpError> {
    deps.stores.records_store().count_request();
    let rows = deps.records.obligations(&Obligations::OfTarget(uid.clone())).await?;
    rows.into_iter().map(Owing::parse).collect()
}

/// Drains until nothing is owed that was not verified as it stands (contract 07 §6.3 phase 4).
async fn drain(deps: &BarrierDeps, retiring: &Retiring) -> Result<Vec<String>, EpError> {
    let mut verified = BTreeSet::new();
    let mut drained = BTreeSet::new();
    for _ in 0..DRAIN_PASSES {
        let rows = obligations(deps, &retiring.uid).await?;
        let owing = endpoints_to_drain(&rows, &verified);
        if owing.is_empty() {
            return Ok(drained.iter().map(EndpointToken::to_string).collect());
        }
        for endpoint in owing {
            deps.drain.drain(retiring, &endpoint).await?;
            let routed = rows.iter().filter(|row| row.endpoint == endpoint && row.accepted_fact().is_some());
            verified.extend(routed.map(|row| row.at.clone()));
            drained.insert(endpoint);
        }
    }
    let rows = obligations(deps, &retiring.uid).await?;
    match endpoints_to_drain(&rows, &verified).first() {
        None => Ok(drained.iter().map(EndpointToken::to_string).collect()),
        Some(endpoint) => Err(EpError::unavailable(format!(
            "retirement: obligations of {endpoint} keep coming after {DRAIN_PASSES} passes; run it again"
        ))),
    }
}

fn endpoints_to_drain(rows: &[Owing], verified: &BTreeSet<(String, Revision)>) -> BTreeSet<EndpointToken> {
    rows.iter().filter(|row| row.needs_drain(verified)).map(|row| row.endpoint.clone()).collect()
}

/// The pools that accepted work went to, discovered and never hinted (contract 07 §6.3 phase 6).
fn inventory(rows: &[Owing]) -> Result<BTreeMap<EndpointToken, BTreeSet<Command>>, EpError> {
    let mut pools: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for row in rows {
        let Some(work) = row.accepted_fact() else { continue };
        if let Some(pool) = at_key(&row.at.0, work.route.as_pool())? {
            pools.entry(row.endpoint.clone()).or_default().insert(pool);
        }
    }
    Ok(pools)
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
