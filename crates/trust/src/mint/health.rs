//! What creds text says of itself: who signed it, and how it stands.

use cotal_wire::{Account, Nkey, UnixSecs};

use crate::{creds, jwt};

/// Who signed a credential, and for which account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedBy {
    /// The key that signed it.
    pub issuer: Nkey<Account>,
    /// The account that it is a user of.
    pub account: Nkey<Account>,
}

impl SignedBy {
    /// Reads creds text whose JWT verifies; `None` for any other.
    pub fn of_creds(text: &str) -> Option<Self> {
        let claims = jwt::decode_verified(&creds::parse(text).ok()?.jwt).ok()?;
        let key = |pointer: &str| Nkey::parse(claims.pointer(pointer)?.as_str()?).ok();
        Some(Self { issuer: key("/iss")?, account: key("/nats/issuer_account")? })
    }
}

/// How a credential stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthState {
    /// Not creds text, or its JWT does not verify.
    Unreadable,
    /// It never expires.
    Unbounded,
    /// It has expired.
    Expired,
    /// Three quarters of its life are over: renew it.
    NearExpiry,
    /// It has time left.
    Healthy,
}

/// How a credential stands and when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// The state.
    pub state: HealthState,
    /// When it expires, where it does.
    pub exp: Option<UnixSecs>,
    /// When it is to be renewed, where it expires.
    pub renew_at: Option<UnixSecs>,
}

impl HealthState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Unbounded => "unbounded",
            Self::Expired => "expired",
            Self::NearExpiry => "near-expiry",
            Self::Healthy => "healthy",
        }
    }
}

impl Health {
    /// Reads creds text and says how it stands.
    pub fn of_creds(text: &str, now: UnixSecs) -> Self {
        let unreadable = Self { state: HealthState::Unreadable, exp: None, renew_at: None };
        let Ok(creds) = creds::parse(text) else { return unreadable };
        let Ok(claims) = jwt::decode_verified(&creds.jwt) else { return unreadable };
        let time = |name: &str| claims.get(name).map(|value| value.as_u64().map(UnixSecs));
        match (time("iat"), time("exp")) {
            (_, None) => Self { state: HealthState::Unbounded, ..unreadable },
            (Some(Some(iat)), Some(Some(exp))) => Self::of_times(iat, exp, now),
            _ => unreadable,
        }
    }

    /// How a credential of these times stands: due once three quarters of its life are over.
    pub fn of_times(iat: UnixSecs, exp: UnixSecs, now: UnixSecs) -> Self {
        let life = exp.since(iat);
        // floor(0.75 life), without overflow
        let renew_at = iat.plus(life / 4 * 3 + life % 4 * 3 / 4);
        let state = if now >= exp {
            HealthState::Expired
        } else if now >= renew_at {
            HealthState::NearExpiry
        } else {
            HealthState::Healthy
        };
        Self { state, exp: Some(exp), renew_at: Some(renew_at) }
    }
}
