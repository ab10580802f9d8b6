//! The rules of the claim: from what was read and seen to the one step that may follow. No I/O; the model checker runs
//! these very functions.

use cotal_wire::{
    Revision,
    rows::{ClaimState, PlaneClaim, PlaneTuple},
    time::MAX_SAFE_INTEGER,
};

use super::refusal::ClaimRefusal;
use crate::claim_oracle::{ClaimObservation, ClaimTuples, Verdict};

/// What a leader read of the key found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Found {
    /// Never written.
    Absent,
    /// A deletion marker, or bytes that are no claim.
    Corrupt,
    /// A claim.
    Row {
        /// The row.
        row: PlaneClaim,
        /// Its revision.
        revision: Revision,
    },
}

/// Who wants the claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claimant {
    /// A fresh user nkey's public key.
    pub claim_id: String,
    /// Its ledger scanner's connection.
    pub ledger: PlaneTuple,
    /// Its records scanner's connection.
    pub records: PlaneTuple,
    /// When it opens.
    pub opened_at: String,
}

/// What an opening process does about what it found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OpenStep {
    /// Create this row on the virgin key.
    Create(PlaneClaim),
    /// Write this row over the released one.
    Take {
        /// The row.
        row: PlaneClaim,
        /// The revision that was read.
        over: Revision,
    },
    /// Ask the oracle about the held row's own connections; [`decide_reclaim`] goes on.
    Ask {
        /// The held row.
        held: PlaneClaim,
        /// The revision that was read.
        over: Revision,
    },
    /// Refuse.
    Refuse(ClaimRefusal),
}

/// What a releasing holder does about what it found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReleaseStep {
    /// It is released already.
    Done,
    /// Write this row.
    Write {
        /// The row.
        row: PlaneClaim,
        /// The revision that was read.
        over: Revision,
    },
    /// It is nobody's to release here.
    Lost,
}

impl Claimant {
    /// The held row of this claimant at a generation.
    fn held(&self, generation: u64) -> PlaneClaim {
        PlaneClaim {
            generation,
            claim_id: self.claim_id.clone(),
            state: ClaimState::Held,
            ledger: self.ledger.clone(),
            records: self.records.clone(),
            opened_at: self.opened_at.clone(),
        }
    }

    /// The row that follows `row`; a generation that cannot grow any more is corruption.
    fn following(&self, row: &PlaneClaim) -> Result<PlaneClaim, ClaimRefusal> {
        if row.generation >= MAX_SAFE_INTEGER {
            return Err(ClaimRefusal::Corrupt);
        }
        Ok(self.held(row.generation + 1))
    }
}

/// What opening does about what it found (contract 05 §8.5, steps 1 to 4).
pub fn decide_open(found: &Found, claimant: &Claimant) -> OpenStep {
    match found {
        Found::Absent => OpenStep::Create(claimant.held(1)),
        Found::Corrupt => OpenStep::Refuse(ClaimRefusal::Corrupt),
        Found::Row { row, revision } => match row.state {
            ClaimState::Held => OpenStep::Ask { held: row.clone(), over: *revision },
            ClaimState::Released => match claimant.following(row) {
                Ok(row) => OpenStep::Take { row, over: *revision },
                Err(reason) => OpenStep::Refuse(reason),
            },
        },
    }
}

/// The row to write over a held one whose connections are both proved gone, or why not (contract 05 §8.5, step 4).
pub fn decide_reclaim(
    held: &PlaneClaim,
    asked: &ClaimTuples,
    seen: &ClaimObservation,
    claimant: &Claimant,
) -> Result<PlaneClaim, ClaimRefusal> {
    // An answer about other connections says nothing of these.
    if seen.tuples != *asked {
        return Err(ClaimRefusal::Unknown);
    }
    let verdicts = [seen.ledger, seen.records];
    if verdicts.contains(&Verdict::Live) {
        return Err(ClaimRefusal::LivePeer);
    }
    if !seen.sweep_complete || verdicts.contains(&Verdict::Unknown) {
        return Err(ClaimRefusal::Unknown);
    }
    claimant.following(held)
}

/// Whether what stands there is still this very claim, held.
pub fn decide_held(found: &Found, own: &PlaneClaim) -> bool {
    matches!(found, Found::Row { row, .. } if row.state == ClaimState::Held && row.is_same_claim(own))
}

/// What a release does about what it found.
pub fn decide_release(found: &Found, own: &PlaneClaim) -> ReleaseStep {
    match found {
        Found::Row { row, revision } if row.is_same_claim(own) => match row.state {
            ClaimState::Released => ReleaseStep::Done,
            ClaimState::Held => ReleaseStep::Write { row: row.released(), over: *revision },
        },
        Found::Absent | Found::Corrupt | Found::Row { .. } => ReleaseStep::Lost,
    }
}

#[cfg(test)]
mod tests {
    use cotal_broker::ConnectionTuple;
    use cotal_wire::Nkey;

    use super::*;

