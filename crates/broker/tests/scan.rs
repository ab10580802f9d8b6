//! The sealed scan over a real broker (contract 05 §8.7).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on ends")]

mod support;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use cotal_broker::{Connection, Lifetime, SealedScan, kv::Stored};
use cotal_wire::{ConnId, EpCode, EpError, Permissions, Revision, SpaceToken, grants::infra};
use serde_json::{Value, json};
use support::{Fixture, api, create_stream, everything, fixture, kv_config};

const BUCKET: &str = "cotal_auth_main";
const STREAM: &str = "KV_cotal_auth_main";
const CONSUMER: &str = "cotal-ledger-scan";

struct World {
    f: Fixture,
    anything: Connection,
    scanner: Connection,
}

fn grants(conn: &ConnId) -> Permissions {
    infra::ledger_scanner(&SpaceToken::parse("main").unwrap(), conn)
}

impl World {
    async fn start() -> Self {
        let f = fixture().await;
        let anything = f.open("test").await;
        create_stream(&anything, &kv_config(BUCKET)).await;
        let scanner =
            f.connector.open("cotal:auth-scan:main".into(), &grants, Lifetime::PlaneOwned).await.unwrap();
        Self { f, anything, scanner }
    }

    async fn put(&self, key: &str, value: &str) -> Revision {
        self.publish(key, &[], value).await
    }

    async fn delete(&self, key: &str) -> Revision {
        self.publish(key, &[("KV-Operation", "DEL")], "").await
    }

    async fn publish(&self, key: &str, headers: &[(&str, &str)], value: &str) -> Revision {
        let payload = Bytes::copy_from_slice(value.as_bytes());
        let subject = format!("$KV.{BUCKET}.{key}");
        let answer =
            self.anything.request(&subject, headers, payload, Duration::from_secs(10)).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        Revision(answer["seq"].as_u64().unwrap())
    }

    async fn scan(&self, filter: &str) -> Result<Vec<Stored>, EpError> {
        SealedScan::new(BUCKET, CONSUMER, filter).run(&self.scanner).await
    }

    async fn consumers(&self) -> Value {
        api(&self.anything, &format!("CONSUMER.NAMES.{STREAM}"), &json!({})).await["consumers"].clone()
    }
}

