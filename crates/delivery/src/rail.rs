//! The delivery-admin rail: every request answered once, within bounds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use cotal_broker::{Connection, Message, Subscription, kv::Bucket};
use cotal_wire::{
    Principal,
    delivery_admin::{
        AdminRequest, MAX_REPLY_BYTES, Memberships, StoreAnswer, StoreIdentity, answer, refuse,
    },
    subject::{ControlService, MessageKind, MessageSubject, Subjects},
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{evict, liveness, memberships, reload::Renewal, system::System};

/// Requests that are worked on at once.
const AT_ONCE: usize = 8;
/// Requests that are worked on or wait for their turn; one more is refused.
const WAITING: usize = 64;
/// How long one may take from its arrival: a little less than its caller waits.
const DEADLINE: Duration = Duration::from_secs(14);

/// What the rail answers from.
pub(crate) struct Rail {
    pub(crate) connection: Connection,
    pub(crate) subjects: Subjects,
    pub(crate) holder: Principal,
    pub(crate) system: Arc<System>,
    pub(crate) members: Bucket,
    pub(crate) renewal: Arc<Renewal>,
    pub(crate) store: StoreIdentity,
    /// Until when the lease is held, as it was renewed last.
    pub(crate) lease_until: Mutex<Instant>,
    /// Whether the lease row says ready.
    pub(crate) started: AtomicBool,
}

/// Who asks, and where the answer goes.
struct Asked {
    from: Principal,
    reply: String,
}

impl Rail {
    /// Answers until the subscription ends.
    pub(crate) async fn serve(self: Arc<Self>, mut requests: Subscription) {
        let (waiting, working) = (Arc::new(Semaphore::new(WAITING)), Arc::new(Semaphore::new(AT_ONCE)));
        while let Some(message) = requests.next().await {
            let Some(asked) = self.asked(&message) else {
                tracing::warn!("a message on the delivery-admin rail names no sender that could be answered");
                continue;
            };
            let rail = Arc::clone(&self);
            let Ok(place) = Arc::clone(&waiting).try_acquire_owned() else {
                rail.reply(&asked, refuse("the delivery daemon is busy; ask again")).await;
                continue;
            };
            let working = Arc::clone(&working);
            tokio::spawn(async move {
                let worked = async {
                    // Never closed.
                    let _turn = working.acquire().await;
                    rail.answer(&asked, &message.payload).await
                };
                let late = || refuse("the delivery daemon did not finish in time; ask again");
                let answer = tokio::time::timeout(DEADLINE, worked).await.unwrap_or_else(|_| late());
                rail.reply(&asked, answer).await;
                drop(place);
            });
        }
    }

    /// The sender that the broker admitted to this subject, and a reply subject under it: anywhere else an answer
    /// could be read by somebody who did not ask.
    fn asked(&self, message: &Message) -> Option<Asked> {
        let subject = MessageSubject::parse(&message.subject)?;
        if subject.kind != MessageKind::Control(ControlService::DeliveryAdmin) {
            return None;
        }
        let from = subject.sender()?;
        let filter = self.subjects.control_reply_filter(ControlService::DeliveryAdmin, &from);
        let reply = message.reply.clone()?;
        let tail = reply.strip_prefix(filter.trim_end_matches('>'))?;
        let is_literal = tail.split('.').all(|token| !matches!(token, "" | "*" | ">"));
        is_literal.then_some(Asked { from, reply })
    }

    async fn reply(&self, asked: &Asked, answer: Vec<u8>) {
        let answer = if answer.len() > MAX_REPLY_BYTES {
            refuse("the answer is larger than a reply may be")
        } else {
            answer
        };
        if let Err(error) = self.connection.publish(&asked.reply, &[], Bytes::from(answer)).await {
            tracing::warn!(%error, "a reply of the delivery-admin rail could not be sent");
        }
    }

    async fn answer(&self, asked: &Asked, request: &[u8]) -> Vec<u8> {
        let request = match AdminRequest::parse(request) {
            Ok(request) => request,
            Err(refusal) => return refuse(&refusal.0),
        };
        let op = request.op();
        match self.work(request).await {
            Ok(answer) => {
                tracing::info!(op, from = %asked.from, "answered");
                answer
            }
            Err(why) => {
                tracing::warn!(op, from = %asked.from, why, "refused");
                refuse(&why)
            }
        }
    }

    async fn work(&self, request: AdminRequest) -> Result<Vec<u8>, String> {
        Ok(match request {
            AdminRequest::PlaneConnLiveness(query) => {
                answer(&liveness::of_plane(&query, &self.system.sweep().await?))
            }
            AdminRequest::PrincipalLiveness(principal) => {
                answer(&liveness::of_principal(&principal, &self.system.sweep().await?))
            }
            AdminRequest::EvictPrincipal(principal) => {
                let mut results = evict::evict(&self.system, &[principal]).await?;
                answer(&results.pop().ok_or("no result")?)
            }
            AdminRequest::EvictPrincipals(principals) => {
                answer(&evict::evict(&self.system, &principals).await?)
            }
            AdminRequest::LifecycleMemberships { principal, uid } => {
                let channels = memberships::channels(&self.members, &principal, &uid).await;
                let channels = channels.map_err(|error| error.message)?;
                answer(&Memberships { complete: true, channels })
            }
            AdminRequest::ReloadStoreIdentity => answer(&StoreAnswer {
                store: self.store.clone(),
                answerer: self.holder.key(),
                holds_lease: Instant::now() < *self.lease_until.lock(),
            }),
            AdminRequest::ReloadCreds(expected) => {
                if !self.started.load(Ordering::Acquire) {
                    return Err("the delivery daemon has not fully started; ask again".into());
                }
                answer(&self.renewal.reload(&expected).await?)
            }
        })
    }
}
