//! How a test's manager registers: by the ceremony that a participant runs, on a registry that may run it.

use std::collections::BTreeSet;

use async_trait::async_trait;
use cotal_authority::{
    evict::{Eviction, Evictor},
    registration::{
        EndpointInstance, OwnName, Registered, Registration, Registry,
        gate::{self, GateAt},
        issue_sibling,
        own::publish,
        register::EVICTION_SWEEP,
        register_service_instance,
        status::{StatusWrite, write_status},
    },
};
use cotal_trust::{
    bundle::DataAccount,
    registration_proof::RegistrationProofKey,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Clock, CredentialId, EpCode, EpError, OpId, Principal, Revision,
    rows::{CredentialRow, GateCoordinate, ServiceSpec, ServiceStatus, StatusState},
};
use serde_json::json;

use crate::manager::{Proved, TestManager};

/// How long a credential of [`TestManager::holds`] lives, in seconds.
const HELD_SECS: u64 = 600;

/// Proves everybody gone who is asked about, or nobody. Nobody of a test serves by itself.
enum Sweep {
    Gone,
    Stay,
}

#[async_trait]
impl Evictor for Sweep {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let verdict = |one: &Principal| Eviction {
            verified_gone: matches!(self, Self::Gone),
            scan_complete: true,
            ..Eviction::unverified(one, "it stays")
        };
        principals.iter().map(verdict).collect()
    }
}

impl TestManager {
    /// The instance of its endpoint.
    pub fn at(&self) -> EndpointInstance {
        EndpointInstance { endpoint: self.endpoint().token(), instance: self.instance.clone() }
    }

    /// Publishes its contract and, where there is none, makes its gate.
    pub async fn provision(&self, registry: &Registry) -> Result<(), EpError> {
        publish(registry, &self.artifacts()).await?;
        if gate::observe(registry.stores(), &self.at()).await?.is_none() {
            gate::provision(registry.stores(), &self.at(), &self.serving()).await?;
        }
        Ok(())
    }

    /// Registers, again if it has before: what was granted under an earlier registration is worth nothing any more.
    pub async fn register(&self, registry: &Registry) -> Result<Registered, EpError> {
        self.provision(registry).await?;
        self.run(registry, &OpId::mint(&SystemEntropy), &Sweep::Gone).await
    }

    /// Dies while it registers: its gate stays frozen. It is the operation that [`Self::resume`] goes on with.
    pub async fn freeze(&self, registry: &Registry) -> Result<OpId, EpError> {
        self.holds(registry, &self.serving(), &CredentialId::mint_root(&SystemEntropy)).await?;
        let op = OpId::mint(&SystemEntropy);
        match self.run(registry, &op, &Sweep::Stay).await {
            Err(refusal) if refusal.code == EpCode::Unavailable => Ok(op),
            Err(refusal) => Err(refusal),
            Ok(_) => Err(EpError::internal("it registered, though its holder stays")),
        }
    }

    /// Goes on with a registration that it died in.
    pub async fn resume(&self, registry: &Registry, op: &OpId) -> Result<Registered, EpError> {
        self.run(registry, op, &Sweep::Gone).await
    }

    async fn run(&self, registry: &Registry, op: &OpId, evictor: &Sweep) -> Result<Registered, EpError> {
        let names = OwnName { name: self.endpoint(), owner: self.owner.clone() };
        let [_, cluster] = self.artifacts();
        let spec = ServiceSpec::new(&names.name, &names.owner, vec![cluster.digest().clone()])?;
        let registration = Registration {
            at: &self.at(),
            spec: &spec,
            registrant: &self.owner,
            op,
            names: &names,
            evictor,
            eviction_sweep: EVICTION_SWEEP,
        };
        register_service_instance(registry, &registration).await
    }

    /// Says that it serves what it registered.
    pub async fn report(&self, registry: &Registry, registered: &Registered) -> Result<Revision, EpError> {
        let Registered { process_epoch, registration_revision, .. } = registered;
        let write = StatusWrite {
            at: &self.at(),
            writer_epoch: *process_epoch,
            status: ServiceStatus::new(*process_epoch, StatusState::ready(), *registration_revision),
            supervisor: false,
            expected: None,
        };
        write_status(registry.stores(), write).await
    }

    /// Its gate, which must be there.
    pub async fn gate(&self, registry: &Registry) -> Result<GateAt, EpError> {
        let seen = gate::observe(registry.stores(), &self.at()).await?;
        seen.ok_or_else(|| EpError::failed_precondition("the manager has no gate"))
    }

    /// Puts a credential of this holder into its family.
    pub async fn holds(
        &self,
        registry: &Registry,
        holder: &Principal,
        id: &CredentialId,
    ) -> Result<(), EpError> {
        let seen = self.gate(registry).await?;
        let exp = SystemClock.now_secs().plus(HELD_SECS);
        let row = CredentialRow::endpoint(&self.endpoint(), &self.instance, id, holder, exp)?;
        issue_sibling(registry.stores(), &self.at(), &seen, row).await?;
        Ok(())
    }

    /// What its requests carry under a registration that stands there, as its host answers it at the activation.
    pub fn proved_at(&self, host: &DataAccount, at: GateCoordinate) -> Proved {
        let key = RegistrationProofKey::new(host.signing.clone());
        let proof = key.prove(&self.envelope(), &self.owner, at.registration_revision, at.process_epoch);
        Proved { epoch: at.process_epoch, proof: json!(proof) }
    }

    /// Registers, and what its requests carry from then on: for a test whose manager is not activated.
    pub async fn register_proved(&self, registry: &Registry, host: &DataAccount) -> Result<Proved, EpError> {
        let registered = self.register(registry).await?;
        Ok(self.proved_at(host, registered.gate.gate.coordinate()))
    }
}
