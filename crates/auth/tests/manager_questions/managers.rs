//! Managers of a stage, registered by the very ceremony that a participant runs, over grants of one instance each.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use cotal_authority::{
    evict::{Eviction, Evictor},
    registration::{
        EndpointInstance, OwnName, Registered, Registration, Registry, deregister_instance, gate,
        issue_sibling,
        own::publish,
        register_service_instance,
        status::{StatusWrite, write_status},
    },
};
use cotal_broker::{Connection, Connector, Custody, Lifetime};
use cotal_delivery::{CredsKind, CredsSource, Delivery, DeliveryInputs, Timing};
use cotal_trust::{
    nkey::Seed,
    registration_proof::RegistrationProofKey,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Clock, ConnId, CredentialId, EndpointName, EpError, InstanceId, LifecycleUid, OpId, Owner, Permissions,
    Principal, Rules, UnixSecs, User,
    canonical::VOID_CLOSURE_DIGEST,
    contract::Artifact,
    delivery_admin::StoreIdentity,
    es_value::EsValue,
    grants::endpoint_serve,
    manager_authority::{GoalIndexRequest, Kind, StandingRole, serve_principal},
    rows::{CredentialRow, ServiceSpec, ServiceStatus, StatusState},
};
use cotal_workspace::{daemon_creds::DaemonCred, file};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::stage::Stage;

/// Registers managers, and speaks for them.
pub(crate) struct Managers {
    connector: Connector,
    space: cotal_wire::Space,
    key: RegistrationProofKey,
}

/// One manager instance, and what it is asked to be.
#[derive(Clone)]
pub(crate) struct Manager {
    pub(crate) at: EndpointInstance,
    /// Whom its spec names.
    pub(crate) owner: Owner,
    /// The principal of its gate.
    pub(crate) principal: Principal,
    pub(crate) uid: LifecycleUid,
    keys: HashMap<&'static str, String>,
}

impl Managers {
    pub(crate) fn of(stage: &Stage) -> Self {
        let account = stage.space.material.data_account.clone();
        Self {
            key: RegistrationProofKey::new(account.signing.clone()),
            connector: Connector::new(
                &stage.space.server.url(),
                stage.space.space.clone(),
                account,
                Custody::new(),
                Arc::new(SystemClock),
                Arc::new(SystemEntropy),
            ),
            space: stage.space.space.clone(),
        }
    }

    /// A manager of an owner, that nobody has heard of.
    pub(crate) fn unheard(owner: impl Into<Owner>) -> Manager {
        let (owner, instance) = (owner.into(), InstanceId::mint(&SystemEntropy));
        let principal = serve_principal(&owner, &instance);
        Self::of_principal(owner, instance, principal)
    }

    pub(crate) fn of_principal(owner: Owner, instance: InstanceId, principal: Principal) -> Manager {
        let key = |role: StandingRole| {
            (role.as_str(), Seed::<User>::generate(&SystemEntropy).public().as_str().to_owned())
        };
        Manager {
            at: EndpointInstance { endpoint: EndpointName::manager().token(), instance },
            owner,
            principal,
            uid: LifecycleUid::mint(&SystemEntropy),
            keys: StandingRole::ALL.into_iter().map(key).collect(),
        }
    }

    pub(crate) async fn registry(&self, at: &EndpointInstance) -> Registry {
        let token = self.space.token();
        let grants = {
            let at = at.clone();
            move |conn: &ConnId| {
                endpoint_serve::registration_executor(&token, conn, &at.endpoint, &at.instance)
            }
        };
        let one_shot = Lifetime::OneShot { ttl_secs: 300, principal: None };
        let connection =
            self.connector.open("cotal:test-registration".into(), &grants, one_shot).await.unwrap();
        Registry::bind(&connection, &self.space).await.unwrap()
    }

    /// Its gate, and no more than it had.
    pub(crate) async fn provision(&self, manager: &Manager) -> Registry {
        let registry = self.registry(&manager.at).await;
        publish(&registry, &artifacts()).await.unwrap();
        if gate::observe(registry.stores(), &manager.at).await.unwrap().is_none() {
            gate::provision(registry.stores(), &manager.at, &manager.principal).await.unwrap();
        }
        registry
    }

