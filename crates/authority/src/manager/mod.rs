//! What is decided for a remote manager, before anything is written or minted (contract 06).
//!
//! Every decision is a function of a parsed request, of who asks, and of what was read; the routes and doors read and
//! act. A request that breaks two rules gets the refusal of the earlier one in the contract's order.

mod agents;
#[cfg(test)]
mod fixtures;
mod holder;
mod intents;
mod lifecycle;
mod maintenance;
mod mending;
mod platform;
mod queries;
mod registration;
pub mod runs;
mod selection;

pub use agents::{Host, decide_enrollment, decide_prepare_retirement, decide_retained, decide_runtime};
pub use holder::{Assignment, Holder};
pub use intents::{
    Act, AdmissionView, AdmittedIntent, AdmittedTarget, DecidedExecution, ExecutionPins, IntentHost,
    IntentRecord, LaunchRecord, MAX_INTENT_TTL_SECS, Unobserved, decide_admission, decide_execution,
};
pub use lifecycle::{
    LifecycleHost, ObservedRun, SESSION_ENDED, decide_asking, decide_at_gate, decide_retired, decide_session,
    same_run, session_of_own, still_at,
};
pub(crate) use maintenance::family_holders;
pub use maintenance::{check_family, decide_maintenance, reconciliation, repair_refused};
pub use mending::OfInstance;
pub use platform::{
    PlatformContext, Predecessor, SupervisorAssignment, check_platform_gate, check_predecessor, ended,
};
pub use queries::{decide_admin_authorization, decide_goal_index_scan, is_admin};
pub use registration::{CurrentManager, check_current};
pub(crate) use selection::side_of;
pub use selection::{ManagerSide, NoManager, Survey, SurveyedManager};
