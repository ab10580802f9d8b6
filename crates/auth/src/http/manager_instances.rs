//! `POST /manager-instances`: the managers that a signed-in person can be bound to, live or not (contract 10 §1, 14 §1).

use bytes::Bytes;
use cotal_wire::EpError;
use http::{StatusCode, request::Parts};
use hyper::body::Body;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    body::{self, BODY_MAX},
    exchange::THROTTLED,
    face::{Caller, Face},
    reply::{Reply, unknown_field},
};
use crate::{bridge::BridgeRefusal, managers::ManagerInstance};

pub(crate) const PATH: &str = "/manager-instances";

const CAPABILITY_WRONG: &str = "missing/invalid exchange capability - the manager instance list requires the operator exchange capability on this face";
const WHAT: &str = "the manager instance list";
const NEEDS: &str = "the manager instance list needs { idpToken: string, actor: string }";
/// Version of the answer.
const VERSION: u64 = 1;

/// What the route reads; closed.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "documents the request; the handler reads members in the contract's order of checks"
)]
pub(crate) struct ManagerInstancesRequestBody {
    /// The IdP's JWT; an `Authorization` header never takes its place.
    #[schema(min_length = 1)]
    pub idp_token: String,
    /// The interactive actor, whose grant is read.
    #[schema(min_length = 1)]
    pub actor: String,
}

/// The instances, in the order of their ids.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ManagerInstancesBody {
    /// 1.
    pub v: u64,
    /// At most a thousand.
    #[schema(max_items = 1000)]
    pub instances: Vec<ManagerInstance>,
}

/// Every way in which there is no list.
#[derive(Debug)]
enum ListRefusal {
    /// The loopback capability is wrong.
    BadCapability,
    /// The request says something impossible; costs nothing.
    BadRequest(String),
    /// The proof or the grant refused; spends the refusal budget.
    Refused(BridgeRefusal),
    /// Nobody could look; costs nothing, for the proof was good.
    Unavailable(EpError),
}

impl ListRefusal {
    fn reply(self, throttled: bool) -> Reply {
        match self {
            Self::BadCapability => Reply::error(StatusCode::UNAUTHORIZED, CAPABILITY_WRONG),
            Self::BadRequest(sentence) => Reply::error(StatusCode::BAD_REQUEST, &sentence),
            Self::Refused(_) if throttled => Reply::error(StatusCode::TOO_MANY_REQUESTS, THROTTLED),
            Self::Refused(refusal) => Reply::error(StatusCode::UNAUTHORIZED, &refusal.0),
            Self::Unavailable(error) => Reply::error(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("the manager instance list is unavailable: {}", error.message),
            ),
        }
    }
}

/// Serves the route once its guards have passed: capability, throttle evaluation, body, proof and grant, list.
#[utoipa::path(post, path = PATH, operation_id = "managerInstances", tag = "both faces",
    request_body = ManagerInstancesRequestBody,
    security((), ("capability" = [])),
    responses(
        (status = 200, description = "The owner's own manager instances and the host's, each with its state.", body = ManagerInstancesBody),
        (status = 400, description = "The body is not exactly what it must be, or is not JSON.", body = super::reply::ErrorBody),
        (status = 401, description = "The proof or the grant was refused; on loopback also a wrong capability.", body = super::reply::ErrorBody),
        (status = 403, description = "A browser origin.", body = super::reply::ErrorBody),
        (status = 404, description = "Another request target: a query string, for one.", body = super::reply::ErrorBody),
        (status = 405, description = "Not a POST.", body = super::reply::ErrorBody),
        (status = 413, description = "More than 65536 bytes.", body = super::reply::ErrorBody),
        (status = 415, description = "Not application/json.", body = super::reply::ErrorBody),
        (status = 429, description = "Too many refusals.", body = super::reply::ErrorBody),
        (status = 500, description = "Generic.", body = super::reply::ErrorBody),
        (status = 503, description = "The list cannot be made; on the public face also the admission cap or the deadline.", body = super::reply::ErrorBody),
    ))]
pub(crate) async fn serve<B>(face: &Face, caller: &Caller, parts: &Parts, body: &mut B) -> Reply
where
    B: Body<Data = Bytes> + Unpin,
{
    if !face.has_capability(parts) {
        tracing::warn!(face = face.name(), peer = %caller.peer, "manager instances refused: wrong capability");
        return ListRefusal::BadCapability.reply(false);
    }
    // Evaluated before the body, enforced only on a refusal: a good proof is always served.
    let throttled = face.is_throttled(caller);
    let body = match body::read_json(body, BODY_MAX).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into(),
    };
    match list(face, &body).await {
        Ok(instances) => Reply::json(StatusCode::OK, &ManagerInstancesBody { v: VERSION, instances }),
        Err(refusal) => {
            tracing::info!(face = face.name(), peer = %caller.peer, throttled, ?refusal, "manager instances refused");
            if matches!(refusal, ListRefusal::Refused(_)) {
                face.record_refusal(caller);
            }
            refusal.reply(throttled)
        }
    }
}

async fn list(face: &Face, body: &Value) -> Result<Vec<ManagerInstance>, ListRefusal> {
    let (idp_token, actor) = read(body).map_err(ListRefusal::BadRequest)?;
    let exchange = &face.service().exchange;
    let proved = exchange.bridge.prove(idp_token, actor).await.map_err(ListRefusal::Refused)?;
    exchange.managers.instances(&proved.grant().owner).await.map_err(ListRefusal::Unavailable)
}

/// An object, no unknown member, two non-empty strings: in this order.
fn read(body: &Value) -> Result<(&str, &str), String> {
    let members = body.as_object().ok_or(NEEDS)?;
    if let Some(unknown) = members.keys().find(|key| !matches!(key.as_str(), "idpToken" | "actor")) {
        return Err(unknown_field(WHAT, unknown));
    }
    let text = |name: &str| members.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    Ok((text("idpToken").ok_or(NEEDS)?, text("actor").ok_or(NEEDS)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_is_exactly_a_proof_and_an_actor() {
        assert_eq!(read(&json!({"idpToken": "t", "actor": "cli"})), Ok(("t", "cli")));
        for bad in [
            json!(null),
            json!([]),
            json!({}),
            json!({"idpToken": "t"}),
            json!({"actor": "cli"}),
            json!({"idpToken": "", "actor": "cli"}),
            json!({"idpToken": "t", "actor": ""}),
            json!({"idpToken": 1, "actor": "cli"}),
            json!({"idpToken": "t", "actor": null}),
        ] {
            assert_eq!(read(&bad), Err(NEEDS.to_owned()), "{bad}");
        }
        let unknown = read(&json!({"owner": "u_x"})).unwrap_err();
        assert_eq!(
            unknown, "the manager instance list carries the unknown field \"owner\"",
            "before what is missing"
        );
    }
}
