//! A host, another machine, and a run of `remote-check` on it.

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
use cotal_auth::{
    AuthService, AuthServiceInputs, Composition, HostedContext, HostedSpace, PublicFaceRequest, SpaceAt,
    start_auth_service,
};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_ledger::{GrantInput, Ledger};
use cotal_manager::remote::{IdpTokens, ManagerHost, ManagerIdentity, Setup, contract::ManagerContract};
use cotal_testkit::{disk::files, injected::Injected, process::Process, space::TestSpace, stage::Stage};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid, Space};
use cotal_workspace::root::Root;
use rustix::process::Signal;
use serde_json::Value;
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
    pub(crate) async fn start() -> Self {
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
        let host = Self { idp: Arc::new(idp), space, service, owner, _delivery: delivery };
        host.grant(&["supervise", "spawn"]);
        host
    }

    fn ledger(&self) -> Ledger {
        Ledger::at(&self.space.state_dir)
    }

    pub(crate) fn grant(&self, scope: &[&str]) {
        let input = GrantInput::new(self.owner.clone(), Actor::parse(ACTOR).unwrap())
            .scope(scope)
            .allow_subscribe(["general"])
            .allow_publish(["general"]);
        self.ledger().grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
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
