//! `POST /managed-lifecycle/activate`: a separate host activates one exact lifecycle (contract 05 §7.3).

use std::sync::Arc;

use bytes::Bytes;
use cotal_authority::activation::ActivationFailure;
use cotal_wire::{Account, EpError, Nkey};
use http::{StatusCode, request::Parts};
use hyper::body::Body;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    super::{loopback::Loopback, reply::Reply},
    Door, DoorErrorBody, Doors, INTERNAL_SENTENCE, NOT_EXECUTED, Named, UNKNOWN, Unread, refused,
    sentence_of, status_of,
};

pub(crate) const PATH: &str = "/managed-lifecycle/activate";

const DOOR: Door = Door {
    what: "managed lifecycle activation",
    whose: "loopback host action",
    members: &["accountPublicKey", "owner", "actor", "lifecycleUid"],
};

/// The account is identifier enough of its authority, so the sentence names neither.
const OTHER_ACCOUNT: &str = "managed lifecycle activation: accountPublicKey is not the data account that this service is \
     assigned; ask the service of that account";

/// Which incarnation to activate, and by which account's authority; closed.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "documents the request")]
pub(crate) struct ManagedActivateRequest {
    /// The data account whose authority this must be, `A…`.
    #[schema(pattern = "^A[A-Z2-7]{55}$")]
    pub account_public_key: String,
    /// The owner, `u_…`.
    #[schema(pattern = "^u_[a-z2-7]{26}$")]
    pub owner: String,
    /// The actor.
    #[schema(pattern = "^[A-Za-z0-9_]+$")]
    pub actor: String,
    /// The incarnation.
    #[schema(pattern = "^[a-z0-9]{26,32}$")]
    pub lifecycle_uid: String,
}

/// Its head is active at this incarnation, and its gate is open.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ActivatedBody<'a> {
    /// As asked.
    pub account_public_key: &'a str,
    /// As asked.
    pub owner: &'a str,
    /// As asked.
    pub actor: &'a str,
    /// As asked.
    pub lifecycle_uid: &'a str,
    /// `true`.
    pub activated: bool,
}

/// A native failure after dispatch; a request that was refused before has `error`, and `outcome` once it was read.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ActivationErrorBody<'a> {
    /// One sentence for a person; clients must not match on it.
    pub error: &'a str,
    /// The native code, after dispatch.
    #[schema(required = false)]
    pub code: &'a str,
    /// Objects, each with a `kind`.
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub details: &'a [Value],
    /// `not-executed` or `unknown`.
    #[schema(required = false)]
    pub outcome: &'a str,
}

/// Every way in which this door activates nothing, or cannot say.
enum Refusal {
    /// The request was not read.
    Unread(Unread),
    /// It names another account's authority.
    OtherAccount,
    /// The plane refused or failed.
    Failed(ActivationFailure),
    /// The activation's task died.
    BrokeOff,
}

impl Refusal {
    /// The one place where a refusal becomes a status and a body.
    fn reply(self) -> Reply {
        match self {
            // Guards are no parser: their answers are the ones that every route shares.
            Self::Unread(unread @ (Unread::Guard(_) | Unread::Capability)) => DOOR.unread(unread, None),
            Self::Unread(unread) => DOOR.unread(unread, Some(NOT_EXECUTED)),
            Self::OtherAccount => refused(StatusCode::FORBIDDEN, OTHER_ACCOUNT, Some(NOT_EXECUTED)),
            Self::Failed(ActivationFailure { error, began }) => {
                native(&error, if began { UNKNOWN } else { NOT_EXECUTED })
            }
            Self::BrokeOff => refused(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL_SENTENCE, Some(UNKNOWN)),
        }
    }
}

fn native(error: &EpError, outcome: &'static str) -> Reply {
    let body = ActivationErrorBody {
        error: sentence_of(error),
        code: error.code.as_str(),
        details: &error.details,
        outcome,
    };
    Reply::json(status_of(error.code), &body)
}

/// Serves the route.
#[utoipa::path(post, path = PATH, operation_id = "activateManagedLifecycle", tag = "loopback face",
    request_body = ManagedActivateRequest,
    security(("capability" = [])),
    responses(
        (status = 200, description = "Active at this incarnation, gate open.", body = ActivatedBody),
        (status = 400, description = "The body is not JSON, not closed, or a member is outside its grammar.", body = DoorErrorBody),
        (status = 401, description = "Wrong capability.", body = DoorErrorBody),
        (status = 403, description = "A browser origin, another data account, or authority refused.", body = ActivationErrorBody),
        (status = 404, description = "The public face has no such path; or another request target.", body = DoorErrorBody),
        (status = 405, description = "Not a POST.", body = DoorErrorBody),
        (status = 409, description = "The alias is active as another incarnation, or a race was lost.", body = ActivationErrorBody),
        (status = 412, description = "The state does not admit the activation.", body = ActivationErrorBody),
        (status = 413, description = "More than 65536 bytes.", body = DoorErrorBody),
        (status = 415, description = "Not application/json.", body = DoorErrorBody),
        (status = 500, description = "Generic, with its outcome.", body = ActivationErrorBody),
        (status = 503, description = "The plane is closed, or a write is ambiguous; ask again.", body = ActivationErrorBody),
    ))]
pub(crate) async fn serve<B>(doors: &Doors, loopback: &Loopback, parts: &Parts, body: &mut B) -> Reply
where
    B: Body<Data = Bytes> + Unpin,
{
    match activate(doors, loopback, parts, body).await {
        Ok((account, named)) => Reply::json(
            StatusCode::OK,
            &ActivatedBody {
                account_public_key: account.as_str(),
                owner: named.owner.as_str(),
                actor: named.actor.as_str(),
                lifecycle_uid: named.uid.as_str(),
                activated: true,
            },
        ),
        Err(refusal) => {
            if let Refusal::Failed(ActivationFailure { error, began }) = &refusal {
                tracing::warn!(%error, began, "managed lifecycle activation failed");
            }
            refusal.reply()
        }
    }
}

async fn activate<B>(
    doors: &Doors,
    loopback: &Loopback,
    parts: &Parts,
    body: &mut B,
) -> Result<(Nkey<Account>, Named), Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let members = DOOR.read(loopback, parts, body).await.map_err(Refusal::Unread)?;
    let account: Nkey<Account> = members.token("accountPublicKey").map_err(Refusal::Unread)?;
    let named = members.named().map_err(Refusal::Unread)?;
    if account != doors.data_account {
        return Err(Refusal::OtherAccount);
    }
    let plane = Arc::clone(&doors.plane);
    let (principal, uid) = (named.principal(), named.uid.clone());
    // In a task of its own, so that one that dies is answered as a failure that nobody can judge.
    let activation = tokio::spawn(async move { plane.activate_managed(&principal, &uid).await });
    match activation.await {
        Ok(Ok(())) => Ok((account, named)),
        Ok(Err(failure)) => Err(Refusal::Failed(failure)),
        Err(error) => {
            tracing::error!(%error, "managed lifecycle activation did not run to its end");
            Err(Refusal::BrokeOff)
        }
    }
}
