//! The requests of a remote manager: every check alone, and the contract's order of them (contract 06).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's own constants")]

use cotal_wire::{
    EpCode, OpId, Owner,
    canonical::raw_digest,
    error::EpError,
    es_value::EsValue,
    manager_authority::{
        AdminRequest, Credentials, EnrollmentRequest, ExecutionRequest, GoalIndexRequest, HolderKind,
        IntentRequest, IssuedJwt, Kind, MaintenanceRequest, Operation, PrepareRetirementRequest, Proof,
        RemoteManagerAuthorityMaterial, RetainedAgentRequest, RunAdmissionRequest, RunAdmissionResult,
        RunAttemptRequest, RunAttemptResult, RunCancelRequest, RunRevocationResult, RunRevokeRequest,
        RunSubmissionRequest, RunSubmissionResult, RuntimeRequest, ServiceRequest,
        current_registration_message, registration_proof,
    },
    time::{UnixMillis, UnixSecs},
    token::LifecycleUid,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const UID: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbb";
const INSTANCE: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaa";
const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const PLATFORM: &str = "p_aaaaaaaaaaaaaaaaaaaaaaaaaa";

fn key(letter: &str) -> String {
    format!("U{}", letter.repeat(55))
}

fn account() -> String {
    format!("A{}", "A".repeat(55))
}

fn op() -> String {
    OpId::managed_retirement(&LifecycleUid::parse(UID).unwrap()).to_string()
}

fn incarnation() -> Value {
    json!({ "owner": OWNER, "actor": "alice", "lifecycleUid": UID })
}

/// The envelope of a kind, and what it carries beside it.
fn request(kind: Kind, more: Value) -> Value {
    let mut request = json!({
        "v": 1, "kind": kind.as_str(), "space": "main", "actor": "cli", "instanceId": INSTANCE,
        "managerLifecycleUid": UID, "requestId": "r".repeat(22),
        "registrationProof": format!("sha256:{}", "0".repeat(64)),
        "identities": {
            "supervisor": { "id": key("A") }, "executor": { "id": key("B") }, "serve": { "id": key("C") },
            "goalWriter": { "id": key("D") }, "sessionLedger": { "id": key("E") },
        },
    });
    merge(&mut request, more);
    request
}

/// Members with the value "-" go, every other one is set.
fn merge(into: &mut Value, more: Value) {
    let (Value::Object(into), Value::Object(more)) = (into, more) else { panic!("objects") };
    for (member, value) in more {
        if value == json!("-") {
            into.remove(&member);
        } else {
            into.insert(member, value);
        }
    }
}

fn es(value: &Value) -> EsValue {
    EsValue::parse(value.to_string().as_bytes()).unwrap()
}

type Parse = fn(&EsValue) -> Result<(), EpError>;

/// One check of an order: how a request comes to break it, and what the refusal names.
struct Check(&'static str, fn(&mut Value), &'static str);

fn set(value: &mut Value, path: &[&str], new: Value) {
    let (last, above) = path.split_last().unwrap();
    let mut at = value;
    for step in above {
        if !at[*step].is_object() {
            return;
        }
        at = &mut at[*step];
    }
    let Some(object) = at.as_object_mut() else { return };
    if new == json!("-") {
        object.remove(*last);
    } else {
        object.insert((*last).to_owned(), new);
    }
}

/// Each check refuses alone; of two broken rules the earlier one answers. `checks` stand in the contract's order.
fn prove_order(what: &str, parse: Parse, valid: &Value, checks: &[Check]) {
    parse(&es(valid)).unwrap_or_else(|error| panic!("{what}: valid: {error}"));
    let alone: Vec<String> = checks
        .iter()
        .map(|Check(name, break_it, says)| {
            let mut broken = valid.clone();
            break_it(&mut broken);
            let refusal = parse(&es(&broken)).expect_err(name);
            assert_eq!(refusal.code, EpCode::BadRequest, "{what}: {name}");
            assert!(refusal.message.contains(says), "{what}: {name}: {}", refusal.message);
            refusal.message
        })
        .collect();
    for (i, earlier) in checks.iter().enumerate() {
        for later in &checks[i + 1..] {
            let mut broken = valid.clone();
            // The later one first: what the earlier one breaks may hide where the later one would go.
            (later.1)(&mut broken);
            (earlier.1)(&mut broken);
            let refusal = parse(&es(&broken)).expect_err(earlier.0).message;
            assert_eq!(refusal, alone[i], "{what}: {} before {}", earlier.0, later.0);
        }
    }
}

/// Steps 2 and 4 to 9 of contract 06 §1.3.
fn envelope_checks() -> Vec<Check> {
    vec![
        Check("unknown member", |r| set(r, &["extra"], json!(null)), "unknown member \"extra\""),
        Check("version", |r| set(r, &["v"], json!("1")), "v must be 1"),
        Check("kind", |r| set(r, &["kind"], json!("manager")), "kind must be"),
        Check("space", |r| set(r, &["space"], json!("")), "space must be"),
        Check("no actor", |r| set(r, &["actor"], json!(7)), "actor must be a non-empty string"),
        Check(
            "no instance",
            |r| set(r, &["instanceId"], json!("-")),
            "instanceId must be a non-empty string",
        ),
        Check(
            "no lifecycle",
            |r| set(r, &["managerLifecycleUid"], json!(null)),
            "managerLifecycleUid must be a non-empty string",
        ),
        Check("no request id", |r| set(r, &["requestId"], json!("")), "requestId must be a non-empty string"),
        Check("actor", |r| set(r, &["actor"], json!("a-b")), "actor must be a actor"),
        Check(
            "instance",
            |r| set(r, &["instanceId"], json!("A".repeat(26))),
            "instanceId must be a instance id",
        ),
        Check(
            "lifecycle",
            |r| set(r, &["managerLifecycleUid"], json!("a".repeat(33))),
            "managerLifecycleUid must be a lifecycle uid",
        ),
        Check(
            "request id",
            |r| set(r, &["requestId"], json!("r".repeat(21))),
            "requestId must be a request id",
        ),
    ]
}

fn proof_check() -> Check {
    Check("proof", |r| set(r, &["registrationProof"], json!("sha256:00")), "registrationProof must be")
}

fn no_proof_check() -> Check {
    Check("a proof", |r| set(r, &["registrationProof"], json!(null)), "registrationProof must be absent")
}

fn identity_checks() -> Vec<Check> {
    vec![
        Check("identities", |r| set(r, &["identities"], json!([])), "identities must be a JSON object"),
        Check("a sixth", |r| set(r, &["identities", "other"], json!({})), "unknown member \"other\""),
        Check("a missing one", |r| set(r, &["identities", "serve"], json!("-")), "serve must be present"),
        Check(
            "an identity's member",
            |r| set(r, &["identities", "supervisor", "seed"], json!("s")),
            "unknown member \"seed\"",
        ),
        Check("its key", |r| set(r, &["identities", "executor", "id"], json!("U")), "id must be a user nkey"),
    ]
}

fn with_proof(payload: Vec<Check>) -> Vec<Check> {
    let mut checks = envelope_checks();
    checks.push(proof_check());
    checks.extend(identity_checks());
    checks.extend(payload);
    checks
}

fn service(operation: Operation, more: Value) -> Value {
    let mut request = request(Kind::Service, json!({ "operation": operation.as_str() }));
    if operation == Operation::Prepare {
        set(&mut request, &["registrationProof"], json!("-"));
    }
    merge(&mut request, more);
    request
}

fn renewed_run() -> Value {
    json!({
        "runId": format!("run-{}", "0".repeat(32)), "holder": "host.0123456789abcdef", "takeoverId": "0123456789abcdef",
        "epoch": 1, "fencingToken": 1, "driverId": key("F"), "mediatorId": key("G"),
    })
}

fn valid_service(operation: Operation) -> Value {
    let renewal = json!({ "accountPublicKey": account(), "processEpoch": 0 });
    match operation {
        Operation::Prepare | Operation::Renew => service(operation, json!({})),
        Operation::Activate => service(operation, json!({ "contractArtifacts": [{ "a": 1 }] })),
        Operation::Session => service(
            operation,
            json!({ "session": { "id": key("F"), "endpoint": "manager", "sessionId": "s", "epoch": 0, "exp": 1 } }),
        ),
        Operation::Retire => service(
            operation,
            json!({ "retirement": { "id": key("F"), "target": incarnation(), "opId": op(), "serveEpoch": 0 } }),
        ),
        Operation::RenewStandingBundle => service(operation, renewal),
        Operation::RenewRunDriver => {
            let mut request = service(operation, renewal);
            merge(&mut request, json!({ "run": renewed_run() }));
            request
        }
        Operation::TransferReader => service(operation, json!({ "transferReader": { "id": key("F") } })),
    }
}

fn parse_service(value: &EsValue) -> Result<(), EpError> {
    ServiceRequest::parse(value, HolderKind::Human).map(drop)
}

#[test]
fn each_operation_of_the_service_kind_refuses_in_the_contracts_order() {
    for operation in Operation::ALL {
        let mut checks = envelope_checks();
        checks.insert(1, Check("operation", |r| set(r, &["operation"], json!("issue")), "operation must be"));
        checks.push(if operation == Operation::Prepare { no_proof_check() } else { proof_check() });
        checks.extend(identity_checks());
        let forbidden = [
            Check(
                "artifacts",
                |r| set(r, &["contractArtifacts"], json!(null)),
                "contractArtifacts must be absent",
            ),
            Check(
                "account",
                |r| set(r, &["accountPublicKey"], json!(null)),
                "accountPublicKey must be absent",
            ),
            Check("epoch", |r| set(r, &["processEpoch"], json!(null)), "processEpoch must be absent"),
            Check("run", |r| set(r, &["run"], json!(null)), "run must be absent"),
            Check("session", |r| set(r, &["session"], json!(null)), "session must be absent"),
            Check("retirement", |r| set(r, &["retirement"], json!(null)), "retirement must be absent"),
            Check("reader", |r| set(r, &["transferReader"], json!(null)), "transferReader must be absent"),
        ];
        let own = |name: &str| match name {
            "artifacts" => operation == Operation::Activate,
            "account" | "epoch" => {
                matches!(operation, Operation::RenewStandingBundle | Operation::RenewRunDriver)
            }
            "run" => operation == Operation::RenewRunDriver,
            "session" => operation == Operation::Session,
            "retirement" => operation == Operation::Retire,
            _ => operation == Operation::TransferReader,
        };
        for check in forbidden {
            if own(check.0) {
                checks.extend(payload_checks(check.0));
            } else {
                checks.push(check);
            }
        }
        prove_order(operation.as_str(), parse_service, &valid_service(operation), &checks);
    }
}

fn payload_checks(member: &str) -> Vec<Check> {
    match member {
        "artifacts" => vec![Check(
            "no artifacts",
            |r| set(r, &["contractArtifacts"], json!([])),
            "contractArtifacts must be an array of 1 to 64",
        )],
        "account" => vec![Check(
            "account",
            |r| set(r, &["accountPublicKey"], json!(key("A"))),
            "accountPublicKey must be a account nkey",
        )],
        "epoch" => {
            vec![Check(
                "epoch",
                |r| set(r, &["processEpoch"], json!(-1)),
                "processEpoch must be an integer from 0",
            )]
        }
        "run" => vec![
            Check("run member", |r| set(r, &["run", "x"], json!(1)), "unknown member \"x\""),
            Check("run id", |r| set(r, &["run", "runId"], json!("run-0")), "runId must be"),
            Check("holder", |r| set(r, &["run", "holder"], json!("a b")), "holder must be a run holder"),
            Check("takeover", |r| set(r, &["run", "takeoverId"], json!("0")), "takeoverId must be"),
            Check("run epoch", |r| set(r, &["run", "epoch"], json!(0)), "epoch must be an integer from 1"),
            Check("token", |r| set(r, &["run", "fencingToken"], json!(1.5)), "fencingToken must be"),
            Check("driver", |r| set(r, &["run", "driverId"], json!("x")), "driverId must be a user nkey"),
            Check(
                "mediator",
                |r| set(r, &["run", "mediatorId"], json!("x")),
                "mediatorId must be a user nkey",
            ),
        ],
        "session" => vec![
            Check("session key", |r| set(r, &["session", "id"], json!("x")), "id must be a user nkey"),
            Check(
                "endpoint",
                |r| set(r, &["session", "endpoint"], json!("auth")),
                "endpoint must be \"manager\"",
            ),
            Check("session id", |r| set(r, &["session", "sessionId"], json!("")), "sessionId must be"),
            Check("session epoch", |r| set(r, &["session", "epoch"], json!("0")), "epoch must be"),
            Check("exp", |r| set(r, &["session", "exp"], json!(0)), "exp must be an integer from 1"),
        ],
        "retirement" => vec![
            Check("member", |r| set(r, &["retirement", "x"], json!(1)), "unknown member \"x\""),
            Check("requester", |r| set(r, &["retirement", "id"], json!("x")), "id must be a user nkey"),
            Check(
                "target",
                |r| set(r, &["retirement", "target", "x"], json!(1)),
                "retirement.target: unknown",
            ),
            Check("serve epoch", |r| set(r, &["retirement", "serveEpoch"], json!(-1)), "serveEpoch must be"),
            Check(
                "uid",
                |r| set(r, &["retirement", "target", "lifecycleUid"], json!("x")),
                "lifecycleUid must be a lifecycle uid",
            ),
            Check("op", |r| set(r, &["retirement", "opId"], json!("x")), "opId must be a operation id"),
            Check("other op", |r| set(r, &["retirement", "opId"], json!(UID)), "opId must be the retirement"),
            Check("owner", |r| set(r, &["retirement", "target", "owner"], json!(PLATFORM)), "owner must be"),
            Check(
                "agent",
                |r| set(r, &["retirement", "target", "actor"], json!("a.b")),
                "actor must be a actor",
            ),
        ],
        _ => vec![
            Check("reader member", |r| set(r, &["transferReader", "x"], json!(1)), "unknown member \"x\""),
            Check("reader key", |r| set(r, &["transferReader", "id"], json!("x")), "id must be a user nkey"),
        ],
    }
}

#[test]
fn what_a_renewed_run_says_of_itself_agrees() {
    for (member, value, says) in [
        ("holder", json!("host-0123456789abcdef"), "holder must be a holder that ends in"),
        ("takeoverId", json!("f".repeat(16)), "holder must be a holder that ends in"),
        ("mediatorId", json!(key("F")), "mediatorId must be another key"),
    ] {
        let mut broken = valid_service(Operation::RenewRunDriver);
        set(&mut broken, &["run", member], value);
        assert!(parse_service(&es(&broken)).unwrap_err().message.contains(says), "{member}");
    }
}

#[test]
fn every_key_of_a_request_is_another_one_except_a_sessions() {
    for (operation, path, ok) in [
        (Operation::Prepare, vec!["identities", "executor", "id"], false),
        (Operation::Retire, vec!["retirement", "id"], false),
        (Operation::TransferReader, vec!["transferReader", "id"], false),
        (Operation::RenewRunDriver, vec!["run", "driverId"], false),
        (Operation::RenewRunDriver, vec!["run", "mediatorId"], false),
        (Operation::Session, vec!["session", "id"], true),
    ] {
        let mut request = valid_service(operation);
        let parsed = ServiceRequest::parse(&es(&request), HolderKind::Human).unwrap();
        assert!(parsed.check_distinct_keys().is_ok(), "{}", operation.as_str());
        set(&mut request, &path, json!(key("A")));
        let parsed = ServiceRequest::parse(&es(&request), HolderKind::Human).unwrap();
        assert_eq!(parsed.check_distinct_keys().is_ok(), ok, "{path:?}");
    }
}

#[test]
fn a_platform_holder_may_name_a_platform_owner() {
    let mut request = valid_service(Operation::Retire);
    set(&mut request, &["retirement", "target", "owner"], json!(PLATFORM));
    assert!(ServiceRequest::parse(&es(&request), HolderKind::Human).is_err());
    assert!(ServiceRequest::parse(&es(&request), HolderKind::Platform).is_ok());
    set(&mut request, &["retirement", "target", "owner"], json!("local"));
    assert!(ServiceRequest::parse(&es(&request), HolderKind::Platform).is_err());
}

#[test]
fn maintenance_refuses_in_the_contracts_order() {
    let parse: Parse = |value| MaintenanceRequest::parse(value).map(drop);
    let mut base = request(
        Kind::Maintenance,
        json!({ "operation": "evict-family-principal", "targetInstanceId": INSTANCE, "principals": ["a.b"] }),
    );
    set(&mut base, &["registrationProof"], json!("-"));
    let mut checks = envelope_checks();
    checks.insert(1, Check("operation", |r| set(r, &["operation"], json!("mend")), "operation must be"));
    checks.insert(
        0,
        Check(
            "a proof",
            |r| set(r, &["registrationProof"], json!(format!("sha256:{}", "0".repeat(64)))),
            "unknown member \"registrationProof\"",
        ),
    );
    // Both are unknown members; whichever comes first in the object answers.
    checks.remove(1);
    checks.extend(identity_checks());
    checks.push(Check("target", |r| set(r, &["targetInstanceId"], json!("x")), "targetInstanceId must be"));
    checks.push(Check(
        "principals",
        |r| set(r, &["principals"], json!(["a", "a"])),
        "principals must be an array",
    ));
    prove_order("evict", parse, &base, &checks);
    for (principals, ok) in [
        (json!([]), false),
        (json!([""]), false),
        (json!([7]), false),
        (json!((0..256).map(|n| format!("p{n}")).collect::<Vec<_>>()), true),
        (json!((0..257).map(|n| format!("p{n}")).collect::<Vec<_>>()), false),
    ] {
        let mut request = base.clone();
        set(&mut request, &["principals"], principals);
        assert_eq!(parse(&es(&request)).is_ok(), ok);
    }
    set(&mut base, &["operation"], json!("reconcile-registration"));
    assert!(parse(&es(&base)).unwrap_err().message.contains("principals must be absent"));
    set(&mut base, &["principals"], json!("-"));
    parse(&es(&base)).unwrap();
}

fn serve_epoch_check() -> Check {
    Check("serve epoch", |r| set(r, &["serveEpoch"], json!("0")), "serveEpoch must be an integer from 0")
}

#[test]
fn an_enrollment_refuses_in_the_contracts_order() {
    let parse: Parse = |value| EnrollmentRequest::parse(value).map(drop);
    let target = json!({
        "actor": "alice", "role": "r", "label": "l", "capabilities": ["spawn", "role:x"], "subscribe": ["general"],
        "allowSubscribe": ["general.>"], "allowPublish": ["general"], "tokenHash": "0".repeat(64),
    });
    let valid = request(Kind::Enrollment, json!({ "serveEpoch": 0, "target": target }));
    let checks = with_proof(vec![
        serve_epoch_check(),
        Check("target", |r| set(r, &["target"], json!([])), "target must be a JSON object"),
        Check("owner", |r| set(r, &["target", "owner"], json!(OWNER)), "unknown member \"owner\""),
        Check("actor", |r| set(r, &["target", "actor"], json!("")), "actor must be a non-empty string"),
        Check("role", |r| set(r, &["target", "role"], json!("r".repeat(65))), "role must be"),
        Check("label", |r| set(r, &["target", "label"], json!("😀".repeat(129))), "label must be"),
        Check(
            "capabilities",
            |r| set(r, &["target", "capabilities"], json!(["a.b"])),
            "capabilities must be",
        ),
        Check("subscribe", |r| set(r, &["target", "subscribe"], json!([""])), "subscribe must be"),
        Check(
            "read",
            |r| set(r, &["target", "allowSubscribe"], json!(vec!["a"; 65])),
            "allowSubscribe must be",
        ),
        Check("write", |r| set(r, &["target", "allowPublish"], json!(null)), "allowPublish must be"),
        Check("hash", |r| set(r, &["target", "tokenHash"], json!("A".repeat(64))), "tokenHash must be"),
    ]);
    prove_order("enrollment", parse, &valid, &checks);
    let mut bare = valid.clone();
    bare["target"] = json!({ "actor": "alice", "tokenHash": "0".repeat(64) });
    parse(&es(&bare)).unwrap();
    set(&mut bare, &["target", "lifecycleUid"], json!(UID));
    assert!(parse(&es(&bare)).unwrap_err().message.contains("unknown member"));
    let mut role = valid;
    set(&mut role, &["target", "role"], json!(null));
    assert!(parse(&es(&role)).is_err(), "an optional member that is null is refused");
}

fn target_checks() -> Vec<Check> {
    vec![
        Check(
            "target member",
            |r| set(r, &["target", "providerRef"], json!(1)),
            "unknown member \"providerRef\"",
        ),
        Check("owner", |r| set(r, &["target", "owner"], json!("local")), "owner must be"),
        Check("agent", |r| set(r, &["target", "actor"], json!("a-b")), "actor must be a actor"),
        Check("uid", |r| set(r, &["target", "lifecycleUid"], json!("x")), "lifecycleUid must be"),
    ]
}

#[test]
fn a_retirements_preparation_refuses_in_the_contracts_order() {
    let parse: Parse = |value| PrepareRetirementRequest::parse(value).map(drop);
    let valid =
        request(Kind::PrepareRetirement, json!({ "serveEpoch": 0, "target": incarnation(), "opId": op() }));
    let mut checks = with_proof(vec![serve_epoch_check()]);
    checks.extend(target_checks());
    checks.push(Check("op", |r| set(r, &["opId"], json!("x")), "opId must be a operation id"));
    prove_order("preparation", parse, &valid, &checks);
    let mut other = valid;
    set(&mut other, &["opId"], json!(UID));
    assert!(parse(&es(&other)).unwrap_err().message.contains("opId must be the retirement"));
}

#[test]
fn a_runtime_kind_refuses_in_the_contracts_order() {
    let create: Parse = |value| RuntimeRequest::parse(value, Kind::RuntimeCreate).map(drop);
    let status: Parse = |value| RuntimeRequest::parse(value, Kind::RuntimeStatus).map(drop);
    for (kind, parse) in [(Kind::RuntimeCreate, create), (Kind::RuntimeStatus, status)] {
        let valid = request(kind, json!({ "serveEpoch": 0, "target": incarnation() }));
        let mut checks = with_proof(vec![serve_epoch_check()]);
        checks.extend(target_checks());
        prove_order(kind.as_str(), parse, &valid, &checks);
    }
}

#[test]
fn a_retained_agents_validation_refuses_in_the_contracts_order() {
    let parse: Parse = |value| RetainedAgentRequest::parse(value, HolderKind::Human).map(drop);
    let valid = request(
        Kind::RetainedAgentValidation,
        json!({ "serveEpoch": 0, "target": incarnation(), "actorToken": "t", "sentinelCreds": "c" }),
    );
    let mut checks = with_proof(vec![
        Check("no token", |r| set(r, &["actorToken"], json!("")), "actorToken must be a non-empty string"),
        Check(
            "no creds",
            |r| set(r, &["sentinelCreds"], json!(7)),
            "sentinelCreds must be a non-empty string",
        ),
        Check(
            "token",
            |r| set(r, &["actorToken"], json!("t".repeat(4097))),
            "actorToken must be a string of 1",
        ),
        Check(
            "creds",
            |r| set(r, &["sentinelCreds"], json!("c".repeat(16385))),
            "sentinelCreds must be a string",
        ),
        serve_epoch_check(),
    ]);
    checks.extend(target_checks());
    prove_order("validation", parse, &valid, &checks);
    let parsed = RetainedAgentRequest::parse(&es(&valid), HolderKind::Human).unwrap();
    assert!(!format!("{parsed:?}").contains("actor_token"), "its secrets are not shown");
}

#[test]
fn the_questions_refuse_in_the_contracts_order() {
    let scan: Parse = |value| GoalIndexRequest::parse(value).map(drop);
    let checks = with_proof(vec![serve_epoch_check()]);
    prove_order("scan", scan, &request(Kind::GoalIndexScan, json!({ "serveEpoch": 0 })), &checks);
    let admin: Parse = |value| AdminRequest::parse(value, HolderKind::Human).map(drop);
    let checks = with_proof(vec![
        serve_epoch_check(),
        Check("caller", |r| set(r, &["caller", "scope"], json!([])), "unknown member \"scope\""),
        Check("owner", |r| set(r, &["caller", "owner"], json!(PLATFORM)), "owner must be"),
        Check("actor", |r| set(r, &["caller", "actor"], json!("a-b")), "actor must be a actor"),
        Check("uid", |r| set(r, &["caller", "lifecycleUid"], json!("")), "lifecycleUid must be"),
    ]);
    let valid = request(Kind::AdminAuthorization, json!({ "serveEpoch": 0, "caller": incarnation() }));
    prove_order("admin", admin, &valid, &checks);
}

fn run_request(kind: Kind, more: Value) -> Value {
    let mut request = request(kind, json!({ "accountPublicKey": account(), "processEpoch": 0 }));
    merge(&mut request, more);
    request
}

fn run_id() -> String {
    format!("run-{}", "a".repeat(32))
}

fn pin_checks() -> Vec<Check> {
    vec![
        Check("account", |r| set(r, &["accountPublicKey"], json!("A")), "accountPublicKey must be"),
        Check(
            "epoch",
            |r| set(r, &["processEpoch"], json!(9_007_199_254_740_992_u64)),
            "processEpoch must be",
        ),
    ]
}

/// For the kinds that look at `kind` before anything else.
fn kind_first(payload: Vec<Check>) -> Vec<Check> {
    let mut checks = with_proof(payload);
    let at = checks.iter().position(|check| check.0 == "kind").unwrap();
    let kind = checks.remove(at);
    checks.insert(0, kind);
    checks
}

#[test]
fn the_run_kinds_refuse_in_the_contracts_order() {
    let admission: Parse = |value| RunAdmissionRequest::parse(value).map(drop);
    let mut payload = pin_checks();
    payload.extend([
        Check("run", |r| set(r, &["run", "x"], json!(1)), "unknown member \"x\""),
        Check("run id", |r| set(r, &["run", "runId"], json!("run-A")), "runId must be a run id"),
        Check("subject", |r| set(r, &["run", "subject"], json!("")), "subject must be"),
    ]);
    let valid = run_request(Kind::RunAdmission, json!({ "run": { "runId": run_id(), "subject": "s" } }));
    prove_order("admission", admission, &valid, &with_proof(payload));

    let revoke: Parse = |value| RunRevokeRequest::parse(value).map(drop);
    let mut payload = pin_checks();
    payload.extend([
        Check("revoke", |r| set(r, &["revoke", "by"], json!("x")), "unknown member \"by\""),
        Check("run id", |r| set(r, &["revoke", "runId"], json!(7)), "runId must be"),
        Check("reason", |r| set(r, &["revoke", "reason"], json!("")), "reason must be"),
    ]);
    let valid = run_request(Kind::RunRevoke, json!({ "revoke": { "runId": run_id(), "reason": "why" } }));
    prove_order("revoke", revoke, &valid, &kind_first(payload));

    let attempt: Parse = |value| RunAttemptRequest::parse(value).map(drop);
    let mut payload = pin_checks();
    payload.extend([
        Check("attempt", |r| set(r, &["attempt", "x"], json!(1)), "unknown member \"x\""),
        Check("run id", |r| set(r, &["attempt", "runId"], json!("r")), "runId must be"),
        Check("takeover", |r| set(r, &["attempt", "takeoverId"], json!("a.b")), "takeoverId must be"),
        Check("run epoch", |r| set(r, &["attempt", "epoch"], json!(0)), "epoch must be"),
        Check("token", |r| set(r, &["attempt", "fencingToken"], json!(0)), "fencingToken must be"),
        Check("driver", |r| set(r, &["attempt", "driverId"], json!("U")), "driverId must be a user"),
        Check("mediator", |r| set(r, &["attempt", "mediatorId"], json!("U")), "mediatorId must be a user"),
        Check("served", |r| set(r, &["attempt", "served"], json!("s".repeat(1025))), "served must be"),
    ]);
    let mut checks = kind_first(payload);
    checks
        .insert(1, Check("both", |r| set(r, &["operator"], json!({})), "attempt must be given, or operator"));
    let valid = run_request(
        Kind::RunAttempt,
        json!({ "attempt": { "runId": run_id(), "takeoverId": "t", "epoch": 1, "fencingToken": 1, "driverId": key("F"), "mediatorId": key("G"), "served": "s" } }),
    );
    prove_order("attempt", attempt, &valid, &checks);
    let mut same = valid;
    set(&mut same, &["attempt", "mediatorId"], json!(key("F")));
    assert!(attempt(&es(&same)).unwrap_err().message.contains("another key"));

    for (operator, ok) in [
        (json!({ "id": key("F"), "takeoverId": "t" }), true),
        (json!({ "id": key("F"), "takeoverId": "t", "runId": run_id() }), true),
        (json!({ "id": key("F"), "takeoverId": "t", "runId": run_id(), "served": "s" }), false),
        (
            json!({ "id": key("F"), "takeoverId": "t", "answers": { "runId": run_id(), "stepKey": "s" }, "served": "s" }),
            true,
        ),
        (
            json!({ "id": key("F"), "takeoverId": "t", "answers": { "runId": run_id(), "stepKey": "s", "amend": true } }),
            true,
        ),
        (
            json!({ "id": key("F"), "takeoverId": "t", "answers": { "runId": run_id(), "stepKey": "s", "amend": false } }),
            false,
        ),
        (
            json!({ "id": key("F"), "takeoverId": "t", "answers": { "runId": run_id(), "stepKey": "" } }),
            false,
        ),
        (
            json!({ "id": key("F"), "takeoverId": "t", "runId": run_id(), "answers": { "runId": run_id(), "stepKey": "s" } }),
            false,
        ),
        (json!({ "id": key("F"), "takeoverId": "t", "token": "x" }), false),
        (json!({ "id": key("F") }), false),
        (json!({ "takeoverId": "t" }), false),
    ] {
        let request = run_request(Kind::RunAttempt, json!({ "operator": operator }));
        assert_eq!(attempt(&es(&request)).is_ok(), ok, "{operator}");
    }
    let neither = run_request(Kind::RunAttempt, json!({}));
    assert!(attempt(&es(&neither)).is_err());
}

#[test]
fn a_submission_and_a_cancellation_refuse_in_the_order_of_the_other_run_kinds() {
    let submission: Parse = |value| RunSubmissionRequest::parse(value).map(drop);
    let mut payload = pin_checks();
    payload.extend([
        Check("submission", |r| set(r, &["submission", "x"], json!(1)), "unknown member \"x\""),
        Check("id", |r| set(r, &["submission", "submissionId"], json!("a.b")), "submissionId must be"),
        Check("run id", |r| set(r, &["submission", "runId"], json!("run-A")), "runId must be a run id"),
        Check("subject", |r| set(r, &["submission", "subject"], json!("")), "subject must be"),
    ]);
    let valid = run_request(
        Kind::RunSubmission,
        json!({ "submission": { "submissionId": "a", "runId": run_id(), "subject": "s" } }),
    );
    prove_order("submission", submission, &valid, &with_proof(payload));

    let cancel: Parse = |value| RunCancelRequest::parse(value).map(drop);
    let mut payload = pin_checks();
    payload.extend([
        Check("cancel", |r| set(r, &["cancel", "reason"], json!("x")), "unknown member \"reason\""),
        Check("run id", |r| set(r, &["cancel", "runId"], json!(7)), "runId must be"),
        Check("subject", |r| set(r, &["cancel", "subject"], json!(null)), "subject must be"),
    ]);
    let valid = run_request(Kind::RunCancel, json!({ "cancel": { "runId": run_id(), "subject": "s" } }));
    prove_order("cancel", cancel, &valid, &with_proof(payload));
}

#[test]
fn a_users_intent_refuses_in_the_contracts_order() {
    let parse: Parse = |value| IntentRequest::parse(value).map(drop);
    let launch = json!({ "operation": "launch", "target": { "actor": "alice" } });
    let valid = json!({
        "v": 1, "kind": Kind::DelegatedIntent.as_str(), "space": "main", "actor": "cli", "accountPublicKey": account(),
        "instanceId": INSTANCE, "requestId": "r".repeat(22), "intent": launch,
    });
    let checks = [
        Check("unknown member", |r| set(r, &["identities"], json!({})), "unknown member \"identities\""),
        Check("version", |r| set(r, &["v"], json!(2)), "v must be 1"),
        Check("kind", |r| set(r, &["kind"], json!("x")), "kind must be"),
        Check("space", |r| set(r, &["space"], json!("")), "space must be"),
        Check("no actor", |r| set(r, &["actor"], json!("")), "actor must be a non-empty string"),
        Check(
            "no account",
            |r| set(r, &["accountPublicKey"], json!("")),
            "accountPublicKey must be a non-empty",
        ),
        Check("actor", |r| set(r, &["actor"], json!("a-b")), "actor must be a actor"),
        Check("instance", |r| set(r, &["instanceId"], json!("x")), "instanceId must be a instance"),
        Check("request", |r| set(r, &["requestId"], json!("x")), "requestId must be a request"),
        Check("intent", |r| set(r, &["intent", "x"], json!(1)), "unknown member \"x\""),
        Check("operation", |r| set(r, &["intent", "operation"], json!("stop")), "operation must be"),
        Check("account", |r| set(r, &["accountPublicKey"], json!("A")), "accountPublicKey must be a account"),
        Check(
            "hash",
            |r| set(r, &["intent", "target", "tokenHash"], json!("0".repeat(64))),
            "unknown member \"tokenHash\"",
        ),
        Check("target", |r| set(r, &["intent", "target", "actor"], json!("a-b")), "actor must be a actor"),
    ];
    // The same member cannot be broken in two ways at once.
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    for check in checks {
        if check.0 == "account" || check.0 == "actor" { twice.push(check) } else { once.push(check) }
    }
    prove_order("intent", parse, &valid, &once);
    for Check(name, break_it, says) in twice {
        let mut broken = valid.clone();
        break_it(&mut broken);
        assert!(parse(&es(&broken)).unwrap_err().message.contains(says), "{name}");
    }
    let mut retire = valid;
    set(&mut retire, &["intent"], json!({ "operation": "retire", "target": incarnation() }));
    parse(&es(&retire)).unwrap();
    set(&mut retire, &["intent", "target", "owner"], json!(PLATFORM));
    assert!(parse(&es(&retire)).is_err());
}

#[test]
fn an_execution_refuses_in_the_contracts_order() {
    let parse: Parse = |value| ExecutionRequest::parse(value).map(drop);
    let valid = request(
        Kind::DelegatedIntentExecution,
        json!({
            "accountPublicKey": account(), "assignmentRevision": 0, "serveEpoch": 0, "intentId": UID,
            "execute": { "operation": "launch", "target": { "actor": "alice", "tokenHash": "0".repeat(64) } },
        }),
    );
    let checks = with_proof(vec![
        Check("another actor", |r| set(r, &["actor"], json!("web")), "actor must be \"cli\""),
        Check("account", |r| set(r, &["accountPublicKey"], json!("A")), "accountPublicKey must be"),
        Check("assignment", |r| set(r, &["assignmentRevision"], json!(-1)), "assignmentRevision must be"),
        serve_epoch_check(),
        Check("intent", |r| set(r, &["intentId"], json!("x")), "intentId must be"),
        Check("execute", |r| set(r, &["execute", "x"], json!(1)), "unknown member \"x\""),
        Check("operation", |r| set(r, &["execute", "operation"], json!("stop")), "operation must be"),
        Check("target", |r| set(r, &["execute", "target", "role"], json!("x")), "unknown member \"role\""),
        Check("agent", |r| set(r, &["execute", "target", "actor"], json!("a-b")), "actor must be"),
        Check("hash", |r| set(r, &["execute", "target", "tokenHash"], json!("0")), "tokenHash must be"),
    ]);
    // "another actor" is checked after the envelope's own look at the actor, which the shared list breaks too.
    let checks: Vec<_> =
        checks.into_iter().filter(|check| !["no actor", "actor"].contains(&check.0)).collect();
    prove_order("execution", parse, &valid, &checks);
}

#[test]
fn numbers_are_numbers_however_they_are_spelled() {
    let text = valid_service(Operation::RenewStandingBundle).to_string();
    for (from, to) in
        [("\"v\":1", "\"v\":1.0"), ("\"v\":1", "\"v\":1e0"), ("\"processEpoch\":0", "\"processEpoch\":-0")]
    {
        let spelled = text.replace(from, to);
        assert_ne!(spelled, text);
        parse_service(&EsValue::parse(spelled.as_bytes()).unwrap()).unwrap();
    }
}

#[test]
fn a_refusal_repeats_no_more_than_a_short_part_of_a_name() {
    let mut request = valid_service(Operation::Prepare);
    set(&mut request, &[&"\u{1b}k".repeat(20_000)], json!("secret"));
    let refusal = parse_service(&es(&request)).unwrap_err().message;
    assert!(refusal.len() < 600 && !refusal.contains('\u{1b}') && !refusal.contains("secret"), "{refusal}");
}

/// The right-hand sides are what a program of Node 20 (`crypto`, `JSON`) computed from the same parts.
#[test]
fn the_proofs_are_the_ones_that_another_language_computes() {
    let artifacts =
        EsValue::parse(r#"[{"b":1.0,"10":[1e21,-0],"9":"é\u2028","b":2},"x"]"#.as_bytes()).unwrap();
    let mut activate = valid_service(Operation::Activate);
    set(&mut activate, &["space"], json!("mé in"));
    let parsed = ServiceRequest::parse(&es(&activate), HolderKind::Human).unwrap();
    let owner = Owner::parse(OWNER).unwrap();
    let proof = registration_proof(&parsed.envelope, &owner, artifacts.as_array().unwrap());
    assert_eq!(proof.as_str(), "sha256:123c7a179120948b156406c00dc45801cb4d5b45c01b0b9c3a232497b7508f71");
    assert_eq!(
        registration_proof(&parsed.envelope, &owner, &[]).as_str(),
        "sha256:7e7115906476172a7a02e6aaa01ceb08367dcc1c12a5bff4be0ea3cd00364091"
    );
    let message = current_registration_message(&parsed.envelope, &owner, 7, 0);
    assert_eq!(
        raw_digest(&message).as_str(),
        "sha256:f2ba063c3dede67db77d255917da7782e21e99e9bb535cdc5bccbf80c0404934"
    );
}

#[test]
fn the_table_of_kinds_is_the_contracts() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_name(kind.as_str()), Some(kind));
        assert_eq!(kind.rule().is_none(), kind == Kind::Service);
    }
    for operation in Operation::ALL {
        assert_eq!(Operation::from_name(operation.as_str()), Some(operation));
        let carries = operation.rule().proof != Proof::None;
        assert_eq!(carries, valid_service(operation).get("registrationProof").is_some());
    }
    assert_eq!(Kind::from_name("manager-service"), None);
}

