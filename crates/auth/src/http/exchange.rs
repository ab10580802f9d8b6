//! `POST /exchange`: an IdP login or an agent's secret for a short-lived bearer (contract 05 §4).

use std::sync::Arc;

use bytes::Bytes;
use cotal_callout::{LimitedBucket, Limiter, limits::RATE_LIMITED};
use cotal_ledger::{AGENT_EXCHANGE_REFUSAL, AuthorizedGrant};
use cotal_trust::bearer::{BearerGrant, MintedBearer};
use cotal_wire::{
    Actor, Clock, DerivedOwner, InstanceId, Object, TransferWriterClaim, View, view::AGENT_BEARER_TTL_SECS,
};
use http::{HeaderValue, StatusCode, header, request::Parts};
use hyper::body::Body;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use super::{
    body::{self, BODY_MAX},
    face::{Caller, Face, Policy},
    loopback::BadCapability,
    reply::Reply,
};
use crate::{
    authority::{ExchangeAuthority, bearer_of},
    bridge::{BearerRequest, BridgeRefusal, IdpBridge},
    managers::{ManagerDirectory, SelectionArm, SelectionRefusal},
    sessions::SessionCoordinates,
    user_tokens::UserTokenIssuer,
};

pub(crate) const PATH: &str = cotal_wire::routes::EXCHANGE;

const CAPABILITY_WRONG: &str =
    "missing/invalid exchange capability - read it from the space's auth-service.json";
const CAPABILITY_FLOODED: &str = "too many invalid-capability attempts - wait a minute and retry";
pub(crate) const THROTTLED: &str = "too many refused exchanges - wait a minute and retry";
const NOT_AN_OBJECT: &str = "exchange body must be a JSON object";
const SESSION_PAIR: &str = "view \"session-caller\" and sessionGrant come together or not at all";
const TRANSFER_PAIR: &str = "view \"transfer-writer\" and transferWriter come together or not at all";
const TTL_NUMBER: &str = "ttlSec must be a number";
const VIEW_STRING: &str = "view must be a string when present";
const INSTANCE_STRING: &str = "managerInstanceId must be a string when present";
const INSTANCE_VIEW: &str = "managerInstanceId is valid only with view \"manager-caller\"";
const VIEW_NOT_PUBLIC: &str =
    "elevated views are a loopback operator surface - the public exchange never serves them";
const BOTH_PROOFS: &str = "exchange takes idpToken (human) OR owner+actorToken (agent), never both";
pub(crate) const AGENT_VIEW: &str =
    "the managed (agent-secret) exchange never mints elevated views - views ride a signed-in human exchange";
const AGENT_NEEDS: &str =
    "agent exchange needs { owner: string, actor: string, actorToken: string, ttlSec?: number }";
const HUMAN_NEEDS: &str =
    "exchange needs { idpToken: string, actor: string, ttlSec?: number, view?: string }";
const TRANSFER_SHAPE: &str =
    "transferWriter needs exactly { instanceId: lifecycle token, hex: 64 lower hex digits }";
const SHED_UNPINNED: &str = "too many refused manager selections - name an instance with --on or --manager-instance, or start a manager with `cotal manager start`, then wait a minute and retry";
const SHED_PINNED: &str = "too many refused manager selections - check that the pinned manager instance is live and registered to the caller, then wait a minute and retry";

/// What the exchange of one space answers from.
pub(crate) struct Exchange {
    pub issuer: UserTokenIssuer,
    pub bridge: IdpBridge,
    pub authority: ExchangeAuthority,
    pub limiter: Arc<Limiter>,
    pub managers: Arc<dyn ManagerDirectory>,
    pub clock: Arc<dyn Clock>,
}

/// Every way in which an exchange ends without a bearer.
#[derive(Debug)]
enum ExchangeRefusal {
    /// The loopback capability is wrong.
    BadCapability(BadCapability),
    /// The body is JSON, but no object.
    NotAnObject,
    /// The request says something impossible; costs nothing.
    BadRequest(&'static str),
    /// The public face never mints this view.
    ViewNotPublic,
    /// The proof, the grant, the authority or the mint refused.
    Refused(String),
    /// A verified principal named no manager that can serve it; costs its own class window, if any.
    NoManager(String),
    /// This class of selections is shed for this principal.
    SelectionShed(SelectionClass),
    /// The actor or its owner connects too often.
    ConnectLimited(LimitedBucket, DerivedOwner, Actor),
}

/// How a manager instance was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SelectionClass {
    Pinned,
    Unpinned,
}

