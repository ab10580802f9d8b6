//! The decision of maintenance: it mends a registration that has no proof left, so it rests on none (contract 06 §5).

use std::collections::BTreeSet;

use cotal_wire::{
    EpCode, EpError, InstanceId, Owner, Principal,
    endpoint_token::MANAGER_ENDPOINT,
    manager_authority::{
        HolderLiveness, HolderState, Kind, MaintenanceRequest, Mend, Reconciliation, serve_principal,
    },
    rows::{CredentialRow, EndpointGate, GateState},
};

use super::{Holder, Host, mending::is_actor_of};
use crate::{
    registration::{RepairCondition, RepairRefusal, RepairReport, reconcile::Liveness},
    scanner::Scanned,
    store::at_key,
};

/// Steps 1 to 7; an eviction then needs [`check_family`].
pub fn decide_maintenance(
    host: Host<'_>,
    holder: &Holder,
    request: &MaintenanceRequest,
    target: Option<&EndpointGate>,
) -> Result<(), EpError> {
    let envelope = &request.envelope;
    host.asked(Kind::Maintenance, holder, envelope)?;
    if let Holder::Platform { assignment, .. } = holder
        && request.target_instance_id != assignment.instance
    {
        return Err(EpError::permission_denied("a platform mends the instance that it assigned alone"));
    }
    let evicts = matches!(request.mend, Mend::Evict(_));
    if evicts && request.target_instance_id != envelope.instance_id {
        return Err(EpError::permission_denied("a manager evicts the holders of its own credentials alone"));
    }
    // A frozen gate is what maintenance is for.
    let gate = target.filter(|gate| !matches!(gate.state(), GateState::Retired(_))).ok_or_else(|| {
        EpError::failed_precondition(
            "there is no registration to mend: the instance has none, or it is retired",
        )
    })?;
    let must_be_own = evicts || matches!(holder, Holder::Platform { .. });
    if must_be_own && *gate.principal() != serve_principal(holder.owner(), &request.target_instance_id) {
        return Err(EpError::permission_denied("the target instance is registered by another principal"));
    }
    Ok(())
}

/// Step 8: whoever is evicted holds a credential of the target's family, and is one of the manager's own actors. The rows are
/// the manager's own to write, and so might name anybody.
pub fn check_family(
    principals: &[String],
    holders: &BTreeSet<Principal>,
    owner: &Owner,
    target: &InstanceId,
) -> Result<Vec<Principal>, EpError> {
    principals
        .iter()
        .map(|named| {
            Principal::parse_key(named)
                .ok()
                .filter(|principal| holders.contains(principal))
                .filter(|principal| principal.owner == *owner && is_actor_of(principal, target))
                .ok_or_else(|| {
                    EpError::permission_denied(
                        "a named principal holds no credential of this manager instance",
                    )
                })
        })
        .collect()
}

/// Who is named by the rows of an instance's credential family, as a scan found them. A marker is `failed-precondition`, for
/// the family cannot be read whole; a key of another family, and a row that cannot be read, is `internal`.
pub(crate) fn family_holders(
    instance: &InstanceId,
    rows: &[Scanned],
) -> Result<BTreeSet<Principal>, EpError> {
    let prefix = format!("epcred.{MANAGER_ENDPOINT}.{instance}.");
    let holder = |row: &Scanned| {
        let key = row.key.escape_default();
        let Some(value) = &row.value else {
            return Err(EpError::failed_precondition(format!(
                "{key} holds a deletion marker at revision {}; the credential family cannot be read whole",
                row.revision.0
            )));
        };
        if !row.key.starts_with(&prefix) {
            return Err(EpError::internal(format!("{key} is no credential of this manager instance")));
        }
        Ok(at_key(&row.key, CredentialRow::parse(&row.key, value))?.holder().clone())
    };
    rows.iter().map(holder).collect()
}

