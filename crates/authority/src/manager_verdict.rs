//! What a manager instance is to an owner: the verdict that binds a caller to it, or refuses (contract 05 §5).
//!
//! Read leader-served over the connect reader, so that a full service and a replica come to the same one. A candidate
//! has an open gate, is the owner's own or this host's, and has registered and reported at exactly that gate.

use std::fmt;

use async_trait::async_trait;
use cotal_wire::{
    DerivedOwner, EndpointToken, EpError, InstanceId, Nkey, Owner, Revision, User,
    manager_authority::{MANAGER_ENDPOINT, serve_principal},
};

use crate::{
    connect_reader::ConnectReader,
    ownership::instance_owner,
    registration::{
        EndpointInstance,
        gate::{self, GateAt},
        spec::{self, SpecSeen},
        status::read_status,
    },
    stores::AuthorityStores,
};

/// The manager that runs on this host, as its kept identity says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalManager {
    /// The instance.
    pub instance: InstanceId,
    /// The key that its serving principal is named by.
    pub serve: Nkey<User>,
}

/// Reads the identity of the local manager, fresh at every use: one that was made since is seen.
#[async_trait]
pub trait ReadLocalManager: Send + Sync {
    /// The identity, or `None` when this host has no manager.
    async fn read_local_manager(&self) -> Result<Option<LocalManager>, EpError>;
}

/// The reader of a host that has no local manager.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLocalManager;

#[async_trait]
impl ReadLocalManager for NoLocalManager {
    async fn read_local_manager(&self) -> Result<Option<LocalManager>, EpError> {
        Ok(None)
    }
}

/// What a manager instance is to an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerVerdict {
    /// It has no gate.
    Unknown,
    /// Its gate is frozen or retired.
    NotOpen,
    /// It is neither the owner's nor this host's.
    NotThisOwners,
    /// It has not registered, or not reported, at the gate as it stands.
    NotRegistered,
    /// It serves, at this epoch.
    Candidate {
        /// Compared for equality alone.
        process_epoch: u64,
    },
}

impl ManagerVerdict {
    /// The epoch of a candidate.
    pub const fn epoch(self) -> Option<u64> {
        match self {
            Self::Candidate { process_epoch } => Some(process_epoch),
            Self::Unknown | Self::NotOpen | Self::NotThisOwners | Self::NotRegistered => None,
        }
    }
}

impl fmt::Display for ManagerVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::NotOpen => "not open",
            Self::NotThisOwners => "not this owner's",
            Self::NotRegistered => "not registered",
            Self::Candidate { .. } => "candidate",
        })
    }
}

// === deciding =================================================================================================

/// Steps 2 to 4: whose it is, or what it is instead.
fn owner_of(
    gate: Option<&GateAt>,
    owner: &Owner,
    instance: &InstanceId,
    local: Option<&LocalManager>,
) -> Result<Result<Owner, ManagerVerdict>, EpError> {
    let Some(GateAt { gate, .. }) = gate else { return Ok(Err(ManagerVerdict::Unknown)) };
    if !gate.is_open() {
        return Ok(Err(ManagerVerdict::NotOpen));
    }
    if *gate.principal() == serve_principal(owner, instance) {
        return Ok(Ok(owner.clone()));
    }
    let here = local.filter(|local| local.instance == *instance);
    match here.map(|local| crate::registration::own::plane_principal(&local.serve)).transpose()? {
        Some(serve) if *gate.principal() == serve => Ok(Ok(Owner::local())),
        _ => Ok(Err(ManagerVerdict::NotThisOwners)),
    }
}

/// Steps 5 and 6: whether this very gate's registration stands.
fn registered_at(spec: &SpecSeen, of: &Owner, gate: &GateAt) -> Option<Revision> {
    match spec {
        SpecSeen::Registered(spec, revision)
            if spec.owner() == of && revision.0 == gate.gate.coordinate().registration_revision =>
        {
            Some(*revision)
        }
        SpecSeen::Absent | SpecSeen::Deregistered(_) | SpecSeen::Registered(..) => None,
    }
}

