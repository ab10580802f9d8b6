//! Requests of `POST /manager-service-authority` and of the platform's doors, before anything is proved (contract 06 §1.3, 05
//! §16-17). The first byte picks the parser, or leaves the choice to the request's `kind`, as the dispatcher does.
//!
//! Every refusal is `bad-request` (of a platform also `unimplemented`), one short line; what is accepted obeys the grammars by a
//! second reading, is written as it was read, means the same however its members are ordered, and has one proof.
#![no_main]

use cotal_fuzz::json;
use cotal_wire::{
    EpCode, EpError, Owner,
    es_value::EsValue,
    manager_authority::{
        AdminRequest, EnrollmentRequest, Envelope, ExecutionRequest, GoalIndexRequest, HolderKind,
        IntentRequest, Kind, MaintenanceRequest, Operation, Payload, PlatformControlRequest,
        PlatformSupervisorRequest, PrepareRetirementRequest, RetainedAgentRequest, RunAdmissionRequest,
        RunAttemptRequest, RunCancelRequest, RunRevokeRequest, RunSubmissionRequest, RuntimeRequest,
        RuntimeRequestAs, ServiceRequest, current_registration_message, registration_proof,
    },
};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde_json::Value;

/// Longest refusal: a path, a member, and at most 64 characters of an unknown member's name, escaped.
const LONGEST: usize = 1024;

fuzz_target!(|data: &[u8]| {
    let Some((pick, text)) = data.split_first() else { return };
    let Ok(request) = EsValue::parse(text) else { return };
    let plain: Value = serde_json::from_slice(text).expect("what an ECMAScript program reads is JSON");
    let printed = request.stringify();
    assert_eq!(
        EsValue::parse(printed.as_bytes()).expect("its own text"),
        request,
        "printing changes the value"
    );

    let kind = match pick % 32 {
        at @ 0..16 => Kind::ALL[usize::from(at)],
        16..24 => {
            plain.get("kind").and_then(Value::as_str).and_then(Kind::from_name).unwrap_or(Kind::Service)
        }
        24..28 => return control(&request, &plain),
        _ => return supervisor(&request, &plain),
    };
    route(kind, &request, &plain, HolderKind::Human);
    route(kind, &request, &plain, HolderKind::Platform);
});

fn route(kind: Kind, request: &EsValue, plain: &Value, holder: HolderKind) {
    let read = parse(kind, request, holder);
    let turned = parse(kind, &turned(request), holder);
    assert_eq!(read.as_ref().ok(), turned.as_ref().ok(), "the order of its members means something");
    match read {
        Ok(parsed) => check(kind, &parsed, request, plain),
        Err(refusal) => refused(&refusal, EpCode::BadRequest),
    }
}

/// The same members, the last one first.
fn turned(request: &EsValue) -> EsValue {
    let Some(object) = request.as_object() else { return request.clone() };
    let mut members: Vec<String> = object
        .members()
        .map(|(key, value)| format!("{}:{}", EsValue::Text(key.into_owned()).stringify(), value.stringify()))
        .collect();
    members.reverse();
    EsValue::parse(format!("{{{}}}", members.join(",")).as_bytes()).expect("an object")
}

/// What every parsed request has.
#[derive(Debug, PartialEq)]
struct Parsed {
    envelope: Option<Envelope>,
    /// Of the manager's own lifecycle alone.
    service: Option<ServiceRequest>,
    /// As a participant sends it. None sends what a user or a platform asks for.
    written: Option<Value>,
}

impl Parsed {
    fn of(envelope: &Envelope, request: &impl Serialize) -> Self {
        Self { envelope: Some(envelope.clone()), service: None, written: Some(plain_of(&written(request))) }
    }
}

fn written(request: &impl Serialize) -> EsValue {
    let text = serde_json::to_vec(request).expect("a request is text");
    EsValue::parse(&text).expect("what is sent is JSON")
}

/// As one text, whatever the numbers of it looked like.
fn plain_of(value: &EsValue) -> Value {
    json(value.stringify().as_bytes())
}

fn parse(kind: Kind, request: &EsValue, holder: HolderKind) -> Result<Parsed, EpError> {
    macro_rules! of {
        ($parsed:expr) => {
            $parsed.map(|parsed| Parsed::of(&parsed.envelope, &parsed))
        };
    }
    match kind {
        Kind::Service => ServiceRequest::parse(request, holder).map(|service| Parsed {
            service: Some(service.clone()),
            ..Parsed::of(&service.envelope, &service)
        }),
        Kind::Enrollment => of!(EnrollmentRequest::parse(request)),
        Kind::PrepareRetirement => of!(PrepareRetirementRequest::parse(request)),
        Kind::RuntimeCreate | Kind::RuntimeStatus => RuntimeRequest::parse(request, kind)
            .map(|parsed| Parsed::of(&parsed.envelope, &RuntimeRequestAs(kind, &parsed))),
        Kind::RetainedAgentValidation => RetainedAgentRequest::parse(request, holder).map(|parsed| {
            let of_others = RetainedAgentRequest {
                actor_token: "another token".to_owned(),
                sentinel_creds: "other credentials".to_owned(),
                ..parsed.clone()
            };
            assert_eq!(format!("{parsed:?}"), format!("{of_others:?}"), "a secret is shown");
            Parsed::of(&parsed.envelope, &parsed)
        }),
        Kind::GoalIndexScan => of!(GoalIndexRequest::parse(request)),
        Kind::AdminAuthorization => of!(AdminRequest::parse(request, holder)),
        Kind::RunAdmission => of!(RunAdmissionRequest::parse(request)),
        Kind::RunRevoke => of!(RunRevokeRequest::parse(request)),
        Kind::RunAttempt => of!(RunAttemptRequest::parse(request)),
        Kind::Maintenance => of!(MaintenanceRequest::parse(request)),
        Kind::RunSubmission => of!(RunSubmissionRequest::parse(request)),
        Kind::RunCancel => of!(RunCancelRequest::parse(request)),
        Kind::DelegatedIntent => {
            IntentRequest::parse(request).map(|_| Parsed { envelope: None, service: None, written: None })
        }
        Kind::DelegatedIntentExecution => ExecutionRequest::parse(request).map(|parsed| Parsed {
            envelope: Some(parsed.envelope),
            service: None,
            written: None,
        }),
    }
}

