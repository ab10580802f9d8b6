//! What managers without any signing key ask of a host (contract 06), over the real processes of a space: `nats-server`,
//! `cotal delivery` and `cotal auth-service`. The managers are this process, each with a root of its own.

mod report;
mod rows;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use cotal_broker::Connection;
use cotal_manager::remote::{
    Active, IdpTokens, ManagerHost, Participant, Setup, contract::ManagerContract, participant::Wanted,
};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Actor, Names};
use cotal_workspace::root::Root;
use futures::future::try_join_all;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::RwLock;
use zeroize::Zeroizing;

use crate::{
    door::Door,
    figures::{median, millis},
    loadgen::Offered,
    progress,
    report::{Connects, Machine},
    stack::{AuthService, Stack},
    steady::Steady,
    tap::Tap,
};

pub(crate) use report::AuthorityReport;
use report::{Beginnings, Enrollments, Renewals, Selection};

pub(crate) const LONG_ABOUT: &str = "\
Measure what managers without any signing key ask of a host, over the real processes of a space. JSON on stdout, progress
on stderr. The managers run on the same machine: what they take themselves is in every figure.

  prepare_ms          first credentials of a manager, from its request until they are bound to it; median
  register_ms         its registration over the broker with them; median
  activate_ms         its serving credentials and the proof of its registration; median
  enroll_ms           an agent is enrolled, nothing else going on; median
  enroll_requests     what the host sends to JetStream for one enrollment, as a tap on the broker sees it; by verb:
                      enroll_requests_by_verb
  enroll_round_trips  the same without what names a stream that the agent reads from: what provisions it (at most 20)
  renew_ms            one manager renews its five standing credentials, each of them proved by a connect; median
  renew_all_s         all managers (200) do so at once: until the last one has taken all five, whom the public face turned
                      away because too many were in flight after asking again; median of three (at most 10 on two cores)
  renew_per_s         managers a second in that
  connect_p99_ratio   the p99 of a steady load of connects meanwhile, to the same load alone (at most 2)
  scan_s              one scan of an owner's goals, scan_rows of them; median (under 3 for 10,000)
  scan_rows_per_s     rows a second in that
  selection_ratio     the list of an owner's managers, as a sign-in chooses one, beside 1,000 managers of other owners, to
                      the same beside 10; medians (about 1: what others have costs nothing)";

/// The interactive actor whose grant decides.
const ACTOR: &str = "cli";

/// In which an owner's managers are listed.
const LIST_PARTS: usize = 3;

/// How much is measured.
struct Extent {
    /// Managers that begin one after another.
    singles: usize,
    managers: usize,
    rounds: usize,
    goals: usize,
    scans: usize,
    others: (usize, usize),
    /// In each of three parts, and how long until the next one: a machine that is slow for a while decides nothing.
    lists: usize,
    between: Duration,
    /// Before each round.
    idle_load: Duration,
}

const WHOLE: Extent = Extent {
    singles: 20,
    managers: 200,
    rounds: 3,
    goals: 10_000,
    scans: 5,
    others: (10, 1_000),
    lists: 20,
    between: Duration::from_secs(5),
    idle_load: Duration::from_secs(15),
};
const QUICK: Extent = Extent {
    singles: 4,
    managers: 20,
    rounds: 1,
    goals: 1_000,
    scans: 2,
    others: (10, 100),
    lists: 4,
    between: Duration::from_millis(500),
    idle_load: Duration::from_secs(8),
};

pub(crate) async fn measure(cotal: &Path, quick: bool) -> Result<AuthorityReport> {
    let extent = if quick { QUICK } else { WHOLE };
    progress("a space comes up");
    let stack = Stack::up(cotal).await?;
    let anything = stack.anything().await?;
    let service = stack.serve_with(&["--exchange-public-port", "0"]).await?;
    let (sub, _) = stack.stage.login_at_dev_idp(&stack.running.idp, "ada").await?;
    stack.stage.ok(&[
        "actor",
        "grant",
        ACTOR,
        "--sub",
        &sub,
        "--scope",
        "supervise,spawn",
        "--allow-subscribe",
        "general",
        "--allow-publish",
        "general",
    ])?;
    let crew = Crew::of(&stack, &service.door).await?;

    progress("managers, one after another");
    let (beginnings, mut managers) = beginnings(&crew, &extent).await?;
    progress("agents are enrolled");
    let enrollments = enrollments(&stack, &anything, &managers, &extent).await?;
    progress(&format!("{} managers", extent.managers));
    managers.extend(crew.begin_many(extent.managers.saturating_sub(managers.len())).await?);
    progress("all of them renew beside a load of connects");
    let renewals = renewals(&stack, &service, &crew, &managers, &extent).await?;
    progress("an owner's managers, among those of others");
    let selection = selection(&stack, &service, &crew, &anything, &extent).await?;
    progress("goals are scanned");
    let scan_s = scan(&stack, &crew, &anything, &managers[0], &extent).await?;
    service.stop().await?;

    #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
    let scan_rows_per_s = extent.goals as f64 / scan_s;
    Ok(AuthorityReport {
        machine: Machine::here()?,
        managers: managers.len(),
        prepare_ms: beginnings.prepare,
        register_ms: beginnings.register,
        activate_ms: beginnings.activate,
        enroll_ms: enrollments.ms,
        enroll_round_trips: enrollments.round_trips,
        enroll_requests: enrollments.requests.total(),
        enroll_requests_by_verb: enrollments.requests.by_verb(),
        renew_ms: renewals.one_ms,
        renew_all_s: renewals.all_s,
        renew_per_s: renewals.per_s,
        connect_p99_ratio: renewals.during.p99_ms / renewals.alone.p99_ms,
        connects_alone: renewals.alone,
        connects_during: renewals.during,
        scan_rows: extent.goals,
        scan_s,
        scan_rows_per_s,
        selection_ratio: selection.many_ms / selection.few_ms,
        selection,
    })
}

