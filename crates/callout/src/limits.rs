//! Connect limits (contract 04 §8.7): token buckets per actor, owner and host; in memory, per process and space.
//!
//! A bucket holds one minute's allowance and refills at that rate. A connect passes only when every bucket that it
//! draws on holds a whole token, and then spends one of each; a refused connect spends nothing.
//!
//! A full bucket is the same as none, so full ones are forgotten as later connects pass by, and no table ever holds
//! more than [`MAX_BUCKETS`]: past that the bucket that was drawn on longest ago goes, which gives its principal or
//! host a full one back. Actors and owners are named by a signature, so only rows of the ledger can get there; an
//! attacker with more than [`MAX_BUCKETS`] addresses in a minute escapes the host limit, which guards the log and
//! not the door.

use std::{fmt, sync::Arc};

use cotal_wire::{Actor, Clock, DerivedOwner, UnixMillis};
use lru::LruCache;
use parking_lot::Mutex;

/// Most buckets that one table keeps.
pub const MAX_BUCKETS: usize = 16_384;
/// Longest part of a host name that its bucket is keyed by and that a refusal repeats, in bytes.
const MAX_HOST_LEN: usize = 128;
/// How many full buckets one spend may forget: more than it can add, so tables shrink.
const FORGET_PER_SPEND: usize = 4;
/// The minute that an allowance is for. A token is that many units, and an allowance of `n` refills `n` a millisecond.
const UNITS_PER_TOKEN: u64 = 60_000;

/// The word that every refusal starts with (contract 04 §8.7).
pub const RATE_LIMITED: &str = "RATE_LIMITED";

/// Allowances a minute (contract 12 D12). Each is a positive integer; a zero is taken as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectLimits {
    /// Per `owner.actor`, default 60.
    pub per_actor_per_minute: u32,
    /// Per owner, default 600.
    pub per_owner_per_minute: u32,
    /// Per client host of bearers that do not verify, default 60.
    pub per_host_per_minute: u32,
}

impl Default for ConnectLimits {
    fn default() -> Self {
        Self { per_actor_per_minute: 60, per_owner_per_minute: 600, per_host_per_minute: 60 }
    }
}

/// Which bucket ran out, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitedBucket {
    /// The actor's own.
    Actor {
        /// Whole seconds until one token is back, at least 1.
        retry_after_secs: u64,
    },
    /// The owner's, which every actor of the owner draws on.
    Owner {
        /// Whole seconds until one token is back, at least 1.
        retry_after_secs: u64,
    },
    /// The client host's.
    Host {
        /// Whole seconds until one token is back, at least 1.
        retry_after_secs: u64,
    },
}

impl LimitedBucket {
    /// Whole seconds until one token is back, at least 1.
    pub const fn retry_after_secs(self) -> u64 {
        match self {
            Self::Actor { retry_after_secs }
            | Self::Owner { retry_after_secs }
            | Self::Host { retry_after_secs } => retry_after_secs,
        }
    }

    /// `RATE_LIMITED retry-after <n>s actor <actor> owner <owner>…`.
    pub fn principal_sentence(self, owner: &DerivedOwner, actor: &Actor) -> String {
        let whose = match self {
            Self::Owner { .. } => "all actors of this owner",
            Self::Actor { .. } | Self::Host { .. } => "this actor",
        };
        self.sentence(&format_args!("actor {actor} owner {owner}: {whose}"))
    }

    /// `RATE_LIMITED retry-after <n>s host <host>…`.
    pub fn host_sentence(self, host: &str) -> String {
        self.sentence(&format_args!("host {}: bearers that do not verify from this host", host_key(host)))
    }

    fn sentence(self, what: &dyn fmt::Display) -> String {
        format!("{RATE_LIMITED} retry-after {}s {what} connect too often", self.retry_after_secs())
    }
}

/// The buckets of one space in one process. Bounded memory: a full bucket is forgotten.
pub struct Limiter {
    clock: Arc<dyn Clock>,
    /// One short lock: a connect holds it for two look-ups, never across an await.
    tables: Mutex<Tables>,
}

struct Tables {
    actors: Table,
    owners: Table,
    hosts: Table,
    /// When every host that was refused so far has a token again, in milliseconds; 0 when none was.
    quiet_at: u64,
}

struct Table {
    /// Units a millisecond, which is tokens a minute.
    rate: u64,
    buckets: LruCache<Box<str>, Bucket>,
}

/// What was left at the last spend, or when the clock was last seen to have stepped back.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    units: u64,
    at: UnixMillis,
}

