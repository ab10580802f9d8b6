//! The IdP as a client sees it: device codes, sessions, tokens (contract 04 §11.1).
//!
//! Every body is JSON, every request has a deadline, no redirect is followed, and nothing that came over the wire is
//! used before it was checked whole.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_trust::idp::{http_client, normalize_idp_url, transport};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::{context::Context, http_json::Answer, outcome::CliError, progress::within, terminal::printable};

/// The environment variable that replaces the deadline of a request, in milliseconds.
const TIMEOUT_VARIABLE: &str = "COTAL_IDP_TIMEOUT_MS";
/// The deadline of a request.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The one grant of the device flow.
const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Longest life of a device code, in seconds.
const MAX_DEVICE_SECS: f64 = 86_400.0;
/// Longest interval between polls, in seconds.
const MAX_INTERVAL_SECS: f64 = 300.0;
/// Longest life of a session, in seconds: a year.
const MAX_SESSION_SECS: f64 = 31_536_000.0;
/// The interval when the IdP names none, in seconds.
const DEFAULT_INTERVAL_SECS: f64 = 5.0;
/// What `slow_down` adds to the interval, for good, in seconds.
const SLOW_DOWN_SECS: f64 = 5.0;
/// Where a display label is looked for, in this order.
const LABEL_CLAIMS: [&str; 3] = ["email", "name", "preferred_username"];

/// A device code, checked whole.
pub struct DeviceCode {
    secret: Zeroizing<String>,
    /// What the person compares.
    pub user_code: String,
    /// Where the person goes.
    pub verification_uri: String,
    /// The same with the code filled in.
    pub verification_uri_complete: String,
    /// How long it lives, in seconds.
    pub expires_in_secs: f64,
    /// Seconds between polls, at least one.
    pub interval_secs: f64,
}

/// What a poll was answered.
pub enum Poll {
    /// Nobody has decided yet.
    Pending,
    /// Nobody has decided yet, and the polls are to be farther apart from now on.
    SlowDown,
    /// A session.
    Session(NewSession),
}

/// A session as the IdP handed it out; unproved.
pub struct NewSession {
    /// The opaque session token.
    pub token: Zeroizing<String>,
    /// How long it lives, in seconds.
    pub expires_in_secs: f64,
}

/// What a session proved: the IdP mints tokens for it. The token is not verified here; the auth service does that.
pub struct Proof {
    /// The token.
    pub token: Zeroizing<String>,
    /// Its subject.
    pub sub: String,
    /// Its display label, if any.
    pub label: Option<String>,
}

/// A client of one IdP.
pub struct IdpClient {
    base: String,
    timeout: Duration,
    http: reqwest::Client,
}

impl DeviceCode {
    /// The interval after a `slow_down`.
    pub fn slow_down(&mut self) {
        self.interval_secs += SLOW_DOWN_SECS;
    }
}

impl IdpClient {
    /// A client of the IdP at a base URL, which is normalised.
    pub fn new(raw: &str, ctx: &Context) -> Result<Self, CliError> {
        let base = normalize_idp_url(raw)?;
        let timeout = timeout(ctx.env(TIMEOUT_VARIABLE).as_deref())?;
        Ok(Self { base, timeout, http: http_client(timeout)? })
    }

    /// What a person is told who waits for one of its answers.
    pub fn waits(&self) -> String {
        within(&format!("waiting for the IdP {}", self.base), self.timeout)
    }

    /// The normalised base URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Begins a device login.
    pub async fn start_device(&self, client_id: &str) -> Result<DeviceCode, CliError> {
        let answer = self.post("/device/code", None, &json!({ "client_id": client_id })).await?;
        if !answer.is_success() {
            return Err(self.refused("refused to start a device login", &answer));
        }
        let malformed =
            || self.failed("answered the device login with a malformed device code; nothing was started");
        let text = |name: &str| answer.text(name).filter(|s| printable(s) == **s).ok_or_else(malformed);
        let interval = match answer.member("interval") {
            None => DEFAULT_INTERVAL_SECS,
            Some(_) => answer.number("interval", MAX_INTERVAL_SECS).ok_or_else(malformed)?,
        };
        Ok(DeviceCode {
            secret: Zeroizing::new(text("device_code")?.to_owned()),
            user_code: text("user_code")?.to_owned(),
            verification_uri: text("verification_uri")?.to_owned(),
            verification_uri_complete: text("verification_uri_complete")?.to_owned(),
            expires_in_secs: answer.number("expires_in", MAX_DEVICE_SECS).ok_or_else(malformed)?,
            interval_secs: interval.max(1.0),
        })
    }

    /// Asks once whether the code was decided.
    pub async fn poll(&self, code: &DeviceCode, client_id: &str) -> Result<Poll, CliError> {
        let request = json!({
            "grant_type": DEVICE_GRANT,
            "device_code": code.secret.as_str(),
            "client_id": client_id,
        });
        let answer = self.post("/device/token", None, &request).await?;
        if !answer.is_success() {
            return match answer.text("error") {
                Some("authorization_pending") => Ok(Poll::Pending),
                Some("slow_down") => Ok(Poll::SlowDown),
                Some("access_denied") => Err(self.failed("was told to deny this login; nothing was stored")),
                Some("expired_token") => Err(self.expired()),
                _ => Err(self.refused("refused the device login", &answer)),
            };
        }
        let malformed =
            || self.failed("answered the device login with a malformed session; nothing was stored");
        let token = answer.text("access_token").filter(|token| is_token_text(token)).ok_or_else(malformed)?;
        let expires_in_secs = answer.number("expires_in", MAX_SESSION_SECS).ok_or_else(malformed)?;
        if claims_of(token).is_some() {
            return Err(self.failed(
                "handed out a JWT instead of an opaque session, which could not be revoked; nothing was stored",
            ));
        }
        Ok(Poll::Session(NewSession { token: Zeroizing::new(token.to_owned()), expires_in_secs }))
    }

