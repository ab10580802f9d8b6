//! How accepted effects end: effect facts `eff.<caller>.<id>` and goal results `goal.<caller>.<goalId>.result`
//! (contract 02 §5, 03 §A).

use serde::Serialize;
use serde_json::Value;

use super::{CallerWire, TargetWire, check_caller, check_version, decision::AcceptedFact, object, target_of};
use crate::{
    acceptance::Acceptance,
    canonical::contract_digest,
    endpoint_subject::TargetTriple,
    endpoint_token::{DigestRef, IdToken},
    error::EpError,
    plane_subject::FactTopic,
    rows::closed::{Closed, compact},
    time::UnixMillis,
    token::OpId,
};

/// The retirement that cancelled, and whom it retired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelledBy {
    /// The operation.
    pub op_id: OpId,
    /// The incarnation.
    pub target: TargetTriple,
}

/// How an effect ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectOutcome {
    /// It ran.
    Ran,
    /// It never will.
    Cancelled(CancelledBy),
}

/// The completion of an effect that drives no goal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectFact {
    /// The accepted fingerprint.
    pub fingerprint: DigestRef,
    /// The accepted sequence.
    pub source_seq: u64,
    /// How it ended.
    pub outcome: EffectOutcome,
}

/// How a goal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GoalOutcome {
    /// It was reached.
    Succeeded,
    /// It was not.
    Failed,
    /// Somebody called it off.
    Cancelled,
    /// Its time ran out.
    Expired,
    /// Nobody can tell.
    Uncertain,
}

/// The first terminal fact of a goal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoalResult {
    /// The accepted fingerprint.
    pub fingerprint: String,
    /// How it ended.
    pub outcome: GoalOutcome,
}

/// A completion to be written in place of one that will never come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancellation {
    /// Where.
    pub topic: FactTopic,
    /// What.
    pub bytes: Vec<u8>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CancelledByWire<'a> {
    op_id: &'a OpId,
    target: TargetWire<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EffectWire<'a> {
    v: u64,
    id: &'a IdToken,
    fingerprint: &'a DigestRef,
    caller: CallerWire<'a>,
    source_seq: u64,
    ts: UnixMillis,
    outcome: &'static str,
    cancelled: CancelledByWire<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GoalWire<'a> {
    v: u64,
    goal_id: &'a IdToken,
    fingerprint: &'a DigestRef,
    state: GoalOutcome,
    outcome_digest: DigestRef,
    data: Value,
    ts: UnixMillis,
}

impl CancelledBy {
    fn wire(&self) -> CancelledByWire<'_> {
        CancelledByWire { op_id: &self.op_id, target: TargetWire::of(&self.target) }
    }
}

impl EffectFact {
    /// Reads the completion of this submission.
    pub fn parse(acceptance: &Acceptance, bytes: &[u8]) -> Result<Self, EpError> {
        const MEMBERS: [&str; 8] =
            ["v", "id", "fingerprint", "caller", "sourceSeq", "ts", "outcome", "cancelled"];
        let fact = Closed::parse("effect fact", bytes, &MEMBERS)?;
        check_version(&fact)?;
        if fact.text("id")? != acceptance.id.as_str() {
            return Err(fact.garbled("it names another id than its subject"));
        }
        let fingerprint = fact.token("fingerprint")?;
        let source_seq = fact.positive("sourceSeq")?;
        fact.uint("ts")?;
        check_caller(&fact, &acceptance.caller)?;
        let outcome = match (fact.text("outcome")?, fact.has("cancelled")) {
            ("ran", false) => EffectOutcome::Ran,
            ("cancelled", true) => {
                let by = object(&fact, "effect cancellation", "cancelled", &["opId", "target"])?;
                let target =
                    object(&by, "effect cancellation target", "target", &["owner", "actor", "lifecycleUid"])?;
                EffectOutcome::Cancelled(CancelledBy {
                    op_id: by.token("opId")?,
                    target: target_of(&target)?,
                })
            }
            _ => return Err(fact.garbled("its outcome is neither ran nor cancelled with its own members")),
        };
        Ok(Self { fingerprint, source_seq, outcome })
    }
}

