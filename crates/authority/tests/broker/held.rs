//! A plane's claim and its two activated scanners, as an open plane holds them.

use std::sync::Arc;

use async_trait::async_trait;
use cotal_authority::{
    AuthorityStores,
    claim_oracle::{ClaimObservation, ClaimOracle, ClaimTuples, Verdict},
    plane_claim::{self, ClaimHold},
    scanner::{LedgerCandidate, LedgerScanner, RecordsCandidate, RecordsScanner},
};
use cotal_broker::{Connector, Lifetime};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{EpError, InfraRole, grants::infra};
use parking_lot::Mutex;

use crate::harness::World;

/// An owner of the plane. The stores are over its barrier connection.
pub(crate) struct Held {
    pub(crate) stores: AuthorityStores,
    pub(crate) hold: Arc<ClaimHold>,
    pub(crate) ledger: Arc<LedgerScanner>,
    pub(crate) records: Arc<RecordsScanner>,
}

impl Held {
    /// Provisions the stores and takes the claim.
    pub(crate) async fn open(world: &World) -> Self {
        world.stores().await;
        Self::open_asking(world, &Scripted::unknown()).await.unwrap()
    }

    pub(crate) async fn open_asking(world: &World, oracle: &dyn ClaimOracle) -> Result<Self, EpError> {
        Self::over(barrier(world).await, world, oracle).await
    }

    pub(crate) async fn over(
        stores: AuthorityStores,
        world: &World,
        oracle: &dyn ClaimOracle,
    ) -> Result<Self, EpError> {
        let ledger = LedgerCandidate::open(&world.connector).await.unwrap();
        let records = RecordsCandidate::open(&world.connector).await.unwrap();
        let acquired =
            plane_claim::acquire(&stores, &ledger, &records, oracle, &SystemClock, &SystemEntropy).await;
        let hold = match acquired {
            Ok(hold) => hold,
            Err(refusal) => {
                ledger.connection().close().await.unwrap();
                records.connection().close().await.unwrap();
                return Err(refusal);
            }
        };
        let ledger = Arc::new(ledger.activate(&hold).unwrap());
        let records = Arc::new(records.activate(&hold).unwrap());
        Ok(Self { stores, hold, ledger, records })
    }

    /// What a crash leaves: both connections end, and the row stays held.
    pub(crate) async fn crash(self) {
        self.close_scanners().await;
    }

    pub(crate) async fn close_scanners(&self) {
        self.ledger.connection().close().await.unwrap();
        self.records.connection().close().await.unwrap();
    }
}

/// The stores over a barrier connection of their own.
pub(crate) async fn barrier(world: &World) -> AuthorityStores {
    barrier_over(world, &world.connector).await
}

pub(crate) async fn barrier_over(world: &World, connector: &Connector) -> AuthorityStores {
    let token = world.space.token();
    let label = InfraRole::AUTH_BARRIER.label(&world.space);
    let connection = connector
        .open(label, &|inbox| infra::barrier_executor(&token, inbox), Lifetime::Renewing)
        .await
        .unwrap();
    AuthorityStores::bind(&connection, &world.space).await.unwrap()
}

/// An oracle that says what it is told to, and remembers what it was asked.
pub(crate) struct Scripted {
    ledger: Verdict,
    records: Verdict,
    sweep_complete: bool,
    echo: Option<ClaimTuples>,
    pub(crate) asked: Mutex<Vec<ClaimTuples>>,
}

impl Scripted {
    pub(crate) fn says(ledger: Verdict, records: Verdict, sweep_complete: bool) -> Self {
        Self { ledger, records, sweep_complete, echo: None, asked: Mutex::default() }
    }

    pub(crate) fn gone() -> Self {
        Self::says(Verdict::Gone, Verdict::Gone, true)
    }

    pub(crate) fn unknown() -> Self {
        Self::says(Verdict::Unknown, Verdict::Unknown, false)
    }

    /// Answers about these connections, whatever it is asked.
    pub(crate) fn echoing(mut self, tuples: &ClaimTuples) -> Self {
        self.echo = Some(tuples.clone());
        self
    }
}

#[async_trait]
impl ClaimOracle for Scripted {
    async fn observe(&self, tuples: &ClaimTuples) -> ClaimObservation {
        self.asked.lock().push(tuples.clone());
        ClaimObservation {
            tuples: self.echo.as_ref().unwrap_or(tuples).clone(),
            ledger: self.ledger,
            records: self.records,
            sweep_complete: self.sweep_complete,
            note: Some("the oracle's note".to_owned()),
        }
    }
}
