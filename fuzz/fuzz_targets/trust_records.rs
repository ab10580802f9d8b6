//! The documents of `.cotal/auth`: whatever they hold, reading them refuses or round-trips, and no refusal repeats a
//! secret.
//!
//! Marks: `$o` operator seed, `$O` its JWT, `$y` system account, `$Y` its JWT, `$p` data account, `$a` its seed, `$A` its
//! JWT, `$g` its signing seed, `$G` the key of that; `$c`, `$C`, `$h`, `$H`, `$P` the same of the callout account; `$x`
//! its curve seed, `$X` the key of that; `$u` callout creds and `$e` sentinel creds as JSON text; `$k` the issuer's kid,
//! `$z` its public and `$d` its private key.
#![no_main]

use std::{collections::HashMap, sync::LazyLock};

use cotal_fuzz::{Counting, NOW, fill, json};
use cotal_trust::{
    bundle::{BrokerTrust, DataAccount, SpaceAccount},
    callout_account::CalloutAuth,
    creds,
    issuer::IssuerKeySet,
    jwt::decode_verified,
    owner::OwnerSecret,
};
use cotal_wire::Space;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// The marks that stand for secrets.
const SECRET: &[u8] = b"oagchxued";

struct Made {
    space: Space,
    marks: HashMap<u8, String>,
}

static MADE: LazyLock<Made> = LazyLock::new(|| {
    let entropy = Counting::default();
    let space = Space::parse("main").unwrap();
    let broker = BrokerTrust::create("main", &entropy, NOW);
    let account = SpaceAccount::create(&broker, &space, &entropy, NOW);
    let callout = CalloutAuth::create(&space, &broker.operator, account.account.public(), &entropy, NOW);
    let issuer = json(IssuerKeySet::create(&space, &entropy).to_document().as_bytes());
    let key = |member: &str| issuer["keys"][0]["privateJwk"][member].as_str().unwrap().to_owned();
    let quoted = |text: &str| Value::from(text).to_string().trim_matches('"').to_owned();
    let marks = HashMap::from([
        (b'o', broker.operator.expose().to_string()),
        (b'O', broker.operator_jwt.clone()),
        (b'y', broker.sys.to_string()),
        (b'Y', broker.sys_jwt.clone()),
        (b'p', account.account.public().to_string()),
        (b'a', account.account.expose().to_string()),
        (b'A', account.jwt.clone()),
        (b'g', account.signing.expose().to_string()),
        (b'G', account.signing.public().to_string()),
        (b'P', callout.account.public().to_string()),
        (b'c', callout.account.expose().to_string()),
        (b'C', callout.jwt.clone()),
        (b'h', callout.signing.expose().to_string()),
        (b'H', callout.signing.public().to_string()),
        (b'x', callout.xkey.expose().to_string()),
        (b'X', callout.xkey.public().to_string()),
        (b'u', quoted(&callout.callout_creds)),
        (b'e', quoted(&callout.sentinel_creds)),
        (b'k', issuer["activeKid"].as_str().unwrap().to_owned()),
        (b'z', key("x")),
        (b'd', key("d")),
    ]);
    Made { space, marks }
});

