//! Stored rows: their closed schemas, exact byte forms and pure transitions (contract 02 §3, 07 §2 and §4).
//!
//! A row's `parse` takes the key that it was read under and its bytes. Every failure, from bytes that are not JSON to
//! a row that belongs to another key, is `internal`: trusted state is garbled. `to_bytes` prints the compact JSON
//! that every writer prints, members in the contract's order, so that a retried create can compare bytes.
//!
//! A transition consumes the state that was read and answers the state to write, or the refusal. The write itself,
//! pinned to the revision that was read, is room `authority`'s.

mod blocked;
mod checkpoint;
mod closed;
mod credential;
mod endpoint_gate;
mod facts;
mod frontier;
mod gate;
mod goal_index;
mod govern;
mod head;
mod intent;
mod issued;
mod issued_permissions;
mod lease;
mod natkey;
mod obligation;
mod ownership;
mod plane_claim;
mod policy;
mod read_acl;
mod repair_cursor;
mod run_admission;
mod run_journal;
mod run_record;
mod service;
mod service_admission;
mod session;
mod source;
mod uid;

pub use crate::error::detail::LIFECYCLE_BLOCKED;
pub use checkpoint::CheckpointStatus;
pub(crate) use closed::{compact, safe_uint};
pub use credential::{CredentialFamily, CredentialKey, CredentialRow, CredentialState};
pub use endpoint_gate::{EndpointGate, GateCoordinate};
pub use facts::{
    AcceptedFact, Cancellation, CancelledBy, Decision, Disposition, EffectFact, EffectOutcome, GoalOutcome,
    GoalResult, MAX_REJECTION_DETAIL, RejectedFact, Rejection, WorkTerminal, Worker,
};
pub use frontier::FrontierRecord;
pub use gate::{AgentGate, GateOp, GateState, OpKind};
pub use goal_index::{Allocated, GoalIndexRow};
pub use govern::{GOVERNED_TRAITS, GovernHead, Governed, Provisional, SlotHolder};
pub use head::{HeadState, HeadStep, LifecycleHead};
pub use intent::{Intent, IntentHeader, RetirementIntent, TakeoverIntent};
pub use issued::{
    AcceptedRow, AttemptState, IssuedAttempt, IssuedAuthorityRef, IssuedEvidence, IssuedIndex, KnownSource,
    SourceRef,
};
pub use issued_permissions::{ConcreteSubject, IssuedAllow, IssuedPermissions, IssuedRules, SubjectPattern};
pub use lease::{ItemRef, Lease, Settlement};
pub use natkey::NatkeyRow;
pub use obligation::{
    Commit, CommitValue, FactWork, Obligation, ObligationKey, ObligationState, Owed, Route, RoutedPool,
};
pub use ownership::{Ownership, SessionOwnership};
pub use plane_claim::{ClaimState, PlaneClaim, PlaneTuple};
pub use policy::PolicyRow;
pub use read_acl::ReadAcl;
pub use repair_cursor::RepairCursor;
pub use run_admission::{RunAdmission, RunProvenance, RunRevocation, RunSubmissionRow};
pub use run_journal::{PauseReader, PauseWanted};
pub use run_record::{RunState, RunStatus, check_run_spec};
pub use service::{Activation, ServiceSpec, ServiceStatus, StatusState, SupervisorRestart};
pub use service_admission::ServiceAdmission;
pub use session::{SessionParty, SessionRow, SessionState};
pub use source::{BySource, SourceGate, SourceMember};
pub use uid::UidReservation;
