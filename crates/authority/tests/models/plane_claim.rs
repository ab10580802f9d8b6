//! Two processes that open, scan, close and crash over one claim row, with lost races, writes whose answer is lost and
//! that land late, an unreachable release, and every answer of the oracle (contract 03 §E).
//!
//! What the product decides is decided by the product's own functions. The model adds what surrounds them: the row, the
//! broker's connections, and what each process remembers.

use std::{sync::LazyLock, time::Instant};

use cotal_authority::{
    claim_oracle::{ClaimObservation, ClaimTuples, Verdict},
    plane_claim::{
        ClaimRefusal,
        decide::{
            Claimant, Found, OpenStep, ReleaseStep, decide_held, decide_open, decide_reclaim, decide_release,
        },
    },
};
use cotal_wire::{
    Nkey, Revision,
    rows::{ClaimState, PlaneClaim, PlaneTuple},
};
use stateright::{Checker, Model, Property};

const PROCESSES: usize = 2;
/// How often each process may open.
const OPENINGS: usize = 2;
const ATTEMPTS: u8 = 2;

const ONE_BELIEVES: &str =
    "at most one process believes it holds the claim while its scan result can be used";
const NOT_GIVEN_BACK: &str = "a claim is not given back while a result under it is used";

/// A claim row, by what tells claims apart. An opening stands for its claim id and its two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    opening: u8,
    generation: u8,
    released: bool,
}

/// A write pinned to the revision that was read; 0 creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Write {
    row: Row,
    over: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Scan {
    Idle,
    /// The guard before it has passed.
    Guarded,
    /// It was read through live connections, and the guard after it is still to come.
    Read,
    /// The guard after it has read the row, which was this claim's or not; the answer is on its way.
    Answered(bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// Not running, closed, refused or crashed: nothing is remembered.
    Down,
    Reading {
        attempt: u8,
    },
    Asking {
        attempt: u8,
        held: Row,
        over: u8,
    },
    Writing {
        attempt: u8,
        write: Write,
    },
    Holding {
        own: Row,
        fenced: bool,
        scan: Scan,
    },
    ReleaseReading {
        own: Row,
    },
    ReleaseWriting {
        own: Row,
        write: Write,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    row: Option<Row>,
    revision: u8,
    phases: [Phase; PROCESSES],
    /// How often each process has opened.
    opened: [u8; PROCESSES],
    /// Whether the broker still has each opening's ledger and records connection.
    alive: [[bool; 2]; PROCESSES * OPENINGS],
    /// Whether a barrier of each process works with what its scan found.
    using: [bool; PROCESSES],
    /// Sent writes without an answer that have not arrived yet.
    late: Vec<Write>,
    event: Option<Event>,
}

/// What the last step came to, where a property wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    /// A result was used to its end.
    Used,
    /// What used a result was refused at its next step.
    Refused,
    Discarded,
    Retaken,
    Reclaimed,
    Concurrent,
    FoundReleased,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Open(usize),
    Read(usize),
    /// The oracle's verdicts on the ledger and the records connection, and whether its sweep was complete.
    Hear(usize, Verdict, Verdict, bool),
    /// The answer is about other connections.
    HearForeign(usize),
    /// The write in hand arrives, and its answer comes.
    Write(usize),
    /// The write in hand is sent, and its answer is lost; it arrives now, or later, or never.
    WriteUnanswered(usize),
    /// The write in hand is not sent: the process dies before.
    Crash(usize),
    GuardBefore(usize),
    ReadRows(usize),
    GuardAfter(usize),
    /// The answer of the guard after a scan arrives.
    Decide(usize),
    /// What uses a result ends, or is refused at its next step by the guard that asks nobody.
    Use(usize),
    Fence(usize),
    Close(usize),
    ReadRelease(usize),
    /// A late write arrives.
    Arrive(usize),
    /// The broker ends one connection, or notices that it has ended.
    Drop(usize, usize),
}

struct Claims {
    /// Whether the oracle may call a live connection gone: what the whole claim rests upon.
    lying_oracle: bool,
    /// Whether a close waits for what uses a result before it gives the claim back.
    close_waits: bool,
}

// === what the product sees of the model ===

fn claimant(opening: u8) -> &'static Claimant {
    static CLAIMANTS: LazyLock<Vec<Claimant>> = LazyLock::new(|| {
        let user = Nkey::parse(&format!("U{}", "A".repeat(55))).unwrap();
        let tuple = |opening, which| PlaneTuple::new("N", 2 * opening + 1 + which, &user).unwrap();
        let claimant = |opening: u64| Claimant {
            claim_id: opening.to_string(),
            ledger: tuple(opening, 0),
            records: tuple(opening, 1),
            opened_at: "then".to_owned(),
        };
        (0..4).map(claimant).collect()
    });
    &CLAIMANTS[usize::from(opening)]
}

