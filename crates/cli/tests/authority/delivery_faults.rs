//! What a delivery daemon that hangs, is down, or starts again does to a retirement, and to the next start.

use std::time::{Duration, Instant};

use cotal_testkit::{daemons::DAEMON_WITHIN, raw::ConnectOutcome};
use futures::future::join_all;
use tokio::time::sleep;

use crate::house::{House, Told, assert_gone};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_delivery_daemon_leaves_an_alias_frozen_until_it_answers_and_the_request_is_repeated() {
    let house = House::start("hung").await;
    let delivery = house.delivery().await;
    let (_service, discovery) = house.service().await;
    let caller = &house.caller;
    let people = house.people("p", 2);
    let mut bearers = Vec::new();
    for person in &people {
        bearers.push(caller.bearer(&discovery, person).await);
    }
    let mut client = caller.connect(&bearers[0]).await.expect("it connects");

    delivery.pause().unwrap();
    let told = caller.retire(&discovery, &people[0]).await;
    // The barrier had begun, so nobody may say that it moved nothing.
    assert_eq!(told, Told::Refused(503, None));
    let reader = house.reader().await;
    assert_eq!(house.head(&reader, &people[0]).await, "retiring");
    reader.close().await.unwrap();
    let (_, refused) = caller.try_connect(&bearers[0]).await;
    assert!(matches!(refused, ConnectOutcome::Refused(_)), "behind the gate nobody connects");
    assert!(caller.connect(&bearers[1]).await.is_some(), "connects need no delivery daemon");

    delivery.resume().unwrap();
    assert_eq!(caller.retire(&discovery, &people[0]).await, Told::Retired);
    house.assert_retired(&people[..1]).await;
    assert_gone(&mut client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_waits_for_the_delivery_daemon_takes_the_dead_claim_and_ends_what_was_owed() {
    let house = House::start("down").await;
    let mut delivery = house.delivery().await;
    let (mut service, discovery) = house.service().await;
    let caller = &house.caller;
    let people = house.people("p", 2);
    let bearer = caller.bearer(&discovery, &people[0]).await;
    let mut client = caller.connect(&bearer).await.expect("it connects");

    assert!(delivery.terminate(DAEMON_WITHIN).await.unwrap().success());
    assert_eq!(caller.retire(&discovery, &people[0]).await, Told::Refused(503, None));
    let reader = house.reader().await;
    assert_eq!(house.head(&reader, &people[0]).await, "retiring");
    client.ping().await.expect("nobody ends it while the daemon is down");
    service.kill().unwrap();

    let mut next = house.seat.auth_service(&house.url()).unwrap();
    let began = Instant::now();
    while !next.said().contains("whether the earlier auth service is gone") {
        assert!(next.ended().unwrap().is_none() && began.elapsed() < DAEMON_WITHIN, "{}", next.said());
        sleep(Duration::from_millis(50)).await;
    }
    assert!(house.seat.discovery(next.pid()).unwrap().is_none(), "it is not ready without the claim");
    delivery = house.delivery().await;
    next.until(DAEMON_WITHIN, |pid| Ok(house.seat.discovery(pid)?.is_some())).await.unwrap();
    // Nobody asked again.
    assert_eq!(house.head(&reader, &people[0]).await, "retired");
    assert_gone(&mut client).await;
    assert_eq!(house.plane_row(&reader).await.unwrap().generation, 2);
    assert!(caller.connect(&bearer).await.is_none());
    reader.close().await.unwrap();

    // Both machines' daemons are killed at once. The delivery daemon waits for its own lease to lapse, which is longer
    // than a start waits for it: a start that ends is started again, as whatever runs it does.
    delivery.kill().unwrap();
    next.kill().unwrap();
    let began = Instant::now();
    let mut delivery = house.seat.delivery(&house.url()).unwrap();
    let mut starts = 0;
    let (_service, discovery) = loop {
        starts += 1;
        let mut service = house.seat.auth_service(&house.url()).unwrap();
        let ready = service.until(DAEMON_WITHIN, |pid| Ok(house.seat.discovery(pid)?.is_some())).await;
        if ready.is_ok() {
            let discovery = house.seat.discovery(service.pid()).unwrap().unwrap();
            break (service, discovery);
        }
        assert_eq!(service.ended().unwrap().and_then(|end| end.code()), Some(1));
        assert!(service.said().contains("delivery daemon"), "it does not say why: {}", service.said());
        assert!(began.elapsed() < DAEMON_WITHIN, "{}", service.said());
    };
    eprintln!("both daemons back after {} s and {starts} starts", began.elapsed().as_secs());
    assert!(delivery.ended().unwrap().is_none());
    caller.bearer(&discovery, &people[1]).await;
    assert_eq!(caller.retire(&discovery, &people[1]).await, Told::Retired);
    house.assert_retired(&people).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_daemon_that_starts_again_during_retirements_makes_none_of_them_false() {
    let house = House::start("again").await;
    let mut delivery = house.delivery().await;
    let (_service, discovery) = house.service().await;
    let caller = &house.caller;
    let people = house.people("p", 8);
    let mut clients = Vec::new();
    for person in &people {
        let bearer = caller.bearer(&discovery, person).await;
        clients.push(caller.connect(&bearer).await.expect("it connects"));
    }
    let asked = join_all(people.iter().zip(0..).map(async |(person, nth)| {
        sleep(Duration::from_millis(nth * 200)).await;
        (person.clone(), caller.retire(&discovery, person).await)
    }));
    let again = async {
        sleep(Duration::from_millis(900)).await;
        assert!(delivery.terminate(DAEMON_WITHIN).await.unwrap().success());
        house.delivery().await
    };
    let (told, delivery) = tokio::join!(asked, again);
    eprintln!("{:?}", told.iter().map(|(_, told)| told).collect::<Vec<_>>());
    for ((person, told), client) in told.iter().zip(&mut clients) {
        match told {
            Told::Retired => assert_gone(client).await,
            Told::Refused(503, None) => {}
            other => panic!("{}: {other:?}", person.principal),
        }
    }
    house.assert_told_the_truth(&told).await;
    for (person, client) in people.iter().zip(&mut clients) {
        assert_eq!(caller.retire(&discovery, person).await, Told::Retired);
        assert_gone(client).await;
    }
    house.assert_retired(&people).await;
    drop(delivery);
}
