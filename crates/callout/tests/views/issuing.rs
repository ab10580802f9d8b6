//! The pair of a manager's caller while it is being issued: cut off, killed, hung, and asked for by many at once.

use std::{sync::Arc, time::Duration};

use cotal_authority::failpoint::Failpoint;
use cotal_callout::CalloutLimits;
use futures::future::join_all;

use crate::{
    house::{Ask, House, Plan, field},
    serving::{accepted, attempts, bearer_of, connected, describe, end_issuance, keys, registered, state},
};

/// A connect that the deadline cuts while its pair is being issued, held after each of its writes; the client comes back
/// under the same nonce, and only then the first one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_loses_no_issuance_and_a_late_one_doubles_none() {
    // Evidence, attempt, index, activation, accepted row: before its activation, before and after its acceptance.
    for nth in [2, 4, 5] {
        let failpoint = Failpoint::stop_after(nth);
        let limits = CalloutLimits { auth_timeout: Duration::from_secs(6), ..CalloutLimits::default() };
        let plan = Plan {
            callers: true,
            watch: Some(failpoint.clone()).into(),
            callout_limits: limits,
            ..Plan::patient()
        };
        let house = House::build("demo", plan).await;
        let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
        let manager = registered(&house, 0).await;
        let bearer = bearer_of(&house, &granted, &manager);

        let (client, outcome) = house.connect_as(&bearer, "nonce-issued-1").await;
        assert!(client.is_none(), "{outcome:?}");
        failpoint.reached().await;
        house.answered(1).await;
        assert_eq!(house.count("timeout"), 1, "{:#?}", house.lines());
        assert!(house.lines().iter().any(|line| field(line, "at").as_deref() == Some("policy")));
        assert_eq!(house.issuance_rows().await, 0);

        let mut client = connected(&house, &bearer, "nonce-issued-1").await;
        let held = accepted(&house, "nonce-issued-1").await.unwrap();
        failpoint.release();
        // What was cut off has ended when its slot is free: a stop waits for that.
        house.callout.stop().await;
        assert_eq!(accepted(&house, "nonce-issued-1").await.unwrap(), held, "{nth}");
        let generation = held.generation.to_string();
        client.try_publish(&describe(&manager, &granted, Some(&generation)), b"").await.unwrap();
        assert_eq!(state(&house, &held).await, "active");
        assert_eq!(attempts(&house, "active").await, 1, "after write {nth}");
        assert_eq!(house.issuance_rows().await, 1, "nothing was signed for the one that was cut off");
        house.plane.close().await.unwrap();
    }
}

