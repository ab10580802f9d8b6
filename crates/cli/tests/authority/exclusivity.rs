//! Two auth services of one space, killed at random under load: one owner at a time, and never none for long.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cotal_testkit::{daemons::Seat, process::Process};
use cotal_workspace::material::Discovery;
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::house::{COTAL, House, Person, Told};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(12);
/// Within which one of the two is ready once nobody is killed any more.
const OWNED_WITHIN: Duration = Duration::from_secs(30);
/// A process lives at least and at most this long, in milliseconds.
const LIFE_MS: (u64, u64) = (50, 2500);
/// Before one that ended by itself is started again.
const REST: Duration = Duration::from_millis(150);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const CONNECTORS: usize = 4;
/// People whom one of them connects in turn: enough that no connect limit is met.
const EACH: usize = 8;
/// More than can be retired in the time.
const TO_RETIRE: usize = 150;

/// Why a start was refused: the word in the refusal's details, and what its sentence says.
const REFUSALS: [(&str, &str); 6] = [
    ("live-peer", "another auth process owns"),
    ("concurrent", "other auth processes are taking"),
    ("unknown", "cannot be told yet"),
    ("corrupt", "is never written over"),
    ("registration", "registration"),
    ("fenced", "was fenced"),
];

/// Both services. A process is started and killed under the lock, so that whoever holds it sees what lives.
struct Ring {
    seats: [Seat; 2],
    running: Mutex<[Option<Process>; 2]>,
    killing: AtomicBool,
    stopping: AtomicBool,
    kills: AtomicUsize,
    owners_killed: AtomicUsize,
    refusals: Mutex<BTreeMap<String, usize>>,
    /// The highest generation that a completed read of the row has shown.
    generation: AtomicU64,
    connected: AtomicUsize,
    retired: AtomicUsize,
}

/// A service that is ready.
struct Owner {
    pid: u32,
    generation: u64,
    discovery: Discovery,
}

