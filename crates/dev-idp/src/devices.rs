//! Device codes in flight (contract 04 §11.1, §17; RFC 8628).

use std::collections::HashMap;

use cotal_wire::{Entropy, UnixMillis, UnixSecs};

use crate::{CLIENT_ID, expiry, signer::random_token};

/// How long a device code lives (contract 04 §17).
pub const DEVICE_CODE_TTL_SECS: u64 = 600;
/// How often a client may poll, in seconds (contract 04 §17).
pub const POLL_INTERVAL_SECS: u64 = 1;
/// Polls closer together than this are told to slow down. Half the interval, so that a punctual client whose timer
/// fires a little early is not.
const TOO_FAST_MILLIS: u64 = POLL_INTERVAL_SECS * 1000 / 2;
/// Codes in flight at once; the next one is refused rather than an older one forgotten.
const MAX_CODES: usize = 1024;
/// Random bytes of a device code.
const DEVICE_CODE_BYTES: usize = 32;
/// Characters of a user code: no I, O, 0 or 1, which people confuse; 32 of them, so that each byte picks evenly.
const USER_CODE_ALPHABET: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
/// Characters of a user code.
const USER_CODE_LENGTH: usize = 8;

/// What a person decides about a code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Sign this user in.
    Approve(String),
    /// Turn the client away.
    Deny,
}

/// Why a poll yields no session, by its OAuth error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollRefusal {
    InvalidGrant,
    Pending,
    SlowDown,
    Expired,
    Denied,
}

/// Why a decision finds no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSuchCode {
    Unknown,
    Decided,
}

struct Device {
    user_code: String,
    expires_at: UnixSecs,
    last_poll: Option<UnixMillis>,
    decision: Option<Decision>,
}

/// A code as it is handed to a client.
pub(crate) struct Started {
    pub(crate) device_code: String,
    pub(crate) user_code: String,
}

#[derive(Default)]
pub(crate) struct Devices {
    by_code: HashMap<String, Device>,
}

impl Devices {
    /// A fresh code, or `None` when too many are in flight.
    pub(crate) fn start(
        &mut self,
        now: UnixSecs,
        entropy: &dyn Entropy,
        decision: Option<Decision>,
    ) -> Option<Started> {
        self.by_code.retain(|_, device| device.expires_at > now);
        if self.by_code.len() >= MAX_CODES {
            return None;
        }
        let device_code = random_token(entropy, DEVICE_CODE_BYTES).to_string();
        let mut bytes = [0u8; USER_CODE_LENGTH];
        entropy.fill(&mut bytes);
        let user_code: String =
            bytes.iter().map(|b| char::from(USER_CODE_ALPHABET[usize::from(b % 32)])).collect();
        if self.by_code.values().any(|device| device.user_code == user_code) {
            // One in 2^40; the client asks again.
            return None;
        }
        let expires_at = expiry(now, DEVICE_CODE_TTL_SECS);
        self.by_code.insert(
            device_code.clone(),
            Device { user_code: user_code.clone(), expires_at, last_poll: None, decision },
        );
        Some(Started { device_code, user_code })
    }

    /// Decides a pending code.
    pub(crate) fn decide(
        &mut self,
        user_code: &str,
        decision: Decision,
        now: UnixSecs,
    ) -> Result<(), NoSuchCode> {
        let wanted = normalize_user_code(user_code);
        let device = self
            .by_code
            .values_mut()
            .find(|device| device.user_code == wanted && device.expires_at > now)
            .ok_or(NoSuchCode::Unknown)?;
        if device.decision.is_some() {
            return Err(NoSuchCode::Decided);
        }
        device.decision = Some(decision);
        Ok(())
    }

    /// The user that a code was approved for. A code is spent by its first answer other than «wait».
    pub(crate) fn poll(
        &mut self,
        device_code: &str,
        client_id: &str,
        now: UnixMillis,
    ) -> Result<String, PollRefusal> {
        if client_id != CLIENT_ID {
            return Err(PollRefusal::InvalidGrant);
        }
        let device = self.by_code.get_mut(device_code).ok_or(PollRefusal::InvalidGrant)?;
        let too_fast = device.last_poll.is_some_and(|last| now.since(last) < TOO_FAST_MILLIS);
        device.last_poll = Some(now);
        if device.expires_at <= now.to_secs() {
            self.by_code.remove(device_code);
            return Err(PollRefusal::Expired);
        }
        if too_fast {
            return Err(PollRefusal::SlowDown);
        }
        if device.decision.is_none() {
            return Err(PollRefusal::Pending);
        }
        match self.by_code.remove(device_code).and_then(|device| device.decision) {
            Some(Decision::Approve(user)) => Ok(user),
            _ => Err(PollRefusal::Denied),
        }
    }
}

