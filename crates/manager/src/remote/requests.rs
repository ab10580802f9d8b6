//! What a participant asks (contract 06, 08 §8.3): every request of every kind, from its identity and what it proved.

use cotal_wire::{
    Account, Actor, DigestRef, Entropy, InstanceId, LifecycleUid, Nkey, OpId, Owner, Space, User,
    es_value::EsValue,
    manager_authority::{
        AdminRequest, EnrollmentRequest, EnrollmentTarget, Envelope, GoalIndexRequest, Holder, Identities,
        Incarnation, MaintenanceRequest, Mend, Operation, Payload, PrepareRetirementRequest, Renewal,
        RenewedRun, RequestId, RequestedRetirement, RetainedAgentRequest, RunAdmissionRequest,
        RunAttemptRequest, RunCancelRequest, RunId, RunRevokeRequest, RunSubmissionRequest, RuntimeRequest,
        ServedSession, ServiceRequest, SubmissionId, Turn, registration_proof,
    },
};
use zeroize::Zeroizing;

use super::identity::ManagerIdentity;

/// A registration as the host proved it: what every request after `activate` stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    /// The owner, as the host derived it.
    pub owner: Owner,
    /// The data account of the space.
    pub account: Nkey<Account>,
    /// `nextRegistrationProof` of `activate`.
    pub proof: DigestRef,
    /// The epoch that the registration committed. Zero is an epoch like any other.
    pub epoch: u64,
}

/// Builds the requests of one manager. Each call names a request id of its own.
#[derive(Clone, Copy)]
pub struct Requests<'a> {
    space: &'a Space,
    actor: &'a Actor,
    instance: &'a InstanceId,
    lifecycle: &'a LifecycleUid,
    identity: &'a ManagerIdentity,
    entropy: &'a dyn Entropy,
}

impl<'a> Requests<'a> {
    /// The requests of this manager, decided by the ledger row of `actor`.
    pub fn of(identity: &'a ManagerIdentity, actor: &'a Actor, entropy: &'a dyn Entropy) -> Self {
        Self {
            space: identity.space(),
            actor,
            instance: identity.instance(),
            lifecycle: identity.lifecycle(),
            identity,
            entropy,
        }
    }

    fn identities(&self) -> Identities {
        self.identity.identities()
    }

    /// `<what><lifecycle token>`, as contract 08 §8.3 has it.
    fn id(&self, what: &str) -> RequestId {
        let token = LifecycleUid::mint(self.entropy);
        // Any of the words below, and 26 characters of a-z 0-9.
        RequestId::parse(&format!("{what}{token}")).unwrap_or_else(|_| self.id("request"))
    }

    fn envelope(&self, what: &str, proof: Option<DigestRef>) -> Envelope {
        Envelope {
            space: self.space.as_str().to_owned(),
            actor: self.actor.clone(),
            instance_id: self.instance.clone(),
            manager_lifecycle_uid: self.lifecycle.clone(),
            request_id: self.id(what),
            registration_proof: proof,
            identities: self.identities(),
        }
    }

    /// A request of the manager's own lifecycle with a proof that this side computes (contract 06 §3.1).
    fn unkeyed(&self, operation: Operation, owner: &Owner, payload: Payload) -> ServiceRequest {
        let mut envelope = self.envelope(operation.as_str(), None);
        let artifacts = if let Payload::Artifacts(artifacts) = &payload { artifacts.as_slice() } else { &[] };
        envelope.registration_proof = Some(registration_proof(&envelope, owner, artifacts));
        ServiceRequest { operation, envelope, payload }
    }

    fn keyed(&self, operation: Operation, current: &Current, payload: Payload) -> ServiceRequest {
        let envelope = self.envelope(operation.as_str(), Some(current.proof.clone()));
        ServiceRequest { operation, envelope, payload }
    }

    /// First credentials, to register with.
    pub fn prepare(&self) -> ServiceRequest {
        let operation = Operation::Prepare;
        ServiceRequest {
            operation,
            envelope: self.envelope(operation.as_str(), None),
            payload: Payload::None,
        }
    }

    /// Serving credentials, once registered. The artifacts are those of the registered contract.
    pub fn activate(&self, owner: &Owner, artifacts: Vec<EsValue>) -> ServiceRequest {
        self.unkeyed(Operation::Activate, owner, Payload::Artifacts(artifacts))
    }

    /// The pair of `prepare` again.
    pub fn renew(&self, current: &Current) -> ServiceRequest {
        self.keyed(Operation::Renew, current, Payload::None)
    }

    /// All five standing credentials again.
    pub fn standing_bundle(&self, current: &Current) -> ServiceRequest {
        self.keyed(Operation::RenewStandingBundle, current, Payload::Standing(pins(current)))
    }

