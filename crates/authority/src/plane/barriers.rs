//! The barriers of an open plane. Each runs in a task of its own, which a close waits for; and one that could not end
//! behind its gate, because somebody did not answer, is run again until it does.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cotal_broker::Connector;
use cotal_wire::{EpCode, EpError, KeySegment, OpId, rows::OpKind};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    barrier::BarrierDeps,
    drain::Retiring,
    flights::RetirementOutcome,
    handle_revocation::{HandleRevocation, revoke_handle},
    intents::{Discovered, remember},
    past::RememberPast,
    retire::retire,
    retirement::RetirementFailure,
    retirements::Retirements,
    takeover::{TakeoverReport, resume_takeover, take_over},
};

/// How long after a failure an owed operation is first run again, and how long the pause may become.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long after a barrier started it is noted which of them are over.
const NOTED_AFTER: Duration = Duration::from_secs(10);
/// How long that may take: a close waits for it.
const NOTED_WITHIN: Duration = Duration::from_secs(2);
/// How long a close waits for barriers that run. Each looks between two steps whether it may go on, so that only one
/// that waits for an eviction takes longer; it is cut off then, which is what the next open resumes.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// Runs barriers.
pub(super) struct Barriers {
    deps: BarrierDeps,
    connector: Connector,
    /// `None` once a close began.
    running: Mutex<Option<JoinSet<()>>>,
    owed: Mutex<BTreeMap<OpId, Owing>>,
    came_to_owe: Notify,
    /// Told of each barrier that starts.
    started: Notify,
}

/// An operation that holds its gate, and that ends when it is run again.
#[derive(Debug, Clone)]
struct Owing {
    kind: OpKind,
    of: Retiring,
}

// === running ==================================================================================================

impl Barriers {
    pub(super) fn new(deps: BarrierDeps, connector: Connector) -> Self {
        Self {
            deps,
            connector,
            running: Mutex::new(Some(JoinSet::new())),
            owed: Mutex::default(),
            came_to_owe: Notify::new(),
            started: Notify::new(),
        }
    }

    pub(super) fn deps(&self) -> &BarrierDeps {
        &self.deps
    }

    /// Retires under an operation, or ends what an earlier run of it began.
    pub(super) async fn retire(self: &Arc<Self>, of: Retiring) -> RetirementOutcome {
        let this = Arc::clone(self);
        let running = self.start(async move {
            let outcome = retire(&this.deps, &of.op, &of.principal, &of.uid).await;
            match &outcome {
                Ok(_) => this.settle(&of.op),
                Err(failure) if failure.began => this.account(OpKind::Retirement, of, &failure.error),
                Err(_) => {}
            }
            outcome
        });
        let running = running.map_err(|error| RetirementFailure { error, began: false })?;
        running.await.unwrap_or_else(|_| Err(RetirementFailure { error: cut_off(), began: true }))
    }

    /// Takes an incarnation over under an operation, or ends what an earlier run of it began.
    pub(super) async fn take_over(self: &Arc<Self>, of: Retiring) -> Result<TakeoverReport, EpError> {
        let this = Arc::clone(self);
        let running = self.start(async move {
            let outcome = take_over(&this.deps, &of.op, &of.principal, &of.uid).await;
            match &outcome {
                Ok(_) => this.settle(&of.op),
                Err(refusal) => this.account(OpKind::Takeover, of, refusal),
            }
            outcome
        })?;
        running.await.unwrap_or_else(|_| Err(cut_off()))
    }

    /// Revokes a handle, or ends what an earlier call began.
    pub(super) async fn revoke_handle(
        self: &Arc<Self>,
        issuer_key: &KeySegment,
        id: &KeySegment,
    ) -> Result<HandleRevocation, EpError> {
        let (this, issuer_key, id) = (Arc::clone(self), issuer_key.clone(), id.clone());
        let running =
            self.start(async move { revoke_handle(&this.deps, &this.connector, &issuer_key, &id).await })?;
        running.await.unwrap_or_else(|_| Err(cut_off()))
    }

    /// Ends a takeover of which there is an intent; one that was never begun is not begun here.
    async fn resume_takeover(self: &Arc<Self>, op: OpId) -> Result<(), EpError> {
        let this = Arc::clone(self);
        let running = self.start(async move { resume_takeover(&this.deps, &op).await.map(drop) })?;
        running.await.unwrap_or_else(|_| Err(cut_off()))
    }

    /// Runs it in a task that does not stop when its caller does, and that a close waits for.
    fn start<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, EpError> {
        let mut running = self.running.lock();
        let Some(tasks) = running.as_mut() else {
            return Err(EpError::unavailable("the authority plane closes; ask again once it has reopened"));
        };
        while tasks.try_join_next().is_some() {}
        self.started.notify_one();
        let (done, outcome) = oneshot::channel();
        tasks.spawn(async move {
            // Nobody may be waiting any more.
            let _ = done.send(work.await);
        });
        Ok(outcome)
    }

