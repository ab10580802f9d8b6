//! Spaces of one root on one broker, an IdP, and a host in front of them.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use cotal_auth::{AuthServiceArgs, AuthServiceRuntimeOptions, DaemonError, run_auth_service_until};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{
    raw::{ConnectOutcome, RawClient},
    spaces::{AUTH_TIMEOUT_SECS, TestSpaces},
};
use cotal_trust::{
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid};
use cotal_workspace::material::Discovery;
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};

const NONCE: &str = "nonce-0123456789";
/// Longer than any wait of the host, its retries included, on a machine that does much else.
pub(crate) const AT_LAST: Duration = Duration::from_secs(120);

pub(crate) struct House {
    pub(crate) idp: DevIdp,
    pub(crate) spaces: TestSpaces,
    http: reqwest::Client,
}

/// A manifest of these spaces, each with nothing but its name.
pub(crate) fn manifest_of(names: &[&str]) -> String {
    let entries: Vec<Value> = names.iter().map(|name| json!({ "space": name })).collect();
    json!({"version": 2, "spaces": entries}).to_string()
}

/// Looks until it is so.
pub(crate) async fn eventually(what: &str, so: impl AsyncFn() -> bool) {
    let looking = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(AT_LAST, looking).await.is_ok(), "not in time: {what}");
}

/// Waits for something that has to come.
pub(crate) async fn timed<T>(coming: impl Future<Output = T>) -> T {
    tokio::time::timeout(AT_LAST, coming).await.expect("it comes")
}

impl House {
    pub(crate) async fn start(names: &[&str]) -> Self {
        let idp =
            DevIdp::start(DevIdpOptions::default(), Arc::new(SystemClock), Arc::new(SystemEntropy)).await;
        let idp = idp.unwrap();
        let spaces = TestSpaces::start(names, &idp.base_url()).await;
        Self { idp, spaces, http: http_client(Duration::from_secs(60)).unwrap() }
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.spaces.scratch().join("spaces.json")
    }

    /// Puts a manifest into place as an operator does: by a rename.
    pub(crate) fn write(&self, text: &str) {
        let beside = self.spaces.scratch().join("spaces.json.next");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(beside, self.manifest()).unwrap();
    }

    /// What the host has acknowledged.
    pub(crate) fn acknowledged(&self) -> Option<String> {
        std::fs::read_to_string(self.spaces.scratch().join("spaces.json.applied")).ok()
    }

    pub(crate) async fn applied(&self, text: &str) {
        eventually("the manifest is acknowledged", async || self.acknowledged().as_deref() == Some(text))
            .await;
    }

    fn arguments(&self, args: AuthServiceArgs) -> (AuthServiceArgs, AuthServiceRuntimeOptions, Lines) {
        let args = AuthServiceArgs {
            spaces: Some(self.manifest().to_str().unwrap().to_owned()),
            server: Some(self.spaces.server.url()),
            auth_timeout: Some(AUTH_TIMEOUT_SECS.to_string()),
            ..args
        };
        let lines = Lines::default();
        let said = Arc::clone(&lines);
        let options = AuthServiceRuntimeOptions {
            root: self.spaces.root.clone(),
            startup_hold_ms: None,
            secret_store: None,
            announce: Arc::new(move |line| said.lock().unwrap().push(line.to_owned())),
            interactive_manager_selection: None,
        };
        (args, options, lines)
    }

