//! One daemon a space: the lease row, its renewal and its loss (contract 01 §4.3, 08 §9).

use std::time::{Duration, Instant};

use cotal_broker::kv::{Bucket, LeaderRead, WriteOutcome};
use cotal_wire::{
    Revision,
    delivery_admin::{LEASE_KEY, LeaseRow},
};

use crate::inputs::StartRefusal;

/// Pause between two looks at another holder's lease.
const WAIT_STEP: Duration = Duration::from_millis(200);

/// A lease that this process holds.
pub(crate) struct Lease {
    bucket: Bucket,
    row: LeaseRow,
    revision: Revision,
    ttl: Duration,
    renewed: Instant,
    /// Whether a write of this process may have landed of which it does not know the revision. Only then can a row that
    /// says the same as its own be its own: another daemon of the same credential may have begun in the same
    /// millisecond.
    unsure: bool,
}

/// What the row says after a write whose outcome is not a success.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It is ours, at this revision: an earlier write landed after all.
    Held(Revision),
    /// It lapsed.
    Free,
    /// Another holder's, or nobody's that can be told.
    Taken(String),
}

impl Lease {
    /// Takes the lease, not ready yet. Another holder's is waited for as long as `wait`.
    pub(crate) async fn acquire(
        bucket: Bucket,
        holder: String,
        since: u64,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Self, StartRefusal> {
        let row = LeaseRow { holder, since, ready: false };
        let deadline = Instant::now() + wait;
        let (mut unsure, mut told) = (false, false);
        loop {
            let began = Instant::now();
            match bucket.create_over_marker(LEASE_KEY, row.to_bytes().into()).await {
                WriteOutcome::Written(revision) => {
                    return Ok(Self { bucket, row, revision, ttl, renewed: began, unsure: false });
                }
                WriteOutcome::Lost => {}
                WriteOutcome::Ambiguous(_) => unsure = true,
                WriteOutcome::Refused(why) => return Err(StartRefusal::Broker(why)),
            }
            match look(&bucket, &row, unsure).await {
                Ok(Found::Held(revision)) => {
                    // Whoever writes it again at this revision holds it, and the other one finds out.
                    let began = Instant::now();
                    let again = bucket.put_pinned(LEASE_KEY, row.to_bytes().into(), revision).await;
                    if let WriteOutcome::Written(revision) = again {
                        return Ok(Self { bucket, row, revision, ttl, renewed: began, unsure: false });
                    }
                }
                Ok(Found::Free) if Instant::now() < deadline + ttl => {}
                Ok(Found::Free) => {
                    return Err(StartRefusal::Broker("the delivery lease cannot be written".into()));
                }
                Ok(Found::Taken(holder)) if Instant::now() >= deadline => {
                    return Err(StartRefusal::LeaseHeld { holder });
                }
                Ok(Found::Taken(holder)) if !told => {
                    told = true;
                    tracing::warn!(
                        %holder,
                        "another delivery daemon holds the lease of this space: waiting {} s at most until it lapses, \
                         as that of one that was killed does",
                        wait.as_secs()
                    );
                }
                Ok(Found::Taken(_)) => {}
                Err(why) => return Err(StartRefusal::Broker(why)),
            }
            tokio::time::sleep(WAIT_STEP).await;
        }
    }

    /// Says that the rail is bound. When this returns, the row says so.
    pub(crate) async fn mark_ready(&mut self) -> Result<(), String> {
        self.row.ready = true;
        while !self.write().await? {
            tokio::time::sleep(WAIT_STEP).await;
        }
        Ok(())
    }

    /// Writes the row again. The error is the loss of the lease; what cannot be told is not a loss until the lease
    /// would have lapsed.
    pub(crate) async fn renew(&mut self) -> Result<(), String> {
        self.write().await.map(drop)
    }

    /// Whether the row was written; the error is the loss of the lease.
    async fn write(&mut self) -> Result<bool, String> {
        let began = Instant::now();
        let bytes = self.row.to_bytes();
        // A write that is dropped on its way may land.
        let mut unsure = std::mem::replace(&mut self.unsure, true);
        let mut outcome = self.bucket.put_pinned(LEASE_KEY, bytes.clone().into(), self.revision).await;
        if !matches!(outcome, WriteOutcome::Written(_)) {
            unsure |= matches!(outcome, WriteOutcome::Ambiguous(_));
            outcome = match look(&self.bucket, &self.row, unsure).await {
                Ok(Found::Held(revision)) => {
                    self.revision = revision;
                    self.bucket.put_pinned(LEASE_KEY, bytes.into(), revision).await
                }
                Ok(Found::Free) => self.bucket.create_over_marker(LEASE_KEY, bytes.into()).await,
                Ok(Found::Taken(holder)) => return Err(format!("the delivery lease was taken by {holder}")),
                Err(why) => WriteOutcome::Ambiguous(why),
            };
        }
        match outcome {
            WriteOutcome::Written(revision) => {
                self.revision = revision;
                self.renewed = began;
                self.unsure = false;
                Ok(true)
            }
            outcome @ (WriteOutcome::Lost | WriteOutcome::Ambiguous(_) | WriteOutcome::Refused(_)) => {
                self.unsure = unsure || matches!(outcome, WriteOutcome::Ambiguous(_));
                if self.renewed.elapsed() >= self.ttl {
                    return Err(format!(
                        "the delivery lease could not be renewed for {} s",
                        self.renewed.elapsed().as_secs()
                    ));
                }
                Ok(false)
            }
        }
    }

    /// When the lease lapses if nobody renews it.
    pub(crate) fn lapses(&self) -> Instant {
        self.renewed + self.ttl
    }

    /// Gives the lease up, if it is still this process's.
    pub(crate) async fn release(self) {
        let mut outcome = self.bucket.purge(LEASE_KEY, self.revision).await;
        // A renewal that was under way when the daemon was stopped may have landed.
        if let (WriteOutcome::Lost, Ok(Found::Held(revision))) =
            (&outcome, look(&self.bucket, &self.row, self.unsure).await)
        {
            outcome = self.bucket.purge(LEASE_KEY, revision).await;
        }
        if !matches!(outcome, WriteOutcome::Written(_)) {
            tracing::info!(?outcome, "the delivery lease was not released; it lapses by itself");
        }
    }
}

/// Whose the row is. One that says the same as ours is ours when a write of ours may have put it there.
async fn look(bucket: &Bucket, own: &LeaseRow, unsure: bool) -> Result<Found, String> {
    let read = bucket.leader_read(LEASE_KEY).await.map_err(|error| error.message)?;
    Ok(match read {
        LeaderRead::Absent | LeaderRead::Marker(_) => Found::Free,
        LeaderRead::Value(entry) => match LeaseRow::parse(&entry.value) {
            Ok(row) if unsure && row.holder == own.holder && row.since == own.since => {
                Found::Held(entry.revision)
            }
            Ok(row) => Found::Taken(row.holder),
            Err(_) => Found::Taken("a row that cannot be read".into()),
        },
    })
}
