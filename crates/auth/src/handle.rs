//! The handle of a started context: what it serves, how it is, and its end (contract 05 §15.3-15.4).

use std::sync::Arc;

use cotal_authority::{Plane, issued::IssuerSession};
use cotal_broker::{Connection, ConnectionState, Connector, Custody, custody::Owned};
use cotal_callout::Callout;
use cotal_wire::{Account, Clock, Entropy, EpError, Nkey, Owner, Space};
use futures::{FutureExt, future::Shared};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, OwnedRwLockReadGuard, RwLock, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    capability::Capability,
    composition::{Chosen, InteractiveManagerSelection},
    hosted::HostedContext,
    http::listener::Listener,
    lines::LineWriter,
    manager::ManagerAuthority,
    platform::{HostDoor, Platform, PlatformControlDoor, PlatformSupervision, PlatformSupervisorDoors},
};

/// How a context is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It answers.
    Ready,
    /// It is closing.
    Draining,
    /// It ended by itself.
    Unavailable {
        /// The fence's text, or that the callout ended or the broker connection closed.
        cause: String,
    },
}

/// Why a context ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Its host closed it.
    Closed,
    /// Its plane was fenced.
    Fenced(String),
    /// Its callout connection closed for good; with the error that closed it, if one did.
    BrokerClosed(Option<String>),
    /// Its callout serves no more, though its connection lives.
    CalloutEnded,
}

/// Why a close did not complete; it may be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the context did not close: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct CloseError(pub Vec<EpError>);

type Flight = Shared<futures::future::BoxFuture<'static, Result<(), CloseError>>>;

/// What a handle supervises.
pub(crate) struct HandleParts {
    pub context: Option<HostedContext>,
    pub space: Space,
    pub data_account: Nkey<Account>,
    pub composition: Chosen,
    pub platform: Option<Platform>,
    pub supervision: Option<Arc<dyn PlatformSupervision>>,
    /// The platform's owner, in both readings of its rule.
    pub platform_owners: [Owner; 2],
    /// Opens what the context opens once it is started.
    pub connector: Connector,
    pub entropy: Arc<dyn Entropy>,
    pub clock: Arc<dyn Clock>,
    pub url: String,
    pub public_url: Option<String>,
    pub cap: Capability,
    pub custody: Custody,
    pub plane: Arc<Plane>,
    pub connection: Connection,
    pub callout: Arc<Callout>,
    /// What issues authority at a connect; it dials when it is first asked.
    pub issuer: IssuerSession,
    /// Read-locked by each call of a door, and by each request of a manager, that works on durable state.
    pub entered: Arc<RwLock<()>>,
    /// What decides and executes the requests of remote managers.
    pub manager: ManagerAuthority,
    /// Where the callout's lines go, unless the host takes them.
    pub stderr: Option<&'static LineWriter>,
    pub listeners: Vec<Listener>,
}

/// A started auth service of one space; clones are one handle. Dropped, the last of them closes it without waiting:
/// call [`Self::close`] to know how that went.
#[derive(Clone)]
pub struct AuthService {
    inner: Arc<Inner>,
    _released: Arc<DropGuard>,
}

struct Inner {
    parts: HandleParts,
    /// Cancelled once a close has begun.
    closing: CancellationToken,
    /// The cause, once it ended by itself.
    unavailable: Mutex<Option<String>>,
    flight: Mutex<Option<Flight>>,
    intake_stopped: OnceCell<()>,
    /// Read-locked by each call of a door that works on a connection of its own.
    entered: Arc<RwLock<()>>,
    end: watch::Sender<Option<End>>,
}

impl AuthService {
    /// Takes over what was opened and watches for its end.
    pub(crate) fn supervise(parts: HandleParts) -> Self {
        let entered = Arc::clone(&parts.entered);
        let inner = Arc::new(Inner {
            entered,
            parts,
            closing: CancellationToken::new(),
            unavailable: Mutex::default(),
            flight: Mutex::new(None),
            intake_stopped: OnceCell::new(),
            end: watch::Sender::new(None),
        });
        let released = CancellationToken::new();
        tokio::spawn(Arc::clone(&inner).watch_end(released.clone()));
        Self { inner, _released: Arc::new(released.drop_guard()) }
    }

