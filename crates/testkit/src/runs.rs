//! A caller that asks a manager about runs, on the rail of issued callers.

use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    Command, EndpointName, Entropy, Generation, InstanceId, LifecycleUid, Nonce, Principal, Space,
    canonical::VOID_CLOSURE_DIGEST,
    endpoint_subject::{EndpointCaller, Rail, RequestSubject, SubjectTarget},
    manager_authority::RunId,
};
use serde_json::{Value, json};

/// Who asks.
#[derive(Debug, Clone)]
pub struct RunAsker {
    /// The space.
    pub space: Space,
    /// Owner and actor.
    pub principal: Principal,
    /// The incarnation.
    pub uid: LifecycleUid,
    /// The issuance, if there is one: without it the caller asks on the older rail.
    pub generation: Option<Generation>,
}

impl RunAsker {
    /// A subject on which it asks `manager` for a command: another one each time.
    #[allow(clippy::expect_used, reason = "constants of the grammar")]
    pub fn subject(&self, manager: &InstanceId, command: &str) -> String {
        let mut nonce = [0; 16];
        SystemEntropy.fill(&mut nonce);
        let subject = RequestSubject {
            space: self.space.token(),
            rail: Rail::Instance(manager.clone()),
            endpoint: EndpointName::manager().token(),
            command: Command::parse(command).expect("a command"),
            target: SubjectTarget::Untargeted,
            caller: EndpointCaller {
                principal: self.principal.clone(),
                lifecycle_uid: self.uid.clone(),
                generation: self.generation.clone(),
            },
            nonce: Nonce::parse(&hex::encode(nonce)).expect("a nonce"),
        };
        subject.build().expect("a subject")
    }

    /// What it asks there.
    pub fn body(&self, command: &str, args: &Value) -> Value {
        json!({
            "v": 1, "id": "r1", "class": "ephemeral", "replyExpected": true, "deadlineMs": 10_000,
            "op": {
                "endpoint": "manager", "command": command, "inputDigest": VOID_CLOSURE_DIGEST,
                "outputDigest": VOID_CLOSURE_DIGEST,
            },
            "from": { "id": self.principal.key(), "name": "A test" }, "args": args,
        })
    }
}

/// A run that no other run is.
#[allow(clippy::expect_used, reason = "built from its grammar")]
pub fn run_id() -> RunId {
    let mut bytes = [0; 16];
    SystemEntropy.fill(&mut bytes);
    RunId::parse(&format!("run-{}", hex::encode(bytes))).expect("a run id")
}
