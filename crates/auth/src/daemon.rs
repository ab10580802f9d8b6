//! `cotal auth-service`: one space's service as a process (contract 05 §14).

use std::{future::Future, io::Write as _, path::PathBuf, sync::Arc, time::Duration};

use cotal_broker::Servers;
use cotal_callout::{CalloutLimits, Crowd};
use cotal_wire::Space;
use cotal_workspace::{
    root::Root,
    secret_store::{FsSecretStore, SecretStore},
};
use futures::{StreamExt as _, stream};

use crate::{
    composition::{Chosen, Composition},
    files,
    handle::End,
    host::{Host, full::FullLanes, lane::Threshold, manifest::parse_auth_host_manifest, watch::Reread},
    lines::LineWriter,
    public_face::PublicFace,
    replica::{run_replica, run_replicas},
    served::{ServiceFlags, TakenDir, failure},
};

/// The flags of `cotal auth-service`, as they were given.
#[derive(Debug, Clone, Default)]
pub struct AuthServiceArgs {
    /// `--space`.
    pub space: Option<String>,
    /// `--server`.
    pub server: Option<String>,
    /// `--port`.
    pub port: Option<String>,
    /// `--exchange-public-port`.
    pub exchange_public_port: Option<String>,
    /// `--exchange-public-url`.
    pub exchange_public_url: Option<String>,
    /// `--exchange-trusted-proxy`.
    pub exchange_trusted_proxy: bool,
    /// `--advertised-server`.
    pub advertised_server: Option<String>,
    /// `--agent-provisioning-url`.
    pub agent_provisioning_url: Option<String>,
    /// `--auth-timeout`, in seconds.
    pub auth_timeout: Option<String>,
    /// `--callout-only`.
    pub callout_only: bool,
    /// `--spaces`.
    pub spaces: Option<String>,
    /// `--service-endpoints`.
    pub service_endpoints: bool,
}

/// What the process gives the daemon.
#[derive(Clone)]
pub struct AuthServiceRuntimeOptions {
    /// The workspace root.
    pub root: Root,
    /// [`STARTUP_HOLD`]: a delay between the scrub and the start, in milliseconds.
    pub startup_hold_ms: Option<String>,
    /// [`SECRET_STORE`]: names an injected store that does not name itself.
    pub secret_store: Option<String>,
    /// Where the one line goes that says what is served.
    pub announce: Arc<dyn Fn(&str) + Send + Sync>,
    /// Which manager an unpinned interactive caller is bound to: `local-primary`, or nothing for the usual selection.
    /// Any other value refuses before any effect. No flag sets it (see [`crate::InteractiveManagerSelection`]).
    pub interactive_manager_selection: Option<String>,
}

impl AuthServiceRuntimeOptions {
    /// From the process's working directory, environment and standard output.
    pub fn from_process() -> std::io::Result<Self> {
        Ok(Self {
            root: Root::discover(&std::env::current_dir()?)?,
            startup_hold_ms: std::env::var(STARTUP_HOLD).ok(),
            secret_store: std::env::var(SECRET_STORE).ok(),
            announce: stdout_line(),
            interactive_manager_selection: None,
        })
    }
}

/// One line on standard output; a closed one stops nothing.
pub fn stdout_line() -> Arc<dyn Fn(&str) + Send + Sync> {
    Arc::new(|line| {
        let _ = writeln!(std::io::stdout(), "{line}");
    })
}

/// Why the daemon ended with status 1: one sentence for standard error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("auth-service: {0}")]
pub struct DaemonError(pub String);

