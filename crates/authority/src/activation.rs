//! Activation sagas (contract 07 §3): reserve the uid, create the gate frozen, place the head, reopen the gate LAST.
//!
//! Nothing can be minted before the last write, so a saga that stops anywhere leaves an alias that is either
//! untouched or merely closed; running it again, at the same uid, ends it.

use cotal_broker::kv::WriteOutcome;
use cotal_wire::{
    Entropy, EpCode, EpError, LifecycleUid, OpId, Principal, Revision, names,
    rows::{AgentGate, GateState, HeadState, LifecycleHead, OpKind, UidReservation},
};
use serde_json::json;

use crate::{
    gate::{self, GateAt, Reserved},
    head::{GRANT_AGAIN, HeadAt, read_head},
    store::{ambiguous, must_land, unsent},
    stores::AuthorityStores,
};

/// How many fresh uids a fresh activation tries.
const RESERVE_CANDIDATES: usize = 4;
/// How often an activation at a uid looks at the gate before it gives up.
const GATE_LOOKS: usize = 5;
/// Detail kind that names a saga to be resumed.
const RESUME_ACTIVATION: &str = "resume-activation";

// === deciding =================================================================================================

/// What a saga at a uid has learned so far.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Observed {
    head: HeadSeen,
    reserved: Option<Reserved>,
    gate: GateSeen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadSeen {
    /// The alias was never used.
    Virgin,
    /// A predecessor was retired; it is replaced at this revision.
    Retired(Revision),
    /// Active at our uid: an earlier run, or a sibling, placed it.
    Ours,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GateSeen {
    /// Not looked at, or moved under us.
    Unread,
    Absent,
    /// Frozen by an activation, whose operation we adopt.
    Activating(GateAt),
    Open,
}

/// The next thing to do: one read or one write.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Reserve,
    ReadReservation,
    ReadGate,
    CreateGate(Reserved),
    PlaceHead(Option<Revision>),
    ReopenGate(GateAt),
    ConfirmHead,
    Done,
}

fn activation_step(observed: &Observed) -> Step {
    let ours = observed.head == HeadSeen::Ours;
    match &observed.gate {
        _ if !ours && observed.reserved.is_none() => Step::Reserve,
        GateSeen::Unread => Step::ReadGate,
        GateSeen::Absent => observed.reserved.clone().map_or(Step::ReadReservation, Step::CreateGate),
        GateSeen::Activating(at) if ours => Step::ReopenGate(at.clone()),
        GateSeen::Activating(_) => Step::PlaceHead(match observed.head {
            HeadSeen::Retired(revision) => Some(revision),
            HeadSeen::Virgin | HeadSeen::Ours => None,
        }),
        GateSeen::Open if ours => Step::Done,
        GateSeen::Open => Step::ConfirmHead,
    }
}

/// What the alias head lets an activation at `uid` do.
pub(crate) fn see_head(head: Option<&HeadAt>, uid: &LifecycleUid) -> Result<HeadSeen, EpError> {
    let Some(HeadAt { head, revision }) = head else { return Ok(HeadSeen::Virgin) };
    match head.state() {
        HeadState::Active if head.lifecycle_uid() == uid => Ok(HeadSeen::Ours),
        HeadState::Active => Err(alias_is_active()),
        state @ HeadState::Retiring(_) => Err(alias_is_retiring(state)),
        HeadState::Retired => Ok(HeadSeen::Retired(*revision)),
    }
}

/// What the gate lets an activation do.
pub(crate) fn see_gate(gate: Option<GateAt>) -> Result<GateSeen, EpError> {
    let Some(at) = gate else { return Ok(GateSeen::Absent) };
    match at.gate.state() {
        GateState::Open => Ok(GateSeen::Open),
        GateState::Frozen(op) if op.kind() == OpKind::Activation => Ok(GateSeen::Activating(at)),
        GateState::Frozen(op) => {
            let refusal = format!(
                "activation: the incarnation's gate is held by a {}; retry when that has ended",
                op.kind().as_str()
            );
            Err(at.gate.state().blocks(EpError::failed_precondition(refusal)))
        }
        GateState::Retired(_) => {
            let refusal = "activation: this lifecycle uid is burned; revoke the actor and grant it again, at a fresh one";
            Err(at.gate.state().blocks(EpError::permission_denied(refusal)))
        }
    }
}

