//! Killing the auth service at any moment and starting it again loses nothing.
//!
//! The real process is killed again and again under connect and exchange load. Afterwards every connect that was
//! minted has exactly one issuance row, every minted line names a row, and no row is torn.

use std::{
    collections::{HashMap, HashSet},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cotal_broker::{
    Connector, Custody, Lifetime,
    kv::{Bucket, LeaderRead},
    provision,
};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{
    raw::{ConnectOutcome, RawClient},
    space::TestSpace,
};
use cotal_trust::{
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Actor, LifecycleUid, Permissions, Rules,
    rows::{AgentGate, CredentialRow, LifecycleHead, NatkeyRow},
};
use cotal_workspace::material::Discovery;

/// How often the service is killed.
const KILLS: usize = 200;
/// Actors under load: enough that no connect limit is met.
const ACTORS: usize = 40;

/// Clients at work at the same time.
const WORKERS: usize = 24;
/// A client gives up on a service that is gone, rather than wait for the broker to.
const PATIENCE: Duration = Duration::from_millis(400);

struct Member {
    owner: String,
    actor: String,
    secret: String,
    bearer: parking_lot::Mutex<Option<String>>,
    connected: AtomicUsize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_kills_under_load_lose_no_issuance_row_and_tear_none() -> Result<()> {
    let space = TestSpace::start("kills", "http://127.0.0.1:9/api/auth").await;
    let members = grant(&space)?;
    let stopping = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (members, stopping) = (members.clone(), stopping.clone());
            let (url, state_dir) = (space.server.url(), space.state_dir.clone());
            let sentinel = space.material.callout.sentinel_creds.to_string();
            tokio::spawn(async move {
                let http = http_client(Duration::from_secs(3))?;
                let mut turn = worker;
                while !stopping.load(Ordering::Relaxed) {
                    let member = &members[turn % members.len()];
                    turn += WORKERS;
                    // Each step may meet a service that is gone; that is the point.
                    let stale = turn % 5 == 0 || member.bearer.lock().is_none();
                    if stale && let Some(bearer) = exchange(&http, &state_dir, member).await {
                        *member.bearer.lock() = Some(bearer);
                    }
                    let Some(bearer) = member.bearer.lock().clone() else { continue };
                    let nonce = format!("kills-{turn:08}");
                    let (_, outcome) =
                        RawClient::connect(&url, Some(&sentinel), Some(&bearer), Some(&nonce)).await;
                    if outcome == ConnectOutcome::Connected {
                        member.connected.fetch_add(1, Ordering::Relaxed);
                    }
                }
                anyhow::Ok(())
            })
        })
        .collect();

    let log = space.root.path().join("auth-service.log");
    for kill in 0..KILLS {
        let mut service = start(&space, &log)?;
        ready(&mut service, &space).await?;
        // From right after readiness to deep in the load, never twice at the same moment.
        let (served, wanted, since) = (connects(&members), kill % 7, Instant::now());
        while connects(&members) < served + wanted && since.elapsed() < Duration::from_millis(600) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(Duration::from_millis((kill as u64 * 37) % 60)).await;
        service.kill()?;
        service.wait()?;
    }
    let mut last = start(&space, &log)?;
    ready(&mut last, &space).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    stopping.store(true, Ordering::Relaxed);
    for worker in load {
        worker.await??;
    }
    last.kill()?;
    last.wait()?;
    account(&space, &members, &std::fs::read_to_string(&log)?).await
}

