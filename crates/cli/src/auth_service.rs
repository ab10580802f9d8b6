//! `cotal auth-service`: the auth service of a space in the foreground (contract 05 §14).

use cotal_auth::AuthServiceRuntimeOptions;

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

/// Runs until SIGINT, SIGTERM or its own end.
pub async fn run(args: AuthServiceArgs, ctx: &Context) -> Result<(), CliError> {
    let options = AuthServiceRuntimeOptions {
        root: ctx.root.clone(),
        startup_hold_ms: ctx.env(cotal_auth::STARTUP_HOLD),
        secret_store: ctx.env(cotal_auth::SECRET_STORE),
        announce: cotal_auth::stdout_line(),
    };
    cotal_auth::run_auth_service(&args.into(), None, &options)
        .await
        .map_err(|error| CliError::failed(error.to_string()))
}

impl From<AuthServiceArgs> for cotal_auth::AuthServiceArgs {
    fn from(args: AuthServiceArgs) -> Self {
        Self {
            space: args.space,
            server: args.server,
            port: Some(args.port.to_string()),
            exchange_public_port: args.exchange.exchange_public_port.map(|port| port.to_string()),
            exchange_public_url: args.exchange.exchange_public_url,
            exchange_trusted_proxy: args.exchange.exchange_trusted_proxy,
            advertised_server: args.exchange.advertised_server,
            agent_provisioning_url: args.exchange.agent_provisioning_url,
            auth_timeout: args.auth_timeout.map(|seconds| seconds.to_string()),
            callout_only: args.callout_only,
            spaces: args.spaces.map(|path| path.to_string_lossy().into_owned()),
            service_endpoints: args.service_endpoints,
        }
    }
}
