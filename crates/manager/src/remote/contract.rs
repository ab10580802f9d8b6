//! What this participant's manager endpoint publishes of itself: the cluster `ai.cotal.manager` with the one command that
//! every manager can answer (contract 06 §4.3 "canonical manager cluster rules").
//!
//! The Manager that stands on this room brings its own commands; [`ManagerContract::of`] takes them.

use cotal_wire::{
    DigestRef, EndpointName, EpError, Owner,
    contract::{Artifact, ClusterCommand, ClusterDocument, DescribedCluster, Descriptor},
    endpoint_token::Command,
    envelope::CallClass,
    es_value::EsValue,
    manager_authority::MANAGER_CLUSTER,
};
use serde_json::{Value, json};

/// Answers who serves, and at which epoch.
pub const PING: &str = "ping";
/// What a caller's profile must hold for [`PING`].
const READ: &str = "manager.read";

/// A manager's contract: schemas, one cluster document, and what closes each of them.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagerContract {
    artifacts: Vec<Artifact>,
    cluster: DigestRef,
    document: ClusterDocument,
}

impl ManagerContract {
    /// The contract of a manager that answers [`PING`] alone.
    pub fn ping() -> Result<Self, EpError> {
        let input = Artifact::closed(&json!({ "type": "null" }))?;
        let output = Artifact::closed(&json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["instanceId", "epoch"],
            "properties": {
                "instanceId": { "type": "string" },
                "epoch": { "type": "integer", "minimum": 0 },
            },
        }))?;
        let command = json!({
            "name": PING,
            "class": CallClass::Ephemeral.as_str(),
            "targeted": false,
            "capability": READ,
            "inputDigest": input[1].digest(),
            "outputDigest": output[1].digest(),
        });
        Self::of(1, &[command], [input, output].into_iter().flatten())
    }

    /// A contract of these commands, whose schemas and their closures are `schemas`.
    pub fn of(
        revision: u64,
        commands: &[Value],
        schemas: impl IntoIterator<Item = Artifact>,
    ) -> Result<Self, EpError> {
        let document = json!({
            "urn": MANAGER_CLUSTER, "revision": revision, "attributes": [], "events": [], "commands": commands,
        });
        let parsed = ClusterDocument::parse(document.clone())?;
        let closed = Artifact::closed(&document)?;
        let cluster = closed[1].digest().clone();
        Ok(Self { artifacts: schemas.into_iter().chain(closed).collect(), cluster, document: parsed })
    }

    /// Everything to publish before the endpoint is registered, in that order.
    pub fn artifacts(&self) -> &[Artifact] {
        &self.artifacts
    }

    /// The same as `activate` carries it: what was published, byte for byte.
    pub fn to_request(&self) -> Result<Vec<EsValue>, EpError> {
        let read = |artifact: &Artifact| EsValue::parse(artifact.bytes());
        let read: Result<Vec<_>, _> = self.artifacts.iter().map(read).collect();
        read.map_err(|_| EpError::internal("an artifact is JSON"))
    }

    /// What a registration pins.
    pub fn cluster(&self) -> &DigestRef {
        &self.cluster
    }

    /// What it declares of a command; `None` when there is no such command.
    pub fn command(&self, command: &Command) -> Option<&ClusterCommand> {
        self.document.commands().iter().find(|declared| declared.name == *command)
    }

    /// Its commands.
    pub fn commands(&self) -> impl Iterator<Item = &Command> {
        self.document.commands().iter().map(|command| &command.name)
    }

    /// What `describe` answers for this owner.
    pub fn descriptor(&self, owner: &Owner) -> Descriptor {
        Descriptor {
            endpoint: EndpointName::manager(),
            owner: owner.clone(),
            endpoint_type: None,
            clusters: vec![DescribedCluster {
                digest: self.cluster.clone(),
                commands: self.commands().cloned().collect(),
                document: self.document.document().clone(),
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_is_closed_canonical_and_goes_to_the_host_as_it_is_published() {
        let contract = ManagerContract::ping().unwrap();
        let artifacts = contract.artifacts();
        assert_eq!(artifacts.len(), 6, "two schemas and a document, each with its manifest");
        assert_eq!(artifacts[5].digest(), contract.cluster());
        for (artifact, sent) in artifacts.iter().zip(contract.to_request().unwrap()) {
            // Canonical JSON is printed alike in both languages: the digest over the one is the digest over the other.
            assert_eq!(sent.stringify().as_bytes(), artifact.bytes());
        }
        let document: Value = artifacts[4].document().unwrap();
        assert_eq!(document["urn"], MANAGER_CLUSTER);
        let ping = Command::parse(PING).unwrap();
        let declared = contract.command(&ping).unwrap();
        assert_eq!(declared.input_digest.as_str(), cotal_wire::canonical::VOID_CLOSURE_DIGEST);
        let owner = Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap();
        let described = contract.descriptor(&owner).to_value();
        assert_eq!(described["endpoint"], "manager");
        assert_eq!(described["clusters"][0]["commands"], json!([PING]));
    }
}
