//! `POST /managed-lifecycle/retire`: finishes a managed agent's retirement when its manager is gone
//! (contract 05 §7.2, 08 §6).

use bytes::Bytes;
use cotal_authority::retirement::{Retirement, RetirementFailure};
use cotal_ledger::Ledger;
use cotal_wire::{EpCode, EpError, LifecycleUid};
use http::{StatusCode, request::Parts};
use hyper::body::Body;
use utoipa::ToSchema;

use super::{
    super::{loopback::Loopback, reply::Reply},
    Door, Doors, Named, RetirementBody, Unread, refused,
};

pub(crate) const PATH: &str = cotal_wire::routes::RETIRE_MANAGED;

const DOOR: Door = Door {
    what: "managed lifecycle retirement",
    whose: "loopback host action",
    members: &["owner", "actor", "lifecycleUid"],
};

/// Which incarnation to retire; closed.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "documents the request")]
pub(crate) struct ManagedRetireRequest {
    /// The owner, `u_…`.
    #[schema(pattern = "^u_[a-z2-7]{26}$")]
    pub owner: String,
    /// The actor.
    #[schema(pattern = "^[A-Za-z0-9_]+$")]
    pub actor: String,
    /// The incarnation; its managed grant must be revoked already.
    #[schema(pattern = "^[a-z0-9]{26,32}$")]
    pub lifecycle_uid: String,
}

/// Every way in which this door retires nothing, or cannot say.
enum Refusal {
    /// The request was not read.
    Unread(Unread),
    /// The managed grant still stands at this incarnation.
    StillGranted(Named),
    /// The ledger cannot be read.
    Unreadable,
    /// The plane refused or failed.
    Failed(EpError),
}

impl Refusal {
    /// The one place where a refusal becomes a status and a sentence: of native codes only `conflict` has its own.
    fn reply(self) -> Reply {
        match self {
            Self::Unread(unread) => DOOR.unread(unread, None),
            Self::StillGranted(Named { owner, actor, uid }) => refused(
                StatusCode::CONFLICT,
                &format!(
                    "managed actor \"{owner}/{actor}\" is still granted at lifecycle {uid}; revoke the grant first"
                ),
                None,
            ),
            Self::Failed(error) if error.code == EpCode::Conflict => {
                refused(StatusCode::CONFLICT, &error.message, None)
            }
            Self::Unreadable | Self::Failed(_) => Reply::internal(),
        }
    }
}

/// Serves the route.
#[utoipa::path(post, path = PATH, operation_id = "retireManagedLifecycle", tag = "loopback face",
    request_body = ManagedRetireRequest,
    security(("capability" = [])),
    responses(
        (status = 200, description = "Retired, retired before, or never started.", body = RetirementBody),
        (status = 400, description = "The body is not JSON, not closed, or a member is outside its grammar.", body = super::super::reply::ErrorBody),
        (status = 401, description = "Wrong capability.", body = super::super::reply::ErrorBody),
        (status = 403, description = "A browser origin.", body = super::super::reply::ErrorBody),
        (status = 404, description = "The public face has no such path; or another request target.", body = super::super::reply::ErrorBody),
        (status = 405, description = "Not a POST.", body = super::super::reply::ErrorBody),
        (status = 409, description = "Still granted at this incarnation, or the alias stands at another one.", body = super::super::reply::ErrorBody),
        (status = 413, description = "More than 65536 bytes.", body = super::super::reply::ErrorBody),
        (status = 415, description = "Not application/json.", body = super::super::reply::ErrorBody),
        (status = 500, description = "Every other failure; the service's log says which. Ask again to resume.", body = super::super::reply::ErrorBody),
    ))]
pub(crate) async fn serve<B>(doors: &Doors, loopback: &Loopback, parts: &Parts, body: &mut B) -> Reply
where
    B: Body<Data = Bytes> + Unpin,
{
    match retire(doors, loopback, parts, body).await {
        Ok((uid, retirement)) => Reply::json(StatusCode::OK, &RetirementBody::of(&retirement, &uid)),
        Err(refusal) => {
            if let Refusal::Failed(error) = &refusal {
                tracing::warn!(%error, "managed lifecycle retirement failed");
            }
            refusal.reply()
        }
    }
}

async fn retire<B>(
    doors: &Doors,
    loopback: &Loopback,
    parts: &Parts,
    body: &mut B,
) -> Result<(LifecycleUid, Retirement), Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let members = DOOR.read(loopback, parts, body).await.map_err(Refusal::Unread)?;
    let named = members.named().map_err(Refusal::Unread)?;
    doors.plane.check_open().map_err(Refusal::Failed)?;
    let row = doors.row(&named, Ledger::read_managed).await.map_err(|_| Refusal::Unreadable)?;
    if row.is_some_and(|row| row.lifecycle_uid.as_deref() == Some(named.uid.as_str())) {
        return Err(Refusal::StillGranted(named));
    }
    let retired = doors.plane.retire_managed(&named.principal(), &named.uid).await;
    let retirement = retired.map_err(|RetirementFailure { error, .. }| Refusal::Failed(error))?;
    Ok((named.uid, retirement))
}
