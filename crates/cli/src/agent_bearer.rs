//! `cotal agent-bearer`: a bearer and a newline on stdout, nothing else (contract 04 §13.2).

use std::path::PathBuf;

use crate::{context::Context, outcome::CliError};

/// `cotal agent-bearer`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  cotal agent-bearer --dir <state dir> --space main --owner <u_…> --actor scout --token-file scout.actor-token")]
pub struct AgentBearerArgs {
    /// The space's state directory, to ask the service on this machine.
    #[arg(long, value_name = "STATE DIR")]
    pub dir: Option<PathBuf>,
    /// The https base of a public exchange.
    #[arg(long, value_name = "URL")]
    pub exchange_url: Option<String>,
    /// The space.
    #[arg(long)]
    pub space: Option<String>,
    /// The agent's owner.
    #[arg(long)]
    pub owner: Option<String>,
    /// The agent's actor.
    #[arg(long)]
    pub actor: Option<String>,
    /// The file with the agent's secret.
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Where to leave `{state, at, reason?}`.
    #[arg(long, value_name = "PATH")]
    pub health_file: Option<PathBuf>,
    /// Ask for a `manager-caller` bearer.
    #[arg(long)]
    pub manager_call: bool,
    /// The Manager instance to call.
    #[arg(long, value_name = "ID")]
    pub manager_instance: Option<String>,
}

/// Prints a bearer.
#[allow(clippy::unused_async, reason = "the signature that the dispatcher calls")]
pub async fn run(_args: AgentBearerArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("`cotal agent-bearer` is not available in this build"))
}
