//! The whole path over a real broker and a real IdP: grant, exchange, connect, revoke, restart.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod stage;

use cotal_auth::{AuthServiceArgs, End, Readiness, StartError, start_auth_service};
use cotal_testkit::rows::{ServedSession, ServingManager};
use cotal_trust::system::SystemClock;
use cotal_wire::{Actor, Clock, LifecycleUid, Principal, SessionId};
use serde_json::json;

use stage::{AT_LAST, Daemon, Stage, bearer_of, claims_of, error_of, root_credential, run_until_told};

#[tokio::test]
async fn a_person_exchanges_connects_within_the_grant_and_is_refused_after_a_revoke() {
    let stage = Stage::start().await;
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    stage.grant_human("alice", "cli", &["spawn"], &["general"]);

    let (status, answer) = daemon.exchange(&stage.human("alice", "cli")).await;
    assert_eq!(status, 200, "{answer}");
    let owner = stage.owner_of("alice");
    assert_eq!(answer["owner"], owner.as_str());
    let bearer = answer["token"].as_str().unwrap();

    let mut client = stage.connected(bearer).await;
    let own = |channel: &str| format!("cotal.demo.chat.{owner}.cli.{channel}");
    client.try_publish(&own("general"), b"hello").await.expect("the grant covers it");
    client.try_publish(&own("secret"), b"hello").await.expect_err("the grant does not cover it");
    client.try_subscribe("cotal.demo.chat.*.*.general", None).await.expect("the grant covers it");
    client.try_subscribe("cotal.demo.chat.*.*.secret", None).await.expect_err("the grant does not cover it");

    stage.revoke_human("alice", "cli");
    let (status, answer) = daemon.exchange(&stage.human("alice", "cli")).await;
    assert_eq!(status, 401, "{answer}");
    stage.refused(Some(bearer)).await;
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_session_is_redeemed_at_the_exchange_and_again_at_each_connect() {
    let stage = Stage::start().await;
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    stage.grant_human("alice", "cli", &[], &["general"]);
    let rows = stage.rows().await;
    let owner = stage.owner_of("alice");
    let manager = ServingManager::register(&rows, &owner, 2).await.unwrap();
    let row = stage.ledger.read_interactive(&owner, &Actor::parse("cli").unwrap()).unwrap().unwrap();
    let session = ServedSession {
        id: SessionId::parse(&"s".repeat(43)).unwrap(),
        instance: manager.instance.clone(),
        epoch: manager.epoch,
        holder: Principal::new(&owner, Actor::parse("cli").unwrap()),
        uid: LifecycleUid::parse(row.lifecycle_uid.as_deref().unwrap()).unwrap(),
        exp: SystemClock.now_millis().plus(3_600_500),
    };
    let ask = |sig: &str, epoch: u64| {
        let mut body = stage.human("alice", "cli");
        body["view"] = json!("session-caller");
        body["sessionGrant"] = json!({
            "v": 1, "endpoint": "manager", "sessionId": session.id, "sig": sig,
            "serving": {"instanceId": manager.instance, "epoch": epoch},
        });
        body
    };
    let refused = async |body, why: &str| {
        let (status, answer) = daemon.exchange(&body).await;
        assert_eq!((status, &answer["error"]), (401, &json!(format!("session redemption refused: {why}"))));
    };
    refused(ask("the-signature", 2), "there is no such session").await;
    session.write(&rows, "active").await.unwrap();
    refused(ask("another", 3), "the grant is not the one that opened the session").await;
    refused(ask("the-signature", 3), "another epoch serves the session").await;

    let bearer = bearer_of(daemon.exchange(&ask("the-signature", 2)).await);
    let claim =
        json!({"endpoint": "manager", "sessionId": session.id, "epoch": 2, "exp": session.exp.to_secs()});
    assert_eq!(claims_of(&bearer)["act"]["session"], claim);
    let mut client = stage.connected(&bearer).await;
    let rail = |end: &str| format!("cotal.demo.eps.manager.{}.2.{end}", session.id);
    client.try_publish(&rail("in"), b"").await.expect("the session's own rail");
    client.try_subscribe(&rail("out"), None).await.expect("the session's own rail");
    client.try_publish(&rail("out"), b"").await.expect_err("the serving side's");
    client.try_publish(&format!("cotal.demo.chat.{owner}.cli.general"), b"").await.expect_err("no channel");

    // Its manager registers again: the bearer that was signed before is worth nothing.
    manager.open_at(&rows, 3).await.unwrap();
    stage.refused(Some(&bearer)).await;
    refused(ask("the-signature", 2), "the manager that serves the session is not registered").await;
    manager.open_at(&rows, 2).await.unwrap();
    stage.connected(&bearer).await;
    session.write(&rows, "closed").await.unwrap();
    stage.refused(Some(&bearer)).await;
    refused(ask("the-signature", 2), "the session is not active").await;
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_managers_caller_is_bound_at_the_exchange_issued_at_its_connect_and_refused_once_its_manager_is_gone()
 {
    let stage = Stage::start().await;
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    stage.grant_human("alice", "cli", &["spawn"], &["general"]);
    let rows = stage.rows().await;
    let owner = stage.owner_of("alice");
    let manager = ServingManager::register(&rows, &owner, 1).await.unwrap();
    let mut body = stage.human("alice", "cli");
    body["view"] = json!("manager-caller");
    let (status, answer) = daemon.exchange(&body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["managerInstanceId"], manager.instance.as_str());
    let bearer = answer["token"].as_str().unwrap().to_owned();
    let mut client = stage.connected(&bearer).await;
    let accepted = rows.bucket("accepted").keys("accepted.v1.>").await.unwrap();
    assert_eq!(accepted.len(), 1, "{accepted:?}");
    let attempts = rows.bucket("issued").keys("attempt.v1.>").await.unwrap();
    let generation = attempts[0].rsplit('.').next().unwrap();
    let uid = claims_of(&bearer)["act"]["lifecycleUid"].as_str().unwrap().to_owned();
    let describe = format!(
        "cotal.demo.ep.v1.inst.manager.{}.describe.{owner}.cli.{uid}.{generation}.n",
        manager.instance
    );
    client.try_publish(&describe, b"").await.expect("its own manager, under its own generation");
    client.try_publish(&format!("cotal.demo.chat.{owner}.cli.general"), b"").await.expect_err("no channel");

    // Whatever was issued, a manager that does not serve is nobody's.
    manager.open_at(&rows, 2).await.unwrap();
    stage.refused(Some(&bearer)).await;
    assert_eq!(daemon.exchange(&body).await.0, 401);
    manager.open_at(&rows, 1).await.unwrap();
    stage.connected(&bearer).await;
    assert_eq!(rows.bucket("accepted").keys("accepted.v1.>").await.unwrap(), accepted, "confirmed");
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_transfer_writer_exchanges_connects_and_writes_one_object() {
    let stage = Stage::start().await;
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    stage.grant_human("alice", "cli", &["admin"], &["general"]);
    let (instance, hex) = ("i".repeat(26), "ab".repeat(32));
    let mut body = stage.human("alice", "cli");
    body["view"] = json!("transfer-writer");
    body["ttlSec"] = json!(900);
    body["transferWriter"] = json!({"instanceId": instance, "hex": hex});
    let bearer = bearer_of(daemon.exchange(&body).await);
    let claims = claims_of(&bearer);
    assert_eq!(claims["act"]["transferWriter"], body["transferWriter"]);
    assert!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap() <= 300);
    let mut client = stage.connected(&bearer).await;
    let chunk = |hex: &str| format!("$O.cotal_xfer_demo_{instance}.C.{hex}");
    client.try_publish(&chunk(&hex), b"x").await.expect("its own object");
    client.try_publish(&chunk(&"cd".repeat(32)), b"x").await.expect_err("another object");
    // Narrowed away, the capability is gone from the next exchange and from the next connect.
    stage.revoke_human("alice", "cli");
    stage.grant_human("alice", "cli", &[], &["general"]);
    assert_eq!(daemon.exchange(&body).await.0, 401);
    stage.refused(Some(&bearer)).await;
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn an_agent_exchanges_its_secret_within_its_spawners_grant_until_either_is_revoked() {
    let stage = Stage::start().await;
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    stage.grant_human("alice", "cli", &["spawn"], &["general"]);
    let agent = stage.grant_agent("alice", "cli", "worker", &["general"]);

    let bearer = bearer_of(daemon.exchange(&agent).await);
    let mut client = stage.connected(&bearer).await;
    let subject = format!("cotal.demo.chat.{}.worker.general", stage.owner_of("alice"));
    client.try_publish(&subject, b"hello").await.expect("the grant covers it");

    let mut wrong = agent.clone();
    wrong["actorToken"] = json!("wrong");
    assert_eq!(daemon.exchange(&wrong).await.0, 401);

    stage.revoke_human("alice", "cli");
    let (status, answer) = daemon.exchange(&agent).await;
    assert_eq!(status, 401, "an agent without its spawner gets no bearer: {answer}");
    stage.revoke_agent("alice", "worker");
    stage.refused(Some(&bearer)).await;
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn without_a_good_bearer_nobody_connects() {
    let stage = Stage::start().await;
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    stage.refused(None).await;
    stage.refused(Some("")).await;
    stage.refused(Some("a.b.c")).await;
    stage.refused(Some(&stage.idp.mint_token("alice", 600))).await;
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_restarted_service_has_a_fresh_capability_and_the_same_root_credential() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &[], &["general"]);
    let first = Daemon::start(&stage, AuthServiceArgs::default()).await;
    let before = bearer_of(first.exchange(&stage.human("alice", "cli")).await);
    let old_cap = first.discovery.cap.clone();
    first.stop().await.unwrap();
    assert!(stage.discovery().is_none(), "a stopped service leaves no discovery file");
    stage.refused(Some(&before)).await;

    let second = Daemon::start(&stage, AuthServiceArgs::default()).await;
    assert_ne!(*second.discovery.cap, *old_cap);
    let after = bearer_of(second.exchange(&stage.human("alice", "cli")).await);
    assert_eq!(root_credential(&before), root_credential(&after));
    stage.connected(&after).await;
    stage.connected(&before).await;
    second.stop().await.unwrap();
}

#[tokio::test]
async fn a_killed_broker_that_comes_back_is_served_by_a_new_start_that_knows_every_bearer() {
    let mut stage = Stage::start().await;
    stage.grant_human("alice", "cli", &[], &["general"]);
    let service = start_auth_service(stage.inputs()).await.unwrap();
    let bearer = bearer_of(stage.exchange(&service, &stage.human("alice", "cli")).await);
    stage.connected(&bearer).await;

    stage.restart_broker().await;
    // A scanner that lost its connection cannot prove any more that this process owns the plane (contract 03 §E).
    let end = service.ended().await;
    assert!(matches!(&end, End::Fenced(_)), "{end:?}");
    stage.refused(Some(&bearer)).await;
    // The broker is back, so that the claim can be given back.
    let closed = async { while service.close().await.is_err() {} };
    tokio::time::timeout(AT_LAST, closed).await.expect("the claim is given back");
    assert!(service.closed().await.iter().all(|owned| owned.ended));

    let service = start_auth_service(stage.inputs()).await.unwrap();
    stage.connected(&bearer).await;
    service.close().await.unwrap();
}

#[tokio::test]
async fn the_discovery_file_is_private_and_the_public_face_tells_a_client_how_to_come_in() {
    let stage = Stage::start().await;
    let daemon = Daemon::start(
        &stage,
        AuthServiceArgs {
            exchange_public_port: Some("0".into()),
            advertised_server: Some("tls://broker.example:4222".into()),
            ..AuthServiceArgs::default()
        },
    )
    .await;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let file = stage.space.state_dir.join("auth-service.json");
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let public = daemon.discovery.public_url.clone().unwrap();
    let (status, bundle) = daemon.get(&format!("{public}/.well-known/cotal-mesh")).await;
    assert_eq!(status, 200);
    assert_eq!(bundle["server"], "tls://broker.example:4222");
    assert_eq!(bundle["userAuth"]["endpoints"]["url"], public);
    assert_eq!(bundle["userAuth"]["idp"]["issuer"], stage.idp.origin());
    assert_eq!(bundle["sentinelCreds"], *stage.space.material.callout.sentinel_creds);
    stage.grant_human("alice", "cli", &[], &["general"]);
    let answered = daemon.post(&format!("{public}/exchange"), None, &stage.human("alice", "cli")).await;
    stage.connected(&bearer_of(answered)).await;
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn without_an_advertised_server_the_bundle_names_the_first_that_the_service_dials() {
    let stage = Stage::start().await;
    let first = stage.space.server.url();
    let daemon = Daemon::start(
        &stage,
        AuthServiceArgs {
            server: Some(format!("{first}, nats://127.0.0.1:1")),
            exchange_public_port: Some("0".into()),
            ..AuthServiceArgs::default()
        },
    )
    .await;
    let public = daemon.discovery.public_url.clone().unwrap();
    let (_, bundle) = daemon.get(&format!("{public}/.well-known/cotal-mesh")).await;
    assert_eq!(bundle["server"], first.as_str());
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_listed_is_not_answered() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &[], &["general"]);
    let service = start_auth_service(stage.inputs()).await.unwrap();
    let bearer = bearer_of(stage.exchange(&service, &stage.human("alice", "cli")).await);
    let server_id = stage.connected(&bearer).await.info()["server_id"].as_str().unwrap().to_owned();
    service.close().await.unwrap();

    let listed = stage.hosted().expected_server_ids([server_id]);
    let service = start_auth_service(listed).await.unwrap();
    stage.connected(&bearer).await;
    service.close().await.unwrap();
    let another = stage.hosted().expected_server_ids(["NOBODY".to_owned()]);
    let service = start_auth_service(another).await.unwrap();
    stage.refused(Some(&bearer)).await;
    service.close().await.unwrap();
}

#[tokio::test]
async fn a_limited_actor_is_told_so_by_the_exchange() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &[], &["general"]);
    let limits = cotal_callout::ConnectLimits { per_actor_per_minute: 1, ..Default::default() };
    let service = start_auth_service(stage.inputs().connect_limits(limits)).await.unwrap();
    let body = stage.human("alice", "cli");
    let bearer = bearer_of(stage.exchange(&service, &body).await);
    stage.connected(&bearer).await;
    stage.refused(Some(&bearer)).await;
    let (status, answer) = stage.exchange(&service, &body).await;
    assert_eq!((status, &answer["code"], &answer["limit"]), (429, &json!("RATE_LIMITED"), &json!("actor")));
    service.close().await.unwrap();
}

#[tokio::test]
async fn a_hosted_context_ends_with_every_connection_accounted_for() {
    let stage = Stage::start().await;
    let service = start_auth_service(stage.inputs()).await.unwrap();
    assert_eq!(service.readiness(), Readiness::Ready);
    assert!(
        service.connections().iter().any(|owned| owned.label == "cotal:auth-service:demo" && !owned.ended)
    );
    let (first, second) = tokio::join!(service.close(), service.close());
    first.unwrap();
    second.unwrap();
    assert_eq!(service.readiness(), Readiness::Draining);
    let inventory = service.closed().await;
    assert!(inventory.len() >= 3 && inventory.iter().all(|owned| owned.ended), "{inventory:?}");
    stage.refused(Some("x")).await;
}

#[tokio::test]
async fn a_context_whose_broker_is_gone_for_good_says_so_and_closes_itself() {
    let mut stage = Stage::start().await;
    let service = start_auth_service(stage.inputs()).await.unwrap();
    stage.space.server.kill();
    // Nothing listens any more: only the pauses between attempts are left to wait for.
    tokio::time::pause();
    let end = service.ended().await;
    assert!(
        matches!(&end, End::Fenced(text) if text.contains("scanner connection of space demo")),
        "{end:?}"
    );
    assert!(matches!(service.readiness(), Readiness::Unavailable { .. }));
    // The claim cannot be given back to a broker that is gone: the close is told so, and may be tried again.
    let error = service.close().await.unwrap_err();
    assert!(error.to_string().contains("the context did not close"), "{error}");
    let addr = service.url().strip_prefix("http://").unwrap();
    assert!(tokio::net::TcpStream::connect(addr).await.is_err(), "the listeners are closed");
}

#[tokio::test]
async fn a_daemon_whose_broker_is_gone_for_good_fails_and_leaves_no_discovery_file() {
    let mut stage = Stage::start().await;
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    stage.space.server.kill();
    tokio::time::pause();
    let error = daemon.ended().await.unwrap_err().to_string();
    assert!(error.starts_with("auth-service: the authority plane was fenced: the "), "{error}");
    assert!(stage.discovery().is_none());
}

#[tokio::test]
async fn a_daemon_told_to_stop_while_it_starts_leaves_nothing_behind() {
    let stage = Stage::start().await;
    run_until_told(&stage, std::future::ready(())).await.unwrap();
    assert!(stage.discovery().is_none());
    stage.refused(Some("nobody answers")).await;
}

#[tokio::test]
async fn a_daemon_whose_future_is_dropped_leaves_no_discovery_file() {
    let stage = Stage::start().await;
    Daemon::start(&stage, AuthServiceArgs::default()).await.dropped().await;
    assert!(stage.discovery().is_none());
}

#[tokio::test]
async fn a_context_of_another_account_another_store_or_with_credentials_in_its_servers_does_not_start() {
    let stage = Stage::start().await;
    let other = Stage::start().await;
    let of_the_other = other.hosted_as(stage.context(), &other.space.server.url(), "test-store");
    let refused = start_auth_service(of_the_other).await.err().unwrap();
    assert!(matches!(refused, StartError::Account), "{refused}");
    let refused =
        start_auth_service(stage.hosted_dialling("nats://u:s3cret@127.0.0.1:1")).await.err().unwrap();
    assert!(matches!(refused, StartError::Input(_)), "{refused}");
    assert!(!refused.to_string().contains("s3cret"), "{refused}");
    let elsewhere = stage.hosted_as(stage.context(), &stage.space.server.url(), "elsewhere");
    let refused = start_auth_service(elsewhere).await.err().unwrap();
    assert!(matches!(refused, StartError::Input(_)), "{refused}");
}

#[tokio::test]
async fn a_start_whose_port_is_taken_leaves_nothing_open() {
    let stage = Stage::start().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let refused = start_auth_service(stage.inputs().port(port)).await.err().unwrap();
    assert!(matches!(refused, StartError::Listener { .. }), "{refused}");
    stage.refused(Some("nobody answers")).await;
    let service = start_auth_service(stage.inputs()).await.unwrap();
    service.close().await.unwrap();
}

#[tokio::test]
async fn a_daemon_without_its_broker_fails_and_names_it() {
    let mut stage = Stage::start().await;
    stage.forget_broker();
    let error = error_of(&stage, AuthServiceArgs::default()).await;
    assert!(error.contains("the broker at 127.0.0.1:1 "), "{error}");
    assert!(stage.discovery().is_none());
}

#[tokio::test]
async fn a_second_daemon_refuses_and_leaves_the_first_ones_discovery_file() {
    let stage = Stage::start().await;
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    let before = stage.discovery().expect("the first is ready");
    let error = error_of(&stage, AuthServiceArgs::default()).await;
    assert!(error.contains("already runs"), "{error}");
    let after = stage.discovery().expect("the first is still ready");
    assert_eq!((after.pid, &after.url), (before.pid, &before.url));
    daemon.stop().await.unwrap();
}
