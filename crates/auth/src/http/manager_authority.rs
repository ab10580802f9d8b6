//! `POST /manager-service-authority`: a machine without any signing key asks for what a manager needs, and the service
//! decides it (contract 05 §3.5, 06 §2).
//!
//! The route proves who asks, reads the row of the actor that the request names, and hands both to the dispatcher. It knows
//! no kind: what a request stands on, and what it may have, is decided behind [`AnswerManagers`](crate::manager::AnswerManagers).

use std::sync::Arc;

use bytes::Bytes;
use cotal_authority::manager::Holder;
use cotal_wire::{Actor, EpCode, EpError, es_value::EsValue};
use http::{HeaderValue, StatusCode, header, request::Parts};
use hyper::body::Body;
use utoipa::ToSchema;

use super::{
    body::{self, BODY_MAX},
    exchange::THROTTLED,
    face::{Caller, Face},
    reply::Reply,
};
use crate::{
    bridge::{BridgeHooks, BridgeRefusal},
    manager::{Answer, Busy, NoAnswer},
    openapi::manager::{ManagerRequest, ManagerResult},
};

pub(crate) const PATH: &str = cotal_wire::manager_authority::ROUTE;

const CAPABILITY_WRONG: &str = "missing/invalid exchange capability - manager-service authority requires the operator exchange capability on this face";
const NEEDS: &str = "manager-service authority needs { idpToken, request }";
const REQUEST_OBJECT: &str = "manager-service authority request must be an object";
const REQUEST_ACTOR: &str = "manager-service authority request requires an actor";
/// What a caller is told of a fault: its sentence names stores, keys and connections, and is for the log.
const FAULT: &str = "the authority of this space could not decide the request; its operator's log says why";
const UNAVAILABLE: &str = "the authority of this space is momentarily unavailable; retry";

/// Every way in which a request ends without a result.
#[derive(Debug)]
enum Refusal {
    /// The loopback capability is wrong.
    BadCapability,
    /// There is no proof to look at; costs nothing.
    NoProof,
    /// The proof, the request's shape or the grant was refused.
    Refused(String),
    /// The dispatcher refused.
    Native(EpError),
    /// Too much is asked at once: nobody's fault.
    Busy(Busy),
}

impl From<NoAnswer> for Refusal {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Refused(refusal) => Self::Native(refusal),
            NoAnswer::Busy(busy) => Self::Busy(busy),
        }
    }
}

impl From<BridgeRefusal> for Refusal {
    fn from(refusal: BridgeRefusal) -> Self {
        Self::Refused(refusal.0)
    }
}

impl Refusal {
    /// Whether it spends the face's or peer's refusal budget. What spends it is also what a full budget masks.
    fn is_counted(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Native(_))
    }

    /// The one place where a refusal becomes a status and a sentence (contract 05 §3.5 step 5).
    fn reply(&self, throttled: bool) -> Reply {
        if throttled && self.is_counted() {
            return Reply::error(StatusCode::TOO_MANY_REQUESTS, THROTTLED);
        }
        match self {
            Self::BadCapability => Reply::error(StatusCode::UNAUTHORIZED, CAPABILITY_WRONG),
            Self::NoProof => Reply::error(StatusCode::BAD_REQUEST, NEEDS),
            Self::Refused(reason) => Reply::error(StatusCode::FORBIDDEN, reason),
            Self::Native(error) if error.code == EpCode::Conflict => {
                Reply::error(StatusCode::CONFLICT, &error.message)
            }
            Self::Native(error) => Reply::error(StatusCode::FORBIDDEN, sentence_of(error)),
            Self::Busy(Busy { why, retry_after_secs }) => Reply::error(StatusCode::SERVICE_UNAVAILABLE, why)
                .with(header::RETRY_AFTER, HeaderValue::from(*retry_after_secs)),
        }
    }
}

/// What a manager may read of a native refusal.
pub(super) fn sentence_of(error: &EpError) -> &str {
    match error.code {
        EpCode::Internal => FAULT,
        EpCode::Unavailable => UNAVAILABLE,
        _ => &error.message,
    }
}

/// Who asks, and what; other members are ignored, and an `Authorization` header never stands for the proof.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "documents the request; the handler reads members in the contract's order of checks"
)]
pub(crate) struct ManagerAuthorityRequestBody {
    /// The IdP's JWT of the person whose manager this is: the owner is derived from it.
    #[schema(min_length = 1)]
    pub idp_token: String,
    /// What is asked; its kind decides its members.
    pub request: ManagerRequest,
}

