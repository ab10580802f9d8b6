//! Model (c): two starts of one instance register, mint for it, and are repaired after, every step of each interleaved
//! with every step of the others. A start crashes anywhere and begins again; the answer to a spec write is lost, with the
//! write landed, or still on its way.
//!
//! The ceremony decides by the product's own functions, and moves the product's own rows. The model's stores give each
//! key a revision, and every write is pinned to one, as the broker's are. The repair runs at any time, as if its liveness
//! probe had been fooled: nothing may rest on that.
//!
//! What is proved:
//!
//! - At most one start holds a serve grant that the gate admits.
//! - While the gate is open, every released credential that is active is of the gate's present registration.
//! - No two registrations share an epoch.
//! - Every frozen gate is opened by a fresh run of its own operation, and by a repair.

use std::collections::{BTreeMap, BTreeSet};

use cotal_wire::{
    Command, DigestRef, EndpointToken, InstanceId, OpId, Owner, Principal, Revision,
    canonical::VOID_CLOSURE_DIGEST,
    rows::{EndpointGate, GateCoordinate, GovernHead, Governed, ServiceSpec, SlotHolder},
};
use stateright::{Checker, Model, Property};

use super::{
    EndpointInstance,
    gate::{Frozen, GateAt},
    own::operation_at,
    reconcile::repairable,
    register::{Entry, committed, is_first, see_gate},
    serve::admit,
    slot::{is_held, see_slot},
    spec::SpecSeen,
};

const STARTS: usize = 2;

fn at() -> EndpointInstance {
    EndpointInstance {
        endpoint: EndpointToken::parse("auth").unwrap(),
        instance: InstanceId::parse(&"i".repeat(26)).unwrap(),
    }
}

fn principal() -> Principal {
    Principal::parse_key("local.serve").unwrap()
}

/// The operation of the nth run of a start.
fn op(start: usize, run: u8) -> OpId {
    let mark = char::from(b'a' + u8::try_from(start).unwrap() * 8 + run);
    OpId::parse(&mark.to_string().repeat(26)).unwrap()
}

fn declared() -> Governed {
    let guarded = BTreeSet::from(["ai.cotal.guarded".to_owned()]);
    BTreeMap::from([(Command::parse("run").unwrap(), guarded)])
}

/// Who takes part, and how much goes wrong.
#[derive(Clone)]
struct Registrations {
    /// Runs of each start: more than one is as many crashes or refusals.
    runs: [u8; STARTS],
    /// Runs of the repair.
    repairs: u8,
    /// How many answers to spec writes are lost.
    lost_answers: u8,
    /// Whether both starts propose one and the same spec.
    same_spec: bool,
    /// Whether a start goes on under the freeze that it finds, as the plane's own does.
    adopts: bool,
    /// A resumed run takes the spec that it finds for its own, without containing the family again. The product never
    /// does; this says why.
    trusts_found_spec: bool,
}

impl Registrations {
    fn spec(&self, start: usize) -> ServiceSpec {
        let digest = DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap();
        let spec = ServiceSpec::new(&at().endpoint.name(), &Owner::local(), vec![digest]).unwrap();
        if self.same_spec { spec } else { spec.of_type(&format!("start{start}")) }
    }
}

// === the stores ===============================================================================================

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stores {
    gate: (EndpointGate, u64),
    /// The one revision counter of the records store.
    records: u64,
    /// Who wrote the spec, and when.
    spec: Option<(usize, u64)>,
    head: (GovernHead, u64),
    /// A spec write on its way: whose, and what it is pinned to.
    in_flight: Option<(usize, u64)>,
    rows: Vec<Row>,
    /// Ghost: the coordinates that registrations reopened the gate at.
    registered: Vec<GateCoordinate>,
}

/// A credential row of the family.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Row {
    granted: GateCoordinate,
    active: bool,
    /// Ghost: its bytes left the process.
    released: bool,
}

impl Stores {
    fn gate(&self) -> GateAt {
        GateAt { gate: self.gate.0.clone(), revision: Revision(self.gate.1) }
    }

    fn spec(&self, model: &Registrations) -> SpecSeen {
        match self.spec {
            None => SpecSeen::Absent,
            Some((start, revision)) => SpecSeen::Registered(model.spec(start), Revision(revision)),
        }
    }

    fn write_gate(&mut self, next: EndpointGate, pinned: Revision) -> Option<Revision> {
        (self.gate.1 == pinned.0).then(|| {
            self.gate = (next, self.gate.1 + 1);
            Revision(self.gate.1)
        })
    }