    /// Starts nothing any more, waits for what runs, and cuts off what does not end in time.
    pub(super) async fn end(&self) {
        let Some(mut tasks) = self.running.lock().take() else { return };
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(CLOSE_PATIENCE, all).await.is_err() {
            tracing::warn!(
                space = %self.deps.stores.space(),
                "auth-plane: {} barriers were cut off by the close; the next open ends them",
                tasks.len()
            );
            tasks.shutdown().await;
        }
    }
}

/// A barrier whose task is gone.
fn cut_off() -> EpError {
    EpError::unavailable("barrier: it was cut off; ask again to resume it")
}

// === what is owed =============================================================================================

impl Barriers {
    /// What the boot could not end, because somebody did not answer.
    pub(super) fn owe(&self, found: &[Discovered]) {
        for Discovered { op, header } in found {
            let (principal, uid) = (header.principal.clone(), header.lifecycle_uid.clone());
            self.enter(Owing { kind: header.kind, of: Retiring { op: op.clone(), principal, uid } });
        }
    }

    fn account(&self, kind: OpKind, of: Retiring, refusal: &EpError) {
        // Anything else is no matter of time.
        if refusal.code == EpCode::Unavailable {
            self.enter(Owing { kind, of });
        }
    }

    fn enter(&self, owing: Owing) {
        self.owed.lock().insert(owing.of.op.clone(), owing);
        self.came_to_owe.notify_one();
    }

    fn settle(&self, op: &OpId) {
        self.owed.lock().remove(op);
    }

    fn is_owed(&self, op: &OpId) -> bool {
        self.owed.lock().contains_key(op)
    }

    async fn run_again(
        self: &Arc<Self>,
        retirements: &Arc<Retirements>,
        owing: Owing,
    ) -> Result<(), EpError> {
        let Owing { kind, of } = owing;
        match kind {
            // As a request would: joined with the requests that are there.
            OpKind::Retirement => retirements.run(of).await.map(drop).map_err(|failure| failure.error),
            _ => self.resume_takeover(of.op).await,
        }
    }
}

/// Notes what has ended, some time after barriers ran, and once more at the `stop`.
pub(super) async fn remember_what_ended(
    barriers: Arc<Barriers>,
    past: Arc<dyn RememberPast>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            biased;
            () = barriers.started.notified() => {}
            _ = stop.wait_for(|stopped| *stopped) => return,
        }
        let stopped = tokio::select! {
            () = sleep(NOTED_AFTER) => false,
            _ = stop.wait_for(|stopped| *stopped) => true,
        };
        match timeout(NOTED_WITHIN, remember(&barriers.deps, past.as_ref())).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => {
                tracing::debug!(space = %barriers.deps.stores.space(), %refusal, "the past was not noted");
            }
            Err(_) => {
                tracing::debug!(space = %barriers.deps.stores.space(), "the past was not noted in time");
            }
        }
        if stopped {
            return;
        }
    }
}

/// Runs owed operations again, one after the other, with pauses that grow while none ends; until `stop`.
pub(super) async fn end_what_is_owed(
    barriers: Arc<Barriers>,
    retirements: Arc<Retirements>,
    mut stop: watch::Receiver<bool>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let wait = async {
            if barriers.owed.lock().is_empty() {
                barriers.came_to_owe.notified().await;
            }
            sleep(pause).await;
        };
        tokio::select! {
            () = wait => {}
            _ = stop.wait_for(|stopped| *stopped) => return,
        }
        let owed: Vec<Owing> = barriers.owed.lock().values().cloned().collect();
        let mut ended = false;
        for owing in owed {
            let of = owing.of.clone();
            if *stop.borrow() {
                return;
            }
            if !barriers.is_owed(&of.op) {
                continue;
            }
            match barriers.run_again(&retirements, owing).await {
                Ok(()) => {
                    ended = true;
                    barriers.settle(&of.op);
                    tracing::info!(
                        space = %barriers.deps.stores.space(), op = %of.op, principal = %of.principal,
                        "auth-plane: an owed operation has ended"
                    );
                }
                Err(refusal) if refusal.code == EpCode::Unavailable => {
                    tracing::warn!(
                        space = %barriers.deps.stores.space(), op = %of.op, principal = %of.principal, %refusal,
                        "auth-plane: an operation is still owed; its alias stays frozen, and it is run again"
                    );
                }
                // Never begun: whoever asked for it asks again.
                Err(refusal) if refusal.code == EpCode::NotFound => barriers.settle(&of.op),
                Err(refusal) => {
                    barriers.settle(&of.op);
                    tracing::error!(
                        space = %barriers.deps.stores.space(), op = %of.op, principal = %of.principal, %refusal,
                        "auth-plane: an owed operation cannot end like this; it is tried again at the next open"
                    );
                }
            }
        }
        let rests = ended || barriers.owed.lock().is_empty();
        pause = if rests { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
    }
}
