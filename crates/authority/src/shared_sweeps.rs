//! Evictions that share their sweeps.
//!
//! A verified eviction is a request to the delivery daemon, and a sweep of every server takes it a quarter of a second
//! however few it is about (contract 01 §5). Many barriers at once would pay for a connection and a sweep each; here one
//! request names the principals of all that wait.
//!
//! Nothing is proved by less than before. A call is only ever part of a request that was sent after the call was made,
//! so the sweep that answers it began after its deny-new had landed; each call gets the verdicts of its own principals,
//! as the daemon gave them; and the claim is looked at again when the request is sent, for a call may have waited.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use cotal_wire::{EpError, Principal, delivery_admin::MAX_PRINCIPALS};
use futures::{FutureExt, future::BoxFuture};

use crate::{
    evict::{Eviction, Evictor},
    sharing::{Bounds, Sharing},
};

/// Requests that are under way at once. The daemon works on eight, and others ask it too.
const LANES: usize = 3;

/// Asked before each request; a refusal evicts nobody.
pub type MayEvict = Arc<dyn Fn() -> BoxFuture<'static, Result<(), EpError>> + Send + Sync>;

/// An evictor whose concurrent calls share requests of another.
pub struct SharedSweeps(Sharing<BTreeSet<Principal>, Vec<Eviction>>);

impl SharedSweeps {
    /// Over this evictor, while this allows it.
    pub fn over(inner: Arc<dyn Evictor>, may_evict: MayEvict) -> Self {
        let bounds = Bounds { lanes: LANES, most: MAX_PRINCIPALS, weigh: BTreeSet::len };
        let work = move |calls: Vec<BTreeSet<Principal>>| {
            let (inner, may_evict) = (inner.clone(), may_evict.clone());
            async move {
                let all: BTreeSet<Principal> = calls.iter().flatten().cloned().collect();
                let verdicts = match may_evict().await {
                    Ok(()) => inner.evict(&all).await,
                    Err(refusal) => unverified(&all, &refusal.message),
                };
                let own = |call: &BTreeSet<Principal>| {
                    verdicts.iter().filter(|verdict| call.contains(&verdict.principal)).cloned().collect()
                };
                calls.iter().map(own).collect()
            }
            .boxed()
        };
        Self(Sharing::new(bounds, Box::new(work)))
    }
}

#[async_trait]
impl Evictor for SharedSweeps {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let verdicts = self.0.call(principals.clone()).await;
        verdicts.unwrap_or_else(|| unverified(principals, "the eviction broke off"))
    }
}