    /// A run's driver and mediator again.
    pub fn run_driver(&self, current: &Current, run: RenewedRun) -> ServiceRequest {
        self.keyed(Operation::RenewRunDriver, current, Payload::Run(pins(current), run))
    }

    /// One session's serving credential.
    pub fn session(&self, owner: &Owner, session: ServedSession) -> ServiceRequest {
        self.unkeyed(Operation::Session, owner, Payload::Session(session))
    }

    /// The one-shot requester of one agent's retirement.
    pub fn retire(&self, current: &Current, id: Nkey<User>, target: Incarnation) -> ServiceRequest {
        let op_id = OpId::managed_retirement(&target.lifecycle_uid);
        let retirement = RequestedRetirement { id, target, op_id, serve_epoch: current.epoch };
        self.unkeyed(Operation::Retire, &current.owner, Payload::Retirement(retirement))
    }

    /// One transcript's reader.
    pub fn transfer_reader(&self, owner: &Owner, id: Nkey<User>) -> ServiceRequest {
        self.unkeyed(Operation::TransferReader, owner, Payload::Reader(Holder { id }))
    }

    /// Ends the connections of holders of this manager's own credential family.
    pub fn evict(&self, principals: Vec<String>) -> MaintenanceRequest {
        MaintenanceRequest {
            envelope: self.envelope("evict", None),
            target_instance_id: self.instance.clone(),
            mend: Mend::Evict(principals),
        }
    }

    /// Reconciles the frozen gate of an instance, which may be a foreign one of the same space.
    pub fn reconcile(&self, target: InstanceId) -> MaintenanceRequest {
        MaintenanceRequest {
            envelope: self.envelope("reconcile", None),
            target_instance_id: target,
            mend: Mend::Reconcile,
        }
    }

    /// An agent comes to be. The host chooses its lifecycle.
    pub fn enroll(&self, current: &Current, target: EnrollmentTarget) -> EnrollmentRequest {
        let envelope = self.envelope("enroll", Some(current.proof.clone()));
        EnrollmentRequest { envelope, serve_epoch: current.epoch, target }
    }

    /// An agent's grant and footprint go.
    pub fn prepare_retirement(&self, current: &Current, target: Incarnation) -> PrepareRetirementRequest {
        let envelope = self.envelope("prepareRetirement", Some(current.proof.clone()));
        let op_id = OpId::managed_retirement(&target.lifecycle_uid);
        PrepareRetirementRequest { envelope, serve_epoch: current.epoch, target, op_id }
    }

    /// Whether an agent that was retained is still who it was. The only request that carries its secrets back.
    pub fn retained(
        &self,
        current: &Current,
        target: Incarnation,
        actor_token: &Zeroizing<String>,
        sentinel_creds: &Zeroizing<String>,
    ) -> RetainedAgentRequest {
        RetainedAgentRequest {
            envelope: self.envelope("validate", Some(current.proof.clone())),
            serve_epoch: current.epoch,
            target,
            actor_token: actor_token.as_str().to_owned(),
            sentinel_creds: sentinel_creds.as_str().to_owned(),
        }
    }

    /// A hosted runtime is asked for, or asked about: the kind says which.
    pub fn runtime(&self, current: &Current, target: Incarnation) -> RuntimeRequest {
        let envelope = self.envelope("runtime", Some(current.proof.clone()));
        RuntimeRequest { envelope, serve_epoch: current.epoch, target }
    }

    /// The goals of the owner.
    pub fn goal_index(&self, current: &Current) -> GoalIndexRequest {
        let envelope = self.envelope("goalIndex", Some(current.proof.clone()));
        GoalIndexRequest { envelope, serve_epoch: current.epoch }
    }

    /// Whether a caller, as the broker authenticated it, is an admin.
    pub fn admin(&self, current: &Current, caller: Incarnation) -> AdminRequest {
        let envelope = self.envelope("admin", Some(current.proof.clone()));
        AdminRequest { envelope, serve_epoch: current.epoch, caller }
    }

    /// A run is admitted, as its caller asked for it.
    pub fn admit_run(&self, current: &Current, run_id: RunId, subject: String) -> RunAdmissionRequest {
        let envelope = self.envelope("admitRun", Some(current.proof.clone()));
        RunAdmissionRequest { envelope, pins: pins(current), run_id, subject }
    }

    /// A run is admitted under its caller's own name for it.
    pub fn submit_run(
        &self,
        current: &Current,
        submission_id: SubmissionId,
        run_id: RunId,
        subject: String,
    ) -> RunSubmissionRequest {
        let envelope = self.envelope("submitRun", Some(current.proof.clone()));
        RunSubmissionRequest { envelope, pins: pins(current), submission_id, run_id, subject }
    }

