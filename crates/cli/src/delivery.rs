//! `cotal delivery`: the delivery daemon of a space in the foreground (contract 08 §9).

use std::{pin::pin, sync::Arc};

use async_trait::async_trait;
use cotal_delivery::{CredsKind, CredsSource, Delivery, DeliveryInputs, Ended, StartRefusal, Timing};
use cotal_wire::{Space, delivery_admin};
use cotal_workspace::{
    daemon_creds::{self, DaemonCred},
    file,
    printed::at,
    root::Root,
    secret_store::{FsSecretStore, SecretStore as _, StoreIdentity},
};
use zeroize::Zeroizing;

use crate::{
    DISK_PATIENCE,
    context::{Context, DEFAULT_SPACE, not_here, space_flag},
    given_url::GivenUrl,
    outcome::CliError,
    space_broker,
};

/// How long a start that is not wanted any more may take to its end: one that has the lease has little left to do.
const START_GRACE: std::time::Duration = std::time::Duration::from_secs(2);
/// How much longer than a lease lives a start waits for one that a dead daemon has left.
const LEASE_SLACK: std::time::Duration = std::time::Duration::from_secs(5);

/// `cotal delivery`
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Run the delivery daemon of a space in the foreground.\n\n\
        It proves connections gone for the auth service: which of its pinned connections are there, whether an actor is \
        connected, and it ends an actor's connections. `cotal up` starts one; a space needs exactly one. It does NOT carry \
        the durable message backstop: no fan-out of durable channels and no inbox reader.",
    after_help = "\
Examples:
  cotal delivery                                             the space \"main\" of this root
  cotal delivery --space main --server nats://127.0.0.1:4222
  cotal delivery --cluster-server n1 --cluster-server n2 --cluster-server n3"
)]
pub struct DeliveryArgs {
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// The broker's URL; by default that of the last `up` of this root.
    #[arg(long, value_name = "URL")]
    pub server: Option<GivenUrl>,
    /// The name of a server of the cluster; once for each. Then nothing is proved gone unless exactly these answered.
    #[arg(long, value_name = "NAME")]
    pub cluster_server: Vec<String>,
}

/// Where the daemon reads its credentials: the store that renews two of them, and the files of the other two.
struct Source {
    root: Root,
    space: Space,
    store: FsSecretStore,
}

/// Runs until SIGINT, SIGTERM or its own end. Its pid file is there once it holds the lease.
pub async fn run(args: DeliveryArgs, ctx: &Context) -> Result<(), CliError> {
    let space = space_flag(&args.space)?;
    let stopping = termination()?;
    tokio::pin!(stopping);
    let (of, machine) = (space.clone(), ctx.clone());
    // Nothing is open yet, and a disk that hangs keeps nobody who is to stop.
    let inputs = tokio::select! {
        inputs = file::blocking(move || read_inputs(args, of, &machine)) => inputs??,
        () = stopping.as_mut() => return Ok(()),
    };
    let servers = inputs.servers.clone();
    let mut starting = pin!(Delivery::start(inputs));
    let daemon = tokio::select! {
        started = starting.as_mut() => started.map_err(|refusal| told(&refusal))?,
        () = stopping.as_mut() => {
            // One that has the lease by now is ready in a moment, and can let go of it.
            if let Ok(Ok(daemon)) = tokio::time::timeout(START_GRACE, starting).await {
                daemon.stop().await;
            }
            return Ok(());
        }
    };
    let pid_file = ctx.root.daemon_files("delivery", Some(&space)).pid;
    let pid = format!("{}\n", std::process::id());
    let (at, own) = (pid_file.clone(), pid.clone());
    let mut writing = pin!(file::blocking(move || file::write_atomic(&at, own.as_bytes())));
    let written = tokio::select! {
        written = writing.as_mut() => Some(written.flatten()),
        () = stopping.as_mut() => {
            // It is removed below, once it is there.
            let _ = tokio::time::timeout(DISK_PATIENCE, writing).await;
            None
        }
    };
    let announced = written.map(|written| {
        written?;
        ctx.say(format!("delivery: space \"{space}\" on {servers}, holder {}", daemon.holder()))
    });
    let ended = match announced {
        Some(Ok(())) => tokio::select! {
            ended = daemon.ended() => ended,
            () = stopping.as_mut() => daemon.stop().await,
        },
        Some(Err(error)) => {
            daemon.stop().await;
            return Err(error);
        }
        None => daemon.stop().await,
    };
    let left = file::blocking(move || {
        // One that another daemon has written meanwhile stays.
        if file::read_text(&pid_file)?.is_some_and(|text| *text == *pid) {
            file::remove_if_present(&pid_file)?;
        }
        Ok::<_, std::io::Error>(())
    });
    tokio::time::timeout(DISK_PATIENCE, left)
        .await
        .map_err(|_| {
            CliError::failed(
                "delivery: the daemon has stopped, and its pid file could not be removed: the disk hangs",
            )
        })?
        .flatten()?;
    match ended {
        Ended::Stopped => Ok(()),
        Ended::LeaseLost(why) => Err(CliError::failed(format!("delivery: the lease was lost: {why}"))),
        Ended::BrokerGone(why) => Err(CliError::failed(format!("delivery: the broker is gone: {why}"))),
    }
}