/// What the reservation, and the gate beside the head, let an activation do: its rules, without its writes.
pub(crate) fn see_reservation(
    head: HeadSeen,
    reservation: Option<&UidReservation>,
    principal: &Principal,
) -> Result<(), EpError> {
    match reservation {
        Some(row) if !row.is_for(principal) => Err(reserved_for_another()),
        None if head == HeadSeen::Ours => Err(never_reserved()),
        _ => Ok(()),
    }
}

/// A gate is opened last: an open one belongs to an alias that is active there.
pub(crate) fn see_both(head: HeadSeen, gate: &GateSeen) -> Result<(), EpError> {
    if head != HeadSeen::Ours && *gate == GateSeen::Open { Err(open_elsewhere()) } else { Ok(()) }
}

fn never_reserved() -> EpError {
    EpError::failed_precondition("activation: the head names a uid that was never reserved")
}

fn reserved_for_another() -> EpError {
    EpError::permission_denied("activation: this lifecycle uid was reserved for another principal")
}

fn open_elsewhere() -> EpError {
    EpError::failed_precondition("activation: the gate of this uid is open but the alias is not active there")
}

fn alias_is_active() -> EpError {
    EpError::new(
        EpCode::AlreadyExists,
        format!("activation: the alias is active as another incarnation; {GRANT_AGAIN}"),
    )
}

fn alias_is_retiring(state: &HeadState) -> EpError {
    let refusal = "activation: the alias is being retired; retry when that has ended";
    state.blocks(EpError::failed_precondition(refusal))
}

// === driving ==================================================================================================

/// Activation at the caller's uid (contract 07 §3.2); idempotent, and safe to run in several processes at once.
///
/// Returns with the head active at `uid` and the gate open. Dropped midway it leaves a saga that the next call ends.
pub async fn activate_at_uid(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
    manager_instance: &str,
    entropy: &dyn Entropy,
) -> Result<(), EpError> {
    let activated = LifecycleHead::activated(principal, uid, manager_instance)?.to_bytes();
    let head = see_head(read_head(stores.records(), principal).await?.as_ref(), uid)?;
    let mut observed = Observed { head, reserved: None, gate: GateSeen::Unread };
    let mut looks = 0;
    loop {
        match activation_step(&observed) {
            Step::Reserve => {
                observed.reserved = match gate::reserve(stores, principal, uid, manager_instance).await? {
                    Some(reserved) => Some(reserved),
                    None => Some(adopt_reservation(stores, principal, uid).await?),
                };
            }
            Step::ReadReservation => {
                let found = gate::read_reservation(stores, uid).await?;
                let (_, reserved) = found.ok_or_else(never_reserved)?;
                observed.reserved = Some(reserved);
            }
            Step::ReadGate => {
                looks += 1;
                if looks > GATE_LOOKS {
                    return Err(EpError::unavailable("activation: the gate kept moving; retry"));
                }
                observed.gate = see_gate(gate::read_gate(stores, uid).await?)?;
            }
            Step::CreateGate(reserved) => {
                let (gate, outcome) = gate::create_frozen(stores, &reserved, &OpId::mint(entropy)).await;
                observed.gate = match outcome {
                    WriteOutcome::Written(revision) => GateSeen::Activating(GateAt { gate, revision }),
                    WriteOutcome::Lost => GateSeen::Unread,
                    WriteOutcome::Ambiguous(why) => return Err(ambiguous("activation: gate", &why)),
                    WriteOutcome::Refused(why) => return Err(unsent("activation: gate", &why)),
                };
            }
            Step::PlaceHead(over) => {
                match place_head(stores, principal, activated.clone(), over).await {
                    WriteOutcome::Written(_) => {}
                    WriteOutcome::Lost => converge_on_winner(stores, principal, uid).await?,
                    WriteOutcome::Ambiguous(why) => return Err(ambiguous("activation: head", &why)),
                    WriteOutcome::Refused(why) => return Err(unsent("activation: head", &why)),
                }
                observed.head = HeadSeen::Ours;
            }
            Step::ReopenGate(at) => {
                let open = reopened(&at.gate)?;
                match gate::write_gate(stores, uid, &open, at.revision).await {
                    WriteOutcome::Written(_) => return Ok(()),
                    WriteOutcome::Lost => observed.gate = GateSeen::Unread,
                    WriteOutcome::Refused(why) => return Err(unsent("activation: opening the gate", &why)),
                    WriteOutcome::Ambiguous(why) => {
                        let now = gate::read_gate(stores, uid).await.ok().flatten();
                        if now.is_some_and(|now| now.gate.is_open()) {
                            return Ok(());
                        }
                        return Err(ambiguous("activation: reopening the gate", &why));
                    }
                }
            }
            Step::ConfirmHead => {
                let now = read_head(stores.records(), principal).await?;
                if now.is_some_and(|now| now.head.is_active_at(uid)) {
                    return Ok(());
                }
                return Err(open_elsewhere());
            }
            Step::Done => return Ok(()),
        }
    }
}

