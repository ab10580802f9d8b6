//! The agent issuance gate `gate.<uid>` in the auth bucket (contract 02 §3.3, 07 §2.3 and §2.4).

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::closed::{Closed, compact};
use crate::{
    error::{EpCode, EpError},
    token::{LifecycleUid, OpId},
};

const WHAT: &str = "issuance gate";

/// What kind of operation holds a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OpKind {
    /// A lifecycle is being activated.
    Activation,
    /// A successor process takes over.
    Takeover,
    /// A service instance registers.
    Registration,
    /// The lifecycle ends.
    Retirement,
}

impl OpKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Activation, Self::Takeover, Self::Registration, Self::Retirement];

    /// The wire word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Activation => "activation",
            Self::Takeover => "takeover",
            Self::Registration => "registration",
            Self::Retirement => "retirement",
        }
    }

    /// Whether a retired gate may name an operation of this kind.
    pub const fn may_retire(self) -> bool {
        matches!(self, Self::Activation | Self::Retirement)
    }

    /// Whether an operation of this kind may name a successor.
    pub const fn may_have_successor(self) -> bool {
        matches!(self, Self::Takeover | Self::Registration)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The operation that holds a gate. Its id is an identifier, never a capability.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GateOp {
    op_id: OpId,
    kind: OpKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    successor: Option<String>,
}

impl GateOp {
    /// An operation without a successor.
    pub fn new(op_id: OpId, kind: OpKind) -> Self {
        Self { op_id, kind, successor: None }
    }

    /// Names the successor; `failed-precondition` when the kind admits none, or when it is empty.
    pub fn with_successor(self, successor: &str) -> Result<Self, EpError> {
        if !self.kind.may_have_successor() {
            return Err(EpError::failed_precondition(format!(
                "a gate operation of kind {} has no successor",
                self.kind
            )));
        }
        if successor.is_empty() {
            return Err(EpError::failed_precondition("a gate operation's successor must not be empty"));
        }
        Ok(Self { successor: Some(successor.to_owned()), ..self })
    }

    /// The operation's id.
    pub fn op_id(&self) -> &OpId {
        &self.op_id
    }

    /// The operation's kind.
    pub fn kind(&self) -> OpKind {
        self.kind
    }

    /// The named successor.
    pub fn successor(&self) -> Option<&str> {
        self.successor.as_deref()
    }

    fn parse(value: &Value) -> Result<Self, EpError> {
        let op = Closed::of("issuance gate op", value.clone(), &["opId", "kind", "successor"])?;
        op.text("opId")?;
        let kind = op.text("kind")?;
        let successor = op.optional("successor", Closed::non_empty)?;
        let op_id = op.token("opId")?;
        let kind = OpKind::ALL
            .into_iter()
            .find(|k| k.as_str() == kind)
            .ok_or_else(|| op.garbled("its kind is not one that the contract knows"))?;
        if successor.is_some() && !kind.may_have_successor() {
            return Err(op.garbled("its kind admits no successor"));
        }
        Ok(Self { op_id, kind, successor: successor.map(str::to_owned) })
    }
}

/// Whether credentials may be minted behind a gate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GateState {
    /// Minting is allowed.
    Open,
    /// An operation holds the gate.
    Frozen(GateOp),
    /// Closed for ever, by this operation.
    Retired(GateOp),
}

impl GateState {
    /// Reads a gate's `state` and `op` together, by the grammar that both gate families share.
    pub(super) fn parse(row: &Closed, state: &str) -> Result<Self, EpError> {
        match (state, row.value("op")) {
            ("open", None) => Ok(Self::Open),
            ("frozen", Some(op)) => GateOp::parse(op).map(Self::Frozen),
            ("retired", Some(op)) => {
                let op = GateOp::parse(op)?;
                if !op.kind.may_retire() {
                    return Err(row.garbled("an operation of its kind cannot have retired it"));
                }
                Ok(Self::Retired(op))
            }
            ("open", Some(_)) => Err(row.garbled("an open gate carries no op")),
            ("frozen" | "retired", None) => Err(row.garbled("a closed gate carries its op")),
            _ => Err(row.garbled("its state is not open, frozen or retired")),
        }
    }

