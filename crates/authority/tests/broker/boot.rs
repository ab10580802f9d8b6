//! What the boot ends of an earlier run (contract 07 §4.6, §6.6; 05 §8.8).

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cotal_authority::{
    barrier::BarrierDeps,
    failpoint::Failpoint,
    intents::{BootResume, resume_owed},
    past::RememberPast,
    retire::retire,
    takeover::take_over,
};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{EpCode, LifecycleUid, Names, OpId};
use futures::StreamExt as _;

use crate::{
    harness::{OWNER, assert_garbled, code, principal, uid},
    held::{Held, Scripted},
    rig::{Rig, an_op, held_by},
};

/// Longer than any boot here takes.
const LONG: Duration = Duration::from_secs(600);

fn takeover(actor: &str, uid: &LifecycleUid) -> String {
    format!(
        "{{\"kind\":\"takeover\",\"lifecycleUid\":\"{uid}\",\"owner\":\"{OWNER}\",\"actor\":\"{actor}\",\"fromEpoch\":1,\
         \"fromGeneration\":1}}"
    )
}

fn retirement(actor: &str, uid: &LifecycleUid) -> String {
    format!(
        "{{\"kind\":\"retirement\",\"lifecycleUid\":\"{uid}\",\"owner\":\"{OWNER}\",\"actor\":\"{actor}\",\
         \"fromGeneration\":1,\"frontierStreams\":[]}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_boot_ends_what_is_owed_and_leaves_the_rest() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    assert_eq!(resume_owed(&deps, None, LONG).await.unwrap(), BootResume::default());

    // Done, both kinds.
    for (actor, kind) in [("tdone", "takeover"), ("rdone", "retirement")] {
        let (uid, op) = (uid(), OpId::mint(&SystemEntropy));
        rig.plant(actor, &uid).await;
        match kind {
            "takeover" => drop(take_over(&deps, &op, &principal(actor), &uid).await.unwrap()),
            _ => drop(retire(&deps, &op, &principal(actor), &uid).await.unwrap()),
        }
    }
    // Owed: frozen under the operation.
    let (took, ended) = (uid(), uid());
    rig.plant("took", &took).await;
    rig.plant_intent(&an_op('a'), &takeover("took", &took)).await;
    rig.plant_gate(&took, 1, "frozen", &held_by(&an_op('a'), "takeover")).await;
    rig.plant("ended", &ended).await;
    rig.plant_intent(&an_op('b'), &retirement("ended", &ended)).await;
    rig.plant_gate(&ended, 1, "frozen", &held_by(&an_op('b'), "retirement")).await;
    // Owed: the gate is final, the head is not.
    let last = uid();
    rig.plant_intent(&an_op('c'), &retirement("last", &last)).await;
    rig.plant_gate(&last, 1, "retired", &held_by(&an_op('c'), "retirement")).await;
    let retiring =
        format!("\"state\":\"retiring\",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", an_op('c'));
    rig.plant_head("last", &last, 1, &retiring).await;
    let record = format!("{{\"lifecycleUid\":\"{last}\",\"opId\":\"{}\",\"streams\":{{}}}}", an_op('c'));
    rig.world.put(&rig.world.records, &format!("frontier.{last}"), &record).await;
    // Owed, and cannot be ended: the head is gone.
    let lost = uid();
    rig.plant_intent(&an_op('d'), &retirement("lost", &lost)).await;
    rig.plant_gate(&lost, 1, "retired", &held_by(&an_op('d'), "retirement")).await;
    // Nobody can say: the gate is garbled.
    let dark = uid();
    rig.plant_intent(&an_op('e'), &takeover("dark", &dark)).await;
    rig.world.put(&rig.world.auth, &format!("gate.{dark}"), "{}").await;
    // Not owed: never began, held by another, replaced by a successor.
    let idle = uid();
    rig.plant("idle", &idle).await;
    rig.plant_intent(&an_op('f'), &takeover("idle", &idle)).await;
    let foreign = uid();
    rig.plant_intent(&an_op('g'), &takeover("foreign", &foreign)).await;
    rig.plant_gate(&foreign, 1, "frozen", &held_by(&an_op('x'), "takeover")).await;
    let replaced = uid();
    rig.plant_intent(&an_op('h'), &retirement("replaced", &replaced)).await;
    rig.plant_gate(&replaced, 1, "retired", &held_by(&an_op('h'), "retirement")).await;
    rig.plant_head("replaced", &uid(), 1, "\"state\":\"active\"").await;
    // A session's pin is no operation.
    rig.world.put(&rig.world.auth, "stage.session.s1.c", "{}").await;

    let outcome = resume_owed(&deps, None, LONG).await.unwrap();
    assert_eq!(outcome.resumed, [an_op('a'), an_op('b'), an_op('c')]);
    let failed: Vec<_> = outcome.failed.iter().map(|(op, refusal)| (op.clone(), refusal.code)).collect();
    assert_eq!(failed, [(an_op('e'), EpCode::Internal), (an_op('d'), EpCode::Internal)]);
    assert_eq!(outcome.skipped, 5);
    assert_eq!(rig.head("took").await["processEpoch"], 2);
    assert_eq!(rig.head("ended").await["state"], "retired");
    assert_eq!(rig.head("last").await["state"], "retired");
    assert_eq!(rig.gate(&idle).await["state"], "open");

    let again = resume_owed(&deps, None, LONG).await.unwrap();
    assert_eq!((again.resumed.len(), again.failed.len(), again.skipped), (0, 2, 8));
}

/// Two takeovers that an earlier run left behind their gates, of `first` and of `second`.
async fn plant_two_owed(rig: &Rig) {
    for (actor, op) in [("first", an_op('a')), ("second", an_op('b'))] {
        let uid = uid();
        rig.plant(actor, &uid).await;
        rig.plant_intent(&op, &takeover(actor, &uid)).await;
        rig.plant_gate(&uid, 1, "frozen", &held_by(&op, "takeover")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_operation_that_cannot_be_ended_does_not_keep_the_next_from_ending() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    plant_two_owed(&rig).await;
    rig.evictor.cannot_evict(&[&format!("{OWNER}.first")]);
    let outcome = resume_owed(&deps, None, LONG).await.unwrap();
    assert_eq!(outcome.resumed, [an_op('b')]);
    assert_eq!((&outcome.failed[0].0, outcome.failed[0].1.code), (&an_op('a'), EpCode::Unavailable));
    rig.evictor.cannot_evict(&[]);
    assert_eq!(resume_owed(&deps, None, LONG).await.unwrap().resumed, [an_op('a')]);
}

/// Whoever waits for the plane to serve does not wait for every eviction of an earlier run.
#[tokio::test(flavor = "multi_thread")]
async fn a_boot_whose_time_is_over_begins_nothing_and_owes_it() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    plant_two_owed(&rig).await;
    let outcome = resume_owed(&deps, None, Duration::ZERO).await.unwrap();
    let owed: Vec<_> = outcome.owed.iter().map(|owed| owed.op.clone()).collect();
    assert_eq!((owed, outcome.resumed), (vec![an_op('a'), an_op('b')], vec![]));
    assert!(rig.evictor.asked().is_empty());
    assert_eq!(resume_owed(&deps, None, LONG).await.unwrap().resumed, [an_op('a'), an_op('b')]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_that_cannot_be_read_fails_the_boot() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let (uid, key) = (uid(), format!("stage.{}", an_op('a')));
    for bad in ["{}".to_owned(), "[".to_owned(), takeover("a", &uid).replace("takeover", "registration")] {
        rig.world.put(&rig.world.auth, &key, &bad).await;
        assert_garbled(resume_owed(&deps, None, LONG).await, &key);
    }
    rig.world.delete(&rig.world.auth, &key).await;
    assert_eq!(code(resume_owed(&deps, None, LONG).await), EpCode::FailedPrecondition);
    rig.world.put(&rig.world.auth, &key, &takeover("a", &uid)).await;
    rig.world.put(&rig.world.auth, "stage.short", &takeover("a", &uid)).await;
    assert_garbled(resume_owed(&deps, None, LONG).await, "stage.short");
}

/// A note in memory.
#[derive(Default)]
pub(crate) struct Kept(parking_lot::Mutex<Option<Vec<u8>>>);

#[async_trait::async_trait]
impl RememberPast for Kept {
    async fn load(&self) -> Option<Vec<u8>> {
        self.0.lock().clone()
    }

    async fn save(&self, note: Vec<u8>) {
        *self.0.lock() = Some(note);
    }
}

impl Kept {
    pub(crate) fn note(&self) -> Option<String> {
        self.0.lock().clone().map(|note| String::from_utf8(note).unwrap())
    }

    fn alter(&self, from: &str, to: &str) {
        let mut note = self.0.lock();
        let was = String::from_utf8(note.take().unwrap()).unwrap();
        assert!(was.contains(from), "{was}");
        *note = Some(was.replace(from, to).into_bytes());
    }
}

async fn plant_retired(rig: &Rig, op: &OpId, actor: &str) {
    let uid = uid();
    rig.plant_intent(op, &retirement(actor, &uid)).await;
    rig.plant_gate(&uid, 1, "retired", &held_by(op, "retirement")).await;
    rig.plant_head(actor, &uid, 1, "\"state\":\"retired\"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_over_is_not_looked_at_again_and_everything_else_is() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let kept = Kept::default();
    let boot = async || resume_owed(&deps, Some(&kept), LONG).await;
    let skipped = |skipped| Ok(BootResume { skipped, ..BootResume::default() });
    // An empty space is noted too: what comes then is found beyond the note.
    assert_eq!(boot().await, skipped(0));

    for (n, actor) in [('a', "anna"), ('b', "ben"), ('c', "cleo")] {
        plant_retired(&rig, &an_op(n), actor).await;
    }
    // One that was written down and never begun: it may yet be owed, whenever somebody runs it again.
    let begun_later = uid();
    rig.plant("later", &begun_later).await;
    rig.plant_intent(&an_op('d'), &retirement("later", &begun_later)).await;
    assert_eq!(boot().await, skipped(4));
    assert_eq!(boot().await, skipped(1));

    // It was run again, and cut off: the boot ends it, though it is older than the note.
    rig.plant_gate(&begun_later, 1, "frozen", &held_by(&an_op('d'), "retirement")).await;
    assert_eq!(boot().await.unwrap().resumed, [an_op('d')]);
    assert_eq!(boot().await, skipped(1));
    assert_eq!(boot().await, skipped(0));

    // What came after the note is found, owed or not.
    plant_retired(&rig, &an_op('e'), "ella").await;
    let owed = uid();
    rig.plant("fred", &owed).await;
    rig.plant_intent(&an_op('f'), &retirement("fred", &owed)).await;
    rig.plant_gate(&owed, 1, "frozen", &held_by(&an_op('f'), "retirement")).await;
    let outcome = boot().await.unwrap();
    assert_eq!((outcome.skipped, outcome.resumed), (1, vec![an_op('f')]));
    assert_eq!(boot().await, skipped(1));

    // A note that the stream does not confirm, or that is none, vouches for nothing.
    let all = 6;
    for (from, to) in [
        ("\"created\":\"2", "\"created\":\"1"),
        ("\"heads\":{\"created\":\"2", "\"heads\":{\"created\":\"1"),
        ("\"last\":", "\"last\":9"),
        ("\"digest\":\"sha256:", "\"digest\":\"sha256:0"),
        ("\"key\":\"stage.", "\"key\":\"stage.0"),
        ("\"revision\":", "\"revision\":1"),
        ("\"space\":\"", "\"space\":\"x"),
        ("{", "["),
    ] {
        kept.alter(from, to);
        assert_eq!(boot().await, skipped(all), "{from}");
        assert_eq!(boot().await, skipped(0), "{from}");
    }

    // A marker where an intent was refuses, however old the intent is.
    rig.world.delete(&rig.world.auth, &format!("stage.{}", an_op('a'))).await;
    assert_eq!(code(boot().await), EpCode::FailedPrecondition);
}

/// What a backup of the broker's files keeps of the stream of heads.
fn heads_on_disk(rig: &Rig) -> PathBuf {
    let accounts = fs::read_dir(rig.world.server.store().join("jetstream")).unwrap();
    let stream = format!("streams/KV_{}", Names::new(&rig.world.space.token()).records_bucket());
    let found = accounts.map(|account| account.unwrap().path().join(&stream)).find(|path| path.is_dir());
    found.expect("the stream is on disk")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}

/// The broker is stopped, its files are changed, and it is started again; the plane is taken anew.
async fn with_files(rig: &mut Rig, change: impl FnOnce(&Path)) -> BarrierDeps {
    let heads = heads_on_disk(rig);
    rig.world.server.stop();
    change(&heads);
    rig.world.server.start_again().await;
    rig.held = Held::open_asking(&rig.world, &Scripted::gone()).await.unwrap();
    rig.deps().await
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_were_restored_and_have_grown_since_are_vouched_for_by_no_note() {
    let mut rig = Rig::start().await;
    let backup = tempfile::tempdir().unwrap();
    let lives: Vec<_> = [('a', "anna"), ('b', "ben")].map(|(n, actor)| (an_op(n), actor, uid())).into();
    for (op, actor, uid) in &lives {
        let held = format!("\"op\":{{\"opId\":\"{op}\",\"kind\":\"retirement\"}}");
        rig.plant_head(actor, uid, 1, &format!("\"state\":\"retiring\",{held}")).await;
        let frontier = format!("{{\"lifecycleUid\":\"{uid}\",\"opId\":\"{op}\",\"streams\":{{}}}}");
        rig.world.put(&rig.world.records, &format!("frontier.{uid}"), &frontier).await;
    }
    let deps = with_files(&mut rig, |heads| copy(heads, backup.path())).await;
    let kept = Kept::default();
    for (op, actor, uid) in &lives {
        rig.plant_intent(op, &retirement(actor, uid)).await;
        rig.plant_gate(uid, 1, "retired", &held_by(op, "retirement")).await;
        rig.plant_head(actor, uid, 1, "\"state\":\"retired\"").await;
    }
    let looked = resume_owed(&deps, Some(&kept), LONG).await.unwrap();
    assert_eq!((looked.skipped, looked.resumed.len()), (2, 0));
    let over = resume_owed(&deps, Some(&kept), LONG).await.unwrap();
    assert_eq!(over, BootResume::default(), "the note vouches for both");

    let deps = with_files(&mut rig, |heads| {
        fs::remove_dir_all(heads).unwrap();
        copy(backup.path(), heads);
    })
    .await;
    for n in 0..20 {
        rig.world.put(&rig.world.records, &format!("run.manager.r{n}.status"), "{}").await;
    }
    let outcome = resume_owed(&deps, Some(&kept), LONG).await.unwrap();
    assert_eq!((outcome.skipped, outcome.resumed), (0, vec![an_op('a'), an_op('b')]), "{:?}", outcome.failed);
    assert_eq!(rig.head("ben").await["state"], "retired");
}

/// The head of such a name is its successor's, and moves with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_given_again_costs_a_look_at_its_own_past_alone() {
    let rig = Rig::start().await;
    let deps = rig.deps().await;
    let kept = Kept::default();
    let boot = async || resume_owed(&deps, Some(&kept), LONG).await.unwrap();
    let skipped = |skipped| BootResume { skipped, ..BootResume::default() };
    for (n, actor) in [('a', "anna"), ('b', "ben"), ('c', "cleo")] {
        plant_retired(&rig, &an_op(n), actor).await;
    }
    assert_eq!(boot().await, skipped(3));
    rig.plant("cleo", &uid()).await;
    assert_eq!(boot().await, skipped(1), "cleo's, whose head is another's now");
    assert_eq!(boot().await, skipped(0));
    rig.plant("ben", &uid()).await;
    rig.plant("cleo", &uid()).await;
    assert_eq!(boot().await, skipped(2), "down to anna's");
    // Of a note nothing of whose heads stands, nothing is believed.
    rig.plant("anna", &uid()).await;
    rig.plant("ben", &uid()).await;
    rig.plant("cleo", &uid()).await;
    assert_eq!(boot().await, skipped(3));
}

/// Ten thousand retirements of the past cost the boot two looks at many at once, and no write. That many round trips of
/// their own would be a moment where the broker is near, and minutes where it is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_past_does_not_hold_up_the_boot() {
    const PAST: usize = 10_000;
    const AT_ONCE: usize = 100;
    let rig = Rig::start().await;
    let journal = Failpoint::journal();
    let deps = rig.watched(&journal).await;
    let (world, op) = (&rig.world, |n: usize| OpId::parse(&format!("{n:026}")).unwrap());
    futures::stream::iter(0..PAST)
        .for_each_concurrent(128, async |n| {
            let (uid, actor) = (LifecycleUid::parse(&format!("u{n:025}")).unwrap(), format!("a{n}"));
            world.put(&world.auth, &format!("stage.{}", op(n)), &retirement(&actor, &uid)).await;
            rig.plant_gate(&uid, 1, "retired", &held_by(&op(n), "retirement")).await;
            rig.plant_head(&actor, &uid, 1, "\"state\":\"retired\"").await;
        })
        .await;
    let (before, asked) = (Instant::now(), world.custody.round_trips());
    let outcome = resume_owed(&deps, None, LONG).await.unwrap();
    let asked = world.custody.round_trips() - asked;
    println!(
        "{PAST} operations of the past are passed over in {:?} and {asked} round trips",
        before.elapsed()
    );
    assert_eq!(outcome, BootResume { skipped: PAST, ..BootResume::default() });
    assert!((2..=PAST / AT_ONCE * 2).contains(&usize::try_from(asked).unwrap()), "{asked} round trips");
    assert_eq!(journal.landed(), [""; 0]);
}
