//! `cotal dev-idp`: the development identity provider in the foreground (contract 04 §17, decision D21).

use crate::{context::Context, outcome::CliError};

/// The port when neither the flag nor `DEV_IDP_PORT` names one (contract 04 §17).
pub const DEFAULT_PORT: u16 = 4780;

/// `cotal dev-idp`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal dev-idp --port 4780 --auto-approve")]
pub struct DevIdpArgs {
    /// Port on 127.0.0.1; 0 takes a free one.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Approve every device code by itself.
    #[arg(long)]
    pub auto_approve: bool,
}

/// Runs until it is told to stop.
#[allow(clippy::unused_async, reason = "the signature that the dispatcher calls")]
pub async fn run(_args: DevIdpArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("`cotal dev-idp` is not available in this build"))
}
