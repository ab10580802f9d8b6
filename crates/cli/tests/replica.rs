//! `cotal auth-service --callout-only` as a real process: connects go on through it while the full service is killed,
//! and it ends non-zero with its broker or a store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{
    daemons::{DAEMON_WITHIN, Seat},
    process::Process,
    raw::{ConnectOutcome, RawClient},
    space::TestSpace,
};
use cotal_trust::{
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Actor, LifecycleUid};
use cotal_workspace::material::Discovery;

const COTAL: &str = env!("CARGO_BIN_EXE_cotal");
/// Actors under load: enough that no connect limit is met.
const ACTORS: usize = 24;
/// Clients at work at the same time.
const WORKERS: usize = 6;
/// Pause of a client between two connects: together far below what one member answers.
const BREATH: Duration = Duration::from_millis(15);

/// Bearers of as many actors, exchanged at the full service.
async fn bearers(space: &TestSpace, discovery: &Discovery) -> Result<Vec<String>> {
    let (ledger, http) = (Ledger::at(&space.state_dir), http_client(Duration::from_secs(10))?);
    let mut bearers = Vec::new();
    for n in 0..ACTORS {
        let owner = space.material.owner_secret.derive(&space.material.idp.issuer, &format!("user-{n}"))?;
        let (secret, hash) = mint_agent_secret(&SystemEntropy);
        let input = GrantInput::new(owner.clone(), Actor::parse("agent")?)
            .allow_subscribe(["general"])
            .allow_publish(["general"])
            .lifecycle_uid(LifecycleUid::mint(&SystemEntropy));
        ledger.grant_managed(&input, &hash, &SystemClock)?;
        let body = serde_json::json!({ "owner": owner, "actor": "agent", "actorToken": secret.as_str() });
        let answer = http
            .post(format!("{}/exchange", discovery.url))
            .bearer_auth(discovery.cap.as_str())
            .json(&body)
            .send()
            .await?;
        let answer: serde_json::Value = answer.json().await?;
        bearers.push(answer["token"].as_str().with_context(|| answer.to_string())?.to_owned());
    }
    Ok(bearers)
}

