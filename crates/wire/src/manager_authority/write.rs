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
