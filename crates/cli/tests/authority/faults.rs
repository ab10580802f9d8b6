//! What the broker, the network and the disk do to a retirement and to connects.

use std::time::Duration;

use cotal_testkit::{
    daemons::{DAEMON_WITHIN, Seat},
    proxy::{Net, Proxy},
    raw::ConnectOutcome,
};
use futures::future::join_all;
use serde_json::json;
use tokio::time::sleep;

use crate::house::{COTAL, House, Told, assert_gone, ensure_fenced};

/// How long a paused broker is paused: shorter than what makes a client give it up.
const PAUSE: Duration = Duration::from_secs(10);
/// Until when nothing that was asked during the pause can have come to a success.
const WHILE_PAUSED: Duration = Duration::from_secs(8);
/// What the small disk holds: what a space reserves, and little more.
const SMALL_DISK: u64 = 72 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_broker_makes_no_success_false_and_the_next_start_ends_what_was_owed() {
    let mut house = House::start("restart").await;
    let _delivery = house.delivery().await;
    // From before the first write to between any two of several.
    for (round, offset) in [0, 200, 600, 1200].into_iter().enumerate() {
        let (mut service, discovery) = house.service().await;
        let caller = house.caller.clone();
        let retiring = house.people(&format!("retiring{round}x"), 6);
        let staying = house.people(&format!("staying{round}x"), 3);
        let mut bearers = Vec::new();
        let mut clients = Vec::new();
        for person in &retiring {
            let bearer = caller.bearer(&discovery, person).await;
            clients.push(caller.connect(&bearer).await.expect("it connects"));
            bearers.push(bearer);
        }
        let load = join_all(staying.iter().map(async |person| {
            for _ in 0..10 {
                if let Some(bearer) = caller.exchange(&discovery, person).await {
                    caller.connect(&bearer).await;
                }
            }
        }));
        let asked = join_all(
            retiring.iter().map(async |person| (person.clone(), caller.retire(&discovery, person).await)),
        );
        let server = &mut house.space.server;
        let restart = async {
            sleep(Duration::from_millis(offset)).await;
            server.restart().await;
        };
        let (told, _, ()) = tokio::join!(asked, load, restart);

        // A scanner that lost its connection cannot prove any more that its process owns the plane.
        let end = service.end(DAEMON_WITHIN).await.unwrap();
        ensure_fenced(&service, end.code()).unwrap();
        eprintln!("killed after {offset} ms: {:?}", told.iter().map(|(_, told)| told).collect::<Vec<_>>());
        house.assert_told_the_truth(&told).await;

        let (mut next, discovery) = house.service().await;
        let reader = house.reader().await;
        for (person, told) in &told {
            // What an earlier run had begun, the start has ended: nobody has to ask again.
            let head = house.head(&reader, person).await;
            assert!(head == "retired" || head == "active", "{} is {head} after {told:?}", person.principal);
        }
        reader.close().await.unwrap();
        for person in &retiring {
            assert_eq!(house.caller.retire(&discovery, person).await, Told::Retired);
        }
        house.assert_retired(&retiring).await;
        for (client, bearer) in clients.iter_mut().zip(&bearers) {
            assert_gone(client).await;
            assert!(house.caller.connect(bearer).await.is_none(), "somebody who is retired connects");
        }
        for person in &staying {
            let bearer = house.caller.bearer(&discovery, person).await;
            assert!(house.caller.connect(&bearer).await.is_some(), "{} does not connect", person.principal);
        }
        let log = std::fs::read_to_string(house.seat.log("auth-service")).unwrap();
        house.assert_every_connect_has_its_row(&[log]).await;
        assert!(next.terminate(DAEMON_WITHIN).await.unwrap().success(), "{}", next.said());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_paused_before_during_and_after_a_retirement_makes_none_of_them_false() {
    let house = House::start("paused").await;
    let _delivery = house.delivery().await;
    let (mut service, discovery) = house.service().await;
    let caller = &house.caller;
    let people = house.people("p", 4);
    let (mut bearers, mut clients) = (Vec::new(), Vec::new());
    for person in &people {
        let bearer = caller.bearer(&discovery, person).await;
        clients.push(caller.connect(&bearer).await.expect("it connects"));
        bearers.push(bearer);
    }
    let [before, during, after, staying] = [&people[2], &people[1], &people[0], &people[3]];

    assert_eq!(caller.retire(&discovery, after).await, Told::Retired, "the pause comes after this one");
    let pause = async {
        sleep(Duration::from_millis(20)).await;
        house.space.server.pause();
        sleep(PAUSE).await;
        house.space.server.resume();
    };
    let paused_before = async {
        sleep(Duration::from_millis(500)).await;
        let mut asked = Box::pin(caller.retire(&discovery, before));
        let early = tokio::time::timeout(WHILE_PAUSED, asked.as_mut()).await;
        assert_ne!(early, Ok(Told::Retired), "nothing can be retired while the broker is silent");
        match early {
            Ok(told) => told,
            Err(_) => asked.await,
        }
    };
    let (told_during, told_before, ()) =
        tokio::join!(caller.retire(&discovery, during), paused_before, pause);
    eprintln!("paused during: {told_during:?}, before: {told_before:?}");
    let told = [(during.clone(), told_during), (before.clone(), told_before)];
    house.assert_told_the_truth(&told).await;

    // A service that gave its connections up has fenced itself, and the next start goes on; one that did not, goes on.
    let mut next = None;
    if let Some(status) = service.ended().unwrap() {
        ensure_fenced(&service, status.code()).unwrap();
        next = Some(house.service().await);
    }
    let discovery = next.as_ref().map_or(&discovery, |(_, discovery)| discovery);
    for person in [before, during, after] {
        assert_eq!(caller.retire(discovery, person).await, Told::Retired);
    }
    house.assert_retired(&people[..3]).await;
    for (client, bearer) in clients.iter_mut().zip(&bearers).take(3) {
        assert_gone(client).await;
        assert!(caller.connect(bearer).await.is_none(), "somebody who is retired connects");
    }
    assert!(caller.connect(&caller.bearer(discovery, staying).await).await.is_some());
    let log = std::fs::read_to_string(house.seat.log("auth-service")).unwrap();
    assert!(house.assert_every_connect_has_its_row(&[log]).await >= 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_cut_off_from_its_broker_retires_nobody_and_its_successor_everybody() {
    let house = House::start("parted").await;
    let _delivery = house.delivery().await;
    let proxy = Proxy::start(house.space.server.port()).await.unwrap();
    let people = house.people("p", 3);
    // Another machine, with the same material and straight to the broker.
    let twin = Seat::copy_of(&house.space, COTAL).unwrap();
    let (mut service, discovery) = house.seat.ready_auth_service(&proxy.url()).await.unwrap();
    let caller = &house.caller;
    let (mut bearers, mut clients) = (Vec::new(), Vec::new());
    for person in &people {
        let bearer = caller.bearer(&discovery, person).await;
        clients.push(caller.connect(&bearer).await.expect("it connects"));
        bearers.push(bearer);
    }
    let reader = house.reader().await;
    let first = house.plane_row(&reader).await.unwrap();

    proxy.set(Net::Stalled);
    let told = caller.retire(&discovery, &people[0]).await;
    assert!(matches!(told, Told::Refused(503, _)), "{told:?}");
    assert_eq!(house.head(&reader, &people[0]).await, "active");
    let (_, refused) = caller.try_connect(&bearers[1]).await;
    assert!(matches!(refused, ConnectOutcome::Refused(_)), "nobody answers the broker's callout");
    assert_eq!(
        caller.exchange(&discovery, &people[1]).await,
        None,
        "no credential is proved, so none is signed for"
    );
    // To the broker the service's connections are there, so nobody may take its place.
    let mut second = twin.auth_service(&house.url()).unwrap();
    let end = second.end(DAEMON_WITHIN).await.unwrap();
    assert_eq!(end.code(), Some(1));
    assert!(second.said().contains("another auth process owns"), "{}", second.said());
    assert!(house.plane_row(&reader).await.unwrap().is_same_claim(&first));

    // The network is back before anybody gave up: the same process goes on, and what was ambiguous ends when asked.
    proxy.set(Net::Up);
    let mut told = caller.retire(&discovery, &people[0]).await;
    if told != Told::Retired {
        // What lay in the network while it stalled arrives now, and may come first.
        eprintln!("right after the stall: {told:?}");
        told = caller.retire(&discovery, &people[0]).await;
    }
    assert_eq!(told, Told::Retired, "{}", service.said());
    house.assert_retired(&people[..1]).await;
    assert_gone(&mut clients[0]).await;

    proxy.set(Net::Cut);
    let end = service.end(DAEMON_WITHIN).await.unwrap();
    ensure_fenced(&service, end.code()).unwrap();
    assert_eq!(house.head(&reader, &people[1]).await, "active");
    let (_successor, elsewhere) = twin.ready_auth_service(&house.url()).await.unwrap();
    let row = house.plane_row(&reader).await.unwrap();
    assert_eq!(row.generation, first.generation + 1);
    proxy.set(Net::Up);
    let mut returned = house.seat.auth_service(&proxy.url()).unwrap();
    assert_eq!(returned.end(DAEMON_WITHIN).await.unwrap().code(), Some(1));
    assert!(returned.said().contains("another auth process owns"), "{}", returned.said());
    assert_eq!(caller.retire(&elsewhere, &people[1]).await, Told::Retired);
    house.assert_retired(&people[..2]).await;
    assert_gone(&mut clients[1]).await;
    clients[2].ping().await.expect("who was not retired stays");
    reader.close().await.unwrap();
    let logs = [&house.seat, &twin].map(|seat| std::fs::read_to_string(seat.log("auth-service")).unwrap());
    house.assert_every_connect_has_its_row(&logs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_does_not_know_that_it_was_replaced_retires_nobody() {
    let house = House::start("replaced").await;
    let _delivery = house.delivery().await;
    let proxy = Proxy::start(house.space.server.port()).await.unwrap();
    let people = house.people("p", 2);
    let twin = Seat::copy_of(&house.space, COTAL).unwrap();
    let caller = &house.caller;
    let reader = house.reader().await;
    // One hears nothing of its connections' end; one is paused while they end, with a request before it.
    for (silence, person) in [Net::Vanished, Net::Cut].into_iter().zip(&people) {
        let (mut service, discovery) = house.seat.ready_auth_service(&proxy.url()).await.unwrap();
        let bearer = caller.bearer(&discovery, person).await;
        let mut client = caller.connect(&bearer).await.expect("it connects");
        let held = house.plane_row(&reader).await.unwrap();
        if silence == Net::Cut {
            service.pause().unwrap();
        }
        proxy.set(silence);
        let mut asked = Box::pin(caller.retire(&discovery, person));
        // Under way, and not answered before its successor is there.
        let early = tokio::time::timeout(Duration::from_millis(200), asked.as_mut()).await;
        let (mut successor, elsewhere) = twin.ready_auth_service(&house.url()).await.unwrap();
        assert_eq!(house.plane_row(&reader).await.unwrap().generation, held.generation + 1);
        if silence == Net::Cut {
            service.resume().unwrap();
        }
        let told = match early {
            Ok(told) => told,
            Err(_) => asked.await,
        };
        eprintln!("{silence:?}: {told:?}");
        assert_ne!(told, Told::Retired);
        assert_eq!(house.head(&reader, person).await, "active", "{told:?}");
        client.ping().await.expect("nobody was retired");
        proxy.set(Net::Up);
        let end = service.end(DAEMON_WITHIN).await.unwrap();
        ensure_fenced(&service, end.code()).unwrap();

        assert_eq!(caller.retire(&elsewhere, person).await, Told::Retired);
        assert_gone(&mut client).await;
        assert!(successor.terminate(DAEMON_WITHIN).await.unwrap().success(), "{}", successor.said());
    }
    house.assert_retired(&people).await;
    reader.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_connects_and_retirements_and_nothing_is_lost_when_there_is_room_again() {
    let house = House::start_bounded("full", Some(SMALL_DISK)).await;
    let mut delivery = house.delivery().await;
    let (mut service, discovery) = house.service().await;
    let caller = &house.caller;
    let people = house.people("p", 4);
    let bearers = [caller.bearer(&discovery, &people[0]).await, caller.bearer(&discovery, &people[1]).await];
    let mut client = caller.connect(&bearers[0]).await.expect("it connects");
    // One retirement is under way when the disk becomes full: it waits behind its gate for the delivery daemon.
    let begun = &people[3];
    caller.connect(&caller.bearer(&discovery, begun).await).await.expect("it connects");
    assert!(delivery.terminate(DAEMON_WITHIN).await.unwrap().success());
    assert_eq!(caller.retire(&discovery, begun).await, Told::Refused(503, None));
    delivery = house.delivery().await;

    let filler = house.reader().await;
    let wait = Duration::from_secs(10);
    let ask = async |verb: &str, body: serde_json::Value| {
        let subject = format!("$JS.API.STREAM.{verb}.FILL");
        let answer = filler.request(&subject, &[], body.to_string().into(), wait).await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&answer.payload).unwrap()
    };
    let made = ask("CREATE", json!({ "name": "FILL", "subjects": ["fill.>"], "storage": "file" })).await;
    assert_eq!(made.get("error"), None, "{made}");
    let full = loop {
        let answer = filler.request("fill.x", &[], vec![0; 256 * 1024].into(), wait).await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        if let Some(error) = answer.get("error") {
            break error.clone();
        }
    };
    eprintln!("the broker is full: {full}");

    // No row, no connect; no credential row, no bearer; no write, no retirement.
    let (_, refused) = caller.try_connect(&bearers[1]).await;
    assert!(matches!(refused, ConnectOutcome::Refused(_)), "{refused:?}");
    assert_eq!(caller.exchange(&discovery, &people[2]).await, None);
    let told = caller.retire(&discovery, &people[0]).await;
    eprintln!("a retirement on a full disk: {told:?}");
    assert!(matches!(told, Told::Refused(503, _)), "{told:?}");
    assert_eq!(house.head(&filler, &people[0]).await, "active");
    client.ping().await.expect("who is connected stays");
    assert_eq!(caller.retire(&discovery, begun).await, Told::Refused(503, None));
    assert_eq!(house.head(&filler, begun).await, "retiring", "its last writes did not land");
    // A start cannot say that it owns the plane, so it does not start.
    service.kill().unwrap();
    let mut refused = house.seat.auth_service(&house.url()).unwrap();
    assert_eq!(refused.end(DAEMON_WITHIN).await.unwrap().code(), Some(1));
    eprintln!("a start on a full disk: {}", refused.said().lines().last().unwrap_or_default());

    let deleted = ask("DELETE", json!({})).await;
    assert_eq!(deleted.get("error"), None, "{deleted}");
    filler.close().await.unwrap();
    assert!(delivery.ended().unwrap().is_none(), "a lease outlives a disk that is full for a while");
    let (_service, discovery) = house.service().await;
    house.assert_retired(std::slice::from_ref(begun)).await;
    assert!(caller.connect(&bearers[1]).await.is_some());
    caller.bearer(&discovery, &people[2]).await;
    assert_eq!(caller.retire(&discovery, &people[0]).await, Told::Retired);
    house.assert_retired(&people[..1]).await;
    assert_gone(&mut client).await;
    let log = std::fs::read_to_string(house.seat.log("auth-service")).unwrap();
    house.assert_every_connect_has_its_row(&[log]).await;
}
