//! What is to be done about one row and one item: from what was read to the one step that may follow, without I/O.

use cotal_wire::{
    Acceptance, EpError, Revision, UnixMillis,
    canonical::contract_digest,
    endpoint_subject::TargetTriple,
    grants::drain::Pools,
    rows::{
        AcceptedFact, Commit, Decision, EffectFact, FactWork, GoalResult, ItemRef, ObligationState,
        WorkTerminal,
    },
};

use super::Retiring;

/// What becomes of a provisional obligation whose decision is a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactStep {
    /// The row follows the decision that stands.
    Follow(ObligationState),
    /// Nothing was decided: a rejection is written.
    Reject,
}

/// What becomes of an accepted obligation that carries its own commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelfStep {
    /// The commit stands.
    Landed,
    /// The record is still at the commit's base: it is applied.
    Apply,
    /// The record has moved on.
    Superseded,
}

/// The completion of an accepted effect, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// An effect fact.
    Effect(EffectFact),
    /// A goal result.
    Goal(GoalResult),
}

/// What becomes of accepted effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectsStep {
    /// They are complete.
    Done,
    /// They never will be: a cancelled completion is written.
    Cancel,
}

/// What becomes of accepted pool work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolStep {
    /// It is settled, or its item lives.
    Done,
    /// Its item was never enqueued, or is gone: it is enqueued again.
    Reenqueue,
}

/// What becomes of an item that the cleaner was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemStep {
    /// It is settled: acknowledge it.
    Ack,
    /// Its horizon has passed: settle it `expired`.
    Expire,
    /// It was for the incarnation that retires: settle it `retired`.
    Retire,
    /// It lives, and is somebody else's: leave it.
    Leave,
}

/// What the cleaner asks the executor for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleRequest {
    /// `expired`.
    Expired,
    /// `retired`.
    Retired,
}

/// A decision that stands must be about the very submission that the obligation is about, and an acceptance must go
/// where the obligation says (`internal`).
pub(super) fn matches(work: &FactWork, decision: &Decision) -> Result<(), EpError> {
    let differs = |what: &str| {
        Err(EpError::internal(format!("drain: the decision fact has another {what} than its obligation")))
    };
    if decision.fingerprint().as_str() != work.fingerprint {
        return differs("fingerprint");
    }
    if decision.source_seq() != work.source_seq {
        return differs("sourceSeq");
    }
    match decision {
        Decision::Accepted(fact) if fact.route != work.route => differs("route"),
        _ => Ok(()),
    }
}

/// The step of a provisional obligation whose decision is a fact.
pub fn fact_step(work: &FactWork, decision: Option<&Decision>) -> Result<FactStep, EpError> {
    let Some(decision) = decision else { return Ok(FactStep::Reject) };
    matches(work, decision)?;
    Ok(FactStep::Follow(match decision {
        Decision::Accepted(_) => ObligationState::Accepted,
        Decision::Rejected(_) => ObligationState::Rejected,
    }))
}

/// The acceptance that an accepted obligation rests on (`internal` when there is none).
pub(super) fn acceptance(work: &FactWork, decision: Option<Decision>) -> Result<Box<AcceptedFact>, EpError> {
    let decision =
        decision.ok_or_else(|| EpError::internal("drain: an accepted obligation has no decision"))?;
    matches(work, &decision)?;
    match decision {
        Decision::Accepted(fact) => Ok(fact),
        Decision::Rejected(_) => {
            Err(EpError::internal("drain: an accepted obligation's submission was rejected"))
        }
    }
}

/// The step of an accepted obligation with its own commit, from what stands at the commit's key.
///
/// A record that is not JSON is `internal`.
pub fn self_step(commit: &Commit, record: Option<(&[u8], Revision)>) -> Result<SelfStep, EpError> {
    let Some((value, revision)) = record else {
        return Ok(if commit.base_revision == 0 { SelfStep::Apply } else { SelfStep::Superseded });
    };
    if digest_of(value)? == commit.digest {
        return Ok(SelfStep::Landed);
    }
    Ok(if revision == Revision(commit.base_revision) { SelfStep::Apply } else { SelfStep::Superseded })
}

