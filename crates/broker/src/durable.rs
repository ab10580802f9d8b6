//! Durable consumers by name: their creation, whether one stands, and its removal (contract 01 §4.2, 07 §13).

use cotal_wire::{EpCode, EpError, Revision};
use serde_json::{Map, Value, json};

use crate::{
    api::{self, ApiFailure, CONSUMER_EXISTS, CONSUMER_NOT_FOUND},
    connection::{Connection, RequestFailure},
};

/// How long a delivered message waits for its acknowledgement before it is delivered again, in nanoseconds.
const ACK_WAIT_NANOS: u64 = 60_000_000_000;
/// Every delivery is acknowledged.
const EXPLICIT: &str = "explicit";

/// A pull durable as a provisioner makes it: explicit acknowledgement within 60 s, no bound on deliveries, one filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durable {
    /// The stream that it reads.
    pub stream: String,
    /// Its name.
    pub name: String,
    /// What it reads of the stream.
    pub filter: String,
    /// The last message that is before it; `0` for one that reads everything.
    pub after: Revision,
}

/// What an [`ensure`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ensured {
    /// The broker has it as it was asked for, made by this call or by an earlier one of the same configuration.
    AsAsked,
    /// One of that name and filter stood already, and stays as it is: it may begin elsewhere.
    Stood,
}

/// Creates the durable, or keeps the one that stands.
///
/// One that stands must read the same filter with explicit acknowledgement, else `failed-precondition`. A refusal of
/// the broker is `failed-precondition`, no answer `unavailable`, a subject that the grant does not name
/// `permission-denied`.
pub async fn ensure(connection: &Connection, durable: &Durable) -> Result<Ensured, EpError> {
    let Durable { stream, name, filter, .. } = durable;
    let failed = |failure: &ApiFailure| refused(stream, name, "created", failure);
    let verb = format!("CONSUMER.CREATE.{stream}.{name}.{filter}");
    let request = json!({ "stream_name": stream, "config": durable.config(), "action": "create" });
    let (answer, ensured) = match api::ask(connection, &verb, &request).await {
        Ok(answer) => (answer, Ensured::AsAsked),
        Err(ApiFailure::Refused { err_code: CONSUMER_EXISTS, .. }) => {
            let verb = format!("CONSUMER.INFO.{stream}.{name}");
            let standing = api::ask(connection, &verb, &Map::new()).await;
            (standing.map_err(|failure| failed(&failure))?, Ensured::Stood)
        }
        Err(failure) => return Err(failed(&failure)),
    };
    if durable.is(&answer) {
        Ok(ensured)
    } else {
        Err(EpError::failed_precondition(format!(
            "{stream}: consumer {name} stands with another filter or acknowledgement; remove it, then retry"
        )))
    }
}

impl Durable {
    fn config(&self) -> Value {
        let mut config = json!({
            "name": self.name,
            "durable_name": self.name,
            "filter_subject": self.filter,
            "ack_policy": EXPLICIT,
            "ack_wait": ACK_WAIT_NANOS,
            "deliver_policy": "all",
            "replay_policy": "instant",
            "max_deliver": -1,
        });
        if self.after > Revision(0) {
            config["deliver_policy"] = "by_start_sequence".into();
            config["opt_start_seq"] = self.after.0.saturating_add(1).into();
        }
        config
    }

    /// Whether an answer describes this durable, wherever it begins.
    fn is(&self, answer: &Map<String, Value>) -> bool {
        let config = answer.get("config");
        let text = |field: &str| config.and_then(|config| config.get(field)).and_then(Value::as_str);
        text("durable_name") == Some(self.name.as_str())
            && text("filter_subject") == Some(self.filter.as_str())
            && text("ack_policy") == Some(EXPLICIT)
            && text("deliver_subject").is_none_or(str::is_empty)
    }
}

/// What a removal was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The broker says that it removed the consumer.
    Acknowledged,
    /// There was none (10014).
    Absent,
}

/// Whether the consumer stands. A refusal of the broker is `failed-precondition`, no answer `unavailable`, a subject
/// that the grant does not name `permission-denied`.
pub async fn exists(connection: &Connection, stream: &str, name: &str) -> Result<bool, EpError> {
    match api::ask(connection, &format!("CONSUMER.INFO.{stream}.{name}"), &Map::new()).await {
        Ok(_) => Ok(true),
        Err(ApiFailure::Refused { err_code: CONSUMER_NOT_FOUND, .. }) => Ok(false),
        Err(failure) => Err(refused(stream, name, "inspected", &failure)),
    }
}

/// Removes the consumer. An answer that does not say so is `unavailable`; the rest as [`exists`].
pub async fn remove(connection: &Connection, stream: &str, name: &str) -> Result<Removal, EpError> {
    match api::ask(connection, &format!("CONSUMER.DELETE.{stream}.{name}"), &Map::new()).await {
        Ok(answer) if answer.get("success") == Some(&Value::Bool(true)) => Ok(Removal::Acknowledged),
        Ok(_) => Err(EpError::unavailable(format!(
            "{stream}: the broker did not acknowledge the removal of {name}; retry"
        ))),
        Err(ApiFailure::Refused { err_code: CONSUMER_NOT_FOUND, .. }) => Ok(Removal::Absent),
        Err(failure) => Err(refused(stream, name, "removed", &failure)),
    }
}

fn refused(stream: &str, name: &str, what: &str, failure: &ApiFailure) -> EpError {
    let code = match failure {
        ApiFailure::Unanswered(RequestFailure::Denied) => EpCode::PermissionDenied,
        ApiFailure::Unanswered(_) | ApiFailure::Garbled => EpCode::Unavailable,
        ApiFailure::Refused { .. } => EpCode::FailedPrecondition,
    };
    EpError::new(code, format!("{stream}: consumer {name} cannot be {what}: {failure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durable(after: u64) -> Durable {
        Durable {
            stream: "DM_demo".into(),
            name: "dm_x".into(),
            filter: "cotal.demo.inst.x.>".into(),
            after: Revision(after),
        }
    }

    #[test]
    fn a_durable_begins_behind_its_frontier() {
        let config = durable(7).config();
        assert_eq!(
            (&config["deliver_policy"], &config["opt_start_seq"]),
            (&json!("by_start_sequence"), &json!(8))
        );
        let config = durable(0).config();
        assert_eq!((&config["deliver_policy"], config.get("opt_start_seq")), (&json!("all"), None));
    }

    #[test]
    fn one_that_stands_is_the_same_wherever_it_begins() {
        let answer = |config: Value| json!({ "config": config }).as_object().unwrap().clone();
        let standing = || durable(0).config();
        assert!(durable(7).is(&answer(standing())));
        for (field, other) in [
            ("filter_subject", json!("cotal.demo.inst.y.>")),
            ("ack_policy", json!("none")),
            ("durable_name", json!("dm_y")),
            ("deliver_subject", json!("somewhere")),
        ] {
            let mut config = standing();
            config[field] = other;
            assert!(!durable(7).is(&answer(config)), "{field}");
        }
        assert!(!durable(7).is(&Map::new()));
    }
}
