//! Contract 05 §2.6-2.8 and §4.6: what spends a budget, what a full one masks, and what it never stops.

use std::sync::atomic::Ordering;

use cotal_trust::system::SystemEntropy;
use cotal_wire::InstanceId;
use serde_json::{Value, json};

use super::{
    call::{BOTH, Call, FaceName, THROTTLED},
    rig::{ACTOR, Rig},
};
use crate::managers::SelectionRefusal;

fn wrong(good: &Value) -> Value {
    let mut body = good.clone();
    body["actorToken"] = json!("wrong");
    body
}

async fn fill(rig: &Rig, face: FaceName, good: &Value) {
    for n in 0..30 {
        assert_eq!(rig.exchange(face, &wrong(good)).await.status, 401, "refusal {n}");
    }
}

#[tokio::test]
async fn the_31st_refusal_of_a_minute_is_masked_and_a_good_credential_never_is() {
    let rig = Rig::start().await;
    let good = rig.agent();
    for face in BOTH {
        fill(&rig, face, &good).await;
        let masked = rig.exchange(face, &wrong(&good)).await;
        assert_eq!((masked.status, masked.error().as_str()), (429, THROTTLED), "{face:?}");
        assert!(!masked.headers.contains_key("retry-after"));
        assert_eq!(rig.exchange(face, &good).await.status, 200, "{face:?}");
        rig.clock.advance_ms(60_001);
        assert_eq!(rig.exchange(face, &wrong(&good)).await.status, 401, "{face:?}: the window drained");
        rig.clock.advance_ms(60_001);
    }
}

#[tokio::test]
async fn the_two_faces_have_separate_budgets() {
    let rig = Rig::start().await;
    let good = rig.agent();
    fill(&rig, FaceName::Loopback, &good).await;
    assert_eq!(rig.exchange(FaceName::Public, &wrong(&good)).await.status, 401);
}

#[tokio::test]
async fn a_syntactic_400_spends_nothing_and_is_never_masked() {
    let rig = Rig::start().await;
    let good = rig.agent();
    let mut bad = good.clone();
    bad["ttlSec"] = json!("60");
    for face in BOTH {
        for _ in 0..40 {
            assert_eq!(rig.exchange(face, &bad).await.status, 400);
        }
        assert_eq!(rig.exchange(face, &wrong(&good)).await.status, 401, "{face:?}: nothing was spent");
        for _ in 0..29 {
            rig.exchange(face, &wrong(&good)).await;
        }
        assert_eq!(rig.exchange(face, &bad).await.status, 400, "{face:?}: and it is not masked");
        rig.clock.advance_ms(60_001);
    }
}

#[tokio::test]
async fn a_body_that_is_no_object_spends_the_budget() {
    let rig = Rig::start().await;
    for face in BOTH {
        for body in ["null", "[]", "1", "\"x\"", "true"].into_iter().cycle().take(30) {
            let answer = rig.send(face, &Call::exchange(body)).await;
            assert_eq!(answer.status, 400, "{face:?} {body}");
        }
        let masked = rig.send(face, &Call::exchange("null")).await;
        assert_eq!((masked.status, masked.error().as_str()), (429, THROTTLED), "{face:?}");
    }
}

#[tokio::test]
async fn a_view_that_is_not_public_spends_the_peers_budget() {
    let rig = Rig::start().await;
    let mut elevated = rig.agent();
    elevated["view"] = json!("admin");
    for _ in 0..30 {
        assert_eq!(rig.exchange(FaceName::Public, &elevated).await.status, 403);
    }
    assert_eq!(rig.exchange(FaceName::Public, &elevated).await.status, 429);
}

