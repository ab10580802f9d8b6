//! Model: callouts that issue to one nonce at once, a retirement of the actor that ends in between, and whoever resolves,
//! every step interleaved with every other, each crashing or losing an answer anywhere. A write whose answer is lost lands
//! at once, later, or never.
//!
//! A connect decides by the product's own function on the accepted row. What is proved is in the words of
//! [`ONE_HOLDER`], [`SIGNED_IS_HELD`], [`NOTHING_AFTER_RETIREMENT`] and [`COMES_BACK`].

use cotal_wire::{
    Generation, LifecycleUid, Principal, SpaceToken,
    rows::{AcceptedRow, AttemptState, IssuedAuthorityRef},
};
use stateright::{Checker, Model, Property};

use super::{
    retire::retirement_step,
    user_caller::{CallerStep, UserCaller, caller_step},
};

/// Of what was issued to one nonce, at most one resolves once nobody is at work.
const ONE_HOLDER: &str = "one nonce holds one issuance";
/// A connect is signed no other generation than its nonce holds.
const SIGNED_IS_HELD: &str = "what is signed is what the accepted row names";
/// The gate is frozen first, and connects look at it again before they are answered.
const NOTHING_AFTER_RETIREMENT: &str = "nothing that was answered is active once the retirement has ended";
/// A nonce whose connects were cut off anywhere connects again, unless its actor has ended.
const COMES_BACK: &str = "a nonce that was cut off connects again";

fn caller() -> UserCaller {
    UserCaller {
        principal: Principal::parse_key("local.a").unwrap(),
        uid: LifecycleUid::parse(&"u".repeat(26)).unwrap(),
        conn_id: cotal_wire::ConnId::parse("inbox-nonce-1").unwrap(),
    }
}

fn space() -> SpaceToken {
    SpaceToken::parse("demo").unwrap()
}

fn authority(generation: usize) -> IssuedAuthorityRef {
    let caller = caller();
    IssuedAuthorityRef {
        space: space(),
        principal: caller.principal,
        uid: caller.uid,
        generation: Generation::parse(&format!("{generation:032x}")).unwrap(),
    }
}

/// Who takes part.
struct Issuing {
    connects: usize,
    /// Whether the actor is retired meanwhile.
    retirement: bool,
    /// How often a connect is cut off, or loses an answer, and comes back.
    mishaps: u8,
    /// What is not conditional that must be.
    broken: Option<Broken>,
}

/// A rule that a counter-model breaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// An activation is written over whatever the attempt says by then.
    Activation,
    /// An acceptance is written over another.
    Acceptance,
}

