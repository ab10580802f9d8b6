//! The fence before a deprovisioning: the lifecycle reads nothing any more (contract 07 §13, 08 §8.6).

use cotal_broker::{
    Connection, Connector,
    kv::{Bucket, LeaderRead, WriteOutcome},
};
use cotal_wire::{
    Clock, EpError, LifecycleUid, Names, Principal, Space, grants::issued::Ended,
    names::lifecycle_subject_key, rows::ReadAcl,
};

use super::{drained, open};
use crate::store::{Store, ambiguous, unsent};

/// How often the row is read and written against writers that keep winning (contract 01 §4.3).
const ATTEMPTS: usize = 5;

/// What the fence found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclFence {
    /// The row was narrowed to no reads.
    Narrowed,
    /// It let nothing be read before.
    Stood,
    /// There is no row, which lets nothing be read either.
    Absent,
}

/// Narrows a lifecycle's read-ACL row to no reads, over a deprovisioner connection of its own that names no member
/// channel. A durable join that the inventory does not see then removes its own row, so this comes before the inventory
/// is read.
///
/// A row that kept moving is `conflict`; an ambiguous write is `unavailable`.
pub async fn fence_lifecycle_acl(
    connector: &Connector,
    clock: &dyn Clock,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<AclFence, EpError> {
    let ended = Ended { principal: principal.clone(), uid: uid.clone() };
    let connection = open(connector, &ended, &[]).await?;
    let fenced = narrow(&connection, connector.space(), clock, &ended).await;
    drained(&connection).await;
    fenced
}

async fn narrow(
    connection: &Connection,
    space: &Space,
    clock: &dyn Clock,
    ended: &Ended,
) -> Result<AclFence, EpError> {
    let bucket = Names::new(&space.token()).acl_bucket();
    let store = Store::new(Bucket::new(connection, &bucket));
    let key = lifecycle_subject_key(&ended.principal, &ended.uid);
    for _ in 0..ATTEMPTS {
        let LeaderRead::Value(entry) = store.bucket().direct_read(&key).await? else {
            return Ok(AclFence::Absent);
        };
        let row = ReadAcl::parse(&entry.value);
        if row.as_ref().is_some_and(ReadAcl::reads_nothing) {
            return Ok(AclFence::Stood);
        }
        let fenced = ReadAcl::fenced(row.as_ref(), clock.now_millis()).to_bytes();
        match store.update(&key, fenced, entry.revision).await {
            WriteOutcome::Written(_) => return Ok(AclFence::Narrowed),
            WriteOutcome::Lost => {}
            WriteOutcome::Ambiguous(why) => return Err(ambiguous("read ACL", &why)),
            WriteOutcome::Refused(why) => return Err(unsent("read ACL", &why)),
        }
    }
    Err(EpError::conflict("read ACL: another writer kept moving the row; run it again"))
}
