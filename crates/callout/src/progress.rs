//! Where one request is, for how long, and whether it should still go on.
//!
//! The work of a request moves through its steps; the deadline may pass meanwhile and be answered by somebody else.
//! Both look at the same [`Progress`]: the work asks it before each step, the deadline reads the step that it cut.

use std::time::Duration;

use cotal_wire::{Actor, DerivedOwner};
use parking_lot::Mutex;
use tokio::time::Instant;

/// What a request's time is spent on (contract 04 §8.7, 12 D4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Waiting for a slot.
    Queue,
    /// Opening the request, checking its provenance and its bearer.
    Verify,
    /// The actor's row and credential, and the issuance record.
    Ledger,
    /// Building the permissions.
    Policy,
    /// Signing and sealing.
    Sign,
}

impl Step {
    /// Every step, in the log line's order.
    pub const ALL: [Self; 5] = [Self::Queue, Self::Verify, Self::Ledger, Self::Policy, Self::Sign];

    /// The step's name in `at=` and before `_ms`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Verify => "verify",
            Self::Ledger => "ledger",
            Self::Policy => "policy",
            Self::Sign => "sign",
        }
    }
}

/// Time spent in each step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes([Duration; 5]);

impl StepTimes {
    /// Time spent in `step`.
    pub const fn of(&self, step: Step) -> Duration {
        self.0[step as usize]
    }

    /// Adds to `step`.
    pub fn add(&mut self, step: Step, spent: Duration) {
        self.0[step as usize] += spent;
    }
}

/// The deadline has passed: stop here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled;

/// One request's progress, shared by its work and its deadline.
#[derive(Debug)]
pub struct Progress {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    step: Step,
    since: Instant,
    times: StepTimes,
    principal: Option<(DerivedOwner, Actor)>,
    cancelled: bool,
}

/// What a log line says of a request's progress.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The step that it is in.
    pub step: Step,
    /// Time spent in each, the current one included.
    pub times: StepTimes,
    /// Whose connect it is, once a signature has said so.
    pub principal: Option<(DerivedOwner, Actor)>,
}

impl Progress {
    /// A request that was received at `received`, waiting for a slot since.
    pub const fn new(received: Instant) -> Self {
        let state = State {
            step: Step::Queue,
            since: received,
            times: StepTimes([Duration::ZERO; 5]),
            principal: None,
            cancelled: false,
        };
        Self { state: Mutex::new(state) }
    }

    /// Goes on to `step`, unless the deadline has passed.
    pub fn enter(&self, step: Step) -> Result<(), Cancelled> {
        let mut state = self.state.lock();
        if state.cancelled {
            return Err(Cancelled);
        }
        state.turn_to(step, Instant::now());
        Ok(())
    }

    /// Remembers whose connect it is.
    pub fn name(&self, owner: &DerivedOwner, actor: &Actor) {
        self.state.lock().principal = Some((owner.clone(), actor.clone()));
    }

    /// Stops the work at its next step and says which one it was in.
    pub fn cancel(&self) -> Step {
        let mut state = self.state.lock();
        state.cancelled = true;
        state.step
    }

    /// Turns to `step` whether or not the work was stopped: the denial of a stopped request is signed too.
    pub fn turn(&self, step: Step) {
        self.state.lock().turn_to(step, Instant::now());
    }

    /// What has been spent so far.
    pub fn observe(&self) -> Observed {
        let state = self.state.lock();
        let mut times = state.times;
        times.add(state.step, state.since.elapsed());
        Observed { step: state.step, times, principal: state.principal.clone() }
    }
}

impl State {
    fn turn_to(&mut self, step: Step, now: Instant) {
        self.times.add(self.step, now.saturating_duration_since(self.since));
        self.step = step;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_request_enters_no_further_step_and_names_the_one_it_was_in() {
        let progress = Progress::new(Instant::now());
        progress.enter(Step::Verify).unwrap();
        progress.enter(Step::Ledger).unwrap();
        assert_eq!(progress.cancel(), Step::Ledger);
        assert_eq!(progress.enter(Step::Policy), Err(Cancelled));
        assert_eq!(progress.observe().step, Step::Ledger);
    }

    #[test]
    fn a_step_that_is_entered_twice_adds_up() {
        let mut times = StepTimes::default();
        times.add(Step::Sign, Duration::from_millis(2));
        times.add(Step::Sign, Duration::from_millis(3));
        assert_eq!(times.of(Step::Sign), Duration::from_millis(5));
        assert_eq!(times.of(Step::Queue), Duration::ZERO);
    }
}
