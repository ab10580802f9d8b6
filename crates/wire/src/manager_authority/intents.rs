//! The two kinds of a delegated user intent: a user's admission, a manager's execution (contract 06 §13).

use serde::Serialize;

use super::{
    HolderKind, Kind, RequestId,
    envelope::{Envelope, Incarnation, ProofMember, known, version_and_kind},
    fields::Fields,
    managed_agent::{EnrollmentTarget, TokenHash},
};
use crate::{
    error::EpError,
    es_value::EsValue,
    token::{Account, Actor, InstanceId, LifecycleUid, Nkey, Sha256Hex},
};

/// The one interactive actor that executes intents.
pub const EXECUTING_ACTOR: &str = "cli";

const LAUNCH: &str = "launch";
const RETIRE: &str = "retire";

/// What a user wants done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "operation", content = "target", rename_all = "lowercase")]
pub enum Intent {
    /// An agent is launched; the digest of its token is not known yet.
    Launch(Box<EnrollmentTarget>),
    /// An agent is retired.
    Retire(Incarnation),
}

/// A user's request that an intent be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentRequest {
    /// The space as it was named.
    pub space: String,
    /// The user's interactive actor.
    pub actor: Actor,
    /// The data account.
    pub account: Nkey<Account>,
    /// The manager that shall do it.
    pub instance_id: InstanceId,
    /// The user's name of this request.
    pub request_id: RequestId,
    /// What is wanted.
    pub intent: Intent,
}

/// Which operation an intent object names.
fn operation(fields: &Fields<'_>) -> Result<&'static str, EpError> {
    match fields.value("operation").and_then(EsValue::as_text) {
        Some(LAUNCH) => Ok(LAUNCH),
        Some(RETIRE) => Ok(RETIRE),
        _ => Err(fields.bad("operation", &format!("{LAUNCH} or {RETIRE}"))),
    }
}

impl IntentRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::DelegatedIntent;
        let fields = Fields::of(kind.as_str(), Some(request))?.closed(&[
            "v",
            "kind",
            "space",
            "actor",
            "accountPublicKey",
            "instanceId",
            "requestId",
            "intent",
        ])?;
        version_and_kind(&fields, kind)?;
        let space = fields.text("space")?.to_owned();
        for member in ["actor", "accountPublicKey", "instanceId", "requestId"] {
            fields.text(member)?;
        }
        let actor = fields.token("actor")?;
        let instance_id = fields.token("instanceId")?;
        let request_id = fields.token("requestId")?;
        let intent = fields.inner("intent", "intent")?.exactly(&["operation", "target"])?;
        let operation = operation(&intent)?;
        let account = fields.token("accountPublicKey")?;
        let intent = if operation == LAUNCH {
            let target = EnrollmentTarget::read(&intent, "intent.target", TokenHash::Unknown)?;
            Intent::Launch(Box::new(target))
        } else {
            Intent::Retire(Incarnation::read(&intent, "intent.target", "target", HolderKind::Human)?)
        };
        Ok(Self { space, actor, account, instance_id, request_id, intent })
    }
}

/// What a manager executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Execution {
    /// Launches this actor, whose token has this digest.
    Launch {
        /// The agent's actor.
        actor: Actor,
        /// SHA-256 of its standing token.
        token_hash: Sha256Hex,
    },
    /// Retires this incarnation.
    Retire(Incarnation),
}

/// A manager's request to execute an admitted intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// The data account.
    pub account: Nkey<Account>,
    /// The assignment under which it runs.
    pub assignment_revision: u64,
    /// At which serving epoch.
    pub serve_epoch: u64,
    /// Which intent.
    pub intent_id: LifecycleUid,
    /// What is executed.
    pub execute: Execution,
}

impl ExecutionRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::DelegatedIntentExecution;
        let fields = Fields::of(kind.as_str(), Some(request))?.closed(&known([
            "registrationProof",
            "accountPublicKey",
            "assignmentRevision",
            "serveEpoch",
            "intentId",
            "execute",
        ]))?;
        let envelope = Envelope::read(&fields, kind, ProofMember::Required)?;
        if envelope.actor.as_str() != EXECUTING_ACTOR {
            return Err(fields.bad("actor", &format!("\"{EXECUTING_ACTOR}\"")));
        }
        let account = fields.token("accountPublicKey")?;
        let assignment_revision = fields.integer("assignmentRevision", 0)?;
        let serve_epoch = fields.integer("serveEpoch", 0)?;
        let intent_id = fields.token("intentId")?;
        let execute = fields.inner("execute", "execute")?.exactly(&["operation", "target"])?;
        let execute = if operation(&execute)? == LAUNCH {
            let target = execute.inner("execute.target", "target")?.exactly(&["actor", "tokenHash"])?;
            Execution::Launch { actor: target.token("actor")?, token_hash: target.token("tokenHash")? }
        } else {
            Execution::Retire(Incarnation::read(&execute, "execute.target", "target", HolderKind::Human)?)
        };
        Ok(Self { envelope, account, assignment_revision, serve_epoch, intent_id, execute })
    }
}
