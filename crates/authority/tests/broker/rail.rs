//! The auth endpoint rail over a real broker: a requester with exactly its own grant asks, the listener answers
//! (contract 05 §11-12, 02 §4).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use cotal_authority::{
    flights::RetirementOutcome,
    rail::{AuthIncarnation, AuthRail, contract::AuthContract},
    retirement::{RetirementFailure, RetirementReport},
    retirements::Retirements,
};
use cotal_broker::{Connection, Lifetime, Message};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    EpCode, EpError, Generation, InstanceId, LifecycleUid, OpId, Permissions, Principal, Rules,
    endpoint_subject::{ReplySubject, RequestSubject},
    envelope::{EndpointReply, Outcome},
};
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::harness::{OWNER, World, eventually, op, principal, uid};

const WAIT: Duration = Duration::from_secs(10);
const EPOCH: u64 = 3;
const SERVE_EPOCH: u64 = 7;

/// Stands for the barrier: counts its runs, holds them while told to, and ends as told, the head retired when told so.
#[derive(Default)]
struct Barrier {
    retires: Mutex<Option<(Connection, String, String)>>,
    runs: AtomicUsize,
    holds: Mutex<bool>,
    begun: Notify,
    released: Notify,
    ends: Mutex<Option<RetirementOutcome>>,
}

impl Barrier {
    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn ends(&self, outcome: RetirementOutcome) {
        *self.ends.lock() = Some(outcome);
    }

    fn hold(&self) {
        *self.holds.lock() = true;
    }

    fn release(&self) {
        *self.holds.lock() = false;
        self.released.notify_one();
    }

    async fn run(self: Arc<Self>) -> RetirementOutcome {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.begun.notify_one();
        let holds = *self.holds.lock();
        if holds {
            self.released.notified().await;
        }
        let retires = self.retires.lock().clone();
        if let Some((connection, subject, row)) = retires {
            connection.request(&subject, &[], row.into(), WAIT).await.unwrap();
        }
        self.ends.lock().clone().unwrap_or_else(|| Ok(RetirementReport::default()))
    }
}

/// A space with an open rail, a registered manager and an active agent.
struct Stage {
    world: World,
    rail: AuthRail,
    retirements: Arc<Retirements>,
    barrier: Arc<Barrier>,
    auth: AuthIncarnation,
    contract: AuthContract,
    manager: InstanceId,
    target: LifecycleUid,
    requester: Connection,
    caller_uid: LifecycleUid,
    generation: Generation,
    nonces: AtomicU64,
}

impl Stage {
    async fn start() -> Self {
        let world = World::start().await;
        let stores = world.stores().await;
        let barrier = Arc::new(Barrier::default());
        let running = Arc::clone(&barrier);
        let retirements =
            Arc::new(Retirements::new(stores, Arc::new(move |_| Arc::clone(&running).run().boxed())));
        let auth = AuthIncarnation { instance: InstanceId::mint(&SystemEntropy), epoch: EPOCH };
        let rail = AuthRail::open(&world.connector, &auth, retirements.clone()).await.unwrap();
        let (target, caller_uid) = (uid(), uid());
        world.plant_active("bob", &target).await;
        let manager = InstanceId::mint(&SystemEntropy);
        let generation = Generation::parse(&"0".repeat(32)).unwrap();
        let requester = requester(&world, &caller_uid, &generation).await;
        let stage = Self {
            world,
            rail,
            retirements,
            barrier,
            auth,
            contract: AuthContract::new().unwrap(),
            manager,
            target,
            requester,
            caller_uid,
            generation,
            nonces: AtomicU64::new(0),
        };
        stage.plant_serving_gate("open", SERVE_EPOCH).await;
        stage
    }

    async fn plant_serving_gate(&self, state: &str, epoch: u64) {
        let op = match state {
            "open" => String::new(),
            _ => format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", op()),
        };
        let row = format!(
            "{{\"state\":\"{state}\",\"generation\":1,\"processEpoch\":{epoch},\"registrationRevision\":1,\
             \"nameAuthorityRevision\":0,\"principal\":\"{OWNER}.serve\"{op}}}"
        );
        self.world.put(&self.world.auth, &format!("epgate.manager.{}", self.manager), &row).await;
    }

