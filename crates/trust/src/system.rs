//! The operating system's clock and randomness.

use std::time::{SystemTime, UNIX_EPOCH};

use cotal_wire::{Clock, Entropy, UnixMillis};

/// The wall clock of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_millis(&self) -> UnixMillis {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMillis(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The operating system's random source.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[allow(clippy::expect_used, reason = "a machine without randomness must not mint anything")]
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system has no randomness");
    }
}
