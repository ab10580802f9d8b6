//! `cotal up`: brings up a space, or heals what of it has died (contract 04 §6.5, 08 §4).
//!
//! The order is fixed: nothing is written before the arguments and the broker's binary are known to be good, nothing
//! is pinned before the identity provider has answered, and nothing is announced before the auth service is ready.
//! What a run has started it stops again when it fails or is interrupted; what it found running it leaves alone.

mod broker;
mod daemon_creds;
mod idp;
mod lost;
mod mesh;
mod trust;

use cotal_broker::{Connector, custody::Custody};
use cotal_ledger::shell_quote;
use cotal_trust::idp::{IdpPin, KEYS_WITHIN};
use cotal_wire::{Space, delivery_admin::LEASE_TTL_SECS};
use cotal_workspace::{
    broker_config::{BrokerPolicy, MAX_AUTH_TIMEOUT_SECS, MAX_CONNECTIONS},
    file,
    material::{self, Discovery, UserAuthMaterial},
    printed::at,
    root::space_segment,
    secret_store::FsSecretStore,
};
use serde_json::json;

use crate::{
    actor::NARROW,
    cli::Output,
    context::{Context, DEFAULT_SPACE, space_flag},
    daemon::{Daemon, Running, STOPS_WITHIN},
    delivery_lease,
    exchange_flags::ExchangeFlags,
    given_url::GivenUrl,
    nats_server::{self, NatsServer},
    outcome::CliError,
    progress::Progress,
    ready,
    root_lock::RootLock,
    space_daemons,
    terminal::printable,
};

/// Said when listener flags meet a service that runs already (contract 08 §4).
fn keeps_listeners(space: &Space) -> String {
    format!(
        "the auth service was running and keeps its listeners: `cotal down{}`, then this command, changes them",
        at(space)
    )
}

/// Said when a public face is remembered.
fn forgets_the_face(space: &Space) -> String {
    let at = at(space);
    format!("`cotal down{at}`, then `cotal up --user-auth --no-exchange-public{at}`, forgets it")
}

/// The arguments that `--no-exchange-public` contradicts.
const EXCHANGE_FLAGS: [&str; 5] = [
    "exchange_public_port",
    "exchange_public_url",
    "exchange_trusted_proxy",
    "advertised_server",
    "agent_provisioning_url",
];

/// `cotal up`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal up --user-auth --dev-idp                                 try it out on this machine
  cotal up --user-auth --idp https://id.example/api/auth         pin your identity provider
  cotal up --user-auth                                           again, to heal what has died
  cotal up --user-auth --exchange-public-port 8443 --exchange-public-url https://auth.example
  cotal up --user-auth --no-exchange-public                      without a public face again
  cotal up --user-auth --rotate-sys                              after `cotal down`: new credentials of the system account")]
