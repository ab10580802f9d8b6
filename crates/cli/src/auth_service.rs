//! `cotal auth-service`: the auth service of a space in the foreground (contract 05 §14).

use crate::{context::Context, exchange_flags::ExchangeFlags, outcome::CliError};

/// `cotal auth-service`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal auth-service --space main --server nats://127.0.0.1:4222")]
pub struct AuthServiceArgs {
    /// The space; required unless --spaces is given.
    #[arg(long)]
    pub space: Option<String>,
    /// The broker's URL.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Loopback HTTP port; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// The public face.
    #[command(flatten)]
    pub exchange: ExchangeFlags,
    /// The broker's `authorization { timeout }` in seconds, when it has one.
    #[arg(long, value_name = "SECONDS")]
    pub auth_timeout: Option<u64>,
    /// Answer connects only: one more member of the space's callout queue group, without HTTP.
    #[arg(long)]
    pub callout_only: bool,
    /// Serve every space of this manifest, one lane each.
    #[arg(long, value_name = "MANIFEST")]
    pub spaces: Option<std::path::PathBuf>,
    /// Host service endpoints.
    #[arg(long)]
    pub service_endpoints: bool,
}

/// Runs until it is told to stop.
#[allow(clippy::unused_async, reason = "the signature that the dispatcher calls")]
pub async fn run(_args: AuthServiceArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("`cotal auth-service` is not available in this build"))
}