fn unverified(principals: &BTreeSet<Principal>, note: &str) -> Vec<Eviction> {
    principals.iter().map(|principal| Eviction::unverified(principal, note)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use parking_lot::Mutex;
    use tokio::{sync::Semaphore, task::JoinHandle};

    use super::*;

    /// Answers when it is let, and remembers what it was asked.
    struct Gated {
        gate: Semaphore,
        asked: Mutex<Vec<BTreeSet<Principal>>>,
    }

    #[async_trait]
    impl Evictor for Gated {
        async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
            self.asked.lock().push(principals.clone());
            self.gate.acquire().await.unwrap().forget();
            assert!(!principals.contains(&principal("dies")), "a bug");
            let verdict = |one: &Principal| Eviction {
                verified_gone: !one.actor.as_str().starts_with("stays"),
                ..Eviction::unverified(one, "")
            };
            principals.iter().map(verdict).collect()
        }
    }

    struct Stage {
        inner: Arc<Gated>,
        sweeps: Arc<SharedSweeps>,
        holds: Arc<AtomicBool>,
    }

    type Asking = JoinHandle<Vec<(String, bool)>>;

    impl Stage {
        fn new() -> Self {
            let inner = Arc::new(Gated { gate: Semaphore::new(0), asked: Mutex::default() });
            let holds = Arc::new(AtomicBool::new(true));
            let may_evict: MayEvict = Arc::new({
                let holds = holds.clone();
                move || {
                    let holds = holds.load(Ordering::SeqCst);
                    let answer = if holds { Ok(()) } else { Err(EpError::unavailable("the claim is lost")) };
                    async move { answer }.boxed()
                }
            });
            let sweeps = Arc::new(SharedSweeps::over(inner.clone(), may_evict));
            Self { inner, sweeps, holds }
        }

        /// Asks, and returns once the call waits or its request is under way.
        async fn ask(&self, actors: &[&str]) -> Asking {
            let (sweeps, principals) = (self.sweeps.clone(), set(actors));
            let call = tokio::spawn(async move {
                let verdicts = sweeps.evict(&principals).await;
                verdicts.iter().map(|one| (one.principal.actor.to_string(), one.verified_gone)).collect()
            });
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            call
        }

        /// Takes every lane.
        async fn fill(&self) -> Vec<Asking> {
            let mut calls = Vec::new();
            for n in 0..LANES {
                calls.push(self.ask(&[&format!("early{n}")]).await);
            }
            calls
        }

        fn asked_late(&self) -> Vec<BTreeSet<Principal>> {
            self.inner.asked.lock()[LANES..].to_vec()
        }
    }

    fn principal(actor: &str) -> Principal {
        Principal::parse_key(&format!("local.{actor}")).unwrap()
    }

    fn set(actors: &[&str]) -> BTreeSet<Principal> {
        actors.iter().map(|actor| principal(actor)).collect()
    }

    async fn verdicts(call: Asking) -> Vec<(String, bool)> {
        call.await.unwrap()
    }

    fn of(verdicts: &[(&str, bool)]) -> Vec<(String, bool)> {
        verdicts.iter().map(|(actor, gone)| ((*actor).to_owned(), *gone)).collect()
    }

    #[tokio::test]
    async fn a_sweep_answers_only_for_who_was_asked_about_before_it_began() {
        let stage = Stage::new();
        let early = stage.fill().await;
        // Somebody who is named by a request that is under way waits for the next one all the same.
        let late = stage.ask(&["early0"]).await;
        stage.inner.gate.add_permits(LANES);
        for call in early {
            verdicts(call).await;
        }
        assert!(!late.is_finished());
        assert_eq!(stage.asked_late(), [set(&["early0"])]);
        stage.inner.gate.add_permits(1);
        assert_eq!(verdicts(late).await, of(&[("early0", true)]));
    }

    #[tokio::test]
    async fn calls_that_wait_share_one_request_and_each_gets_its_own_verdicts() {
        let stage = Stage::new();
        let _early = stage.fill().await;
        let late =
            [stage.ask(&["a", "stays"]).await, stage.ask(&["b"]).await, stage.ask(&["stays", "c"]).await];
        stage.inner.gate.add_permits(LANES + 1);
        let expected: [&[_]; 3] =
            [&[("a", true), ("stays", false)], &[("b", true)], &[("c", true), ("stays", false)]];
        for (call, expected) in late.into_iter().zip(expected) {
            assert_eq!(verdicts(call).await, of(expected));
        }
        assert_eq!(stage.asked_late(), [set(&["a", "b", "c", "stays"])]);
    }

    #[tokio::test]
    async fn a_request_that_dies_verifies_nobody_of_it() {
        let stage = Stage::new();
        let _early = stage.fill().await;
        let late = [stage.ask(&["dies"]).await, stage.ask(&["a"]).await];
        stage.inner.gate.add_permits(LANES + 1);
        for (call, actor) in late.into_iter().zip(["dies", "a"]) {
            assert_eq!(verdicts(call).await, of(&[(actor, false)]));
        }
    }

    #[tokio::test]
    async fn a_claim_that_was_lost_while_a_call_waited_evicts_nobody_for_it() {
        let stage = Stage::new();
        let early = stage.fill().await;
        let late = stage.ask(&["late"]).await;
        stage.holds.store(false, Ordering::SeqCst);
        stage.inner.gate.add_permits(LANES);
        for call in early {
            assert!(verdicts(call).await[0].1);
        }
        assert_eq!(verdicts(late).await, of(&[("late", false)]));
        assert!(stage.asked_late().is_empty());
    }
}
