//! Model (b): mints, a login that ends its activation, a takeover and a retirement on one incarnation's gate, every step
//! of each interleaved with every step of the others, each crashing or losing an answer anywhere and resumed by its
//! operation id. A write whose answer is lost lands at once, later, or never.
//!
//! The barriers, the mints and the end of an activation decide by the product's own functions, and move the product's own
//! rows. The model's store gives each key a revision, and every write is pinned to one, as the broker's are.
//!
//! What is proved, in the words of [`RELEASED_AFTER_FREEZE`], [`ACTIVE_AFTER_RETIREMENT`] and [`RESUMABLE`], and besides
//! them [`NAMED_ROOT_LIVES`] and [`RETIRABLE`]. A credential is released by the touch of its gate, as the type
//! `ReleasedCredential` is made there; a root must be named by the head besides before anybody can connect with it. Active
//! means that it can be connected with: a row that was staged and never released stays in the store, and no bytes of it,
//! nor the head, ever led to it. A refused eviction is a crash at the end of a containment.

use cotal_wire::{
    CredentialId, EpCode, LifecycleUid, OpId, Principal, Revision,
    rows::{
        AgentGate, FrontierRecord, GateState, HeadState, HeadStep, LifecycleHead, OpKind, RetirementIntent,
        TakeoverIntent,
    },
};
use stateright::{Checker, Model, Property};

use crate::{
    activation::resume_step,
    barrier::{Sight, require_active_head, require_open_gate},
    mint_step::{MintStep, Seen, Touched, mint_step},
    retirement_step::{Phase, RetirementRun, RetirementStep, own_frontier},
    takeover_step::{TakeoverRun, TakeoverStep},
};

const RELEASED_AFTER_FREEZE: &str = "no credential is released after its gate was frozen";
const ACTIVE_AFTER_RETIREMENT: &str = "after retirement completes nothing under that uid is active";
const RESUMABLE: &str = "every frozen state is resumable by its operation id";
const NAMED_ROOT_LIVES: &str = "behind an open gate the head names no root that was revoked";
const RETIRABLE: &str = "a lifecycle that stands can be retired, whenever its retirement was captured";

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
    /// Whether the activation of the incarnation was cut off behind its head, so that its gate is frozen still.
    cut_off: bool,
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
    /// The answer to the next write is lost.
    mute: bool,
    /// Writes without an answer that have not landed.
    late: Vec<Late>,
}

/// A write that was sent, pinned to the revision that it read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Late {
    Gate(AgentGate, u64),
    Head(LifecycleHead, u64),
    Touch(u64),
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
        if self.mute {
            self.late.push(Late::Gate(next, read_at.0));
            return None;
        }
        (self.gate.1 == read_at.0).then(|| {
            self.gate = (next, self.gate.1 + 1);
            self.gate()
        })
    }

    fn write_head(&mut self, next: LifecycleHead, read_at: Revision) -> Option<Sight<LifecycleHead>> {
        if self.mute {
            self.late.push(Late::Head(next, read_at.0));
            return None;
        }
        (self.head.1 == read_at.0).then(|| {
            self.head = (next, self.head.1 + 1);
            self.head()
        })
    }

    /// Takes a step in which the answer to a write is lost, if it writes: whether one was.
    fn muted<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let before = self.late.len();
        self.mute = true;
        let stepped = step(self);
        self.mute = false;
        (self.late.len() > before).then_some(stepped)
    }

    fn arrive(&mut self, at: usize) {
        match self.late.remove(at) {
            Late::Gate(next, read_at) => drop(self.write_gate(next, Revision(read_at))),
            Late::Head(next, read_at) => drop(self.write_head(next, Revision(read_at))),
            Late::Touch(read_at) if self.gate.1 == read_at => self.gate.1 += 1,
            Late::Touch(_) => {}
        }
    }

    /// Forgets what can never land any more.
    fn forget(&mut self) {
        let (gate, head) = (self.gate.1, self.head.1);
        self.late.retain(|late| match late {
            Late::Gate(_, read_at) | Late::Touch(read_at) => *read_at == gate,
            Late::Head(_, read_at) => *read_at == head,
        });
    }

    /// Ends the activation that holds the gate, as a barrier does first; `Ok(false)` when none holds it.
    fn end_activation(&mut self) -> Result<bool, ()> {
        let Some(op) = self.gate.0.state().op().filter(|op| op.kind() == OpKind::Activation) else {
            return Ok(false);
        };
        let (won, at) = (self.head.0.is_active_at(&uid()), Revision(self.gate.1));
        let op = op.op_id().clone();
        if let Some((_, next)) = resume_step(won, Some(&self.gate.0), &op).map_err(drop)? {
            let written = self.write_gate(next, at);
            if self.mute || written.is_none() {
                return Err(());
            }
        }
        Ok(true)
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
    Touched(Sight<LifecycleHead>),
    /// The answer to its stamp was lost.
    Unknown,
    LostRace,
    Over,
}

