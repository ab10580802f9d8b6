//! A manager that hosts runs, and a caller of it with issued authority.

use cotal_authority::registration::Registry;
use cotal_broker::{
    Connection,
    kv::{Bucket, LeaderRead},
};
use cotal_testkit::{
    manager::{Proved, TestManager},
    raw::RawClient,
    runs::{RunAsker, run_id},
};
use cotal_trust::{
    creds::{self, Creds},
    nkey::Seed,
    system::SystemEntropy,
};
use cotal_wire::{
    Actor, LifecycleUid, Names, Permissions, Principal, User,
    manager_authority::{Kind, Operation, RUN_ANSWER, RUN_START, RunId, StandingRole},
    rows::GateCoordinate,
};
use serde_json::{Value, json};

use super::rig::{PERSON, Rig};

const STEP: &str = "/checkpoint:approve#0";
/// Under which a driver took its run over.
pub(super) const TAKEOVER: &str = "0123456789abcdef";

/// A service, an active manager, and a person of its owner who may ask it for runs.
pub(super) struct Running {
    pub(super) rig: Rig,
    pub(super) admin: Connection,
    pub(super) proved: Proved,
}

/// A connected caller, its authority issued.
pub(super) struct Caller {
    pub(super) asks: RunAsker,
    pub(super) client: RawClient,
}

impl Running {
    pub(super) async fn start() -> Self {
        let rig = Rig::start_with(&["supervise", "run"]).await;
        let admin = rig.stage.space.anything().await.unwrap();
        let proved = rig.activated().await.proved();
        Self { rig, admin, proved }
    }

    /// As a restart of the manager does: another revision, the next epoch, and what was granted before is worth nothing any
    /// more. Where it stood until then.
    pub(super) async fn register_again(&mut self) -> GateCoordinate {
        let registry = Registry::bind(&self.admin, &self.rig.stage.space.space).await.unwrap();
        let before = self.manager().gate(&registry).await.unwrap().gate.coordinate();
        self.proved = self.rig.activated().await.proved();
        before
    }

    pub(super) fn manager(&self) -> &TestManager {
        &self.rig.manager
    }

    /// Asks under the present registration.
    pub(super) async fn ask(&self, kind: Kind, payload: Value) -> (u16, Value) {
        self.rig.send(PERSON, &self.manager().proved(kind, &self.proved, &payload)).await
    }