/// Bytes that may be applied: JSON whose digest is the one that was accepted (`internal` otherwise).
pub(super) fn verified<'a>(commit: &Commit, bytes: &'a [u8]) -> Result<&'a [u8], EpError> {
    if digest_of(bytes)? == commit.digest {
        Ok(bytes)
    } else {
        Err(EpError::internal("drain: an obligation's commit value is not what its commitDigest says"))
    }
}

fn digest_of(bytes: &[u8]) -> Result<cotal_wire::DigestRef, EpError> {
    serde_json::from_slice(bytes)
        .ok()
        .and_then(|value| contract_digest(&value).ok())
        .ok_or_else(|| EpError::internal("drain: a committed record is not valid JSON"))
}

/// The step of accepted effects. A completion of another submission is `internal`.
pub fn effects_step(work: &FactWork, completion: Option<&Completion>) -> Result<EffectsStep, EpError> {
    let same = match completion {
        None => return Ok(EffectsStep::Cancel),
        Some(Completion::Goal(result)) => result.fingerprint == work.fingerprint,
        Some(Completion::Effect(fact)) => {
            fact.fingerprint.as_str() == work.fingerprint && fact.source_seq == work.source_seq
        }
    };
    if same {
        Ok(EffectsStep::Done)
    } else {
        Err(EpError::internal("drain: the completion is of another submission than its obligation"))
    }
}

/// The step of accepted pool work.
pub fn pool_step(settled: bool, live: bool) -> PoolStep {
    if settled || live { PoolStep::Done } else { PoolStep::Reenqueue }
}

/// The step of an item that was delivered (contract 07 §6.4).
///
/// `internal` for an item without a decision, of a rejected submission, or without a horizon.
pub fn item_step(
    terminal: Option<&WorkTerminal>,
    decision: Option<&Decision>,
    retiring: &Retiring,
    now: UnixMillis,
) -> Result<ItemStep, EpError> {
    if terminal.is_some() {
        return Ok(ItemStep::Ack);
    }
    let fact = match decision {
        Some(Decision::Accepted(fact)) => fact,
        Some(Decision::Rejected(_)) => {
            return Err(EpError::internal("clean: the item's submission was rejected"));
        }
        None => return Err(EpError::internal("clean: the item has no decision")),
    };
    let expiry = fact
        .work_expiry
        .ok_or_else(|| EpError::internal("clean: the item's acceptance has no workExpiry"))?;
    Ok(if now >= expiry {
        ItemStep::Expire
    } else if fact.target.as_ref().is_some_and(|target| target.lifecycle_uid == retiring.uid) {
        ItemStep::Retire
    } else {
        ItemStep::Leave
    })
}

/// Whether the executor may settle this item so, and at which horizon (contract 07 §6.4 "Settlement seam").
///
/// `permission-denied` for a foreign pool, `internal` without a decision, then `permission-denied` for work that was
/// not accepted for this pool with a horizon, for an expiry before it, and for a target that is not exactly the one
/// that retires.
pub fn authorize_settlement(
    pools: &Pools,
    item: &ItemRef,
    decision: Option<&Decision>,
    request: SettleRequest,
    retiring: &TargetTriple,
    now: UnixMillis,
) -> Result<UnixMillis, EpError> {
    let refuse = |why: &str| Err(EpError::permission_denied(format!("settle: {why}")));
    if item.endpoint != *pools.endpoint() || !pools.contains(&item.pool) {
        return refuse("the item is of a pool that the retirement does not clean");
    }
    let fact = match decision {
        Some(Decision::Accepted(fact)) => fact,
        Some(Decision::Rejected(_)) => return refuse("the item's submission was rejected"),
        None => return Err(EpError::internal("settle: the item has no decision")),
    };
    let Some((_, expiry)) = fact.pool().filter(|(pool, _)| *pool == item.pool) else {
        return refuse("the item's submission was not accepted for this pool");
    };
    match request {
        SettleRequest::Expired if now < expiry => refuse("the item's horizon has not passed"),
        SettleRequest::Retired if fact.target.as_ref() != Some(retiring) => {
            refuse("the item is for another lifecycle than the one that retires")
        }
        SettleRequest::Expired | SettleRequest::Retired => Ok(expiry),
    }
}

