//! What a request of a manager is decided on, read no sooner than it is needed.

use cotal_wire::{
    EpCode, EpError, InstanceId,
    manager_authority::{Kind, Rule},
    rows::EndpointGate,
};

use super::Parts;

/// Decides a request of a kind on the gate of a manager instance, leader-read once everything before it holds, if the kind
/// stands on one at all.
///
/// Without a gate a decision refuses with what comes before the gate, or with `failed-precondition` for the want of it: so
/// nobody who may not ask has anything read, and a gate that cannot be read is not told before an earlier refusal.
pub(super) async fn decided_at_gate<T>(
    parts: &Parts,
    kind: Kind,
    instance: &InstanceId,
    decide: impl Fn(Option<&EndpointGate>) -> Result<T, EpError>,
) -> Result<T, EpError> {
    let unread = decide(None);
    let reads = kind.rule().is_none_or(Rule::reads_gate);
    if !reads || unread.as_ref().is_err_and(|refusal| refusal.code != EpCode::FailedPrecondition) {
        return unread;
    }
    let seen = parts.manager_gate(instance).await?;
    decide(seen.as_ref().map(|seen| &seen.gate))
}
