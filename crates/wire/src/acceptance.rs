//! Who submitted what: the identity that decision, completion and work subjects end in (contract 02 §2.3).

use std::fmt;

use crate::{
    endpoint_subject::MAX_RAIL_SLOT,
    endpoint_token::IdToken,
    token::{LifecycleUid, Principal},
};

/// An incarnation that calls: `<cO>.<cA>.<cUid>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller {
    /// Owner and actor.
    pub principal: Principal,
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
}

/// One submission of a caller: `<cO>.<cA>.<cUid>.<id>`. A goal is named the same way, by its own id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acceptance {
    /// Who submitted.
    pub caller: Caller,
    /// The request's id, or the goal's.
    pub id: IdToken,
}

impl Caller {
    /// Reads three tokens.
    pub fn of_tokens([owner, actor, uid]: [&str; 3]) -> Option<Self> {
        if actor.len() > MAX_RAIL_SLOT {
            return None;
        }
        Some(Self {
            principal: Principal::parse_key(&format!("{owner}.{actor}")).ok()?,
            lifecycle_uid: LifecycleUid::parse(uid).ok()?,
        })
    }
}

impl Acceptance {
    /// Reads four tokens.
    pub fn of_tokens([owner, actor, uid, id]: [&str; 4]) -> Option<Self> {
        Some(Self { caller: Caller::of_tokens([owner, actor, uid])?, id: IdToken::parse(id).ok()? })
    }

    /// The same caller under another id: the goal that a request drives.
    pub fn with_id(&self, id: IdToken) -> Self {
        Self { caller: self.caller.clone(), id }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.principal, self.lifecycle_uid)
    }
}

impl fmt::Display for Acceptance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.caller, self.id)
    }
}
