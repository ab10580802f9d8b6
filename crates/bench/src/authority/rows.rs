//! Rows as managers write them, where there are too many for managers to have written them.

use anyhow::{Result, bail};
use cotal_broker::{
    Connection,
    kv::{Bucket, WriteOutcome},
};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    DerivedOwner, DigestRef, EndpointName, InstanceId, Names, Owner, Revision, Space,
    canonical::VOID_CLOSURE_DIGEST,
    rows::{ServiceSpec, ServiceStatus, StatusState},
};
use futures::{StreamExt, TryStreamExt, stream};

/// Rows that are written at once.
const AT_ONCE: usize = 64;

/// Writes `count` goals of an owner.
pub(super) async fn goals(connection: &Connection, space: &Space, owner: &Owner, count: usize) -> Result<()> {
    let records = Bucket::new(connection, &Names::new(&space.token()).records_bucket());
    stream::iter(0..count)
        .map(async |n| {
            let goal = format!("goal{n}");
            let row = format!(
                "{{\"v\":1,\"endpoint\":\"manager\",\"owner\":\"{owner}\",\"actor\":\"alice\",\"uid\":\"uid1\",\
                 \"goalId\":\"{goal}\",\"iid\":\"i\"}}"
            );
            let key = format!("goalidx.manager.{owner}.alice.uid1.{goal}");
            create(&records, &key, row.into_bytes()).await.map(drop)
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Registers one manager for each of these owners: its spec, its status, its open gate.
pub(super) async fn managers(connection: &Connection, space: &Space, owners: &[DerivedOwner]) -> Result<()> {
    let names = Names::new(&space.token());
    let records = Bucket::new(connection, &names.records_bucket());
    let auth = Bucket::new(connection, &names.auth_bucket());
    stream::iter(owners)
        .map(async |owner| {
            let instance = InstanceId::mint(&SystemEntropy);
            let digest = DigestRef::parse(VOID_CLOSURE_DIGEST)?;
            let spec = ServiceSpec::new(&EndpointName::parse("manager")?, &Owner::from(owner), vec![digest])?;
            let at = create(&records, &format!("svc.manager.{instance}.spec"), spec.to_bytes()).await?;
            let status = ServiceStatus::new(1, StatusState::ready(), at);
            create(&records, &format!("svc.manager.{instance}.status"), status.to_bytes()).await?;
            let gate = format!(
                "{{\"state\":\"open\",\"generation\":1,\"processEpoch\":1,\"registrationRevision\":{},\
                 \"nameAuthorityRevision\":0,\"principal\":\"{owner}.manager_serve_{instance}\"}}",
                at.0
            );
            create(&auth, &format!("epgate.manager.{instance}"), gate.into_bytes()).await.map(drop)
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn create(bucket: &Bucket, key: &str, value: Vec<u8>) -> Result<Revision> {
    match bucket.create(key, value.into()).await {
        WriteOutcome::Written(revision) => Ok(revision),
        outcome => bail!("{key} was not written: {outcome:?}"),
    }
}
