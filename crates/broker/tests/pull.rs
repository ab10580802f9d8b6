//! A bound pull durable and create-only messages over a real broker (contract 07 §6.4, §12.3).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod support;

use std::time::Duration;

use cotal_broker::{Connection, Journal, Lifetime, PullDurable, kv::WriteOutcome};
use cotal_wire::EpCode;
use serde_json::{Value, json};
use support::{Fixture, everything, fixture, only};

const STREAM: &str = "EPW_main";
const FILTER: &str = "cotal.main.epw.e.p.>";

async fn api(connection: &Connection, verb: &str, body: Value) -> Value {
    let subject = format!("$JS.API.{verb}");
    let answer =
        connection.request(&subject, &[], body.to_string().into(), Duration::from_secs(10)).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

async fn work_queue(f: &Fixture) -> Connection {
    let connection = f.connector.open("t".to_owned(), &everything, Lifetime::Renewing).await.unwrap();
    let config = json!({
        "name": STREAM, "subjects": ["cotal.main.epw.>"], "retention": "workqueue", "storage": "file",
    });
    let made = api(&connection, &format!("STREAM.CREATE.{STREAM}"), config).await;
    assert!(made.get("error").is_none(), "{made}");
    connection
}

async fn durable(connection: &Connection, name: &str, overrides: Value) {
    let mut config = json!({ "durable_name": name, "filter_subject": FILTER, "ack_policy": "explicit", "max_deliver": -1 });
    config.as_object_mut().unwrap().extend(overrides.as_object().unwrap().clone());
    let body = json!({ "stream_name": STREAM, "config": config });
    let made = api(connection, &format!("CONSUMER.DURABLE.CREATE.{STREAM}.{name}"), body).await;
    assert!(made.get("error").is_none(), "{made}");
}

#[tokio::test]
async fn the_first_message_of_a_subject_stands() {
    let f = fixture().await;
    let connection = work_queue(&f).await;
    let journal = Journal::new(&connection, STREAM);
    let subject = "cotal.main.epw.e.p.local.a.u.r1";
    assert_eq!(journal.last(subject).await.unwrap(), None);
    assert!(matches!(journal.create(subject, "1".into()).await, WriteOutcome::Written(_)));
    assert_eq!(journal.create(subject, "2".into()).await, WriteOutcome::Lost);
    assert_eq!(journal.last(subject).await.unwrap().unwrap().value, "1");
    assert!(matches!(journal.create("cotal.main.epw.*", "1".into()).await, WriteOutcome::Refused(_)));
    let huge = vec![b'x'; 2 << 20];
    assert!(matches!(journal.create("cotal.main.epw.e.p.big", huge.into()).await, WriteOutcome::Refused(_)));
    assert_eq!(journal.last("cotal.main.epw.>").await.unwrap_err().code, EpCode::BadRequest);
    let elsewhere = journal.create("cotal.main.other", "1".into()).await;
    assert!(matches!(elsewhere, WriteOutcome::Ambiguous(_)), "{elsewhere:?}");
}

#[tokio::test]
async fn what_the_grant_does_not_name_is_neither_read_nor_written() {
    let f = fixture().await;
    let _everything = work_queue(&f).await;
    let bare = f
        .connector
        .open("bare".to_owned(), &only(&["cotal.main.epw.e.p.local.a.u.r1"]), Lifetime::Renewing)
        .await
        .unwrap();
    let journal = Journal::new(&bare, STREAM);
    assert!(matches!(
        journal.create("cotal.main.epw.e.p.local.a.u.r1", "1".into()).await,
        WriteOutcome::Written(_)
    ));
    let other = journal.create("cotal.main.epw.e.p.local.a.u.r2", "1".into()).await;
    assert!(matches!(other, WriteOutcome::Ambiguous(_)));
    assert_eq!(journal.last("cotal.main.epw.e.p.local.a.u.r1").await.unwrap_err().code, EpCode::Unavailable);
    let durable = PullDurable::bind(&bare, STREAM, "d", FILTER);
    assert_eq!(durable.backlog().await.unwrap_err().code, EpCode::Unavailable);
    assert_eq!(durable.fetch(1, Duration::from_secs(1)).await.unwrap_err().code, EpCode::Unavailable);
}

#[tokio::test]
async fn a_bound_durable_delivers_and_forgets_what_is_acknowledged() {
    let f = fixture().await;
    let connection = work_queue(&f).await;
    durable(&connection, "d", json!({})).await;
    let journal = Journal::new(&connection, STREAM);
    for n in 0..3 {
        let created =
            journal.create(&format!("cotal.main.epw.e.p.local.a.u.r{n}"), n.to_string().into()).await;
        assert!(matches!(created, WriteOutcome::Written(_)));
    }
    let bound = PullDurable::bind(&connection, STREAM, "d", FILTER);
    // A broker tells a durable of a message a moment after it has acknowledged it.
    let told = async {
        while bound.backlog().await.unwrap().pending < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), told).await.unwrap();
    let two = bound.fetch(2, Duration::from_secs(1)).await.unwrap();
    assert_eq!(two.iter().map(|d| d.payload.as_ref()).collect::<Vec<_>>(), [b"0", b"1"]);
    assert_eq!(bound.backlog().await.unwrap().ack_pending, 2);
    for delivery in &two {
        bound.ack(delivery).await.unwrap();
    }
    let left = bound.backlog().await.unwrap();
    assert_eq!((left.pending, left.ack_pending), (1, 0));
    let rest = bound.fetch(64, Duration::from_secs(1)).await.unwrap();
    assert_eq!(rest[0].subject, "cotal.main.epw.e.p.local.a.u.r2");
    assert_eq!(journal.last(&rest[0].subject).await.unwrap().unwrap().value, "2", "in flight is not gone");
    bound.ack(&rest[0]).await.unwrap();
    assert!(bound.backlog().await.unwrap().is_empty());
    assert_eq!(journal.last(&rest[0].subject).await.unwrap(), None);
    assert_eq!(bound.fetch(1, Duration::from_secs(1)).await.unwrap(), []);
}

#[tokio::test]
async fn a_durable_of_another_shape_is_not_bound() {
    let f = fixture().await;
    let connection = work_queue(&f).await;
    let refusal = async |name: &str| {
        let error = PullDurable::bind(&connection, STREAM, name, FILTER).backlog().await.unwrap_err();
        assert_eq!(error.code, EpCode::FailedPrecondition, "{error}");
        error.message
    };
    assert!(refusal("absent").await.contains("does not exist"));
    for (overrides, why) in [
        (json!({ "filter_subject": "cotal.main.epw.e.>" }), "filter"),
        (json!({ "filter_subject": "", "filter_subjects": [FILTER, "cotal.main.epw.x.>"] }), "filter"),
        (json!({ "deliver_subject": "somewhere" }), "deliver subject"),
        (json!({ "max_deliver": 5 }), "bounded"),
    ] {
        durable(&connection, "d", overrides).await;
        assert!(refusal("d").await.contains(why), "{why}");
        api(&connection, &format!("CONSUMER.DELETE.{STREAM}.d"), json!({})).await;
    }
}
