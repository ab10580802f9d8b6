//! User bearers: mint and the twenty checks (contract 04 §2).

use std::fmt;

use cotal_wire::{
    Act, Actor, BearerClaims, CredentialId, DerivedOwner, InstanceId, LifecycleUid, OwnerKind, Principal,
    SessionClaim, Space, TransferWriterClaim, UnixSecs, View, claims::ScopeEntryText, time::MAX_SAFE_INTEGER,
};
use serde::Serialize;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::{
    issuer::IssuerKeySet,
    jws::{self, Jws, Reason},
};

/// The `ver` claim.
const VERSION: u8 = 1;

/// What a bearer is minted for (contract 04 §2.3).
#[derive(Debug, Clone)]
pub struct BearerGrant {
    /// `sub` and `act.owner`.
    pub owner: DerivedOwner,
    /// `act.actor`.
    pub actor: Actor,
    /// The grant scope; an absent scope leaves `act.scope` out and top-level `scope` empty.
    pub scope: Option<Vec<String>>,
    /// `act.parent`.
    pub parent: Option<Principal>,
    /// `act.lifecycleUid`.
    pub lifecycle_uid: LifecycleUid,
    /// `act.credentialId`.
    pub credential_id: CredentialId,
    /// `act.view`.
    pub view: Option<View>,
    /// `act.managerInstanceId`.
    pub manager_instance_id: Option<InstanceId>,
    /// `act.session`.
    pub session: Option<SessionClaim>,
    /// `act.transferWriter`.
    pub transfer_writer: Option<TransferWriterClaim>,
    /// Requested lifetime in seconds, fractions allowed; `None` means the view's cap. Below one second and
    /// over the cap refuses.
    pub ttl_secs: Option<f64>,
    /// The IdP proof's expiry: the bearer never outlives it, and minting refuses once it has passed.
    pub not_after: Option<UnixSecs>,
}

/// A signed bearer.
pub struct MintedBearer {
    /// The compact JWS.
    pub token: Zeroizing<String>,
    /// Its expiry.
    pub exp: UnixSecs,
}

impl fmt::Debug for MintedBearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MintedBearer").field("exp", &self.exp).finish_non_exhaustive()
    }
}

/// Why a bearer was not minted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MintRefusal(pub String);

/// A bearer that passed every check of contract 04 §2.4. Only [`validate`] builds one.
#[derive(Debug, Clone)]
pub struct VerifiedBearer(BearerClaims);

impl std::ops::Deref for VerifiedBearer {
    type Target = BearerClaims;

    fn deref(&self) -> &BearerClaims {
        &self.0
    }
}

/// Why a bearer was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct BearerRefusal {
    /// One sentence; never echoes the token.
    pub reason: String,
    /// Set when the signature verified and the payload names a well-formed principal: rate limits charge it
    /// (contract 04 §8.7), even when the bearer has expired.
    pub signed_by: Option<(DerivedOwner, Actor)>,
}

// === mint ===

#[derive(Serialize)]
struct Payload<'a> {
    scope: &'a [String],
    ver: u8,
    act: ActPayload<'a>,
    sub: &'a DerivedOwner,
    iss: &'a str,
    aud: &'a Space,
    iat: UnixSecs,
    nbf: UnixSecs,
    exp: UnixSecs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ActPayload<'a> {
    owner: &'a DerivedOwner,
    actor: &'a Actor,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<&'a Principal>,
    lifecycle_uid: &'a LifecycleUid,
    credential_id: &'a CredentialId,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<View>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manager_instance_id: Option<&'a InstanceId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a SessionClaim>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer_writer: Option<&'a TransferWriterClaim>,
}

