//! A space with its broker, its plane and one callout, and clients that connect to it.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a house that cannot be built fails its test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use cotal_authority::{
    ConnectReader, Plane, PlaneInputs, Redemption, failpoint::Failpoint, issued::IssuerSession,
    plane::PlaneIdentity,
};
use cotal_broker::{Connection, Connector, Custody, Lifetime, kv::Bucket, provision::provision_space};
use cotal_callout::{
    Callers, Callout, CalloutLimits, CalloutParts, ConnectLimits, Crowd, Limiter, ManagerAuthorizer,
    SessionVerifier,
};
use cotal_ledger::{GrantInput, Ledger};
use cotal_testkit::{
    broker::NatsServer,
    raw::{ConnectOutcome, RawClient},
};
use cotal_trust::{
    bearer::{self, BearerGrant},
    bundle::{BrokerTrust, SpaceAccount},
    callout_account::CalloutAuth,
    issuer::IssuerKeySet,
    nkey::Seed,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Actor, Clock, CredentialId, DerivedOwner, EpError, InfraRole, InstanceId, LifecycleUid, Permissions,
    Principal, Rules, SessionClaim, Space, UnixMillis, UnixSecs, User, View,
};
use cotal_workspace::broker_config::{self, AccountResolver, BrokerConfig, BrokerPolicy};
use parking_lot::Mutex;

/// What a broker tells every refused client.
pub(crate) const VIOLATION: &str = "Authorization Violation";

/// A running space.
pub(crate) struct House {
    pub(crate) material: Material,
    /// The broker that asks.
    pub(crate) server: NatsServer,
    /// The broker that holds the stores, when it is not the one that asks.
    pub(crate) store: Option<Arc<NatsServer>>,
    pub(crate) plane: Arc<Plane>,
    pub(crate) ledger: Ledger,
    pub(crate) issuer: Arc<IssuerKeySet>,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) callout: Callout,
    pub(crate) admin: Connection,
    pub(crate) clock: Arc<ScriptedClock>,
    /// Everything that the plane and the issuers opened.
    pub(crate) custody: Custody,
    plan: Plan,
    lines: Arc<Mutex<Vec<String>>>,
    nonces: AtomicU64,
}

/// How a house is built.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) connect_limits: ConnectLimits,
    pub(crate) callout_limits: CalloutLimits,
    pub(crate) crowd: Option<Crowd>,
    pub(crate) expected_server_ids: Option<Vec<String>>,
    /// Keep the stores in a broker of their own, which a test may pause.
    pub(crate) store_apart: bool,
    /// How long the log blocks at the line of a denial, as no log should.
    pub(crate) denial_takes: Duration,
    /// Whether views are asked about, over the plane's reader, and callers issued authority.
    pub(crate) callers: bool,
    /// Watches what the first callout issues.
    pub(crate) watch: Mutex<Option<Arc<Failpoint>>>,
}

impl Plan {
    /// As [`Self::patient`], with whoever answers for views.
    pub(crate) fn with_callers() -> Self {
        Self { callers: true, ..Self::patient() }
    }

    /// No limits, and time enough for a busy machine: what is proved is not how fast it is.
    pub(crate) fn patient() -> Self {
        Self {
            connect_limits: ConnectLimits {
                per_actor_per_minute: 10_000,
                per_owner_per_minute: 10_000,
                per_host_per_minute: 10_000,
            },
            callout_limits: CalloutLimits {
                auth_timeout: Duration::from_secs(30),
                ..CalloutLimits::default()
            },
            ..Self::default()
        }
    }
}

/// An actor with a root credential.
#[derive(Clone)]
pub(crate) struct Granted {
    pub(crate) owner: DerivedOwner,
    pub(crate) actor: Actor,
    pub(crate) scope: Vec<String>,
    pub(crate) uid: LifecycleUid,
    pub(crate) credential: CredentialId,
}

/// What a bearer is asked for.
#[derive(Default, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) view: Option<View>,
    /// How long ago the bearer was issued, in seconds.
    pub(crate) age: u64,
}