    /// The assignment that a hosted context serves.
    pub fn context(&self) -> Option<&HostedContext> {
        self.inner.parts.context.as_ref()
    }

    /// The space.
    pub fn space(&self) -> &Space {
        &self.inner.parts.space
    }

    /// The loopback URL.
    pub fn url(&self) -> &str {
        &self.inner.parts.url
    }

    /// The public URL, when there is a public face.
    pub fn public_url(&self) -> Option<&str> {
        self.inner.parts.public_url.as_deref()
    }

    /// The capability of the loopback face.
    pub fn cap(&self) -> &Capability {
        &self.inner.parts.cap
    }

    /// Lifetime of the standing renewable credentials that the context signs, in seconds.
    pub fn standing_renewable_ttl_seconds(&self) -> u64 {
        self.inner.parts.composition.standing_ttl_secs
    }

    /// Which manager an unpinned interactive caller is bound to, when the composition chose.
    pub fn interactive_manager_selection(&self) -> Option<InteractiveManagerSelection> {
        self.inner.parts.composition.selection
    }

    /// The platform's doors: there when the context was started with `platformControl` (contract 05 §15.3).
    pub fn platform_control(&self) -> Option<PlatformControlDoor> {
        let platform = self.inner.parts.platform.as_ref()?;
        Some(PlatformControlDoor::new(self.clone(), platform.clone()))
    }

    /// The platform supervisor's doors: there when the context was started with `platformSupervisor` (contract 05 §17).
    pub fn platform_supervisor(&self) -> Option<PlatformSupervisorDoors> {
        let platform = self.inner.parts.supervision.as_ref()?;
        Some(PlatformSupervisorDoors::new(self.clone(), Arc::clone(platform)))
    }

    /// The doors of the host's own incarnations: there when the context was started with `platformControl.host`
    /// (contract 05 §18).
    pub fn host(&self) -> Option<HostDoor> {
        let host = self.inner.parts.platform.as_ref()?.host()?;
        Some(HostDoor::new(self.clone(), host))
    }

    /// How the context is now.
    pub fn readiness(&self) -> Readiness {
        match &*self.inner.unavailable.lock() {
            Some(cause) => Readiness::Unavailable { cause: cause.clone() },
            None if self.inner.closing.is_cancelled() => Readiness::Draining,
            None => Readiness::Ready,
        }
    }

    /// Refuses `unavailable` unless the context is ready and not closing. The cause is for the operator's log.
    pub(crate) fn check_ready(&self) -> Result<(), EpError> {
        match self.readiness() {
            Readiness::Ready => self.inner.parts.plane.check_open(),
            Readiness::Draining | Readiness::Unavailable { .. } => Err(not_ready()),
        }
    }

    /// What the host that embeds the context says, waited for as long as the context is open: a close waits for what a door
    /// has begun, and the host may never answer. Also a host that closes the context instead of answering has its close.
    pub(crate) async fn while_open<T>(
        &self,
        asked: impl Future<Output = Result<T, EpError>>,
    ) -> Result<T, EpError> {
        tokio::select! {
            biased;
            answer = asked => answer,
            () = self.inner.closing.cancelled() => Err(not_ready()),
        }
    }

    /// Enters a call that a close waits for; refused like [`Self::check_ready`].
    pub(crate) fn enter(&self) -> Result<OwnedRwLockReadGuard<()>, EpError> {
        // Held before the check: a close that begins after it waits, one that began before it is seen.
        let entered = Arc::clone(&self.inner.entered).try_read_owned();
        self.check_ready()?;
        entered.map_err(|_| EpError::unavailable("the auth service context is closing"))
    }

    pub(crate) fn parts(&self) -> &HandleParts {
        &self.inner.parts
    }

