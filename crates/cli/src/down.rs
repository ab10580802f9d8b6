//! `cotal down`: stops what `up` started, in reverse order (contract 08 §4).

use crate::{cli::Output, context::Context, outcome::CliError};

/// `cotal down`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal down --space main")]
pub struct DownArgs {
    /// The space; may be left out on a root that holds one.
    #[arg(long)]
    pub space: Option<String>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// Stops the space.
#[allow(clippy::unused_async, reason = "the signature that the dispatcher calls")]
pub async fn run(_args: DownArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("`cotal down` is not available in this build"))
}
