//! A space, its broker, its IdP, and a service in front of them.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use cotal_auth::{
    AuthService, AuthServiceArgs, AuthServiceInputs, AuthServiceRuntimeOptions, DaemonError, HostedContext,
    HostedSpace, SpaceAt, run_auth_service_until,
};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{
    injected::Injected,
    jwt,
    raw::{ConnectOutcome, RawClient},
    rows::Rows,
    space::TestSpace,
};
use cotal_trust::{
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid, es_value::EsValue};
use cotal_workspace::{material::Discovery, root::Root, secret_store::SecretStore};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};

const NONCE: &str = "nonce-0123456789";
const COORDINATE: &str = "test-store";
/// Longer than any reconnect back-off under test.
pub(crate) const AT_LAST: Duration = Duration::from_secs(60);

pub(crate) struct Stage {
    pub(crate) idp: DevIdp,
    pub(crate) space: TestSpace,
    pub(crate) ledger: Ledger,
    server: String,
    http: reqwest::Client,
    peers: AtomicU32,
}

impl Stage {
    pub(crate) async fn start() -> Self {
        let idp = DevIdp::start(DevIdpOptions::default(), Arc::new(SystemClock), Arc::new(SystemEntropy))
            .await
            .unwrap();
        let space = TestSpace::start("demo", &idp.base_url()).await;
        let ledger = Ledger::at(&space.state_dir);
        let server = space.server.url();
        let (http, peers) = (http_client(AT_LAST).unwrap(), AtomicU32::new(0));
        Self { idp, space, ledger, server, http, peers }
    }

    pub(crate) fn owner_of(&self, sub: &str) -> DerivedOwner {
        self.space.material.owner_secret.derive(&self.idp.origin(), sub).unwrap()
    }

    pub(crate) fn grant_human(&self, sub: &str, actor: &str, scope: &[&str], channels: &[&str]) {
        let input = grant(&self.owner_of(sub), actor, scope, channels);
        self.ledger.grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
    }

    /// Grants an agent under its spawner; its exchange body.
    pub(crate) fn grant_agent(&self, sub: &str, parent: &str, actor: &str, channels: &[&str]) -> Value {
        let owner = self.owner_of(sub);
        let (secret, hash) = mint_agent_secret(&SystemEntropy);
        let input = GrantInput {
            parent: Some(format!("{owner}.{parent}")),
            lifecycle_uid: Some(LifecycleUid::mint(&SystemEntropy)),
            ..grant(&owner, actor, &[], channels)
        };
        self.ledger.grant_managed(&input, &hash, &SystemClock).unwrap();
        json!({"owner": owner.as_str(), "actor": actor, "actorToken": secret.as_str()})
    }

    pub(crate) fn revoke_human(&self, sub: &str, actor: &str) {
        assert!(self.ledger.revoke_interactive(&self.owner_of(sub), &Actor::parse(actor).unwrap()).unwrap());
    }

    pub(crate) fn revoke_agent(&self, sub: &str, actor: &str) {
        assert!(self.ledger.revoke_managed(&self.owner_of(sub), &Actor::parse(actor).unwrap()).unwrap());
    }

    pub(crate) fn human(&self, sub: &str, actor: &str) -> Value {
        json!({"idpToken": self.idp.mint_token(sub, 600), "actor": actor})
    }

    pub(crate) fn discovery(&self) -> Option<Discovery> {
        Discovery::load(&self.space.state_dir).unwrap()
    }

    /// Connects as a client does: the sentinel's creds, the bearer, a nonce for its inbox.
    pub(crate) async fn connect(&self, bearer: Option<&str>) -> (Option<RawClient>, ConnectOutcome) {
        self.connect_named(bearer, NONCE).await
    }

    /// The same, under a name of its own.
    pub(crate) async fn connect_named(
        &self,
        bearer: Option<&str>,
        nonce: &str,
    ) -> (Option<RawClient>, ConnectOutcome) {
        let sentinel = &self.space.material.callout.sentinel_creds;
        RawClient::connect(&self.space.server.url(), Some(sentinel), bearer, Some(nonce)).await
    }

    /// The rows of the space, as a test may write them.
    pub(crate) async fn rows(&self) -> Rows {
        Rows::over(&self.space.anything().await.unwrap(), &self.space.space)
    }

