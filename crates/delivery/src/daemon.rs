//! The daemon from start to end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cotal_broker::{
    Connection, CredsConnector, Custody, RenewableCreds,
    kv::Bucket,
    sys::{Coverage, KnownServers},
};
use cotal_wire::{
    Names, Principal,
    grants::delivery::nkey_principal,
    subject::{ControlService, Subjects},
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    inputs::{CredsKind, DeliveryInputs, StartRefusal, Timing},
    lease::Lease,
    rail::Rail,
    reload::Renewal,
    system::System,
};

/// Renewals in the life of a lease.
const RENEWALS: u32 = 4;

/// A running daemon. Dropped, it stops, which nobody then waits for.
pub struct Delivery {
    holder: Principal,
    stopping: CancellationToken,
    ended: watch::Receiver<Option<Ended>>,
}

/// How a daemon ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop, and released its lease.
    Stopped,
    /// Another holder has the lease, or the lease could not be renewed within its life.
    LeaseLost(String),
    /// The broker was away for too long, or takes the daemon's credential no more.
    BrokerGone(String),
}

impl Delivery {
    /// Starts: checks the credentials, sees itself through the observer, takes the lease, binds the rail, and says
    /// ready in the lease row. When this returns, the rail answers.
    pub async fn start(inputs: DeliveryInputs) -> Result<Self, StartRefusal> {
        let DeliveryInputs {
            space,
            servers,
            cluster,
            data_account,
            creds,
            store_identity,
            timing,
            clock,
            entropy,
        } = inputs;
        let system = Arc::new(System {
            space: space.clone(),
            servers: servers.clone(),
            data_account,
            creds,
            clock: Arc::clone(&clock),
            entropy,
            known: KnownServers::named(cluster),
        });
        let credentials = system.credentials();
        let own = credentials.of_data_account(CredsKind::Delivery).await.map_err(StartRefusal::Credential)?;
        credentials.observer().await.map_err(StartRefusal::Credential)?;
        if credentials.evictor().await.map_err(StartRefusal::Credential)?.is_none() {
            tracing::warn!("connection-evictor.creds is missing: connections can be seen and not ended");
        }
        let holder = nkey_principal(own.seed.public())
            .map_err(|error| StartRefusal::Credential(format!("delivery.creds: {error}")))?;

        let own = RenewableCreds::new(own);
        let connection = CredsConnector::new(&servers, Custody::new())
            .open_standing(format!("cotal:delivery:{space}"), &own)
            .await
            .map_err(|error| StartRefusal::Broker(error.message))?;
        see_itself(&system, &connection).await?;

        let names = Names::new(&space.token());
        let since = clock.now_millis().0;
        let bucket = Bucket::new(&connection, &names.delivery_bucket());
        let mut lease =
            Lease::acquire(bucket, holder.key(), since, timing.lease_ttl, timing.lease_wait).await?;

        let subjects = Subjects::new(&space.token());
        let requests = async {
            let filter = subjects.control_filter(ControlService::DeliveryAdmin);
            let requests = connection.subscribe(&filter, None).await?;
            connection.flush().await?;
            Ok(requests)
        };
        let renewal =
            Arc::new(Renewal { system: Arc::clone(&system), own, turn: tokio::sync::Mutex::new(()) });
        let rail = Arc::new(Rail {
            connection: connection.clone(),
            subjects: subjects.clone(),
            holder: holder.clone(),
            system,
            members: Bucket::new(&connection, &names.members_bucket()),
            renewal: Arc::clone(&renewal),
            store: store_identity,
            lease_until: Mutex::new(lease.lapses()),
            started: AtomicBool::new(false),
        });
        let requests = match requests.await {
            Ok(requests) => requests,
            Err::<_, cotal_wire::EpError>(error) => {
                lease.release().await;
                return Err(StartRefusal::Broker(error.message));
            }
        };
        let stopping = CancellationToken::new();
        let served =
            tokio::spawn(stopping.clone().run_until_cancelled_owned(Arc::clone(&rail).serve(requests)));
        if let Err(why) = lease.mark_ready().await {
            stopping.cancel();
            let _ = served.await;
            lease.release().await;
            return Err(StartRefusal::Broker(why));
        }
        rail.started.store(true, Ordering::Release);
        tracing::info!(%holder, "the delivery-admin rail answers");

        let (ended, watched) = watch::channel(None);
        let running = Running { connection, lease, rail, renewal, timing, stopping: stopping.clone() };
        tokio::spawn(async move {
            let how = running.run().await;
            let _ = served.await;
            ended.send_replace(Some(how));
        });
        Ok(Self { holder, stopping, ended: watched })
    }

