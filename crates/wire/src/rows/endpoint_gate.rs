//! The endpoint issuance gate `epgate.<e>.<instance>` in the auth bucket (contract 02 §3.6, 07 §11.3 and §11.8).
//!
//! One row fences everything that is minted for one instance of an endpoint. Its four numbers are the coordinate of the
//! instance's present registration: a serve credential carries the coordinate that it was authorized at, and a gate that
//! has moved on refuses it.

use serde::Serialize;

use super::{
    closed::{Closed, compact},
    gate::{GateOp, GateState, OpKind},
};
use crate::{
    error::{EpCode, EpError},
    time::{MAX_SAFE_INTEGER, Revision},
    token::{OpId, Principal},
};

const WHAT: &str = "endpoint issuance gate";

/// Where an instance's registration stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GateCoordinate {
    /// Reopenings so far.
    pub generation: u64,
    /// The process epoch: 0 at the first registration, one more at each later one. Consumers compare it for equality.
    pub process_epoch: u64,
    /// The store revision of the registered spec; 0 before the first registration.
    pub registration_revision: u64,
    /// The revision of the name authority that the registration was made under.
    pub name_authority_revision: u64,
}

/// The issuance gate of one endpoint instance. An impossible one cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EndpointGate {
    state: GateState,
    coordinate: GateCoordinate,
    principal: Principal,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    state: &'static str,
    generation: u64,
    process_epoch: u64,
    registration_revision: u64,
    name_authority_revision: u64,
    principal: &'a Principal,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'a GateOp>,
}

impl GateCoordinate {
    /// The same registration, reopened once more: what an aborted registration leaves.
    #[must_use]
    pub fn reopened(self) -> Self {
        Self { generation: self.generation.saturating_add(1), ..self }
    }

    /// Where a registration that wrote its spec at `spec` reopens. The first one keeps epoch 0; a deregistered
    /// instance is not first again (contract 07 §11.4 phase 4).
    #[must_use]
    pub fn registered(self, spec: Revision, first: bool) -> Self {
        Self {
            generation: self.generation.saturating_add(1),
            process_epoch: if first { self.process_epoch } else { self.process_epoch.saturating_add(1) },
            registration_revision: spec.0,
            name_authority_revision: self.name_authority_revision,
        }
    }
}

impl EndpointGate {
    /// A gate as it is provisioned: open, every number 0.
    pub fn provisioned(principal: &Principal) -> Self {
        Self { state: GateState::Open, coordinate: GateCoordinate::default(), principal: principal.clone() }
    }

    /// Reads a stored gate. The row carries nothing of its key.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse(
            WHAT,
            bytes,
            &[
                "state",
                "generation",
                "processEpoch",
                "registrationRevision",
                "nameAuthorityRevision",
                "principal",
                "op",
            ],
        )?;
        let state = row.text("state")?;
        let coordinate = GateCoordinate {
            generation: row.uint("generation")?,
            process_epoch: row.uint("processEpoch")?,
            registration_revision: row.uint("registrationRevision")?,
            name_authority_revision: row.uint("nameAuthorityRevision")?,
        };
        let principal = Principal::parse_key(row.text("principal")?)
            .map_err(|_| row.garbled("its principal is not a principal"))?;
        Ok(Self { state: GateState::parse(&row, state)?, coordinate, principal })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire {
            state: self.state.as_str(),
            generation: self.coordinate.generation,
            process_epoch: self.coordinate.process_epoch,
            registration_revision: self.coordinate.registration_revision,
            name_authority_revision: self.coordinate.name_authority_revision,
            principal: &self.principal,
            op: self.state.op(),
        })
    }

    /// Whether minting is allowed, and who holds the gate if not.
    pub fn state(&self) -> &GateState {
        &self.state
    }

    /// Where the registration stands.
    pub fn coordinate(&self) -> GateCoordinate {
        self.coordinate
    }

    /// The serving connection's principal: what an eviction targets.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whether credentials may be minted.
    pub fn is_open(&self) -> bool {
        self.state == GateState::Open
    }

    /// The registration that holds the gate frozen, if one does.
    pub fn registering(&self) -> Option<&OpId> {
        match &self.state {
            GateState::Frozen(op) if op.kind() == OpKind::Registration => Some(op.op_id()),
            GateState::Open | GateState::Frozen(_) | GateState::Retired(_) => None,
        }
    }

    /// Open to frozen by a registration, at the same coordinate.
    pub fn freeze(self, op: &OpId) -> Result<Self, EpError> {
        if self.is_open() {
            let state = GateState::Frozen(GateOp::new(op.clone(), OpKind::Registration));
            return Ok(Self { state, ..self });
        }
        Err(self.blocked(EpCode::FailedPrecondition, "the endpoint's issuance gate is not open"))
    }

    /// Frozen to open at a successor coordinate, by the operation that froze it. The generation always advances, and
    /// the epoch and the name authority never go back. The registration's revision may, in a store that was restored.
    pub fn reopen(self, op: &OpId, successor: GateCoordinate) -> Result<Self, EpError> {
        let GateState::Frozen(holder) = &self.state else {
            return Err(EpError::failed_precondition("the endpoint's issuance gate is not frozen"));
        };
        if holder.op_id() != op {
            return Err(self
                .blocked(EpCode::PermissionDenied, "another operation holds the endpoint's issuance gate"));
        }
        if holder.kind() == OpKind::Retirement {
            return Err(self.blocked(
                EpCode::FailedPrecondition,
                "a retirement never reopens the endpoint's issuance gate",
            ));
        }
        let (before, after) = (self.coordinate, successor);
        let numbers = [
            after.generation,
            after.process_epoch,
            after.registration_revision,
            after.name_authority_revision,
        ];
        let advances = Some(after.generation) == before.generation.checked_add(1)
            && after.process_epoch >= before.process_epoch
            && after.name_authority_revision >= before.name_authority_revision
            && numbers.iter().all(|number| *number <= MAX_SAFE_INTEGER);
        if !advances {
            return Err(EpError::internal(
                "the endpoint's issuance gate does not reopen at an earlier coordinate",
            ));
        }
        Ok(Self { state: GateState::Open, coordinate: successor, ..self })
    }

    /// A gate that is closed before anything was ever registered behind it: every number 0 (contract 05 §17).
    pub fn born_retired(principal: &Principal, retirement: &OpId) -> Self {
        Self { state: retired(retirement), ..Self::provisioned(principal) }
    }

    /// Open or frozen to retired, at the same coordinate. One that is retired keeps the operation that retired it.
    #[must_use]
    pub fn retire(self, retirement: &OpId) -> Self {
        if self.is_retired() { self } else { Self { state: retired(retirement), ..self } }
    }

    /// Whether it is closed for ever.
    pub fn is_retired(&self) -> bool {
        matches!(self.state, GateState::Retired(_))
    }

    /// `code` with the operation that stands in the way (contract 07 §17.1).
    pub fn blocked(&self, code: EpCode, message: &str) -> EpError {
        self.state.blocks(EpError::new(code, message))
    }
}

