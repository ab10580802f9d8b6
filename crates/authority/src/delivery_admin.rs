//! The client of the delivery daemon's admin rail: evictor, claim oracle, principal oracle and membership inventory,
//! each call on a 60 s credential of its own (contract 07 §9, 03 §G "Oracle").

use std::collections::BTreeSet;

use async_trait::async_trait;
use cotal_broker::Connector;
use cotal_wire::{EpError, LifecycleUid, Principal};

use crate::{
    claim_oracle::{ClaimObservation, ClaimOracle, ClaimTuples, Verdict},
    evict::{Eviction, Evictor},
};

/// Asks the delivery daemon of a space.
#[derive(Clone)]
pub struct DeliveryAdmin {}

#[allow(clippy::unused_async, unused_variables)]
impl DeliveryAdmin {
    /// Over connections that `connector` opens and closes, one a call.
    pub fn new(connector: Connector) -> Self {
        todo!()
    }

    /// Whether any connection of a principal is there: `Gone` only under a complete sweep.
    pub async fn principal_liveness(&self, principal: &Principal) -> Verdict {
        todo!()
    }

    /// The concrete channels and families that durable membership rows of exactly this incarnation name, sorted.
    pub async fn lifecycle_memberships(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Vec<String>, EpError> {
        todo!()
    }
}

#[async_trait]
impl Evictor for DeliveryAdmin {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let _ = principals;
        todo!()
    }
}

#[async_trait]
impl ClaimOracle for DeliveryAdmin {
    async fn observe(&self, tuples: &ClaimTuples) -> ClaimObservation {
        let _ = tuples;
        todo!()
    }
}
