//! The repair of a gate that a dead registration left frozen (contract 07 §11.9, 02 §3.7).
//!
//! Nothing is changed before the process that held the gate is proved gone. Then the family is revoked, every holder
//! proved gone, and the registration completed if its spec was written, or undone if not.

use std::{collections::BTreeSet, fmt};

use async_trait::async_trait;
use cotal_wire::{
    EpError, OpId, Principal, Revision,
    rows::{CredentialKey, GateCoordinate, GateState, GovernHead, OpKind, ServiceSpec},
};

use super::{
    EndpointInstance, Registry,
    family::{self, Sweep},
    gate::{self, Frozen},
    register, slot,
    spec::{self, SpecSeen},
    surface::{Surface, Unserved},
};
use crate::{claim_oracle::Verdict, delivery_admin::DeliveryAdmin, evict::Evictor};

/// Whether a principal holds a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Liveness {
    /// It does.
    Live,
    /// A complete sweep found none.
    Gone,
    /// The sweep could not say.
    Unknown,
    /// Nobody could be asked.
    Unestablishable,
}

/// Says whether a principal holds a connection. It never fails.
#[async_trait]
pub trait PrincipalLiveness: Send + Sync {
    /// The verdict on this principal.
    async fn liveness(&self, principal: &Principal) -> Liveness;
}

#[async_trait]
impl PrincipalLiveness for DeliveryAdmin {
    async fn liveness(&self, principal: &Principal) -> Liveness {
        match self.try_principal_liveness(principal).await {
            Ok(Verdict::Live) => Liveness::Live,
            Ok(Verdict::Gone) => Liveness::Gone,
            Ok(Verdict::Unknown) => Liveness::Unknown,
            Err(error) => {
                tracing::warn!(%principal, %error, "repair: nobody could be asked");
                Liveness::Unestablishable
            }
        }
    }
}

/// Why a gate was not repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RepairCondition {
    /// There is no gate.
    NoGate,
    /// It is not frozen.
    NotFrozen,
    /// Something else than a registration holds it.
    WrongOpKind,
    /// Its process is there.
    HolderAlive,
    /// Nobody can say whether its process is there.
    HolderUnknown,
    /// Nobody could be asked.
    LivenessUnestablishable,
    /// A holder is not proved gone. What was proved is kept.
    EvictionUnverified,
    /// Another one moved the gate.
    Raced,
}

/// A repair that did not reopen the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairRefusal {
    /// A condition of the repair does not hold.
    Condition {
        /// Which one.
        condition: RepairCondition,
        /// The sentence for the operator.
        message: String,
    },
    /// A store refused.
    Failed(EpError),
}

/// What a repair did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairReport {
    /// The instance.
    pub at: EndpointInstance,
    /// The gate's principal, whose process was proved gone.
    pub holder_principal: Principal,
    /// The operation that had frozen the gate.
    pub op: OpId,
    /// The revision of the freeze.
    pub freeze_token: Revision,
    /// Where the gate stood.
    pub before: GateCoordinate,
    /// Where it stands.
    pub after: GateCoordinate,
    /// What the liveness probe said: always gone.
    pub liveness: Liveness,
    /// How many rows the family has.
    pub family_rows: usize,
    /// The rows that were revoked.
    pub revoked: Vec<CredentialKey>,
    /// Every holder: the gate's principal and the rows'.
    pub holders: BTreeSet<Principal>,
    /// Those that an earlier attempt had proved gone.
    pub verified_before: BTreeSet<Principal>,
    /// Those that this one did.
    pub verified_now: BTreeSet<Principal>,
    /// Those that remain: none, in a report.
    pub remaining: BTreeSet<Principal>,
    /// Whether the repair cursor was deleted; a retained one does no harm.
    pub cursor_deleted: bool,
    /// Whether the dead registration was completed, or undone.
    pub completed: bool,
}

impl RepairCondition {
    /// The wire word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoGate => "no-gate",
            Self::NotFrozen => "not-frozen",
            Self::WrongOpKind => "wrong-op-kind",
            Self::HolderAlive => "holder-alive",
            Self::HolderUnknown => "holder-unknown",
            Self::LivenessUnestablishable => "liveness-unestablishable",
            Self::EvictionUnverified => "eviction-unverified",
            Self::Raced => "raced",
        }
    }
}

