//! How many callouts a lane of a host has in progress at once. Pure: one owner, time by argument.
//!
//! Spaces that share a process share its cores, and those of their broker. A lane in a storm gains nothing from more
//! callouts in progress than keep these busy, and every one of them stands before those of its neighbours. Where the
//! broker is far, most of a callout is waiting, and only many at once are fast. Which of the two it is shows in the
//! time that a callout takes: a crowd that makes its own callouts slow is too large. So a [`Pace`] keeps the shortest time
//! that a callout took, and after each turn, which is as many answers as were in progress, it moves its bound by as much
//! as the turn's median is from twice the shortest. `maxInFlight` is above it, and a few for each core are left.
//!
//! That is what a lane does when it has the machine to itself. Beside others, what is best for a lane in a storm is not
//! best for them: whoever connects there waits behind the storm at the broker, too, in front of any callout. So a lane in
//! which callouts wait for a slot, while another had callouts a moment ago, keeps to a crowd that hardly slows its own
//! callouts, if need be to one for each second core ([`Company`]). Where even these are slow it also rests after each for as
//! long as that took, and lets somebody who connects to another lane go first ([`Pace::is_resting`]). It is slower for it,
//! by more than half where all is work.
//!
//! Three things are not taken for a crowd. A time that not even all lanes together explain is a slow broker: a few such in
//! a row are the new measure. A shortest time that was not seen again for a while is forgotten, and learned anew from a
//! lane that is small for so long. And a callout that is far beyond its time hangs: it needs no core, and counts against
//! `maxInFlight` alone ([`Pace::patience`]).

use std::time::Duration;

use tokio::time::Instant;

/// A crowd is right in which half of the callouts take this many times the shortest.
const TOLERANCE: u32 = 2;
/// And beside others, so many percent of the shortest.
const TOLERANCE_BESIDE_OTHERS: u32 = 125;
/// One that takes this many times the shortest hangs.
const HANGS: u32 = 16;
/// One hangs after this while nothing is known of the shortest.
const HANGS_UNMEASURED: Duration = Duration::from_millis(250);
/// How long the shortest stands without having been seen again, or nearly.
const WINDOW: Duration = Duration::from_secs(10);
/// Nearly: this part of it more.
const NEARLY: u32 = 8;
/// So many times in a row that no crowd explains are a slow broker; and so many quick turns in a row beside others are room
/// for more.
const CONVINCED: usize = 8;
/// A turn makes the bound at most this many times as large, or as small.
const LEAP: u128 = 2;

/// The bound of one lane.
#[derive(Debug)]
pub(crate) struct Pace {
    floor: usize,
    most: usize,
    bound: usize,
    shortest: Option<Shortest>,
    /// What the answers of this turn took that a crowd explains.
    turn: Vec<Duration>,
    /// Whether all of this turn waited for their slots while others had callouts.
    turn_crowds_others: bool,
    /// Turns in a row beside others that were as quick as wanted.
    quick_turns: usize,
    /// When the lane last had a reason to rest, or a turn while it did.
    resting: Option<Instant>,
    /// What those took, one after the other, that none explains.
    unexplained: Vec<Duration>,
    /// When the bound last moved. What began before was in another crowd.
    moved: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Shortest {
    took: Duration,
    seen: Instant,
}

/// A callout that went all the way and was answered with a user. Others are shorter, or cut off: they say nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered {
    /// From its start to its answer.
    pub(crate) took: Duration,
    /// When.
    pub(crate) at: Instant,
    /// The most of its lane's callouts in progress at its start or its end, without those that hang.
    pub(crate) beside: usize,
    /// The most of all lanes' callouts in progress at its start or its end.
    pub(crate) crowd: usize,
    /// Whom it kept waiting.
    pub(crate) company: Company,
}

/// Whether a callout of a lane has anybody beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    /// It found a slot free, or no other lane had a callout a moment ago: nobody waits because of this lane.
    None,
    /// It waited for a slot in a lane that is full, while another lane had callouts.
    Others,
}

