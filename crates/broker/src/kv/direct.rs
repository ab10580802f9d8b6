//! Direct Get by subject: a read that any replica may answer, with nothing in its body, so that a grant can name the
//! one row (contract 03 §H.6, 07 §13).

use bytes::Bytes;
use cotal_wire::{EpError, Names, Revision};

use super::{Bucket, Entry, KV_OPERATION, LeaderRead, MARKER_REASON, check_key, parse_time};
use crate::connection::Message;

/// The status of a Direct Get that found nothing.
const NOT_FOUND: u16 = 404;

impl Bucket {
    /// The last message of a key by Direct Get. It fences nothing: a replica may lag, so whoever acts on it pins the
    /// write.
    ///
    /// Not found is absence; any other status is `permission-denied`; no answer is `unavailable`; a grant that does
    /// not name the row is `permission-denied`.
    pub async fn direct_read(&self, key: &str) -> Result<LeaderRead, EpError> {
        check_key(key).map_err(|why| EpError::bad_request(format!("{}: {why}", self.name())))?;
        let row = Names::kv_subject(self.name(), key);
        let subject = format!("$JS.API.DIRECT.GET.{}.{row}", self.names.stream);
        let answer = self.connection.request(&subject, &[], Bytes::new(), self.timeout).await?;
        read_direct(&row, &answer).map_err(|refusal| EpError {
            message: format!("{}: {key} cannot be read: {}", self.name(), refusal.message),
            ..refusal
        })
    }
}

pub(super) fn read_direct(row: &str, answer: &Message) -> Result<LeaderRead, EpError> {
    match answer.status {
        Some(NOT_FOUND) => return Ok(LeaderRead::Absent),
        Some(status) => {
            return Err(EpError::permission_denied(format!("the broker answered status {status}")));
        }
        None => {}
    }
    let garbled = || EpError::unavailable("the answer is garbled");
    if answer.header("Nats-Subject") != Some(row) {
        return Err(garbled());
    }
    let revision = answer.header("Nats-Sequence").and_then(|n| n.parse().ok()).filter(|n| *n > 0);
    let revision = Revision(revision.ok_or_else(garbled)?);
    if answer.header(KV_OPERATION).is_some() || answer.header(MARKER_REASON).is_some() {
        return Ok(LeaderRead::Marker(revision));
    }
    let stored_at = answer.header("Nats-Time-Stamp").and_then(parse_time).ok_or_else(garbled)?;
    Ok(LeaderRead::Value(Entry { value: answer.payload.clone(), revision, stored_at }))
}

#[cfg(test)]
mod tests {
    use cotal_wire::EpCode;

    use super::*;

    fn answer(status: Option<u16>, headers: &[(&str, &str)]) -> Message {
        Message {
            subject: "_INBOX_x.1".into(),
            reply: None,
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            status,
            payload: "{}".into(),
        }
    }

    #[test]
    fn not_found_is_absence_and_every_other_status_refuses() {
        let read = |status| read_direct("$KV.b.k", &answer(Some(status), &[]));
        assert_eq!(read(404).unwrap(), LeaderRead::Absent);
        for status in [100, 400, 403, 408, 500, 503] {
            assert_eq!(read(status).unwrap_err().code, EpCode::PermissionDenied, "{status}");
        }
    }

    #[test]
    fn an_answer_names_its_row_and_revision() {
        let time = ("Nats-Time-Stamp", "2026-01-02T03:04:05Z");
        let (subject, seq) = (("Nats-Subject", "$KV.b.k"), ("Nats-Sequence", "7"));
        let read = |headers: &[(&str, &str)]| read_direct("$KV.b.k", &answer(None, headers));
        let LeaderRead::Value(entry) = read(&[subject, seq, time]).unwrap() else { panic!("a value") };
        assert_eq!((&*entry.value, entry.revision), (&b"{}"[..], Revision(7)));
        for marker in [("KV-Operation", "PURGE"), ("KV-Operation", "DEL"), ("Nats-Marker-Reason", "MaxAge")] {
            assert_eq!(read(&[subject, seq, time, marker]).unwrap(), LeaderRead::Marker(Revision(7)));
        }
        for bad in [
            &[][..],
            &[seq, time],
            &[("Nats-Subject", "$KV.b.other"), seq, time],
            &[subject, time],
            &[subject, ("Nats-Sequence", "0"), time],
            &[subject, ("Nats-Sequence", "x"), time],
            &[subject, seq],
        ] {
            assert_eq!(read(bad).unwrap_err().code, EpCode::Unavailable, "{bad:?}");
        }
    }
}