impl Minter {
    fn step(self, store: &mut Store, me: usize, model: &Barriers) -> Self {
        let own = credential(me);
        match self {
            Self::Start => Self::HeadRead(store.head()),
            Self::HeadRead(head) => match mint_step(&own, Seen::Gate(Some(&store.gate.0))) {
                MintStep::WriteRow => Self::Pinned(head, store.gate.1, store.gate.0.generation()),
                _ => Self::Over,
            },
            Self::Pinned(head, pin, generation) => {
                store.rows[me] = Some(Row::Active);
                Self::Staged(head, pin, generation)
            }
            Self::Staged(head, pin, generation) => {
                let touched = if store.gate.1 == pin { Touched::Won } else { Touched::Moved };
                if touched == Touched::Won && store.mute {
                    store.late.push(Late::Touch(pin));
                    return Self::Over;
                }
                if mint_step(&own, Seen::Touch(touched)) != MintStep::Release {
                    return Self::LostRace;
                }
                store.touched_closed |= !store.gate.0.is_open();
                store.gate.1 += 1;
                store.released[me] = Some(generation);
                if model.minters[me] { Self::Touched(head) } else { Self::Over }
            }
            Self::Touched(head) => {
                let head = if model.stamps_over_any_head { store.head() } else { head };
                let Sight::At(head, read_at) = head else { return Self::LostRace };
                let stamped = match head.stamp_root(&uid(), &own) {
                    Ok(HeadStep::Write(stamped)) => {
                        let mute = store.mute;
                        match store.write_head(stamped, read_at) {
                            Some(_) => None,
                            None if mute => Some(EpCode::Unavailable),
                            None => Some(EpCode::Conflict),
                        }
                    }
                    Ok(HeadStep::Done(_)) => None,
                    Err(refusal) => Some(refusal.code),
                };
                match mint_step(&own, Seen::Stamp(stamped)) {
                    MintStep::AskHead => Self::Unknown,
                    MintStep::RevokeLost | MintStep::RevokeFailed => Self::LostRace,
                    _ => Self::Over,
                }
            }
            Self::Unknown => {
                let named = store.head.0.current_credential_id();
                match mint_step(&own, Seen::Named(named)) {
                    MintStep::RevokeLost => Self::LostRace,
                    _ => Self::Over,
                }
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
            if store.end_activation()? {
                return Ok(Barrier::HeadRead(head));
            }
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
            None => run.lost_head(),
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
            if store.end_activation()? {
                return Ok(Barrier::HeadRead(head));
            }
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
            store.contained = store.gate.0.generation();
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
        RetirementStep::Drain => run.done = Phase::Drained,
        RetirementStep::FenceRepairs => run.done = Phase::Fenced,
        RetirementStep::CleanPools => run.done = Phase::Cleaned,
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
    logged_in: bool,
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
    /// The login, whose sight of the gate is as old as it can be, opens it.
    Login,
    /// The same steps, with the answer to their write lost.
    MintUnanswered(usize),
    TakeOverUnanswered,
    RetireUnanswered,
    /// A write without an answer lands after all.
    Arrive(usize),
}

impl Model for Barriers {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let activation = OpId::parse(&"a".repeat(26)).unwrap();
        let born = AgentGate::born(&uid(), &activation);
        let gate = if self.cut_off { born } else { born.reopen(&activation).unwrap() };
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
                mute: false,
                late: Vec::new(),
            },
            minters: vec![Minter::Start; minters],
            takeover: Barrier::Idle,
            retirement: Barrier::Idle,
            logged_in: !self.cut_off,
            mishaps: 0,
        }]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Act>) {
        let spared = state.mishaps < self.mishaps;
        for (minter, at) in state.minters.iter().enumerate() {
            if *at != Minter::Over {
                actions.push(Act::Mint(minter));
                if spared && *at != Minter::Start {
                    actions.extend([Act::DropMint(minter), Act::MintUnanswered(minter)]);
                }
            }
        }
        if self.takeover && state.takeover != Barrier::Ended {
            actions.push(Act::TakeOver);
            if spared && state.takeover != Barrier::Idle {
                actions.extend([Act::CrashTakeover, Act::TakeOverUnanswered]);
            }
        }
        if self.retirement && state.retirement != Barrier::Ended {
            actions.push(Act::Retire);
            if spared && state.retirement != Barrier::Idle {
                actions.extend([Act::CrashRetirement, Act::RetireUnanswered]);
            }
        }
        if !state.logged_in {
            actions.push(Act::Login);
        }
        actions.extend((0..state.store.late.len()).map(Act::Arrive));
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
            Act::Login => {
                next.logged_in = true;
                // It read the gate right after it was born.
                if next.store.gate.1 == 1 {
                    let _ = next.store.end_activation();
                }
            }
            Act::MintUnanswered(me) => {
                let minter = next.minters[me].clone();
                next.minters[me] = next.store.muted(|store| minter.step(store, me, self))?;
                next.mishaps += 1;
            }
            Act::TakeOverUnanswered => {
                let barrier = std::mem::replace(&mut next.takeover, Barrier::Idle);
                let _ = next.store.muted(|store| step_takeover(barrier, store))?;
                next.mishaps += 1;
            }
            Act::RetireUnanswered => {
                let barrier = std::mem::replace(&mut next.retirement, Barrier::Idle);
                let _ = next.store.muted(|store| step_retirement(barrier, store))?;
                next.mishaps += 1;
            }
            Act::Arrive(at) => next.store.arrive(at),
        }
        next.store.forget();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(RELEASED_AFTER_FREEZE, |_, world: &World| !world.store.touched_closed),
            Property::always(
                "what was released before a containment is revoked by it",
                |_, world: &World| {
                    released(&world.store).all(|(generation, row)| {
                        generation > world.store.contained || row == Some(Row::Revoked)
                    })
                },
            ),
            Property::always(ACTIVE_AFTER_RETIREMENT, |_, world: &World| {
                *world.store.head.0.state() != HeadState::Retired
                    || released(&world.store).all(|(_, row)| row == Some(Row::Revoked))
            }),
            Property::always("a retired gate never reopens and its head follows", |_, world: &World| {
                !matches!(world.store.gate.0.state(), GateState::Retired(_))
                    || *world.store.head.0.state() != HeadState::Active
            }),
            Property::always(RESUMABLE, |_, world: &World| is_resumable(&world.store)),
            Property::always(NAMED_ROOT_LIVES, |_, world: &World| {
                let store = &world.store;
                let revoked = |minter: usize| store.rows[minter] == Some(Row::Revoked);
                let serves = store.gate.0.is_open() && *store.head.0.state() == HeadState::Active;
                let named = store.head.0.current_credential_id();
                let is_named = |minter: usize| named == Some(credential(minter).as_str());
                !(serves && (0..store.rows.len()).any(|minter| is_named(minter) && revoked(minter)))
            }),
            Property::always(RETIRABLE, |model: &Self, world: &World| {
                // Without a takeover it says no more than the property above.
                !(model.takeover && model.retirement) || is_retirable(&world.store)
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
    if held.kind() == OpKind::Activation {
        return store.end_activation() == Ok(true) && store.gate.0.is_open();
    }
    if *held.op_id() == takeover_op() {
        ends(&mut store, step_takeover) && store.gate.0.is_open()
    } else {
        ends(&mut store, step_retirement) && *store.head.0.state() == HeadState::Retired
    }
}

/// Runs the retirement, alone, once whatever takeover holds the gate has ended.
fn is_retirable(store: &Store) -> bool {
    let mut store = store.clone();
    if store.gate.0.state().op().is_some_and(|held| *held.op_id() == takeover_op()) {
        // One that is undone reopens the gate too.
        let _ = ends(&mut store, step_takeover);
    }
    *store.head.0.state() == HeadState::Retired
        || (ends(&mut store, step_retirement) && *store.head.0.state() == HeadState::Retired)
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
    println!("{what}: {} unique states, {} generated", checker.unique_state_count(), checker.state_count());
    checker.assert_properties();
}

#[test]
fn mints_against_a_takeover_hold_under_every_interleaving_and_crash() {
    let model = Barriers {
        minters: vec![true, false],
        takeover: true,
        retirement: false,
        mishaps: 3,
        cut_off: false,
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
        cut_off: false,
        stamps_over_any_head: false,
    };
    check(model, "mints and a retirement");
}

#[test]
fn mints_against_a_takeover_and_a_retirement_hold_under_every_interleaving_and_crash() {
    // One minter, the one with more steps: two of them are against one barrier at a time above.
    let model = Barriers {
        minters: vec![true],
        takeover: true,
        retirement: true,
        mishaps: 1,
        cut_off: false,
        stamps_over_any_head: false,
    };
    check(model, "mints, a takeover and a retirement");
}

/// Nobody has to log in: whoever takes the incarnation over or retires it ends the activation first.
#[test]
fn an_activation_that_was_cut_off_is_ended_by_a_barrier_or_by_its_login_under_every_interleaving() {
    for (takeover, retirement) in [(true, false), (false, true)] {
        let model = Barriers {
            minters: vec![true],
            takeover,
            retirement,
            mishaps: 2,
            cut_off: true,
            stamps_over_any_head: false,
        };
        check(
            model,
            if takeover {
                "a cut-off activation and a takeover"
            } else {
                "a cut-off activation and a retirement"
            },
        );
    }
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
        cut_off: false,
        stamps_over_any_head: true,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery(RESUMABLE).is_some());
    assert!(checker.discovery(NAMED_ROOT_LIVES).is_some());
}
