//! `cotal doctor`: how the credentials on this machine stand, and what mends them (contract 08 §7.4, §10).

use std::sync::Arc;

use clap::Subcommand;
use cotal_wire::{Space, UnixSecs};
use cotal_workspace::{
    daemon_creds::{self, DaemonCred},
    file,
    printed::at,
    secret_store::{FsSecretStore, SecretStore as _},
    trust_files,
};
use serde::Serialize;

use crate::{
    cli::Output,
    context::{Context, DEFAULT_SPACE, made_elsewhere, space_flag},
    cred_health::{CredHealth, CredState, look, look_at_system},
    outcome::CliError,
    progress::{if_slow, within},
    renewal::{self, Pass, Renewal, Which},
    space_broker,
    terminal::printable,
};

/// What a renewal may have to wait for.
const WAITS_TO_FIX: &str = "waiting for the broker and the delivery daemon, 15 s at most for each answer; the lease of a \
                            renewal that was killed is waited out for 12 s";

/// What renews the two credentials of the system account.
fn rotate(space: &Space) -> String {
    format!(
        "`cotal down --space <each space of this root>`, then `cotal up --user-auth --rotate-sys{}`",
        at(space)
    )
}

/// `cotal doctor`
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cotal doctor auth\n  cotal doctor auth --fix")]
pub struct DoctorArgs {
    /// What to look at.
    #[command(subcommand)]
    pub verb: DoctorVerb,
}

/// The verbs of `cotal doctor`.
#[derive(Debug, Subcommand)]
pub enum DoctorVerb {
    /// The delivery daemon's credentials: healthy, near their expiry, or expired; and the broker that takes them.
    Auth(AuthArgs),
}

/// `cotal doctor auth`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal doctor auth                   exit code 1 when the broker is down, or takes one of them no more
  cotal doctor auth --fix             signs what is due, proves it, and has the daemon take it over
  cotal doctor auth --space main --json

The two credentials of the system account are never signed anew by --fix: only a rotation of that account makes new ones,
with `cotal down --space <each space of this root>`, then `cotal up --user-auth --rotate-sys`.")]
pub struct AuthArgs {
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// Sign what is due anew, unless another process has the renewal lease.
    #[arg(long)]
    pub fix: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    space: String,
    root: String,
    /// Whether the broker takes every one of them, as far as can be told: one that is down takes none. After `--fix` that
    /// is told apart, because it mends offline too.
    ok: bool,
    broker: Broker,
    credentials: Vec<Credential>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<Pass>,
}