impl From<BridgeRefusal> for ExchangeRefusal {
    fn from(refusal: BridgeRefusal) -> Self {
        Self::Refused(refusal.0)
    }
}

impl ExchangeRefusal {
    /// Whether it spends the face's or peer's refusal budget. What spends it is also what a full budget masks.
    fn is_counted(&self) -> bool {
        matches!(self, Self::NotAnObject | Self::ViewNotPublic | Self::Refused(_))
    }

    /// The one place where a refusal becomes a status and a sentence.
    fn reply(self, throttled: bool) -> Reply {
        if throttled && self.is_counted() {
            return Reply::error(StatusCode::TOO_MANY_REQUESTS, THROTTLED);
        }
        match self {
            Self::BadCapability(BadCapability::Wrong) => {
                Reply::error(StatusCode::UNAUTHORIZED, CAPABILITY_WRONG)
            }
            Self::BadCapability(BadCapability::Flooded) => {
                Reply::error(StatusCode::TOO_MANY_REQUESTS, CAPABILITY_FLOODED)
            }
            Self::NotAnObject => Reply::error(StatusCode::BAD_REQUEST, NOT_AN_OBJECT),
            Self::BadRequest(sentence) => Reply::error(StatusCode::BAD_REQUEST, sentence),
            Self::ViewNotPublic => Reply::error(StatusCode::FORBIDDEN, VIEW_NOT_PUBLIC),
            Self::Refused(reason) | Self::NoManager(reason) => {
                Reply::error(StatusCode::UNAUTHORIZED, &reason)
            }
            Self::SelectionShed(SelectionClass::Unpinned) => {
                Reply::error(StatusCode::TOO_MANY_REQUESTS, SHED_UNPINNED)
            }
            Self::SelectionShed(SelectionClass::Pinned) => {
                Reply::error(StatusCode::TOO_MANY_REQUESTS, SHED_PINNED)
            }
            Self::ConnectLimited(bucket, owner, actor) => connect_limited(bucket, &owner, &actor),
        }
    }
}

/// The body of a connect-limit 429; too many refusals have `error` alone.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RateLimitedBody<'a> {
    /// `RATE_LIMITED`.
    #[schema(required = false)]
    pub code: &'a str,
    /// Whole seconds; the `Retry-After` header says the same.
    #[schema(required = false)]
    pub retry_after_seconds: u64,
    /// `actor` or `owner`: the bucket that ran out.
    #[schema(required = false)]
    pub limit: &'a str,
    /// One sentence for a person.
    pub error: &'a str,
}

fn connect_limited(bucket: LimitedBucket, owner: &DerivedOwner, actor: &Actor) -> Reply {
    let (limit, seconds, sentence) = match bucket {
        LimitedBucket::Owner { retry_after_secs: n } => (
            "owner",
            n,
            format!("owner {owner} is connecting too often, over all its actors; retry in {n} s"),
        ),
        // A principal is never charged to a host; were it reported, the actor is who has to wait.
        LimitedBucket::Actor { retry_after_secs: n } | LimitedBucket::Host { retry_after_secs: n } => {
            ("actor", n, format!("actor {owner}.{actor} is connecting too often; retry in {n} s"))
        }
    };
    let body = RateLimitedBody { code: RATE_LIMITED, retry_after_seconds: seconds, limit, error: &sentence };
    Reply::json(StatusCode::TOO_MANY_REQUESTS, &body).with(header::RETRY_AFTER, HeaderValue::from(seconds))
}

/// What a good exchange is answered with.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExchangeBody<'a> {
    /// The bearer: a compact JWS.
    pub token: &'a str,
    /// The owner it is for.
    pub owner: &'a str,
    /// Its expiry, in seconds since 1970.
    pub exp: u64,
    /// The manager instance it is bound to, when one was selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager_instance_id: Option<&'a str>,
}

