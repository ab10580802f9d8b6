//! The body of an exchange, up to the first question that the ledger, the IdP or the plane answers: each refusal is the
//! contract's, in the contract's order (contract 05 §4.2, §4.4, §4.5), told by a second reading of the body.
#![no_main]

use cotal_auth::fuzzing::{Passed, Refused, read};
use cotal_ledger::AGENT_EXCHANGE_REFUSAL;
use cotal_wire::{Actor, DerivedOwner, InstanceId, SessionEndpoint, SessionId, Sha256Hex};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

const PUBLIC_VIEWS: [&str; 5] =
    ["channel-writer", "channel-purger", "transfer-writer", "session-caller", "manager-caller"];

fuzz_target!(|data: &[u8]| {
    let body = serde_json::from_str::<Value>(&String::from_utf8_lossy(data));
    for public in [false, true] {
        let outcome = read(data, public);
        let expected = match &body {
            Err(_) => Some((400, "request body is not valid JSON", false)),
            Ok(body) => refusal(body, public),
        };
        match (outcome, expected) {
            (Ok(passed), None) => check(&passed, body.as_ref().unwrap().as_object().expect("an object")),
            (Err(Refused { status, body, counted }), Some((wanted, sentence, is_counted))) => {
                let body: Value = serde_json::from_slice(&body).expect("an answer is JSON");
                let said = body["error"].as_str().expect("a refusal is a sentence");
                assert_eq!(body.as_object().unwrap().len(), 1);
                assert!(said.starts_with(sentence), "wanted {sentence:?}, got {said:?}");
                assert!(said.is_ascii() && said.len() < 160, "a refusal echoes its input: {said}");
                assert_eq!((status, counted), (wanted, is_counted), "{said}");
            }
            (outcome, expected) => panic!("got {outcome:?}, wanted {expected:?}"),
        }
    }
});

/// What the contract refuses a body with: status, sentence, whether it is counted.
fn refusal(body: &Value, public: bool) -> Option<(u16, &'static str, bool)> {
    let Value::Object(body) = body else { return Some((400, "exchange body must be a JSON object", true)) };
    let has = |name: &str| body.contains_key(name);
    let view = body.get("view").and_then(Value::as_str);
    let bad = |sentence| Some((400, sentence, false));
    if (view == Some("session-caller")) != has("sessionGrant") {
        return bad("view \"session-caller\" and sessionGrant come together or not at all");
    }
    if (view == Some("transfer-writer")) != has("transferWriter") {
        return bad("view \"transfer-writer\" and transferWriter come together or not at all");
    }
    if body.get("ttlSec").is_some_and(|ttl| !ttl.is_number()) {
        return bad("ttlSec must be a number");
    }
    if has("view") && view.is_none() {
        return bad("view must be a string when present");
    }
    if body.get("managerInstanceId").is_some_and(|id| !id.is_string()) {
        return bad("managerInstanceId must be a string when present");
    }
    if has("managerInstanceId") && view != Some("manager-caller") {
        return bad("managerInstanceId is valid only with view \"manager-caller\"");
    }
    if public && view.is_some_and(|view| !PUBLIC_VIEWS.contains(&view)) {
        return Some((403, "elevated views are a loopback operator surface", true));
    }
    if has("idpToken") && has("actorToken") {
        return bad("exchange takes idpToken (human) OR owner+actorToken (agent), never both");
    }
    let texts = |names: &[&str]| {
        names.iter().all(|name| body.get(*name).and_then(Value::as_str).is_some_and(|text| !text.is_empty()))
    };
    let refused = |sentence| Some((401, sentence, true));
    if has("actorToken") {
        if view.is_some_and(|view| view != "manager-caller") {
            return bad("the managed (agent-secret) exchange never mints elevated views");
        }
        if !texts(&["owner", "actor", "actorToken"]) {
            return bad("agent exchange needs { owner: string, actor: string, actorToken: string");
        }
        if DerivedOwner::parse(body["owner"].as_str()?).is_err()
            || Actor::parse(body["actor"].as_str()?).is_err()
        {
            return refused(AGENT_EXCHANGE_REFUSAL);
        }
    } else {
        if !texts(&["idpToken", "actor"]) {
            return bad("exchange needs { idpToken: string, actor: string");
        }
        if body.get("sessionGrant").is_some_and(|grant| !is_session(grant)) {
            return refused("sessionGrant needs {");
        }
        if body.get("transferWriter").is_some_and(|target| !is_transfer(target)) {
            return refused("transferWriter needs exactly {");
        }
    }
    None
}

fn is_session(grant: &Value) -> bool {
    grant["endpoint"].as_str().is_some_and(|text| SessionEndpoint::parse(text).is_ok())
        && grant["sessionId"].as_str().is_some_and(|text| SessionId::parse(text).is_ok())
        && grant["sig"].is_string()
        && grant["serving"]["epoch"].as_u64().is_some_and(|epoch| epoch < 1 << 53)
}

fn is_transfer(target: &Value) -> bool {
    target.as_object().is_some_and(|target| target.len() == 2)
        && target["instanceId"].as_str().is_some_and(|text| InstanceId::parse(text).is_ok())
        && target["hex"].as_str().is_some_and(|text| Sha256Hex::parse(text).is_ok())
}

fn check(passed: &Passed, body: &Map<String, Value>) {
    let is_agent = body.contains_key("actorToken");
    assert_eq!(body[if is_agent { "actorToken" } else { "idpToken" }], passed.secret.as_str());
    assert_eq!(body["actor"], passed.actor.as_str());
    assert_eq!(passed.owner.is_some(), is_agent);
    assert_eq!(body.get("view").and_then(Value::as_str), passed.view.as_deref());
    assert_eq!(body.contains_key("managerInstanceId"), passed.manager_instance_id.is_some());
    assert_eq!(body.contains_key("sessionGrant"), passed.session.is_some());
    assert_eq!(body.contains_key("transferWriter"), passed.transfer_writer.is_some());
    let cap = match passed.view.as_deref() {
        _ if is_agent => 300.0,
        Some("transfer-writer") => 300.0,
        _ => 900.0,
    };
    let asked = body.get("ttlSec").map(|ttl| ttl.as_f64().expect("a number"));
    assert!(passed.ttl_secs <= cap && passed.ttl_secs.is_finite());
    assert_eq!(passed.ttl_secs, asked.map_or(cap, |asked| asked.min(cap)));
}