/// Killed after each of its writes: the issuing task is gone, as with its process, and a replica answers the client.
#[tokio::test(flavor = "multi_thread")]
async fn a_callout_that_is_killed_between_any_two_writes_leaves_a_nonce_that_connects_again() {
    for nth in 1..=5 {
        let failpoint = Failpoint::stop_after(nth);
        let plan = Plan { callers: true, watch: Some(failpoint.clone()).into(), ..Plan::patient() };
        let house = House::build("demo", plan).await;
        let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
        let manager = registered(&house, 0).await;
        let bearer = bearer_of(&house, &granted, &manager);
        let house = Arc::new(house);
        let first = tokio::spawn({
            let (house, bearer) = (house.clone(), bearer.clone());
            async move { house.connect_as(&bearer, "nonce-issued-1").await.0.is_some() }
        });
        failpoint.reached().await;
        // Only the replica takes connects from here on; the first one's client has gone away.
        let replica = house.start_callout().await;
        first.abort();
        let stopping = tokio::spawn({
            let house = house.clone();
            async move { house.callout.stop().await }
        });
        let mut minted = None;
        while minted.is_none() {
            minted = house.connect_as(&bearer, "nonce-issued-1").await.0;
        }
        let held = accepted(&house, "nonce-issued-1").await.unwrap();
        let generation = held.generation.to_string();
        let describe = describe(&manager, &granted, Some(&generation));
        minted.unwrap().try_publish(&describe, b"").await.unwrap();
        assert_eq!(state(&house, &held).await, "active");

        // Whatever the kill left behind, the end of the lifecycle ends.
        end_issuance(&house, &granted).await;
        assert_eq!(attempts(&house, "active").await, 0, "after write {nth}");
        let reason = house.denied(&bearer, "nonce-issued-1").await;
        assert!(reason.contains("it is not active"), "{reason}");
        assert_eq!(accepted(&house, "nonce-issued-1").await.unwrap(), held, "the nonce stays taken");
        stopping.abort();
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connects_at_once_under_one_nonce_share_one_pair_and_every_other_attempt_has_ended() {
    let house = House::build("demo", Plan::with_callers()).await;
    let replica = house.start_callout().await;
    let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
    let manager = registered(&house, 0).await;
    let bearer = bearer_of(&house, &granted, &manager);
    let outcomes = join_all((0..24).map(|_| house.connect_as(&bearer, "nonce-issued-1"))).await;
    let minted = outcomes.iter().filter(|(client, _)| client.is_some()).count();
    house.answered(24).await;
    assert!(minted >= 1);
    // On a busy machine somebody may wait too long for a turn, and then holds nothing either.
    let told = ["holds another issuance", "too many connects are being issued"];
    let lines = house.lines();
    let turned_away = lines.iter().filter(|line| told.iter().any(|told| line.contains(told))).count();
    assert_eq!(minted + turned_away, 24, "{:#?}", house.lines());
    let held = accepted(&house, "nonce-issued-1").await.unwrap();
    assert_eq!(state(&house, &held).await, "active");
    assert_eq!(attempts(&house, "active").await, 1);
    assert_eq!(attempts(&house, "prepared").await, 0);
    connected(&house, &bearer, "nonce-issued-1").await;
    replica.stop().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_issued_connects_is_issued_over_one_connection_and_plain_ones_go_on_beside_it() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
    let manager = registered(&house, 0).await;
    let (bound, plain) = (bearer_of(&house, &granted, &manager), house.bearer(&granted, Ask::default()));
    let issued = join_all((0..128).map(|_| house.connect(&bound)));
    let plain = join_all((0..32).map(|_| house.connect(&plain)));
    let (issued, plain) = futures::join!(issued, plain);
    assert_eq!(plain.iter().flatten().count(), 32, "{:#?}", house.lines());
    let minted = issued.iter().flatten().count();
    house.answered(160).await;
    // Whoever found no turn in time is told so, and holds nothing.
    let turned_away =
        house.lines().iter().filter(|line| line.contains("too many connects are being issued")).count();
    assert_eq!(minted + turned_away, 128, "{:#?}", house.lines());
    assert!(minted > 0);
    assert_eq!((keys(&house, "v1.>").await.len(), attempts(&house, "active").await), (minted, minted));
    assert_eq!(house.issuers(), (1, 1));
    house.close().await;
}

/// One turn in all, and it is held: nobody else is issued anything, and whoever needs nothing of it connects.
#[tokio::test(flavor = "multi_thread")]
async fn an_issuance_that_hangs_holds_up_issued_connects_alone() {
    let failpoint = Failpoint::stop_after(1);
    let limits = CalloutLimits { max_in_flight: 3, ..Plan::patient().callout_limits };
    let plan = Plan {
        callers: true,
        watch: Some(failpoint.clone()).into(),
        callout_limits: limits,
        ..Plan::patient()
    };
    let house = Arc::new(House::build("demo", plan).await);
    let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
    let manager = registered(&house, 0).await;
    let (bound, plain) = (bearer_of(&house, &granted, &manager), house.bearer(&granted, Ask::default()));
    let hanging = tokio::spawn({
        let (house, bound) = (house.clone(), bound.clone());
        async move { house.connect_as(&bound, "nonce-hanging").await.0.is_some() }
    });
    failpoint.reached().await;
    let reason = house.denied(&bound, &house.nonce()).await;
    assert_eq!(reason, "permissions: too many connects are being issued authority at once; connect again");
    assert!(house.connect(&plain).await.is_some());
    failpoint.release();
    assert!(hanging.await.unwrap(), "and what hung is signed when it goes on");
    assert!(house.connect(&bound).await.is_some());
    Arc::into_inner(house).unwrap().close().await;
}