/// Why an activation for a host did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivationFailure {
    /// The refusal.
    pub error: EpError,
    /// Whether something may have been written. `false` is the contract's `outcome: "not-executed"`.
    pub began: bool,
}

/// [`activate_at_uid`] for a host, which must know whether a refusal left anything behind (contract 05 §7.3). What the
/// head alone refuses left nothing.
pub async fn activate_managed(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
    manager_instance: &str,
    entropy: &dyn Entropy,
) -> Result<(), ActivationFailure> {
    let before = |error| ActivationFailure { error, began: false };
    let head = read_head(stores.records(), principal).await.map_err(before)?;
    see_head(head.as_ref(), uid).map_err(before)?;
    activate_at_uid(stores, principal, uid, manager_instance, entropy)
        .await
        .map_err(|error| ActivationFailure { error, began: true })
}

/// Fresh activation (contract 07 §3.1): returns the minted uid and the operation id.
///
/// A saga that was cut off after its gate was created refuses with a `resume-activation` detail, whose members are
/// what [`resume_activation`] takes.
pub async fn activate_fresh(
    stores: &AuthorityStores,
    principal: &Principal,
    manager_instance: &str,
    entropy: &dyn Entropy,
) -> Result<(LifecycleUid, OpId), EpError> {
    if manager_instance.is_empty() {
        return Err(EpError::failed_precondition(
            "activation: the manager instance is empty; name the authority",
        ));
    }
    let over = match read_head(stores.records(), principal).await? {
        None => None,
        Some(HeadAt { head, revision }) => match head.state() {
            HeadState::Active => return Err(alias_is_active()),
            state @ HeadState::Retiring(_) => return Err(alias_is_retiring(state)),
            HeadState::Retired => Some(revision),
        },
    };
    let op = OpId::mint(entropy);
    let (uid, reserved) = reserve_fresh(stores, principal, manager_instance, entropy).await?;

    let (gate, outcome) = gate::create_frozen(stores, &reserved, &op).await;
    let born_at = must_land(outcome, "activation: gate")?;

    let to_resume = |refusal: EpError| {
        refusal.with_detail(json!({
            "kind": RESUME_ACTIVATION,
            "owner": principal.owner.as_str(),
            "actor": principal.actor.as_str(),
            "lifecycleUid": uid.as_str(),
            "opId": op.as_str(),
        }))
    };
    let activated = LifecycleHead::activated(principal, &uid, manager_instance)?.to_bytes();
    match place_head(stores, principal, activated, over).await {
        WriteOutcome::Written(_) => {}
        WriteOutcome::Lost => {
            let retired = gate.clone().retire(&op)?;
            return Err(match gate::write_gate(stores, &uid, &retired, born_at).await {
                WriteOutcome::Written(_) => {
                    EpError::conflict("activation: another activation took the alias; read it again")
                }
                WriteOutcome::Lost | WriteOutcome::Ambiguous(_) | WriteOutcome::Refused(_) => {
                    to_resume(EpError::unavailable(
                        "activation: another activation took the alias and our gate is still frozen; resume to settle it",
                    ))
                }
            });
        }
        WriteOutcome::Ambiguous(why) => return Err(to_resume(ambiguous("activation: head", &why))),
        WriteOutcome::Refused(why) => return Err(to_resume(unsent("activation: head", &why))),
    }
    let open = reopened(&gate)?;
    match gate::write_gate(stores, &uid, &open, born_at).await {
        WriteOutcome::Written(_) => Ok((uid, op)),
        WriteOutcome::Lost => Err(EpError::conflict("activation: the gate moved before it was reopened")),
        WriteOutcome::Ambiguous(why) => Err(to_resume(ambiguous("activation: reopening the gate", &why))),
        WriteOutcome::Refused(why) => Err(to_resume(unsent("activation: reopening the gate", &why))),
    }
}

