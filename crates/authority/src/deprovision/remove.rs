//! The removals, each counted as what was observed (contract 07 §13 "Order and accounting").

use cotal_broker::{
    Connection,
    durable::{self, Removal as Answer},
    kv::{Bucket, LeaderRead, WriteOutcome},
};
use cotal_wire::{
    Channel, EpError, Names, Revision, SpaceToken,
    names::{dlv_consumer, dm_consumer, lifecycle_subject_key, member_key},
};

use super::{ConsumerCounts, DeprovisionError, Deprovisioned, Footprint, RowCounts};
use crate::store::{Store, ambiguous, unsent};

/// A footprint's removal under way.
pub(super) struct Removal<'a> {
    names: Names,
    footprint: &'a Footprint,
    account: Deprovisioned,
    /// The ACL is known to let nobody in.
    acl_safe: bool,
    /// The first failure.
    cause: Option<EpError>,
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowOutcome {
    Deleted,
    Absent,
    Disappeared,
}

/// What a first look found, where there is something to purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    was_live: bool,
    revision: Revision,
}

/// Removes a footprint over a connection that somebody else opened, whose grant names all of it; it stays open.
pub async fn deprovision_over(
    connection: &Connection,
    space: &SpaceToken,
    footprint: &Footprint,
) -> Result<Deprovisioned, DeprovisionError> {
    let mut removal = Removal::of(space, footprint);
    removal.acl_and_durables(connection).await;
    removal.members(connection, footprint.member_channels()).await;
    removal.into_account()
}

impl<'a> Removal<'a> {
    pub(super) fn of(space: &SpaceToken, footprint: &'a Footprint) -> Self {
        let (names, account) = (Names::new(space), Deprovisioned::default());
        Self { names, footprint, account, acl_safe: false, cause: None }
    }

    /// Step 1, the read ACL, and step 2, the two durables.
    pub(super) async fn acl_and_durables(&mut self, connection: &Connection) {
        let (principal, uid) = (self.footprint.principal(), self.footprint.uid());
        self.account.acls.examined += 1;
        let acl = Bucket::new(connection, &self.names.acl_bucket());
        let purged = match opened(acl).await {
            Ok(acl) => purge(&acl, &lifecycle_subject_key(principal, uid)).await,
            Err(refusal) => Err(refusal),
        };
        self.acl_safe = purged.is_ok();
        let failed = count_row(&mut self.account.acls, purged);
        self.note(failed);

        for (stream, name) in [
            (self.names.dm_stream(), dm_consumer(principal, uid)),
            (self.names.dlv_stream(), dlv_consumer(principal, uid)),
        ] {
            self.account.consumers.examined += 1;
            let removed = if self.acl_safe {
                remove_durable(connection, &stream, &name, &mut self.account.consumers).await
            } else {
                Err(untouched())
            };
            if removed.is_err() {
                self.account.consumers.refused += 1;
            }
            self.note(removed.err());
        }
    }

    /// Step 3, membership rows.
    pub(super) async fn members(&mut self, connection: &Connection, channels: &[Channel]) {
        if channels.is_empty() {
            return;
        }
        if !self.acl_safe {
            return self.refuse_members(channels, untouched());
        }
        let members = match opened(Bucket::new(connection, &self.names.members_bucket())).await {
            Ok(members) => members,
            Err(refusal) => return self.refuse_members(channels, refusal),
        };
        for channel in channels {
            self.account.members.examined += 1;
            let key = member_key(channel, self.footprint.principal(), self.footprint.uid());
            let purged = purge(&members, &key).await;
            let failed = count_row(&mut self.account.members, purged);
            self.note(failed);
        }
    }

    /// None of these is known to be gone.
    pub(super) fn refuse_members(&mut self, channels: &[Channel], refusal: EpError) {
        self.account.members.examined += channels.len() as u64;
        self.account.members.refused += channels.len() as u64;
        self.note(Some(refusal));
    }

    pub(super) fn into_account(self) -> Result<Deprovisioned, DeprovisionError> {
        match self.cause {
            None => Ok(self.account),
            Some(cause) => Err(DeprovisionError { account: Box::new(self.account), cause }),
        }
    }

    fn note(&mut self, failure: Option<EpError>) {
        if self.cause.is_none() {
            self.cause = failure;
        }
    }
}

fn untouched() -> EpError {
    EpError::failed_precondition(
        "deprovision: the read ACL may still stand, so nothing behind it was touched",
    )
}

