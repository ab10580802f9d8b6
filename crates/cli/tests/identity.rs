//! `login`, `logout`, `actor` and `agent-bearer`, against a real development IdP and a real disk.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{io::Write, path::PathBuf, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::any,
};
use cotal::{
    actor::{self, ActorArgs},
    agent_bearer::{self, AgentBearerArgs},
    cli::{Cli, Command},
    context::Context,
    login,
    outcome::CliError,
};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_ledger::{ActorRow, GrantInput, Ledger, hash_agent_secret};
use cotal_trust::{
    idp::IdpPin,
    owner::OwnerSecret,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid, Space, UnixSecs};
use cotal_workspace::{
    file,
    material::{Discovery, deprovision_secret_keys},
    root::{Home, Root},
    secret_store::{FsSecretStore, SecretStore},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use zeroize::Zeroizing;

const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const UID: &str = "00000000000000000000000001";

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One machine: a home, a root, and what commands printed.
struct Machine {
    dir: TempDir,
    out: Captured,
    err: Captured,
}

impl Machine {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), out: Captured::default(), err: Captured::default() }
    }

    fn home(&self) -> Home {
        Home::at(self.dir.path().join("home"))
    }

    fn root(&self) -> Root {
        Root::at(self.dir.path().join("work"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn run(&self, line: &[&str]) -> Result<(), CliError> {
        self.out.0.lock().clear();
        self.err.0.lock().clear();
        let words: Vec<_> = std::iter::once("cotal").chain(line.iter().copied()).collect();
        let command = <Cli as clap::Parser>::try_parse_from(words).unwrap().command;
        let mut ctx = Context::of_parts(
            self.home(),
            self.root(),
            PathBuf::new(),
            |_| None,
            self.out.clone(),
            self.err.clone(),
        );
        ctx.json = command.json();
        match command {
            Command::Login(args) => login::run(args, &ctx).await,
            Command::Logout(args) => login::logout(args, &ctx).await,
            Command::Actor(args) => actor::run(ActorArgs { verb: args.verb }, &ctx).await,
            Command::AgentBearer(args) => agent_bearer::run(AgentBearerArgs { ..args }, &ctx).await,
            other => panic!("not tested here: {other:?}"),
        }
    }

    #[track_caller]
    fn stdout(&self) -> String {
        String::from_utf8(self.out.0.lock().clone()).unwrap()
    }

    fn stderr(&self) -> String {
        String::from_utf8(self.err.0.lock().clone()).unwrap()
    }

    /// What `up --user-auth` leaves behind, as far as the ledger needs it.
    async fn provision(&self, space: &str) -> OwnerSecret {
        let (root, space) = (self.root(), Space::parse(space).unwrap());
        file::ensure_private_dir(&root.cotal_dir()).unwrap();
        let store = FsSecretStore::open(&root).unwrap();
        let secret = OwnerSecret::generate(&SystemEntropy);
        let key = deprovision_secret_keys(&space)
            .into_iter()
            .find(|key| key.ends_with("owner-secret.json"))
            .unwrap();
        store.put(&key, &secret.to_document()).await.unwrap();
        let state_dir = root.user_auth_state_dir(&space).unwrap();
        let pin = IdpPin::from_url("https://id.example/api/auth").unwrap();
        let mut document = json!({ "ver": 1 });
        document
            .as_object_mut()
            .unwrap()
            .extend(serde_json::to_value(pin).unwrap().as_object().unwrap().clone());
        file::write_atomic(&state_dir.join("idp.json"), document.to_string().as_bytes()).unwrap();
        secret
    }

    fn state_dir(&self, space: &str) -> PathBuf {
        self.root().user_auth_state_dir(&Space::parse(space).unwrap()).unwrap()
    }

    fn ledger(&self, space: &str) -> Ledger {
        Ledger::at(self.state_dir(space))
    }

    /// From now on this very process is the auth service of `main`, at this address.
    fn serve_at(&self, url: &str) {
        let cap = Zeroizing::new("c0ffee".to_owned());
        let discovery = Discovery { url: url.to_owned(), pid: std::process::id(), cap, public_url: None };
        discovery.write(&self.state_dir("main")).unwrap();
    }
}

async fn idp(auto_approve: bool) -> DevIdp {
    let options = DevIdpOptions { auto_approve, ..Default::default() };
    DevIdp::start(options, Arc::new(SystemClock), Arc::new(SystemEntropy)).await.unwrap()
}

fn owner(s: &str) -> DerivedOwner {
    DerivedOwner::parse(s).unwrap()
}

fn actor_name(s: &str) -> Actor {
    Actor::parse(s).unwrap()
}

#[track_caller]
fn failed(outcome: Result<(), CliError>, part: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().contains(part), "{error}");
}

// --- login and logout ----------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_login_is_proved_cached_and_told_and_a_logout_revokes_and_forgets_it() {
    let (machine, idp) = (Machine::new(), idp(true).await);
    let base = idp.base_url();
    machine.run(&["login", "--idp", &format!("{base}/")]).await.unwrap();
    let told = machine.stdout();
    for part in [
        "user_code=",
        &base,
        "subject  dev",
        "cotal actor grant cli --sub 'dev' --scope '' --allow-subscribe",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let cached = login::cached_login(&machine.home(), &base).unwrap().unwrap();
    assert_eq!(cached.sub.as_deref(), Some("dev"));
    assert!(cached.expires_at > UnixSecs(1_767_323_045));

    machine.run(&["logout", "--idp", &base]).await.unwrap();
    assert!(login::cached_login(&machine.home(), &base).unwrap().is_none());
    machine.run(&["logout", "--idp", &base]).await.unwrap();
    assert!(machine.stdout().contains("nothing to do"));
}

#[tokio::test]
async fn json_keeps_stdout_one_document_and_the_prompt_on_stderr() {
    let (machine, idp) = (Machine::new(), idp(true).await);
    machine.run(&["login", "--json", "--idp", &idp.base_url()]).await.unwrap();
    let document: Value = serde_json::from_str(&machine.stdout()).unwrap();
    assert_eq!((&document["sub"], &document["idp"]), (&json!("dev"), &json!(idp.base_url())));
    assert!(machine.stderr().contains("user_code="));
}

#[tokio::test]
async fn a_session_that_could_not_be_revoked_stays_cached() {
    let (machine, idp) = (Machine::new(), idp(true).await);
    let base = idp.base_url();
    machine.run(&["login", "--idp", &base]).await.unwrap();
    idp.stop().await;
    failed(machine.run(&["logout", "--idp", &base]).await, "no answer from the IdP");
    assert!(login::cached_login(&machine.home(), &base).unwrap().is_some());
}

#[tokio::test]
async fn an_idp_in_the_clear_is_refused_off_loopback() {
    let machine = Machine::new();
    for url in ["http://id.example/api/auth", "http://localhost:4780/api/auth", "not a url"] {
        assert!(machine.run(&["login", "--idp", url]).await.is_err(), "{url}");
        assert!(machine.run(&["logout", "--idp", url]).await.is_err(), "{url}");
    }
}

// --- actor ---------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_grant_derives_the_owner_of_a_subject_and_writes_the_whole_row() {
    let machine = Machine::new();
    let secret = machine.provision("main").await;
    let zoe = secret.derive("https://id.example", "zoe").unwrap();
    machine.run(&["actor", "grant", "cli", "--sub", "zoe", "--full", "--label", "Zoe\u{1b}"]).await.unwrap();
    let row = machine.ledger("main").read_interactive(&zoe, &actor_name("cli")).unwrap().unwrap();
    assert_eq!(row.scope, ["spawn", "role:default"]);
    assert_eq!(
        (&row.allow_subscribe[..], &row.allow_publish[..]),
        (&[">".to_owned()][..], &[">".to_owned()][..])
    );
    assert_eq!(
        machine.stdout(),
        format!(
            "Granted in main: {zoe}.cli  (Zoe\u{fffd})  kind=interactive  role=-  scope=[spawn,role:default]  read=[>]  \
             post=[>]\n"
        )
    );

    let door = Exchange::answering(200, retired(&row)).await;
    machine.serve_at(&door.url);
    let line = ["actor", "grant", "cli", "--owner", zoe.as_str()];
    let lists = ["--scope", "", "--allow-subscribe", " a , ,b.> ", "--allow-publish", "", "--json"];
    machine.run(&[&line[..], &lists].concat()).await.unwrap();
    let document: Value = serde_json::from_str(&machine.stdout()).unwrap();
    assert_eq!(document["granted"]["allowSubscribe"], json!(["a", "b.>"]));
    assert_eq!(document["granted"]["scope"], json!([]));
    assert_eq!(document["granted"].get("label"), None);
    // The incarnation before it is retired first, by the door of the service that runs here.
    let asked = door.asked.lock().clone();
    let body = json!({ "owner": zoe, "actor": "cli", "lifecycleUid": row.lifecycle_uid });
    let path = "/interactive-lifecycle/retire".to_owned();
    assert_eq!(asked, [(path, Some("Bearer c0ffee".to_owned()), body)]);
    assert_ne!(document["granted"]["lifecycleUid"].as_str(), row.lifecycle_uid.as_deref());
    let ended = json!([{ "lifecycleUid": row.lifecycle_uid, "outcome": "retired" }]);
    assert_eq!((&document["retired"], &document["eviction"]), (&ended, &Value::Null));
}

