//! Signing JWTs for keys that a manager holds.

use cotal_trust::mint::{self, CredentialKind, PublicUser};
use cotal_wire::{
    EpCode, EpError, Nkey, Permissions, Principal, SpaceToken, UnixMillis, UnixSecs, User,
    manager_authority::IssuedJwt,
};

use super::Parts;

/// What the credentials of one answer are minted with: one instant, and one bound.
pub(super) struct Minting<'a> {
    parts: &'a Parts,
    space: SpaceToken,
    issued_at: UnixMillis,
    now: UnixSecs,
    end: Option<UnixSecs>,
}

impl<'a> Minting<'a> {
    /// Mints of now, none of which outlives `end`. An end that is past is `expired`.
    pub(super) fn new(parts: &'a Parts, end: Option<UnixSecs>) -> Result<Self, EpError> {
        let (issued_at, now) = (parts.clock.now_millis(), parts.clock.now_secs());
        if end.is_some_and(|end| end <= now) {
            return Err(EpError::new(EpCode::Expired, "what bounds this manager's credentials is over"));
        }
        Ok(Self { parts, space: parts.space.token(), issued_at, now, end })
    }

    pub(super) fn space(&self) -> &SpaceToken {
        &self.space
    }

    pub(super) fn now(&self) -> UnixSecs {
        self.now
    }

    pub(super) fn now_millis(&self) -> UnixMillis {
        self.issued_at
    }

    /// So many seconds from now, or the bound when that is sooner.
    pub(super) fn expiry_in(&self, ttl_secs: u64) -> UnixSecs {
        let exp = self.now.plus(ttl_secs);
        self.end.map_or(exp, |end| exp.min(end))
    }

    /// The expiry of a standing credential, as the host's composition has it.
    pub(super) fn standing_expiry(&self) -> UnixSecs {
        self.expiry_in(self.parts.standing_ttl_secs)
    }

    /// The expiry of a one-shot credential, as its profile has it.
    pub(super) fn one_shot_expiry(&self, kind: CredentialKind) -> Result<UnixSecs, EpError> {
        let ttl = kind.default_ttl().ok_or_else(|| EpError::internal(format!("{kind} is unbounded")))?;
        Ok(self.expiry_in(ttl))
    }

    /// The JWT of a key that the manager holds. One that would be longer than a user's may be is `failed-precondition`.
    pub(super) fn mint(
        &self,
        kind: CredentialKind,
        key: &Nkey<User>,
        principal: &Principal,
        permissions: Permissions,
        exp: UnixSecs,
    ) -> Result<IssuedJwt, EpError> {
        let user = PublicUser { kind, key, principal, permissions, exp };
        let jwt = mint::mint_public_user(&self.parts.data_account, user, self.now)
            .map_err(|error| EpError::failed_precondition(error.0))?;
        Ok(IssuedJwt { jwt, exp })
    }
}
