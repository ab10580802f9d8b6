//! Requests as a participant sends them: each is written so that its own parser reads it back the same.
//!
//! Members that every kind shares come first, in the order of contract 06 §1.3; the payload follows. A host reads members
//! in any order, apart from those of an artifact, whose order its digest is over (contract 06 §3.1).

use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq},
};

use super::{
    AdminRequest, EnrollmentRequest, Envelope, GoalIndexRequest, Kind, MaintenanceRequest, Mend, Payload,
    PrepareRetirementRequest, RetainedAgentRequest, RunAdmissionRequest, RunAttemptRequest, RunCancelRequest,
    RunRevokeRequest, RunSubmissionRequest, RuntimeRequest, ServedSession, ServiceRequest, Turn, VERSION,
    service::{MANAGER_ENDPOINT, Renewal},
};
use crate::{
    es_value::{EsObject, EsValue},
    time::MAX_SAFE_INTEGER,
};

/// The envelope's members.
fn envelope<M: SerializeMap>(map: &mut M, kind: Kind, envelope: &Envelope) -> Result<(), M::Error> {
    map.serialize_entry("v", &VERSION)?;
    map.serialize_entry("kind", kind.as_str())?;
    map.serialize_entry("space", &envelope.space)?;
    map.serialize_entry("actor", &envelope.actor)?;
    map.serialize_entry("instanceId", &envelope.instance_id)?;
    map.serialize_entry("managerLifecycleUid", &envelope.manager_lifecycle_uid)?;
    map.serialize_entry("requestId", &envelope.request_id)?;
    if let Some(proof) = &envelope.registration_proof {
        map.serialize_entry("registrationProof", proof)?;
    }
    map.serialize_entry("identities", &envelope.identities)
}

fn pins<M: SerializeMap>(map: &mut M, pins: &Renewal) -> Result<(), M::Error> {
    map.serialize_entry("accountPublicKey", &pins.account)?;
    map.serialize_entry("processEpoch", &pins.process_epoch)
}

impl Serialize for ServiceRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        envelope(&mut map, Kind::Service, &self.envelope)?;
        map.serialize_entry("operation", self.operation.as_str())?;
        match &self.payload {
            Payload::None => {}
            Payload::Artifacts(artifacts) => map.serialize_entry("contractArtifacts", artifacts)?,
            Payload::Session(session) => map.serialize_entry("session", &Session(session))?,
            Payload::Retirement(retirement) => map.serialize_entry("retirement", retirement)?,
            Payload::Standing(renewal) => pins(&mut map, renewal)?,
            Payload::Run(renewal, run) => {
                pins(&mut map, renewal)?;
                map.serialize_entry("run", run)?;
            }
            Payload::Reader(reader) => map.serialize_entry("transferReader", reader)?,
        }
        map.end()
    }
}

/// A session with the endpoint that it is served at, which is the manager's.
struct Session<'a>(&'a ServedSession);

impl Serialize for Session<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(5))?;
        map.serialize_entry("id", &self.0.id)?;
        map.serialize_entry("endpoint", MANAGER_ENDPOINT)?;
        map.serialize_entry("sessionId", &self.0.session_id)?;
        map.serialize_entry("epoch", &self.0.epoch)?;
        map.serialize_entry("exp", &self.0.exp)?;
        map.end()
    }
}

impl Serialize for MaintenanceRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        envelope(&mut map, Kind::Maintenance, &self.envelope)?;
        map.serialize_entry("operation", self.mend.operation())?;
        map.serialize_entry("targetInstanceId", &self.target_instance_id)?;
        if let Mend::Evict(principals) = &self.mend {
            map.serialize_entry("principals", principals)?;
        }
        map.end()
    }
}