/// What the door answers once the incarnation of a row is retired.
fn retired(row: &ActorRow) -> Value {
    json!({ "retired": true, "lifecycleUid": row.lifecycle_uid })
}

#[tokio::test]
async fn a_row_stands_unchanged_until_its_incarnation_is_known_to_be_retired() {
    let machine = Machine::new();
    machine.provision("main").await;
    machine.run(&["actor", "grant", "cli", "--owner", OWNER, "--full"]).await.unwrap();
    let path = machine.state_dir("main").join(format!("actors/{OWNER}.cli.json"));
    let before = std::fs::read(&path).unwrap();
    let lines: [&[&str]; 2] = [
        &["actor", "grant", "cli", "--owner", OWNER, "--full", "--scope", "admin"],
        &["actor", "revoke", "cli", "--owner", OWNER],
    ];
    for line in lines {
        let refused = machine.run(line).await.unwrap_err();
        let told = refused.to_string();
        assert_eq!(refused.to_json()["error"]["outcome"], "not-executed", "{told}");
        assert!(told.contains("cotal up --user-auth") && told.contains("its row is unchanged"), "{told}");
        for (status, body, outcome, part) in [
            (409, json!({ "error": "busy", "outcome": "not-executed" }), "not-executed", "busy"),
            (503, json!({ "error": "the barrier stays frozen" }), "unknown", "run this command again"),
            (200, json!({ "retired": true, "lifecycleUid": UID }), "unknown", "something else"),
            (500, json!(1), "unknown", "auth-service.6d61696e.log"),
        ] {
            let door = Exchange::answering(status, body).await;
            machine.serve_at(&door.url);
            let refused = machine.run(line).await.unwrap_err();
            let told = refused.to_string();
            assert_eq!((refused.exit_code(), &refused.to_json()["error"]["outcome"]), (1, &json!(outcome)));
            assert!(told.contains(part) && told.contains("its row is unchanged"), "{told}");
            assert_eq!(std::fs::read(&path).unwrap(), before, "{line:?} {status}");
        }
        // Nothing listens there: nothing was sent.
        machine.serve_at("http://127.0.0.1:1");
        let refused = machine.run(line).await.unwrap_err();
        assert_eq!(refused.to_json()["error"]["outcome"], "not-executed");
        Discovery::remove(&machine.state_dir("main")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), before, "{line:?}");
    }
}

