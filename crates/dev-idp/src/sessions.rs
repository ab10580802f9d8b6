//! Login sessions: opaque tokens, kept as hashes.

use cotal_wire::{Entropy, UnixSecs};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{expiry, signer::random_token};

/// How long a session lives, in seconds: a week.
pub const SESSION_TTL_SECS: u64 = 7 * 24 * 60 * 60;
/// Sessions at once; the oldest makes room.
const MAX_SESSIONS: usize = 1024;
/// Random bytes of a session token.
const TOKEN_BYTES: usize = 32;

/// One login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Session {
    /// SHA-256 of the token: neither memory nor the state file can sign anybody in.
    token_hash: [u8; 32],
    /// The user.
    pub(crate) sub: String,
    /// When it ends.
    expires_at: UnixSecs,
}

/// Every login, oldest first.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Sessions(Vec<Session>);

impl Sessions {
    pub(crate) fn open(&mut self, sub: &str, now: UnixSecs, entropy: &dyn Entropy) -> Zeroizing<String> {
        let token = random_token(entropy, TOKEN_BYTES);
        self.0.retain(|session| session.expires_at > now);
        if self.0.len() >= MAX_SESSIONS {
            self.0.remove(0);
        }
        self.0.push(Session {
            token_hash: hash(&token),
            sub: sub.to_owned(),
            expires_at: expiry(now, SESSION_TTL_SECS),
        });
        token
    }

    pub(crate) fn find(&self, token: &str, now: UnixSecs) -> Option<&Session> {
        let wanted = hash(token);
        self.0.iter().find(|session| session.token_hash == wanted && session.expires_at > now)
    }

    /// Ends a session; `false` when there was none.
    pub(crate) fn close(&mut self, token: &str) -> bool {
        let wanted = hash(token);
        let before = self.0.len();
        self.0.retain(|session| session.token_hash != wanted);
        self.0.len() < before
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicU64);

    impl Entropy for Counter {
        fn fill(&self, bytes: &mut [u8]) {
            let n = self.0.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            for (byte, n) in bytes.iter_mut().zip(n.iter().cycle()) {
                *byte = *n;
            }
        }
    }

    #[test]
    fn a_session_ends_by_sign_out_or_by_time() {
        let (mut sessions, entropy, now) = (Sessions::default(), Counter::default(), UnixSecs(1));
        let (a, b) = (sessions.open("a", now, &entropy), sessions.open("b", now, &entropy));
        assert_eq!(sessions.find(&a, now).unwrap().sub, "a");
        assert!(sessions.close(&a) && !sessions.close(&a) && sessions.find(&a, now).is_none());
        assert!(sessions.find(&b, now.plus(SESSION_TTL_SECS - 1)).is_some());
        assert!(sessions.find(&b, now.plus(SESSION_TTL_SECS)).is_none());
    }

    #[test]
    fn sessions_are_bounded_and_the_oldest_makes_room() {
        let (mut sessions, entropy, now) = (Sessions::default(), Counter::default(), UnixSecs(1));
        let first = sessions.open("first", now, &entropy);
        for _ in 0..MAX_SESSIONS {
            sessions.open("next", now, &entropy);
        }
        assert_eq!(sessions.0.len(), MAX_SESSIONS);
        assert!(sessions.find(&first, now).is_none());
    }
}
