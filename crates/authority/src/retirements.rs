//! Requests to retire a lifecycle: what its head says before the barrier, and the barrier itself
//! (contract 05 §7.1-7.2, §12; 07 §16).

use std::sync::Arc;

use cotal_wire::{
    EpError, LifecycleUid, OpId, Principal,
    rows::{AgentGate, HeadState, LifecycleHead, OpKind},
};
use futures::{FutureExt, future::BoxFuture};

use crate::{
    barrier::end_activation,
    drain::Retiring,
    fence::Fence,
    flights::{Flight, RetirementFlights, RetirementOutcome},
    gate::read_gate,
    head::{HeadAt, read_head},
    retirement::{Retirement, RetirementFailure},
    stores::AuthorityStores,
    turns::Turns,
};

/// Runs the terminal barrier of one operation (contract 07 §6).
pub type RunBarrier = Arc<dyn Fn(Retiring) -> BoxFuture<'static, RetirementOutcome> + Send + Sync>;

/// What the head of an alias says to a request to retire one incarnation of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No head stands at this incarnation, and none will: there is nothing to retire.
    NotStarted,
    /// This incarnation was retired.
    Retired,
    /// This incarnation stands, active or retiring.
    Stands,
}

/// Everything that a plane retires lifecycles with. The doors and the rail share it.
pub struct Retirements {
    stores: AuthorityStores,
    fence: Arc<Fence>,
    flights: RetirementFlights,
    interactive: Turns<OpId>,
    barrier: RunBarrier,
}

// === deciding =================================================================================================

/// What may follow from the head: a successor that stands is `conflict` (contract 05 §7.1-7.2, 08 §6).
pub fn standing(head: Option<&LifecycleHead>, uid: &LifecycleUid) -> Result<Standing, EpError> {
    let Some(head) = head else { return Ok(Standing::NotStarted) };
    let ours = head.lifecycle_uid() == uid;
    match head.state() {
        HeadState::Retired if ours => Ok(Standing::Retired),
        HeadState::Retired => Ok(Standing::NotStarted),
        HeadState::Active | HeadState::Retiring(_) if ours => Ok(Standing::Stands),
        state @ (HeadState::Active | HeadState::Retiring(_)) => {
            Err(state.blocks(EpError::conflict(format!(
                "retirement: the alias stands at lifecycle {}, not at {uid}; name the incarnation that stands",
                head.lifecycle_uid()
            ))))
        }
    }
}

/// The retirement that has begun at an incarnation, whoever asked for it: its head names it, or the gate that it froze
/// right before.
fn begun_as<'a>(head: &'a LifecycleHead, gate: Option<&'a AgentGate>) -> Option<&'a OpId> {
    if let HeadState::Retiring(op) = head.state() {
        return Some(op);
    }
    let held = gate?.state().op()?;
    (held.kind() == OpKind::Retirement).then(|| held.op_id())
}

// === driving ==================================================================================================

impl Retirements {
    /// Over these stores, with this barrier.
    pub fn new(stores: AuthorityStores, barrier: RunBarrier) -> Self {
        Self::under(stores, Arc::new(Fence::new()), barrier)
    }

    /// As [`Self::new`], refusing once this fence is tripped.
    pub(crate) fn under(stores: AuthorityStores, fence: Arc<Fence>, barrier: RunBarrier) -> Self {
        Self { stores, fence, flights: RetirementFlights::default(), interactive: Turns::default(), barrier }
    }

    /// Retires an interactive lifecycle. Its operation is its own and never in the flight map; in one process it runs
    /// once at a time, and who waited finds it done. It does not stop when its caller does.
    pub async fn retire_interactive(
        self: &Arc<Self>,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        self.retire(OpId::interactive_retirement(uid), principal, uid).await
    }

    /// Retires a managed lifecycle: joins the flight of its one operation, or starts it. Whether its grant is revoked
    /// is the door's to check, before it asks.
    pub async fn retire_managed(
        self: &Arc<Self>,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        self.retire(OpId::managed_retirement(uid), principal, uid).await
    }