/// A repair as its result tells it.
pub fn reconciliation(report: &RepairReport) -> Reconciliation {
    let holder = &report.holder_principal;
    let (state, detail) = match report.liveness {
        Liveness::Live => (HolderState::Live, format!("{holder} is connected")),
        Liveness::Gone => (HolderState::Gone, format!("a complete sweep found no connection of {holder}")),
        Liveness::Unknown => (HolderState::Unknown, format!("not every server could be asked for {holder}")),
        Liveness::Unestablishable => {
            (HolderState::Unestablishable, "the delivery daemon does not answer".to_owned())
        }
    };
    Reconciliation {
        endpoint: report.at.endpoint.name(),
        instance_id: report.at.instance.clone(),
        holder_principal: holder.clone(),
        op_id: report.op.clone(),
        freeze_token: report.freeze_token,
        before: report.before,
        liveness: HolderLiveness { state, detail },
        family_rows: report.family_rows as u64,
        revoked: report.revoked.iter().map(ToString::to_string).collect(),
        evicted: report.verified_now.iter().map(Principal::key).collect(),
        reopened_at_generation: report.after.generation,
    }
}

/// A repair that did not reopen the gate, as the route refuses it: what another look may find otherwise is `unavailable`.
pub fn repair_refused(refusal: RepairRefusal) -> EpError {
    let (condition, message) = match refusal {
        RepairRefusal::Failed(refusal) => return refusal,
        RepairRefusal::Condition { condition, message } => (condition, message),
    };
    let code = match condition {
        RepairCondition::NoGate
        | RepairCondition::NotFrozen
        | RepairCondition::WrongOpKind
        | RepairCondition::HolderAlive => EpCode::FailedPrecondition,
        RepairCondition::HolderUnknown
        | RepairCondition::LivenessUnestablishable
        | RepairCondition::EvictionUnverified => EpCode::Unavailable,
        RepairCondition::Raced => EpCode::Conflict,
    };
    EpError::new(code, format!("{condition}: {message}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cotal_wire::{CredentialId, EndpointName, Revision, UnixSecs};
    use serde_json::json;

    use super::*;
    use crate::manager::fixtures::{
        Check, INSTANCE, OTHER_INSTANCE, OTHER_OWNER, OWNER, World, human, instance, owner, prove_order,
    };

    const DENIED: EpCode = EpCode::PermissionDenied;

    fn evict() -> World {
        let more = json!({
            "operation": "evict-family-principal", "targetInstanceId": INSTANCE, "principals": [format!("{OWNER}.x")],
        });
        World::of(Kind::Maintenance, more)
    }

    fn reconcile() -> World {
        World::of(
            Kind::Maintenance,
            json!({ "operation": "reconcile-registration", "targetInstanceId": INSTANCE }),
        )
    }

    fn decide(world: &World) -> Result<(), EpError> {
        let request = MaintenanceRequest::parse(&super::super::fixtures::es(&world.request)).unwrap();
        decide_maintenance(world.host(), &world.holder, &request, world.gate().as_ref())
    }

    fn space() -> Check<World> {
        Check("space", |world| world.request["space"] = json!("other"), DENIED)
    }

    fn scope() -> Check<World> {
        Check("scope", |world| world.holder = human(OWNER, &["admin", "spawn"]), DENIED)
    }

    fn assignment() -> Check<World> {
        let revoke = |world: &mut World| {
            if let Holder::Platform { assignment, .. } = &mut world.holder {
                assignment.assigned = false;
            }
        };
        Check("assignment", revoke, DENIED)
    }

    fn target(what: &'static str) -> Check<World> {
        Check(what, |world| world.request["targetInstanceId"] = json!(OTHER_INSTANCE), DENIED)
    }

    fn retired() -> Check<World> {
        Check("gate", |world| world.gate.state = "retired", EpCode::FailedPrecondition)
    }

    fn principal() -> Check<World> {
        Check("principal", |world| world.gate.owner = OTHER_OWNER, DENIED)
    }

    #[test]
    fn maintenance_is_decided_in_the_contracts_order() {
        let own = target("its own family");
        prove_order(&evict(), &[space(), scope(), own, retired(), principal()], decide);
        prove_order(&reconcile(), &[space(), scope(), retired()], decide);
        for world in [evict(), reconcile()] {
            let assigned = target("the assigned instance");
            prove_order(
                &world.platform(),
                &[space(), assignment(), assigned, retired(), principal()],
                decide,
            );
        }
    }

    #[test]
    fn a_frozen_gate_is_what_maintenance_is_for_and_it_needs_no_proof_and_no_epoch() {
        for mut world in [evict(), reconcile(), evict().platform(), reconcile().platform()] {
            (world.gate.state, world.gate.epoch, world.proved) = ("frozen", 77, false);
            assert_eq!(decide(&world), Ok(()));
            world.gate.there = false;
            assert_eq!(decide(&world).unwrap_err().code, EpCode::FailedPrecondition);
        }
    }

    #[test]
    fn a_person_may_reconcile_a_foreign_slot_holder_and_evict_none() {
        let mut foreign = reconcile();
        (foreign.gate.owner, foreign.gate.instance) = (OTHER_OWNER, OTHER_INSTANCE);
        foreign.request["targetInstanceId"] = json!(OTHER_INSTANCE);
        assert_eq!(decide(&foreign), Ok(()));
        let mut evicted = evict();
        evicted.gate.owner = OTHER_OWNER;
        assert_eq!(decide(&evicted).unwrap_err().code, DENIED);
    }

    fn credential(at: &str, id: &str, holder: &str) -> Scanned {
        let (name, id) = (EndpointName::manager(), CredentialId::parse(id).unwrap());
        let holder = Principal::parse_key(holder).unwrap();
        let row = CredentialRow::endpoint(&name, &instance(at), &id, &holder, UnixSecs(9)).unwrap();
        Scanned {
            key: row.key().to_string(),
            revision: Revision(2),
            value: Some(Bytes::from(row.to_bytes())),
        }
    }

    #[test]
    fn a_family_is_read_whole_or_refused_and_only_its_holders_are_evicted() {
        let (a, b) =
            (format!("{OWNER}.manager_serve_{INSTANCE}"), format!("{OWNER}.manager_goal_{INSTANCE}"));
        let rows =
            [credential(INSTANCE, "c1", &a), credential(INSTANCE, "c2", &b), credential(INSTANCE, "c3", &a)];
        let holders = family_holders(&instance(INSTANCE), &rows).unwrap();
        let key = |principals: Vec<Principal>| principals.iter().map(Principal::key).collect::<Vec<_>>();
        let check = |named: &[String], holders: &BTreeSet<Principal>| {
            check_family(named, holders, &owner(OWNER), &instance(INSTANCE))
        };
        assert_eq!(
            key(check(&[b.clone(), a.clone()], &holders).unwrap()),
            [b.clone(), a],
            "as they were named"
        );
        for stranger in [format!("{OWNER}.alice"), "no principal".to_owned(), format!("{OTHER_OWNER}.x")] {
            assert_eq!(check(&[b.clone(), stranger], &holders).unwrap_err().code, DENIED);
        }
        // The family is written by the manager itself, which may name anybody there.
        for named in [
            format!("{OWNER}.alice"),
            format!("{OTHER_OWNER}.manager_serve_{INSTANCE}"),
            format!("{OWNER}.manager_serve_{OTHER_INSTANCE}"),
            format!("local.U{}", "A".repeat(55)),
        ] {
            let forged = family_holders(&instance(INSTANCE), &[credential(INSTANCE, "c5", &named)]).unwrap();
            assert_eq!(check(&[named], &forged).unwrap_err().code, DENIED);
        }
        let code =
            |row: Scanned| family_holders(&instance(INSTANCE), &[rows[0].clone(), row]).unwrap_err().code;
        assert_eq!(code(Scanned { value: None, ..rows[1].clone() }), EpCode::FailedPrecondition);
        assert_eq!(code(credential(OTHER_INSTANCE, "c4", &b)), EpCode::Internal, "another family's");
        assert_eq!(code(Scanned { value: Some(Bytes::from("{}")), ..rows[1].clone() }), EpCode::Internal);
    }

    #[test]
    fn a_repair_that_another_look_may_find_otherwise_is_unavailable() {
        use RepairCondition::*;
        for (condition, code) in [
            (NoGate, EpCode::FailedPrecondition),
            (NotFrozen, EpCode::FailedPrecondition),
            (WrongOpKind, EpCode::FailedPrecondition),
            (HolderAlive, EpCode::FailedPrecondition),
            (HolderUnknown, EpCode::Unavailable),
            (LivenessUnestablishable, EpCode::Unavailable),
            (EvictionUnverified, EpCode::Unavailable),
            (Raced, EpCode::Conflict),
        ] {
            let refusal = repair_refused(RepairRefusal::Condition { condition, message: "why".to_owned() });
            assert_eq!((refusal.code, refusal.message), (code, format!("{condition}: why")));
        }
        let failed = EpError::internal("a store");
        assert_eq!(repair_refused(RepairRefusal::Failed(failed.clone())), failed);
    }
}
