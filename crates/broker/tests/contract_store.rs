//! The contract store over a real broker, under the very grant that registers (contract 02 §8).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod support;

use bytes::Bytes;
use cotal_broker::{
    Connection, ContractStore, Lifetime, contract_store::Published, kv::Bucket, kv::LeaderRead,
    kv::WriteOutcome, provision::provision_space,
};
use cotal_wire::{
    DigestRef, EndpointToken, EpCode, InstanceId, Revision, contract::Artifact, grants::endpoint_serve,
};
use serde_json::json;
use support::{Fixture, api, fixture};

async fn executor(f: &Fixture) -> Connection {
    let space = f.space.token();
    let (endpoint, instance) =
        (EndpointToken::parse("auth").unwrap(), InstanceId::parse(&"i".repeat(26)).unwrap());
    let grants = move |conn: &cotal_wire::ConnId| {
        endpoint_serve::registration_executor(&space, conn, &endpoint, &instance)
    };
    f.connector.open("cotal:auth-registration:main".into(), &grants, Lifetime::Renewing).await.unwrap()
}

// #1353: the store is keyed by bare hex, and references carry the prefix.
#[tokio::test]
async fn an_artifact_is_published_once_and_read_back_by_digest() {
    let f = fixture().await;
    let admin = f.open("admin").await;
    provision_space(&admin, &f.space).await.unwrap();
    let store = ContractStore::new(&executor(&f).await, &f.space.token());
    let artifact = Artifact::of(&json!({"type": "null"})).unwrap();

    assert_eq!(store.fetch(artifact.digest()).await.unwrap(), None);
    assert_eq!(store.publish(&artifact).await.unwrap(), Published::Now);
    assert_eq!(store.publish(&artifact).await.unwrap(), Published::Before);
    let read = store.fetch(artifact.digest()).await.unwrap().unwrap();
    assert_eq!(Artifact::verify(artifact.digest(), read.to_vec()).unwrap(), artifact);

    let bare = DigestRef::normalise(artifact.digest().hex().as_str()).unwrap();
    assert!(store.fetch(&bare).await.unwrap().is_some(), "the prefix is no part of the key");
    assert_eq!(
        store.subject(&bare),
        "cotal.main.epc.bcde375ebd4cbacf651311181173836b169d5a360c6ac158c6a2cdaf49be3f61"
    );
    let stream = api(&admin, "STREAM.INFO.EPC_main", &json!({})).await;
    assert_eq!(stream["state"]["messages"], 1);
}

#[tokio::test]
async fn a_full_subject_is_told_by_any_of_the_three_codes_and_verified() {
    let f = fixture().await;
    let admin = f.open("admin").await;
    provision_space(&admin, &f.space).await.unwrap();
    let store = ContractStore::new(&executor(&f).await, &f.space.token());
    let artifact = Artifact::of(&json!({"type": "string"})).unwrap();
    // Without the expectation the broker answers that the subject holds all that it may: 10077.
    let subject = store.subject(artifact.digest());
    let foreign = Bytes::from_static(b"{}");
    let wait = std::time::Duration::from_secs(5);
    admin.request(&subject, &[], foreign.clone(), wait).await.unwrap();
    let again: serde_json::Value =
        serde_json::from_slice(&admin.request(&subject, &[], foreign, wait).await.unwrap().payload).unwrap();
    assert_eq!(again["error"]["err_code"], 10077, "{again}");
    assert_eq!(store.publish(&artifact).await.unwrap_err().code, EpCode::Internal, "other bytes are there");
}

#[tokio::test]
async fn a_store_that_is_not_there_is_unavailable_and_never_absence() {
    let f = fixture().await;
    let store = ContractStore::new(&executor(&f).await, &f.space.token());
    let artifact = Artifact::of(&json!({})).unwrap();
    assert_eq!(store.publish(&artifact).await.unwrap_err().code, EpCode::Unavailable);
    assert_eq!(store.fetch(artifact.digest()).await.unwrap_err().code, EpCode::Unavailable);
}

#[tokio::test]
async fn a_pinned_delete_leaves_a_marker_and_loses_to_a_later_write() {
    let f = fixture().await;
    let (_connection, bucket): (Connection, Bucket) = f.bucket("b").await;
    let WriteOutcome::Written(first) = bucket.create("svc.x", "1".into()).await else { panic!("created") };
    let WriteOutcome::Written(second) = bucket.put_pinned("svc.x", "2".into(), first).await else {
        panic!("updated")
    };
    assert_eq!(bucket.delete_pinned("svc.x", first).await, WriteOutcome::Lost);
    let WriteOutcome::Written(marker) = bucket.delete_pinned("svc.x", second).await else {
        panic!("deleted")
    };
    assert_eq!(bucket.leader_read("svc.x").await.unwrap(), LeaderRead::Marker(marker));
    assert_eq!(bucket.create("svc.x", "3".into()).await, WriteOutcome::Lost, "a marker is history");
    assert_eq!(bucket.delete_pinned("svc.y", Revision(7)).await, WriteOutcome::Lost);
}