fn retired(by: &OpId) -> GateState {
    GateState::Retired(GateOp::new(by.clone(), OpKind::Retirement))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal() -> Principal {
        Principal::parse_key("local.UAAA").unwrap()
    }

    fn op(c: char) -> OpId {
        OpId::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn open() -> EndpointGate {
        EndpointGate::provisioned(&principal())
    }

    fn text(gate: &EndpointGate) -> String {
        String::from_utf8(gate.to_bytes()).unwrap()
    }

    fn code(result: Result<EndpointGate, EpError>) -> EpCode {
        result.unwrap_err().code
    }

    #[test]
    fn a_gate_is_provisioned_open_at_zero_with_these_bytes() {
        assert_eq!(
            text(&open()),
            "{\"state\":\"open\",\"generation\":0,\"processEpoch\":0,\"registrationRevision\":0,\
             \"nameAuthorityRevision\":0,\"principal\":\"local.UAAA\"}"
        );
        let frozen = open().freeze(&op('a')).unwrap();
        assert_eq!(
            text(&frozen),
            format!(
                "{{\"state\":\"frozen\",\"generation\":0,\"processEpoch\":0,\"registrationRevision\":0,\
                 \"nameAuthorityRevision\":0,\"principal\":\"local.UAAA\",\"op\":{{\"opId\":\"{}\",\
                 \"kind\":\"registration\"}}}}",
                op('a')
            )
        );
        let reopened =
            frozen.clone().reopen(&op('a'), frozen.coordinate().registered(Revision(7), true)).unwrap();
        assert_eq!(
            text(&reopened),
            "{\"state\":\"open\",\"generation\":1,\"processEpoch\":0,\"registrationRevision\":7,\
             \"nameAuthorityRevision\":0,\"principal\":\"local.UAAA\"}"
        );
        for gate in [open(), frozen, reopened] {
            assert_eq!(EndpointGate::parse(&gate.to_bytes()).unwrap(), gate);
        }
    }

    #[test]
    fn only_an_open_gate_freezes() {
        let frozen = open().freeze(&op('a')).unwrap();
        let refusal = frozen.clone().freeze(&op('b')).unwrap_err();
        assert_eq!(refusal.code, EpCode::FailedPrecondition);
        assert_eq!(refusal.details[0]["opId"], op('a').as_str());
        assert_eq!(refusal.details[0]["remedy"], "cotal reconcile-gate");
        assert_eq!(frozen.registering(), Some(&op('a')));
    }

    #[test]
    fn a_gate_reopens_under_its_own_operation_and_only_forward() {
        let frozen = open().freeze(&op('a')).unwrap();
        let next = frozen.coordinate().reopened();
        assert_eq!(code(open().reopen(&op('a'), next)), EpCode::FailedPrecondition);
        assert_eq!(code(frozen.clone().reopen(&op('b'), next)), EpCode::PermissionDenied);
        let registered = frozen
            .clone()
            .reopen(&op('a'), next)
            .unwrap()
            .freeze(&op('b'))
            .unwrap()
            .reopen(&op('b'), next.registered(Revision(9), false))
            .unwrap();
        let (at, again) = (registered.coordinate(), registered.freeze(&op('c')).unwrap());
        assert_eq!((at.generation, at.process_epoch, at.registration_revision), (2, 1, 9));
        for back in [
            GateCoordinate { generation: 2, ..at },
            GateCoordinate { generation: 4, ..at },
            GateCoordinate { generation: 3, process_epoch: 0, ..at },
            GateCoordinate { generation: 3, process_epoch: MAX_SAFE_INTEGER + 1, ..at },
        ] {
            assert_eq!(code(again.clone().reopen(&op('c'), back)), EpCode::Internal, "{back:?}");
        }
        assert!(again.reopen(&op('c'), GateCoordinate { generation: 3, ..at }).unwrap().is_open());
    }

    #[test]
    fn a_retired_gate_keeps_its_coordinate_and_who_retired_it() {
        let born = EndpointGate::born_retired(&principal(), &op('r'));
        assert_eq!(
            text(&born),
            format!(
                "{{\"state\":\"retired\",\"generation\":0,\"processEpoch\":0,\"registrationRevision\":0,\
                 \"nameAuthorityRevision\":0,\"principal\":\"local.UAAA\",\"op\":{{\"opId\":\"{}\",\
                 \"kind\":\"retirement\"}}}}",
                op('r')
            )
        );
        let frozen = open().freeze(&op('a')).unwrap();
        let next = frozen.coordinate().registered(Revision(7), true);
        let registered = frozen.clone().reopen(&op('a'), next).unwrap();
        for gate in [open(), frozen, registered] {
            let at = gate.coordinate();
            let retired = gate.retire(&op('r'));
            assert!(retired.is_retired() && !retired.is_open());
            assert_eq!(retired.coordinate(), at);
            assert_eq!(EndpointGate::parse(&retired.to_bytes()).unwrap(), retired);
            assert_eq!(code(retired.clone().freeze(&op('b'))), EpCode::FailedPrecondition);
            assert_eq!(retired.clone().retire(&op('b')), retired);
        }
    }

    #[test]
    fn other_kinds_of_operation_are_read_as_they_stand() {
        let stored = |state: &str, kind: &str| {
            let row = text(&open().freeze(&op('a')).unwrap());
            EndpointGate::parse(row.replace("frozen", state).replace("registration\"}", kind).as_bytes())
        };
        for kind in ["takeover\"}", "activation\"}", "retirement\"}", "registration\",\"successor\":\"s\"}"] {
            let gate = stored("frozen", kind).unwrap();
            assert_eq!(gate.registering().is_some(), kind.starts_with("registration"), "{kind}");
        }
        let retiring = stored("frozen", "retirement\"}").unwrap();
        assert_eq!(
            code(retiring.clone().reopen(&op('a'), retiring.coordinate().reopened())),
            EpCode::FailedPrecondition
        );
        assert!(stored("retired", "retirement\"}").is_ok());
    }

    #[test]
    fn a_garbled_gate_is_internal() {
        let good = text(&open());
        let op = format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"registration\"}}}}", op('a'));
        let with_op = |state: &str| {
            format!("{}{op}", good.replace("\"open\"", &format!("\"{state}\"")).trim_end_matches('}'))
        };
        let cases = [
            String::new(),
            "[]".to_owned(),
            "null".to_owned(),
            good.replace("open", "ajar"),
            good.replace("open", "frozen"),
            good.replace("open", "retired"),
            with_op("open"),
            with_op("retired"),
            with_op("frozen").replace("registration\"}", "birth\"}"),
            with_op("frozen").replace("registration\"}", "registration\",\"successor\":\"\"}"),
            with_op("frozen").replace("registration\"}", "retirement\",\"successor\":\"s\"}"),
            with_op("frozen").replace("registration\"}", "registration\",\"x\":1}"),
            good.replace("\"generation\":0", "\"generation\":-1"),
            good.replace("\"generation\":0", "\"generation\":1.5"),
            good.replace("\"processEpoch\":0", "\"processEpoch\":\"0\""),
            good.replace("\"registrationRevision\":0,", ""),
            good.replace("\"nameAuthorityRevision\":0", "\"nameAuthorityRevision\":9007199254740992"),
            good.replace("local.UAAA", "local"),
            good.replace("local.UAAA", "u_short.a"),
            good.replace("local.UAAA", "bob.a"),
            good.replace("{\"state\"", "{\"endpoint\":\"auth\",\"state\""),
        ];
        for bytes in cases {
            assert_eq!(code(EndpointGate::parse(bytes.as_bytes())), EpCode::Internal, "{bytes}");
        }
        assert!(EndpointGate::parse(with_op("frozen").as_bytes()).is_ok());
    }
}
