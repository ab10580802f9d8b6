//! Retiring issuances: one, and all that a source led to (contract 03 §H.3).

use cotal_broker::kv::WriteOutcome;
use cotal_wire::{
    EpCode, EpError,
    names::issued_source_filter,
    rows::{AttemptState, IssuedAuthorityRef, SourceRef},
};
use futures::{StreamExt, stream};

use super::store::{AttemptRead, IssuedStore};
use crate::store::{ambiguous, unsent};

/// How often a retirement is tried against writers that keep winning.
const RETIRE_ROUNDS: usize = 4;
/// How many issuances of a source are retired at once.
const WIDTH: usize = 16;

impl IssuedStore {
    /// Ends an issuance for good and says how it ended: `prepared` becomes `aborted`, `active` becomes `revoked`, and
    /// what has ended stays as it is.
    ///
    /// No evidence or no attempt is `not-found`; a garbled one `internal`; a marker `failed-precondition`; an attempt
    /// that kept moving, and an ambiguous write, `unavailable`.
    pub async fn retire(&self, authority: &IssuedAuthorityRef) -> Result<AttemptState, EpError> {
        let evidence = self.evidence(authority).await?.ok_or_else(|| nothing_to_retire("evidence"))?;
        if evidence.authority() != authority {
            return Err(EpError::internal("retire: the evidence under this key is of another issuance"));
        }
        for _ in 0..RETIRE_ROUNDS {
            let (attempt, revision) = match self.attempt(authority).await? {
                AttemptRead::At(attempt, revision) => (attempt, revision),
                AttemptRead::Absent => return Err(nothing_to_retire("attempt")),
                AttemptRead::Garbled(garbled) => return Err(garbled),
            };
            let Some(next) = retirement_step(attempt.state) else { return Ok(attempt.state) };
            let row = attempt.moved_to(next).to_bytes();
            match self.issued().update(&authority.attempt_key(), row, revision).await {
                WriteOutcome::Written(_) => return Ok(next),
                WriteOutcome::Lost => {}
                WriteOutcome::Ambiguous(why) => return Err(ambiguous("retire", &why)),
                WriteOutcome::Refused(why) => return Err(unsent("retire", &why)),
            }
        }
        Err(EpError::unavailable("retire: the issuance kept moving; retry"))
    }

    /// Retires every issuance that rests on a source, and says how many there are, ended ones included. The caller
    /// froze the source before: an issuance that is staged from now on does not resolve.
    ///
    /// A source of another space is `bad-request`. An index row that disagrees with its key or with the evidence is
    /// `internal`. One failure does not spare the others: each is tried, then the first failure is returned.
    pub async fn retire_source(&self, source: &SourceRef) -> Result<u64, EpError> {
        if source.space() != self.space() {
            return Err(EpError::bad_request("retire: the source is of another space"));
        }
        let keys = self.issued().bucket().keys(&issued_source_filter(&source.digest())).await?;
        let outcomes: Vec<Result<(), EpError>> =
            stream::iter(keys.into_iter().map(|key| async move { self.retire_indexed(&key, source).await }))
                .buffered(WIDTH)
                .collect()
                .await;
        let count = outcomes.len() as u64;
        outcomes.into_iter().collect::<Result<(), EpError>>().map(|()| count)
    }

    async fn retire_indexed(&self, key: &str, source: &SourceRef) -> Result<(), EpError> {
        let index = self.index(key).await?;
        let evidence = self.evidence(&index.authority).await?;
        let agrees = evidence.is_some_and(|evidence| {
            index.source == *source
                && *evidence.authority() == index.authority
                && evidence.sources().contains(source)
        });
        if !agrees {
            return Err(EpError::internal(format!(
                "retire: the index row {} disagrees with the evidence that it points to",
                key.escape_default()
            )));
        }
        self.retire(&index.authority).await.map(drop)
    }
}

/// What retiring writes; `None` when it has ended.
pub(crate) fn retirement_step(state: AttemptState) -> Option<AttemptState> {
    (!state.is_terminal()).then(|| state.retired())
}

fn nothing_to_retire(what: &str) -> EpError {
    EpError::new(EpCode::NotFound, format!("retire: there is no such issuance (no {what})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_is_not_written_again() {
        use AttemptState::{Aborted, Active, Prepared, Revoked};
        for (state, step) in
            [(Prepared, Some(Aborted)), (Active, Some(Revoked)), (Aborted, None), (Revoked, None)]
        {
            assert_eq!(retirement_step(state), step);
        }
    }
}
