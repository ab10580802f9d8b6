//! What a replica was really signed, and when it dials an issuer session of its own.

use std::time::Duration;

use bytes::Bytes;
use cotal_auth::CalloutReplica;
use cotal_broker::{Connection, Lifetime};
use cotal_testkit::{disk::files, rows::ServingManager};
use cotal_trust::{
    bearer::{self, BearerGrant},
    system::SystemClock,
};
use cotal_wire::{
    Actor, Clock, ConnId, CredentialId, EpCode, LifecycleUid, Permissions, View,
    grants::{infra, issued},
};
use serde_json::json;

use crate::{
    house::{callout_jwt, left_bearer, soon},
    stage::{AT_LAST, Stage, claims_of},
    tap::Tap,
};

#[tokio::test]
async fn the_broker_grants_of_a_replica_are_these_and_the_broker_denies_it_everything_else() {
    let stage = Stage::start().await;
    let bearer = left_bearer(&stage, &[]).await;
    let before = files(&stage.space.root.cotal_dir()).unwrap();

    let tap = Tap::start(stage.space.server.port()).await;
    let replica = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.unwrap();
    stage.connected(&bearer).await;
    assert_eq!(
        files(&stage.space.root.cotal_dir()).unwrap(),
        before,
        "a running replica leaves nothing on the disk"
    );
    let signed = tap.presented();
    let names: Vec<_> = signed.iter().map(|user| user.name.as_str()).collect();
    assert_eq!(names, ["cotal:auth-replica-store:demo", "cotal:auth-reader:demo", "cotal:auth-replica:demo"]);
    let opened: Vec<_> = replica.connections().into_iter().map(|owned| owned.label).collect();
    assert_eq!(opened, names);

    let token = stage.space.space.token();
    let granted = |index: usize| {
        let claims = claims_of(&signed[index].jwt);
        eprintln!("{}: {}", signed[index].name, serde_json::to_string_pretty(&claims["nats"]).unwrap());
        (claims["sub"].as_str().unwrap().to_owned(), claims)
    };
    for (index, template) in [
        (0, infra::replica_store as fn(&_, &_) -> Permissions),
        (1, infra::connect_reader as fn(&_, &_) -> Permissions),
    ] {
        let (user, claims) = granted(index);
        let expected = template(&token, &ConnId::parse(&user).unwrap());
        assert_eq!(claims["nats"]["pub"], json!({"allow": expected.publish.allow}));
        assert_eq!(claims["nats"]["sub"], json!({"allow": expected.subscribe.allow}));
        let lives = claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap();
        assert!(lives <= 900, "{lives} s");
    }
    // The callout user is the space's own, in its own account: the same for every member of the group.
    assert_eq!(claims_of(&signed[2].jwt), claims_of(callout_jwt(&stage)));
    replica.close().await.unwrap();

    let connector = stage.space.connector();
    let store = connector
        .open("cotal:store:demo".into(), &|inbox| infra::replica_store(&token, inbox), Lifetime::Renewing)
        .await
        .unwrap();
    let reader = connector
        .open("cotal:reader:demo".into(), &|inbox| infra::connect_reader(&token, inbox), Lifetime::Renewing)
        .await
        .unwrap();
    let denied = async |connection: &Connection, subject: &str| {
        let answer = connection.request(subject, &[], Bytes::new(), AT_LAST).await;
        let code = answer.map(|_| ()).map_err(|error| error.code);
        assert_eq!(code, Err(EpCode::PermissionDenied), "{} {subject}", connection.label());
    };
    for subject in [
        "$JS.API.STREAM.CREATE.KV_cotal_auth_demo",
        "$JS.API.STREAM.UPDATE.KV_cotal_auth_demo",
        "$JS.API.STREAM.DELETE.KV_cotal_auth_demo",
        "$JS.API.STREAM.PURGE.KV_cotal_auth_demo",
        "$JS.API.STREAM.MSG.DELETE.KV_cotal_auth_demo",
        "$JS.API.CONSUMER.CREATE.KV_cotal_auth_demo.x",
        "$JS.API.CONSUMER.CREATE.KV_cotal_records_demo.x",
        "$JS.API.STREAM.MSG.GET.KV_cotal_issued_demo",
        "$JS.API.STREAM.MSG.DELETE.KV_cotal_sessions_demo",
        "$KV.cotal_sessions_demo.session.x",
        "$JS.API.STREAM.NAMES",
        "$KV.cotal_auth_demo.gate.x",
        "$KV.cotal_auth_demo.cred.x.y",
        "$KV.cotal_auth_demo.bysrc.x",
        "$KV.cotal_auth_demo.stage.x",
        "$KV.cotal_auth_demo.plane",
        "$KV.cotal_auth_demo.svcadmit",
        "$KV.cotal_auth_demo.epgate.auth.x",
        "$KV.cotal_records_demo.lifecycle.o.a",
        "$KV.cotal_records_demo.uid.x",
        "$KV.cotal_issued_demo.v1.x",
        "cotal.demo.ctl.delivery-admin.local.x",
        "cotal.demo.chat.local.x.general",
    ] {
        denied(&store, subject).await;
        denied(&reader, subject).await;
    }
    denied(&store, "$JS.API.STREAM.MSG.GET.KV_cotal_records_demo").await;
    denied(&store, "$JS.API.STREAM.MSG.GET.KV_cotal_sessions_demo").await;
    denied(&reader, "$KV.cotal_auth_demo.natkey.U").await;
}

