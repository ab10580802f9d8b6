//! Compact JWS with EdDSA, read in the order that contract 04 §2.4 and §4.1 fix for user bearers and IdP tokens.
//!
//! The order of checks is contract, which is why no JOSE library reads these tokens.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_wire::UnixSecs;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::Serialize;
use serde_json::{Map, Value};

/// The one algorithm: Ed25519.
pub(crate) const ALGORITHM: &str = "EdDSA";
/// Clock skew that is forgiven on `exp`, `nbf` and `iat`, in seconds; fixed (contract 08 §3.1, 0.77.0).
pub(crate) const TOLERANCE_SECS: u64 = 5;
/// Longest token that is read: the broker takes no longer one on its control line.
const MAX_TOKEN_LEN: usize = 64 * 1024;
/// Header members that would let a token bring its own key.
const EMBEDDED_KEYS: [&str; 4] = ["jku", "jwk", "x5u", "x5c"];

pub(crate) const MALFORMED: &str = "the token is malformed";
pub(crate) const EMBEDDED_KEY: &str = "the token's header brings its own key (jku, jwk, x5u, x5c)";
pub(crate) const WRONG_ALGORITHM: &str = "the token is not signed with EdDSA";
pub(crate) const CRITICAL_HEADER: &str = "the token's header demands an extension that is not understood";
pub(crate) const UNENCODED_PAYLOAD: &str = "the token's payload is not base64url-encoded";
pub(crate) const KID_NOT_TEXT: &str = "the token's kid is not a string";
pub(crate) const BAD_SIGNATURE: &str = "the token's signature does not verify";
pub(crate) const NOT_AN_OBJECT: &str = "the token's payload is not a JSON object";

/// A refusal's fixed sentence.
pub(crate) type Reason = &'static str;

/// A token whose header passed; nothing else of it is to be believed yet.
pub(crate) struct Jws<'a> {
    /// The header's `kid`.
    pub(crate) kid: Option<String>,
    signed: &'a str,
    payload: &'a str,
    signature: &'a str,
}

