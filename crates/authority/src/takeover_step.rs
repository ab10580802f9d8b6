//! What a takeover does next, decided without I/O (contract 07 §5, 02 §3.10).

use cotal_wire::{
    EpCode, EpError, OpId, Revision,
    rows::{AgentGate, GateOp, GateState, HeadStep, LifecycleHead, OpKind, TakeoverIntent},
};

use crate::barrier::{Sight, held_by_another, is_held_by};

/// What one run has seen and done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TakeoverRun {
    pub(crate) gate: Sight<AgentGate>,
    pub(crate) head: Sight<LifecycleHead>,
    pub(crate) contained: bool,
    /// The head has the next epoch by this run's own look or write.
    pub(crate) advanced: bool,
    /// The head that this run would have advanced, had another writer not moved it.
    pub(crate) lost: Option<LifecycleHead>,
}

/// One read, one write, or the containment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TakeoverStep {
    ReadGate,
    ReadHead,
    Freeze(AgentGate, Revision),
    Contain,
    AdvanceHead(LifecycleHead, Revision),
    Reopen(AgentGate, Revision),
    /// Reopen without an epoch, then refuse with this.
    Abort(AgentGate, Revision, EpError),
    Done,
}

impl TakeoverRun {
    /// A run that has seen this gate, and must look at the head right before it freezes.
    pub(crate) fn from_gate(gate: Sight<AgentGate>) -> Self {
        Self { gate, head: Sight::Unread, contained: false, advanced: false, lost: None }
    }

    /// The next step, or why there is none.
    pub(crate) fn next(&self, op: &OpId, intent: &TakeoverIntent) -> Result<TakeoverStep, EpError> {
        let (gate, revision) = match &self.gate {
            Sight::Unread => return Ok(TakeoverStep::ReadGate),
            Sight::Absent => return Err(EpError::internal("takeover: the issuance gate vanished")),
            Sight::At(gate, revision) => (gate, *revision),
        };
        let reopened = intent.from_generation.saturating_add(1);
        match gate.state() {
            GateState::Frozen(_) if is_held_by(gate, op, OpKind::Takeover) => {
                self.behind_the_gate(op, intent, gate, revision)
            }
            GateState::Open if gate.generation() == reopened => self.completed(op, intent),
            _ if self.advanced => {
                Err(EpError::internal("takeover: the issuance gate moved while this operation held it"))
            }
            GateState::Frozen(_) => Err(held_by_another(gate)),
            GateState::Open if gate.generation() == intent.from_generation => {
                self.freeze(op, intent, gate, revision)
            }
            GateState::Open | GateState::Retired(_) => Err(gate.state().blocks(EpError::failed_precondition(
                "takeover: the issuance gate is not at the generation that this operation was captured at",
            ))),
        }
    }

    fn freeze(
        &self,
        op: &OpId,
        intent: &TakeoverIntent,
        gate: &AgentGate,
        revision: Revision,
    ) -> Result<TakeoverStep, EpError> {
        let captured = |head: &LifecycleHead| {
            head.is_active_at(&intent.lifecycle_uid) && head.process_epoch() == intent.from_epoch
        };
        match &self.head {
            Sight::Unread => Ok(TakeoverStep::ReadHead),
            Sight::At(head, _) if captured(head) => {
                let frozen = gate.clone().freeze(GateOp::new(op.clone(), OpKind::Takeover))?;
                Ok(TakeoverStep::Freeze(frozen, revision))
            }
            Sight::Absent | Sight::At(..) => Err(EpError::conflict(
                "takeover: the alias is no longer at the epoch that this operation captured; the gate was not moved",
            )),
        }
    }

    fn behind_the_gate(
        &self,
        op: &OpId,
        intent: &TakeoverIntent,
        gate: &AgentGate,
        revision: Revision,
    ) -> Result<TakeoverStep, EpError> {
        if self.advanced {
            return Ok(TakeoverStep::Reopen(gate.clone().reopen(op)?, revision));
        }
        let (head, head_revision) = match &self.head {
            Sight::Unread => return Ok(TakeoverStep::ReadHead),
            Sight::Absent => return LifecycleHead::require(None).map(|_| TakeoverStep::ReadHead),
            Sight::At(head, revision) => (head, *revision),
        };
        // The epoch is the last containment step: what was advanced is contained. To contain again could reach the next
        // epoch's own credentials, when an earlier run's reopening was still on its way and has landed by now.
        if !self.contained && !Self::has_advanced(op, intent, head) {
            return Ok(TakeoverStep::Contain);
        }
        let step = match head.clone().advance_epoch(&intent.lifecycle_uid, intent.from_epoch, op) {
            // A root that was stamped behind the containment is of a credential that the containment revoked, and goes
            // with the epoch. Whoever changed anything else came first.
            Ok(HeadStep::Write(_)) | Err(_) if self.lost_to_more_than_a_stamp(head) => {
                Err(EpError::conflict("takeover: another writer moved the head; the epoch was not advanced"))
            }
            step => step,
        };
        match step {
            Ok(HeadStep::Write(advanced)) => Ok(TakeoverStep::AdvanceHead(advanced, head_revision)),
            Ok(HeadStep::Done(_)) => Ok(TakeoverStep::Reopen(gate.clone().reopen(op)?, revision)),
            Err(refusal) if refusal.code == EpCode::Conflict => {
                Ok(TakeoverStep::Abort(gate.clone().reopen(op)?, revision, refusal))
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn has_advanced(op: &OpId, intent: &TakeoverIntent, head: &LifecycleHead) -> bool {
        head.is_active_at(&intent.lifecycle_uid)
            && head.process_epoch() == intent.from_epoch.saturating_add(1)
            && head.last_takeover_op_id() == Some(op)
    }

    fn lost_to_more_than_a_stamp(&self, head: &LifecycleHead) -> bool {
        self.lost.as_ref().is_some_and(|lost| !head.differs_by_its_root_alone(lost))
    }

    /// The gate is open at the next generation: this operation's work, or another's.
    fn completed(&self, op: &OpId, intent: &TakeoverIntent) -> Result<TakeoverStep, EpError> {
        if self.advanced {
            return Ok(TakeoverStep::Done);
        }
        let to_epoch = intent.from_epoch.saturating_add(1);
        match &self.head {
            Sight::Unread => Ok(TakeoverStep::ReadHead),
            Sight::At(head, _) if Self::has_advanced(op, intent, head) => Ok(TakeoverStep::Done),
            Sight::At(head, _)
                if head.is_active_at(&intent.lifecycle_uid) && head.process_epoch() == to_epoch =>
            {
                Err(EpError::conflict("takeover: another takeover advanced this epoch"))
            }
            Sight::Absent | Sight::At(..) => Err(EpError::internal(
                "takeover: the gate is open at the next generation but the head is not at the next epoch",
            )),
        }
    }

    /// The gate stands elsewhere than this run thought: it and the head are looked at again.
    pub(crate) fn lost_gate(&mut self) {
        self.gate = Sight::Unread;
        self.head = Sight::Unread;
    }

    /// The head stands elsewhere than this run thought: it is looked at once more.
    pub(crate) fn lost_head(&mut self) {
        if let Sight::At(head, _) = std::mem::replace(&mut self.head, Sight::Unread) {
            self.lost = Some(head);
        }
    }

    /// Everything of the old epoch is gone. The head was read before that, and is read again: a root that was stamped
    /// meanwhile goes with the epoch.
    pub(crate) fn contained(&mut self) {
        self.contained = true;
        self.head = Sight::Unread;
    }
}
