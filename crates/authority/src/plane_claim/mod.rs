//! The plane claim: one process owns a space's authority plane, and says so in one row (contract 03 §E and §G,
//! 05 §8.5).
//!
//! The row pins the two scanner connections of its holder. There is no timer and no heartbeat: it is taken when it is
//! released, or when a complete sweep finds neither connection any more. [`decide`] holds the rules, without I/O.

pub mod decide;
mod hold;
mod refusal;

use std::sync::Arc;

use cotal_broker::kv::{Bucket, LeaderRead, WriteOutcome};
use cotal_trust::nkey::Seed;
use cotal_wire::{
    Clock, Entropy, EpError, UnixMillis, User,
    names::PLANE_KEY,
    rows::{PlaneClaim, PlaneTuple},
};

use self::decide::{Claimant, Found, OpenStep, decide_open, decide_reclaim};
pub use self::{
    hold::{ClaimHold, When},
    refusal::ClaimRefusal,
};
use crate::{
    claim_oracle::{ClaimOracle, ClaimTuples},
    scanner::{LedgerCandidate, RecordsCandidate},
    store::{ambiguous, unsent},
    stores::AuthorityStores,
};

/// How often a lost race may begin anew.
const ATTEMPTS: u32 = 2;

/// Takes the claim for the two candidates.
///
/// `stores` must be over the barrier connection, the only one that may write the row. A loser is refused with a
/// [`ClaimRefusal`] and must close both candidates; a write whose fate nobody knows is `unavailable`, and what it may
/// have left is a dead holder that the next open takes over.
pub async fn acquire(
    stores: &AuthorityStores,
    ledger: &LedgerCandidate,
    records: &RecordsCandidate,
    oracle: &dyn ClaimOracle,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
) -> Result<Arc<ClaimHold>, EpError> {
    let space = stores.space();
    let tuples = ClaimTuples {
        ledger: ledger.connection().tuple().clone(),
        records: records.connection().tuple().clone(),
    };
    let claimant = Claimant {
        claim_id: Seed::<User>::generate(entropy).public().to_string(),
        ledger: pinned(&tuples.ledger)?,
        records: pinned(&tuples.records)?,
        opened_at: iso_time(clock.now_millis())?,
    };
    for _ in 0..ATTEMPTS {
        let found = read(stores.auth()).await?;
        let (row, over) = match decide_open(&found, &claimant) {
            OpenStep::Create(row) => (row, None),
            OpenStep::Take { row, over } => (row, Some(over)),
            OpenStep::Ask { held, over } => {
                let asked = ClaimTuples::pinned_by(&held);
                let seen = oracle.observe(&asked).await;
                let row = decide_reclaim(&held, &asked, &seen, &claimant)
                    .map_err(|reason| refusal::at_open(reason, space, &asked, seen.note.as_deref()))?;
                (row, Some(over))
            }
            OpenStep::Refuse(reason) => return Err(refusal::at_open(reason, space, &tuples, None)),
        };
        let outcome = match over {
            None => stores.auth_store().create(PLANE_KEY, row.to_bytes()).await,
            Some(over) => stores.auth_store().update(PLANE_KEY, row.to_bytes(), over).await,
        };
        match outcome {
            WriteOutcome::Written(_) => {
                tracing::info!(%space, generation = row.generation, "auth-plane: the claim is held");
                return Ok(ClaimHold::new(stores.clone(), row, tuples));
            }
            WriteOutcome::Lost => {}
            WriteOutcome::Ambiguous(why) => return Err(ambiguous("plane claim", &why)),
            WriteOutcome::Refused(why) => return Err(unsent("plane claim", &why)),
        }
    }
    Err(refusal::at_open(ClaimRefusal::Concurrent, space, &tuples, None))
}

/// What stands at the key, by a leader read.
async fn read(auth: &Bucket) -> Result<Found, EpError> {
    Ok(match auth.leader_read(PLANE_KEY).await? {
        LeaderRead::Absent => Found::Absent,
        LeaderRead::Marker(_) => Found::Corrupt,
        LeaderRead::Value(entry) => match PlaneClaim::parse(&entry.value) {
            Ok(row) => Found::Row { row, revision: entry.revision },
            Err(garbled) => {
                tracing::error!(
                    bucket = auth.name(), refusal = %garbled, revision = entry.revision.0,
                    "auth-plane: the claim row"
                );
                Found::Corrupt
            }
        },
    })
}

fn pinned(tuple: &cotal_broker::ConnectionTuple) -> Result<PlaneTuple, EpError> {
    PlaneTuple::new(&tuple.server_id, tuple.client_id, &tuple.user_nkey)
}

/// An instant as ECMAScript prints it: UTC, milliseconds, `Z`.
fn iso_time(at: UnixMillis) -> Result<String, EpError> {
    let time = i64::try_from(at.0).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    let time = time.ok_or_else(|| EpError::internal("the clock is past the year 9999"))?;
    Ok(time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_as_ecmascript_prints_them() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
        ] {
            assert_eq!(iso_time(UnixMillis(millis)).unwrap(), text);
        }
        assert!(iso_time(UnixMillis(u64::MAX)).is_err());
    }
}
