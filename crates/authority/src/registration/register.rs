//! The registration ceremony: freeze, prepare, contain, commit, promote, reopen (contract 02 §7.3, 07 §11.4).
//!
//! Where the two chapters differ this follows chapter 02, the newer one: the freeze of one's own operation is resumed,
//! the governance slot is kept until after the reopen, and a foreign slot is reclaimed when its holder's gate is past it.
//!
//! | phase | writes | a failure leaves |
//! |---|---|---|
//! | 1 prepare: name, owner, contract, governance slot | the slot, last | the gate reopened as it was, one generation on |
//! | 2 contain: revoke the family, prove its holders gone | revocations, repair cursor | the gate frozen |
//! | 3 commit the spec, 3b record the governance | spec, governance head | the gate frozen |
//! | 4 reopen at the successor, release the slot | gate, governance head | the gate frozen, or a slot to reclaim |
//!
//! A gate that is left frozen is resumed by the same operation or repaired by [`super::reconcile`].

use std::collections::BTreeSet;

use cotal_wire::{
    Command, EndpointName, EpCode, EpError, OpId, Owner, Revision,
    rows::{GateCoordinate, GovernHead, ServiceSpec, ServiceStatus, StatusState},
};
use serde_json::{Map, Value};
use tracing::warn;

use super::{
    EndpointInstance, NameAuthority, Registry,
    family::{self, Sweep},
    gate::{self, Frozen, GateAt},
    serve::{self, ServeGrant},
    slot::{self, SlotSeen},
    spec::{self, SpecSeen},
    status::{StatusWrite, write_status},
    surface::Surface,
};
use crate::evict::Evictor;

/// How many holders one eviction request carries, unless told otherwise (contract 08 §3.1, release 0.69.0).
pub const EVICTION_SWEEP: usize = 256;

/// What is to be registered, and by whose word.
pub struct Registration<'a> {
    /// The instance.
    pub at: &'a EndpointInstance,
    /// What it registers.
    pub spec: &'a ServiceSpec,
    /// Who registers it; must be the spec's owner.
    pub registrant: &'a Owner,
    /// The operation. The same one resumes what it left frozen.
    pub op: &'a OpId,
    /// Who may register which name.
    pub names: &'a dyn NameAuthority,
    /// Ends the connections of whoever served before. Asked only when somebody did.
    pub evictor: &'a dyn Evictor,
    /// How many holders one eviction request carries, at least 1.
    pub eviction_sweep: usize,
}

/// A registration that committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The spec's revision.
    pub registration_revision: Revision,
    /// The process epoch to serve at. The first one is 0.
    pub process_epoch: u64,
    /// The gate as the ceremony reopened it.
    pub gate: GateAt,
}

/// A registration whose instance may serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Serving {
    /// The registration.
    pub registered: Registered,
    /// What it may serve.
    pub grant: ServeGrant,
}

// === deciding =================================================================================================

/// How a ceremony begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Freeze this open gate.
    Freeze(GateAt),
    /// Go on under the freeze that this operation made.
    Resume(Frozen),
}

/// What the gate lets a registration do (contract 02 §7.3 step 2).
pub(crate) fn see_gate(seen: Option<GateAt>, op: &OpId) -> Result<Entry, EpError> {
    let Some(seen) = seen else {
        return Err(EpError::failed_precondition(
            "registration: the instance has no issuance gate; provision one first",
        ));
    };
    if seen.gate.is_open() {
        return Ok(Entry::Freeze(seen));
    }
    if seen.gate.registering() == Some(op) {
        let GateAt { gate, revision } = seen;
        return Ok(Entry::Resume(Frozen { gate, token: revision, op: op.clone() }));
    }
    Err(match seen.gate.state() {
        cotal_wire::rows::GateState::Retired(_) => seen.gate.blocked(
            EpCode::FailedPrecondition,
            "registration: the instance is retired for good; register another one",
        ),
        _ => seen.gate.blocked(
            EpCode::Conflict,
            "registration: another operation holds the instance's gate; retry when it has ended, or run \
             `cotal reconcile-gate` when its process is gone",
        ),
    })
}

