//! The operator's commands for an instance that is gone: `cotal reconcile-gate` and `cotal deregister-instance`.

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use cotal_broker::ContractStore;
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    Command, EndpointName, InstanceId, OpId, Owner, Principal, Revision,
    canonical::VOID_CLOSURE_DIGEST,
    contract::Artifact,
    names,
    rows::{EndpointGate, GovernHead, Governed, ServiceSpec, ServiceStatus, SlotHolder, StatusState},
};
use serde_json::{Value, json};

use crate::{
    Row,
    house::{House, Victim},
    journal::hold_to,
};

const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
/// The command that the instance serves, and its governed trait.
const CHARGE: &str = "charge";
const PRICED: &str = "ai.cotal.priced";

/// A dead instance of an endpoint of its own.
pub(crate) struct Dead {
    endpoint: EndpointName,
    instance: InstanceId,
}

/// A command that an operator runs on one.
#[async_trait]
pub(crate) trait Operation: Sync {
    /// Its name in the table.
    fn name(&self) -> &'static str;
    /// The command.
    fn verb(&self) -> &'static str;
    /// What the dead instance left.
    async fn leave(&self, house: &House, dead: &Dead) -> Result<()>;
    /// How often each key may be written, over all runs.
    fn check_writes(&self, written: &[String]) -> Result<()>;
    /// The terminal state.
    async fn check(&self, house: &House, dead: &Dead) -> Result<()>;
    /// Whether the same command, after one that was killed past this write, has nothing to do and says so by failing.
    fn is_over(&self, _last: &str) -> bool {
        false
    }
}

/// Runs it uncut, then killed after each of its writes.
pub(crate) async fn row(operation: impl Operation) -> Result<Row> {
    let house = House::start("endpoint").await?;
    house.journal.arm(0)?;
    // Its stores are made by the plane; nobody serves while the commands run.
    let mut service = house.start_service().await?;
    service.stops().await?;

    let dead = Dead::new("uncut")?;
    operation.leave(&house, &dead).await?;
    let mark = house.journal.len()?;
    dead.run(&house, operation.verb())?.succeeds().await?;
    let uncut = house.journal.since(mark)?;
    ensure!(!uncut.is_empty(), "no journal was kept: the binary has no failpoints");
    operation.check_writes(&uncut)?;
    operation.check(&house, &dead).await?;

    for nth in 1..=uncut.len() {
        let context = |what: &str| format!("{what}, killed after write {nth} of {uncut:?}");
        let dead = Dead::new(&format!("cut{nth}"))?;
        operation.leave(&house, &dead).await?;
        let mark = house.journal.len()?;
        house.journal.arm(nth)?;
        dead.run(&house, operation.verb())?.is_killed().await.with_context(|| context("the kill"))?;
        let cut = house.journal.since(mark)?;
        ensure!(cut.len() == nth, "{}", context(&format!("it wrote {cut:?}")));
        house.journal.arm(0)?;
        let again = dead.run(&house, operation.verb())?.succeeds().await;
        ensure!(
            again.is_err() == operation.is_over(&cut.join(" ")),
            "{}",
            context(&format!("run again: {again:?}"))
        );
        operation.check_writes(&house.journal.since(mark)?).with_context(|| context("its writes"))?;
        operation.check(&house, &dead).await.with_context(|| context("its end"))?;
    }
    Ok(Row { operation: operation.name(), writes: uncut.len(), kills: uncut.len(), resumed: uncut.len() })
}

impl Dead {
    fn new(name: &str) -> Result<Self> {
        let endpoint = EndpointName::parse(&format!("com.example.{name}"))?;
        Ok(Self { endpoint, instance: InstanceId::mint(&SystemEntropy) })
    }

    fn run(&self, house: &House, verb: &str) -> Result<Victim> {
        let (endpoint, instance) = (self.endpoint.to_string(), self.instance.to_string());
        let space = house.space.space.as_str();
        let line = [verb, "--endpoint", &endpoint, "--instance", &instance, "--space", space];
        house.spawn("the command", &mut house.command(&line))
    }

    fn principal() -> Result<Principal> {
        Ok(Principal::parse_key(&format!("{OWNER}.search"))?)
    }

    fn gate(&self) -> String {
        names::epgate_key(&self.endpoint.token(), &self.instance)
    }

    fn spec_key(&self) -> String {
        names::service_spec_key(&self.endpoint.token(), &self.instance)
    }

    fn status_key(&self) -> String {
        names::service_status_key(&self.endpoint.token(), &self.instance)
    }

    fn credentials(&self) -> [String; 2] {
        ["c1", "c2"].map(|id| format!("epcred.{}.{}.{id}", self.endpoint.token(), self.instance))
    }