    /// Lets the barrier leave the head retired, as the real one does.
    fn barrier_retires_the_head(&self) {
        let subject = format!("$KV.cotal_records_demo.lifecycle.{OWNER}.bob");
        let row = format!(
            "{{\"owner\":\"{OWNER}\",\"actor\":\"bob\",\"lifecycleUid\":\"{}\",\"managerInstance\":\"m\",\
             \"processEpoch\":1,\"state\":\"retired\"}}",
            self.target
        );
        *self.barrier.retires.lock() = Some((self.world.anything.clone(), subject, row));
    }

    fn nonce(&self) -> String {
        format!("nonce-{:017}", self.nonces.fetch_add(1, Ordering::SeqCst))
    }

    /// `<owner>.<actor>.<uid>` of the caller, and the target's triple after its mode.
    fn exact(&self) -> String {
        format!("exact.{OWNER}.bob.{}", self.target)
    }

    fn subject(&self, rail: &str, command: &str, target: &str, nonce: &str) -> String {
        let middle = if target.is_empty() { command.to_owned() } else { format!("{command}.{target}") };
        let versioned = rail.starts_with("ep.v1");
        let generation = if versioned { format!("{}.", self.generation) } else { String::new() };
        let instance = rail.ends_with("inst");
        let endpoint = if instance { format!("auth.{}", self.auth.instance) } else { "auth".to_owned() };
        format!("cotal.demo.{rail}.{endpoint}.{middle}.{OWNER}.serve.{}.{generation}{nonce}", self.caller_uid)
    }

    fn args(&self) -> Value {
        json!({
            "opId": OpId::managed_retirement(&self.target), "serveEndpoint": "manager",
            "serveInstanceId": self.manager, "serveEpoch": SERVE_EPOCH,
        })
    }

    fn body(&self) -> Value {
        json!({
            "v": 1, "id": "r1",
            "op": {
                "endpoint": "auth", "command": "retire-lifecycle",
                "inputDigest": self.contract.input_digest(), "outputDigest": self.contract.output_digest(),
            },
            "class": "ephemeral", "replyExpected": true, "deadlineMs": 15_000,
            "target": { "owner": OWNER, "actor": "bob", "lifecycleUid": self.target },
            "args": self.args(),
            "from": { "id": format!("{OWNER}.serve"), "name": "serve" },
        })
    }

    fn describe_body() -> Value {
        json!({
            "v": 1, "id": "d1", "op": { "endpoint": "auth", "command": "describe" }, "class": "ephemeral",
            "replyExpected": true, "deadlineMs": 15_000, "from": { "id": format!("{OWNER}.serve"), "name": "serve" },
        })
    }

    /// Asks as a real caller does: it subscribes to where the answer must come, then publishes.
    async fn send(&self, by: &Connection, subject: &str, payload: Vec<u8>) -> EndpointReply {
        let request = RequestSubject::parse(subject).unwrap_or_else(|| panic!("{subject} has a sender"));
        let reply = request.reply(&self.auth.instance, EPOCH).build().unwrap();
        let mut answers = by.subscribe(&reply, None).await.unwrap();
        by.publish(subject, &[], payload.into()).await.unwrap();
        by.flush().await.unwrap();
        let answer: Message =
            tokio::time::timeout(WAIT, answers.next()).await.expect("an answer in time").unwrap();
        assert!(ReplySubject::parse(&answer.subject).is_some());
        EndpointReply::parse(&answer.payload).unwrap()
    }

    async fn ask(&self, body: &Value) -> EndpointReply {
        let subject = self.subject("ep.one", "retire-lifecycle", &self.exact(), &self.nonce());
        self.send(&self.requester, &subject, body.to_string().into_bytes()).await
    }

    /// What every answer to a retirement of the target says.
    fn retired(&self, evicted: &[&str]) -> Value {
        json!({
            "retired": true, "lifecycleUid": self.target,
            "opId": OpId::managed_retirement(&self.target), "evictedPrincipals": evicted,
        })
    }
}

