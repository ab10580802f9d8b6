//! Connections over a real broker: credentials, reconnects, custody, the end (contract 07 §7.2-7.3, 04 §16).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cotal_broker::{Connection, ConnectionState, Connector, Lifetime, connector::INFRA_TTL_SECS};
use cotal_trust::{bundle::DataAccount, nkey::Seed, system::SystemClock, system::SystemEntropy};
use cotal_wire::{Account, Actor, Clock, EpCode, Permissions, Principal, Rules, UnixMillis};
use support::{Fixture, everything, fixture, only, wait_for};

const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("within the test's patience")
}

/// The claims of the JWT that a connection presented, as the broker shows them to itself.
async fn whoami(connection: &Connection) -> serde_json::Value {
    let answer = connection.request("$SYS.REQ.USER.INFO", &[], Bytes::new(), PATIENCE).await.unwrap();
    serde_json::from_slice::<serde_json::Value>(&answer.payload).unwrap()["data"].clone()
}

/// Answers everything on `echo.>`.
async fn echo(f: &Fixture) -> Connection {
    let connection = f.open("echo").await;
    let mut requests = connection.subscribe("echo.>", Some("echo")).await.unwrap();
    connection.flush().await.unwrap();
    let answering = connection.clone();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let Some(reply) = request.reply.clone() else { continue };
            let seen = request.header("Seen").unwrap_or("-").to_owned();
            let _ = answering.publish(&reply, &[("Seen", &seen)], request.payload).await;
        }
    });
    connection
}

#[tokio::test]
async fn a_self_minted_connection_is_the_user_it_signed() {
    let f = fixture().await;
    let connection = f.open("auth-reader").await;
    let user = whoami(&connection).await;
    assert_eq!(user["user"], connection.user_nkey().as_str());
    assert_eq!(connection.label(), "cotal:auth-reader:main");
    let expires = user["expires"].as_u64().unwrap() / 1_000_000_000;
    assert!((INFRA_TTL_SECS - 10..=INFRA_TTL_SECS).contains(&expires), "{expires}");
    assert!(connection.tuple().is_none());
}

#[tokio::test]
async fn each_connection_has_its_own_nkey() {
    let f = fixture().await;
    assert_ne!(f.open("a").await.user_nkey(), f.open("a").await.user_nkey());
}

#[tokio::test]
async fn a_subscription_that_nobody_reads_holds_so_many_messages_and_no_more() {
    const HELD: usize = 8_192;
    let f = fixture().await;
    let (reader, writer) = (f.open("reader").await, f.open("writer").await);
    let mut subscription = reader.subscribe("pile.>", None).await.unwrap();
    reader.flush().await.unwrap();
    for n in 0..HELD + 1_000 {
        writer.publish(&format!("pile.{n}"), &[], Bytes::new()).await.unwrap();
    }
    writer.flush().await.unwrap();
    // The reader's own flush answers behind everything that was delivered.
    reader.flush().await.unwrap();
    for n in 0..HELD {
        assert_eq!(subscription.next().await.unwrap().subject, format!("pile.{n}"));
    }
    writer.publish("pile.last", &[], Bytes::new()).await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(subscription.next().await.unwrap().subject, "pile.last", "what did not fit is gone");
}

#[tokio::test]
async fn requests_work_under_the_narrow_inbox_grant() {
    let f = fixture().await;
    let _echo = echo(&f).await;
    let narrow =
        f.connector.open("cotal:narrow:main".into(), &only(&["echo.>"]), Lifetime::Renewing).await.unwrap();
    for n in 0..3 {
        let answer = narrow
            .request("echo.x", &[("Seen", "yes")], Bytes::from(format!("{n}")), PATIENCE)
            .await
            .unwrap();
        assert_eq!((&*answer.payload, answer.header("Seen")), (n.to_string().as_bytes(), Some("yes")));
        assert!(answer.subject.starts_with(&format!("_INBOX_{}.", narrow.user_nkey())));
    }
    narrow.flush().await.unwrap();
}

