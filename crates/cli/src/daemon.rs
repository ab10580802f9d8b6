//! Detached daemons: a pid file, a log, a process that outlives its terminal (contract 08 §4).
//!
//! A pid in a file proves nothing by itself: the number may be another program's by now. Where the system shows a
//! process's command line, a daemon is taken for alive only when that line is its own.

use std::{
    ffi::OsString,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cotal_workspace::{file, root::DaemonFiles};
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process, test_kill_process},
};

use crate::{context::Context, outcome::CliError};

/// How long a daemon may take to end after SIGTERM.
const TERM_WITHIN: Duration = Duration::from_secs(20);
/// How long it may take to vanish after SIGKILL.
const KILL_WITHIN: Duration = Duration::from_secs(5);
/// How long a stop lasts at most.
pub const STOPS_WITHIN: Duration = TERM_WITHIN.saturating_add(KILL_WITHIN);
/// A log that has grown beyond this is put aside when its daemon starts again.
const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;
/// How much of a log's end is read for the last words.
const TAIL_BYTES: u64 = 4096;
/// How often a process is looked at.
const POLL: Duration = Duration::from_millis(50);

/// One daemon of a root, running or not.
#[derive(Clone)]
pub struct Daemon {
    /// What people call it.
    pub name: String,
    /// Its pid file and log.
    pub files: DaemonFiles,
    /// Its program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Arguments by which its command line is recognised, whatever else it was started with.
    pub marks: Vec<String>,
    /// Its working directory.
    pub directory: PathBuf,
    /// A lock that it holds for as long as it lives.
    pub lock: Option<PathBuf>,
}

/// A daemon that this process started or found alive.
pub struct Running {
    /// Its process.
    pub pid: u32,
    /// Held by whoever started it, so that its end is seen at once.
    child: Option<Child>,
    daemon: Daemon,
}

/// How a daemon was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// It did not run.
    NotRunning,
    /// It ended when asked.
    Ended,
    /// It was killed, because it did not end when asked.
    Killed,
}

impl Daemon {
    /// The daemon's process, if it is alive. What cannot be known is an error, never "not running".
    pub fn running(&self) -> Result<Option<Running>, CliError> {
        let Some(pid) = self.read_pid()? else { return Ok(None) };
        let alive = self.is_alive(pid)?;
        Ok(alive.then(|| Running { pid, child: None, daemon: self.clone() }))
    }

    /// Starts the daemon in a session of its own. It leaves its pid itself, before it becomes its program: whenever this
    /// process ends, a later command knows of it. Its output goes to its log.
    pub fn start(&self, ctx: &Context) -> Result<Running, CliError> {
        let cannot = |e: std::io::Error| CliError::failed(format!("{} cannot be started: {e}", self.name));
        let log = self.open_log().map_err(cannot)?;
        let mut command = Command::new(&ctx.executable);
        command.args(["detach", "--pid-file"]).arg(&self.files.pid);
        if let Some(lock) = &self.lock {
            command.arg("--lock").arg(lock);
        }
        let child = command
            .arg("--")
            .arg(&self.program)
            .args(&self.arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(cannot)?)
            .stderr(log)
            .spawn()
            .map_err(cannot)?;
        Ok(Running { pid: child.id(), child: Some(child), daemon: self.clone() })
    }

    /// Stops the daemon if it runs, and removes its pid file.
    pub async fn stop(&self) -> Result<Stopped, CliError> {
        if let Some(running) = self.running()? {
            return running.stop().await;
        }
        file::remove_if_present(&self.files.pid)?;
        Ok(Stopped::NotRunning)
    }

    fn read_pid(&self) -> Result<Option<u32>, CliError> {
        let Some(text) = file::read_text(&self.files.pid)? else { return Ok(None) };
        let pid = text.trim().parse::<u32>().ok().filter(|pid| i32::try_from(*pid).is_ok_and(|pid| pid > 1));
        pid.map(Some).ok_or_else(|| {
            CliError::failed(format!(
                "{} does not hold a process id: stop {} by hand if it runs, then remove that file",
                self.files.pid.display(),
                self.name
            ))
        })
    }

    fn is_alive(&self, pid: u32) -> Result<bool, CliError> {
        match exists(pid) {
            Existence::Gone => Ok(false),
            Existence::Exists => Ok(is_this(pid, &self.marks, &self.directory)),
            Existence::Unknown(e) => Err(CliError::failed(format!(
                "whether {} (process {pid}) is alive cannot be known ({e}): look with `ps -p {pid}`",
                self.name
            ))),
        }
    }