// === reading ==================================================================================================

/// Reads gate, owner, spec and status, in this order, each only when what was read before it gives no verdict; the owner not
/// when it is `known` that the host names nobody else.
async fn look(
    stores: &AuthorityStores,
    asking: &Owner,
    instance: &InstanceId,
    local: Option<&LocalManager>,
    known: bool,
) -> Result<ManagerVerdict, EpError> {
    let endpoint =
        EndpointToken::parse(MANAGER_ENDPOINT).map_err(|_| EpError::internal("manager is an endpoint"))?;
    let at = EndpointInstance { endpoint, instance: instance.clone() };
    let gate = gate::observe(stores, &at).await?;
    // The gate says what whoever registered the instance wrote there, whatever its state.
    if !known
        && gate.as_ref().is_some_and(|seen| *seen.gate.principal() == serve_principal(asking, instance))
        && instance_owner(stores, &at).await?.is_some_and(|bound| bound != *asking)
    {
        return Ok(ManagerVerdict::NotThisOwners);
    }
    let of = match owner_of(gate.as_ref(), asking, instance, local)? {
        Ok(of) => of,
        Err(verdict) => return Ok(verdict),
    };
    let Some(gate) = gate else { return Ok(ManagerVerdict::Unknown) };
    let process_epoch = gate.gate.coordinate().process_epoch;
    let Some(revision) = registered_at(&spec::read(stores, &at).await?, &of, &gate) else {
        return Ok(ManagerVerdict::NotRegistered);
    };
    let status = read_status(stores, &at).await?.status;
    let reported = status
        .is_some_and(|status| status.observed_spec_revision() >= revision && status.epoch() == process_epoch);
    Ok(if reported { ManagerVerdict::Candidate { process_epoch } } else { ManagerVerdict::NotRegistered })
}

impl ConnectReader {
    /// What this manager instance is to `owner` now (contract 05 §5 `managerGate`). `local` is this host's manager, read
    /// fresh by the caller.
    ///
    /// A marker in the place of the gate is `failed-precondition`, a garbled row `internal`; a reader that cannot read is
    /// `unavailable`.
    pub async fn manager_verdict(
        &self,
        owner: &DerivedOwner,
        instance: &InstanceId,
        local: Option<&LocalManager>,
    ) -> Result<ManagerVerdict, EpError> {
        let asking = owner.into();
        self.decided(|_| look(self.stores(), &asking, instance, local, false)).await
    }

    /// The same of an instance of which it is known that the host says of nobody else that it is theirs.
    pub(crate) async fn verdict_of_own(
        &self,
        owner: &DerivedOwner,
        instance: &InstanceId,
        local: Option<&LocalManager>,
    ) -> Result<ManagerVerdict, EpError> {
        let asking = owner.into();
        self.decided(|_| look(self.stores(), &asking, instance, local, true)).await
    }

