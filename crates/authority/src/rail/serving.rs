//! What every endpoint checks of a request before its handler runs, and how it answers (contract 02 §2.1, §4).

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use cotal_broker::{Connection, Message};
use cotal_wire::{
    DigestRef, EpCode, EpError, IdToken, SpaceToken,
    endpoint_subject::{Rail, RequestSubject, SubjectTarget},
    endpoint_token::{AUTH_ENDPOINT, DESCRIBE, RETIRE_LIFECYCLE},
    envelope::{CallClass, EndpointReply, EndpointRequest, MAX_REQUEST_BYTES, Outcome},
};
use serde_json::Value;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::{
    AuthIncarnation,
    contract::AuthContract,
    handler::{Admitted, RetireArgs, RetireOnRail, admit, result},
};
use crate::retirement::RetirementFailure;

/// Requests that may be handled at once; more are refused, not queued.
const MAX_HANDLED: usize = 64;
/// Longest wait for a barrier, whatever the caller's deadline says: a request holds one of [`MAX_HANDLED`].
const MAX_WAIT: Duration = Duration::from_secs(15 * 60);
/// How long a cast without a deadline is handled for: the contract's default of a call.
const DEFAULT_WAIT: Duration = Duration::from_secs(15);

/// A request that passed everything that needs no read.
#[derive(Debug, PartialEq)]
enum Asked {
    /// What the endpoint is.
    Describe,
    /// The end of a lifecycle.
    Retire(RetireArgs),
}

/// What was answered, and whether the handler had moved anything when it was.
type Answered = Result<Value, (EpError, Outcome)>;

/// One incarnation, serving.
pub(super) struct Serving {
    connection: Connection,
    rules: Rules,
    descriptor: Value,
    port: Arc<dyn RetireOnRail>,
    slots: Arc<Semaphore>,
}

/// What a request must agree with.
struct Rules {
    space: SpaceToken,
    serves: AuthIncarnation,
    input: DigestRef,
    output: DigestRef,
}

/// One request on its way to its answer.
struct Call {
    subject: RequestSubject,
    id: IdToken,
    reply_expected: bool,
}

// === deciding =================================================================================================

impl Rules {
    /// The subject of a request that this incarnation must handle; anything else has no sender.
    fn hears(&self, subject: &str) -> Option<RequestSubject> {
        RequestSubject::parse(subject).filter(|parsed| {
            parsed.space == self.space
                && parsed.endpoint.as_str() == AUTH_ENDPOINT
                && match &parsed.rail {
                    Rail::One | Rail::All => true,
                    Rail::Instance(instance) => *instance == self.serves.instance,
                }
        })
    }

    /// The checks that need no read, in the contract's order: agreement with the subject, class, goal, incarnation
    /// fence, digests, arguments.
    fn check(&self, request: &EndpointRequest, subject: &RequestSubject) -> Result<Asked, EpError> {
        request.agree_with(subject)?;
        if request.class != CallClass::Ephemeral {
            return Err(EpError::new(EpCode::ClassMismatch, "the commands of this endpoint are ephemeral"));
        }
        if request.goal_id.is_some() {
            return Err(EpError::bad_request("the commands of this endpoint start no goal"));
        }
        if subject.command.as_str() == DESCRIBE {
            return match subject.target {
                SubjectTarget::Untargeted => Ok(Asked::Describe),
                _ => Err(EpError::new(EpCode::TargetMismatch, "describe acts on no agent")),
            };
        }
        if subject.command.as_str() != RETIRE_LIFECYCLE {
            return Err(EpError::unimplemented("this endpoint has no such command"));
        }
        request.check_bind(&self.serves.instance, self.serves.epoch)?;
        if request.op.input_digest.as_ref() != Some(&self.input)
            || request.op.output_digest.as_ref() != Some(&self.output)
        {
            return Err(EpError::new(
                EpCode::ContractMismatch,
                "the request is of another contract than this endpoint serves; describe it again",
            ));
        }
        RetireArgs::read(&request.args).map(Asked::Retire)
    }
}

