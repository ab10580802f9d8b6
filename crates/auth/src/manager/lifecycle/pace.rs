//! How fast standing credentials are renewed.
//!
//! A renewal is never urgent: it is asked for when half of the credentials' life is left. A connect is. But managers ask in
//! step where a whole fleet began at once, and each renewal is five signatures, a commit, and five connects of the manager
//! that proves them. So renewals of a space begin one after another, some for each core in a second, and those that would
//! wait long are told to come again.

use std::{num::NonZero, thread, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::manager::NoAnswer;

/// How many begin in a second, for each core: with the connects that they bring, about a third of a core.
const PER_CORE_PER_S: u32 = 16;
/// The longest that one waits for its turn, well within what the public face gives a request (contract 05 §2.7).
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// What one is told whose turn is later.
const MANY_RENEW: &str = "many managers renew their standing credentials at once; ask again in a second";

/// The turns of a space's renewals.
#[derive(Debug)]
pub(crate) struct RenewalPace {
    apart: Duration,
    next: Mutex<Instant>,
}

impl RenewalPace {
    pub(crate) fn of_this_machine() -> Self {
        Self::on(thread::available_parallelism().map_or(1, NonZero::get))
    }

    fn on(cores: usize) -> Self {
        let per_s = PER_CORE_PER_S.saturating_mul(u32::try_from(cores).unwrap_or(u32::MAX)).max(1);
        Self { apart: Duration::from_secs(1) / per_s, next: Mutex::new(Instant::now()) }
    }

    /// Waits for a turn, a second at the most. One whose turn is later takes none.
    pub(crate) async fn turn(&self) -> Result<(), NoAnswer> {
        let turn = self.place(Instant::now()).ok_or(NoAnswer::Busy(MANY_RENEW))?;
        sleep_until(turn).await;
        Ok(())
    }

    /// When one that asks now has its turn; it is taken.
    fn place(&self, now: Instant) -> Option<Instant> {
        let mut next = self.next.lock();
        let turn = now.max(*next);
        if turn.saturating_duration_since(now) > LONGEST_WAIT {
            return None;
        }
        *next = turn + self.apart;
        Some(turn)
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
        assert_eq!(pace.place(now), Some(now));
        assert_eq!(pace.place(now), Some(now + apart));
        assert_eq!(pace.place(now + apart), Some(now + 2 * apart));
        let late = now + Duration::from_secs(9);
        assert_eq!(pace.place(late), Some(late));
    }

    #[test]
    fn one_whose_turn_is_more_than_a_second_away_takes_none() {
        let pace = RenewalPace::on(2);
        let now = Instant::now() + Duration::from_secs(5);
        let given = (0..100).filter(|_| pace.place(now).is_some()).count();
        assert_eq!(given, 33, "one at once, and 32 within the second");
        let later = now + Duration::from_millis(500);
        assert_eq!((0..100).filter(|_| pace.place(later).is_some()).count(), 16);
    }
}
