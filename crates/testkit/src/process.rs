//! A daemon as a real process: signalled, paused and killed as an operator's machine would do it.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Pause between two looks at a process.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A child process whose standard error is kept; killed on drop.
pub struct Process {
    child: Child,
    log: PathBuf,
    /// Where its own text begins in a log that several starts share.
    begins_at: u64,
}

impl Process {
    /// Starts a command; what it says on standard error is appended to `log`.
    pub fn spawn(command: &mut Command, log: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(log)?;
        let begins_at = file.metadata()?.len();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        let child = child.with_context(|| format!("cannot run {command:?}"))?;
        Ok(Self { child, log: log.to_path_buf(), begins_at })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What this process has said so far.
    pub fn said(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let begins_at = usize::try_from(self.begins_at).unwrap_or(usize::MAX).min(bytes.len());
        String::from_utf8_lossy(&bytes[begins_at..]).into_owned()
    }

    /// Its end, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for it to end by itself.
    pub async fn end(&mut self, within: Duration) -> Result<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            ensure!(began.elapsed() < within, "it still runs after {} s: {}", within.as_secs(), self.said());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until `ready`; a process that ends meanwhile is an error that repeats what it said.
    pub async fn until(
        &mut self,
        within: Duration,
        mut ready: impl FnMut(u32) -> Result<bool>,
    ) -> Result<()> {
        let began = Instant::now();
        while !ready(self.pid())? {
            if let Some(status) = self.ended()? {
                bail!("it ended by itself ({status}): {}", self.said());
            }
            ensure!(
                began.elapsed() < within,
                "it is not ready after {} s: {}",
                within.as_secs(),
                self.said()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// SIGKILL; it is gone when this returns.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and its end.
    pub async fn terminate(&mut self, within: Duration) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        self.end(within).await
    }

    /// SIGHUP.
    pub fn hang_up(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::HUP)?)
    }

    /// SIGSTOP: it keeps its sockets and answers nothing. It has stopped when this returns.
    pub fn pause(&self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP)?;
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)?;
        Ok(())
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
