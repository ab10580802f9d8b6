//! `cotal status`: what runs here, who is logged in and what is granted.

use std::path::Path;

use cotal_ledger::Ledger;
use cotal_trust::idp::IdpPin;
use cotal_wire::{Actor, DerivedOwner, Space};
use cotal_workspace::{
    broker_config::DEFAULT_HOST,
    file,
    material::{Discovery, load_idp_pin, load_owner_secret},
    printed::{self, at},
    registry::MeshRegistry,
    secret_store::FsSecretStore,
    trust_files,
};
use serde::Serialize;

use crate::{
    actor::NARROW,
    cli::Output,
    context::{Context, DEFAULT_SPACE, space_flag},
    daemon::Daemon,
    delivery_lease, login,
    outcome::CliError,
    progress::if_slow,
    ready, space_broker, space_daemons,
    terminal::printable,
};

/// The actor of a person's own tools (contract 04 §13).
const CLI_ACTOR: &str = "cli";

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

/// What was seen.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    space: Space,
    /// Whether this root has it at all.
    exists: bool,
    root: String,
    user_auth: bool,
    broker: Process,
    delivery: Delivery,
    auth_service: Process,
    #[serde(skip_serializing_if = "Option::is_none")]
    dev_idp: Option<Process>,
    idp: Option<Idp>,
    login: Option<Login>,
    /// How to log in, when nobody is.
    #[serde(skip_serializing_if = "Option::is_none")]
    login_hint: Option<String>,
    grant: Option<Grant>,
    /// The other spaces of the root.
    other_spaces: Vec<Other>,
    /// What could not be seen, a sentence each.
    problems: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Process {
    /// `null` when it cannot be known.
    running: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    public_url: Option<String>,
    /// Whether it answered just now.
    answers: bool,
}

/// The delivery daemon: its process here, and what the space's lease says, whoever holds it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Delivery {
    /// `null` when it cannot be known.
    running: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Whether the holder of the lease says that it serves.
    ready: bool,
    /// Who holds the lease, and since when in milliseconds; `null` when nobody does or it cannot be read.
    lease: Option<Lease>,
}

/// Another space of the root.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Other {
    space: Space,
    auth_service: Process,
}

#[derive(Debug, Serialize)]
struct Lease {
    holder: String,
    since: u64,
}

