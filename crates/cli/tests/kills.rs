//! Killing the auth service at any moment and starting it again loses nothing.
//!
//! The real process is killed again and again under connect and exchange load. Afterwards no row is torn, every minted
//! line names the one row of its connect, nobody got in without a row, and a row without a line is of a request that a
//! kill has caught at work. The clients present bearers of 900 s, which the test signs with the space's own key for the
//! incarnations that it has exchanged for: none of their rows can expire before it has been counted.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_broker::{
    kv::{Bucket, LeaderRead},
    provision,
};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{
    daemons::Seat,
    raw::{ConnectOutcome, RawClient},
    space::TestSpace,
};
use cotal_trust::{
    bearer::{BearerGrant, mint},
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Actor, Clock, CredentialId, DerivedOwner, LifecycleUid, UnixSecs,
    rows::{AgentGate, CredentialRow, LifecycleHead, NatkeyRow},
};
use cotal_workspace::material::Discovery;

const COTAL: &str = env!("CARGO_BIN_EXE_cotal");
/// How often the service is killed.
const KILLS: usize = 200;
/// Actors under load: enough that no connect limit is met.
const ACTORS: usize = 40;

/// Clients at work at the same time.
const WORKERS: usize = 24;
/// How long the kills may take: with the counting, well inside the life of the bearers.
const KILLS_WITHIN: Duration = Duration::from_secs(8 * 60);
/// What a connect may present (contract 04 §2).
const BEARER_SECS: u64 = 900;

struct Member {
    owner: DerivedOwner,
    actor: Actor,
    uid: LifecycleUid,
    secret: String,
    connected: AtomicUsize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_kills_under_load_lose_no_issuance_row_and_tear_none() -> Result<()> {
    let space = TestSpace::start("kills", "http://127.0.0.1:9/api/auth").await;
    let members = grant(&space)?;
    // It proves each killed service's connections gone, without which the next one may not take the claim.
    let delivery = space.start_delivery(COTAL).await?;
    let (seat, server) = (Seat::of(&space, COTAL), space.server.url());
    let begun = SystemClock.now_secs();
    let bearers = Arc::new(bearers(&space, &members, &seat).await?);
    let stopping = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (members, bearers, stopping) = (members.clone(), bearers.clone(), stopping.clone());
            let (url, state_dir) = (space.server.url(), space.state_dir.clone());
            let sentinel = space.material.callout.sentinel_creds.to_string();
            tokio::spawn(async move {
                let http = http_client(Duration::from_secs(3))?;
                let mut turn = worker;
                while !stopping.load(Ordering::Relaxed) {
                    let (member, bearer) = (&members[turn % ACTORS], &bearers[turn % ACTORS]);
                    turn += WORKERS;
                    // Each step may meet a service that is gone; that is the point.
                    if turn.is_multiple_of(5) {
                        exchange(&http, &state_dir, member).await;
                    }
                    let nonce = format!("kills-{turn:08}");
                    let (_, outcome) =
                        RawClient::connect(&url, Some(&sentinel), Some(bearer), Some(&nonce)).await;
                    if outcome == ConnectOutcome::Connected {
                        member.connected.fetch_add(1, Ordering::Relaxed);
                    }
                }
                anyhow::Ok(())
            })
        })
        .collect();

    let (mut kills, started) = (0, Instant::now());
    while kills < KILLS && started.elapsed() < KILLS_WITHIN {
        let (mut service, _) = seat.ready_auth_service(&server).await?;
        // From right after readiness to deep in the load, never twice at the same moment.
        let (served, wanted, since) = (connects(&members), kills % 7, Instant::now());
        while connects(&members) < served + wanted && since.elapsed() < Duration::from_millis(600) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(Duration::from_millis((kills as u64 * 37) % 60)).await;
        service.kill()?;
        kills += 1;
    }
    let took = started.elapsed();
    let (mut last, _) = seat.ready_auth_service(&server).await?;
    let served = connects(&members);
    while connects(&members) == served {
        ensure!(last.ended()?.is_none(), "the last auth service ended by itself: {}", last.said());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    stopping.store(true, Ordering::Relaxed);
    for worker in load {
        worker.await??;
    }
    last.kill()?;
    account(&space, &members, &std::fs::read_to_string(seat.log("auth-service"))?, kills, begun).await?;
    eprintln!("{kills} kills in {} s", took.as_secs());
    drop(delivery);
    if kills < KILLS {
        bail!(
            "nothing was lost, but only {kills} of {KILLS} kills fit into {} s: this machine is too slow or too busy \
             for this test",
            KILLS_WITHIN.as_secs()
        );
    }
    Ok(())
}

