//! The evidence stores over one connection, sealed: a value of this type means that their shape was proved.

use std::{sync::Arc, time::Duration};

use cotal_broker::{
    Connection,
    kv::{Bucket, LeaderRead},
    shape::{EvidenceStore, prove_evidence_store},
};
use cotal_wire::{
    EpError, Generation, Names, Revision, Space, SpaceToken,
    names::accepted_key,
    rows::{AcceptedRow, IssuedAttempt, IssuedAuthorityRef, IssuedEvidence, IssuedIndex},
};

use crate::store::{Store, at_key};

/// How long the read of an accepted row may take (contract 03 §H.6).
const ACCEPTED_TIMEOUT: Duration = Duration::from_secs(3);

/// The proved evidence stores of one space. Clones share them.
#[derive(Clone)]
pub struct IssuedStore {
    inner: Arc<Inner>,
}

struct Inner {
    space: SpaceToken,
    issued: Store,
    /// Only an issuer session accepts.
    accepted: Option<Store>,
    auth: Bucket,
}

/// The attempt row as a leader read found it. A marker is no reading of it: that is `failed-precondition`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AttemptRead {
    Absent,
    Garbled(EpError),
    At(IssuedAttempt, Revision),
}

impl IssuedStore {
    /// Proves the issued and the accepted store. A space whose name is not its own token has no issued authority
    /// (contract 03 §H.1): `failed-precondition`.
    pub async fn bind(connection: &Connection, space: &Space) -> Result<Self, EpError> {
        let token = check_space(space)?;
        prove_evidence_store(connection, &token, EvidenceStore::Issued).await?;
        prove_evidence_store(connection, &token, EvidenceStore::Accepted).await?;
        let accepted = Bucket::new(connection, &Names::new(&token).accepted_bucket());
        Ok(Self::over(connection, token, Some(Store::new(accepted.with_timeout(ACCEPTED_TIMEOUT)))))
    }

    /// Proves the issued store alone: whoever only resolves or retires needs no more.
    pub(super) async fn bind_issued(connection: &Connection, space: SpaceToken) -> Result<Self, EpError> {
        prove_evidence_store(connection, &space, EvidenceStore::Issued).await?;
        Ok(Self::over(connection, space, None))
    }

    fn over(connection: &Connection, space: SpaceToken, accepted: Option<Store>) -> Self {
        let names = Names::new(&space);
        let issued = Store::new(Bucket::new(connection, &names.issued_bucket()));
        let auth = Bucket::new(connection, &names.auth_bucket());
        Self { inner: Arc::new(Inner { space, issued, accepted, auth }) }
    }

    /// The space.
    pub fn space(&self) -> &SpaceToken {
        &self.inner.space
    }

    pub(super) fn issued(&self) -> &Store {
        &self.inner.issued
    }

    pub(super) fn auth(&self) -> &Bucket {
        &self.inner.auth
    }

    pub(super) fn accepted(&self) -> Result<&Store, EpError> {
        self.inner
            .accepted
            .as_ref()
            .ok_or_else(|| EpError::internal("issued authority: this connection accepts nothing"))
    }

    /// The evidence, as it was created: the first message of its key.
    pub(super) async fn evidence(
        &self,
        authority: &IssuedAuthorityRef,
    ) -> Result<Option<IssuedEvidence>, EpError> {
        let key = authority.evidence_key();
        let Some(entry) = self.issued().bucket().first_authority(&key).await? else { return Ok(None) };
        at_key(&key, IssuedEvidence::parse(&entry.value)).map(Some)
    }

    /// The attempt, as it stands: the last message of its key.
    pub(super) async fn attempt(&self, authority: &IssuedAuthorityRef) -> Result<AttemptRead, EpError> {
        let key = authority.attempt_key();
        let Some(entry) = self.issued().read(&key).await? else { return Ok(AttemptRead::Absent) };
        Ok(match at_key(&key, IssuedAttempt::parse(&entry.value)) {
            Ok(attempt) => AttemptRead::At(attempt, entry.revision),
            Err(garbled) => AttemptRead::Garbled(garbled),
        })
    }

    /// The index row under this key; it is there, because a listing just named it.
    pub(super) async fn index(&self, key: &str) -> Result<IssuedIndex, EpError> {
        let entry = self.issued().bucket().first_authority(key).await?;
        let entry = entry.ok_or_else(|| {
            EpError::internal(format!("issued index: {} was listed and is not there", key.escape_default()))
        })?;
        at_key(key, IssuedIndex::parse(key, &entry.value))
    }

    /// The accepted row of a token, read as its client reads it (contract 03 §H.6).
    pub(super) async fn accepted_row(&self, token: &Generation) -> Result<Option<AcceptedRow>, EpError> {
        let key = accepted_key(token);
        match self.accepted()?.bucket().direct_read(&key).await? {
            LeaderRead::Absent => Ok(None),
            LeaderRead::Value(entry) => at_key(&key, AcceptedRow::parse(&entry.value)).map(Some),
            LeaderRead::Marker(revision) => Err(EpError::failed_precondition(format!(
                "accepted: {key} holds a deletion marker at revision {}; accepted rows are never deleted, connect \
                 under another nonce",
                revision.0
            ))),
        }
    }

    #[cfg(any(test, feature = "failpoints"))]
    pub(crate) fn set_failpoint(&self, failpoint: &Arc<crate::failpoint::Failpoint>) {
        self.inner.issued.set_failpoint(failpoint.clone());
        if let Some(accepted) = &self.inner.accepted {
            accepted.set_failpoint(failpoint.clone());
        }
    }
}

/// Refuses `failed-precondition` for a space in which nothing can be issued, because its name is not its own token
/// (contract 03 §H.1).
pub fn check_space(space: &Space) -> Result<SpaceToken, EpError> {
    canonical(space).ok_or_else(|| {
        EpError::failed_precondition(
            "issued authority: this space's name is not a subject token (A-Z a-z 0-9 _ -), so nothing can be issued in \
             it; connect without a view that needs it",
        )
    })
}

/// The token of a space whose name is its own token.
pub(super) fn canonical(space: &Space) -> Option<SpaceToken> {
    let token = space.token();
    (token.as_str() == space.as_str()).then_some(token)
}
