//! The unkeyed registration proof, and the text that the keyed one authenticates (contract 06 §3).
//!
//! The key of the second is the data account's signing seed, so room `trust` computes it.

use serde::Serialize;

use super::envelope::{Envelope, Identities, StandingActors, VERSION};
use crate::{
    canonical::raw_digest,
    endpoint_token::DigestRef,
    es_value::EsValue,
    token::{Actor, InstanceId, LifecycleUid, Owner},
};

/// What stands before the text of a current registration, followed by one NUL.
pub const CURRENT_REGISTRATION_DOMAIN: &str = "cotal/manager-current-registration/v1";
const CURRENT_REGISTRATION_KIND: &str = "manager-current-registration";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Registration<'a> {
    v: u64,
    space: &'a str,
    owner: &'a Owner,
    instance_id: &'a InstanceId,
    lifecycle_uid: &'a LifecycleUid,
    actors: StandingActors,
    identities: &'a Identities,
    artifact_digests: Vec<DigestRef>,
}

/// The proof that binds a registration to its owner, its keys and its artifacts (contract 06 §3.1).
///
/// `artifacts` are those of `activate`; every other operation is over none.
pub fn registration_proof(envelope: &Envelope, owner: &Owner, artifacts: &[EsValue]) -> DigestRef {
    let text = compact(&Registration {
        v: VERSION,
        space: &envelope.space,
        owner,
        instance_id: &envelope.instance_id,
        lifecycle_uid: &envelope.manager_lifecycle_uid,
        actors: StandingActors::of(&envelope.instance_id),
        identities: &envelope.identities,
        artifact_digests: artifacts.iter().map(|value| raw_digest(value.stringify().as_bytes())).collect(),
    });
    raw_digest(text.as_bytes())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CurrentRegistration<'a> {
    v: u64,
    kind: &'static str,
    space: &'a str,
    owner: &'a Owner,
    actor: &'a Actor,
    instance_id: &'a InstanceId,
    lifecycle_uid: &'a LifecycleUid,
    actors: StandingActors,
    identities: &'a Identities,
    registration_revision: u64,
    process_epoch: u64,
}

/// What the keyed proof authenticates: the domain, a NUL, and the registration as it is now (contract 06 §3.2).
pub fn current_registration_message(
    envelope: &Envelope,
    owner: &Owner,
    registration_revision: u64,
    process_epoch: u64,
) -> Vec<u8> {
    let text = compact(&CurrentRegistration {
        v: VERSION,
        kind: CURRENT_REGISTRATION_KIND,
        space: &envelope.space,
        owner,
        actor: &envelope.actor,
        instance_id: &envelope.instance_id,
        lifecycle_uid: &envelope.manager_lifecycle_uid,
        actors: StandingActors::of(&envelope.instance_id),
        identities: &envelope.identities,
        registration_revision,
        process_epoch,
    });
    [CURRENT_REGISTRATION_DOMAIN.as_bytes(), b"\0", text.as_bytes()].concat()
}

/// Compact JSON in member order. Its strings are tokens and a space name, whose escapes are the same in both languages:
/// [`EsValue`] prints them once more so that this does not rest on it.
fn compact(value: &impl Serialize) -> String {
    serde_json::to_vec(value)
        .ok()
        .and_then(|bytes| EsValue::parse(&bytes).ok())
        .map(|value| value.stringify())
        .unwrap_or_default()
}