/// A body, read once. A refusal goes with the id that its answer carries: the request's own where it has one, else its
/// nonce, which is one too; `None` when neither is, and nobody can be answered.
fn read(payload: &[u8], subject: &RequestSubject) -> Result<EndpointRequest, (EpError, Option<IdToken>)> {
    let nonce = || IdToken::parse(subject.nonce.as_str()).ok();
    if payload.len() > MAX_REQUEST_BYTES {
        let why = format!("a request to this endpoint may have {MAX_REQUEST_BYTES} bytes at most");
        return Err((EpError::bad_request(why), nonce()));
    }
    let body: Value = serde_json::from_slice(payload)
        .map_err(|_| (EpError::bad_request("a request must be valid JSON"), nonce()))?;
    EndpointRequest::read(&body).map_err(|refusal| {
        let own = body.get("id").and_then(Value::as_str).and_then(|id| IdToken::parse(id).ok());
        (refusal, own.or_else(nonce))
    })
}

// === driving ==================================================================================================

impl Serving {
    pub(super) fn new(
        connection: Connection,
        space: SpaceToken,
        serves: AuthIncarnation,
        contract: &AuthContract,
        port: Arc<dyn RetireOnRail>,
    ) -> Self {
        let (input, output) = (contract.input_digest().clone(), contract.output_digest().clone());
        Self {
            connection,
            rules: Rules { space, serves, input, output },
            descriptor: contract.descriptor().to_value(),
            port,
            slots: Arc::new(Semaphore::new(MAX_HANDLED)),
        }
    }

