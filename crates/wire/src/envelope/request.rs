//! `EndpointRequest`: the body of a call, and its agreement with the subject that it came on (contract 02 §4.1).

use serde_json::{Map, Value};

use super::{correlation::Correlation, fields::Fields};
use crate::{
    endpoint_subject::{Rail, RequestSubject, SubjectTarget, TargetTriple},
    endpoint_token::{Command, DESCRIBE, DigestRef, EndpointName, IdToken},
    error::{EpCode, EpError},
    token::{Actor, InstanceId, LifecycleUid, Owner, Principal},
};

/// Which operation is asked for, at which contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The endpoint's dotted name.
    pub endpoint: EndpointName,
    /// The command.
    pub command: Command,
    /// Digest of the input schema's closure; absent only on `describe`.
    pub input_digest: Option<DigestRef>,
    /// Digest of the output schema's closure; absent only on `describe`.
    pub output_digest: Option<DigestRef>,
}

/// How a call is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallClass {
    /// Request and reply, at most once.
    Ephemeral,
    /// A journal append.
    Journal,
}

impl CallClass {
    /// As requests and contracts name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ephemeral => "ephemeral",
            Self::Journal => "journal",
        }
    }

    /// The class of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Ephemeral, Self::Journal].into_iter().find(|class| class.as_str() == name)
    }
}

/// The agent that the body names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyTarget {
    /// Which incarnation.
    pub triple: TargetTriple,
    /// The head revision that the caller saw.
    pub mapping_revision: Option<u64>,
}

/// The responder that the caller insists on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncarnationBind {
    /// The instance.
    pub instance: InstanceId,
    /// Its process epoch.
    pub epoch: u64,
}

/// The arguments. Absent and null both satisfy the void schema, and are kept apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestArgs {
    /// No member.
    Absent,
    /// An explicit null.
    Null,
    /// An object.
    Object(Map<String, Value>),
}

/// How the caller presents itself. Only `id` is checked against the subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerCard {
    /// `<owner>.<actor>`.
    pub id: String,
    /// A display name.
    pub name: String,
    /// Its role.
    pub role: Option<String>,
}

/// A parsed request.
#[derive(Clone, PartialEq, Eq)]
pub struct EndpointRequest {
    /// The request's id.
    pub id: IdToken,
    /// What is asked.
    pub op: Operation,
    /// How it is carried.
    pub class: CallClass,
    /// Whether a reply is expected: a call, or a cast.
    pub reply_expected: bool,
    /// Budget in milliseconds.
    pub deadline_ms: Option<u64>,
    /// The goal, for an action.
    pub goal_id: Option<IdToken>,
    /// The agent that it acts on.
    pub target: Option<BodyTarget>,
    /// The responder that it insists on.
    pub bind: Option<IncarnationBind>,
    /// The arguments.
    pub args: RequestArgs,
    /// Who says to ask.
    pub from: CallerCard,
    /// Opaque authorization, never logged.
    pub auth: Option<String>,
    /// Trace context.
    pub correlation: Option<Correlation>,
}

impl std::fmt::Debug for EndpointRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments may carry secrets, and `auth` always does.
        f.debug_struct("EndpointRequest").field("id", &self.id).field("op", &self.op).finish_non_exhaustive()
    }
}

