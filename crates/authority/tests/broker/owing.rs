//! A retiring incarnation that owes: obligations, facts, records and pool items, planted by hand.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use cotal_authority::{
    drain::{Drain, MIN_FETCH_EXPIRY, Retiring},
    evict::{Eviction, Evictor},
    failpoint::Failpoint,
};
use cotal_broker::{Journal, kv::WriteOutcome, provision::provision_space};
use cotal_wire::{
    Command, EndpointToken, LifecycleUid, Names, OpId, Principal, Revision, WorkSubject,
    canonical::{VOID_CLOSURE_DIGEST, raw_digest},
    names::pool_consumer,
    rows::{Commit, CommitValue, FactWork, Obligation, Owed},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    harness::{TestClock, World, eventually, op, uid},
    held::Held,
};

pub(crate) const FINGERPRINT: &str =
    "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
pub(crate) const CALLER: &str = "local.caller";
pub(crate) const CALLER_UID: &str = "cccccccccccccccccccccccccc";
pub(crate) const ENDPOINT: &str = "com_x";
pub(crate) const POOL: &str = "builds";
/// Now, in seconds.
pub(crate) const NOW: u64 = 1_700_000_000;
pub(crate) const HORIZON: u64 = (NOW + 3600) * 1000;
pub(crate) const PAST: u64 = (NOW - 1) * 1000;

/// A space with all its streams, and an incarnation of `local.bob` that retires.
pub(crate) struct Owing {
    pub(crate) world: World,
    pub(crate) held: Held,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) retiring: Retiring,
    facts: Journal,
    work: Journal,
}

impl Owing {
    pub(crate) async fn start() -> Self {
        let world = World::start().await;
        provision_space(&world.anything, &world.space).await.unwrap();
        let held = Held::open(&world).await;
        let names = Names::new(&world.space.token());
        Self {
            facts: Journal::new(&world.anything, &names.epf_stream()),
            work: Journal::new(&world.anything, &names.epw_stream()),
            held,
            clock: TestClock::at(NOW),
            retiring: retiring(),
            world,
        }
    }

    /// The same space, and another incarnation that owes nothing yet.
    pub(crate) fn renew(&mut self) {
        self.retiring = retiring();
    }

    /// A drain that stalls after two passes.
    pub(crate) fn drain(&self) -> Drain {
        Drain::new(self.world.connector.clone(), self.held.records.clone(), self.clock.clone())
            .with_pace(MIN_FETCH_EXPIRY, 2)
    }

    pub(crate) fn watched(&self, failpoint: &Arc<Failpoint>) -> Arc<Drain> {
        let drain = self.drain().with_pace(MIN_FETCH_EXPIRY, 5);
        drain.watch(failpoint);
        Arc::new(drain)
    }

    // === obligations ===

    /// Ids are made the incarnation's own, so that many can owe in one space.
    pub(crate) fn id(&self, id: &str) -> String {
        format!("{id}-{}", self.retiring.uid)
    }

    pub(crate) fn key(&self, id: &str) -> String {
        format!("oblig.{}.{ENDPOINT}.{CALLER}.{CALLER_UID}.{}", self.retiring.uid, self.id(id))
    }

    pub(crate) async fn oblige(&self, id: &str, row: &Obligation) -> Revision {
        let text = String::from_utf8(row.to_bytes()).unwrap();
        self.world.put(&self.world.records, &self.key(id), &text).await
    }

    pub(crate) async fn state(&self, id: &str) -> String {
        self.world.json(&self.world.records, &self.key(id)).await["state"].as_str().unwrap().to_owned()
    }

    // === facts and items ===

    pub(crate) fn decision_subject(&self, id: &str) -> String {
        format!("cotal.demo.epf.{ENDPOINT}.dec.{CALLER}.{CALLER_UID}.{}", self.id(id))
    }

    pub(crate) fn effect_subject(&self, id: &str) -> String {
        format!("cotal.demo.epf.{ENDPOINT}.eff.{CALLER}.{CALLER_UID}.{}", self.id(id))
    }

    pub(crate) fn terminal_subject(&self, id: &str) -> String {
        format!("cotal.demo.epf.{ENDPOINT}.wrk.{POOL}.{CALLER}.{CALLER_UID}.{}", self.id(id))
    }

    pub(crate) fn item_subject(&self, id: &str) -> String {
        format!("cotal.demo.epw.{ENDPOINT}.{POOL}.{CALLER}.{CALLER_UID}.{}", self.id(id))
    }

    pub(crate) fn lease_key(&self, id: &str) -> String {
        format!("lease.{ENDPOINT}.{POOL}.{CALLER}.{CALLER_UID}.{}.spec", self.id(id))
    }

    pub(crate) async fn plant_fact(&self, subject: &str, fact: &Value) {
        plant(&self.facts, subject, fact.to_string()).await;
    }

    pub(crate) async fn plant_item(&self, id: &str) {
        plant(&self.work, &self.item_subject(id), "{}".to_owned()).await;
    }

    pub(crate) async fn plant_item_at(&self, subject: &str) {
        plant(&self.work, subject, "{}".to_owned()).await;
    }

    pub(crate) async fn fact(&self, subject: &str) -> Option<Value> {
        let entry = self.facts.last(subject).await.unwrap()?;
        Some(serde_json::from_slice(&entry.value).unwrap())
    }

    pub(crate) async fn item(&self, id: &str) -> Option<Bytes> {
        Some(self.work.last(&self.item_subject(id)).await.unwrap()?.value)
    }

