//! Deadlines and shedding, shown with stores that stand still.

mod house;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cotal_callout::{CalloutLimits, denial::TIMEOUT};
use futures::future::join_all;
use house::{Ask, House, Plan, eventually, field};

fn plan(max_in_flight: usize) -> Plan {
    Plan {
        callout_limits: CalloutLimits { max_in_flight, ..CalloutLimits::default() },
        store_apart: true,
        ..Plan::patient()
    }
}

/// The broker's own timeout is 2 s, so a request is answered 1.75 s after its receipt.
const DEADLINE: Duration = Duration::from_millis(1_750);

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stands_still_is_a_signed_timeout_at_the_deadline() {
    let house = House::build("demo", plan(32)).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    assert!(house.connect(&bearer).await.is_some(), "{:#?}", house.lines());

    let store = house.store.as_ref().unwrap();
    store.pause();
    let started = Instant::now();
    assert!(house.connect(&bearer).await.is_none());
    let took = started.elapsed();
    store.resume();
    assert!(took >= DEADLINE && took < Duration::from_millis(2_100), "{took:?}");
    house.answered(2).await;
    let lines = house.lines();
    let line = lines.iter().find(|line| line.contains(" outcome=timeout ")).expect("a timeout line");
    assert!(line.starts_with("auth callout: level=warn "), "{line}");
    assert_eq!(field(line, "at").as_deref(), Some("ledger"));
    assert_eq!(field(line, "actor").as_deref(), Some("cli"));
    eventually("the reason in the broker's log", || house.server.log().contains(TIMEOUT)).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_drain_sheds_and_every_request_is_answered_once() {
    let house = House::build("demo", plan(2)).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    assert!(house.connect(&bearer).await.is_some(), "{:#?}", house.lines());

    let store = house.store.as_ref().unwrap();
    store.pause();
    // Two take the slots and six wait; once the oldest has waited for half the budget a newcomer is shed at once.
    let early = join_all((0..8).map(|_| house.connect(&bearer)));
    let late = async {
        tokio::time::sleep(DEADLINE / 2 + Duration::from_millis(150)).await;
        let started = Instant::now();
        let client = house.connect(&bearer).await;
        (client.is_none(), started.elapsed())
    };
    let (early, (shed, shed_took)) = tokio::join!(early, late);
    store.resume();
    assert!(early.iter().all(Option::is_none));
    assert!(shed && shed_took < Duration::from_millis(600), "{shed_took:?}");
    house.answered(10).await;
    assert_eq!((house.count("timeout"), house.count("shed")), (8, 1), "{:#?}", house.lines());
    let lines = house.lines();
    let at = |step: &str| lines.iter().filter(|line| line.ends_with(&format!(" at={step}"))).count();
    assert_eq!((at("ledger"), at("queue")), (2, 6), "{lines:#?}");
    let shed = lines.iter().find(|line| line.contains(" outcome=shed ")).unwrap();
    assert_eq!(field(shed, "ahead").as_deref(), Some("8"));
    assert!(field(shed, "waited_ms").unwrap().parse::<u64>().unwrap() > 875);

    // The slots come back when the stores do.
    let mut tries = 0;
    while house.connect(&bearer).await.is_none() {
        tries += 1;
        assert!(tries < 50, "{:#?}", house.lines());
    }
    assert_eq!(house.issuance_rows().await, 2, "the first connect's and the last one's");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_in_flight_at_the_deadline_lands_and_its_jwt_never_leaves() {
    let house = House::build("demo", plan(1)).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    // The second reading is `iat`: every check has passed, and the next thing that the store sees is the record.
    let store = Arc::clone(house.store.as_ref().unwrap());
    let paused = Arc::clone(&store);
    house.clock.at_reading(2, move || paused.pause());
    assert!(house.connect(&bearer).await.is_none());
    house.answered(1).await;
    store.resume();
    let lines = house.lines();
    let line = lines.last().unwrap();
    assert!(line.contains(" outcome=timeout ") && line.ends_with(" at=ledger"), "{line}");

    // The one slot is free only once the record has landed, so the next connect comes after it.
    assert!(house.connect(&bearer).await.is_some(), "{:#?}", house.lines());
    assert_eq!(house.issuance_rows().await, 2);
    house.answered(2).await;
    assert_eq!((house.count("minted"), house.count("timeout")), (1, 1));
    house.close().await;
}
