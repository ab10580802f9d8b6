//! A pull durable that somebody else created: bound, never made, proved at each look (contract 07 §6.4).

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use cotal_wire::EpError;
use serde_json::{Map, Value};

use crate::{
    api::{self, ApiFailure, CONSUMER_NOT_FOUND, REQUEST_TIMEOUT},
    connection::Connection,
};

/// How much longer than its expiry the answers to a fetch may be on their way.
const FETCH_GRACE: Duration = Duration::from_secs(2);

/// A durable over one connection.
#[derive(Clone)]
pub struct PullDurable {
    connection: Connection,
    stream: String,
    name: String,
    /// What it must filter by.
    filter: String,
}

/// What a durable still owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Messages that were never delivered.
    pub pending: u64,
    /// Messages that were delivered and not acknowledged.
    pub ack_pending: u64,
}

/// A message as it was delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The subject that it was stored under.
    pub subject: String,
    /// What was stored.
    pub payload: Bytes,
    /// Where it is acknowledged.
    ack: String,
}

impl Backlog {
    /// Nothing is owed.
    pub fn is_empty(self) -> bool {
        self.pending == 0 && self.ack_pending == 0
    }
}

impl PullDurable {
    /// The durable `name` of `stream`, which must filter by exactly `filter`.
    pub fn bind(connection: &Connection, stream: &str, name: &str, filter: &str) -> Self {
        Self {
            connection: connection.clone(),
            stream: stream.to_owned(),
            name: name.to_owned(),
            filter: filter.to_owned(),
        }
    }

    /// Proves the binding and reads what is owed, fresh.
    ///
    /// `failed-precondition` for a durable that is absent or of another shape: its filter, a deliver subject, another
    /// acknowledgement than explicit, a bound on deliveries. No answer is `unavailable`.
    pub async fn backlog(&self) -> Result<Backlog, EpError> {
        let verb = format!("CONSUMER.INFO.{}.{}", self.stream, self.name);
        let info = api::ask(&self.connection, &verb, &Map::new()).await.map_err(|failure| match failure {
            ApiFailure::Refused { err_code: CONSUMER_NOT_FOUND, .. } => {
                self.unproved("it does not exist; its endpoint's provisioner creates it")
            }
            ApiFailure::Refused { .. } => self.unproved(&failure.to_string()),
            ApiFailure::Unanswered(_) | ApiFailure::Garbled => self.unavailable(&failure.to_string()),
        })?;
        let config = info.get("config").and_then(Value::as_object);
        let config = config.ok_or_else(|| self.unproved("its configuration is missing"))?;
        self.prove(config).map_err(|why| self.unproved(why))?;
        let count = |field: &str| info.get(field).and_then(Value::as_u64);
        match (count("num_pending"), count("num_ack_pending")) {
            (Some(pending), Some(ack_pending)) => Ok(Backlog { pending, ack_pending }),
            _ => Err(self.unavailable("the answer to its info is garbled")),
        }
    }

    /// The checks, in the contract's order.
    fn prove(&self, config: &Map<String, Value>) -> Result<(), &'static str> {
        let text = |field: &str| config.get(field).and_then(Value::as_str).unwrap_or_default();
        let several =
            config.get("filter_subjects").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if text("filter_subject") != self.filter || several {
            return Err("its filter is not exactly the pool's");
        }
        if config.get("deliver_subject").is_some_and(|subject| subject.as_str() != Some("")) {
            return Err("it pushes to a deliver subject");
        }
        if text("ack_policy") != "explicit" {
            return Err("its acknowledgement is not explicit");
        }
        if config.get("max_deliver").and_then(Value::as_i64) != Some(-1) {
            return Err("its deliveries are bounded, so that an item may be neither delivered nor gone");
        }
        Ok(())
    }

    /// At most `batch` messages; fewer when fewer come before `expiry`.
    ///
    /// What cannot be asked for, and a broker that neither delivers nor ends the fetch, is `unavailable`.
    pub async fn fetch(&self, batch: u64, expiry: Duration) -> Result<Vec<Delivery>, EpError> {
        static FETCHES: AtomicU64 = AtomicU64::new(0);
        let number = FETCHES.fetch_add(1, Ordering::Relaxed);
        let inbox = format!("_INBOX_{}.pull.{number}", self.connection.user_nkey());
        let mut answers = self.connection.subscribe(&inbox, None).await?;
        let deadline = Instant::now() + expiry + FETCH_GRACE;
        let nanos = u64::try_from(expiry.as_nanos()).unwrap_or(u64::MAX);
        let request = serde_json::json!({ "batch": batch, "expires": nanos }).to_string();
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream, self.name);
        let mut refusal = self
            .connection
            .ask_many(&subject, &inbox, request.into())
            .await
            .map_err(|failure| self.unavailable(&format!("a fetch failed: {failure}")))?;
        let mut fetched = Vec::new();
        while (fetched.len() as u64) < batch {
            let message = tokio::select! {
                biased;
                message = answers.next() => message,
                () = refusal.denied() => return Err(self.unavailable("the broker denies this connection the fetch")),
                () = tokio::time::sleep_until(deadline.into()) => {
                    return Err(self.unavailable("the broker did not end a fetch in time"));
                }
            };
            let message = message.ok_or_else(|| self.unavailable("the connection has ended"))?;
            match message.status {
                // Expired, empty, or ended by the broker after what it delivered.
                Some(404 | 408) => return Ok(fetched),
                Some(409) if !fetched.is_empty() => return Ok(fetched),
                Some(100) => {}
                Some(status) => {
                    return Err(self.unavailable(&format!("the broker answered a fetch with {status}")));
                }
                None => {
                    let ack =
                        message.reply.ok_or_else(|| self.unavailable("a message came without its ack"))?;
                    fetched.push(Delivery { subject: message.subject, payload: message.payload, ack });
                }
            }
        }
        Ok(fetched)
    }

    /// Acknowledges, and waits until the broker has confirmed it; unconfirmed is `unavailable`.
    pub async fn ack(&self, delivery: &Delivery) -> Result<(), EpError> {
        self.connection
            .request_raw(delivery.ack.as_str().into(), None, Bytes::from_static(b"+ACK"), REQUEST_TIMEOUT)
            .await
            .map(drop)
            .map_err(|failure| {
                self.unavailable(&format!(
                    "the acknowledgement of {} is not confirmed: {failure}",
                    delivery.subject
                ))
            })
    }

    fn unproved(&self, why: &str) -> EpError {
        EpError::failed_precondition(format!("{} of {} cannot be bound: {why}", self.name, self.stream))
    }

    fn unavailable(&self, why: &str) -> EpError {
        EpError::unavailable(format!("{} of {}: {why}; retry", self.name, self.stream))
    }
}

impl std::fmt::Debug for PullDurable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PullDurable({} of {} over {})", self.name, self.stream, self.connection.label())
    }
}
