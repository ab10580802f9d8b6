//! What a space's managers cost those who look for theirs, however many an owner has had (contract 05 §5).

use std::{collections::BTreeSet, time::Duration};

use cotal_authority::{ManagerVerdict, Plane};
use cotal_testkit::rows::{Rows, ServingManager};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    DerivedOwner, EndpointName, EpCode, InstanceId, Names, Owner,
    names::{epgate_key, epowner_key},
};
use futures::future::join_all;

use crate::{
    harness::{OWNER, World, eventually},
    plane::open,
};

/// Longer than any test: nothing is pruned while round trips are counted.
const NEVER: Duration = Duration::from_secs(3_600);

fn other() -> Owner {
    Owner::parse(&format!("u_{}", "b".repeat(26))).unwrap()
}

/// The round trips of a survey of this owner, and whom it finds.
async fn surveyed(world: &World, plane: &Plane, owner: &DerivedOwner) -> (u64, BTreeSet<InstanceId>) {
    let before = world.custody.round_trips();
    let survey = plane.survey_managers(owner, None).await.unwrap();
    let cost = world.custody.round_trips() - before;
    assert!(survey.whole);
    (cost, survey.managers.into_iter().map(|one| one.instance).collect())
}

/// A scan may ask once or twice more.
const MARGIN: u64 = 8;

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_retired_or_another_owners_costs_a_survey_nothing_once_it_was_seen() {
    const MANY: u64 = 40;
    let world = World::start().await;
    let plane = open(&world, NEVER).await.unwrap();
    let rows = Rows::over(&world.anything, &world.space);
    let owner = DerivedOwner::parse(OWNER).unwrap();
    let of = Owner::from(&owner);
    let live = ServingManager::register(&rows, &owner, 1).await.unwrap();
    plane.bind_instance(&live.instance, &of, true).await.unwrap();
    let mut alone = 0;
    // What the plane does for itself when it opens is over.
    eventually("a survey costs what it did", async || {
        let (before, now) = (alone, surveyed(&world, &plane, &owner).await.0);
        alone = now;
        before == now
    })
    .await;

    // Her own past, and what another owner writes into the gates of theirs.
    let gate = async |bound: &Owner, state: &str| {
        let one = ServingManager::unheard(&owner, 1);
        plane.bind_instance(&one.instance, bound, true).await.unwrap();
        one.gate(&rows, state, &one.principal(), 1).await.unwrap();
        one.instance
    };
    let retired = join_all((0..MANY).map(|_| gate(&of, "retired"))).await;
    let theirs = other();
    join_all((0..MANY).map(|nth| gate(&theirs, if nth % 2 == 0 { "retired" } else { "open" }))).await;
    let all: BTreeSet<_> = retired.into_iter().chain([live.instance.clone()]).collect();
    let (first, found) = surveyed(&world, &plane, &owner).await;
    assert_eq!(found, all, "none of another owner's");
    assert!(first <= alone + 2 * MANY + MARGIN, "one read of each: {first}, and {alone} alone");
    let (again, found) = surveyed(&world, &plane, &owner).await;
    assert_eq!(found, all);
    assert!(again <= alone + MARGIN, "{again}, and {alone} alone");

    let survey = plane.survey_managers(&owner, None).await.unwrap();
    let live = survey.managers.iter().filter(|one| one.is_live()).map(|one| &one.instance);
    assert_eq!(live.collect::<Vec<_>>(), [&survey.select(&owner).unwrap()]);
    let not_open = survey.managers.iter().filter(|one| one.verdict == ManagerVerdict::NotOpen).count();
    assert_eq!(not_open as u64, MANY);
    plane.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_has_4096_instances_by_the_hosts_own_word_and_no_more() {
    let world = World::start().await;
    let plane = open(&world, NEVER).await.unwrap();
    let (of, bucket) = (Owner::parse(OWNER).unwrap(), Names::new(&world.space.token()).auth_bucket());
    let manager = EndpointName::manager().token();
    let instance = |nth: usize| InstanceId::parse(&format!("{nth:026}")).unwrap();
    let row = format!("{{\"v\":1,\"owner\":\"{of}\"}}");
    for nth in 0..4_095 {
        let subject = Names::kv_subject(&bucket, &epowner_key(&manager, &instance(nth)));
        world.anything.publish(&subject, &[], row.clone().into()).await.unwrap();
    }
    world.anything.flush().await.unwrap();
    eventually("they are stored", async || {
        let last = epowner_key(&manager, &instance(4_094));
        world.auth.read_authority(&last).await.unwrap().is_some()
    })
    .await;
    let mint = || InstanceId::mint(&SystemEntropy);
    let (last, beyond) = (mint(), mint());
    plane.bind_instance(&last, &of, true).await.unwrap();
    for _ in 0..2 {
        let refusal = plane.bind_instance(&beyond, &of, true).await.unwrap_err();
        assert_eq!(refusal.code, EpCode::ResourceExhausted, "{refusal}");
        assert!(refusal.message.contains("4096"), "{refusal}");
    }
    plane.bind_instance(&last, &of, true).await.unwrap();
    plane.bind_instance(&instance(7), &of, true).await.unwrap();
    plane.bind_instance(&beyond, &other(), true).await.unwrap();
    let refusal = plane.bind_instance(&beyond, &of, true).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::PermissionDenied, "it is another owner's by now: {refusal}");
    // One that was registered before the host said anything is no further one.
    plane.bind_instance(&mint(), &of, false).await.unwrap();
    plane.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_is_longer_than_any_is_garbled_and_takes_no_more_room() {
    let world = World::start().await;
    let plane = open(&world, NEVER).await.unwrap();
    let owner = DerivedOwner::parse(OWNER).unwrap();
    let rows = Rows::over(&world.anything, &world.space);
    let live = ServingManager::register(&rows, &owner, 1).await.unwrap();
    let long = ServingManager::register(&rows, &owner, 1).await.unwrap();
    let key = epgate_key(&EndpointName::manager().token(), &long.instance);
    let row =
        world.json(&world.auth, &key).await.to_string().replace('{', &format!("{{{}", " ".repeat(5_000)));
    rows.put("auth", &key, row.into()).await.unwrap();
    let survey = plane.survey_managers(&owner, None).await.unwrap();
    assert_eq!(survey.select(&owner), Ok(live.instance));
    assert_eq!(survey.managers.len(), 1);
    plane.close().await.unwrap();
}
