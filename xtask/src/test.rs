//! `cargo xtask test`: everything that must hold, in one command.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{nats_server, repository, scan, step, witnesses};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask test                 everything that must hold, on the default nats-server
  cargo xtask test --only-tests    without format, lints and docs
  cargo xtask test --long          what CI runs
  COTAL_NATS_SERVER=/usr/local/bin/nats-server cargo xtask test")]
pub(crate) struct Arguments {
    /// Run every broker test on every pinned nats-server, and not only those end to end.
    #[arg(long)]
    matrix: bool,
    /// Run the long variants: two owners killed for a minute, every death before a `down` and `up` by itself. Adds
    /// minutes.
    #[arg(long)]
    long: bool,
    /// Leave out format, lints and docs.
    #[arg(long)]
    only_tests: bool,
}

/// What the matrix repeats on every version: the packages whose tests stand on a broker.
const BROKER_PACKAGES: [&str; 6] =
    ["cotal-broker", "cotal-authority", "cotal-delivery", "cotal-callout", "cotal-auth", "cotal"];
/// What every run repeats on every version: whole jobs, of which another broker might make something else. Signing in,
/// connecting, taking back, managers over both faces and in process, registration, replicas, and what is minted here.
const END_TO_END: [(&str, &str); 19] = [
    ("cotal-auth", "embedding"),
    ("cotal-auth", "end_to_end"),
    ("cotal-auth", "manager"),
    ("cotal-auth", "manager_questions"),
    ("cotal-auth", "replica"),
    ("cotal-authority", "broker"),
    ("cotal-broker", "connection"),
    ("cotal-broker", "kv"),
    ("cotal-broker", "minted"),
    ("cotal-broker", "provision"),
    ("cotal-broker", "pull"),
    ("cotal-callout", "connects"),
    ("cotal-callout", "views"),
    ("cotal", "hosting"),
    ("cotal", "identity"),
    ("cotal", "remote_manager"),
    ("cotal", "replica"),
    ("cotal", "taking_back"),
    ("cotal", "tours"),
];
/// Of the delivery daemon, those whose plane stands on a cluster. The one that loses a server twice waits a minute and a half
/// for elections there, and is for the matrix.
const CLUSTERED: &str = "binary_id(=cotal-delivery::daemon) & test(/^cluster_plane::/) - test(/silent/)";
/// What dies at every write dies alike on each of them.
const KILLED: &str = "test(/^killed::/)";
/// Asks the tests for their long variants when it is `1`; `cotal_testkit::long_tests` reads it.
const LONG_TESTS: &str = "COTAL_LONG_TESTS";

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    // A broker of one's own stands for every pinned one.
    let brokers: Vec<(String, PathBuf)> = if let Some(own) = std::env::var_os(nats_server::OWN_BINARY) {
        vec![(own.display().to_string(), own.into())]
    } else {
        let versions = nats_server::versions(true);
        versions.iter().try_for_each(|version| nats_server::ensure(version.as_str()))?;
        versions.into_iter().map(|version| (version.clone(), nats_server::binary(&version))).collect()
    };
    let witnesses = witnesses::ensure()?;
    if !arguments.only_tests {
        lint()?;
    }
    let log = repository::root().join("target").join("xtask-test.log");
    let _ = std::fs::remove_file(&log);
    for (n, (version, broker)) in brokers.iter().enumerate() {
        let choice = match n {
            0 => Choice::All,
            _ if arguments.matrix => Choice::Broker,
            _ => Choice::EndToEnd,
        };
        tests(version, broker, choice, arguments.long, &witnesses, &log)?;
    }
    step::run("doc tests", step::cargo().args(["test", "--workspace", "--doc", "--locked"]))?;
    scan::for_secrets(&log)
}

/// Which tests run on a version.
#[derive(Debug, Clone, Copy)]
enum Choice {
    All,
    Broker,
    EndToEnd,
}

impl Choice {
    /// The arguments of `cargo nextest run`: always the whole workspace's build, so that nothing is built twice.
    fn for_nextest(self) -> Vec<String> {
        let filter = match self {
            Self::All => return vec![],
            Self::Broker => BROKER_PACKAGES.map(|name| format!("package(={name})")).join(" + "),
            Self::EndToEnd => {
                let binaries = END_TO_END.map(|(package, binary)| format!("binary_id(={package}::{binary})"));
                format!("({}) - {KILLED} + ({CLUSTERED})", binaries.join(" + "))
            }
        };
        vec!["-E".to_owned(), filter]
    }

    /// The arguments of `cargo test`.
    fn for_cargo_test(self) -> Vec<String> {
        match self {
            Self::All => vec!["--workspace".into(), "--all-targets".into()],
            Self::Broker => BROKER_PACKAGES.iter().flat_map(|name| ["-p".into(), (*name).into()]).collect(),
            Self::EndToEnd => {
                let binaries = END_TO_END.map(|(_, binary)| ["--test".into(), binary.into()]);
                ["--workspace".into()].into_iter().chain(binaries.into_iter().flatten()).collect()
            }
        }
    }
}

fn lint() -> Result<()> {
    if step::is_available("cargo", &["fmt", "--version"]) {
        step::run("format", step::cargo().args(["fmt", "--all", "--check"]))?;
    } else {
        eprintln!("==> format: not checked, rustfmt is not installed");
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
    crate::fuzz::check()
}

/// Unit and integration tests on one broker version; what they print is kept for the scan.
fn tests(
    version: &str,
    broker: &Path,
    choice: Choice,
    long: bool,
    witnesses: &witnesses::Witnesses,
    log: &Path,
) -> Result<()> {
    let mut command = step::cargo();
    if step::is_available("cargo", &["nextest", "--version"]) {
        command
            .args(["nextest", "run", "--no-fail-fast", "--locked", "--workspace"])
            .args(choice.for_nextest());
    } else {
        command.args(["test", "--no-fail-fast", "--locked"]).args(choice.for_cargo_test());
    }
    witnesses.describe_to(&mut command);
    command.env(nats_server::OWN_BINARY, broker);
    if long {
        command.env(LONG_TESTS, "1");
    }
    scan::tee(&format!("tests on nats-server {version}"), &mut command, log)
}
