//! Whose a session is, by the host's own word.
//!
//! The ledger of sessions is one for all managers of a space, and each may write another's row (contract 01 §6.6). So whoever is
//! granted a side of a session first, a manager its serving one or a caller its own, binds it to their owner: from then on nobody
//! of another owner is granted the other side, whatever its row says by then.
//!
//! Nothing that is granted under a session outlives its binding, and the binding lasts as long as the contract lets a session
//! (03 §R). A binding that is over is removed later; a session of that id would then be another one, and meets none of the first.

use cotal_broker::kv::{LeaderRead, WriteOutcome};
use cotal_wire::{EpError, Owner, SessionId, UnixSecs, names::session_owner_key, rows::SessionOwnership};

use crate::{
    store::{ambiguous, at_key, unsent},
    stores::AuthorityStores,
};

/// How long a session lasts at the most, in seconds (contract 03 §R); no credential that serves one lives longer.
pub const SESSION_TTL_SECS: u64 = 86_400;

/// What the host has said of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing yet.
    Unbound,
    /// Whose it is.
    Bound(SessionOwnership),
    /// It was somebody's, and is over.
    Over,
}

/// Why nothing is granted under a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotOwn {
    /// Another owner's manager serves it, or another owner holds it.
    Anothers,
    /// It is over.
    Over,
}

/// A session that is its owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Nothing outlives this.
    pub(crate) until: UnixSecs,
    /// Whether it was bound by this very call.
    pub(crate) here: bool,
}

impl Standing {
    /// Until when anything may be granted to this owner; `None` when nobody is bound yet.
    pub(crate) fn of(&self, owner: &Owner, now: UnixSecs) -> Result<Option<UnixSecs>, NotOwn> {
        match self {
            Self::Unbound => Ok(None),
            Self::Over => Err(NotOwn::Over),
            Self::Bound(bound) if bound.owner != *owner => Err(NotOwn::Anothers),
            Self::Bound(bound) if bound.until <= now => Err(NotOwn::Over),
            Self::Bound(bound) => Ok(Some(bound.until)),
        }
    }
}

/// What the host has said of a session, read where it leads.
pub(crate) async fn standing(stores: &AuthorityStores, session: &SessionId) -> Result<Standing, EpError> {
    let key = session_owner_key(session);
    stores.auth_store().count_request();
    match stores.auth().leader_read(&key).await? {
        LeaderRead::Absent => Ok(Standing::Unbound),
        // Removed a moment ago.
        LeaderRead::Marker(_) => Ok(Standing::Over),
        LeaderRead::Value(entry) => at_key(&key, SessionOwnership::parse(&entry.value)).map(Standing::Bound),
    }
}

/// Binds a session to its owner, if nobody is bound yet.
pub(crate) async fn bind(
    stores: &AuthorityStores,
    session: &SessionId,
    owner: &Owner,
    now: UnixSecs,
) -> Result<Result<Bound, NotOwn>, EpError> {
    let before = |seen: Result<Option<UnixSecs>, NotOwn>| {
        seen.map(|until| until.map(|until| Bound { until, here: false })).transpose()
    };
    if let Some(seen) = before(standing(stores, session).await?.of(owner, now)) {
        return Ok(seen);
    }
    let what = "whose a session is";
    let row = SessionOwnership { owner: owner.clone(), until: now.plus(SESSION_TTL_SECS) };
    match stores.auth_store().create(&session_owner_key(session), row.to_bytes()).await {
        WriteOutcome::Written(_) => Ok(Ok(Bound { until: row.until, here: true })),
        WriteOutcome::Lost => before(standing(stores, session).await?.of(owner, now))
            .ok_or_else(|| EpError::unavailable(format!("{what}: it moved while it was written; retry"))),
        WriteOutcome::Ambiguous(why) => Err(ambiguous(what, &why)),
        WriteOutcome::Refused(why) => Err(unsent(what, &why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(letter: char) -> Owner {
        Owner::parse(&format!("u_{}", letter.to_string().repeat(26))).unwrap()
    }

    #[test]
    fn a_session_is_its_first_owners_until_it_is_over_and_nobodys_then() {
        let bound = Standing::Bound(SessionOwnership { owner: owner('a'), until: UnixSecs(9) });
        assert_eq!(Standing::Unbound.of(&owner('a'), UnixSecs(5)), Ok(None));
        assert_eq!(bound.of(&owner('a'), UnixSecs(8)), Ok(Some(UnixSecs(9))));
        assert_eq!(bound.of(&owner('a'), UnixSecs(9)), Err(NotOwn::Over));
        for now in [8, 9] {
            assert_eq!(bound.of(&owner('b'), UnixSecs(now)), Err(NotOwn::Anothers));
        }
        assert_eq!(Standing::Over.of(&owner('a'), UnixSecs(1)), Err(NotOwn::Over));
    }
}
