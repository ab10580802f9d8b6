//! What a retiring lifecycle still owes: the obligation drain with its repairs, and the exact-pool cleaner
//! (contract 07 §6.3 phases 4-7, §6.4, §8, §14).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cotal_broker::Connector;
use cotal_wire::{Clock, Command, EndpointToken, EpError, LifecycleUid, OpId, Principal};

use crate::{evict::Evictor, scanner::RecordsScanner};

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

/// Drains obligations and cleans pools, each over connections of its own.
pub struct Drain {}

#[allow(clippy::unused_async, unused_variables)]
impl Drain {
    /// Over connections that `connector` opens, enumerating by the records scanner.
    pub fn new(connector: Connector, records: Arc<RecordsScanner>, clock: Arc<dyn Clock>) -> Self {
        todo!()
    }

    /// Drains one endpoint's obligations under the target (contract 07 §14), repairing by the three repair principals.
    pub async fn drain(&self, retiring: &Retiring, endpoint: &EndpointToken) -> Result<Drained, EpError> {
        todo!()
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
        todo!()
    }
}

/// The applier, the reconciler and the canceller of an operation, in fence order (contract 07 §8).
#[allow(unused_variables)]
pub fn repair_principals(op: &OpId) -> [Principal; 3] {
    todo!()
}
