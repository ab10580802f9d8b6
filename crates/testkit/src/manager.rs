//! A remote manager as a test plays it: keys that it made itself, its contract, and what it asks its host.

use cotal_trust::{
    creds::{self, Creds},
    nkey::Seed,
    system::SystemEntropy,
};
use cotal_wire::{
    Account, EndpointName, Entropy, InstanceId, LifecycleUid, Nkey, Owner, Principal, Space, User,
    canonical::VOID_CLOSURE_DIGEST,
    contract::Artifact,
    es_value::EsValue,
    manager_authority::{
        CredentialName, Envelope, Epoch, GoalIndexRequest, HolderKind, Kind, Operation, Payload, RUN_ANSWER,
        RUN_CANCEL, RUN_RESUME, RUN_START, RUN_SUBMIT, ServiceRequest, StandingRole, VERSION,
        registration_proof, serve_principal,
    },
};
use serde_json::{Value, json};

/// The commands that the test's manager registers; all are ephemeral.
pub const COMMANDS: [&str; 7] =
    ["spawn", "status", RUN_START, RUN_RESUME, RUN_ANSWER, RUN_SUBMIT, RUN_CANCEL];

/// A manager and every key of its.
#[derive(Clone)]
pub struct TestManager {
    /// Whose it is.
    pub owner: Owner,
    /// The interactive actor that asks for it.
    pub actor: String,
    /// Its instance.
    pub instance: InstanceId,
    /// Its lifecycle.
    pub uid: LifecycleUid,
    space: Space,
    account: Nkey<Account>,
    standing: [Seed<User>; 5],
    extra: [Seed<User>; 2],
    served_by: Option<Principal>,
}

/// What a request carries that stands on a registration: its epoch, and the keyed proof of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Proved {
    /// The process epoch that was registered.
    pub epoch: u64,
    /// The proof.
    pub proof: Value,
}

impl TestManager {
    /// A manager that a person's actor `cli` asks for.
    pub fn new(space: &Space, account: &Nkey<Account>, owner: impl Into<Owner>) -> Self {
        let seed = || Seed::generate(&SystemEntropy);
        Self {
            owner: owner.into(),
            actor: "cli".to_owned(),
            instance: InstanceId::mint(&SystemEntropy),
            uid: LifecycleUid::mint(&SystemEntropy),
            space: space.clone(),
            account: account.clone(),
            standing: std::array::from_fn(|_| seed()),
            extra: [seed(), seed()],
            served_by: None,
        }
    }

    /// The same manager with an instance and a serving principal of its host's choice.
    pub fn served_by(self, instance: InstanceId, principal: Principal) -> Self {
        Self { instance, served_by: Some(principal), ..self }
    }

    /// Who serves it: the principal of its gate.
    pub fn serving(&self) -> Principal {
        self.served_by.clone().unwrap_or_else(|| serve_principal(&self.owner, &self.instance))
    }

    /// The key of a standing identity.
    pub fn key(&self, role: StandingRole) -> &Seed<User> {
        let at = StandingRole::ALL.iter().position(|one| *one == role).unwrap_or_default();
        &self.standing[at]
    }

    /// The first of two keys for what is granted once: a session, a retirement, a transfer, a run's driver.
    pub fn one_shot(&self) -> &Seed<User> {
        &self.extra[0]
    }

    /// The second of those keys.
    pub fn other(&self) -> &Seed<User> {
        &self.extra[1]
    }

    /// The cluster document that it registers.
    pub fn cluster(&self) -> Value {
        let command = |name: &str| {
            json!({
                "name": name, "class": "ephemeral", "targeted": false, "capability": name,
                "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
            })
        };
        json!({
            "urn": "ai.cotal.manager", "revision": 1, "attributes": [], "events": [],
            "commands": COMMANDS.map(command),
        })
    }

    /// What it publishes before it registers: the document, and the manifest whose digest is registered.
    #[allow(clippy::expect_used, reason = "a constant document")]
    pub fn artifacts(&self) -> [Artifact; 2] {
        Artifact::closed(&self.cluster()).expect("the cluster has a closure")
    }

    /// The endpoint that it serves.
    pub fn endpoint(&self) -> EndpointName {
        EndpointName::manager()
    }

