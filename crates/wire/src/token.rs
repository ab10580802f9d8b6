//! Token grammars and their types (contract 01 §1, 04 §1, 02 §1).
//!
//! Every type here has one constructor, `parse`, which checks the whole grammar and never rewrites its input. A
//! refusal names the kind of token and its rule, and never echoes the value.

mod nkey;
mod principal;
#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

pub use nkey::{Account, Curve, Nkey, NkeyRole, Operator, Server, User};
pub use principal::Principal;

use crate::time::Entropy;

/// A string that is not the token it was read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {what}: {rule}")]
pub struct TokenError {
    /// Which token was wanted.
    pub what: &'static str,
    /// Its grammar.
    pub rule: &'static str,
}

/// `^[A-Za-z0-9_]+$`: the structural owner-or-actor token.
pub(crate) fn is_structural(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// `^[A-Za-z0-9_-]+$`.
pub(crate) fn is_segment(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn is_base32_lower(s: &str, len: usize) -> bool {
    s.len() == len && s.bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7'))
}

fn is_derived_owner(s: &str) -> bool {
    s.strip_prefix(DERIVED_PREFIX).is_some_and(|rest| is_base32_lower(rest, OWNER_BASE32_LEN))
}

fn is_platform_owner(s: &str) -> bool {
    s.strip_prefix(PLATFORM_PREFIX).is_some_and(|rest| is_base32_lower(rest, OWNER_BASE32_LEN))
}

fn is_principal_owner(s: &str) -> bool {
    s == LOCAL_OWNER || is_derived_owner(s) || is_platform_owner(s)
}

fn is_lifecycle_token(s: &str) -> bool {
    (26..=32).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

fn is_conn_id(s: &str) -> bool {
    (8..=120).contains(&s.len()) && is_segment(s)
}

fn is_credential_id(s: &str) -> bool {
    (1..=256).contains(&s.len()) && s.split('.').all(is_segment)
}

fn is_session_endpoint(s: &str) -> bool {
    s.len() <= 64 && is_segment(s)
}

fn is_session_id(s: &str) -> bool {
    (22..=128).contains(&s.len()) && is_segment(s)
}

fn is_sha256_hex(s: &str) -> bool {
    s.len() == 64 && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_scope_entry(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':' | b'-'))
}

fn is_space(s: &str) -> bool {
    !s.is_empty() && s != "." && s != ".."
}

/// Prefix of an owner derived from an IdP subject.
pub const DERIVED_PREFIX: &str = "u_";
/// Prefix of a platform control owner.
pub const PLATFORM_PREFIX: &str = "p_";
/// The reserved development owner of static spaces.
pub const LOCAL_OWNER: &str = "local";
/// Base32 characters after an owner's prefix: 128 bits.
pub const OWNER_BASE32_LEN: usize = 26;

macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// Reads the token, refusing anything outside its grammar.
            pub fn parse(s: &str) -> Result<Self, TokenError> {
                if $check(s) { Ok(Self(s.into())) } else { Err(TokenError { what: $what, rule: $rule }) }
            }

            /// The token as it stands on the wire.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = TokenError;

            fn from_str(s: &str) -> Result<Self, TokenError> {
                Self::parse(s)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::parse(&raw).map_err(de::Error::custom)
            }
        }
    };
}

pub(crate) use token;