/// Signs a bearer under the active key, in the contract's order of checks (contract 04 §2.3).
///
/// The lifetime is measured from `now`, which is to be read just before the call: whatever hooks ran before it
/// shorten the bearer and never extend it past the IdP proof (contract 04 §2.5).
pub fn mint(
    keys: &IssuerKeySet,
    space: &Space,
    grant: &BearerGrant,
    now: UnixSecs,
) -> Result<MintedBearer, MintRefusal> {
    if grant.parent.as_ref().is_some_and(|parent| parent.owner.kind() != OwnerKind::Derived) {
        return refuse("a bearer's parent must have a derived owner");
    }
    if grant.view == Some(View::ServiceEndpoint) {
        return refuse("a service-endpoint bearer is issued by the service authority route alone");
    }
    check_view_claims(
        grant.view,
        grant.manager_instance_id.is_some(),
        grant.session.is_some(),
        grant.transfer_writer.is_some(),
    )
    .map_err(|reason| MintRefusal(reason.to_owned()))?;
    if grant.session.as_ref().is_some_and(|session| !is_safe_session(session)) {
        return refuse(SESSION_SHAPE);
    }
    let cap = View::ttl_cap_secs(grant.view);
    let ttl = grant.ttl_secs.unwrap_or(jws::seconds(UnixSecs(cap)));
    // Below one second it would expire in the second that signs it.
    if !ttl.is_finite() || ttl < 1.0 || ttl > jws::seconds(UnixSecs(cap)) {
        return Err(MintRefusal(format!(
            "a bearer's lifetime must be from 1 to {cap} seconds; ask for one that is"
        )));
    }
    let mut exp = now.plus(jws::whole_seconds(ttl).0);
    if let Some(proof) = grant.not_after {
        if proof <= now {
            return refuse("the IdP proof has expired; log in again");
        }
        exp = exp.min(proof);
    }
    let payload = Payload {
        scope: grant.scope.as_deref().unwrap_or_default(),
        ver: VERSION,
        act: ActPayload {
            owner: &grant.owner,
            actor: &grant.actor,
            scope: grant.scope.as_deref(),
            parent: grant.parent.as_ref(),
            lifecycle_uid: &grant.lifecycle_uid,
            credential_id: &grant.credential_id,
            view: grant.view,
            manager_instance_id: grant.manager_instance_id.as_ref(),
            session: grant.session.as_ref(),
            transfer_writer: grant.transfer_writer.as_ref(),
        },
        sub: &grant.owner,
        iss: keys.issuer(),
        aud: space,
        iat: now,
        nbf: now,
        exp,
    };
    Ok(MintedBearer { token: keys.sign(&payload), exp })
}

fn refuse<T>(why: &str) -> Result<T, MintRefusal> {
    Err(MintRefusal(why.to_owned()))
}

// === validate ===

const NO_KID: &str = "the bearer names no key";
const UNKNOWN_KID: &str = "the bearer's key is not one of this space's issuer keys";
const TOO_LONG: &str = "the bearer expires later than any bearer of its view may";
const LIVES_TOO_LONG: &str = "the bearer's lifetime is longer than its view allows";
const OTHER_VERSION: &str = "the bearer is of another version";
const SUB_SHAPE: &str = "the bearer's sub is not a derived owner";
const NO_ACT: &str = "the bearer has no act claim";
const ACT_OWNER: &str = "the bearer's act.owner is not its sub";
const ACT_ACTOR: &str = "the bearer's act.actor is not an actor";
const ACT_SCOPE: &str = "the bearer's act.scope is not a list of strings";
const ACT_PARENT: &str = "the bearer's act.parent is not a principal with a derived owner";
const ACT_VIEW: &str = "the bearer's act.view is not a view";
const MANAGER_SHAPE: &str = "the bearer's act.managerInstanceId is not an instance id";
const MANAGER_MISSING: &str = "a manager-caller bearer needs act.managerInstanceId";
const MANAGER_EXTRA: &str = "act.managerInstanceId is for manager-caller bearers alone";
const SESSION_MISSING: &str = "a session-caller bearer needs act.session";
const SESSION_EXTRA: &str = "act.session is for session-caller bearers alone";
const SESSION_SHAPE: &str = "the bearer's act.session is not exactly endpoint, sessionId, epoch and exp";
const TRANSFER_MISSING: &str = "a transfer-writer bearer needs act.transferWriter";
const TRANSFER_EXTRA: &str = "act.transferWriter is for transfer-writer bearers alone";
const TRANSFER_SHAPE: &str = "the bearer's act.transferWriter is not exactly instanceId and hex";
const LIFECYCLE_SHAPE: &str = "the bearer's act.lifecycleUid is not a lifecycle uid";
const CREDENTIAL_SHAPE: &str = "the bearer's act.credentialId is not a credential id";
const SCOPE_SHAPE: &str = "the bearer's scope is not a list of strings";

