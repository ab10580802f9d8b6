//! What a remote manager asks of the host that holds the signers: `POST /manager-service-authority` (contract 06).
//!
//! Every request is a closed object, read in the contract's order of refusals; each refusal here is `bad-request` and
//! says nothing about authority. What a request stands on is in one table: [`Kind::rule`] and [`Operation::rule`].
//!
//! | kind | parser |
//! |---|---|
//! | the manager's own lifecycle | [`ServiceRequest`] |
//! | maintenance | [`MaintenanceRequest`] |
//! | managed agents | [`EnrollmentRequest`], [`PrepareRetirementRequest`], [`RuntimeRequest`], [`RetainedAgentRequest`] |
//! | questions | [`GoalIndexRequest`], [`AdminRequest`] |
//! | runs | [`RunAdmissionRequest`], [`RunAttemptRequest`], [`RunSubmissionRequest`], [`RunRevokeRequest`], [`RunCancelRequest`] |
//! | delegated user intents | [`IntentRequest`], [`ExecutionRequest`] |
//! | the platform's doors, in process | [`PlatformControlRequest`], [`PlatformSupervisorRequest`] |

mod echo;
mod envelope;
mod fields;
mod intents;
mod kind;
mod maintenance;
mod managed_agent;
mod managed_agent_result;
mod material;
mod platform;
mod proof;
mod queries;
mod run_results;
mod runs;
mod runtime_result;
mod served;
mod service;
mod tokens;
mod write;

pub use echo::{Echo, Unbound};
pub use envelope::{
    Envelope, Holder, HolderKind, Identities, Incarnation, StandingActors, StandingRole, VERSION,
    serve_principal,
};
pub use intents::{EXECUTING_ACTOR, Execution, ExecutionRequest, Intent, IntentRequest};
pub use kind::{ADMIN, Epoch, Gate, Kind, Operation, Proof, Rule, SPAWN, SUPERVISE, Scope, Stock};
pub use maintenance::{
    HolderLiveness, HolderState, MaintenanceRequest, MaintenanceResult, Mend, Mended, Reconciliation,
};
pub use managed_agent::{
    EnrollmentRequest, EnrollmentTarget, MAX_ACTOR_TOKEN, MAX_LABEL, MAX_LIST, MAX_SENTINEL_CREDS,
    PrepareRetirementRequest, RetainedAgentRequest, RuntimeRequest,
};
pub use managed_agent_result::{
    AgentMaterial, EnrollmentResult, PrepareRetirementResult, RetainedAgentResult, RetainedAuthority,
    RuntimeIntent,
};
pub use material::{CredentialName, Credentials, IssuedJwt, RemoteManagerAuthorityMaterial};
pub use platform::{PlatformControlRequest, PlatformSupervisorRequest};
pub use proof::{CURRENT_REGISTRATION_DOMAIN, current_registration_message, registration_proof};
pub use queries::{AdminRequest, AdminResult, GoalIndexRequest, GoalIndexResult};
pub use run_results::{
    RunAdmissionResult, RunAttemptResult, RunCredentials, RunRevocationResult, RunSubmissionResult,
};
pub use runs::{
    Answers, Attempt, MAX_STEP, OperatorTurn, RunAdmissionRequest, RunAttemptRequest, RunCancelRequest,
    RunRevokeRequest, RunSubmissionRequest, Turn,
};
pub use runtime_result::{RetirementPhase, RuntimeReadiness, RuntimeResult, RuntimeState};
pub use served::{
    ObservedRequest, RUN_ANSWER, RUN_CANCEL, RUN_RESUME, RUN_START, RUN_SUBMIT, RunOperation,
    served_run_cancel_subject, served_run_subjects,
};
pub use service::{
    MANAGER_ENDPOINT, MAX_ARTIFACTS, Payload, Renewal, RenewedRun, RequestedRetirement, ServedSession,
    ServiceRequest,
};
pub use tokens::{RenewedTakeover, RequestId, RunHolder, RunId, SubmissionId, Takeover};
pub use write::RuntimeRequestAs;

/// The route that every request of a remote manager takes (contract 06 §2).
pub const ROUTE: &str = "/manager-service-authority";
/// The URN of the cluster that every manager registers (contract 06 §4.3).
pub const MANAGER_CLUSTER: &str = "ai.cotal.manager";
