//! A host, those who sign in at it, another machine, and a run of `remote-check` on it.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cotal_auth::{
    AuthService, AuthServiceInputs, Composition, HostedContext, HostedSpace, PublicFaceRequest, SpaceAt,
    start_auth_service,
};
use cotal_broker::{Connection, CredsConnector, Custody};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_ledger::{GrantInput, Ledger};
use cotal_manager::remote::{
    Active, HostRefusal, IdpTokens, ManagerHost, ManagerIdentity, Participant, RemoteError, Setup,
    contract::ManagerContract,
};
use cotal_testkit::{disk::files, injected::Injected, process::Process, space::TestSpace, stage::Stage};
use cotal_trust::{
    creds::{self, Creds},
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Actor, ConnId, DerivedOwner, EpCode, LifecycleUid, Owner, Space, manager_authority::Incarnation,
};
use cotal_workspace::root::Root;
use rustix::process::Signal;
use serde_json::{Value, json};
use zeroize::Zeroizing;

const COTAL: &str = env!("CARGO_BIN_EXE_cotal");
const COORDINATE: &str = "remote-manager-test";
const PERSON: &str = "ada";
pub(crate) const ACTOR: &str = "cli";
pub(crate) const AGENT: &str = "remotecheck";
/// How long a standing credential lives here.
const TTL_SECS: u64 = 5;
/// A busy machine is no failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A space with its broker, its delivery daemon, its identity provider and a service in front of them.
pub(crate) struct Host {
    idp: Arc<DevIdp>,
    pub(crate) space: TestSpace,
    pub(crate) service: AuthService,
    owner: DerivedOwner,
    _delivery: Process,
}

impl Host {
    /// One whose standing credentials live for a moment.
    pub(crate) async fn start() -> Self {
        Self::signing_for(TTL_SECS).await
    }

    /// One whose standing credentials outlive a test.
    pub(crate) async fn signing_for_a_day() -> Self {
        Self::signing_for(86_400).await
    }

    async fn signing_for(ttl_secs: u64) -> Self {
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
            .composition(Composition::new().standing_renewable_ttl_seconds(ttl_secs));
        let service = start_auth_service(inputs).await.unwrap();
        let owner = space.material.owner_secret.derive(&idp.origin(), PERSON).unwrap();
        let host = Self { idp: Arc::new(idp), space, service, owner, _delivery: delivery };
        host.grant(&["supervise", "spawn"]);
        host
    }

    pub(crate) fn ledger(&self) -> Ledger {
        Ledger::at(&self.space.state_dir)
    }

    pub(crate) fn grant(&self, scope: &[&str]) {
        self.grant_to(ACTOR, scope);
    }

    /// Grants an actor of the person's anew: another incarnation.
    pub(crate) fn grant_to(&self, actor: &str, scope: &[&str]) -> Incarnation {
        self.grant_at(actor, scope, &["general"], None)
    }

    /// The same, at an incarnation.
    pub(crate) fn grant_at(
        &self,
        actor: &str,
        scope: &[&str],
        channels: &[&str],
        at: Option<&Incarnation>,
    ) -> Incarnation {
        let mut input = GrantInput::new(self.owner.clone(), Actor::parse(actor).unwrap())
            .scope(scope)
            .allow_subscribe(channels)
            .allow_publish(channels);
        input.lifecycle_uid = at.map(|at| at.lifecycle_uid.clone());
        let row = self.ledger().grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
        Incarnation {
            owner: Owner::from(&self.owner),
            actor: input.actor,
            lifecycle_uid: LifecycleUid::parse(row.lifecycle_uid.as_deref().unwrap()).unwrap(),
        }
    }

    pub(crate) fn revoke(&self, who: &Incarnation) {
        assert!(self.ledger().revoke_interactive(&self.owner, &who.actor).unwrap());
    }

