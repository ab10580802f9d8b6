//! A bearer: arbitrary text, and arbitrary headers and payloads under a good signature. Nothing that is accepted breaks
//! a rule that the callout relies on.
//!
//! Input: `<payload>` or `<header>\n<payload>`; the mark `$k` is the active kid.
#![no_main]

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_fuzz::{Counting, NOW, fill, json, jws, signer};
use cotal_trust::{
    bearer::{BearerGrant, VerifiedBearer, mint, validate},
    issuer::IssuerKeySet,
};
use cotal_wire::{Actor, DerivedOwner, OwnerKind, Space, UnixSecs, View};
use ed25519_dalek::SigningKey;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const HEADER: &[u8] = br#"{"alg":"EdDSA","kid":"$k"}"#;
/// Seconds of clock skew that are forgiven.
const SKEW: f64 = 5.0;

struct Keys {
    signing: SigningKey,
    set: IssuerKeySet,
    space: Space,
    other: Space,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let space = Space::parse("main").unwrap();
    let set = IssuerKeySet::create(&space, &Counting::default());
    let document = json(set.to_document().as_bytes());
    let secret = URL_SAFE_NO_PAD.decode(document["keys"][0]["privateJwk"]["d"].as_str().unwrap()).unwrap();
    let signing = SigningKey::from_bytes(secret.as_slice().try_into().unwrap());
    Keys { signing, set, space, other: Space::parse("other").unwrap() }
});

fuzz_target!(|data: &[u8]| {
    let keys = &*KEYS;
    if let Ok(text) = std::str::from_utf8(data) {
        let refusal = validate(text, &keys.set, &keys.space, NOW).expect_err("nobody signed this text");
        assert_eq!(refusal.signed_by, None);
    }
    let (header, payload) = match cotal_fuzz::parts(data) {
        [Some(header), Some(payload)] => (header, payload),
        _ => (HEADER, data),
    };
    let header = fill(header, |mark| (mark == b'k').then(|| keys.set.active_kid()));
    let token = jws(&header, payload, signer(&keys.signing));

    match validate(&token, &keys.set, &keys.space, NOW) {
        Ok(bearer) => {
            check_header(&json(&header), keys);
            check(&bearer, &json(payload));
            assert!(validate(&token, &keys.set, &keys.other, NOW).is_err(), "a bearer is good in two spaces");
            assert!(
                validate(&token, &keys.set, &keys.space, bearer.exp.plus(6)).is_err(),
                "it never expires"
            );
            let forged = jws(&header, payload, signer(cotal_fuzz::signing_key(2)));
            assert!(validate(&forged, &keys.set, &keys.space, NOW).is_err(), "another key's signature");
            mint_again(&bearer, keys);
        }
        Err(refusal) => {
            // Who signed is told exactly when the signature is good and the payload names somebody.
            let named = serde_json::from_slice::<Value>(payload).ok().and_then(|payload| {
                let owner = DerivedOwner::parse(payload.get("sub")?.as_str()?).ok()?;
                let actor = Actor::parse(payload.get("act")?.get("actor")?.as_str()?).ok()?;
                Some((owner, actor))
            });
            assert!(refusal.signed_by.is_none() || refusal.signed_by == named);
            assert!(refusal.reason.is_ascii() && refusal.reason.len() < 100, "a refusal echoes its input");
        }
    }
});

fn check_header(header: &Value, keys: &Keys) {
    let header = header.as_object().expect("a header is an object");
    assert_eq!(header["alg"], "EdDSA");
    assert_eq!(header["kid"], keys.set.active_kid());
    assert!(["jku", "jwk", "x5u", "x5c"].iter().all(|name| !header.contains_key(*name)));
    assert!(header.get("b64").is_none_or(|b64| *b64 == true));
    if let Some(critical) = header.get("crit") {
        let names = critical.as_array().expect("crit is a list");
        assert!(!names.is_empty() && names.iter().all(|name| name == "b64") && header.contains_key("b64"));
    }
}

