//! The decision about a managed agent without its effect: for a host that keeps managed agents in its own storage, and for one
//! that runs them (contract 06 §14.1, 05 §7.4).

use cotal_authority::manager::{Holder, decide_enrollment, decide_prepare_retirement, decide_runtime};
use cotal_wire::{
    Actor, EpError, InstanceId,
    es_value::EsValue,
    manager_authority::{EnrollmentRequest, Incarnation, Kind, PrepareRetirementRequest, RuntimeRequest},
    rows::EndpointGate,
};

use super::{Parts, observed::decided_at_gate};

/// A request about a managed agent that its manager may make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VerifiedAgent {
    /// An enrollment, or the preparation of a retirement.
    Grant {
        /// The agent.
        actor: Actor,
        /// The manager's instance.
        instance: InstanceId,
        /// The manager's epoch.
        serve_epoch: u64,
    },
    /// A hosted runtime's.
    Runtime {
        /// The manager's instance.
        instance: InstanceId,
        /// The manager's interactive actor.
        actor: Actor,
        /// The agent.
        target: Incarnation,
    },
}

/// Decides a request of one of the four kinds about managed agents; any other is `bad-request`.
pub(super) async fn decide(
    parts: &Parts,
    holder: &Holder,
    kind: Kind,
    request: &EsValue,
) -> Result<VerifiedAgent, EpError> {
    match kind {
        Kind::Enrollment => {
            let request = EnrollmentRequest::parse(request)?;
            let decide =
                |gate: Option<&EndpointGate>| decide_enrollment(parts.host(), holder, &request, gate);
            decided_at_gate(parts, kind, &request.envelope.instance_id, decide).await?;
            Ok(VerifiedAgent::Grant {
                actor: request.target.actor,
                instance: request.envelope.instance_id,
                serve_epoch: request.serve_epoch,
            })
        }
        Kind::PrepareRetirement => {
            let request = PrepareRetirementRequest::parse(request)?;
            let decide =
                |gate: Option<&EndpointGate>| decide_prepare_retirement(parts.host(), holder, &request, gate);
            decided_at_gate(parts, kind, &request.envelope.instance_id, decide).await?;
            Ok(VerifiedAgent::Grant {
                actor: request.target.actor,
                instance: request.envelope.instance_id,
                serve_epoch: request.serve_epoch,
            })
        }
        Kind::RuntimeCreate | Kind::RuntimeStatus => {
            let request = RuntimeRequest::parse(request, kind)?;
            let decide =
                |gate: Option<&EndpointGate>| decide_runtime(parts.host(), holder, kind, &request, gate);
            decided_at_gate(parts, kind, &request.envelope.instance_id, decide).await?;
            Ok(VerifiedAgent::Runtime {
                instance: request.envelope.instance_id,
                actor: request.envelope.actor,
                target: request.target,
            })
        }
        _ => Err(EpError::bad_request("only a request about a managed agent is verified")),
    }
}
