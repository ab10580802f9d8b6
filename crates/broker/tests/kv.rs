//! Leader reads and conditional writes over a real broker (contract 07 conventions, §12.3).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use cotal_broker::{
    Connection,
    kv::{Bucket, LeaderRead, WriteOutcome},
    stream::last_sequence,
};
use cotal_wire::{EpCode, Revision};
use futures::stream;
use support::{fixture, only};

fn written(outcome: WriteOutcome) -> Revision {
    match outcome {
        WriteOutcome::Written(revision) => revision,
        other => panic!("{other:?}"),
    }
}

async fn value(bucket: &Bucket, key: &str) -> (Bytes, Revision) {
    match bucket.leader_read(key).await.unwrap() {
        LeaderRead::Value(entry) => (entry.value, entry.revision),
        other => panic!("{other:?}"),
    }
}

/// Writes a deletion marker and waits until JetStream has acknowledged it; a flush would not say so.
async fn mark(connection: &Connection, subject: &str, operation: &str) {
    let headers = [("KV-Operation", operation)];
    connection.request(subject, &headers, Bytes::new(), Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn absent_marker_and_value_are_three_results() {
    let f = fixture().await;
    let (connection, bucket) = f.bucket("b").await;
    assert_eq!(bucket.leader_read("gate.x").await.unwrap(), LeaderRead::Absent);

    let before = cotal_wire::Clock::now_millis(&cotal_trust::system::SystemClock);
    let revision = written(bucket.create("gate.x", "{\"v\":1}".into()).await);
    let LeaderRead::Value(entry) = bucket.leader_read("gate.x").await.unwrap() else { panic!("a value") };
    assert_eq!((entry.value, entry.revision), (Bytes::from("{\"v\":1}"), revision));
    assert!(entry.stored_at >= before && entry.stored_at.since(before) < 60_000, "{:?}", entry.stored_at);

    for (key, operation) in [("gate.x", "DEL"), ("gate.y", "PURGE")] {
        mark(&connection, &format!("$KV.b.{key}"), operation).await;
        assert!(matches!(bucket.leader_read(key).await.unwrap(), LeaderRead::Marker(_)), "{operation}");
    }
}

#[tokio::test]
async fn a_marker_on_an_authority_key_is_corruption_and_never_absence() {
    let f = fixture().await;
    let (connection, bucket) = f.bucket("b").await;
    assert_eq!(bucket.read_authority("cred.a").await.unwrap(), None);
    mark(&connection, "$KV.b.cred.a", "DEL").await;
    assert_eq!(bucket.read_authority("cred.a").await.unwrap_err().code, EpCode::FailedPrecondition);
}

#[tokio::test]
async fn an_empty_value_is_a_value() {
    let f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    let revision = written(bucket.create("k", Bytes::new()).await);
    assert_eq!(value(&bucket, "k").await, (Bytes::new(), revision));
}

#[tokio::test]
async fn a_create_loses_to_a_value_and_to_a_marker() {
    let f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    let first = written(bucket.create("k", "1".into()).await);
    assert_eq!(bucket.create("k", "2".into()).await, WriteOutcome::Lost);
    let marker = written(bucket.purge_pinned("k", first, 3600).await);
    assert_eq!(bucket.create("k", "3".into()).await, WriteOutcome::Lost);
    assert_eq!(bucket.leader_read("k").await.unwrap(), LeaderRead::Marker(marker));
}

#[tokio::test]
async fn a_create_over_a_marker_is_pinned_to_it_and_loses_to_a_value() {
    let f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    let first = written(bucket.create_over_marker("k", "1".into()).await);
    assert_eq!(bucket.create_over_marker("k", "2".into()).await, WriteOutcome::Lost);
    let marker = written(bucket.purge_pinned("k", first, 3600).await);
    let second = written(bucket.create_over_marker("k", "3".into()).await);
    assert!(second > marker);
    assert_eq!(value(&bucket, "k").await, (Bytes::from("3"), second));
}

#[tokio::test]
async fn a_pinned_write_holds_at_its_revision_only() {
    let f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    let first = written(bucket.create("k", "1".into()).await);
    let second = written(bucket.put_pinned("k", "2".into(), first).await);
    assert_eq!(bucket.put_pinned("k", "3".into(), first).await, WriteOutcome::Lost);
    assert_eq!(bucket.purge_pinned("k", first, 60).await, WriteOutcome::Lost);
    assert_eq!(value(&bucket, "k").await, (Bytes::from("2"), second));
}

#[tokio::test]
async fn of_many_creates_at_once_exactly_one_is_written() {
    let f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    let outcomes = futures::future::join_all((0..32).map(|n| bucket.create("k", n.to_string().into()))).await;
    let won = outcomes.iter().filter(|outcome| matches!(outcome, WriteOutcome::Written(_))).count();
    let lost = outcomes.iter().filter(|outcome| **outcome == WriteOutcome::Lost).count();
    assert_eq!((won, lost), (1, 31));
}

#[tokio::test]
async fn a_write_that_a_stopped_broker_does_not_answer_is_ambiguous_and_may_have_been_written() {
    let f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    let hasty = bucket.clone().with_timeout(Duration::from_millis(200));
    f.server.pause();
    assert!(matches!(hasty.create("k", "1".into()).await, WriteOutcome::Ambiguous(_)));
    assert_eq!(hasty.leader_read("k").await.unwrap_err().code, EpCode::Unavailable);
    f.server.resume();
    // It had been sent. A read may overtake it on its way into the store; a write queues behind it, and loses.
    assert_eq!(bucket.create("k", "2".into()).await, WriteOutcome::Lost);
    assert_eq!(value(&bucket, "k").await.0, Bytes::from("1"));
}

#[tokio::test]
async fn a_write_in_flight_when_the_broker_dies_is_ambiguous_at_once() {
    let mut f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    f.server.pause();
    let patient = bucket.clone().with_timeout(Duration::from_secs(60));
    let write = tokio::spawn(async move { patient.create("k", "1".into()).await });
    // One more command behind the write: when this one has timed out, the write was sent.
    let _ = bucket.with_timeout(Duration::from_millis(50)).leader_read("other").await;
    f.server.kill();
    let outcome =
        tokio::time::timeout(Duration::from_secs(10), write).await.expect("no wait for the timeout");
    assert!(matches!(outcome.unwrap(), WriteOutcome::Ambiguous(_)));
}

#[tokio::test]
async fn a_write_to_no_store_and_a_denied_write_are_ambiguous() {
    let f = fixture().await;
    let narrow = f
        .connector
        .open("cotal:narrow:main".into(), &only(&["$KV.b.gate.>"]), cotal_broker::Lifetime::Renewing)
        .await
        .unwrap();
    let nowhere = Bucket::new(&narrow, "b").create("gate.x", "1".into()).await;
    assert!(matches!(nowhere, WriteOutcome::Ambiguous(_)), "{nowhere:?}");

    f.bucket("b").await;
    let bucket = Bucket::new(&narrow, "b").with_timeout(Duration::from_secs(60));
    written(bucket.create("gate.x", "1".into()).await);
    let denied = tokio::time::timeout(Duration::from_secs(10), bucket.create("cred.x", "1".into())).await;
    let WriteOutcome::Ambiguous(why) = denied.expect("a denial is not waited out") else {
        panic!("ambiguous")
    };
    assert!(why.contains("denies"), "{why}");
}

#[tokio::test]
async fn a_key_outside_the_grammar_never_reaches_the_broker() {
    let f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    assert_eq!(bucket.leader_read("gate.>").await.unwrap_err().code, EpCode::BadRequest);
    for refused in [
        bucket.create("gate.*", "1".into()).await,
        bucket.create_over_marker("", "1".into()).await,
        bucket.put_pinned("gate..x", "1".into(), Revision(1)).await,
        bucket.purge_pinned("gate.>", Revision(1), 60).await,
        bucket.create("gate.large", vec![0; 8 << 20].into()).await,
    ] {
        assert!(matches!(refused, WriteOutcome::Refused(_)), "{refused:?}");
    }
    assert!(bucket.keys(">").await.unwrap().is_empty());
}

#[tokio::test]
async fn keys_are_those_under_the_filter_markers_included() {
    let f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    for key in ["natkey.b", "natkey.a", "natkey.c.d", "cred.a"] {
        written(bucket.create(key, "1".into()).await);
    }
    let (_, revision) = value(&bucket, "natkey.b").await;
    written(bucket.purge_pinned("natkey.b", revision, 3600).await);
    assert_eq!(bucket.keys("natkey.>").await.unwrap(), ["natkey.a", "natkey.b", "natkey.c.d"]);
    assert_eq!(bucket.keys("natkey.*").await.unwrap(), ["natkey.a", "natkey.b"]);
    assert!(bucket.keys("none.>").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_history_is_walked_in_order_up_to_its_tail() {
    let f = fixture().await;
    let (_connection, bucket) = f.bucket("b").await;
    let created = bucket.tail().await.unwrap().created;
    for key in ["natkey.b", "cred.a", "natkey.a", "natkey.c"] {
        written(bucket.create(key, key.to_owned().into()).await);
    }
    written(bucket.purge_pinned("natkey.b", Revision(1), 3600).await);
    let tail = bucket.tail().await.unwrap();
    assert_eq!((tail.last, tail.created == created), (Revision(5), true));

    let mut found = Vec::new();
    let mut from = 1;
    while let Some(stored) = bucket.next_under("natkey.>", Revision(from)).await.unwrap() {
        from = stored.revision.0 + 1;
        found.push((stored.revision.0, stored.key, stored.value.is_some()));
    }
    let found: Vec<_> = found.iter().map(|(at, key, value)| (*at, key.as_str(), *value)).collect();
    assert_eq!(found, [(3, "natkey.a", true), (4, "natkey.c", true), (5, "natkey.b", false)]);
}

#[tokio::test]
async fn keys_beyond_one_page_are_all_listed() {
    // The broker names at most 100 000 subjects a page.
    const KEYS: usize = 100_003;
    let f = fixture().await;
    let connection = f.open("test").await;
    let mut config = support::kv_config("b");
    config["storage"] = "memory".into();
    support::create_stream(&connection, &config).await;
    for n in 0..KEYS {
        connection.publish(&format!("$KV.b.natkey.{n}"), &[], Bytes::new()).await.unwrap();
    }
    let bucket = Bucket::new(&connection, "b");
    // The last is acknowledged when all before it are stored.
    written(bucket.create("last", Bytes::new()).await);
    assert_eq!(bucket.keys("natkey.>").await.unwrap().len(), KEYS);
}

#[tokio::test]
async fn a_streams_last_sequence_counts_every_message_and_an_absent_stream_has_none() {
    let f = fixture().await;
    let (connection, bucket) = f.bucket("b").await;
    assert_eq!(last_sequence(&connection, "KV_b").await.unwrap(), Revision(0));
    let first = written(bucket.create("gate.x", "1".into()).await);
    let second = written(bucket.put_pinned("gate.x", "2".into(), first).await);
    assert_eq!(last_sequence(&connection, "KV_b").await.unwrap(), second);
    let absent = last_sequence(&connection, "KV_none").await.unwrap_err();
    assert_eq!(absent.code, EpCode::FailedPrecondition);
}

#[tokio::test]
async fn many_keys_are_read_in_few_requests_and_what_is_absent_is_left_out() {
    let f = fixture().await;
    let (connection, bucket) = f.bucket("b").await;
    let key = |n: usize| format!("head.k{n}");
    for n in 0..600 {
        written(bucket.create(&key(n), format!("{n}").into()).await);
    }
    mark(&connection, "$KV.b.head.k7", "DEL").await;
    // One key may be asked for twice: an alias has a past of more than one incarnation.
    let keys: Vec<_> = (0..700).chain([3, 3, 600]).map(key).collect();
    let read = |keys: &[String]| {
        let keys = stream::iter(keys.to_vec());
        async { bucket.direct_read_many(keys).await }
    };
    let found = read(&keys).await.unwrap();
    assert_eq!(found.len(), 600);
    for n in [0, 255, 256, 599] {
        let LeaderRead::Value(entry) = &found[&key(n)] else { panic!("{n}") };
        assert_eq!(entry.value, n.to_string());
    }
    assert!(matches!(found[&key(7)], LeaderRead::Marker(_)));
    assert!(read(&keys[600..700]).await.unwrap().is_empty());
    assert!(read(&[]).await.unwrap().is_empty());
    assert_eq!(read(&["a b".to_owned()]).await.unwrap_err().code, EpCode::BadRequest);
}
