//! Resolving an issuance for whoever acts for its caller, and confirming one that is renewed (contract 03 §H.3).

use cotal_wire::{
    EpError, Revision, UnixSecs,
    rows::{AttemptState, IssuedAuthorityRef, IssuedEvidence, IssuedPermissions},
};

use super::{
    sources::SourceLiveness,
    store::{AttemptRead, IssuedStore},
};

/// An issuance that stood, whole, between two reads of its attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedAuthority {
    /// What was issued.
    pub evidence: IssuedEvidence,
    /// The revision of its attempt, which both reads found.
    pub revision: Revision,
}

impl IssuedStore {
    /// What was issued, if it stands now. Everything that does not stand is `permission-denied`; what cannot be read
    /// is `unavailable`, a marker `failed-precondition`, garbled evidence `internal`.
    ///
    /// The attempt is read again at the end and must be at the same revision: a source that ended while the others
    /// were looked at has then not been missed by a retirement that came in between.
    pub async fn resolve(
        &self,
        authority: &IssuedAuthorityRef,
        sources: &dyn SourceLiveness,
        now: UnixSecs,
    ) -> Result<ResolvedAuthority, EpError> {
        let (evidence, revision) = self.active(authority).await?;
        check_time(&evidence, now)?;
        for source in evidence.sources() {
            if !sources.is_live(source).await? {
                return Err(EpError::permission_denied(
                    "issued authority: what it rests on has ended; connect again under another nonce",
                ));
            }
        }
        match check_attempt(&evidence, self.attempt(authority).await?) {
            Ok(again) if again == revision => Ok(ResolvedAuthority { evidence, revision }),
            _ => {
                Err(EpError::permission_denied("issued authority: it moved while it was resolved; ask again"))
            }
        }
    }

    /// Renews: the issuance must be active and its ceiling the same text, the order of entries included. Anything not
    /// active is `permission-denied`, another ceiling `failed-precondition`.
    pub async fn confirm(
        &self,
        authority: &IssuedAuthorityRef,
        permissions: &IssuedPermissions,
    ) -> Result<(), EpError> {
        let (evidence, _) = self.active(authority).await?;
        match evidence.permissions().is_same_text(permissions) {
            Ok(true) => Ok(()),
            _ => Err(EpError::failed_precondition(
                "issued authority: the ceiling is another one than was issued; connect again under another nonce",
            )),
        }
    }

    async fn active(&self, authority: &IssuedAuthorityRef) -> Result<(IssuedEvidence, Revision), EpError> {
        let evidence = check_evidence(authority, self.evidence(authority).await?)?;
        let revision = check_attempt(&evidence, self.attempt(authority).await?)?;
        Ok((evidence, revision))
    }
}

fn check_evidence(
    authority: &IssuedAuthorityRef,
    evidence: Option<IssuedEvidence>,
) -> Result<IssuedEvidence, EpError> {
    evidence.filter(|evidence| evidence.authority() == authority).ok_or_else(|| {
        EpError::permission_denied("issued authority: nothing was issued under this reference")
    })
}

fn check_attempt(evidence: &IssuedEvidence, attempt: AttemptRead) -> Result<Revision, EpError> {
    match attempt {
        AttemptRead::At(attempt, revision)
            if attempt.state == AttemptState::Active && attempt.digest == evidence.digest() =>
        {
            Ok(revision)
        }
        _ => Err(EpError::permission_denied("issued authority: it is not active")),
    }
}

fn check_time(evidence: &IssuedEvidence, now: UnixSecs) -> Result<(), EpError> {
    match evidence.expires_at() {
        Some(at) if now >= at => Err(EpError::permission_denied("issued authority: it has expired")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::{
        DigestRef, EpCode, Generation, LifecycleUid, Permissions, Principal, SpaceToken, rows::IssuedAttempt,
    };

    use super::*;

    fn evidence(expires_at: u64) -> IssuedEvidence {
        let authority = IssuedAuthorityRef {
            space: SpaceToken::parse("demo").unwrap(),
            principal: Principal::parse_key("local.a").unwrap(),
            uid: LifecycleUid::parse(&"u".repeat(26)).unwrap(),
            generation: Generation::parse(&"0".repeat(32)).unwrap(),
        };
        let permissions = IssuedPermissions::of_grants(&Permissions::default()).unwrap();
        IssuedEvidence::new(authority, vec![], permissions, Some(UnixSecs(expires_at))).unwrap()
    }

    #[test]
    fn an_issuance_ends_at_its_second_and_not_after_it() {
        for (now, ok) in [(8, true), (9, false), (10, false)] {
            assert_eq!(check_time(&evidence(9), UnixSecs(now)).is_ok(), ok, "{now}");
        }
    }

    #[test]
    fn only_an_active_attempt_of_this_very_evidence_counts() {
        let evidence = evidence(9);
        let prepared = IssuedAttempt::prepared(&evidence);
        let at = |attempt| AttemptRead::At(attempt, Revision(7));
        let active = prepared.moved_to(AttemptState::Active);
        assert_eq!(check_attempt(&evidence, at(active.clone())), Ok(Revision(7)));
        let foreign = IssuedAttempt { digest: DigestRef::of_sha256(&[0; 32]), ..active };
        for bad in [
            AttemptRead::Absent,
            AttemptRead::Garbled(EpError::internal("x")),
            at(foreign),
            at(prepared.moved_to(AttemptState::Revoked)),
            at(prepared.moved_to(AttemptState::Aborted)),
            at(prepared),
        ] {
            let refusal = check_attempt(&evidence, bad.clone()).unwrap_err();
            assert_eq!(refusal.code, EpCode::PermissionDenied, "{bad:?}");
        }
    }

    #[test]
    fn evidence_of_another_reference_is_no_evidence() {
        let evidence = evidence(9);
        let mut other = evidence.authority().clone();
        other.generation = Generation::parse(&"1".repeat(32)).unwrap();
        assert!(check_evidence(evidence.authority(), Some(evidence.clone())).is_ok());
        for (authority, found) in [(&other, Some(evidence.clone())), (evidence.authority(), None)] {
            assert_eq!(check_evidence(authority, found).unwrap_err().code, EpCode::PermissionDenied);
        }
    }
}