/// What a resumed activation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resumed {
    /// The head was ours: the gate is open now.
    Completed,
    /// The head was another's: the gate is retired now, the uid burned.
    Terminalized,
    /// Nothing was left to do.
    AlreadySettled,
}

/// What is left of an activation, from its head and its gate (contract 07 §3.3).
pub(crate) fn resume_step(
    won: bool,
    gate: Option<&AgentGate>,
    op: &OpId,
) -> Result<Option<(Resumed, AgentGate)>, EpError> {
    let Some(gate) = gate else {
        return if won {
            Err(EpError::internal("resume: the head is active but its gate is absent"))
        } else {
            Ok(None)
        };
    };
    match gate.state() {
        GateState::Retired(held) if held.op_id() == op => Ok(None),
        GateState::Retired(_) => Err(gate.state().blocks(EpError::permission_denied(
            "resume: the gate was retired by another operation than this one",
        ))),
        GateState::Open if won => Ok(None),
        GateState::Open => {
            Err(EpError::internal("resume: the gate is open but the head is not active at its uid"))
        }
        GateState::Frozen(_) if won => Ok(Some((Resumed::Completed, gate.clone().reopen(op)?))),
        GateState::Frozen(_) => Ok(Some((Resumed::Terminalized, gate.clone().retire(op)?))),
    }
}

/// Ends an activation that was cut off (contract 07 §3.3).
pub async fn resume_activation(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
    op: &OpId,
) -> Result<Resumed, EpError> {
    let won = read_head(stores.records(), principal).await?.is_some_and(|at| at.head.is_active_at(uid));
    let gate = gate::read_gate(stores, uid).await?;
    let Some((ends_as, next)) = resume_step(won, gate.as_ref().map(|at| &at.gate), op)? else {
        return Ok(Resumed::AlreadySettled);
    };
    let Some(GateAt { revision, .. }) = gate else { return Ok(Resumed::AlreadySettled) };
    must_land(gate::write_gate(stores, uid, &next, revision).await, "resume: gate")?;
    Ok(ends_as)
}

async fn reserve_fresh(
    stores: &AuthorityStores,
    principal: &Principal,
    manager_instance: &str,
    entropy: &dyn Entropy,
) -> Result<(LifecycleUid, Reserved), EpError> {
    for _ in 0..RESERVE_CANDIDATES {
        let uid = LifecycleUid::mint(entropy);
        if let Some(reserved) = gate::reserve(stores, principal, &uid, manager_instance).await? {
            return Ok((uid, reserved));
        }
    }
    Err(EpError::internal("activation: every fresh uid was taken; the source of randomness repeats itself"))
}

