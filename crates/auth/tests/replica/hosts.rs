//! Replicas of a manifest, a lane each.

use std::{sync::Arc, time::Duration};

use cotal_auth::{AuthServiceArgs, DaemonError, run_auth_service_until};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{
    raw::{ConnectOutcome, RawClient},
    rows::Rows,
    spaces::TestSpaces,
};
use cotal_trust::{
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Actor, LifecycleUid};
use cotal_workspace::{material::Discovery, root::Root};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    house::{admission, left_bearer, open_admission, soon},
    stage::{AT_LAST, Stage, options_announcing},
    tap::Tap,
};

/// A callout host in this process.
struct Host {
    dir: tempfile::TempDir,
    ready: String,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), DaemonError>>,
}

impl Host {
    async fn start(stage: &Stage, server: &str, manifest: &Value) -> Self {
        Self::start_in(&stage.space.root, server, manifest).await
    }

    async fn start_in(root: &Root, server: &str, manifest: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replicas.json");
        std::fs::write(&path, manifest.to_string()).unwrap();
        let (announced, ready) = oneshot::channel();
        let announced = Mutex::new(Some(announced));
        let options = options_announcing(
            root,
            Arc::new(move |line| {
                if let Some(announced) = announced.lock().take() {
                    let _ = announced.send(line.to_owned());
                }
            }),
        );
        let args = AuthServiceArgs {
            callout_only: true,
            spaces: Some(path.to_str().unwrap().to_owned()),
            server: Some(server.to_owned()),
            ..AuthServiceArgs::default()
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(async move {
            let shutdown = async move {
                let _ = stopped.await;
            };
            run_auth_service_until(&args, None, &options, shutdown).await
        });
        let ready = soon(ready).await.expect("the host is ready");
        Self { dir, ready, stop, ended }
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        soon(self.ended).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_callout_host_serves_its_spaces_while_another_is_retried_and_opens_a_lost_lane_again() {
    let stage = Stage::start().await;
    let bearer = left_bearer(&stage, &[]).await;

    let tap = Tap::start(stage.space.server.port()).await;
    let host = Host::start(&stage, &tap.url(), &json!({"version": 1, "spaces": ["demo", "ghost"]})).await;
    assert!(
        host.ready.starts_with("auth-service: 1 of 2 spaces answer; retried every 5 s: \"ghost\" on "),
        "{}",
        host.ready
    );
    stage.connected(&bearer).await;
    let text = std::fs::read_to_string(host.dir.path().join("replicas.json")).unwrap();
    let applied = std::fs::read_to_string(host.dir.path().join("replicas.json.applied")).unwrap();
    assert_eq!(applied, text);

    tap.cut("cotal:auth-reader:demo");
    soon(tap.quiet()).await;
    tap.heal();
    soon(async {
        while stage.connect(Some(&bearer)).await.1 != ConnectOutcome::Connected {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    host.stop().await;
    soon(tap.quiet()).await;
}

#[tokio::test]
async fn each_retry_of_an_admitting_space_reads_the_admission_over_one_connection_and_holds_nothing() {
    let stage = Stage::start().await;
    open_admission(&stage.rows().await, admission()).await;
    let tap = Tap::start(stage.space.server.port()).await;
    let host = Host::start(&stage, &tap.url(), &json!({"version": 1, "spaces": ["demo"]})).await;
    let says = "auth-service: 0 of 1 spaces answer; retried every 5 s: \"demo\" on ";
    assert!(host.ready.starts_with(says), "{}", host.ready);
    for _ in 0..3 {
        let dialled = soon(async {
            loop {
                let dialled = tap.presented();
                if !dialled.is_empty() {
                    return dialled;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(dialled.len(), 1);
        assert_eq!(dialled[0].name, "cotal:auth-replica-store:demo");
        soon(tap.quiet()).await;
    }
    host.stop().await;
}

#[tokio::test]
async fn an_entry_with_service_endpoints_is_refused_without_being_dialled() {
    let stage = Stage::start().await;
    let tap = Tap::start(stage.space.server.port()).await;
    let entry = json!({"space": "demo", "serviceEndpoints": true});
    let host = Host::start(&stage, &tap.url(), &json!({"version": 2, "spaces": [entry]})).await;
    assert!(host.ready.starts_with("auth-service: 0 of 1 spaces answer"), "{}", host.ready);
    assert!(tap.presented().is_empty());
    host.stop().await;
}

#[tokio::test]
async fn a_callout_host_refuses_the_flags_of_a_replica_and_those_that_its_manifest_says() {
    let stage = Stage::start().await;
    let host = || AuthServiceArgs {
        callout_only: true,
        spaces: Some("replicas.json".to_owned()),
        server: Some("nats://127.0.0.1:1".to_owned()),
        ..AuthServiceArgs::default()
    };
    let refusal = async |args: AuthServiceArgs| {
        let options = options_announcing(&stage.space.root, Arc::new(|_| {}));
        let ended = run_auth_service_until(&args, None, &options, std::future::pending()).await;
        ended.unwrap_err().to_string()
    };
    let port = refusal(AuthServiceArgs { port: Some("0".to_owned()), ..host() }).await;
    assert!(port.contains("--port refuses beside --callout-only"), "{port}");
    let space = refusal(AuthServiceArgs { space: Some("demo".to_owned()), ..host() }).await;
    assert!(space.contains("--space is not taken beside --spaces"), "{space}");
    let endpoints = refusal(AuthServiceArgs { service_endpoints: true, ..host() }).await;
    assert!(endpoints.contains("--service-endpoints refuses beside --callout-only"), "{endpoints}");
}

/// The bearer of an agent of this space, whose full service runs for it and is stopped again.
async fn bearer_in(spaces: &TestSpaces, name: &str) -> String {
    let parts = spaces.of(name);
    let owner = parts.material.owner_secret.derive(&parts.material.idp.issuer, "alice").unwrap();
    let (secret, hash) = mint_agent_secret(&SystemEntropy);
    let input = GrantInput::new(owner.clone(), Actor::parse("worker").unwrap())
        .allow_subscribe(["general"])
        .allow_publish(["general"])
        .lifecycle_uid(LifecycleUid::mint(&SystemEntropy));
    Ledger::at(&parts.state_dir).grant_managed(&input, &hash, &SystemClock).unwrap();
    let args = AuthServiceArgs {
        space: Some(name.to_owned()),
        server: Some(spaces.server.url()),
        ..AuthServiceArgs::default()
    };
    let (ready, exchanged) = (Arc::new(tokio::sync::Notify::new()), tokio::sync::Notify::new());
    let announced = Arc::clone(&ready);
    let options = options_announcing(&spaces.root, Arc::new(move |_| announced.notify_one()));
    let serving = run_auth_service_until(&args, None, &options, exchanged.notified());
    let exchanging = async {
        soon(ready.notified()).await;
        let discovery = Discovery::load(&parts.state_dir).unwrap().unwrap();
        let answer = http_client(AT_LAST)
            .unwrap()
            .post(format!("{}/exchange", discovery.url))
            .bearer_auth(discovery.cap.as_str())
            .json(&json!({"owner": owner.as_str(), "actor": "worker", "actorToken": secret.as_str()}))
            .send()
            .await
            .unwrap();
        let answer: Value = answer.json().await.unwrap();
        exchanged.notify_one();
        answer["token"].as_str().unwrap().to_owned()
    };
    let (served, bearer) = futures::join!(serving, exchanging);
    served.unwrap();
    bearer
}

#[tokio::test]
async fn of_two_spaces_the_one_that_admits_service_endpoints_is_named_and_the_other_is_answered() {
    let spaces = TestSpaces::start(&["demo", "zoo"], "http://127.0.0.1:9/api/auth").await;
    let bearer = bearer_in(&spaces, "zoo").await;
    let (demo, zoo) = (spaces.of("demo"), spaces.of("zoo"));
    let anything = demo.anything(&spaces.server.url()).await.unwrap();
    open_admission(&Rows::over(&anything, &demo.space), admission()).await;

    let manifest = json!({"version": 1, "spaces": ["demo", "zoo"]});
    let host = Host::start_in(&spaces.root, &spaces.server.url(), &manifest).await;
    let says = "auth-service: 1 of 2 spaces answer; retried every 5 s: \"demo\" on ";
    assert!(host.ready.starts_with(says), "{}", host.ready);
    let sentinel = &zoo.material.callout.sentinel_creds;
    for _ in 0..4 {
        let nonce = Some("nonce-0123456789");
        let (_, outcome) =
            RawClient::connect(&spaces.server.url(), Some(sentinel), Some(&bearer), nonce).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
    }
    host.stop().await;
}
