//! Requests to retire, over the real barrier: what the head answers alone, what flies, and who joins
//! (contract 05 §7.1-7.2, §12; 08 §6).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use cotal_authority::{
    activation::activate_managed,
    barrier::BarrierDeps,
    drain::Drain,
    evict::{Eviction, Evictor},
    failpoint::Failpoint,
    rail::{AuthIncarnation, AuthRail, contract::AuthContract},
    retire::retire,
    retirement::Retirement,
    retirements::Retirements,
};
use cotal_broker::provision;
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    EpCode, InstanceId, LifecycleUid, OpId, Principal, endpoint_subject::RequestSubject,
    envelope::EndpointReply,
};
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    harness::{OWNER, World, principal, uid},
    held::{Held, barrier},
};

/// Everybody is gone, once it may say so.
#[derive(Default)]
struct Gate {
    holds: Mutex<bool>,
    fails: Mutex<bool>,
    asked: Mutex<Vec<BTreeSet<Principal>>>,
    begun: Notify,
    released: Notify,
}

#[async_trait]
impl Evictor for Gate {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        self.asked.lock().push(principals.clone());
        self.begun.notify_one();
        let holds = *self.holds.lock();
        if holds {
            self.released.notified().await;
        }
        let gone = !*self.fails.lock();
        let verdict = |principal: &Principal| Eviction {
            principal: principal.clone(),
            kicked: 0,
            remaining: u64::from(!gone),
            verified_gone: gone,
            scan_complete: true,
            note: None,
        };
        principals.iter().map(verdict).collect()
    }
}

impl Gate {
    fn hold(&self) {
        *self.holds.lock() = true;
    }

    fn release(&self) {
        *self.holds.lock() = false;
        self.released.notify_one();
    }

    /// How often the holders of bob's family were asked for.
    fn containments(&self) -> usize {
        self.asked.lock().iter().filter(|asked| asked.contains(&principal("bob"))).count()
    }
}

struct Rig {
    world: World,
    _held: Held,
    evictor: Arc<Gate>,
    retirements: Arc<Retirements>,
}

impl Rig {
    async fn start() -> Self {
        let world = World::start().await;
        provision::provision_space(&world.anything, &world.space).await.unwrap();
        let held = Held::open(&world).await;
        let evictor = Arc::new(Gate::default());
        let deps = BarrierDeps {
            stores: barrier(&world).await,
            ledger: held.ledger.clone(),
            records: held.records.clone(),
            evictor: evictor.clone(),
            sessions: None,
            drain: Arc::new(Drain::new(world.connector.clone(), held.records.clone(), Arc::new(SystemClock))),
        };
        let run = move |retiring: cotal_authority::drain::Retiring| {
            let deps = deps.clone();
            async move { retire(&deps, &retiring.op, &retiring.principal, &retiring.uid).await }.boxed()
        };
        let retirements = Arc::new(Retirements::new(world.stores().await, Arc::new(run)));
        Self { world, _held: held, evictor, retirements }
    }

    async fn activate(&self, actor: &str, uid: &LifecycleUid) {
        let stores = self.world.stores().await;
        activate_managed(&stores, &principal(actor), uid, "m", &SystemEntropy).await.unwrap();
    }

    async fn head(&self, actor: &str) -> Value {
        self.world.json(&self.world.records, &format!("lifecycle.{OWNER}.{actor}")).await
    }

    async fn ask(
        &self,
        interactive: bool,
        actor: &str,
        uid: &LifecycleUid,
    ) -> Result<Retirement, (EpCode, bool)> {
        let who = principal(actor);
        let answer = if interactive {
            self.retirements.retire_interactive(&who, uid).await
        } else {
            self.retirements.retire_managed(&who, uid).await
        };
        answer.map_err(|failure| (failure.error.code, failure.began))
    }
}

fn op(interactive: bool, uid: &LifecycleUid) -> OpId {
    if interactive { OpId::interactive_retirement(uid) } else { OpId::managed_retirement(uid) }
}

#[tokio::test]
async fn a_lifecycle_is_retired_once_and_found_retired_after_that() {
    let rig = Rig::start().await;
    for (interactive, actor) in [(true, "bob"), (false, "carol")] {
        let uid = uid();
        assert_eq!(rig.ask(interactive, actor, &uid).await, Ok(Retirement::NotStarted));
        rig.activate(actor, &uid).await;
        let Ok(Retirement::Retired { op: ran, report }) = rig.ask(interactive, actor, &uid).await else {
            panic!("the barrier ran to its end")
        };
        assert_eq!(ran, op(interactive, &uid));
        assert!(report.evicted.contains(&principal(actor)));
        assert_eq!(rig.head(actor).await["state"], "retired");
        assert_eq!(rig.ask(interactive, actor, &uid).await, Ok(Retirement::AlreadyRetired));
        assert!(rig.retirements.in_flight().is_empty());
    }
}

