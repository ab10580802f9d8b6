//! A space whose processes a test kills: its broker, its delivery daemon, and a view of its rows.

use std::{os::unix::process::ExitStatusExt as _, process::Command, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use cotal_authority::failpoint::KILL_FILE;
use cotal_broker::{
    Connection, Connector, Custody, Lifetime,
    kv::{Bucket, LeaderRead},
};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_testkit::{daemons::Seat, process::Process, raw::RawClient, space::TestSpace};
use cotal_trust::{
    bundle::SpaceAccount,
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{ConnId, LifecycleUid, Names, Permissions, Rules, Space};
use cotal_workspace::{file, material::Discovery};
use rustix::process::Signal;
use serde_json::Value;

use crate::journal::Journal;

const COTAL: &str = env!("CARGO_BIN_EXE_cotal");
/// Longer than any step takes on a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_secs(90);

/// A space with its broker, its IdP and its delivery daemon.
pub(crate) struct House {
    pub(crate) space: TestSpace,
    pub(crate) journal: Journal,
    pub(crate) auth: Bucket,
    pub(crate) records: Bucket,
    connection: Connection,
    idp: DevIdp,
    _delivery: Process,
}

/// A process that a failpoint may kill. One that is dropped is killed.
pub(crate) struct Victim {
    process: Process,
    what: &'static str,
    /// How many writes the journal held when it started: its own come after.
    before: usize,
}

impl House {
    /// A provisioned space; nothing but the delivery daemon has run in it.
    pub(crate) async fn start(name: &str) -> Result<Self> {
        let options = DevIdpOptions::default();
        let idp = DevIdp::start(options, Arc::new(SystemClock), Arc::new(SystemEntropy)).await?;
        let space = TestSpace::start(name, &idp.base_url()).await;
        let delivery = space.start_delivery(COTAL).await?;
        // Where a command looks for the broker.
        let config = format!("port: {}\n", space.server.port());
        file::write_atomic(&space.root.cotal_dir().join("nats-server.conf"), config.as_bytes())?;
        let connection = connector(&space.server.url(), &space.space, &space.account)
            .open(format!("cotal:test:{name}"), &everything, Lifetime::Renewing)
            .await?;
        let names = Names::new(&space.space.token());
        Ok(Self {
            auth: Bucket::new(&connection, &names.auth_bucket()),
            records: Bucket::new(&connection, &names.records_bucket()),
            journal: Journal::beside(space.root.path()),
            space,
            connection,
            idp,
            _delivery: delivery,
        })
    }

    /// What the space's IdP says of somebody, for ten minutes.
    pub(crate) fn idp_token(&self, sub: &str) -> String {
        self.idp.mint_token(sub, 600)
    }

    pub(crate) fn names(&self) -> Names {
        Names::new(&self.space.space.token())
    }

    /// Opens connections that the space's own key signs.
    pub(crate) fn connector(&self) -> Connector {
        connector(&self.space.server.url(), &self.space.space, &self.space.account)
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
        let root = self.space.root.path();
        let mut command = Command::new(COTAL);
        command
            .args(arguments)
            .current_dir(root)
            .env("COTAL_HOME", root.join("home"))
            .env_remove("COTAL_LOG");
        command
    }

    /// Starts the auth service and leaves it to its failpoint.
    pub(crate) fn spawn_service(&self) -> Result<Victim> {
        let mut service = self.command(&["auth-service", "--space", self.space.space.as_str()]);
        service.args(["--server", &self.space.server.url(), "--exchange-public-port", "0"]);
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
        let seat = Seat::of(&self.space, COTAL);
        service.process.until(WITHIN, |pid| Ok(seat.discovery(pid)?.is_some())).await
    }

    /// Starts a process that obeys the failpoint.
    pub(crate) fn spawn(&self, what: &'static str, command: &mut Command) -> Result<Victim> {
        let before = self.journal.len()?;
        command.env(KILL_FILE, self.journal.arming_file());
        let process = Process::spawn(command, &self.space.root.path().join("victims.log"))?;
        Ok(Victim { process, what, before })
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
        self.connect_as(bearer, LifecycleUid::mint(&SystemEntropy).as_str()).await
    }

    /// As [`Self::connect`], under this name.
    pub(crate) async fn connect_as(&self, bearer: &str, nonce: &str) -> Result<RawClient> {
        let sentinel = self.space.material.callout.sentinel_creds.to_string();
        let (client, outcome) =
            RawClient::connect(&self.space.server.url(), Some(&sentinel), Some(bearer), Some(nonce)).await;
        client.with_context(|| format!("the broker refused a fresh bearer: {outcome:?}"))
    }

    /// The stored JSON; `Null` when there is none.
    pub(crate) async fn json(&self, bucket: &Bucket, key: &str) -> Result<Value> {
        match bucket.leader_read(key).await? {
            LeaderRead::Value(entry) => Ok(serde_json::from_slice(&entry.value)?),
            LeaderRead::Absent | LeaderRead::Marker(_) => Ok(Value::Null),
        }
    }

    /// A question to the JetStream API that must be answered without an error.
    pub(crate) async fn api(&self, verb: &str, body: &Value) -> Result<()> {
        let subject = format!("$JS.API.{verb}");
        let answer = self.connection.request(&subject, &[], body.to_string().into(), WITHIN).await?;
        let answer: Value = serde_json::from_slice(&answer.payload)?;
        ensure!(answer.get("error").is_none(), "{verb}: {answer}");
        Ok(())
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

impl Victim {
    /// Has it killed after `nth` more writes than it has made so far.
    pub(crate) fn arm(&self, journal: &Journal, nth: usize) -> Result<()> {
        journal.arm(journal.len()? - self.before + nth)
    }

    /// Waits for its end, which must be by the failpoint's own signal.
    pub(crate) async fn is_killed(&mut self) -> Result<()> {
        let status = self.process.end(WITHIN).await?;
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        ensure!(killed, "{} was not killed, it ended: {status}\n{}", self.what, self.process.said());
        Ok(())
    }

    /// Waits for its end, which must be in order.
    pub(crate) async fn succeeds(&mut self) -> Result<()> {
        let status = self.process.end(WITHIN).await?;
        ensure!(status.success(), "{} failed: {status}\n{}", self.what, self.process.said());
        Ok(())
    }

    /// Asks it to stop, and waits for its orderly end.
    pub(crate) async fn stops(&mut self) -> Result<()> {
        self.process.terminate(WITHIN).await?;
        self.succeeds().await
    }

    /// Asks it to stop; the failpoint has it killed on the way.
    pub(crate) async fn is_killed_as_it_stops(&mut self) -> Result<()> {
        self.process.terminate(WITHIN).await?;
        self.is_killed().await
    }

    /// Kills it, as a test does between two operations.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill()
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
