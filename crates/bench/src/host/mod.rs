//! Many spaces in one process, over real processes on one machine: `nats-server`, `cotal auth-service --spaces`, and a
//! load generator.

mod faces;
mod ground;
mod process;
mod report;
mod storm;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use cotal_trust::creds::Creds;

use self::{
    faces::{Arm, Faces},
    ground::HostGround,
    process::{Meter, Process},
    report::{Arms, Replica, StormCost},
};
use crate::{
    door::Door,
    figures::median,
    loadgen::{Measured, Offered, Ticket, one_by_one, open_loop_apart},
    population::{Ground, Population},
    progress,
    report::Machine,
};

pub(crate) use report::HostReport;
pub(crate) use storm::{give_way, serve as serve_storm};

pub(crate) const LONG_ABOUT: &str = "\
Measure one process that serves many spaces on one broker, and what stands in front of connects. Broker, service and \
load generator share this machine. JSON on stdout, progress on stderr.

  rss_kib_per_lane      resident memory of the process with all lanes open and idle, over their number
  rss_kib_each_more     the same less what a process with one lane takes, over the lanes that it has more
  ready_s               from the start of the process until every lane has said that it serves
  idle_cpu_pct          processor time of the idle process, in percent of one core
  lane_p50_ratio        connect p50 in one lane beside all the others, to the p50 of that lane in a process of its own
  neighbour_p99_ratio   connect p99 in one lane while another is stormed, to its p99 while none is
  broker_gogc           `GOGC` of the broker: with the 100 of a broker that is told nothing, a collection of a thousand
                        spaces' heap is in most storms, and is what the p99 beside them measures
  neighbour.floor_p99_ratio  the same pair of connects and storm with static JWTs, which the broker lets in by itself:
                        what no auth service can improve on this machine
  replica_rate_ratio    connects a second of a storm with a callout replica beside the service, to the service alone;
                        `replica` has the processor time that the broker took meanwhile, in percent of one core
  exchange_*_per_s      exchanges a second on the loopback face over 32 kept-alive connections: an agent whose root
                        credential is in place, and a person with a token of the pinned IdP";

/// Connects in flight of a storm.
pub(crate) const STORM_WIDTH: usize = 64;
/// Exchanges in flight.
const EXCHANGE_WIDTH: usize = 32;
/// Connects a second of the neighbour of a storm.
const NEIGHBOUR_PER_S: f64 = 25.0;

/// Where the broker, which inherits it, finds how much its heap grows between two garbage collections, in percent.
const GOGC: &str = "GOGC";
/// What it takes where it finds nothing.
const GOGC_UNSET: &str = "100";

/// Of the connects that are made one after another.
const PARTS: usize = 3;

/// How much is measured.
struct Extent {
    lanes: usize,
    /// Actors of the lane that is stormed: a storm must not run into the connect limits.
    crowd: usize,
    /// Connects one after the other, for a p50: in each part, and how long until the next one. A machine that is slow for some
    /// seconds decides nothing.
    singles: usize,
    between: Duration,
    /// How long in all turns together.
    storm: Duration,
    /// How long in each turn, and how many of these.
    neighbour: Duration,
    turns: u32,
    idle: Duration,
    exchanges: Duration,
}

const FULL: Extent = Extent {
    lanes: 1000,
    crowd: 240,
    singles: 200,
    between: Duration::from_secs(10),
    storm: Duration::from_secs(12),
    neighbour: Duration::from_secs(12),
    turns: 3,
    idle: Duration::from_secs(60),
    exchanges: Duration::from_secs(10),
};
const QUICK: Extent = Extent {
    lanes: 50,
    crowd: 120,
    singles: 70,
    between: Duration::from_secs(1),
    storm: Duration::from_secs(3),
    neighbour: Duration::from_secs(5),
    turns: 1,
    idle: Duration::from_secs(5),
    exchanges: Duration::from_secs(3),
};

