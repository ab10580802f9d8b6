//! A long past: retirements that ended long ago, as their last rows stand.

use anyhow::{Result, bail};
use cotal_broker::{
    Connection,
    kv::{Bucket, WriteOutcome},
};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    Actor, DerivedOwner, LifecycleUid, Names, OpId, Principal, Space,
    names::{gate_key, head_key, stage_key},
    rows::{AgentGate, GateOp, HeadStep, Intent, LifecycleHead, OpKind, RetirementIntent},
};
use futures::{StreamExt, TryStreamExt, stream};

/// Rows that are written at once.
const AT_ONCE: usize = 64;
/// Who manages them.
const MANAGER: &str = "auth-service:main";

/// Writes `count` completed retirements: the intent, its gate retired, its head retired.
pub(super) async fn completed(
    connection: &Connection,
    space: &Space,
    owner: &DerivedOwner,
    count: usize,
) -> Result<()> {
    let names = Names::new(&space.token());
    let auth = Bucket::new(connection, &names.auth_bucket());
    let records = Bucket::new(connection, &names.records_bucket());
    stream::iter(0..count)
        .map(|n| completed_one(&names, &auth, &records, owner, n))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn completed_one(
    names: &Names,
    auth: &Bucket,
    records: &Bucket,
    owner: &DerivedOwner,
    n: usize,
) -> Result<()> {
    let principal = Principal::new(owner, Actor::parse(&format!("past{n}"))?);
    let uid = LifecycleUid::mint(&SystemEntropy);
    let op = OpId::managed_retirement(&uid);
    let activation = OpId::mint(&SystemEntropy);

    let intent = Intent::Retirement(RetirementIntent {
        lifecycle_uid: uid.clone(),
        principal: principal.clone(),
        from_generation: 1,
        frontier_streams: names.frontier_streams().to_vec(),
    });
    let open = AgentGate::born(&uid, &activation).reopen(&activation)?;
    let gate = open.freeze(GateOp::new(op.clone(), OpKind::Retirement))?.retire(&op)?;
    let head = LifecycleHead::activated(&principal, &uid, MANAGER)?;
    let head = written(head.begin_retirement(&uid, &op)?);
    let head = written(head.complete_retirement(&uid, &op)?);

    create(auth, &stage_key(&op), intent.to_bytes()).await?;
    create(auth, &gate_key(&uid), gate.to_bytes()).await?;
    create(records, &head_key(&principal), head.to_bytes()).await
}

fn written(step: HeadStep) -> LifecycleHead {
    match step {
        HeadStep::Write(head) | HeadStep::Done(head) => head,
    }
}

async fn create(bucket: &Bucket, key: &str, value: Vec<u8>) -> Result<()> {
    match bucket.create(key, value.into()).await {
        WriteOutcome::Written(_) => Ok(()),
        outcome => bail!("{key} was not written: {outcome:?}"),
    }
}
