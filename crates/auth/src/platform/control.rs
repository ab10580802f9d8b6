//! What a platform may do in process with the context that it embeds (contract 05 §15.3).

use cotal_authority::{
    activation::ActivationFailure,
    manager::{Assignment, Holder, PlatformContext, Predecessor, check_platform_gate, check_predecessor},
    registration::{EndpointInstance, gate, is_registered},
};
use cotal_wire::{
    Actor, DerivedOwner, EndpointName, EndpointToken, EpError, InstanceId, LifecycleUid, Owner, Principal,
    es_value::EsValue,
    manager_authority::{PlatformControlRequest, serve_principal},
    rows::EndpointGate,
};
use serde_json::value::RawValue;

use super::{
    AssignmentState, Platform,
    assignment::{self, PlatformAssignment},
};
use crate::{handle::AuthService, manager::AnswerManagers};

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
        self.current().await
    }

    async fn current(&self) -> Result<PlatformAssignment, EpError> {
        let parts = self.service.parts();
        let asked = assignment::current(&*self.platform.assignments, &parts.space, &parts.data_account);
        self.service.while_open(asked).await
    }

    /// Serves one request for the manager that the platform has assigned, the JSON text of an envelope (contract 05 §16): its
    /// own lifecycle, maintenance, the questions, and its runs. What is issued is the platform's own, `p_…`.
    ///
    /// `unavailable` when the context is not ready or the assignment cannot be read; `bad-request` for a text that is no
    /// envelope; `unimplemented` for the kinds about managed agents; `permission-denied` for everything that the assignment
    /// does not cover; `failed-precondition` while the instance that had it before is registered; past all that, what the
    /// kind itself refuses. It runs to its end when its caller does not wait, and a close of the context waits for it.
    pub async fn authority(&self, envelope: &[u8]) -> Result<Box<RawValue>, EpError> {
        let door = self.clone();
        in_its_own_task(&self.service, envelope, async move |envelope| door.serve(&envelope).await).await
    }

    async fn serve(&self, envelope: &EsValue) -> Result<Box<RawValue>, EpError> {
        let request = PlatformControlRequest::parse(envelope)?;
        let parts = self.service.parts();
        let context = PlatformContext { space: &parts.space, account: &parts.data_account };
        context.check_control(&request)?;
        let seen = self.current().await?;
        let predecessor = seen.predecessor_instance_id.clone();
        let assignment = Assignment::from(seen);
        context.check_assigned(&request, &assignment)?;

        let endpoint = EndpointName::manager().token();
        let gate = observe(&self.service, &endpoint, &assignment.instance).await?;
        let owner = self.owner(&assignment.instance, gate.as_ref());
        check_platform_gate(owner, &assignment.instance, gate.as_ref())?;
        if let Some(before) = predecessor {
            let gate = observe(&self.service, &endpoint, &before).await?;
            let at = EndpointInstance { endpoint, instance: before };
            let registered = is_registered(parts.plane.stores(), &at).await?;
            check_predecessor(request.operation(), Some(Predecessor { gate: gate.as_ref(), registered }))?;
        }
        let holder = Holder::Platform { owner: owner.clone(), assignment };
        Ok(parts.manager.dispatch(&holder, request.request).await?)
    }

    /// The platform's owner. A gate that names it in the other reading of its rule keeps it so (contract 12 D3).
    fn owner(&self, instance: &InstanceId, gate: Option<&EndpointGate>) -> &Owner {
        let [owner, other] = &self.service.parts().platform_owners;
        let is_other = gate.is_some_and(|gate| *gate.principal() == serve_principal(other, instance));
        if is_other { other } else { owner }
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

/// Serves an envelope's text in a task of its own, which a close of the context waits for: a caller that gives up does not
/// stop a mint halfway.
pub(super) async fn in_its_own_task<F>(
    service: &AuthService,
    envelope: &[u8],
    serve: impl FnOnce(EsValue) -> F,
) -> Result<Box<RawValue>, EpError>
where
    F: Future<Output = Result<Box<RawValue>, EpError>> + Send + 'static,
{
    let entered = service.enter()?;
    let envelope =
        EsValue::parse(envelope).map_err(|_| EpError::bad_request("platform: the envelope is not JSON"))?;
    let serving = serve(envelope);
    let serving = tokio::spawn(async move {
        let _entered = entered;
        serving.await
    });
    serving.await.unwrap_or_else(|_| Err(EpError::internal("platform: the request did not run to its end")))
}

impl From<PlatformAssignment> for Assignment {
    fn from(seen: PlatformAssignment) -> Self {
        Self {
            space: seen.space,
            account: seen.account_public_key,
            instance: seen.instance_id,
            lifecycle_uid: seen.lifecycle_uid,
            revision: seen.assignment_revision,
            assigned: seen.state == AssignmentState::Assigned,
        }
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
