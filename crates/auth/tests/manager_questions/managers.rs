//! Managers of a stage, registered by the very ceremony that a participant runs, over grants of one instance each.

use std::sync::Arc;

use async_trait::async_trait;
use cotal_authority::registration::{Registered, Registry, deregister_instance};
use cotal_broker::{Connection, Connector, Lifetime};
use cotal_delivery::{CredsKind, CredsSource, Delivery, DeliveryInputs, Timing};
use cotal_testkit::manager::TestManager;
use cotal_trust::{
    bundle::DataAccount,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    ConnId, CredentialId, Owner, Permissions, Principal, Rules, Space, delivery_admin::StoreIdentity,
    grants::endpoint_serve, manager_authority::Kind, names::epgate_key,
};
use cotal_workspace::{daemon_creds::DaemonCred, file};
use serde_json::Value;
use zeroize::Zeroizing;

use super::stage::Stage;

/// Registers managers, and speaks for them.
pub(crate) struct Managers {
    connector: Connector,
    space: Space,
    account: DataAccount,
}

impl Managers {
    pub(crate) fn of(stage: &Stage) -> Self {
        let account = stage.space.material.data_account.clone();
        Self { connector: stage.space.connector(), space: stage.space.space.clone(), account }
    }

    /// A manager of an owner, that nobody has heard of.
    pub(crate) fn unheard(&self, owner: impl Into<Owner>) -> TestManager {
        TestManager::new(&self.space, &self.account.account, owner)
    }

    pub(crate) async fn registry(&self, manager: &TestManager) -> Registry {
        let (token, at) = (self.space.token(), manager.at());
        let grants = move |conn: &ConnId| {
            endpoint_serve::registration_executor(&token, conn, &at.endpoint, &at.instance)
        };
        let one_shot = Lifetime::OneShot { ttl_secs: 300, principal: None };
        let connection =
            self.connector.open("cotal:test-registration".into(), &grants, one_shot).await.unwrap();
        Registry::bind(&connection, &self.space).await.unwrap()
    }

    /// Its gate, and no more than it had.
    pub(crate) async fn provision(&self, manager: &TestManager) {
        manager.provision(&self.registry(manager).await).await.unwrap();
    }

    /// Registers; it has not said yet that it serves.
    pub(crate) async fn register(&self, manager: &TestManager) -> Registered {
        manager.register(&self.registry(manager).await).await.unwrap()
    }

    /// Says that it serves what it registered.
    pub(crate) async fn report(&self, manager: &TestManager, registered: &Registered) {
        manager.report(&self.registry(manager).await, registered).await.unwrap();
    }

    /// A manager that serves.
    pub(crate) async fn live(&self, owner: impl Into<Owner>) -> TestManager {
        let manager = self.unheard(owner);
        self.serve(&manager).await;
        manager
    }

    /// Registers, again if it has before, and reports.
    pub(crate) async fn serve(&self, manager: &TestManager) {
        let registry = self.registry(manager).await;
        let registered = manager.register(&registry).await.unwrap();
        manager.report(&registry, &registered).await.unwrap();
    }

    /// Dies while it registers again: its gate stays frozen, and its family has a holder.
    pub(crate) async fn freeze(&self, manager: &TestManager) {
        manager.freeze(&self.registry(manager).await).await.unwrap();
    }

    /// Retires its gate for good, as the end of a platform's assignment leaves it.
    pub(crate) async fn retire(&self, stage: &Stage, manager: &TestManager) {
        let seen = manager.gate(&self.registry(manager).await).await.unwrap();
        let row = String::from_utf8(seen.gate.to_bytes()).unwrap();
        let op = format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}}}", "f".repeat(26));
        let row = row.replace("\"open\"", "\"retired\"").trim_end_matches('}').to_owned() + &op;
        let key = epgate_key(&manager.at().endpoint, &manager.instance);
        stage.rows().await.put("auth", &key, row.into()).await.unwrap();
    }

    pub(crate) async fn deregister(&self, manager: &TestManager) {
        let registry = self.registry(manager).await;
        deregister_instance(registry.stores(), &manager.at()).await.unwrap();
    }

    /// Puts a credential of this holder into the family.
    pub(crate) async fn holds(&self, manager: &TestManager, holder: &Principal) {
        let id = CredentialId::mint_root(&SystemEntropy);
        manager.holds(&self.registry(manager).await, holder, &id).await.unwrap();
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

    /// A request at the epoch and with the proof of the registration as it is now.
    pub(crate) async fn proved(&self, manager: &TestManager, kind: Kind, more: Value) -> Value {
        let seen = manager.gate(&self.registry(manager).await).await.unwrap();
        manager.proved(kind, &manager.proved_at(&self.account, seen.gate.coordinate()), &more)
    }
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
