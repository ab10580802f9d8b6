//! Runs over a real broker: a caller with issued authority asks its manager, the manager forwards what it serves, and the
//! service decides from what it saw itself (contract 06 §12, 10 §3).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod stage;

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use cotal_auth::AuthServiceArgs;
use cotal_authority::{
    evict::{Eviction, Evictor},
    issued::{IssuerSession, UserCaller},
    registration::{
        EndpointInstance, OwnName, Registration, Registry, gate, own::publish, register::EVICTION_SWEEP,
        register_service_instance,
    },
};
use cotal_broker::{
    Connection, Connector, Custody, Lifetime,
    kv::{Bucket, LeaderRead},
};
use cotal_testkit::{
    manager::TestManager,
    raw::{ConnectOutcome, RawClient},
    runs::{RunAsker, run_id},
};
use cotal_trust::{
    creds::{self, Creds},
    mint::{CredentialKind, Lifetime as MintLifetime, StaticHolder, mint_static_user},
    nkey::Seed,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Actor, Clock, ConnId, LifecycleUid, Names, OpId, Permissions, Principal, Rules, User,
    es_value::EsValue,
    grants::{self, Capabilities, ConnectPrincipal, Profile},
    manager_authority::{
        Kind, Operation, RUN_ANSWER, RUN_CANCEL, RUN_RESUME, RUN_START, RUN_SUBMIT, RunAdmissionResult,
        RunAttemptResult, RunId, RunRevocationResult, RunSubmissionResult, StandingRole, serve_principal,
    },
    rows::ServiceSpec,
};
use serde_json::{Value, json};

use stage::{Daemon, Stage, claims_of};

const PERSON: &str = "alice";
const STEP: &str = "/checkpoint:approve#0";

/// A service, a registered manager, and a person of its owner who may ask it for runs.
struct Rig {
    stage: Stage,
    daemon: Daemon,
    manager: TestManager,
    admin: Connection,
    proof: Value,
    epoch: u64,
}

/// A connected caller, its authority issued.
struct Caller {
    asks: RunAsker,
    client: RawClient,
}

struct Gone;

#[async_trait]
impl Evictor for Gone {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let gone = |one: &Principal| Eviction {
            verified_gone: true,
            scan_complete: true,
            note: None,
            ..Eviction::unverified(one, "")
        };
        principals.iter().map(gone).collect()
    }
}

impl Rig {
    async fn start() -> Self {
        let stage = Stage::start().await;
        let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
        stage.grant_human(PERSON, "cli", &["supervise", "run"], &["general"]);
        let account = stage.space.account.data_account().account;
        let manager = TestManager::new(&stage.space.space, &account, &stage.owner_of(PERSON));
        let all = || Rules { allow: vec![">".to_owned()], deny: vec![] };
        let everything = move |_: &ConnId| Permissions { publish: all(), subscribe: all() };
        let admin =
            connector(&stage).open("cotal:test:runs".into(), &everything, Lifetime::Renewing).await.unwrap();
        let mut rig = Self { stage, daemon, manager, admin, proof: Value::Null, epoch: 0 };
        rig.register().await;
        rig
    }

    /// Registers, again if need be, and is activated: what was proved before proves nothing any more.
    async fn register(&mut self) {
        let registry = Registry::bind(&self.admin, &self.stage.space.space).await.unwrap();
        let at = EndpointInstance {
            endpoint: self.manager.endpoint().token(),
            instance: self.manager.instance.clone(),
        };
        let artifacts = self.manager.artifacts();
        publish(&registry, &artifacts).await.unwrap();
        if gate::observe(registry.stores(), &at).await.unwrap().is_none() {
            let serving = serve_principal(&self.manager.owner, &self.manager.instance);
            gate::provision(registry.stores(), &at, &serving).await.unwrap();
        }
        let names = OwnName { name: self.manager.endpoint(), owner: self.manager.owner.clone() };
        let spec = ServiceSpec::new(&names.name, &names.owner, vec![artifacts[1].digest().clone()]).unwrap();
        let registration = Registration {
            at: &at,
            spec: &spec,
            registrant: &self.manager.owner,
            op: &OpId::mint(&SystemEntropy),
            names: &names,
            evictor: &Gone,
            eviction_sweep: EVICTION_SWEEP,
        };
        self.epoch = register_service_instance(&registry, &registration).await.unwrap().process_epoch;
        let (status, answer) =
            self.send(PERSON, &self.manager.request(Operation::Activate, &json!({}))).await;
        assert_eq!(status, 200, "{answer}");
        self.proof = answer["nextRegistrationProof"].clone();
    }