fn grant(space: &TestSpace) -> Result<Arc<Vec<Member>>> {
    let ledger = Ledger::at(&space.state_dir);
    let members = (0..ACTORS)
        .map(|n| {
            let owner =
                space.material.owner_secret.derive(&space.material.idp.issuer, &format!("user-{}", n / 4))?;
            let actor = Actor::parse(&format!("agent{n}"))?;
            let uid = LifecycleUid::mint(&SystemEntropy);
            let (secret, hash) = mint_agent_secret(&SystemEntropy);
            let input = GrantInput::new(owner.clone(), actor.clone())
                .allow_subscribe(["general"])
                .allow_publish(["general"])
                .lifecycle_uid(uid.clone());
            ledger.grant_managed(&input, &hash, &SystemClock)?;
            Ok(Member { owner, actor, uid, secret: secret.to_string(), connected: AtomicUsize::new(0) })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(members))
}

/// Exchanges once for every member, so that each incarnation has its credential, and signs a bearer of the longest
/// life for it. The service that served the exchanges is the first to be killed.
async fn bearers(space: &TestSpace, members: &[Member], seat: &Seat) -> Result<Vec<String>> {
    let (mut service, _) = seat.ready_auth_service(&space.server.url()).await?;
    let http = http_client(Duration::from_secs(10))?;
    let mut bearers = Vec::with_capacity(members.len());
    for member in members {
        let token =
            exchange(&http, &space.state_dir, member).await.context("a first exchange was not answered")?;
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).context("not a compact JWS")?)?;
        let claims: serde_json::Value = serde_json::from_slice(&claims)?;
        let credential = claims["act"]["credentialId"].as_str().context("no credential id")?;
        let grant = BearerGrant {
            owner: member.owner.clone(),
            actor: member.actor.clone(),
            scope: Some(vec![]),
            parent: None,
            lifecycle_uid: member.uid.clone(),
            credential_id: CredentialId::parse(credential)?,
            view: None,
            manager_instance_id: None,
            session: None,
            transfer_writer: None,
            ttl_secs: None,
            not_after: None,
        };
        let minted = mint(&space.material.issuer, &space.space, &grant, SystemClock.now_secs())?;
        bearers.push(minted.token.to_string());
    }
    service.kill()?;
    Ok(bearers)
}

fn connects(members: &[Member]) -> usize {
    members.iter().map(|m| m.connected.load(Ordering::Relaxed)).sum()
}

async fn exchange(http: &reqwest::Client, state_dir: &std::path::Path, member: &Member) -> Option<String> {
    let discovery = Discovery::load(state_dir).ok()??;
    let answer = http
        .post(format!("{}/exchange", discovery.url))
        .bearer_auth(discovery.cap.as_str())
        .json(
            &serde_json::json!({ "owner": member.owner, "actor": member.actor, "actorToken": member.secret }),
        )
        .send()
        .await
        .ok()?;
    let body: serde_json::Value = answer.json().await.ok()?;
    body["token"].as_str().map(str::to_owned)
}

/// Reads the stores as they were left and holds them to what the clients and the log saw.
async fn account(
    space: &TestSpace,
    members: &[Member],
    log: &str,
    kills: usize,
    begun: UnixSecs,
) -> Result<()> {
    let connection = space.jetstream("kills-reader").await?;
    provision::ensure_authority_stores(&connection, &space.space).await?;
    let auth = Bucket::new(&connection, "cotal_auth_kills");

    // Whose connect each user key is: by the rows, and by the minted lines.
    let (mut rows, mut minted) = (HashMap::new(), HashMap::new());
    for key in auth.keys("natkey.>").await? {
        let LeaderRead::Value(entry) = auth.leader_read(&key).await? else { bail!("{key} is gone") };
        // A torn row does not parse.
        let row = NatkeyRow::parse(&key, &entry.value)?;
        let twice = rows.insert(row.user.to_string(), format!("{}.{}", row.owner, row.actor));
        assert!(twice.is_none(), "{} has two rows", row.user);
    }
    let now = SystemClock.now_secs();
    ensure!(
        now.since(begun) < BEARER_SECS,
        "rows may have expired before they were counted: too slow a machine"
    );
    for line in log.lines().filter(|line| line.contains(" outcome=minted ")) {
        let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        // A kill may cut a line short; what it says then is no claim. The total is the last thing in it.
        let (Some(user), Some(owner), Some(actor), Some(_)) =
            (field("req"), field("owner"), field("actor"), field("total_ms"))
        else {
            continue;
        };
        let principal = format!("{owner}.{actor}");
        assert_eq!(rows.get(user), Some(&principal), "{user} was minted without a row of its own");
        assert!(minted.insert(user.to_owned(), principal).is_none(), "{user} was minted twice");
    }
    let count = |users: &HashMap<String, String>, principal: &str| {
        users.values().filter(|of| *of == principal).count()
    };
    for member in members {
        let principal = format!("{}.{}", member.owner, member.actor);
        let (row, line) = (count(&rows, &principal), count(&minted, &principal));
        let connected = member.connected.load(Ordering::Relaxed);
        // A kill may have lost the line of a connect, but never its row.
        assert!(connected <= row, "{principal} connected {connected} times: {row} rows, {line} minted lines");
    }
    // A client has one request under way, so this is the most that a kill can catch between a row and its line.
    let (connected, lost) = (connects(members), rows.len() - minted.len());
    assert!(lost <= (kills + 1) * WORKERS, "{lost} rows without a line after {kills} kills");
    for key in auth.keys("cred.>").await? {
        let LeaderRead::Value(entry) = auth.leader_read(&key).await? else { bail!("{key} is gone") };
        CredentialRow::parse(&key, &entry.value)?;
    }
    for key in auth.keys("gate.>").await? {
        let LeaderRead::Value(entry) = auth.leader_read(&key).await? else { bail!("{key} is gone") };
        let uid = LifecycleUid::parse(key.trim_start_matches("gate."))?;
        AgentGate::parse(&uid, &entry.value)?;
    }
    let records = Bucket::new(&connection, "cotal_records_kills");
    let mut current = 0;
    for key in records.keys("lifecycle.>").await? {
        let LeaderRead::Value(entry) = records.leader_read(&key).await? else { bail!("{key} is gone") };
        let principal = cotal_wire::Principal::parse_key(key.trim_start_matches("lifecycle."))?;
        LifecycleHead::parse(&principal, &entry.value)?;
        current += 1;
    }
    eprintln!(
        "{kills} kills: {connected} connects, {} minted lines, {} issuance rows, {current} lifecycles",
        minted.len(),
        rows.len()
    );
    assert_eq!(current, ACTORS, "every actor was exchanged for, so every one has its lifecycle");
    assert!(connected > kills, "the load was too thin to mean anything: {connected} connects");
    connection.close().await?;
    Ok(())
}
