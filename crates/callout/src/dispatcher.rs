//! Intake: one task owns the queues, everything else is a task of its own.
//!
//! Requests wait in front of the slots, oldest first (contract 04 §8.7). The contract charges a host only once its
//! bearer did not verify, so what a flood sends must be opened and checked before it is refused, and in one queue with
//! verified users it would make them wait and be shed with it. So, beyond the contract, a request from a host whose
//! bucket is empty is a suspect: it waits in a queue of its own, under the same rules, and its bearer is checked by few
//! tasks and without a slot. One that verifies takes the place of its receipt in front of the slots: no verified bearer
//! is refused for its host. Users of a flooding host share with the flood what those few tasks check, which is more than
//! can be refused; all others only pay for a look at the host of each request, and only while some host is limited.
//!
//! Intake never pauses: a request's age counts from its arrival, and what waits is bounded by number and bytes. Denials
//! without a slot are signed by few tasks as well; those that could not be signed before the broker gave up are counted
//! and dropped.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cotal_broker::{Message, Subscription};
use futures::FutureExt as _;
use tokio::{
    task::{self, JoinError, JoinSet, unconstrained},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    admission::{ANSWER_MARGIN, Admission, Backlog, Offer, Waiting, sheds},
    connect::{Lane, Request, Unserved},
    slots::Slots,
};

/// Most suspects that are checked at once. Checking is nothing but computing: this is a flood's share of the cores.
const MAX_CHECKING: usize = 2;
/// Most denials without a slot that are signed at once, which is nothing but computing too.
const MAX_REFUSING: usize = 4;
/// What a message holds beside its payload, and all that a checked one holds, about.
const MESSAGE_OVERHEAD: usize = 512;
/// How often the log says that requests were left unanswered.
const UNANSWERED_NOTE_INTERVAL: Duration = Duration::from_secs(1);

/// Owns the queues. It reads, decides and spawns; it never verifies or signs anything itself.
pub(crate) struct Dispatcher {
    lane: Arc<Lane>,
    budget: Duration,
    admission: Admission<Request>,
    /// Each says how long its user waited, when it has one.
    serving: JoinSet<Option<Duration>>,
    /// When each has taken its slot.
    started: HashMap<task::Id, Instant>,
    suspects: Backlog<Message>,
    checking: JoinSet<Option<(Request, Instant)>>,
    refusals: Backlog<(Request, Unserved)>,
    refusing: JoinSet<()>,
    unanswered: Unanswered,
}

/// Requests that were dropped without a denial, since the log last said so.
struct Unanswered {
    count: usize,
    noted: Option<Instant>,
}

impl Dispatcher {
    pub(crate) fn new(lane: Arc<Lane>, slots: Slots, budget: Duration) -> Self {
        Self {
            lane,
            budget,
            admission: Admission::new(slots, budget),
            serving: JoinSet::new(),
            started: HashMap::new(),
            suspects: Backlog::new(),
            checking: JoinSet::new(),
            refusals: Backlog::new(),
            refusing: JoinSet::new(),
            unanswered: Unanswered { count: 0, noted: None },
        }
    }

    /// Serves until `stop`, or until the subscription ends, and then until everything is answered and the broker has read
    /// that.
    pub(crate) async fn run(mut self, subscription: Subscription, stop: CancellationToken) {
        let mut intake = Some(subscription);
        while intake.is_some() || !self.is_idle() {
            let expiry = self.next_deadline();
            tokio::select! {
                biased;
                Some(ended) = self.serving.join_next_with_id() => {
                    self.report(&ended);
                    self.served(ended);
                }
                Some(checked) = self.checking.join_next() => {
                    self.report(&checked);
                    if let Ok(Some((request, received))) = checked {
                        self.checked(Waiting { request, bytes: MESSAGE_OVERHEAD, received });
                    }
                }
                Some(ended) = self.refusing.join_next() => self.report(&ended),
                () = sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => {}
                () = stop.cancelled(), if intake.is_some() => self.close(&mut intake),
                message = next(&mut intake) => match message {
                    Some(message) => self.take(message),
                    None => intake = None,
                },
            }
            self.advance();
        }
        self.note_unanswered();
        self.lane.hand_over().await;
    }

