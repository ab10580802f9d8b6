//! `cotal agent-bearer`: a bearer and a newline on stdout, nothing else (contract 04 §13.2).

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use cotal_wire::{Actor, DerivedOwner, InstanceId};
use cotal_workspace::file;
use serde_json::json;
use zeroize::Zeroizing;

use crate::{
    context::{Context, space_flag},
    exchange_client::{AgentExchange, ExchangeFace, ManagerCall},
    given_url::GivenUrl,
    outcome::CliError,
};

/// A secret is 43 characters; more than this is another file.
const MAX_SECRET_BYTES: u64 = 4096;

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
    pub exchange_url: Option<GivenUrl>,
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

/// Prints a bearer. A rate limit puts `retry-after <n>` where the bearer would stand, for the endpoint that reads it.
pub async fn run(args: AgentBearerArgs, ctx: &Context) -> Result<(), CliError> {
    let manager_call = args.manager_call || args.manager_instance.is_some();
    let outcome = bearer(&args, manager_call).await;
    // The health is the standing bearer's; a call to a Manager says nothing about it.
    if let (Some(path), false) = (&args.health_file, manager_call) {
        leave_health(path, outcome.as_ref().err(), ctx);
    }
    match outcome {
        Ok(bearer) => ctx.say(bearer.as_str()),
        Err(error) => {
            if let CliError::RateLimited { retry_after_secs, .. } = &error {
                ctx.say(format!("retry-after {retry_after_secs}"))?;
            }
            Err(error)
        }
    }
}

async fn bearer(args: &AgentBearerArgs, manager_call: bool) -> Result<Zeroizing<String>, CliError> {
    let face = match (&args.dir, &args.exchange_url) {
        (Some(_), Some(_)) => return Err(CliError::usage("name --dir or --exchange-url, not both")),
        (None, None) => return Err(required("--dir <state dir> or --exchange-url <https base>")),
        (dir, url) => (dir, url),
    };
    let space = args.space.as_deref().map(space_flag).transpose()?;
    let owner = args.owner.as_deref().ok_or_else(|| required("--owner <u_…>"))?;
    let owner = DerivedOwner::parse(owner).map_err(|e| CliError::usage(format!("--owner is {e}")))?;
    let actor = args.actor.as_deref().ok_or_else(|| required("--actor <actor>"))?;
    let actor = Actor::parse(actor).map_err(|e| CliError::usage(format!("--actor is {e}")))?;
    let token_file = args.token_file.as_deref().ok_or_else(|| required("--token-file <path>"))?;
    let instance = args
        .manager_instance
        .as_deref()
        .map(InstanceId::parse)
        .transpose()
        .map_err(|e| CliError::usage(format!("--manager-instance is {e}")))?;
    let secret = read_secret(token_file)?;
    let manager = manager_call.then_some(ManagerCall { instance });
    let face = match face {
        (Some(dir), _) => ExchangeFace::local(dir).map_err(|error| match &space {
            Some(space) => error.naming(space),
            None => error,
        })?,
        (None, url) => ExchangeFace::remote(url.as_deref().unwrap_or_default())?,
    };
    face.exchange(&AgentExchange { owner, actor, secret, manager }).await
}

/// The agent's secret: the file's text, trimmed. The path is the caller's own, so that a link is followed: secrets are
/// often mounted as links.
fn read_secret(path: &Path) -> Result<Zeroizing<String>, CliError> {
    let unreadable = |why: &dyn std::fmt::Display| {
        CliError::failed(format!(
            "the token file {} cannot be read: {why}; spawn the agent again",
            path.display()
        ))
    };
    let file = std::fs::File::open(path).map_err(|e| unreadable(&e))?;
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_SECRET_BYTES).read_to_string(&mut text).map_err(|e| unreadable(&e))?;
    let secret = text.trim();
    if secret.is_empty() {
        return Err(unreadable(&"it is empty"));
    }
    Ok(Zeroizing::new(secret.to_owned()))
}

fn required(flag: &str) -> CliError {
    CliError::usage(format!("agent-bearer needs {flag}"))
}

/// `{state, at, reason?}`; best effort, because a bearer that was minted must not be lost to a full disk.
fn leave_health(path: &Path, error: Option<&CliError>, ctx: &Context) {
    let at = i64::try_from(ctx.clock.now_millis().0)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let at = at.map(|at| format!("{at:.3}"));
    let document = match error {
        None => json!({ "state": "ok", "at": at }),
        Some(error) => json!({ "state": "failed", "at": at, "reason": error.to_string() }),
    };
    if let Err(error) = file::write_atomic(path, document.to_string().as_bytes()) {
        tracing::debug!(%error, "the health file cannot be written");
    }
}
