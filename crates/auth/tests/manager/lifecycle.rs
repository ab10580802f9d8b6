//! A manager's own lifecycle (contract 06 §4).

use std::collections::BTreeSet;

use cotal_broker::kv::{Bucket, LeaderRead, WriteOutcome};
use cotal_testkit::manager::{TestManager, unknown_proof};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, InstanceId, LifecycleUid, Names, OpId, Owner, Revision, SessionId,
    manager_authority::{CredentialName, Operation, StandingRole},
    names::session_key,
};
use futures::{FutureExt as _, future::join_all};
use serde_json::{Value, json};

use super::rig::{Activated, PERSON, Rig, SESSION, manager_of, renewal, retirement, session};

fn seconds_from_now(exp: &Value) -> i64 {
    let now = i64::try_from(cotal_wire::Clock::now_secs(&SystemClock).0).unwrap();
    exp.as_i64().unwrap() - now
}

#[tokio::test]
async fn a_keyless_manager_is_prepared_registers_is_activated_and_renewed() {
    let rig = Rig::start().await;
    let (status, answer) = rig.ask(Operation::Activate, json!({})).await;
    assert_eq!(status, 403, "before there is a registration: {answer}");

    let Activated { prepared, registered, answer: activated, proof } = rig.activated().await;
    assert_eq!(registered.process_epoch, 0, "the first registration commits epoch 0");
    for (name, ttl) in [(CredentialName::Supervisor, 86_400), (CredentialName::Executor, 300)] {
        let left = seconds_from_now(&prepared["credentials"][name.as_str()]["exp"]);
        assert!((ttl - 60..=ttl).contains(&left), "{}: {left}", name.as_str());
    }
    let owner = &rig.manager.owner;
    // Renewals of one second are one credential: who holds how many is not told apart here.
    let holders = async || {
        let rows = rig.family().await.into_iter().map(|(holder, state)| format!("{holder} {state}"));
        rows.collect::<BTreeSet<_>>()
    };
    let all = |state: &str| {
        let duties = [StandingRole::GoalWriter, StandingRole::Serve, StandingRole::SessionLedger];
        let holder = |role: StandingRole| format!("{owner}.{} {state}", role.actor(&rig.manager.instance));
        duties.map(holder).into_iter().collect::<BTreeSet<_>>()
    };
    assert_eq!(
        (rig.family().await.len(), holders().await),
        (3, all("active")),
        "each row names its own holder"
    );

    // It serves: what is asked of the class reaches it, and its answer reaches the asker.
    let mut serving = rig.connected(&rig.manager.creds(&activated, CredentialName::Serve)).await;
    serving.try_subscribe("cotal.demo.ep.one.manager.status.>", Some("manager")).await.unwrap();

    rig.granted(Operation::Renew, json!({ "registrationProof": proof })).await;
    let renewed = rig.granted(Operation::RenewStandingBundle, renewal(&proof, 0)).await;
    assert_eq!(renewed["processEpoch"], 0);
    assert!(renewed.get("nextRegistrationProof").is_none(), "the proof stands while the registration does");
    assert_eq!(holders().await, all("active"), "a renewal is ledgered as the first one was");
    serving.ping().await.expect("a renewal ends nobody");
    let mut again = rig.connected(&rig.manager.creds(&renewed, CredentialName::Serve)).await;
    again
        .try_subscribe("cotal.demo.ep.inst.manager.x.status.>", None)
        .await
        .expect_err("of another instance");

    let id = rig.manager.one_shot().public().to_string();
    let soon = cotal_wire::Clock::now_secs(&SystemClock).0 + 90;
    let served = rig.granted(Operation::Session, session(&id, soon)).await;
    assert_eq!(served["credentials"]["sessionServing"]["exp"], soon, "no longer than its session");
    let far = rig.granted(Operation::Session, session(&id, soon + 1_000_000)).await;
    let left = seconds_from_now(&far["credentials"]["sessionServing"]["exp"]);
    assert!((86_340..=86_400).contains(&left), "no longer than a day: {left}");
    rig.granted(Operation::Retire, retirement(&rig, owner, 0)).await;
    rig.granted(Operation::TransferReader, json!({})).await;

    // A second registration: epoch 1. What the first one was granted is revoked, what it proved proves nothing.
    let second = rig.register(&prepared).await.unwrap();
    assert_eq!(second.process_epoch, 1);
    assert_eq!(holders().await, all("revoked"));
    let next = rig.granted(Operation::Activate, json!({})).await["nextRegistrationProof"].clone();
    rig.granted(Operation::RenewStandingBundle, renewal(&next, 1)).await;
    let both = all("active").union(&all("revoked")).cloned().collect::<BTreeSet<_>>();
    assert_eq!(holders().await, both, "what is active is of the second registration alone");
    rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn every_stale_coordinate_is_refused_after_a_re_registration() {
    let rig = Rig::start().await;
    let Activated { prepared, proof, .. } = rig.activated().await;
    rig.register(&prepared).await.unwrap();
    let next = rig.granted(Operation::Activate, json!({})).await["nextRegistrationProof"].clone();
    let owner = rig.manager.owner.clone();

    for (what, operation, more, status) in [
        ("epoch before proof", Operation::RenewStandingBundle, renewal(&proof, 0), 409),
        ("stale epoch", Operation::RenewStandingBundle, renewal(&next, 0), 409),
        ("future epoch", Operation::RenewStandingBundle, renewal(&next, 2), 409),
        ("stale proof", Operation::RenewStandingBundle, renewal(&proof, 1), 403),
        ("stale proof", Operation::Renew, json!({ "registrationProof": proof }), 403),
        ("stale epoch", Operation::Retire, retirement(&rig, &owner, 0), 409),
        ("another owner's agent", Operation::Retire, retirement(&rig, &stranger(), 1), 403),
        (
            "the proof of another kind",
            Operation::Session,
            {
                let mut more = session(&rig.manager.one_shot().public().to_string(), u64::from(u32::MAX));
                more["registrationProof"] = next.clone();
                more
            },
            403,
        ),
        (
            "another account",
            Operation::RenewStandingBundle,
            json!({ "registrationProof": next, "processEpoch": 1, "accountPublicKey": format!("A{}", "A".repeat(55)) }),
            403,
        ),
        ("another space", Operation::Prepare, json!({ "space": "other" }), 403),
        (
            "another lifecycle",
            Operation::Renew,
            json!({
                "registrationProof": next, "managerLifecycleUid": LifecycleUid::mint(&SystemEntropy),
            }),
            403,
        ),
        ("another actor", Operation::Renew, json!({ "registrationProof": next, "actor": "web" }), 403),
        (
            "another instance",
            Operation::Renew,
            json!({
                "registrationProof": next, "instanceId": LifecycleUid::mint(&SystemEntropy),
            }),
            403,
        ),
        (
            "another contract",
            Operation::Activate,
            json!({ "contractArtifacts": [{ "urn": "ai.cotal.other" }] }),
            403,
        ),
    ] {
        let (got, answer) = rig.ask(operation, more).await;
        assert_eq!(got, status, "{}: {what}: {answer}", operation.as_str());
    }
    let mut cluster = rig.manager.cluster();
    cluster["commands"][0]["name"] = json!("despawn");
    let (status, answer) = rig.ask(Operation::Activate, json!({ "contractArtifacts": [cluster] })).await;
    assert_eq!(status, 403, "a cluster that is not registered: {answer}");
    // And everything that is current is granted.
    rig.granted(Operation::RenewStandingBundle, renewal(&next, 1)).await;
    rig.granted(Operation::Retire, retirement(&rig, &owner, 1)).await;
    rig.daemon.stop().await.unwrap();
}

/// A manager that asks again after a broken connection, in the second in which it was answered: the same keys, the same
/// grants, the same end.
#[tokio::test]
async fn requests_of_one_second_take_nothing_of_each_other_back() {
    let rig = Rig::start().await;
    let Activated { proof, .. } = rig.activated().await;
    let asked = (0..6).map(|nth| match nth % 2 {
        0 => rig.granted(Operation::Activate, json!({})).boxed(),
        _ => rig.granted(Operation::RenewStandingBundle, renewal(&proof, 0)).boxed(),
    });
    join_all(asked).await;
    let rows = rig.family().await;
    assert!(rows.iter().all(|(_, state)| state == "active"), "all of it was handed out: {rows:?}");
    rig.daemon.stop().await.unwrap();
}

fn stranger() -> Owner {
    Owner::parse(&format!("u_{}", "z".repeat(26))).unwrap()
}

#[tokio::test]
async fn a_stranger_an_unsupervising_actor_and_a_revoked_one_get_nothing_and_leave_nothing() {
    let rig = Rig::start().await;
    let Activated { proof, .. } = rig.activated().await;
    let rows = rig.family().await;

    // Another person names the same instance, and proves it as its own: the gate is not theirs.
    rig.stage.grant_human("bob", "cli", &["supervise"], &[]);
    let mut theirs = manager_of(&rig.stage, "bob");
    theirs.instance = rig.manager.instance.clone();
    theirs.uid = rig.manager.uid.clone();
    for (operation, more) in [
        (Operation::Activate, json!({})),
        (Operation::Renew, json!({ "registrationProof": proof })),
        (Operation::RenewStandingBundle, renewal(&proof, 0)),
        (Operation::TransferReader, json!({})),
    ] {
        let (status, answer) = rig.send("bob", &theirs.request(operation, &more)).await;
        assert_eq!(status, 403, "{}: {answer}", operation.as_str());
    }
    // `spawn` and `admin` supervise nothing.
    rig.stage.grant_human("carol", "cli", &["spawn", "admin", "run"], &[]);
    let hers = manager_of(&rig.stage, "carol");
    let (status, answer) = rig.send("carol", &hers.request(Operation::Prepare, &json!({}))).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("supervise"), "{answer}");

    rig.stage.revoke_human(PERSON, "cli");
    for (operation, more) in [
        (Operation::Prepare, json!({})),
        (Operation::Activate, json!({})),
        (Operation::RenewStandingBundle, renewal(&proof, 0)),
    ] {
        let (status, answer) = rig.ask(operation, more).await;
        assert_eq!(status, 403, "{}: {answer}", operation.as_str());
    }
    assert_eq!(rig.family().await, rows, "a refusal stages nothing");
    rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn nobody_serves_a_session_of_another_manager_and_everybody_their_own() {
    let rig = Rig::start().await;
    let Activated { answer: activated, .. } = rig.activated().await;
    // The manager writes its sessions itself.
    let creds = rig.manager.creds(&activated, CredentialName::SessionLedger);
    let connector = rig.stage.space.connector();
    let connection = connector.open_creds("cotal:test:sessions".into(), &creds).await.unwrap();
    let sessions = Bucket::new(&connection, &Names::new(&rig.stage.space.space.token()).sessions_bucket());
    let (iid, owner, uid) = (&rig.manager.instance, &rig.manager.owner, &rig.manager.uid);
    let until = cotal_wire::Clock::now_secs(&SystemClock).0 + 600;
    let stand = async |iid: &InstanceId, epoch: u64, state: &str| {
        let row = format!(
            "{{\"sessionId\":\"{SESSION}\",\"endpoint\":\"manager\",\"serving\":{{\"instanceId\":\"{iid}\",\
             \"epoch\":{epoch}}},\"holder\":{{\"principal\":\"{owner}.cli\",\"lifecycleUid\":\"{uid}\"}},\
             \"credCaller\":\"{uid}.{SESSION}.c\",\"credServing\":\"manager.{iid}.{SESSION}.s\",\
             \"revoked\":{{\"caller\":false,\"serving\":false}},\"state\":\"{state}\",\"exp\":{}}}",
            until * 1000
        );
        let key = session_key(&SessionId::parse(SESSION).unwrap());
        let at = match sessions.leader_read(&key).await.unwrap() {
            LeaderRead::Value(entry) => entry.revision,
            _ => Revision(0),
        };
        assert!(matches!(sessions.put_pinned(&key, row.into(), at).await, WriteOutcome::Written(_)));
    };
    rig.stage.grant_human("bob", "cli", &["supervise"], &[]);
    let bobs = manager_of(&rig.stage, "bob");
    let mut theirs = bobs.clone();
    theirs.instance = iid.clone();
    let ask = async |asking: &TestManager| {
        let id = asking.one_shot().public().to_string();
        rig.send("bob", &asking.request(Operation::Session, &session(&id, until))).await
    };
    stand(iid, 0, "active").await;
    let (status, answer) = ask(&bobs).await;
    assert_eq!(status, 403, "under an instance of their own: {answer}");
    let (status, answer) = ask(&theirs).await;
    assert_eq!(status, 403, "under the instance that serves it: {answer}");
    let id = rig.manager.one_shot().public().to_string();
    rig.granted(Operation::Session, session(&id, until)).await;
    // Every manager writes the one ledger of sessions, and so may say there that this one is its own.
    stand(&bobs.instance, 0, "active").await;
    let (status, answer) = ask(&bobs).await;
    assert_eq!(status, 403, "whatever its row says by now: {answer}");
    assert!(answer["error"].as_str().unwrap().contains("another owner's"), "{answer}");
    for (epoch, state, what) in [(1, "active", "another epoch"), (0, "closed", "an end")] {
        stand(iid, epoch, state).await;
        let (status, answer) = rig.ask(Operation::Session, session(&id, until)).await;
        assert_eq!(status, 403, "{what}: {answer}");
    }
    rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_manager_ends_agents_and_no_person() {
    let rig = Rig::start().await;
    rig.activated().await;
    let owner = rig.stage.owner_of(PERSON);
    let row = rig.stage.ledger.read_interactive(&owner, &Actor::parse("cli").unwrap()).unwrap().unwrap();
    let uid = LifecycleUid::parse(row.lifecycle_uid.as_deref().unwrap()).unwrap();
    let of = |uid: &LifecycleUid| {
        json!({ "retirement": {
            "id": rig.manager.one_shot().public(), "opId": OpId::managed_retirement(uid), "serveEpoch": 0,
            "target": { "owner": owner, "actor": "cli", "lifecycleUid": uid },
        } })
    };
    let (status, answer) = rig.ask(Operation::Retire, of(&uid)).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("cotal actor revoke"), "{answer}");
    // An agent that had the name before the person did.
    rig.granted(Operation::Retire, of(&LifecycleUid::mint(&SystemEntropy))).await;
    rig.daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_renew_takes_no_turn_of_those_who_may() {
    let rig = Rig::start().await;
    let Activated { proof, .. } = rig.activated().await;
    rig.stage.grant_human("mallory", "cli", &["supervise"], &["general"]);
    let stranger = manager_of(&rig.stage, "mallory");
    let unproved = stranger.request(Operation::RenewStandingBundle, &renewal(&unknown_proof(), 0));
    // More than have a turn within a second, on this machine.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let asked = (0..64 + 32 * cores).map(|_| rig.send("mallory", &unproved));
    for (status, answer) in join_all(asked).await {
        assert!(status == 403 || status == 429, "it waits for nothing: {status} {answer}");
    }
    rig.granted(Operation::RenewStandingBundle, renewal(&proof, 0)).await;
    rig.daemon.stop().await.unwrap();
}