/// A requester's connection: its literal target, its describe, its own replies (contract 03 §A), on both rails.
async fn requester(world: &World, caller: &LifecycleUid, generation: &Generation) -> Connection {
    let who = format!("{OWNER}.serve.{caller}");
    let grants = |inbox: &cotal_wire::ConnId| Permissions {
        publish: Rules {
            allow: vec![
                "cotal.demo.ep.one.auth.>".to_owned(),
                "cotal.demo.ep.all.auth.>".to_owned(),
                "cotal.demo.ep.inst.auth.>".to_owned(),
                "cotal.demo.ep.v1.one.auth.>".to_owned(),
                "$JS.API.INFO".to_owned(),
            ],
            deny: Vec::new(),
        },
        subscribe: Rules {
            allow: vec![
                format!("cotal.demo.ep.reply.*.*.*.{who}.*"),
                format!("cotal.demo.ep.v1.reply.*.*.*.{who}.{generation}.*"),
                format!("_INBOX_{inbox}.>"),
            ],
            deny: Vec::new(),
        },
    };
    let serve: Principal = principal("serve");
    let lifetime = Lifetime::OneShot { ttl_secs: 300, principal: Some(serve) };
    world.connector.open("cotal:test-requester:demo".to_owned(), &grants, lifetime).await.unwrap()
}

fn error(reply: &EndpointReply) -> (&str, Outcome) {
    let refused = reply.result.as_ref().expect_err("a refusal");
    (refused.code.as_str(), refused.outcome)
}

// #399: the rail that retires was no endpoint like the others.
#[tokio::test]
async fn describe_is_public_on_every_rail_and_pins_what_the_endpoint_publishes() {
    let stage = Stage::start().await;
    for rail in ["ep.one", "ep.all", "ep.inst", "ep.v1.one"] {
        let subject = stage.subject(rail, "describe", "", &stage.nonce());
        let body = Stage::describe_body().to_string();
        let reply = stage.send(&stage.requester, &subject, body.into_bytes()).await;
        assert_eq!(reply.id.as_str(), "d1");
        assert_eq!(reply.result.unwrap().unwrap(), stage.contract.descriptor().to_value(), "{rail}");
    }
    assert_eq!(stage.barrier.runs(), 0);
}

#[tokio::test]
async fn a_retirement_is_answered_on_the_rail_that_it_came_in_on() {
    let stage = Stage::start().await;
    stage.barrier.ends(Ok(RetirementReport {
        evicted: vec![principal("bob"), principal("bob_helper")],
        ..RetirementReport::default()
    }));
    let (exact, handle) = (stage.exact(), stage.exact().replace("exact", "handle"));
    let mut runs = 0;
    for rail in ["ep.one", "ep.all", "ep.inst", "ep.v1.one"] {
        for target in [&exact, &handle] {
            let subject = stage.subject(rail, "retire-lifecycle", target, &stage.nonce());
            let body = stage.body().to_string().into_bytes();
            let reply = stage.send(&stage.requester, &subject, body).await;
            runs += 1;
            let evicted = [format!("{OWNER}.bob"), format!("{OWNER}.bob_helper")];
            let evicted = evicted.each_ref().map(String::as_str);
            assert_eq!(reply.result.unwrap().unwrap(), stage.retired(&evicted), "{subject}");
            assert_eq!(stage.barrier.runs(), runs);
        }
    }
}

