//! The twenty checks of contract 04 §2.4: each rule broken alone, the order in which they refuse, and the mint.

#![allow(clippy::unwrap_used, reason = "a fixture that cannot be built fails its test")]

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_trust::{
    bearer::{BearerGrant, BearerRefusal, mint, validate},
    issuer::IssuerKeySet,
    system::SystemEntropy,
};
use cotal_wire::{
    Actor, CredentialId, DerivedOwner, InstanceId, LifecycleUid, Principal, SessionClaim, SessionEndpoint,
    SessionId, Sha256Hex, Space, TransferWriterClaim, UnixSecs, View,
};
use ed25519_dalek::{Signer, SigningKey};
use proptest::prelude::*;
use serde_json::{Value, json};

const NOW: UnixSecs = UnixSecs(1_700_000_000);
const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const PARENT: &str = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb.boss";

struct Forge {
    keys: IssuerKeySet,
    signing: SigningKey,
    space: Space,
}

impl Forge {
    fn new() -> Self {
        let space = Space::parse("main").unwrap();
        let keys = IssuerKeySet::create(&space, &SystemEntropy);
        let document: Value = serde_json::from_str(&keys.to_document()).unwrap();
        let d = URL_SAFE_NO_PAD.decode(document["keys"][0]["privateJwk"]["d"].as_str().unwrap()).unwrap();
        Self { keys, signing: SigningKey::from_bytes(&d.try_into().unwrap()), space }
    }

    fn header(&self) -> Value {
        json!({"alg": "EdDSA", "kid": self.keys.active_kid()})
    }

    fn sign(&self, header: &Value, payload: &str) -> String {
        let signed =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(payload));
        let signature = self.signing.sign(signed.as_bytes()).to_bytes();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn refusal(&self, header: &Value, payload: &Value) -> BearerRefusal {
        validate(&self.sign(header, &payload.to_string()), &self.keys, &self.space, NOW).unwrap_err()
    }
}

fn payload() -> Value {
    json!({
        "scope": ["spawn"],
        "ver": 1,
        "act": {
            "owner": OWNER,
            "actor": "alice",
            "scope": ["spawn"],
            "parent": PARENT,
            "lifecycleUid": "a".repeat(26),
            "credentialId": "root.1",
        },
        "sub": OWNER,
        "iss": "urn:cotal:auth:main",
        "aud": "main",
        "iat": NOW.0,
        "nbf": NOW.0,
        "exp": NOW.0 + 900,
    })
}

fn remove(value: &mut Value, name: &str) {
    value.as_object_mut().unwrap().remove(name);
}

fn session() -> Value {
    json!({"endpoint": "manager", "sessionId": "s".repeat(22), "epoch": 3, "exp": NOW.0 + 100})
}

fn transfer() -> Value {
    json!({"instanceId": "i".repeat(26), "hex": "0".repeat(64)})
}

#[test]
fn a_good_bearer_says_what_was_signed() {
    let forge = Forge::new();
    let good = forge.sign(&forge.header(), &payload().to_string());
    let bearer = validate(&good, &forge.keys, &forge.space, NOW).unwrap();
    assert_eq!(bearer.owner.as_str(), OWNER);
    assert_eq!(bearer.space, forge.space);
    assert_eq!(bearer.act.actor.as_str(), "alice");
    assert_eq!(bearer.capabilities(), ["spawn"]);
    assert_eq!(bearer.scope, ["spawn"]);
    assert_eq!(bearer.act.parent.as_ref().unwrap().key(), PARENT);
    assert_eq!(bearer.exp, NOW.plus(900));
    assert_eq!(bearer.act.view, None);
}

