//! The exact-pool cleaner: brings each pool to quiescence, then fences whom it was done by (contract 07 §6.3 phase 7,
//! §6.4).

use std::collections::{BTreeMap, BTreeSet};

use cotal_broker::{
    Journal, PullDurable,
    pull::{Backlog, Delivery},
};
use cotal_wire::{
    Command, EpError, FactSubject, FactTopic, InfraRole, Names, OpDuty, WorkSubject,
    grants::drain::{self as grants, Pools},
    names::pool_consumer,
    rows::{Decision, Disposition, ItemRef, WorkTerminal},
};

use super::{
    Cleaned, Drain, Retiring,
    decide::{ItemStep, SettleRequest, item_step, same_identity},
    fence::fence,
    seats::Seat,
    settle::Executor,
};
use crate::{evict::Evictor, store::at_key};

/// Most messages of one fetch.
const BATCH: u64 = 64;
/// Blockers that a refusal names.
const NAMED: usize = 3;

/// The cleaner of one retirement at one endpoint.
struct Cleaner<'a> {
    drain: &'a Drain,
    retiring: &'a Retiring,
    pools: &'a Pools,
    names: Names,
    seat: &'a Seat,
    facts: Journal,
    executor: &'a Executor<'a>,
}

/// What an item ended as, and by whom: what is counted of one that was acknowledged.
type Acked = (WorkTerminal, ItemStep);

/// Seats the cleaner and the executor, cleans every pool, and fences both, whatever the cleaning comes to.
pub(super) async fn clean(
    drain: &Drain,
    retiring: &Retiring,
    pools: &Pools,
    evictor: &dyn Evictor,
) -> Result<BTreeMap<Command, Cleaned>, EpError> {
    let space = drain.connector.space();
    let names = Names::new(&space.token());
    let principal = OpDuty::Cleaner.principal(&retiring.op);
    let label = InfraRole::EP_CLEANER.label_for(space, &retiring.op);
    let grants = |inbox: &_| grants::cleaner(names.space(), pools, inbox);
    let seat = drain.seats.open(&principal, &drain.connector, label, &grants).await?;
    let executor = match Executor::open(drain, retiring, pools).await {
        Ok(executor) => executor,
        Err(refusal) => {
            fence(vec![seat], evictor).await?;
            return Err(refusal);
        }
    };
    let facts = Journal::new(seat.connection(), &names.epf_stream());
    let cleaner = Cleaner { drain, retiring, pools, names, seat: &seat, facts, executor: &executor };
    let cleaned = cleaner.run().await;
    fence(vec![seat, executor.into_seat()], evictor).await?;
    cleaned
}

