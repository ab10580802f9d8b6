//! Model (b): mints, a takeover and a retirement on one incarnation's gate, every step of each interleaved with every
//! step of the others, each crashing anywhere and resumed by its operation id.
//!
//! The barriers decide by the product's own functions, and move the product's own rows. The model's store gives each
//! key a revision, and every write is pinned to one, as the broker's are.
//!
//! What is proved:
//!
//! - A touch never wins at a gate that is not open: so no release follows a freeze.
//! - Once a barrier has contained a generation, no credential that was released under that generation is active.
//! - Once the alias is retired, no released credential of the incarnation is active.
//! - From every state whose gate is frozen, a fresh run of the operation that holds it ends it.

use cotal_wire::{
    CredentialId, LifecycleUid, OpId, Principal, Revision,
    rows::{
        AgentGate, FrontierRecord, GateState, HeadState, HeadStep, LifecycleHead, RetirementIntent,
        TakeoverIntent,
    },
};
use stateright::{Checker, Model, Property};

use crate::{
    barrier::{Sight, require_active_head, require_open_gate},
    retirement_step::{Phase, RetirementRun, RetirementStep, own_frontier},
    takeover_step::{TakeoverRun, TakeoverStep},
};

fn uid() -> LifecycleUid {
    LifecycleUid::parse(&"u".repeat(26)).unwrap()
}

fn principal() -> Principal {
    Principal::parse_key("local.alice").unwrap()
}

fn takeover_op() -> OpId {
    OpId::parse(&"t".repeat(26)).unwrap()
}

fn retirement_op() -> OpId {
    OpId::parse(&"r".repeat(26)).unwrap()
}

fn credential(minter: usize) -> CredentialId {
    CredentialId::parse(&format!("c{minter}")).unwrap()
}

/// Who takes part.
#[derive(Clone)]
struct Barriers {
    /// `true` for a mint that stamps the head, `false` for one that is released by its touch alone.
    minters: Vec<bool>,
    takeover: bool,
    retirement: bool,
    /// How often anybody may crash, be refused an eviction, or run again after a refusal.
    mishaps: u8,
    /// Stamps a root over the head as it stands then, instead of over the one that was read before the mint.
    stamps_over_any_head: bool,
}