    fn is_idle(&self) -> bool {
        self.admission.is_idle()
            && self.suspects.is_empty()
            && self.checking.is_empty()
            && self.refusals.is_empty()
            && self.refusing.is_empty()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.admission.next_deadline(), self.suspects.next_deadline(self.budget)];
        deadlines.into_iter().flatten().min()
    }

    /// Takes what has already arrived and unsubscribes. A request that crosses the unsubscribe on the wire is lost to
    /// the broker's own timeout, as one would be whose callout died.
    fn close(&mut self, intake: &mut Option<Subscription>) {
        while let Some(Some(message)) = unconstrained(next(intake)).now_or_never() {
            self.take(message);
        }
        *intake = None;
    }

    fn take(&mut self, message: Message) {
        let received = Instant::now();
        let bytes = message.payload.len() + MESSAGE_OVERHEAD;
        if self.lane.is_suspect(&message) {
            self.suspect(Waiting { request: message, bytes, received });
        } else {
            let offer = self.admission.offer(Waiting { request: Request::Sealed(message), bytes, received });
            self.follow(offer);
        }
    }

    fn follow(&mut self, offer: Offer<Request>) {
        match offer {
            Offer::Start(request, since) => self.serve(request, since),
            Offer::Queued => {}
            Offer::Shed { request, waited, ahead } => self.refuse(request, Unserved::Shed { waited, ahead }),
        }
    }

    /// The queue's rules, in front of the checks.
    fn suspect(&mut self, request: Waiting<Message>) {
        let waited = self.suspects.waited(request.received).unwrap_or_default();
        let ahead = self.suspects.len() + self.checking.len();
        let shed = if sheds(waited, self.budget) {
            request
        } else {
            match self.suspects.insert(request) {
                Ok(()) => return,
                Err(full) => full,
            }
        };
        self.refuse(sealed(shed), Unserved::Shed { waited, ahead });
    }

    /// A suspect that verified is one no longer.
    fn checked(&mut self, request: Waiting<Request>) {
        if request.request.is_denied() {
            self.refuse(request, Unserved::Denied);
        } else {
            let offer = self.admission.rejoin(request, Instant::now());
            self.follow(offer);
        }
    }

    /// The expired ones first, so that a slot is never given to a request that nobody waits for.
    fn advance(&mut self) {
        let now = Instant::now();
        while let Some(request) = self.admission.expire_next(now) {
            self.refuse(request, Unserved::Expired);
        }
        while let Some(request) = self.suspects.expire_next(self.budget, now) {
            self.refuse(sealed(request), Unserved::Expired);
        }
        while let Some(request) = self.admission.start_next(now) {
            self.serve(request, now);
        }
        while self.checking.len() < MAX_CHECKING
            && let Some(request) = self.suspects.pop()
        {
            let lane = Arc::clone(&self.lane);
            self.checking.spawn(async move { lane.check(request) });
        }
        // The broker has denied these itself.
        while self.refusals.expire_next(self.budget + ANSWER_MARGIN, now).is_some() {
            self.unanswered.count += 1;
        }
        while self.refusing.len() < MAX_REFUSING
            && let Some(Waiting { request: (request, why), bytes, received }) = self.refusals.pop()
        {
            self.refusing.spawn(Arc::clone(&self.lane).refuse(Waiting { request, bytes, received }, why));
        }
        if self.unanswered.is_due(now) {
            self.unanswered.noted = Some(now);
            self.note_unanswered();
        }
    }

    fn serve(&mut self, request: Waiting<Request>, since: Instant) {
        let lane = Arc::clone(&self.lane);
        let serving = async move { lane.serve(request).await.then(|| since.elapsed()) };
        self.started.insert(self.serving.spawn(serving).id(), since);
    }

    fn served(&mut self, ended: Result<(task::Id, Option<Duration>), JoinError>) {
        let (id, took) = ended.unwrap_or_else(|error| (error.id(), None));
        if let Some(since) = self.started.remove(&id) {
            self.admission.ended(since, took, Instant::now());
        }
    }

    fn refuse(&mut self, request: Waiting<Request>, why: Unserved) {
        let Waiting { request, bytes, received } = request;
        if self.refusals.insert(Waiting { request: (request, why), bytes, received }).is_err() {
            self.unanswered.count += 1;
        }
    }

    fn report<T>(&self, ended: &Result<T, JoinError>) {
        if ended.is_err() {
            self.lane.note("a request's task failed; the broker will time its connect out");
        }
    }

    fn note_unanswered(&mut self) {
        let count = std::mem::take(&mut self.unanswered.count);
        if count > 0 {
            self.lane.note(&format!(
                "left {count} requests to the broker's own timeout: more arrive than can be refused"
            ));
        }
    }
}

impl Unanswered {
    fn is_due(&self, now: Instant) -> bool {
        let quiet = |noted| now.saturating_duration_since(noted) < UNANSWERED_NOTE_INTERVAL;
        self.count > 0 && !self.noted.is_some_and(quiet)
    }
}

fn sealed(request: Waiting<Message>) -> Waiting<Request> {
    let Waiting { request, bytes, received } = request;
    Waiting { request: Request::Sealed(request), bytes, received }
}

async fn next(intake: &mut Option<Subscription>) -> Option<Message> {
    match intake {
        Some(subscription) => subscription.next().await,
        None => std::future::pending().await,
    }
}
