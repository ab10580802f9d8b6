//! The first message of a key: what an append-only store holds a row to (contract 03 §H.3).

use bytes::Bytes;
use cotal_wire::EpError;

use super::{Bucket, Entry, LeaderRead, check_key};

impl Bucket {
    /// The FIRST message of a key, by the leader: what was created, whatever was appended since. A marker is
    /// `failed-precondition`, a failed read `unavailable`.
    pub async fn first_authority(&self, key: &str) -> Result<Option<Entry>, EpError> {
        check_key(key).map_err(|why| EpError::bad_request(format!("{}: {why}", self.name())))?;
        // The grammar of keys and buckets needs no JSON escapes.
        let request = ["{\"next_by_subj\":\"$KV.", self.name(), ".", key, "\"}"].concat();
        let unreadable = |why: String| {
            EpError::unavailable(format!("{}: the first of {key} cannot be read: {why}", self.name()))
        };
        let answer = self
            .connection
            .request_raw(self.names.get.clone(), None, Bytes::from(request), self.timeout)
            .await
            .map_err(|failure| unreadable(failure.to_string()))?;
        let read = self.names.parse_read(key, &answer.payload).map_err(unreadable)?;
        self.no_marker(key, read)
    }

    /// A marker where none may ever stand is `failed-precondition`.
    pub(super) fn no_marker(&self, key: &str, read: LeaderRead) -> Result<Option<Entry>, EpError> {
        match read {
            LeaderRead::Absent => Ok(None),
            LeaderRead::Value(entry) => Ok(Some(entry)),
            LeaderRead::Marker(revision) => Err(EpError::failed_precondition(format!(
                "{}: {key} holds a deletion marker at revision {}; authority rows are never deleted, restore it \
                 from a backup",
                self.name(),
                revision.0
            ))),
        }
    }
}
