//! Who holds which connection, from open to its proved end (contract 04 §16, 05 §15.3).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
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
}

/// The registry of a context's connections.
///
/// Every connection that was ever opened stays in the inventory, short-lived and replaced ones included: the
/// inventory of a closed context is the proof that nothing was left behind.
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
    rows: Vec<Row>,
    complete: bool,
}

struct Row {
    label: String,
    /// The connection, while it lives.
    live: Option<Arc<Core>>,
}

/// A connection's place in the inventory.
pub(crate) struct Place {
    registry: Arc<Registry>,
    index: usize,
}

impl Custody {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// A detached snapshot, in the order of opening.
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
                if state.complete && state.rows.iter().all(|row| row.live.is_none()) {
                    return state.owned();
                }
            }
            // Cannot fail: `self` holds the sender.
            let _ = changed.changed().await;
        }
    }

    /// Closes every live connection in parallel. The error names the label of each that did not end.
    pub async fn close_remaining(&self) -> Result<(), EpError> {
        let live: Vec<_> =
            self.registry.state.lock().rows.iter().filter_map(|row| row.live.clone()).collect();
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
        state.rows.push(Row { label: core.label().to_owned(), live: Some(Arc::clone(core)) });
        Ok(Place { registry: Arc::clone(&self.registry), index: state.rows.len() - 1 })
    }
}

fn closing(label: &str) -> EpError {
    EpError::unavailable(format!("{label}: the service is closing and opens no more connections"))
}

impl State {
    fn owned(&self) -> Vec<Owned> {
        let owned = |row: &Row| Owned { label: row.label.clone(), ended: row.live.is_none() };
        self.rows.iter().map(owned).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let ended = self.registry.state.lock().rows.get_mut(self.index).and_then(|row| row.live.take());
        drop(ended);
        self.registry.changed.send_replace(());
    }
}
