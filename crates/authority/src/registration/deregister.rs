//! Taking an instance out of the registry (contract 02 §7.6, 07 §11.6). Its gate stays, so that a later registration is
//! not a first one.

use cotal_broker::kv::{LeaderRead, WriteOutcome};
use cotal_wire::{EpError, Revision, names, rows::GovernHead};

use super::{EndpointInstance, gate, slot, spec, spec::SpecSeen};
use crate::{
    store::{ambiguous, unsent},
    stores::AuthorityStores,
};

/// What a deregistration came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deregistration {
    /// It is out.
    Removed {
        /// The spec's revision that was removed.
        spec_revision: Revision,
        /// The status's, when there was one.
        status_revision: Option<Revision>,
    },
    /// It was not in.
    Absent,
    /// Another writer moved it meanwhile; look again.
    Superseded,
    /// It is registering now.
    RegistrationInFlight,
}

/// What the governance slot says of an instance that is to be taken out, given its gate's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InFlight {
    No,
    Yes,
    /// The slot is ahead of the gate, or the gate cannot be observed.
    Unknown,
}

pub(crate) fn in_flight(head: &GovernHead, at: &EndpointInstance, generation: Option<u64>) -> InFlight {
    let Some(slot) = head.provisional().filter(|slot| slot.holder.instance == at.instance) else {
        return InFlight::No;
    };
    match generation {
        Some(generation) if slot.holder.generation == generation => InFlight::Yes,
        Some(generation) if slot.holder.generation < generation => InFlight::No,
        Some(_) | None => InFlight::Unknown,
    }
}

/// Deregisters one instance: deletes its status, then its spec, each pinned to the revision that was read.
///
/// `unavailable` when nobody can say whether a registration is under way, or whether a deletion landed: run it again.
pub async fn deregister_instance(
    stores: &AuthorityStores,
    at: &EndpointInstance,
) -> Result<Deregistration, EpError> {
    let spec_revision = match spec::read(stores, at).await? {
        SpecSeen::Registered(_, revision) => revision,
        SpecSeen::Absent | SpecSeen::Deregistered(_) => return Ok(Deregistration::Absent),
    };
    let head = slot::read_head(stores, at).await?.head;
    let observed = gate::observe(stores, at).await;
    let generation = observed.ok().flatten().map(|seen| seen.gate.coordinate().generation);
    match in_flight(&head, at, generation) {
        InFlight::No => {}
        InFlight::Yes => return Ok(Deregistration::RegistrationInFlight),
        InFlight::Unknown => {
            return Err(EpError::unavailable(format!(
                "deregistration: a registration of {at} may be under way, and its gate does not say; retry"
            )));
        }
    }
    let status_key = names::service_status_key(&at.endpoint, &at.instance);
    let status_revision = match stores.records().leader_read(&status_key).await? {
        LeaderRead::Value(entry) => Some(entry.revision),
        LeaderRead::Absent | LeaderRead::Marker(_) => None,
    };
    let spec_key = names::service_spec_key(&at.endpoint, &at.instance);
    let removals = status_revision.map(|revision| (&status_key, revision));
    for (key, revision) in removals.into_iter().chain([(&spec_key, spec_revision)]) {
        match stores.records_store().delete(key, revision).await {
            WriteOutcome::Written(_) => {}
            WriteOutcome::Lost => return Ok(Deregistration::Superseded),
            WriteOutcome::Ambiguous(why) => return Err(ambiguous("deregistration", &why)),
            WriteOutcome::Refused(why) => return Err(unsent("deregistration", &why)),
        }
    }
    Ok(Deregistration::Removed { spec_revision, status_revision })
}

#[cfg(test)]
mod tests {
    use cotal_wire::{
        EndpointToken, InstanceId,
        rows::{Governed, SlotHolder},
    };

    use super::*;

    #[test]
    fn a_slot_at_the_gates_generation_is_a_registration_in_flight() {
        let id = |c: char| InstanceId::parse(&c.to_string().repeat(26)).unwrap();
        let at = EndpointInstance { endpoint: EndpointToken::parse("auth").unwrap(), instance: id('a') };
        let held =
            |by| GovernHead::default().take(SlotHolder { instance: id(by), generation: 5 }, &Governed::new());
        assert_eq!(in_flight(&GovernHead::default(), &at, None), InFlight::No);
        assert_eq!(in_flight(&held('b'), &at, Some(5)), InFlight::No, "another instance's");
        assert_eq!(in_flight(&held('a'), &at, Some(5)), InFlight::Yes);
        assert_eq!(in_flight(&held('a'), &at, Some(6)), InFlight::No);
        assert_eq!(in_flight(&held('a'), &at, Some(4)), InFlight::Unknown);
        assert_eq!(in_flight(&held('a'), &at, None), InFlight::Unknown);
    }
}