#[tokio::test]
async fn another_incarnation_that_stands_is_a_conflict_and_one_that_ended_is_not() {
    let rig = Rig::start().await;
    let (old, new) = (uid(), uid());
    rig.activate("bob", &new).await;
    for interactive in [true, false] {
        assert_eq!(rig.ask(interactive, "bob", &old).await, Err((EpCode::Conflict, false)));
    }
    rig.ask(false, "bob", &new).await.unwrap();
    for interactive in [true, false] {
        assert_eq!(rig.ask(interactive, "bob", &old).await, Ok(Retirement::NotStarted));
    }
}

#[tokio::test]
async fn an_eviction_that_is_not_verified_has_begun_and_asking_again_resumes() {
    let rig = Rig::start().await;
    for (interactive, actor) in [(true, "bob"), (false, "carol")] {
        let uid = uid();
        rig.activate(actor, &uid).await;
        *rig.evictor.fails.lock() = true;
        assert_eq!(rig.ask(interactive, actor, &uid).await, Err((EpCode::Unavailable, true)));
        assert_eq!(rig.head(actor).await["state"], "retiring");
        *rig.evictor.fails.lock() = false;
        assert!(matches!(rig.ask(interactive, actor, &uid).await, Ok(Retirement::Retired { .. })));
    }
}

#[tokio::test]
async fn whoever_asks_ends_the_retirement_that_has_begun_under_its_own_operation() {
    let rig = Rig::start().await;
    for (interactive, actor) in [(true, "bob"), (false, "carol")] {
        let uid = uid();
        rig.activate(actor, &uid).await;
        *rig.evictor.fails.lock() = true;
        assert_eq!(rig.ask(interactive, actor, &uid).await, Err((EpCode::Unavailable, true)));
        assert_eq!(rig.ask(!interactive, actor, &uid).await, Err((EpCode::Unavailable, true)));
        *rig.evictor.fails.lock() = false;
        let Ok(Retirement::Retired { op: ran, .. }) = rig.ask(!interactive, actor, &uid).await else {
            panic!("the other door ends it")
        };
        assert_eq!(ran, op(interactive, &uid), "the operation that froze the gate, and no other");
        assert_eq!(rig.head(actor).await["state"], "retired");
    }
}

/// An activation that is killed between its head and its gate is ended by whoever takes the lifecycle back: nobody has to
/// log in again for it.
#[tokio::test]
async fn an_activation_that_was_cut_off_does_not_stand_in_the_way_of_its_revocation() {
    let rig = Rig::start().await;
    // Reservation, gate, head: the gate is frozen for ever unless somebody ends the activation.
    for (nth, interactive, actor) in [(3, true, "bob"), (3, false, "carol")] {
        let uid = uid();
        let stores = rig.world.stores().await;
        let (who, failpoint) = (principal(actor), Failpoint::stop_after(nth));
        failpoint.arm(&stores);
        tokio::select! {
            done = activate_managed(&stores, &who, &uid, "m", &SystemEntropy) => {
                panic!("not held: {done:?}")
            }
            () = failpoint.reached() => {}
        }
        assert_eq!(rig.head(actor).await["state"], "active");
        let gate = rig.world.json(&rig.world.auth, &format!("gate.{uid}")).await;
        assert_eq!((&gate["state"], &gate["op"]["kind"]), (&json!("frozen"), &json!("activation")));
        let answer = rig.ask(interactive, actor, &uid).await;
        assert!(matches!(answer, Ok(Retirement::Retired { .. })), "{answer:?}");
        let gate = rig.world.json(&rig.world.auth, &format!("gate.{uid}")).await;
        assert_eq!((&gate["state"], &rig.head(actor).await["state"]), (&json!("retired"), &json!("retired")));
    }
}

#[tokio::test]
async fn interactive_requests_take_turns_and_who_waited_finds_it_done() {
    let rig = Rig::start().await;
    let uid = uid();
    rig.activate("bob", &uid).await;
    rig.evictor.hold();
    let release = async {
        rig.evictor.begun.notified().await;
        assert!(rig.retirements.in_flight().is_empty(), "an interactive retirement is no flight");
        rig.evictor.release();
    };
    let (one, other, ()) = tokio::join!(rig.ask(true, "bob", &uid), rig.ask(true, "bob", &uid), release);
    let (ran, waited) = if one == Ok(Retirement::AlreadyRetired) { (other, one) } else { (one, other) };
    assert!(matches!(ran, Ok(Retirement::Retired { .. })), "{ran:?}");
    assert_eq!(waited, Ok(Retirement::AlreadyRetired));
    assert_eq!(rig.evictor.containments(), 1);
}

