//! What a replica ends with, and what it leaves behind.

use bytes::Bytes;
use cotal_auth::{CalloutReplica, ReplicaEnd, StartError};
use cotal_wire::EpCode;
use serde_json::Value;

use crate::{
    house::{left_bearer, soon},
    stage::{AT_LAST, Stage},
    tap::Tap,
};

#[tokio::test]
async fn a_replica_that_loses_a_store_connection_or_the_callouts_ends_and_the_others_answer() {
    let stage = Stage::start().await;
    let bearer = left_bearer(&stage, &[]).await;
    let other = CalloutReplica::start(stage.hosted()).await.unwrap();
    for label in ["cotal:auth-replica-store:demo", "cotal:auth-reader:demo", "cotal:auth-replica:demo"] {
        let tap = Tap::start(stage.space.server.port()).await;
        let replica = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.unwrap();
        tap.cut(label);
        let ReplicaEnd::Lost(why) = soon(replica.ended()).await else { panic!("{label}: it was not closed") };
        assert!(why.starts_with(label), "{why}");
        soon(replica.close()).await.unwrap();
        assert!(replica.connections().iter().all(|owned| owned.ended), "{label}");
        for _ in 0..8 {
            stage.connected(&bearer).await;
        }
    }
    assert_eq!(futures::FutureExt::now_or_never(other.ended()), None);
    other.close().await.unwrap();
}

#[tokio::test]
async fn a_replica_ends_with_its_broker_and_fails_its_process() {
    let mut stage = Stage::start().await;
    let replica = CalloutReplica::start(stage.hosted()).await.unwrap();
    stage.space.server.kill();
    assert!(matches!(soon(replica.ended()).await, ReplicaEnd::Lost(_)));
    soon(replica.close()).await.unwrap();
    let refused = CalloutReplica::start(stage.hosted()).await.err();
    assert!(matches!(refused, Some(StartError::Stores(error)) if error.code == EpCode::Unavailable));
}

#[tokio::test]
async fn a_dropped_replica_closes_and_a_clone_keeps_it() {
    let stage = Stage::start().await;
    let tap = Tap::start(stage.space.server.port()).await;
    let replica = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.unwrap();
    let clone = replica.clone();
    drop(replica);
    assert!(clone.connections().iter().all(|owned| !owned.ended));
    drop(clone);
    soon(tap.quiet()).await;
}

#[tokio::test]
async fn a_replica_creates_no_store() {
    let stage = Stage::start().await;
    let admin = stage.space.anything().await.unwrap();
    let ask = async |verb: &str| {
        let subject = format!("$JS.API.STREAM.{verb}.KV_cotal_auth_demo");
        let answer = admin.request(&subject, &[], Bytes::new(), AT_LAST).await.unwrap();
        serde_json::from_slice::<Value>(&answer.payload).unwrap()
    };
    assert_eq!(ask("DELETE").await["success"], true);
    let Err(StartError::Stores(refusal)) = CalloutReplica::start(stage.hosted()).await else {
        panic!("it started without a store")
    };
    assert_eq!(refusal.code, EpCode::FailedPrecondition);
    assert!(refusal.message.contains("KV_cotal_auth_demo"), "{refusal}");
    assert_eq!(ask("INFO").await["error"]["err_code"], 10_059, "it is still not there");
}