impl DaemonError {
    pub(crate) fn of(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Holds a start back, for tests of what a half-started service looks like.
pub const STARTUP_HOLD: &str = "COTAL_SMOKE_AUTH_STARTUP_HOLD_MS";
/// Names an injected secret store.
pub const SECRET_STORE: &str = "COTAL_SECRET_STORE";

/// Flags that parsed.
enum Flags {
    /// One space.
    One(ServiceFlags),
    /// Those of a manifest.
    Many(HostFlags),
}

/// The flags of a host.
struct HostFlags {
    manifest: PathBuf,
    servers: Servers,
    callout_limits: CalloutLimits,
}

/// Runs one space's service until SIGINT, SIGTERM or its own end; or, with `spaces`, those of a manifest, which SIGHUP
/// has read again. `store` replaces the filesystem store of the root.
pub async fn run_auth_service(
    args: &AuthServiceArgs,
    store: Option<Arc<dyn SecretStore>>,
    options: &AuthServiceRuntimeOptions,
) -> Result<(), DaemonError> {
    let unwatched = |error| DaemonError(format!("signals cannot be watched: {error}"));
    let signals = termination().map_err(unwatched)?;
    // A service of one space keeps what SIGHUP does by itself.
    let reread = if args.spaces.is_some() { hangups().map_err(unwatched)? } else { never() };
    let outcome = run(args, store, options, reread, signals).await;
    LineWriter::stderr().flush().await;
    outcome
}

/// The same, until `shutdown` resolves: for a host that watches signals itself. A manifest is then read again when it
/// has changed, and every 30 s.
pub async fn run_auth_service_until(
    args: &AuthServiceArgs,
    store: Option<Arc<dyn SecretStore>>,
    options: &AuthServiceRuntimeOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    run(args, store, options, never(), shutdown).await
}

async fn run(
    args: &AuthServiceArgs,
    store: Option<Arc<dyn SecretStore>>,
    options: &AuthServiceRuntimeOptions,
    reread: Reread,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    // Before any effect: a composition that asks for what there is not must not have begun.
    let composition = match &options.interactive_manager_selection {
        Some(selection) => Composition::new().interactive_manager_selection(selection),
        None => Composition::new(),
    };
    let composition = composition.check().map_err(DaemonError::of)?;
    if args.callout_only {
        return match &args.spaces {
            None => run_replica(args, store, options, shutdown).await,
            Some(manifest) => run_replicas(manifest, args, store, options, reread, shutdown).await,
        };
    }
    serve(read_flags(args)?, composition, store, options, reread, shutdown).await
}

/// Nobody tells a host of this process to read its manifest.
fn never() -> Reread {
    stream::pending().boxed()
}

async fn serve(
    flags: Flags,
    composition: Chosen,
    store: Option<Arc<dyn SecretStore>>,
    options: &AuthServiceRuntimeOptions,
    reread: Reread,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    let hold = read_hold(options.startup_hold_ms.as_deref())?;
    match flags {
        Flags::One(flags) => serve_one(flags, composition, hold, store, options, shutdown).await,
        Flags::Many(flags) => {
            let store = choose_store(store, options)?;
            let servers = flags.servers.to_string();
            let lanes = FullLanes {
                root: options.root.clone(),
                store,
                servers: flags.servers,
                composition,
                callout_limits: flags.callout_limits,
                crowd: Crowd::of_this_machine(),
                hold,
                callout_log: Arc::new(|line| LineWriter::stderr().line(line)),
                announce: Arc::clone(&options.announce),
            };
            let host = Host {
                manifest: flags.manifest,
                parse: parse_auth_host_manifest,
                servers,
                announce: Arc::clone(&options.announce),
            };
            host.run(lanes, reread, shutdown).await
        }
    }
}

async fn serve_one(
    flags: ServiceFlags,
    composition: Chosen,
    hold: Option<Duration>,
    store: Option<Arc<dyn SecretStore>>,
    options: &AuthServiceRuntimeOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    tokio::pin!(shutdown);
    // The directory before the store: a space that is not of this root is told as that.
    options.root.user_auth_state_dir(&flags.space).map_err(DaemonError::of)?;
    let store = choose_store(store, options)?;
    // Not refused: one space may find room in less, with fewer guests at its faces.
    if let Err(why) = files::make_room(1) {
        tracing::warn!("{why}");
    }
    let taken = TakenDir::take(&options.root, &flags.space).await?;
    if let Some(hold) = hold {
        tokio::select! {
            () = tokio::time::sleep(hold) => {}
            () = shutdown.as_mut() => return Ok(()),
        }
    }
    let threshold = Threshold::default();
    let starting = taken.start(flags, composition, &options.root, store, threshold.clone());
    tokio::pin!(starting);
    let service = tokio::select! {
        started = starting.as_mut() => started?,
        () = shutdown.as_mut() => {
            // What a start has opened, only its end can close; it need not answer first.
            threshold.bar();
            return match starting.await {
                Ok(service) => service.close().await.map_err(DaemonError::of),
                Err(_) => Ok(()),
            };
        }
    };
    let announced = service.announce().await.map(|line| (options.announce)(&line));
    let end = match &announced {
        Ok(()) => tokio::select! {
            end = service.ended() => Some(end),
            () = shutdown.as_mut() => None,
        },
        Err(_) => None,
    };
    let closed = service.close().await.map_err(DaemonError::of);
    announced?;
    fatal(end.as_ref()).and(closed)
}

/// Which ends fail the process.
fn fatal(end: Option<&End>) -> Result<(), DaemonError> {
    match end.and_then(failure) {
        Some(sentence) => Err(DaemonError(sentence)),
        None => Ok(()),
    }
}

pub(crate) fn choose_store(
    injected: Option<Arc<dyn SecretStore>>,
    options: &AuthServiceRuntimeOptions,
) -> Result<Arc<dyn SecretStore>, DaemonError> {
    match injected {
        Some(store)
            if store.identity().is_none() && options.secret_store.as_deref().is_none_or(str::is_empty) =>
        {
            Err(DaemonError(format!(
                "an injected SecretStore must declare its identity, or {SECRET_STORE} must name it"
            )))
        }
        Some(store) => Ok(store),
        None => Ok(Arc::new(FsSecretStore::open(&options.root).map_err(DaemonError::of)?)),
    }
}

/// Checks every flag before anything is touched (contract 05 §14 step 1).
fn read_flags(args: &AuthServiceArgs) -> Result<Flags, DaemonError> {
    if args.spaces.is_some() {
        refuse_beside_spaces(args)?;
    }
    if args.service_endpoints {
        return Err(DaemonError(
            "unimplemented: --service-endpoints is not served by this version; leave it out".to_owned(),
        ));
    }
    if let Some(manifest) = &args.spaces {
        if manifest.is_empty() {
            return Err(DaemonError("--spaces must name a manifest; add --spaces <manifest>".to_owned()));
        }
        return Ok(Flags::Many(HostFlags {
            manifest: PathBuf::from(manifest),
            servers: read_server(args)?,
            callout_limits: read_callout_limits(args)?,
        }));
    }
    Ok(Flags::One(ServiceFlags {
        space: read_space(args)?,
        servers: read_server(args)?,
        port: read_port("--port", args.port.as_deref())?.unwrap_or(0),
        public_face: read_public_face(args)?,
        callout_limits: read_callout_limits(args)?,
        crowd: None,
        callout_log: None,
    }))
}

/// What a manifest says for each space, no flag says for all of them (contract 08 §5).
pub(crate) fn refuse_beside_spaces(args: &AuthServiceArgs) -> Result<(), DaemonError> {
    let entry = "the manifest's entry says it";
    let refused = [
        ("--space", args.space.is_some(), "the manifest names the spaces"),
        (
            "--port",
            args.port.is_some(),
            "each space has a port of its own, recorded in its auth-service.json",
        ),
        ("--exchange-public-port", args.exchange_public_port.is_some(), entry),
        ("--exchange-public-url", args.exchange_public_url.is_some(), entry),
        ("--exchange-trusted-proxy", args.exchange_trusted_proxy, entry),
        ("--advertised-server", args.advertised_server.is_some(), entry),
        ("--agent-provisioning-url", args.agent_provisioning_url.is_some(), entry),
        ("--service-endpoints", args.service_endpoints, entry),
    ];
    match refused.iter().find(|(_, given, _)| *given) {
        Some((flag, _, why)) => Err(DaemonError(format!("{flag} is not taken beside --spaces: {why}"))),
        None => Ok(()),
    }
}

fn required<'v>(flag: &str, value: Option<&'v str>) -> Result<&'v str, DaemonError> {
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| DaemonError(format!("{flag} is required; add {flag} <value>")))
}

