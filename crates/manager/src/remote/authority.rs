//! What the host decides for this manager: one question each, asked and bound.

use std::sync::Arc;

use cotal_wire::{
    Actor, Entropy, InstanceId, Nkey, Owner, Principal, User,
    delivery_admin::EvictionResult,
    es_value::EsValue,
    manager_authority::{
        EnrollmentTarget, Incarnation, Kind, Mended, RenewedRun, RetainedAuthority, RunAdmissionResult,
        RunId, RunSubmissionResult, RuntimeRequestAs, RuntimeResult, ServedSession, ServiceRequest,
        SubmissionId, Turn,
    },
    rows::GoalIndexRow,
};
use serde::Serialize;
use zeroize::Zeroizing;

use super::{
    error::RemoteError,
    host::{Answer, ManagerHost},
    identity::ManagerIdentity,
    requests::{Current, Requests},
    results::{self, Enrolled, Known, Material, TurnMaterial},
};

/// Asks a host on behalf of one manager.
#[derive(Clone)]
pub struct HostAuthority {
    identity: Arc<ManagerIdentity>,
    actor: Actor,
    host: ManagerHost,
    entropy: Arc<dyn Entropy>,
}

impl HostAuthority {
    /// For this manager, decided by the ledger row of `actor`.
    pub fn new(
        identity: Arc<ManagerIdentity>,
        actor: Actor,
        host: ManagerHost,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { identity, actor, host, entropy }
    }

    /// Who this manager is.
    pub fn identity(&self) -> &ManagerIdentity {
        &self.identity
    }

    /// Randomness.
    pub fn entropy(&self) -> &dyn Entropy {
        &*self.entropy
    }