impl Limiter {
    /// Fresh, full buckets.
    pub fn new(limits: ConnectLimits, clock: Arc<dyn Clock>) -> Self {
        let tables = Tables {
            actors: Table::new(limits.per_actor_per_minute),
            owners: Table::new(limits.per_owner_per_minute),
            hosts: Table::new(limits.per_host_per_minute),
            quiet_at: 0,
        };
        Self { clock, tables: Mutex::new(tables) }
    }

    /// Charges actor and owner together, or neither.
    pub fn charge_principal(&self, owner: &DerivedOwner, actor: &Actor) -> Result<(), LimitedBucket> {
        let key = actor_key(owner, actor);
        let mut tables = self.tables.lock();
        let now = self.clock.now_millis();
        tables.check_principal(&key, owner.as_str(), now)?;
        tables.actors.spend(&key, now);
        tables.owners.spend(owner.as_str(), now);
        Ok(())
    }

    /// Charges the host.
    pub fn charge_host(&self, host: &str) -> Result<(), LimitedBucket> {
        let host = host_key(host);
        let mut tables = self.tables.lock();
        let now = self.clock.now_millis();
        if let Some(wait) = tables.hosts.wait_millis(host, now) {
            tables.quiet_at = tables.quiet_at.max(now.0.saturating_add(wait));
            return Err(LimitedBucket::Host { retry_after_secs: whole_secs(wait) });
        }
        tables.hosts.spend(host, now);
        Ok(())
    }

    /// Whether some host was refused so lately that its bucket may still be empty. Spends nothing.
    pub fn some_host_limited(&self) -> bool {
        let mut tables = self.tables.lock();
        if tables.quiet_at == 0 {
            return false;
        }
        let now = self.clock.now_millis().0;
        // No wait is longer than a minute: a later moment was stamped before the clock stepped back.
        if now >= tables.quiet_at || tables.quiet_at - now > UNITS_PER_TOKEN {
            tables.quiet_at = 0;
        }
        tables.quiet_at != 0
    }

    /// Whether this host's bucket is empty. Spends nothing.
    pub fn host_limited(&self, host: &str) -> bool {
        let mut tables = self.tables.lock();
        let now = self.clock.now_millis();
        tables.hosts.wait_millis(host_key(host), now).is_some()
    }

    /// Whether the actor or its owner is limited now; spends nothing (the exchange asks this).
    pub fn check_principal(&self, owner: &DerivedOwner, actor: &Actor) -> Result<(), LimitedBucket> {
        let key = actor_key(owner, actor);
        let mut tables = self.tables.lock();
        let now = self.clock.now_millis();
        tables.check_principal(&key, owner.as_str(), now)
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.tables.lock();
        f.debug_struct("Limiter")
            .field("actors", &tables.actors.buckets.len())
            .field("owners", &tables.owners.buckets.len())
            .field("hosts", &tables.hosts.buckets.len())
            .finish_non_exhaustive()
    }
}

impl Tables {
    /// Names the bucket that takes longer to fill, so that a retry after the stated wait passes both.
    fn check_principal(&mut self, actor: &str, owner: &str, now: UnixMillis) -> Result<(), LimitedBucket> {
        match (self.actors.wait_millis(actor, now), self.owners.wait_millis(owner, now)) {
            (None, None) => Ok(()),
            (Some(wait), other) if other.is_none_or(|other| other <= wait) => {
                Err(LimitedBucket::Actor { retry_after_secs: whole_secs(wait) })
            }
            (_, Some(wait)) | (Some(wait), None) => {
                Err(LimitedBucket::Owner { retry_after_secs: whole_secs(wait) })
            }
        }
    }
}

impl Table {
    fn new(per_minute: u32) -> Self {
        // Unbounded: a bounded one allocates its whole capacity at once, which a thousand idle spaces would feel.
        Self { rate: u64::from(per_minute.max(1)), buckets: LruCache::unbounded() }
    }

    fn capacity(&self) -> u64 {
        self.rate * UNITS_PER_TOKEN
    }

    /// How long until one token is there, or `None` when one is.
    fn wait_millis(&mut self, key: &str, now: UnixMillis) -> Option<u64> {
        let (rate, capacity) = (self.rate, self.capacity());
        let level = self.buckets.peek_mut(key)?.level(rate, capacity, now);
        (level < UNITS_PER_TOKEN).then(|| (UNITS_PER_TOKEN - level).div_ceil(rate))
    }

