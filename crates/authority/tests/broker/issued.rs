//! Issued authority over a real broker (contract 03 §H, 05 §13, 08 §4.3).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cotal_authority::{
    failpoint::Failpoint,
    issued::{
        HostSources, IssuedStore, IssuerSession, SourceLiveness, UserCaller, retire_lifecycle_issuance,
        with_issuer_session,
    },
};
use cotal_broker::{
    Connection, ConnectionState, Lifetime,
    kv::{Bucket, LeaderRead},
    provision::provision_space,
};
use cotal_ledger::{GrantInput, Ledger};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, ConnId, DerivedOwner, EpCode, EpError, Generation, InfraRole, LifecycleUid, Names, Permissions,
    Rules, SpaceToken, UnixSecs,
    grants::{Issued, issued},
    names::accepted_key,
    rows::{AcceptedRow, AttemptState, IssuedAuthorityRef, IssuedEvidence, IssuedPermissions, SourceRef},
};
use serde_json::json;

use crate::{
    harness::{OWNER, World, code, eventually, principal, uid},
    tap::{Stop, Tap},
};

const NOW: UnixSecs = UnixSecs(1_700_000_000);

struct House {
    world: World,
    issued: Bucket,
    accepted: Bucket,
}

impl House {
    async fn start() -> Self {
        let world = World::start().await;
        provision_space(&world.anything, &world.space).await.unwrap();
        let names = Names::new(&world.space.token());
        let issued = Bucket::new(&world.anything, &names.issued_bucket());
        let accepted = Bucket::new(&world.anything, &names.accepted_bucket());
        Self { world, issued, accepted }
    }

    async fn connection(&self) -> Connection {
        let token = self.world.space.token();
        let label = InfraRole::ISSUER.label(&self.world.space);
        let grants = |inbox: &ConnId| issued::issuer_session(&token, inbox);
        let lifetime = Lifetime::OneShot { ttl_secs: 300, principal: None };
        self.world.connector.open(label, &grants, lifetime).await.unwrap()
    }

    async fn store(&self) -> IssuedStore {
        IssuedStore::bind(&self.connection().await, &self.world.space).await.unwrap()
    }

    fn session(&self) -> IssuerSession {
        IssuerSession::new(self.world.connector.clone(), Arc::new(SystemEntropy), 300).unwrap()
    }

    async fn attempt_state(&self, authority: &IssuedAuthorityRef) -> String {
        let attempt = self.world.json(&self.issued, &authority.attempt_key()).await;
        attempt["state"].as_str().unwrap().to_owned()
    }

    /// How many messages a key holds.
    async fn messages(&self, bucket: &Bucket, key: &str) -> u64 {
        let subject = Names::kv_subject(bucket.name(), key);
        let verb = format!("$JS.API.STREAM.INFO.{}", Names::kv_stream(bucket.name()));
        let body = json!({ "subjects_filter": subject }).to_string();
        let answer =
            self.world.anything.request(&verb, &[], body.into(), Duration::from_secs(10)).await.unwrap();
        let info: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        info["state"]["subjects"][subject].as_u64().unwrap_or(0)
    }

    /// Waits until this many issuer connections are left.
    async fn issuers_left(&self, left: u64) {
        eventually("the issuer connections have ended", async || self.issuer_connections().1 == left).await;
    }

    /// This room's issuer connections, and how many of them have not ended.
    fn issuer_connections(&self) -> (u64, u64) {
        let label = InfraRole::ISSUER.label(&self.world.space);
        let all = self.world.custody.connections();
        let ours = all.iter().filter(|row| row.label == label);
        let left = ours.clone().filter(|row| !row.ended).map(|row| row.count).sum();
        (ours.map(|row| row.count).sum(), left)
    }
}

fn space() -> SpaceToken {
    SpaceToken::parse("demo").unwrap()
}

fn authority(actor: &str, uid: &LifecycleUid) -> IssuedAuthorityRef {
    IssuedAuthorityRef {
        space: space(),
        principal: principal(actor),
        uid: uid.clone(),
        generation: Generation::mint(&SystemEntropy),
    }
}

