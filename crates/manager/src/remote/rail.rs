//! Calls over an endpoint rail: what an endpoint is, and the one command that ends an agent (contract 02 §4, 05 §11).

use std::time::Duration;

use bytes::Bytes;
use cotal_broker::{Connection, Subscription};
use cotal_wire::{
    Command, DigestRef, EndpointName, Entropy, EpCode, EpError, IdToken, InstanceId, LifecycleUid, Names,
    Nonce, OpId, Principal, Space,
    canonical::single_document_closure,
    contract::ClusterDocument,
    endpoint_subject::{EndpointCaller, Rail, ReplySubject, RequestSubject, SubjectTarget, TargetTriple},
    endpoint_token::DESCRIBE,
    envelope::{CallClass, ENVELOPE_VERSION, EndpointReply, ReplyCode, ReplyError},
    manager_authority::Incarnation,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

/// How long a description may take.
const DESCRIBE_WITHIN: Duration = Duration::from_secs(10);
/// How long one ask for a retirement waits; a barrier that takes longer is joined by the next.
const RETIRE_WITHIN: Duration = Duration::from_secs(60);
/// How often a retirement is asked for while its barrier runs.
const RETIRE_ASKS: usize = 10;

/// Who calls, over which connection.
pub struct RailCaller<'a> {
    /// The connection, whose grant names what it may ask.
    pub connection: &'a Connection,
    /// The space.
    pub space: &'a Space,
    /// Principal and lifecycle, as the credential says.
    pub caller: EndpointCaller,
    /// Randomness.
    pub entropy: &'a dyn Entropy,
}

/// Which incarnation of a manager asks for the end of an agent of its.
pub struct ServedBy<'a> {
    /// Its endpoint.
    pub endpoint: &'a EndpointName,
    /// The instance.
    pub instance: &'a InstanceId,
    /// The epoch that its registration committed.
    pub epoch: u64,
}

/// What an endpoint said of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// Which instance answered.
    pub by: ReplySubject,
    /// The descriptor.
    pub descriptor: Value,
}