/// A `manager-caller` bearer of alice, bound to this manager, with the root credential of her other bearer.
fn bound_to(stage: &Stage, manager: &ServingManager, bearer: &str) -> String {
    let act = &claims_of(bearer)["act"];
    let text = |name: &str| act[name].as_str().unwrap();
    let scope: Vec<String> = serde_json::from_value(act["scope"].clone()).unwrap();
    let grant = BearerGrant {
        owner: stage.owner_of("alice"),
        actor: Actor::parse("cli").unwrap(),
        scope: Some(scope),
        parent: None,
        lifecycle_uid: LifecycleUid::parse(text("lifecycleUid")).unwrap(),
        credential_id: CredentialId::parse(text("credentialId")).unwrap(),
        view: Some(View::ManagerCaller),
        manager_instance_id: Some(manager.instance.clone()),
        session: None,
        transfer_writer: None,
        ttl_secs: None,
        not_after: None,
    };
    let issuer = &stage.space.material.issuer;
    bearer::mint(issuer, &stage.space.space, &grant, SystemClock.now_secs()).unwrap().token.to_string()
}

#[tokio::test]
async fn a_replica_issues_over_a_session_of_its_own_and_only_once_a_connect_needs_it() {
    let stage = Stage::start().await;
    let plain = left_bearer(&stage, &["spawn"]).await;
    let rows = stage.rows().await;
    let manager = ServingManager::register(&rows, stage.owner_of("alice"), 0).await.unwrap();
    let bound = bound_to(&stage, &manager, &plain);

    let tap = Tap::start(stage.space.server.port()).await;
    let replica = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.unwrap();
    stage.connected(&plain).await;
    let issuers = || {
        let all = replica.connections().into_iter();
        all.filter(|owned| owned.label == "cotal:issuer:demo").map(|owned| owned.ended).collect::<Vec<_>>()
    };
    assert!(issuers().is_empty(), "a plain connect needs none");
    tap.presented();
    for _ in 0..2 {
        stage.connected(&bound).await;
    }
    let issued = rows.bucket("issued").keys("v1.>").await.unwrap();
    assert_eq!(issued.len(), 1, "issued once, confirmed after: {issued:?}");
    assert_eq!(rows.bucket("accepted").keys(">").await.unwrap().len(), 1);

    assert_eq!(issuers(), [false], "one session for both");
    let signed = tap.presented();
    let [session] = &signed[..] else { panic!("{} connections were dialled", signed.len()) };
    let claims = claims_of(&session.jwt);
    let conn = ConnId::parse(claims["sub"].as_str().unwrap()).unwrap();
    let token = stage.space.space.token();
    let expected = issued::issuer_session(&token, &conn);
    assert_eq!(claims["nats"]["pub"], json!({"allow": expected.publish.allow}));
    assert_eq!(claims["nats"]["sub"], json!({"allow": expected.subscribe.allow}));
    assert!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap() <= 300);
    let connector = stage.space.connector();
    let issuer = connector
        .open("cotal:issuer:demo".into(), &|inbox| issued::issuer_session(&token, inbox), Lifetime::Renewing)
        .await
        .unwrap();
    for subject in [
        "$KV.cotal_auth_demo.gate.x",
        "$KV.cotal_auth_demo.natkey.U",
        "$KV.cotal_records_demo.lifecycle.o.a",
        "$KV.cotal_sessions_demo.session.x",
        "$JS.API.STREAM.MSG.GET.KV_cotal_records_demo",
        "$JS.API.STREAM.MSG.GET.KV_cotal_sessions_demo",
        "$JS.API.STREAM.DELETE.KV_cotal_issued_demo",
        "$JS.API.STREAM.PURGE.KV_cotal_issued_demo",
        "$JS.API.STREAM.UPDATE.KV_cotal_accepted_demo",
        "cotal.demo.chat.local.x.general",
    ] {
        let answer = issuer.request(subject, &[], Bytes::new(), AT_LAST).await;
        assert_eq!(
            answer.map(|_| ()).map_err(|error| error.code),
            Err(EpCode::PermissionDenied),
            "{subject}"
        );
    }

    // Lost, it ends nothing: the next connect that needs one dials anew.
    tap.cut("cotal:issuer:demo");
    soon(async {
        while issuers() != [true] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    tap.heal();
    stage.connected(&bound).await;
    stage.connected(&plain).await;
    assert_eq!(issuers(), [true, false]);
    assert_eq!(futures::FutureExt::now_or_never(replica.ended()), None);
    replica.close().await.unwrap();
    assert!(replica.connections().iter().all(|owned| owned.ended));
}
