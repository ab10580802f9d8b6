//! The writer of managed agents over a real broker and a real ledger (contract 05 §9-10).

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cotal_authority::{
    delivery_admin::DeliveryAdmin,
    managed_agents::{Alias, Enrolled, ManagedAgents, Preparation, StillStands},
    turns::{MAX_WAITING, alias_turn},
};
use cotal_broker::{durable, kv::Bucket, provision::provision_space};
use cotal_ledger::{ActorRow, GrantInput, Ledger, hash_agent_secret};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, ChannelPattern, DerivedOwner, EpCode, EpError, InfraRole, LifecycleUid, Names, Role, ScopeEntry,
    Sha256Hex,
    manager_authority::EnrollmentTarget,
    names::{dlv_consumer, dm_consumer, lifecycle_subject_key, role_consumer},
};
use futures::{FutureExt, future::join_all, poll};
use serde_json::{Value, json};

use crate::harness::{OWNER, World, eventually, principal, uid};

/// The interactive actor that supervises, and another one.
const SPAWNER: &str = "cli";

/// Most round trips of an enrollment, the streams of its space standing.
const MOST_ROUND_TRIPS: u64 = 20;

struct House {
    world: World,
    names: Names,
    acl: Bucket,
    ledger: Ledger,
    agents: ManagedAgents,
    _dir: tempfile::TempDir,
}

fn owner() -> DerivedOwner {
    DerivedOwner::parse(OWNER).unwrap()
}

fn actor(name: &str) -> Actor {
    Actor::parse(name).unwrap()
}

fn alias(name: &str) -> Alias {
    Alias { owner: owner(), actor: actor(name) }
}

fn patterns(list: &[&str]) -> Vec<ChannelPattern> {
    ChannelPattern::parse_all(list).unwrap()
}

fn digest(token: &str) -> Sha256Hex {
    Sha256Hex::parse(&hash_agent_secret(token)).unwrap()
}

/// An agent that reads and writes `general` and holds this token.
fn target(name: &str, token: &str) -> EnrollmentTarget {
    EnrollmentTarget {
        actor: actor(name),
        role: None,
        label: Some("a worker".to_owned()),
        capabilities: None,
        subscribe: Some(patterns(&["general"])),
        allow_subscribe: Some(patterns(&["general", "team.*"])),
        allow_publish: Some(patterns(&["general"])),
        token_hash: Some(digest(token)),
    }
}

/// What nothing has moved since.
fn still() -> StillStands {
    Arc::new(|| async { Ok(()) }.boxed())
}

impl House {
    async fn start() -> Self {
        let world = World::start().await;
        provision_space(&world.anything, &world.space).await.unwrap();
        let names = Names::new(&world.space.token());
        let acl = Bucket::new(&world.anything, &names.acl_bucket());
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(dir.path());
        let agents = ManagedAgents::new(
            ledger.clone(),
            world.connector.clone(),
            DeliveryAdmin::new(world.connector.clone()),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
            Arc::new(|| Ok(())),
        );
        let house = Self { world, names, acl, ledger, agents, _dir: dir };
        house.grant(SPAWNER, "supervise,role:builder,spawn", "general,team.>", "general");
        house
    }

    /// Grants an interactive actor, or grants it anew at the same incarnation.
    fn grant(&self, name: &str, scope: &str, read: &str, post: &str) {
        fn list(csv: &str) -> impl Iterator<Item = &str> {
            csv.split(',').filter(|entry| !entry.is_empty())
        }
        let uid = LifecycleUid::parse(&"s".repeat(26)).unwrap();
        let input = GrantInput::new(owner(), actor(name))
            .scope(list(scope))
            .allow_subscribe(list(read))
            .allow_publish(list(post))
            .lifecycle_uid(uid);
        self.ledger.grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
    }

    async fn enroll(&self, target: &EnrollmentTarget) -> Result<Enrolled, EpError> {
        self.agents.enroll(&owner(), &actor(SPAWNER), target, still()).await
    }

    fn row(&self, name: &str) -> Option<ActorRow> {
        self.ledger.read_managed(&owner(), &actor(name)).unwrap()
    }

    async fn ask(&self, verb: &str, body: Value) -> Value {
        let subject = format!("$JS.API.{verb}");
        let answer = self
            .world
            .anything
            .request(&subject, &[], body.to_string().into(), Duration::from_secs(10))
            .await;
        serde_json::from_slice(&answer.unwrap().payload).unwrap()
    }

    async fn consumer(&self, stream: &str, name: &str) -> Value {
        self.ask(&format!("CONSUMER.INFO.{stream}.{name}"), json!({})).await
    }

