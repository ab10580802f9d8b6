//! The terminal retirement barrier over a real broker (contract 07 §6, 02 §3.11).

use std::{collections::BTreeSet, sync::Arc};

use cotal_authority::{
    barrier::BarrierDeps,
    credential::StagedCredential,
    failpoint::Failpoint,
    retire::{resume_retirement, retire},
    retirement::{RetirementFailure, RetirementReport},
    root_credential::ensure_root_credential,
    takeover::take_over,
};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    CredentialId, EpCode, LifecycleUid, Names, OpDuty, OpId, UnixMillis, rows::CredentialRow,
    rows::SourceMember,
};

use crate::{
    harness::{OWNER, code, principal, uid},
    rig::{Rig, an_op, cut_off_after_each, held_by, lose_each_answer},
};

/// Intent, frozen gate, retiring head, revoked row, frontier, retired gate, retired head.
const WRITES: usize = 7;
/// What retiring an idle lifecycle with one credential may cost.
const MOST_ROUND_TRIPS: u64 = 25;

async fn end(
    deps: &BarrierDeps,
    op: &OpId,
    actor: &str,
    uid: &LifecycleUid,
) -> Result<RetirementReport, RetirementFailure> {
    retire(deps, op, &principal(actor), uid).await
}

/// The code of a refusal, and whether the barrier may have begun.
fn refused(outcome: Result<RetirementReport, RetirementFailure>) -> (EpCode, bool) {
    let failure = outcome.unwrap_err();
    (failure.error.code, failure.began)
}

fn garbled(outcome: Result<RetirementReport, RetirementFailure>, key: &str) -> bool {
    let failure = outcome.unwrap_err();
    assert_eq!(failure.error.code, EpCode::Internal, "{}", failure.error);
    assert!(failure.error.message.contains(&format!("{key}: ")), "{}", failure.error);
    failure.began
}

fn streams() -> [String; 4] {
    Names::new(&cotal_wire::Space::parse("demo").unwrap().token()).frontier_streams()
}

fn intent(actor: &str, uid: &LifecycleUid, generation: u64) -> String {
    let streams = streams().map(|stream| format!("\"{stream}\"")).join(",");
    format!(
        "{{\"kind\":\"retirement\",\"lifecycleUid\":\"{uid}\",\"owner\":\"{OWNER}\",\"actor\":\"{actor}\",\
         \"fromGeneration\":{generation},\"frontierStreams\":[{streams}]}}"
    )
}

fn frontier(uid: &LifecycleUid, op: &OpId) -> String {
    format!("{{\"lifecycleUid\":\"{uid}\",\"opId\":\"{op}\",\"streams\":{{\"EPF_demo\":7}}}}")
}

/// The state that a finished retirement leaves.
async fn assert_retired(rig: &Rig, op: &OpId, actor: &str, uid: &LifecycleUid) {
    assert_retired_at(rig, op, actor, uid, 1).await;
}

/// As [`assert_retired`], of an incarnation whose gate was at this generation.
async fn assert_retired_at(rig: &Rig, op: &OpId, actor: &str, uid: &LifecycleUid, generation: u64) {
    let (gate, head) = (rig.gate(uid).await, rig.head(actor).await);
    assert_eq!(gate["state"], "retired");
    assert_eq!(gate["generation"], generation, "a retirement never reopens");
    assert_eq!(gate["op"], serde_json::json!({"opId": op.as_str(), "kind": "retirement"}));
    assert_eq!(head["state"], "retired");
    assert_eq!(head["lifecycleUid"], uid.as_str());
    assert!(head.get("op").is_none());
    assert_eq!(rig.world.active_rows(uid).await, 0);
    let record = rig.world.json(&rig.world.records, &format!("frontier.{uid}")).await;
    assert_eq!((&record["lifecycleUid"], &record["opId"]), (&uid.as_str().into(), &op.as_str().into()));
}