pub struct UpArgs {
    /// People log in at an identity provider; required, because it is the only kind of space that is served here.
    #[arg(long)]
    pub user_auth: bool,
    /// The identity provider's auth base URL; needed once, pinned from then on.
    #[arg(long, value_name = "URL", conflicts_with = "dev_idp")]
    pub idp: Option<GivenUrl>,
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
    /// The most connections that the broker takes, half-open ones included; 0 for its own default; remembered. Beyond it
    /// the broker refuses at accept, which keeps a storm of connects from starving those that it has begun.
    #[arg(long, value_name = "COUNT")]
    pub max_connections: Option<u64>,
    /// Make a new system account, and with it new credentials for every delivery daemon of this root. It needs the
    /// broker to be down. Without the flag, `up` does it when they are due.
    #[arg(long)]
    pub rotate_sys: bool,
    /// The public face; remembered.
    #[command(flatten)]
    pub exchange: ExchangeFlags,
    /// Forget the public face: every --exchange-*, --advertised-server and --agent-provisioning-url of earlier runs.
    #[arg(long, conflicts_with_all = EXCHANGE_FLAGS)]
    pub no_exchange_public: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// The arguments, checked.
struct Plan {
    space: Space,
    idp: idp::Choice,
    port: Option<u16>,
    auth_timeout: Option<u64>,
    max_connections: Option<u64>,
    rotate_sys: bool,
    face: Face,
}

/// What the command line says of the public face.
enum Face {
    /// These flags, and what is remembered for each one that is not among them.
    Flags(ExchangeFlags),
    /// None, and nothing is remembered any more.
    Off,
}

/// What this run has started, in order.
#[derive(Default)]
struct Started {
    running: Vec<Running>,
}

/// What is up at the end.
struct Up {
    server: String,
    discovery: Discovery,
    material: UserAuthMaterial,
    dev_idp: Option<idp::Development>,
    /// The flags of the public face that the next run goes on with.
    exchange: ExchangeFlags,
}

impl Plan {
    fn of(args: UpArgs) -> Result<Self, CliError> {
        if !args.user_auth {
            return Err(CliError::usage("only spaces with user auth are served: add --user-auth"));
        }
        let space = space_flag(&args.space)?;
        if args.auth_timeout.is_some_and(|seconds| !(1..=MAX_AUTH_TIMEOUT_SECS).contains(&seconds)) {
            return Err(CliError::usage(format!("--auth-timeout is 1 to {MAX_AUTH_TIMEOUT_SECS} seconds")));
        }
        if args.max_connections.is_some_and(|most| most != 0 && !MAX_CONNECTIONS.contains(&most)) {
            let (least, most) = MAX_CONNECTIONS.into_inner();
            return Err(CliError::usage(format!(
                "--max-connections is {least} to {most}, or 0 for the broker's own default"
            )));
        }
        let idp = match (args.idp, args.dev_idp) {
            (Some(url), _) => {
                IdpPin::from_url(&url).map_err(|refusal| CliError::usage(format!("--idp: {refusal}")))?;
                idp::Choice::Url(url)
            }
            (None, true) => idp::Choice::Development { auto_approve: args.auto_approve },
            (None, false) => idp::Choice::Pinned,
        };
        args.exchange.check_values().map_err(CliError::Usage)?;
        let face = if args.no_exchange_public { Face::Off } else { Face::Flags(args.exchange) };
        Ok(Self {
            space,
            idp,
            port: args.port,
            auth_timeout: args.auth_timeout,
            max_connections: args.max_connections,
            rotate_sys: args.rotate_sys,
            face,
        })
    }
}

impl Face {
    /// The flags of this run; `remembered` is asked for unless nothing of it counts.
    fn settle(
        &self,
        remembered: impl FnOnce() -> Result<ExchangeFlags, CliError>,
    ) -> Result<ExchangeFlags, CliError> {
        let Self::Flags(flags) = self else { return Ok(ExchangeFlags::default()) };
        let settled = flags.or(remembered()?);
        settled.check().map_err(CliError::Usage)?;
        Ok(settled)
    }
}

impl Started {
    /// Starts a daemon and remembers it.
    fn start(&mut self, daemon: &Daemon, ctx: &Context) -> Result<&mut Running, CliError> {
        self.running.push(daemon.start(ctx)?);
        self.running.last_mut().ok_or_else(|| CliError::failed(format!("{} was not started", daemon.name)))
    }