#[tokio::test]
async fn every_refusal_of_the_rail_is_a_no_op_with_its_code() {
    let stage = Stage::start().await;
    let world = &stage.world;
    let (records, auth) = (world.records.tail().await.unwrap(), world.auth.tail().await.unwrap());
    let with = |pointer: &str, value: Value| {
        let mut body = stage.body();
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        body.pointer_mut(parent).unwrap()[member] = value;
        body
    };
    for (body, code) in [
        (json!({ "op": "retire", "args": {} }), EpCode::UnsupportedVersion),
        (with("/v", json!(2)), EpCode::UnsupportedVersion),
        (with("/op/command", json!("describe")), EpCode::OpMismatch),
        (with("/target/actor", json!("eve")), EpCode::TargetMismatch),
        (with("/from/id", json!(format!("{OWNER}.eve"))), EpCode::SenderMismatch),
        (with("/goalId", json!("g1")), EpCode::BadRequest),
        (with("/op/inputDigest", json!(stage.contract.output_digest())), EpCode::ContractMismatch),
        (with("/args/force", json!(true)), EpCode::BadRequest),
        (with("/args/opId", json!(op())), EpCode::PermissionDenied),
        (with("/args/serveInstanceId", json!(uid())), EpCode::FailedPrecondition),
        (with("/args/serveEpoch", json!(SERVE_EPOCH - 1)), EpCode::Expired),
    ] {
        let reply = stage.ask(&body).await;
        assert_eq!(error(&reply), (code.as_str(), Outcome::NotExecuted), "{body}");
    }
    assert_eq!(stage.world.records.tail().await.unwrap(), records);
    assert_eq!(stage.world.auth.tail().await.unwrap(), auth);

    let now = |code: EpCode| (code.as_str(), Outcome::NotExecuted);
    stage.plant_serving_gate("retired", SERVE_EPOCH).await;
    assert_eq!(error(&stage.ask(&stage.body()).await), now(EpCode::FailedPrecondition));
    world.put(&world.auth, &format!("epgate.manager.{}", stage.manager), "{garbled").await;
    assert_eq!(error(&stage.ask(&stage.body()).await), now(EpCode::Unavailable));
    world.delete(&world.auth, &format!("epgate.manager.{}", stage.manager)).await;
    assert_eq!(error(&stage.ask(&stage.body()).await), now(EpCode::Unavailable));
    stage.plant_serving_gate("open", SERVE_EPOCH).await;

    world.plant_gate(&stage.target, "frozen", "takeover").await;
    let reply = stage.ask(&stage.body()).await;
    assert_eq!(error(&reply), now(EpCode::Conflict));
    let detail = &reply.result.unwrap_err().details[0];
    assert_eq!((&detail["blockedOp"], &detail["opId"]), (&json!("takeover"), &json!(op())));
    world.plant_gate(&stage.target, "open", "").await;

    world.plant_head("bob", &uid(), "active", "").await;
    assert_eq!(error(&stage.ask(&stage.body()).await), now(EpCode::Expired));
    world.plant_head("bob", &uid(), "retired", "").await;
    assert_eq!(error(&stage.ask(&stage.body()).await), now(EpCode::Expired));
    assert_eq!(stage.barrier.runs(), 0);
}

#[tokio::test]
async fn a_foreign_principal_and_a_target_that_was_never_activated_are_refused() {
    let stage = Stage::start().await;
    let row =
        stage.world.text(&stage.world.auth, &format!("epgate.manager.{}", stage.manager)).await.unwrap();
    let key = format!("epgate.manager.{}", stage.manager);
    stage.world.put(&stage.world.auth, &key, &row.replace(".serve\"", ".other\"")).await;
    assert_eq!(error(&stage.ask(&stage.body()).await), ("permission-denied", Outcome::NotExecuted));
    stage.world.put(&stage.world.auth, &key, &row).await;

    let subject = stage.subject(
        "ep.one",
        "retire-lifecycle",
        &stage.exact().replace(".bob.", ".carol."),
        &stage.nonce(),
    );
    let mut body = stage.body();
    body["target"]["actor"] = "carol".into();
    let reply = stage.send(&stage.requester, &subject, body.to_string().into_bytes()).await;
    assert_eq!(error(&reply), ("failed-precondition", Outcome::NotExecuted));

    for target in ["", "self", &format!("owner.{OWNER}")] {
        let subject = stage.subject("ep.one", "retire-lifecycle", target, &stage.nonce());
        let mut body = stage.body();
        if !target.starts_with("owner") {
            body.as_object_mut().unwrap().remove("target");
        }
        let reply = stage.send(&stage.requester, &subject, body.to_string().into_bytes()).await;
        assert_eq!(error(&reply), ("failed-precondition", Outcome::NotExecuted), "{target:?}");
    }
    assert_eq!(stage.barrier.runs(), 0);
}

