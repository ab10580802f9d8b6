//! Refusal budgets: rolling windows, one for the loopback face, one per key on the public face
//! (contract 05 §2.6-2.8, §4.6).

use std::{collections::VecDeque, num::NonZeroUsize};

use cotal_wire::UnixMillis;
use lru::LruCache;

/// Refusals a minute before a face, a peer or a class is throttled.
pub(crate) const REFUSALS_PER_WINDOW: usize = 30;

/// The length of a window, in milliseconds.
const WINDOW_MS: u64 = 60_000;

/// Keys that a face remembers at most.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// The moments of the last refusals. Only the newest 31 are kept: no rule asks about more.
#[derive(Debug, Default)]
pub(crate) struct Window(VecDeque<UnixMillis>);

impl Window {
    /// Whether a further refusal would find the window full.
    pub(crate) fn is_full(&mut self, now: UnixMillis) -> bool {
        self.prune(now);
        self.0.len() >= REFUSALS_PER_WINDOW
    }

    /// Records a refusal, and says whether there are now more than the window allows.
    pub(crate) fn record(&mut self, now: UnixMillis) -> bool {
        self.prune(now);
        self.0.push_back(now);
        if self.0.len() > REFUSALS_PER_WINDOW + 1 {
            self.0.pop_front();
        }
        self.0.len() > REFUSALS_PER_WINDOW
    }

    /// A moment that lies ahead was recorded before the clock was set back: it counts as now, and so still leaves
    /// within a minute.
    fn prune(&mut self, now: UnixMillis) {
        for at in &mut self.0 {
            *at = now.min(*at);
        }
        self.0.retain(|at| now.since(*at) <= WINDOW_MS);
    }
}

/// A window per key, at most 1024: every touch, a mere check included, makes its key the newest.
#[derive(Debug)]
pub(crate) struct KeyedWindows(LruCache<String, Window>);

impl KeyedWindows {
    pub(crate) fn new() -> Self {
        Self(LruCache::sparse(MAX_KEYS))
    }

    /// Whether the key's window is full.
    pub(crate) fn is_full(&mut self, key: &str, now: UnixMillis) -> bool {
        self.touch(key).is_full(now)
    }

    /// Records a refusal of the key.
    pub(crate) fn record(&mut self, key: &str, now: UnixMillis) {
        self.touch(key).record(now);
    }

    fn touch(&mut self, key: &str) -> &mut Window {
        self.0.get_or_insert_mut_ref(key, Window::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thirtieth_refusal_fills_the_window_and_the_thirty_first_floods_it() {
        let mut window = Window::default();
        for n in 0..30 {
            assert!(!window.is_full(UnixMillis(n)), "refusal {n}");
            assert!(!window.record(UnixMillis(n)));
        }
        assert!(window.is_full(UnixMillis(30)));
        assert!(window.record(UnixMillis(30)));
    }

    #[test]
    fn an_entry_leaves_only_after_strictly_more_than_a_minute() {
        let mut window = Window::default();
        for _ in 0..30 {
            window.record(UnixMillis(1_000));
        }
        assert!(window.is_full(UnixMillis(61_000)), "exactly 60000 ms later it still counts");
        assert!(!window.is_full(UnixMillis(61_001)));
    }

    #[test]
    fn a_clock_that_was_set_back_throttles_for_a_minute_more_and_no_longer() {
        const BACK: UnixMillis = UnixMillis(1_000);
        let mut window = Window::default();
        for _ in 0..30 {
            window.record(UnixMillis(3_600_000));
        }
        assert!(window.is_full(BACK), "the refusals are not forgiven");
        assert!(window.is_full(BACK.plus(60_000)));
        assert!(!window.is_full(BACK.plus(60_001)));
    }

    #[test]
    fn a_flood_is_remembered_in_bounded_memory() {
        let mut window = Window::default();
        for n in 0..10_000 {
            window.record(UnixMillis(n));
        }
        assert_eq!(window.0.len(), REFUSALS_PER_WINDOW + 1);
    }

    #[test]
    fn a_check_alone_keeps_a_key_and_the_oldest_is_evicted() {
        let mut windows = KeyedWindows::new();
        for _ in 0..30 {
            windows.record("first", UnixMillis(0));
            windows.record("second", UnixMillis(0));
        }
        for n in 0..1022 {
            windows.is_full(&format!("other-{n}"), UnixMillis(0));
        }
        assert!(windows.is_full("first", UnixMillis(0)), "1024 keys fit; this touch makes it the newest");
        windows.is_full("one more", UnixMillis(0));
        assert!(windows.is_full("first", UnixMillis(0)));
        assert!(!windows.is_full("second", UnixMillis(0)), "the oldest was evicted, and its window with it");
    }
}
