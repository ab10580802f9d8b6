//! `/jwks` (contract 05 §3.3).

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

use super::reply::Reply;

pub(crate) const PATH: &str = "/jwks";

/// How long a reader may keep the set: a retired key stays published for this long plus the longest bearer.
const CACHE: HeaderValue = HeaderValue::from_static("max-age=300");

/// The published keys of a space.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JwksBody {
    /// Every key, the active one first.
    pub keys: Vec<Jwk>,
}

/// One published Ed25519 key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Jwk {
    /// `OKP`.
    pub kty: String,
    /// `Ed25519`.
    pub crv: String,
    /// The public key, base64url.
    pub x: String,
    /// RFC 7638 thumbprint.
    pub kid: String,
    /// `EdDSA`.
    pub alg: String,
    /// `sig`.
    #[serde(rename = "use")]
    pub use_: String,
}

/// The key set that verifies this space's bearers.
#[utoipa::path(get, path = PATH, operation_id = "jwks", tag = "both faces", responses(
    (status = 200, description = "The key set; `cache-control: max-age=300`.", body = JwksBody),
    (status = 404, description = "Another request target: a query string, for one.", body = super::reply::ErrorBody),
    (status = 405, description = "Not a GET.", body = super::reply::ErrorBody),
    (status = 503, description = "Public face: admission cap (with `Retry-After`) or deadline.", body = super::reply::ErrorBody),
))]
pub(crate) fn reply(document: Bytes) -> Reply {
    Reply::raw(StatusCode::OK, document).with(header::CACHE_CONTROL, CACHE)
}