    /// Takes one token, which the caller has seen.
    fn spend(&mut self, key: &str, now: UnixMillis) {
        let (rate, capacity) = (self.rate, self.capacity());
        if let Some(bucket) = self.buckets.get_mut(key) {
            let level = bucket.level(rate, capacity, now);
            *bucket = Bucket { units: level.saturating_sub(UNITS_PER_TOKEN), at: now };
        } else {
            let left = Bucket { units: capacity.saturating_sub(UNITS_PER_TOKEN), at: now };
            self.buckets.push(key.into(), left);
        }
        self.forget(now);
    }

    fn forget(&mut self, now: UnixMillis) {
        let (rate, capacity) = (self.rate, self.capacity());
        for _ in 0..FORGET_PER_SPEND {
            let Some((_, mut oldest)) = self.buckets.peek_lru().map(|(key, bucket)| (key, *bucket)) else {
                return;
            };
            let full = oldest.level(rate, capacity, now) == capacity;
            if !full && self.buckets.len() <= MAX_BUCKETS {
                return;
            }
            self.buckets.pop_lru();
        }
    }
}

impl Bucket {
    /// What it holds now. A clock that stepped back neither refills nor blocks: the bucket goes on from `now` with
    /// what it had, at a mere look too, for a refused connect is nothing but a look.
    fn level(&mut self, rate: u64, capacity: u64, now: UnixMillis) -> u64 {
        if now < self.at {
            self.at = now;
        }
        self.units.saturating_add(rate.saturating_mul(now.since(self.at))).min(capacity)
    }
}

fn actor_key(owner: &DerivedOwner, actor: &Actor) -> String {
    format!("{owner}.{actor}")
}

fn host_key(host: &str) -> &str {
    let mut end = host.len().min(MAX_HOST_LEN);
    while !host.is_char_boundary(end) {
        end -= 1;
    }
    &host[..end]
}

