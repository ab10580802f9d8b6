//! What a registration serves: its clusters, read from the contract store by digest (contract 02 §7.4, 07 §11.7).

use std::collections::{BTreeMap, BTreeSet};

use cotal_broker::ContractStore;
use cotal_wire::{
    Command, DigestRef, EpError,
    contract::{Artifact, ClusterCommand, ClusterDocument, DescribedCluster, Descriptor, Manifest},
    rows::{GOVERNED_TRAITS, Governed, ServiceSpec},
};

/// The clusters of a spec, every digest verified and no command twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Surface {
    clusters: Vec<(DigestRef, ClusterDocument)>,
}

/// Why a surface could not be read. The same failure is another refusal to who registers and to who serves.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Unserved {
    /// The store did not answer.
    Unreadable(EpError),
    /// Nothing is stored under this digest.
    Missing(DigestRef),
    /// What is stored there is not what a cluster's closure is.
    Garbled(String),
    /// Two clusters declare this command.
    Twice(Command),
}

impl Surface {
    /// Reads every closure of a spec: the manifest at the closure's digest, then the document at its root.
    pub(crate) async fn read(store: &ContractStore, spec: &ServiceSpec) -> Result<Self, Unserved> {
        let mut clusters: Vec<(DigestRef, ClusterDocument)> = Vec::new();
        let mut names = BTreeSet::new();
        for closure in spec.cluster_digests() {
            let garbled = |why: EpError| Unserved::Garbled(format!("closure {closure}: {}", why.message));
            let manifest = fetch(store, closure).await?.document().map_err(garbled)?;
            let manifest = Manifest::parse(&manifest).map_err(garbled)?;
            if !manifest.members().is_empty() {
                return Err(Unserved::Garbled(format!(
                    "closure {closure}: a cluster refers to nothing outside itself"
                )));
            }
            let document = fetch(store, manifest.root()).await?.document().map_err(garbled)?;
            let cluster = ClusterDocument::parse(document).map_err(garbled)?;
            for command in cluster.commands() {
                if !names.insert(command.name.clone()) {
                    return Err(Unserved::Twice(command.name.clone()));
                }
            }
            clusters.push((closure.clone(), cluster));
        }
        Ok(Self { clusters })
    }

    /// Every command with the closure that declares it.
    pub fn commands(&self) -> impl Iterator<Item = (&DigestRef, &ClusterCommand)> {
        self.clusters
            .iter()
            .flat_map(|(digest, cluster)| cluster.commands().iter().map(move |command| (digest, command)))
    }

    /// The cluster of this name.
    pub(crate) fn cluster(&self, urn: &str) -> Option<&ClusterDocument> {
        self.clusters.iter().map(|(_, cluster)| cluster).find(|cluster| cluster.urn() == urn)
    }

    /// Every declared command with its governed traits, of which it may have none.
    pub(crate) fn declared(&self) -> Governed {
        let governed = |name: &&String| GOVERNED_TRAITS.contains(&name.as_str());
        self.commands()
            .map(|(_, command)| {
                (command.name.clone(), command.traits.iter().filter(governed).cloned().collect())
            })
            .collect::<BTreeMap<_, _>>()
    }

    /// What `describe` answers for this spec.
    pub(crate) fn descriptor(&self, spec: &ServiceSpec) -> Descriptor {
        let described = |(digest, cluster): &(DigestRef, ClusterDocument)| DescribedCluster {
            digest: digest.clone(),
            commands: cluster.commands().iter().map(|command| command.name.clone()).collect(),
            document: cluster.document().clone(),
        };
        Descriptor {
            endpoint: spec.endpoint().clone(),
            owner: spec.owner().clone(),
            endpoint_type: spec.endpoint_type().map(str::to_owned),
            clusters: self.clusters.iter().map(described).collect(),
        }
    }
}

impl Unserved {
    /// As a registration is refused: all of it `failed-precondition`.
    pub(crate) fn to_registrant(&self) -> EpError {
        EpError::failed_precondition(format!("registration: {}", self.why()))
    }

    /// As a serve grant is refused.
    pub(crate) fn to_server(&self) -> EpError {
        let message = format!("serve grant: {}", self.why());
        match self {
            Self::Unreadable(_) => EpError::unavailable(message),
            Self::Missing(_) => EpError::failed_precondition(message),
            Self::Garbled(_) | Self::Twice(_) => EpError::internal(message),
        }
    }

    fn why(&self) -> String {
        match self {
            Self::Unreadable(refusal) => refusal.message.clone(),
            Self::Missing(digest) => {
                format!("nothing is published under {digest}; publish the contract's artifacts first")
            }
            Self::Garbled(why) => why.clone(),
            Self::Twice(command) => format!("two clusters declare the command {command}"),
        }
    }
}

async fn fetch(store: &ContractStore, digest: &DigestRef) -> Result<Artifact, Unserved> {
    let bytes = store.fetch(digest).await.map_err(Unserved::Unreadable)?;
    let bytes = bytes.ok_or_else(|| Unserved::Missing(digest.clone()))?;
    Artifact::verify(digest, bytes.to_vec()).map_err(|why| Unserved::Garbled(why.message))
}
