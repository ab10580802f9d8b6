//! The daemons of a space as real processes of the `cotal` binary: the auth service, and the delivery daemon that
//! proves connections gone for it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cotal_trust::{
    mint::{CredentialKind, Lifetime, MintedUser, StaticHolder, mint_static_user, mint_system_user},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Clock, ConnId, Permissions, Space, grants::delivery};
use cotal_workspace::{
    daemon_creds::{self, DaemonCred},
    file,
    material::Discovery,
    root::Root,
    secret_store::SecretStore as _,
};
use tempfile::TempDir;

use crate::{process::Process, space::TestSpace};

/// How long a daemon may take to be ready, or to end in order: it may have to wait for another one first, such as a
/// delivery daemon for the lease of one that was killed.
pub const DAEMON_WITHIN: Duration = Duration::from_secs(90);

/// A root from which the daemons of a space are run.
pub struct Seat {
    /// The space.
    pub space: Space,
    /// The root.
    pub root: Root,
    /// The user-auth state dir.
    pub state_dir: PathBuf,
    cotal: PathBuf,
    /// Holds a copy; the space's own root is held by the space.
    _dir: Option<TempDir>,
}

impl TestSpace {
    /// Writes the delivery daemon's credentials to the root, as `cotal up` does.
    pub async fn provision_delivery(&self) -> Result<()> {
        let (token, account) = (self.space.token(), self.account.account.public().clone());
        let of_data = |kind, grant: &dyn Fn(&ConnId) -> Permissions| -> Result<MintedUser> {
            Ok(mint_static_user(
                &self.account.data_account(),
                kind,
                &StaticHolder::default(),
                Lifetime::OfKind,
                |who| Ok::<_, String>(grant(&who.conn_id)),
                &SystemEntropy,
                SystemClock.now_secs(),
            )?)
        };
        let of_system = |kind, grant: &dyn Fn() -> Permissions| -> Result<MintedUser> {
            Ok(mint_system_user(&self.trust, kind, |_| grant(), &SystemEntropy, SystemClock.now_secs())?)
        };
        file::ensure_private_dir(&self.root.space_dir(&self.space))?;
        for cred in DaemonCred::ALL {
            let user = match cred {
                DaemonCred::Delivery => {
                    of_data(CredentialKind::Delivery, &|conn| delivery::delivery(&token, conn))?
                }
                DaemonCred::MembershipRw => {
                    of_data(CredentialKind::MembershipRw, &|conn| delivery::membership_rw(&token, conn))?
                }
                DaemonCred::MembershipObserver => of_system(CredentialKind::MembershipObserver, &|| {
                    delivery::membership_observer(&account)
                })?,
                DaemonCred::ConnectionEvictor => {
                    of_system(CredentialKind::ConnectionEvictor, &delivery::connection_evictor)?
                }
            };
            if cred.of_system_account() {
                file::write_atomic(&cred.path(&self.root, &self.space), user.creds.as_bytes())?;
            } else {
                self.store.put(&cred.key(&self.space), &user.creds).await?;
            }
        }
        Ok(daemon_creds::write_membership(&self.root, &self.space, &account)?)
    }

    /// Provisions and starts the space's delivery daemon; it answers when this returns.
    pub async fn start_delivery(&self, cotal: impl Into<PathBuf>) -> Result<Process> {
        self.provision_delivery().await?;
        Seat::of(self, cotal).ready_delivery(&self.server.url()).await
    }
}

impl Seat {
    /// The space's own root.
    pub fn of(space: &TestSpace, cotal: impl Into<PathBuf>) -> Self {
        Self {
            space: space.space.clone(),
            root: space.root.clone(),
            state_dir: space.state_dir.clone(),
            cotal: cotal.into(),
            _dir: None,
        }
    }

    /// Another machine's root with the same material, as it is now.
    pub fn copy_of(space: &TestSpace, cotal: impl Into<PathBuf>) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cotal-seat-").tempdir()?;
        copy(&space.root.cotal_dir(), &dir.path().join(".cotal"))?;
        let root = Root::at(dir.path());
        let state_dir = root.user_auth_state_dir(&space.space)?;
        Ok(Self { space: space.space.clone(), root, state_dir, cotal: cotal.into(), _dir: Some(dir) })
    }

    /// Where this seat's daemon keeps what it says.
    pub fn log(&self, daemon: &str) -> PathBuf {
        self.root.path().join(format!("{daemon}.log"))
    }

    fn command(&self, daemon: &str, server: &str) -> Command {
        let mut command = Command::new(&self.cotal);
        command.args([daemon, "--space", self.space.as_str(), "--server", server]);
        command.current_dir(self.root.path()).env("COTAL_HOME", self.root.path().join("home"));
        command
    }

    /// Starts an auth service.
    pub fn auth_service(&self, server: &str) -> Result<Process> {
        Process::spawn(&mut self.command("auth-service", server), &self.log("auth-service"))
    }

    /// Starts a callout replica.
    pub fn callout_replica(&self, server: &str) -> Result<Process> {
        Process::spawn(
            self.command("auth-service", server).arg("--callout-only"),
            &self.log("callout-replica"),
        )
    }

    /// Starts an auth service and waits until it is ready.
    pub async fn ready_auth_service(&self, server: &str) -> Result<(Process, Discovery)> {
        self.ready(self.auth_service(server)?).await
    }

    /// Starts an auth service with a public face and waits until it is ready.
    pub async fn ready_public_auth_service(&self, server: &str) -> Result<(Process, Discovery)> {
        let mut command = self.command("auth-service", server);
        command.args(["--exchange-public-port", "0"]);
        self.ready(Process::spawn(&mut command, &self.log("auth-service"))?).await
    }

    async fn ready(&self, mut service: Process) -> Result<(Process, Discovery)> {
        let within = DAEMON_WITHIN;
        service
            .until(within, |pid| Ok(self.discovery(pid)?.is_some()))
            .await
            .context("the auth service did not become ready")?;
        let discovery = self.discovery(service.pid())?.context("the readiness file vanished")?;
        Ok((service, discovery))
    }

    /// The readiness file, when it is of this very process.
    pub fn discovery(&self, pid: u32) -> Result<Option<Discovery>> {
        Ok(Discovery::load(&self.state_dir)?.filter(|discovery| discovery.pid == pid))
    }

    /// Starts the delivery daemon.
    pub fn delivery(&self, server: &str) -> Result<Process> {
        Process::spawn(&mut self.command("delivery", server), &self.log("delivery"))
    }

    /// Starts the delivery daemon and waits until it answers.
    pub async fn ready_delivery(&self, server: &str) -> Result<Process> {
        let mut daemon = self.delivery(server)?;
        let pid_file = self.root.daemon_files("delivery", Some(&self.space)).pid;
        let within = DAEMON_WITHIN;
        daemon
            .until(within, |pid| {
                Ok(file::read_text(&pid_file)?.is_some_and(|text| text.trim() == pid.to_string()))
            })
            .await
            .context("the delivery daemon did not become ready")?;
        Ok(daemon)
    }
}

/// Copies a directory of private files.
fn copy(from: &Path, to: &Path) -> Result<()> {
    ensure!(from.is_dir(), "{} is no directory", from.display());
    file::ensure_private_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let (source, target) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        if source.is_dir() {
            copy(&source, &target)?;
        } else {
            std::fs::copy(&source, &target)?;
        }
    }
    Ok(())
}
