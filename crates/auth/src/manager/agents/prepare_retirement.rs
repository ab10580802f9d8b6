//! A managed agent's footprint and grant go, so that its lifecycle can be retired (contract 06 §7, 05 §10).

use cotal_authority::{
    managed_agents::Alias,
    manager::{Holder, decide_prepare_retirement},
};
use cotal_wire::{
    EpError,
    es_value::EsValue,
    manager_authority::{Kind, PrepareRetirementRequest, PrepareRetirementResult},
    rows::EndpointGate,
};

use super::{super::Parts, person, still};
use crate::manager::{Answer, observed::decided_at_gate, print};

/// Answers alike whether this call prepared it, an earlier one did, or the name is a successor's.
pub(in crate::manager) async fn prepare_retirement(
    parts: &Parts,
    holder: &Holder,
    request: &EsValue,
) -> Result<Answer, EpError> {
    let request = PrepareRetirementRequest::parse(request)?;
    let decide =
        |gate: Option<&EndpointGate>| decide_prepare_retirement(parts.host(), holder, &request, gate);
    let instance = &request.envelope.instance_id;
    let decided = decided_at_gate(parts, Kind::PrepareRetirement, instance, decide).await?;
    let alias = Alias { owner: person(&request.target.owner)?, actor: request.target.actor.clone() };
    let found = parts
        .agents
        .prepare_retirement(&alias, &request.target.lifecycle_uid, still(parts, instance, decided))
        .await?;
    tracing::info!(space = %parts.space, agent = %alias.principal(), ?found, "a managed retirement was prepared");
    print(&PrepareRetirementResult::answer(&request, holder.owner()))
}
