//! A callout replica over a real broker: the same answers as the full service, the grants it was really signed, what it
//! refuses, and what ends it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod stage;
mod tap;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cotal_auth::{
    AuthServiceArgs, CalloutLimits, CalloutLog, CalloutReplica, DaemonError, HostedSpace, ReplicaEnd,
    SpaceAt, StartError, admits_service_endpoints, run_auth_service_until, start_auth_service,
};
use cotal_broker::{Connection, Connector, Custody, Lifetime, kv::Bucket};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{
    disk::files,
    raw::{ConnectOutcome, RawClient},
    rows::{Rows, ServingManager},
    spaces::TestSpaces,
};
use cotal_trust::{
    bearer::{self, BearerGrant},
    bundle::SpaceAccount,
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Actor, Clock, ConnId, CredentialId, EpCode, LifecycleUid, Names, Permissions, Rules, Space, UnixMillis,
    View,
    grants::{infra, issued},
    names::SERVICE_ADMISSION_KEY,
    rows::ServiceAdmission,
};
use cotal_workspace::{material::Discovery, root::Root};
use parking_lot::Mutex;
use serde_json::{Value, json};

use stage::{AT_LAST, Daemon, Stage, claims_of, error_of, options_announcing};
use tap::Tap;
use tokio::{sync::oneshot, task::JoinHandle};

type Lines = Arc<Mutex<Vec<String>>>;

fn into(lines: &Lines) -> CalloutLog {
    let lines = Arc::clone(lines);
    Arc::new(move |line| lines.lock().push(line.to_owned()))
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(AT_LAST, future).await.expect("within the test's patience")
}

fn connector(stage: &Stage, url: &str) -> Connector {
    connector_of(&stage.space.space, &stage.space.account, url)
}

fn connector_of(space: &Space, account: &SpaceAccount, url: &str) -> Connector {
    Connector::new(
        url,
        space.clone(),
        account.data_account(),
        Custody::new(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    )
}

fn everything(_: &ConnId) -> Permissions {
    let all = || Rules { allow: vec![">".to_owned()], deny: vec![] };
    Permissions { publish: all(), subscribe: all() }
}

async fn admin(stage: &Stage) -> Connection {
    let connector = connector(stage, &stage.space.server.url());
    connector.open("cotal:test-admin:demo".to_owned(), &everything, Lifetime::Renewing).await.unwrap()
}

/// Opens the space's service-endpoint admission, with these bytes.
async fn open_admission(stage: &Stage, bytes: Vec<u8>) {
    open_admission_over(&connector(stage, &stage.space.server.url()), bytes).await;
}

async fn open_admission_over(connector: &Connector, bytes: Vec<u8>) {
    let label = "cotal:test-admin".to_owned();
    let admin = connector.open(label, &everything, Lifetime::Renewing).await.unwrap();
    let bucket = Bucket::new(&admin, &Names::new(&connector.space().token()).auth_bucket());
    assert!(matches!(
        bucket.create(SERVICE_ADMISSION_KEY, bytes.into()).await,
        cotal_broker::kv::WriteOutcome::Written(_)
    ));
    admin.close().await.unwrap();
}

fn admission() -> Vec<u8> {
    ServiceAdmission::opened("local.auth", UnixMillis(1)).unwrap().to_bytes()
}

/// What came of one connect: on the callout's line, and what the client may then do.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    outcome: String,
    reason: Option<String>,
    may: Vec<bool>,
}

