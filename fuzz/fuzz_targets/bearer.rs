//! A bearer: arbitrary text, and arbitrary payloads under a good signature. Nothing panics, and nothing that is
//! accepted breaks a rule that the callout relies on.
#![no_main]

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_trust::{bearer::validate, issuer::IssuerKeySet};
use cotal_wire::{Space, UnixSecs, View};
use ed25519_dalek::{Signer, SigningKey};
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};

const NOW: UnixSecs = UnixSecs(1_800_000_000);

struct Keys {
    signing: SigningKey,
    set: IssuerKeySet,
    space: Space,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let signing = SigningKey::from_bytes(&[7; 32]);
    let space = Space::parse("main").unwrap();
    let x = URL_SAFE_NO_PAD.encode(signing.verifying_key().as_bytes());
    let d = URL_SAFE_NO_PAD.encode(signing.to_bytes());
    // RFC 7638: the thumbprint of the public members in lexical order.
    let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    let kid = URL_SAFE_NO_PAD.encode(Sha256::digest(members));
    let document = serde_json::json!({
        "ver": 1, "issuer": "urn:cotal:auth:main", "activeKid": kid,
        "keys": [{"kid": kid, "privateJwk": {"kty": "OKP", "crv": "Ed25519", "x": x, "d": d}}],
    });
    let set = IssuerKeySet::from_document(&document.to_string(), &space).unwrap();
    Keys { signing, set, space }
});

fuzz_target!(|data: &[u8]| {
    let keys = &*KEYS;
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = validate(text, &keys.set, &keys.space, NOW);
    }
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"EdDSA","kid":"{}"}}"#, keys.set.active_kid()));
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(data));
    let signature = URL_SAFE_NO_PAD.encode(keys.signing.sign(signed.as_bytes()).to_bytes());
    if let Ok(bearer) = validate(&format!("{signed}.{signature}"), &keys.set, &keys.space, NOW) {
        assert!(bearer.exp.0 + 5 > NOW.0, "an expired bearer was accepted");
        assert!(bearer.exp.0 <= NOW.0 + View::ttl_cap_secs(bearer.act.view) + 5, "a bearer outlives its cap");
        assert_eq!(bearer.act.owner, bearer.owner);
        assert_eq!(bearer.act.manager_instance_id.is_some(), bearer.act.view == Some(View::ManagerCaller));
        assert_eq!(bearer.act.session.is_some(), bearer.act.view == Some(View::SessionCaller));
        assert_eq!(bearer.act.transfer_writer.is_some(), bearer.act.view == Some(View::TransferWriter));
    }
});
