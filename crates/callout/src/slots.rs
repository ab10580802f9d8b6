//! The slots of one callout: as many as `maxInFlight`, or, in a lane of a host, as many of those as its [`Pace`] lets.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::pace::{Answered, Company, Pace};

/// Left to every lane, however few the cores.
const FLOOR: usize = 2;
/// A lane is in company for so long after a callout of another.
const COMPANY: Duration = Duration::from_secs(1);
/// The longest rest, however long the callout before it took.
const LONGEST_REST: Duration = Duration::from_millis(20);
/// The longest that a lane that rests begins nothing, after a callout of its own, because somebody connects to another.
const COURTESY: Duration = Duration::from_millis(10);
/// How soon it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The callouts in progress in all lanes of a host. A callout that is given one paces itself; clones are one crowd.
#[derive(Debug, Clone)]
pub struct Crowd {
    cores: usize,
    present: Arc<AtomicUsize>,
    /// Those of them that found a slot free.
    calm: Arc<AtomicUsize>,
    lanes: Arc<Lanes>,
}

/// Who of the lanes had callouts a moment ago: the last two that had one. One of them is another than the one that asks.
#[derive(Debug, Default)]
struct Lanes {
    count: AtomicUsize,
    last: Mutex<[Option<Heard>; 2]>,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    lane: usize,
    at: Instant,
}

/// Who has a slot.
#[derive(Debug)]
pub(crate) struct Slots {
    most: usize,
    taken: usize,
    paced: Option<Paced>,
}

#[derive(Debug)]
struct Paced {
    pace: Pace,
    crowd: Crowd,
    /// This lane, among those of the crowd.
    lane: usize,
    /// Oldest first; each is one of the crowd.
    running: VecDeque<Running>,
    /// Since when those are in progress that hang: they are no crowd any more.
    hanging: Vec<Instant>,
    rests_until: Option<Instant>,
    /// Since when what waits gives way to a callout of another lane.
    gives_way: Option<Instant>,
    /// When what waits for nothing but a rest or for another lane is looked at again.
    looks_again: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    since: Instant,
    beside: usize,
    crowd: usize,
    /// Whether it waited for its slot.
    waited: bool,
}

// === impl Crowd ===

impl Crowd {
    /// Lanes that share this machine.
    pub fn of_this_machine() -> Self {
        Self::on(thread::available_parallelism().map_or(FLOOR, usize::from))
    }

    /// Lanes that share so many cores.
    pub fn on(cores: usize) -> Self {
        Self { cores, present: Arc::default(), calm: Arc::default(), lanes: Arc::default() }
    }

    fn size(&self) -> usize {
        self.present.load(Ordering::Relaxed)
    }
}

// === impl Lanes ===

impl Lanes {
    fn enter(&self) -> usize {
        self.count.fetch_add(1, Ordering::Relaxed)
    }

    /// A callout of this lane begins.
    fn heard(&self, lane: usize, at: Instant) {
        let [last, before] = &mut *self.last.lock();
        if last.is_some_and(|last| last.lane != lane) {
            *before = *last;
        }
        *last = Some(Heard { lane, at });
    }

    /// Whether another lane had a callout a moment ago.
    fn are_beside(&self, lane: usize, now: Instant) -> bool {
        let other = |heard: &Heard| heard.lane != lane && now.saturating_duration_since(heard.at) <= COMPANY;
        self.last.lock().iter().flatten().any(other)
    }
}

// === impl Slots ===

impl Slots {
    /// Always `most`.
    pub(crate) const fn fixed(most: usize) -> Self {
        Self { most, taken: 0, paced: None }
    }

    /// `most` at most, and never fewer than 2, or than there are cores; half of that where a storm would be at the cost of
    /// other lanes.
    pub(crate) fn paced(most: usize, crowd: Crowd) -> Self {
        let pace = Pace::new(crowd.cores.max(FLOOR), most);
        let lane = crowd.lanes.enter();
        let paced = Paced {
            pace,
            crowd,
            lane,
            running: VecDeque::new(),
            hanging: Vec::new(),
            rests_until: None,
            gives_way: None,
            looks_again: None,
        };
        Self { most, taken: 0, paced: Some(paced) }
    }

    /// Whether one is free.
    pub(crate) fn is_free(&mut self, now: Instant) -> bool {
        self.taken < self.most && self.paced.as_mut().is_none_or(|paced| paced.has_room(now))
    }