pub(crate) fn read_space(args: &AuthServiceArgs) -> Result<Space, DaemonError> {
    Space::parse(required("--space", args.space.as_deref())?).map_err(DaemonError::of)
}

pub(crate) fn read_server(args: &AuthServiceArgs) -> Result<Servers, DaemonError> {
    Servers::parse(required("--server", args.server.as_deref())?)
        .map_err(|why| DaemonError(format!("--server: {why}")))
}

pub(crate) fn read_callout_limits(args: &AuthServiceArgs) -> Result<CalloutLimits, DaemonError> {
    let mut limits = CalloutLimits::default();
    if let Some(raw) = &args.auth_timeout {
        limits.auth_timeout = read_auth_timeout(raw)?;
    }
    Ok(limits)
}

fn read_public_face(args: &AuthServiceArgs) -> Result<Option<PublicFace>, DaemonError> {
    let Some(port) = read_port("--exchange-public-port", args.exchange_public_port.as_deref())? else {
        for (flag, given) in [
            ("--exchange-public-url", args.exchange_public_url.is_some()),
            ("--exchange-trusted-proxy", args.exchange_trusted_proxy),
            ("--advertised-server", args.advertised_server.is_some()),
            ("--agent-provisioning-url", args.agent_provisioning_url.is_some()),
        ] {
            if given {
                return Err(DaemonError(format!(
                    "{flag} needs a public face; add --exchange-public-port <port>"
                )));
            }
        }
        return Ok(None);
    };
    PublicFace::on_port(port)
        .behind_trusted_proxy(args.exchange_trusted_proxy)
        .with_urls(
            args.exchange_public_url.as_deref(),
            args.advertised_server.as_deref(),
            args.agent_provisioning_url.as_deref(),
        )
        .map(Some)
        .map_err(DaemonError::of)
}

