//! What a remote manager is granted under its registration: activation, and the renewal of the standing bundle.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use cotal_authority::registration::Registry;
use cotal_ledger::{GrantInput, Ledger};
use cotal_testkit::manager::TestManager;
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Actor, Clock as _, manager_authority::Operation as Asks};
use serde_json::{Value, json};

use crate::{house::House, journal::hold_to, service::Operation};

const ROUTE: &str = "/manager-service-authority";

/// The serve credential and its two siblings: each row is staged, then released by a touch of the gate. A run that was cut
/// off granted nothing; what it staged stays until the manager registers again.
pub(crate) struct Duties {
    /// Of a manager that is active already.
    pub(crate) renewed: bool,
}

/// A registered manager, and what it asks.
pub(crate) struct Registered {
    manager: TestManager,
    sub: String,
    body: Value,
}

pub(crate) async fn register(house: &House, manager: &TestManager) -> Result<()> {
    let registry = Registry::bind(house.connection(), &house.space.space).await?;
    manager.register(&registry).await?;
    Ok(())
}

impl Registered {
    fn asks(&self, house: &House, operation: Asks, more: &Value) -> Value {
        json!({ "idpToken": house.idp_token(&self.sub), "request": self.manager.request(operation, more) })
    }

    /// The holders of the active rows, sorted.
    async fn active(&self, house: &House) -> Result<Vec<String>> {
        let filter = format!("epcred.manager.{}.>", self.manager.instance);
        let mut holders = Vec::new();
        for key in house.auth.keys(&filter).await? {
            let row = house.json(&house.auth, &key).await?;
            if row["state"] == "active" {
                holders.push(row["holderPrincipal"].as_str().unwrap_or_default().to_owned());
            }
        }
        holders.sort();
        Ok(holders)
    }
}

#[async_trait]
impl Operation for Duties {
    fn name(&self) -> &'static str {
        if self.renewed { "manager: standing bundle renewed" } else { "manager: activation and its siblings" }
    }

    type Case = Registered;

    async fn prepare(&self, house: &House, actor: &str) -> Result<Registered> {
        let sub = format!("manager-{actor}");
        let owner = house.space.material.owner_secret.derive(&house.space.material.idp.issuer, &sub)?;
        let input = GrantInput::new(owner.clone(), Actor::parse("cli")?).scope(["supervise"]);
        Ledger::at(&house.space.state_dir).grant_interactive(&input, &SystemClock, &SystemEntropy)?;
        let account = house.space.account.data_account().account;
        let manager = TestManager::new(&house.space.space, &account, &owner);
        register(house, &manager).await?;
        let mut registered = Registered { manager, sub, body: Value::Null };
        let activates = registered.asks(house, Asks::Activate, &json!({}));
        registered.body = if self.renewed {
            let answer = house.ok(ROUTE, &activates).await?;
            // A renewal of the same second would be the same credentials, whose rows stand already.
            let of = answer["issuedAt"].as_u64().context("when it was issued")? / 1_000;
            while SystemClock.now_secs().0 <= of {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let renewal = json!({ "registrationProof": answer["nextRegistrationProof"], "processEpoch": 0 });
            registered.asks(house, Asks::RenewStandingBundle, &renewal)
        } else {
            activates
        };
        Ok(registered)
    }

    fn question(&self, case: &Registered) -> (&'static str, Value) {
        (ROUTE, case.body.clone())
    }

    fn owns(&self, case: &Registered, key: &str) -> bool {
        key.contains(case.manager.instance.as_str())
    }

    fn check_writes(&self, _: &Registered, written: &[String]) -> Result<()> {
        // A row is written once, by the run that minted it; each run that came so far touches the gate thrice. Whose the
        // instance is, the first that hands out its registration says, once.
        let bound = usize::from(self.renewed);
        hold_to(written, &[("epowner.", bound..=bound), ("epcred.", 1..=1), ("epgate.", 3..=6)])
    }

    async fn check(&self, house: &House, case: &mut Registered) -> Result<()> {
        // All three of the run that answered; of one that was cut off, what it had staged by then.
        let active = case.active(house).await?;
        let mut distinct = active.clone();
        distinct.dedup();
        ensure!(distinct.len() == 3, "one of each duty: {active:?}");
        let most = if self.renewed { 9 } else { 6 };
        ensure!(active.len() <= most, "more credentials than runs: {active:?}");
        // A registration takes all of it back, and the manager goes on.
        register(house, &case.manager).await?;
        ensure!(
            case.active(house).await?.is_empty(),
            "a registration revokes what an earlier one was granted"
        );
        let answer = house.ok(ROUTE, &case.asks(house, Asks::Activate, &json!({}))).await?;
        ensure!(answer["credentials"]["serve"]["jwt"].is_string(), "{answer}");
        ensure!(case.active(house).await?.len() == 3, "and three are active again");
        Ok(())
    }
}
