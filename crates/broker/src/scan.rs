//! The sealed scan: every row under a filter of one bucket, each as its key's last message (contract 05 §8.7).
//!
//! A pull consumer of a literal name is made with one forced configuration, read back, drained and deleted. A scan
//! returns the whole set or refuses: every message that the broker says it has delivered is counted, so that one lost
//! on the way is a refusal and never a row that was not there.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cotal_wire::{EpCode, EpError, Nkey, Revision, User, subject_matches, time::MAX_SAFE_INTEGER};
use serde_json::{Map, Value, json};

use crate::{
    api::{self, ApiFailure, CONSUMER_EXISTS, CONSUMER_NOT_FOUND},
    connection::{Connection, Message, Refusal, Subscription},
    kv::{Stored, is_marker_header},
};

/// Most messages of one fetch.
const BATCH: u64 = 256;
/// Fetches that are open at once: the broker delivers the next ones while what came is read.
const FETCHES: u64 = 8;
/// How long the broker keeps a fetch open.
const FETCH_EXPIRY: Duration = Duration::from_nanos(FETCH_EXPIRY_NANOS);
/// As the broker is told.
const FETCH_EXPIRY_NANOS: u64 = 5_000_000_000;
/// How much longer its answers may be on their way.
const FETCH_GRACE: Duration = Duration::from_secs(1);
/// Most fetches of one scan.
const ROUNDS: u32 = 4096;
/// Fetches in a row that may bring nothing while something is pending.
const EMPTY_ROUNDS: u32 = 8;
/// After this long without a fetch the broker removes the consumer by itself.
const INACTIVE_THRESHOLD_NANOS: u64 = 30_000_000_000;

/// What a scan reads: one stream, one literal consumer name, one filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedScan {
    bucket: String,
    consumer: &'static str,
    filter: String,
    most: Option<usize>,
    cut: Option<usize>,
}

/// The consumer while it is drained.
struct Draining<'a> {
    scan: &'a SealedScan,
    connection: &'a Connection,
    reply: String,
    inbox: Subscription,
    /// When the broker made it: another consumer of the name has another birth.
    created: String,
    received: u64,
    rows: BTreeMap<String, Stored>,
    /// What the rows take.
    bytes: usize,
    seen: &'a Seen<'a>,
}

/// Told of each row as it comes.
type Seen<'a> = dyn Fn(&Stored) + Send + Sync + 'a;

/// What an info of the consumer says.
struct Progress {
    pending: u64,
    delivered: u64,
}

/// How many rounds a scan has had, and how many of them in a row brought nothing.
#[derive(Default)]
struct Rounds {
    had: u32,
    empty: u32,
}

impl SealedScan {
    /// Rows of `bucket` whose key `filter` matches (`cred.<uid>.>`), through the consumer `consumer`.
    pub fn new(bucket: &str, consumer: &'static str, filter: &str) -> Self {
        let filter = format!("$KV.{bucket}.{filter}");
        Self { bucket: bucket.to_owned(), consumer, filter, most: None, cut: None }
    }

    /// Refuses `resource-exhausted` once its rows take more than `bytes`: for rows of which a tenant writes as many as it
    /// likes, and which nobody but that tenant waits for.
    #[must_use]
    pub fn at_most(self, bytes: usize) -> Self {
        Self { most: Some(bytes), ..self }
    }

    /// Keeps the first `bytes` of a longer value, which then is garbled: for rows of tenants that others wait for, too.
    #[must_use]
    pub fn cutting_at(self, bytes: usize) -> Self {
        Self { cut: Some(bytes), ..self }
    }

    /// Scans, in the order of keys, deletion markers included. `connection` must be plane-owned.
    ///
    /// A consumer that is not the forced one is `failed-precondition`; a message that the filter does not match, or
    /// without a revision, is `internal`; whatever keeps the scan from being whole is `unavailable`. The caller
    /// serializes the scans of one stream: they share the literal name.
    pub async fn run(&self, connection: &Connection) -> Result<Vec<Stored>, EpError> {
        self.run_seeing(connection, &|_| {}).await
    }

