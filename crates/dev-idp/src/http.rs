//! The routes (contract 04 §17).

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use cotal_wire::{Clock, Entropy, Object};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::{
    BASE_PATH, CLIENT_ID, DEFAULT_USER,
    devices::{DEVICE_CODE_TTL_SECS, Decision, Devices, NoSuchCode, POLL_INTERVAL_SECS, PollRefusal},
    expiry, page,
    sessions::{SESSION_TTL_SECS, Sessions},
    signer::{Signer, TOKEN_TTL_SECS},
    state_file::StateFile,
};

/// Longest request body; every one of these is a few short strings.
const MAX_BODY_BYTES: usize = 16 * 1024;
/// Longest user name.
const MAX_USER_CHARS: usize = 64;
/// The one grant of the device flow.
const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// What the approval page may load and whom it may post to: nothing, and itself.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// What every request sees.
pub(crate) struct Shared {
    origin: String,
    host: String,
    auto_approve: bool,
    pub(crate) signer: Signer,
    devices: Mutex<Devices>,
    sessions: Mutex<Sessions>,
    file: StateFile,
    pub(crate) clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl Shared {
    pub(crate) fn new(
        addr: SocketAddr,
        auto_approve: bool,
        signer: Signer,
        sessions: Sessions,
        file: StateFile,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            origin: format!("http://{addr}"),
            host: addr.to_string(),
            auto_approve,
            signer,
            devices: Mutex::default(),
            sessions: Mutex::new(sessions),
            file,
            clock,
            entropy,
        }
    }

    pub(crate) fn decide(&self, user_code: &str, decision: Decision) -> Result<(), NoSuchCode> {
        self.devices.lock().decide(user_code, decision, self.clock.now_secs())
    }

    /// Changes the sessions and saves them, off the async threads; the change stands only when it was saved.
    async fn change_sessions<T: Send + 'static>(
        self: Arc<Self>,
        change: impl FnOnce(&Self, &mut Sessions) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let changed = tokio::task::spawn_blocking(move || {
            let mut sessions = self.sessions.lock();
            let mut next = sessions.clone();
            let outcome = change(&self, &mut next);
            self.file.save(&self.signer, &next)?;
            *sessions = next;
            Ok::<_, std::io::Error>(outcome)
        });
        match changed.await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(error)) => {
                tracing::error!(%error, "the development identity provider cannot save its state");
                Err(Refusal::server_error("the state file could not be written"))
            }
            Err(_) => Err(Refusal::server_error("the state was not changed")),
        }
    }
}

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let routes = Router::new()
        .route("/jwks", get(jwks))
        .route("/device/code", post(device_code))
        .route("/device/token", post(device_token))
        .route("/device", get(device_page))
        .route("/device/approve", post(approve))
        .route("/device/deny", post(deny))
        .route("/token", get(token))
        .route("/sign-out", post(sign_out));
    Router::new()
        .nest(BASE_PATH, routes)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(shared.clone(), own_host_only))
        .with_state(shared)
}

/// An OAuth error answer.
struct Refusal {
    status: StatusCode,
    error: &'static str,
    description: &'static str,
}

impl Refusal {
    const fn bad(error: &'static str, description: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, error, description }
    }

    const fn server_error(description: &'static str) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, error: "server_error", description }
    }

    const fn unauthorized() -> Self {
        Self { status: StatusCode::UNAUTHORIZED, error: "unauthorized", description: "no such session" }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.error, "error_description": self.description });
        (self.status, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
    }
}

impl From<PollRefusal> for Refusal {
    fn from(refusal: PollRefusal) -> Self {
        match refusal {
            PollRefusal::InvalidGrant => Self::bad("invalid_grant", "no such device code for this client"),
            PollRefusal::Pending => Self::bad("authorization_pending", "the code is not approved yet"),
            PollRefusal::SlowDown => Self::bad("slow_down", "polling faster than the interval"),
            PollRefusal::Expired => Self::bad("expired_token", "the code has expired"),
            PollRefusal::Denied => Self::bad("access_denied", "the code was denied"),
        }
    }
}

impl From<NoSuchCode> for Refusal {
    fn from(refusal: NoSuchCode) -> Self {
        match refusal {
            NoSuchCode::Unknown => Self::bad("invalid_request", "no such code, or it has expired"),
            NoSuchCode::Decided => Self::bad("invalid_request", "the code is decided already"),
        }
    }
}

/// A page elsewhere whose name was made to resolve to this machine must not read or drive the provider.
async fn own_host_only(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(HeaderValue::as_bytes);
    if host == Some(shared.host.as_bytes()) {
        return next.run(request).await;
    }
    let status = StatusCode::MISDIRECTED_REQUEST;
    Refusal { status, error: "invalid_request", description: "ask for the address that it listens on" }
        .into_response()
}

async fn jwks(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(shared.signer.jwks())
}

#[derive(Deserialize)]
struct CodeRequest {
    client_id: String,
}

async fn device_code(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request: CodeRequest = json_body(&headers, &body)?;
    if request.client_id != CLIENT_ID {
        return Err(Refusal::bad("invalid_client", "the only client here is cotal-cli"));
    }
    let decision = shared.auto_approve.then(|| Decision::Approve(DEFAULT_USER.to_owned()));
    let started = shared.devices.lock().start(shared.clock.now_secs(), shared.entropy.as_ref(), decision);
    let Some(started) = started else {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return Err(Refusal {
            status,
            error: "temporarily_unavailable",
            description: "too many codes in flight",
        });
    };
    let page = format!("{}{BASE_PATH}/device", shared.origin);
    Ok(no_store(json!({
        "device_code": started.device_code,
        "user_code": started.user_code,
        "verification_uri": page,
        "verification_uri_complete": format!("{page}?user_code={}", started.user_code),
        "expires_in": DEVICE_CODE_TTL_SECS,
        "interval": POLL_INTERVAL_SECS,
    })))
}

