//! `cotal auth-service`: one space's service as a process (contract 05 §14).

use std::{
    future::Future,
    io::Write as _,
    path::PathBuf,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use cotal_callout::Crowd;
use cotal_wire::Space;
use cotal_workspace::{
    file,
    root::Root,
    secret_store::{FsSecretStore, SecretStore},
};
use futures::{StreamExt as _, stream};

use crate::{
    composition::{Chosen, Composition},
    files,
    flags::{AuthServiceArgs, Flags, read_flags, read_hold},
    handle::End,
    host::{
        Host,
        full::FullLanes,
        lane::{OPEN_PATIENCE, Threshold, UNENDED},
        manifest::parse_auth_host_manifest,
        watch::Reread,
    },
    lines::LineWriter,
    replica::{run_replica, run_replicas},
    served::{ServiceFlags, TakenDir, failure},
};

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
    tokio::pin!(shutdown);
    match flags {
        Flags::One(flags) => serve_one(flags, composition, hold, store, options, shutdown).await,
        Flags::Many(flags) => {
            let choosing = choose_store(store, options);
            let Some(store) = unless_told(shutdown.as_mut(), choosing).await else { return Ok(()) };
            let store = store?;
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
    // Not refused: one space may find room in less, with fewer guests at its faces.
    if let Err(why) = files::make_room(1) {
        tracing::warn!("{why}");
    }
    let preparing = async {
        // The directory before the store: a space that is not of this root is told as that.
        state_dir(&options.root, &flags.space).await?;
        let store = choose_store(store, options).await?;
        Ok::<_, DaemonError>((store, TakenDir::take(&options.root, &flags.space).await?))
    };
    let Some(prepared) = unless_told(shutdown.as_mut(), preparing).await else { return Ok(()) };
    let (store, taken) = prepared?;
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
            return match told_while_it_starts(&threshold, starting).await? {
                Ok(service) => service.close().await.map_err(DaemonError::of),
                Err(_) => Ok(()),
            };
        }
    };
    let mut announcing = pin!(service.announce());
    let announced = tokio::select! {
        line = announcing.as_mut() => Some(line.map(|line| (options.announce)(&line))),
        () = shutdown.as_mut() => None,
    };
    let end = match &announced {
        Some(Ok(())) => tokio::select! {
            end = service.ended() => Some(end),
            () = shutdown.as_mut() => None,
        },
        Some(Err(_)) | None => None,
    };
    let closed = service.close().await.map_err(DaemonError::of);
    announced.transpose()?;
    fatal(end.as_ref()).and(closed)
}

/// Which ends fail the process.
fn fatal(end: Option<&End>) -> Result<(), DaemonError> {
    match end.and_then(failure) {
        Some(sentence) => Err(DaemonError(sentence)),
        None => Ok(()),
    }
}

/// What a start does on disk before anything of it is open, for as long as it is wanted: a disk that hangs keeps nobody.
/// `None` once it is not.
pub(crate) async fn unless_told<T>(
    shutdown: Pin<&mut impl Future<Output = ()>>,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = shutdown => None,
    }
}

/// Waits for a start that is not wanted any more: what it has opened, only its end can close, and it need not answer first.
pub(crate) async fn told_while_it_starts<S>(
    threshold: &Threshold,
    starting: impl Future<Output = S>,
) -> Result<S, DaemonError> {
    threshold.bar();
    let ended = tokio::time::timeout(OPEN_PATIENCE, starting).await;
    ended.map_err(|_| DaemonError(UNENDED.to_owned()))
}

/// The space's state directory in this root.
pub(crate) async fn state_dir(root: &Root, space: &Space) -> Result<PathBuf, DaemonError> {
    let (root, space) = (root.clone(), space.clone());
    let found = file::blocking(move || root.user_auth_state_dir(&space)).await;
    found.flatten().map_err(DaemonError::of)
}

