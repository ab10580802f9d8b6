//! `cotal login` and `cotal logout`: the session of this machine at an IdP (contract 04 §11.1, §13).

use cotal_wire::UnixSecs;
use cotal_workspace::root::Home;

use crate::{cli::Output, context::Context, outcome::CliError};

/// `cotal login`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal login --idp https://id.example/api/auth")]
pub struct LoginArgs {
    /// The IdP's auth base URL.
    #[arg(long, value_name = "URL")]
    pub idp: String,
    /// The device client id.
    #[arg(long, value_name = "ID", default_value = "cotal-cli")]
    pub client_id: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// `cotal logout`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal logout --idp https://id.example/api/auth")]
pub struct LogoutArgs {
    /// The IdP's auth base URL.
    #[arg(long, value_name = "URL")]
    pub idp: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// What this machine remembers of a login, without the session itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedLogin {
    /// The subject.
    pub sub: Option<String>,
    /// When the session ends, as the IdP said; advisory.
    pub expires_at: UnixSecs,
}

/// The cached login at a normalised IdP URL, offline; `None` when nobody is logged in there.
pub fn cached_login(_home: &Home, _idp_url: &str) -> Result<Option<CachedLogin>, CliError> {
    Err(CliError::failed("the login cache is not available in this build"))
}

/// Signs in.
#[allow(clippy::unused_async, reason = "the signature that the dispatcher calls")]
pub async fn run(_args: LoginArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("`cotal login` is not available in this build"))
}

/// Signs out.
#[allow(clippy::unused_async, reason = "the signature that the dispatcher calls")]
pub async fn logout(_args: LogoutArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("`cotal logout` is not available in this build"))
}
