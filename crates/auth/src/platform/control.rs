//! What a platform may do in process with the context that it embeds (contract 05 §15.3).

use cotal_authority::{
    activation::ActivationFailure,
    registration::{EndpointInstance, gate},
};
use cotal_wire::{
    Actor, DerivedOwner, EndpointName, EndpointToken, EpError, InstanceId, LifecycleUid, Principal,
    rows::EndpointGate,
};

use super::{
    Platform,
    assignment::{self, PlatformAssignment},
};
use crate::handle::AuthService;

/// The doors of a context that was started with `platformControl`. It is a handle of that context too: while it lives, the
/// context is not closed by the drop of the others.
#[derive(Clone)]
pub struct PlatformControlDoor {
    service: AuthService,
    platform: Platform,
}

impl PlatformControlDoor {
    pub(crate) fn new(service: AuthService, platform: Platform) -> Self {
        Self { service, platform }
    }

    /// What the platform has assigned to this context, read fresh (contract 05 §16).
    ///
    /// `unavailable` when the context is not ready or the record cannot be read; `permission-denied` when nothing is
    /// assigned, it was taken back, or it is another context's.
    pub async fn assignment(&self) -> Result<PlatformAssignment, EpError> {
        self.service.check_ready()?;
        let parts = self.service.parts();
        assignment::current(&*self.platform.assignments, &parts.space, &parts.data_account).await
    }

    /// The issuance gate of a manager instance as it stands at this moment, or `None` (contract 05 §15.3).
    ///
    /// An observation, for the decision about a delegated intent: whoever acts on it conditions its own write again.
    /// `unavailable` when the context is not ready or the store does not answer.
    pub async fn observe_manager_gate(&self, instance: &InstanceId) -> Result<Option<EndpointGate>, EpError> {
        observe(&self.service, &EndpointName::manager().token(), instance).await
    }

    /// Activates one exact managed lifecycle: `/managed-lifecycle/activate` without its route (contract 05 §7.3).
    ///
    /// On success the head is active at this uid and its gate open. The failure says whether anything was begun. It runs
    /// to its end when its caller does not wait, and a close of the context waits for it.
    pub async fn activate_managed_lifecycle(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        uid: &LifecycleUid,
    ) -> Result<(), ActivationFailure> {
        let entered = self.service.enter().map_err(|error| ActivationFailure { error, began: false })?;
        let plane = std::sync::Arc::clone(&self.service.parts().plane);
        let (principal, uid) = (Principal::new(owner, actor.clone()), uid.clone());
        let activating = tokio::spawn(async move {
            // Held to the end: a close waits for it.
            let _entered = entered;
            plane.activate_managed(&principal, &uid).await
        });
        activating.await.unwrap_or_else(|_| {
            let error = EpError::internal("the activation did not run to its end");
            Err(ActivationFailure { error, began: true })
        })
    }
}

/// Reads a gate over the context's own connection, while the context is ready.
pub(super) async fn observe(
    service: &AuthService,
    endpoint: &EndpointToken,
    instance: &InstanceId,
) -> Result<Option<EndpointGate>, EpError> {
    service.check_ready()?;
    let at = EndpointInstance { endpoint: endpoint.clone(), instance: instance.clone() };
    Ok(gate::observe(service.parts().plane.stores(), &at).await?.map(|seen| seen.gate))
}