pub(crate) async fn choose_store(
    injected: Option<Arc<dyn SecretStore>>,
    options: &AuthServiceRuntimeOptions,
) -> Result<Arc<dyn SecretStore>, DaemonError> {
    let Some(store) = injected else {
        let root = options.root.clone();
        let opened = file::blocking(move || FsSecretStore::open(&root)).await.map_err(DaemonError::of)?;
        return Ok(Arc::new(opened.map_err(DaemonError::of)?));
    };
    let named = Arc::clone(&store);
    let named = file::blocking(move || named.identity().is_some()).await.map_err(DaemonError::of)?;
    if !named && options.secret_store.as_deref().is_none_or(str::is_empty) {
        return Err(DaemonError(format!(
            "an injected SecretStore must declare its identity, or {SECRET_STORE} must name it"
        )));
    }
    Ok(store)
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
    use cotal_testkit::{hung_disk::HungDisk, space::TestSpace};
    use parking_lot::Mutex;
    use tokio::{
        io::copy_bidirectional,
        net::{TcpListener, TcpStream},
        sync::Notify,
    };

    use super::*;
    use crate::served::tests::flags_of;

    fn options(root: &Root) -> AuthServiceRuntimeOptions {
        AuthServiceRuntimeOptions {
            root: root.clone(),
            startup_hold_ms: None,
            secret_store: None,
            announce: Arc::new(|_| ()),
            interactive_manager_selection: None,
        }
    }

    #[tokio::test]
    async fn a_service_that_is_told_to_stop_while_it_starts_answers_nobody() {
        let space = TestSpace::start("demo", "http://127.0.0.1:9/api/auth").await;
        let wire = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (server, broker) = (format!("nats://{}", wire.local_addr().unwrap()), space.server.port());
        let dials = Arc::new(Notify::new());
        let dialled = Arc::clone(&dials);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = wire.accept().await {
                dials.notify_one();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(("127.0.0.1", broker)).await?;
                    copy_bidirectional(&mut near, &mut far).await
                });
            }
        });
        let lines = Arc::new(Mutex::new(Vec::<String>::new()));
        let said = Arc::clone(&lines);
        let flags = flags_of(&space, &server, Arc::new(move |line| said.lock().push(line.to_owned())));
        let composition = Composition::new().check().unwrap();
        let stopped = dialled.notified();
        serve_one(flags, composition, None, None, &options(&space.root), stopped).await.unwrap();
        assert_eq!(*lines.lock(), [""; 0], "its callout was never started");
    }

    /// A service and a replica, of a space and of a manifest: none has opened anything yet.
    #[test]
    fn a_start_whose_disk_hangs_is_stopped_at_once_and_has_moved_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (root, manifest) = (Root::at(dir.path()), dir.path().join("spaces.json"));
        // The directory of an earlier version, which the first look at the space would move.
        let older = root.auth_dir().join("Demo");
        std::fs::create_dir_all(&older).unwrap();
        std::fs::write(older.join("idp.json"), "{}").unwrap();
        HungDisk::runtime().unwrap().block_on(async {
            let disk = HungDisk::hang();
            for (callout_only, of_a_manifest) in [(false, false), (true, false), (false, true), (true, true)]
            {
                let args = AuthServiceArgs {
                    space: (!of_a_manifest).then(|| "Demo".to_owned()),
                    spaces: of_a_manifest.then(|| manifest.to_str().unwrap().to_owned()),
                    server: Some("nats://127.0.0.1:1".to_owned()),
                    callout_only,
                    ..AuthServiceArgs::default()
                };
                let options = options(&root);
                let running = run_auth_service_until(&args, None, &options, async {});
                let ended = tokio::time::timeout(Duration::from_secs(60), running).await;
                assert_eq!(ended.expect("it is heard"), Ok(()), "{args:?}");
            }
            assert!(older.is_dir());
            disk.heal().await;
        });
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
}
