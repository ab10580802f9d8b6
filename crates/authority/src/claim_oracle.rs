//! Whether the connections that a plane claim pins are still there: what the claim asks, and who answers
//! (contract 03 §E "Reclaim", 05 §8.5).

use async_trait::async_trait;
use cotal_broker::ConnectionTuple;
use cotal_wire::rows::{PlaneClaim, PlaneTuple};

/// The two pinned connections of a claim row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTuples {
    /// The ledger scanner's.
    pub ledger: ConnectionTuple,
    /// The records scanner's.
    pub records: ConnectionTuple,
}

impl ClaimTuples {
    /// The connections that a row pins.
    pub fn pinned_by(row: &PlaneClaim) -> Self {
        let tuple = |tuple: &PlaneTuple| ConnectionTuple {
            server_id: tuple.server_id().to_owned(),
            client_id: tuple.cid(),
            user_nkey: tuple.user_nkey().clone(),
        };
        Self { ledger: tuple(&row.ledger), records: tuple(&row.records) }
    }
}

/// What is known of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is there.
    Live,
    /// A complete sweep did not find it.
    Gone,
    /// Nobody can say.
    Unknown,
}

/// An observation of both, as the oracle echoed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimObservation {
    /// What was asked about, echoed.
    pub tuples: ClaimTuples,
    /// The ledger scanner's connection.
    pub ledger: Verdict,
    /// The records scanner's connection.
    pub records: Verdict,
    /// Whether every server answered.
    pub sweep_complete: bool,
    /// Why it is inconclusive, for the operator.
    pub note: Option<String>,
}

impl ClaimObservation {
    /// Nobody can say.
    pub fn unknown(tuples: &ClaimTuples, note: impl Into<String>) -> Self {
        Self {
            tuples: tuples.clone(),
            ledger: Verdict::Unknown,
            records: Verdict::Unknown,
            sweep_complete: false,
            note: Some(note.into()),
        }
    }
}

/// Observes the connections of a claim. It never fails: what cannot be said is unknown.
#[async_trait]
pub trait ClaimOracle: Send + Sync {
    /// The verdicts on exactly these two connections.
    async fn observe(&self, tuples: &ClaimTuples) -> ClaimObservation;
}