    pub(super) async fn refused(&self, status: u16, kind: Kind, payload: Value) -> String {
        let (answered, answer) = self.ask(kind, payload).await;
        assert_eq!(answered, status, "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    }

    fn person(&self) -> Principal {
        Principal::new(self.rig.stage.owner_of(PERSON), Actor::parse("cli").unwrap())
    }

    /// Signs a user of the person's for these permissions.
    pub(super) fn user(&self, permissions: Permissions) -> String {
        self.rig.stage.space.user(&self.person(), permissions).unwrap()
    }

    /// Issues authority to the person as a connect does, and connects with it. It may ask for the private commands too,
    /// which no stock view lets anybody.
    pub(super) async fn caller(&self) -> Caller {
        let (stage, person) = (&self.rig.stage, self.person());
        let row = stage.ledger.read_interactive(&stage.owner_of(PERSON), &person.actor).unwrap().unwrap();
        let uid = LifecycleUid::parse(row.lifecycle_uid.as_deref().unwrap()).unwrap();
        let issued = RunAsker::issued(&stage.space, &self.manager().instance, person, uid);
        let (asks, creds, _) = issued.await.unwrap();
        Caller { asks, client: self.rig.connected(&creds).await }
    }

    /// Admits a fresh run that the caller asks for.
    pub(super) async fn admitted(&self, caller: &mut Caller) -> RunId {
        let run = run_id();
        let subject = caller.ask(self.manager(), RUN_START, &json!({})).await;
        let (status, answer) =
            self.ask(Kind::RunAdmission, json!({ "run": { "runId": run, "subject": subject } })).await;
        assert_eq!(status, 200, "{answer}");
        run
    }

    pub(super) fn names(&self) -> Names {
        Names::new(&self.rig.stage.space.space.token())
    }

    pub(super) fn admissions(&self) -> Bucket {
        Bucket::new(&self.admin, &self.names().admission_bucket())
    }

    pub(super) async fn row(&self, bucket: &Bucket, key: &str) -> Value {
        match bucket.leader_read(key).await.unwrap() {
            LeaderRead::Value(entry) => serde_json::from_slice(&entry.value).unwrap(),
            LeaderRead::Absent | LeaderRead::Marker(_) => Value::Null,
        }
    }

    /// Writes a row as its driver would.
    pub(super) async fn put(&self, key: &str, row: &Value) -> u64 {
        let subject = Names::kv_subject(&self.names().records_bucket(), key);
        self.publish(&subject, row).await
    }

    pub(super) async fn publish(&self, subject: &str, row: &Value) -> u64 {
        let within = std::time::Duration::from_secs(30);
        let answer = self.admin.request(subject, &[], row.to_string().into(), within).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        answer["seq"].as_u64().unwrap_or_else(|| panic!("{subject}: {answer}"))
    }

    /// The run's record, as its driver reports it.
    pub(super) async fn recorded(&self, run: &RunId, state: &str, epoch: u64, token: u64, takeover: &str) {
        let supervisor = self.manager().key(StandingRole::Supervisor).public();
        let spec = json!({ "v": 1, "run": run, "pins": {}, "createdAt": 1 });
        let spec = self.put(&format!("run.manager.{run}.spec"), &spec).await;
        let status = json!({
            "v": 1, "observedSpecRevision": spec, "state": state, "holder": format!("{supervisor}.{takeover}"),
            "epoch": epoch, "fencingToken": token, "journalHigh": 0, "at": 1,
        });
        self.put(&format!("run.manager.{run}.status"), &status).await;
    }

    pub(super) fn attempt(run: &RunId, epoch: u64, token: u64, keys: &[Seed<User>; 2]) -> Value {
        json!({
            "runId": run, "takeoverId": TAKEOVER, "epoch": epoch, "fencingToken": token,
            "driverId": keys[0].public(), "mediatorId": keys[1].public(),
        })
    }

    /// The request that renews the run's driver, as one that took it over holds it.
    pub(super) fn renews(&self, on: &Proved, run: &RunId, takeover: &str, keys: &[Seed<User>; 2]) -> Value {
        let supervisor = self.manager().key(StandingRole::Supervisor).public();
        let more = json!({
            "registrationProof": on.proof, "processEpoch": on.epoch,
            "run": {
                "runId": run, "holder": format!("{supervisor}.{takeover}"), "takeoverId": takeover, "epoch": 1,
                "fencingToken": 1, "driverId": keys[0].public(), "mediatorId": keys[1].public(),
            },
        });
        self.manager().request(Operation::RenewRunDriver, &more)
    }

    /// The run comes to a step that waits for an answer under this token.
    pub(super) async fn pauses(&self, run: &RunId, token: &str) {
        let entry = json!({
            "scope": "", "kind": "checkpoint", "name": "approve", "occurrence": 0, "state": "pending",
            "requestId": token,
        });
        let step = json!({ "v": 1, "kind": "step", "run": run, "n": 1, "at": 2, "entry": entry });
        self.publish(&journal(run), &step).await;
        let waiting =
            json!({ "state": "waiting", "deadlineGeneration": 1, "deadline": 9, "observedSpecRevision": 1 });
        self.put(&format!("cp.manager.{token}.status"), &waiting).await;
    }

    /// A turn of an operator who answers that step.
    pub(super) fn answering(run: &RunId, key: &Seed<User>, served: &str) -> Value {
        json!({ "operator": {
            "id": key.public(), "takeoverId": "t1", "answers": { "runId": run, "stepKey": STEP }, "served": served,
        } })
    }
}

/// Begins a run's journal.
pub(super) fn activation(run: &RunId) -> Value {
    json!({
        "v": 1, "kind": "activation", "run": run, "n": 0, "holder": "U.t", "fencingToken": 1, "epoch": 1,
        "replayedTo": 0, "at": 1,
    })
}

pub(super) fn journal(run: &RunId) -> String {
    format!("cotal.demo.wfj.{run}")
}

pub(super) fn keys() -> [Seed<User>; 2] {
    [Seed::generate(&SystemEntropy), Seed::generate(&SystemEntropy)]
}

pub(super) fn creds_of(jwt: &Value, seed: &Seed<User>) -> String {
    creds::format(&Creds { jwt: jwt.as_str().unwrap().to_owned(), seed: seed.clone() }).to_string()
}

impl Caller {
    /// Answers the step at which [`Running::pauses`] left the run.
    pub(super) async fn answers(&mut self, manager: &TestManager, run: &RunId) -> String {
        let args = json!({ "runId": run, "stepKey": STEP, "value": true });
        let subject = self.asks.subject_of_itself(&manager.instance, RUN_ANSWER);
        let body = self.asks.body(RUN_ANSWER, &args);
        self.client.try_publish(&subject, body.to_string().as_bytes()).await.unwrap();
        subject
    }

    /// Asks, and says on which subject; what it asked has reached the broker.
    pub(super) async fn ask(&mut self, manager: &TestManager, command: &str, args: &Value) -> String {
        let subject = self.asks.subject(&manager.instance, command);
        let body = self.asks.body(command, args);
        self.client.try_publish(&subject, body.to_string().as_bytes()).await.unwrap();
        subject
    }
}