#[tokio::test]
async fn a_grant_that_would_be_refused_retires_nothing() {
    let machine = Machine::new();
    machine.provision("main").await;
    machine.run(&["actor", "grant", "cli", "--owner", OWNER, "--full"]).await.unwrap();
    let door = Exchange::answering(200, json!({})).await;
    machine.serve_at(&door.url);
    let line = ["actor", "grant", "cli", "--owner", OWNER, "--full"];
    for more in [["--role", "a b"], ["--allow-publish", "a..b"], ["--scope", "x y"], ["--parent", "p"]] {
        assert!(machine.run(&[&line[..], &more].concat()).await.is_err(), "{more:?}");
    }
    assert!(door.asked.lock().is_empty());
}

#[tokio::test]
async fn a_grant_that_leaves_a_list_off_is_refused_and_writes_nothing() {
    let machine = Machine::new();
    machine.provision("main").await;
    let start = "refusing to grant \"cli\" with ";
    let cases: [(&[&str], &str); 3] = [
        (&[], "--scope, --allow-subscribe, --allow-publish left off"),
        (&["--scope", "spawn"], "--allow-subscribe, --allow-publish left off"),
        (&["--scope", "", "--allow-publish", ""], "--allow-subscribe left off"),
    ];
    for (named, left_off) in cases {
        // Before the owner is even looked at.
        let line = [&["actor", "grant", "cli"], named].concat();
        let error = machine.run(&line).await.unwrap_err();
        assert!(error.to_string().starts_with(&format!("{start}{left_off}")), "{error}");
        assert_eq!(error.exit_code(), 1);
    }
    assert!(machine.ledger("main").list().unwrap().is_empty());
    machine.run(&["actor", "grant", "cli", "--owner", OWNER, "--full", "--scope", "admin"]).await.unwrap();
    let rows = machine.ledger("main").list().unwrap();
    assert_eq!(
        (&rows[0].row.scope, &rows[0].row.allow_publish),
        (&vec!["admin".to_owned()], &vec![">".to_owned()])
    );
}

