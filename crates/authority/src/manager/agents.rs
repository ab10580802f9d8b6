//! The decisions about managed agents, each before any write (contract 06 §6-9).

use cotal_wire::{
    EpError, Owner, Space,
    manager_authority::{
        EnrollmentRequest, Envelope, Incarnation, PrepareRetirementRequest, RetainedAgentRequest,
        RuntimeRequest,
    },
    rows::EndpointGate,
};

use super::{
    Holder,
    registration::{CurrentManager, check_current},
};
use cotal_trust::registration_proof::RegistrationProofKey;

/// What the host that decides is.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Its space.
    pub space: &'a Space,
    /// The key of current registrations.
    pub proof: &'a RegistrationProofKey,
}

impl Host<'_> {
    pub(super) fn serves(&self, envelope: &Envelope) -> Result<(), EpError> {
        if envelope.space == self.space.as_str() {
            Ok(())
        } else {
            Err(EpError::permission_denied("the request names another space than the one that is asked"))
        }
    }
}

pub(super) fn own(target: &Incarnation, owner: &Owner) -> Result<(), EpError> {
    if target.owner == *owner {
        Ok(())
    } else {
        Err(EpError::permission_denied("the target belongs to another owner"))
    }
}

/// An enrollment that may be written: space, scope, then the current registration.
pub fn decide_enrollment(
    host: Host<'_>,
    holder: &Holder,
    request: &EnrollmentRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.serves(&request.envelope)?;
    holder.may_supervise(request.envelope.instance_id.as_str())?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// A preparation that may be written: space, scope, owner, then the current registration. The operation id was computed
/// anew by the parser.
pub fn decide_prepare_retirement(
    host: Host<'_>,
    holder: &Holder,
    request: &PrepareRetirementRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.serves(&request.envelope)?;
    holder.may_supervise(request.envelope.instance_id.as_str())?;
    own(&request.target, holder.owner())?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// A hosted runtime's request: space, owner, scope, then the current registration. The owner comes before the scope here.
pub fn decide_runtime(
    host: Host<'_>,
    holder: &Holder,
    request: &RuntimeRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.serves(&request.envelope)?;
    own(&request.target, holder.owner())?;
    holder.may_supervise(request.envelope.instance_id.as_str())?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// A retained agent that may be looked at: space, scope, owner, then the current registration. Whether its secrets are
/// good the host decides after it.
pub fn decide_retained(
    host: Host<'_>,
    holder: &Holder,
    request: &RetainedAgentRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.serves(&request.envelope)?;
    holder.may_supervise(request.envelope.instance_id.as_str())?;
    own(&request.target, holder.owner())?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}
