//! Both authority stores, sealed: a value of this type means that their shape was proved (contract 07 §1).

use std::sync::Arc;

use cotal_broker::{Connection, kv::Bucket, provision, shape};
use cotal_wire::{EpError, LifecycleUid, Names, Space};
use tokio::sync::{Mutex, MutexGuard};

use crate::store::Store;

/// How many incarnations may be minting at once in one process; see [`AuthorityStores::mint_turn`].
const MINT_TURNS: usize = 64;

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
}

impl AuthorityStores {
    /// Creates the stores if absent, then proves both (the mint writer).
    pub async fn ensure(writer: &Connection, space: &Space) -> Result<Self, EpError> {
        provision::ensure_authority_stores(writer, space).await?;
        Self::bind(writer, space).await
    }

    /// Proves both, records first.
    pub async fn bind(connection: &Connection, space: &Space) -> Result<Self, EpError> {
        let names = Names::new(&space.token());
        let records = Store::new(Bucket::new(connection, &names.records_bucket()));
        let stores = Self {
            inner: Arc::new(Inner {
                space: space.clone(),
                connection: connection.clone(),
                auth: records.beside(Bucket::new(connection, &names.auth_bucket())),
                records,
                mint_turns: std::array::from_fn(|_| Mutex::new(())),
            }),
        };
        stores.prove().await?;
        Ok(stores)
    }

    /// Proves both shapes again, as after a reconnect: what was true of the old connection's server need not be
    /// true of the new one's.
    pub(crate) async fn prove(&self) -> Result<(), EpError> {
        let Inner { connection, records, auth, .. } = &*self.inner;
        shape::prove_authority_store(connection, records.bucket().name(), false).await?;
        shape::prove_authority_store(connection, auth.bucket().name(), true).await
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

    /// A turn to mint for `uid`. One process then races itself for no gate: of many exchanges of one incarnation
    /// one mints and the rest find its root. Correctness does not rest on it, the gate's touch does that.
    pub(crate) async fn mint_turn(&self, uid: &LifecycleUid) -> MutexGuard<'_, ()> {
        // A uid is uniformly random base 36 at its end, so its last bytes spread it.
        let spread = uid.as_str().bytes().rev().take(4).fold(0usize, |sum, b| sum * 37 + usize::from(b));
        self.inner.mint_turns[spread % MINT_TURNS].lock().await
    }
}
