//! Whether a manager is registered now, and is the one that asks (contract 06 §3.4).

use cotal_trust::registration_proof::RegistrationProofKey;
use cotal_wire::{
    EpError, InstanceId, Owner,
    manager_authority::{Envelope, serve_principal},
    rows::EndpointGate,
};

/// An open gate of the manager that asked, whose registration it proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentManager {
    gate: EndpointGate,
}

impl CurrentManager {
    /// The gate, as it was read.
    pub fn gate(&self) -> &EndpointGate {
        &self.gate
    }
}

/// Step 1: the gate is there and open.
pub(super) fn open(gate: Option<&EndpointGate>) -> Result<&EndpointGate, EpError> {
    gate.filter(|gate| gate.is_open()).ok_or_else(|| {
        EpError::failed_precondition(
            "the manager's registration is not open; register it again, then retry with its new epoch",
        )
    })
}

/// Step 2: it is this owner's manager.
pub(super) fn of_owner(gate: &EndpointGate, owner: &Owner, instance: &InstanceId) -> Result<(), EpError> {
    if *gate.principal() == serve_principal(owner, instance) {
        Ok(())
    } else {
        Err(EpError::permission_denied("this manager instance is registered by another principal"))
    }
}

/// Step 3: it serves at this epoch. Epochs are compared for equality alone.
pub(super) fn at_epoch(gate: &EndpointGate, epoch: u64) -> Result<(), EpError> {
    if gate.coordinate().process_epoch == epoch {
        Ok(())
    } else {
        Err(EpError::conflict("the manager has registered again since; ask with its present epoch"))
    }
}

/// Step 4: the request carries the keyed proof of that registration.
pub(super) fn proved(
    gate: &EndpointGate,
    envelope: &Envelope,
    owner: &Owner,
    key: &RegistrationProofKey,
) -> Result<(), EpError> {
    let at = gate.coordinate();
    if key.proves(envelope, owner, at.registration_revision, at.process_epoch) {
        Ok(())
    } else {
        Err(bad_proof())
    }
}

pub(super) fn bad_proof() -> EpError {
    EpError::permission_denied("the registration proof is not of this manager's registration")
}

/// All four, in order. `epoch` is `None` for the one request that names none: `renew`.
pub fn check_current(
    gate: Option<&EndpointGate>,
    envelope: &Envelope,
    epoch: Option<u64>,
    owner: &Owner,
    key: &RegistrationProofKey,
) -> Result<CurrentManager, EpError> {
    let gate = open(gate)?;
    of_owner(gate, owner, &envelope.instance_id)?;
    if let Some(epoch) = epoch {
        at_epoch(gate, epoch)?;
    }
    proved(gate, envelope, owner, key)?;
    Ok(CurrentManager { gate: gate.clone() })
}
