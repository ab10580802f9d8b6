//! `cotal status`: what runs here, who is logged in and what is granted.

use crate::{
    cli::Output,
    context::{Context, DEFAULT_SPACE},
    outcome::CliError,
};

/// `cotal status`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal status --json")]
pub struct StatusArgs {
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// Shows the space.
#[allow(clippy::unused_async, reason = "the signature that the dispatcher calls")]
pub async fn run(_args: StatusArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("`cotal status` is not available in this build"))
}