fn repairs(op: &OpId) -> Vec<String> {
    let mut keys: Vec<_> = OpDuty::REPAIRS.map(|duty| duty.principal(op).key()).into();
    keys.sort();
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_lifecycle_ends_phase_by_phase_and_within_its_round_trips() {
    let rig = Rig::start().await;
    let (uid, op) = (uid(), an_op('r'));
    rig.plant("alice", &uid).await;
    let journal = Failpoint::journal();
    let deps = rig.watched(&journal).await;
    let before = deps.stores.round_trips();

    let report = end(&deps, &op, "alice", &uid).await.unwrap();
    let took = deps.stores.round_trips() - before;
    println!("an idle lifecycle with one credential is retired in {took} durable round trips");
    assert!(took <= MOST_ROUND_TRIPS, "{took}");
    assert_eq!((report.revoked_rows, &report.evicted), (1, &vec![principal("alice")]));
    assert!(report.drained_endpoints.is_empty() && report.cleaned.is_empty());
    assert!(report.frontiers.keys().eq(BTreeSet::from(streams()).iter()), "{:?}", report.frontiers);
    assert!(report.frontiers["KV_cotal_records_demo"] > 0);
    assert_retired(&rig, &op, "alice", &uid).await;
    let (gate, head) = (format!("gate.{uid}"), format!("lifecycle.{OWNER}.alice"));
    let writes = [
        format!("stage.{op}"),
        gate.clone(),
        head.clone(),
        format!("cred.{uid}.c1"),
        format!("frontier.{uid}"),
        gate,
        head,
    ];
    assert_eq!(journal.landed(), writes);
    assert_eq!(rig.evictor.asked(), [vec![format!("{OWNER}.alice")], repairs(&op)]);
    let stored = rig.world.text(&rig.world.auth, &format!("stage.{op}")).await.unwrap();
    assert_eq!(stored, intent("alice", &uid, 1));

    // Again, and by its operation alone: zeros, and what was recorded.
    let again = RetirementReport { frontiers: report.frontiers, ..RetirementReport::default() };
    assert_eq!(end(&deps, &op, "alice", &uid).await.unwrap(), again);
    assert_eq!(resume_retirement(&deps, &op).await.unwrap(), again);
    assert_eq!(journal.landed().len(), WRITES);
    assert!(rig.evictor.asked().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retirement_cut_off_between_any_two_writes_is_ended_by_its_operation() {
    let rig = Rig::start().await;
    let resume = async |deps: &BarrierDeps, op: &OpId| drop(resume_retirement(deps, op).await.unwrap());
    let check = async |op: &OpId, actor: &str, uid: &LifecycleUid| assert_retired(&rig, op, actor, uid).await;
    cut_off_after_each(&rig, WRITES, end, resume, check).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_unavailable_and_the_same_operation_ends_it() {
    let rig = Rig::start().await;
    let lossy = async |nth, deps: &BarrierDeps, op: &OpId, actor: &str, uid: &LifecycleUid| {
        let outcome = end(deps, op, actor, uid).await;
        if nth == 5 {
            // The frontier is read back, and is ours.
            outcome.unwrap();
        } else {
            assert_eq!(refused(outcome), (EpCode::Unavailable, true), "write {nth}");
            end(&rig.deps().await, op, actor, uid).await.unwrap();
        }
    };
    let check = async |op: &OpId, actor: &str, uid: &LifecycleUid| assert_retired(&rig, op, actor, uid).await;
    lose_each_answer(&rig, WRITES, lossy, check).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_retired_is_refused_before_anything_is_written() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, other, op) = (uid(), uid(), an_op('r'));
    let retiring =
        format!("\"state\":\"retiring\",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", an_op('x'));
    let not_executed = (EpCode::FailedPrecondition, false);
    rig.world.put(&rig.world.auth, &format!("gate.{uid}"), "{}").await;
    assert_eq!(refused(end(&deps, &op, "alice", &uid).await), not_executed, "no head");
    rig.plant_head("alice", &other, 1, "\"state\":\"active\"").await;
    assert_eq!(refused(end(&deps, &op, "alice", &uid).await), not_executed, "another uid");
    rig.plant_head("alice", &uid, 1, &retiring).await;
    assert_eq!(
        refused(end(&deps, &op, "alice", &uid).await),
        not_executed,
        "retiring under another operation"
    );
    rig.plant_head("alice", &uid, 1, "\"state\":\"active\"").await;
    assert!(!garbled(end(&deps, &op, "alice", &uid).await, &format!("gate.{uid}")));
    rig.plant_gate(&uid, 1, "frozen", &held_by(&an_op('x'), "takeover")).await;
    let failure = end(&deps, &op, "alice", &uid).await.unwrap_err();
    assert_eq!((failure.error.code, failure.began), not_executed, "frozen");
    assert_eq!(failure.error.details[0]["blockedOp"], "takeover");
    rig.plant_gate(&uid, 0, "open", "").await;
    assert_eq!(refused(end(&deps, &op, "alice", &uid).await), not_executed, "never open before");
    rig.world.delete(&rig.world.auth, &format!("gate.{uid}")).await;
    assert_eq!(refused(end(&deps, &op, "alice", &uid).await), not_executed, "a marker");
    assert_eq!(rig.world.text(&rig.world.auth, &format!("stage.{op}")).await, None, "no intent was written");
    assert_eq!(refused(resume_retirement(&deps, &op).await), (EpCode::NotFound, false));
    assert!(rig.evictor.asked().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_id_belongs_to_one_operation() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('r'));
    rig.plant("alice", &uid).await;
    let takeover = format!(
        "{{\"kind\":\"takeover\",\"lifecycleUid\":\"{uid}\",\"owner\":\"{OWNER}\",\"actor\":\"alice\",\"fromEpoch\":1,\
         \"fromGeneration\":1}}"
    );
    for foreign in [intent("bob", &uid, 1), intent("alice", &crate::harness::uid(), 1), takeover] {
        rig.plant_intent(&op, &foreign).await;
        assert_eq!(
            refused(end(&deps, &op, "alice", &uid).await),
            (EpCode::PermissionDenied, false),
            "{foreign}"
        );
    }
    for bad in ["{}".to_owned(), intent("alice", &uid, 1).replace("EPF_demo", "EPF_other")] {
        rig.plant_intent(&op, &bad).await;
        assert!(!garbled(end(&deps, &op, "alice", &uid).await, &format!("stage.{op}")));
    }
    rig.world.delete(&rig.world.auth, &format!("stage.{op}")).await;
    assert_eq!(
        refused(end(&deps, &op, "alice", &uid).await),
        (EpCode::FailedPrecondition, false),
        "a marker"
    );
    assert_eq!(rig.gate(&uid).await["state"], "open");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_captured_retirement_goes_on_only_where_the_gate_and_the_head_let_it() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op, other) = (uid(), an_op('r'), an_op('x'));
    let active = "\"state\":\"active\"".to_owned();
    let retiring =
        |by: &OpId| format!("\"state\":\"retiring\",\"op\":{{\"opId\":\"{by}\",\"kind\":\"retirement\"}}");
    rig.plant_intent(&op, &intent("alice", &uid, 5)).await;
    rig.plant_head("alice", &uid, 1, &active).await;
    assert_eq!(refused(resume_retirement(&deps, &op).await), (EpCode::Internal, true), "the gate vanished");
    for (generation, state, held, head, want) in [
        (5, "frozen", held_by(&other, "retirement"), &active, EpCode::FailedPrecondition),
        (5, "frozen", held_by(&op, "takeover"), &active, EpCode::FailedPrecondition),
        (5, "retired", held_by(&other, "retirement"), &active, EpCode::PermissionDenied),
        (4, "open", String::new(), &active, EpCode::Conflict),
        (5, "open", String::new(), &retiring(&op), EpCode::Conflict),
        (5, "frozen", held_by(&op, "retirement"), &retiring(&other), EpCode::PermissionDenied),
        (
            5,
            "frozen",
            held_by(&op, "retirement"),
            &"\"state\":\"retired\"".to_owned(),
            EpCode::FailedPrecondition,
        ),
        (5, "retired", held_by(&op, "retirement"), &retiring(&op), EpCode::Internal),
    ] {
        rig.plant_gate(&uid, generation, state, &held).await;
        rig.plant_head("alice", &uid, 1, head).await;
        let before = (rig.gate(&uid).await, rig.head("alice").await);
        let failure = resume_retirement(&deps, &op).await.unwrap_err();
        assert_eq!(failure.error.code, want, "gate {state} at {generation}: {}", failure.error);
        assert_eq!((rig.gate(&uid).await, rig.head("alice").await), before, "nothing was moved");
    }
    assert!(rig.evictor.asked().is_empty());
}

/// The operation of a lifecycle's retirement is one for good, and so is its intent.
#[tokio::test(flavor = "multi_thread")]
async fn a_retirement_that_was_captured_before_a_takeover_ends_what_stands_now() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('r'));
    rig.plant("alice", &uid).await;
    rig.plant_intent(&op, &intent("alice", &uid, 1)).await;
    take_over(&deps, &an_op('t'), &principal("alice"), &uid).await.unwrap();
    assert_eq!(rig.gate(&uid).await["generation"], 2);
    rig.plant_root("alice", &uid, "c2").await;

    let report = end(&deps, &op, "alice", &uid).await.unwrap();
    assert_eq!(report.revoked_rows, 1, "the root of the new epoch");
    assert_retired_at(&rig, &op, "alice", &uid, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_final_gate_is_finished_once_its_frontier_is_proved() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('r'));
    let key = format!("frontier.{uid}");
    rig.plant_intent(&op, &intent("alice", &uid, 1)).await;
    rig.plant_gate(&uid, 1, "retired", &held_by(&op, "retirement")).await;
    for foreign in [frontier(&uid, &an_op('x')), frontier(&crate::harness::uid(), &op), "{}".to_owned()] {
        rig.world.put(&rig.world.records, &key, &foreign).await;
        assert_eq!(refused(resume_retirement(&deps, &op).await).0, EpCode::Internal, "{foreign}");
    }
    rig.world.put(&rig.world.records, &key, &frontier(&uid, &op)).await;
    assert_eq!(refused(resume_retirement(&deps, &op).await).0, EpCode::Internal, "no head");
    rig.plant_head("alice", &uid, 1, "\"state\":\"active\"").await;
    assert_eq!(refused(resume_retirement(&deps, &op).await).0, EpCode::PermissionDenied, "not retiring");
    let recorded = RetirementReport {
        frontiers: [("EPF_demo".to_owned(), 7)].into_iter().collect(),
        ..RetirementReport::default()
    };
    // A successor in its place.
    rig.plant_head("alice", &crate::harness::uid(), 1, "\"state\":\"active\"").await;
    assert_eq!(resume_retirement(&deps, &op).await.unwrap(), recorded);
    assert_eq!(rig.head("alice").await["state"], "active", "the successor is not touched");
    let retiring = format!("\"state\":\"retiring\",\"op\":{{\"opId\":\"{op}\",\"kind\":\"retirement\"}}");
    rig.plant_head("alice", &uid, 1, &retiring).await;
    assert_eq!(resume_retirement(&deps, &op).await.unwrap(), recorded);
    assert_eq!(rig.head("alice").await["state"], "retired");
    assert!(rig.evictor.asked().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frontier_that_is_not_this_operations_keeps_the_gate_frozen() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('r'));
    rig.plant("alice", &uid).await;
    let key = format!("frontier.{uid}");
    for (planted, want) in [
        (frontier(&uid, &an_op('x')), EpCode::PermissionDenied),
        (frontier(&crate::harness::uid(), &op), EpCode::PermissionDenied),
        ("{}".to_owned(), EpCode::Internal),
    ] {
        rig.world.put(&rig.world.records, &key, &planted).await;
        assert_eq!(refused(end(&deps, &op, "alice", &uid).await), (want, true), "{planted}");
        assert_eq!(rig.gate(&uid).await["state"], "frozen");
        assert_eq!(rig.head("alice").await["state"], "retiring");
    }
    // Ours is used as it stands.
    rig.world.put(&rig.world.records, &key, &frontier(&uid, &op)).await;
    assert_eq!(end(&deps, &op, "alice", &uid).await.unwrap().frontiers["EPF_demo"], 7);
    assert_retired(&rig, &op, "alice", &uid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frontier_stream_that_cannot_be_read_keeps_the_gate_frozen() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('r'));
    rig.plant("alice", &uid).await;
    rig.world.remove_stream("EPW_demo").await;
    assert_eq!(refused(end(&deps, &op, "alice", &uid).await), (EpCode::FailedPrecondition, true));
    assert_eq!(rig.gate(&uid).await["state"], "frozen");
    assert_eq!(rig.world.text(&rig.world.records, &format!("frontier.{uid}")).await, None);
    cotal_broker::provision::provision_space(&rig.world.anything, &rig.world.space).await.unwrap();
    end(&deps, &op, "alice", &uid).await.unwrap();
    assert_retired(&rig, &op, "alice", &uid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unverified_eviction_or_repair_leaves_everything_behind_the_frozen_gate() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('r'));
    rig.plant("alice", &uid).await;
    let alice = format!("{OWNER}.alice");
    let stubborn = repairs(&op).pop().unwrap();
    for cannot in [alice.as_str(), stubborn.as_str()] {
        rig.evictor.cannot_evict(&[cannot]);
        assert_eq!(refused(end(&deps, &op, "alice", &uid).await), (EpCode::Unavailable, true), "{cannot}");
        assert_eq!(rig.gate(&uid).await["state"], "frozen");
        assert_eq!(rig.head("alice").await["state"], "retiring");
        assert_eq!(rig.credential(&uid, "c1").await["state"], "revoked");
        assert_eq!(rig.world.text(&rig.world.records, &format!("frontier.{uid}")).await, None);
    }
    rig.evictor.cannot_evict(&[]);
    let report = resume_retirement(&deps, &op).await.unwrap();
    assert_eq!(report.revoked_rows, 0, "it was revoked by the first run");
    assert_retired(&rig, &op, "alice", &uid).await;
}

