//! The retirement executor: ends pool items that nobody committed (contract 07 §6.4 "Settlement seam").
//!
//! The item's lease decides. A settlement moves the lease first, contending with a worker's commit on its one key, and
//! only then writes the terminal fact that the settled lease stands for; so a settlement that died in between is
//! finished by whoever comes next, with the same fact.

use cotal_broker::{
    Journal,
    kv::{Bucket, WriteOutcome},
    shape,
};
use cotal_wire::{
    EpError, FactSubject, FactTopic, InfraRole, Names, OpDuty,
    grants::drain::{self as grants, Pools},
    rows::{Decision, ItemRef, Lease, Settlement, WorkTerminal},
};

use super::{
    Drain, Retiring,
    decide::{SettleRequest, authorize_settlement},
    seats::Seat,
};
use crate::store::{Store, ambiguous, at_key, unsent};

/// Passes over a lease that moves under the settlement.
const LEASE_PASSES: usize = 2;

/// The executor of one retirement at one endpoint.
pub(super) struct Executor<'a> {
    drain: &'a Drain,
    retiring: &'a Retiring,
    pools: &'a Pools,
    names: Names,
    seat: Seat,
    leases: Store,
    facts: Journal,
}

impl<'a> Executor<'a> {
    /// Seats the executor and proves the records store over its connection.
    pub(super) async fn open(
        drain: &'a Drain,
        retiring: &'a Retiring,
        pools: &'a Pools,
    ) -> Result<Self, EpError> {
        let space = drain.connector.space();
        let names = Names::new(&space.token());
        let principal = OpDuty::Executor.principal(&retiring.op);
        let label = InfraRole::EP_EXECUTOR.label_for(space, &retiring.op);
        let grants = |inbox: &_| grants::executor(names.space(), pools, inbox);
        let seat = drain.seats.open(&principal, &drain.connector, label, &grants).await?;
        let bucket = names.records_bucket();
        if let Err(refusal) = shape::prove_authority_store(seat.connection(), &bucket, false).await {
            // The refusal is what counts; a connection that does not end is in custody.
            let _ = seat.retire().await;
            return Err(refusal);
        }
        Ok(Self {
            leases: Store::watched(Bucket::new(seat.connection(), &bucket), &drain.watch),
            facts: Journal::new(seat.connection(), &names.epf_stream()),
            drain,
            retiring,
            pools,
            names,
            seat,
        })
    }

    /// The connection, to be fenced.
    pub(super) fn into_seat(self) -> Seat {
        self.seat
    }

    /// Settles one item, and answers the terminal that stands: perhaps one that was there, or a worker's commit.
    pub(super) async fn settle(
        &self,
        item: &ItemRef,
        request: SettleRequest,
    ) -> Result<WorkTerminal, EpError> {
        let now = self.drain.clock.now_millis();
        let subject = self.fact(item, FactTopic::Decision(item.acceptance.clone()));
        let decision = match self.facts.last(&subject).await? {
            None => None,
            Some(entry) => {
                Some(at_key(&subject, Decision::parse(&item.endpoint, &item.acceptance, &entry.value))?)
            }
        };
        let target = self.retiring.target();
        let expiry = authorize_settlement(self.pools, item, decision.as_ref(), request, &target, now)?;
        if let Some(terminal) = self.terminal(item).await? {
            return Ok(terminal);
        }
        let settlement = || match request {
            SettleRequest::Expired => Settlement::Expired,
            SettleRequest::Retired => {
                Settlement::Retired { op_id: self.retiring.op.clone(), target_uid: self.retiring.uid.clone() }
            }
        };
        let key = item.lease_key();
        for _ in 0..LEASE_PASSES {
            let stored = self.leases.read(&key).await?;
            let (lease, outcome) = match stored {
                None => {
                    let lease = Lease::never_leased(expiry, settlement(), now);
                    let outcome = self.leases.create(&key, lease.to_bytes()).await;
                    (lease, outcome)
                }
                Some(entry) => {
                    let stands = at_key(&key, Lease::parse(&entry.value))?;
                    if let Some(terminal) = stands.terminal(item) {
                        return self.publish(item, terminal).await;
                    }
                    if stands.work_expiry() != expiry {
                        return Err(EpError::conflict(format!(
                            "settle: {key} has another workExpiry than the item's acceptance"
                        )));
                    }
                    let lease = stands.settle(settlement(), now);
                    let outcome = self.leases.update(&key, lease.to_bytes(), entry.revision).await;
                    (lease, outcome)
                }
            };
            match outcome {
                WriteOutcome::Written(_) => {
                    let terminal = lease.terminal(item);
                    let terminal = terminal
                        .ok_or_else(|| EpError::internal("settle: a settled lease has no terminal"))?;
                    return self.publish(item, terminal).await;
                }
                WriteOutcome::Lost => {}
                WriteOutcome::Ambiguous(why) => return Err(ambiguous("settle: the lease", &why)),
                WriteOutcome::Refused(why) => return Err(unsent("settle: the lease", &why)),
            }
        }
        Err(EpError::conflict(format!("settle: {key} kept moving; retry")))
    }

    /// Writes a settled lease's terminal. Whoever wrote one derived it from the same lease: another one is `internal`.
    async fn publish(&self, item: &ItemRef, terminal: WorkTerminal) -> Result<WorkTerminal, EpError> {
        let subject = self.terminal_subject(item);
        let connection = self.seat.connection();
        match self.drain.create(connection, self.facts.stream(), &subject, terminal.to_bytes()).await {
            WriteOutcome::Written(_) => Ok(terminal),
            WriteOutcome::Lost => match self.terminal(item).await? {
                Some(winner) if winner.says_the_same_as(&terminal) => Ok(winner),
                Some(_) => {
                    Err(EpError::internal(format!("settle: {subject} is not what the settled lease says")))
                }
                None => {
                    Err(EpError::internal(format!("settle: {subject} lost its create, and cannot be read")))
                }
            },
            WriteOutcome::Ambiguous(why) => Err(ambiguous("settle: the terminal", &why)),
            WriteOutcome::Refused(why) => Err(unsent("settle: the terminal", &why)),
        }
    }

    async fn terminal(&self, item: &ItemRef) -> Result<Option<WorkTerminal>, EpError> {
        let subject = self.terminal_subject(item);
        let Some(entry) = self.facts.last(&subject).await? else { return Ok(None) };
        at_key(&subject, WorkTerminal::parse(&item.pool, &item.acceptance, &entry.value)).map(Some)
    }

    fn terminal_subject(&self, item: &ItemRef) -> String {
        self.fact(item, FactTopic::WorkTerminal(item.pool.clone(), item.acceptance.clone()))
    }

    fn fact(&self, item: &ItemRef, topic: FactTopic) -> String {
        FactSubject { space: self.names.space().clone(), endpoint: item.endpoint.clone(), topic }.to_string()
    }
}