    /// How many requests the context has sent the broker so far, each awaiting its answer: what a call costs, where nothing
    /// else is asked meanwhile.
    pub fn round_trips(&self) -> u64 {
        self.inner.parts.custody.round_trips()
    }

    /// Every connection that the context ever opened: a detached snapshot.
    pub fn connections(&self) -> Vec<Owned> {
        self.inner.parts.custody.connections()
    }

    /// Resolves with the inventory once a close has completed and every connection has ended.
    pub async fn closed(&self) -> Vec<Owned> {
        self.inner.parts.custody.closed().await
    }

    /// Resolves when the context ends: by [`Self::close`], a fence, a dead callout or a lost broker.
    pub async fn ended(&self) -> End {
        let mut end = self.inner.end.subscribe();
        match end.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(end)) => end,
            // The sender lives in `self`, so it cannot be gone.
            Ok(None) | Err(_) => End::Closed,
        }
    }

    /// Closes: both listeners, the callout and what the doors have in progress, the plane, the callout connection, and
    /// whatever is left (contract 05 §15.4). A request in progress has 10 s to end.
    ///
    /// One flight at a time; callers join it, and one that failed may be tried again. The flight does not stop when a
    /// caller does.
    pub async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }

    /// Whether a close has come so far that nothing is taken in any more.
    pub(crate) fn takes_nothing_in(&self) -> bool {
        self.inner.intake_stopped.initialized()
    }

    /// The same as [`Self::close`].
    pub async fn drain(&self) -> Result<(), CloseError> {
        self.close().await
    }
}

fn not_ready() -> EpError {
    EpError::unavailable("the auth service context is not ready; retry once it has been started again")
}

impl Inner {
    fn close(self: &Arc<Self>) -> Flight {
        let mut slot = self.flight.lock();
        if let Some(flight) = slot.as_ref().filter(|flight| flight.peek().is_none_or(Result::is_ok)) {
            return flight.clone();
        }
        self.closing.cancel();
        let running = tokio::spawn(Arc::clone(self).close_once());
        let flight = async move {
            running.await.unwrap_or_else(|error| {
                Err(CloseError(vec![EpError::internal(format!("the close did not run to its end: {error}"))]))
            })
        }
        .boxed()
        .shared();
        slot.insert(flight).clone()
    }

    /// A fence, a dead callout, a lost connection or the drop of the last handle ends the context. During a close only
    /// a failure still counts.
    async fn watch_end(self: Arc<Self>, released: CancellationToken) {
        let end = self.first_end(&released).await;
        let cause = match &end {
            End::Fenced(reason) => Some(reason.clone()),
            End::CalloutEnded => Some("auth callout ended".to_owned()),
            End::BrokerClosed(Some(error)) => Some(format!("broker connection closed ({error})")),
            End::BrokerClosed(None) => Some("broker connection closed".to_owned()),
            End::Closed => None,
        };
        if let Some(cause) = cause {
            tracing::error!(space = %self.parts.space, %cause, "the context is unavailable and closes");
            *self.unavailable.lock() = Some(cause);
        }
        self.end.send_replace(Some(end));
        if let Err(error) = self.close().await {
            tracing::error!(space = %self.parts.space, %error, "the context did not close");
        }
    }

    async fn first_end(&self, released: &CancellationToken) -> End {
        let parts = &self.parts;
        let mut state = parts.connection.state();
        let mut callout_served = true;
        loop {
            tokio::select! {
                biased;
                reason = parts.plane.fenced() => return End::Fenced(reason),
                _ = state.wait_for(|state| *state == ConnectionState::Closed) => {
                    let error = parts.connection.failure().map(|failure| failure.message.clone());
                    let asked = error.is_none() && self.closing.is_cancelled();
                    return if asked { End::Closed } else { End::BrokerClosed(error) };
                }
                () = parts.callout.ended(), if callout_served => {
                    // It ends with a close and with its connection too; then that is what ended the context.
                    callout_served = false;
                    let connection_ended = parts.connection.ended().now_or_never().is_some();
                    if !connection_ended && !self.closing.is_cancelled() {
                        return End::CalloutEnded;
                    }
                }
                () = released.cancelled() => return End::Closed,
            }
        }
    }

