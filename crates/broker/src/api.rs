//! The JetStream API as plain requests with exact JSON.

use std::{borrow::Cow, fmt, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::connection::{Connection, RequestFailure};

/// How long one JetStream request may take.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// `err_code`: consumer not found.
pub(crate) const CONSUMER_NOT_FOUND: u32 = 10014;
/// `err_code`: a consumer of that name exists already, with another configuration.
pub(crate) const CONSUMER_EXISTS: u32 = 10148;
/// `err_code`: no message found.
pub(crate) const NO_MESSAGE_FOUND: u32 = 10037;
/// `err_code`: wrong last sequence.
pub(crate) const WRONG_LAST_SEQUENCE: u32 = 10071;
/// `err_code`: wrong last sequence, newer form.
pub(crate) const WRONG_LAST_SEQUENCE_CONSTANT: u32 = 10164;
/// `err_code`: the stream could not store, which is how a subject that holds all that it may answers.
pub(crate) const SUBJECT_IS_FULL: u32 = 10077;
/// `err_code`: stream not found.
pub(crate) const STREAM_NOT_FOUND: u32 = 10059;
/// `err_code`: the stream name is in use with another configuration.
pub(crate) const STREAM_NAME_IN_USE: u32 = 10058;

/// An error that the JetStream API answered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct ApiError<'a> {
    #[serde(default)]
    pub(crate) err_code: u32,
    #[serde(default, borrow)]
    pub(crate) description: Cow<'a, str>,
}

impl fmt::Display for ApiError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (JetStream error {})", self.description, self.err_code)
    }
}

/// Why an administrative request failed.
pub(crate) enum ApiFailure {
    Unanswered(RequestFailure),
    Garbled,
    Refused { err_code: u32, description: String },
}

impl fmt::Display for ApiFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unanswered(failure) => failure.fmt(f),
            Self::Garbled => f.write_str("the answer is not JSON of the JetStream API"),
            Self::Refused { err_code, description } => {
                write!(f, "{description} (JetStream error {err_code})")
            }
        }
    }
}

/// One administrative request: `$JS.API.<verb>`, JSON in, JSON out.
pub(crate) async fn ask(
    connection: &Connection,
    verb: &str,
    body: &impl Serialize,
) -> Result<serde_json::Map<String, serde_json::Value>, ApiFailure> {
    let payload = serde_json::to_vec(body).map_err(|_| ApiFailure::Garbled)?;
    let answer = connection
        .request_raw(format!("$JS.API.{verb}").into(), None, Bytes::from(payload), REQUEST_TIMEOUT)
        .await
        .map_err(ApiFailure::Unanswered)?;
    let mut answer: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&answer.payload).map_err(|_| ApiFailure::Garbled)?;
    match answer.remove("error") {
        None => Ok(answer),
        Some(error) => {
            let code = error.get("err_code").and_then(serde_json::Value::as_u64).unwrap_or_default();
            let description =
                error.get("description").and_then(serde_json::Value::as_str).unwrap_or_default();
            Err(ApiFailure::Refused {
                err_code: u32::try_from(code).unwrap_or_default(),
                description: description.to_owned(),
            })
        }
    }
}