fn source(actor: &str, uid: &LifecycleUid) -> SourceRef {
    SourceRef::actor_ledger(&space(), &principal(actor), uid)
}

fn ceiling(publish: &[&str]) -> IssuedPermissions {
    IssuedPermissions::of_grants(&grants(publish)).unwrap()
}

fn grants(publish: &[&str]) -> Permissions {
    let rules = |list: &[&str]| Rules { allow: list.iter().map(ToString::to_string).collect(), deny: vec![] };
    Permissions { publish: rules(publish), subscribe: rules(&["_INBOX_x.>"]) }
}

fn evidence(authority: &IssuedAuthorityRef, sources: &[&SourceRef], expires: Option<u64>) -> IssuedEvidence {
    let sources = sources.iter().map(|source| (*source).clone()).collect();
    IssuedEvidence::new(authority.clone(), sources, ceiling(&["a.>"]), expires.map(UnixSecs)).unwrap()
}

async fn release(store: &IssuedStore, evidence: IssuedEvidence) -> Result<IssuedAuthorityRef, EpError> {
    let (released, ()) = store.stage(evidence).await?.release(async { Ok(()) }).await?;
    Ok(released.authority().clone())
}

fn caller(actor: &str, uid: &LifecycleUid, nonce: &str) -> UserCaller {
    UserCaller { principal: principal(actor), uid: uid.clone(), conn_id: ConnId::parse(nonce).unwrap() }
}

fn accepted_token(nonce: &str) -> Generation {
    Issued::for_connection(Generation::mint(&SystemEntropy), &ConnId::parse(nonce).unwrap()).accepted
}

/// What a callout would build: rows with the generation in them, and the read of the accepted row.
fn mint(issued: &Issued) -> Permissions {
    let row = format!("cotal.demo.ep.v1.inst.manager.i.run-start.{}.*", issued.generation);
    grants(&[&row, &format!("accepted.{}", issued.accepted)])
}

async fn connect(session: &IssuerSession, caller: &UserCaller) -> Result<Permissions, EpError> {
    session.issue_user_caller(caller, |issued| Ok(mint(&issued))).await
}

/// A source that is what the test says, after it did what it must.
struct Says<F>(F);

#[async_trait]
impl<F: Fn() -> bool + Send + Sync> SourceLiveness for Says<F> {
    async fn is_live(&self, _: &SourceRef) -> Result<bool, EpError> {
        Ok((self.0)())
    }
}

