use std::collections::HashMap;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::*;

/// A space and the version of what its entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry(Space, u32);

/// What the lanes of a space do, and what was done to them.
#[derive(Default)]
struct Behaviour {
    hangs: watch::Sender<bool>,
    hangs_while_it_answers: watch::Sender<bool>,
    refuses: watch::Sender<bool>,
    panics: watch::Sender<bool>,
    does_not_close: watch::Sender<bool>,
    close_panics: watch::Sender<bool>,
    ends: Notify,
    begun: watch::Sender<u32>,
    open: watch::Sender<u32>,
    answers: watch::Sender<bool>,
}

#[derive(Clone, Default)]
struct House(Arc<Mutex<HashMap<String, Arc<Behaviour>>>>);

impl House {
    fn of(&self, space: &str) -> Arc<Behaviour> {
        Arc::clone(self.0.lock().entry(space.to_owned()).or_default())
    }

    fn is_open(&self, space: &str) -> bool {
        let open = *self.of(space).open.borrow();
        assert!(open <= 1, "two lanes of {space} are open");
        open == 1
    }

    fn begun(&self, space: &str) -> u32 {
        *self.of(space).begun.borrow()
    }
}

struct FakeLane(Arc<Behaviour>);

#[async_trait]
impl Lane for FakeLane {
    async fn ended(&self) -> String {
        self.0.ends.notified().await;
        "it was told to".to_owned()
    }

    async fn close(&self) -> Result<(), CloseError> {
        assert!(!*self.0.close_panics.borrow(), "it was told to panic");
        self.0.answers.send_replace(false);
        if *self.0.does_not_close.borrow() {
            return Err(CloseError(vec![EpError::internal("it does not close")]));
        }
        self.0.open.send_modify(|open| *open -= 1);
        Ok(())
    }

    fn takes_nothing_in(&self) -> bool {
        !*self.0.answers.borrow()
    }
}

#[async_trait]
impl OpenLane for House {
    type Entry = Entry;

    fn space<'e>(&self, entry: &'e Entry) -> &'e Space {
        &entry.0
    }

    async fn open(&self, entry: &Entry, threshold: &Threshold) -> Result<Box<dyn Lane>, LaneRefusal> {
        let behaviour = self.of(entry.0.as_str());
        behaviour.begun.send_modify(|begun| *begun += 1);
        let _ = behaviour.hangs.subscribe().wait_for(|hangs| !hangs).await;
        assert!(!*behaviour.panics.borrow(), "it was told to panic");
        if *behaviour.refuses.borrow() {
            return Err(LaneRefusal::of("it was told to refuse"));
        }
        threshold.cross().map_err(|_| LaneRefusal::of("it is barred"))?;
        behaviour.answers.send_replace(true);
        let _ = behaviour.hangs_while_it_answers.subscribe().wait_for(|hangs| !hangs).await;
        behaviour.open.send_modify(|open| *open += 1);
        Ok(Box::new(FakeLane(behaviour)))
    }
}

fn entries(named: &[(&str, u32)]) -> Vec<Entry> {
    named.iter().map(|(space, version)| Entry(Space::parse(space).unwrap(), *version)).collect()
}

/// Lets everything happen that happens by itself, and `pass` of time after it.
async fn run(lanes: &mut Lanes<House>, pass: Duration) {
    let until = Instant::now() + pass;
    loop {
        lanes.act();
        tokio::select! {
            biased;
            () = lanes.next() => {}
            () = tokio::time::sleep_until(until) => return,
        }
    }
}

const MOMENT: Duration = Duration::from_millis(1);

