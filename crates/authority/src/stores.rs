//! Both authority stores, sealed: a value of this type means that their shape was proved (contract 07 §1).

use std::{sync::Arc, time::Duration};

use cotal_broker::{Connection, kv::Bucket, provision, shape};
use cotal_wire::{EpCode, EpError, InstanceId, LifecycleUid, Names, Space};
use tokio::{
    sync::{Mutex, MutexGuard, Notify},
    time::{Instant, sleep, timeout_at},
};

use crate::store::Store;

/// How many incarnations, and instances, may be minting at once in one process; see [`AuthorityStores::mint_turn`].
const MINT_TURNS: usize = 64;
/// How long whoever ends with its stores waits for a proof.
pub(crate) const OUTAGE: Duration = Duration::from_secs(5);
/// Pause between two tries of a proof that is in doubt.
const PROOF_PAUSE: Duration = Duration::from_millis(200);

/// The proved stores of one space over one connection. Clones share them.
#[derive(Clone)]
pub struct AuthorityStores {
    inner: Arc<Inner>,
}

struct Inner {
    space: Space,
    connection: Connection,
    records: Store,
    auth: Store,
    mint_turns: [Mutex<()>; MINT_TURNS],
    /// Told of an answer that stores which are what they were do not give.
    doubt: Notify,
    /// Whether this connection may ask a stream about itself.
    may_ask_info: bool,
}

impl AuthorityStores {
    /// Creates the stores if absent, then proves both (the mint writer).
    pub async fn ensure(writer: &Connection, space: &Space) -> Result<Self, EpError> {
        provision::ensure_authority_stores(writer, space).await?;
        Self::bind(writer, space).await
    }

    /// Proves both, records first.
    pub async fn bind(connection: &Connection, space: &Space) -> Result<Self, EpError> {
        let stores = Self::over(connection, space, true);
        stores.prove().await?;
        Ok(stores)
    }

    /// Both, as a participant of the space has them: its grant asks no stream about itself (contract 01 §6.9), so it
    /// stands on the proof of its host, which serves nothing before it has one.
    pub fn relied_on(connection: &Connection, space: &Space) -> Self {
        Self::over(connection, space, false)
    }

    fn over(connection: &Connection, space: &Space, may_ask_info: bool) -> Self {
        let names = Names::new(&space.token());
        let records = Store::new(Bucket::new(connection, &names.records_bucket()));
        Self {
            inner: Arc::new(Inner {
                space: space.clone(),
                connection: connection.clone(),
                auth: records.beside(Bucket::new(connection, &names.auth_bucket())),
                records,
                mint_turns: std::array::from_fn(|_| Mutex::new(())),
                doubt: Notify::new(),
                may_ask_info,
            }),
        }
    }

    /// Proves both shapes again, as after a reconnect: what was true of the old connection's server need not be
    /// true of the new one's.
    pub(crate) async fn prove(&self) -> Result<(), EpError> {
        let Inner { connection, records, auth, .. } = &*self.inner;
        shape::prove_authority_store(connection, records.bucket().name(), false).await?;
        shape::prove_authority_store(connection, auth.bucket().name(), true).await
    }

    /// Puts the proof in doubt when a store did not answer, or was not found: for [`Self::lost`]. What a store answered of
    /// its rows, a marker or a garbled one included, says nothing about its shape.
    pub(crate) fn doubt_after(&self, error: &EpError) {
        if matches!(error.code, EpCode::Unavailable | EpCode::NotFound) {
            self.inner.doubt.notify_one();
        }
    }

    /// Proves the stores again each time they are in doubt, and resolves, with why, when they fail that or give no
    /// proof for [`OUTAGE`]. It asks nothing while nobody doubts.
    pub(crate) async fn lost(&self) -> String {
        let label = self.inner.connection.label();
        loop {
            self.inner.doubt.notified().await;
            let until = Instant::now() + OUTAGE;
            loop {
                match timeout_at(until, self.prove()).await {
                    Ok(Ok(())) => break,
                    Ok(Err(refusal)) if refusal.code != EpCode::Unavailable => {
                        tracing::error!(space = %self.space(), %refusal, "the authority stores failed their proof");
                        return format!(
                            "{label}: the authority stores failed their proof; the log names the check"
                        );
                    }
                    Ok(Err(_)) if Instant::now() < until => sleep(PROOF_PAUSE).await,
                    Ok(Err(_)) | Err(_) => {
                        return format!(
                            "{label}: the authority stores gave no proof after a connect that they refused"
                        );
                    }
                }
            }
        }
    }

    /// Whether keys are listed by asking the stream, which creates no consumer either way.
    pub(crate) fn may_ask_info(&self) -> bool {
        self.inner.may_ask_info
    }

    /// The space.
    pub fn space(&self) -> &Space {
        &self.inner.space
    }

    /// `cotal_records_<S>`.
    pub fn records(&self) -> &Bucket {
        self.inner.records.bucket()
    }

    /// `cotal_auth_<S>`.
    pub fn auth(&self) -> &Bucket {
        self.inner.auth.bucket()
    }

    /// Durable round trips so far over these stores and their clones: reads, conditional writes and scans.
    pub fn round_trips(&self) -> u64 {
        self.inner.auth.requests()
    }

    /// The connection that these stores were proved over.
    pub(crate) fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    pub(crate) fn records_store(&self) -> &Store {
        &self.inner.records
    }

    pub(crate) fn auth_store(&self) -> &Store {
        &self.inner.auth
    }

    /// A turn to mint for an instance, from its first credential to the last: see [`crate::registration::serve`].
    pub async fn serve_turn(&self, instance: &InstanceId) -> MutexGuard<'_, ()> {
        self.turn(instance.as_str()).await
    }

    /// A turn to mint for `uid`. One process then races itself for no gate: of many exchanges of one incarnation
    /// one mints and the rest find its root. Correctness does not rest on it, the gate's touch does that.
    pub(crate) async fn mint_turn(&self, uid: &LifecycleUid) -> MutexGuard<'_, ()> {
        self.turn(uid.as_str()).await
    }

    async fn turn(&self, of: &str) -> MutexGuard<'_, ()> {
        // A uid is uniformly random base 36 at its end, and so is an instance: the last bytes spread them.
        let spread = of.bytes().rev().take(4).fold(0usize, |sum, b| sum * 37 + usize::from(b));
        self.inner.mint_turns[spread % MINT_TURNS].lock().await
    }
}
