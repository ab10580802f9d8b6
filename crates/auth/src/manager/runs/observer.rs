//! What callers ask managers about runs, heard on the issuing connection and never answered there (contract 06 §12.3).

use std::sync::Arc;

use cotal_authority::manager::runs::{Limits, ObservationTable};
use cotal_broker::{Connection, Message, RAIL_CAPACITY, Subscription};
use cotal_wire::{
    Clock, EpError, SpaceToken,
    manager_authority::{ObservedRequest, RUN_CANCEL, served_run_cancel_subject, served_run_subjects},
};
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Messages that a listener reads before others of its thread have a turn.
const READ_IN_A_TURN: usize = 32;

/// Hears what managers are asked, and keeps it until one is forwarded. Its listeners end with the connection, which
/// reconnects for ever and is closed with the context alone: whoever finds one gone asks a service that ends.
pub(crate) struct RunObserver {
    connection: Connection,
    heard: Arc<Heard>,
    /// One for each listener: it answers once it has read everything that had come by then.
    listeners: Vec<mpsc::Sender<oneshot::Sender<()>>>,
}

struct Heard {
    clock: Arc<dyn Clock>,
    served: Mutex<ObservationTable>,
    cancels: Mutex<ObservationTable>,
}

impl RunObserver {
    /// Listens. It resolves once the broker has taken every subscription: what is asked from then on is heard.
    pub(crate) async fn listen(
        connection: &Connection,
        space: &SpaceToken,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, EpError> {
        let heard = Arc::new(Heard {
            clock,
            served: Mutex::new(ObservationTable::new(Limits::SERVED)),
            cancels: Mutex::new(ObservationTable::new(Limits::CANCELS)),
        });
        let mut listeners = Vec::new();
        for subject in served_run_subjects(space).into_iter().chain([served_run_cancel_subject(space)]) {
            let subscription = connection.subscribe(&subject, None).await?;
            let (ask, asked) = mpsc::channel(1);
            tokio::spawn(Listener { heard: Arc::clone(&heard), read: 0 }.hear(subscription, asked));
            listeners.push(ask);
        }
        connection.flush().await?;
        Ok(Self { connection: connection.clone(), heard, listeners })
    }

    /// Takes what was seen on a served subject, once.
    pub(super) async fn take_served(&self, subject: &str) -> Result<Option<ObservedRequest>, EpError> {
        self.catch_up().await?;
        Ok(self.heard.served.lock().take(subject, self.heard.clock.now_millis()))
    }

    /// Takes what was seen on a cancellation's subject, once.
    pub(super) async fn take_cancel(&self, subject: &str) -> Result<Option<ObservedRequest>, EpError> {
        self.catch_up().await?;
        Ok(self.heard.cancels.lock().take(subject, self.heard.clock.now_millis()))
    }

    /// What the broker sent before now has been read when this returns: the flush brings it here, and each listener then
    /// says that it has read what had come. A forward may be quicker than the copy of the request that it forwards.
    async fn catch_up(&self) -> Result<(), EpError> {
        self.connection.flush().await?;
        let gone =
            || EpError::unavailable("what managers are asked is not heard any more: this service ends");
        let mut answers = Vec::with_capacity(self.listeners.len());
        for listener in &self.listeners {
            let (answer, answered) = oneshot::channel();
            listener.send(answer).await.map_err(|_| gone())?;
            answers.push(answered);
        }
        for answered in answers {
            answered.await.map_err(|_| gone())?;
        }
        Ok(())
    }
}

/// One subscription's reader.
struct Listener {
    heard: Arc<Heard>,
    /// Messages since others last had a turn.
    read: usize,
}

impl Listener {
    /// Until the connection has ended or nobody asks it any more.
    async fn hear(mut self, mut subscription: Subscription, mut asked: mpsc::Receiver<oneshot::Sender<()>>) {
        loop {
            tokio::select! {
                message = subscription.next() => match message {
                    Some(message) => self.read(&message).await,
                    None => return,
                },
                answer = asked.recv() => {
                    let Some(answer) = answer else { return };
                    // What had come by now is no more than a subscription holds.
                    for _ in 0..RAIL_CAPACITY {
                        // Not yielding here: what looks empty must be empty.
                        match tokio::task::unconstrained(subscription.next()).now_or_never() {
                            Some(Some(message)) => self.read(&message).await,
                            Some(None) => return,
                            None => break,
                        }
                    }
                    let _nobody_waits_any_more = answer.send(());
                }
            }
        }
    }

