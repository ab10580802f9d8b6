//! `cargo xtask fuzz`: every fuzz target for a while, from the committed corpus.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{repository, step};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask fuzz                                all of them, 5 minutes each
  cargo xtask fuzz bearer creds_file --seconds 60
  cargo xtask fuzz --seconds 0                    only builds them")]
pub(crate) struct Arguments {
    /// Only these targets.
    targets: Vec<String>,
    /// Seconds for each target; 0 only builds them.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if !step::is_available("cargo", &["fuzz", "--version"]) {
        step::run("cargo-fuzz", step::cargo().args(["install", "--locked", "cargo-fuzz"]))?;
    }
    let mut targets = all()?;
    if let Some(unknown) = arguments.targets.iter().find(|target| !targets.contains(target)) {
        bail!("no fuzz target is called {unknown}; there are {}", targets.join(", "));
    }
    // All of them, whichever are to run: one that does not build says so before the first one has run for minutes.
    step::run("build the fuzz targets", cargo_fuzz().arg("build"))?;
    if arguments.seconds == 0 {
        return Ok(());
    }
    if !arguments.targets.is_empty() {
        targets.retain(|target| arguments.targets.contains(target));
    }
    let fuzz = repository::root().join("fuzz");
    for target in targets {
        // What a run finds goes to a scratch corpus; the committed seeds are only read.
        let scratch = fuzz.join("target").join("corpus").join(&target);
        std::fs::create_dir_all(&scratch)?;
        let mut command = cargo_fuzz();
        command
            .args(["run", &target])
            .arg(&scratch)
            .arg(fuzz.join("corpus").join(&target))
            .arg("--")
            .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"])
            .arg(format!("-max_total_time={}", arguments.seconds));
        step::run(&format!("fuzz {target} for {} s", arguments.seconds), &mut command)?;
    }
    Ok(())
}

/// Compiles the targets without running them, from their own lock file: they are no members of the workspace, and what
/// breaks them should not wait for the next long run.
pub(crate) fn check() -> Result<()> {
    let root = repository::root();
    let mut command = step::cargo();
    command
        .args(["check", "--locked", "--bins", "--manifest-path"])
        .arg(root.join("fuzz").join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", root.join("target").join("fuzz-check"))
        .env("RUSTFLAGS", "--cfg fuzzing -D warnings")
        // Nothing is linked, so the fuzzer's own C++ need not be compiled either.
        .env("CUSTOM_LIBFUZZER_PATH", "not-linked/libfuzzer.a");
    step::run("fuzz targets", &mut command).map(drop)
}

fn cargo_fuzz() -> Command {
    let mut command = step::cargo();
    // The sanitizer flags are unstable; the stable compiler takes them in bootstrap mode.
    command.env("RUSTC_BOOTSTRAP", "1").arg("fuzz");
    command
}

fn all() -> Result<Vec<String>> {
    let mut targets: Vec<String> = std::fs::read_dir(repository::root().join("fuzz").join("fuzz_targets"))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    targets.sort();
    Ok(targets)
}
