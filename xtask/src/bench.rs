//! `cargo xtask bench connect`: builds release and measures; JSON on stdout, progress on stderr.

use std::path::PathBuf;

use anyhow::Result;

use crate::{nats_server, repository, step};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Connects per second and latency: no callout, a callout that checks nothing, and this service.
    Connect {
        /// Fewer connects and no storm: ends within 40 s of a built tree.
        #[arg(long)]
        quick: bool,
        /// The nats-server version to measure on.
        #[arg(long, value_name = "V")]
        version: Option<String>,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let What::Connect { quick, version } = &arguments.what;
    let broker = match version {
        Some(version) => {
            nats_server::ensure(version)?;
            nats_server::binary(version)
        }
        None => nats_server::chosen()?,
    };
    build(&["cotal", "cotal-bench"])?;
    let mut command = std::process::Command::new(release("cotal-bench"));
    command.arg("connect").arg("--cotal").arg(release("cotal"));
    if *quick {
        command.arg("--quick");
    }
    command.env(nats_server::OWN_BINARY, broker);
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
