//! The two callouts under test, each a real process.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use cotal_testkit::space::TestSpace;
use cotal_workspace::material::Discovery;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{door::Door, proc};

/// How long a process may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The callout that checks nothing.
pub(crate) struct Bare {
    child: Child,
}

impl Bare {
    pub(crate) async fn start(root: &Path, server: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bare-callout", "--server", server, "--root"])
            .arg(root)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        first_line(&mut child).await?;
        Ok(Self { child })
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// `cotal auth-service`, as an operator runs it.
pub(crate) struct Service {
    child: Child,
    pid: u32,
    log: PathBuf,
    door: Door,
}

/// Counts of the callout's own lines.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcomes {
    pub(crate) minted: usize,
    pub(crate) denied: usize,
    pub(crate) timeout: usize,
    pub(crate) shed: usize,
}

impl Service {
    pub(crate) async fn start(cotal: &Path, space: &TestSpace) -> Result<Self> {
        let log = space.root.path().join("bench-auth-service.log");
        let mut child = Command::new(cotal)
            .args(["auth-service", "--space", space.space.as_str(), "--server", &space.server.url()])
            .current_dir(space.root.path())
            .stdout(Stdio::null())
            .stderr(Stdio::from(std::fs::File::create(&log)?))
            .kill_on_drop(true)
            .spawn()
            .context("cotal auth-service")?;
        let pid = child.id().context("no pid")?;
        let waited = std::time::Instant::now();
        let discovery = loop {
            if let Some(found) = Discovery::load(&space.state_dir)? {
                break found;
            }
            if child.try_wait()?.is_some() || waited.elapsed() > READY_WITHIN {
                bail!("the auth service did not become ready:\n{}", std::fs::read_to_string(&log)?);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        Ok(Self { child, pid, log, door: Door::new(discovery)? })
    }

    /// Its loopback face.
    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// Resident memory in KiB.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        proc::rss_kib(self.pid)
    }

    /// What the callout has answered so far, from its own log lines.
    pub(crate) fn outcomes(&self) -> Result<Outcomes> {
        let log = std::fs::read_to_string(&self.log)?;
        let count = |outcome: &str| log.lines().filter(|l| l.contains(outcome)).count();
        Ok(Outcomes {
            minted: count(" outcome=minted "),
            denied: count(" outcome=denied "),
            timeout: count(" outcome=timeout "),
            shed: count(" outcome=shed "),
        })
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// Reads a child's first line, which says that it is ready.
async fn first_line(child: &mut Child) -> Result<String> {
    let stdout = child.stdout.take().context("no stdout")?;
    let mut lines = BufReader::new(stdout).lines();
    let line = tokio::time::timeout(READY_WITHIN, lines.next_line()).await??.context("ended early")?;
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(line)
}
