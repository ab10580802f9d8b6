//! Pauses between the tries of what passes by itself: another manager's registration, a busy host.

use std::time::Duration;

use cotal_wire::Entropy;

/// Pauses that double, each by chance up to a half shorter, so that those who were turned away together do not come back
/// together. Their sum is bounded, and with it the number of tries.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    next: Duration,
    most: Duration,
    left: Duration,
}

/// What `Retry-After` counts in.
const SECOND: Duration = Duration::from_secs(1);

impl Backoff {
    pub(super) const fn new(first: Duration, most: Duration, patience: Duration) -> Self {
        Self { next: first, most, left: patience }
    }

    /// The pause before the next try; `None` when patience is used up. Who is asked to stay away for longer comes within the
    /// second after that, by chance: many are told the same one.
    pub(super) fn pause(&mut self, entropy: &dyn Entropy, asked: Duration) -> Option<Duration> {
        let mut chance = [0u8; 1];
        entropy.fill(&mut chance);
        let by_chance = |of: Duration| of * u32::from(chance[0]) / 255;
        let half = self.next / 2;
        let mut pause = half + by_chance(half);
        if pause < asked {
            pause = asked.saturating_add(by_chance(SECOND));
        }
        self.left = self.left.checked_sub(pause)?;
        self.next = (self.next * 2).min(self.most);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Always(u8);

    impl Entropy for Always {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(self.0);
        }
    }

    fn of_millis(first: u64, most: u64, patience: u64) -> Backoff {
        Backoff::new(
            Duration::from_millis(first),
            Duration::from_millis(most),
            Duration::from_millis(patience),
        )
    }

    fn all(mut pauses: Backoff, chance: u8) -> Vec<u128> {
        std::iter::from_fn(|| pauses.pause(&Always(chance), Duration::ZERO))
            .map(|pause| pause.as_millis())
            .collect()
    }

    #[test]
    fn pauses_double_to_a_bound_and_end_when_patience_does() {
        assert_eq!(all(of_millis(100, 400, 2_000), 255), [100, 200, 400, 400, 400, 400]);
        assert_eq!(all(of_millis(100, 400, 1_000), 0), [50, 100, 200, 200, 200, 200]);
        assert_eq!(all(of_millis(100, 400, 99), 255), []);
    }

    #[test]
    fn a_pause_that_was_asked_for_is_kept_or_patience_is_used_up() {
        let mut pauses = of_millis(100, 400, 3_000);
        let asked = Duration::from_secs(2);
        assert_eq!(pauses.pause(&Always(0), asked), Some(asked));
        assert_eq!(pauses.pause(&Always(0), asked), None);
        assert_eq!(of_millis(100, 400, 3_000).pause(&Always(0), Duration::MAX), None);
    }

    #[test]
    fn those_who_are_told_the_same_second_come_within_the_next_one() {
        let asked = Duration::from_secs(2);
        let come = |chance| of_millis(100, 400, 9_000).pause(&Always(chance), asked).unwrap();
        assert_eq!((come(0), come(255)), (asked, asked + SECOND));
        assert!(come(51) < come(102));
    }
}