    async fn send(&self, sub: &str, request: &Value) -> (u16, Value) {
        let body = json!({ "idpToken": self.stage.idp.mint_token(sub, 600), "request": request });
        let url = format!("{}/manager-service-authority", self.daemon.discovery.url);
        self.daemon.post(&url, Some(&self.daemon.discovery.cap), &body).await
    }

    async fn ask(&self, kind: Kind, payload: Value) -> (u16, Value) {
        self.send(PERSON, &self.manager.run_request(kind, self.epoch, &self.proof, &payload)).await
    }

    async fn refused(&self, status: u16, kind: Kind, payload: Value) -> String {
        let (answered, answer) = self.ask(kind, payload).await;
        assert_eq!(answered, status, "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    }

    /// Issues authority to the person as a connect does, and connects with it. It may ask for the private commands too,
    /// which no stock view lets anybody.
    async fn caller(&self) -> Caller {
        let owner = self.stage.owner_of(PERSON);
        let actor = Actor::parse("cli").unwrap();
        let row = self.stage.ledger.read_interactive(&owner, &actor).unwrap().unwrap();
        let uid = LifecycleUid::parse(row.lifecycle_uid.as_deref().unwrap()).unwrap();
        let conn_id = ConnId::parse(&format!("nonce-{}", LifecycleUid::mint(&SystemEntropy))).unwrap();
        let caller = UserCaller {
            principal: Principal::new(&owner, actor.clone()),
            uid: uid.clone(),
            conn_id: conn_id.clone(),
        };
        let who = ConnectPrincipal {
            principal: caller.principal.clone(),
            conn_id,
            lifecycle_uid: Some(uid.clone()),
        };
        let session = IssuerSession::new(connector(&self.stage), Arc::new(SystemEntropy), 60).unwrap();
        let token = self.stage.space.space.token();
        let mut generation = None;
        let permissions = session
            .issue_user_caller(&caller, |issued| {
                generation = Some(issued.generation.clone());
                let profile = Profile::ManagerCaller {
                    instance: self.manager.instance.clone(),
                    capabilities: Capabilities { run: true, ..Capabilities::default() },
                    issued: Some(issued),
                };
                let mut permissions = grants::permissions(&token, &who, &profile).unwrap();
                let start = permissions.publish.allow.iter().find(|row| row.contains(".run-start.")).unwrap();
                let more = [RUN_SUBMIT, RUN_CANCEL].map(|command| start.replace(RUN_START, command));
                permissions.publish.allow.extend(more);
                Ok(permissions)
            })
            .await
            .unwrap();
        session.close().await.unwrap();
        let user = mint_static_user::<std::convert::Infallible>(
            &self.stage.space.account.data_account(),
            CredentialKind::Agent,
            &StaticHolder { owner: Some(owner.clone().into()), actor: Some(actor), lifecycle_uid: None },
            MintLifetime::OfKind,
            |_| Ok(permissions),
            &SystemEntropy,
            SystemClock.now_secs(),
        )
        .unwrap();
        let asks =
            RunAsker { space: self.stage.space.space.clone(), principal: caller.principal, uid, generation };
        Caller { asks, client: self.connected(&user.creds).await }
    }

    async fn connected(&self, creds: &str) -> RawClient {
        let url = self.stage.space.server.url();
        let (client, outcome) = RawClient::connect(&url, Some(creds), None, None).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
        client.unwrap()
    }

    /// Admits a fresh run that the caller asks for.
    async fn admitted(&self, caller: &mut Caller) -> RunId {
        let run = run_id();
        let subject = caller.ask(&self.manager, RUN_START, &json!({})).await;
        let (status, answer) =
            self.ask(Kind::RunAdmission, json!({ "run": { "runId": run, "subject": subject } })).await;
        assert_eq!(status, 200, "{answer}");
        run
    }

    fn names(&self) -> Names {
        Names::new(&self.stage.space.space.token())
    }

    fn admissions(&self) -> Bucket {
        Bucket::new(&self.admin, &self.names().admission_bucket())
    }

    async fn row(&self, bucket: &Bucket, key: &str) -> Value {
        match bucket.leader_read(key).await.unwrap() {
            LeaderRead::Value(entry) => serde_json::from_slice(&entry.value).unwrap(),
            LeaderRead::Absent | LeaderRead::Marker(_) => Value::Null,
        }
    }

    /// Writes a row as its driver would.
    async fn put(&self, key: &str, row: &Value) -> u64 {
        let subject = Names::kv_subject(&self.names().records_bucket(), key);
        self.publish(&subject, row).await
    }

    async fn publish(&self, subject: &str, row: &Value) -> u64 {
        let within = std::time::Duration::from_secs(30);
        let answer = self.admin.request(subject, &[], row.to_string().into(), within).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        answer["seq"].as_u64().unwrap_or_else(|| panic!("{subject}: {answer}"))
    }

    /// The run's record, as its driver reports it.
    async fn recorded(&self, run: &RunId, state: &str, epoch: u64, token: u64, takeover: &str) {
        let supervisor = self.manager.key(StandingRole::Supervisor).public();
        let spec = json!({ "v": 1, "run": run, "pins": {}, "createdAt": 1 });
        let spec = self.put(&format!("run.manager.{run}.spec"), &spec).await;
        let status = json!({
            "v": 1, "observedSpecRevision": spec, "state": state, "holder": format!("{supervisor}.{takeover}"),
            "epoch": epoch, "fencingToken": token, "journalHigh": 0, "at": 1,
        });
        self.put(&format!("run.manager.{run}.status"), &status).await;
    }

    fn attempt(run: &RunId, epoch: u64, token: u64, keys: &[Seed<User>; 2]) -> Value {
        json!({
            "runId": run, "takeoverId": "0123456789abcdef", "epoch": epoch, "fencingToken": token,
            "driverId": keys[0].public(), "mediatorId": keys[1].public(),
        })
    }
}

impl Caller {
    /// Asks, and says on which subject; what it asked has reached the broker.
    async fn ask(&mut self, manager: &TestManager, command: &str, args: &Value) -> String {
        let subject = self.asks.subject(&manager.instance, command);
        let body = self.asks.body(command, args);
        self.client.try_publish(&subject, body.to_string().as_bytes()).await.unwrap();
        subject
    }
}

fn connector(stage: &Stage) -> Connector {
    Connector::new(
        &stage.space.server.url(),
        stage.space.space.clone(),
        stage.space.account.data_account(),
        Custody::new(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    )
}

fn keys() -> [Seed<User>; 2] {
    [Seed::generate(&SystemEntropy), Seed::generate(&SystemEntropy)]
}

fn creds_of(jwt: &Value, seed: &Seed<User>) -> String {
    creds::format(&Creds { jwt: jwt.as_str().unwrap().to_owned(), seed: seed.clone() }).to_string()
}

fn es(value: &Value) -> EsValue {
    EsValue::parse(value.to_string().as_bytes()).unwrap()
}

#[tokio::test]
async fn a_start_that_was_seen_is_admitted_once_under_its_callers_own_ceiling() {
    let mut rig = Rig::start().await;
    let mut caller = rig.caller().await;
    let run = run_id();
    let forward = |subject: &str| json!({ "run": { "runId": run, "subject": subject } });

    // A manager may name any subject; only one that was published there is worth anything.
    let unseen = caller.asks.subject(&rig.manager.instance, RUN_START);
    let why = rig.refused(403, Kind::RunAdmission, forward(&unseen)).await;
    assert!(why.contains("did not see"), "{why}");

    let subject = caller.ask(&rig.manager, RUN_START, &json!({ "program": "x" })).await;
    let (status, answer) = rig.ask(Kind::RunAdmission, forward(&subject)).await;
    assert_eq!(status, 200, "{answer}");
    let result = RunAdmissionResult::parse(&es(&answer)).unwrap();
    assert_eq!(result.admission.caller().principal, caller.asks.principal);
    assert_eq!(result.admission.caller().generation, caller.asks.generation);
    let stored = rig.row(&rig.admissions(), &format!("admission.v1.manager.{run}")).await;
    assert_eq!(stored, answer["admission"], "what is answered is what stands");
    assert!(stored["ceiling"]["publish"]["allow"]["patterns"].as_array().unwrap().len() > 5);

    // One forward for one request. The run is answered again to its caller's next request, as it stands.
    let why = rig.refused(403, Kind::RunAdmission, forward(&subject)).await;
    assert!(why.contains("a forward of it came before"), "{why}");
    let again = caller.ask(&rig.manager, RUN_START, &json!({})).await;
    let (_, same) = rig.ask(Kind::RunAdmission, forward(&again)).await;
    assert_eq!(same["revision"], answer["revision"]);
    assert_eq!(same["admission"], answer["admission"]);

    // Another connection of the same person is another issuance.
    let mut other = rig.caller().await;
    let subject = other.ask(&rig.manager, RUN_START, &json!({})).await;
    rig.refused(409, Kind::RunAdmission, forward(&subject)).await;

    // Nothing is issued from a row that is gone, and a request that a later check refused is used up all the same.
    let subject = caller.ask(&rig.manager, RUN_START, &json!({})).await;
    rig.stage.revoke_human(PERSON, "cli");
    rig.stage.grant_human(PERSON, "cli", &["supervise", "run"], &["general"]);
    let fresh = json!({ "run": { "runId": run_id(), "subject": subject } });
    let why = rig.refused(403, Kind::RunAdmission, fresh.clone()).await;
    assert!(why.contains("has ended"), "{why}");
    let why = rig.refused(403, Kind::RunAdmission, fresh).await;
    assert!(why.contains("did not see"), "{why}");

    // A second registration: the first one's epoch is stale before its proof is.
    let (epoch, proof) = (rig.epoch, rig.proof.clone());
    rig.register().await;
    let payload = json!({ "run": { "runId": run, "subject": "x" } });
    let stale = rig.manager.run_request(Kind::RunAdmission, epoch, &proof, &payload);
    assert_eq!(rig.send(PERSON, &stale).await.0, 409);
    let stale = rig.manager.run_request(Kind::RunAdmission, rig.epoch, &proof, &payload);
    assert_eq!(rig.send(PERSON, &stale).await.0, 403);
    rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_run_goes_from_its_first_attempt_to_an_answer_off_its_own_journal() {
    let rig = Rig::start().await;
    let mut caller = rig.caller().await;
    let (run, other) = (rig.admitted(&mut caller).await, run_id());
    let both = keys();

    // The first attempt is 1 and 1, of an admitted run alone.
    for (run, epoch, token, status) in [(&run, 2, 1, 409), (&run, 1, 2, 409), (&other, 1, 1, 403)] {
        let attempt = json!({ "attempt": Rig::attempt(run, epoch, token, &both) });
        rig.refused(status, Kind::RunAttempt, attempt).await;
    }
    let (status, first) =
        rig.ask(Kind::RunAttempt, json!({ "attempt": Rig::attempt(&run, 1, 1, &both) })).await;
    assert_eq!(status, 200, "{first}");
    RunAttemptResult::parse(&es(&first)).unwrap();
    for (name, seed) in [("driver", &both[0]), ("mediator", &both[1])] {
        let claims = claims_of(first["credentials"][name]["jwt"].as_str().unwrap());
        assert_eq!(claims["sub"], seed.public().as_str());
        assert_eq!(claims["exp"], first["credentials"][name]["exp"]);
    }

    // A driver appends to its own journal and writes its own records, and nobody else's.
    let mut driver = rig.connected(&creds_of(&first["credentials"]["driver"]["jwt"], &both[0])).await;
    let journal = |run: &RunId| format!("cotal.demo.wfj.{run}");
    let activation = json!({
        "v": 1, "kind": "activation", "run": run, "n": 0, "holder": "U.t", "fencingToken": 1, "epoch": 1,
        "replayedTo": 0, "at": 1,
    });
    driver.try_publish(&journal(&run), activation.to_string().as_bytes()).await.unwrap();
    driver.try_publish(&journal(&other), b"{}").await.expect_err("another run's journal");

    // The next attempt is one on from what is recorded; a run that has ended gets none.
    rig.recorded(&run, "running", 1, 1, "0123456789abcdef").await;
    let why = rig.refused(409, Kind::RunAttempt, json!({ "attempt": Rig::attempt(&run, 1, 1, &both) })).await;
    assert!(why.contains("epoch 1"), "{why}");
    let subject = caller.ask(&rig.manager, RUN_RESUME, &json!({ "runId": run })).await;
    let mut second = Rig::attempt(&run, 2, 2, &both);
    second["served"] = json!(subject);
    let (status, answer) = rig.ask(Kind::RunAttempt, json!({ "attempt": second })).await;
    assert_eq!(status, 200, "a resume that its caller asked for: {answer}");
    rig.refused(403, Kind::RunAttempt, json!({ "attempt": second })).await;
    // The caller asked to resume one run, the manager forwards another.
    let subject = caller.ask(&rig.manager, RUN_RESUME, &json!({ "runId": other })).await;
    second["served"] = json!(subject);
    let why = rig.refused(403, Kind::RunAttempt, json!({ "attempt": second })).await;
    assert!(why.contains("something else"), "{why}");

    // The renewal of the driver reads the same record.
    let supervisor = rig.manager.key(StandingRole::Supervisor).public();
    let renewed = |takeover: &str| {
        json!({
            "registrationProof": rig.proof, "processEpoch": rig.epoch,
            "run": {
                "runId": run, "holder": format!("{supervisor}.{takeover}"), "takeoverId": takeover, "epoch": 1,
                "fencingToken": 1, "driverId": both[0].public(), "mediatorId": both[1].public(),
            },
        })
    };
    let renew = async |takeover: &str| {
        let request = rig.manager.request(Operation::RenewRunDriver, &renewed(takeover));
        rig.send(PERSON, &request).await
    };
    let (status, answer) = renew("0123456789abcdef").await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = renew("fedcba9876543210").await;
    assert_eq!(status, 409, "{answer}");

    // An answer: the pause's token comes off the journal, and the credential reaches that checkpoint alone.
    let operator = keys();
    let answering = |served: &str| {
        json!({ "operator": {
            "id": operator[0].public(), "takeoverId": "t1", "answers": { "runId": run, "stepKey": STEP },
            "served": served,
        } })
    };
    let why = rig.refused(403, Kind::RunAttempt, answering("x")).await;
    assert!(why.contains("never recorded"), "the journal is read before the request: {why}");
    let entry = json!({
        "scope": "", "kind": "checkpoint", "name": "approve", "occurrence": 0, "state": "pending",
        "requestId": "token-1",
    });
    let step = json!({ "v": 1, "kind": "step", "run": run, "n": 1, "at": 2, "entry": entry });
    rig.publish(&journal(&run), &step).await;
    let waiting =
        json!({ "state": "waiting", "deadlineGeneration": 1, "deadline": 9, "observedSpecRevision": 1 });
    rig.put("cp.manager.token-1.status", &waiting).await;
    let asked = json!({ "runId": run, "stepKey": STEP, "value": true });
    let subject = caller
        .asks
        .subject(&rig.manager.instance, RUN_ANSWER)
        .replace(&format!(".{RUN_ANSWER}."), &format!(".{RUN_ANSWER}.self."));
    let body = caller.asks.body(RUN_ANSWER, &asked);
    caller.client.try_publish(&subject, body.to_string().as_bytes()).await.unwrap();
    let (status, answer) = rig.ask(Kind::RunAttempt, answering(&subject)).await;
    assert_eq!(status, 200, "{answer}");
    let jwt = &answer["credentials"]["operator"]["jwt"];
    let mut answers = rig.connected(&creds_of(jwt, &operator[0])).await;
    let row =
        |token: &str| Names::kv_subject(&rig.names().records_bucket(), &format!("answer.manager.{token}.a1"));
    answers.try_publish(&row("token-1"), b"{}").await.unwrap();
    answers.try_publish(&row("token-2"), b"{}").await.expect_err("another pause");

    rig.recorded(&run, "completed", 2, 2, "0123456789abcdef").await;
    let why = rig.refused(403, Kind::RunAttempt, json!({ "attempt": Rig::attempt(&run, 3, 3, &both) })).await;
    assert!(why.contains("attempted no more"), "{why}");
    rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_run_that_is_revoked_or_cancelled_is_issued_nothing_more() {
    let rig = Rig::start().await;
    let mut caller = rig.caller().await;
    let (revoked, cancelled) = (rig.admitted(&mut caller).await, rig.admitted(&mut caller).await);
    let both = keys();
    let attempt = |run: &RunId| json!({ "attempt": Rig::attempt(run, 1, 1, &both) });
    for run in [&revoked, &cancelled] {
        assert_eq!(rig.ask(Kind::RunAttempt, attempt(run)).await.0, 200);
    }

    // Nobody else's run, and nobody but its owner and an admin.
    let revoke = |run: &RunId, reason: &str| json!({ "revoke": { "runId": run, "reason": reason } });
    rig.refused(403, Kind::RunRevoke, revoke(&run_id(), "x")).await;
    rig.stage.grant_human("bob", "cli", &["supervise"], &["general"]);
    let request = rig.manager.run_request(Kind::RunRevoke, rig.epoch, &rig.proof, &revoke(&revoked, "x"));
    assert_eq!(rig.send("bob", &request).await.0, 403);
    let (status, answer) = rig.ask(Kind::RunRevoke, revoke(&revoked, "no longer wanted")).await;
    assert_eq!(status, 200, "{answer}");
    let result = RunRevocationResult::parse_revoke(&es(&answer)).unwrap();
    assert_eq!(result.revocation.by, format!("{}.cli", rig.manager.owner));
    let (_, again) = rig.ask(Kind::RunRevoke, revoke(&revoked, "another reason")).await;
    assert_eq!(again["revocation"], answer["revocation"], "the first one stays");
    let why = rig.refused(403, Kind::RunAttempt, attempt(&revoked)).await;
    assert!(why.contains("revoked"), "{why}");
    // Nor is its driver renewed, though its record still runs.
    let takeover = "0123456789abcdef";
    rig.recorded(&revoked, "running", 1, 1, takeover).await;
    let supervisor = rig.manager.key(StandingRole::Supervisor).public();
    let renewed = json!({
        "registrationProof": rig.proof, "processEpoch": rig.epoch,
        "run": {
            "runId": revoked, "holder": format!("{supervisor}.{takeover}"), "takeoverId": takeover, "epoch": 1,
            "fencingToken": 1, "driverId": both[0].public(), "mediatorId": both[1].public(),
        },
    });
    let request = rig.manager.request(Operation::RenewRunDriver, &renewed);
    let (status, answer) = rig.send(PERSON, &request).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("revoked"), "{answer}");

    // A cancellation is its caller's own.
    let cancel = |run: &RunId, subject: &str| json!({ "cancel": { "runId": run, "subject": subject } });
    let unseen = caller.asks.subject(&rig.manager.instance, RUN_CANCEL);
    rig.refused(403, Kind::RunCancel, cancel(&cancelled, &unseen)).await;
    let subject = caller.ask(&rig.manager, RUN_CANCEL, &json!({ "runId": cancelled })).await;
    let (status, answer) = rig.ask(Kind::RunCancel, cancel(&cancelled, &subject)).await;
    assert_eq!(status, 200, "{answer}");
    RunRevocationResult::parse_cancel(&es(&answer)).unwrap();
    let stored = rig.row(&rig.admissions(), &format!("revoked.v1.manager.{cancelled}")).await;
    assert_eq!((&stored, &stored["by"]), (&answer["revocation"], &json!(caller.asks.principal.key())));
    rig.refused(403, Kind::RunCancel, cancel(&cancelled, &subject)).await;
    rig.refused(403, Kind::RunAttempt, attempt(&cancelled)).await;
    rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_submission_id_is_one_run_however_often_it_is_submitted() {
    let rig = Rig::start().await;
    let mut caller = rig.caller().await;
    let submit = |id: &str, run: &RunId, subject: &str| json!({ "submission": { "submissionId": id, "runId": run, "subject": subject } });
    let args = json!({ "submissionId": "nightly", "program": "x" });
    let (first, second) = (run_id(), run_id());
    let subject = caller.ask(&rig.manager, RUN_SUBMIT, &args).await;
    let (status, answer) = rig.ask(Kind::RunSubmission, submit("nightly", &first, &subject)).await;
    assert_eq!(status, 200, "{answer}");
    let result = RunSubmissionResult::parse(&es(&answer)).unwrap();
    assert_eq!((&result.run_id, result.created), (&first, true));

    let subject = caller.ask(&rig.manager, RUN_SUBMIT, &args).await;
    let (status, answer) = rig.ask(Kind::RunSubmission, submit("nightly", &second, &subject)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["runId"], &answer["created"]), (&json!(first), &json!(false)));
    let admissions = rig.admissions();
    assert_eq!(rig.row(&admissions, &format!("admission.v1.manager.{second}")).await, Value::Null);
    assert_eq!(admissions.keys("submission.v1.manager.*").await.unwrap().len(), 1);

    // The manager forwards another id than its caller named; and twice what it forwarded once.
    let subject = caller.ask(&rig.manager, RUN_SUBMIT, &args).await;
    rig.refused(403, Kind::RunSubmission, submit("weekly", &second, &subject)).await;
    rig.refused(403, Kind::RunSubmission, submit("nightly", &second, &subject)).await;
    // A keyed run is a run: it is attempted like any other.
    let attempt = json!({ "attempt": Rig::attempt(&first, 1, 1, &keys()) });
    assert_eq!(rig.ask(Kind::RunAttempt, attempt).await.0, 200);
    rig.daemon.stop().await.unwrap();
}
