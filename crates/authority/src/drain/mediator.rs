//! The drain of one endpoint under a target (contract 07 §14).

use std::collections::BTreeSet;

use cotal_broker::{
    Connection, Journal, Lifetime,
    connector::INFRA_TTL_SECS,
    kv::{Bucket, WriteOutcome},
    shape,
};
use cotal_wire::{
    Acceptance, EndpointToken, EpCode, EpError, FactSubject, FactTopic, InfraRole, Names, Revision,
    WorkSubject,
    grants::drain as grants,
    rows::{
        AcceptedFact, Commit, CommitValue, Decision, EffectFact, FactWork, GoalResult, Obligation,
        ObligationKey, ObligationState, Owed, Rejection, WorkTerminal,
    },
};

use super::{
    Drain, Drained, Retiring,
    decide::{
        self, Completion, EffectsStep, FactStep, PoolStep, SelfStep, effects_step, fact_step, pool_step,
        self_step,
    },
    owed::OwedRow,
};
use crate::{
    scanner::Obligations,
    store::{Store, ambiguous, at_key, must_land, unsent},
};

/// Most passes of one drain.
const PASSES: u32 = 8;

/// The admission mediator of one endpoint, for one drain.
struct Mediator<'a> {
    drain: &'a Drain,
    retiring: &'a Retiring,
    endpoint: &'a EndpointToken,
    names: Names,
    connection: Connection,
    records: Store,
    facts: Journal,
    work: Journal,
}

/// Opens the mediator, drains, and closes it again.
pub(super) async fn drain(
    drain: &Drain,
    retiring: &Retiring,
    endpoint: &EndpointToken,
) -> Result<Drained, EpError> {
    let mediator = Mediator::open(drain, retiring, endpoint).await?;
    let drained = mediator.run().await;
    let closed = mediator.connection.close().await;
    let drained = drained?;
    closed.map(|()| drained)
}

impl<'a> Mediator<'a> {
    async fn open(
        drain: &'a Drain,
        retiring: &'a Retiring,
        endpoint: &'a EndpointToken,
    ) -> Result<Self, EpError> {
        let space = drain.connector.space();
        let names = Names::new(&space.token());
        let label = InfraRole::EP_DRAIN.label_for(space, endpoint);
        let grants = |inbox: &_| grants::mediator(names.space(), endpoint, inbox);
        let lifetime = Lifetime::OneShot { ttl_secs: INFRA_TTL_SECS, principal: None };
        let connection = drain.connector.open(label, &grants, lifetime).await?;
        let bucket = names.records_bucket();
        if let Err(refusal) = shape::prove_authority_store(&connection, &bucket, false).await {
            // The refusal is what counts; a connection that does not end is in custody.
            let _ = connection.close().await;
            return Err(refusal);
        }
        Ok(Self {
            records: Store::watched(Bucket::new(&connection, &bucket), &drain.watch),
            facts: Journal::new(&connection, &names.epf_stream()),
            work: Journal::new(&connection, &names.epw_stream()),
            drain,
            retiring,
            endpoint,
            names,
            connection,
        })
    }

    async fn run(&self) -> Result<Drained, EpError> {
        let which = Obligations::OfTargetAt(self.retiring.uid.clone(), self.endpoint.clone());
        let mut drained = Drained::default();
        let mut verified: BTreeSet<(String, Revision)> = BTreeSet::new();
        for pass in 1..=PASSES {
            drained.passes = pass;
            let mut moved = false;
            for row in OwedRow::read_all(&self.drain.records.obligations(&which).await?)? {
                match (row.obligation.state(), row.obligation.owed()) {
                    (ObligationState::Rejected | ObligationState::Terminal, _) => {}
                    (ObligationState::Provisional, owed) => {
                        moved = true;
                        let key = row.key_at(self.endpoint)?;
                        match owed {
                            Owed::SelfCommit(_) => {
                                self.settle(&row, ObligationState::Rejected).await?;
                            }
                            Owed::Epf(work) => self.settle_by_fact(&row, &key, work).await?,
                        }
                        drained.settled_provisional += 1;
                    }
                    (ObligationState::Accepted, Owed::SelfCommit(commit)) => {
                        moved = true;
                        row.key_at(self.endpoint)?;
                        drained.recovered_self += u64::from(self.recover(&row, commit).await?);
                    }
                    (ObligationState::Accepted, Owed::Epf(work)) => {
                        if !verified.contains(&(row.key.clone(), row.revision)) {
                            let key = row.key_at(self.endpoint)?;
                            self.reconcile(&key, work).await?;
                            verified.insert((row.key.clone(), row.revision));
                            drained.reconciled_accepted_epf += 1;
                        }
                    }
                }
            }
            if !moved {
                return Ok(drained);
            }
        }
        Err(EpError::unavailable(format!(
            "drain: obligations of {} at {} still move after {PASSES} passes; retry",
            self.retiring.uid, self.endpoint
        )))
    }