fn read_port(flag: &str, raw: Option<&str>) -> Result<Option<u16>, DaemonError> {
    raw.map(|raw| {
        digits(raw)
            .and_then(|raw| raw.parse().ok())
            .ok_or_else(|| DaemonError(format!("{flag} must be an integer from 0 to 65535, got \"{raw}\"")))
    })
    .transpose()
}

fn read_auth_timeout(raw: &str) -> Result<Duration, DaemonError> {
    digits(raw)
        .and_then(|raw| raw.parse::<u32>().ok())
        .filter(|seconds| *seconds > 0)
        .map(|seconds| Duration::from_secs(u64::from(seconds)))
        .ok_or_else(|| {
            DaemonError(format!(
                "--auth-timeout must be a positive whole number of seconds, the broker's own, got \"{raw}\""
            ))
        })
}

fn read_hold(raw: Option<&str>) -> Result<Option<Duration>, DaemonError> {
    raw.map(|raw| {
        digits(raw).and_then(|raw| raw.parse().ok()).map(Duration::from_millis).ok_or_else(|| {
            DaemonError(format!("{STARTUP_HOLD} must be a non-negative integer, got \"{raw}\""))
        })
    })
    .transpose()
}

/// A run of decimal digits: no sign, no space.
fn digits(raw: &str) -> Option<&str> {
    (!raw.is_empty() && raw.bytes().all(|b| b.is_ascii_digit())).then_some(raw)
}

#[cfg(unix)]
fn termination() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// SIGHUP, each time it comes.
fn hangups() -> std::io::Result<Reread> {
    use tokio::signal::unix::{SignalKind, signal};
    let hangups = signal(SignalKind::hangup())?;
    let each = stream::unfold(hangups, async |mut hangups| {
        hangups.recv().await?;
        Some(((), hangups))
    });
    Ok(each.boxed())
}

#[cfg(not(unix))]
fn termination() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

#[cfg(test)]
mod tests {
    use cotal_testkit::space::TestSpace;
    use parking_lot::Mutex;

    use super::*;

    fn args() -> AuthServiceArgs {
        AuthServiceArgs {
            space: Some("demo".into()),
            server: Some("nats://127.0.0.1:4222".into()),
            ..AuthServiceArgs::default()
        }
    }

    fn refusal(args: &AuthServiceArgs) -> String {
        read_flags(args).err().expect("it is refused").to_string()
    }

