//! What issued authority and deprovisioning ask of a broker: first and direct reads, purges that stay, shapes of the
//! evidence stores, durables by name (contract 03 §H.3, 07 §13).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use cotal_broker::{
    Connection, Lifetime,
    durable::{self, Removal},
    kv::{Bucket, LeaderRead, WriteOutcome},
    provision::provision_space,
    shape::{EvidenceStore, prove_evidence_store},
};
use cotal_wire::{
    EpCode, Generation, Names, Revision,
    grants::{infra, issued},
    names::accepted_key,
};
use serde_json::json;
use support::{Fixture, api, fixture, only};

async fn provisioned() -> (Fixture, Connection) {
    let f = fixture().await;
    let token = f.space.token();
    let grants = move |conn: &cotal_wire::ConnId| infra::provisioner(&token, conn);
    let provisioner =
        f.connector.open("cotal:provisioner:main".into(), &grants, Lifetime::Renewing).await.unwrap();
    provision_space(&provisioner, &f.space).await.unwrap();
    let admin = f.open("admin").await;
    (f, admin)
}

async fn issuer(f: &Fixture) -> Connection {
    let token = f.space.token();
    let grants = move |conn: &cotal_wire::ConnId| issued::issuer_session(&token, conn);
    f.connector.open("cotal:issuer:main".into(), &grants, Lifetime::Renewing).await.unwrap()
}

fn written(outcome: WriteOutcome) -> Revision {
    match outcome {
        WriteOutcome::Written(revision) => revision,
        other => panic!("{other:?}"),
    }
}

