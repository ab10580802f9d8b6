//! Native issuance rows and their prune (contract 05 §8.4, 10 §5, 12 D13).
//!
//! Every connect that the callout admits leaves one row, keyed by the user key that the broker made for it. A prune
//! costs one read for each row or marker that other processes wrote since the last one, and one purge for each row
//! that is due: the history is walked from where the last walk ended, and what this process wrote is passed over.

use std::sync::Arc;

use cotal_broker::kv::{LeaderRead, WriteOutcome};
use cotal_wire::{Clock, EpError, Revision, Space, UnixSecs, names};
use futures::future::try_join_all;
use parking_lot::Mutex;

pub use cotal_wire::rows::NatkeyRow;

use crate::{
    fence::Fence,
    issuance_memory::{Due, LiveRow, Memory},
    store::{MARKER_TTL_SECS, ambiguous, at_key, unsent},
    stores::AuthorityStores,
};

/// Which keys a walk looks at.
const NATKEY_FILTER: &str = "natkey.>";
/// How many purges a prune has in flight, and how many reads a walk.
const WIDTH: usize = 16;
/// How many revisions one of several readers looks at, and how many messages a lone one reads, before what was found
/// is kept.
const STRETCH: u64 = 256;

/// Writes and prunes issuance rows.
pub struct IssuanceLog {
    stores: AuthorityStores,
    clock: Arc<dyn Clock>,
    fence: Arc<Fence>,
    memory: Mutex<Memory>,
    /// Whether this process prunes, and so remembers what it wrote.
    prunes: bool,
    /// One walk or prune at a time.
    turn: tokio::sync::Mutex<()>,
}

/// What one reader found.
struct Stretch {
    rows: Vec<(UnixSecs, LiveRow)>,
    /// How many messages were read.
    read: u64,
    /// Everything before this revision was looked at.
    reached: u64,
}

impl IssuanceLog {
    /// Over proved stores whose connection may publish `$KV.<auth>.natkey.>`.
    pub fn new(stores: AuthorityStores, clock: Arc<dyn Clock>) -> Self {
        Self::under(stores, clock, Arc::new(Fence::new()))
    }

    /// As [`Self::new`], refusing also once the plane's fence is tripped.
    pub(crate) fn under(stores: AuthorityStores, clock: Arc<dyn Clock>, fence: Arc<Fence>) -> Self {
        let (memory, turn) = (Mutex::new(Memory::new()), tokio::sync::Mutex::new(()));
        Self { stores, clock, fence, memory, prunes: true, turn }
    }

    /// As [`Self::new`], for a process that only records: another one prunes, and finds these rows by its own walk, so
    /// nothing is remembered of them here.
    pub fn recording(stores: AuthorityStores, clock: Arc<dyn Clock>) -> Self {
        Self { prunes: false, ..Self::new(stores, clock) }
    }