fn any_kind_parses(value: &EsValue) {
    let _ = ServiceRequest::parse(value, HolderKind::Human);
    let _ = MaintenanceRequest::parse(value);
    let _ = EnrollmentRequest::parse(value);
    let _ = PrepareRetirementRequest::parse(value);
    let _ = RuntimeRequest::parse(value, Kind::RuntimeCreate);
    let _ = RetainedAgentRequest::parse(value, HolderKind::Platform);
    let _ = GoalIndexRequest::parse(value);
    let _ = AdminRequest::parse(value, HolderKind::Platform);
    let _ = RunAdmissionRequest::parse(value);
    let _ = RunAttemptRequest::parse(value);
    let _ = RunRevokeRequest::parse(value);
    let _ = RunSubmissionRequest::parse(value);
    let _ = RunCancelRequest::parse(value);
    let _ = RunAdmissionResult::parse(value);
    let _ = RunSubmissionResult::parse(value);
    let _ = RunRevocationResult::parse_revoke(value);
    let _ = RunAttemptResult::parse(value);
    let _ = IntentRequest::parse(value);
    let _ = ExecutionRequest::parse(value);
}

proptest! {
    #[test]
    fn every_parser_is_total(text in "\\PC{0,200}", member in 0_usize..9, kind in 0_usize..16) {
        let kind = Kind::ALL[kind];
        let mut broken = request(kind, json!({ "serveEpoch": 0, "processEpoch": 0, "target": incarnation() }));
        let name = ["v", "kind", "space", "actor", "instanceId", "managerLifecycleUid", "requestId", "registrationProof", "identities"][member];
        set(&mut broken, &[name], json!(text));
        any_kind_parses(&es(&broken));
        if let Ok(value) = EsValue::parse(text.as_bytes()) {
            any_kind_parses(&value);
        }
    }
}

