//! `session-caller`: one session, while it and its manager stand.

use std::{sync::Arc, time::Duration};

use cotal_broker::kv::WriteOutcome;
use cotal_testkit::{privilege::Privilege, rows::ServedSession};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Clock, LifecycleUid, Principal, SessionEndpoint,
    grants::{self, Profile},
    names::session_key,
};

use crate::{
    house::{Ask, House, Plan},
    serving::{connected, describe, registered, rows, session_bearer, session_of},
};

fn rail(session: &ServedSession, end: &str) -> String {
    format!("cotal.demo.eps.manager.{}.{}.{end}", session.id, session.epoch)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_caller_gets_its_session_until_the_session_ends_and_nothing_else() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["spawn"], &["general"], &["general"]).await;
    let manager = registered(&house, 3).await;
    let session = session_of('s', &granted, &manager);
    session.write(&rows(&house), "active").await.unwrap();
    let who = granted.connects("nonce-session");
    let profile = Profile::SessionCaller {
        endpoint: SessionEndpoint::parse("manager").unwrap(),
        session: session.id.clone(),
        epoch: session.epoch,
    };
    let signed = grants::permissions(&house.material.space.token(), &who, &profile).unwrap();
    let other = session_of('t', &granted, &manager);
    let privilege = Privilege {
        name: "session-caller",
        publishes: rail(&session, "in"),
        hears: format!("{}\n_INBOX_nonce-session.>", rail(&session, "out")),
        never_publishes: format!(
            "{}
             {}
             cotal.demo.eps.manager.{}.4.in
             cotal.demo.eps.auth.{}.3.in
             cotal.demo.chat.{}.cli.general
             {}
             $KV.cotal_sessions_demo.session.{}
             $JS.API.STREAM.MSG.GET.KV_cotal_sessions_demo
             $JS.API.DIRECT.GET.EPC_demo.cotal.demo.epc.x
             $JS.API.INFO",
            rail(&session, "out"),
            rail(&other, "in"),
            session.id,
            session.id,
            granted.owner,
            describe(&manager, &granted, None),
            session.id,
        ),
        never_hears: format!(
            "{}
             {}
             cotal.demo.eps.>
             cotal.demo.ep.reply.*.*.*.{}.cli.{}.*
             _INBOX.>",
            rail(&session, "in"),
            rail(&other, "out"),
            granted.owner,
            granted.uid,
        ),
    };
    let mut client = connected(&house, &session_bearer(&house, &granted, &session), "nonce-session").await;
    privilege.hold(&mut client, &signed).await;
    // The JWT lives as long as the session, not as the bearer; the issuance row says so.
    let key = house.auth_bucket().keys("natkey.>").await.unwrap().remove(0);
    let key = &key[key.find("natkey.").unwrap()..];
    let row = house.auth_bucket().read_authority(key).await.unwrap().unwrap();
    let row: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
    assert_eq!(row["view"], "session-caller");
    assert_eq!(row["exp"].as_u64(), Some(session.exp.to_secs().0));
    assert_eq!(house.issuers(), (0, 0), "a session needs no pair");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_promises_years_is_signed_a_day() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = registered(&house, 0).await;
    let session = ServedSession {
        exp: SystemClock.now_millis().plus(400 * 86_400_000),
        ..session_of('s', &granted, &manager)
    };
    session.write(&rows(&house), "active").await.unwrap();
    connected(&house, &session_bearer(&house, &granted, &session), &house.nonce()).await;
    let key = house.auth_bucket().keys("natkey.>").await.unwrap().remove(0);
    let key = &key[key.find("natkey.").unwrap()..];
    let row = house.auth_bucket().read_authority(key).await.unwrap().unwrap();
    let row: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
    assert_eq!(row["exp"].as_u64().unwrap() - row["iat"].as_u64().unwrap(), 86_400);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ended_or_is_not_the_callers_refuses_the_connect_in_order() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = registered(&house, 3).await;
    let session = session_of('s', &granted, &manager);
    let bearer = session_bearer(&house, &granted, &session);
    let says = async |why: &str| {
        let reason = house.denied(&bearer, &house.nonce()).await;
        assert_eq!(reason, format!("permissions: session redemption refused: {why}"));
    };
    // Each case mends the first fault of the case before it.
    says("there is no such session").await;
    let past = SystemClock.now_millis();
    let mut wrong = ServedSession {
        holder: Principal::parse_key("u_bbbbbbbbbbbbbbbbbbbbbbbbbb.cli").unwrap(),
        uid: LifecycleUid::mint(&SystemEntropy),
        epoch: 4,
        exp: past,
        ..session_of('s', &granted, &manager)
    };
    for state in ["issuing", "closed", "expired", "superseded", "retired"] {
        wrong.write(&rows(&house), state).await.unwrap();
        says("the session is not active").await;
    }
    wrong.write(&rows(&house), "active").await.unwrap();
    says("another principal holds the session").await;
    wrong.holder.clone_from(&session.holder);
    wrong.write(&rows(&house), "active").await.unwrap();
    says("another incarnation holds the session").await;
    wrong.uid.clone_from(&session.uid);
    wrong.write(&rows(&house), "active").await.unwrap();
    says("another epoch serves the session").await;
    wrong.epoch = session.epoch;
    wrong.write(&rows(&house), "active").await.unwrap();
    says("the session has expired").await;
    // Another end than the bearer was signed for.
    wrong.exp = session.exp.plus(1_000);
    wrong.write(&rows(&house), "active").await.unwrap();
    let reason = house.denied(&bearer, &house.nonce()).await;
    assert!(reason.contains("the session's end is another one"), "{reason}");
    session.write(&rows(&house), "active").await.unwrap();
    connected(&house, &bearer, &house.nonce()).await;

    // The manager that serves it.
    manager.gate(&rows(&house), "frozen", &manager.principal(), 3).await.unwrap();
    says("the manager that serves the session is not open").await;
    manager.gate(&rows(&house), "open", &manager.principal(), 4).await.unwrap();
    says("the manager that serves the session is not registered").await;
    manager.report(&rows(&house), 4).await.unwrap();
    says("the manager that serves the session has registered again since").await;
    manager.report(&rows(&house), 3).await.unwrap();
    manager.open(&rows(&house)).await.unwrap();
    connected(&house, &bearer, &house.nonce()).await;
    // Deleted is absent.
    let sessions = house.bucket("sessions");
    let at = sessions.read_authority(&session_key(&session.id)).await.unwrap().unwrap().revision;
    let deleted = sessions.delete_pinned(&session_key(&session.id), at).await;
    assert!(matches!(deleted, WriteOutcome::Written(_)), "{deleted:?}");
    says("there is no such session").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_retired_while_its_holder_connects_is_seen_by_the_recheck() {
    let house = Arc::new(House::build("demo", Plan::with_callers()).await);
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = registered(&house, 0).await;
    let session = session_of('s', &granted, &manager);
    session.write(&rows(&house), "active").await.unwrap();
    let bearer = session_bearer(&house, &granted, &session);
    // Past every check, before the record: the reading for `iat`.
    house.clock.at_reading(2, {
        let (house, session) = (house.clone(), session_of('s', &granted, &manager));
        move || {
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(session.write(&rows(&house), "retired")).unwrap();
            });
        }
    });
    let reason = house.denied(&bearer, &house.nonce()).await;
    assert_eq!(
        reason,
        "revoked while connecting: permissions: session redemption refused: the session is not active"
    );
    assert_eq!(house.count("minted"), 0);
    house.callout.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sessions_store_of_another_shape_admits_no_session_and_every_other_connect() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = registered(&house, 0).await;
    let session = session_of('s', &granted, &manager);
    session.write(&rows(&house), "active").await.unwrap();
    let ask = async |verb: &str, body: String| {
        let subject = format!("$JS.API.STREAM.{verb}.KV_cotal_sessions_demo");
        let answer = house.admin.request(&subject, &[], body.into(), Duration::from_secs(10)).await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&answer.payload).unwrap()
    };
    let mut info = ask("INFO", String::new()).await;
    info["config"]["allow_direct"] = true.into();
    ask("UPDATE", info["config"].to_string()).await;
    let reason = house.denied(&session_bearer(&house, &granted, &session), &house.nonce()).await;
    assert!(reason.contains("KV_cotal_sessions_demo"), "{reason}");
    ask("DELETE", String::new()).await;
    let reason = house.denied(&session_bearer(&house, &granted, &session), &house.nonce()).await;
    assert!(reason.contains("KV_cotal_sessions_demo"), "{reason}");
    assert!(house.connect(&house.bearer(&granted, Ask::default())).await.is_some());
    house.close().await;
}
