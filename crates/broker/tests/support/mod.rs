//! A broker with one data account, and connections to it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cotal_broker::{Connection, ConnectionState, Connector, Custody, Lifetime, kv::Bucket};
use cotal_testkit::broker::NatsServer;
use cotal_trust::{
    bundle::DataAccount,
    jwt::{AccountClaims, encode_account, encode_operator},
    nkey::Seed,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Account, Clock, ConnId, Operator, Permissions, Rules, Space};
use serde_json::{Value, json};

pub struct Fixture {
    pub server: NatsServer,
    pub space: Space,
    pub custody: Custody,
    pub connector: Connector,
    pub account: DataAccount,
}

/// An operator-mode broker with the data account of the space `main`.
pub async fn fixture() -> Fixture {
    let now = SystemClock.now_secs();
    let operator = Seed::<Operator>::generate(&SystemEntropy);
    let sys = Seed::<Account>::generate(&SystemEntropy);
    let data = Seed::<Account>::generate(&SystemEntropy);
    let signing = Seed::<Account>::generate(&SystemEntropy);
    let account = |name: &str, seed: &Seed<Account>, signing_keys, jetstream| {
        let claims = AccountClaims {
            name: name.to_owned(),
            subject: seed.public().clone(),
            signing_keys,
            jetstream,
            authorization: None,
        };
        encode_account(&claims, &operator, now)
    };
    let config = format!(
        "host: 127.0.0.1\nport: {{port}}\nmax_control_line: 65536\njetstream {{ store_dir: \"{{store}}\" }}\n\
         operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{}: {}\n{}: {}\n}}\n",
        encode_operator("cotal-main", &operator, sys.public(), now),
        sys.public(),
        data.public(),
        account("main", &data, vec![signing.public().clone()], true),
        sys.public(),
        account("SYS", &sys, vec![], false),
    );
    let server = NatsServer::start(&config).await;
    let space = Space::parse("main").unwrap();
    let custody = Custody::new();
    let account = DataAccount { account: data.public().clone(), signing };
    let connector = Connector::new(
        &server.url(),
        space.clone(),
        account.clone(),
        custody.clone(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    );
    Fixture { server, space, custody, connector, account }
}

/// Everything, for a test's own hands.
pub fn everything(_conn: &ConnId) -> Permissions {
    let all = || Rules { allow: vec![">".into()], deny: vec![] };
    Permissions { publish: all(), subscribe: all() }
}

/// These subjects and the connection's own inbox.
pub fn only(publish: &[&str]) -> impl Fn(&ConnId) -> Permissions + Send + Sync + use<> {
    let allow: Vec<String> = publish.iter().map(ToString::to_string).collect();
    move |conn| Permissions {
        publish: Rules { allow: allow.clone(), deny: vec![] },
        subscribe: Rules { allow: vec![format!("_INBOX_{conn}.>")], deny: vec![] },
    }
}

impl Fixture {
    pub async fn open(&self, name: &str) -> Connection {
        self.connector.open(format!("cotal:{name}:main"), &everything, Lifetime::Renewing).await.unwrap()
    }

    /// A bucket made as the KV client makes one, with per-message TTLs, over its own connection.
    pub async fn bucket(&self, name: &str) -> (Connection, Bucket) {
        let connection = self.open("test").await;
        create_stream(&connection, &kv_config(name)).await;
        let bucket = Bucket::new(&connection, name);
        (connection, bucket)
    }
}

pub fn kv_config(bucket: &str) -> Value {
    json!({
        "name": format!("KV_{bucket}"), "subjects": [format!("$KV.{bucket}.>")],
        "retention": "limits", "storage": "file", "max_msgs_per_subject": 1, "discard": "new",
        "allow_rollup_hdrs": true, "allow_direct": true, "num_replicas": 1, "max_consumers": -1,
        "max_msgs": -1, "max_bytes": -1, "allow_msg_ttl": true,
    })
}

pub async fn api(connection: &Connection, verb: &str, body: &Value) -> Value {
    let answer = connection
        .request(&format!("$JS.API.{verb}"), &[], Bytes::from(body.to_string()), Duration::from_secs(5))
        .await
        .unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

pub async fn create_stream(connection: &Connection, config: &Value) {
    let name = config["name"].as_str().unwrap();
    let answer = api(connection, &format!("STREAM.CREATE.{name}"), config).await;
    assert_eq!(answer.get("error"), None, "{answer}");
}

/// Waits for a state, as long as it takes within the test's patience.
pub async fn wait_for(connection: &Connection, want: impl Fn(ConnectionState) -> bool) -> ConnectionState {
    let mut state = connection.state();
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            let now = *state.borrow_and_update();
            if want(now) {
                return now;
            }
            state.changed().await.unwrap();
        }
    });
    waited.await.expect("the connection reaches the state")
}
