//! What a retiring incarnation may still owe: one obligation of every kind that a drain or a cleaning settles by a write.

use anyhow::{Result, ensure};
use cotal_broker::{Journal, kv::WriteOutcome};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Clock, Command, EndpointToken, OpId, WorkSubject,
    canonical::{VOID_CLOSURE_DIGEST, raw_digest},
    names::pool_consumer,
    rows::{Commit, CommitValue, FactWork, Obligation, Owed},
};
use serde_json::{Value, json};

use crate::{house::House, member::Member};

const ENDPOINT: &str = "com_x";
const POOL: &str = "builds";
const CALLER: &str = "local.caller";
const CALLER_UID: &str = "cccccccccccccccccccccccccc";
const FINGERPRINT: &str = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

/// How each obligation ends, by its name.
const ENDS: [(&str, &str); 5] = [
    ("undecided", "rejected"),
    ("effect", "accepted"),
    ("commit", "terminal"),
    ("queued", "accepted"),
    ("lost", "accepted"),
];

/// Plants an undecided submission, an accepted effect that never ran, an accepted commit that was never applied, an item
/// that waits in its pool, and one that never reached it.
pub(crate) async fn plant(house: &House, member: &Member) -> Result<()> {
    let names = house.names();
    let space = names.space().clone();
    let (facts, work) = (
        Journal::new(house.connection(), &names.epf_stream()),
        Journal::new(house.connection(), &names.epw_stream()),
    );
    provision_pool(house).await?;
    let commit_text = "{\"n\":1}";
    let commit = Commit {
        key: format!("cp.{ENDPOINT}.{}.spec", member.uid),
        base_revision: 0,
        value: CommitValue::Inline(commit_text.into()),
        digest: raw_digest(commit_text.as_bytes()),
    };
    for (name, owed, accepted, item) in [
        ("undecided", epf("effects")?, false, false),
        ("effect", epf("effects")?, true, false),
        ("commit", Owed::SelfCommit(commit), false, false),
        ("queued", epf(&format!("pool.{POOL}"))?, true, true),
        ("lost", epf(&format!("pool.{POOL}"))?, true, false),
    ] {
        let mut row = Obligation::provisional(&OpId::mint(&SystemEntropy), Some(3), None, owed)?;
        if name != "undecided" {
            row = row.accept()?;
        }
        house.put(&house.records, &key(member, name), row.to_bytes()).await?;
        let id = id(member, name);
        if accepted {
            let subject = format!("cotal.{space}.epf.{ENDPOINT}.dec.{CALLER}.{CALLER_UID}.{id}");
            let route = if name == "effect" { "effects".to_owned() } else { format!("pool.{POOL}") };
            create(&facts, &subject, &acceptance(member, &id, &route)).await?;
        }
        if item {
            let subject = format!("cotal.{space}.epw.{ENDPOINT}.{POOL}.{CALLER}.{CALLER_UID}.{id}");
            create(&work, &subject, &json!({})).await?;
        }
    }
    Ok(())
}

/// Everything is settled as it had to be, and no item waits any more.
pub(crate) async fn are_settled(house: &House, member: &Member) -> Result<()> {
    let names = house.names();
    let facts = Journal::new(house.connection(), &names.epf_stream());
    let work = Journal::new(house.connection(), &names.epw_stream());
    for (name, state) in ENDS {
        let row = house.json(&house.records, &key(member, name)).await?;
        ensure!(row["state"] == state, "the obligation {name}: {row}");
    }
    let fact = async |subject: String| -> Result<Value> {
        let found = facts.last(&subject).await?;
        ensure!(found.is_some(), "{subject} was not written");
        Ok(found.map(|entry| serde_json::from_slice(&entry.value)).transpose()?.unwrap_or_default())
    };
    let at = |topic: &str, name: &str| {
        format!("cotal.{}.epf.{ENDPOINT}.{topic}.{CALLER}.{CALLER_UID}.{}", names.space(), id(member, name))
    };
    let effect = fact(at("eff", "effect")).await?;
    ensure!(effect["outcome"] == "cancelled", "the effect: {effect}");
    let commit = house.json(&house.records, &format!("cp.{ENDPOINT}.{}.spec", member.uid)).await?;
    ensure!(commit["n"] == 1, "the commit: {commit}");
    for name in ["queued", "lost"] {
        let terminal = fact(at(&format!("wrk.{POOL}"), name)).await?;
        ensure!(terminal["disposition"] == "retired", "the item {name}: {terminal}");
        let item = format!(
            "cotal.{}.epw.{ENDPOINT}.{POOL}.{CALLER}.{CALLER_UID}.{}",
            names.space(),
            id(member, name)
        );
        ensure!(work.last(&item).await?.is_none(), "the item {name} waits still");
    }
    Ok(())
}

fn id(member: &Member, name: &str) -> String {
    format!("{name}-{}", member.uid)
}

fn key(member: &Member, name: &str) -> String {
    format!("oblig.{}.{ENDPOINT}.{CALLER}.{CALLER_UID}.{}", member.uid, id(member, name))
}

fn epf(route: &str) -> Result<Owed> {
    Ok(Owed::Epf(FactWork { fingerprint: FINGERPRINT.to_owned(), source_seq: 7, route: route.parse()? }))
}

async fn create(journal: &Journal, subject: &str, value: &Value) -> Result<()> {
    let planted = journal.create(subject, value.to_string().into()).await;
    ensure!(matches!(planted, WriteOutcome::Written(_)), "{subject}: {planted:?}");
    Ok(())
}

/// The decision to accept a submission for this incarnation.
fn acceptance(member: &Member, id: &str, route: &str) -> Value {
    let now = SystemClock.now_millis().0;
    let target = json!({
        "owner": member.owner, "actor": member.actor, "lifecycleUid": member.uid, "mappingRevision": 3,
    });
    let mut fact = json!({
        "v": 1,
        "id": id,
        "decision": "accepted",
        "fingerprint": FINGERPRINT,
        "request": {
            "v": 1,
            "id": id,
            "op": {
                "endpoint": "com.x", "command": "build",
                "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
            },
            "class": "journal",
            "replyExpected": false,
            "deadlineMs": 1000,
            "target": target.clone(),
            "from": { "id": CALLER, "name": "Caller" },
        },
        "caller": { "id": CALLER, "lifecycleUid": CALLER_UID },
        "target": target,
        "contractDigests": { "input": VOID_CLOSURE_DIGEST, "output": VOID_CLOSURE_DIGEST },
        "authzDecision": { "revision": 1, "epoch": 1 },
        "route": route,
        "sourceSeq": 7,
        "ts": now,
    });
    if route.starts_with("pool.") {
        fact["workExpiry"] = json!(now + 3_600_000);
    }
    fact
}

/// The pool's durable, as its endpoint's provisioner makes it.
async fn provision_pool(house: &House) -> Result<()> {
    let (names, endpoint, pool) = (house.names(), EndpointToken::parse(ENDPOINT)?, Command::parse(POOL)?);
    let (stream, name) = (names.epw_stream(), pool_consumer(&endpoint, &pool));
    let config = json!({
        "durable_name": name,
        "filter_subject": WorkSubject::filter(names.space(), &endpoint, &pool),
        "ack_policy": "explicit",
        "ack_wait": 500_000_000,
        "max_deliver": -1,
    });
    let body = json!({ "stream_name": stream, "config": config });
    house.api(&format!("CONSUMER.DURABLE.CREATE.{stream}.{name}"), &body).await
}
