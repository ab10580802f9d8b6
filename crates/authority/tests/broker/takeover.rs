//! The takeover barrier over a real broker (contract 07 §5, 02 §3.10).

use std::sync::Arc;

use cotal_authority::{
    barrier::BarrierDeps,
    failpoint::Failpoint,
    takeover::{TakeoverReport, resume_takeover, take_over},
};
use cotal_wire::{EpCode, EpError, LifecycleUid, Names, OpId};

use crate::{
    harness::{OWNER, assert_garbled, code, principal, uid},
    held::barrier_over,
    rig::{Rig, an_op, cut_off_after_each, held_by, lose_each_answer},
    tap::{Stop, Tap},
};

/// Intent, frozen gate, revoked row, head, open gate.
const WRITES: usize = 5;

async fn over(
    deps: &BarrierDeps,
    op: &OpId,
    actor: &str,
    uid: &LifecycleUid,
) -> Result<TakeoverReport, EpError> {
    take_over(deps, op, &principal(actor), uid).await
}

fn intent(actor: &str, uid: &LifecycleUid, epoch: u64, generation: u64) -> String {
    format!(
        "{{\"kind\":\"takeover\",\"lifecycleUid\":\"{uid}\",\"owner\":\"{OWNER}\",\"actor\":\"{actor}\",\
         \"fromEpoch\":{epoch},\"fromGeneration\":{generation}}}"
    )
}

