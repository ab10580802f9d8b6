//! IdP tokens against a real HTTP server: the order of contract 04 §4.1, the password proof of §4.4 and the cache of
//! the pinned key set.

#![allow(clippy::unwrap_used, reason = "a fixture that cannot be built fails its test")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_trust::{
    idp::{IdpPin, JwksResolver, http_client, verify_idp_token, verify_tool_result_human_proof},
    system::SystemEntropy,
};
use cotal_wire::{Clock, Entropy, UnixMillis, UnixSecs};
use ed25519_dalek::{Signer, SigningKey};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const NOW: UnixSecs = UnixSecs(1_700_000_000);

struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now_millis(&self) -> UnixMillis {
        UnixMillis(self.0.load(Ordering::SeqCst))
    }
}

/// An IdP that answers every request with the same response and counts.
struct Idp {
    pin: IdpPin,
    answer: Arc<Mutex<(u16, String)>>,
    asked: Arc<AtomicUsize>,
    clock: Arc<TestClock>,
    keys: JwksResolver,
    signing: SigningKey,
}

fn signing_key() -> SigningKey {
    let mut bytes = [0u8; 32];
    SystemEntropy.fill(&mut bytes);
    SigningKey::from_bytes(&bytes)
}

fn jwk(kid: &str, key: &SigningKey) -> Value {
    let x = URL_SAFE_NO_PAD.encode(key.verifying_key().as_bytes());
    json!({"alg": "EdDSA", "crv": "Ed25519", "kty": "OKP", "x": x, "kid": kid})
}

impl Idp {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pin = IdpPin::from_url(&format!("http://{}/api/auth", listener.local_addr().unwrap())).unwrap();
        let signing = signing_key();
        let answer = Arc::new(Mutex::new((200, json!({"keys": [jwk("one", &signing)]}).to_string())));
        let asked = Arc::new(AtomicUsize::new(0));
        let clock = Arc::new(TestClock(AtomicU64::new(NOW.to_millis().0)));
        let keys = JwksResolver::new(&pin.jwks_uri, clock.clone()).unwrap();
        let (shared, count) = (Arc::clone(&answer), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (status, body) = shared.lock().clone();
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let _ = socket.read(&mut [0; 4096]).await;
                    let head = format!(
                        "HTTP/1.1 {status} x\r\nlocation: /elsewhere\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                        body.len()
                    );
                    let _ = socket.write_all(head.as_bytes()).await;
                    let _ = socket.write_all(body.as_bytes()).await;
                });
            }
        });
        Self { pin, answer, asked, clock, keys, signing }
    }

    fn publish(&self, keys: &[Value]) {
        *self.answer.lock() = (200, json!({ "keys": keys }).to_string());
    }

    fn advance(&self, seconds: u64) {
        self.clock.0.fetch_add(seconds * 1000, Ordering::SeqCst);
    }

    fn set_back(&self, seconds: u64) {
        self.clock.0.fetch_sub(seconds * 1000, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn payload(&self) -> Value {
        json!({"iss": self.pin.issuer, "aud": self.pin.audience, "sub": "user-123", "iat": NOW.0, "exp": NOW.0 + 900})
    }

    async fn verify(&self, token: &str) -> Result<String, String> {
        verify_idp_token(token, &self.pin, &self.keys, NOW)
            .await
            .map(|ok| ok.sub)
            .map_err(|refusal| refusal.0)
    }

    fn token(&self, kid: &str) -> String {
        sign(&json!({"alg": "EdDSA", "kid": kid}), &self.payload(), &self.signing)
    }
}

fn sign(header: &Value, payload: &Value, key: &SigningKey) -> String {
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header.to_string()),
        URL_SAFE_NO_PAD.encode(payload.to_string())
    );
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()).to_bytes()))
}

fn remove(value: &mut Value, name: &str) {
    value.as_object_mut().unwrap().remove(name);
}

#[tokio::test]
async fn a_good_token_yields_subject_and_expiry() {
    let idp = Idp::start().await;
    let verified = verify_idp_token(&idp.token("one"), &idp.pin, &idp.keys, NOW).await.unwrap();
    assert_eq!((verified.sub.as_str(), verified.exp), ("user-123", NOW.plus(900)));
    // neither a cap on the lifetime nor nbf, ver or act are asked for
    let mut long = idp.payload();
    long["exp"] = json!(NOW.0 + 10_000_000);
    long["aud"] = json!([idp.pin.audience]);
    assert!(idp.verify(&sign(&json!({"alg": "EdDSA", "kid": "one"}), &long, &idp.signing)).await.is_ok());
    // without a kid, the only key that fits is taken
    assert!(idp.verify(&sign(&json!({"alg": "EdDSA"}), &long, &idp.signing)).await.is_ok());
}

