//! Connects: to a broker without callout, to a callout that checks nothing, and to the auth service with every check on.

mod bare;
mod report;
mod service;

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use cotal_testkit::space::TestSpace;
use cotal_trust::creds::Creds;
use cotal_wire::Space;
use cotal_workspace::root::Root;

use self::{
    report::{Extra, Flood, Run, Storm},
    service::{Bare, Service},
};
use crate::{
    loadgen::{Ticket, closed_loop, open_loop},
    population::{Ground, Population, static_user},
    progress,
    report::Machine,
};

pub(crate) use report::ConnectReport;

const SPACE: &str = "bench";
/// Strengths of a flood, as multiples of what is refused when it comes alone: half of the machine, and two of them.
const FLOOD_TIMES: [f64; 2] = [0.5, 2.0];
const STORM_TIMES: f64 = 3.0;
const STORM_LASTS: Duration = Duration::from_secs(30);
/// A broker's own bound in a storm: about what it can authenticate within half of its two seconds.
const STORM_CONNECTIONS: u64 = 384;
const IN_FLIGHT: [usize; 4] = [1, 16, 64, 256];

/// The process of the callout that checks nothing.
pub(crate) async fn serve_bare(root: &Root, server: &str) -> Result<()> {
    bare::serve(root, &Space::parse(SPACE)?, server).await
}

pub(crate) async fn measure(cotal: &Path, quick: bool) -> Result<ConnectReport> {
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
    Ok(ConnectReport {
        machine: Machine::here()?,
        service_rss_kib: rss,
        ratios: report::ratios(&runs),
        runs,
        extra,
    })
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
