//! A space whose processes a test kills: its broker, its delivery daemon, and a view of its rows.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use cotal_broker::{
    Connection, Connector, Custody, Lifetime,
    kv::{Bucket, LeaderRead},
};
use cotal_testkit::{raw::RawClient, space::TestSpace};
use cotal_trust::{
    bundle::SpaceAccount,
    idp::http_client,
    mint::{CredentialKind, Lifetime as CredsLifetime, StaticHolder, mint_static_user, mint_system_user},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Clock, ConnId, LifecycleUid, Names, Permissions, Rules, Space, grants::delivery};
use cotal_workspace::{
    daemon_creds::{self, DaemonCred},
    file,
    material::Discovery,
    secret_store::SecretStore as _,
};
use serde_json::Value;

use crate::journal::Journal;

/// Longer than any step takes on a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A space with its broker and its delivery daemon.
pub(crate) struct House {
    pub(crate) space: TestSpace,
    pub(crate) journal: Journal,
    pub(crate) auth: Bucket,
    pub(crate) records: Bucket,
    connection: Connection,
    delivery: Child,
}

/// A process that a failpoint may kill. One that is dropped is killed.
pub(crate) struct Victim {
    child: Child,
    what: &'static str,
    log: PathBuf,
    /// How many writes the journal held when it started: its own come after.
    before: usize,
}

impl House {
    /// A provisioned space; nothing but the delivery daemon has run in it.
    pub(crate) async fn start(name: &str) -> Result<Self> {
        let space = TestSpace::start(name, "http://127.0.0.1:9/api/auth").await;
        credentials(&space).await?;
        // Where a command looks for the broker.
        let config = format!("port: {}\n", space.server.port());
        file::write_atomic(&space.root.cotal_dir().join("nats-server.conf"), config.as_bytes())?;
        let connection = connector(&space.server.url(), &space.space, &space.account)
            .open(format!("cotal:test:{name}"), &everything, Lifetime::Renewing)
            .await?;
        let names = Names::new(&space.space.token());
        let journal = Journal::beside(space.root.path());
        let delivery = command(&space, &["delivery", "--space", space.space.as_str()])
            .args(["--server", &space.server.url()])
            .stderr(log_file(&space.root.path().join("delivery.log"))?)
            .spawn()?;
        let mut house = Self {
            auth: Bucket::new(&connection, &names.auth_bucket()),
            records: Bucket::new(&connection, &names.records_bucket()),
            space,
            journal,
            connection,
            delivery,
        };
        let pid_file = house.space.root.daemon_files("delivery", Some(&house.space.space)).pid;
        let started = Instant::now();
        while std::fs::read_to_string(&pid_file).unwrap_or_default().trim() != house.delivery.id().to_string()
        {
            ensure!(house.delivery.try_wait()?.is_none(), "the delivery daemon ended by itself");
            ensure!(started.elapsed() < WITHIN, "the delivery daemon did not become ready");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(house)
    }

    pub(crate) fn names(&self) -> Names {
        Names::new(&self.space.space.token())
    }

    /// A bucket of any name.
    pub(crate) fn bucket(&self, name: &str) -> Bucket {
        Bucket::new(&self.connection, name)
    }

    /// The connection that may do anything.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// A command of the binary, run in the root.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        command(&self.space, arguments)
    }

    /// Starts the auth service and leaves it to its failpoint.
    pub(crate) fn spawn_service(&self) -> Result<Victim> {
        let mut service = self.command(&["auth-service", "--space", self.space.space.as_str()]);
        service.args(["--server", &self.space.server.url()]);
        self.spawn("the auth service", &mut service)
    }

    /// Starts the auth service and waits until it serves.
    pub(crate) async fn start_service(&self) -> Result<Victim> {
        let mut service = self.spawn_service()?;
        self.ready(&mut service).await?;
        Ok(service)
    }

