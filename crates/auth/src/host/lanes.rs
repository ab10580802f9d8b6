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

use super::lane::{Lane, LaneRefusal, OPEN_PATIENCE, OpenLane, Threshold, UNENDED};
use crate::handle::CloseError;

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
    Opening { entry: E, threshold: Threshold, late: bool },
    /// It serves, unless it has ended by itself.
    Open { entry: E, number: u64, lane: Arc<dyn Lane>, watch: AbortHandle, ended: bool },
    /// It is being closed.
    Closing { entry: E, ended: bool },
    /// A close of it failed, and is tried again then. `idle` when it takes nothing in any more all the same.
    Unclosed { entry: E, lane: Arc<dyn Lane>, ended: bool, idle: bool, until: Instant },
}

/// What to do with a space now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Wait,
    Open,
    /// It is being opened and is no longer wanted so: it need not begin, and nothing of it is to answer.
    Bar,
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
        Phase::Opening { entry, .. } if wanted != Some(entry) => Step::Bar,
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
    NotClosed {
        lane: Arc<dyn Lane>,
        idle: bool,
        error: CloseError,
    },
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

    /// Whether no lane that answers, or may come to answer, is left of an entry that is wanted no more. Until then a removed
    /// space might still mint.
    ///
    /// Contract 12 D10 waits for each such lane to have closed. Of two this waits for less, because nobody may be kept waiting
    /// for a broker that hangs (contract 10 §6.3): an opening that was barred will answer nothing, and a lane whose close
    /// failed after it had stopped its intake holds no more than a claim, which a broker without the space's account will
    /// never take back. A close that did not come as far as that is waited for.
    pub(super) fn hold_nothing_else(&self) -> bool {
        self.slots.values().all(|slot| match &slot.phase {
            Phase::Shut | Phase::Resting { .. } | Phase::Unclosed { idle: true, .. } => true,
            Phase::Opening { threshold, .. } if threshold.is_barred() => true,
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
                Step::Bar => {
                    if let Some(Slot { phase: Phase::Opening { threshold, .. }, .. }) = self.slots.get(&space)
                    {
                        threshold.bar();
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
        let unopened = self.slots.keys().map(|space| format!("{} {UNENDED}", prefix(space)));
        self.unclosed.extend(unopened);
        self.unclosed
    }

    fn open(&mut self, space: &Space) {
        let Some(slot) = self.slots.get_mut(space) else { return };
        let Some(entry) = slot.wanted.clone() else { return };
        let threshold = Threshold::default();
        slot.phase = Phase::Opening { entry: entry.clone(), threshold: threshold.clone(), late: false };
        let (opener, room) = (Arc::clone(&self.opener), Arc::clone(&self.room));
        let opening = Opening { opener, entry, room, threshold };
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
                Ok(Err(error)) => Event::NotClosed { idle: lane.takes_nothing_in(), lane, error },
                // How far it came, nobody knows.
                Err(error) => {
                    let error = format!("the close did not run to its end: {error}");
                    Event::NotClosed { lane, idle: false, error: CloseError(vec![EpError::internal(error)]) }
                }
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
            // Barred, it was to come to nothing; whether it is wanted again is seen afresh.
            (Event::Refused(_), Phase::Opening { threshold, .. }) if threshold.is_barred() => {
                slot.phase = Phase::Shut;
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
            (Event::NotClosed { lane, idle, error }, Phase::Closing { entry, ended }) => {
                if self.stopping {
                    // It is let go of: the process ends, and the next one takes over what it held.
                    self.unclosed.push(format!("{at} {error}"));
                    self.slots.remove(&space);
                    return;
                }
                slot.phase =
                    Phase::Unclosed { entry: entry.clone(), lane, ended: *ended, idle, until: retry };
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
    threshold: Threshold,
}

impl<O: OpenLane> Opening<O> {
    async fn run(self, late: impl Fn()) -> Event {
        let Self { opener, entry, room, threshold } = self;
        let place = tokio::select! {
            biased;
            () = threshold.asked() => return Event::Unbegun,
            place = room.acquire_owned() => place,
        };
        // A task of its own, so that a lane that panics is a lane that failed.
        let opening = tokio::spawn(async move { opener.open(&entry, &threshold).await });
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
mod tests;