    /// Whether one is free for a request that has waited for it: a lane in a storm may have to give way to others, unless
    /// its requests are `urgent`.
    pub(crate) fn is_free_after_waiting(&mut self, now: Instant, urgent: bool) -> bool {
        let is_free = self.is_free(now);
        let Some(paced) = &mut self.paced else { return is_free };
        paced.looks_again = if is_free && !urgent { paced.gives_way_until(now) } else { None };
        is_free && paced.looks_again.is_none()
    }

    /// When one may come free without an end: the oldest that is in progress hangs then, or a rest is over.
    pub(crate) fn next_free(&self) -> Option<Instant> {
        let paced = self.paced.as_ref().filter(|_| self.taken < self.most)?;
        let hangs = paced.running.front().map(|oldest| oldest.since + paced.patience());
        [hangs, paced.looks_again].into_iter().flatten().min()
    }

    /// Takes a free one. What takes it names it by `since` when it ends. `waited`: none was free when it came.
    pub(crate) fn take(&mut self, since: Instant, waited: bool) {
        self.taken += 1;
        if let Some(paced) = &mut self.paced {
            paced.began(since, waited);
        }
    }

    /// Gives the one back that was taken at `since`. `took` is the time to its answer, when that was a user.
    pub(crate) fn give_back(&mut self, since: Instant, took: Option<Duration>, now: Instant) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(paced) = &mut self.paced {
            paced.ended(since, took, now);
        }
    }

    /// How many are taken.
    pub(crate) const fn taken(&self) -> usize {
        self.taken
    }
}

// === impl Paced ===

impl Paced {
    fn patience(&self) -> Duration {
        self.pace.patience(self.crowd.size())
    }

    fn has_room(&mut self, now: Instant) -> bool {
        while self.running.front().is_some_and(|oldest| oldest.since + self.patience() <= now) {
            let hung = self.running.pop_front();
            self.leave(&hung);
            self.hanging.extend(hung.map(|hung| hung.since));
        }
        self.running.len() < self.pace.bound()
    }

    /// Until when what waits is left waiting for others, though a slot is free.
    fn gives_way_until(&mut self, now: Instant) -> Option<Instant> {
        if let Some(until) = self.rests_until.filter(|until| now < *until) {
            return Some(until);
        }
        if !(self.pace.is_resting(now) && self.others_connect(now)) {
            self.gives_way = None;
            return None;
        }
        let since = *self.gives_way.get_or_insert(now);
        (now < since + COURTESY).then_some(now + LOOK_AGAIN)
    }

    /// Whether a callout of another lane that is in no storm is in progress. One that hangs is not, once all others were quiet for
    /// a while or its own lane was looked at.
    fn others_connect(&self, now: Instant) -> bool {
        let own = self.running.iter().filter(|running| !running.waited).count();
        self.crowd.calm.load(Ordering::Relaxed) > own && self.crowd.lanes.are_beside(self.lane, now)
    }

    fn began(&mut self, since: Instant, waited: bool) {
        self.crowd.lanes.heard(self.lane, since);
        let crowd = self.crowd.present.fetch_add(1, Ordering::Relaxed) + 1;
        let place = self.running.partition_point(|other| other.since <= since);
        let beside = self.running.len() + 1;
        self.running.insert(place, Running { since, beside, crowd, waited });
        self.crowd.calm.fetch_add(usize::from(!waited), Ordering::Relaxed);
    }

    fn ended(&mut self, since: Instant, took: Option<Duration>, now: Instant) {
        let (beside, crowd) = (self.running.len(), self.crowd.size());
        let ended = self.running.iter().position(|running| running.since == since);
        let ended = ended.and_then(|place| self.running.remove(place));
        self.gives_way = None;
        if ended.is_some() {
            self.leave(&ended);
        } else if let Some(place) = self.hanging.iter().position(|hung| *hung == since) {
            self.hanging.swap_remove(place);
        }
        let Some(took) = took else { return };
        let (at_start, crowd_then) = ended.map_or((0, 0), |running| (running.beside, running.crowd));
        let (beside, crowd) = (beside.max(at_start), crowd.max(crowd_then));
        let waited = ended.is_some_and(|running| running.waited);
        let company = if waited && self.crowd.lanes.are_beside(self.lane, now) {
            Company::Others
        } else {
            Company::None
        };
        self.pace.answered(Answered { took, at: now, beside, crowd, company });
        if company == Company::Others && self.pace.is_resting(now) {
            self.rests_until = self.rests_until.max(Some(now + took.min(LONGEST_REST)));
        }
    }

