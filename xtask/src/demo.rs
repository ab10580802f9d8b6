//! `cargo xtask demo`: the main job end to end, against real processes.

use std::process::Command;

use anyhow::Result;

use crate::{bench, nats_server, step};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask demo                 the main job, and nothing of it stays
  cargo xtask demo --managed       an agent's life under a manager without keys
  cargo xtask demo --keep          leaves the space running")]
pub(crate) struct Arguments {
    /// Leave the space running and say how to use and stop it.
    #[arg(long)]
    keep: bool,
    /// Show an agent under a manager that holds no signing key: enrolled, connected, retired.
    #[arg(long)]
    managed: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let broker = nats_server::chosen()?;
    bench::build(&["cotal", "cotal-demo"])?;
    let mut command = Command::new(bench::release("cotal-demo"));
    command.arg("--cotal").arg(bench::release("cotal"));
    if arguments.keep {
        command.arg("--keep");
    }
    if arguments.managed {
        command.arg("--managed");
    }
    command.env(nats_server::OWN_BINARY, broker);
    step::run("demo", &mut command)?;
    Ok(())
}