/// Connects with each bearer, and tells how that was answered.
async fn answers(stage: &Stage, lines: &Lines, bearers: &[Option<String>]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for bearer in bearers {
        lines.lock().clear();
        let (client, outcome) = stage.connect(bearer.as_deref()).await;
        let line = soon(async {
            loop {
                if let Some(line) = lines.lock().iter().find(|line| line.contains(" outcome=")).cloned() {
                    return line;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let mut may = Vec::new();
        if let Some(mut client) = client {
            let owner = stage.owner_of("alice");
            for subject in [
                format!("cotal.demo.chat.{owner}.cli.general"),
                format!("cotal.demo.chat.{owner}.cli.secret"),
                "$JS.API.STREAM.PURGE.CHAT_demo".to_owned(),
                "$KV.cotal_auth_demo.gate.x".to_owned(),
            ] {
                may.push(client.try_publish(&subject, b"").await.is_ok());
            }
            for subject in ["cotal.demo.chat.*.*.general", "cotal.demo.chat.*.*.secret", "cotal.>"] {
                may.push(client.try_subscribe(subject, None).await.is_ok());
            }
        }
        assert_eq!(outcome == ConnectOutcome::Connected, line.contains(" outcome=minted "), "{line}");
        let after = |name: &str| line.split_once(name).map(|(_, rest)| rest.to_owned());
        answers.push(Answer {
            outcome: after(" outcome=").unwrap().split(' ').next().unwrap().to_owned(),
            reason: after(" reason="),
            may,
        });
    }
    answers
}

#[tokio::test]
async fn a_replica_answers_every_connect_as_the_full_service_does() {
    let stage = Stage::start().await;
    let lines = Lines::default();
    let full = start_auth_service(stage.hosted().callout_log(into(&lines))).await.unwrap();
    let exchange = async |body: &Value| {
        let url = format!("{}/exchange", full.url());
        let (status, answer) = stage.post(&url, Some(full.cap().expose()), body).await;
        assert_eq!(status, 200, "{answer}");
        answer["token"].as_str().unwrap().to_owned()
    };
    stage.grant_human("alice", "cli", &["spawn", "admin"], &["general"]);
    stage.grant_human("bob", "cli", &[], &["general"]);
    stage.grant_human("carol", "cli", &["spawn"], &["general"]);
    let agent = stage.grant_agent("alice", "cli", "worker", &["general"]);
    let view =
        |view: &str| json!({"view": view, "idpToken": stage.idp.mint_token("alice", 600), "actor": "cli"});
    let bearers = [
        Some(exchange(&stage.human("alice", "cli")).await),
        Some(exchange(&agent).await),
        Some(exchange(&view("admin")).await),
        Some(exchange(&view("purger")).await),
        Some(exchange(&stage.human("bob", "cli")).await),
        Some(exchange(&stage.human("carol", "cli")).await),
        Some("a.b.c".to_owned()),
        Some(stage.idp.mint_token("alice", 600)),
        None,
    ];
    stage.revoke_human("bob", "cli");
    stage.grant_human("carol", "cli", &[], &["general"]);

    let by_the_full_service = answers(&stage, &lines, &bearers).await;
    let outcomes: Vec<_> = by_the_full_service.iter().map(|answer| answer.outcome.as_str()).collect();
    assert_eq!(
        outcomes,
        ["minted", "minted", "minted", "minted", "denied", "denied", "denied", "denied", "denied"]
    );
    soon(full.close()).await.unwrap();
    stage.refused(bearers[0].as_deref()).await;

    let lines = Lines::default();
    let replica = CalloutReplica::start(stage.hosted().callout_log(into(&lines))).await.unwrap();
    let by_the_replica = answers(&stage, &lines, &bearers).await;
    assert_eq!(by_the_replica, by_the_full_service);
    soon(replica.close()).await.unwrap();
    assert_eq!(replica.ended().await, ReplicaEnd::Closed);
    assert!(replica.connections().iter().all(|owned| owned.ended));
    stage.refused(bearers[0].as_deref()).await;
}

#[tokio::test]
async fn a_connect_through_a_replica_leaves_its_row_which_the_full_service_finds() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &[], &["general"]);
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    let (_, answer) = daemon.exchange(&stage.human("alice", "cli")).await;
    let bearer = answer["token"].as_str().unwrap().to_owned();
    daemon.stop().await.unwrap();
    let replica = CalloutReplica::start(stage.hosted()).await.unwrap();
    stage.connected(&bearer).await;
    let admin = admin(&stage).await;
    let keys = Bucket::new(&admin, "cotal_auth_demo").keys("natkey.>").await.unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    // The full service starts beside it: nothing that it owns is taken, and the row reads.
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    daemon.stop().await.unwrap();
    stage.connected(&bearer).await;
    replica.close().await.unwrap();
}

#[tokio::test]
async fn the_broker_grants_of_a_replica_are_these_and_the_broker_denies_it_everything_else() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &[], &["general"]);
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    let (_, answer) = daemon.exchange(&stage.human("alice", "cli")).await;
    daemon.stop().await.unwrap();
    let before = files(&stage.space.root.cotal_dir()).unwrap();

    let tap = Tap::start(stage.space.server.port()).await;
    let replica = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.unwrap();
    stage.connected(answer["token"].as_str().unwrap()).await;
    assert_eq!(
        files(&stage.space.root.cotal_dir()).unwrap(),
        before,
        "a running replica leaves nothing on the disk"
    );
    let signed = tap.presented();
    let names: Vec<_> = signed.iter().map(|user| user.name.as_str()).collect();
    assert_eq!(names, ["cotal:auth-replica-store:demo", "cotal:auth-reader:demo", "cotal:auth-replica:demo"]);
    let opened: Vec<_> = replica.connections().into_iter().map(|owned| owned.label).collect();
    assert_eq!(opened, names);

    let token = stage.space.space.token();
    let granted = |index: usize| {
        let claims = claims_of(&signed[index].jwt);
        eprintln!("{}: {}", signed[index].name, serde_json::to_string_pretty(&claims["nats"]).unwrap());
        (claims["sub"].as_str().unwrap().to_owned(), claims)
    };
    for (index, template) in [
        (0, infra::replica_store as fn(&_, &_) -> Permissions),
        (1, infra::connect_reader as fn(&_, &_) -> Permissions),
    ] {
        let (user, claims) = granted(index);
        let expected = template(&token, &ConnId::parse(&user).unwrap());
        assert_eq!(claims["nats"]["pub"], json!({"allow": expected.publish.allow}));
        assert_eq!(claims["nats"]["sub"], json!({"allow": expected.subscribe.allow}));
        let lives = claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap();
        assert!(lives <= 900, "{lives} s");
    }
    // The callout user is the space's own, in its own account: the same for every member of the group.
    assert_eq!(claims_of(&signed[2].jwt), claims_of(callout_jwt(&stage)));
    replica.close().await.unwrap();

    let connector = connector(&stage, &stage.space.server.url());
    let store = connector
        .open("cotal:store:demo".into(), &|inbox| infra::replica_store(&token, inbox), Lifetime::Renewing)
        .await
        .unwrap();
    let reader = connector
        .open("cotal:reader:demo".into(), &|inbox| infra::connect_reader(&token, inbox), Lifetime::Renewing)
        .await
        .unwrap();
    let denied = async |connection: &Connection, subject: &str| {
        let answer = connection.request(subject, &[], Bytes::new(), AT_LAST).await;
        let code = answer.map(|_| ()).map_err(|error| error.code);
        assert_eq!(code, Err(EpCode::PermissionDenied), "{} {subject}", connection.label());
    };
    for subject in [
        "$JS.API.STREAM.CREATE.KV_cotal_auth_demo",
        "$JS.API.STREAM.UPDATE.KV_cotal_auth_demo",
        "$JS.API.STREAM.DELETE.KV_cotal_auth_demo",
        "$JS.API.STREAM.PURGE.KV_cotal_auth_demo",
        "$JS.API.STREAM.MSG.DELETE.KV_cotal_auth_demo",
        "$JS.API.CONSUMER.CREATE.KV_cotal_auth_demo.x",
        "$JS.API.CONSUMER.CREATE.KV_cotal_records_demo.x",
        "$JS.API.STREAM.MSG.GET.KV_cotal_issued_demo",
        "$JS.API.STREAM.MSG.DELETE.KV_cotal_sessions_demo",
        "$KV.cotal_sessions_demo.session.x",
        "$JS.API.STREAM.NAMES",
        "$KV.cotal_auth_demo.gate.x",
        "$KV.cotal_auth_demo.cred.x.y",
        "$KV.cotal_auth_demo.bysrc.x",
        "$KV.cotal_auth_demo.stage.x",
        "$KV.cotal_auth_demo.plane",
        "$KV.cotal_auth_demo.svcadmit",
        "$KV.cotal_auth_demo.epgate.auth.x",
        "$KV.cotal_records_demo.lifecycle.o.a",
        "$KV.cotal_records_demo.uid.x",
        "$KV.cotal_issued_demo.v1.x",
        "cotal.demo.ctl.delivery-admin.local.x",
        "cotal.demo.chat.local.x.general",
    ] {
        denied(&store, subject).await;
        denied(&reader, subject).await;
    }
    denied(&store, "$JS.API.STREAM.MSG.GET.KV_cotal_records_demo").await;
    denied(&store, "$JS.API.STREAM.MSG.GET.KV_cotal_sessions_demo").await;
    denied(&reader, "$KV.cotal_auth_demo.natkey.U").await;
}