impl EndpointRequest {
    /// Reads a request body; the first failure in the contract's order wins.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|_| EpError::bad_request("a request must be valid JSON"))?;
        Self::read(&value)
    }

    /// As [`Self::parse`], of a body that is JSON already.
    pub fn read(value: &Value) -> Result<Self, EpError> {
        let request = Fields::of("request", value)?;
        request.version()?;
        let id = request.token("id")?;
        let op = Operation::parse(&request)?;
        let class = request.get("class").and_then(Value::as_str).and_then(CallClass::from_name);
        let class = class.ok_or_else(|| request.bad("class", "ephemeral or journal"))?;
        let reply_expected = request.flag("replyExpected")?;
        if class == CallClass::Journal && reply_expected {
            return Err(EpError::bad_request("a journal request expects no reply"));
        }
        let deadline_ms = request.optional_uint("deadlineMs")?;
        if deadline_ms == Some(0) {
            return Err(request.bad("deadlineMs", "greater than zero"));
        }
        if deadline_ms.is_none() && (reply_expected || class == CallClass::Journal) {
            return Err(EpError::bad_request("a call or a journal request needs deadlineMs"));
        }
        let goal_id = request.optional_token("goalId")?;
        let target = request.get("target").map(BodyTarget::parse).transpose()?;
        let bind = request.get("bind").map(|bind| IncarnationBind::parse(bind, &op)).transpose()?;
        let args = match request.get("args") {
            None => RequestArgs::Absent,
            Some(Value::Null) => RequestArgs::Null,
            Some(Value::Object(args)) => RequestArgs::Object(args.clone()),
            Some(_) => return Err(request.bad("args", "an object or null")),
        };
        let from = CallerCard::parse(&request)?;
        let auth = request.optional_text("auth")?.map(str::to_owned);
        let correlation = request
            .get("correlation")
            .map(|value| {
                Fields::of("request.correlation", value).and_then(|fields| Correlation::parse(&fields))
            })
            .transpose()?;
        Ok(Self {
            id,
            op,
            class,
            reply_expected,
            deadline_ms,
            goal_id,
            target,
            bind,
            args,
            from,
            auth,
            correlation,
        })
    }

    /// Checks the body against the subject that it came on, in the contract's order. Class, goal and the currency of
    /// the target are the handler's checks, which follow.
    pub fn agree_with(&self, subject: &RequestSubject) -> Result<(), EpError> {
        if self.op.endpoint.token() != subject.endpoint {
            return Err(EpError::new(EpCode::OpMismatch, "the body names another endpoint than the subject"));
        }
        if self.op.command != subject.command {
            return Err(EpError::new(EpCode::OpMismatch, "the body names another command than the subject"));
        }
        if subject.rail == Rail::All {
            if self.deadline_ms.is_none() {
                return Err(EpError::bad_request("a scatter needs deadlineMs"));
            }
            if self.bind.is_some() {
                return Err(EpError::bad_request("a scatter binds no instance"));
            }
        }
        if let (Rail::Instance(instance), Some(bind)) = (&subject.rail, &self.bind)
            && bind.instance != *instance
        {
            return Err(EpError::bad_request("the request binds another instance than its subject names"));
        }
        self.agree_on_target(&subject.target)?;
        if self.from.id != subject.caller.principal.key() {
            return Err(EpError::new(EpCode::SenderMismatch, "from.id is not the principal of the subject"));
        }
        Ok(())
    }

    fn agree_on_target(&self, subject: &SubjectTarget) -> Result<(), EpError> {
        let mismatch = |message: &str| Err(EpError::new(EpCode::TargetMismatch, message));
        let body = self.target.as_ref().map(|target| &target.triple);
        match (subject, body) {
            (SubjectTarget::Untargeted | SubjectTarget::SelfMode, None) => Ok(()),
            (SubjectTarget::Untargeted | SubjectTarget::SelfMode, Some(_)) => {
                mismatch("this request form takes no target in its body")
            }
            (_, None) => mismatch("this request form needs a target in its body"),
            (
                SubjectTarget::Owner(owner)
                | SubjectTarget::Any(owner)
                | SubjectTarget::Child(owner)
                | SubjectTarget::Ledger(owner),
                Some(triple),
            ) if triple.principal.owner == *owner => Ok(()),
            (SubjectTarget::Handle(wanted) | SubjectTarget::Exact(wanted), Some(triple))
                if triple == wanted =>
            {
                Ok(())
            }
            _ => mismatch("the body's target is not the subject's"),
        }
    }

    /// The incarnation fence: a request bound to another incarnation than the responder's refuses before its
    /// arguments are looked at.
    pub fn check_bind(&self, instance: &InstanceId, epoch: u64) -> Result<(), EpError> {
        let Some(bind) = &self.bind else { return Ok(()) };
        let code = if bind.instance != *instance {
            EpCode::FailedPrecondition
        } else if bind.epoch != epoch {
            EpCode::Expired
        } else {
            return Ok(());
        };
        let served = IncarnationBind { instance: instance.clone(), epoch };
        Err(EpError::new(code, "the request is bound to another incarnation of this endpoint").with_detail(
            serde_json::json!({
                "kind": crate::error::detail::BIND_REFUSED,
                "endpoint": self.op.endpoint,
                "command": self.op.command,
                "boundTo": bind.to_json(),
                "servedBy": served.to_json(),
            }),
        ))
    }
}

