//! Calls that share the work of one: those that are made while work is under way wait for the next, and do it together.
//!
//! A call is only ever part of work that begins after it was made. What the work finds is therefore as fresh for each
//! of its calls as it would be for that call alone.

use std::{collections::VecDeque, sync::Arc};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Answers calls together: one answer for each, in order.
pub(crate) type Work<C, A> = Box<dyn Fn(Vec<C>) -> BoxFuture<'static, Vec<A>> + Send + Sync>;

/// How much is shared.
pub(crate) struct Bounds<C> {
    /// Works that are under way at once.
    pub(crate) lanes: usize,
    /// The most that the calls of one work weigh together. A call that weighs more is worked on alone.
    pub(crate) most: usize,
    /// What a call weighs.
    pub(crate) weigh: fn(&C) -> usize,
}

/// Calls and the work that answers them.
pub(crate) struct Sharing<C, A>(Arc<Shared<C, A>>);

struct Shared<C, A> {
    bounds: Bounds<C>,
    work: Work<C, A>,
    queue: Mutex<Queue<C, A>>,
}

struct Queue<C, A> {
    lanes: usize,
    waiting: VecDeque<Waiting<C, A>>,
}

struct Waiting<C, A> {
    call: C,
    answer: oneshot::Sender<A>,
}

impl<C: Send + 'static, A: Send + 'static> Sharing<C, A> {
    pub(crate) fn new(bounds: Bounds<C>, work: Work<C, A>) -> Self {
        let queue = Mutex::new(Queue { lanes: 0, waiting: VecDeque::new() });
        Self(Arc::new(Shared { bounds, work, queue }))
    }

    /// The answer, or `None` when the work broke off. A call that is dropped before its work began is not worked on;
    /// after that the work goes on for the others.
    pub(crate) async fn call(&self, call: C) -> Option<A> {
        let (answer, answered) = oneshot::channel();
        let begin = {
            let mut queue = self.0.queue.lock();
            queue.waiting.push_back(Waiting { call, answer });
            let free = queue.lanes < self.0.bounds.lanes;
            queue.lanes += usize::from(free);
            free
        };
        if begin {
            tokio::spawn(Arc::clone(&self.0).serve());
        }
        answered.await.ok()
    }
}

impl<C: Send + 'static, A: Send + 'static> Shared<C, A> {
    /// One lane: work after work, until nobody waits.
    async fn serve(self: Arc<Self>) {
        loop {
            let (calls, answers) = {
                let mut queue = self.queue.lock();
                let next = queue.next(&self.bounds);
                if next.0.is_empty() {
                    queue.lanes -= 1;
                    return;
                }
                next
            };
            // On a task: work that dies leaves its own callers without an answer, and the lane goes on.
            let Ok(answered) = tokio::spawn((self.work)(calls)).await else { continue };
            for (answer, answered) in answers.into_iter().zip(answered) {
                // Whoever has gone away meanwhile needs none.
                let _ = answer.send(answered);
            }
        }
    }
}

