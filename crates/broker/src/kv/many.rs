//! Direct Get of many keys in one request: what a boot asks that must look at ten thousand rows of its past.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use cotal_wire::EpError;
use futures::{Stream, StreamExt, TryStreamExt};

use super::{Bucket, LeaderRead, check_key, direct::read_direct};
use crate::connection::Message;

/// Keys of one request. The broker answers at most 1024.
const KEYS_AT_ONCE: usize = 256;
/// Requests that are under way at once.
const REQUESTS_AT_ONCE: usize = 4;
/// The status that ends the answers to one request.
const END_OF_BATCH: u16 = 204;
/// The status of a request that found none of its keys.
const NOT_FOUND: u16 = 404;
/// How many answers the end says are still to come.
const PENDING: &str = "Nats-Num-Pending";

impl Bucket {
    /// The last message of each of these keys that has one, by Direct Get, asked for while the keys still come. It fences
    /// nothing: a replica may lag.
    ///
    /// A request that was not answered whole is `unavailable`. The connection needs the bare Direct Get of the stream.
    pub async fn direct_read_many(
        &self,
        keys: impl Stream<Item = String>,
    ) -> Result<HashMap<String, LeaderRead>, EpError> {
        keys.chunks(KEYS_AT_ONCE)
            .map(|chunk| self.direct_read_chunk(chunk.into_iter().collect()))
            .buffer_unordered(REQUESTS_AT_ONCE)
            .try_fold(HashMap::new(), async |mut found, chunk| {
                found.extend(chunk);
                Ok(found)
            })
            .await
    }

    async fn direct_read_chunk(&self, keys: HashSet<String>) -> Result<HashMap<String, LeaderRead>, EpError> {
        static BATCHES: AtomicU64 = AtomicU64::new(0);
        let unread =
            |why: &str| EpError::unavailable(format!("{}: a batch cannot be read: {why}", self.name()));
        for key in &keys {
            check_key(key).map_err(|why| EpError::bad_request(format!("{}: {why}", self.name())))?;
        }
        let prefix = ["$KV.", self.name(), "."].concat();
        let subjects: Vec<String> = keys.iter().map(|key| [&prefix, key.as_str()].concat()).collect();
        let request = serde_json::json!({ "multi_last": subjects, "batch": keys.len() }).to_string();
        let number = BATCHES.fetch_add(1, Ordering::Relaxed);
        let inbox = format!("_INBOX_{}.batch.{number}", self.connection.user_nkey());
        let mut answers = self.connection.subscribe(&inbox, None).await?;
        let subject = ["$JS.API.DIRECT.GET.", &self.names.stream].concat();
        let mut refusal = self
            .connection
            .ask_many(&subject, &inbox, request.into())
            .await
            .map_err(|failure| unread(&failure.to_string()))?;
        let deadline = Instant::now() + self.timeout;
        let mut unanswered = keys;
        let mut found = HashMap::with_capacity(unanswered.len());
        loop {
            let message = tokio::select! {
                biased;
                message = answers.next() => message,
                () = refusal.denied() => return Err(unread("the broker denies this connection the request")),
                () = tokio::time::sleep_until(deadline.into()) => return Err(unread("it was not answered in time")),
            };
            let message = message.ok_or_else(|| unread("the connection has ended"))?;
            match answer(&prefix, &message)? {
                Answer::Row(key, row) if unanswered.remove(&key) => drop(found.insert(key, row)),
                Answer::Row(..) => return Err(unread("an answer is of another key")),
                Answer::End => return Ok(found),
                Answer::Cut => return Err(unread("the broker ended it early")),
            }
        }
    }
}

/// What one answer says.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Row(String, LeaderRead),
    /// Every key that has a message was answered.
    End,
    /// The answers end before that.
    Cut,
}

fn answer(prefix: &str, message: &Message) -> Result<Answer, EpError> {
    match message.status {
        Some(NOT_FOUND) => return Ok(Answer::End),
        Some(END_OF_BATCH) => {
            let whole = message.header(PENDING).is_none_or(|pending| pending == "0");
            return Ok(if whole { Answer::End } else { Answer::Cut });
        }
        Some(_) => return Ok(Answer::Cut),
        None => {}
    }
    let subject = message.header("Nats-Subject").unwrap_or_default();
    let key =
        subject.strip_prefix(prefix).ok_or_else(|| EpError::unavailable("an answer is of another bucket"))?;
    Ok(Answer::Row(key.to_owned(), read_direct(subject, message)?))
}

#[cfg(test)]
mod tests {
    use cotal_wire::Revision;

    use super::*;

    fn message(status: Option<u16>, headers: &[(&str, &str)]) -> Message {
        Message {
            subject: "_INBOX_x.1".into(),
            reply: None,
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            status,
            payload: "{}".into(),
        }
    }

    #[test]
    fn a_batch_is_over_only_when_nothing_of_it_is_pending() {
        let read =
            |status, headers: &[(&str, &str)]| answer("$KV.b.", &message(Some(status), headers)).unwrap();
        assert_eq!(read(204, &[("Nats-Num-Pending", "0")]), Answer::End);
        assert_eq!(read(204, &[]), Answer::End);
        assert_eq!(read(404, &[]), Answer::End);
        assert_eq!(read(204, &[("Nats-Num-Pending", "3")]), Answer::Cut);
        for status in [408, 413, 503] {
            assert_eq!(read(status, &[]), Answer::Cut, "{status}");
        }
    }

    #[test]
    fn a_row_is_of_this_bucket_and_a_marker_is_no_value() {
        let time = ("Nats-Time-Stamp", "2026-01-02T03:04:05Z");
        let row = |subject, more: &[(&str, &str)]| {
            let headers = [&[("Nats-Subject", subject), ("Nats-Sequence", "7"), time], more].concat();
            answer("$KV.b.", &message(None, &headers))
        };
        assert!(matches!(row("$KV.b.k", &[]).unwrap(), Answer::Row(key, LeaderRead::Value(_)) if key == "k"));
        let marker = row("$KV.b.k", &[("KV-Operation", "DEL")]).unwrap();
        assert_eq!(marker, Answer::Row("k".to_owned(), LeaderRead::Marker(Revision(7))));
        assert!(row("$KV.c.k", &[]).is_err());
    }
}