/// As people type codes: in any case, with dashes or spaces.
fn normalize_user_code(typed: &str) -> String {
    typed.chars().filter(|c| !matches!(c, '-' | ' ')).map(|c| c.to_ascii_uppercase()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicU64);

    impl Entropy for Counter {
        fn fill(&self, bytes: &mut [u8]) {
            let mut n = self.0.fetch_add(1, Ordering::Relaxed);
            for byte in bytes {
                // Five bits a byte, so that the user codes of different calls differ.
                *byte = u8::try_from(n % 32).unwrap();
                n /= 32;
            }
        }
    }

    const NOW: UnixSecs = UnixSecs(1_000);

    fn start(devices: &mut Devices, entropy: &Counter) -> Started {
        devices.start(NOW, entropy, None).unwrap()
    }

    fn at(seconds: u64) -> UnixMillis {
        NOW.plus(seconds).to_millis()
    }

    #[test]
    fn a_code_waits_for_a_person_then_yields_one_session() {
        let (mut devices, entropy) = (Devices::default(), Counter::default());
        let started = start(&mut devices, &entropy);
        let poll = |devices: &mut Devices, s| devices.poll(&started.device_code, CLIENT_ID, at(s));
        assert_eq!(poll(&mut devices, 1), Err(PollRefusal::Pending));
        let typed = started.user_code.to_lowercase();
        let typed = format!("{}-{}", &typed[..4], &typed[4..]);
        devices.decide(&typed, Decision::Approve("zoe".into()), NOW).unwrap();
        assert_eq!(devices.decide(&typed, Decision::Deny, NOW), Err(NoSuchCode::Decided));
        assert_eq!(poll(&mut devices, 2), Ok("zoe".to_owned()));
        assert_eq!(poll(&mut devices, 3), Err(PollRefusal::InvalidGrant));
    }

    #[test]
    fn a_denied_code_says_so_once() {
        let (mut devices, entropy) = (Devices::default(), Counter::default());
        let started = start(&mut devices, &entropy);
        devices.decide(&started.user_code, Decision::Deny, NOW).unwrap();
        assert_eq!(devices.poll(&started.device_code, CLIENT_ID, at(1)), Err(PollRefusal::Denied));
        assert_eq!(devices.poll(&started.device_code, CLIENT_ID, at(2)), Err(PollRefusal::InvalidGrant));
    }

    #[test]
    fn a_code_dies_after_ten_minutes() {
        let (mut devices, entropy) = (Devices::default(), Counter::default());
        let started = start(&mut devices, &entropy);
        let late = NOW.plus(DEVICE_CODE_TTL_SECS);
        assert_eq!(devices.decide(&started.user_code, Decision::Deny, late), Err(NoSuchCode::Unknown));
        assert_eq!(
            devices.poll(&started.device_code, CLIENT_ID, late.to_millis()),
            Err(PollRefusal::Expired)
        );
    }

    #[test]
    fn a_hasty_client_is_slowed_down_and_a_punctual_one_is_not() {
        let (mut devices, entropy) = (Devices::default(), Counter::default());
        let started = start(&mut devices, &entropy);
        let mut poll = |millis| devices.poll(&started.device_code, CLIENT_ID, NOW.to_millis().plus(millis));
        assert_eq!(poll(1_000), Err(PollRefusal::Pending));
        assert_eq!(poll(1_100), Err(PollRefusal::SlowDown));
        assert_eq!(poll(2_095), Err(PollRefusal::Pending));
    }

    #[test]
    fn codes_in_flight_are_bounded_and_the_expired_make_room() {
        let (mut devices, entropy) = (Devices::default(), Counter::default());
        for _ in 0..MAX_CODES {
            start(&mut devices, &entropy);
        }
        assert!(devices.start(NOW, &entropy, None).is_none());
        assert!(devices.start(NOW.plus(DEVICE_CODE_TTL_SECS), &entropy, None).is_some());
        assert_eq!(devices.by_code.len(), 1);
    }

    #[test]
    fn another_client_cannot_poll() {
        let (mut devices, entropy) = (Devices::default(), Counter::default());
        let started = start(&mut devices, &entropy);
        assert_eq!(devices.poll(&started.device_code, "other", at(1)), Err(PollRefusal::InvalidGrant));
    }
}
