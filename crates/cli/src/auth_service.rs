//! `cotal auth-service`: the auth service of a space in the foreground (contract 05 §14).

use std::time::Duration;

use cotal_auth::AuthServiceRuntimeOptions;
use cotal_trust::mint::STANDING_RENEWABLE_TTL_SECS;
use cotal_workspace::trust_files;

use crate::{
    context::{Context, space_flag},
    doctor,
    exchange_flags::ExchangeFlags,
    outcome::CliError,
    renewal::{Pass, Which},
};

/// How often the delivery daemon's credentials are signed anew: a quarter of their life (contract 08 §7.3).
const RENEW_EVERY: Duration = Duration::from_secs(STANDING_RENEWABLE_TTL_SECS / 4);
/// When a pass that was refused is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(600);
/// The first pass leaves a start alone.
const FIRST_AFTER: Duration = Duration::from_secs(60);

/// `cotal auth-service`
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cotal auth-service --space main --server nats://127.0.0.1:4222
  cotal auth-service --callout-only --space main --server nats://127.0.0.1:4222
  cotal auth-service --callout-only --space main --server nats://127.0.0.1:4222 --auth-timeout 5

A callout replica (--callout-only) needs the --auth-timeout that the broker was configured with.")]
pub struct AuthServiceArgs {
    /// The space; required unless --spaces is given.
    #[arg(long)]
    pub space: Option<String>,
    /// The broker's URL.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Loopback HTTP port; 0, the default, takes a free one.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// The public face.
    #[command(flatten)]
    pub exchange: ExchangeFlags,
    /// The broker's `authorization { timeout }` in seconds, when it has one.
    #[arg(long, value_name = "SECONDS")]
    pub auth_timeout: Option<u64>,
    /// A callout replica: one more member of the space's callout queue group, without HTTP. Ends non-zero when it loses
    /// the broker or a store.
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
        interactive_manager_selection: None,
    };
    let (space, callout_only) = (args.space.clone(), args.callout_only);
    let args = args.into();
    let serving = cotal_auth::run_auth_service(&args, None, &options);
    tokio::select! {
        ended = serving => ended.map_err(|error| CliError::failed(error.to_string())),
        // Dropped with the service: a lease that it held lapses by itself.
        () = renewing(space.as_deref(), ctx), if !callout_only => Ok(()),
    }
}

/// Renews the delivery daemon's credentials for as long as the service runs. A space has no manager here that would, and
/// the daemon holds no signer; where a manager holds the renewal lease, that one renews and this one keeps out.
async fn renewing(space: Option<&str>, ctx: &Context) {
    let mut next = FIRST_AFTER;
    loop {
        tokio::time::sleep(next).await;
        next = match renew(space, ctx).await {
            Ok(Some(pass)) => told(&pass),
            Ok(None) => {
                tracing::info!("renewal: the space's account is not kept here; whoever keeps it renews");
                return std::future::pending().await;
            }
            Err(error) => {
                tracing::warn!("renewal: {error}");
                RETRY_AFTER
            }
        };
    }
}

/// One pass; `None` where the space's account record is not.
async fn renew(space: Option<&str>, ctx: &Context) -> Result<Option<Pass>, CliError> {
    let space = space_flag(space.unwrap_or_default())?;
    if trust_files::load_account(&ctx.root, &space)?.is_none() {
        return Ok(None);
    }
    doctor::renewal(ctx, &space, false)?.pass(Which::Every).await.map(Some)
}

/// Logs a pass and answers when the next one is due.
fn told(pass: &Pass) -> Duration {
    let mut next = RENEW_EVERY;
    for result in &pass.results {
        match (&result.error, result.skipped) {
            (Some(error), _) => {
                next = RETRY_AFTER;
                tracing::warn!(file = result.file, "renewal: not renewed: {error}");
            }
            (None, Some(why)) => tracing::info!(file = result.file, "renewal: left as it is ({why})"),
            (None, None) => tracing::info!(file = result.file, "renewal: renewed"),
        }
    }
    if let Some(error) = pass.adoption.as_ref().and_then(|adoption| adoption["error"].as_str()) {
        tracing::warn!("renewal: the delivery daemon did not take it over now: {error}");
    }
    next
}

impl From<AuthServiceArgs> for cotal_auth::AuthServiceArgs {
    fn from(args: AuthServiceArgs) -> Self {
        Self {
            space: args.space,
            server: args.server,
            port: args.port.map(|port| port.to_string()),
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
