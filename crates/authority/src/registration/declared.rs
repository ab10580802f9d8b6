//! What a registered instance declares of one command, at exactly one registration (contract 05 §6.2 "Registered manager
//! surface").

use cotal_wire::{EpError, Owner, Revision, contract::ClusterCommand};

use super::{
    EndpointInstance, Registry,
    spec::{self, SpecSeen},
    surface::Surface,
};

/// The command as the cluster `urn` of that registration declares it; `None` when it declares none of the name.
///
/// `failed-precondition` when the instance is not registered at that revision any more, has no such cluster, or an artifact
/// of it is missing; `permission-denied` when another owner registered it; `internal` for a garbled contract; `unavailable`
/// when it cannot be read.
pub async fn declared_command(
    registry: &Registry,
    at: &EndpointInstance,
    (owner, registration): (&Owner, Revision),
    urn: &str,
    command: &str,
) -> Result<Option<ClusterCommand>, EpError> {
    let SpecSeen::Registered(spec, revision) = spec::read(registry.stores(), at).await? else {
        return Err(EpError::failed_precondition(format!(
            "{at} is not registered any more; register it again"
        )));
    };
    if revision != registration {
        return Err(EpError::failed_precondition(format!("{at} has registered again since; ask again")));
    }
    if spec.owner() != owner {
        return Err(EpError::permission_denied(format!("{at} is registered by another owner")));
    }
    let surface = Surface::read(registry.contracts(), &spec).await;
    let surface = surface.map_err(|unserved| unserved.to_server())?;
    let cluster = surface.cluster(urn).ok_or_else(|| {
        EpError::failed_precondition(format!(
            "{at} registered no cluster {urn}; register it with the manager's contract"
        ))
    })?;
    Ok(cluster.commands().iter().find(|declared| declared.name.as_str() == command).cloned())
}
