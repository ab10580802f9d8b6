//! An open plane whose barriers meet a delivery daemon that does not answer, answers late, or comes back
//! (contract 05 §8.8, §8.10; 07 §5, §6.3).

use std::{sync::Arc, time::Duration};

use cotal_authority::{
    Plane, PlaneInputs, intents::BootResume, past::RememberPast, plane::NATIVE_ISSUANCE_PRUNE,
    retirement::Retirement,
};
use cotal_broker::{Connection, provision::provision_space};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    EpCode, EpError, LifecycleUid, OpId, Principal,
    delivery_admin::{AdminRequest, EvictionResult, answer, refuse},
    names,
    subject::{ControlService, Subjects},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::Notify, time::timeout};

use crate::{
    boot::Kept,
    harness::{OWNER, World, eventually, principal, uid},
};

/// Longer than the plane waits before it runs an owed operation again, on a busy machine.
const RUNS_AGAIN: Duration = Duration::from_secs(60);

/// A plane of a space that is provisioned.
pub(crate) async fn open(world: &World, prune: Duration) -> Result<Arc<Plane>, EpError> {
    open_remembering(world, prune, None).await
}

async fn open_remembering(
    world: &World,
    prune: Duration,
    past: Option<Arc<dyn RememberPast>>,
) -> Result<Arc<Plane>, EpError> {
    provision_space(&world.anything, &world.space).await?;
    Plane::open(PlaneInputs {
        connector: world.connector.clone(),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        identity: world.identity.clone(),
        native_issuance_prune: prune,
        claim_patience: Duration::ZERO,
        past,
    })
    .await
}

/// What the delivery daemon says to an eviction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Says {
    /// Everybody is gone.
    Gone,
    /// It cannot tell.
    Refused,
    /// Nothing yet.
    Held,
}

/// The space's delivery-admin rail, answered by the test.
struct Delivery {
    says: Mutex<Says>,
    asked: Notify,
    changed: Notify,
}

impl Delivery {
    async fn start(world: &World, says: Says) -> Arc<Self> {
        let this = Arc::new(Self { says: Mutex::new(says), asked: Notify::new(), changed: Notify::new() });
        let filter = Subjects::new(&world.space.token()).control_filter(ControlService::DeliveryAdmin);
        let mut requests = world.anything.subscribe(&filter, None).await.unwrap();
        world.anything.flush().await.unwrap();
        tokio::spawn({
            let (this, connection) = (this.clone(), world.anything.clone());
            async move {
                while let Some(request) = requests.next().await {
                    let (this, connection) = (this.clone(), connection.clone());
                    tokio::spawn(async move {
                        let reply = request.reply.clone().unwrap();
                        this.answers(&request.payload, &reply, &connection).await;
                    });
                }
            }
        });
        this
    }

    fn says(&self, says: Says) {
        *self.says.lock() = says;
        self.changed.notify_waiters();
    }

    async fn asked(&self) {
        timeout(RUNS_AGAIN, self.asked.notified()).await.expect("nobody was to be evicted");
    }

    async fn answers(&self, request: &[u8], reply: &str, connection: &Connection) {
        let gone = |principal: &Principal| EvictionResult {
            principal: principal.clone(),
            kicked: 0,
            remaining: 0,
            verified_gone: true,
            scan_complete: true,
            note: None,
        };
        let changed = self.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        self.asked.notify_one();
        if *self.says.lock() == Says::Held {
            changed.await;
        }
        let answer = match AdminRequest::parse(request).unwrap() {
            _ if *self.says.lock() == Says::Refused => refuse("not every server answers"),
            AdminRequest::EvictPrincipal(one) => answer(&gone(&one)),
            AdminRequest::EvictPrincipals(many) => answer(&many.iter().map(gone).collect::<Vec<_>>()),
            _ => refuse("this test evicts"),
        };
        connection.publish(reply, &[], answer.into()).await.unwrap();
    }
}

/// An active incarnation with a root.
async fn plant(world: &World, actor: &str) -> LifecycleUid {
    let uid = uid();
    world.plant_active(actor, &uid).await;
    world.plant_head(actor, &uid, "active", ",\"currentCredentialId\":\"c1\"").await;
    world
        .plant_credential(&uid, "c1", &format!("{OWNER}.{actor}"), "\"root\"", "active", 9_000_000_000_000)
        .await;
    uid
}

async fn head(world: &World, actor: &str) -> Value {
    world.json(&world.records, &format!("lifecycle.{OWNER}.{actor}")).await
}