/// Whether this is the first registration, which keeps its epoch. A deregistered instance is not first again; a resumed
/// operation goes by the gate alone, because what stands at the key may be its own.
pub(crate) fn is_first(coordinate: GateCoordinate, spec: &SpecSeen, resuming: bool) -> bool {
    coordinate.registration_revision == 0 && (resuming || *spec == SpecSeen::Absent)
}

/// The revision at which the operation that holds the gate has already written its spec, if it has: a spec that is newer
/// than the registration, under a slot of exactly this freeze. Contract 02 §7.3 step 4 asks for the first alone; the
/// slot tells this freeze's write from one that an earlier, repaired operation had still on its way.
pub(crate) fn committed(
    coordinate: GateCoordinate,
    at: &EndpointInstance,
    spec: &SpecSeen,
    head: &GovernHead,
) -> Option<Revision> {
    let SpecSeen::Registered(_, revision) = spec else { return None };
    let newer = revision.0 > coordinate.registration_revision;
    (newer && slot::is_held(head, &at.instance, coordinate.generation)).then_some(*revision)
}

/// Whether the gate still stands where this registration left it. A later one has fenced it.
pub fn confirm(seen: Option<&GateAt>, registered: &Registered) -> Result<(), EpError> {
    let stands = seen.is_some_and(|seen| {
        let coordinate = seen.gate.coordinate();
        seen.gate.is_open()
            && coordinate.process_epoch == registered.process_epoch
            && coordinate.registration_revision == registered.registration_revision.0
    });
    if stands {
        return Ok(());
    }
    Err(EpError::conflict("registration: a later registration of this instance has taken over"))
}

fn check(request: &Registration<'_>) -> Result<(), EpError> {
    if request.spec.endpoint().token() != request.at.endpoint {
        return Err(EpError::internal("registration: the spec is of another endpoint"));
    }
    if request.registrant != request.spec.owner() {
        return Err(EpError::permission_denied("registration: the registrant is not the spec's owner"));
    }
    if request.eviction_sweep == 0 {
        return Err(EpError::internal("registration: an eviction sweep carries at least one holder"));
    }
    Ok(())
}

// === driving ==================================================================================================

/// Registers one instance (contract 02 §7.3).
///
/// Refusals: `internal` for a spec of another endpoint; `permission-denied` for a registrant, a name, a stored owner or a
/// dropped governed trait; `failed-precondition` for an absent or retired gate and an unreadable contract; `conflict` for
/// a gate or a slot that another registration holds. `unavailable` says that the gate stays frozen.
pub async fn register_service_instance(
    registry: &Registry,
    request: &Registration<'_>,
) -> Result<Registered, EpError> {
    check(request)?;
    let stores = registry.stores();
    match see_gate(gate::observe(stores, request.at).await?, request.op)? {
        Entry::Freeze(seen) => {
            let frozen = gate::freeze(stores, request.at, seen, request.op).await?.ok_or_else(|| {
                EpError::conflict("registration: the instance's gate moved; another start was first")
            })?;
            let ceremony = Ceremony { registry, request, frozen, resuming: false };
            match ceremony.prepare().await {
                Ok(prepared) => ceremony.commit(prepared).await,
                Err(refusal) => Err(ceremony.abort(refusal).await),
            }
        }
        Entry::Resume(frozen) => {
            let ceremony = Ceremony { registry, request, frozen, resuming: true };
            match ceremony.committed_before().await? {
                Some(revision) => ceremony.complete(revision).await,
                None => ceremony.commit(ceremony.prepare().await?).await,
            }
        }
    }
}