async fn ready_replica(seat: &Seat, server: &str) -> Result<Process> {
    let mut replica = seat.callout_replica(server)?;
    let log = seat.log("callout-replica");
    let begins = std::fs::read_to_string(&log).unwrap_or_default().len();
    // Said once the group is joined.
    let joined = |log: &std::path::Path| {
        std::fs::read_to_string(log).is_ok_and(|text| text[begins..].contains("no list of expected servers"))
    };
    replica.until(DAEMON_WITHIN, |_| Ok(joined(&log))).await.context("the replica did not become ready")?;
    Ok(replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_go_on_through_a_replica_while_the_full_service_is_killed_and_comes_back() -> Result<()> {
    let space = TestSpace::start("replicas", "http://127.0.0.1:9/api/auth").await;
    let _delivery = space.start_delivery(COTAL).await?;
    let (seat, server) = (Seat::of(&space, COTAL), space.server.url());
    let (mut full, discovery) = seat.ready_auth_service(&server).await?;
    let bearers = Arc::new(bearers(&space, &discovery).await?);
    let mut replica = ready_replica(&seat, &server).await?;

    let (stopping, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let load: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (bearers, stopping, server) = (bearers.clone(), stopping.clone(), server.clone());
            let sentinel = space.material.callout.sentinel_creds.to_string();
            tokio::spawn(async move {
                // When each connect of this client was answered, and the connects that were not.
                let (mut answered, mut refused, mut turn) = (Vec::new(), 0_usize, worker);
                while !stopping.load(Ordering::Relaxed) {
                    let nonce = format!("replica-{turn:08}");
                    let bearer = &bearers[turn % ACTORS];
                    turn += WORKERS;
                    match RawClient::connect(&server, Some(&sentinel), Some(bearer), Some(&nonce)).await {
                        (_, ConnectOutcome::Connected) => answered.push(begun.elapsed()),
                        (_, ConnectOutcome::Refused(_)) => refused += 1,
                    }
                    tokio::time::sleep(BREATH).await;
                }
                (answered, refused)
            })
        })
        .collect();

    let between = Duration::from_millis(1_500);
    tokio::time::sleep(between).await;
    full.kill()?;
    let killed_at = begun.elapsed();
    tokio::time::sleep(2 * between).await;
    let alone_until = begun.elapsed();
    let (mut full, _) = seat.ready_auth_service(&server).await?;
    tokio::time::sleep(between).await;
    stopping.store(true, Ordering::Relaxed);
    let (mut answered, mut refused) = (Vec::new(), 0);
    for worker in load {
        let (times, failed) = worker.await?;
        answered.extend(times);
        refused += failed;
    }
    answered.sort_unstable();
    let gap = |from: Duration, to: Duration| {
        let within = answered.iter().copied().filter(|at| (from..=to).contains(at));
        let marks: Vec<_> = std::iter::once(from).chain(within).chain(std::iter::once(to)).collect();
        marks.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default()
    };
    let (before, after) = (gap(Duration::ZERO, killed_at), gap(killed_at, alone_until));
    let alone = answered.iter().filter(|at| (killed_at..=alone_until).contains(at)).count();
    println!(
        "the full service was killed: {alone} connects in {} ms through the replica alone; longest gap {} ms \
         (before the kill {} ms); {refused} connects were in the killed service's hands",
        alone_until.saturating_sub(killed_at).as_millis(),
        after.as_millis(),
        before.as_millis()
    );
    ensure!(alone > 20, "{alone} connects say nothing");
    ensure!(after < Duration::from_secs(1), "nobody was answered for {} ms", after.as_millis());
    // A request that the killed service had taken is lost with it: at most one of each client.
    ensure!(refused <= WORKERS, "{refused} connects were refused");
    ensure!(replica.ended()?.is_none(), "the replica ended by itself: {}", replica.said());

    ensure!(replica.terminate(DAEMON_WITHIN).await?.success(), "a stop in order is no failure");
    ensure!(full.terminate(DAEMON_WITHIN).await?.success(), "{}", full.said());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_fails_with_its_broker_and_with_a_store_that_is_no_longer_what_it_was() -> Result<()> {
    let mut space = TestSpace::start("replicas", "http://127.0.0.1:9/api/auth").await;
    let (seat, server) = (Seat::of(&space, COTAL), space.server.url());
    let _delivery = space.start_delivery(COTAL).await?;
    let bearer = {
        let (mut full, discovery) = seat.ready_auth_service(&server).await?;
        let bearer = bearers(&space, &discovery).await?.swap_remove(0);
        ensure!(full.terminate(DAEMON_WITHIN).await?.success(), "{}", full.said());
        bearer
    };

    let mut replica = ready_replica(&seat, &server).await?;
    space.server.kill();
    let status = replica.end(DAEMON_WITHIN).await?;
    ensure!(status.code() == Some(1), "{status}: {}", replica.said());
    ensure!(
        replica.said().contains("auth-service: the callout replica stopped answering"),
        "{}",
        replica.said()
    );

    space.server.start_again().await;
    let mut replica = ready_replica(&seat, &server).await?;
    let connect = async |nonce: &str| {
        let sentinel = &space.material.callout.sentinel_creds;
        RawClient::connect(&server, Some(sentinel), Some(&bearer), Some(nonce)).await.1
    };
    ensure!(connect("replica-before").await == ConnectOutcome::Connected);
    delete_auth_store(&space).await?;
    // The store does not answer for this one, and so is proved again.
    ensure!(matches!(connect("replica-without").await, ConnectOutcome::Refused(_)));
    let status = replica.end(DAEMON_WITHIN).await?;
    ensure!(status.code() == Some(1), "{status}: {}", replica.said());
    ensure!(replica.said().contains("the authority stores failed their proof"), "{}", replica.said());
    let mut again = seat.callout_replica(&server)?;
    let status = again.end(DAEMON_WITHIN).await?;
    ensure!(status.code() == Some(1) && again.said().contains("is not provisioned"), "{}", again.said());
    Ok(())
}

async fn delete_auth_store(space: &TestSpace) -> Result<()> {
    let connection = space.jetstream("replica-test").await?;
    let subject = "$JS.API.STREAM.DELETE.KV_cotal_auth_replicas";
    connection.request(subject, &[], bytes::Bytes::new(), Duration::from_secs(20)).await?;
    Ok(connection.close().await?)
}

#[tokio::test]
async fn a_replica_refuses_http_flags_and_service_endpoints_in_a_sentence() -> Result<()> {
    let stage = cotal_testkit::stage::Stage::new(COTAL)?;
    for flag in [
        &["--port", "0"][..],
        &["--exchange-public-port", "7451"],
        &["--exchange-trusted-proxy"],
        &["--service-endpoints"],
    ] {
        let base = ["auth-service", "--callout-only", "--space", "main", "--server", "nats://127.0.0.1:1"];
        let output = stage.run(&[&base[..], flag].concat())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1), "{flag:?}: {said}");
        ensure!(said.contains(&format!("{} refuses beside --callout-only", flag[0])), "{said}");
    }
    Ok(())
}
