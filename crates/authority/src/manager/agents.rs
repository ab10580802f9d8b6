//! The decisions about managed agents, each before any write (contract 06 §6-9).
//!
//! What needs no read comes first in each: without a gate it refuses just that, or the want of a gate.

use cotal_trust::registration_proof::RegistrationProofKey;
use cotal_wire::{
    EpError, Owner, Space,
    manager_authority::{
        EnrollmentRequest, Envelope, Incarnation, Kind, PrepareRetirementRequest, RetainedAgentRequest,
        RuntimeRequest,
    },
    rows::EndpointGate,
};

use super::{
    Holder,
    registration::{CurrentManager, check_current},
};

/// What the host that decides is.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Its space.
    pub space: &'a Space,
    /// The key of current registrations.
    pub proof: &'a RegistrationProofKey,
}

impl Host<'_> {
    pub(super) fn serves(&self, envelope: &Envelope) -> Result<(), EpError> {
        if envelope.space == self.space.as_str() {
            Ok(())
        } else {
            Err(EpError::permission_denied("the request names another space than the one that is asked"))
        }
    }

    /// Space, then what the kind asks for of its holder.
    pub(super) fn asked(self, kind: Kind, holder: &Holder, envelope: &Envelope) -> Result<(), EpError> {
        self.serves(envelope)?;
        holder.may_ask(kind.scope(), envelope.instance_id.as_str())
    }
}

pub(super) fn own(target: &Incarnation, owner: &Owner) -> Result<(), EpError> {
    if target.owner == *owner {
        Ok(())
    } else {
        Err(EpError::permission_denied("the target belongs to another owner"))
    }
}