/// The state that a finished takeover leaves.
async fn assert_taken_over(rig: &Rig, op: &OpId, actor: &str, uid: &LifecycleUid) {
    let (gate, head) = (rig.gate(uid).await, rig.head(actor).await);
    assert_eq!(gate["state"], "open");
    assert_eq!(gate["generation"], 2);
    assert!(gate.get("op").is_none());
    assert_eq!(head["state"], "active");
    assert_eq!(head["processEpoch"], 2);
    assert_eq!(head["lastTakeoverOpId"], op.as_str());
    assert!(head.get("currentCredentialId").is_none(), "the root goes with its epoch");
    assert_eq!(rig.world.active_rows(uid).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_contains_the_old_epoch_before_it_opens_the_next() {
    let rig = Rig::start().await;
    let (uid, op) = (uid(), an_op('t'));
    rig.plant("alice", &uid).await;
    rig.world.plant_credential(&uid, "c2", &format!("{OWNER}.zoe"), "\"root\"", "revoked", 9).await;
    let journal = Failpoint::journal();
    let deps = rig.watched(&journal).await;

    let report = over(&deps, &op, "alice", &uid).await.unwrap();
    let (alice, zoe) = (principal("alice"), principal("zoe"));
    let expected = TakeoverReport {
        op: op.clone(),
        lifecycle_uid: uid.clone(),
        to_epoch: 2,
        to_generation: 2,
        revoked_rows: 1,
        evicted: vec![alice, zoe],
    };
    assert_eq!(report, expected, "a row that was revoked before is not counted, but its holder goes");
    assert_taken_over(&rig, &op, "alice", &uid).await;
    let (gate, head) = (format!("gate.{uid}"), format!("lifecycle.{OWNER}.alice"));
    let writes = [format!("stage.{op}"), gate.clone(), format!("cred.{uid}.c1"), head, gate];
    assert_eq!(journal.landed(), writes);
    assert_eq!(rig.evictor.asked(), [[format!("{OWNER}.alice"), format!("{OWNER}.zoe")]]);
    let stored = rig.world.text(&rig.world.auth, &format!("stage.{op}")).await.unwrap();
    assert_eq!(stored, intent("alice", &uid, 1, 1));

    // Again, and by its operation alone: nothing is done twice.
    let again = TakeoverReport { revoked_rows: 0, evicted: Vec::new(), ..expected };
    assert_eq!(over(&deps, &op, "alice", &uid).await.unwrap(), again);
    assert_eq!(resume_takeover(&deps, &op).await.unwrap(), again);
    assert_eq!(journal.landed().len(), WRITES);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_cut_off_between_any_two_writes_is_ended_by_its_operation() {
    let rig = Rig::start().await;
    let resume = async |deps: &BarrierDeps, op: &OpId| drop(resume_takeover(deps, op).await.unwrap());
    let check =
        async |op: &OpId, actor: &str, uid: &LifecycleUid| assert_taken_over(&rig, op, actor, uid).await;
    cut_off_after_each(&rig, WRITES, over, resume, check).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_unavailable_and_the_same_operation_ends_it() {
    let rig = Rig::start().await;
    let lossy = async |nth, deps: &BarrierDeps, op: &OpId, actor: &str, uid: &LifecycleUid| {
        assert_eq!(code(over(deps, op, actor, uid).await), EpCode::Unavailable, "write {nth}");
        over(&rig.deps().await, op, actor, uid).await.unwrap();
    };
    let check =
        async |op: &OpId, actor: &str, uid: &LifecycleUid| assert_taken_over(&rig, op, actor, uid).await;
    lose_each_answer(&rig, WRITES, lossy, check).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_taken_over_is_refused_before_anything_is_written() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let retiring =
        format!("\"state\":\"retiring\",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", an_op('r'));
    let (uid, other, op) = (uid(), uid(), an_op('t'));
    // Each case mends the first fault of the case before it; the garbled gate would be `internal` if it were read first.
    rig.world.put(&rig.world.auth, &format!("gate.{uid}"), "{}").await;
    assert_eq!(code(over(&deps, &op, "alice", &uid).await), EpCode::FailedPrecondition, "no head");
    rig.plant_head("alice", &other, 1, "\"state\":\"active\"").await;
    assert_eq!(code(over(&deps, &op, "alice", &uid).await), EpCode::FailedPrecondition, "another uid");
    rig.plant_head("alice", &uid, 1, &retiring).await;
    let refusal = over(&deps, &op, "alice", &uid).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::FailedPrecondition, "retiring");
    assert_eq!(refusal.details[0]["headState"], "retiring");
    rig.plant_head("alice", &uid, 1, "\"state\":\"active\"").await;
    assert_garbled(over(&deps, &op, "alice", &uid).await, &format!("gate.{uid}"));
    rig.plant_gate(&uid, 1, "frozen", &held_by(&an_op('x'), "registration")).await;
    let refusal = over(&deps, &op, "alice", &uid).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::FailedPrecondition, "frozen");
    assert_eq!(refusal.details[0]["blockedOp"], "registration");
    rig.plant_gate(&uid, 1, "retired", &held_by(&an_op('x'), "retirement")).await;
    assert_eq!(code(over(&deps, &op, "alice", &uid).await), EpCode::FailedPrecondition, "retired");
    rig.plant_gate(&uid, 0, "open", "").await;
    assert_eq!(code(over(&deps, &op, "alice", &uid).await), EpCode::FailedPrecondition, "never open before");
    rig.world.delete(&rig.world.auth, &format!("gate.{uid}")).await;
    assert_eq!(code(over(&deps, &op, "alice", &uid).await), EpCode::FailedPrecondition, "a marker");
    assert_eq!(rig.world.text(&rig.world.auth, &format!("stage.{op}")).await, None, "no intent was written");
    assert_eq!(code(resume_takeover(&deps, &op).await), EpCode::NotFound);
    assert!(rig.evictor.asked().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_id_belongs_to_one_operation() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('t'));
    rig.plant("alice", &uid).await;
    let retirement = format!(
        "{{\"kind\":\"retirement\",\"lifecycleUid\":\"{uid}\",\"owner\":\"{OWNER}\",\"actor\":\"alice\",\
         \"fromGeneration\":1,\"frontierStreams\":[]}}"
    );
    for foreign in [intent("bob", &uid, 1, 1), intent("alice", &crate::harness::uid(), 1, 1), retirement] {
        rig.plant_intent(&op, &foreign).await;
        assert_eq!(code(over(&deps, &op, "alice", &uid).await), EpCode::PermissionDenied, "{foreign}");
    }
    rig.plant_intent(&op, "{}").await;
    assert_garbled(over(&deps, &op, "alice", &uid).await, &format!("stage.{op}"));
    rig.world.delete(&rig.world.auth, &format!("stage.{op}")).await;
    assert_eq!(code(over(&deps, &op, "alice", &uid).await), EpCode::FailedPrecondition, "a marker");
    assert_eq!(code(resume_takeover(&deps, &op).await), EpCode::FailedPrecondition);
    assert_eq!(rig.gate(&uid).await["state"], "open");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_captured_takeover_goes_on_only_where_the_gate_and_the_head_let_it() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op, other) = (uid(), an_op('t'), an_op('x'));
    let ours = format!("\"state\":\"active\",\"lastTakeoverOpId\":\"{op}\"");
    let theirs = format!("\"state\":\"active\",\"lastTakeoverOpId\":\"{other}\"");
    let active = "\"state\":\"active\"";
    rig.plant_intent(&op, &intent("alice", &uid, 3, 5)).await;
    rig.plant_head("alice", &uid, 3, active).await;
    assert_eq!(code(resume_takeover(&deps, &op).await), EpCode::Internal, "the gate vanished");
    for (generation, state, held, epoch, head, want) in [
        (5, "frozen", held_by(&other, "takeover"), 3, active, EpCode::FailedPrecondition),
        (5, "frozen", held_by(&op, "registration"), 3, active, EpCode::FailedPrecondition),
        (5, "retired", held_by(&op, "retirement"), 3, active, EpCode::FailedPrecondition),
        (6, "open", String::new(), 3, active, EpCode::Internal),
        (6, "open", String::new(), 5, ours.as_str(), EpCode::Internal),
        (6, "open", String::new(), 4, theirs.as_str(), EpCode::Conflict),
        (7, "open", String::new(), 4, ours.as_str(), EpCode::FailedPrecondition),
        (4, "open", String::new(), 3, active, EpCode::FailedPrecondition),
        (5, "open", String::new(), 4, ours.as_str(), EpCode::Conflict),
    ] {
        rig.plant_gate(&uid, generation, state, &held).await;
        rig.plant_head("alice", &uid, epoch, head).await;
        let before = rig.gate(&uid).await;
        let refusal = resume_takeover(&deps, &op).await.unwrap_err();
        assert_eq!(refusal.code, want, "gate {state} at {generation}, head at {epoch}: {refusal}");
        assert_eq!(rig.gate(&uid).await, before, "the gate was not moved");
    }
    rig.plant_gate(&uid, 6, "open", "").await;
    rig.plant_head("alice", &uid, 4, &ours).await;
    let done = resume_takeover(&deps, &op).await.unwrap();
    assert_eq!((done.to_epoch, done.to_generation, done.revoked_rows), (4, 6, 0));
    assert!(done.evicted.is_empty() && rig.evictor.asked().is_empty(), "nothing was left to do");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unverified_eviction_leaves_the_gate_frozen_and_the_epoch_unchanged() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('t'));
    rig.plant("alice", &uid).await;
    rig.evictor.cannot_evict(&[&format!("{OWNER}.alice")]);
    let refusal = over(&deps, &op, "alice", &uid).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable);
    assert!(refusal.message.contains(&format!("{OWNER}.alice")), "{refusal}");
    assert_eq!(rig.gate(&uid).await["state"], "frozen");
    assert_eq!(rig.head("alice").await["processEpoch"], 1);
    assert_eq!(rig.credential(&uid, "c1").await["state"], "revoked", "deny-new came first");

    rig.evictor.cannot_evict(&[]);
    let report = resume_takeover(&deps, &op).await.unwrap();
    assert_eq!(report.revoked_rows, 0, "it was revoked by the first run");
    assert_taken_over(&rig, &op, "alice", &uid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_family_that_cannot_be_read_whole_is_not_contained_in_part() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('t'));
    rig.plant("alice", &uid).await;
    let bad = format!("cred.{uid}.z9");
    rig.world.put(&rig.world.auth, &bad, "{}").await;
    assert_garbled(over(&deps, &op, "alice", &uid).await, &bad);
    rig.world.delete(&rig.world.auth, &bad).await;
    assert_eq!(code(over(&deps, &op, "alice", &uid).await), EpCode::FailedPrecondition);
    assert_eq!(rig.credential(&uid, "c1").await["state"], "active");
    assert_eq!(rig.gate(&uid).await["state"], "frozen");
    assert!(rig.evictor.asked().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_another_writer_took_reopens_the_gate_without_an_epoch() {
    let rig = Rig::start().await;
    let (uid, op) = (uid(), an_op('t'));
    rig.plant("alice", &uid).await;
    let held = Failpoint::stop_after(3);
    let deps = rig.watched(&held).await;
    let running = {
        let (op, uid) = (op.clone(), uid.clone());
        tokio::spawn(async move { over(&deps, &op, "alice", &uid).await })
    };
    held.reached().await;
    let theirs = format!("\"state\":\"active\",\"lastTakeoverOpId\":\"{}\"", an_op('x'));
    rig.plant_head("alice", &uid, 2, &theirs).await;
    held.release();
    assert_eq!(running.await.unwrap().unwrap_err().code, EpCode::Conflict);
    let gate = rig.gate(&uid).await;
    assert_eq!((&gate["state"], &gate["generation"]), (&"open".into(), &2.into()));
    assert_eq!(rig.head("alice").await["lastTakeoverOpId"], an_op('x').as_str(), "not ours");
}

/// A root that is stamped behind the containment is of a credential that the containment revoked: a head that kept it
/// could never be entered again.
#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_is_stamped_under_the_advance_goes_with_its_epoch() {
    let rig = Rig::start().await;
    let (uid, op) = (uid(), an_op('t'));
    rig.plant("alice", &uid).await;
    let tap = Tap::before(rig.world.server.port()).await;
    let stores = barrier_over(&rig.world, &rig.world.connector_at(tap.url())).await;
    let deps = BarrierDeps { stores, ..rig.deps().await };
    let head = Names::kv_subject(rig.world.records.name(), &format!("lifecycle.{OWNER}.alice"));
    tap.stop(&format!("PUB {head}"), Stop::Before);
    let running = {
        let (op, uid) = (op.clone(), uid.clone());
        tokio::spawn(async move { over(&deps, &op, "alice", &uid).await })
    };
    tap.reached().await;
    rig.plant_head("alice", &uid, 1, "\"state\":\"active\",\"currentCredentialId\":\"late\"").await;
    tap.release();
    running.await.unwrap().unwrap();
    assert_taken_over(&rig, &op, "alice", &uid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_takeovers_one_holds_the_gate() {
    let rig = Rig::start().await;
    let (uid, first, second) = (uid(), an_op('t'), an_op('v'));
    rig.plant("alice", &uid).await;
    let held = Failpoint::stop_after(2);
    let deps = rig.watched(&held).await;
    let running = {
        let (op, uid) = (first.clone(), uid.clone());
        tokio::spawn(async move { over(&deps, &op, "alice", &uid).await })
    };
    held.reached().await;
    let other: Arc<_> = Arc::new(rig.deps().await);
    let refusal = over(&other, &second, "alice", &uid).await.unwrap_err();
    assert_eq!(
        (refusal.code, &refusal.details[0]["blockedOp"]),
        (EpCode::FailedPrecondition, &"takeover".into())
    );
    held.release();
    running.await.unwrap().unwrap();
    assert_taken_over(&rig, &first, "alice", &uid).await;
    assert_eq!(over(&other, &second, "alice", &uid).await.unwrap().to_epoch, 3);
}