    pub(crate) async fn connected(&self, bearer: &str) -> RawClient {
        let (client, outcome) = self.connect(Some(bearer)).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
        client.unwrap()
    }

    pub(crate) async fn refused(&self, bearer: Option<&str>) {
        let (_, outcome) = self.connect(bearer).await;
        assert!(matches!(outcome, ConnectOutcome::Refused(_)), "{outcome:?}");
    }

    pub(crate) async fn restart_broker(&mut self) {
        self.space.server.restart().await;
    }

    /// From now on the daemon is pointed at a port where nothing listens.
    pub(crate) fn forget_broker(&mut self) {
        "nats://127.0.0.1:1".clone_into(&mut self.server);
    }

    pub(crate) async fn post(&self, url: &str, cap: Option<&str>, body: &Value) -> (u16, Value) {
        post(&self.http, url, cap, body).await
    }

    /// A peer that no face behind a trusted proxy has heard of.
    pub(crate) fn fresh_peer(&self) -> String {
        format!("10.0.{}", self.peers.fetch_add(1, Ordering::Relaxed))
    }

    /// Posts to a public face as this peer, whom a trusted proxy names.
    pub(crate) async fn post_from(&self, peer: &str, url: &str, body: &Value) -> (u16, Value) {
        let request = self.http.post(url).header("x-forwarded-for", peer);
        send(request, body).await
    }

    /// Posts to a route of the loopback face of a service in this process.
    pub(crate) async fn post_to(&self, service: &AuthService, route: &str, body: &Value) -> (u16, Value) {
        self.post(&format!("{}{route}", service.url()), Some(service.cap().expose()), body).await
    }

    pub(crate) async fn exchange(&self, service: &AuthService, body: &Value) -> (u16, Value) {
        self.post_to(service, "/exchange", body).await
    }

    pub(crate) fn inputs(&self) -> AuthServiceInputs {
        AuthServiceInputs::new(self.hosted())
    }

    pub(crate) fn hosted(&self) -> HostedSpace {
        self.hosted_dialling(&self.server)
    }

    pub(crate) fn hosted_dialling(&self, servers: &str) -> HostedSpace {
        self.hosted_as(self.context(), servers, COORDINATE)
    }

    /// This stage's space, assigned, reached and stored as said.
    pub(crate) fn hosted_as(
        &self,
        context: HostedContext,
        servers: &str,
        store_identity: &str,
    ) -> HostedSpace {
        let at = SpaceAt::new(self.space.space.clone(), servers);
        HostedSpace::new(context, at, self.injected(), store_identity, &self.space.state_dir)
            .callout_log(Arc::new(|_| {}))
    }

    /// The assignment of this stage's own account.
    pub(crate) fn context(&self) -> HostedContext {
        HostedContext {
            account_public_key: self.space.account.data_account().account,
            lifecycle_uid: LifecycleUid::mint(&SystemEntropy),
        }
    }

    pub(crate) fn injected(&self) -> Arc<dyn SecretStore> {
        Arc::new(Injected::over(self.space.store.clone(), COORDINATE))
    }
}

fn grant(owner: &DerivedOwner, actor: &str, scope: &[&str], channels: &[&str]) -> GrantInput {
    GrantInput::new(owner.clone(), Actor::parse(actor).unwrap())
        .scope(scope)
        .allow_subscribe(channels)
        .allow_publish(channels)
}

/// `act.credentialId` of a bearer.
pub(crate) fn root_credential(bearer: &str) -> String {
    claims_of(bearer)["act"]["credentialId"].as_str().unwrap().to_owned()
}

/// What a JWT says.
pub(crate) fn claims_of(token: &str) -> Value {
    jwt::claims_of(token).unwrap()
}

/// A request or an answer of a manager's, as its parsers read it.
pub(crate) fn es(value: &Value) -> EsValue {
    EsValue::parse(value.to_string().as_bytes()).unwrap()
}

/// The bearer that an exchange was answered with.
pub(crate) fn bearer_of((status, answer): (u16, Value)) -> String {
    assert_eq!(status, 200, "{answer}");
    answer["token"].as_str().unwrap().to_owned()
}

async fn post(http: &reqwest::Client, url: &str, cap: Option<&str>, body: &Value) -> (u16, Value) {
    let mut request = http.post(url);
    if let Some(cap) = cap {
        request = request.header("authorization", format!("Bearer {cap}"));
    }
    send(request, body).await
}

