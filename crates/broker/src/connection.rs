//! One NATS connection in custody. No other room names a NATS library type.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use bytes::Bytes;
use cotal_wire::{EpCode, EpError, Nkey, User};
use futures::StreamExt;
use parking_lot::RwLock;
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    custody::{Custody, Place},
    denials::{Denial, Denials, Direction, FLUSH},
    session::{Session, SessionPlan},
};

/// Longest wait of [`Connection::flush`].
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait of [`Connection::close`], longer than a drain and its cut.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Status of the message that says nobody is subscribed.
pub(crate) const NO_RESPONDERS: u16 = 503;
/// Answered to whoever may ask at all, with or without JetStream.
pub(crate) const JETSTREAM_INFO: &str = "$JS.API.INFO";

/// A message as it came.
#[derive(Debug, Clone)]
pub struct Message {
    /// Subject.
    pub subject: String,
    /// Reply subject.
    pub reply: Option<String>,
    /// Header lines; the values of one name stand in order.
    pub headers: Vec<(String, String)>,
    /// Status code of a status message (`404`, `503` ...).
    pub status: Option<u16>,
    /// Payload.
    pub payload: Bytes,
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

/// What the plane claim pins of a plane-owned connection (contract 07 §7.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionTuple {
    /// INFO `server_id`, never empty.
    pub server_id: String,
    /// INFO `client_id`, positive.
    pub client_id: u64,
    /// The connection's own user nkey.
    pub user_nkey: Nkey<User>,
}

/// A live connection; clones share it. When the last clone is dropped the connection closes by itself;
/// [`Connection::close`] waits for that.
#[derive(Clone)]
pub struct Connection {
    held: Arc<Held>,
}

/// Counts the clones: its drop asks for the end.
struct Held {
    core: Arc<Core>,
}

/// A subscription; dropped, it unsubscribes. It outlives reconnects.
pub struct Subscription {
    current: Option<async_nats::Subscriber>,
    renewals: mpsc::UnboundedReceiver<async_nats::Subscriber>,
}

/// Whether the broker denied what [`Connection::ask_many`] sent.
pub(crate) struct Refusal<'a> {
    denials: &'a Denials,
    seen: watch::Receiver<u64>,
    subject: String,
}

/// What a connection's clones, its subscriptions, its supervisor and its custody share.
pub(crate) struct Core {
    plan: Arc<SessionPlan>,
    user: Nkey<User>,
    /// Whether the grant lets this connection ask `$JS.API.INFO`.
    may_ask_info: bool,
    tuple: Option<ConnectionTuple>,
    session: RwLock<Option<Arc<Session>>>,
    state: watch::Sender<ConnectionState>,
    denials: Arc<Denials>,
    subscriptions: Mutex<Vec<Subscribed>>,
    flushes: AtomicU64,
    /// Of everything in the same custody.
    round_trips: Arc<AtomicU64>,
    redial: Notify,
    closing: CancellationToken,
    ended: CancellationToken,
    /// Why the connection ended, when nobody asked it to.
    failure: OnceLock<EpError>,
}

/// A subscription as the supervisor knows it: what to subscribe again, and where to hand it.
struct Subscribed {
    subject: String,
    queue: Option<String>,
    renewals: mpsc::UnboundedSender<async_nats::Subscriber>,
}

/// What happens after a session is lost.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reconnect {
    /// Nothing: the connection has ended.
    Never,
    /// Attempts for ever, with growing pauses.
    Forever,
    /// This many attempts, then the connection has ended.
    Attempts(u32),
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestFailure {
    #[error("the connection is closed")]
    Closed,
    #[error("the subject or a header is not valid")]
    Invalid,
    #[error("the payload is larger than the broker takes")]
    TooLarge,
    #[error("the broker denies this connection the subject")]
    Denied,
    #[error("nobody serves the subject")]
    NoResponders,
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    #[error("the connection was lost before the answer")]
    Lost,
}

// === impl Message ===