/// What the exchange reads; unknown members are ignored.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "documents the request; the handler reads members in the contract's order of checks"
)]
pub(crate) struct ExchangeRequestBody {
    /// Human arm: the IdP's JWT.
    pub idp_token: Option<String>,
    /// Both arms: the actor.
    #[schema(pattern = "^[A-Za-z0-9_]+$")]
    pub actor: Option<String>,
    /// Agent arm: the owner.
    #[schema(pattern = "^u_[a-z2-7]{26}$")]
    pub owner: Option<String>,
    /// Agent arm: the agent's secret; its presence selects this arm.
    pub actor_token: Option<String>,
    /// Requested lifetime in seconds, clamped to the view's cap (agent arm: 300).
    pub ttl_sec: Option<f64>,
    /// A view.
    pub view: Option<String>,
    /// Only with view `manager-caller`.
    pub manager_instance_id: Option<String>,
    /// Exactly with view `session-caller`.
    pub session_grant: Option<SessionGrantBody>,
    /// Exactly with view `transfer-writer`.
    pub transfer_writer: Option<TransferWriterBody>,
}

/// What is read of a redeemed session's grant; other members are ignored.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "documents the request")]
pub(crate) struct SessionGrantBody {
    /// The session.
    pub session_id: String,
    /// The endpoint that serves it.
    pub endpoint: String,
    /// The grant's signature.
    pub sig: String,
    /// Who serves it.
    pub serving: SessionServingBody,
}

/// What is read of a grant's `serving`; other members are ignored.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "documents the request")]
pub(crate) struct SessionServingBody {
    /// The serving epoch, a non-negative integer.
    pub epoch: u64,
}

/// The one object that a transfer-writer may write; closed.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "documents the request")]
pub(crate) struct TransferWriterBody {
    pub instance_id: String,
    pub hex: String,
}

/// A bearer and the instance it was bound to.
struct Exchanged {
    owner: DerivedOwner,
    bearer: MintedBearer,
    manager: Option<InstanceId>,
}

/// Serves the route once its guards have passed: capability, throttle evaluation, body, checks, arm.
#[utoipa::path(post, path = PATH, operation_id = "exchange", tag = "both faces", request_body = ExchangeRequestBody,
    security((), ("capability" = [])),
    responses(
        (status = 200, description = "A bearer.", body = ExchangeBody),
        (status = 400, description = "The request says something impossible, or is not JSON.", body = super::reply::ErrorBody),
        (status = 401, description = "The proof, the grant or the selection was refused; on loopback also a wrong capability.", body = super::reply::ErrorBody),
        (status = 403, description = "A browser origin, or a view that the public face never mints.", body = super::reply::ErrorBody),
        (status = 404, description = "Another request target: a query string, for one.", body = super::reply::ErrorBody),
        (status = 405, description = "Not a POST.", body = super::reply::ErrorBody),
        (status = 413, description = "More than 65536 bytes.", body = super::reply::ErrorBody),
        (status = 415, description = "Not application/json.", body = super::reply::ErrorBody),
        (status = 429, description = "Connect limit (this body, with `Retry-After`), or too many refusals (`error` alone).", body = RateLimitedBody),
        (status = 500, description = "Generic.", body = super::reply::ErrorBody),
        (status = 503, description = "Public face: admission cap (with `Retry-After`) or deadline.", body = super::reply::ErrorBody),
    ))]
pub(crate) async fn serve<B>(face: &Face, caller: &Caller, parts: &Parts, body: &mut B) -> Reply
where
    B: Body<Data = Bytes> + Unpin,
{
    if let Err(bad) = face.check_capability(parts, caller) {
        tracing::warn!(face = face.name(), peer = %caller.peer, "exchange refused: wrong capability");
        return ExchangeRefusal::BadCapability(bad).reply(false);
    }
    // Evaluated before the body, enforced only on a refusal: a good credential is always served.
    let throttled = face.is_throttled(caller);
    let body: Value = match body::read_json(body, BODY_MAX).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into(),
    };
    match exchange(face, &body).await {
        Ok(Exchanged { owner, bearer, manager }) => Reply::json(
            StatusCode::OK,
            &ExchangeBody {
                token: &bearer.token,
                owner: owner.as_str(),
                exp: bearer.exp.0,
                manager_instance_id: manager.as_ref().map(InstanceId::as_str),
            },
        ),
        Err(refusal) => {
            tracing::info!(face = face.name(), peer = %caller.peer, throttled, ?refusal, "exchange refused");
            if refusal.is_counted() {
                face.record_refusal(caller);
            }
            refusal.reply(throttled)
        }
    }
}