/// A `manager-caller` bearer of alice, bound to this manager, with the root credential of her other bearer.
fn bound_to(stage: &Stage, manager: &ServingManager, bearer: &str) -> String {
    let act = &claims_of(bearer)["act"];
    let text = |name: &str| act[name].as_str().unwrap();
    let scope: Vec<String> = serde_json::from_value(act["scope"].clone()).unwrap();
    let grant = BearerGrant {
        owner: stage.owner_of("alice"),
        actor: Actor::parse("cli").unwrap(),
        scope: Some(scope),
        parent: None,
        lifecycle_uid: LifecycleUid::parse(text("lifecycleUid")).unwrap(),
        credential_id: CredentialId::parse(text("credentialId")).unwrap(),
        view: Some(View::ManagerCaller),
        manager_instance_id: Some(manager.instance.clone()),
        session: None,
        transfer_writer: None,
        ttl_secs: None,
        not_after: None,
    };
    let issuer = &stage.space.material.issuer;
    bearer::mint(issuer, &stage.space.space, &grant, SystemClock.now_secs()).unwrap().token.to_string()
}

#[tokio::test]
async fn a_replica_issues_over_a_session_of_its_own_and_only_once_a_connect_needs_it() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &["spawn"], &["general"]);
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    let (_, answer) = daemon.exchange(&stage.human("alice", "cli")).await;
    let plain = answer["token"].as_str().unwrap().to_owned();
    daemon.stop().await.unwrap();
    let rows = Rows::over(&stage.space.anything().await.unwrap(), &stage.space.space);
    let manager = ServingManager::register(&rows, stage.owner_of("alice"), 0).await.unwrap();
    let bound = bound_to(&stage, &manager, &plain);

    let tap = Tap::start(stage.space.server.port()).await;
    let replica = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.unwrap();
    stage.connected(&plain).await;
    let issuers = || {
        let all = replica.connections().into_iter();
        all.filter(|owned| owned.label == "cotal:issuer:demo").map(|owned| owned.ended).collect::<Vec<_>>()
    };
    assert!(issuers().is_empty(), "a plain connect needs none");
    tap.presented();
    for _ in 0..2 {
        stage.connected(&bound).await;
    }
    let issued = rows.bucket("issued").keys("v1.>").await.unwrap();
    assert_eq!(issued.len(), 1, "issued once, confirmed after: {issued:?}");
    assert_eq!(rows.bucket("accepted").keys(">").await.unwrap().len(), 1);

    assert_eq!(issuers(), [false], "one session for both");
    let signed = tap.presented();
    let [session] = &signed[..] else { panic!("{} connections were dialled", signed.len()) };
    let claims = claims_of(&session.jwt);
    let conn = ConnId::parse(claims["sub"].as_str().unwrap()).unwrap();
    let token = stage.space.space.token();
    let expected = issued::issuer_session(&token, &conn);
    assert_eq!(claims["nats"]["pub"], json!({"allow": expected.publish.allow}));
    assert_eq!(claims["nats"]["sub"], json!({"allow": expected.subscribe.allow}));
    assert!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap() <= 300);
    let connector = connector(&stage, &stage.space.server.url());
    let issuer = connector
        .open("cotal:issuer:demo".into(), &|inbox| issued::issuer_session(&token, inbox), Lifetime::Renewing)
        .await
        .unwrap();
    for subject in [
        "$KV.cotal_auth_demo.gate.x",
        "$KV.cotal_auth_demo.natkey.U",
        "$KV.cotal_records_demo.lifecycle.o.a",
        "$KV.cotal_sessions_demo.session.x",
        "$JS.API.STREAM.MSG.GET.KV_cotal_records_demo",
        "$JS.API.STREAM.MSG.GET.KV_cotal_sessions_demo",
        "$JS.API.STREAM.DELETE.KV_cotal_issued_demo",
        "$JS.API.STREAM.PURGE.KV_cotal_issued_demo",
        "$JS.API.STREAM.UPDATE.KV_cotal_accepted_demo",
        "cotal.demo.chat.local.x.general",
    ] {
        let answer = issuer.request(subject, &[], Bytes::new(), AT_LAST).await;
        assert_eq!(
            answer.map(|_| ()).map_err(|error| error.code),
            Err(EpCode::PermissionDenied),
            "{subject}"
        );
    }

    // Lost, it ends nothing: the next connect that needs one dials anew.
    tap.cut("cotal:issuer:demo");
    soon(async {
        while issuers() != [true] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    tap.heal();
    stage.connected(&bound).await;
    stage.connected(&plain).await;
    assert_eq!(issuers(), [true, false]);
    assert_eq!(futures::FutureExt::now_or_never(replica.ended()), None);
    replica.close().await.unwrap();
    assert!(replica.connections().iter().all(|owned| owned.ended));
}

/// The JWT of the space's callout user.
fn callout_jwt(stage: &Stage) -> &str {
    let creds = &stage.space.material.callout.callout_creds;
    creds.lines().nth(1).unwrap()
}

#[tokio::test]
async fn a_replica_that_loses_a_store_connection_or_the_callouts_ends_and_the_others_answer() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &[], &["general"]);
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    let (_, answer) = daemon.exchange(&stage.human("alice", "cli")).await;
    let bearer = answer["token"].as_str().unwrap().to_owned();
    daemon.stop().await.unwrap();
    let other = CalloutReplica::start(stage.hosted()).await.unwrap();
    for label in ["cotal:auth-replica-store:demo", "cotal:auth-reader:demo", "cotal:auth-replica:demo"] {
        let tap = Tap::start(stage.space.server.port()).await;
        let replica = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.unwrap();
        tap.cut(label);
        let ReplicaEnd::Lost(why) = soon(replica.ended()).await else { panic!("{label}: it was not closed") };
        assert!(why.starts_with(label), "{why}");
        soon(replica.close()).await.unwrap();
        assert!(replica.connections().iter().all(|owned| owned.ended), "{label}");
        for _ in 0..8 {
            stage.connected(&bearer).await;
        }
    }
    assert_eq!(futures::FutureExt::now_or_never(other.ended()), None);
    other.close().await.unwrap();
}

