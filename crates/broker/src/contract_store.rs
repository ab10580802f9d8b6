//! The contract store: artifacts under the digest of their bytes, written once (contract 02 §8, 07 §12.4).

use std::time::Duration;

use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use cotal_wire::{DigestRef, EpError, Names, Object, SpaceToken, contract::Artifact};
use serde::Deserialize;

use crate::{
    api::{ApiError, REQUEST_TIMEOUT, SUBJECT_IS_FULL, WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_CONSTANT},
    connection::Connection,
    kv::EXPECTED_LAST_SUBJECT_SEQUENCE,
};

/// Status of a Direct Get that found no message.
const NOT_FOUND: u16 = 404;
/// What the broker answers a Direct Get with: where the message stands.
const SUBJECT: &str = "Nats-Subject";

/// The contract store over one connection.
///
/// Reads are Direct Gets of one exact subject, so that the grant names what may be read. The reference falls back to
/// reading a subject's first message; here the store's shape guarantees that the first is the last.
#[derive(Clone)]
pub struct ContractStore {
    connection: Connection,
    names: Names,
    timeout: Duration,
}

/// What publishing an artifact came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// It was not there before.
    Now,
    /// The very same bytes were there.
    Before,
}

/// A publish acknowledgement of the store.
#[derive(Deserialize)]
struct Ack<'a> {
    #[serde(default, borrow)]
    stream: std::borrow::Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(borrow, default, deserialize_with = "cotal_wire::object::read_optional")]
    error: Option<ApiError<'a>>,
}

impl ContractStore {
    /// The contract store of this space.
    pub fn new(connection: &Connection, space: &SpaceToken) -> Self {
        Self { connection: connection.clone(), names: Names::new(space), timeout: REQUEST_TIMEOUT }
    }

    /// The subject that an artifact stands at.
    pub fn subject(&self, digest: &DigestRef) -> String {
        self.names.artifact_subject(digest)
    }

    /// Publishes an artifact, create-only. One that is there already is verified and is no failure; other bytes in its
    /// place are `internal`; a write of which nobody can say whether it landed is `unavailable`, and may be repeated.
    pub async fn publish(&self, artifact: &Artifact) -> Result<Published, EpError> {
        let digest = artifact.digest();
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(0));
        let payload = Bytes::copy_from_slice(artifact.bytes());
        let unsure =
            |why: &str| EpError::unavailable(format!("artifact {digest} may or may not be published: {why}"));
        let answer = self
            .connection
            .request_raw(self.subject(digest).into(), Some(headers), payload, self.timeout)
            .await
            .map_err(|failure| unsure(&failure.to_string()))?;
        match serde_json::from_slice::<Object<Ack<'_>>>(&answer.payload).map(|ack| ack.0) {
            Ok(Ack { error: Some(error), .. }) => match error.err_code {
                WRONG_LAST_SEQUENCE | WRONG_LAST_SEQUENCE_CONSTANT | SUBJECT_IS_FULL => {
                    self.published_before(digest).await
                }
                _ => Err(unsure(&error.to_string())),
            },
            Ok(Ack { stream, seq, error: None }) if stream == self.names.epc_stream() && seq > 0 => {
                Ok(Published::Now)
            }
            Ok(_) | Err(_) => Err(unsure("the answer is no acknowledgement of the contract store")),
        }
    }

    async fn published_before(&self, digest: &DigestRef) -> Result<Published, EpError> {
        let there = self.fetch(digest).await.ok().flatten();
        let verified = there.map(|bytes| Artifact::verify(digest, bytes.to_vec())).transpose()?;
        match verified {
            Some(_) => Ok(Published::Before),
            None => Err(EpError::internal(format!(
                "artifact {digest} is said to be published and cannot be read back"
            ))),
        }
    }

    /// The bytes stored under a digest, not verified, or `None` when there are none. A failed read is `unavailable`.
    pub async fn fetch(&self, digest: &DigestRef) -> Result<Option<Bytes>, EpError> {
        let subject = self.subject(digest);
        let unreadable = |why: &str| EpError::unavailable(format!("artifact {digest} cannot be read: {why}"));
        let request = format!("$JS.API.DIRECT.GET.{}.{subject}", self.names.epc_stream());
        let answer = self
            .connection
            .request_raw(request.into(), None, Bytes::new(), self.timeout)
            .await
            .map_err(|failure| unreadable(&failure.to_string()))?;
        match answer.status.map(|status| status.as_u16()) {
            None => {}
            Some(NOT_FOUND) => return Ok(None),
            Some(other) => return Err(unreadable(&format!("the broker answers with status {other}"))),
        }
        let stands_at = answer.headers.as_ref().and_then(|headers| headers.get(SUBJECT));
        if stands_at.map(HeaderValue::as_str) != Some(subject.as_str()) {
            return Err(unreadable("the answer is of another subject"));
        }
        Ok(Some(answer.payload))
    }
}

impl std::fmt::Debug for ContractStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ContractStore({} over {})", self.names.epc_stream(), self.connection.label())
    }
}