    /// Stops what was started, the last first.
    async fn stop(self, ctx: &Context) {
        for running in self.running.into_iter().rev() {
            if let Err(error) = running.stop().await {
                ctx.note(error);
            }
        }
    }
}

/// Brings the space up.
pub async fn run(args: UpArgs, ctx: &Context) -> Result<(), CliError> {
    let plan = Plan::of(args)?;
    let nats = nats_server::find(ctx).await?;
    mesh::refuse_taken(ctx, &plan.space)?;
    let _lock = RootLock::take(&ctx.root)?;
    let mut started = Started::default();
    let progress = Progress::start(ctx);
    let outcome = {
        let work = bring_up(&plan, ctx, &nats, &mut started, &progress);
        tokio::select! {
            outcome = work => outcome,
            () = interrupted() => Err(CliError::failed("interrupted: what this run had started is stopped again")),
        }
    };
    match outcome {
        Ok(up) => {
            drop(progress);
            report(&plan, ctx, &nats, &started, &up)
        }
        Err(error) => {
            if !started.running.is_empty() {
                progress.step(&format!(
                    "stopping what was started ({} s at most for each)",
                    STOPS_WITHIN.as_secs()
                ));
            }
            started.stop(ctx).await;
            Err(error)
        }
    }
}

async fn bring_up(
    plan: &Plan,
    ctx: &Context,
    nats: &NatsServer,
    started: &mut Started,
    progress: &Progress<'_>,
) -> Result<Up, CliError> {
    let space = &plan.space;
    let mesh = mesh::Mesh::read(ctx, space, progress)?;
    let exchange = plan.face.settle(|| mesh.exchange())?;
    let broker = broker::Broker::plan(ctx, nats, plan.port)?;
    let state_dir = ctx.root.user_auth_state_dir(space)?;
    broker.refuse_unknown(ctx).await?;
    let lost_idp = lost::refuse(ctx, space, &state_dir, &plan.idp, &mesh).await?;
    broker.refuse_new_space(ctx, space)?;

    // What an earlier run was writing when it was killed: copies of credentials among it.
    for dir in [ctx.root.cotal_dir(), ctx.root.auth_dir(), ctx.root.space_dir(space), state_dir.clone()] {
        file::remove_left_siblings(&dir)?;
    }
    let pin = material::load_idp_pin(&state_dir)?;
    if pin.is_none() {
        // A run that was killed before it had pinned one has left it, at a port that nobody knows any more.
        space_daemons::left_dev_idp(ctx, space, None).stop().await?;
    }
    let recorded = match (mesh.dev_idp(), &pin) {
        // A run that was cut short after it had pinned one has recorded nothing.
        (None, Some(pin)) => idp::left(pin, ctx)?,
        (recorded, _) => recorded,
    };
    let mut idp = idp::settle(&plan.idp, pin.as_ref(), lost_idp, recorded, space)?;
    if pin.is_none() && idp.url.is_none() {
        // Before anything is made of it: the name may be mistyped.
        return Err(material::no_idp(space).into());
    }
    if let Some(development) = &mut idp.development {
        development.start(mesh.dev_idp(), ctx, space, started, progress).await?;
    }
    if pin.is_none() {
        progress.wait("asking the identity provider for its keys", KEYS_WITHIN);
        idp::probe(&idp, ctx).await?;
    }
    let mut trust = trust::load_or_create(ctx, space)?;
    let material = material::prepare(
        &FsSecretStore::open(&ctx.root)?,
        &state_dir,
        space,
        idp.url.as_deref(),
        &trust.broker.operator,
        &trust.account.data_account(),
        &*ctx.clock,
        &*ctx.entropy,
    )
    .await?;

    let kept = mesh.broker_policy();
    let policy = BrokerPolicy {
        auth_timeout_secs: plan.auth_timeout.or(kept.auth_timeout_secs),
        max_connections: plan.max_connections.or(kept.max_connections).filter(|most| *most != 0),
    };
    daemon_creds::settle_system(ctx, space, &mut trust, broker.state(), plan.rotate_sys, progress).await?;
    daemon_creds::settle_data(ctx, space, &trust.account, progress).await?;
    let accounts = trust::accounts(ctx, &trust).await?;
    let (server, fresh) = broker.start(ctx, &trust.broker, &accounts, policy, started, progress).await?;
    progress.step("creating what the space keeps in its broker");
    broker::provision(ctx, &server, space, &trust, pin.is_some()).await?;

    if fresh {
        // Whatever served the space before has lost its broker, and its claim with it.
        let before =
            [space_daemons::auth_service(ctx, space, Vec::new()), space_daemons::delivery(ctx, space, None)];
        for daemon in before {
            if daemon.running()?.is_some() {
                progress.wait(&format!("stopping {} of before", daemon.name), STOPS_WITHIN);
            }
            daemon.stop().await?;
        }
    }
    // Before the auth service, which asks it whether an earlier service's connections are gone.
    progress.wait("waiting for the delivery daemon", ready::MOST);
    start_delivery(space, &server, ctx, &trust, started, progress).await?;
    progress.wait("waiting for the auth service", ready::MOST);
    let found = ready::found_auth_service(&state_dir).await.filter(|_| !fresh);
    let (discovery, exchange) = if let Some(discovery) = found {
        // What is remembered is what it was started with, whatever this line asks for.
        let kept = mesh.exchange().unwrap_or_default();
        if kept != exchange {
            progress.note(&keeps_listeners(space));
        }
        (discovery, kept)
    } else {
        let mut flags = vec!["--server".to_owned(), server.clone()];
        if let Some(seconds) = policy.auth_timeout_secs {
            flags.extend(["--auth-timeout".to_owned(), seconds.to_string()]);
        }
        flags.extend(exchange.to_arguments());
        (start_service(space, flags, ctx, &state_dir, started).await?, exchange)
    };
    mesh.record(
        ctx,
        &mesh::Run {
            server: &server,
            pin: &material.idp,
            discovery: &discovery,
            policy,
            development: idp.development.as_ref(),
            exchange: &exchange,
        },
    )?;
    Ok(Up { server, discovery, material, dev_idp: idp.development, exchange })
}

/// Starts the auth service, or waits for one that is on its way up.
async fn start_service(
    space: &Space,
    flags: Vec<String>,
    ctx: &Context,
    state_dir: &std::path::Path,
    started: &mut Started,
) -> Result<Discovery, CliError> {
    let daemon = space_daemons::auth_service(ctx, space, flags);
    if let Some(mut running) = daemon.running()? {
        return ready::auth_service(&mut running, state_dir).await;
    }
    ready::auth_service(started.start(&daemon, ctx)?, state_dir).await
}

/// Starts the delivery daemon, or makes sure that the one that runs is ready.
async fn start_delivery(
    space: &Space,
    server: &str,
    ctx: &Context,
    trust: &trust::Trust,
    started: &mut Started,
    progress: &Progress<'_>,
) -> Result<(), CliError> {
    let connector = Connector::new(
        server,
        space.clone(),
        trust.account.data_account(),
        Custody::new(),
        ctx.clock.clone(),
        ctx.entropy.clone(),
    );
    let daemon = space_daemons::delivery(ctx, space, Some(server));
    if let Some(mut running) = daemon.running()? {
        return ready::delivery(&mut running, &connector).await;
    }
    if ready::delivery_answers(&connector).await {
        // One that a unit started, here or elsewhere.
        return Ok(());
    }
    if let Ok(Some(left)) = delivery_lease::read(&connector).await {
        progress.note(&format!(
            "a delivery daemon that does not answer holds the lease ({}): one that was killed does for {LEASE_TTL_SECS} s, \
             and is waited out",
            printable(&left.holder)
        ));
    }
    ready::delivery(started.start(&daemon, ctx)?, &connector).await
}

fn report(plan: &Plan, ctx: &Context, nats: &NatsServer, started: &Started, up: &Up) -> Result<(), CliError> {
    let space = plan.space.as_str();
    let names: Vec<_> = started.running.iter().map(|running| running.daemon().name.as_str()).collect();
    let idp = &up.material.idp;
    let document = json!({
        "space": space,
        "root": ctx.root.path().display().to_string(),
        "server": up.server,
        "natsServer": nats.version.to_string(),
        "authService": { "url": up.discovery.url, "publicUrl": up.discovery.public_url },
        "idp": {
            "url": idp.url,
            "issuer": idp.issuer,
            "development": up.dev_idp.is_some(),
            "autoApprove": up.dev_idp.is_some_and(|idp| idp.auto_approve),
        },
        "started": names,
        "remembered": up.exchange.to_arguments(),
    });
    ctx.report(&document, || {
        let mut lines = vec![format!("space {space} is up at {} (nats-server {})", up.server, nats.version)];
        lines.push(format!("auth service: {}", up.discovery.url));
        lines.extend(up.discovery.public_url.iter().map(|url| format!("public exchange: {url}")));
        if up.exchange.any() {
            let words: Vec<_> = up.exchange.to_arguments().iter().map(|word| quoted(word)).collect();
            lines.push(format!("  remembered for the next `up`: {}", words.join(" ")));
            lines.push(format!("  {}", forgets_the_face(&plan.space)));
        }
        lines.push(format!("identity provider: {}", idp.url));
        if let Some(development) = &up.dev_idp {
            lines.push(
                "  a development one: anybody on this machine can be anybody. Not for production.".to_owned(),
            );
            if development.auto_approve {
                lines.push(format!("  {}", idp::approves(&plan.space)));
            }
        }
        lines.push(format!("state: {}", ctx.root.auth_dir().join(space_segment(&plan.space)).display()));
        lines.push(format!("next:\n  cotal login --idp {}", idp.url));
        lines.push(format!(
            "  cotal actor grant cli --sub <subject that login prints> {NARROW}{}",
            at(&plan.space)
        ));
        lines.push("  (or --full instead of the three lists: every channel, and spawning)".to_owned());
        lines.join("\n")
    })
}

/// A word of a command line as it can be typed again: a flag as it is, a value quoted.
fn quoted(word: &str) -> String {
    if word.starts_with("--") { word.to_owned() } else { shell_quote(word) }
}

/// Resolves when the process is asked to stop.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut stream) => {
                stream.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = terminated => {}
        () = interrupted => {}
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: UpArgs,
    }

    fn plan(words: &str) -> Result<Plan, CliError> {
        let words = std::iter::once("up").chain(words.split_whitespace());
        Plan::of(Line::try_parse_from(words).map_err(|e| CliError::usage(e.to_string()))?.args)
    }

    #[test]
    fn what_cannot_be_brought_up_is_refused_before_anything_is_touched() {
        for (words, told) in [
            ("", "--user-auth"),
            ("--user-auth --space .", "--space"),
            ("--user-auth --auth-timeout 0", "--auth-timeout"),
            ("--user-auth --auth-timeout 3601", "--auth-timeout"),
            ("--user-auth --no-exchange-public --exchange-public-port 1", "--exchange-public-port"),
            ("--user-auth --no-exchange-public --exchange-public-url https://a", "--exchange-public-url"),
            ("--user-auth --no-exchange-public --exchange-trusted-proxy", "--exchange-trusted-proxy"),
            ("--user-auth --no-exchange-public --advertised-server tls://a", "--advertised-server"),
            (
                "--user-auth --no-exchange-public --agent-provisioning-url https://a",
                "--agent-provisioning-url",
            ),
            ("--user-auth --idp https://a --dev-idp", "--dev-idp"),
            ("--user-auth --auto-approve", "--dev-idp"),
            ("--user-auth --port 65536", "--port"),
            ("--user-auth --idp id.example", "--idp"),
            ("--user-auth --idp http://id.example", "--idp: idp url must be https"),
            ("--user-auth --exchange-public-port 1 --exchange-public-url http://a", "--exchange-public-url"),
            ("--user-auth --exchange-public-url http://a", "--exchange-public-url must be an https:// URL"),
            ("--user-auth --exchange-public-port 1 --advertised-server a:4222", "--advertised-server"),
            (
                "--user-auth --exchange-public-port 1 --agent-provisioning-url ftp://a",
                "--agent-provisioning-url",
            ),
        ] {
            let error = plan(words).err().unwrap_or_else(|| panic!("{words} was accepted"));
            assert!(
                matches!(error, CliError::Usage(_)) && error.to_string().contains(told),
                "{words}: {error}"
            );
        }
        assert!(plan("--user-auth").is_ok());
    }

    #[test]
    fn every_command_that_up_offers_names_its_space() {
        for (name, flag) in [("main", ""), ("o'hara", r" --space 'o'\''hara'")] {
            let space = Space::parse(name).unwrap();
            let (face, idp) = (forgets_the_face(&space), idp::approves(&space));
            let down = format!("`cotal down{flag}`");
            for told in [keeps_listeners(&space), face.clone(), idp.clone(), idp::keeps_approving(&space)] {
                assert!(told.contains(&down), "{told}");
            }
            assert!(face.contains(&format!("`cotal up --user-auth --no-exchange-public{flag}`")), "{face}");
            assert!(idp.contains(&format!("`cotal up --user-auth --dev-idp{flag}`")), "{idp}");
        }
    }

    #[test]
    fn a_public_face_goes_on_as_remembered_until_it_is_turned_off() {
        let settle = |words: &str, remembered: &ExchangeFlags| {
            plan(words).unwrap_or_else(|e| panic!("{words}: {e}")).face.settle(|| Ok(remembered.clone()))
        };
        let none = ExchangeFlags::default();
        let face = settle("--user-auth --exchange-public-port 8443", &none).unwrap();
        assert_eq!(face.exchange_public_port, Some(8443));
        assert_eq!(settle("--user-auth", &face).unwrap(), face);
        assert!(settle("--user-auth --exchange-trusted-proxy", &face).unwrap().exchange_trusted_proxy);
        let error = settle("--user-auth --exchange-trusted-proxy", &none).unwrap_err();
        assert!(
            matches!(&error, CliError::Usage(text) if text.contains("--exchange-public-port")),
            "{error}"
        );
        let unreadable = || Err(CliError::failed("unreadable"));
        assert_eq!(
            plan("--user-auth --no-exchange-public")
                .unwrap_or_else(|e| panic!("{e}"))
                .face
                .settle(unreadable)
                .ok(),
            Some(none)
        );
    }
}
