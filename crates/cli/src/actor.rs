//! `cotal actor`: the ledger of a space, from the machine that provisioned it (contract 04 §13.1).

use clap::Subcommand;

use crate::{
    cli::Output,
    context::{Context, DEFAULT_SPACE},
    outcome::CliError,
};

/// `cotal actor`
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cotal actor grant cli --sub <subject> --full\n  cotal actor list")]
pub struct ActorArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: ActorVerb,
}

/// The verbs of `cotal actor`.
#[derive(Debug, Subcommand)]
pub enum ActorVerb {
    /// Write the whole row of an actor.
    Grant(GrantArgs),
    /// Take an actor's row away.
    Revoke(RevokeArgs),
    /// List every row.
    List(ListArgs),
}

/// Whose actor: exactly one of the two.
#[derive(Debug, clap::Args)]
pub struct OwnerFlags {
    /// The IdP subject; the owner is derived from it.
    #[arg(long, value_name = "SUBJECT")]
    pub sub: Option<String>,
    /// The owner itself (`u_…`).
    #[arg(long, value_name = "OWNER")]
    pub owner: Option<String>,
}

/// `cotal actor grant`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal actor grant cli --sub <subject> --full
  cotal actor grant reader --sub <subject> --scope '' --allow-subscribe 'general,team.>' --allow-publish ''")]
pub struct GrantArgs {
    /// The actor.
    pub actor: String,
    /// Whose.
    #[command(flatten)]
    pub owner: OwnerFlags,
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// Capabilities, separated by commas; '' for none.
    #[arg(long, value_name = "A,B")]
    pub scope: Option<String>,
    /// Channels that it may read; '' for none.
    #[arg(long, value_name = "A,B")]
    pub allow_subscribe: Option<String>,
    /// Channels that it may post to; '' for none.
    #[arg(long, value_name = "A,B")]
    pub allow_publish: Option<String>,
    /// Everything that is not named: scope spawn,role:default, read and post everything.
    #[arg(long)]
    pub full: bool,
    /// The role.
    #[arg(long)]
    pub role: Option<String>,
    /// A label for people.
    #[arg(long)]
    pub label: Option<String>,
    /// The actor that answers for it.
    #[arg(long, value_name = "OWNER.ACTOR")]
    pub parent: Option<String>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// `cotal actor revoke`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal actor revoke cli --sub <subject>")]
pub struct RevokeArgs {
    /// The actor.
    pub actor: String,
    /// Whose.
    #[command(flatten)]
    pub owner: OwnerFlags,
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// `cotal actor list`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal actor list --space main --json")]
pub struct ListArgs {
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

impl ActorArgs {
    /// How to print.
    pub fn output(&self) -> Output {
        match &self.verb {
            ActorVerb::Grant(args) => args.output,
            ActorVerb::Revoke(args) => args.output,
            ActorVerb::List(args) => args.output,
        }
    }
}

/// Runs one verb.
#[allow(clippy::unused_async, reason = "the signature that the dispatcher calls")]
pub async fn run(_args: ActorArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("`cotal actor` is not available in this build"))
}