async fn opened(named: &[(&str, u32)], prepare: impl FnOnce(&House)) -> (House, Lanes<House>) {
    let house = House::default();
    prepare(&house);
    let mut lanes = Lanes::new(house.clone());
    lanes.want(entries(named));
    run(&mut lanes, MOMENT).await;
    (house, lanes)
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_fails_is_tried_again_every_five_seconds_and_stops_no_other() {
    let (house, mut lanes) = opened(&[("a", 1), ("b", 1), ("c", 1)], |house| {
        house.of("b").refuses.send_replace(true);
        house.of("c").panics.send_replace(true);
    })
    .await;
    assert!(lanes.are_settled() && lanes.hold_nothing_else());
    assert_eq!(lanes.standing().to_string(), "1 of 3 spaces answer; retried every 5 s: \"b\", \"c\"");
    run(&mut lanes, RETRY_AFTER * 3).await;
    assert_eq!((house.begun("a"), house.begun("b"), house.begun("c")), (1, 4, 4));
    house.of("b").refuses.send_replace(false);
    house.of("c").panics.send_replace(false);
    run(&mut lanes, RETRY_AFTER).await;
    assert_eq!(lanes.standing().to_string(), "3 of 3 spaces answer");
    assert_eq!(lanes.stop().await, [""; 0]);
    assert!(["a", "b", "c"].iter().all(|space| !house.is_open(space)));
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_hangs_is_named_after_thirty_seconds_not_started_again_and_taken_when_it_opens() {
    let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |house| {
        house.of("b").hangs.send_replace(true);
    })
    .await;
    assert!(!lanes.are_settled() && house.is_open("a"));
    assert!(lanes.hold_nothing_else(), "a hung start of one space delays no acknowledgment");
    run(&mut lanes, OPEN_PATIENCE).await;
    assert!(lanes.are_settled());
    assert_eq!(lanes.standing().to_string(), "1 of 2 spaces answer; still opening: \"b\"");
    run(&mut lanes, OPEN_PATIENCE * 10).await;
    assert_eq!(house.begun("b"), 1);
    house.of("b").hangs.send_replace(false);
    run(&mut lanes, MOMENT).await;
    assert_eq!(lanes.standing().to_string(), "2 of 2 spaces answer");
}

#[tokio::test(start_paused = true)]
async fn a_hung_start_whose_space_has_left_holds_no_acknowledgment_back_and_never_answers() {
    let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |house| {
        house.of("b").hangs.send_replace(true);
    })
    .await;
    lanes.want(entries(&[("a", 1)]));
    assert!(!lanes.hold_nothing_else(), "it may still open, and would answer");
    run(&mut lanes, MOMENT).await;
    assert!(lanes.hold_nothing_else(), "it can answer no more");
    run(&mut lanes, OPEN_PATIENCE * 2).await;
    house.of("b").hangs.send_replace(false);
    run(&mut lanes, MOMENT).await;
    assert!(!house.is_open("b") && !*house.of("b").answers.borrow() && house.is_open("a"));
    assert_eq!(lanes.stop().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_answers_already_when_its_space_leaves_is_waited_for_and_closed() {
    let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |house| {
        house.of("b").hangs_while_it_answers.send_replace(true);
    })
    .await;
    lanes.want(entries(&[("a", 1)]));
    run(&mut lanes, OPEN_PATIENCE * 2).await;
    assert!(!lanes.hold_nothing_else());
    house.of("b").hangs_while_it_answers.send_replace(false);
    run(&mut lanes, MOMENT).await;
    assert!(lanes.hold_nothing_else() && !house.is_open("b") && house.is_open("a"));
}

#[tokio::test(start_paused = true)]
async fn a_space_that_comes_back_while_its_barred_start_hangs_is_opened_afresh_and_at_once() {
    let (house, mut lanes) = opened(&[("a", 1)], |house| {
        house.of("a").hangs.send_replace(true);
    })
    .await;
    lanes.want(entries(&[("a", 2)]));
    run(&mut lanes, MOMENT).await;
    assert!(lanes.hold_nothing_else(), "the start of what has changed can answer no more");
    lanes.want(entries(&[("a", 1)]));
    run(&mut lanes, MOMENT).await;
    assert_eq!(house.begun("a"), 1, "no second start beside the first");
    house.of("a").hangs.send_replace(false);
    run(&mut lanes, MOMENT).await;
    assert!(house.is_open("a") && house.begun("a") == 2);
}

#[test]
fn of_a_bar_and_a_crossing_the_first_stands() {
    let (barred, crossed) = (Threshold::default(), Threshold::default());
    barred.bar();
    assert!(barred.cross().is_err() && barred.is_barred());
    crossed.cross().unwrap();
    crossed.bar();
    assert!(crossed.cross().is_ok() && !crossed.is_barred());
}

#[tokio::test(start_paused = true)]
async fn a_changed_entry_closes_its_lane_and_opens_it_again_and_touches_no_other() {
    let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |_| ()).await;
    lanes.want(entries(&[("b", 2), ("a", 1)]));
    assert!(!lanes.hold_nothing_else());
    run(&mut lanes, MOMENT).await;
    assert!(lanes.hold_nothing_else() && house.is_open("b"));
    assert_eq!((house.begun("a"), house.begun("b")), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_start_of_an_entry_that_has_changed_meanwhile_is_closed_and_the_new_one_opens() {
    let (house, mut lanes) = opened(&[("a", 1)], |house| {
        house.of("a").hangs.send_replace(true);
    })
    .await;
    lanes.want(entries(&[("a", 2)]));
    run(&mut lanes, MOMENT).await;
    assert_eq!(house.begun("a"), 1, "no second start beside the first");
    house.of("a").hangs.send_replace(false);
    run(&mut lanes, MOMENT).await;
    assert!(house.is_open("a") && house.begun("a") == 2 && lanes.hold_nothing_else());
}

#[tokio::test(start_paused = true)]
async fn a_changed_entry_of_a_lane_that_failed_is_tried_at_once() {
    let (house, mut lanes) = opened(&[("a", 1)], |house| {
        house.of("a").refuses.send_replace(true);
    })
    .await;
    house.of("a").refuses.send_replace(false);
    lanes.want(entries(&[("a", 2)]));
    run(&mut lanes, MOMENT).await;
    assert!(house.is_open("a"));
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_ends_by_itself_is_closed_and_opened_again_alone() {
    let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |_| ()).await;
    house.of("b").ends.notify_one();
    run(&mut lanes, MOMENT).await;
    assert!(house.is_open("a") && !house.is_open("b"));
    assert!(lanes.hold_nothing_else(), "the manifest still wants it");
    run(&mut lanes, RETRY_AFTER).await;
    assert!(house.is_open("b"));
    assert_eq!((house.begun("a"), house.begun("b")), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_lane_whose_close_fails_after_it_stopped_answering_is_closed_again_and_holds_no_acknowledgment_back()
 {
    let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |house| {
        house.of("b").does_not_close.send_replace(true);
    })
    .await;
    lanes.want(entries(&[("a", 1)]));
    assert!(!lanes.hold_nothing_else());
    run(&mut lanes, MOMENT).await;
    assert!(lanes.hold_nothing_else() && house.is_open("b"), "what it holds answers nobody");
    house.of("b").does_not_close.send_replace(false);
    run(&mut lanes, RETRY_AFTER).await;
    assert!(lanes.hold_nothing_else() && !house.is_open("b") && house.is_open("a"));
}

#[tokio::test(start_paused = true)]
async fn a_lane_whose_close_does_not_run_to_its_end_holds_the_acknowledgment_back_also_one_that_had_ended() {
    for ends_first in [false, true] {
        let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |house| {
            house.of("b").close_panics.send_replace(true);
        })
        .await;
        if ends_first {
            house.of("b").ends.notify_one();
            run(&mut lanes, MOMENT).await;
        }
        lanes.want(entries(&[("a", 1)]));
        run(&mut lanes, RETRY_AFTER * 2).await;
        assert!(!lanes.hold_nothing_else(), "nobody knows how far it came");
        house.of("b").close_panics.send_replace(false);
        run(&mut lanes, RETRY_AFTER).await;
        assert!(lanes.hold_nothing_else() && !house.is_open("b") && house.is_open("a"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_had_ended_and_does_not_close_holds_no_acknowledgment_back_and_no_second_one_opens() {
    let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |house| {
        house.of("b").does_not_close.send_replace(true);
    })
    .await;
    house.of("b").ends.notify_one();
    run(&mut lanes, RETRY_AFTER * 3).await;
    assert_eq!(house.begun("b"), 1, "not beside what is not closed");
    lanes.want(entries(&[("a", 1)]));
    run(&mut lanes, MOMENT).await;
    assert!(lanes.hold_nothing_else());
    let unclosed = lanes.stop().await;
    assert!(unclosed.len() == 1 && unclosed[0].starts_with("[b] the context did not close"), "{unclosed:?}");
}

#[tokio::test(start_paused = true)]
async fn hung_starts_make_room_for_the_others() {
    let names: Vec<String> = (0..3 * OPENING_AT_ONCE).map(|n| format!("s{n:03}")).collect();
    let named: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let hung = OPENING_AT_ONCE;
    let (house, mut lanes) = opened(&named, |house| {
        for name in &names[..hung] {
            house.of(name).hangs.send_replace(true);
        }
    })
    .await;
    assert_eq!(lanes.standing().answering, 0, "they were first");
    run(&mut lanes, OPEN_PATIENCE).await;
    assert_eq!(lanes.standing().answering, names.len() - hung);
    lanes.want(entries(&named[hung..]));
    run(&mut lanes, MOMENT).await;
    assert!(lanes.hold_nothing_else() && house.begun(&names[0]) == 1);
}

#[tokio::test(start_paused = true)]
async fn a_space_that_leaves_before_its_turn_is_never_started() {
    let names: Vec<String> = (0..=OPENING_AT_ONCE).map(|n| format!("s{n:03}")).collect();
    let named: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let (house, mut lanes) = opened(&named, |house| {
        for name in &names[..OPENING_AT_ONCE] {
            house.of(name).hangs.send_replace(true);
        }
    })
    .await;
    lanes.want(entries(&named[..OPENING_AT_ONCE]));
    run(&mut lanes, MOMENT).await;
    assert!(lanes.hold_nothing_else());
    run(&mut lanes, OPEN_PATIENCE * 2).await;
    assert_eq!(house.begun(&names[OPENING_AT_ONCE]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_all_waits_for_a_start_and_tells_what_did_not_close() {
    let (house, lanes) = opened(&[("a", 1), ("b", 1), ("c", 1)], |house| {
        house.of("b").does_not_close.send_replace(true);
        house.of("c").hangs.send_replace(true);
    })
    .await;
    let unclosed = lanes.stop().await;
    assert_eq!(unclosed.len(), 2, "{unclosed:?}");
    assert!(
        unclosed[0].starts_with("[b] the context did not close")
            && unclosed[1].starts_with("[c] its start did not end")
    );
    assert!(!house.is_open("a"));
}

#[test]
fn a_prefix_is_one_line_whatever_the_space_is_called() {
    assert_eq!(prefix(&Space::parse("acme").unwrap()), "[acme]");
    assert_eq!(prefix(&Space::parse("a\nb").unwrap()), "[a\\nb]");
}
