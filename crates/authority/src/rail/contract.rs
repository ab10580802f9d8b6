//! What the auth endpoint publishes of itself (contract 05 §11.1).

use cotal_wire::{
    DigestRef, EpError, Owner,
    contract::{Artifact, ClusterDocument, DescribedCluster, Descriptor},
    endpoint_token::{Command, EndpointName, RETIRE_LIFECYCLE},
    envelope::CallClass,
};
use serde_json::{Value, json};

/// What a caller's profile must hold for it.
pub const AUTH_ADMIN: &str = "auth.admin";
/// The cluster's name.
const CLUSTER: &str = "ai.cotal.auth";

/// The contract of endpoint `auth`: two schemas, one cluster document, and what closes each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthContract {
    input: [Artifact; 2],
    output: [Artifact; 2],
    cluster: [Artifact; 2],
    document: Value,
}

impl AuthContract {
    /// Builds it. It refuses `contract-invalid` only if these constants broke the profile.
    pub fn new() -> Result<Self, EpError> {
        let input = Artifact::closed(&input_schema())?;
        let output = Artifact::closed(&output_schema())?;
        let document = json!({
            "urn": CLUSTER,
            "revision": 1,
            "attributes": [],
            "events": [],
            "commands": [{
                "name": RETIRE_LIFECYCLE,
                "class": CallClass::Ephemeral.as_str(),
                "targeted": true,
                "modes": ["exact"],
                "capability": AUTH_ADMIN,
                "inputDigest": input[1].digest(),
                "outputDigest": output[1].digest(),
            }],
        });
        ClusterDocument::parse(document.clone())?;
        let cluster = Artifact::closed(&document)?;
        Ok(Self { input, output, cluster, document })
    }

    /// What a registration pins: the digest of the cluster's manifest.
    pub fn cluster_digest(&self) -> &DigestRef {
        self.cluster[1].digest()
    }

    /// What a request pins of its arguments.
    pub fn input_digest(&self) -> &DigestRef {
        self.input[1].digest()
    }

    /// What a request pins of its answer.
    pub fn output_digest(&self) -> &DigestRef {
        self.output[1].digest()
    }

    /// Everything to publish before the endpoint is registered, in that order: each schema and what closes it, then
    /// the document and what closes it.
    pub fn artifacts(&self) -> Vec<Artifact> {
        [&self.input, &self.output, &self.cluster].into_iter().flatten().cloned().collect()
    }

    /// What `describe` answers. The plane registers its endpoint for the development owner (contract 05 §8.3).
    pub fn descriptor(&self) -> Descriptor {
        Descriptor {
            endpoint: EndpointName::auth(),
            owner: Owner::local(),
            endpoint_type: None,
            clusters: vec![DescribedCluster {
                digest: self.cluster_digest().clone(),
                commands: vec![Command::retire_lifecycle()],
                document: self.document.clone(),
            }],
        }
    }
}

fn input_schema() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["opId", "serveEndpoint", "serveInstanceId", "serveEpoch"],
        "properties": {
            "opId": { "type": "string" },
            "serveEndpoint": { "type": "string" },
            "serveInstanceId": { "type": "string" },
            "serveEpoch": { "type": "integer", "minimum": 0 },
        },
    })
}

fn output_schema() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["retired", "lifecycleUid", "opId", "evictedPrincipals"],
        "properties": {
            "retired": { "type": "boolean" },
            "lifecycleUid": { "type": "string" },
            "opId": { "type": "string" },
            "evictedPrincipals": { "type": "array", "items": { "type": "string" } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_is_these_bytes() {
        let contract = AuthContract::new().unwrap();
        let artifacts = contract.artifacts();
        let text = |at: usize| std::str::from_utf8(artifacts[at].bytes()).unwrap();
        assert_eq!(artifacts.len(), 6);
        assert_eq!(
            text(0),
            "{\"additionalProperties\":false,\"properties\":{\"opId\":{\"type\":\"string\"},\
             \"serveEndpoint\":{\"type\":\"string\"},\"serveEpoch\":{\"minimum\":0,\"type\":\"integer\"},\
             \"serveInstanceId\":{\"type\":\"string\"}},\"required\":[\"opId\",\"serveEndpoint\",\
             \"serveInstanceId\",\"serveEpoch\"],\"type\":\"object\"}"
        );
        assert_eq!(
            text(2),
            "{\"additionalProperties\":false,\"properties\":{\"evictedPrincipals\":{\"items\":{\"type\":\
             \"string\"},\"type\":\"array\"},\"lifecycleUid\":{\"type\":\"string\"},\"opId\":{\"type\":\
             \"string\"},\"retired\":{\"type\":\"boolean\"}},\"required\":[\"retired\",\"lifecycleUid\",\"opId\",\
             \"evictedPrincipals\"],\"type\":\"object\"}"
        );
        assert_eq!(
            text(4),
            format!(
                "{{\"attributes\":[],\"commands\":[{{\"capability\":\"auth.admin\",\"class\":\"ephemeral\",\
                 \"inputDigest\":\"{}\",\"modes\":[\"exact\"],\"name\":\"retire-lifecycle\",\
                 \"outputDigest\":\"{}\",\"targeted\":true}}],\"events\":[],\"revision\":1,\
                 \"urn\":\"ai.cotal.auth\"}}",
                contract.input_digest(),
                contract.output_digest()
            )
        );
        for root in [0, 2, 4] {
            let manifest = format!("{{\"members\":[],\"root\":\"{}\",\"v\":1}}", artifacts[root].digest());
            assert_eq!(text(root + 1), manifest);
        }
        assert_eq!(contract.cluster_digest(), artifacts[5].digest());
    }

    #[test]
    fn the_descriptor_carries_the_document_that_its_digest_closes() {
        let contract = AuthContract::new().unwrap();
        let described = contract.descriptor().to_value();
        assert_eq!(described["endpoint"], "auth");
        assert_eq!(described["owner"], "local");
        assert_eq!(described["protocol"], json!({ "v": 1 }));
        let cluster = &described["clusters"][0];
        let [_, manifest] = Artifact::closed(&cluster["document"]).unwrap();
        assert_eq!(cluster["digest"].as_str().unwrap(), manifest.digest().as_str());
        assert_eq!(cluster["commands"], json!(["retire-lifecycle"]));
    }
}