    /// What it declares: a repair reads it and compares it with what the slot says.
    fn cluster(&self) -> Value {
        json!({
            "urn": self.endpoint.as_str(), "revision": 1, "attributes": [], "events": [],
            "commands": [{
                "name": CHARGE, "class": "ephemeral", "targeted": false, "capability": "charge",
                "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST, "traits": [PRICED],
            }],
        })
    }

    async fn leave_spec(&self, house: &House) -> Result<()> {
        let [document, closure] = Artifact::closed(&self.cluster())?;
        let contracts = ContractStore::new(house.connection(), &house.space.space.token());
        for artifact in [&document, &closure] {
            contracts.publish(artifact).await?;
        }
        let spec = ServiceSpec::new(&self.endpoint, &Owner::parse(OWNER)?, vec![closure.digest().clone()])?;
        house.put(&house.records, &self.spec_key(), spec.to_bytes()).await
    }
}

/// The gate of an instance that died while it registered is repaired.
pub(crate) struct Reconcile {
    /// It had written its spec.
    pub(crate) committed: bool,
}

#[async_trait]
impl Operation for Reconcile {
    fn name(&self) -> &'static str {
        if self.committed { "reconcile-gate, completing" } else { "reconcile-gate, undoing" }
    }

    fn verb(&self) -> &'static str {
        "reconcile-gate"
    }

    async fn leave(&self, house: &House, dead: &Dead) -> Result<()> {
        let frozen = EndpointGate::provisioned(&Dead::principal()?).freeze(&OpId::mint(&SystemEntropy))?;
        house.put(&house.auth, &dead.gate(), frozen.to_bytes()).await?;
        for (key, (id, holder)) in dead.credentials().into_iter().zip([("c1", "caller"), ("c2", "search")]) {
            let row = json!({
                "credentialId": id, "holderPrincipal": format!("{OWNER}.{holder}"), "lifecycleUid": dead.instance,
                "endpoint": dead.endpoint.to_string(), "sourceChain": ["root"], "state": "active", "exp": 9,
            });
            house.put(&house.auth, &key, row.to_string()).await?;
        }
        let holder = SlotHolder { instance: dead.instance.clone(), generation: 0 };
        let declared = Governed::from([(Command::parse(CHARGE)?, [String::from(PRICED)].into())]);
        let head = GovernHead::default().take(holder, &declared);
        house.put(&house.records, &names::govern_key(&dead.endpoint.token()), head.to_bytes()).await?;
        if self.committed {
            dead.leave_spec(house).await?;
        }
        Ok(())
    }

    fn check_writes(&self, written: &[String]) -> Result<()> {
        // The cursor is begun, moved on at each of the two holders, and removed; after a kill past the reopening it
        // stays, and so does the slot: the next registration takes both.
        let governed = if self.committed { 1..=2 } else { 0..=1 };
        hold_to(
            written,
            &[("epcred.", 1..=1), ("eprepair.", 3..=4), ("govern.", governed), ("epgate.", 1..=1)],
        )
    }

    async fn check(&self, house: &House, dead: &Dead) -> Result<()> {
        let gate = house.json(&house.auth, &dead.gate()).await?;
        ensure!(gate["state"] == "open" && gate["generation"] == 1, "the gate: {gate}");
        ensure!((gate["registrationRevision"] != 0) == self.committed, "the gate: {gate}");
        for key in dead.credentials() {
            let row = house.json(&house.auth, &key).await?;
            ensure!(row["state"] == "revoked", "{key}: {row}");
        }
        let head = house.json(&house.records, &names::govern_key(&dead.endpoint.token())).await?;
        ensure!(head["commands"].get("charge").is_some() == self.committed, "the governance head: {head}");
        Ok(())
    }

    fn is_over(&self, cut: &str) -> bool {
        cut.contains("epgate.")
    }
}

/// An instance is taken out of the registry.
pub(crate) struct Deregister;

#[async_trait]
impl Operation for Deregister {
    fn name(&self) -> &'static str {
        "deregister-instance"
    }

    fn verb(&self) -> &'static str {
        "deregister-instance"
    }

    async fn leave(&self, house: &House, dead: &Dead) -> Result<()> {
        dead.leave_spec(house).await?;
        let status = ServiceStatus::new(0, StatusState::ready(), Revision(1));
        house.put(&house.records, &dead.status_key(), status.to_bytes()).await
    }

    fn check_writes(&self, written: &[String]) -> Result<()> {
        hold_to(written, &[("svc.", 1..=1)])
    }

    async fn check(&self, house: &House, dead: &Dead) -> Result<()> {
        for key in [dead.spec_key(), dead.status_key()] {
            let row = house.json(&house.records, &key).await?;
            ensure!(row.is_null(), "{key} is left: {row}");
        }
        Ok(())
    }
}
