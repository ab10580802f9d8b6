//! An agent is enrolled (contract 06 §6, 05 §9).

use cotal_authority::manager::{Holder, decide_enrollment, may_enroll};
use cotal_wire::{
    EpError,
    es_value::EsValue,
    manager_authority::{AgentMaterial, EnrollmentRequest, EnrollmentResult},
};

use super::{super::Parts, person};
use crate::manager::{Answer, print};

/// The public face first: without one, an enrolled agent had nowhere to exchange its token.
pub(in crate::manager) async fn enroll(
    parts: &Parts,
    holder: &Holder,
    request: &EsValue,
) -> Result<Answer, EpError> {
    let exchange_url = parts.exchange_url()?.to_owned();
    let request = EnrollmentRequest::parse(request)?;
    may_enroll(parts.host(), holder, &request)?;
    let gate = parts.manager_gate(&request.envelope.instance_id).await?;
    decide_enrollment(parts.host(), holder, &request, gate.as_ref().map(|at| &at.gate))?;
    let owner = person(holder.owner())?;
    let enrolled = parts.agents.enroll(&owner, &request.envelope.actor, &request.target).await?;
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