    /// Takes one message: answers at once what needs no read, and gives back the rest, to be run beside others.
    pub(super) async fn receive(
        self: &Arc<Self>,
        message: &Message,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let received = Instant::now();
        let subject = self.rules.hears(&message.subject)?;
        let request = match read(&message.payload, &subject) {
            Ok(request) => request,
            Err((refusal, id)) => {
                let call = Call { subject, id: id?, reply_expected: true };
                self.answer(&call, Err((refusal, Outcome::NotExecuted))).await;
                return None;
            }
        };
        let asked = self.rules.check(&request, &subject);
        let EndpointRequest { id, reply_expected, deadline_ms, .. } = request;
        let call = Call { subject, id, reply_expected };
        let refusal = match asked {
            Ok(Asked::Describe) => {
                self.answer(&call, Ok(self.descriptor.clone())).await;
                return None;
            }
            Ok(Asked::Retire(args)) => match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(slot) => {
                    let wait = deadline_ms.map_or(DEFAULT_WAIT, Duration::from_millis).min(MAX_WAIT);
                    return Some(Arc::clone(self).handle(call, args, received + wait, slot));
                }
                Err(_) => EpError::new(
                    EpCode::ResourceExhausted,
                    format!("the auth endpoint handles {MAX_HANDLED} retirements already; ask again"),
                ),
            },
            Err(refusal) => refusal,
        };
        self.answer(&call, Err((refusal, Outcome::NotExecuted))).await;
        None
    }

    async fn handle(
        self: Arc<Self>,
        call: Call,
        args: RetireArgs,
        until: Instant,
        _slot: OwnedSemaphorePermit,
    ) {
        let answered = self.retire(&call.subject, &args, until).await;
        let (caller, target) = (&call.subject.caller.principal, call.subject.target.triple());
        let target = target.map(|triple| format!("{}@{}", triple.principal, triple.lifecycle_uid));
        match &answered {
            Ok(_) => tracing::info!(%caller, target, "auth rail: retired"),
            Err((refusal, outcome)) => {
                tracing::info!(%caller, target, %refusal, ?outcome, "auth rail: not retired");
            }
        }
        self.answer(&call, answered).await;
    }

    async fn retire(&self, subject: &RequestSubject, args: &RetireArgs, until: Instant) -> Answered {
        let too_late = |what: &str| EpError::new(EpCode::DeadlineExceeded, what);
        let admission = admit(&*self.port, &subject.caller.principal, &subject.target, args);
        // A flight starts without waiting, as the last step: one that ran out of time before it moved nothing.
        let admitted = timeout_at(until, admission)
            .await
            .unwrap_or_else(|_| Err(too_late("retire-lifecycle: the deadline passed before it began")))
            .map_err(|refusal| (refusal, Outcome::NotExecuted))?;
        let (retiring, flight) = match admitted {
            Admitted::Retired(result) => return Ok(result),
            Admitted::InFlight(retiring, flight) => (retiring, flight),
        };
        match timeout_at(until, flight.landed()).await {
            Ok(Ok(report)) => Ok(result(&retiring.uid, &retiring.op, &report)),
            Ok(Err(RetirementFailure { error, began })) => {
                Err((error, if began { Outcome::Unknown } else { Outcome::NotExecuted }))
            }
            Err(_) => Err((
                too_late(
                    "retire-lifecycle: the deadline passed while the barrier runs; ask again to join it",
                ),
                Outcome::Unknown,
            )),
        }
    }

    /// Answers on the rail that the request came in on, under this incarnation's coordinates; a transport reply-to is
    /// never looked at. A cast is not answered.
    async fn answer(&self, call: &Call, answered: Answered) {
        if !call.reply_expected {
            return;
        }
        let reply = match answered {
            Ok(data) => EndpointReply::ok(call.id.clone(), Some(data)),
            Err((refusal, outcome)) => EndpointReply::failed(call.id.clone(), refusal, outcome),
        };
        let AuthIncarnation { instance, epoch } = &self.rules.serves;
        let Ok(to) = call.subject.reply(instance, *epoch).build() else {
            tracing::warn!("auth rail: a request whose reply subject would be too long is not answered");
            return;
        };
        if let Err(error) = self.connection.publish(&to, &[], Bytes::from(reply.to_bytes())).await {
            tracing::warn!(%error, "auth rail: an answer was not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::{InstanceId, canonical::VOID_CLOSURE_DIGEST};
    use serde_json::json;

    use super::*;

    const A: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
    const IID: &str = "iiiiiiiiiiiiiiiiiiiiiiiiii";
    const NONCE: &str = "nnnnnnnnnnnnnnnnnnnnnn";

    fn rules() -> Rules {
        let contract = AuthContract::new().unwrap();
        Rules {
            space: SpaceToken::parse("main").unwrap(),
            serves: AuthIncarnation { instance: InstanceId::parse(IID).unwrap(), epoch: 3 },
            input: contract.input_digest().clone(),
            output: contract.output_digest().clone(),
        }
    }

    fn subject(middle: &str) -> RequestSubject {
        RequestSubject::parse(&format!("cotal.main.ep.one.auth.{middle}.{A}.alice.{UID}.{NONCE}")).unwrap()
    }

    fn retire_subject() -> RequestSubject {
        subject(&format!("retire-lifecycle.exact.{A}.bob.{UID}"))
    }

    fn good() -> Value {
        let rules = rules();
        json!({
            "v": 1, "id": "r1",
            "op": {
                "endpoint": "auth", "command": "retire-lifecycle",
                "inputDigest": rules.input, "outputDigest": rules.output,
            },
            "class": "ephemeral", "replyExpected": true, "deadlineMs": 1000,
            "target": { "owner": A, "actor": "bob", "lifecycleUid": UID },
            "bind": { "instanceId": IID, "epoch": 3 },
            "args": { "opId": "o", "serveEndpoint": "manager", "serveInstanceId": IID, "serveEpoch": 1 },
            "from": { "id": format!("{A}.alice"), "name": "Alice" },
        })
    }

    fn check(body: &Value, subject: &RequestSubject) -> Result<Asked, EpError> {
        rules().check(&EndpointRequest::parse(body.to_string().as_bytes()).unwrap(), subject)
    }

    #[test]
    fn a_request_that_agrees_is_asked_of_the_handler() {
        assert!(matches!(check(&good(), &retire_subject()), Ok(Asked::Retire(_))));
        let mut unbound = good();
        unbound.as_object_mut().unwrap().remove("bind");
        assert!(matches!(check(&unbound, &retire_subject()), Ok(Asked::Retire(_))));
    }

    #[test]
    fn each_check_refuses_with_its_code_and_the_earlier_one_wins() {
        let rows: Vec<(&str, Value, EpCode)> = vec![
            ("/op/endpoint", json!("manager"), EpCode::OpMismatch),
            ("/op/command", json!("despawn"), EpCode::OpMismatch),
            ("/target/actor", json!("eve"), EpCode::TargetMismatch),
            ("/from/id", json!(format!("{A}.eve")), EpCode::SenderMismatch),
            ("/class", json!("journal"), EpCode::ClassMismatch),
            ("/goalId", json!("g1"), EpCode::BadRequest),
            ("/bind/instanceId", json!("j".repeat(26)), EpCode::FailedPrecondition),
            ("/bind/epoch", json!(4), EpCode::Expired),
            ("/op/inputDigest", json!(VOID_CLOSURE_DIGEST), EpCode::ContractMismatch),
            ("/op/outputDigest", json!(VOID_CLOSURE_DIGEST), EpCode::ContractMismatch),
            ("/args", Value::Null, EpCode::BadRequest),
        ];
        let broken = |body: &mut Value, (pointer, value, _): &(&str, Value, EpCode)| {
            let (parent, member) = pointer.rsplit_once('/').unwrap();
            body.pointer_mut(parent).unwrap()[member] = value.clone();
            if *pointer == "/class" {
                body["replyExpected"] = false.into();
            }
        };
        for (at, first) in rows.iter().enumerate() {
            let mut body = good();
            broken(&mut body, first);
            assert_eq!(check(&body, &retire_subject()).unwrap_err().code, first.2, "{}", first.0);
            for second in &rows[at + 1..] {
                let mut body = good();
                broken(&mut body, first);
                broken(&mut body, second);
                let refused = check(&body, &retire_subject()).unwrap_err();
                assert_eq!(refused.code, first.2, "{} before {}: {refused}", first.0, second.0);
            }
        }
    }

    #[test]
    fn describe_needs_no_digest_and_no_right_and_acts_on_nobody() {
        let mut body = good();
        body["op"] = json!({ "endpoint": "auth", "command": "describe" });
        for member in ["bind", "args"] {
            body.as_object_mut().unwrap().remove(member);
        }
        let self_target = check(&body, &subject(&format!("describe.exact.{A}.bob.{UID}")));
        assert_eq!(self_target.unwrap_err().code, EpCode::TargetMismatch);
        body.as_object_mut().unwrap().remove("target");
        assert_eq!(check(&body, &subject("describe")), Ok(Asked::Describe));
        assert_eq!(check(&body, &subject("describe.self")).unwrap_err().code, EpCode::TargetMismatch);
    }

    #[test]
    fn only_subjects_of_this_space_endpoint_and_instance_have_a_sender() {
        let rules = rules();
        let heard = |subject: &str| rules.hears(subject).is_some();
        let tail = format!("{A}.alice.{UID}");
        let generation = "0".repeat(32);
        assert!(heard(&format!("cotal.main.ep.one.auth.describe.{tail}.{NONCE}")));
        assert!(heard(&format!("cotal.main.ep.all.auth.describe.{tail}.{NONCE}")));
        assert!(heard(&format!("cotal.main.ep.inst.auth.{IID}.describe.{tail}.{NONCE}")));
        assert!(heard(&format!("cotal.main.ep.v1.one.auth.describe.{tail}.{generation}.{NONCE}")));
        for subject in [
            format!("cotal.other.ep.one.auth.describe.{tail}.{NONCE}"),
            format!("cotal.main.ep.one.manager.describe.{tail}.{NONCE}"),
            format!("cotal.main.ep.inst.auth.{}.describe.{tail}.{NONCE}", "j".repeat(26)),
            format!("cotal.main.ep.one.auth.describe.{tail}.short"),
            format!("cotal.main.ep.one.auth.describe.{tail}.{NONCE}.more"),
        ] {
            assert!(!heard(&subject), "{subject}");
        }
    }

    #[test]
    fn an_unreadable_request_is_answered_by_its_id_or_by_its_nonce() {
        let subject = retire_subject();
        // Whatever names no version is of another one, the retired rail's bodies among it (contract 02 §4.1, 03 §A).
        for (payload, code, id) in [
            (r#"{"op":"retire","args":{},"id":"mine"}"#, EpCode::UnsupportedVersion, "mine"),
            (r#"{"op":"retire","args":{}}"#, EpCode::UnsupportedVersion, NONCE),
            (r#"{"id":"a b"}"#, EpCode::UnsupportedVersion, NONCE),
            ("\u{fffd}", EpCode::BadRequest, NONCE),
            ("", EpCode::BadRequest, NONCE),
        ] {
            let (refusal, carries) = read(payload.as_bytes(), &subject).unwrap_err();
            assert_eq!((refusal.code, carries.unwrap().as_str()), (code, id), "{payload}");
        }
    }

    #[test]
    fn a_body_of_more_than_64_kib_is_refused_unread() {
        let subject = retire_subject();
        let mut body = good().to_string();
        body.extend(std::iter::repeat_n(' ', MAX_REQUEST_BYTES - body.len()));
        assert!(read(body.as_bytes(), &subject).is_ok());
        body.push(' ');
        let (refusal, carries) = read(body.as_bytes(), &subject).unwrap_err();
        assert!(refusal.code == EpCode::BadRequest && refusal.message.contains("65536"), "{refusal}");
        assert_eq!(carries.unwrap().as_str(), NONCE, "its own id was not read");
    }
}