    fn write_spec(&mut self, start: usize, over: u64) -> Option<Revision> {
        (self.spec.map_or(0, |(_, revision)| revision) == over).then(|| {
            self.records += 1;
            self.spec = Some((start, self.records));
            Revision(self.records)
        })
    }

    fn write_head(&mut self, next: GovernHead, pinned: u64) -> bool {
        let won = self.head.1 == pinned;
        if won {
            self.records += 1;
            self.head = (next, self.records);
        }
        won
    }

    /// Reopens the gate; `true` when the freeze still stood.
    fn reopen(&mut self, frozen: &Frozen, successor: GateCoordinate) -> bool {
        let Ok(gate) = frozen.gate.clone().reopen(&frozen.op, successor) else { return false };
        let won = self.write_gate(gate, frozen.token).is_some();
        if won && successor.registration_revision != frozen.gate.coordinate().registration_revision {
            self.registered.push(successor);
        }
        won
    }

    fn active(&self) -> Vec<usize> {
        (0..self.rows.len()).filter(|row| self.rows[*row].active).collect()
    }

    fn revoke(&mut self, rows: &[usize]) {
        for row in rows {
            self.rows[*row].active = false;
        }
    }

    fn release_slot(&mut self, generation: u64) {
        let (head, revision) = self.head.clone();
        if is_held(&head, &at().instance, generation) {
            self.write_head(head.release(), revision);
        }
    }

    /// Records what the slot declares; `false` when the slot was lost.
    fn promote(&mut self, generation: u64) -> bool {
        let (head, revision) = self.head.clone();
        if !is_held(&head, &at().instance, generation) {
            return false;
        }
        let promoted = head.clone().promote();
        promoted == head || self.write_head(promoted, revision)
    }
}

// === a start ==================================================================================================

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Start {
    Idle,
    Freeze(GateAt, OpId),
    Look(Frozen, bool),
    TakeSlot(Frozen, Plan, GovernHead, u64),
    Abort(Frozen),
    List(Frozen, Plan),
    Revoke(Frozen, Plan, Vec<usize>),
    WriteSpec(Frozen, Plan),
    ReadBack(Frozen, Plan),
    Promote(Frozen, Revision, bool),
    Reopen(Frozen, Revision, bool),
    Release(u64, GateCoordinate),
    /// It holds a grant at this coordinate.
    Observe(GateCoordinate),
    Stage(GateCoordinate, GateAt),
    Touch(GateCoordinate, GateAt, usize),
    Serving(GateCoordinate),
    /// Crashed, or refused.
    Down,
}

/// What a ceremony does after its family is contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Plan {
    Write { over: u64, first: bool },
    Finish { revision: Revision, first: bool },
}

/// How a spec write is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Heard,
    LostLanded,
    LostInFlight,
}

impl Start {
    fn grant(&self) -> Option<GateCoordinate> {
        match self {
            Self::Release(_, granted)
            | Self::Observe(granted)
            | Self::Stage(granted, _)
            | Self::Touch(granted, ..)
            | Self::Serving(granted) => Some(*granted),
            _ => None,
        }
    }