// === managers =================================================================================================

/// Who begins a manager: one person, signed in once, at one host.
struct Crew {
    tokens: Arc<Tokens>,
    host: ManagerHost,
    space: cotal_wire::Space,
    servers: String,
    idp: String,
    dir: TempDir,
    begun: AtomicUsize,
}

/// The person's IdP token: fetched before a phase begins, so that the IdP is in no figure.
struct Tokens(RwLock<Zeroizing<String>>);

#[async_trait]
impl IdpTokens for Tokens {
    async fn fresh(&self) -> Result<Zeroizing<String>, String> {
        Ok(self.0.read().await.clone())
    }
}

impl Crew {
    async fn of(stack: &Stack, door: &Door) -> Result<Self> {
        let tokens = Arc::new(Tokens(RwLock::default()));
        let url = door.public_url().context("the service has no public face")?;
        let host = ManagerHost::new(url, Arc::clone(&tokens) as _).map_err(anyhow::Error::msg)?;
        let crew = Self {
            tokens,
            host,
            space: stack.running.name.clone(),
            servers: stack.running.server.clone(),
            idp: stack.running.idp.clone(),
            dir: TempDir::new()?,
            begun: AtomicUsize::new(0),
        };
        crew.sign_in(stack).await?;
        Ok(crew)
    }

    async fn sign_in(&self, stack: &Stack) -> Result<()> {
        let token = stack.stage.idp_token(&self.idp).await?;
        *self.tokens.0.write().await = Zeroizing::new(token);
        Ok(())
    }

