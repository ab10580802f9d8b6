//! The alias head `lifecycle.<owner>.<actor>` in the records bucket (contract 02 §3.1, 07 §2.1 and §2.5).

use serde::Serialize;

use super::closed::{Closed, compact};
use crate::{
    error::EpError,
    token::{CredentialId, LifecycleUid, OpId, Principal},
};

const WHAT: &str = "lifecycle head";
const MEMBERS: [&str; 9] = [
    "owner",
    "actor",
    "lifecycleUid",
    "managerInstance",
    "processEpoch",
    "state",
    "currentCredentialId",
    "lastTakeoverOpId",
    "op",
];

/// Where an incarnation stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HeadState {
    /// The current incarnation: the only state that yields a mapping or an epoch.
    Active,
    /// A retirement has begun, under this operation; not replaceable.
    Retiring(OpId),
    /// Over; replaceable by a fresh uid only.
    Retired,
}

impl HeadState {
    /// The wire word.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Retiring(_) => "retiring",
            Self::Retired => "retired",
        }
    }
}

/// One alias's head. Its mapping revision is the store's revision of the key, never a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LifecycleHead {
    principal: Principal,
    lifecycle_uid: LifecycleUid,
    manager_instance: String,
    process_epoch: u64,
    state: HeadState,
    current_credential_id: Option<String>,
    last_takeover_op_id: Option<OpId>,
}

/// What a head transition came to: one pinned write, or nothing left to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum HeadStep {
    /// Write this head, pinned to the revision that was read.
    Write(LifecycleHead),
    /// An earlier run of the same operation has already done it.
    Done(LifecycleHead),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    owner: &'a str,
    actor: &'a str,
    lifecycle_uid: &'a LifecycleUid,
    manager_instance: &'a str,
    process_epoch: u64,
    state: &'static str,
    // Optional members stand in the order in which they were first set. A takeover drops the credential in the write
    // that names it, so where both stand the takeover came first.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_takeover_op_id: Option<&'a OpId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_credential_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<WireOp<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireOp<'a> {
    op_id: &'a OpId,
    kind: &'static str,
}

const RETIREMENT: &str = "retirement";

impl LifecycleHead {
    /// The head of a fresh activation: epoch 1, active, no credential.
    pub fn activated(
        principal: &Principal,
        uid: &LifecycleUid,
        manager_instance: &str,
    ) -> Result<Self, EpError> {
        if manager_instance.is_empty() {
            return Err(EpError::failed_precondition("a lifecycle needs a non-empty manager instance"));
        }
        Ok(Self {
            principal: principal.clone(),
            lifecycle_uid: uid.clone(),
            manager_instance: manager_instance.to_owned(),
            process_epoch: 1,
            state: HeadState::Active,
            current_credential_id: None,
            last_takeover_op_id: None,
        })
    }

    /// Reads the head stored under this principal's key.
    pub fn parse(principal: &Principal, bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse(WHAT, bytes, &MEMBERS)?;
        let owner = row.text("owner")?;
        let actor = row.text("actor")?;
        row.text("lifecycleUid")?;
        let manager_instance = row.non_empty("managerInstance")?;
        let process_epoch = row.positive("processEpoch")?;
        let state = row.text("state")?;
        let current_credential_id = row.optional("currentCredentialId", Closed::non_empty)?;
        let lifecycle_uid = row.token("lifecycleUid")?;
        let last_takeover_op_id = row.optional("lastTakeoverOpId", Closed::token)?;
        let state = match (state, row.value("op")) {
            ("active", None) => HeadState::Active,
            ("retired", None) => HeadState::Retired,
            ("retiring", Some(op)) => {
                let op = Closed::of("lifecycle head op", op.clone(), &["opId", "kind"])?;
                let op_id = op.token("opId")?;
                if op.text("kind")? != RETIREMENT {
                    return Err(op.garbled("its kind is not retirement"));
                }
                HeadState::Retiring(op_id)
            }
            ("active" | "retired", Some(_)) => return Err(row.garbled("only a retiring head carries an op")),
            ("retiring", None) => return Err(row.garbled("a retiring head carries its op")),
            _ => return Err(row.garbled("its state is not active, retiring or retired")),
        };
        if owner != principal.owner.as_str() || actor != principal.actor.as_str() {
            return Err(row.garbled("it names another principal than its key"));
        }
        Ok(Self {
            principal: principal.clone(),
            lifecycle_uid,
            manager_instance: manager_instance.to_owned(),
            process_epoch,
            state,
            current_credential_id: current_credential_id.map(str::to_owned),
            last_takeover_op_id,
        })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        let op = match &self.state {
            HeadState::Retiring(op_id) => Some(WireOp { op_id, kind: RETIREMENT }),
            HeadState::Active | HeadState::Retired => None,
        };
        compact(&Wire {
            owner: self.principal.owner.as_str(),
            actor: self.principal.actor.as_str(),
            lifecycle_uid: &self.lifecycle_uid,
            manager_instance: &self.manager_instance,
            process_epoch: self.process_epoch,
            state: self.state.as_str(),
            last_takeover_op_id: self.last_takeover_op_id.as_ref(),
            current_credential_id: self.current_credential_id.as_deref(),
            op,
        })
    }

