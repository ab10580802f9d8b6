//! IdP tokens against a pinned JWKS (contract 04 §4).
use cotal_wire::{Clock, UnixSecs};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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

/// Normalises an IdP base URL (contract 04 §11.1, 08 §3.1 release 0.73.0).
pub fn normalize_idp_url(_raw: &str) -> Result<String, IdpRefusal> {
    todo!()
}

impl IdpPin {
    /// The pin of a base URL: issuer and audience are its origin, keys at `<url>/jwks`.
    pub fn from_url(_raw: &str) -> Result<Self, IdpRefusal> {
        todo!()
    }
}

/// The pinned remote key set: cache 10 min, cooldown 30 s, fetch timeout 5 s, one refetch on an unknown kid.
pub struct JwksResolver {
    _private: (),
}

impl JwksResolver {
    /// A resolver of this one URL.
    pub fn new(_jwks_uri: &str, _clock: Arc<dyn Clock>) -> Result<Self, IdpRefusal> {
        todo!()
    }
    /// Fetches the document and checks that it has a `keys` array (the probe before a first pin).
    pub async fn probe(&self) -> Result<(), IdpRefusal> {
        todo!()
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

/// Verifies an IdP token (contract 04 §4.1), in order.
pub async fn verify_idp_token(
    _token: &str,
    _pin: &IdpPin,
    _keys: &JwksResolver,
    _now: UnixSecs,
) -> Result<VerifiedIdpToken, IdpRefusal> {
    todo!()
}

/// An HTTPS client with the ring provider and the platform's roots; redirects are never followed.
pub fn http_client(_timeout: std::time::Duration) -> Result<reqwest::Client, IdpRefusal> {
    todo!()
}
