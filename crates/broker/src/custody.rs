//! Who holds which connection, from open to its proved end (contract 04 §16, 05 §15.3).

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cotal_wire::EpError;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::connection::Core;

/// One row of the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// `cotal:<role>:<space>`.
    pub label: String,
    /// Whether its end was proved.
    pub ended: bool,
    /// How many connections the row stands for: one that lives has a row of its own, those of a label that have ended share
    /// one.
    pub count: u64,
}

/// The registry of a context's connections.
///
/// Every connection that was ever opened stays in the inventory, short-lived and replaced ones included: the
/// inventory of a closed context is the proof that nothing was left behind. A label is a role's, so that those that have
/// ended take a row a role, however many requests there were.
#[derive(Clone, Default)]
pub struct Custody {
    registry: Arc<Registry>,
}

#[derive(Default)]
struct Registry {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    round_trips: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    /// How many were opened.
    opened: u64,
    /// Those that live, by the order of opening.
    live: BTreeMap<u64, Arc<Core>>,
    /// Those that have ended, by label.
    ended: BTreeMap<String, Ended>,
    complete: bool,
}

/// The connections of one label that have ended.
struct Ended {
    /// Where the first of them stands in the order of opening.
    first: u64,
    count: u64,
}

/// A connection's place in the inventory.
pub(crate) struct Place {
    registry: Arc<Registry>,
    nth: u64,
}

impl Custody {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// A detached snapshot, in the order of opening; those of a label that have ended stand where the first of them was.
    pub fn connections(&self) -> Vec<Owned> {
        self.registry.state.lock().owned()
    }

    /// How many requests its connections have sent so far, each awaiting its answer: the round trips that a decision, or a
    /// write, costs. A [`crate::Connection::flush`] is none of them.
    pub fn round_trips(&self) -> u64 {
        self.registry.round_trips.load(Ordering::Relaxed)
    }

    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.registry.round_trips)
    }

    /// No more connections will be opened: from here on [`crate::Connector`] refuses to.
    pub fn complete(&self) {
        self.registry.state.lock().complete = true;
        self.registry.changed.send_replace(());
    }

    /// Resolves with the inventory once `complete` was called and every connection has ended.
    pub async fn closed(&self) -> Vec<Owned> {
        let mut changed = self.registry.changed.subscribe();
        loop {
            {
                let state = self.registry.state.lock();
                if state.complete && state.live.is_empty() {
                    return state.owned();
                }
            }
            // Cannot fail: `self` holds the sender.
            let _ = changed.changed().await;
        }
    }

    /// Closes every live connection in parallel. The error names the label of each that did not end.
    pub async fn close_remaining(&self) -> Result<(), EpError> {
        let live: Vec<_> = self.registry.state.lock().live.values().cloned().collect();
        let failures: Vec<String> = join_all(live.iter().map(|core| core.close()))
            .await
            .into_iter()
            .filter_map(|outcome| outcome.err().map(|error| error.message))
            .collect();
        if failures.is_empty() { Ok(()) } else { Err(EpError::unavailable(failures.join("; "))) }
    }

    /// Refuses once [`Self::complete`] was called.
    pub(crate) fn check_open(&self, label: &str) -> Result<(), EpError> {
        if self.registry.state.lock().complete { Err(closing(label)) } else { Ok(()) }
    }

    /// Takes a connection into custody; the place is given up when its end is proved.
    pub(crate) fn track(&self, core: &Arc<Core>) -> Result<Place, EpError> {
        let mut state = self.registry.state.lock();
        if state.complete {
            return Err(closing(core.label()));
        }
        let nth = state.opened;
        state.opened += 1;
        state.live.insert(nth, Arc::clone(core));
        Ok(Place { registry: Arc::clone(&self.registry), nth })
    }
}

fn closing(label: &str) -> EpError {
    EpError::unavailable(format!("{label}: the service is closing and opens no more connections"))
}

impl State {
    fn owned(&self) -> Vec<Owned> {
        let live = self.live.iter().map(|(nth, core)| (*nth, core.label(), false, 1));
        let ended = self.ended.iter().map(|(label, rows)| (rows.first, label.as_str(), true, rows.count));
        let mut rows: Vec<_> = live.chain(ended).collect();
        rows.sort_unstable_by_key(|(nth, ..)| *nth);
        let owned = |(_, label, ended, count): (u64, &str, bool, u64)| Owned {
            label: label.to_owned(),
            ended,
            count,
        };
        rows.into_iter().map(owned).collect()
    }

    /// Books the end of a connection, and gives it back.
    fn end(&mut self, nth: u64) -> Option<Arc<Core>> {
        let core = self.live.remove(&nth)?;
        match self.ended.get_mut(core.label()) {
            Some(rows) => {
                rows.first = rows.first.min(nth);
                rows.count += 1;
            }
            None => drop(self.ended.insert(core.label().to_owned(), Ended { first: nth, count: 1 })),
        }
        Some(core)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Dropped once the lock is let go.
        let ended = self.registry.state.lock().end(self.nth);
        drop(ended);
        self.registry.changed.send_replace(());
    }
}
