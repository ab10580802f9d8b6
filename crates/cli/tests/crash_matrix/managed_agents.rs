//! Managed agents: their enrollment, and what prepares their retirement.

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use cotal_authority::registration::Registry;
use cotal_broker::durable;
use cotal_ledger::{ActorRow, GrantInput, Ledger, hash_agent_secret};
use cotal_testkit::manager::TestManager;
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, Channel, DerivedOwner, LifecycleUid, OpId, Principal, Role,
    manager_authority::Kind,
    names::{dlv_consumer, dm_consumer, lifecycle_subject_key, member_key, role_consumer},
};
use serde_json::{Value, json};

use crate::{house::House, journal::hold_to, service::Operation};

const ROUTE: &str = "/manager-service-authority";
/// Who supervises, and under which actor.
const SUB: &str = "somebody";
const SUPERVISOR: &str = "cli";
const TOKEN: &str = "token";
/// What the grant names, and what its pattern lets in.
const CHANNELS: [&str; 2] = ["general", "team.backend"];

/// A name for an agent, and the registered manager that asks about it.
pub(crate) struct Case {
    owner: DerivedOwner,
    actor: Actor,
    role: Role,
    body: Value,
    /// Whom a preparation is about.
    uid: Option<LifecycleUid>,
}

impl Case {
    /// A fresh name, and its enrollment.
    async fn fresh(house: &House, actor: &str) -> Result<Self> {
        let owner = house.space.material.owner_secret.derive(&house.space.material.idp.issuer, SUB)?;
        let supervisor = GrantInput::new(owner.clone(), Actor::parse(SUPERVISOR)?)
            .scope(["supervise", &format!("role:{actor}")])
            .allow_subscribe(["general", "team.>"])
            .allow_publish(["general"]);
        Ledger::at(&house.space.state_dir).grant_interactive(&supervisor, &SystemClock, &SystemEntropy)?;
        let target = json!({
            "actor": actor, "role": actor, "allowSubscribe": ["general", "team.*"], "subscribe": ["general"],
            "allowPublish": ["general"], "tokenHash": hash_agent_secret(TOKEN),
        });
        let body = Self::body(house, &owner, Kind::Enrollment, &json!({ "target": target })).await?;
        Ok(Self { owner, actor: Actor::parse(actor)?, role: Role::parse(actor)?, body, uid: None })
    }

    /// What asks a kind about an agent: a manager that is registered, and never activated.
    async fn body(house: &House, owner: &DerivedOwner, kind: Kind, more: &Value) -> Result<Value> {
        let (space, account) = (&house.space.space, house.space.account.data_account());
        let manager = TestManager::new(space, &account.account, owner);
        let registry = Registry::bind(house.connection(), space).await?;
        let proved = manager.register_proved(&registry, &account).await?;
        Ok(json!({ "idpToken": house.idp_token(SUB), "request": manager.proved(kind, &proved, more) }))
    }

    fn principal(&self) -> Principal {
        Principal::new(&self.owner, self.actor.clone())
    }

    /// Every key of this name has it between separators.
    fn owns(&self, key: &str) -> bool {
        let name = self.actor.as_str();
        key.split(['.', '-', '/', '_']).any(|part| part == name)
    }

    fn row(&self, house: &House) -> Result<Option<ActorRow>> {
        Ok(Ledger::at(&house.space.state_dir).read_managed(&self.owner, &self.actor)?)
    }

    fn incarnation(&self, house: &House) -> Result<LifecycleUid> {
        let row = self.row(house)?.context("no grant")?;
        Ok(LifecycleUid::parse(row.lifecycle_uid.as_deref().context("no incarnation")?)?)
    }

    fn durables(&self, house: &House, uid: &LifecycleUid) -> [(String, String); 2] {
        let (names, of) = (house.names(), self.principal());
        [(names.dm_stream(), dm_consumer(&of, uid)), (names.dlv_stream(), dlv_consumer(&of, uid))]
    }

    /// The agent has a grant, and everything that it reads from.
    async fn is_whole(&self, house: &House) -> Result<LifecycleUid> {
        let uid = self.incarnation(house)?;
        for (stream, name) in self.durables(house, &uid) {
            ensure!(durable::exists(house.connection(), &stream, &name).await?, "{name} is missing");
        }
        let shared = role_consumer(&self.role);
        let stands = durable::exists(house.connection(), &house.names().task_stream(), &shared).await?;
        ensure!(stands, "{shared} is missing");
        let acl = house.bucket(&house.names().acl_bucket());
        let row = house.json(&acl, &lifecycle_subject_key(&self.principal(), &uid)).await?;
        ensure!(row["allowSubscribe"] == json!(["general", "team.*"]), "the read ACL: {row}");
        Ok(uid)
    }

