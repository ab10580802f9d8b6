//! One valid request of each form: the orders are proved on them, they are read back as they are written, and the fuzz target
//! `manager_request` starts from them.

use std::{fs, path::Path};

use cotal_wire::{
    error::EpError,
    es_value::EsValue,
    manager_authority::{
        AdminRequest, EnrollmentRequest, ExecutionRequest, GoalIndexRequest, HolderKind, IntentRequest, Kind,
        MaintenanceRequest, Operation, PlatformControlRequest, PlatformSupervisorRequest,
        PrepareRetirementRequest, RetainedAgentRequest, RunAdmissionRequest, RunAttemptRequest,
        RunCancelRequest, RunRevokeRequest, RunSubmissionRequest, RuntimeRequest, RuntimeRequestAs,
        ServiceRequest,
    },
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{INSTANCE, OWNER, UID, account, es, incarnation, key, merge, op, request, set};

pub(crate) fn service(operation: Operation) -> Value {
    let payload = match operation {
        Operation::Prepare => json!({ "registrationProof": "-" }),
        Operation::Renew => json!({}),
        Operation::Activate => json!({ "contractArtifacts": [
            { "urn": "ai.cotal.manager", "revision": 1.5, "b": [-0.0, 1e21, "\u{1}é"], "10": null, "2": {} },
        ] }),
        Operation::Session => json!({ "session": {
            "id": key("F"), "endpoint": "manager", "sessionId": "s", "epoch": 0, "exp": 1,
        } }),
        Operation::Retire => json!({ "retirement": {
            "id": key("F"), "target": incarnation(), "opId": op(), "serveEpoch": 0,
        } }),
        Operation::RenewStandingBundle => pins(json!({})),
        Operation::RenewRunDriver => pins(json!({ "run": {
            "runId": run_id(), "holder": "host.0123456789abcdef", "takeoverId": "0123456789abcdef", "epoch": 1,
            "fencingToken": 1, "driverId": key("F"), "mediatorId": key("G"),
        } })),
        Operation::TransferReader => json!({ "transferReader": { "id": key("F") } }),
    };
    let mut service = request(Kind::Service, json!({ "operation": operation.as_str() }));
    merge(&mut service, payload);
    service
}

pub(crate) fn enrollment() -> Value {
    let target = json!({
        "actor": "alice", "role": "r", "label": "l", "capabilities": ["spawn", "role:x"], "subscribe": ["general"],
        "allowSubscribe": ["general.>"], "allowPublish": ["general"], "tokenHash": "0".repeat(64),
    });
    request(Kind::Enrollment, json!({ "serveEpoch": 0, "target": target }))
}

pub(crate) fn bare_enrollment() -> Value {
    let target = json!({ "actor": "alice", "tokenHash": "0".repeat(64) });
    request(Kind::Enrollment, json!({ "serveEpoch": 0, "target": target }))
}

pub(crate) fn prepare_retirement() -> Value {
    request(Kind::PrepareRetirement, json!({ "serveEpoch": 0, "target": incarnation(), "opId": op() }))
}

pub(crate) fn runtime(kind: Kind) -> Value {
    request(kind, json!({ "serveEpoch": 0, "target": incarnation() }))
}

pub(crate) fn retained() -> Value {
    request(
        Kind::RetainedAgentValidation,
        json!({ "serveEpoch": 0, "target": incarnation(), "actorToken": "t", "sentinelCreds": "c" }),
    )
}

pub(crate) fn goal_index() -> Value {
    request(Kind::GoalIndexScan, json!({ "serveEpoch": 0 }))
}

pub(crate) fn admin() -> Value {
    request(Kind::AdminAuthorization, json!({ "serveEpoch": 0, "caller": incarnation() }))
}

/// Maintenance carries no proof.
fn maintenance(more: Value) -> Value {
    let mut maintenance = request(Kind::Maintenance, more);
    set(&mut maintenance, &["registrationProof"], json!("-"));
    maintenance
}

pub(crate) fn evict() -> Value {
    maintenance(
        json!({ "operation": "evict-family-principal", "targetInstanceId": INSTANCE, "principals": ["a.b"] }),
    )
}

pub(crate) fn reconcile() -> Value {
    maintenance(json!({ "operation": "reconcile-registration", "targetInstanceId": INSTANCE }))
}

fn pins(more: Value) -> Value {
    let mut pinned = json!({ "accountPublicKey": account(), "processEpoch": 0 });
    merge(&mut pinned, more);
    pinned
}

pub(crate) fn run_id() -> String {
    format!("run-{}", "a".repeat(32))
}

pub(crate) fn run(kind: Kind, more: Value) -> Value {
    request(kind, pins(more))
}

pub(crate) fn admission() -> Value {
    run(Kind::RunAdmission, json!({ "run": { "runId": run_id(), "subject": "s" } }))
}

pub(crate) fn submission() -> Value {
    let submission = json!({ "submissionId": "a", "runId": run_id(), "subject": "s" });
    run(Kind::RunSubmission, json!({ "submission": submission }))
}

pub(crate) fn cancel() -> Value {
    run(Kind::RunCancel, json!({ "cancel": { "runId": run_id(), "subject": "s" } }))
}

pub(crate) fn revoke() -> Value {
    run(Kind::RunRevoke, json!({ "revoke": { "runId": run_id(), "reason": "why" } }))
}

pub(crate) fn attempt() -> Value {
    let attempt = json!({
        "runId": run_id(), "takeoverId": "t", "epoch": 1, "fencingToken": 1, "driverId": key("F"),
        "mediatorId": key("G"), "served": "s",
    });
    run(Kind::RunAttempt, json!({ "attempt": attempt }))
}

pub(crate) fn operator(more: Value) -> Value {
    let mut operator = json!({ "id": key("F"), "takeoverId": "t" });
    merge(&mut operator, more);
    run(Kind::RunAttempt, json!({ "operator": operator }))
}

fn answer() -> Value {
    operator(json!({ "answers": { "runId": run_id(), "stepKey": "s", "amend": true }, "served": "s" }))
}

pub(crate) fn intent(intent: &Value) -> Value {
    json!({
        "v": 1, "kind": Kind::DelegatedIntent.as_str(), "space": "main", "actor": "cli", "accountPublicKey": account(),
        "instanceId": INSTANCE, "requestId": "r".repeat(22), "intent": intent,
    })
}

pub(crate) fn launch() -> Value {
    json!({ "operation": "launch", "target": { "actor": "alice" } })
}

pub(crate) fn retire() -> Value {
    json!({ "operation": "retire", "target": incarnation() })
}

pub(crate) fn execution(execute: &Value) -> Value {
    request(
        Kind::DelegatedIntentExecution,
        json!({
            "accountPublicKey": account(), "assignmentRevision": 0, "serveEpoch": 0, "intentId": UID, "execute": execute,
        }),
    )
}

pub(crate) fn execute_launch() -> Value {
    json!({ "operation": "launch", "target": { "actor": "alice", "tokenHash": "0".repeat(64) } })
}

/// Every form of every kind, by a name of its own.
fn requests() -> Vec<(&'static str, Kind, Value)> {
    let lifecycle = Operation::ALL.map(|operation| (operation.as_str(), Kind::Service, service(operation)));
    let others = [
        ("enrollment", Kind::Enrollment, enrollment()),
        ("enrollment-bare", Kind::Enrollment, bare_enrollment()),
        ("prepare-retirement", Kind::PrepareRetirement, prepare_retirement()),
        ("runtime-create", Kind::RuntimeCreate, runtime(Kind::RuntimeCreate)),
        ("runtime-status", Kind::RuntimeStatus, runtime(Kind::RuntimeStatus)),
        ("retained", Kind::RetainedAgentValidation, retained()),
        ("goal-index", Kind::GoalIndexScan, goal_index()),
        ("admin", Kind::AdminAuthorization, admin()),
        ("run-admission", Kind::RunAdmission, admission()),
        ("run-submission", Kind::RunSubmission, submission()),
        ("run-cancel", Kind::RunCancel, cancel()),
        ("run-revoke", Kind::RunRevoke, revoke()),
        ("run-attempt", Kind::RunAttempt, attempt()),
        ("run-operator", Kind::RunAttempt, operator(json!({ "runId": run_id() }))),
        ("run-answer", Kind::RunAttempt, answer()),
        ("evict", Kind::Maintenance, evict()),
        ("reconcile", Kind::Maintenance, reconcile()),
        ("intent-launch", Kind::DelegatedIntent, intent(&launch())),
        ("intent-retire", Kind::DelegatedIntent, intent(&retire())),
        ("execution-launch", Kind::DelegatedIntentExecution, execution(&execute_launch())),
        ("execution-retire", Kind::DelegatedIntentExecution, execution(&retire())),
    ];
    lifecycle.into_iter().chain(others).collect()
}

fn control() -> Value {
    json!({
        "v": 1, "kind": "platform-control-authority", "space": "main", "accountPublicKey": account(),
        "assignmentRevision": 0, "request": service(Operation::Session),
    })
}

fn supervisor() -> Value {
    json!({
        "v": 1, "kind": "platform-supervisor-authority", "owner": OWNER, "assignmentRevision": 0,
        "request": service(Operation::Prepare),
    })
}

/// A request read, and what a participant sends for it: nothing for the kinds that a platform or a user asks for.
fn rewritten(kind: Kind, sent: &EsValue) -> Result<Option<EsValue>, EpError> {
    fn written(request: &impl Serialize) -> EsValue {
        EsValue::parse(&serde_json::to_vec(request).unwrap()).unwrap()
    }
    let human = HolderKind::Human;
    Ok(Some(match kind {
        Kind::Service => written(&ServiceRequest::parse(sent, human)?),
        Kind::Maintenance => written(&MaintenanceRequest::parse(sent)?),
        Kind::Enrollment => written(&EnrollmentRequest::parse(sent)?),
        Kind::PrepareRetirement => written(&PrepareRetirementRequest::parse(sent)?),
        Kind::RuntimeCreate | Kind::RuntimeStatus => {
            written(&RuntimeRequestAs(kind, &RuntimeRequest::parse(sent, kind)?))
        }
        Kind::RetainedAgentValidation => written(&RetainedAgentRequest::parse(sent, human)?),
        Kind::GoalIndexScan => written(&GoalIndexRequest::parse(sent)?),
        Kind::AdminAuthorization => written(&AdminRequest::parse(sent, human)?),
        Kind::RunAdmission => written(&RunAdmissionRequest::parse(sent)?),
        Kind::RunSubmission => written(&RunSubmissionRequest::parse(sent)?),
        Kind::RunCancel => written(&RunCancelRequest::parse(sent)?),
        Kind::RunRevoke => written(&RunRevokeRequest::parse(sent)?),
        Kind::RunAttempt => written(&RunAttemptRequest::parse(sent)?),
        Kind::DelegatedIntent => return IntentRequest::parse(sent).map(|_| None),
        Kind::DelegatedIntentExecution => return ExecutionRequest::parse(sent).map(|_| None),
    }))
}

#[test]
fn every_kind_and_operation_is_written_as_it_was_read() {
    for kind in Kind::ALL {
        assert!(requests().iter().any(|(_, of, _)| *of == kind), "no form of {}", kind.as_str());
    }
    for (name, kind, request) in requests() {
        let sent = es(&request);
        let read = rewritten(kind, &sent).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        let Some(written) = read else { continue };
        // An envelope's members stand in any order; those of an artifact in theirs, which its digest is over.
        let plain = |value: &EsValue| serde_json::from_str::<Value>(&value.stringify()).unwrap();
        assert_eq!(plain(&written), plain(&sent), "{name}");
        let artifacts =
            |value: &EsValue| value.as_object().unwrap().get("contractArtifacts").map(EsValue::stringify);
        assert_eq!(artifacts(&written), artifacts(&sent), "{name}");
    }
    PlatformControlRequest::parse(&es(&control())).unwrap();
    PlatformSupervisorRequest::parse(&es(&supervisor())).unwrap();
}

/// `COTAL_BLESS=1` writes them. The first byte says who reads: the kind's own parser, or one of the platform's doors.
#[test]
fn every_valid_request_is_a_seed_of_its_fuzz_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/manager_request");
    let mut seeds: Vec<(&str, String)> =
        requests().iter().map(|(name, _, request)| (*name, format!("0{request}"))).collect();
    seeds.extend([("control", format!("8{}", control())), ("supervisor", format!("<{}", supervisor()))]);
    for (name, seed) in &seeds {
        let path = corpus.join(name);
        if std::env::var_os("COTAL_BLESS").is_some() {
            fs::write(&path, seed).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(kept, *seed, "{name}: regenerate with COTAL_BLESS=1, then read the difference");
    }
    // What a run once found is kept beside them.
    for kept in fs::read_dir(corpus).unwrap() {
        let name = kept.unwrap().file_name().into_string().unwrap();
        assert!(name.starts_with("found-") || seeds.iter().any(|(seed, _)| *seed == name), "{name} is stale");
    }
}