pub(crate) async fn measure(cotal: &Path, quick: bool, lanes: Option<usize>) -> Result<HostReport> {
    let mut extent = if quick { QUICK } else { FULL };
    extent.lanes = lanes.unwrap_or(extent.lanes).max(2);
    progress(&format!("a broker with {} spaces, every stream of each", extent.lanes));
    let began = Instant::now();
    let ground = HostGround::build(extent.lanes).await?;
    let prepared_s = began.elapsed().as_secs_f64();
    progress(&format!("prepared in {prepared_s:.1} s"));

    progress("one lane in a process of its own");
    let lone = Process::host(cotal, &ground, 1).await?;
    let stormed = People::of(&ground, 0, extent.crowd).await?;
    let lone_connects = stormed.one_after_the_other(&ground, &extent).await?;
    lone_connects.say("connects of a lone lane");
    let rss_kib_of_one = lone.rss_kib()?;
    let exchange = exchanges(&ground, &lone, &extent).await?;
    let replica = replicated(cotal, &ground, &lone, &stormed, &extent).await?;
    lone.stop().await?;

    progress(&format!("{} lanes in one process", extent.lanes));
    ground.spare_files().await?;
    let host = Process::host(cotal, &ground, extent.lanes).await?;
    let ready_s = host.boot.as_secs_f64();
    progress(&format!("ready after {ready_s:.1} s, {} files open", host.files()?));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (idle_cpu_pct, broker_idle_cpu_pct) = idle(&ground, &host, extent.idle).await?;
    let rss_kib = host.rss_kib()?;
    progress(&format!("idle: {idle_cpu_pct:.1} % of a core, {} KiB a lane", rss_kib / extent.lanes as u64));

    // The same people: the connect limits of the new process are fresh.
    let beside = stormed.one_after_the_other(&ground, &extent).await?;
    beside.say("connects of one lane of all");
    let neighbour = neighbours(&ground, &stormed, &extent).await?;
    let (threads, files) = (host.threads()?, host.files()?);
    host.stop().await?;

    let lanes = extent.lanes as u64;
    Ok(HostReport {
        machine: Machine::here()?,
        lanes: extent.lanes,
        broker_gogc: std::env::var(GOGC).unwrap_or_else(|_| GOGC_UNSET.to_owned()),
        prepared_s,
        rss_kib_per_lane: rss_kib / lanes,
        rss_kib_each_more: rss_kib.saturating_sub(rss_kib_of_one) / (lanes - 1),
        rss_kib_of_one,
        ready_s,
        idle_cpu_pct,
        broker_idle_cpu_pct,
        threads,
        files,
        lane_p50_ratio: beside.p50_ms / lone_connects.p50_ms,
        lane_p50_ms: beside.p50_ms,
        lone_p50_ms: lone_connects.p50_ms,
        neighbour_p99_ratio: neighbour.p99_ratio,
        neighbour,
        replica_rate_ratio: replica.with_per_s / replica.alone_per_s,
        replica,
        exchange_agent_per_s: exchange.agent.per_s,
        exchange_agent_p99_ms: exchange.agent.p99_ms,
        exchange_human_per_s: exchange.human.per_s,
        exchange_human_p99_ms: exchange.human.p99_ms,
        exchange,
    })
}

// === lanes ====================================================================================================

/// Actors of one lane, and the door that they exchange at.
struct People {
    ground: Ground,
    population: Population,
    sentinel: Creds,
}

impl People {
    async fn of(ground: &HostGround, lane: usize, count: usize) -> Result<Self> {
        let door = Door::new(ground.discovery(lane)?.context("the lane does not serve")?)?;
        let sentinel = cotal_trust::creds::parse(&ground.lanes[lane].material.callout.sentinel_creds)?;
        let ground = ground.lanes[lane].clone();
        let population = Population::grant(&ground, &door, "crowd", count).await?;
        Ok(Self { ground, population, sentinel })
    }

    fn ticket(&self) -> Result<Arc<Ticket>> {
        Ok(Arc::new(Ticket { creds: self.sentinel.clone(), bearers: self.population.bearers(&self.ground)? }))
    }

    async fn one_after_the_other(&self, ground: &HostGround, extent: &Extent) -> Result<Measured> {
        let (addr, ticket) = (ground.addr()?, self.ticket()?);
        one_by_one(addr, &ticket, extent.singles / 4).await?;
        let mut connects = one_by_one(addr, &ticket, extent.singles).await?;
        for _ in 1..PARTS {
            tokio::time::sleep(extent.between).await;
            connects.join(one_by_one(addr, &ticket, extent.singles).await?);
        }
        Ok(connects.measured())
    }
}

/// Percent of one core that the process and its broker took.
async fn idle(ground: &HostGround, host: &Process, lasting: Duration) -> Result<(f64, f64)> {
    let meter = Meter::of(&[host.pid(), ground.server.pid()])?;
    tokio::time::sleep(lasting).await;
    let taken = meter.percent()?;
    Ok((taken[0], taken[1]))
}

/// Connects of one lane while another is stormed, and the same of static users.
async fn neighbours(ground: &HostGround, stormed: &People, extent: &Extent) -> Result<report::Neighbour> {
    progress("connects of one lane while another is stormed");
    let quiet = People::of(ground, 1, 60).await?;
    let [lane, floor] =
        [(quiet.ticket()?, stormed.ticket()?), (ground.static_user(1), ground.static_user(0))];
    let lane = beside_a_storm(ground, &lane.0, &lane.1, extent).await?;
    progress("the same with static users: the broker by itself");
    let floor = beside_a_storm(ground, &floor.0, &floor.1, extent).await?;
    Ok(report::Neighbour {
        p99_ratio: lane.beside.p99_ms / lane.alone.p99_ms,
        idle_p50_ms: lane.alone.p50_ms,
        idle_p99_ms: lane.alone.p99_ms,
        p50_ms: lane.beside.p50_ms,
        p99_ms: lane.beside.p99_ms,
        refused: lane.beside.refused,
        storm_per_s: lane.storm_per_s,
        storm_refused: lane.storm_refused,
        floor_p99_ratio: floor.beside.p99_ms / floor.alone.p99_ms,
        floor_idle_p99_ms: floor.alone.p99_ms,
        floor_p99_ms: floor.beside.p99_ms,
    })
}

