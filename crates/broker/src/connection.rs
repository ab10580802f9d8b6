//! One NATS connection in custody. No other room names a NATS library type.
use std::time::Duration;
use bytes::Bytes;
use cotal_wire::EpError;

/// A message as it came.
#[derive(Debug, Clone)]
pub struct Message {
    /// Subject.
    pub subject: String,
    /// Reply subject.
    pub reply: Option<String>,
    /// Header lines in order.
    pub headers: Vec<(String, String)>,
    /// Status code of a status message (`404`, `503` ...).
    pub status: Option<u16>,
    /// Payload.
    pub payload: Bytes,
}

impl Message {
    /// First value of a header, matched as nats does (exact case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    /// Connected; the number grows by one at every (re)connect.
    Connected(u64),
    /// Between connections.
    Disconnected,
    /// Closed for good.
    Closed,
}

/// A live connection; clones share it.
#[derive(Clone)]
pub struct Connection { _private: () }

/// A subscription; dropped, it unsubscribes.
pub struct Subscription { _private: () }

impl Subscription {
    /// The next message, or `None` when the connection closed.
    pub async fn next(&mut self) -> Option<Message> { todo!() }
}

impl Connection {
    /// `cotal:<role>:<space>`.
    pub fn label(&self) -> &str { todo!() }
    /// State changes.
    pub fn state(&self) -> tokio::sync::watch::Receiver<ConnectionState> { todo!() }
    /// One request. No responder, a timeout and a closed connection are `unavailable`.
    pub async fn request(&self, _subject: &str, _headers: &[(&str, &str)], _payload: Bytes, _timeout: Duration) -> Result<Message, EpError> { todo!() }
    /// Publishes without waiting.
    pub async fn publish(&self, _subject: &str, _headers: &[(&str, &str)], _payload: Bytes) -> Result<(), EpError> { todo!() }
    /// Subscribes, in a queue group when one is named.
    pub async fn subscribe(&self, _subject: &str, _queue: Option<&str>) -> Result<Subscription, EpError> { todo!() }
    /// Waits until the server has processed everything sent so far.
    pub async fn flush(&self) -> Result<(), EpError> { todo!() }
    /// Drains and closes; the end is proved when this returns.
    pub async fn close(&self) -> Result<(), EpError> { todo!() }
}
