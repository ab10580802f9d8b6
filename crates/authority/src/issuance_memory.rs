//! What the issuance log remembers: which rows are to be purged when, and how far the history has been read.

use std::collections::{BTreeMap, BTreeSet};

use cotal_broker::kv::Tail;
use cotal_wire::{Nkey, Revision, UnixSecs, User};
use data_encoding::BASE32_NOPAD;
use parking_lot::Mutex;

/// Clock tolerance of the verifiers of a bearer, in seconds: a row outlives its JWT by as much (contract 10 §5.1).
const CLOCK_TOLERANCE_SECS: u64 = 5;
/// Bytes of a user key: its 56 base-32 digits hold five bits each.
const USER_BYTES: usize = 35;

/// A live row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveRow {
    user: [u8; USER_BYTES],
    pub(crate) revision: Revision,
}

/// The rows that will be purged, and how far the history has been read.
///
/// 48 bytes for each live row; nothing for what is purged, and 8 for each write of this process that the next walk
/// has yet to pass over.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Which stream this is about.
    stream: Option<String>,
    /// The first revision that has not been looked at.
    next: u64,
    /// Rows and markers at or after `next` that this process wrote: nothing is learned by reading them.
    own: BTreeSet<u64>,
    /// By the second at which they expire. A row is written once, so what was learned of it stays true.
    live: BTreeMap<UnixSecs, Vec<LiveRow>>,
}

/// A row that is due, taken out of the memory to be purged. It goes back unless it is settled: a purge that failed,
/// or was cut off, is made again.
pub(crate) struct Due<'a> {
    memory: &'a Mutex<Memory>,
    exp: UnixSecs,
    row: Option<LiveRow>,
}

impl LiveRow {
    #[expect(clippy::expect_used, reason = "a user key is 56 base-32 digits")]
    pub(crate) fn new(user: &Nkey<User>, revision: Revision) -> Self {
        let mut bytes = [0; USER_BYTES];
        BASE32_NOPAD.decode_mut(user.as_str().as_bytes(), &mut bytes).expect("base 32");
        Self { user: bytes, revision }
    }

    #[expect(clippy::expect_used, reason = "it was packed from a user key")]
    pub(crate) fn user(&self) -> Nkey<User> {
        Nkey::parse(&BASE32_NOPAD.encode(&self.user)).expect("a user key")
    }
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { stream: None, next: 1, own: BTreeSet::new(), live: BTreeMap::new() }
    }

    /// How many live rows are remembered: for tests.
    #[cfg(any(test, feature = "failpoints"))]
    pub(crate) fn rows(&self) -> usize {
        self.live.values().map(Vec::len).sum()
    }

    /// A row of this process was acknowledged.
    pub(crate) fn wrote_row(&mut self, exp: UnixSecs, row: LiveRow) {
        // A walk that was faster than the acknowledgement has read it like another process's.
        if self.wrote(row.revision) {
            self.live.entry(exp).or_default().push(row);
        }
    }

    /// A marker of this process was acknowledged.
    pub(crate) fn wrote_marker(&mut self, revision: Revision) {
        self.wrote(revision);
    }

    fn wrote(&mut self, Revision(at): Revision) -> bool {
        at >= self.next && self.own.insert(at)
    }

    /// Starts a walk. Where the store is another one by now, or was restored to an earlier time, everything is
    /// forgotten and read again.
    pub(crate) fn begin_walk(&mut self, tail: &Tail) {
        let replaced = self.stream.as_ref().is_some_and(|stream| *stream != tail.created);
        if replaced || tail.last.0.saturating_add(1) < self.next {
            *self = Self::new();
        }
        self.stream = Some(tail.created.clone());
    }

    /// The first revision that has not been looked at.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The first revision at or after `at` that this process is not known to have written.
    pub(crate) fn skip_own(&self, at: u64) -> u64 {
        let mut next = at;
        for own in self.own.range(at..) {
            if *own != next {
                break;
            }
            next += 1;
        }
        next
    }

    /// Everything before `reached` was looked at, and these rows were found.
    pub(crate) fn learn(&mut self, found: Vec<(UnixSecs, LiveRow)>, reached: u64) {
        for (exp, row) in found {
            // One of this process's own, read because a gap in the history came before it.
            if !self.own.contains(&row.revision.0) {
                self.live.entry(exp).or_default().push(row);
            }
        }
        self.next = self.next.max(reached);
        self.own = self.own.split_off(&self.next);
    }

    fn take_due(&mut self, now: UnixSecs) -> Option<(UnixSecs, LiveRow)> {
        let mut first = self.live.first_entry()?;
        let exp = *first.key();
        if !is_over(exp, now) {
            return None;
        }
        let row = first.get_mut().pop();
        if first.get().is_empty() {
            first.remove();
        }
        row.map(|row| (exp, row))
    }
}

