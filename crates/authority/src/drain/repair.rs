//! The three repairs of a drain: each is one connection of its own principal, one write, and the end of the connection
//! (contract 07 §8).

use bytes::Bytes;
use cotal_broker::{
    Connection, Journal, Lifetime,
    connector::INFRA_TTL_SECS,
    kv::{Bucket, WriteOutcome},
};
use cotal_wire::{
    CommitKey, ConnId, EndpointToken, EpError, FactSubject, InfraRole, Names, OpDuty, Permissions, Revision,
    WorkSubject, grants::drain as grants, rows::AcceptedFact, rows::CancelledBy, time::MAX_SAFE_INTEGER,
};

use super::{Drain, Retiring};
use crate::store::{Store, ambiguous, unsent};

impl Drain {
    /// Re-applies an accepted commit at its base. `permission-denied` for a key that no commit may write, `conflict`
    /// when the record has moved.
    pub(super) async fn apply(
        &self,
        retiring: &Retiring,
        key: &str,
        bytes: Vec<u8>,
        base: u64,
    ) -> Result<(), EpError> {
        let key = CommitKey::parse(key)?;
        if base > MAX_SAFE_INTEGER {
            return Err(EpError::permission_denied("commit: its base is no revision"));
        }
        let (space, names) = (self.connector.space(), Names::new(&self.connector.space().token()));
        let label = InfraRole::EP_APPLY.label_for(space, &key);
        let connection = self
            .repairer(retiring, OpDuty::Applier, label, &|inbox| grants::applier(names.space(), &key, inbox))
            .await?;
        let records = Store::watched(Bucket::new(&connection, &names.records_bucket()), &self.watch);
        let outcome = records.update(key.as_str(), bytes, Revision(base)).await;
        ended(connection, outcome, "drain: re-applying a commit").await?.then_some(()).ok_or_else(|| {
            EpError::conflict(format!("drain: {key} moved while its accepted commit was re-applied"))
        })
    }

    /// Enqueues an accepted item again; one that lives already, or was enqueued meanwhile, is as well.
    pub(super) async fn reenqueue(
        &self,
        retiring: &Retiring,
        item: &WorkSubject,
        bytes: Vec<u8>,
    ) -> Result<(), EpError> {
        let names = Names::new(&self.connector.space().token());
        if item.space != *names.space() || bytes.is_empty() {
            return Err(EpError::permission_denied(
                "drain: only whole items of this space are enqueued again",
            ));
        }
        let label = InfraRole::EP_REENQUEUE.label(self.connector.space());
        let connection = self
            .repairer(retiring, OpDuty::Reconciler, label, &|inbox| grants::reconciler(item, inbox))
            .await?;
        let outcome = self.create(&connection, &names.epw_stream(), &item.to_string(), bytes).await;
        ended(connection, outcome, "drain: enqueueing an item again").await.map(drop)
    }

    /// Writes the cancelled completion of an accepted effect; a completion that landed first is as well.
    pub(super) async fn cancel(
        &self,
        retiring: &Retiring,
        endpoint: &EndpointToken,
        fact: &AcceptedFact,
    ) -> Result<(), EpError> {
        let names = Names::new(&self.connector.space().token());
        let by = CancelledBy { op_id: retiring.op.clone(), target: retiring.target() };
        let cancellation = fact.cancellation(&by, self.clock.now_millis())?;
        let completion = FactSubject {
            space: names.space().clone(),
            endpoint: endpoint.clone(),
            topic: cancellation.topic,
        };
        let label = InfraRole::EP_CANCEL.label(self.connector.space());
        let connection = self
            .repairer(retiring, OpDuty::Canceller, label, &|inbox| grants::canceller(&completion, inbox))
            .await?;
        let subject = completion.to_string();
        let outcome = self.create(&connection, &names.epf_stream(), &subject, cancellation.bytes).await;
        ended(connection, outcome, "drain: cancelling an effect").await.map(drop)
    }

    async fn repairer(
        &self,
        retiring: &Retiring,
        duty: OpDuty,
        label: String,
        grants: &(dyn Fn(&ConnId) -> Permissions + Send + Sync),
    ) -> Result<Connection, EpError> {
        let principal = Some(duty.principal(&retiring.op));
        self.connector.open(label, grants, Lifetime::OneShot { ttl_secs: INFRA_TTL_SECS, principal }).await
    }

    /// The first message of a subject.
    pub(super) async fn create(
        &self,
        connection: &Connection,
        stream: &str,
        subject: &str,
        bytes: Vec<u8>,
    ) -> WriteOutcome {
        let outcome = Journal::new(connection, stream).create(subject, Bytes::from(bytes)).await;
        self.watch.written(subject, outcome).await
    }
}

/// Ends a repair's connection, whatever its write came to; `false` for a lost one.
async fn ended(connection: Connection, outcome: WriteOutcome, what: &str) -> Result<bool, EpError> {
    let closed = connection.close().await;
    let won = match outcome {
        WriteOutcome::Written(_) => true,
        WriteOutcome::Lost => false,
        WriteOutcome::Ambiguous(why) => return Err(ambiguous(what, &why)),
        WriteOutcome::Refused(why) => return Err(unsent(what, &why)),
    };
    closed.map(|()| won)
}
