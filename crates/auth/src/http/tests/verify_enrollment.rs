//! Contract 05 §7.4 and 06 §14.1: the loopback door that decides about managed agents, and its own map of refusals.

use cotal_authority::manager::Holder;
use cotal_wire::{Actor, EpCode, EpError, InstanceId, LifecycleUid, Owner, manager_authority::Incarnation};
use serde_json::{Value, json};

use super::{
    call::{Answer, Call, FaceName},
    rig::Rig,
};
use crate::manager::VerifiedAgent;

const PATH: &str = "/manager-service-authority/verify-enrollment";
const WHAT: &str = "managed agent enrollment verification";
const KINDS: [&str; 4] = [
    "manager-managed-agent-enrollment",
    "manager-managed-agent-prepare-retirement",
    "manager-managed-agent-runtime-create",
    "manager-managed-agent-runtime-status",
];

fn call(body: impl Into<Vec<u8>>) -> Call {
    Call { target: PATH.to_owned(), ..Call::exchange(body) }
}

async fn ask(rig: &Rig, body: &Value) -> Answer {
    rig.send(FaceName::Loopback, &call(body.to_string())).await
}

/// Nobody signs in here: the host says whose manager asks.
async fn rig() -> (Rig, Value) {
    let rig = Rig::start().await;
    rig.grant_human("alice", "cli", &["supervise"]);
    rig.authority.verifies(Ok(grant()));
    let request = json!({"kind": KINDS[0], "actor": "cli"});
    let body = json!({"owner": rig.owner_of("alice").as_str(), "request": request});
    (rig, body)
}

fn grant() -> VerifiedAgent {
    VerifiedAgent::Grant {
        actor: Actor::parse("scout").unwrap(),
        instance: InstanceId::parse(&"i".repeat(26)).unwrap(),
        serve_epoch: 0,
    }
}

#[tokio::test]
async fn each_kind_is_answered_with_whom_it_is_about() {
    let (rig, good) = rig().await;
    let owner = rig.owner_of("alice");
    let instance = "i".repeat(26);
    let answer = ask(&rig, &good).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(
        answer.json(),
        json!({"authorized": true, "owner": owner.as_str(), "actor": "scout", "instanceId": instance, "serveEpoch": 0})
    );

    let target = Incarnation {
        owner: Owner::from(&owner),
        actor: Actor::parse("scout").unwrap(),
        lifecycle_uid: LifecycleUid::parse(&"t".repeat(26)).unwrap(),
    };
    rig.authority.verifies(Ok(VerifiedAgent::Runtime {
        instance: InstanceId::parse(&instance).unwrap(),
        actor: Actor::parse("cli").unwrap(),
        target,
    }));
    let mut body = good.clone();
    body["request"]["kind"] = json!(KINDS[2]);
    let target = json!({"owner": owner.as_str(), "actor": "scout", "lifecycleUid": "t".repeat(26)});
    assert_eq!(
        ask(&rig, &body).await.json(),
        json!({"authorized": true, "owner": owner.as_str(), "actor": "cli", "instanceId": instance, "target": target})
    );
    let holder = Holder::Human { owner: (&owner).into(), scope: vec!["supervise".to_owned()] };
    assert!(rig.authority.asked().iter().all(|(asked, _)| *asked == holder), "the scope is the ledger's");
}

