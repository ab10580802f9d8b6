//! The provider over HTTP, as a client and a browser see it (contract 04 §11.1, §17).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_dev_idp::{CLIENT_ID, DevIdp, DevIdpOptions};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{Clock, UnixMillis};
use ed25519_dalek::{Signature, Verifier, VerifyingKey};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

/// A clock that moves only when told, so that no test waits for one.
#[derive(Default)]
struct Manual(AtomicU64);

impl Manual {
    fn advance(&self, millis: u64) {
        self.0.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Clock for Manual {
    fn now_millis(&self) -> UnixMillis {
        UnixMillis(1_767_323_045_000 + self.0.load(Ordering::Relaxed))
    }
}

struct Fixture {
    idp: DevIdp,
    clock: Arc<Manual>,
    http: Client,
}

impl Fixture {
    async fn start(options: DevIdpOptions) -> Self {
        let clock = Arc::new(Manual::default());
        let idp = DevIdp::start(options, clock.clone(), Arc::new(SystemEntropy)).await.unwrap();
        Self { idp, clock, http: cotal_trust::idp::http_client(std::time::Duration::from_secs(10)).unwrap() }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.idp.base_url())
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let answer = self.http.post(self.url(path)).json(&body).send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    async fn code(&self) -> Value {
        let (status, body) = self.post("/device/code", json!({ "client_id": CLIENT_ID })).await;
        assert_eq!(status, StatusCode::OK);
        body
    }

    async fn poll(&self, code: &Value) -> (StatusCode, Value) {
        self.clock.advance(1_000);
        let body = json!({
            "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
            "device_code": code["device_code"], "client_id": CLIENT_ID,
        });
        self.post("/device/token", body).await
    }

    async fn decide(&self, path: &str, origin: Option<&str>, body: &Value) -> StatusCode {
        let request = self.http.post(self.url(path)).json(body);
        let request = origin.into_iter().fold(request, |request, origin| request.header("origin", origin));
        request.send().await.unwrap().status()
    }

    async fn login(&self, user: &str) -> String {
        let code = self.code().await;
        assert!(self.idp.approve(code["user_code"].as_str().unwrap(), user));
        self.poll(&code).await.1["access_token"].as_str().unwrap().to_owned()
    }

    async fn token(&self, session: &str) -> (StatusCode, Value) {
        let answer = self.http.get(self.url("/token")).bearer_auth(session).send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }
}

fn part(token: &str, index: usize) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(index).unwrap()).unwrap()).unwrap()
}