#[test]
fn what_the_contract_leaves_open_is_accepted() {
    let forge = Forge::new();
    let mut cases: Vec<(&str, Value)> = Vec::new();
    let mut add = |why, change: &dyn Fn(&mut Value)| {
        let mut payload = payload();
        change(&mut payload);
        cases.push((why, payload));
    };
    add("unknown members", &|p| p["new"] = json!(1));
    add("unknown act members", &|p| p["act"]["service"] = json!({"duty": "serve"}));
    add("an audience list of one", &|p| p["aud"] = json!(["main"]));
    add("no top-level scope", &|p| remove(p, "scope"));
    add("an empty scope", &|p| p["act"]["scope"] = json!([]));
    add("no lifecycle uid", &|p| remove(&mut p["act"], "lifecycleUid"));
    add("no credential id", &|p| remove(&mut p["act"], "credentialId"));
    add("a scope string of any grammar", &|p| p["act"]["scope"] = json!(["odd one"]));
    add("a clock 5 s behind", &|p| {
        p["iat"] = json!(NOW.0 + 5);
        p["nbf"] = json!(NOW.0 + 5);
        p["exp"] = json!(NOW.0 + 905);
    });
    add("expired 4 s ago", &|p| {
        p["iat"] = json!(NOW.0 - 100);
        p["exp"] = json!(NOW.0 - 4);
    });
    add("a whole number written as a double", &|p| p["ver"] = json!(1.0));
    add("fractions of a second", &|p| p["exp"] = json!(1_700_000_100.5));
    add("admin view without the capability", &|p| p["act"]["view"] = json!("admin"));
    add("a service-endpoint view", &|p| p["act"]["view"] = json!("service-endpoint"));
    for (why, payload) in cases {
        let token = forge.sign(&forge.header(), &payload.to_string());
        assert!(validate(&token, &forge.keys, &forge.space, NOW).is_ok(), "{why}");
    }
    for (why, change) in [
        ("an understood critical header", json!({"crit": ["b64"], "b64": true})),
        ("an unknown header member", json!({"typ": "anything"})),
    ] {
        let mut header = forge.header();
        header.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let token = forge.sign(&header, &payload().to_string());
        assert!(validate(&token, &forge.keys, &forge.space, NOW).is_ok(), "{why}");
    }
}

/// A rule: how to break it in header or payload, and what the refusal says.
struct Rule {
    breaks: fn(&mut Value, &mut Value),
    says: &'static str,
}

fn rule(says: &'static str, breaks: fn(&mut Value, &mut Value)) -> Rule {
    Rule { breaks, says }
}

/// Every rule behind the signature, in the contract's order.
fn signed_rules() -> Vec<Rule> {
    vec![
        rule("has no iss", |_, p| remove(p, "iss")),
        rule("has no aud", |_, p| remove(p, "aud")),
        rule("another issuer", |_, p| p["iss"] = json!("urn:cotal:auth:other")),
        rule("another audience", |_, p| p["aud"] = json!(["x", "y"])),
        rule("iat is not a number", |_, p| p["iat"] = json!("1")),
        rule("not valid yet", |_, p| p["nbf"] = json!(NOW.0 + 6)),
        rule("has expired", |_, p| p["exp"] = json!(NOW.0 - 5)),
        rule("more than this audience", |_, p| p["aud"] = json!(["main", "other"])),
        rule("has no exp", |_, p| remove(p, "exp")),
        rule("has no iat", |_, p| remove(p, "iat")),
        rule("has no nbf", |_, p| remove(p, "nbf")),
        rule("issued in the future", |_, p| p["iat"] = json!(NOW.0 + 6)),
        rule("expires later than any", |_, p| p["exp"] = json!(NOW.0 + 906)),
        rule("lifetime is longer", |_, p| p["iat"] = json!(NOW.0 - 1)),
        rule("another version", |_, p| p["ver"] = json!("1")),
        rule("sub is not a derived owner", |_, p| p["sub"] = json!("local")),
        rule("act.owner is not its sub", |_, p| p["act"]["owner"] = json!("u_cccccccccccccccccccccccccc")),
        rule("act.actor is not an actor", |_, p| p["act"]["actor"] = json!("a.b")),
        rule("act.scope is not a list", |_, p| p["act"]["scope"] = json!("spawn")),
        rule("act.parent is not", |_, p| p["act"]["parent"] = json!("local.boss")),
        rule("act.view is not a view", |_, p| p["act"]["view"] = json!("root")),
        rule("act.managerInstanceId is not", |_, p| p["act"]["managerInstanceId"] = json!("short")),
        rule("act.session is for session-caller", |_, p| p["act"]["session"] = session()),
        rule("act.transferWriter is for", |_, p| p["act"]["transferWriter"] = transfer()),
        rule("act.lifecycleUid is not", |_, p| p["act"]["lifecycleUid"] = json!("short")),
        rule("act.credentialId is not", |_, p| p["act"]["credentialId"] = json!("")),
        rule("the bearer's scope is not a list", |_, p| p["scope"] = json!([1])),
    ]
}

