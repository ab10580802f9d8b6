//! What an operator mends: the delivery daemon's credentials and what a dead service instance left behind. The real
//! binary, a real broker, real daemons.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set its stage must fail")]

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Output, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cotal::{
    cli::{Cli, Command},
    context::Context,
    renewal_lease::{NotTaken, RenewalLease},
};
use cotal_broker::{
    Connection,
    connector::{Connector, Lifetime},
    custody::Custody,
    kv::{Bucket, WriteOutcome},
};
use cotal_testkit::{long_tests, stage::Stage};
use cotal_trust::{
    bundle::SpaceAccount,
    creds,
    mint::{self, CredentialKind, StaticHolder},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Clock, ConnId, DigestRef, EndpointName, InstanceId, Names, OpId, Owner, Permissions, Principal, Rules,
    Space, UnixMillis, UnixSecs,
    grants::{delivery, operator},
    names,
    rows::{EndpointGate, ServiceSpec},
};
use cotal_workspace::{
    daemon_creds::DaemonCred,
    registry::MeshRegistry,
    root::{Home, Root},
    trust_files,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const INSTANCE: &str = "0123456789abcdefghijklmnop";

fn space() -> Space {
    Space::parse("main").unwrap()
}

fn up() -> Stage {
    let stage = Stage::new(env!("CARGO_BIN_EXE_cotal")).unwrap();
    stage.ok(&["up", "--user-auth", "--dev-idp", "--auto-approve", "--port", "0"]).unwrap();
    stage
}

fn root(stage: &Stage) -> Root {
    Root::at(stage.root())
}

fn path(stage: &Stage, cred: DaemonCred) -> PathBuf {
    cred.path(&root(stage), &space())
}

fn account(stage: &Stage) -> SpaceAccount {
    trust_files::load_account(&root(stage), &space()).unwrap().unwrap()
}

fn connector(stage: &Stage) -> Connector {
    let server = MeshRegistry::new(Home::at(stage.home())).get(&space()).unwrap().unwrap().server;
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    Connector::new(&server, space(), account(stage).data_account(), Custody::new(), clock, entropy)
}

async fn open(stage: &Stage, grants: impl Fn(&ConnId) -> Permissions + Send + Sync) -> Connection {
    let lifetime = Lifetime::OneShot { ttl_secs: 300, principal: None };
    connector(stage).open("test".into(), &grants, lifetime).await.unwrap()
}

fn everything(conn: &ConnId) -> Permissions {
    Permissions {
        publish: Rules { allow: vec!["$JS.API.>".into(), "$KV.>".into()], deny: vec![] },
        subscribe: Rules { allow: vec![format!("_INBOX_{conn}.>")], deny: vec![] },
    }
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn doctor(stage: &Stage, more: &[&str]) -> (Option<i32>, Value) {
    let output = stage.run(&[&["doctor", "auth", "--json"], more].concat()).unwrap();
    (output.status.code(), document(&output))
}

fn states(report: &Value) -> Vec<(&str, &str)> {
    let all = report["credentials"].as_array().unwrap().iter();
    all.map(|one| (one["file"].as_str().unwrap(), one["state"].as_str().unwrap())).collect()
}

/// Signs a credential again, as it would have been signed this long ago.
fn age(stage: &Stage, cred: DaemonCred, secs: u64) {
    let current = creds::parse(&std::fs::read_to_string(path(stage, cred)).unwrap()).unwrap();
    let kind =
        if cred == DaemonCred::Delivery { CredentialKind::Delivery } else { CredentialKind::MembershipRw };
    let then = UnixSecs(SystemClock.now_secs().0 - secs);
    let token = space().token();
    let old = mint::remint_static_user(
        &account(stage).data_account(),
        kind,
        current.seed,
        &StaticHolder::default(),
        mint::Lifetime::OfKind,
        |who| {
            Ok::<_, String>(match cred {
                DaemonCred::Delivery => delivery::delivery(&token, &who.conn_id),
                _ => delivery::membership_rw(&token, &who.conn_id),
            })
        },
        then,
    )
    .unwrap();
    std::fs::write(path(stage, cred), old.creds.as_bytes()).unwrap();
}

fn nkey_of(stage: &Stage, cred: DaemonCred) -> String {
    creds::parse(&std::fs::read_to_string(path(stage, cred)).unwrap()).unwrap().seed.public().to_string()
}

#[test]
fn doctor_tells_each_credential_and_renews_what_it_may_for_the_same_key() {
    let stage = up();
    let (code, report) = doctor(&stage, &[]);
    let healthy = DaemonCred::ALL.map(|cred| (cred.file_name(), "healthy"));
    assert_eq!((code, states(&report)), (Some(0), healthy.to_vec()), "{report}");
    // Nothing is due, so nothing is touched.
    let before = DaemonCred::ALL.map(|cred| std::fs::read(path(&stage, cred)).unwrap());
    let (code, report) = doctor(&stage, &["--fix"]);
    assert_eq!((code, &report["fix"]["results"][0]["skipped"]), (Some(0), &"healthy".into()), "{report}");
    assert_eq!(DaemonCred::ALL.map(|cred| std::fs::read(path(&stage, cred)).unwrap()), before);

    let keys = [DaemonCred::Delivery, DaemonCred::MembershipRw].map(|cred| nkey_of(&stage, cred));
    age(&stage, DaemonCred::Delivery, 70_000);
    age(&stage, DaemonCred::MembershipRw, 90_000);
    let (code, report) = doctor(&stage, &[]);
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(
        states(&report)[..2],
        [("delivery.creds", "near-expiry"), ("membership-rw.creds", "expired")],
        "{report}"
    );
    assert!(report["credentials"][1]["remedy"].as_str().unwrap().contains("--fix"));
    let (code, report) = doctor(&stage, &["--fix"]);
    assert_eq!((code, states(&report)), (Some(0), healthy.to_vec()), "{report}");
    let fix = &report["fix"];
    assert_eq!((&fix["online"], &fix["adoption"]["ok"]), (&true.into(), &true.into()), "{report}");
    assert_eq!([DaemonCred::Delivery, DaemonCred::MembershipRw].map(|cred| nkey_of(&stage, cred)), keys);
    let audit = std::fs::read_to_string(stage.root().join(".cotal/renewal.6d61696e.json")).unwrap();
    assert!(audit.contains("\"owner\": \"local.U") && !audit.contains("fingerprint"), "{audit}");
    let status: Value = serde_json::from_str(&stage.ok(&["status", "--json"]).unwrap()).unwrap();
    assert_eq!((&status["delivery"]["running"], &status["delivery"]["ready"]), (&true.into(), &true.into()));
}

#[test]
fn without_a_broker_doctor_renews_offline_what_the_same_key_had_signed() {
    let stage = up();
    assert_eq!(doctor(&stage, &[]).1["broker"]["state"], "up");
    stage.ok(&["down"]).unwrap();
    // Credentials that nobody is there to take are not told as if all were well.
    let (code, report) = doctor(&stage, &[]);
    let healthy = DaemonCred::ALL.map(|cred| (cred.file_name(), "healthy"));
    assert_eq!(
        (code, &report["ok"], states(&report)),
        (Some(1), &false.into(), healthy.to_vec()),
        "{report}"
    );
    assert_eq!(report["broker"]["state"], "down", "{report}");
    assert!(report["broker"]["remedy"].as_str().unwrap().contains("`cotal up --user-auth`"), "{report}");
    let told = text(&stage.run(&["doctor", "auth"]).unwrap().stdout);
    assert!(told.contains("broker                     down at nats://127.0.0.1:"), "{told}");

    age(&stage, DaemonCred::Delivery, 90_000);
    let (code, report) = doctor(&stage, &["--fix"]);
    assert_eq!((code, &report["fix"]["online"]), (Some(0), &false.into()), "{report}");
    assert_eq!(report["fix"]["owner"], "offline");
    // Of another key: nobody is there to prove that the broker takes the new one.
    let broker = trust_files::load_broker(&root(&stage)).unwrap().unwrap();
    let rotated =
        account(&stage).rotate_data_signer(&broker, &SystemEntropy, SystemClock.now_secs()).unwrap();
    trust_files::save_account(&root(&stage), &rotated).unwrap();
    let before = std::fs::read(path(&stage, DaemonCred::Delivery)).unwrap();
    let (code, report) = doctor(&stage, &["--fix"]);
    assert_eq!((code, states(&report)[0]), (Some(1), ("delivery.creds", "foreign")), "{report}");
    assert!(report["fix"]["results"][0]["error"].as_str().unwrap().contains("no broker"), "{report}");
    assert_eq!(std::fs::read(path(&stage, DaemonCred::Delivery)).unwrap(), before);
}

#[test]
fn a_system_credential_is_never_signed_anew_and_a_rotation_makes_both() {
    let stage = up();
    let observer = path(&stage, DaemonCred::MembershipObserver);
    let whole = std::fs::read(&observer).unwrap();
    std::fs::write(&observer, "not a credential").unwrap();
    let (code, report) = doctor(&stage, &["--fix"]);
    assert_eq!(
        (code, states(&report)[2]),
        (Some(1), ("membership-observer.creds", "unreadable")),
        "{report}"
    );
    assert!(report["credentials"][2]["remedy"].as_str().unwrap().contains("--rotate-sys"));
    assert_eq!(std::fs::read_to_string(&observer).unwrap(), "not a credential");
    // A running broker keeps its system account.
    let output = stage.run(&["up", "--user-auth"]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cotal down"), "{}", text(&output.stderr));
    std::fs::write(&observer, &whole).unwrap();
    let refused = stage.run(&["up", "--user-auth", "--rotate-sys"]).unwrap();
    assert!(text(&refused.stderr).contains("--rotate-sys"), "{}", text(&refused.stderr));

    std::fs::write(&observer, "not a credential").unwrap();
    stage.ok(&["down"]).unwrap();
    let generation = |stage: &Stage| trust_files::load_broker(&root(stage)).unwrap().unwrap().generation;
    assert_eq!(generation(&stage), 0);
    let evictor = std::fs::read(path(&stage, DaemonCred::ConnectionEvictor)).unwrap();
    stage.ok(&["up", "--user-auth"]).unwrap();
    assert_eq!((doctor(&stage, &[]).0, generation(&stage)), (Some(0), 1));
    assert_ne!(std::fs::read(path(&stage, DaemonCred::ConnectionEvictor)).unwrap(), evictor);
    // What holds is left alone by the next one, unless it is told otherwise.
    stage.ok(&["down"]).unwrap();
    stage.ok(&["up", "--user-auth"]).unwrap();
    assert_eq!(generation(&stage), 1);
    stage.ok(&["down"]).unwrap();
    stage.ok(&["up", "--user-auth", "--rotate-sys"]).unwrap();
    assert_eq!((doctor(&stage, &[]).0, generation(&stage)), (Some(0), 2));
}

/// A clock that runs ahead.
#[derive(Debug)]
struct Ahead(u64);

impl Clock for Ahead {
    fn now_millis(&self) -> UnixMillis {
        UnixMillis(SystemClock.now_millis().0 + self.0 * 1_000)
    }
}

#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// #338: they ran out after 30 days without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_system_credential_is_warned_about_from_three_quarters_of_its_life() {
    let stage = up();
    stage.ok(&["down"]).unwrap();
    for (hours, state) in [(22 * 24, "healthy"), (22 * 24 + 13, "near-expiry"), (30 * 24 + 1, "expired")] {
        let printed = Printed::default();
        let (home, root) = (Home::at(stage.home()), root(&stage));
        let mut ctx =
            Context::of_parts(home, root, PathBuf::new(), |_| None, printed.clone(), std::io::sink());
        ctx.clock = Arc::new(Ahead(hours * 3_600));
        ctx.json = true;
        let line = ["cotal", "doctor", "auth", "--json"];
        let Command::Doctor(arguments) = <Cli as clap::Parser>::try_parse_from(line).unwrap().command else {
            panic!("{line:?}")
        };
        let _ = cotal::doctor::run(arguments, &ctx).await;
        let report: Value = serde_json::from_slice(&printed.0.lock().unwrap()).unwrap();
        for cred in [DaemonCred::MembershipObserver, DaemonCred::ConnectionEvictor] {
            let all = report["credentials"].as_array().unwrap();
            let told = all.iter().find(|told| told["file"] == cred.file_name()).unwrap();
            assert_eq!(told["state"], state, "{cred} after {hours} h: {report}");
            let remedy = told.get("remedy").and_then(Value::as_str).unwrap_or_default();
            assert_eq!(remedy.contains("--rotate-sys"), state != "healthy", "{remedy}");
        }
    }
}

// #367, #368: whoever went down had to wait for leases to lapse before going up again.
#[test]
fn down_and_up_at_once_waits_out_whatever_died_before() {
    let stage = up();
    // A dead daemon's lease lives for half a minute.
    let mut deaths = vec![&[][..], &["delivery", "auth-service"]];
    if long_tests() {
        deaths.extend([&["delivery"][..], &["auth-service"]]);
    }
    for dies in deaths {
        for daemon in dies {
            let files = root(&stage).daemon_files(daemon, Some(&space()));
            let pid = std::fs::read_to_string(&files.pid).unwrap();
            kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
        }
        stage.ok(&["down"]).unwrap();
        stage.ok(&["up", "--user-auth"]).unwrap();
        let status: Value = serde_json::from_str(&stage.ok(&["status", "--json"]).unwrap()).unwrap();
        let delivery = (&status["delivery"]["running"], &status["delivery"]["ready"]);
        assert_eq!(delivery, (&true.into(), &true.into()), "after the death of {dies:?}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_keeps_out_while_another_owner_lives_and_waits_out_a_dead_one() {
    let stage = up();
    let token = space().token();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let connection = open(&stage, move |conn| operator::renewal_owner(&token, conn)).await;
    let held = RenewalLease::take(&connection, &space(), "/elsewhere", &clock).await.ok().unwrap();
    age(&stage, DaemonCred::Delivery, 70_000);
    let before = std::fs::read(path(&stage, DaemonCred::Delivery)).unwrap();
    let output = stage.run(&["doctor", "auth", "--fix", "--json"]).unwrap();
    let told = document(&output)["error"]["message"].as_str().unwrap().to_owned();
    assert!(told.contains("renewal lease is held by local.U") && told.contains("/elsewhere"), "{told}");
    assert_eq!(std::fs::read(path(&stage, DaemonCred::Delivery)).unwrap(), before);
    // A second one in this process is refused the same way.
    let refused = RenewalLease::take(&connection, &space(), "/here", &clock).await.err().unwrap();
    assert!(matches!(refused, NotTaken::Held(row) if row.root == "/elsewhere"));
    held.check().unwrap();
    // Dropped, it is not released: nobody renews it any more, and it lapses.
    drop(held);
    let (code, report) = doctor(&stage, &["--fix"]);
    assert_eq!((code, states(&report)[0].1), (Some(0), "healthy"), "{report}");
    connection.close().await.unwrap();
}

#[test]
fn a_delivery_daemon_that_was_killed_is_replaced_once_its_lease_has_lapsed() {
    let stage = up();
    let pid_file = stage.root().join(".cotal/delivery.6d61696e.pid");
    let pid = |text: String| Pid::from_raw(text.trim().parse().unwrap()).unwrap();
    kill_process(pid(std::fs::read_to_string(&pid_file).unwrap()), Signal::KILL).unwrap();
    let status =
        |stage: &Stage| -> Value { serde_json::from_str(&stage.ok(&["status", "--json"]).unwrap()).unwrap() };
    let began = Instant::now();
    while status(&stage)["delivery"]["running"] == true {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not die");
    }
    let up = stage.run(&["up", "--user-auth", "--json"]).unwrap();
    assert_eq!(document(&up)["started"], serde_json::json!(["delivery of space \"main\""]));
    // What takes so long is said while it does.
    let told = text(&up.stderr);
    assert!(told.contains("waiting for the delivery daemon (120 s at most)"), "{told}");
    assert!(told.contains("holds the lease (local.U") && told.contains("killed does for 30 s"), "{told}");
    let seen = status(&stage);
    assert_eq!((&seen["delivery"]["running"], &seen["delivery"]["ready"]), (&true.into(), &true.into()));
    // One that ends in order leaves no lease behind, and one that somebody else started is adopted.
    stage.ok(&["down"]).unwrap();
    assert!(!pid_file.exists());
    stage.ok(&["up", "--user-auth"]).unwrap();
    kill_process(pid(std::fs::read_to_string(&pid_file).unwrap()), Signal::TERM).unwrap();
    while pid_file.exists() {
        assert!(began.elapsed() < Duration::from_secs(120), "it does not end");
        std::thread::yield_now();
    }
    let mut unit = stage.command(&["delivery"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while status(&stage)["delivery"]["ready"] != true {
        assert!(unit.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(120));
    }
    let adopted: Value = serde_json::from_str(&stage.ok(&["up", "--user-auth", "--json"]).unwrap()).unwrap();
    assert_eq!(adopted["started"], serde_json::json!([]));
    // Another one beside it waits, and says for what.
    let mut beside =
        stage.command(&["delivery"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(beside.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.find(|line| line.contains("another delivery daemon holds the lease"));
    assert!(told.is_some_and(|told| told.contains("waiting 35 s at most")));
    assert!(beside.try_wait().unwrap().is_none());
    kill_process(Pid::from_child(&beside), Signal::TERM).unwrap();
    assert!(beside.wait().unwrap().success());
    kill_process(Pid::from_child(&unit), Signal::TERM).unwrap();
    assert!(unit.wait().unwrap().success());
}

async fn seed(bucket: &Bucket, key: &str, value: Vec<u8>) {
    assert!(matches!(bucket.create_over_marker(key, value.into()).await, WriteOutcome::Written(_)), "{key}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_a_dead_registration_left_frozen_is_repaired_and_its_instance_taken_out() {
    let stage = up();
    let line = |verb: &str, endpoint: &str| {
        let output = stage.run(&[verb, "--endpoint", endpoint, "--instance", INSTANCE, "--json"]).unwrap();
        (output.status.code(), document(&output))
    };
    let (code, refused) = line("reconcile-gate", "com.example.search");
    assert_eq!((code, &refused["error"]["condition"]), (Some(1), &"no-gate".into()), "{refused}");
    let (code, absent) = line("deregister-instance", "com.example.search");
    assert_eq!((code, &absent["reason"]), (Some(0), &"absent".into()), "{absent}");

    let (endpoint, instance) =
        (EndpointName::parse("com.example.search").unwrap(), InstanceId::parse(INSTANCE).unwrap());
    let principal = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.search").unwrap();
    let connection = open(&stage, everything).await;
    let all = Names::new(&space().token());
    let (auth, records) =
        (Bucket::new(&connection, &all.auth_bucket()), Bucket::new(&connection, &all.records_bucket()));
    let op = OpId::parse(INSTANCE).unwrap();
    let frozen = EndpointGate::provisioned(&principal).freeze(&op).unwrap();
    seed(&auth, &names::epgate_key(&endpoint.token(), &instance), frozen.to_bytes()).await;
    let (code, report) = line("reconcile-gate", "com.example.search");
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(
        (&report["endpoint"], &report["liveness"], &report["reopenedAtGeneration"]),
        (&"com.example.search".into(), &"gone".into(), &1.into()),
        "{report}"
    );
    assert_eq!(report["holders"], serde_json::json!([principal.key()]));
    let (code, refused) = line("reconcile-gate", "com.example.search");
    assert_eq!((code, &refused["error"]["condition"]), (Some(1), &"not-frozen".into()), "{refused}");

    let digest = DigestRef::parse(&format!("sha256:{}", "a".repeat(64))).unwrap();
    let spec =
        ServiceSpec::new(&endpoint, &Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap(), vec![digest]);
    seed(&records, &names::service_spec_key(&endpoint.token(), &instance), spec.unwrap().to_bytes()).await;
    let (code, removed) = line("deregister-instance", "com.example.search");
    assert_eq!((code, &removed["removed"]), (Some(0), &true.into()), "{removed}");
    let (_, absent) = line("deregister-instance", "com.example.search");
    assert_eq!(absent["reason"], "absent", "{absent}");
    connection.close().await.unwrap();

    for (flag, value) in [("--endpoint", "No_Name"), ("--instance", "short")] {
        let mut line = vec!["reconcile-gate", "--endpoint", "manager", "--instance", INSTANCE];
        let at = line.iter().position(|word| *word == flag).unwrap();
        line[at + 1] = value;
        let output = stage.run(&line).unwrap();
        assert!(text(&output.stderr).contains(&format!("{flag} is")), "{}", text(&output.stderr));
    }
}