    /// The principal whose alias this is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The incarnation.
    pub fn lifecycle_uid(&self) -> &LifecycleUid {
        &self.lifecycle_uid
    }

    /// The minting or supervising authority.
    pub fn manager_instance(&self) -> &str {
        &self.manager_instance
    }

    /// The process epoch: 1 at activation, one more per takeover.
    pub fn process_epoch(&self) -> u64 {
        self.process_epoch
    }

    /// Where the incarnation stands.
    pub fn state(&self) -> &HeadState {
        &self.state
    }

    /// The incarnation's root credential id, once stamped.
    pub fn current_credential_id(&self) -> Option<&str> {
        self.current_credential_id.as_deref()
    }

    /// The takeover that last advanced the epoch.
    pub fn last_takeover_op_id(&self) -> Option<&OpId> {
        self.last_takeover_op_id.as_ref()
    }

    /// Whether this incarnation is the current one.
    pub fn is_active_at(&self, uid: &LifecycleUid) -> bool {
        self.state == HeadState::Active && self.lifecycle_uid == *uid
    }

    /// Whether both say the same but for their root credential: what a stamp does, and nothing else.
    pub fn differs_by_its_root_alone(&self, other: &Self) -> bool {
        let rootless = |head: &Self| Self { current_credential_id: None, ..head.clone() };
        rootless(self) == rootless(other)
    }

    /// The last containment step of a takeover: the next epoch, without the credential of the old one.
    pub fn advance_epoch(self, uid: &LifecycleUid, from_epoch: u64, op: &OpId) -> Result<HeadStep, EpError> {
        self.require_active_at(uid)?;
        let to_epoch = from_epoch.saturating_add(1);
        if self.process_epoch == to_epoch {
            if self.last_takeover_op_id.as_ref() != Some(op) {
                return Err(EpError::conflict("another takeover advanced this epoch"));
            }
            if self.current_credential_id.is_some() {
                return Err(EpError::failed_precondition(
                    "this takeover's epoch already carries a root credential",
                ));
            }
            return Ok(HeadStep::Done(self));
        }
        if self.process_epoch != from_epoch {
            return Err(EpError::failed_precondition("the lifecycle head is at another epoch"));
        }
        Ok(HeadStep::Write(Self {
            process_epoch: to_epoch,
            current_credential_id: None,
            last_takeover_op_id: Some(op.clone()),
            ..self
        }))
    }

    /// Makes a staged credential the incarnation's root; there is one per incarnation.
    pub fn stamp_root(self, uid: &LifecycleUid, credential: &CredentialId) -> Result<HeadStep, EpError> {
        self.require_active_at(uid)?;
        match self.current_credential_id.as_deref() {
            Some(current) if current == credential.as_str() => Ok(HeadStep::Done(self)),
            Some(_) => {
                Err(EpError::permission_denied("this incarnation already has another root credential"))
            }
            None => Ok(HeadStep::Write(Self {
                current_credential_id: Some(credential.as_str().to_owned()),
                ..self
            })),
        }
    }

