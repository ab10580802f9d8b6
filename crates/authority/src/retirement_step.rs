//! What a terminal retirement does next, decided without I/O (contract 07 §6.3, 02 §3.11).

use cotal_wire::{
    EpError, LifecycleUid, OpId, Revision,
    rows::{AgentGate, FrontierRecord, GateOp, GateState, HeadStep, LifecycleHead, OpKind, RetirementIntent},
};

use crate::barrier::{Sight, held_by_another, is_held_by};

/// What one run has seen and done. A resume starts from nothing: every phase is safe to do again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RetirementRun {
    pub(crate) gate: Sight<AgentGate>,
    pub(crate) head: Sight<LifecycleHead>,
    pub(crate) done: Phase,
    pub(crate) frontier: Option<FrontierRecord>,
}

/// The last phase behind the frozen gate that this run has been through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    Nothing,
    Contained,
    Drained,
    Fenced,
    Cleaned,
}

/// One read, one write, or one phase.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum RetirementStep {
    ReadGate,
    ReadHead,
    Freeze(AgentGate, Revision),
    BeginHead(LifecycleHead, Revision),
    Contain,
    Drain,
    FenceRepairs,
    CleanPools,
    /// Use the record that is there, or make it.
    RecordFrontier,
    /// The gate is final: the record must be there.
    ProveFrontier,
    RetireGate(AgentGate, Revision),
    CompleteHead(LifecycleHead, Revision),
    Done,
}

impl RetirementRun {
    /// A run that has seen this gate, and must look at the head right before it freezes.
    pub(crate) fn from_gate(gate: Sight<AgentGate>) -> Self {
        Self { gate, head: Sight::Unread, done: Phase::Nothing, frontier: None }
    }

    /// The next step, or why there is none.
    pub(crate) fn next(&self, op: &OpId, intent: &RetirementIntent) -> Result<RetirementStep, EpError> {
        let uid = &intent.lifecycle_uid;
        let (gate, revision) = match &self.gate {
            Sight::Unread => return Ok(RetirementStep::ReadGate),
            Sight::Absent => return Err(EpError::internal("retirement: the issuance gate vanished")),
            Sight::At(gate, revision) => (gate, *revision),
        };
        match gate.state() {
            GateState::Open => self.freeze(op, intent, gate, revision),
            GateState::Frozen(_) if is_held_by(gate, op, OpKind::Retirement) => {
                self.behind_the_gate(op, uid, gate, revision)
            }
            GateState::Frozen(_) => Err(held_by_another(gate)),
            GateState::Retired(held) if held.op_id() == op => self.finish(op, uid),
            GateState::Retired(_) => Err(gate.state().blocks(EpError::permission_denied(
                "retirement: another operation retired this incarnation's issuance gate",
            ))),
        }
    }

    fn freeze(
        &self,
        op: &OpId,
        intent: &RetirementIntent,
        gate: &AgentGate,
        revision: Revision,
    ) -> Result<RetirementStep, EpError> {
        // A takeover, or one that was undone, may have reopened the gate since. That is no reason to keep a lifecycle: what
        // ends it is one operation for good, whose intent is never written again, and it contains every generation alike.
        if gate.generation() < intent.from_generation {
            return Err(EpError::conflict(
                "retirement: the issuance gate is behind the generation that this operation was captured at; restore it \
                 from a backup",
            ));
        }
        match &self.head {
            Sight::Unread => Ok(RetirementStep::ReadHead),
            Sight::At(head, _) if head.is_active_at(&intent.lifecycle_uid) => {
                let frozen = gate.clone().freeze(GateOp::new(op.clone(), OpKind::Retirement))?;
                Ok(RetirementStep::Freeze(frozen, revision))
            }
            Sight::Absent | Sight::At(..) => Err(EpError::conflict(
                "retirement: the alias is no longer active as this lifecycle uid; the gate was not moved",
            )),
        }
    }

    fn behind_the_gate(
        &self,
        op: &OpId,
        uid: &LifecycleUid,
        gate: &AgentGate,
        revision: Revision,
    ) -> Result<RetirementStep, EpError> {
        let (head, head_revision) = match &self.head {
            Sight::Unread => return Ok(RetirementStep::ReadHead),
            Sight::Absent => return LifecycleHead::require(None).map(|_| RetirementStep::ReadHead),
            Sight::At(head, revision) => (head, *revision),
        };
        if let HeadStep::Write(retiring) = head.clone().begin_retirement(uid, op)? {
            return Ok(RetirementStep::BeginHead(retiring, head_revision));
        }
        Ok(match self.done {
            Phase::Nothing => RetirementStep::Contain,
            Phase::Contained => RetirementStep::Drain,
            Phase::Drained => RetirementStep::FenceRepairs,
            Phase::Fenced => RetirementStep::CleanPools,
            Phase::Cleaned if self.frontier.is_none() => RetirementStep::RecordFrontier,
            Phase::Cleaned => RetirementStep::RetireGate(gate.clone().retire(op)?, revision),
        })
    }

    /// The gate is final: what is left is the head, once the frontier is proved to have been recorded.
    fn finish(&self, op: &OpId, uid: &LifecycleUid) -> Result<RetirementStep, EpError> {
        if self.frontier.is_none() {
            return Ok(RetirementStep::ProveFrontier);
        }
        let (head, revision) = match &self.head {
            Sight::Unread => return Ok(RetirementStep::ReadHead),
            Sight::Absent => return Err(EpError::internal("retirement: the lifecycle head vanished")),
            Sight::At(head, revision) => (head, *revision),
        };
        if head.lifecycle_uid() != uid {
            // A successor stands in its place, so it was retired before.
            return Ok(RetirementStep::Done);
        }
        Ok(match head.clone().complete_retirement(uid, op)? {
            HeadStep::Write(retired) => RetirementStep::CompleteHead(retired, revision),
            HeadStep::Done(_) => RetirementStep::Done,
        })
    }

    /// The gate stands elsewhere than this run thought: it and the head are looked at again.
    pub(crate) fn lost_gate(&mut self) {
        self.gate = Sight::Unread;
        self.head = Sight::Unread;
    }
}

/// A frontier record that is there must be this operation's own.
pub(crate) fn own_frontier(
    record: FrontierRecord,
    uid: &LifecycleUid,
    op: &OpId,
) -> Result<FrontierRecord, EpError> {
    if record.is_of(uid, op) {
        return Ok(record);
    }
    Err(EpError::permission_denied("retirement: another operation recorded this incarnation's frontier"))
}
