//! The loopback face of an auth service, with its capability.

use std::time::Duration;

use anyhow::{Result, bail};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid};
use cotal_workspace::material::Discovery;
use serde_json::{Value, json};

/// How long one request may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct Door {
    discovery: Discovery,
    http: reqwest::Client,
}

impl Door {
    /// Where the public face is, when the service has one.
    pub(crate) fn public_url(&self) -> Option<&str> {
        self.discovery.public_url.as_deref()
    }

    pub(crate) fn new(discovery: Discovery) -> Result<Self> {
        Ok(Self { discovery, http: cotal_trust::idp::http_client(ANSWER_WITHIN)? })
    }

    /// One agent exchange.
    pub(crate) async fn exchange(&self, owner: &DerivedOwner, actor: &Actor, secret: &str) -> Result<String> {
        let body = json!({ "owner": owner, "actor": actor, "actorToken": secret });
        let answer = self.post("/exchange", &body).await?;
        answer["token"].as_str().map(str::to_owned).ok_or_else(|| anyhow::anyhow!("no token in an exchange"))
    }

    /// Retires a managed lifecycle whose grant was revoked.
    pub(crate) async fn retire_managed(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        uid: &LifecycleUid,
    ) -> Result<()> {
        let body = json!({ "owner": owner, "actor": actor, "lifecycleUid": uid });
        self.post("/managed-lifecycle/retire", &body).await.map(drop)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self
            .http
            .post(format!("{}{path}", self.discovery.url))
            .bearer_auth(self.discovery.cap.as_str())
            .json(body)
            .send()
            .await?;
        let status = answer.status();
        let body: Value = answer.json().await?;
        if !status.is_success() {
            bail!("{path} answered {status}: {}", body["error"]);
        }
        Ok(body)
    }
}
