//! Create-only messages of a stream that is no bucket: facts and pool items (contract 02 §5, 07 §14).

use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use cotal_wire::EpError;

use crate::{
    api::REQUEST_TIMEOUT,
    connection::{Connection, RequestFailure},
    kv::{EXPECTED_LAST_SUBJECT_SEQUENCE, Entry, LeaderRead, WriteOutcome, parse_ack, parse_get},
};

/// A stream over one connection, read and written one exact subject at a time.
#[derive(Clone)]
pub struct Journal {
    connection: Connection,
    stream: String,
}

impl Journal {
    /// The stream `stream` over this connection.
    pub fn new(connection: &Connection, stream: &str) -> Self {
        Self { connection: connection.clone(), stream: stream.to_owned() }
    }

    /// The stream's name.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// The last message of a subject, by `STREAM.MSG.GET` and never by Direct Get: what it says gates a write.
    ///
    /// A failed read is `unavailable`, a subject that names more than one message `bad-request`, and a deletion
    /// marker `failed-precondition`: nothing here is ever deleted by one.
    pub async fn last(&self, subject: &str) -> Result<Option<Entry>, EpError> {
        check_subject(subject).map_err(|why| EpError::bad_request(format!("{}: {why}", self.stream)))?;
        let request = serde_json::json!({ "last_by_subj": subject }).to_string();
        let unreadable =
            |why: String| EpError::unavailable(format!("{}: {subject} cannot be read: {why}", self.stream));
        let get = ["$JS.API.STREAM.MSG.GET.", &self.stream].concat();
        let answer = self
            .connection
            .request_raw(get.into(), None, Bytes::from(request), REQUEST_TIMEOUT)
            .await
            .map_err(|failure| unreadable(failure.to_string()))?;
        let Some((found, read)) = parse_get(&answer.payload).map_err(unreadable)? else { return Ok(None) };
        if found != subject {
            return Err(unreadable("the answer is of another subject".to_owned()));
        }
        match read {
            LeaderRead::Value(entry) => Ok(Some(entry)),
            LeaderRead::Absent => Ok(None),
            LeaderRead::Marker(revision) => Err(EpError::failed_precondition(format!(
                "{}: {subject} holds a deletion marker at sequence {}; restore the message from a backup",
                self.stream, revision.0
            ))),
        }
    }

    /// Publishes the first message of a subject, or loses to the one that stands. Sent once and never again.
    pub async fn create(&self, subject: &str, payload: Bytes) -> WriteOutcome {
        if let Err(why) = check_subject(subject) {
            return WriteOutcome::Refused(format!("{}: {why}", self.stream));
        }
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(0));
        let sent = self.connection.request_raw(subject.into(), Some(headers), payload, REQUEST_TIMEOUT).await;
        match sent {
            Ok(answer) => match parse_ack(&self.stream, &answer.payload) {
                WriteOutcome::Ambiguous(why) => self.ambiguous(subject, &why),
                sure => sure,
            },
            Err(failure @ (RequestFailure::Invalid | RequestFailure::TooLarge)) => {
                WriteOutcome::Refused(format!("{}: {subject}: {failure}", self.stream))
            }
            Err(failure) => self.ambiguous(subject, &failure.to_string()),
        }
    }

    fn ambiguous(&self, subject: &str, why: &str) -> WriteOutcome {
        WriteOutcome::Ambiguous(format!("{}: {subject} may or may not have been written: {why}", self.stream))
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Journal({} over {})", self.stream, self.connection.label())
    }
}

/// One exact subject: tokens without wildcard, space or control.
fn check_subject(subject: &str) -> Result<(), String> {
    let exact = !subject.is_empty()
        && subject.split('.').all(|token| {
            !token.is_empty()
                && token.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'*' | b'>' | b'"' | b'\\'))
        });
    if exact { Ok(()) } else { Err(format!("\"{}\" is not one exact subject", subject.escape_default())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_one_message() {
        for ok in ["cotal.main.epf.com_x.dec.local.a.u.r1", "a"] {
            assert!(check_subject(ok).is_ok(), "{ok}");
        }
        for bad in ["", ".", "a.", "a..b", "a.*", ">", "a b", "a\r\nPUB x", "é", "a\"b", "a\\b"] {
            assert!(check_subject(bad).is_err(), "{bad:?}");
        }
    }
}
