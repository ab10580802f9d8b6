//! A caller that asks a manager about runs, on the rail of issued callers.

use std::sync::Arc;

use anyhow::{Context, Result};
use cotal_authority::issued::{IssuerSession, UserCaller};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    Command, ConnId, EndpointName, Entropy, EpError, Generation, InstanceId, LifecycleUid, Nonce, Principal,
    Space,
    canonical::VOID_CLOSURE_DIGEST,
    endpoint_subject::{EndpointCaller, Rail, RequestSubject, SubjectTarget},
    grants::{self, Capabilities, ConnectPrincipal, Profile},
    manager_authority::{RUN_CANCEL, RUN_START, RUN_SUBMIT, RunId},
};
use serde_json::{Value, json};

use crate::space::TestSpace;

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
    /// Issues authority to a person as a connect does, and signs it a user: its creds, and the nonce of its inbox. It may ask
    /// for the private commands too, which no stock view lets anybody.
    pub async fn issued(
        space: &TestSpace,
        manager: &InstanceId,
        principal: Principal,
        uid: LifecycleUid,
    ) -> Result<(Self, String, ConnId)> {
        let conn_id = ConnId::parse(&format!("nonce-{}", LifecycleUid::mint(&SystemEntropy)))?;
        let caller = UserCaller { principal: principal.clone(), uid: uid.clone(), conn_id: conn_id.clone() };
        let who = ConnectPrincipal {
            principal: principal.clone(),
            conn_id: conn_id.clone(),
            lifecycle_uid: Some(uid.clone()),
        };
        let session = IssuerSession::new(space.connector(), Arc::new(SystemEntropy), 60)?;
        let token = space.space.token();
        let mut generation = None;
        let issuing = session.issue_user_caller(&caller, |issued| {
            generation = Some(issued.generation.clone());
            let profile = Profile::ManagerCaller {
                instance: manager.clone(),
                capabilities: Capabilities { run: true, ..Capabilities::default() },
                issued: Some(issued),
            };
            let mut permissions = grants::permissions(&token, &who, &profile)
                .map_err(|why| EpError::internal(why.to_string()))?;
            let start = permissions.publish.allow.iter().find(|row| row.contains(&format!(".{RUN_START}.")));
            let start = start.ok_or_else(|| EpError::internal("nobody may ask for a run"))?;
            let more = [RUN_SUBMIT, RUN_CANCEL].map(|command| start.replace(RUN_START, command));
            permissions.publish.allow.extend(more);
            Ok(permissions)
        });
        let permissions = issuing.await.context("the caller's authority")?;
        session.close().await?;
        let creds = space.user(&principal, permissions)?;
        Ok((Self { space: space.space.clone(), principal, uid, generation }, creds, conn_id))
    }

    /// A subject on which it asks `manager` for a command: another one each time.
    pub fn subject(&self, manager: &InstanceId, command: &str) -> String {
        self.subject_on(manager, command, SubjectTarget::Untargeted)
    }

    /// The same, about itself.
    pub fn subject_of_itself(&self, manager: &InstanceId, command: &str) -> String {
        self.subject_on(manager, command, SubjectTarget::SelfMode)
    }

    #[allow(clippy::expect_used, reason = "constants of the grammar")]
    fn subject_on(&self, manager: &InstanceId, command: &str, target: SubjectTarget) -> String {
        let mut nonce = [0; 16];
        SystemEntropy.fill(&mut nonce);
        let subject = RequestSubject {
            space: self.space.token(),
            rail: Rail::Instance(manager.clone()),
            endpoint: EndpointName::manager().token(),
            command: Command::parse(command).expect("a command"),
            target,
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
