//! An actor of a space: its grant, its exchange, and how its rows must stand.

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid, Principal, names};
use serde_json::{Value, json};

use crate::house::House;

/// Whose every actor here is.
const SUB: &str = "somebody";

/// A member with a managed grant.
pub(crate) struct Member {
    pub(crate) owner: DerivedOwner,
    pub(crate) actor: Actor,
    pub(crate) uid: LifecycleUid,
    secret: String,
}

impl Member {
    /// Grants a fresh name.
    pub(crate) fn grant(house: &House, actor: &str) -> Result<Self> {
        let owner = house.space.material.owner_secret.derive(&house.space.material.idp.issuer, SUB)?;
        let member = Self {
            owner,
            actor: Actor::parse(actor)?,
            uid: LifecycleUid::mint(&SystemEntropy),
            secret: String::new(),
        };
        member.granted(house)
    }

    /// The same name, granted anew at a fresh incarnation.
    pub(crate) fn regrant(&self, house: &House) -> Result<Self> {
        let (owner, actor) = (self.owner.clone(), self.actor.clone());
        let next = Self { owner, actor, uid: LifecycleUid::mint(&SystemEntropy), secret: String::new() };
        next.granted(house)
    }

    fn granted(mut self, house: &House) -> Result<Self> {
        let (secret, hash) = mint_agent_secret(&SystemEntropy);
        Ledger::at(&house.space.state_dir).grant_managed(&self.input(), &hash, &SystemClock)?;
        secret.to_string().clone_into(&mut self.secret);
        Ok(self)
    }

    fn input(&self) -> GrantInput {
        GrantInput::new(self.owner.clone(), self.actor.clone())
            .allow_subscribe(["general"])
            .allow_publish(["general"])
            .lifecycle_uid(self.uid.clone())
    }

    /// Takes the grant back.
    pub(crate) fn revoke(&self, house: &House) -> Result<()> {
        let ledger = Ledger::at(&house.space.state_dir);
        ledger.revoke_managed(&self.owner, &self.actor)?;
        ledger.revoke_interactive(&self.owner, &self.actor)?;
        Ok(())
    }

    /// Makes the grant a person's, at the same incarnation.
    pub(crate) fn hand_to_person(&self, house: &House) -> Result<()> {
        self.revoke(house)?;
        Ledger::at(&house.space.state_dir).grant_interactive(&self.input(), &SystemClock, &SystemEntropy)?;
        Ok(())
    }

    /// Whether a key is of this incarnation, or the head of its name.
    pub(crate) fn owns(&self, key: &str) -> bool {
        key.contains(self.uid.as_str()) || key == names::head_key(&self.principal())
    }

    pub(crate) fn principal(&self) -> Principal {
        Principal::new(&self.owner, self.actor.clone())
    }

    /// What an agent asks `/exchange` for.
    pub(crate) fn exchange_body(&self) -> Value {
        json!({ "owner": self.owner, "actor": self.actor, "actorToken": self.secret })
    }

    /// What a person asks `/exchange` for.
    pub(crate) fn login_body(&self, house: &House) -> Value {
        json!({ "idpToken": house.idp_token(SUB), "actor": self.actor })
    }

    /// What the lifecycle doors are asked with.
    pub(crate) fn door_body(&self) -> Value {
        json!({ "owner": self.owner, "actor": self.actor, "lifecycleUid": self.uid })
    }

    /// Exchanges for a bearer.
    pub(crate) async fn exchange(&self, house: &House) -> Result<String> {
        bearer(house, &self.exchange_body()).await
    }

    /// Exchanges, and is admitted by the broker.
    pub(crate) async fn enters(&self, house: &House) -> Result<()> {
        self.enters_with(house, &self.exchange_body()).await
    }

    /// As [`Self::enters`], as a person does.
    pub(crate) async fn enters_as_person(&self, house: &House) -> Result<()> {
        self.enters_with(house, &self.login_body(house)).await
    }

    async fn enters_with(&self, house: &House, body: &Value) -> Result<()> {
        let bearer = bearer(house, body).await?;
        self.stands(house, Some(&bearer)).await?;
        house.connect(&bearer).await.map(drop)
    }

    /// The incarnation is active: head, open gate, and no active root but the one that the head names.
    pub(crate) async fn stands(&self, house: &House, bearer: Option<&str>) -> Result<()> {
        let (head, gate) = (self.head(house).await?, self.gate(house).await?);
        ensure!(head["state"] == "active" && head["lifecycleUid"] == self.uid.as_str(), "the head: {head}");
        ensure!(gate["state"] == "open" && gate.get("op").is_none(), "the gate: {gate}");
        if let Some(bearer) = bearer {
            let claims = URL_SAFE_NO_PAD.decode(bearer.split('.').nth(1).context("no compact JWS")?)?;
            let claims: Value = serde_json::from_slice(&claims)?;
            let named = &head["currentCredentialId"];
            ensure!(claims["act"]["credentialId"] == *named, "the bearer is not of the root {named}");
            let key = format!("cred.{}.{}", self.uid, named.as_str().unwrap_or_default());
            let row = house.json(&house.auth, &key).await?;
            ensure!(row["state"] == "active", "{key}: {row}");
        }
        Ok(())
    }

