//! Who starts, who waits, who is shed (contract 04 §8.7). Pure: one owner, time by argument.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// How long before the broker's own timeout a request must be answered.
pub const ANSWER_MARGIN: Duration = Duration::from_millis(250);
/// Most requests that wait. Shedding bounds the queue by time; this bounds it by number under any burst.
pub const MAX_WAITING: usize = 8_192;

/// The queue in front of the slots.
#[derive(Debug)]
pub struct Admission<T> {
    slots: usize,
    budget: Duration,
    in_progress: usize,
    waiting: VecDeque<Waiting<T>>,
}

/// A request and when it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting<T> {
    /// The request.
    pub request: T,
    /// When the callout received it.
    pub received: Instant,
}

/// What becomes of a new request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Offer<T> {
    /// It has a slot.
    Start(Waiting<T>),
    /// It waits for one.
    Queued,
    /// The queue is not draining in time: deny it at once.
    Shed {
        /// The request.
        request: Waiting<T>,
        /// How long the oldest waiting request has waited.
        waited: Duration,
        /// How many requests wait or are in progress.
        ahead: usize,
    },
}

impl<T> Admission<T> {
    /// `slots` requests in progress at most, each to be answered within `budget` of its receipt.
    pub const fn new(slots: usize, budget: Duration) -> Self {
        Self { slots, budget, in_progress: 0, waiting: VecDeque::new() }
    }

    /// Decides on a request that was just received. Nobody overtakes one that waits.
    pub fn offer(&mut self, request: T, received: Instant) -> Offer<T> {
        let request = Waiting { request, received };
        let Some(oldest) = self.waiting.front() else {
            if self.in_progress < self.slots {
                self.in_progress += 1;
                return Offer::Start(request);
            }
            self.waiting.push_back(request);
            return Offer::Queued;
        };
        let waited = received.saturating_duration_since(oldest.received);
        if waited > self.budget / 2 || self.waiting.len() >= MAX_WAITING {
            return Offer::Shed { request, waited, ahead: self.waiting.len() + self.in_progress };
        }
        self.waiting.push_back(request);
        Offer::Queued
    }

    /// One request in progress has ended.
    pub const fn ended(&mut self) {
        self.in_progress = self.in_progress.saturating_sub(1);
    }

    /// The oldest waiting request, when a slot is free. Take the expired ones first.
    pub fn start_next(&mut self) -> Option<Waiting<T>> {
        if self.in_progress >= self.slots {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.in_progress += 1;
        Some(next)
    }

    /// The oldest waiting request, when its deadline has passed. All have one budget, so the oldest expires first.
    pub fn expire_next(&mut self, now: Instant) -> Option<Waiting<T>> {
        if self.next_deadline()? > now { None } else { self.waiting.pop_front() }
    }

    /// When the oldest waiting request expires.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|oldest| oldest.received + self.budget)
    }

    /// Whether nothing waits and nothing is in progress.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_progress == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGET: Duration = Duration::from_millis(1_750);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn requests_start_while_slots_are_free_and_then_wait_oldest_first() {
        let t = Instant::now();
        let mut admission = Admission::new(2, BUDGET);
        assert!(matches!(admission.offer(1, t), Offer::Start(_)));
        assert!(matches!(admission.offer(2, t), Offer::Start(_)));
        assert_eq!(admission.offer(3, t + ms(1)), Offer::Queued);
        assert_eq!(admission.offer(4, t + ms(2)), Offer::Queued);
        assert_eq!(admission.start_next(), None);
        admission.ended();
        assert_eq!(admission.start_next().map(|w| w.request), Some(3));
        admission.ended();
        assert_eq!(admission.start_next().map(|w| w.request), Some(4));
        assert_eq!(admission.start_next(), None);
    }

    #[test]
    fn a_new_request_overtakes_no_waiting_one() {
        let t = Instant::now();
        let mut admission = Admission::new(1, BUDGET);
        let _ = admission.offer(1, t);
        let _ = admission.offer(2, t);
        admission.ended();
        assert_eq!(admission.offer(3, t), Offer::Queued);
        assert_eq!(admission.start_next().map(|w| w.request), Some(2));
    }

    #[test]
    fn a_request_is_shed_only_when_the_oldest_has_waited_more_than_half_the_budget() {
        let t = Instant::now();
        let mut admission = Admission::new(1, BUDGET);
        let _ = admission.offer(1, t);
        let _ = admission.offer(2, t);
        assert_eq!(admission.offer(3, t + ms(875)), Offer::Queued);
        let Offer::Shed { request, waited, ahead } = admission.offer(4, t + ms(876)) else { panic!() };
        assert_eq!((request.request, waited, ahead), (4, ms(876), 3));
    }

    #[test]
    fn a_request_in_progress_for_long_sheds_nobody() {
        let t = Instant::now();
        let mut admission = Admission::new(1, BUDGET);
        let _ = admission.offer(1, t);
        assert_eq!(admission.offer(2, t + ms(1_700)), Offer::Queued);
    }

    #[test]
    fn a_waiting_request_expires_at_its_deadline_and_not_before() {
        let t = Instant::now();
        let mut admission = Admission::new(1, BUDGET);
        let _ = admission.offer(1, t);
        let _ = admission.offer(2, t);
        let _ = admission.offer(3, t + ms(5));
        assert_eq!(admission.next_deadline(), Some(t + BUDGET));
        assert_eq!(admission.expire_next(t + BUDGET - ms(1)), None);
        assert_eq!(admission.expire_next(t + BUDGET).map(|w| w.request), Some(2));
        assert_eq!(admission.expire_next(t + BUDGET), None);
        assert_eq!(admission.next_deadline(), Some(t + BUDGET + ms(5)));
    }

    #[test]
    fn the_queue_is_bounded_under_any_burst() {
        let t = Instant::now();
        let mut admission = Admission::new(1, BUDGET);
        let shed =
            (0..MAX_WAITING + 11).filter(|n| matches!(admission.offer(*n, t), Offer::Shed { .. })).count();
        assert_eq!(shed, 10);
    }

    proptest! {
        /// Whatever arrives and ends: slots are never exceeded, requests leave in order, each exactly once.
        #[test]
        fn every_request_leaves_once_and_in_order(
            slots in 1usize..5, script in proptest::collection::vec((0u64..400, any::<bool>()), 1..300),
        ) {
            let mut now = Instant::now();
            let mut admission = Admission::new(slots, BUDGET);
            let (mut running, mut last, mut left) = (0usize, None, 0usize);
            let total = script.len();
            for (n, (wait, end)) in script.into_iter().enumerate() {
                now += ms(wait);
                if end && running > 0 {
                    admission.ended();
                    running -= 1;
                }
                while let Some(expired) = admission.expire_next(now) {
                    prop_assert!(last < Some(expired.request));
                    last = Some(expired.request);
                    left += 1;
                }
                while let Some(next) = admission.start_next() {
                    prop_assert!(last < Some(next.request));
                    prop_assert!(next.received + BUDGET > now);
                    last = Some(next.request);
                    (running, left) = (running + 1, left + 1);
                }
                match admission.offer(n, now) {
                    Offer::Start(next) => {
                        prop_assert!(last < Some(next.request));
                        last = Some(n);
                        (running, left) = (running + 1, left + 1);
                    }
                    Offer::Shed { waited, .. } => {
                        prop_assert!(waited > BUDGET / 2);
                        left += 1;
                    }
                    Offer::Queued => {}
                }
                prop_assert!(running <= slots);
            }
            prop_assert_eq!(left + admission.waiting.len(), total);
        }
    }
}