impl fmt::Display for RepairCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for RepairRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Condition { condition, message } => write!(f, "{condition}: {message}"),
            Self::Failed(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for RepairRefusal {}

impl From<EpError> for RepairRefusal {
    fn from(refusal: EpError) -> Self {
        Self::Failed(refusal)
    }
}

// === deciding =================================================================================================

/// Which gate a repair may look into: one that a registration froze.
pub(crate) fn repairable(seen: Option<gate::GateAt>) -> Result<Frozen, RepairRefusal> {
    let Some(seen) = seen else {
        return Err(refuse(RepairCondition::NoGate, "the instance has no issuance gate"));
    };
    let op = match seen.gate.state() {
        GateState::Open => {
            return Err(refuse(RepairCondition::NotFrozen, "the gate is open: nothing to repair"));
        }
        GateState::Retired(_) => {
            return Err(refuse(RepairCondition::NotFrozen, "the gate is retired for good"));
        }
        GateState::Frozen(op) if op.kind() != OpKind::Registration => {
            let message = format!("a {} holds the gate; it ends, or is resumed, by itself", op.kind());
            return Err(refuse(RepairCondition::WrongOpKind, message));
        }
        GateState::Frozen(op) => op.op_id().clone(),
    };
    Ok(Frozen { gate: seen.gate, token: seen.revision, op })
}

/// Only a process that is proved gone is repaired after.
pub(crate) fn may_repair(liveness: Liveness) -> Result<(), RepairRefusal> {
    match liveness {
        Liveness::Gone => Ok(()),
        Liveness::Live => Err(refuse(
            RepairCondition::HolderAlive,
            "the process that holds the gate is connected; stop it first",
        )),
        Liveness::Unknown => Err(refuse(
            RepairCondition::HolderUnknown,
            "not every server could be asked for the process that holds the gate; retry",
        )),
        Liveness::Unestablishable => Err(refuse(
            RepairCondition::LivenessUnestablishable,
            "the delivery daemon does not answer; start it with `cotal up`, then retry",
        )),
    }
}

fn refuse(condition: RepairCondition, message: impl Into<String>) -> RepairRefusal {
    RepairRefusal::Condition { condition, message: message.into() }
}

// === driving ==================================================================================================

/// Repairs the gate of one instance, over a connection that holds a registration executor's grant.
pub async fn reconcile_endpoint_gate(
    registry: &Registry,
    at: &EndpointInstance,
    liveness: &dyn PrincipalLiveness,
    evictor: &dyn Evictor,
) -> Result<RepairReport, RepairRefusal> {
    let stores = registry.stores();
    let observed = match gate::observe(stores, at).await {
        Ok(observed) => observed,
        // A marker is the same to an operator as a gate that was never there.
        Err(refusal) if refusal.code == cotal_wire::EpCode::FailedPrecondition => None,
        Err(refusal) => return Err(refusal.into()),
    };
    let frozen = repairable(observed)?;
    let principal = frozen.gate.principal().clone();
    let verdict = liveness.liveness(&principal).await;
    may_repair(verdict)?;

    let rows = family::list(stores, at).await?;
    let revoked = family::revoke_active(stores, &rows).await?;
    let mut holders: BTreeSet<_> = rows.iter().map(|row| row.holder().clone()).collect();
    holders.insert(principal.clone());
    // One at a time: each is kept before the next is tried.
    let sweep = Sweep { evictor, most: 1, begin: true };
    let contained = family::prove_gone(stores, at, (&frozen.op, frozen.token), &holders, sweep).await?;
    if let Some(note) = contained.note {
        return Err(refuse(
            RepairCondition::EvictionUnverified,
            format!("{note}; {} of {} holders remain, retry", contained.remaining.len(), holders.len()),
        ));
    }

    let before = frozen.gate.coordinate();
    let stored = spec::read(stores, at).await?;
    let head = slot::read_head(stores, at).await?;
    let mut committed = register::committed(before, at, &stored, &head.head);
    if let (Some(_), SpecSeen::Registered(spec, _)) = (committed, &stored)
        && !declares_what_its_slot_does(registry, spec, &head.head).await?
    {
        committed = None;
    }
    let after = match committed {
        Some(revision) => {
            slot::promote(stores, at, before.generation).await?;
            before.registered(revision, before.registration_revision == 0)
        }
        None => before.reopened(),
    };
    if gate::reopen(stores, at, &frozen, after).await?.is_none() {
        return Err(refuse(RepairCondition::Raced, "the gate moved while it was repaired; look again"));
    }
    // The gate is open; what these leave behind, the next registration takes.
    if let Err(why) = slot::release(stores, at, before.generation).await {
        tracing::warn!(instance = %at, %why, "repair: the governance slot is left for the next registration");
    }
    let cursor_deleted = match family::clear_cursor(stores, at).await {
        Ok(()) => true,
        Err(why) => {
            tracing::warn!(instance = %at, %why, "repair: the cursor is retained");
            false
        }
    };
    Ok(RepairReport {
        at: at.clone(),
        holder_principal: principal,
        op: frozen.op,
        freeze_token: frozen.token,
        before,
        after,
        liveness: verdict,
        family_rows: rows.len(),
        revoked,
        holders,
        verified_before: contained.before,
        verified_now: contained.now,
        remaining: contained.remaining,
        cursor_deleted,
        completed: committed.is_some(),
    })
}

/// Whether a spec is of the operation that holds the slot, as far as the slot tells: what it declares. Another one was on
/// its way when an earlier operation was repaired; completed under this slot, its own governed traits would be lost.
async fn declares_what_its_slot_does(
    registry: &Registry,
    spec: &ServiceSpec,
    head: &GovernHead,
) -> Result<bool, EpError> {
    match Surface::read(registry.contracts(), spec).await {
        Ok(surface) => Ok(head.holds_slot_for(&surface.declared())),
        Err(Unserved::Unreadable(why)) => Err(why),
        // A registration reads every closure before it writes its spec.
        Err(Unserved::Missing(_) | Unserved::Garbled(_) | Unserved::Twice(_)) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::rows::EndpointGate;

    use super::*;

    fn condition<T: fmt::Debug>(result: Result<T, RepairRefusal>) -> &'static str {
        match result.unwrap_err() {
            RepairRefusal::Condition { condition, .. } => condition.as_str(),
            RepairRefusal::Failed(refusal) => panic!("{refusal}"),
        }
    }

    #[test]
    fn only_a_gate_that_a_registration_froze_is_repaired() {
        let open = EndpointGate::provisioned(&Principal::parse_key("local.a").unwrap());
        let op = OpId::parse(&"f".repeat(26)).unwrap();
        let at = |gate| Some(gate::GateAt { gate, revision: Revision(3) });
        let frozen = open.clone().freeze(&op).unwrap();
        let row = String::from_utf8(frozen.to_bytes()).unwrap();
        let stored = |state: &str, kind: &str| {
            let row = row.replace("frozen", state).replace("registration\"}", &format!("{kind}\"}}"));
            at(EndpointGate::parse(row.as_bytes()).unwrap())
        };
        assert_eq!(condition(repairable(None)), "no-gate");
        assert_eq!(condition(repairable(at(open))), "not-frozen");
        assert_eq!(condition(repairable(stored("retired", "retirement"))), "not-frozen");
        assert_eq!(condition(repairable(stored("frozen", "takeover"))), "wrong-op-kind");
        let found = repairable(at(frozen)).unwrap();
        assert_eq!((found.op, found.token), (op, Revision(3)));
    }

    #[test]
    fn only_what_is_proved_gone_is_repaired_after() {
        assert_eq!(may_repair(Liveness::Gone), Ok(()));
        for (liveness, want) in [
            (Liveness::Live, "holder-alive"),
            (Liveness::Unknown, "holder-unknown"),
            (Liveness::Unestablishable, "liveness-unestablishable"),
        ] {
            assert_eq!(condition(may_repair(liveness)), want);
        }
    }
}