#[tokio::test]
async fn wrong_capabilities_fill_a_window_of_their_own() {
    let rig = Rig::start().await;
    let good = rig.agent();
    let mut call = Call::exchange(good.to_string());
    call.headers.insert("authorization".into(), "Bearer nope".into());
    for n in 0..30 {
        assert_eq!(rig.send(FaceName::Loopback, &call).await.status, 401, "attempt {n}");
    }
    let flooded = rig.send(FaceName::Loopback, &call).await;
    assert_eq!(
        (flooded.status, flooded.error().as_str()),
        (429, "too many invalid-capability attempts - wait a minute and retry")
    );
    assert_eq!(
        rig.exchange(FaceName::Loopback, &wrong(&good)).await.status,
        401,
        "the refusal window is untouched"
    );
    assert_eq!(rig.exchange(FaceName::Loopback, &good).await.status, 200);
}

#[tokio::test]
async fn peers_behind_a_trusted_proxy_have_budgets_of_their_own_and_1024_of_them_evict_the_oldest() {
    let rig = Rig::behind_a_proxy().await;
    let good = rig.agent();
    for _ in 0..30 {
        assert_eq!(rig.exchange_from("9.9.9.9, 10.0.0.1", &wrong(&good)).await.status, 401);
    }
    assert_eq!(rig.exchange_from("10.0.0.1", &wrong(&good)).await.status, 429);
    assert_eq!(rig.exchange_from("10.0.0.2", &wrong(&good)).await.status, 401);
    for n in 0..1023 {
        assert_eq!(rig.exchange_from(&format!("peer-{n}"), &json!({})).await.status, 400);
    }
    assert_eq!(
        rig.exchange_from("10.0.0.1", &wrong(&good)).await.status,
        401,
        "evicted: a mere check is a touch"
    );
}

#[tokio::test]
async fn a_selection_refusal_on_the_public_face_spends_only_its_class_window() {
    let rig = Rig::start().await;
    let good = rig.agent();
    let mut unpinned = good.clone();
    unpinned["view"] = json!("manager-caller");
    let mut pinned = unpinned.clone();
    pinned["managerInstanceId"] = json!("m".repeat(26));

    fill(&rig, FaceName::Public, &good).await;
    for n in 0..30 {
        let answer = rig.exchange(FaceName::Public, &unpinned).await;
        assert_eq!((answer.status, answer.error().as_str()), (401, "no live manager here"), "refusal {n}");
    }
    *rig.managers.answer.lock() = Ok(InstanceId::mint(&SystemEntropy));
    let asked = rig.managers.asked.load(Ordering::SeqCst);
    let shed = rig.exchange(FaceName::Public, &unpinned).await;
    assert_eq!(shed.status, 429, "one that would have succeeded is shed too");
    assert!(
        shed.error().contains("--on") && shed.error().contains("cotal manager start"),
        "{}",
        shed.error()
    );
    assert_eq!(rig.managers.asked.load(Ordering::SeqCst), asked, "before selection ran");
    assert_eq!(rig.exchange(FaceName::Public, &pinned).await.status, 200, "the other class stays open");
    rig.clock.advance_ms(60_001);
    assert_eq!(rig.exchange(FaceName::Public, &unpinned).await.status, 200, "the window drained");
}

#[tokio::test]
async fn a_persons_class_window_is_the_owners_and_an_agents_is_its_own() {
    let rig = Rig::with_people().await;
    for actor in ["cli", "laptop"] {
        rig.grant_human("alice", actor, &[]);
    }
    let as_caller = |mut body: serde_json::Value| {
        body["view"] = json!("manager-caller");
        body
    };
    let status = async |body: &serde_json::Value| rig.exchange(FaceName::Public, body).await.status;
    let (cli, laptop) = (as_caller(rig.human("alice", "cli")), as_caller(rig.human("alice", "laptop")));
    let (bob, agent) = (as_caller(rig.human("bob", "cli")), as_caller(rig.agent()));
    rig.grant_human("bob", "cli", &[]);
    for n in 0..30 {
        assert_eq!(status(if n % 2 == 0 { &cli } else { &laptop }).await, 401, "refusal {n}");
    }
    assert_eq!((status(&cli).await, status(&laptop).await), (429, 429), "every actor of the owner");
    assert_eq!((status(&bob).await, status(&agent).await), (401, 401), "and nobody else");
    // Shed, it is neither counted nor masked: a plain exchange of the same person goes on.
    assert_eq!(status(&rig.human("alice", "cli")).await, 200);
    // What does not verify never reaches a class window: it is the peer's budget that it spends.
    let mut ungranted = cli.clone();
    ungranted["actor"] = json!("nobody");
    assert_eq!(status(&ungranted).await, 401);
    let shed = rig.exchange(FaceName::Public, &cli).await;
    assert_eq!(shed.status, 429);
    assert!(shed.error().starts_with("too many refused manager selections"), "{}", shed.error());
}

