//! A manager without any signing key, as a process of its own on a root of its own, against a host that is another.
//!
//! The host signs standing credentials for five seconds, so that two of their lives fit into a test.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test that cannot go on ends")]

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    path::PathBuf,
    process::{Child, Stdio},
    sync::{Arc, mpsc},
    time::Duration,
};

use async_trait::async_trait;
use cotal_auth::{
    AuthService, AuthServiceInputs, Composition, HostedContext, HostedSpace, PublicFaceRequest, SpaceAt,
    start_auth_service,
};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_ledger::{GrantInput, Ledger};
use cotal_manager::remote::{
    IdpTokens, ManagerHost, ManagerIdentity, Participant, Setup,
    contract::ManagerContract,
    standing::{Renewal, debt_file},
};
use cotal_testkit::{
    disk::{files, is_seed, seeds_in},
    injected::Injected,
    process::Process,
    proxy::{Net, Proxy},
    space::TestSpace,
    stage::Stage,
};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Actor, Clock as _, DerivedOwner, LifecycleUid, Space, manager_authority::StandingRole};
use cotal_workspace::root::Root;
use serde_json::Value;
use zeroize::Zeroizing;

const COTAL: &str = env!("CARGO_BIN_EXE_cotal");
const COORDINATE: &str = "remote-manager-test";
const PERSON: &str = "ada";
const ACTOR: &str = "cli";
const AGENT: &str = "remotecheck";
/// How long a standing credential lives here.
const TTL_SECS: u64 = 5;
/// A busy machine is no failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// A space with its broker, its delivery daemon, its identity provider and a service in front of them.
struct Host {
    idp: DevIdp,
    space: TestSpace,
    service: AuthService,
    owner: DerivedOwner,
    _delivery: Process,
}

impl Host {
    async fn start() -> Self {
        let idp = DevIdp::start(DevIdpOptions::default(), Arc::new(SystemClock), Arc::new(SystemEntropy));
        let idp = idp.await.unwrap();
        let space = TestSpace::start("main", &idp.base_url()).await;
        let delivery = space.start_delivery(COTAL).await.unwrap();
        let context = HostedContext {
            account_public_key: space.account.data_account().account,
            lifecycle_uid: LifecycleUid::mint(&SystemEntropy),
        };
        let store = Arc::new(Injected::over(space.store.clone(), COORDINATE));
        let at = SpaceAt::new(space.space.clone(), space.server.url());
        let hosted = HostedSpace::new(context, at, store, COORDINATE, &space.state_dir);
        let inputs = AuthServiceInputs::new(hosted.callout_log(Arc::new(|_| {})))
            .public_face(PublicFaceRequest::on_port(0))
            .composition(Composition::new().standing_renewable_ttl_seconds(TTL_SECS));
        let service = start_auth_service(inputs).await.unwrap();
        let owner = space.material.owner_secret.derive(&idp.origin(), PERSON).unwrap();
        let host = Self { idp, space, service, owner, _delivery: delivery };
        host.grant(&["supervise", "spawn"]);
        host
    }

    fn ledger(&self) -> Ledger {
        Ledger::at(&self.space.state_dir)
    }

    fn grant(&self, scope: &[&str]) {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let input = GrantInput {
            owner: self.owner.clone(),
            actor: Actor::parse(ACTOR).unwrap(),
            scope: list(scope),
            allow_subscribe: list(&["general"]),
            allow_publish: list(&["general"]),
            role: None,
            label: None,
            parent: None,
            lifecycle_uid: None,
        };
        self.ledger().grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
    }

    /// Files of agents' rows: none is left of an agent that was retired.
    fn agents(&self) -> Vec<PathBuf> {
        let found = files(&self.space.state_dir).unwrap().into_keys();
        found.filter(|path| path.to_string_lossy().contains(AGENT)).collect()
    }

    fn face(&self) -> String {
        self.service.public_url().unwrap().to_owned()
    }
}

/// Another machine: a root and a home of its own, where a person has signed in and nothing else is.
struct Machine {
    stage: Stage,
}

/// A run of `remote-check` on that machine.
struct Run {
    child: Child,
    said: mpsc::Receiver<String>,
    heard: Vec<String>,
}

