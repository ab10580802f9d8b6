//! A user's intents (contract 06 §13).

use crate::agents::serve_epoch_check;
use crate::{Check, PLATFORM, Parse, es, prove_order, set, valid, with_proof};
use cotal_wire::manager_authority::{ExecutionRequest, IntentRequest};
use serde_json::json;

#[test]
fn a_users_intent_refuses_in_the_contracts_order() {
    let parse: Parse = |value| IntentRequest::parse(value).map(drop);
    let valid = valid::intent(&valid::launch());
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
    let mut retire = valid::intent(&valid::retire());
    parse(&es(&retire)).unwrap();
    set(&mut retire, &["intent", "target", "owner"], json!(PLATFORM));
    assert!(parse(&es(&retire)).is_err());
}

#[test]
fn an_execution_refuses_in_the_contracts_order() {
    let parse: Parse = |value| ExecutionRequest::parse(value).map(drop);
    let valid = valid::execution(&valid::execute_launch());
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
