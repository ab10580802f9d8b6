//! The detail that a refusal carries when another operation holds a lifecycle (contract 07 §17.1, 02 §4.3).

use cotal_wire::{
    EpError, OpId,
    rows::{GateOp, LIFECYCLE_BLOCKED, OpKind},
};
use serde_json::json;

/// The operation ends by itself: try again.
const REMEDY_RETRY: &str = "retry";
/// The operation's process is gone: an operator repairs the gate.
const REMEDY_RECONCILE_GATE: &str = "cotal reconcile-gate";

/// A refusal by a head that is being retired. A refusal reports only what its site read: here the head.
pub(crate) fn by_retiring_head(refusal: EpError, op: &OpId) -> EpError {
    refusal.with_detail(json!({
        "kind": LIFECYCLE_BLOCKED,
        "blockedOp": OpKind::Retirement.as_str(),
        "headState": "retiring",
        "opId": op.as_str(),
        "remedy": REMEDY_RETRY,
    }))
}

/// A refusal by a gate that another operation has frozen.
pub(crate) fn by_frozen_gate(refusal: EpError, op: &GateOp) -> EpError {
    let remedy = if op.kind() == OpKind::Registration { REMEDY_RECONCILE_GATE } else { REMEDY_RETRY };
    refusal.with_detail(json!({
        "kind": LIFECYCLE_BLOCKED,
        "blockedOp": op.kind().as_str(),
        "gateState": "frozen",
        "opId": op.op_id().as_str(),
        "remedy": remedy,
    }))
}

/// A refusal by a retired gate. Nothing mends it, so it names no remedy.
pub(crate) fn by_retired_gate(refusal: EpError, op: &GateOp) -> EpError {
    refusal.with_detail(json!({
        "kind": LIFECYCLE_BLOCKED,
        "blockedOp": op.kind().as_str(),
        "gateState": "retired",
        "opId": op.op_id().as_str(),
    }))
}
