//! The connection on which credentials are issued into the families of managers, and a manager's gate.

use cotal_authority::registration::{
    EndpointInstance, Registry,
    gate::{self, GateAt},
};
use cotal_broker::{Connection, Connector, Lifetime};
use cotal_wire::{EndpointName, EpError, InfraRole, InstanceId, grants::infra};

use super::Parts;

/// The remote manager issuer: its connection, and both stores proved over it.
pub(crate) struct Issuing {
    connection: Connection,
    registry: Registry,
}

impl Issuing {
    /// Opens it: `cotal:remote-manager-issuer:<space>`. It reconnects for ever, and its custody closes it.
    pub(super) async fn open(connector: &Connector) -> Result<Self, EpError> {
        let space = connector.space();
        let token = space.token();
        // Any caller of a manager sends to what it hears.
        let connection = connector
            .for_rail()
            .open(
                InfraRole::REMOTE_MANAGER_ISSUER.label(space),
                &|inbox| infra::remote_manager_issuer(&token, inbox),
                Lifetime::Renewing,
            )
            .await?;
        let registry = Registry::bind(&connection, space).await?;
        Ok(Self { connection, registry })
    }

    /// The connection itself, which also hears what managers serve for runs.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The stores and the contract store, for issuing.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }
}

/// A manager as an endpoint instance.
pub(crate) fn manager_instance(instance: &InstanceId) -> EndpointInstance {
    EndpointInstance { endpoint: EndpointName::manager().token(), instance: instance.clone() }
}

impl Parts {
    /// The remote manager issuer, opened when first asked for.
    pub(crate) async fn issuing(&self) -> Result<&Issuing, EpError> {
        self.issuing.get_or_try_init(|| Issuing::open(&self.connector)).await
    }

    /// A manager's gate, where it leads; `None` when nothing was ever registered under this instance.
    pub(crate) async fn manager_gate(&self, instance: &InstanceId) -> Result<Option<GateAt>, EpError> {
        gate::observe(self.plane.stores(), &manager_instance(instance)).await
    }
}
