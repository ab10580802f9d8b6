//! The plane claim over a real broker (contract 05 §8.5, 03 §E and §G).

use std::{sync::Arc, time::Duration};

use cotal_authority::{
    claim_oracle::{ClaimTuples, Verdict},
    failpoint::Failpoint,
    plane_claim::{ClaimRefusal, When},
    scanner::ScannerRole,
    scanner_death::{ScannerDeath, watch_scanners},
};
use cotal_broker::{ConnectionTuple, Lifetime};
use cotal_wire::{EpCode, EpError, rows::PlaneClaim};

use crate::{
    harness::{World, eventually, everything},
    held::{Held, Scripted, barrier},
};

const PLANE: &str = "plane";

fn reason<T>(result: Result<T, EpError>) -> ClaimRefusal {
    let refusal = result.err().expect("it is refused");
    let reason = ClaimRefusal::of(&refusal).unwrap_or_else(|| panic!("{refusal} is no refusal of the claim"));
    assert_eq!(refusal.code, reason.code());
    reason
}

async fn row(world: &World) -> PlaneClaim {
    PlaneClaim::parse(world.text(&world.auth, PLANE).await.unwrap().as_bytes()).unwrap()
}

/// The same row as another process would have left it.
async fn plant(world: &World, row: &PlaneClaim) {
    world.put(&world.auth, PLANE, std::str::from_utf8(&row.to_bytes()).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virgin_key_is_claimed_with_both_connections_pinned() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    let row = row(&world).await;
    assert_eq!(row.generation, 1);
    assert_eq!(&row, held.hold.row());
    for (pinned, connection) in
        [(&row.ledger, held.ledger.connection()), (&row.records, held.records.connection())]
    {
        let tuple = connection.tuple();
        assert_eq!(
            (pinned.server_id(), pinned.cid(), pinned.user_nkey()),
            (tuple.server_id.as_str(), tuple.client_id, &tuple.user_nkey)
        );
    }
    assert!(row.claim_id.starts_with('U') && row.claim_id.len() == 56);
    assert!(row.opened_at.len() == 24 && row.opened_at.ends_with('Z'), "{}", row.opened_at);
    held.hold.assert_held(When::Before).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_claim_is_taken_without_asking_anyone() {
    let world = World::start().await;
    let first = Held::open(&world).await;
    first.close_scanners().await;
    first.hold.release().await.unwrap();
    assert_eq!(row(&world).await, first.hold.row().released());
    let oracle = Scripted::unknown();
    let second = Held::open_asking(&world, &oracle).await.unwrap();
    assert_eq!(second.hold.row().generation, 2);
    assert!(oracle.asked.lock().is_empty());
    assert_eq!(reason(first.hold.assert_held(When::Before).await), ClaimRefusal::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_claim_is_taken_over_only_when_both_its_connections_are_gone() {
    use Verdict::{Gone, Live, Unknown};
    let world = World::start().await;
    let first = Held::open(&world).await;
    let (before, pinned) = (row(&world).await, first.hold.tuples().clone());
    first.crash().await;
    for (ledger, records, complete, refused) in [
        (Live, Gone, true, ClaimRefusal::LivePeer),
        (Gone, Live, true, ClaimRefusal::LivePeer),
        (Unknown, Live, false, ClaimRefusal::LivePeer),
        (Gone, Unknown, true, ClaimRefusal::Unknown),
        (Unknown, Gone, true, ClaimRefusal::Unknown),
        (Gone, Gone, false, ClaimRefusal::Unknown),
        (Unknown, Unknown, false, ClaimRefusal::Unknown),
    ] {
        let oracle = Scripted::says(ledger, records, complete);
        let refusal = Held::open_asking(&world, &oracle).await.err().unwrap();
        assert_eq!(ClaimRefusal::of(&refusal), Some(refused), "{refusal}");
        // Asked about the holder's connections, never about the claimant's own; told in one of two texts.
        assert_eq!(*oracle.asked.lock(), std::slice::from_ref(&pinned));
        assert_eq!(refusal.message.contains("stop"), refused == ClaimRefusal::LivePeer, "{refusal}");
        assert!(refusal.message.contains(pinned.ledger.user_nkey.as_str()), "{refusal}");
        assert_eq!(row(&world).await, before);
    }
    let second = Held::open_asking(&world, &Scripted::gone()).await.unwrap();
    assert_eq!(second.hold.row().generation, 2);
    second.hold.assert_held(When::After).await.unwrap();
    // No loser left a connection behind.
    let open = world.custody.connections().iter().filter(|c| c.label.contains("-scan:") && !c.ended).count();
    assert_eq!(open, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_about_other_connections_is_no_answer() {
    let world = World::start().await;
    let first = Held::open(&world).await;
    let ClaimTuples { ledger, records } = first.hold.tuples().clone();
    first.crash().await;
    let swapped = ClaimTuples { ledger: records, records: ledger };
    for oracle in [Scripted::gone(), Scripted::says(Verdict::Live, Verdict::Live, true)] {
        let opened = Held::open_asking(&world, &oracle.echoing(&swapped)).await;
        assert_eq!(reason(opened), ClaimRefusal::Unknown);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_is_refused_and_never_written_over() {
    let world = World::start().await;
    world.stores().await;
    let valid = {
        let held = Held::open(&world).await;
        held.close_scanners().await;
        String::from_utf8(held.hold.row().released().to_bytes()).unwrap()
    };
    for corrupt in [
        String::new(),
        "{}".to_owned(),
        valid.replace("\"v\":1", "\"v\":2"),
        valid.replace("\"released\"", "\"gone\""),
        valid.replace("\"v\":1", "\"v\":1,\"ttl\":5"),
    ] {
        world.put(&world.auth, PLANE, &corrupt).await;
        assert_eq!(reason(Held::open_asking(&world, &Scripted::gone()).await), ClaimRefusal::Corrupt);
        assert_eq!(world.text(&world.auth, PLANE).await.unwrap(), corrupt);
    }
    world.delete(&world.auth, PLANE).await;
    assert_eq!(reason(Held::open_asking(&world, &Scripted::gone()).await), ClaimRefusal::Corrupt);
    assert_eq!(world.text(&world.auth, PLANE).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_open_at_once_one_wins() {
    let world = World::start().await;
    world.stores().await;
    let live = Scripted::says(Verdict::Live, Verdict::Live, true);
    let opened = futures::future::join_all((0..6).map(|_| Held::open_asking(&world, &live))).await;
    let winners: Vec<_> = opened.iter().filter_map(|held| held.as_ref().ok()).collect();
    assert_eq!(winners.len(), 1);
    winners[0].hold.assert_held(When::Before).await.unwrap();
    for loser in opened.into_iter().filter(Result::is_err) {
        assert_eq!(reason(loser), ClaimRefusal::LivePeer);
    }
}

/// Every read of the loser is followed by another's write: the oracle, which it asks in between, makes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_lost_twice_is_refused_as_concurrent() {
    struct Racing<'a>(&'a World, Scripted);
    #[async_trait::async_trait]
    impl cotal_authority::claim_oracle::ClaimOracle for Racing<'_> {
        async fn observe(&self, tuples: &ClaimTuples) -> cotal_authority::claim_oracle::ClaimObservation {
            let moved = PlaneClaim { generation: row(self.0).await.generation + 1, ..row(self.0).await };
            plant(self.0, &moved).await;
            self.1.observe(tuples).await
        }
    }
    let world = World::start().await;
    let first = Held::open(&world).await;
    first.crash().await;
    let racing = Racing(&world, Scripted::gone());
    assert_eq!(reason(Held::open_asking(&world, &racing).await), ClaimRefusal::Concurrent);
    assert_eq!(racing.1.asked.lock().len(), 2);
    assert_eq!(row(&world).await.generation, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_write_was_not_answered_is_unavailable_and_taken_over_later() {
    let world = World::start().await;
    world.stores().await;
    let stores = barrier(&world).await;
    Failpoint::forget_answer_of(1).arm(&stores);
    let refusal = Held::over(stores, &world, &Scripted::unknown()).await.err().unwrap();
    assert_eq!((refusal.code, ClaimRefusal::of(&refusal)), (EpCode::Unavailable, None), "{refusal}");
    // It had landed, and its connections are closed.
    assert_eq!(row(&world).await.generation, 1);
    let next = Held::open_asking(&world, &Scripted::gone()).await.unwrap();
    assert_eq!(next.hold.row().generation, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_refuses_fenced_then_released_then_lost() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    let own = held.hold.row().clone();
    for lost in [
        PlaneClaim { generation: 2, ..own.clone() },
        PlaneClaim { claim_id: "another".to_owned(), ..own.clone() },
        PlaneClaim { ledger: own.records.clone(), ..own.clone() },
        PlaneClaim { records: own.ledger.clone(), ..own.clone() },
        own.released(),
    ] {
        plant(&world, &lost).await;
        for when in [When::Before, When::After] {
            assert_eq!(reason(held.hold.assert_held(when).await), ClaimRefusal::Lost);
        }
    }
    world.put(&world.auth, PLANE, "garbled").await;
    assert_eq!(reason(held.hold.assert_held(When::Before).await), ClaimRefusal::Lost);
    world.delete(&world.auth, PLANE).await;
    assert_eq!(reason(held.hold.assert_held(When::Before).await), ClaimRefusal::Lost);
    // A release that fails has begun all the same.
    assert_eq!(reason(held.hold.release().await), ClaimRefusal::Lost);
    assert_eq!(reason(held.hold.assert_held(When::Before).await), ClaimRefusal::Released);
    held.hold.fence("first");
    held.hold.fence("second");
    let refusal = held.hold.assert_held(When::Before).await.unwrap_err();
    assert_eq!((ClaimRefusal::of(&refusal), refusal.message.as_str()), (Some(ClaimRefusal::Fenced), "first"));
    plant(&world, &own).await;
    assert_eq!(reason(held.hold.assert_held(When::Before).await), ClaimRefusal::Fenced);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_one_flight_and_releases_once() {
    let world = World::start().await;
    world.stores().await;
    let stores = barrier(&world).await;
    let journal = Failpoint::journal();
    journal.arm(&stores);
    let held = Held::over(stores, &world, &Scripted::unknown()).await.unwrap();
    let releases = (0..8).map(|_| {
        let hold = held.hold.clone();
        tokio::spawn(async move { hold.release().await })
    });
    for release in futures::future::join_all(releases).await {
        release.unwrap().unwrap();
    }
    held.hold.release().await.unwrap();
    assert_eq!(journal.landed(), [PLANE, PLANE]);
    assert_eq!(row(&world).await, held.hold.row().released());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_never_writes_over_another_claim() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    let other = PlaneClaim { generation: 2, claim_id: "another".to_owned(), ..held.hold.row().clone() };
    for other in [other.clone(), other.released()] {
        plant(&world, &other).await;
        assert_eq!(reason(held.hold.release().await), ClaimRefusal::Lost);
        assert_eq!(row(&world).await, other);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_did_not_reach_the_store_is_retried() {
    let mut world = World::start().await;
    let held = Held::open(&world).await;
    world.server.kill();
    assert_eq!(reason(held.hold.release().await), ClaimRefusal::ReleaseUnreachable);
    assert_eq!(reason(held.hold.assert_held(When::Before).await), ClaimRefusal::Released);
    world.server.start_again().await;
    eventually("the release lands", async || match held.hold.release().await {
        Ok(()) => true,
        Err(refusal) => {
            assert_eq!(ClaimRefusal::of(&refusal), Some(ClaimRefusal::ReleaseUnreachable), "{refusal}");
            false
        }
    })
    .await;
    assert_eq!(row(&world).await, held.hold.row().released());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_was_lost_is_found_done_by_the_retry() {
    let world = World::start().await;
    world.stores().await;
    let stores = barrier(&world).await;
    let failpoint = Failpoint::forget_answer_of(2);
    failpoint.arm(&stores);
    let held = Held::over(stores, &world, &Scripted::unknown()).await.unwrap();
    assert_eq!(reason(held.hold.release().await), ClaimRefusal::ReleaseUnreachable);
    held.hold.release().await.unwrap();
    assert_eq!(failpoint.landed(), [PLANE, PLANE]);
}

/// The flight is the process's, not its first caller's.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_goes_on_when_its_caller_is_gone() {
    let world = World::start().await;
    world.stores().await;
    let stores = barrier(&world).await;
    let failpoint = Failpoint::stop_after(2);
    failpoint.arm(&stores);
    let held = Held::over(stores, &world, &Scripted::unknown()).await.unwrap();
    let hold = Arc::clone(&held.hold);
    let caller = tokio::spawn(async move { hold.release().await });
    failpoint.reached().await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    failpoint.release();
    held.hold.release().await.unwrap();
    assert_eq!(failpoint.landed(), [PLANE, PLANE]);
}

/// What a plane was told of a death.
type Told = Arc<parking_lot::Mutex<Vec<ScannerDeath>>>;

fn watch(held: &Held, closing: bool) -> (Told, tokio::task::JoinHandle<()>) {
    let told = Told::default();
    let tell = told.clone();
    let watching = watch_scanners(
        held.hold.clone(),
        held.ledger.connection().clone(),
        held.records.connection().clone(),
        move || closing,
        move |death| tell.lock().push(death.clone()),
    );
    (told, watching)
}

/// Has the broker end one connection.
async fn kick(world: &World, tuple: &ConnectionTuple) {
    let sys = world.sys.open("cotal:test:sys".to_owned(), &everything, Lifetime::Renewing).await.unwrap();
    let request = format!("{{\"cid\":{}}}", tuple.client_id);
    let subject = format!("$SYS.REQ.SERVER.{}.KICK", tuple.server_id);
    sys.request(&subject, &[], request.into(), Duration::from_secs(5)).await.unwrap();
    sys.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scanner_that_ends_fences_the_claim_and_takes_its_sibling_with_it() {
    for role in [ScannerRole::Ledger, ScannerRole::Records] {
        let world = World::start().await;
        let held = Held::open(&world).await;
        let (told, watching) = watch(&held, false);
        let (dying, sibling) = match role {
            ScannerRole::Ledger => (held.ledger.connection(), held.records.connection()),
            ScannerRole::Records => (held.records.connection(), held.ledger.connection()),
        };
        kick(&world, dying.tuple()).await;
        watching.await.unwrap();
        let told = told.lock().clone();
        assert_eq!(
            told.iter().map(|death| (death.role, death.while_closing)).collect::<Vec<_>>(),
            [(role, false)]
        );
        sibling.gone().await;
        let refusal = held.hold.assert_held(When::Before).await.unwrap_err();
        assert_eq!(
            (ClaimRefusal::of(&refusal), &refusal.message),
            (Some(ClaimRefusal::Fenced), &told[0].copy)
        );
        assert_eq!(held.ledger.sessions().await.unwrap_err(), refusal);
        // The broker and the barrier are there: the row is released all the same.
        held.hold.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scanner_that_is_closed_by_its_own_plane_is_no_death() {
    let world = World::start().await;
    let held = Held::open(&world).await;
    let (told, watching) = watch(&held, true);
    held.records.connection().close().await.unwrap();
    watching.await.unwrap();
    assert!(told.lock()[0].while_closing);
    assert_eq!(held.hold.fenced(), None);
    held.ledger.sessions().await.unwrap();
}

/// The end of the broker's whole machine: neither scanner comes back with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_scanner_never_reconnects() {
    let mut world = World::start().await;
    let held = Held::open(&world).await;
    let (told, watching) = watch(&held, false);
    world.server.restart().await;
    watching.await.unwrap();
    assert_eq!(told.lock().len(), 1);
    held.ledger.connection().gone().await;
    held.records.connection().gone().await;
    assert_eq!(held.ledger.sessions().await.unwrap_err().message, told.lock()[0].copy);
}
