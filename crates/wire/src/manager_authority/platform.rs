//! What a platform asks in process for a manager that it assigned: the envelopes of its two doors (contract 05 §16-17).

use super::{
    EXECUTING_ACTOR, HolderKind, Kind, Operation, ServiceRequest, envelope::VERSION, fields::Fields,
};
use crate::{
    error::EpError,
    es_value::EsValue,
    token::{Account, Nkey, Owner, OwnerKind},
};

const CONTROL: &str = "platform-control-authority";
const SUPERVISOR: &str = "platform-supervisor-authority";
const REQUEST: &str = "request";

/// A parsed request of the platform control door. The inner request is read again by its kind's own parser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlatformControlRequest<'a> {
    /// The space as it was named.
    pub space: &'a str,
    /// The data account as it was named.
    pub account: &'a str,
    /// The assignment that the platform acts under.
    pub assignment_revision: u64,
    /// What is asked for: one of [`PlatformControlRequest::KINDS`].
    pub kind: Kind,
    /// The inner request.
    pub request: &'a EsValue,
    /// The manager's instance as the inner request names it.
    pub instance_id: &'a str,
    /// The manager's lifecycle as the inner request names it.
    pub manager_lifecycle_uid: &'a str,
}

impl<'a> PlatformControlRequest<'a> {
    /// The kinds that the door carries, in the order in which it asks.
    pub const KINDS: [Kind; 8] = [
        Kind::Service,
        Kind::Maintenance,
        Kind::GoalIndexScan,
        Kind::AdminAuthorization,
        Kind::RunAdmission,
        Kind::RunSubmission,
        Kind::RunAttempt,
        Kind::RetainedAgentValidation,
    ];

    /// Reads an envelope in the contract's order. Every refusal is `bad-request`, but for the kinds about managed agents,
    /// which no platform may ask for: `unimplemented`.
    pub fn parse(envelope: &'a EsValue) -> Result<Self, EpError> {
        let fields = Fields::of(CONTROL, Some(envelope))?.closed(&[
            "v",
            "kind",
            "space",
            "accountPublicKey",
            "assignmentRevision",
            REQUEST,
        ])?;
        literal_kind(&fields, CONTROL)?;
        let space = fields.text("space")?;
        let account = fields.text("accountPublicKey")?;
        fields.token::<Nkey<Account>>("accountPublicKey")?;
        let assignment_revision = fields.integer("assignmentRevision", 0)?;
        let inner = fields.inner(REQUEST, REQUEST)?;
        let request = fields.value(REQUEST).ok_or_else(|| fields.bad(REQUEST, "present"))?;
        let kind = inner_kind(&inner)?;
        inner.literal("actor", EXECUTING_ACTOR)?;
        let instance_id = string(&inner, "instanceId")?;
        let manager_lifecycle_uid = string(&inner, "managerLifecycleUid")?;
        if inner.has("session") {
            // The route does not look at members beside these; the door does.
            inner.inner("request.session", "session")?.exactly(&[
                "endpoint",
                "epoch",
                "exp",
                "id",
                "sessionId",
            ])?;
        }
        Ok(Self { space, account, assignment_revision, kind, request, instance_id, manager_lifecycle_uid })
    }

    /// The space that the inner request names, when it names one as text.
    pub fn inner_space(&self) -> Option<&'a str> {
        self.inner_text("space")
    }

    /// Whether the inner request names no data account, or exactly this one.
    pub fn agrees_on_account(&self, account: &str) -> bool {
        let Some(inner) = self.request.as_object() else { return false };
        inner.get("accountPublicKey").is_none_or(|named| named.as_text() == Some(account))
    }

    /// The operation that an inner request of [`Kind::Service`] names.
    pub fn operation(&self) -> Option<Operation> {
        if self.kind == Kind::Service { Operation::from_name(self.inner_text("operation")?) } else { None }
    }

    fn inner_text(&self, member: &str) -> Option<&'a str> {
        self.request.as_object()?.get(member)?.as_text()
    }
}

/// A parsed request of the platform supervisor door.
#[derive(Debug, Clone, PartialEq)]
pub struct PlatformSupervisorRequest<'a> {
    /// The user whose manager the platform supervises.
    pub owner: Owner,
    /// The assignment that the platform acts under.
    pub assignment_revision: u64,
    /// The inner request, parsed.
    pub service: ServiceRequest,
    /// The inner request, as it came.
    pub request: &'a EsValue,
}

