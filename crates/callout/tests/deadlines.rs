//! Deadlines and shedding, shown with stores that stand still.

mod house;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cotal_callout::{CalloutLimits, Crowd, denial};
use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use house::{Ask, House, Plan, eventually, field};

fn plan(max_in_flight: usize) -> Plan {
    Plan {
        callout_limits: CalloutLimits { max_in_flight, auth_timeout: TIMEOUT, ..CalloutLimits::default() },
        store_apart: true,
        ..Plan::patient()
    }
}

/// The broker's own timeout: long for a busy machine, and a deadline before the 5 s that a store is given to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// So a request is answered this long after its receipt.
const DEADLINE: Duration = Duration::from_millis(4_750);

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
    assert!(took >= DEADLINE, "{took:?}");
    // That it came before the broker's own timeout is what the line says: the broker takes no later answer.
    house.answered(2).await;
    let lines = house.lines();
    let line = lines.iter().find(|line| line.contains(" outcome=timeout ")).expect("a timeout line");
    assert!(line.starts_with("auth callout: level=warn "), "{line}");
    assert_eq!(field(line, "at").as_deref(), Some("ledger"));
    assert_eq!(field(line, "actor").as_deref(), Some("cli"));
    eventually("the reason in the broker's log", || house.server.log().contains(denial::TIMEOUT)).await;
    house.close().await;
}

/// A lane of a host begins with two. Callouts that stand still hold none of its slots up to the most.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_whose_store_stands_still_has_as_many_callouts_in_progress_as_any_service() {
    const MOST: usize = 5;
    let plan = Plan { crowd: Some(Crowd::on(1)), ..plan(MOST) };
    let house = House::build("demo", plan).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());

    let store = house.store.as_ref().unwrap();
    store.pause();
    let clients = join_all((0..MOST + 3).map(|_| house.connect(&bearer))).await;
    store.resume();
    assert!(clients.iter().all(Option::is_none));
    house.answered(MOST + 3).await;
    let timed_out_at = |step: &str| {
        house.lines().iter().filter(|line| field(line, "at").is_some_and(|at| at == step)).count()
    };
    assert_eq!((timed_out_at("ledger"), timed_out_at("queue")), (MOST, 3), "{:#?}", house.lines());
    assert!(house.connect(&bearer).await.is_some(), "{:#?}", house.lines());
    house.close().await;
}

/// In a storm, and after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_of_a_host_answers_everyone_of_a_burst() {
    let house = House::build("demo", Plan { crowd: Some(Crowd::on(2)), ..Plan::patient() }).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    for _ in 0..3 {
        let clients = join_all((0..48).map(|_| house.connect(&bearer))).await;
        assert!(clients.iter().all(Option::is_some), "{:#?}", house.lines());
    }
    house.close().await;
}

/// A storm beside connects to another lane, which it gives way to, refuses nobody in either.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_of_a_host_answers_everyone_of_a_burst_beside_another_that_is_connected_to() {
    let crowd = Crowd::on(2);
    let lane = async || {
        let plan = Plan { crowd: Some(crowd.clone()), ..Plan::patient() };
        let house = House::build("demo", plan).await;
        let granted = house.grant("cli", &[], &["general"], &[]).await;
        let bearer = house.bearer(&granted, Ask::default());
        (house, bearer)
    };
    let ((stormed, of_stormed), (calm, of_calm)) = tokio::join!(lane(), lane());
    let beside = async {
        let mut beside = 0;
        while beside < 3 || stormed.count("minted") < 3 * 48 {
            assert!(calm.connect(&of_calm).await.is_some(), "{:#?}", calm.lines());
            beside += 1;
        }
    };
    let storm = async {
        for _ in 0..3 {
            let clients = join_all((0..48).map(|_| stormed.connect(&of_stormed))).await;
            assert!(clients.iter().all(Option::is_some), "{:#?}", stormed.lines());
        }
    };
    tokio::join!(storm, beside);
    stormed.close().await;
    calm.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_drain_sheds_and_every_request_is_answered_once() {
    let house = House::build("demo", plan(2)).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    assert!(house.connect(&bearer).await.is_some(), "{:#?}", house.lines());

    let store = house.store.as_ref().unwrap();
    store.pause();
    // Two take the slots and the others wait; once the oldest has waited for half the budget, newcomers are shed.
    let early = join_all((0..8).map(|_| house.connect(&bearer)));
    let late = async {
        let (mut newcomers, mut came) = (FuturesUnordered::new(), 0);
        let mut pace = tokio::time::interval(DEADLINE / 20);
        while house.count("shed") == 0 {
            tokio::select! {
                _ = pace.tick() => {
                    newcomers.push(house.connect(&bearer));
                    came += 1;
                }
                Some(client) = newcomers.next() => assert!(client.is_none()),
            }
        }
        assert!(newcomers.all(|client| async move { client.is_none() }).await);
        came
    };
    let (early, newcomers) = tokio::join!(early, late);
    store.resume();
    assert!(early.iter().all(Option::is_none));
    house.answered(1 + 8 + newcomers).await;
    assert_eq!(house.count("timeout") + house.count("shed"), 8 + newcomers, "{:#?}", house.lines());
    let lines = house.lines();
    let at = |step: &str| lines.iter().filter(|line| line.ends_with(&format!(" at={step}"))).count();
    assert!(at("ledger") >= 2 && at("queue") >= 6, "{lines:#?}");
    assert_eq!(at("ledger") + at("queue"), house.count("timeout"), "{lines:#?}");
    for shed in lines.iter().filter(|line| line.contains(" outcome=shed ")) {
        let number = |name| field(shed, name).unwrap().parse::<u128>().unwrap();
        assert!(number("ahead") >= 8 && number("waited_ms") >= (DEADLINE / 2).as_millis(), "{shed}");
        assert!(number("total_ms") < DEADLINE.as_millis(), "it waited for its own deadline: {shed}");
    }

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