/// Registers an instance and lets it serve: authorizes its serve grant and writes status `ready`, both at exactly the
/// coordinate that the registration committed (contract 07 §11.4, §17.1). `conflict` when a later registration has taken
/// over meanwhile.
pub async fn register_serving_instance(
    registry: &Registry,
    request: &Registration<'_>,
    pools: &BTreeSet<Command>,
    status: Map<String, Value>,
) -> Result<Serving, EpError> {
    let registered = register_service_instance(registry, request).await?;
    let stores = registry.stores();
    let served = async {
        let grant = serve::authorize(
            registry,
            &serve::ServeRequest {
                at: request.at,
                owner: request.registrant,
                epoch: registered.process_epoch,
                pools,
                names: request.names,
            },
            Some(registered.gate.clone()),
        )
        .await?;
        let ready = ServiceStatus::new(
            registered.process_epoch,
            StatusState::ready(),
            registered.registration_revision,
        )
        .with(status);
        let write = StatusWrite {
            at: request.at,
            writer_epoch: registered.process_epoch,
            status: ready,
            supervisor: false,
            expected: None,
        };
        write_status(stores, write).await?;
        Ok(grant)
    };
    let served: Result<ServeGrant, EpError> = served.await;
    confirm(gate::observe(stores, request.at).await?.as_ref(), &registered)?;
    Ok(Serving { registered, grant: served? })
}

/// One run under one freeze.
struct Ceremony<'a> {
    registry: &'a Registry,
    request: &'a Registration<'a>,
    frozen: Frozen,
    resuming: bool,
}

/// What phase 1 leaves for the commit.
struct Prepared {
    /// What the spec write is pinned to: what was seen before anybody was evicted.
    over: Revision,
    first: bool,
}