    async fn read(&mut self, message: &Message) {
        self.heard.observe(&message.subject, &message.payload);
        self.read += 1;
        if self.read == READ_IN_A_TURN {
            self.read = 0;
            tokio::task::yield_now().await;
        }
    }
}

impl Heard {
    /// What no manager would serve is passed over.
    fn observe(&self, subject: &str, body: &[u8]) {
        let Some((parsed, request)) = ObservedRequest::read(subject, body) else { return };
        let table = if parsed.command.as_str() == RUN_CANCEL { &self.cancels } else { &self.served };
        table.lock().insert(subject, &parsed.caller.principal, request, self.clock.now_millis());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cotal_authority::manager::runs::WINDOW_MS;
    use cotal_broker::{Connector, Custody, Lifetime};
    use cotal_testkit::{
        runs::{RunAsker, run_id},
        space::TestSpace,
    };
    use cotal_trust::system::{SystemClock, SystemEntropy};
    use cotal_wire::{
        ConnId, Generation, InstanceId, LifecycleUid, Permissions, Principal, Rules, UnixMillis,
        grants::infra,
        manager_authority::{RUN_RESUME, RUN_START, RunOperation},
    };
    use serde_json::json;

    use super::*;

    struct SetClock(Mutex<u64>);

    impl Clock for SetClock {
        fn now_millis(&self) -> UnixMillis {
            UnixMillis(*self.0.lock())
        }
    }

    /// A broker, the observer at work, and somebody who publishes as whom a test says.
    struct Rig {
        space: TestSpace,
        observer: RunObserver,
        publisher: Connection,
        clock: Arc<SetClock>,
        manager: InstanceId,
        asker: RunAsker,
    }

    impl Rig {
        async fn start() -> Self {
            let space = TestSpace::start("demo", "http://127.0.0.1:1").await;
            let connector = Connector::new(
                &space.server.url(),
                space.space.clone(),
                space.account.data_account(),
                Custody::new(),
                Arc::new(SystemClock),
                Arc::new(SystemEntropy),
            );
            let token = space.space.token();
            let issuer = |inbox: &ConnId| infra::remote_manager_issuer(&token, inbox);
            let issuing =
                connector.for_rail().open("issuer".into(), &issuer, Lifetime::Renewing).await.unwrap();
            let all = || Rules { allow: vec![">".into()], deny: vec![] };
            let anything = |_: &ConnId| Permissions { publish: all(), subscribe: all() };
            let publisher = connector.open("test".into(), &anything, Lifetime::Renewing).await.unwrap();
            let clock = Arc::new(SetClock(Mutex::new(1_000_000)));
            let observer = RunObserver::listen(&issuing, &token, Arc::clone(&clock) as _).await.unwrap();
            let asker = asker(&space, "alice");
            let manager = InstanceId::mint(&SystemEntropy);
            Self { space, observer, publisher, clock, manager, asker }
        }

        async fn publish(&self, asker: &RunAsker, command: &str, args: &serde_json::Value) -> String {
            let subject = asker.subject(&self.manager, command);
            let body = asker.body(command, args).to_string();
            self.publisher.publish(&subject, &[], body.into()).await.unwrap();
            subject
        }
    }

    fn asker(space: &TestSpace, actor: &str) -> RunAsker {
        RunAsker {
            space: space.space.clone(),
            principal: Principal::parse_key(&format!("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.{actor}")).unwrap(),
            uid: LifecycleUid::mint(&SystemEntropy),
            generation: Some(Generation::mint(&SystemEntropy)),
        }
    }

    #[tokio::test]
    async fn a_forward_that_is_quicker_than_the_copy_of_its_request_finds_it() {
        let rig = Rig::start().await;
        for _ in 0..200 {
            let subject = rig.publish(&rig.asker, RUN_START, &json!({})).await;
            // The broker has it, and may not have handed it on.
            rig.publisher.flush().await.unwrap();
            let seen = rig.observer.take_served(&subject).await.unwrap();
            assert_eq!(seen.map(|seen| seen.operation), Some(RunOperation::Start));
            assert_eq!(rig.observer.take_served(&subject).await.unwrap(), None, "once");
        }
    }

    #[tokio::test]
    async fn what_was_seen_is_forwarded_within_five_minutes_or_not_at_all() {
        let rig = Rig::start().await;
        let run = run_id();
        for (after, there) in [(WINDOW_MS - 1, true), (WINDOW_MS, false)] {
            let subject = rig.publish(&rig.asker, RUN_RESUME, &json!({ "runId": run })).await;
            rig.publisher.flush().await.unwrap();
            // Heard now; what is asked of another subject has this one read first.
            assert_eq!(rig.observer.take_served("nothing").await.unwrap(), None);
            *rig.clock.0.lock() += after;
            assert_eq!(rig.observer.take_served(&subject).await.unwrap().is_some(), there, "{after}");
        }
    }

    #[tokio::test]
    async fn a_cancellation_is_kept_apart_and_the_rest_is_not_heard() {
        let rig = Rig::start().await;
        let run = json!({ "runId": run_id() });
        let cancel = rig.publish(&rig.asker, RUN_CANCEL, &run).await;
        let legacy = RunAsker { generation: None, ..rig.asker.clone() };
        let unheard = rig.publish(&legacy, RUN_START, &json!({})).await;
        rig.publisher.flush().await.unwrap();
        assert_eq!(rig.observer.take_served(&cancel).await.unwrap(), None);
        assert!(rig.observer.take_cancel(&cancel).await.unwrap().is_some());
        assert_eq!(rig.observer.take_served(&unheard).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_flood_holds_no_more_than_its_bounds_and_pushes_nobody_else_out() {
        let rig = Rig::start().await;
        let subject = rig.publish(&rig.asker, RUN_START, &json!({})).await;
        rig.publisher.flush().await.unwrap();
        assert_eq!(rig.observer.take_served("nothing").await.unwrap(), None);
        let flood = asker(&rig.space, "flood");
        for n in 0..10_000 {
            rig.publish(&flood, RUN_START, &json!({})).await;
            if n % 500 == 0 {
                rig.publisher.flush().await.unwrap();
            }
        }
        rig.publisher.flush().await.unwrap();
        let taken = tokio::time::timeout(Duration::from_secs(60), rig.observer.take_served(&subject)).await;
        assert!(taken.unwrap().unwrap().is_some(), "who asked before the flood is forwarded after it");
        let held = rig.observer.heard.served.lock();
        assert!((1..=Limits::SERVED.per_caller).contains(&held.len()), "{}", held.len());
        assert!(held.bytes() <= Limits::SERVED.bytes);
    }

    /// A request that is read but for its length: nothing of it is, so that a flood of the largest costs a look at each.
    #[tokio::test]
    async fn the_largest_messages_are_passed_over_unread_and_hold_up_no_forward() {
        let rig = Rig::start().await;
        let flood = asker(&rig.space, "flood");
        let mut largest = flood.body(RUN_START, &json!({})).to_string();
        largest.push_str(&" ".repeat((1 << 20) - largest.len()));
        for _ in 0..32 {
            let subject = flood.subject(&rig.manager, RUN_START);
            rig.publisher.publish(&subject, &[], largest.clone().into()).await.unwrap();
        }
        let subject = rig.publish(&rig.asker, RUN_START, &json!({})).await;
        rig.publisher.flush().await.unwrap();
        let taken = tokio::time::timeout(Duration::from_secs(60), rig.observer.take_served(&subject)).await;
        assert!(taken.unwrap().unwrap().is_some());
        assert!(rig.observer.heard.served.lock().is_empty(), "of the others nothing is kept");
    }
}
