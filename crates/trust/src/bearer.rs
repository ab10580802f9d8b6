//! User bearers: mint and the twenty checks (contract 04 §2).
use crate::issuer::IssuerKeySet;
use cotal_wire::{
    Actor, BearerClaims, CredentialId, DerivedOwner, InstanceId, LifecycleUid, Principal, SessionClaim,
    Space, TransferWriterClaim, UnixSecs, View,
};
use zeroize::Zeroizing;

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
    /// Requested lifetime in seconds, fractions allowed; `None` means the view's cap. Over the cap refuses.
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

/// Why a bearer was not minted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MintRefusal(pub String);

/// Signs a bearer under the active key, in the contract's order of checks.
pub fn mint(
    _keys: &IssuerKeySet,
    _space: &Space,
    _grant: &BearerGrant,
    _now: UnixSecs,
) -> Result<MintedBearer, MintRefusal> {
    todo!()
}

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

/// The twenty checks of contract 04 §2.4, in order.
pub fn validate(
    _token: &str,
    _keys: &IssuerKeySet,
    _space: &Space,
    _now: UnixSecs,
) -> Result<VerifiedBearer, BearerRefusal> {
    todo!()
}
