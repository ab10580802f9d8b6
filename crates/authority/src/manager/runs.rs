//! The decisions about runs, in the contract's order (contract 06 §12; 03 §M-Q; 10 §3; 14 §3).
//!
//! Unlike the other kinds these read one thing after another, and what is read later must not be read, and an observation
//! not be taken, by a request that an earlier check refuses. So each decision walks the contract's order over a [`RunWorld`],
//! which only reads; every step of it is a function of what was read, and what may be written is the last thing that it asks
//! for.

mod admission;
mod attempt;
mod ending;
mod observations;
mod served;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use cotal_ledger::TaggedRow;
use cotal_wire::{
    DigestRef, EndpointName, EndpointToken, EpError, IdToken, InstanceId, Owner, Principal, Revision,
    Sha256Hex, UnixMillis,
    contract::ClusterCommand,
    envelope::CallClass,
    es_value::EsValue,
    manager_authority::{Envelope, ObservedRequest, Renewal, RunId},
    rows::{
        CheckpointStatus, EndpointGate, IssuedAuthorityRef, PauseWanted, RunAdmission, RunRevocation,
        RunStatus, RunSubmissionRow,
    },
};

pub use admission::{admit, submit};
pub use attempt::{GrantedTurn, TurnPins, decide_attempt, decide_renewed_run};
pub use ending::{cancel, revoke};
pub use observations::{Limits, OVERHEAD, ObservationTable, WINDOW_MS};

use super::{
    Holder, LifecycleHost,
    registration::{CurrentManager, check_current},
};
use crate::issued::ResolvedAuthority;

/// What the registered cluster declares of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredContract {
    /// How it is carried.
    pub class: CallClass,
    /// Its input contract.
    pub input_digest: DigestRef,
    /// Its output contract.
    pub output_digest: DigestRef,
}

impl From<&ClusterCommand> for DeclaredContract {
    fn from(command: &ClusterCommand) -> Self {
        Self {
            class: command.class,
            input_digest: command.input_digest.clone(),
            output_digest: command.output_digest.clone(),
        }
    }
}

/// What the decisions read, each when its turn comes, through the leader and fresh.
#[async_trait]
pub trait RunWorld: Send + Sync {
    /// Now.
    fn now(&self) -> UnixMillis;
    /// Refuses once the plane is fenced or closes: asked again before a write.
    fn check_open(&self) -> Result<(), EpError>;
    /// A manager's gate.
    async fn gate(&self, instance: &InstanceId) -> Result<Option<EndpointGate>, EpError>;
    /// Takes what was seen on a served subject, once.
    async fn take_served(&self, subject: &str) -> Result<Option<ObservedRequest>, EpError>;
    /// Takes what was seen on a cancellation's subject, once.
    async fn take_cancel(&self, subject: &str) -> Result<Option<ObservedRequest>, EpError>;
    /// An issuance that stands, its sources live.
    async fn resolve(&self, authority: &IssuedAuthorityRef) -> Result<ResolvedAuthority, EpError>;
    /// What the manager's cluster declares of a command, at exactly this registration; `None` when it has none of the name.
    async fn declared(
        &self,
        owner: &Owner,
        instance: &InstanceId,
        registration: Revision,
        command: &str,
    ) -> Result<Option<DeclaredContract>, EpError>;
    /// A row of the ledger, of either kind.
    async fn row(&self, principal: &Principal) -> Result<Option<TaggedRow>, EpError>;
    /// A run's admission and its revision. Unreadable is `permission-denied`, a marker `failed-precondition`.
    async fn admission(&self, run: &RunId) -> Result<Option<(RunAdmission, Revision)>, EpError>;
    /// A run's revocation.
    async fn revocation(&self, run: &RunId) -> Result<Option<RunRevocation>, EpError>;
    /// The row of an owner's submission.
    async fn submission(&self, row: &RunSubmissionRow) -> Result<Option<RunSubmissionRow>, EpError>;
    /// How a run stands by its record, or `None` when it has none yet.
    async fn status(&self, run: &RunId) -> Result<Option<RunStatus>, EpError>;
    /// The token of a step's pause, off the run's own journal.
    async fn pause_token(&self, run: &RunId, step_key: &str, wanted: PauseWanted)
    -> Result<IdToken, EpError>;
    /// How a checkpoint stands.
    async fn checkpoint(&self, token: &IdToken) -> Result<Option<CheckpointStatus>, EpError>;
    /// The right to write one run's rows, over a connection of its own.
    async fn admitter(&self, purpose: AdmitterPurpose<'_>) -> Result<Box<dyn RunAdmitter>, EpError>;
}

/// What a run's rows are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmitterPurpose<'a> {
    /// Its admission.
    Admission(&'a RunId),
    /// Its admission, and the row of the submission of this digest.
    Submission(&'a RunId, &'a Sha256Hex),
    /// Its revocation.
    Revocation(&'a RunId),
    /// Its revocation by a cancellation.
    Cancel(&'a RunId),
}

/// What a create-only write came to. An ambiguous one is `unavailable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// It stands now, at this revision.
    Created(Revision),
    /// Another one stood there already.
    Stands,
}

/// Writes one run's rows, each create-only.
#[async_trait]
pub trait RunAdmitter: Send + Sync {
    /// Creates an admission.
    async fn create_admission(&self, row: &RunAdmission) -> Result<Landing, EpError>;
    /// Creates a submission.
    async fn create_submission(&self, row: &RunSubmissionRow) -> Result<Landing, EpError>;
    /// Creates a revocation.
    async fn create_revocation(&self, row: &RunRevocation) -> Result<Landing, EpError>;
    /// Lets go of the connection: drained, or closed when that fails.
    async fn close(&self);
}

/// The endpoint of every run here.
fn manager() -> EndpointToken {
    EndpointName::manager().token()
}

/// The instance as a request names it before it was parsed: the holder rule of some kinds comes first, and whatever is no
/// text names no assignment.
fn raw_instance(request: &EsValue) -> &str {
    request
        .as_object()
        .and_then(|object| object.get("instanceId"))
        .and_then(EsValue::as_text)
        .unwrap_or_default()
}

/// What all kinds about runs stand on (contract 06 §12): the host's space and account, then the current registration of
/// `owner`'s manager.
fn check_registered(
    host: LifecycleHost<'_>,
    envelope: &Envelope,
    pins: &Renewal,
    owner: &Owner,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    if envelope.space != host.space.as_str() || pins.account != *host.account {
        return Err(EpError::permission_denied(
            "the request names another space or data account than this service's",
        ));
    }
    check_current(gate, envelope, Some(pins.process_epoch), owner, host.proof)
}

/// A human holder's refusal in the words of a kind; a platform's stays as it is.
fn in_words(holder: &Holder, verdict: Result<(), EpError>, words: &str) -> Result<(), EpError> {
    verdict.map_err(|refusal| match holder {
        Holder::Human { .. } => EpError { message: words.to_owned(), ..refusal },
        Holder::Platform { .. } | Holder::Supervisor { .. } => refusal,
    })
}
