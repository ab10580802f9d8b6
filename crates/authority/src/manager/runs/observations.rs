//! What was seen of the requests that managers serve, until the manager forwards one (contract 06 §12.3).
//!
//! A caller publishes, this service sees it, the manager forwards the subject from inside the handler that serves it: what is
//! seen is taken within moments, once. What nobody takes is kept [`WINDOW_MS`] at the longest.
//!
//! Whoever may publish such a request may publish many, so what is kept is bounded three ways: a caller holds at most
//! [`Limits::per_caller`], and past that its own oldest goes; the table holds at most [`Limits::entries`] and
//! [`Limits::bytes`], and past that the oldest of all goes. One caller's flood therefore pushes out nobody else's request, and
//! a flood of many callers pushes out those that have waited longest for a forward that is not coming.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use cotal_wire::{
    Principal, UnixMillis,
    manager_authority::{ObservedRequest, RunOperation},
};

/// How long what was seen may be forwarded, in milliseconds (contract 06 §12.3).
pub const WINDOW_MS: u64 = 300_000;

/// What a table holds at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests.
    pub entries: usize,
    /// Bytes of their subjects and arguments, with [`OVERHEAD`] for each.
    pub bytes: usize,
    /// Requests of one caller.
    pub per_caller: usize,
}

/// What an entry is charged beside its subject and arguments, in bytes: its places in the table and its digests.
pub const OVERHEAD: usize = 1024;

impl Limits {
    /// Starts, resumes, answers and submissions.
    pub const SERVED: Self = Self { entries: 8_192, bytes: 16 << 20, per_caller: 256 };
    /// Cancellations (contract 10 §3.5).
    pub const CANCELS: Self = Self { entries: 1_024, bytes: 2 << 20, per_caller: 64 };
}

/// What was seen, by subject.
#[derive(Debug)]
pub struct ObservationTable {
    limits: Limits,
    entries: HashMap<Arc<str>, Entry>,
    /// By when they came: a request that is seen again comes last.
    order: BTreeMap<u64, Arc<str>>,
    callers: HashMap<Principal, BTreeSet<u64>>,
    next: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    at: u64,
    expires: UnixMillis,
    caller: Principal,
    weight: usize,
    request: ObservedRequest,
}

impl ObservationTable {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            order: BTreeMap::new(),
            callers: HashMap::new(),
            next: 0,
            bytes: 0,
        }
    }

    /// Keeps what was seen on a subject now, last of all, and lets go of what has expired and of what is too much.
    pub fn insert(&mut self, subject: &str, caller: &Principal, request: ObservedRequest, now: UnixMillis) {
        self.remove(subject);
        self.prune(now);
        let weight = OVERHEAD + 2 * subject.len() + weight_of(&request.operation);
        if weight > self.limits.bytes {
            return;
        }
        while let Some(oldest) = self.oldest_of(caller) {
            self.remove(&oldest);
        }
        while self.entries.len() >= self.limits.entries || self.bytes + weight > self.limits.bytes {
            let Some(oldest) = self.order.first_key_value().map(|(_, subject)| Arc::clone(subject)) else {
                break;
            };
            self.remove(&oldest);
        }
        let (at, subject) = (self.next, Arc::<str>::from(subject));
        self.next += 1;
        self.bytes += weight;
        self.order.insert(at, Arc::clone(&subject));
        self.callers.entry(caller.clone()).or_default().insert(at);
        let expires = UnixMillis(now.0.saturating_add(WINDOW_MS));
        self.entries.insert(subject, Entry { at, expires, caller: caller.clone(), weight, request });
    }

    /// Takes what was seen on a subject: it is gone, whatever the taker makes of it. `None` when nothing was, or too long ago.
    pub fn take(&mut self, subject: &str, now: UnixMillis) -> Option<ObservedRequest> {
        self.remove(subject).filter(|entry| now < entry.expires).map(|entry| entry.request)
    }

    /// How many requests it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many bytes its requests are charged with.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The oldest request of a caller that holds as many as it may.
    fn oldest_of(&self, caller: &Principal) -> Option<Arc<str>> {
        let held = self.callers.get(caller).filter(|held| held.len() >= self.limits.per_caller)?;
        self.order.get(held.first()?).cloned()
    }

    fn prune(&mut self, now: UnixMillis) {
        while let Some((_, subject)) = self.order.first_key_value() {
            if self.entries.get(subject).is_some_and(|entry| now < entry.expires) {
                return;
            }
            let expired = Arc::clone(subject);
            self.remove(&expired);
        }
    }

    fn remove(&mut self, subject: &str) -> Option<Entry> {
        let entry = self.entries.remove(subject)?;
        self.order.remove(&entry.at);
        self.bytes -= entry.weight;
        if let Some(held) = self.callers.get_mut(&entry.caller) {
            held.remove(&entry.at);
            if held.is_empty() {
                self.callers.remove(&entry.caller);
            }
        }
        Some(entry)
    }
}