impl RailCaller<'_> {
    /// Asks once and waits for the answer of whoever serves.
    async fn call(
        &self,
        endpoint: &EndpointName,
        target: SubjectTarget,
        op: Value,
        command: Command,
        args: Option<Value>,
        within: Duration,
    ) -> Result<(ReplySubject, Result<Value, ReplyError>), EpError> {
        let nonce = LifecycleUid::mint(self.entropy);
        let nonce =
            Nonce::parse(nonce.as_str()).map_err(|_| EpError::internal("a lifecycle token is a nonce"))?;
        let id = IdToken::parse(nonce.as_str()).map_err(|_| EpError::internal("a nonce is an id"))?;
        let subject = RequestSubject {
            space: self.space.token(),
            rail: Rail::One,
            endpoint: endpoint.token(),
            command,
            target: target.clone(),
            caller: self.caller.clone(),
            nonce: nonce.clone(),
        };
        let mut body = json!({
            "v": ENVELOPE_VERSION,
            "id": id,
            "op": op,
            "class": CallClass::Ephemeral.as_str(),
            "replyExpected": true,
            "deadlineMs": u64::try_from(within.as_millis()).unwrap_or(u64::MAX),
            "from": { "id": self.caller.principal.key(), "name": self.caller.principal.actor },
        });
        if let Some(args) = args {
            body["args"] = args;
        }
        if let Some(triple) = target.triple() {
            body["target"] = json!({
                "owner": triple.principal.owner, "actor": triple.principal.actor, "lifecycleUid": triple.lifecycle_uid,
            });
        }
        let subject = subject.build().map_err(|why| EpError::bad_request(why.to_string()))?;
        let until = Instant::now() + within;
        let mut answers = self.connection.subscribe(&self.replies(endpoint, &nonce), None).await?;
        self.connection.publish(&subject, &[], Bytes::from(body.to_string())).await?;
        self.connection.flush().await?;
        let answer = timeout_at(until, self.answer(&mut answers, endpoint, &nonce, &id)).await;
        answer.unwrap_or_else(|_| {
            Err(EpError::unavailable(format!(
                "endpoint {endpoint} did not answer within {} s",
                within.as_secs()
            )))
        })
    }

    /// Where this call's answer comes, from whichever instance at whichever epoch: the request's own nonce ends it.
    fn replies(&self, endpoint: &EndpointName, nonce: &Nonce) -> String {
        let prefix = Names::new(&self.space.token()).subject_prefix();
        let EndpointCaller { principal, lifecycle_uid, generation } = &self.caller;
        let (rail, generation) = match generation {
            Some(generation) => ("ep.v1", format!(".{generation}")),
            None => ("ep", String::new()),
        };
        format!(
            "{prefix}.{rail}.reply.{}.*.*.{}.{}.{lifecycle_uid}{generation}.{nonce}",
            endpoint.token(),
            principal.owner,
            principal.actor
        )
    }

    /// The first answer that is one: of that endpoint, to this caller and nonce, with this id.
    async fn answer(
        &self,
        answers: &mut Subscription,
        endpoint: &EndpointName,
        nonce: &Nonce,
        id: &IdToken,
    ) -> Result<(ReplySubject, Result<Value, ReplyError>), EpError> {
        while let Some(message) = answers.next().await {
            let Some(by) = ReplySubject::parse(&message.subject) else { continue };
            if by.endpoint != endpoint.token() || by.caller != self.caller || by.nonce != *nonce {
                continue;
            }
            let reply = EndpointReply::parse(&message.payload)?;
            if reply.id == *id {
                return Ok((by, reply.result.map(Option::unwrap_or_default)));
            }
        }
        Err(EpError::unavailable(format!("the connection ended before endpoint {endpoint} answered")))
    }

    /// What an endpoint is.
    pub async fn describe(&self, endpoint: &EndpointName) -> Result<Described, EpError> {
        let command = Command::parse(DESCRIBE).map_err(|_| EpError::internal("describe is a command"))?;
        let op = json!({ "endpoint": endpoint, "command": DESCRIBE });
        let answered =
            self.call(endpoint, SubjectTarget::Untargeted, op, command, None, DESCRIBE_WITHIN).await?;
        match answered {
            (by, Ok(descriptor)) => Ok(Described { by, descriptor }),
            (_, Err(refusal)) => Err(refused(endpoint, &refusal)),
        }
    }

    /// Ends an agent: asks the auth endpoint for the one operation that retires it, and again while its barrier runs.
    /// Returns once it is retired for good.
    pub async fn retire(&self, agent: &Incarnation, by: &ServedBy<'_>) -> Result<(), EpError> {
        let auth = EndpointName::auth();
        let described = self.describe(&auth).await?;
        let command = Command::retire_lifecycle();
        let (input, output) = digests(&described.descriptor, &command)?;
        let target = SubjectTarget::Handle(TargetTriple {
            principal: Principal::new(agent.owner.clone(), agent.actor.clone()),
            lifecycle_uid: agent.lifecycle_uid.clone(),
        });
        let op_id = OpId::managed_retirement(&agent.lifecycle_uid);
        let op =
            json!({ "endpoint": auth, "command": command, "inputDigest": input, "outputDigest": output });
        let args = json!({
            "opId": op_id, "serveEndpoint": by.endpoint, "serveInstanceId": by.instance, "serveEpoch": by.epoch,
        });
        let mut last = EpError::unavailable("the retirement was not asked for");
        for _ in 0..RETIRE_ASKS {
            let asked = self.call(
                &auth,
                target.clone(),
                op.clone(),
                command.clone(),
                Some(args.clone()),
                RETIRE_WITHIN,
            );
            match asked.await?.1 {
                Ok(done) => return confirmed(&done, agent, &op_id),
                // The barrier runs on; asking again joins it.
                Err(refusal) if refusal.code == ReplyCode::Catalog(EpCode::DeadlineExceeded) => {
                    last = refused(&auth, &refusal);
                }
                Err(refusal) => return Err(refused(&auth, &refusal)),
            }
        }
        Err(last)
    }
}

