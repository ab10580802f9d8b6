//! Leader reads and conditional writes on one bucket (contract 07 conventions, §12.3).

use std::{borrow::Cow, collections::BTreeSet, fmt::Write as _, sync::Arc, time::Duration};

use async_nats::{HeaderMap, HeaderValue, Subject};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use cotal_wire::{EpError, Object, Revision, UnixMillis, object};
use serde::Deserialize;

use crate::{
    api::{
        self, ApiError, NO_MESSAGE_FOUND, REQUEST_TIMEOUT, WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_CONSTANT,
    },
    connection::{Connection, RequestFailure},
};

mod direct;
mod first;
mod many;
mod purge;

pub(crate) const EXPECTED_LAST_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
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

/// A message as [`Bucket::next_under`] found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The key, of whatever grammar its writer gave it.
    pub key: String,
    /// The revision.
    pub revision: Revision,
    /// The value; `None` for a deletion marker.
    pub value: Option<Bytes>,
}

/// Where a bucket's history ends, and whose history it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// When the stream was created, as the broker writes it: a stream that was made anew counts from 1 again.
    pub created: String,
    /// The revision given last.
    pub last: Revision,
}

/// What a conditional write came to. A lost race and an ambiguous write are different results.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum WriteOutcome {
    /// Stored at this revision.
    Written(Revision),
    /// The condition did not hold (10071, 10164): nothing was written.
    Lost,
    /// Nothing was sent: the key is outside the KV grammar, or the value is larger than the broker takes.
    Refused(String),
    /// The answer did not come, or was an error that is not a lost race: it may have been written, and it may still
    /// be on its way. A read that finds nothing proves nothing; a later conditional write queues behind it.
    Ambiguous(String),
}

/// A `STREAM.MSG.GET` answer.
#[derive(Deserialize)]
struct GetAnswer<'a> {
    #[serde(borrow, default, deserialize_with = "object::read_optional")]
    message: Option<StoredMessage<'a>>,
    #[serde(borrow, default, deserialize_with = "object::read_optional")]
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
    #[serde(borrow, default, deserialize_with = "object::read_optional")]
    error: Option<ApiError<'a>>,
}

// === impl Bucket ===

impl Bucket {
    /// The bucket `bucket` over this connection.
    pub fn new(connection: &Connection, bucket: &str) -> Self {
        Self { connection: connection.clone(), names: Arc::new(Names::of(bucket)), timeout: REQUEST_TIMEOUT }
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
        let unreadable =
            |why: String| EpError::unavailable(format!("{}: {key} cannot be read: {why}", self.name()));
        let answer = self
            .connection
            .request_raw(self.names.get.clone(), None, Bytes::from(request), self.timeout)
            .await
            .map_err(|failure| unreadable(failure.to_string()))?;
        self.names.parse_read(key, &answer.payload).map_err(unreadable)
    }

