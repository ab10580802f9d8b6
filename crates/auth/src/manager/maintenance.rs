//! Maintenance: mends a registration that has no proof left (contract 06 §5).

use std::collections::{BTreeMap, BTreeSet};

use cotal_authority::{
    evict::{Eviction, Evictor},
    manager::{Holder, OfInstance, check_family, decide_maintenance, reconciliation, repair_refused},
    registration::{Registry, RepairReport, reconcile_endpoint_gate},
};
use cotal_broker::Lifetime;
use cotal_wire::{
    ConnId, EpError, InfraRole, InstanceId, Owner, Principal,
    delivery_admin::EvictionResult,
    es_value::EsValue,
    grants::endpoint_serve,
    manager_authority::{Kind, MaintenanceRequest, MaintenanceResult, Mend, Mended},
    rows::EndpointGate,
};

use super::{Answer, Parts, issuing::manager_instance, observed::decided_at_gate, print};

/// Lifetime of the credential that reconciles, in seconds.
const EXECUTOR_TTL_SECS: u64 = 60;

/// Evicts holders of the manager's own credential family, or reconciles a gate that a dead registration left frozen.
pub(super) async fn mend(parts: &Parts, holder: &Holder, request: &EsValue) -> Result<Answer, EpError> {
    let request = MaintenanceRequest::parse(request)?;
    let target = &request.target_instance_id;
    let decide = |gate: Option<&EndpointGate>| decide_maintenance(parts.host(), holder, &request, gate);
    decided_at_gate(parts, Kind::Maintenance, target, decide).await?;
    // A scan of everybody's stream, and a sweep of everybody's connections: an owner has one at a time. What has waited is
    // decided anew.
    let _turn = parts.mending.take(holder.owner().clone()).await?;
    parts.plane.check_open()?;
    decided_at_gate(parts, Kind::Maintenance, target, decide).await?;
    let outcome = match &request.mend {
        Mend::Evict(named) => {
            let family = parts.plane.manager_family(target).await?;
            Mended::Evicted(evict(parts, &check_family(named, &family, holder.owner(), target)?).await?)
        }
        Mend::Reconcile => {
            // Who mends the instance that it is itself is connected, and knows that it is.
            let itself = (request.envelope.instance_id == *target).then(|| holder.owner());
            Mended::Reconciled(Box::new(reconciliation(&reconcile(parts, target, itself).await?)))
        }
    };
    print(&MaintenanceResult { owner: holder.owner().clone(), request, outcome })
}

/// All of them in one sweep; one result for each, in the order in which they were named. What cannot be proved is told as
/// that, and is no refusal.
async fn evict(parts: &Parts, named: &[Principal]) -> Result<Vec<EvictionResult>, EpError> {
    // The scan of the family may have waited for its turn.
    parts.plane.check_open()?;
    let sweep: BTreeSet<_> = named.iter().cloned().collect();
    let mut verdicts: BTreeMap<_, _> = parts
        .plane
        .delivery()
        .evict(&sweep)
        .await
        .into_iter()
        .map(|one| (one.principal.clone(), one))
        .collect();
    let result = |principal: &Principal| {
        let verdict =
            verdicts.remove(principal).unwrap_or_else(|| Eviction::unverified(principal, "no verdict came"));
        let Eviction { principal, kicked, remaining, verified_gone, scan_complete, note } = verdict;
        EvictionResult { principal, kicked, remaining, verified_gone, scan_complete, note }
    };
    Ok(named.iter().map(result).collect())
}

/// Reconciles over a connection of its own, that may touch this instance alone and does not outlive a minute.
///
/// Its grants are the registration executor's, narrower on the streams than those of the contract's
/// `endpoint-serve-executor`: they list a family by STREAM.INFO, and may create no consumer.
async fn reconcile(
    parts: &Parts,
    target: &InstanceId,
    itself: Option<&Owner>,
) -> Result<RepairReport, EpError> {
    let at = manager_instance(target);
    let token = parts.space.token();
    let grants = {
        let at = at.clone();
        move |conn: &ConnId| endpoint_serve::registration_executor(&token, conn, &at.endpoint, &at.instance)
    };
    let lifetime = Lifetime::OneShot { ttl_secs: EXECUTOR_TTL_SECS, principal: None };
    let label = InfraRole::REMOTE_MANAGER_MAINTENANCE.label(&parts.space);
    let connection = parts.connector.open(label, &grants, lifetime).await?;
    let seen = OfInstance { rail: parts.plane.delivery(), instance: target, itself };
    let repaired = match Registry::bind(&connection, &parts.space).await {
        Ok(registry) => reconcile_endpoint_gate(&registry, &at, &seen, &seen).await.map_err(repair_refused),
        Err(refusal) => Err(refusal),
    };
    // What was done stands, however the connection ends.
    if let Err(error) = connection.close().await {
        tracing::warn!(space = %parts.space, %error, "the maintenance connection did not close");
    }
    repaired
}
