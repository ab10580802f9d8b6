//! Measures connects (a broker without callout, a callout that checks nothing, and the auth service with every check
//! on), retirements, many spaces in one process, and managers without keys, each in one run on one machine. JSON on
//! stdout, progress on stderr; run it by `cargo xtask bench connect`, `retire`, `host` and `authority`.

mod authority;
mod bare;
mod door;
mod figures;
mod host;
mod loadgen;
mod population;
mod report;
mod retire;
mod service;
mod stack;
mod steady;
mod tap;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use cotal_testkit::space::TestSpace;
use cotal_trust::{
    bundle::DataAccount,
    creds::Creds,
    jwt::{UserClaims, encode_user},
    nkey::Seed,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Clock, Permissions, Rules, Space};
use cotal_workspace::root::Root;

use crate::{
    loadgen::{Ticket, closed_loop, open_loop},
    population::{Ground, Population},
    report::{Extra, Flood, Machine, Report, Run, Storm},
    service::{Bare, Service},
};

const SPACE: &str = "bench";
/// Strengths of a flood, as multiples of what is refused when it comes alone: half of the machine, and two of them.
const FLOOD_TIMES: [f64; 2] = [0.5, 2.0];
const STORM_TIMES: f64 = 3.0;
const STORM_LASTS: Duration = Duration::from_secs(30);
/// A broker's own bound in a storm: about what it can authenticate within half of its two seconds.
const STORM_CONNECTIONS: u64 = 384;
const IN_FLIGHT: [usize; 4] = [1, 16, 64, 256];

#[derive(Parser)]
#[command(
    name = "cotal-bench",
    about = "Measure connects, retirements, a host of many spaces, and managers without keys"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Floor, bare callout and service at 1, 16, 64 and 256 connects in flight.
    Connect {
        /// The release build of `cotal`.
        #[arg(long, value_parser = executable)]
        cotal: PathBuf,
        /// Fewer connects and no storm: ends within 40 s of a built tree.
        #[arg(long)]
        quick: bool,
    },
    /// What it takes to retire a lifecycle: round trips, time, a thousand of them beside connects, and the boot.
    #[command(long_about = retire::LONG_ABOUT)]
    Retire {
        /// The release build of `cotal`.
        #[arg(long, value_parser = executable)]
        cotal: PathBuf,
        /// A tenth of everything: ends within a minute of a built tree.
        #[arg(long)]
        quick: bool,
    },
    /// Many spaces in one process: memory, time to be ready, idle time, neighbours, a replica, and the exchange.
    #[command(long_about = host::LONG_ABOUT)]
    Host {
        /// The release build of `cotal`.
        #[arg(long, value_parser = executable)]
        cotal: PathBuf,
        /// Fifty lanes and shorter loads: ends within a minute of a built tree.
        #[arg(long)]
        quick: bool,
        /// Another number of lanes.
        #[arg(long, value_name = "N")]
        lanes: Option<usize>,
    },
    /// Managers without keys: what their requests take, many renewals at once, a long scan, and a selection among many.
    #[command(long_about = authority::LONG_ABOUT)]
    Authority {
        /// The release build of `cotal`.
        #[arg(long, value_parser = executable)]
        cotal: PathBuf,
        /// A tenth of everything: ends within a minute of a built tree.
        #[arg(long)]
        quick: bool,
    },
    /// A storm of connects (started by `host`).
    #[command(hide = true)]
    Storm,
    /// The callout that checks nothing (started by `connect`).
    #[command(hide = true)]
    BareCallout {
        #[arg(long)]
        root: PathBuf,
        #[arg(long)]
        server: String,
    },
}