/// An enrollment that may be written: space, scope, then the current registration.
pub fn decide_enrollment(
    host: Host<'_>,
    holder: &Holder,
    request: &EnrollmentRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.asked(Kind::Enrollment, holder, &request.envelope)?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// A preparation that may be written: space, scope, owner, then the current registration. The operation id was computed
/// anew by the parser.
pub fn decide_prepare_retirement(
    host: Host<'_>,
    holder: &Holder,
    request: &PrepareRetirementRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.asked(Kind::PrepareRetirement, holder, &request.envelope)?;
    own(&request.target, holder.owner())?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// A hosted runtime's request, of either kind: space, owner, scope, then the current registration. The owner comes before
/// the scope here.
pub fn decide_runtime(
    host: Host<'_>,
    holder: &Holder,
    kind: Kind,
    request: &RuntimeRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.serves(&request.envelope)?;
    own(&request.target, holder.owner())?;
    holder.may_ask(kind.scope(), request.envelope.instance_id.as_str())?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// A retained agent that may be looked at: space, scope, owner, then the current registration. Whether its secrets are
/// good the host decides after it.
pub fn decide_retained(
    host: Host<'_>,
    holder: &Holder,
    request: &RetainedAgentRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.asked(Kind::RetainedAgentValidation, holder, &request.envelope)?;
    own(&request.target, holder.owner())?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

#[cfg(test)]
mod tests {
    use cotal_trust::{nkey::Seed, system::SystemEntropy};
    use cotal_wire::{
        EpCode, InstanceId, LifecycleUid, OpId,
        es_value::EsValue,
        manager_authority::{ADMIN, HolderKind, Kind, SPAWN, SUPERVISE, serve_principal},
    };
    use serde_json::{Value, json};

    use super::*;

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const OTHER: &str = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb";
    const INSTANCE: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const TARGET: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbb";
    /// What the manager is registered at: none of these is what a gate begins with.
    const AT: (u64, u64) = (7, 3);

    fn owner(text: &str) -> Owner {
        Owner::parse(text).unwrap()
    }

    /// A gate of this owner's manager.
    fn gate(state: &str, of: &str, revision: u64, epoch: u64) -> EndpointGate {
        let principal = serve_principal(&owner(of), &InstanceId::parse(INSTANCE).unwrap());
        let mut row = json!({
            "state": state, "generation": 4, "processEpoch": epoch, "registrationRevision": revision,
            "nameAuthorityRevision": 0, "principal": principal,
        });
        if state != "open" {
            row["op"] = json!({ "opId": "o".repeat(26), "kind": "registration" });
        }
        EndpointGate::parse(row.to_string().as_bytes()).unwrap()
    }

    /// Everything that a decision looks at.
    struct Case {
        kind: Kind,
        space: &'static str,
        holder: Holder,
        request: Value,
        gate: Option<EndpointGate>,
        key: RegistrationProofKey,
    }

    impl Case {
        /// One that is granted.
        fn granted(kind: Kind, key: &RegistrationProofKey) -> Self {
            let id = |letter: &str| json!({ "id": format!("U{}", letter.repeat(55)) });
            let mut request = json!({
                "v": 1, "kind": kind.as_str(), "space": "demo", "actor": "cli", "instanceId": INSTANCE,
                "managerLifecycleUid": "c".repeat(26), "requestId": "r".repeat(22),
                "registrationProof": format!("sha256:{}", "0".repeat(64)), "serveEpoch": AT.1,
                "identities": {
                    "supervisor": id("A"), "executor": id("B"), "serve": id("C"), "goalWriter": id("D"),
                    "sessionLedger": id("E"),
                },
                "target": { "owner": OWNER, "actor": "worker", "lifecycleUid": TARGET },
            });
            match kind {
                Kind::Enrollment => {
                    request["target"] = json!({ "actor": "worker", "tokenHash": "0".repeat(64) });
                }
                Kind::PrepareRetirement => {
                    let target = LifecycleUid::parse(TARGET).unwrap();
                    request["opId"] = json!(OpId::managed_retirement(&target));
                }
                Kind::RetainedAgentValidation => {
                    request["actorToken"] = json!("token");
                    request["sentinelCreds"] = json!("creds");
                }
                _ => {}
            }
            let holder = Holder::Human { owner: owner(OWNER), scope: vec![SUPERVISE.to_owned()] };
            let gate = Some(gate("open", OWNER, AT.0, AT.1));
            let mut case = Self { kind, space: "demo", holder, request, gate, key: key.clone() };
            case.prove(AT);
            case
        }

        /// Carries the proof of a registration at these coordinates.
        fn prove(&mut self, (revision, epoch): (u64, u64)) {
            let envelope = self.envelope();
            let proof = self.key.prove(&envelope, &owner(OWNER), revision, epoch);
            self.request["registrationProof"] = json!(proof);
        }

        fn envelope(&self) -> Envelope {
            let es = self.es();
            match self.kind {
                Kind::Enrollment => EnrollmentRequest::parse(&es).unwrap().envelope,
                Kind::PrepareRetirement => PrepareRetirementRequest::parse(&es).unwrap().envelope,
                Kind::RetainedAgentValidation => {
                    RetainedAgentRequest::parse(&es, HolderKind::Human).unwrap().envelope
                }
                kind => RuntimeRequest::parse(&es, kind).unwrap().envelope,
            }
        }

        fn es(&self) -> EsValue {
            EsValue::parse(self.request.to_string().as_bytes()).unwrap()
        }

        /// What the decision is. Without a gate it is the same, or refuses for the want of one: so nothing is read for those
        /// who may not ask.
        fn decide(&self) -> Result<CurrentManager, EpError> {
            let whole = self.decide_at(self.gate.as_ref());
            match self.decide_at(None) {
                Err(refusal) if refusal.code == EpCode::FailedPrecondition => {}
                unread => assert_eq!(whole, unread),
            }
            whole
        }

        fn decide_at(&self, gate: Option<&EndpointGate>) -> Result<CurrentManager, EpError> {
            let space = Space::parse(self.space).unwrap();
            let (host, holder, es) = (Host { space: &space, proof: &self.key }, &self.holder, self.es());
            match self.kind {
                Kind::Enrollment => {
                    decide_enrollment(host, holder, &EnrollmentRequest::parse(&es).unwrap(), gate)
                }
                Kind::PrepareRetirement => {
                    let request = PrepareRetirementRequest::parse(&es).unwrap();
                    decide_prepare_retirement(host, holder, &request, gate)
                }
                Kind::RetainedAgentValidation => {
                    let request = RetainedAgentRequest::parse(&es, holder.kind()).unwrap();
                    decide_retained(host, holder, &request, gate)
                }
                kind => {
                    let request = RuntimeRequest::parse(&es, kind).unwrap();
                    decide_runtime(host, holder, kind, &request, gate)
                }
            }
        }
    }

    /// One check: how a case comes to fail it, and with which code.
    type Check = (&'static str, fn(&mut Case), EpCode);

    const SPACE: Check = ("space", |case| case.space = "other", EpCode::PermissionDenied);
    const SCOPE: Check = (
        "scope",
        |case| {
            let scope = vec![SPAWN.to_owned(), ADMIN.to_owned()];
            case.holder = Holder::Human { owner: case.holder.owner().clone(), scope };
        },
        EpCode::PermissionDenied,
    );
    const TARGET_OWNER: Check =
        ("owner", |case| case.request["target"]["owner"] = json!(OTHER), EpCode::PermissionDenied);
    const ABSENT: Check = ("no gate", |case| case.gate = None, EpCode::FailedPrecondition);
    const PRINCIPAL: Check = (
        "another's gate",
        |case| change_gate(case, |gate| *gate = remade(gate, Some(OTHER), None)),
        EpCode::PermissionDenied,
    );
    const EPOCH: Check = (
        "stale epoch",
        |case| change_gate(case, |gate| *gate = remade(gate, None, Some(AT.1 + 1))),
        EpCode::Conflict,
    );
    const PROOF: Check = (
        "proof",
        |case| case.request["registrationProof"] = json!(format!("sha256:{}", "1".repeat(64))),
        EpCode::PermissionDenied,
    );

    fn change_gate(case: &mut Case, change: impl FnOnce(&mut EndpointGate)) {
        if let Some(gate) = &mut case.gate {
            change(gate);
        }
    }

    /// The same gate of another owner, or at another epoch.
    fn remade(before: &EndpointGate, of: Option<&str>, epoch: Option<u64>) -> EndpointGate {
        let of = of.map_or_else(|| before.principal().owner.to_string(), str::to_owned);
        let at = before.coordinate();
        gate("open", &of, at.registration_revision, epoch.unwrap_or(at.process_epoch))
    }

    /// Each check fails alone with its code; of two that fail, the earlier one answers.
    fn prove_order(kind: Kind, checks: &[Check]) {
        let key = RegistrationProofKey::new(Seed::generate(&SystemEntropy));
        let name = kind.as_str();
        let granted = Case::granted(kind, &key).decide();
        assert_eq!(granted.expect(name).gate().coordinate().process_epoch, AT.1);
        let alone: Vec<EpError> = checks
            .iter()
            .map(|(what, fail, code)| {
                let mut case = Case::granted(kind, &key);
                fail(&mut case);
                let refusal = case.decide().expect_err(what);
                assert_eq!(refusal.code, *code, "{name}: {what}");
                refusal
            })
            .collect();
        for (i, earlier) in checks.iter().enumerate() {
            for later in &checks[i + 1..] {
                let mut case = Case::granted(kind, &key);
                // The later one first: a gate that is gone can be nobody else's any more.
                later.1(&mut case);
                earlier.1(&mut case);
                let refusal = case.decide().expect_err(earlier.0);
                assert_eq!(refusal, alone[i], "{name}: {} before {}", earlier.0, later.0);
            }
        }
    }

    #[test]
    fn an_enrollment_is_decided_by_space_scope_gate_principal_epoch_and_proof_in_this_order() {
        prove_order(Kind::Enrollment, &[SPACE, SCOPE, ABSENT, PRINCIPAL, EPOCH, PROOF]);
    }

    #[test]
    fn a_preparation_is_decided_by_space_scope_owner_gate_principal_epoch_and_proof_in_this_order() {
        prove_order(Kind::PrepareRetirement, &[SPACE, SCOPE, TARGET_OWNER, ABSENT, PRINCIPAL, EPOCH, PROOF]);
    }

    #[test]
    fn a_retained_agent_is_decided_by_space_scope_owner_gate_principal_epoch_and_proof_in_this_order() {
        prove_order(
            Kind::RetainedAgentValidation,
            &[SPACE, SCOPE, TARGET_OWNER, ABSENT, PRINCIPAL, EPOCH, PROOF],
        );
    }

    #[test]
    fn a_hosted_runtime_is_decided_by_its_owner_before_its_scope() {
        for kind in [Kind::RuntimeCreate, Kind::RuntimeStatus] {
            prove_order(kind, &[SPACE, TARGET_OWNER, SCOPE, ABSENT, PRINCIPAL, EPOCH, PROOF]);
        }
    }

    const KINDS: [Kind; 5] = [
        Kind::Enrollment,
        Kind::PrepareRetirement,
        Kind::RetainedAgentValidation,
        Kind::RuntimeCreate,
        Kind::RuntimeStatus,
    ];

    #[test]
    fn a_gate_that_is_not_open_is_no_registration() {
        let key = RegistrationProofKey::new(Seed::generate(&SystemEntropy));
        for kind in KINDS {
            let mut case = Case::granted(kind, &key);
            case.gate = Some(gate("frozen", OWNER, AT.0, AT.1));
            assert_eq!(case.decide().unwrap_err().code, EpCode::FailedPrecondition, "{}", kind.as_str());
        }
    }

    /// What is replayed, and how a case comes to carry it.
    type Replay = (&'static str, fn(&mut Case));

    /// A proof is of one registration: of another revision, epoch, owner, actor, lifecycle or key it is worth nothing.
    #[test]
    fn a_proof_of_another_registration_is_worth_nothing() {
        let key = RegistrationProofKey::new(Seed::generate(&SystemEntropy));
        let replays: [Replay; 6] = [
            ("an earlier revision", |case| case.prove((AT.0 - 1, AT.1))),
            ("an earlier epoch", |case| case.prove((AT.0, AT.1 - 1))),
            ("another actor", |case| case.request["actor"] = json!("admin")),
            ("another lifecycle", |case| case.request["managerLifecycleUid"] = json!("d".repeat(26))),
            ("another key", |case| {
                case.request["identities"]["executor"] = json!({ "id": format!("U{}", "F".repeat(55)) });
            }),
            ("another host", |case| case.key = RegistrationProofKey::new(Seed::generate(&SystemEntropy))),
        ];
        for kind in KINDS {
            for (what, replay) in replays {
                let mut case = Case::granted(kind, &key);
                replay(&mut case);
                let refusal = case.decide().expect_err(what);
                assert_eq!(refusal.code, EpCode::PermissionDenied, "{}: {what}", kind.as_str());
                assert!(refusal.message.contains("proof"), "{}: {what}: {refusal}", kind.as_str());
            }
        }
    }

    #[test]
    fn a_request_of_one_kind_is_not_read_as_another() {
        let key = RegistrationProofKey::new(Seed::generate(&SystemEntropy));
        let create = Case::granted(Kind::RuntimeCreate, &key);
        assert_eq!(
            RuntimeRequest::parse(&create.es(), Kind::RuntimeStatus).unwrap_err().code,
            EpCode::BadRequest
        );
        assert!(EnrollmentRequest::parse(&create.es()).is_err());
    }
}