    /// Registers; it has not said yet that it serves.
    pub(crate) async fn register(&self, manager: &Manager) -> Registered {
        self.try_register(manager, &Sweeps(true)).await.unwrap()
    }

    async fn try_register(&self, manager: &Manager, evictor: &dyn Evictor) -> Result<Registered, EpError> {
        let registry = self.provision(manager).await;
        let cluster = artifacts().last().unwrap().digest().clone();
        let name = EndpointName::manager();
        let request = Registration {
            at: &manager.at,
            spec: &ServiceSpec::new(&name, &manager.owner, vec![cluster]).unwrap(),
            registrant: &manager.owner,
            op: &OpId::mint(&SystemEntropy),
            names: &OwnName { name: name.clone(), owner: manager.owner.clone() },
            evictor,
            eviction_sweep: 256,
        };
        register_service_instance(&registry, &request).await
    }

    /// Says that it serves what it registered.
    pub(crate) async fn report(&self, manager: &Manager, registered: &Registered) {
        let write = StatusWrite {
            at: &manager.at,
            writer_epoch: registered.process_epoch,
            status: ServiceStatus::new(
                registered.process_epoch,
                StatusState::ready(),
                registered.registration_revision,
            ),
            supervisor: false,
            expected: None,
        };
        write_status(self.registry(&manager.at).await.stores(), write).await.unwrap();
    }

    /// A manager that serves.
    pub(crate) async fn live(&self, owner: impl Into<Owner>) -> Manager {
        let manager = Self::unheard(owner);
        self.serve(&manager).await;
        manager
    }

    /// Registers, again if it has before, and reports.
    pub(crate) async fn serve(&self, manager: &Manager) -> Registered {
        let registered = self.register(manager).await;
        self.report(manager, &registered).await;
        registered
    }

    /// Dies while it registers again: its gate stays frozen, and its family has a holder.
    pub(crate) async fn freeze(&self, manager: &Manager) {
        self.holds(manager, &manager.principal, "left").await;
        let refusal = self.try_register(manager, &Sweeps(false)).await.unwrap_err();
        assert_eq!(refusal.code, cotal_wire::EpCode::Unavailable, "{refusal}");
    }

    /// Retires its gate for good, as the end of a platform's assignment leaves it.
    pub(crate) async fn retire(&self, stage: &Stage, manager: &Manager) {
        let seen =
            gate::observe(self.registry(&manager.at).await.stores(), &manager.at).await.unwrap().unwrap();
        let row = String::from_utf8(seen.gate.to_bytes()).unwrap();
        let op = format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}}}", "f".repeat(26));
        let row = row.replace("\"open\"", "\"retired\"").trim_end_matches('}').to_owned() + &op;
        let key = format!("epgate.{}.{}", manager.at.endpoint, manager.at.instance);
        let bucket = cotal_wire::Names::new(&self.space.token()).auth_bucket();
        stage.put(&bucket, &key, &row, seen.revision).await;
    }

    pub(crate) async fn deregister(&self, manager: &Manager) {
        deregister_instance(self.registry(&manager.at).await.stores(), &manager.at).await.unwrap();
    }

    /// Puts a credential of this holder into the family.
    pub(crate) async fn holds(&self, manager: &Manager, holder: &Principal, id: &str) {
        let registry = self.registry(&manager.at).await;
        let seen = gate::observe(registry.stores(), &manager.at).await.unwrap().unwrap();
        let id = CredentialId::parse(id).unwrap();
        let exp = UnixSecs(SystemClock.now_secs().0 + 600);
        let row = CredentialRow::endpoint(&EndpointName::manager(), &manager.at.instance, &id, holder, exp)
            .unwrap();
        issue_sibling(registry.stores(), &manager.at, &seen, row).await.unwrap();
    }

    /// Somebody who is connected as this principal.
    pub(crate) async fn connected_as(&self, principal: &Principal) -> Connection {
        let nothing = |conn: &ConnId| Permissions {
            publish: Rules { allow: vec!["cotal.test.nothing".into()], deny: vec![] },
            subscribe: Rules { allow: vec![format!("_INBOX_{conn}.>")], deny: vec![] },
        };
        let lifetime = Lifetime::OneShot { ttl_secs: 300, principal: Some(principal.clone()) };
        self.connector.open(format!("test:{principal}"), &nothing, lifetime).await.unwrap()
    }

    /// A request of this manager: the envelope of a kind and `more`.
    pub(crate) fn request(&self, manager: &Manager, kind: Kind, more: Value) -> Value {
        let identities: Value =
            manager.keys.iter().map(|(role, key)| ((*role).to_owned(), json!({ "id": key }))).collect();
        let mut request = json!({
            "v": 1, "kind": kind.as_str(), "space": self.space.as_str(), "actor": "cli",
            "instanceId": manager.at.instance, "managerLifecycleUid": manager.uid, "requestId": "r".repeat(22),
            "identities": identities,
        });
        let (Some(members), Value::Object(more)) = (request.as_object_mut(), more) else { panic!("objects") };
        members.extend(more);
        request
    }

    /// The same, at the epoch and with the proof of the registration as it is now.
    pub(crate) async fn proved(&self, manager: &Manager, kind: Kind, more: Value) -> Value {
        let seen =
            gate::observe(self.registry(&manager.at).await.stores(), &manager.at).await.unwrap().unwrap();
        let at = seen.gate.coordinate();
        // The envelope is the same whatever the kind, and the kind is no part of the proof.
        let proofless = json!({
            "registrationProof": format!("sha256:{}", "0".repeat(64)), "serveEpoch": at.process_epoch,
        });
        let scan = self.request(manager, Kind::GoalIndexScan, proofless);
        let scan = GoalIndexRequest::parse(&EsValue::parse(scan.to_string().as_bytes()).unwrap()).unwrap();
        let proof =
            self.key.prove(&scan.envelope, &manager.owner, at.registration_revision, at.process_epoch);
        let mut request = self.request(manager, kind, more);
        request["registrationProof"] = json!(proof);
        request["serveEpoch"] = json!(at.process_epoch);
        request
    }
}