fn stored(key: &str, revision: Revision, value: Option<&str>) -> Stored {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    Stored { key: key.to_owned(), revision, value }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_finds_the_last_message_of_every_key_under_the_filter_markers_included() {
    let world = World::start().await;
    world.put("cred.u.a", "old").await;
    let b = world.put("cred.u.b", "b").await;
    let a = world.put("cred.u.a", "new").await;
    world.put("cred.v.a", "another family").await;
    world.put("cred.u", "too short").await;
    world.put("cred.u.gone", "x").await;
    let gone = world.delete("cred.u.gone").await;
    let empty = world.put("cred.u.z.deep", "").await;
    let rows = world.scan("cred.u.>").await.unwrap();
    let whole = [
        stored("cred.u.a", a, Some("new")),
        stored("cred.u.b", b, Some("b")),
        stored("cred.u.gone", gone, None),
        stored("cred.u.z.deep", empty, Some("")),
    ];
    assert_eq!(rows, whole);
    assert_eq!(world.consumers().await, json!([]), "the consumer is deleted");
    assert_eq!(world.scan("stage.>").await.unwrap(), []);
    assert_eq!(world.scan("cred.*.a").await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_rows_than_two_batches_are_scanned_whole() {
    const ROWS: usize = 700;
    let world = World::start().await;
    let mut whole = BTreeMap::new();
    for n in 0..ROWS {
        let key = format!("cred.u.c{n}");
        let revision = if n % 7 == 0 { world.delete(&key).await } else { world.put(&key, &key).await };
        whole.insert(key.clone(), (revision, (n % 7 != 0).then_some(key)));
    }
    let rows = world.scan("cred.u.>").await.unwrap();
    assert_eq!(rows.len(), ROWS);
    for row in rows {
        let (revision, value) = whole.remove(&row.key).unwrap();
        assert_eq!(row, stored(&row.key, revision, value.as_deref()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_stands_there_already_is_replaced_by_the_forced_one() {
    let world = World::start().await;
    world.put("cred.u.a", "a").await;
    world.put("cred.v.a", "a").await;
    for config in [
        json!({ "durable_name": CONSUMER, "name": CONSUMER, "ack_policy": "explicit" }),
        json!({ "name": CONSUMER, "ack_policy": "none", "deliver_policy": "new", "headers_only": true }),
        json!({ "name": CONSUMER, "ack_policy": "none", "filter_subject": format!("$KV.{BUCKET}.cred.v.>") }),
    ] {
        let answer = create(&world.anything, &config).await;
        assert_eq!(answer.get("error"), None, "{answer}");
        assert_eq!(world.consumers().await, json!([CONSUMER]));
        let rows = world.scan("cred.u.>").await.unwrap();
        assert_eq!(rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["cred.u.a"]);
        assert_eq!(world.consumers().await, json!([]));
    }
}

async fn create(connection: &Connection, config: &Value) -> Value {
    let tail = match config["filter_subject"].as_str() {
        Some(filter) => format!("{CONSUMER}.{filter}"),
        None => CONSUMER.to_owned(),
    };
    let request = json!({ "stream_name": STREAM, "config": config });
    api(connection, &format!("CONSUMER.CREATE.{STREAM}.{tail}"), &request).await
}

/// Another holder of the grant deletes and remakes the consumer all the while, in the forced shape and in others.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_meddles_with_the_consumer_a_scan_is_whole_or_refused() {
    const ROWS: usize = 600;
    let world = World::start().await;
    for n in 0..ROWS {
        world.put(&format!("cred.u.c{n}"), "x").await;
    }
    let meddler = world.f.open("meddler").await;
    let meddling = tokio::spawn(async move {
        let filter = format!("$KV.{BUCKET}.cred.u.>");
        let forced = json!({
            "name": CONSUMER, "filter_subject": filter, "ack_policy": "none",
            "deliver_policy": "last_per_subject", "mem_storage": true, "inactive_threshold": 30_000_000_000_u64,
        });
        let mut other = forced.clone();
        other["deliver_policy"] = json!("new");
        let mut fetches =
            meddler.subscribe(&format!("$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}"), None).await.unwrap();
        for round in 0_usize.. {
            // After the second fetch of a scan, and so in its middle.
            fetches.next().await.unwrap();
            if round % 3 == 1 {
                api(&meddler, &format!("CONSUMER.DELETE.{STREAM}.{CONSUMER}"), &json!({})).await;
                create(&meddler, if round % 2 == 0 { &forced } else { &other }).await;
            }
        }
    });
    let (mut whole, mut drifted) = (0, 0);
    for _ in 0..200 {
        match world.scan("cred.u.>").await {
            Ok(rows) => {
                assert_eq!(rows.len(), ROWS);
                whole += 1;
            }
            Err(refusal) if refusal.code == EpCode::FailedPrecondition => drifted += 1,
            Err(refusal) => assert_eq!(refusal.code, EpCode::Unavailable, "{refusal}"),
        }
        if drifted >= 3 {
            break;
        }
    }
    meddling.abort();
    assert!(drifted >= 3, "{drifted} scans were refused, {whole} were whole");
    // The meddler may have left its consumer.
    assert_eq!(world.scan("cred.u.>").await.unwrap().len(), ROWS);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_grant_does_not_name_cannot_be_scanned() {
    let world = World::start().await;
    let narrow = |conn: &ConnId| {
        let mut all = grants(conn);
        all.publish.allow.retain(|subject| !subject.contains(".MSG.NEXT."));
        all
    };
    world.put("cred.u.a", "a").await;
    let scanner =
        world.f.connector.open("cotal:auth-scan:main".into(), &narrow, Lifetime::PlaneOwned).await.unwrap();
    let scan = SealedScan::new(BUCKET, CONSUMER, "cred.u.>");
    let refusal = tokio::time::timeout(Duration::from_secs(4), scan.run(&scanner)).await;
    assert_eq!(refusal.expect("it is told at once").unwrap_err().code, EpCode::Unavailable);
    let foreign = SealedScan::new("cotal_records_main", "cotal-records-scan", "oblig.>").run(&scanner).await;
    assert_eq!(foreign.unwrap_err().code, EpCode::Unavailable);
    // Not even for one that may do everything, unless it is plane-owned.
    let renewing = scan.run(&world.anything).await;
    assert_eq!(renewing.unwrap_err().code, EpCode::Internal);
    let owned =
        world.f.connector.open("cotal:test:main".into(), &everything, Lifetime::PlaneOwned).await.unwrap();
    assert_eq!(scan.run(&owned).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_whose_broker_goes_away_is_refused() {
    let mut world = World::start().await;
    world.put("cred.u.a", "a").await;
    world.f.server.kill();
    let refusal = world.scan("cred.u.>").await.unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable, "{refusal}");
}
