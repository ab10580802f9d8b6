//! What a verified user bearer says (contract 04 §2.2-2.4). The signature and the twenty checks are room `trust`'s;
//! a value of this type alone proves nothing.

use serde::{Deserialize, Serialize};

use crate::{
    time::UnixSecs,
    token::{
        Actor, CredentialId, DerivedOwner, InstanceId, LifecycleUid, Principal, SessionEndpoint, SessionId,
        Sha256Hex, Space,
    },
    view::View,
};

/// `act.session`: the one session of a `session-caller` bearer; closed (contract 04 §2.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SessionClaim {
    /// The endpoint token.
    pub endpoint: SessionEndpoint,
    /// The session.
    pub session_id: SessionId,
    /// The serving epoch.
    pub epoch: u64,
    /// The session row's expiry in seconds.
    pub exp: UnixSecs,
}

/// `act.transferWriter`: the one object of a `transfer-writer` bearer; closed (contract 04 §2.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TransferWriterClaim {
    /// The manager instance whose transfer bucket is written.
    pub instance_id: InstanceId,
    /// The object's SHA-256.
    pub hex: Sha256Hex,
}

/// The `act` claim (contract 04 §2.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// Equal to `sub`.
    pub owner: DerivedOwner,
    /// The actor.
    pub actor: Actor,
    /// The single capability authority. `None` when the member is absent.
    pub scope: Option<Vec<ScopeEntryText>>,
    /// The one parent link.
    pub parent: Option<Principal>,
    /// The lifecycle uid of the ledger row; required at connect.
    pub lifecycle_uid: Option<LifecycleUid>,
    /// The incarnation's root credential id; required at connect.
    pub credential_id: Option<CredentialId>,
    /// The view, for a view bearer.
    pub view: Option<View>,
    /// Present iff the view is `manager-caller`.
    pub manager_instance_id: Option<InstanceId>,
    /// Present iff the view is `session-caller`.
    pub session: Option<SessionClaim>,
    /// Present iff the view is `transfer-writer`.
    pub transfer_writer: Option<TransferWriterClaim>,
}

/// A scope string as a bearer or a stored row carries it. Readers compare it and never re-check its grammar
/// (contract 04 §7.3); writers use [`ScopeEntry`](crate::ScopeEntry).
pub type ScopeEntryText = String;

/// What a bearer says, once every check of contract 04 §2.4 has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BearerClaims {
    /// `sub`.
    pub owner: DerivedOwner,
    /// `aud`.
    pub space: Space,
    /// `act`.
    pub act: Act,
    /// The top-level `scope`, empty when absent.
    pub scope: Vec<ScopeEntryText>,
    /// When the bearer expires.
    pub exp: UnixSecs,
}

impl BearerClaims {
    /// The principal that this bearer speaks for.
    pub fn principal(&self) -> Principal {
        Principal::new(self.owner.clone(), self.act.actor.clone())
    }

    /// The capabilities: `act.scope`, or none (contract 04 §9).
    pub fn capabilities(&self) -> &[ScopeEntryText] {
        self.act.scope.as_deref().unwrap_or_default()
    }
}
