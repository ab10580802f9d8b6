//! The requests of a remote manager: every check alone, and the contract's order of them (contract 06).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's own constants")]

mod agents;
mod answer;
mod intents;
mod questions;
mod runs;
mod service;
mod valid;

use crate::service::parse_service;
use cotal_wire::{
    EpCode, OpId, Owner,
    canonical::raw_digest,
    error::EpError,
    es_value::EsValue,
    manager_authority::{
        AdminRequest, EnrollmentRequest, ExecutionRequest, GoalIndexRequest, HolderKind, IntentRequest, Kind,
        MaintenanceRequest, Operation, PrepareRetirementRequest, Proof, RetainedAgentRequest,
        RunAdmissionRequest, RunAdmissionResult, RunAttemptRequest, RunAttemptResult, RunCancelRequest,
        RunRevocationResult, RunRevokeRequest, RunSubmissionRequest, RunSubmissionResult, RuntimeRequest,
        ServiceRequest, current_registration_message, registration_proof,
    },
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

#[test]
fn numbers_are_numbers_however_they_are_spelled() {
    let text = valid::service(Operation::RenewStandingBundle).to_string();
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
    let mut request = valid::service(Operation::Prepare);
    set(&mut request, &[&"\u{1b}k".repeat(20_000)], json!("secret"));
    let refusal = parse_service(&es(&request)).unwrap_err().message;
    assert!(refusal.len() < 600 && !refusal.contains('\u{1b}') && !refusal.contains("secret"), "{refusal}");
}

/// The right-hand sides are what a program of Node 20 (`crypto`, `JSON`) computed from the same parts.
#[test]
fn the_proofs_are_the_ones_that_another_language_computes() {
    let artifacts =
        EsValue::parse(r#"[{"b":1.0,"10":[1e21,-0],"9":"é\u2028","b":2},"x"]"#.as_bytes()).unwrap();
    let mut activate = valid::service(Operation::Activate);
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
        assert_eq!(carries, valid::service(operation).get("registrationProof").is_some());
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
