//! Leader reads and conditional writes on one bucket (contract 07 conventions, §12.3).

use std::{borrow::Cow, collections::BTreeSet, fmt::Write as _, sync::Arc, time::Duration};

use async_nats::{HeaderMap, HeaderValue, Subject};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use cotal_wire::{EpError, Revision, UnixMillis};
use serde::Deserialize;

use crate::{
    api::{
        self, ApiError, NO_MESSAGE_FOUND, REQUEST_TIMEOUT, WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_CONSTANT,
    },
    connection::Connection,
};

const EXPECTED_LAST_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
const ROLLUP: &str = "Nats-Rollup";
const ROLLUP_SUBJECT: &str = "sub";
const MESSAGE_TTL: &str = "Nats-TTL";
/// Present on a DEL or PURGE marker, and on nothing else.
const KV_OPERATION: &str = "KV-Operation";
const KV_PURGE: &str = "PURGE";
/// What the broker itself leaves in place of an expired or removed message.
const MARKER_REASON: &str = "Nats-Marker-Reason";

/// A bucket over one connection.
#[derive(Clone)]
pub struct Bucket {
    connection: Connection,
    names: Arc<Names>,
    timeout: Duration,
}

struct Names {
    bucket: String,
    stream: String,
    /// `$JS.API.STREAM.MSG.GET.KV_<bucket>`.
    get: Subject,
}

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

/// A `STREAM.MSG.GET` answer.
#[derive(Deserialize)]
struct GetAnswer<'a> {
    #[serde(borrow)]
    message: Option<StoredMessage<'a>>,
    #[serde(borrow)]
    error: Option<ApiError<'a>>,
}

#[derive(Deserialize)]
struct StoredMessage<'a> {
    #[serde(borrow)]
    subject: Cow<'a, str>,
    seq: u64,
    #[serde(default, borrow)]
    hdrs: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    data: Option<Cow<'a, str>>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

/// A publish acknowledgement.
#[derive(Deserialize)]
struct PubAck<'a> {
    #[serde(default, borrow)]
    stream: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(borrow)]
    error: Option<ApiError<'a>>,
}

// === impl Bucket ===

impl Bucket {
    /// The bucket `bucket` over this connection.
    pub fn new(connection: &Connection, bucket: &str) -> Self {
        let names = Names {
            bucket: bucket.to_owned(),
            stream: format!("KV_{bucket}"),
            get: format!("$JS.API.STREAM.MSG.GET.KV_{bucket}").into(),
        };
        Self { connection: connection.clone(), names: Arc::new(names), timeout: REQUEST_TIMEOUT }
    }

    /// The same bucket with another limit on each request; 5 s unless said.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The bucket's name.
    pub fn name(&self) -> &str {
        &self.names.bucket
    }

    /// `STREAM.MSG.GET` last-by-subject, never Direct Get. A failed read is `unavailable`; a key outside the KV
    /// grammar is `bad-request`.
    pub async fn leader_read(&self, key: &str) -> Result<LeaderRead, EpError> {
        check_key(key).map_err(|why| EpError::bad_request(format!("{}: {why}", self.name())))?;
        // The grammar of keys and buckets needs no JSON escapes.
        let request = ["{\"last_by_subj\":\"$KV.", self.name(), ".", key, "\"}"].concat();
        let answer = self
            .connection
            .request_raw(self.names.get.clone(), None, Bytes::from(request), self.timeout)
            .await
            .map_err(|failure| self.unreadable(key, &failure.to_string()))?;
        self.parse_read(key, &answer.payload)
    }

    fn parse_read(&self, key: &str, answer: &[u8]) -> Result<LeaderRead, EpError> {
        let answer: GetAnswer<'_> =
            serde_json::from_slice(answer).map_err(|_| self.unreadable(key, "the answer is garbled"))?;
        let message = match (answer.message, answer.error) {
            (Some(message), None) => message,
            (_, Some(error)) if error.err_code == NO_MESSAGE_FOUND => return Ok(LeaderRead::Absent),
            (_, Some(error)) => return Err(self.unreadable(key, &error.to_string())),
            (None, None) => return Err(self.unreadable(key, "the answer is empty")),
        };
        if !self.is_subject_of(&message.subject, key) || message.seq == 0 {
            return Err(self.unreadable(key, "the answer is of another key"));
        }
        let revision = Revision(message.seq);
        if let Some(headers) = &message.hdrs {
            let headers = STANDARD
                .decode(headers.as_bytes())
                .map_err(|_| self.unreadable(key, "the answer's headers are garbled"))?;
            if is_marker(&headers) {
                return Ok(LeaderRead::Marker(revision));
            }
        }
        let value = match &message.data {
            Some(data) => STANDARD
                .decode(data.as_bytes())
                .map_err(|_| self.unreadable(key, "the answer's value is garbled"))?,
            None => Vec::new(),
        };
        let stored_at =
            parse_time(&message.time).ok_or_else(|| self.unreadable(key, "the answer's time is garbled"))?;
        Ok(LeaderRead::Value(Entry { value: value.into(), revision, stored_at }))
    }