    /// Binds the incarnation to a retirement.
    pub fn begin_retirement(self, uid: &LifecycleUid, op: &OpId) -> Result<HeadStep, EpError> {
        self.require_uid(uid)?;
        match &self.state {
            HeadState::Retiring(holder) if holder == op => Ok(HeadStep::Done(self)),
            HeadState::Retiring(_) => {
                Err(EpError::permission_denied("another operation is retiring this lifecycle"))
            }
            HeadState::Retired => Err(EpError::failed_precondition("this lifecycle is already retired")),
            HeadState::Active => Ok(HeadStep::Write(Self { state: HeadState::Retiring(op.clone()), ..self })),
        }
    }

    /// Ends the incarnation; the alias is free from here on.
    pub fn complete_retirement(self, uid: &LifecycleUid, op: &OpId) -> Result<HeadStep, EpError> {
        self.require_uid(uid)?;
        match &self.state {
            HeadState::Retired => Ok(HeadStep::Done(self)),
            HeadState::Retiring(holder) if holder == op => {
                Ok(HeadStep::Write(Self { state: HeadState::Retired, ..self }))
            }
            HeadState::Active | HeadState::Retiring(_) => {
                Err(EpError::permission_denied("this lifecycle is not retiring under this operation"))
            }
        }
    }

    /// The head that was read, or `failed-precondition` when there is none (contract 07 §2.5).
    pub fn require(head: Option<Self>) -> Result<Self, EpError> {
        head.ok_or_else(|| EpError::failed_precondition("there is no lifecycle head for this principal"))
    }

    fn require_active_at(&self, uid: &LifecycleUid) -> Result<(), EpError> {
        if self.is_active_at(uid) {
            Ok(())
        } else {
            Err(EpError::failed_precondition("the lifecycle head is not active at this lifecycle uid"))
        }
    }

