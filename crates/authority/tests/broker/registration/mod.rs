//! Registration of service instances over a real broker, under the very grant that registers (contract 02 §7, 07 §11).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use cotal_authority::{
    evict::{Eviction, Evictor},
    failpoint::Failpoint,
    registration::{
        Deregistration, EndpointInstance, OwnEndpoint, OwnName, OwnRegistration, PrincipalLiveness,
        Registered, Registration, Registry, RepairRefusal, RepairReport, authorize_serve_grant,
        deregister_instance, freeze_scatter,
        gate::{self, GateAt},
        issue_sibling, mint_serve_credential,
        own::{plane_principal, publish},
        reconcile::Liveness,
        reconcile_endpoint_gate, register_own_endpoint, register_own_incarnation, register_service_instance,
        serve::{ServeCredential, ServeGrant, ServeRequest, credential_id_of, withdraw},
        status::{StatusWrite, write_status},
    },
};
use cotal_broker::{Lifetime, provision::provision_space};
use cotal_trust::{nkey::Seed, system::SystemEntropy};
use cotal_wire::{
    Command, ConnId, DigestRef, EndpointName, EpCode, EpError, InstanceId, OpId, Owner, Principal, Revision,
    UnixSecs, User,
    canonical::VOID_CLOSURE_DIGEST,
    contract::Artifact,
    grants::endpoint_serve,
    names,
    rows::{Activation, CredentialRow, EndpointGate, ServiceSpec, ServiceStatus, SourceMember, StatusState},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::{World, code};

mod ceremony;
mod leaving;
mod serving;

const NAME: &str = "com.example.search";

/// A provisioned space, and a contract to register.
struct Rig {
    world: World,
    at: EndpointInstance,
    principal: Principal,
    artifacts: Vec<Artifact>,
    cluster: DigestRef,
}

fn principal(actor: &str) -> Principal {
    Principal::parse_key(&format!("local.{actor}")).unwrap()
}

fn cluster(command: &str, class: &str, traits: &[&str]) -> Vec<Artifact> {
    let mut declared = json!({
        "name": command, "class": class, "targeted": false, "capability": "search",
        "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST, "traits": traits,
    });
    if class == "journal" {
        declared["admissionCeiling"] = json!({ "maxBytes": 1, "maxDepth": 1, "maxItems": 1 });
    }
    let document =
        json!({ "urn": NAME, "revision": 1, "attributes": [], "events": [], "commands": [declared] });
    Artifact::closed(&document).unwrap().into()
}

fn closure(artifacts: &[Artifact]) -> DigestRef {
    artifacts.last().unwrap().digest().clone()
}

fn instance() -> InstanceId {
    InstanceId::mint(&SystemEntropy)
}

fn op() -> OpId {
    OpId::mint(&SystemEntropy)
}

impl Rig {
    async fn start() -> Self {
        let world = World::start().await;
        provision_space(&world.anything, &world.space).await.unwrap();
        let artifacts = cluster("find", "ephemeral", &[]);
        let serve = Seed::<User>::generate(&SystemEntropy);
        Self {
            world,
            at: EndpointInstance {
                endpoint: EndpointName::parse(NAME).unwrap().token(),
                instance: instance(),
            },
            principal: plane_principal(serve.public()).unwrap(),
            cluster: closure(&artifacts),
            artifacts,
        }
    }

    /// As another process would bind it, for this instance alone.
    async fn registry_of(&self, at: &EndpointInstance) -> Registry {
        let space = self.world.space.token();
        let grants =
            |conn: &ConnId| endpoint_serve::registration_executor(&space, conn, &at.endpoint, &at.instance);
        let label = "cotal:auth-registration:demo".to_owned();
        let connection = self.world.connector.open(label, &grants, Lifetime::Renewing).await.unwrap();
        Registry::bind(&connection, &self.world.space).await.unwrap()
    }

    async fn registry(&self) -> Registry {
        self.registry_of(&self.at).await
    }

    async fn watched(&self, failpoint: &Arc<Failpoint>) -> Registry {
        let registry = self.registry().await;
        failpoint.arm(registry.stores());
        registry
    }

    fn own(&self) -> OwnEndpoint {
        OwnEndpoint {
            name: EndpointName::parse(NAME).unwrap(),
            instance: self.at.instance.clone(),
            principal: self.principal.clone(),
            cluster: self.cluster.clone(),
            artifacts: self.artifacts.clone(),
        }
    }

    async fn register_own(&self, registry: &Registry) -> Result<OwnRegistration, EpError> {
        register_own_endpoint(registry, &self.own(), &SystemEntropy, &Sweeper::thorough()).await
    }

    async fn register_incarnation(&self, registry: &Registry) -> Result<Registered, EpError> {
        register_own_incarnation(registry, &self.own(), &SystemEntropy, &Sweeper::thorough()).await
    }

    fn spec(&self) -> ServiceSpec {
        spec_of(&self.cluster)
    }

    /// Publishes the contract and provisions the gate: what a registration finds.
    async fn ready(&self, registry: &Registry) {
        publish(registry, &self.artifacts).await.unwrap();
        gate::provision(registry.stores(), &self.at, &self.principal).await.unwrap();
    }

    async fn gate(&self) -> Value {
        self.world.json(&self.world.auth, &self.gate_key()).await
    }

    fn gate_key(&self) -> String {
        format!("epgate.{}.{}", self.at.endpoint, self.at.instance)
    }

    fn spec_key(&self) -> String {
        format!("svc.{}.{}.spec", self.at.endpoint, self.at.instance)
    }

    fn govern_key(&self) -> String {
        format!("govern.{}", self.at.endpoint)
    }

    fn cursor_key(&self) -> String {
        format!("eprepair.{}.{}", self.at.endpoint, self.at.instance)
    }

    async fn plant_gate(&self, state: &str, generation: u64, revision: u64, op: &str) {
        let row = format!(
            "{{\"state\":\"{state}\",\"generation\":{generation},\"processEpoch\":0,\
             \"registrationRevision\":{revision},\"nameAuthorityRevision\":0,\"principal\":\"{}\"{op}}}",
            self.principal
        );
        self.world.put(&self.world.auth, &self.gate_key(), &row).await;
    }

    /// Plants an active row of the family.
    async fn plant_credential(&self, id: &str, holder: &Principal) {
        let credential = cotal_wire::CredentialId::parse(id).unwrap();
        let name = EndpointName::parse(NAME).unwrap();
        let row =
            CredentialRow::endpoint(&name, &self.at.instance, &credential, holder, UnixSecs(9)).unwrap();
        let text = String::from_utf8(row.to_bytes()).unwrap();
        self.world.put(&self.world.auth, &row.key().to_string(), &text).await;
    }

    async fn active_rows(&self) -> usize {
        let filter = format!("epcred.{}.{}.>", self.at.endpoint, self.at.instance);
        let mut active = 0;
        for key in self.world.auth.keys(&filter).await.unwrap() {
            active += usize::from(self.world.json(&self.world.auth, &key).await["state"] == "active");
        }
        active
    }
}

fn spec_of(cluster: &DigestRef) -> ServiceSpec {
    ServiceSpec::new(&EndpointName::parse(NAME).unwrap(), &Owner::local(), vec![cluster.clone()]).unwrap()
}

fn names() -> OwnName {
    OwnName { name: EndpointName::parse(NAME).unwrap(), owner: Owner::local() }
}

async fn register(
    registry: &Registry,
    at: &EndpointInstance,
    spec: &ServiceSpec,
    op: &OpId,
) -> Result<Registered, EpError> {
    register_with(registry, at, spec, op, &Sweeper::thorough()).await
}

async fn register_with(
    registry: &Registry,
    at: &EndpointInstance,
    spec: &ServiceSpec,
    op: &OpId,
    evictor: &Sweeper,
) -> Result<Registered, EpError> {
    let request = Registration {
        at,
        spec,
        registrant: &Owner::local(),
        op,
        names: &names(),
        evictor,
        eviction_sweep: 2,
    };
    register_service_instance(registry, &request).await
}

/// An evictor that proves everybody gone but those it is told not to, and remembers what it was asked.
#[derive(Default)]
struct Sweeper {
    stays: Mutex<BTreeSet<Principal>>,
    asked: Mutex<Vec<Vec<String>>>,
}

impl Sweeper {
    fn thorough() -> Self {
        Self::default()
    }

    fn but(actor: &str) -> Self {
        Self { stays: Mutex::new(BTreeSet::from([principal(actor)])), ..Self::default() }
    }

    fn asked(&self) -> Vec<Vec<String>> {
        self.asked.lock().clone()
    }
}

#[async_trait]
impl Evictor for Sweeper {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        self.asked.lock().push(principals.iter().map(|one| one.actor.to_string()).collect());
        let verdict = |one: &Principal| Eviction {
            verified_gone: !self.stays.lock().contains(one),
            scan_complete: true,
            note: Some("it stays".to_owned()),
            ..Eviction::unverified(one, "")
        };
        principals.iter().map(verdict).collect()
    }
}