    /// What is said of a code that nobody approved in time.
    pub fn expired(&self) -> CliError {
        self.failed("saw no approval before the code expired; run the login again")
    }

    /// Proves a session by a fresh token.
    pub async fn prove(&self, session: &str) -> Result<Proof, CliError> {
        let request = self.http.get(format!("{}/token", self.base)).bearer_auth(session);
        let answer = self.send(request).await?;
        if answer.status == 401 {
            return Err(CliError::failed(format!(
                "the session at {} is over; run: cotal login --idp {}",
                self.base, self.base
            )));
        }
        if !answer.is_success() {
            return Err(self.refused("refused to mint a token for the session", &answer));
        }
        let malformed = || self.failed("minted no usable token for the session");
        let token = answer.text("token").filter(|token| is_token_text(token)).ok_or_else(malformed)?;
        let claims = claims_of(token).ok_or_else(malformed)?;
        let claim = |name: &str| claims.get(name).and_then(Value::as_str).filter(|s| !s.is_empty());
        Ok(Proof {
            sub: claim("sub").ok_or_else(malformed)?.to_owned(),
            label: LABEL_CLAIMS.into_iter().find_map(claim).map(str::to_owned),
            token: Zeroizing::new(token.to_owned()),
        })
    }

    /// Revokes a session. One that is over already is revoked.
    pub async fn sign_out(&self, session: &str) -> Result<(), CliError> {
        let answer = self.post("/sign-out", Some(session), &json!({})).await?;
        if answer.is_success() || answer.status == 401 {
            return Ok(());
        }
        Err(self.refused("refused to end the session; it stays cached here. Run the logout again", &answer))
    }

    async fn post(&self, path: &str, session: Option<&str>, body: &Value) -> Result<Answer, CliError> {
        let request = self.http.post(format!("{}{path}", self.base)).json(body);
        let request = session.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
        self.send(request).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Answer, CliError> {
        let unreachable = |e: &reqwest::Error| {
            CliError::failed(format!(
                "no answer from the IdP {}: {}; check the URL and try again",
                self.base,
                transport(e)
            ))
        };
        let response = request.send().await.map_err(|e| unreachable(&e))?;
        Answer::read(response).await.map_err(|e| unreachable(&e))
    }

    fn failed(&self, what: &str) -> CliError {
        CliError::failed(format!("the IdP {} {what}", self.base))
    }

    fn refused(&self, what: &str, answer: &Answer) -> CliError {
        let reason = match (answer.text("error"), answer.text("error_description")) {
            (Some(error), Some(description)) => format!("{error}: {description}"),
            (Some(reason), None) | (None, Some(reason)) => reason.to_owned(),
            // Something is there, and it knows nothing of logins.
            (None, None) if matches!(answer.status, 300..=399 | 404 | 405 | 501) => {
                format!("HTTP {}; is this its auth base URL?", answer.status)
            }
            (None, None) => format!("HTTP {}", answer.status),
        };
        self.failed(&format!("{what} ({})", printable(&reason)))
    }
}

/// The deadline of a request: a finite number of milliseconds above zero, or the default.
fn timeout(variable: Option<&str>) -> Result<Duration, CliError> {
    let Some(value) = variable else { return Ok(DEFAULT_TIMEOUT) };
    value
        .trim()
        .parse::<f64>()
        .ok()
        .filter(|millis| millis.is_finite() && *millis > 0.0)
        .and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok())
        .ok_or_else(|| {
            CliError::failed(format!("{TIMEOUT_VARIABLE} must be a number of milliseconds above zero"))
        })
}

/// Whether a text can stand in an `Authorization` header.
fn is_token_text(token: &str) -> bool {
    token.bytes().all(|b| b.is_ascii_graphic())
}

/// The claims of a compact JWT, unverified; `None` when the text is none.
fn claims_of(token: &str) -> Option<serde_json::Map<String, Value>> {
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let bytes = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    match serde_json::from_slice(&bytes).ok()? {
        Value::Object(claims) => Some(claims),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_a_finite_number_of_milliseconds_above_zero() {
        assert_eq!(timeout(None).unwrap(), Duration::from_secs(30));
        assert_eq!(timeout(Some("1500")).unwrap(), Duration::from_millis(1500));
        assert_eq!(timeout(Some("1.5e3")).unwrap(), Duration::from_millis(1500));
        for bad in ["0", "-1", "NaN", "inf", "Infinity", "soon", "1e300"] {
            assert!(timeout(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_text_with_claims_is_a_jwt_and_an_opaque_one_is_none() {
        assert!(claims_of("eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ6In0.c2ln").is_some());
        for opaque in ["", "opaque", "a.b", "a.b.c", "a.bnVsbA.c", "a.e30.c.d"] {
            assert!(claims_of(opaque).is_none(), "{opaque}");
        }
    }
}
