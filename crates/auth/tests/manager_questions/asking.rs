//! Contract 06 §10-11: the goals of the owner alone, and whether a caller is an admin now.

use cotal_auth::{AuthService, start_auth_service};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    Owner,
    manager_authority::{
        AdminRequest, AdminResult, GoalIndexRequest, GoalIndexResult, HolderKind, Kind, ROUTE,
    },
};
use serde_json::{Value, json};

use super::{
    managers::Managers,
    stage::{Stage, es},
};

/// Asks as the participant of a person's manager asks.
pub(super) async fn ask(stage: &Stage, service: &AuthService, sub: &str, request: &Value) -> (u16, Value) {
    let body = json!({ "idpToken": stage.idp.mint_token(sub, 600), "request": request });
    stage.post_to(service, ROUTE, &body).await
}

/// A goal of an owner: its key, and its row.
fn goal(owner: &str, id: &str) -> (String, String) {
    let uid = "u".repeat(26);
    (
        format!("goalidx.manager.{owner}.cli.{uid}.{id}"),
        json!({
            "v": 1, "endpoint": "manager", "owner": owner, "actor": "cli", "uid": uid, "goalId": id, "iid": "i",
            "allocated": { "name": "n", "actor": "helper", "uid": "x", "readinessDeadlineMs": 5 },
        })
        .to_string(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_answers_the_goals_of_the_owner_alone_and_nothing_when_one_is_garbled() {
    let stage = Stage::start().await;
    for sub in ["alice", "bob"] {
        stage.grant_human(sub, "cli", &["supervise"], &["general"]);
    }
    let service = start_auth_service(stage.inputs()).await.unwrap();
    let managers = Managers::of(&stage);
    let (alice, bob) = (stage.owner_of("alice"), stage.owner_of("bob"));
    let manager = managers.live(&alice).await;
    let rows = stage.rows().await;
    let put = async |(key, row): (String, String)| rows.put("records", &key, row.into()).await.unwrap();
    let sent = managers.proved(&manager, Kind::GoalIndexScan, json!({})).await;
    let request = GoalIndexRequest::parse(&es(&sent)).unwrap();
    let owner = Owner::from(&alice);
    let scan = async || {
        let (status, answer) = ask(&stage, &service, "alice", &sent).await;
        assert_eq!(status, 200, "{answer}");
        GoalIndexResult::bind(&es(&answer), &request, &owner).unwrap().entries
    };
    assert_eq!(scan().await, []);
    put(goal(alice.as_str(), "g2")).await;
    put(goal(alice.as_str(), "g1")).await;
    put(goal(bob.as_str(), "g1")).await;
    let goals = scan().await;
    assert_eq!(goals.iter().map(|goal| goal.goal_id.as_str()).collect::<Vec<_>>(), ["g1", "g2"]);
    assert!(goals.iter().all(|goal| goal.owner == alice.as_str() && goal.allocated.is_some()));

    let (key, row) = goal(alice.as_str(), "g3");
    put((key, row.replace("g3", "g4"))).await;
    let (status, answer) = ask(&stage, &service, "alice", &sent).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer.get("entries").is_none(), "nothing is returned");
    service.close().await.unwrap();
}

async fn refused(stage: &Stage, service: &AuthService, sub: &str, request: &Value) -> u16 {
    let (status, answer) = ask(stage, service, sub, request).await;
    assert!(answer["error"].is_string(), "{answer}");
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_coordinate_is_refused_after_a_real_re_registration() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &["supervise"], &["general"]);
    stage.grant_human("bob", "cli", &["supervise"], &["general"]);
    stage.grant_human("carol", "cli", &["spawn", "admin"], &["general"]);
    let service = start_auth_service(stage.inputs()).await.unwrap();
    let managers = Managers::of(&stage);
    let manager = managers.live(&stage.owner_of("alice")).await;
    let before = managers.proved(&manager, Kind::GoalIndexScan, json!({})).await;
    assert_eq!(ask(&stage, &service, "alice", &before).await.0, 200);
    assert_eq!(refused(&stage, &service, "bob", &before).await, 403, "another owner's manager");
    assert_eq!(refused(&stage, &service, "carol", &before).await, 403, "no other capability is supervise");

    managers.serve(&manager).await;
    assert_eq!(refused(&stage, &service, "alice", &before).await, 409, "a stale epoch");
    let mut replayed = before.clone();
    replayed["serveEpoch"] = json!(1);
    assert_eq!(
        refused(&stage, &service, "alice", &replayed).await,
        403,
        "the proof of the registration before"
    );
    let now = managers.proved(&manager, Kind::GoalIndexScan, json!({})).await;
    assert_eq!(ask(&stage, &service, "alice", &now).await.0, 200);
    let mut rekeyed = now.clone();
    rekeyed["identities"]["serve"] = rekeyed["identities"]["executor"].clone();
    assert_eq!(refused(&stage, &service, "alice", &rekeyed).await, 403, "other keys");
    managers.freeze(&manager).await;
    assert_eq!(refused(&stage, &service, "alice", &now).await, 403, "a frozen gate");
    service.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_a_caller_is_an_admin_is_what_its_row_says_now() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &["supervise", "admin"], &["general"]);
    stage.grant_human("bob", "ops", &["admin"], &["general"]);
    let service = start_auth_service(stage.inputs()).await.unwrap();
    let managers = Managers::of(&stage);
    let alice = stage.owner_of("alice");
    let manager = managers.live(&alice).await;
    let uid = |sub: &str, actor: &str| {
        let actor = cotal_wire::Actor::parse(actor).unwrap();
        let row = stage.ledger.read_interactive(&stage.owner_of(sub), &actor).unwrap().unwrap();
        row.lifecycle_uid.unwrap()
    };
    let admin = async |owner: &str, actor: &str, uid: &str| {
        let caller = json!({ "owner": owner, "actor": actor, "lifecycleUid": uid });
        let sent = managers.proved(&manager, Kind::AdminAuthorization, json!({ "caller": caller })).await;
        let (status, answer) = ask(&stage, &service, "alice", &sent).await;
        assert_eq!(status, 200, "{answer}");
        let request = AdminRequest::parse(&es(&sent), HolderKind::Human).unwrap();
        let owner = Owner::from(&alice);
        let parsed = AdminResult::parse(&es(&answer), HolderKind::Human).unwrap();
        assert_eq!((&parsed.request, &parsed.owner), (&request, &owner), "every coordinate is echoed");
        AdminResult::bind(&es(&answer), &request, &owner, HolderKind::Human).unwrap()
    };
    stage.grant_human("alice", "ops", &["admin", "spawn"], &["general"]);
    let ops = uid("alice", "ops");
    assert!(admin(alice.as_str(), "ops", &ops).await);
    assert!(!admin(alice.as_str(), "nobody", &ops).await, "missing");
    let stale = cotal_wire::LifecycleUid::mint(&SystemEntropy);
    assert!(!admin(alice.as_str(), "ops", stale.as_str()).await, "stale");
    let bob = stage.owner_of("bob");
    assert!(!admin(bob.as_str(), "ops", &uid("bob", "ops")).await, "foreign");
    stage.revoke_human("alice", "ops");
    assert!(!admin(alice.as_str(), "ops", &ops).await, "revoked");
    stage.grant_human("alice", "ops", &["spawn"], &["general"]);
    assert!(!admin(alice.as_str(), "ops", &uid("alice", "ops")).await, "narrowed");
    let agent = stage.grant_agent("alice", "cli", "worker", &["general"]);
    assert!(agent["actorToken"].is_string());
    let actor = cotal_wire::Actor::parse("worker").unwrap();
    let worker = stage.ledger.read_managed(&alice, &actor).unwrap().unwrap();
    assert!(
        !admin(alice.as_str(), "worker", &worker.lifecycle_uid.unwrap()).await,
        "an agent without the scope"
    );

    // A ledger that cannot be read answers nothing.
    let path = stage.space.state_dir.join("actors").join(format!("{alice}.ops.json"));
    std::fs::write(&path, "{}").unwrap();
    let caller = json!({ "owner": alice, "actor": "ops", "lifecycleUid": ops });
    let sent = managers.proved(&manager, Kind::AdminAuthorization, json!({ "caller": caller })).await;
    assert_eq!(refused(&stage, &service, "alice", &sent).await, 403);
    service.close().await.unwrap();
}