    /// Builds what is asked.
    pub fn requests(&self) -> Requests<'_> {
        Requests::of(&self.identity, &self.actor, &*self.entropy)
    }

    async fn document(&self, request: &impl Serialize) -> Result<EsValue, RemoteError> {
        Ok(self.host.ask(request, Answer::Document).await?)
    }

    async fn service(&self, request: ServiceRequest, known: &Known) -> Result<Material, RemoteError> {
        let answer = self.document(&request).await?;
        Ok(results::bind_service(&request, known, &answer)?)
    }

    /// First credentials. What the answer says of owner and account is held against every later one.
    pub async fn prepare(&self, known: &Known) -> Result<Material, RemoteError> {
        self.service(self.requests().prepare(), known).await
    }

    /// Serving credentials of the registration that stands, and its proof.
    pub async fn activate(
        &self,
        known: &Known,
        owner: &Owner,
        artifacts: Vec<EsValue>,
    ) -> Result<Material, RemoteError> {
        self.service(self.requests().activate(owner, artifacts), known).await
    }

    /// Supervisor and executor again.
    pub async fn renew(&self, current: &Current) -> Result<Material, RemoteError> {
        self.service(self.requests().renew(current), &known(current)).await
    }

    /// All five again.
    pub async fn standing_bundle(&self, current: &Current) -> Result<Material, RemoteError> {
        self.service(self.requests().standing_bundle(current), &known(current)).await
    }

    /// The requester of one agent's retirement.
    pub async fn retirement_requester(
        &self,
        current: &Current,
        key: &Nkey<User>,
        target: &Incarnation,
    ) -> Result<Material, RemoteError> {
        self.service(self.requests().retire(current, key.clone(), target.clone()), &known(current)).await
    }

    /// The serving credential of one session.
    pub async fn session_serving(
        &self,
        current: &Current,
        session: ServedSession,
    ) -> Result<Material, RemoteError> {
        self.service(self.requests().session(&current.owner, session), &known(current)).await
    }

    /// The reader of one transcript.
    pub async fn transfer_reader(
        &self,
        current: &Current,
        key: &Nkey<User>,
    ) -> Result<Material, RemoteError> {
        self.service(self.requests().transfer_reader(&current.owner, key.clone()), &known(current)).await
    }

    /// A run's driver and mediator again.
    pub async fn renew_run(&self, current: &Current, run: RenewedRun) -> Result<Material, RemoteError> {
        self.service(self.requests().run_driver(current, run), &known(current)).await
    }

    /// An agent comes to be.
    pub async fn enroll(&self, current: &Current, target: EnrollmentTarget) -> Result<Enrolled, RemoteError> {
        let request = self.requests().enroll(current, target);
        let answer = self.document(&request).await?;
        Ok(results::bind_enrollment(&request, &current.owner, &answer)?)
    }

    /// An agent's grant and footprint go.
    pub async fn prepare_retirement(
        &self,
        current: &Current,
        target: &Incarnation,
    ) -> Result<(), RemoteError> {
        let request = self.requests().prepare_retirement(current, target.clone());
        let answer = self.document(&request).await?;
        Ok(results::bind_prepare_retirement(&request, &current.owner, &answer)?)
    }

    /// Whether a retained agent is who it was, and what it may do.
    pub async fn validate_retained(
        &self,
        current: &Current,
        target: &Incarnation,
        actor_token: &Zeroizing<String>,
        sentinel_creds: &Zeroizing<String>,
    ) -> Result<RetainedAuthority, RemoteError> {
        let request = self.requests().retained(current, target.clone(), actor_token, sentinel_creds);
        let answer = self.document(&request).await?;
        Ok(results::bind_retained(&request, &current.owner, &answer)?)
    }

    /// A runtime is asked for, for an agent that is enrolled. A stock service refuses it as unimplemented; a host that runs
    /// agents decides.
    pub async fn create_runtime(
        &self,
        current: &Current,
        target: &Incarnation,
    ) -> Result<RuntimeResult, RemoteError> {
        self.runtime(Kind::RuntimeCreate, current, target).await
    }

    /// How that runtime stands.
    pub async fn runtime_status(
        &self,
        current: &Current,
        target: &Incarnation,
    ) -> Result<RuntimeResult, RemoteError> {
        self.runtime(Kind::RuntimeStatus, current, target).await
    }

    async fn runtime(
        &self,
        kind: Kind,
        current: &Current,
        target: &Incarnation,
    ) -> Result<RuntimeResult, RemoteError> {
        let request = self.requests().runtime(current, target.clone());
        let answer = self.document(&RuntimeRequestAs(kind, &request)).await?;
        Ok(results::bind_runtime(kind, &request, &current.owner, &answer)?)
    }

    /// The owner's goals.
    pub async fn goal_index(&self, current: &Current) -> Result<Vec<GoalIndexRow>, RemoteError> {
        let request = self.requests().goal_index(current);
        let answer = self.host.ask(&request, Answer::Scan).await?;
        Ok(results::bind_goal_index(&request, &current.owner, &answer)?)
    }

    /// Whether a caller is an admin.
    pub async fn is_admin(&self, current: &Current, caller: &Incarnation) -> Result<bool, RemoteError> {
        let request = self.requests().admin(current, caller.clone());
        let answer = self.document(&request).await?;
        Ok(results::bind_admin(&request, &current.owner, &answer)?)
    }

    /// Ends the connections of earlier holders of this manager's credentials, and says of each whether it is gone.
    pub async fn evict(
        &self,
        owner: &Owner,
        principals: &[Principal],
    ) -> Result<Vec<EvictionResult>, RemoteError> {
        let request = self.requests().evict(principals.iter().map(Principal::key).collect());
        let answer = self.document(&request).await?;
        match results::bind_maintenance(&request, owner, &answer)? {
            Mended::Evicted(verdicts) => Ok(verdicts),
            // What the binding of an answer excludes.
            Mended::Reconciled(_) => {
                Err(RemoteError::State("another repair was made than was asked for".into()))
            }
        }
    }

    /// Repairs the gate that a dead registration of `target` left frozen.
    pub async fn reconcile(&self, owner: &Owner, target: &InstanceId) -> Result<(), RemoteError> {
        let request = self.requests().reconcile(target.clone());
        let answer = self.document(&request).await?;
        results::bind_maintenance(&request, owner, &answer)?;
        Ok(())
    }

    /// A run may run for whoever asked for it, on this very subject.
    pub async fn admit_run(
        &self,
        current: &Current,
        run: RunId,
        subject: String,
    ) -> Result<RunAdmissionResult, RemoteError> {
        let request = self.requests().admit_run(current, run, subject);
        let answer = self.document(&request).await?;
        Ok(results::bind_run_admission(&request, &answer)?)
    }

    /// The same under a name of the caller's own: `run` is what the name stands for unless it stands for another already.
    pub async fn submit_run(
        &self,
        current: &Current,
        submission: SubmissionId,
        run: RunId,
        subject: String,
    ) -> Result<RunSubmissionResult, RemoteError> {
        let request = self.requests().submit_run(current, submission, run, subject);
        let answer = self.document(&request).await?;
        Ok(results::bind_run_submission(&request, &answer)?)
    }

    /// The credentials of a driver's next attempt, or of an operator's turn.
    pub async fn turn_at_run(&self, current: &Current, turn: Turn) -> Result<TurnMaterial, RemoteError> {
        let request = self.requests().attempt_run(current, turn);
        let answer = self.document(&request).await?;
        Ok(results::bind_run_attempt(&request, &current.owner, &answer)?)
    }

    /// A run ends for whoever asked for its end, on this very subject.
    pub async fn cancel_run(
        &self,
        current: &Current,
        run: RunId,
        subject: String,
    ) -> Result<(), RemoteError> {
        let request = self.requests().cancel_run(current, run, subject);
        let answer = self.document(&request).await?;
        Ok(results::bind_run_cancel(&request, &answer)?)
    }

    /// A run ends because its owner, or an admin, who is signed in here says so.
    pub async fn revoke_run(&self, current: &Current, run: RunId, reason: String) -> Result<(), RemoteError> {
        let request = self.requests().revoke_run(current, run, reason);
        let answer = self.document(&request).await?;
        Ok(results::bind_run_revoke(&request, &answer)?)
    }
}

fn known(current: &Current) -> Known {
    Known { owner: Some(current.owner.clone()), account: Some(current.account.clone()) }
}
