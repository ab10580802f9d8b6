//! Rows as managers write them, where there are too many for managers to have written them.

use anyhow::{Result, bail};
use cotal_broker::{
    Connection,
    kv::{Bucket, WriteOutcome},
};
use cotal_testkit::rows::{Rows, ServingManager};
use cotal_wire::{DerivedOwner, Names, Owner, Space};
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
            create(&records, &key, row.into_bytes()).await
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Registers one manager for each of these owners: its spec, its status, its open gate.
pub(super) async fn managers(connection: &Connection, space: &Space, owners: &[DerivedOwner]) -> Result<()> {
    let rows = Rows::over(connection, space);
    stream::iter(owners)
        .map(async |owner| ServingManager::register(&rows, owner, 1).await.map(drop))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn create(bucket: &Bucket, key: &str, value: Vec<u8>) -> Result<()> {
    match bucket.create(key, value.into()).await {
        WriteOutcome::Written(_) => Ok(()),
        outcome => bail!("{key} was not written: {outcome:?}"),
    }
}