/// Whether the answer says that exactly this agent is retired, by exactly this operation.
fn confirmed(done: &Value, agent: &Incarnation, op: &OpId) -> Result<(), EpError> {
    let is = |member: &str, value: &str| done.get(member).and_then(Value::as_str) == Some(value);
    if done.get("retired") == Some(&Value::Bool(true))
        && is("lifecycleUid", agent.lifecycle_uid.as_str())
        && is("opId", op.as_str())
    {
        Ok(())
    } else {
        Err(EpError::internal(
            "the auth endpoint's answer does not say that this agent is retired; ask again",
        ))
    }
}

/// The digests that a described command pins, when the document that declares it is the one that its digest closes.
fn digests(descriptor: &Value, command: &Command) -> Result<(DigestRef, DigestRef), EpError> {
    let clusters =
        descriptor.get("clusters").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for cluster in clusters {
        let Some(document) = cluster.get("document") else { continue };
        let closes = single_document_closure(document).is_ok_and(|closed| {
            cluster.get("digest").and_then(Value::as_str) == Some(closed.closure.as_str())
        });
        let Ok(parsed) = ClusterDocument::parse(document.clone()) else { continue };
        if let Some(declared) = parsed.commands().iter().find(|declared| declared.name == *command)
            && closes
        {
            return Ok((declared.input_digest.clone(), declared.output_digest.clone()));
        }
    }
    Err(EpError::new(
        EpCode::ContractMismatch,
        format!("the auth endpoint describes no command {command}; both sides must be of one version"),
    ))
}

/// The endpoint's own sentence, at the end.
fn refused(endpoint: &EndpointName, refusal: &ReplyError) -> EpError {
    let code = match &refusal.code {
        ReplyCode::Catalog(code) => *code,
        ReplyCode::Foreign(_) => EpCode::Internal,
    };
    EpError::new(code, format!("endpoint {endpoint} refuses: {}", refusal.message))
}

#[cfg(test)]
mod tests {
    use cotal_authority::rail::contract::AuthContract;
    use cotal_wire::{Actor, Owner};

    use super::*;

    #[test]
    fn a_described_command_counts_only_when_its_digest_closes_its_document() {
        let contract = AuthContract::new().unwrap();
        let command = Command::retire_lifecycle();
        let mut described = contract.descriptor().to_value();
        let (input, output) = digests(&described, &command).unwrap();
        assert_eq!((&input, &output), (contract.input_digest(), contract.output_digest()));
        described["clusters"][0]["document"]["revision"] = 2.into();
        assert_eq!(digests(&described, &command).unwrap_err().code, EpCode::ContractMismatch);
        assert!(
            digests(&json!({}), &command).is_err() && digests(&json!({"clusters": 3}), &command).is_err()
        );
    }

    #[test]
    fn a_retirement_is_confirmed_for_exactly_its_agent_and_operation() {
        let agent = Incarnation {
            owner: Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap(),
            actor: Actor::parse("bob").unwrap(),
            lifecycle_uid: LifecycleUid::parse(&"t".repeat(26)).unwrap(),
        };
        let op = OpId::managed_retirement(&agent.lifecycle_uid);
        let good = json!({ "retired": true, "lifecycleUid": agent.lifecycle_uid, "opId": op, "evictedPrincipals": [] });
        assert!(confirmed(&good, &agent, &op).is_ok());
        for (member, value) in [
            ("retired", json!(false)),
            ("retired", json!("true")),
            ("lifecycleUid", json!("x")),
            ("opId", json!("x")),
        ] {
            let mut bad = good.clone();
            bad[member] = value;
            assert!(confirmed(&bad, &agent, &op).is_err(), "{member}");
        }
        assert!(confirmed(&Value::Null, &agent, &op).is_err());
    }
}