impl Ring {
    fn stops(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Who is ready at this moment: a service that runs, and whose own readiness file is there.
    fn owners(&self) -> Vec<Owner> {
        let mut running = self.running.lock();
        let mut owners = Vec::new();
        for (seat, process) in self.seats.iter().zip(running.iter_mut()) {
            let Some(process) = process else { continue };
            let pid = process.pid();
            // In this order: one that ends by itself takes its file away first.
            let Some(discovery) = seat.discovery(pid).unwrap() else { continue };
            if process.ended().unwrap().is_none() {
                let generation =
                    generation_of(&process.said()).expect("a ready service has said what it holds");
                owners.push(Owner { pid, generation, discovery });
            }
        }
        owners
    }

    fn owner(&self) -> Option<Owner> {
        self.owners().pop()
    }

    /// Runs one of the two for as long as the test takes.
    async fn keep_running(&self, nth: usize, url: &str) {
        while !self.stops() {
            {
                let mut running = self.running.lock();
                running[nth] = Some(self.seats[nth].auth_service(url).unwrap());
            }
            let (began, life) = (Instant::now(), Duration::from_millis(random(LIFE_MS)));
            loop {
                sleep(LOOK_EVERY).await;
                let mut running = self.running.lock();
                let process = running[nth].as_mut().unwrap();
                if let Some(status) = process.ended().unwrap() {
                    assert_eq!(status.code(), Some(1), "{}", process.said());
                    *self.refusals.lock().entry(reason_of(&process.said())).or_default() += 1;
                    running[nth] = None;
                    break;
                }
                let killing = self.killing.load(Ordering::Relaxed) && began.elapsed() >= life;
                if killing || self.stops() {
                    let ready = self.seats[nth].discovery(process.pid()).unwrap().is_some();
                    process.kill().unwrap();
                    running[nth] = None;
                    self.kills.fetch_add(usize::from(killing), Ordering::Relaxed);
                    self.owners_killed.fetch_add(usize::from(killing && ready), Ordering::Relaxed);
                    break;
                }
            }
            sleep(REST).await;
        }
    }

    /// Looks at both again and again: never two, and each owner's generation is above the one before. Answers how often
    /// the owner changed, how often it looked, and the longest time without one.
    async fn watch_owners(&self) -> (usize, usize, Duration) {
        let (mut changes, mut looks, mut longest) = (0, 0, Duration::ZERO);
        let (mut before, mut seen): (Option<(u32, u64)>, _) = (None, Instant::now());
        while !self.stops() {
            let owners = self.owners();
            let generations: Vec<_> = owners.iter().map(|owner| owner.generation).collect();
            assert!(owners.len() < 2, "two owners at once, of generations {generations:?}");
            looks += 1;
            if let Some(owner) = owners.first() {
                longest = longest.max(seen.elapsed());
                seen = Instant::now();
                let now = (owner.pid, owner.generation);
                if let Some(before) = before.filter(|before| *before != now) {
                    assert!(now.1 > before.1, "{now:?} owns the plane after {before:?}");
                    changes += 1;
                }
                before = Some(now);
            }
            sleep(LOOK_EVERY).await;
        }
        (changes, looks, longest)
    }

    /// Reads the row again and again: its generation never falls, and one generation is one claim.
    async fn watch_row(&self, house: &House) -> usize {
        let reader = house.reader().await;
        let (mut last, mut reads) = (None, 0);
        while !self.stops() {
            if let Some(row) = house.plane_row(&reader).await {
                reads += 1;
                if let Some((generation, claim_id)) = &last {
                    assert!(
                        row.generation >= *generation,
                        "generation {} after {generation}",
                        row.generation
                    );
                    assert!(
                        row.generation > *generation || row.claim_id == *claim_id,
                        "one generation, two claims"
                    );
                }
                self.generation.fetch_max(row.generation, Ordering::SeqCst);
                last = Some((row.generation, row.claim_id));
            }
            sleep(LOOK_EVERY).await;
        }
        reader.close().await.unwrap();
        reads
    }

    async fn keep_connecting(&self, house: &House, bearers: &[String]) {
        for bearer in bearers.iter().cycle() {
            if self.stops() {
                return;
            }
            if house.caller.connect(bearer).await.is_some() {
                self.connected.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Retires one after the other; a success is only ever that of the row's holder. Answers who was said to be retired.
    async fn keep_retiring(&self, house: &House, people: &[Person]) -> Vec<(Person, Told)> {
        let mut told = Vec::new();
        for person in people {
            // Once: whom a killed service had begun to retire, the next one ends, and no exchange is for them any more.
            let mut exchanged = false;
            loop {
                if self.stops() {
                    return told;
                }
                let Some(owner) = self.owner() else {
                    sleep(LOOK_EVERY).await;
                    continue;
                };
                if !exchanged {
                    exchanged = house.caller.exchange(&owner.discovery, person).await.is_some();
                    continue;
                }
                let at_least = self.generation.load(Ordering::SeqCst);
                let answer = house.caller.retire(&owner.discovery, person).await;
                if answer == Told::Retired {
                    assert!(
                        owner.generation >= at_least,
                        "the holder of generation {} retired somebody under {at_least}",
                        owner.generation
                    );
                    self.retired.fetch_add(1, Ordering::Relaxed);
                    told.push((person.clone(), answer));
                    break;
                }
            }
        }
        told
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_services_that_are_killed_at_random_are_never_two_owners_and_never_none_for_long() {
    let lasts = if cotal_testkit::long_tests() { LONG } else { SHORT };
    let house = House::start("ring").await;
    let _delivery = house.delivery().await;
    let (connecting, retiring) = (house.people("c", CONNECTORS * EACH), house.people("r", TO_RETIRE));
    // Another machine with the same material and the same ledger, and an identity of its own.
    let twin = Seat::copy_of(&house.space, COTAL).unwrap();
    let (mut first, discovery) = house.service().await;
    let mut bearers = Vec::new();
    for person in &connecting {
        bearers.push(house.caller.bearer(&discovery, person).await);
    }
    first.kill().unwrap();

    let ring = Arc::new(Ring {
        seats: [Seat::of(&house.space, COTAL), twin],
        running: Mutex::default(),
        killing: AtomicBool::new(true),
        stopping: AtomicBool::new(false),
        kills: AtomicUsize::new(0),
        owners_killed: AtomicUsize::new(0),
        refusals: Mutex::default(),
        generation: AtomicU64::new(0),
        connected: AtomicUsize::new(0),
        retired: AtomicUsize::new(0),
    });
    let url = house.url();
    let conduct = async {
        sleep(lasts).await;
        ring.killing.store(false, Ordering::Relaxed);
        let last_kill = Instant::now();
        let owner = loop {
            if let Some(owner) = ring.owner() {
                break owner;
            }
            assert!(last_kill.elapsed() < OWNED_WITHIN, "the claim is stuck: {:?}", ring.refusals.lock());
            sleep(LOOK_EVERY).await;
        };
        let ready_after = last_kill.elapsed();
        // It serves.
        let (connected, retired) =
            (ring.connected.load(Ordering::Relaxed), ring.retired.load(Ordering::Relaxed));
        while ring.connected.load(Ordering::Relaxed) == connected
            || ring.retired.load(Ordering::Relaxed) == retired
        {
            assert!(last_kill.elapsed() < 2 * OWNED_WITHIN, "the last owner does not serve");
            sleep(LOOK_EVERY).await;
        }
        let still = ring.owner().expect("nobody killed it");
        assert_eq!(still.pid, owner.pid);
        ring.stopping.store(true, Ordering::Relaxed);
        ready_after
    };
    let connects =
        futures::future::join_all(bearers.chunks(EACH).map(|some| ring.keep_connecting(&house, some)));
    let (ready_after, (), (), owners, reads, _, told) = tokio::join!(
        conduct,
        ring.keep_running(0, &url),
        ring.keep_running(1, &url),
        ring.watch_owners(),
        ring.watch_row(&house),
        connects,
        ring.keep_retiring(&house, &retiring),
    );

    let (changes, looks, longest) = owners;
    house.assert_told_the_truth(&told).await;
    let logs: Vec<_> =
        ring.seats.iter().map(|seat| std::fs::read_to_string(seat.log("auth-service")).unwrap()).collect();
    let minted = house.assert_every_connect_has_its_row(&logs).await;
    let mut generations = HashSet::new();
    for log in &logs {
        for generation in log.lines().filter_map(generation_of) {
            assert!(generations.insert(generation), "generation {generation} was held twice");
        }
    }
    let refusals = ring.refusals.lock().clone();
    eprintln!(
        "two services for {} s: {} kills ({} of an owner), {changes} changes of ownership, {} generations, longest \
         {:.1} s without an owner, ready {:.1} s after the last kill; starts refused: {refusals:?}; {} connects, \
         {minted} minted lines, {} retirements; {looks} looks at both, {reads} reads of the row",
        lasts.as_secs(),
        ring.kills.load(Ordering::Relaxed),
        ring.owners_killed.load(Ordering::Relaxed),
        generations.len(),
        longest.as_secs_f64(),
        ready_after.as_secs_f64(),
        ring.connected.load(Ordering::Relaxed),
        told.len(),
    );
    assert!(changes >= 2, "the plane changed hands only {changes} times");
    assert!(!refusals.contains_key("corrupt") && !refusals.contains_key("fenced"), "{refusals:?}");
}

/// The last generation that a text says is held.
fn generation_of(said: &str) -> Option<u64> {
    let rest = said.rsplit_once("the claim is held")?.1;
    rest.split_once("generation=")?.1.split_whitespace().next()?.parse().ok()
}

fn reason_of(said: &str) -> String {
    let last = said.lines().last().unwrap_or_default();
    let known = REFUSALS.iter().find(|(_, says)| last.contains(says));
    known.map_or_else(|| last.to_owned(), |(word, _)| (*word).to_owned())
}

fn random((least, most): (u64, u64)) -> u64 {
    least + RandomState::new().hash_one(0) % (most - least)
}