async fn gate(world: &World, uid: &LifecycleUid) -> Value {
    world.json(&world.auth, &format!("gate.{uid}")).await
}

async fn claim(world: &World) -> Value {
    world.json(&world.auth, "plane").await
}

async fn within(what: &str, holds: impl AsyncFnMut() -> bool) {
    // `eventually` waits for less than the plane may pause.
    let mut holds = holds;
    let all = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(RUNS_AGAIN, all).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// A retirement and a takeover that were refused behind their gates: nobody has to ask again.
#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_that_was_refused_behind_its_gate_is_ended_by_the_plane_itself() {
    let world = World::start().await;
    let delivery = Delivery::start(&world, Says::Refused).await;
    let plane = open(&world, NATIVE_ISSUANCE_PRUNE).await.unwrap();
    let (retired, taken) = (plant(&world, "retired").await, plant(&world, "taken").await);
    let op = OpId::mint(&SystemEntropy);

    let failure = plane.retire_managed(&principal("retired"), &retired).await.unwrap_err();
    assert!(failure.began && failure.error.code == EpCode::Unavailable, "{}", failure.error);
    let refusal = plane.take_over(&op, &principal("taken"), &taken).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable, "{refusal}");
    for uid in [&retired, &taken] {
        assert_eq!(gate(&world, uid).await["state"], "frozen");
    }

    delivery.says(Says::Gone);
    within("both have ended", async || {
        head(&world, "retired").await["state"] == "retired" && gate(&world, &taken).await["state"] == "open"
    })
    .await;
    let head = head(&world, "taken").await;
    assert_eq!((&head["processEpoch"], &head["lastTakeoverOpId"]), (&2.into(), &op.as_str().into()));
    assert_eq!(world.active_rows(&retired).await + world.active_rows(&taken).await, 0);
    plane.close().await.unwrap();
}

/// What an earlier run left frozen does not keep the next one from opening, and ends without anybody asking for it.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_boot_could_not_end_is_ended_once_the_delivery_daemon_answers() {
    let world = World::start().await;
    let delivery = Delivery::start(&world, Says::Refused).await;
    let plane = open(&world, NATIVE_ISSUANCE_PRUNE).await.unwrap();
    let uid = plant(&world, "bob").await;
    assert!(plane.retire_interactive(&principal("bob"), &uid).await.unwrap_err().began);
    plane.close().await.unwrap();
    assert_eq!(claim(&world).await["state"], "released");

    let plane = open(&world, NATIVE_ISSUANCE_PRUNE).await.unwrap();
    let owed: Vec<&OpId> = plane.boot().owed.iter().map(|owed| &owed.op).collect();
    assert_eq!(owed, [&OpId::interactive_retirement(&uid)]);
    assert_eq!(gate(&world, &uid).await["state"], "frozen");
    delivery.says(Says::Gone);
    within("it has ended", async || head(&world, "bob").await["state"] == "retired").await;
    plane.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_under_a_plane_is_noted_by_its_close_and_not_looked_at_by_the_next_open() {
    let world = World::start().await;
    let _delivery = Delivery::start(&world, Says::Gone).await;
    let kept = Arc::new(Kept::default());
    let open =
        async || open_remembering(&world, NATIVE_ISSUANCE_PRUNE, Some(kept.clone() as _)).await.unwrap();
    let plane = open().await;
    let uid = plant(&world, "bob").await;
    plane.retire_managed(&principal("bob"), &uid).await.unwrap();
    plane.close().await.unwrap();
    let note = kept.note().unwrap();
    assert!(note.contains(&names::stage_key(&OpId::managed_retirement(&uid))), "{note}");
    assert!(note.contains("\"open\":[]"), "{note}");

    let plane = open().await;
    assert_eq!(*plane.boot(), BootResume::default());
    plane.close().await.unwrap();
    assert_eq!(kept.note(), Some(note));
}