type Break = fn(&mut Value, &mut Value);

fn rules() -> Vec<(&'static str, Break)> {
    vec![
        ("brings its own key", |h, _| h["jwk"] = json!(null)),
        ("not signed with EdDSA", |h, _| h["alg"] = json!("RS256")),
        ("publishes no key", |h, _| h["kid"] = json!("other")),
        ("has no iss", |_, p| remove(p, "iss")),
        ("has no aud", |_, p| remove(p, "aud")),
        ("another issuer", |_, p| p["iss"] = json!("https://evil.example")),
        ("another audience", |_, p| p["aud"] = json!("x")),
        ("not valid yet", |_, p| p["nbf"] = json!(NOW.0 + 6)),
        ("has expired", |_, p| p["exp"] = json!(NOW.0 - 5)),
        ("more than this audience", |_, p| p["aud"] = json!([p["iss"].clone(), "x"])),
        ("has no exp", |_, p| remove(p, "exp")),
        ("has no iat", |_, p| remove(p, "iat")),
        ("issued in the future", |_, p| p["iat"] = json!(NOW.0 + 6)),
        ("has no subject", |_, p| p["sub"] = json!("")),
    ]
}

#[tokio::test]
async fn each_rule_refuses_by_its_own_name_and_the_earlier_of_two_speaks() {
    let idp = Idp::start().await;
    let rules = rules();
    for (at, (says, breaks)) in rules.iter().enumerate() {
        for (later_says, later) in &rules[at..] {
            let (mut header, mut payload) = (json!({"alg": "EdDSA", "kid": "one"}), idp.payload());
            later(&mut header, &mut payload);
            breaks(&mut header, &mut payload);
            let refusal = idp.verify(&sign(&header, &payload, &idp.signing)).await.unwrap_err();
            assert!(refusal.contains(says), "{says:?} before {later_says:?}, not {refusal:?}");
        }
    }
    let forged = sign(&json!({"alg": "EdDSA", "kid": "one"}), &json!([]), &signing_key());
    assert!(idp.verify(&forged).await.unwrap_err().contains("signature"));
}

#[tokio::test]
async fn a_password_proof_needs_a_fresh_auth_time_and_pwd() {
    let idp = Idp::start().await;
    let prove = async |auth_time: Value, amr: Value| {
        let mut payload = idp.payload();
        payload["auth_time"] = auth_time;
        payload["amr"] = amr;
        let token = sign(&json!({"alg": "EdDSA", "kid": "one"}), &payload, &idp.signing);
        verify_tool_result_human_proof(&token, &idp.pin, &idp.keys, NOW).await
    };
    for fresh in [NOW.0, NOW.0 - 300] {
        let proof = prove(json!(fresh), json!(["mfa", "pwd"])).await.unwrap();
        assert_eq!((proof.auth_time.0, proof.token.sub.as_str()), (fresh, "user-123"));
    }
    for stale in [
        json!(NOW.0 + 1),
        json!(NOW.0 - 301),
        json!(NOW.0.to_string()),
        json!(1_699_999_999.5),
        json!(-1),
        Value::Null,
    ] {
        assert!(prove(stale.clone(), json!(["pwd"])).await.is_err(), "{stale}");
    }
    for amr in [json!("pwd"), json!([]), json!(["otp"]), json!(["pwd", 1]), Value::Null] {
        assert!(prove(json!(NOW.0), amr.clone()).await.is_err(), "{amr}");
    }
    assert!(
        verify_tool_result_human_proof(&idp.token("one"), &idp.pin, &idp.keys, NOW).await.is_err(),
        "a fresh iat proves no password"
    );
}

#[tokio::test]
async fn keys_are_kept_ten_minutes_and_fetched_by_one_caller() {
    let idp = Idp::start().await;
    let token = idp.token("one");
    let (a, b, c) = tokio::join!(idp.verify(&token), idp.verify(&token), idp.verify(&token));
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!(idp.asked(), 1);
    idp.advance(599);
    idp.verify(&token).await.unwrap();
    assert_eq!(idp.asked(), 1);
    idp.advance(1);
    idp.verify(&token).await.unwrap();
    assert_eq!(idp.asked(), 2);
}

