//! Contract 14 §1 and 10 §1: who is listed what, every refusal and their order, and what each of them costs.

use cotal_trust::system::SystemEntropy;
use cotal_wire::{EpError, InstanceId};
use serde_json::{Value, json};

use super::{
    call::{BOTH, Call, FaceName, THROTTLED},
    rig::Rig,
};
use crate::managers::ManagerInstance;

const NEEDS: &str = "the manager instance list needs { idpToken: string, actor: string }";

fn call(body: &Value) -> Call {
    Call { target: "/manager-instances".into(), ..Call::exchange(body.to_string()) }
}

async fn asked(rig: &Rig, face: FaceName, body: &Value) -> (u16, Value) {
    let answer = rig.send(face, &call(body)).await;
    (answer.status, answer.json())
}

async fn people() -> (Rig, Value) {
    let rig = Rig::with_people().await;
    rig.grant_human("alice", "cli", &[]);
    let body = rig.human("alice", "cli");
    (rig, body)
}

#[tokio::test]
async fn a_person_is_listed_the_instances_that_they_can_be_bound_to() {
    let (rig, body) = people().await;
    for face in BOTH {
        assert_eq!(asked(&rig, face, &body).await, (200, json!({"v": 1, "instances": []})), "{face:?}");
    }
    let (own, hosts) = (InstanceId::mint(&SystemEntropy), InstanceId::mint(&SystemEntropy));
    *rig.managers.listed.lock() = Ok(vec![
        ManagerInstance { instance_id: own.clone(), local: false, state: "candidate".to_owned() },
        ManagerInstance { instance_id: hosts.clone(), local: true, state: "not registered".to_owned() },
    ]);
    for face in BOTH {
        let answer = rig.send(face, &call(&body)).await;
        assert_eq!(
            answer.text,
            format!(
                "{{\"v\":1,\"instances\":[{{\"instanceId\":\"{own}\",\"local\":false,\"state\":\"candidate\"}},\
                 {{\"instanceId\":\"{hosts}\",\"local\":true,\"state\":\"not registered\"}}]}}"
            ),
            "{face:?}"
        );
    }
    let alice = rig.owner_of("alice");
    assert!(rig.managers.listed_for.lock().iter().all(|owner| *owner == alice), "the proof's owner alone");
}

type Break = (&'static str, Option<FaceName>, fn(&mut Call, &mut Value), u16, &'static str);

/// Every refusal, in the contract's order.
const BREAKS: [Break; 9] = [
    ("method", None, |call, _| call.method = "PUT", 405, "POST only"),
    (
        "origin",
        None,
        |call, _| drop(call.headers.insert("origin".into(), String::new())),
        403,
        "browser-origin requests are not served here",
    ),
    (
        "content type",
        None,
        |call, _| drop(call.headers.insert("content-type".into(), "text/plain".into())),
        415,
        "content-type must be application/json",
    ),
    (
        "capability",
        Some(FaceName::Loopback),
        |call, _| call.without_cap = true,
        401,
        "missing/invalid exchange capability - the manager instance list requires the operator exchange capability on \
         this face",
    ),
    (
        "unknown member",
        None,
        |_, body| body["instanceId"] = json!("x"),
        400,
        "the manager instance list carries the unknown field \"instanceId\"",
    ),
    ("no actor", None, |_, body| body["actor"] = json!(""), 400, NEEDS),
    ("bad actor", None, |_, body| set(body, "actor", json!("a.b")), 401, ""),
    ("bad proof", None, |_, body| body["idpToken"] = json!("not.a.token"), 401, ""),
    ("no grant", None, |_, body| set(body, "actor", json!("nobody")), 401, ""),
];

/// Unless an earlier break has taken it away.
fn set(body: &mut Value, member: &str, value: Value) {
    if body[member] != json!("") && body[member] != json!("a.b") {
        body[member] = value;
    }
}

#[tokio::test]
async fn each_refusal_stands_alone_and_of_two_the_earlier_one_answers() {
    let (rig, good) = people().await;
    for face in BOTH {
        let served: Vec<_> = BREAKS.iter().filter(|row| row.1.is_none_or(|only| only == face)).collect();
        let mut alone = Vec::new();
        for (what, _, how, status, says) in &served {
            let (mut broken, mut body) = (call(&good), good.clone());
            how(&mut broken, &mut body);
            broken.body = body.to_string().into_bytes();
            let answer = rig.send(face, &broken).await;
            assert_eq!(answer.status, *status, "{face:?} {what}: {}", answer.text);
            assert!(says.is_empty() || answer.error() == *says, "{face:?} {what}: {}", answer.text);
            alone.push(answer.error());
            rig.clock.advance_ms(60_001);
        }
        let good = rig.human("alice", "cli");
        for (at, (first, _, how, ..)) in served.iter().enumerate() {
            for (second, _, later, ..) in &served[at + 1..] {
                let (mut broken, mut body) = (call(&good), good.clone());
                how(&mut broken, &mut body);
                later(&mut broken, &mut body);
                broken.body = body.to_string().into_bytes();
                let answer = rig.send(face, &broken).await;
                assert_eq!(answer.error(), alone[at], "{face:?}: {first} before {second}");
            }
            // A minute later, so that no budget fills.
            rig.clock.advance_ms(60_001);
        }
        rig.clock.advance_ms(60_001);
    }
    assert!(rig.managers.listed_for.lock().is_empty(), "no refused caller reaches the directory");
}

#[tokio::test]
async fn a_refused_proof_spends_the_budget_of_the_exchange_and_nothing_else_does() {
    let (rig, good) = people().await;
    let (mut wrong, mut bad) = (good.clone(), good.clone());
    wrong["idpToken"] = json!("not.a.token");
    bad["more"] = json!(1);
    for face in BOTH {
        *rig.managers.listed.lock() =
            Err(EpError::unavailable("the managers of this space cannot be looked at; retry"));
        for _ in 0..40 {
            assert_eq!(asked(&rig, face, &bad).await.0, 400);
            let (status, answer) = asked(&rig, face, &good).await;
            assert_eq!(
                (status, answer["error"].as_str().unwrap()),
                (
                    503,
                    "the manager instance list is unavailable: the managers of this space cannot be looked at; retry"
                )
            );
        }
        for n in 0..30 {
            assert_eq!(asked(&rig, face, &wrong).await.0, 401, "{face:?}: refusal {n}");
        }
        let (status, answer) = asked(&rig, face, &wrong).await;
        assert_eq!((status, answer["error"].as_str().unwrap()), (429, THROTTLED), "{face:?}");
        assert_eq!(rig.exchange(face, &wrong).await.status, 429, "{face:?}: the exchange sees them too");
        *rig.managers.listed.lock() = Ok(Vec::new());
        assert_eq!(asked(&rig, face, &good).await.0, 200, "{face:?}: a good proof is served all the same");
        assert_eq!(asked(&rig, face, &bad).await.0, 400, "{face:?}: what costs nothing is not masked");
    }
}
