//! The authority plane, first part: mint writer, stores, connect reader, issuance log and its prune timer
//! (contract 05 §8.2 steps 1, 2, 4 and 16; §8.9; §8.10).

use std::{sync::Arc, time::Duration};

use cotal_broker::{Connection, Connector, Lifetime};
use cotal_wire::{
    Actor, Clock, CredentialId, DerivedOwner, Entropy, EpError, InfraRole, LifecycleUid, Principal, Space,
    grants::infra,
};
use futures::future::BoxFuture;
use tokio::{
    sync::{Mutex, watch},
    task::JoinHandle,
};

use crate::{
    connect_reader::ConnectReader,
    fence::Fence,
    issuance::IssuanceLog,
    prune_timer::{prune_failure, prune_on_timer},
    root_credential::ensure_root_credential,
    stores::AuthorityStores,
};

/// How long after a successful prune the next one runs, unless told otherwise (contract 05 §8.4).
pub const NATIVE_ISSUANCE_PRUNE: Duration = Duration::from_secs(60);

/// What a plane is opened from.
pub struct PlaneInputs {
    /// Opens the plane's connections.
    pub connector: Connector,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Entropy.
    pub entropy: Arc<dyn Entropy>,
    /// Prune interval; default [`NATIVE_ISSUANCE_PRUNE`].
    pub native_issuance_prune: Duration,
}

/// An open plane.
pub struct Plane {
    space: Space,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    fence: Arc<Fence>,
    writer: Connection,
    stores: AuthorityStores,
    reader: Arc<ConnectReader>,
    issuance: Arc<IssuanceLog>,
    stop_pruning: watch::Sender<bool>,
    closing: Mutex<Closing>,
}

/// What of the plane is still to be closed. A part that closed is not closed again by a retry.
struct Closing {
    pruner: Option<JoinHandle<()>>,
    reader: bool,
    writer: bool,
}

/// The managerInstance under which the service mints (contract 05 §13).
fn manager_instance(space: &Space) -> String {
    format!("auth-service:{space}")
}

impl Plane {
    /// Opens every step in order; a failed open unwinds in reverse.
    pub async fn open(inputs: PlaneInputs) -> Result<Arc<Self>, EpError> {
        let mut unwind = Unwind::default();
        match Self::open_steps(inputs, &mut unwind).await {
            Ok(plane) => Ok(plane),
            Err(refusal) => {
                unwind.run().await;
                Err(refusal)
            }
        }
    }

    async fn open_steps(inputs: PlaneInputs, unwind: &mut Unwind) -> Result<Arc<Self>, EpError> {
        let PlaneInputs { connector, clock, entropy, native_issuance_prune } = inputs;
        let space = connector.space().clone();
        let token = space.token();
        let fence = Arc::new(Fence::new());

        let label = InfraRole::AUTH_MINT.label(&space);
        let writer = connector
            .open(label, &|inbox| infra::authority_writer(&token, inbox), Lifetime::Renewing)
            .await?;
        unwind.push({
            let writer = writer.clone();
            Box::pin(async move { writer.close().await })
        });
        let stores = AuthorityStores::ensure(&writer, &space).await?;

        let reader = ConnectReader::open_under(&connector, clock.clone(), fence.clone()).await?;
        unwind.push({
            let reader = reader.clone();
            Box::pin(async move { reader.close().await })
        });

        let issuance = Arc::new(IssuanceLog::under(stores.clone(), clock.clone(), fence.clone()));
        // A corrupt row must fail the open. What is due already is purged by the timer's first run, after it.
        issuance
            .discover()
            .await
            .map_err(|refusal| EpError { message: prune_failure(&refusal), ..refusal })?;
        let (stop_pruning, stop) = watch::channel(false);
        let pruner = tokio::spawn(prune_on_timer(
            issuance.clone(),
            writer.state(),
            fence.clone(),
            native_issuance_prune,
            stop,
        ));

        Ok(Arc::new(Self {
            space,
            clock,
            entropy,
            fence,
            writer,
            stores,
            reader,
            issuance,
            stop_pruning,
            closing: Mutex::new(Closing { pruner: Some(pruner), reader: true, writer: true }),
        }))
    }

    /// The connect reader. It refuses once the plane is fenced.
    pub fn reader(&self) -> &Arc<ConnectReader> {
        &self.reader
    }

    /// The issuance log. It refuses once the plane is fenced.
    pub fn issuance(&self) -> &Arc<IssuanceLog> {
        &self.issuance
    }

    /// The proved stores, over the mint writer's connection.
    pub fn stores(&self) -> &AuthorityStores {
        &self.stores
    }

    /// Ensures the root credential under `auth-service:<space>`; refuses once fenced.
    pub async fn mint_connect_credential(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        uid: &LifecycleUid,
    ) -> Result<CredentialId, EpError> {
        self.fence.check()?;
        let principal = Principal::new(owner, actor.clone());
        let authority = manager_instance(&self.space);
        let id = ensure_root_credential(
            &self.stores,
            &principal,
            uid,
            &authority,
            self.clock.as_ref(),
            self.entropy.as_ref(),
        )
        .await?;
        // A plane that was fenced meanwhile hands nothing out any more.
        self.fence.check()?;
        Ok(id)
    }

    /// Resolves with the reason once the plane is fenced; never otherwise.
    pub async fn fenced(&self) -> String {
        self.fence.tripped().await
    }

    /// Closes: refuse, stop the timer and await its flight, reader, writer.
    ///
    /// A part that fails to close does not keep the next from closing; the first failure is returned, and a retry
    /// closes what is left.
    pub async fn close(&self) -> Result<(), EpError> {
        self.fence.begin_closing();
        let mut closing = self.closing.lock().await;
        self.stop_pruning.send_replace(true);
        if let Some(pruner) = closing.pruner.as_mut() {
            // The timer's own failures are the fence's; here it only has to be over.
            let _ = pruner.await;
            closing.pruner = None;
        }
        let mut result = Ok(());
        if closing.reader {
            match self.reader.close().await {
                Ok(()) => closing.reader = false,
                Err(refusal) => result = Err(refusal),
            }
        }
        if closing.writer {
            match self.writer.close().await {
                Ok(()) => closing.writer = false,
                Err(refusal) => result = result.and(Err(refusal)),
            }
        }
        result
    }
}

/// Closers of what an open has opened so far.
#[derive(Default)]
struct Unwind(Vec<BoxFuture<'static, Result<(), EpError>>>);

impl Unwind {
    fn push(&mut self, closer: BoxFuture<'static, Result<(), EpError>>) {
        self.0.push(closer);
    }

    /// Runs every closer, last opened first. Their failures are logged: the caller must hear why the open failed.
    async fn run(self) {
        for closer in self.0.into_iter().rev() {
            if let Err(refusal) = closer.await {
                tracing::warn!(%refusal, "auth-plane: unwinding a failed open");
            }
        }
    }
}