/// The members of a body that passed the checks that cost nothing (contract 05 §4.2 rows 5-13).
struct Request<'a> {
    members: &'a Map<String, Value>,
    ttl_secs: Option<f64>,
    view: Option<&'a str>,
    manager_instance_id: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// On the public face only public views may be asked for.
    fn read(body: &'a Value, public: bool) -> Result<Self, ExchangeRefusal> {
        let bad = ExchangeRefusal::BadRequest;
        let members = body.as_object().ok_or(ExchangeRefusal::NotAnObject)?;
        let has = |name: &str| members.contains_key(name);
        let is_view = |view: View| members.get("view").and_then(Value::as_str) == Some(view.as_str());

        if is_view(View::SessionCaller) != has("sessionGrant") {
            return Err(bad(SESSION_PAIR));
        }
        if is_view(View::TransferWriter) != has("transferWriter") {
            return Err(bad(TRANSFER_PAIR));
        }
        let ttl_secs = match members.get("ttlSec") {
            None => None,
            Some(ttl) => Some(ttl.as_f64().ok_or(bad(TTL_NUMBER))?),
        };
        let string = |name: &str, refusal| match members.get(name) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or(bad(refusal)),
        };
        let view = string("view", VIEW_STRING)?;
        let manager_instance_id = string("managerInstanceId", INSTANCE_STRING)?;
        if manager_instance_id.is_some() && !is_view(View::ManagerCaller) {
            return Err(bad(INSTANCE_VIEW));
        }
        if public && view.is_some_and(|name| !View::from_name(name).is_some_and(View::is_public)) {
            return Err(ExchangeRefusal::ViewNotPublic);
        }
        if has("idpToken") && has("actorToken") {
            return Err(bad(BOTH_PROOFS));
        }
        Ok(Self { members, ttl_secs, view, manager_instance_id })
    }

    /// A member that is a non-empty string.
    fn text(&self, name: &str) -> Option<&'a str> {
        self.members.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    fn is_manager_caller(&self) -> bool {
        self.view == Some(View::ManagerCaller.as_str())
    }

    /// The requested lifetime, never over the cap (contract 04 §2.3: handlers clamp, the issuer refuses).
    fn ttl_within(&self, cap_secs: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "caps are at most 900")]
        let cap = cap_secs as f64;
        self.ttl_secs.map_or(cap, |ttl| ttl.min(cap))
    }
}

async fn exchange(face: &Face, body: &Value) -> Result<Exchanged, ExchangeRefusal> {
    let request = Request::read(body, matches!(face.policy(), Policy::Public(_)))?;
    match Proof::read(&request)? {
        Proof::Agent(agent) => agent_arm(face, &request, agent).await,
        Proof::Human(human) => human_arm(face, &request, human).await,
    }
}

/// What the caller proves itself with: the arm of the exchange.
enum Proof<'a> {
    Agent(Agent<'a>),
    Human(Human<'a>),
}

/// Contract 05 §4.4 rows 1 and 2, and the grammars of what the ledger is asked about.
struct Agent<'a> {
    owner: DerivedOwner,
    actor: Actor,
    secret: &'a str,
}

/// Contract 05 §4.5 row 1, and the shapes that rows 3 and 4 read.
struct Human<'a> {
    idp_token: &'a str,
    actor: &'a str,
    session: Option<SessionCoordinates>,
    transfer_writer: Option<TransferWriterClaim>,
}

impl<'a> Proof<'a> {
    fn read(request: &Request<'a>) -> Result<Self, ExchangeRefusal> {
        // A JSON null counts as present.
        if request.members.contains_key("actorToken") {
            Agent::read(request).map(Self::Agent)
        } else {
            Human::read(request).map(Self::Human)
        }
    }
}

impl<'a> Agent<'a> {
    fn read(request: &Request<'a>) -> Result<Self, ExchangeRefusal> {
        if request.view.is_some() && !request.is_manager_caller() {
            return Err(ExchangeRefusal::BadRequest(AGENT_VIEW));
        }
        let (Some(owner), Some(actor), Some(secret)) =
            (request.text("owner"), request.text("actor"), request.text("actorToken"))
        else {
            return Err(ExchangeRefusal::BadRequest(AGENT_NEEDS));
        };
        // A name that nobody can have is answered as one that nobody has (contract 04 §7.8).
        let (Ok(owner), Ok(actor)) = (DerivedOwner::parse(owner), Actor::parse(actor)) else {
            return Err(ExchangeRefusal::Refused(AGENT_EXCHANGE_REFUSAL.to_owned()));
        };
        Ok(Self { owner, actor, secret })
    }
}

