//! Contract 06 §5: holders are evicted and frozen gates reconciled, for real, through the space's delivery daemon.

use std::pin::pin;

use cotal_auth::{AuthService, start_auth_service};
use cotal_authority::turns::MAX_WAITING;
use cotal_broker::Message;
use cotal_delivery::Delivery;
use cotal_testkit::manager::TestManager;
use cotal_wire::{
    Owner, Principal,
    delivery_admin::{AdminRequest, EvictionResult, answer as answered},
    manager_authority::{HolderState, Kind, MaintenanceRequest, MaintenanceResult, Mended, StandingRole},
    subject::{ControlService, Subjects},
};
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use serde_json::{Value, json};

use super::{
    asking::ask,
    managers::{Managers, delivery},
    stage::{Stage, es},
};

/// A service and the delivery daemon of its space. Alice and bob may both supervise.
struct House {
    stage: Stage,
    daemon: Delivery,
    service: AuthService,
    managers: Managers,
    alice: Owner,
    bob: Owner,
}

impl House {
    async fn start() -> Self {
        let stage = Stage::start().await;
        for sub in ["alice", "bob"] {
            stage.grant_human(sub, "cli", &["supervise"], &["general"]);
        }
        let daemon = delivery(&stage).await;
        let service = start_auth_service(stage.inputs()).await.unwrap();
        let managers = Managers::of(&stage);
        let [alice, bob] = ["alice", "bob"].map(|sub| Owner::from(&stage.owner_of(sub)));
        Self { stage, daemon, service, managers, alice, bob }
    }

