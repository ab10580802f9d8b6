//! What containment reaches beyond an incarnation's own rows: session pairs, and everything of a revoked handle
//! (contract 07 §5 step 2c, §5.1; 02 §12).

use cotal_authority::{
    failpoint::Failpoint,
    handle_revocation::{HandleRevocation, revoke_handle},
    session_pairs::{SessionPairs as _, SessionReconciler},
    takeover::take_over,
};
use cotal_broker::kv::Bucket;
use cotal_trust::system::SystemEntropy;
use cotal_wire::{EpCode, EpError, KeySegment, LifecycleUid, Names, OpId, SessionId};

use crate::{
    harness::{OWNER, World, assert_garbled, code, principal, uid},
    rig::{Rig, an_op},
};

const SERVER: &str = "local.manager_serve_1";

fn sid(c: char) -> SessionId {
    SessionId::parse(&c.to_string().repeat(43)).unwrap()
}

/// The coordinates of one session of alice.
struct Session {
    id: SessionId,
    holder: LifecycleUid,
    instance: LifecycleUid,
}

impl Session {
    fn new(c: char, holder: &LifecycleUid) -> Self {
        Self { id: sid(c), holder: holder.clone(), instance: uid() }
    }

    fn key(&self) -> String {
        format!("session.{}", self.id)
    }

    fn caller(&self) -> String {
        format!("cred.{}.{}.c", self.holder, self.id)
    }

    fn serving(&self) -> String {
        format!("epcred.manager.{}.{}.s", self.instance, self.id)
    }

    fn row(&self, state: &str, caller: bool, serving: bool) -> String {
        let Self { id, holder, instance } = self;
        format!(
            "{{\"sessionId\":\"{id}\",\"endpoint\":\"manager\",\"serving\":{{\"instanceId\":\"{instance}\",\"epoch\":0}},\
             \"holder\":{{\"principal\":\"{OWNER}.alice\",\"lifecycleUid\":\"{holder}\"}},\"grantSig\":\"sig\",\
             \"credCaller\":\"{holder}.{id}.c\",\"credServing\":\"manager.{instance}.{id}.s\",\
             \"revoked\":{{\"caller\":{caller},\"serving\":{serving}}},\"state\":\"{state}\",\"exp\":9}}"
        )
    }

    /// Plants the row in a bucket, and both credential rows.
    async fn plant(&self, world: &World, bucket: &Bucket) {
        world.put(bucket, &self.key(), &self.row("active", false, false)).await;
        let (id, chain) = (&self.id, format!("\"session.{}\"", self.id));
        let holder = format!("{OWNER}.alice");
        world.plant_credential(&self.holder, &format!("{id}.c"), &holder, &chain, "active", 9).await;
        let serving = format!(
            "{{\"credentialId\":\"{id}.s\",\"holderPrincipal\":\"{SERVER}\",\"lifecycleUid\":\"{}\",\
             \"endpoint\":\"manager\",\"sourceChain\":[{chain}],\"state\":\"active\",\"exp\":9}}",
            self.instance
        );
        world.put(&world.auth, &self.serving(), &serving).await;
    }
}

fn sessions(world: &World) -> Bucket {
    Bucket::new(&world.anything, &Names::new(&world.space.token()).sessions_bucket())
}