    /// A request of an operation, with `more` members and the unkeyed proof where the operation carries that one. The
    /// keyed one is `more`'s `registrationProof`.
    #[allow(clippy::expect_used, reason = "a test's own request")]
    pub fn request(&self, operation: Operation, more: &Value) -> Value {
        let mut request = self.unproved(Kind::Service, &json!({ "operation": operation.as_str() }));
        if operation == Operation::Activate {
            request["contractArtifacts"] = json!([self.cluster()]);
        }
        if matches!(operation, Operation::RenewStandingBundle | Operation::RenewRunDriver) {
            request["accountPublicKey"] = json!(self.account);
        }
        if operation == Operation::TransferReader {
            request["transferReader"] = json!({ "id": self.one_shot().public() });
        }
        add(&mut request, more);
        if operation != Operation::Prepare && request.get("registrationProof").is_none() {
            request["registrationProof"] = unknown_proof();
            let parsed = EsValue::parse(request.to_string().as_bytes()).expect("JSON");
            if let Ok(parsed) = ServiceRequest::parse(&parsed, HolderKind::Human) {
                let artifacts = match &parsed.payload {
                    Payload::Artifacts(artifacts) => artifacts.as_slice(),
                    _ => &[],
                };
                request["registrationProof"] =
                    json!(registration_proof(&parsed.envelope, &self.owner, artifacts));
            }
        }
        request
    }

    /// A request of a kind that stands on a registration, with `more` members.
    pub fn proved(&self, kind: Kind, on: &Proved, more: &Value) -> Value {
        let mut request = self.unproved(kind, &json!({ "registrationProof": on.proof }));
        match kind.rule().and_then(|rule| rule.epoch) {
            Some(Epoch::ProcessEpoch) => {
                request["processEpoch"] = json!(on.epoch);
                request["accountPublicKey"] = json!(self.account);
            }
            Some(Epoch::ServeEpoch) => request["serveEpoch"] = json!(on.epoch),
            Some(Epoch::RetirementServeEpoch) | None => {}
        }
        add(&mut request, more);
        request
    }

    /// The envelope of a kind, and `more` members.
    pub fn unproved(&self, kind: Kind, more: &Value) -> Value {
        let identities: serde_json::Map<String, Value> = StandingRole::ALL
            .iter()
            .map(|role| (role.as_str().to_owned(), json!({ "id": self.key(*role).public() })))
            .collect();
        let mut request = json!({
            "v": VERSION, "kind": kind.as_str(), "space": self.space, "actor": self.actor,
            "instanceId": self.instance, "managerLifecycleUid": self.uid, "requestId": request_id(),
            "identities": identities,
        });
        add(&mut request, more);
        request
    }

    /// The envelope that a keyed proof covers. It is the same whatever the kind.
    #[allow(clippy::expect_used, reason = "a test's own request")]
    pub(crate) fn envelope(&self) -> Envelope {
        let scan = self.proved(Kind::GoalIndexScan, &Proved { epoch: 0, proof: unknown_proof() }, &json!({}));
        let scan = EsValue::parse(scan.to_string().as_bytes()).expect("JSON");
        GoalIndexRequest::parse(&scan).expect("a request of one's own").envelope
    }

    /// The creds of a credential that an answer grants, for the key that it was granted to.
    #[allow(clippy::expect_used, reason = "a test without what it asked for has failed")]
    pub fn creds(&self, answer: &Value, name: CredentialName) -> String {
        let role = StandingRole::ALL.into_iter().find(|role| CredentialName::of_role(*role) == name);
        let seed = match (role, name) {
            (Some(role), _) => self.key(role),
            (None, CredentialName::RunMediator) => self.other(),
            (None, _) => self.one_shot(),
        };
        let jwt = answer["credentials"][name.as_str()]["jwt"].as_str().expect("it is granted").to_owned();
        creds::format(&Creds { jwt, seed: seed.clone() }).to_string()
    }
}

/// The proof of no registration.
pub fn unknown_proof() -> Value {
    json!(format!("sha256:{}", "0".repeat(64)))
}

fn add(request: &mut Value, more: &Value) {
    for (member, value) in more.as_object().into_iter().flatten() {
        request[member] = value.clone();
    }
}

/// A request id that no other request has.
pub fn request_id() -> String {
    let mut bytes = [0; 16];
    SystemEntropy.fill(&mut bytes);
    hex::encode(bytes)
}
