//! A broker in operator mode with one data account, the authority's own connections, and one that may do anything.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cotal_authority::{AuthorityStores, failpoint::Failpoint, plane::PlaneIdentity};
use cotal_broker::{Connection, Connector, Custody, Lifetime, kv::Bucket, kv::LeaderRead};
use cotal_testkit::broker::NatsServer;
use cotal_trust::{
    bundle::{BrokerTrust, DataAccount, SpaceAccount},
    nkey::Seed,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Act, Actor, BearerClaims, Clock, ConnId, CredentialId, DerivedOwner, EpCode, EpError, InfraRole,
    InstanceId, LifecycleUid, Names, OpId, Permissions, Principal, Revision, Rules, Space, UnixMillis,
    UnixSecs, User, grants::infra,
};

pub(crate) const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const WAIT: Duration = Duration::from_secs(10);

pub(crate) struct World {
    pub(crate) server: NatsServer,
    pub(crate) space: Space,
    pub(crate) custody: Custody,
    pub(crate) connector: Connector,
    /// Opens connections of the broker's system account.
    pub(crate) sys: Connector,
    pub(crate) account: DataAccount,
    pub(crate) anything: Connection,
    pub(crate) auth: Bucket,
    pub(crate) records: Bucket,
    /// Who a plane's own endpoint is.
    pub(crate) identity: PlaneIdentity,
}