    /// These are of the crowd no more.
    fn leave<'a>(&self, gone: impl IntoIterator<Item = &'a Running>) {
        for running in gone {
            self.crowd.present.fetch_sub(1, Ordering::Relaxed);
            self.crowd.calm.fetch_sub(usize::from(!running.waited), Ordering::Relaxed);
        }
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.leave(&self.running);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn take(slots: &mut Slots, now: Instant) -> usize {
        let mut taken = 0;
        while slots.is_free(now) {
            slots.take(now, false);
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_service_of_one_space_has_all_its_slots_from_the_first() {
        let now = Instant::now();
        let mut slots = Slots::fixed(32);
        assert_eq!(take(&mut slots, now), 32);
        assert_eq!(slots.next_free(), None);
        slots.give_back(now, Some(ms(9_000)), now);
        assert_eq!(take(&mut slots, now), 1);
    }

    #[test]
    fn a_lane_starts_with_one_for_each_core_and_never_fewer_than_two() {
        let now = Instant::now();
        for (cores, most, first) in [(1, 32, 2), (2, 32, 2), (8, 32, 8), (64, 32, 32), (8, 1, 1)] {
            assert_eq!(take(&mut Slots::paced(most, Crowd::on(cores)), now), first, "{cores} cores, {most}");
        }
    }

    #[test]
    fn a_lane_whose_callouts_are_quick_gets_all_of_them() {
        let t = Instant::now();
        let mut slots = Slots::paced(32, Crowd::on(2));
        for n in 0..5 {
            let since = t + ms(20 * n);
            slots.take(since, false);
            slots.give_back(since, Some(ms(20)), since + ms(20));
        }
        assert_eq!(take(&mut slots, t + ms(100)), 32);
    }

    #[test]
    fn what_was_no_user_says_nothing() {
        let t = Instant::now();
        let mut slots = Slots::paced(32, Crowd::on(2));
        for _ in 0..40 {
            slots.take(t, false);
            slots.give_back(t, None, t + ms(1));
        }
        assert_eq!(take(&mut slots, t + ms(1)), 2);
    }

    #[test]
    fn callouts_that_hang_leave_the_lane_its_slots_up_to_the_most() {
        let t = Instant::now();
        let crowd = Crowd::on(2);
        let mut slots = Slots::paced(6, crowd.clone());
        slots.take(t, false);
        slots.give_back(t, Some(ms(5)), t + ms(5));
        assert_eq!(take(&mut slots, t), 4, "the bound");
        let hangs = slots.next_free().expect("one may hang");
        assert_eq!(hangs, t + ms(16 * 5) * 4 / 2, "a crowd of four on two cores");
        assert!(!slots.is_free(hangs - ms(1)));
        assert_eq!(take(&mut slots, hangs), 2, "all four hang; six are the most");
        assert_eq!(crowd.size(), 2, "what hangs is no crowd");
        let late = hangs + ms(60_000);
        assert!(!slots.is_free(late));
        assert_eq!((slots.next_free(), crowd.size()), (None, 2));
        slots.give_back(t, None, late);
        assert!(slots.is_free(late));
        for since in [t, t, t, hangs, hangs] {
            slots.give_back(since, None, late);
        }
        assert_eq!((slots.taken(), crowd.size()), (0, 0));
        assert_eq!(take(&mut slots, late), 4);
    }

    #[test]
    fn lanes_of_a_host_are_one_crowd_and_one_that_is_dropped_leaves_it() {
        let (now, crowd) = (Instant::now(), Crowd::on(2));
        let mut one = Slots::paced(32, crowd.clone());
        let mut other = Slots::paced(32, crowd.clone());
        assert_eq!((take(&mut one, now), take(&mut other, now), crowd.size()), (2, 2, 4));
        one.give_back(now, None, now);
        assert_eq!(crowd.size(), 3);
        drop(other);
        assert_eq!(crowd.size(), 1);
    }

    /// Nearly a second of a full lane on four cores: a callout of it needs one of them for 5 ms.
    fn storm(slots: &mut Slots, from: Instant) -> Instant {
        let mut now = from;
        while now < from + ms(900) {
            let since = now;
            let mut taken = 0u32;
            while slots.is_free(now) {
                slots.take(now, true);
                taken += 1;
            }
            let took = ms(5) * taken.div_ceil(4);
            now += took;
            for _ in 0..taken {
                slots.give_back(since, Some(took), now);
            }
        }
        now
    }

    #[test]
    fn a_lane_in_a_storm_has_fewer_while_another_has_callouts() {
        let t = Instant::now();
        let crowd = Crowd::on(4);
        let mut stormed = Slots::paced(32, crowd.clone());
        let mut calm = Slots::paced(32, crowd.clone());
        for slots in [&mut stormed, &mut calm] {
            slots.take(t, false);
            slots.give_back(t, Some(ms(5)), t + ms(5));
        }
        let mut now = storm(&mut stormed, t + ms(1_500));
        let alone = take(&mut stormed, now);
        assert!(alone >= 7, "{alone}: nobody else is there");
        for _ in 0..alone {
            stormed.give_back(now, None, now);
        }
        calm.take(now, false);
        calm.give_back(now, Some(ms(5)), now + ms(5));
        now = storm(&mut stormed, now);
        let beside = take(&mut stormed, now);
        assert!((2..=5).contains(&beside), "{beside}: no more than keep its callouts quick");
        assert!(take(&mut calm, now) >= 4, "a calm lane has all of its own");
    }

    /// How long a callout of a calm lane takes beside a storm, on two cores that serve in order: each callout needs one of
    /// them for 5 ms. The longest of the second half of three seconds.
    fn beside_a_storm(stormed: &mut Slots, calm: &mut Slots) -> Duration {
        let start = Instant::now();
        let (half, end) = (start + ms(1_500), start + ms(3_000));
        let mut cores: BinaryHeap<Reverse<Instant>> = [Reverse(start), Reverse(start)].into();
        let mut running: BinaryHeap<Reverse<(Instant, Instant, bool)>> = BinaryHeap::new();
        let (mut now, mut next_calm, mut longest) = (start, start, Duration::ZERO);
        while now < end {
            let mut begin = |slots: &mut Slots, is_calm: bool| {
                slots.take(now, !is_calm);
                let Reverse(free) = cores.pop().unwrap();
                let ends = free.max(now) + ms(5);
                cores.push(Reverse(ends));
                running.push(Reverse((ends, now, is_calm)));
            };
            if now >= next_calm {
                assert!(calm.is_free(now), "the storm has no slot of another lane");
                begin(calm, true);
                next_calm += ms(97);
            }
            while stormed.is_free_after_waiting(now, false) {
                begin(stormed, false);
            }
            let Some(Reverse((ends, since, is_calm))) = running.pop() else {
                now += ms(1);
                continue;
            };
            now = ends;
            let slots = if is_calm { &mut *calm } else { &mut *stormed };
            slots.give_back(since, Some(ends - since), now);
            if is_calm && since >= half {
                longest = longest.max(ends - since);
            }
        }
        longest
    }

    #[test]
    fn who_connects_beside_a_storm_waits_less_for_its_pace() {
        let crowd = Crowd::on(2);
        let paced = beside_a_storm(&mut Slots::paced(32, crowd.clone()), &mut Slots::paced(32, crowd));
        let unpaced = beside_a_storm(&mut Slots::fixed(32), &mut Slots::fixed(32));
        assert!(unpaced >= ms(80), "behind all of the storm: {unpaced:?}");
        assert!(paced <= ms(15), "behind the few that keep the cores busy: {paced:?}");
    }

    impl Slots {
        /// Whether a request that waits may begin; when not, there is a time to look again that has not come, or none.
        fn goes_on(&mut self, now: Instant) -> bool {
            let free = self.is_free_after_waiting(now, false);
            assert!(free || self.next_free().is_none_or(|at| at > now), "the queue is looked at without end");
            free
        }

        fn is_resting(&self, now: Instant) -> bool {
            self.paced.as_ref().is_some_and(|paced| paced.pace.is_resting(now))
        }
    }

    /// A lane whose storm beside another is slow with the fewest in progress: it rests, for 9 ms from the time that is given.
    pub(crate) struct Resting {
        pub(crate) stormed: Slots,
        pub(crate) now: Instant,
        calm: Slots,
        crowd: Crowd,
    }

    pub(crate) fn a_lane_that_rests(most: usize, cores: usize) -> Resting {
        let crowd = Crowd::on(cores);
        let (mut stormed, mut calm) = (Slots::paced(most, crowd.clone()), Slots::paced(32, crowd.clone()));
        let mut now = Instant::now();
        stormed.take(now, false);
        now += ms(5);
        stormed.give_back(now - ms(5), Some(ms(5)), now);
        while !stormed.is_resting(now) {
            calm.take(now, false);
            calm.give_back(now, Some(ms(5)), now);
            let began: Vec<_> = (0..)
                .map_while(|n| {
                    stormed.is_free(now).then(|| {
                        let since = now + Duration::from_nanos(n);
                        stormed.take(since, true);
                        since
                    })
                })
                .collect();
            now += ms(9);
            for since in began {
                stormed.give_back(since, Some(ms(9)), now);
            }
        }
        Resting { stormed, now, calm, crowd }
    }

    #[test]
    fn a_lane_that_rests_begins_nothing_for_as_long_as_its_last_callout_took() {
        for (most, cores) in [(32, 2), (1, 2), (32, 8)] {
            let Resting { mut stormed, now, .. } = a_lane_that_rests(most, cores);
            assert!(!stormed.goes_on(now));
            assert_eq!(stormed.next_free(), Some(now + ms(9)));
            assert!(stormed.is_free(now), "one that has not waited is in no storm");
            assert!(stormed.is_free_after_waiting(now, true), "before one is refused, nobody gives way");
            assert!(!stormed.goes_on(now + ms(8)) && stormed.goes_on(now + ms(9)));
            assert_eq!(stormed.next_free(), None, "nothing to wake up for");
        }
    }

    #[test]
    fn no_rest_is_longer_than_the_longest() {
        let Resting { mut stormed, now, mut calm, .. } = a_lane_that_rests(32, 2);
        let since = now + ms(9);
        stormed.take(since, true);
        let now = since + ms(70);
        calm.take(now, false);
        calm.give_back(now, Some(ms(5)), now);
        stormed.give_back(since, Some(ms(70)), now);
        assert!(!stormed.goes_on(now + LONGEST_REST - ms(1)) && stormed.goes_on(now + LONGEST_REST));
    }

    #[test]
    fn a_lane_that_rests_gives_way_to_a_callout_of_another_for_a_while() {
        let Resting { mut stormed, now, mut calm, .. } = a_lane_that_rests(32, 2);
        let now = now + ms(9);
        calm.take(now, false);
        assert!(!stormed.goes_on(now));
        assert_eq!(stormed.next_free(), Some(now + LOOK_AGAIN));
        calm.give_back(now, Some(ms(4)), now + ms(4));
        assert!(stormed.goes_on(now + ms(4)));

        // One that is slow, or many: they make it wait no longer than that, until a callout of its own has ended.
        let from = now + ms(5);
        calm.take(from, false);
        calm.take(from + ms(1), false);
        assert!(!stormed.goes_on(from));
        calm.give_back(from, None, from + ms(5));
        assert!(!stormed.goes_on(from + ms(9)));
        assert!(stormed.goes_on(from + COURTESY));
        stormed.take(from + COURTESY, true);
        assert!(!stormed.goes_on(from + COURTESY), "it has no second slot");
        let now = from + COURTESY + ms(6);
        stormed.give_back(from + COURTESY, Some(ms(6)), now);
        assert!(!stormed.goes_on(now + ms(6)));
        assert!(stormed.goes_on(now + ms(6) + COURTESY));

        // One that hangs in a lane that nobody connects to.
        assert!(!stormed.is_resting(now + ms(60_000)) && stormed.goes_on(now + ms(60_000)));
        let paced = stormed.paced.as_ref().unwrap();
        assert!(paced.others_connect(from + COMPANY) && !paced.others_connect(from + COMPANY + ms(2)));
    }

    #[test]
    fn a_lane_that_rests_with_one_that_hangs_is_looked_at_when_that_is_due() {
        let Resting { mut stormed, now, mut calm, crowd } = a_lane_that_rests(32, 2);
        let since = now + ms(9);
        stormed.take(since, true);
        let mut now = since;
        for _ in 0..400 {
            now += ms(1);
            calm.take(now, false);
            stormed.goes_on(now);
            calm.give_back(now, None, now);
            stormed.goes_on(now);
        }
        assert!(stormed.goes_on(now), "what hangs is no crowd");
        stormed.give_back(since, None, now);
        drop((stormed, calm));
        assert_eq!((crowd.calm.load(Ordering::Relaxed), crowd.size()), (0, 0));
    }

    #[test]
    fn a_lane_is_in_company_for_a_second_after_a_callout_of_any_other() {
        let t = Instant::now();
        let lanes = Lanes::default();
        let (one, other, third) = (lanes.enter(), lanes.enter(), lanes.enter());
        lanes.heard(one, t);
        assert!(!lanes.are_beside(one, t) && lanes.are_beside(other, t));
        lanes.heard(other, t + ms(10));
        lanes.heard(other, t + ms(900));
        for _ in 0..3 {
            lanes.heard(one, t + ms(950));
        }
        assert!(lanes.are_beside(one, t + ms(1_900)) && !lanes.are_beside(one, t + ms(1_901)));
        assert!(lanes.are_beside(third, t + ms(1_950)) && !lanes.are_beside(third, t + ms(1_951)));
    }
}
