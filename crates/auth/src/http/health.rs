//! `/health` (contract 05 §3.3).

use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::reply::Reply;

pub(crate) const PATH: &str = "/health";

/// `{"ok":true,"issuer":"<issuer of the space's bearers>"}`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthBody<'a> {
    /// Always `true`.
    pub ok: bool,
    /// `iss` of the space's bearers.
    pub issuer: &'a str,
}

/// Whether this face answers, and for which issuer.
#[utoipa::path(get, path = PATH, operation_id = "health", tag = "both faces", responses(
    (status = 200, description = "The service answers. The loopback face does not check the method.", body = HealthBody),
    (status = 404, description = "Another request target: a query string, for one.", body = super::reply::ErrorBody),
    (status = 405, description = "Public face: not a GET.", body = super::reply::ErrorBody),
    (status = 503, description = "Public face: admission cap (with `Retry-After`) or deadline.", body = super::reply::ErrorBody),
))]
pub(crate) fn reply(issuer: &str) -> Reply {
    Reply::json(StatusCode::OK, &HealthBody { ok: true, issuer })
}