    /// A run is cancelled, as its caller asked for it.
    pub fn cancel_run(&self, current: &Current, run_id: RunId, subject: String) -> RunCancelRequest {
        let envelope = self.envelope("cancelRun", Some(current.proof.clone()));
        RunCancelRequest { envelope, pins: pins(current), run_id, subject }
    }

    /// A run is driven, or a step of it answered.
    pub fn attempt_run(&self, current: &Current, turn: Turn) -> RunAttemptRequest {
        let envelope = self.envelope("attemptRun", Some(current.proof.clone()));
        RunAttemptRequest { envelope, pins: pins(current), turn }
    }

    /// A run is revoked.
    pub fn revoke_run(&self, current: &Current, run_id: RunId, reason: String) -> RunRevokeRequest {
        let envelope = self.envelope("revokeRun", Some(current.proof.clone()));
        RunRevokeRequest { envelope, pins: pins(current), run_id, reason }
    }
}

fn pins(current: &Current) -> Renewal {
    Renewal { account: current.account.clone(), process_epoch: current.epoch }
}

#[cfg(test)]
mod tests {
    use cotal_trust::system::SystemEntropy;
    use cotal_wire::manager_authority::HolderKind;
    use cotal_workspace::root::Root;
    use serde::Serialize;

    use super::*;

    fn sent(request: &impl Serialize) -> EsValue {
        EsValue::parse(&serde_json::to_vec(request).unwrap()).unwrap()
    }

    #[test]
    fn what_is_asked_reads_at_the_host_as_it_was_meant_and_carries_the_proof_of_its_operation() {
        let tmp = tempfile::tempdir().unwrap();
        let space = Space::parse("main").unwrap();
        let (identity, _) =
            ManagerIdentity::load_or_create(&Root::at(tmp.path()), &space, &SystemEntropy).unwrap();
        let actor = Actor::parse("cli").unwrap();
        let requests = Requests::of(&identity, &actor, &SystemEntropy);
        let owner = Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap();
        let current = Current {
            owner: owner.clone(),
            account: Nkey::parse(&format!("A{}", "A".repeat(55))).unwrap(),
            proof: DigestRef::parse(&format!("sha256:{}", "0".repeat(64))).unwrap(),
            epoch: 0,
        };
        let target = Incarnation {
            owner: owner.clone(),
            actor: Actor::parse("bob").unwrap(),
            lifecycle_uid: LifecycleUid::mint(&SystemEntropy),
        };
        let key = cotal_trust::nkey::Seed::<User>::generate(&SystemEntropy).public().clone();
        let artifacts = vec![EsValue::parse(br#"{"b":1,"a":{"2":true,"1":[]}}"#).unwrap()];

        let read = |request: &ServiceRequest| {
            let read = ServiceRequest::parse(&sent(request), HolderKind::Human).unwrap();
            assert_eq!(read, *request);
            assert!(request.envelope.request_id.as_str().starts_with(request.operation.as_str()));
            read.check_distinct_keys().unwrap();
            read
        };
        assert_eq!(read(&requests.prepare()).envelope.registration_proof, None);
        let activate = read(&requests.activate(&owner, artifacts.clone()));
        let proof = registration_proof(&activate.envelope, &owner, &artifacts);
        assert_eq!(activate.envelope.registration_proof, Some(proof.clone()));
        let retire = read(&requests.retire(&current, key.clone(), target.clone()));
        let artifactless = registration_proof(&retire.envelope, &owner, &[]);
        assert_eq!(retire.envelope.registration_proof, Some(artifactless.clone()));
        assert_ne!(proof, artifactless, "the two proofs of one lifecycle differ");
        assert_eq!(
            read(&requests.transfer_reader(&owner, key)).envelope.registration_proof,
            Some(artifactless)
        );
        for keyed in [requests.renew(&current), requests.standing_bundle(&current)] {
            assert_eq!(read(&keyed).envelope.registration_proof, Some(current.proof.clone()));
        }
        let prepared = requests.prepare_retirement(&current, target.clone());
        assert_eq!(PrepareRetirementRequest::parse(&sent(&prepared)).unwrap(), prepared);
        let run = RunId::parse(&format!("run-{}", "0".repeat(32))).unwrap();
        let name = SubmissionId::parse("nightly-1").unwrap();
        let submit = requests.submit_run(&current, name, run.clone(), "subject".to_owned());
        assert_eq!(RunSubmissionRequest::parse(&sent(&submit)).unwrap(), submit);
        let cancel = requests.cancel_run(&current, run, "subject".to_owned());
        assert_eq!(RunCancelRequest::parse(&sent(&cancel)).unwrap(), cancel);
        let admin = requests.admin(&current, target);
        assert_eq!(AdminRequest::parse(&sent(&admin), HolderKind::Human).unwrap(), admin);
        assert_ne!(requests.prepare().envelope.request_id, requests.prepare().envelope.request_id);
    }
}
