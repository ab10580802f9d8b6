//! The lanes of a host: each is opened, watched, closed and opened again by itself (contract 10 §6.2).
//!
//! What is to be done with a space is a function of what its manifest entry says and of the phase its lane is in
//! ([`next_step`]). The rest of this file does it, in a task for each opening and each closing, and takes in what came of
//! it, one event at a time.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use cotal_wire::{EpError, Space};
use tokio::{
    sync::{Semaphore, mpsc},
    task::AbortHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::lane::{Lane, LaneRefusal, OpenLane};
use crate::handle::CloseError;

/// How long a host waits for one lane before it goes on without it (contract 10 §6.1).
pub(super) const OPEN_PATIENCE: Duration = Duration::from_secs(30);
/// A lane that failed is tried again after this long (contract 08 §5).
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Lanes that are being opened at the same time. A thousand at once would dial ten thousand connections, and each would
/// wait for all the others; one that is late makes room for the next.
const OPENING_AT_ONCE: usize = 32;

/// Every lane of a host.
pub(super) struct Lanes<O: OpenLane> {
    opener: Arc<O>,
    slots: BTreeMap<Space, Slot<O::Entry>>,
    room: Arc<Semaphore>,
    events: mpsc::UnboundedReceiver<(Space, Event)>,
    teller: mpsc::UnboundedSender<(Space, Event)>,
    opened: u64,
    stopping: bool,
    unclosed: Vec<String>,
}

/// A space: what the manifest wants of it, and what its lane is doing.
struct Slot<E> {
    wanted: Option<E>,
    phase: Phase<E>,
    /// The failure that was told last: the same one is told once.
    told: Option<String>,
}

enum Phase<E> {
    /// There is no lane, and none has failed.
    Shut,
    /// The lane failed, and is left alone until then.
    Resting { failed: E, until: Instant },
    /// It is being opened, or waits for its turn.
    Opening { entry: E, turn: CancellationToken, late: bool },
    /// It serves, unless it has ended by itself.
    Open { entry: E, number: u64, lane: Arc<dyn Lane>, watch: AbortHandle, ended: bool },
    /// It is being closed.
    Closing { entry: E, ended: bool },
    /// A close of it failed, and is tried again then.
    Unclosed { entry: E, lane: Arc<dyn Lane>, ended: bool, until: Instant },
}

/// What to do with a space now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Wait,
    Open,
    /// It waits for its turn and is no longer wanted so: it need not begin.
    GiveUpTurn,
    Close,
    Forget,
}

/// Decides.
fn next_step<E: Eq>(wanted: Option<&E>, phase: &Phase<E>, now: Instant) -> Step {
    match phase {
        Phase::Shut if wanted.is_some() => Step::Open,
        Phase::Shut => Step::Forget,
        Phase::Resting { failed, until } => match wanted {
            None => Step::Forget,
            // Another entry may well open.
            Some(entry) if entry != failed || *until <= now => Step::Open,
            Some(_) => Step::Wait,
        },
        Phase::Opening { entry, .. } if wanted != Some(entry) => Step::GiveUpTurn,
        Phase::Open { entry, ended, .. } if *ended || wanted != Some(entry) => Step::Close,
        Phase::Unclosed { until, .. } if *until <= now => Step::Close,
        Phase::Opening { .. } | Phase::Open { .. } | Phase::Closing { .. } | Phase::Unclosed { .. } => {
            Step::Wait
        }
    }
}

/// What happened to the lane of a space.
enum Event {
    /// It has not opened within [`OPEN_PATIENCE`].
    Late,
    Opened(Box<dyn Lane>),
    Refused(LaneRefusal),
    /// It gave up its turn before it had begun.
    Unbegun,
    /// The lane of this number ended by itself.
    Ended(u64, String),
    Closed,
    NotClosed(Arc<dyn Lane>, CloseError),
}

/// How the lanes are, as the ready line has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) answering: usize,
    pub(super) named: usize,
    retried: Vec<Space>,
    opening: Vec<Space>,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} spaces answer", self.answering, self.named)?;
        if !self.retried.is_empty() {
            write!(f, "; retried every {} s: {}", RETRY_AFTER.as_secs(), listed(&self.retried))?;
        }
        if !self.opening.is_empty() {
            write!(f, "; still opening: {}", listed(&self.opening))?;
        }
        Ok(())
    }
}

fn listed(spaces: &[Space]) -> String {
    spaces.iter().map(|space| format!("{:?}", space.as_str())).collect::<Vec<_>>().join(", ")
}

/// `[<space>]`, which a lane's lines begin with. A space's name may be any text, and a line is one line.
pub(super) fn prefix(space: &Space) -> String {
    format!("[{}]", space.as_str().escape_debug())
}

