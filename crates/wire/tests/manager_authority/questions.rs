//! Questions and maintenance (contract 06 §5, §10-11).

use crate::agents::serve_epoch_check;
use crate::{
    Check, PLATFORM, Parse, envelope_checks, es, identity_checks, prove_order, set, valid, with_proof,
};
use cotal_wire::manager_authority::{AdminRequest, GoalIndexRequest, HolderKind, MaintenanceRequest};
use serde_json::json;

#[test]
fn maintenance_refuses_in_the_contracts_order() {
    let parse: Parse = |value| MaintenanceRequest::parse(value).map(drop);
    let mut base = valid::evict();
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
    parse(&es(&valid::reconcile())).unwrap();
}

#[test]
fn the_questions_refuse_in_the_contracts_order() {
    let scan: Parse = |value| GoalIndexRequest::parse(value).map(drop);
    let checks = with_proof(vec![serve_epoch_check()]);
    prove_order("scan", scan, &valid::goal_index(), &checks);
    let admin: Parse = |value| AdminRequest::parse(value, HolderKind::Human).map(drop);
    let checks = with_proof(vec![
        serve_epoch_check(),
        Check("caller", |r| set(r, &["caller", "scope"], json!([])), "unknown member \"scope\""),
        Check("owner", |r| set(r, &["caller", "owner"], json!(PLATFORM)), "owner must be"),
        Check("actor", |r| set(r, &["caller", "actor"], json!("a-b")), "actor must be a actor"),
        Check("uid", |r| set(r, &["caller", "lifecycleUid"], json!("")), "lifecycleUid must be"),
    ]);
    prove_order("admin", admin, &valid::admin(), &checks);
}
