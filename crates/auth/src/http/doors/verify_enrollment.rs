//! `POST /manager-service-authority/verify-enrollment`: a platform that keeps managed agents in its own storage has a request
//! about one decided here, and acts itself (contract 05 §7.4, 06 §14.1). Nothing is written.

use bytes::Bytes;
use cotal_authority::manager::Holder;
use cotal_wire::{
    Actor, DerivedOwner, EpCode, EpError,
    es_value::EsValue,
    manager_authority::{Incarnation, Kind},
};
use http::{StatusCode, request::Parts};
use hyper::body::Body;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    super::{
        loopback::Loopback,
        manager_authority::{actor_of, sentence_of},
        reply::Reply,
    },
    Door, Doors, Unread, open,
};
use crate::{
    bridge::{BridgeHooks, BridgeRefusal},
    manager::VerifiedAgent,
    openapi::manager::ManagedAgentRequest,
};

pub(crate) const PATH: &str = "/manager-service-authority/verify-enrollment";

const DOOR: Door = Door {
    what: "managed agent enrollment verification",
    whose: "loopback host action",
    members: &["owner", "request"],
};

const TYPES: &str = "managed agent enrollment verification needs a string owner and an object request";
const KIND: &str = "managed agent enrollment verification takes the four kinds about managed agents alone: enrollment, prepare-retirement, runtime-create and runtime-status";
const ACTOR: &str = "managed agent enrollment verification request requires an actor";

/// Whose manager asks, and what; closed.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "documents the request")]
pub(crate) struct VerifyEnrollmentRequest {
    /// The owner that the host authenticated, `u_…`.
    #[schema(pattern = "^u_[a-z2-7]{26}$")]
    pub owner: String,
    /// The manager's request, as it came to the host.
    pub request: ManagedAgentRequest,
}

/// What the request may do. `actor` is the agent of an enrollment or a preparation, and the manager's own interactive actor
/// for a hosted runtime.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VerifiedEnrollmentBody<'a> {
    /// `true`.
    pub authorized: bool,
    /// As asked.
    pub owner: &'a str,
    /// See above.
    pub actor: &'a str,
    /// The manager's instance.
    pub instance_id: &'a str,
    /// The manager's epoch; of an enrollment or a preparation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serve_epoch: Option<u64>,
    /// The agent; of a hosted runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub target: Option<&'a Incarnation>,
}

/// Every way in which this door says no.
enum Refusal {
    /// The request was not read.
    Unread(Unread),
    /// It says something impossible.
    BadRequest(String),
    /// The ledger has no such grant, or cannot be read.
    NotGranted(String),
    /// The decision refused.
    Native(EpError),
}

impl From<BridgeRefusal> for Refusal {
    fn from(refusal: BridgeRefusal) -> Self {
        Self::NotGranted(refusal.0)
    }
}

impl Refusal {
    /// The one place where a refusal becomes a status and a sentence: this door's own map (contract 05 §7.4).
    fn reply(self) -> Reply {
        match self {
            Self::Unread(unread) => DOOR.unread(unread, None),
            Self::BadRequest(sentence) => Reply::error(StatusCode::BAD_REQUEST, &sentence),
            Self::NotGranted(sentence) => Reply::error(StatusCode::FORBIDDEN, &sentence),
            Self::Native(error) => Reply::error(status_of(error.code), sentence_of(&error)),
        }
    }
}

fn status_of(code: EpCode) -> StatusCode {
    match code {
        EpCode::Unauthenticated => StatusCode::UNAUTHORIZED,
        EpCode::Conflict => StatusCode::CONFLICT,
        EpCode::FailedPrecondition => StatusCode::PRECONDITION_FAILED,
        EpCode::BadRequest => StatusCode::BAD_REQUEST,
        _ => StatusCode::FORBIDDEN,
    }
}

