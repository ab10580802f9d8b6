//! The registered spec in its store. A marker there is no corruption: it is a deregistration (contract 07 §12.3).

use cotal_broker::kv::{LeaderRead, WriteOutcome};
use cotal_wire::{EpError, Revision, names, rows::ServiceSpec};
use serde_json::Value;

use super::EndpointInstance;
use crate::{store::at_key, stores::AuthorityStores};

/// What stands at a spec key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SpecSeen {
    /// It was never registered.
    Absent,
    /// It was deregistered.
    Deregistered(Revision),
    /// It is registered.
    Registered(ServiceSpec, Revision),
}

impl SpecSeen {
    /// What a conditional write pins to.
    pub(crate) fn revision(&self) -> Revision {
        match self {
            Self::Absent => Revision(0),
            Self::Deregistered(revision) | Self::Registered(_, revision) => *revision,
        }
    }
}

fn key(at: &EndpointInstance) -> String {
    names::service_spec_key(&at.endpoint, &at.instance)
}

pub(crate) async fn read(stores: &AuthorityStores, at: &EndpointInstance) -> Result<SpecSeen, EpError> {
    let key = key(at);
    Ok(match stores.records().leader_read(&key).await? {
        LeaderRead::Absent => SpecSeen::Absent,
        LeaderRead::Marker(revision) => SpecSeen::Deregistered(revision),
        LeaderRead::Value(entry) => {
            let spec = at_key(&key, ServiceSpec::parse(&at.endpoint, &entry.value))?;
            SpecSeen::Registered(spec, entry.revision)
        }
    })
}

/// Writes the proposal over what was seen, a marker included. A write that does not say that it landed is looked for:
/// it did when the key has moved and holds exactly the proposal. Anything else is `unavailable`.
pub(crate) async fn commit(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    proposal: &ServiceSpec,
    over: Revision,
) -> Result<Revision, EpError> {
    let key = key(at);
    let bytes = proposal.to_bytes();
    let why = match stores.records_store().update(&key, bytes.clone(), over).await {
        WriteOutcome::Written(revision) => return Ok(revision),
        WriteOutcome::Lost => "another writer was first".to_owned(),
        WriteOutcome::Ambiguous(why) | WriteOutcome::Refused(why) => why,
    };
    if let Ok(LeaderRead::Value(there)) = stores.records().leader_read(&key).await
        && there.revision > over
        && same_json(&there.value, &bytes)
    {
        return Ok(there.revision);
    }
    Err(EpError::unavailable(format!("the spec of {at} is not known to be written: {why}")))
}

fn same_json(a: &[u8], b: &[u8]) -> bool {
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    matches!((read(a), read(b)), (Some(a), Some(b)) if a == b)
}
