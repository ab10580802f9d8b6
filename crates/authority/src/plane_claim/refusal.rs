//! Why a claim is refused, and what the operator is told (contract 03 §E "Operator copy", §G).

use cotal_broker::ConnectionTuple;
use cotal_wire::{EpCode, EpError, Space, error::detail::PLANE_CLAIM_REFUSED};
use serde_json::json;

use crate::claim_oracle::ClaimTuples;

/// Most characters of the oracle's note that a refusal repeats.
const LONGEST_NOTE: usize = 300;

/// The reason in a refusal's details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClaimRefusal {
    /// The row cannot be read.
    Corrupt,
    /// A claimed connection is live.
    LivePeer,
    /// Nobody can say whether the holder lives.
    Unknown,
    /// Two races were lost.
    Concurrent,
    /// The plane has fenced itself.
    Fenced,
    /// The release has begun.
    Released,
    /// The row is no longer this holder's.
    Lost,
    /// The release could not be written; it can be tried again, alone of all.
    ReleaseUnreachable,
}

impl ClaimRefusal {
    const ALL: [Self; 8] = [
        Self::Corrupt,
        Self::LivePeer,
        Self::Unknown,
        Self::Concurrent,
        Self::Fenced,
        Self::Released,
        Self::Lost,
        Self::ReleaseUnreachable,
    ];

    /// The word in the details.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::LivePeer => "live-peer",
            Self::Unknown => "unknown",
            Self::Concurrent => "concurrent",
            Self::Fenced => "fenced",
            Self::Released => "released",
            Self::Lost => "lost",
            Self::ReleaseUnreachable => "release-unreachable",
        }
    }

    /// The refusal's code.
    pub const fn code(self) -> EpCode {
        match self {
            Self::Unknown | Self::ReleaseUnreachable => EpCode::Unavailable,
            _ => EpCode::FailedPrecondition,
        }
    }

    /// The reason that a refusal carries, if it is one of the claim's.
    pub fn of(refusal: &EpError) -> Option<Self> {
        let detail = refusal.details.iter().find(|detail| detail["kind"] == PLANE_CLAIM_REFUSED)?;
        Self::ALL.into_iter().find(|reason| detail["reason"] == reason.reason())
    }

    pub(super) fn refuse(self, message: impl Into<String>) -> EpError {
        EpError::new(self.code(), message)
            .with_detail(json!({ "kind": PLANE_CLAIM_REFUSED, "reason": self.reason() }))
    }
}

/// A refusal to open. `tuples` are the holder's connections where there is one; `note` is the oracle's.
pub(super) fn at_open(
    reason: ClaimRefusal,
    space: &Space,
    tuples: &ClaimTuples,
    note: Option<&str>,
) -> EpError {
    let who = || format!("{} and {}", shown(&tuples.ledger), shown(&tuples.records));
    reason.refuse(match reason {
        ClaimRefusal::LivePeer => format!(
            "another auth process owns the authority plane of space {space}: its scanner connections are live \
             ({}); stop the other auth process, then start this one again",
            who()
        ),
        ClaimRefusal::Unknown => format!(
            "the authority plane of space {space} was held by scanner connections {}, and whether they are gone \
             cannot be told yet ({}); wait and retry. The delivery daemon of the space answers this: when it is \
             down, start it first (cotal delivery), then the auth service",
            who(),
            note.map_or_else(|| "the sweep was not complete".to_owned(), clipped)
        ),
        ClaimRefusal::Concurrent => format!(
            "other auth processes are taking the authority plane of space {space} at this moment; let one auth \
             process run, and start no second"
        ),
        _ => format!(
            "the plane claim of space {space} (key plane of its auth store) cannot be read, and is never written \
             over; restore the auth store from a backup"
        ),
    })
}

/// A note of another process, on one line and not too long.
fn clipped(note: &str) -> String {
    note.chars().take(LONGEST_NOTE).flat_map(char::escape_debug).collect()
}

fn shown(tuple: &ConnectionTuple) -> String {
    let ConnectionTuple { server_id, client_id, user_nkey } = tuple;
    format!("server {} cid {client_id} user {user_nkey}", server_id.escape_default())
}

#[cfg(test)]
mod tests {
    use cotal_wire::Nkey;

    use super::*;

    fn tuples() -> ClaimTuples {
        let tuple = |client_id| ConnectionTuple {
            server_id: "NSERVER".to_owned(),
            client_id,
            user_nkey: Nkey::parse(&format!("U{}", "A".repeat(55))).unwrap(),
        };
        ClaimTuples { ledger: tuple(7), records: tuple(8) }
    }

    #[test]
    fn every_reason_has_its_code_and_is_read_back_from_the_details() {
        for (reason, word, code) in [
            (ClaimRefusal::Corrupt, "corrupt", EpCode::FailedPrecondition),
            (ClaimRefusal::LivePeer, "live-peer", EpCode::FailedPrecondition),
            (ClaimRefusal::Unknown, "unknown", EpCode::Unavailable),
            (ClaimRefusal::Concurrent, "concurrent", EpCode::FailedPrecondition),
            (ClaimRefusal::Fenced, "fenced", EpCode::FailedPrecondition),
            (ClaimRefusal::Released, "released", EpCode::FailedPrecondition),
            (ClaimRefusal::Lost, "lost", EpCode::FailedPrecondition),
            (ClaimRefusal::ReleaseUnreachable, "release-unreachable", EpCode::Unavailable),
        ] {
            let refusal = reason.refuse("x");
            assert_eq!(refusal.code, code);
            let detail = json!({ "kind": "ai.cotal.auth.plane-claim-refused", "reason": word });
            assert_eq!(refusal.details, [detail]);
            assert_eq!(ClaimRefusal::of(&refusal), Some(reason));
        }
        assert_eq!(ClaimRefusal::of(&EpError::internal("x")), None);
    }

    #[test]
    fn a_live_peer_is_named_and_an_inconclusive_answer_never_says_stop() {
        let space = Space::parse("demo").unwrap();
        let live = at_open(ClaimRefusal::LivePeer, &space, &tuples(), None).message;
        for says in ["space demo", "cid 7", "cid 8", "NSERVER", "stop the other auth process"] {
            assert!(live.contains(says), "{live}");
        }
        let unknown = at_open(ClaimRefusal::Unknown, &space, &tuples(), Some("nobody answered")).message;
        for says in ["space demo", "wait and retry", "nobody answered", "delivery daemon", "start it first"] {
            assert!(unknown.contains(says), "{unknown}");
        }
        assert!(!unknown.contains("stop"), "{unknown}");
        let corrupt = at_open(ClaimRefusal::Corrupt, &space, &tuples(), None).message;
        assert!(corrupt.contains("never written over"), "{corrupt}");
    }
}