/// What was sent, without what the route does not look at.
fn sent(request: &EsValue) -> Value {
    let mut sent = plain_of(request);
    if let Some(session) = sent.get_mut("session").and_then(Value::as_object_mut) {
        session
            .retain(|member, _| ["id", "endpoint", "sessionId", "epoch", "exp"].contains(&member.as_str()));
    }
    sent
}

fn check(kind: Kind, parsed: &Parsed, request: &EsValue, plain: &Value) {
    if let Some(written) = &parsed.written {
        assert_eq!(*written, sent(request), "it is written otherwise than it was read");
    }
    assert_eq!(plain["kind"], kind.as_str());
    assert_eq!(plain["v"].as_f64(), Some(1.0));
    let texts = |value: &Value, wanted: &str| assert_eq!(value, wanted);
    let Some(envelope) = &parsed.envelope else { return };
    texts(&plain["space"], &envelope.space);
    texts(&plain["actor"], envelope.actor.as_str());
    texts(&plain["instanceId"], envelope.instance_id.as_str());
    texts(&plain["managerLifecycleUid"], envelope.manager_lifecycle_uid.as_str());
    texts(&plain["requestId"], envelope.request_id.as_str());
    assert!(!envelope.space.is_empty());
    for token in [envelope.instance_id.as_str(), envelope.manager_lifecycle_uid.as_str()] {
        assert!(
            (26..=32).contains(&token.len())
                && token.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        );
    }
    match &envelope.registration_proof {
        Some(proof) => texts(&plain["registrationProof"], proof.as_str()),
        None => assert!(plain.get("registrationProof").is_none()),
    }
    assert_eq!(plain["identities"].as_object().map(serde_json::Map::len), Some(5));

    let owner = Owner::parse(&format!("u_{}", "a".repeat(26))).expect("an owner");
    let artifacts = match parsed.service.as_ref().map(|service| (&service.payload, service.operation)) {
        Some((Payload::Artifacts(artifacts), operation)) => {
            assert_eq!(operation, Operation::Activate);
            &artifacts[..]
        }
        _ => &[],
    };
    let proof = registration_proof(envelope, &owner, artifacts);
    assert_eq!(proof.as_str().len(), 71);
    assert_eq!(proof, registration_proof(envelope, &owner, artifacts));
    if !artifacts.is_empty() {
        assert_ne!(proof, registration_proof(envelope, &owner, &[]));
    }
    assert_ne!(
        current_registration_message(envelope, &owner, 1, 0),
        current_registration_message(envelope, &owner, 0, 1)
    );
}

fn control(request: &EsValue, plain: &Value) {
    match PlatformControlRequest::parse(request) {
        Ok(parsed) => {
            assert!(PlatformControlRequest::KINDS.contains(&parsed.kind));
            assert_eq!(plain["request"]["kind"], parsed.kind.as_str());
            assert_eq!(plain["request"]["actor"], "cli");
            assert_eq!(plain["request"]["instanceId"], parsed.instance_id);
            assert_eq!(plain["accountPublicKey"], parsed.account);
            assert_eq!(plain["assignmentRevision"].as_f64(), Some(parsed.assignment_revision as f64));
            route(parsed.kind, parsed.request, &plain["request"], HolderKind::Platform);
        }
        Err(refusal) if refusal.code == EpCode::Unimplemented => refused(&refusal, EpCode::Unimplemented),
        Err(refusal) => refused(&refusal, EpCode::BadRequest),
    }
}

fn supervisor(request: &EsValue, plain: &Value) {
    match PlatformSupervisorRequest::parse(request) {
        Ok(parsed) => {
            assert_eq!(plain["owner"], parsed.owner.as_str());
            assert!(parsed.owner.as_str().starts_with("u_"));
            assert_eq!(plain["request"]["actor"], "cli");
            assert_eq!(plain["request"]["operation"], parsed.service.operation.as_str());
            route(Kind::Service, parsed.request, &plain["request"], HolderKind::Human);
        }
        Err(refusal) => refused(&refusal, EpCode::BadRequest),
    }
}

fn refused(refusal: &EpError, code: EpCode) {
    assert_eq!(refusal.code, code, "{refusal}");
    assert!(!refusal.message.is_empty() && refusal.message.len() < LONGEST, "{refusal}");
    assert!(!refusal.message.contains('\n'), "{refusal}");
}