    /// Retires under the operation that the door names, unless a retirement has begun under another one: then that one
    /// is ended. The door by which a lifecycle is asked about may change while it retires, as when the row of an
    /// interactive actor is lost, and an operation is ended by its own id alone.
    async fn retire(
        self: &Arc<Self>,
        op: OpId,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Retirement, RetirementFailure> {
        self.check_open().map_err(before)?;
        let head = match self.stands(principal, uid).await.map_err(before)? {
            Ok(head) => head,
            Err(answer) => return Ok(answer),
        };
        let gate = self.gate(uid).await.map_err(before)?;
        let op = begun_as(&head, gate.as_ref()).cloned().unwrap_or(op);
        self.run(Retiring { op, principal: principal.clone(), uid: uid.clone() }).await
    }

    /// Runs one operation, or waits for the run that there is: a managed one in its flight, every other one in turn.
    pub(crate) async fn run(self: &Arc<Self>, retiring: Retiring) -> Result<Retirement, RetirementFailure> {
        let op = retiring.op.clone();
        if op == OpId::managed_retirement(&retiring.uid) {
            let report = self.join_or_start(&retiring).map_err(before)?.landed().await?;
            return Ok(Retirement::Retired { op, report });
        }
        let this = Arc::clone(self);
        let running = tokio::spawn(async move {
            let _turn = this.interactive.take(op.clone()).await.map_err(before)?;
            if let Err(answer) = this.stands(&retiring.principal, &retiring.uid).await.map_err(before)? {
                return Ok(answer);
            }
            let report = (this.barrier)(retiring).await?;
            Ok(Retirement::Retired { op, report })
        });
        running.await.unwrap_or_else(|_| {
            Err(RetirementFailure {
                error: EpError::internal("retirement: it did not run to its end; ask again to resume it"),
                began: true,
            })
        })
    }

    /// Joins or starts the flight of a managed retirement (contract 05 §12.1).
    pub fn join_or_start(&self, retiring: &Retiring) -> Result<Flight, EpError> {
        self.flights.join_or_start(retiring, || (self.barrier)(retiring.clone()).boxed())
    }

    /// How many have asked for the flight of an operation; 0 when it is not in flight.
    pub fn askers(&self, op: &OpId) -> usize {
        self.flights.askers(op)
    }

    /// The operations in flight.
    pub fn in_flight(&self) -> Vec<OpId> {
        self.flights.in_flight()
    }

    /// The alias head, by a leader read.
    pub async fn head(&self, principal: &Principal) -> Result<Option<HeadAt>, EpError> {
        read_head(self.stores.records(), principal).await
    }

    /// The issuance gate of an incarnation, by a leader read.
    pub async fn gate(&self, uid: &LifecycleUid) -> Result<Option<AgentGate>, EpError> {
        Ok(read_gate(&self.stores, uid).await?.map(|at| at.gate))
    }

    /// As [`Self::gate`], once an activation that was cut off in front of it has ended (contract 07 §3.3).
    pub(crate) async fn settled_gate(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Option<AgentGate>, EpError> {
        let gate = self.gate(uid).await?;
        if end_activation(&self.stores, principal, uid, gate.as_ref()).await? {
            return self.gate(uid).await;
        }
        Ok(gate)
    }

    /// Refuses once the plane is fenced or closes.
    pub fn check_open(&self) -> Result<(), EpError> {
        self.fence.check()
    }

    /// The head of the incarnation while it stands, or else the answer that the head alone gives.
    async fn stands(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Result<LifecycleHead, Retirement>, EpError> {
        self.check_open()?;
        let head = self.head(principal).await?.map(|at| at.head);
        Ok(match (standing(head.as_ref(), uid)?, head) {
            (Standing::Stands, Some(head)) => Ok(head),
            (Standing::Retired, _) => Err(Retirement::AlreadyRetired),
            (Standing::NotStarted | Standing::Stands, _) => Err(Retirement::NotStarted),
        })
    }
}

/// A refusal before the barrier.
fn before(error: EpError) -> RetirementFailure {
    RetirementFailure { error, began: false }
}

#[cfg(test)]
mod tests {
    use cotal_wire::EpCode;

    use super::*;

    fn uid(c: char) -> LifecycleUid {
        LifecycleUid::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn head(state: &str) -> LifecycleHead {
        let principal = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.bob").unwrap();
        let op = match state {
            "retiring" => format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", "f".repeat(26)),
            _ => String::new(),
        };
        let row = format!(
            "{{\"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"actor\":\"bob\",\"lifecycleUid\":\"{}\",\
             \"managerInstance\":\"m\",\"processEpoch\":1,\"state\":\"{state}\"{op}}}",
            uid('a')
        );
        LifecycleHead::parse(&principal, row.as_bytes()).unwrap()
    }

    #[test]
    fn the_head_decides_what_a_request_to_retire_comes_to() {
        use Standing::{NotStarted, Retired, Stands};
        assert_eq!(standing(None, &uid('a')), Ok(NotStarted));
        for (state, at_its_uid, at_another) in [
            ("active", Ok(Stands), Err(EpCode::Conflict)),
            ("retiring", Ok(Stands), Err(EpCode::Conflict)),
            ("retired", Ok(Retired), Ok(NotStarted)),
        ] {
            let head = head(state);
            assert_eq!(standing(Some(&head), &uid('a')).map_err(|e| e.code), at_its_uid, "{state}");
            assert_eq!(standing(Some(&head), &uid('b')).map_err(|e| e.code), at_another, "{state}");
        }
    }

    #[test]
    fn a_successor_that_stands_is_named() {
        let refusal = standing(Some(&head("active")), &uid('b')).unwrap_err();
        assert!(refusal.message.contains(uid('a').as_str()) && refusal.message.contains(uid('b').as_str()));
    }
}