    fn require_uid(&self, uid: &LifecycleUid) -> Result<(), EpError> {
        if self.lifecycle_uid == *uid {
            Ok(())
        } else {
            Err(EpError::failed_precondition("the lifecycle head names another lifecycle uid"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    fn principal() -> Principal {
        Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice").unwrap()
    }

    fn uid(c: char) -> LifecycleUid {
        LifecycleUid::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn op(c: char) -> OpId {
        OpId::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn born() -> LifecycleHead {
        LifecycleHead::activated(&principal(), &uid('a'), "mgr").unwrap()
    }

    fn written(step: Result<HeadStep, EpError>) -> LifecycleHead {
        match step.unwrap() {
            HeadStep::Write(head) => head,
            HeadStep::Done(_) => unreachable!("nothing was written"),
        }
    }

    fn code(step: Result<HeadStep, EpError>) -> EpCode {
        step.unwrap_err().code
    }

    fn root() -> CredentialId {
        CredentialId::parse("root1").unwrap()
    }

    #[test]
    fn a_head_is_born_active_at_epoch_one_with_these_bytes() {
        assert_eq!(
            String::from_utf8(born().to_bytes()).unwrap(),
            format!(
                "{{\"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"actor\":\"alice\",\"lifecycleUid\":\"{}\",\
                 \"managerInstance\":\"mgr\",\"processEpoch\":1,\"state\":\"active\"}}",
                uid('a')
            )
        );
    }

    #[test]
    fn optional_members_stand_in_the_order_first_set() {
        let head = written(born().stamp_root(&uid('a'), &root()));
        assert!(
            String::from_utf8(head.to_bytes())
                .unwrap()
                .ends_with("\"active\",\"currentCredentialId\":\"root1\"}")
        );
        let head = written(head.advance_epoch(&uid('a'), 1, &op('t')));
        assert_eq!(head.current_credential_id(), None);
        let head = written(head.stamp_root(&uid('a'), &root()));
        let head = written(head.begin_retirement(&uid('a'), &op('r')));
        assert!(String::from_utf8(head.to_bytes()).unwrap().ends_with(&format!(
            "\"processEpoch\":2,\"state\":\"retiring\",\"lastTakeoverOpId\":\"{}\",\"currentCredentialId\":\"root1\",\
             \"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}}}",
            op('t'),
            op('r')
        )));
        assert_eq!(LifecycleHead::parse(&principal(), &head.to_bytes()).unwrap(), head);
    }

    #[test]
    fn a_takeover_is_idempotent_only_under_its_own_operation() {
        let head = written(born().advance_epoch(&uid('a'), 1, &op('t')));
        assert!(matches!(head.clone().advance_epoch(&uid('a'), 1, &op('t')), Ok(HeadStep::Done(_))));
        assert_eq!(code(head.clone().advance_epoch(&uid('a'), 1, &op('x'))), EpCode::Conflict);
        assert_eq!(code(head.clone().advance_epoch(&uid('b'), 1, &op('t'))), EpCode::FailedPrecondition);
        assert_eq!(code(head.clone().advance_epoch(&uid('a'), 7, &op('t'))), EpCode::FailedPrecondition);
        let stamped = written(head.stamp_root(&uid('a'), &root()));
        // The foreign operation is seen before the residual credential.
        assert_eq!(code(stamped.clone().advance_epoch(&uid('a'), 1, &op('x'))), EpCode::Conflict);
        assert_eq!(code(stamped.advance_epoch(&uid('a'), 1, &op('t'))), EpCode::FailedPrecondition);
    }

    #[test]
    fn an_incarnation_has_one_root_credential() {
        let head = written(born().stamp_root(&uid('a'), &root()));
        assert!(matches!(head.clone().stamp_root(&uid('a'), &root()), Ok(HeadStep::Done(_))));
        let other = CredentialId::parse("root2").unwrap();
        assert_eq!(code(head.clone().stamp_root(&uid('a'), &other)), EpCode::PermissionDenied);
        assert_eq!(code(head.stamp_root(&uid('b'), &root())), EpCode::FailedPrecondition);
    }

    #[test]
    fn a_retirement_begins_and_ends_under_one_operation() {
        let retiring = written(born().begin_retirement(&uid('a'), &op('r')));
        assert!(!retiring.is_active_at(&uid('a')));
        assert!(matches!(retiring.clone().begin_retirement(&uid('a'), &op('r')), Ok(HeadStep::Done(_))));
        assert_eq!(code(retiring.clone().begin_retirement(&uid('a'), &op('x'))), EpCode::PermissionDenied);
        assert_eq!(code(retiring.clone().begin_retirement(&uid('b'), &op('r'))), EpCode::FailedPrecondition);
        assert_eq!(code(retiring.clone().complete_retirement(&uid('a'), &op('x'))), EpCode::PermissionDenied);
        assert_eq!(code(born().complete_retirement(&uid('a'), &op('r'))), EpCode::PermissionDenied);
        let retired = written(retiring.complete_retirement(&uid('a'), &op('r')));
        assert!(matches!(retired.clone().complete_retirement(&uid('a'), &op('x')), Ok(HeadStep::Done(_))));
        assert_eq!(code(retired.clone().begin_retirement(&uid('a'), &op('r'))), EpCode::FailedPrecondition);
    }

    #[test]
    fn a_garbled_head_is_internal() {
        let good = String::from_utf8(born().to_bytes()).unwrap();
        let op = format!("\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", op('r'));
        let cases = [
            String::new(),
            "[]".to_owned(),
            good.replace("\"alice\"", "\"bob\""),
            good.replace("\"processEpoch\":1", "\"processEpoch\":0"),
            good.replace("\"processEpoch\":1", "\"processEpoch\":1.5"),
            good.replace("\"processEpoch\":1", "\"processEpoch\":\"1\""),
            good.replace("\"mgr\"", "\"\""),
            good.replace("\"active\"", "\"gone\""),
            good.replace("\"active\"", "\"retiring\""),
            good.replace("\"active\"", &format!("\"active\",{op}")),
            good.replace("\"active\"", &format!("\"retired\",{op}")),
            good.replace("\"active\"", &format!("\"retiring\",{}", op.replace("retirement", "takeover"))),
            good.replace(
                "\"active\"",
                &format!("\"retiring\",{}", op.replace("\"kind\"", "\"x\":1,\"kind\"")),
            ),
            good.replace("\"active\"", "\"active\",\"currentCredentialId\":\"\""),
            good.replace("\"active\"", "\"active\",\"currentCredentialId\":null"),
            good.replace("\"active\"", "\"active\",\"lastTakeoverOpId\":\"short\""),
            good.replace("\"active\"", "\"active\",\"revision\":1"),
        ];
        for bytes in cases {
            let error = LifecycleHead::parse(&principal(), bytes.as_bytes()).unwrap_err();
            assert_eq!(error.code, EpCode::Internal, "{bytes}");
        }
    }
}
