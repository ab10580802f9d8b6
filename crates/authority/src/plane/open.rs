//! Opening, in the contract's order; what was opened is closed in reverse when a later step fails (contract 05 §8.2).
//!
//! In one place it departs from that order: the plane registers its endpoint once the claim is won, and not before it
//! asks. A registration fences its predecessor, and an open that is refused because another process owns the plane must
//! not take that one's endpoint away.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use cotal_broker::{Connection, Connector, Lifetime};
use cotal_wire::{
    EndpointName, Entropy, EpError, InfraRole, Space,
    grants::{endpoint_serve, infra},
};
use futures::{FutureExt, future::BoxFuture};
use tokio::{
    sync::{Mutex, Notify, watch},
    time::{Instant, sleep},
};

use super::{
    Plane, PlaneIdentity, PlaneInputs,
    barriers::{Barriers, end_what_is_owed, remember_what_ended},
    close::Closing,
    instances::Instances,
    managers::ManagerGates,
    sessions::SessionSweep,
};
use crate::{
    barrier::BarrierDeps,
    claim_oracle::ClaimOracle,
    connect_reader::ConnectReader,
    delivery_admin::DeliveryAdmin,
    drain::Drain,
    evict::Evictor,
    fence::Fence,
    intents::resume_owed,
    issuance::IssuanceLog,
    plane_claim::{self, ClaimHold, ClaimRefusal, When},
    prune_timer::{prune_failure, prune_on_timer},
    rail::{AuthIncarnation, AuthRail, contract::AuthContract},
    registration::{OwnEndpoint, OwnRegistration, Registry, own::plane_principal, register_own_endpoint},
    retirements::Retirements,
    scanner::{LedgerCandidate, RecordsCandidate},
    scanner_death::watch_scanners,
    session_pairs::SessionReconciler,
    shared_sweeps::{MayEvict, SharedSweeps},
    stores::AuthorityStores,
};

/// Pause between two looks at a predecessor of which nobody can say whether it is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// After how long an open begins no further operation of an earlier run: the plane runs them once it serves.
const BOOT_PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn open(inputs: PlaneInputs) -> Result<Arc<Plane>, EpError> {
    let (mut unwind, space) = (Unwind::default(), inputs.connector.space().clone());
    match open_steps(inputs, &mut unwind).await {
        Ok(plane) => Ok(plane),
        Err(refusal) => {
            unwind.run(&space).await;
            Err(refusal)
        }
    }
}

