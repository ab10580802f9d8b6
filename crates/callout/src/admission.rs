//! Who starts, who waits, who is shed (contract 04 §8.7). Pure: one owner, time by argument.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::slots::Slots;

/// How long before the broker's own timeout a request must be answered.
pub(crate) const ANSWER_MARGIN: Duration = Duration::from_millis(250);
/// A request that has waited this part of its budget gives way to no other lane: in twice that, new ones are shed.
const URGENT: u32 = 4;
/// Most requests that wait in one queue. Shedding bounds a queue by time; this bounds it by number under any burst.
pub(crate) const MAX_WAITING: usize = 8_192;
/// Most bytes that wait in one queue. A CONNECT may carry 64 KiB, and whoever has the public sentinel may send one.
pub(crate) const MAX_WAITING_BYTES: usize = 16 * 1024 * 1024;

/// The queue in front of the slots.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    slots: Slots,
    budget: Duration,
    waiting: Backlog<T>,
}

/// Requests that wait, oldest first, bounded by number and by bytes.
#[derive(Debug)]
pub(crate) struct Backlog<T> {
    waiting: VecDeque<Waiting<T>>,
    bytes: usize,
}

/// A request, how much memory it holds, and when it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting<T> {
    /// The request.
    pub(crate) request: T,
    /// Its size in bytes.
    pub(crate) bytes: usize,
    /// When the callout received it.
    pub(crate) received: Instant,
}

/// What becomes of a new request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub(crate) enum Offer<T> {
    /// It has a slot, taken then.
    Start(Waiting<T>, Instant),
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
    /// As many requests in progress as there are slots, each to be answered within `budget` of its receipt.
    pub(crate) const fn new(slots: Slots, budget: Duration) -> Self {
        Self { slots, budget, waiting: Backlog::new() }
    }

    /// Decides on a request that was just received. Nobody overtakes one that waits.
    pub(crate) fn offer(&mut self, request: Waiting<T>) -> Offer<T> {
        let now = request.received;
        match self.waiting.waited(now) {
            Some(waited) if sheds(waited, self.budget) => self.shed(request, waited),
            _ => self.rejoin(request, now),
        }
    }

    /// Takes a request that has waited elsewhere, at the place of its receipt. It is not new, so the age of the queue
    /// does not shed it; only a full queue does.
    pub(crate) fn rejoin(&mut self, request: Waiting<T>, now: Instant) -> Offer<T> {
        if self.waiting.is_empty() && self.slots.is_free(now) {
            self.slots.take(now, false);
            return Offer::Start(request, now);
        }
        match self.waiting.insert(request) {
            Ok(()) => Offer::Queued,
            Err(request) => {
                let waited = self.waiting.waited(now).unwrap_or_default();
                self.shed(request, waited)
            }
        }
    }

    fn shed(&self, request: Waiting<T>, waited: Duration) -> Offer<T> {
        Offer::Shed { request, waited, ahead: self.waiting.len() + self.slots.taken() }
    }

    /// The request whose slot was taken at `since` has ended. `took` is the time to its answer, when that was a user.
    pub(crate) fn ended(&mut self, since: Instant, took: Option<Duration>, now: Instant) {
        self.slots.give_back(since, took, now);
    }

    /// The oldest waiting request, when a slot is free: it is taken now. Take the expired ones first.
    pub(crate) fn start_next(&mut self, now: Instant) -> Option<Waiting<T>> {
        let waited = self.waiting.waited(now)?;
        if !self.slots.is_free_after_waiting(now, waited > self.budget / URGENT) {
            return None;
        }
        self.slots.take(now, true);
        self.waiting.pop()
    }

    /// The oldest waiting request, when its deadline has passed.
    pub(crate) fn expire_next(&mut self, now: Instant) -> Option<Waiting<T>> {
        self.waiting.expire_next(self.budget, now)
    }

    /// When the oldest waiting request expires, or may start without another's end.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let expires = self.waiting.next_deadline(self.budget)?;
        Some(self.slots.next_free().map_or(expires, |starts| starts.min(expires)))
    }

    /// Whether nothing waits and nothing is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.slots.taken() == 0
    }
}

/// The shed rule: the oldest waiting request has waited more than half its budget.
pub(crate) fn sheds(waited: Duration, budget: Duration) -> bool {
    waited > budget / 2
}

// === impl Backlog ===

impl<T> Backlog<T> {
    /// Nothing waits.
    pub(crate) const fn new() -> Self {
        Self { waiting: VecDeque::new(), bytes: 0 }
    }

