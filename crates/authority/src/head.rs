//! The alias head: reads, and the one stamp that issuance puts on it (contract 07 §2.1, §2.5, §3.4).

use cotal_broker::{
    Connection,
    kv::{Bucket, WriteOutcome},
    shape,
};
use cotal_wire::{
    CredentialId, EpError, LifecycleUid, Names, Principal, Revision, Space, names,
    rows::{HeadState, HeadStep, LifecycleHead},
};

use crate::{
    store::{at_key, must_land},
    stores::AuthorityStores,
};

/// The way on from an incarnation that can no longer be entered: a re-grant retires it first, and the name is free again.
pub(crate) const GRANT_AGAIN: &str =
    "granting the actor again with `cotal actor grant` retires that incarnation and begins a new one";

/// A head as a leader read found it. Its revision is the `mappingRevision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadAt {
    /// The row.
    pub head: LifecycleHead,
    /// The store revision that it was read at.
    pub revision: Revision,
}

/// Reads the head: `failed-precondition` on a marker, `internal` on a garbled row.
pub(crate) async fn read_head(records: &Bucket, principal: &Principal) -> Result<Option<HeadAt>, EpError> {
    let key = names::head_key(principal);
    let Some(entry) = records.read_authority(&key).await? else { return Ok(None) };
    let head = at_key(&key, LifecycleHead::parse(principal, &entry.value))?;
    Ok(Some(HeadAt { head, revision: entry.revision }))
}

/// Writes the head's next state, pinned to the revision that its present one was read at.
pub(crate) async fn write_head(
    stores: &AuthorityStores,
    next: &LifecycleHead,
    read_at: Revision,
) -> WriteOutcome {
    let key = names::head_key(next.principal());
    stores.records_store().update(&key, next.to_bytes(), read_at).await
}

/// Stamps the incarnation's root credential, absent to present only (contract 07 §2.5 "stamp root credential").
///
/// The same id already there is success, another one `permission-denied`, a lost race `conflict`. The head is the one
/// that was read before the credential was staged: a barrier that contained the credential since then has moved it,
/// and the stamp loses.
pub(crate) async fn stamp_root(
    stores: &AuthorityStores,
    read: HeadAt,
    uid: &LifecycleUid,
    id: &CredentialId,
) -> Result<(), EpError> {
    match read.head.stamp_root(uid, id)? {
        HeadStep::Done(_) => Ok(()),
        HeadStep::Write(stamped) => {
            let outcome = write_head(stores, &stamped, read.revision).await;
            must_land(outcome, "root stamp").map(drop)
        }
    }
}

/// Reads mappings and nothing else: proves the records bucket only (contract 07 §3.4).
#[derive(Clone)]
pub struct MappingReader {
    records: Bucket,
}

impl MappingReader {
    /// Proves the records bucket over this connection.
    pub async fn bind(connection: &Connection, space: &Space) -> Result<Self, EpError> {
        let bucket = Names::new(&space.token()).records_bucket();
        shape::prove_authority_store(connection, &bucket, false).await?;
        Ok(Self { records: Bucket::new(connection, &bucket) })
    }

    /// The head in whatever state it is, by a leader read.
    pub async fn mapping(&self, principal: &Principal) -> Result<Option<HeadAt>, EpError> {
        read_head(&self.records, principal).await
    }

    /// The process epoch of an active head; `None` in any other state.
    pub async fn epoch(&self, principal: &Principal) -> Result<Option<u64>, EpError> {
        let found = self.mapping(principal).await?;
        Ok(found.filter(|at| *at.head.state() == HeadState::Active).map(|at| at.head.process_epoch()))
    }
}