    async fn mended(&self, sub: &str, request: &Value) -> Value {
        let (status, answer) = ask(&self.stage, &self.service, sub, request).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Why it is refused.
    async fn refused(&self, sub: &str, request: &Value) -> String {
        let (status, answer) = ask(&self.stage, &self.service, sub, request).await;
        assert_eq!(status, 403, "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    }

    async fn stop(self) {
        self.service.close().await.unwrap();
        self.daemon.stop().await;
    }
}

/// One manager asks that the registration of another be reconciled.
fn reconciling(asker: &TestManager, target: &TestManager) -> Value {
    let more = json!({ "operation": "reconcile-registration", "targetInstanceId": target.instance });
    asker.unproved(Kind::Maintenance, &more)
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_of_the_managers_family_are_evicted_in_one_sweep_and_strangers_are_not() {
    let house = House::start().await;
    let House { managers, alice, .. } = &house;
    let manager = managers.live(alice.clone()).await;
    let instance = &manager.instance;
    let (serve, goal) =
        (manager.serving(), Principal::new(alice.clone(), StandingRole::GoalWriter.actor(instance)));
    managers.holds(&manager, &serve).await;
    managers.holds(&manager, &goal).await;
    // The manager writes its family itself, and so may name anybody there.
    let stranger = Principal::parse_key(&format!("{alice}.worker")).unwrap();
    let foreign = Principal::parse_key(&format!("local.U{}", "A".repeat(55))).unwrap();
    managers.holds(&manager, &stranger).await;
    managers.holds(&manager, &foreign).await;
    let (one, two, stays, stays_too) = (
        managers.connected_as(&serve).await,
        managers.connected_as(&goal).await,
        managers.connected_as(&stranger).await,
        managers.connected_as(&foreign).await,
    );
    let evicting = |target: &str, principals: &[&Principal]| {
        let principals: Vec<_> = principals.iter().map(|one| one.key()).collect();
        let more = json!({
            "operation": "evict-family-principal", "targetInstanceId": target, "principals": principals,
        });
        manager.unproved(Kind::Maintenance, &more)
    };
    for (what, sub, request) in [
        ("a stranger", "alice", evicting(instance.as_str(), &[&serve, &stranger])),
        ("a part of the space", "alice", evicting(instance.as_str(), &[&foreign])),
        ("another owner's manager", "bob", evicting(instance.as_str(), &[&serve])),
        ("another instance", "alice", evicting(&"x".repeat(26), &[&serve])),
    ] {
        let (status, answer) = ask(&house.stage, &house.service, sub, &request).await;
        assert_eq!(status, 403, "{what}: {answer}");
    }
    assert!(futures::FutureExt::now_or_never(one.ended()).is_none(), "a refusal evicts nobody");

    let sent = evicting(instance.as_str(), &[&serve, &goal]);
    let answer = house.mended("alice", &sent).await;
    let request = MaintenanceRequest::parse(&es(&sent)).unwrap();
    let Mended::Evicted(evictions) = MaintenanceResult::bind(&es(&answer), &request, alice).unwrap() else {
        panic!("{answer}")
    };
    let gone: Vec<_> = evictions.iter().map(|one| (one.principal.clone(), one.verified_gone)).collect();
    assert_eq!(gone, [(serve, true), (goal, true)], "in the order in which they were named");
    for connection in [&one, &two] {
        tokio::time::timeout(super::stage::AT_LAST, connection.ended()).await.expect("it was ended");
    }
    for connection in [&stays, &stays_too] {
        assert!(futures::FutureExt::now_or_never(connection.ended()).is_none());
    }
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_a_dead_registration_left_frozen_is_reconciled_once_its_holder_is_gone() {
    let house = House::start().await;
    let House { managers, alice, bob, .. } = &house;
    let dead = managers.live(alice.clone()).await;
    let asker = managers.live(bob.clone()).await;
    managers.freeze(&dead).await;
    let sent = reconciling(&asker, &dead);

    let holder = managers.connected_as(&dead.serving()).await;
    let why = house.refused("bob", &sent).await;
    assert!(why.contains("holder-alive"), "{why}");
    holder.close().await.unwrap();

    // Whoever supervises may mend a slot holder that is not theirs: it stands in everybody's way.
    let answer = house.mended("bob", &sent).await;
    let request = MaintenanceRequest::parse(&es(&sent)).unwrap();
    let Mended::Reconciled(report) = MaintenanceResult::bind(&es(&answer), &request, bob).unwrap() else {
        panic!("{answer}")
    };
    assert_eq!((&report.holder_principal, report.liveness.state), (&dead.serving(), HolderState::Gone));
    assert_eq!(report.evicted, [dead.serving().key()]);
    assert_eq!((report.family_rows, report.before.process_epoch), (1, 0));
    assert_eq!(report.reopened_at_generation, report.before.generation + 1);

    let why = house.refused("bob", &sent).await;
    assert!(why.contains("not-frozen"), "{why}");
    managers.serve(&dead).await;
    // An open gate needs no mending.
    house.refused("alice", &reconciling(&dead, &dead)).await;
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_ends_no_registration_that_runs_and_nobody_whom_the_family_names_beside_its_own() {
    let house = House::start().await;
    let House { managers, alice, bob, .. } = &house;
    let frozen = managers.live(alice.clone()).await;
    let asker = managers.live(bob.clone()).await;
    let victim = Principal::parse_key(&format!("{alice}.worker")).unwrap();
    managers.holds(&frozen, &victim).await;
    managers.freeze(&frozen).await;
    let sent = reconciling(&asker, &frozen);

    // Who registers again is connected as the executor alone.
    let executor = Principal::new(alice.clone(), StandingRole::Executor.actor(&frozen.instance));
    let registers = managers.connected_as(&executor).await;
    let why = house.refused("bob", &sent).await;
    assert!(why.contains("holder-alive"), "{why}");
    registers.close().await.unwrap();

    let connected = managers.connected_as(&victim).await;
    // One whom the family names is there.
    house.refused("bob", &sent).await;
    assert!(futures::FutureExt::now_or_never(connected.ended()).is_none(), "and stays");
    connected.close().await.unwrap();
    house.mended("bob", &sent).await;
    house.stop().await;
}

/// What the daemon says of an eviction in which nobody was there.
fn nobody_was_there(asked: &Message) -> Vec<u8> {
    let AdminRequest::EvictPrincipal(principal) = AdminRequest::parse(&asked.payload).unwrap() else {
        panic!("{asked:?}")
    };
    let (kicked, remaining) = (0, 0);
    answered(&EvictionResult {
        principal,
        kicked,
        remaining,
        verified_gone: true,
        scan_complete: true,
        note: None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn of_one_owner_a_single_maintenance_is_under_way_and_what_has_waited_is_decided_anew() {
    let stage = Stage::start().await;
    for sub in ["alice", "bob"] {
        stage.grant_human(sub, "cli", &["supervise"], &["general"]);
    }
    let service = start_auth_service(stage.inputs()).await.unwrap();
    let managers = Managers::of(&stage);
    // The delivery daemon answers when the test says.
    let daemon = stage.space.anything().await.unwrap();
    let rail = Subjects::new(&stage.space.space.token()).control_filter(ControlService::DeliveryAdmin);
    let mut asked = daemon.subscribe(&rail, None).await.unwrap();
    daemon.flush().await.unwrap();
    let answer = async |asked: &Message| {
        let answer = nobody_was_there(asked).into();
        daemon.publish(asked.reply.as_deref().unwrap(), &[], answer).await.unwrap();
    };
    let of = async |sub: &str| {
        let manager = managers.live(&stage.owner_of(sub)).await;
        managers.holds(&manager, &manager.serving()).await;
        manager
    };
    let (alices, bobs) = (of("alice").await, of("bob").await);
    let evict = async |sub: &str, manager: &TestManager| {
        let more = json!({
            "operation": "evict-family-principal", "targetInstanceId": manager.instance,
            "principals": [manager.serving()],
        });
        ask(&stage, &service, sub, &manager.unproved(Kind::Maintenance, &more)).await
    };

    let mut first = pin!(evict("alice", &alices));
    let held = tokio::select! {
        held = asked.next() => held.unwrap(),
        early = &mut first => panic!("the daemon was not asked: {early:?}"),
    };
    // One that waits is one too many only when sixteen others do.
    let mut waiting: FuturesUnordered<_> = (0..=MAX_WAITING).map(|_| evict("alice", &alices)).collect();
    let (status, refusal) = tokio::select! {
        _ = asked.next() => panic!("a second one is under way"),
        refused = waiting.next() => refused.unwrap(),
    };
    assert_eq!(status, 403, "{refusal}");
    assert!(refusal["error"].as_str().unwrap().ends_with("momentarily unavailable; retry"), "{refusal}");

    let mut theirs = pin!(evict("bob", &bobs));
    let of_bob = tokio::select! {
        of_bob = asked.next() => of_bob.unwrap(),
        early = &mut theirs => panic!("nobody else's waits behind hers: {early:?}"),
    };
    answer(&of_bob).await;
    let (status, told) = theirs.await;
    assert_eq!(status, 200, "{told}");

    // Her registration ends while they wait.
    managers.retire(&stage, &alices).await;
    answer(&held).await;
    let (status, told) = first.await;
    assert_eq!(status, 200, "{told}");
    for _ in 0..MAX_WAITING {
        let (status, refusal) = tokio::select! {
            _ = asked.next() => panic!("what has waited is decided anew"),
            refused = waiting.next() => refused.unwrap(),
        };
        assert_eq!(status, 403, "{refusal}");
        assert!(refusal["error"].as_str().unwrap().contains("no registration to mend"), "{refusal}");
    }
    assert!(asked.next().now_or_never().is_none());
    service.close().await.unwrap();
}