impl<O: OpenLane> Lanes<O> {
    pub(super) fn new(opener: O) -> Self {
        let (teller, events) = mpsc::unbounded_channel();
        Self {
            opener: Arc::new(opener),
            slots: BTreeMap::new(),
            room: Arc::new(Semaphore::new(OPENING_AT_ONCE)),
            events,
            teller,
            opened: 0,
            stopping: false,
            unclosed: Vec::new(),
        }
    }

    /// From now on these are wanted, and nothing else; [`Self::act`] begins with it.
    pub(super) fn want(&mut self, entries: Vec<O::Entry>) {
        for slot in self.slots.values_mut() {
            slot.wanted = None;
        }
        for entry in entries {
            let space = self.opener.space(&entry).clone();
            let slot =
                self.slots.entry(space).or_insert(Slot { wanted: None, phase: Phase::Shut, told: None });
            slot.wanted = Some(entry);
        }
    }

    /// Whether no lane is left of an entry that is wanted no more. Until then a removed space might still mint.
    pub(super) fn hold_nothing_else(&self) -> bool {
        self.slots.values().all(|slot| match &slot.phase {
            // One that had ended by itself counts as none: its close has stopped whatever it still took in. What is left
            // is a claim that a broker without the space's account will never take back, and nobody must wait for that.
            Phase::Shut | Phase::Resting { .. } | Phase::Unclosed { ended: true, .. } => true,
            Phase::Opening { entry, .. }
            | Phase::Open { entry, .. }
            | Phase::Closing { entry, .. }
            | Phase::Unclosed { entry, .. } => slot.wanted.as_ref() == Some(entry),
        })
    }

    /// Whether each lane that is wanted answers, has failed, or is late.
    pub(super) fn are_settled(&self) -> bool {
        self.slots
            .values()
            .all(|slot| !matches!(slot.phase, Phase::Shut | Phase::Opening { late: false, .. }))
    }

    pub(super) fn standing(&self) -> Standing {
        let mut standing = Standing { answering: 0, named: 0, retried: Vec::new(), opening: Vec::new() };
        for (space, slot) in self.slots.iter().filter(|(_, slot)| slot.wanted.is_some()) {
            standing.named += 1;
            match &slot.phase {
                Phase::Open { ended: false, .. } => standing.answering += 1,
                Phase::Shut | Phase::Opening { .. } => standing.opening.push(space.clone()),
                _ => standing.retried.push(space.clone()),
            }
        }
        standing
    }

