//! `cotal up`: brings up a space, or heals what of it has died (contract 04 §6.5, 08 §4).

use crate::{
    cli::Output,
    context::{Context, DEFAULT_SPACE},
    exchange_flags::ExchangeFlags,
    outcome::CliError,
};

/// `cotal up`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal up --user-auth --dev-idp                                 try it out on this machine
  cotal up --user-auth --idp https://id.example/api/auth         pin your identity provider
  cotal up --user-auth                                           again, to heal what has died
  cotal up --user-auth --exchange-public-port 8443 --exchange-public-url https://auth.example")]
pub struct UpArgs {
    /// People log in at an identity provider; required, because it is the only kind of space that is served here.
    #[arg(long)]
    pub user_auth: bool,
    /// The identity provider's auth base URL; needed once, pinned from then on.
    #[arg(long, value_name = "URL", conflicts_with = "dev_idp")]
    pub idp: Option<String>,
    /// Run a development identity provider on this machine. Not for production.
    #[arg(long)]
    pub dev_idp: bool,
    /// The development identity provider approves every login by itself.
    #[arg(long, requires = "dev_idp")]
    pub auto_approve: bool,
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// The broker's port: 0 takes a free one; by default the last one, else 4222.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// How long the broker waits for the auth service, in seconds; remembered.
    #[arg(long, value_name = "SECONDS")]
    pub auth_timeout: Option<u64>,
    /// The public face.
    #[command(flatten)]
    pub exchange: ExchangeFlags,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// Brings the space up.
#[allow(clippy::unused_async, reason = "the signature that the dispatcher calls")]
pub async fn run(_args: UpArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("`cotal up` is not available in this build"))
}
