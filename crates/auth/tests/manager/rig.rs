//! A service, a person who may supervise, and that person's manager.

use cotal_auth::AuthServiceArgs;
use cotal_authority::registration::{Registered, Registry};
use cotal_broker::kv::{Bucket, LeaderRead};
use cotal_testkit::{
    manager::{Proved, TestManager},
    raw::{ConnectOutcome, RawClient},
};
use cotal_wire::{
    EpError, LifecycleUid, Names, OpId, Owner,
    manager_authority::{CredentialName, Operation, ROUTE, RemoteManagerAuthorityMaterial},
};
use serde_json::{Value, json};

use super::stage::{Daemon, Stage, claims_of, es};

pub(super) const PERSON: &str = "alice";
pub(super) const SESSION: &str = "ssssssssssssssssssssss";

pub(super) struct Rig {
    pub(super) stage: Stage,
    pub(super) daemon: Daemon,
    pub(super) manager: TestManager,
}

/// What a manager has once it is activated.
pub(super) struct Activated {
    pub(super) prepared: Value,
    pub(super) registered: Registered,
    pub(super) answer: Value,
    pub(super) proof: Value,
}

impl Activated {
    /// What its requests carry.
    pub(super) fn proved(&self) -> Proved {
        Proved { epoch: self.registered.process_epoch, proof: self.proof.clone() }
    }
}

impl Rig {
    pub(super) async fn start() -> Self {
        Self::start_with(&["supervise"]).await
    }

    /// The person has more than may supervise.
    pub(super) async fn start_with(scope: &[&str]) -> Self {
        let stage = Stage::start().await;
        // A managed agent exchanges its secret on the public face: without one nobody is enrolled.
        let public = AuthServiceArgs {
            exchange_public_port: Some("0".into()),
            exchange_trusted_proxy: true,
            ..AuthServiceArgs::default()
        };
        let daemon = Daemon::start(&stage, public).await;
        stage.grant_human(PERSON, "cli", scope, &["general"]);
        let manager = manager_of(&stage, PERSON);
        Self { stage, daemon, manager }
    }

    pub(super) async fn send(&self, sub: &str, request: &Value) -> (u16, Value) {
        let body = json!({ "idpToken": self.stage.idp.mint_token(sub, 600), "request": request });
        let url = format!("{}{ROUTE}", self.daemon.discovery.url);
        self.daemon.post(&url, Some(&self.daemon.discovery.cap), &body).await
    }

    /// Asks on the public face, as a peer that was never refused before.
    pub(super) async fn send_afresh(&self, sub: &str, request: &Value) -> (u16, Value) {
        let url = format!("{}{ROUTE}", self.daemon.discovery.public_url.as_deref().unwrap());
        let body = json!({ "idpToken": self.stage.idp.mint_token(sub, 600), "request": request });
        self.stage.post_from(&self.stage.fresh_peer(), &url, &body).await
    }

    pub(super) async fn ask(&self, operation: Operation, more: Value) -> (u16, Value) {
        self.send(PERSON, &self.manager.request(operation, &more)).await
    }

    /// An answer that must come; it reads back as the closed material.
    pub(super) async fn granted(&self, operation: Operation, more: Value) -> Value {
        let (status, answer) = self.ask(operation, more).await;
        assert_eq!(status, 200, "{}: {answer}", operation.as_str());
        let material = RemoteManagerAuthorityMaterial::parse(&es(&answer));
        let material = material.unwrap_or_else(|error| panic!("{}: {error}", operation.as_str()));
        assert_eq!(material.operation, operation);
        assert_eq!(material.owner, self.manager.owner);
        assert_eq!(material.instance_id, self.manager.instance);
        for (name, issued) in material.credentials.iter() {
            assert_eq!(claims_of(&issued.jwt)["exp"], json!(issued.exp), "{}", name.as_str());
        }
        answer
    }

    /// Registers with the executor's credential and nothing else.
    pub(super) async fn register(&self, prepared: &Value) -> Result<Registered, EpError> {
        let creds = self.manager.creds(prepared, CredentialName::Executor);
        let connector = self.stage.space.connector();
        let connection = connector.open_creds("cotal:test:manager".into(), &creds).await.unwrap();
        let registry = Registry::of_participant(&connection, &self.stage.space.space);
        let registered = self.manager.register(&registry).await;
        connection.close().await?;
        registered
    }

    /// Prepares, registers, again if it has before, and is activated.
    pub(super) async fn activated(&self) -> Activated {
        let prepared = self.granted(Operation::Prepare, json!({})).await;
        let registered = self.register(&prepared).await.unwrap();
        let answer = self.granted(Operation::Activate, json!({})).await;
        let proof = answer["nextRegistrationProof"].clone();
        Activated { prepared, registered, answer, proof }
    }

    /// The rows of the family: holder and state, by key.
    pub(super) async fn family(&self) -> Vec<(String, String)> {
        let connection = self.stage.space.jetstream("family").await.unwrap();
        let auth = Bucket::new(&connection, &Names::new(&self.stage.space.space.token()).auth_bucket());
        let filter = format!("epcred.manager.{}.>", self.manager.instance);
        let mut rows = Vec::new();
        for key in auth.keys(&filter).await.unwrap() {
            let LeaderRead::Value(entry) = auth.leader_read(&key).await.unwrap() else {
                continue;
            };
            let row: Value = serde_json::from_slice(&entry.value).unwrap();
            let text = |member: &str| row[member].as_str().unwrap().to_owned();
            rows.push((text("holderPrincipal"), text("state")));
        }
        rows.sort();
        rows
    }

    pub(super) async fn connected(&self, creds: &str) -> RawClient {
        let url = self.stage.space.server.url();
        let (client, outcome) = RawClient::connect(&url, Some(creds), None, None).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
        client.unwrap()
    }
}

pub(super) fn manager_of(stage: &Stage, sub: &str) -> TestManager {
    let account = stage.space.account.data_account().account;
    TestManager::new(&stage.space.space, &account, stage.owner_of(sub))
}

pub(super) fn session(id: &str, exp: u64) -> Value {
    json!({ "session": { "id": id, "endpoint": "manager", "sessionId": SESSION, "epoch": 0, "exp": exp } })
}

pub(super) fn retirement(rig: &Rig, owner: &Owner, serve_epoch: u64) -> Value {
    let uid = LifecycleUid::parse(&"u".repeat(26)).unwrap();
    json!({ "retirement": {
        "id": rig.manager.one_shot().public(), "opId": OpId::managed_retirement(&uid), "serveEpoch": serve_epoch,
        "target": { "owner": owner, "actor": "worker", "lifecycleUid": uid },
    } })
}

pub(super) fn renewal(proof: &Value, epoch: u64) -> Value {
    json!({ "registrationProof": proof, "processEpoch": epoch })
}
