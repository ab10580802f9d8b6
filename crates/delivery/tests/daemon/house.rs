//! A broker with a data account and a system account, the credentials of a daemon, and clients to be seen.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use cotal_authority::delivery_admin::DeliveryAdmin;
use cotal_broker::{Connection, Connector, Custody, Lifetime, kv::Bucket};
use cotal_delivery::{CredsKind, CredsSource, Delivery, DeliveryInputs, StartRefusal, Timing};
use cotal_testkit::{
    broker::NatsServer,
    raw::{ConnectOutcome, RawClient},
};
use cotal_trust::{
    bundle::{BrokerTrust, SpaceAccount},
    creds::{self, Creds},
    mint::{CredentialKind, Lifetime as CredsLifetime, StaticHolder, mint_static_user, mint_system_user},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Actor, Clock, ConnId, Names, Owner, Permissions, Principal, Rules, Space, UnixSecs,
    delivery_admin::StoreIdentity, grants::delivery,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use zeroize::Zeroizing;

pub(crate) const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const WAIT: Duration = Duration::from_secs(10);

/// Credentials in memory, as a store would hold them.
#[derive(Default)]
pub(crate) struct Store(Mutex<HashMap<CredsKind, String>>);

pub(crate) struct House {
    pub(crate) trust: BrokerTrust,
    pub(crate) account: SpaceAccount,
    pub(crate) space: Space,
    pub(crate) store: Arc<Store>,
    pub(crate) urls: String,
    pub(crate) timing: Timing,
    pub(crate) connector: Connector,
    pub(crate) anything: Connection,
}

impl Store {
    pub(crate) fn put(&self, which: CredsKind, text: &str) {
        self.0.lock().insert(which, text.to_owned());
    }

    pub(crate) fn remove(&self, which: CredsKind) {
        self.0.lock().remove(&which);
    }

    pub(crate) fn get(&self, which: CredsKind) -> String {
        self.0.lock()[&which].clone()
    }
}

#[async_trait]
impl CredsSource for Store {
    async fn read(&self, which: CredsKind) -> Result<Option<Zeroizing<String>>, String> {
        Ok(self.0.lock().get(&which).cloned().map(Zeroizing::new))
    }
}

/// A broker's trust and one space's account, before any broker runs.
pub(crate) struct Trust {
    pub(crate) trust: BrokerTrust,
    pub(crate) account: SpaceAccount,
}

impl Trust {
    pub(crate) fn new() -> Self {
        let now = SystemClock.now_secs();
        let trust = BrokerTrust::create("test", &SystemEntropy, now);
        let account = SpaceAccount::create(&trust, &Space::parse("main").unwrap(), &SystemEntropy, now);
        Self { trust, account }
    }

    /// The configuration of one server; `extra` accounts are preloaded beside the two.
    pub(crate) fn config(&self, port: u16, store: &Path, extra: &[(String, String)]) -> String {
        let mut accounts = vec![
            (self.account.account.public().to_string(), self.account.jwt.clone()),
            (self.trust.sys.to_string(), self.trust.sys_jwt.clone()),
        ];
        accounts.extend_from_slice(extra);
        let accounts: Vec<String> = accounts.iter().map(|(key, jwt)| format!("{key}: {jwt}")).collect();
        format!(
            "host: 127.0.0.1\nport: {port}\nmax_control_line: 65536\njetstream {{ store_dir: \"{}\" }}\n\
             operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{}\n}}\n",
            store.display(),
            self.trust.operator_jwt,
            self.trust.sys,
            accounts.join("\n"),
        )
    }
}

impl House {
    /// One server and a house on it.
    pub(crate) async fn start() -> (NatsServer, Self) {
        let trust = Trust::new();
        let server = NatsServer::start_with(|port, store| trust.config(port, store, &[])).await;
        let house = Self::on(trust, &server.url(), 1).await;
        (server, house)
    }

    /// A house on a broker that runs: buckets made, credentials minted.
    pub(crate) async fn on(Trust { trust, account }: Trust, urls: &str, replicas: u32) -> Self {
        let space = account.space.clone();
        let connector = Connector::new(
            urls,
            space.clone(),
            account.data_account(),
            Custody::new(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        let label = "cotal:test:main".to_owned();
        let anything = connector.open(label, &|_: &ConnId| everything(), Lifetime::Renewing).await.unwrap();
        let house = Self {
            store: Arc::new(Store::default()),
            urls: urls.to_owned(),
            timing: Timing::default(),
            trust,
            account,
            space,
            connector,
            anything,
        };
        let names = house.names();
        house.make_bucket(&names.delivery_bucket(), replicas, Duration::from_secs(30)).await;
        house.make_bucket(&names.members_bucket(), replicas, Duration::ZERO).await;
        house.store.put(CredsKind::Delivery, &house.delivery_creds(None));
        house.store.put(CredsKind::MembershipRw, &house.membership_creds(None));
        house.store.put(CredsKind::MembershipObserver, &house.observer_creds(&house.trust));
        let evictor = mint_system_user(
            &house.trust,
            CredentialKind::ConnectionEvictor,
            |_| delivery::connection_evictor(),
            &SystemEntropy,
            SystemClock.now_secs(),
        );
        house.store.put(CredsKind::ConnectionEvictor, &evictor.unwrap().creds);
        house
    }

    pub(crate) fn names(&self) -> Names {
        Names::new(&self.space.token())
    }

    pub(crate) async fn api(&self, verb: &str, body: &Value) -> Value {
        let subject = format!("$JS.API.{verb}");
        let answer = self.anything.request(&subject, &[], body.to_string().into(), WAIT).await.unwrap();
        serde_json::from_slice(&answer.payload).unwrap()
    }

    /// Retried: a cluster that was just started has no leader yet.
    async fn make_bucket(&self, bucket: &str, replicas: u32, ttl: Duration) {
        let stream = Names::kv_stream(bucket);
        let config = json!({
            "name": stream, "subjects": [format!("$KV.{bucket}.>")], "max_msgs_per_subject": 1,
            "discard": "new", "allow_rollup_hdrs": true, "allow_direct": true, "num_replicas": replicas,
            "max_age": u64::try_from(ttl.as_nanos()).unwrap(), "storage": "file", "retention": "limits",
        });
        eventually(&format!("{bucket} is made"), async || {
            let subject = format!("$JS.API.STREAM.CREATE.{stream}");
            let asked =
                self.anything.request(&subject, &[], config.to_string().into(), Duration::from_secs(5));
            let Ok(answer) = asked.await else { return false };
            let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
            answer.get("error").is_none()
        })
        .await;
    }

    /// The delivery bucket's rows live this long.
    pub(crate) async fn lease_ttl(&mut self, ttl: Duration) {
        let stream = Names::kv_stream(&self.names().delivery_bucket());
        let mut config = self.api(&format!("STREAM.INFO.{stream}"), &json!({})).await["config"].clone();
        config["max_age"] = u64::try_from(ttl.as_nanos()).unwrap().into();
        config["duplicate_window"] = config["max_age"].clone();
        let answer = self.api(&format!("STREAM.UPDATE.{stream}"), &config).await;
        assert_eq!(answer.get("error"), None, "{answer}");
        self.timing.lease_ttl = ttl;
    }

    /// Creds of the delivery profile, of a new user or of the one that is stored.
    pub(crate) fn delivery_creds(&self, exp: Option<UnixSecs>) -> String {
        let token = self.space.token();
        self.static_creds(CredentialKind::Delivery, exp, |conn| delivery::delivery(&token, conn))
    }

    pub(crate) fn membership_creds(&self, exp: Option<UnixSecs>) -> String {
        let token = self.space.token();
        self.static_creds(CredentialKind::MembershipRw, exp, |conn| delivery::membership_rw(&token, conn))
    }

    fn static_creds(
        &self,
        kind: CredentialKind,
        exp: Option<UnixSecs>,
        grant: impl FnOnce(&ConnId) -> Permissions,
    ) -> String {
        let lifetime = exp.map_or(CredsLifetime::OfKind, CredsLifetime::Until);
        let (holder, now) = (StaticHolder::default(), SystemClock.now_secs());
        let minted = mint_static_user(
            &self.account.data_account(),
            kind,
            &holder,
            lifetime,
            |who| Ok::<_, String>(grant(&who.conn_id)),
            &SystemEntropy,
            now,
        );
        minted.unwrap().creds.to_string()
    }

    /// The stored credential signed anew, for the same user, with another expiry.
    pub(crate) fn resigned(&self, which: CredsKind, exp: UnixSecs) -> String {
        let old = creds::parse(&self.store.get(which)).unwrap();
        let token = self.space.token();
        let conn = old.seed.public().conn_id();
        let claims = cotal_trust::jwt::UserClaims {
            name: "delivery".to_owned(),
            subject: old.seed.public().clone(),
            issuer_account: self.account.account.public().clone(),
            permissions: match which {
                CredsKind::MembershipRw => delivery::membership_rw(&token, &conn),
                _ => delivery::delivery(&token, &conn),
            },
            tags: Vec::new(),
            exp: Some(exp),
        };
        let signing = self.account.data_account().signing;
        let jwt = cotal_trust::jwt::encode_user(&claims, &signing, SystemClock.now_secs());
        creds::format(&Creds { jwt, seed: old.seed }).to_string()
    }

    pub(crate) fn observer_creds(&self, trust: &BrokerTrust) -> String {
        let account = self.account.account.public().clone();
        let minted = mint_system_user(
            trust,
            CredentialKind::MembershipObserver,
            |_| delivery::membership_observer(&account),
            &SystemEntropy,
            SystemClock.now_secs(),
        );
        minted.unwrap().creds.to_string()
    }

    /// Creds of an agent's static user, which may reconnect as it likes: its principal in its tags.
    pub(crate) fn agent_creds(&self, principal: &Principal) -> String {
        let holder = StaticHolder {
            owner: Some(principal.owner.clone()),
            actor: Some(principal.actor.clone()),
            lifecycle_uid: None,
        };
        let minted = mint_static_user(
            &self.account.data_account(),
            CredentialKind::Probe,
            &holder,
            CredsLifetime::OfKind,
            |who| {
                let own = || Rules { allow: vec![format!("_INBOX_{}.>", who.conn_id)], deny: Vec::new() };
                Ok::<_, String>(Permissions { publish: own(), subscribe: own() })
            },
            &SystemEntropy,
            SystemClock.now_secs(),
        );
        minted.unwrap().creds.to_string()
    }

    /// A client of a principal, on the broker at this URL.
    pub(crate) async fn client_at(&self, url: &str, principal: &Principal) -> RawClient {
        let (client, outcome) = RawClient::connect(url, Some(&self.agent_creds(principal)), None, None).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
        client.unwrap()
    }

    pub(crate) async fn client(&self, principal: &Principal) -> RawClient {
        let url = self.urls.split(',').next().unwrap().to_owned();
        self.client_at(&url, principal).await
    }

    /// Removes a server from the meta group for good, as an operator does.
    pub(crate) async fn remove_peer(&self, name: &str) {
        let url = self.urls.split(',').next().unwrap();
        self.remove_peer_at(url, name).await;
    }

    /// A client that may do anything in the system account, on the server at this URL.
    pub(crate) async fn system_client_at(&self, url: &str) -> RawClient {
        let anything = mint_system_user(
            &self.trust,
            CredentialKind::ConnectionEvictor,
            |_| everything(),
            &SystemEntropy,
            SystemClock.now_secs(),
        );
        let creds = anything.unwrap().creds.to_string();
        RawClient::connect(url, Some(&creds), None, None).await.0.unwrap()
    }

    /// As [`Self::remove_peer`], asked at the server at this URL.
    pub(crate) async fn remove_peer_at(&self, url: &str, name: &str) {
        let mut client = self.system_client_at(url).await;
        client.try_subscribe("_INBOX.removed", None).await.unwrap();
        let request = json!({ "peer": name }).to_string();
        client.publish("$JS.API.SERVER.REMOVE", Some("_INBOX.removed"), request.as_bytes()).await.unwrap();
        let answer = client.next_message().await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(answer["success"], true, "{answer}");
    }

    pub(crate) fn inputs(&self) -> DeliveryInputs {
        DeliveryInputs {
            space: self.space.clone(),
            servers: self.urls.clone(),
            cluster: Vec::new(),
            data_account: self.account.account.public().clone(),
            creds: Arc::<Store>::clone(&self.store),
            store_identity: StoreIdentity::Fs { root: "root".to_owned(), id: None },
            timing: self.timing,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        }
    }

    pub(crate) async fn daemon(&self) -> Delivery {
        self.try_daemon().await.unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    pub(crate) async fn try_daemon(&self) -> Result<Delivery, StartRefusal> {
        Delivery::start(self.inputs()).await
    }

    /// The authority's client.
    pub(crate) fn admin(&self) -> DeliveryAdmin {
        DeliveryAdmin::new(self.connector.clone())
    }

    pub(crate) fn bucket(&self, bucket: &str) -> Bucket {
        Bucket::new(&self.anything, bucket)
    }

    /// Writes a value over whatever is there.
    pub(crate) async fn put(&self, bucket: &str, key: &str, value: &str) {
        self.publish(bucket, key, &[], value).await;
    }

    /// Leaves a deletion marker.
    pub(crate) async fn delete(&self, bucket: &str, key: &str) {
        self.publish(bucket, key, &[("KV-Operation", "DEL")], "").await;
    }

    async fn publish(&self, bucket: &str, key: &str, headers: &[(&str, &str)], value: &str) {
        let subject = Names::kv_subject(bucket, key);
        let payload = Bytes::copy_from_slice(value.as_bytes());
        let answer = self.anything.request(&subject, headers, payload, WAIT).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert!(answer["seq"].is_u64(), "{key} was not stored: {answer}");
    }
}

fn everything() -> Permissions {
    let all = || Rules { allow: vec![">".to_owned()], deny: Vec::new() };
    Permissions { publish: all(), subscribe: all() }
}

pub(crate) fn principal(actor: &str) -> Principal {
    Principal::new(Owner::parse(OWNER).unwrap(), Actor::parse(actor).unwrap())
}

/// How long anything may take: a cluster that has lost a server first elects leaders, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until it holds; panics when that takes too long.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
