//! `cotal manager`: what a machine without a signing key may do as a manager.

mod remote_check;
mod target;

use clap::Subcommand;

use crate::{cli::Output, context::Context, outcome::CliError};

pub use remote_check::RemoteCheckArgs;

/// `cotal manager`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal manager remote-check --host https://auth.example      everything that a remote manager does, once
  cotal manager remote-check --json                           the same against the space of this machine's registry")]
pub struct ManagerArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: ManagerVerb,
}

/// The verbs of `cotal manager`.
#[derive(Debug, Subcommand)]
pub enum ManagerVerb {
    /// Be a remote manager once, from its first credential to its goodbye, and say how each step went.
    RemoteCheck(RemoteCheckArgs),
}

impl ManagerArgs {
    /// The space.
    pub fn space(&self) -> &str {
        match &self.verb {
            ManagerVerb::RemoteCheck(args) => &args.space,
        }
    }

    /// How to print.
    pub fn output(&self) -> Output {
        match &self.verb {
            ManagerVerb::RemoteCheck(args) => args.output,
        }
    }
}

/// Runs one verb.
pub async fn run(args: ManagerArgs, ctx: &Context) -> Result<(), CliError> {
    match args.verb {
        ManagerVerb::RemoteCheck(args) => remote_check::run(args, ctx).await,
    }
}
