//! One visible step: a command, its name on stderr, and a failure that says which one it was.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

/// Runs a command from the repository's root, saying so before and how long it took after.
pub(crate) fn run(what: &str, command: &mut Command) -> Result<Duration> {
    let started = Instant::now();
    eprintln!("==> {what}");
    let status = command
        .current_dir(crate::repository::root())
        .status()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    ensure!(status.success(), "{what} failed ({status})");
    let took = started.elapsed();
    eprintln!("==> {what}: done in {:.1} s", took.as_secs_f64());
    Ok(took)
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Whether a program answers `--version`.
pub(crate) fn is_available(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