#[tokio::test]
async fn a_target_that_is_retired_is_success_without_a_barrier() {
    let stage = Stage::start().await;
    stage.world.plant_head("bob", &stage.target, "retired", "").await;
    let reply = stage.ask(&stage.body()).await;
    assert_eq!(reply.result.unwrap().unwrap(), stage.retired(&[]));
    assert_eq!(stage.barrier.runs(), 0);
}

#[tokio::test]
async fn two_requests_at_once_share_one_barrier() {
    let stage = Stage::start().await;
    stage.barrier_retires_the_head();
    stage.barrier.hold();
    let (first, second) = (stage.body(), stage.body());
    let both = async { tokio::join!(stage.ask(&first), stage.ask(&second)) };
    let release = async {
        let op = OpId::managed_retirement(&stage.target);
        eventually("both wait for it", async || stage.retirements.askers(&op) == 2).await;
        stage.barrier.release();
    };
    let ((one, two), ()) = tokio::join!(both, release);
    for reply in [one, two] {
        assert_eq!(reply.result.unwrap().unwrap(), stage.retired(&[]));
    }
    assert_eq!(stage.barrier.runs(), 1);
}

#[tokio::test]
async fn a_deadline_that_passes_is_unknown_and_asking_again_joins() {
    let stage = Stage::start().await;
    stage.barrier.hold();
    let mut hurried = stage.body();
    hurried["deadlineMs"] = 300.into();
    let reply = stage.ask(&hurried).await;
    assert_eq!(error(&reply), ("deadline-exceeded", Outcome::Unknown));
    let patient = stage.body();
    let again = async {
        let mut asked = std::pin::pin!(stage.ask(&patient));
        tokio::select! {
            _ = &mut asked => panic!("the barrier is held"),
            reply = stage.ask(&hurried) => assert_eq!(error(&reply), ("deadline-exceeded", Outcome::Unknown)),
        }
        stage.barrier.release();
        asked.await
    };
    assert_eq!(again.await.result.unwrap().unwrap(), stage.retired(&[]));
    assert_eq!(stage.barrier.runs(), 1, "the barrier that was begun is the one that ended");
}

#[tokio::test]
async fn a_barrier_that_fails_says_whether_it_had_begun() {
    let stage = Stage::start().await;
    for (began, outcome) in [(false, Outcome::NotExecuted), (true, Outcome::Unknown)] {
        stage.barrier.ends(Err(RetirementFailure { error: EpError::unavailable("not gone"), began }));
        let reply = stage.ask(&stage.body()).await;
        assert_eq!(error(&reply), ("unavailable", outcome));
    }
    stage.barrier.ends(Ok(RetirementReport::default()));
    assert!(stage.ask(&stage.body()).await.result.is_ok(), "a failed flight is not joined");
    assert_eq!(stage.barrier.runs(), 3);
}

#[tokio::test]
async fn a_request_that_is_bound_elsewhere_is_told_who_serves() {
    let stage = Stage::start().await;
    let other = InstanceId::mint(&SystemEntropy);
    for (instance, epoch, code) in
        [(&other, EPOCH, "failed-precondition"), (&stage.auth.instance, EPOCH + 1, "expired")]
    {
        let mut body = stage.body();
        body["bind"] = json!({ "instanceId": instance, "epoch": epoch });
        // The fence goes before the arguments.
        body["args"] = Value::Null;
        let reply = stage.ask(&body).await;
        assert_eq!(error(&reply), (code, Outcome::NotExecuted));
        let detail = &reply.result.unwrap_err().details[0];
        assert_eq!(detail["kind"], "ai.cotal.ep.bind-refused");
        assert_eq!(detail["servedBy"], json!({ "instanceId": stage.auth.instance, "epoch": EPOCH }));
    }
    let mut body = stage.body();
    body["bind"] = json!({ "instanceId": stage.auth.instance, "epoch": EPOCH });
    assert!(stage.ask(&body).await.result.is_ok());
}

