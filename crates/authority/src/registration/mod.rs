//! Service registration and the endpoint issuance gate (contract 02 §3.6, §7; 07 §11).
//!
//! Each instance of an endpoint has one gate, `epgate.<e>.<instance>`. Everything that is minted for the instance is
//! fenced by it: a credential is staged, and released only if the gate could be touched at the very revision that was
//! looked at. A registration freezes the gate, takes the endpoint's governance slot, revokes and evicts whoever served
//! before, writes the spec, and reopens the gate at the next coordinate LAST. Whatever was minted under an earlier
//! coordinate is worth nothing from then on.
//!
//! | verb | module |
//! |---|---|
//! | provision, observe, freeze, reopen, touch the gate | [`gate`] |
//! | run the ceremony, or resume one's own | [`register`] |
//! | run it for an endpoint of the plane itself, or of its host | [`own`] |
//! | authorize serving, mint for it | [`serve`] |
//! | say how an instance is | [`status`] |
//! | take an instance out of the registry | [`deregister`] |
//! | list the instances that a scatter asks | [`scatter`] |
//! | repair a gate that a dead registration left frozen | [`reconcile`] |
//!
//! Families are listed by STREAM.INFO over the registration connection, which therefore creates no consumer. A
//! participant, whose grant names no STREAM.INFO, walks its family message by message: [`Registry::of_participant`].

mod declared;
pub mod deregister;
mod family;
pub mod gate;
#[cfg(test)]
mod model;
pub mod name;
pub mod own;
pub mod reconcile;
pub mod register;
pub mod scatter;
pub mod serve;
mod slot;
pub(crate) mod spec;
pub mod status;
pub mod surface;

use std::fmt;

use cotal_broker::{Connection, ContractStore};
use cotal_wire::{EndpointToken, EpError, InstanceId, Space};

use crate::stores::AuthorityStores;

pub use declared::declared_command;
pub use deregister::{Deregistration, deregister_instance};
pub use name::{NameAuthority, NameVerdict, OwnName};
pub use own::{OwnEndpoint, OwnRegistration, register_own_endpoint, register_own_incarnation};
pub use reconcile::{
    PrincipalLiveness, RepairCondition, RepairRefusal, RepairReport, reconcile_endpoint_gate,
};
pub use register::{Registered, Registration, register_service_instance, register_serving_instance};
pub use scatter::freeze_scatter;
pub use serve::{ServeGrant, authorize_serve_grant, issue_sibling, mint_serve_credential};
pub use slot::OutOfTurn;

/// One instance of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointInstance {
    /// The endpoint.
    pub endpoint: EndpointToken,
    /// The instance.
    pub instance: InstanceId,
}

impl fmt::Display for EndpointInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.instance, self.endpoint.name())
    }
}

/// Whether the instance is in the registry: its spec was written, and not taken out since.
pub async fn is_registered(stores: &AuthorityStores, at: &EndpointInstance) -> Result<bool, EpError> {
    Ok(matches!(spec::read(stores, at).await?, spec::SpecSeen::Registered(..)))
}

/// What a registration works on: both authority stores, proved, and the contract store.
#[derive(Clone)]
pub struct Registry {
    stores: AuthorityStores,
    contracts: ContractStore,
}

impl Registry {
    /// Proves the stores over a connection that holds a registration executor's grant.
    pub async fn bind(connection: &Connection, space: &Space) -> Result<Self, EpError> {
        let stores = AuthorityStores::bind(connection, space).await?;
        Ok(Self { stores, contracts: ContractStore::new(connection, &space.token()) })
    }

    /// The stores as a participant has them, over the executor credential that its host issued (contract 08 §8.4).
    pub fn of_participant(connection: &Connection, space: &Space) -> Self {
        let stores = AuthorityStores::relied_on(connection, space);
        Self { stores, contracts: ContractStore::new(connection, &space.token()) }
    }

    /// The authority stores.
    pub fn stores(&self) -> &AuthorityStores {
        &self.stores
    }

    /// The contract store.
    pub fn contracts(&self) -> &ContractStore {
        &self.contracts
    }
}