#[tokio::test]
async fn a_full_pinned_window_asks_to_check_the_instance() {
    let rig = Rig::start().await;
    let mut pinned = rig.agent();
    pinned["view"] = json!("manager-caller");
    pinned["managerInstanceId"] = json!("not a lifecycle token");
    for _ in 0..30 {
        assert_eq!(rig.exchange(FaceName::Public, &pinned).await.status, 401);
    }
    let shed = rig.exchange(FaceName::Public, &pinned).await;
    assert_eq!(shed.status, 429);
    assert!(shed.error().contains("live and registered to the caller"), "{}", shed.error());
    assert_eq!(rig.managers.asked.load(Ordering::SeqCst), 0, "a malformed id never reaches the directory");
}

#[tokio::test]
async fn on_loopback_a_missing_manager_costs_nothing_and_a_wrong_pin_costs_the_shared_budget() {
    let rig = Rig::start().await;
    let good = rig.agent();
    let mut unpinned = good.clone();
    unpinned["view"] = json!("manager-caller");
    for _ in 0..40 {
        assert_eq!(rig.exchange(FaceName::Loopback, &unpinned).await.error(), "no live manager here");
    }
    *rig.managers.answer.lock() = Err(SelectionRefusal::Ambiguous("two of them".to_owned()));
    fill(&rig, FaceName::Loopback, &good).await;
    let kept = rig.exchange(FaceName::Loopback, &unpinned).await;
    assert_eq!((kept.status, kept.error().as_str()), (401, "two of them"), "not masked either");
    *rig.managers.answer.lock() = Err(SelectionRefusal::NotACandidate("not open".to_owned()));
    let mut pinned = unpinned.clone();
    pinned["managerInstanceId"] = json!("m".repeat(26));
    assert_eq!(rig.exchange(FaceName::Loopback, &pinned).await.status, 429);
}

#[tokio::test]
async fn a_connect_limited_principal_is_told_which_bucket_and_how_long_and_spends_nothing() {
    let rig = Rig::start().await;
    let good = rig.agent();
    let owner = rig.owner_of("spawner");
    let actor = cotal_wire::Actor::parse(ACTOR).unwrap();
    while rig.limiter.charge_principal(&owner, &actor).is_ok() {}
    for face in BOTH {
        for _ in 0..31 {
            let answer = rig.exchange(face, &good).await;
            assert_eq!(answer.status, 429, "{face:?}");
            let body = answer.json();
            assert_eq!((&body["code"], &body["limit"]), (&json!("RATE_LIMITED"), &json!("actor")));
            assert_eq!(answer.headers["retry-after"], body["retryAfterSeconds"].to_string());
            assert!(
                answer.text.starts_with(r#"{"code":"RATE_LIMITED","retryAfterSeconds":"#),
                "{}",
                answer.text
            );
        }
        assert_eq!(rig.exchange(face, &wrong(&good)).await.status, 401, "{face:?}: nothing was recorded");
    }
    assert_eq!(rig.credentials.asked.load(Ordering::SeqCst), 0);
}