fn whole_secs(millis: u64) -> u64 {
    millis.div_ceil(1000).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;

    struct FakeClock(AtomicU64);

    impl FakeClock {
        fn at(millis: u64) -> Arc<Self> {
            Arc::new(Self(AtomicU64::new(millis)))
        }

        fn advance(&self, millis: u64) {
            self.0.fetch_add(millis, Ordering::Relaxed);
        }
    }

    impl Clock for FakeClock {
        fn now_millis(&self) -> UnixMillis {
            UnixMillis(self.0.load(Ordering::Relaxed))
        }
    }

    fn owner(letter: char) -> DerivedOwner {
        DerivedOwner::parse(&format!("u_{}", letter.to_string().repeat(26))).unwrap()
    }

    fn actor(name: &str) -> Actor {
        Actor::parse(name).unwrap()
    }

    fn limiter(per_actor: u32, per_owner: u32, per_host: u32) -> (Limiter, Arc<FakeClock>) {
        let clock = FakeClock::at(1_000_000);
        let limits = ConnectLimits {
            per_actor_per_minute: per_actor,
            per_owner_per_minute: per_owner,
            per_host_per_minute: per_host,
        };
        (Limiter::new(limits, clock.clone()), clock)
    }

    #[test]
    fn a_bucket_holds_one_minutes_allowance_and_refills_at_that_rate() {
        let (limiter, clock) = limiter(60, 600, 60);
        let (o, a) = (owner('a'), actor("cli"));
        for _ in 0..60 {
            limiter.charge_principal(&o, &a).unwrap();
        }
        assert_eq!(limiter.charge_principal(&o, &a), Err(LimitedBucket::Actor { retry_after_secs: 1 }));
        clock.advance(999);
        assert!(limiter.charge_principal(&o, &a).is_err());
        clock.advance(1);
        limiter.charge_principal(&o, &a).unwrap();
        assert!(limiter.charge_principal(&o, &a).is_err());
        clock.advance(600_000);
        for _ in 0..60 {
            limiter.charge_principal(&o, &a).unwrap();
        }
        assert!(limiter.charge_principal(&o, &a).is_err(), "more than a minute's allowance was saved up");
    }

    #[test]
    fn an_owner_is_drawn_on_by_every_actor_of_it() {
        let (limiter, _) = limiter(60, 2, 60);
        limiter.charge_principal(&owner('a'), &actor("one")).unwrap();
        limiter.charge_principal(&owner('a'), &actor("two")).unwrap();
        assert_eq!(
            limiter.charge_principal(&owner('a'), &actor("three")),
            Err(LimitedBucket::Owner { retry_after_secs: 30 })
        );
        limiter.charge_principal(&owner('b'), &actor("three")).unwrap();
    }

    #[test]
    fn a_refused_connect_spends_nothing_of_any_bucket() {
        let (limiter, clock) = limiter(1, 3, 60);
        let o = owner('a');
        limiter.charge_principal(&o, &actor("one")).unwrap();
        for _ in 0..50 {
            assert!(limiter.charge_principal(&o, &actor("one")).is_err());
        }
        limiter.charge_principal(&o, &actor("two")).unwrap();
        limiter.charge_principal(&o, &actor("three")).unwrap();
        for _ in 0..50 {
            assert!(matches!(
                limiter.charge_principal(&o, &actor("four")),
                Err(LimitedBucket::Owner { retry_after_secs: 20 })
            ));
        }
        clock.advance(20_000);
        limiter.charge_principal(&o, &actor("four")).unwrap();
    }

    #[test]
    fn the_bucket_that_takes_longer_is_named() {
        let (limiter, _) = limiter(1, 1, 60);
        limiter.charge_principal(&owner('a'), &actor("cli")).unwrap();
        assert_eq!(
            limiter.charge_principal(&owner('a'), &actor("cli")),
            Err(LimitedBucket::Actor { retry_after_secs: 60 })
        );
        let (limiter, _) = self::limiter(60, 1, 60);
        limiter.charge_principal(&owner('a'), &actor("cli")).unwrap();
        assert_eq!(
            limiter.charge_principal(&owner('a'), &actor("cli")),
            Err(LimitedBucket::Owner { retry_after_secs: 60 })
        );
    }

    #[test]
    fn asking_spends_nothing() {
        let (limiter, _) = limiter(1, 600, 60);
        for _ in 0..10 {
            limiter.check_principal(&owner('a'), &actor("cli")).unwrap();
        }
        limiter.charge_principal(&owner('a'), &actor("cli")).unwrap();
        assert!(limiter.check_principal(&owner('a'), &actor("cli")).is_err());
    }

    #[test]
    fn a_host_has_its_own_allowance() {
        let (limiter, _) = limiter(60, 600, 1);
        limiter.charge_host("10.0.0.1").unwrap();
        assert_eq!(limiter.charge_host("10.0.0.1"), Err(LimitedBucket::Host { retry_after_secs: 60 }));
        limiter.charge_host("10.0.0.2").unwrap();
        limiter.charge_principal(&owner('a'), &actor("cli")).unwrap();
    }

    #[test]
    fn the_clock_stepping_back_neither_refills_nor_blocks() {
        let (limiter, clock) = limiter(60, 600, 60);
        let (o, a) = (owner('a'), actor("cli"));
        for _ in 0..59 {
            limiter.charge_principal(&o, &a).unwrap();
        }
        clock.0.store(0, Ordering::Relaxed);
        limiter.charge_principal(&o, &a).unwrap();
        assert!(limiter.charge_principal(&o, &a).is_err());
        clock.advance(1_000);
        limiter.charge_principal(&o, &a).unwrap();
    }

    #[test]
    fn the_clock_stepping_back_refills_every_empty_bucket_from_there() {
        let (o, a) = (owner('a'), actor("cli"));
        let refused_once_then_refilled =
            |limiter: &Limiter, clock: &FakeClock, refused: &dyn Fn() -> bool| {
                assert!(refused(), "the bucket is not empty");
                clock.0.store(10_000, Ordering::Relaxed);
                assert!(refused(), "stepping back refilled");
                clock.advance(60_000);
                assert!(!refused(), "{limiter:?} waits for the old time");
            };
        let (limiter, clock) = limiter(1, 600, 600);
        limiter.charge_principal(&o, &a).unwrap();
        refused_once_then_refilled(&limiter, &clock, &|| limiter.check_principal(&o, &a).is_err());
        let (limiter, clock) = self::limiter(600, 1, 600);
        limiter.charge_principal(&o, &a).unwrap();
        refused_once_then_refilled(&limiter, &clock, &|| limiter.charge_principal(&o, &a).is_err());
        let (limiter, clock) = self::limiter(600, 600, 1);
        limiter.charge_host("10.0.0.1").unwrap();
        refused_once_then_refilled(&limiter, &clock, &|| limiter.charge_host("10.0.0.1").is_err());
    }

    #[test]
    fn after_a_step_back_the_stated_wait_is_true() {
        let (limiter, clock) = limiter(1, 600, 60);
        let (o, a) = (owner('a'), actor("cli"));
        limiter.charge_principal(&o, &a).unwrap();
        clock.0.store(0, Ordering::Relaxed);
        let wait = limiter.charge_principal(&o, &a).unwrap_err().retry_after_secs();
        assert_eq!(wait, 60);
        clock.advance(wait * 1000);
        limiter.charge_principal(&o, &a).unwrap();
    }

    #[test]
    fn a_refused_host_is_limited_until_a_token_is_back_and_no_other_is() {
        let (limiter, clock) = limiter(60, 600, 1);
        limiter.charge_host("10.0.0.1").unwrap();
        assert!(!limiter.some_host_limited(), "nobody was refused");
        assert!(limiter.charge_host("10.0.0.1").is_err());
        assert!(limiter.some_host_limited() && limiter.host_limited("10.0.0.1"));
        assert!(!limiter.host_limited("10.0.0.2"));
        clock.advance(59_999);
        assert!(limiter.some_host_limited() && limiter.host_limited("10.0.0.1"));
        clock.advance(1);
        assert!(!limiter.some_host_limited() && !limiter.host_limited("10.0.0.1"));
        limiter.charge_host("10.0.0.1").unwrap();
        assert!(limiter.charge_host("10.0.0.1").is_err());
        clock.0.store(0, Ordering::Relaxed);
        assert!(!limiter.some_host_limited(), "a moment from before the step back");
    }

    #[test]
    fn full_buckets_are_forgotten_and_a_table_has_a_hard_cap() {
        let (limiter, clock) = limiter(60, 600, 60);
        for n in 0..MAX_BUCKETS + 100 {
            limiter.charge_host(&format!("host-{n}")).unwrap();
        }
        assert_eq!(limiter.tables.lock().hosts.buckets.len(), MAX_BUCKETS);
        clock.advance(60_000);
        for _ in 0..MAX_BUCKETS {
            limiter.charge_host("one").ok();
            clock.advance(1_000);
        }
        assert_eq!(limiter.tables.lock().hosts.buckets.len(), 1);
    }

    #[test]
    fn a_long_host_is_cut_at_a_character() {
        let (limiter, _) = limiter(60, 600, 60);
        limiter.charge_host(&"é".repeat(4_000)).unwrap();
        assert!(limiter.tables.lock().hosts.buckets.iter().all(|(key, _)| key.len() <= MAX_HOST_LEN));
    }

    #[test]
    fn the_sentence_starts_with_the_word_and_the_wait() {
        let limited = LimitedBucket::Owner { retry_after_secs: 7 };
        let text = limited.principal_sentence(&owner('a'), &actor("cli"));
        assert!(
            text.starts_with(&format!("RATE_LIMITED retry-after 7s actor cli owner {}", owner('a'))),
            "{text}"
        );
        let text = LimitedBucket::Host { retry_after_secs: 1 }.host_sentence("10.0.0.1");
        assert!(text.starts_with("RATE_LIMITED retry-after 1s host 10.0.0.1"), "{text}");
    }

    proptest! {
        /// The limiter against the plainest model there is: exact token counts in rational milliseconds.
        #[test]
        fn the_limiter_is_its_model(
            per_actor in 1u32..20, per_owner in 1u32..40,
            script in proptest::collection::vec((0u64..20_000, 0usize..3), 1..200),
        ) {
            let (limiter, clock) = limiter(per_actor, per_owner, 60);
            let names = ["a", "b", "c"];
            let cap = |rate: u32| u128::from(rate) * 60_000;
            let mut actors = [cap(per_actor); 3];
            let mut whole = cap(per_owner);
            for (wait, who) in script {
                clock.advance(wait);
                for level in &mut actors {
                    *level = (*level + u128::from(wait) * u128::from(per_actor)).min(cap(per_actor));
                }
                whole = (whole + u128::from(wait) * u128::from(per_owner)).min(cap(per_owner));
                let pass = actors[who] >= 60_000 && whole >= 60_000;
                let got = limiter.charge_principal(&owner('a'), &actor(names[who]));
                prop_assert_eq!(got.is_ok(), pass);
                if pass {
                    actors[who] -= 60_000;
                    whole -= 60_000;
                } else if let Err(limited) = got {
                    let secs = limited.retry_after_secs();
                    prop_assert!(secs >= 1);
                    let later = |level: u128, rate: u32| level + u128::from(secs) * 1000 * u128::from(rate);
                    prop_assert!(later(actors[who], per_actor) >= 60_000 && later(whole, per_owner) >= 60_000);
                }
            }
        }
    }
}