#[tokio::test]
async fn what_the_grant_does_not_name_is_denied_at_once() {
    let f = fixture().await;
    let narrow =
        f.connector.open("cotal:narrow:main".into(), &only(&["echo.>"]), Lifetime::Renewing).await.unwrap();
    let denied = soon(narrow.request("other.x", &[], Bytes::new(), Duration::from_secs(600))).await;
    assert_eq!(denied.unwrap_err().code, EpCode::PermissionDenied);

    narrow.publish("other.y", &[], Bytes::new()).await.unwrap();
    let error = narrow.flush().await.unwrap_err();
    assert_eq!(error.code, EpCode::PermissionDenied);
    assert!(error.message.contains("other.y"), "{}", error.message);
    narrow.flush().await.unwrap();

    let _subscription = narrow.subscribe("other.>", None).await.unwrap();
    assert_eq!(narrow.flush().await.unwrap_err().code, EpCode::PermissionDenied);
}

#[tokio::test]
async fn no_responder_and_a_timeout_are_unavailable() {
    let f = fixture().await;
    let connection = f.open("test").await;
    let nobody = soon(connection.request("nobody.x", &[], Bytes::new(), Duration::from_secs(600))).await;
    assert_eq!(nobody.unwrap_err().code, EpCode::Unavailable);
    let _silent = connection.subscribe("silent", None).await.unwrap();
    let silent = connection.request("silent", &[], Bytes::new(), Duration::from_millis(50)).await;
    assert_eq!(silent.unwrap_err().code, EpCode::Unavailable);
    for bad in ["", "a b", "a\r\nPUB x 0"] {
        let refused = connection.request(bad, &[], Bytes::new(), PATIENCE).await.unwrap_err();
        assert_eq!(refused.code, EpCode::BadRequest, "{bad:?}");
    }
}

#[tokio::test]
async fn a_grant_that_names_nothing_never_reaches_the_broker() {
    let f = fixture().await;
    let unrestricted = |_: &cotal_wire::ConnId| Permissions {
        publish: Rules::default(),
        subscribe: Rules { allow: vec!["a".into()], deny: vec![] },
    };
    let refused = f.connector.open("cotal:x:main".into(), &unrestricted, Lifetime::Renewing).await;
    assert_eq!(refused.unwrap_err().code, EpCode::Internal);
    assert!(f.custody.connections().is_empty());
}

#[tokio::test]
async fn a_renewing_connection_outlives_its_credential_and_keeps_its_nkey_and_subscriptions() {
    let f = fixture().await;
    let short = f.connector.clone().with_renewing_ttl(3);
    let connection = short.open("cotal:short:main".into(), &everything, Lifetime::Renewing).await.unwrap();
    let mut subscription = connection.subscribe("news", None).await.unwrap();
    let nkey = connection.user_nkey().clone();
    wait_for(&connection, |state| matches!(state, ConnectionState::Connected(n) if n >= 2)).await;
    assert_eq!(whoami(&connection).await["user"], nkey.as_str());
    connection.flush().await.unwrap();
    f.open("teller").await.publish("news", &[], Bytes::from("still here")).await.unwrap();
    assert_eq!(soon(subscription.next()).await.unwrap().payload, "still here");
}

#[tokio::test]
async fn a_connection_that_ends_with_its_broker_outlives_its_credential_and_not_the_broker() {
    let mut f = fixture().await;
    let connector = f.connector.clone().with_renewing_ttl(3).ending_with_the_broker();
    let connection = connector.open("cotal:a:main".into(), &everything, Lifetime::Renewing).await.unwrap();
    wait_for(&connection, |state| matches!(state, ConnectionState::Connected(n) if n >= 2)).await;
    assert!(connection.failure().is_none());
    f.server.kill();
    soon(connection.ended()).await;
    assert!(connection.failure().unwrap().message.contains("did not take it back (attempts: 1)"));
    wait_for(&connection, |state| state == ConnectionState::Closed).await;
}

/// The system's clock, some seconds behind.
struct Behind(AtomicU64);

