//! Stage, release, accept (contract 03 §H.3, §H.6).

use cotal_broker::kv::WriteOutcome;
use cotal_wire::{
    EpError, Generation, Revision,
    names::accepted_key,
    rows::{AcceptedRow, AttemptState, IssuedAttempt, IssuedAuthorityRef, IssuedEvidence, IssuedIndex},
};

use super::store::IssuedStore;
use crate::store::must_land;

/// An issuance that is written and not handed out. It can be released once.
#[must_use = "a staged authority is worth nothing until it is released"]
pub struct StagedAuthority {
    store: IssuedStore,
    evidence: IssuedEvidence,
    attempt: IssuedAttempt,
    prepared: Revision,
}

/// An issuance that became active at the revision at which it was prepared.
#[must_use = "nobody finds a released authority until it is accepted"]
pub struct ReleasedAuthority {
    store: IssuedStore,
    authority: IssuedAuthorityRef,
}

impl IssuedStore {
    /// Writes evidence, its attempt as `prepared`, and one index row a source, all create-only.
    ///
    /// Evidence of another space is `bad-request`; any of these keys taken before is `conflict`, with a marker on the
    /// evidence key `failed-precondition`; an ambiguous write is `unavailable`. Whatever was written by then stays: it
    /// resolves to nothing.
    pub async fn stage(&self, evidence: IssuedEvidence) -> Result<StagedAuthority, EpError> {
        let authority = evidence.authority();
        if authority.space != *self.space() {
            return Err(EpError::bad_request("issued authority: the evidence is of another space"));
        }
        let key = authority.evidence_key();
        if self.issued().bucket().first_authority(&key).await?.is_some() {
            return Err(EpError::conflict(
                "issued authority: this generation was issued before; choose a new one",
            ));
        }
        let attempt = IssuedAttempt::prepared(&evidence);
        must_land(self.issued().create(&key, evidence.to_bytes()).await, "issued evidence")?;
        let created = self.issued().create(&authority.attempt_key(), attempt.to_bytes()).await;
        let prepared = must_land(created, "issued attempt")?;
        for source in evidence.sources() {
            let row = IssuedIndex { source: source.clone(), authority: authority.clone() };
            must_land(self.issued().create(&row.key(), row.to_bytes()).await, "issued index")?;
        }
        Ok(StagedAuthority { store: self.clone(), evidence, attempt, prepared })
    }
}

impl StagedAuthority {
    /// What was staged.
    pub fn evidence(&self) -> &IssuedEvidence {
        &self.evidence
    }

    /// Runs the finalizer, then makes the attempt active, pinned to the revision at which it was prepared. Nothing is
    /// read in between: whoever retired it meanwhile has won.
    ///
    /// When either fails the issuance is retired and the failure returned; when that fails too, both are told, under
    /// the code of the first.
    pub async fn release<T>(
        self,
        finalizer: impl Future<Output = Result<T, EpError>>,
    ) -> Result<(ReleasedAuthority, T), EpError> {
        let failure = match finalizer.await {
            Ok(finalized) => match self.activate().await {
                Ok(()) => {
                    let authority = self.evidence.authority().clone();
                    return Ok((ReleasedAuthority { store: self.store, authority }, finalized));
                }
                Err(failure) => failure,
            },
            Err(failure) => failure,
        };
        match self.store.retire(self.evidence.authority()).await {
            Ok(_) => Err(failure),
            Err(retiring) => Err(EpError {
                message: format!("{}; and the issuance could not be retired: {retiring}", failure.message),
                ..failure
            }),
        }
    }

    async fn activate(&self) -> Result<(), EpError> {
        let active = self.attempt.moved_to(AttemptState::Active).to_bytes();
        let key = self.evidence.authority().attempt_key();
        let moved = self.store.issued().update(&key, active, self.prepared).await;
        must_land(moved, "issued release").map(drop)
    }
}

impl ReleasedAuthority {
    /// The issuance.
    pub fn authority(&self) -> &IssuedAuthorityRef {
        &self.authority
    }

    /// Writes the accepted row of a connection's token, create-only: from here on that connection holds this issuance
    /// and no other.
    ///
    /// A token that is taken is `conflict`, and the issuance that then nobody holds is retired. An ambiguous write is
    /// `unavailable` and retires nothing: the row may stand.
    pub async fn accept(self, token: &Generation) -> Result<IssuedAuthorityRef, EpError> {
        let row = AcceptedRow { authority: self.authority };
        let outcome = self.store.accepted()?.create(&accepted_key(token), row.to_bytes()).await;
        if outcome == WriteOutcome::Lost {
            let taken = "accepted: this connection token holds another issuance; connect under another nonce";
            return Err(match self.store.retire(&row.authority).await {
                Ok(_) => EpError::conflict(taken),
                Err(retiring) => EpError::conflict(format!(
                    "{taken}; and the new issuance could not be retired: {retiring}"
                )),
            });
        }
        must_land(outcome, "accepted row")?;
        Ok(row.authority)
    }
}