fn full(row: Row) -> PlaneClaim {
    let Claimant { claim_id, ledger, records, opened_at } = claimant(row.opening).clone();
    let state = if row.released { ClaimState::Released } else { ClaimState::Held };
    PlaneClaim { generation: row.generation.into(), claim_id, state, ledger, records, opened_at }
}

fn compact(row: &PlaneClaim) -> Row {
    Row {
        opening: u8::try_from((row.ledger.cid() - 1) / 2).unwrap(),
        generation: u8::try_from(row.generation).unwrap(),
        released: row.state == ClaimState::Released,
    }
}

// === impl State ===

impl State {
    fn found(&self) -> Found {
        match self.row {
            None => Found::Absent,
            Some(row) => Found::Row { row: full(row), revision: Revision(self.revision.into()) },
        }
    }

    fn opening(&self, process: usize) -> u8 {
        u8::try_from(process * OPENINGS).unwrap() + self.opened[process] - 1
    }

    fn connections(&mut self, process: usize) -> &mut [bool; 2] {
        let opening = usize::from(self.opening(process));
        &mut self.alive[opening]
    }

    /// Whether the process can still scan: it holds, is not fenced, and both its connections live.
    fn scans(&self, process: usize) -> bool {
        matches!(self.phases[process], Phase::Holding { fenced: false, .. })
            && self.alive[usize::from(self.opening(process))] == [true, true]
    }

    /// Whether the process believes that it holds the claim while a result of its scans can be used: what uses it was not
    /// refused yet, and its connections live. When one has ended the process learns of it, and is fenced; until then it
    /// is one that was suspended, whose writes are pinned to what it read, and whose evictions ask for the row.
    fn believes_and_uses(&self, process: usize) -> bool {
        self.using[process] && self.scans(process)
    }

    /// A write arrives at the store. Whether it was stored.
    fn arrive(&mut self, write: Write) -> bool {
        if write.over != self.revision {
            return false;
        }
        if let Some(before) = self.row.filter(|before| before.opening != write.row.opening) {
            self.event = Some(if before.released { Event::Retaken } else { Event::Reclaimed });
        }
        self.row = Some(write.row);
        self.revision += 1;
        true
    }

    /// The process is down. Its candidates end when the broker says so.
    fn refuse(&mut self, process: usize, reason: ClaimRefusal) {
        if reason == ClaimRefusal::Concurrent {
            self.event = Some(Event::Concurrent);
        }
        self.phases[process] = Phase::Down;
    }

    /// Forgets what can have no effect any more, so that states that differ in it alone are one.
    fn settle(&mut self) {
        let revision = self.revision;
        self.late.retain(|write| write.over == revision);
        for opening in 0..self.alive.len() {
            let process = opening / OPENINGS;
            let current =
                self.phases[process] != Phase::Down && usize::from(self.opening(process)) == opening;
            let pinned = |row: &Row| usize::from(row.opening) == opening && !row.released;
            let asked =
                self.phases.iter().any(|phase| matches!(phase, Phase::Asking { held, .. } if pinned(held)));
            if !(current
                || asked
                || self.row.iter().any(pinned)
                || self.late.iter().any(|late| pinned(&late.row)))
            {
                self.alive[opening] = [false, false];
            }
        }
    }

    fn lost_race(&mut self, process: usize, attempt: u8) {
        if attempt == ATTEMPTS {
            self.refuse(process, ClaimRefusal::Concurrent);
        } else {
            self.phases[process] = Phase::Reading { attempt: attempt + 1 };
        }
    }

