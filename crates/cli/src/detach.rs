//! `cotal detach -- <program> …`: becomes another program in a session of its own, so that a daemon outlives the
//! terminal that started it. The process id stays; nothing of this program does.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use crate::outcome::CliError;

/// `cotal detach -- <program> [argument …]`
#[derive(Debug, clap::Args)]
pub struct DetachArgs {
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Returns only when the program cannot be run.
pub fn run(args: &DetachArgs) -> Result<(), CliError> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(CliError::usage("detach needs a program"));
    };
    // Fails only for a process that already leads a group: then it has its own already.
    let _ = rustix::process::setsid();
    let error = Command::new(program).args(arguments).exec();
    Err(CliError::failed(format!("{} cannot be run: {error}", program.to_string_lossy())))
}