impl Pace {
    /// At most `most`, whatever `floor` is, and at least `floor`: beside others half of that, and never less than 1. It
    /// starts at `floor`, and each turn may double it.
    pub(crate) fn new(floor: usize, most: usize) -> Self {
        let floor = floor.clamp(1, most.max(1));
        Self {
            floor,
            most: most.max(1),
            bound: floor,
            shortest: None,
            turn: Vec::new(),
            turn_crowds_others: true,
            quick_turns: 0,
            resting: None,
            unexplained: Vec::new(),
            moved: None,
        }
    }

    /// How many may be in progress that do not hang.
    pub(crate) const fn bound(&self) -> usize {
        self.bound
    }

    /// Whether the lane crowds others however few it has in progress: whatever waits in it gives way to them.
    pub(crate) fn is_resting(&self, now: Instant) -> bool {
        self.resting.is_some_and(|at| now.saturating_duration_since(at) <= WINDOW)
    }

    /// How long one is in progress until it hangs, while `crowd` are in progress in all lanes.
    pub(crate) fn patience(&self, crowd: usize) -> Duration {
        self.shortest.map_or(HANGS_UNMEASURED, |shortest| self.crowded(shortest.took * HANGS, crowd))
    }

    /// Learns from an answer.
    pub(crate) fn answered(&mut self, answer: Answered) {
        let Some(shortest) = self.measure(answer) else { return };
        let Answered { took, at, beside, crowd, company } = answer;
        if self.moved.is_some_and(|moved| moved + took > at) {
            return;
        }
        if took > self.crowded(shortest * TOLERANCE, crowd) {
            if company == Company::Others && self.bound <= self.least_beside_others() {
                (self.resting, self.quick_turns) = (Some(at), 0);
            }
            self.unexplained.push(took);
            if self.unexplained.len() >= CONVINCED {
                let took = self.unexplained.drain(..).min().unwrap_or(took);
                self.shortest = Some(Shortest { took, seen: at });
                self.new_turn();
            }
            return;
        }
        self.unexplained.clear();
        self.turn.push(took);
        self.turn_crowds_others &= company == Company::Others;
        if self.turn.len() >= beside {
            let middle = self.turn.len() / 2;
            let (_, &mut median, _) = self.turn.select_nth_unstable(middle);
            let (least, wanted) = if self.turn_crowds_others {
                (self.least_beside_others(), shortest * TOLERANCE_BESIDE_OTHERS / 100)
            } else {
                (self.floor, shortest * TOLERANCE)
            };
            let bound = scaled(self.bound, wanted, median).max(least);
            let more = self.has_room_for_more(self.bound <= least, median <= wanted, at);
            self.move_to(if more { bound.max(self.bound + 1) } else { bound }, at);
        }
    }

    fn least_beside_others(&self) -> usize {
        (self.floor / 2).max(1)
    }

    /// After a turn. Beside others, what is wanted is so near to the shortest that a small bound would never be scaled to a
    /// larger one: many quick turns make it larger, or first end its rest.
    fn has_room_for_more(&mut self, is_least: bool, was_quick: bool, at: Instant) -> bool {
        if !(self.turn_crowds_others && was_quick) {
            self.quick_turns = 0;
            self.resting = (self.turn_crowds_others && is_least).then_some(at);
            return false;
        }
        self.quick_turns += 1;
        let was_resting = self.is_resting(at);
        let enough = self.quick_turns >= CONVINCED;
        self.resting = (was_resting && !enough).then_some(at);
        if enough {
            self.quick_turns = 0;
        }
        enough && !was_resting
    }

    fn move_to(&mut self, bound: usize, at: Instant) {
        let bound = bound.clamp(1, self.most);
        if bound != self.bound {
            (self.bound, self.moved) = (bound, Some(at));
        }
        self.new_turn();
    }

    fn new_turn(&mut self) {
        self.turn.clear();
        self.turn_crowds_others = true;
    }