    /// Who answers: the principal of the delivery credential, also the holder in the lease row.
    pub fn holder(&self) -> &Principal {
        &self.holder
    }

    /// Resolves when the daemon has ended.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let how = ended.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
        how.unwrap_or_else(|| Ended::BrokerGone("the daemon's task has ended".into()))
    }

    /// Stops answering, releases the lease, closes.
    pub async fn stop(&self) -> Ended {
        self.stopping.cancel();
        self.ended().await
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

/// A daemon must be visible to its own observer: else that one looks at another account, or at another broker, and
/// everything would be gone to it.
async fn see_itself(system: &System, connection: &Connection) -> Result<(), StartRefusal> {
    let sweep = system.sweep().await.map_err(StartRefusal::Credential)?;
    if let Coverage::Unsound(why) = &sweep.coverage {
        return Err(StartRefusal::Broker(format!("the observer sees nothing: {why}")));
    }
    let own = connection.user_nkey().as_str();
    if !sweep.connections.iter().any(|seen| seen.authorized_user.as_deref() == Some(own)) {
        return Err(match &sweep.coverage {
            // It may be connected to the very server that did not answer.
            Coverage::Partial(why) => StartRefusal::Broker(format!(
                "the observer does not see this daemon's own connection, and not every server answered: {why}"
            )),
            _ => StartRefusal::Credential(
                "membership-observer.creds does not see this daemon's own connection: it is of another broker or \
                 account"
                    .into(),
            ),
        });
    }
    if let Some(why) = sweep.note() {
        tracing::warn!(why, "no connection can be proved gone at the moment");
    }
    Ok(())
}

/// What keeps a daemon going.
struct Running {
    connection: Connection,
    lease: Lease,
    rail: Arc<Rail>,
    renewal: Arc<Renewal>,
    timing: Timing,
    stopping: CancellationToken,
}

impl Running {
    async fn run(mut self) -> Ended {
        let how = {
            let (timing, connection) = (self.timing, self.connection.clone());
            tokio::select! {
                () = self.stopping.cancelled() => Ended::Stopped,
                why = keep_lease(&mut self.lease, &self.rail, timing.lease_ttl) => Ended::LeaseLost(why),
                why = watch_broker(&connection, timing) => Ended::BrokerGone(why),
                () = connection.ended() => Ended::BrokerGone("the connection has ended".into()),
                () = self.renewal.run() => Ended::BrokerGone("the renewal has ended".into()),
            }
        };
        tracing::info!(?how, "the delivery daemon ends");
        self.stopping.cancel();
        if how == Ended::Stopped {
            self.lease.release().await;
        }
        let _ = self.connection.close().await;
        how
    }
}

/// Renews the lease until it is lost; the loss is what this returns.
async fn keep_lease(lease: &mut Lease, rail: &Rail, ttl: Duration) -> String {
    loop {
        tokio::time::sleep(ttl / RENEWALS).await;
        if let Err(why) = lease.renew().await {
            return why;
        }
        *rail.lease_until.lock() = lease.lapses();
    }
}

/// Looks at the broker until it has been away for too long.
async fn watch_broker(connection: &Connection, timing: Timing) -> String {
    let mut seen = Instant::now();
    loop {
        tokio::time::sleep(timing.broker_probe).await;
        if connection.answers(timing.broker_probe).await {
            seen = Instant::now();
        } else if seen.elapsed() >= timing.broker_gone {
            return format!("the broker has not answered for {} s", seen.elapsed().as_secs());
        }
    }
}