fn check(bearer: &VerifiedBearer, payload: &Value) {
    let number = |name: &str| payload[name].as_f64().expect("a time is a number");
    let (now, cap) = (NOW.0 as f64, View::ttl_cap_secs(bearer.act.view) as f64);
    assert!(number("exp") > now - SKEW, "an expired bearer was accepted");
    assert!(number("exp") <= now + SKEW + cap, "a bearer outlives its cap");
    assert!(number("exp") - number("iat") <= cap, "a bearer lives longer than its view allows");
    assert!(number("nbf") <= now + SKEW && number("iat") <= now + SKEW, "a bearer of the future");
    assert_eq!(bearer.exp, UnixSecs(number("exp") as u64));
    assert_eq!(payload["ver"].as_f64(), Some(1.0));
    assert_eq!(payload["iss"], "urn:cotal:auth:main");
    assert!(payload["aud"] == "main" || payload["aud"] == serde_json::json!(["main"]));

    let (act, said) = (&bearer.act, payload["act"].as_object().expect("act is an object"));
    assert_eq!(payload["sub"], bearer.owner.as_str());
    assert_eq!(act.owner, bearer.owner);
    assert_eq!(said["owner"], bearer.owner.as_str());
    assert_eq!(said["actor"], act.actor.as_str());
    assert_eq!(said.get("scope").cloned(), act.scope.as_ref().map(|scope| serde_json::json!(scope)));
    assert_eq!(bearer.capabilities(), act.scope.as_deref().unwrap_or_default());
    assert_eq!(said.contains_key("parent"), act.parent.is_some());
    assert!(act.parent.as_ref().is_none_or(|parent| parent.owner.kind() == OwnerKind::Derived));
    assert_eq!(said.get("view").and_then(Value::as_str), act.view.map(View::as_str));
    assert_eq!(said.contains_key("lifecycleUid"), act.lifecycle_uid.is_some());
    assert_eq!(said.contains_key("credentialId"), act.credential_id.is_some());
    assert_eq!(act.manager_instance_id.is_some(), act.view == Some(View::ManagerCaller));
    assert_eq!(act.session.is_some(), act.view == Some(View::SessionCaller));
    assert_eq!(act.transfer_writer.is_some(), act.view == Some(View::TransferWriter));
    if let Some(session) = &act.session {
        let said = said["session"].as_object().expect("a session is an object");
        assert_eq!(said.len(), 4);
        assert_eq!(said["sessionId"], session.session_id.as_str());
        assert!(session.epoch < 1 << 53 && session.exp.0 < 1 << 53);
    }
    if let Some(target) = &act.transfer_writer {
        let said = said["transferWriter"].as_object().expect("a target is an object");
        assert_eq!(said.len(), 2);
        assert_eq!(said["hex"], target.hex.as_str());
    }
}

/// What was accepted can be minted, and reads back as the same act.
fn mint_again(bearer: &VerifiedBearer, keys: &Keys) {
    let act = &bearer.act;
    let (Some(lifecycle_uid), Some(credential_id)) = (&act.lifecycle_uid, &act.credential_id) else { return };
    let grant = BearerGrant {
        owner: bearer.owner.clone(),
        actor: act.actor.clone(),
        scope: act.scope.clone(),
        parent: act.parent.clone(),
        lifecycle_uid: lifecycle_uid.clone(),
        credential_id: credential_id.clone(),
        view: act.view,
        manager_instance_id: act.manager_instance_id.clone(),
        session: act.session.clone(),
        transfer_writer: act.transfer_writer.clone(),
        ttl_secs: None,
        not_after: None,
    };
    let minted = mint(&keys.set, &keys.space, &grant, NOW);
    if act.view == Some(View::ServiceEndpoint) {
        assert!(minted.is_err(), "a service-endpoint bearer was minted");
        return;
    }
    let minted = minted.expect("what validates can be minted");
    let again = validate(&minted.token, &keys.set, &keys.space, NOW).expect("what was minted validates");
    assert_eq!(again.act, *act);
    assert_eq!(again.exp, minted.exp);
}
