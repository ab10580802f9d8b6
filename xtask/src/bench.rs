//! `cargo xtask bench connect | retire | host | authority`: builds release and measures; JSON on stdout, progress on stderr.

use std::path::PathBuf;

use anyhow::Result;

use crate::{nats_server, repository, step};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench connect --quick
  cargo xtask bench host
  cargo xtask bench authority --quick --version 2.14.6")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Connects per second and latency: no callout, a callout that checks nothing, and this service.
    #[command(after_help = examples("connect"))]
    Connect {
        /// Fewer connects and no storm: ends within 40 s of a built tree.
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        broker: Broker,
    },
    /// What it takes to retire a lifecycle: round trips, time, a thousand of them beside connects, and the boot.
    #[command(long_about = RETIRE, after_help = examples("retire"))]
    Retire {
        /// A tenth of everything: ends within a minute of a built tree.
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        broker: Broker,
    },
    /// Many spaces in one process: memory, time to be ready, idle time, neighbours, a replica, and the exchange.
    #[command(long_about = HOST, after_help = examples("host"))]
    Host {
        /// Fifty lanes and shorter loads: ends within a minute of a built tree.
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        broker: Broker,
    },
    /// Managers without keys: what their requests take, many renewals at once, a long scan, and a selection among many.
    #[command(long_about = AUTHORITY, after_help = examples("authority"))]
    Authority {
        /// A tenth of everything: ends within a minute of a built tree.
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        broker: Broker,
    },
}

/// The garbage collector of the broker of many spaces, as the book's chapter on hosting sets it: how much the heap grows
/// between two collections, in percent of what is alive.
const BROKER_GOGC: (&str, &str) = ("GOGC", "400");

/// Of one measurement.
fn examples(what: &str) -> String {
    let example =
        |flags: &str, says: &str| format!("  {:<56}{says}", format!("cargo xtask bench {what}{flags}"));
    [
        "Examples:".to_owned(),
        example("", "everything"),
        example(" --quick", "ends within a minute"),
        example(" --quick --version 2.14.6", "on another nats-server"),
    ]
    .join("\n")
}

const AUTHORITY: &str = "\
What managers without any signing key ask of a host, over the real processes of a space: the time of a preparation, an \
activation and an enrollment, the round trips of an enrollment beside the provisioning of its streams (at most 20), 200 \
managers that renew their standing credentials at once (within 10 s on two cores, while the p99 of connects is at most \
twice the idle one), a scan of 10,000 goals (under 3 s), and the list of an owner's managers among 1,000 of others (as \
fast as among 10). `cotal-bench authority --help` explains every figure.";

const HOST: &str = "\
What one process that serves 1,000 spaces takes, and what it gives: resident memory a lane (at most 1.5 MiB), the time \
until all are ready (at most 5 minutes on two cores), idle processor time (under 10 % of a core), connects in one lane \
beside the others (p50 at most 1.3 times that of a lone lane) and beside a storm in another (p99 at most twice the idle \
one), a storm with a callout replica, and the exchange on the loopback face at 32 in flight (agents at least 2,000 a \
second, people at least 1,500, p99 under 40 ms). The broker runs with GOGC=400, as the book's chapter on hosting has it, \
unless GOGC is set. `cotal-bench host --help` explains every figure.";

const RETIRE: &str = "\
What it takes to retire a lifecycle: the durable round trips of an idle one with one credential (at most 25), its time \
beside one KV update, a thousand of them with at least 8 in flight beside a load of connects (connect p99 at most 3 \
times the idle one), and the boot with 10,000 completed retirements on record (at most 5 times the boot with none). \
`cotal-bench retire --help` explains every figure.";

#[derive(Debug, clap::Args)]
struct Broker {
    /// The nats-server version to measure on.
    #[arg(long, value_name = "V")]
    version: Option<String>,
}

impl Broker {
    fn binary(&self) -> Result<PathBuf> {
        match &self.version {
            Some(version) => {
                nats_server::ensure(version)?;
                Ok(nats_server::binary(version))
            }
            None => nats_server::chosen(),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (what, quick, broker) = match &arguments.what {
        What::Connect { quick, broker } => ("connect", quick, broker),
        What::Retire { quick, broker } => ("retire", quick, broker),
        What::Host { quick, broker } => ("host", quick, broker),
        What::Authority { quick, broker } => ("authority", quick, broker),
    };
    let broker = broker.binary()?;
    build(&["cotal", "cotal-bench"])?;
    let mut command = std::process::Command::new(release("cotal-bench"));
    command.arg(what).arg("--cotal").arg(release("cotal"));
    if *quick {
        command.arg("--quick");
    }
    command.env(nats_server::OWN_BINARY, broker);
    if matches!(arguments.what, What::Host { .. }) && std::env::var_os(BROKER_GOGC.0).is_none() {
        command.env(BROKER_GOGC.0, BROKER_GOGC.1);
    }
    step::run("measure", &mut command)?;
    Ok(())
}

/// Builds these packages in release.
pub(crate) fn build(packages: &[&str]) -> Result<()> {
    let mut command = step::cargo();
    command.args(["build", "--release", "--locked"]);
    for package in packages {
        command.args(["-p", package]);
    }
    step::run("release build", &mut command)?;
    Ok(())
}

/// A release binary of this workspace.
pub(crate) fn release(name: &str) -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository::root().join("target"), PathBuf::from);
    target.join("release").join(name)
}
