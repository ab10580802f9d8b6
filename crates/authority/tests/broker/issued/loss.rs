//! Issuances that are cut off, at a write or in front of it.

use cotal_authority::{failpoint::Failpoint, issued::retire_lifecycle_issuance};
use cotal_wire::{EpCode, grants::Issued, names::accepted_key, rows::AcceptedRow};

use super::{House, accepted_token, caller, connect, mint, source};
use crate::{
    harness::{code, eventually, uid},
    tap::{Stop, Tap},
};

/// A caller that is cut off after any of its writes, and comes back under the same nonce, as a restarted service or
/// its replica would have it.
#[tokio::test(flavor = "multi_thread")]
async fn an_issuance_that_is_killed_between_any_two_writes_runs_again() {
    let house = House::start().await;
    for nth in 1..=5 {
        let uid = uid();
        let nonce = format!("inbox-nonce-{nth}");
        let alice = caller("alice", &uid, &nonce);
        let failpoint = Failpoint::stop_after(nth);
        let killed = house.session();
        killed.watch(&failpoint);
        let flight = tokio::spawn({
            let alice = alice.clone();
            async move { connect(&killed, &alice).await }
        });
        failpoint.reached().await;
        flight.abort();
        assert!(flight.await.unwrap_err().is_cancelled());

        let session = house.session();
        let permissions = connect(&session, &alice).await.unwrap();
        let row = house.world.text(&house.accepted, &accepted_key(&accepted_token(&nonce))).await.unwrap();
        let accepted = AcceptedRow::parse(row.as_bytes()).unwrap().authority;
        assert_eq!(
            permissions,
            mint(&Issued { generation: accepted.generation.clone(), accepted: accepted_token(&nonce) })
        );
        assert_eq!(house.attempt_state(&accepted).await, "active");
        assert_eq!(house.messages(&house.accepted, &accepted_key(&accepted_token(&nonce))).await, 1);

        // Whatever the cut left behind ends with the lifecycle: nothing stays active, nothing prepared.
        let source = source("alice", &uid);
        let indexed = if (3..5).contains(&nth) { 2 } else { 1 };
        assert_eq!(
            retire_lifecycle_issuance(&house.world.connector, &source).await.unwrap(),
            indexed,
            "{nth}"
        );
        for key in house.issued.keys(&format!("bysource.v1.{}.>", source.digest())).await.unwrap() {
            let attempt = format!("attempt.v1.{}", key.splitn(4, '.').nth(3).unwrap());
            let state = house.world.json(&house.issued, &attempt).await["state"].clone();
            assert!(state == "aborted" || state == "revoked", "{nth}: {state}");
        }
        assert_eq!(code(connect(&session, &alice).await), EpCode::PermissionDenied);
        session.close().await.unwrap();
    }
}

/// The connection is cut after the broker took a write and before its answer came.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_flight_at_the_loss_is_unavailable_and_never_sent_again() {
    let house = House::start().await;
    let tap = Tap::before(house.world.server.port()).await;
    let session = house.session_at(tap.url());
    for (nth, (write, bucket, filter)) in [
        ("HPUB $KV.cotal_issued_demo.v1.", &house.issued, "v1.>"),
        ("HPUB $KV.cotal_issued_demo.attempt.v1.", &house.issued, "attempt.v1.>"),
        ("HPUB $KV.cotal_issued_demo.bysource.v1.", &house.issued, "bysource.v1.>"),
        ("HPUB $KV.cotal_accepted_demo.accepted.v1.", &house.accepted, "accepted.v1.>"),
    ]
    .into_iter()
    .enumerate()
    {
        let uid = uid();
        let alice = caller("alice", &uid, &format!("inbox-nonce-{nth}"));
        // The connection is there, so that the tap sees this write and not a dial.
        connect(&session, &caller("alice", &uid, &format!("warm-up-{nth}"))).await.unwrap();
        let before = bucket.keys(filter).await.unwrap();
        tap.stop(write, Stop::Answer);
        let flight = tokio::spawn({
            let (session, alice) = (session.clone(), alice.clone());
            async move { connect(&session, &alice).await }
        });
        tap.reached().await;
        eventually("the broker took the write", async || {
            bucket.keys(filter).await.unwrap().len() > before.len()
        })
        .await;
        tap.cut();
        assert_eq!(code(flight.await.unwrap()), EpCode::Unavailable, "{write}");

        let landed: Vec<_> =
            bucket.keys(filter).await.unwrap().into_iter().filter(|key| !before.contains(key)).collect();
        assert_eq!(landed.len(), 1, "{write}");
        assert_eq!(house.messages(bucket, &landed[0]).await, 1, "{write} was sent again");

        // The next issuance dials a new connection; what landed is what it finds.
        connect(&session, &alice).await.unwrap();
        assert_eq!(house.messages(bucket, &landed[0]).await, 1, "{write} was sent again later");
    }
    session.close().await.unwrap();
    house.issuers_left(0).await;
}

/// The connection is cut after the broker made the attempt active and before its answer came: nobody was handed
/// anything, so the retry takes a generation of its own.
#[tokio::test(flavor = "multi_thread")]
async fn an_activation_in_flight_at_the_loss_is_handed_to_nobody() {
    let house = House::start().await;
    let tap = Tap::before(house.world.server.port()).await;
    let session = house.session_at(tap.url());
    let uid = uid();
    let alice = caller("alice", &uid, "inbox-nonce-1");
    tap.stop("HPUB $KV.cotal_issued_demo.attempt.v1.", Stop::Before);
    let flight = tokio::spawn({
        let (session, alice) = (session.clone(), alice.clone());
        async move { connect(&session, &alice).await }
    });
    tap.reached().await;
    // The next write of the attempt is the one that makes it active.
    tap.stop("HPUB $KV.cotal_issued_demo.attempt.v1.", Stop::Answer);
    tap.release();
    tap.reached().await;
    let attempts = async || house.issued.keys("attempt.v1.>").await.unwrap();
    eventually("the broker took the activation", async || match attempts().await.as_slice() {
        [attempt] => house.messages(&house.issued, attempt).await == 2,
        _ => false,
    })
    .await;
    tap.cut();
    let refusal = flight.await.unwrap().unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable);
    assert!(refusal.message.contains("could not be retired"), "{refusal}");

    let [lost] = attempts().await.try_into().unwrap();
    connect(&session, &alice).await.unwrap();
    assert_eq!(attempts().await.len(), 2);
    assert_eq!(house.messages(&house.issued, &lost).await, 2, "sent again");
    assert_eq!(retire_lifecycle_issuance(&house.world.connector, &source("alice", &uid)).await.unwrap(), 2);
    assert_eq!(house.world.json(&house.issued, &lost).await["state"], "revoked");
}
