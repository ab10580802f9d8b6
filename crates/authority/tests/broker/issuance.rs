//! Native issuance rows and the plane that prunes them, over a real broker (contract 05 §8.2, §8.4, §8.9, §8.10).

use std::time::Duration;

use crate::{
    harness::{OWNER, TestClock, World, assert_garbled, bearer, code, eventually, uid},
    plane::open,
};
use cotal_authority::{IssuanceLog, NatkeyRow, plane_claim::ClaimRefusal};
use cotal_broker::{Subscription, kv::LeaderRead};
use cotal_trust::system::SystemClock;
use cotal_wire::{Actor, Clock, CredentialId, DerivedOwner, EpCode, Nkey, Space, UnixSecs};
use futures::{StreamExt, stream};

const NOW: u64 = 1_700_000_000;

fn row(n: u32, exp: u64) -> NatkeyRow {
    // The digits of an nkey are A-Z and 2-7.
    let digits: String = format!("{n:05}").bytes().map(|digit| char::from(digit - b'0' + b'A')).collect();
    NatkeyRow {
        user: Nkey::parse(&format!("U{}{digits}", "A".repeat(50))).unwrap(),
        space: Space::parse("demo").unwrap(),
        owner: DerivedOwner::parse(OWNER).unwrap(),
        actor: Actor::parse("alice").unwrap(),
        lifecycle_uid: uid(),
        credential_id: CredentialId::parse("c1").unwrap(),
        view: None,
        iat: UnixSecs(exp - 900),
        exp: UnixSecs(exp),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_created_once_and_its_marker_keeps_the_key_burned() {
    let world = World::start().await;
    let clock = TestClock::at(NOW);
    let log = IssuanceLog::new(world.stores().await, clock.clone());
    let row = row(1, NOW + 900);
    log.record(&row).await.unwrap();
    assert_eq!(
        world.text(&world.auth, &row.key()).await.unwrap(),
        format!(
            "{{\"v\":1,\"space\":\"demo\",\"owner\":\"{OWNER}\",\"actor\":\"alice\",\"lifecycleUid\":\"{}\",\
             \"credentialId\":\"c1\",\"view\":null,\"iat\":{NOW},\"exp\":{}}}",
            row.lifecycle_uid,
            NOW + 900
        )
    );
    assert_eq!(code(log.record(&row).await), EpCode::Conflict);
    let subject = format!("$KV.{}.natkey.>", world.auth.name());
    let mut purges = world.anything.subscribe(&subject, None).await.unwrap();
    world.anything.flush().await.unwrap();
    clock.set(NOW + 906);
    assert_eq!(log.prune().await.unwrap(), 1);
    let purge = purges.next().await.unwrap();
    assert_eq!(purge.header("KV-Operation"), Some("PURGE"));
    assert_eq!(purge.header("Nats-TTL"), Some("3600s"), "the marker goes by itself");
    assert!(matches!(world.auth.leader_read(&row.key()).await.unwrap(), LeaderRead::Marker(_)));
    assert_eq!(code(log.record(&row).await), EpCode::Conflict, "a marker loses too");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_only_records_remembers_no_row_and_the_one_that_prunes_finds_it() {
    let world = World::start().await;
    let clock = TestClock::at(NOW);
    let recorder = IssuanceLog::recording(world.stores().await, clock.clone());
    let pruner = IssuanceLog::new(world.stores().await, clock.clone());
    record(&recorder, (1..=3).map(|n| row(n, NOW + 900))).await;
    assert_eq!(recorder.live_rows(), 0);
    pruner.discover().await.unwrap();
    assert_eq!(pruner.live_rows(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_removes_what_is_over_and_only_that() {
    let world = World::start().await;
    let clock = TestClock::at(NOW);
    let writer = IssuanceLog::new(world.stores().await, clock.clone());
    let (early, late) = (row(1, NOW + 10), row(2, NOW + 20));
    writer.record(&early).await.unwrap();
    writer.record(&late).await.unwrap();
    // One log that wrote them and one, as of another process, that has to read them, come to the same.
    let other = IssuanceLog::new(world.stores().await, clock.clone());
    clock.set(NOW + 15);
    assert_eq!(other.prune().await.unwrap(), 0, "exp + 5 s has not passed");
    clock.set(NOW + 16);
    assert_eq!(other.prune().await.unwrap(), 1);
    assert_eq!(writer.prune().await.unwrap(), 0, "the other process was first");
    assert_eq!(writer.prune().await.unwrap(), 0);
    assert!(world.text(&world.auth, &late.key()).await.is_some());
    clock.set(NOW + 26);
    assert_eq!(writer.prune().await.unwrap(), 1);
    assert_eq!(other.prune().await.unwrap(), 0);
}

/// Counts the leader reads that anybody asks for.
struct Reads(Subscription);

impl Reads {
    async fn watch(world: &World) -> Self {
        let reads = world.anything.subscribe("$JS.API.STREAM.MSG.GET.>", None).await.unwrap();
        world.anything.flush().await.unwrap();
        Self(reads)
    }

    /// How many since the last count: up to a read of this test's own.
    async fn count(&mut self, world: &World) -> usize {
        world.auth.leader_read("end").await.unwrap();
        let mut asked = 0;
        while !String::from_utf8_lossy(&self.0.next().await.unwrap().payload).contains("auth_demo.end") {
            asked += 1;
        }
        asked
    }
}

async fn record(log: &IssuanceLog, rows: impl Iterator<Item = NatkeyRow>) {
    stream::iter(rows).for_each_concurrent(32, async |row| log.record(&row).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_never_reads_a_row_of_its_own_and_no_row_twice() {
    const OWN: u32 = 5_000;
    const FOREIGN: u32 = 50;
    let world = World::start().await;
    let clock = TestClock::at(NOW);
    let (mine, theirs) = (
        IssuanceLog::new(world.stores().await, clock.clone()),
        IssuanceLog::new(world.stores().await, clock.clone()),
    );
    let mut reads = Reads::watch(&world).await;
    let exp = |n: u32| NOW + u64::from(n % 10);
    // Half of the own rows first, so that the foreign ones lie in their midst.
    record(&mine, (0..OWN / 2).map(|n| row(n, exp(n)))).await;
    record(&theirs, (OWN..OWN + FOREIGN).map(|n| row(n, exp(n)))).await;
    record(&mine, (OWN / 2..OWN).map(|n| row(n, exp(n)))).await;
    assert_eq!(mine.prune().await.unwrap(), 0);
    assert_eq!(mine.live_rows(), (OWN + FOREIGN) as usize);
    assert_eq!(reads.count(&world).await, FOREIGN as usize, "only what another process wrote");

    clock.set(NOW + 10);
    assert_eq!(mine.prune().await.unwrap(), (OWN + FOREIGN) as usize / 2);
    assert_eq!(mine.live_rows(), (OWN + FOREIGN) as usize / 2, "nothing is remembered of a purged row");
    assert_eq!(mine.prune().await.unwrap(), 0);
    clock.set(NOW + 1000);
    assert_eq!(mine.prune().await.unwrap(), (OWN + FOREIGN) as usize / 2);
    assert_eq!(mine.prune().await.unwrap(), 0);
    assert_eq!(mine.live_rows(), 0);
    assert_eq!(reads.count(&world).await, 0, "each is read once, and an own marker never");
    assert_eq!(world.auth.keys("natkey.>").await.unwrap().len(), (OWN + FOREIGN) as usize);
    assert!(matches!(world.auth.leader_read(&row(OWN, exp(OWN)).key()).await, Ok(LeaderRead::Marker(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_midst_learns_every_row_that_is_left() {
    const ROWS: u32 = 3_000;
    let world = World::start().await;
    let clock = TestClock::at(NOW);
    let before = IssuanceLog::new(world.stores().await, clock.clone());
    record(&before, (0..ROWS).map(|n| row(n, NOW + u64::from(n % 30)))).await;
    clock.set(NOW + 15);
    assert_eq!(before.prune().await.unwrap(), ROWS as usize / 3);
    // Cut off in the midst of another prune.
    clock.set(NOW + 25);
    let cut = tokio::time::timeout(Duration::from_millis(30), before.prune()).await;
    let left = before.live_rows();
    drop(before);

    let mut reads = Reads::watch(&world).await;
    let after = IssuanceLog::new(world.stores().await, clock.clone());
    after.discover().await.unwrap();
    assert!(after.live_rows() <= left, "{} of {left}; cut off: {}", after.live_rows(), cut.is_err());
    assert!(after.live_rows() >= ROWS as usize / 3);
    let asked = reads.count(&world).await;
    assert!(asked <= ROWS as usize + 100, "{asked} reads of {ROWS} rows and markers");
    clock.set(NOW + 1000);
    let rest = after.live_rows();
    // A purge that was in flight at the cut may have landed since.
    assert!(after.prune().await.unwrap() <= rest);
    for n in 0..ROWS {
        let key = row(n, NOW + 30).key();
        assert!(matches!(world.auth.leader_read(&key).await.unwrap(), LeaderRead::Marker(_)), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_another_process_moved_is_read_once_more() {
    let world = World::start().await;
    let clock = TestClock::at(NOW);
    let (log, other) = (
        IssuanceLog::new(world.stores().await, clock.clone()),
        IssuanceLog::new(world.stores().await, clock.clone()),
    );
    let (purged, corrupted, renewed) = (row(1, NOW), row(2, NOW + 1), row(3, NOW + 2));
    for row in [&purged, &corrupted, &renewed] {
        log.record(row).await.unwrap();
    }
    log.discover().await.unwrap();
    clock.set(NOW + 6);
    assert_eq!(other.prune().await.unwrap(), 1);
    assert_eq!(log.prune().await.unwrap(), 0, "purged already");
    assert_eq!(log.live_rows(), 2);
    let later = NatkeyRow { exp: UnixSecs(NOW + 100), ..renewed.clone() };
    world.put(&world.auth, &renewed.key(), std::str::from_utf8(&later.to_bytes()).unwrap()).await;
    clock.set(NOW + 8);
    assert_eq!(log.prune().await.unwrap(), 1, "the one that nobody moved");
    assert_eq!(log.live_rows(), 1, "at its new revision");
    clock.set(NOW + 106);
    assert_eq!(log.prune().await.unwrap(), 1);
    world.put(&world.auth, &corrupted.key(), "{}").await;
    assert_garbled(log.prune().await, &corrupted.key());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_that_opens_purges_what_is_due_after_it_is_ready() {
    let world = World::start().await;
    let log = IssuanceLog::new(world.stores().await, TestClock::at(NOW));
    log.record(&row(1, NOW)).await.unwrap();
    let plane = open(&world, Duration::from_secs(3600)).await.unwrap();
    eventually("the row is pruned", async || {
        matches!(world.auth.leader_read(&row(1, NOW).key()).await, Ok(LeaderRead::Marker(_)))
    })
    .await;
    plane.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_row_fails_the_prune() {
    let world = World::start().await;
    let log = IssuanceLog::new(world.stores().await, TestClock::at(NOW));
    let good = row(1, NOW);
    for corrupt in ["", "{}", "not json"] {
        world.put(&world.auth, &good.key(), corrupt).await;
        assert_garbled(log.prune().await, &good.key());
    }
    let foreign = NatkeyRow { space: Space::parse("other").unwrap(), ..good.clone() };
    world.put(&world.auth, &good.key(), std::str::from_utf8(&foreign.to_bytes()).unwrap()).await;
    assert_garbled(log.prune().await, &good.key());
    world.delete(&world.auth, &good.key()).await;
    assert_eq!(log.prune().await.unwrap(), 0);
    world.put(&world.auth, "natkey.x", "{}").await;
    assert_garbled(log.prune().await, "natkey.x");
    world.delete(&world.auth, "natkey.x").await;
    assert_eq!(log.prune().await.unwrap(), 0, "a marker mends it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_mints_authorizes_and_refuses_once_closed() {
    let world = World::start().await;
    let plane = open(&world, Duration::from_secs(60)).await.unwrap();
    let (owner, alice) = (DerivedOwner::parse(OWNER).unwrap(), Actor::parse("alice").unwrap());
    let incarnation = uid();
    let root = plane.mint_connect_credential(&owner, &alice, &incarnation).await.unwrap();
    let claims = bearer("alice", Some(&incarnation), Some(root.as_str()));
    plane.reader().authorize_connect(&claims).await.unwrap();
    let exp = SystemClock.now_secs().0 + 900;
    plane.issuance().record(&row(1, exp)).await.unwrap();
    let head = world.json(&world.records, &format!("lifecycle.{OWNER}.alice")).await;
    assert_eq!(head["managerInstance"], "auth-service:demo");

    plane.close().await.unwrap();
    plane.close().await.unwrap();
    let refusals = [
        code(plane.mint_connect_credential(&owner, &alice, &incarnation).await),
        code(plane.reader().authorize_connect(&claims).await),
        code(plane.issuance().record(&row(2, exp)).await),
    ];
    assert_eq!(refusals, [EpCode::Unavailable; 3]);
    eventually("only this test's own connection is left", async || {
        world.custody.connections().iter().all(|owned| owned.ended != (owned.label == "cotal:test:demo"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_row_at_boot_fails_the_open_and_unwinds_it() {
    let world = World::start().await;
    let _provisioned = world.stores().await;
    world.put(&world.auth, &row(1, NOW).key(), "{}").await;
    let refusal = open(&world, Duration::from_secs(60)).await.err().unwrap();
    assert_eq!(refusal.code, EpCode::Internal);
    let says = format!("native-issuance cleanup failed: {}: ", row(1, NOW).key());
    assert!(refusal.message.starts_with(&says), "{refusal}");
    eventually("the reader that was opened is closed", async || {
        world.custody.connections().iter().any(|owned| owned.label == "cotal:auth-reader:demo" && owned.ended)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_row_later_fences_the_plane_and_everything_it_handed_out() {
    let world = World::start().await;
    let plane = open(&world, Duration::from_millis(50)).await.unwrap();
    world.put(&world.auth, &row(1, NOW).key(), "{}").await;
    let reason = plane.fenced().await;
    assert!(reason.starts_with("native-issuance cleanup failed: "), "{reason}");
    assert_eq!(plane.fenced().await, reason, "the first reason stays");
    let (owner, alice) = (DerivedOwner::parse(OWNER).unwrap(), Actor::parse("alice").unwrap());
    let claims = bearer("alice", Some(&uid()), Some("c1"));
    let refusals = [
        code(plane.mint_connect_credential(&owner, &alice, &uid()).await),
        code(plane.reader().authorize_connect(&claims).await),
        code(plane.issuance().record(&row(2, NOW)).await),
    ];
    assert_eq!(refusals, [EpCode::Unavailable; 3]);
    plane.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prune_timer_runs_again_after_a_success_and_ends_with_the_plane() {
    let mut world = World::start().await;
    let plane = open(&world, Duration::from_millis(50)).await.unwrap();
    for n in 1..=2 {
        plane.issuance().record(&row(n, NOW)).await.unwrap();
        eventually("the row is pruned", async || {
            matches!(world.auth.leader_read(&row(n, NOW).key()).await, Ok(LeaderRead::Marker(_)))
        })
        .await;
    }
    plane.check_open().unwrap();
    // A restart takes the scanners, and with them the plane (contract 03 §E): nothing is pruned for it any more.
    world.server.restart().await;
    assert!(plane.fenced().await.contains("scanner connection"));
    assert_eq!(code(plane.issuance().record(&row(3, NOW)).await), EpCode::Unavailable);
    eventually("the plane closes", async || plane.close().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_that_gets_no_answer_for_a_moment_is_run_again() {
    let world = World::start().await;
    let plane = open(&world, Duration::from_millis(50)).await.unwrap();
    let stream = format!("KV_{}", world.auth.name());
    let mut prunes = world.anything.subscribe(&format!("$JS.API.STREAM.INFO.{stream}"), None).await.unwrap();
    let gone = format!("$JS.API.STREAM.DELETE.{stream}");
    world.anything.request(&gone, &[], Vec::new().into(), Duration::from_secs(10)).await.unwrap();
    for _ in 0..2 {
        // The second of two that follow the deletion proves that the first was unanswered and did no harm.
        prunes.next().await.unwrap();
    }
    let _provisioned_again = world.stores().await;
    plane.issuance().record(&row(1, NOW)).await.unwrap();
    eventually("the row is pruned", async || {
        matches!(world.auth.leader_read(&row(1, NOW).key()).await, Ok(LeaderRead::Marker(_)))
    })
    .await;
    let fenced = tokio::time::timeout(Duration::ZERO, plane.fenced()).await;
    assert!(fenced.is_err(), "fenced: {fenced:?}");
    // The claim went with the stream.
    let refusal = plane.close().await.unwrap_err();
    assert_eq!(ClaimRefusal::of(&refusal), Some(ClaimRefusal::Lost), "{refusal}");
}
