//! What a stream says of itself.

use cotal_wire::{EpError, Revision};
use serde_json::{Map, Value};

use crate::{
    api::{self, ApiFailure},
    connection::Connection,
};

/// Reads a stream's last sequence, by `STREAM.INFO`: 0 while nothing was ever stored.
///
/// A stream that is absent, refused or says nothing of it is `failed-precondition`; no answer is `unavailable`.
pub async fn last_sequence(connection: &Connection, stream: &str) -> Result<Revision, EpError> {
    let unreadable = |why: &str| format!("{stream}: its last sequence cannot be read: {why}");
    match api::ask(connection, &format!("STREAM.INFO.{stream}"), &Map::new()).await {
        Ok(info) => info
            .get("state")
            .and_then(|state| state.get("last_seq"))
            .and_then(Value::as_u64)
            .map(Revision)
            .ok_or_else(|| EpError::failed_precondition(unreadable("the answer does not name it"))),
        Err(failure @ ApiFailure::Unanswered(_)) => {
            Err(EpError::unavailable(unreadable(&failure.to_string())))
        }
        Err(failure) => Err(EpError::failed_precondition(unreadable(&failure.to_string()))),
    }
}