// === the store ================================================================================================

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Store {
    gate: (AgentGate, u64),
    head: (LifecycleHead, u64),
    takeover: Option<TakeoverIntent>,
    retirement: Option<RetirementIntent>,
    frontier: Option<FrontierRecord>,
    /// The credential row of each minter.
    rows: Vec<Option<Row>>,
    /// Ghost: the generation under which each minter's credential was released.
    released: Vec<Option<u64>>,
    /// Ghost: the last generation that was contained.
    contained: u64,
    /// Ghost: a touch won at a gate that was not open.
    touched_closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Row {
    Active,
    Revoked,
}

impl Store {
    fn gate(&self) -> Sight<AgentGate> {
        Sight::At(self.gate.0.clone(), Revision(self.gate.1))
    }

    fn head(&self) -> Sight<LifecycleHead> {
        Sight::At(self.head.0.clone(), Revision(self.head.1))
    }

    fn write_gate(&mut self, next: AgentGate, read_at: Revision) -> Option<Sight<AgentGate>> {
        (self.gate.1 == read_at.0).then(|| {
            self.gate = (next, self.gate.1 + 1);
            self.gate()
        })
    }

    fn write_head(&mut self, next: LifecycleHead, read_at: Revision) -> Option<Sight<LifecycleHead>> {
        (self.head.1 == read_at.0).then(|| {
            self.head = (next, self.head.1 + 1);
            self.head()
        })
    }

    fn revoke(&mut self, minter: usize) {
        if let Some(row) = &mut self.rows[minter] {
            *row = Row::Revoked;
        }
    }
}

// === minters ==================================================================================================

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Minter {
    Start,
    HeadRead(Sight<LifecycleHead>),
    Pinned(Sight<LifecycleHead>, u64, u64),
    Staged(Sight<LifecycleHead>, u64, u64),
    Touched(Sight<LifecycleHead>, u64),
    LostRace,
    Over,
}

impl Minter {
    fn step(self, store: &mut Store, me: usize, model: &Barriers) -> Self {
        match self {
            Self::Start => Self::HeadRead(store.head()),
            Self::HeadRead(head) => {
                if store.gate.0.is_open() {
                    Self::Pinned(head, store.gate.1, store.gate.0.generation())
                } else {
                    Self::Over
                }
            }
            Self::Pinned(head, pin, generation) => {
                store.rows[me] = Some(Row::Active);
                Self::Staged(head, pin, generation)
            }
            Self::Staged(head, pin, generation) => {
                if store.gate.1 != pin {
                    return Self::LostRace;
                }
                store.touched_closed |= !store.gate.0.is_open();
                store.gate.1 += 1;
                if model.minters[me] {
                    return Self::Touched(head, generation);
                }
                store.released[me] = Some(generation);
                Self::Over
            }
            Self::Touched(head, generation) => {
                let head = if model.stamps_over_any_head { store.head() } else { head };
                let Sight::At(head, read_at) = head else { return Self::LostRace };
                let Ok(HeadStep::Write(stamped)) = head.stamp_root(&uid(), &credential(me)) else {
                    return Self::LostRace;
                };
                if store.write_head(stamped, read_at).is_none() {
                    return Self::LostRace;
                }
                store.released[me] = Some(generation);
                Self::Over
            }
            Self::LostRace => {
                store.revoke(me);
                Self::Over
            }
            Self::Over => Self::Over,
        }
    }
}

// === barriers =================================================================================================

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Barrier<R> {
    /// Not running: never begun, crashed, or refused.
    Idle,
    HeadRead(Sight<LifecycleHead>),
    GateRead(Sight<LifecycleHead>, Sight<AgentGate>),
    Running(R),
    /// Behind the gate: rows that the scan found and that are not revoked yet.
    Containing(R, Vec<usize>),
    Ended,
}

/// One step of a barrier; `false` when it was refused.
type Stepped<R> = Result<Barrier<R>, ()>;

fn scan<R>(run: R, store: &Store) -> Barrier<R> {
    Barrier::Containing(run, (0..store.rows.len()).filter(|&minter| store.rows[minter].is_some()).collect())
}

fn step_takeover(barrier: Barrier<TakeoverRun>, store: &mut Store) -> Stepped<TakeoverRun> {
    let op = takeover_op();
    let (mut run, intent) = match barrier {
        Barrier::Idle if store.takeover.is_some() => {
            return Ok(Barrier::Running(TakeoverRun::from_gate(Sight::Unread)));
        }
        Barrier::Idle => {
            let head = store.head();
            require_active_head(&head, &uid()).map_err(drop)?;
            return Ok(Barrier::HeadRead(head));
        }
        Barrier::HeadRead(head) => {
            let gate = store.gate();
            require_open_gate(&gate).map_err(drop)?;
            return Ok(Barrier::GateRead(head, gate));
        }
        Barrier::GateRead(head, gate) => {
            if store.head() != head {
                return Err(());
            }
            let intent = TakeoverIntent {
                lifecycle_uid: uid(),
                principal: principal(),
                from_epoch: head.row().ok_or(())?.process_epoch(),
                from_generation: gate.row().ok_or(())?.generation(),
            };
            store.takeover = Some(intent);
            return Ok(Barrier::Running(TakeoverRun::from_gate(gate)));
        }
        Barrier::Containing(mut run, mut rows) => {
            if let Some(row) = rows.pop() {
                store.revoke(row);
                return Ok(Barrier::Containing(run, rows));
            }
            store.contained = store.takeover.as_ref().ok_or(())?.from_generation;
            run.contained();
            return Ok(Barrier::Running(run));
        }
        Barrier::Ended => return Ok(Barrier::Ended),
        Barrier::Running(run) => (run, store.takeover.clone().ok_or(())?),
    };
    match run.next(&op, &intent).map_err(drop)? {
        TakeoverStep::ReadGate => run.gate = store.gate(),
        TakeoverStep::ReadHead => run.head = store.head(),
        TakeoverStep::Freeze(next, at) | TakeoverStep::Reopen(next, at) => match store.write_gate(next, at) {
            Some(at) => run.gate = at,
            None => run.lost_gate(),
        },
        TakeoverStep::Contain => return Ok(scan(run, store)),
        TakeoverStep::AdvanceHead(next, at) => match store.write_head(next, at) {
            Some(at) => {
                run.head = at;
                run.advanced = true;
            }
            None => run.lost = true,
        },
        TakeoverStep::Abort(next, at, _) => {
            let _ = store.write_gate(next, at);
            return Err(());
        }
        TakeoverStep::Done => return Ok(Barrier::Ended),
    }
    Ok(Barrier::Running(run))
}

fn step_retirement(barrier: Barrier<RetirementRun>, store: &mut Store) -> Stepped<RetirementRun> {
    let op = retirement_op();
    let (mut run, intent) = match barrier {
        Barrier::Idle if store.retirement.is_some() => {
            return Ok(Barrier::Running(RetirementRun::from_gate(Sight::Unread)));
        }
        Barrier::Idle => {
            let head = store.head();
            require_active_head(&head, &uid()).map_err(drop)?;
            return Ok(Barrier::HeadRead(head));
        }
        Barrier::HeadRead(head) => {
            let gate = store.gate();
            require_open_gate(&gate).map_err(drop)?;
            return Ok(Barrier::GateRead(head, gate));
        }
        Barrier::GateRead(_, gate) => {
            let from_generation = gate.row().ok_or(())?.generation();
            store.retirement = Some(RetirementIntent {
                lifecycle_uid: uid(),
                principal: principal(),
                from_generation,
                frontier_streams: Vec::new(),
            });
            return Ok(Barrier::Running(RetirementRun::from_gate(gate)));
        }
        Barrier::Containing(mut run, mut rows) => {
            if let Some(row) = rows.pop() {
                store.revoke(row);
                return Ok(Barrier::Containing(run, rows));
            }
            store.contained = store.retirement.as_ref().ok_or(())?.from_generation;
            run.done = Phase::Contained;
            return Ok(Barrier::Running(run));
        }
        Barrier::Ended => return Ok(Barrier::Ended),
        Barrier::Running(run) => (run, store.retirement.clone().ok_or(())?),
    };
    match run.next(&op, &intent).map_err(drop)? {
        RetirementStep::ReadGate => run.gate = store.gate(),
        RetirementStep::ReadHead => run.head = store.head(),
        RetirementStep::Freeze(next, at) | RetirementStep::RetireGate(next, at) => {
            match store.write_gate(next, at) {
                Some(at) => run.gate = at,
                None => run.lost_gate(),
            }
        }
        RetirementStep::BeginHead(next, at) | RetirementStep::CompleteHead(next, at) => {
            run.head = store.write_head(next, at).unwrap_or(Sight::Unread);
        }
        RetirementStep::Contain => return Ok(scan(run, store)),
        // None of these touches what this model is about.
        RetirementStep::Drain | RetirementStep::FenceRepairs | RetirementStep::CleanPools => {
            run.done = Phase::Cleaned;
        }
        RetirementStep::RecordFrontier => {
            let record =
                store.frontier.clone().unwrap_or_else(|| FrontierRecord::new(&uid(), &op, Vec::new()));
            store.frontier = Some(record.clone());
            run.frontier = Some(own_frontier(record, &uid(), &op).map_err(drop)?);
        }
        RetirementStep::ProveFrontier => run.frontier = Some(store.frontier.clone().ok_or(())?),
        RetirementStep::Done => return Ok(Barrier::Ended),
    }
    Ok(Barrier::Running(run))
}

// === the model ================================================================================================

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    store: Store,
    minters: Vec<Minter>,
    takeover: Barrier<TakeoverRun>,
    retirement: Barrier<RetirementRun>,
    mishaps: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Act {
    Mint(usize),
    DropMint(usize),
    TakeOver,
    CrashTakeover,
    Retire,
    CrashRetirement,
}

impl Model for Barriers {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let activation = OpId::parse(&"a".repeat(26)).unwrap();
        let gate = AgentGate::born(&uid(), &activation).reopen(&activation).unwrap();
        let head = LifecycleHead::activated(&principal(), &uid(), "m").unwrap();
        let minters = self.minters.len();
        vec![World {
            store: Store {
                gate: (gate, 1),
                head: (head, 1),
                takeover: None,
                retirement: None,
                frontier: None,
                rows: vec![None; minters],
                released: vec![None; minters],
                contained: 0,
                touched_closed: false,
            },
            minters: vec![Minter::Start; minters],
            takeover: Barrier::Idle,
            retirement: Barrier::Idle,
            mishaps: 0,
        }]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Act>) {
        let spared = state.mishaps < self.mishaps;
        for (minter, at) in state.minters.iter().enumerate() {
            if *at != Minter::Over {
                actions.push(Act::Mint(minter));
                if spared && *at != Minter::Start {
                    actions.push(Act::DropMint(minter));
                }
            }
        }
        if self.takeover && state.takeover != Barrier::Ended {
            actions.push(Act::TakeOver);
            if spared && state.takeover != Barrier::Idle {
                actions.push(Act::CrashTakeover);
            }
        }
        if self.retirement && state.retirement != Barrier::Ended {
            actions.push(Act::Retire);
            if spared && state.retirement != Barrier::Idle {
                actions.push(Act::CrashRetirement);
            }
        }
    }

    fn next_state(&self, last: &World, action: Act) -> Option<World> {
        let mut next = last.clone();
        match action {
            Act::Mint(me) => next.minters[me] = next.minters[me].clone().step(&mut next.store, me, self),
            Act::DropMint(me) => {
                next.minters[me] = Minter::Over;
                next.mishaps += 1;
            }
            Act::CrashTakeover => {
                next.takeover = Barrier::Idle;
                next.mishaps += 1;
            }
            Act::CrashRetirement => {
                next.retirement = Barrier::Idle;
                next.mishaps += 1;
            }
            // Who is refused is asked to run again while there is a mishap left, and gives up after that.
            Act::TakeOver => match step_takeover(next.takeover, &mut next.store) {
                Ok(at) => next.takeover = at,
                Err(()) => next.takeover = refused(&mut next.mishaps, self.mishaps),
            },
            Act::Retire => match step_retirement(next.retirement, &mut next.store) {
                Ok(at) => next.retirement = at,
                Err(()) => next.retirement = refused(&mut next.mishaps, self.mishaps),
            },
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no touch wins at a closed gate", |_, world: &World| {
                !world.store.touched_closed
            }),
            Property::always(
                "what was released before a containment is revoked by it",
                |_, world: &World| {
                    released(&world.store).all(|(generation, row)| {
                        generation > world.store.contained || row == Some(Row::Revoked)
                    })
                },
            ),
            Property::always("nothing of a retired alias is active", |_, world: &World| {
                *world.store.head.0.state() != HeadState::Retired
                    || released(&world.store).all(|(_, row)| row == Some(Row::Revoked))
            }),
            Property::always("a retired gate never reopens and its head follows", |_, world: &World| {
                !matches!(world.store.gate.0.state(), GateState::Retired(_))
                    || *world.store.head.0.state() != HeadState::Active
            }),
            Property::always("every frozen gate is resumable by its operation", |_, world: &World| {
                is_resumable(&world.store)
            }),
            Property::sometimes("a mint is released and later contained", |_, world: &World| {
                released(&world.store).any(|(_, row)| row == Some(Row::Revoked))
            }),
            Property::sometimes("a mint loses its race", |_, world: &World| {
                world.minters.contains(&Minter::LostRace)
            }),
            Property::sometimes("a barrier ends", |_, world: &World| {
                world.takeover == Barrier::Ended || world.retirement == Barrier::Ended
            }),
        ]
    }
}