// === the answer ===

fn jwt(exp: u64) -> IssuedJwt {
    IssuedJwt { jwt: format!("h.{exp}.s"), exp: UnixSecs(exp) }
}

/// A request of an operation, without its proof's being anybody's.
fn asked(operation: Operation) -> ServiceRequest {
    let payload = match operation {
        Operation::Prepare => json!({ "registrationProof": "-" }),
        Operation::Renew => json!({}),
        Operation::Activate => json!({ "contractArtifacts": [{ "urn": "ai.cotal.manager" }] }),
        Operation::Session => json!({ "session": {
            "id": key("F"), "endpoint": "manager", "sessionId": "s".repeat(22), "epoch": 0, "exp": 9,
        } }),
        Operation::Retire => json!({ "retirement": {
            "id": key("F"), "target": incarnation(), "opId": op(), "serveEpoch": 0,
        } }),
        Operation::TransferReader => json!({ "transferReader": { "id": key("F") } }),
        Operation::RenewStandingBundle => json!({ "accountPublicKey": account(), "processEpoch": 0 }),
        Operation::RenewRunDriver => json!({
            "accountPublicKey": account(), "processEpoch": 0,
            "run": {
                "runId": format!("run-{}", "0".repeat(32)), "holder": format!("x.{}", "0".repeat(16)),
                "takeoverId": "0".repeat(16), "epoch": 1, "fencingToken": 1, "driverId": key("F"),
                "mediatorId": key("G"),
            },
        }),
    };
    let mut value = request(Kind::Service, payload);
    value["operation"] = json!(operation.as_str());
    ServiceRequest::parse(&es(&value), HolderKind::Human).unwrap()
}