    fn decide_to_open(&mut self, process: usize, attempt: u8) {
        let read = |over: Revision| u8::try_from(over.0).unwrap();
        match decide_open(&self.found(), claimant(self.opening(process))) {
            OpenStep::Create(row) => {
                self.phases[process] =
                    Phase::Writing { attempt, write: Write { row: compact(&row), over: 0 } };
            }
            OpenStep::Take { row, over } => {
                self.phases[process] =
                    Phase::Writing { attempt, write: Write { row: compact(&row), over: read(over) } };
            }
            OpenStep::Ask { held, over } => {
                self.phases[process] = Phase::Asking { attempt, held: compact(&held), over: read(over) };
            }
            OpenStep::Refuse(reason) => self.refuse(process, reason),
        }
    }

    fn hear(&mut self, process: usize, ledger: Verdict, records: Verdict, complete: bool, foreign: bool) {
        let Phase::Asking { attempt, held, over } = self.phases[process] else { return };
        let asked = ClaimTuples::pinned_by(&full(held));
        let mine = ClaimTuples::pinned_by(&full(Row { opening: self.opening(process), ..held }));
        let seen = ClaimObservation {
            tuples: if foreign { mine } else { asked.clone() },
            ledger,
            records,
            sweep_complete: complete,
            note: None,
        };
        match decide_reclaim(&full(held), &asked, &seen, claimant(self.opening(process))) {
            Ok(row) => {
                self.phases[process] = Phase::Writing { attempt, write: Write { row: compact(&row), over } };
            }
            Err(reason) => self.refuse(process, reason),
        }
    }

    /// The write in hand, if the process has one.
    fn in_hand(&self, process: usize) -> Option<Write> {
        match self.phases[process] {
            Phase::Writing { write, .. } | Phase::ReleaseWriting { write, .. } => Some(write),
            _ => None,
        }
    }

    fn answered(&mut self, process: usize) {
        match self.phases[process] {
            Phase::Writing { attempt, write } => {
                if self.arrive(write) {
                    self.phases[process] = Phase::Holding { own: write.row, fenced: false, scan: Scan::Idle };
                } else {
                    self.lost_race(process, attempt);
                }
            }
            Phase::ReleaseWriting { own, write } => {
                self.phases[process] = if self.arrive(write) {
                    Phase::Down
                } else {
                    // Unreachable, and so retried.
                    Phase::ReleaseReading { own }
                };
            }
            _ => {}
        }
    }

    fn unanswered(&mut self, process: usize) {
        let Some(write) = self.in_hand(process) else { return };
        self.late.push(write);
        self.late
            .sort_by_key(|write| (write.row.opening, write.row.generation, write.row.released, write.over));
        self.late.dedup();
        match self.phases[process] {
            Phase::Writing { .. } => self.phases[process] = Phase::Down,
            Phase::ReleaseWriting { own, .. } => self.phases[process] = Phase::ReleaseReading { own },
            _ => {}
        }
    }

    fn decide_to_release(&mut self, process: usize, own: Row) {
        match decide_release(&self.found(), &full(own)) {
            ReleaseStep::Done => {
                self.event = Some(Event::FoundReleased);
                self.phases[process] = Phase::Down;
            }
            ReleaseStep::Write { row, over } => {
                let write = Write { row: compact(&row), over: u8::try_from(over.0).unwrap() };
                self.phases[process] = Phase::ReleaseWriting { own, write };
            }
            ReleaseStep::Lost => self.phases[process] = Phase::Down,
        }
    }

    fn guard(&mut self, process: usize) {
        let Phase::Holding { own, fenced: false, scan } = self.phases[process] else { return };
        let held = decide_held(&self.found(), &full(own));
        let next = match (scan, held) {
            (Scan::Idle, true) => Scan::Guarded,
            (Scan::Read, held) => Scan::Answered(held),
            (scan, _) => scan,
        };
        self.phases[process] = Phase::Holding { own, fenced: false, scan: next };
    }

    /// The answer of the guard is there. What happened while it was on its way does not change it: only a fence does.
    fn decide_to_use(&mut self, process: usize) {
        let Phase::Holding { own, fenced, scan: Scan::Answered(held) } = self.phases[process] else { return };
        if held && !fenced {
            self.using[process] = true;
        } else {
            self.event = Some(Event::Discarded);
        }
        self.phases[process] = Phase::Holding { own, fenced, scan: Scan::Idle };
    }