#[tokio::test]
async fn a_cast_is_handled_and_not_answered() {
    let stage = Stage::start().await;
    let nonce = stage.nonce();
    let subject = stage.subject("ep.one", "retire-lifecycle", &stage.exact(), &nonce);
    let all = format!("cotal.demo.ep.reply.*.*.*.{OWNER}.serve.{}.*", stage.caller_uid);
    let mut answers = stage.requester.subscribe(&all, None).await.unwrap();
    let mut body = stage.body();
    body["replyExpected"] = false.into();
    stage.requester.publish(&subject, &[], body.to_string().into()).await.unwrap();
    stage.barrier.begun.notified().await;
    // Of the two the second alone is answered.
    let describe = stage.subject("ep.one", "describe", "", &stage.nonce());
    stage.requester.publish(&describe, &[], Stage::describe_body().to_string().into()).await.unwrap();
    let first = tokio::time::timeout(WAIT, answers.next()).await.unwrap().unwrap();
    assert_eq!(EndpointReply::parse(&first.payload).unwrap().id.as_str(), "d1");
}

#[tokio::test]
async fn more_retirements_than_may_be_handled_are_refused_and_describe_still_answers() {
    let stage = Stage::start().await;
    stage.barrier_retires_the_head();
    stage.barrier.hold();
    let body = stage.body();
    let waiting: Vec<_> = (0..64).map(|_| stage.ask(&body)).collect();
    let crowd = futures::future::join_all(waiting);
    let one_more = async {
        let op = OpId::managed_retirement(&stage.target);
        eventually("all of them wait for it", async || stage.retirements.askers(&op) == 64).await;
        let reply = stage.ask(&stage.body()).await;
        assert_eq!(error(&reply), ("resource-exhausted", Outcome::NotExecuted));
        let describe = stage.subject("ep.one", "describe", "", &stage.nonce());
        let reply =
            stage.send(&stage.requester, &describe, Stage::describe_body().to_string().into_bytes()).await;
        assert!(reply.result.is_ok());
        stage.barrier.release();
    };
    let (answers, ()) = tokio::join!(crowd, one_more);
    assert!(answers.iter().all(|reply| reply.result.is_ok()));
    assert_eq!(stage.barrier.runs(), 1);
}

#[tokio::test]
async fn a_closed_rail_hears_nothing_and_leaves_no_connection() {
    let stage = Stage::start().await;
    stage.rail.close().await.unwrap();
    stage.rail.close().await.unwrap();
    let heard =
        stage.world.anything.request("cotal.demo.ep.one.auth.describe.x", &[], "{}".into(), WAIT).await;
    assert_eq!(heard.unwrap_err().code, EpCode::Unavailable, "nobody serves it");
    let owned = stage.world.custody.connections();
    assert!(owned.iter().filter(|owned| owned.label == "cotal:auth-admin:demo").all(|owned| owned.ended));
}

#[tokio::test]
async fn what_no_subject_explains_is_not_answered() {
    let stage = Stage::start().await;
    let all = "cotal.demo.ep.reply.>".to_owned();
    let mut answers = stage.world.anything.subscribe(&all, None).await.unwrap();
    stage.world.anything.flush().await.unwrap();
    for subject in [
        format!("cotal.demo.ep.one.auth.retire-lifecycle.exact.{OWNER}.bob"),
        "cotal.demo.ep.one.auth.retire-lifecycle.x".to_owned(),
        "cotal.demo.ep.one.auth.describe.x".to_owned(),
    ] {
        stage.world.anything.publish(&subject, &[], stage.body().to_string().into()).await.unwrap();
    }
    let describe = stage.subject("ep.one", "describe", "", &stage.nonce());
    stage.world.anything.publish(&describe, &[], Stage::describe_body().to_string().into()).await.unwrap();
    let first = tokio::time::timeout(WAIT, answers.next()).await.unwrap().unwrap();
    assert_eq!(EndpointReply::parse(&first.payload).unwrap().id.as_str(), "d1");
    assert_eq!(stage.barrier.runs(), 0);
}
