//! The loopback face: the capability is the caller's right, and one window bounds its refusals (contract 05 §2.6).

use http::{HeaderMap, header};
use parking_lot::Mutex;

use cotal_wire::UnixMillis;

use super::{
    budget::Window,
    doors::{Doors, interactive_retire, managed_activate, managed_retire, verify_enrollment},
    exchange, health, jwks, manager_authority, manager_instances,
};
use crate::capability::Capability;

/// The paths of this face, in the order that its 404 lists them.
pub(crate) const PATHS: [&str; 9] = [
    health::PATH,
    jwks::PATH,
    exchange::PATH,
    manager_authority::PATH,
    manager_instances::PATH,
    verify_enrollment::PATH,
    interactive_retire::PATH,
    managed_retire::PATH,
    managed_activate::PATH,
];

/// The policy and the two windows of a loopback face.
pub(crate) struct Loopback {
    cap: Capability,
    doors: Doors,
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
    pub(crate) fn new(cap: Capability, doors: Doors) -> Self {
        Self { cap, doors, bad_capabilities: Mutex::default(), refusals: Mutex::default() }
    }

    /// The lifecycle doors.
    pub(crate) fn doors(&self) -> &Doors {
        &self.doors
    }

    /// Whether the capability is right; a miss touches no window.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        self.cap.admits(headers.get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes))
    }

    /// Checks the capability. A miss goes to a window of its own and never touches the refusal window.
    pub(crate) fn check_capability(&self, headers: &HeaderMap, now: UnixMillis) -> Result<(), BadCapability> {
        if self.admits(headers) {
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
