//! Where the rail reads: the requester's serving gate over the listener's own connection, the target's head and gate
//! over the authority's (contract 05 §11.2).

use std::sync::Arc;

use async_trait::async_trait;
use cotal_broker::kv::Bucket;
use cotal_wire::{
    EndpointToken, EpError, InstanceId, LifecycleUid, Principal, names,
    rows::{AgentGate, EndpointGate},
};

use super::handler::RetireOnRail;
use crate::{drain::Retiring, flights::Flight, head::HeadAt, retirements::Retirements, store::at_key};

pub(super) struct OverStores {
    /// The auth bucket, over the listener's connection.
    pub(super) gates: Bucket,
    pub(super) retirements: Arc<Retirements>,
}

#[async_trait]
impl RetireOnRail for OverStores {
    async fn serving_gate(
        &self,
        endpoint: &EndpointToken,
        instance: &InstanceId,
    ) -> Result<Option<EndpointGate>, EpError> {
        // The first read of a request: a fenced plane answers nothing.
        self.retirements.check_open()?;
        let key = names::epgate_key(endpoint, instance);
        let Some(entry) = self.gates.read_authority(&key).await? else { return Ok(None) };
        at_key(&key, EndpointGate::parse(&entry.value)).map(Some)
    }

    async fn head(&self, principal: &Principal) -> Result<Option<HeadAt>, EpError> {
        self.retirements.head(principal).await
    }

    async fn lifecycle_gate(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Option<AgentGate>, EpError> {
        self.retirements.settled_gate(principal, uid).await
    }

    fn join_or_start(&self, retiring: &Retiring) -> Result<Flight, EpError> {
        self.retirements.check_open()?;
        self.retirements.join_or_start(retiring)
    }
}