/// Serves the route once its guards have passed: capability, throttle evaluation, body, proof, grant, dispatch.
#[utoipa::path(post, path = PATH, operation_id = "managerServiceAuthority", tag = "both faces",
    request_body = ManagerAuthorityRequestBody,
    security((), ("capability" = [])),
    responses(
        (status = 200, description = "The result of the request's kind.", body = ManagerResult),
        (status = 400, description = "No proof, or no JSON. Not counted.", body = super::reply::ErrorBody),
        (status = 401, description = "Loopback face: wrong capability.", body = super::reply::ErrorBody),
        (status = 403, description = "A browser origin; or the proof, the grant or the request was refused.", body = super::reply::ErrorBody),
        (status = 404, description = "Another request target: a query string, for one.", body = super::reply::ErrorBody),
        (status = 405, description = "Not a POST.", body = super::reply::ErrorBody),
        (status = 409, description = "A native conflict: a name that another lifecycle holds, or a stale epoch.", body = super::reply::ErrorBody),
        (status = 413, description = "More than 65536 bytes.", body = super::reply::ErrorBody),
        (status = 415, description = "Not application/json.", body = super::reply::ErrorBody),
        (status = 429, description = "In the place of a 403 or 409, once the refusal budget is full.", body = super::reply::ErrorBody),
        (status = 500, description = "Generic.", body = super::reply::ErrorBody),
        (status = 503, description = "Too many managers renew at once, or the public face's admission cap (both with `Retry-After`); or its deadline.", body = super::reply::ErrorBody),
    ))]
pub(crate) async fn serve<B>(face: &Face, caller: &Caller, parts: &Parts, body: &mut B) -> Reply
where
    B: Body<Data = Bytes> + Unpin,
{
    if !face.has_capability(parts) {
        // Unlike the exchange's, it goes to no window.
        tracing::warn!(face = face.name(), peer = %caller.peer, "manager authority refused: wrong capability");
        return Refusal::BadCapability.reply(false);
    }
    // Evaluated before the body and the proof, enforced only on a refusal: a valid request is always served.
    let throttled = face.is_throttled(caller);
    let body: EsValue = match body::read_json(body, BODY_MAX).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into(),
    };
    match decide(face, &body).await {
        Ok(result) => Reply::json(StatusCode::OK, &result),
        Err(refusal) => {
            tracing::info!(face = face.name(), peer = %caller.peer, throttled, ?refusal, "manager authority refused");
            if refusal.is_counted() {
                face.record_refusal(caller);
            }
            refusal.reply(throttled)
        }
    }
}

/// Steps 7 to 11 of contract 06 §2.
async fn decide(face: &Face, body: &EsValue) -> Result<Answer, Refusal> {
    let member = |name: &str| body.as_object().and_then(|body| body.get(name));
    let idp_token = member("idpToken")
        .and_then(EsValue::as_text)
        .filter(|token| !token.is_empty())
        .ok_or(Refusal::NoProof)?;
    let service = face.service();
    let owner = service.exchange.bridge.identify(idp_token).await?;

    let refused = |sentence: &str| Refusal::Refused(sentence.to_owned());
    let request = member("request").filter(|request| request.as_object().is_some());
    let request = request.ok_or_else(|| refused(REQUEST_OBJECT))?;
    let actor = actor_of(request).ok_or_else(|| refused(REQUEST_ACTOR))?;
    let actor = Actor::parse(actor).map_err(|error| Refusal::Refused(error.to_string()))?;
    let grant = service.exchange.authority.authorize_actor(&owner, &actor).await?;

    // Held to the end: neither a client that goes away nor a close cuts what was begun.
    let _entered = Arc::clone(&service.entered)
        .try_read_owned()
        .map_err(|_| Refusal::Native(EpError::unavailable("the auth service context is closing")))?;
    let holder = Holder::Human { owner: owner.into(), scope: grant.scope };
    service.manager.dispatch(&holder, request).await.map_err(Refusal::from)
}

/// The actor that a request names, as text.
pub(super) fn actor_of(request: &EsValue) -> Option<&str> {
    request.as_object()?.get("actor")?.as_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_that_would_wait_too_long_is_a_busy_service_and_counts_against_nobody() {
        let busy = Refusal::from(NoAnswer::Busy(Busy { why: "many managers renew", retry_after_secs: 3 }));
        assert!(!busy.is_counted());
        let reply = busy.reply(true);
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(reply.into_response(|body| body).headers()[header::RETRY_AFTER], "3");
        let unavailable = Refusal::from(NoAnswer::Refused(EpError::unavailable("a store does not answer")));
        assert!(unavailable.is_counted());
        assert_eq!(unavailable.reply(false).status, StatusCode::FORBIDDEN);
    }
}
