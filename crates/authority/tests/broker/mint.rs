//! The mint ceremony and the root credential over a real broker (contract 07 §4, 04 §10).

use std::{collections::HashSet, sync::Arc};

use crate::harness::{OWNER, TestClock, World, assert_garbled, code, principal, uid};
use cotal_authority::{
    AuthorityStores,
    credential::{StagedCredential, revoke},
    failpoint::Failpoint,
    root_credential::{ROOT_CREDENTIAL_TTL_MS, ensure_root_credential},
};
use cotal_broker::kv::LeaderRead;
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    CredentialId, EndpointName, EpCode, EpError, InstanceId, LifecycleUid, UnixMillis, UnixSecs,
    rows::{CredentialKey, CredentialRow, SourceMember},
};

const M: &str = "auth-service:demo";
const NOW: u64 = 1_700_000_000;

fn id(s: &str) -> CredentialId {
    CredentialId::parse(s).unwrap()
}

fn row(actor: &str, uid: &LifecycleUid, credential: &str, chain: &[&str]) -> CredentialRow {
    let chain = chain.iter().map(|member| SourceMember::parse(member).unwrap()).collect();
    CredentialRow::agent(uid, &id(credential), &principal(actor), chain, UnixMillis(9)).unwrap()
}

async fn stage(stores: &AuthorityStores, row: CredentialRow) -> Result<StagedCredential, EpError> {
    StagedCredential::stage(stores, row).await
}

fn refused(staged: Result<StagedCredential, EpError>) -> EpCode {
    staged.err().expect("staged all the same").code
}

async fn ensure(
    stores: &AuthorityStores,
    actor: &str,
    uid: &LifecycleUid,
    now: u64,
) -> Result<CredentialId, EpError> {
    let clock = TestClock::at(now);
    ensure_root_credential(stores, &principal(actor), uid, M, clock.as_ref(), &SystemEntropy).await
}

async fn plant_source(world: &World, handle: &str, state: &str) {
    let row = format!("{{\"issuerKeyId\":\"k\",\"id\":\"{handle}\",\"state\":\"{state}\"}}");
    world.put(&world.auth, &format!("srcgate.k.{handle}"), &row).await;
}

