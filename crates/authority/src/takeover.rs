//! The takeover barrier: a successor process takes over an incarnation, and nothing of its predecessor's epoch is left
//! (contract 07 §5, 02 §3.10).

use cotal_wire::{
    EpError, LifecycleUid, OpId, Principal,
    rows::{AgentGate, Intent, OpKind, TakeoverIntent},
};

use crate::{
    barrier::{
        BarrierDeps, Sight, Tries, look_at_activated_gate, look_at_gate, look_at_head, require_active_head,
        require_open_gate, write_gate, write_head,
    },
    containment::{Contained, contain},
    intents,
    takeover_step::{TakeoverRun, TakeoverStep},
};

/// A takeover that ran to its end. A resume that found the epoch advanced has no rows and no evictions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeoverReport {
    /// The operation.
    pub op: OpId,
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// The epoch that the head has now.
    pub to_epoch: u64,
    /// The generation that the gate has now.
    pub to_generation: u64,
    /// Credential rows that this run revoked.
    pub revoked_rows: u64,
    /// Principals that were verified gone.
    pub evicted: Vec<Principal>,
}

/// Takes an incarnation over under this operation, or ends what an earlier run of it began.
///
/// Until it ends, its gate is frozen and nothing can be minted; a run that is cut off is ended by
/// [`resume_takeover`].
pub async fn take_over(
    deps: &BarrierDeps,
    op: &OpId,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<TakeoverReport, EpError> {
    let (intent, gate) = match intents::find(deps, op).await? {
        Some(found) => (found, Sight::Unread),
        None => begin(deps, op, principal, uid).await?,
    };
    run(deps, op, principal, uid, intent, gate).await
}

/// Ends a takeover of which only the operation is known; `not-found` when there is none.
pub async fn resume_takeover(deps: &BarrierDeps, op: &OpId) -> Result<TakeoverReport, EpError> {
    let intent = intents::require(deps, op).await?;
    let (principal, uid) = (intent.principal().clone(), intent.lifecycle_uid().clone());
    run(deps, op, &principal, &uid, intent, Sight::Unread).await
}

/// Captures the head and the gate as one pair, and writes down what follows from them.
async fn begin(
    deps: &BarrierDeps,
    op: &OpId,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<(Intent, Sight<AgentGate>), EpError> {
    let seen = look_at_head(deps, principal).await?;
    let head = require_active_head(&seen, uid)?;
    let gate = look_at_activated_gate(deps, principal, uid).await?;
    let from_generation = require_open_gate(&gate)?.generation();
    if look_at_head(deps, principal).await? != seen {
        return Err(EpError::conflict("takeover: the head moved while the gate was read; retry"));
    }
    let intent = TakeoverIntent {
        lifecycle_uid: uid.clone(),
        principal: principal.clone(),
        from_epoch: head.process_epoch(),
        from_generation,
    };
    Ok((intents::record(deps, op, &Intent::Takeover(intent)).await?, gate))
}

async fn run(
    deps: &BarrierDeps,
    op: &OpId,
    principal: &Principal,
    uid: &LifecycleUid,
    intent: Intent,
    gate: Sight<AgentGate>,
) -> Result<TakeoverReport, EpError> {
    intents::require_same(&intent, principal, uid, OpKind::Takeover)?;
    let Intent::Takeover(intent) = intent else {
        return Err(EpError::internal("takeover: the intent is of another kind"));
    };
    let mut run = TakeoverRun::from_gate(gate);
    let mut tries = Tries::new();
    let mut contained = Contained::default();
    loop {
        deps.check()?;
        match run.next(op, &intent)? {
            TakeoverStep::ReadGate => run.gate = look_at_gate(deps, uid).await?,
            TakeoverStep::ReadHead => run.head = look_at_head(deps, principal).await?,
            TakeoverStep::Freeze(next, read_at) | TakeoverStep::Reopen(next, read_at) => {
                if let Some(at) = write_gate(deps, next, read_at).await? {
                    run.gate = at;
                } else {
                    tries.lost("takeover: the issuance gate")?;
                    run.lost_gate();
                }
            }
            TakeoverStep::Contain => {
                contained = contain(deps, principal, uid).await?;
                run.contained();
            }
            TakeoverStep::AdvanceHead(advanced, read_at) => {
                match write_head(deps, advanced, read_at).await? {
                    Some(at) => {
                        run.head = at;
                        run.advanced = true;
                    }
                    None => run.lost_head(),
                }
            }
            TakeoverStep::Abort(open, read_at, refusal) => {
                // Lost means that the gate is no longer this operation's: there is nothing to reopen.
                let _ = write_gate(deps, open, read_at).await?;
                return Err(refusal);
            }
            TakeoverStep::Done => {
                return Ok(TakeoverReport {
                    op: op.clone(),
                    lifecycle_uid: uid.clone(),
                    to_epoch: intent.from_epoch.saturating_add(1),
                    to_generation: intent.from_generation.saturating_add(1),
                    revoked_rows: contained.revoked_rows,
                    evicted: contained.evicted,
                });
            }
        }
    }
}