/// An evictor that proves everybody gone, or nobody.
struct Sweeps(bool);

#[async_trait]
impl Evictor for Sweeps {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let verdict = |one: &Principal| Eviction {
            verified_gone: self.0,
            scan_complete: true,
            ..Eviction::unverified(one, "it stays")
        };
        principals.iter().map(verdict).collect()
    }
}

/// A manager's contract, of one command.
fn artifacts() -> Vec<Artifact> {
    let document = json!({
        "urn": "ai.cotal.manager", "revision": 1, "attributes": [], "events": [],
        "commands": [{
            "name": "status", "class": "ephemeral", "targeted": false, "capability": "manager.read",
            "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
        }],
    });
    Artifact::closed(&document).unwrap().into()
}

/// The space's delivery daemon, in this process.
pub(crate) async fn delivery(stage: &Stage) -> Delivery {
    stage.space.provision_delivery().await.unwrap();
    Delivery::start(DeliveryInputs {
        space: stage.space.space.clone(),
        servers: stage.space.server.url(),
        cluster: Vec::new(),
        data_account: stage.space.account.data_account().account,
        creds: Arc::new(Creds {
            root: stage.space.root.clone(),
            space: stage.space.space.clone(),
            store: stage.injected(),
        }),
        store_identity: StoreIdentity::Injected { coordinate: "test-store".to_owned() },
        timing: Timing::default(),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    })
    .await
    .unwrap()
}

struct Creds {
    root: cotal_workspace::root::Root,
    space: cotal_wire::Space,
    store: Arc<dyn cotal_workspace::secret_store::SecretStore>,
}

#[async_trait]
impl CredsSource for Creds {
    async fn read(&self, which: CredsKind) -> Result<Option<Zeroizing<String>>, String> {
        let cred = match which {
            CredsKind::Delivery => DaemonCred::Delivery,
            CredsKind::MembershipRw => DaemonCred::MembershipRw,
            CredsKind::MembershipObserver => DaemonCred::MembershipObserver,
            CredsKind::ConnectionEvictor => DaemonCred::ConnectionEvictor,
        };
        if cred.of_system_account() {
            file::read_text(&cred.path(&self.root, &self.space)).map_err(|why| why.to_string())
        } else {
            self.store.get(&cred.key(&self.space)).await.map_err(|why| why.to_string())
        }
    }
}