/// The twenty checks of contract 04 §2.4, in order.
pub fn validate(
    token: &str,
    keys: &IssuerKeySet,
    space: &Space,
    now: UnixSecs,
) -> Result<VerifiedBearer, BearerRefusal> {
    let payload =
        verify(token, keys).map_err(|reason| BearerRefusal { reason: reason.to_owned(), signed_by: None })?;
    check(&payload, keys.issuer(), space, now)
        .map(VerifiedBearer)
        .map_err(|reason| BearerRefusal { reason: reason.to_owned(), signed_by: signer(&payload) })
}

/// Checks 1 to 3 up to the signature.
fn verify(token: &str, keys: &IssuerKeySet) -> Result<Map<String, Value>, Reason> {
    let jws = Jws::read(token)?;
    let kid = jws.kid.as_deref().ok_or(NO_KID)?;
    jws.verify(keys.verifying_key(kid).ok_or(UNKNOWN_KID)?)
}

/// The rest of check 3, then 4 to 20.
fn check(
    payload: &Map<String, Value>,
    issuer: &str,
    space: &Space,
    now: UnixSecs,
) -> Result<BearerClaims, Reason> {
    jws::check_registered(payload, issuer, space.as_str(), now)?;
    jws::check_sole_audience(payload, space.as_str())?;
    let exp = check_times(payload, now)?;
    if payload.get("ver").and_then(Value::as_f64) != Some(f64::from(VERSION)) {
        return Err(OTHER_VERSION);
    }
    let owner = payload.get("sub").and_then(Value::as_str).ok_or(SUB_SHAPE)?;
    let owner = DerivedOwner::parse(owner).map_err(|_| SUB_SHAPE)?;
    let act = check_act(payload, &owner)?;
    let scope = text_list(payload.get("scope"), SCOPE_SHAPE)?.unwrap_or_default();
    Ok(BearerClaims { owner, space: space.clone(), act, scope, exp })
}

/// Checks 5 to 8.
fn check_times(payload: &Map<String, Value>, now: UnixSecs) -> Result<UnixSecs, Reason> {
    let exp = jws::numeric(payload, "exp", jws::EXP_NOT_NUMBER)?.ok_or(jws::NO_EXP)?;
    let iat = jws::numeric(payload, "iat", jws::IAT_NOT_NUMBER)?.ok_or(jws::NO_IAT)?;
    jws::numeric(payload, "nbf", jws::NBF_NOT_NUMBER)?.ok_or(jws::NO_NBF)?;
    let view = payload.get("act").and_then(|act| act.get("view")).and_then(Value::as_str);
    let max_ttl = jws::seconds(UnixSecs(View::ttl_cap_secs(view.and_then(View::from_name))));
    if iat > jws::latest(now) {
        return Err(jws::IAT_IN_FUTURE);
    }
    if exp > jws::latest(now) + max_ttl {
        return Err(TOO_LONG);
    }
    if exp - iat > max_ttl {
        return Err(LIVES_TOO_LONG);
    }
    Ok(jws::whole_seconds(exp))
}