    fn end_use(&mut self, process: usize) {
        self.using[process] = false;
        let goes_on = matches!(self.phases[process], Phase::Holding { fenced: false, .. });
        self.event = Some(if goes_on { Event::Used } else { Event::Refused });
    }
}

// === impl Model ===

impl Model for Claims {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            row: None,
            revision: 0,
            phases: [Phase::Down; PROCESSES],
            opened: [0; PROCESSES],
            alive: [[false; 2]; PROCESSES * OPENINGS],
            using: [false; PROCESSES],
            late: Vec::new(),
            event: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for process in 0..PROCESSES {
            if state.using[process] {
                actions.push(Action::Use(process));
            }
            match state.phases[process] {
                Phase::Down => {
                    if usize::from(state.opened[process]) < OPENINGS {
                        actions.push(Action::Open(process));
                    }
                    continue;
                }
                Phase::Reading { .. } => actions.push(Action::Read(process)),
                Phase::Asking { held, .. } => {
                    let verdicts = state.alive[usize::from(held.opening)].map(|alive| {
                        let mut may_say =
                            vec![Verdict::Unknown, if alive { Verdict::Live } else { Verdict::Gone }];
                        if alive && self.lying_oracle {
                            may_say.push(Verdict::Gone);
                        }
                        may_say
                    });
                    for ledger in &verdicts[0] {
                        for records in &verdicts[1] {
                            actions.push(Action::Hear(process, *ledger, *records, true));
                        }
                    }
                    // A sweep that missed a server calls gone what it did not see.
                    actions.push(Action::Hear(process, Verdict::Gone, Verdict::Gone, false));
                    actions.push(Action::HearForeign(process));
                }
                Phase::Writing { .. } | Phase::ReleaseWriting { .. } => {
                    actions.extend([Action::Write(process), Action::WriteUnanswered(process)]);
                }
                Phase::Holding { scan, fenced, .. } => {
                    actions.extend([Action::Close(process)]);
                    if state.alive[usize::from(state.opening(process))] != [true, true] && !fenced {
                        actions.push(Action::Fence(process));
                    }
                    actions.push(match scan {
                        Scan::Idle => Action::GuardBefore(process),
                        Scan::Guarded => Action::ReadRows(process),
                        Scan::Read => Action::GuardAfter(process),
                        Scan::Answered(_) => Action::Decide(process),
                    });
                }
                Phase::ReleaseReading { .. } if self.close_waits && state.using[process] => {}
                Phase::ReleaseReading { .. } => actions.push(Action::ReadRelease(process)),
            }
            actions.push(Action::Crash(process));
        }
        actions.extend((0..state.late.len()).map(Action::Arrive));
        for (opening, alive) in state.alive.iter().enumerate() {
            actions.extend((0..2).filter(|which| alive[*which]).map(|which| Action::Drop(opening, which)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.event = None;
        match action {
            Action::Open(process) => {
                state.opened[process] += 1;
                *state.connections(process) = [true, true];
                state.phases[process] = Phase::Reading { attempt: 1 };
            }
            Action::Read(process) => {
                let Phase::Reading { attempt } = state.phases[process] else { return None };
                state.decide_to_open(process, attempt);
            }
            Action::Hear(process, ledger, records, complete) => {
                state.hear(process, ledger, records, complete, false);
            }
            Action::HearForeign(process) => state.hear(process, Verdict::Gone, Verdict::Gone, true, true),
            Action::Write(process) => state.answered(process),
            Action::WriteUnanswered(process) => state.unanswered(process),
            Action::Crash(process) => {
                state.phases[process] = Phase::Down;
                state.using[process] = false;
            }
            Action::Decide(process) => state.decide_to_use(process),
            Action::Use(process) => state.end_use(process),
            Action::GuardBefore(process) | Action::GuardAfter(process) => state.guard(process),
            Action::ReadRows(process) => {
                if !state.scans(process) {
                    return None;
                }
                if let Phase::Holding { scan, .. } = &mut state.phases[process] {
                    *scan = Scan::Read;
                }
            }
            Action::Fence(process) => {
                if let Phase::Holding { fenced, .. } = &mut state.phases[process] {
                    *fenced = true;
                }
                *state.connections(process) = [false, false];
            }
            Action::Close(process) => {
                let Phase::Holding { own, .. } = state.phases[process] else { return None };
                *state.connections(process) = [false, false];
                state.phases[process] = Phase::ReleaseReading { own };
            }
            Action::ReadRelease(process) => {
                let Phase::ReleaseReading { own } = state.phases[process] else { return None };
                state.decide_to_release(process, own);
            }
            Action::Arrive(late) => {
                let write = state.late.remove(late);
                state.arrive(write);
            }
            Action::Drop(opening, which) => state.alive[opening][which] = false,
        }
        state.settle();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one process at most can scan", |_, state: &State| {
                (0..PROCESSES).filter(|process| state.scans(*process)).count() <= 1
            }),
            Property::always("who can scan holds the row", |_, state: &State| {
                (0..PROCESSES).all(|process| match state.phases[process] {
                    Phase::Holding { own, .. } if state.scans(process) => state.row == Some(own),
                    _ => true,
                })
            }),
            Property::always(ONE_BELIEVES, |_, state: &State| {
                (0..PROCESSES).filter(|process| state.believes_and_uses(*process)).count() <= 1
                    && (0..PROCESSES).all(|process| {
                        !state.believes_and_uses(process)
                            || state.row.is_some_and(|row| row.opening == state.opening(process))
                    })
            }),
            Property::always(NOT_GIVEN_BACK, |_, state: &State| {
                (0..PROCESSES).all(|process| {
                    !state.using[process]
                        || !state.row.is_some_and(|row| row.released && row.opening == state.opening(process))
                })
            }),
            Property::sometimes("a scan is used", |_, state: &State| state.event == Some(Event::Used)),
            Property::sometimes("a use is refused half way", |_, state: &State| {
                state.event == Some(Event::Refused)
            }),
            Property::sometimes("a use outlives its claim, without its connections", |_, state: &State| {
                (0..PROCESSES).any(|process| {
                    state.using[process]
                        && state.row.is_some_and(|row| !row.released && row.opening != state.opening(process))
                })
            }),
            Property::sometimes("a scan is discarded", |_, state: &State| {
                state.event == Some(Event::Discarded)
            }),
            Property::sometimes("a released claim is taken", |_, state: &State| {
                state.event == Some(Event::Retaken)
            }),
            Property::sometimes("a dead holder's claim is taken over", |_, state: &State| {
                state.event == Some(Event::Reclaimed)
            }),
            Property::sometimes("two races are lost", |_, state: &State| {
                state.event == Some(Event::Concurrent)
            }),
            Property::sometimes("a release is found done", |_, state: &State| {
                state.event == Some(Event::FoundReleased)
            }),
        ]
    }
}