fn grant(space: &TestSpace) -> Result<Arc<Vec<Member>>> {
    let ledger = Ledger::at(&space.state_dir);
    let members = (0..ACTORS)
        .map(|n| {
            let owner =
                space.material.owner_secret.derive(&space.material.idp.issuer, &format!("user-{}", n / 4))?;
            let (secret, hash) = mint_agent_secret(&SystemEntropy);
            let input = GrantInput {
                owner: owner.clone(),
                actor: Actor::parse(&format!("agent{n}"))?,
                scope: vec![],
                allow_subscribe: vec!["general".into()],
                allow_publish: vec!["general".into()],
                role: None,
                label: None,
                parent: None,
                lifecycle_uid: Some(LifecycleUid::mint(&SystemEntropy)),
            };
            ledger.grant_managed(&input, &hash, &SystemClock)?;
            Ok(Member {
                owner: owner.to_string(),
                actor: format!("agent{n}"),
                secret: secret.to_string(),
                bearer: parking_lot::Mutex::new(None),
                connected: AtomicUsize::new(0),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(members))
}

fn connects(members: &[Member]) -> usize {
    members.iter().map(|m| m.connected.load(Ordering::Relaxed)).sum()
}

fn start(space: &TestSpace, log: &std::path::Path) -> Result<Child> {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
    Command::new(env!("CARGO_BIN_EXE_cotal"))
        .args(["auth-service", "--space", space.space.as_str(), "--server", &space.server.url()])
        .current_dir(space.root.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("cotal auth-service")
}

/// Waits for the readiness file of exactly this process.
async fn ready(service: &mut Child, space: &TestSpace) -> Result<()> {
    let started = Instant::now();
    loop {
        if Discovery::load(&space.state_dir)?.is_some_and(|d| d.pid == service.id()) {
            return Ok(());
        }
        if let Some(status) = service.try_wait()? {
            anyhow::bail!("the auth service ended by itself: {status}");
        }
        ensure!(started.elapsed() < Duration::from_secs(30), "the auth service did not become ready");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
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
async fn account(space: &TestSpace, members: &[Member], log: &str) -> Result<()> {
    let connector = Connector::new(
        &space.server.url(),
        space.space.clone(),
        space.material.data_account.clone(),
        Custody::new(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    );
    let everything = |conn: &cotal_wire::ConnId| Permissions {
        publish: Rules { allow: vec!["$JS.API.>".into()], deny: vec![] },
        subscribe: Rules { allow: vec![format!("_INBOX_{conn}.>")], deny: vec![] },
    };
    let one_shot = Lifetime::OneShot { ttl_secs: 300, principal: None };
    let connection = connector.open("kills-reader".into(), &everything, one_shot).await?;
    provision::ensure_authority_stores(&connection, &space.space).await?;
    let auth = Bucket::new(&connection, "cotal_auth_kills");

    let mut rows_of: HashMap<String, usize> = HashMap::new();
    let mut rows = HashSet::new();
    for key in auth.keys("natkey.>").await? {
        // A torn row does not parse; a pruned one cannot be here, because nothing has expired yet.
        let LeaderRead::Value(entry) = auth.leader_read(&key).await? else { anyhow::bail!("{key} is gone") };
        let row = NatkeyRow::parse(&key, &entry.value)?;
        *rows_of.entry(format!("{}.{}", row.owner, row.actor)).or_default() += 1;
        rows.insert(row.user.to_string());
    }
    let connected = connects(members);
    for member in members {
        let principal = format!("{}.{}", member.owner, member.actor);
        let (rows, connected) =
            (rows_of.get(&principal).copied().unwrap_or(0), member.connected.load(Ordering::Relaxed));
        assert!(rows >= connected, "{principal} connected {connected} times and has {rows} issuance rows");
    }
    let mut minted = HashSet::new();
    for line in log.lines().filter(|l| l.contains(" outcome=minted ")) {
        let user =
            line.split(" req=").nth(1).and_then(|r| r.split(' ').next()).context("a line without req")?;
        assert!(minted.insert(user.to_owned()), "{user} was minted twice");
        assert!(rows.contains(user), "{user} was minted and has no issuance row");
    }
    for key in auth.keys("cred.>").await? {
        let LeaderRead::Value(entry) = auth.leader_read(&key).await? else { anyhow::bail!("{key} is gone") };
        CredentialRow::parse(&key, &entry.value)?;
    }
    for key in auth.keys("gate.>").await? {
        let LeaderRead::Value(entry) = auth.leader_read(&key).await? else { anyhow::bail!("{key} is gone") };
        let uid = LifecycleUid::parse(key.trim_start_matches("gate."))?;
        AgentGate::parse(&uid, &entry.value)?;
    }
    let records = Bucket::new(&connection, "cotal_records_kills");
    let mut current = 0;
    for key in records.keys("lifecycle.>").await? {
        let LeaderRead::Value(entry) = records.leader_read(&key).await? else {
            anyhow::bail!("{key} is gone")
        };
        let principal = cotal_wire::Principal::parse_key(key.trim_start_matches("lifecycle."))?;
        LifecycleHead::parse(&principal, &entry.value)?;
        current += 1;
    }
    eprintln!(
        "{KILLS} kills: {connected} connects, {} minted lines, {} issuance rows, {current} lifecycles",
        minted.len(),
        rows.len()
    );
    assert!(connected > KILLS, "the load was too thin to mean anything: {connected} connects");
    connection.close().await?;
    Ok(())
}