impl<'a> PlatformSupervisorRequest<'a> {
    /// The operations that the door serves.
    pub const OPERATIONS: [Operation; 4] =
        [Operation::Prepare, Operation::Activate, Operation::Renew, Operation::RenewStandingBundle];

    /// Reads an envelope in the contract's order; every refusal is `bad-request`.
    pub fn parse(envelope: &'a EsValue) -> Result<Self, EpError> {
        let fields = Fields::of(SUPERVISOR, Some(envelope))?.closed(&[
            "v",
            "kind",
            "owner",
            "assignmentRevision",
            REQUEST,
        ])?;
        literal_kind(&fields, SUPERVISOR)?;
        let owner: Owner = fields.token("owner")?;
        if owner.kind() != OwnerKind::Derived {
            return Err(fields.bad("owner", "an owner derived from a sign-in"));
        }
        let assignment_revision = fields.integer("assignmentRevision", 0)?;
        let request = fields.value(REQUEST).ok_or_else(|| fields.bad(REQUEST, "present"))?;
        let service = ServiceRequest::parse(request, HolderKind::Human)?;
        if service.envelope.actor.as_str() != EXECUTING_ACTOR {
            return Err(fields.bad("request.actor", &format!("\"{EXECUTING_ACTOR}\"")));
        }
        Ok(Self { owner, assignment_revision, service, request })
    }
}

fn literal_kind(fields: &Fields<'_>, kind: &str) -> Result<(), EpError> {
    if fields.integer("v", VERSION).ok() != Some(VERSION) {
        return Err(fields.bad("v", "1"));
    }
    fields.literal("kind", kind)
}

fn inner_kind(inner: &Fields<'_>) -> Result<Kind, EpError> {
    let named = inner.value("kind").and_then(EsValue::as_text).and_then(Kind::from_name);
    match named {
        Some(kind) if PlatformControlRequest::KINDS.contains(&kind) => Ok(kind),
        Some(kind) if kind.is_of_managed_agent() => {
            Err(EpError::unimplemented("the platform control door serves no kind about managed agents"))
        }
        _ => Err(inner.bad("kind", "one that the platform control door carries")),
    }
}

