//! Units that the contract mixes on purpose, kept apart by type, and the two seams through which time and
//! randomness come in.

use serde::{Deserialize, Serialize};

/// Largest integer that JSON of this contract may carry (2^53 - 1).
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixSecs(pub u64);

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMillis(pub u64);

/// A store revision: the stream sequence of a key's last message (contract 07, conventions).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl UnixSecs {
    /// This instant in milliseconds.
    pub const fn to_millis(self) -> UnixMillis {
        UnixMillis(self.0.saturating_mul(1000))
    }

    /// This instant `seconds` later, saturating.
    pub const fn plus(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// Seconds from `earlier` to this instant, zero when it is not later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl UnixMillis {
    /// This instant in whole seconds, rounded down.
    pub const fn to_secs(self) -> UnixSecs {
        UnixSecs(self.0 / 1000)
    }

    /// This instant `millis` later, saturating.
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Milliseconds from `earlier` to this instant, zero when it is not later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The wall clock, by argument.
pub trait Clock: Send + Sync {
    /// Now, in milliseconds.
    fn now_millis(&self) -> UnixMillis;

    /// Now, in whole seconds, rounded down.
    fn now_secs(&self) -> UnixSecs {
        self.now_millis().to_secs()
    }
}

/// A cryptographically secure source of randomness, by argument.
pub trait Entropy: Send + Sync {
    /// Fills `bytes` whole.
    fn fill(&self, bytes: &mut [u8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_milliseconds_convert_by_flooring() {
        assert_eq!(UnixMillis(1_999).to_secs(), UnixSecs(1));
        assert_eq!(UnixSecs(2).to_millis(), UnixMillis(2_000));
        assert_eq!(UnixSecs(u64::MAX).to_millis(), UnixMillis(u64::MAX));
    }
}