/// A steady load of connects alone and beside a storm.
struct BesideAStorm {
    alone: Measured,
    beside: Measured,
    storm_per_s: f64,
    storm_refused: usize,
}

/// Both in turn, so that a disk that is slow for a while is in both.
async fn beside_a_storm(
    ground: &HostGround,
    steady: &Arc<Ticket>,
    crowd: &Arc<Ticket>,
    extent: &Extent,
) -> Result<BesideAStorm> {
    let addr = ground.addr()?;
    let steadily = || {
        let (started, lasting) = (Instant::now(), extent.neighbour);
        open_loop_apart(addr, steady, NEIGHBOUR_PER_S, move || started.elapsed() < lasting)
    };
    let (mut alone, mut beside) = (Offered::default(), Offered::default());
    let (mut storms, mut storm_refused) = (Vec::new(), 0);
    for _ in 0..extent.turns {
        alone.join(steadily().await??);
        let (storm, offered) =
            tokio::join!(storm::run(addr, crowd, extent.neighbour + Duration::from_secs(2)), async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                steadily().await
            });
        let storm = storm?;
        storms.push(storm.per_s);
        storm_refused += storm.refused;
        beside.join(offered??);
    }
    let (alone, beside) = (alone.measured(), beside.measured());
    alone.say("alone");
    beside.say("beside the storm");
    let storm_per_s = median(storms);
    progress(&format!("the storm: {storm_per_s:.0}/s, refused {storm_refused}"));
    Ok(BesideAStorm { alone, beside, storm_per_s, storm_refused })
}

/// A storm on the service alone, and with a replica beside it, in turns.
async fn replicated(
    cotal: &Path,
    ground: &HostGround,
    lone: &Process,
    people: &People,
    extent: &Extent,
) -> Result<Replica> {
    progress("a storm on the service alone, and with a callout replica beside it");
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    for _ in 0..extent.turns {
        alone.push(broker_beside(ground, lone, people, extent).await?);
        let replica = Process::replica(cotal, ground).await?;
        with.push(broker_beside(ground, lone, people, extent).await?);
        replica.stop().await?;
    }
    let (alone, with) = (StormCost::mean(&alone), StormCost::mean(&with));
    Ok(Replica { alone_per_s: alone.per_s, with_per_s: with.per_s, alone, with })
}

async fn broker_beside(
    ground: &HostGround,
    service: &Process,
    people: &People,
    extent: &Extent,
) -> Result<StormCost> {
    let ticket = people.ticket()?;
    let meter = Meter::of(&[service.pid(), ground.server.pid()])?;
    let storm = storm::run(ground.addr()?, &ticket, extent.storm / extent.turns).await?;
    let taken = meter.percent()?;
    let measured = StormCost {
        per_s: storm.per_s,
        refused: storm.refused,
        broker_cpu_pct: taken[1],
        service_cpu_pct: taken[0],
    };
    progress(&format!(
        "storm: {:.0}/s, refused {}, broker {:.0} % of a core, service {:.0} %",
        measured.per_s, measured.refused, measured.broker_cpu_pct, measured.service_cpu_pct
    ));
    Ok(measured)
}

// === exchanges ================================================================================================

async fn exchanges(ground: &HostGround, lone: &Process, extent: &Extent) -> Result<Arms> {
    let faces = Faces::of(ground, 0)?;
    let mut arms = Vec::new();
    for arm in [Arm::Agent, Arm::Human] {
        let bodies = faces.bodies(ground, arm)?;
        // Every root credential is in place, and the IdP's keys are known, before anything is measured.
        faces.load(&bodies, EXCHANGE_WIDTH, Duration::from_secs(1)).await?;
        let meter = Meter::of(&[lone.pid(), ground.server.pid()])?;
        let mut measured = faces.load(&bodies, EXCHANGE_WIDTH, extent.exchanges).await?;
        let taken = meter.percent()?;
        (measured.service_cpu_pct, measured.broker_cpu_pct) = (taken[0], taken[1]);
        progress(&format!(
            "exchanges of {}: {:.0}/s, p50 {:.1} ms, p99 {:.1} ms, refused {}; service {:.0} % of a core, broker {:.0} %",
            arm.name(),
            measured.per_s,
            measured.p50_ms,
            measured.p99_ms,
            measured.refused,
            measured.service_cpu_pct,
            measured.broker_cpu_pct
        ));
        arms.push(measured);
    }
    let human = arms.pop().context("two arms")?;
    let agent = arms.pop().context("two arms")?;
    Ok(Arms { agent, human })
}