/// What a barrier found under this claim must not be used under another.
#[tokio::test(flavor = "multi_thread")]
async fn a_close_gives_the_claim_back_only_when_no_barrier_runs_any_more() {
    let world = World::start().await;
    let delivery = Delivery::start(&world, Says::Held).await;
    let plane = open(&world, NATIVE_ISSUANCE_PRUNE).await.unwrap();
    let (flown, taken) = (plant(&world, "flown").await, plant(&world, "taken").await);
    let op = OpId::mint(&SystemEntropy);
    let flight = tokio::spawn({
        let (plane, uid) = (plane.clone(), flown.clone());
        async move { plane.retire_managed(&principal("flown"), &uid).await }
    });
    delivery.asked().await;
    let takeover = tokio::spawn({
        let (plane, op, uid) = (plane.clone(), op.clone(), taken.clone());
        async move { plane.take_over(&op, &principal("taken"), &uid).await }
    });
    delivery.asked().await;

    let closing = tokio::spawn({
        let plane = plane.clone();
        async move { plane.close().await }
    });
    eventually("the close has begun", async || plane.check_open().is_err()).await;
    let late = plane.retire_managed(&principal("flown"), &flown).await.unwrap_err();
    assert!(!late.began, "nothing begins any more");
    assert_eq!(claim(&world).await["state"], "held", "two barriers wait for their evictions");
    assert!(!closing.is_finished());
    delivery.says(Says::Gone);
    // Each is refused at its next step, and then the claim goes.
    assert!(flight.await.unwrap().unwrap_err().began);
    takeover.await.unwrap().unwrap_err();
    closing.await.unwrap().unwrap();
    assert_eq!(claim(&world).await["state"], "released");
    for uid in [&flown, &taken] {
        assert_eq!(gate(&world, uid).await["state"], "frozen", "nothing was written after the close began");
    }

    let plane = open(&world, NATIVE_ISSUANCE_PRUNE).await.unwrap();
    let mut resumed = plane.boot().resumed.clone();
    resumed.sort();
    let mut both = [op, OpId::managed_retirement(&flown)];
    both.sort();
    assert_eq!(resumed, both);
    assert_eq!(plane.retire_managed(&principal("flown"), &flown).await.unwrap(), Retirement::AlreadyRetired);
    plane.close().await.unwrap();
}

/// A daemon that hangs holds up a close for a while and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_close_cuts_off_a_barrier_that_does_not_end_and_the_next_open_ends_it() {
    let world = World::start().await;
    let delivery = Delivery::start(&world, Says::Held).await;
    let plane = open(&world, NATIVE_ISSUANCE_PRUNE).await.unwrap();
    let uid = plant(&world, "bob").await;
    let flight = tokio::spawn({
        let (plane, uid) = (plane.clone(), uid.clone());
        async move { plane.retire_interactive(&principal("bob"), &uid).await }
    });
    delivery.asked().await;
    timeout(RUNS_AGAIN, plane.close()).await.expect("a close ends").unwrap();
    assert!(flight.await.unwrap().unwrap_err().began);
    assert_eq!(claim(&world).await["state"], "released");
    delivery.says(Says::Gone);
    let plane = open(&world, NATIVE_ISSUANCE_PRUNE).await.unwrap();
    assert_eq!(plane.boot().resumed, [OpId::interactive_retirement(&uid)]);
    plane.close().await.unwrap();
}

/// Whoever asks may hang up: a barrier that stopped in its middle would keep the alias frozen.
#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_goes_on_when_its_caller_is_gone() {
    let world = World::start().await;
    let delivery = Delivery::start(&world, Says::Held).await;
    let plane = open(&world, NATIVE_ISSUANCE_PRUNE).await.unwrap();
    let (taken, managed, interactive) =
        (plant(&world, "taken").await, plant(&world, "managed").await, plant(&world, "interactive").await);
    let op = OpId::mint(&SystemEntropy);
    let callers = [
        tokio::spawn({
            let (plane, op, uid) = (plane.clone(), op.clone(), taken.clone());
            async move { plane.take_over(&op, &principal("taken"), &uid).await.map(drop).map_err(drop) }
        }),
        tokio::spawn({
            let (plane, uid) = (plane.clone(), managed.clone());
            async move { plane.retire_managed(&principal("managed"), &uid).await.map(drop).map_err(drop) }
        }),
        tokio::spawn({
            let (plane, uid) = (plane.clone(), interactive.clone());
            async move { plane.retire_interactive(&principal("interactive"), &uid).await.map(drop).map_err(drop) }
        }),
    ];
    eventually("all wait for their evictions", async || {
        let mut frozen = 0;
        for uid in [&taken, &managed, &interactive] {
            frozen += usize::from(
                gate(&world, uid).await["state"] == "frozen" && world.active_rows(uid).await == 0,
            );
        }
        frozen == 3
    })
    .await;
    for caller in callers {
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
    }
    delivery.says(Says::Gone);
    eventually("all have ended", async || {
        gate(&world, &taken).await["state"] == "open"
            && head(&world, "managed").await["state"] == "retired"
            && head(&world, "interactive").await["state"] == "retired"
    })
    .await;
    assert_eq!(head(&world, "taken").await["lastTakeoverOpId"], op.as_str());
    plane.close().await.unwrap();
}