impl<'a> Due<'a> {
    /// The next row that has outlived its JWT and the tolerance.
    pub(crate) fn take(memory: &'a Mutex<Memory>, now: UnixSecs) -> Option<Self> {
        let (exp, row) = memory.lock().take_due(now)?;
        Some(Self { memory, exp, row: Some(row) })
    }

    pub(crate) fn row(&self) -> Option<LiveRow> {
        self.row
    }

    /// It is gone.
    pub(crate) fn settle(mut self) {
        self.row = None;
    }
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        if let Some(row) = self.row.take() {
            self.memory.lock().live.entry(self.exp).or_default().push(row);
        }
    }
}

/// Whether a row has outlived its JWT and the tolerance.
fn is_over(exp: UnixSecs, now: UnixSecs) -> bool {
    now > exp.plus(CLOCK_TOLERANCE_SECS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(last: char) -> Nkey<User> {
        Nkey::parse(&format!("U{}{last}", "Z7".repeat(27))).unwrap()
    }

    fn row(revision: u64) -> LiveRow {
        LiveRow::new(&user('A'), Revision(revision))
    }

    fn tail(created: &str, last: u64) -> Tail {
        Tail { created: created.to_owned(), last: Revision(last) }
    }

    #[test]
    fn a_row_is_over_strictly_after_its_exp_and_the_tolerance() {
        for (now, over) in [(100, false), (105, false), (106, true)] {
            assert_eq!(is_over(UnixSecs(100), UnixSecs(now)), over, "now {now}");
        }
        assert!(!is_over(UnixSecs(u64::MAX), UnixSecs(u64::MAX)));
    }

    #[test]
    fn a_live_row_takes_48_bytes_and_keeps_its_user_key() {
        assert_eq!(size_of::<LiveRow>(), 48);
        for last in ['A', 'Z', '2', '7'] {
            assert_eq!(LiveRow::new(&user(last), Revision(1)).user(), user(last));
        }
    }

    #[test]
    fn own_writes_are_passed_over_and_then_forgotten() {
        let mut memory = Memory::new();
        memory.begin_walk(&tail("a", 0));
        for revision in [1, 2, 4, 5] {
            memory.wrote_row(UnixSecs(10), row(revision));
        }
        memory.wrote_marker(Revision(6));
        assert_eq!([1, 3, 4].map(|at| memory.skip_own(at)), [3, 3, 7]);
        memory.learn(vec![(UnixSecs(10), row(3))], 5);
        assert_eq!(memory.own.iter().copied().collect::<Vec<_>>(), [5, 6]);
        memory.learn(Vec::new(), 7);
        assert_eq!((memory.own.len(), memory.rows()), (0, 5));
    }

    #[test]
    fn a_row_is_remembered_once_whether_the_walk_or_the_acknowledgement_is_first() {
        let mut memory = Memory::new();
        memory.wrote_row(UnixSecs(10), row(1));
        memory.learn(vec![(UnixSecs(10), row(1)), (UnixSecs(10), row(2))], 3);
        memory.wrote_row(UnixSecs(10), row(2));
        assert_eq!(memory.rows(), 2);
        assert!(memory.own.is_empty());
    }

    #[test]
    fn another_stream_or_a_shorter_history_is_read_from_its_start() {
        for (next, forgotten) in
            [(tail("a", 2), false), (tail("a", 9), false), (tail("a", 1), true), (tail("b", 9), true)]
        {
            let mut memory = Memory::new();
            memory.begin_walk(&tail("a", 2));
            memory.learn(vec![(UnixSecs(10), row(1))], 3);
            memory.begin_walk(&next);
            let expected = if forgotten { (1, 0) } else { (3, 1) };
            assert_eq!((memory.next(), memory.rows()), expected, "{next:?}");
        }
    }

    #[test]
    fn a_due_row_that_is_not_settled_is_due_again() {
        let memory = Mutex::new(Memory::new());
        memory.lock().learn(vec![(UnixSecs(20), row(2)), (UnixSecs(10), row(1))], 3);
        assert!(Due::take(&memory, UnixSecs(15)).is_none());
        drop(Due::take(&memory, UnixSecs(16)).unwrap());
        let due = Due::take(&memory, UnixSecs(16)).unwrap();
        assert_eq!(due.row(), Some(row(1)));
        assert!(Due::take(&memory, UnixSecs(16)).is_none(), "taken once");
        due.settle();
        assert!(Due::take(&memory, UnixSecs(25)).is_none());
        assert!(Due::take(&memory, UnixSecs(26)).is_some());
    }
}