    fn tuple(cid: u64) -> PlaneTuple {
        PlaneTuple::new("NSERVER", cid, &Nkey::parse(&format!("U{}", "A".repeat(55))).unwrap()).unwrap()
    }

    fn claimant() -> Claimant {
        Claimant {
            claim_id: "mine".to_owned(),
            ledger: tuple(1),
            records: tuple(2),
            opened_at: "2026-01-02T03:04:05.678Z".to_owned(),
        }
    }

    fn peer(state: ClaimState, generation: u64) -> PlaneClaim {
        PlaneClaim {
            generation,
            claim_id: "theirs".to_owned(),
            state,
            ledger: tuple(8),
            records: tuple(9),
            opened_at: "then".to_owned(),
        }
    }

    fn at(row: PlaneClaim) -> Found {
        Found::Row { row, revision: Revision(7) }
    }

    #[test]
    fn opening_creates_takes_asks_or_refuses() {
        assert_eq!(decide_open(&Found::Absent, &claimant()), OpenStep::Create(claimant().held(1)));
        assert_eq!(decide_open(&Found::Corrupt, &claimant()), OpenStep::Refuse(ClaimRefusal::Corrupt));
        let over = Revision(7);
        assert_eq!(
            decide_open(&at(peer(ClaimState::Released, 4)), &claimant()),
            OpenStep::Take { row: claimant().held(5), over }
        );
        let held = peer(ClaimState::Held, 4);
        assert_eq!(decide_open(&at(held.clone()), &claimant()), OpenStep::Ask { held, over });
        // Even its own row, should it ever meet it, is only taken over when it is dead.
        assert!(matches!(decide_open(&at(claimant().held(4)), &claimant()), OpenStep::Ask { .. }));
        assert_eq!(
            decide_open(&at(peer(ClaimState::Released, MAX_SAFE_INTEGER)), &claimant()),
            OpenStep::Refuse(ClaimRefusal::Corrupt)
        );
    }

    #[test]
    fn only_a_complete_sweep_that_finds_neither_connection_reclaims() {
        use Verdict::{Gone, Live, Unknown};
        let held = peer(ClaimState::Held, 4);
        let asked = ClaimTuples::pinned_by(&held);
        let decide = |ledger, records, sweep_complete| {
            let seen =
                ClaimObservation { tuples: asked.clone(), ledger, records, sweep_complete, note: None };
            decide_reclaim(&held, &asked, &seen, &claimant())
        };
        for ledger in [Live, Gone, Unknown] {
            for records in [Live, Gone, Unknown] {
                for complete in [true, false] {
                    let expected = match (ledger, records, complete) {
                        // Live is said first, whatever else is not known.
                        (Live, _, _) | (_, Live, _) => Err(ClaimRefusal::LivePeer),
                        (Gone, Gone, true) => Ok(claimant().held(5)),
                        _ => Err(ClaimRefusal::Unknown),
                    };
                    assert_eq!(
                        decide(ledger, records, complete),
                        expected,
                        "{ledger:?} {records:?} {complete}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_answer_about_other_connections_is_unknown_even_when_it_says_live() {
        let held = peer(ClaimState::Held, 4);
        let asked = ClaimTuples::pinned_by(&held);
        let swapped = ClaimTuples { ledger: asked.records.clone(), records: asked.ledger.clone() };
        let other = ConnectionTuple { client_id: 10, ..asked.ledger.clone() };
        let foreign = ClaimTuples { ledger: other, ..asked.clone() };
        for tuples in [swapped, foreign] {
            for verdict in [Verdict::Gone, Verdict::Live] {
                let seen = ClaimObservation {
                    tuples: tuples.clone(),
                    ledger: verdict,
                    records: verdict,
                    sweep_complete: true,
                    note: None,
                };
                let decided = decide_reclaim(&held, &asked, &seen, &claimant());
                assert_eq!(decided, Err(ClaimRefusal::Unknown));
            }
        }
    }

    #[test]
    fn a_hold_is_the_whole_row_and_a_release_never_writes_over_another() {
        let own = claimant().held(5);
        let over = Revision(7);
        assert!(decide_held(&at(own.clone()), &own));
        let write = ReleaseStep::Write { row: own.released(), over };
        assert_eq!(decide_release(&at(own.clone()), &own), write);
        assert!(!decide_held(&at(own.released()), &own));
        assert_eq!(decide_release(&at(own.released()), &own), ReleaseStep::Done);
        for other in [
            Found::Absent,
            Found::Corrupt,
            at(PlaneClaim { claim_id: "theirs".to_owned(), ..own.clone() }),
            at(PlaneClaim { generation: 6, ..own.clone() }),
            at(PlaneClaim { ledger: tuple(3), ..own.clone() }),
            at(PlaneClaim { records: tuple(3), ..own.clone() }),
            at(PlaneClaim { generation: 6, ..own.released() }),
        ] {
            assert!(!decide_held(&other, &own), "{other:?}");
            assert_eq!(decide_release(&other, &own), ReleaseStep::Lost, "{other:?}");
        }
    }
}