#[derive(Deserialize)]
struct TokenRequest {
    grant_type: String,
    device_code: String,
    client_id: String,
}

async fn device_token(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request: TokenRequest = json_body(&headers, &body)?;
    if request.grant_type != DEVICE_GRANT {
        return Err(Refusal::bad("unsupported_grant_type", "only the device grant is served"));
    }
    let now = shared.clock.now_millis();
    let user = shared.devices.lock().poll(&request.device_code, &request.client_id, now)?;
    let session = shared
        .change_sessions(move |shared, sessions| sessions.open(&user, now.to_secs(), shared.entropy.as_ref()))
        .await?;
    Ok(no_store(json!({
        "access_token": session.as_str(),
        "token_type": "Bearer",
        "expires_in": SESSION_TTL_SECS,
        "scope": "",
    })))
}

async fn token(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let bearer = bearer(&headers).ok_or(Refusal::unauthorized())?;
    let now = shared.clock.now_secs();
    let sub =
        shared.sessions.lock().find(&bearer, now).map(|s| s.sub.clone()).ok_or(Refusal::unauthorized())?;
    let token = shared.signer.mint(&shared.origin, &sub, now, expiry(now, TOKEN_TTL_SECS));
    Ok(no_store(json!({ "token": token })))
}

async fn sign_out(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let bearer = bearer(&headers).ok_or(Refusal::unauthorized())?;
    if shared.sessions.lock().find(&bearer, shared.clock.now_secs()).is_none() {
        return Err(Refusal::unauthorized());
    }
    shared.change_sessions(move |_, sessions| sessions.close(&bearer)).await?;
    Ok(no_store(json!({ "success": true })))
}

async fn device_page(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let query = uri.query().unwrap_or_default();
    let code = url::form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "user_code");
    let code = code.map(|(_, value)| value.into_owned()).unwrap_or_default();
    html(StatusCode::OK, page::approval(&format!("{}{BASE_PATH}", shared.origin), &code, DEFAULT_USER))
}

/// What a person, or a test in place of one, says about a code.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    user_code: String,
    user: Option<String>,
}

async fn approve(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    decide(
        &shared,
        &headers,
        &body,
        |user| Decision::Approve(user.to_owned()),
        "Approved. You may close this page.",
    )
}

async fn deny(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    decide(&shared, &headers, &body, |_| Decision::Deny, "Denied. You may close this page.")
}

fn decide(
    shared: &Shared,
    headers: &HeaderMap,
    body: &[u8],
    decision: impl FnOnce(&str) -> Decision,
    done: &str,
) -> Response {
    let is_form = has_type(headers, "application/x-www-form-urlencoded");
    let outcome = verdict(shared, headers, body, is_form)
        .and_then(|(code, user)| shared.decide(&code, decision(&user)).map_err(Refusal::from));
    match (outcome, is_form) {
        (Ok(()), true) => html(StatusCode::OK, page::message(done)),
        (Ok(()), false) => no_store(json!({ "success": true })),
        (Err(refusal), true) => html(refusal.status, page::message(refusal.description)),
        (Err(refusal), false) => refusal.into_response(),
    }
}

/// The code and the user of a decision, once it is known to come from the provider's own page.
fn verdict(
    shared: &Shared,
    headers: &HeaderMap,
    body: &[u8],
    is_form: bool,
) -> Result<(String, String), Refusal> {
    // Browsers put the origin on every POST and no page can forge it.
    if headers.get(header::ORIGIN).map(HeaderValue::as_bytes) != Some(shared.origin.as_bytes()) {
        let status = StatusCode::FORBIDDEN;
        return Err(Refusal {
            status,
            error: "invalid_origin",
            description: "decide on the provider's own page",
        });
    }
    let verdict = if is_form {
        let field = |wanted: &str| {
            url::form_urlencoded::parse(body)
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value.into_owned())
        };
        let user_code = field("userCode").ok_or(Refusal::bad("invalid_request", "the form names no code"))?;
        Verdict { user_code, user: field("user") }
    } else {
        json_body(headers, body)?
    };
    let user = verdict.user.as_deref().map_or(DEFAULT_USER, str::trim).to_owned();
    let count = user.chars().count();
    if count == 0 || count > MAX_USER_CHARS || user.chars().any(char::is_control) {
        return Err(Refusal::bad("invalid_request", "a user name is 1 to 64 printable characters"));
    }
    Ok((verdict.user_code, user))
}

fn json_body<T: serde::de::DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, Refusal> {
    if !has_type(headers, "application/json") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Refusal {
            status,
            error: "invalid_request",
            description: "the body must be application/json",
        });
    }
    serde_json::from_slice(body)
        .map(|Object(request)| request)
        .map_err(|_| Refusal::bad("invalid_request", "the body lacks a member, or is not JSON"))
}

fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(wanted)
}

fn bearer(headers: &HeaderMap) -> Option<Zeroizing<String>> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ").map(|token| Zeroizing::new(token.to_owned()))
}

fn no_store(body: Value) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

fn html(status: StatusCode, body: String) -> Response {
    let headers = [
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_FRAME_OPTIONS, "DENY"),
        // Not `no-referrer`: that would blank the origin of the form's own POST.
        (header::REFERRER_POLICY, "same-origin"),
    ];
    (status, headers, Html(body)).into_response()
}