impl<'a> Human<'a> {
    fn read(request: &Request<'a>) -> Result<Self, ExchangeRefusal> {
        let (Some(idp_token), Some(actor)) = (request.text("idpToken"), request.text("actor")) else {
            return Err(ExchangeRefusal::BadRequest(HUMAN_NEEDS));
        };
        let session = match request.members.get("sessionGrant") {
            None => None,
            Some(grant) => Some(
                SessionCoordinates::of_grant(grant)
                    .map_err(|reason| ExchangeRefusal::Refused(reason.to_owned()))?,
            ),
        };
        let transfer_writer = match request.members.get("transferWriter") {
            None => None,
            Some(target) => Some(
                Object::<TransferWriterClaim>::deserialize(target)
                    .map_err(|_| ExchangeRefusal::Refused(TRANSFER_SHAPE.to_owned()))?
                    .0,
            ),
        };
        Ok(Self { idp_token, actor, session, transfer_writer })
    }
}

/// Contract 05 §4.4.
async fn agent_arm(
    face: &Face,
    request: &Request<'_>,
    Agent { owner, actor, secret }: Agent<'_>,
) -> Result<Exchanged, ExchangeRefusal> {
    let exchange = &face.service().exchange;
    let grant = exchange.authority.authorize_agent(owner, actor, Zeroizing::new(secret.to_owned())).await?;
    exchange.check_connect_limit(&grant)?;
    let credential_id = exchange.authority.credential(&grant).await?;
    let manager = if request.is_manager_caller() {
        let principal = format!("{}.{}", grant.owner, grant.actor);
        Some(exchange.select_manager(face, &principal, SelectionArm::Agent, &grant, request).await?)
    } else {
        None
    };
    let owner = grant.owner.clone();
    let signed = BearerGrant {
        view: manager.as_ref().map(|_| View::ManagerCaller),
        manager_instance_id: manager.clone(),
        ttl_secs: Some(request.ttl_within(AGENT_BEARER_TTL_SECS)),
        ..bearer_of(grant, credential_id)
    };
    let bearer = exchange.issuer.issue(&signed, exchange.clock.now_secs())?;
    Ok(Exchanged { owner, bearer, manager })
}

/// Contract 05 §4.5. The IdP token and the actor's grant are verified before a manager is selected, on both faces.
async fn human_arm(
    face: &Face,
    request: &Request<'_>,
    Human { idp_token, actor, session, transfer_writer }: Human<'_>,
) -> Result<Exchanged, ExchangeRefusal> {
    let exchange = &face.service().exchange;
    let proved = exchange.bridge.prove(idp_token, actor).await?;
    exchange.check_connect_limit(proved.grant())?;
    let entitled = proved.entitle(request.view)?;
    let manager = if request.is_manager_caller() {
        let principal = entitled.grant().owner.as_str().to_owned();
        Some(exchange.select_manager(face, &principal, SelectionArm::Human, entitled.grant(), request).await?)
    } else {
        None
    };
    let view_cap = View::ttl_cap_secs(request.view.and_then(View::from_name));
    let bridged = entitled
        .sign(BearerRequest {
            ttl_secs: Some(request.ttl_within(view_cap)),
            manager_instance_id: manager.clone(),
            session,
            transfer_writer,
        })
        .await?;
    Ok(Exchanged { owner: bridged.owner, bearer: bridged.bearer, manager })
}

impl Exchange {
    /// Contract 05 §4.7: asked once the credential identified owner and actor; spends nothing.
    fn check_connect_limit(&self, grant: &AuthorizedGrant) -> Result<(), ExchangeRefusal> {
        self.limiter.check_principal(&grant.owner, &grant.actor).map_err(|bucket| {
            ExchangeRefusal::ConnectLimited(bucket, grant.owner.clone(), grant.actor.clone())
        })
    }

