//! The decision of maintenance: it mends a registration that has no proof left, so it rests on none (contract 06 §5).

use std::collections::BTreeSet;

use cotal_wire::{
    EpError, Principal,
    manager_authority::{MaintenanceRequest, Mend, serve_principal},
    rows::{EndpointGate, GateState},
};

use super::{Holder, Host};

/// Steps 1 to 7; an eviction then needs [`check_family`].
pub fn decide_maintenance(
    host: Host<'_>,
    holder: &Holder,
    request: &MaintenanceRequest,
    target: Option<&EndpointGate>,
) -> Result<(), EpError> {
    let envelope = &request.envelope;
    host.serves(envelope)?;
    holder.may_supervise(envelope.instance_id.as_str())?;
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

/// Step 8: whoever is evicted holds a credential of the target's family.
pub fn check_family(principals: &[String], holders: &BTreeSet<Principal>) -> Result<Vec<Principal>, EpError> {
    principals
        .iter()
        .map(|named| {
            Principal::parse_key(named).ok().filter(|principal| holders.contains(principal)).ok_or_else(
                || {
                    EpError::permission_denied(
                        "a named principal holds no credential of this manager instance",
                    )
                },
            )
        })
        .collect()
}
