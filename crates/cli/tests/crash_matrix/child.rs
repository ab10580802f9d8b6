//! Operations that have no entry in the binary: a process of this test's own opens the space's real plane, or its real
//! connection, runs one of them, and is killed there.

use std::{path::PathBuf, process::Command, sync::Arc};

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use cotal_authority::{
    Plane, PlaneInputs,
    deprovision::{deprovision_agent, fence_lifecycle_acl},
    plane::{CLAIM_PATIENCE, NATIVE_ISSUANCE_PRUNE, PlaneIdentity},
};
use cotal_broker::Connector;
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{KeySegment, LifecycleUid, OpId, Principal, Space};
use cotal_workspace::{instance_identity::InstanceIdentity, root::Root, trust_files};
use serde::{Deserialize, Serialize};

use crate::{
    Row, acts,
    house::{House, Victim, connector},
    journal::Journal,
    minting,
};

/// Tells a process of this test that it is the child, and what to do.
const CHILD: &str = "COTAL_CRASH_MATRIX_CHILD";

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

/// What a child does.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Act {
    TakeOver { op: OpId, principal: Principal, uid: LifecycleUid },
    RevokeHandle { issuer: KeySegment, id: KeySegment },
    Deprovision { principal: Principal, uid: LifecycleUid },
    MintFromHandle { principal: Principal, uid: LifecycleUid, issuer: KeySegment, id: KeySegment },
    MintServe,
    Issue { principal: Principal, uid: LifecycleUid },
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
    const CASES: usize = 12;
    let house = House::start("child").await?;
    house.journal.arm(0)?;
    let mut service = house.start_service().await?;
    let mut cases = Vec::new();
    for at in 0..CASES {
        cases.push(operation.prepare(&house, &format!("cut{at}")).await?);
    }
    service.stops().await?;

    run(&house, 0, operation.act(&cases[0]))?.succeeds().await?;
    let mut uncut = house.journal.since(house.journal.mark()?)?;
    uncut.retain(|key| operation.owns(&cases[0], key));
    ensure!(!uncut.is_empty(), "no journal was kept: this test has no failpoints");
    ensure!(uncut.len() < CASES, "too few cases for {uncut:?}");
    operation.check_writes(&cases[0], &uncut)?;
    operation.check(&house, &cases[0]).await?;

    for (nth, case) in cases.iter().enumerate().take(uncut.len() + 1).skip(1) {
        let context = |what: &str| format!("{what}, killed after write {nth} of {uncut:?}");
        run(&house, nth, operation.act(case))?.is_killed().await.with_context(|| context("the kill"))?;
        let mark = house.journal.mark()?;
        let cut = house.journal.since(mark)?;
        ensure!(cut.len() == nth, "{}", context(&format!("it wrote {cut:?}")));
        house.journal.arm(0)?;
        run(&house, 0, operation.act(case))?.succeeds().await.with_context(|| context("run again"))?;
        let mut written = house.journal.since(mark)?;
        written.retain(|key| operation.owns(case, key));
        operation.check_writes(case, &written).with_context(|| context("its writes"))?;
        operation.check(&house, case).await.with_context(|| context("its end"))?;
    }
    let _service = house.start_service().await?;
    for case in &cases[..=uncut.len()] {
        operation.check_live(&house, case).await?;
    }
    Ok(Row { operation: operation.name(), writes: uncut.len(), kills: uncut.len(), resumed: uncut.len() })
}

fn run(house: &House, nth: usize, act: Act) -> Result<Victim> {
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
    // From here on the operation's own writes count.
    let begin = || {
        journal.set_mark()?;
        if nth == 0 { Ok(()) } else { journal.arm(journal.len()? - before + nth) }
    };
    match act {
        Act::Deprovision { principal, uid } => {
            begin()?;
            fence_lifecycle_acl(&connector, &SystemClock, &principal, &uid).await?;
            deprovision_agent(&connector, &acts::footprint(&principal, &uid)?).await?;
        }
        Act::MintFromHandle { principal, uid, issuer, id } => {
            begin()?;
            minting::mint_from_handle(&connector, &principal, &uid, &issuer, &id).await?;
        }
        Act::Issue { principal, uid } => {
            begin()?;
            minting::issue(&connector, &principal, &uid).await?;
        }
        of_the_plane => {
            let identity = InstanceIdentity::load_or_create(&root.space_dir(&space), &SystemEntropy)?;
            let plane = open_plane(&identity, connector.clone()).await?;
            begin()?;
            if matches!(of_the_plane, Act::MintServe) {
                minting::mint_serve(&plane, &connector, identity.serve.public()).await?;
            } else {
                on_the_plane(&plane, of_the_plane).await?;
            }
            journal.arm(0)?;
            plane.close().await?;
        }
    }
    Ok(())
}

async fn on_the_plane(plane: &Plane, act: Act) -> Result<()> {
    match act {
        Act::TakeOver { op, principal, uid } => {
            plane.take_over(&op, &principal, &uid).await?;
        }
        Act::RevokeHandle { issuer, id } => {
            plane.revoke_handle(&issuer, &id).await?;
        }
        _ => bail!("no plane runs this"),
    }
    Ok(())
}

/// The plane as the auth service opens it, under the space's kept identity.
async fn open_plane(identity: &InstanceIdentity, connector: Connector) -> Result<Arc<Plane>> {
    let inputs = PlaneInputs {
        connector,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        identity: PlaneIdentity {
            serve: identity.serve.public().clone(),
            instance: identity.instance.clone(),
        },
        native_issuance_prune: NATIVE_ISSUANCE_PRUNE,
        claim_patience: CLAIM_PATIENCE,
        past: None,
    };
    Ok(Plane::open(inputs).await?)
}