    /// The wire word.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Frozen(_) => "frozen",
            Self::Retired(_) => "retired",
        }
    }

    /// The operation that the gate names.
    pub const fn op(&self) -> Option<&GateOp> {
        match self {
            Self::Open => None,
            Self::Frozen(op) | Self::Retired(op) => Some(op),
        }
    }
}

/// The issuance gate of one incarnation. An impossible one cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentGate {
    lifecycle_uid: LifecycleUid,
    state: GateState,
    generation: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    lifecycle_uid: &'a LifecycleUid,
    state: &'static str,
    generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'a GateOp>,
}

impl AgentGate {
    /// A gate at birth: frozen by its activation, generation 0.
    pub fn born(lifecycle_uid: &LifecycleUid, activation: &OpId) -> Self {
        Self {
            lifecycle_uid: lifecycle_uid.clone(),
            state: GateState::Frozen(GateOp::new(activation.clone(), OpKind::Activation)),
            generation: 0,
        }
    }

    /// Reads the gate stored under this uid's key.
    pub fn parse(lifecycle_uid: &LifecycleUid, bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse(WHAT, bytes, &["lifecycleUid", "state", "generation", "op"])?;
        row.text("lifecycleUid")?;
        let state = row.text("state")?;
        let generation = row.uint("generation")?;
        let stored_uid: LifecycleUid = row.token("lifecycleUid")?;
        let state = GateState::parse(&row, state)?;
        if stored_uid != *lifecycle_uid {
            return Err(row.garbled("it names another lifecycle uid than its key"));
        }
        Ok(Self { lifecycle_uid: stored_uid, state, generation })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire {
            lifecycle_uid: &self.lifecycle_uid,
            state: self.state.as_str(),
            generation: self.generation,
            op: self.state.op(),
        })
    }

    /// The gate that was read, or `not-found` when there is none (contract 07 §2.4).
    pub fn require(gate: Option<Self>) -> Result<Self, EpError> {
        gate.ok_or_else(|| EpError::new(EpCode::NotFound, "there is no issuance gate for this lifecycle"))
    }

    /// The incarnation.
    pub fn lifecycle_uid(&self) -> &LifecycleUid {
        &self.lifecycle_uid
    }

    /// Whether minting is allowed, and who holds the gate if not.
    pub fn state(&self) -> &GateState {
        &self.state
    }

    /// Reopenings so far; the first mintable generation is 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether credentials may be minted.
    pub fn is_open(&self) -> bool {
        self.state == GateState::Open
    }

    /// Open to frozen, at the same generation. An activation freezes a gate only at birth.
    pub fn freeze(self, op: GateOp) -> Result<Self, EpError> {
        if op.kind == OpKind::Activation {
            return Err(EpError::failed_precondition("an activation freezes a gate only by creating it"));
        }
        match &self.state {
            GateState::Open => Ok(Self { state: GateState::Frozen(op), ..self }),
            GateState::Frozen(_) | GateState::Retired(_) => {
                Err(self.blocked(EpCode::FailedPrecondition, "the issuance gate is not open"))
            }
        }
    }

    /// Frozen to open, at the next generation, by the operation that froze it. A retirement never reopens.
    pub fn reopen(self, op: &OpId) -> Result<Self, EpError> {
        let GateState::Frozen(holder) = &self.state else {
            return Err(EpError::failed_precondition("the issuance gate is not frozen"));
        };
        if holder.op_id != *op {
            return Err(self.blocked(EpCode::PermissionDenied, "another operation holds the issuance gate"));
        }
        if holder.kind == OpKind::Retirement {
            return Err(
                self.blocked(EpCode::FailedPrecondition, "a retirement never reopens the issuance gate")
            );
        }
        Ok(Self { state: GateState::Open, generation: self.generation.saturating_add(1), ..self })
    }

    /// Frozen to retired, by the operation that froze it; idempotent under the same operation.
    pub fn retire(self, op: &OpId) -> Result<Self, EpError> {
        match self.state {
            GateState::Retired(ref holder) if holder.op_id == *op => Ok(self),
            GateState::Retired(_) => {
                Err(self.blocked(EpCode::PermissionDenied, "another operation retired the issuance gate"))
            }
            GateState::Open => Err(EpError::failed_precondition("the issuance gate is not frozen")),
            GateState::Frozen(ref holder) if holder.op_id != *op => {
                Err(self.blocked(EpCode::PermissionDenied, "another operation holds the issuance gate"))
            }
            GateState::Frozen(ref holder) if !holder.kind.may_retire() => Err(self.blocked(
                EpCode::FailedPrecondition,
                "only an activation or a retirement retires the issuance gate",
            )),
            GateState::Frozen(holder) => Ok(Self { state: GateState::Retired(holder), ..self }),
        }
    }

    /// A refusal that says which operation stands in the way (contract 07 §17.1).
    fn blocked(&self, code: EpCode, message: &str) -> EpError {
        self.state.blocks(EpError::new(code, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid() -> LifecycleUid {
        LifecycleUid::parse(&"a".repeat(26)).unwrap()
    }

    fn op(c: char) -> OpId {
        OpId::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn open() -> AgentGate {
        AgentGate::born(&uid(), &op('a')).reopen(&op('a')).unwrap()
    }

    fn frozen(kind: OpKind) -> AgentGate {
        match kind {
            OpKind::Activation => AgentGate::born(&uid(), &op('f')),
            kind => open().freeze(GateOp::new(op('f'), kind)).unwrap(),
        }
    }

    fn code(result: Result<AgentGate, EpError>) -> EpCode {
        result.unwrap_err().code
    }

    #[test]
    fn a_gate_is_born_frozen_and_first_mintable_at_generation_one() {
        let gate = AgentGate::born(&uid(), &op('a'));
        assert_eq!(
            String::from_utf8(gate.to_bytes()).unwrap(),
            format!(
                "{{\"lifecycleUid\":\"{}\",\"state\":\"frozen\",\"generation\":0,\"op\":{{\"opId\":\"{}\",\
                 \"kind\":\"activation\"}}}}",
                uid(),
                op('a')
            )
        );
        let open = gate.reopen(&op('a')).unwrap();
        assert_eq!(
            String::from_utf8(open.to_bytes()).unwrap(),
            format!("{{\"lifecycleUid\":\"{}\",\"state\":\"open\",\"generation\":1}}", uid())
        );
    }

    #[test]
    fn only_an_open_gate_freezes_and_never_for_an_activation() {
        for kind in [OpKind::Takeover, OpKind::Registration, OpKind::Retirement] {
            let gate = open().freeze(GateOp::new(op('f'), kind)).unwrap();
            assert_eq!(gate.generation(), 1);
            let error = gate.clone().freeze(GateOp::new(op('g'), kind)).unwrap_err();
            assert_eq!(error.code, EpCode::FailedPrecondition);
            assert_eq!(error.details[0]["blockedOp"], kind.as_str());
            assert_eq!(error.details[0]["gateState"], "frozen");
            assert!(error.details[0]["remedy"].is_string(), "{error:?}");
        }
        assert_eq!(code(open().freeze(GateOp::new(op('f'), OpKind::Activation))), EpCode::FailedPrecondition);
    }

    #[test]
    fn a_successor_needs_a_kind_that_has_one() {
        for (kind, successor, ok) in [
            (OpKind::Takeover, "next", true),
            (OpKind::Registration, "next", true),
            (OpKind::Takeover, "", false),
            (OpKind::Retirement, "next", false),
            (OpKind::Activation, "next", false),
        ] {
            assert_eq!(
                GateOp::new(op('f'), kind).with_successor(successor).is_ok(),
                ok,
                "{kind} {successor:?}"
            );
        }
    }

    #[test]
    fn every_kind_but_a_retirement_reopens_under_its_own_operation() {
        for kind in OpKind::ALL {
            let gate = frozen(kind);
            // A foreign operation is seen before the kind.
            assert_eq!(code(gate.clone().reopen(&op('x'))), EpCode::PermissionDenied);
            if kind == OpKind::Retirement {
                assert_eq!(code(gate.reopen(&op('f'))), EpCode::FailedPrecondition);
            } else {
                let generation = gate.generation();
                let reopened = gate.reopen(&op('f')).unwrap();
                assert!(reopened.is_open() && reopened.generation() == generation + 1);
            }
        }
        assert_eq!(code(open().reopen(&op('a'))), EpCode::FailedPrecondition);
    }

    #[test]
    fn only_an_activation_or_a_retirement_retires() {
        for kind in OpKind::ALL {
            let gate = frozen(kind);
            assert_eq!(code(gate.clone().retire(&op('x'))), EpCode::PermissionDenied);
            if kind.may_retire() {
                let retired = gate.retire(&op('f')).unwrap();
                assert_eq!(retired.state().op().unwrap().kind(), kind, "the operation is kept");
                assert_eq!(retired.clone().retire(&op('f')).unwrap(), retired);
                assert_eq!(code(retired.clone().retire(&op('x'))), EpCode::PermissionDenied);
                assert_eq!(code(retired.clone().reopen(&op('f'))), EpCode::FailedPrecondition);
                assert_eq!(
                    code(retired.freeze(GateOp::new(op('f'), OpKind::Takeover))),
                    EpCode::FailedPrecondition
                );
            } else {
                assert_eq!(code(gate.retire(&op('f'))), EpCode::FailedPrecondition);
            }
        }
        assert_eq!(code(open().retire(&op('f'))), EpCode::FailedPrecondition);
    }

    #[test]
    fn every_reachable_gate_reads_back() {
        let takeover = GateOp::new(op('f'), OpKind::Takeover).with_successor("next").unwrap();
        let gates = OpKind::ALL.map(frozen).into_iter().chain([
            open(),
            open().freeze(takeover).unwrap(),
            frozen(OpKind::Retirement).retire(&op('f')).unwrap(),
        ]);
        for gate in gates {
            assert_eq!(AgentGate::parse(&uid(), &gate.to_bytes()).unwrap(), gate);
        }
    }

    #[test]
    fn an_impossible_gate_is_internal() {
        let row = |state: &str, rest: &str| {
            format!("{{\"lifecycleUid\":\"{}\",\"state\":\"{state}\",\"generation\":1{rest}}}", uid())
        };
        let op = |kind: &str| format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"{kind}\"}}", op('f'));
        let successor = |kind: &str, s: &str| op(kind).replace("\"}", &format!("\",\"successor\":{s}}}"));
        for bytes in [
            row("open", &op("takeover")),
            row("frozen", ""),
            row("retired", ""),
            row("retired", &op("takeover")),
            row("retired", &op("registration")),
            row("frozen", &op("other")),
            row("frozen", &successor("retirement", "\"n\"")),
            row("frozen", &successor("activation", "\"n\"")),
            row("frozen", &successor("takeover", "\"\"")),
            row("frozen", &successor("takeover", "null")),
            row("frozen", ",\"op\":null"),
            row("ajar", ""),
            row("open", ",\"more\":1"),
            row("open", "").replace("\"generation\":1", "\"generation\":-1"),
            row("open", "").replace("\"generation\":1", "\"generation\":9007199254740992"),
            row("open", "").replace(uid().as_str(), &"b".repeat(26)),
            row("open", "").replace(uid().as_str(), "b"),
            "null".to_owned(),
            "{".to_owned(),
        ] {
            assert_eq!(code(AgentGate::parse(&uid(), bytes.as_bytes())), EpCode::Internal, "{bytes}");
        }
    }
}
