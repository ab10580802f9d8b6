//! Managed agents: enrollment, retirement preparation, validation of a retained one (contract 06 §6-9, 05 §9-10).
//!
//! Each kind first checks what needs no read, then reads the manager's gate, and decides over both; what it then writes
//! is the writer's, [`cotal_authority::managed_agents`].

mod enroll;
mod prepare_retirement;
mod validate_retained;

use std::sync::Arc;

use cotal_authority::{managed_agents::StillStands, manager::CurrentManager, registration::gate};
use cotal_wire::{DerivedOwner, EpError, InstanceId, Owner};
use futures::FutureExt;

use super::{Parts, issuing::manager_instance};

pub(super) use enroll::enroll;
pub(super) use prepare_retirement::prepare_retirement;
pub(super) use validate_retained::validate_retained;

/// Managed agents belong to people: the ledger has rows of no other owner.
fn person(owner: &Owner) -> Result<DerivedOwner, EpError> {
    owner.as_derived().ok_or_else(|| {
        EpError::permission_denied("managed agents are enrolled and retired for an owner who signed in")
    })
}

/// Whether a manager is registered as it was when its request was decided, and the plane answers still.
fn still(parts: &Parts, instance: &InstanceId, decided: CurrentManager) -> StillStands {
    let (plane, at) = (Arc::clone(&parts.plane), manager_instance(instance));
    let decided = Arc::new(decided);
    Arc::new(move || {
        let (plane, at, decided) = (Arc::clone(&plane), at.clone(), Arc::clone(&decided));
        async move {
            plane.check_open()?;
            let now = gate::observe(plane.stores(), &at).await?;
            plane.check_open()?;
            if now.is_some_and(|now| now.gate == *decided.gate()) {
                return Ok(());
            }
            Err(EpError::conflict(
                "the manager's registration moved while its request waited; ask again with the present one",
            ))
        }
        .boxed()
    })
}