/// What one generation has in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Issuance {
    attempt: Option<AttemptState>,
    /// How often the attempt was written: what an activation is pinned to.
    revision: u8,
    indexed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// It reads the accepted row.
    Start,
    /// Its evidence is there.
    Staging,
    /// Its attempt is prepared, at this revision.
    Prepared(u8),
    /// Its index is there.
    Staged(u8),
    Released,
    /// It retires what it issued, because the nonce was taken.
    Losing,
    /// It holds this generation, and looks at the gate again.
    Held(usize),
    Answered(usize),
    Denied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Retirement {
    /// Not begun.
    Idle,
    /// The gate is frozen.
    Frozen,
    /// It goes through what was indexed when it looked.
    Sweeping,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// By generation.
    issued: Vec<Issuance>,
    accepted: Option<usize>,
    /// Where each connect is, and the generation that it would issue.
    connects: Vec<(At, usize)>,
    retirement: Retirement,
    to_sweep: Vec<usize>,
    swept: Vec<usize>,
    mishaps: u8,
    /// Activations and acceptances that were sent, and whose answer nobody waits for any more.
    late: Vec<Late>,
    /// Ghost: a connect was answered with another generation than the accepted row's.
    foreign_answer: bool,
    /// Ghost: a connect was answered after the retirement had ended.
    late_answer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Late {
    Activate(usize, u8),
    Accept(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Step(usize),
    /// The next write of this connect is sent, and its answer lost: the connect is denied.
    Lose(usize),
    /// The connect is gone; its client comes back under the same nonce.
    Crash(usize),
    /// A write that was sent lands.
    Lands(usize),
    Freeze,
    Look,
    Sweep,
    End,
}

impl World {
    fn activate(&mut self, generation: usize, pinned: u8, broken: Option<Broken>) -> bool {
        let issuance = &mut self.issued[generation];
        let lands = issuance.revision == pinned || broken == Some(Broken::Activation);
        if lands {
            issuance.attempt = Some(AttemptState::Active);
            issuance.revision += 1;
        }
        lands
    }

    fn accept(&mut self, generation: usize, broken: Option<Broken>) -> bool {
        let lands = self.accepted.is_none() || broken == Some(Broken::Acceptance);
        if lands {
            self.accepted = Some(generation);
        }
        lands
    }

    fn retire(&mut self, generation: usize) {
        let issuance = &mut self.issued[generation];
        if let Some(next) = issuance.attempt.and_then(retirement_step) {
            issuance.attempt = Some(next);
            issuance.revision += 1;
        }
    }

    fn is_active(&self, generation: usize) -> bool {
        self.issued[generation].attempt == Some(AttemptState::Active)
    }

    /// Contract 03 §H.4: a source whose gate a retirement holds is not live.
    fn resolves(&self, generation: usize) -> bool {
        self.is_active(generation) && self.retirement == Retirement::Idle
    }

    fn come_back(&mut self, connect: usize) {
        let fresh = self.issued.len();
        self.issued.push(Issuance::default());
        self.connects[connect] = (At::Start, fresh);
    }

    fn step(&mut self, connect: usize, broken: Option<Broken>) {
        let (at, own) = self.connects[connect];
        let next = match at {
            At::Start => {
                let row = self.accepted.map(|held| AcceptedRow { authority: authority(held) });
                match caller_step(&space(), &caller(), row) {
                    Ok(CallerStep::Issue) => At::Staging,
                    Ok(CallerStep::Confirm(held)) => {
                        let held = (0..self.issued.len()).find(|nth| authority(*nth) == held).unwrap();
                        if self.is_active(held) { At::Held(held) } else { At::Denied }
                    }
                    Err(_) => At::Denied,
                }
            }
            At::Staging => {
                self.issued[own] =
                    Issuance { attempt: Some(AttemptState::Prepared), revision: 1, indexed: false };
                At::Prepared(1)
            }
            At::Prepared(revision) => {
                self.issued[own].indexed = true;
                At::Staged(revision)
            }
            At::Staged(revision) if self.activate(own, revision, broken) => At::Released,
            At::Released if self.accept(own, broken) => At::Held(own),
            At::Staged(_) | At::Released => At::Losing,
            At::Losing => {
                self.retire(own);
                At::Denied
            }
            // The deny-new read after the record: a frozen gate has a head that is not active.
            At::Held(_) if self.retirement != Retirement::Idle => At::Denied,
            At::Held(held) => {
                self.foreign_answer |= self.accepted != Some(held);
                self.late_answer |= self.retirement == Retirement::Ended;
                At::Answered(held)
            }
            At::Answered(_) | At::Denied => at,
        };
        self.connects[connect].0 = next;
    }
}

impl Model for Issuing {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            issued: vec![Issuance::default(); self.connects],
            accepted: None,
            connects: (0..self.connects).map(|nth| (At::Start, nth)).collect(),
            retirement: Retirement::Idle,
            to_sweep: Vec::new(),
            swept: Vec::new(),
            mishaps: self.mishaps,
            late: Vec::new(),
            foreign_answer: false,
            late_answer: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        for (nth, (at, _)) in world.connects.iter().enumerate() {
            if !matches!(at, At::Answered(_) | At::Denied) {
                actions.push(Act::Step(nth));
            }
            if world.mishaps > 0 {
                actions.push(Act::Crash(nth));
                if matches!(at, At::Staged(_) | At::Released) {
                    actions.push(Act::Lose(nth));
                }
            }
        }
        actions.extend((0..world.late.len()).map(Act::Lands));
        if self.retirement {
            match world.retirement {
                Retirement::Idle => actions.push(Act::Freeze),
                Retirement::Frozen => actions.push(Act::Look),
                Retirement::Sweeping if world.to_sweep.is_empty() => actions.push(Act::End),
                Retirement::Sweeping => actions.push(Act::Sweep),
                Retirement::Ended => {}
            }
        }
    }

    fn next_state(&self, world: &World, action: Act) -> Option<World> {
        let mut next = world.clone();
        match action {
            Act::Step(connect) => next.step(connect, self.broken),
            Act::Crash(connect) => {
                next.mishaps -= 1;
                next.come_back(connect);
            }
            Act::Lose(connect) => {
                next.mishaps -= 1;
                let (at, own) = next.connects[connect];
                next.late.push(match at {
                    At::Staged(revision) => Late::Activate(own, revision),
                    _ => Late::Accept(own),
                });
                next.connects[connect].0 = At::Denied;
            }
            Act::Lands(nth) => {
                match next.late.remove(nth) {
                    Late::Activate(generation, pinned) => next.activate(generation, pinned, self.broken),
                    Late::Accept(generation) => next.accept(generation, self.broken),
                };
            }
            Act::Freeze => next.retirement = Retirement::Frozen,
            Act::Look => {
                next.to_sweep = (0..next.issued.len()).filter(|nth| next.issued[*nth].indexed).collect();
                next.retirement = Retirement::Sweeping;
            }
            Act::Sweep => {
                let swept = next.to_sweep.pop()?;
                next.retire(swept);
                next.swept.push(swept);
            }
            Act::End => next.retirement = Retirement::Ended,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, world: &World| {
                // A connect that was cut off behind its activation leaves one that nobody was told of: it is no holder.
                let answered = world.connects.iter().filter_map(|(at, _)| match at {
                    At::Answered(held) => Some(*held),
                    _ => None,
                });
                let mut held: Vec<_> = answered.filter(|held| world.resolves(*held)).collect();
                held.dedup();
                held.len() <= 1
            }),
            Property::always(SIGNED_IS_HELD, |_, world: &World| !world.foreign_answer),
            Property::always(NOTHING_AFTER_RETIREMENT, |_, world: &World| {
                let answered = world.connects.iter().filter_map(|(at, _)| match at {
                    At::Answered(held) => Some(held),
                    _ => None,
                });
                let ended = world.retirement == Retirement::Ended;
                !world.late_answer
                    && (!ended
                        || answered.chain(&world.swept).all(|generation| !world.is_active(*generation)))
            }),
            Property::always(COMES_BACK, |_, world: &World| {
                let gone = world.accepted.is_some_and(|held| !world.is_active(held));
                // Whoever holds the nonce is active for as long as its actor is there.
                world.retirement != Retirement::Idle || !gone
            }),
            Property::sometimes("two connects share one issuance", |_, world: &World| {
                let answered = world.connects.iter().filter(|(at, _)| matches!(at, At::Answered(_)));
                answered.count() > 1
            }),
            Property::sometimes("a connect finds its nonce taken", |_, world: &World| {
                world.connects.iter().any(|(at, _)| *at == At::Losing)
            }),
        ]
    }
}

fn checked(model: Issuing) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    eprintln!("issuing: {} states", checker.unique_state_count());
}

#[test]
fn connects_at_once_under_one_nonce_hold_one_issuance_whatever_is_lost() {
    checked(Issuing { connects: 3, retirement: false, mishaps: 1, broken: None });
    checked(Issuing { connects: 2, retirement: false, mishaps: 2, broken: None });
}

#[test]
fn a_retirement_in_between_leaves_nothing_that_resolves() {
    checked(Issuing { connects: 2, retirement: true, mishaps: 1, broken: None });
}

/// Why an activation is pinned to the revision at which it was prepared.
#[test]
fn an_activation_over_whatever_stands_would_revive_what_a_retirement_ended() {
    let model = Issuing { connects: 2, retirement: true, mishaps: 1, broken: Some(Broken::Activation) };
    let checker = model.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery(NOTHING_AFTER_RETIREMENT).is_some());
}

/// Why an accepted row is created and never written over.
#[test]
fn an_acceptance_over_another_would_leave_two_holders_of_one_nonce() {
    let model = Issuing { connects: 2, retirement: false, mishaps: 0, broken: Some(Broken::Acceptance) };
    let checker = model.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery(ONE_HOLDER).is_some());
}
