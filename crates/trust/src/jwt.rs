//! NATS JWTs: operator, account, user, authorization request and response (contract 01 §3.2, 04 §8).
use cotal_wire::{Account, Nkey, Operator, Permissions, Server, Curve, UnixSecs, User};
use zeroize::Zeroizing;

use crate::nkey::Seed;

/// A JWT that is malformed or whose signature does not verify; never echoes content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JwtError(pub &'static str);

/// What a user JWT says.
#[derive(Debug, Clone)]
pub struct UserClaims {
    /// JWT `name`.
    pub name: String,
    /// The user.
    pub subject: Nkey<User>,
    /// The account that the signing key stands for.
    pub issuer_account: Nkey<Account>,
    /// `pub` and `sub`.
    pub permissions: Permissions,
    /// `tags`; left out when empty.
    pub tags: Vec<String>,
    /// `exp`; unbounded when absent.
    pub exp: Option<UnixSecs>,
}

/// What an account JWT says beyond the fixed limits.
#[derive(Debug, Clone)]
pub struct AccountClaims {
    /// JWT `name`.
    pub name: String,
    /// The account.
    pub subject: Nkey<Account>,
    /// Plain signing keys; left out when empty.
    pub signing_keys: Vec<Nkey<Account>>,
    /// Whether JetStream limits are -1 (data account) or 0.
    pub jetstream: bool,
    /// The callout arm of an AUTH account.
    pub authorization: Option<CalloutAuthorization>,
}

/// `nats.authorization` of a callout account (contract 04 §8.1).
#[derive(Debug, Clone)]
pub struct CalloutAuthorization {
    /// The users that serve the callout.
    pub auth_users: Vec<Nkey<User>>,
    /// The accounts it may place users in.
    pub allowed_accounts: Vec<Nkey<Account>>,
    /// The curve key that requests are sealed to.
    pub xkey: Nkey<Curve>,
}

/// The `owner:`, `actor:` and `principal:` tags, in that order (contract 01 §1.5).
pub fn principal_tags(principal: &cotal_wire::Principal) -> Vec<String> {
    vec![format!("owner:{}", principal.owner), format!("actor:{}", principal.actor), format!("principal:{principal}")]
}

/// A self-signed operator JWT.
pub fn encode_operator(_name: &str, _operator: &Seed<Operator>, _system_account: &Nkey<Account>, _now: UnixSecs) -> String { todo!() }
/// An account JWT signed by the operator.
pub fn encode_account(_claims: &AccountClaims, _operator: &Seed<Operator>, _now: UnixSecs) -> String { todo!() }
/// A user JWT signed by an account (signing) key.
pub fn encode_user(_claims: &UserClaims, _signer: &Seed<Account>, _now: UnixSecs) -> String { todo!() }

/// The answer to a callout request.
#[derive(Debug, Clone, Copy)]
pub enum CalloutOutcome<'a> {
    /// The user JWT.
    Allow(&'a str),
    /// The denial text, already folded to printable ASCII.
    Deny(&'a str),
}

/// An authorization response (contract 04 §8.3), signed by the AUTH account's signing key.
pub fn encode_authorization_response(
    _user_nkey: &Nkey<User>, _server_id: &Nkey<Server>, _issuer_account: &Nkey<Account>,
    _outcome: CalloutOutcome<'_>, _signer: &Seed<Account>, _now: UnixSecs,
) -> String { todo!() }

/// The members of an authorization request that the callout reads. Strings are as the server sent them.
pub struct CalloutRequest {
    /// `iss`.
    pub issuer: String,
    /// `nats.server_id.id`, empty when absent.
    pub server_id: String,
    /// `nats.server_id.xkey`, empty when absent.
    pub server_xkey: String,
    /// `nats.user_nkey`, empty when absent.
    pub user_nkey: String,
    /// `nats.client_info.host`, empty when absent.
    pub client_host: String,
    /// `nats.client_info.id`, zero when absent.
    pub client_id: u64,
    /// `nats.connect_opts.auth_token`, empty when absent.
    pub auth_token: Zeroizing<String>,
    /// `nats.connect_opts.name`, empty when absent.
    pub name: String,
}

/// Decodes an authorization request and verifies its signature by its own `iss`, a server key.
pub fn decode_callout_request(_token: &[u8]) -> Result<CalloutRequest, JwtError> { todo!() }
/// Decodes any NATS JWT and verifies its signature by its own `iss`; returns the claims object.
pub fn decode_verified(_token: &str) -> Result<serde_json::Value, JwtError> { todo!() }
