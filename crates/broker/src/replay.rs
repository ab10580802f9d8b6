//! Reading one subject of a stream from its first message to its last, through a durable of the reader's own (contract 03 §L).
//!
//! A consumer reads from the stream's leader and counts what it delivers, so a replay is whole or refused. A subject's messages
//! come one batch after another, and none is kept: however long a journal is, reading it takes no more memory than a batch.

use std::time::{Duration, Instant};

use cotal_wire::EpError;
use serde_json::{Map, Value, json};

use crate::{
    api::{self, ApiFailure, CONSUMER_EXISTS, CONSUMER_NOT_FOUND},
    connection::{Connection, Subscription},
};

/// Most messages of one fetch.
const BATCH: u64 = 256;
/// How long the broker keeps a fetch open (contract 03 §L).
const FETCH_EXPIRY: Duration = Duration::from_secs(15);
/// How much longer its answers may be on their way.
const FETCH_GRACE: Duration = Duration::from_secs(2);
/// After this long without a fetch the broker removes the durable by itself.
const INACTIVE_THRESHOLD_NANOS: u64 = 30_000_000_000;

/// What is replayed: one subject of one stream, through one durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectReplay {
    stream: String,
    durable: String,
    subject: String,
}

impl SubjectReplay {
    /// The messages of `subject` in `stream`, through the fresh durable `durable`.
    pub fn new(stream: &str, durable: &str, subject: &str) -> Self {
        Self { stream: stream.to_owned(), durable: durable.to_owned(), subject: subject.to_owned() }
    }

    /// Replays what stands when it begins, and says how many messages that was. `each` is given them in order; its refusal ends
    /// the replay.
    ///
    /// More than `most` messages are `resource-exhausted` before any is read. A durable that is not fresh is `conflict`; a
    /// message of another subject `internal`; whatever keeps the replay from being whole is `unavailable`. The durable is gone
    /// when this returns without a failure, and goes by itself otherwise.
    pub async fn run(
        &self,
        connection: &Connection,
        most: u64,
        each: &mut (dyn FnMut(&[u8]) -> Result<(), EpError> + Send),
    ) -> Result<u64, EpError> {
        let reply = format!("_INBOX_{}.replay", connection.user_nkey());
        let inbox = connection.subscribe(&reply, None).await?;
        let pending = self.create(connection).await?;
        let replayed = if pending > most {
            Err(EpError::new(
                cotal_wire::EpCode::ResourceExhausted,
                format!("{} holds {pending} messages, and at most {most} are replayed", self.subject),
            ))
        } else {
            Reading { replay: self, connection, reply, inbox }.all(pending, each).await
        };
        let removed = self.remove(connection).await;
        replayed.and(removed).map(|()| pending)
    }

    /// Creates the durable, and says how many messages it has to deliver.
    async fn create(&self, connection: &Connection) -> Result<u64, EpError> {
        let verb = format!("{}.{}", self.verb("CREATE"), self.subject);
        let config = json!({
            "name": self.durable,
            "durable_name": self.durable,
            "filter_subject": self.subject,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "max_ack_pending": -1,
            "mem_storage": true,
            "inactive_threshold": INACTIVE_THRESHOLD_NANOS,
        });
        let request = json!({ "stream_name": self.stream, "config": config, "action": "create" });
        let used = || {
            EpError::conflict(format!(
                "{} of {} was used before; replay under a fresh one",
                self.durable, self.stream
            ))
        };
        let answer = api::ask(connection, &verb, &request).await.map_err(|failure| match failure {
            ApiFailure::Refused { err_code: CONSUMER_EXISTS, .. } => used(),
            failure => self.unavailable(&format!("its durable cannot be created: {failure}")),
        })?;
        let count = |of: &Map<String, Value>, field: &str| of.get(field).and_then(Value::as_u64);
        let delivered = answer.get("delivered").and_then(Value::as_object);
        let delivered = delivered.and_then(|delivered| count(delivered, "consumer_seq"));
        match (count(&answer, "num_pending"), delivered, count(&answer, "num_ack_pending")) {
            (Some(pending), Some(0), Some(0)) => Ok(pending),
            (Some(_), Some(_), Some(_)) => Err(used()),
            _ => Err(self.unavailable("the answer to its durable's creation is garbled")),
        }
    }

    /// Deletes the durable; that it is gone already is no failure.
    async fn remove(&self, connection: &Connection) -> Result<(), EpError> {
        match api::ask(connection, &self.verb("DELETE"), &Map::new()).await {
            Ok(_) | Err(ApiFailure::Refused { err_code: CONSUMER_NOT_FOUND, .. }) => Ok(()),
            Err(failure) => Err(self.unavailable(&format!("its durable cannot be deleted: {failure}"))),
        }
    }

    fn verb(&self, verb: &str) -> String {
        format!("CONSUMER.{verb}.{}.{}", self.stream, self.durable)
    }

    fn unavailable(&self, why: &str) -> EpError {
        EpError::unavailable(format!("the replay of {} is not whole: {why}; retry", self.subject))
    }
}

struct Reading<'a> {
    replay: &'a SubjectReplay,
    connection: &'a Connection,
    reply: String,
    inbox: Subscription,
}

impl Reading<'_> {
    async fn all(
        mut self,
        pending: u64,
        each: &mut (dyn FnMut(&[u8]) -> Result<(), EpError> + Send),
    ) -> Result<(), EpError> {
        let mut left = pending;
        while left > 0 {
            let batch = left.min(BATCH);
            self.batch(batch, each).await?;
            left -= batch;
        }
        Ok(())
    }

    async fn batch(
        &mut self,
        batch: u64,
        each: &mut (dyn FnMut(&[u8]) -> Result<(), EpError> + Send),
    ) -> Result<(), EpError> {
        let replay = self.replay;
        let subject = format!("$JS.API.{}", replay.verb("MSG.NEXT"));
        let expiry = u64::try_from(FETCH_EXPIRY.as_nanos()).unwrap_or(u64::MAX);
        let request = json!({ "batch": batch, "expires": expiry }).to_string();
        let deadline = Instant::now() + FETCH_EXPIRY + FETCH_GRACE;
        let sent = self.connection.ask_many(&subject, &self.reply, request.into()).await;
        let mut refusal =
            sent.map_err(|failure| replay.unavailable(&format!("a fetch failed: {failure}")))?;
        let mut left = batch;
        while left > 0 {
            let message = tokio::select! {
                biased;
                message = self.inbox.next() => message,
                () = refusal.denied() => {
                    return Err(replay.unavailable("the broker denies this connection the fetch"));
                }
                () = tokio::time::sleep_until(deadline.into()) => {
                    return Err(replay.unavailable("the broker delivered less than it had"));
                }
            };
            let message = message.ok_or_else(|| replay.unavailable("the connection has ended"))?;
            match message.status {
                Some(100) => {}
                Some(status) => {
                    return Err(replay.unavailable(&format!("the broker ended a fetch short, with {status}")));
                }
                None if message.subject != replay.subject => {
                    return Err(EpError::internal(format!(
                        "the replay of {} was given a message of another subject",
                        replay.subject
                    )));
                }
                None => {
                    each(&message.payload)?;
                    left -= 1;
                }
            }
        }
        Ok(())
    }
}