/// The rules before the signature, in the contract's order.
fn header_rules() -> Vec<Rule> {
    vec![
        rule("brings its own key", |h, _| h["x5c"] = Value::Null),
        rule("not signed with EdDSA", |h, _| h["alg"] = json!("HS256")),
        rule("demands an extension", |h, _| h["crit"] = json!(["exp"])),
        rule("not base64url-encoded", |h, _| h["b64"] = json!(false)),
    ]
}

#[test]
fn each_rule_broken_alone_refuses_by_its_own_name() {
    let forge = Forge::new();
    for rule in header_rules().into_iter().chain(signed_rules()) {
        let (mut header, mut payload) = (forge.header(), payload());
        (rule.breaks)(&mut header, &mut payload);
        let refusal = forge.refusal(&header, &payload).reason;
        assert!(refusal.contains(rule.says), "{refusal:?} should say {:?}", rule.says);
    }
}

#[test]
fn of_two_broken_rules_the_earlier_one_refuses() {
    let forge = Forge::new();
    let rules: Vec<Rule> = header_rules().into_iter().chain(signed_rules()).collect();
    for (at, earlier) in rules.iter().enumerate() {
        for later in &rules[at + 1..] {
            let (mut header, mut payload) = (forge.header(), payload());
            // Two rules on one member cannot both be broken: the earlier is broken last.
            (later.breaks)(&mut header, &mut payload);
            (earlier.breaks)(&mut header, &mut payload);
            let refusal = forge.refusal(&header, &payload).reason;
            assert!(
                refusal.contains(earlier.says),
                "{:?} before {:?}, not {refusal:?}",
                earlier.says,
                later.says
            );
        }
    }
}

#[test]
fn header_details_are_joses() {
    let forge = Forge::new();
    let cases: [(Value, &str); 14] = [
        (json!({"jku": "https://x"}), "brings its own key"),
        (json!({"jwk": {}}), "brings its own key"),
        (json!({"x5u": 1}), "brings its own key"),
        (json!({"alg": "eddsa"}), "not signed with EdDSA"),
        (json!({"alg": "Ed25519"}), "not signed with EdDSA"),
        (json!({"alg": "none"}), "not signed with EdDSA"),
        (json!({"alg": null}), "not signed with EdDSA"),
        (json!({"crit": []}), "demands an extension"),
        (json!({"crit": "b64"}), "demands an extension"),
        (json!({"crit": ["b64"]}), "demands an extension"),
        (json!({"crit": ["b64", "exp"], "b64": true}), "demands an extension"),
        (json!({"b64": "false"}), "not base64url-encoded"),
        (json!({"kid": 7}), "kid is not a string"),
        (json!({"kid": "nope"}), "not one of this space's issuer keys"),
    ];
    for (change, says) in cases {
        let mut header = forge.header();
        header.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let refusal = forge.refusal(&header, &payload());
        assert!(refusal.reason.contains(says), "{change}: {:?} should say {says:?}", refusal.reason);
        assert_eq!(refusal.signed_by, None);
    }
    let mut header = forge.header();
    remove(&mut header, "kid");
    assert!(forge.refusal(&header, &payload()).reason.contains("names no key"));
}

type Change = Box<dyn Fn(&mut Value)>;