fn refused<R>(mishaps: &mut u8, most: u8) -> Barrier<R> {
    if *mishaps < most {
        *mishaps += 1;
        Barrier::Idle
    } else {
        Barrier::Ended
    }
}

fn released(store: &Store) -> impl Iterator<Item = (u64, Option<Row>)> {
    store.released.iter().zip(&store.rows).filter_map(|(generation, row)| Some(((*generation)?, *row)))
}

/// Runs the operation that holds the gate, alone and from nothing but its intent, to its end.
fn is_resumable(store: &Store) -> bool {
    let GateState::Frozen(held) = store.gate.0.state() else { return true };
    let mut store = store.clone();
    if *held.op_id() == takeover_op() {
        ends(&mut store, step_takeover) && store.gate.0.is_open()
    } else {
        ends(&mut store, step_retirement) && *store.head.0.state() == HeadState::Retired
    }
}

fn ends<R: PartialEq>(store: &mut Store, step: fn(Barrier<R>, &mut Store) -> Stepped<R>) -> bool {
    let mut barrier = Barrier::Idle;
    for _ in 0..64 {
        match step(barrier, store) {
            Ok(Barrier::Ended) => return true,
            Ok(next) => barrier = next,
            Err(()) => return false,
        }
    }
    false
}

fn check(model: Barriers, what: &str) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{what}: {} unique states, {} generated", checker.unique_state_count(), checker.state_count());
}

