//! What a manager asks while it serves, beside its renewals and its runs: each asked by the participant over the public face,
//! about rows that were written by whoever may write them, and what is granted is used at the broker (contract 06 §4.7, §5,
//! §9-11).

use std::time::Duration;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE},
};
use cotal_broker::{
    Connection, Subscription,
    kv::{Bucket, WriteOutcome},
};
use cotal_manager::remote::{Active, RefusalKind, participant::Wanted};
use cotal_testkit::rows::{Rows, ServedSession};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, ChannelPattern, Clock as _, LifecycleUid, Names, Owner, Principal, SessionId,
    manager_authority::{Incarnation, StandingRole},
    rows::GoalIndexRow,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::{
    house::{ACTOR, Host, PATIENCE, activated, answered, is_kept_from, opened, refusal},
    killed::House,
};

/// More writes than a registration has.
const WRITES: usize = 14;

/// A host for a day, and an active manager of its on a root of its own.
struct Scene {
    host: Host,
    active: Active,
    _root: tempfile::TempDir,
}

impl Scene {
    async fn start() -> Self {
        let host = Host::signing_for_a_day().await;
        let root = tempfile::tempdir().unwrap();
        let active = activated(host.setup(root.path(), &host.face())).await;
        Self { host, active, _root: root }
    }

    fn names(&self) -> Names {
        Names::new(&self.host.space.space.token())
    }

    /// A connection with a standing credential.
    async fn as_role(&self, role: StandingRole) -> Connection {
        let creds = self.active.standing().creds(role).unwrap().current();
        opened(&self.active, role.as_str(), &creds).await
    }

    async fn end(self) {
        assert!(self.active.goodbye(None).await.unwrap());
        self.host.service.close().await.unwrap();
    }
}

/// What is heard next, which must come.
async fn heard(on: &mut Subscription) -> Vec<u8> {
    timeout(PATIENCE, on.next()).await.expect("it is heard").expect("it goes on").payload.to_vec()
}