/// A file, from whatever directory it is started later.
fn executable(path: &str) -> Result<PathBuf, String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    if path.is_file() { Ok(path) } else { Err("no file is there: cargo build --release -p cotal".into()) }
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().command {
        Command::Connect { cotal, quick } => {
            let report = connect(&cotal, quick).await?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Command::Retire { cotal, quick } => {
            let report = retire::measure(&cotal, quick).await?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Command::Host { cotal, quick, lanes } => {
            let report = host::measure(&cotal, quick, lanes).await?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Command::Authority { cotal, quick } => {
            let report = authority::measure(&cotal, quick).await?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Command::Storm => host::serve_storm().await,
        Command::BareCallout { root, server } => {
            bare::serve(&Root::at(root), &Space::parse(SPACE)?, &server).await
        }
    }
}

async fn connect(cotal: &std::path::Path, quick: bool) -> Result<Report> {
    let totals: [usize; 4] = if quick { [150, 500, 1000, 1000] } else { [1000, 6000, 8000, 8000] };
    let space = TestSpace::start(SPACE, "http://127.0.0.1:9/api/auth").await;
    let addr: SocketAddr = format!("127.0.0.1:{}", space.server.port()).parse()?;
    let mut runs = Vec::new();

    progress("floor: static JWT, no callout");
    let ticket = Arc::new(Ticket { creds: static_user(&space.material.data_account), bearers: vec![] });
    for (in_flight, total) in IN_FLIGHT.into_iter().zip(totals) {
        runs.push(Run::new("floor", in_flight, closed_loop(addr, &ticket, in_flight, total).await?));
    }

    let sentinel = cotal_trust::creds::parse(&space.material.callout.sentinel_creds)?;
    progress("bare: a callout that checks nothing");
    let bare = Bare::start(space.root.path(), &space.server.url()).await?;
    let ticket = Arc::new(Ticket { creds: sentinel.clone(), bearers: vec!["nothing".into()] });
    for (in_flight, total) in IN_FLIGHT.into_iter().zip(totals) {
        runs.push(Run::new("bare", in_flight, closed_loop(addr, &ticket, in_flight, total).await?));
    }
    bare.stop().await?;

    progress("service: granting actors and exchanging their secrets");
    let service = Service::start(cotal, &space).await?;
    let mut people =
        Population::grant(&ground(&space), service.door(), "crowd", if quick { 120 } else { 1500 }).await?;
    let ticket = Arc::new(Ticket { creds: sentinel.clone(), bearers: people.bearers(&ground(&space))? });
    progress("service: every check on");
    for (in_flight, total) in IN_FLIGHT.into_iter().zip(totals) {
        runs.push(Run::new("service", in_flight, closed_loop(addr, &ticket, in_flight, total).await?));
    }
    let rss = service.rss_kib()?;

    let extra =
        if quick { None } else { Some(beyond(&space, &service, &mut people, addr, &sentinel, &runs).await?) };
    service.stop().await?;
    Ok(Report { machine: Machine::here()?, service_rss_kib: rss, ratios: report::ratios(&runs), runs, extra })
}

/// What takes longer: the ledger's size, an unauthenticated flood, a storm.
async fn beyond(
    space: &TestSpace,
    service: &Service,
    people: &mut Population,
    addr: SocketAddr,
    sentinel: &Creds,
    runs: &[Run],
) -> Result<Extra> {
    let best = runs.iter().filter(|r| r.kind == "service").map(|r| r.per_s).fold(0.0, f64::max);
    let ticket = |bearers| Arc::new(Ticket { creds: sentinel.clone(), bearers });

    progress("ledger: the same load with 100,000 rows");
    let bearers = people.bearers(&ground(space))?;
    let small = closed_loop(addr, &ticket(bearers.clone()), 64, 4000).await?;
    Population::pad(&ground(space), 100_000)?;
    let large = closed_loop(addr, &ticket(bearers), 64, 4000).await?;

    progress("flood: unverifiable bearers beside verified users");
    let alone = closed_loop(addr, &ticket(people.bearers(&ground(space))?), 8, 1500).await?;
    let garbage = ticket(people.forged_bearers(&ground(space))?);
    let (began, refused) = (Instant::now(), closed_loop(addr, &garbage, 64, 3000).await?.refused);
    #[allow(clippy::cast_precision_loss, reason = "a count of connects")]
    let refusable_per_s = refused as f64 / began.elapsed().as_secs_f64();
    let mut floods = Vec::new();
    for times in FLOOD_TIMES {
        let (garbage, offered_per_s) = (garbage.clone(), refusable_per_s * times);
        let flood =
            tokio::spawn(
                async move { open_loop(addr, &garbage, offered_per_s, Duration::from_secs(8)).await },
            );
        let beside = closed_loop(addr, &ticket(people.bearers(&ground(space))?), 8, 1500).await?;
        floods.push(Flood {
            times,
            offered_per_s,
            refused: flood.await??.measured().refused,
            verified_total: beside.total,
            verified_refused: beside.refused,
            verified_rate_ratio: beside.per_s / alone.per_s,
        });
    }

    progress("crowd: three times as many at once as the widest run");
    let width = 3 * IN_FLIGHT[IN_FLIGHT.len() - 1];
    let crowd = Run::new(
        "service",
        width,
        closed_loop(addr, &ticket(people.bearers(&ground(space))?), width, 12_000).await?,
    );

    progress("storm: three times the best rate for 30 s");
    let unbounded = storm(space, service, people, addr, sentinel, best, None).await?;
    progress("storm: the same, at a broker with a bound of its own");
    space.server.reload_with_line(&format!("max_connections: {STORM_CONNECTIONS}")).await;
    let bounded = storm(space, service, people, addr, sentinel, best, Some(STORM_CONNECTIONS)).await?;
    Ok(Extra {
        service_rss_kib_after_all: service.rss_kib()?,
        ledger_100k_rate_ratio: large.per_s / small.per_s,
        floods,
        crowd_kept_ratio: crowd.per_s / best,
        crowd,
        storm: bounded,
        storm_at_unbounded_broker: unbounded,
    })
}

/// Three times the best rate for 30 s, then the first answers after it.
async fn storm(
    space: &TestSpace,
    service: &Service,
    people: &mut Population,
    addr: SocketAddr,
    sentinel: &Creds,
    best: f64,
    broker_max_connections: Option<u64>,
) -> Result<Storm> {
    let ticket = |bearers| Arc::new(Ticket { creds: sentinel.clone(), bearers });
    let before = service.outcomes()?;
    let offered_per_s = best * STORM_TIMES;
    let stormy = open_loop(addr, &ticket(people.bearers(&ground(space))?), offered_per_s, STORM_LASTS)
        .await?
        .measured();
    let after = service.outcomes()?;
    let first = closed_loop(addr, &ticket(people.bearers(&ground(space))?), 1, 50).await?;
    Ok(Storm {
        broker_max_connections,
        offered_per_s,
        offered: stormy.total,
        connected_per_s: stormy.per_s,
        best_per_s: best,
        kept_ratio: stormy.per_s / best,
        minted: after.minted - before.minted,
        shed: after.shed - before.shed,
        timeout: after.timeout - before.timeout,
        denied: after.denied - before.denied,
        p50_after_ms: first.p50_ms,
    })
}

fn ground(space: &TestSpace) -> Ground {
    Ground {
        space: space.space.clone(),
        state_dir: space.state_dir.clone(),
        material: space.material.clone(),
    }
}

/// A user of the data account that needs no callout.
fn static_user(account: &DataAccount) -> Creds {
    let seed = Seed::generate(&SystemEntropy);
    let claims = UserClaims {
        name: "floor".into(),
        subject: seed.public().clone(),
        issuer_account: account.account.clone(),
        permissions: Permissions {
            publish: Rules { allow: vec!["bench.>".into()], deny: vec![] },
            subscribe: Rules { allow: vec!["_INBOX_bench.>".into()], deny: vec![] },
        },
        tags: vec![],
        exp: None,
    };
    Creds { jwt: encode_user(&claims, &account.signing, SystemClock.now_secs()), seed }
}

fn progress(what: &str) {
    eprintln!("bench: {what}");
}

/// Reads a child's first line, which says that it is ready.
async fn first_line(child: &mut tokio::process::Child) -> Result<String> {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let stdout = child.stdout.take().context("no stdout")?;
    let mut lines = BufReader::new(stdout).lines();
    let line =
        tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await??.context("ended early")?;
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(line)
}
