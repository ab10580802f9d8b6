//! Whether a space admits service endpoints, asked without starting anything (contract 09 §9; seed 002).

use std::sync::Arc;

use cotal_authority::ReplicaStores;
use cotal_broker::{Connector, Custody};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::Space;
use cotal_workspace::{material, secret_store::SecretStore};

use crate::{context::StartError, hosted::check_servers};

/// Whether a callout replica refuses this space because its service-endpoint admission is open: for whoever writes a
/// manifest of replicas.
///
/// It is the read that a replica makes when it opens, over a store connection with a replica's own grant, which is
/// closed again. Nothing turns an answer of `true` back to `false`. An error when the space's service keys are missing,
/// or when its stores cannot be reached, proved or read: then nobody can say.
pub async fn admits_service_endpoints(
    space: &Space,
    server: &str,
    secrets: &dyn SecretStore,
) -> Result<bool, StartError> {
    let servers = check_servers("server", server)?;
    let account = material::load_service_keys(secrets, space).await?;
    let connector = Connector::new(
        servers.as_str(),
        space.clone(),
        account,
        Custody::new(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    )
    .ending_with_the_broker();
    let stores = ReplicaStores::open(&connector).await.map_err(StartError::Stores)?;
    let admits = stores.admits_service_endpoints().await;
    if let Err(error) = stores.close().await {
        tracing::warn!(%space, %error, "the connection that read the service-endpoint admission did not close");
    }
    admits.map_err(StartError::Stores)
}
