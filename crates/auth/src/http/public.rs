//! The public face: the body's proof is the caller's right; admission, a deadline and a window per peer bound it
//! (contract 05 §2.7).

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cotal_wire::UnixMillis;
use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;

use super::{
    budget::KeyedWindows, exchange, health, jwks, manager_authority, manager_instances, mesh, reply::Reply,
};

/// The paths of this face, in the order that its 404 lists them.
pub(crate) const PATHS: [&str; 6] =
    [health::PATH, jwks::PATH, exchange::PATH, manager_authority::PATH, manager_instances::PATH, mesh::PATH];

/// Requests in flight at most.
pub(crate) const MAX_ADMITTED: usize = 64;

/// Wall clock of one admitted request.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

const BUSY: &str = "busy - retry shortly";
/// When one that was not admitted should come again, in seconds: those who come sooner cost as much as those who are served.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");
const DEADLINE_EXCEEDED: &str = "request deadline exceeded";

/// The policy, the windows and the admission count of a public face.
pub(crate) struct Public {
    pub trusted_proxy: bool,
    pub bundle: Bytes,
    admitted: Arc<AtomicUsize>,
    peers: Mutex<KeyedWindows>,
    selections: Mutex<KeyedWindows>,
}

/// One admitted request: counted until it is dropped with its response.
#[derive(Debug)]
pub(crate) struct Admitted(Arc<AtomicUsize>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Public {
    pub(crate) fn new(trusted_proxy: bool, bundle: Bytes) -> Self {
        Self {
            trusted_proxy,
            bundle,
            admitted: Arc::default(),
            peers: Mutex::new(KeyedWindows::new()),
            selections: Mutex::new(KeyedWindows::new()),
        }
    }

    /// Counts one more request in, unless 64 are.
    pub(crate) fn admit(&self) -> Result<Admitted, Reply> {
        self.admitted
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < MAX_ADMITTED).then_some(n + 1))
            .map(|_| Admitted(Arc::clone(&self.admitted)))
            .map_err(|_| {
                Reply::error(StatusCode::SERVICE_UNAVAILABLE, BUSY).with(header::RETRY_AFTER, RETRY_AFTER)
            })
    }

    /// The answer to a request whose deadline passed.
    pub(crate) fn deadline_exceeded() -> Reply {
        Reply::error(StatusCode::SERVICE_UNAVAILABLE, DEADLINE_EXCEEDED)
    }

    pub(crate) fn is_throttled(&self, peer: &str, now: UnixMillis) -> bool {
        self.peers.lock().is_full(peer, now)
    }

    pub(crate) fn record_refusal(&self, peer: &str, now: UnixMillis) {
        self.peers.lock().record(peer, now);
    }

    pub(crate) fn is_selection_shed(&self, key: &str, now: UnixMillis) -> bool {
        self.selections.lock().is_full(key, now)
    }

    pub(crate) fn record_selection_refusal(&self, key: &str, now: UnixMillis) {
        self.selections.lock().record(key, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_65th_request_is_busy_until_one_leaves() {
        let face = Public::new(false, Bytes::new());
        let mut admitted: Vec<_> = (0..MAX_ADMITTED).map(|_| face.admit().unwrap()).collect();
        let refusal = face.admit().unwrap_err();
        assert_eq!(
            (refusal.status, &refusal.body[..]),
            (StatusCode::SERVICE_UNAVAILABLE, &br#"{"error":"busy - retry shortly"}"#[..])
        );
        assert_eq!(refusal.into_response(|body| body).headers()[header::RETRY_AFTER], "1");
        admitted.pop();
        assert!(face.admit().is_ok());
    }
}
