//! IdP tokens against a pinned JWKS (contract 04 §4).

use cotal_wire::UnixSecs;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::{Host, Url};

use crate::jws::{self, Jws};
pub use crate::{
    https::{Unread, below, http_client, read_body, retry_after_secs, secret_body, transport},
    jwks::{FETCH_TIMEOUT as KEYS_WITHIN, JwksResolver},
};

const URL_RULE: &str =
    "idp url must be https (or http on a loopback IP literal such as 127.0.0.1 for local dev)";
/// Longest age of a password proof, in seconds (contract 04 §4.4).
const PASSWORD_PROOF_MAX_AGE_SECS: u64 = 300;
/// The authentication method that a password proof must name.
const PASSWORD_METHOD: &str = "pwd";

/// The pin of a space's IdP: `idp.json` (contract 04 §6.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdpPin {
    /// Normalised base URL.
    pub url: String,
    /// Exact `iss`.
    pub issuer: String,
    /// Exact `aud`.
    pub audience: String,
    /// The only URL ever fetched for keys.
    pub jwks_uri: String,
}

/// Why an IdP token was refused; never echoes the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IdpRefusal(pub String);

impl From<jws::Reason> for IdpRefusal {
    fn from(reason: jws::Reason) -> Self {
        Self(reason.to_owned())
    }
}

/// Normalises an IdP base URL (contract 04 §11.1, 08 §3.1 release 0.73.0): origin and path, every trailing slash
/// stripped.
pub fn normalize_idp_url(raw: &str) -> Result<String, IdpRefusal> {
    let url = Url::parse(raw)
        .map_err(|_| IdpRefusal("idp url is not a URL; give it whole, as https://…".into()))?;
    if !is_https_or_loopback(&url) {
        return Err(URL_RULE.into());
    }
    if url.query().is_some_and(|query| !query.is_empty())
        || url.fragment().is_some_and(|part| !part.is_empty())
    {
        return Err("idp url must carry no query and no fragment".into());
    }
    if !url.username().is_empty() || url.password().is_some_and(|password| !password.is_empty()) {
        return Err("idp url must carry no user name and no password".into());
    }
    Ok(format!("{}{}", url.origin().ascii_serialization(), url.path().trim_end_matches('/')))
}

/// `https`, or `http` on a loopback IP literal; a name such as `localhost` may resolve to anything.
pub fn is_https_or_loopback(url: &Url) -> bool {
    match url.scheme() {
        "https" => url.has_host(),
        "http" => match url.host() {
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => {
                ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|mapped| mapped.is_loopback())
            }
            _ => false,
        },
        _ => false,
    }
}

impl IdpPin {
    /// The pin of a base URL: issuer and audience are its origin, keys at `<url>/jwks`.
    pub fn from_url(raw: &str) -> Result<Self, IdpRefusal> {
        let url = normalize_idp_url(raw)?;
        let origin = Url::parse(&url)
            .map_err(|_| IdpRefusal("idp url is not a URL".into()))?
            .origin()
            .ascii_serialization();
        Ok(Self { jwks_uri: format!("{url}/jwks"), url, issuer: origin.clone(), audience: origin })
    }
}

/// A verified IdP token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedIdpToken {
    /// Non-empty subject.
    pub sub: String,
    /// When the proof expires.
    pub exp: UnixSecs,
}

/// A verified IdP token whose signer says that its subject has just given a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HumanProof {
    /// The token.
    pub token: VerifiedIdpToken,
    /// When the password was given.
    pub auth_time: UnixSecs,
}

/// Verifies an IdP token (contract 04 §4.1), in order.
pub async fn verify_idp_token(
    token: &str,
    pin: &IdpPin,
    keys: &JwksResolver,
    now: UnixSecs,
) -> Result<VerifiedIdpToken, IdpRefusal> {
    let payload = verified_payload(token, keys).await?;
    Ok(check_token(&payload, pin, now)?)
}

/// Verifies a password proof (contract 04 §4.4): the ordinary checks, then `auth_time` no later than the decision and
/// at most 300 seconds old, then `amr` with `pwd`. A recent `iat` proves no password.
pub async fn verify_tool_result_human_proof(
    token: &str,
    pin: &IdpPin,
    keys: &JwksResolver,
    decision: UnixSecs,
) -> Result<HumanProof, IdpRefusal> {
    let payload = verified_payload(token, keys).await?;
    let token = check_token(&payload, pin, decision)?;
    let auth_time = check_password(&payload, decision)?;
    Ok(HumanProof { token, auth_time })
}

/// Header, key and signature.
async fn verified_payload(token: &str, keys: &JwksResolver) -> Result<Map<String, Value>, IdpRefusal> {
    let jws = Jws::read(token)?;
    let key = keys.resolve(jws.kid.as_deref()).await?;
    Ok(jws.verify(&key)?)
}

