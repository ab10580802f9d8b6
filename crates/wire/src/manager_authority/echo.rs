//! What a result repeats of its request, and how a participant binds the two (contract 06 §6-11).

use serde::Serialize;

use super::{
    Kind, RequestId,
    envelope::{Envelope, VERSION, version_and_kind},
    fields::Fields,
};
use crate::{
    error::EpError,
    token::{Actor, InstanceId, LifecycleUid, Owner},
};

/// The members that the head of every echoing result has.
pub(super) const ECHO: [&str; 8] =
    ["v", "kind", "space", "owner", "actor", "instanceId", "managerLifecycleUid", "requestId"];

/// An answer that is not the one to what was asked: it is garbled, of another version, or of another request. Nothing of
/// it is to be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the host's answer cannot be used: {0}")]
pub struct Unbound(pub String);

impl From<EpError> for Unbound {
    fn from(refusal: EpError) -> Self {
        Self(refusal.message)
    }
}

impl Unbound {
    /// It answers something else.
    pub(super) fn other(kind: Kind) -> Self {
        Self(format!("{}: it is the answer to another request", kind.as_str()))
    }
}

/// The head of a result: whose request it answers. Neither proof nor keys are in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Echo {
    v: u64,
    kind: &'static str,
    /// The space.
    pub space: String,
    /// The manager's owner, as the host derived it.
    pub owner: Owner,
    /// The interactive actor.
    pub actor: Actor,
    /// The manager's instance.
    pub instance_id: InstanceId,
    /// The manager's lifecycle.
    pub manager_lifecycle_uid: LifecycleUid,
    /// The participant's name of the request.
    pub request_id: RequestId,
}

impl Echo {
    /// That of a request, for this owner.
    pub fn of(kind: Kind, envelope: &Envelope, owner: &Owner) -> Self {
        Self {
            v: VERSION,
            kind: kind.as_str(),
            space: envelope.space.clone(),
            owner: owner.clone(),
            actor: envelope.actor.clone(),
            instance_id: envelope.instance_id.clone(),
            manager_lifecycle_uid: envelope.manager_lifecycle_uid.clone(),
            request_id: envelope.request_id.clone(),
        }
    }

    /// Reads it; the members were found known before.
    pub(super) fn read(fields: &Fields<'_>, kind: Kind) -> Result<Self, EpError> {
        version_and_kind(fields, kind)?;
        Ok(Self {
            v: VERSION,
            kind: kind.as_str(),
            space: fields.text("space")?.to_owned(),
            owner: fields.token("owner")?,
            actor: fields.token("actor")?,
            instance_id: fields.token("instanceId")?,
            manager_lifecycle_uid: fields.token("managerLifecycleUid")?,
            request_id: fields.token("requestId")?,
        })
    }
}
