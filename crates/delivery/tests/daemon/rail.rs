//! The rail as a stranger, a garbled sender and a crowd meet it.

use std::time::Duration;

use bytes::Bytes;
use cotal_wire::delivery_admin::{AdminRequest, MAX_PRINCIPALS, parse_reply};
use serde_json::{Value, json};

use crate::house::{House, principal};

const SENDER: &str = "cotal.main.ctl.delivery-admin.local.tester";

async fn ask(house: &House, request: &Value) -> Value {
    let reply = format!("{SENDER}.reply.x");
    let request = Bytes::from(request.to_string());
    let answer = house.anything.request_at(SENDER, &reply, request, Duration::from_secs(10)).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

#[tokio::test]
async fn a_request_of_another_shape_is_refused_and_the_rail_goes_on() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let alice = principal("alice").key();
    let too_many: Vec<String> = (0..=MAX_PRINCIPALS).map(|n| principal(&format!("a{n}")).key()).collect();
    for bad in [
        json!([]),
        json!({}),
        json!({ "op": "evictEverybody" }),
        json!({ "op": 7 }),
        json!({ "op": "principalLiveness" }),
        json!({ "op": "principalLiveness", "args": [] }),
        json!({ "op": "principalLiveness", "args": { "principal": "x.alice" } }),
        json!({ "op": "principalLiveness", "args": { "principal": alice, "force": true } }),
        json!({ "op": "principalLiveness", "args": { "principal": alice }, "more": 1 }),
        json!({ "op": "evictPrincipals", "args": { "principals": [] } }),
        json!({ "op": "evictPrincipals", "args": { "principals": [alice, alice] } }),
        json!({ "op": "evictPrincipals", "args": { "principals": too_many } }),
        json!({ "op": "planeConnLiveness", "args": { "query": { "ledger": {}, "records": {} } } }),
        json!({ "op": "lifecycleMemberships", "args": { "principal": alice, "lifecycleUid": "x" } }),
        json!({ "op": "reloadCreds", "args": { "expected": { "delivery": "x" } } }),
        json!({ "op": "x".repeat(70_000) }),
    ] {
        let answer = ask(&house, &bad).await;
        assert_eq!(answer["ok"], false, "{bad}");
        assert!(answer["error"].is_string() && answer.get("data").is_none(), "{answer}");
        let text = answer.to_string();
        assert!(!text.contains("evictEverybody") && text.len() < 300, "it repeats nothing: {text}");
    }
    let good = json!({ "op": "principalLiveness", "args": { "principal": alice }, "from": { "id": alice } });
    let answer = ask(&house, &good).await;
    assert_eq!(answer["data"], json!({ "principal": alice, "state": "gone", "sweepComplete": true }));
}

#[tokio::test]
async fn an_answer_goes_to_the_senders_own_reply_subjects_alone() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let request = Bytes::from(AdminRequest::ReloadStoreIdentity.to_bytes());
    for stray in [
        "cotal.main.ctl.delivery-admin.local.other.reply.1",
        "cotal.main.ctl.delivery.local.tester.reply.1",
        "_INBOX.stray",
        SENDER,
    ] {
        let asked = house.anything.request_at(SENDER, stray, request.clone(), Duration::from_millis(500));
        match asked.await {
            // Its own request, where it asked for the answer on the request's own subject.
            Ok(echo) => assert_eq!(echo.payload, request, "{stray}"),
            Err(error) => assert!(error.message.contains("no answer"), "{stray}: {error}"),
        }
    }
    let owner = "cotal.main.ctl.delivery-admin.stranger.tester";
    let reply = format!("{owner}.reply.1");
    let asked = house.anything.request_at(owner, &reply, request.clone(), Duration::from_millis(500)).await;
    assert!(asked.is_err(), "no principal stands in the subject");
    let reply = format!("{SENDER}.reply.1");
    let answer = house.anything.request_at(SENDER, &reply, request, Duration::from_secs(5)).await.unwrap();
    assert!(parse_reply(&answer.payload).is_ok());
}

#[tokio::test]
async fn a_flood_is_answered_or_refused_and_never_left_without_an_answer() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let request = Bytes::from(AdminRequest::PrincipalLiveness(principal("alice")).to_bytes());
    let asked = (0..150).map(|n| {
        let (house, request) = (&house, request.clone());
        async move {
            let reply = format!("{SENDER}.reply.{n}");
            let asked = house.anything.request_at(SENDER, &reply, request, Duration::from_secs(20)).await;
            parse_reply(&asked.unwrap().payload).is_ok()
        }
    });
    let answers = futures::future::join_all(asked).await;
    let answered = answers.iter().filter(|ok| **ok).count();
    assert!((1..150).contains(&answered), "{answered} of 150");
}
