//! JSON answers of services, read up to a bound.

use cotal_trust::idp::{Unread, read_body, retry_after_secs};
use serde_json::Value;

/// Longest answer that is read; every one of these is a few short members.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// An answer: its status, its `Retry-After` in seconds, and its body when that is JSON within the bound.
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// `Retry-After`, when it is a number of seconds.
    pub retry_after_secs: Option<u64>,
    /// The body.
    pub body: Option<Value>,
}

impl Answer {
    /// Reads a response whole.
    pub async fn read(response: reqwest::Response) -> Result<Self, reqwest::Error> {
        let (status, retry_after_secs) = (response.status().as_u16(), retry_after_secs(&response));
        let body = match read_body(response, MAX_ANSWER_BYTES).await {
            Ok(bytes) => serde_json::from_slice(&bytes).ok(),
            Err(Unread::TooLong) => None,
            Err(Unread::Broken(error)) => return Err(error),
        };
        Ok(Self { status, retry_after_secs, body })
    }

    /// Whether the status is 2xx.
    pub const fn is_success(&self) -> bool {
        matches!(self.status, 200..=299)
    }

    /// Whether the status is 3xx.
    pub const fn is_redirect(&self) -> bool {
        matches!(self.status, 300..=399)
    }

    /// A member of the body.
    pub fn member(&self, name: &str) -> Option<&Value> {
        self.body.as_ref()?.get(name)
    }

    /// A member of the body that is a non-empty string.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.member(name)?.as_str().filter(|s| !s.is_empty())
    }

    /// A member of the body that is a number in `(0, max]`.
    pub fn number(&self, name: &str, max: f64) -> Option<f64> {
        self.member(name)?.as_f64().filter(|n| *n > 0.0 && *n <= max)
    }
}