fn another() -> Owner {
    Owner::parse(&format!("u_{}", "b".repeat(26))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_spoken_by_the_manager_that_serves_it_and_the_person_who_redeems_it() {
    let scene = Scene::start().await;
    let Scene { host, active, .. } = &scene;
    let holder = host.grant_to("web", &[]);
    let session = ServedSession {
        id: SessionId::parse(&"s".repeat(43)).unwrap(),
        instance: active.identity().instance().clone(),
        epoch: active.current().epoch,
        holder: Principal::new(holder.owner.clone(), holder.actor.clone()),
        uid: holder.lifecycle_uid.clone(),
        exp: SystemClock.now_millis().plus(3_600_000),
    };
    let ledger = scene.as_role(StandingRole::SessionLedger).await;
    let rows = Rows::over(&ledger, &host.space.space);
    session.write(&rows, "active").await.unwrap();

    let creds = active.session_serving(&session.id, session.exp.to_secs()).await.unwrap();
    let serving = opened(active, "session", &creds).await;
    let asks = json!({ "view": "session-caller", "sessionGrant": {
        "v": 1, "endpoint": "manager", "sessionId": session.id, "sig": "the-signature",
        "serving": { "instanceId": session.instance, "epoch": session.epoch },
    } });
    let (_, calling) = host.signed_in("web", &asks).await;

    let rail = |end: &str| format!("cotal.main.eps.manager.{}.{}.{end}", session.id, session.epoch);
    let mut inward = serving.subscribe(&rail("in"), None).await.unwrap();
    let mut outward = calling.subscribe(&rail("out"), None).await.unwrap();
    serving.flush().await.expect("the serving side hears its session");
    calling.flush().await.expect("and so does its holder");
    calling.publish(&rail("in"), &[], "a question".into()).await.unwrap();
    assert_eq!(heard(&mut inward).await, b"a question");
    serving.publish(&rail("out"), &[], "an answer".into()).await.unwrap();
    assert_eq!(heard(&mut outward).await, b"an answer");
    assert!(is_kept_from(&serving, &rail("in")).await && is_kept_from(&calling, &rail("out")).await);

    // It is over when its row says so: nobody serves it any more, and nobody redeems it.
    session.write(&rows, "closed").await.unwrap();
    let again = active.session_serving(&session.id, session.exp.to_secs()).await;
    assert_eq!(refusal(again).kind, RefusalKind::Denied);
    assert_eq!(host.exchange("web", &asks).await.0, 401);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transcript_is_handed_over_by_an_admin_and_read_by_the_managers_reader() {
    let scene = Scene::start().await;
    let Scene { host, active, .. } = &scene;
    let instance = active.identity().instance();
    let bucket = scene.names().transfer_bucket(instance);
    let stream = Names::object_stream(&bucket);
    let reading = opened(active, "transfer", &active.transfer_reader().await.unwrap()).await;
    let store = json!({
        "name": stream, "subjects": [format!("$O.{bucket}.C.>"), format!("$O.{bucket}.M.>")], "storage": "file",
        "allow_direct": true, "allow_rollup_hdrs": true, "discard": "new", "num_replicas": 1,
    });
    answered(&reading, &format!("$JS.API.STREAM.CREATE.{stream}"), store.to_string()).await;

    host.grant_to("ops", &["admin"]);
    let transcript = "what was said";
    let hex = hex::encode(Sha256::digest(transcript));
    let asks = json!({ "view": "transfer-writer", "transferWriter": { "instanceId": instance, "hex": hex } });
    let (_, writing) = host.signed_in("ops", &asks).await;
    let chunk = format!("$O.{bucket}.C.{hex}");
    let about = format!("$O.{bucket}.M.{}", URL_SAFE.encode(format!("sha256:{hex}")));
    answered(&writing, &chunk, transcript).await;
    answered(&writing, &about, json!({ "size": transcript.len() }).to_string()).await;
    assert!(is_kept_from(&writing, &format!("$O.{bucket}.C.{}", "c".repeat(64))).await, "another object");

    let get = format!("$JS.API.STREAM.MSG.GET.{stream}");
    let read = answered(&reading, &get, json!({ "last_by_subj": chunk }).to_string()).await;
    assert_eq!(read["message"]["data"], STANDARD.encode(transcript));
    assert!(is_kept_from(&reading, &chunk).await, "it reads");
    let cleared = answered(&reading, &format!("$JS.API.STREAM.PURGE.{stream}"), "").await;
    assert_eq!((&cleared["success"], &cleared["purged"]), (&json!(true), &json!(2)));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_a_caller_is_an_admin_follows_every_change_of_its_grant() {
    let scene = Scene::start().await;
    let Scene { host, active, .. } = &scene;
    let is_admin = async |caller: &Incarnation| active.authority().is_admin(active.current(), caller).await;

    let ops = host.grant_to("ops", &["admin", "spawn"]);
    assert!(is_admin(&ops).await.unwrap());
    host.grant_at("ops", &["spawn"], &["general"], Some(&ops));
    assert!(!is_admin(&ops).await.unwrap(), "narrowed");
    host.grant_at("ops", &["admin"], &["general"], Some(&ops));
    assert!(is_admin(&ops).await.unwrap(), "widened again");
    let next = host.grant_to("ops", &["admin"]);
    assert!(!is_admin(&ops).await.unwrap(), "an incarnation before");
    assert!(is_admin(&next).await.unwrap());
    assert!(!is_admin(&Incarnation { owner: another(), ..next.clone() }).await.unwrap(), "another owner's");
    host.revoke(&next);
    assert!(!is_admin(&next).await.unwrap(), "revoked");

    // The question itself is a supervisor's.
    host.grant(&["spawn", "admin"]);
    let refused = refusal(is_admin(&next).await);
    assert!(refused.kind == RefusalKind::Denied && refused.said.contains("supervise"), "{refused}");
    host.grant(&["supervise", "spawn"]);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retained_agent_is_who_it_was_until_its_grant_or_its_spawners_changes() {
    let scene = Scene::start().await;
    let Scene { host, active, .. } = &scene;
    let spawner = host.grant_to(ACTOR, &["supervise", "spawn"]);
    let general = vec![ChannelPattern::parse("general").unwrap()];
    let wanted =
        Wanted { allow_subscribe: general.clone(), allow_publish: general.clone(), ..Wanted::default() };
    let agent = active.enroll(&Actor::parse("helper").unwrap(), &wanted).await.unwrap();
    let retained = active.validate(&agent).await.unwrap();
    assert_eq!(retained.lifecycle_uid, agent.agent.lifecycle_uid);
    assert_eq!(
        retained.parent,
        Some(Principal::new(spawner.owner.clone(), spawner.actor.clone())),
        "its spawner"
    );
    assert_eq!((&retained.allow_subscribe, &retained.allow_publish), (&general, &general));

    let secret =
        active.secrets().kept(&agent.agent.actor, &agent.agent.lifecycle_uid).unwrap().unwrap().secret;
    let stranger = Zeroizing::new("x".repeat(secret.len()));
    let sentinel = &agent.sentinel_text;
    let as_said = async |who: &Incarnation, secret: &Zeroizing<String>, sentinel: &Zeroizing<String>| {
        refusal(active.authority().validate_retained(active.current(), who, secret, sentinel).await).kind
    };
    assert_eq!(as_said(&agent.agent, &stranger, sentinel).await, RefusalKind::Denied, "another secret");
    assert_eq!(as_said(&agent.agent, &secret, &stranger).await, RefusalKind::Denied, "another sentinel");
    let earlier = Incarnation { lifecycle_uid: LifecycleUid::mint(&SystemEntropy), ..agent.agent.clone() };
    assert_eq!(as_said(&earlier, &secret, sentinel).await, RefusalKind::Conflict, "another incarnation");
    let theirs = Incarnation { owner: another(), ..agent.agent.clone() };
    assert_eq!(as_said(&theirs, &secret, sentinel).await, RefusalKind::Denied, "another owner's");
    // What runs it is a host's affair, and this host runs nothing.
    for asked in [
        active.authority().create_runtime(active.current(), &agent.agent).await,
        active.authority().runtime_status(active.current(), &agent.agent).await,
    ] {
        assert!(refusal(asked).said.contains("does not intercept it"));
    }

    host.grant_at(ACTOR, &["supervise", "spawn"], &[], Some(&spawner));
    assert_eq!(refusal(active.validate(&agent).await).kind, RefusalKind::Denied, "its spawner was narrowed");
    host.grant_at(ACTOR, &["supervise", "spawn"], &["general"], Some(&spawner));
    active.validate(&agent).await.expect("nothing of the agent itself has changed");
    active.retire(&agent.agent).await.unwrap();
    let gone = as_said(&agent.agent, &secret, sentinel).await;
    assert_eq!(gone, RefusalKind::Denied, "it is retired");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_goals_that_a_manager_wrote_for_its_owner_are_the_goals_that_it_is_told() {
    let scene = Scene::start().await;
    let Scene { active, .. } = &scene;
    let scan = async || {
        let goals = active.authority().goal_index(active.current()).await.unwrap();
        goals.into_iter().map(|goal| goal.goal_id).collect::<Vec<_>>()
    };
    assert_eq!(scan().await, Vec::<String>::new());

    let writing = scene.as_role(StandingRole::GoalWriter).await;
    let index = Bucket::new(&writing, &scene.names().records_bucket()).with_timeout(Duration::from_secs(5));
    let write = async |owner: &Owner, goal: &str| {
        let row = GoalIndexRow {
            endpoint: "manager".into(),
            owner: owner.to_string(),
            actor: ACTOR.into(),
            uid: "u".repeat(26),
            goal_id: goal.into(),
            iid: active.identity().instance().to_string(),
            allocated: None,
        };
        let key = format!("goalidx.manager.{owner}.{ACTOR}.{}.{goal}", row.uid);
        index.create(&key, serde_json::to_vec(&row).unwrap().into()).await
    };
    let owner = &active.current().owner;
    for goal in ["g2", "g1"] {
        assert!(matches!(write(owner, goal).await, WriteOutcome::Written(_)));
    }
    assert!(!matches!(write(&another(), "g3").await, WriteOutcome::Written(_)), "another owner's goal");
    assert_eq!(scan().await, ["g1", "g2"]);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_ends_a_holder_of_its_own_family_and_nobody_else() {
    let scene = Scene::start().await;
    let Scene { host, active, .. } = &scene;
    let owner = &active.current().owner;
    let holder = |role: StandingRole| Principal::new(owner.clone(), role.actor(active.identity().instance()));
    let (goals, sessions) =
        (scene.as_role(StandingRole::GoalWriter).await, scene.as_role(StandingRole::SessionLedger).await);
    let person = Principal::new(owner.clone(), Actor::parse(ACTOR).unwrap());
    let evict = async |who: &[Principal]| active.authority().evict(owner, who).await;
    let both = [holder(StandingRole::GoalWriter), person];
    assert_eq!(refusal(evict(&both).await).kind, RefusalKind::Denied, "a person is of no family");
    goals.flush().await.expect("a refusal ends nobody");

    let verdicts = evict(&both[..1]).await.unwrap();
    assert_eq!(verdicts.len(), 1);
    assert!(verdicts[0].principal == both[0] && verdicts[0].verified_gone, "{:?}", verdicts[0]);
    timeout(PATIENCE, goals.ended()).await.expect("it was ended");
    sessions.flush().await.expect("its sibling stays");
    host.grant(&["spawn"]);
    assert_eq!(
        refusal(evict(&both[..1]).await).kind,
        RefusalKind::Denied,
        "who does not supervise mends nothing"
    );
    host.grant(&["supervise", "spawn"]);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_a_killed_manager_left_frozen_is_reopened_for_another_one() {
    let mut house = House::start().await;
    house.ends_whole();
    let dead = house.machine.identity().expect("it is kept").instance().clone();
    let root = tempfile::tempdir().unwrap();
    let active = activated(house.host.setup(root.path(), &house.host.face())).await;
    let reconcile = async || active.authority().reconcile(&active.current().owner, &dead).await;
    assert!(refusal(reconcile().await).said.contains("not-frozen"), "it said goodbye");

    // Killed after each of the writes of its next registration, until one leaves the gate frozen.
    let mut reopened = false;
    for writes in 1..=WRITES {
        assert!(house.dying_after(writes).is_killed(), "{writes} writes");
        match reconcile().await {
            Ok(()) => {
                reopened = true;
                break;
            }
            other => assert_eq!(refusal(other).kind, RefusalKind::Denied),
        }
    }
    assert!(reopened, "no write of a registration left the gate frozen");
    assert!(refusal(reconcile().await).said.contains("not-frozen"), "once is enough");
    house.ends_whole();
    assert!(active.goodbye(None).await.unwrap());
}