/// What a liveness probe says.
struct Probe(Liveness);

#[async_trait]
impl PrincipalLiveness for Probe {
    async fn liveness(&self, _: &Principal) -> Liveness {
        self.0
    }
}

async fn repair(
    registry: &Registry,
    at: &EndpointInstance,
    liveness: Liveness,
    sweeper: &Sweeper,
) -> Result<RepairReport, RepairRefusal> {
    reconcile_endpoint_gate(registry, at, &Probe(liveness), sweeper).await
}

fn condition(result: Result<RepairReport, RepairRefusal>) -> &'static str {
    match result.unwrap_err() {
        RepairRefusal::Condition { condition, .. } => condition.as_str(),
        RepairRefusal::Failed(refusal) => panic!("{refusal}"),
    }
}

async fn mint(registry: &Registry, grant: &ServeGrant, holder: &Principal, jwt: &str) -> Result<(), EpError> {
    let credential = ServeCredential {
        id: credential_id_of(jwt).unwrap(),
        source_chain: vec![SourceMember::Root],
        exp: UnixSecs(9),
    };
    mint_serve_credential(registry.stores(), grant, holder, credential).await.map(|_| ())
}

async fn registered(rig: &Rig, registry: &Registry) -> Registered {
    rig.ready(registry).await;
    register(registry, &rig.at, &rig.spec(), &op()).await.unwrap()
}

async fn grant(rig: &Rig, registry: &Registry, epoch: u64) -> Result<ServeGrant, EpError> {
    let request =
        ServeRequest { at: &rig.at, owner: &Owner::local(), epoch, pools: &BTreeSet::new(), names: &names() };
    authorize_serve_grant(registry, &request).await
}
