//! `cotal auth`: why an actor gets in or does not, and who connects.

mod explain;
mod follow;
mod watch;

use clap::Subcommand;

use crate::{cli::Output, context::Context, outcome::CliError};

pub use explain::ExplainArgs;
pub use watch::WatchArgs;

/// `cotal auth`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal auth explain --sub <subject> --actor cli      which check refuses, and the command that mends it
  cotal auth watch                                    every connect, as it is answered")]
pub struct AuthArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: AuthVerb,
}

/// The verbs of `cotal auth`.
#[derive(Debug, Subcommand)]
pub enum AuthVerb {
    /// Walk every check of an actor's exchange and connect; mint nothing, write nothing.
    Explain(ExplainArgs),
    /// Show each connect as the auth service answers it: outcome, reason, time of each step.
    Watch(WatchArgs),
}

impl AuthArgs {
    /// The space, if one was named.
    pub fn space(&self) -> Option<&str> {
        match &self.verb {
            AuthVerb::Explain(args) => Some(&args.space),
            AuthVerb::Watch(args) => args.space.as_deref(),
        }
    }

    /// How to print.
    pub fn output(&self) -> Output {
        match &self.verb {
            AuthVerb::Explain(args) => args.output,
            AuthVerb::Watch(args) => args.output,
        }
    }
}

/// Runs one verb.
pub async fn run(args: AuthArgs, ctx: &Context) -> Result<(), CliError> {
    match args.verb {
        AuthVerb::Explain(args) => explain::run(args, ctx).await,
        AuthVerb::Watch(args) => watch::run(args, ctx).await,
    }
}
