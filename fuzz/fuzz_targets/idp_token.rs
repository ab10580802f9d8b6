//! An IdP token: arbitrary headers, key sets and payloads under the IdP's signature.
//!
//! Input: `<payload>`, or `<header>\n<jwks>\n<payload>`. Marks: `$k` the kid, `$x` the IdP's public key, `$y` another.
#![no_main]

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_fuzz::{NOW, fill, json, jws, signer, signing_key};
use cotal_trust::idp::{
    IdpPin,
    fuzzing::{verify, verify_human},
    normalize_idp_url,
};
use cotal_wire::UnixSecs;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const KID: &str = "idp-key";
const HEADER: &[u8] = br#"{"alg":"EdDSA","kid":"$k"}"#;
const JWKS: &[u8] =
    br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"$x","kid":"$k","alg":"EdDSA","use":"sig"}]}"#;
const SKEW: f64 = 5.0;

static PIN: LazyLock<IdpPin> = LazyLock::new(|| IdpPin::from_url("http://127.0.0.1:3000/api/auth").unwrap());
static PUBLIC: LazyLock<[String; 2]> =
    LazyLock::new(|| [0, 1].map(|byte| URL_SAFE_NO_PAD.encode(signing_key(byte).verifying_key().as_bytes())));

fn marks(mark: u8) -> Option<&'static str> {
    match mark {
        b'k' => Some(KID),
        b'x' => Some(&PUBLIC[0]),
        b'y' => Some(&PUBLIC[1]),
        _ => None,
    }
}

fuzz_target!(|data: &[u8]| {
    let (header, keys, payload) = match cotal_fuzz::parts(data) {
        [Some(header), Some(keys), Some(payload)] => (header, keys, payload),
        _ => (HEADER, JWKS, data),
    };
    let (header, keys) = (fill(header, marks), fill(keys, marks));
    if let Ok(text) = std::str::from_utf8(data) {
        assert!(verify(text, &PIN, &fill(JWKS, marks), NOW).is_err(), "nobody signed this text");
        if let Ok(url) = normalize_idp_url(text) {
            assert_eq!(normalize_idp_url(&url).as_ref(), Ok(&url), "a normal URL is not normal");
            assert!(
                url.starts_with("https://")
                    || url.starts_with("http://127.")
                    || url.starts_with("http://[::")
            );
            assert!(!url.ends_with('/') && !url.contains(['?', '#']));
            IdpPin::from_url(&url).expect("a normal URL can be pinned");
        }
    }

    let token = jws(&header, payload, signer(signing_key(0)));
    let verified = verify(&token, &PIN, &keys, NOW);
    match verified {
        Ok(verified) => {
            let payload_said = json(payload);
            check_header(&json(&header));
            check_keys(&keys, json(&header).get("kid"));
            check(&payload_said);
            assert_eq!(payload_said["sub"], verified.sub.as_str());
            assert_eq!(verified.exp, UnixSecs(payload_said["exp"].as_f64().unwrap() as u64));
            let forged = jws(&header, payload, signer(signing_key(2)));
            assert!(verify(&forged, &PIN, &keys, NOW).is_err(), "another key's signature");
            // The contract bounds no IdP token; past 2^53 a second more or less is no other double.
            if verified.exp.0 < 1 << 53 {
                let late = verify(&token, &PIN, &keys, verified.exp.plus(6));
                assert!(late.is_err(), "it never expires");
            }
            let other = IdpPin { issuer: "http://127.0.0.1:3001".into(), ..PIN.clone() };
            assert!(verify(&token, &other, &keys, NOW).is_err(), "it is from two issuers");
            if let Ok(human) = verify_human(&token, &PIN, &keys, NOW) {
                assert_eq!(human.token, verified);
                assert!(human.auth_time <= NOW && NOW.since(human.auth_time) <= 300, "an old password proof");
                assert_eq!(payload_said["auth_time"].as_f64(), Some(human.auth_time.0 as f64));
                let methods = payload_said["amr"].as_array().expect("amr is a list");
                assert!(methods.iter().all(Value::is_string) && methods.iter().any(|method| method == "pwd"));
            }
        }
        Err(refusal) => {
            assert!(refusal.0.is_ascii() && refusal.0.len() < 100, "a refusal echoes its input");
        }
    }
});

fn check_header(header: &Value) {
    let header = header.as_object().expect("a header is an object");
    assert_eq!(header["alg"], "EdDSA");
    assert!(["jku", "jwk", "x5u", "x5c"].iter().all(|name| !header.contains_key(*name)));
    assert!(header.get("b64").is_none_or(|b64| *b64 == true));
    assert!(header.get("crit").is_none_or(|names| names.as_array().is_some_and(|names| !names.is_empty())));
    assert!(header.get("kid").is_none_or(Value::is_string));
}

/// The IdP's key is published, and under the token's kid if it names one.
fn check_keys(jwks: &[u8], kid: Option<&Value>) {
    // A reader skips what it does not know; a number beyond a double, say, is no value to look into.
    let Ok(jwks) = serde_json::from_slice::<Value>(jwks) else { return };
    assert!(jwks.is_object());
    let keys = jwks["keys"].as_array().expect("a key set is a list");
    let fits = keys.iter().any(|key| {
        key["x"] == PUBLIC[0].as_str()
            && key["kty"] == "OKP"
            && key["crv"] == "Ed25519"
            && key.get("kid") == kid.or(key.get("kid"))
    });
    assert!(fits, "the IdP's key is not in the key set");
}

fn check(payload: &Value) {
    let number = |name: &str| payload[name].as_f64().expect("a time is a number");
    let now = NOW.0 as f64;
    assert_eq!(payload["iss"], PIN.issuer.as_str());
    assert!(payload["aud"] == PIN.audience.as_str() || payload["aud"] == serde_json::json!([PIN.audience]));
    assert!(number("exp") > now - SKEW && number("iat") <= now + SKEW);
    assert!(payload.get("nbf").is_none_or(|nbf| nbf.as_f64().is_some_and(|nbf| nbf <= now + SKEW)));
    assert!(payload["sub"].as_str().is_some_and(|sub| !sub.is_empty()));
}
