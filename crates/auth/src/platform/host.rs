//! The incarnations of the process that embeds the service: each start is one epoch on and fences its predecessor
//! (contract 05 §18).

use std::{sync::Arc, time::Duration};

use cotal_authority::registration::{
    OwnEndpoint, Registered, Registry, own::host_principal, register_own_incarnation,
};
use cotal_broker::Lifetime;
use cotal_wire::{
    EpError, InfraRole, InstanceId, grants::endpoint_serve, rows::EndpointGate, time::MAX_SAFE_INTEGER,
};
use tokio::sync::OwnedRwLockReadGuard;

use super::{HostEndpoint, control::observe};
use crate::handle::AuthService;

/// How often [`HostDoor::await_host_fence`] looks at the gate: no credential at runtime may watch the auth bucket.
pub const HOST_FENCE_POLL: Duration = Duration::from_secs(1);

/// A registered incarnation of the host. Its epoch is a committed coordinate: it is current until the next start
/// registers, which may be before the caller reads it. Epoch 0 serves like any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIncarnation {
    /// The instance.
    pub instance_id: InstanceId,
    /// The epoch that this registration committed; compare it for equality alone.
    pub process_epoch: u64,
}

/// The doors of a context that was started with `platformControl.host`. A handle of that context, too.
#[derive(Clone)]
pub struct HostDoor {
    service: AuthService,
    endpoint: Arc<HostEndpoint>,
}

impl HostDoor {
    pub(crate) fn new(service: AuthService, endpoint: Arc<HostEndpoint>) -> Self {
        Self { service, endpoint }
    }

    /// Publishes the host's contract and registers this instance: one epoch on, the first one at 0.
    ///
    /// A host calls it at every start with the instance id that it keeps, before it admits or recovers anything, so that a
    /// restart fences its predecessor. It runs to its end when its caller does not wait, and a close of the context waits
    /// for it.
    ///
    /// `conflict` when a later start of the same instance has registered meanwhile, or the gate is another identity's;
    /// `failed-precondition` for artifacts that are not the whole closure; `unavailable` when the context is not ready, or
    /// when the gate stays frozen: the next start of the instance resumes it.
    pub async fn register_host_incarnation(&self, instance: &InstanceId) -> Result<HostIncarnation, EpError> {
        let entered = self.service.enter()?;
        self.endpoint.check_closure()?;
        let registering = register(self.clone(), instance.clone(), entered);
        let registered = tokio::spawn(registering).await.unwrap_or_else(|_| {
            Err(EpError::unavailable("host registration: it did not run to its end; register again"))
        })?;
        Ok(HostIncarnation { instance_id: instance.clone(), process_epoch: registered.process_epoch })
    }

    /// The gate of one of the host's instances as it stands at this moment; `None` when it never registered.
    /// `unavailable` when the context is not ready or the store does not answer.
    pub async fn observe_host_gate(&self, instance: &InstanceId) -> Result<Option<EndpointGate>, EpError> {
        observe(&self.service, &self.endpoint.name.token(), instance).await
    }

    /// Resolves once the gate is no longer open at this epoch, with the gate, or with `None` when there is none: from then
    /// on the incarnation is fenced, and whoever holds it stops serving. It looks every [`HOST_FENCE_POLL`].
    ///
    /// `bad-request` for an epoch above 2^53 - 1. It rejects when the context is no longer ready or a read fails: nobody
    /// can say then whether the incarnation still stands.
    pub async fn await_host_fence(
        &self,
        instance: &InstanceId,
        process_epoch: u64,
    ) -> Result<Option<EndpointGate>, EpError> {
        if process_epoch > MAX_SAFE_INTEGER {
            return Err(EpError::bad_request("processEpoch must be a non-negative safe integer"));
        }
        loop {
            let seen = self.observe_host_gate(instance).await?;
            let stands = seen
                .as_ref()
                .is_some_and(|gate| gate.is_open() && gate.coordinate().process_epoch == process_epoch);
            if !stands {
                return Ok(seen);
            }
            tokio::time::sleep(HOST_FENCE_POLL).await;
        }
    }
}

/// The ceremony, over a connection that ends with it.
async fn register(
    door: HostDoor,
    instance: InstanceId,
    _entered: OwnedRwLockReadGuard<()>,
) -> Result<Registered, EpError> {
    let parts = door.service.parts();
    let own = OwnEndpoint {
        name: door.endpoint.name.clone(),
        principal: host_principal(&instance)?,
        cluster: door.endpoint.host.cluster_digest.clone(),
        artifacts: door.endpoint.host.artifacts.clone(),
        instance,
    };
    let (space, endpoint) = (&parts.space, own.name.token());
    let token = space.token();
    let connection = parts
        .connector
        .open(
            InfraRole::HOST_REGISTRATION.label(space),
            &|inbox| endpoint_serve::registration_executor(&token, inbox, &endpoint, &own.instance),
            Lifetime::Renewing,
        )
        .await?;
    let registered = match Registry::bind(&connection, space).await {
        Ok(registry) => {
            let evictor = parts.plane.delivery();
            register_own_incarnation(&registry, &own, &*parts.entropy, evictor).await
        }
        Err(refusal) => Err(refusal),
    };
    let closed = connection.close().await;
    registered.and_then(|registered| closed.map(|()| registered))
}