    fn one(args: &AuthServiceArgs) -> ServiceFlags {
        match read_flags(args) {
            Ok(Flags::One(flags)) => flags,
            Ok(Flags::Many(_)) => panic!("they name one space"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_an_entry_says_is_refused_beside_a_manifest() {
        let host = || AuthServiceArgs { space: None, spaces: Some("m".into()), ..args() };
        let Ok(Flags::Many(flags)) =
            read_flags(&AuthServiceArgs { auth_timeout: Some("7".into()), ..host() })
        else {
            panic!("--server and --auth-timeout are every lane's");
        };
        assert_eq!((flags.manifest, flags.callout_limits.auth_timeout), ("m".into(), Duration::from_secs(7)));
        for (flag, case) in [
            ("--space", AuthServiceArgs { space: Some("demo".into()), ..host() }),
            ("--port", AuthServiceArgs { port: Some("0".into()), ..host() }),
            ("--exchange-public-port", AuthServiceArgs { exchange_public_port: Some("1".into()), ..host() }),
            ("--exchange-public-url", AuthServiceArgs { exchange_public_url: Some("x".into()), ..host() }),
            ("--exchange-trusted-proxy", AuthServiceArgs { exchange_trusted_proxy: true, ..host() }),
            ("--advertised-server", AuthServiceArgs { advertised_server: Some("x".into()), ..host() }),
            (
                "--agent-provisioning-url",
                AuthServiceArgs { agent_provisioning_url: Some("x".into()), ..host() },
            ),
            ("--service-endpoints", AuthServiceArgs { service_endpoints: true, ..host() }),
        ] {
            let refused = refusal(&case);
            let expected = format!("auth-service: {flag} is not taken beside --spaces: ");
            assert!(refused.starts_with(&expected), "{refused}");
        }
        assert!(refusal(&AuthServiceArgs { server: None, ..host() }).contains("--server is required"));
    }

    #[tokio::test]
    async fn a_service_that_is_told_to_stop_while_it_starts_answers_nobody() {
        let space = TestSpace::start("demo", "http://127.0.0.1:9/api/auth").await;
        let lines = Arc::new(Mutex::new(Vec::<String>::new()));
        let said = Arc::clone(&lines);
        let flags = ServiceFlags {
            space: space.space.clone(),
            servers: Servers::parse(&space.server.url()).unwrap(),
            port: 0,
            public_face: None,
            callout_limits: CalloutLimits::default(),
            crowd: None,
            callout_log: Some(Arc::new(move |line| said.lock().push(line.to_owned()))),
        };
        let options = AuthServiceRuntimeOptions {
            root: space.root.clone(),
            startup_hold_ms: None,
            secret_store: None,
            announce: Arc::new(|_| ()),
            interactive_manager_selection: None,
        };
        let composition = Composition::new().check().unwrap();
        serve_one(flags, composition, None, None, &options, async {}).await.unwrap();
        assert_eq!(*lines.lock(), [""; 0], "its callout was never started");
    }

    #[test]
    fn space_and_server_are_required() {
        assert!(refusal(&AuthServiceArgs { space: None, ..args() }).contains("--space is required"));
        assert!(
            refusal(&AuthServiceArgs { server: Some(String::new()), ..args() })
                .contains("--server is required")
        );
        assert!(read_flags(&args()).is_ok());
    }

    #[test]
    fn credentials_in_the_server_are_an_input_error_that_does_not_print_them() {
        for bad in
            ["nats://u:s3cret@h:4222", "nats://h:4222,nats://s3cret@h", "http://u:s3cret@h", "s3cret@h y"]
        {
            let text = refusal(&AuthServiceArgs { server: Some(bad.into()), ..args() });
            assert!(text.starts_with("auth-service: --server: ") && !text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn a_lost_connection_a_fence_and_a_dead_callout_fail_the_process_and_a_closed_connection_does_not() {
        for end in [End::Fenced("x".into()), End::CalloutEnded, End::BrokerClosed(Some("unavailable".into()))]
        {
            assert!(fatal(Some(&end)).is_err(), "{end:?}");
        }
        for end in [None, Some(End::Closed), Some(End::BrokerClosed(None))] {
            assert_eq!(fatal(end.as_ref()), Ok(()));
        }
    }

    #[test]
    fn a_port_is_an_integer_from_0_to_65535() {
        for bad in ["65536", "-1", "+1", " 1", "1.0", "0x10", ""] {
            let text = refusal(&AuthServiceArgs { port: Some(bad.into()), ..args() });
            assert!(text.contains("--port must be an integer from 0 to 65535"), "{text}");
        }
        assert_eq!(one(&AuthServiceArgs { port: Some("65535".into()), ..args() }).port, 65_535);
    }

    #[test]
    fn public_flags_without_the_public_port_are_errors() {
        let cases = [
            AuthServiceArgs { exchange_public_url: Some("https://x".into()), ..args() },
            AuthServiceArgs { exchange_trusted_proxy: true, ..args() },
            AuthServiceArgs { advertised_server: Some("nats://x".into()), ..args() },
            AuthServiceArgs { agent_provisioning_url: Some("https://x".into()), ..args() },
        ];
        for case in cases {
            assert!(refusal(&case).contains("add --exchange-public-port"), "{case:?}");
        }
    }

    #[test]
    fn service_endpoints_refuse_as_unimplemented() {
        let case = AuthServiceArgs { service_endpoints: true, ..args() };
        assert!(refusal(&case).starts_with("auth-service: unimplemented: --service-endpoints"));
    }

    #[test]
    fn the_auth_timeout_is_in_whole_positive_seconds() {
        let flags = one(&AuthServiceArgs { auth_timeout: Some("10".into()), ..args() });
        assert_eq!(flags.callout_limits.auth_timeout, Duration::from_secs(10));
        for bad in ["0", "1.5", "x"] {
            assert!(
                refusal(&AuthServiceArgs { auth_timeout: Some(bad.into()), ..args() })
                    .contains("--auth-timeout")
            );
        }
    }
}