async fn send(request: reqwest::RequestBuilder, body: &Value) -> (u16, Value) {
    let request = request.header("content-type", "application/json").body(body.to_string());
    read(request.send().await.unwrap()).await
}

async fn read(response: reqwest::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
}

/// `cotal auth-service`, in this process.
pub(crate) struct Daemon {
    pub(crate) discovery: Discovery,
    http: reqwest::Client,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), DaemonError>>,
}

impl Daemon {
    pub(crate) async fn start(stage: &Stage, args: AuthServiceArgs) -> Self {
        Self::start_choosing(stage, args, None).await
    }

    /// One whose composition chose the manager of interactive callers.
    pub(crate) async fn start_choosing(
        stage: &Stage,
        args: AuthServiceArgs,
        selection: Option<&str>,
    ) -> Self {
        let (announced, ready) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let options = AuthServiceRuntimeOptions {
            interactive_manager_selection: selection.map(str::to_owned),
            ..options(stage, Some(announced))
        };
        let args = of_stage(stage, args);
        let ended = tokio::spawn(async move {
            run_auth_service_until(&args, None, &options, async move {
                let _ = stopped.await;
            })
            .await
        });
        // The daemon drops its end without a word when it does not start; it then ends with the reason.
        let is_ready = ready.await.is_ok();
        assert!(is_ready, "the daemon did not start: {:?}", ended.await);
        let discovery = stage.discovery().expect("a ready daemon has a discovery file");
        Self { discovery, http: stage.http.clone(), stop, ended }
    }

    pub(crate) async fn exchange(&self, body: &Value) -> (u16, Value) {
        self.post(&format!("{}/exchange", self.discovery.url), Some(&self.discovery.cap), body).await
    }

    pub(crate) async fn post(&self, url: &str, cap: Option<&str>, body: &Value) -> (u16, Value) {
        post(&self.http, url, cap, body).await
    }

    pub(crate) async fn get(&self, url: &str) -> (u16, Value) {
        read(self.http.get(url).send().await.unwrap()).await
    }

    /// The end that comes by itself.
    pub(crate) async fn ended(self) -> Result<(), DaemonError> {
        let Self { ended, stop: _told_to_stop_only_when_dropped, .. } = self;
        ended.await.unwrap()
    }

    /// As a host that drops the daemon's future.
    pub(crate) async fn dropped(self) {
        self.ended.abort();
        assert!(self.ended.await.unwrap_err().is_cancelled());
    }

    pub(crate) async fn stop(self) -> Result<(), DaemonError> {
        let _ = self.stop.send(());
        self.ended.await.unwrap()
    }
}

/// Runs a daemon in place until it is told to stop.
pub(crate) async fn run_until_told(stage: &Stage, told: impl Future<Output = ()>) -> Result<(), DaemonError> {
    let args = of_stage(stage, AuthServiceArgs::default());
    run_auth_service_until(&args, None, &options(stage, None), told).await
}

/// What a daemon that does not start says.
pub(crate) async fn error_of(stage: &Stage, args: AuthServiceArgs) -> String {
    run_auth_service_until(&of_stage(stage, args), None, &options(stage, None), std::future::pending())
        .await
        .unwrap_err()
        .to_string()
}

fn of_stage(stage: &Stage, args: AuthServiceArgs) -> AuthServiceArgs {
    let server = args.server.clone().unwrap_or_else(|| stage.server.clone());
    AuthServiceArgs { space: Some("demo".to_owned()), server: Some(server), ..args }
}

fn options(stage: &Stage, announced: Option<oneshot::Sender<()>>) -> AuthServiceRuntimeOptions {
    let announced = std::sync::Mutex::new(announced);
    options_announcing(
        &stage.space.root,
        Arc::new(move |_| {
            if let Some(announced) = announced.lock().unwrap().take() {
                let _ = announced.send(());
            }
        }),
    )
}

/// What a process of this root is given; its ready line goes there.
pub(crate) fn options_announcing(
    root: &Root,
    announce: Arc<dyn Fn(&str) + Send + Sync>,
) -> AuthServiceRuntimeOptions {
    AuthServiceRuntimeOptions {
        root: root.clone(),
        startup_hold_ms: None,
        secret_store: None,
        interactive_manager_selection: None,
        announce,
    }
}