#[tokio::test]
async fn a_replica_ends_with_its_broker_and_fails_its_process() {
    let mut stage = Stage::start().await;
    let replica = CalloutReplica::start(stage.hosted()).await.unwrap();
    stage.space.server.kill();
    assert!(matches!(soon(replica.ended()).await, ReplicaEnd::Lost(_)));
    soon(replica.close()).await.unwrap();
    let refused = CalloutReplica::start(stage.hosted()).await.err();
    assert!(matches!(refused, Some(StartError::Stores(error)) if error.code == EpCode::Unavailable));
}

#[tokio::test]
async fn a_dropped_replica_closes_and_a_clone_keeps_it() {
    let stage = Stage::start().await;
    let tap = Tap::start(stage.space.server.port()).await;
    let replica = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.unwrap();
    let clone = replica.clone();
    drop(replica);
    assert!(clone.connections().iter().all(|owned| !owned.ended));
    drop(clone);
    soon(tap.quiet()).await;
}

#[tokio::test]
async fn a_replica_creates_no_store() {
    let stage = Stage::start().await;
    let admin = admin(&stage).await;
    let ask = async |verb: &str| {
        let subject = format!("$JS.API.STREAM.{verb}.KV_cotal_auth_demo");
        let answer = admin.request(&subject, &[], Bytes::new(), AT_LAST).await.unwrap();
        serde_json::from_slice::<Value>(&answer.payload).unwrap()
    };
    assert_eq!(ask("DELETE").await["success"], true);
    let Err(StartError::Stores(refusal)) = CalloutReplica::start(stage.hosted()).await else {
        panic!("it started without a store")
    };
    assert_eq!(refusal.code, EpCode::FailedPrecondition);
    assert!(refusal.message.contains("KV_cotal_auth_demo"), "{refusal}");
    assert_eq!(ask("INFO").await["error"]["err_code"], 10_059, "it is still not there");
}

