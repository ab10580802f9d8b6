//! The IdP bridge: a verified IdP token becomes a Cotal bearer (contract 04 §4.2-4.3).
//!
//! Its stages are types, so that their order is not a convention: [`IdpBridge::prove`] verifies the token and the
//! actor's grant, [`ProvedActor::entitle`] checks the view and the proof's remaining life, [`EntitledActor::sign`]
//! makes the incarnation's credential durable and only then signs. [`IdpBridge::exchange`] runs all of them.

use std::sync::Arc;

use async_trait::async_trait;
use cotal_ledger::AuthorizedGrant;
use cotal_trust::{
    bearer::{BearerGrant, MintedBearer},
    idp::{self, IdpPin, IdpRefusal, JwksResolver},
    owner::OwnerSecret,
};
use cotal_wire::{
    Actor, Clock, CredentialId, DerivedOwner, EpCode, EpError, InstanceId, LifecycleUid, Principal, Space,
    TransferWriterClaim, UnixSecs, View,
};

use crate::{
    authority::bearer_of,
    sessions::{SessionCoordinates, SessionDirectory},
    user_tokens::UserTokenIssuer,
};

/// Why the bridge refused: one sentence for the caller, without a token or a secret in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BridgeRefusal(pub String);

/// What a caller is told when the authority could not decide: what stood in the way names stores, keys and
/// connections, and is for the operator's log.
const AUTHORITY_UNAVAILABLE: &str = "the authority of this space is momentarily unavailable; retry";

impl From<EpError> for BridgeRefusal {
    /// A decision keeps its sentence; whatever else went wrong is logged here and answered with one.
    fn from(error: EpError) -> Self {
        match error.code {
            EpCode::PermissionDenied | EpCode::AlreadyExists => Self(error.message),
            _ => {
                tracing::error!(%error, "the authority could not decide an exchange");
                Self(AUTHORITY_UNAVAILABLE.to_owned())
            }
        }
    }
}

/// What a bridge refuses to be built from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BridgeConfigError {
    /// The pinned issuer is empty.
    #[error("the IdP bridge needs a non-empty issuer; pin the space to an identity provider first")]
    EmptyIssuer,
    /// The pinned audience is empty.
    #[error("the IdP bridge needs a non-empty audience; pin the space to an identity provider first")]
    EmptyAudience,
    /// The bearers' issuer is not the space's.
    #[error("the bearer issuer is another space's; give the bridge the keys of its own space")]
    OtherIssuer,
}

/// The one IdP that a bridge believes: issuer, audience and key set, all of them. There is no way to leave one open, to
/// name a second one, or to have a token say where its keys are; and only EdDSA verifies (contract 04 §4.1, §4.2).
pub struct PinnedIdp {
    pin: IdpPin,
    keys: JwksResolver,
}

/// The key set at this URL, the only one that is ever fetched: `https`, or `http` on a loopback IP literal. It is kept for
/// ten minutes; a kid that it does not have fetches it again after 30 s at the earliest; a fetch may take 5 s and follows
/// no redirect (contract 04 §3).
pub fn pinned_jwks_resolver(jwks_uri: &str, clock: Arc<dyn Clock>) -> Result<JwksResolver, IdpRefusal> {
    JwksResolver::new(jwks_uri, clock)
}

impl PinnedIdp {
    /// Pins an IdP. `issuer` and `audience` are compared exactly, and neither may be empty.
    pub fn new(
        issuer: impl Into<String>,
        audience: impl Into<String>,
        keys: JwksResolver,
    ) -> Result<Self, BridgeConfigError> {
        let (issuer, audience, jwks_uri) = (issuer.into(), audience.into(), keys.uri().to_owned());
        // Its base URL is for logging in, which a bridge does not do.
        let pin = IdpPin { url: jwks_uri.clone(), issuer, audience, jwks_uri };
        Self::check_pin(&pin)?;
        Ok(Self { pin, keys })
    }

    /// Whether a bridge can be built over this pin.
    pub(crate) fn check_pin(pin: &IdpPin) -> Result<(), BridgeConfigError> {
        if pin.issuer.is_empty() {
            return Err(BridgeConfigError::EmptyIssuer);
        }
        if pin.audience.is_empty() {
            return Err(BridgeConfigError::EmptyAudience);
        }
        Ok(())
    }
}