#[test]
fn claims_of_the_wrong_shape_refuse() {
    let forge = Forge::new();
    let view = |p: &mut Value, name: &str| p["act"]["view"] = json!(name);
    let cases: Vec<(&str, Change)> = vec![
        ("another audience", Box::new(|p| p["aud"] = json!({"main": 1}))),
        ("another audience", Box::new(|p| p["aud"] = json!([]))),
        ("another issuer", Box::new(|p| p["iss"] = json!(["urn:cotal:auth:main"]))),
        ("exp is not a number", Box::new(|p| p["exp"] = Value::Null)),
        ("nbf is not a number", Box::new(|p| p["nbf"] = json!("0"))),
        ("another version", Box::new(|p| p["ver"] = json!(2))),
        ("another version", Box::new(|p| remove(p, "ver"))),
        ("sub is not", Box::new(|p| remove(p, "sub"))),
        ("no act claim", Box::new(|p| p["act"] = json!([]))),
        ("no act claim", Box::new(|p| remove(p, "act"))),
        ("act.actor", Box::new(|p| p["act"]["actor"] = json!(7))),
        ("act.actor", Box::new(|p| remove(&mut p["act"], "actor"))),
        ("act.scope", Box::new(|p| p["act"]["scope"] = Value::Null)),
        ("act.scope", Box::new(|p| p["act"]["scope"] = json!(["a", 1]))),
        ("act.parent", Box::new(|p| p["act"]["parent"] = json!(format!("{PARENT}.more")))),
        ("act.parent", Box::new(|p| p["act"]["parent"] = json!("p_aaaaaaaaaaaaaaaaaaaaaaaaaa.boss"))),
        ("act.view", Box::new(|p| p["act"]["view"] = Value::Null)),
        ("needs act.managerInstanceId", Box::new(move |p| view(p, "manager-caller"))),
        ("is for manager-caller", Box::new(|p| p["act"]["managerInstanceId"] = json!("a".repeat(26)))),
        ("needs act.session", Box::new(move |p| view(p, "session-caller"))),
        (
            "needs act.transferWriter",
            Box::new(move |p| {
                view(p, "transfer-writer");
                p["exp"] = json!(NOW.0 + 300);
            }),
        ),
        ("act.lifecycleUid", Box::new(|p| p["act"]["lifecycleUid"] = Value::Null)),
        ("act.credentialId", Box::new(|p| p["act"]["credentialId"] = json!("a".repeat(257)))),
        ("the bearer's scope", Box::new(|p| p["scope"] = Value::Null)),
    ];
    for (says, breaks) in cases {
        let mut payload = payload();
        breaks(&mut payload);
        let refusal = forge.refusal(&forge.header(), &payload).reason;
        assert!(refusal.contains(says), "{refusal:?} should say {says:?}");
    }
}

#[test]
fn the_session_and_transfer_claims_are_closed() {
    let forge = Forge::new();
    let sessions = [
        ("unknown field", json!({"more": 1})),
        ("endpoint", json!({"endpoint": "a.b"})),
        ("session id", json!({"sessionId": "short"})),
        ("epoch", json!({"epoch": -1})),
        ("fractional epoch", json!({"epoch": 1.5})),
        ("unsafe epoch", json!({"epoch": 9_007_199_254_740_992_u64})),
        ("unsafe exp", json!({"exp": 9_007_199_254_740_992_u64})),
        ("exp", json!({"exp": "1"})),
    ];
    let token = |view: &str, name: &str, claim: Value| {
        let mut payload = payload();
        payload["act"]["view"] = json!(view);
        payload["act"][name] = claim;
        payload["exp"] = json!(NOW.0 + 300);
        forge.sign(&forge.header(), &payload.to_string())
    };
    let check = |token: &str| validate(token, &forge.keys, &forge.space, NOW);
    let good = check(&token("session-caller", "session", session())).unwrap();
    assert_eq!(good.act.session.as_ref().unwrap().epoch, 3);
    for (why, change) in sessions {
        let mut claim = session();
        claim.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert!(check(&token("session-caller", "session", claim)).is_err(), "{why}");
    }
    for (why, claim) in [("list", json!([1, 2, 3, 4])), ("null", Value::Null), ("text", json!("x"))] {
        assert!(check(&token("session-caller", "session", claim)).is_err(), "{why}");
    }
    let good = check(&token("transfer-writer", "transferWriter", transfer())).unwrap();
    assert_eq!(good.act.transfer_writer.as_ref().unwrap().hex.as_str(), "0".repeat(64));
    for change in [json!({"more": 1}), json!({"hex": "A".repeat(64)}), json!({"instanceId": 7})] {
        let mut claim = transfer();
        claim.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert!(check(&token("transfer-writer", "transferWriter", claim)).is_err(), "{change}");
    }
}

