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

/// The cargo that runs this program, without what it told this program about itself: build scripts watch those
/// variables, and would build everything anew whenever xtask and a person take turns.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let told =
            name.to_str().is_some_and(|n| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_"));
        if told || name == "CARGO_BIN_NAME" || name == "CARGO_CRATE_NAME" {
            command.env_remove(name);
        }
    }
    command
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