/// The broker that is to take them.
#[derive(Serialize)]
struct Broker {
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    state: BrokerState,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum BrokerState {
    /// It takes what this space's account signs.
    Up,
    /// Nothing listens where the last `up` left it, or none was left.
    Down,
    /// Something listens there and takes no user of this space.
    Refuses,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Credential {
    file: &'static str,
    /// `data` or `system`.
    account: &'static str,
    state: CredState,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<UnixSecs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renew_at: Option<UnixSecs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl DoctorArgs {
    /// The space.
    pub fn space(&self) -> &str {
        match &self.verb {
            DoctorVerb::Auth(args) => &args.space,
        }
    }

    /// How to print.
    pub fn output(&self) -> Output {
        match &self.verb {
            DoctorVerb::Auth(args) => args.output,
        }
    }
}

/// Runs one verb.
pub async fn run(args: DoctorArgs, ctx: &Context) -> Result<(), CliError> {
    match args.verb {
        DoctorVerb::Auth(args) => auth(args, ctx).await,
    }
}

async fn auth(args: AuthArgs, ctx: &Context) -> Result<(), CliError> {
    let space = space_flag(&args.space)?;
    let fix = if args.fix {
        let renewal = renewal(ctx, &space, true)?;
        Some(if_slow(ctx, WAITS_TO_FIX, renewal.pass(Which::Due)).await?)
    } else {
        None
    };
    let credentials = credentials(ctx, &space).await?;
    let broker = broker(ctx, &space).await?;
    let failed = fix.iter().flat_map(|pass| &pass.results).any(|result| result.error.is_some());
    let hold = !failed && credentials.iter().all(|credential| credential.state.holds());
    let taken = broker.state == BrokerState::Up || fix.as_ref().is_some_and(|pass| !pass.online);
    let ok = hold && taken;
    let report = Report {
        space: space.to_string(),
        root: ctx.root.path().display().to_string(),
        ok,
        broker,
        credentials,
        fix,
    };
    ctx.report(&report, || text(&report, ctx.clock.now_secs()))?;
    if ok {
        return Ok(());
    }
    let what = if hold { "the broker takes no credential" } else { "not every credential holds" };
    Err(CliError::Reported(format!("space {:?}: {what}: do what the report says beside it", space.as_str())))
}

/// Looks at the broker: first whether anything listens, which is over at once, then by a connection of the space's own.
async fn broker(ctx: &Context, space: &Space) -> Result<Broker, CliError> {
    let url = space_broker::server(ctx, space)?;
    let at = at(space);
    let Some(connector) = space_broker::connector(ctx, space)? else {
        return Ok(Broker { url, state: BrokerState::Down, remedy: Some(up(&at)) });
    };
    let listens = match &url {
        Some(servers) => space_broker::listens(servers).await,
        None => false,
    };
    if !listens {
        return Ok(Broker { url, state: BrokerState::Down, remedy: Some(up(&at)) });
    }
    let waits = within("waiting for the broker", space_broker::TAKES_WITHIN);
    let taken = if_slow(ctx, &waits, space_broker::takes(&connector)).await;
    Ok(match taken {
        Ok(()) => Broker { url, state: BrokerState::Up, remedy: None },
        Err(why) => {
            let anew = format!("{why}: `cotal down{at}`, then {}, unless it is another root's", up(&at));
            Broker { url, state: BrokerState::Refuses, remedy: Some(anew) }
        }
    })
}

fn up(at: &str) -> String {
    format!("`cotal up --user-auth{at}`")
}

/// The renewal of a space of this root.
pub fn renewal(ctx: &Context, space: &Space, may_be_offline: bool) -> Result<Renewal, CliError> {
    daemon_creds::adopt_legacy(&ctx.root, space)?;
    let account = trust_files::load_account(&ctx.root, space)?.ok_or_else(|| unknown(space, ctx))?;
    Ok(Renewal {
        root: ctx.root.clone(),
        space: space.clone(),
        store: Arc::new(FsSecretStore::open(&ctx.root)?),
        data: account.data_account(),
        broker: space_broker::connector(ctx, space)?.zip(space_broker::server(ctx, space)?),
        may_be_offline,
        clock: ctx.clock.clone(),
    })
}

async fn credentials(ctx: &Context, space: &Space) -> Result<Vec<Credential>, CliError> {
    let now = ctx.clock.now_secs();
    let account = trust_files::load_account(&ctx.root, space)?.ok_or_else(|| unknown(space, ctx))?;
    let broker = trust_files::load_broker(&ctx.root)?.ok_or_else(|| unknown(space, ctx))?;
    let data = renewal::signer_of(&account.data_account());
    daemon_creds::adopt_legacy(&ctx.root, space)?;
    let watched = daemon_creds::read_membership(&ctx.root, space)?;
    let store = FsSecretStore::open(&ctx.root)?;
    let mut all = Vec::new();
    for cred in DaemonCred::ALL {
        let seen = if cred.of_system_account() {
            let text = file::read_text(&cred.path(&ctx.root, space))?;
            look_at_system(text.as_deref().map(String::as_str), &broker, now)?
        } else {
            let text = store.get(&cred.key(space)).await?;
            look(text.as_deref().map(String::as_str), &data, now)
        };
        // An observer sees the one account that it was made for.
        let astray = cred == DaemonCred::MembershipObserver
            && seen.state != CredState::Missing
            && watched.as_ref() != Some(account.account.public());
        let state = if astray { seen.state.max(CredState::Foreign) } else { seen.state };
        all.push(credential(space, cred, CredHealth { state, ..seen }));
    }
    Ok(all)
}

fn credential(
    space: &Space,
    cred: DaemonCred,
    CredHealth { state, exp, renew_at }: CredHealth,
) -> Credential {
    let at = at(space);
    let remedy = match (cred.of_system_account(), state) {
        (_, CredState::Healthy | CredState::Unbounded) => None,
        (true, _) => Some(rotate(space)),
        (false, CredState::Missing | CredState::Unreadable) => {
            Some(format!("`cotal down{at}`, then `cotal up --user-auth{at}`, makes it"))
        }
        (false, _) => Some(format!("`cotal doctor auth --fix{at}`")),
    };
    Credential {
        file: cred.file_name(),
        account: if cred.of_system_account() { "system" } else { "data" },
        state,
        expires_at: exp,
        renew_at,
        remedy,
    }
}

fn text(report: &Report, now: UnixSecs) -> String {
    let mut lines = vec![format!("credentials of space {} in {}", report.space, report.root)];
    let Broker { url, state, remedy } = &report.broker;
    let state = match state {
        BrokerState::Up => "up",
        BrokerState::Down => "down",
        BrokerState::Refuses => "refuses",
    };
    let url = url.as_ref().map(|url| format!(" at {url}")).unwrap_or_default();
    let remedy = remedy.as_ref().map(|remedy| format!(": {}", printable(remedy))).unwrap_or_default();
    lines.push(format!("  {:<26} {state}{url}{remedy}", "broker"));
    for Credential { file, state, expires_at, remedy, .. } in &report.credentials {
        let when = expires_at.map(|exp| format!(", {}", until(exp, now))).unwrap_or_default();
        let remedy = remedy.as_ref().map(|remedy| format!(": {remedy}")).unwrap_or_default();
        lines.push(format!("  {file:<26} {}{when}{remedy}", state.as_str()));
    }
    if let Some(pass) = &report.fix {
        if !pass.online {
            lines.push(
                "no broker answered: what was due was signed offline, for the daemon's next start".into(),
            );
        }
        for result in &pass.results {
            let what = match (&result.error, result.skipped) {
                (Some(error), _) => format!("not renewed: {error}"),
                (None, Some(why)) => format!("left as it is ({why})"),
                (None, None) => "renewed".to_owned(),
            };
            lines.push(format!("  {:<26} {what}", result.file));
        }
        match pass.adoption.as_ref().and_then(|adoption| adoption["ok"].as_bool()) {
            Some(true) => lines.push("the delivery daemon took them over".into()),
            Some(false) => lines.push(
                "the delivery daemon did not take them over now: it reads them again before the old ones expire".into(),
            ),
            None => {}
        }
    }
    lines.join("\n")
}

/// `expires in 5 h`, `expired 2 d ago`.
fn until(exp: UnixSecs, now: UnixSecs) -> String {
    let span = |secs: u64| match secs {
        0..=119 => format!("{secs} s"),
        120..=7_199 => format!("{} min", secs / 60),
        7_200..=172_799 => format!("{} h", secs / 3_600),
        _ => format!("{} d", secs / 86_400),
    };
    if now >= exp {
        format!("expired {} ago", span(now.since(exp)))
    } else {
        format!("expires in {}", span(exp.since(now)))
    }
}

fn unknown(space: &Space, ctx: &Context) -> CliError {
    made_elsewhere(ctx, space, "trust records")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_names_what_mends_it_and_a_system_credential_is_only_rotated() {
        let space = Space::parse("q").unwrap();
        let remedy = |cred, state| {
            credential(&space, cred, CredHealth { state, exp: None, renew_at: None })
                .remedy
                .unwrap_or_default()
        };
        assert_eq!(remedy(DaemonCred::Delivery, CredState::Healthy), "");
        for state in [CredState::NearExpiry, CredState::Expired, CredState::Foreign] {
            assert!(remedy(DaemonCred::Delivery, state).contains("doctor auth --fix --space 'q'"));
        }
        for state in [CredState::NearExpiry, CredState::Expired, CredState::Foreign, CredState::Missing] {
            assert!(remedy(DaemonCred::ConnectionEvictor, state).contains("--rotate-sys --space 'q'"));
        }
        assert!(
            remedy(DaemonCred::MembershipRw, CredState::Missing).contains("cotal up --user-auth --space 'q'")
        );
    }

    #[test]
    fn a_time_is_told_in_the_unit_that_people_read() {
        let of = |exp, now| until(UnixSecs(exp), UnixSecs(now));
        assert_eq!(of(1_060, 1_000), "expires in 60 s");
        assert_eq!(of(1_000 + 3_600 * 3, 1_000), "expires in 3 h");
        assert_eq!(of(1_000, 1_000 + 86_400 * 4), "expired 4 d ago");
        assert_eq!(of(1_000, 1_000), "expired 0 s ago");
    }
}