    /// Contract 05 §4.6. `principal` is the window's key: the owner of a human, `owner.actor` of an agent.
    async fn select_manager(
        &self,
        face: &Face,
        principal: &str,
        arm: SelectionArm,
        grant: &AuthorizedGrant,
        request: &Request<'_>,
    ) -> Result<InstanceId, ExchangeRefusal> {
        let (class, key) = match request.manager_instance_id {
            Some(_) => (SelectionClass::Pinned, format!("{principal} pinned")),
            None => (SelectionClass::Unpinned, format!("{principal} unpinned")),
        };
        if let Policy::Public(public) = face.policy()
            && public.is_selection_shed(&key, self.clock.now_millis())
        {
            return Err(ExchangeRefusal::SelectionShed(class));
        }
        let selected = match request.manager_instance_id.map(InstanceId::parse).transpose() {
            Ok(requested) => self.managers.select(&grant.owner, requested.as_ref(), arm).await,
            Err(error) => Err(SelectionRefusal::NotACandidate(error.to_string())),
        };
        selected.map_err(|refusal| match face.policy() {
            Policy::Public(public) => {
                public.record_selection_refusal(&key, self.clock.now_millis());
                ExchangeRefusal::NoManager(refusal.to_string())
            }
            Policy::Loopback(_) => match refusal {
                SelectionRefusal::NoLiveManager(reason) | SelectionRefusal::Ambiguous(reason) => {
                    ExchangeRefusal::NoManager(reason)
                }
                SelectionRefusal::NotACandidate(reason) | SelectionRefusal::Unavailable(reason) => {
                    ExchangeRefusal::Refused(reason)
                }
            },
        })
    }
}

/// The door of the fuzz target: a body up to the first question that somebody else answers.
#[cfg(fuzzing)]
pub mod fuzzing {
    use super::*;

    /// A body that passed every check which needs no I/O.
    #[derive(Debug)]
    pub struct Passed {
        /// `actorToken` in the agent arm, `idpToken` in the human one.
        pub secret: String,
        /// The actor: parsed in the agent arm, as sent in the human one.
        pub actor: String,
        /// The agent arm's owner.
        pub owner: Option<DerivedOwner>,
        /// The view's name.
        pub view: Option<String>,
        /// The instance that was asked for.
        pub manager_instance_id: Option<String>,
        /// `sessionGrant`.
        pub session: Option<SessionCoordinates>,
        /// `transferWriter`.
        pub transfer_writer: Option<TransferWriterClaim>,
        /// The lifetime that the issuer would be asked for.
        pub ttl_secs: f64,
    }

    /// A refusal as the caller would see it.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Refused {
        /// The status.
        pub status: u16,
        /// The body.
        pub body: Vec<u8>,
        /// Whether it spends a refusal budget.
        pub counted: bool,
    }

    /// Reads a body that came to the public face, or to the loopback one.
    pub fn read(bytes: &[u8], public: bool) -> Result<Passed, Refused> {
        let refused = |counted: bool, reply: Reply| Refused {
            status: reply.status.as_u16(),
            body: reply.body.to_vec(),
            counted,
        };
        let body: Value = body::parse(bytes).map_err(|refusal| refused(false, refusal.into()))?;
        decide(&body, public).map_err(|refusal| refused(refusal.is_counted(), refusal.reply(false)))
    }

    fn decide(body: &Value, public: bool) -> Result<Passed, ExchangeRefusal> {
        let request = Request::read(body, public)?;
        let view = request.view.map(str::to_owned);
        let manager_instance_id = request.manager_instance_id.map(str::to_owned);
        Ok(match Proof::read(&request)? {
            Proof::Agent(Agent { owner, actor, secret }) => Passed {
                secret: secret.to_owned(),
                actor: actor.to_string(),
                owner: Some(owner),
                view,
                manager_instance_id,
                session: None,
                transfer_writer: None,
                ttl_secs: request.ttl_within(AGENT_BEARER_TTL_SECS),
            },
            Proof::Human(Human { idp_token, actor, session, transfer_writer }) => Passed {
                secret: idp_token.to_owned(),
                actor: actor.to_owned(),
                owner: None,
                session,
                transfer_writer,
                ttl_secs: request.ttl_within(View::ttl_cap_secs(request.view.and_then(View::from_name))),
                view,
                manager_instance_id,
            },
        })
    }
}
