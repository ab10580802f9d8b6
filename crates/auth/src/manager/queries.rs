//! The kinds that only ask: the owner's goals, and whether a caller is an admin (contract 06 §10-11).

use cotal_authority::manager::{Holder, decide_admin_authorization, decide_goal_index_scan, is_admin};
use cotal_ledger::{LedgerError, TaggedRow};
use cotal_wire::{
    DerivedOwner, EpError,
    es_value::EsValue,
    manager_authority::{AdminRequest, AdminResult, GoalIndexRequest, GoalIndexResult, Incarnation, Kind},
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
    let row = row_of(parts, &request.caller).await?;
    let authorized = is_admin(holder, &request, row.as_ref().map(|tagged| &tagged.row));
    print(&AdminResult { request, owner: holder.owner().clone(), authorized })
}

/// An actor's row of either kind. A ledger that cannot be read fails the question: it never answers `false` by itself.
pub(super) async fn row_of(parts: &Parts, caller: &Incarnation) -> Result<Option<TaggedRow>, EpError> {
    // A platform's own actors have no rows.
    let Ok(owner) = DerivedOwner::parse(caller.owner.as_str()) else { return Ok(None) };
    let (ledger, actor) = (parts.ledger.clone(), caller.actor.clone());
    let read = tokio::task::spawn_blocking(move || ledger.lookup(&owner, &actor)).await;
    match read {
        Ok(Ok(found)) => Ok(found),
        // A name that is too long for the ledger is nobody's.
        Ok(Err(LedgerError::Refused(_))) => Ok(None),
        Ok(Err(LedgerError::Broken(detail))) => {
            tracing::error!(%detail, "the actor ledger is broken");
            Err(EpError::internal(
                "the actor ledger cannot be read for this caller; ask the operator of the space",
            ))
        }
        Err(error) => {
            tracing::error!(%error, "a ledger read did not end");
            Err(EpError::internal(
                "the actor ledger cannot be read for this caller; ask the operator of the space",
            ))
        }
    }
}
