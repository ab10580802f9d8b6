//! `cargo xtask test`: everything that must hold, in one command.

use std::path::Path;

use anyhow::Result;

use crate::{nats_server, repository, scan, step, witnesses};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run the broker tests on every pinned nats-server, not only the default.
    #[arg(long)]
    matrix: bool,
    /// Leave out format, lints and docs.
    #[arg(long)]
    only_tests: bool,
}

/// Crates whose tests stand on a broker: what the matrix repeats.
const BROKER_CRATES: [&str; 5] = ["cotal-broker", "cotal-authority", "cotal-callout", "cotal-auth", "cotal"];

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let versions = nats_server::versions(arguments.matrix);
    for version in &versions {
        nats_server::ensure(version)?;
    }
    let witnesses = witnesses::ensure()?;
    if !arguments.only_tests {
        lint()?;
    }
    let log = repository::root().join("target").join("xtask-test.log");
    let _ = std::fs::remove_file(&log);
    tests(&versions[0], &["--workspace"], &witnesses, &log)?;
    for version in &versions[1..] {
        let packages: Vec<&str> = BROKER_CRATES.into_iter().flat_map(|name| ["-p", name]).collect();
        tests(version, &packages, &witnesses, &log)?;
    }
    step::run("doc tests", step::cargo().args(["test", "--workspace", "--doc", "--locked"]))?;
    scan::for_secrets(&log)
}

fn lint() -> Result<()> {
    if step::is_available("cargo", &["fmt", "--version"]) {
        step::run("format", step::cargo().args(["fmt", "--all", "--check"]))?;
    }
    if step::is_available("cargo", &["clippy", "--version"]) {
        step::run(
            "lints",
            step::cargo().args([
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "-D",
                "warnings",
            ]),
        )?;
    }
    step::run(
        "docs",
        step::cargo()
            .args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"])
            .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"),
    )?;
    Ok(())
}

/// Unit and integration tests on one broker version; what they print is kept for the scan.
fn tests(version: &str, packages: &[&str], witnesses: &witnesses::Witnesses, log: &Path) -> Result<()> {
    let mut command = if step::is_available("cargo", &["nextest", "--version"]) {
        let mut command = step::cargo();
        command.args(["nextest", "run", "--no-fail-fast", "--locked"]).args(packages);
        command
    } else {
        let mut command = step::cargo();
        command.args(["test", "--no-fail-fast", "--locked", "--all-targets"]).args(packages);
        command
    };
    witnesses.describe_to(&mut command);
    command.env("COTAL_TEST_NATS_VERSION", version).env("COTAL_NATS_SERVER", nats_server::binary(version));
    scan::tee(&format!("tests on nats-server {version}"), &mut command, log)
}