#[tokio::test]
async fn the_owner_is_named_in_exactly_one_way_on_the_machine_that_knows_the_space() {
    let machine = Machine::new();
    failed(
        machine.run(&["actor", "grant", "cli", "--sub", "zoe", "--full"]).await,
        "there is no space \"main\"",
    );
    failed(machine.run(&["actor", "list"]).await, "it has none");
    machine.provision("main").await;
    failed(machine.run(&["actor", "grant", "cli", "--full"]).await, "--sub <subject> or by --owner");
    let both = ["actor", "grant", "cli", "--full", "--sub", "zoe", "--owner", OWNER];
    failed(machine.run(&both).await, "not by both");
    failed(machine.run(&["actor", "revoke", "cli"]).await, "--sub <subject> or by --owner");
    failed(machine.run(&["actor", "grant", "cli", "--full", "--owner", "local"]).await, "--owner is");
    failed(machine.run(&["actor", "grant", "c.li", "--full", "--owner", OWNER]).await, "<actor> is");
    failed(
        machine.run(&["actor", "grant", "cli", "--full", "--owner", OWNER, "--space", "other"]).await,
        "it has \"main\"",
    );
}

#[tokio::test]
async fn a_revocation_takes_a_persons_row_and_no_other() {
    let machine = Machine::new();
    machine.provision("main").await;
    machine.run(&["actor", "grant", "cli", "--owner", OWNER, "--full"]).await.unwrap();
    let row = machine.ledger("main").read_interactive(&owner(OWNER), &actor_name("cli")).unwrap().unwrap();
    let door = Exchange::answering(200, retired(&row)).await;
    machine.serve_at(&door.url);
    machine.run(&["actor", "revoke", "cli", "--owner", OWNER]).await.unwrap();
    assert!(machine.stdout().contains("can no longer exchange or connect"));
    assert!(machine.stdout().contains(&format!("Incarnation {} is retired", row.lifecycle_uid.unwrap())));
    assert!(machine.stdout().contains("Live connections were not looked at"));
    machine.run(&["actor", "revoke", "cli", "--owner", OWNER]).await.unwrap();
    assert!(machine.stdout().contains("nothing to revoke"));

    managed(&machine);
    failed(machine.run(&["actor", "revoke", "scout", "--owner", OWNER]).await, "is a managed agent");
    failed(machine.run(&["actor", "grant", "scout", "--owner", OWNER, "--full"]).await, "is a managed agent");
    // A row that cannot be read can still be taken away, and stands in the way of nothing else.
    let path = machine.state_dir("main").join(format!("actors/{OWNER}.cli.json"));
    std::fs::write(&path, "{}").unwrap();
    failed(machine.run(&["actor", "grant", "cli", "--owner", OWNER, "--full"]).await, "until it is mended");
    machine.run(&["actor", "revoke", "cli", "--owner", OWNER]).await.unwrap();
    assert!(!path.exists());
}

fn managed(machine: &Machine) {
    let input = GrantInput {
        role: Some("scout".into()),
        ..GrantInput::new(owner(OWNER), actor_name("scout"))
            .allow_subscribe(["a"])
            .lifecycle_uid(LifecycleUid::parse(UID).unwrap())
    };
    machine.ledger("main").grant_managed(&input, &hash_agent_secret("secret"), &SystemClock).unwrap();
}

#[tokio::test]
async fn a_listing_is_one_line_a_row_sorted_by_principal() {
    let machine = Machine::new();
    machine.provision("main").await;
    machine.run(&["actor", "list"]).await.unwrap();
    assert!(machine.stdout().contains("cotal actor grant cli --sub <subject> --scope ''"));
    machine
        .run(&["actor", "grant", "web", "--owner", OWNER, "--full", "--role", "r", "--label", "W"])
        .await
        .unwrap();
    managed(&machine);
    machine.run(&["actor", "list"]).await.unwrap();
    assert_eq!(
        machine.stdout(),
        format!(
            "{OWNER}.scout  kind=managed-agent  role=scout  scope=[]  read=[a]  post=[]\n\
             {OWNER}.web  (W)  kind=interactive  role=r  scope=[spawn,role:default]  read=[>]  post=[>]\n"
        )
    );
    machine.run(&["actor", "list", "--json"]).await.unwrap();
    let document: Value = serde_json::from_str(&machine.stdout()).unwrap();
    assert_eq!(document["actors"][0]["kind"], "managed-agent");
    assert_eq!(document["actors"][0].get("tokenHash"), None);
}