    /// The shortest after this answer, `None` while it is not known: then the lane is small until it is.
    fn measure(&mut self, answer: Answered) -> Option<Duration> {
        let Answered { took, at, .. } = answer;
        let seen = Shortest { took, seen: at };
        let undisturbed = answer.beside <= self.floor;
        self.shortest = match self.shortest {
            Some(shortest) if took <= shortest.took => Some(seen),
            Some(shortest) if took <= shortest.took + shortest.took / NEARLY => {
                Some(Shortest { seen: at, ..shortest })
            }
            Some(shortest) if at.saturating_duration_since(shortest.seen) <= WINDOW => Some(shortest),
            Some(_) | None if undisturbed => Some(seen),
            Some(_) | None => {
                self.move_to(self.floor, at);
                self.unexplained.clear();
                None
            }
        };
        self.shortest.map(|shortest| shortest.took)
    }

    /// What `alone` takes at most when so many share what `floor` have each for themselves.
    fn crowded(&self, alone: Duration, crowd: usize) -> Duration {
        let crowd = u32::try_from(crowd.max(self.floor)).unwrap_or(u32::MAX);
        let floor = u32::try_from(self.floor).unwrap_or(u32::MAX);
        alone.saturating_mul(crowd) / floor
    }
}

/// `bound` times `wanted` to `took`, to the nearest, and no further than a [`LEAP`].
fn scaled(bound: usize, wanted: Duration, took: Duration) -> usize {
    let (wanted, took) = (wanted.as_nanos().max(1), took.as_nanos().max(1));
    let (wanted, took) =
        if wanted > took { (wanted.min(LEAP * took), took) } else { (wanted, took.min(LEAP * wanted)) };
    let scaled = (2 * bound as u128 * wanted + took) / (2 * took);
    usize::try_from(scaled).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use proptest::prelude::*;

    use super::*;

    const FLOOR: usize = 2;
    const MOST: usize = 32;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn answer(took: Duration, at: Instant, beside: usize) -> Answered {
        Answered { took, at, beside, crowd: beside, company: Company::None }
    }

    /// Answers of one turn, all of which took so long.
    fn turn(pace: &mut Pace, took: Duration, at: Instant) {
        let beside = pace.bound();
        for _ in 0..beside {
            pace.answered(answer(took, at, beside));
        }
    }

    /// A lane that has seen nothing but calm, and then nothing for a second.
    fn grown(took: Duration, at: Instant) -> Pace {
        let mut pace = Pace::new(FLOOR, MOST);
        let mut then = at - Duration::from_secs(2);
        while pace.bound() < MOST {
            then += took;
            pace.answered(answer(took, then, 1));
        }
        pace.shortest = Some(Shortest { took, seen: at });
        pace
    }

    /// A lane that knows how short a callout can be, and has one in progress.
    fn least(took: Duration, at: Instant) -> Pace {
        let mut pace = Pace::new(FLOOR, MOST);
        pace.answered(answer(took, at, 1));
        pace.move_to(1, at);
        pace
    }

    #[test]
    fn it_starts_small_and_each_turn_moves_it_towards_twice_the_shortest() {
        let t = Instant::now();
        let mut pace = Pace::new(FLOOR, MOST);
        assert_eq!(pace.bound(), FLOOR);
        let table = [(10, 4), (10, 8), (16, 10), (20, 10), (24, 8), (70, 4), (9, 8)];
        for (n, (took, bound)) in (1..).zip(table) {
            turn(&mut pace, ms(took), t + ms(1_000 * n));
            assert_eq!(pace.bound(), bound, "turn {n}");
        }
    }

    #[test]
    fn the_median_of_a_turn_counts_so_that_a_few_that_are_slow_do_not() {
        let t = Instant::now();
        let mut pace = grown(ms(10), t);
        for n in 0..MOST {
            pace.answered(answer(ms(if n % 3 == 0 { 150 } else { 12 }), t, MOST));
        }
        assert_eq!(pace.bound(), MOST);
        for n in 0..MOST {
            pace.answered(answer(ms(if n % 3 == 0 { 12 } else { 40 }), t, MOST));
        }
        assert_eq!(pace.bound(), MOST / 2);
    }

    #[test]
    fn what_began_in_another_crowd_does_not_count() {
        let t = Instant::now();
        let mut pace = grown(ms(10), t);
        turn(&mut pace, ms(40), t);
        assert_eq!(pace.bound(), MOST / 2);
        for _ in 0..10 {
            turn(&mut pace, ms(40), t + ms(39));
        }
        assert_eq!(pace.bound(), MOST / 2);
        for n in 1..10 {
            let took = ms(5) * u32::try_from(pace.bound()).unwrap();
            turn(&mut pace, took, t + ms(100 * n));
        }
        assert_eq!(pace.bound(), 4, "where a callout takes 20 ms");
    }

    #[test]
    fn the_floor_is_never_above_the_most_and_neither_is_nothing() {
        assert_eq!(Pace::new(8, 4).bound(), 4);
        assert_eq!(Pace::new(0, 4).bound(), 1);
        assert_eq!(Pace::new(2, 0).bound(), 1);
    }

    #[test]
    fn a_first_answer_out_of_a_crowd_is_no_measure() {
        let t = Instant::now();
        let mut pace = Pace::new(FLOOR, MOST);
        pace.answered(answer(ms(90), t, 30));
        assert_eq!((pace.bound(), pace.shortest.is_none()), (FLOOR, true));
        turn(&mut pace, ms(5), t);
        assert_eq!(pace.bound(), 2 * FLOOR);
    }

    #[test]
    fn times_that_no_crowd_explains_are_a_slow_broker_and_soon_the_measure() {
        let t = Instant::now();
        let mut pace = grown(ms(5), t);
        for n in 1..=CONVINCED {
            assert_eq!(pace.bound(), MOST, "a slow broker makes no lane smaller");
            assert_eq!(pace.shortest.unwrap().took, ms(5), "{n}");
            pace.answered(answer(ms(200), t, 32));
        }
        assert_eq!(pace.shortest.unwrap().took, ms(200));
        turn(&mut pace, ms(200), t);
        assert_eq!(pace.bound(), MOST);
        pace.answered(answer(ms(6), t, 2));
        assert_eq!(pace.shortest.unwrap().took, ms(6), "and a quick one is the measure at once");
    }

    #[test]
    fn what_all_lanes_together_explain_is_no_slow_broker() {
        let t = Instant::now();
        let mut pace = Pace::new(FLOOR, MOST);
        pace.answered(answer(ms(5), t, 1));
        for _ in 0..10 * CONVINCED {
            pace.answered(Answered {
                took: ms(400),
                at: t + ms(500),
                beside: 2,
                crowd: 100,
                company: Company::None,
            });
        }
        assert_eq!((pace.bound(), pace.shortest.unwrap().took), (FLOOR, ms(5)));
    }

    #[test]
    fn a_shortest_that_is_not_seen_again_is_forgotten_and_learned_from_a_small_lane() {
        let t = Instant::now();
        let mut pace = grown(ms(10), t);
        pace.answered(answer(ms(11), t + WINDOW, 32));
        let late = t + WINDOW + WINDOW;
        pace.answered(answer(ms(15), late, 32));
        assert_eq!(
            (pace.bound(), pace.shortest.unwrap().took),
            (MOST, ms(10)),
            "nearly as short is seen again"
        );
        let late = late + ms(1);
        pace.answered(answer(ms(15), late, 32));
        assert_eq!((pace.bound(), pace.shortest.is_none()), (FLOOR, true));
        pace.answered(answer(ms(60), late, 20));
        assert!(pace.shortest.is_none(), "those of the crowd before end first");
        pace.answered(answer(ms(14), late + ms(14), 2));
        pace.answered(answer(ms(14), late + ms(14), 2));
        assert_eq!((pace.bound(), pace.shortest.unwrap().took), (2 * FLOOR, ms(14)));
    }

    #[test]
    fn a_calm_lane_learns_anew_without_getting_small() {
        let t = Instant::now();
        let mut pace = grown(ms(10), t);
        pace.answered(answer(ms(50), t + WINDOW + ms(1), 1));
        assert_eq!((pace.bound(), pace.shortest.unwrap().took), (MOST, ms(50)));
    }

    /// A turn of callouts that waited for their slots while another lane had callouts.
    fn turn_beside_others(pace: &mut Pace, took: Duration, at: Instant) {
        let beside = pace.bound();
        for _ in 0..beside {
            pace.answered(Answered { company: Company::Others, ..answer(took, at, beside) });
        }
    }

    #[test]
    fn a_storm_beside_others_keeps_to_half_of_the_cores_where_all_is_work() {
        let t = Instant::now();
        let mut pace = grown(ms(10), t);
        // Two cores: a callout takes 10 ms alone, and as often longer as there are more than two.
        let work = |bound: usize| ms(10) * u32::try_from(bound.div_ceil(2)).unwrap();
        for n in 1..10 {
            let took = work(pace.bound());
            turn_beside_others(&mut pace, took, t + ms(1_000 * n));
        }
        assert!(pace.bound() <= 3, "{}", pace.bound());
        let mut pace = grown(ms(10), t);
        for n in 1..10 {
            let took = ms(10) * u32::try_from(pace.bound()).unwrap();
            turn_beside_others(&mut pace, took, t + ms(1_000 * n));
        }
        assert_eq!(pace.bound(), 1, "the others have one of them");
        for n in 10..20 {
            turn(&mut pace, ms(10), t + ms(1_000 * n));
        }
        assert_eq!(pace.bound(), MOST, "and when they are quiet it grows again");
    }

    #[test]
    fn a_storm_that_crowds_others_even_with_the_least_rests_until_it_is_quick_again_or_alone() {
        let t = Instant::now();
        let mut pace = grown(ms(10), t);
        let mut at = t;
        let mut next = |pace: &mut Pace, took| {
            at += ms(500);
            turn_beside_others(pace, ms(took), at);
            pace.is_resting(at)
        };
        while pace.bound() > 1 {
            next(&mut pace, 20);
        }
        assert!(next(&mut pace, 20));
        for _ in 1..CONVINCED {
            assert!(next(&mut pace, 11), "a few quick ones may be the rest's doing");
        }
        assert!(!next(&mut pace, 11));
        assert_eq!(pace.bound(), 1);
        assert!(next(&mut pace, 20));
        for _ in 0..CONVINCED {
            assert!(next(&mut pace, 90), "what no crowd of its own explains is not the broker's alone");
        }
        assert_eq!(pace.shortest.unwrap().took, ms(90));
        at += ms(500);
        turn(&mut pace, ms(90), at);
        assert!(!pace.is_resting(at), "nobody is beside it any more");
    }

    #[test]
    fn a_lane_that_is_quick_with_the_least_does_not_rest() {
        let t = Instant::now();
        let mut pace = least(ms(10), t);
        let mut at = t;
        for _ in 0..100 {
            at += ms(500);
            let took = if pace.bound() == 1 { 11 } else { 20 };
            turn_beside_others(&mut pace, ms(took), at);
            assert!(!pace.is_resting(at) && pace.bound() <= 2);
        }
    }

    #[test]
    fn a_rest_that_nothing_was_learned_in_for_a_while_is_over() {
        let t = Instant::now();
        let mut pace = least(ms(10), t);
        turn_beside_others(&mut pace, ms(15), t + ms(500));
        assert!(pace.is_resting(t + ms(500) + WINDOW));
        assert!(!pace.is_resting(t + ms(501) + WINDOW));
    }

    #[test]
    fn a_storm_far_from_the_broker_grows_beside_others_from_the_least() {
        let t = Instant::now();
        let mut pace = least(ms(100), t);
        let mut turns = 0;
        while pace.bound() < MOST {
            turns += 1;
            turn_beside_others(&mut pace, ms(104), t + ms(1_000 * turns));
            assert!(!pace.is_resting(t) && turns < 100, "{} after {turns} turns", pace.bound());
        }
    }

    #[test]
    fn far_from_the_broker_a_storm_beside_others_has_as_many_in_progress_as_without_them() {
        let t = Instant::now();
        let mut pace = grown(ms(100), t);
        for n in 1..10 {
            turn_beside_others(&mut pace, ms(104), t + ms(1_000 * n));
        }
        assert_eq!(pace.bound(), MOST);
    }

    #[test]
    fn one_callout_that_found_a_slot_free_says_that_its_lane_is_in_no_storm() {
        let t = Instant::now();
        let mut pace = grown(ms(10), t);
        for n in 1..10 {
            let beside = pace.bound();
            pace.answered(answer(ms(20), t + ms(1_000 * n), beside));
            for _ in 1..beside {
                pace.answered(Answered {
                    company: Company::Others,
                    ..answer(ms(20), t + ms(1_000 * n), beside)
                });
            }
        }
        assert_eq!(pace.bound(), MOST);
    }

    #[test]
    fn what_hangs_takes_many_times_the_shortest_and_more_in_a_crowd() {
        let t = Instant::now();
        assert_eq!(Pace::new(FLOOR, MOST).patience(1), HANGS_UNMEASURED);
        let pace = grown(ms(5), t);
        assert_eq!(pace.patience(1), ms(80));
        assert_eq!(pace.patience(20), ms(800));
    }

    /// Callouts that wait for a far store and then need a core, always as many in progress as the bound lets.
    struct Model {
        cores: usize,
        far: Duration,
        work: Duration,
    }

    struct Came {
        bound: usize,
        per_s: f64,
    }

    impl Model {
        /// Plays a storm; what came of its second half. `pace` is absent where the bound is always the most.
        fn play(&self, pace: &mut Option<Pace>, callouts: usize) -> Came {
            let (start, mut now) = (Instant::now(), Duration::ZERO);
            let mut cores: BinaryHeap<Reverse<Duration>> = (0..self.cores).map(|_| Reverse(now)).collect();
            // When each in progress ends, when it began, and how many were in progress then.
            let mut running: BinaryHeap<Reverse<(Duration, Duration, usize)>> = BinaryHeap::new();
            let mut half = Duration::ZERO;
            for n in 0..callouts {
                while running.len() < pace.as_ref().map_or(MOST, Pace::bound) {
                    let ready = now + self.far;
                    let Reverse(free) = cores.pop().unwrap();
                    let ends = free.max(ready) + self.work;
                    cores.push(Reverse(ends));
                    running.push(Reverse((ends, now, running.len() + 1)));
                }
                let Reverse((ends, began, beside)) = running.pop().unwrap();
                now = ends;
                if let Some(pace) = pace {
                    let beside = beside.max(running.len() + 1);
                    pace.answered(answer(ends.abs_diff(began), start + now, beside));
                    assert!((FLOOR..=MOST).contains(&pace.bound()));
                }
                if n == callouts / 2 {
                    half = now;
                }
            }
            #[allow(clippy::cast_precision_loss, reason = "thousands")]
            let per_s = (callouts - callouts / 2 - 1) as f64 / now.abs_diff(half).as_secs_f64();
            Came { bound: pace.as_ref().map_or(MOST, Pace::bound), per_s }
        }
    }

    const STORM: usize = 4_000;

    #[test]
    fn a_near_broker_makes_a_small_lane_that_is_as_fast_and_a_far_one_a_large_lane() {
        struct Row {
            name: &'static str,
            model: Model,
            bound: std::ops::RangeInclusive<usize>,
        }
        let model = |far, work| Model { cores: 2, far: ms(far), work: ms(work) };
        let table = [
            Row { name: "nothing but work", model: model(0, 3), bound: 2..=6 },
            Row { name: "a near broker", model: model(1, 3), bound: 2..=7 },
            Row { name: "half and half", model: model(3, 3), bound: 4..=10 },
            Row { name: "five reads of 20 ms", model: model(100, 1), bound: MOST..=MOST },
            Row { name: "another continent", model: model(800, 1), bound: MOST..=MOST },
        ];
        for Row { name, model, bound } in table {
            let most = model.play(&mut None, STORM);
            let came = model.play(&mut Some(Pace::new(FLOOR, MOST)), STORM);
            assert!(bound.contains(&came.bound), "{name}: {}", came.bound);
            assert!(came.per_s >= 0.97 * most.per_s, "{name}: {} of {}", came.per_s, most.per_s);
        }
    }

    #[test]
    fn a_broker_that_moves_is_learned_anew_either_way() {
        let near = || Model { cores: 2, far: ms(0), work: ms(3) };
        let far = |ms_far| Model { cores: 2, far: ms(ms_far), work: ms(1) };
        for distance in [12, 40, 100, 700] {
            let mut pace = Some(Pace::new(FLOOR, MOST));
            assert!(near().play(&mut pace, STORM).bound <= 6);
            let came = far(distance).play(&mut pace, STORM);
            let most = far(distance).play(&mut None, STORM);
            assert!(came.per_s >= 0.97 * most.per_s, "{distance} ms away: {} of {}", came.per_s, most.per_s);
            assert!(near().play(&mut pace, STORM).bound <= 6, "and back");
        }
    }

    proptest! {
        /// Whatever is answered, the bound is between its limits, and nobody waits for ever.
        #[test]
        fn the_bound_is_always_within_its_limits(
            floor in 0usize..40,
            most in 0usize..40,
            script in prop::collection::vec((0u64..5_000, 0u64..4_000, 0usize..64, 0usize..500, any::<bool>()), 0..400),
        ) {
            let mut pace = Pace::new(floor, most);
            let (least, most) = ((floor.clamp(1, most.max(1)) / 2).max(1), most.max(1));
            let mut at = Instant::now();
            for (took, later, beside, crowd, others) in script {
                at += ms(later);
                let company = if others { Company::Others } else { Company::None };
                pace.answered(Answered { took: ms(took), at, beside, crowd, company });
                prop_assert!((least..=most).contains(&pace.bound()));
                prop_assert!(pace.turn.len() <= 64 && pace.unexplained.len() < CONVINCED);
            }
        }

        /// The bound never leaps, and never away from what is wanted.
        #[test]
        fn a_turn_moves_the_bound_by_no_more_than_half_or_twice(
            bound in 1usize..100_000, wanted in 0u64..10_000_000, took in 0u64..10_000_000,
        ) {
            let to = scaled(bound, Duration::from_micros(wanted), Duration::from_micros(took));
            prop_assert!((bound / 2..=2 * bound).contains(&to), "{to}");
            prop_assert!(if took > wanted { to <= bound } else { to >= bound }, "{to}");
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Near or far, it comes to rest where the lane is as fast as with the most, and a near lane stays small.
        #[test]
        fn it_converges(far in 0u64..300, work in 1u64..6, cores in 1usize..=8) {
            let floor = cores.max(FLOOR);
            let model = Model { cores, far: ms(far), work: ms(work) };
            let most = model.play(&mut None, STORM);
            let came = model.play(&mut Some(Pace::new(floor, MOST)), STORM);
            prop_assert!(came.per_s >= 0.9 * most.per_s, "{} of {}", came.per_s, most.per_s);
            // As many as keep the cores busy, twice that, and a few.
            let busy = usize::try_from((far + work).div_ceil(work)).unwrap() * cores;
            prop_assert!(came.bound <= (2 * busy + 4).min(MOST), "{} where {busy} are enough", came.bound);
        }
    }
}