    /// One read or one write.
    fn step(self, stores: &mut Stores, me: usize, run: u8, model: &Registrations, answer: Answer) -> Self {
        let generation = |frozen: &Frozen| frozen.gate.coordinate().generation;
        match self {
            Self::Idle => {
                let seen = stores.gate();
                let op = if model.adopts {
                    operation_at(Some(&seen), &principal()).unwrap_or_else(|| op(me, run))
                } else {
                    // A host that keeps its operation runs the same one again.
                    op(me, 0)
                };
                match see_gate(Some(seen), &op) {
                    Ok(Entry::Freeze(seen)) => Self::Freeze(seen, op),
                    Ok(Entry::Resume(frozen)) => Self::Look(frozen, true),
                    Err(_) => Self::Down,
                }
            }
            Self::Freeze(seen, op) => {
                let gate = seen.gate.freeze(&op).unwrap();
                match stores.write_gate(gate.clone(), seen.revision) {
                    Some(token) => Self::Look(Frozen { gate, token, op }, false),
                    None => Self::Down,
                }
            }
            Self::Look(frozen, resuming) => {
                let spec = stores.spec(model);
                let (head, revision) = stores.head.clone();
                let coordinate = frozen.gate.coordinate();
                if resuming && let Some(found) = committed(coordinate, &at(), &spec, &head) {
                    let proposed = matches!(&spec, SpecSeen::Registered(spec, _) if *spec == model.spec(me));
                    let first = coordinate.registration_revision == 0;
                    if model.trusts_found_spec {
                        return Self::Promote(frozen, found, first);
                    }
                    if proposed {
                        return Self::List(frozen, Plan::Finish { revision: found, first });
                    }
                }
                let plan =
                    Plan::Write { over: spec.revision().0, first: is_first(coordinate, &spec, resuming) };
                match see_slot(&head, &at().instance, generation(&frozen), resuming) {
                    Ok(_) => Self::TakeSlot(frozen, plan, head, revision),
                    Err(_) if resuming => Self::Down,
                    Err(_) => Self::Abort(frozen),
                }
            }
            Self::TakeSlot(frozen, plan, head, revision) => {
                let holder = SlotHolder { instance: at().instance, generation: generation(&frozen) };
                let taken = head.clone().take(holder, &declared());
                if taken == head || stores.write_head(taken, revision) {
                    Self::List(frozen, plan)
                } else {
                    // A resumed run stays frozen instead; the repair covers that.
                    Self::Abort(frozen)
                }
            }
            Self::Abort(frozen) => {
                stores.reopen(&frozen, frozen.gate.coordinate().reopened());
                Self::Down
            }
            Self::List(frozen, plan) => Self::Revoke(frozen, plan, stores.active()),
            Self::Revoke(frozen, plan, rows) => {
                stores.revoke(&rows);
                match plan {
                    Plan::Write { .. } => Self::WriteSpec(frozen, plan),
                    Plan::Finish { revision, first } => Self::Promote(frozen, revision, first),
                }
            }
            Self::WriteSpec(frozen, plan) => {
                let Plan::Write { over, first } = plan else { return Self::Down };
                match answer {
                    Answer::LostInFlight => {
                        stores.in_flight = Some((me, over));
                        Self::ReadBack(frozen, plan)
                    }
                    Answer::Heard | Answer::LostLanded => match stores.write_spec(me, over) {
                        Some(revision) if answer == Answer::Heard => Self::Promote(frozen, revision, first),
                        _ => Self::ReadBack(frozen, plan),
                    },
                }
            }
            Self::ReadBack(frozen, plan) => {
                let Plan::Write { over, first } = plan else { return Self::Down };
                match stores.spec(model) {
                    SpecSeen::Registered(spec, revision) if revision.0 > over && spec == model.spec(me) => {
                        Self::Promote(frozen, revision, first)
                    }
                    _ => Self::Down,
                }
            }
            Self::Promote(frozen, revision, first) => {
                if stores.promote(generation(&frozen)) {
                    Self::Reopen(frozen, revision, first)
                } else {
                    Self::Down
                }
            }
            Self::Reopen(frozen, revision, first) => {
                let successor = frozen.gate.coordinate().registered(revision, first);
                if stores.reopen(&frozen, successor) {
                    Self::Release(generation(&frozen), successor)
                } else {
                    Self::Down
                }
            }
            Self::Release(generation, granted) => {
                stores.release_slot(generation);
                Self::Observe(granted)
            }
            Self::Observe(granted) => match admit(Some(stores.gate()), granted, &principal()) {
                Ok(seen) => Self::Stage(granted, seen),
                Err(_) => Self::Down,
            },
            Self::Stage(granted, seen) => {
                stores.rows.push(Row { granted, active: true, released: false });
                Self::Touch(granted, seen, stores.rows.len() - 1)
            }
            Self::Touch(granted, seen, row) => {
                if stores.gate().gate.is_open() && stores.write_gate(seen.gate, seen.revision).is_some() {
                    stores.rows[row].released = true;
                    Self::Serving(granted)
                } else {
                    stores.revoke(&[row]);
                    Self::Down
                }
            }
            over @ (Self::Serving(_) | Self::Down) => over,
        }
    }
}

// === the repair ===============================================================================================

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Repair {
    Idle,
    List(Frozen),
    Revoke(Frozen, Vec<usize>),
    Look(Frozen),
    Promote(Frozen, Revision),
    Reopen(Frozen, GateCoordinate),
    Release(u64),
    Over,
}

