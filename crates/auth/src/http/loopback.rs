//! The loopback face: the capability is the caller's right, and one window bounds its refusals (contract 05 §2.6).

use http::{HeaderMap, header};
use parking_lot::Mutex;

use cotal_wire::UnixMillis;

use super::{
    budget::Window,
    doors::{Doors, interactive_retire, managed_activate, managed_retire},
    exchange, health, jwks,
};
use crate::capability::Capability;

/// The paths of this face, in the order that its 404 lists them.
pub(crate) const PATHS: [&str; 6] = [
    health::PATH,
    jwks::PATH,
    exchange::PATH,
    interactive_retire::PATH,
    managed_retire::PATH,
    managed_activate::PATH,
];
/// How many of [`PATHS`] a face without lifecycle doors serves.
const WITHOUT_DOORS: usize = 3;

/// The policy and the two windows of a loopback face.
pub(crate) struct Loopback {
    cap: Capability,
    doors: Option<Doors>,
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
        Self { cap, doors: None, bad_capabilities: Mutex::default(), refusals: Mutex::default() }
    }

    /// The same face with the lifecycle doors.
    #[cfg_attr(not(test), allow(dead_code, reason = "a context has doors once its plane can retire"))]
    pub(crate) fn with_doors(self, doors: Doors) -> Self {
        Self { doors: Some(doors), ..self }
    }

    /// The lifecycle doors, when this face has them.
    pub(crate) fn doors(&self) -> Option<&Doors> {
        self.doors.as_ref()
    }

    /// The paths that this face serves.
    pub(crate) fn paths(&self) -> &'static [&'static str] {
        if self.doors.is_some() { &PATHS } else { &PATHS[..WITHOUT_DOORS] }
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
