//! What the service does for a remote manager: `POST /manager-service-authority` and the doors that decide the same
//! requests (contract 06).
//!
//! A manager holds no signer, no ledger and no store. It asks, and each request is decided anew from the asking actor's
//! ledger row, the manager's gate, its epoch and its proof: [`cotal_authority::manager`] decides, purely; the files here
//! read what is decided on, and do what was decided. A caller reaches them through [`AnswerManagers::dispatch`] alone.

mod agents;
pub(crate) mod issuing;
mod lifecycle;
mod maintenance;
mod mint;
mod observed;
mod parts;
mod queries;
mod runs;
mod verify;

use std::sync::Arc;

use async_trait::async_trait;
use cotal_authority::manager::Holder;
use cotal_wire::{
    EpError,
    es_value::EsValue,
    manager_authority::{Kind, Stock},
};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

pub(crate) use parts::{Parts, PartsInputs};
pub(crate) use verify::VerifiedAgent;

/// What a request is answered with: JSON in the contract's order of members, which managers compare (contract 08 §8.3).
pub(crate) type Answer = Box<RawValue>;

fn print(result: &impl Serialize) -> Result<Answer, EpError> {
    to_raw_value(result).map_err(|_| EpError::internal("an answer to a manager is plain data"))
}

/// Why a request has no result.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// It was refused, or it failed.
    Refused(EpError),
    /// Too much is asked at once, by whomever: the same request is served later.
    Busy(Busy),
}

/// That too much is asked at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Busy {
    /// Of what.
    pub(crate) why: &'static str,
    /// When there is room for the same request, in whole seconds from now.
    pub(crate) retry_after_secs: u64,
}

impl From<EpError> for NoAnswer {
    fn from(refusal: EpError) -> Self {
        Self::Refused(refusal)
    }
}

/// For a door in this process.
impl From<NoAnswer> for EpError {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Refused(refusal) => refusal,
            NoAnswer::Busy(busy) => Self::unavailable(busy.why),
        }
    }
}

/// What answers the requests of remote managers, for the routes and doors that prove who asks.
#[async_trait]
pub(crate) trait AnswerManagers: Send + Sync {
    /// Decides a request by its kind and executes it; the result in the contract's shape.
    async fn dispatch(&self, holder: &Holder, request: &EsValue) -> Result<Answer, NoAnswer>;

    /// Decides a request of one of the four kinds about managed agents, and does nothing.
    async fn verify_agent(
        &self,
        holder: &Holder,
        kind: Kind,
        request: &EsValue,
    ) -> Result<VerifiedAgent, EpError>;
}

/// Decides and executes the requests of remote managers. Clones are one authority.
#[derive(Clone)]
pub(crate) struct ManagerAuthority {
    parts: Arc<Parts>,
}

impl ManagerAuthority {
    pub(crate) fn new(inputs: PartsInputs) -> Self {
        Self { parts: Arc::new(Parts::new(inputs)) }
    }

    /// Waits for what is written for managed agents, whose callers may be gone: before the connections are closed.
    pub(crate) async fn settled(&self) {
        self.parts.agents.settled().await;
    }

    /// What the requests are decided and executed with.
    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }
}

#[async_trait]
impl AnswerManagers for ManagerAuthority {
    /// `holder` is what the route or door proved of who asks. A fenced plane refuses first; a kind that this service does
    /// not serve is `unimplemented`; anything else that names no kind is refused by the parser of the manager's lifecycle.
    async fn dispatch(&self, holder: &Holder, request: &EsValue) -> Result<Answer, NoAnswer> {
        let parts = &*self.parts;
        parts.plane.check_open()?;
        let kind = kind_of(request);
        if kind.stock() != Stock::Serves {
            return Err(not_intercepted(kind).into());
        }
        Ok(match kind {
            Kind::Enrollment => agents::enroll(parts, holder, request).await?,
            Kind::PrepareRetirement => agents::prepare_retirement(parts, holder, request).await?,
            Kind::RetainedAgentValidation => agents::validate_retained(parts, holder, request).await?,
            Kind::GoalIndexScan => queries::scan_goals(parts, holder, request).await?,
            Kind::AdminAuthorization => queries::authorize_admin(parts, holder, request).await?,
            Kind::RunAdmission => runs::admit(parts, holder, request).await?,
            Kind::RunSubmission => runs::submit(parts, holder, request).await?,
            Kind::RunCancel => runs::cancel(parts, holder, request).await?,
            Kind::RunRevoke => runs::revoke(parts, holder, request).await?,
            Kind::RunAttempt => runs::attempt(parts, holder, request).await?,
            Kind::Maintenance => maintenance::mend(parts, holder, request).await?,
            Kind::Service => lifecycle::issue(parts, holder, request).await?,
            // Nothing here answers them, whatever the table says.
            Kind::RuntimeCreate
            | Kind::RuntimeStatus
            | Kind::DelegatedIntent
            | Kind::DelegatedIntentExecution => return Err(not_intercepted(kind).into()),
        })
    }

    async fn verify_agent(
        &self,
        holder: &Holder,
        kind: Kind,
        request: &EsValue,
    ) -> Result<VerifiedAgent, EpError> {
        self.parts.plane.check_open()?;
        verify::decide(&self.parts, holder, kind, request).await
    }
}

fn not_intercepted(kind: Kind) -> EpError {
    EpError::unimplemented(format!(
        "{} is answered by the host that embeds this service; this one does not intercept it",
        kind.as_str()
    ))
}

/// The kind that a request names. One that names none is the lifecycle's: its closed parser refuses it.
fn kind_of(request: &EsValue) -> Kind {
    let named = request.as_object().and_then(|object| object.get("kind")).and_then(EsValue::as_text);
    named.and_then(Kind::from_name).unwrap_or(Kind::Service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_the_order_of_its_members() {
        #[derive(Serialize)]
        struct Echoed {
            v: u64,
            kind: &'static str,
            actor: &'static str,
        }
        let answer = print(&Echoed { v: 1, kind: "k", actor: "a" }).unwrap();
        assert_eq!(answer.get(), r#"{"v":1,"kind":"k","actor":"a"}"#);
    }
}