impl Operation {
    fn parse(request: &Fields<'_>) -> Result<Self, EpError> {
        let op = request.object("request.op", "op")?;
        let endpoint = op.token("endpoint")?;
        let command: Command = op.token("command")?;
        let digest = |member: &str| match op.optional_token::<DigestRef>(member)? {
            None if command.as_str() != DESCRIBE => {
                Err(EpError::new(EpCode::ContractMismatch, format!("request.op.{member} is missing")))
            }
            digest => Ok(digest),
        };
        let input_digest = digest("inputDigest")?;
        let output_digest = digest("outputDigest")?;
        Ok(Self { endpoint, command, input_digest, output_digest })
    }
}

impl BodyTarget {
    fn parse(value: &Value) -> Result<Self, EpError> {
        let target = Fields::of("request.target", value)?;
        let owner: Owner = target.token("owner")?;
        let actor: Actor = target.token("actor")?;
        let lifecycle_uid: LifecycleUid = target.token("lifecycleUid")?;
        let mapping_revision = target.optional_uint("mappingRevision")?;
        Ok(Self {
            triple: TargetTriple { principal: Principal::new(owner, actor), lifecycle_uid },
            mapping_revision,
        })
    }
}

impl IncarnationBind {
    fn parse(value: &Value, op: &Operation) -> Result<Self, EpError> {
        if op.command.as_str() == DESCRIBE {
            return Err(EpError::bad_request("describe binds no instance"));
        }
        let bind = Fields::of("request.bind", value)?;
        Ok(Self { instance: bind.token("instanceId")?, epoch: bind.uint("epoch")? })
    }

    fn to_json(&self) -> Value {
        serde_json::json!({ "instanceId": self.instance, "epoch": self.epoch })
    }
}

