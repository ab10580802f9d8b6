//! The manager endpoint of this participant, served with the serve credential: a conforming endpoint that describes itself
//! and answers `ping` (contract 02 §2.1, §4).

use std::sync::Arc;

use bytes::Bytes;
use cotal_broker::{Connection, CredsConnector, Message, RenewableCreds, Subscription};
use cotal_wire::{
    Command, EpCode, EpError, IdToken, InstanceId, Names, Owner, Space, SpaceToken,
    endpoint_subject::{Rail, RequestSubject, SubjectTarget},
    endpoint_token::{DESCRIBE, EndpointToken},
    envelope::{CallClass, EndpointReply, EndpointRequest, MAX_REQUEST_BYTES, Outcome, RequestArgs},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::contract::{self, ManagerContract, PING};

/// Which incarnation serves, for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serves {
    /// The space.
    pub space: Space,
    /// The owner.
    pub owner: Owner,
    /// The instance.
    pub instance: InstanceId,
    /// The epoch that its registration committed.
    pub epoch: u64,
}

/// An open endpoint. Dropped, it hears nothing more; [`Self::close`] waits for its connection's end.
pub struct ManagerEndpoint {
    connection: Connection,
    listeners: Mutex<JoinSet<()>>,
}

/// What a request is held against, and what it is answered with.
struct Rules {
    space: SpaceToken,
    endpoint: EndpointToken,
    serves: Serves,
    contract: ManagerContract,
    descriptor: Value,
}

impl Rules {
    fn new(serves: Serves, contract: &ManagerContract) -> Result<Self, EpError> {
        Ok(Self {
            space: serves.space.token(),
            endpoint: contract::endpoint()?.token(),
            descriptor: contract.descriptor(&serves.owner)?.to_value(),
            contract: contract.clone(),
            serves,
        })
    }

    /// A request that this incarnation must answer; anything else names no sender, or somebody else.
    fn hears(&self, subject: &str) -> Option<RequestSubject> {
        RequestSubject::parse(subject).filter(|parsed| {
            parsed.space == self.space
                && parsed.endpoint == self.endpoint
                && match &parsed.rail {
                    Rail::One | Rail::All => true,
                    Rail::Instance(instance) => *instance == self.serves.instance,
                }
        })
    }

    /// The answer, or the first refusal in the contract's order: agreement with the subject, class, goal, target,
    /// incarnation, digests, arguments.
    fn answer(&self, request: &EndpointRequest, subject: &RequestSubject) -> Result<Value, EpError> {
        request.agree_with(subject)?;
        if request.class != CallClass::Ephemeral {
            return Err(EpError::new(EpCode::ClassMismatch, "the commands of this endpoint are ephemeral"));
        }
        if request.goal_id.is_some() {
            return Err(EpError::bad_request("the commands of this endpoint start no goal"));
        }
        if subject.target != SubjectTarget::Untargeted {
            return Err(EpError::new(
                EpCode::TargetMismatch,
                "the commands of this endpoint act on no agent",
            ));
        }
        if subject.command.as_str() == DESCRIBE {
            return Ok(self.descriptor.clone());
        }
        let Some((input, output)) = self.contract.digests(&subject.command) else {
            return Err(EpError::unimplemented("this manager has no such command"));
        };
        request.check_bind(&self.serves.instance, self.serves.epoch)?;
        if request.op.input_digest.as_ref() != Some(input)
            || request.op.output_digest.as_ref() != Some(output)
        {
            return Err(EpError::new(
                EpCode::ContractMismatch,
                "the request is of another contract than this endpoint serves; describe it again",
            ));
        }
        match subject.command.as_str() {
            PING => match request.args {
                RequestArgs::Absent | RequestArgs::Null => {
                    Ok(json!({ "instanceId": self.serves.instance, "epoch": self.serves.epoch }))
                }
                RequestArgs::Object(_) => Err(EpError::bad_request("ping takes no arguments")),
            },
            _ => Err(EpError::unimplemented("this manager has no such command")),
        }
    }