#[test]
fn mints_against_a_takeover_hold_under_every_interleaving_and_crash() {
    let model = Barriers {
        minters: vec![true, false],
        takeover: true,
        retirement: false,
        mishaps: 3,
        stamps_over_any_head: false,
    };
    check(model, "mints and a takeover");
}

#[test]
fn mints_against_a_retirement_hold_under_every_interleaving_and_crash() {
    let model = Barriers {
        minters: vec![true, false],
        takeover: false,
        retirement: true,
        mishaps: 3,
        stamps_over_any_head: false,
    };
    check(model, "mints and a retirement");
}

#[test]
fn mints_against_a_takeover_and_a_retirement_hold_under_every_interleaving_and_crash() {
    let model = Barriers {
        minters: vec![true, false],
        takeover: true,
        retirement: true,
        mishaps: 1,
        stamps_over_any_head: false,
    };
    check(model, "mints, a takeover and a retirement");
}

/// Why a root is stamped over the head that was read before its gate: stamped over any head, one that was contained
/// meanwhile lands behind the takeover, which then can never be ended.
#[test]
fn a_stamp_over_a_head_read_after_the_touch_would_strand_a_takeover() {
    let model = Barriers {
        minters: vec![true],
        takeover: true,
        retirement: false,
        mishaps: 1,
        stamps_over_any_head: true,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery("every frozen gate is resumable by its operation").is_some());
}