impl Repair {
    fn step(self, stores: &mut Stores, model: &Registrations) -> Self {
        match self {
            Self::Idle => match repairable(Some(stores.gate())) {
                Ok(frozen) => Self::List(frozen),
                Err(_) => Self::Over,
            },
            Self::List(frozen) => Self::Revoke(frozen, stores.active()),
            Self::Revoke(frozen, rows) => {
                stores.revoke(&rows);
                Self::Look(frozen)
            }
            Self::Look(frozen) => {
                let before = frozen.gate.coordinate();
                match committed(before, &at(), &stores.spec(model), &stores.head.0) {
                    Some(revision) => Self::Promote(frozen, revision),
                    None => Self::Reopen(frozen, before.reopened()),
                }
            }
            Self::Promote(frozen, revision) => {
                let before = frozen.gate.coordinate();
                if stores.promote(before.generation) {
                    Self::Reopen(frozen, before.registered(revision, before.registration_revision == 0))
                } else {
                    Self::Over
                }
            }
            Self::Reopen(frozen, after) => {
                if stores.reopen(&frozen, after) {
                    Self::Release(frozen.gate.coordinate().generation)
                } else {
                    Self::Over
                }
            }
            Self::Release(generation) => {
                stores.release_slot(generation);
                Self::Over
            }
            Self::Over => Self::Over,
        }
    }
}

// === the model ================================================================================================

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    stores: Stores,
    starts: [Start; STARTS],
    runs: [u8; STARTS],
    repair: Repair,
    repairs: u8,
    lost_answers: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Step(usize),
    LoseAnswer(usize, Answer),
    Land,
    Crash(usize),
    Again(usize),
    Repair,
    RepairAgain,
}

impl Model for Registrations {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            stores: Stores {
                gate: (EndpointGate::provisioned(&principal()), 1),
                records: 0,
                spec: None,
                head: (GovernHead::default(), 0),
                in_flight: None,
                rows: Vec::new(),
                registered: Vec::new(),
            },
            starts: [Start::Idle, Start::Idle],
            runs: [1; STARTS],
            repair: Repair::Idle,
            repairs: 0,
            lost_answers: 0,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        for (me, start) in world.starts.iter().enumerate() {
            match start {
                Start::Serving(_) => {}
                Start::Down => {
                    if world.runs[me] < self.runs[me] {
                        actions.push(Act::Again(me));
                    }
                }
                _ => actions.push(Act::Step(me)),
            }
            if !matches!(start, Start::Down | Start::Idle) && world.runs[me] < self.runs[me] {
                actions.push(Act::Crash(me));
            }
            if matches!(start, Start::WriteSpec(..)) && world.lost_answers < self.lost_answers {
                actions.push(Act::LoseAnswer(me, Answer::LostLanded));
                if world.stores.in_flight.is_none() {
                    actions.push(Act::LoseAnswer(me, Answer::LostInFlight));
                }
            }
        }
        if world.stores.in_flight.is_some() {
            actions.push(Act::Land);
        }
        if world.repairs < self.repairs {
            actions.push(if world.repair == Repair::Over { Act::RepairAgain } else { Act::Repair });
        }
    }

    fn next_state(&self, last: &World, act: Act) -> Option<World> {
        let mut next = last.clone();
        let mut step = |me: usize, answer| {
            let (start, run) = (next.starts[me].clone(), next.runs[me]);
            next.starts[me] = start.step(&mut next.stores, me, run, self, answer);
        };
        match act {
            Act::Step(me) => step(me, Answer::Heard),
            Act::LoseAnswer(me, answer) => {
                step(me, answer);
                next.lost_answers += 1;
            }
            Act::Land => {
                let (start, over) = next.stores.in_flight.take()?;
                next.stores.write_spec(start, over);
            }
            Act::Crash(me) => next.starts[me] = Start::Down,
            Act::Again(me) => {
                next.starts[me] = Start::Idle;
                next.runs[me] += 1;
            }
            Act::Repair => {
                next.repair = next.repair.step(&mut next.stores, self);
                next.repairs += u8::from(next.repair == Repair::Over);
            }
            Act::RepairAgain => next.repair = Repair::Idle,
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one serve grant is current", |_, world: &World| {
                let gate = world.stores.gate();
                let current =
                    |grant: &GateCoordinate| admit(Some(gate.clone()), *grant, &principal()).is_ok();
                world.starts.iter().filter_map(Start::grant).filter(current).count() <= 1
            }),
            Property::always("no credential outlives its registration", |_, world: &World| {
                none_outlives(world)
            }),
            Property::always("no two registrations share an epoch", |_, world: &World| {
                let epochs: BTreeSet<_> = world.stores.registered.iter().map(|at| at.process_epoch).collect();
                epochs.len() == world.stores.registered.len()
            }),
            Property::always("a frozen gate is opened by its own operation", |model, world: &World| {
                let Some(held) = world.stores.gate.0.registering() else { return true };
                let Entry::Resume(frozen) = see_gate(Some(world.stores.gate()), held).unwrap() else {
                    return false;
                };
                (0..STARTS).all(|me| opens_alone(Start::Look(frozen.clone(), true), &world.stores, me, model))
            }),
            Property::always("a frozen gate is opened by a repair", |model, world: &World| {
                let mut stores = world.stores.clone();
                let mut repair = Repair::Idle;
                while repair != Repair::Over {
                    repair = repair.step(&mut stores, model);
                }
                stores.gate.0.is_open()
            }),
            Property::sometimes("both starts register, one after the other", |_, world: &World| {
                world.stores.registered.len() == 2
            }),
            Property::sometimes("a released credential is revoked", |_, world: &World| {
                world.stores.rows.iter().any(|row| row.released && !row.active)
            }),
            Property::sometimes("a mint loses its race", |_, world: &World| {
                world.stores.rows.iter().any(|row| !row.released && !row.active)
            }),
        ]
    }
}

