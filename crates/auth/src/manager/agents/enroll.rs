//! An agent is enrolled (contract 06 §6, 05 §9).

use cotal_authority::manager::{Holder, decide_enrollment};
use cotal_wire::{
    EpError,
    es_value::EsValue,
    manager_authority::{AgentMaterial, EnrollmentRequest, EnrollmentResult, Kind},
    rows::EndpointGate,
};

use super::{super::Parts, person, still};
use crate::manager::{Answer, observed::decided_at_gate, print};

/// The public face first: without one, an enrolled agent had nowhere to exchange its token.
pub(in crate::manager) async fn enroll(
    parts: &Parts,
    holder: &Holder,
    request: &EsValue,
) -> Result<Answer, EpError> {
    let exchange_url = parts.exchange_url()?.to_owned();
    let request = EnrollmentRequest::parse(request)?;
    let decide = |gate: Option<&EndpointGate>| decide_enrollment(parts.host(), holder, &request, gate);
    let instance = &request.envelope.instance_id;
    let decided = decided_at_gate(parts, Kind::Enrollment, instance, decide).await?;
    let owner = person(holder.owner())?;
    let enrolled = parts
        .agents
        .enroll(&owner, &request.envelope.actor, &request.target, still(parts, instance, decided))
        .await?;
    let material = AgentMaterial {
        owner: holder.owner().clone(),
        actor: request.target.actor.clone(),
        lifecycle_uid: enrolled.lifecycle_uid,
        sentinel_creds: parts.sentinel_creds.to_string(),
        subscribe: request.target.subscribe.clone().unwrap_or_default(),
        allow_subscribe: enrolled.allow_subscribe,
        allow_publish: enrolled.allow_publish,
        agent_bearer_exchange_url: exchange_url,
    };
    print(&EnrollmentResult::answer(&request, holder.owner(), material))
}
