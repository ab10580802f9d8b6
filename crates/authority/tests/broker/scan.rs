//! The sealed scanners under their claim, over a real broker (contract 05 §8.7).

use std::sync::Arc;

use cotal_authority::{
    plane_claim::{ClaimRefusal, When},
    scanner::{LedgerCandidate, Obligations, RecordsCandidate, Scanned},
};
use cotal_wire::{
    EndpointToken, EpCode, EpError, InstanceId, KeySegment, Owner, Space,
    rows::{GoalIndexRow, PlaneClaim},
};

use crate::{
    harness::{OWNER, World, code, uid},
    held::Held,
};

fn keys(rows: Result<Vec<Scanned>, EpError>) -> Vec<String> {
    rows.unwrap().into_iter().map(|row| row.key).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_operation_enumerates_its_own_rows_and_no_others() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    let (mine, other) = (uid(), uid());
    let instance = InstanceId::parse(uid().as_str()).unwrap();
    let manager = EndpointToken::parse("manager").unwrap();
    let segment = |text: &str| KeySegment::parse(text).unwrap();
    let auth = [
        format!("cred.{mine}.c1"),
        format!("cred.{mine}.s.c"),
        format!("cred.{other}.c1"),
        format!("epcred.manager.{instance}.c1"),
        format!("epcred.other.{instance}.c1"),
        format!("bysrc.k1.h1.{mine}.c1"),
        format!("bysrc.k1.h2.{mine}.c1"),
        format!("stage.{mine}"),
        "stage.session.s1.c".to_owned(),
        format!("epgate.manager.{instance}"),
        format!("epgate.other.{instance}"),
        "session.s1".to_owned(),
    ];
    for key in &auth {
        world.put(&world.auth, key, "{}").await;
    }
    let records = [
        format!("oblig.{mine}.manager.g1"),
        format!("oblig.{mine}.other.g1"),
        format!("oblig.{other}.manager.g1.deep"),
        format!("uid.{mine}"),
    ];
    for key in &records {
        world.put(&world.records, key, "{}").await;
    }
    let (ledger, scan) = (&held.ledger, &held.records);
    assert_eq!(keys(ledger.agent_family(&mine).await), auth[..2]);
    assert_eq!(keys(ledger.endpoint_family(&manager, &instance).await), auth[3..4]);
    assert_eq!(keys(ledger.by_source(&segment("k1"), &segment("h1")).await), auth[5..6]);
    let mut intents = auth[7..9].to_vec();
    intents.sort();
    assert_eq!(keys(ledger.intents(&|_, _| {}).await), intents);
    assert_eq!(keys(ledger.manager_gates().await), auth[9..10]);
    assert_eq!(keys(ledger.sessions().await), auth[11..12]);
    assert_eq!(keys(scan.obligations(&Obligations::OfTarget(mine.clone())).await), records[..2]);
    let at = Obligations::OfTargetAt(mine.clone(), manager.clone());
    assert_eq!(keys(scan.obligations(&at).await), records[..1]);
    let mut everywhere = vec![records[0].clone(), records[2].clone()];
    everywhere.sort();
    assert_eq!(keys(scan.obligations(&Obligations::At(manager)).await), everywhere);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_goal_index_is_scanned_through_its_own_consumer_and_checked() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    let owner = Owner::parse(OWNER).unwrap();
    let key = |goal: &str| format!("goalidx.manager.{OWNER}.alice.uid1.{goal}");
    let body = |goal: &str| {
        format!(
            "{{\"v\":1,\"endpoint\":\"manager\",\"owner\":\"{OWNER}\",\"actor\":\"alice\",\"uid\":\"uid1\",\
             \"goalId\":\"{goal}\",\"iid\":\"i\"}}"
        )
    };
    let goals = |rows: Result<Vec<GoalIndexRow>, EpError>| -> Vec<String> {
        rows.unwrap().into_iter().map(|row| row.goal_id).collect()
    };
    assert_eq!(goals(held.records.goal_index(&owner).await), [""; 0]);
    world.put(&world.records, &key("g1"), &body("g1")).await;
    world.put(&world.records, &format!("goalidx.other.{OWNER}.alice.uid1.g1"), "{}").await;
    assert_eq!(goals(held.records.goal_index(&owner).await), ["g1"]);
    assert_eq!(code(held.records.goal_index(&Owner::local()).await), EpCode::BadRequest);
    world.put(&world.records, &key("g2"), &body("g3")).await;
    assert_eq!(code(held.records.goal_index(&owner).await), EpCode::Internal);
    world.delete(&world.records, &key("g2")).await;
    assert_eq!(code(held.records.goal_index(&owner).await), EpCode::FailedPrecondition);
}