impl GoalOutcome {
    /// Every outcome.
    pub const ALL: [Self; 5] =
        [Self::Succeeded, Self::Failed, Self::Cancelled, Self::Expired, Self::Uncertain];

    /// The wire word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Uncertain => "uncertain",
        }
    }
}

impl GoalResult {
    /// Reads the result of this goal; its payload must be what its digest says.
    ///
    /// `committer` (`{instanceId, epoch}`) is written by newer commit paths, and looked at for its shape alone.
    pub fn parse(goal: &IdToken, bytes: &[u8]) -> Result<Self, EpError> {
        const MEMBERS: [&str; 8] =
            ["v", "goalId", "fingerprint", "state", "outcomeDigest", "data", "committer", "ts"];
        let fact = Closed::parse("goal result", bytes, &MEMBERS)?;
        check_version(&fact)?;
        if fact.text("goalId")? != goal.as_str() {
            return Err(fact.garbled("it names another goal than its subject"));
        }
        let fingerprint = fact.non_empty("fingerprint")?.to_owned();
        let state = fact.text("state")?;
        let outcome = GoalOutcome::ALL
            .into_iter()
            .find(|outcome| outcome.as_str() == state)
            .ok_or_else(|| fact.garbled("its state is not one that ends a goal"))?;
        let digest: DigestRef = fact.token("outcomeDigest")?;
        if contract_digest(fact.value("data").unwrap_or(&Value::Null)) != Ok(digest) {
            return Err(fact.garbled("its payload is not what its outcomeDigest says"));
        }
        if fact.has("committer") {
            let committer = object(&fact, "goal committer", "committer", &["instanceId", "epoch"])?;
            committer.non_empty("instanceId")?;
            committer.uint("epoch")?;
        }
        fact.uint("ts")?;
        Ok(Self { fingerprint, outcome })
    }
}

impl AcceptedFact {
    /// The completion that a retirement writes for its own target's accepted effect: a cancelled goal result for a
    /// request that drives a goal, else a cancelled effect fact (contract 07 §8 "Canceller").
    ///
    /// `permission-denied` when the acceptance binds no target, `failed-precondition` when it binds another one.
    pub fn cancellation(&self, by: &CancelledBy, ts: UnixMillis) -> Result<Cancellation, EpError> {
        match &self.target {
            None => {
                return Err(EpError::permission_denied("cancel: the acceptance binds no target lifecycle"));
            }
            Some(target) if *target != by.target => {
                return Err(EpError::failed_precondition(
                    "cancel: the acceptance binds another lifecycle than the one that retires",
                ));
            }
            Some(_) => {}
        }
        let Some(goal_id) = &self.goal_id else {
            let bytes = compact(&EffectWire {
                v: 1,
                id: &self.acceptance.id,
                fingerprint: &self.fingerprint,
                caller: CallerWire::of(&self.acceptance.caller),
                source_seq: self.source_seq,
                ts,
                outcome: "cancelled",
                cancelled: by.wire(),
            });
            return Ok(Cancellation { topic: FactTopic::Effect(self.acceptance.clone()), bytes });
        };
        let data = serde_json::json!({ "cancelledBy": by.wire() });
        let outcome_digest = contract_digest(&data)
            .map_err(|error| EpError::internal(format!("cancel: the payload has no digest: {error}")))?;
        let bytes = compact(&GoalWire {
            v: 1,
            goal_id,
            fingerprint: &self.fingerprint,
            state: GoalOutcome::Cancelled,
            outcome_digest,
            data,
            ts,
        });
        Ok(Cancellation { topic: FactTopic::GoalResult(self.acceptance.with_id(goal_id.clone())), bytes })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        canonical::VOID_CLOSURE_DIGEST, endpoint_token::EndpointToken, error::EpCode, rows::Decision,
    };

    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
    const TARGET: &str = "tttttttttttttttttttttttttt";
    const FP: &str = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