fn all_live() -> Says<fn() -> bool> {
    Says(|| true)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuance_is_staged_released_and_accepted_in_the_contracts_order() {
    let house = House::start().await;
    let store = house.store().await;
    let journal = Failpoint::journal();
    journal.arm_issued(&store);
    let uid = uid();
    let authority = authority("alice", &uid);
    let source = source("alice", &uid);
    let evidence = evidence(&authority, &[&source], None);
    let nobody = store.resolve(&authority, &all_live(), NOW).await;
    assert_eq!(code(nobody), EpCode::PermissionDenied, "nothing was issued");

    let staged = store.stage(evidence.clone()).await.unwrap();
    assert_eq!(house.attempt_state(&authority).await, "prepared");
    assert_eq!(code(store.resolve(&authority, &all_live(), NOW).await), EpCode::PermissionDenied, "prepared");
    let (released, finalized) = staged.release(async { Ok("signed") }).await.unwrap();
    assert_eq!(finalized, "signed");
    let token = accepted_token("inbox-nonce-1");
    released.accept(&token).await.unwrap();

    assert_eq!(
        journal.landed(),
        [
            authority.evidence_key(),
            authority.attempt_key(),
            authority.index_key(&source),
            authority.attempt_key(),
            accepted_key(&token),
        ]
    );
    let stored = house.world.text(&house.issued, &authority.evidence_key()).await.unwrap();
    assert_eq!(stored.as_bytes(), evidence.to_bytes());
    let row = house.world.text(&house.accepted, &accepted_key(&token)).await.unwrap();
    assert_eq!(row.as_bytes(), AcceptedRow { authority: authority.clone() }.to_bytes());
    let resolved = store.resolve(&authority, &all_live(), NOW).await.unwrap();
    assert_eq!(resolved.evidence, evidence);

    // Replayed, the same generation is taken, whatever became of it.
    assert_eq!(store.stage(evidence.clone()).await.err().unwrap().code, EpCode::Conflict);
    assert_eq!(store.retire(&authority).await.unwrap(), AttemptState::Revoked);
    assert_eq!(store.retire(&authority).await.unwrap(), AttemptState::Revoked, "it stays ended");
    assert_eq!(house.messages(&house.issued, &authority.attempt_key()).await, 3, "and is not written again");
    assert_eq!(code(store.resolve(&authority, &all_live(), NOW).await), EpCode::PermissionDenied, "revoked");
    assert_eq!(store.stage(evidence).await.err().unwrap().code, EpCode::Conflict);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_stand_is_denied_and_every_check_has_its_own_reason() {
    let house = House::start().await;
    let store = house.store().await;
    let (uid, actor) = (uid(), "alice");
    let ledger_row = source(actor, &uid);

    // Expired, at its very second.
    let bounded = release(&store, evidence(&authority(actor, &uid), &[], Some(NOW.0))).await.unwrap();
    assert!(store.resolve(&bounded, &all_live(), UnixSecs(NOW.0 - 1)).await.is_ok());
    assert_eq!(code(store.resolve(&bounded, &all_live(), NOW).await), EpCode::PermissionDenied);

    // A source that has ended.
    let held = release(&store, evidence(&authority(actor, &uid), &[&ledger_row], None)).await.unwrap();
    assert_eq!(code(store.resolve(&held, &Says(|| false), NOW).await), EpCode::PermissionDenied);

    // Retired between the two reads of the attempt, while its source was looked at.
    let racing = release(&store, evidence(&authority(actor, &uid), &[&ledger_row], None)).await.unwrap();
    let retiring = Says(|| {
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async { store.retire(&racing).await.unwrap() })
        });
        true
    });
    assert_eq!(code(store.resolve(&racing, &retiring, NOW).await), EpCode::PermissionDenied);

    // An attempt of other evidence, and one that cannot be read.
    for attempt in [
        format!("{{\"digest\":\"sha256:{}\",\"state\":\"active\",\"version\":1}}", "0".repeat(64)),
        "{}".to_owned(),
    ] {
        let torn = release(&store, evidence(&authority(actor, &uid), &[&ledger_row], None)).await.unwrap();
        house.world.put(&house.issued, &torn.attempt_key(), &attempt).await;
        assert_eq!(code(store.resolve(&torn, &all_live(), NOW).await), EpCode::PermissionDenied, "{attempt}");
        assert_eq!(
            code(store.confirm(&torn, &ceiling(&["a.>"])).await),
            EpCode::PermissionDenied,
            "{attempt}"
        );
    }

    // Evidence of another reference, and garbled evidence.
    let foreign = authority(actor, &uid);
    let text = String::from_utf8(evidence(&held, &[&ledger_row], None).to_bytes()).unwrap();
    house.world.put(&house.issued, &foreign.evidence_key(), &text).await;
    assert_eq!(code(store.resolve(&foreign, &all_live(), NOW).await), EpCode::PermissionDenied);
    let garbled = authority(actor, &uid);
    house.world.put(&house.issued, &garbled.evidence_key(), "{}").await;
    assert_eq!(code(store.resolve(&garbled, &all_live(), NOW).await), EpCode::Internal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_on_any_key_is_never_absence() {
    let house = House::start().await;
    let store = house.store().await;
    let uid = uid();
    let source = source("alice", &uid);

    let marked = authority("alice", &uid);
    house.world.delete(&house.issued, &marked.evidence_key()).await;
    let staged = store.stage(evidence(&marked, &[&source], None)).await;
    assert_eq!(staged.err().unwrap().code, EpCode::FailedPrecondition);
    assert_eq!(code(store.resolve(&marked, &all_live(), NOW).await), EpCode::FailedPrecondition);

    let held = release(&store, evidence(&authority("alice", &uid), &[&source], None)).await.unwrap();
    house.world.delete(&house.issued, &held.evidence_key()).await;
    assert!(store.resolve(&held, &all_live(), NOW).await.is_ok(), "the first message is what was issued");
    house.world.delete(&house.issued, &held.attempt_key()).await;
    assert_eq!(code(store.resolve(&held, &all_live(), NOW).await), EpCode::FailedPrecondition);
    assert_eq!(code(store.confirm(&held, &ceiling(&["a.>"])).await), EpCode::FailedPrecondition);
    assert_eq!(code(store.retire(&held).await), EpCode::FailedPrecondition);

    let index = authority("alice", &uid).index_key(&source);
    house.world.delete(&house.issued, &index).await;
    assert_eq!(code(store.retire_source(&source).await), EpCode::FailedPrecondition);

    house.world.delete(&house.accepted, &accepted_key(&accepted_token("inbox-nonce-1"))).await;
    let denied = connect(&house.session(), &caller("alice", &uid, "inbox-nonce-1")).await;
    assert_eq!(code(denied), EpCode::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_fails_retires_and_one_that_was_retired_loses() {
    let house = House::start().await;
    let store = house.store().await;
    let uid = uid();
    let source = source("alice", &uid);
    let stage = async |authority: &IssuedAuthorityRef| {
        store.stage(evidence(authority, &[&source], None)).await.unwrap()
    };

    let unsigned = authority("alice", &uid);
    let failed =
        stage(&unsigned).await.release(async { Err::<(), _>(EpError::bad_request("no signer")) }).await;
    assert_eq!(failed.err().unwrap().code, EpCode::BadRequest, "the finalizer's own refusal");
    assert_eq!(house.attempt_state(&unsigned).await, "aborted");

    let raced = authority("alice", &uid);
    let staged = stage(&raced).await;
    let retired = async {
        store.retire(&raced).await.unwrap();
        Ok(())
    };
    assert_eq!(staged.release(retired).await.err().unwrap().code, EpCode::Conflict);
    assert_eq!(house.attempt_state(&raced).await, "aborted");

    // Both fail: the first one's code, both told.
    let connection = house.connection().await;
    let own = IssuedStore::bind(&connection, &house.world.space).await.unwrap();
    let staged = own.stage(evidence(&authority("alice", &uid), &[&source], None)).await.unwrap();
    let failed = staged
        .release(async {
            connection.close().await.unwrap();
            Err::<(), _>(EpError::bad_request("no signer"))
        })
        .await
        .err()
        .unwrap();
    assert_eq!(failed.code, EpCode::BadRequest);
    assert!(
        failed.message.contains("no signer") && failed.message.contains("could not be retired"),
        "{failed}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_confirms_the_same_ceiling_and_no_other() {
    let house = House::start().await;
    let store = house.store().await;
    let uid = uid();
    let held =
        release(&store, evidence(&authority("alice", &uid), &[&source("alice", &uid)], None)).await.unwrap();
    store.confirm(&held, &ceiling(&["a.>"])).await.unwrap();
    for changed in [ceiling(&["a.>", "b"]), ceiling(&[]), ceiling(&["a.*"])] {
        assert_eq!(code(store.confirm(&held, &changed).await), EpCode::FailedPrecondition);
    }
    assert_eq!(
        code(store.confirm(&authority("alice", &uid), &ceiling(&["a.>"])).await),
        EpCode::PermissionDenied
    );
    store.retire(&held).await.unwrap();
    assert_eq!(
        code(store.confirm(&held, &ceiling(&["b"])).await),
        EpCode::PermissionDenied,
        "not active, first"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_live_by_its_row_or_by_its_gate_and_nobody_attests_another() {
    let house = House::start().await;
    let store = house.store().await;
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(dir.path());
    let sources = HostSources::with_ledger(&store, &ledger);
    let (current, other) = (uid(), uid());
    let grant = GrantInput::new(DerivedOwner::parse(OWNER).unwrap(), Actor::parse("alice").unwrap())
        .lifecycle_uid(current.clone());
    assert!(!sources.is_live(&source("alice", &current)).await.unwrap(), "no row");
    ledger.grant_interactive(&grant, &SystemClock, &SystemEntropy).unwrap();
    assert!(sources.is_live(&source("alice", &current)).await.unwrap());
    assert!(!sources.is_live(&source("alice", &other)).await.unwrap(), "a row of another incarnation");
    let elsewhere = HostSources::without_ledger(&store);
    assert_eq!(code(elsewhere.is_live(&source("alice", &current)).await), EpCode::PermissionDenied);

    let gate = SourceRef::static_incarnation(&space(), &current);
    for (state, kind, live) in
        [("open", "", true), ("frozen", "takeover", true), ("retired", "retirement", false)]
    {
        house.world.plant_gate(&current, state, kind).await;
        assert_eq!(elsewhere.is_live(&gate).await.unwrap(), live, "{state}");
    }
    // The row still stands, and dies with the freeze of its retirement all the same.
    for (state, kind, live) in [
        ("open", "", true),
        ("frozen", "takeover", true),
        ("frozen", "retirement", false),
        ("retired", "retirement", false),
    ] {
        house.world.plant_gate(&current, state, kind).await;
        assert_eq!(sources.is_live(&source("alice", &current)).await.unwrap(), live, "{state} {kind}");
    }
    let gone = SourceRef::static_incarnation(&space(), &other);
    assert!(!sources.is_live(&gone).await.unwrap(), "no gate");
    house.world.delete(&house.world.auth, &format!("gate.{other}")).await;
    assert!(!sources.is_live(&gone).await.unwrap(), "a marker");

    let strange = SourceRef::new(&space(), "cotal_records_demo", "lifecycle.o.a").unwrap();
    let foreign = SourceRef::static_incarnation(&SpaceToken::parse("other").unwrap(), &current);
    for unattested in [strange, foreign] {
        assert_eq!(code(sources.is_live(&unattested).await), EpCode::PermissionDenied);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_is_issued_once_and_confirmed_after() {
    let house = House::start().await;
    let session = house.session();
    let (uid, later) = (uid(), uid());
    let alice = caller("alice", &uid, "inbox-nonce-1");
    let first = connect(&session, &alice).await.unwrap();
    assert_eq!(connect(&session, &alice).await.unwrap(), first, "the same generation is pinned");
    let second = connect(&session, &caller("alice", &uid, "inbox-nonce-2")).await.unwrap();
    assert_ne!(second, first, "another nonce is another generation");

    for foreign in [caller("bob", &uid, "inbox-nonce-1"), caller("alice", &later, "inbox-nonce-1")] {
        assert_eq!(code(connect(&session, &foreign).await), EpCode::PermissionDenied);
    }
    let wider = session
        .issue_user_caller(&alice, |issued| {
            let mut wider = mint(&issued);
            wider.publish.allow.push("more.>".to_owned());
            Ok(wider)
        })
        .await;
    assert_eq!(code(wider), EpCode::FailedPrecondition);
    let third = caller("alice", &uid, "inbox-nonce-3");
    let refused =
        session.issue_user_caller(&third, |_| Err(EpError::permission_denied("no such view"))).await;
    assert_eq!(code(refused), EpCode::PermissionDenied);
    assert_eq!(house.messages(&house.accepted, &accepted_key(&accepted_token("inbox-nonce-3"))).await, 0);
    assert_eq!(house.issuer_connections(), (1, 1), "one connection for all of it");

    // Everything that rests on the row ends with it, and the nonces stay taken.
    assert_eq!(retire_lifecycle_issuance(&house.world.connector, &source("alice", &uid)).await.unwrap(), 2);
    assert_eq!(code(connect(&session, &alice).await), EpCode::PermissionDenied);
    assert_eq!(retire_lifecycle_issuance(&house.world.connector, &source("alice", &uid)).await.unwrap(), 2);
    assert_eq!(retire_lifecycle_issuance(&house.world.connector, &source("alice", &later)).await.unwrap(), 0);
    house.issuers_left(1).await;
    assert_eq!(house.issuer_connections().0, 4, "three one-shot connections");
}

/// A caller that is cut off after any of its writes, and comes back under the same nonce, as a restarted service or
/// its replica would have it.
#[tokio::test(flavor = "multi_thread")]
async fn an_issuance_that_is_killed_between_any_two_writes_runs_again() {
    let house = House::start().await;
    for nth in 1..=5 {
        let uid = uid();
        let nonce = format!("inbox-nonce-{nth}");
        let alice = caller("alice", &uid, &nonce);
        let failpoint = Failpoint::stop_after(nth);
        let killed = house.session();
        killed.watch(&failpoint);
        let flight = tokio::spawn({
            let alice = alice.clone();
            async move { connect(&killed, &alice).await }
        });
        failpoint.reached().await;
        flight.abort();
        assert!(flight.await.unwrap_err().is_cancelled());

        let session = house.session();
        let permissions = connect(&session, &alice).await.unwrap();
        let row = house.world.text(&house.accepted, &accepted_key(&accepted_token(&nonce))).await.unwrap();
        let accepted = AcceptedRow::parse(row.as_bytes()).unwrap().authority;
        assert_eq!(
            permissions,
            mint(&Issued { generation: accepted.generation.clone(), accepted: accepted_token(&nonce) })
        );
        assert_eq!(house.attempt_state(&accepted).await, "active");
        assert_eq!(house.messages(&house.accepted, &accepted_key(&accepted_token(&nonce))).await, 1);

        // Whatever the cut left behind ends with the lifecycle: nothing stays active, nothing prepared.
        let source = source("alice", &uid);
        let indexed = if (3..5).contains(&nth) { 2 } else { 1 };
        assert_eq!(
            retire_lifecycle_issuance(&house.world.connector, &source).await.unwrap(),
            indexed,
            "{nth}"
        );
        for key in house.issued.keys(&format!("bysource.v1.{}.>", source.digest())).await.unwrap() {
            let attempt = format!("attempt.v1.{}", key.splitn(4, '.').nth(3).unwrap());
            let state = house.world.json(&house.issued, &attempt).await["state"].clone();
            assert!(state == "aborted" || state == "revoked", "{nth}: {state}");
        }
        assert_eq!(code(connect(&session, &alice).await), EpCode::PermissionDenied);
        session.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retiring_a_source_retires_all_of_it_and_trusts_no_index_row() {
    let house = House::start().await;
    let store = house.store().await;
    let (uid, other) = (uid(), uid());
    let (ours, theirs) = (source("alice", &uid), source("alice", &other));
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(release(&store, evidence(&authority("alice", &uid), &[&ours], None)).await.unwrap());
    }
    let staged = authority("alice", &uid);
    let prepared = store.stage(evidence(&staged, &[&ours], None)).await.unwrap();
    let spared = release(&store, evidence(&authority("alice", &other), &[&theirs], None)).await.unwrap();

    // An index row whose evidence names another source: the rest is retired all the same, and it is told.
    let lying = cotal_wire::rows::IssuedIndex { source: ours.clone(), authority: spared.clone() };
    house.world.put(&house.issued, &lying.key(), &String::from_utf8(lying.to_bytes()).unwrap()).await;
    assert_eq!(code(store.retire_source(&ours).await), EpCode::Internal);
    for authority in &held {
        assert_eq!(house.attempt_state(authority).await, "revoked");
    }
    assert_eq!(house.attempt_state(&staged).await, "aborted");
    assert_eq!(prepared.release(async { Ok(()) }).await.err().unwrap().code, EpCode::Conflict);
    assert_eq!(house.attempt_state(&spared).await, "active");
    assert_eq!(store.retire_source(&theirs).await.unwrap(), 1);

    let foreign = SourceRef::static_incarnation(&SpaceToken::parse("other").unwrap(), &uid);
    assert_eq!(code(store.retire_source(&foreign).await), EpCode::BadRequest);
    assert_eq!(code(store.retire(&authority("alice", &uid)).await), EpCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_is_replaced_without_a_gap_and_each_connection_ends() {
    let house = House::start().await;
    let session = IssuerSession::new(house.world.connector.clone(), Arc::new(SystemEntropy), 5).unwrap();
    let uid = uid();
    let issuing = (0..8).map(|worker| {
        let (session, house, uid) = (&session, &house, &uid);
        async move {
            let mut issued = 0;
            // Until the third connection serves: two replacements were lived through.
            while house.issuer_connections().0 < 3 {
                let nonce = format!("worker-{worker}-{issued}");
                connect(session, &caller("alice", uid, &nonce)).await.unwrap();
                issued += 1;
            }
            issued
        }
    });
    let issued = futures::future::join_all(issuing).await;
    assert!(issued.iter().all(|issued| *issued > 0), "{issued:?}");
    house.issuers_left(1).await;
    session.close().await.unwrap();
    house.issuers_left(0).await;
    assert_eq!(code(connect(&session, &caller("alice", &uid, "too-late-1")).await), EpCode::Unavailable);
}

/// The connection is cut after the broker took a write and before its answer came.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_flight_at_the_loss_is_unavailable_and_never_sent_again() {
    let house = House::start().await;
    let tap = Tap::before(house.world.server.port()).await;
    let connector = house.world.connector_at(tap.url());
    let session = IssuerSession::new(connector, Arc::new(SystemEntropy), 300).unwrap();
    for (nth, (write, bucket, filter)) in [
        ("HPUB $KV.cotal_issued_demo.v1.", &house.issued, "v1.>"),
        ("HPUB $KV.cotal_issued_demo.attempt.v1.", &house.issued, "attempt.v1.>"),
        ("HPUB $KV.cotal_issued_demo.bysource.v1.", &house.issued, "bysource.v1.>"),
        ("HPUB $KV.cotal_accepted_demo.accepted.v1.", &house.accepted, "accepted.v1.>"),
    ]
    .into_iter()
    .enumerate()
    {
        let uid = uid();
        let alice = caller("alice", &uid, &format!("inbox-nonce-{nth}"));
        // The connection is there, so that the tap sees this write and not a dial.
        connect(&session, &caller("alice", &uid, &format!("warm-up-{nth}"))).await.unwrap();
        let before = bucket.keys(filter).await.unwrap();
        tap.stop(write, Stop::Answer);
        let flight = tokio::spawn({
            let (session, alice) = (session.clone(), alice.clone());
            async move { connect(&session, &alice).await }
        });
        tap.reached().await;
        eventually("the broker took the write", async || {
            bucket.keys(filter).await.unwrap().len() > before.len()
        })
        .await;
        tap.cut();
        assert_eq!(code(flight.await.unwrap()), EpCode::Unavailable, "{write}");

        let landed: Vec<_> =
            bucket.keys(filter).await.unwrap().into_iter().filter(|key| !before.contains(key)).collect();
        assert_eq!(landed.len(), 1, "{write}");
        assert_eq!(house.messages(bucket, &landed[0]).await, 1, "{write} was sent again");

        // The next issuance dials a new connection; what landed is what it finds.
        connect(&session, &alice).await.unwrap();
        assert_eq!(house.messages(bucket, &landed[0]).await, 1, "{write} was sent again later");
    }
    session.close().await.unwrap();
    house.issuers_left(0).await;
}

/// The connection is cut after the broker made the attempt active and before its answer came: nobody was handed
/// anything, so the retry takes a generation of its own.
#[tokio::test(flavor = "multi_thread")]
async fn an_activation_in_flight_at_the_loss_is_handed_to_nobody() {
    let house = House::start().await;
    let tap = Tap::before(house.world.server.port()).await;
    let session =
        IssuerSession::new(house.world.connector_at(tap.url()), Arc::new(SystemEntropy), 300).unwrap();
    let uid = uid();
    let alice = caller("alice", &uid, "inbox-nonce-1");
    tap.stop("HPUB $KV.cotal_issued_demo.attempt.v1.", Stop::Before);
    let flight = tokio::spawn({
        let (session, alice) = (session.clone(), alice.clone());
        async move { connect(&session, &alice).await }
    });
    tap.reached().await;
    // The next write of the attempt is the one that makes it active.
    tap.stop("HPUB $KV.cotal_issued_demo.attempt.v1.", Stop::Answer);
    tap.release();
    tap.reached().await;
    let attempts = async || house.issued.keys("attempt.v1.>").await.unwrap();
    eventually("the broker took the activation", async || match attempts().await.as_slice() {
        [attempt] => house.messages(&house.issued, attempt).await == 2,
        _ => false,
    })
    .await;
    tap.cut();
    let refusal = flight.await.unwrap().unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable);
    assert!(refusal.message.contains("could not be retired"), "{refusal}");

    let [lost] = attempts().await.try_into().unwrap();
    connect(&session, &alice).await.unwrap();
    assert_eq!(attempts().await.len(), 2);
    assert_eq!(house.messages(&house.issued, &lost).await, 2, "sent again");
    assert_eq!(retire_lifecycle_issuance(&house.world.connector, &source("alice", &uid)).await.unwrap(), 2);
    assert_eq!(house.world.json(&house.issued, &lost).await["state"], "revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_session_ends_what_is_in_flight_and_everything_after() {
    let house = House::start().await;
    let tap = Tap::before(house.world.server.port()).await;
    let session =
        IssuerSession::new(house.world.connector_at(tap.url()), Arc::new(SystemEntropy), 300).unwrap();
    let uid = uid();
    connect(&session, &caller("alice", &uid, "inbox-nonce-0")).await.unwrap();
    tap.stop("HPUB $KV.cotal_issued_demo.v1.", Stop::Before);
    let flight = tokio::spawn({
        let (session, alice) = (session.clone(), caller("alice", &uid, "inbox-nonce-1"));
        async move { connect(&session, &alice).await }
    });
    tap.reached().await;
    session.close().await.unwrap();
    assert_eq!(code(flight.await.unwrap()), EpCode::Unavailable);
    house.issuers_left(0).await;
    for _ in 0..2 {
        assert_eq!(
            code(connect(&session, &caller("alice", &uid, "inbox-nonce-2")).await),
            EpCode::Unavailable
        );
        session.close().await.unwrap();
    }
    assert_eq!(house.issuer_connections().0, 1, "a closed session dials no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drifted_or_absent_store_issues_nothing() {
    let house = House::start().await;
    let stream = Names::kv_stream(house.issued.name());
    let api = async |verb: &str, body: String| {
        let subject = format!("$JS.API.STREAM.{verb}.{stream}");
        house.world.anything.request(&subject, &[], body.into(), Duration::from_secs(10)).await.unwrap();
    };
    api("DELETE", String::new()).await;
    let denied = connect(&house.session(), &caller("alice", &uid(), "inbox-nonce-1")).await;
    assert_eq!(code(denied), EpCode::FailedPrecondition);
    let retired = retire_lifecycle_issuance(&house.world.connector, &source("alice", &uid())).await;
    assert_eq!(code(retired), EpCode::FailedPrecondition);
    let ran = with_issuer_session(&house.world.connector, async |_| Ok(())).await;
    assert_eq!(code(ran), EpCode::FailedPrecondition);
    house.issuers_left(0).await;
    for ttl in [0, 4, 301] {
        let session = IssuerSession::new(house.world.connector.clone(), Arc::new(SystemEntropy), ttl);
        assert_eq!(session.err().unwrap().code, EpCode::BadRequest, "{ttl}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_shot_window_is_drained_whatever_its_work_came_to() {
    let house = House::start().await;
    let uid = uid();
    let held = authority("alice", &uid);
    let released = with_issuer_session(&house.world.connector, async |store| {
        release(store, evidence(&held, &[&source("alice", &uid)], None)).await
    });
    assert_eq!(released.await.unwrap(), held);
    let failed =
        with_issuer_session(&house.world.connector, async |_| Err::<(), _>(EpError::bad_request("no")));
    assert_eq!(code(failed.await), EpCode::BadRequest);
    house.issuers_left(0).await;
    assert_eq!(house.issuer_connections().0, 2);
    let reads = house.issued.leader_read(&held.attempt_key()).await.unwrap();
    assert!(matches!(reads, LeaderRead::Value(_)));
    let connection = house.connection().await;
    assert!(matches!(*connection.state().borrow(), ConnectionState::Connected(_)));
}
