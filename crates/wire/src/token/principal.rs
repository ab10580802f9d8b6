//! Who acts (contract 01 §1.3).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Actor, Owner, OwnerKind, TokenError};

/// Who acts: `owner.actor` (contract 01 §1.3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal {
    /// The account that answers for the actor.
    pub owner: Owner,
    /// The actor of that owner.
    pub actor: Actor,
}

impl Principal {
    /// A principal of these two.
    pub fn new(owner: impl Into<Owner>, actor: Actor) -> Self {
        Self { owner: owner.into(), actor }
    }

    /// Reads the key form `<owner>.<actor>` at a trust boundary: exactly one dot, a principal owner, a structural
    /// actor (contract 01 §1.3).
    pub fn parse_key(s: &str) -> Result<Self, TokenError> {
        let err =
            TokenError { what: "principal", rule: "<owner>.<actor> with a derived, platform or local owner" };
        let (owner, actor) = s.split_once('.').ok_or(err)?;
        Ok(Self {
            owner: Owner::parse(owner).map_err(|_| err)?,
            actor: Actor::parse(actor).map_err(|_| err)?,
        })
    }

    /// Reads the name form `<owner>-<actor>`: derived or `local` owner (contract 01 §1.3).
    pub fn parse_name(s: &str) -> Result<Self, TokenError> {
        let err =
            TokenError { what: "principal name", rule: "<owner>-<actor> with a derived or local owner" };
        let (owner, actor) = s.split_once('-').ok_or(err)?;
        let owner = Owner::parse(owner).map_err(|_| err)?;
        if owner.kind() == OwnerKind::Platform {
            return Err(err);
        }
        Ok(Self { owner, actor: Actor::parse(actor).map_err(|_| err)? })
    }

    /// The key form `<owner>.<actor>`.
    pub fn key(&self) -> String {
        format!("{}.{}", self.owner, self.actor)
    }

    /// The name form `<owner>-<actor>`.
    pub fn name(&self) -> String {
        format!("{}-{}", self.owner, self.actor)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.owner, self.actor)
    }
}

/// The key form.
impl FromStr for Principal {
    type Err = TokenError;

    fn from_str(s: &str) -> Result<Self, TokenError> {
        Self::parse_key(s)
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse_key(&raw).map_err(de::Error::custom)
    }
}
