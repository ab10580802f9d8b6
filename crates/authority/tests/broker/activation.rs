//! Activation over a real broker (contract 07 §3).

use std::collections::BTreeMap;

use crate::harness::{OWNER, World, assert_garbled, code, op, principal, uid};
use cotal_authority::{
    activation::{Resumed, activate_at_uid, activate_fresh, resume_activation},
    failpoint::Failpoint,
    head::MappingReader,
};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{EpCode, EpError, LifecycleUid, OpId};

const M: &str = "auth-service:demo";

fn head_key(actor: &str) -> String {
    format!("lifecycle.{OWNER}.{actor}")
}

async fn at_uid(world: &World, actor: &str, uid: &LifecycleUid) -> Result<(), EpError> {
    activate_at_uid(&world.stores().await, &principal(actor), uid, M, &SystemEntropy).await
}

fn counted(keys: impl IntoIterator<Item = String>) -> BTreeMap<String, usize> {
    keys.into_iter().fold(BTreeMap::new(), |mut counts, key| {
        *counts.entry(key).or_default() += 1;
        counts
    })
}

/// What an activation writes, however often it was cut off: each row once, and the gate once more to open it.
fn writes_of(actor: &str, uid: &LifecycleUid) -> BTreeMap<String, usize> {
    BTreeMap::from([(format!("uid.{uid}"), 1), (format!("gate.{uid}"), 2), (head_key(actor), 1)])
}

