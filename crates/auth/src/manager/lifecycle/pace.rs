//! How fast standing credentials are renewed.
//!
//! A renewal is never urgent: it is asked for when half of the credentials' life is left. A connect is. But managers ask in
//! step where a whole fleet began at once, and each renewal is five signatures, a commit, and five connects of the manager
//! that proves them. So renewals of a space begin one after another, some for each core in a second. One that would wait
//! long is told when to come again: a wait holds one of the requests that the public face admits at once, and those who
//! ask again too soon cost as much as those who are served. Nobody's turn is kept; who comes as told finds one free.

use std::{num::NonZero, thread, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::manager::{Busy, NoAnswer};

/// How many begin in a second, for each core: with the connects that they bring, about a third of a core.
const PER_CORE_PER_S: u32 = 16;
/// The longest that one waits for its turn, well within what the public face gives a request (contract 05 §2.7).
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// The longest that one is told to stay away.
const LONGEST_ABSENCE: Duration = Duration::from_secs(15);

/// What one is told whose turn is later.
const MANY_RENEW: &str =
    "many managers renew their standing credentials at once; ask again when Retry-After says";

/// The turns of a space's renewals.
#[derive(Debug)]
pub(crate) struct RenewalPace {
    apart: Duration,
    turns: Mutex<Turns>,
}

#[derive(Debug)]
struct Turns {
    /// The next that is free.
    next: Instant,
    /// The last for which somebody was told to come again.
    expected: Instant,
}

impl RenewalPace {
    pub(crate) fn of_this_machine() -> Self {
        Self::on(thread::available_parallelism().map_or(1, NonZero::get))
    }

    fn on(cores: usize) -> Self {
        let per_s = PER_CORE_PER_S.saturating_mul(u32::try_from(cores).unwrap_or(u32::MAX)).max(1);
        let now = Instant::now();
        Self { apart: Duration::from_secs(1) / per_s, turns: Mutex::new(Turns { next: now, expected: now }) }
    }

    /// Waits for a turn, half a second at the most. One whose turn is later takes none.
    pub(crate) async fn turn(&self) -> Result<(), NoAnswer> {
        let busy = |retry_after_secs| NoAnswer::Busy(Busy { why: MANY_RENEW, retry_after_secs });
        sleep_until(self.place(Instant::now()).map_err(busy)?).await;
        Ok(())
    }

    /// When one that asks now has its turn; it is taken. Otherwise in how many seconds it should come again.
    fn place(&self, now: Instant) -> Result<Instant, u64> {
        let mut turns = self.turns.lock();
        let turn = now.max(turns.next);
        if turn.saturating_duration_since(now) <= LONGEST_WAIT {
            turns.next = turn + self.apart;
            return Ok(turn);
        }
        turns.expected = (turns.expected.max(turn) + self.apart).min(now + LONGEST_ABSENCE);
        Err(turns.expected.saturating_duration_since(now).as_secs().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_renewal_never_waits_and_many_have_their_turns_one_after_another() {
        let pace = RenewalPace::on(2);
        let apart = Duration::from_secs(1) / 32;
        let now = Instant::now() + Duration::from_secs(5);
        assert_eq!(pace.place(now), Ok(now));
        assert_eq!(pace.place(now), Ok(now + apart));
        assert_eq!(pace.place(now + apart), Ok(now + 2 * apart));
        let late = now + Duration::from_secs(9);
        assert_eq!(pace.place(late), Ok(late));
    }

    #[test]
    fn of_two_hundred_each_is_served_or_told_a_second_in_which_there_is_room_for_those_who_were() {
        let pace = RenewalPace::on(2);
        let now = Instant::now() + Duration::from_secs(5);
        let (served, told): (Vec<_>, Vec<_>) = (0..200).map(|_| pace.place(now)).partition(Result::is_ok);
        assert_eq!(served.len(), 17, "one at once, and 16 within half a second");
        for second in 1.. {
            let many = told.iter().filter(|told| **told == Err(second)).count();
            // Who would have come in the first second comes in the second one.
            assert!(many <= if second == 1 { 32 + 16 } else { 32 }, "{many} in second {second}");
            if many == 0 {
                assert_eq!(second, 7, "all within seven seconds");
                break;
            }
        }
    }

    #[test]
    fn nobody_is_sent_away_for_long_and_it_is_forgotten_when_nobody_comes() {
        let pace = RenewalPace::on(2);
        let now = Instant::now() + Duration::from_secs(5);
        let longest = (0..10_000).filter_map(|_| pace.place(now).err()).max();
        assert_eq!(longest, Some(LONGEST_ABSENCE.as_secs()));
        let later = now + Duration::from_secs(60);
        assert_eq!((0..100).filter_map(|_| pace.place(later).err()).min(), Some(1));
    }
}