/// What an operation's arguments take.
fn weight_of(operation: &RunOperation) -> usize {
    match operation {
        RunOperation::Answer { step_key, endpoint, .. } => step_key.len() + endpoint.as_str().len(),
        RunOperation::Start
        | RunOperation::Resume { .. }
        | RunOperation::Submit { .. }
        | RunOperation::Cancel { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::{DigestRef, EndpointName, envelope::CallClass, manager_authority::RunId};
    use proptest::prelude::*;

    use super::*;

    fn caller(name: &str) -> Principal {
        Principal::parse_key(&format!("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.{name}")).unwrap()
    }

    fn request(operation: RunOperation) -> ObservedRequest {
        let digest = DigestRef::of_sha256(&[0; 32]);
        ObservedRequest {
            operation,
            class: CallClass::Ephemeral,
            input_digest: digest.clone(),
            output_digest: digest,
            bind: None,
        }
    }

    fn start() -> ObservedRequest {
        request(RunOperation::Start)
    }

    fn answer(step_key: usize) -> ObservedRequest {
        request(RunOperation::Answer {
            endpoint: EndpointName::parse("manager").unwrap(),
            run: RunId::parse(&format!("run-{}", "a".repeat(32))).unwrap(),
            step_key: "k".repeat(step_key),
            amend: false,
        })
    }

    const NOW: UnixMillis = UnixMillis(1_000_000);

    fn later(ms: u64) -> UnixMillis {
        UnixMillis(NOW.0 + ms)
    }

    #[test]
    fn what_was_seen_is_taken_once() {
        let mut table = ObservationTable::new(Limits::SERVED);
        table.insert("s", &caller("a"), start(), NOW);
        assert_eq!(table.take("t", NOW), None);
        assert_eq!(table.take("s", NOW), Some(start()));
        assert_eq!(table.take("s", NOW), None);
        assert_eq!((table.len(), table.bytes()), (0, 0));
    }

    #[test]
    fn it_may_be_forwarded_up_to_its_last_millisecond() {
        for (after, there) in [(0, true), (WINDOW_MS - 1, true), (WINDOW_MS, false), (u64::MAX / 2, false)] {
            let mut table = ObservationTable::new(Limits::SERVED);
            table.insert("s", &caller("a"), start(), NOW);
            assert_eq!(table.take("s", later(after)).is_some(), there, "{after}");
            assert!(table.is_empty(), "taken too late, it is gone all the same");
        }
    }

    #[test]
    fn what_is_seen_again_lives_from_then_on_and_comes_last() {
        let mut table = ObservationTable::new(Limits { entries: 2, ..Limits::SERVED });
        table.insert("s", &caller("a"), start(), NOW);
        table.insert("t", &caller("a"), start(), later(1));
        table.insert("s", &caller("a"), answer(3), later(2));
        table.insert("u", &caller("a"), start(), later(3));
        assert_eq!(table.take("t", later(3)), None, "it was the oldest when the table was full");
        assert_eq!(table.take("s", later(WINDOW_MS + 1)), Some(answer(3)));
    }

    #[test]
    fn what_has_expired_goes_at_the_next_insert() {
        let mut table = ObservationTable::new(Limits::SERVED);
        for n in 0..10 {
            table.insert(&format!("s{n}"), &caller("a"), start(), later(n));
        }
        table.insert("late", &caller("b"), start(), later(WINDOW_MS + 4));
        assert_eq!(table.len(), 6, "five of the ten are as old as they may get");
    }

    #[test]
    fn one_callers_flood_pushes_out_its_own_requests_alone() {
        let mut table = ObservationTable::new(Limits::SERVED);
        table.insert("victim", &caller("v"), start(), NOW);
        for n in 0..100_000 {
            table.insert(&format!("flood{n}"), &caller("f"), answer(1024), later(1));
        }
        assert_eq!(table.len(), 1 + Limits::SERVED.per_caller);
        assert!(table.take("flood99999", later(2)).is_some() && table.take("flood0", later(2)).is_none());
        assert!(table.take("victim", later(2)).is_some());
    }

    #[test]
    fn a_flood_of_many_callers_holds_both_bounds() {
        for limits in [Limits::SERVED, Limits::CANCELS, Limits { bytes: 64 << 10, ..Limits::SERVED }] {
            let mut table = ObservationTable::new(limits);
            for n in 0..20_000 {
                table.insert(
                    &format!("{}{n}", "s".repeat(900)),
                    &caller(&format!("c{}", n % 5_000)),
                    answer(1024),
                    NOW,
                );
                assert!(table.len() <= limits.entries && table.bytes() <= limits.bytes);
            }
            assert!(table.callers.len() <= table.len() && table.order.len() == table.len());
            assert!(table.len() > 10, "and it still works");
        }
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_itself_whatever_is_done_to_it(
            steps in proptest::collection::vec((0u8..20, 0u8..4, 0u64..400_000, any::<bool>(), 1usize..64), 1..200)
        ) {
            let limits = Limits { entries: 8, bytes: 14 << 10, per_caller: 3 };
            let mut table = ObservationTable::new(limits);
            let mut now = NOW;
            for (subject, from, wait, takes, size) in steps {
                now = UnixMillis(now.0 + wait / 8);
                if takes {
                    table.take(&format!("s{subject}"), now);
                } else {
                    table.insert(&format!("s{subject}"), &caller(&format!("c{from}")), answer(size), now);
                }
                let weights: usize = table.entries.values().map(|entry| entry.weight).sum();
                prop_assert_eq!(table.bytes(), weights);
                prop_assert_eq!(table.order.len(), table.len());
                let held: usize = table.callers.values().map(BTreeSet::len).sum();
                prop_assert_eq!(held, table.len());
                prop_assert!(table.callers.values().all(|held| !held.is_empty() && held.len() <= limits.per_caller));
                prop_assert!(table.len() <= limits.entries && table.bytes() <= limits.bytes);
            }
        }
    }
}