async fn is_activated(world: &World, actor: &str, uid: &LifecycleUid) -> bool {
    let head = world.json(&world.records, &head_key(actor)).await;
    let gate = world.text(&world.auth, &format!("gate.{uid}")).await.unwrap();
    head["lifecycleUid"] == uid.as_str()
        && head["state"] == "active"
        && gate == format!("{{\"lifecycleUid\":\"{uid}\",\"state\":\"open\",\"generation\":1}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activation_writes_reservation_gate_head_gate_and_repeats_for_free() {
    let world = World::start().await;
    let uid = uid();
    let journal = Failpoint::journal();
    let stores = world.watched(&journal).await;
    for _ in 0..2 {
        activate_at_uid(&stores, &principal("alice"), &uid, M, &SystemEntropy).await.unwrap();
        let order = [format!("uid.{uid}"), format!("gate.{uid}"), head_key("alice"), format!("gate.{uid}")];
        assert_eq!(journal.landed(), order);
    }
    assert!(is_activated(&world, "alice", &uid).await);
    assert_eq!(
        world.text(&world.records, &format!("uid.{uid}")).await.unwrap(),
        format!("{{\"owner\":\"{OWNER}\",\"actor\":\"alice\",\"mintedBy\":\"{M}\"}}")
    );
    assert_eq!(
        world.text(&world.records, &head_key("alice")).await.unwrap(),
        format!(
            "{{\"owner\":\"{OWNER}\",\"actor\":\"alice\",\"lifecycleUid\":\"{uid}\",\"managerInstance\":\"{M}\",\
             \"processEpoch\":1,\"state\":\"active\"}}"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_at_a_uid_come_in_the_contracts_order() {
    let world = World::start().await;
    let stores = world.stores().await;
    let (mine, other) = (uid(), uid());

    // An empty manager instance is refused before the head is looked at.
    world.plant_active("a", &other).await;
    let empty = activate_at_uid(&stores, &principal("a"), &mine, "", &SystemEntropy).await;
    assert_eq!(code(empty), EpCode::FailedPrecondition);
    // The head is refused before the uid is reserved.
    assert_eq!(code(at_uid(&world, "a", &mine).await), EpCode::AlreadyExists);
    let retiring = format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", op());
    world.plant_head("a", &other, "retiring", &retiring).await;
    let blocked = at_uid(&world, "a", &mine).await.unwrap_err();
    assert_eq!(blocked.code, EpCode::FailedPrecondition);
    assert_eq!(blocked.details[0]["headState"], "retiring");
    assert_eq!(world.text(&world.records, &format!("uid.{mine}")).await, None);

    // The reservation is refused before the gate.
    let burned = uid();
    world.plant_reservation("somebody", &burned).await;
    world.plant_gate(&burned, "frozen", "takeover").await;
    assert_eq!(code(at_uid(&world, "b", &burned).await), EpCode::PermissionDenied);

    // One of ours is adopted, and then the gate speaks.
    let ours = uid();
    world.plant_reservation("c", &ours).await;
    for (state, kind, wants) in [
        ("frozen", "takeover", EpCode::FailedPrecondition),
        ("frozen", "registration", EpCode::FailedPrecondition),
        ("frozen", "retirement", EpCode::FailedPrecondition),
        ("retired", "activation", EpCode::PermissionDenied),
        ("open", "", EpCode::FailedPrecondition),
    ] {
        world.plant_gate(&ours, state, kind).await;
        assert_eq!(code(at_uid(&world, "c", &ours).await), wants, "{state} {kind}");
        assert_eq!(world.text(&world.records, &head_key("c")).await, None, "no head was placed");
    }

    // A head retired at the same uid falls to its retired gate.
    world.plant_head("c", &ours, "retired", "").await;
    world.plant_gate(&ours, "retired", "retirement").await;
    assert_eq!(code(at_uid(&world, "c", &ours).await), EpCode::PermissionDenied);
    // Another uid replaces it.
    let next = uid();
    at_uid(&world, "c", &next).await.unwrap();
    assert!(is_activated(&world, "c", &next).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn markers_are_refused_and_garbled_rows_are_internal() {
    let world = World::start().await;
    let _provisioned = world.stores().await;
    let marked = uid();
    world.delete(&world.records, &head_key("head")).await;
    assert_eq!(code(at_uid(&world, "head", &marked).await), EpCode::FailedPrecondition);
    world.delete(&world.records, &format!("uid.{marked}")).await;
    assert_eq!(code(at_uid(&world, "uid", &marked).await), EpCode::FailedPrecondition);
    let gate = uid();
    world.delete(&world.auth, &format!("gate.{gate}")).await;
    assert_eq!(code(at_uid(&world, "gate", &gate).await), EpCode::FailedPrecondition);

    for garbled in ["", "{}", "not json", "[]"] {
        world.put(&world.records, &head_key("head2"), garbled).await;
        assert_garbled(at_uid(&world, "head2", &uid()).await, &format!("lifecycle.{OWNER}.head2"));
        let uid = uid();
        world.put(&world.records, &format!("uid.{uid}"), garbled).await;
        assert_garbled(at_uid(&world, "uid2", &uid).await, &format!("uid.{uid}"));
        let uid = crate::harness::uid();
        world.put(&world.auth, &format!("gate.{uid}"), garbled).await;
        assert_garbled(at_uid(&world, "gate2", &uid).await, &format!("gate.{uid}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activation_cut_off_between_any_two_writes_is_ended_by_the_next() {
    let world = World::start().await;
    for nth in 1..=4 {
        let actor = format!("cut{nth}");
        let (alice, uid) = (principal(&actor), uid());
        let cut = Failpoint::stop_after(nth);
        let stores = world.watched(&cut).await;
        tokio::select! {
            done = activate_at_uid(&stores, &alice, &uid, M, &SystemEntropy) => {
                panic!("not held after write {nth}: {done:?}")
            }
            () = cut.reached() => {}
        }
        let journal = Failpoint::journal();
        let stores = world.watched(&journal).await;
        activate_at_uid(&stores, &alice, &uid, M, &SystemEntropy).await.unwrap();
        assert!(is_activated(&world, &actor, &uid).await, "after write {nth}");
        let landed = counted(cut.landed().into_iter().chain(journal.landed()));
        assert_eq!(landed, writes_of(&actor, &uid), "after write {nth}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn siblings_at_one_uid_all_succeed_with_the_writes_of_one() {
    let world = World::start().await;
    let uid = uid();
    let journal = Failpoint::journal();
    let mut siblings = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let stores = world.watched(&journal).await;
        let uid = uid.clone();
        siblings.spawn(async move {
            activate_at_uid(&stores, &principal("alice"), &uid, M, &SystemEntropy).await
        });
    }
    for outcome in siblings.join_all().await {
        outcome.unwrap();
    }
    assert!(is_activated(&world, "alice", &uid).await);
    assert_eq!(counted(journal.landed()), writes_of("alice", &uid));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_incarnations_racing_for_one_alias_one_wins() {
    let world = World::start().await;
    let (one, two) = (world.stores().await, world.stores().await);
    for round in 0..8 {
        let actor = format!("race{round}");
        let (alice, a, b) = (principal(&actor), uid(), uid());
        let (first, second) = tokio::join!(
            activate_at_uid(&one, &alice, &a, M, &SystemEntropy),
            activate_at_uid(&two, &alice, &b, M, &SystemEntropy)
        );
        let (winner, refusal) = match (first, second) {
            (Ok(()), Err(refusal)) => (a, refusal),
            (Err(refusal), Ok(())) => (b, refusal),
            both => panic!("not exactly one winner: {both:?}"),
        };
        assert!(matches!(refusal.code, EpCode::Conflict | EpCode::AlreadyExists), "{refusal}");
        assert!(is_activated(&world, &actor, &winner).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_activation_mints_its_uid_and_refuses_a_taken_alias() {
    let world = World::start().await;
    let stores = world.stores().await;
    let alice = principal("alice");
    let empty = activate_fresh(&stores, &alice, "", &SystemEntropy).await;
    assert_eq!(code(empty), EpCode::FailedPrecondition);

    let (minted, _) = activate_fresh(&stores, &alice, M, &SystemEntropy).await.unwrap();
    assert!(is_activated(&world, "alice", &minted).await);
    assert_eq!(code(activate_fresh(&stores, &alice, M, &SystemEntropy).await), EpCode::AlreadyExists);

    let retiring = format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", op());
    world.plant_head("alice", &minted, "retiring", &retiring).await;
    let blocked = activate_fresh(&stores, &alice, M, &SystemEntropy).await.unwrap_err();
    assert_eq!((blocked.code, &blocked.details[0]["remedy"]), (EpCode::FailedPrecondition, &"retry".into()));

    world.plant_head("alice", &minted, "retired", "").await;
    let (next, _) = activate_fresh(&stores, &alice, M, &SystemEntropy).await.unwrap();
    assert_ne!(next, minted);
    assert!(is_activated(&world, "alice", &next).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_activation_that_loses_the_head_burns_its_own_uid() {
    let world = World::start().await;
    let held = Failpoint::stop_after(2);
    let stores = world.watched(&held).await;
    let loser =
        tokio::spawn(async move { activate_fresh(&stores, &principal("alice"), M, &SystemEntropy).await });
    held.reached().await;
    let winner = uid();
    at_uid(&world, "alice", &winner).await.unwrap();
    held.release();
    assert_eq!(code(loser.await.unwrap()), EpCode::Conflict);
    let gate = held.landed()[1].clone();
    assert_eq!(world.json(&world.auth, &gate).await["state"], "retired");
    assert!(is_activated(&world, "alice", &winner).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_activation_whose_gate_moved_says_how_to_resume_it() {
    let world = World::start().await;
    let held = Failpoint::stop_after(2);
    let stores = world.watched(&held).await;
    let loser =
        tokio::spawn(async move { activate_fresh(&stores, &principal("alice"), M, &SystemEntropy).await });
    held.reached().await;
    at_uid(&world, "alice", &uid()).await.unwrap();
    let gate = held.landed()[1].clone();
    let same = world.text(&world.auth, &gate).await.unwrap();
    world.put(&world.auth, &gate, &same).await;
    held.release();
    let refusal = loser.await.unwrap().unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable);
    let detail = &refusal.details[0];
    assert_eq!(detail["kind"], "resume-activation");
    let uid = LifecycleUid::parse(detail["lifecycleUid"].as_str().unwrap()).unwrap();
    let op = OpId::parse(detail["opId"].as_str().unwrap()).unwrap();
    let stores = world.stores().await;
    for settled in [Resumed::Terminalized, Resumed::AlreadySettled] {
        assert_eq!(resume_activation(&stores, &principal("alice"), &uid, &op).await.unwrap(), settled);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_activation_cut_off_anywhere_is_resumed_by_its_operation() {
    let world = World::start().await;
    for (nth, settles_as) in [
        (1, Resumed::AlreadySettled),
        (2, Resumed::Terminalized),
        (3, Resumed::Completed),
        (4, Resumed::AlreadySettled),
    ] {
        let alice = principal(&format!("cut{nth}"));
        let cut = Failpoint::stop_after(nth);
        let stores = world.watched(&cut).await;
        tokio::select! {
            done = activate_fresh(&stores, &alice, M, &SystemEntropy) => panic!("not held: {done:?}"),
            () = cut.reached() => {}
        }
        let uid = LifecycleUid::parse(cut.landed()[0].strip_prefix("uid.").unwrap()).unwrap();
        let gate = match world.text(&world.auth, &format!("gate.{uid}")).await {
            Some(text) => serde_json::from_str(&text).unwrap(),
            None => serde_json::Value::Null,
        };
        let by = gate["op"]["opId"].as_str().map_or_else(op, |by| OpId::parse(by).unwrap());
        let stores = world.stores().await;
        assert_eq!(resume_activation(&stores, &alice, &uid, &by).await.unwrap(), settles_as, "after {nth}");
        if nth == 3 {
            assert!(is_activated(&world, "cut3", &uid).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_is_read_in_any_state_and_an_epoch_only_while_active() {
    let world = World::start().await;
    let _provisioned = world.stores().await;
    let reader = MappingReader::bind(&world.anything, &world.space).await.unwrap();
    let alice = principal("alice");
    assert_eq!(reader.mapping(&alice).await.unwrap(), None);
    world.plant_head("alice", &uid(), "active", "").await;
    assert_eq!(reader.epoch(&alice).await.unwrap(), Some(1));
    world.plant_head("alice", &uid(), "retired", "").await;
    assert_eq!(reader.epoch(&alice).await.unwrap(), None);
    assert!(reader.mapping(&alice).await.unwrap().is_some());
}