    /// Whether a caller of `owner` may be given permissions on this manager instance at its connect (contract 05 §5).
    /// Anything but a candidate is `permission-denied`.
    pub async fn authorize_manager_caller(
        &self,
        owner: &DerivedOwner,
        instance: &InstanceId,
        local: Option<&LocalManager>,
    ) -> Result<(), EpError> {
        match self.manager_verdict(owner, instance, local).await? {
            ManagerVerdict::Candidate { .. } => Ok(()),
            verdict => Err(EpError::permission_denied(format!(
                "manager instance {instance} is {verdict} at the permission mint"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use cotal_trust::{nkey::Seed, system::SystemEntropy};
    use cotal_wire::{
        DigestRef, EndpointName, OpId, Principal,
        canonical::VOID_CLOSURE_DIGEST,
        rows::{EndpointGate, GateCoordinate, ServiceSpec},
    };

    use super::*;

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn owner() -> Owner {
        Owner::parse(OWNER).unwrap()
    }

    fn instance() -> InstanceId {
        InstanceId::parse(&"i".repeat(26)).unwrap()
    }

    fn local(instance: InstanceId) -> LocalManager {
        LocalManager { instance, serve: Seed::<User>::generate(&SystemEntropy).public().clone() }
    }

    fn gate(principal: &str) -> GateAt {
        let principal = Principal::parse_key(principal).unwrap();
        GateAt { gate: EndpointGate::provisioned(&principal), revision: Revision(1) }
    }

    fn verdict(gate: Option<&GateAt>, local: Option<&LocalManager>) -> Result<Owner, ManagerVerdict> {
        owner_of(gate, &owner(), &instance(), local).unwrap()
    }

    #[test]
    fn a_gate_is_there_then_open_then_the_owners_or_this_hosts() {
        let remote = gate(&format!("{OWNER}.manager_serve_{}", instance()));
        let op = OpId::mint(&SystemEntropy);
        let frozen = |gate: &GateAt| GateAt { gate: gate.gate.clone().freeze(&op).unwrap(), ..gate.clone() };
        let foreign = gate("u_bbbbbbbbbbbbbbbbbbbbbbbbbb.cli");
        let here = local(instance());
        let own = gate(&format!("local.{}", here.serve.as_str()));

        assert_eq!(verdict(None, None), Err(ManagerVerdict::Unknown));
        assert_eq!(
            verdict(Some(&frozen(&foreign)), None),
            Err(ManagerVerdict::NotOpen),
            "before whose it is"
        );
        assert_eq!(verdict(Some(&foreign), Some(&here)), Err(ManagerVerdict::NotThisOwners));
        assert_eq!(verdict(Some(&remote), None), Ok(owner()));
        assert_eq!(verdict(Some(&own), Some(&here)), Ok(Owner::local()));
        assert_eq!(verdict(Some(&own), None), Err(ManagerVerdict::NotThisOwners), "no local manager here");
        let another = LocalManager { instance: InstanceId::parse(&"j".repeat(26)).unwrap(), ..here };
        assert_eq!(
            verdict(Some(&own), Some(&another)),
            Err(ManagerVerdict::NotThisOwners),
            "another instance"
        );
        let rekeyed = local(instance());
        assert_eq!(verdict(Some(&own), Some(&rekeyed)), Err(ManagerVerdict::NotThisOwners), "another key");
        // The serving actor of another instance of the same owner is not this one.
        let sibling = gate(&format!("{OWNER}.manager_serve_{}", "j".repeat(26)));
        assert_eq!(verdict(Some(&sibling), None), Err(ManagerVerdict::NotThisOwners));
    }

    #[test]
    fn a_registration_counts_at_its_own_gate_and_owner_alone() {
        let name = EndpointName::parse(MANAGER_ENDPOINT).unwrap();
        let digest = DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap();
        let spec = ServiceSpec::new(&name, &owner(), vec![digest]).unwrap();
        let opened = gate(&format!("{OWNER}.manager_serve_{}", instance()));
        let op = OpId::mint(&SystemEntropy);
        let successor = GateCoordinate::default().registered(Revision(7), true);
        let at = GateAt {
            gate: opened.gate.clone().freeze(&op).unwrap().reopen(&op, successor).unwrap(),
            ..opened
        };
        let seen = |revision| SpecSeen::Registered(spec.clone(), Revision(revision));
        assert_eq!(registered_at(&seen(7), &owner(), &at), Some(Revision(7)));
        assert_eq!(registered_at(&seen(8), &owner(), &at), None, "registered again since");
        assert_eq!(registered_at(&seen(7), &Owner::local(), &at), None);
        assert_eq!(registered_at(&SpecSeen::Absent, &owner(), &at), None);
        assert_eq!(registered_at(&SpecSeen::Deregistered(Revision(7)), &owner(), &at), None);
    }

    #[test]
    fn verdicts_are_told_in_the_contracts_words() {
        let told: Vec<_> = [
            ManagerVerdict::Unknown,
            ManagerVerdict::NotOpen,
            ManagerVerdict::NotThisOwners,
            ManagerVerdict::NotRegistered,
        ]
        .iter()
        .map(ToString::to_string)
        .collect();
        assert_eq!(told, ["unknown", "not open", "not this owner's", "not registered"]);
    }
}
