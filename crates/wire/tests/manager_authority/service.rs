//! The manager's own lifecycle (contract 06 §4).

use crate::{
    Check, PLATFORM, UID, envelope_checks, es, identity_checks, key, no_proof_check, proof_check,
    prove_order, set, valid,
};
use cotal_wire::{
    error::EpError,
    es_value::EsValue,
    manager_authority::{HolderKind, Operation, ServiceRequest},
};
use serde_json::json;

pub(crate) fn parse_service(value: &EsValue) -> Result<(), EpError> {
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
        prove_order(operation.as_str(), parse_service, &valid::service(operation), &checks);
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
        let mut broken = valid::service(Operation::RenewRunDriver);
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
        let mut request = valid::service(operation);
        let parsed = ServiceRequest::parse(&es(&request), HolderKind::Human).unwrap();
        assert!(parsed.check_distinct_keys().is_ok(), "{}", operation.as_str());
        set(&mut request, &path, json!(key("A")));
        let parsed = ServiceRequest::parse(&es(&request), HolderKind::Human).unwrap();
        assert_eq!(parsed.check_distinct_keys().is_ok(), ok, "{path:?}");
    }
}

#[test]
fn a_platform_holder_may_name_a_platform_owner() {
    let mut request = valid::service(Operation::Retire);
    set(&mut request, &["retirement", "target", "owner"], json!(PLATFORM));
    assert!(ServiceRequest::parse(&es(&request), HolderKind::Human).is_err());
    assert!(ServiceRequest::parse(&es(&request), HolderKind::Platform).is_ok());
    set(&mut request, &["retirement", "target", "owner"], json!("local"));
    assert!(ServiceRequest::parse(&es(&request), HolderKind::Platform).is_err());
}
