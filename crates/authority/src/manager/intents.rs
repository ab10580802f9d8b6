//! The two decisions of a delegated user intent, for a host that composes them (contract 06 §13).
//!
//! A user asks that a manager launch or retire an agent; the host records what it admitted; the manager executes just
//! that. The stock service refuses both kinds with `unimplemented`: who keeps the records is the host, on routes of its own.
//!
//! Both decisions are functions of what the host has read, and write nothing. What a host does around them:
//!
//! 1. It proves the user's sign-in, derives the owner, and parses the request ([`IntentRequest::parse`]).
//! 2. It reads, fresh: the scope of `(owner, request.actor)`, the platform's assignment, then the manager's gate; for a launch
//!    it walks the delegation envelope of the row that would be written and looks for records that hold the alias; for a
//!    retirement it finds the record of the launch. What cannot be read is [`Unobserved`].
//! 3. [`decide_admission`] says what the record is bound to. The host writes it create-only, with an expiry of at most
//!    [`MAX_INTENT_TTL_SECS`].
//! 4. The manager's execution comes ([`ExecutionRequest::parse`]). [`decide_execution`] says whether it consumes the record, or
//!    goes on with what the same request began. The host consumes by a revision-pinned write before any effect, and then
//!    asks once more for a launch.
//!
//! [`IntentRequest::parse`]: cotal_wire::manager_authority::IntentRequest::parse
//! [`ExecutionRequest::parse`]: cotal_wire::manager_authority::ExecutionRequest::parse
//!
//! ```
//! use cotal_authority::manager::{AdmissionView, Assignment, IntentHost, decide_admission};
//! use cotal_trust::{nkey::Seed, registration_proof::RegistrationProofKey, system::SystemEntropy};
//! use cotal_wire::{
//!     Account, EpCode, LifecycleUid, Owner, Space,
//!     es_value::EsValue,
//!     manager_authority::{IntentRequest, serve_principal},
//!     rows::EndpointGate,
//! };
//!
//! let signing = Seed::<Account>::generate(&SystemEntropy);
//! let (space, account) = (Space::parse("main")?, signing.public().clone());
//! let (user, platform) = (
//!     Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa")?,
//!     Owner::parse("p_aaaaaaaaaaaaaaaaaaaaaaaaaa")?,
//! );
//! let request = format!(
//!     r#"{{
//!         "v": 1, "kind": "delegated-user-intent", "space": "main", "actor": "cli",
//!         "accountPublicKey": "{account}", "instanceId": "aaaaaaaaaaaaaaaaaaaaaaaaaa",
//!         "requestId": "aaaaaaaaaaaaaaaaaaaaaa",
//!         "intent": {{ "operation": "launch", "target": {{ "actor": "helper", "capabilities": [] }} }}
//!     }}"#
//! );
//! let request = IntentRequest::parse(&EsValue::parse(request.as_bytes())?)?;
//!
//! // What the host has read.
//! let assignment = Assignment {
//!     space: space.clone(),
//!     account: account.clone(),
//!     instance: request.instance_id.clone(),
//!     lifecycle_uid: LifecycleUid::parse("bbbbbbbbbbbbbbbbbbbbbbbbbb")?,
//!     revision: 7,
//!     assigned: true,
//! };
//! let gate = EndpointGate::provisioned(&serve_principal(&platform, &request.instance_id));
//! let scope = ["spawn".to_owned()];
//! let view = AdmissionView {
//!     scope: Some(&scope),
//!     assignment: Ok(Some(&assignment)),
//!     gate: Ok(Some(&gate)),
//!     envelope: Ok(()),
//!     alias_held: false,
//!     launch: None,
//! };
//!
//! let proof = RegistrationProofKey::new(signing);
//! let host = IntentHost { space: &space, account: &account, platform: &platform, proof: &proof };
//! let admitted = decide_admission(host, &user, &request, &view)?;
//! assert_eq!((admitted.assignment_revision, admitted.serve_epoch), (7, Some(0)));
//! assert_eq!(admitted.parent.key(), format!("{user}.cli"));
//!
//! // `supervise` is not what a user needs, and does not stand for it.
//! let scope = ["supervise".to_owned()];
//! let refusal = decide_admission(host, &user, &request, &AdmissionView { scope: Some(&scope), ..view });
//! assert_eq!(refusal.unwrap_err().code, EpCode::PermissionDenied);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod admission;
mod execution;
#[cfg(test)]
mod tests;

use cotal_trust::registration_proof::RegistrationProofKey;
use cotal_wire::{Account, EpError, InstanceId, Nkey, Owner, Space};

pub use admission::{AdmissionView, AdmittedIntent, LaunchRecord, decide_admission};
pub use execution::{Act, AdmittedTarget, DecidedExecution, ExecutionPins, IntentRecord, decide_execution};

use super::holder::Assignment;

/// How long an admitted intent may wait for its execution at most.
pub const MAX_INTENT_TTL_SECS: u64 = 300;

/// What the host that decides is.
#[derive(Debug, Clone, Copy)]
pub struct IntentHost<'a> {
    /// Its space.
    pub space: &'a Space,
    /// Its data account.
    pub account: &'a Nkey<Account>,
    /// The platform's owner, who assigns managers.
    pub platform: &'a Owner,
    /// The key of current registrations.
    pub proof: &'a RegistrationProofKey,
}

impl IntentHost<'_> {
    /// Whether an assignment stands, and is of this host's space, of its account and of this instance.
    fn has_assigned(&self, assignment: &Assignment, instance: &InstanceId) -> bool {
        assignment.assigned
            && assignment.space == *self.space
            && assignment.account == *self.account
            && assignment.instance == *instance
    }
}

/// Why something that was to be observed was not: the answer is then `unavailable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unobserved;

impl From<Unobserved> for EpError {
    fn from(Unobserved: Unobserved) -> Self {
        Self::unavailable("the manager's assignment or registration could not be read; retry")
    }
}

fn not_assigned() -> EpError {
    EpError::permission_denied("the platform has not assigned this manager instance to the space")
}
