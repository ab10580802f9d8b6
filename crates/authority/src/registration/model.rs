//! Model (c): two starts, of one instance or of two instances of one endpoint, register, mint, and are repaired after,
//! every step of each interleaved with every step of the others. A start crashes anywhere and begins again; the answer to
//! a spec write is lost, with the write landed, or still on its way.
//!
//! The ceremony decides by the product's own functions, and moves the product's own rows. The model's stores give each
//! key a revision, and every write is pinned to one, as the broker's are. The repair runs at any time, as if its liveness
//! probe had been fooled: nothing may rest on that.
//!
//! What is proved:
//!
//! - At most one start of an instance holds a serve grant that the gate admits.
//! - While the gate is open, every released credential that is active is of the gate's present registration.
//! - No two registrations of an instance share an epoch.
//! - Every frozen gate is opened by a fresh run of its own operation, and by a repair; one that waits for its turn behind
//!   another instance's frozen gate, once that one is open.
//! - The slot is taken from another instance only when its registration is over, and what every registration declares is
//!   recorded.

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
    slot::{HolderSeen, SlotSeen, is_held, reclaim, see_slot},
    spec::SpecSeen,
};

const STARTS: usize = 2;
const INSTANCES: usize = 2;

fn at(instance: usize) -> EndpointInstance {
    EndpointInstance {
        endpoint: EndpointToken::parse("auth").unwrap(),
        instance: InstanceId::parse(&["i", "j"][instance].repeat(26)).unwrap(),
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

/// What an instance declares: each has a command of its own.
fn declared(instance: usize) -> Governed {
    let guarded = BTreeSet::from(["ai.cotal.guarded".to_owned()]);
    BTreeMap::from([(Command::parse(["run", "walk"][instance]).unwrap(), guarded)])
}

/// Who takes part, and how much goes wrong.
#[derive(Clone)]
struct Registrations {
    /// The instance of each start.
    instances: [usize; STARTS],
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
        let spec = ServiceSpec::new(&at(0).endpoint.name(), &Owner::local(), vec![digest]).unwrap();
        if self.same_spec { spec } else { spec.of_type(&format!("start{start}")) }
    }
}

// === the stores ===============================================================================================

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stores {
    instances: [Instance; INSTANCES],
    /// The one revision counter of the records store.
    records: u64,
    head: (GovernHead, u64),
    /// A spec write on its way: whose, and what it is pinned to.
    in_flight: Option<(usize, u64)>,
    /// Ghost: the slot was taken from an instance whose registration was not over.
    robbed: bool,
}

/// What is stored of one instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Instance {
    gate: (EndpointGate, u64),
    /// Who wrote the spec, and when.
    spec: Option<(usize, u64)>,
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

impl Instance {
    fn gate(&self) -> GateAt {
        GateAt { gate: self.gate.0.clone(), revision: Revision(self.gate.1) }
    }

    fn write_gate(&mut self, next: EndpointGate, pinned: Revision) -> Option<Revision> {
        (self.gate.1 == pinned.0).then(|| {
            self.gate = (next, self.gate.1 + 1);
            Revision(self.gate.1)
        })
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
}

impl Stores {
    fn of(&mut self, start: usize, model: &Registrations) -> &mut Instance {
        &mut self.instances[model.instances[start]]
    }

    fn spec(&self, instance: usize, model: &Registrations) -> SpecSeen {
        match self.instances[instance].spec {
            None => SpecSeen::Absent,
            Some((start, revision)) => SpecSeen::Registered(model.spec(start), Revision(revision)),
        }
    }

    fn write_spec(&mut self, start: usize, over: u64, model: &Registrations) -> Option<Revision> {
        let records = self.records + 1;
        let spec = &mut self.of(start, model).spec;
        if spec.map_or(0, |(_, revision)| revision) != over {
            return None;
        }
        *spec = Some((start, records));
        self.records = records;
        Some(Revision(records))
    }

    fn write_head(&mut self, next: GovernHead, pinned: u64) -> bool {
        let won = self.head.1 == pinned;
        if won {
            self.records += 1;
            self.head = (next, self.records);
        }
        won
    }

    /// The gate of a slot's holder.
    fn holder(&self, slot: &SlotHolder) -> &EndpointGate {
        let of = usize::from(slot.instance != at(0).instance);
        &self.instances[of].gate.0
    }

    /// Whether the slot lets this instance register now.
    fn turn(&self, instance: usize, generation: u64, resuming: bool) -> bool {
        match see_slot(&self.head.0, &at(instance).instance, generation, resuming) {
            Ok(SlotSeen::Foreign(slot)) => {
                let seen = HolderSeen::At(self.holder(&slot).coordinate().generation);
                reclaim(&slot, seen).is_ok()
            }
            seen => seen.is_ok(),
        }
    }

    fn take_slot(&mut self, taken: GovernHead, revision: u64) -> bool {
        let robbed = self.head.0.provisional().is_some_and(|slot| {
            let mine = taken.provisional().is_some_and(|taken| taken.holder.instance == slot.holder.instance);
            let gate = self.holder(&slot.holder);
            !mine && !gate.is_open() && gate.coordinate().generation == slot.holder.generation
        });
        let won = taken == self.head.0 || self.write_head(taken, revision);
        self.robbed |= won && robbed;
        won
    }

    fn release_slot(&mut self, instance: usize, generation: u64) {
        let (head, revision) = self.head.clone();
        if is_held(&head, &at(instance).instance, generation) {
            self.write_head(head.release(), revision);
        }
    }

    /// Records what the slot declares; `false` when the slot was lost.
    fn promote(&mut self, instance: usize, generation: u64) -> bool {
        let (head, revision) = self.head.clone();
        if !is_held(&head, &at(instance).instance, generation) {
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
        let instance = model.instances[me];
        match self {
            Self::Idle => {
                let seen = stores.of(me, model).gate();
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
                match stores.of(me, model).write_gate(gate.clone(), seen.revision) {
                    Some(token) => Self::Look(Frozen { gate, token, op }, false),
                    None => Self::Down,
                }
            }
            Self::Look(frozen, resuming) => {
                let spec = stores.spec(instance, model);
                let (head, revision) = stores.head.clone();
                let coordinate = frozen.gate.coordinate();
                if resuming && let Some(found) = committed(coordinate, &at(instance), &spec, &head) {
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
                if stores.turn(instance, generation(&frozen), resuming) {
                    Self::TakeSlot(frozen, plan, head, revision)
                } else if resuming {
                    Self::Down
                } else {
                    Self::Abort(frozen)
                }
            }
            Self::TakeSlot(frozen, plan, head, revision) => {
                let holder = SlotHolder { instance: at(instance).instance, generation: generation(&frozen) };
                if stores.take_slot(head.take(holder, &declared(instance)), revision) {
                    Self::List(frozen, plan)
                } else {
                    // A resumed run stays frozen instead; the repair covers that.
                    Self::Abort(frozen)
                }
            }
            Self::Abort(frozen) => {
                stores.of(me, model).reopen(&frozen, frozen.gate.coordinate().reopened());
                Self::Down
            }
            Self::List(frozen, plan) => Self::Revoke(frozen, plan, stores.of(me, model).active()),
            Self::Revoke(frozen, plan, rows) => {
                stores.of(me, model).revoke(&rows);
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
                    Answer::Heard | Answer::LostLanded => match stores.write_spec(me, over, model) {
                        Some(revision) if answer == Answer::Heard => Self::Promote(frozen, revision, first),
                        _ => Self::ReadBack(frozen, plan),
                    },
                }
            }
            Self::ReadBack(frozen, plan) => {
                let Plan::Write { over, first } = plan else { return Self::Down };
                match stores.spec(instance, model) {
                    SpecSeen::Registered(spec, revision) if revision.0 > over && spec == model.spec(me) => {
                        Self::Promote(frozen, revision, first)
                    }
                    _ => Self::Down,
                }
            }
            Self::Promote(frozen, revision, first) => {
                if stores.promote(instance, generation(&frozen)) {
                    Self::Reopen(frozen, revision, first)
                } else {
                    Self::Down
                }
            }
            Self::Reopen(frozen, revision, first) => {
                let successor = frozen.gate.coordinate().registered(revision, first);
                if stores.of(me, model).reopen(&frozen, successor) {
                    Self::Release(generation(&frozen), successor)
                } else {
                    Self::Down
                }
            }
            Self::Release(generation, granted) => {
                stores.release_slot(instance, generation);
                Self::Observe(granted)
            }
            Self::Observe(granted) => match admit(Some(stores.of(me, model).gate()), granted, &principal()) {
                Ok(seen) => Self::Stage(granted, seen),
                Err(_) => Self::Down,
            },
            Self::Stage(granted, seen) => {
                let rows = &mut stores.of(me, model).rows;
                rows.push(Row { granted, active: true, released: false });
                Self::Touch(granted, seen, rows.len() - 1)
            }
            Self::Touch(granted, seen, row) => {
                let stores = stores.of(me, model);
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
    /// One step of a repair of an instance.
    fn step(self, stores: &mut Stores, of: usize, model: &Registrations) -> Self {
        match self {
            Self::Idle => match repairable(Some(stores.instances[of].gate())) {
                Ok(frozen) => Self::List(frozen),
                Err(_) => Self::Over,
            },
            Self::List(frozen) => Self::Revoke(frozen, stores.instances[of].active()),
            Self::Revoke(frozen, rows) => {
                stores.instances[of].revoke(&rows);
                Self::Look(frozen)
            }
            Self::Look(frozen) => {
                let before = frozen.gate.coordinate();
                match committed(before, &at(of), &stores.spec(of, model), &stores.head.0) {
                    Some(revision) => Self::Promote(frozen, revision),
                    None => Self::Reopen(frozen, before.reopened()),
                }
            }
            Self::Promote(frozen, revision) => {
                let before = frozen.gate.coordinate();
                if stores.promote(of, before.generation) {
                    Self::Reopen(frozen, before.registered(revision, before.registration_revision == 0))
                } else {
                    Self::Over
                }
            }
            Self::Reopen(frozen, after) => {
                if stores.instances[of].reopen(&frozen, after) {
                    Self::Release(frozen.gate.coordinate().generation)
                } else {
                    Self::Over
                }
            }
            Self::Release(generation) => {
                stores.release_slot(of, generation);
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
                instances: std::array::from_fn(|_| Instance {
                    gate: (EndpointGate::provisioned(&principal()), 1),
                    spec: None,
                    rows: Vec::new(),
                    registered: Vec::new(),
                }),
                records: 0,
                head: (GovernHead::default(), 0),
                in_flight: None,
                robbed: false,
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
                next.stores.write_spec(start, over, self);
            }
            Act::Crash(me) => next.starts[me] = Start::Down,
            Act::Again(me) => {
                next.starts[me] = Start::Idle;
                next.runs[me] += 1;
            }
            Act::Repair => {
                // An operator repairs what is frozen: the instance of the second start, or else of the first.
                next.repair = next.repair.step(&mut next.stores, self.instances[STARTS - 1], self);
                next.repairs += u8::from(next.repair == Repair::Over);
            }
            Act::RepairAgain => next.repair = Repair::Idle,
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one serve grant of an instance is current", |model, world: &World| {
                world.stores.instances.iter().enumerate().all(|(of, instance)| {
                    let current =
                        |grant: &GateCoordinate| admit(Some(instance.gate()), *grant, &principal()).is_ok();
                    let starts = world.starts.iter().zip(model.instances).filter(|(_, at)| *at == of);
                    starts.filter_map(|(start, _)| start.grant()).filter(current).count() <= 1
                })
            }),
            Property::always("no credential outlives its registration", |_, world: &World| {
                none_outlives(world)
            }),
            Property::always("no two registrations share an epoch", |_, world: &World| {
                world.stores.instances.iter().all(|instance| {
                    let epochs: BTreeSet<_> = instance.registered.iter().map(|at| at.process_epoch).collect();
                    epochs.len() == instance.registered.len()
                })
            }),
            Property::always("a frozen gate is opened by its own operation", |model, world: &World| {
                (0..STARTS).all(|me| {
                    let instance = &world.stores.instances[model.instances[me]];
                    let Some(held) = instance.gate.0.registering() else { return true };
                    let Entry::Resume(frozen) = see_gate(Some(instance.gate()), held).unwrap() else {
                        return false;
                    };
                    let mut stores = world.stores.clone();
                    // Behind another instance's registration it waits for its turn: that one ends, or is repaired.
                    if !stores.turn(model.instances[me], frozen.gate.coordinate().generation, true) {
                        repair_alone(&mut stores, 1 - model.instances[me], model);
                    }
                    opens_alone(Start::Look(frozen, true), &stores, me, model)
                })
            }),
            Property::always("a frozen gate is opened by a repair", |model, world: &World| {
                (0..INSTANCES).all(|of| {
                    let mut stores = world.stores.clone();
                    repair_alone(&mut stores, of, model);
                    stores.instances[of].gate.0.is_open()
                })
            }),
            Property::always(
                "no instance takes the slot of a registration that is not over",
                |_, world: &World| !world.stores.robbed,
            ),
            Property::always("what a registration declares is recorded", |_, world: &World| {
                world.stores.instances.iter().enumerate().all(|(of, instance)| {
                    instance.registered.is_empty()
                        || declared(of)
                            .keys()
                            .all(|command| world.stores.head.0.commands().contains_key(command))
                })
            }),
            Property::sometimes("both starts register, one after the other", |_, world: &World| {
                world.stores.instances.iter().map(|instance| instance.registered.len()).sum::<usize>() == 2
            }),
            Property::sometimes("a released credential is revoked", |_, world: &World| {
                rows(world).any(|row| row.released && !row.active)
            }),
            Property::sometimes("a mint loses its race", |_, world: &World| {
                rows(world).any(|row| !row.released && !row.active)
            }),
        ]
    }
}

fn rows(world: &World) -> impl Iterator<Item = &Row> {
    world.stores.instances.iter().flat_map(|instance| &instance.rows)
}

fn none_outlives(world: &World) -> bool {
    world.stores.instances.iter().all(|instance| {
        let now = instance.gate.0.coordinate();
        !instance.gate.0.is_open()
            || instance.rows.iter().filter(|row| row.released && row.active).all(|row| {
                row.granted.process_epoch == now.process_epoch
                    && row.granted.registration_revision == now.registration_revision
            })
    })
}

/// Repairs one instance, with nothing else on its way.
fn repair_alone(stores: &mut Stores, of: usize, model: &Registrations) {
    let mut repair = Repair::Idle;
    while repair != Repair::Over {
        repair = repair.step(stores, of, model);
    }
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
    matches!(start, Start::Serving(_)) && stores.of(me, model).gate.0.is_open()
}

fn check(model: Registrations, what: &str) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{what}: {} unique states, {} generated", checker.unique_state_count(), checker.state_count());
}

const MODEL: Registrations = Registrations {
    instances: [0, 0],
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

/// Instances of one endpoint take turns by its slot. What is never seen here is a credential that another instance's
/// registration revoked, so the properties that wait for one are not asked.
#[test]
fn two_instances_of_one_endpoint_take_turns_under_every_interleaving_crash_and_lost_answer() {
    for (runs, repairs, lost_answers) in [([1, 1], 1, 1), ([2, 1], 0, 0)] {
        let model = Registrations { instances: [0, 1], runs, repairs, lost_answers, ..MODEL };
        let checker = model.checker().threads(2).spawn_bfs().join();
        println!(
            "two instances, {runs:?} runs: {} unique states, {} generated",
            checker.unique_state_count(),
            checker.state_count()
        );
        checker.assert_any_discovery("both starts register, one after the other");
        for never in [
            "at most one serve grant of an instance is current",
            "no credential outlives its registration",
            "no two registrations share an epoch",
            "a frozen gate is opened by its own operation",
            "a frozen gate is opened by a repair",
            "no instance takes the slot of a registration that is not over",
            "what a registration declares is recorded",
        ] {
            checker.assert_no_discovery(never);
        }
    }
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
        assert!(rows(&world).any(|row| row.released), "the first one has minted");
        assert_eq!(alive, trusts);
    }
}
