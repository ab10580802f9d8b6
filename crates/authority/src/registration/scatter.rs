//! Whom a scatter asks: the instances that stand when it begins (contract 02 §7.6 "Freeze").

use cotal_wire::{
    EndpointToken, EpCode, EpError, InstanceId, names,
    rows::{ServiceStatus, StatusState},
};

use super::{
    EndpointInstance,
    spec::{self, SpecSeen},
    status::read_status,
};
use crate::stores::AuthorityStores;

/// Whether an answer of the instance may be expected: it is registered, has a word of its own about exactly that
/// registration, and has not ended.
fn answers(spec: &SpecSeen, status: Option<&ServiceStatus>) -> bool {
    let (SpecSeen::Registered(_, revision), Some(status)) = (spec, status) else { return false };
    let ended = status.state().is_escalated() || *status.state() == StatusState::exited();
    !ended && status.observed_spec_revision() >= *revision
}

/// The instances of an endpoint that a scatter waits for, in ascending order. One that registers later is not waited
/// for, and one that dies meanwhile is.
///
/// `failed-precondition` when there is none, and when a row of any instance cannot be read: a scatter never expects
/// fewer than there are.
pub async fn freeze_scatter(
    stores: &AuthorityStores,
    endpoint: &EndpointToken,
) -> Result<Vec<InstanceId>, EpError> {
    let unreadable = |why: EpError| {
        EpError::failed_precondition(format!(
            "scatter: the instances of {} cannot be told: {}",
            endpoint.name(),
            why.message
        ))
    };
    let mut frozen = Vec::new();
    for instance in registered(stores, endpoint).await.map_err(unreadable)? {
        let at = EndpointInstance { endpoint: endpoint.clone(), instance };
        let spec = spec::read(stores, &at).await.map_err(unreadable)?;
        let status = read_status(stores, &at).await.map_err(unreadable)?.status;
        if answers(&spec, status.as_ref()) {
            frozen.push(at.instance);
        }
    }
    if frozen.is_empty() {
        return Err(EpError::new(
            EpCode::FailedPrecondition,
            format!("scatter: no instance of {} is ready to answer", endpoint.name()),
        ));
    }
    frozen.sort();
    Ok(frozen)
}

/// Every instance that has a spec key, a deleted one included.
async fn registered(stores: &AuthorityStores, endpoint: &EndpointToken) -> Result<Vec<InstanceId>, EpError> {
    let keys = stores.records().keys(&names::service_specs_filter(endpoint)).await?;
    let read = |key: &String| {
        let token = key.split('.').nth(2).and_then(|token| InstanceId::parse(token).ok());
        token.ok_or_else(|| EpError::internal(format!("{} names no instance", key.escape_default())))
    };
    keys.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use cotal_wire::{DigestRef, Owner, Revision, canonical::VOID_CLOSURE_DIGEST, rows::ServiceSpec};

    use super::*;

    #[test]
    fn an_answer_is_expected_of_who_is_registered_and_has_said_so_and_has_not_ended() {
        let endpoint = EndpointToken::parse("com_x").unwrap();
        let digest = DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap();
        let spec = ServiceSpec::new(&endpoint.name(), &Owner::local(), vec![digest]).unwrap();
        let registered = SpecSeen::Registered(spec, Revision(5));
        let says = |state, revision| ServiceStatus::new(0, state, Revision(revision));
        for (spec, status, expected) in [
            (&registered, Some(says(StatusState::ready(), 5)), true),
            (&registered, Some(says(StatusState::parse("busy").unwrap(), 6)), true),
            (&registered, Some(says(StatusState::ready(), 4)), false),
            (&registered, Some(says(StatusState::exited(), 5)), false),
            (&registered, Some(says(StatusState::escalated(), 5)), false),
            (&registered, None, false),
            (&SpecSeen::Deregistered(Revision(6)), Some(says(StatusState::ready(), 5)), false),
            (&SpecSeen::Absent, None, false),
        ] {
            assert_eq!(answers(spec, status.as_ref()), expected, "{spec:?} {status:?}");
        }
    }
}