#[tokio::test]
async fn a_space_that_admits_service_endpoints_is_refused_over_one_connection_that_is_closed_again() {
    let stage = Stage::start().await;
    let (space, url) = (stage.space.space.clone(), stage.space.server.url());
    let store = stage.injected();
    let admits = async || admits_service_endpoints(&space, &url, &*store).await;
    assert!(!admits().await.unwrap());
    open_admission(&stage, admission()).await;
    assert!(admits().await.unwrap());

    let tap = Tap::start(stage.space.server.port()).await;
    let refusal = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.err().unwrap();
    assert!(matches!(refusal, StartError::ServiceEndpoints));
    let dialled: Vec<_> = tap.presented().into_iter().map(|user| user.name).collect();
    assert_eq!(dialled, ["cotal:auth-replica-store:demo"]);

    let args = AuthServiceArgs { callout_only: true, ..AuthServiceArgs::default() };
    let says = error_of(&stage, args).await;
    assert!(says.starts_with("auth-service: this space admits service endpoints"), "{says}");
}

#[tokio::test]
async fn an_admission_that_nobody_can_read_is_an_error_and_no_answer() {
    let mut stage = Stage::start().await;
    let (space, url) = (stage.space.space.clone(), stage.space.server.url());
    let stranger = cotal_wire::Space::parse("stranger").unwrap();
    let missing = admits_service_endpoints(&stranger, &url, &*stage.injected()).await.unwrap_err();
    assert!(missing.to_string().contains("lacks user-auth material (service keys)"), "{missing}");
    let input = admits_service_endpoints(&space, "http://x", &*stage.injected()).await;
    assert!(matches!(input, Err(StartError::Input(_))));

    open_admission(&stage, b"{}".to_vec()).await;
    let garbled = admits_service_endpoints(&space, &url, &*stage.injected()).await;
    assert!(
        matches!(&garbled, Err(StartError::Stores(error)) if error.code == EpCode::Internal),
        "{garbled:?}"
    );
    assert!(matches!(CalloutReplica::start(stage.hosted()).await, Err(StartError::Stores(_))));

    stage.space.server.kill();
    let gone = admits_service_endpoints(&space, &url, &*stage.injected()).await;
    assert!(matches!(&gone, Err(StartError::Stores(error)) if error.code == EpCode::Unavailable), "{gone:?}");
}