async fn open_steps(inputs: PlaneInputs, unwind: &mut Unwind) -> Result<Arc<Plane>, EpError> {
    let PlaneInputs { connector, clock, entropy, identity, native_issuance_prune, claim_patience, past } =
        inputs;
    let space = connector.space().clone();
    let token = space.token();
    let fence = Arc::new(Fence::new());

    let label = InfraRole::AUTH_MINT.label(&space);
    let writer =
        connector.open(label, &|inbox| infra::authority_writer(&token, inbox), Lifetime::Renewing).await?;
    unwind.push_connection(&writer);
    let stores = AuthorityStores::ensure(&writer, &space).await?;

    let reader = ConnectReader::open_under(&connector, clock.clone(), fence.clone()).await?;
    unwind.push({
        let reader = reader.clone();
        async move { reader.close().await }
    });

    let label = InfraRole::AUTH_BARRIER.label(&space);
    let barrier =
        connector.open(label, &|inbox| infra::barrier_executor(&token, inbox), Lifetime::Renewing).await?;
    unwind.push_connection(&barrier);
    // Before the candidates, so that unwinding closes them first: a claim is given back when nothing can scan any more.
    let claimed: Arc<OnceLock<Arc<ClaimHold>>> = Arc::default();
    unwind.push({
        let claimed = claimed.clone();
        async move {
            match claimed.get() {
                Some(hold) => hold.release().await,
                None => Ok(()),
            }
        }
    });
    let ledger = LedgerCandidate::open(&connector).await?;
    unwind.push({
        let connection = ledger.connection().clone();
        async move { connection.close().await }
    });
    let records = RecordsCandidate::open(&connector).await?;
    unwind.push({
        let connection = records.connection().clone();
        async move { connection.close().await }
    });

    let barrier_stores = AuthorityStores::bind(&barrier, &space).await?;
    let delivery = DeliveryAdmin::new(connector.clone());
    let claimant =
        Claimant { stores: &barrier_stores, ledger: &ledger, records: &records, oracle: &delivery };
    let hold = claimant.acquire(clock.as_ref(), entropy.as_ref(), claim_patience).await?;
    // Set once: this is the only place that does.
    let _ = claimed.set(hold.clone());
    fence.guard(hold.clone());
    let (ledger_connection, records_connection) = (ledger.connection().clone(), records.connection().clone());
    let ledger = Arc::new(ledger.activate(&hold)?);
    let records = Arc::new(records.activate(&hold)?);
    watch_scanners(
        hold.clone(),
        ledger_connection.clone(),
        records_connection.clone(),
        {
            let fence = fence.clone();
            move || fence.is_closing()
        },
        {
            let fence = fence.clone();
            move |death| {
                fence.trip(&death.copy);
            }
        },
    );
    unwind.push({
        let fence = fence.clone();
        async move {
            fence.begin_closing();
            Ok(())
        }
    });
    ledger.bonded_to(&space)?;
    records.bonded_to(&space)?;

    let deps = BarrierDeps {
        stores: barrier_stores.clone(),
        drain: Arc::new(Drain::new(connector.clone(), records.clone(), clock.clone())),
        ledger,
        records,
        evictor: Arc::new(SharedSweeps::over(Arc::new(delivery.clone()), still_held(&hold))),
        sessions: Some(Arc::new(SessionReconciler::new(connector.clone(), barrier_stores.clone()))),
    };
    let gates = ManagerGates::over(deps.ledger.clone());
    let instances = Instances::counted_by(deps.ledger.clone());
    let session_bound = Arc::new(Notify::new());
    let sweep = SessionSweep {
        stores: stores.clone(),
        ledger: deps.ledger.clone(),
        fence: fence.clone(),
        clock: clock.clone(),
        bound: session_bound.clone(),
    };
    let boot = resume_owed(&deps, past.as_deref(), BOOT_PATIENCE).await?;
    let barriers = Arc::new(Barriers::new(deps, connector.clone()));
    barriers.owe(&boot.owed);
    unwind.push({
        let (barriers, hold) = (barriers.clone(), hold.clone());
        async move {
            hold.end_scans();
            barriers.end().await;
            Ok(())
        }
    });
    let retirements = Arc::new(Retirements::under(barrier_stores, fence.clone(), {
        let barriers = barriers.clone();
        Arc::new(move |retiring| {
            let barriers = barriers.clone();
            async move { barriers.retire(retiring).await }.boxed()
        })
    }));
    let registration = register(&connector, &identity, entropy.as_ref(), &delivery).await?;
    let serves = AuthIncarnation { instance: registration.instance.clone(), epoch: registration.epoch };
    let rail = Arc::new(AuthRail::open(&connector, &serves, retirements.clone()).await?);
    unwind.push({
        let rail = rail.clone();
        async move { rail.close().await }
    });

    let issuance = Arc::new(IssuanceLog::under(stores.clone(), clock.clone(), fence.clone()));
    // A corrupt row must fail the open. What is due already is purged by the timer's first run, after it.
    issuance.discover().await.map_err(|refusal| EpError { message: prune_failure(&refusal), ..refusal })?;
    // A scanner that ended while the plane opened has tripped the fence: what opens then is closed.
    fence.check()?;
    let (stop, stopped) = watch::channel(false);
    let pruner = tokio::spawn(prune_on_timer(
        issuance.clone(),
        writer.state(),
        fence.clone(),
        native_issuance_prune,
        stopped.clone(),
    ));
    let debtor = tokio::spawn(end_what_is_owed(barriers.clone(), retirements.clone(), stopped.clone()));
    let sweeper = tokio::spawn(sweep.run(stopped.clone()));
    let rememberer = past.map(|past| tokio::spawn(remember_what_ended(barriers.clone(), past, stopped)));
    let tasks = [pruner, debtor, sweeper].into_iter().chain(rememberer).collect();

    Ok(Arc::new(Plane {
        space,
        clock,
        entropy,
        fence,
        writer,
        barrier,
        stores,
        reader,
        issuance,
        hold,
        barriers,
        delivery,
        gates,
        instances,
        session_bound,
        retirements,
        boot,
        registration,
        rail,
        closing: Mutex::new(Closing::new(tasks, stop, ledger_connection, records_connection)),
    }))
}

