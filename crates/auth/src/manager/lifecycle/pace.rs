//! How fast standing credentials are renewed.
//!
//! A renewal is never urgent: it is asked for when half of the credentials' life is left. A connect is. But managers ask in
//! step where a whole fleet began at once, and each renewal is five signatures, a commit, and five connects of the manager
//! that proves them. So renewals of a space begin one after another, some for each core in a second. One that would wait
//! long is told when to come again: a wait holds one of the requests that the public face admits at once, and those who
//! ask again too soon cost as much as those who are served. Nobody's turn is kept; who comes as told finds one free.
//!
//! Whoever asks fast waits behind themselves: of one owner's renewals a single one stands in the space's line, and a few in
//! that owner's own. So an owner waits for as many renewals as there are owners before it, however many these ask for.

use std::{num::NonZero, thread, time::Duration};

use cotal_authority::turns;
use cotal_wire::Owner;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

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
    line: Mutex<Line>,
    owners: turns::Turns<Owner>,
}

/// The space's.
#[derive(Debug)]
struct Line {
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
        Self {
            apart: Duration::from_secs(1) / per_s,
            line: Mutex::new(Line { next: now, expected: now }),
            owners: turns::Turns::default(),
        }
    }

    /// Waits for a turn of this owner's, half a second at the most. One whose turn is later takes none.
    pub(crate) async fn turn(&self, owner: &Owner) -> Result<(), NoAnswer> {
        let until = Instant::now() + LONGEST_WAIT;
        let Ok(Ok(_own)) = timeout_at(until, self.owners.take(owner.clone())).await else {
            return Err(self.later(Instant::now()));
        };
        let now = Instant::now();
        let turn = self.place(now, until).ok_or_else(|| self.later(now))?;
        sleep_until(turn).await;
        Ok(())
    }

    /// When one that asks now has its turn, unless that is later than `until`; it is taken.
    fn place(&self, now: Instant, until: Instant) -> Option<Instant> {
        let mut line = self.line.lock();
        let turn = now.max(line.next);
        if turn > until {
            return None;
        }
        line.next = turn + self.apart;
        Some(turn)
    }

    /// When one that has no turn should come again: after those who were told so before it.
    fn later(&self, now: Instant) -> NoAnswer {
        let mut line = self.line.lock();
        let after = line.expected.max(line.next).max(now);
        line.expected = (after + self.apart).min(now + LONGEST_ABSENCE);
        let away = line.expected.saturating_duration_since(now);
        NoAnswer::Busy(Busy { why: MANY_RENEW, retry_after_secs: away.as_secs().max(1) })
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream::FuturesUnordered};

    use super::*;

    fn owner(letter: char) -> Owner {
        Owner::parse(&format!("u_{}", letter.to_string().repeat(26))).unwrap()
    }

    fn told(none: NoAnswer) -> u64 {
        match none {
            NoAnswer::Busy(busy) => busy.retry_after_secs,
            NoAnswer::Refused(refusal) => panic!("{refusal}"),
        }
    }

    #[test]
    fn a_lone_renewal_never_waits_and_many_have_their_turns_one_after_another() {
        let pace = RenewalPace::on(2);
        let apart = Duration::from_secs(1) / 32;
        let now = Instant::now() + Duration::from_secs(5);
        let place = |at| pace.place(at, at + LONGEST_WAIT);
        assert_eq!(place(now), Some(now));
        assert_eq!(place(now), Some(now + apart));
        assert_eq!(place(now + apart), Some(now + 2 * apart));
        let late = now + Duration::from_secs(9);
        assert_eq!(place(late), Some(late));
        let served = (0..100).filter_map(|_| place(late)).count();
        assert_eq!(served, 16, "within half a second");
    }

    /// The clock is tokio's own: what waits is woken in order, and nothing is slept for.
    #[tokio::test(start_paused = true)]
    async fn of_two_hundred_each_is_served_or_told_a_second_in_which_there_is_room_for_those_who_were() {
        let pace = RenewalPace::on(2);
        let one = owner('a');
        let asked: FuturesUnordered<_> = (0..200).map(|_| pace.turn(&one)).collect();
        let (served, away): (Vec<_>, Vec<_>) =
            asked.collect::<Vec<_>>().await.into_iter().partition(Result::is_ok);
        assert!(
            (15..=17).contains(&served.len()),
            "one at once, and those within half a second: {}",
            served.len()
        );
        let away: Vec<_> = away.into_iter().filter_map(Result::err).map(told).collect();
        for second in 1.. {
            let many = away.iter().filter(|told| **told == second).count();
            // Who would have come in the first second comes in the second one.
            assert!(many <= if second == 1 { 64 } else { 32 }, "{many} in second {second}");
            if many == 0 {
                assert!(second <= 7, "all within seven seconds");
                break;
            }
        }
        assert!(pace.owners.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_fast_waits_behind_themselves_and_holds_up_nobody_else() {
        let pace = RenewalPace::on(2);
        let (fast, calm) = (owner('f'), owner('c'));
        let flood: FuturesUnordered<_> = (0..200).map(|_| pace.turn(&fast)).collect();
        let calm = async {
            // Behind all of the flood that has a place by now.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let began = Instant::now();
            pace.turn(&calm).await.map(|()| began.elapsed())
        };
        let (waited, answers) = futures::join!(calm, flood.collect::<Vec<_>>());
        assert!(waited.unwrap() <= 2 * pace.apart, "at the most behind one of the flood");
        assert_eq!(answers.len(), 200);
    }

    #[test]
    fn nobody_is_sent_away_for_long_and_it_is_forgotten_when_nobody_comes() {
        let pace = RenewalPace::on(2);
        let now = Instant::now() + Duration::from_secs(5);
        let longest = (0..10_000).map(|_| told(pace.later(now))).max();
        assert_eq!(longest, Some(LONGEST_ABSENCE.as_secs()));
        let later = now + Duration::from_secs(60);
        assert_eq!(told(pace.later(later)), 1);
    }
}