    /// Where a message is answered, and with what; `None` for what nobody waits for, or nobody sent.
    fn reply(&self, subject: &str, payload: &[u8]) -> Option<(String, EndpointReply)> {
        let subject = self.hears(subject)?;
        let nonce = || IdToken::parse(subject.nonce.as_str()).ok();
        let to = subject.reply(&self.serves.instance, self.serves.epoch).build().ok()?;
        let refuse = |id: Option<IdToken>, refusal: EpError| {
            Some((to.clone(), EndpointReply::failed(id?, refusal, Outcome::NotExecuted)))
        };
        if payload.len() > MAX_REQUEST_BYTES {
            let why = format!("a request to this endpoint may have {MAX_REQUEST_BYTES} bytes at most");
            return refuse(nonce(), EpError::bad_request(why));
        }
        let Ok(body) = serde_json::from_slice::<Value>(payload) else {
            return refuse(nonce(), EpError::bad_request("a request must be valid JSON"));
        };
        let request = match EndpointRequest::read(&body) {
            Ok(request) => request,
            Err(refusal) => {
                let own = body.get("id").and_then(Value::as_str).and_then(|id| IdToken::parse(id).ok());
                return refuse(own.or_else(nonce), refusal);
            }
        };
        let answered = self.answer(&request, &subject);
        if !request.reply_expected {
            return None;
        }
        let reply = match answered {
            Ok(data) => EndpointReply::ok(request.id, Some(data)),
            Err(refusal) => EndpointReply::failed(request.id, refusal, Outcome::NotExecuted),
        };
        Some((to, reply))
    }

    /// What is subscribed to: each command on the class, scatter and instance rails, plain and issued. The class rail is
    /// heard in the endpoint's queue group alone.
    fn subjects(&self) -> Vec<(String, Option<String>)> {
        let prefix = Names::new(&self.space).subject_prefix();
        let (endpoint, instance) = (&self.endpoint, &self.serves.instance);
        let mut subjects = Vec::new();
        for rail in ["ep", "ep.v1"] {
            for command in self.contract.commands().map(Command::as_str).chain([DESCRIBE]) {
                subjects.extend([
                    (format!("{prefix}.{rail}.one.{endpoint}.{command}.>"), Some(endpoint.to_string())),
                    (format!("{prefix}.{rail}.all.{endpoint}.{command}.>"), None),
                    (format!("{prefix}.{rail}.inst.{endpoint}.{instance}.{command}.>"), None),
                ]);
            }
        }
        subjects
    }
}

impl ManagerEndpoint {
    /// Opens the serving connection and hears from here on. Each session presents the newest serve credential.
    pub async fn open(
        connector: &CredsConnector,
        creds: &RenewableCreds,
        serves: Serves,
        contract: &ManagerContract,
    ) -> Result<Self, EpError> {
        let label = super::label("manager-serve", &serves.space);
        let rules = Arc::new(Rules::new(serves, contract)?);
        let connection = Box::pin(connector.open_standing(label, creds)).await?;
        match Self::hear(&connection, &rules).await {
            Ok(listeners) => Ok(Self { connection, listeners: Mutex::new(listeners) }),
            Err(refusal) => {
                let _ = connection.close().await;
                Err(refusal)
            }
        }
    }

    async fn hear(connection: &Connection, rules: &Arc<Rules>) -> Result<JoinSet<()>, EpError> {
        let mut listeners = JoinSet::new();
        for (subject, queue) in rules.subjects() {
            let subscription = connection.subscribe(&subject, queue.as_deref()).await?;
            listeners.spawn(listen(connection.clone(), Arc::clone(rules), subscription));
        }
        // The broker took every subscription, or says which it did not.
        connection.flush().await?;
        Ok(listeners)
    }

    /// The serving connection, to which a renewed credential is pushed.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Hears nothing more, and ends its connection.
    pub async fn close(&self) -> Result<(), EpError> {
        self.listeners.lock().abort_all();
        self.connection.close().await
    }
}

