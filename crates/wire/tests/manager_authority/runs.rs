//! Runs (contract 06 §12).

use crate::{
    Check, Parse, es, key, prove_order, set,
    valid::{self, run_id},
    with_proof,
};
use cotal_wire::manager_authority::{
    Kind, RunAdmissionRequest, RunAttemptRequest, RunCancelRequest, RunRevokeRequest, RunSubmissionRequest,
};
use serde_json::json;

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
    prove_order("admission", admission, &valid::admission(), &with_proof(payload));

    let revoke: Parse = |value| RunRevokeRequest::parse(value).map(drop);
    let mut payload = pin_checks();
    payload.extend([
        Check("revoke", |r| set(r, &["revoke", "by"], json!("x")), "unknown member \"by\""),
        Check("run id", |r| set(r, &["revoke", "runId"], json!(7)), "runId must be"),
        Check("reason", |r| set(r, &["revoke", "reason"], json!("")), "reason must be"),
    ]);
    prove_order("revoke", revoke, &valid::revoke(), &kind_first(payload));

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
    let valid = valid::attempt();
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
        let request = valid::run(Kind::RunAttempt, json!({ "operator": operator }));
        assert_eq!(attempt(&es(&request)).is_ok(), ok, "{operator}");
    }
    let neither = valid::run(Kind::RunAttempt, json!({}));
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
    prove_order("submission", submission, &valid::submission(), &with_proof(payload));

    let cancel: Parse = |value| RunCancelRequest::parse(value).map(drop);
    let mut payload = pin_checks();
    payload.extend([
        Check("cancel", |r| set(r, &["cancel", "reason"], json!("x")), "unknown member \"reason\""),
        Check("run id", |r| set(r, &["cancel", "runId"], json!(7)), "runId must be"),
        Check("subject", |r| set(r, &["cancel", "subject"], json!(null)), "subject must be"),
    ]);
    prove_order("cancel", cancel, &valid::cancel(), &with_proof(payload));
}