impl Cleaner<'_> {
    async fn run(&self) -> Result<BTreeMap<Command, Cleaned>, EpError> {
        let mut cleaned = BTreeMap::new();
        for pool in self.pools.iter() {
            cleaned.insert(pool.clone(), self.pool(pool).await?);
        }
        Ok(cleaned)
    }

    async fn pool(&self, pool: &Command) -> Result<Cleaned, EpError> {
        let endpoint = self.pools.endpoint();
        let filter = WorkSubject::filter(self.names.space(), endpoint, pool);
        let durable = pool_consumer(endpoint, pool);
        let durable = PullDurable::bind(self.seat.connection(), &self.names.epw_stream(), &durable, &filter);
        let pace = self.drain.pace;
        let mut cleaned = Cleaned::default();
        let mut blockers: BTreeSet<String> = BTreeSet::new();
        let mut stalled = 0;
        loop {
            let backlog = durable.backlog().await?;
            if backlog.is_empty() {
                return Ok(cleaned);
            }
            // No more than there is: the broker then ends the fetch as soon as it has delivered.
            let batch = if backlog.pending == 0 { BATCH } else { backlog.pending.min(BATCH) };
            let (mut progress, mut seen) = (false, BTreeSet::new());
            for delivery in durable.fetch(batch, pace.fetch_expiry).await? {
                // An impatient durable delivers an item again while the same fetch is open.
                if !seen.insert(delivery.subject.clone()) {
                    continue;
                }
                match self.item(pool, &durable, &delivery).await? {
                    Some((terminal, step)) => {
                        count(&mut cleaned, &terminal, step);
                        blockers.remove(&delivery.subject);
                        progress = true;
                    }
                    None => {
                        blockers.insert(delivery.subject);
                    }
                }
            }
            stalled = if progress { 0 } else { stalled + 1 };
            if stalled >= pace.stalled_passes {
                return Err(self.not_quiescent(pool, backlog, &blockers));
            }
        }
    }

    /// Acknowledges one item that is settled, or settles it first; `None` for one that lives and is another's.
    async fn item(
        &self,
        pool: &Command,
        durable: &PullDurable,
        delivery: &Delivery,
    ) -> Result<Option<Acked>, EpError> {
        let item = self.item_ref(pool, &delivery.subject)?;
        let subject = self.fact(FactTopic::WorkTerminal(item.pool.clone(), item.acceptance.clone()));
        if let Some(terminal) = self.terminal(&item, &subject).await? {
            durable.ack(delivery).await?;
            return Ok(Some((terminal, ItemStep::Ack)));
        }
        let decision_subject = self.fact(FactTopic::Decision(item.acceptance.clone()));
        let decision = match self.facts.last(&decision_subject).await? {
            None => None,
            Some(entry) => {
                let decision = Decision::parse(&item.endpoint, &item.acceptance, &entry.value);
                Some(at_key(&decision_subject, decision)?)
            }
        };
        let now = self.drain.clock.now_millis();
        let step = at_key(&delivery.subject, item_step(None, decision.as_ref(), self.retiring, now))?;
        let request = match step {
            ItemStep::Expire => SettleRequest::Expired,
            ItemStep::Retire => SettleRequest::Retired,
            ItemStep::Ack | ItemStep::Leave => return Ok(None),
        };
        let answered = self.executor.settle(&item, request).await?;
        let terminal = self.terminal(&item, &subject).await?;
        let terminal = terminal
            .ok_or_else(|| EpError::internal(format!("clean: {subject} was settled and cannot be read")))?;
        if !terminal.says_the_same_as(&answered) {
            return Err(EpError::internal(format!("clean: {subject} is not what the executor answered")));
        }
        durable.ack(delivery).await?;
        Ok(Some((terminal, step)))
    }

    /// The item's identity, rebuilt from the last four tokens of its subject.
    fn item_ref(&self, pool: &Command, subject: &str) -> Result<ItemRef, EpError> {
        let parsed = WorkSubject::parse(subject).ok_or_else(|| {
            EpError::internal(format!("clean: {} is no item's subject", subject.escape_default()))
        })?;
        let rebuilt = WorkSubject {
            space: self.names.space().clone(),
            endpoint: self.pools.endpoint().clone(),
            pool: pool.clone(),
            acceptance: parsed.acceptance,
        };
        same_identity(subject, &rebuilt.to_string(), &rebuilt.acceptance)?;
        Ok(ItemRef { endpoint: rebuilt.endpoint, pool: rebuilt.pool, acceptance: rebuilt.acceptance })
    }

    async fn terminal(&self, item: &ItemRef, subject: &str) -> Result<Option<WorkTerminal>, EpError> {
        let Some(entry) = self.facts.last(subject).await? else { return Ok(None) };
        at_key(subject, WorkTerminal::parse(&item.pool, &item.acceptance, &entry.value)).map(Some)
    }

    fn fact(&self, topic: FactTopic) -> String {
        let endpoint = self.pools.endpoint().clone();
        FactSubject { space: self.names.space().clone(), endpoint, topic }.to_string()
    }

    fn not_quiescent(&self, pool: &Command, backlog: Backlog, blockers: &BTreeSet<String>) -> EpError {
        let endpoint = self.pools.endpoint();
        let named = if blockers.is_empty() {
            format!("{} delivered to others and not acknowledged", backlog.ack_pending)
        } else {
            let some: Vec<&str> = blockers.iter().take(NAMED).map(String::as_str).collect();
            format!("{} live and for others: {}", blockers.len(), some.join(", "))
        };
        EpError::unavailable(format!(
            "clean: the pool {endpoint}/{pool} is not quiescent after {} passes without progress ({named}); retry \
             once they are settled",
            self.drain.pace.stalled_passes
        ))
    }
}

/// Counts by the disposition that stands.
fn count(cleaned: &mut Cleaned, terminal: &WorkTerminal, step: ItemStep) {
    match (step, &terminal.disposition) {
        (ItemStep::Ack, _) | (_, Disposition::Committed { .. }) => cleaned.acked_terminal += 1,
        (_, Disposition::Expired { .. }) => cleaned.settled_expired += 1,
        (_, Disposition::Retired { .. }) => cleaned.settled_retired += 1,
    }
}
