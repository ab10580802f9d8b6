//! Connections really end, and only a complete look proves it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cotal_authority::{evict::Evictor as _, shared_sweeps::SharedSweeps};
use cotal_delivery::CredsKind;
use cotal_wire::{Owner, Principal};
use futures::{FutureExt, future::join_all};

use crate::house::{House, principal};

fn set(principals: &[&Principal]) -> BTreeSet<Principal> {
    principals.iter().map(|one| (*one).clone()).collect()
}

#[tokio::test]
async fn an_eviction_ends_every_connection_of_the_principal_and_no_other() {
    let (_server, house) = House::start().await;
    let daemon = house.daemon().await;
    let (alice, bob) = (principal("alice"), principal("bob"));
    let mut of_alice = [house.client(&alice).await, house.client(&alice).await];
    let mut of_bob = house.client(&bob).await;

    let evictions = house.admin().evict(&set(&[&alice])).await;
    let [eviction] = evictions.as_slice() else { panic!("{evictions:?}") };
    assert_eq!(eviction.principal, alice);
    assert_eq!((eviction.kicked, eviction.remaining), (2, 0), "{eviction:?}");
    assert!(eviction.verified_gone && eviction.scan_complete && eviction.note.is_none(), "{eviction:?}");
    for client in &mut of_alice {
        client.ended().await;
    }
    of_bob.ping().await.unwrap();

    let again = house.admin().evict(&set(&[&alice])).await;
    assert_eq!(
        (again[0].kicked, again[0].verified_gone),
        (0, true),
        "nobody there is a success without a kick"
    );
    of_bob.ping().await.unwrap();
    daemon.stop().await;
}

#[tokio::test]
async fn a_batch_is_answered_one_by_one_in_order() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let platform =
        Principal::new(Owner::parse("p_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap(), principal("host").actor);
    let (alice, bob) = (principal("alice"), principal("bob"));
    let _clients = [house.client(&alice).await, house.client(&platform).await];
    let evictions = house.admin().evict(&set(&[&platform, &bob, &alice])).await;
    let got: Vec<(Principal, u64, bool)> =
        evictions.into_iter().map(|one| (one.principal, one.kicked, one.verified_gone)).collect();
    assert_eq!(got, [(platform, 1, true), (alice, 1, true), (bob, 0, true)]);
}

#[tokio::test]
async fn evictions_at_once_share_their_sweeps_and_each_is_proved_by_itself() {
    let (_server, house) = House::start().await;
    let daemon = house.daemon().await;
    let all: Vec<Principal> = (0..16).map(|n| principal(&format!("a{n:02}"))).collect();
    let mut clients = Vec::new();
    for one in &all {
        clients.push(house.client(one).await);
    }
    let mut of_bob = house.client(&principal("bob")).await;
    let rail = format!("cotal.{}.ctl.delivery-admin.*.*", house.space.token());
    let mut requests = house.anything.subscribe(&rail, None).await.unwrap();

    let allowed = || async { Ok(()) }.boxed();
    let sweeps = SharedSweeps::over(Arc::new(house.admin()), Arc::new(allowed));
    let asked: Vec<BTreeSet<Principal>> = all.iter().map(|one| set(&[one])).collect();
    let evictions = join_all(asked.iter().map(|one| sweeps.evict(one))).await;
    for (asked, eviction) in all.iter().zip(&evictions) {
        let [eviction] = eviction.as_slice() else { panic!("{eviction:?}") };
        assert_eq!(eviction.principal, *asked);
        assert!(eviction.verified_gone && eviction.kicked == 1, "{eviction:?}");
    }
    for client in &mut clients {
        client.ended().await;
    }
    of_bob.ping().await.unwrap();
    house.anything.flush().await.unwrap();
    let mut asked = 0;
    while let Ok(Some(_)) = tokio::time::timeout(Duration::ZERO, requests.next()).await {
        asked += 1;
    }
    assert!((1..=4).contains(&asked), "{asked} requests for 16 evictions");
    daemon.stop().await;
}

#[tokio::test]
async fn six_hundred_principals_go_in_batches_and_all_are_verified() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let all: BTreeSet<Principal> = (0..600).map(|n| principal(&format!("a{n:03}"))).collect();
    let there = [principal("a000"), principal("a255"), principal("a256"), principal("a599")];
    let mut clients = Vec::new();
    for one in &there {
        clients.push(house.client(one).await);
    }
    let evictions = house.admin().evict(&all).await;
    assert!(evictions.iter().map(|one| &one.principal).eq(all.iter()), "in ascending order");
    assert!(evictions.iter().all(|one| one.verified_gone), "{evictions:?}");
    let kicked: Vec<&Principal> =
        evictions.iter().filter(|one| one.kicked == 1).map(|one| &one.principal).collect();
    assert_eq!(kicked, there.iter().collect::<Vec<_>>());
    for client in &mut clients {
        client.ended().await;
    }
}

#[tokio::test]
async fn a_connection_that_does_not_close_is_not_verified_gone() {
    let (_server, house) = House::start().await;
    // A user of the system account that may close nothing.
    let observer = house.store.get(CredsKind::MembershipObserver);
    house.store.put(CredsKind::ConnectionEvictor, &observer);
    let _daemon = house.daemon().await;
    let alice = principal("alice");
    let mut client = house.client(&alice).await;
    let eviction = house.admin().evict(&set(&[&alice])).await.remove(0);
    assert!(!eviction.verified_gone && eviction.scan_complete, "{eviction:?}");
    assert_eq!((eviction.kicked, eviction.remaining), (0, 1), "{eviction:?}");
    assert!(eviction.note.unwrap().contains("KICK"));
    client.ping().await.unwrap();
}

#[tokio::test]
async fn a_space_without_an_evictor_ends_nobody_and_says_so() {
    let (_server, house) = House::start().await;
    house.store.remove(CredsKind::ConnectionEvictor);
    let _daemon = house.daemon().await;
    let alice = principal("alice");
    let mut client = house.client(&alice).await;
    let eviction = house.admin().evict(&set(&[&alice])).await.remove(0);
    assert!(!eviction.verified_gone && !eviction.scan_complete && eviction.kicked == 0);
    assert!(eviction.note.unwrap().contains("no credential that closes connections"));
    client.ping().await.unwrap();
}
