//! Operations that have no entry in the binary: a process of this test's own opens the space's real plane, or its real
//! connection, runs one of them, and is killed there.

use std::{path::PathBuf, process::Command, sync::Arc};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use cotal_authority::{
    Plane, PlaneInputs,
    deprovision::{Footprint, deprovision_agent, fence_lifecycle_acl},
    plane::{CLAIM_PATIENCE, NATIVE_ISSUANCE_PRUNE, PlaneIdentity},
};
use cotal_broker::{Connector, durable};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Channel, KeySegment, LifecycleUid, OpId, Principal, Space,
    names::{dlv_consumer, dm_consumer, lifecycle_subject_key, member_key},
};
use cotal_workspace::{instance_identity::InstanceIdentity, root::Root, trust_files};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Row,
    house::{House, connector},
    journal::{Journal, hold_to},
    member::Member,
};

/// Tells a process of this test that it is the child, and what to do.
const CHILD: &str = "COTAL_CRASH_MATRIX_CHILD";
const CHANNELS: [&str; 2] = ["general", "team.backend"];

/// What a child is told.
#[derive(Serialize, Deserialize)]
struct Task {
    root: PathBuf,
    space: String,
    server: String,
    /// Die after this many writes of the operation; `0` for none.
    nth: usize,
    act: Act,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Act {
    TakeOver { op: String, principal: String, uid: String },
    RevokeHandle { issuer: String, id: String },
    Deprovision { principal: String, uid: String },
}

/// An operation that a child runs.
#[async_trait]
pub(crate) trait Operation: Sync {
    /// Its name in the table.
    fn name(&self) -> &'static str;
    /// What one run of it is about.
    type Case: Send + Sync;
    /// Before any child runs.
    async fn prepare(&self, house: &House, actor: &str) -> Result<Self::Case>;
    /// The operation; the same one again resumes what was cut off.
    fn act(&self, case: &Self::Case) -> Act;
    /// Whether a key is of this run.
    fn owns(&self, case: &Self::Case, key: &str) -> bool;
    /// How often each key may be written, over all runs.
    fn check_writes(&self, case: &Self::Case, written: &[String]) -> Result<()>;
    /// The terminal state in the stores.
    async fn check(&self, house: &House, case: &Self::Case) -> Result<()>;
    /// What an auth service says to it afterwards.
    async fn check_live(&self, _: &House, _: &Self::Case) -> Result<()> {
        Ok(())
    }
}

/// Runs it uncut, then killed after each of its writes. The auth service runs before and after, never meanwhile: the
/// child owns the plane.
pub(crate) async fn row(operation: impl Operation) -> Result<Row> {
    /// More than any of these operations writes.
    const CASES: usize = 10;
    let house = House::start("child").await?;
    house.journal.arm(0)?;
    let mut service = house.start_service().await?;
    let mut cases = Vec::new();
    for at in 0..CASES {
        cases.push(operation.prepare(&house, &format!("cut{at}")).await?);
    }
    service.stops().await?;

    let written = |case: &_, mark| -> Result<Vec<String>> {
        let mut keys = house.journal.since(mark)?;
        keys.retain(|key| operation.owns(case, key));
        Ok(keys)
    };
    let mark = house.journal.len()?;
    run(&house, 0, operation.act(&cases[0]))?.succeeds().await?;
    let uncut = written(&cases[0], mark)?;
    ensure!(!uncut.is_empty(), "no journal was kept: this test has no failpoints");
    ensure!(uncut.len() < CASES, "too few cases for {uncut:?}");
    operation.check_writes(&cases[0], &uncut)?;
    operation.check(&house, &cases[0]).await?;

    for (nth, case) in cases.iter().enumerate().take(uncut.len() + 1).skip(1) {
        let context = |what: &str| format!("{what}, killed after write {nth} of {uncut:?}");
        let mark = house.journal.len()?;
        run(&house, nth, operation.act(case))?.is_killed().await.with_context(|| context("the kill"))?;
        let cut = written(case, mark)?;
        ensure!(cut.len() == nth, "{}", context(&format!("it wrote {cut:?}")));
        house.journal.arm(0)?;
        run(&house, 0, operation.act(case))?.succeeds().await.with_context(|| context("run again"))?;
        operation.check_writes(case, &written(case, mark)?).with_context(|| context("its writes"))?;
        operation.check(&house, case).await.with_context(|| context("its end"))?;
    }
    let _service = house.start_service().await?;
    for case in &cases[..=uncut.len()] {
        operation.check_live(&house, case).await?;
    }
    Ok(Row { operation: operation.name(), writes: uncut.len(), kills: uncut.len(), resumed: uncut.len() })
}

fn run(house: &House, nth: usize, act: Act) -> Result<crate::house::Victim> {
    let task = Task {
        root: house.space.root.path().to_owned(),
        space: house.space.space.to_string(),
        server: house.space.server.url(),
        nth,
        act,
    };
    let mut child = Command::new(std::env::current_exe()?);
    child
        .args(["--exact", "child::a_child_of_the_matrix_runs_its_task_and_nothing_else_does", "--nocapture"])
        .env(CHILD, serde_json::to_string(&task)?);
    house.spawn("the child", &mut child)
}

/// The other side of [`run`]; without its task it has nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_of_the_matrix_runs_its_task_and_nothing_else_does() -> Result<()> {
    let Ok(task) = std::env::var(CHILD) else { return Ok(()) };
    let Task { root, space, server, nth, act } = serde_json::from_str(&task)?;
    let (root, space) = (Root::at(root), Space::parse(&space)?);
    let journal = Journal::beside(root.path());
    let before = journal.len()?;
    let account = trust_files::load_account(&root, &space)?.context("no account")?;
    let connector = connector(&server, &space, &account);
    let arm = || if nth == 0 { Ok(()) } else { journal.arm(journal.len()? - before + nth) };
    match act {
        Act::TakeOver { op, principal, uid } => {
            let plane = open_plane(&root, &space, connector).await?;
            arm()?;
            let (op, principal) = (OpId::parse(&op)?, Principal::parse_key(&principal)?);
            plane.take_over(&op, &principal, &LifecycleUid::parse(&uid)?).await?;
            journal.arm(0)?;
            plane.close().await?;
        }
        Act::RevokeHandle { issuer, id } => {
            let plane = open_plane(&root, &space, connector).await?;
            arm()?;
            plane.revoke_handle(&KeySegment::parse(&issuer)?, &KeySegment::parse(&id)?).await?;
            journal.arm(0)?;
            plane.close().await?;
        }
        Act::Deprovision { principal, uid } => {
            let (principal, uid) = (Principal::parse_key(&principal)?, LifecycleUid::parse(&uid)?);
            let channels = CHANNELS.map(Channel::parse).into_iter().collect::<Result<Vec<_>, _>>()?;
            let footprint = Footprint::new(principal.clone(), uid.clone(), channels);
            arm()?;
            fence_lifecycle_acl(&connector, &SystemClock, &principal, &uid).await?;
            deprovision_agent(&connector, &footprint).await?;
        }
    }
    Ok(())
}