fn check_token(
    payload: &Map<String, Value>,
    pin: &IdpPin,
    now: UnixSecs,
) -> Result<VerifiedIdpToken, jws::Reason> {
    jws::check_registered(payload, &pin.issuer, &pin.audience, now)?;
    jws::check_sole_audience(payload, &pin.audience)?;
    let exp = jws::numeric(payload, "exp", jws::EXP_NOT_NUMBER)?.ok_or(jws::NO_EXP)?;
    let iat = jws::numeric(payload, "iat", jws::IAT_NOT_NUMBER)?.ok_or(jws::NO_IAT)?;
    if iat > jws::latest(now) {
        return Err(jws::IAT_IN_FUTURE);
    }
    let sub = payload.get("sub").and_then(Value::as_str).filter(|sub| !sub.is_empty());
    let sub = sub.ok_or("the token has no subject")?.to_owned();
    Ok(VerifiedIdpToken { sub, exp: jws::whole_seconds(exp) })
}

fn check_password(payload: &Map<String, Value>, decision: UnixSecs) -> Result<UnixSecs, jws::Reason> {
    const NO_AUTH_TIME: jws::Reason = "the token does not say in whole seconds when its subject signed in";
    let at = jws::numeric(payload, "auth_time", NO_AUTH_TIME)?.filter(|at| at.fract() == 0.0 && *at >= 0.0);
    let at = jws::whole_seconds(at.ok_or(NO_AUTH_TIME)?);
    if at > decision {
        return Err("the token says that its subject will sign in later");
    }
    if decision.since(at) > PASSWORD_PROOF_MAX_AGE_SECS {
        return Err("the password was given too long ago; sign in again");
    }
    let methods =
        payload.get("amr").and_then(Value::as_array).filter(|list| list.iter().all(Value::is_string));
    let methods = methods.ok_or("the token does not list how its subject signed in")?;
    if methods.iter().any(|method| method == PASSWORD_METHOD) {
        Ok(at)
    } else {
        Err("the token's subject did not sign in with a password")
    }
}

/// The door of the fuzz target: both verifications against a key set at hand, without the fetch.
#[cfg(fuzzing)]
pub mod fuzzing {
    use super::*;

    fn payload(token: &str, jwks: &[u8]) -> Result<Map<String, Value>, IdpRefusal> {
        let jws = Jws::read(token)?;
        let key = crate::jwks::resolve_in(jwks, jws.kid.as_deref())?;
        Ok(jws.verify(&key)?)
    }

    /// [`verify_idp_token`].
    pub fn verify(
        token: &str,
        pin: &IdpPin,
        jwks: &[u8],
        now: UnixSecs,
    ) -> Result<VerifiedIdpToken, IdpRefusal> {
        Ok(check_token(&payload(token, jwks)?, pin, now)?)
    }

    /// [`verify_tool_result_human_proof`].
    pub fn verify_human(
        token: &str,
        pin: &IdpPin,
        jwks: &[u8],
        decision: UnixSecs,
    ) -> Result<HumanProof, IdpRefusal> {
        let payload = payload(token, jwks)?;
        let token = check_token(&payload, pin, decision)?;
        Ok(HumanProof { token, auth_time: check_password(&payload, decision)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_normalise_or_refuse_as_the_contract_says() {
        for (raw, normal) in [
            ("https://idp.example", "https://idp.example"),
            ("https://IDP.example:443/", "https://idp.example"),
            ("https://idp.example/api/auth///", "https://idp.example/api/auth"),
            ("https://localhost/a", "https://localhost/a"),
            ("https://idp.example/?", "https://idp.example"),
            ("https://idp.example/#", "https://idp.example"),
            ("http://127.0.0.1:3000/api/auth", "http://127.0.0.1:3000/api/auth"),
            ("http://127.8.9.10", "http://127.8.9.10"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
            ("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]"),
        ] {
            assert_eq!(normalize_idp_url(raw).as_deref(), Ok(normal), "{raw}");
        }
        for raw in [
            "http://localhost:3000",
            "http://idp.example",
            "http://10.0.0.1",
            "http://127.0.0.1.example",
            "http://[::2]/",
            "http://[::ffff:10.0.0.1]/",
            "ftp://127.0.0.1",
            "ws://127.0.0.1",
            "data:text/plain,x",
        ] {
            assert_eq!(normalize_idp_url(raw).unwrap_err().0, URL_RULE, "{raw}");
        }
        for raw in [
            "",
            "idp.example",
            "https://",
            "https://idp.example/?a=b",
            "https://idp.example/#a",
            "https://user@idp.example",
            "https://user:word@idp.example",
            "https://:word@idp.example",
        ] {
            assert!(normalize_idp_url(raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn a_pin_takes_issuer_and_audience_from_the_origin() {
        let pin = IdpPin::from_url("http://127.0.0.1:4780/api/auth/").unwrap();
        assert_eq!(
            serde_json::to_value(&pin).unwrap(),
            serde_json::json!({
                "url": "http://127.0.0.1:4780/api/auth",
                "issuer": "http://127.0.0.1:4780",
                "audience": "http://127.0.0.1:4780",
                "jwksUri": "http://127.0.0.1:4780/api/auth/jwks",
            })
        );
    }
}