    // === provisional ===

    /// Moves a provisional row. Whoever else settled it meanwhile has settled it; one that follows a fact must then
    /// agree with it.
    async fn settle(&self, row: &OwedRow, to: ObligationState) -> Result<ObligationState, EpError> {
        let next = match to {
            ObligationState::Accepted => row.obligation.clone().accept()?,
            _ => row.obligation.clone().reject()?,
        };
        match self.records.update(&row.key, next.to_bytes(), row.revision).await {
            WriteOutcome::Written(_) => Ok(to),
            WriteOutcome::Lost => match self.read(&row.key).await?.0.state() {
                ObligationState::Provisional => Err(EpError::conflict(format!(
                    "drain: {} moved while it was settled, and is not settled; retry",
                    row.key
                ))),
                settled => Ok(settled),
            },
            WriteOutcome::Ambiguous(why) => Err(ambiguous("drain: settling an obligation", &why)),
            WriteOutcome::Refused(why) => Err(unsent("drain: settling an obligation", &why)),
        }
    }

    async fn settle_by_fact(
        &self,
        row: &OwedRow,
        key: &ObligationKey,
        work: &FactWork,
    ) -> Result<(), EpError> {
        let decision = self.decision(&key.acceptance).await?;
        let to = match fact_step(work, decision.as_ref())? {
            FactStep::Follow(state) => state,
            FactStep::Reject => self.reject(key, work).await?,
        };
        match (to, self.settle(row, to).await?) {
            (ObligationState::Accepted, ObligationState::Accepted | ObligationState::Terminal)
            | (ObligationState::Rejected, ObligationState::Rejected) => Ok(()),
            (_, settled) => Err(EpError::internal(format!(
                "drain: {} was settled {settled} against its decision fact, which says {to}",
                row.key
            ))),
        }
    }

    /// Writes the rejection, or reads who was first; answers what the row must follow.
    async fn reject(&self, key: &ObligationKey, work: &FactWork) -> Result<ObligationState, EpError> {
        let detail = format!(
            "the target lifecycle {} retires under operation {}, before this submission was accepted",
            self.retiring.uid, self.retiring.op
        );
        let ts = self.drain.clock.now_millis();
        let rejection = Rejection { acceptance: &key.acceptance, work, detail: &detail, ts };
        let bytes = at_key(&key.to_string(), rejection.to_bytes())?;
        let subject = self.fact(FactTopic::Decision(key.acceptance.clone())).to_string();
        match self.drain.create(&self.connection, self.facts.stream(), &subject, bytes).await {
            WriteOutcome::Written(_) => Ok(ObligationState::Rejected),
            WriteOutcome::Lost => match fact_step(work, self.decision(&key.acceptance).await?.as_ref())? {
                FactStep::Follow(state) => Ok(state),
                FactStep::Reject => Err(EpError::internal(format!(
                    "drain: {subject} lost its create, and no decision can be read"
                ))),
            },
            WriteOutcome::Ambiguous(why) => Err(ambiguous("drain: rejecting a submission", &why)),
            WriteOutcome::Refused(why) => Err(unsent("drain: rejecting a submission", &why)),
        }
    }

    // === accepted, with its own commit ===

    /// Recovers one commit. `false` when the record moved under the repair: the next pass looks again.
    async fn recover(&self, row: &OwedRow, commit: &Commit) -> Result<bool, EpError> {
        let record = self.records.read(&commit.key).await.map_err(|refusal| match refusal.code {
            EpCode::BadRequest => EpError::permission_denied("commit: its key is no record's"),
            _ => refusal,
        })?;
        let record = record.as_ref().map(|entry| (&*entry.value, entry.revision));
        if at_key(&commit.key, self_step(commit, record))? == SelfStep::Apply {
            let bytes = at_key(&row.key, decide::verified(commit, &self.value_of(commit).await?))?.to_vec();
            match self.drain.apply(self.retiring, &commit.key, bytes, commit.base_revision).await {
                Err(moved) if moved.code == EpCode::Conflict => return Ok(false),
                applied => applied?,
            }
        }
        self.terminate(row).await?;
        Ok(true)
    }

    async fn value_of(&self, commit: &Commit) -> Result<Vec<u8>, EpError> {
        match &commit.value {
            CommitValue::Inline(bytes) => Ok(bytes.clone()),
            CommitValue::Policy(key) => {
                self.records.read(key).await?.map(|entry| entry.value.to_vec()).ok_or_else(|| {
                    EpError::internal(format!("drain: {key}, which a commit refers to, is absent"))
                })
            }
        }
    }

