//! Managed agents: enrollment, retirement preparation, validation of a retained one (contract 06 §6-9, 05 §9-10).
//!
//! Each kind first checks what needs no read, then reads the manager's gate, and decides over both; what it then writes
//! is the writer's, [`cotal_authority::managed_agents`].

mod enroll;
mod prepare_retirement;
mod validate_retained;

use cotal_wire::{DerivedOwner, EpError, Owner};

pub(super) use enroll::enroll;
pub(super) use prepare_retirement::prepare_retirement;
pub(super) use validate_retained::validate_retained;

/// Managed agents belong to people: the ledger has rows of no other owner.
fn person(owner: &Owner) -> Result<DerivedOwner, EpError> {
    DerivedOwner::parse(owner.as_str()).map_err(|_| {
        EpError::permission_denied("managed agents are enrolled and retired for an owner who signed in")
    })
}