/// Whether an identity is the one that its subject was built from.
pub(super) fn same_identity(subject: &str, rebuilt: &str, acceptance: &Acceptance) -> Result<(), EpError> {
    if subject == rebuilt {
        Ok(())
    } else {
        Err(EpError::internal(format!(
            "clean: {acceptance} is not the identity of {}",
            subject.escape_default()
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cotal_wire::{
        Command, EndpointToken, EpCode, OpId, Principal,
        canonical::{VOID_CLOSURE_DIGEST, raw_digest},
        rows::{CommitValue, Disposition, EffectOutcome, GoalOutcome},
    };
    use serde_json::json;

    use super::*;

    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
    const TARGET: &str = "tttttttttttttttttttttttttt";
    const FP: &str = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

    fn retiring(uid: &str) -> Retiring {
        Retiring {
            op: OpId::parse(&"f".repeat(26)).unwrap(),
            principal: Principal::parse_key("local.bob").unwrap(),
            uid: cotal_wire::LifecycleUid::parse(uid).unwrap(),
        }
    }

    fn acceptance_id() -> Acceptance {
        Acceptance::of_tokens(["local", "alice", UID, "r1"]).unwrap()
    }

    fn work(route: &str) -> FactWork {
        FactWork { fingerprint: FP.to_owned(), source_seq: 7, route: route.parse().unwrap() }
    }

    fn decided(route: Option<&str>) -> Decision {
        let caller = json!({ "id": "local.alice", "lifecycleUid": UID });
        let target = json!({ "owner": "local", "actor": "bob", "lifecycleUid": TARGET });
        let mut fact = json!({
            "v": 1, "id": "r1", "decision": "rejected", "fingerprint": FP, "caller": caller, "sourceSeq": 7, "ts": 9,
        });
        match route {
            None => fact["error"] = json!({ "code": "conflict" }),
            Some(route) => {
                fact["decision"] = json!("accepted");
                fact["request"] = json!({
                    "v": 1, "id": "r1", "class": "journal", "replyExpected": false, "deadlineMs": 1000,
                    "op": {
                        "endpoint": "com.x", "command": "build",
                        "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
                    },
                    "target": target.clone(),
                    "from": { "id": "local.alice", "name": "Alice" },
                });
                fact["target"] = target;
                fact["contractDigests"] =
                    json!({ "input": VOID_CLOSURE_DIGEST, "output": VOID_CLOSURE_DIGEST });
                fact["authzDecision"] = json!({ "revision": 1, "epoch": 2 });
                fact["route"] = json!(route);
                if route.starts_with("pool.") {
                    fact["workExpiry"] = json!(1000);
                }
            }
        }
        let endpoint = EndpointToken::parse("com_x").unwrap();
        Decision::parse(&endpoint, &acceptance_id(), fact.to_string().as_bytes()).unwrap()
    }

    fn code<T: std::fmt::Debug>(result: Result<T, EpError>) -> EpCode {
        result.unwrap_err().code
    }

    #[test]
    fn a_provisional_obligation_follows_its_decision_or_is_rejected() {
        let (accepted, rejected) = (decided(Some("effects")), decided(None));
        assert_eq!(fact_step(&work("effects"), None), Ok(FactStep::Reject));
        assert_eq!(
            fact_step(&work("effects"), Some(&accepted)),
            Ok(FactStep::Follow(ObligationState::Accepted))
        );
        assert_eq!(
            fact_step(&work("pool.x"), Some(&rejected)),
            Ok(FactStep::Follow(ObligationState::Rejected)),
            "a rejection goes nowhere"
        );
        for (other, decision) in [
            (FactWork { fingerprint: VOID_CLOSURE_DIGEST.into(), ..work("effects") }, &accepted),
            (FactWork { source_seq: 8, ..work("effects") }, &accepted),
            (work("pool.x"), &accepted),
            (FactWork { source_seq: 8, ..work("effects") }, &rejected),
        ] {
            assert_eq!(code(fact_step(&other, Some(decision))), EpCode::Internal);
        }
    }

    #[test]
    fn an_accepted_obligation_rests_on_its_acceptance() {
        assert!(acceptance(&work("effects"), Some(decided(Some("effects")))).is_ok());
        for decision in [None, Some(decided(None)), Some(decided(Some("pool.x")))] {
            assert_eq!(code(acceptance(&work("effects"), decision)), EpCode::Internal);
        }
    }

    #[test]
    fn a_commit_has_landed_or_is_applied_at_its_base_or_is_superseded() {
        let commit = |base_revision| Commit {
            key: "cp.com_x.t.spec".to_owned(),
            base_revision,
            value: CommitValue::Inline(b"{\"a\":1}".to_vec()),
            digest: raw_digest(b"{\"a\":1}"),
        };
        let stands = |text: &'static str, revision| Some((text.as_bytes(), Revision(revision)));
        for (base, record, want) in [
            (0, None, SelfStep::Apply),
            (4, None, SelfStep::Superseded),
            (4, stands("{ \"a\": 1 }", 9), SelfStep::Landed),
            (4, stands("{\"a\":1}", 4), SelfStep::Landed),
            (4, stands("{\"a\":2}", 4), SelfStep::Apply),
            (4, stands("{\"a\":2}", 5), SelfStep::Superseded),
            (0, stands("{\"a\":2}", 5), SelfStep::Superseded),
        ] {
            assert_eq!(self_step(&commit(base), record), Ok(want), "{base} {record:?}");
        }
        assert_eq!(code(self_step(&commit(4), stands("{", 4))), EpCode::Internal);
        assert!(verified(&commit(0), b"{\"a\":1}").is_ok());
        assert_eq!(code(verified(&commit(0), b"{\"a\":2}")), EpCode::Internal);
    }

    #[test]
    fn accepted_effects_are_done_when_their_own_completion_stands() {
        let effect = |fingerprint: &str, source_seq| {
            Completion::Effect(EffectFact {
                fingerprint: fingerprint.parse().unwrap(),
                source_seq,
                outcome: EffectOutcome::Ran,
            })
        };
        let goal = |fingerprint: &str| {
            Completion::Goal(GoalResult { fingerprint: fingerprint.into(), outcome: GoalOutcome::Failed })
        };
        let step = |completion: Option<&Completion>| effects_step(&work("effects"), completion);
        assert_eq!(step(None), Ok(EffectsStep::Cancel));
        assert_eq!(step(Some(&effect(FP, 7))), Ok(EffectsStep::Done));
        assert_eq!(step(Some(&goal(FP))), Ok(EffectsStep::Done));
        for foreign in [effect(FP, 8), effect(VOID_CLOSURE_DIGEST, 7), goal("x")] {
            assert_eq!(code(step(Some(&foreign))), EpCode::Internal);
        }
        assert_eq!(pool_step(false, false), PoolStep::Reenqueue);
        assert!(
            [(true, false), (false, true), (true, true)]
                .iter()
                .all(|(s, l)| pool_step(*s, *l) == PoolStep::Done)
        );
    }

    #[test]
    fn an_item_is_acknowledged_expired_retired_or_left_in_that_order() {
        let (ours, other) = (retiring(TARGET), retiring(UID));
        let (accepted, rejected, effects) =
            (decided(Some("pool.x")), decided(None), decided(Some("effects")));
        let terminal = WorkTerminal {
            pool: Command::parse("x").unwrap(),
            acceptance: acceptance_id(),
            disposition: Disposition::Expired { work_expiry: UnixMillis(5) },
            ts: UnixMillis(9),
        };
        let step = |terminal, decision, retiring: &Retiring, now| {
            item_step(terminal, decision, retiring, UnixMillis(now))
        };
        assert_eq!(step(Some(&terminal), None, &ours, 0), Ok(ItemStep::Ack));
        for bad in [None, Some(&rejected), Some(&effects)] {
            assert_eq!(code(step(None, bad, &ours, 5000)), EpCode::Internal);
        }
        assert_eq!(step(None, Some(&accepted), &ours, 1000), Ok(ItemStep::Expire), "its own, and dead");
        assert_eq!(step(None, Some(&accepted), &other, 1000), Ok(ItemStep::Expire));
        assert_eq!(step(None, Some(&accepted), &ours, 999), Ok(ItemStep::Retire));
        assert_eq!(step(None, Some(&accepted), &other, 999), Ok(ItemStep::Leave));
    }

    #[test]
    fn the_executor_refuses_in_the_contracts_order() {
        use SettleRequest::{Expired, Retired};

        let endpoint = EndpointToken::parse("com_x").unwrap();
        let x = Command::parse("x").unwrap();
        let pools =
            Pools::new(&endpoint, &BTreeSet::from([x.clone(), Command::parse("y").unwrap()])).unwrap();
        let item = ItemRef { endpoint, pool: x, acceptance: acceptance_id() };
        let target = retiring(TARGET).target();
        let accepted = decided(Some("pool.x"));
        let ask = |item: &ItemRef, decision, request, target: &TargetTriple, now| {
            authorize_settlement(&pools, item, decision, request, target, UnixMillis(now))
        };
        assert_eq!(ask(&item, Some(&accepted), Expired, &target, 1000), Ok(UnixMillis(1000)));
        assert_eq!(ask(&item, Some(&accepted), Retired, &target, 1), Ok(UnixMillis(1000)));

        let elsewhere = ItemRef { endpoint: EndpointToken::parse("com_y").unwrap(), ..item.clone() };
        let other_pool = ItemRef { pool: Command::parse("z").unwrap(), ..item.clone() };
        let wrong_route = ItemRef { pool: Command::parse("y").unwrap(), ..item.clone() };
        let (rejected, effects) = (decided(None), decided(Some("effects")));
        let mut foreign_actor = target.clone();
        foreign_actor.principal = Principal::parse_key("local.carol").unwrap();
        for (item, decision, request, target, now, want) in [
            (&elsewhere, None, Expired, &target, 0, EpCode::PermissionDenied),
            (&other_pool, None, Expired, &target, 0, EpCode::PermissionDenied),
            (&item, None, Expired, &target, 0, EpCode::Internal),
            (&item, Some(&rejected), Expired, &target, 5000, EpCode::PermissionDenied),
            (&item, Some(&effects), Expired, &target, 5000, EpCode::PermissionDenied),
            (&wrong_route, Some(&accepted), Expired, &target, 5000, EpCode::PermissionDenied),
            (&item, Some(&accepted), Expired, &target, 999, EpCode::PermissionDenied),
            (&item, Some(&accepted), Retired, &foreign_actor, 0, EpCode::PermissionDenied),
            (&item, Some(&accepted), Retired, &retiring(UID).target(), 0, EpCode::PermissionDenied),
        ] {
            assert_eq!(code(ask(item, decision, request, target, now)), want, "{item:?} {request:?} {now}");
        }
    }
}