fuzz_target!(|data: &[u8]| {
    let made = &*MADE;
    let text = fill(data, |mark| made.marks.get(&mark).map(String::as_str));
    let Ok(text) = std::str::from_utf8(&text) else { return };
    let _ = decode_verified(text);
    if serde_json::from_str::<Value>(text).is_err() {
        // A reader skips what it does not know; a number beyond a double, say, is no value to look into.
        accepted(BrokerTrust::from_document(text));
        accepted(SpaceAccount::from_document(text, &made.space));
        accepted(DataAccount::from_document(text));
        accepted(CalloutAuth::from_document(text));
        accepted(IssuerKeySet::from_document(text, &made.space));
        accepted(OwnerSecret::from_document(text));
        return;
    }

    if let Some(broker) = accepted(BrokerTrust::from_document(text)) {
        let stored = objects(text, &["/operator", "/sys"]);
        assert_eq!(stored["operator"]["seed"], broker.operator.expose().as_str());
        assert_eq!(stored["sys"]["pub"], broker.sys.as_str());
        assert_eq!(
            stored.get("gen").map_or(0.0, |number| number.as_f64().unwrap()),
            broker.generation as f64
        );
        assert!(broker.generation < 1 << 53);
        let claims = decode_verified(&broker.operator_jwt).expect("a JWT that was accepted verifies");
        assert_eq!(claims["nats"]["system_account"], broker.sys.as_str());
        let written = broker.to_document();
        let again = BrokerTrust::from_document(&written).expect("what was written reads");
        assert_eq!(again.to_document(), written);
        assert_eq!((again.generation, &again.sys), (broker.generation, &broker.sys));
        let next = broker.rotate_system_account(&Counting::default(), NOW);
        assert!(
            next.map_or(broker.generation + 1 == 1 << 53, |next| next.generation == broker.generation + 1)
        );
    }
    if let Some(account) = accepted(SpaceAccount::from_document(text, &made.space)) {
        let stored = objects(text, &["/account"]);
        assert_eq!(stored["space"], made.space.as_str());
        assert_eq!(stored["account"]["pub"], account.account.public().as_str());
        let claims = decode_verified(&account.jwt).expect("a JWT that was accepted verifies");
        assert_eq!(claims["sub"], account.account.public().as_str());
        assert_eq!(claims["nats"]["signing_keys"], serde_json::json!([account.signing.public()]));
        let written = account.to_document();
        let again = SpaceAccount::from_document(&written, &made.space).expect("what was written reads");
        assert_eq!(again.to_document(), written);
        let other = Space::parse("other").unwrap();
        assert!(SpaceAccount::from_document(text, &other).is_err(), "the account of two spaces");
    }
    if let Some(keys) = accepted(DataAccount::from_document(text)) {
        let stored = versioned(text, &["/dataAccount"]);
        assert_eq!(stored["dataAccount"]["pub"], keys.account.as_str());
        let again = DataAccount::from_document(&keys.to_document()).expect("what was written reads");
        assert_eq!((again.account, again.signing.public()), (keys.account, keys.signing.public()));
    }
    if let Some(callout) = accepted(CalloutAuth::from_document(text)) {
        let stored = versioned(text, &["/callout", "/callout/account", "/callout/xkey"]);
        assert_eq!(stored["callout"]["xkey"]["pub"], callout.xkey.public().as_str());
        let claims = decode_verified(&callout.jwt).expect("a JWT that was accepted verifies");
        assert_eq!(claims["sub"], callout.account.public().as_str());
        for text in [&callout.callout_creds, &callout.sentinel_creds] {
            creds::parse(text).expect("creds that were accepted read");
        }
        let written = callout.to_document();
        let again = CalloutAuth::from_document(&written).expect("what was written reads");
        assert_eq!(again.to_document(), written);
    }
    if let Some(set) = accepted(IssuerKeySet::from_document(text, &made.space)) {
        let stored = versioned(text, &[]);
        let keys = stored["keys"].as_array().expect("keys are a list");
        assert!(keys.iter().all(|key| key.is_object() && key["privateJwk"].is_object()));
        assert_eq!(stored["activeKid"], set.active_kid());
        assert_eq!(stored["issuer"], set.issuer());
        let published = json(set.jwks().as_bytes());
        assert_eq!(published["keys"][0]["kid"], set.active_kid(), "the active key comes first");
        for key in keys {
            let kid = key["kid"].as_str().expect("a kid is text");
            assert!(set.verifying_key(kid).is_some(), "a stored key is not published");
            assert!(
                !set.jwks().contains(key["privateJwk"]["d"].as_str().unwrap()),
                "a private key is published"
            );
        }
        let again =
            IssuerKeySet::from_document(&set.to_document(), &made.space).expect("what was written reads");
        assert_eq!(again.jwks(), set.jwks());
    }
    if let Some(secret) = accepted(OwnerSecret::from_document(text)) {
        versioned(text, &[]);
        let again = OwnerSecret::from_document(&secret.to_document()).expect("what was written reads");
        assert_eq!(again.derive("i", "s"), secret.derive("i", "s"));
    }
});

/// The value, or a refusal that repeats no secret.
fn accepted<T, E: std::fmt::Display>(read: Result<T, E>) -> Option<T> {
    read.map_err(|refusal| {
        let sentence = refusal.to_string();
        let leaked = SECRET.iter().any(|mark| sentence.contains(MADE.marks[mark].as_str()));
        assert!(!leaked && sentence.len() < 200, "a refusal echoes its input: {sentence}");
    })
    .ok()
}

/// The document, an object with objects at these places.
fn objects(text: &str, places: &[&str]) -> Value {
    let document = json(text.as_bytes());
    assert!(document.is_object());
    for place in places {
        assert!(document.pointer(place).is_some_and(Value::is_object), "{place} is no object");
    }
    document
}

fn versioned(text: &str, places: &[&str]) -> Value {
    let document = objects(text, places);
    assert_eq!(document["ver"].as_f64(), Some(1.0));
    document
}