/// What it starts from.
fn read_inputs(args: DeliveryArgs, space: Space, ctx: &Context) -> Result<DeliveryInputs, CliError> {
    let servers = match args.server {
        Some(server) => server.into(),
        None => space_broker::server(ctx, &space)?.ok_or_else(|| no_broker(&space, ctx))?,
    };
    daemon_creds::adopt_legacy(&ctx.root, &space)?;
    let data_account =
        daemon_creds::read_membership(&ctx.root, &space)?.ok_or_else(|| unprovisioned(&space, ctx))?;
    let store = FsSecretStore::open(&ctx.root)?;
    let store_identity = store.identity().map(wire_identity).ok_or_else(|| {
        CliError::failed(
            "delivery: the secret store has no readable identity: restore .cotal/store.id from a backup",
        )
    })?;
    let timing = Timing::default();
    Ok(DeliveryInputs {
        space: space.clone(),
        servers,
        cluster: args.cluster_server,
        data_account,
        creds: Arc::new(Source { root: ctx.root.clone(), space, store }),
        store_identity,
        // A daemon that was killed leaves its lease behind: it is waited out, never refused.
        timing: Timing { lease_wait: timing.lease_ttl + LEASE_SLACK, ..timing },
        clock: ctx.clock.clone(),
        entropy: ctx.entropy.clone(),
    })
}

#[async_trait]
impl CredsSource for Source {
    async fn read(&self, which: CredsKind) -> Result<Option<Zeroizing<String>>, String> {
        let cred = match which {
            CredsKind::Delivery => DaemonCred::Delivery,
            CredsKind::MembershipRw => DaemonCred::MembershipRw,
            CredsKind::MembershipObserver => DaemonCred::MembershipObserver,
            CredsKind::ConnectionEvictor => DaemonCred::ConnectionEvictor,
        };
        if cred.of_system_account() {
            let path = cred.path(&self.root, &self.space);
            let read = file::blocking(move || file::read_text(&path)).await.flatten();
            return read.map_err(|error| error.to_string());
        }
        self.store.get(&cred.key(&self.space)).await.map_err(|error| error.to_string())
    }
}

/// The identity of a store as the admin rail spells it.
pub fn wire_identity(identity: StoreIdentity) -> delivery_admin::StoreIdentity {
    match identity {
        StoreIdentity::Fs { root, id } => delivery_admin::StoreIdentity::Fs { root, id: Some(id) },
        StoreIdentity::Injected { coordinate } => delivery_admin::StoreIdentity::Injected { coordinate },
    }
}

fn told(refusal: &StartRefusal) -> CliError {
    CliError::failed(format!("delivery: {refusal}"))
}

fn no_broker(space: &Space, ctx: &Context) -> CliError {
    not_here(ctx, space, || {
        format!(
            "delivery: no broker of space {:?} is known here: pass --server <url>, or run this where `cotal up` ran",
            space.as_str()
        )
    })
}

fn unprovisioned(space: &Space, ctx: &Context) -> CliError {
    let at = at(space);
    not_here(ctx, space, || {
        format!(
            "delivery: space {:?} has no credentials for a delivery daemon here: `cotal down{at}`, then `cotal up \
             --user-auth{at}`, makes them",
            space.as_str()
        )
    })
}

fn termination() -> Result<impl Future<Output = ()>, CliError> {
    use tokio::signal::unix::{SignalKind, signal};
    let cannot = |e: std::io::Error| CliError::failed(format!("delivery: signals cannot be watched: {e}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::sink;

    use cotal_testkit::hung_disk::HungDisk;
    use cotal_workspace::root::Home;
    use futures::poll;

    use super::*;

    #[test]
    fn a_start_waits_for_its_disk_off_the_runtimes_threads() {
        let tmp = tempfile::tempdir().unwrap();
        let (home, root) = (Home::at(tmp.path()), Root::at(tmp.path()));
        let ctx = Context::of_parts(home, root, "cotal".into(), |_| None, sink(), sink());
        HungDisk::runtime().unwrap().block_on(async {
            let disk = HungDisk::hang();
            let args = DeliveryArgs { space: "main".into(), server: None, cluster_server: Vec::new() };
            let mut running = pin!(run(args, &ctx));
            assert!(poll!(running.as_mut()).is_pending());
            disk.heal().await;
            let refused = running.await.unwrap_err().to_string();
            assert!(refused.contains("there is no space \"main\""), "{refused}");
        });
    }
}