impl Clock for Behind {
    fn now_millis(&self) -> UnixMillis {
        UnixMillis(SystemClock.now_millis().0 - 1000 * self.0.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn a_reconnect_after_a_restart_presents_a_renewed_credential() {
    let mut f = fixture().await;
    let clock = Arc::new(Behind(AtomicU64::new(600)));
    let connector = Connector::new(
        &f.server.url(),
        f.space.clone(),
        f.account.clone(),
        f.custody.clone(),
        Arc::<Behind>::clone(&clock),
        Arc::new(SystemEntropy),
    );
    let connection = connector.open("cotal:a:main".into(), &everything, Lifetime::Renewing).await.unwrap();
    let lives = async || whoami(&connection).await["expires"].as_u64().unwrap() / 1_000_000_000;
    assert!(lives().await <= INFRA_TTL_SECS - 600);
    let mut subscription = connection.subscribe("news", Some("q")).await.unwrap();
    clock.0.store(0, Ordering::Relaxed);
    f.server.restart().await;
    wait_for(&connection, |state| state == ConnectionState::Connected(2)).await;
    assert!(lives().await > INFRA_TTL_SECS - 600);
    connection.flush().await.unwrap();
    connection.publish("news", &[], Bytes::from("again")).await.unwrap();
    assert_eq!(soon(subscription.next()).await.unwrap().payload, "again");
}

#[tokio::test]
async fn a_request_between_connections_waits_for_the_next_one() {
    let mut f = fixture().await;
    let connection = f.open("patient").await;
    f.server.kill();
    wait_for(&connection, |state| state == ConnectionState::Disconnected).await;
    let asking = connection.clone();
    let request =
        tokio::spawn(async move { asking.request("$JS.API.INFO", &[], Bytes::new(), PATIENCE).await });
    assert!(connection.publish("x", &[], Bytes::new()).await.is_err(), "nothing is queued for later");
    f.server.start_again().await;
    soon(request).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_one_shot_connection_ends_with_its_first_cut_and_carries_its_principal() {
    let mut f = fixture().await;
    let principal = Principal::new(cotal_wire::Owner::local(), Actor::parse("epcln_1").unwrap());
    let lifetime = Lifetime::OneShot { ttl_secs: 60, principal: Some(principal) };
    let connection = f.connector.open("cotal:ep-cleaner:main".into(), &everything, lifetime).await.unwrap();
    let expires = whoami(&connection).await["expires"].as_u64().unwrap() / 1_000_000_000;
    assert!(expires <= 60);
    f.server.kill();
    soon(connection.ended()).await;
    assert_eq!(*connection.state().borrow(), ConnectionState::Closed);
    assert_eq!(connection.failure().unwrap().code, EpCode::Unavailable);
    f.server.start_again().await;
    assert!(connection.request("$JS.API.INFO", &[], Bytes::new(), PATIENCE).await.is_err());
}

#[tokio::test]
async fn a_plane_owned_connection_has_no_expiry_and_its_tuple_is_the_brokers() {
    let mut f = fixture().await;
    let connection =
        f.connector.open("cotal:auth-scan:main".into(), &everything, Lifetime::PlaneOwned).await.unwrap();
    let tuple = connection.tuple().unwrap().clone();
    assert!(tuple.server_id.starts_with('N') && tuple.client_id > 0);
    assert_eq!(&tuple.user_nkey, connection.user_nkey());
    assert!(whoami(&connection).await.get("expires").is_none_or(|expires| expires == 0));
    let other =
        f.connector.open("cotal:records-scan:main".into(), &everything, Lifetime::PlaneOwned).await.unwrap();
    assert!(other.tuple().unwrap().client_id > tuple.client_id);
    f.server.restart().await;
    soon(connection.ended()).await;
    assert_eq!(*connection.state().borrow(), ConnectionState::Closed, "a restart is a fencing event");
}

#[tokio::test]
async fn a_signer_that_the_account_does_not_name_is_unavailable() {
    let f = fixture().await;
    let stranger = DataAccount {
        account: Seed::<Account>::generate(&SystemEntropy).public().clone(),
        signing: Seed::generate(&SystemEntropy),
    };
    let connector = Connector::new(
        &f.server.url(),
        f.space.clone(),
        stranger,
        f.custody.clone(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    );
    let refused = connector.open("cotal:stranger:main".into(), &everything, Lifetime::Renewing).await;
    let error = refused.unwrap_err();
    assert_eq!(error.code, EpCode::Unavailable);
    assert!(error.message.contains("authorization violation"), "{}", error.message);
    assert!(f.custody.connections().is_empty());
}

#[tokio::test]
async fn custody_lists_every_connection_and_resolves_when_the_last_has_ended() {
    let f = fixture().await;
    let (a, b) = (f.open("a").await, f.open("b").await);
    a.close().await.unwrap();
    assert_eq!(a.failure(), None, "it was asked to end");
    let listed: Vec<_> =
        f.custody.connections().into_iter().map(|owned| (owned.label, owned.ended)).collect();
    assert_eq!(listed, [("cotal:a:main".into(), true), ("cotal:b:main".into(), false)]);
    for _ in 0..3 {
        f.open("a").await.close().await.unwrap();
    }
    let again = f.open("a").await;
    let listed: Vec<_> =
        f.custody.connections().into_iter().map(|owned| (owned.label, owned.ended, owned.count)).collect();
    let label = |role: &str| format!("cotal:{role}:main");
    assert_eq!(
        listed,
        [(label("a"), true, 4), (label("b"), false, 1), (label("a"), false, 1)],
        "those that have ended take one row a label, however many there were"
    );

    let custody = f.custody.clone();
    let closed = tokio::spawn(async move { custody.closed().await });
    f.custody.complete();
    tokio::task::yield_now().await;
    assert!(!closed.is_finished());
    again.close().await.unwrap();
    b.close().await.unwrap();
    assert!(soon(closed).await.unwrap().iter().all(|owned| owned.ended));
    let late = f.connector.open("cotal:late:main".into(), &everything, Lifetime::Renewing).await;
    assert_eq!(late.unwrap_err().code, EpCode::Unavailable);
}

#[tokio::test]
async fn closing_what_remains_ends_every_connection_connected_or_not() {
    let mut f = fixture().await;
    let connections = [f.open("a").await, f.open("b").await];
    f.server.kill();
    for connection in &connections {
        wait_for(connection, |state| state == ConnectionState::Disconnected).await;
    }
    soon(f.custody.close_remaining()).await.unwrap();
    assert!(f.custody.connections().iter().all(|owned| owned.ended));
}

#[tokio::test]
async fn a_stopped_broker_does_not_keep_a_connection_from_ending() {
    let f = fixture().await;
    let connection = f.open("a").await;
    f.server.pause();
    soon(connection.close()).await.unwrap();
    f.server.resume();
    assert!(f.custody.connections().iter().all(|owned| owned.ended));
}

#[tokio::test]
async fn the_last_clone_dropped_ends_the_connection() {
    let f = fixture().await;
    let connection = f.open("a").await;
    let mut subscription = connection.subscribe("x", None).await.unwrap();
    let clone = connection.clone();
    drop(connection);
    clone.flush().await.unwrap();
    drop(clone);
    assert!(soon(subscription.next()).await.is_none());
    f.custody.complete();
    soon(f.custody.closed()).await;
}

#[tokio::test]
async fn closing_sends_what_was_published_before_it() {
    let f = fixture().await;
    let reader = f.open("reader").await;
    let mut news = reader.subscribe("news", None).await.unwrap();
    reader.flush().await.unwrap();
    let writer = f.open("writer").await;
    for n in 0..100 {
        writer.publish("news", &[], Bytes::from(n.to_string())).await.unwrap();
    }
    writer.close().await.unwrap();
    for n in 0..100 {
        assert_eq!(soon(news.next()).await.unwrap().payload, n.to_string());
    }
}

#[tokio::test]
async fn creds_text_connects_as_its_user_and_a_flush_works_without_an_inbox() {
    let f = fixture().await;
    let user = Seed::<cotal_wire::User>::generate(&SystemEntropy);
    let claims = cotal_trust::jwt::UserClaims {
        name: "callout".into(),
        subject: user.public().clone(),
        issuer_account: f.account.account.clone(),
        permissions: Permissions {
            publish: Rules { allow: vec![">".into()], deny: vec!["$SYS.REQ.USER.AUTH".into()] },
            subscribe: Rules { allow: vec!["work".into()], deny: vec![] },
        },
        tags: vec![],
        exp: None,
    };
    let jwt = cotal_trust::jwt::encode_user(&claims, &f.account.signing, SystemClock.now_secs());
    let text = cotal_trust::creds::format(&cotal_trust::creds::Creds { jwt, seed: user });
    let callout = f.connector.open_creds("cotal:auth-service:main".into(), &text).await.unwrap();
    let mut work = callout.subscribe("work", Some("q")).await.unwrap();
    callout.flush().await.unwrap();
    f.open("teller").await.publish("work", &[], Bytes::from("1")).await.unwrap();
    assert_eq!(soon(work.next()).await.unwrap().payload, "1");
    let garbled = f.connector.open_creds("cotal:auth-service:main".into(), "no creds").await;
    assert_eq!(garbled.unwrap_err().code, EpCode::BadRequest);
}