    fn is_subject_of(&self, subject: &str, key: &str) -> bool {
        subject
            .strip_prefix("$KV.")
            .and_then(|rest| rest.strip_prefix(self.name()))
            .and_then(|rest| rest.strip_prefix('.'))
            == Some(key)
    }

    fn unreadable(&self, key: &str, why: &str) -> EpError {
        EpError::unavailable(format!("{}: {key} cannot be read: {why}", self.name()))
    }

    /// As [`Self::leader_read`], but a marker on an authority key is `failed-precondition`.
    pub async fn read_authority(&self, key: &str) -> Result<Option<Entry>, EpError> {
        match self.leader_read(key).await? {
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

    /// Create-only against the key's whole history (expected sequence 0): a marker loses.
    pub async fn create(&self, key: &str, value: Bytes) -> WriteOutcome {
        self.put_pinned(key, value, Revision(0)).await
    }

    /// The KV client's create: on a loss, writes over a DEL/PURGE marker pinned to it (contract 07 §12.3).
    pub async fn create_over_marker(&self, key: &str, value: Bytes) -> WriteOutcome {
        match self.create(key, value.clone()).await {
            WriteOutcome::Lost => {}
            outcome => return outcome,
        }
        match self.leader_read(key).await {
            Ok(LeaderRead::Marker(revision)) => self.put_pinned(key, value, revision).await,
            // A marker that expired between the two is a race like any other.
            Ok(LeaderRead::Value(_) | LeaderRead::Absent) => WriteOutcome::Lost,
            Err(error) => WriteOutcome::Ambiguous(error.message),
        }
    }

    /// Revision-pinned update.
    pub async fn put_pinned(&self, key: &str, value: Bytes, expected: Revision) -> WriteOutcome {
        self.write(key, expected, HeaderMap::new(), value).await
    }

    /// Revision-pinned purge with a marker TTL in seconds.
    pub async fn purge_pinned(&self, key: &str, expected: Revision, marker_ttl_secs: u64) -> WriteOutcome {
        let mut headers = HeaderMap::new();
        headers.insert(KV_OPERATION, KV_PURGE);
        headers.insert(ROLLUP, ROLLUP_SUBJECT);
        headers.insert(MESSAGE_TTL, format!("{marker_ttl_secs}s"));
        self.write(key, expected, headers, Bytes::new()).await
    }

    /// One conditional write, sent once and never again: a second send could meet its own success as a loss.
    async fn write(
        &self,
        key: &str,
        expected: Revision,
        mut headers: HeaderMap,
        value: Bytes,
    ) -> WriteOutcome {
        if let Err(why) = check_key(key) {
            return WriteOutcome::Ambiguous(format!("{}: {why}", self.name()));
        }
        let subject = ["$KV.", self.name(), ".", key].concat();
        headers.insert(EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(expected.0));
        match self.connection.request_raw(subject.into(), Some(headers), value, self.timeout).await {
            Ok(answer) => self.parse_ack(key, &answer.payload),
            Err(failure) => self.ambiguous(key, &failure.to_string()),
        }
    }

    fn parse_ack(&self, key: &str, answer: &[u8]) -> WriteOutcome {
        match serde_json::from_slice::<PubAck<'_>>(answer) {
            Ok(PubAck { error: Some(error), .. }) => match error.err_code {
                WRONG_LAST_SEQUENCE | WRONG_LAST_SEQUENCE_CONSTANT => WriteOutcome::Lost,
                _ => self.ambiguous(key, &error.to_string()),
            },
            Ok(PubAck { stream, seq, error: None }) if stream == self.names.stream && seq > 0 => {
                WriteOutcome::Written(Revision(seq))
            }
            Ok(_) | Err(_) => self.ambiguous(key, "the answer is no acknowledgement of this store"),
        }
    }

    fn ambiguous(&self, key: &str, why: &str) -> WriteOutcome {
        WriteOutcome::Ambiguous(format!("{}: {key} may or may not have been written: {why}", self.name()))
    }

    /// Keys under a subject filter below the bucket (`natkey.>`), by STREAM.INFO pages; no consumer. Markers
    /// included. Sorted.
    pub async fn keys(&self, filter: &str) -> Result<Vec<String>, EpError> {
        let prefix = ["$KV.", self.name(), "."].concat();
        let subjects_filter = [&prefix, filter].concat();
        let verb = ["STREAM.INFO.", &self.names.stream].concat();
        let unlisted = |why: &str| {
            EpError::unavailable(format!("{}: keys under {filter} cannot be listed: {why}", self.name()))
        };
        let mut keys = BTreeSet::new();
        let mut offset = 0;
        loop {
            let body = serde_json::json!({ "subjects_filter": subjects_filter, "offset": offset });
            let mut answer = api::ask(&self.connection, &verb, &body)
                .await
                .map_err(|failure| unlisted(&failure.to_string()))?;
            let total = answer.get("total").and_then(serde_json::Value::as_u64).unwrap_or_default();
            let subjects = match answer.get_mut("state").and_then(|state| state.get_mut("subjects")) {
                Some(serde_json::Value::Object(subjects)) => std::mem::take(subjects),
                _ => serde_json::Map::new(),
            };
            let page = subjects.len() as u64;
            for subject in subjects.keys() {
                let key =
                    subject.strip_prefix(&prefix).ok_or_else(|| unlisted("a subject of another bucket"))?;
                keys.insert(key.to_owned());
            }
            offset += page;
            if offset >= total {
                return Ok(keys.into_iter().collect());
            }
            if page == 0 {
                return Err(unlisted("the broker's pages end before its total"));
            }
        }
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({} over {})", self.name(), self.connection.label())
    }
}

// === what a message says ===

/// The grammar of KV keys: no wildcard, no empty token, nothing that a subject or JSON would have to escape.
fn check_key(key: &str) -> Result<(), String> {
    let ok = !key.is_empty()
        && key.split('.').all(|token| {
            !token.is_empty()
                && token.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'/' | b'='))
        });
    if ok {
        return Ok(());
    }
    let mut shown = String::new();
    for c in key.chars().take(64) {
        let _ = write!(shown, "{}", c.escape_default());
    }
    Err(format!("\"{shown}\" is not a key: dot-separated tokens of A-Z a-z 0-9 - _ / ="))
}