    /// Waits for the readiness file of exactly this process.
    pub(crate) async fn ready(&self, service: &mut Victim) -> Result<()> {
        let started = Instant::now();
        loop {
            if Discovery::load(&self.space.state_dir)?.is_some_and(|at| at.pid == service.child.id()) {
                return Ok(());
            }
            if let Some(status) = service.child.try_wait()? {
                bail!("the auth service ended by itself: {status}\n{}", service.last_words());
            }
            ensure!(
                started.elapsed() < WITHIN,
                "the auth service did not become ready\n{}",
                service.last_words()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Starts a process that obeys the failpoint.
    pub(crate) fn spawn(&self, what: &'static str, command: &mut Command) -> Result<Victim> {
        let log = self.space.root.path().join("victims.log");
        let before = self.journal.len()?;
        let child = command
            .env(cotal_authority::failpoint::KILL_FILE, self.journal.arming_file())
            .stderr(log_file(&log)?)
            .spawn()
            .with_context(|| what.to_owned())?;
        Ok(Victim { child, what, log, before })
    }

    /// A request to the loopback face of the service that runs. An error is a question without an answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        let at = Discovery::load(&self.space.state_dir)?.context("no service is ready")?;
        let answer = http_client(WITHIN)?
            .post(format!("{}{path}", at.url))
            .bearer_auth(at.cap.as_str())
            .json(body)
            .send()
            .await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    }

    /// A request that must succeed.
    pub(crate) async fn ok(&self, path: &str, body: &Value) -> Result<Value> {
        let (status, answer) = self.post(path, body).await?;
        ensure!(status == 200, "{path}: {status} {answer}");
        Ok(answer)
    }

    /// Presents a bearer to the broker, which must admit it.
    pub(crate) async fn connect(&self, bearer: &str) -> Result<RawClient> {
        let sentinel = self.space.material.callout.sentinel_creds.to_string();
        let nonce = LifecycleUid::mint(&SystemEntropy);
        let (client, outcome) =
            RawClient::connect(&self.space.server.url(), Some(&sentinel), Some(bearer), Some(nonce.as_str()))
                .await;
        client.with_context(|| format!("the broker refused a fresh bearer: {outcome:?}"))
    }

    /// The stored JSON; `Null` when there is none.
    pub(crate) async fn json(&self, bucket: &Bucket, key: &str) -> Result<Value> {
        match bucket.leader_read(key).await? {
            LeaderRead::Value(entry) => Ok(serde_json::from_slice(&entry.value)?),
            LeaderRead::Absent | LeaderRead::Marker(_) => Ok(Value::Null),
        }
    }

    /// Writes a row over whatever is there.
    pub(crate) async fn put(&self, bucket: &Bucket, key: &str, row: impl Into<Bytes>) -> Result<()> {
        let subject = Names::kv_subject(bucket.name(), key);
        let answer = self.connection.request(&subject, &[], row.into(), WITHIN).await?;
        let answer: Value = serde_json::from_slice(&answer.payload)?;
        ensure!(answer["seq"].is_u64(), "{key} was not stored: {answer}");
        Ok(())
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = self.delivery.kill();
        let _ = self.delivery.wait();
    }
}

impl Victim {
    /// Has it killed after `nth` more writes than it has made so far.
    pub(crate) fn arm(&self, journal: &Journal, nth: usize) -> Result<()> {
        journal.arm(journal.len()? - self.before + nth)
    }

    /// Waits for its end, which must be by the failpoint's own signal.
    pub(crate) async fn is_killed(&mut self) -> Result<()> {
        use std::os::unix::process::ExitStatusExt as _;
        let status = self.ends().await?;
        ensure!(
            status.signal() == Some(9),
            "{} was not killed, it ended: {status}\n{}",
            self.what,
            self.last_words()
        );
        Ok(())
    }

    /// Waits for its end, which must be in order.
    pub(crate) async fn succeeds(&mut self) -> Result<()> {
        let status = self.ends().await?;
        ensure!(status.success(), "{} failed: {status}\n{}", self.what, self.last_words());
        Ok(())
    }

    async fn ends(&mut self) -> Result<std::process::ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(started.elapsed() < WITHIN, "{} does not end\n{}", self.what, self.last_words());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asks it to stop.
    pub(crate) fn terminate(&self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(pid, rustix::process::Signal::TERM)?)
    }

    /// Kills it, as a test does between two operations.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens connections that the space's own key signs.
pub(crate) fn connector(server: &str, space: &Space, account: &SpaceAccount) -> Connector {
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    Connector::new(server, space.clone(), account.data_account(), Custody::new(), clock, entropy)
}

fn everything(_: &ConnId) -> Permissions {
    let all = || Rules { allow: vec![">".to_owned()], deny: Vec::new() };
    Permissions { publish: all(), subscribe: all() }
}

fn command(space: &TestSpace, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cotal"));
    command
        .args(arguments)
        .current_dir(space.root.path())
        .env("COTAL_HOME", space.root.path().join("home"))
        .env_remove("COTAL_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

fn log_file(path: &Path) -> Result<std::fs::File> {
    Ok(std::fs::OpenOptions::new().create(true).append(true).open(path)?)
}

/// What `cotal up` makes for the delivery daemon.
async fn credentials(space: &TestSpace) -> Result<()> {
    let (token, now) = (space.space.token(), SystemClock.now_secs());
    file::ensure_private_dir(&space.root.space_dir(&space.space))?;
    daemon_creds::write_membership(&space.root, &space.space, space.account.account.public())?;
    let data = |kind, grants: fn(&cotal_wire::SpaceToken, &ConnId) -> Permissions| {
        mint_static_user(
            &space.account.data_account(),
            kind,
            &StaticHolder::default(),
            CredsLifetime::OfKind,
            |who| Ok::<_, String>(grants(&token, &who.conn_id)),
            &SystemEntropy,
            now,
        )
    };
    let delivery_user = data(CredentialKind::Delivery, delivery::delivery)?;
    let membership = data(CredentialKind::MembershipRw, delivery::membership_rw)?;
    space.store.put(&DaemonCred::Delivery.key(&space.space), &delivery_user.creds).await?;
    space.store.put(&DaemonCred::MembershipRw.key(&space.space), &membership.creds).await?;
    let account = space.account.account.public();
    let system =
        |kind, grants: Permissions| mint_system_user(&space.trust, kind, |_| grants, &SystemEntropy, now);
    for (cred, user) in [
        (
            DaemonCred::MembershipObserver,
            system(CredentialKind::MembershipObserver, delivery::membership_observer(account))?,
        ),
        (
            DaemonCred::ConnectionEvictor,
            system(CredentialKind::ConnectionEvictor, delivery::connection_evictor())?,
        ),
    ] {
        file::write_atomic(&cred.path(&space.root, &space.space), user.creds.as_bytes())?;
    }
    Ok(())
}