/// An eviction may have waited for its sweep: whether the claim is still held is asked again when it is sent.
fn still_held(hold: &Arc<ClaimHold>) -> MayEvict {
    let hold = hold.clone();
    Arc::new(move || {
        let hold = hold.clone();
        async move { hold.assert_held(When::BeforeEviction).await }.boxed()
    })
}

/// Registers the plane's own endpoint over a connection that ends right after (contract 05 §8.2 step 3, §8.3).
async fn register(
    connector: &Connector,
    identity: &PlaneIdentity,
    entropy: &dyn Entropy,
    evictor: &dyn Evictor,
) -> Result<OwnRegistration, EpError> {
    let name = EndpointName::auth();
    let contract = AuthContract::new()?;
    let own = OwnEndpoint {
        principal: plane_principal(&identity.serve)?,
        instance: identity.instance.clone(),
        cluster: contract.cluster_digest().clone(),
        artifacts: contract.artifacts(),
        name,
    };
    let (token, endpoint) = (connector.space().token(), own.name.token());
    let connection = connector
        .open(
            InfraRole::AUTH_REGISTRATION.label(connector.space()),
            &|inbox| endpoint_serve::registration_executor(&token, inbox, &endpoint, &own.instance),
            Lifetime::Renewing,
        )
        .await?;
    let registered = match Registry::bind(&connection, connector.space()).await {
        Ok(registry) => register_own_endpoint(&registry, &own, entropy, evictor).await,
        Err(refusal) => Err(refusal),
    };
    let closed = connection.close().await;
    registered.and_then(|registered| closed.map(|()| registered))
}

/// Who takes the claim.
struct Claimant<'a> {
    stores: &'a AuthorityStores,
    ledger: &'a LedgerCandidate,
    records: &'a RecordsCandidate,
    oracle: &'a dyn ClaimOracle,
}

impl Claimant<'_> {
    /// Takes it, asking again for a while when nobody can say whether the predecessor is gone. Every other refusal
    /// stands at once.
    async fn acquire(
        &self,
        clock: &dyn cotal_wire::Clock,
        entropy: &dyn cotal_wire::Entropy,
        patience: Duration,
    ) -> Result<Arc<ClaimHold>, EpError> {
        let began = Instant::now();
        let mut told = false;
        loop {
            let taken =
                plane_claim::acquire(self.stores, self.ledger, self.records, self.oracle, clock, entropy)
                    .await;
            let refusal = match taken {
                Err(refusal)
                    if ClaimRefusal::of(&refusal) == Some(ClaimRefusal::Unknown)
                        && began.elapsed() < patience =>
                {
                    refusal
                }
                settled => return settled,
            };
            if !told {
                told = true;
                tracing::warn!(
                    space = %self.stores.space(), %refusal,
                    "auth-plane: asking for {} s whether the earlier auth service is gone",
                    patience.as_secs()
                );
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// Closers of what an open has opened so far.
#[derive(Default)]
struct Unwind(Vec<BoxFuture<'static, Result<(), EpError>>>);

impl Unwind {
    fn push(&mut self, closer: impl Future<Output = Result<(), EpError>> + Send + 'static) {
        self.0.push(closer.boxed());
    }

    fn push_connection(&mut self, connection: &Connection) {
        let connection = connection.clone();
        self.push(async move { connection.close().await });
    }

    /// Runs every closer, last opened first. Their failures are logged: the caller must hear why the open failed.
    async fn run(self, space: &Space) {
        for closer in self.0.into_iter().rev() {
            if let Err(refusal) = closer.await {
                tracing::warn!(%space, %refusal, "auth-plane: unwinding a failed open");
            }
        }
    }
}