impl House {
    pub(crate) async fn build(name: &str, plan: Plan) -> Self {
        let material = Material::create(name);
        let timeout = plan.callout_limits.auth_timeout.as_secs();
        let server = material.broker(timeout).await;
        let store = if plan.store_apart { Some(Arc::new(material.broker(timeout).await)) } else { None };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let entropy = Arc::new(SystemEntropy);
        let url = store.as_deref().unwrap_or(&server).url();
        let custody = Custody::new();
        let connector = material.connector(&url, &custody);
        let admin = connector
            .open(format!("cotal:test-admin:{name}"), &|_| everything(), Lifetime::Renewing)
            .await
            .unwrap();
        provision_space(&admin, &material.space).await.unwrap();
        let plane = Plane::open(PlaneInputs {
            connector,
            clock: clock.clone(),
            entropy: entropy.clone(),
            identity: PlaneIdentity {
                instance: InstanceId::mint(&*entropy),
                serve: Seed::<User>::generate(&*entropy).public().clone(),
            },
            native_issuance_prune: Duration::from_secs(60),
            claim_patience: Duration::ZERO,
            past: None,
        })
        .await
        .unwrap();

        let issuer = Arc::new(IssuerKeySet::create(&material.space, &*entropy));
        let ledger = Ledger::at(material.state_dir.path());
        let limiter = Arc::new(Limiter::new(plan.connect_limits, clock.clone()));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let clock = Arc::new(ScriptedClock::default());
        let parts = Parts {
            material: &material,
            server: &server,
            plane: &plane,
            ledger: &ledger,
            issuer: &issuer,
            limiter: &limiter,
            plan: &plan,
            clock: &clock,
            lines: &lines,
            store: &url,
            custody: &custody,
        };
        let callout = parts.start().await;
        let nonces = AtomicU64::new(0);
        Self {
            material,
            server,
            store,
            plane,
            ledger,
            issuer,
            limiter,
            callout,
            admin,
            clock,
            custody,
            plan,
            lines,
            nonces,
        }
    }

    /// One more callout of the same space.
    pub(crate) async fn start_callout(&self) -> Callout {
        let Self { material, server, plane, ledger, issuer, limiter, plan, clock, lines, custody, .. } = self;
        let store = &self.store.as_deref().unwrap_or(server).url();
        Parts { material, server, plane, ledger, issuer, limiter, plan, clock, lines, store, custody }
            .start()
            .await
    }

    /// Grants an interactive row and ensures its root credential.
    pub(crate) async fn grant(&self, actor: &str, scope: &[&str], read: &[&str], post: &[&str]) -> Granted {
        let owner = owner();
        let actor = Actor::parse(actor).unwrap();
        let input = GrantInput::new(owner.clone(), actor.clone())
            .scope(scope)
            .allow_subscribe(read)
            .allow_publish(post);
        let row = self.ledger.grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
        let uid = LifecycleUid::parse(row.lifecycle_uid.as_deref().unwrap()).unwrap();
        let credential = self.plane.mint_connect_credential(&owner, &actor, &uid).await.unwrap();
        Granted { owner, actor, scope: input.scope, uid, credential }
    }

    pub(crate) fn bearer(&self, granted: &Granted, ask: Ask) -> String {
        self.bearer_by(&self.issuer, granted, ask)
    }

    /// A bearer of this view, with what the test pins it to.
    pub(crate) fn pinned(
        &self,
        granted: &Granted,
        view: View,
        pin: impl FnOnce(BearerGrant) -> BearerGrant,
    ) -> String {
        let grant = pin(Self::claims(granted, Some(view)));
        let now = SystemClock.now_secs();
        bearer::mint(&self.issuer, &self.material.space, &grant, now).unwrap().token.to_string()
    }

    /// The same, signed by these keys.
    pub(crate) fn bearer_by(&self, issuer: &IssuerKeySet, granted: &Granted, ask: Ask) -> String {
        let grant = Self::claims(granted, ask.view);
        let now = UnixSecs(SystemClock.now_secs().0 - ask.age);
        bearer::mint(issuer, &self.material.space, &grant, now).unwrap().token.to_string()
    }

    fn claims(granted: &Granted, view: Option<View>) -> BearerGrant {
        BearerGrant {
            owner: granted.owner.clone(),
            actor: granted.actor.clone(),
            scope: Some(granted.scope.clone()),
            parent: None,
            lifecycle_uid: granted.uid.clone(),
            credential_id: granted.credential.clone(),
            view,
            manager_instance_id: None,
            session: None,
            transfer_writer: None,
            ttl_secs: None,
            not_after: None,
        }
    }

    /// A connect with the sentinel, this bearer and this name.
    pub(crate) async fn connect_as(&self, bearer: &str, name: &str) -> (Option<RawClient>, ConnectOutcome) {
        let sentinel = &self.material.callout.sentinel_creds;
        RawClient::connect(&self.server.url(), Some(sentinel), Some(bearer), Some(name)).await
    }