/// Plants an obligation that nobody has decided yet.
async fn plant_provisional(rig: &Rig, uid: &LifecycleUid, endpoint: &str, work: &str) -> String {
    let key = format!("oblig.{uid}.{endpoint}.local.caller.{}.{uid}", "c".repeat(26));
    let row =
        format!("{{\"state\":\"provisional\",\"opId\":\"{}\",\"mappingRevision\":1,{work}}}", an_op('o'));
    rig.world.put(&rig.world.records, &key, &row).await;
    key
}

fn fact() -> String {
    format!(
        "\"decision\":\"epf\",\"fingerprint\":\"sha256:{}\",\"sourceSeq\":1,\"route\":\"effects\"",
        "0".repeat(64)
    )
}

fn commit() -> String {
    format!(
        "\"decision\":\"self\",\"commitKey\":\"goal.manager.local.caller.{}.i1.spec\",\"commitBaseRevision\":0,\
         \"commitValue\":{{\"enc\":\"b64u\",\"bytes\":\"e30\"}},\"commitDigest\":\"sha256:{}\"",
        "c".repeat(26),
        "0".repeat(64)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_owed_is_settled_behind_the_gate_and_cut_off_anywhere_still_ends() {
    let rig = Rig::start().await;
    let mut uncut = Vec::new();
    // The first round is not cut, and says how many writes there are.
    for nth in 0.. {
        let (actor, uid, op) = (format!("owes{nth}"), uid(), OpId::mint(&SystemEntropy));
        rig.plant(&actor, &uid).await;
        let rows = [
            plant_provisional(&rig, &uid, "com_x", &fact()).await,
            plant_provisional(&rig, &uid, "manager", &commit()).await,
        ];
        let cut = if nth == 0 { Failpoint::journal() } else { Failpoint::stop_after(nth) };
        let deps = rig.watched(&cut).await;
        let rest = Failpoint::journal();
        tokio::select! {
            done = end(&deps, &op, &actor, &uid) => {
                assert_eq!(nth, 0, "not held after write {nth}: {done:?}");
                let report = done.unwrap();
                assert_eq!(report.drained_endpoints, ["com_x", "manager"]);
                assert!(report.cleaned.is_empty());
                uncut = cut.landed();
            }
            () = cut.reached() => drop(resume_retirement(&rig.watched(&rest).await, &op).await.unwrap()),
        }
        assert_retired(&rig, &op, &actor, &uid).await;
        for key in rows {
            assert_eq!(
                rig.world.json(&rig.world.records, &key).await["state"],
                "rejected",
                "after write {nth}"
            );
        }
        let written = [cut.landed(), rest.landed()].concat();
        assert_eq!(written.len(), uncut.len(), "after write {nth}: {written:?}");
        if nth == uncut.len() {
            break;
        }
    }
    let settled = uncut.iter().position(|key| key.contains("oblig.")).unwrap();
    assert!(uncut[..settled].iter().any(|key| key.starts_with("cred.")), "deny-new came first: {uncut:?}");
    assert!(
        uncut[settled..].iter().any(|key| key.starts_with("frontier.")),
        "the frontier came after: {uncut:?}"
    );
    assert_eq!(uncut.len(), WRITES + 3, "the rejection and both rows: {uncut:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_obligation_that_cannot_be_read_or_settled_keeps_the_gate_frozen() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, op) = (uid(), an_op('r'));
    rig.plant("alice", &uid).await;
    let key = plant_provisional(&rig, &uid, "com_x", &fact()).await;
    rig.world.put(&rig.world.records, &key, "{}").await;
    assert!(garbled(end(&deps, &op, "alice", &uid).await, &key), "the barrier had begun");
    rig.world.delete(&rig.world.records, &key).await;
    assert_eq!(refused(end(&deps, &op, "alice", &uid).await), (EpCode::FailedPrecondition, true), "a marker");
    assert_eq!(rig.gate(&uid).await["state"], "frozen");
    assert_eq!(rig.head("alice").await["state"], "retiring");
    plant_provisional(&rig, &uid, "com_x", &fact()).await;
    end(&deps, &op, "alice", &uid).await.unwrap();
    assert_retired(&rig, &op, "alice", &uid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_is_free_only_after_the_last_write() {
    let rig = Rig::start().await;
    let stores = rig.world.stores().await;
    let (old, op) = (uid(), an_op('r'));
    rig.plant("alice", &old).await;
    let ensure = async |uid: &LifecycleUid| {
        ensure_root_credential(&stores, &principal("alice"), uid, "m", &SystemClock, &SystemEntropy).await
    };
    let held = Failpoint::stop_after(WRITES - 1);
    let deps = rig.watched(&held).await;
    let running = {
        let (op, old) = (op.clone(), old.clone());
        tokio::spawn(async move { end(&deps, &op, "alice", &old).await })
    };
    held.reached().await;
    let next = uid();
    assert_eq!(code(ensure(&next).await), EpCode::FailedPrecondition, "the gate is final, the head is not");
    held.release();
    running.await.unwrap().unwrap();
    ensure(&next).await.unwrap();
    assert_eq!(code(ensure(&old).await), EpCode::AlreadyExists, "the successor stands");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_takeover_and_a_retirement_one_holds_the_gate() {
    let rig = Rig::start().await;
    for first in ["takeover", "retirement"] {
        let (uid, takeover, retirement) = (uid(), OpId::mint(&SystemEntropy), OpId::mint(&SystemEntropy));
        rig.plant(first, &uid).await;
        let held = Failpoint::stop_after(2);
        let deps = rig.watched(&held).await;
        let running = {
            let (takeover, retirement, uid) = (takeover.clone(), retirement.clone(), uid.clone());
            tokio::spawn(async move {
                match first {
                    "takeover" => take_over(&deps, &takeover, &principal(first), &uid).await.map(drop),
                    _ => {
                        end(&deps, &retirement, first, &uid).await.map(drop).map_err(|failure| failure.error)
                    }
                }
            })
        };
        held.reached().await;
        let deps = rig.deps().await;
        let refusal = match first {
            "takeover" => {
                end(&deps, &retirement, first, &uid).await.map(drop).map_err(|failure| failure.error)
            }
            _ => take_over(&deps, &takeover, &principal(first), &uid).await.map(drop),
        };
        let refusal = refusal.unwrap_err();
        assert_eq!(
            (refusal.code, &refusal.details[0]["blockedOp"]),
            (EpCode::FailedPrecondition, &first.into())
        );
        held.release();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mint_that_meets_the_freeze_is_not_released() {
    let rig = Rig::start().await;
    let (uid, op) = (uid(), an_op('r'));
    rig.plant("alice", &uid).await;
    let minter = rig.world.stores().await;
    let row = CredentialRow::agent(
        &uid,
        &CredentialId::parse("late").unwrap(),
        &principal("alice"),
        vec![SourceMember::Root],
        UnixMillis(9_000_000_000_000),
    );
    let staged = StagedCredential::stage(&minter, row.unwrap()).await.unwrap();
    let report = end(&rig.deps().await, &op, "alice", &uid).await.unwrap();
    assert_eq!(report.revoked_rows, 2, "the staged row too");
    assert_eq!(code(staged.finalize().await), EpCode::PermissionDenied);
    assert_retired(&rig, &op, "alice", &uid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exchanges_that_race_a_retirement_leave_no_active_root() {
    let rig = Arc::new(Rig::start().await);
    for round in 0..6 {
        let (actor, uid, op) = (format!("race{round}"), uid(), OpId::mint(&SystemEntropy));
        let stores = rig.world.stores().await;
        ensure_root_credential(&stores, &principal(&actor), &uid, "m", &SystemClock, &SystemEntropy)
            .await
            .unwrap();
        let mut exchanges = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (rig, actor, uid) = (rig.clone(), actor.clone(), uid.clone());
            exchanges.spawn(async move {
                let stores = rig.world.stores().await;
                ensure_root_credential(&stores, &principal(&actor), &uid, "m", &SystemClock, &SystemEntropy)
                    .await
            });
        }
        end(&rig.deps().await, &op, &actor, &uid).await.unwrap();
        exchanges.join_all().await;
        assert_retired(&rig, &op, &actor, &uid).await;
    }
}
