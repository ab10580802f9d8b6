//! The self-authorized ceremony: a service registers an endpoint of its own (contract 05 §8.3).

use std::collections::BTreeSet;

use cotal_broker::{contract_store::Published, kv::WriteOutcome};
use cotal_wire::{
    Actor, DigestRef, EndpointName, Entropy, EpCode, EpError, InstanceId, Nkey, OpId, Owner, Principal,
    Revision, User, contract::Artifact, rows::ServiceSpec,
};
use serde_json::Map;

use super::{
    EndpointInstance, OwnName, Registry,
    gate::{self, GateAt},
    register::{
        EVICTION_SWEEP, Registered, Registration, confirm, register_service_instance,
        register_serving_instance,
    },
    serve::ServeGrant,
};
use crate::evict::Evictor;

/// What the actor of a host's serving principal starts with.
const HOST_SERVE: &str = "host_serve_";

/// An endpoint of the service itself.
#[derive(Debug, Clone)]
pub struct OwnEndpoint {
    /// Its name.
    pub name: EndpointName,
    /// The instance, by the identity that the caller keeps.
    pub instance: InstanceId,
    /// The serving principal: the gate is provisioned for it, once ever.
    pub principal: Principal,
    /// The closure digest of its cluster.
    pub cluster: DigestRef,
    /// Everything that the contract consists of: schemas, the cluster document, and their manifests.
    pub artifacts: Vec<Artifact>,
}

/// An endpoint of the service that is registered and may be served.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnRegistration {
    /// The instance.
    pub instance: InstanceId,
    /// The epoch to serve at.
    pub epoch: u64,
    /// The spec's revision.
    pub registration_revision: Revision,
    /// What may be served.
    pub grant: ServeGrant,
}

/// The serving principal of the auth plane: `local.<serve nkey>`.
pub fn plane_principal(serve: &Nkey<User>) -> Result<Principal, EpError> {
    let actor = Actor::parse(serve.as_str()).map_err(|_| EpError::internal("an nkey is an actor"))?;
    Ok(Principal::new(Owner::local(), actor))
}

/// The serving principal of a host's own endpoint: `local.host_serve_<instance>`. Nobody holds it: it names the host in
/// its gate, and no credential is minted for it (contract 05 §8.3).
pub fn host_principal(instance: &InstanceId) -> Result<Principal, EpError> {
    let actor = Actor::parse(&format!("{HOST_SERVE}{instance}"))
        .map_err(|_| EpError::internal("a host's serving principal is an actor"))?;
    Ok(Principal::new(Owner::local(), actor))
}

/// The operation that holds our gate, when a start of ours was cut off: it is run again.
///
/// A gate of our own principal is ours: whoever froze it held our identity. If that start is not gone after all, the two
/// share one freeze, and exactly one of them reopens it.
pub(crate) fn operation_at(seen: Option<&GateAt>, principal: &Principal) -> Option<OpId> {
    seen.filter(|seen| seen.gate.principal() == principal).and_then(|seen| seen.gate.registering().cloned())
}

/// Publishes the contract, provisions the gate if there is none, registers, and answers what may be served.
///
/// Each start is one epoch on and fences its predecessor, the first one stays at 0. `conflict` says that another start has
/// taken over, or that the gate is of another identity. `evictor` is asked only when credentials were minted for an
/// earlier start.
pub async fn register_own_endpoint(
    registry: &Registry,
    own: &OwnEndpoint,
    entropy: &dyn Entropy,
    evictor: &dyn Evictor,
) -> Result<OwnRegistration, EpError> {
    let start = OwnStart::prepare(registry, own, entropy).await?;
    let request = start.request(evictor);
    let serving = register_serving_instance(registry, &request, &BTreeSet::new(), Map::new()).await?;
    Ok(OwnRegistration {
        instance: own.instance.clone(),
        epoch: serving.registered.process_epoch,
        registration_revision: serving.registered.registration_revision,
        grant: serving.grant,
    })
}

/// The same ceremony for an endpoint that nobody serves by it: no serve grant is authorized and no status is written
/// (contract 05 §18). What is left is the incarnation: its epoch is committed, and its predecessor fenced.
///
/// `conflict` also says that a later start of this instance has registered before this one looked back.
pub async fn register_own_incarnation(
    registry: &Registry,
    own: &OwnEndpoint,
    entropy: &dyn Entropy,
    evictor: &dyn Evictor,
) -> Result<Registered, EpError> {
    let start = OwnStart::prepare(registry, own, entropy).await?;
    let registered = register_service_instance(registry, &start.request(evictor)).await?;
    confirm(gate::observe(registry.stores(), &start.at).await?.as_ref(), &registered)?;
    Ok(registered)
}

/// A start of an endpoint of one's own, up to its registration.
struct OwnStart {
    at: EndpointInstance,
    owner: Owner,
    spec: ServiceSpec,
    op: OpId,
    names: OwnName,
}

impl OwnStart {
    /// Publishes, provisions, and finds out whether an earlier start was cut off.
    async fn prepare(registry: &Registry, own: &OwnEndpoint, entropy: &dyn Entropy) -> Result<Self, EpError> {
        let stores = registry.stores();
        publish(registry, &own.artifacts).await?;

        let at = EndpointInstance { endpoint: own.name.token(), instance: own.instance.clone() };
        let mut seen = gate::observe(stores, &at).await?;
        if seen.is_none() {
            // Another first start of the same identity may have been first, and further than we are.
            let provisioned = gate::provision(stores, &at, &own.principal).await;
            seen = gate::observe(stores, &at).await?;
            if seen.is_none() {
                provisioned?;
            }
        }
        if seen.as_ref().is_some_and(|seen| *seen.gate.principal() != own.principal) {
            return Err(EpError::conflict(format!(
                "registration: the gate of {at} was provisioned for another serving identity; put back the identity file \
                 that it was made with"
            )));
        }

        let owner = Owner::local();
        let spec = ServiceSpec::new(&own.name, &owner, vec![own.cluster.clone()])?;
        let op = operation_at(seen.as_ref(), &own.principal).unwrap_or_else(|| OpId::mint(entropy));
        let names = OwnName { name: own.name.clone(), owner: owner.clone() };
        Ok(Self { at, owner, spec, op, names })
    }

    fn request<'a>(&'a self, evictor: &'a dyn Evictor) -> Registration<'a> {
        Registration {
            at: &self.at,
            spec: &self.spec,
            registrant: &self.owner,
            op: &self.op,
            names: &self.names,
            evictor,
            eviction_sweep: EVICTION_SWEEP,
        }
    }
}

/// Publishes artifacts that are not there yet.
pub async fn publish(registry: &Registry, artifacts: &[Artifact]) -> Result<(), EpError> {
    for artifact in artifacts {
        let published = registry.contracts().publish(artifact).await?;
        if published == Published::Now {
            let subject = registry.contracts().subject(artifact.digest());
            // An artifact has no revision of its own; what the failpoints see is that it landed.
            let landed = WriteOutcome::Written(Revision(1));
            if let WriteOutcome::Ambiguous(why) = registry.stores().auth_store().noted(&subject, landed).await
            {
                return Err(EpError::new(EpCode::Unavailable, format!("{subject}: {why}")));
            }
        }
    }
    Ok(())
}