    /// Starts a host and waits for its ready line.
    pub(crate) async fn host(&self) -> Host {
        let (args, options, lines) = self.arguments(AuthServiceArgs::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(async move {
            run_auth_service_until(&args, None, &options, async move { drop(stopped.await) }).await
        });
        let host = Host { stop, ended, lines };
        eventually("the host is ready", async || host.said("auth-service: ") || host.ended.is_finished())
            .await;
        assert!(!host.ended.is_finished(), "the host ended: {:?}", host.ended.await);
        host
    }

    /// What a host that ends by itself says.
    pub(crate) async fn run_to_its_end(&self, args: AuthServiceArgs) -> String {
        let (args, options, _) = self.arguments(args);
        let run = run_auth_service_until(&args, None, &options, std::future::pending());
        timed(run).await.unwrap_err().to_string()
    }

    pub(crate) fn discovery(&self, space: &str) -> Option<Discovery> {
        Discovery::load(&self.spaces.of(space).state_dir).unwrap()
    }

    pub(crate) fn owner(&self, space: &str, sub: &str) -> DerivedOwner {
        self.spaces.of(space).material.owner_secret.derive(&self.idp.origin(), sub).unwrap()
    }

    pub(crate) fn grant(&self, space: &str, sub: &str) {
        let ledger = Ledger::at(&self.spaces.of(space).state_dir);
        let input = grant(self.owner(space, sub), "cli", &["spawn"]);
        ledger.grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
    }

    /// Grants an agent under a person; its exchange body.
    pub(crate) fn grant_agent(&self, space: &str, sub: &str, actor: &str) -> Value {
        let owner = self.owner(space, sub);
        let (secret, hash) = mint_agent_secret(&SystemEntropy);
        let input = GrantInput {
            parent: Some(format!("{owner}.cli")),
            lifecycle_uid: Some(LifecycleUid::mint(&SystemEntropy)),
            ..grant(owner.clone(), actor, &[])
        };
        Ledger::at(&self.spaces.of(space).state_dir).grant_managed(&input, &hash, &SystemClock).unwrap();
        json!({"owner": owner.as_str(), "actor": actor, "actorToken": secret.as_str()})
    }

    pub(crate) fn human(&self, sub: &str) -> Value {
        json!({"idpToken": self.idp.mint_token(sub, 600), "actor": "cli"})
    }

    pub(crate) async fn exchange(&self, space: &str, body: &Value) -> (u16, Value) {
        let discovery = self.discovery(space).expect("its lane answers");
        self.post(&format!("{}/exchange", discovery.url), Some(&discovery.cap), body).await
    }

    /// Grants a person and exchanges their login.
    pub(crate) async fn bearer(&self, space: &str, sub: &str) -> String {
        self.grant(space, sub);
        let (status, answer) = self.exchange(space, &self.human(sub)).await;
        assert_eq!(status, 200, "{answer}");
        answer["token"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn post(&self, url: &str, cap: Option<&str>, body: &Value) -> (u16, Value) {
        let mut request =
            self.http.post(url).header("content-type", "application/json").body(body.to_string());
        if let Some(cap) = cap {
            request = request.header("authorization", format!("Bearer {cap}"));
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
    }

    async fn connect(&self, space: &str, bearer: Option<&str>) -> (Option<RawClient>, ConnectOutcome) {
        let sentinel = &self.spaces.of(space).material.callout.sentinel_creds;
        RawClient::connect(&self.spaces.server.url(), Some(sentinel), bearer, Some(NONCE)).await
    }

    pub(crate) async fn connected(&self, space: &str, bearer: &str) -> RawClient {
        let (client, outcome) = self.connect(space, Some(bearer)).await;
        assert_eq!(outcome, ConnectOutcome::Connected, "in {space}");
        client.unwrap()
    }

    pub(crate) async fn refused(&self, space: &str, bearer: Option<&str>) {
        let (_, outcome) = self.connect(space, bearer).await;
        assert!(matches!(outcome, ConnectOutcome::Refused(_)), "in {space}: {outcome:?}");
    }
}

fn grant(owner: DerivedOwner, actor: &str, scope: &[&str]) -> GrantInput {
    GrantInput::new(owner, Actor::parse(actor).unwrap())
        .scope(scope)
        .allow_subscribe(["general"])
        .allow_publish(["general"])
}

type Lines = Arc<Mutex<Vec<String>>>;

/// `cotal auth-service --spaces`, in this process.
pub(crate) struct Host {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), DaemonError>>,
    lines: Lines,
}

impl Host {
    /// Whether a line has begun with this.
    pub(crate) fn said(&self, beginning: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.starts_with(beginning))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) async fn stop(self) -> Result<(), DaemonError> {
        drop(self.stop);
        timed(self.ended).await.unwrap()
    }
}
