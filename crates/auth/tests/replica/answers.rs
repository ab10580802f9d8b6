//! A replica answers as the full service does, and leaves the same row.

use cotal_auth::{AuthServiceArgs, CalloutReplica, ReplicaEnd, start_auth_service};
use serde_json::{Value, json};

use crate::{
    house::{Lines, answers, into, left_bearer, soon},
    stage::{Daemon, Stage, bearer_of},
};

#[tokio::test]
async fn a_replica_answers_every_connect_as_the_full_service_does() {
    let stage = Stage::start().await;
    let lines = Lines::default();
    let full = start_auth_service(stage.hosted().callout_log(into(&lines))).await.unwrap();
    let exchange = async |body: &Value| bearer_of(stage.exchange(&full, body).await);
    stage.grant_human("alice", "cli", &["spawn", "admin"], &["general"]);
    stage.grant_human("bob", "cli", &[], &["general"]);
    stage.grant_human("carol", "cli", &["spawn"], &["general"]);
    let agent = stage.grant_agent("alice", "cli", "worker", &["general"]);
    let view =
        |view: &str| json!({"view": view, "idpToken": stage.idp.mint_token("alice", 600), "actor": "cli"});
    let bearers = [
        Some(exchange(&stage.human("alice", "cli")).await),
        Some(exchange(&agent).await),
        Some(exchange(&view("admin")).await),
        Some(exchange(&view("purger")).await),
        Some(exchange(&stage.human("bob", "cli")).await),
        Some(exchange(&stage.human("carol", "cli")).await),
        Some("a.b.c".to_owned()),
        Some(stage.idp.mint_token("alice", 600)),
        None,
    ];
    stage.revoke_human("bob", "cli");
    stage.grant_human("carol", "cli", &[], &["general"]);

    let by_the_full_service = answers(&stage, &lines, &bearers).await;
    let outcomes: Vec<_> = by_the_full_service.iter().map(|answer| answer.outcome.as_str()).collect();
    assert_eq!(
        outcomes,
        ["minted", "minted", "minted", "minted", "denied", "denied", "denied", "denied", "denied"]
    );
    soon(full.close()).await.unwrap();
    stage.refused(bearers[0].as_deref()).await;

    let lines = Lines::default();
    let replica = CalloutReplica::start(stage.hosted().callout_log(into(&lines))).await.unwrap();
    let by_the_replica = answers(&stage, &lines, &bearers).await;
    assert_eq!(by_the_replica, by_the_full_service);
    soon(replica.close()).await.unwrap();
    assert_eq!(replica.ended().await, ReplicaEnd::Closed);
    assert!(replica.connections().iter().all(|owned| owned.ended));
    stage.refused(bearers[0].as_deref()).await;
}

#[tokio::test]
async fn a_connect_through_a_replica_leaves_its_row_which_the_full_service_finds() {
    let stage = Stage::start().await;
    let bearer = left_bearer(&stage, &[]).await;
    let replica = CalloutReplica::start(stage.hosted()).await.unwrap();
    stage.connected(&bearer).await;
    let keys = stage.rows().await.bucket("auth").keys("natkey.>").await.unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    // The full service starts beside it: nothing that it owns is taken, and the row reads.
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    daemon.stop().await.unwrap();
    stage.connected(&bearer).await;
    replica.close().await.unwrap();
}