/// Whether a header block (`NATS/1.0`, then `Name: value` lines) marks a deletion.
fn is_marker(headers: &[u8]) -> bool {
    headers.split(|&b| b == b'\n').any(|line| {
        line.iter().position(|&b| b == b':').is_some_and(|colon| {
            let name = &line[..colon];
            name == KV_OPERATION.as_bytes() || name == MARKER_REASON.as_bytes()
        })
    })
}

fn parse_time(text: &str) -> Option<UnixMillis> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(UnixMillis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_one_row_and_nothing_else() {
        for ok in ["plane", "gate.abc", "=defaults", "team.a/u_x.bob.uid", "a-b_c"] {
            assert!(check_key(ok).is_ok(), "{ok:?}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a.*", "a.>", ">", "a b", "a\"", "a\r\nPUB x", "é", "a\\"] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_marker_is_told_by_its_header_name_alone_and_exactly() {
        for marker in
            ["KV-Operation: DEL", "KV-Operation: PURGE", "KV-Operation:", "Nats-Marker-Reason: MaxAge"]
        {
            assert!(is_marker(format!("NATS/1.0\r\n{marker}\r\n\r\n").as_bytes()), "{marker}");
        }
        for value in ["Nats-Msg-Id: KV-Operation: DEL", "kv-operation: DEL", "X-KV-Operation: DEL"] {
            assert!(!is_marker(format!("NATS/1.0\r\n{value}\r\n\r\n").as_bytes()), "{value}");
        }
    }

    #[test]
    fn a_stored_time_is_read_to_the_millisecond() {
        assert_eq!(parse_time("2026-01-02T03:04:05.678901234Z"), Some(UnixMillis(1_767_323_045_678)));
        assert_eq!(parse_time("1960-01-01T00:00:00Z"), None);
        assert_eq!(parse_time("yesterday"), None);
    }
}
