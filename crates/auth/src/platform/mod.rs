//! What a platform that embeds the service brings with it, and the doors that it gets for it: in process only, never a
//! route (contract 05 §15.3, §16-18).

mod assignment;
mod control;
mod host;
mod supervisor;

use std::sync::Arc;

use cotal_wire::{
    DigestRef, EndpointName, EpError,
    contract::{Artifact, ClusterDocument, Manifest},
};
use serde_json::Value;

use crate::context::StartError;

pub use assignment::{AssignmentState, ObserveAssignment, PlatformAssignment};
pub use control::PlatformControlDoor;
pub use host::{HOST_FENCE_POLL, HostDoor, HostIncarnation};
pub use supervisor::{PlatformError, PlatformSupervision, PlatformSupervisorDoor, PlatformSupervisorDoors};

/// `platformControl` of a hosted context (contract 05 §15.1).
#[derive(Clone)]
pub struct PlatformControl {
    assignments: Arc<dyn ObserveAssignment>,
    host: Option<PlatformHost>,
}

/// `platformControl.host`: the endpoint of the process that embeds the service, as it is registered (contract 05 §18).
#[derive(Debug, Clone)]
pub struct PlatformHost {
    endpoint: String,
    cluster_digest: DigestRef,
    artifacts: Vec<Artifact>,
}

/// A checked [`PlatformHost`].
#[derive(Debug, Clone)]
pub(crate) struct HostEndpoint {
    name: EndpointName,
    host: PlatformHost,
}

/// A checked [`PlatformControl`].
#[derive(Clone)]
pub(crate) struct Platform {
    assignments: Arc<dyn ObserveAssignment>,
    host: Option<Arc<HostEndpoint>>,
}

impl PlatformControl {
    /// A platform that says itself what it has assigned.
    pub fn new(observe_assignment: Arc<dyn ObserveAssignment>) -> Self {
        Self { assignments: observe_assignment, host: None }
    }

    /// The host's own endpoint, whose incarnations are to be fenced.
    #[must_use]
    pub fn host(mut self, host: PlatformHost) -> Self {
        self.host = Some(host);
        self
    }

    /// Checks the host's endpoint; the rest is checked by its types.
    pub(crate) fn check(self) -> Result<Platform, StartError> {
        let host = self.host.map(PlatformHost::check).transpose()?.map(Arc::new);
        Ok(Platform { assignments: self.assignments, host })
    }
}

impl PlatformHost {
    /// A host that registers `endpoint`, a reverse-DNS name of at least two labels, with the closure `cluster_digest`.
    /// `artifacts` hold the closure's manifest and the cluster document that it names.
    pub fn new(
        endpoint: impl Into<String>,
        cluster_digest: DigestRef,
        artifacts: impl IntoIterator<Item = Artifact>,
    ) -> Self {
        Self { endpoint: endpoint.into(), cluster_digest, artifacts: artifacts.into_iter().collect() }
    }

    /// A host whose contract is this one cluster document; `contract-invalid` when it is none.
    pub fn of_document(endpoint: impl Into<String>, document: &Value) -> Result<Self, EpError> {
        ClusterDocument::parse(document.clone())?;
        let [document, manifest] = Artifact::closed(document)?;
        Ok(Self::new(endpoint, manifest.digest().clone(), [document, manifest]))
    }

    fn check(self) -> Result<HostEndpoint, StartError> {
        let refuse = |why: &str| StartError::Input(format!("platformControl.host.endpoint {why}"));
        let name = EndpointName::parse(&self.endpoint)
            .map_err(|error| refuse(&format!("is no endpoint name: {error}")))?;
        if !name.as_str().contains('.') {
            return Err(refuse(
                "must have at least two labels, such as com.example.host: single labels are reserved",
            ));
        }
        Ok(HostEndpoint { name, host: self })
    }
}

impl Platform {
    pub(crate) fn host(&self) -> Option<Arc<HostEndpoint>> {
        self.host.clone()
    }
}

impl HostEndpoint {
    /// Refuses a closure that is not there whole, before anything of it is published.
    fn check_closure(&self) -> Result<(), EpError> {
        let refuse =
            |why: &str| EpError::failed_precondition(format!("host registration: the artifacts {why}"));
        let of = |digest: &DigestRef| self.host.artifacts.iter().find(|artifact| artifact.digest() == digest);
        let manifest = of(&self.host.cluster_digest).ok_or_else(|| refuse("lack the closure's manifest"))?;
        let manifest = Manifest::parse(&manifest.document()?).map_err(|error| refuse(&error.message))?;
        if !manifest.members().is_empty() {
            return Err(refuse(
                "hold a manifest that lists members; a cluster refers to nothing outside itself",
            ));
        }
        let document = of(manifest.root()).ok_or_else(|| refuse("lack the cluster document"))?;
        ClusterDocument::parse(document.document()?).map_err(|error| refuse(&error.message))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::{EpCode, canonical::VOID_CLOSURE_DIGEST};
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "urn": "com.example.host", "revision": 1, "attributes": [], "events": [],
            "commands": [{
                "name": "ping", "class": "ephemeral", "targeted": false, "capability": "host.ping",
                "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
            }],
        })
    }

    #[test]
    fn a_hosts_endpoint_has_at_least_two_labels() {
        let checked = |name: &str| PlatformHost::of_document(name, &document()).unwrap().check();
        assert!(checked("com.example.host").is_ok() && checked("a.b").is_ok());
        for reserved in ["auth", "manager", "host"] {
            let text = checked(reserved).unwrap_err().to_string();
            assert!(text.contains("single labels are reserved"), "{text}");
        }
        for bad in ["", "Com.Example", "com..example", "com_example"] {
            let text = checked(bad).unwrap_err().to_string();
            assert!(text.contains("is no endpoint name"), "{text}");
        }
    }

    #[test]
    fn a_closure_that_is_not_there_whole_is_refused() {
        let whole = |artifacts: &[&Artifact], digest: &DigestRef| {
            let host =
                PlatformHost::new("com.example.host", digest.clone(), artifacts.iter().copied().cloned());
            host.check().unwrap().check_closure()
        };
        let [cluster, manifest] = Artifact::closed(&document()).unwrap();
        whole(&[&cluster, &manifest], manifest.digest()).unwrap();
        let manifest_with = |members: Value, more: bool| {
            let mut value = json!({ "v": 1, "root": cluster.digest(), "members": members });
            if more {
                value["x"] = json!(1);
            }
            Artifact::of(&value).unwrap()
        };
        let (member, extra) =
            (manifest_with(json!([VOID_CLOSURE_DIGEST]), false), manifest_with(json!([]), true));
        let [no_cluster, closes_it] = Artifact::closed(&json!({ "urn": "com.example.host" })).unwrap();
        for (artifacts, digest) in [
            (vec![], manifest.digest()),
            (vec![&cluster], manifest.digest()),
            (vec![&manifest], manifest.digest()),
            (vec![&cluster, &manifest], cluster.digest()),
            (vec![&cluster, &member], member.digest()),
            (vec![&cluster, &extra], extra.digest()),
            (vec![&no_cluster, &closes_it], closes_it.digest()),
        ] {
            let refusal = whole(&artifacts, digest).unwrap_err();
            assert_eq!(refusal.code, EpCode::FailedPrecondition, "{refusal}");
        }
    }
}