/// Each step mends the fault that the step before it was refused for.
#[tokio::test(flavor = "multi_thread")]
async fn staging_refuses_in_the_contracts_order() {
    let world = World::start().await;
    let stores = world.stores().await;
    let uid = uid();
    let key = format!("cred.{uid}.c1");
    let chain = ["root", "handle.k.h1", "handle.k.h2"];
    let mint = || row("alice", &uid, "c1", &chain);

    let endpoint = EndpointName::parse("svc").unwrap();
    let instance = InstanceId::parse(uid.as_str()).unwrap();
    let serve =
        CredentialRow::endpoint(&endpoint, &instance, &id("c1"), &principal("alice"), UnixSecs(9)).unwrap();
    assert_eq!(refused(stage(&stores, serve).await), EpCode::FailedPrecondition);
    assert_eq!(refused(stage(&stores, mint().revoke()).await), EpCode::FailedPrecondition);

    assert_eq!(refused(stage(&stores, mint()).await), EpCode::PermissionDenied, "not reserved");
    world.plant_reservation("bob", &uid).await;
    assert_eq!(refused(stage(&stores, mint()).await), EpCode::PermissionDenied, "reserved for another");
    world.plant_reservation("alice", &uid).await;
    assert_eq!(refused(stage(&stores, mint()).await), EpCode::PermissionDenied, "no gate");
    for (state, kind) in [("frozen", "activation"), ("retired", "retirement")] {
        world.plant_gate(&uid, state, kind).await;
        assert_eq!(refused(stage(&stores, mint()).await), EpCode::PermissionDenied, "{state}");
    }
    world.put(&world.auth, &format!("gate.{uid}"), "{}").await;
    assert_eq!(refused(stage(&stores, mint()).await), EpCode::Internal, "garbled gate");
    world.plant_gate(&uid, "open", "").await;
    assert_eq!(refused(stage(&stores, mint()).await), EpCode::PermissionDenied, "no source gate");
    plant_source(&world, "h1", "open").await;
    plant_source(&world, "h2", "frozen").await;
    assert_eq!(refused(stage(&stores, mint()).await), EpCode::PermissionDenied, "frozen source gate");
    assert_eq!(world.text(&world.auth, &key).await, None, "no refusal wrote a row");
    plant_source(&world, "h2", "open").await;

    let _staged = stage(&stores, mint()).await.unwrap();
    assert_eq!(
        world.text(&world.auth, &key).await.unwrap(),
        format!(
            "{{\"credentialId\":\"c1\",\"holderPrincipal\":\"{OWNER}.alice\",\"lifecycleUid\":\"{uid}\",\
             \"sourceChain\":[\"root\",\"handle.k.h1\",\"handle.k.h2\"],\"state\":\"active\",\"exp\":9}}"
        )
    );
    for handle in ["h1", "h2"] {
        let index = world.text(&world.auth, &format!("bysrc.k.{handle}.{uid}.c1")).await.unwrap();
        assert_eq!(index, format!("{{\"ref\":\"{key}\"}}"));
    }

    // Byte-identical again is the same mint; other bytes under the key are a conflict.
    let _again = stage(&stores, mint()).await.unwrap();
    let other =
        CredentialRow::agent(&uid, &id("c1"), &principal("alice"), vec![SourceMember::Root], UnixMillis(8));
    assert_eq!(refused(stage(&stores, other.unwrap()).await), EpCode::Conflict);

    world.delete(&world.auth, &format!("gate.{uid}")).await;
    assert_eq!(refused(stage(&stores, mint()).await), EpCode::FailedPrecondition, "a marker");
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizing_touches_every_pinned_gate_once_in_ascending_order() {
    let world = World::start().await;
    let journal = Failpoint::journal();
    // The mint writer mints roots only: its grant names no source gate (contract 07 §7.1).
    drop(world.stores().await);
    let stores = AuthorityStores::bind(&world.anything, &world.space).await.unwrap();
    journal.arm(&stores);
    let uid = uid();
    world.plant_active("alice", &uid).await;
    plant_source(&world, "h2", "open").await;
    plant_source(&world, "h1", "open").await;
    let gate = format!("gate.{uid}");
    let before = world.text(&world.auth, &gate).await;

    let chain = ["root", "handle.k.h2", "handle.k.h1"];
    let staged = stage(&stores, row("alice", &uid, "c1", &chain)).await.unwrap();
    let written = journal.landed().len();
    let released = staged.finalize().await.unwrap();
    assert_eq!(released.row().credential_id(), &id("c1"));
    assert_eq!(
        journal.landed()[written..],
        [gate.clone(), "srcgate.k.h1".to_owned(), "srcgate.k.h2".to_owned()]
    );
    assert_eq!(world.text(&world.auth, &gate).await, before, "a touch changes no byte");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_moved_since_staging_loses_the_mint_and_revokes_its_row() {
    let world = World::start().await;
    let stores = world.stores().await;
    for moved in ["frozen", "touched", "deleted", "source frozen"] {
        let actor = moved.replace(' ', "_");
        let uid = uid();
        world.plant_active(&actor, &uid).await;
        plant_source(&world, &actor, "open").await;
        let chain = ["root".to_owned(), format!("handle.k.{actor}")];
        let chain: Vec<_> = chain.iter().map(String::as_str).collect();
        let staged = stage(&stores, row(&actor, &uid, "c1", &chain)).await.unwrap();
        match moved {
            "frozen" => world.plant_gate(&uid, "frozen", "takeover").await,
            "touched" => world.plant_gate(&uid, "open", "").await,
            "deleted" => world.delete(&world.auth, &format!("gate.{uid}")).await,
            _ => plant_source(&world, &actor, "frozen").await,
        }
        assert_eq!(code(staged.finalize().await), EpCode::PermissionDenied, "{moved}");
        assert_eq!(world.json(&world.auth, &format!("cred.{uid}.c1")).await["state"], "revoked", "{moved}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_mints_staged_under_one_gate_one_is_released() {
    let world = World::start().await;
    let stores = world.stores().await;
    let uid = uid();
    world.plant_active("alice", &uid).await;
    let one = stage(&stores, row("alice", &uid, "c1", &["root"])).await.unwrap();
    let two = stage(&stores, row("alice", &uid, "c2", &["root"])).await.unwrap();
    let (one, two) = tokio::join!(one.finalize(), two.finalize());
    assert_eq!(usize::from(one.is_ok()) + usize::from(two.is_ok()), 1);
    assert_eq!(world.active_rows(&uid).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoke_mark_is_monotonic_and_needs_a_row() {
    let world = World::start().await;
    let stores = world.stores().await;
    let (uid, row_of) = (uid(), |key: &str| CredentialKey::parse(key).unwrap());
    let key = format!("cred.{uid}.c1");
    assert_eq!(code(revoke(&stores, &row_of(&key)).await), EpCode::FailedPrecondition);
    let holder = format!("{OWNER}.alice");
    world.plant_credential(&uid, "c1", &holder, "\"root\"", "active", 9).await;
    revoke(&stores, &row_of(&key)).await.unwrap();
    let revoked = world.auth.leader_read(&key).await.unwrap();
    revoke(&stores, &row_of(&key)).await.unwrap();
    assert_eq!(world.auth.leader_read(&key).await.unwrap(), revoked, "nothing is written twice");
    let LeaderRead::Value(entry) = revoked else { panic!("the row is gone") };
    assert_eq!(
        entry.value,
        format!(
            "{{\"credentialId\":\"c1\",\"holderPrincipal\":\"{holder}\",\"lifecycleUid\":\"{uid}\",\
             \"sourceChain\":[\"root\"],\"state\":\"revoked\",\"exp\":9}}"
        )
    );
    world.delete(&world.auth, &key).await;
    assert_eq!(code(revoke(&stores, &row_of(&key)).await), EpCode::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incarnation_has_one_root_which_lives_ninety_days() {
    let world = World::start().await;
    let stores = world.stores().await;
    let uid = uid();
    let root = ensure(&stores, "alice", &uid, NOW).await.unwrap();
    let row = world.json(&world.auth, &format!("cred.{uid}.{root}")).await;
    assert_eq!(row["exp"], NOW * 1000 + ROOT_CREDENTIAL_TTL_MS);
    assert_eq!(row["sourceChain"], serde_json::json!(["root"]));
    let head = world.json(&world.records, &format!("lifecycle.{OWNER}.alice")).await;
    assert_eq!(head["currentCredentialId"], root.as_str());
    assert_eq!(head["managerInstance"], M);

    let last = NOW + ROOT_CREDENTIAL_TTL_MS / 1000;
    assert_eq!(ensure(&stores, "alice", &uid, last - 1).await.unwrap(), root);
    assert_eq!(code(ensure(&stores, "alice", &uid, last).await), EpCode::PermissionDenied);
    assert_eq!(world.auth.keys(&format!("cred.{uid}.>")).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stamped_root_whose_row_is_unusable_is_refused_and_never_replaced() {
    let world = World::start().await;
    let stores = world.stores().await;
    let uid = uid();
    world.plant_active("alice", &uid).await;
    world.plant_head("alice", &uid, "active", ",\"currentCredentialId\":\"c1\"").await;
    assert_eq!(code(ensure(&stores, "alice", &uid, NOW).await), EpCode::Internal, "no row");
    let (alice, bob) = (format!("{OWNER}.alice"), format!("{OWNER}.bob"));
    world.plant_credential(&uid, "c1", &bob, "\"root\"", "revoked", 0).await;
    assert_eq!(code(ensure(&stores, "alice", &uid, NOW).await), EpCode::PermissionDenied, "revoked");
    world.plant_credential(&uid, "c1", &bob, "\"root\"", "active", 0).await;
    assert_eq!(code(ensure(&stores, "alice", &uid, NOW).await), EpCode::Internal, "another holder");
    world.plant_credential(&uid, "c1", &alice, "\"root\"", "active", NOW * 1000).await;
    assert_eq!(code(ensure(&stores, "alice", &uid, NOW).await), EpCode::PermissionDenied, "expired");
    world.put(&world.auth, &format!("cred.{uid}.c1"), "{}").await;
    assert_garbled(ensure(&stores, "alice", &uid, NOW).await, &format!("cred.{uid}.c1"));
    world.delete(&world.auth, &format!("cred.{uid}.c1")).await;
    assert_eq!(code(ensure(&stores, "alice", &uid, NOW).await), EpCode::FailedPrecondition, "marker");
    world.plant_head("alice", &uid, "active", ",\"currentCredentialId\":\"c 1\"").await;
    assert_eq!(code(ensure(&stores, "alice", &uid, NOW).await), EpCode::Internal, "no credential id");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incarnation_under_an_operation_gets_no_root() {
    let world = World::start().await;
    let stores = world.stores().await;
    let uid = uid();
    world.plant_active("alice", &uid).await;
    assert_eq!(code(ensure(&stores, "alice", &crate::harness::uid(), NOW).await), EpCode::AlreadyExists);
    world.plant_gate(&uid, "frozen", "takeover").await;
    assert_eq!(code(ensure(&stores, "alice", &uid, NOW).await), EpCode::FailedPrecondition);
    world.plant_gate(&uid, "retired", "retirement").await;
    assert_eq!(code(ensure(&stores, "alice", &uid, NOW).await), EpCode::PermissionDenied);
    assert_eq!(world.active_rows(&uid).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_exchanges_of_one_incarnation_share_one_root() {
    let world = World::start().await;
    let stores = world.stores().await;
    let uid = uid();
    let mut exchanges = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (stores, uid) = (stores.clone(), uid.clone());
        exchanges.spawn(async move { ensure(&stores, "alice", &uid, NOW).await.unwrap() });
    }
    let roots: HashSet<_> = exchanges.join_all().await.into_iter().collect();
    assert_eq!(roots.len(), 1);
    assert_eq!(world.active_rows(&uid).await, 1);
}

/// Other processes share no turn: each refusal is the one that says to try again, and no root is doubled.
#[tokio::test(flavor = "multi_thread")]
async fn processes_racing_for_one_root_never_make_two() {
    let world = World::start().await;
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(world.stores().await);
    }
    for round in 0..6 {
        let actor = format!("race{round}");
        let uid = uid();
        let mut exchanges = tokio::task::JoinSet::new();
        for stores in processes.clone() {
            let (actor, uid) = (actor.clone(), uid.clone());
            exchanges.spawn(async move { ensure(&stores, &actor, &uid, NOW).await });
        }
        let mut roots = HashSet::new();
        for outcome in exchanges.join_all().await {
            match outcome {
                Ok(root) => drop(roots.insert(root)),
                Err(refusal) => assert_eq!(refusal.code, EpCode::Unavailable, "{refusal}"),
            }
        }
        roots.insert(ensure(&processes[0], &actor, &uid, NOW).await.unwrap());
        assert_eq!(roots.len(), 1, "round {round}");
        assert_eq!(world.active_rows(&uid).await, 1, "round {round}");
    }
}

/// Reservation, gate, head, gate, row, touch, stamp: seven writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_root_cut_off_between_any_two_writes_is_ended_by_the_next_exchange() {
    let world = World::start().await;
    for nth in 1..=7 {
        let actor = format!("cut{nth}");
        let uid = uid();
        let cut = Failpoint::stop_after(nth);
        let stores = world.watched(&cut).await;
        tokio::select! {
            done = ensure(&stores, &actor, &uid, NOW) => panic!("not held after write {nth}: {done:?}"),
            () = cut.reached() => {}
        }
        let root = ensure(&world.stores().await, &actor, &uid, NOW).await.unwrap();
        let head = world.json(&world.records, &format!("lifecycle.{OWNER}.{actor}")).await;
        assert_eq!(head["currentCredentialId"], root.as_str(), "after write {nth}");
        // A row that was cut off before its stamp stays behind: no head names it, so no connect accepts it.
        let left_behind = usize::from((5..7).contains(&nth));
        assert_eq!(world.active_rows(&uid).await, 1 + left_behind, "after write {nth}");
        if nth == 7 {
            assert_eq!(cut.landed()[4], format!("cred.{uid}.{root}"), "the stamp had landed: it is the root");
        }
    }
}

/// Only the reopened gate and the stamp are read back to see whether they landed; both had.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_unavailable_and_never_leaves_a_head_that_names_a_revoked_root() {
    let world = World::start().await;
    for nth in 1..=7 {
        let actor = format!("lost{nth}");
        let uid = uid();
        let lossy = world.watched(&Failpoint::forget_answer_of(nth)).await;
        let outcome = ensure(&lossy, &actor, &uid, NOW).await;
        if nth == 4 || nth == 7 {
            outcome.as_ref().unwrap();
        } else {
            assert_eq!(outcome.as_ref().unwrap_err().code, EpCode::Unavailable, "write {nth}");
        }
        let root = ensure(&world.stores().await, &actor, &uid, NOW).await.unwrap();
        assert_eq!(outcome.unwrap_or_else(|_| root.clone()), root, "write {nth}");
        assert_eq!(world.json(&world.auth, &format!("cred.{uid}.{root}")).await["state"], "active");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stamp_that_comes_second_revokes_its_row_and_yields_the_first() {
    let world = World::start().await;
    let held = Failpoint::stop_after(6);
    let slow = world.watched(&held).await;
    let uid = uid();
    let exchange = {
        let uid = uid.clone();
        tokio::spawn(async move { ensure(&slow, "alice", &uid, NOW).await })
    };
    held.reached().await;
    let first = ensure(&world.stores().await, "alice", &uid, NOW).await.unwrap();
    held.release();
    assert_eq!(exchange.await.unwrap().unwrap(), first);
    assert_eq!(world.active_rows(&uid).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_frozen_between_stage_and_finalize_yields_no_root() {
    let world = World::start().await;
    let held = Failpoint::stop_after(5);
    let stores = world.watched(&held).await;
    let uid = Arc::new(uid());
    let exchange = {
        let uid = uid.clone();
        tokio::spawn(async move { ensure(&stores, "alice", &uid, NOW).await })
    };
    held.reached().await;
    world.plant_gate(&uid, "frozen", "retirement").await;
    held.release();
    let refusal = exchange.await.unwrap().unwrap_err();
    assert_eq!(refusal.code, EpCode::FailedPrecondition);
    assert_eq!(refusal.details[0]["blockedOp"], "retirement");
    assert_eq!(world.active_rows(&uid).await, 0);
}