impl Ceremony<'_> {
    fn coordinate(&self) -> GateCoordinate {
        self.frozen.gate.coordinate()
    }

    /// Phase 1. The slot is its one write, and its last step.
    async fn prepare(&self) -> Result<Prepared, EpError> {
        let Self { registry, request, .. } = self;
        let (stores, at, proposal) = (registry.stores(), request.at, request.spec);

        let verdict = request.names.authorize(proposal.endpoint(), proposal.owner()).await?;
        if !verdict.authorized {
            return Err(not_authorized(proposal.endpoint()));
        }
        if verdict.revision != self.coordinate().name_authority_revision {
            return Err(EpError::conflict(
                "registration: the name authority has moved since the gate was provisioned",
            ));
        }

        let stored = spec::read(stores, at).await?;
        if let SpecSeen::Registered(stored, _) = &stored
            && stored.owner() != proposal.owner()
        {
            return Err(EpError::permission_denied(
                "registration: the instance is registered by another owner",
            ));
        }
        let prepared =
            Prepared { over: stored.revision(), first: is_first(self.coordinate(), &stored, self.resuming) };

        let head = slot::read_head(stores, at).await?;
        let generation = self.coordinate().generation;
        let seen = slot::see_slot(&head.head, &at.instance, generation, self.resuming)?;
        if let SlotSeen::Foreign(holder) = &seen {
            slot::reclaim(holder, slot::see_holder(stores, at, holder).await)?;
        }

        let surface = Surface::read(registry.contracts(), proposal).await;
        let surface = surface.map_err(|unserved| unserved.to_registrant())?;
        if proposal.activation().is_some()
            && let Some((_, command)) = surface.commands().find(|(_, command)| !command.is_journaled())
        {
            return Err(EpError::failed_precondition(format!(
                "registration: an endpoint that is started on demand journals every command, and {} is not",
                command.name
            )));
        }
        let declared = surface.declared();
        if let Some((command, dropped)) = head.head.dropped_by(&declared) {
            return Err(EpError::permission_denied(format!(
                "registration: {command} was bound to {dropped} and is declared without it"
            )));
        }

        let holder = cotal_wire::rows::SlotHolder { instance: at.instance.clone(), generation };
        let taken = head.head.clone().take(holder, &declared);
        if taken != head.head {
            slot::take(stores, at, taken, head.revision).await?;
        }
        Ok(prepared)
    }

    /// Reopens the gate as it was, one generation on, and answers what phase 1 was refused for.
    async fn abort(&self, refusal: EpError) -> EpError {
        let reopened =
            gate::reopen(self.registry.stores(), self.request.at, &self.frozen, self.coordinate().reopened());
        match reopened.await {
            Ok(Some(_)) => refusal,
            Ok(None) => self.left_frozen(&format!("{refusal}; and the gate moved while it was reopened")),
            Err(why) => self.left_frozen(&format!("{refusal}; and the gate could not be reopened: {why}")),
        }
    }

    /// The spec that an earlier run of this operation wrote, when it is what is proposed now.
    async fn committed_before(&self) -> Result<Option<Revision>, EpError> {
        let (stores, at) = (self.registry.stores(), self.request.at);
        let stored = spec::read(stores, at).await?;
        let head = slot::read_head(stores, at).await?;
        let revision = committed(self.coordinate(), at, &stored, &head.head);
        let proposed = matches!(&stored, SpecSeen::Registered(stored, _) if stored == self.request.spec);
        Ok(revision.filter(|_| proposed))
    }

    /// Phases 2 to 4.
    async fn commit(&self, prepared: Prepared) -> Result<Registered, EpError> {
        self.contain().await?;
        let revision =
            spec::commit(self.registry.stores(), self.request.at, self.request.spec, prepared.over)
                .await
                .map_err(|why| self.left_frozen(&why.message))?;
        self.finish(revision, prepared.first).await
    }

    /// What is left of an operation that had written its spec. Its family was contained before that; it is again, for a
    /// resumed run cannot tell whose spec it found.
    async fn complete(&self, revision: Revision) -> Result<Registered, EpError> {
        self.contain().await?;
        self.finish(revision, self.coordinate().registration_revision == 0).await
    }

    /// Phase 2.
    async fn contain(&self) -> Result<(), EpError> {
        let (stores, at) = (self.registry.stores(), self.request.at);
        let contained = async {
            let rows = family::list(stores, at).await?;
            family::revoke_active(stores, &rows).await?;
            let holders = rows.iter().map(|row| row.holder().clone()).collect();
            let sweep =
                Sweep { evictor: self.request.evictor, most: self.request.eviction_sweep, begin: false };
            let contained =
                family::prove_gone(stores, at, (&self.frozen.op, self.frozen.token), &holders, sweep).await?;
            match contained.note {
                None => Ok(()),
                Some(note) => Err(EpError::unavailable(note)),
            }
        };
        contained.await.map_err(|why: EpError| self.left_frozen(&why.message))
    }

    /// Phases 3b and 4.
    async fn finish(&self, revision: Revision, first: bool) -> Result<Registered, EpError> {
        let (stores, at) = (self.registry.stores(), self.request.at);
        let generation = self.coordinate().generation;
        slot::promote(stores, at, generation).await.map_err(|why| self.left_frozen(&why.message))?;
        let successor = self.coordinate().registered(revision, first);
        let gate = match gate::reopen(stores, at, &self.frozen, successor).await {
            Ok(Some(gate)) => gate,
            Ok(None) => return Err(self.left_frozen("the gate moved while it was reopened")),
            Err(why) => return Err(self.left_frozen(&why.message)),
        };
        // The registration stands. What these leave behind, the next one takes.
        if let Err(why) = slot::release(stores, at, generation).await {
            warn!(instance = %at, %why, "registration: the governance slot is left for the next registration");
        }
        if let Err(why) = family::clear_cursor(stores, at).await {
            warn!(instance = %at, %why, "registration: the repair cursor is left behind");
        }
        Ok(Registered { registration_revision: revision, process_epoch: successor.process_epoch, gate })
    }

    /// The refusal that says who holds the gate and what mends it.
    fn left_frozen(&self, why: &str) -> EpError {
        self.frozen.gate.blocked(
            EpCode::Unavailable,
            &format!(
                "registration: {why}; operation {} is to be run again, or repaired by `cotal reconcile-gate`",
                self.frozen.op
            ),
        )
    }
}

/// The refusal of a name that this owner may not register.
pub(crate) fn not_authorized(name: &EndpointName) -> EpError {
    EpError::permission_denied(format!("registration: this owner may not register the endpoint {name}"))
}

#[cfg(test)]
mod tests {
    use cotal_wire::{EndpointToken, InstanceId, Principal, rows::EndpointGate};