#[derive(Debug, Serialize)]
struct Idp {
    url: String,
    issuer: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Login {
    sub: Option<String>,
    /// Seconds; advisory.
    expires_at: u64,
    owner: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
enum Grant {
    Granted { actor: &'static str, scope: Vec<String>, read: Vec<String>, post: Vec<String> },
    NotGranted { actor: &'static str },
}

/// Shows the space.
pub async fn run(args: StatusArgs, ctx: &Context) -> Result<(), CliError> {
    let space = space_flag(&args.space)?;
    let waits = "waiting for what does not answer, 10 s at most for each part";
    let status = if_slow(ctx, waits, look(ctx, &space)).await?;
    ctx.report(&status, || {
        if status.exists {
            text(&status)
        } else {
            text_of_none(&status, &printed::no_such_space(&ctx.root, &space))
        }
    })
}

async fn look(ctx: &Context, space: &Space) -> Result<Status, CliError> {
    let mut problems = Vec::new();
    let entry = MeshRegistry::new(ctx.home.clone()).get(space)?;
    if let Some(entry) = entry.filter(|entry| Path::new(&entry.root) != ctx.root.path()) {
        problems.push(format!("space {:?} of this machine is that of {}", space.as_str(), entry.root));
    }
    let state_dir = ctx.root.user_auth_state_dir(space)?;
    let user_auth = ctx.root.is_user_auth(space)?;
    let broker = look_at_broker(ctx, &mut problems).await?;
    let delivery = look_at_delivery(ctx, space, broker.answers, &mut problems).await?;
    let auth_service = look_at_service(ctx, space, &state_dir, &mut problems).await;
    let pin = load_idp_pin(&state_dir)?;
    let dev_idp = look_at_dev_idp(ctx, space, pin.as_ref(), &mut problems).await?;
    let login = pin.as_ref().and_then(|pin| match login::cached_login(&ctx.home, &pin.url) {
        Ok(login) => login,
        Err(error) => {
            problems.push(error.to_string());
            None
        }
    });
    let owner = match (&pin, login.as_ref().and_then(|login| login.sub.as_deref())) {
        (Some(pin), Some(sub)) => owner(ctx, space, pin, sub).await?,
        _ => None,
    };
    let grant = owner.as_ref().map(|owner| grant(&state_dir, owner)).transpose()?;
    let login_hint = match (&pin, &login) {
        (Some(pin), None) => Some(format!("cotal login --idp {}", pin.url)),
        _ => None,
    };
    Ok(Status {
        space: space.clone(),
        exists: printed::has_space(&ctx.root, space),
        root: ctx.root.path().display().to_string(),
        user_auth,
        broker,
        delivery,
        auth_service,
        dev_idp,
        idp: pin.map(|pin| Idp { url: pin.url, issuer: pin.issuer }),
        login: login.map(|login| Login {
            sub: login.sub,
            expires_at: login.expires_at.0,
            owner: owner.map(|owner| owner.to_string()),
        }),
        login_hint,
        grant,
        other_spaces: look_at_others(ctx, space, &mut problems).await?,
        problems,
    })
}

async fn look_at_others(
    ctx: &Context,
    space: &Space,
    problems: &mut Vec<String>,
) -> Result<Vec<Other>, CliError> {
    if !file::is_real_dir(&ctx.root.auth_dir())? {
        return Ok(Vec::new());
    }
    let mut others = Vec::new();
    for other in trust_files::inventory(&ctx.root)?.into_iter().filter(|other| other != space) {
        let state_dir = ctx.root.user_auth_state_dir(&other)?;
        let auth_service = look_at_service(ctx, &other, &state_dir, problems).await;
        others.push(Other { space: other, auth_service });
    }
    Ok(others)
}

/// A daemon by its pid file. What cannot be known is said, never shown as stopped.
fn process(daemon: &Daemon, problems: &mut Vec<String>) -> Process {
    match daemon.running() {
        Ok(Some(running)) => Process { running: Some(true), pid: Some(running.pid), ..Process::default() },
        Ok(None) => Process { running: Some(false), ..Process::default() },
        Err(error) => {
            problems.push(error.to_string());
            Process::default()
        }
    }
}

async fn look_at_broker(ctx: &Context, problems: &mut Vec<String>) -> Result<Process, CliError> {
    let mut broker = process(&space_daemons::broker(ctx, Path::new("nats-server")), problems);
    let config = file::read_text(&space_daemons::broker_config_path(&ctx.root))?;
    if let Some(port) = config.as_deref().and_then(|config| space_daemons::broker_port(config)) {
        broker.url = Some(format!("nats://{DEFAULT_HOST}:{port}"));
        broker.answers = ready::greets(DEFAULT_HOST, port).await;
    }
    Ok(broker)
}

async fn look_at_delivery(
    ctx: &Context,
    space: &Space,
    broker_answers: bool,
    problems: &mut Vec<String>,
) -> Result<Delivery, CliError> {
    let Process { running, pid, .. } = process(&space_daemons::delivery(ctx, space, None), problems);
    let mut seen = Delivery { running, pid, ready: false, lease: None };
    let Some(connector) = space_broker::connector(ctx, space)?.filter(|_| broker_answers) else {
        return Ok(seen);
    };
    match delivery_lease::read(&connector).await {
        Ok(Some(row)) => {
            seen.ready = row.ready;
            seen.lease = Some(Lease { holder: printable(&row.holder), since: row.since });
        }
        Ok(None) => {}
        Err(refusal) => problems.push(format!("the delivery lease cannot be read: {}", refusal.message)),
    }
    Ok(seen)
}

async fn look_at_service(
    ctx: &Context,
    space: &Space,
    state_dir: &Path,
    problems: &mut Vec<String>,
) -> Process {
    let mut service = process(&space_daemons::auth_service(ctx, space, Vec::new()), problems);
    match Discovery::load(state_dir) {
        Ok(Some(discovery)) => {
            service.answers = ready::healthy(&discovery.url).await;
            service.url = Some(discovery.url);
            service.public_url = discovery.public_url;
            // One that a unit started has no pid file of ours.
            if service.answers && service.running == Some(false) {
                (service.running, service.pid) = (Some(true), Some(discovery.pid));
            }
        }
        Ok(None) => {}
        Err(error) => problems.push(error.to_string()),
    }
    service
}

/// The development IdP, when an `up` has left one here.
async fn look_at_dev_idp(
    ctx: &Context,
    space: &Space,
    pin: Option<&IdpPin>,
    problems: &mut Vec<String>,
) -> Result<Option<Process>, CliError> {
    let daemon = space_daemons::left_dev_idp(ctx, space, pin);
    let Some(pin) = pin.filter(|_| daemon.files.pid.exists()) else { return Ok(None) };
    let mut seen = process(&daemon, problems);
    seen.url = Some(pin.url.clone());
    seen.answers = ready::publishes_keys(ctx, pin).await?;
    Ok(Some(seen))
}

/// The owner of a login, on the machine that holds the owner secret.
async fn owner(
    ctx: &Context,
    space: &Space,
    pin: &IdpPin,
    sub: &str,
) -> Result<Option<DerivedOwner>, CliError> {
    let store = FsSecretStore::open(&ctx.root)?;
    let Some(secret) = load_owner_secret(&store, space).await? else { return Ok(None) };
    Ok(Some(secret.derive(&pin.issuer, sub)?))
}

fn grant(state_dir: &Path, owner: &DerivedOwner) -> Result<Grant, CliError> {
    let row = Ledger::at(state_dir).read_interactive(owner, &Actor::parse(CLI_ACTOR)?)?;
    Ok(match row {
        Some(row) => Grant::Granted {
            actor: CLI_ACTOR,
            scope: row.scope,
            read: row.allow_subscribe,
            post: row.allow_publish,
        },
        None => Grant::NotGranted { actor: CLI_ACTOR },
    })
}

fn text(status: &Status) -> String {
    let mut lines = vec![format!("space {} in {}", status.space, status.root)];
    let mut line = |what: &str, value: String| lines.push(row(what, &value));
    let up = up_command(&status.space);
    line("broker", shown(&status.broker, &up));
    line("delivery", shown_delivery(&status.delivery, &up));
    line("auth service", shown(&status.auth_service, &up));
    if let Some(public) = &status.auth_service.public_url {
        line("public face", public.clone());
    }
    if let Some(dev_idp) = &status.dev_idp {
        line("dev IdP", format!("{}, not for production", shown(dev_idp, &up)));
    }
    line(
        "IdP",
        status
            .idp
            .as_ref()
            .map_or_else(|| format!("none pinned: run `{up} --idp <url>`"), |idp| idp.url.clone()),
    );
    if let Some(login) = &status.login {
        line("login", login.sub.clone().unwrap_or_else(|| "a subject that the session does not name".into()));
        if let Some(owner) = &login.owner {
            line("owner", owner.clone());
        }
    }
    if let Some(hint) = &status.login_hint {
        line("login", format!("nobody: run `{hint}`"));
    }
    match &status.grant {
        Some(Grant::Granted { actor, scope, read, post }) => {
            let list = |words: &[String]| words.join(",");
            line(
                "grant",
                format!("{actor} scope=[{}] read=[{}] post=[{}]", list(scope), list(read), list(post)),
            );
        }
        Some(Grant::NotGranted { actor }) => {
            let sub = status.login.as_ref().and_then(|login| login.sub.as_deref()).unwrap_or("<subject>");
            let sub = cotal_ledger::shell_quote(sub);
            line(
                "grant",
                format!("none: run `cotal actor grant {actor} --sub {sub} {NARROW}{}`", at(&status.space)),
            );
        }
        None => {}
    }
    lines.extend(around(status));
    lines.join("\n")
}

/// A space that is not there has nothing that could be down: only what is there is shown.
fn text_of_none(status: &Status, no_such_space: &str) -> String {
    std::iter::once(printable(no_such_space)).chain(around(status)).collect::<Vec<_>>().join("\n")
}

/// What a status ends with: the root's other spaces, and what could not be seen.
fn around(status: &Status) -> Vec<String> {
    let others = status.other_spaces.iter().map(|Other { space, auth_service }| {
        let state = shown(auth_service, &up_command(space));
        row("also here", &format!("{}: {state}", printable(space.as_str())))
    });
    others.chain(status.problems.iter().map(|problem| row("problem", problem))).collect()
}

fn row(what: &str, value: &str) -> String {
    format!("  {what:<14} {value}")
}

/// What brings a space up again.
fn up_command(space: &Space) -> String {
    format!("cotal up --user-auth{}", at(space))
}

fn shown_delivery(delivery: &Delivery, up: &str) -> String {
    let down = format!("down: run `{up}`");
    let state = match (delivery.running, delivery.ready) {
        (Some(true), true) => "up",
        (Some(true), false) => "running, but not ready",
        (Some(false), true) => {
            "not running here, but its lease says ready: another machine's, or one that was killed"
        }
        (Some(false), false) => &down,
        (None, _) => "unknown",
    };
    let pid = delivery.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    let lease =
        delivery.lease.as_ref().map(|lease| format!(", lease of {}", lease.holder)).unwrap_or_default();
    format!("{state}{pid}{lease}")
}

fn shown(process: &Process, up: &str) -> String {
    let down = format!("down: run `{up}`");
    let state = match (process.running, process.answers) {
        (Some(true), true) => "up",
        (Some(true), false) => "running, but does not answer",
        (Some(false), true) => "not ours, but something answers there",
        (Some(false), false) => &down,
        (None, _) => "unknown",
    };
    let at = process.url.as_deref().filter(|_| process.running == Some(true));
    let pid = process.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    format!("{state}{}{pid}", at.map(|url| format!(" at {url}")).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_never_shown_as_down() {
        let process = |running, answers| Process { running, answers, ..Process::default() };
        assert_eq!(shown(&process(None, false), "up"), "unknown");
        assert!(shown(&process(Some(false), false), "x").starts_with("down: run `x`"));
        assert!(shown(&process(Some(true), false), "up").contains("does not answer"));
        assert_eq!(shown(&process(Some(true), true), "up"), "up");
        let delivery =
            |running, ready| shown_delivery(&Delivery { running, pid: None, ready, lease: None }, "up");
        assert_eq!(up_command(&Space::parse("two").unwrap()), "cotal up --user-auth --space 'two'");
        assert_eq!((delivery(None, true).as_str(), delivery(Some(true), true).as_str()), ("unknown", "up"));
        assert!(delivery(Some(false), true).contains("one that was killed"));
        assert!(delivery(Some(true), false).contains("not ready"));
    }
}