fn answer(operation: Operation) -> RemoteManagerAuthorityMaterial {
    let issued = operation.grants().iter().enumerate().map(|(i, name)| (*name, jwt(2_000 + i as u64)));
    let credentials = Credentials::of(operation, issued).unwrap();
    let next = (operation == Operation::Activate).then(|| raw_digest(b"next"));
    let owner = Owner::parse(OWNER).unwrap();
    RemoteManagerAuthorityMaterial::answer(&asked(operation), &owner, UnixMillis(1_000), next, credentials)
}

#[test]
fn an_answer_has_the_contracts_members_in_its_order_and_reads_back() {
    let common = "v kind operation space owner actor instanceId lifecycleUid requestId";
    for (operation, before, after, credentials) in [
        (Operation::Prepare, "", "", "supervisor executor"),
        (
            Operation::Activate,
            " registrationProof",
            " nextRegistrationProof",
            "serve goalWriter sessionLedger",
        ),
        (Operation::Renew, " registrationProof", "", "supervisor executor"),
        (Operation::Session, " registrationProof", "", "sessionServing"),
        (Operation::Retire, " registrationProof retirement", "", "retirementRequester"),
        (
            Operation::RenewStandingBundle,
            " registrationProof accountPublicKey processEpoch",
            "",
            "supervisor executor serve goalWriter sessionLedger",
        ),
        (
            Operation::RenewRunDriver,
            " registrationProof accountPublicKey processEpoch run",
            "",
            "runDriver runMediator",
        ),
        (Operation::TransferReader, " registrationProof", "", "transferReader"),
    ] {
        let written = answer(operation);
        let text = serde_json::to_string(&written).unwrap();
        let EsValue::Object(object) = EsValue::parse(text.as_bytes()).unwrap() else { panic!("an object") };
        let members = format!("{common}{before} issuedAt expiresAt actors identities{after} credentials");
        let at = |member: &str| text.find(&format!("\"{member}\":")).expect(member);
        let places: Vec<usize> = members.split(' ').map(at).collect();
        assert!(places.is_sorted(), "{}: {text}", operation.as_str());
        assert_eq!(object.len(), places.len(), "{}", operation.as_str());
        let granted: Vec<&str> = written.credentials.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(granted.join(" "), credentials);
        assert_eq!(written.expires_at, UnixMillis(2_000_000), "the first of them");
        let read = RemoteManagerAuthorityMaterial::parse(&EsValue::Object(object)).unwrap();
        assert_eq!(read, written, "{}", operation.as_str());
    }
}