    /// The same, and `seen` is told of each row as it comes. Nothing may rest on that alone: a row may still be replaced,
    /// and the scan may still refuse.
    pub async fn run_seeing(&self, connection: &Connection, seen: &Seen<'_>) -> Result<Vec<Stored>, EpError> {
        if connection.tuple().is_none() {
            return Err(EpError::internal(format!(
                "{}: only a plane-owned connection scans {}",
                connection.label(),
                self.stream()
            )));
        }
        self.remove(connection).await?;
        let rows = self.drain(connection, seen).await;
        // The next scan begins with a delete, and the broker forgets an idle consumer: a failure here leaves nothing.
        if let Err(refusal) = self.remove(connection).await {
            tracing::debug!(%refusal, "a sealed scan's consumer was not deleted");
        }
        rows
    }

    async fn drain(&self, connection: &Connection, seen: &Seen<'_>) -> Result<Vec<Stored>, EpError> {
        let created = self.create(connection).await?;
        let reply = inbox(connection.user_nkey());
        let inbox = connection.subscribe(&reply, None).await?;
        let draining = Draining {
            scan: self,
            connection,
            reply,
            inbox,
            created,
            received: 0,
            rows: BTreeMap::new(),
            bytes: 0,
            seen,
        };
        draining.run().await
    }

    /// Deletes the literal consumer. It is gone, or it was never there; anything else is `unavailable`.
    async fn remove(&self, connection: &Connection) -> Result<(), EpError> {
        match api::ask(connection, &self.verb("DELETE"), &Map::new()).await {
            Ok(answer) if answer.get("success") == Some(&Value::Bool(true)) => Ok(()),
            Err(ApiFailure::Refused { err_code: CONSUMER_NOT_FOUND, .. }) => Ok(()),
            Ok(_) => Err(self.unavailable("the consumer of an earlier scan was not deleted")),
            Err(failure) => {
                Err(self
                    .unavailable(&format!("the consumer of an earlier scan cannot be deleted: {failure}")))
            }
        }
    }

    /// Creates the consumer and says when it was made.
    async fn create(&self, connection: &Connection) -> Result<String, EpError> {
        let verb = format!("{}.{}", self.verb("CREATE"), self.filter);
        let request = json!({ "stream_name": self.stream(), "config": self.config(), "action": "create" });
        let answer = api::ask(connection, &verb, &request).await.map_err(|failure| match failure {
            ApiFailure::Refused { err_code: CONSUMER_EXISTS, .. } => self.drifted("somebody else made it"),
            failure => self.unavailable(&format!("its consumer cannot be created: {failure}")),
        })?;
        created(&answer)
            .map(str::to_owned)
            .ok_or_else(|| self.unavailable("the answer to the consumer's creation is garbled"))
    }

    /// The forced configuration.
    fn config(&self) -> Value {
        json!({
            "name": self.consumer,
            "filter_subject": self.filter,
            "ack_policy": "none",
            "deliver_policy": "last_per_subject",
            "mem_storage": true,
            "inactive_threshold": INACTIVE_THRESHOLD_NANOS,
        })
    }

    /// The first field in which a configuration is not the forced one.
    fn drift(&self, found: &Map<String, Value>) -> Option<String> {
        let forced = self.config();
        let differs = forced
            .as_object()
            .into_iter()
            .flatten()
            .find(|(field, value)| found.get(*field) != Some(*value))
            .map(|(field, _)| field.clone());
        // What would make it another kind of consumer, or empty its messages.
        let absent = ["filter_subjects", "durable_name", "deliver_subject", "headers_only"];
        differs.or_else(|| {
            let present = |field: &&str| found.get(*field).is_some_and(|value| !is_empty(value));
            absent.into_iter().find(present).map(str::to_owned)
        })
    }