    /// It exchanges its token, and the broker admits it.
    async fn enters(&self, house: &House) -> Result<()> {
        let body = json!({ "owner": self.owner, "actor": self.actor, "actorToken": TOKEN });
        let answer = house.ok("/exchange", &body).await?;
        house.connect(answer["token"].as_str().context("no token")?).await.map(drop)
    }
}

/// An agent is enrolled.
pub(crate) struct Enroll;

#[async_trait]
impl Operation for Enroll {
    fn name(&self) -> &'static str {
        "enrollment of a managed agent"
    }

    type Case = Case;

    async fn prepare(&self, house: &House, actor: &str) -> Result<Case> {
        Case::fresh(house, actor).await
    }

    fn question(&self, case: &Case) -> (&'static str, Value) {
        (ROUTE, case.body.clone())
    }

    fn owns(&self, case: &Case, key: &str) -> bool {
        case.owns(key)
    }

    fn check_writes(&self, _: &Case, written: &[String]) -> Result<()> {
        // One incarnation, whoever was killed: the grant is written once. A durable that stands is asked for again.
        hold_to(
            written,
            &[("managed-actors/", 1..=1), ("dm_", 1..=2), ("dlv_", 1..=2), ("svc_", 1..=2), ("u_", 1..=1)],
        )
    }

    async fn check(&self, house: &House, case: &mut Case) -> Result<()> {
        let uid = case.is_whole(house).await?;
        case.enters(house).await?;
        // Asked once more, it is the same incarnation.
        let (path, body) = self.question(case);
        let answer = house.ok(path, &body).await?;
        ensure!(answer["material"]["lifecycleUid"] == uid.as_str(), "{answer}");
        Ok(())
    }
}

/// A connected agent's retirement is prepared.
pub(crate) struct Prepare;

#[async_trait]
impl Operation for Prepare {
    fn name(&self) -> &'static str {
        "preparation of a managed retirement"
    }

    type Case = Case;

    async fn prepare(&self, house: &House, actor: &str) -> Result<Case> {
        let mut case = Case::fresh(house, actor).await?;
        house.ok(ROUTE, &case.body).await?;
        case.enters(house).await?;
        let uid = case.incarnation(house)?;
        for channel in CHANNELS {
            let key = member_key(&Channel::parse(channel)?, &case.principal(), &uid);
            house.put(&house.bucket(&house.names().members_bucket()), &key, "{}").await?;
        }
        let target = json!({ "owner": case.owner, "actor": case.actor, "lifecycleUid": uid });
        let more = json!({ "target": target, "opId": OpId::managed_retirement(&uid) });
        case.body = Case::body(house, &case.owner, Kind::PrepareRetirement, &more).await?;
        case.uid = Some(uid);
        Ok(case)
    }

    fn question(&self, case: &Case) -> (&'static str, Value) {
        (ROUTE, case.body.clone())
    }

    fn owns(&self, case: &Case, key: &str) -> bool {
        case.owns(key)
    }

    fn check_writes(&self, case: &Case, written: &[String]) -> Result<()> {
        let uid = case.uid.as_ref().context("no incarnation")?;
        // The ACL is narrowed and purged. A purge is pinned to what it found, a marker of an earlier purge included.
        let acl = lifecycle_subject_key(&case.principal(), uid);
        hold_to(
            written,
            &[("managed-actors/", 1..=1), (&acl, 2..=3), ("dm_", 1..=1), ("dlv_", 1..=1), ("", 1..=2)],
        )
    }

    async fn check(&self, house: &House, case: &mut Case) -> Result<()> {
        let uid = case.uid.clone().context("no incarnation")?;
        ensure!(case.row(house)?.is_none(), "the grant is left");
        for (stream, name) in case.durables(house, &uid) {
            ensure!(!durable::exists(house.connection(), &stream, &name).await?, "{name} is left");
        }
        let acl = house.bucket(&house.names().acl_bucket());
        let row = house.json(&acl, &lifecycle_subject_key(&case.principal(), &uid)).await?;
        ensure!(row.is_null(), "the read ACL is left: {row}");
        for channel in CHANNELS {
            let key = member_key(&Channel::parse(channel)?, &case.principal(), &uid);
            let row = house.json(&house.bucket(&house.names().members_bucket()), &key).await?;
            ensure!(row.is_null(), "{key} is left: {row}");
        }
        // The terminal step, and then the name is free.
        let body = json!({ "owner": case.owner, "actor": case.actor, "lifecycleUid": uid });
        let retired = house.ok("/managed-lifecycle/retire", &body).await?;
        ensure!(retired["retired"] == true, "{retired}");
        let next = Case::fresh(house, case.actor.as_str()).await?;
        house.ok(ROUTE, &next.body).await?;
        ensure!(next.is_whole(house).await? != uid, "an incarnation came back");
        next.enters(house).await
    }
}