token!(
    /// A space's authoritative name, as people write it. Not every space name is a subject token: see
    /// [`Space::token`].
    Space, "space name", is_space, "non-empty, and neither \".\" nor \"..\""
);
token!(
    /// A space name sanitised for subjects, streams and buckets (contract 01 §1.1).
    SpaceToken, "space token", is_segment, "one or more of A-Z a-z 0-9 _ -"
);
token!(
    /// An owner slot checked for shape only (contract 01 §1.2). Never trust it as a principal's owner.
    OwnerToken, "owner token", is_structural, "one or more of A-Z a-z 0-9 _"
);
token!(
    /// An owner derived from an IdP subject: `u_` and 26 lower-case base32 characters (contract 01 §1.2, 04 §5).
    DerivedOwner, "derived owner", is_derived_owner, "u_ followed by 26 of a-z 2-7"
);
token!(
    /// An owner at a trust boundary: derived, platform, or the development owner `local` (contract 01 §1.2).
    /// A boundary that does not admit all three must look at [`Owner::kind`].
    Owner, "owner", is_principal_owner, "u_ or p_ followed by 26 of a-z 2-7, or local"
);
token!(
    /// An actor: the second half of a principal (contract 01 §1.2).
    Actor, "actor", is_structural, "one or more of A-Z a-z 0-9 _"
);
token!(
    /// A lifecycle UID: one incarnation of a principal, never reused (contract 01 §1.2).
    LifecycleUid, "lifecycle uid", is_lifecycle_token, "26 to 32 of a-z 0-9"
);
token!(
    /// The identifier of a durable operation, a lifecycle token. An identifier, never a capability.
    OpId, "operation id", is_lifecycle_token, "26 to 32 of a-z 0-9"
);
token!(
    /// The instance id of an endpoint, a lifecycle token.
    InstanceId, "instance id", is_lifecycle_token, "26 to 32 of a-z 0-9"
);
token!(
    /// A client-chosen inbox nonce: fills `_INBOX_<connId>.>` (contract 01 §1.2).
    ConnId, "inbox nonce", is_conn_id, "8 to 120 of A-Z a-z 0-9 _ -"
);
token!(
    /// A credential id: dotted segments, 1 to 256 characters (contract 04 §1).
    CredentialId, "credential id", is_credential_id, "1 to 256 characters, dot-separated segments of A-Z a-z 0-9 _ -"
);
token!(
    /// The endpoint token of a session claim (contract 04 §1).
    SessionEndpoint, "session endpoint", is_session_endpoint, "1 to 64 of A-Z a-z 0-9 _ -"
);
token!(
    /// A session id (contract 04 §1).
    SessionId, "session id", is_session_id, "22 to 128 of A-Z a-z 0-9 _ -"
);
token!(
    /// A SHA-256 digest in lower-case hex.
    Sha256Hex, "sha-256 digest", is_sha256_hex, "64 of 0-9 a-f"
);
token!(
    /// One capability of a scope list (contract 04 §7.2).
    ScopeEntry, "scope entry", is_scope_entry, "one or more of A-Z a-z 0-9 _ : -"
);
token!(
    /// A role name (contract 04 §1).
    Role, "role", is_segment, "one or more of A-Z a-z 0-9 _ -"
);

impl Actor {
    /// An actor that was built from checked tokens.
    pub(crate) fn of_checked(actor: &str) -> Self {
        Self(actor.into())
    }
}

impl Sha256Hex {
    /// The digest within a reference whose grammar was checked.
    pub(crate) fn of_checked(hex: &str) -> Self {
        Self(hex.into())
    }
}

/// Replaces every character outside `[A-Za-z0-9_-]` by `_`, one for one; an empty result becomes `_`
/// (contract 01 §1.1). Lossy, never decoded back.
pub fn sanitize(s: &str) -> String {
    let out: String = s
        .trim()
        .chars()
        // ECMAScript replaces per UTF-16 code unit, so a character outside the basic plane becomes two.
        .flat_map(|c| {
            let keep = c.is_ascii_alphanumeric() || c == '_' || c == '-';
            std::iter::repeat_n(if keep { c } else { '_' }, if keep { 1 } else { c.len_utf16() })
        })
        .collect();
    if out.is_empty() { "_".to_owned() } else { out }
}

impl Space {
    /// The sanitised token that stands in subjects, stream and bucket names (contract 01 §1.1).
    pub fn token(&self) -> SpaceToken {
        SpaceToken(sanitize(&self.0).into())
    }
}

/// Which grammar an [`Owner`] matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerKind {
    /// Derived from an IdP subject.
    Derived,
    /// The platform's control owner.
    Platform,
    /// The development owner `local`.
    Local,
}