/// Who writes rows without end is refused its own scan, and the process does not hold them.
#[tokio::test(flavor = "multi_thread")]
async fn more_goals_of_an_owner_than_64_mib_are_refused_to_that_owner_alone() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    let (owner, other) =
        (Owner::parse(OWNER).unwrap(), Owner::parse(&format!("u_{}", "b".repeat(26))).unwrap());
    let long = "x".repeat(900_000);
    for nth in 0..75 {
        world.put(&world.records, &format!("goalidx.manager.{OWNER}.alice.uid1.g{nth}"), &long).await;
    }
    let refusal = held.records.goal_index(&owner).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::ResourceExhausted, "{refusal}");
    assert_eq!(held.records.goal_index(&other).await, Ok(Vec::new()));
    world.delete(&world.records, &format!("goalidx.manager.{OWNER}.alice.uid1.g0")).await;
    assert_eq!(
        code(held.records.goal_index(&owner).await),
        EpCode::FailedPrecondition,
        "all of it is held again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_without_the_claim_enumerates_nothing() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    world.put(&world.auth, "session.s1", "{}").await;
    let own = held.hold.row().clone();
    let stolen = PlaneClaim { generation: 2, ..own.clone() };
    world.put(&world.auth, "plane", std::str::from_utf8(&stolen.to_bytes()).unwrap()).await;
    let refusal = held.ledger.sessions().await.unwrap_err();
    assert_eq!(ClaimRefusal::of(&refusal), Some(ClaimRefusal::Lost));
    assert!(refusal.message.contains("nothing is enumerated"), "{refusal}");
    world.put(&world.auth, "plane", std::str::from_utf8(&own.to_bytes()).unwrap()).await;
    held.ledger.sessions().await.unwrap();
    held.hold.fence("the end");
    let refusal = held.ledger.sessions().await.unwrap_err();
    assert_eq!((ClaimRefusal::of(&refusal), &*refusal.message), (Some(ClaimRefusal::Fenced), "the end"));
    let refusal = held.records.obligations(&Obligations::OfTarget(uid())).await.unwrap_err();
    assert_eq!(ClaimRefusal::of(&refusal), Some(ClaimRefusal::Fenced));
}

/// Whoever sees the first fetch of a scan takes the claim away in its middle.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_scanned_while_the_claim_was_lost_is_discarded() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    for n in 0..600 {
        world.put(&world.auth, &format!("session.s{n}"), "{}").await;
    }
    let own = held.hold.row().clone();
    let stolen = PlaneClaim { generation: 2, ..own.clone() };
    let mut fetches = world
        .anything
        .subscribe("$JS.API.CONSUMER.MSG.NEXT.KV_cotal_auth_demo.cotal-ledger-scan", None)
        .await
        .unwrap();
    world.anything.flush().await.unwrap();
    // The thief is quick, but not always quicker than a scan.
    for _ in 0..50 {
        let scan = held.ledger.sessions();
        let theft = async {
            fetches.next().await.unwrap();
            world.put(&world.auth, "plane", std::str::from_utf8(&stolen.to_bytes()).unwrap()).await;
        };
        let (scanned, ()) = tokio::join!(scan, theft);
        world.put(&world.auth, "plane", std::str::from_utf8(&own.to_bytes()).unwrap()).await;
        if let Err(refusal) = scanned {
            assert_eq!(ClaimRefusal::of(&refusal), Some(ClaimRefusal::Lost), "{refusal}");
            assert!(refusal.message.contains("is discarded"), "{refusal}");
            return;
        }
        while futures::FutureExt::now_or_never(fetches.next()).is_some() {}
    }
    panic!("no scan met the theft");
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_of_one_stream_take_turns_and_are_each_whole() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    for n in 0..300 {
        world.put(&world.auth, &format!("session.s{n}"), "{}").await;
        world.put(&world.auth, &format!("epgate.manager.i{n}"), "{}").await;
    }
    let scans = (0..12).map(|n| {
        let ledger = Arc::clone(&held.ledger);
        tokio::spawn(async move {
            if n % 2 == 0 { ledger.sessions().await } else { ledger.manager_gates().await }
        })
    });
    for scan in futures::future::join_all(scans).await {
        assert_eq!(keys(scan.unwrap()).len(), 300);
    }
}

/// A caller that gives up leaves a consumer behind, which is the next scan's to remove.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_that_was_cut_off_hinders_no_later_one() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    for n in 0..600 {
        world.put(&world.auth, &format!("session.s{n}"), "{}").await;
    }
    let fetch = "$JS.API.CONSUMER.MSG.NEXT.KV_cotal_auth_demo.cotal-ledger-scan";
    let mut fetches = world.anything.subscribe(fetch, None).await.unwrap();
    world.anything.flush().await.unwrap();
    for _ in 0..5 {
        let ledger = Arc::clone(&held.ledger);
        let scan = tokio::spawn(async move { ledger.sessions().await });
        fetches.next().await.unwrap();
        scan.abort();
        let _ = scan.await;
        assert_eq!(keys(held.ledger.sessions().await).len(), 600);
        while futures::FutureExt::now_or_never(fetches.next()).is_some() {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_connections_that_the_claim_pins_become_scanners() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    let ledger = LedgerCandidate::open(&world.connector).await.unwrap();
    let records = RecordsCandidate::open(&world.connector).await.unwrap();
    assert_eq!(code(ledger.activate(&held.hold).map(drop)), EpCode::FailedPrecondition);
    assert_eq!(code(records.activate(&held.hold).map(drop)), EpCode::FailedPrecondition);
    held.hold.assert_held(When::Before).await.unwrap();
    held.ledger.bonded_to(&world.space).unwrap();
    held.records.bonded_to(&world.space).unwrap();
    let other = Space::parse("other").unwrap();
    assert_eq!(code(held.ledger.bonded_to(&other)), EpCode::FailedPrecondition);
    assert_eq!(code(held.records.bonded_to(&other)), EpCode::FailedPrecondition);
}
