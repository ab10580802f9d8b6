//! The manager endpoint of this participant, served with the serve credential: a conforming endpoint that describes itself
//! and answers `ping` (contract 02 §2.1, §4), and hands every other command that its contract declares to whoever stands on
//! it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cotal_broker::{Connection, CredsConnector, Message, RenewableCreds, Subscription};
use cotal_wire::{
    Command, EndpointName, EpCode, EpError, IdToken, InstanceId, Names, Owner, Space, SpaceToken,
    contract::{ClusterCommand, CommandMode},
    endpoint_subject::{Rail, RequestSubject, SubjectTarget},
    endpoint_token::{DESCRIBE, EndpointToken},
    envelope::{CallClass, EndpointReply, EndpointRequest, MAX_REQUEST_BYTES, Outcome, RequestArgs},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::contract::{ManagerContract, PING};

/// How many requests on one rail of one command are being answered at once.
const AT_ONCE: usize = 16;

/// A request that this incarnation is to answer: it agrees with its subject, is bound to no other incarnation, and pins the
/// contract that is served.
#[derive(Debug)]
pub struct ServedRequest {
    /// The subject that it came on, as a forward to the host names it.
    pub subject: String,
    /// What the subject says: who asks, for what, about whom. The broker vouches for the caller.
    pub asked: RequestSubject,
    /// The request.
    pub request: EndpointRequest,
}

/// Why a command was not answered, and whether anything was done.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// Why.
    pub error: EpError,
    /// Whether it had an effect.
    pub outcome: Outcome,
}

impl From<EpError> for Refusal {
    /// Nothing was done.
    fn from(error: EpError) -> Self {
        Self { error, outcome: Outcome::NotExecuted }
    }
}

/// The commands of a manager beside `describe` and `ping`: what its contract declares, it answers.
#[async_trait]
pub trait ManagerCommands: Send + Sync {
    /// Answers one request. Its goal and its arguments are this side's to check. Requests of one rail are answered side by
    /// side, a handful at once; those that wait longer than the endpoint lives are not answered.
    async fn answer(&self, request: ServedRequest) -> Result<Value, Refusal>;
}

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
    commands: Option<Arc<dyn ManagerCommands>>,
}

/// What becomes of a message.
enum Heard {
    /// Nobody waits for it, or nobody sent it.
    Nothing,
    /// It is answered at once, there.
    Reply(String, EndpointReply),
    /// Somebody else answers it; there, if an answer is waited for.
    Command { by: Arc<dyn ManagerCommands>, request: Box<ServedRequest>, to: Option<(String, IdToken)> },
}

/// Whose answer a request is.
enum Answer {
    Own(Value),
    Of(Arc<dyn ManagerCommands>),
}