    /// The incarnation is over, and nothing of it is left.
    pub(crate) async fn is_retired(&self, house: &House, op: &str) -> Result<()> {
        let (head, gate) = (self.head(house).await?, self.gate(house).await?);
        ensure!(head["state"] == "retired" && head["lifecycleUid"] == self.uid.as_str(), "the head: {head}");
        ensure!(gate["state"] == "retired" && gate["op"]["opId"] == op, "the gate: {gate}");
        let frontier = house.json(&house.records, &names::frontier_key(&self.uid)).await?;
        ensure!(frontier["opId"] == op, "the frontier: {frontier}");
        let intent = house.json(&house.auth, &format!("stage.{op}")).await?;
        ensure!(intent["kind"] == "retirement", "the intent: {intent}");
        self.nothing_is_active(house).await
    }

    pub(crate) async fn nothing_is_active(&self, house: &House) -> Result<()> {
        for key in house.auth.keys(&format!("cred.{}.>", self.uid)).await? {
            let row = house.json(&house.auth, &key).await?;
            ensure!(row["state"] == "revoked", "{key} is left: {row}");
        }
        Ok(())
    }

    pub(crate) async fn head(&self, house: &House) -> Result<Value> {
        house.json(&house.records, &names::head_key(&self.principal())).await
    }

    pub(crate) async fn gate(&self, house: &House) -> Result<Value> {
        house.json(&house.auth, &names::gate_key(&self.uid)).await
    }
}

async fn bearer(house: &House, body: &Value) -> Result<String> {
    let answer = house.ok("/exchange", body).await?;
    Ok(answer["token"].as_str().context("no token")?.to_owned())
}

/// A session of a member's: its row, and both its credentials.
pub(crate) struct Session {
    id: String,
    instance: LifecycleUid,
}

impl Session {
    /// Plants one as redemption leaves it.
    pub(crate) async fn plant(house: &House, member: &Member) -> Result<Self> {
        let (instance, holder) = (LifecycleUid::mint(&SystemEntropy), &member.uid);
        // An incarnation's grammar is within that of a session id.
        let id = LifecycleUid::mint(&SystemEntropy).to_string();
        let principal = member.principal().key();
        let session = Self { id, instance };
        let Self { id, instance } = &session;
        let row = json!({
            "sessionId": id, "endpoint": "manager", "serving": { "instanceId": instance, "epoch": 0 },
            "holder": { "principal": principal, "lifecycleUid": holder }, "grantSig": "sig",
            "credCaller": format!("{holder}.{id}.c"), "credServing": format!("manager.{instance}.{id}.s"),
            "revoked": { "caller": false, "serving": false }, "state": "active", "exp": 9,
        });
        let sessions = house.bucket(&house.names().sessions_bucket());
        house.put(&sessions, &format!("session.{id}"), row.to_string()).await?;
        let chain = json!([format!("session.{id}")]);
        let caller = json!({
            "credentialId": format!("{id}.c"), "holderPrincipal": principal, "lifecycleUid": holder,
            "sourceChain": chain, "state": "active", "exp": 9,
        });
        house.put(&house.auth, &format!("cred.{holder}.{id}.c"), caller.to_string()).await?;
        let serving = json!({
            "credentialId": format!("{id}.s"), "holderPrincipal": "local.manager_serve_1", "lifecycleUid": instance,
            "endpoint": "manager", "sourceChain": chain, "state": "active", "exp": 9,
        });
        house.put(&house.auth, &session.serving(), serving.to_string()).await?;
        Ok(session)
    }

    fn serving(&self) -> String {
        format!("epcred.manager.{}.{}.s", self.instance, self.id)
    }

    /// Whether a key is of this session.
    pub(crate) fn owns(&self, key: &str) -> bool {
        key.contains(&self.id)
    }

    /// It is over, and so is whoever served it; its holder's half is among the rows of the incarnation.
    pub(crate) async fn has_ended(&self, house: &House) -> Result<()> {
        let sessions = house.bucket(&house.names().sessions_bucket());
        let row = house.json(&sessions, &format!("session.{}", self.id)).await?;
        ensure!(row["state"] == "retired", "the session: {row}");
        let serving = house.json(&house.auth, &self.serving()).await?;
        ensure!(serving["state"] == "revoked", "the serving half: {serving}");
        Ok(())
    }
}