impl Machine {
    async fn signed_in(host: &Host) -> Self {
        let stage = Stage::new(COTAL).unwrap();
        let approve = async |code: String| {
            anyhow::ensure!(host.idp.approve(&code, PERSON), "the code was not approved");
            Ok(())
        };
        stage.login(&host.idp.base_url(), approve).await.unwrap();
        Self { stage }
    }

    fn root(&self) -> Root {
        Root::at(self.stage.root())
    }

    fn check(&self, host: &Host, more: &[&str]) -> Run {
        let (face, server, idp) = (host.face(), host.space.server.url(), host.idp.base_url());
        let target =
            ["manager", "remote-check", "--json", "--host", &face, "--server", &server, "--idp", &idp];
        let mut command = self.stage.command(&[&target[..], more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).all(|line| tell.send(line).is_ok()));
        Run { child, said, heard: Vec::new() }
    }
}

impl Run {
    /// Waits until a step has begun; `false` when the run ended before.
    fn until(&mut self, step: &str) -> bool {
        let wanted = format!("{step} ...");
        while let Ok(line) = self.said.recv_timeout(PATIENCE) {
            let found = line == wanted;
            self.heard.push(line);
            if found {
                return true;
            }
        }
        false
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What the run printed, which must have succeeded.
    fn report(mut self) -> Value {
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let status = self.child.wait().unwrap();
        self.heard.extend(self.said.try_iter());
        assert!(status.success(), "{status}: {out}{}", self.heard.join("\n"));
        serde_json::from_str(&out).unwrap()
    }
}

fn step<'r>(report: &'r Value, name: &str) -> &'r Value {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().find(|step| step["step"] == name).unwrap_or_else(|| panic!("no step {name} in {report}"))
}

// === the scan =================================================================================================

/// A secret: its name, and the bytes that give it away.
type Needle = (String, Vec<u8>);

/// Every seed and private key in the host's files, as text and as the bytes that a process would hold; the sentinel's is
/// everybody's.
fn secrets_of(host: &Host) -> Vec<Needle> {
    let mut texts = BTreeSet::new();
    for bytes in files(&host.space.root.cotal_dir()).unwrap().values() {
        texts.extend(seeds_in(bytes));
        if let Ok(document) = serde_json::from_slice::<Value>(bytes) {
            collect(&document, &mut texts);
        }
    }
    texts.extend([
        host.space.material.data_account.signing.expose().to_string(),
        host.space.account.data_account().signing.expose().to_string(),
    ]);
    let sentinel = &host.space.material.callout.sentinel_creds;
    texts.retain(|text| !sentinel.contains(text.as_str()));
    texts.iter().flat_map(|text| needles(text)).collect()
}

fn collect(document: &Value, texts: &mut BTreeSet<String>) {
    const MEMBERS: [&str; 4] = ["seed", "signingSeed", "d", "secretB64"];
    match document {
        Value::Object(members) => {
            for (name, value) in members {
                match value.as_str() {
                    Some(text) if MEMBERS.contains(&name.as_str()) => drop(texts.insert(text.to_owned())),
                    _ => collect(value, texts),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        _ => {}
    }
}

/// A secret's text and, of an nkey seed, its 32 bytes.
fn needles(text: &str) -> Vec<Needle> {
    let name = format!("{}… of {} characters", &text[..4], text.len());
    let mut needles = vec![(name.clone(), text.as_bytes().to_vec())];
    if is_seed(text) {
        needles.push((name, raw(text)));
    }
    needles
}

/// The 32 bytes of a seed, by hand: base32 without padding, two bytes of roles in front, two of checksum behind.
fn raw(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let (mut bits, mut have, mut out) = (0u32, 0, Vec::new());
    for byte in text.bytes() {
        bits = (bits << 5) | u32::try_from(ALPHABET.iter().position(|b| *b == byte).unwrap()).unwrap();
        have += 5;
        if have >= 8 {
            have -= 8;
            out.push(u8::try_from((bits >> have) & 0xff).unwrap());
        }
    }
    out[2..34].to_vec()
}

/// Which needles are in these bytes.
fn found_in<'n>(bytes: &[u8], needles: &'n [Needle]) -> Vec<&'n str> {
    // Most places are passed over by their first two bytes.
    let mut starts = vec![false; 1 << 16];
    for (_, needle) in needles {
        starts[usize::from(u16::from_le_bytes([needle[0], needle[1]]))] = true;
    }
    let mut found = Vec::new();
    for (at, pair) in bytes.windows(2).enumerate() {
        if starts[usize::from(u16::from_le_bytes([pair[0], pair[1]]))] {
            let here = needles.iter().filter(|(_, needle)| bytes[at..].starts_with(needle));
            found.extend(here.map(|(name, _)| name.as_str()));
        }
    }
    found
}

/// Everything that a process can write to: its heap, its stacks, its data.
fn memory_of(pid: u32) -> Vec<Vec<u8>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut regions = Vec::new();
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with("rw")))
    {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (from, to) = (address(from), address(to));
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        // A region may go, or never have been touched, between the list and the look.
        if memory.seek(SeekFrom::Start(from)).is_ok() && memory.read_exact(&mut bytes).is_ok() {
            regions.push(bytes);
        }
    }
    regions
}

