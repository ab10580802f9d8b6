//! Managed agents: enrollment, preparation, runtime, retained validation (contract 06 §6-9).

use crate::{Check, OWNER, Parse, UID, es, prove_order, set, valid, with_proof};
use cotal_wire::manager_authority::{
    EnrollmentRequest, HolderKind, Kind, PrepareRetirementRequest, RetainedAgentRequest, RuntimeRequest,
};
use serde_json::json;

pub(crate) fn serve_epoch_check() -> Check {
    Check("serve epoch", |r| set(r, &["serveEpoch"], json!("0")), "serveEpoch must be an integer from 0")
}

#[test]
fn an_enrollment_refuses_in_the_contracts_order() {
    let parse: Parse = |value| EnrollmentRequest::parse(value).map(drop);
    let valid = valid::enrollment();
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
    let mut bare = valid::bare_enrollment();
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
    let valid = valid::prepare_retirement();
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
        let mut checks = with_proof(vec![serve_epoch_check()]);
        checks.extend(target_checks());
        prove_order(kind.as_str(), parse, &valid::runtime(kind), &checks);
    }
}

#[test]
fn a_retained_agents_validation_refuses_in_the_contracts_order() {
    let parse: Parse = |value| RetainedAgentRequest::parse(value, HolderKind::Human).map(drop);
    let valid = valid::retained();
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
