//! The loopback doors: what a host on this machine asks of the authority plane (contract 05 §7.1-7.4).
//!
//! Loopback only. A door reads a closed body, checks what the actor ledger says, and hands the rest to the plane. It
//! never touches the refusal windows. Each route is a file with its own refusals.

pub(crate) mod interactive_retire;
pub(crate) mod managed_activate;
pub(crate) mod managed_retire;
pub(crate) mod verify_enrollment;

use std::{str::FromStr, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use cotal_authority::{
    activation::ActivationFailure,
    retirement::{Retirement, RetirementFailure},
};
use cotal_ledger::{ActorRow, Ledger, LedgerError};
use cotal_wire::{Account, Actor, DerivedOwner, EpCode, EpError, LifecycleUid, Nkey, Principal, TokenError};
use http::{StatusCode, request::Parts};
use hyper::body::Body;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    body::{self, BODY_MAX, BodyRefusal},
    guard::{self, GuardRefusal},
    loopback::Loopback,
    reply::{Reply, unknown_field},
};
use crate::{authority::ExchangeAuthority, manager::AnswerManagers};

/// `outcome` of a refusal that moved nothing.
const NOT_EXECUTED: &str = "not-executed";
/// `outcome` of a failure of which nobody can say what it moved.
const UNKNOWN: &str = "unknown";

/// What the doors ask of the authority plane. Every method refuses `unavailable` once the plane is fenced.
#[async_trait]
pub trait LifecycleDoor: Send + Sync {
    /// Refuses once the plane is fenced or closes.
    fn check_open(&self) -> Result<(), EpError>;

    /// Retires an interactive lifecycle by its own operation.
    async fn retire_interactive(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure>;

    /// Retires a managed lifecycle: joins or starts the flight of its one operation.
    async fn retire_managed(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure>;

    /// Activates a managed lifecycle at this uid: on success its head is active there and its gate open.
    async fn activate_managed(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<(), ActivationFailure>;
}

/// What the doors of one space answer from.
pub(crate) struct Doors {
    pub plane: Arc<dyn LifecycleDoor>,
    pub ledger: Ledger,
    /// The data account that this context serves.
    pub data_account: Nkey<Account>,
    /// The interactive grants of the ledger.
    pub grants: ExchangeAuthority,
    /// Decides what a manager may have of a managed agent.
    pub manager: Arc<dyn AnswerManagers>,
}

/// The words of one door, and which members its body has.
struct Door {
    /// `interactive lifecycle retirement`
    what: &'static str,
    /// `loopback operator action`
    whose: &'static str,
    /// In the order that the texts name them.
    members: &'static [&'static str],
}

/// What can be wrong before a door's own logic, in the contract's order.
enum Unread {
    /// Method, origin or content type: the shared answers.
    Guard(GuardRefusal),
    /// The capability.
    Capability,
    /// Its bytes.
    Body(BodyRefusal),
    /// No JSON object.
    NotAnObject,
    /// A member that it does not know.
    Unknown(String),
    /// A member that is absent or no string.
    NotText,
    /// A member outside its grammar.
    Token(&'static str, TokenError),
}

/// The members of a closed body, all of them strings.
struct Members(Map<String, Value>);

/// What a lifecycle is named by in every body.
struct Named {
    owner: DerivedOwner,
    actor: Actor,
    uid: LifecycleUid,
}

/// `{ "retired", "lifecycleUid", … }`: how a retirement is answered, in both doors.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RetirementBody<'a> {
    /// Whether this incarnation is retired now.
    pub retired: bool,
    /// The incarnation that was asked for.
    pub lifecycle_uid: &'a str,
    /// Only `true`: no head stands at it, so nothing was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_started: Option<bool>,
    /// Only `true`: it had been retired before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub already_retired: Option<bool>,
}

/// `{ "error", "outcome"? }`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DoorErrorBody<'a> {
    /// One sentence for a person; clients must not match on it.
    pub error: &'a str,
    /// `not-executed`: nothing was moved. Without it, or with `unknown`, nobody can say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'a str>,
}

// === impl Door ===

impl Door {
    /// The guards and the body, in the contract's order.
    async fn read<B>(&self, loopback: &Loopback, parts: &Parts, body: &mut B) -> Result<Members, Unread>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let Value::Object(members) = open(loopback, parts, body).await? else {
            return Err(Unread::NotAnObject);
        };
        if let Some(unknown) = members.keys().find(|key| !self.members.contains(&key.as_str())) {
            return Err(Unread::Unknown(unknown.clone()));
        }
        if self.members.iter().any(|member| !members.get(*member).is_some_and(Value::is_string)) {
            return Err(Unread::NotText);
        }
        Ok(Members(members))
    }