    /// Whether each part of an incarnation's footprint stands: unicast, delivery, ACL.
    async fn stands(&self, name: &str, uid: &LifecycleUid) -> [bool; 3] {
        let of = principal(name);
        let connection = &self.world.anything;
        [
            durable::exists(connection, &self.names.dm_stream(), &dm_consumer(&of, uid)).await.unwrap(),
            durable::exists(connection, &self.names.dlv_stream(), &dlv_consumer(&of, uid)).await.unwrap(),
            self.world.text(&self.acl, &lifecycle_subject_key(&of, uid)).await.is_some(),
        ]
    }

    /// How many consumers all streams of agents have.
    async fn consumers(&self) -> u64 {
        let mut count = 0;
        for stream in [self.names.dm_stream(), self.names.dlv_stream(), self.names.task_stream()] {
            let info = self.ask(&format!("STREAM.INFO.{stream}"), json!({})).await;
            count += info["state"]["consumer_count"].as_u64().unwrap_or_default();
        }
        count
    }

    /// How many connections of this role were ever opened, all of which have ended by now or soon will.
    async fn opened(&self, role: InfraRole) -> u64 {
        let label = role.label(&self.world.space);
        eventually("the connections of the writer have ended", async || {
            self.world.custody.connections().iter().all(|row| row.label != label || row.ended)
        })
        .await;
        let all = self.world.custody.connections();
        all.iter().filter(|row| row.label == label).map(|row| row.count).sum()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrolled_agent_has_a_grant_under_its_spawner_and_everything_it_reads_from() {
    let house = House::start().await;
    let before = format!("cotal.demo.inst.{}.x.y", principal("worker"));
    house.world.anything.request(&before, &[], "before".into(), Duration::from_secs(5)).await.unwrap();
    let target = EnrollmentTarget {
        role: Some(Role::parse("builder").unwrap()),
        capabilities: Some(vec![ScopeEntry::parse("spawn").unwrap()]),
        ..target("worker", "token")
    };
    let enrolled = house.enroll(&target).await.unwrap();
    assert_eq!(enrolled.allow_subscribe, patterns(&["general", "team.*"]));
    assert_eq!(enrolled.allow_publish, patterns(&["general"]));

    let row = house.row("worker").unwrap();
    assert!(row.is_at(&enrolled.lifecycle_uid) && row.holds_secret_of(&digest("token")));
    assert_eq!(row.parent.as_deref(), Some(principal(SPAWNER).key().as_str()));
    assert_eq!((row.scope, row.role.as_deref()), (vec!["spawn".to_owned()], Some("builder")));
    assert_eq!(row.label.as_deref(), Some("a worker"));

    let (of, uid) = (principal("worker"), &enrolled.lifecycle_uid);
    let unicast = house.consumer(&house.names.dm_stream(), &dm_consumer(&of, uid)).await;
    assert_eq!(unicast["config"]["filter_subject"], format!("cotal.demo.inst.{of}.>"));
    assert_eq!((&unicast["config"]["opt_start_seq"], &unicast["num_pending"]), (&json!(2), &json!(0)));
    assert_eq!(unicast["config"]["ack_policy"], "explicit");
    assert_eq!(unicast["config"]["ack_wait"], 60_000_000_000_u64);
    let delivery = house.consumer(&house.names.dlv_stream(), &dlv_consumer(&of, uid)).await;
    assert_eq!(delivery["config"]["filter_subject"], format!("cotal.demo.dlv.{of}.{uid}"));
    assert_eq!(delivery["config"]["deliver_policy"], "all");
    let shared = house.consumer(&house.names.task_stream(), &role_consumer(&target.role.unwrap())).await;
    assert_eq!(shared["config"]["filter_subject"], "cotal.demo.svc.builder.>");
    let acl = house.world.json(&house.acl, &lifecycle_subject_key(&of, uid)).await;
    assert_eq!((&acl["allowSubscribe"], &acl["revision"]), (&json!(["general", "team.*"]), &json!(1)));
    assert_eq!(house.opened(InfraRole::PROVISIONER).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrollment_costs_at_most_20_round_trips_and_so_does_its_repetition() {
    let house = House::start().await;
    let with_role =
        EnrollmentTarget { role: Some(Role::parse("builder").unwrap()), ..target("worker", "token") };
    for what in ["an enrollment", "its repetition"] {
        let before = house.world.custody.round_trips();
        house.enroll(&with_role).await.unwrap();
        let cost = house.world.custody.round_trips() - before;
        eprintln!("{what}: {cost} round trips");
        assert!((1..=MOST_ROUND_TRIPS).contains(&cost), "{what}: {cost} round trips");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_digest_gets_the_same_incarnation_and_keeps_what_stands() {
    let house = House::start().await;
    let first = house.enroll(&target("worker", "token")).await.unwrap();
    let of = principal("worker");
    let look = async || {
        let consumer =
            house.consumer(&house.names.dm_stream(), &dm_consumer(&of, &first.lifecycle_uid)).await;
        let key = lifecycle_subject_key(&of, &first.lifecycle_uid);
        (consumer["created"].clone(), house.world.json(&house.acl, &key).await, house.row("worker"))
    };
    let before = look().await;
    // The frontier has moved on meanwhile; the durable stays where it began.
    let to = format!("cotal.demo.inst.{of}.x.y");
    house.world.anything.request(&to, &[], "in between".into(), Duration::from_secs(5)).await.unwrap();
    assert_eq!(house.enroll(&target("worker", "token")).await.unwrap(), first);
    assert_eq!(look().await, before);
    let consumer = house.consumer(&house.names.dm_stream(), &dm_consumer(&of, &first.lifecycle_uid)).await;
    assert_eq!(consumer["num_pending"], 1, "what came after the first enrollment is delivered");

    // What is gone of it comes back.
    durable::remove(
        &house.world.anything,
        &house.names.dlv_stream(),
        &dlv_consumer(&of, &first.lifecycle_uid),
    )
    .await
    .unwrap();
    assert_eq!(house.enroll(&target("worker", "token")).await.unwrap(), first);
    assert_eq!(house.stands("worker", &first.lifecycle_uid).await, [true; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_held_with_another_digest_is_a_conflict() {
    let house = House::start().await;
    let first = house.enroll(&target("worker", "token")).await.unwrap();
    let before = house.row("worker");
    let refusal = house.enroll(&target("worker", "another")).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::Conflict);
    assert_eq!(house.row("worker"), before);
    assert_eq!(house.stands("worker", &first.lifecycle_uid).await, [true; 3]);
    assert_eq!(house.opened(InfraRole::PROVISIONER).await, 1, "a conflict provisions nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_name_answers_only_while_the_supervising_actors_present_grant_covers_it() {
    let house = House::start().await;
    let fresh = house.enroll(&target("worker", "token")).await.unwrap();
    let opened = house.opened(InfraRole::PROVISIONER).await;

    house.grant(SPAWNER, "supervise", "general", "general");
    let narrowed = house.enroll(&target("worker", "token")).await.unwrap_err();
    let as_fresh = house.enroll(&target("other", "token")).await.unwrap_err();
    assert_eq!(narrowed.code, EpCode::PermissionDenied);
    assert_eq!(
        narrowed.message,
        as_fresh.message.replace(".other", ".worker"),
        "a fresh enrollment's refusal"
    );

    assert!(house.ledger.revoke_interactive(&owner(), &actor(SPAWNER)).unwrap());
    let revoked = house.enroll(&target("worker", "token")).await.unwrap_err();
    assert_eq!(revoked.code, EpCode::PermissionDenied);

    // Another actor of the same owner, who covers it, cannot answer for the one that is gone.
    house.grant("second", "supervise", "general,team.>", "general");
    let other = house.agents.enroll(&owner(), &actor("second"), &target("worker", "token"), still()).await;
    assert_eq!(other.unwrap_err().code, EpCode::PermissionDenied);

    house.grant(SPAWNER, "supervise", "general,team.>", "general");
    assert_eq!(house.enroll(&target("worker", "token")).await.unwrap(), fresh);
    // And one that does not cover it gets no more than it could have enrolled itself.
    house.grant("second", "supervise", "", "");
    let other = house.agents.enroll(&owner(), &actor("second"), &target("worker", "token"), still()).await;
    assert_eq!(other.unwrap_err().code, EpCode::PermissionDenied);
    assert_eq!(house.opened(InfraRole::PROVISIONER).await, opened + 1, "a refusal provisions nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_wider_than_its_spawner_is_refused_before_anything_is_durable() {
    let house = House::start().await;
    house.grant("person", "", "general", "general");
    let base = || target("worker", "token");
    let scope = |entry: &str| Some(vec![ScopeEntry::parse(entry).unwrap()]);
    let wide = [
        ("admin", EnrollmentTarget { capabilities: scope("admin"), ..base() }),
        ("a capability", EnrollmentTarget { capabilities: scope("run"), ..base() }),
        ("reads", EnrollmentTarget { allow_subscribe: Some(patterns(&["general", "secret"])), ..base() }),
        ("posts", EnrollmentTarget { allow_publish: Some(patterns(&["team.a"])), ..base() }),
        ("a role", EnrollmentTarget { role: Some(Role::parse("deployer").unwrap()), ..base() }),
        ("joins", EnrollmentTarget { subscribe: Some(patterns(&["other"])), ..base() }),
        (
            "joins without a list to read",
            EnrollmentTarget { allow_subscribe: None, subscribe: Some(patterns(&["general"])), ..base() },
        ),
        ("a person's name", EnrollmentTarget { actor: actor("person"), ..base() }),
        ("its own spawner's name", EnrollmentTarget { actor: actor(SPAWNER), ..base() }),
    ];
    for (what, target) in wide {
        let refusal = house.enroll(&target).await.unwrap_err();
        assert_eq!(refusal.code, EpCode::PermissionDenied, "{what}: {refusal}");
        assert_eq!(house.row(target.actor.as_str()), None, "{what}");
    }
    let nobody = house.agents.enroll(&owner(), &actor("nobody"), &base(), still()).await;
    assert_eq!(nobody.unwrap_err().code, EpCode::PermissionDenied);
    assert_eq!((house.consumers().await, house.opened(InfraRole::PROVISIONER).await), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn enrollments_of_one_name_at_once_make_one_agent() {
    let house = House::start().await;
    let tokens: Vec<String> = (0..8).map(|n| format!("token{}", n % 4)).collect();
    let targets: Vec<_> = tokens.iter().map(|token| target("worker", token)).collect();
    let all = join_all(targets.iter().map(|target| house.enroll(target))).await;
    let row = house.row("worker").unwrap();
    let mut won = 0;
    for (token, enrolled) in tokens.iter().zip(all) {
        match enrolled {
            Ok(enrolled) => {
                assert!(row.holds_secret_of(&digest(token)) && row.is_at(&enrolled.lifecycle_uid));
                won += 1;
            }
            Err(refusal) => {
                assert_eq!(refusal.code, EpCode::Conflict, "{refusal}");
                assert!(!row.holds_secret_of(&digest(token)));
            }
        }
    }
    assert_eq!(won, 2, "each token asked twice, and one of them has the name");
    assert_eq!(house.consumers().await, 2, "of one incarnation");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrollment_that_cannot_be_provisioned_takes_back_what_it_wrote_and_no_more() {
    let house = House::start().await;
    let held = house.enroll(&target("held", "token")).await.unwrap();
    // The unicast durable is made, the delivery durable cannot be.
    house.world.remove_stream(&house.names.dlv_stream()).await;
    let refusal = house.enroll(&target("fresh", "token")).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::FailedPrecondition, "{refusal}");
    assert_eq!(house.row("fresh"), None, "its own grant goes");
    assert_eq!(house.consumers().await, 1, "and with it its durable");
    assert_eq!(house.opened(InfraRole::DEPROVISIONER).await, 1);

    house.enroll(&target("held", "token")).await.unwrap_err();
    assert!(house.row("held").unwrap().is_at(&held.lifecycle_uid), "a grant that was held stays");
    assert_eq!(house.opened(InfraRole::DEPROVISIONER).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrollment_ends_though_its_caller_is_gone_and_a_close_waits_for_it() {
    let house = House::start().await;
    let target = target("worker", "token");
    {
        let mut asked = std::pin::pin!(house.enroll(&target));
        assert!(poll!(&mut asked).is_pending());
    }
    house.agents.settled().await;
    let row = house.row("worker").expect("the agent is enrolled");
    let uid = LifecycleUid::parse(row.lifecycle_uid.as_deref().unwrap()).unwrap();
    assert_eq!(house.stands("worker", &uid).await, [true; 3]);
}

/// Nobody answers for the delivery daemon here.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_inventory_a_preparation_removes_what_the_grant_names_and_keeps_the_grant() {
    let house = House::start().await;
    let enrolled = house.enroll(&target("worker", "token")).await.unwrap();
    let uid = &enrolled.lifecycle_uid;
    let members = Bucket::new(&house.world.anything, &house.names.members_bucket());
    let member = |channel: &str| format!("{channel}/{}", lifecycle_subject_key(&principal("worker"), uid));
    for channel in ["general", "team.a"] {
        house.world.put(&members, &member(channel), "{}").await;
    }
    for _ in 0..2 {
        let refusal = house.agents.prepare_retirement(&alias("worker"), uid, still()).await.unwrap_err();
        assert_eq!(refusal.code, EpCode::Unavailable, "{refusal}");
        assert!(house.row("worker").unwrap().is_at(uid), "the grant stays for a retry");
        assert_eq!(house.stands("worker", uid).await, [false; 3]);
        assert_eq!(house.world.text(&members, &member("general")).await, None, "the grant names it");
        assert!(house.world.text(&members, &member("team.a")).await.is_some(), "the inventory would");
    }
    // The agent was not given up: the same enrollment makes it whole again.
    assert_eq!(house.enroll(&target("worker", "token")).await.unwrap(), enrolled);
    assert_eq!(house.stands("worker", uid).await, [true; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preparation_touches_no_successor_and_finds_one_that_was_done_over() {
    let house = House::start().await;
    let successor = house.enroll(&target("worker", "token")).await.unwrap();
    let before = house.row("worker");
    let over = house.agents.prepare_retirement(&alias("worker"), &uid(), still()).await.unwrap();
    assert_eq!(over, Preparation::Over);
    assert_eq!(house.row("worker"), before);
    assert_eq!(house.stands("worker", &successor.lifecycle_uid).await, [true; 3]);
    let absent = house.agents.prepare_retirement(&alias("nobody"), &uid(), still()).await.unwrap();
    assert_eq!(absent, Preparation::Over);
    assert_eq!(house.opened(InfraRole::DEPROVISIONER).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_cannot_be_read_refuses_without_saying_what_is_in_it() {
    let house = House::start().await;
    house.enroll(&target("worker", "token")).await.unwrap();
    let file = house.ledger.state_dir().join("managed-actors").join(format!("{}.json", principal("worker")));
    std::fs::write(&file, b"{\"ver\":1,\"secret\":").unwrap();
    for refusal in [
        house.enroll(&target("worker", "token")).await.map(drop).unwrap_err(),
        house.agents.prepare_retirement(&alias("worker"), &uid(), still()).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(refusal.code, EpCode::Internal);
        assert!(!refusal.message.contains("worker") && !refusal.message.contains("secret"), "{refusal}");
    }
}

/// Of what is decided on, something moves between the decision and the turn, or between the footprint and the grant.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_once_what_it_was_decided_on_has_moved() {
    let house = House::start().await;
    let moved = |from: usize| -> StillStands {
        let asked = AtomicUsize::new(0);
        Arc::new(move || {
            let moved = asked.fetch_add(1, Ordering::SeqCst) >= from;
            async move { if moved { Err(EpError::conflict("it moved")) } else { Ok(()) } }.boxed()
        })
    };
    let asked = target("worker", "token");
    let refusal = house.agents.enroll(&owner(), &actor(SPAWNER), &asked, moved(0)).await.unwrap_err();
    assert_eq!((refusal.code, house.row("worker"), house.consumers().await), (EpCode::Conflict, None, 0));

    let enrolled = house.enroll(&asked).await.unwrap();
    let uid = &enrolled.lifecycle_uid;
    let held = house.agents.enroll(&owner(), &actor(SPAWNER), &asked, moved(0)).await.unwrap_err();
    assert_eq!(held.code, EpCode::Conflict, "a name that is held is no exception");
    let refusal = house.agents.prepare_retirement(&alias("worker"), uid, moved(0)).await.unwrap_err();
    assert_eq!((refusal.code, house.stands("worker", uid).await), (EpCode::Conflict, [true; 3]));
    assert!(house.row("worker").unwrap().is_at(uid));

    // A plane that was fenced writes no grant, and takes none away.
    let fenced = ManagedAgents::new(
        house.ledger.clone(),
        house.world.connector.clone(),
        DeliveryAdmin::new(house.world.connector.clone()),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
        Arc::new(|| Err(EpError::unavailable("fenced"))),
    );
    let refusal =
        fenced.enroll(&owner(), &actor(SPAWNER), &target("other", "token"), still()).await.unwrap_err();
    assert_eq!((refusal.code, house.row("other")), (EpCode::Unavailable, None));
}

/// The delivery daemon is away: each preparation takes its time, and their callers are gone.
#[tokio::test(flavor = "multi_thread")]
async fn one_name_has_no_more_who_wait_than_its_bound() {
    let house = House::start().await;
    let turn = alias_turn(house.ledger.state_dir(), &principal("worker")).await.unwrap();
    let asked = target("worker", "token");
    let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(house.enroll(&asked))).collect();
    for one in &mut waiting {
        assert!(poll!(one).is_pending());
    }
    // The task of each is at its turn or on its way there: whichever comes last is refused, this one or one of them.
    let refusal = house.enroll(&asked);
    let mut all: Vec<_> = waiting;
    all.push(Box::pin(refusal));
    let (first, _, rest) = futures::future::select_all(all).await;
    let refusal = first.unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable);
    drop(turn);
    for outcome in join_all(rest).await {
        outcome.unwrap();
    }
}