/// How a good request is broken: some members, or the head.
enum Break {
    Head(fn(&mut Call)),
    Whole(&'static [u8]),
    Body(fn(&mut Value)),
    Refuses(EpCode),
}

fn rows() -> Vec<(&'static str, Break, u16, String)> {
    let needs = |rest: &str| format!("{WHAT} {rest}");
    let origin = |call: &mut Call| drop(call.headers.insert("origin".into(), String::new()));
    let text = |call: &mut Call| drop(call.headers.insert("content-type".into(), "text/plain".into()));
    vec![
        ("method", Break::Head(|call| call.method = "GET"), 405, "POST only".into()),
        ("origin", Break::Head(origin), 403, "browser-origin requests are not served here".into()),
        ("content type", Break::Head(text), 415, "content-type must be application/json".into()),
        (
            "capability",
            Break::Head(|call| call.without_cap = true),
            401,
            format!("missing/invalid exchange capability - {WHAT} is a loopback host action"),
        ),
        ("not JSON", Break::Whole(b"{"), 400, "request body is not valid JSON".into()),
        ("no object", Break::Whole(b"[]"), 400, needs("needs { owner, request }")),
        (
            "unknown",
            Break::Body(|body| body["scope"] = json!([])),
            400,
            needs("carries the unknown field \"scope\""),
        ),
        (
            "owner type",
            Break::Body(|body| body["owner"] = json!(1)),
            400,
            needs("needs a string owner and an object request"),
        ),
        (
            "kind",
            Break::Body(|body| body["request"]["kind"] = json!("manager-goal-index-scan")),
            400,
            needs("takes the four kinds about managed agents alone"),
        ),
        (
            "actor type",
            Break::Body(|body| drop(body["request"].as_object_mut().unwrap().remove("actor"))),
            400,
            needs("request requires an actor"),
        ),
        (
            "owner grammar",
            Break::Body(|body| body["owner"] = json!("local")),
            400,
            format!("{WHAT}: owner is"),
        ),
        ("no grant", Break::Body(|body| body["request"]["actor"] = json!("web")), 403, String::new()),
        ("decision", Break::Refuses(EpCode::FailedPrecondition), 412, "the decision says no".into()),
    ]
}

fn broken(rig: &Rig, good: &Value, breaks: &[&Break]) -> Call {
    let mut body = good.clone();
    let mut whole = None;
    rig.authority.verifies(Ok(grant()));
    // The earlier break is applied last: of two that touch one member it is the one that stands.
    for how in breaks.iter().rev() {
        match how {
            Break::Body(change) => change(&mut body),
            Break::Whole(bytes) => whole = Some(bytes.to_vec()),
            Break::Refuses(code) => rig.authority.verifies(Err(EpError::new(*code, "the decision says no"))),
            Break::Head(_) => {}
        }
    }
    let mut call = call(whole.unwrap_or_else(|| body.to_string().into_bytes()));
    for how in breaks {
        if let Break::Head(change) = how {
            change(&mut call);
        }
    }
    call
}

#[tokio::test]
async fn every_check_answers_in_its_order_and_none_touches_a_window() {
    let (rig, good) = rig().await;
    let rows = rows();
    for (at, (what, how, status, error)) in rows.iter().enumerate() {
        for later in std::iter::once(None).chain(rows[at + 1..].iter().map(Some)) {
            let mut breaks = vec![how];
            breaks.extend(later.map(|(_, how, _, _)| how));
            let answer = rig.send(FaceName::Loopback, &broken(&rig, &good, &breaks)).await;
            let beside = later.map_or("alone", |(what, _, _, _)| what);
            assert_eq!(answer.status, *status, "{what} and {beside}: {}", answer.text);
            assert!(answer.error().starts_with(error.as_str()), "{what} and {beside}: {}", answer.text);
        }
    }
    // Some hundred refusals later the exchange has its whole budget.
    let refused = rig.exchange(FaceName::Loopback, &json!({"idpToken": "x.y.z", "actor": "cli"})).await;
    assert_eq!(refused.status, 401);
}

#[tokio::test]
async fn the_door_has_its_own_map_of_native_refusals() {
    let (rig, good) = rig().await;
    for code in EpCode::ALL {
        rig.authority.verifies(Err(EpError::new(code, "the decision says no")));
        let answer = ask(&rig, &good).await;
        let wanted = match code {
            EpCode::Unauthenticated => 401,
            EpCode::Conflict => 409,
            EpCode::FailedPrecondition => 412,
            EpCode::BadRequest => 400,
            _ => 403,
        };
        assert_eq!(answer.status, wanted, "{code:?}");
        assert_eq!(answer.json().as_object().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn it_takes_the_four_kinds_about_managed_agents_and_no_other() {
    let (rig, good) = rig().await;
    for kind in cotal_wire::manager_authority::Kind::ALL.map(cotal_wire::manager_authority::Kind::as_str) {
        let mut body = good.clone();
        body["request"]["kind"] = json!(kind);
        assert_eq!(ask(&rig, &body).await.status, if KINDS.contains(&kind) { 200 } else { 400 }, "{kind}");
    }
}

#[tokio::test]
async fn the_public_face_has_no_such_path() {
    let (rig, good) = rig().await;
    assert_eq!(rig.send(FaceName::Public, &call(good.to_string())).await.status, 404);
}