impl<'a> Jws<'a> {
    /// Splits a token and checks its header: embedded keys, then `alg`, then `crit` and `b64`, then the form of `kid`.
    pub(crate) fn read(token: &'a str) -> Result<Self, Reason> {
        if token.len() > MAX_TOKEN_LEN {
            return Err(MALFORMED);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(MALFORMED)?;
        let (header, payload) = signed.split_once('.').ok_or(MALFORMED)?;
        if payload.contains('.') {
            return Err(MALFORMED);
        }
        let header = URL_SAFE_NO_PAD.decode(header).map_err(|_| MALFORMED)?;
        let mut header: Map<String, Value> = serde_json::from_slice(&header).map_err(|_| MALFORMED)?;
        if EMBEDDED_KEYS.iter().any(|name| header.contains_key(*name)) {
            return Err(EMBEDDED_KEY);
        }
        if header.get("alg").and_then(Value::as_str) != Some(ALGORITHM) {
            return Err(WRONG_ALGORITHM);
        }
        check_critical(&header)?;
        let kid = match header.remove("kid") {
            None => None,
            Some(Value::String(kid)) => Some(kid),
            Some(_) => return Err(KID_NOT_TEXT),
        };
        Ok(Self { kid, signed, payload, signature })
    }

    /// Verifies the signature; only then is the payload decoded.
    pub(crate) fn verify(&self, key: &VerifyingKey) -> Result<Map<String, Value>, Reason> {
        let mut signature = [0u8; 64];
        let length = URL_SAFE_NO_PAD.decode_slice(self.signature, &mut signature);
        if length != Ok(signature.len()) {
            return Err(BAD_SIGNATURE);
        }
        key.verify_strict(self.signed.as_bytes(), &Signature::from_bytes(&signature))
            .map_err(|_| BAD_SIGNATURE)?;
        let payload = URL_SAFE_NO_PAD.decode(self.payload).map_err(|_| MALFORMED)?;
        serde_json::from_slice(&payload).map_err(|_| NOT_AN_OBJECT)
    }
}

/// `b64` is the one extension that is understood, and only as `true`.
fn check_critical(header: &Map<String, Value>) -> Result<(), Reason> {
    if let Some(critical) = header.get("crit") {
        let names = critical.as_array().filter(|names| !names.is_empty()).ok_or(CRITICAL_HEADER)?;
        if names.iter().any(|name| name.as_str() != Some("b64")) || !header.contains_key("b64") {
            return Err(CRITICAL_HEADER);
        }
    }
    match header.get("b64") {
        None | Some(Value::Bool(true)) => Ok(()),
        Some(_) => Err(UNENCODED_PAYLOAD),
    }
}

pub(crate) const NO_ISSUER: &str = "the token has no iss";
pub(crate) const NO_AUDIENCE: &str = "the token has no aud";
pub(crate) const OTHER_ISSUER: &str = "the token is from another issuer";
pub(crate) const OTHER_AUDIENCE: &str = "the token is for another audience";
pub(crate) const IAT_NOT_NUMBER: &str = "the token's iat is not a number";
pub(crate) const NBF_NOT_NUMBER: &str = "the token's nbf is not a number";
pub(crate) const NOT_YET: &str = "the token is not valid yet";
pub(crate) const EXP_NOT_NUMBER: &str = "the token's exp is not a number";
pub(crate) const EXPIRED: &str = "the token has expired";
pub(crate) const MANY_AUDIENCES: &str = "the token is for more than this audience";
pub(crate) const NO_EXP: &str = "the token has no exp";
pub(crate) const NO_IAT: &str = "the token has no iat";
pub(crate) const NO_NBF: &str = "the token has no nbf";
pub(crate) const IAT_IN_FUTURE: &str = "the token was issued in the future";

/// `iss` and `aud` present; `iss` equal; `aud` contains; then `iat`, `nbf` and `exp` where present.
pub(crate) fn check_registered(
    payload: &Map<String, Value>,
    issuer: &str,
    audience: &str,
    now: UnixSecs,
) -> Result<(), Reason> {
    let iss = payload.get("iss").ok_or(NO_ISSUER)?;
    let aud = payload.get("aud").ok_or(NO_AUDIENCE)?;
    if iss.as_str() != Some(issuer) {
        return Err(OTHER_ISSUER);
    }
    let contains = match aud {
        Value::String(one) => one == audience,
        Value::Array(many) => many.iter().any(|one| one.as_str() == Some(audience)),
        _ => false,
    };
    if !contains {
        return Err(OTHER_AUDIENCE);
    }
    numeric(payload, "iat", IAT_NOT_NUMBER)?;
    if numeric(payload, "nbf", NBF_NOT_NUMBER)?.is_some_and(|nbf| nbf > latest(now)) {
        return Err(NOT_YET);
    }
    if numeric(payload, "exp", EXP_NOT_NUMBER)?.is_some_and(|exp| exp <= seconds(now) - tolerance()) {
        return Err(EXPIRED);
    }
    Ok(())
}

/// `aud` is exactly this one: the string, or an array of nothing else.
pub(crate) fn check_sole_audience(payload: &Map<String, Value>, audience: &str) -> Result<(), Reason> {
    let sole = match payload.get("aud") {
        Some(Value::String(one)) => one == audience,
        Some(Value::Array(many)) => matches!(many.as_slice(), [Value::String(one)] if one == audience),
        _ => false,
    };
    if sole { Ok(()) } else { Err(MANY_AUDIENCES) }
}

/// The number of this member, `None` when absent.
pub(crate) fn numeric(
    payload: &Map<String, Value>,
    name: &str,
    reason: Reason,
) -> Result<Option<f64>, Reason> {
    payload.get(name).map(|value| value.as_f64().ok_or(reason)).transpose()
}

/// An instant as the double that JSON compares it with; exact far beyond any clock.
#[allow(clippy::cast_precision_loss, reason = "exact below 2^53 seconds, and only compared above")]
pub(crate) fn seconds(at: UnixSecs) -> f64 {
    at.0 as f64
}

/// The whole seconds of a JSON time.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and fractions are dropped on purpose"
)]
pub(crate) fn whole_seconds(at: f64) -> UnixSecs {
    UnixSecs(at as u64)
}

/// The latest instant that still counts as now.
pub(crate) fn latest(now: UnixSecs) -> f64 {
    seconds(now) + tolerance()
}

pub(crate) fn tolerance() -> f64 {
    seconds(UnixSecs(TOLERANCE_SECS))
}

/// Signs a payload: header of exactly `alg` and `kid`.
pub(crate) fn sign(kid: &str, key: &SigningKey, payload: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Header<'a> {
        alg: &'a str,
        kid: &'a str,
    }
    let mut token = part(&Header { alg: ALGORITHM, kid });
    token.push('.');
    token.push_str(&part(payload));
    let signature = key.sign(token.as_bytes()).to_bytes();
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut token);
    token
}

fn part(value: &impl Serialize) -> String {
    #[allow(clippy::expect_used, reason = "strings, integers and lists of them always serialise")]
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(value).expect("plain claims serialise"))
}
