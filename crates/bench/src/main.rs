//! Measures connects (a broker without callout, a callout that checks nothing, and the auth service with every check
//! on), retirements, many spaces in one process, and managers without keys, each in one run on one machine. JSON on
//! stdout, progress on stderr; run it by `cargo xtask bench connect`, `retire`, `host` and `authority`.

mod authority;
mod connect;
mod door;
mod figures;
mod host;
mod loadgen;
mod population;
mod proc;
mod report;
mod retire;
mod stack;
mod steady;
mod tap;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use cotal_workspace::root::Root;
use tokio::runtime::Runtime;

#[derive(Parser)]
#[command(
    name = "cotal-bench",
    about = "Measure connects, retirements, a host of many spaces, and managers without keys"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Floor, bare callout and service at 1, 16, 64 and 256 connects in flight.
    Connect {
        /// The release build of `cotal`.
        #[arg(long, value_parser = executable)]
        cotal: PathBuf,
        /// Fewer connects and no storm: ends within 40 s of a built tree.
        #[arg(long)]
        quick: bool,
    },
    /// What it takes to retire a lifecycle: round trips, time, a thousand of them beside connects, and the boot.
    #[command(long_about = retire::LONG_ABOUT)]
    Retire {
        /// The release build of `cotal`.
        #[arg(long, value_parser = executable)]
        cotal: PathBuf,
        /// A tenth of everything: ends within a minute of a built tree.
        #[arg(long)]
        quick: bool,
    },
    /// Many spaces in one process: memory, time to be ready, idle time, neighbours, a replica, and the exchange.
    #[command(long_about = host::LONG_ABOUT)]
    Host {
        /// The release build of `cotal`.
        #[arg(long, value_parser = executable)]
        cotal: PathBuf,
        /// Fifty lanes and shorter loads: ends within a minute of a built tree.
        #[arg(long)]
        quick: bool,
        /// Another number of lanes.
        #[arg(long, value_name = "N")]
        lanes: Option<usize>,
    },
    /// Managers without keys: what their requests take, many renewals at once, a long scan, and a selection among many.
    #[command(long_about = authority::LONG_ABOUT)]
    Authority {
        /// The release build of `cotal`.
        #[arg(long, value_parser = executable)]
        cotal: PathBuf,
        /// A tenth of everything: ends within a minute of a built tree.
        #[arg(long)]
        quick: bool,
    },
    /// A storm of connects (started by `host`).
    #[command(hide = true)]
    Storm,
    /// The callout that checks nothing (started by `connect`).
    #[command(hide = true)]
    BareCallout {
        #[arg(long)]
        root: PathBuf,
        #[arg(long)]
        server: String,
    },
}

/// A file, from whatever directory it is started later.
fn executable(path: &str) -> Result<PathBuf, String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    if path.is_file() { Ok(path) } else { Err("no file is there: cargo build --release -p cotal".into()) }
}

fn main() -> Result<()> {
    let command = Args::parse().command;
    if matches!(command, Command::Storm) {
        // Before there is a second thread: a priority is a thread's own, and those that it starts later inherit it.
        host::give_way()?;
    }
    Runtime::new()?.block_on(run(command))
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Connect { cotal, quick } => {
            let report = connect::measure(&cotal, quick).await?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Command::Retire { cotal, quick } => {
            let report = retire::measure(&cotal, quick).await?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Command::Host { cotal, quick, lanes } => {
            let report = host::measure(&cotal, quick, lanes).await?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Command::Authority { cotal, quick } => {
            let report = authority::measure(&cotal, quick).await?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Command::Storm => host::serve_storm().await,
        Command::BareCallout { root, server } => connect::serve_bare(&Root::at(root), &server).await,
    }
}

fn progress(what: &str) {
    eprintln!("bench: {what}");
}
