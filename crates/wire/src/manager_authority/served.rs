//! What a manager serves about runs, as its callers published it (contract 06 §12.3, 03 §N).
//!
//! A manager forwards the subject of a request that it serves. Only what this service has seen on that subject itself says
//! who asked, for what, and of which incarnation; a forward's own coordinates are the manager's word.

use serde_json::{Map, Value};

use super::{
    runs::MAX_STEP,
    service::MANAGER_ENDPOINT,
    tokens::{RunId, SubmissionId},
};
use crate::{
    endpoint_subject::{Rail, RequestSubject, SubjectTarget},
    endpoint_token::{DigestRef, EndpointName},
    envelope::{CallClass, EndpointRequest, IncarnationBind, MAX_REQUEST_BYTES, RequestArgs},
    es_value::within,
    names::Names,
    token::SpaceToken,
};

/// Starts a run.
pub const RUN_START: &str = "run-start";
/// Takes a run up again.
pub const RUN_RESUME: &str = "run-resume";
/// Answers a run's pause.
pub const RUN_ANSWER: &str = "run-answer";
/// Starts a run under a name of the caller's own. Its command is in no public record; this one is this project's
/// (contract 10 §3.2).
pub const RUN_SUBMIT: &str = "run-submit";
/// Ends a run for good.
pub const RUN_CANCEL: &str = "run-cancel";

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunOperation {
    /// [`RUN_START`]: nothing of its arguments is kept.
    Start,
    /// [`RUN_RESUME`]
    Resume {
        /// The run.
        run: RunId,
    },
    /// [`RUN_ANSWER`]
    Answer {
        /// The endpoint that runs it, the subject's own unless said.
        endpoint: EndpointName,
        /// The run.
        run: RunId,
        /// The step.
        step_key: String,
        /// Whether a settled answer is amended.
        amend: bool,
    },
    /// [`RUN_SUBMIT`]
    Submit {
        /// The caller's name of the run.
        submission: SubmissionId,
    },
    /// [`RUN_CANCEL`]
    Cancel {
        /// The run.
        run: RunId,
    },
}

/// A request as its caller published it: the operation, and what of its envelope a registered manager would have to agree
/// with before it ran it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedRequest {
    /// What is asked for.
    pub operation: RunOperation,
    /// How it is carried.
    pub class: CallClass,
    /// The input contract that it pins.
    pub input_digest: DigestRef,
    /// The output contract that it pins.
    pub output_digest: DigestRef,
    /// The incarnation that it insists on.
    pub bind: Option<IncarnationBind>,
}

impl RunOperation {
    /// The command that asks for it.
    pub const fn command(&self) -> &'static str {
        match self {
            Self::Start => RUN_START,
            Self::Resume { .. } => RUN_RESUME,
            Self::Answer { .. } => RUN_ANSWER,
            Self::Submit { .. } => RUN_SUBMIT,
            Self::Cancel { .. } => RUN_CANCEL,
        }
    }

    fn read(subject: &RequestSubject, args: &RequestArgs) -> Option<Self> {
        let command = subject.command.as_str();
        if command == RUN_START {
            return Some(Self::Start);
        }
        let RequestArgs::Object(args) = args else { return None };
        let text = |member: &str| args.get(member).and_then(Value::as_str);
        let run = || RunId::parse(text("runId")?).ok();
        match command {
            RUN_RESUME => Some(Self::Resume { run: run()? }),
            RUN_ANSWER => Some(Self::Answer {
                endpoint: answering(subject, args)?,
                run: run()?,
                step_key: text("stepKey").filter(|key| within(key, MAX_STEP))?.to_owned(),
                amend: match args.get("amend") {
                    None => false,
                    Some(Value::Bool(amend)) => *amend,
                    Some(_) => return None,
                },
            }),
            RUN_SUBMIT => Some(Self::Submit { submission: SubmissionId::parse(text("submissionId")?).ok()? }),
            RUN_CANCEL => Some(Self::Cancel { run: run()? }),
            _ => None,
        }
    }
}

fn answering(subject: &RequestSubject, args: &Map<String, Value>) -> Option<EndpointName> {
    match args.get("endpoint") {
        None => Some(subject.endpoint.name()),
        Some(endpoint) => EndpointName::parse(endpoint.as_str()?).ok(),
    }
}