impl Rules {
    fn new(serves: Serves, contract: &ManagerContract, commands: Option<Arc<dyn ManagerCommands>>) -> Self {
        Self {
            space: serves.space.token(),
            endpoint: EndpointName::manager().token(),
            descriptor: contract.descriptor(&serves.owner).to_value(),
            contract: contract.clone(),
            serves,
            commands,
        }
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
    /// incarnation, digests, arguments. A command's goal and arguments are for whoever answers it.
    fn answer(&self, request: &EndpointRequest, subject: &RequestSubject) -> Result<Answer, EpError> {
        request.agree_with(subject)?;
        if request.class != CallClass::Ephemeral {
            return Err(EpError::new(EpCode::ClassMismatch, "the commands of this endpoint are ephemeral"));
        }
        let name = subject.command.as_str();
        if request.goal_id.is_some() && matches!(name, DESCRIBE | PING) {
            return Err(EpError::bad_request("this command starts no goal"));
        }
        let declared = self.contract.command(&subject.command);
        if !acts_on(declared, &subject.target) {
            return Err(EpError::new(EpCode::TargetMismatch, "the command acts on no such target"));
        }
        if name == DESCRIBE {
            return Ok(Answer::Own(self.descriptor.clone()));
        }
        let unknown = || EpError::unimplemented("this manager has no such command");
        let declared = declared.ok_or_else(unknown)?;
        request.check_bind(&self.serves.instance, self.serves.epoch)?;
        if request.op.input_digest.as_ref() != Some(&declared.input_digest)
            || request.op.output_digest.as_ref() != Some(&declared.output_digest)
        {
            return Err(EpError::new(
                EpCode::ContractMismatch,
                "the request is of another contract than this endpoint serves; describe it again",
            ));
        }
        match (name, &request.args) {
            (PING, RequestArgs::Absent | RequestArgs::Null) => {
                Ok(Answer::Own(json!({ "instanceId": self.serves.instance, "epoch": self.serves.epoch })))
            }
            (PING, RequestArgs::Object(_)) => Err(EpError::bad_request("ping takes no arguments")),
            _ => self.commands.clone().map(Answer::Of).ok_or_else(unknown),
        }
    }

    /// What becomes of a message that came on a subject.
    fn hear(&self, on: &str, payload: &[u8]) -> Heard {
        let Some(subject) = self.hears(on) else { return Heard::Nothing };
        let nonce = || IdToken::parse(subject.nonce.as_str()).ok();
        let Ok(to) = subject.reply(&self.serves.instance, self.serves.epoch).build() else {
            return Heard::Nothing;
        };
        let refuse = |id: Option<IdToken>, refusal: EpError| match id {
            Some(id) => Heard::Reply(to.clone(), EndpointReply::failed(id, refusal, Outcome::NotExecuted)),
            None => Heard::Nothing,
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
        match self.answer(&request, &subject) {
            Ok(Answer::Of(by)) => {
                let to = request.reply_expected.then(|| (to, request.id.clone()));
                let request = ServedRequest { subject: on.to_owned(), asked: subject, request };
                Heard::Command { by, request: Box::new(request), to }
            }
            _ if !request.reply_expected => Heard::Nothing,
            Ok(Answer::Own(data)) => Heard::Reply(to, EndpointReply::ok(request.id, Some(data))),
            Err(refusal) => refuse(Some(request.id), refusal),
        }
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

/// Whether a command may be asked for about that: what is declared to act on nobody is not, and what acts on somebody is by a
/// right that it declares.
fn acts_on(declared: Option<&ClusterCommand>, target: &SubjectTarget) -> bool {
    let by = match target {
        SubjectTarget::Untargeted => return declared.is_none_or(|declared| !declared.targeted),
        SubjectTarget::SelfMode => CommandMode::SelfMode,
        SubjectTarget::Owner(_) => CommandMode::Owner,
        SubjectTarget::Any(_) => CommandMode::Any,
        SubjectTarget::Child(_) => CommandMode::Child,
        SubjectTarget::Ledger(_) => CommandMode::Ledger,
        SubjectTarget::Handle(_) => CommandMode::Handle,
        SubjectTarget::Exact(_) => CommandMode::Exact,
    };
    declared.is_some_and(|declared| declared.modes.contains(&by))
}

impl ManagerEndpoint {
    /// Opens the serving connection and hears from here on. Each session presents the newest serve credential. Without
    /// `commands` it answers `describe` and `ping` alone.
    pub async fn open(
        connector: &CredsConnector,
        creds: &RenewableCreds,
        serves: Serves,
        contract: &ManagerContract,
        commands: Option<Arc<dyn ManagerCommands>>,
    ) -> Result<Self, EpError> {
        let label = super::label("manager-serve", &serves.space);
        let rules = Arc::new(Rules::new(serves, contract, commands));
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
    // Ends with this listener.
    let mut answering = JoinSet::new();
    while let Some(Message { subject, payload, .. }) = subscription.next().await {
        match rules.hear(&subject, &payload) {
            Heard::Nothing => {}
            Heard::Reply(to, reply) => send(&connection, &to, &reply).await,
            Heard::Command { by, request, to } => {
                while answering.len() >= AT_ONCE {
                    answering.join_next().await;
                }
                let connection = connection.clone();
                answering.spawn(async move {
                    let answered = by.answer(*request).await;
                    let Some((to, id)) = to else { return };
                    let reply = match answered {
                        Ok(data) => EndpointReply::ok(id, Some(data)),
                        Err(Refusal { error, outcome }) => EndpointReply::failed(id, error, outcome),
                    };
                    send(&connection, &to, &reply).await;
                });
                while answering.try_join_next().is_some() {}
            }
        }
    }
}

async fn send(connection: &Connection, to: &str, reply: &EndpointReply) {
    if let Err(error) = connection.publish(to, &[], Bytes::from(reply.to_bytes())).await {
        tracing::warn!(%error, "manager endpoint: an answer was not sent");
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
        Rules::new(serves, &ManagerContract::ping().unwrap(), None)
    }

    fn request(command: &str, rail: &str, more: &Value) -> (String, Vec<u8>) {
        let caller = format!("u_{}.bob", "b".repeat(26));
        let subject = format!("cotal.main.{rail}.{command}.{caller}.{}.{}", "u".repeat(26), "n".repeat(22));
        let contract = ManagerContract::ping().unwrap();
        let declared = contract.command(&Command::parse(PING).unwrap()).unwrap();
        let (input, output) = (&declared.input_digest, &declared.output_digest);
        let mut body = json!({
            "v": 1, "id": "id-1", "class": "ephemeral", "replyExpected": true, "deadlineMs": 100,
            "op": { "endpoint": "manager", "command": command, "inputDigest": input, "outputDigest": output },
            "from": { "id": caller, "name": "bob" },
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (subject, body.to_string().into_bytes())
    }

    fn code(rules: &Rules, (subject, payload): &(String, Vec<u8>)) -> Result<Value, &'static str> {
        let Heard::Reply(to, reply) = rules.hear(subject, payload) else { panic!("it is answered") };
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
            assert!(matches!(rules.hear(&other, &payload), Heard::Nothing), "{other}");
        }
        let (subject, cast) = request(PING, "ep.one.manager", &json!({ "replyExpected": false }));
        assert!(matches!(rules.hear(&subject, &cast), Heard::Nothing), "a cast");
    }

    struct Echo;

    #[async_trait]
    impl ManagerCommands for Echo {
        async fn answer(&self, request: ServedRequest) -> Result<Value, Refusal> {
            Ok(json!(request.subject))
        }
    }

    /// `run-start` acts on nobody, `run-answer` on its caller.
    fn of_runs(commands: Option<Arc<dyn ManagerCommands>>) -> Rules {
        let void = cotal_wire::canonical::VOID_CLOSURE_DIGEST;
        let command = |name: &str, targeted: bool| {
            let mut command = json!({
                "name": name, "class": "ephemeral", "targeted": targeted, "capability": "run", "inputDigest": void,
                "outputDigest": void,
            });
            if targeted {
                command["modes"] = json!(["self"]);
            }
            command
        };
        let declared = [command("run-start", false), command("run-answer", true)];
        let contract = ManagerContract::of(1, &declared, []).unwrap();
        Rules::new(rules().serves, &contract, commands)
    }

    #[tokio::test]
    async fn a_declared_command_is_handed_on_with_its_subject_and_about_its_declared_target_alone() {
        let rules = of_runs(Some(Arc::new(Echo)));
        let void = cotal_wire::canonical::VOID_CLOSURE_DIGEST;
        let op = |command: &str| json!({ "endpoint": "manager", "command": command, "inputDigest": void, "outputDigest": void });
        let asking = |command: &str, targeted: &str, more: Value| {
            let (subject, payload) = request(command, "ep.one.manager", &json!({ "op": op(command) }));
            let mut body: Value = serde_json::from_slice(&payload).unwrap();
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let subject = subject.replace(&format!(".{command}."), &format!(".{command}{targeted}."));
            (subject, body.to_string().into_bytes())
        };
        for (command, targeted) in [("run-start", ""), ("run-answer", ".self")] {
            let (subject, payload) = asking(command, targeted, json!({ "goalId": "g", "args": { "x": 1 } }));
            let Heard::Command { by, request, to } = rules.hear(&subject, &payload) else {
                panic!("{command} is handed on")
            };
            assert_eq!(to.expect("an answer is waited for").1.as_str(), "id-1");
            assert_eq!(by.answer(*request).await, Ok(json!(subject)));
        }
        let (subject, cast) = asking("run-start", "", json!({ "replyExpected": false }));
        assert!(matches!(rules.hear(&subject, &cast), Heard::Command { to: None, .. }), "a cast is served");

        let refused =
            |command: &str, targeted: &str, more: Value| code(&rules, &asking(command, targeted, more));
        assert_eq!(refused("run-start", ".self", json!({})), Err("target-mismatch"));
        assert_eq!(refused("run-answer", "", json!({})), Err("target-mismatch"));
        let bind = json!({ "bind": { "instanceId": "i".repeat(26), "epoch": 1 } });
        assert_eq!(refused("run-start", "", bind), Err("expired"));
        let mut other = op("run-start");
        other["inputDigest"] = json!(format!("sha256:{}", "0".repeat(64)));
        assert_eq!(refused("run-start", "", json!({ "op": other })), Err("contract-mismatch"));
        assert_eq!(refused("ping", "", json!({})), Err("unimplemented"), "this contract declares none");
        let alone = of_runs(None);
        assert_eq!(code(&alone, &asking("run-start", "", json!({}))), Err("unimplemented"));
    }
}
