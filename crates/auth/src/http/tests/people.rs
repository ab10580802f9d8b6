//! Contract 05 §4.5: what a person's exchange signs, and what refuses one.

use std::sync::atomic::Ordering;

use cotal_wire::{Clock, View};
use serde_json::json;

use super::{
    call::{BOTH, FaceName},
    exchanges::claims,
    rig::Rig,
};

#[tokio::test]
async fn a_human_with_a_grant_gets_a_bearer_that_never_outlives_the_proof() {
    let rig = Rig::with_people().await;
    rig.grant_human("alice", "cli", &[]);
    let now = rig.clock.now_secs().0;
    for face in BOTH {
        let answer = rig.exchange(face, &rig.human("alice", "cli")).await;
        assert_eq!(answer.status, 200, "{face:?} {}", answer.text);
        assert_eq!(answer.json()["owner"], rig.owner_of("alice").as_str());
        assert_eq!(answer.json()["exp"], now + 900);
        let short = json!({"idpToken": rig.proof("alice", 120), "actor": "cli"});
        assert_eq!(rig.exchange(face, &short).await.json()["exp"], now + 120, "{face:?}");
    }
}

#[tokio::test]
async fn a_human_without_a_grant_or_with_a_bad_proof_is_refused_before_a_credential_is_made() {
    let rig = Rig::with_people().await;
    rig.grant_human("alice", "cli", &[]);
    let mut forged = rig.human("alice", "cli");
    forged["idpToken"] = json!(format!("{}x", forged["idpToken"].as_str().unwrap()));
    let expired = rig.human("alice", "cli");
    for (what, body) in [
        ("no grant", rig.human("bob", "cli")),
        ("forged", forged),
        ("no token", json!({"idpToken": "x", "actor": "cli"})),
        ("actor grammar", rig.human("alice", "a.b")),
    ] {
        assert_eq!(rig.exchange(FaceName::Public, &body).await.status, 401, "{what}");
    }
    rig.clock.advance_ms(3_700_000);
    assert_eq!(rig.exchange(FaceName::Public, &expired).await.status, 401);
    assert_eq!(rig.credentials.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_view_needs_its_scope_and_the_refusal_prints_the_grant_that_adds_it() {
    let rig = Rig::with_people().await;
    rig.grant_human("alice", "cli", &["spawn"]);
    let mut body = rig.human("alice", "cli");
    body["view"] = json!("channel-writer");
    let refused = rig.exchange(FaceName::Public, &body).await;
    assert_eq!(refused.status, 401);
    let line = format!("cotal actor grant cli --owner {} --scope 'spawn,admin'", rig.owner_of("alice"));
    assert!(refused.error().contains(&line), "{}", refused.error());
    rig.ledger.revoke_interactive(&rig.owner_of("alice"), &cotal_wire::Actor::parse("cli").unwrap()).unwrap();
    rig.grant_human("alice", "cli", &["admin"]);
    let answer = rig.exchange(FaceName::Public, &body).await;
    assert_eq!(claims(&rig, &answer.json()).act.view, Some(View::ChannelWriter));
}

#[tokio::test]
async fn loopback_mints_operator_views_and_refuses_an_unknown_one_as_401() {
    let rig = Rig::with_people().await;
    rig.grant_human("alice", "cli", &["admin", "spawn", "supervise"]);
    let mut body = rig.human("alice", "cli");
    for view in ["admin", "purger", "deployer", "manager-service"] {
        body["view"] = json!(view);
        assert_eq!(rig.exchange(FaceName::Loopback, &body).await.status, 200, "{view}");
        assert_eq!(rig.exchange(FaceName::Public, &body).await.status, 403, "{view}");
    }
    for view in ["root", "", "service-endpoint"] {
        body["view"] = json!(view);
        assert_eq!(rig.exchange(FaceName::Loopback, &body).await.status, 401, "{view}");
        assert_eq!(rig.exchange(FaceName::Public, &body).await.status, 403, "{view}");
    }
}

#[tokio::test]
async fn a_transfer_writer_names_one_closed_target() {
    let rig = Rig::with_people().await;
    rig.grant_human("alice", "cli", &["admin"]);
    let mut body = rig.human("alice", "cli");
    body["view"] = json!("transfer-writer");
    body["transferWriter"] = json!({"instanceId": "i".repeat(26), "hex": "a".repeat(64)});
    let answer = rig.exchange(FaceName::Public, &body).await.json();
    assert_eq!(answer["exp"], rig.clock.now_secs().0 + 300);
    assert_eq!(claims(&rig, &answer).act.transfer_writer.as_ref().unwrap().hex.as_str(), "a".repeat(64));
    for bad in [
        json!({}),
        json!("x"),
        json!({"instanceId": "i".repeat(26), "hex": "a".repeat(64), "more": 1}),
        json!(["i".repeat(26), "a".repeat(64)]),
    ] {
        body["transferWriter"] = bad;
        assert_eq!(rig.exchange(FaceName::Public, &body).await.status, 401);
    }
}

#[tokio::test]
async fn nobody_holds_a_session_where_none_is_kept() {
    let rig = Rig::with_people().await;
    rig.grant_human("alice", "cli", &[]);
    let mut body = rig.human("alice", "cli");
    body["view"] = json!("session-caller");
    let real =
        json!({"endpoint": "manager", "sessionId": "s".repeat(22), "sig": "x", "serving": {"epoch": 1}});
    let extracted = json!({"endpoint": "manager", "sessionId": "s".repeat(22), "grantSig": "x", "epoch": 1});
    for (grant, says) in [
        (real, "holds no redeemed session on endpoint manager"),
        (extracted, "sessionGrant needs { sessionId: string, endpoint: string, sig: string, serving: {"),
        (json!({}), "sessionGrant needs"),
        (json!("x"), "sessionGrant needs"),
    ] {
        body["sessionGrant"] = grant;
        for face in BOTH {
            let refused = rig.exchange(face, &body).await;
            assert_eq!(refused.status, 401);
            assert!(refused.error().contains(says), "{}", refused.error());
        }
    }
}
