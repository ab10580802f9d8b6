//! The processes under test, and what they take of the machine.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::ground::HostGround;
use crate::{proc, progress};

/// How long a host may take to open every lane.
const READY_WITHIN: Duration = Duration::from_secs(900);
/// How long a stop may take.
const STOP_WITHIN: Duration = Duration::from_secs(300);
/// How long a replica may take.
const REPLICA_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Lines of a process's log that are shown when it did not become ready.
const LAST_LINES: usize = 20;

pub(super) struct Process {
    child: Child,
    pid: u32,
    log: PathBuf,
    /// From the start of the process until every lane said that it serves.
    pub(super) boot: Duration,
}

impl Process {
    /// `cotal auth-service --spaces`, with the first lanes of the ground.
    pub(super) async fn host(cotal: &Path, ground: &HostGround, lanes: usize) -> Result<Self> {
        let manifest = ground.manifest(lanes)?;
        let began = Instant::now();
        let mut command = Command::new(cotal);
        command.arg("auth-service");
        command.args(["--server", &ground.server.url(), "--spaces"]).arg(&manifest);
        let mut process = Self::spawn(command, ground, &format!("host-{lanes}"))?;
        let mut waiting: Vec<usize> = (0..lanes).collect();
        while !waiting.is_empty() {
            process.check_runs(began, READY_WITHIN)?;
            tokio::time::sleep(LOOK_EVERY).await;
            // In order, and only as far as the first that is missing: looking costs what is measured.
            while let Some(lane) = waiting.last().copied()
                && ground.discovery(lane)?.is_some()
            {
                waiting.pop();
            }
        }
        process.boot = began.elapsed();
        Ok(process)
    }

    /// `cotal auth-service --callout-only` of the first lane.
    pub(super) async fn replica(cotal: &Path, ground: &HostGround) -> Result<Self> {
        let mut command = Command::new(cotal);
        command.args(["auth-service", "--callout-only", "--server", &ground.server.url(), "--space"]);
        command.arg(ground.lanes[0].space.as_str());
        let mut process = Self::spawn(command, ground, "replica")?;
        let began = Instant::now();
        // A replica writes no file that says it is ready: its own line does.
        while !process.said()?.lines().any(|line| line.contains("callout replica of space")) {
            process.check_runs(began, REPLICA_WITHIN)?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(process)
    }

    fn spawn(mut command: Command, ground: &HostGround, name: &str) -> Result<Self> {
        let log = ground.root.path().join(format!("{name}.log"));
        let file = std::fs::File::create(&log)?;
        let child = command
            .current_dir(ground.root.path())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().context("no pid")?;
        Ok(Self { child, pid, log, boot: Duration::ZERO })
    }

    fn said(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    fn check_runs(&mut self, since: Instant, within: Duration) -> Result<()> {
        let ended = self.child.try_wait()?;
        if ended.is_none() && since.elapsed() < within {
            return Ok(());
        }
        let why = ended.map_or_else(
            || format!("it was not ready within {} s", within.as_secs()),
            |status| format!("it ended with {status} before it was ready"),
        );
        let said = self.said()?;
        let lines: Vec<_> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        bail!("{why}; it said last:\n{last}")
    }

    /// Resident memory in KiB.
    pub(super) fn rss_kib(&self) -> Result<u64> {
        proc::rss_kib(self.pid)
    }

    pub(super) fn threads(&self) -> Result<u64> {
        proc::threads(self.pid)
    }

    pub(super) fn files(&self) -> Result<usize> {
        Ok(proc::open_files(self.pid)?.0)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid)?).context("no process")?;
        kill_process(pid, Signal::TERM)?;
        let began = Instant::now();
        let ended = tokio::time::timeout(STOP_WITHIN, self.child.wait()).await;
        ensure!(ended.is_ok(), "it did not stop within {} s", STOP_WITHIN.as_secs());
        progress(&format!("stopped after {:.1} s", began.elapsed().as_secs_f64()));
        Ok(())
    }
}

/// Processor time that processes take, in percent of one core, from a moment on.
pub(super) struct Meter {
    began: Instant,
    processes: Vec<(u32, Duration)>,
}

impl Meter {
    pub(super) fn of(processes: &[u32]) -> Result<Self> {
        let processes = processes.iter().map(|pid| Ok((*pid, proc::cpu_of(*pid)?))).collect::<Result<_>>()?;
        Ok(Self { began: Instant::now(), processes })
    }

    /// What each took meanwhile, in the order that they were named.
    pub(super) fn percent(&self) -> Result<Vec<f64>> {
        let over = self.began.elapsed().as_secs_f64();
        let spent = |pid, before| Ok(100.0 * proc::cpu_of(pid)?.saturating_sub(before).as_secs_f64() / over);
        self.processes.iter().map(|(pid, before)| spent(*pid, *before)).collect()
    }
}