impl Owner {
    /// The development owner `local`.
    pub fn local() -> Self {
        Self(LOCAL_OWNER.into())
    }

    /// Which grammar this owner matched.
    pub fn kind(&self) -> OwnerKind {
        if is_derived_owner(&self.0) {
            OwnerKind::Derived
        } else if is_platform_owner(&self.0) {
            OwnerKind::Platform
        } else {
            OwnerKind::Local
        }
    }

    /// This owner as a derived one, or `None` when it is of another kind.
    pub fn as_derived(&self) -> Option<DerivedOwner> {
        DerivedOwner::parse(&self.0).ok()
    }
}

impl From<DerivedOwner> for Owner {
    fn from(owner: DerivedOwner) -> Self {
        Self(owner.0)
    }
}

impl From<&DerivedOwner> for Owner {
    fn from(owner: &DerivedOwner) -> Self {
        Self(owner.0.clone())
    }
}

impl Sha256Hex {
    /// A digest's hex.
    pub fn of_digest(digest: &[u8; 32]) -> Self {
        Self(hex::encode(digest).into())
    }
}

impl LifecycleUid {
    /// A uid that was built from checked tokens.
    pub(crate) fn of_checked(uid: &str) -> Self {
        Self(uid.into())
    }

    /// Mints a fresh uid: 20 random bytes as a big-endian integer in base 36, padded to 26 (contract 01 §1.4).
    pub fn mint(entropy: &dyn Entropy) -> Self {
        Self(mint_lifecycle_token(entropy).into())
    }
}

impl OpId {
    /// Mints a fresh operation id, by the rule of [`LifecycleUid::mint`].
    pub fn mint(entropy: &dyn Entropy) -> Self {
        Self(mint_lifecycle_token(entropy).into())
    }

    /// The one operation that retires a managed lifecycle, from whichever entry point (contract 02 §3.11).
    pub fn managed_retirement(uid: &LifecycleUid) -> Self {
        Self::derived("retire", uid)
    }

    /// The operation that retires an interactive lifecycle (contract 05 §7.1).
    pub fn interactive_retirement(uid: &LifecycleUid) -> Self {
        Self::derived("interactive-retire", uid)
    }

    /// The first 26 hex characters of SHA-256 over `<what>:<uid>`.
    fn derived(what: &str, uid: &LifecycleUid) -> Self {
        let digest =
            Sha256::new().chain_update(what).chain_update(b":").chain_update(uid.as_str()).finalize();
        Self(hex::encode(&digest[..13]).into())
    }
}

impl InstanceId {
    /// Mints a fresh instance id, by the rule of [`LifecycleUid::mint`].
    pub fn mint(entropy: &dyn Entropy) -> Self {
        Self(mint_lifecycle_token(entropy).into())
    }
}

impl CredentialId {
    /// Mints a fresh root credential id, by the rule of [`LifecycleUid::mint`] (contract 04 §10).
    pub fn mint_root(entropy: &dyn Entropy) -> Self {
        Self(mint_lifecycle_token(entropy).into())
    }
}

fn mint_lifecycle_token(entropy: &dyn Entropy) -> String {
    let mut bytes = [0u8; 20];
    entropy.fill(&mut bytes);
    lifecycle_token_of(bytes)
}

/// 20 bytes, read big-endian, in lower-case base 36, left-padded with `0` to 26 characters.
fn lifecycle_token_of(mut bytes: [u8; 20]) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digits = Vec::with_capacity(31);
    while bytes.iter().any(|&b| b != 0) {
        let mut remainder = 0u32;
        for byte in &mut bytes {
            let value = (remainder << 8) | u32::from(*byte);
            *byte = (value / 36).to_le_bytes()[0];
            remainder = value % 36;
        }
        digits.push(DIGITS[remainder as usize]);
    }
    while digits.len() < 26 {
        digits.push(b'0');
    }
    digits.iter().rev().map(|&b| char::from(b)).collect()
}