#[tokio::test]
async fn a_device_login_yields_tokens_that_verify_under_the_jwks() {
    let f = Fixture::start(DevIdpOptions::default()).await;
    let code = f.code().await;
    assert_eq!((code["interval"].as_u64(), code["expires_in"].as_u64()), (Some(1), Some(600)));
    let (status, body) = f.poll(&code).await;
    assert_eq!((status, body["error"].as_str()), (StatusCode::BAD_REQUEST, Some("authorization_pending")));

    let page = f.http.get(code["verification_uri_complete"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(page.headers()["x-frame-options"], "DENY");
    assert!(page.text().await.unwrap().contains(code["user_code"].as_str().unwrap()));

    let origin = f.idp.origin();
    let approved = f
        .decide("/device/approve", Some(&origin), &json!({ "userCode": code["user_code"], "user": "zoe" }))
        .await;
    assert_eq!(approved, StatusCode::OK);
    let (status, session) = f.poll(&code).await;
    assert_eq!(status, StatusCode::OK);
    let session = session["access_token"].as_str().unwrap();
    assert!(!session.contains('.'), "the session must be opaque");

    let (_, body) = f.token(session).await;
    let token = body["token"].as_str().unwrap();
    let jwks: Value = f.http.get(f.url("/jwks")).send().await.unwrap().json().await.unwrap();
    let key = &jwks["keys"][0];
    let members: Vec<_> = key.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        {
            let mut m = members;
            m.sort_unstable();
            m
        },
        ["alg", "crv", "kid", "kty", "x"]
    );
    assert_eq!(part(token, 0), json!({ "alg": "EdDSA", "kid": key["kid"] }));
    let claims = part(token, 1);
    assert_eq!(
        (&claims["iss"], &claims["aud"], &claims["sub"]),
        (&json!(origin), &json!(origin), &json!("zoe"))
    );
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 900);
    assert!(claims.get("nbf").is_none());
    let x = URL_SAFE_NO_PAD.decode(key["x"].as_str().unwrap()).unwrap();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let signature = Signature::from_slice(&URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
    VerifyingKey::from_bytes(&x.try_into().unwrap()).unwrap().verify(signed.as_bytes(), &signature).unwrap();
}

#[tokio::test]
async fn only_its_own_page_may_decide() {
    let f = Fixture::start(DevIdpOptions::default()).await;
    let code = f.code().await;
    let body = json!({ "userCode": code["user_code"] });
    for origin in [None, Some("null"), Some("http://evil.example"), Some("http://localhost:4780")] {
        assert_eq!(f.decide("/device/approve", origin, &body).await, StatusCode::FORBIDDEN, "{origin:?}");
    }
    assert_eq!(f.poll(&code).await.1["error"], "authorization_pending");
}

#[tokio::test]
async fn a_request_for_another_host_name_is_turned_away() {
    let f = Fixture::start(DevIdpOptions::default()).await;
    let answer = f.http.get(f.url("/jwks")).header("host", "evil.example").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn the_form_approves_and_denies() {
    let f = Fixture::start(DevIdpOptions::default()).await;
    for (path, error) in [("/device/approve", None), ("/device/deny", Some("access_denied"))] {
        let code = f.code().await;
        let form = format!("userCode={}&user=Zo%C3%AB+W", code["user_code"].as_str().unwrap());
        let answer = f
            .http
            .post(f.url(path))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("origin", f.idp.origin())
            .body(form)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let (_, body) = f.poll(&code).await;
        assert_eq!(body["error"].as_str(), error);
        if error.is_none() {
            let (_, body) = f.token(body["access_token"].as_str().unwrap()).await;
            assert_eq!(part(body["token"].as_str().unwrap(), 1)["sub"], "Zoë W");
        }
    }
}

#[tokio::test]
async fn the_page_escapes_what_the_address_says() {
    let f = Fixture::start(DevIdpOptions::default()).await;
    let url = f.url("/device?user_code=%22%3E%3Cscript%3E");
    let page = f.http.get(url).send().await.unwrap().text().await.unwrap();
    assert!(!page.contains("<script>") && page.contains("&quot;&gt;&lt;script&gt;"));
}

#[tokio::test]
async fn a_code_is_approved_by_itself_only_when_told_to() {
    let f = Fixture::start(DevIdpOptions { auto_approve: true, ..Default::default() }).await;
    let code = f.code().await;
    let (status, session) = f.poll(&code).await;
    assert_eq!(status, StatusCode::OK);
    let (_, body) = f.token(session["access_token"].as_str().unwrap()).await;
    assert_eq!(part(body["token"].as_str().unwrap(), 1)["sub"], "dev");
}

#[tokio::test]
async fn bad_requests_get_their_oauth_error() {
    let f = Fixture::start(DevIdpOptions::default()).await;
    let (status, body) = f.post("/device/code", json!({ "client_id": "other" })).await;
    assert_eq!((status, body["error"].as_str()), (StatusCode::BAD_REQUEST, Some("invalid_client")));
    let (status, body) = f.post("/device/code", json!([])).await;
    assert_eq!((status, body["error"].as_str()), (StatusCode::BAD_REQUEST, Some("invalid_request")));
    let request = json!({ "grant_type": "password", "device_code": "x", "client_id": CLIENT_ID });
    assert_eq!(f.post("/device/token", request).await.1["error"], "unsupported_grant_type");
    assert_eq!(f.poll(&json!({ "device_code": "unknown" })).await.1["error"], "invalid_grant");
    let form = f.http.post(f.url("/device/code")).body("client_id=cotal-cli").send().await.unwrap();
    assert_eq!(form.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let huge = json!({ "client_id": "x".repeat(20_000) }).to_string();
    let huge = f
        .http
        .post(f.url("/device/code"))
        .header("content-type", "application/json")
        .body(huge)
        .send()
        .await
        .unwrap();
    assert_eq!(huge.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn signing_out_ends_the_session() {
    let f = Fixture::start(DevIdpOptions::default()).await;
    let session = f.login("zoe").await;
    let sign_out = || f.http.post(f.url("/sign-out")).bearer_auth(&session).json(&json!({})).send();
    assert_eq!(sign_out().await.unwrap().status(), StatusCode::OK);
    assert_eq!(f.token(&session).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(sign_out().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert_eq!(f.token("").await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_restart_with_a_state_file_signs_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dev-idp.json");
    let options = || DevIdpOptions { state_file: Some(path.clone()), ..Default::default() };
    let f = Fixture::start(options()).await;
    let session = f.login("zoe").await;
    let kid = part(&f.idp.mint_token("zoe", 60), 0)["kid"].clone();
    f.idp.stop().await;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!std::fs::read_to_string(&path).unwrap().contains(&session));

    let f = Fixture::start(options()).await;
    let (status, body) = f.token(&session).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(part(body["token"].as_str().unwrap(), 0)["kid"], kid);
}

#[tokio::test]
async fn a_garbled_state_file_refuses_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dev-idp.json");
    std::fs::write(&path, "{\"ver\":2}").unwrap();
    let options = DevIdpOptions { state_file: Some(path), ..Default::default() };
    let started = DevIdp::start(options, Arc::new(Manual::default()), Arc::new(SystemEntropy)).await;
    assert!(started.err().unwrap().to_string().contains("remove it to start afresh"));
}

#[tokio::test]
async fn it_listens_on_loopback_only() {
    let f = Fixture::start(DevIdpOptions::default()).await;
    assert!(f.idp.origin().starts_with("http://127.0.0.1:"));
}