async fn mark(connection: &Connection, subject: &str) {
    let headers = [("KV-Operation", "DEL")];
    connection.request(subject, &headers, Bytes::new(), Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn the_first_message_of_a_key_outlives_what_is_appended() {
    let (f, admin) = provisioned().await;
    let issued = Bucket::new(&issuer(&f).await, "cotal_issued_main");
    assert_eq!(issued.first_authority("v1.a").await.unwrap(), None);
    let first = written(issued.create("v1.a", "one".into()).await);
    assert_eq!(issued.create("v1.a", "two".into()).await, WriteOutcome::Lost);
    let second = written(issued.put_pinned("v1.a", "two".into(), first).await);
    let read = issued.first_authority("v1.a").await.unwrap().unwrap();
    assert_eq!((&*read.value, read.revision), (&b"one"[..], first));
    let LeaderRead::Value(last) = issued.leader_read("v1.a").await.unwrap() else { panic!("a value") };
    assert_eq!((&*last.value, last.revision), (&b"two"[..], second));

    mark(&admin, "$KV.cotal_issued_main.v1.a").await;
    assert_eq!(issued.first_authority("v1.a").await.unwrap().unwrap().revision, first);
    assert_eq!(issued.read_authority("v1.a").await.unwrap_err().code, EpCode::FailedPrecondition);
    mark(&admin, "$KV.cotal_issued_main.v1.b").await;
    assert_eq!(issued.first_authority("v1.b").await.unwrap_err().code, EpCode::FailedPrecondition);
    assert_eq!(issued.first_authority("v1.*").await.unwrap_err().code, EpCode::BadRequest);
}

#[tokio::test]
async fn an_accepted_row_is_read_with_the_clients_own_grant_and_written_once() {
    let (f, _) = provisioned().await;
    let accepted = Bucket::new(&issuer(&f).await, "cotal_accepted_main");
    let token = Generation::parse(&"a".repeat(32)).unwrap();
    let key = accepted_key(&token);
    assert_eq!(accepted.direct_read(&key).await.unwrap(), LeaderRead::Absent);
    let revision = written(accepted.create(&key, "{}".into()).await);
    assert_eq!(accepted.create(&key, "x".into()).await, WriteOutcome::Lost);

    let subject = format!("$JS.API.DIRECT.GET.KV_cotal_accepted_main.$KV.cotal_accepted_main.{key}");
    let client =
        f.connector.open("cotal:client:main".into(), &only(&[&subject]), Lifetime::Renewing).await.unwrap();
    let theirs = Bucket::new(&client, "cotal_accepted_main");
    let LeaderRead::Value(entry) = theirs.direct_read(&key).await.unwrap() else { panic!("a value") };
    assert_eq!((&*entry.value, entry.revision), (&b"{}"[..], revision));
    let other = accepted_key(&Generation::parse(&"b".repeat(32)).unwrap());
    assert_eq!(theirs.direct_read(&other).await.unwrap_err().code, EpCode::PermissionDenied);
    assert_eq!(accepted.direct_read("v1.x").await.unwrap_err().code, EpCode::PermissionDenied);
}

#[tokio::test]
async fn a_purge_is_pinned_and_its_marker_stays() {
    let (_f, admin) = provisioned().await;
    let acl = Bucket::new(&admin, "cotal_acl_main");
    let revision = written(acl.create("o.a.u", "{}".into()).await);
    assert_eq!(acl.purge("o.a.u", Revision(revision.0 + 1)).await, WriteOutcome::Lost);
    let marker = written(acl.purge("o.a.u", revision).await);
    assert_eq!(acl.direct_read("o.a.u").await.unwrap(), LeaderRead::Marker(marker));
    assert!(written(acl.purge("o.a.u", marker).await) > marker);
}

#[tokio::test]
async fn the_evidence_stores_prove_their_shape_and_a_drift_refuses() {
    let (f, admin) = provisioned().await;
    let issuer = issuer(&f).await;
    let space = f.space.token();
    for (which, bucket, drifts) in [
        (
            EvidenceStore::Issued,
            "cotal_issued_main",
            vec![
                json!({ "allow_direct": true }),
                json!({ "max_msgs_per_subject": 1 }),
                json!({ "allow_rollup_hdrs": true, "deny_purge": false }),
                json!({ "max_age": 3_600_000_000_000_u64 }),
                json!({ "allow_msg_ttl": true }),
            ],
        ),
        (
            EvidenceStore::Accepted,
            "cotal_accepted_main",
            vec![
                json!({ "allow_direct": false }),
                json!({ "max_msgs_per_subject": 2 }),
                json!({ "discard_new_per_subject": false }),
                json!({ "max_msgs": 10 }),
            ],
        ),
    ] {
        prove_evidence_store(&issuer, &space, which).await.unwrap();
        for drift in drifts {
            // What a broker never takes back is drifted on a stream made anew.
            let stream = format!("KV_{bucket}");
            let good = api(&admin, &format!("STREAM.INFO.{stream}"), &json!({})).await["config"].clone();
            api(&admin, &format!("STREAM.DELETE.{stream}"), &json!({})).await;
            let mut config = good.clone();
            config.as_object_mut().unwrap().remove("metadata");
            let mut drifted = config.clone();
            drifted.as_object_mut().unwrap().extend(drift.as_object().unwrap().clone());
            support::create_stream(&admin, &drifted).await;
            let refusal = prove_evidence_store(&issuer, &space, which).await.unwrap_err();
            assert_eq!(refusal.code, EpCode::FailedPrecondition, "{drift}");
            api(&admin, &format!("STREAM.DELETE.{stream}"), &json!({})).await;
            let refusal = prove_evidence_store(&issuer, &space, which).await.unwrap_err();
            assert_eq!(refusal.code, EpCode::FailedPrecondition, "absent");
            support::create_stream(&admin, &config).await;
        }
        prove_evidence_store(&issuer, &space, which).await.unwrap();
    }
}

#[tokio::test]
async fn a_durable_is_told_present_or_absent_and_removed_once() {
    let (f, admin) = provisioned().await;
    let stream = Names::new(&f.space.token()).dm_stream();
    let config =
        json!({ "stream_name": stream, "config": { "durable_name": "dm_x", "ack_policy": "explicit" } });
    assert!(!durable::exists(&admin, &stream, "dm_x").await.unwrap());
    assert_eq!(durable::remove(&admin, &stream, "dm_x").await.unwrap(), Removal::Absent);
    api(&admin, &format!("CONSUMER.DURABLE.CREATE.{stream}.dm_x"), &config).await;
    assert!(durable::exists(&admin, &stream, "dm_x").await.unwrap());

    let info = format!("$JS.API.CONSUMER.INFO.{stream}.dm_x");
    let looker =
        f.connector.open("cotal:looker:main".into(), &only(&[&info]), Lifetime::Renewing).await.unwrap();
    assert!(durable::exists(&looker, &stream, "dm_x").await.unwrap());
    let denied = durable::remove(&looker, &stream, "dm_x").await.unwrap_err();
    assert_eq!(denied.code, EpCode::PermissionDenied);
    assert_eq!(durable::remove(&admin, &stream, "dm_x").await.unwrap(), Removal::Acknowledged);
    assert!(!durable::exists(&looker, &stream, "dm_x").await.unwrap());
    let missing = durable::exists(&admin, "NO_SUCH", "dm_x").await.unwrap_err();
    assert_eq!(missing.code, EpCode::FailedPrecondition);
}