    /// The log, to be appended to. One that has grown long becomes `<log>.1`, in place of the one before.
    fn open_log(&self) -> std::io::Result<File> {
        let log = &self.files.log;
        if std::fs::symlink_metadata(log).is_ok_and(|meta| meta.is_file() && meta.len() > MAX_LOG_BYTES) {
            let mut aside = log.clone().into_os_string();
            aside.push(".1");
            std::fs::rename(log, aside)?;
        }
        file::open_append(log)
    }

    /// The last line of the log, for the sentence that says why it died.
    fn last_words(&self) -> Option<String> {
        let tail = file::read_tail(&self.files.log, TAIL_BYTES).ok()??;
        let line = String::from_utf8_lossy(&tail)
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())?
            .trim()
            .to_owned();
        Some(line.chars().filter(|c| !c.is_control()).take(300).collect())
    }
}

impl Running {
    /// The daemon that this is.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Whether it is alive now.
    pub fn is_alive(&mut self) -> Result<bool, CliError> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?.is_none()),
            None => self.daemon.is_alive(self.pid),
        }
    }

    /// The error of a daemon that died on its own.
    pub fn died(&self) -> CliError {
        let words = self.daemon.last_words().map(|words| format!(" ({words})")).unwrap_or_default();
        CliError::failed(format!(
            "{} ended{words}: see {}",
            self.daemon.name,
            self.daemon.files.log.display()
        ))
    }

    /// Asks it to end, kills it when it does not, and removes its pid file.
    pub async fn stop(mut self) -> Result<Stopped, CliError> {
        let mut how = Stopped::Ended;
        if !self.signal_and_wait(Signal::TERM, TERM_WITHIN).await? {
            how = Stopped::Killed;
            if !self.signal_and_wait(Signal::KILL, KILL_WITHIN).await? {
                return Err(CliError::failed(format!(
                    "{} (process {}) does not end, not even when killed",
                    self.daemon.name, self.pid
                )));
            }
        }
        // Another process may have come in its place meanwhile; that one's pid stays.
        if self.daemon.read_pid()? == Some(self.pid) {
            file::remove_if_present(&self.daemon.files.pid)?;
        }
        Ok(how)
    }

    /// Whether it ended within the time.
    async fn signal_and_wait(&mut self, signal: Signal, within: Duration) -> Result<bool, CliError> {
        if !self.is_alive()? {
            return Ok(true);
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        match pid.map_or(Err(Errno::SRCH), |pid| kill_process(pid, signal)) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(e) => {
                return Err(CliError::failed(format!(
                    "{} (process {}) cannot be stopped: {}",
                    self.daemon.name,
                    self.pid,
                    std::io::Error::from(e)
                )));
            }
        }
        let deadline = Instant::now() + within;
        while self.is_alive()? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(true)
    }
}

enum Existence {
    Gone,
    Exists,
    Unknown(Errno),
}

/// EPERM is a process of somebody else: it exists (contract 04 §6.5).
fn exists(pid: u32) -> Existence {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Existence::Gone };
    match test_kill_process(pid) {
        Ok(()) | Err(Errno::PERM) => Existence::Exists,
        Err(Errno::SRCH) => Existence::Gone,
        Err(e) => Existence::Unknown(e),
    }
}

/// Whether a process that exists is provably alive: `None` when it cannot be known (contract 04 §6.5).
pub fn pid_is_alive(pid: u32) -> Option<bool> {
    match exists(pid) {
        Existence::Gone => Some(false),
        Existence::Exists => Some(!is_zombie(pid)),
        Existence::Unknown(_) => None,
    }
}

/// Whether an existing process is the daemon with these marks. Without `/proc` the pid file is believed.
fn is_this(pid: u32, marks: &[String], directory: &Path) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let Ok(line) = std::fs::read(proc.join("cmdline")) else { return true };
    // A process that has ended and waits for its parent shows no command line.
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let marked = marks.iter().all(|mark| words.contains(&mark.as_bytes()));
    let here = match (std::fs::read_link(proc.join("cwd")), std::fs::canonicalize(directory)) {
        (Ok(cwd), Ok(directory)) => cwd == directory,
        _ => true,
    };
    marked && here && !is_zombie(pid)
}

