//! The `cotal` command: arguments in, text or JSON out, no logic of the contract.
//!
//! A file is one command. Each has the arguments that it takes and one `run`, which gets the machine through a
//! [`context::Context`] and answers a [`outcome::CliError`] that [`outcome`] alone prints.

use std::{ffi::OsString, process::ExitCode, time::Duration};

pub mod actor;
pub mod actor_lock;
pub mod agent_bearer;
pub mod auth;
pub mod auth_service;
pub mod broker_lock;
pub mod cli;
pub mod completions;
pub mod context;
pub mod cred_health;
pub mod daemon;
pub mod delivery;
pub mod delivery_lease;
pub mod detach;
pub mod dev_idp;
pub mod doctor;
pub mod down;
pub mod exchange_client;
pub mod exchange_flags;
pub mod given_url;
pub mod grant_remarks;
pub mod http_json;
pub mod idp_client;
pub mod incarnation;
pub mod lifecycle_door;
pub mod login;
pub mod loopback;
pub mod manager;
pub mod nats_server;
pub mod outcome;
pub mod progress;
pub mod ready;
pub mod renewal;
pub mod renewal_lease;
pub mod repair;
pub mod root_lock;
pub mod session_cache;
pub mod space_broker;
pub mod space_daemons;
pub mod status;
pub mod terminal;
pub mod up;

use cli::Command;
use context::Context;
use cotal_wire::Space;
use outcome::CliError;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// The whole process: parses, runs one command, prints its outcome, answers the exit code.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    // A reader of `agent-bearer` takes what is on stdout for a bearer, and that command has no JSON.
    let bearer = arguments.iter().any(|argument| argument == "agent-bearer");
    let asked_json = !bearer && arguments.iter().any(|argument| argument == "--json");
    let command = match cli::parse(arguments) {
        Ok(command) => command,
        Err(cli::NotRun::Shown(text)) => return outcome::shown(&text),
        Err(cli::NotRun::Usage(text)) => return outcome::failed(&CliError::Usage(text), asked_json),
    };
    // These two need no machine: neither may fail because a home or a runtime is missing.
    let command = match command {
        Command::Completions(args) => return outcome::finish(completions::run(&args), false),
        Command::Detach(args) => return outcome::finish(detach::run(&args), false),
        other => other,
    };
    let json = command.json();
    let space = command.space().and_then(|name| Space::parse(name).ok());
    let ended = in_runtime(command).map_err(|error| match &space {
        Some(space) => error.naming(space),
        None => error,
    });
    outcome::finish(ended, json)
}

/// How long a command that ends waits for a disk.
pub(crate) const DISK_PATIENCE: Duration = Duration::from_secs(10);

fn in_runtime(command: Command) -> Result<(), CliError> {
    start_log(matches!(command, Command::AuthService(_) | Command::Delivery(_)));
    let ctx = Context::of_process(command.json())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| CliError::Failed(format!("the runtime cannot start: {e}")))?;
    let ended = runtime.block_on(run(command, &ctx));
    // What the command was to do is done; a disk that hangs must not keep the process.
    runtime.shutdown_timeout(DISK_PATIENCE);
    ended
}

/// Runs one command.
pub async fn run(command: Command, ctx: &Context) -> Result<(), CliError> {
    match command {
        Command::Up(args) => up::run(args, ctx).await,
        Command::Down(args) => down::run(args, ctx).await,
        Command::Status(args) => status::run(args, ctx).await,
        Command::AuthService(args) => auth_service::run(args, ctx).await,
        Command::Delivery(args) => delivery::run(args, ctx).await,
        Command::Doctor(args) => doctor::run(args, ctx).await,
        Command::ReconcileGate(args) => repair::reconcile(args, ctx).await,
        Command::DeregisterInstance(args) => repair::deregister(args, ctx).await,
        Command::Login(args) => login::run(args, ctx).await,
        Command::Logout(args) => login::logout(args, ctx).await,
        Command::Auth(args) => auth::run(args, ctx).await,
        Command::Actor(args) => actor::run(args, ctx).await,
        Command::Manager(args) => manager::run(args, ctx).await,
        Command::AgentBearer(args) => agent_bearer::run(args, ctx).await,
        Command::DevIdp(args) => dev_idp::run(args, ctx).await,
        Command::Completions(args) => completions::run(&args),
        Command::Detach(args) => detach::run(&args),
    }
}

/// Log lines go to stderr, a daemon's own at `info`; `COTAL_LOG` chooses otherwise (`debug`, `cotal_auth=trace`).
fn start_log(daemon: bool) {
    // The NATS client tells each of its own events at `info`; the service says what matters of them, a command says all.
    let default = if daemon { "info,async_nats=warn" } else { "warn,async_nats=off" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("COTAL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    // A service never waits for whoever reads its log.
    let writer = if daemon {
        BoxMakeWriter::new(cotal_auth::stderr_line)
    } else {
        BoxMakeWriter::new(std::io::stderr)
    };
    // A second subscriber (a test's) stays.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false).try_init();
}