// --- agent-bearer --------------------------------------------------------------------------------------------------

type Asked = Arc<Mutex<Vec<(String, Option<String>, Value)>>>;

/// An exchange that always gives the same answer.
struct Exchange {
    url: String,
    asked: Asked,
}

#[derive(Clone)]
struct Fixed {
    status: u16,
    body: Value,
    asked: Asked,
}

async fn exchange(
    State(fixed): State<Fixed>,
    uri: axum::http::Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    let authorization = headers.get(header::AUTHORIZATION).map(|v| v.to_str().unwrap().to_owned());
    let body = serde_json::from_str(&body).unwrap();
    fixed.asked.lock().push((uri.path().to_owned(), authorization, body));
    let status = StatusCode::from_u16(fixed.status).unwrap();
    (status, [(header::LOCATION, "http://127.0.0.1:1/")], fixed.body.to_string()).into_response()
}

impl Exchange {
    async fn answering(status: u16, body: Value) -> Self {
        let asked = Asked::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let fixed = Fixed { status, body, asked: asked.clone() };
        let app = Router::new().fallback(any(exchange)).with_state(fixed);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, asked }
    }
}

/// A machine whose state directory says that this very process is the service at `url`.
fn serving(url: &str, pid: u32) -> Machine {
    let machine = Machine::new();
    let dir = machine.path("state");
    file::ensure_private_dir(&dir).unwrap();
    Discovery { url: url.to_owned(), pid, cap: Zeroizing::new("c0ffee".into()), public_url: None }
        .write(&dir)
        .unwrap();
    std::fs::write(machine.path("token"), "  secret\n").unwrap();
    machine
}

async fn ask(machine: &Machine, more: &[&str]) -> Result<(), CliError> {
    let (dir, token) = (machine.path("state"), machine.path("token"));
    let (dir, token) = (dir.to_str().unwrap(), token.to_str().unwrap());
    let known = ["agent-bearer", "--dir", dir, "--space", "main", "--owner", OWNER, "--actor", "scout"];
    let line = [&known[..], &["--token-file", token], more].concat();
    machine.run(&line).await
}

