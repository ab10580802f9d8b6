//! A stop after the nth durable write, for tests that resume what was cut off. Compiled for tests only.
//!
//! Three kinds: [`Failpoint`] holds a writer inside one process, [`landed`] kills the whole process, for tests that run the
//! real binary, and [`on_landed`] lets a test do something to another process.

use std::{
    io::Write as _,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use cotal_broker::kv::WriteOutcome;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::stores::AuthorityStores;

/// Counts the writes that landed, remembers their keys, and does something after the nth.
#[derive(Debug)]
pub struct Failpoint {
    does: Does,
    landed: Mutex<Vec<String>>,
    reached: Notify,
    released: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Nothing,
    /// Holds the writer after this write.
    Hold(usize),
    /// Loses the answer to this write.
    Forget(usize),
}

impl Failpoint {
    /// Only writes down what landed.
    pub fn journal() -> Arc<Self> {
        Self::new(Does::Nothing)
    }

    /// Holds the writer after the `nth` write that landed, counting from 1.
    ///
    /// A test that drops the held future has exactly what a crash, or a cancelled caller, leaves behind; one that
    /// releases it has put another writer between two writes.
    pub fn stop_after(nth: usize) -> Arc<Self> {
        Self::new(Does::Hold(nth))
    }

    /// Reports the `nth` write that landed as ambiguous: its answer was lost.
    pub fn forget_answer_of(nth: usize) -> Arc<Self> {
        Self::new(Does::Forget(nth))
    }

    fn new(does: Does) -> Arc<Self> {
        Arc::new(Self {
            does,
            landed: Mutex::new(Vec::new()),
            reached: Notify::new(),
            released: Notify::new(),
        })
    }

    /// Watches every write of these stores, and of their clones. Once.
    pub fn arm(self: &Arc<Self>, stores: &AuthorityStores) {
        // Both stores share one.
        stores.auth_store().set_failpoint(self.clone());
    }

    /// Watches every write of these evidence stores, and of their clones. Once.
    pub fn arm_issued(self: &Arc<Self>, store: &crate::issued::IssuedStore) {
        store.set_failpoint(self);
    }

    /// Resolves when the writer is held.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Lets the held writer go on.
    pub fn release(&self) {
        self.released.notify_one();
    }

    /// The keys of the writes that landed, in order.
    pub fn landed(&self) -> Vec<String> {
        self.landed.lock().clone()
    }

    pub(crate) async fn after(&self, key: &str, outcome: WriteOutcome) -> WriteOutcome {
        if !matches!(outcome, WriteOutcome::Written(_)) {
            return outcome;
        }
        let count = {
            let mut landed = self.landed.lock();
            landed.push(key.to_owned());
            landed.len()
        };
        if self.does == Does::Forget(count) {
            return WriteOutcome::Ambiguous("a failpoint lost the answer".to_owned());
        }
        if self.does == Does::Hold(count) {
            self.reached.notify_one();
            self.released.notified().await;
        }
        outcome
    }
}

/// Names the file that arms [`landed`].
pub const KILL_FILE: &str = "COTAL_FAILPOINT_FILE";

type Listener = Box<dyn Fn(&str) + Send + Sync>;
static LISTENER: OnceLock<Listener> = OnceLock::new();

/// From now on this process tells `listen` the key of each of its durable writes that landed, before the writer goes on.
/// Once in a process.
pub fn on_landed(listen: impl Fn(&str) + Send + Sync + 'static) {
    assert!(LISTENER.set(Box::new(listen)).is_ok(), "a process has one listener");
}

/// Called after every durable write that landed. While the file that [`KILL_FILE`] names exists, the key is appended to
/// `<file>.journal`, and the process kills itself after as many writes as the file says (`0`: never).
///
/// SIGKILL and not an exit: nothing is flushed, closed or unwound, as when the power goes.
pub fn landed(key: &str) {
    static ARMED_BY: OnceLock<Option<PathBuf>> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    if let Some(listen) = LISTENER.get() {
        listen(key);
    }
    let Some(file) = ARMED_BY.get_or_init(|| std::env::var_os(KILL_FILE).map(PathBuf::from)) else { return };
    let Ok(text) = std::fs::read_to_string(file) else { return };
    let mut journal = file.clone().into_os_string();
    journal.push(".journal");
    if let Ok(mut journal) = std::fs::OpenOptions::new().create(true).append(true).open(journal) {
        let _ = writeln!(journal, "{key}");
    }
    let nth = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
    if text.trim().parse() == Ok(nth) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