    fn acceptance() -> Acceptance {
        Acceptance::of_tokens(["local", "alice", UID, "r1"]).unwrap()
    }

    fn by(actor: &str) -> CancelledBy {
        CancelledBy {
            op_id: OpId::parse(&"f".repeat(26)).unwrap(),
            target: crate::endpoint_subject::TargetTriple {
                principal: crate::token::Principal::parse_key(&format!("local.{actor}")).unwrap(),
                lifecycle_uid: crate::token::LifecycleUid::parse(TARGET).unwrap(),
            },
        }
    }

    fn accepted(goal: bool, target: bool) -> AcceptedFact {
        let mut fact = json!({
            "v": 1, "id": "r1", "decision": "accepted", "fingerprint": FP,
            "request": {
                "v": 1, "id": "r1",
                "op": {
                    "endpoint": "com.x", "command": "build",
                    "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
                },
                "class": "journal", "replyExpected": false, "deadlineMs": 1000,
                "from": { "id": "local.alice", "name": "Alice" },
            },
            "caller": { "id": "local.alice", "lifecycleUid": UID },
            "contractDigests": { "input": VOID_CLOSURE_DIGEST, "output": VOID_CLOSURE_DIGEST },
            "authzDecision": { "revision": 1, "epoch": 2 },
            "route": "effects", "sourceSeq": 7, "ts": 9,
        });
        if goal {
            fact["request"]["goalId"] = json!("g1");
        }
        if target {
            let target = json!({ "owner": "local", "actor": "bob", "lifecycleUid": TARGET });
            fact["request"]["target"] = target.clone();
            fact["target"] = target;
        }
        let endpoint = EndpointToken::parse("com_x").unwrap();
        let decision = Decision::parse(&endpoint, &acceptance(), fact.to_string().as_bytes()).unwrap();
        let Decision::Accepted(fact) = decision else { panic!("rejected") };
        *fact
    }

    #[test]
    fn a_cancelled_effect_has_these_bytes_and_reads_back() {
        let cancelled = accepted(false, true).cancellation(&by("bob"), UnixMillis(11)).unwrap();
        assert_eq!(cancelled.topic, FactTopic::Effect(acceptance()));
        assert_eq!(
            std::str::from_utf8(&cancelled.bytes).unwrap(),
            format!(
                "{{\"v\":1,\"id\":\"r1\",\"fingerprint\":\"{FP}\",\"caller\":{{\"id\":\"local.alice\",\
                 \"lifecycleUid\":\"{UID}\"}},\"sourceSeq\":7,\"ts\":11,\"outcome\":\"cancelled\",\"cancelled\":\
                 {{\"opId\":\"ffffffffffffffffffffffffff\",\"target\":{{\"owner\":\"local\",\"actor\":\"bob\",\
                 \"lifecycleUid\":\"{TARGET}\"}}}}}}"
            )
        );
        let fact = EffectFact::parse(&acceptance(), &cancelled.bytes).unwrap();
        assert_eq!((fact.fingerprint.as_str(), fact.source_seq), (FP, 7));
        assert_eq!(fact.outcome, EffectOutcome::Cancelled(by("bob")));
    }

    #[test]
    fn a_cancelled_goal_reads_back_and_says_by_whom_in_its_digested_payload() {
        let cancelled = accepted(true, true).cancellation(&by("bob"), UnixMillis(11)).unwrap();
        let goal = IdToken::parse("g1").unwrap();
        assert_eq!(cancelled.topic, FactTopic::GoalResult(acceptance().with_id(goal.clone())));
        let result = GoalResult::parse(&goal, &cancelled.bytes).unwrap();
        assert_eq!(result, GoalResult { fingerprint: FP.to_owned(), outcome: GoalOutcome::Cancelled });
        let value: Value = serde_json::from_slice(&cancelled.bytes).unwrap();
        assert_eq!(
            value["data"],
            json!({ "cancelledBy": {
                "opId": "f".repeat(26),
                "target": { "owner": "local", "actor": "bob", "lifecycleUid": TARGET },
            } })
        );
    }

