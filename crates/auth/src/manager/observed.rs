//! What a request of a manager is decided on, read no sooner than it is needed.

use cotal_wire::{EpCode, EpError, InstanceId, rows::EndpointGate};

use super::Parts;

/// Decides on the gate of a manager instance, leader-read once everything before it holds.
///
/// Without a gate a decision refuses with what comes before the gate, or with `failed-precondition` for the want of it: so
/// nobody who may not ask has anything read, and a gate that cannot be read is not told before an earlier refusal.
pub(super) async fn decided_at_gate<T>(
    parts: &Parts,
    instance: &InstanceId,
    decide: impl Fn(Option<&EndpointGate>) -> Result<T, EpError>,
) -> Result<T, EpError> {
    if let Err(refusal) = decide(None)
        && refusal.code != EpCode::FailedPrecondition
    {
        return Err(refusal);
    }
    let seen = parts.manager_gate(instance).await?;
    decide(seen.as_ref().map(|seen| &seen.gate))
}