    async fn close_once(self: Arc<Self>) -> Result<(), CloseError> {
        self.intake_stopped.get_or_init(|| self.stop_intake()).await;
        let mut failures = Vec::new();
        failures.extend(self.parts.issuer.close().await.err());
        failures.extend(self.parts.plane.close().await.err());
        failures.extend(self.parts.connection.close().await.err());
        if !failures.is_empty() {
            return Err(CloseError(failures));
        }
        self.parts.custody.close_remaining().await.map_err(|error| CloseError(vec![error]))?;
        self.parts.custody.complete();
        Ok(())
    }

    /// No request, no connect and no call of a door is taken any more; those in progress end. Runs once.
    async fn stop_intake(&self) {
        let listeners = futures::future::join_all(self.parts.listeners.iter().map(Listener::stop));
        let (_, (), entered) = futures::join!(listeners, self.parts.callout.stop(), self.entered.write());
        drop(entered);
        self.parts.manager.settled().await;
        if let Some(stderr) = self.parts.stderr {
            stderr.flush().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

    use cotal_authority::issued::ISSUER_TTL_DEFAULT_SECS;
    use cotal_broker::Servers;
    use cotal_callout::ConnectLimits;
    use cotal_testkit::{hung_disk::HungDisk, space::TestSpace};
    use cotal_trust::system::SystemClock;
    use cotal_workspace::secret_store::FsSecretStore;
    use futures::{join, poll};
    use tokio::{net::TcpStream, task::yield_now};

    use super::*;
    use crate::{
        composition::Composition,
        context::{self, ContextInputs, StartError},
        member::Member,
        replica,
    };

    /// A space, and the clock that everything of a context holds on to while it runs.
    struct Fixture {
        space: TestSpace,
        clock: Arc<SystemClock>,
        lines: Arc<Mutex<Vec<String>>>,
    }

    impl Fixture {
        async fn new() -> Self {
            let space = TestSpace::start("demo", "http://127.0.0.1:9/api/auth").await;
            Self { space, clock: Arc::new(SystemClock), lines: Arc::default() }
        }

        fn inputs(&self) -> ContextInputs {
            let lines = Arc::clone(&self.lines);
            let TestSpace { space, root, server, state_dir, .. } = &self.space;
            let servers = Servers::parse(&server.url()).unwrap();
            let store = Arc::new(FsSecretStore::open(root).unwrap());
            ContextInputs {
                member: Member {
                    callout_log: Some(Arc::new(move |line| lines.lock().push(line.to_owned()))),
                    clock: Arc::clone(&self.clock) as _,
                    ..Member::of_root(root, space.clone(), servers, store, state_dir.clone())
                },
                identity_root: root.space_dir(space),
                composition: Composition::new().check().unwrap(),
                issuer_ttl_secs: ISSUER_TTL_DEFAULT_SECS,
                platform: None,
                supervision: None,
                port: 0,
                public_face: None,
                connect_limits: ConnectLimits::default(),
            }
        }

        async fn started(&self) -> AuthService {
            context::start(self.inputs()).await.unwrap()
        }

        /// Resolves when no task of a context is left that could still read the clock.
        async fn nothing_runs(&self) {
            let alone = async {
                while Arc::strong_count(&self.clock) > 1 {
                    yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), alone).await.expect("something still runs");
        }
    }

    /// Nothing of it is open yet that only its end could close.
    #[test]
    fn a_start_that_waits_for_a_disk_that_hangs_ends_when_its_host_asks_for_the_bar() {
        HungDisk::runtime().unwrap().block_on(async {
            let fixture = Fixture::new().await;
            let inputs = fixture.inputs();
            let (member, threshold) = (inputs.member.clone(), inputs.member.threshold.clone());
            let disk = HungDisk::hang();
            let mut starting = pin!(async { join!(context::start(inputs), replica::start(member)) });
            assert!(poll!(starting.as_mut()).is_pending());
            threshold.bar();
            let ended = tokio::time::timeout(Duration::from_secs(60), starting).await;
            let (context, replica) = ended.expect("nobody waits for the disk");
            assert!(matches!(context, Err(StartError::Unwanted)));
            assert!(matches!(replica, Err(StartError::Unwanted)));
            disk.heal().await;
        });
    }

    fn cause(service: &AuthService) -> String {
        match service.readiness() {
            Readiness::Unavailable { cause } => cause,
            other => panic!("it is {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_callout_that_ends_by_itself_makes_the_context_unavailable_and_closes_it() {
        let fixture = Fixture::new().await;
        let service = fixture.started().await;
        service.inner.parts.callout.stop().await;
        assert_eq!(service.ended().await, End::CalloutEnded);
        assert_eq!(cause(&service), "auth callout ended");
        assert!(service.closed().await.iter().all(|owned| owned.ended));
    }

    #[tokio::test]
    async fn a_callout_that_ends_with_its_context_is_no_failure() {
        let fixture = Fixture::new().await;
        let service = fixture.started().await;
        service.close().await.unwrap();
        assert_eq!(service.ended().await, End::Closed);
        assert_eq!(service.readiness(), Readiness::Draining);
    }

    #[tokio::test]
    async fn a_connection_that_closes_without_an_error_ends_the_context_without_one() {
        let fixture = Fixture::new().await;
        let service = fixture.started().await;
        service.inner.parts.connection.close().await.unwrap();
        assert_eq!(service.ended().await, End::BrokerClosed(None));
        assert_eq!(cause(&service), "broker connection closed");
    }

    #[tokio::test]
    async fn a_connection_that_is_lost_during_a_close_still_reads_unavailable() {
        let mut fixture = Fixture::new().await;
        let service = fixture.started().await;
        // As far as a close that has closed the plane: its end is no failure any more, the callout connection's is.
        service.inner.closing.cancel();
        service.inner.parts.plane.close().await.unwrap();
        fixture.space.server.kill();
        // Nothing listens any more: only the pauses between attempts are left to wait for.
        tokio::time::pause();
        let End::BrokerClosed(Some(error)) = service.ended().await else { panic!("it was lost") };
        assert_eq!(cause(&service), format!("broker connection closed ({error})"));
    }

    #[tokio::test]
    async fn a_dropped_handle_leaves_nothing_running() {
        let fixture = Fixture::new().await;
        let service = fixture.started().await;
        let custody = service.inner.parts.custody.clone();
        let addr = service.url().strip_prefix("http://").unwrap().to_owned();
        let clone = service.clone();
        drop(service);
        assert_eq!(clone.readiness(), Readiness::Ready, "a clone is the same handle");
        drop(clone);
        assert!(custody.closed().await.iter().all(|owned| owned.ended));
        fixture.nothing_runs().await;
        assert!(TcpStream::connect(&addr).await.is_err());
    }

    #[tokio::test]
    async fn a_start_of_which_a_step_panics_leaves_nothing_running_and_gives_the_claim_back() {
        let fixture = Fixture::new().await;
        let mut inputs = fixture.inputs();
        inputs.member.callout_log = Some(Arc::new(|_| panic!("a test's panic")));
        let Err(refusal) = context::start(inputs).await else { panic!("it has no log") };
        assert!(matches!(refusal, StartError::Interrupted(_)), "{refusal}");
        fixture.nothing_runs().await;
        fixture.started().await.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_start_whose_caller_went_away_leaves_nothing_running() {
        let fixture = Fixture::new().await;
        let mut start = Box::pin(context::start(fixture.inputs()));
        poll_fn(|cx| {
            assert!(start.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(start);
        fixture.nothing_runs().await;
        assert_eq!(fixture.lines.lock().len(), 1, "the start ran on, as far as its callout");
    }
}
