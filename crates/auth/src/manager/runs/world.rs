//! What the decisions about runs read, and the connections over which a run's rows are written.

use async_trait::async_trait;
use cotal_authority::{
    issued::ResolvedAuthority,
    manager::runs::{AdmitterPurpose, DeclaredContract, Landing, RunAdmitter, RunWorld},
    registration::declared_command,
    run_records,
    run_rows::{RunRows, RunRowsWriter},
};
use cotal_ledger::TaggedRow;
use cotal_wire::{
    EpError, IdToken, InfraRole, InstanceId, Owner, Principal, Revision, UnixMillis,
    manager_authority::{MANAGER_CLUSTER, ObservedRequest, RunId},
    rows::{
        CheckpointStatus, EndpointGate, IssuedAuthorityRef, PauseWanted, RunAdmission, RunRevocation,
        RunStatus, RunSubmissionRow,
    },
};

use super::Parts;
use crate::manager::issuing::manager_instance;

/// One request's view of the world. It reads nothing before it is asked.
pub(super) struct World<'a> {
    pub(super) parts: &'a Parts,
}

impl World<'_> {
    /// The admission bucket, its shape proved anew: drift refuses before anything of it is believed.
    async fn rows(&self) -> Result<RunRows, EpError> {
        RunRows::bind(self.parts.issuing().await?.connection(), &self.parts.space).await
    }
}

#[async_trait]
impl RunWorld for World<'_> {
    fn now(&self) -> UnixMillis {
        self.parts.clock.now_millis()
    }

    fn check_open(&self) -> Result<(), EpError> {
        self.parts.plane.check_open()
    }

    async fn gate(&self, instance: &InstanceId) -> Result<Option<EndpointGate>, EpError> {
        Ok(self.parts.manager_gate(instance).await?.map(|at| at.gate))
    }

    async fn take_served(&self, subject: &str) -> Result<Option<ObservedRequest>, EpError> {
        self.parts.run_observer().await?.take_served(subject).await
    }

    async fn take_cancel(&self, subject: &str) -> Result<Option<ObservedRequest>, EpError> {
        self.parts.run_observer().await?.take_cancel(subject).await
    }

    async fn resolve(&self, authority: &IssuedAuthorityRef) -> Result<ResolvedAuthority, EpError> {
        let now = self.parts.clock.now_secs();
        self.parts.issuer.resolve(authority, &self.parts.ledger, now).await
    }

    async fn declared(
        &self,
        owner: &Owner,
        instance: &InstanceId,
        registration: Revision,
        command: &str,
    ) -> Result<Option<DeclaredContract>, EpError> {
        let at = manager_instance(instance);
        let registered = (owner, registration);
        let registry = self.parts.issuing().await?.registry();
        let declared = declared_command(registry, &at, registered, MANAGER_CLUSTER, command).await?;
        Ok(declared.as_ref().map(DeclaredContract::from))
    }

    async fn row(&self, principal: &Principal) -> Result<Option<TaggedRow>, EpError> {
        self.parts.row(&principal.owner, &principal.actor).await
    }

    async fn admission(&self, run: &RunId) -> Result<Option<(RunAdmission, Revision)>, EpError> {
        self.rows().await?.admission(run).await
    }

    async fn revocation(&self, run: &RunId) -> Result<Option<RunRevocation>, EpError> {
        self.rows().await?.revocation(run).await
    }

    async fn submission(&self, row: &RunSubmissionRow) -> Result<Option<RunSubmissionRow>, EpError> {
        self.rows().await?.submission(row).await
    }

    async fn status(&self, run: &RunId) -> Result<Option<RunStatus>, EpError> {
        run_records::run_status(self.parts.plane.stores(), run).await
    }

    async fn pause_token(
        &self,
        run: &RunId,
        step_key: &str,
        wanted: PauseWanted,
    ) -> Result<IdToken, EpError> {
        let Parts { connector, entropy, .. } = self.parts;
        run_records::pause_token(connector, &**entropy, (run, step_key), wanted).await
    }

    async fn checkpoint(&self, token: &IdToken) -> Result<Option<CheckpointStatus>, EpError> {
        run_records::checkpoint_status(self.parts.plane.stores(), token).await
    }

    async fn admitter(&self, purpose: AdmitterPurpose<'_>) -> Result<Box<dyn RunAdmitter>, EpError> {
        let (role, run, submission) = match purpose {
            AdmitterPurpose::Admission(run) | AdmitterPurpose::Revocation(run) => {
                (InfraRole::RUN_ADMITTER, run, None)
            }
            AdmitterPurpose::Submission(run, digest) => (InfraRole::KEYED_ADMITTER, run, Some(digest)),
            AdmitterPurpose::Cancel(run) => (InfraRole::RUN_CANCEL, run, None),
        };
        // Proved first: the writer's own credential may not look at the bucket's shape.
        self.rows().await?;
        let writer = RunRowsWriter::open(&self.parts.connector, role, run, submission).await?;
        Ok(Box::new(Admitter(writer)))
    }
}

struct Admitter(RunRowsWriter);

#[async_trait]
impl RunAdmitter for Admitter {
    async fn create_admission(&self, row: &RunAdmission) -> Result<Landing, EpError> {
        self.0.create_admission(row).await
    }

    async fn create_submission(&self, row: &RunSubmissionRow) -> Result<Landing, EpError> {
        self.0.create_submission(row).await
    }

    async fn create_revocation(&self, row: &RunRevocation) -> Result<Landing, EpError> {
        self.0.create_revocation(row).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