    /// As [`Self::leader_read`], but a marker on an authority key is `failed-precondition`.
    pub async fn read_authority(&self, key: &str) -> Result<Option<Entry>, EpError> {
        let read = self.leader_read(key).await?;
        self.no_marker(key, read)
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

    /// One conditional write, sent once and never again: a second send could meet its own success as a loss.
    async fn write(
        &self,
        key: &str,
        expected: Revision,
        mut headers: HeaderMap,
        value: Bytes,
    ) -> WriteOutcome {
        if let Err(why) = check_key(key) {
            return WriteOutcome::Refused(format!("{}: {why}", self.name()));
        }
        let subject = ["$KV.", self.name(), ".", key].concat();
        headers.insert(EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(expected.0));
        let outcome =
            match self.connection.request_raw(subject.into(), Some(headers), value, self.timeout).await {
                Ok(answer) => self.names.parse_ack(&answer.payload),
                Err(failure @ (RequestFailure::Invalid | RequestFailure::TooLarge)) => {
                    WriteOutcome::Refused(format!("{}: {key}: {failure}", self.name()))
                }
                Err(failure) => WriteOutcome::Ambiguous(failure.to_string()),
            };
        match outcome {
            WriteOutcome::Ambiguous(why) => WriteOutcome::Ambiguous(format!(
                "{}: {key} may or may not have been written: {why}",
                self.name()
            )),
            sure => sure,
        }
    }

    /// The first message at or after `from`, in the order of revisions, whose subject the filter below the bucket
    /// (`natkey.>`) matches; `None` when there is none. A leader read, like [`Self::leader_read`].
    pub async fn next_under(&self, filter: &str, from: Revision) -> Result<Option<Stored>, EpError> {
        let subject = ["$KV.", self.name(), ".", filter].concat();
        let request = serde_json::json!({ "seq": from.0, "next_by_subj": subject }).to_string();
        let unreadable = |why: String| {
            EpError::unavailable(format!(
                "{}: what follows {} under {filter} cannot be read: {why}",
                self.name(),
                from.0
            ))
        };
        let answer = self
            .connection
            .request_raw(self.names.get.clone(), None, Bytes::from(request), self.timeout)
            .await
            .map_err(|failure| unreadable(failure.to_string()))?;
        self.names.parse_next(from, &answer.payload).map_err(unreadable)
    }

    /// Where the bucket's history ends.
    pub async fn tail(&self) -> Result<Tail, EpError> {
        let verb = ["STREAM.INFO.", &self.names.stream].concat();
        let unread =
            |why: &str| EpError::unavailable(format!("{}: its end cannot be read: {why}", self.name()));
        let answer = api::ask(&self.connection, &verb, &serde_json::json!({}))
            .await
            .map_err(|failure| unread(&failure.to_string()))?;
        let created = answer.get("created").and_then(serde_json::Value::as_str);
        let last =
            answer.get("state").and_then(|state| state.get("last_seq")).and_then(serde_json::Value::as_u64);
        match (created, last) {
            (Some(created), Some(last)) => Ok(Tail { created: created.to_owned(), last: Revision(last) }),
            _ => Err(unread("the answer is garbled")),
        }
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

// === impl Names ===

impl Names {
    fn of(bucket: &str) -> Self {
        Self {
            bucket: bucket.to_owned(),
            stream: format!("KV_{bucket}"),
            get: format!("$JS.API.STREAM.MSG.GET.KV_{bucket}").into(),
        }
    }

    /// Reads the answer for one key; the error says what is wrong with it.
    fn parse_read(&self, key: &str, answer: &[u8]) -> Result<LeaderRead, String> {
        let Some((subject, read)) = parse_get(answer)? else { return Ok(LeaderRead::Absent) };
        if self.key_of(&subject) != Some(key) {
            return Err("the answer is of another key".into());
        }
        Ok(read)
    }

    /// Reads the answer for the next key; the error says what is wrong with it.
    fn parse_next(&self, from: Revision, answer: &[u8]) -> Result<Option<Stored>, String> {
        let Some((subject, read)) = parse_get(answer)? else { return Ok(None) };
        let key = self.key_of(&subject).ok_or("the answer is of another bucket")?.to_owned();
        let (revision, value) = match read {
            LeaderRead::Value(entry) => (entry.revision, Some(entry.value)),
            LeaderRead::Marker(revision) => (revision, None),
            LeaderRead::Absent => return Ok(None),
        };
        if revision < from {
            return Err("the answer lies before what was asked for".into());
        }
        Ok(Some(Stored { key, revision, value }))
    }

    fn key_of<'a>(&self, subject: &'a str) -> Option<&'a str> {
        subject.strip_prefix("$KV.")?.strip_prefix(self.bucket.as_str())?.strip_prefix('.')
    }

    fn parse_ack(&self, answer: &[u8]) -> WriteOutcome {
        parse_ack(&self.stream, answer)
    }
}

// === what a message says ===

/// Reads a publish acknowledgement of a stream.
pub(crate) fn parse_ack(stream: &str, answer: &[u8]) -> WriteOutcome {
    match serde_json::from_slice::<Object<PubAck<'_>>>(answer).map(|ack| ack.0) {
        Ok(PubAck { error: Some(error), .. }) => match error.err_code {
            WRONG_LAST_SEQUENCE | WRONG_LAST_SEQUENCE_CONSTANT => WriteOutcome::Lost,
            _ => WriteOutcome::Ambiguous(error.to_string()),
        },
        Ok(PubAck { stream: stored_in, seq, error: None }) if stored_in == stream && seq > 0 => {
            WriteOutcome::Written(Revision(seq))
        }
        Ok(_) | Err(_) => WriteOutcome::Ambiguous("the answer is no acknowledgement of this stream".into()),
    }
}

/// Reads a `STREAM.MSG.GET` answer: the subject and what stands there, or `None` when there is no message.
pub(crate) fn parse_get(answer: &[u8]) -> Result<Option<(Cow<'_, str>, LeaderRead)>, String> {
    let Object(answer): Object<GetAnswer<'_>> =
        serde_json::from_slice(answer).map_err(|_| "the answer is garbled")?;
    let message = match (answer.message, answer.error) {
        (Some(message), None) => message,
        (_, Some(error)) if error.err_code == NO_MESSAGE_FOUND => return Ok(None),
        (_, Some(error)) => return Err(error.to_string()),
        (None, None) => return Err("the answer is empty".into()),
    };
    if message.seq == 0 {
        return Err("the answer has no revision".into());
    }
    let revision = Revision(message.seq);
    if let Some(headers) = &message.hdrs {
        let headers = STANDARD.decode(headers.as_bytes()).map_err(|_| "the answer's headers are garbled")?;
        if is_marker(&headers) {
            return Ok(Some((message.subject, LeaderRead::Marker(revision))));
        }
    }
    let value = match &message.data {
        Some(data) => STANDARD.decode(data.as_bytes()).map_err(|_| "the answer's value is garbled")?,
        None => Vec::new(),
    };
    let stored_at = parse_time(&message.time).ok_or("the answer's time is garbled")?;
    Ok(Some((message.subject, LeaderRead::Value(Entry { value: value.into(), revision, stored_at }))))
}

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
        line.iter().position(|&b| b == b':').is_some_and(|colon| is_marker_header(&line[..colon]))
    })
}

