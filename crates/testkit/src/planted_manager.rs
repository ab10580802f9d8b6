//! A manager's registration as the ceremony leaves it, planted in its store: for tests of what a registered manager may
//! ask. The ceremony itself is proved where it runs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cotal_broker::Connection;
use cotal_trust::{
    bundle::DataAccount, nkey::Seed, registration_proof::RegistrationProofKey, system::SystemEntropy,
};
use cotal_wire::{
    Actor, InstanceId, LifecycleUid, Names, OpId, Owner, Principal, Space, User,
    endpoint_token::EndpointToken,
    es_value::EsValue,
    manager_authority::{GoalIndexRequest, Kind, MANAGER_ENDPOINT, StandingRole, serve_principal},
    names::epgate_key,
};
use serde_json::{Map, Value, json};

/// How long a write may take.
const WRITE_WITHIN: Duration = Duration::from_secs(30);

/// A manager of an owner, and where its registration stands.
pub struct PlantedManager {
    space: Space,
    owner: Owner,
    actor: Actor,
    /// Its instance.
    pub instance: InstanceId,
    /// Its lifecycle.
    pub lifecycle: LifecycleUid,
    /// The revision of its registered spec.
    pub registration_revision: u64,
    /// Its serving epoch.
    pub serve_epoch: u64,
    identities: Value,
    key: RegistrationProofKey,
}

impl PlantedManager {
    /// Registers a fresh instance for this owner; `actor` is whose ledger row it asks under. `connection` may write the
    /// auth store.
    pub async fn register(
        connection: &Connection,
        space: &Space,
        account: &DataAccount,
        owner: &Owner,
        actor: &str,
    ) -> Result<Self> {
        let id = |_: StandingRole| json!({ "id": Seed::<User>::generate(&SystemEntropy).public() });
        let identities: Map<String, Value> =
            StandingRole::ALL.into_iter().map(|role| (role.as_str().to_owned(), id(role))).collect();
        let manager = Self {
            space: space.clone(),
            owner: owner.clone(),
            actor: Actor::parse(actor)?,
            instance: InstanceId::mint(&SystemEntropy),
            lifecycle: LifecycleUid::mint(&SystemEntropy),
            registration_revision: 1,
            serve_epoch: 0,
            identities: Value::Object(identities),
            key: RegistrationProofKey::new(account.signing.clone()),
        };
        manager.write_gate(connection, "open").await?;
        Ok(manager)
    }

    /// Registers once more, as a restart does: another revision, the next epoch.
    pub async fn register_again(&mut self, connection: &Connection) -> Result<()> {
        self.registration_revision += 2;
        self.serve_epoch += 1;
        self.write_gate(connection, "open").await
    }

    /// Leaves the gate frozen, as a registration does that died.
    pub async fn freeze(&self, connection: &Connection) -> Result<()> {
        self.write_gate(connection, "frozen").await
    }

    async fn write_gate(&self, connection: &Connection, state: &str) -> Result<()> {
        let mut row = json!({
            "state": state, "generation": self.serve_epoch + 1, "processEpoch": self.serve_epoch,
            "registrationRevision": self.registration_revision, "nameAuthorityRevision": 0,
            "principal": self.serve_principal(),
        });
        if state != "open" {
            row["op"] = json!({ "opId": OpId::mint(&SystemEntropy), "kind": "registration" });
        }
        let key = epgate_key(&EndpointToken::parse(MANAGER_ENDPOINT)?, &self.instance);
        let subject = Names::kv_subject(&Names::new(&self.space.token()).auth_bucket(), &key);
        let answer = connection.request(&subject, &[], row.to_string().into(), WRITE_WITHIN).await?;
        let answer: Value = serde_json::from_slice(&answer.payload)?;
        ensure!(answer["seq"].is_u64(), "{key} was not stored: {answer}");
        Ok(())
    }

    /// Who serves it.
    pub fn serve_principal(&self) -> Principal {
        serve_principal(&self.owner, &self.instance)
    }

    /// A request of a kind that carries `serveEpoch` and the proof of the present registration, with these members.
    pub fn request(&self, kind: Kind, more: &Value) -> Result<Value> {
        let mut request = json!({
            "v": 1, "kind": Kind::GoalIndexScan.as_str(), "space": self.space.as_str(), "actor": self.actor,
            "instanceId": self.instance, "managerLifecycleUid": self.lifecycle,
            "requestId": LifecycleUid::mint(&SystemEntropy), "identities": self.identities,
            "registrationProof": format!("sha256:{}", "0".repeat(64)), "serveEpoch": self.serve_epoch,
        });
        let envelope = GoalIndexRequest::parse(&EsValue::parse(request.to_string().as_bytes())?)?.envelope;
        let proof = self.key.prove(&envelope, &self.owner, self.registration_revision, self.serve_epoch);
        request["kind"] = json!(kind.as_str());
        request["registrationProof"] = json!(proof);
        for (member, value) in more.as_object().context("members")? {
            request[member] = value.clone();
        }
        Ok(request)
    }
}
