//! `cotal-demo`: shows a guided tour. `cargo xtask demo` runs it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use cotal_demo::{Tour, guide};

#[derive(Parser)]
#[command(name = "cotal-demo", about = "The guided tour of a Cotal space")]
struct Args {
    /// The release build of `cotal`.
    #[arg(long)]
    cotal: PathBuf,
    /// Leave the space running.
    #[arg(long)]
    keep: bool,
    /// An agent under a manager that holds no signing key: enrolled, connected, retired.
    #[arg(long)]
    managed: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let through = if args.managed { Tour::Managed } else { Tour::Person };
    guide(through, &args.cotal, args.keep).await
}