#[test]
fn an_answer_is_closed_and_every_member_of_it_is_checked() {
    let name = "x".to_owned();
    for operation in Operation::ALL {
        let valid = serde_json::to_value(answer(operation)).unwrap();
        let refused = |change: &dyn Fn(&mut Value)| {
            let mut value = valid.clone();
            change(&mut value);
            RemoteManagerAuthorityMaterial::parse(&es(&value)).is_err()
        };
        for member in valid.as_object().unwrap().keys() {
            assert!(
                refused(&|value| set(value, &[member.as_str()], json!("-"))),
                "{}: without {member}",
                operation.as_str()
            );
            assert!(refused(&|value| value[member] = Value::Null), "{}: {member} null", operation.as_str());
        }
        assert!(refused(&|value| value[&name] = json!(1)));
        assert!(refused(&|value| value["credentials"]["other"] = json!({ "jwt": "a", "exp": 2_000 })));
        let credential = operation.grants()[0].as_str();
        for (member, bad) in [
            ("jwt", json!("")),
            ("jwt", json!("x".repeat(16_385))),
            ("exp", json!(0)),
            ("exp", json!(2_000.5)),
            ("exp", json!(1_999)),
            ("seed", json!("SU")),
        ] {
            let refusal = refused(&|value| value["credentials"][credential][member] = bad.clone());
            assert!(refusal, "{}: {member} {bad}", operation.as_str());
        }
        assert!(refused(&|value| value["expiresAt"] = json!(2_000_001)), "the bound is its credentials'");
        assert!(
            refused(&|value| value["actors"]["serve"] = json!("manager_serve_other")),
            "actors are derived"
        );
        let absent = if operation == Operation::Activate { "run" } else { "nextRegistrationProof" };
        assert!(refused(&|value| value[absent] = json!(format!("sha256:{}", "0".repeat(64)))));
    }
}

#[test]
fn an_operation_grants_exactly_what_it_is_for() {
    for operation in Operation::ALL {
        for other in Operation::ALL {
            let issued = other.grants().iter().map(|name| (*name, jwt(9)));
            let same = operation.grants() == other.grants();
            assert_eq!(Credentials::of(operation, issued).is_ok(), same, "{}", operation.as_str());
        }
        let refusal = Credentials::of(operation, []).unwrap_err();
        assert_eq!(refusal.code, EpCode::Internal);
    }
    assert!(!format!("{:?}", answer(Operation::Prepare)).contains("h.2000.s"), "no JWT in a log");
}
