//! The rows of the admission bucket: read over one connection, written over another that is pinned to one run
//! (contract 03 §M, 06 §12).
//!
//! A key there is created once and stands for ever. A marker on one is corruption and never absence; an admission that
//! cannot be read admits nobody, and a revocation that cannot be read is a failure, never "not revoked".

use cotal_broker::{
    Connection, Connector, Lifetime,
    kv::{Bucket, WriteOutcome},
    shape::{EvidenceStore, prove_evidence_store},
};
use cotal_wire::{
    EndpointName, EndpointToken, EpError, InfraRole, Names, Revision, Sha256Hex, Space, SpaceToken,
    grants::runs::{AdmitterPin, run_admitter},
    manager_authority::RunId,
    names::{admission_key, revocation_key},
    rows::{RunAdmission, RunRevocation, RunSubmissionRow},
};

use crate::{
    manager::runs::Landing,
    store::{Store, ambiguous, at_key, unsent},
};

/// Lifetime of an admitter's credential, in seconds (contract 06 §12.1).
const ADMITTER_TTL_SECS: u64 = 60;

fn manager() -> EndpointToken {
    EndpointName::manager().token()
}

/// The admission bucket of a space, for reading; a value of this type means that its shape was proved.
#[derive(Clone)]
pub struct RunRows {
    space: SpaceToken,
    bucket: Bucket,
}

impl RunRows {
    /// Proves the bucket: absent or drifted is `failed-precondition`.
    pub async fn bind(connection: &Connection, space: &Space) -> Result<Self, EpError> {
        let space = space.token();
        prove_evidence_store(connection, &space, EvidenceStore::Admission).await?;
        let bucket = Bucket::new(connection, &Names::new(&space).admission_bucket());
        Ok(Self { space, bucket })
    }

    /// A run's admission on the manager endpoint. One that cannot be read, or is another run's, is `permission-denied`.
    pub async fn admission(&self, run: &RunId) -> Result<Option<(RunAdmission, Revision)>, EpError> {
        let key = admission_key(&manager(), run);
        let Some(entry) = self.bucket.read_authority(&key).await? else { return Ok(None) };
        let row = at_key(&key, RunAdmission::parse(&entry.value))
            .map_err(|refusal| EpError::permission_denied(refusal.message))?;
        if row.key() != key || *row.space() != self.space {
            return Err(EpError::permission_denied(format!("{key} holds the admission of another run")));
        }
        Ok(Some((row, entry.revision)))
    }

    /// A run's revocation.
    pub async fn revocation(&self, run: &RunId) -> Result<Option<RunRevocation>, EpError> {
        let key = revocation_key(&manager(), run);
        let Some(entry) = self.bucket.read_authority(&key).await? else { return Ok(None) };
        at_key(&key, RunRevocation::parse(run, &entry.value)).map(Some)
    }

    /// What stands for the id of a submission.
    pub async fn submission(&self, wanted: &RunSubmissionRow) -> Result<Option<RunSubmissionRow>, EpError> {
        let key = wanted.key();
        let Some(entry) = self.bucket.read_authority(&key).await? else { return Ok(None) };
        at_key(&key, RunSubmissionRow::parse(&key, &entry.value)).map(Some)
    }
}

/// The right to write one run's rows, over a connection that does nothing else and never reconnects.
pub struct RunRowsWriter {
    connection: Connection,
    store: Store,
}

impl RunRowsWriter {
    /// Opens it, for the run and, when one is bound, for its submission.
    pub async fn open(
        connector: &Connector,
        role: InfraRole,
        run: &RunId,
        submission: Option<&Sha256Hex>,
    ) -> Result<Self, EpError> {
        let space = connector.space();
        let token = space.token();
        let pin = AdmitterPin { endpoint: manager(), run: run.clone(), submission: submission.cloned() };
        let lifetime = Lifetime::OneShot { ttl_secs: ADMITTER_TTL_SECS, principal: None };
        let grants = |inbox: &cotal_wire::ConnId| run_admitter(&token, &pin, inbox);
        let connection = connector.open(role.label(space), &grants, lifetime).await?;
        let bucket = Bucket::new(&connection, &Names::new(&token).admission_bucket());
        Ok(Self { connection, store: Store::new(bucket) })
    }

    /// Creates an admission.
    pub async fn create_admission(&self, row: &RunAdmission) -> Result<Landing, EpError> {
        self.create(&row.key(), row.to_bytes(), "run admission").await
    }

    /// Creates a revocation.
    pub async fn create_revocation(&self, row: &RunRevocation) -> Result<Landing, EpError> {
        self.create(&row.key(&manager()), row.to_bytes(), "run revocation").await
    }

    /// Creates a submission.
    pub async fn create_submission(&self, row: &RunSubmissionRow) -> Result<Landing, EpError> {
        self.create(&row.key(), row.to_bytes(), "run submission").await
    }

    async fn create(&self, key: &str, row: Vec<u8>, what: &str) -> Result<Landing, EpError> {
        match self.store.create(key, row).await {
            WriteOutcome::Written(revision) => Ok(Landing::Created(revision)),
            WriteOutcome::Lost => Ok(Landing::Stands),
            WriteOutcome::Ambiguous(why) => Err(ambiguous(what, &why)),
            WriteOutcome::Refused(why) => Err(unsent(what, &why)),
        }
    }

    /// Drains the connection. What was written is written, whether or not the broker lets go of it in time.
    pub async fn close(&self) {
        if let Err(refusal) = self.connection.close().await {
            tracing::warn!(%refusal, "a run admitter's connection did not end");
        }
    }

    /// Has every write watched.
    #[cfg(any(test, feature = "failpoints"))]
    pub fn watch(&self, failpoint: &std::sync::Arc<crate::failpoint::Failpoint>) {
        self.store.set_failpoint(failpoint.clone());
    }
}
