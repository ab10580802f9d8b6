//! `cotal auth explain` and `cotal auth watch` as an operator uses them: the real binary, a real broker, real daemons.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set its stage must fail")]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use cotal_broker::{
    Connection,
    connector::{Connector, Lifetime},
    custody::Custody,
    kv::{Bucket, WriteOutcome},
};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{
    raw::{ConnectOutcome, RawClient},
    stage::{Bearer, RunningSpace, Stage},
};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, ConnId, CredentialId, DerivedOwner, LifecycleUid, Names, OpId, Permissions, Principal, Rules,
    names,
    rows::{AgentGate, CredentialRow, GateOp, LifecycleHead, OpKind, UidReservation},
};
use cotal_workspace::{
    registry::MeshRegistry,
    root::{Home, Root},
    trust_files,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than anything here takes under load.
const AT_LAST: Duration = Duration::from_secs(60);
const CLI: &str = env!("CARGO_BIN_EXE_cotal");

/// A space with one person, who is not granted anything yet.
struct Person {
    stage: Stage,
    space: RunningSpace,
    sub: String,
}

/// What a walk printed.
struct Walk {
    code: Option<i32>,
    document: Value,
}

impl Walk {
    fn check(&self, name: &str) -> &Value {
        let all = self.document["checks"].as_array().unwrap();
        all.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("{name}: {}", self.document))
    }

    fn verdict(&self, name: &str) -> &str {
        self.check(name)["verdict"].as_str().unwrap()
    }

    fn refused(&self) -> Vec<&str> {
        let all = self.document["checks"].as_array().unwrap().iter();
        all.filter(|check| check["verdict"] == "refused")
            .map(|check| check["check"].as_str().unwrap())
            .collect()
    }

    fn mend(&self) -> &str {
        let refuses = self.document["refuses"].as_str().unwrap();
        self.check(refuses)["mend"].as_str().unwrap_or_else(|| panic!("no command: {}", self.document))
    }
}

impl Person {
    async fn new() -> Self {
        let stage = Stage::new(CLI).unwrap();
        stage.ok(&["up", "--user-auth", "--dev-idp", "--port", "0"]).unwrap();
        let space = stage.space().await.unwrap();
        let (sub, _) = stage.login_at_dev_idp(&space.idp, "ada").await.unwrap();
        Self { stage, space, sub }
    }

    /// Grants her an actor that reads this and posts to `general`.
    fn may_read(&self, read: &str) {
        let who = ["actor", "grant", "cli", "--sub", &self.sub, "--scope", ""];
        let what = ["--allow-subscribe", read, "--allow-publish", "general"];
        self.stage.ok(&[who.as_slice(), &what].concat()).unwrap();
    }

    fn explain(&self, more: &[&str]) -> Walk {
        self.explain_of(&[&["--sub", &self.sub, "--actor", "cli"], more].concat())
    }

    fn explain_of(&self, whose: &[&str]) -> Walk {
        let output = self.stage.run(&[&["auth", "explain", "--json"], whose].concat()).unwrap();
        let document = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
        Walk { code: output.status.code(), document }
    }

    /// Nothing refuses, and the process says so.
    fn passes(&self, more: &[&str]) -> Walk {
        let walk = self.explain(more);
        assert_eq!((walk.code, walk.refused()), (Some(0), vec![]), "{}", walk.document);
        assert_eq!((&walk.document["ok"], &walk.document["refuses"]), (&true.into(), &Value::Null));
        walk
    }

    /// This check refuses first, and its command is run as it is printed; afterwards nothing refuses.
    fn mended(&self, refuses: &str, more: &[&str]) -> Walk {
        let walk = self.refuses(refuses, more);
        self.shell(walk.mend());
        self.passes(more);
        walk
    }

    fn refuses(&self, refuses: &str, more: &[&str]) -> Walk {
        let walk = self.explain(more);
        assert_eq!((walk.code, &walk.document["refuses"]), (Some(1), &refuses.into()), "{}", walk.document);
        walk
    }