#[tokio::test]
async fn a_clock_that_was_set_back_neither_keeps_old_keys_nor_holds_back_a_fetch() {
    let idp = Idp::start().await;
    idp.verify(&idp.token("one")).await.unwrap();
    idp.publish(&[jwk("two", &idp.signing)]);
    idp.set_back(3_600);
    idp.verify(&idp.token("two")).await.unwrap();
    assert_eq!(idp.asked(), 2);
    idp.publish(&[jwk("three", &idp.signing)]);
    assert!(idp.verify(&idp.token("three")).await.is_err());
    assert_eq!(idp.asked(), 2, "cooling down by the new time");
    idp.advance(30);
    idp.verify(&idp.token("three")).await.unwrap();
    *idp.answer.lock() = (500, String::new());
    idp.advance(30);
    assert!(idp.verify(&idp.token("four")).await.is_err());
    idp.set_back(3_600);
    idp.publish(&[jwk("four", &idp.signing)]);
    idp.verify(&idp.token("four")).await.unwrap();
}

#[tokio::test]
async fn an_unknown_kid_refetches_once_after_the_cooldown() {
    let idp = Idp::start().await;
    idp.verify(&idp.token("one")).await.unwrap();
    idp.publish(&[jwk("one", &signing_key()), jwk("two", &idp.signing)]);
    let token = idp.token("two");
    assert!(idp.verify(&token).await.unwrap_err().contains("publishes no key"));
    assert_eq!(idp.asked(), 1, "cooling down");
    idp.advance(30);
    idp.verify(&token).await.unwrap();
    assert_eq!(idp.asked(), 2);
    idp.advance(30);
    for _ in 0..3 {
        assert!(idp.verify(&idp.token("three")).await.is_err());
    }
    assert_eq!(idp.asked(), 3, "one refetch for any number of unknown kids");
    idp.advance(30);
    idp.answer.lock().0 = 500;
    for _ in 0..3 {
        assert!(idp.verify(&idp.token("three")).await.is_err());
    }
    assert_eq!(idp.asked(), 4, "a failed refetch cools down as well");
    assert!(idp.verify(&token).await.is_ok(), "and the keys that are kept still serve");
}

#[tokio::test]
async fn while_the_keys_are_fresh_eight_unknown_kids_wait_and_the_rest_are_refused_at_once() {
    let idp = Idp::start().await;
    idp.verify(&idp.token("one")).await.unwrap();
    idp.publish(&[jwk("one", &idp.signing), jwk("two", &idp.signing)]);
    idp.advance(30);
    let (two, one) = (idp.token("two"), idp.token("one"));
    // One task asks them in this order, and none can be answered before each of them was asked.
    let outcomes = futures::future::join_all((0..20).map(|_| idp.verify(&two))).await;
    assert!(outcomes[..8].iter().all(Result::is_ok), "{outcomes:?}");
    assert!(outcomes[8..].iter().all(|o| o.as_ref().is_err_and(|e| e.contains("publishes no key"))));
    assert_eq!(idp.asked(), 2);
    assert!(idp.verify(&one).await.is_ok() && idp.verify(&two).await.is_ok());
}

#[tokio::test]
async fn keys_that_cannot_verify_are_passed_over_and_two_that_can_refuse() {
    let idp = Idp::start().await;
    let good = jwk("one", &idp.signing);
    let with = |change: Value| {
        let mut bad = good.clone();
        bad.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        bad
    };
    let useless = [
        with(json!({"kty": "EC"})),
        with(json!({"crv": "X25519"})),
        with(json!({"alg": "ES256"})),
        with(json!({"use": "enc"})),
        with(json!({"key_ops": ["sign"]})),
        with(json!({"x": "AA"})),
        with(json!({"x": null})),
        json!({}),
    ];
    let token = idp.token("one");
    for (at, bad) in useless.iter().enumerate() {
        idp.publish(std::slice::from_ref(bad));
        idp.advance(600);
        assert!(idp.verify(&token).await.unwrap_err().contains("publishes no key"), "case {at}");
    }
    let mut all = useless.to_vec();
    all.push(with(json!({"use": "sig", "key_ops": ["verify"]})));
    idp.publish(&all);
    idp.advance(600);
    idp.verify(&token).await.unwrap();
    all.push(good);
    idp.publish(&all);
    idp.advance(600);
    assert!(idp.verify(&token).await.unwrap_err().contains("more than one key"));
}