/// Checks 11 to 19.
fn check_act(payload: &Map<String, Value>, owner: &DerivedOwner) -> Result<Act, Reason> {
    let act = payload.get("act").and_then(Value::as_object).ok_or(NO_ACT)?;
    if act.get("owner").and_then(Value::as_str) != Some(owner.as_str()) {
        return Err(ACT_OWNER);
    }
    let actor = parsed(act.get("actor"), Actor::parse, ACT_ACTOR)?.ok_or(ACT_ACTOR)?;
    let scope = text_list(act.get("scope"), ACT_SCOPE)?;
    let parent = parsed(act.get("parent"), Principal::parse_key, ACT_PARENT)?;
    if parent.as_ref().is_some_and(|parent| parent.owner.kind() != OwnerKind::Derived) {
        return Err(ACT_PARENT);
    }
    let view = match act.get("view") {
        None => None,
        Some(name) => Some(name.as_str().and_then(View::from_name).ok_or(ACT_VIEW)?),
    };
    let manager_instance_id = parsed(act.get("managerInstanceId"), InstanceId::parse, MANAGER_SHAPE)?;
    check_manager(view, manager_instance_id.is_some())?;
    check_session(view, act.contains_key("session"))?;
    let session: Option<SessionClaim> = closed(act.get("session"), SESSION_SHAPE)?;
    if session.as_ref().is_some_and(|session| !is_safe_session(session)) {
        return Err(SESSION_SHAPE);
    }
    check_transfer(view, act.contains_key("transferWriter"))?;
    let transfer_writer: Option<TransferWriterClaim> = closed(act.get("transferWriter"), TRANSFER_SHAPE)?;
    let lifecycle_uid = parsed(act.get("lifecycleUid"), LifecycleUid::parse, LIFECYCLE_SHAPE)?;
    let credential_id = parsed(act.get("credentialId"), CredentialId::parse, CREDENTIAL_SHAPE)?;
    Ok(Act {
        owner: owner.clone(),
        actor,
        scope,
        parent,
        lifecycle_uid,
        credential_id,
        view,
        manager_instance_id,
        session,
        transfer_writer,
    })
}

/// The principal that a verified signature stands for, whatever else is wrong with the bearer.
fn signer(payload: &Map<String, Value>) -> Option<(DerivedOwner, Actor)> {
    let owner = DerivedOwner::parse(payload.get("sub")?.as_str()?).ok()?;
    let actor = Actor::parse(payload.get("act")?.get("actor")?.as_str()?).ok()?;
    Some((owner, actor))
}

// === rules that mint and validation share ===

fn check_view_claims(view: Option<View>, manager: bool, session: bool, transfer: bool) -> Result<(), Reason> {
    check_manager(view, manager)?;
    check_session(view, session)?;
    check_transfer(view, transfer)
}

fn check_manager(view: Option<View>, present: bool) -> Result<(), Reason> {
    exactly_with(view == Some(View::ManagerCaller), present, MANAGER_MISSING, MANAGER_EXTRA)
}

fn check_session(view: Option<View>, present: bool) -> Result<(), Reason> {
    exactly_with(view == Some(View::SessionCaller), present, SESSION_MISSING, SESSION_EXTRA)
}

fn check_transfer(view: Option<View>, present: bool) -> Result<(), Reason> {
    exactly_with(view == Some(View::TransferWriter), present, TRANSFER_MISSING, TRANSFER_EXTRA)
}

fn exactly_with(wanted: bool, present: bool, missing: Reason, extra: Reason) -> Result<(), Reason> {
    match (wanted, present) {
        (true, false) => Err(missing),
        (false, true) => Err(extra),
        _ => Ok(()),
    }
}

/// JSON of the contract carries no larger integers.
fn is_safe_session(session: &SessionClaim) -> bool {
    session.epoch <= MAX_SAFE_INTEGER && session.exp.0 <= MAX_SAFE_INTEGER
}

fn parsed<T, E>(
    value: Option<&Value>,
    parse: impl FnOnce(&str) -> Result<T, E>,
    reason: Reason,
) -> Result<Option<T>, Reason> {
    value
        .map(|value| value.as_str().ok_or(reason).and_then(|text| parse(text).map_err(|_| reason)))
        .transpose()
}

fn closed<T: serde::de::DeserializeOwned>(
    value: Option<&Value>,
    reason: Reason,
) -> Result<Option<T>, Reason> {
    match value {
        None => Ok(None),
        Some(value @ Value::Object(_)) => T::deserialize(value).map(Some).map_err(|_| reason),
        Some(_) => Err(reason),
    }
}

fn text_list(value: Option<&Value>, reason: Reason) -> Result<Option<Vec<ScopeEntryText>>, Reason> {
    let Some(value) = value else { return Ok(None) };
    let list = value.as_array().ok_or(reason)?;
    list.iter()
        .map(|entry| entry.as_str().map(str::to_owned).ok_or(reason))
        .collect::<Result<_, _>>()
        .map(Some)
}
