//! The loopback doors that retire a lifecycle, as `cotal actor` asks them (contract 05 §7.1-7.2, 04 §13.1).
//!
//! What matters is what may have happened. A refusal that says `outcome: "not-executed"` changed nothing, and so did a
//! question that never left this machine. Any other failure may follow a barrier that has begun: it is unknown, and
//! told as unknown.

use std::{path::Path, time::Duration};

use cotal_trust::idp::{below, http_client, transport};
use cotal_wire::{LifecycleUid, Principal};
use serde_json::json;

use crate::{http_json::Answer, loopback::LoopbackService, outcome::CliError, terminal::printable};

/// How long a barrier may take: it waits for evictions and for obligations that are being settled.
pub const RETIRED_WITHIN: Duration = Duration::from_secs(120);
/// What a refusal that changed nothing says.
const NOT_EXECUTED: &str = "not-executed";

/// Which door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// A person's grant that is in the ledger at this incarnation.
    Interactive,
    /// An incarnation that no row stands behind any more.
    Managed,
}

/// How an incarnation stands after it was asked to retire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retired {
    /// It was ended now: its gate is closed for good and its connections are gone.
    Retired,
    /// It had been ended before.
    AlreadyRetired,
    /// It was never entered, so there was nothing to end.
    NotStarted,
}

/// Why it is not known to be retired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRetired {
    /// Nothing happened.
    NotExecuted(String),
    /// The barrier may have begun.
    Unknown(String),
}

/// The doors of the auth service that runs here.
pub struct LifecycleDoors {
    service: LoopbackService,
}

impl Door {
    const fn path(self) -> &'static str {
        match self {
            Self::Interactive => "/interactive-lifecycle/retire",
            Self::Managed => "/managed-lifecycle/retire",
        }
    }

    /// Whether a refusal of this status came before anything was begun. The managed door gives no outcome
    /// (contract 05 §7.2), but its guards have statuses of their own; a conflict may also be the barrier's.
    const fn refused_at_its_guards(self, status: u16) -> bool {
        matches!(self, Self::Managed) && matches!(status, 400 | 401 | 403 | 404 | 405 | 413 | 415)
    }
}

impl LifecycleDoors {
    /// The doors of the service that serves a state directory; its process must be provably alive.
    pub fn of(state_dir: &Path) -> Result<Self, CliError> {
        LoopbackService::of(state_dir).map(|service| Self { service })
    }

    /// Retires one incarnation of a principal, and answers once it is over.
    pub async fn retire(
        &self,
        door: Door,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retired, NotRetired> {
        let not_executed = |why: String| NotRetired::NotExecuted(why);
        let client = http_client(RETIRED_WITHIN).map_err(|e| not_executed(e.to_string()))?;
        let body = json!({ "owner": principal.owner, "actor": principal.actor, "lifecycleUid": uid });
        let request = client
            .post(below(self.service.base.clone(), door.path()))
            .bearer_auth(self.service.capability.as_str())
            .json(&body);
        let answer = match request.send().await {
            Ok(response) => Answer::read(response).await,
            Err(error) if error.is_connect() => {
                return Err(not_executed(format!("the auth service: {}", transport(&error))));
            }
            Err(error) => Err(error),
        };
        match answer {
            Ok(answer) => verdict(door, &answer, uid),
            Err(error) => Err(NotRetired::Unknown(format!("the auth service: {}", transport(&error)))),
        }
    }
}

/// What an answer proves. A success that does not name the incarnation, or says nothing that the contract knows,
/// proves nothing.
fn verdict(door: Door, answer: &Answer, uid: &LifecycleUid) -> Result<Retired, NotRetired> {
    if answer.is_success() {
        let flag = |name: &str| answer.member(name).and_then(serde_json::Value::as_bool);
        let named = answer.text("lifecycleUid") == Some(uid.as_str());
        return match (named, flag("retired"), flag("alreadyRetired"), flag("notStarted")) {
            (true, Some(true), None, None) => Ok(Retired::Retired),
            (true, Some(true), Some(true), None) => Ok(Retired::AlreadyRetired),
            (true, Some(false), None, Some(true)) => Ok(Retired::NotStarted),
            _ => {
                Err(NotRetired::Unknown("the auth service answered something else than a retirement".into()))
            }
        };
    }
    let why = answer.text("error").map_or_else(|| format!("HTTP {}", answer.status), printable);
    if answer.text("outcome") == Some(NOT_EXECUTED) || door.refused_at_its_guards(answer.status) {
        Err(NotRetired::NotExecuted(why))
    } else {
        Err(NotRetired::Unknown(why))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const UID: &str = "0123456789abcdefghijklmnop";

    fn answered_by(door: Door, status: u16, body: Value) -> Result<Retired, NotRetired> {
        let answer = Answer { status, retry_after_secs: None, body: Some(body) };
        verdict(door, &answer, &LifecycleUid::parse(UID).unwrap())
    }

    fn answered(status: u16, body: Value) -> Result<Retired, NotRetired> {
        answered_by(Door::Interactive, status, body)
    }

    #[test]
    fn a_guard_of_the_managed_door_has_begun_nothing_and_every_other_failure_of_it_may_have() {
        let refused = |door, status| answered_by(door, status, json!({ "error": "x" })).unwrap_err();
        for status in [400, 401, 403, 404, 405, 413, 415] {
            assert_eq!(refused(Door::Managed, status), NotRetired::NotExecuted("x".into()), "{status}");
            assert_eq!(refused(Door::Interactive, status), NotRetired::Unknown("x".into()), "{status}");
        }
        for status in [409, 429, 500, 503] {
            assert_eq!(refused(Door::Managed, status), NotRetired::Unknown("x".into()), "{status}");
        }
    }

    #[test]
    fn the_three_answers_of_a_retirement_are_told_apart() {
        for (body, how) in [
            (json!({ "retired": true, "lifecycleUid": UID }), Retired::Retired),
            (
                json!({ "retired": true, "lifecycleUid": UID, "alreadyRetired": true }),
                Retired::AlreadyRetired,
            ),
            (json!({ "retired": false, "lifecycleUid": UID, "notStarted": true }), Retired::NotStarted),
        ] {
            assert_eq!(answered(200, body), Ok(how));
        }
    }

    #[test]
    fn a_success_that_proves_nothing_is_unknown() {
        for body in [
            json!({}),
            json!(null),
            json!({ "retired": true }),
            json!({ "retired": false, "lifecycleUid": UID }),
            json!({ "retired": true, "lifecycleUid": "0123456789abcdefghijklmnoq" }),
            json!({ "retired": true, "lifecycleUid": UID, "notStarted": true }),
            json!({ "retired": "true", "lifecycleUid": UID }),
        ] {
            assert!(matches!(answered(200, body.clone()), Err(NotRetired::Unknown(_))), "{body}");
        }
    }

    #[test]
    fn only_a_refusal_that_says_so_was_not_executed() {
        let refused = |status, body| answered(status, body).unwrap_err();
        assert_eq!(
            refused(404, json!({ "error": "no\nsuch", "outcome": "not-executed" })),
            NotRetired::NotExecuted("no\u{fffd}such".into())
        );
        for (status, body) in [
            (503, json!({ "error": "x" })),
            (409, json!({ "error": "x", "outcome": "unknown" })),
            (500, json!([])),
            (404, json!({ "outcome": "NOT-EXECUTED" })),
            (302, json!({ "retired": true, "lifecycleUid": UID })),
        ] {
            assert!(matches!(refused(status, body), NotRetired::Unknown(_)), "{status}");
        }
    }
}