/// The kinds that carry the serving epoch, and what each adds.
macro_rules! at_serve_epoch {
    ($($request:ty, |$this:ident| $kind:expr => $($member:literal: $value:expr),*;)+) => {$(
        impl Serialize for $request {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $this = self;
                let mut map = serializer.serialize_map(None)?;
                envelope(&mut map, $kind, &$this.envelope)?;
                map.serialize_entry("serveEpoch", &$this.serve_epoch)?;
                $(map.serialize_entry($member, $value)?;)*
                map.end()
            }
        }
    )+};
}

at_serve_epoch! {
    EnrollmentRequest, |this| Kind::Enrollment => "target": &this.target;
    PrepareRetirementRequest, |this| Kind::PrepareRetirement => "target": &this.target, "opId": &this.op_id;
    RetainedAgentRequest, |this| Kind::RetainedAgentValidation =>
        "target": &this.target, "actorToken": &this.actor_token, "sentinelCreds": &this.sentinel_creds;
    GoalIndexRequest, |this| Kind::GoalIndexScan => ;
    AdminRequest, |this| Kind::AdminAuthorization => "caller": &this.caller;
}

/// A request about a hosted runtime, as one of its two kinds.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeRequestAs<'a>(pub Kind, pub &'a RuntimeRequest);

impl Serialize for RuntimeRequestAs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        envelope(&mut map, self.0, &self.1.envelope)?;
        map.serialize_entry("serveEpoch", &self.1.serve_epoch)?;
        map.serialize_entry("target", &self.1.target)?;
        map.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmittedRun<'a> {
    run_id: &'a super::RunId,
    subject: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RevokedRun<'a> {
    run_id: &'a super::RunId,
    reason: &'a str,
}

impl Serialize for RunAdmissionRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        envelope(&mut map, Kind::RunAdmission, &self.envelope)?;
        pins(&mut map, &self.pins)?;
        map.serialize_entry("run", &AdmittedRun { run_id: &self.run_id, subject: &self.subject })?;
        map.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SubmittedRun<'a> {
    submission_id: &'a super::SubmissionId,
    run_id: &'a super::RunId,
    subject: &'a str,
}

impl Serialize for RunSubmissionRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        envelope(&mut map, Kind::RunSubmission, &self.envelope)?;
        pins(&mut map, &self.pins)?;
        let Self { submission_id, run_id, subject, .. } = self;
        map.serialize_entry("submission", &SubmittedRun { submission_id, run_id, subject })?;
        map.end()
    }
}

impl Serialize for RunCancelRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        envelope(&mut map, Kind::RunCancel, &self.envelope)?;
        pins(&mut map, &self.pins)?;
        map.serialize_entry("cancel", &AdmittedRun { run_id: &self.run_id, subject: &self.subject })?;
        map.end()
    }
}

impl Serialize for RunRevokeRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        envelope(&mut map, Kind::RunRevoke, &self.envelope)?;
        pins(&mut map, &self.pins)?;
        map.serialize_entry("revoke", &RevokedRun { run_id: &self.run_id, reason: &self.reason })?;
        map.end()
    }
}

impl Serialize for RunAttemptRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        envelope(&mut map, Kind::RunAttempt, &self.envelope)?;
        pins(&mut map, &self.pins)?;
        match &self.turn {
            Turn::Attempt(attempt) => map.serialize_entry("attempt", attempt)?,
            Turn::Operator(operator) => map.serialize_entry("operator", operator)?,
        }
        map.end()
    }
}

/// In its own order, each integer without a fraction: what a host parses of it is this value.
impl Serialize for EsValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(flag) => serializer.serialize_bool(*flag),
            Self::Number(number) => match self.as_safe_integer() {
                // `-0` is no integer of the wire; it keeps its sign as a double.
                Some(integer)
                    if integer <= MAX_SAFE_INTEGER && !(integer == 0 && number.is_sign_negative()) =>
                {
                    serializer.serialize_u64(integer)
                }
                _ => serializer.serialize_f64(*number),
            },
            Self::Text(text) => serializer.serialize_str(text),
            Self::Array(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    seq.serialize_element(item)?;
                }
                seq.end()
            }
            Self::Object(object) => object.serialize(serializer),
        }
    }
}