#[test]
fn a_transfer_writer_bearer_is_held_to_five_minutes() {
    let forge = Forge::new();
    let mut payload = payload();
    payload["act"]["view"] = json!("transfer-writer");
    payload["act"]["transferWriter"] = transfer();
    for (exp, iat, says) in [
        (NOW.0 + 306, NOW.0, "expires later than any"),
        (NOW.0 + 301, NOW.0, "lifetime is longer"),
        (NOW.0 + 300, NOW.0, ""),
    ] {
        payload["exp"] = json!(exp);
        payload["iat"] = json!(iat);
        let token = forge.sign(&forge.header(), &payload.to_string());
        match validate(&token, &forge.keys, &forge.space, NOW) {
            Ok(_) => assert_eq!(says, ""),
            Err(refusal) => assert!(!says.is_empty() && refusal.reason.contains(says), "{refusal}"),
        }
    }
}

#[test]
fn a_refusal_names_the_principal_once_the_signature_verified() {
    let forge = Forge::new();
    let alice = Some((DerivedOwner::parse(OWNER).unwrap(), Actor::parse("alice").unwrap()));
    let mut expired = payload();
    expired["exp"] = json!(NOW.0 - 100);
    assert_eq!(forge.refusal(&forge.header(), &expired).signed_by, alice);
    let mut foreign = payload();
    foreign["aud"] = json!("other");
    assert_eq!(forge.refusal(&forge.header(), &foreign).signed_by, alice);
    let mut nobody = payload();
    nobody["act"]["actor"] = json!("not an actor");
    assert_eq!(forge.refusal(&forge.header(), &nobody).signed_by, None);
    let token = forge.sign(&forge.header(), "[]");
    let refusal = validate(&token, &forge.keys, &forge.space, NOW).unwrap_err();
    assert!(refusal.signed_by.is_none() && refusal.reason.contains("not a JSON object"));

    let other = Forge::new();
    let stolen = Forge { keys: forge.keys.clone(), signing: other.signing, space: forge.space.clone() };
    let refusal = stolen.refusal(&forge.header(), &payload());
    assert!(refusal.signed_by.is_none() && refusal.reason.contains("signature"));
}

#[test]
fn a_token_that_is_no_token_is_malformed() {
    let forge = Forge::new();
    let good = forge.sign(&forge.header(), &payload().to_string());
    let (head, rest) = good.split_once('.').unwrap();
    let (body, signature) = rest.split_once('.').unwrap();
    for bad in [
        String::new(),
        "..".to_owned(),
        "a.b".to_owned(),
        format!("{good}."),
        format!("{head}.{body}"),
        format!("{head}=.{body}.{signature}"),
        format!("{head}.{body}.{signature}A"),
        format!("{head}.{body}.{}", &signature[..84]),
        format!("{head}.{body}A.{signature}"),
        format!("{}.{body}.{signature}", URL_SAFE_NO_PAD.encode("[]")),
        format!("{}.{body}.{signature}", URL_SAFE_NO_PAD.encode([0xff, 0xfe])),
        "a".repeat(70_000),
        format!("{good}{}", " ".repeat(70_000)),
    ] {
        let refusal = validate(&bad, &forge.keys, &forge.space, NOW).unwrap_err();
        assert!(refusal.signed_by.is_none(), "{refusal}");
    }
}

#[test]
fn a_retired_key_verifies_no_more_and_a_rotated_one_still_does() {
    let mut forge = Forge::new();
    let good = forge.sign(&forge.header(), &payload().to_string());
    let kid = forge.keys.active_kid().to_owned();
    forge.keys.rotate(&SystemEntropy);
    assert!(validate(&good, &forge.keys, &forge.space, NOW).is_ok());
    forge.keys.retire(&kid).unwrap();
    assert!(validate(&good, &forge.keys, &forge.space, NOW).unwrap_err().reason.contains("issuer keys"));
}

