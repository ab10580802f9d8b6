//! What a retiring lifecycle still owes: the obligation drain with its repairs, the exact-pool cleaner, and the end of
//! what was issued to it (contract 07 §6.3 phases 4-7, §6.4, §8, §14; 03 §H.3).
//!
//! Neither holds a standing connection. A drain opens one mediator for its endpoint, a repair one connection for its
//! one write, a cleaning one cleaner and one executor: each may do its duty and nothing else, and is closed after it.
//! The policy drain of contract 07 §14 is not here: it ends a change of an endpoint's admission policy, which a manager
//! stages, and nothing of this project does. While one is staged, nothing is admitted.

mod cleaner;
mod decide;
mod fence;
mod mediator;
mod owed;
mod repair;
mod seats;
mod settle;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cotal_broker::Connector;
use cotal_wire::{
    Clock, Command, EndpointToken, EpError, LifecycleUid, OpDuty, OpId, Principal,
    endpoint_subject::TargetTriple, grants::drain::Pools, rows::SourceRef,
};

pub use decide::{
    Completion, EffectsStep, FactStep, ItemStep, PoolStep, SelfStep, SettleRequest, authorize_settlement,
    effects_step, fact_step, item_step, pool_step, self_step,
};
pub use owed::OwedRow;

use crate::{evict::Evictor, issued::IssuanceEnds, scanner::RecordsScanner, store::Watch};
use seats::Seats;

/// Shortest expiry of a cleaner's fetch.
pub const MIN_FETCH_EXPIRY: Duration = Duration::from_secs(1);
/// Passes without progress after which a pool is not quiescent.
pub const STALLED_PASSES: u32 = 10;

/// The incarnation that retires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retiring {
    /// The operation.
    pub op: OpId,
    /// Who.
    pub principal: Principal,
    /// Which incarnation.
    pub uid: LifecycleUid,
}

impl Retiring {
    /// The incarnation as facts name a target.
    pub fn target(&self) -> TargetTriple {
        TargetTriple { principal: self.principal.clone(), lifecycle_uid: self.uid.clone() }
    }
}

/// What draining one endpoint came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drained {
    /// Passes over the endpoint's rows.
    pub passes: u32,
    /// Provisional rows that were settled.
    pub settled_provisional: u64,
    /// Accepted rows with a commit of their own that were recovered.
    pub recovered_self: u64,
    /// Accepted rows whose route was verified.
    pub reconciled_accepted_epf: u64,
}

/// What cleaning one pool came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Items whose terminal fact was there already.
    pub acked_terminal: u64,
    /// Items that were settled `expired`.
    pub settled_expired: u64,
    /// Items that were settled `retired`.
    pub settled_retired: u64,
}

/// How patiently a pool is cleaned.
#[derive(Debug, Clone, Copy)]
struct Pace {
    fetch_expiry: Duration,
    stalled_passes: u32,
}

/// Drains obligations and cleans pools, each over connections of its own.
pub struct Drain {
    connector: Connector,
    issuance: IssuanceEnds,
    records: Arc<RecordsScanner>,
    clock: Arc<dyn Clock>,
    pace: Pace,
    seats: Seats,
    watch: Watch,
}

impl Drain {
    /// Over connections that `connector` opens, enumerating by the records scanner.
    ///
    /// One for each plane: it knows which of a retirement's principals are seated, and seats none twice.
    pub fn new(connector: Connector, records: Arc<RecordsScanner>, clock: Arc<dyn Clock>) -> Self {
        Self {
            issuance: IssuanceEnds::new(connector.clone()),
            connector,
            records,
            clock,
            pace: Pace { fetch_expiry: MIN_FETCH_EXPIRY, stalled_passes: STALLED_PASSES },
            seats: Seats::default(),
            watch: Watch::default(),
        }
    }

    /// Another patience of the cleaner, for tests: how long a fetch stays open, and how many passes may bring nothing. An
    /// expiry under [`MIN_FETCH_EXPIRY`] refuses every cleaning.
    #[cfg(any(test, feature = "failpoints"))]
    #[must_use]
    pub fn with_pace(mut self, fetch_expiry: Duration, stalled_passes: u32) -> Self {
        self.pace = Pace { fetch_expiry, stalled_passes };
        self
    }

    /// Watches every write. Once.
    #[cfg(any(test, feature = "failpoints"))]
    pub fn watch(&self, failpoint: &Arc<crate::failpoint::Failpoint>) {
        self.watch.set_failpoint(failpoint.clone());
    }

    /// Drains one endpoint's obligations under the target (contract 07 §14), repairing by the three repair principals.
    ///
    /// At most eight passes. Every refusal leaves the rows as they are; a drain that is run again goes on from them.
    pub async fn drain(&self, retiring: &Retiring, endpoint: &EndpointToken) -> Result<Drained, EpError> {
        mediator::drain(self, retiring, endpoint).await
    }

    /// Marks everything that was issued to the lifecycle as revoked (contract 03 §H.3 `retireSource`).
    ///
    /// Behind the frozen gate, which is the source's: from the freeze on nothing of it resolves. Any failure leaves the
    /// lifecycle retiring, so that a retirement that has ended has left nothing active, whoever ran it.
    pub(crate) async fn end_issuance(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<(), EpError> {
        let source = SourceRef::actor_ledger(&self.connector.space().token(), principal, uid);
        self.issuance.end(source).await.map(drop)
    }

    /// Cleans the pools of one endpoint to quiescence, then fences the cleaner and the executor on success and on
    /// failure (contract 07 §6.3 phase 7).
    pub async fn clean(
        &self,
        retiring: &Retiring,
        endpoint: &EndpointToken,
        pools: &BTreeSet<Command>,
        evictor: &dyn Evictor,
    ) -> Result<BTreeMap<Command, Cleaned>, EpError> {
        let pools = Pools::new(endpoint, pools)?;
        if self.pace.fetch_expiry < MIN_FETCH_EXPIRY {
            return Err(EpError::failed_precondition(format!(
                "clean: a fetch expiry of {} ms is under {} ms",
                self.pace.fetch_expiry.as_millis(),
                MIN_FETCH_EXPIRY.as_millis()
            )));
        }
        let mut cleaned = BTreeMap::new();
        for part in pools.by_credential(&self.connector.space().token()) {
            cleaned.extend(cleaner::clean(self, retiring, &part, evictor).await?);
        }
        Ok(cleaned)
    }
}

/// The applier, the reconciler and the canceller of an operation, in fence order (contract 07 §8).
pub fn repair_principals(op: &OpId) -> [Principal; 3] {
    OpDuty::REPAIRS.map(|duty| duty.principal(op))
}
