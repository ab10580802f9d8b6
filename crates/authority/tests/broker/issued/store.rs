//! Issuances: staged, released, confirmed and retired, and what none of these takes for granted.

use cotal_authority::{
    failpoint::Failpoint,
    issued::{HostSources, IssuedStore, SourceLiveness as _},
};
use cotal_ledger::{GrantInput, Ledger};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, DerivedOwner, EpCode, EpError, SpaceToken, UnixSecs,
    names::accepted_key,
    rows::{AcceptedRow, AttemptState, IssuedAuthorityRef, IssuedIndex, SourceRef},
};

use super::{
    House, Says, accepted_token, all_live, authority, caller, ceiling, connect, evidence, release, source,
    space,
};
use crate::harness::{OWNER, code, uid};

/// When everything is asked that is asked about a time.
const NOW: UnixSecs = UnixSecs(1_700_000_000);

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
    let lying = IssuedIndex { source: ours.clone(), authority: spared.clone() };
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