    /// Waits for the next thing that happens, and takes it in. Cancel safe.
    pub(super) async fn next(&mut self) {
        let due = self.slots.values().filter_map(|slot| match &slot.phase {
            Phase::Resting { until, .. } | Phase::Unclosed { until, .. } => Some(*until),
            _ => None,
        });
        let due = due.min();
        let retry = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = self.events.recv() => if let Some((space, event)) = event {
                self.take(space, event);
                // What else has happened needs no second look at everything.
                while let Ok((space, event)) = self.events.try_recv() {
                    self.take(space, event);
                }
            },
            () = retry => {}
        }
    }

    /// Begins whatever is due.
    pub(super) fn act(&mut self) {
        let now = Instant::now();
        let due: Vec<(Space, Step)> = self
            .slots
            .iter()
            .map(|(space, slot)| (space, next_step(slot.wanted.as_ref(), &slot.phase, now)))
            .filter(|(_, step)| *step != Step::Wait)
            .map(|(space, step)| (space.clone(), step))
            .collect();
        for (space, step) in due {
            match step {
                Step::Wait => {}
                Step::Open => self.open(&space),
                Step::GiveUpTurn => {
                    if let Some(Slot { phase: Phase::Opening { turn, .. }, .. }) = self.slots.get(&space) {
                        turn.cancel();
                    }
                }
                Step::Close => self.close(&space),
                Step::Forget => drop(self.slots.remove(&space)),
            }
        }
    }

    /// Closes every lane, also those that are still to open, and waits for that: for an opening one at most
    /// [`OPEN_PATIENCE`]. Answers what did not close.
    pub(super) async fn stop(mut self) -> Vec<String> {
        self.stopping = true;
        self.want(Vec::new());
        for slot in self.slots.values_mut() {
            if let Phase::Unclosed { until, .. } = &mut slot.phase {
                *until = Instant::now();
            }
        }
        self.act();
        let give_up = Instant::now() + OPEN_PATIENCE;
        while !self.slots.is_empty() {
            let only_opening = self.slots.values().all(|slot| matches!(slot.phase, Phase::Opening { .. }));
            tokio::select! {
                () = self.next() => self.act(),
                () = tokio::time::sleep_until(give_up), if only_opening => break,
            }
        }
        let unopened = self.slots.keys().map(|space| {
            format!("{} its start did not end; what it holds is taken over by the next one", prefix(space))
        });
        self.unclosed.extend(unopened);
        self.unclosed
    }

    fn open(&mut self, space: &Space) {
        let Some(slot) = self.slots.get_mut(space) else { return };
        let Some(entry) = slot.wanted.clone() else { return };
        let turn = CancellationToken::new();
        slot.phase = Phase::Opening { entry: entry.clone(), turn: turn.clone(), late: false };
        let opening = Opening { opener: Arc::clone(&self.opener), entry, room: Arc::clone(&self.room), turn };
        let (space, teller) = (space.clone(), self.teller.clone());
        tokio::spawn(async move {
            let late = || drop(teller.send((space.clone(), Event::Late)));
            let event = opening.run(late).await;
            // A host that is gone drops the lane here, which closes it.
            let _ = teller.send((space, event));
        });
    }

    fn close(&mut self, space: &Space) {
        let Some(slot) = self.slots.get_mut(space) else { return };
        let (entry, lane, ended) = match std::mem::replace(&mut slot.phase, Phase::Shut) {
            Phase::Open { entry, lane, watch, ended, .. } => {
                watch.abort();
                (entry, lane, ended)
            }
            Phase::Unclosed { entry, lane, ended, .. } => (entry, lane, ended),
            other => {
                slot.phase = other;
                return;
            }
        };
        slot.phase = Phase::Closing { entry, ended };
        let (space, teller) = (space.clone(), self.teller.clone());
        tokio::spawn(async move {
            let closing = Arc::clone(&lane);
            let closed = tokio::spawn(async move { closing.close().await }).await;
            let event = match closed {
                Ok(Ok(())) => Event::Closed,
                Ok(Err(error)) => Event::NotClosed(lane, error),
                Err(error) => Event::NotClosed(
                    lane,
                    CloseError(vec![EpError::internal(format!("the close did not run to its end: {error}"))]),
                ),
            };
            let _ = teller.send((space, event));
        });
    }

    fn take(&mut self, space: Space, event: Event) {
        let Some(slot) = self.slots.get_mut(&space) else { return };
        let at = prefix(&space);
        let retry = Instant::now() + RETRY_AFTER;
        match (event, &mut slot.phase) {
            (Event::Late, Phase::Opening { late, .. }) => {
                *late = true;
                if slot.wanted.is_some() {
                    tracing::warn!(
                        "{at} still opening after {} s; it is waited for and not started again",
                        OPEN_PATIENCE.as_secs()
                    );
                }
            }
            (Event::Opened(lane), Phase::Opening { entry, .. }) => {
                self.opened += 1;
                let (number, lane) = (self.opened, Arc::<dyn Lane>::from(lane));
                let watch = watch_end(space, number, Arc::clone(&lane), self.teller.clone());
                slot.phase = Phase::Open { entry: entry.clone(), number, lane, watch, ended: false };
                slot.told = None;
            }
            (Event::Refused(refusal), Phase::Opening { entry, .. }) => {
                slot.phase = Phase::Resting { failed: entry.clone(), until: retry };
                slot.tell(&at, &format!("did not open: {refusal}"));
            }
            (Event::Unbegun, Phase::Opening { .. }) => slot.phase = Phase::Shut,
            (Event::Ended(of, reason), Phase::Open { number, ended, .. }) if of == *number => {
                *ended = true;
                tracing::error!(
                    "{at} ended: {reason}; it is closed, and opened again in {} s",
                    RETRY_AFTER.as_secs()
                );
            }
            (Event::Closed, Phase::Closing { entry, ended }) => {
                slot.phase =
                    if *ended { Phase::Resting { failed: entry.clone(), until: retry } } else { Phase::Shut };
                tracing::info!("{at} closed");
            }
            (Event::NotClosed(lane, error), Phase::Closing { entry, ended }) => {
                if self.stopping {
                    // It is let go of: the process ends, and the next one takes over what it held.
                    self.unclosed.push(format!("{at} {error}"));
                    self.slots.remove(&space);
                    return;
                }
                slot.phase = Phase::Unclosed { entry: entry.clone(), lane, ended: *ended, until: retry };
                slot.tell(&at, &error.to_string());
            }
            // The end of a lane that is being closed anyway.
            _ => {}
        }
    }
}

