//! What `describe` answers (contract 02 §8.1).

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    endpoint_token::{Command, DigestRef, EndpointName},
    token::Owner,
};

/// One cluster as it is described.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedCluster {
    /// Its closure digest.
    pub digest: DigestRef,
    /// Its commands, in the document's order.
    pub commands: Vec<Command>,
    /// The document.
    pub document: Value,
}

/// The public description of a registered endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Descriptor {
    /// The endpoint's dotted name.
    pub endpoint: EndpointName,
    /// Who answers for it.
    pub owner: Owner,
    /// Its type, for people.
    pub endpoint_type: Option<String>,
    /// Its clusters, in the spec's order.
    pub clusters: Vec<DescribedCluster>,
}

impl Descriptor {
    /// The answer's data: `endpoint, owner, endpointType?, protocol, clusters`.
    pub fn to_value(&self) -> Value {
        let mut members = serde_json::Map::new();
        members.insert("endpoint".to_owned(), json!(self.endpoint));
        members.insert("owner".to_owned(), json!(self.owner));
        if let Some(endpoint_type) = &self.endpoint_type {
            members.insert("endpointType".to_owned(), json!(endpoint_type));
        }
        members.insert("protocol".to_owned(), json!({ "v": 1 }));
        members.insert("clusters".to_owned(), json!(self.clusters));
        Value::Object(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::VOID_CLOSURE_DIGEST;

    #[test]
    fn a_descriptor_names_its_clusters_and_carries_their_documents() {
        let descriptor = Descriptor {
            endpoint: EndpointName::parse("auth").unwrap(),
            owner: Owner::local(),
            endpoint_type: None,
            clusters: vec![DescribedCluster {
                digest: DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap(),
                commands: vec![Command::parse("retire-lifecycle").unwrap()],
                document: json!({"urn": "ai.cotal.auth"}),
            }],
        };
        assert_eq!(
            descriptor.to_value(),
            json!({
                "endpoint": "auth", "owner": "local", "protocol": {"v": 1},
                "clusters": [{
                    "digest": VOID_CLOSURE_DIGEST, "commands": ["retire-lifecycle"],
                    "document": {"urn": "ai.cotal.auth"},
                }],
            })
        );
    }
}