/// The plane as the auth service opens it, under the space's kept identity.
async fn open_plane(root: &Root, space: &Space, connector: Connector) -> Result<Arc<Plane>> {
    let identity = InstanceIdentity::load_or_create(&root.space_dir(space), &SystemEntropy)?;
    let inputs = PlaneInputs {
        connector,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        identity: PlaneIdentity { serve: identity.serve.public().clone(), instance: identity.instance },
        native_issuance_prune: NATIVE_ISSUANCE_PRUNE,
        claim_patience: CLAIM_PATIENCE,
    };
    Ok(Plane::open(inputs).await?)
}

/// A successor takes an incarnation over.
pub(crate) struct Takeover;

#[async_trait]
impl Operation for Takeover {
    fn name(&self) -> &'static str {
        "takeover"
    }

    type Case = (Member, OpId);

    async fn prepare(&self, house: &House, actor: &str) -> Result<Self::Case> {
        let member = Member::grant(house, actor)?;
        member.enters(house).await?;
        Ok((member, OpId::mint(&SystemEntropy)))
    }

    fn act(&self, (member, op): &Self::Case) -> Act {
        let (principal, uid) = (member.principal().key(), member.uid.to_string());
        Act::TakeOver { op: op.to_string(), principal, uid }
    }

    fn owns(&self, (member, op): &Self::Case, key: &str) -> bool {
        member.owns(key) || key.contains(op.as_str())
    }

    fn check_writes(&self, _: &Self::Case, written: &[String]) -> Result<()> {
        hold_to(written, &[("stage.", 1..=1), ("gate.", 2..=2), ("cred.", 1..=1), ("lifecycle.", 1..=1)])
    }

    async fn check(&self, house: &House, (member, op): &Self::Case) -> Result<()> {
        member.stands(house, None).await?;
        let (head, gate) = (member.head(house).await?, member.gate(house).await?);
        ensure!(head["processEpoch"] == 2 && head["lastTakeoverOpId"] == op.as_str(), "the head: {head}");
        ensure!(head.get("currentCredentialId").is_none(), "the root goes with its epoch: {head}");
        ensure!(gate["generation"] == 2, "the gate: {gate}");
        member.nothing_is_active(house).await
    }

    async fn check_live(&self, house: &House, (member, _): &Self::Case) -> Result<()> {
        member.enters(house).await
    }
}

/// A capability handle is revoked, and what was minted from it.
pub(crate) struct RevokeHandle;

const ISSUER: &str = "k1";

