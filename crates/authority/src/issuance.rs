//! Native issuance rows and their prune (contract 05 §8.4, 10 §5, decision D13).
//!
//! Every connect that the callout admits leaves one row, keyed by the user key that the broker made for it. The log
//! remembers what the rows it wrote say, so that a prune reads only rows that other processes wrote.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cotal_broker::kv::{LeaderRead, WriteOutcome};
use cotal_wire::{Clock, EpError, Nkey, Revision, UnixSecs, User, names};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

pub use cotal_wire::rows::NatkeyRow;

use crate::{
    fence::Fence,
    store::{ambiguous, must_land},
    stores::AuthorityStores,
};

/// Clock tolerance of the verifiers of a bearer, in seconds: a row outlives its JWT by as much (contract 10 §5.1).
const CLOCK_TOLERANCE_SECS: u64 = 5;
/// How long the store keeps a purge marker, in seconds: the bucket's own marker TTL (contract 07 §12.4).
const MARKER_TTL_SECS: u64 = 3600;
/// Which keys a prune looks at.
const NATKEY_FILTER: &str = "natkey.>";
const NATKEY_PREFIX: &str = "natkey.";
/// How many reads and purges a prune has in flight.
const PRUNE_WIDTH: usize = 16;
/// How many keys are remembered: about 30 MB at the most. A key beyond it costs a prune one read each time.
const MEMORY: usize = 1 << 18;

/// What is known of a key without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// A row that ends then; written once, it never moves.
    Row { exp: UnixSecs, revision: Revision },
    /// A purge marker, which the store drops by itself.
    Marker,
}

/// Writes and prunes issuance rows.
pub struct IssuanceLog {
    stores: AuthorityStores,
    clock: Arc<dyn Clock>,
    fence: Arc<Fence>,
    memory: Mutex<Memory>,
}

/// What is known, and since which prune.
#[derive(Default)]
struct Memory {
    round: u64,
    known: HashMap<Nkey<User>, (Known, u64)>,
}

impl Memory {
    fn learn(&mut self, user: Nkey<User>, what: Known) {
        if self.known.len() < MEMORY || self.known.contains_key(&user) {
            self.known.insert(user, (what, self.round));
        }
    }

    fn get(&self, user: &Nkey<User>) -> Option<Known> {
        self.known.get(user).map(|(what, _)| *what)
    }

    /// Starts a round. What is learned from here on may be younger than the round's listing.
    fn begin_round(&mut self) {
        self.round += 1;
    }

    /// Forgets what the store no longer lists, except for what was learned during this round.
    fn keep_listed(&mut self, listed: &HashSet<Nkey<User>>) {
        let round = self.round;
        self.known.retain(|user, (_, since)| *since == round || listed.contains(user));
    }
}

impl IssuanceLog {
    /// Over proved stores whose connection may publish `$KV.<auth>.natkey.>`.
    pub fn new(stores: AuthorityStores, clock: Arc<dyn Clock>) -> Self {
        Self::under(stores, clock, Arc::new(Fence::new()))
    }

    /// As [`Self::new`], refusing also once the plane's fence is tripped.
    pub(crate) fn under(stores: AuthorityStores, clock: Arc<dyn Clock>, fence: Arc<Fence>) -> Self {
        Self { stores, clock, fence, memory: Mutex::new(Memory::default()) }
    }

    /// Create-only. An existing row, or a marker of one, is `conflict`; an ambiguous write is `unavailable`.
    ///
    /// The key is the broker's own for this connect, so a row can be neither doubled nor overwritten. A caller that
    /// drops this future, like one that is told `unavailable`, cannot know whether the row was written, and must deny:
    /// a row without a connect is harmless and is pruned in its time, a connect without a row must not be.
    pub async fn record(&self, row: &NatkeyRow) -> Result<(), EpError> {
        self.fence.check()?;
        let outcome = self.stores.auth_store().create(&names::natkey_key(&row.user), row.to_bytes()).await;
        let revision = match outcome {
            WriteOutcome::Written(revision) => revision,
            WriteOutcome::Lost => {
                return Err(EpError::conflict("issuance row: one exists for this user key; connect again"));
            }
            WriteOutcome::Ambiguous(why) => return Err(ambiguous("issuance row", &why)),
        };
        self.memory.lock().learn(row.user.clone(), Known::Row { exp: row.exp, revision });
        self.fence.check()
    }