fn grant() -> BearerGrant {
    BearerGrant {
        owner: DerivedOwner::parse(OWNER).unwrap(),
        actor: Actor::parse("alice").unwrap(),
        scope: Some(vec!["spawn".to_owned()]),
        parent: Some(Principal::parse_key(PARENT).unwrap()),
        lifecycle_uid: LifecycleUid::parse(&"a".repeat(26)).unwrap(),
        credential_id: CredentialId::parse("root.1").unwrap(),
        view: None,
        manager_instance_id: None,
        session: None,
        transfer_writer: None,
        ttl_secs: None,
        not_after: None,
    }
}

#[test]
fn a_minted_bearer_has_the_contracts_header_and_claims_and_validates() {
    let forge = Forge::new();
    let minted = mint(&forge.keys, &forge.space, &grant(), NOW).unwrap();
    assert_eq!(minted.exp, NOW.plus(900));
    let part = |at: usize| {
        let text = URL_SAFE_NO_PAD.decode(minted.token.split('.').nth(at).unwrap()).unwrap();
        String::from_utf8(text).unwrap()
    };
    assert_eq!(part(0), format!(r#"{{"alg":"EdDSA","kid":"{}"}}"#, forge.keys.active_kid()));
    assert_eq!(
        part(1),
        format!(
            r#"{{"scope":["spawn"],"ver":1,"act":{{"owner":"{OWNER}","actor":"alice","scope":["spawn"],"parent":"{PARENT}","lifecycleUid":"{}","credentialId":"root.1"}},"sub":"{OWNER}","iss":"urn:cotal:auth:main","aud":"main","iat":1700000000,"nbf":1700000000,"exp":1700000900}}"#,
            "a".repeat(26)
        )
    );
    assert!(validate(&minted.token, &forge.keys, &forge.space, NOW).is_ok());
    assert!(!format!("{minted:?}").contains(minted.token.as_str()));
}

#[test]
fn a_grant_without_scope_leaves_act_scope_out() {
    let forge = Forge::new();
    let minted = mint(&forge.keys, &forge.space, &BearerGrant { scope: None, ..grant() }, NOW).unwrap();
    let bearer = validate(&minted.token, &forge.keys, &forge.space, NOW).unwrap();
    assert_eq!(bearer.act.scope, None);
    assert!(bearer.scope.is_empty());
}

#[test]
fn every_mintable_view_mints_and_validates() {
    let forge = Forge::new();
    let session = SessionClaim {
        endpoint: SessionEndpoint::parse("manager").unwrap(),
        session_id: SessionId::parse(&"s".repeat(22)).unwrap(),
        epoch: 3,
        exp: NOW.plus(100),
    };
    let transfer = TransferWriterClaim {
        instance_id: InstanceId::parse(&"i".repeat(26)).unwrap(),
        hex: Sha256Hex::parse(&"0".repeat(64)).unwrap(),
    };
    let instance = InstanceId::parse(&"m".repeat(26)).unwrap();
    for view in View::ALL {
        let grant = BearerGrant {
            view: Some(view),
            manager_instance_id: (view == View::ManagerCaller).then(|| instance.clone()),
            session: (view == View::SessionCaller).then(|| session.clone()),
            transfer_writer: (view == View::TransferWriter).then(|| transfer.clone()),
            ..grant()
        };
        let minted = mint(&forge.keys, &forge.space, &grant, NOW);
        if view == View::ServiceEndpoint {
            assert!(minted.is_err());
            continue;
        }
        let minted = minted.unwrap();
        assert_eq!(minted.exp.since(NOW), View::ttl_cap_secs(Some(view)));
        let bearer = validate(&minted.token, &forge.keys, &forge.space, NOW).unwrap();
        assert_eq!(bearer.act.view, Some(view));
        assert_eq!(bearer.act.session, grant.session);
        assert_eq!(bearer.act.transfer_writer, grant.transfer_writer);
        assert_eq!(bearer.act.manager_instance_id, grant.manager_instance_id);

        for extra in [
            BearerGrant { manager_instance_id: Some(instance.clone()), ..grant.clone() },
            BearerGrant { session: Some(session.clone()), ..grant.clone() },
            BearerGrant { transfer_writer: Some(transfer.clone()), ..grant.clone() },
        ] {
            let same = extra.manager_instance_id == grant.manager_instance_id
                && extra.session == grant.session
                && extra.transfer_writer == grant.transfer_writer;
            assert_eq!(mint(&forge.keys, &forge.space, &extra, NOW).is_ok(), same, "{view}");
        }
        let bare = BearerGrant { manager_instance_id: None, session: None, transfer_writer: None, ..grant };
        let needs = matches!(view, View::ManagerCaller | View::SessionCaller | View::TransferWriter);
        assert_eq!(mint(&forge.keys, &forge.space, &bare, NOW).is_err(), needs, "{view}");
    }
}

#[test]
fn an_over_long_or_unusable_lifetime_refuses_and_is_never_clamped() {
    let forge = Forge::new();
    let minted = |ttl: f64| {
        let grant = BearerGrant { ttl_secs: Some(ttl), ..grant() };
        mint(&forge.keys, &forge.space, &grant, NOW).map(|minted| minted.exp.since(NOW))
    };
    for bad in
        [0.0, -1.0, f64::MIN_POSITIVE, 0.5, 0.999, 900.5, 901.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]
    {
        assert!(minted(bad).is_err(), "{bad}");
    }
    assert_eq!(minted(900.0).unwrap(), 900);
    assert_eq!(minted(1.0).unwrap(), 1);
    assert_eq!(minted(60.9).unwrap(), 60);
}

#[test]
fn a_bearer_never_outlives_its_proof_and_an_expired_proof_mints_nothing() {
    let forge = Forge::new();
    let minted = |proof: UnixSecs, ttl: Option<f64>| {
        let grant = BearerGrant { not_after: Some(proof), ttl_secs: ttl, ..grant() };
        mint(&forge.keys, &forge.space, &grant, NOW).map(|minted| minted.exp.since(NOW))
    };
    assert_eq!(minted(NOW.plus(100), None).unwrap(), 100);
    assert_eq!(minted(NOW.plus(100), Some(60.0)).unwrap(), 60);
    assert_eq!(minted(NOW.plus(10_000), None).unwrap(), 900);
    assert!(minted(NOW, None).unwrap_err().0.contains("expired"));
    assert!(
        minted(UnixSecs(NOW.0 - 1), Some(901.0)).unwrap_err().0.contains("lifetime"),
        "lifetime is checked first"
    );
}

#[test]
fn a_parent_without_a_derived_owner_is_refused_at_mint() {
    let forge = Forge::new();
    let grant = BearerGrant { parent: Some(Principal::parse_key("local.boss").unwrap()), ..grant() };
    assert!(mint(&forge.keys, &forge.space, &grant, NOW).is_err());
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(token in ".{0,300}", header in ".{0,60}", payload in ".{0,200}") {
        let forge = Forge::new();
        let _ = validate(&token, &forge.keys, &forge.space, NOW);
        let _ = validate(&format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(&payload), URL_SAFE_NO_PAD.encode([0u8; 64])), &forge.keys, &forge.space, NOW);
        let _ = validate(&forge.sign(&forge.header(), &payload), &forge.keys, &forge.space, NOW);
    }

    #[test]
    fn any_payload_is_refused_with_a_fixed_sentence(name in "exp|iat|nbf|ver|sub|act|scope|aud|iss", value in any::<i64>(), text in ".{0,20}") {
        let forge = Forge::new();
        for value in [json!(value), json!(text), json!([value]), json!({"a": text}), Value::Null] {
            let mut payload = payload();
            payload[&name] = value;
            if let Err(refusal) = validate(&forge.sign(&forge.header(), &payload.to_string()), &forge.keys, &forge.space, NOW) {
                prop_assert!(refusal.reason.starts_with("the ") || refusal.reason.starts_with("act") || refusal.reason.starts_with("a "));
            }
        }
    }
}