    /// Files of agents' rows: none is left of an agent that was retired.
    pub(crate) fn agents(&self) -> Vec<PathBuf> {
        let found = files(&self.space.state_dir).unwrap().into_keys();
        found.filter(|path| path.to_string_lossy().contains(AGENT)).collect()
    }

    pub(crate) fn face(&self) -> String {
        self.service.public_url().unwrap().to_owned()
    }

    /// A manager of that person on this root, which asks the host at `face`.
    pub(crate) fn setup(&self, root: &Path, face: &str) -> Setup {
        Setup {
            root: Root::at(root),
            space: self.space.space.clone(),
            actor: Actor::parse(ACTOR).unwrap(),
            servers: self.space.server.url(),
            host: ManagerHost::new(face, Arc::new(Tokens(Arc::clone(&self.idp)))).unwrap(),
            contract: ManagerContract::ping().unwrap(),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        }
    }
}

// === who signs in =============================================================================================

impl Host {
    /// What the public face answers an actor of the person's who asks for a bearer, with `more` members.
    pub(crate) async fn exchange(&self, actor: &str, more: &Value) -> (u16, Value) {
        let mut body = json!({ "idpToken": self.idp.mint_token(PERSON, 600), "actor": actor });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let url = format!("{}/exchange", self.face().trim_end_matches('/'));
        let asked = http_client(PATIENCE).unwrap().post(url).header("content-type", "application/json");
        let answer = asked.body(body.to_string()).send().await.unwrap();
        (answer.status().as_u16(), serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap())
    }

    /// Signs an actor in, and connects it; the nonce under which it did.
    pub(crate) async fn signed_in(&self, actor: &str, more: &Value) -> (ConnId, Connection) {
        let (status, answer) = self.exchange(actor, more).await;
        assert_eq!(status, 200, "{answer}");
        let bearer = Zeroizing::new(answer["token"].as_str().unwrap().to_owned());
        let sentinel = creds::parse(&self.space.material.callout.sentinel_creds).unwrap();
        let nonce = ConnId::parse(LifecycleUid::mint(&SystemEntropy).as_str()).unwrap();
        let connector = CredsConnector::new(&self.space.server.url(), Custody::new());
        let connection = connector.open_bearer(&nonce, &sentinel, bearer).await.unwrap();
        (nonce, connection)
    }
}

/// A manager that may serve, in this process.
pub(crate) async fn activated(setup: Setup) -> Active {
    let registered = Participant::open(setup).unwrap().prepare().await.unwrap().register().await.unwrap();
    registered.activate().await.unwrap()
}

/// One connection with something that was granted to a manager.
pub(crate) async fn opened(active: &Active, what: &str, creds: &Creds) -> Connection {
    active.connector().open_once(format!("test:{what}"), creds, None).await.unwrap()
}

/// The refusal of the host, which must have come.
pub(crate) fn refusal<T>(answered: Result<T, RemoteError>) -> HostRefusal {
    match answered {
        Err(RemoteError::Host(refusal)) => refusal,
        Err(other) => panic!("the host did not refuse it: {other}"),
        Ok(_) => panic!("the host granted it"),
    }
}

/// What a stream acknowledged, or JetStream answered.
pub(crate) async fn answered(connection: &Connection, subject: &str, body: impl Into<Bytes>) -> Value {
    let answer = connection.request(subject, &[], body.into(), PATIENCE).await;
    let answer = answer.unwrap_or_else(|error| panic!("{subject}: {error}"));
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert!(answer.get("error").is_none(), "{subject}: {answer}");
    answer
}

/// Whether the broker keeps this connection from publishing there.
pub(crate) async fn is_kept_from(connection: &Connection, subject: &str) -> bool {
    connection.publish(subject, &[], Bytes::new()).await.unwrap();
    connection.flush().await.is_err_and(|refusal| refusal.code == EpCode::PermissionDenied)
}

/// Proves a sign-in by the identity provider's own word.
struct Tokens(Arc<DevIdp>);