#[async_trait]
impl Operation for RevokeHandle {
    fn name(&self) -> &'static str {
        "handle revocation"
    }

    type Case = (String, Vec<LifecycleUid>);

    async fn prepare(&self, house: &House, actor: &str) -> Result<Self::Case> {
        let gate = json!({ "issuerKeyId": ISSUER, "id": actor, "state": "open" });
        house.put(&house.auth, &format!("srcgate.{ISSUER}.{actor}"), gate.to_string()).await?;
        let mut holders = Vec::new();
        for name in ["x", "y"] {
            let member = Member::grant(house, &format!("{actor}{name}"))?;
            let uid = member.uid.clone();
            let row = json!({
                "credentialId": "c1", "holderPrincipal": member.principal().key(), "lifecycleUid": uid,
                "sourceChain": ["root", format!("handle.{ISSUER}.{actor}")], "state": "active", "exp": 9,
            });
            house.put(&house.auth, &format!("cred.{uid}.c1"), row.to_string()).await?;
            let index = json!({ "ref": format!("cred.{uid}.c1") });
            house.put(&house.auth, &format!("bysrc.{ISSUER}.{actor}.{uid}.c1"), index.to_string()).await?;
            holders.push(uid);
        }
        Ok((actor.to_owned(), holders))
    }

    fn act(&self, (id, _): &Self::Case) -> Act {
        Act::RevokeHandle { issuer: ISSUER.to_owned(), id: id.clone() }
    }

    fn owns(&self, (id, holders): &Self::Case, key: &str) -> bool {
        key == format!("srcgate.{ISSUER}.{id}") || holders.iter().any(|uid| key.contains(uid.as_str()))
    }

    fn check_writes(&self, _: &Self::Case, written: &[String]) -> Result<()> {
        hold_to(written, &[("srcgate.", 1..=1), ("cred.", 1..=1)])
    }

    async fn check(&self, house: &House, (id, holders): &Self::Case) -> Result<()> {
        let gate = house.json(&house.auth, &format!("srcgate.{ISSUER}.{id}")).await?;
        ensure!(gate["state"] == "frozen", "the handle: {gate}");
        for uid in holders {
            let row = house.json(&house.auth, &format!("cred.{uid}.c1")).await?;
            ensure!(row["state"] == "revoked", "cred.{uid}.c1: {row}");
        }
        Ok(())
    }
}

/// What an ended lifecycle left on the broker is removed, after the fence of its read ACL.
pub(crate) struct Deprovision;

#[async_trait]
impl Operation for Deprovision {
    fn name(&self) -> &'static str {
        "deprovision"
    }

    type Case = Member;

    async fn prepare(&self, house: &House, actor: &str) -> Result<Member> {
        let member = Member::grant(house, actor)?;
        let (names, principal) = (house.names(), member.principal());
        for (stream, name) in [
            (names.dm_stream(), dm_consumer(&principal, &member.uid)),
            (names.dlv_stream(), dlv_consumer(&principal, &member.uid)),
        ] {
            let config = json!({ "durable_name": name, "ack_policy": "explicit" });
            let body = json!({ "stream_name": stream, "config": config }).to_string();
            let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}");
            let answer = house.connection().request(&subject, &[], body.into(), crate::house::WITHIN).await?;
            let answer: serde_json::Value = serde_json::from_slice(&answer.payload)?;
            ensure!(answer.get("error").is_none(), "{name}: {answer}");
        }
        let acl = json!({ "allowSubscribe": ["general"], "revision": 3, "updatedAt": 9 });
        let key = lifecycle_subject_key(&principal, &member.uid);
        house.put(&house.bucket(&names.acl_bucket()), &key, acl.to_string()).await?;
        for channel in CHANNELS {
            let key = member_key(&Channel::parse(channel)?, &principal, &member.uid);
            house.put(&house.bucket(&names.members_bucket()), &key, "{}").await?;
        }
        Ok(member)
    }

    fn act(&self, member: &Member) -> Act {
        Act::Deprovision { principal: member.principal().key(), uid: member.uid.to_string() }
    }

    fn owns(&self, member: &Member, key: &str) -> bool {
        key.contains(member.uid.as_str())
    }

    fn check_writes(&self, member: &Member, written: &[String]) -> Result<()> {
        // The ACL is narrowed and purged. A purge is pinned to what it found, a marker of an earlier purge included.
        let acl = lifecycle_subject_key(&member.principal(), &member.uid);
        let (dm, dlv) =
            (dm_consumer(&member.principal(), &member.uid), dlv_consumer(&member.principal(), &member.uid));
        hold_to(written, &[(&acl, 2..=3), (&dm, 1..=1), (&dlv, 1..=1), ("", 1..=2)])
    }

    async fn check(&self, house: &House, member: &Member) -> Result<()> {
        let (names, principal) = (house.names(), member.principal());
        for (stream, name) in [
            (names.dm_stream(), dm_consumer(&principal, &member.uid)),
            (names.dlv_stream(), dlv_consumer(&principal, &member.uid)),
        ] {
            ensure!(!durable::exists(house.connection(), &stream, &name).await?, "{name} is left");
        }
        let acl = house.bucket(&names.acl_bucket());
        let row = house.json(&acl, &lifecycle_subject_key(&principal, &member.uid)).await?;
        ensure!(row.is_null(), "the read ACL is left: {row}");
        for channel in CHANNELS {
            let key = member_key(&Channel::parse(channel)?, &principal, &member.uid);
            let row = house.json(&house.bucket(&names.members_bucket()), &key).await?;
            ensure!(row.is_null(), "{key} is left: {row}");
        }
        Ok(())
    }
}