    /// The broker's own address.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        std::net::SocketAddr::from(([127, 0, 0, 1], self.server.port()))
    }

    /// As [`Self::connect_as`], over this socket.
    pub(crate) async fn connect_over(
        &self,
        stream: tokio::net::TcpStream,
        bearer: &str,
        name: &str,
    ) -> (Option<RawClient>, ConnectOutcome) {
        let sentinel = &self.material.callout.sentinel_creds;
        RawClient::connect_over(stream, Some(sentinel), Some(bearer), Some(name)).await
    }

    /// A connect with a fresh nonce; `None` when it was refused.
    pub(crate) async fn connect(&self, bearer: &str) -> Option<RawClient> {
        self.connect_as(bearer, &self.nonce()).await.0
    }

    pub(crate) fn nonce(&self) -> String {
        format!("nonce-{:08}", self.nonces.fetch_add(1, Ordering::Relaxed))
    }

    /// A connect that must be denied; the callout's reason.
    pub(crate) async fn denied(&self, bearer: &str, name: &str) -> String {
        let before = self.lines().len();
        let (_, outcome) = self.connect_as(bearer, name).await;
        assert!(matches!(&outcome, ConnectOutcome::Refused(text) if text.contains(VIOLATION)), "{outcome:?}");
        let mut reason = None;
        eventually("a denied line", || {
            let lines = self.lines();
            let line = lines[before..].iter().find(|line| line.contains(" outcome=denied "));
            reason = line.and_then(|line| field(line, "reason"));
            reason.is_some()
        })
        .await;
        reason.expect("a reason")
    }

    /// Waits until so many requests were answered: a line is written after its answer was sent.
    pub(crate) async fn answered(&self, requests: usize) {
        eventually("every line", || {
            self.lines().iter().filter(|line| line.contains(" outcome=")).count() >= requests
        })
        .await;
    }

    /// The answered requests' lines so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    pub(crate) fn count(&self, outcome: &str) -> usize {
        let outcome = format!(" outcome={outcome} ");
        self.lines().iter().filter(|line| line.contains(&outcome)).count()
    }

    pub(crate) fn auth_bucket(&self) -> Bucket {
        self.bucket("auth")
    }

    /// The space's bucket of this kind.
    pub(crate) fn bucket(&self, kind: &str) -> Bucket {
        Bucket::new(&self.admin, &format!("cotal_{kind}_{}", self.material.space.token()))
    }

    /// Issuer connections so far, and how many of them have not ended.
    pub(crate) fn issuers(&self) -> (u64, u64) {
        let label = InfraRole::ISSUER.label(&self.material.space);
        let all = self.custody.connections();
        let ours = all.iter().filter(|owned| owned.label == label);
        let left = ours.clone().filter(|owned| !owned.ended).map(|owned| owned.count).sum();
        (ours.map(|owned| owned.count).sum(), left)
    }

    /// How many issuance rows there are.
    pub(crate) async fn issuance_rows(&self) -> usize {
        self.auth_bucket().keys("natkey.>").await.unwrap().len()
    }

    pub(crate) async fn close(self) {
        self.callout.stop().await;
        self.plane.close().await.unwrap();
    }
}

