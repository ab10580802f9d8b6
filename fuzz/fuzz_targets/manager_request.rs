//! Requests of `POST /manager-service-authority` and of the platform's doors, before anything is proved (contract 06 §1.3, 05
//! §16-17). The first byte picks the parser, or leaves the choice to the request's `kind`, as the dispatcher does.
//!
//! Every refusal is `bad-request` (of a platform also `unimplemented`), one short line; what is accepted obeys the grammars by a
//! second reading, means the same however its members are ordered, and has one proof.
#![no_main]

use cotal_wire::{
    EpCode, EpError, Owner,
    es_value::EsValue,
    manager_authority::{
        AdminRequest, EnrollmentRequest, Envelope, ExecutionRequest, GoalIndexRequest, HolderKind,
        IntentRequest, Kind, MaintenanceRequest, Operation, Payload, PlatformControlRequest,
        PlatformSupervisorRequest, PrepareRetirementRequest, RetainedAgentRequest, RunAdmissionRequest,
        RunAttemptRequest, RunCancelRequest, RunRevokeRequest, RunSubmissionRequest, RuntimeRequest,
        ServiceRequest, current_registration_message, registration_proof,
    },
};
use libfuzzer_sys::fuzz_target;
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
    for holder in [HolderKind::Human, HolderKind::Platform] {
        match parse(kind, &request, holder) {
            Ok(parsed) => check(kind, &parsed, &plain),
            Err(refusal) => refused(&refusal, EpCode::BadRequest),
        }
    }
});

/// What every parsed request has, and one of the manager's own lifecycle besides.
struct Parsed {
    envelope: Option<Envelope>,
    service: Option<ServiceRequest>,
}

fn parse(kind: Kind, request: &EsValue, holder: HolderKind) -> Result<Parsed, EpError> {
    let of = |envelope: Envelope| Parsed { envelope: Some(envelope), service: None };
    match kind {
        Kind::Service => ServiceRequest::parse(request, holder)
            .map(|service| Parsed { envelope: Some(service.envelope.clone()), service: Some(service) }),
        Kind::Enrollment => EnrollmentRequest::parse(request).map(|parsed| of(parsed.envelope)),
        Kind::PrepareRetirement => PrepareRetirementRequest::parse(request).map(|parsed| of(parsed.envelope)),
        Kind::RuntimeCreate | Kind::RuntimeStatus => {
            RuntimeRequest::parse(request, kind).map(|parsed| of(parsed.envelope))
        }
        Kind::RetainedAgentValidation => RetainedAgentRequest::parse(request, holder).map(|parsed| {
            let of_others = RetainedAgentRequest {
                actor_token: "another token".to_owned(),
                sentinel_creds: "other credentials".to_owned(),
                ..parsed.clone()
            };
            assert_eq!(format!("{parsed:?}"), format!("{of_others:?}"), "a secret is shown");
            of(parsed.envelope)
        }),
        Kind::GoalIndexScan => GoalIndexRequest::parse(request).map(|parsed| of(parsed.envelope)),
        Kind::AdminAuthorization => AdminRequest::parse(request, holder).map(|parsed| of(parsed.envelope)),
        Kind::RunAdmission => RunAdmissionRequest::parse(request).map(|parsed| of(parsed.envelope)),
        Kind::RunRevoke => RunRevokeRequest::parse(request).map(|parsed| of(parsed.envelope)),
        Kind::RunAttempt => RunAttemptRequest::parse(request).map(|parsed| of(parsed.envelope)),
        Kind::Maintenance => MaintenanceRequest::parse(request).map(|parsed| of(parsed.envelope)),
        Kind::DelegatedIntent => {
            IntentRequest::parse(request).map(|_| Parsed { envelope: None, service: None })
        }
        Kind::DelegatedIntentExecution => ExecutionRequest::parse(request).map(|parsed| of(parsed.envelope)),
        Kind::RunSubmission => RunSubmissionRequest::parse(request).map(|parsed| of(parsed.envelope)),
        Kind::RunCancel => RunCancelRequest::parse(request).map(|parsed| of(parsed.envelope)),
    }
}

fn check(kind: Kind, parsed: &Parsed, plain: &Value) {
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
        }
        Err(refusal) => refused(&refusal, EpCode::BadRequest),
    }
}

fn refused(refusal: &EpError, code: EpCode) {
    assert_eq!(refusal.code, code, "{refusal}");
    assert!(!refusal.message.is_empty() && refusal.message.len() < LONGEST, "{refusal}");
    assert!(!refusal.message.contains('\n'), "{refusal}");
}
