//! Answers of the manager's own lifecycle.

use StandingRole::{Executor, GoalWriter, Serve, SessionLedger, Supervisor};
use cotal_manager::remote::results;
use cotal_trust::nkey::Seed;
use cotal_wire::{
    Nkey, Principal, UnixSecs, User,
    es_value::EsValue,
    manager_authority::{RenewedRun, RunId, ServedSession, StandingRole},
};
use serde_json::{Map, Value, json};

use crate::house::{Case, House, NOW, run_caller};

impl House {
    pub(crate) fn service(&self) -> Vec<Case> {
        let requests = self.requests();
        let key = || Seed::<User>::generate(self.entropy).public().clone();
        let run = RenewedRun {
            run_id: RunId::parse(&format!("run-{}", "0".repeat(32))).unwrap(),
            holder: format!("{}.{}", key(), "0".repeat(16)).parse().unwrap(),
            takeover_id: "0".repeat(16).parse().unwrap(),
            epoch: 1,
            fencing_token: 1,
            driver_id: key(),
            mediator_id: key(),
        };
        let session = ServedSession { id: key(), session_id: "s".into(), epoch: 0, exp: UnixSecs(NOW + 60) };
        let artifacts = vec![EsValue::parse(b"{\"urn\":\"ai.cotal.manager\"}").unwrap()];
        let proof = format!("sha256:{}", "1".repeat(64));
        let one = |name: &str, key: &Nkey<User>, principal: &Principal| {
            Value::Object(Map::from_iter([(name.to_owned(), self.credential(key, principal, 60))]))
        };
        let prepare = requests.prepare();
        let activate = requests.activate(&self.owner, artifacts);
        let renew = requests.renew(&self.current);
        let standing = requests.standing_bundle(&self.current);
        let (session_key, reader_key, requester_key) = (session.id.clone(), key(), key());
        let session = requests.session(&self.owner, session);
        let reader = requests.transfer_reader(&self.owner, reader_key.clone());
        let retire = requests.retire(&self.current, requester_key.clone(), self.agent.clone());
        let caller = run_caller(&self.owner, run.run_id.as_str());
        let pair = json!({
            "runDriver": self.credential(&run.driver_id, &caller, 60),
            "runMediator": self.credential(&run.mediator_id, &caller, 60),
        });
        let driver = requests.run_driver(&self.current, run);
        let none = json!({});
        let free = &["/issuedAt"][..];
        let serves = self.serves();
        [
            (
                "prepare",
                prepare.clone(),
                self.material(&prepare, &[], self.standing(&[Supervisor, Executor]), none.clone()),
                free,
            ),
            (
                "activate",
                activate.clone(),
                self.material(
                    &activate,
                    &["contractArtifacts"],
                    self.standing(&[Serve, GoalWriter, SessionLedger]),
                    json!({ "nextRegistrationProof": proof }),
                ),
                &["/issuedAt", "/nextRegistrationProof"][..],
            ),
            (
                "renew",
                renew.clone(),
                self.material(&renew, &[], self.standing(&[Supervisor, Executor]), none.clone()),
                free,
            ),
            (
                "renewStandingBundle",
                standing.clone(),
                self.material(&standing, &[], self.standing(&StandingRole::ALL), none.clone()),
                free,
            ),
            (
                "session",
                session.clone(),
                self.material(
                    &session,
                    &["session"],
                    one("sessionServing", &session_key, &serves),
                    none.clone(),
                ),
                free,
            ),
            (
                "transferReader",
                reader.clone(),
                self.material(
                    &reader,
                    &["transferReader"],
                    one("transferReader", &reader_key, &serves),
                    none.clone(),
                ),
                free,
            ),
            (
                "retire",
                retire.clone(),
                self.material(
                    &retire,
                    &[],
                    one("retirementRequester", &requester_key, &serves),
                    none.clone(),
                ),
                free,
            ),
            ("renewRunDriver", driver.clone(), self.material(&driver, &[], pair, none), free),
        ]
        .into_iter()
        .map(|(name, request, answer, free)| {
            let known = self.known();
            Case {
                name,
                answer,
                bind: Box::new(move |answer| results::bind_service(&request, &known, answer).map(drop)),
                free,
                optional: &[],
            }
        })
        .collect()
    }
}
