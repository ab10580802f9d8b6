//! Facts on an endpoint's journal (contract 02 §5): what was decided about a submission, and how it ended. Create-only;
//! the first one stands for ever.
//!
//! A fact's `parse` takes the subject that it was read under; one that speaks of another subject is `internal`, like
//! every other garbled row.

mod completion;
mod decision;
mod work;

pub use completion::{Cancellation, CancelledBy, EffectFact, EffectOutcome, GoalOutcome, GoalResult};
pub use decision::{AcceptedFact, Decision, MAX_REJECTION_DETAIL, RejectedFact, Rejection};
pub use work::{Disposition, WorkTerminal, Worker};

use serde::Serialize;
use serde_json::Value;

use super::closed::Closed;
use crate::{
    acceptance::Caller,
    endpoint_subject::TargetTriple,
    error::EpError,
    token::{LifecycleUid, Principal},
};

/// `{id: "<owner>.<actor>", lifecycleUid}`: how most facts name their caller.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallerWire<'a> {
    id: String,
    lifecycle_uid: &'a LifecycleUid,
}

impl<'a> CallerWire<'a> {
    fn of(caller: &'a Caller) -> Self {
        Self { id: caller.principal.key(), lifecycle_uid: &caller.lifecycle_uid }
    }
}

/// `{owner, actor, lifecycleUid}`: how facts name a target.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TargetWire<'a> {
    owner: &'a str,
    actor: &'a str,
    lifecycle_uid: &'a LifecycleUid,
}

impl<'a> TargetWire<'a> {
    fn of(target: &'a TargetTriple) -> Self {
        Self {
            owner: target.principal.owner.as_str(),
            actor: target.principal.actor.as_str(),
            lifecycle_uid: &target.lifecycle_uid,
        }
    }
}

/// The version, the first thing of every fact.
fn check_version(fact: &Closed) -> Result<(), EpError> {
    if fact.uint("v")? == 1 { Ok(()) } else { Err(fact.garbled("its version is not 1")) }
}

/// A required member that is an object of its own.
fn object(fact: &Closed, what: &'static str, member: &str, members: &[&str]) -> Result<Closed, EpError> {
    Closed::of(what, fact.value(member).cloned().unwrap_or(Value::Null), members)
}

/// The caller must be the subject's.
fn check_caller(fact: &Closed, expected: &Caller) -> Result<(), EpError> {
    let caller = object(fact, "fact caller", "caller", &["id", "lifecycleUid"])?;
    let principal = Principal::parse_key(caller.text("id")?);
    if principal.is_ok_and(|principal| principal == expected.principal)
        && caller.text("lifecycleUid")? == expected.lifecycle_uid.as_str()
    {
        Ok(())
    } else {
        Err(fact.garbled("it names another caller than its subject"))
    }
}

/// Reads `{owner, actor, lifecycleUid}` and what else the list of members admits.
fn target_of(target: &Closed) -> Result<TargetTriple, EpError> {
    let principal = Principal::parse_key(&format!("{}.{}", target.text("owner")?, target.text("actor")?))
        .map_err(|_| target.garbled("owner and actor must name a principal"))?;
    Ok(TargetTriple { principal, lifecycle_uid: target.token("lifecycleUid")? })
}