    /// Puts a request at the place of its receipt, or gives it back when the queue is full.
    pub(crate) fn insert(&mut self, request: Waiting<T>) -> Result<(), Waiting<T>> {
        if self.waiting.len() >= MAX_WAITING || self.bytes.saturating_add(request.bytes) > MAX_WAITING_BYTES {
            return Err(request);
        }
        self.bytes += request.bytes;
        let place = self.waiting.partition_point(|other| other.received <= request.received);
        self.waiting.insert(place, request);
        Ok(())
    }

    /// The oldest.
    pub(crate) fn pop(&mut self) -> Option<Waiting<T>> {
        let oldest = self.waiting.pop_front()?;
        self.bytes -= oldest.bytes;
        Some(oldest)
    }

    /// The oldest, when its deadline has passed. All have one budget, so the oldest expires first.
    pub(crate) fn expire_next(&mut self, budget: Duration, now: Instant) -> Option<Waiting<T>> {
        if self.next_deadline(budget)? > now { None } else { self.pop() }
    }

    /// When the oldest expires.
    pub(crate) fn next_deadline(&self, budget: Duration) -> Option<Instant> {
        self.waiting.front().map(|oldest| oldest.received + budget)
    }

    /// How long the oldest has waited.
    pub(crate) fn waited(&self, now: Instant) -> Option<Duration> {
        self.waiting.front().map(|oldest| now.saturating_duration_since(oldest.received))
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::slots::tests::{Resting, a_lane_that_rests};

    const BUDGET: Duration = Duration::from_millis(1_750);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn at<T>(request: T, received: Instant) -> Waiting<T> {
        Waiting { request, bytes: 1, received }
    }

    #[test]
    fn requests_start_while_slots_are_free_and_then_wait_oldest_first() {
        let t = Instant::now();
        let mut admission = Admission::new(Slots::fixed(2), BUDGET);
        assert!(matches!(admission.offer(at(1, t)), Offer::Start(..)));
        assert!(matches!(admission.offer(at(2, t)), Offer::Start(..)));
        assert_eq!(admission.offer(at(3, t + ms(1))), Offer::Queued);
        assert_eq!(admission.offer(at(4, t + ms(2))), Offer::Queued);
        assert_eq!(admission.start_next(t), None);
        admission.ended(t, None, t);
        assert_eq!(admission.start_next(t).map(|w| w.request), Some(3));
        admission.ended(t, None, t);
        assert_eq!(admission.start_next(t).map(|w| w.request), Some(4));
        assert_eq!(admission.start_next(t), None);
    }

    #[test]
    fn a_new_request_overtakes_no_waiting_one() {
        let t = Instant::now();
        let mut admission = Admission::new(Slots::fixed(1), BUDGET);
        let _ = admission.offer(at(1, t));
        let _ = admission.offer(at(2, t));
        admission.ended(t, None, t);
        assert_eq!(admission.offer(at(3, t)), Offer::Queued);
        assert_eq!(admission.start_next(t).map(|w| w.request), Some(2));
    }

    #[test]
    fn a_request_is_shed_only_when_the_oldest_has_waited_more_than_half_the_budget() {
        let t = Instant::now();
        let mut admission = Admission::new(Slots::fixed(1), BUDGET);
        let _ = admission.offer(at(1, t));
        let _ = admission.offer(at(2, t));
        assert_eq!(admission.offer(at(3, t + ms(875))), Offer::Queued);
        let Offer::Shed { request, waited, ahead } = admission.offer(at(4, t + ms(876))) else { panic!() };
        assert_eq!((request.request, waited, ahead), (4, ms(876), 3));
    }

    #[test]
    fn a_request_in_progress_for_long_sheds_nobody() {
        let t = Instant::now();
        let mut admission = Admission::new(Slots::fixed(1), BUDGET);
        let _ = admission.offer(at(1, t));
        assert_eq!(admission.offer(at(2, t + ms(1_700))), Offer::Queued);
    }

    #[test]
    fn what_waits_in_a_lane_that_rests_begins_later_unless_it_is_urgent() {
        let begins = |waited: Duration| {
            let Resting { stormed, now, .. } = a_lane_that_rests(32, 2);
            let mut admission = Admission::new(stormed, BUDGET);
            admission.waiting.insert(Waiting { request: 1, bytes: 1, received: now - waited }).unwrap();
            let mut later = Duration::ZERO;
            while admission.start_next(now + later).is_none() {
                later = admission.next_deadline().unwrap() - now;
            }
            later
        };
        assert_eq!(begins(ms(0)), ms(9));
        assert_eq!(begins(BUDGET / URGENT), ms(9));
        assert_eq!(begins(BUDGET / URGENT + ms(1)), ms(0), "before one is refused, nobody gives way");
    }

    #[test]
    fn a_waiting_request_expires_at_its_deadline_and_not_before() {
        let t = Instant::now();
        let mut admission = Admission::new(Slots::fixed(1), BUDGET);
        let _ = admission.offer(at(1, t));
        let _ = admission.offer(at(2, t));
        let _ = admission.offer(at(3, t + ms(5)));
        assert_eq!(admission.next_deadline(), Some(t + BUDGET));
        assert_eq!(admission.expire_next(t + BUDGET - ms(1)), None);
        assert_eq!(admission.expire_next(t + BUDGET).map(|w| w.request), Some(2));
        assert_eq!(admission.expire_next(t + BUDGET), None);
        assert_eq!(admission.next_deadline(), Some(t + BUDGET + ms(5)));
    }

    #[test]
    fn the_queue_is_bounded_under_any_burst() {
        let t = Instant::now();
        let mut admission = Admission::new(Slots::fixed(1), BUDGET);
        let shed = (0..MAX_WAITING + 11)
            .filter(|n| matches!(admission.offer(at(*n, t)), Offer::Shed { .. }))
            .count();
        assert_eq!(shed, 10);
    }

    #[test]
    fn the_queue_is_bounded_by_bytes_and_what_leaves_makes_room() {
        const LARGE: usize = 85_000;
        let t = Instant::now();
        let mut admission = Admission::new(Slots::fixed(1), BUDGET);
        let large = |n| Waiting { request: n, bytes: LARGE, received: t };
        let room = MAX_WAITING_BYTES / LARGE;
        let shed =
            (0..=room + 5).filter(|n| matches!(admission.offer(large(*n)), Offer::Shed { .. })).count();
        assert_eq!(shed, 5, "one starts, {room} wait");
        admission.ended(t, None, t);
        assert!(admission.start_next(t).is_some());
        assert_eq!(admission.offer(large(1)), Offer::Queued);
        assert!(matches!(admission.offer(large(2)), Offer::Shed { .. }));
        while admission.expire_next(t + BUDGET).is_some() {}
        assert_eq!(admission.waiting.bytes, 0);
    }

    #[test]
    fn a_request_that_waited_elsewhere_takes_the_place_of_its_receipt_and_is_not_new() {
        let t = Instant::now();
        let mut admission = Admission::new(Slots::fixed(1), BUDGET);
        let _ = admission.offer(at(1, t));
        let _ = admission.offer(at(2, t + ms(1)));
        let _ = admission.offer(at(4, t + ms(700)));
        assert!(matches!(admission.offer(at(9, t + ms(900))), Offer::Shed { .. }), "a new one is shed");
        assert_eq!(admission.rejoin(at(3, t + ms(600)), t + ms(900)), Offer::Queued);
        let mut order = Vec::new();
        loop {
            admission.ended(t, None, t);
            let Some(next) = admission.start_next(t) else { break };
            order.push(next.request);
        }
        assert_eq!(order, [2, 3, 4]);
        assert!(matches!(admission.rejoin(at(5, t), t + ms(900)), Offer::Start(..)));
    }

    proptest! {
        /// Whatever arrives and ends: slots are never exceeded, requests leave in order, each exactly once.
        #[test]
        fn every_request_leaves_once_and_in_order(
            slots in 1usize..5, script in proptest::collection::vec((0u64..400, any::<bool>()), 1..300),
        ) {
            let mut now = Instant::now();
            let mut admission = Admission::new(Slots::fixed(slots), BUDGET);
            let (mut running, mut last, mut left) = (0usize, None, 0usize);
            let total = script.len();
            for (n, (wait, end)) in script.into_iter().enumerate() {
                now += ms(wait);
                if end && running > 0 {
                    admission.ended(now, None, now);
                    running -= 1;
                }
                while let Some(expired) = admission.expire_next(now) {
                    prop_assert!(last < Some(expired.request));
                    last = Some(expired.request);
                    left += 1;
                }
                while let Some(next) = admission.start_next(now) {
                    prop_assert!(last < Some(next.request));
                    prop_assert!(next.received + BUDGET > now);
                    last = Some(next.request);
                    (running, left) = (running + 1, left + 1);
                }
                match admission.offer(at(n, now)) {
                    Offer::Start(next, _) => {
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