#[async_trait]
impl IdpTokens for Tokens {
    async fn fresh(&self) -> Result<Zeroizing<String>, String> {
        Ok(Zeroizing::new(self.0.mint_token(PERSON, 600)))
    }
}

/// Another machine: a root and a home of its own, where a person has signed in and nothing else is.
pub(crate) struct Machine {
    pub(crate) stage: Stage,
}

/// A run of `remote-check` on that machine.
pub(crate) struct Run {
    pub(crate) child: Child,
    said: mpsc::Receiver<String>,
    pub(crate) heard: Vec<String>,
}

impl Machine {
    pub(crate) async fn signed_in(host: &Host) -> Self {
        let stage = Stage::new(COTAL).unwrap();
        let approve = async |code: String| {
            anyhow::ensure!(host.idp.approve(&code, PERSON), "the code was not approved");
            Ok(())
        };
        stage.login(&host.idp.base_url(), approve).await.unwrap();
        Self { stage }
    }

    /// The identity that is kept there, if one is.
    pub(crate) fn identity(&self) -> Option<ManagerIdentity> {
        ManagerIdentity::load(&Root::at(self.stage.root()), &Space::parse("main").unwrap()).unwrap()
    }

    /// Every file below its root and its home.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut everything = files(&self.stage.root()).unwrap();
        everything.extend(files(&self.stage.home()).unwrap());
        everything
    }

    pub(crate) fn check(&self, host: &Host, more: &[&str]) -> Run {
        Run::start(&mut self.command(host, more))
    }

    pub(crate) fn command(&self, host: &Host, more: &[&str]) -> Command {
        let (face, server, idp) = (host.face(), host.space.server.url(), host.idp.base_url());
        let target =
            ["manager", "remote-check", "--json", "--host", &face, "--server", &server, "--idp", &idp];
        self.stage.command(&[&target[..], more].concat())
    }
}

impl Run {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).all(|line| tell.send(line).is_ok()));
        Self { child, said, heard: Vec::new() }
    }

    /// The step that begins next; `None` when the run ended before.
    fn next_step(&mut self) -> Option<String> {
        loop {
            let line = match self.said.recv_timeout(PATIENCE) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!("it stands still: {}", self.heard.join("\n")),
            };
            self.heard.push(line.clone());
            if let Some(step) = line.strip_suffix(" ...") {
                return Some(step.to_owned());
            }
        }
    }

    /// Waits until a step has begun, which must come.
    pub(crate) fn until(&mut self, step: &str) {
        while let Some(begun) = self.next_step() {
            if begun == step {
                return;
            }
        }
        panic!("it did not come to {step}: {}", self.heard.join("\n"));
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it is killed before a step begins that it would come to.
    pub(crate) fn is_killed_before(&mut self, step: &str) -> bool {
        while let Some(begun) = self.next_step() {
            if begun == step {
                return false;
            }
        }
        self.is_killed()
    }

    /// Waits for its end; whether that was by a kill.
    pub(crate) fn is_killed(&mut self) -> bool {
        while self.next_step().is_some() {}
        self.child.wait().unwrap().signal() == Some(Signal::KILL.as_raw())
    }

    /// What the run printed, which must have succeeded.
    pub(crate) fn report(mut self) -> Value {
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let status = self.child.wait().unwrap();
        self.heard.extend(self.said.try_iter());
        assert!(status.success(), "{status}: {out}{}", self.heard.join("\n"));
        serde_json::from_str(&out).unwrap()
    }

    /// The sentence that it failed with, as it must have.
    pub(crate) fn refused(mut self) -> String {
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(1), "{out}");
        serde_json::from_str::<Value>(&out).unwrap()["error"]["message"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn step<'r>(report: &'r Value, name: &str) -> &'r Value {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().find(|step| step["step"] == name).unwrap_or_else(|| panic!("no step {name} in {report}"))
}
