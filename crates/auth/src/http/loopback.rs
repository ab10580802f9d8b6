//! The loopback face: the capability is the caller's right, and one window bounds its refusals (contract 05 §2.6).

use http::{HeaderMap, header};
use parking_lot::Mutex;

use cotal_wire::UnixMillis;

use super::{budget::Window, exchange, health, jwks};
use crate::capability::Capability;

/// The paths of this face, in the order that its 404 lists them.
pub(crate) const PATHS: [&str; 3] = [health::PATH, jwks::PATH, exchange::PATH];

/// The policy and the two windows of a loopback face.
pub(crate) struct Loopback {
    cap: Capability,
    bad_capabilities: Mutex<Window>,
    refusals: Mutex<Window>,
}

/// What a wrong capability came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadCapability {
    /// Wrong.
    Wrong,
    /// Wrong, and more often than the window allows.
    Flooded,
}

impl Loopback {
    pub(crate) fn new(cap: Capability) -> Self {
        Self { cap, bad_capabilities: Mutex::default(), refusals: Mutex::default() }
    }

    /// Checks the capability. A miss goes to a window of its own and never touches the refusal window.
    pub(crate) fn check_capability(&self, headers: &HeaderMap, now: UnixMillis) -> Result<(), BadCapability> {
        if self.cap.admits(headers.get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes)) {
            return Ok(());
        }
        let flooded = self.bad_capabilities.lock().record(now);
        Err(if flooded { BadCapability::Flooded } else { BadCapability::Wrong })
    }

    pub(crate) fn is_throttled(&self, now: UnixMillis) -> bool {
        self.refusals.lock().is_full(now)
    }

    pub(crate) fn record_refusal(&self, now: UnixMillis) {
        self.refusals.lock().record(now);
    }
}