    fn open(&self) -> Result<Participant> {
        let root = self.dir.path().join(format!("manager{}", self.begun.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&root)?;
        Ok(Participant::open(Setup {
            root: Root::at(root),
            space: self.space.clone(),
            actor: Actor::parse(ACTOR)?,
            servers: self.servers.clone(),
            host: self.host.clone(),
            contract: ManagerContract::ping()?,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        })?)
    }

    /// One after another: those that register at once contend for the one governance slot of their endpoint.
    async fn begin_many(&self, count: usize) -> Result<Vec<Active>> {
        let mut begun = Vec::with_capacity(count);
        for _ in 0..count {
            begun.push(self.open()?.prepare().await?.register().await?.activate().await?);
        }
        Ok(begun)
    }
}

/// The medians of managers that begin one after another, and these managers.
async fn beginnings(crew: &Crew, extent: &Extent) -> Result<(Beginnings, Vec<Active>)> {
    let (mut prepare, mut register, mut activate) = (vec![], vec![], vec![]);
    let mut managers = Vec::with_capacity(extent.managers);
    for _ in 0..extent.singles {
        let participant = crew.open()?;
        let started = Instant::now();
        let prepared = participant.prepare().await?;
        prepare.push(millis(started));
        let started = Instant::now();
        let registered = prepared.register().await?;
        register.push(millis(started));
        let started = Instant::now();
        managers.push(registered.activate().await?);
        activate.push(millis(started));
    }
    let beginnings =
        Beginnings { prepare: median(prepare), register: median(register), activate: median(activate) };
    progress(&format!(
        "prepared in {:.1} ms, registered in {:.1}, activated in {:.1}",
        beginnings.prepare, beginnings.register, beginnings.activate
    ));
    Ok((beginnings, managers))
}

// === agents ===================================================================================================

/// The median of one enrollment, and what one sends to JetStream.
async fn enrollments(
    stack: &Stack,
    anything: &Connection,
    managers: &[Active],
    extent: &Extent,
) -> Result<Enrollments> {
    let mut took = Vec::with_capacity(extent.singles);
    for (n, manager) in managers.iter().cycle().take(extent.singles).enumerate() {
        let name = Actor::parse(&format!("agent{n}"))?;
        let started = Instant::now();
        manager.enroll(&name, &Wanted::default()).await?;
        took.push(millis(started));
    }
    let names = Names::new(&stack.ground.space.token());
    let tap = Tap::open(anything).await?;
    managers[0].enroll(&Actor::parse("tapped")?, &Wanted::default()).await?;
    // The delivery daemon keeps its lease meanwhile.
    let requests = tap.close(|subject| subject.contains(&names.delivery_bucket())).await;
    // What an agent reads from is in these.
    let provisioned = [names.dm_stream(), names.dlv_stream(), names.task_stream()];
    Ok(Enrollments { ms: median(took), round_trips: requests.beside(&provisioned), requests })
}

// === renewals =================================================================================================

/// All managers renew at once, again and again, while others connect.
async fn renewals(
    stack: &Stack,
    service: &AuthService,
    crew: &Crew,
    managers: &[Active],
    extent: &Extent,
) -> Result<Renewals> {
    let steady = Steady::of(stack, &service.door).await?;
    crew.sign_in(stack).await?;
    let mut ones = Vec::with_capacity(extent.singles);
    for manager in managers.iter().take(extent.singles) {
        let started = Instant::now();
        manager.standing().renew_early().await?;
        ones.push(millis(started));
    }

    // In turn: a disk or a neighbour that is slow for a while is in both.
    let (mut alone, mut during) = (Offered::default(), Offered::default());
    let mut took = Vec::with_capacity(extent.rounds);
    for _ in 0..extent.rounds {
        alone.join(steady.alone(extent.idle_load).await?);
        crew.sign_in(stack).await?;
        let renewing = async {
            let started = Instant::now();
            try_join_all(managers.iter().map(|manager| manager.standing().renew_early())).await?;
            anyhow::Ok(started.elapsed().as_secs_f64())
        };
        let (all, beside) = steady.beside(renewing).await?;
        took.push(all);
        during.join(beside);
    }
    let all_s = median(took);
    #[allow(clippy::cast_precision_loss, reason = "a count of managers")]
    let per_s = managers.len() as f64 / all_s;
    progress(&format!("{} managers renewed in {all_s:.2} s", managers.len()));
    let (alone, during) = (Connects::of(&alone.measured()), Connects::of(&during.measured()));
    Ok(Renewals { one_ms: median(ones), all_s, per_s, alone, during })
}

// === selection ================================================================================================

/// The median of the list of one owner's managers, beside few and beside many of others.
async fn selection(
    stack: &Stack,
    service: &AuthService,
    crew: &Crew,
    anything: &Connection,
    extent: &Extent,
) -> Result<Selection> {
    let ground = &stack.ground;
    let derive = |n: usize| {
        let material = &ground.material;
        material.owner_secret.derive(&material.idp.issuer, &format!("bench-other-{n}"))
    };
    let (few, many) = extent.others;
    let owners = (0..many).map(derive).collect::<Result<Vec<_>, _>>()?;
    rows::managers(anything, &ground.space, &owners[..few]).await?;
    let few_ms = lists(stack, service, crew, extent).await?;
    rows::managers(anything, &ground.space, &owners[few..]).await?;
    let many_ms = lists(stack, service, crew, extent).await?;
    progress(&format!("{few_ms:.1} ms beside {few} managers of others, {many_ms:.1} beside {many}"));
    Ok(Selection { few, few_ms, many, many_ms })
}

async fn lists(stack: &Stack, service: &AuthService, crew: &Crew, extent: &Extent) -> Result<f64> {
    crew.sign_in(stack).await?;
    let token = crew.tokens.0.read().await.clone();
    let body = json!({ "idpToken": token.as_str(), "actor": ACTOR });
    let mut took = Vec::with_capacity(extent.lists);
    for n in 0..LIST_PARTS * extent.lists {
        if n > 0 && n % extent.lists == 0 {
            tokio::time::sleep(extent.between).await;
        }
        let started = Instant::now();
        let answer = service.door.post("/manager-instances", &body).await?;
        took.push(millis(started));
        ensure!(
            answer["instances"].as_array().is_some_and(|listed| listed.len() >= extent.managers),
            "the list lacks the owner's own managers"
        );
    }
    Ok(median(took))
}

// === goals ====================================================================================================

/// The median of one scan of an owner's goals, in seconds.
async fn scan(
    stack: &Stack,
    crew: &Crew,
    anything: &Connection,
    manager: &Active,
    extent: &Extent,
) -> Result<f64> {
    rows::goals(anything, &stack.ground.space, &manager.current().owner, extent.goals).await?;
    crew.sign_in(stack).await?;
    let mut took = Vec::with_capacity(extent.scans);
    for _ in 0..extent.scans {
        let started = Instant::now();
        let goals = manager.authority().goal_index(manager.current()).await?;
        took.push(started.elapsed().as_secs_f64());
        ensure!(goals.len() == extent.goals, "a scan found {} of {} goals", goals.len(), extent.goals);
    }
    Ok(median(took))
}