impl<C, A> Queue<C, A> {
    /// The calls of the next work, the oldest first, and whom to answer.
    fn next(&mut self, bounds: &Bounds<C>) -> (Vec<C>, Vec<oneshot::Sender<A>>) {
        self.waiting.retain(|waiting| !waiting.answer.is_closed());
        let (mut calls, mut answers) = (Vec::new(), Vec::new());
        let mut weight = 0;
        while let Some(first) = self.waiting.front() {
            weight += (bounds.weigh)(&first.call);
            if !calls.is_empty() && weight > bounds.most {
                break;
            }
            if let Some(Waiting { call, answer }) = self.waiting.pop_front() {
                calls.push(call);
                answers.push(answer);
            }
        }
        (calls, answers)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::{sync::Semaphore, task::JoinHandle};

    use super::*;

    const LANES: usize = 2;

    /// Work that ends when it is let, remembers what it was asked, and answers tenfold; 0 kills it.
    struct Stage {
        gate: Arc<Semaphore>,
        begun: Arc<Mutex<Vec<Vec<usize>>>>,
        sharing: Arc<Sharing<usize, usize>>,
    }

    impl Stage {
        fn new() -> Self {
            let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
            let work: Work<usize, usize> = Box::new({
                let (gate, begun) = (gate.clone(), begun.clone());
                move |calls| {
                    let gate = gate.clone();
                    begun.lock().push(calls.clone());
                    async move {
                        gate.acquire().await.unwrap().forget();
                        assert!(!calls.contains(&0), "a bug");
                        calls.iter().map(|call| call * 10).collect()
                    }
                    .boxed()
                }
            });
            let bounds = Bounds { lanes: LANES, most: 10, weigh: |call| *call };
            Self { gate, begun, sharing: Arc::new(Sharing::new(bounds, work)) }
        }

        /// Calls, and returns once the call waits or its work has begun.
        async fn call(&self, call: usize) -> JoinHandle<Option<usize>> {
            let sharing = self.sharing.clone();
            let calling = tokio::spawn(async move { sharing.call(call).await });
            settle().await;
            calling
        }

        fn begun(&self) -> Vec<Vec<usize>> {
            self.begun.lock().clone()
        }

        async fn finish(&self, works: usize) {
            self.gate.add_permits(works);
            settle().await;
        }
    }

    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_call_is_part_of_work_that_began_after_it_and_those_that_wait_share_one() {
        let stage = Stage::new();
        let early = [stage.call(1).await, stage.call(2).await];
        let late = [stage.call(3).await, stage.call(4).await, stage.call(1).await];
        assert_eq!(stage.begun(), [[1], [2]], "the lanes are taken");
        stage.finish(1).await;
        assert_eq!(stage.begun()[LANES..], [vec![3, 4, 1]]);
        assert!(
            late.iter().all(|call| !call.is_finished()),
            "what was under way answers nobody who came later"
        );
        stage.finish(LANES).await;
        for (calling, answer) in early.into_iter().chain(late).zip([10, 20, 30, 40, 10]) {
            assert_eq!(calling.await.unwrap(), Some(answer));
        }
        assert_eq!(stage.sharing.0.queue.lock().lanes, 0);
    }

    #[tokio::test]
    async fn one_work_takes_no_more_than_its_bound_and_at_least_one_call() {
        let stage = Stage::new();
        let mut calls = Vec::new();
        for call in [1, 1, 6, 4, 2, 40, 3] {
            calls.push(stage.call(call).await);
        }
        stage.finish(calls.len()).await;
        for calling in calls {
            assert!(calling.await.unwrap().is_some());
        }
        assert_eq!(stage.begun()[LANES..], [vec![6, 4], vec![2], vec![40], vec![3]]);
    }

    #[tokio::test]
    async fn work_that_dies_answers_nobody_and_the_lane_goes_on() {
        let stage = Stage::new();
        let early = [stage.call(0).await, stage.call(1).await];
        let late = stage.call(2).await;
        stage.finish(LANES + 1).await;
        for (calling, answer) in early.into_iter().chain([late]).zip([None, Some(10), Some(20)]) {
            assert_eq!(calling.await.unwrap(), answer);
        }
        assert_eq!(stage.sharing.0.queue.lock().lanes, 0);
    }

    #[tokio::test]
    async fn a_call_that_was_dropped_while_it_waited_is_not_worked_on() {
        let stage = Stage::new();
        let early = [stage.call(1).await, stage.call(2).await];
        let (gone, stays) = (stage.call(3).await, stage.call(4).await);
        gone.abort();
        settle().await;
        stage.finish(LANES + 1).await;
        for calling in early.into_iter().chain([stays]) {
            assert!(calling.await.unwrap().is_some());
        }
        assert_eq!(stage.begun()[LANES..], [vec![4]]);
    }
}
