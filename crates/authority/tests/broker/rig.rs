//! What a barrier acts through, over a real broker, with an evictor that says what it is told to.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use cotal_authority::{
    barrier::BarrierDeps,
    drain::Drain,
    evict::{Eviction, Evictor},
    failpoint::Failpoint,
    session_pairs::SessionReconciler,
};
use cotal_broker::provision;
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{LifecycleUid, OpId, Principal};
use parking_lot::Mutex;

use crate::{
    harness::{OWNER, World, uid},
    held::{Held, barrier},
};

pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) held: Held,
    pub(crate) evictor: Arc<Scripted>,
}

/// Everybody is gone, but those who are not.
#[derive(Default)]
pub(crate) struct Scripted {
    stay: Mutex<BTreeSet<Principal>>,
    asked: Mutex<Vec<Vec<String>>>,
}

impl Scripted {
    /// From here on these principals are never verifiably gone.
    pub(crate) fn cannot_evict(&self, principals: &[&str]) {
        *self.stay.lock() = principals.iter().map(|key| Principal::parse_key(key).unwrap()).collect();
    }

    /// Whom each call asked for, in the order of calls.
    pub(crate) fn asked(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut *self.asked.lock())
    }
}

#[async_trait]
impl Evictor for Scripted {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        self.asked.lock().push(principals.iter().map(Principal::key).collect());
        let stay = self.stay.lock().clone();
        let verdict = |principal: &Principal| Eviction {
            principal: principal.clone(),
            kicked: 1,
            remaining: u64::from(stay.contains(principal)),
            verified_gone: !stay.contains(principal),
            scan_complete: true,
            note: None,
        };
        principals.iter().map(verdict).collect()
    }
}

impl Rig {
    /// A provisioned space whose plane is held.
    pub(crate) async fn start() -> Self {
        let world = World::start().await;
        provision::provision_space(&world.anything, &world.space).await.unwrap();
        let held = Held::open(&world).await;
        Self { world, held, evictor: Arc::default() }
    }

    /// A barrier over a connection of its own, as another run of the plane would have it.
    pub(crate) async fn deps(&self) -> BarrierDeps {
        let stores = barrier(&self.world).await;
        let connector = self.world.connector.clone();
        BarrierDeps {
            ledger: self.held.ledger.clone(),
            records: self.held.records.clone(),
            evictor: self.evictor.clone(),
            sessions: Some(Arc::new(SessionReconciler::new(connector.clone(), stores.clone()))),
            drain: Arc::new(Drain::new(connector, self.held.records.clone(), Arc::new(SystemClock))),
            stores,
        }
    }

    /// As [`Self::deps`], watched by a failpoint.
    pub(crate) async fn watched(&self, failpoint: &Arc<Failpoint>) -> BarrierDeps {
        let deps = self.deps().await;
        failpoint.arm(&deps.stores);
        deps.drain.watch(failpoint);
        deps
    }

    /// An active incarnation with one active root credential.
    pub(crate) async fn plant(&self, actor: &str, uid: &LifecycleUid) {
        self.world.plant_active(actor, uid).await;
        self.world.plant_head(actor, uid, "active", ",\"currentCredentialId\":\"c1\"").await;
        self.plant_root(actor, uid, "c1").await;
    }

    pub(crate) async fn plant_root(&self, actor: &str, uid: &LifecycleUid, id: &str) {
        let holder = format!("{OWNER}.{actor}");
        self.world.plant_credential(uid, id, &holder, "\"root\"", "active", 9_000_000_000_000).await;
    }

    /// Plants a head with these members behind its uid.
    pub(crate) async fn plant_head(&self, actor: &str, uid: &LifecycleUid, epoch: u64, rest: &str) {
        let row = format!(
            "{{\"owner\":\"{OWNER}\",\"actor\":\"{actor}\",\"lifecycleUid\":\"{uid}\",\"managerInstance\":\"m\",\
             \"processEpoch\":{epoch},{rest}}}"
        );
        self.world.put(&self.world.records, &format!("lifecycle.{OWNER}.{actor}"), &row).await;
    }

    pub(crate) async fn plant_gate(&self, uid: &LifecycleUid, generation: u64, state: &str, held: &str) {
        let row =
            format!("{{\"lifecycleUid\":\"{uid}\",\"state\":\"{state}\",\"generation\":{generation}{held}}}");
        self.world.put(&self.world.auth, &format!("gate.{uid}"), &row).await;
    }

    pub(crate) async fn plant_intent(&self, op: &OpId, row: &str) {
        self.world.put(&self.world.auth, &format!("stage.{op}"), row).await;
    }

    pub(crate) async fn gate(&self, uid: &LifecycleUid) -> serde_json::Value {
        self.world.json(&self.world.auth, &format!("gate.{uid}")).await
    }

    pub(crate) async fn head(&self, actor: &str) -> serde_json::Value {
        self.world.json(&self.world.records, &format!("lifecycle.{OWNER}.{actor}")).await
    }

    pub(crate) async fn credential(&self, uid: &LifecycleUid, id: &str) -> serde_json::Value {
        self.world.json(&self.world.auth, &format!("cred.{uid}.{id}")).await
    }
}

/// Cuts an operation off after each of its `writes`, on an incarnation of its own each time, and resumes it: what it then
/// left is for `check`, and no key is written more often than by an uncut run.
pub(crate) async fn cut_off_after_each<T: std::fmt::Debug>(
    rig: &Rig,
    writes: usize,
    begin: impl AsyncFn(&BarrierDeps, &OpId, &str, &LifecycleUid) -> T,
    resume: impl AsyncFn(&BarrierDeps, &OpId),
    check: impl AsyncFn(&OpId, &str, &LifecycleUid),
) {
    for nth in 1..=writes {
        let (actor, uid, op) = (format!("cut{nth}"), uid(), OpId::mint(&SystemEntropy));
        rig.plant(&actor, &uid).await;
        let cut = Failpoint::stop_after(nth);
        let deps = rig.watched(&cut).await;
        tokio::select! {
            done = begin(&deps, &op, &actor, &uid) => panic!("not held after write {nth}: {done:?}"),
            () = cut.reached() => {}
        }
        let rest = Failpoint::journal();
        resume(&rig.watched(&rest).await, &op).await;
        check(&op, &actor, &uid).await;
        let written = [cut.landed(), rest.landed()].concat();
        assert_eq!(written.len(), writes, "after write {nth}: {written:?}");
    }
}

/// Loses the answer to each of an operation's `writes`, on an incarnation of its own each time: `lossy` is what it came
/// to, and runs it again; what it then left is for `check`.
pub(crate) async fn lose_each_answer(
    rig: &Rig,
    writes: usize,
    lossy: impl AsyncFn(usize, &BarrierDeps, &OpId, &str, &LifecycleUid),
    check: impl AsyncFn(&OpId, &str, &LifecycleUid),
) {
    for nth in 1..=writes {
        let (actor, uid, op) = (format!("lost{nth}"), uid(), OpId::mint(&SystemEntropy));
        rig.plant(&actor, &uid).await;
        let deps = rig.watched(&Failpoint::forget_answer_of(nth)).await;
        lossy(nth, &deps, &op, &actor, &uid).await;
        check(&op, &actor, &uid).await;
    }
}

/// `,"op":{…}` of a gate.
pub(crate) fn held_by(op: &OpId, kind: &str) -> String {
    format!(",\"op\":{{\"opId\":\"{op}\",\"kind\":\"{kind}\"}}")
}

pub(crate) fn an_op(c: char) -> OpId {
    OpId::parse(&c.to_string().repeat(26)).unwrap()
}