    /// `accepted` to `terminal`, with one retry at a fresh revision.
    async fn terminate(&self, row: &OwedRow) -> Result<(), EpError> {
        let next = row.obligation.clone().terminate()?;
        let outcome = self.records.update(&row.key, next.to_bytes(), row.revision).await;
        if outcome != WriteOutcome::Lost {
            return must_land(outcome, "drain: ending an obligation").map(drop);
        }
        let (obligation, revision) = self.read(&row.key).await?;
        match obligation.state() {
            ObligationState::Terminal => Ok(()),
            ObligationState::Accepted => {
                let next = obligation.terminate()?;
                let outcome = self.records.update(&row.key, next.to_bytes(), revision).await;
                must_land(outcome, "drain: ending an obligation").map(drop)
            }
            state => Err(EpError::internal(format!("drain: {} was accepted and is now {state}", row.key))),
        }
    }

    // === accepted, by a fact ===

    async fn reconcile(&self, key: &ObligationKey, work: &FactWork) -> Result<(), EpError> {
        let decision = self.decision(&key.acceptance).await?;
        let fact = at_key(&key.to_string(), decide::acceptance(work, decision))?;
        let unrepaired =
            || EpError::unavailable(format!("drain: {key} is neither complete nor repaired; retry"));
        let Some((pool, _)) = fact.pool() else {
            if self.effects(work, &fact).await? == EffectsStep::Cancel {
                self.drain.cancel(self.retiring, self.endpoint, &fact).await?;
                if self.effects(work, &fact).await? == EffectsStep::Cancel {
                    return Err(unrepaired());
                }
            }
            return Ok(());
        };
        let item = WorkSubject {
            space: self.names.space().clone(),
            endpoint: self.endpoint.clone(),
            pool,
            acceptance: key.acceptance.clone(),
        };
        if self.pooled(&item).await? == PoolStep::Reenqueue {
            let bytes = fact.item_bytes().unwrap_or_default();
            self.drain.reenqueue(self.retiring, &item, bytes).await?;
            if self.pooled(&item).await? == PoolStep::Reenqueue {
                return Err(unrepaired());
            }
        }
        Ok(())
    }

    async fn effects(&self, work: &FactWork, fact: &AcceptedFact) -> Result<EffectsStep, EpError> {
        let topic = match &fact.goal_id {
            Some(goal) => FactTopic::GoalResult(fact.acceptance.with_id(goal.clone())),
            None => FactTopic::Effect(fact.acceptance.clone()),
        };
        let subject = self.fact(topic).to_string();
        let completion = match (self.facts.last(&subject).await?, &fact.goal_id) {
            (None, _) => None,
            (Some(entry), Some(goal)) => Some(GoalResult::parse(goal, &entry.value).map(Completion::Goal)),
            (Some(entry), None) => {
                Some(EffectFact::parse(&fact.acceptance, &entry.value).map(Completion::Effect))
            }
        };
        let completion = at_key(&subject, completion.transpose())?;
        at_key(&subject, effects_step(work, completion.as_ref()))
    }

    async fn pooled(&self, item: &WorkSubject) -> Result<PoolStep, EpError> {
        let topic = FactTopic::WorkTerminal(item.pool.clone(), item.acceptance.clone());
        let subject = self.fact(topic).to_string();
        let terminal = self.facts.last(&subject).await?;
        if let Some(entry) = &terminal {
            at_key(&subject, WorkTerminal::parse(&item.pool, &item.acceptance, &entry.value))?;
        }
        let live = terminal.is_none() && self.work.last(&item.to_string()).await?.is_some();
        Ok(pool_step(terminal.is_some(), live))
    }

    // === reads ===

    /// A row that was there a moment ago: its absence is `internal`.
    async fn read(&self, key: &str) -> Result<(Obligation, Revision), EpError> {
        let entry = self.records.read(key).await?;
        let entry = entry.ok_or_else(|| EpError::internal(format!("drain: {key} has vanished")))?;
        Ok((at_key(key, Obligation::parse(&entry.value))?, entry.revision))
    }

    async fn decision(&self, acceptance: &Acceptance) -> Result<Option<Decision>, EpError> {
        let subject = self.fact(FactTopic::Decision(acceptance.clone())).to_string();
        let Some(entry) = self.facts.last(&subject).await? else { return Ok(None) };
        at_key(&subject, Decision::parse(self.endpoint, acceptance, &entry.value)).map(Some)
    }

    fn fact(&self, topic: FactTopic) -> FactSubject {
        FactSubject { space: self.names.space().clone(), endpoint: self.endpoint.clone(), topic }
    }
}
