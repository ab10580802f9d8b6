//! A whole space, as `cotal up` makes it, whose auth service this process starts and stops.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cotal_broker::{Connection, Connector, Custody, Lifetime};
use cotal_testkit::stage::{RunningSpace, Stage};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{ConnId, Permissions, Rules};
use cotal_workspace::{
    material::{Discovery, UserAuthMaterial},
    root::Root,
    secret_store::FsSecretStore,
    trust_files,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

use crate::{door::Door, population::Ground, proc};

/// How long a start or a stop may take.
const WITHIN: Duration = Duration::from_secs(120);
/// Pause between two looks at a process; what a boot takes is measured this finely.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A space that is up, without an auth service of its own.
pub(crate) struct Stack {
    pub(crate) stage: Stage,
    pub(crate) running: RunningSpace,
    pub(crate) ground: Ground,
    pub(crate) connector: Connector,
    root: Root,
}

/// `cotal auth-service`, as an operator runs it.
pub(crate) struct AuthService {
    child: Child,
    pub(crate) door: Door,
    /// From the start of the process until it said that it is ready.
    pub(crate) boot: Duration,
}

impl Stack {
    pub(crate) async fn up(cotal: &Path) -> Result<Self> {
        let stage = Stage::new(cotal)?;
        stage.ok(&["up", "--user-auth", "--dev-idp"])?;
        let running = stage.space().await?;
        let root = Root::at(stage.root());
        let account =
            trust_files::load_account(&root, &running.name)?.context("the space's account is missing")?;
        let store = FsSecretStore::open(&root)?;
        let material = UserAuthMaterial::load(&store, &running.state_dir, &running.name).await?;
        let ground = Ground {
            space: running.name.clone(),
            state_dir: running.state_dir.clone(),
            material: Arc::new(material),
        };
        let connector = Connector::new(
            &running.server,
            running.name.clone(),
            account.data_account(),
            Custody::new(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        let stack = Self { stage, running, ground, connector, root };
        stack.stop_the_one_of_up().await?;
        Ok(stack)
    }

    /// A connection that may do anything in the data account.
    pub(crate) async fn anything(&self) -> Result<Connection> {
        let everything = |_: &ConnId| Permissions {
            publish: Rules { allow: vec![">".into()], deny: vec![] },
            subscribe: Rules { allow: vec![">".into()], deny: vec![] },
        };
        Ok(self.connector.open("cotal:bench".into(), &everything, Lifetime::Renewing).await?)
    }

    /// Where the plane's own identity lies.
    pub(crate) fn identity_root(&self) -> PathBuf {
        self.root.space_dir(&self.running.name)
    }

    /// Starts the auth service and waits until it is ready.
    pub(crate) async fn serve(&self) -> Result<AuthService> {
        self.serve_with(&[]).await
    }

    /// The same with further flags.
    pub(crate) async fn serve_with(&self, flags: &[&str]) -> Result<AuthService> {
        let log = self.stage.root().join("bench-auth-service.log");
        let stderr = std::fs::File::options().create(true).append(true).open(&log)?;
        let mut command = self.stage.command(&[
            "auth-service",
            "--space",
            self.running.name.as_str(),
            "--server",
            &self.running.server,
        ]);
        command.args(flags);
        command.stdout(Stdio::null()).stderr(stderr);
        let started = Instant::now();
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        loop {
            if let Some(discovery) = Discovery::load(&self.running.state_dir)? {
                let boot = started.elapsed();
                return Ok(AuthService { child, door: Door::new(discovery)?, boot });
            }
            ensure!(
                child.try_wait()?.is_none() && started.elapsed() < WITHIN,
                "the auth service did not become ready:\n{}",
                std::fs::read_to_string(&log)?
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// What `up` started gives way to what is measured.
    async fn stop_the_one_of_up(&self) -> Result<()> {
        let files = self.root.daemon_files("auth-service", Some(&self.running.name));
        let pid: i32 =
            std::fs::read_to_string(&files.pid).context("the auth service's pid")?.trim().parse()?;
        terminate(pid)?;
        let started = Instant::now();
        while proc::is_alive(pid) {
            ensure!(started.elapsed() < WITHIN, "the auth service of `cotal up` does not stop");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

impl AuthService {
    /// Stops it in order: the next start then finds a claim that was given back.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let pid = self.child.id().context("the auth service has ended by itself")?;
        terminate(i32::try_from(pid)?)?;
        let status = tokio::time::timeout(WITHIN, self.child.wait()).await??;
        ensure!(status.success(), "the auth service ended with {status}");
        Ok(())
    }
}

fn terminate(pid: i32) -> Result<()> {
    Ok(kill_process(Pid::from_raw(pid).context("no process")?, Signal::TERM)?)
}
