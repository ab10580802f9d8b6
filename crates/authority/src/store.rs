//! The one way that this room writes: through it every durable write is conditional, and a test can stop the world
//! after any of them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use cotal_broker::kv::{Bucket, Entry, WriteOutcome};
use cotal_wire::{EpError, Revision};

/// How long the store keeps a purge marker, in seconds: the bucket's own marker TTL (contract 07 §12.4).
pub(crate) const MARKER_TTL_SECS: u64 = 3_600;

/// A bucket of the authority.
pub(crate) struct Store {
    bucket: Bucket,
    requests: Arc<AtomicU64>,
    watch: Watch,
}

/// Says that a durable write landed which went to no store: a file, or a consumer. The failpoints count it; without them
/// this is nothing.
#[inline]
pub fn landed(what: &str) {
    #[cfg(any(test, feature = "failpoints"))]
    crate::failpoint::landed(what);
    #[cfg(not(any(test, feature = "failpoints")))]
    let _ = what;
}

/// Told of every durable write that landed; a test can stop the world there. Clones share what watches.
#[derive(Clone, Default)]
pub(crate) struct Watch {
    #[cfg(any(test, feature = "failpoints"))]
    failpoint: Arc<std::sync::OnceLock<Arc<crate::failpoint::Failpoint>>>,
}

impl Watch {
    #[cfg(any(test, feature = "failpoints"))]
    pub(crate) fn set_failpoint(&self, failpoint: Arc<crate::failpoint::Failpoint>) {
        assert!(self.failpoint.set(failpoint).is_ok(), "a store takes one failpoint");
    }

    /// What came of a write to this key or subject.
    #[cfg(any(test, feature = "failpoints"))]
    pub(crate) async fn written(&self, key: &str, outcome: WriteOutcome) -> WriteOutcome {
        if matches!(outcome, WriteOutcome::Written(_)) {
            crate::failpoint::landed(key);
        }
        match self.failpoint.get() {
            Some(failpoint) => failpoint.after(key, outcome).await,
            None => outcome,
        }
    }

    /// What came of a write to this key or subject.
    #[cfg(not(any(test, feature = "failpoints")))]
    #[allow(clippy::unused_async, clippy::unused_self, reason = "the seam of the failpoints feature")]
    pub(crate) async fn written(&self, _key: &str, outcome: WriteOutcome) -> WriteOutcome {
        outcome
    }
}

impl Store {
    pub(crate) fn new(bucket: Bucket) -> Self {
        Self::watched(bucket, &Watch::default())
    }

    /// A bucket whose writes `watch` is told of.
    pub(crate) fn watched(bucket: Bucket, watch: &Watch) -> Self {
        Self { bucket, requests: Arc::default(), watch: watch.clone() }
    }

    /// Another bucket, counted and watched together with this one.
    pub(crate) fn beside(&self, bucket: Bucket) -> Self {
        Self { bucket, requests: self.requests.clone(), watch: self.watch.clone() }
    }

    /// Durable round trips so far: reads, conditional writes, and what [`Self::count_request`] was told of.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Counts a round trip that does not go through this store.
    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// A leader read; a marker is corruption (`failed-precondition`).
    pub(crate) async fn read(&self, key: &str) -> Result<Option<Entry>, EpError> {
        self.count_request();
        self.bucket.read_authority(key).await
    }

    /// Create-only against the key's whole history: a marker loses.
    pub(crate) async fn create(&self, key: &str, value: Vec<u8>) -> WriteOutcome {
        self.count_request();
        let outcome = self.bucket.create(key, value.into()).await;
        self.watch.written(key, outcome).await
    }

    /// The KV client's create, which the contract names for ledger rows (contract 07 §12.3).
    pub(crate) async fn create_over_marker(&self, key: &str, value: Vec<u8>) -> WriteOutcome {
        self.count_request();
        let outcome = self.bucket.create_over_marker(key, value.into()).await;
        self.watch.written(key, outcome).await
    }

    /// An update pinned to the revision that was read.
    pub(crate) async fn update(&self, key: &str, value: impl Into<Bytes>, read_at: Revision) -> WriteOutcome {
        self.count_request();
        let outcome = self.bucket.put_pinned(key, value.into(), read_at).await;
        self.watch.written(key, outcome).await
    }

    /// A deletion pinned to the revision that was read: leaves a marker.
    pub(crate) async fn delete(&self, key: &str, read_at: Revision) -> WriteOutcome {
        self.count_request();
        let outcome = self.bucket.delete_pinned(key, read_at).await;
        self.watch.written(key, outcome).await
    }

    /// A durable write that went to neither store, such as an artifact: seen by the same failpoints.
    pub(crate) async fn noted(&self, subject: &str, outcome: WriteOutcome) -> WriteOutcome {
        self.watch.written(subject, outcome).await
    }

    /// A purge pinned to the revision that was read; its marker stays.
    pub(crate) async fn purge(&self, key: &str, read_at: Revision) -> WriteOutcome {
        self.count_request();
        let outcome = self.bucket.purge(key, read_at).await;
        self.watch.written(key, outcome).await
    }

    #[cfg(any(test, feature = "failpoints"))]
    pub(crate) fn set_failpoint(&self, failpoint: Arc<crate::failpoint::Failpoint>) {
        self.watch.set_failpoint(failpoint);
    }
}

/// A row that cannot be read must be mended by hand, so its refusal names it. A key is an identifier, no secret; one
/// that another writer made up is printed escaped.
pub(crate) fn at_key<T>(key: &str, parsed: Result<T, EpError>) -> Result<T, EpError> {
    parsed.map_err(|refusal| EpError {
        message: format!("{}: {}", key.escape_default(), refusal.message),
        ..refusal
    })
}

/// A write that must not lose: a lost race is `conflict`, an ambiguous one `unavailable`, one that cannot be
/// sent `bad-request`.
pub(crate) fn must_land(outcome: WriteOutcome, what: &str) -> Result<Revision, EpError> {
    match outcome {
        WriteOutcome::Written(revision) => Ok(revision),
        WriteOutcome::Lost => {
            Err(EpError::conflict(format!("{what}: another writer moved it first; read it again")))
        }
        WriteOutcome::Ambiguous(why) => Err(ambiguous(what, &why)),
        WriteOutcome::Refused(why) => Err(unsent(what, &why)),
    }
}

/// The refusal of a write that was never sent.
pub(crate) fn unsent(what: &str, why: &str) -> EpError {
    EpError::bad_request(format!("{what}: nothing was written: {why}"))
}

/// The refusal of a write of which nobody can say whether it landed.
pub(crate) fn ambiguous(what: &str, why: &str) -> EpError {
    EpError::unavailable(format!("{what}: the write may or may not have landed ({why}); retry"))
}
