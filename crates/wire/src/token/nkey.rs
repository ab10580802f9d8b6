//! Public nkeys, each of its role.

use std::{fmt, marker::PhantomData, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ConnId, TokenError};

/// What an nkey stands for. Sealed: the five roles below.
pub trait NkeyRole: sealed::Sealed + Clone + Copy + Send + Sync + 'static {
    /// First character of the public key.
    const PREFIX: char;
    /// The role in words.
    const WHAT: &'static str;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! nkey_role {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name;

        impl sealed::Sealed for $name {}

        impl NkeyRole for $name {
            const PREFIX: char = $prefix;
            const WHAT: &'static str = $what;
        }
    };
}

nkey_role!(
    /// A NATS operator.
    Operator, 'O', "operator nkey"
);
nkey_role!(
    /// A NATS account, or an account's signing key.
    Account, 'A', "account nkey"
);
nkey_role!(
    /// A NATS user.
    User, 'U', "user nkey"
);
nkey_role!(
    /// A nats-server.
    Server, 'N', "server nkey"
);
nkey_role!(
    /// A curve key (xkey), for sealing.
    Curve, 'X', "curve nkey"
);

/// A public nkey: its role's prefix and 55 of upper-case base32, 56 characters in all.
///
/// The shape alone is checked here; the checksum is checked where the key is used (room `trust`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nkey<R: NkeyRole>(Box<str>, PhantomData<R>);

impl<R: NkeyRole> Nkey<R> {
    /// Reads a public key of this role.
    pub fn parse(s: &str) -> Result<Self, TokenError> {
        let ok = s.len() == 56
            && s.starts_with(R::PREFIX)
            && s.bytes().all(|b| b.is_ascii_uppercase() || matches!(b, b'2'..=b'7'));
        if ok {
            Ok(Self(s.into(), PhantomData))
        } else {
            Err(TokenError { what: R::WHAT, rule: "the role's letter followed by 55 of A-Z 2-7" })
        }
    }

    /// The key as it stands on the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Nkey<User> {
    /// This key as an inbox nonce: infrastructure connections use their own nkey (contract 07 §7.1).
    pub fn conn_id(&self) -> ConnId {
        ConnId(self.0.clone())
    }
}

impl<R: NkeyRole> fmt::Display for Nkey<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<R: NkeyRole> fmt::Debug for Nkey<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nkey({})", self.0)
    }
}

impl<R: NkeyRole> FromStr for Nkey<R> {
    type Err = TokenError;

    fn from_str(s: &str) -> Result<Self, TokenError> {
        Self::parse(s)
    }
}

impl<R: NkeyRole> Serialize for Nkey<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de, R: NkeyRole> Deserialize<'de> for Nkey<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&raw).map_err(de::Error::custom)
    }
}