    use super::*;

    fn op(c: char) -> OpId {
        OpId::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn open() -> EndpointGate {
        EndpointGate::provisioned(&Principal::parse_key("local.a").unwrap())
    }

    fn see(gate: EndpointGate, op: &OpId) -> Result<Entry, EpError> {
        see_gate(Some(GateAt { gate, revision: Revision(9) }), op)
    }

    fn stored(state: &str, kind: &str) -> EndpointGate {
        let row = String::from_utf8(open().freeze(&op('o')).unwrap().to_bytes()).unwrap();
        let row = row.replace("frozen", state).replace("\"registration\"", &format!("\"{kind}\""));
        EndpointGate::parse(row.as_bytes()).unwrap()
    }

    #[test]
    fn a_gate_admits_a_registration_when_open_or_frozen_by_that_very_operation() {
        assert!(matches!(see(open(), &op('o')), Ok(Entry::Freeze(_))));
        let resumed = see(stored("frozen", "registration"), &op('o')).unwrap();
        assert!(matches!(resumed, Entry::Resume(Frozen { token: Revision(9), .. })));
        assert_eq!(see_gate(None, &op('o')).unwrap_err().code, EpCode::FailedPrecondition);
        for (state, kind, by, code, remedy) in [
            ("frozen", "registration", 'x', EpCode::Conflict, Some("cotal reconcile-gate")),
            ("frozen", "takeover", 'o', EpCode::Conflict, Some("retry")),
            ("retired", "retirement", 'o', EpCode::FailedPrecondition, None),
        ] {
            let refusal = see(stored(state, kind), &op(by)).unwrap_err();
            assert_eq!(refusal.code, code, "{state} {kind}");
            assert_eq!(refusal.details[0]["gateState"], state);
            assert_eq!(refusal.details[0].get("remedy").and_then(Value::as_str), remedy);
        }
    }

    #[test]
    fn only_what_was_never_registered_is_first() {
        let never = GateCoordinate::default();
        let before = GateCoordinate { registration_revision: 3, ..never };
        let marker = SpecSeen::Deregistered(Revision(4));
        assert!(is_first(never, &SpecSeen::Absent, false) && is_first(never, &marker, true));
        assert!(!is_first(never, &marker, false), "a tombstone counts as prior");
        assert!(!is_first(before, &SpecSeen::Absent, false) && !is_first(before, &SpecSeen::Absent, true));
    }

    #[test]
    fn a_spec_is_committed_only_when_newer_and_under_this_freezes_slot() {
        let endpoint = EndpointToken::parse("auth").unwrap();
        let instance = InstanceId::parse(&"i".repeat(26)).unwrap();
        let at = EndpointInstance { endpoint: endpoint.clone(), instance: instance.clone() };
        let digest = cotal_wire::DigestRef::parse(cotal_wire::canonical::VOID_CLOSURE_DIGEST).unwrap();
        let spec = ServiceSpec::new(&endpoint.name(), &Owner::local(), vec![digest]).unwrap();
        let held = |generation| {
            let holder = cotal_wire::rows::SlotHolder { instance: instance.clone(), generation };
            GovernHead::default().take(holder, &cotal_wire::rows::Governed::new())
        };
        let coordinate =
            GateCoordinate { generation: 2, registration_revision: 5, ..GateCoordinate::default() };
        let put = |revision| SpecSeen::Registered(spec.clone(), Revision(revision));
        assert_eq!(committed(coordinate, &at, &put(6), &held(2)), Some(Revision(6)));
        assert_eq!(committed(coordinate, &at, &put(5), &held(2)), None, "the registration that stands");
        assert_eq!(committed(coordinate, &at, &put(6), &held(1)), None, "an earlier freeze's");
        assert_eq!(committed(coordinate, &at, &put(6), &GovernHead::default()), None);
        assert_eq!(committed(coordinate, &at, &SpecSeen::Deregistered(Revision(6)), &held(2)), None);
        assert_eq!(committed(coordinate, &at, &SpecSeen::Absent, &held(2)), None);
    }
}