impl Message {
    /// First value of a header, matched as nats does (exact case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

impl From<async_nats::Message> for Message {
    fn from(message: async_nats::Message) -> Self {
        let headers = message.headers.iter().flat_map(HeaderMap::iter).flat_map(|(name, values)| {
            values.iter().map(move |value| (name.to_string(), value.as_str().to_owned()))
        });
        Self {
            headers: headers.collect(),
            subject: message.subject.to_string(),
            reply: message.reply.map(|reply| reply.to_string()),
            status: message.status.map(|status| status.as_u16()),
            payload: message.payload,
        }
    }
}

// === impl Subscription ===

impl Subscription {
    /// The next message, or `None` when the connection closed.
    pub async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(current) = &mut self.current
                && let Some(message) = current.next().await
            {
                return Some(message.into());
            }
            self.current = Some(self.renewals.recv().await?);
        }
    }
}

// === impl Refusal ===

impl Refusal<'_> {
    /// Resolves when it was denied; never otherwise.
    pub(crate) async fn denied(&mut self) {
        while self.seen.changed().await.is_ok() {
            if self.denials.claim(Some(Direction::Publish), &self.subject) {
                return;
            }
        }
        std::future::pending::<()>().await;
    }
}

// === impl Connection ===

impl Connection {
    /// Takes an open session into custody and supervises it.
    pub(crate) async fn supervise(
        plan: Arc<SessionPlan>,
        user: Nkey<User>,
        may_ask_info: bool,
        tuple: Option<ConnectionTuple>,
        (session, denials): (Session, Arc<Denials>),
        reconnect: Reconnect,
        custody: &Custody,
    ) -> Result<Self, EpError> {
        let session = Arc::new(session);
        let core = Arc::new(Core {
            plan,
            user,
            may_ask_info,
            tuple,
            session: RwLock::new(Some(Arc::clone(&session))),
            state: watch::Sender::new(ConnectionState::Connected(1)),
            denials,
            subscriptions: Mutex::new(Vec::new()),
            flushes: AtomicU64::new(0),
            round_trips: custody.counter(),
            redial: Notify::new(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
            failure: OnceLock::new(),
        });
        let place = match custody.track(&core) {
            Ok(place) => place,
            Err(refusal) => {
                session.drain().await;
                return Err(refusal);
            }
        };
        tokio::spawn(run(Arc::clone(&core), session, reconnect, place));
        Ok(Self { held: Arc::new(Held { core }) })
    }

    fn core(&self) -> &Core {
        &self.held.core
    }

    /// `cotal:<role>:<space>`.
    pub fn label(&self) -> &str {
        self.core().label()
    }

    /// The user nkey, which is also the inbox nonce.
    pub fn user_nkey(&self) -> &Nkey<User> {
        &self.core().user
    }

    /// The tuple of a plane-owned connection; `None` for every other.
    pub fn tuple(&self) -> Option<&ConnectionTuple> {
        self.core().tuple.as_ref()
    }

    /// INFO `version` of the server this connection is on, empty while it is on none.
    pub fn server_version(&self) -> String {
        self.core().session.read().as_ref().map(|session| session.server_version.clone()).unwrap_or_default()
    }

    /// State changes.
    pub fn state(&self) -> watch::Receiver<ConnectionState> {
        self.core().state.subscribe()
    }

    /// Resolves when the connection has ended for good, and the end is proved.
    pub async fn ended(&self) {
        self.core().ended.cancelled().await;
    }

    /// Why the connection ended: `None` while it has not, and when it was closed on demand.
    pub fn failure(&self) -> Option<&EpError> {
        self.core().failure.get()
    }

    /// One request, waiting for a reconnect within `timeout`. No responder, a timeout and a closed connection are
    /// `unavailable`; what the grant does not name is `permission-denied`.
    pub async fn request(
        &self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Message, EpError> {
        let headers = header_map(headers).map_err(|failure| self.refused(subject, &failure))?;
        self.request_raw(subject.into(), headers, payload, timeout)
            .await
            .map(Message::from)
            .map_err(|failure| self.refused(subject, &failure))
    }

    /// One request whose answer comes to a subject of the caller's choice: what a responder needs that may publish
    /// under no inbox. Fails as [`Self::request`] does.
    pub async fn request_at(
        &self,
        subject: &str,
        reply: &str,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Message, EpError> {
        let answer = self.ask_at(subject, reply, payload, timeout).await?;
        answer.ok_or_else(|| self.refused(subject, &RequestFailure::NoResponders))
    }

    /// As [`Self::request_at`]; `None` when the broker says that nobody is subscribed, which no silence is.
    pub async fn ask_at(
        &self,
        subject: &str,
        reply: &str,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Option<Message>, EpError> {
        let answer = async {
            let mut answers = self.subscribe(reply, None).await?;
            let mut refusal = self
                .ask_many(subject, reply, payload)
                .await
                .map_err(|failure| self.refused(subject, &failure))?;
            let failure = tokio::select! {
                biased;
                answer = answers.next() => match answer {
                    Some(answer) if answer.status == Some(NO_RESPONDERS) => return Ok(None),
                    Some(answer) => return Ok(Some(answer)),
                    None => RequestFailure::Closed,
                },
                () = refusal.denied() => RequestFailure::Denied,
                () = self.ended() => RequestFailure::Lost,
            };
            Err(self.refused(subject, &failure))
        };
        let late = || Err(self.refused(subject, &RequestFailure::TimedOut(timeout)));
        tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| late())
    }

    /// Publishes without waiting. A refusal of the broker is what the next [`Self::flush`] reports.
    pub async fn publish(
        &self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: Bytes,
    ) -> Result<(), EpError> {
        let headers = header_map(headers).map_err(|failure| self.refused(subject, &failure))?;
        let session = self.core().session();
        let session = session.ok_or_else(|| self.refused(subject, &RequestFailure::Closed))?;
        let published = match headers {
            Some(headers) => session.client.publish_with_headers(subject.to_owned(), headers, payload).await,
            None => session.client.publish(subject.to_owned(), payload).await,
        };
        published.map_err(|error| self.refused(subject, &error.kind().into()))
    }

    /// Subscribes, in a queue group when one is named. [`Self::flush`] tells whether the broker took it.
    pub async fn subscribe(&self, subject: &str, queue: Option<&str>) -> Result<Subscription, EpError> {
        let core = self.core();
        let (renewals, received) = mpsc::unbounded_channel();
        let subscribed =
            Subscribed { subject: subject.to_owned(), queue: queue.map(str::to_owned), renewals };
        // Held until it is listed, so that a reconnect in between sees it.
        let mut subscriptions = core.subscriptions.lock().await;
        if core.ended.is_cancelled() {
            return Err(self.refused(subject, &RequestFailure::Closed));
        }
        let current = match core.session() {
            Some(session) => subscribed.on(&session).await.map(Some).or_else(|failure| match failure {
                RequestFailure::Lost => Ok(None),
                other => Err(self.refused(subject, &other)),
            })?,
            None => None,
        };
        subscriptions.retain(|other| !other.renewals.is_closed());
        subscriptions.push(subscribed);
        Ok(Subscription { current, renewals: received })
    }

    /// Waits until the server has processed everything sent so far; `permission-denied` when it refused some of it.
    pub async fn flush(&self) -> Result<(), EpError> {
        let core = self.core();
        match tokio::time::timeout(FLUSH_TIMEOUT, core.barrier()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return Err(self.refused("flush", &failure)),
            Err(_) => return Err(self.refused("flush", &RequestFailure::TimedOut(FLUSH_TIMEOUT))),
        }
        match core.denials.take().first() {
            None => Ok(()),
            Some(Denial { subject, .. }) => Err(self.refused(subject, &RequestFailure::Denied)),
        }
    }

    /// Whether the server answers within `timeout`, over a connection whose creds grant `$JS.API.INFO`: unlike a
    /// [`Self::flush`], which asks nothing of creds and so leaves a refusal in the broker's log each time. What it answers
    /// does not matter, and neither does whether JetStream is up.
    pub async fn answers(&self, timeout: Duration) -> bool {
        let asked = self.request_raw(JETSTREAM_INFO.into(), None, Bytes::new(), timeout).await;
        matches!(asked, Ok(_) | Err(RequestFailure::NoResponders))
    }

    /// Drains this session and opens the next one at once: how a renewed credential is pushed to a standing connection
    /// before its broker would cut the old one. One that may not reconnect ends.
    pub fn redial(&self) {
        self.core().redial.notify_one();
    }

    /// Drains and closes; the end is proved when this returns.
    pub async fn close(&self) -> Result<(), EpError> {
        self.core().close().await
    }

    /// One request, as the library answers it: what the conditional writes and leader reads use.
    pub(crate) async fn request_raw(
        &self,
        subject: Subject,
        headers: Option<HeaderMap>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<async_nats::Message, RequestFailure> {
        self.core().round_trips.fetch_add(1, Ordering::Relaxed);
        tokio::time::timeout(timeout, self.core().request(subject, headers, payload))
            .await
            .unwrap_or(Err(RequestFailure::TimedOut(timeout)))
    }

    /// Sends a request whose answers, perhaps many, come to `reply`, which is subscribed already. The result tells
    /// when the broker denies it.
    pub(crate) async fn ask_many(
        &self,
        subject: &str,
        reply: &str,
        payload: Bytes,
    ) -> Result<Refusal<'_>, RequestFailure> {
        let core = self.core();
        core.round_trips.fetch_add(1, Ordering::Relaxed);
        let session = core.session().ok_or(RequestFailure::Closed)?;
        let refusal =
            Refusal { denials: &core.denials, seen: core.denials.watch(), subject: subject.to_owned() };
        session
            .client
            .publish_with_reply(subject.to_owned(), reply.to_owned(), payload)
            .await
            .map_err(|error| RequestFailure::from(error.kind()))?;
        Ok(refusal)
    }

    fn refused(&self, subject: &str, failure: &RequestFailure) -> EpError {
        EpError::new(failure.code(), format!("{}: {subject}: {failure}", self.label()))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({}, {:?})", self.label(), *self.core().state.borrow())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.core.closing.cancel();
    }
}

// === impl Core ===

impl Core {
    pub(crate) fn label(&self) -> &str {
        &self.plan.label
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.session.read().clone()
    }

    /// The session, waiting for the next one while there is none.
    async fn connected(&self) -> Result<Arc<Session>, RequestFailure> {
        if let Some(session) = self.session() {
            return Ok(session);
        }
        let mut state = self.state.subscribe();
        loop {
            if *state.borrow_and_update() == ConnectionState::Closed {
                return Err(RequestFailure::Closed);
            }
            if let Some(session) = self.session() {
                return Ok(session);
            }
            state.changed().await.map_err(|_| RequestFailure::Closed)?;
        }
    }

    async fn request(
        &self,
        subject: Subject,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<async_nats::Message, RequestFailure> {
        let session = self.connected().await?;
        let mut denied = self.denials.watch();
        let request =
            async_nats::Request { payload: Some(payload), headers, timeout: Some(None), inbox: None };
        let answer = session.client.send_request(subject.clone(), request);
        tokio::pin!(answer);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer.map_err(|error| error.kind().into()),
                Ok(()) = denied.changed() => {
                    if self.denials.claim(Some(Direction::Publish), &subject) {
                        return Err(RequestFailure::Denied);
                    }
                }
            }
        }
    }

    /// A round trip. Whoever may not ask `$JS.API.INFO` sends itself a message under its inbox: the server answers
    /// in order, with the message or with a refusal.
    async fn barrier(&self) -> Result<(), RequestFailure> {
        if self.may_ask_info {
            return match self.request(JETSTREAM_INFO.into(), None, Bytes::new()).await {
                Ok(_) | Err(RequestFailure::NoResponders) => Ok(()),
                Err(failure) => Err(failure),
            };
        }
        let session = self.connected().await?;
        let mut denied = self.denials.watch();
        let number = self.flushes.fetch_add(1, Ordering::Relaxed);
        let subject = format!("{}{FLUSH}{number}", self.plan.inbox_prefix);
        let mut echo = session.client.subscribe(subject.clone()).await.map_err(|_| RequestFailure::Lost)?;
        session.client.publish(subject.clone(), Bytes::new()).await.map_err(|_| RequestFailure::Lost)?;
        loop {
            tokio::select! {
                message = echo.next() => return message.map(drop).ok_or(RequestFailure::Lost),
                Ok(()) = denied.changed() => {
                    if self.denials.claim(None, &subject) {
                        return Ok(());
                    }
                }
            }
        }
    }

    pub(crate) async fn close(&self) -> Result<(), EpError> {
        self.closing.cancel();
        tokio::time::timeout(CLOSE_TIMEOUT, self.ended.cancelled()).await.map_err(|_| {
            EpError::unavailable(format!(
                "{}: the connection did not end within 10 s of closing",
                self.label()
            ))
        })
    }

    /// Makes `session` the current one and subscribes again on it.
    async fn attach(&self, session: Arc<Session>, number: u64) {
        let mut subscriptions = self.subscriptions.lock().await;
        subscriptions.retain(|subscribed| !subscribed.renewals.is_closed());
        for subscribed in subscriptions.iter() {
            // Lost again already: the next session serves it.
            if let Ok(renewed) = subscribed.on(&session).await {
                let _ = subscribed.renewals.send(renewed);
            }
        }
        *self.session.write() = Some(session);
        drop(subscriptions);
        self.state.send_replace(ConnectionState::Connected(number));
    }

    async fn finish(&self) {
        *self.session.write() = None;
        let mut subscriptions = self.subscriptions.lock().await;
        self.ended.cancel();
        subscriptions.clear();
        drop(subscriptions);
        self.state.send_replace(ConnectionState::Closed);
    }
}

impl Subscribed {
    async fn on(&self, session: &Session) -> Result<async_nats::Subscriber, RequestFailure> {
        let subject = self.subject.clone();
        match &self.queue {
            Some(queue) => session.client.queue_subscribe(subject, queue.clone()).await,
            None => session.client.subscribe(subject).await,
        }
        .map_err(|error| match error.kind() {
            async_nats::SubscribeErrorKind::Other => RequestFailure::Lost,
            _ => RequestFailure::Invalid,
        })
    }
}

// === supervision ===

/// Keeps a connection on a session until it is closed or may not reconnect. Holds its place in custody.
async fn run(core: Arc<Core>, mut session: Arc<Session>, reconnect: Reconnect, place: Place) {
    let mut number = 1;
    loop {
        tokio::select! {
            () = core.closing.cancelled() => {
                session.drain().await;
                break;
            }
            () = core.redial.notified() => session.drain().await,
            () = session.lost.cancelled() => {}
        }
        *core.session.write() = None;
        if !matches!(reconnect, Reconnect::Never) {
            core.state.send_replace(ConnectionState::Disconnected);
            tracing::info!(label = core.label(), "connection lost; reconnecting");
        }
        session.ended.cancelled().await;
        let next = tokio::select! {
            () = core.closing.cancelled() => break,
            next = reopen(&core, reconnect) => next,
        };
        session = match next {
            Ok(next) => Arc::new(next),
            Err(failure) => {
                let _ = core.failure.set(failure);
                break;
            }
        };
        number += 1;
        core.attach(Arc::clone(&session), number).await;
        tracing::info!(label = core.label(), "reconnected");
    }
    drop(session);
    core.finish().await;
    tracing::debug!(label = core.label(), "connection ended");
    drop(place);
}

async fn reopen(core: &Core, reconnect: Reconnect) -> Result<Session, EpError> {
    let gone = |why: String| EpError::unavailable(format!("{}: {why}", core.label()));
    let mut attempt = 0;
    loop {
        match reconnect {
            Reconnect::Never => return Err(gone("the connection was lost".to_owned())),
            Reconnect::Attempts(limit) if attempt == limit => {
                tracing::warn!(
                    label = core.label(),
                    attempts = limit,
                    "no reconnect; the connection has ended"
                );
                return Err(gone(format!(
                    "the connection was lost, and the broker did not take it back (attempts: {limit})"
                )));
            }
            Reconnect::Attempts(_) | Reconnect::Forever => {}
        }
        tokio::time::sleep(reconnect.pause(attempt, spread(&core.user))).await;
        match Session::open(&core.plan, &core.denials).await {
            Ok(session) => return Ok(session),
            Err(error) => tracing::info!(error = %error.message, attempt, "reconnect failed"),
        }
        attempt = attempt.saturating_add(1);
    }
}

impl Reconnect {
    /// How long to wait before an attempt, counted from 0: the first follows at once, as after an expiry. `spread`
    /// is a share of the pause, 0 to 255, so that a thousand connections do not return in step.
    fn pause(self, attempt: u32, spread: u8) -> Duration {
        const LONGEST: Duration = Duration::from_secs(2);
        let pause = match self {
            _ if attempt == 0 => Duration::ZERO,
            Self::Attempts(_) => LONGEST,
            Self::Never | Self::Forever => {
                Duration::from_millis(25).saturating_mul(1 << attempt.min(10)).min(LONGEST)
            }
        };
        pause + pause / 4 * u32::from(spread) / 255
    }
}

/// A connection's own share: its nkey is random.
fn spread(user: &Nkey<User>) -> u8 {
    user.as_str().bytes().fold(0, |sum: u8, b| sum.wrapping_mul(31).wrapping_add(b))
}

// === impl RequestFailure ===

impl RequestFailure {
    fn code(&self) -> EpCode {
        match self {
            Self::Denied => EpCode::PermissionDenied,
            Self::Invalid | Self::TooLarge => EpCode::BadRequest,
            Self::Closed | Self::NoResponders | Self::TimedOut(_) | Self::Lost => EpCode::Unavailable,
        }
    }
}

impl From<async_nats::PublishErrorKind> for RequestFailure {
    fn from(kind: async_nats::PublishErrorKind) -> Self {
        match kind {
            async_nats::PublishErrorKind::MaxPayloadExceeded => Self::TooLarge,
            async_nats::PublishErrorKind::InvalidSubject => Self::Invalid,
            async_nats::PublishErrorKind::Send => Self::Lost,
        }
    }
}

impl From<async_nats::RequestErrorKind> for RequestFailure {
    fn from(kind: async_nats::RequestErrorKind) -> Self {
        match kind {
            async_nats::RequestErrorKind::NoResponders => Self::NoResponders,
            async_nats::RequestErrorKind::InvalidSubject => Self::Invalid,
            async_nats::RequestErrorKind::MaxPayloadExceeded => Self::TooLarge,
            async_nats::RequestErrorKind::TimedOut | async_nats::RequestErrorKind::Other => Self::Lost,
        }
    }
}

fn header_map(headers: &[(&str, &str)]) -> Result<Option<HeaderMap>, RequestFailure> {
    if headers.is_empty() {
        return Ok(None);
    }
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().map_err(|_| RequestFailure::Invalid)?;
        let value: HeaderValue = value.parse().map_err(|_| RequestFailure::Invalid)?;
        map.append(name, value);
    }
    Ok(Some(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reconnect_follows_at_once_and_then_ever_more_slowly() {
        let pauses: Vec<_> = (0..20).map(|n| Reconnect::Forever.pause(n, 0).as_millis()).collect();
        assert_eq!(pauses[..4], [0, 50, 100, 200]);
        assert!(pauses.is_sorted() && pauses[19] == 2000);
        assert_eq!(Reconnect::Attempts(10).pause(1, 0).as_millis(), 2000);
        assert_eq!(Reconnect::Forever.pause(30, 255).as_millis(), 2500);
        assert_eq!(Reconnect::Forever.pause(0, 255), Duration::ZERO);
    }

    #[test]
    fn a_header_that_would_break_the_protocol_is_refused() {
        assert!(header_map(&[("A", "b")]).is_ok());
        assert_eq!(header_map(&[("A", "b\r\nC: d")]), Err(RequestFailure::Invalid));
        assert_eq!(header_map(&[("A: b", "c")]), Err(RequestFailure::Invalid));
    }
}