#[tokio::test]
async fn inputs_that_are_not_this_spaces_are_refused_before_anything_is_dialled() {
    let (stage, other) = (Stage::start().await, Stage::start().await);
    let tap = Tap::start(stage.space.server.port()).await;
    let url = tap.url();
    let refused = async |hosted| CalloutReplica::start(hosted).await.err().unwrap().to_string();
    let with = |context, servers: &str, coordinate: &str| stage.hosted_as(context, servers, coordinate);
    assert!(refused(with(stage.context(), "http://x", "test-store")).await.contains("servers"));
    assert!(refused(with(stage.context(), &url, "other")).await.contains("storeIdentity"));
    assert!(refused(with(other.context(), &url, "test-store")).await.contains("data account"));
    let nothing_at_once = CalloutLimits { max_in_flight: 0, ..CalloutLimits::default() };
    let hosted = stage.hosted_dialling(&url).callout_limits(nothing_at_once);
    assert!(refused(hosted).await.contains("calloutLimits: "));
    let in_dir = |dir: &std::path::Path| {
        let at = SpaceAt::new(stage.space.space.clone(), &url);
        HostedSpace::new(stage.context(), at, stage.injected(), "test-store", dir)
    };
    assert!(refused(in_dir(&stage.space.state_dir.join("nowhere"))).await.contains("actor ledger"));
    assert!(refused(in_dir("".as_ref())).await.contains("stateDir"));
    assert!(tap.presented().is_empty());
}

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
    stage.grant_human("alice", "cli", &[], &["general"]);
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    let (_, answer) = daemon.exchange(&stage.human("alice", "cli")).await;
    let bearer = answer["token"].as_str().unwrap().to_owned();
    daemon.stop().await.unwrap();

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
    open_admission(&stage, admission()).await;
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
    open_admission_over(&connector_of(&demo.space, &demo.account, &spaces.server.url()), admission()).await;

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
