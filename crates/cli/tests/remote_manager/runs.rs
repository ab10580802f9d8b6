//! Runs on a participant: people ask its endpoint on the broker, it forwards what it serves over the public face, and what it is
//! granted writes the journal, the records and the answer (contract 06 §12, 03 §L-P, 14 §3).

use std::sync::Arc;

use async_trait::async_trait;
use cotal_broker::{
    Connection, CredsConnector, Custody, SubjectReplay,
    kv::{Bucket, LeaderRead, WriteOutcome},
};
use cotal_manager::remote::{
    Active, RefusalKind, RemoteError, Setup,
    authority::HostAuthority,
    contract::ManagerContract,
    requests::Current,
    runs::{Driven, Operated},
    serving::{ManagerCommands, ManagerEndpoint, Refusal, ServedRequest},
};
use cotal_testkit::runs::{RunAsker, run_id};
use cotal_trust::{creds, system::SystemEntropy};
use cotal_wire::{
    EndpointName, EpError, Generation, IdToken, Names, Principal, Revision,
    contract::Artifact,
    endpoint_subject::RequestSubject,
    envelope::{EndpointReply, ReplyError, RequestArgs},
    grants::Issued,
    manager_authority::{
        Answers, Incarnation, RUN_ANSWER, RUN_CANCEL, RUN_RESUME, RUN_START, RUN_SUBMIT, RunAdmissionResult,
        RunId, RunSubmissionResult,
    },
    names::{accepted_key, checkpoint_status_key, replay_consumer, run_spec_key, run_status_key},
    rows::{RunState, RunStatus},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use crate::house::{ACTOR, Host, PATIENCE, activated, answered, is_kept_from, opened, refusal};

const STEP: &str = "/checkpoint:approve#0";
/// More records than a journal has here.
const RECORDS: u64 = 64;

// === the manager ==============================================================================================

/// Takes an object and answers one.
fn schema() -> [Artifact; 2] {
    Artifact::closed(&json!({ "type": "object" })).unwrap()
}

fn contract() -> ManagerContract {
    let [document, closure] = schema();
    let command = |name: &str| {
        let mut command = json!({
            "name": name, "class": "ephemeral", "targeted": false, "capability": "run",
            "inputDigest": closure.digest(), "outputDigest": closure.digest(),
        });
        if name == RUN_ANSWER {
            (command["targeted"], command["modes"]) = (json!(true), json!(["self"]));
        }
        command
    };
    let commands = [RUN_START, RUN_RESUME, RUN_ANSWER, RUN_SUBMIT, RUN_CANCEL].map(command);
    ManagerContract::of(1, &commands, [document, closure]).unwrap()
}

/// Forwards what its endpoint serves. What gives a credential is left to the test: it wants to use it.
struct Forwards {
    authority: HostAuthority,
    current: Current,
    admitted: Mutex<Vec<(String, RunAdmissionResult)>>,
    submitted: Mutex<Vec<RunSubmissionResult>>,
    left: mpsc::UnboundedSender<String>,
}

fn told(why: &RemoteError) -> Refusal {
    EpError::permission_denied(why.to_string()).into()
}

#[async_trait]
impl ManagerCommands for Forwards {
    async fn answer(&self, request: ServedRequest) -> Result<Value, Refusal> {
        let Self { authority, current, .. } = self;
        let subject = request.subject;
        let args = match &request.request.args {
            RequestArgs::Object(args) => json!(args),
            RequestArgs::Absent | RequestArgs::Null => json!({}),
        };
        match request.asked.command.as_str() {
            RUN_START => {
                let admitted = authority
                    .admit_run(current, run_id(), subject.clone())
                    .await
                    .map_err(|why| told(&why))?;
                let run = admitted.run_id.clone();
                self.admitted.lock().push((subject, admitted));
                Ok(json!({ "runId": run }))
            }
            RUN_SUBMIT => {
                let name = args["submissionId"].as_str().unwrap().parse().unwrap();
                let submitted =
                    authority.submit_run(current, name, run_id(), subject).await.map_err(|why| told(&why))?;
                let run = submitted.run_id.clone();
                self.submitted.lock().push(submitted);
                Ok(json!({ "runId": run }))
            }
            RUN_CANCEL => {
                let run = args["runId"].as_str().unwrap().parse().unwrap();
                authority.cancel_run(current, run, subject).await.map_err(|why| told(&why))?;
                Ok(json!({}))
            }
            _ => {
                self.left.send(subject).unwrap();
                Ok(json!({}))
            }
        }
    }
}

// === those who ask it =========================================================================================

/// Somebody who is connected, under authority that was issued.
struct Caller {
    asks: RunAsker,
    connection: Connection,
}

impl Caller {
    /// Asks the manager and waits for its answer.
    async fn ask(&self, active: &Active, command: &str, args: &Value) -> Result<Value, ReplyError> {
        let instance = active.identity().instance();
        let subject = match command {
            RUN_ANSWER => self.asks.subject_of_itself(instance, command),
            _ => self.asks.subject(instance, command),
        };
        let RequestSubject { caller, nonce, .. } = RequestSubject::parse(&subject).unwrap();
        let answers = format!(
            "cotal.main.ep.v1.reply.manager.*.*.{}.{}.{}.{nonce}",
            caller.principal,
            caller.lifecycle_uid,
            caller.generation.unwrap()
        );
        let mut body = self.asks.body(command, args);
        let [_, closure] = schema();
        (body["op"]["inputDigest"], body["op"]["outputDigest"]) =
            (json!(closure.digest()), json!(closure.digest()));
        let mut answers = self.connection.subscribe(&answers, None).await.unwrap();
        self.connection.publish(&subject, &[], body.to_string().into()).await.unwrap();
        self.connection.flush().await.expect("it may ask");
        let answer = timeout(PATIENCE, answers.next()).await.expect("it is answered").unwrap();
        EndpointReply::parse(&answer.payload).unwrap().result.map(Option::unwrap_or_default)
    }

    async fn run(&self, active: &Active, command: &str, args: &Value) -> RunId {
        let answer = self.ask(active, command, args).await.unwrap();
        answer["runId"].as_str().unwrap().parse().unwrap()
    }
}

/// A host, a manager of its that runs runs, and the person of its owner.
struct Scene {
    host: Host,
    active: Active,
    endpoint: ManagerEndpoint,
    person: Incarnation,
    forwards: Arc<Forwards>,
    left: mpsc::UnboundedReceiver<String>,
    _root: tempfile::TempDir,
}

impl Scene {
    async fn start() -> Self {
        let host = Host::signing_for_a_day().await;
        let person = host.grant_to(ACTOR, &["supervise", "run"]);
        let root = tempfile::tempdir().unwrap();
        let setup = Setup { contract: contract(), ..host.setup(root.path(), &host.face()) };
        let active = activated(setup).await;
        let (left, heard) = mpsc::unbounded_channel();
        let forwards = Arc::new(Forwards {
            authority: active.authority().clone(),
            current: active.current().clone(),
            admitted: Mutex::default(),
            submitted: Mutex::default(),
            left,
        });
        let endpoint = active.serve_with(Arc::clone(&forwards) as Arc<dyn ManagerCommands>).await.unwrap();
        Self { host, active, endpoint, person, forwards, left: heard, _root: root }
    }

    fn names(&self) -> Names {
        Names::new(&self.host.space.space.token())
    }

    fn principal(&self) -> Principal {
        Principal::new(self.person.owner.clone(), self.person.actor.clone())
    }

    /// The person, signed in with the view of a manager's callers. Its generation is what its accepted row says.
    async fn signed_in(&self) -> Caller {
        let (nonce, connection) = self.host.signed_in(ACTOR, &json!({ "view": "manager-caller" })).await;
        let token = Issued::for_connection(Generation::mint(&SystemEntropy), &nonce).accepted;
        let accepted = Bucket::new(&connection, &self.names().accepted_bucket());
        let row = match accepted.direct_read(&accepted_key(&token)).await.unwrap() {
            LeaderRead::Value(entry) => serde_json::from_slice::<Value>(&entry.value).unwrap(),
            other => panic!("nothing was issued: {other:?}"),
        };
        let asks = RunAsker {
            space: self.host.space.space.clone(),
            principal: self.principal(),
            uid: self.person.lifecycle_uid.clone(),
            generation: Some(row["ref"]["generation"].as_str().unwrap().parse().unwrap()),
        };
        Caller { asks, connection }
    }

    /// The same person under a ceiling that names the two commands which no view does.
    async fn issued(&self) -> Caller {
        let (instance, uid) = (self.active.identity().instance(), self.person.lifecycle_uid.clone());
        let issued = RunAsker::issued(&self.host.space, instance, self.principal(), uid);
        let (asks, text, nonce) = issued.await.unwrap();
        let connector = CredsConnector::new(&self.host.space.server.url(), Custody::new());
        let creds = creds::parse(&text).unwrap();
        let inbox = format!("_INBOX_{nonce}");
        let connection = connector.open_once("test:issued".into(), &creds, Some(&inbox)).await.unwrap();
        Caller { asks, connection }
    }

    /// The subject of the request that the endpoint served last and left to the test.
    async fn served(&mut self) -> String {
        timeout(PATIENCE, self.left.recv()).await.expect("it is served").unwrap()
    }

    async fn end(self) {
        assert!(self.active.goodbye(Some(self.endpoint)).await.unwrap());
        self.host.service.close().await.unwrap();
    }
}

// === who executes a run =======================================================================================

/// A turn's two connections, and what it has recorded.
struct Executes {
    driver: Connection,
    mediator: Connection,
    run: RunId,
    names: Names,
    spec: Revision,
    status: Revision,
    written: u64,
}

fn written(outcome: &WriteOutcome) -> Revision {
    match outcome {
        WriteOutcome::Written(revision) => *revision,
        other => panic!("{other:?}"),
    }
}

impl Executes {
    async fn begin(scene: &Scene, driven: &Driven) -> Self {
        let driver = opened(&scene.active, "driver", &driven.driver().current()).await;
        let mediator = opened(&scene.active, "mediator", &driven.mediator().current()).await;
        let run = driven.attempt().run_id.clone();
        let none = Revision(0);
        Self { driver, mediator, run, names: scene.names(), spec: none, status: none, written: 0 }
    }

    fn records(&self, connection: &Connection) -> Bucket {
        Bucket::new(connection, &self.names.records_bucket())
    }

    /// Appends to the journal.
    async fn append(&mut self, what: Value) {
        let mut record = json!({ "v": 1, "run": self.run, "n": self.written, "at": 1 });
        record.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        answered(&self.driver, &self.names.run_journal_subject(&self.run), record.to_string()).await;
        self.written += 1;
    }

    async fn activate(&mut self, driven: &Driven) {
        let (epoch, token) = (driven.attempt().epoch, driven.attempt().fencing_token);
        self.append(json!({
            "kind": "activation", "holder": driven.holder(), "fencingToken": token, "epoch": epoch,
            "replayedTo": self.written,
        }))
        .await;
    }

    /// Says how the run stands, and reads that back as the host will.
    async fn record(&mut self, driven: &Driven, state: RunState) -> RunStatus {
        let (endpoint, records) = (EndpointName::manager().token(), self.records(&self.driver));
        if self.spec == Revision(0) {
            let spec = json!({ "v": 1, "run": self.run, "pins": {}, "createdAt": 1 });
            let key = run_spec_key(&endpoint, &self.run);
            self.spec = written(&records.create(&key, spec.to_string().into()).await);
        }
        let status = json!({
            "v": 1, "observedSpecRevision": self.spec, "state": state.as_str(), "holder": driven.holder(),
            "epoch": driven.attempt().epoch, "fencingToken": driven.attempt().fencing_token,
            "journalHigh": self.written, "at": 1,
        });
        let key = run_status_key(&endpoint, &self.run);
        self.status = written(&records.put_pinned(&key, status.to_string().into(), self.status).await);
        match self.records(&self.mediator).leader_read(&key).await.unwrap() {
            LeaderRead::Value(entry) => RunStatus::parse(&entry.value).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Comes to a step that waits for an answer under this token.
    async fn pause(&mut self, token: &IdToken) -> Revision {
        self.append(json!({ "kind": "step", "entry": {
            "scope": "", "kind": "checkpoint", "name": "approve", "occurrence": 0, "state": "pending",
            "requestId": token,
        } }))
        .await;
        let waiting =
            json!({ "state": "waiting", "deadlineGeneration": 1, "deadline": 9, "observedSpecRevision": 1 });
        let key = checkpoint_status_key(&EndpointName::manager().token(), token);
        written(&self.records(&self.mediator).create(&key, waiting.to_string().into()).await)
    }

    async fn end(self) {
        self.driver.close().await.unwrap();
        self.mediator.close().await.unwrap();
    }
}

// === what is proved ===========================================================================================

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_a_person_starts_is_driven_renewed_answered_resumed_and_revoked_by_a_keyless_manager() {
    let mut scene = Scene::start().await;
    let caller = scene.signed_in().await;

    // Started, and admitted under the authority of who asked. One forward for one request.
    let run = caller.run(&scene.active, RUN_START, &json!({})).await;
    let (subject, admitted) = scene.forwards.admitted.lock().pop().unwrap();
    assert_eq!((&admitted.run_id, admitted.admission.owner()), (&run, &scene.person.owner));
    assert_eq!(admitted.admission.caller().generation, caller.asks.generation);
    let (authority, current) = (scene.active.authority().clone(), scene.active.current().clone());
    assert_eq!(refusal(authority.admit_run(&current, run_id(), subject).await).kind, RefusalKind::Denied);
    let never = scene.active.drive(&run_id(), None, None).await;
    assert_eq!(refusal(never).kind, RefusalKind::Denied, "a run that nobody admitted");

    // Driven: what was granted writes this run, and no other one.
    let mut driven = scene.active.drive(&run, None, None).await.unwrap();
    assert_eq!((driven.attempt().epoch, driven.attempt().fencing_token), (1, 1));
    let mut executes = Executes::begin(&scene, &driven).await;
    executes.activate(&driven).await;
    let recorded = executes.record(&driven, RunState::Running).await;
    assert_eq!(recorded.holder, driven.holder().as_str());
    assert!(is_kept_from(&executes.driver, &scene.names().run_journal_subject(&run_id())).await);
    assert!(is_kept_from(&executes.mediator, &scene.names().run_journal_subject(&run)).await);
    let twice = scene.active.drive(&run, None, None).await;
    assert_eq!(refusal(twice).kind, RefusalKind::Conflict, "the first attempt was taken");

    // Renewed, for the same two keys, while its record says that it holds the run.
    let keys = (driven.driver().user().clone(), driven.mediator().user().clone());
    scene.active.renew_driver(&mut driven).await.unwrap();
    assert_eq!((driven.driver().user(), driven.mediator().user()), (&keys.0, &keys.1));
    for (what, creds) in [("driver", driven.driver()), ("mediator", driven.mediator())] {
        opened(&scene.active, what, &creds.current()).await.close().await.unwrap();
    }

    // Answered: the pause's token comes off the journal that its driver wrote.
    let token: IdToken = "token-1".parse().unwrap();
    let waits = executes.pause(&token).await;
    let answers = Answers { run_id: run.clone(), step_key: STEP.into(), amend: false };
    let asked = json!({ "runId": run, "stepKey": STEP, "value": true });
    caller.ask(&scene.active, RUN_ANSWER, &asked).await.unwrap();
    let served = scene.served().await;
    let answering = Operated::Answer { answers: answers.clone(), served: served.clone() };
    let operating = scene.active.operate(answering.clone()).await.unwrap();
    let operator = opened(&scene.active, "operator", &operating.creds).await;
    let records = Bucket::new(&operator, &scene.names().records_bucket());
    let given = json!({ "v": 1, "token": token, "answerId": "a1", "value": true, "by": ACTOR, "at": 1 });
    let key = format!("answer.manager.{token}.a1");
    written(&records.create(&key, given.to_string().into()).await);
    let settled = json!({
        "state": "resumed", "deadlineGeneration": 1, "deadline": 9, "observedSpecRevision": 1,
        "settledGeneration": 1, "settledTs": 2, "settledHolder": { "id": ACTOR }, "settledAnswerId": "a1",
    });
    let key = checkpoint_status_key(&EndpointName::manager().token(), &token);
    written(&records.put_pinned(&key, settled.to_string().into(), waits).await);
    operator.close().await.unwrap();
    assert_eq!(refusal(scene.active.operate(answering).await).kind, RefusalKind::Denied, "it is answered");

    // Looked at: an operator replays the journal of the run that it named.
    let looking = scene.active.operate(Operated::Run(run.clone())).await.unwrap();
    let operator = opened(&scene.active, "operator", &looking.creds).await;
    let names = scene.names();
    let durable = replay_consumer(&run, &looking.takeover);
    let replay = SubjectReplay::new(&names.wfj_stream(), &durable, &names.run_journal_subject(&run));
    let mut kinds = Vec::new();
    let take = &mut |record: &[u8]| {
        let record: Value = serde_json::from_slice(record).unwrap();
        kinds.push(record["kind"].as_str().unwrap().to_owned());
        Ok(())
    };
    replay.run(&operator, RECORDS, take).await.unwrap();
    assert_eq!(kinds, ["activation", "step"]);
    operator.close().await.unwrap();

    // Released and resumed, because its caller asked for it: one epoch and one token on, and the former attempt is over.
    let released = executes.record(&driven, RunState::Released).await;
    let renewed = scene.active.renew_driver(&mut driven).await;
    assert_eq!(refusal(renewed).kind, RefusalKind::Conflict, "nobody holds it");
    caller.ask(&scene.active, RUN_RESUME, &json!({ "runId": run })).await.unwrap();
    let served = scene.served().await;
    let mut second = scene.active.drive(&run, Some(&released), Some(served.clone())).await.unwrap();
    assert_eq!((second.attempt().epoch, second.attempt().fencing_token), (2, 2));
    let replayed = scene.active.drive(&run, Some(&released), Some(served)).await;
    assert_eq!(refusal(replayed).kind, RefusalKind::Denied, "one forward for one request");
    let (status, spec, journal) = (executes.status, executes.spec, executes.written);
    executes.end().await;
    let mut executes = Executes { status, spec, written: journal, ..Executes::begin(&scene, &second).await };
    executes.activate(&second).await;
    executes.record(&second, RunState::Running).await;
    let renewed = scene.active.renew_driver(&mut driven).await;
    assert_eq!(refusal(renewed).kind, RefusalKind::Conflict, "another attempt holds it");
    scene.active.renew_driver(&mut second).await.unwrap();

    // Revoked, by its owner and for good.
    for reason in ["by hand", "once more"] {
        authority.revoke_run(&current, run.clone(), reason.into()).await.unwrap();
    }
    assert_eq!(refusal(scene.active.renew_driver(&mut second).await).kind, RefusalKind::Denied);
    let released = executes.record(&second, RunState::Released).await;
    assert_eq!(refusal(scene.active.drive(&run, Some(&released), None).await).kind, RefusalKind::Denied);
    executes.end().await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_its_caller_named_is_one_run_however_often_it_is_submitted_and_ends_when_its_caller_cancels_it()
 {
    let scene = Scene::start().await;
    let caller = scene.issued().await;
    let named = json!({ "submissionId": "nightly" });
    let run = caller.run(&scene.active, RUN_SUBMIT, &named).await;
    assert_eq!(caller.run(&scene.active, RUN_SUBMIT, &named).await, run);
    let other = caller.run(&scene.active, RUN_SUBMIT, &json!({ "submissionId": "weekly" })).await;
    assert_ne!(other, run);
    let created: Vec<_> =
        scene.forwards.submitted.lock().drain(..).map(|one| (one.run_id, one.created)).collect();
    assert_eq!(created, [(run.clone(), true), (run.clone(), false), (other.clone(), true)]);

    let mut driven = scene.active.drive(&run, None, None).await.unwrap();
    let mut executes = Executes::begin(&scene, &driven).await;
    executes.activate(&driven).await;
    executes.record(&driven, RunState::Running).await;
    scene.active.renew_driver(&mut driven).await.unwrap();

    // A person who merely signed in may ask for neither.
    let signed_in = scene.signed_in().await;
    for command in [RUN_SUBMIT, RUN_CANCEL] {
        let subject = signed_in.asks.subject(scene.active.identity().instance(), command);
        assert!(is_kept_from(&signed_in.connection, &subject).await, "{command}");
    }
    for _ in 0..2 {
        caller.ask(&scene.active, RUN_CANCEL, &json!({ "runId": run })).await.unwrap();
    }
    assert_eq!(refusal(scene.active.renew_driver(&mut driven).await).kind, RefusalKind::Denied);
    assert_eq!(refusal(scene.active.drive(&run, None, None).await).kind, RefusalKind::Denied);
    scene.active.drive(&other, None, None).await.expect("the other one runs");
    executes.end().await;

    // What was issued ends with the grant that it rests on.
    scene.host.grant(&["supervise", "run"]);
    let refused =
        caller.ask(&scene.active, RUN_SUBMIT, &json!({ "submissionId": "late" })).await.unwrap_err();
    assert!(refused.message.contains("has ended"), "{}", refused.message);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_start_of_a_manager_proved_is_worth_nothing_about_its_runs() {
    let scene = Scene::start().await;
    let caller = scene.signed_in().await;
    let run = caller.run(&scene.active, RUN_START, &json!({})).await;
    let (authority, before) = (scene.active.authority().clone(), scene.active.current().clone());
    let Scene { host, active, endpoint, _root: root, .. } = scene;
    endpoint.close().await.unwrap();
    drop(active);
    let setup = Setup { contract: contract(), ..host.setup(root.path(), &host.face()) };
    let again = activated(setup).await;
    assert_eq!(again.current().epoch, before.epoch + 1);

    let revoked = authority.revoke_run(&before, run.clone(), "late".into()).await;
    assert_eq!(refusal(revoked).kind, RefusalKind::Conflict);
    let scanned = authority.goal_index(&before).await;
    assert_eq!(refusal(scanned).kind, RefusalKind::Conflict);
    // The run was admitted on the instance, whichever start of it drives it.
    again.drive(&run, None, None).await.unwrap();
    assert!(again.goodbye(None).await.unwrap());
    host.service.close().await.unwrap();
}