impl<E> Slot<E> {
    /// Tells a failure that is tried again, each one once in a row. Nobody waits for a space that has left.
    fn tell(&mut self, at: &str, failure: &str) {
        let again = RETRY_AFTER.as_secs();
        if self.told.as_deref() == Some(failure) {
            tracing::debug!("{at} {failure}; tried again in {again} s");
        } else {
            tracing::error!("{at} {failure}; tried again every {again} s");
            self.told = Some(failure.to_owned());
        }
    }
}

/// One opening, from its turn to its end.
struct Opening<O: OpenLane> {
    opener: Arc<O>,
    entry: O::Entry,
    room: Arc<Semaphore>,
    turn: CancellationToken,
}

impl<O: OpenLane> Opening<O> {
    async fn run(self, late: impl Fn()) -> Event {
        let Self { opener, entry, room, turn } = self;
        let place = tokio::select! {
            biased;
            () = turn.cancelled() => return Event::Unbegun,
            place = room.acquire_owned() => place,
        };
        // A task of its own, so that a lane that panics is a lane that failed.
        let opening = tokio::spawn(async move { opener.open(&entry).await });
        tokio::pin!(opening);
        let in_time = tokio::time::timeout(OPEN_PATIENCE, opening.as_mut()).await;
        let settled = if let Ok(settled) = in_time {
            settled
        } else {
            drop(place);
            late();
            opening.await
        };
        match settled {
            Ok(Ok(lane)) => Event::Opened(lane),
            Ok(Err(refusal)) => Event::Refused(refusal),
            Err(error) => {
                Event::Refused(LaneRefusal::of(format_args!("its start did not run to its end: {error}")))
            }
        }
    }
}

/// Tells when a lane ends by itself; lets go of it when nobody listens any more.
fn watch_end(
    space: Space,
    number: u64,
    lane: Arc<dyn Lane>,
    teller: mpsc::UnboundedSender<(Space, Event)>,
) -> AbortHandle {
    let watching = tokio::spawn(async move {
        let reason = tokio::select! {
            reason = lane.ended() => reason,
            () = teller.closed() => return,
        };
        let _ = teller.send((space, Event::Ended(number, reason)));
    });
    watching.abort_handle()
}

#[cfg(test)]
mod tests {
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
        refuses: watch::Sender<bool>,
        panics: watch::Sender<bool>,
        does_not_close: watch::Sender<bool>,
        ends: Notify,
        begun: watch::Sender<u32>,
        open: watch::Sender<u32>,
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
            if *self.0.does_not_close.borrow() {
                return Err(CloseError(vec![EpError::internal("it does not close")]));
            }
            self.0.open.send_modify(|open| *open -= 1);
            Ok(())
        }
    }

    #[async_trait]
    impl OpenLane for House {
        type Entry = Entry;

        fn space<'e>(&self, entry: &'e Entry) -> &'e Space {
            &entry.0
        }

        async fn open(&self, entry: &Entry) -> Result<Box<dyn Lane>, LaneRefusal> {
            let behaviour = self.of(entry.0.as_str());
            behaviour.begun.send_modify(|begun| *begun += 1);
            let _ = behaviour.hangs.subscribe().wait_for(|hangs| !hangs).await;
            assert!(!*behaviour.panics.borrow(), "it was told to panic");
            if *behaviour.refuses.borrow() {
                return Err(LaneRefusal::of("it was told to refuse"));
            }
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
    async fn a_hung_start_whose_space_has_left_is_closed_when_it_settles_and_holds_the_acknowledgment_back() {
        let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |house| {
            house.of("b").hangs.send_replace(true);
        })
        .await;
        lanes.want(entries(&[("a", 1)]));
        run(&mut lanes, OPEN_PATIENCE * 2).await;
        assert!(!lanes.hold_nothing_else(), "it may still open, and would answer");
        house.of("b").hangs.send_replace(false);
        run(&mut lanes, MOMENT).await;
        assert!(lanes.hold_nothing_else() && !house.is_open("b") && house.is_open("a"));
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
    async fn a_lane_that_does_not_close_is_closed_again_and_acknowledged_only_then() {
        let (house, mut lanes) = opened(&[("a", 1), ("b", 1)], |house| {
            house.of("b").does_not_close.send_replace(true);
        })
        .await;
        lanes.want(entries(&[("a", 1)]));
        run(&mut lanes, RETRY_AFTER * 2).await;
        assert!(!lanes.hold_nothing_else());
        house.of("b").does_not_close.send_replace(false);
        run(&mut lanes, RETRY_AFTER).await;
        assert!(lanes.hold_nothing_else() && !house.is_open("b") && house.is_open("a"));
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
        assert!(
            unclosed.len() == 1 && unclosed[0].starts_with("[b] the context did not close"),
            "{unclosed:?}"
        );
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
        assert!(!lanes.hold_nothing_else() && house.begun(&names[0]) == 1);
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
}