/// Whether the process has ended and only its parent has not noticed. Unknown counts as not.
fn is_zombie(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the command's name, which is in parentheses and may hold anything.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(dir: &Path, script: &str) -> Daemon {
        Daemon {
            name: "the test daemon".into(),
            files: DaemonFiles { pid: dir.join("d.pid"), log: dir.join("d.log") },
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into(), "mark-of-the-test".into()],
            marks: vec!["mark-of-the-test".into()],
            directory: dir.to_owned(),
            lock: None,
        }
    }

    /// Starts without the `detach` step, which is another binary's.
    fn start(daemon: &Daemon) -> Running {
        let log = daemon.open_log().unwrap();
        let child = Command::new(&daemon.program)
            .args(&daemon.arguments)
            .current_dir(&daemon.directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let running = Running { pid: child.id(), child: Some(child), daemon: daemon.clone() };
        std::fs::write(&daemon.files.pid, running.pid.to_string()).unwrap();
        running
    }

    #[tokio::test]
    async fn a_daemon_is_found_by_its_pid_file_and_ends_when_asked() {
        let tmp = tempfile::tempdir().unwrap();
        let daemon = daemon(tmp.path(), "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done");
        assert!(daemon.running().unwrap().is_none());
        let started = start(&daemon);
        while std::fs::read_to_string(&daemon.files.log).unwrap().is_empty() {
            tokio::time::sleep(POLL).await;
        }
        let found = daemon.running().unwrap().unwrap();
        assert_eq!(found.pid, started.pid);
        assert_eq!(found.stop().await.unwrap(), Stopped::Ended);
        assert!(!daemon.files.pid.exists() && daemon.running().unwrap().is_none());
        assert_eq!(daemon.stop().await.unwrap(), Stopped::NotRunning);
        drop(started);
    }

    #[test]
    fn a_pid_that_is_another_programs_by_now_is_not_the_daemon() {
        let tmp = tempfile::tempdir().unwrap();
        let daemon = daemon(tmp.path(), "");
        std::fs::write(&daemon.files.pid, std::process::id().to_string()).unwrap();
        assert!(daemon.running().unwrap().is_none());
        assert_eq!(pid_is_alive(std::process::id()), Some(true));
    }

    #[test]
    fn a_process_that_ended_is_not_alive_even_before_its_parent_noticed() {
        let tmp = tempfile::tempdir().unwrap();
        let daemon = daemon(tmp.path(), "echo last words; exit 3");
        let mut child = Command::new("/bin/sh").args(["-c", "exit 0"]).spawn().unwrap();
        while pid_is_alive(child.id()) == Some(true) {
            std::thread::yield_now();
        }
        assert_eq!(pid_is_alive(child.id()), Some(false));
        child.wait().unwrap();
        let mut running = start(&daemon);
        while running.is_alive().unwrap() {
            std::thread::yield_now();
        }
        assert!(running.died().to_string().contains("last words"));
    }

    #[tokio::test]
    async fn a_stopped_daemon_leaves_the_pid_of_another_one_in_its_place() {
        let tmp = tempfile::tempdir().unwrap();
        let daemon = daemon(tmp.path(), "while :; do sleep 0.05; done");
        let running = start(&daemon);
        std::fs::write(&daemon.files.pid, "4194304\n").unwrap();
        running.stop().await.unwrap();
        assert_eq!(std::fs::read_to_string(&daemon.files.pid).unwrap(), "4194304\n");
    }

    #[test]
    fn a_long_log_is_put_aside_at_a_start_and_only_its_end_is_read() {
        let tmp = tempfile::tempdir().unwrap();
        let daemon = daemon(tmp.path(), "");
        let aside = tmp.path().join("d.log.1");
        let log = daemon.open_log().unwrap();
        log.set_len(MAX_LOG_BYTES).unwrap();
        daemon.open_log().unwrap();
        assert!(!aside.exists());
        std::io::Write::write_all(&mut daemon.open_log().unwrap(), b"\nlast words\n").unwrap();
        assert_eq!(daemon.last_words().as_deref(), Some("last words"));
        daemon.open_log().unwrap();
        assert_eq!(std::fs::metadata(&aside).unwrap().len(), MAX_LOG_BYTES + 12);
        assert_eq!(std::fs::metadata(&daemon.files.log).unwrap().len(), 0);
        assert_eq!(daemon.last_words(), None);
    }

    #[test]
    fn a_garbled_pid_file_is_an_error_never_not_running() {
        let tmp = tempfile::tempdir().unwrap();
        let daemon = daemon(tmp.path(), "");
        for text in ["", "x", "0", "1", "-5", "99999999999"] {
            std::fs::write(&daemon.files.pid, text).unwrap();
            assert!(daemon.running().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_log_is_private_and_never_written_through_a_symlink() {
        use std::os::unix::fs::PermissionsExt;
        let tmp = tempfile::tempdir().unwrap();
        let daemon = daemon(tmp.path(), "");
        daemon.open_log().unwrap();
        assert_eq!(std::fs::metadata(&daemon.files.log).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&daemon.files.log).unwrap();
        std::os::unix::fs::symlink(tmp.path().join("elsewhere"), &daemon.files.log).unwrap();
        assert!(daemon.open_log().is_err());
    }
}
