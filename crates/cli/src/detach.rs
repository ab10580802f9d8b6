//! `cotal detach -- <program> …`: becomes another program in a session of its own, so that a daemon outlives the
//! terminal that started it. The process id stays, and so does the lock; nothing else of this program does.

use std::{ffi::OsString, fmt, os::unix::process::CommandExt, path::PathBuf, process::Command};

use cotal_workspace::file;

use crate::{broker_lock, outcome::CliError};

/// `cotal detach -- <program> [argument …]`
#[derive(clap::Args)]
pub struct DetachArgs {
    /// Where to leave the process id.
    #[arg(long)]
    pub pid_file: Option<PathBuf>,
    /// The lock that the program inherits; held by another process, it refuses.
    #[arg(long)]
    pub lock: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// The program's arguments are its own to print: a URL among them is checked there.
impl fmt::Debug for DetachArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid_file, lock, command } = self;
        f.debug_struct("DetachArgs")
            .field("pid_file", pid_file)
            .field("lock", lock)
            .field("program", &command.first())
            .finish_non_exhaustive()
    }
}

/// Returns only when the program cannot be run. The lock comes first, so that a process which does not get it leaves
/// the pid file of the one which did; the pid is there before the program is.
pub fn run(args: &DetachArgs) -> Result<(), CliError> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(CliError::usage("detach needs a program"));
    };
    let _inherited = args.lock.as_deref().map(broker_lock::take_for_good).transpose()?;
    if let Some(pid_file) = &args.pid_file {
        file::write_atomic(pid_file, format!("{}\n", std::process::id()).as_bytes())?;
    }
    // Fails only for a process that already leads a group: then it has its own already.
    let _ = rustix::process::setsid();
    let error = Command::new(program).args(arguments).exec();
    Err(CliError::failed(format!("{} cannot be run: {error}", program.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_whose_pid_cannot_be_left_or_whose_lock_is_held_is_not_run() {
        let tmp = tempfile::tempdir().unwrap();
        let (ran, lock, pid_file) = (tmp.path().join("ran"), tmp.path().join("l"), tmp.path().join("d.pid"));
        let command = vec!["/bin/touch".into(), ran.clone().into()];
        let absent = DetachArgs { pid_file: Some(ran.join("d.pid")), lock: None, command: command.clone() };
        assert!(run(&absent).is_err());
        let _held = broker_lock::take_for_good(&lock).unwrap();
        let locked = DetachArgs { pid_file: Some(pid_file.clone()), lock: Some(lock), command };
        assert!(run(&locked).unwrap_err().to_string().contains("still runs"));
        assert!(!ran.exists() && !pid_file.exists());
    }
}
