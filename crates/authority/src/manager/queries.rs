//! The decisions of the kinds that only ask (contract 06 §10-11).

use cotal_ledger::ActorRow;
use cotal_wire::{
    EpError, LifecycleUid, OwnerKind,
    manager_authority::{ADMIN, AdminRequest, GoalIndexRequest},
    rows::EndpointGate,
};

use super::{
    Holder, Host,
    registration::{CurrentManager, check_current},
};

/// A scan that may run, over the goals of the holder's own owner alone.
pub fn decide_goal_index_scan(
    host: Host<'_>,
    holder: &Holder,
    request: &GoalIndexRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.serves(&request.envelope)?;
    holder.may_supervise(request.envelope.instance_id.as_str())?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// A question about an admin that may be answered; the answer is [`is_admin`]'s.
pub fn decide_admin_authorization(
    host: Host<'_>,
    holder: &Holder,
    request: &AdminRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.serves(&request.envelope)?;
    holder.may_supervise(request.envelope.instance_id.as_str())?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// The one boolean. `row` is the caller's row of either kind, read fresh; an unreadable ledger never comes so far.
///
/// Absent, revoked, narrowed, foreign-owner and stale-lifecycle callers are no admins, and nobody is for a platform.
pub fn is_admin(holder: &Holder, request: &AdminRequest, row: Option<&ActorRow>) -> bool {
    let Holder::Human { owner, .. } = holder else { return false };
    let caller = &request.caller;
    caller.owner == *owner
        && caller.owner.kind() == OwnerKind::Derived
        && row.is_some_and(|row| {
            row.lifecycle_uid.as_deref().map(LifecycleUid::parse) == Some(Ok(caller.lifecycle_uid.clone()))
                && row.has_scope(ADMIN)
        })
}