// === the tests ================================================================================================

const EVERY_STEP: [&str; 23] = [
    "identity",
    "prepare",
    "register",
    "activate",
    "serve",
    "renew-1",
    "renew-2",
    "admin",
    "goals",
    "enroll",
    "validate",
    "exchange",
    "connect",
    "describe",
    "prepare-retirement",
    "retire",
    "enroll-again",
    "validate-again",
    "exchange-again",
    "connect-again",
    "describe-again",
    "prepare-retirement-again",
    "retire-again",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_participant_lives_its_life_across_two_standing_periods_and_no_signing_seed_is_on_its_machine() {
    let host = Host::start().await;
    let machine = Machine::signed_in(&host).await;
    let mut run = machine.check(&host, &["--periods", "2"]);
    assert!(run.until("renew-2"), "{}", run.heard.join("\n"));

    let space = Space::parse("main").unwrap();
    let secrets = secrets_of(&host);
    assert!(secrets.len() > 10, "operator, system, account, signing, callout, issuer and owner secrets");
    let identity = ManagerIdentity::load(&machine.root(), &space).unwrap().expect("it is kept");
    let own = needles(&identity.seed(StandingRole::Serve).expose());
    let regions = memory_of(run.child.id());
    let in_memory = |needles: &[Needle]| {
        let found: BTreeSet<String> =
            regions.iter().flat_map(|region| found_in(region, needles)).map(str::to_owned).collect();
        found
    };
    assert!(!in_memory(&own).is_empty(), "the scan finds the key that the process does hold");
    assert_eq!(in_memory(&secrets), BTreeSet::new());

    let report = run.report();
    let steps: Vec<&str> =
        report["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(steps, [&EVERY_STEP[..], &["goodbye"]].concat());
    assert_eq!(step(&report, "register")["epoch"], "0", "the first registration");
    assert_eq!(step(&report, "identity")["identity"], "made");
    let until = |name: &str| step(&report, name)["until"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(until("renew-2") > until("renew-1"), "each period renews");
    assert_eq!(step(&report, "admin")["authorized"], "false");
    let lifecycle = |name: &str| step(&report, name)["lifecycle"].as_str().unwrap().to_owned();
    assert_ne!(
        lifecycle("enroll"),
        lifecycle("enroll-again"),
        "the name is free again, at another lifecycle"
    );
    assert_eq!(host.agents(), Vec::<PathBuf>::new(), "no row of the agent is left");

    let mut everything = files(&machine.stage.root()).unwrap();
    everything.extend(files(&machine.stage.home()).unwrap());
    for (path, bytes) in &everything {
        assert_eq!(found_in(bytes, &secrets), Vec::<&str>::new(), "{}", path.display());
        assert!(
            !path.to_string_lossy().contains(AGENT),
            "a retired agent leaves no secret: {}",
            path.display()
        );
    }

    // The same manager again: one epoch on.
    let again = machine.check(&host, &[]).report();
    assert_eq!(again["instanceId"], report["instanceId"]);
    assert_eq!(step(&again, "identity")["identity"], "kept");
    assert_eq!(step(&again, "register")["epoch"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_participant_that_is_killed_in_any_step_is_followed_by_one_that_finishes() {
    let host = Host::start().await;
    let machine = Machine::signed_in(&host).await;
    let mut instance = None;
    for at in [
        "identity",
        "prepare",
        "register",
        "activate",
        "serve",
        "renew",
        "enroll",
        "exchange",
        "connect",
        "describe",
        "prepare-retirement",
        "retire",
        "enroll-again",
        "retire-again",
        "goodbye",
    ] {
        let mut run = machine.check(&host, &[]);
        assert!(run.until(at), "it did not come to {at}: {}", run.heard.join("\n"));
        run.kill();
        if let Some(kept) = ManagerIdentity::load(&machine.root(), &Space::parse("main").unwrap()).unwrap() {
            let first = instance.get_or_insert_with(|| kept.instance().clone());
            assert_eq!(first, kept.instance(), "one identity for good");
        }
    }
    let report = machine.check(&host, &[]).report();
    assert_eq!(report["instanceId"], instance.unwrap().as_str());
    assert_eq!(host.agents(), Vec::<PathBuf>::new(), "no row of the agent is left");
    let mut everything = files(&machine.stage.root()).unwrap().into_keys();
    let left = |path: &PathBuf| {
        path.to_string_lossy().contains(AGENT) || path.extension().is_some_and(|e| e == "tmp")
    };
    assert_eq!(everything.find(left), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn supervise_is_not_implied_and_a_refusal_says_what_to_do() {
    let host = Host::start().await;
    let machine = Machine::signed_in(&host).await;
    host.grant(&["spawn", "admin"]);
    let refused = |mut run: Run| {
        let mut out = String::new();
        run.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert_eq!(run.child.wait().unwrap().code(), Some(1), "{out}");
        serde_json::from_str::<Value>(&out).unwrap()["error"]["message"].as_str().unwrap().to_owned()
    };
    let said = refused(machine.check(&host, &[]));
    assert!(said.starts_with("prepare: the host refuses:") && said.contains("supervise"), "{said}");
    let said = refused(machine.check(&host, &["--agent", ACTOR]));
    assert!(said.contains("--agent"), "{said}");
}

/// Proves a sign-in by the identity provider's own word.
struct Tokens(Arc<DevIdp>);

#[async_trait]
impl IdpTokens for Tokens {
    async fn fresh(&self) -> Result<Zeroizing<String>, String> {
        Ok(Zeroizing::new(self.0.mint_token(PERSON, 600)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_fails_keeps_every_credential_and_is_owed_until_one_succeeds() {
    let Host { idp, space, service, _delivery, .. } = Host::start().await;
    let face = service.public_url().unwrap().to_owned();
    let port = face.rsplit_once(':').unwrap().1.trim_end_matches('/').parse().unwrap();
    let proxy = Proxy::start(port).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let root = Root::at(dir.path());
    let base = proxy.url().replace("nats://", "http://");
    let setup = Setup {
        root: root.clone(),
        space: space.space.clone(),
        actor: Actor::parse(ACTOR).unwrap(),
        servers: space.server.url(),
        host: ManagerHost::new(&base, Arc::new(Tokens(Arc::new(idp)))).unwrap(),
        contract: ManagerContract::ping().unwrap(),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    let active = Participant::open(setup).unwrap().prepare().await.unwrap();
    let active = active.register().await.unwrap().activate().await.unwrap();
    let endpoint = active.serve().await.unwrap();
    let standing = active.standing();
    let held = || StandingRole::ALL.map(|role| standing.creds(role).unwrap().current().jwt);
    let file = debt_file(&root, &space.space);

    let good = held();
    proxy.set(Net::Cut);
    standing.renew_early().await.unwrap_err();
    let debt = standing.debt().expect("it is owed");
    assert_eq!((debt.process_epoch, debt.unadopted_subjects.len()), (active.current().epoch, 5), "{debt:?}");
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["reason"], debt.reason);
    assert_eq!(held(), good, "every last-good credential stays");

    proxy.set(Net::Up);
    // Two credentials of one second may be one text.
    let failed = SystemClock.now_secs();
    while SystemClock.now_secs() <= failed {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nothing is skipped while it is owed, however healthy the five are.
    assert!(matches!(standing.renew().await.unwrap(), Renewal::Adopted(_)));
    assert!(standing.debt().is_none() && !file.exists(), "it is paid");
    assert!(held().iter().zip(&good).all(|(new, old)| new != old), "all five, or none");
    // Nobody is asked while all five are healthy.
    proxy.set(Net::Cut);
    assert_eq!(standing.renew().await.unwrap(), Renewal::Skipped);
    proxy.set(Net::Up);
    assert!(active.goodbye(Some(endpoint)).await.unwrap());
    service.close().await.unwrap();
}