async fn listen(connection: Connection, rules: Arc<Rules>, mut subscription: Subscription) {
    while let Some(Message { subject, payload, .. }) = subscription.next().await {
        let Some((to, reply)) = rules.reply(&subject, &payload) else { continue };
        if let Err(error) = connection.publish(&to, &[], Bytes::from(reply.to_bytes())).await {
            tracing::warn!(%error, "manager endpoint: an answer was not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cotal_wire::{
        ConnId,
        grants::endpoint_serve::{ServeSurface, endpoint_serve},
    };

    use super::*;

    fn rules() -> Rules {
        let serves = Serves {
            space: Space::parse("main").unwrap(),
            owner: Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap(),
            instance: InstanceId::parse(&"i".repeat(26)).unwrap(),
            epoch: 0,
        };
        Rules::new(serves, &ManagerContract::ping().unwrap()).unwrap()
    }

    fn request(command: &str, rail: &str, more: &Value) -> (String, Vec<u8>) {
        let caller = format!("u_{}.bob", "b".repeat(26));
        let subject = format!("cotal.main.{rail}.{command}.{caller}.{}.{}", "u".repeat(26), "n".repeat(22));
        let contract = ManagerContract::ping().unwrap();
        let (input, output) = contract.digests(&Command::parse(PING).unwrap()).unwrap();
        let mut body = json!({
            "v": 1, "id": "id-1", "class": "ephemeral", "replyExpected": true, "deadlineMs": 100,
            "op": { "endpoint": "manager", "command": command, "inputDigest": input, "outputDigest": output },
            "from": { "id": caller, "name": "bob" },
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (subject, body.to_string().into_bytes())
    }

    fn code(rules: &Rules, (subject, payload): &(String, Vec<u8>)) -> Result<Value, &'static str> {
        let (to, reply) = rules.reply(subject, payload).expect("it is answered");
        assert!(to.starts_with(&format!("cotal.main.ep.reply.manager.{}.0.", "i".repeat(26))), "{to}");
        match reply.result {
            Ok(data) => Ok(data.unwrap_or_default()),
            Err(refusal) => match refusal.code {
                cotal_wire::envelope::ReplyCode::Catalog(code) => Err(code.as_str()),
                cotal_wire::envelope::ReplyCode::Foreign(_) => Err("foreign"),
            },
        }
    }

    #[test]
    fn it_hears_exactly_what_its_serve_credential_grants() {
        let rules = rules();
        let surface = ServeSurface {
            endpoint: rules.endpoint.clone(),
            instance: rules.serves.instance.clone(),
            epoch: 0,
            commands: rules.contract.commands().cloned().collect(),
            journal: false,
            pools: BTreeSet::new(),
        };
        let inbox = ConnId::parse("ibx0123456789").unwrap();
        let granted = endpoint_serve(&rules.space, &inbox, &surface).subscribe.allow;
        for (subject, queue) in rules.subjects() {
            let row = queue.map_or(subject.clone(), |queue| format!("{subject} {queue}"));
            assert!(granted.contains(&row), "{row} is not granted");
        }
    }

    #[test]
    fn it_describes_itself_and_answers_ping_on_every_rail() {
        let rules = rules();
        let instance = "i".repeat(26);
        for rail in
            ["ep.one.manager".to_owned(), "ep.all.manager".into(), format!("ep.inst.manager.{instance}")]
        {
            let described = code(&rules, &request(DESCRIBE, &rail, &json!({}))).unwrap();
            assert_eq!(described["endpoint"], "manager");
            let pong = code(&rules, &request(PING, &rail, &json!({}))).unwrap();
            assert_eq!(pong, json!({ "instanceId": instance, "epoch": 0 }));
        }
    }

    #[test]
    fn what_does_not_agree_is_refused_in_the_contracts_order() {
        let rules = rules();
        let ask = |command: &str, more: Value| code(&rules, &request(command, "ep.one.manager", &more));
        assert_eq!(ask(PING, json!({ "from": { "id": "u_x.y", "name": "n" } })), Err("sender-mismatch"));
        assert_eq!(ask(PING, json!({ "class": "journal", "replyExpected": true })), Err("bad-request"));
        assert_eq!(ask(PING, json!({ "goalId": "g" })), Err("bad-request"));
        assert_eq!(ask("spawn", json!({})), Err("unimplemented"));
        let bind = |epoch: u64| json!({ "bind": { "instanceId": "i".repeat(26), "epoch": epoch } });
        assert_eq!(ask(PING, bind(1)), Err("expired"));
        assert!(ask(PING, bind(0)).is_ok(), "0 is an epoch");
        let void = cotal_wire::canonical::VOID_CLOSURE_DIGEST;
        let op = json!({ "op": { "endpoint": "manager", "command": PING, "inputDigest": void, "outputDigest": void } });
        assert_eq!(ask(PING, op), Err("contract-mismatch"));
        assert_eq!(ask(PING, json!({ "args": { "x": 1 } })), Err("bad-request"));
        assert!(ask(PING, json!({ "args": null })).is_ok());
        let (subject, _) = request(PING, "ep.one.manager", &json!({}));
        for garbled in [&b"{"[..], b"[]", &vec![b' '; MAX_REQUEST_BYTES + 1]] {
            assert_eq!(code(&rules, &(subject.clone(), garbled.to_vec())), Err("bad-request"));
        }
    }

    #[test]
    fn nobody_is_answered_who_is_not_to_be() {
        let rules = rules();
        let (subject, payload) = request(PING, "ep.one.manager", &json!({}));
        for other in [
            subject.replace("cotal.main", "cotal.other"),
            subject.replace(".manager.", ".auth."),
            subject.replace(".one.manager.", &format!(".inst.manager.{}.", "x".repeat(26))),
            format!("{subject}.more"),
            "cotal.main".to_owned(),
        ] {
            assert!(rules.reply(&other, &payload).is_none(), "{other}");
        }
        let (subject, cast) = request(PING, "ep.one.manager", &json!({ "replyExpected": false }));
        assert!(rules.reply(&subject, &cast).is_none(), "a cast");
    }
}
