//! The session that issues to connects, and the one-shot windows beside it.

use std::{sync::Arc, time::Duration};

use cotal_authority::issued::{IssuerSession, retire_lifecycle_issuance, with_issuer_session};
use cotal_broker::{ConnectionState, kv::LeaderRead};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{EpCode, EpError, Names, names::accepted_key};

use super::{House, accepted_token, authority, caller, connect, evidence, mint, release, source};
use crate::{
    harness::{code, uid},
    tap::{Stop, Tap},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_is_issued_once_and_confirmed_after() {
    let house = House::start().await;
    let session = house.session();
    let (uid, later) = (uid(), uid());
    let alice = caller("alice", &uid, "inbox-nonce-1");
    let first = connect(&session, &alice).await.unwrap();
    assert_eq!(connect(&session, &alice).await.unwrap(), first, "the same generation is pinned");
    let second = connect(&session, &caller("alice", &uid, "inbox-nonce-2")).await.unwrap();
    assert_ne!(second, first, "another nonce is another generation");

    for foreign in [caller("bob", &uid, "inbox-nonce-1"), caller("alice", &later, "inbox-nonce-1")] {
        assert_eq!(code(connect(&session, &foreign).await), EpCode::PermissionDenied);
    }
    let wider = session
        .issue_user_caller(&alice, |issued| {
            let mut wider = mint(&issued);
            wider.publish.allow.push("more.>".to_owned());
            Ok(wider)
        })
        .await;
    assert_eq!(code(wider), EpCode::FailedPrecondition);
    let third = caller("alice", &uid, "inbox-nonce-3");
    let refused =
        session.issue_user_caller(&third, |_| Err(EpError::permission_denied("no such view"))).await;
    assert_eq!(code(refused), EpCode::PermissionDenied);
    assert_eq!(house.messages(&house.accepted, &accepted_key(&accepted_token("inbox-nonce-3"))).await, 0);
    assert_eq!(house.issuer_connections(), (1, 1), "one connection for all of it");

    // Everything that rests on the row ends with it, and the nonces stay taken.
    assert_eq!(retire_lifecycle_issuance(&house.world.connector, &source("alice", &uid)).await.unwrap(), 2);
    assert_eq!(code(connect(&session, &alice).await), EpCode::PermissionDenied);
    assert_eq!(retire_lifecycle_issuance(&house.world.connector, &source("alice", &uid)).await.unwrap(), 2);
    assert_eq!(retire_lifecycle_issuance(&house.world.connector, &source("alice", &later)).await.unwrap(), 0);
    house.issuers_left(1).await;
    assert_eq!(house.issuer_connections().0, 4, "three one-shot connections");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_is_replaced_without_a_gap_and_each_connection_ends() {
    let house = House::start().await;
    let session = IssuerSession::new(house.world.connector.clone(), Arc::new(SystemEntropy), 5).unwrap();
    let uid = uid();
    let issuing = (0..8).map(|worker| {
        let (session, house, uid) = (&session, &house, &uid);
        async move {
            let mut issued = 0;
            // Until the third connection serves: two replacements were lived through.
            while house.issuer_connections().0 < 3 {
                let nonce = format!("worker-{worker}-{issued}");
                connect(session, &caller("alice", uid, &nonce)).await.unwrap();
                issued += 1;
            }
            issued
        }
    });
    let issued = futures::future::join_all(issuing).await;
    assert!(issued.iter().all(|issued| *issued > 0), "{issued:?}");
    house.issuers_left(1).await;
    session.close().await.unwrap();
    house.issuers_left(0).await;
    assert_eq!(code(connect(&session, &caller("alice", &uid, "too-late-1")).await), EpCode::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_session_ends_what_is_in_flight_and_everything_after() {
    let house = House::start().await;
    let tap = Tap::before(house.world.server.port()).await;
    let session = house.session_at(tap.url());
    let uid = uid();
    connect(&session, &caller("alice", &uid, "inbox-nonce-0")).await.unwrap();
    tap.stop("HPUB $KV.cotal_issued_demo.v1.", Stop::Before);
    let flight = tokio::spawn({
        let (session, alice) = (session.clone(), caller("alice", &uid, "inbox-nonce-1"));
        async move { connect(&session, &alice).await }
    });
    tap.reached().await;
    session.close().await.unwrap();
    assert_eq!(code(flight.await.unwrap()), EpCode::Unavailable);
    house.issuers_left(0).await;
    for _ in 0..2 {
        assert_eq!(
            code(connect(&session, &caller("alice", &uid, "inbox-nonce-2")).await),
            EpCode::Unavailable
        );
        session.close().await.unwrap();
    }
    assert_eq!(house.issuer_connections().0, 1, "a closed session dials no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drifted_or_absent_store_issues_nothing() {
    let house = House::start().await;
    let stream = Names::kv_stream(house.issued.name());
    let api = async |verb: &str, body: String| {
        let subject = format!("$JS.API.STREAM.{verb}.{stream}");
        house.world.anything.request(&subject, &[], body.into(), Duration::from_secs(10)).await.unwrap();
    };
    api("DELETE", String::new()).await;
    let denied = connect(&house.session(), &caller("alice", &uid(), "inbox-nonce-1")).await;
    assert_eq!(code(denied), EpCode::FailedPrecondition);
    let retired = retire_lifecycle_issuance(&house.world.connector, &source("alice", &uid())).await;
    assert_eq!(code(retired), EpCode::FailedPrecondition);
    let ran = with_issuer_session(&house.world.connector, async |_| Ok(())).await;
    assert_eq!(code(ran), EpCode::FailedPrecondition);
    house.issuers_left(0).await;
    for ttl in [0, 4, 301] {
        let session = IssuerSession::new(house.world.connector.clone(), Arc::new(SystemEntropy), ttl);
        assert_eq!(session.err().unwrap().code, EpCode::BadRequest, "{ttl}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_shot_window_is_drained_whatever_its_work_came_to() {
    let house = House::start().await;
    let uid = uid();
    let held = authority("alice", &uid);
    let released = with_issuer_session(&house.world.connector, async |store| {
        release(store, evidence(&held, &[&source("alice", &uid)], None)).await
    });
    assert_eq!(released.await.unwrap(), held);
    let failed =
        with_issuer_session(&house.world.connector, async |_| Err::<(), _>(EpError::bad_request("no")));
    assert_eq!(code(failed.await), EpCode::BadRequest);
    house.issuers_left(0).await;
    assert_eq!(house.issuer_connections().0, 2);
    let reads = house.issued.leader_read(&held.attempt_key()).await.unwrap();
    assert!(matches!(reads, LeaderRead::Value(_)));
    let connection = house.connection().await;
    assert!(matches!(*connection.state().borrow(), ConnectionState::Connected(_)));
}