fn none_outlives(world: &World) -> bool {
    let now = world.stores.gate.0.coordinate();
    !world.stores.gate.0.is_open()
        || world.stores.rows.iter().filter(|row| row.released && row.active).all(|row| {
            row.granted.process_epoch == now.process_epoch
                && row.granted.registration_revision == now.registration_revision
        })
}

/// Runs a start alone, with nothing else on its way, until it serves or is refused.
fn opens_alone(start: Start, stores: &Stores, me: usize, model: &Registrations) -> bool {
    let mut stores = stores.clone();
    let mut start = start;
    for _ in 0..32 {
        if matches!(start, Start::Serving(_) | Start::Down) {
            break;
        }
        start = start.step(&mut stores, me, 1, model, Answer::Heard);
    }
    matches!(start, Start::Serving(_)) && stores.gate.0.is_open()
}

fn check(model: Registrations, what: &str) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{what}: {} unique states, {} generated", checker.unique_state_count(), checker.state_count());
}

const MODEL: Registrations = Registrations {
    runs: [1, 1],
    repairs: 1,
    lost_answers: 1,
    same_spec: true,
    adopts: true,
    trusts_found_spec: false,
};

#[test]
fn two_starts_and_a_repair_hold_under_every_interleaving_and_lost_answer() {
    check(MODEL, "two starts of one version, and a repair");
}

#[test]
fn two_starts_of_two_versions_and_a_repair_hold_under_every_interleaving_and_lost_answer() {
    check(Registrations { same_spec: false, ..MODEL }, "two starts of two versions, and a repair");
}

#[test]
fn two_starts_that_crash_and_go_on_hold_under_every_interleaving() {
    check(
        Registrations { runs: [2, 1], repairs: 0, lost_answers: 0, ..MODEL },
        "two starts, one of them cut off once",
    );
}

#[test]
fn two_starts_of_their_own_operations_hold_under_every_interleaving_and_crash() {
    let model = Registrations { runs: [2, 2], repairs: 0, lost_answers: 0, adopts: false, ..MODEL };
    check(model, "two starts that keep their operations, each cut off once");
}

/// Why a resumed run contains the family again: the spec that it finds may be one that was on its way when an earlier
/// operation was repaired, and so from before anybody's credentials were looked at.
#[test]
fn a_resumed_run_that_trusted_the_spec_it_finds_would_leave_credentials_alive() {
    let script = || {
        let (first, second) = (0, 1);
        let steps = |who, count| std::iter::repeat_n(Act::Step(who), count);
        steps(first, 10) // registers, and has not minted yet
            .chain(steps(second, 6)) // freezes, takes the slot, contains
            .chain([Act::LoseAnswer(second, Answer::LostInFlight), Act::Crash(second)])
            .chain(std::iter::repeat_n(Act::Repair, 6)) // undoes it: the spec is not there
            .chain(steps(first, 3)) // mints at the registration that stands
            .chain([Act::Land, Act::Again(second)])
            .chain(steps(second, 4)) // freezes anew, takes the slot
            .chain([Act::Crash(second), Act::Again(second)])
            .chain(steps(second, 6))
    };
    for trusts in [true, false] {
        let model = Registrations { runs: [3, 3], trusts_found_spec: trusts, ..MODEL };
        let mut world = model.init_states().remove(0);
        let mut alive = false;
        for act in script() {
            world = model.next_state(&world, act).unwrap_or(world);
            alive |= !none_outlives(&world);
        }
        assert!(world.stores.rows.iter().any(|row| row.released), "the first one has minted");
        assert_eq!(alive, trusts);
    }
}