impl ObservedRequest {
    /// Reads a delivered message, or `None` for one that no manager would serve: a subject of another plane, form or command,
    /// a body that is too long, is no request or disagrees with its subject, an argument that no forward could name.
    ///
    /// The contract bounds a cancellation's body (10 §3.5); no manager serves a longer one of any command. Nothing is parsed of it.
    pub fn read(subject: &str, body: &[u8]) -> Option<(RequestSubject, Self)> {
        if body.len() > MAX_REQUEST_BYTES {
            return None;
        }
        let parsed = RequestSubject::parse(subject)?;
        let served = parsed.endpoint.as_str() == MANAGER_ENDPOINT
            && parsed.rail != Rail::All
            && matches!(parsed.target, SubjectTarget::Untargeted | SubjectTarget::SelfMode);
        if !served {
            return None;
        }
        let request = EndpointRequest::parse(body).ok()?;
        request.agree_with(&parsed).ok()?;
        let operation = RunOperation::read(&parsed, &request.args)?;
        let observed = Self {
            operation,
            class: request.class,
            input_digest: request.op.input_digest?,
            output_digest: request.op.output_digest?,
            bind: request.bind,
        };
        Some((parsed, observed))
    }
}

/// The subjects that the issuing connection listens to, read-only, for starts, resumes, answers and submissions.
///
/// A start and a submission are admitted for issued callers alone, who publish on the versioned rail; a resume or an
/// answer on the older rail is looked at too, for its refusal names its caller, and a managed seat answers there.
pub fn served_run_subjects(space: &SpaceToken) -> Vec<String> {
    let prefix = Names::new(space).subject_prefix();
    let both = |rail: &str, command: &str| {
        [
            format!("{prefix}.{rail}.one.{MANAGER_ENDPOINT}.{command}.>"),
            format!("{prefix}.{rail}.inst.{MANAGER_ENDPOINT}.*.{command}.>"),
        ]
    };
    [
        ("ep.v1", RUN_START),
        ("ep.v1", RUN_SUBMIT),
        ("ep.v1", RUN_RESUME),
        ("ep", RUN_RESUME),
        ("ep.v1", RUN_ANSWER),
        ("ep", RUN_ANSWER),
    ]
    .into_iter()
    .flat_map(|(rail, command)| both(rail, command))
    .collect()
}