impl World {
    pub(crate) async fn start() -> Self {
        let space = Space::parse("demo").unwrap();
        let now = SystemClock.now_secs();
        let trust = BrokerTrust::create("test", &SystemEntropy, now);
        let account = SpaceAccount::create(&trust, &space, &SystemEntropy, now);
        let server = NatsServer::start_with(|port, store| {
            format!(
                "host: 127.0.0.1\nport: {port}\nmax_control_line: 65536\njetstream {{ store_dir: \"{}\" }}\noperator: {}\n\
                 system_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}\n",
                store.display(),
                trust.operator_jwt,
                trust.sys,
                trust.sys,
                trust.sys_jwt,
                account.account.public(),
                account.jwt,
            )
        })
        .await;
        let custody = Custody::new();
        let connector = Connector::new(
            &server.url(),
            space.clone(),
            account.data_account(),
            custody.clone(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        let signing = trust.sys_signing_seed.clone().unwrap();
        let sys = Connector::new(
            &server.url(),
            space.clone(),
            DataAccount { account: trust.sys.clone(), signing },
            custody.clone(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        let anything =
            connector.open("cotal:test:demo".to_owned(), &everything, Lifetime::Renewing).await.unwrap();
        let names = Names::new(&space.token());
        let auth = Bucket::new(&anything, &names.auth_bucket());
        let records = Bucket::new(&anything, &names.records_bucket());
        let account = account.data_account();
        let identity = PlaneIdentity {
            instance: InstanceId::mint(&SystemEntropy),
            serve: Seed::<User>::generate(&SystemEntropy).public().clone(),
        };
        Self { server, space, custody, connector, sys, account, anything, auth, records, identity }
    }

    /// A connector of the same account and custody to another address of the broker.
    pub(crate) fn connector_at(&self, url: &str) -> Connector {
        Connector::new(
            url,
            self.space.clone(),
            self.account.clone(),
            self.custody.clone(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        )
    }

    /// The stores over a mint writer's connection of its own, as another process would hold them.
    pub(crate) async fn stores(&self) -> AuthorityStores {
        let token = self.space.token();
        let label = InfraRole::AUTH_MINT.label(&self.space);
        let writer = self
            .connector
            .open(label, &|inbox| infra::authority_writer(&token, inbox), Lifetime::Renewing)
            .await
            .unwrap();
        AuthorityStores::ensure(&writer, &self.space).await.unwrap()
    }

    /// As [`Self::stores`], watched by a failpoint.
    pub(crate) async fn watched(&self, failpoint: &Arc<Failpoint>) -> AuthorityStores {
        let stores = self.stores().await;
        failpoint.arm(&stores);
        stores
    }

    /// Writes a value over whatever is there.
    pub(crate) async fn put(&self, bucket: &Bucket, key: &str, value: &str) -> Revision {
        self.publish(bucket, key, &[], value).await
    }

    /// Leaves a deletion marker.
    pub(crate) async fn delete(&self, bucket: &Bucket, key: &str) {
        self.publish(bucket, key, &[("KV-Operation", "DEL")], "").await;
    }

    async fn publish(&self, bucket: &Bucket, key: &str, headers: &[(&str, &str)], value: &str) -> Revision {
        let subject = Names::kv_subject(bucket.name(), key);
        let payload = Bytes::copy_from_slice(value.as_bytes());
        let answer = self.anything.request(&subject, headers, payload, WAIT).await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        Revision(answer["seq"].as_u64().unwrap_or_else(|| panic!("{key} was not stored: {answer}")))
    }

    /// Lets the auth store's stream drift from its shape, or mends it.
    pub(crate) async fn set_allow_direct(&self, allow_direct: bool) {
        let stream = Names::new(&self.space.token()).auth_stream();
        let ask = async |verb: &str, body: String| -> Option<serde_json::Value> {
            let subject = format!("$JS.API.STREAM.{verb}.{stream}");
            let answer = self.anything.request(&subject, &[], body.into(), WAIT).await.ok()?;
            let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
            answer.get("error").is_none().then_some(answer)
        };
        // A broker that was just restarted answers a little later.
        eventually("the stream is updated", async || {
            let Some(mut info) = ask("INFO", String::new()).await else { return false };
            info["config"]["allow_direct"] = allow_direct.into();
            ask("UPDATE", info["config"].to_string()).await.is_some()
        })
        .await;
    }

    /// Removes a stream.
    pub(crate) async fn remove_stream(&self, stream: &str) {
        let subject = format!("$JS.API.STREAM.DELETE.{stream}");
        let answer = self.anything.request(&subject, &[], Bytes::new(), WAIT).await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(answer["success"], true, "{answer}");
    }

    /// The stored text, or `None` when there is none.
    pub(crate) async fn text(&self, bucket: &Bucket, key: &str) -> Option<String> {
        match bucket.leader_read(key).await.unwrap() {
            LeaderRead::Value(entry) => Some(String::from_utf8(entry.value.to_vec()).unwrap()),
            LeaderRead::Absent | LeaderRead::Marker(_) => None,
        }
    }

    /// The stored JSON.
    pub(crate) async fn json(&self, bucket: &Bucket, key: &str) -> serde_json::Value {
        serde_json::from_str(&self.text(bucket, key).await.unwrap_or_else(|| panic!("{key} is absent")))
            .unwrap()
    }

    /// How many credential rows of an incarnation are active.
    pub(crate) async fn active_rows(&self, uid: &LifecycleUid) -> usize {
        let mut active = 0;
        for key in self.auth.keys(&format!("cred.{uid}.>")).await.unwrap() {
            active += usize::from(self.json(&self.auth, &key).await["state"] == "active");
        }
        active
    }

    /// Plants an activated incarnation: reservation, head and open gate.
    pub(crate) async fn plant_active(&self, actor: &str, uid: &LifecycleUid) {
        self.plant_reservation(actor, uid).await;
        self.plant_head(actor, uid, "active", "").await;
        self.plant_gate(uid, "open", "").await;
    }

    pub(crate) async fn plant_reservation(&self, actor: &str, uid: &LifecycleUid) {
        let row = format!("{{\"owner\":\"{OWNER}\",\"actor\":\"{actor}\",\"mintedBy\":\"m\"}}");
        self.put(&self.records, &format!("uid.{uid}"), &row).await;
    }

    pub(crate) async fn plant_head(&self, actor: &str, uid: &LifecycleUid, state: &str, rest: &str) {
        let row = format!(
            "{{\"owner\":\"{OWNER}\",\"actor\":\"{actor}\",\"lifecycleUid\":\"{uid}\",\"managerInstance\":\"m\",\
             \"processEpoch\":1,\"state\":\"{state}\"{rest}}}"
        );
        self.put(&self.records, &format!("lifecycle.{OWNER}.{actor}"), &row).await;
    }

    pub(crate) async fn plant_gate(&self, uid: &LifecycleUid, state: &str, kind: &str) {
        let op = match kind {
            "" => String::new(),
            kind => format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"{kind}\"}}", op()),
        };
        let row = format!("{{\"lifecycleUid\":\"{uid}\",\"state\":\"{state}\",\"generation\":1{op}}}");
        self.put(&self.auth, &format!("gate.{uid}"), &row).await;
    }

    pub(crate) async fn plant_credential(
        &self,
        uid: &LifecycleUid,
        id: &str,
        holder: &str,
        chain: &str,
        state: &str,
        exp: u64,
    ) {
        let row = format!(
            "{{\"credentialId\":\"{id}\",\"holderPrincipal\":\"{holder}\",\"lifecycleUid\":\"{uid}\",\
             \"sourceChain\":[{chain}],\"state\":\"{state}\",\"exp\":{exp}}}"
        );
        self.put(&self.auth, &format!("cred.{uid}.{id}"), &row).await;
    }
}

/// A grant of a test's own hands.
pub(crate) fn everything(_: &ConnId) -> Permissions {
    let all = || Rules { allow: vec![">".to_owned()], deny: Vec::new() };
    Permissions { publish: all(), subscribe: all() }
}

pub(crate) fn op() -> OpId {
    OpId::parse(&"f".repeat(26)).unwrap()
}

pub(crate) fn uid() -> LifecycleUid {
    LifecycleUid::mint(&SystemEntropy)
}

pub(crate) fn principal(actor: &str) -> Principal {
    Principal::parse_key(&format!("{OWNER}.{actor}")).unwrap()
}

pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, EpError>) -> EpCode {
    result.unwrap_err().code
}

/// A row that cannot be read, under this key, is what was refused.
pub(crate) fn assert_garbled<T: std::fmt::Debug>(result: Result<T, EpError>, key: &str) {
    let refusal = result.unwrap_err();
    assert_eq!(refusal.code, EpCode::Internal, "{refusal}");
    assert!(refusal.message.contains(&format!("{key}: ")), "{refusal} does not name {key}");
}

/// A bearer of this actor at this incarnation, with this credential.
pub(crate) fn bearer(actor: &str, uid: Option<&LifecycleUid>, credential: Option<&str>) -> BearerClaims {
    let owner = DerivedOwner::parse(OWNER).unwrap();
    BearerClaims {
        owner: owner.clone(),
        space: Space::parse("demo").unwrap(),
        act: Act {
            owner,
            actor: Actor::parse(actor).unwrap(),
            scope: None,
            parent: None,
            lifecycle_uid: uid.cloned(),
            credential_id: credential.map(|id| CredentialId::parse(id).unwrap()),
            view: None,
            manager_instance_id: None,
            session: None,
            transfer_writer: None,
        },
        scope: Vec::new(),
        exp: UnixSecs(u64::MAX),
    }
}

/// A clock that a test moves.
#[derive(Debug)]
pub(crate) struct TestClock(AtomicU64);

impl TestClock {
    pub(crate) fn at(secs: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(secs * 1000)))
    }

    pub(crate) fn set(&self, secs: u64) {
        self.0.store(secs * 1000, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now_millis(&self) -> UnixMillis {
        UnixMillis(self.0.load(Ordering::SeqCst))
    }
}

/// Polls until it holds; panics when that takes too long.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