    fn stream(&self) -> String {
        format!("KV_{}", self.bucket)
    }

    fn verb(&self, verb: &str) -> String {
        format!("CONSUMER.{verb}.{}.{}", self.stream(), self.consumer)
    }

    fn what(&self) -> String {
        format!("{} of {} under {}", self.consumer, self.stream(), self.filter)
    }

    fn unavailable(&self, why: &str) -> EpError {
        EpError::unavailable(format!("the scan {} is not whole: {why}; retry", self.what()))
    }

    fn drifted(&self, why: &str) -> EpError {
        EpError::failed_precondition(format!(
            "the scan {} met a consumer that is not its own ({why}): look for another holder of CONSUMER.CREATE on \
             this stream",
            self.what()
        ))
    }
}

impl Draining<'_> {
    async fn run(mut self) -> Result<Vec<Stored>, EpError> {
        let mut rounds = Rounds::default();
        loop {
            let Progress { pending, delivered } = self.progress().await?;
            let owed = delivered.checked_sub(self.received).ok_or_else(|| {
                self.scan.drifted("more messages came than the broker says it has delivered")
            })?;
            if (owed, pending) == (0, 0) {
                return Ok(self.rows.into_values().collect());
            }
            let before = self.received;
            if owed == 0 {
                self.fetch(pending.min(BATCH * FETCHES)).await?;
            } else {
                // Delivered, and not here yet: another fetch would not bring them again.
                self.collect(owed, None).await?;
            }
            rounds.count(self.received > before).map_err(|why| self.scan.unavailable(why))?;
        }
    }

    /// Reads the consumer back, whole: it must still be the one that was made.
    async fn progress(&self) -> Result<Progress, EpError> {
        let answer = api::ask(self.connection, &self.scan.verb("INFO"), &Map::new())
            .await
            .map_err(|failure| self.scan.unavailable(&format!("its consumer cannot be read: {failure}")))?;
        let config = answer.get("config").and_then(Value::as_object);
        let config = config.ok_or_else(|| self.scan.drifted("it has no configuration"))?;
        if let Some(field) = self.scan.drift(config) {
            return Err(self.scan.drifted(&format!("its {field} is another")));
        }
        if created(&answer) != Some(self.created.as_str()) {
            return Err(self.scan.drifted("it was made anew"));
        }
        let pending = answer.get("num_pending").and_then(Value::as_u64);
        let delivered = answer.get("delivered").and_then(|d| d.get("consumer_seq")).and_then(Value::as_u64);
        match (pending, delivered) {
            (Some(pending), Some(delivered)) => Ok(Progress { pending, delivered }),
            _ => Err(self.scan.unavailable("its consumer's state is garbled")),
        }
    }

    /// Asks for `count` messages, in as many fetches as that takes, and takes those that come in time.
    async fn fetch(&mut self, count: u64) -> Result<(), EpError> {
        let subject = format!("$JS.API.{}", self.scan.verb("MSG.NEXT"));
        let mut refusal = None;
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            let request = json!({ "batch": batch, "expires": FETCH_EXPIRY_NANOS }).to_string();
            let sent = self.connection.ask_many(&subject, &self.reply, request.into()).await;
            // A connection that may not fetch may not fetch the last time either.
            refusal =
                Some(sent.map_err(|failure| self.scan.unavailable(&format!("a fetch failed: {failure}")))?);
            left -= batch;
        }
        self.collect(count, refusal).await
    }

    /// Takes `count` messages, or those that come before a fetch has ended.
    async fn collect(&mut self, count: u64, mut refusal: Option<Refusal<'_>>) -> Result<(), EpError> {
        let deadline = Instant::now() + FETCH_EXPIRY + FETCH_GRACE;
        let mut left = count;
        while left > 0 {
            let denied = async {
                match &mut refusal {
                    Some(refusal) => refusal.denied().await,
                    None => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                biased;
                message = self.inbox.next() => message,
                () = denied => {
                    return Err(self.scan.unavailable("the broker denies this connection the fetch"));
                }
                () = tokio::time::sleep_until(deadline.into()) => return Ok(()),
            };
            let message = message.ok_or_else(|| self.scan.unavailable("the connection has ended"))?;
            match message.status {
                // The fetch has expired, found nothing, or was answered in part.
                Some(404 | 408 | 409) => return Ok(()),
                Some(100) => {}
                Some(status) => {
                    return Err(self.scan.unavailable(&format!("the broker answered a fetch with {status}")));
                }
                None => {
                    self.take(message)?;
                    left -= 1;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, message: Message) -> Result<(), EpError> {
        let broken = |why: &str| EpError::internal(format!("the scan {} {why}", self.scan.what()));
        if !subject_matches(&self.scan.filter, &message.subject) {
            return Err(broken("was given a message of another subject"));
        }
        let revision = message
            .reply
            .as_deref()
            .and_then(|reply| stream_sequence(reply, &self.scan.stream(), self.scan.consumer))
            .ok_or_else(|| broken("was given a message without a revision of this stream"))?;
        let prefix = ["$KV.", &self.scan.bucket, "."].concat();
        let key = message.subject.strip_prefix(&prefix).ok_or_else(|| broken("left its bucket"))?.to_owned();
        let marker = message.headers.iter().any(|(name, _)| is_marker_header(name.as_bytes()));
        self.received += 1;
        let value = match self.scan.cut {
            // A copy, because a part keeps all of it.
            Some(most) if message.payload.len() > most => Bytes::copy_from_slice(&message.payload[..most]),
            _ => message.payload,
        };
        let row = Stored { key, revision, value: (!marker).then_some(value) };
        (self.seen)(&row);
        self.keep(row)
    }

    fn keep(&mut self, row: Stored) -> Result<(), EpError> {
        let before = self.rows.get(&row.key);
        if before.is_some_and(|newer| newer.revision > row.revision) {
            return Ok(());
        }
        self.bytes = self.bytes.saturating_sub(before.map_or(0, room_of)).saturating_add(room_of(&row));
        if let Some(most) = self.scan.most.filter(|most| self.bytes > *most) {
            return Err(EpError::new(
                EpCode::ResourceExhausted,
                format!("the scan {} holds more than {most} bytes; remove what is over", self.scan.what()),
            ));
        }
        self.rows.insert(row.key.clone(), row);
        Ok(())
    }
}

/// What a row takes while it is held.
fn room_of(row: &Stored) -> usize {
    2 * row.key.len() + row.value.as_ref().map_or(0, Bytes::len) + size_of::<(String, Stored)>()
}

impl Rounds {
    /// Counts a round; the error says why there may be no other.
    fn count(&mut self, brought: bool) -> Result<(), &'static str> {
        self.had += 1;
        self.empty = if brought { 0 } else { self.empty + 1 };
        if self.empty == EMPTY_ROUNDS {
            return Err("rows are pending, and the broker delivers none");
        }
        if self.had == ROUNDS {
            return Err("its rounds are used up");
        }
        Ok(())
    }
}

fn created(answer: &Map<String, Value>) -> Option<&str> {
    answer.get("created").and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// An inbox of one scan, under the connection's own prefix and beside every request's.
fn inbox(user: &Nkey<User>) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static SCANS: AtomicU64 = AtomicU64::new(0);
    format!("_INBOX_{user}.scan.{}", SCANS.fetch_add(1, Ordering::Relaxed))
}

/// The stream sequence in a delivery's reply subject, `$JS.ACK.<stream>.<consumer>.<n>.<sequence>.<…>` or, from brokers
/// that name the account, `$JS.ACK.<domain>.<account>.<stream>.<consumer>.<n>.<sequence>.<…>`. `None` when it is of
/// another consumer, or no positive safe integer.
fn stream_sequence(reply: &str, stream: &str, consumer: &str) -> Option<Revision> {
    let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
    let tokens = match tokens.len() {
        7 => &tokens[..],
        9.. => &tokens[2..],
        _ => return None,
    };
    if tokens[0] != stream || tokens[1] != consumer || !tokens[3].bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let sequence: u64 = tokens[3].parse().ok()?;
    (1..=MAX_SAFE_INTEGER).contains(&sequence).then_some(Revision(sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan() -> SealedScan {
        SealedScan::new("cotal_auth_main", "cotal-ledger-scan", "cred.u.>")
    }

    #[test]
    fn only_the_forced_configuration_is_no_drift() {
        let scan = scan();
        let forced = scan.config().as_object().unwrap().clone();
        let with = |field: &str, value: Value| {
            let mut config = forced.clone();
            config.insert(field.to_owned(), value);
            scan.drift(&config)
        };
        assert_eq!(scan.drift(&forced), None);
        for (field, value) in [
            ("name", json!("other")),
            ("filter_subject", json!("$KV.cotal_auth_main.>")),
            ("ack_policy", json!("explicit")),
            ("deliver_policy", json!("all")),
            ("mem_storage", json!(false)),
            ("inactive_threshold", json!(5_000_000_000_u64)),
            ("filter_subjects", json!(["a"])),
            ("durable_name", json!("cotal-ledger-scan")),
            ("deliver_subject", json!("x")),
            ("headers_only", json!(true)),
        ] {
            assert_eq!(with(field, value).as_deref(), Some(field));
        }
        for (field, value) in [
            ("filter_subjects", json!([])),
            ("durable_name", json!("")),
            ("deliver_subject", json!(null)),
            ("replay_policy", json!("instant")),
            ("max_waiting", json!(512)),
        ] {
            assert_eq!(with(field, value), None, "{field}");
        }
        for field in forced.keys() {
            let mut config = forced.clone();
            config.remove(field);
            assert_eq!(scan.drift(&config).as_ref(), Some(field));
        }
    }

    #[test]
    fn eight_empty_rounds_in_a_row_or_4096_in_all_end_a_scan() {
        let mut rounds = Rounds::default();
        for brought in [false, false, false, false, false, false, false, true] {
            rounds.count(brought).unwrap();
        }
        let empty = (0..20).take_while(|_| rounds.count(false).is_ok()).count();
        assert_eq!(empty, 7);
        let mut rounds = Rounds::default();
        assert_eq!((0..5000).take_while(|_| rounds.count(true).is_ok()).count(), 4095);
    }

    #[test]
    fn a_revision_is_read_from_either_form_of_a_delivery_and_from_this_consumer_alone() {
        let sequence = |reply: &str| stream_sequence(reply, "S", "c").map(|revision| revision.0);
        assert_eq!(sequence("$JS.ACK.S.c.1.42.7.1700000000000000000.3"), Some(42));
        assert_eq!(sequence("$JS.ACK._.ACCHASH.S.c.1.42.7.1700000000000000000.3"), Some(42));
        assert_eq!(sequence("$JS.ACK._.ACCHASH.S.c.1.42.7.1700000000000000000.3.rand"), Some(42));
        assert_eq!(sequence("$JS.ACK.S.c.1.9007199254740991.7.1.3"), Some(MAX_SAFE_INTEGER));
        for bad in [
            "",
            "_INBOX.x",
            "$JS.ACK.S.c.1.0.7.1.3",
            "$JS.ACK.S.c.1.-1.7.1.3",
            "$JS.ACK.S.c.1.+1.7.1.3",
            "$JS.ACK.S.c.1..7.1.3",
            "$JS.ACK.S.c.1.9007199254740992.7.1.3",
            "$JS.ACK.S.other.1.42.7.1.3",
            "$JS.ACK.T.c.1.42.7.1.3",
            "$JS.ACK.S.c.1.42.7.1",
            "$JS.ACK.D.S.c.1.42.7.1.3",
        ] {
            assert_eq!(sequence(bad), None, "{bad}");
        }
    }
}
