//! Conditional deletions and purges.

use async_nats::HeaderMap;
use bytes::Bytes;
use cotal_wire::Revision;

use super::{Bucket, KV_OPERATION, KV_PURGE, MESSAGE_TTL, ROLLUP, ROLLUP_SUBJECT, WriteOutcome};

const KV_DELETE: &str = "DEL";

impl Bucket {
    /// Revision-pinned delete: leaves a marker in place of the value.
    pub async fn delete_pinned(&self, key: &str, expected: Revision) -> WriteOutcome {
        let mut headers = HeaderMap::new();
        headers.insert(KV_OPERATION, KV_DELETE);
        self.write(key, expected, headers, Bytes::new()).await
    }

    /// Revision-pinned purge with a marker TTL in seconds.
    pub async fn purge_pinned(&self, key: &str, expected: Revision, marker_ttl_secs: u64) -> WriteOutcome {
        let mut headers = purge_headers();
        headers.insert(MESSAGE_TTL, format!("{marker_ttl_secs}s"));
        self.write(key, expected, headers, Bytes::new()).await
    }

    /// Revision-pinned purge as the KV client does it: the marker stays (contract 07 §13).
    pub async fn purge(&self, key: &str, expected: Revision) -> WriteOutcome {
        self.write(key, expected, purge_headers(), Bytes::new()).await
    }
}

fn purge_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(KV_OPERATION, KV_PURGE);
    headers.insert(ROLLUP, ROLLUP_SUBJECT);
    headers
}