    /// The answer to a body that was not read; `outcome` stands in what this door refuses itself.
    fn unread(&self, unread: Unread, outcome: Option<&'static str>) -> Reply {
        let Self { what, whose, members } = self;
        let members = || members.join(", ");
        let refuse = |status, sentence: &str| refused(status, sentence, outcome);
        match unread {
            Unread::Guard(GuardRefusal { status, sentence }) => refuse(status, sentence),
            Unread::Capability => refuse(
                StatusCode::UNAUTHORIZED,
                &format!("missing/invalid exchange capability - {what} is a {whose}"),
            ),
            Unread::Body(refusal) => {
                let (status, sentence) = refusal.status_and_sentence();
                refuse(status, &sentence)
            }
            Unread::NotAnObject => {
                refuse(StatusCode::BAD_REQUEST, &format!("{what} needs {{ {} }}", members()))
            }
            Unread::Unknown(key) => refuse(StatusCode::BAD_REQUEST, &unknown_field(what, &key)),
            Unread::NotText => {
                refuse(StatusCode::BAD_REQUEST, &format!("{what} needs string {{ {} }}", members()))
            }
            Unread::Token(member, error) => {
                refuse(StatusCode::BAD_REQUEST, &format!("{what}: {member} is {error}"))
            }
        }
    }
}

/// The guards and the bytes of a body, in the contract's order.
async fn open<T, B>(loopback: &Loopback, parts: &Parts, body: &mut B) -> Result<T, Unread>
where
    T: DeserializeOwned,
    B: Body<Data = Bytes> + Unpin,
{
    guard::json_post(parts).map_err(Unread::Guard)?;
    if !loopback.admits(&parts.headers) {
        return Err(Unread::Capability);
    }
    body::read_json(body, BODY_MAX).await.map_err(Unread::Body)
}

impl Members {
    fn token<T: FromStr<Err = TokenError>>(&self, member: &'static str) -> Result<T, Unread> {
        let text = self.0.get(member).and_then(Value::as_str).unwrap_or_default();
        text.parse().map_err(|error| Unread::Token(member, error))
    }

    fn named(&self) -> Result<Named, Unread> {
        Ok(Named {
            owner: self.token("owner")?,
            actor: self.token("actor")?,
            uid: self.token("lifecycleUid")?,
        })
    }
}

impl Named {
    fn principal(&self) -> Principal {
        Principal::new(&self.owner, self.actor.clone())
    }
}

impl Doors {
    /// The principal's row of one kind, read fresh off the async threads. A name that no ledger can hold has none.
    async fn row(
        &self,
        named: &Named,
        read: fn(&Ledger, &DerivedOwner, &Actor) -> Result<Option<ActorRow>, LedgerError>,
    ) -> Result<Option<ActorRow>, Unreadable> {
        let (ledger, owner, actor) = (self.ledger.clone(), named.owner.clone(), named.actor.clone());
        let outcome = tokio::task::spawn_blocking(move || read(&ledger, &owner, &actor)).await;
        match outcome {
            Ok(Ok(row)) => Ok(row),
            Ok(Err(LedgerError::Refused(_))) => Ok(None),
            Ok(Err(LedgerError::Broken(detail))) => {
                tracing::error!(%detail, "the actor ledger is broken");
                Err(Unreadable)
            }
            Err(error) => {
                tracing::error!(%error, "a ledger read did not end");
                Err(Unreadable)
            }
        }
    }
}

/// The ledger cannot be read; the log says why.
struct Unreadable;

impl<'a> RetirementBody<'a> {
    fn of(retirement: &Retirement, uid: &'a LifecycleUid) -> Self {
        let lifecycle_uid = uid.as_str();
        let (retired, not_started, already_retired) = match retirement {
            Retirement::NotStarted => (false, Some(true), None),
            Retirement::AlreadyRetired => (true, None, Some(true)),
            Retirement::Retired { .. } => (true, None, None),
        };
        Self { retired, lifecycle_uid, not_started, already_retired }
    }
}

/// `{"error": sentence, "outcome"?}`.
fn refused(status: StatusCode, sentence: &str, outcome: Option<&str>) -> Reply {
    Reply::json(status, &DoorErrorBody { error: sentence, outcome })
}

/// The status of a native code on a loopback door (contract 12 D8).
fn status_of(code: EpCode) -> StatusCode {
    match code {
        EpCode::BadRequest => StatusCode::BAD_REQUEST,
        EpCode::Unauthenticated => StatusCode::UNAUTHORIZED,
        EpCode::NotFound => StatusCode::NOT_FOUND,
        EpCode::Conflict | EpCode::AlreadyExists => StatusCode::CONFLICT,
        EpCode::FailedPrecondition | EpCode::Expired => StatusCode::PRECONDITION_FAILED,
        EpCode::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        EpCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        EpCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        // No door raises the envelope's own codes; authority that refuses under another name still refuses.
        EpCode::PermissionDenied
        | EpCode::UnsupportedVersion
        | EpCode::OpMismatch
        | EpCode::ClassMismatch
        | EpCode::TargetMismatch
        | EpCode::SenderMismatch
        | EpCode::ContractMismatch
        | EpCode::ContractInvalid
        | EpCode::DeadlineExceeded
        | EpCode::Cancelled
        | EpCode::ResourceExhausted => StatusCode::FORBIDDEN,
    }
}

/// What a caller may read of a native refusal: garbled trusted state is for the log alone (contract 12 D8).
fn sentence_of(error: &EpError) -> &str {
    if error.code == EpCode::Internal { INTERNAL_SENTENCE } else { &error.message }
}

/// The sentence of the generic 500.
const INTERNAL_SENTENCE: &str = "internal server error";