/// The two mandatory decisions of a host: there is no bridge without either.
///
/// They are asked in this order, each only when everything before it held: the actor's grant once the IdP token is
/// verified, the credential once the view is entitled and the proof still lives. Only then a bearer is signed.
#[async_trait]
pub trait BridgeHooks: Send + Sync {
    /// The current grant of exactly this actor: the only source of the bearer's scope and parent. A host with a ledger of
    /// its own answers [`AuthorizedGrant::decided_by_host`].
    async fn authorize_actor(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
    ) -> Result<AuthorizedGrant, BridgeRefusal>;

    /// The incarnation's live root credential, durable before it is returned; never a fresh id for each exchange.
    async fn mint_connect_credential(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        lifecycle_uid: &LifecycleUid,
    ) -> Result<CredentialId, BridgeRefusal>;
}

/// What a caller asks of its bearer, beside the actor.
#[derive(Debug, Clone, Default)]
pub struct BearerRequest {
    /// Requested lifetime in seconds; `None` for the view's cap. The issuer refuses more than the cap.
    pub ttl_secs: Option<f64>,
    /// The instance that a `manager-caller` bearer is bound to.
    pub manager_instance_id: Option<InstanceId>,
    /// The session that a `session-caller` bearer is for.
    pub session: Option<SessionCoordinates>,
    /// The object that a `transfer-writer` bearer may write.
    pub transfer_writer: Option<TransferWriterClaim>,
}

/// The bridge of one space.
pub struct IdpBridge {
    idp: PinnedIdp,
    owner_secret: OwnerSecret,
    issuer: UserTokenIssuer,
    hooks: Arc<dyn BridgeHooks>,
    sessions: Arc<dyn SessionDirectory>,
    clock: Arc<dyn Clock>,
}

/// What a bridge is built from. The hooks are not optional.
pub struct IdpBridgeParts {
    /// The space: the audience of its bearers.
    pub space: Space,
    /// The pinned IdP.
    pub idp: PinnedIdp,
    /// The owner-derivation secret, at least 32 bytes. Owners derive from it, the pinned issuer and the subject: another
    /// secret, or another spelling of the issuer, is another owner for everybody.
    pub space_secret: OwnerSecret,
    /// Signs the bearers; of the same space.
    pub issuer: UserTokenIssuer,
    /// Grant and credential.
    pub hooks: Arc<dyn BridgeHooks>,
    /// Sessions, for the `session-caller` view.
    pub sessions: Arc<dyn SessionDirectory>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
}

/// An actor whose human proof and ledger grant were both verified.
pub struct ProvedActor<'b> {
    bridge: &'b IdpBridge,
    grant: AuthorizedGrant,
    proof_exp: UnixSecs,
}

/// A proved actor that may hold the view it asks for, while its proof still lives.
pub struct EntitledActor<'b> {
    bridge: &'b IdpBridge,
    grant: AuthorizedGrant,
    proof_exp: UnixSecs,
    view: Option<View>,
}

/// A minted bearer and whom it is for.
pub struct BridgedBearer {
    /// The owner that the proof derived to.
    pub owner: DerivedOwner,
    /// The bearer.
    pub bearer: MintedBearer,
}

/// A bridge of these parts (contract 04 §4.2, §4.3). It reads no ledger and opens no connection: its hooks do.
///
/// [`BridgeConfigError::OtherIssuer`] when the bearers' issuer is of another space than the bridge.
pub fn create_idp_bridge(parts: IdpBridgeParts) -> Result<IdpBridge, BridgeConfigError> {
    let IdpBridgeParts { space, idp, space_secret, issuer, hooks, sessions, clock } = parts;
    if *issuer.space() != space {
        return Err(BridgeConfigError::OtherIssuer);
    }
    Ok(IdpBridge { idp, owner_secret: space_secret, issuer, hooks, sessions, clock })
}

