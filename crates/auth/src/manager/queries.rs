//! The kinds that only ask: the owner's goals, and whether a caller is an admin (contract 06 §10-11).

use cotal_authority::manager::{Holder, decide_admin_authorization, decide_goal_index_scan, is_admin};
use cotal_wire::{
    EpError,
    es_value::EsValue,
    manager_authority::{AdminRequest, AdminResult, GoalIndexRequest, GoalIndexResult, Kind},
    rows::EndpointGate,
};

use super::{Answer, Parts, observed::decided_at_gate, print};

/// The goals of the holder's own owner, whoever's the request would have: it has no filter.
pub(super) async fn scan_goals(parts: &Parts, holder: &Holder, request: &EsValue) -> Result<Answer, EpError> {
    let request = GoalIndexRequest::parse(request)?;
    let instance = &request.envelope.instance_id;
    let decide = |gate: Option<&EndpointGate>| decide_goal_index_scan(parts.host(), holder, &request, gate);
    decided_at_gate(parts, Kind::GoalIndexScan, instance, decide).await?;
    let _turn = parts.scans.take(holder.owner().clone()).await?;
    let goals = parts.plane.goal_index(holder.owner()).await?;
    print(&GoalIndexResult::answer(&request, holder.owner(), goals))
}

/// Whether a caller is an admin of the manager's owner, as the ledger says now.
pub(super) async fn authorize_admin(
    parts: &Parts,
    holder: &Holder,
    request: &EsValue,
) -> Result<Answer, EpError> {
    let request = AdminRequest::parse(request, holder.kind())?;
    let instance = &request.envelope.instance_id;
    let decide =
        |gate: Option<&EndpointGate>| decide_admin_authorization(parts.host(), holder, &request, gate);
    decided_at_gate(parts, Kind::AdminAuthorization, instance, decide).await?;
    let caller = &request.caller;
    let row = parts.row(&caller.owner, &caller.actor).await?;
    let authorized = is_admin(holder, &request, row.as_ref().map(|tagged| &tagged.row));
    print(&AdminResult { request, owner: holder.owner().clone(), authorized })
}