/// Whether a header of this name marks a deletion, whatever it says.
pub(crate) fn is_marker_header(name: &[u8]) -> bool {
    name == KV_OPERATION.as_bytes() || name == MARKER_REASON.as_bytes()
}

fn parse_time(text: &str) -> Option<UnixMillis> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(UnixMillis)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(answer: &str) -> Result<LeaderRead, String> {
        Names::of("b").parse_read("k", answer.as_bytes())
    }

    #[test]
    fn an_answer_is_a_value_a_marker_an_absence_or_a_failure() {
        let time = r#""time":"2026-01-02T03:04:05Z""#;
        let marker = STANDARD.encode("NATS/1.0\r\nKV-Operation: DEL\r\n\r\n");
        let value = read(&format!(r#"{{"message":{{"subject":"$KV.b.k","seq":7,"data":"e30=",{time}}}}}"#));
        let LeaderRead::Value(entry) = value.unwrap() else { panic!("a value") };
        assert_eq!((&*entry.value, entry.revision), (&b"{}"[..], Revision(7)));
        assert_eq!(
            read(&format!(r#"{{"message":{{"subject":"$KV.b.k","seq":7,"hdrs":"{marker}",{time}}}}}"#)),
            Ok(LeaderRead::Marker(Revision(7)))
        );
        assert_eq!(
            read(r#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#),
            Ok(LeaderRead::Absent)
        );
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"error":{"code":503,"err_code":10008}}"#,
            r#"{"error":{}}"#,
            &format!(r#"{{"message":{{"subject":"$KV.b.other","seq":7,{time}}}}}"#),
            &format!(r#"{{"message":{{"subject":"$KV.b.k","seq":0,{time}}}}}"#),
            &format!(r#"{{"message":{{"subject":"$KV.b.k","seq":7,"data":"!",{time}}}}}"#),
            &format!(r#"{{"message":{{"subject":"$KV.b.k","seq":7,"hdrs":"!",{time}}}}}"#),
            r#"{"message":{"subject":"$KV.b.k","seq":7,"time":"x"}}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_follows_lies_in_this_bucket_and_not_before() {
        let next = |from, answer: &str| Names::of("b").parse_next(Revision(from), answer.as_bytes());
        let time = r#""time":"2026-01-02T03:04:05Z""#;
        let found = format!(r#"{{"message":{{"subject":"$KV.b.a.k","seq":7,"data":"e30=",{time}}}}}"#);
        let stored = Stored { key: "a.k".into(), revision: Revision(7), value: Some("{}".into()) };
        assert_eq!(next(7, &found), Ok(Some(stored)));
        assert!(next(8, &found).is_err());
        let marker = STANDARD.encode("NATS/1.0\r\nKV-Operation: PURGE\r\n\r\n");
        let marker = format!(r#"{{"message":{{"subject":"$KV.b.a.k","seq":7,"hdrs":"{marker}",{time}}}}}"#);
        assert_eq!(next(1, &marker).unwrap().unwrap().value, None);
        assert_eq!(next(1, r#"{"error":{"code":404,"err_code":10037}}"#), Ok(None));
        let foreign = format!(r#"{{"message":{{"subject":"$KV.c.a.k","seq":7,{time}}}}}"#);
        assert!(next(1, &foreign).is_err());
        assert!(next(1, "{}").is_err());
    }

    #[test]
    fn only_the_two_codes_of_a_wrong_last_sequence_are_a_lost_race() {
        let ack = |answer: &str| Names::of("b").parse_ack(answer.as_bytes());
        assert_eq!(ack(r#"{"stream":"KV_b","seq":3}"#), WriteOutcome::Written(Revision(3)));
        for lost in [10071, 10164] {
            assert_eq!(ack(&format!(r#"{{"error":{{"code":400,"err_code":{lost}}}}}"#)), WriteOutcome::Lost);
        }
        for ambiguous in [
            "",
            "{}",
            r#"{"stream":"KV_other","seq":3}"#,
            r#"{"stream":"KV_b","seq":0}"#,
            r#"{"stream":"KV_b"}"#,
            r#"["KV_b",3,null]"#,
            r#"{"error":[10071,"wrong last sequence"]}"#,
            r#"{"error":{"code":400,"err_code":10077}}"#,
            r#"{"error":{"code":400,"description":"wrong last sequence: 4"}}"#,
            r#"{"stream":"KV_b","seq":3,"error":{"err_code":10023}}"#,
        ] {
            assert!(matches!(ack(ambiguous), WriteOutcome::Ambiguous(_)), "{ambiguous}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_of_any_shape_is_taken_for_a_success(answer in proptest::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(Names::of("b").parse_read("k", &answer).is_err());
            prop_assert!(matches!(Names::of("b").parse_ack(&answer), WriteOutcome::Ambiguous(_)));
        }
    }

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