/// A string, an empty one too: the comparison with the assignment comes later.
fn string<'a>(fields: &Fields<'a>, member: &str) -> Result<&'a str, EpError> {
    fields.value(member).and_then(EsValue::as_text).ok_or_else(|| fields.bad(member, "a string"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::error::EpCode;

    const ACCOUNT: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn es(value: &Value) -> EsValue {
        EsValue::parse(value.to_string().as_bytes()).unwrap()
    }

    fn control() -> Value {
        json!({
            "v": 1, "kind": CONTROL, "space": "main", "accountPublicKey": ACCOUNT, "assignmentRevision": 0,
            "request": {
                "kind": "manager-goal-index-scan", "actor": "cli",
                "instanceId": "i".repeat(26), "managerLifecycleUid": "l".repeat(26),
            },
        })
    }

    fn code(envelope: &Value) -> EpCode {
        PlatformControlRequest::parse(&es(envelope)).unwrap_err().code
    }

    fn with(path: &str, value: Value) -> Value {
        let mut envelope = control();
        *envelope.pointer_mut(path).unwrap() = value;
        envelope
    }

    #[test]
    fn a_control_envelope_is_read_in_the_contracts_order() {
        let good = es(&control());
        let parsed = PlatformControlRequest::parse(&good).unwrap();
        assert_eq!((parsed.space, parsed.kind, parsed.assignment_revision), ("main", Kind::GoalIndexScan, 0));
        assert!(parsed.agrees_on_account(ACCOUNT), "it names none");

        // Each breaks one rule; from each one on, all later ones are broken too, and the earliest answers.
        let breaks: [(&str, Value, &str); 10] = [
            ("/v", json!(2), "v must be 1"),
            ("/kind", json!("x"), "kind must be"),
            ("/space", json!(""), "space must be"),
            ("/accountPublicKey", json!("A"), "accountPublicKey must be"),
            ("/assignmentRevision", json!(-1), "assignmentRevision must be"),
            ("/request/kind", json!("manager-run-cancel"), "kind must be one"),
            ("/request/actor", json!("web"), "actor must be"),
            ("/request/instanceId", json!(null), "instanceId must be"),
            ("/request/managerLifecycleUid", json!(1), "managerLifecycleUid must be"),
            ("/request/session", json!({"id": "U", "extra": 1}), "request.session"),
        ];
        for first in 0..breaks.len() {
            let mut envelope = control();
            envelope["request"]["session"] =
                json!({"id": "U", "endpoint": "manager", "sessionId": "s", "epoch": 0, "exp": 1});
            for (path, value, _) in &breaks[first..] {
                *envelope.pointer_mut(path).unwrap() = value.clone();
            }
            let refusal = PlatformControlRequest::parse(&es(&envelope)).unwrap_err();
            assert_eq!(refusal.code, EpCode::BadRequest, "{refusal}");
            assert!(refusal.message.contains(breaks[first].2), "{} against {refusal}", breaks[first].2);
            envelope["more"] = json!(1);
            let refusal = PlatformControlRequest::parse(&es(&envelope)).unwrap_err();
            assert!(refusal.message.contains("unknown member"), "an unknown member comes first: {refusal}");
        }
        for none in [json!(null), json!([]), json!("x")] {
            assert_eq!(code(&none), EpCode::BadRequest);
            assert_eq!(code(&with("/request", none)), EpCode::BadRequest);
        }
    }

    #[test]
    fn a_platform_may_not_ask_about_managed_agents() {
        for kind in Kind::ALL {
            let envelope = with("/request/kind", json!(kind.as_str()));
            let value = es(&envelope);
            let outcome = PlatformControlRequest::parse(&value);
            match kind {
                Kind::Enrollment | Kind::PrepareRetirement | Kind::RuntimeCreate | Kind::RuntimeStatus => {
                    assert_eq!(outcome.unwrap_err().code, EpCode::Unimplemented, "{kind:?}");
                }
                Kind::DelegatedIntent
                | Kind::DelegatedIntentExecution
                | Kind::RunCancel
                | Kind::RunRevoke => {
                    assert_eq!(outcome.unwrap_err().code, EpCode::BadRequest, "{kind:?}");
                }
                carried => assert_eq!(outcome.unwrap().kind, carried),
            }
        }
    }

    fn supervisor() -> Value {
        let key = |letter: &str| json!({"id": format!("U{}", letter.repeat(55))});
        json!({
            "v": 1, "kind": SUPERVISOR, "owner": format!("u_{}", "a".repeat(26)), "assignmentRevision": 3,
            "request": {
                "v": 1, "kind": "manager-service-authority", "operation": "prepare", "space": "main", "actor": "cli",
                "instanceId": "i".repeat(26), "managerLifecycleUid": "l".repeat(26), "requestId": "r".repeat(22),
                "identities": {
                    "supervisor": key("A"), "executor": key("B"), "serve": key("C"), "goalWriter": key("D"),
                    "sessionLedger": key("E"),
                },
            },
        })
    }

    #[test]
    fn a_supervisor_envelope_is_read_in_the_contracts_order() {
        let good = es(&supervisor());
        let parsed = PlatformSupervisorRequest::parse(&good).unwrap();
        assert_eq!((parsed.assignment_revision, parsed.service.operation), (3, Operation::Prepare));
        let breaks: [(&str, Value, &str); 6] = [
            ("/v", json!("1"), "v must be 1"),
            ("/kind", json!(CONTROL), "kind must be"),
            ("/owner", json!(format!("p_{}", "a".repeat(26))), "owner must be"),
            ("/assignmentRevision", json!(0.5), "assignmentRevision must be"),
            ("/request/operation", json!("resume"), "operation must be"),
            ("/request/actor", json!("web"), "request.actor must be"),
        ];
        for first in 0..breaks.len() {
            let mut envelope = supervisor();
            for (path, value, _) in &breaks[first..] {
                *envelope.pointer_mut(path).unwrap() = value.clone();
            }
            let refusal = PlatformSupervisorRequest::parse(&es(&envelope)).unwrap_err();
            assert_eq!(refusal.code, EpCode::BadRequest, "{refusal}");
            assert!(refusal.message.contains(breaks[first].2), "{} against {refusal}", breaks[first].2);
        }
    }
}