#[tokio::test]
async fn stdout_is_the_bearer_and_one_newline() {
    let service = Exchange::answering(200, json!({ "token": "b.e.arer", "owner": OWNER, "exp": 1 })).await;
    let machine = serving(&service.url, std::process::id());
    let health = machine.path("health");
    ask(&machine, &["--health-file", health.to_str().unwrap()]).await.unwrap();
    assert_eq!((machine.stdout(), machine.stderr()), ("b.e.arer\n".to_owned(), String::new()));
    let asked = service.asked.lock().clone();
    let body = json!({ "owner": OWNER, "actor": "scout", "actorToken": "secret" });
    assert_eq!(asked, [("/exchange".to_owned(), Some("Bearer c0ffee".to_owned()), body)]);
    let health: Value = serde_json::from_slice(&std::fs::read(health).unwrap()).unwrap();
    assert_eq!((&health["state"], health.get("reason")), (&json!("ok"), None));
    assert!(health["at"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn a_manager_call_names_its_view_and_touches_no_health() {
    let service = Exchange::answering(200, json!({ "token": "t" })).await;
    let machine = serving(&service.url, std::process::id());
    let health = machine.path("health");
    let health_flags = ["--health-file", health.to_str().unwrap()];
    ask(&machine, &[&health_flags[..], &["--manager-call"]].concat()).await.unwrap();
    ask(&machine, &[&health_flags[..], &["--manager-instance", UID]].concat()).await.unwrap();
    assert!(!health.exists());
    let asked = service.asked.lock().clone();
    assert_eq!((&asked[0].2["view"], asked[0].2.get("managerInstanceId")), (&json!("manager-caller"), None));
    assert_eq!(
        (&asked[1].2["view"], &asked[1].2["managerInstanceId"]),
        (&json!("manager-caller"), &json!(UID))
    );
}

#[tokio::test]
async fn a_rate_limit_says_when_to_ask_again_on_stdout_and_exits_two() {
    let body = json!({ "code": "RATE_LIMITED", "retryAfterSeconds": 9, "limit": "owner", "error": "Too many connects." });
    let service = Exchange::answering(429, body).await;
    let machine = serving(&service.url, std::process::id());
    let error = ask(&machine, &[]).await.unwrap_err();
    assert_eq!((error.exit_code(), machine.stdout().as_str()), (2, "retry-after 9\n"));
    assert!(error.to_string().starts_with("Too many connects. The whole account"), "{error}");
}

#[tokio::test]
async fn a_failure_leaves_stdout_empty_and_its_reason_in_the_health_file() {
    for (status, body, part) in [
        (401, json!({ "error": "agent exchange refused" }), "exchange refused: agent exchange refused"),
        (429, json!({ "error": "too many" }), "exchange refused: too many"),
        (502, json!(1), "exchange refused: HTTP 502"),
        (307, json!({ "token": "t" }), "redirect"),
        (200, json!({ "token": "" }), "no token"),
    ] {
        let service = Exchange::answering(status, body).await;
        let machine = serving(&service.url, std::process::id());
        let health = machine.path("health");
        failed(ask(&machine, &["--health-file", health.to_str().unwrap()]).await, part);
        assert_eq!(machine.stdout(), "");
        let health: Value = serde_json::from_slice(&std::fs::read(health).unwrap()).unwrap();
        assert!(health["state"] == "failed" && health["reason"].as_str().unwrap().contains(part));
        assert_eq!(service.asked.lock().len(), 1);
    }
}

#[tokio::test]
async fn a_service_that_is_not_provably_alive_is_not_asked() {
    let service = Exchange::answering(200, json!({ "token": "t" })).await;
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    let pid = gone.id();
    gone.wait().unwrap();
    failed(ask(&serving(&service.url, pid), &[]).await, "no auth service runs");
    failed(ask(&serving(&service.url, u32::MAX), &[]).await, "no auth service runs");
    let absent = serving(&service.url, std::process::id());
    Discovery::remove(&absent.path("state")).unwrap();
    failed(ask(&absent, &[]).await, "no auth service runs");
    // Only the caller knows of which space a directory of another name is.
    let (dir, token) = (absent.path("state"), absent.path("token"));
    let of_two = |dir: &std::path::Path| {
        let (dir, token) = (dir.to_str().unwrap().to_owned(), token.to_str().unwrap().to_owned());
        [
            "agent-bearer",
            "--dir",
            &dir,
            "--space",
            "two",
            "--owner",
            OWNER,
            "--actor",
            "scout",
            "--token-file",
            &token,
        ]
        .map(str::to_owned)
    };
    for (dir, part) in
        [(dir.clone(), "`cotal up --user-auth --space 'two'`"), (dir.join("nosuch"), "which is no directory")]
    {
        let line = of_two(&dir);
        let line: Vec<_> = line.iter().map(String::as_str).collect();
        failed(absent.run(&line).await, part);
    }
    failed(ask(&serving("http://192.0.2.1:9", std::process::id()), &[]).await, "no loopback address");
    assert!(service.asked.lock().is_empty());
}

#[tokio::test]
async fn what_is_missing_or_malformed_is_named() {
    let machine = serving("http://127.0.0.1:9", std::process::id());
    let token = machine.path("token");
    let token = token.to_str().unwrap();
    let whole = ["--dir", "/x", "--owner", OWNER, "--actor", "scout", "--token-file", token];
    for (left_off, part) in [(0, "--dir"), (2, "--owner"), (4, "--actor"), (6, "--token-file")] {
        let mut line = vec!["agent-bearer"];
        line.extend(
            whole.chunks(2).enumerate().filter(|(i, _)| i * 2 != left_off).flat_map(|(_, pair)| pair),
        );
        failed(machine.run(&line).await, part);
    }
    let line = [&["agent-bearer", "--exchange-url", "https://x"], &whole[..]].concat();
    failed(machine.run(&line).await, "not both");
    let remote =
        ["agent-bearer", "--exchange-url", "http://127.0.0.1:9", "--owner", OWNER, "--actor", "scout"];
    failed(machine.run(&[&remote[..], &["--token-file", token]].concat()).await, "must be https");
    std::fs::write(token, " \n").unwrap();
    failed(ask(&machine, &[]).await, "it is empty");
    std::fs::remove_file(token).unwrap();
    failed(ask(&machine, &[]).await, "cannot be read");
}
