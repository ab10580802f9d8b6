//! Durable consumers by name: whether one stands, and its removal (contract 07 §13).

use cotal_wire::{EpCode, EpError};
use serde_json::{Map, Value};

use crate::{
    api::{self, ApiFailure, CONSUMER_NOT_FOUND},
    connection::{Connection, RequestFailure},
};

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
