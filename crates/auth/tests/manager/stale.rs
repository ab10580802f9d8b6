//! What an earlier registration proved is worth nothing after the next one, whatever is asked with it (contract 06 §3.2, §16).

use cotal_testkit::{manager::Proved, runs::run_id};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    LifecycleUid, OpId,
    manager_authority::{Kind, Operation, RUN_CANCEL, RUN_START, RUN_SUBMIT},
    rows::GateCoordinate,
};
use serde_json::{Value, json};

use super::{
    rig::{PERSON, renewal},
    running::{Running, TAKEOVER, keys},
};

/// How a request is refused for where it stands, and what the refusal says.
const MOVED: (u16, &str) = (409, "has registered again since");
const UNPROVED: (u16, &str) = (403, "the registration proof is not");

/// What is asked, and whether all of it stands otherwise.
struct Question {
    what: &'static str,
    kind: Kind,
    /// An operation of [`Kind::Service`], with its run.
    renews: Option<Operation>,
    payload: Value,
    granted: bool,
}

fn about(kind: Kind, payload: Value) -> Question {
    Question { what: kind.as_str(), kind, renews: None, payload, granted: true }
}

fn renews(operation: Operation) -> Question {
    Question { what: operation.as_str(), renews: Some(operation), ..about(Kind::Service, Value::Null) }
}

/// The coordinates of a request, and the refusal of each that is not the present one.
fn stale(
    running: &Running,
    before: (&Proved, GateCoordinate),
    now: &Proved,
) -> Vec<(&'static str, Proved, (u16, &'static str))> {
    let (before, at) = before;
    let account = running.rig.stage.space.account.data_account();
    // At the present epoch, over the spec as it was registered before.
    let earlier_spec = GateCoordinate { process_epoch: now.epoch, ..at };
    vec![
        ("everything of before", before.clone(), MOVED),
        ("an earlier epoch", Proved { epoch: before.epoch, ..now.clone() }, MOVED),
        ("a later epoch", Proved { epoch: now.epoch + 1, ..now.clone() }, MOVED),
        ("an earlier proof", Proved { proof: before.proof.clone(), ..now.clone() }, UNPROVED),
        ("an earlier revision", running.manager().proved_at(&account, earlier_spec), UNPROVED),
    ]
}

#[tokio::test]
async fn what_an_earlier_registration_proved_is_refused_whatever_is_asked_with_it() {
    let mut running = Running::start().await;
    let mut caller = running.caller().await;
    let both = keys();
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(running.admitted(&mut caller).await);
    }
    let [driven, begun, revoked, cancelled] = &runs[..] else { panic!("four runs") };
    let attempt = |run| json!({ "attempt": Running::attempt(run, 1, 1, &both) });
    assert_eq!(running.ask(Kind::RunAttempt, attempt(driven)).await.0, 200);
    running.recorded(driven, "running", 1, 1, TAKEOVER).await;

    // It registers again, for real.
    let before = running.proved.clone();
    let first = running.register_again().await;
    let now = running.proved.clone();
    assert_eq!((before.epoch, now.epoch), (0, 1));
    assert_ne!(before.proof, now.proof);

    let uid = LifecycleUid::mint(&SystemEntropy);
    let target = json!({ "owner": running.manager().owner, "actor": "scout", "lifecycleUid": uid });
    let agent = json!({ "actor": "scout", "tokenHash": "0".repeat(64) });
    let op = OpId::managed_retirement(&uid);
    let start = caller.ask(running.manager(), RUN_START, &json!({})).await;
    let submit = caller.ask(running.manager(), RUN_SUBMIT, &json!({ "submissionId": "nightly" })).await;
    let cancel = caller.ask(running.manager(), RUN_CANCEL, &json!({ "runId": cancelled })).await;
    let questions = [
        about(Kind::Enrollment, json!({ "target": agent })),
        Question {
            // Of an incarnation that there never was.
            granted: false,
            ..about(
                Kind::RetainedAgentValidation,
                json!({ "target": target, "actorToken": "t", "sentinelCreds": "s" }),
            )
        },
        // Without a delivery daemon it comes to an end, and not to its own.
        Question {
            granted: false,
            ..about(Kind::PrepareRetirement, json!({ "target": target, "opId": op }))
        },
        about(Kind::GoalIndexScan, json!({})),
        about(Kind::AdminAuthorization, json!({ "caller": target })),
        about(Kind::RunAdmission, json!({ "run": { "runId": run_id(), "subject": start } })),
        about(
            Kind::RunSubmission,
            json!({ "submission": { "submissionId": "nightly", "runId": run_id(), "subject": submit } }),
        ),
        about(Kind::RunAttempt, attempt(begun)),
        about(Kind::RunRevoke, json!({ "revoke": { "runId": revoked, "reason": "x" } })),
        about(Kind::RunCancel, json!({ "cancel": { "runId": cancelled, "subject": cancel } })),
        renews(Operation::RenewRunDriver),
        renews(Operation::RenewStandingBundle),
    ];
    let request = |question: &Question, on: &Proved| match question.renews {
        Some(Operation::RenewRunDriver) => running.renews(on, driven, TAKEOVER, &both),
        Some(operation) => running.manager().request(operation, &renewal(&on.proof, on.epoch)),
        None => running.manager().proved(question.kind, on, &question.payload),
    };
    let refused = |what: &str, (status, answer): (u16, Value), (wanted, says): (u16, &str)| {
        assert_eq!(status, wanted, "{what}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(says), "{what}: {answer}");
    };
    let stale = stale(&running, (&before, first), &now);

    for question in &questions {
        for (how, on, refusal) in &stale {
            let answer = running.rig.send_afresh(PERSON, &request(question, on)).await;
            refused(&format!("{}: {how}", question.what), answer, *refusal);
        }
        let mut another = request(question, &now);
        another["managerLifecycleUid"] = json!(LifecycleUid::mint(&SystemEntropy));
        let answer = running.rig.send_afresh(PERSON, &another).await;
        refused(&format!("{}: another lifecycle", question.what), answer, UNPROVED);
    }

    // The door decides what a host does itself, by the same coordinates.
    let verified = async |request: &Value| {
        let url = format!("{}/manager-service-authority/verify-enrollment", running.rig.daemon.discovery.url);
        let body = json!({ "owner": running.manager().owner, "request": request });
        running.rig.daemon.post(&url, Some(&running.rig.daemon.discovery.cap), &body).await
    };
    for (kind, payload) in [
        (Kind::Enrollment, json!({ "target": agent })),
        (Kind::PrepareRetirement, json!({ "target": target, "opId": op })),
        (Kind::RuntimeCreate, json!({ "target": target })),
        (Kind::RuntimeStatus, json!({ "target": target })),
    ] {
        for (how, on, refusal) in &stale {
            let answer = verified(&running.manager().proved(kind, on, &payload)).await;
            refused(&format!("the door, {}: {how}", kind.as_str()), answer, *refusal);
        }
        let (status, answer) = verified(&running.manager().proved(kind, &now, &payload)).await;
        assert_eq!(status, 200, "the door, {}: {answer}", kind.as_str());
    }

    // What was refused used nothing up: the same, as the registration stands, is answered.
    for question in &questions {
        let (status, answer) = running.rig.send_afresh(PERSON, &request(question, &now)).await;
        if question.granted {
            assert_eq!(status, 200, "{}: {answer}", question.what);
        } else {
            let said = answer["error"].as_str().unwrap_or_default();
            assert!(!said.contains(MOVED.1) && !said.contains(UNPROVED.1), "{}: {answer}", question.what);
        }
    }
    running.rig.daemon.stop().await.unwrap();
}
