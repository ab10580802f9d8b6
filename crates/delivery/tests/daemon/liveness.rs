//! Live, gone, unknown: of principals and of the plane's connections.

use cotal_authority::claim_oracle::{ClaimOracle as _, ClaimTuples, Verdict};
use cotal_broker::{Connection, Lifetime};
use cotal_delivery::CredsKind;
use cotal_wire::grants::infra;

use crate::house::{House, eventually, principal};

/// A connection as a sealed scanner holds it.
async fn scanner(house: &House) -> Connection {
    let token = house.space.token();
    let grants = move |conn: &cotal_wire::ConnId| infra::ledger_scanner(&token, conn);
    house.connector.open("cotal:auth-scan:main".into(), &grants, Lifetime::PlaneOwned).await.unwrap()
}

#[tokio::test]
async fn a_principal_is_live_while_a_connection_of_it_is_there_and_gone_after() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let alice = principal("alice");
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Gone);
    let client = house.client(&alice).await;
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Live);
    assert_eq!(house.admin().principal_liveness(&principal("bob")).await, Verdict::Gone);
    drop(client);
    eventually("alice is gone", async || house.admin().principal_liveness(&alice).await == Verdict::Gone)
        .await;
}

#[tokio::test]
async fn the_planes_connections_are_told_apart_by_server_number_and_user() {
    let (mut server, house) = House::start().await;
    let daemon = house.daemon().await;
    let (ledger, records) = (scanner(&house).await, scanner(&house).await);
    let tuples =
        ClaimTuples { ledger: ledger.tuple().unwrap().clone(), records: records.tuple().unwrap().clone() };
    let both = house.admin().observe(&tuples).await;
    assert_eq!((both.ledger, both.records, both.sweep_complete), (Verdict::Live, Verdict::Live, true));

    ledger.close().await.unwrap();
    let one = house.admin().observe(&tuples).await;
    assert_eq!((one.ledger, one.records, one.sweep_complete), (Verdict::Gone, Verdict::Live, true));

    // Somebody else's user under the pinned number is no proof of anything.
    let mut swapped = tuples.clone();
    swapped.records.user_nkey = tuples.ledger.user_nkey.clone();
    let confused = house.admin().observe(&swapped).await;
    assert_eq!((confused.ledger, confused.records), (Verdict::Gone, Verdict::Unknown));

    // A server that restarted is another one: what was on the old is gone.
    daemon.stop().await;
    server.restart().await;
    eventually("the daemon starts again", async || house.try_daemon().await.is_ok()).await;
    let _daemon = house.daemon().await;
    let after = house.admin().observe(&tuples).await;
    assert_eq!((after.ledger, after.records, after.sweep_complete), (Verdict::Gone, Verdict::Gone, true));
}

#[tokio::test]
async fn without_a_daemon_everything_is_unknown() {
    let (_server, house) = House::start().await;
    let alice = principal("alice");
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Unknown);
    let held = scanner(&house).await;
    let tuples =
        ClaimTuples { ledger: held.tuple().unwrap().clone(), records: held.tuple().unwrap().clone() };
    let observation = house.admin().observe(&tuples).await;
    assert_eq!((observation.ledger, observation.records), (Verdict::Unknown, Verdict::Unknown));
    assert!(!observation.sweep_complete && observation.tuples == tuples);
    assert!(observation.note.unwrap().contains("cotal status"));

    let daemon = house.daemon().await;
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Gone);
    daemon.stop().await;
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Unknown, "a stopped rail");
}

#[tokio::test]
async fn an_observer_that_is_lost_later_leaves_everything_unknown() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let alice = principal("alice");
    house.store.remove(CredsKind::MembershipObserver);
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Unknown);
    let rotated = house.trust.rotate_system_account(
        &cotal_trust::system::SystemEntropy,
        cotal_wire::Clock::now_secs(&cotal_trust::system::SystemClock),
    );
    house.store.put(CredsKind::MembershipObserver, &house.observer_creds(&rotated.unwrap()));
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Unknown, "of another system account");
    house.store.put(CredsKind::MembershipObserver, &house.observer_creds(&house.trust));
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Gone);
}
