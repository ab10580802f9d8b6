//! The detail that a refusal carries when another operation holds a lifecycle (contract 07 §17.1, 02 §4.3).

use serde_json::{Map, Value};

use super::{
    gate::{GateState, OpKind},
    head::HeadState,
};
use crate::{
    error::{EpError, detail},
    token::OpId,
};

/// The operation ends by itself: try again.
const REMEDY_RETRY: &str = "retry";
/// The operation's process is gone: an operator repairs the gate.
const REMEDY_RECONCILE_GATE: &str = "cotal reconcile-gate";

impl GateState {
    /// `refusal`, saying which operation holds this gate, where one does. It reports the gate alone, for that is what
    /// the refusing site read.
    #[must_use]
    pub fn blocks(&self, refusal: EpError) -> EpError {
        let remedy = match self {
            Self::Open => return refusal,
            // Nothing mends a retired gate.
            Self::Retired(_) => None,
            Self::Frozen(op) if op.kind() == OpKind::Registration => Some(REMEDY_RECONCILE_GATE),
            Self::Frozen(_) => Some(REMEDY_RETRY),
        };
        match self.op() {
            Some(op) => blocked(refusal, op.kind(), ("gateState", self.as_str()), op.op_id(), remedy),
            None => refusal,
        }
    }
}

impl HeadState {
    /// `refusal`, saying which retirement is under way, where one is. It reports the head alone.
    #[must_use]
    pub fn blocks(&self, refusal: EpError) -> EpError {
        match self {
            Self::Active | Self::Retired => refusal,
            Self::Retiring(op) => {
                blocked(refusal, OpKind::Retirement, ("headState", self.as_str()), op, Some(REMEDY_RETRY))
            }
        }
    }
}

fn blocked(
    refusal: EpError,
    by: OpKind,
    (seen, state): (&str, &str),
    op: &OpId,
    remedy: Option<&str>,
) -> EpError {
    let members = [
        ("kind", Some(detail::LIFECYCLE_BLOCKED)),
        ("blockedOp", Some(by.as_str())),
        (seen, Some(state)),
        ("opId", Some(op.as_str())),
        ("remedy", remedy),
    ];
    let members = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    refusal.with_detail(Value::Object(members.collect::<Map<_, _>>()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::gate::GateOp, *};

    fn op() -> OpId {
        OpId::parse(&"f".repeat(26)).unwrap()
    }

    fn details(of: impl FnOnce(EpError) -> EpError) -> Vec<Value> {
        of(EpError::conflict("x")).details
    }

    #[test]
    fn a_closed_gate_says_who_holds_it_and_what_mends_it() {
        for (kind, remedy) in [
            (OpKind::Activation, "retry"),
            (OpKind::Takeover, "retry"),
            (OpKind::Registration, "cotal reconcile-gate"),
            (OpKind::Retirement, "retry"),
        ] {
            let held = GateOp::new(op(), kind);
            let frozen = details(|refusal| GateState::Frozen(held.clone()).blocks(refusal));
            let expected = json!({
                "kind": "ai.cotal.ep.lifecycle-blocked", "blockedOp": kind.as_str(), "gateState": "frozen",
                "opId": op().as_str(), "remedy": remedy,
            });
            assert_eq!(frozen, [expected]);
            let retired = details(|refusal| GateState::Retired(held).blocks(refusal));
            let expected = json!({
                "kind": "ai.cotal.ep.lifecycle-blocked", "blockedOp": kind.as_str(), "gateState": "retired",
                "opId": op().as_str(),
            });
            assert_eq!(retired, [expected]);
        }
        assert!(details(|refusal| GateState::Open.blocks(refusal)).is_empty());
    }

    #[test]
    fn a_retiring_head_reports_no_gate() {
        let expected = json!({
            "kind": "ai.cotal.ep.lifecycle-blocked", "blockedOp": "retirement", "headState": "retiring",
            "opId": op().as_str(), "remedy": "retry",
        });
        assert_eq!(details(|refusal| HeadState::Retiring(op()).blocks(refusal)), [expected]);
        assert!(details(|refusal| HeadState::Active.blocks(refusal)).is_empty());
        assert!(details(|refusal| HeadState::Retired.blocks(refusal)).is_empty());
    }
}