    /// An acceptance for the incarnation that retires.
    pub(crate) fn accepted(&self, id: &str, route: &str) -> Value {
        let target = json!({
            "owner": "local", "actor": "bob", "lifecycleUid": self.retiring.uid, "mappingRevision": 3,
        });
        let mut fact = json!({
            "v": 1,
            "id": self.id(id),
            "decision": "accepted",
            "fingerprint": FINGERPRINT,
            "request": {
                "v": 1,
                "id": self.id(id),
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
            "ts": NOW * 1000,
        });
        if route.starts_with("pool.") {
            fact["workExpiry"] = json!(HORIZON);
        }
        fact
    }

    /// The same for another incarnation than the one that retires.
    pub(crate) fn accepted_for_another(&self, id: &str, route: &str) -> Value {
        let mut fact = self.accepted(id, route);
        let other = json!({ "owner": "local", "actor": "carol", "lifecycleUid": uid() });
        fact["target"] = other.clone();
        fact["request"]["target"] = other;
        fact
    }

    pub(crate) fn rejected(&self, id: &str) -> Value {
        json!({
            "v": 1, "id": self.id(id), "decision": "rejected", "fingerprint": FINGERPRINT,
            "error": { "code": "conflict" }, "caller": { "id": CALLER, "lifecycleUid": CALLER_UID },
            "sourceSeq": 7, "ts": NOW * 1000,
        })
    }

    pub(crate) fn ran(&self, id: &str) -> Value {
        json!({
            "v": 1, "id": self.id(id), "fingerprint": FINGERPRINT,
            "caller": { "id": CALLER, "lifecycleUid": CALLER_UID }, "sourceSeq": 7, "ts": 1, "outcome": "ran",
        })
    }

    pub(crate) fn expired(&self, id: &str) -> Value {
        let caller = json!({ "owner": "local", "actor": "caller", "uid": CALLER_UID, "id": self.id(id) });
        json!({ "v": 1, "disposition": "expired", "pool": POOL, "caller": caller, "workExpiry": 5, "ts": 6 })
    }

    // === pools ===

    /// The pool's durable, as its endpoint's provisioner makes it.
    pub(crate) async fn provision_pool(&self, overrides: Value) {
        let names = Names::new(&self.world.space.token());
        let name = pool_consumer(&endpoint(), &pool());
        let mut config = json!({
            "durable_name": name,
            "filter_subject": WorkSubject::filter(names.space(), &endpoint(), &pool()),
            "ack_policy": "explicit",
            "ack_wait": 500_000_000,
            "max_deliver": -1,
        });
        config.as_object_mut().unwrap().extend(overrides.as_object().unwrap().clone());
        let body = json!({ "stream_name": names.epw_stream(), "config": config });
        let made = self.api(&format!("CONSUMER.DURABLE.CREATE.{}.{name}", names.epw_stream()), &body).await;
        assert!(made.get("error").is_none(), "{made}");
    }

    pub(crate) async fn api(&self, verb: &str, body: &Value) -> Value {
        let subject = format!("$JS.API.{verb}");
        let wait = Duration::from_secs(10);
        let answer = self.world.anything.request(&subject, &[], body.to_string().into(), wait).await.unwrap();
        serde_json::from_slice(&answer.payload).unwrap()
    }

    /// No connection of the drain or of the cleaner is left.
    pub(crate) async fn assert_all_ended(&self) {
        // Custody hears of an end just after whoever closed it.
        eventually("every connection ends", async || {
            let all = self.world.custody.connections();
            all.iter().all(|connection| connection.ended || !connection.label.contains(":ep-"))
        })
        .await;
    }
}

fn retiring() -> Retiring {
    Retiring { op: fresh_op(), principal: Principal::parse_key("local.bob").unwrap(), uid: uid() }
}

fn fresh_op() -> OpId {
    let fresh: LifecycleUid = uid();
    assert_ne!(fresh.as_str(), op().as_str());
    OpId::parse(fresh.as_str()).unwrap()
}

async fn plant(journal: &Journal, subject: &str, text: String) {
    let planted = journal.create(subject, text.into()).await;
    assert!(matches!(planted, WriteOutcome::Written(_)), "{subject}: {planted:?}");
}

pub(crate) fn goal_subject(goal: &str) -> String {
    format!("cotal.demo.epf.{ENDPOINT}.goal.{CALLER}.{CALLER_UID}.{goal}.result")
}

pub(crate) fn endpoint() -> EndpointToken {
    EndpointToken::parse(ENDPOINT).unwrap()
}

pub(crate) fn pool() -> Command {
    Command::parse(POOL).unwrap()
}

pub(crate) fn epf(route: &str) -> Obligation {
    let work = FactWork { fingerprint: FINGERPRINT.to_owned(), source_seq: 7, route: route.parse().unwrap() };
    Obligation::provisional(&op(), Some(3), None, Owed::Epf(work)).unwrap()
}

pub(crate) fn commit(key: &str, base_revision: u64, text: &str) -> Commit {
    let value = CommitValue::Inline(text.as_bytes().to_vec());
    Commit { key: key.to_owned(), base_revision, value, digest: raw_digest(text.as_bytes()) }
}

pub(crate) fn own(commit: Commit) -> Obligation {
    Obligation::provisional(&op(), Some(3), None, Owed::SelfCommit(commit)).unwrap()
}

/// An evictor that says what it is told to, and remembers what it was asked.
pub(crate) struct Witness {
    gone: bool,
    pub(crate) asked: Mutex<Vec<BTreeSet<Principal>>>,
}

impl Witness {
    pub(crate) fn saying(gone: bool) -> Self {
        Self { gone, asked: Mutex::default() }
    }
}

#[async_trait]
impl Evictor for Witness {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        self.asked.lock().push(principals.clone());
        let verdict = |principal| Eviction {
            verified_gone: self.gone,
            scan_complete: self.gone,
            ..Eviction::unverified(principal, "the witness's note")
        };
        principals.iter().map(verdict).collect()
    }
}
