//! Registering with the credential of `prepare` (contract 08 §8.4): the ceremony of `cotal_authority::registration`, run by
//! somebody who holds that credential and nothing else. Who served before is ended by the host, not from here.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use cotal_authority::{
    evict::{Eviction, Evictor},
    registration::{
        Deregistration, EndpointInstance, OwnName, Registration, Registry, deregister_instance,
        gate::{observe, provision},
        own::publish,
        register::{EVICTION_SWEEP, Serving},
        register_serving_instance,
    },
};
use cotal_broker::Connection;
use cotal_wire::{
    EpCode, EpError, InstanceId, OpId, Owner, Principal, error::detail::FOREIGN_SLOT_HELD,
    manager_authority::serve_principal, rows::ServiceSpec,
};
use serde_json::{Map, Value};

use super::{
    authority::HostAuthority,
    contract::{self, ManagerContract},
    error::RemoteError,
};

/// The condition of a foreign slot whose holder may be dead: the host can tell.
const IN_FLIGHT: &str = "in-flight";

/// Evicts through the host: only its maintenance may end a connection.
struct ThroughHost<'a> {
    authority: &'a HostAuthority,
    owner: &'a Owner,
}

#[async_trait]
impl Evictor for ThroughHost<'_> {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let asked: Vec<Principal> = principals.iter().cloned().collect();
        let verdicts = match self.authority.evict(self.owner, &asked).await {
            Ok(verdicts) => verdicts,
            Err(why) => {
                let why = why.to_string();
                return asked.iter().map(|principal| Eviction::unverified(principal, why.clone())).collect();
            }
        };
        let by_key: BTreeMap<_, _> =
            verdicts.into_iter().map(|verdict| (verdict.principal.key(), verdict)).collect();
        asked
            .into_iter()
            .map(|principal| match by_key.get(&principal.key()) {
                None => Eviction::unverified(&principal, "the host gave no verdict"),
                Some(verdict) => Eviction {
                    kicked: verdict.kicked,
                    remaining: verdict.remaining,
                    verified_gone: verdict.verified_gone,
                    scan_complete: verdict.scan_complete,
                    note: verdict.note.clone(),
                    principal,
                },
            })
            .collect()
    }
}

/// The instance of this manager's endpoint.
pub fn at(authority: &HostAuthority) -> Result<EndpointInstance, EpError> {
    Ok(EndpointInstance {
        endpoint: contract::endpoint()?.token(),
        instance: authority.identity().instance().clone(),
    })
}

/// Registers this manager's endpoint over the executor's connection, and says that it is ready.
///
/// The operation is the instance's own id, so that a start that was cut off is resumed by the next one. Of a foreign
/// registration that holds the slot the host is asked once whether it is dead; everything else is told as it is.
pub async fn register(
    connection: &Connection,
    authority: &HostAuthority,
    owner: &Owner,
    contract: &ManagerContract,
) -> Result<Serving, RemoteError> {
    let identity = authority.identity();
    let registry = Registry::of_participant(connection, identity.space());
    let at = at(authority)?;
    publish(&registry, contract.artifacts()).await?;

    let principal = serve_principal(owner, identity.instance());
    let stores = registry.stores();
    let mut seen = observe(stores, &at).await?;
    if seen.is_none() {
        // Another first start of the same identity may have been first, and further than we are.
        let provisioned = provision(stores, &at, &principal).await;
        seen = observe(stores, &at).await?;
        if seen.is_none() {
            provisioned?;
        }
    }
    if seen.is_some_and(|seen| *seen.gate.principal() != principal) {
        return Err(RemoteError::State(format!(
            "the gate of {at} was provisioned for another owner than {owner}: sign in as the person who made this manager, \
             or move its identity file away to make another one"
        )));
    }

    let name = contract::endpoint()?;
    let spec = ServiceSpec::new(&name, owner, vec![contract.cluster().clone()])?;
    let op = OpId::parse(identity.instance().as_str())
        .map_err(|_| EpError::internal("an instance's id is an operation's"))?;
    let evictor = ThroughHost { authority, owner };
    let request = Registration {
        at: &at,
        spec: &spec,
        registrant: owner,
        op: &op,
        names: &OwnName { name, owner: owner.clone() },
        evictor: &evictor,
        eviction_sweep: EVICTION_SWEEP,
    };
    let pools = BTreeSet::new();
    match register_serving_instance(&registry, &request, &pools, Map::new()).await {
        Err(refusal) => {
            let Some(holder) = holder_in_flight(&refusal) else { return Err(refusal.into()) };
            tracing::info!(%holder, "another manager's registration holds the slot; asking the host whether it is dead");
            authority.reconcile(owner, &holder).await?;
            Ok(register_serving_instance(&registry, &request, &pools, Map::new()).await?)
        }
        Ok(serving) => Ok(serving),
    }
}

/// The foreign holder of the slot, when the refusal says that one is registering.
fn holder_in_flight(refusal: &EpError) -> Option<InstanceId> {
    let detail = refusal.details.iter().find(|detail| {
        detail.get("kind").and_then(Value::as_str) == Some(FOREIGN_SLOT_HELD)
            && detail.get("condition").and_then(Value::as_str) == Some(IN_FLIGHT)
    })?;
    detail.get("holderInstanceId").and_then(Value::as_str).and_then(|id| InstanceId::parse(id).ok())
}

/// Takes this manager out of the registry, over the executor's connection. Its gate and its identity stay: a later start is
/// the next epoch of the same manager.
pub async fn deregister(connection: &Connection, authority: &HostAuthority) -> Result<bool, RemoteError> {
    let registry = Registry::of_participant(connection, authority.identity().space());
    let at = at(authority)?;
    match deregister_instance(registry.stores(), &at).await? {
        Deregistration::Removed { .. } => Ok(true),
        Deregistration::Absent => Ok(false),
        Deregistration::Superseded | Deregistration::RegistrationInFlight => Err(EpError::new(
            EpCode::Conflict,
            format!("{at} is being registered anew by another process; it is left to that one"),
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_foreign_holder_in_flight_is_asked_about() {
        let holder = "h".repeat(26);
        let refusal = |condition: &str| {
            EpError::conflict("held").with_detail(json!({
                "kind": FOREIGN_SLOT_HELD, "holderInstanceId": holder, "condition": condition,
            }))
        };
        assert_eq!(holder_in_flight(&refusal(IN_FLIGHT)).unwrap().as_str(), holder);
        for other in ["behind", "unreadable", "garbled"] {
            assert_eq!(holder_in_flight(&refusal(other)), None, "{other}");
        }
        assert_eq!(holder_in_flight(&EpError::conflict("moved")), None);
    }
}