#[test]
fn whatever_crashes_and_whatever_is_lost_one_process_owns_the_plane() {
    let started = Instant::now();
    let checker = Claims { lying_oracle: false, close_waits: true }.checker().threads(2).spawn_bfs().join();
    println!(
        "plane claim: {} states, {} of them different, depth {}, in {:?}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed()
    );
    assert!(checker.is_done());
    checker.assert_properties();
}

/// The claim rests on the oracle alone: without its truth the checker finds two owners.
#[test]
fn an_oracle_that_calls_the_living_gone_makes_two_owners() {
    let checker = Claims { lying_oracle: true, close_waits: true }
        .checker()
        .finish_when(stateright::HasDiscoveries::AnyOf(["one process at most can scan"].into()))
        .spawn_bfs()
        .join();
    assert!(checker.discovery("one process at most can scan").is_some());
}

/// Why a close waits for the barriers that run.
#[test]
fn a_close_that_does_not_wait_gives_back_a_claim_under_which_a_result_is_used() {
    let checker = Claims { lying_oracle: false, close_waits: false }
        .checker()
        .finish_when(stateright::HasDiscoveries::AnyOf([NOT_GIVEN_BACK].into()))
        .spawn_bfs()
        .join();
    assert!(checker.discovery(NOT_GIVEN_BACK).is_some());
}