    /// Removes rows whose `exp` + 5 s has passed; a corrupt row is an error. Returns how many were removed.
    ///
    /// Dropped midway it has removed some of them; the next run removes the rest.
    pub async fn prune(&self) -> Result<usize, EpError> {
        let now = self.clock.now_secs();
        self.memory.lock().begin_round();
        let keys = self.stores.auth().keys(NATKEY_FILTER).await?;
        let listed = keys.iter().map(|key| user_of(key)).collect::<Result<HashSet<_>, _>>()?;
        self.memory.lock().keep_listed(&listed);

        stream::iter(listed)
            .map(|user| self.prune_one(user, now))
            .buffer_unordered(PRUNE_WIDTH)
            .try_fold(0, |removed, one| async move { Ok(removed + usize::from(one)) })
            .await
    }

    /// Whether this key's row was removed.
    async fn prune_one(&self, user: Nkey<User>, now: UnixSecs) -> Result<bool, EpError> {
        let remembered = self.memory.lock().get(&user);
        let known = if let Some(known) = remembered {
            known
        } else {
            let Some(read) = self.read(&user).await? else { return Ok(false) };
            self.memory.lock().learn(user.clone(), read);
            read
        };
        let Known::Row { exp, revision } = known else { return Ok(false) };
        if !is_over(exp, now) {
            return Ok(false);
        }
        let key = names::natkey_key(&user);
        match self.stores.auth().purge_pinned(&key, revision, MARKER_TTL_SECS).await {
            WriteOutcome::Written(_) => {
                self.memory.lock().learn(user, Known::Marker);
                Ok(true)
            }
            // Another process purged it first.
            WriteOutcome::Lost => {
                self.memory.lock().known.remove(&user);
                Ok(false)
            }
            outcome @ WriteOutcome::Ambiguous(_) => must_land(outcome, "issuance prune").map(|_| true),
        }
    }

    async fn read(&self, user: &Nkey<User>) -> Result<Option<Known>, EpError> {
        let key = names::natkey_key(user);
        match self.stores.auth().leader_read(&key).await? {
            LeaderRead::Absent => Ok(None),
            LeaderRead::Marker(_) => Ok(Some(Known::Marker)),
            LeaderRead::Value(entry) => {
                let row = NatkeyRow::parse(&key, &entry.value)?;
                if row.space != *self.stores.space() {
                    return Err(EpError::internal("issuance row: it is of another space"));
                }
                Ok(Some(Known::Row { exp: row.exp, revision: entry.revision }))
            }
        }
    }
}

/// Whether a row has outlived its JWT and the tolerance.
fn is_over(exp: UnixSecs, now: UnixSecs) -> bool {
    now > exp.plus(CLOCK_TOLERANCE_SECS)
}

/// The user key in a row's key. A key of the family that carries none is corrupt.
fn user_of(key: &str) -> Result<Nkey<User>, EpError> {
    key.strip_prefix(NATKEY_PREFIX)
        .and_then(|user| Nkey::parse(user).ok())
        .ok_or_else(|| EpError::internal("issuance row: its key carries no user key"))
}

#[cfg(test)]
mod tests {
    use cotal_wire::EpCode;

    use super::*;

    #[test]
    fn a_row_is_over_strictly_after_its_exp_and_the_tolerance() {
        for (now, over) in [(100, false), (105, false), (106, true)] {
            assert_eq!(is_over(UnixSecs(100), UnixSecs(now)), over, "now {now}");
        }
        assert!(!is_over(UnixSecs(u64::MAX), UnixSecs(u64::MAX)));
    }

    #[test]
    fn a_key_without_a_user_key_is_corrupt() {
        let user = format!("U{}", "A".repeat(55));
        assert_eq!(user_of(&format!("natkey.{user}")).unwrap().as_str(), user);
        for bad in [
            "natkey.",
            "natkey.x",
            "other.x",
            &format!("natkey.{user}.y"),
            &format!("natkey.A{}", "A".repeat(55)),
        ] {
            assert_eq!(user_of(bad).unwrap_err().code, EpCode::Internal, "{bad}");
        }
    }
}