async fn state(world: &World, key: &str) -> String {
    world.json(&world.auth, key).await["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_holder_in_whichever_bucket_its_row_is() {
    let rig = Rig::start().await;
    let world = &rig.world;
    let (uid, op) = (uid(), an_op('t'));
    rig.plant("alice", &uid).await;
    let (newer, older) = (Session::new('s', &uid), Session::new('o', &uid));
    newer.plant(world, &sessions(world)).await;
    older.plant(world, &world.auth).await;
    let journal = Failpoint::journal();
    let deps = rig.watched(&journal).await;

    let report = take_over(&deps, &op, &principal("alice"), &uid).await.unwrap();
    assert_eq!(report.revoked_rows, 3, "the root and both callers");
    let evicted: Vec<_> = report.evicted.iter().map(cotal_wire::Principal::key).collect();
    assert_eq!(evicted, [SERVER.to_owned(), format!("{OWNER}.alice")]);
    for (session, bucket) in [(&newer, &sessions(world)), (&older, &world.auth)] {
        assert_eq!(world.text(bucket, &session.key()).await.unwrap(), session.row("retired", true, true));
        assert_eq!(state(world, &session.caller()).await, "revoked");
        assert_eq!(state(world, &session.serving()).await, "revoked");
    }
    let order: Vec<_> = journal.landed().into_iter().filter(|key| key.contains(newer.id.as_str())).collect();
    assert_eq!(order, [newer.caller(), newer.key(), newer.serving(), newer.key()], "ended, then marked");
    let pairs: Vec<_> = world
        .custody
        .connections()
        .into_iter()
        .filter(|owned| owned.label.contains("session-pair"))
        .collect();
    assert!(pairs.iter().all(|owned| owned.ended), "a pair's connection is closed again: {pairs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_cut_off_between_any_two_writes_is_ended_by_the_next_run() {
    let rig = Rig::start().await;
    let world = &rig.world;
    // Intent, gate, root, caller; then the session row, the serving row, the marks.
    for nth in 5..=7 {
        let (actor, uid, op) = (format!("cut{nth}"), uid(), OpId::mint(&SystemEntropy));
        rig.plant(&actor, &uid).await;
        let session = Session::new(char::from(b'a' + u8::try_from(nth).unwrap()), &uid);
        session.plant(world, &sessions(world)).await;
        let cut = Failpoint::stop_after(nth);
        let (deps, who) = (rig.watched(&cut).await, principal(&actor));
        tokio::select! {
            done = take_over(&deps, &op, &who, &uid) => panic!("not held after write {nth}: {done:?}"),
            () = cut.reached() => {}
        }
        let report = take_over(&rig.deps().await, &op, &who, &uid).await.unwrap();
        assert!(report.evicted.iter().any(|principal| principal.key() == SERVER), "after write {nth}");
        let row = world.text(&sessions(world), &session.key()).await.unwrap();
        assert_eq!(row, session.row("retired", true, true), "after write {nth}");
        assert_eq!(state(world, &session.serving()).await, "revoked", "after write {nth}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_session_keeps_its_state_and_an_absent_half_stays_unmarked() {
    let rig = Rig::start().await;
    let world = &rig.world;
    let pairs = SessionReconciler::new(world.connector.clone(), rig.held.stores.clone());
    let session = Session::new('s', &uid());
    let bucket = sessions(world);
    world.put(&bucket, &session.key(), &session.row("closed", false, false)).await;
    assert!(pairs.end(&session.id).await.unwrap().is_empty());
    assert_eq!(world.text(&bucket, &session.key()).await.unwrap(), session.row("closed", false, false));
    session.plant(world, &bucket).await;
    world.put(&bucket, &session.key(), &session.row("closed", false, false)).await;
    let reached = pairs.end(&session.id).await.unwrap();
    assert_eq!(reached.len(), 2, "the holder's credential was live");
    assert_eq!(world.text(&bucket, &session.key()).await.unwrap(), session.row("closed", true, true));
    let again = pairs.end(&session.id).await.unwrap();
    assert_eq!(again.iter().map(cotal_wire::Principal::key).collect::<Vec<_>>(), [SERVER]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_cannot_be_ended_keeps_the_gate_frozen() {
    let rig = Rig::start().await;
    let world = &rig.world;
    let (uid, op) = (uid(), an_op('t'));
    rig.plant("alice", &uid).await;
    let session = Session::new('s', &uid);
    session.plant(world, &sessions(world)).await;
    let over = async |deps| take_over(&deps, &op, &principal("alice"), &uid).await;

    let mut without = rig.deps().await;
    without.sessions = None;
    assert_eq!(code(over(without).await), EpCode::FailedPrecondition, "nothing can end it");
    world.put(&sessions(world), &session.key(), "{}").await;
    assert_garbled(over(rig.deps().await).await, &session.key());
    world.put(&sessions(world), &session.key(), &session.row("active", false, false)).await;
    world.put(&world.auth, &session.serving(), "{}").await;
    assert_garbled(over(rig.deps().await).await, &session.serving());
    world.delete(&world.auth, &session.serving()).await;
    assert_eq!(code(over(rig.deps().await).await), EpCode::FailedPrecondition, "a marker");
    world.delete(&sessions(world), &session.key()).await;
    assert_eq!(code(over(rig.deps().await).await), EpCode::FailedPrecondition, "a marker");
    assert_eq!(rig.gate(&uid).await["state"], "frozen");
    assert_eq!(rig.head("alice").await["processEpoch"], 1);
    assert!(rig.evictor.asked().is_empty(), "deny-new comes before kill-live");

    session.plant(world, &sessions(world)).await;
    over(rig.deps().await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_a_row_is_a_refusal() {
    let rig = Rig::start().await;
    let pairs = SessionReconciler::new(rig.world.connector.clone(), rig.held.stores.clone());
    assert_eq!(code(pairs.end(&sid('s')).await), EpCode::FailedPrecondition);
}

// === handles ==================================================================================================

struct Handle {
    key: KeySegment,
    id: KeySegment,
}

impl Handle {
    fn new(id: &str) -> Self {
        Self { key: KeySegment::parse("k1").unwrap(), id: KeySegment::parse(id).unwrap() }
    }

    fn gate(&self) -> String {
        format!("srcgate.{}.{}", self.key, self.id)
    }

    async fn plant_gate(&self, rig: &Rig, state: &str) {
        let row =
            format!("{{\"issuerKeyId\":\"{}\",\"id\":\"{}\",\"state\":\"{state}\"}}", self.key, self.id);
        rig.world.put(&rig.world.auth, &self.gate(), &row).await;
    }

    /// A credential of `actor` that derives from this handle.
    async fn plant_derived(&self, rig: &Rig, actor: &str, uid: &LifecycleUid, id: &str) {
        let (holder, chain) =
            (format!("{OWNER}.{actor}"), format!("\"root\",\"handle.{}.{}\"", self.key, self.id));
        rig.world.plant_credential(uid, id, &holder, &chain, "active", 9).await;
        self.plant_index(rig, uid, id).await;
    }

    async fn plant_index(&self, rig: &Rig, uid: &LifecycleUid, id: &str) {
        let index = format!("bysrc.{}.{}.{uid}.{id}", self.key, self.id);
        rig.world.put(&rig.world.auth, &index, &format!("{{\"ref\":\"cred.{uid}.{id}\"}}")).await;
    }

    async fn revoke(&self, rig: &Rig) -> Result<HandleRevocation, EpError> {
        revoke_handle(&rig.deps().await, &rig.world.connector, &self.key, &self.id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_a_handle_freezes_it_first_and_contains_all_that_derives_from_it() {
    let rig = Rig::start().await;
    let (alice, bob) = (uid(), uid());
    let (handle, other) = (Handle::new("h1"), Handle::new("h2"));
    handle.plant_gate(&rig, "open").await;
    handle.plant_derived(&rig, "alice", &alice, "c1").await;
    handle.plant_derived(&rig, "bob", &bob, "c2").await;
    other.plant_derived(&rig, "bob", &bob, "c3").await;
    let journal = Failpoint::journal();
    let deps = rig.watched(&journal).await;
    let revoked = revoke_handle(&deps, &rig.world.connector, &handle.key, &handle.id).await.unwrap();
    assert_eq!(
        revoked,
        HandleRevocation { revoked_rows: 2, evicted: vec![principal("alice"), principal("bob")] }
    );
    let mut rows = [format!("cred.{alice}.c1"), format!("cred.{bob}.c2")];
    rows.sort();
    assert_eq!(journal.landed(), [vec![handle.gate()], rows.to_vec()].concat());
    assert_eq!(rig.world.json(&rig.world.auth, &handle.gate()).await["state"], "frozen");
    assert_eq!(rig.credential(&bob, "c3").await["state"], "active", "of another handle");

    let again = handle.revoke(&rig).await.unwrap();
    assert_eq!(again.revoked_rows, 0, "it stays frozen, and a second run resumes");
    assert_eq!(again.evicted, revoked.evicted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_is_revoked_only_where_all_that_derives_from_it_can_be_read() {
    let rig = Rig::start().await;
    let alice = uid();
    let handle = Handle::new("h1");
    assert_eq!(code(handle.revoke(&rig).await), EpCode::NotFound);
    rig.world.put(&rig.world.auth, &handle.gate(), "{}").await;
    assert_garbled(handle.revoke(&rig).await, &handle.gate());
    handle.plant_gate(&rig, "open").await;
    handle.plant_index(&rig, &alice, "c1").await;
    assert_eq!(code(handle.revoke(&rig).await), EpCode::FailedPrecondition, "the row is absent");
    assert_eq!(
        rig.world.json(&rig.world.auth, &handle.gate()).await["state"],
        "frozen",
        "deny-new came first"
    );
    let row = format!("cred.{alice}.c1");
    rig.world.put(&rig.world.auth, &row, "{}").await;
    assert_garbled(handle.revoke(&rig).await, &row);
    rig.world.delete(&rig.world.auth, &row).await;
    assert_eq!(code(handle.revoke(&rig).await), EpCode::FailedPrecondition, "the row is a marker");
    handle.plant_derived(&rig, "alice", &alice, "c1").await;
    rig.evictor.cannot_evict(&[&format!("{OWNER}.alice")]);
    assert_eq!(code(handle.revoke(&rig).await), EpCode::Unavailable);
    assert_eq!(rig.credential(&alice, "c1").await["state"], "revoked");
    rig.evictor.cannot_evict(&[]);
    handle.revoke(&rig).await.unwrap();
    let index = format!("bysrc.k1.h1.{alice}.c1");
    rig.world.put(&rig.world.auth, &index, &format!("{{\"ref\":\"cred.{alice}.c2\"}}")).await;
    assert_garbled(handle.revoke(&rig).await, &index);
    rig.world.delete(&rig.world.auth, &index).await;
    assert_eq!(code(handle.revoke(&rig).await), EpCode::FailedPrecondition, "an index row is a marker");
    rig.world.delete(&rig.world.auth, &handle.gate()).await;
    assert_eq!(code(handle.revoke(&rig).await), EpCode::FailedPrecondition, "the gate is a marker");
}