impl IdpBridge {
    /// Actor grammar, IdP token, owner, grant; in this order.
    pub async fn prove(&self, idp_token: &str, actor: &str) -> Result<ProvedActor<'_>, BridgeRefusal> {
        let actor = Actor::parse(actor).map_err(|error| BridgeRefusal(error.to_string()))?;
        let (owner, proof_exp) = self.verify(idp_token).await?;
        let grant = self.hooks.authorize_actor(&owner, &actor).await?;
        if grant.owner != owner || grant.actor != actor {
            return Err(BridgeRefusal(format!("the grant that was found is not the one of {owner}.{actor}")));
        }
        Ok(ProvedActor { bridge: self, grant, proof_exp })
    }

    /// The owner that an IdP token derives to: verified against the pinned issuer, audience and keys. Which of the owner's
    /// actors asks, and what it may do, is another question.
    pub async fn identify(&self, idp_token: &str) -> Result<DerivedOwner, BridgeRefusal> {
        self.verify(idp_token).await.map(|(owner, _)| owner)
    }

    async fn verify(&self, idp_token: &str) -> Result<(DerivedOwner, UnixSecs), BridgeRefusal> {
        let proof = idp::verify_idp_token(idp_token, &self.idp.pin, &self.idp.keys, self.clock.now_secs())
            .await
            .map_err(|refusal| BridgeRefusal(refusal.0))?;
        let owner = self
            .owner_secret
            .derive(&self.idp.pin.issuer, &proof.sub)
            .map_err(|error| BridgeRefusal(error.0.to_owned()))?;
        Ok((owner, proof.exp))
    }

    /// The whole exchange.
    pub async fn exchange(
        &self,
        idp_token: &str,
        actor: &str,
        view: Option<&str>,
        request: BearerRequest,
    ) -> Result<BridgedBearer, BridgeRefusal> {
        self.prove(idp_token, actor).await?.entitle(view)?.sign(request).await
    }
}

impl<'b> ProvedActor<'b> {
    /// The verified grant.
    pub fn grant(&self) -> &AuthorizedGrant {
        &self.grant
    }

    /// Checks the view against the closed enum and the fresh grant, then that the proof has not expired.
    pub fn entitle(self, view: Option<&str>) -> Result<EntitledActor<'b>, BridgeRefusal> {
        let view = view.map(|name| entitled_view(name, &self.grant)).transpose()?;
        if self.proof_exp <= self.bridge.clock.now_secs() {
            return Err(BridgeRefusal("the IdP token has expired; log in again".to_owned()));
        }
        Ok(EntitledActor { bridge: self.bridge, grant: self.grant, proof_exp: self.proof_exp, view })
    }
}

impl EntitledActor<'_> {
    /// The verified grant.
    pub fn grant(&self) -> &AuthorizedGrant {
        &self.grant
    }

    /// Makes the incarnation's credential durable, asks for the session if there is one, and signs. The bearer never
    /// outlives the proof: time spent in the hooks shortens it.
    pub async fn sign(self, request: BearerRequest) -> Result<BridgedBearer, BridgeRefusal> {
        let Self { bridge, grant, proof_exp, view } = self;
        let credential_id =
            bridge.hooks.mint_connect_credential(&grant.owner, &grant.actor, &grant.lifecycle_uid).await?;
        let session = match &request.session {
            Some(coordinates) => {
                let principal = Principal::new(&grant.owner, grant.actor.clone());
                Some(bridge.sessions.verify(&principal, &grant.lifecycle_uid, coordinates).await?)
            }
            None => None,
        };
        let owner = grant.owner.clone();
        let signed = BearerGrant {
            view,
            manager_instance_id: request.manager_instance_id,
            session,
            transfer_writer: request.transfer_writer,
            ttl_secs: request.ttl_secs,
            not_after: Some(proof_exp),
            ..bearer_of(grant, credential_id)
        };
        let bearer = bridge.issuer.issue(&signed, bridge.clock.now_secs())?;
        Ok(BridgedBearer { owner, bearer })
    }
}

/// The view of this name, when the exchange mints it and the grant covers it. A missing capability prints the grant
/// command that would add it.
pub(crate) fn entitled_view(name: &str, grant: &AuthorizedGrant) -> Result<View, BridgeRefusal> {
    // `service-endpoint` is a view of the enum, but only the service authority route issues it.
    let view = View::from_name(name)
        .filter(|view| *view != View::ServiceEndpoint)
        .ok_or_else(|| BridgeRefusal("view is not one that this exchange mints".to_owned()))?;
    if view.is_covered_by(&grant.scope) {
        return Ok(view);
    }
    let needed = view.required_scope().unwrap_or_default();
    Err(BridgeRefusal(format!(
        "view \"{view}\" needs scope \"{needed}\", which the grant of {}.{} does not hold; an operator can add it with: {}",
        grant.owner,
        grant.actor,
        grant.regrant_command_with(needed)
    )))
}
