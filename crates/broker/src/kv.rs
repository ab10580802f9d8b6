//! Leader reads and conditional writes on one bucket (contract 07 conventions, §12.3).
use bytes::Bytes;
use cotal_wire::{EpError, Revision, UnixMillis};
use crate::connection::Connection;

/// A bucket over one connection.
#[derive(Clone)]
pub struct Bucket { _private: () }

/// What a leader read found. Absence, a deletion marker and a value are three different results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaderRead {
    /// No message ever, API error 10037.
    Absent,
    /// A DEL or PURGE marker.
    Marker(Revision),
    /// A value.
    Value(Entry),
}

/// A stored value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The bytes.
    pub value: Bytes,
    /// The key's revision.
    pub revision: Revision,
    /// When the leader stored it.
    pub stored_at: UnixMillis,
}

/// What a conditional write came to. A lost race and an ambiguous write are different results.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum WriteOutcome {
    /// Stored at this revision.
    Written(Revision),
    /// The condition did not hold (10071, 10164): nothing was written.
    Lost,
    /// The answer did not come, or was an error that is not a lost race: it may have been written.
    Ambiguous(String),
}

impl Bucket {
    /// The bucket `bucket` over this connection.
    pub fn new(_connection: &Connection, _bucket: &str) -> Self { todo!() }
    /// The bucket's name.
    pub fn name(&self) -> &str { todo!() }
    /// `STREAM.MSG.GET` last-by-subject, never Direct Get. A failed read is `unavailable`.
    pub async fn leader_read(&self, _key: &str) -> Result<LeaderRead, EpError> { todo!() }
    /// As [`Self::leader_read`], but a marker on an authority key is `failed-precondition`.
    pub async fn read_authority(&self, _key: &str) -> Result<Option<Entry>, EpError> { todo!() }
    /// Create-only against the key's whole history (expected sequence 0): a marker loses.
    pub async fn create(&self, _key: &str, _value: Bytes) -> WriteOutcome { todo!() }
    /// The KV client's create: on a loss, writes over a DEL/PURGE marker pinned to it (contract 07 §12.3).
    pub async fn create_over_marker(&self, _key: &str, _value: Bytes) -> WriteOutcome { todo!() }
    /// Revision-pinned update.
    pub async fn put_pinned(&self, _key: &str, _value: Bytes, _expected: Revision) -> WriteOutcome { todo!() }
    /// Revision-pinned purge with a marker TTL in seconds.
    pub async fn purge_pinned(&self, _key: &str, _expected: Revision, _marker_ttl_secs: u64) -> WriteOutcome { todo!() }
    /// Keys under a subject filter below the bucket (`natkey.>`), by STREAM.INFO pages; no consumer. Markers included.
    pub async fn keys(&self, _filter: &str) -> Result<Vec<String>, EpError> { todo!() }
}