impl Serialize for EsObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (key, value) in self.members() {
            map.serialize_entry(&key, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::manager_authority::{HolderKind, Operation};

    const PROOF: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn nkey(letter: char) -> String {
        format!("U{}", letter.to_string().repeat(55))
    }

    fn body(kind: Kind, proof: bool, more: &Value) -> EsValue {
        let id = |letter| json!({ "id": nkey(letter) });
        let mut body = json!({
            "v": 1, "kind": kind.as_str(), "space": "main", "actor": "cli",
            "instanceId": "i".repeat(26), "managerLifecycleUid": "m".repeat(26), "requestId": "r".repeat(22),
            "identities": {
                "supervisor": id('A'), "executor": id('B'), "serve": id('C'), "goalWriter": id('D'),
                "sessionLedger": id('E'),
            },
        });
        let members = body.as_object_mut().unwrap();
        if proof {
            members.insert("registrationProof".into(), PROOF.into());
        }
        members.extend(more.as_object().unwrap().clone());
        EsValue::parse(body.to_string().as_bytes()).unwrap()
    }

    fn written(request: &impl Serialize) -> EsValue {
        EsValue::parse(&serde_json::to_vec(request).unwrap()).unwrap()
    }

    fn target() -> Value {
        json!({ "owner": format!("u_{}", "a".repeat(26)), "actor": "bob", "lifecycleUid": "t".repeat(26) })
    }

    fn op_id() -> String {
        crate::OpId::managed_retirement(&crate::LifecycleUid::parse(&"t".repeat(26)).unwrap()).to_string()
    }

    #[test]
    fn every_operation_reads_back_what_was_written() {
        let account = format!("A{}", "A".repeat(55));
        let run = json!({
            "runId": format!("run-{}", "0".repeat(32)), "holder": format!("{}.{}", nkey('A'), "0".repeat(16)),
            "takeoverId": "0".repeat(16), "epoch": 1, "fencingToken": 2, "driverId": nkey('F'), "mediatorId": nkey('G'),
        });
        for (operation, more) in [
            (Operation::Prepare, json!({})),
            (
                Operation::Activate,
                json!({ "contractArtifacts": [{ "b": 1.5, "a": [-0.0, 1e21, "\u{1}"], "2": null }] }),
            ),
            (Operation::Renew, json!({})),
            (
                Operation::Session,
                json!({ "session": { "id": nkey('F'), "endpoint": "manager", "sessionId": "s", "epoch": 0, "exp": 9 } }),
            ),
            (
                Operation::Retire,
                json!({ "retirement": { "id": nkey('F'), "target": target(), "opId": op_id(), "serveEpoch": 0 } }),
            ),
            (Operation::RenewStandingBundle, json!({ "accountPublicKey": account, "processEpoch": 3 })),
            (
                Operation::RenewRunDriver,
                json!({ "accountPublicKey": account, "processEpoch": 3, "run": run }),
            ),
            (Operation::TransferReader, json!({ "transferReader": { "id": nkey('F') } })),
        ] {
            let mut more = more;
            more["operation"] = operation.as_str().into();
            let sent = body(Kind::Service, operation != Operation::Prepare, &more);
            let request = ServiceRequest::parse(&sent, HolderKind::Human).unwrap();
            let again = ServiceRequest::parse(&written(&request), HolderKind::Human).unwrap();
            assert_eq!(again, request, "{}", operation.as_str());
            if let (Payload::Artifacts(sent), Payload::Artifacts(again)) = (&request.payload, &again.payload)
            {
                assert_eq!(sent[0].stringify(), again[0].stringify(), "the bytes that its digest is over");
            }
        }
    }

    #[test]
    fn every_other_kind_reads_back_what_was_written() {
        macro_rules! reads_back {
            ($request:ty, $kind:expr, $proof:expr, $more:expr $(, $holder:expr)?) => {{
                let request = <$request>::parse(&body($kind, $proof, &$more) $(, $holder)?).unwrap();
                assert_eq!(<$request>::parse(&written(&request) $(, $holder)?).unwrap(), request);
            }};
        }
        let human = HolderKind::Human;
        let runs = |more: Value| {
            let mut body = json!({ "accountPublicKey": format!("A{}", "A".repeat(55)), "processEpoch": 0 });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let run_id = format!("run-{}", "f".repeat(32));
        reads_back!(
            MaintenanceRequest,
            Kind::Maintenance,
            false,
            json!({ "operation": "evict-family-principal", "targetInstanceId": "i".repeat(26), "principals": ["a.b"] })
        );
        reads_back!(
            MaintenanceRequest,
            Kind::Maintenance,
            false,
            json!({ "operation": "reconcile-registration", "targetInstanceId": "x".repeat(26) })
        );
        let hash = "0".repeat(64);
        reads_back!(
            EnrollmentRequest,
            Kind::Enrollment,
            true,
            json!({ "serveEpoch": 0, "target": { "actor": "bob", "role": "r", "label": "\u{e9}", "capabilities": ["role:x"],
                "subscribe": [], "allowSubscribe": ["team.>"], "tokenHash": hash } })
        );
        reads_back!(
            PrepareRetirementRequest,
            Kind::PrepareRetirement,
            true,
            json!({ "serveEpoch": 1, "target": target(), "opId": op_id() })
        );
        reads_back!(
            RetainedAgentRequest,
            Kind::RetainedAgentValidation,
            true,
            json!({ "serveEpoch": 1, "target": target(), "actorToken": "t", "sentinelCreds": "c" }),
            human
        );
        reads_back!(GoalIndexRequest, Kind::GoalIndexScan, true, json!({ "serveEpoch": 1 }));
        reads_back!(
            AdminRequest,
            Kind::AdminAuthorization,
            true,
            json!({ "serveEpoch": 1, "caller": target() }),
            human
        );
        reads_back!(
            RunAdmissionRequest,
            Kind::RunAdmission,
            true,
            runs(json!({ "run": { "runId": run_id, "subject": "cotal.main" } }))
        );
        reads_back!(
            RunRevokeRequest,
            Kind::RunRevoke,
            true,
            runs(json!({ "revoke": { "runId": run_id, "reason": "why" } }))
        );
        reads_back!(
            RunSubmissionRequest,
            Kind::RunSubmission,
            true,
            runs(
                json!({ "submission": { "submissionId": "s".repeat(32), "runId": run_id, "subject": "cotal.main" } })
            )
        );
        reads_back!(
            RunCancelRequest,
            Kind::RunCancel,
            true,
            runs(json!({ "cancel": { "runId": run_id, "subject": "cotal.main" } }))
        );
        for turn in [
            json!({ "attempt": { "runId": run_id, "takeoverId": "t", "epoch": 1, "fencingToken": 1, "driverId": nkey('F'),
                "mediatorId": nkey('G'), "served": "s" } }),
            json!({ "operator": { "id": nkey('F'), "takeoverId": "t", "runId": run_id } }),
            json!({ "operator": { "id": nkey('F'), "takeoverId": "t",
                "answers": { "runId": run_id, "stepKey": "k", "amend": true }, "served": "s" } }),
        ] {
            reads_back!(RunAttemptRequest, Kind::RunAttempt, true, runs(turn));
        }
        for kind in [Kind::RuntimeCreate, Kind::RuntimeStatus] {
            let sent = body(kind, true, &json!({ "serveEpoch": 1, "target": target() }));
            let request = RuntimeRequest::parse(&sent, kind).unwrap();
            assert_eq!(
                RuntimeRequest::parse(&written(&RuntimeRequestAs(kind, &request)), kind).unwrap(),
                request
            );
        }
    }
}
