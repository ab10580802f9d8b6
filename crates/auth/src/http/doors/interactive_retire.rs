//! `POST /interactive-lifecycle/retire`: what `cotal actor grant` and `revoke` end an incarnation with
//! (contract 05 §7.1).

use bytes::Bytes;
use cotal_authority::retirement::{Retirement, RetirementFailure};
use cotal_ledger::Ledger;
use http::{StatusCode, request::Parts};
use hyper::body::Body;
use utoipa::ToSchema;

use super::{
    super::{loopback::Loopback, reply::Reply},
    Door, DoorErrorBody, Doors, INTERNAL_SENTENCE, NOT_EXECUTED, Named, RetirementBody, Unread, refused,
    sentence_of, status_of,
};

pub(crate) const PATH: &str = cotal_wire::routes::RETIRE_INTERACTIVE;

const DOOR: Door = Door {
    what: "interactive lifecycle retirement",
    whose: "loopback operator action",
    members: &["owner", "actor", "lifecycleUid"],
};

/// How the row prints an incarnation that it does not name.
const MISSING: &str = "<missing>";

/// Which incarnation to retire; closed.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "documents the request")]
pub(crate) struct InteractiveRetireRequest {
    /// The owner, `u_…`.
    #[schema(pattern = "^u_[a-z2-7]{26}$")]
    pub owner: String,
    /// The actor.
    #[schema(pattern = "^[A-Za-z0-9_]+$")]
    pub actor: String,
    /// The incarnation that the interactive row names.
    #[schema(pattern = "^[a-z0-9]{26,32}$")]
    pub lifecycle_uid: String,
}

/// Every way in which this door retires nothing, or cannot say.
enum Refusal {
    /// The request was not read.
    Unread(Unread),
    /// There is no interactive row.
    NotGranted(Named),
    /// The row names another incarnation, or none.
    GrantedAt(Named, Option<String>),
    /// The ledger cannot be read.
    Unreadable,
    /// The plane refused or failed.
    Failed(RetirementFailure),
}

impl Refusal {
    /// The one place where a refusal becomes a status and a sentence. What was refused before the barrier says so;
    /// what may follow a barrier that had begun says nothing.
    fn reply(self) -> Reply {
        let before = Some(NOT_EXECUTED);
        match self {
            Self::Unread(unread) => DOOR.unread(unread, before),
            Self::NotGranted(Named { owner, actor, .. }) => refused(
                StatusCode::NOT_FOUND,
                &format!("interactive actor \"{owner}/{actor}\" is not granted"),
                before,
            ),
            Self::GrantedAt(Named { owner, actor, uid }, at) => refused(
                StatusCode::CONFLICT,
                &format!(
                    "interactive actor \"{owner}/{actor}\" is granted at lifecycle {}, not at {uid}",
                    at.as_deref().unwrap_or(MISSING)
                ),
                before,
            ),
            Self::Unreadable => refused(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL_SENTENCE, before),
            Self::Failed(RetirementFailure { error, began }) => {
                refused(status_of(error.code), sentence_of(&error), if began { None } else { before })
            }
        }
    }
}

/// Serves the route.
#[utoipa::path(post, path = PATH, operation_id = "retireInteractiveLifecycle", tag = "loopback face",
    request_body = InteractiveRetireRequest,
    security(("capability" = [])),
    responses(
        (status = 200, description = "Retired, retired before, or never started.", body = RetirementBody),
        (status = 400, description = "The body is not JSON, not closed, or a member is outside its grammar.", body = DoorErrorBody),
        (status = 401, description = "Wrong capability.", body = DoorErrorBody),
        (status = 403, description = "A browser origin, or authority refused.", body = DoorErrorBody),
        (status = 404, description = "No interactive grant; or the public face, which has no such path; or another request target.", body = DoorErrorBody),
        (status = 405, description = "Not a POST.", body = DoorErrorBody),
        (status = 409, description = "The grant or the alias stands at another incarnation.", body = DoorErrorBody),
        (status = 412, description = "The state does not admit the retirement.", body = DoorErrorBody),
        (status = 413, description = "More than 65536 bytes.", body = DoorErrorBody),
        (status = 415, description = "Not application/json.", body = DoorErrorBody),
        (status = 500, description = "Generic. With `outcome: not-executed`, nothing was moved.", body = DoorErrorBody),
        (status = 503, description = "The plane is closed, or a barrier could not prove its end; retry.", body = DoorErrorBody),
    ))]
pub(crate) async fn serve<B>(doors: &Doors, loopback: &Loopback, parts: &Parts, body: &mut B) -> Reply
where
    B: Body<Data = Bytes> + Unpin,
{
    match retire(doors, loopback, parts, body).await {
        Ok((uid, retirement)) => Reply::json(StatusCode::OK, &RetirementBody::of(&retirement, &uid)),
        Err(refusal) => {
            if let Refusal::Failed(RetirementFailure { error, began }) = &refusal {
                tracing::warn!(%error, began, "interactive lifecycle retirement failed");
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
) -> Result<(cotal_wire::LifecycleUid, Retirement), Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let members = DOOR.read(loopback, parts, body).await.map_err(Refusal::Unread)?;
    let named = members.named().map_err(Refusal::Unread)?;
    let row = doors.row(&named, Ledger::read_interactive).await.map_err(|_| Refusal::Unreadable)?;
    match row {
        None => return Err(Refusal::NotGranted(named)),
        Some(row) if row.lifecycle_uid.as_deref() != Some(named.uid.as_str()) => {
            return Err(Refusal::GrantedAt(named, row.lifecycle_uid));
        }
        Some(_) => {}
    }
    let retirement =
        doors.plane.retire_interactive(&named.principal(), &named.uid).await.map_err(Refusal::Failed)?;
    Ok((named.uid, retirement))
}