/// Serves the route.
#[utoipa::path(post, path = PATH, operation_id = "verifyManagedAgentEnrollment", tag = "loopback face",
    request_body = VerifyEnrollmentRequest,
    security(("capability" = [])),
    responses(
        (status = 200, description = "The manager may ask for this.", body = VerifiedEnrollmentBody),
        (status = 400, description = "The body is not JSON, not closed, or the request is outside its schema.", body = super::super::reply::ErrorBody),
        (status = 401, description = "Wrong capability.", body = super::super::reply::ErrorBody),
        (status = 403, description = "A browser origin; or the grant, the scope, the owner or the proof was refused.", body = super::super::reply::ErrorBody),
        (status = 404, description = "The public face has no such path; or another request target.", body = super::super::reply::ErrorBody),
        (status = 405, description = "Not a POST.", body = super::super::reply::ErrorBody),
        (status = 409, description = "A stale epoch.", body = super::super::reply::ErrorBody),
        (status = 412, description = "The manager's registration is not open.", body = super::super::reply::ErrorBody),
        (status = 413, description = "More than 65536 bytes.", body = super::super::reply::ErrorBody),
        (status = 415, description = "Not application/json.", body = super::super::reply::ErrorBody),
        (status = 500, description = "Generic.", body = super::super::reply::ErrorBody),
    ))]
pub(crate) async fn serve<B>(doors: &Doors, loopback: &Loopback, parts: &Parts, body: &mut B) -> Reply
where
    B: Body<Data = Bytes> + Unpin,
{
    match verify(doors, loopback, parts, body).await {
        Ok((owner, verified)) => Reply::json(StatusCode::OK, &answer(&owner, &verified)),
        Err(refusal) => {
            if let Refusal::Native(error) = &refusal {
                tracing::info!(%error, "managed agent enrollment verification refused");
            }
            refusal.reply()
        }
    }
}

fn answer<'a>(owner: &'a DerivedOwner, verified: &'a VerifiedAgent) -> VerifiedEnrollmentBody<'a> {
    let (actor, instance, serve_epoch, target) = match verified {
        VerifiedAgent::Grant { actor, instance, serve_epoch } => (actor, instance, Some(*serve_epoch), None),
        VerifiedAgent::Runtime { instance, actor, target } => (actor, instance, None, Some(target)),
    };
    VerifiedEnrollmentBody {
        authorized: true,
        owner: owner.as_str(),
        actor: actor.as_str(),
        instance_id: instance.as_str(),
        serve_epoch,
        target,
    }
}

async fn verify<B>(
    doors: &Doors,
    loopback: &Loopback,
    parts: &Parts,
    body: &mut B,
) -> Result<(DerivedOwner, VerifiedAgent), Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let body: EsValue = open(loopback, parts, body).await.map_err(Refusal::Unread)?;
    let bad = |sentence: &str| Refusal::BadRequest(sentence.to_owned());
    let members = body.as_object().ok_or(Refusal::Unread(Unread::NotAnObject))?;
    if let Some(unknown) = members.first_unknown(|key| DOOR.members.contains(&key)) {
        return Err(Refusal::Unread(Unread::Unknown(unknown)));
    }
    let owner = members.get("owner").and_then(EsValue::as_text).ok_or_else(|| bad(TYPES))?;
    let request = members.get("request").filter(|request| request.as_object().is_some());
    let request = request.ok_or_else(|| bad(TYPES))?;
    let kind = managed_agent_kind(request).ok_or_else(|| bad(KIND))?;
    let actor = actor_of(request).ok_or_else(|| bad(ACTOR))?;

    let owner = DerivedOwner::parse(owner).map_err(|error| Refusal::Unread(Unread::Token("owner", error)))?;
    // A name that nobody can have is answered as one that nobody has.
    let actor = Actor::parse(actor).map_err(|error| Refusal::NotGranted(error.to_string()))?;
    let grant = doors.grants.authorize_actor(&owner, &actor).await?;
    let holder = Holder::Human { owner: (&owner).into(), scope: grant.scope };
    let verified = doors.manager.verify_agent(&holder, kind, request).await.map_err(Refusal::Native)?;
    Ok((owner, verified))
}

/// The kind that a request names, when it is one of the four about managed agents.
fn managed_agent_kind(request: &EsValue) -> Option<Kind> {
    Kind::from_name(request.as_object()?.get("kind")?.as_text()?).filter(|kind| kind.is_of_managed_agent())
}