impl CallerCard {
    fn parse(request: &Fields<'_>) -> Result<Self, EpError> {
        let from = request.object("request.from", "from")?;
        Ok(Self {
            id: from.text("id")?.to_owned(),
            name: from.text("name")?.to_owned(),
            role: from.optional_text("role")?.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const A: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
    const IID: &str = "iiiiiiiiiiiiiiiiiiiiiiiiii";

    fn good() -> Value {
        json!({
            "v": 1,
            "id": "r1",
            "op": {
                "endpoint": "auth",
                "command": "retire-lifecycle",
                "inputDigest": crate::canonical::VOID_CLOSURE_DIGEST,
                "outputDigest": crate::canonical::VOID_CLOSURE_DIGEST,
            },
            "class": "ephemeral",
            "replyExpected": true,
            "deadlineMs": 1000,
            "from": { "id": format!("{A}.alice"), "name": "Alice" },
            "later": "unknown members are ignored",
        })
    }

    fn with(pointer: &str, value: Value) -> Value {
        let mut request = good();
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        let parent = request.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        parent.insert(member.to_owned(), value);
        request
    }

    fn without(pointer: &str) -> Value {
        let mut request = good();
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        request.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(member);
        request
    }

    fn parse(value: &Value) -> Result<EndpointRequest, EpError> {
        EndpointRequest::parse(value.to_string().as_bytes())
    }

    fn code(value: &Value) -> EpCode {
        parse(value).unwrap_err().code
    }

    fn subject(middle: &str) -> RequestSubject {
        RequestSubject::parse(&format!(
            "cotal.main.ep.one.auth.retire-lifecycle{middle}.{A}.alice.{UID}.nnnnnnnnnnnnnnnnnnnnnn"
        ))
        .unwrap()
    }

    fn target() -> Value {
        json!({ "owner": A, "actor": "bob", "lifecycleUid": UID })
    }

    #[test]
    fn a_request_parses_and_ignores_what_it_does_not_know() {
        let request = parse(&good()).unwrap();
        assert_eq!(request.args, RequestArgs::Absent);
        assert!(request.agree_with(&subject("")).is_ok());
        assert_eq!(parse(&with("/args", Value::Null)).unwrap().args, RequestArgs::Null);
    }

    #[test]
    fn each_member_refuses_with_its_code() {
        use EpCode::{BadRequest, ContractMismatch, UnsupportedVersion};
        for (request, want) in [
            (json!([]), BadRequest),
            (without("/v"), UnsupportedVersion),
            (with("/v", json!(2)), UnsupportedVersion),
            (with("/v", json!("1")), UnsupportedVersion),
            (with("/id", json!("")), BadRequest),
            (with("/id", json!("a b")), BadRequest),
            (with("/op", json!("auth")), BadRequest),
            (with("/op/endpoint", json!("com_x")), BadRequest),
            (with("/op/command", json!("Retire")), BadRequest),
            (without("/op/inputDigest"), ContractMismatch),
            (without("/op/outputDigest"), ContractMismatch),
            (with("/op/inputDigest", json!("sha256:x")), BadRequest),
            (with("/op/inputDigest", Value::Null), BadRequest),
            (with("/class", json!("record")), BadRequest),
            (with("/replyExpected", json!("yes")), BadRequest),
            (with("/class", json!("journal")), BadRequest),
            (with("/deadlineMs", json!(0)), BadRequest),
            (with("/deadlineMs", json!(-1)), BadRequest),
            (without("/deadlineMs"), BadRequest),
            (with("/goalId", json!("a.b")), BadRequest),
            (with("/target", json!({ "owner": "x", "actor": "b", "lifecycleUid": UID })), BadRequest),
            (with("/bind", json!({ "instanceId": IID })), BadRequest),
            (with("/bind", Value::Null), BadRequest),
            (with("/args", json!([])), BadRequest),
            (without("/from"), BadRequest),
            (with("/from/name", json!("")), BadRequest),
            (with("/from/role", json!("")), BadRequest),
            (with("/auth", json!("")), BadRequest),
            (with("/correlation", json!({ "traceparent": "x" })), BadRequest),
            (with("/correlation", json!({ "tracestate": "a\u{7f}" })), BadRequest),
        ] {
            assert_eq!(code(&request), want, "{request}");
        }
        assert_eq!(EndpointRequest::parse(b"{").unwrap_err().code, BadRequest);
        assert_eq!(EndpointRequest::parse(b"\xff").unwrap_err().code, BadRequest);
    }

    #[test]
    fn the_first_failure_in_the_order_wins() {
        // Every member is broken; mending them one after another moves the refusal along the contract's order.
        let mut request = json!({
            "v": 9, "id": 7, "op": 7, "class": 7, "replyExpected": 7, "deadlineMs": "x", "goalId": 7, "target": 7,
            "bind": 7, "args": 7, "from": 7, "auth": 7, "correlation": 7,
        });
        let good = with("/target", target());
        let good_bind = json!({ "instanceId": IID, "epoch": 1 });
        for (member, needle) in [
            ("v", "request.v"),
            ("id", "request.id"),
            ("op", "request.op"),
            ("class", "request.class"),
            ("replyExpected", "request.replyExpected"),
            ("deadlineMs", "request.deadlineMs"),
            ("goalId", "request.goalId"),
            ("target", "request.target"),
            ("bind", "request.bind"),
            ("args", "request.args"),
            ("from", "request.from"),
            ("auth", "request.auth"),
            ("correlation", "request.correlation"),
        ] {
            let error = parse(&request).unwrap_err();
            assert!(error.message.starts_with(needle), "{member}: {}", error.message);
            request[member] = match member {
                "goalId" => json!("g1"),
                "bind" => good_bind.clone(),
                "args" | "correlation" => json!({}),
                "auth" => json!("opaque"),
                _ => good[member].clone(),
            };
        }
        assert!(parse(&request).is_ok());
    }

    #[test]
    fn describe_needs_no_digests_and_binds_nothing() {
        let mut request = without("/op/inputDigest");
        request["op"].as_object_mut().unwrap().remove("outputDigest");
        request["op"]["command"] = json!("describe");
        assert!(parse(&request).is_ok());
        request["bind"] = json!({ "instanceId": IID, "epoch": 1 });
        assert_eq!(code(&request), EpCode::BadRequest);
    }

    #[test]
    fn the_body_agrees_with_its_subject_in_order() {
        let disagree =
            |request: Value, subject: &RequestSubject| parse(&request).unwrap().agree_with(subject);
        let one = subject("");
        let mut all = subject("");
        all.rail = Rail::All;
        let mut inst = subject("");
        inst.rail = Rail::Instance(InstanceId::parse(IID).unwrap());
        let bind = json!({ "instanceId": "j".repeat(26), "epoch": 1 });

        // Each request is wrong in this and in every later respect.
        let mut request = with("/op/endpoint", json!("manager"));
        request["op"]["command"] = json!("stop");
        request["class"] = json!("ephemeral");
        request["replyExpected"] = json!(false);
        request.as_object_mut().unwrap().remove("deadlineMs");
        request["bind"] = bind.clone();
        request["target"] = target();
        request["from"]["id"] = json!("local.mallory");
        assert_eq!(disagree(request.clone(), &all).unwrap_err().code, EpCode::OpMismatch);
        request["op"]["endpoint"] = json!("auth");
        assert_eq!(disagree(request.clone(), &all).unwrap_err().code, EpCode::OpMismatch);
        request["op"]["command"] = json!("retire-lifecycle");
        let error = disagree(request.clone(), &all).unwrap_err();
        assert!(error.code == EpCode::BadRequest && error.message.contains("deadlineMs"));
        request["deadlineMs"] = json!(5);
        let error = disagree(request.clone(), &all).unwrap_err();
        assert!(error.code == EpCode::BadRequest && error.message.contains("scatter binds"));
        let error = disagree(request.clone(), &inst).unwrap_err();
        assert!(error.code == EpCode::BadRequest && error.message.contains("another instance"));
        assert_eq!(disagree(request.clone(), &one).unwrap_err().code, EpCode::TargetMismatch);
        request.as_object_mut().unwrap().remove("target");
        assert_eq!(disagree(request.clone(), &one).unwrap_err().code, EpCode::SenderMismatch);
        request["from"]["id"] = json!(format!("{A}.alice"));
        assert!(disagree(request, &one).is_ok());
    }

    #[test]
    fn a_targeted_form_agrees_on_what_its_mode_pins() {
        for (middle, body, ok) in [
            (".self".to_owned(), None, true),
            (".self".to_owned(), Some(target()), false),
            (format!(".owner.{A}"), Some(target()), true),
            (format!(".owner.{A}"), None, false),
            (".any.local".to_owned(), Some(target()), false),
            (format!(".handle.{A}.bob.{UID}"), Some(target()), true),
            (format!(".exact.{A}.bob.{UID}"), Some(target()), true),
            (format!(".exact.{A}.carol.{UID}"), Some(target()), false),
            (format!(".handle.{A}.bob.{IID}"), Some(target()), false),
        ] {
            let request = body.clone().map_or_else(good, |body| with("/target", body));
            let result = parse(&request).unwrap().agree_with(&subject(&middle));
            match result {
                Ok(()) => assert!(ok, "{middle}"),
                Err(error) => assert!(!ok && error.code == EpCode::TargetMismatch, "{middle}: {error}"),
            }
        }
    }

    #[test]
    fn a_bound_request_is_refused_by_another_incarnation() {
        let request = parse(&with("/bind", json!({ "instanceId": IID, "epoch": 4 }))).unwrap();
        let own = InstanceId::parse(IID).unwrap();
        let other = InstanceId::parse(&"j".repeat(26)).unwrap();
        assert!(request.check_bind(&own, 4).is_ok());
        let error = request.check_bind(&own, 5).unwrap_err();
        assert_eq!(error.code, EpCode::Expired);
        assert_eq!(error.details[0]["servedBy"]["epoch"], 5);
        assert_eq!(request.check_bind(&other, 4).unwrap_err().code, EpCode::FailedPrecondition);
    }

    #[test]
    fn a_request_is_never_printed_with_its_auth_or_arguments() {
        let mut request = with("/auth", json!("opaque-secret"));
        request["args"] = json!({ "token": "argument-secret" });
        let printed = format!("{:?}", parse(&request).unwrap());
        assert!(!printed.contains("secret"), "{printed}");
    }
}