    #[test]
    fn a_retirement_cancels_only_what_its_own_target_was_accepted_for() {
        for goal in [true, false] {
            let refused = accepted(goal, false).cancellation(&by("bob"), UnixMillis(1)).unwrap_err();
            assert_eq!(refused.code, EpCode::PermissionDenied);
            let refused = accepted(goal, true).cancellation(&by("carol"), UnixMillis(1)).unwrap_err();
            assert_eq!(refused.code, EpCode::FailedPrecondition);
        }
    }

    #[test]
    fn an_effect_is_a_closed_union_with_its_discriminant() {
        let ran = format!(
            "{{\"v\":1,\"id\":\"r1\",\"fingerprint\":\"{FP}\",\"caller\":{{\"id\":\"local.alice\",\
             \"lifecycleUid\":\"{UID}\"}},\"sourceSeq\":7,\"ts\":11,\"outcome\":\"ran\"}}"
        );
        let parse = |text: &str| EffectFact::parse(&acceptance(), text.as_bytes());
        assert_eq!(parse(&ran).unwrap().outcome, EffectOutcome::Ran);
        let cancelled = accepted(false, true).cancellation(&by("bob"), UnixMillis(11)).unwrap().bytes;
        let cancelled = String::from_utf8(cancelled).unwrap();
        for bad in [
            ran.replace(",\"outcome\":\"ran\"", ""),
            ran.replace("\"ran\"", "\"cancelled\""),
            ran.replace("\"ran\"", "\"walked\""),
            ran.replace("\"v\":1", "\"v\":2"),
            ran.replace("\"r1\"", "\"r2\""),
            ran.replace("alice", "bob"),
            ran.replace(UID, TARGET),
            ran.replace("\"sourceSeq\":7", "\"sourceSeq\":0"),
            ran.replace("\"ts\":11", "\"ts\":-1"),
            ran.replace("sha256:", "md5:"),
            ran.replace("\"ts\"", "\"more\":1,\"ts\""),
            cancelled.replace("\"outcome\":\"cancelled\"", "\"outcome\":\"ran\""),
            cancelled.replace(&"f".repeat(26), "f"),
            cancelled.replace("\"actor\":\"bob\"", "\"actor\":\"\""),
            cancelled.replace("\"actor\":\"bob\"", "\"more\":1,\"actor\":\"bob\""),
            "[]".to_owned(),
            String::new(),
        ] {
            assert_eq!(parse(&bad).unwrap_err().code, EpCode::Internal, "{bad}");
        }
    }

    #[test]
    fn a_goal_result_is_what_its_digest_says() {
        let goal = IdToken::parse("g1").unwrap();
        let null = contract_digest(&Value::Null).unwrap();
        let bare = format!(
            "{{\"v\":1,\"goalId\":\"g1\",\"fingerprint\":\"x\",\"state\":\"succeeded\",\"outcomeDigest\":\"{null}\",\
             \"committer\":{{\"instanceId\":\"i\",\"epoch\":0}},\"ts\":1}}"
        );
        let parse = |text: &str| GoalResult::parse(&goal, text.as_bytes());
        assert_eq!(parse(&bare).unwrap().outcome, GoalOutcome::Succeeded);
        assert!(parse(&bare.replace("\"ts\"", "\"data\":null,\"ts\"")).is_ok());
        for bad in [
            bare.replace("\"ts\"", "\"data\":{},\"ts\""),
            bare.replace("\"g1\"", "\"g2\""),
            bare.replace("succeeded", "running"),
            bare.replace("\"x\"", "\"\""),
            bare.replace("\"epoch\":0", "\"epoch\":-1"),
            bare.replace("\"v\":1", "\"v\":\"1\""),
            bare.replace("\"ts\"", "\"more\":1,\"ts\""),
            bare.replace(null.as_str(), "x"),
        ] {
            assert_eq!(parse(&bad).unwrap_err().code, EpCode::Internal, "{bad}");
        }
    }
}
