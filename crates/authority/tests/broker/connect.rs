//! Deny-new and the supervised reader over a real broker (contract 07 §7.5, §10).

use std::{future::Future, sync::Arc, time::Duration};

use crate::harness::{OWNER, TestClock, World, assert_garbled, bearer, code, eventually, uid};
use cotal_authority::ConnectReader;
use cotal_trust::system::SystemClock;
use cotal_wire::{Clock, EpCode, EpError};
use tokio::time::{error::Elapsed, timeout};

const NOW: u64 = 1_700_000_000;

async fn reader(world: &World, clock: Arc<dyn Clock>) -> Result<Arc<ConnectReader>, EpError> {
    ConnectReader::open(&world.connector, clock).await
}

/// The answer, unless it waits for something.
async fn at_once<T>(answer: impl Future<Output = T>) -> Result<T, Elapsed> {
    timeout(Duration::from_millis(300), answer).await
}

/// Each step mends the fault that the step before it was refused for.
#[tokio::test(flavor = "multi_thread")]
async fn a_connect_is_refused_in_the_contracts_order() {
    let world = World::start().await;
    let _provisioned = world.stores().await;
    let reader = reader(&world, TestClock::at(NOW)).await.unwrap();
    let (mine, end) = (uid(), NOW * 1000);
    let denied = async |says: &str| {
        let refusal = reader.authorize_connect(&bearer("alice", Some(&mine), Some("c1"))).await.unwrap_err();
        assert_eq!(refusal.code, EpCode::PermissionDenied, "{refusal}");
        assert!(refusal.message.contains(says), "{refusal} does not say {says:?}");
    };
    let head = format!("lifecycle.{OWNER}.alice");
    let (alice, bob) = (format!("{OWNER}.alice"), format!("{OWNER}.bob"));

    // A garbled head must not speak before the row has: it is read beside it, and decided after it.
    world.put(&world.records, &head, "{}").await;
    let nothing = reader.authorize_connect(&bearer("alice", None, None)).await.unwrap_err();
    assert!(nothing.message.contains("no credential"), "{nothing}");
    let no_uid = reader.authorize_connect(&bearer("alice", None, Some("c1"))).await.unwrap_err();
    assert!(no_uid.message.contains("no incarnation"), "{no_uid}");
    denied("never issued").await;
    world.plant_credential(&mine, "c1", &bob, "\"root\"", "revoked", end).await;
    denied("was revoked").await;
    world.plant_credential(&mine, "c1", &bob, "\"root\"", "active", end).await;
    denied("another principal's").await;
    world.plant_credential(&mine, "c1", &alice, "\"root\"", "active", end).await;
    denied("has expired").await;
    world.plant_credential(&mine, "c1", &alice, "\"root\"", "active", end + 1).await;
    let garbled = reader.authorize_connect(&bearer("alice", Some(&mine), Some("c1"))).await;
    // Now the head speaks.
    assert_garbled(garbled, &head);
    world.plant_head("alice", &mine, "retired", "").await;
    denied("being retired").await;
    world.plant_head("alice", &mine, "active", "").await;
    denied("another root").await;
    world.plant_head("alice", &mine, "active", ",\"currentCredentialId\":\"c2\"").await;
    denied("another root").await;
    world.plant_head("alice", &mine, "active", ",\"currentCredentialId\":\"c1\"").await;
    reader.authorize_connect(&bearer("alice", Some(&mine), Some("c1"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_does_not_stem_from_the_root_alone_needs_no_head() {
    let world = World::start().await;
    let _provisioned = world.stores().await;
    let reader = reader(&world, TestClock::at(NOW)).await.unwrap();
    let (uid, alice) = (uid(), format!("{OWNER}.alice"));
    world.plant_credential(&uid, "c1", &alice, "\"root\",\"handle.k.h\"", "active", u64::MAX >> 11).await;
    world.delete(&world.records, &format!("lifecycle.{OWNER}.alice")).await;
    reader.authorize_connect(&bearer("alice", Some(&uid), Some("c1"))).await.unwrap();
    world.plant_credential(&uid, "c2", &alice, "\"root\"", "active", u64::MAX >> 11).await;
    let marked = reader.authorize_connect(&bearer("alice", Some(&uid), Some("c2"))).await;
    assert_eq!(code(marked), EpCode::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn markers_and_garbled_rows_deny_with_their_own_codes() {
    let world = World::start().await;
    let _provisioned = world.stores().await;
    let reader = reader(&world, TestClock::at(NOW)).await.unwrap();
    let uid = uid();
    let key = format!("cred.{uid}.c1");
    for garbled in ["", "{}", "[1]", "not json"] {
        world.put(&world.auth, &key, garbled).await;
        let refusal = reader.authorize_connect(&bearer("alice", Some(&uid), Some("c1"))).await;
        assert_garbled(refusal, &key);
    }
    world.delete(&world.auth, &key).await;
    let refusal = reader.authorize_connect(&bearer("alice", Some(&uid), Some("c1"))).await;
    assert_eq!(code(refusal), EpCode::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_over_unproved_stores_does_not_open() {
    let world = World::start().await;
    assert_eq!(code(reader(&world, Arc::new(SystemClock)).await.map(drop)), EpCode::FailedPrecondition);
    eventually("its connection is closed", async || {
        world.custody.connections().iter().any(|owned| owned.label == "cotal:auth-reader:demo" && owned.ended)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_denies_while_the_broker_is_down_and_recovers_by_itself() {
    let mut world = World::start().await;
    let _provisioned = world.stores().await;
    let reader = reader(&world, TestClock::at(NOW)).await.unwrap();
    let (uid, alice) = (uid(), format!("{OWNER}.alice"));
    world.plant_credential(&uid, "c1", &alice, "\"handle.k.h\"", "active", u64::MAX >> 11).await;
    let bearer = bearer("alice", Some(&uid), Some("c1"));
    reader.authorize_connect(&bearer).await.unwrap();

    for _ in 0..2 {
        world.server.kill();
        eventually("the proof falls", async || !reader.is_proved()).await;
        assert_eq!(code(reader.authorize_connect(&bearer).await), EpCode::Unavailable);
        // That one may have waited. An outage that lasts is told at once.
        assert_eq!(code(at_once(reader.authorize_connect(&bearer)).await.unwrap()), EpCode::Unavailable);
        world.server.start_again().await;
        eventually("the proof is made anew", async || reader.is_proved()).await;
        reader.authorize_connect(&bearer).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_in_the_gap_of_an_expiry_waits_for_the_proof() {
    const LANES: usize = 8;
    let world = World::start().await;
    let _provisioned = world.stores().await;
    let short_lived = world.connector.clone().with_renewing_ttl(3);
    let reader = ConnectReader::open(&short_lived, Arc::new(SystemClock)).await.unwrap();
    let (uid, alice) = (uid(), format!("{OWNER}.alice"));
    world.plant_credential(&uid, "c1", &alice, "\"handle.k.h\"", "active", u64::MAX >> 11).await;
    let bearer = bearer("alice", Some(&uid), Some("c1"));
    let mut proofs = world.anything.subscribe("$JS.API.STREAM.INFO.>", None).await.unwrap();
    world.anything.flush().await.unwrap();
    let two_expiries = async {
        // Each proof asks about two stores.
        for _ in 0..4 {
            proofs.next().await.unwrap();
        }
    };
    let lanes = futures::future::select_all((0..LANES).map(|_| {
        Box::pin(async {
            loop {
                if let Err(refusal) = reader.authorize_connect(&bearer).await {
                    return refusal;
                }
            }
        })
    }));
    tokio::select! {
        () = two_expiries => {}
        (refusal, ..) = lanes => panic!("denied: {refusal}"),
    }
    reader.authorize_connect(&bearer).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_stores_drifted_over_a_reconnect_denies_until_they_are_mended() {
    let mut world = World::start().await;
    let _provisioned = world.stores().await;
    let reader = reader(&world, Arc::new(SystemClock)).await.unwrap();
    world.set_allow_direct(true).await;
    assert!(reader.is_proved(), "a proof holds as long as its connection");
    world.server.restart().await;
    eventually("a proof finds the drift", async || {
        assert!(!reader.is_proved(), "proved over drifted stores");
        let fresh = ConnectReader::open(&world.connector, Arc::new(SystemClock)).await;
        fresh.err().is_some_and(|refusal| refusal.code == EpCode::FailedPrecondition)
    })
    .await;
    assert!(!reader.is_proved());
    let bearer = bearer("alice", Some(&uid()), Some("c1"));
    eventually("drifted stores deny without a wait", async || {
        matches!(at_once(reader.authorize_connect(&bearer)).await, Ok(Err(refusal)) if refusal.code == EpCode::Unavailable)
    })
    .await;
    world.set_allow_direct(false).await;
    world.server.restart().await;
    eventually("the proof is made anew", async || reader.is_proved()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_reader_refuses_for_good_and_may_be_closed_again() {
    let world = World::start().await;
    let _provisioned = world.stores().await;
    let reader = reader(&world, Arc::new(SystemClock)).await.unwrap();
    reader.close().await.unwrap();
    reader.close().await.unwrap();
    assert!(!reader.is_proved());
    let bearer = bearer("alice", Some(&uid()), Some("c1"));
    assert_eq!(code(at_once(reader.authorize_connect(&bearer)).await.unwrap()), EpCode::Unavailable);
}