#[tokio::test]
async fn a_request_whose_caller_went_away_ends_all_the_same() {
    let rig = Rig::start().await;
    for (interactive, actor) in [(true, "bob"), (false, "carol")] {
        let uid = uid();
        rig.activate(actor, &uid).await;
        rig.evictor.hold();
        {
            let mut asked = std::pin::pin!(rig.ask(interactive, actor, &uid));
            tokio::select! {
                answer = &mut asked => panic!("the barrier is held: {answer:?}"),
                () = rig.evictor.begun.notified() => {}
            }
        }
        rig.evictor.release();
        // Whoever asks next joins it, waits for its turn, or finds it done.
        rig.ask(interactive, actor, &uid).await.unwrap();
        assert_eq!(rig.head(actor).await["state"], "retired");
        while rig.evictor.begun.notified().now_or_never().is_some() {}
    }
}

#[tokio::test]
async fn the_door_and_the_rail_share_one_flight() {
    let rig = Rig::start().await;
    let target = uid();
    rig.activate("bob", &target).await;
    let auth = AuthIncarnation { instance: InstanceId::mint(&SystemEntropy), epoch: 0 };
    let rail = AuthRail::open(&rig.world.connector, &auth, rig.retirements.clone()).await.unwrap();
    let manager = InstanceId::mint(&SystemEntropy);
    let row = format!(
        "{{\"state\":\"open\",\"generation\":1,\"processEpoch\":0,\"registrationRevision\":1,\
         \"nameAuthorityRevision\":0,\"principal\":\"{OWNER}.serve\"}}"
    );
    rig.world.put(&rig.world.auth, &format!("epgate.manager.{manager}"), &row).await;

    rig.evictor.hold();
    let on_the_rail = async {
        // The door's flight is in the air before the rail asks.
        rig.evictor.begun.notified().await;
        assert_eq!(rig.retirements.in_flight(), [OpId::managed_retirement(&target)]);
        let contract = AuthContract::new().unwrap();
        let nonce = "n".repeat(22);
        let subject = format!(
            "cotal.demo.ep.one.auth.retire-lifecycle.exact.{OWNER}.bob.{target}.{OWNER}.serve.{}.{nonce}",
            uid()
        );
        let body = json!({
            "v": 1, "id": "r1",
            "op": {
                "endpoint": "auth", "command": "retire-lifecycle",
                "inputDigest": contract.input_digest(), "outputDigest": contract.output_digest(),
            },
            "class": "ephemeral", "replyExpected": true, "deadlineMs": 15_000,
            "target": { "owner": OWNER, "actor": "bob", "lifecycleUid": target },
            "args": {
                "opId": OpId::managed_retirement(&target), "serveEndpoint": "manager",
                "serveInstanceId": manager, "serveEpoch": 0,
            },
            "from": { "id": format!("{OWNER}.serve"), "name": "serve" },
        });
        let reply = RequestSubject::parse(&subject).unwrap().reply(&auth.instance, 0).build().unwrap();
        let mut answers = rig.world.anything.subscribe(&reply, None).await.unwrap();
        rig.world.anything.publish(&subject, &[], body.to_string().into()).await.unwrap();
        rig.world.anything.flush().await.unwrap();
        rig.evictor.release();
        let answer = tokio::time::timeout(Duration::from_secs(10), answers.next()).await.unwrap().unwrap();
        EndpointReply::parse(&answer.payload).unwrap()
    };
    let (door, reply) = tokio::join!(rig.ask(false, "bob", &target), on_the_rail);
    let Ok(Retirement::Retired { report, .. }) = door else { panic!("{door:?}") };
    let answered = reply.result.unwrap().unwrap();
    assert_eq!(answered["retired"], true);
    assert_eq!(rig.evictor.containments(), 1, "one barrier");
    let evicted = &answered["evictedPrincipals"];
    assert!(*evicted == json!(report.evicted) || *evicted == json!([]), "{evicted}: joined, or found done");
    rail.close().await.unwrap();
}

#[tokio::test]
async fn an_activation_for_a_host_says_whether_it_may_have_begun() {
    let rig = Rig::start().await;
    let stores = rig.world.stores().await;
    let (first, second) = (uid(), uid());
    for _ in 0..2 {
        activate_managed(&stores, &principal("bob"), &first, "m", &SystemEntropy).await.unwrap();
    }
    assert_eq!(rig.head("bob").await["state"], "active");
    assert_eq!(rig.world.json(&rig.world.auth, &format!("gate.{first}")).await["state"], "open");

    let head = activate_managed(&stores, &principal("bob"), &second, "m", &SystemEntropy).await.unwrap_err();
    assert_eq!((head.error.code, head.began), (EpCode::AlreadyExists, false));

    // A burned uid is seen at its gate, after its reservation.
    rig.ask(false, "bob", &first).await.unwrap();
    let gate = activate_managed(&stores, &principal("bob"), &first, "m", &SystemEntropy).await.unwrap_err();
    assert_eq!((gate.error.code, gate.began), (EpCode::PermissionDenied, true));
}