    /// The space of its stores.
    pub(crate) fn space(&self) -> &Space {
        self.stores.space()
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
            WriteOutcome::Ambiguous(why) => {
                let error = ambiguous("issuance row", &why);
                self.stores.doubt_after(&error);
                return Err(error);
            }
            WriteOutcome::Refused(why) => return Err(unsent("issuance row", &why)),
        };
        if self.prunes {
            self.memory.lock().wrote_row(row.exp, LiveRow::new(&row.user, revision));
        }
        self.fence.check()
    }

    /// How many live rows are remembered, of this process and of others: for tests.
    #[cfg(any(test, feature = "failpoints"))]
    pub fn live_rows(&self) -> usize {
        self.memory.lock().rows()
    }

    /// Learns of the rows that other processes wrote since the last walk, or before this one began; a corrupt row is
    /// an error. Purges nothing.
    pub async fn discover(&self) -> Result<(), EpError> {
        let _turn = self.turn.lock().await;
        self.walk().await
    }

    /// Removes rows whose `exp` + 5 s has passed; a corrupt row is an error. Returns how many were removed.
    ///
    /// Dropped midway, or on a plane that closes, it has removed some of them; the next run removes the rest.
    pub async fn prune(&self) -> Result<usize, EpError> {
        let _turn = self.turn.lock().await;
        self.walk().await?;
        let now = self.clock.now_secs();
        let purgers = try_join_all((0..WIDTH).map(|_| self.purge_due(now))).await?;
        Ok(purgers.into_iter().sum())
    }

    /// Takes due rows, one after the other, until none is left.
    async fn purge_due(&self, now: UnixSecs) -> Result<usize, EpError> {
        let mut removed = 0;
        while self.fence.check().is_ok()
            && let Some(due) = Due::take(&self.memory, now)
        {
            removed += usize::from(self.purge(due).await?);
        }
        Ok(removed)
    }

    /// Whether this row was removed by this call.
    async fn purge(&self, due: Due<'_>) -> Result<bool, EpError> {
        let Some(row) = due.row() else { return Ok(false) };
        let key = names::natkey_key(&row.user());
        let removed = match self.stores.auth().purge_pinned(&key, row.revision, MARKER_TTL_SECS).await {
            WriteOutcome::Written(marker) => {
                self.memory.lock().wrote_marker(marker);
                true
            }
            WriteOutcome::Lost => {
                // Another process purged it first, or it was overwritten: then it has another revision, under which
                // the walk knows it, and must be readable still.
                if let LeaderRead::Value(entry) = self.stores.auth().leader_read(&key).await? {
                    self.parse(&key, &entry.value)?;
                }
                false
            }
            WriteOutcome::Ambiguous(why) => return Err(ambiguous("issuance prune", &why)),
            WriteOutcome::Refused(why) => return Err(unsent("issuance prune", &why)),
        };
        due.settle();
        Ok(removed)
    }

    // --- the walk ---------------------------------------------------------------------------------------------

    /// Reads the history from where the last walk ended to where it ends now. What is written meanwhile is the next
    /// walk's, so that a walk ends however many connects there are.
    ///
    /// One reader follows the history from message to message. Where it is dense, up to [`WIDTH`] readers share it.
    async fn walk(&self) -> Result<(), EpError> {
        let tail = self.stores.auth().tail().await?;
        self.memory.lock().begin_walk(&tail);
        let end = tail.last.0.saturating_add(1);
        let mut readers = 1;
        loop {
            let from = {
                let memory = self.memory.lock();
                memory.skip_own(memory.next())
            };
            if from >= end || self.fence.check().is_err() {
                self.memory.lock().learn(Vec::new(), from);
                return Ok(());
            }
            let Stretch { rows, read, reached } = if readers == 1 {
                self.read_stretch(from, end, STRETCH).await?
            } else {
                self.read_stretches(from, end, readers).await?
            };
            self.memory.lock().learn(rows, reached);
            let dense = read * 2 >= reached - from;
            readers = if dense { (readers * 2).min(WIDTH) } else { (readers / 2).max(1) };
        }
    }

    async fn read_stretches(&self, from: u64, end: u64, readers: usize) -> Result<Stretch, EpError> {
        let starts = (0..readers as u64).map(|nth| from.saturating_add(nth * STRETCH));
        let stretches = starts
            .take_while(|start| *start < end)
            .map(|start| self.read_stretch(start, end.min(start.saturating_add(STRETCH)), STRETCH));
        let mut whole = Stretch { rows: Vec::new(), read: 0, reached: from };
        for one in try_join_all(stretches).await? {
            whole.rows.extend(one.rows);
            whole.read += one.read;
            whole.reached = whole.reached.max(one.reached);
        }
        Ok(whole)
    }

    /// Reads from `from` up to `end`, or until `most` messages were read.
    async fn read_stretch(&self, from: u64, end: u64, most: u64) -> Result<Stretch, EpError> {
        let mut stretch = Stretch { rows: Vec::new(), read: 0, reached: from };
        while stretch.read < most {
            let at = self.memory.lock().skip_own(stretch.reached);
            stretch.reached = end;
            if at >= end {
                break;
            }
            let Some(found) = self.stores.auth().next_under(NATKEY_FILTER, Revision(at)).await? else {
                break;
            };
            if found.revision.0 >= end {
                break;
            }
            stretch.read += 1;
            stretch.reached = found.revision.0.saturating_add(1);
            if let Some(value) = found.value {
                let row = self.parse(&found.key, &value)?;
                stretch.rows.push((row.exp, LiveRow::new(&row.user, found.revision)));
            }
        }
        Ok(stretch)
    }

    fn parse(&self, key: &str, value: &[u8]) -> Result<NatkeyRow, EpError> {
        let row = NatkeyRow::parse(key, value).and_then(|row| {
            if row.space == *self.stores.space() {
                Ok(row)
            } else {
                Err(EpError::internal("the issuance row is of another space"))
            }
        });
        at_key(key, row)
    }
}