    /// Runs a line as it is printed, the binary first in the path.
    fn shell(&self, line: &str) {
        let bin = Path::new(CLI).parent().unwrap().display().to_string();
        let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
        let output = Command::new("/bin/sh")
            .args(["-c", line])
            .current_dir(self.stage.root())
            .env("COTAL_HOME", self.stage.home())
            .env("COTAL_NATS_SERVER", cotal_testkit::broker::nats_server_binary())
            .env("PATH", path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    async fn bearer(&self) -> Bearer {
        self.stage.exchange_human(&self.space, "cli").await.unwrap().unwrap()
    }

    async fn connect(&self, bearer: Option<&str>, nonce: &str) -> ConnectOutcome {
        RawClient::connect(&self.space.server, Some(&self.space.sentinel), bearer, Some(nonce)).await.1
    }

    fn ledger(&self) -> Ledger {
        Ledger::at(&self.space.state_dir)
    }

    fn owner(&self) -> DerivedOwner {
        let walk = self.explain(&[]);
        DerivedOwner::parse(walk.document["owner"].as_str().unwrap()).unwrap()
    }

    fn principal(&self) -> Principal {
        Principal::new(self.owner(), Actor::parse("cli").unwrap())
    }

    fn uid(&self) -> LifecycleUid {
        let row = self.ledger().read_interactive(&self.owner(), &Actor::parse("cli").unwrap());
        LifecycleUid::parse(&row.unwrap().unwrap().lifecycle_uid.unwrap()).unwrap()
    }

    fn row_file(&self) -> PathBuf {
        self.space.state_dir.join(format!("actors/{}.cli.json", self.owner()))
    }

    fn kill(&self, daemon: &str) {
        let files = Root::at(self.stage.root()).daemon_files(daemon, Some(&self.space.name));
        let pid = fs::read_to_string(files.pid).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        let began = Instant::now();
        let stat = format!("/proc/{pid}/stat");
        while fs::read_to_string(&stat)
            .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z'))
        {
            assert!(began.elapsed() < AT_LAST, "{daemon} does not die");
            std::thread::yield_now();
        }
    }

    /// A connection that may do everything in the space's account.
    async fn master(&self) -> Connection {
        let server =
            MeshRegistry::new(Home::at(self.stage.home())).get(&self.space.name).unwrap().unwrap().server;
        let account =
            trust_files::load_account(&Root::at(self.stage.root()), &self.space.name).unwrap().unwrap();
        let connector = Connector::new(
            &server,
            self.space.name.clone(),
            account.data_account(),
            Custody::new(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        let everything = |conn: &ConnId| Permissions {
            publish: Rules { allow: vec!["$JS.API.>".into(), "$KV.>".into()], deny: vec![] },
            subscribe: Rules { allow: vec![format!("_INBOX_{conn}.>")], deny: vec![] },
        };
        let lifetime = Lifetime::OneShot { ttl_secs: 300, principal: None };
        connector.open("test".into(), &everything, lifetime).await.unwrap()
    }

    async fn buckets(&self) -> (Bucket, Bucket) {
        let (master, names) = (self.master().await, Names::new(&self.space.name.token()));
        (Bucket::new(&master, &names.auth_bucket()), Bucket::new(&master, &names.records_bucket()))
    }
}

fn written(outcome: &WriteOutcome) {
    assert!(matches!(outcome, WriteOutcome::Written(_)), "{outcome:?}");
}

/// Every file under a directory and what it holds.
fn files(dir: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            into.insert(path.clone(), Vec::new());
            files(&path, into);
        } else {
            into.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_names_the_check_that_refuses_and_its_command_mends_it() {
    let person = Person::new().await;

    // Never granted. Everything that needs no row is looked at all the same.
    let walk = person.mended("ledger-row", &[]);
    assert_eq!(walk.refused(), ["ledger-row"]);
    for (check, verdict) in [
        ("service", "ok"),
        ("broker", "ok"),
        ("idp-pin", "ok"),
        ("idp-keys", "ok"),
        ("owner", "ok"),
        ("stores", "ok"),
        ("issuer-keys", "ok"),
        ("exchange-limits", "remark"),
        ("connect-limits", "remark"),
        ("lifecycle-head", "not-reached"),
        ("connect-row", "not-reached"),
    ] {
        assert_eq!(walk.verdict(check), verdict, "{check}: {}", walk.document);
    }
    // Granted, and nothing was ever exchanged: the first exchange would make the root.
    let walk = person.passes(&[]);
    assert_eq!((walk.verdict("root-credential"), walk.verdict("connect-credential")), ("ok", "not-reached"));
    // It agrees with what then happens.
    let bearer = person.bearer().await;
    let walk = person.passes(&[]);
    assert_eq!(walk.verdict("connect-credential"), "ok", "{}", walk.document);
    assert_eq!(walk.verdict("permissions"), "ok");
    assert_eq!(person.connect(Some(&bearer.token), "explain-1").await, ConnectOutcome::Connected);

    // A view that the grant does not cover.
    let walk = person.mended("view", &["--view", "channel-writer"]);
    assert!(walk.mend().contains("--scope 'admin'"), "{}", walk.mend());
    let walk = person.refuses("view", &["--view", "service-endpoint"]);
    let minted = "it mints admin, purger, channel-purger, channel-writer, deployer, manager-service, manager-caller, \
                  session-caller, transfer-writer";
    assert!(walk.document.to_string().contains(minted), "{}", walk.document);
    let help = person.stage.run(&["auth", "explain", "--help"]).unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("transfer-writer"));
    person.refuses("view", &["--view", "nonsense"]);
    // Which managers there are, only the running service may enumerate.
    let walk = person.explain(&["--view", "manager-caller"]);
    let verdicts = (walk.verdict("manager-selection"), walk.verdict("bearer"));
    assert_eq!(verdicts, ("remark", "not-reached"), "{}", walk.document);
    let says = walk.check("bearer")["says"].as_str().unwrap();
    assert!(says.contains("only the running service can say"), "nothing refuses one: {says}");

    // A row that cannot be read.
    fs::write(person.row_file(), "{\"ver\":1").unwrap();
    let walk = person.mended("ledger-row", &[]);
    assert!(walk.check("ledger-row")["says"].as_str().unwrap().contains("is not valid JSON"));

    // Revoked; and, with the row brought back, retired for good.
    person.bearer().await;
    let row = fs::read(person.row_file()).unwrap();
    let file = person.row_file();
    person.stage.ok(&["actor", "revoke", "cli", "--sub", &person.sub]).unwrap();
    person.refuses("ledger-row", &[]);
    fs::write(&file, row).unwrap();
    let walk = person.mended("issuance-gate", &[]);
    assert!(walk.check("issuance-gate")["says"].as_str().unwrap().contains("burned"), "{}", walk.document);
    assert_eq!(walk.verdict("bearer"), "not-reached", "{}", walk.document);

    // A gate that a takeover holds.
    let (auth, records) = person.buckets().await;
    let (uid, principal) = (person.uid(), person.principal());
    let op = |c: char| OpId::parse(&c.to_string().repeat(26)).unwrap();
    let reservation = UidReservation::new(&principal, "auth-service:main");
    written(&records.create(&names::uid_key(&uid), reservation.to_bytes().into()).await);
    let frozen = AgentGate::born(&uid, &op('a')).reopen(&op('a')).unwrap();
    let frozen = frozen.freeze(GateOp::new(op('b'), OpKind::Takeover)).unwrap();
    written(&auth.create(&names::gate_key(&uid), frozen.to_bytes().into()).await);
    let refused = person.stage.exchange_human(&person.space, "cli").await.unwrap().err();
    assert!(refused.is_some(), "the exchange refuses it too");
    let walk = person.mended("issuance-gate", &[]);
    assert!(walk.check("issuance-gate")["says"].as_str().unwrap().contains("takeover"), "{}", walk.document);
    assert_eq!(walk.verdict("bearer"), "not-reached", "{}", walk.document);

    // A root credential that was revoked under its head.
    person.bearer().await;
    let head = records.read_authority(&names::head_key(&principal)).await.unwrap().unwrap();
    let head = LifecycleHead::parse(&principal, &head.value).unwrap();
    let id = CredentialId::parse(head.current_credential_id().unwrap()).unwrap();
    let key = names::cred_key(head.lifecycle_uid(), &id);
    let at = auth.read_authority(&key).await.unwrap().unwrap();
    let revoked = CredentialRow::parse(&key, &at.value).unwrap().revoke();
    written(&auth.put_pinned(&key, revoked.to_bytes().into(), at.revision).await);
    let walk = person.mended("root-credential", &[]);
    assert_eq!((walk.verdict("lifecycle-head"), walk.verdict("bearer")), ("ok", "not-reached"));

    // A service that is down hides nothing of the rest.
    person.kill("auth-service");
    let walk = person.mended("service", &[]);
    assert_eq!(walk.refused(), ["service"]);
    // Without a broker what lies on this disk is still told.
    person.stage.ok(&["down"]).unwrap();
    let walk = person.refuses("service", &[]);
    assert!(walk.refused().contains(&"broker"), "{}", walk.document);
    assert_eq!((walk.verdict("ledger-row"), walk.verdict("stores")), ("ok", "not-reached"));
    assert_eq!((walk.verdict("connect-row"), walk.verdict("permissions")), ("ok", "ok"));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_walks_an_agent_through_its_parents_and_writes_nothing_anywhere() {
    let person = Person::new().await;
    let owner = person.owner();
    person.may_read("general");
    person.bearer().await;
    // An agent that was spawned within its parent's grant, which has been narrowed since.
    let (secret, hash) = mint_agent_secret(&SystemEntropy);
    let agent = GrantInput::new(owner.clone(), Actor::parse("worker").unwrap())
        .allow_subscribe(["general"])
        .parent(format!("{owner}.cli"))
        .lifecycle_uid(LifecycleUid::mint(&SystemEntropy));
    person.ledger().grant_managed(&agent, &hash, &SystemClock).unwrap();
    let worker = ["--owner", owner.as_str(), "--actor", "worker"];
    let walk = person.explain_of(&worker);
    assert_eq!((walk.code, walk.verdict("delegation-envelope")), (Some(0), "ok"), "{}", walk.document);
    person.may_read("");
    let walk = person.explain_of(&worker);
    assert_eq!(walk.refused(), ["delegation-envelope"], "{}", walk.document);
    person.shell(walk.mend());
    let walk = person.explain_of(&worker);
    assert_eq!((walk.code, walk.refused()), (Some(0), vec![]), "{}", walk.document);
    let view = person.explain_of(&[&worker[..], &["--view", "admin"]].concat());
    assert_eq!(view.document["refuses"], "view", "{}", view.document);

    // The only writers that are left are the walk's, if it had any.
    person.bearer().await;
    person.kill("delivery");
    let names = Names::new(&person.space.name.token());
    let master = person.master().await;
    let observe = async || {
        let mut last = Vec::new();
        for bucket in [names.auth_bucket(), names.records_bucket()] {
            last.push(Bucket::new(&master, &bucket).tail().await.unwrap().last);
        }
        let mut disk = BTreeMap::new();
        files(&person.stage.root(), &mut disk);
        files(&person.stage.home(), &mut disk);
        // The broker's own store, whose state files it rewrites as it likes: its streams are looked at above.
        disk.retain(|path, _| !path.components().any(|part| part.as_os_str() == "jetstream"));
        disk.retain(|path, _| path.extension().is_none_or(|extension| extension != "log"));
        (last, disk)
    };
    let before = observe().await;
    person.passes(&[]);
    person.refuses("view", &["--view", "admin"]);
    person.explain_of(&worker);
    person.explain_of(&["--sub", "nobody", "--actor", "ghost", "--view", "admin"]);
    let after = observe().await;
    assert_eq!(after.0, before.0, "a stream moved");
    for (path, bytes) in &before.1 {
        assert_eq!(after.1.get(path), Some(bytes), "{}", path.display());
    }
    assert_eq!(after.1.len(), before.1.len());

    // No secret is told.
    let output = person.stage.run(&[&["auth", "explain"], &worker[..]].concat()).unwrap();
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("Nothing refuses."), "{told}");
    for hidden in [secret.as_str(), &hash, person.space.discovery.cap.as_str()] {
        assert!(!told.contains(hidden));
    }
}

/// A `watch` that runs, and its lines as they come.
struct Watching {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Watching {
    fn start(stage: &Stage, more: &[&str]) -> Self {
        let mut child = stage
            .command(&[&["auth", "watch"], more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut told).unwrap();
        assert!(told.starts_with("watching "), "{told}");
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (told, lines) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| told.send(line)));
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(AT_LAST).unwrap()
    }

    fn interrupted(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_shows_a_mint_and_a_denial_and_survives_a_log_that_is_cut() {
    let person = Person::new().await;
    person.stage.ok(&["actor", "grant", "cli", "--sub", &person.sub, "--full"]).unwrap();
    let bearer = person.bearer().await;
    let plain = Watching::start(&person.stage, &[]);
    let documents = Watching::start(&person.stage, &["--json", "--last", "0"]);

    assert_eq!(person.connect(Some(&bearer.token), "watched-1").await, ConnectOutcome::Connected);
    let minted = loop {
        let line = plain.line();
        if !line.starts_with("note ") {
            break line;
        }
    };
    assert!(minted.starts_with("minted ") && minted.ends_with(&format!("{}.cli", bearer.owner)), "{minted}");
    let document: Value = serde_json::from_str(&documents.line()).unwrap();
    assert_eq!((&document["outcome"], &document["owner"]), (&"minted".into(), &bearer.owner.as_str().into()));
    assert!(document["steps"]["ledgerMs"].is_u64() && document["totalMs"].is_u64(), "{document}");

    // The log is cut in place; the next line is the first of what stands there now.
    let log = Root::at(person.stage.root()).daemon_files("auth-service", Some(&person.space.name)).log;
    fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(0).unwrap();
    assert_ne!(person.connect(Some("a.b.c"), "watched-2").await, ConnectOutcome::Connected);
    let denied = plain.line();
    assert!(denied.starts_with("denied ") && denied.contains(" bearer: "), "{denied}");
    let document: Value = serde_json::from_str(&documents.line()).unwrap();
    assert_eq!(document["outcome"], "denied");
    assert!(document["reason"].as_str().unwrap().starts_with("bearer: "), "{document}");
    plain.interrupted();
    documents.interrupted();
}