#[tokio::test]
async fn a_fetch_that_fails_refuses_and_follows_nothing() {
    let idp = Idp::start().await;
    let good = idp.answer.lock().1.clone();
    for (status, body) in [
        (302, good.clone()),
        (404, good.clone()),
        (200, "not json".to_owned()),
        (200, "[]".to_owned()),
        (200, r#"{"keys":{}}"#.to_owned()),
        (200, json!([[jwk("one", &idp.signing)]]).to_string()),
        (200, r#"{"keys":[1]}"#.to_owned()),
        (200, format!("{good}{}", " ".repeat(300 * 1024))),
    ] {
        *idp.answer.lock() = (status, body);
        assert!(idp.verify(&idp.token("one")).await.is_err(), "{status}");
        assert!(idp.keys.probe().await.is_err(), "{status}");
    }
    assert_eq!(idp.asked(), 16, "no redirect was followed");
    *idp.answer.lock() = (200, good);
    assert!(idp.keys.probe().await.is_ok());
    assert!(idp.verify(&idp.token("one")).await.is_ok());
    let (dead, clock) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap(), idp.clock.clone());
    let dead = JwksResolver::new(&format!("http://{dead}/jwks"), clock).unwrap();
    assert!(dead.probe().await.is_err());
}

/// Whoever reads one of these looks in another place for each.
#[tokio::test]
async fn a_wrong_url_is_told_from_a_provider_that_is_not_there_or_in_trouble() {
    let idp = Idp::start().await;
    for (status, body, told) in [
        (
            404,
            "",
            "HTTP 404 for its key set: something is there, but not its keys: is the URL its auth base URL?",
        ),
        (302, "", "HTTP 302 for its key set: it sends elsewhere"),
        (503, "", "HTTP 503 for its key set: it is there and in trouble"),
        (200, "<html>", "not JSON with a list of keys: is the URL its auth base URL?"),
    ] {
        *idp.answer.lock() = (status, body.to_owned());
        let refused = idp.keys.probe().await.unwrap_err().0;
        assert!(refused.contains(told) && !refused.contains("reached"), "{refused}");
    }
    let probe =
        async |url: String| JwksResolver::new(&url, idp.clock.clone()).unwrap().probe().await.unwrap_err().0;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let told = probe(format!("http://{dead}/jwks")).await;
    assert!(told.contains("it cannot be reached; is the IdP up"), "{told}");
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/jwks", plain.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = plain.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4096]).await;
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        while socket.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
    });
    let told = probe(url).await;
    assert!(told.contains("no TLS with it came about"), "{told}");
}

#[test]
fn a_key_set_is_fetched_over_https_or_from_a_loopback_literal_only() {
    let clock: Arc<dyn Clock> = Arc::new(TestClock(AtomicU64::new(0)));
    assert!(JwksResolver::new("https://idp.example/jwks", Arc::clone(&clock)).is_ok());
    assert!(JwksResolver::new("http://[::1]:3000/jwks", Arc::clone(&clock)).is_ok());
    for bad in ["http://localhost:3000/jwks", "http://idp.example/jwks", "file:///jwks", "jwks"] {
        let refusal = JwksResolver::new(bad, Arc::clone(&clock)).unwrap_err().0;
        assert_eq!(refusal, "JWKS origin must be https (or http on a loopback IP literal for dev)");
    }
}

#[test]
fn arbitrary_tokens_never_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let idp = runtime.block_on(Idp::start());
    proptest!(|(text in ".{0,200}", payload in ".{0,100}")| {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA","kid":"one"}"#), URL_SAFE_NO_PAD.encode(payload));
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(idp.signing.sign(signed.as_bytes()).to_bytes()));
        runtime.block_on(async {
            assert!(idp.verify(&text).await.is_err());
            assert!(idp.verify(&token).await.is_err());
        });
    });
}

/// Set in the process that has no certificates: this test, run again.
const WITHOUT_ROOTS: &str = "COTAL_TEST_WITHOUT_ROOTS";

#[test]
fn a_machine_without_root_certificates_refuses_a_resolver_at_once() {
    if std::env::var_os(WITHOUT_ROOTS).is_some() {
        let clock = Arc::new(TestClock(AtomicU64::new(0)));
        let refusal = JwksResolver::new("https://idp.example/api/auth/jwks", clock).unwrap_err();
        assert!(refusal.0.contains("root certificates"), "{refusal}");
        assert!(http_client(std::time::Duration::from_secs(1)).is_err());
        return;
    }
    let nothing = tempfile::tempdir().unwrap();
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_machine_without_root_certificates_refuses_a_resolver_at_once"])
        .env(WITHOUT_ROOTS, "1")
        .env("SSL_CERT_FILE", nothing.path().join("none.pem"))
        .env("SSL_CERT_DIR", nothing.path())
        .output()
        .unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
}