/// Waits for what must come, for as long as a busy machine may take.
pub(crate) async fn eventually(what: &str, mut came: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !came() {
        assert!(tokio::time::Instant::now() < deadline, "{what} never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

struct Parts<'a> {
    material: &'a Material,
    server: &'a NatsServer,
    plane: &'a Plane,
    ledger: &'a Ledger,
    issuer: &'a Arc<IssuerKeySet>,
    limiter: &'a Arc<Limiter>,
    plan: &'a Plan,
    clock: &'a Arc<ScriptedClock>,
    lines: &'a Arc<Mutex<Vec<String>>>,
    /// The address of the stores' broker.
    store: &'a str,
    custody: &'a Custody,
}

impl Parts<'_> {
    fn callers(&self) -> Callers {
        if !self.plan.callers {
            return Callers::default();
        }
        let connector = self.material.connector(self.store, self.custody);
        let issuer = IssuerSession::new(connector, Arc::new(SystemEntropy), 300).unwrap();
        if let Some(failpoint) = self.plan.watch.lock().take() {
            issuer.watch(&failpoint);
        }
        let live = Arc::new(Live(self.plane.reader().clone()));
        Callers { sessions: Some(live.clone()), managers: Some(live), issuer: Some(issuer) }
    }

    async fn start(self) -> Callout {
        let material = self.material;
        let connector = material.connector(&self.server.url(), &Custody::new());
        let label = format!("cotal:auth-callout:{}", material.space);
        let connection = connector.open_creds(label, &material.callout.callout_creds).await.unwrap();
        let (sink, denial_takes) = (Arc::clone(self.lines), self.plan.denial_takes);
        let parts = CalloutParts {
            space: material.space.clone(),
            callout: Arc::new(material.callout.clone()),
            data_account: material.account.data_account(),
            issuer: self.issuer.clone(),
            ledger: self.ledger.clone(),
            reader: self.plane.reader().clone(),
            issuance: self.plane.issuance().clone(),
            callers: self.callers(),
            limiter: self.limiter.clone(),
            limits: self.plan.callout_limits,
            crowd: self.plan.crowd.clone(),
            expected_server_ids: self.plan.expected_server_ids.clone(),
            clock: self.clock.clone(),
            entropy: Arc::new(SystemEntropy),
            log: Arc::new(move |line| {
                sink.lock().push(line.to_owned());
                if line.contains(" outcome=denied ") && !denial_takes.is_zero() {
                    tokio::task::block_in_place(|| std::thread::sleep(denial_takes));
                }
            }),
        };
        Callout::start(connection, parts).await.unwrap()
    }
}

/// Answers for views as the service does.
struct Live(Arc<ConnectReader>);

#[async_trait]
impl SessionVerifier for Live {
    async fn verify_session(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
        session: &SessionClaim,
    ) -> Result<SessionClaim, EpError> {
        let SessionClaim { endpoint, session_id: session, epoch, exp: _ } = session;
        let asked = Redemption { principal, uid, endpoint, session, epoch: *epoch, grant_sig: None };
        self.0.redeem_session(&asked, None).await
    }
}

#[async_trait]
impl ManagerAuthorizer for Live {
    async fn authorize_manager_caller(
        &self,
        owner: &DerivedOwner,
        instance: &InstanceId,
    ) -> Result<(), EpError> {
        self.0.authorize_manager_caller(owner, instance, None).await
    }
}

/// The machine's clock, which can do something when it is read.
#[derive(Default)]
pub(crate) struct ScriptedClock {
    script: Mutex<Option<Scripted>>,
}

/// How many readings from now, and what then.
type Scripted = (usize, Box<dyn FnOnce() + Send>);

impl ScriptedClock {
    /// Does this at the `nth` reading from now.
    pub(crate) fn at_reading(&self, nth: usize, act: impl FnOnce() + Send + 'static) {
        *self.script.lock() = Some((nth, Box::new(act)));
    }
}

impl Clock for ScriptedClock {
    fn now_millis(&self) -> UnixMillis {
        let mut script = self.script.lock();
        if let Some((left, _)) = &mut *script {
            *left -= 1;
            if *left == 0
                && let Some((_, act)) = script.take()
            {
                act();
            }
        }
        SystemClock.now_millis()
    }
}

/// The value of a line's field, unquoted.
pub(crate) fn field(line: &str, name: &str) -> Option<String> {
    let rest = &line[line.find(&format!(" {name}="))? + name.len() + 2..];
    Some(match rest.strip_prefix('"') {
        Some(quoted) => quoted[..quoted.rfind('"')?].replace("\\\"", "\"").replace("\\\\", "\\"),
        None => rest.split(' ').next()?.to_owned(),
    })
}

pub(crate) fn everything() -> Permissions {
    let all = Rules { allow: vec![">".to_owned()], deny: Vec::new() };
    Permissions { publish: all.clone(), subscribe: all }
}

pub(crate) fn owner() -> DerivedOwner {
    DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap()
}

/// A space's trust and state, made here.
pub(crate) struct Material {
    pub(crate) space: Space,
    pub(crate) trust: BrokerTrust,
    pub(crate) account: SpaceAccount,
    pub(crate) callout: CalloutAuth,
    pub(crate) state_dir: tempfile::TempDir,
}

impl Material {
    fn create(name: &str) -> Self {
        let (entropy, now) = (&SystemEntropy, SystemClock.now_secs());
        let space = Space::parse(name).unwrap();
        let trust = BrokerTrust::create(name, entropy, now);
        let account = SpaceAccount::create(&trust, &space, entropy, now);
        let data = account.data_account().account;
        let callout = CalloutAuth::create(&space, &trust.operator, &data, entropy, now);
        Self { space, trust, account, callout, state_dir: tempfile::tempdir().unwrap() }
    }

    /// Opens connections to the data account at this broker, signed by its key.
    pub(crate) fn connector(&self, broker: &str, custody: &Custody) -> Connector {
        Connector::new(
            broker,
            self.space.clone(),
            self.account.data_account(),
            custody.clone(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        )
    }

    /// A broker that trusts both accounts.
    async fn broker(&self, auth_timeout_secs: u64) -> NatsServer {
        NatsServer::start_with(|port, store| {
            broker_config::render(&BrokerConfig {
                host: broker_config::DEFAULT_HOST,
                port,
                store_dir: store.to_owned(),
                max_file_store: None,
                tls: None,
                websocket: None,
                resolver: AccountResolver::Memory,
                policy: BrokerPolicy {
                    auth_timeout_secs: Some(auth_timeout_secs),
                    ..BrokerPolicy::default()
                },
                trust: &self.trust,
                spaces: std::slice::from_ref(&self.account),
                extra_accounts: &[(self.callout.account.public().clone(), self.callout.jwt.clone())],
            })
            .unwrap()
        })
        .await
    }
}