fn count_row(counts: &mut RowCounts, outcome: Result<RowOutcome, EpError>) -> Option<EpError> {
    let (count, failure) = match outcome {
        Ok(RowOutcome::Deleted) => (&mut counts.deleted, None),
        Ok(RowOutcome::Absent) => (&mut counts.absent, None),
        Ok(RowOutcome::Disappeared) => (&mut counts.disappeared, None),
        Err(refusal) => (&mut counts.refused, Some(refusal)),
    };
    *count += 1;
    failure
}

/// A bucket whose stream is there.
async fn opened(bucket: Bucket) -> Result<Store, EpError> {
    bucket.tail().await?;
    Ok(Store::new(bucket))
}

/// Purges a row, pinned to what was read.
async fn purge(store: &Store, key: &str) -> Result<RowOutcome, EpError> {
    let Some(look) = first_look(store.bucket().direct_read(key).await?) else {
        return Ok(RowOutcome::Absent);
    };
    match store.purge(key, look.revision).await {
        WriteOutcome::Written(_) if look.was_live => Ok(RowOutcome::Deleted),
        WriteOutcome::Written(_) => Ok(RowOutcome::Absent),
        WriteOutcome::Lost => after_loss(look, &store.bucket().direct_read(key).await?),
        WriteOutcome::Ambiguous(why) => Err(ambiguous("deprovision", &why)),
        WriteOutcome::Refused(why) => Err(unsent("deprovision", &why)),
    }
}

fn first_look(read: LeaderRead) -> Option<Look> {
    match read {
        LeaderRead::Absent => None,
        LeaderRead::Marker(revision) => Some(Look { was_live: false, revision }),
        LeaderRead::Value(entry) => Some(Look { was_live: true, revision: entry.revision }),
    }
}

/// What a purge that lost its condition came to.
fn after_loss(before: Look, now: &LeaderRead) -> Result<RowOutcome, EpError> {
    match now {
        LeaderRead::Value(_) => {
            Err(EpError::conflict("deprovision: a row was written anew while it was removed; run it again"))
        }
        LeaderRead::Absent | LeaderRead::Marker(_) if before.was_live => Ok(RowOutcome::Disappeared),
        LeaderRead::Absent | LeaderRead::Marker(_) => Ok(RowOutcome::Absent),
    }
}

/// Removes a durable and looks again: the broker's answer says that a removal was taken, the look that it is gone.
async fn remove_durable(
    connection: &Connection,
    stream: &str,
    name: &str,
    counts: &mut ConsumerCounts,
) -> Result<(), EpError> {
    if !durable::exists(connection, stream, name).await? {
        counts.absent += 1;
        return Ok(());
    }
    if durable::remove(connection, stream, name).await? == Answer::Acknowledged {
        counts.acknowledged += 1;
        crate::landed(name);
    }
    if durable::exists(connection, stream, name).await? {
        return Err(EpError::conflict(format!("{stream}: consumer {name} still stands after its removal")));
    }
    counts.disappeared += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cotal_broker::kv::Entry;
    use cotal_wire::{EpCode, UnixMillis};

    use super::*;

    fn value() -> LeaderRead {
        LeaderRead::Value(Entry { value: Bytes::new(), revision: Revision(7), stored_at: UnixMillis(1) })
    }

    #[test]
    fn what_stood_is_told_from_a_marker_and_from_nothing() {
        assert_eq!(first_look(LeaderRead::Absent), None);
        let marker = first_look(LeaderRead::Marker(Revision(3)));
        assert_eq!(marker, Some(Look { was_live: false, revision: Revision(3) }));
        assert_eq!(first_look(value()), Some(Look { was_live: true, revision: Revision(7) }));
    }

    #[test]
    fn a_lost_purge_is_never_counted_as_a_deletion() {
        for was_live in [true, false] {
            let before = Look { was_live, revision: Revision(7) };
            for gone in [LeaderRead::Absent, LeaderRead::Marker(Revision(9))] {
                let want = if was_live { RowOutcome::Disappeared } else { RowOutcome::Absent };
                assert_eq!(after_loss(before, &gone), Ok(want));
            }
            assert_eq!(after_loss(before, &value()).unwrap_err().code, EpCode::Conflict);
        }
    }

    #[test]
    fn each_outcome_is_counted_once() {
        let mut counts = RowCounts::default();
        for outcome in [Ok(RowOutcome::Deleted), Ok(RowOutcome::Absent), Ok(RowOutcome::Disappeared)] {
            assert_eq!(count_row(&mut counts, outcome), None);
        }
        assert!(count_row(&mut counts, Err(EpError::internal("x"))).is_some());
        assert_eq!(counts, RowCounts { examined: 0, deleted: 1, absent: 1, refused: 1, disappeared: 1 });
    }
}