/// A burned uid is ours all the same when it was burned for this very principal.
async fn adopt_reservation(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<Reserved, EpError> {
    match gate::read_reservation(stores, uid).await? {
        Some((row, reserved)) if row.is_for(principal) => Ok(reserved),
        _ => Err(reserved_for_another()),
    }
}

async fn place_head(
    stores: &AuthorityStores,
    principal: &Principal,
    row: Vec<u8>,
    over: Option<Revision>,
) -> WriteOutcome {
    let key = names::head_key(principal);
    match over {
        None => stores.records_store().create(&key, row).await,
        Some(retired_at) => stores.records_store().update(&key, row, retired_at).await,
    }
}

/// A lost head race is no loss when the winner activated the same incarnation.
async fn converge_on_winner(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<(), EpError> {
    let winner = read_head(stores.records(), principal).await?;
    if winner.is_some_and(|at| at.head.is_active_at(uid)) {
        return Ok(());
    }
    Err(EpError::conflict("activation: another activation took the alias; read it again"))
}

/// The open gate after this activation's freeze.
fn reopened(gate: &AgentGate) -> Result<AgentGate, EpError> {
    let Some(op) = gate.state().op() else {
        return Err(EpError::internal("activation: the gate is not frozen"));
    };
    gate.clone().reopen(op.op_id())
}

#[cfg(test)]
mod tests {
    use cotal_wire::rows::GateOp;

    use super::*;

    fn principal() -> Principal {
        Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice").unwrap()
    }

    fn uid(c: char) -> LifecycleUid {
        LifecycleUid::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn op(c: char) -> OpId {
        OpId::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn born() -> AgentGate {
        AgentGate::born(&uid('a'), &op('o'))
    }

    fn open() -> AgentGate {
        born().reopen(&op('o')).unwrap()
    }

    fn frozen(kind: OpKind) -> AgentGate {
        open().freeze(GateOp::new(op('f'), kind)).unwrap()
    }

    fn at(gate: AgentGate) -> GateAt {
        GateAt { gate, revision: Revision(7) }
    }

    fn head(state: &str) -> HeadAt {
        let op = if state == "retiring" {
            format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", op('r'))
        } else {
            String::new()
        };
        let row = format!(
            "{{\"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"actor\":\"alice\",\"lifecycleUid\":\"{}\",\
             \"managerInstance\":\"m\",\"processEpoch\":1,\"state\":\"{state}\"{op}}}",
            uid('a')
        );
        HeadAt { head: LifecycleHead::parse(&principal(), row.as_bytes()).unwrap(), revision: Revision(3) }
    }

    #[test]
    fn the_gate_is_reopened_last_and_nothing_is_skipped() {
        let reserved = Reserved::for_test(&uid('a'));
        let activating = at(born());
        for (seen, reservation, gate, step) in [
            (HeadSeen::Virgin, None, GateSeen::Unread, Step::Reserve),
            (HeadSeen::Virgin, Some(reserved.clone()), GateSeen::Unread, Step::ReadGate),
            (HeadSeen::Virgin, Some(reserved.clone()), GateSeen::Absent, Step::CreateGate(reserved.clone())),
            (
                HeadSeen::Virgin,
                Some(reserved.clone()),
                GateSeen::Activating(activating.clone()),
                Step::PlaceHead(None),
            ),
            (
                HeadSeen::Retired(Revision(3)),
                Some(reserved.clone()),
                GateSeen::Activating(activating.clone()),
                Step::PlaceHead(Some(Revision(3))),
            ),
            (HeadSeen::Virgin, Some(reserved.clone()), GateSeen::Open, Step::ConfirmHead),
            (HeadSeen::Ours, None, GateSeen::Unread, Step::ReadGate),
            (HeadSeen::Ours, None, GateSeen::Absent, Step::ReadReservation),
            (HeadSeen::Ours, Some(reserved.clone()), GateSeen::Absent, Step::CreateGate(reserved.clone())),
            (HeadSeen::Ours, None, GateSeen::Activating(activating.clone()), Step::ReopenGate(activating)),
            (HeadSeen::Ours, None, GateSeen::Open, Step::Done),
        ] {
            let observed = Observed { head: seen, reserved: reservation, gate };
            assert_eq!(activation_step(&observed), step, "{observed:?}");
        }
    }

    #[test]
    fn a_head_admits_an_activation_unless_it_is_anothers_or_retiring() {
        assert_eq!(see_head(None, &uid('a')), Ok(HeadSeen::Virgin));
        assert_eq!(see_head(Some(&head("active")), &uid('a')), Ok(HeadSeen::Ours));
        assert_eq!(see_head(Some(&head("retired")), &uid('b')), Ok(HeadSeen::Retired(Revision(3))));
        // The same uid too: its retired gate is what refuses then.
        assert_eq!(see_head(Some(&head("retired")), &uid('a')), Ok(HeadSeen::Retired(Revision(3))));
        let other = see_head(Some(&head("active")), &uid('b')).unwrap_err();
        assert_eq!(other.code, EpCode::AlreadyExists);
        assert!(other.message.ends_with(GRANT_AGAIN), "{other}");
        for candidate in ['a', 'b'] {
            let refusal = see_head(Some(&head("retiring")), &uid(candidate)).unwrap_err();
            assert_eq!(refusal.code, EpCode::FailedPrecondition);
            assert_eq!(
                serde_json::to_string(&refusal.details[0]).unwrap(),
                format!(
                    "{{\"blockedOp\":\"retirement\",\"headState\":\"retiring\",\
                     \"kind\":\"ai.cotal.ep.lifecycle-blocked\",\"opId\":\"{}\",\"remedy\":\"retry\"}}",
                    op('r')
                )
            );
        }
    }

    #[test]
    fn a_gate_admits_an_activation_only_if_absent_open_or_frozen_by_one() {
        assert_eq!(see_gate(None), Ok(GateSeen::Absent));
        assert_eq!(see_gate(Some(at(open()))), Ok(GateSeen::Open));
        assert!(matches!(see_gate(Some(at(born()))), Ok(GateSeen::Activating(_))));
        for (kind, remedy) in [
            (OpKind::Takeover, "retry"),
            (OpKind::Retirement, "retry"),
            (OpKind::Registration, "cotal reconcile-gate"),
        ] {
            let refusal = see_gate(Some(at(frozen(kind)))).unwrap_err();
            assert_eq!(refusal.code, EpCode::FailedPrecondition);
            let detail = &refusal.details[0];
            assert_eq!(detail["blockedOp"], kind.as_str());
            assert_eq!(detail["gateState"], "frozen");
            assert_eq!(detail["remedy"], remedy);
            assert!(detail.get("headState").is_none(), "the head was not read here");
        }
        let burned = see_gate(Some(at(born().retire(&op('o')).unwrap()))).unwrap_err();
        assert_eq!(burned.code, EpCode::PermissionDenied);
        assert_eq!(burned.details[0]["gateState"], "retired");
        assert!(burned.details[0].get("remedy").is_none());
    }

    #[test]
    fn a_resume_settles_by_who_won_the_head() {
        let code =
            |won, gate: Option<AgentGate>, by| resume_step(won, gate.as_ref(), &op(by)).unwrap_err().code;
        let ends = |won, gate: Option<AgentGate>| {
            resume_step(won, gate.as_ref(), &op('o')).unwrap().map(|(ends, _)| ends)
        };
        let retired = born().retire(&op('o')).unwrap();

        assert_eq!(code(true, None, 'o'), EpCode::Internal);
        assert_eq!(ends(false, None), None);
        assert_eq!(code(false, Some(retired.clone()), 'x'), EpCode::PermissionDenied);
        assert_eq!(ends(false, Some(retired)), None);
        assert_eq!(ends(true, Some(open())), None);
        assert_eq!(code(false, Some(open()), 'o'), EpCode::Internal);
        assert_eq!(ends(true, Some(born())), Some(Resumed::Completed));
        assert_eq!(ends(false, Some(born())), Some(Resumed::Terminalized));
        for won in [true, false] {
            assert_eq!(code(won, Some(born()), 'x'), EpCode::PermissionDenied, "another's freeze");
        }
    }
}
