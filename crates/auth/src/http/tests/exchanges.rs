//! Contract 05 §4.4: what an agent's exchange signs, and what refuses one.

use cotal_ledger::AGENT_EXCHANGE_REFUSAL;
use cotal_trust::{bearer, system::SystemEntropy};
use cotal_wire::{Clock, EpCode, EpError, InstanceId, View};
use serde_json::{Value, json};

use super::{
    call::{BOTH, FaceName},
    rig::{ACTOR, Rig},
};
use crate::managers::SelectionArm;

pub(super) fn claims(rig: &Rig, answer: &Value) -> bearer::VerifiedBearer {
    bearer::validate(answer["token"].as_str().unwrap(), &rig.issuer, &rig.space, rig.clock.now_secs())
        .unwrap()
}

#[tokio::test]
async fn an_agents_secret_buys_a_bearer_of_at_most_five_minutes() {
    let rig = Rig::start().await;
    let mut body = rig.agent();
    let now = rig.clock.now_secs().0;
    for (ttl, lives) in [(None, 300), (Some(3_600), 300), (Some(60), 60)] {
        if let Some(ttl) = ttl {
            body["ttlSec"] = json!(ttl);
        }
        let answer = rig.exchange(FaceName::Public, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let members: Vec<String> = answer.json().as_object().unwrap().keys().cloned().collect();
        assert_eq!(members.len(), 3, "{members:?}");
        assert!(answer.text.starts_with("{\"token\":\""), "token, owner, exp in this order");
        assert_eq!(answer.json()["exp"], now + lives);
        let claims = claims(&rig, &answer.json());
        assert_eq!(claims.act.actor.as_str(), ACTOR);
        assert_eq!(claims.act.view, None);
        assert_eq!(
            claims.act.credential_id.as_ref().unwrap().as_str(),
            claims.act.lifecycle_uid.as_ref().unwrap().as_str()
        );
    }
}

#[tokio::test]
async fn a_lifetime_of_less_than_a_second_is_refused() {
    let rig = Rig::start().await;
    let mut body = rig.agent();
    for ttl in [json!(0), json!(-1), json!(0.5), json!(0.999)] {
        body["ttlSec"] = ttl;
        assert_eq!(rig.exchange(FaceName::Loopback, &body).await.status, 401);
    }
}

#[tokio::test]
async fn an_agent_whose_credential_cannot_be_made_durable_gets_no_bearer() {
    let rig = Rig::start().await;
    let body = rig.agent();
    let detail = "KV_cotal_auth_demo: cred.u.c cannot be read: no answer within 5000 ms";
    for code in EpCode::ALL {
        *rig.credentials.refuse.lock() = Some(EpError::new(code, detail));
        // A decision keeps its sentence; what stood in the way of one is for the operator's log alone.
        let says = match code {
            EpCode::PermissionDenied | EpCode::AlreadyExists => detail,
            _ => "the authority of this space is momentarily unavailable; retry",
        };
        let answer = rig.exchange(FaceName::Loopback, &body).await;
        assert_eq!((answer.status, answer.error().as_str()), (401, says), "{code}");
    }
}

#[tokio::test]
async fn a_name_that_nobody_can_have_a_name_that_nobody_has_and_a_wrong_secret_are_one_refusal() {
    let rig = Rig::start().await;
    let good = rig.agent();
    for (member, wrong) in [
        ("owner", json!("no-owner")),
        ("owner", json!("local")),
        ("owner", json!(rig.owner_of("nobody").as_str())),
        ("actor", json!("a.b")),
        ("actor", json!("x".repeat(5_000))),
        ("actor", json!("nobody")),
        ("actorToken", json!("wrong")),
    ] {
        let mut body = good.clone();
        body[member] = wrong;
        let refused = rig.exchange(FaceName::Loopback, &body).await;
        assert_eq!((refused.status, refused.error().as_str()), (401, AGENT_EXCHANGE_REFUSAL), "{body}");
    }
}

#[tokio::test]
async fn a_null_actor_token_selects_the_agent_arm() {
    let rig = Rig::start().await;
    let answer = rig.exchange(FaceName::Public, &json!({"actorToken": null, "actor": "cli"})).await;
    assert!(answer.error().starts_with("agent exchange needs"), "{}", answer.text);
    let answer = rig.exchange(FaceName::Public, &json!({"actor": "cli"})).await;
    assert_eq!(
        answer.error(),
        "exchange needs { idpToken: string, actor: string, ttlSec?: number, view?: string }"
    );
}

#[tokio::test]
async fn a_selected_manager_is_signed_and_answered() {
    let rig = Rig::start().await;
    let mut body = rig.agent();
    body["view"] = json!("manager-caller");
    let instance = InstanceId::mint(&SystemEntropy);
    *rig.managers.answer.lock() = Ok(instance.clone());
    for face in BOTH {
        let answer = rig.exchange(face, &body).await.json();
        assert_eq!(rig.managers.arms.lock().pop(), Some(SelectionArm::Agent));
        assert_eq!(answer["managerInstanceId"], instance.as_str());
        let claims = claims(&rig, &answer);
        assert_eq!(
            (claims.act.view, claims.act.manager_instance_id.as_ref()),
            (Some(View::ManagerCaller), Some(&instance))
        );
    }
}

#[tokio::test]
async fn a_revoked_grant_refuses_the_next_exchange() {
    let rig = Rig::start().await;
    let body = rig.agent();
    assert_eq!(rig.exchange(FaceName::Public, &body).await.status, 200);
    let actor = cotal_wire::Actor::parse(ACTOR).unwrap();
    assert!(rig.ledger.revoke_managed(&rig.owner_of("spawner"), &actor).unwrap());
    assert_eq!(rig.exchange(FaceName::Public, &body).await.status, 401);
}
