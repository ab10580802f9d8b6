//! Retirements in flight: one barrier per operation, however many ask for it (contract 05 §12.1).
//!
//! The rail and the managed door share one map per plane. Who asks for an operation that is in flight joins it; who
//! asks for it with other coordinates is refused. A flight is a task of its own: whoever started it may go away.

use std::{collections::HashMap, future::Future, sync::Arc};

use cotal_wire::{EpError, OpId};
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;

use crate::{
    drain::Retiring,
    retirement::{RetirementFailure, RetirementReport},
};

/// How a barrier ended.
pub type RetirementOutcome = Result<RetirementReport, RetirementFailure>;

/// The flights of one plane; clones share them.
#[derive(Clone, Default)]
pub struct RetirementFlights(Arc<Mutex<Registry>>);

/// One flight, shared by all who wait for it. Dropped, it flies on.
#[derive(Clone)]
pub struct Flight(Shared<BoxFuture<'static, RetirementOutcome>>);

#[derive(Default)]
struct Registry {
    flights: HashMap<OpId, Registered>,
    /// Numbers flights, so that one that ends late does not take another one off the map.
    launched: u64,
}

struct Registered {
    number: u64,
    of: Retiring,
    flight: Flight,
    /// How many asked for it.
    askers: usize,
}

impl RetirementFlights {
    /// Joins the flight of this operation, or starts it with `barrier`. A flight of the same operation for other
    /// coordinates is `conflict`, and nothing is started.
    pub fn join_or_start<F>(
        &self,
        retiring: &Retiring,
        barrier: impl FnOnce() -> F,
    ) -> Result<Flight, EpError>
    where
        F: Future<Output = RetirementOutcome> + Send + 'static,
    {
        let mut registry = self.0.lock();
        if let Some(current) = registry.flights.get_mut(&retiring.op) {
            if current.of == *retiring {
                current.askers += 1;
                return Ok(current.flight.clone());
            }
            return Err(EpError::conflict(format!(
                "retirement: operation {} is in flight for {} at {}; it cannot also retire {} at {}",
                retiring.op, current.of.principal, current.of.uid, retiring.principal, retiring.uid
            )));
        }
        registry.launched += 1;
        let landing =
            Landing { registry: Arc::clone(&self.0), op: retiring.op.clone(), number: registry.launched };
        let barrier = barrier();
        let running = tokio::spawn(async move {
            let outcome = barrier.await;
            // Off the map before anyone hears: who retries on a failure starts a flight of its own.
            drop(landing);
            outcome
        });
        let flight = Flight(running.map(|ended| ended.unwrap_or_else(|_| Err(broke_off()))).boxed().shared());
        let number = registry.launched;
        let registered = Registered { number, of: retiring.clone(), flight: flight.clone(), askers: 1 };
        registry.flights.insert(retiring.op.clone(), registered);
        Ok(flight)
    }

    /// How many have asked for this operation since its flight began; 0 when it is not in flight.
    pub fn askers(&self, op: &OpId) -> usize {
        self.0.lock().flights.get(op).map_or(0, |registered| registered.askers)
    }

    /// The operations in flight.
    pub fn in_flight(&self) -> Vec<OpId> {
        self.0.lock().flights.keys().cloned().collect()
    }
}

impl Flight {
    /// How the flight ended.
    pub async fn landed(self) -> RetirementOutcome {
        self.0.await
    }
}

/// What is left when a barrier's task dies.
fn broke_off() -> RetirementFailure {
    RetirementFailure {
        error: EpError::internal("retirement: the barrier did not run to its end; ask again to resume it"),
        began: true,
    }
}

/// Takes a flight off the map when its task ends in any way, if it is still the registered one.
struct Landing {
    registry: Arc<Mutex<Registry>>,
    op: OpId,
    number: u64,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut registry = self.registry.lock();
        if registry.flights.get(&self.op).is_some_and(|registered| registered.number == self.number) {
            registry.flights.remove(&self.op);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use cotal_wire::{EpCode, LifecycleUid, Principal};
    use tokio::sync::oneshot;

    use super::*;

    fn retiring(actor: &str) -> Retiring {
        let uid = LifecycleUid::parse(&"a".repeat(26)).unwrap();
        Retiring {
            op: OpId::managed_retirement(&uid),
            principal: Principal::parse_key(&format!("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.{actor}")).unwrap(),
            uid,
        }
    }

    fn report(rows: u64) -> RetirementReport {
        RetirementReport { revoked_rows: rows, ..RetirementReport::default() }
    }

    fn failure() -> RetirementOutcome {
        Err(RetirementFailure { error: EpError::unavailable("not verifiably gone"), began: true })
    }

    #[tokio::test]
    async fn the_same_operation_at_the_same_coordinates_joins() {
        let flights = RetirementFlights::default();
        let started = AtomicUsize::new(0);
        let (land, landed) = oneshot::channel();
        let first = flights
            .join_or_start(&retiring("bob"), || {
                started.fetch_add(1, Ordering::SeqCst);
                landed.map(|outcome| outcome.unwrap())
            })
            .unwrap();
        let second = flights
            .join_or_start(&retiring("bob"), || {
                started.fetch_add(1, Ordering::SeqCst);
                std::future::ready(Ok(report(0)))
            })
            .unwrap();
        assert_eq!(flights.in_flight(), [retiring("bob").op]);
        land.send(Ok(report(7))).unwrap();
        assert_eq!((first.landed().await, second.landed().await), (Ok(report(7)), Ok(report(7))));
        assert_eq!(started.load(Ordering::SeqCst), 1);
        assert!(flights.in_flight().is_empty());
    }

    #[tokio::test]
    async fn other_coordinates_under_the_same_operation_start_nothing() {
        let flights = RetirementFlights::default();
        let (land, landed) = oneshot::channel::<RetirementOutcome>();
        let first =
            flights.join_or_start(&retiring("bob"), || landed.map(|outcome| outcome.unwrap())).unwrap();
        let refusal = flights
            .join_or_start(&retiring("eve"), || -> std::future::Ready<RetirementOutcome> {
                panic!("nothing may start")
            })
            .err()
            .unwrap();
        assert_eq!(refusal.code, EpCode::Conflict);
        land.send(Ok(report(1))).unwrap();
        assert_eq!(first.landed().await, Ok(report(1)));
    }

    #[tokio::test]
    async fn a_flight_that_failed_is_off_the_map_before_anyone_hears() {
        let flights = RetirementFlights::default();
        for outcome in [failure(), Ok(report(1)), failure()] {
            let mine = outcome.clone();
            let flight = flights.join_or_start(&retiring("bob"), move || std::future::ready(mine)).unwrap();
            assert_eq!(flight.landed().await, outcome);
            assert!(flights.in_flight().is_empty());
        }
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_does_not_stop_the_flight() {
        let flights = RetirementFlights::default();
        let (land, landed) = oneshot::channel::<()>();
        let (done, ran) = oneshot::channel();
        let flight = flights
            .join_or_start(&retiring("bob"), || async move {
                landed.await.unwrap();
                done.send(()).unwrap();
                Ok(report(1))
            })
            .unwrap();
        drop(flight);
        land.send(()).unwrap();
        ran.await.expect("the barrier ran to its end");
    }

    #[tokio::test]
    async fn a_barrier_that_panics_may_have_begun_and_leaves_the_map() {
        let flights = RetirementFlights::default();
        let flight =
            flights.join_or_start(&retiring("bob"), || async { panic!("a defect of the barrier") }).unwrap();
        let failed = flight.landed().await.unwrap_err();
        assert!(failed.began);
        assert_eq!(failed.error.code, EpCode::Internal);
        assert!(flights.in_flight().is_empty());
    }

    #[tokio::test]
    async fn a_flight_that_ends_late_leaves_its_successor_registered() {
        let flights = RetirementFlights::default();
        let (_land, landed) = oneshot::channel::<RetirementOutcome>();
        let _flight =
            flights.join_or_start(&retiring("bob"), || landed.map(|outcome| outcome.unwrap())).unwrap();
        let op = retiring("bob").op;
        drop(Landing { registry: Arc::clone(&flights.0), op: op.clone(), number: 0 });
        assert_eq!(flights.in_flight(), [op]);
    }
}