/// The one subject of cancellations: of the instance that was admitted to run it, by an issued caller, untargeted.
pub fn served_run_cancel_subject(space: &SpaceToken) -> String {
    let prefix = Names::new(space).subject_prefix();
    format!("{prefix}.ep.v1.inst.{MANAGER_ENDPOINT}.*.{RUN_CANCEL}.*.*.*.*.*")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{canonical::VOID_CLOSURE_DIGEST, channel::subject_matches};

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
    const INSTANCE: &str = "iiiiiiiiiiiiiiiiiiiiiiiiii";

    fn subject(rail: &str, command: &str, target: &str) -> String {
        let generation =
            if rail.starts_with("ep.v1") { format!("{}.", "0".repeat(32)) } else { String::new() };
        let route = if rail.ends_with("inst") {
            format!("manager.{INSTANCE}.{command}")
        } else {
            format!("manager.{command}")
        };
        format!("cotal.main.{rail}.{route}.{target}{OWNER}.alice.{UID}.{generation}{}", "n".repeat(22))
    }

    fn body(command: &str, args: &Value) -> Value {
        json!({
            "v": 1, "id": "r1", "class": "ephemeral", "replyExpected": true, "deadlineMs": 1000,
            "op": { "endpoint": "manager", "command": command, "inputDigest": VOID_CLOSURE_DIGEST,
                    "outputDigest": VOID_CLOSURE_DIGEST },
            "from": { "id": format!("{OWNER}.alice"), "name": "Alice" }, "args": args,
        })
    }

    fn read(subject: &str, body: &Value) -> Option<RunOperation> {
        ObservedRequest::read(subject, body.to_string().as_bytes()).map(|(_, observed)| observed.operation)
    }

    fn run() -> String {
        format!("run-{}", "a".repeat(32))
    }

    #[test]
    fn each_operation_reads_from_its_command() {
        let run = || RunId::parse(&run()).unwrap();
        let step = json!({ "runId": run(), "stepKey": "/checkpoint:a#0" });
        let answer = |endpoint: &str, amend: bool| RunOperation::Answer {
            endpoint: EndpointName::parse(endpoint).unwrap(),
            run: run(),
            step_key: "/checkpoint:a#0".into(),
            amend,
        };
        let mut other = step.clone();
        other["endpoint"] = json!("com.example.x");
        other["amend"] = json!(true);
        for (command, args, want) in [
            (RUN_START, json!({ "anything": [1] }), RunOperation::Start),
            (RUN_START, json!(null), RunOperation::Start),
            (RUN_RESUME, json!({ "runId": run() }), RunOperation::Resume { run: run() }),
            (RUN_ANSWER, step, answer("manager", false)),
            (RUN_ANSWER, other, answer("com.example.x", true)),
            (
                RUN_SUBMIT,
                json!({ "submissionId": "nightly-1" }),
                RunOperation::Submit { submission: SubmissionId::parse("nightly-1").unwrap() },
            ),
            (RUN_CANCEL, json!({ "runId": run() }), RunOperation::Cancel { run: run() }),
        ] {
            for rail in ["ep.v1.one", "ep.v1.inst"] {
                let found = read(&subject(rail, command, ""), &body(command, &args));
                assert_eq!(found, Some(want.clone()), "{rail} {command} {args}");
            }
            assert_eq!(want.command(), command);
        }
    }

    #[test]
    fn what_no_manager_serves_is_not_observed() {
        let resume = json!({ "runId": run() });
        let good = body(RUN_RESUME, &resume);
        assert!(read(&subject("ep.one", RUN_RESUME, "self."), &good).is_some());
        for bad in [
            subject("ep.one", RUN_RESUME, &format!("owner.{OWNER}.")),
            subject("ep.all", RUN_RESUME, ""),
            subject("ep.v1.one", RUN_START, ""),
            subject("ep.one", RUN_RESUME, "").replace(".manager.", ".other."),
            subject("ep.one", RUN_RESUME, "").replace(".alice.", ".bob."),
            subject("ep.reply", RUN_RESUME, ""),
            "cotal.main.chat.a".to_owned(),
            String::new(),
        ] {
            assert_eq!(read(&bad, &good), None, "{bad}");
        }
        for (command, args) in [
            (RUN_RESUME, json!({})),
            (RUN_RESUME, json!(null)),
            (RUN_RESUME, json!({ "runId": "run-1" })),
            (RUN_ANSWER, json!({ "runId": run() })),
            (RUN_ANSWER, json!({ "runId": run(), "stepKey": "" })),
            (RUN_ANSWER, json!({ "runId": run(), "stepKey": "a".repeat(1025) })),
            (RUN_ANSWER, json!({ "runId": run(), "stepKey": "a", "amend": 1 })),
            (RUN_ANSWER, json!({ "runId": run(), "stepKey": "a", "endpoint": 1 })),
            (RUN_SUBMIT, json!({ "submissionId": "a.b" })),
            ("run-status", json!({ "runId": run() })),
        ] {
            assert_eq!(
                read(&subject("ep.one", command, ""), &body(command, &args)),
                None,
                "{command} {args}"
            );
        }
        assert!(ObservedRequest::read(&subject("ep.one", RUN_RESUME, ""), b"{").is_none());
    }

    /// Of a body that is too long nothing is read: trailing space, which a parser passes over, decides.
    #[test]
    fn no_request_of_any_command_is_read_past_the_bound_of_the_rails() {
        let args = json!({ "runId": run(), "stepKey": "a", "submissionId": "a" });
        for command in [RUN_START, RUN_RESUME, RUN_ANSWER, RUN_SUBMIT, RUN_CANCEL] {
            let subject = subject("ep.v1.inst", command, "");
            let mut body = body(command, &args).to_string();
            body.push_str(&" ".repeat(MAX_REQUEST_BYTES - body.len()));
            assert!(ObservedRequest::read(&subject, body.as_bytes()).is_some(), "{command}");
            body.push(' ');
            assert_eq!(ObservedRequest::read(&subject, body.as_bytes()), None, "{command}");
        }
    }

    #[test]
    fn the_subscriptions_meet_what_is_served_and_nothing_else() {
        let space = SpaceToken::parse("main").unwrap();
        let subjects = served_run_subjects(&space);
        let seen = |subject: &str| subjects.iter().filter(|filter| subject_matches(filter, subject)).count();
        for rail in ["ep.v1.one", "ep.v1.inst"] {
            for command in [RUN_START, RUN_SUBMIT, RUN_RESUME, RUN_ANSWER] {
                assert_eq!(seen(&subject(rail, command, "")), 1, "{rail} {command}");
            }
        }
        for rail in ["ep.one", "ep.inst"] {
            assert_eq!(seen(&subject(rail, RUN_ANSWER, "self.")), 1);
            assert_eq!(seen(&subject(rail, RUN_START, "")), 0, "no start is admitted from the older rail");
        }
        assert_eq!(seen(&subject("ep.v1.all", RUN_START, "")), 0);
        let cancel = served_run_cancel_subject(&space);
        assert!(subject_matches(&cancel, &subject("ep.v1.inst", RUN_CANCEL, "")));
        for other in [
            subject("ep.v1.one", RUN_CANCEL, ""),
            subject("ep.inst", RUN_CANCEL, ""),
            subject("ep.v1.inst", RUN_CANCEL, "self."),
            subject("ep.v1.inst", RUN_START, ""),
        ] {
            assert!(!subject_matches(&cancel, &other), "{other}");
        }
    }
}
