//! The kinds about runs: admission, attempt, submission, revoke, cancel (contract 06 §12). The payloads of a submission
//! and of a cancel are in no public record; theirs are this project's own (contract 10 §3.5).

use std::num::NonZeroU32;

use serde::Serialize;

use super::{
    Kind,
    envelope::{Envelope, ProofMember, known},
    fields::Fields,
    service::Renewal,
    tokens::{RunId, SubmissionId, Takeover},
};
use crate::{
    error::EpError,
    es_value::EsValue,
    token::{Nkey, User},
};

/// Most UTF-16 units of a step key, and of a served subject.
pub const MAX_STEP: NonZeroU32 = NonZeroU32::new(1024).unwrap();

/// What every run kind carries beside its payload: the renewal's pins.
type Pins = Renewal;

const COMMON: [&str; 3] = ["registrationProof", "accountPublicKey", "processEpoch"];

fn members(payload: &[&'static str]) -> Vec<&'static str> {
    known(COMMON).into_iter().chain(payload.iter().copied()).collect()
}

fn common(fields: &Fields<'_>, kind: Kind) -> Result<(Envelope, Pins), EpError> {
    let envelope = Envelope::read(fields, kind, ProofMember::Required)?;
    let pins = Renewal {
        account: fields.token("accountPublicKey")?,
        process_epoch: fields.integer("processEpoch", 0)?,
    };
    Ok((envelope, pins))
}

/// A parsed admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAdmissionRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// The data account and the manager's epoch.
    pub pins: Pins,
    /// The run.
    pub run_id: RunId,
    /// The subject on which its caller asked; authorization reads it.
    pub subject: String,
}

impl RunAdmissionRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::RunAdmission;
        let fields = Fields::of(kind.as_str(), Some(request))?.closed(&members(&["run"]))?;
        let (envelope, pins) = common(&fields, kind)?;
        let run = fields.inner("run", "run")?.exactly(&["runId", "subject"])?;
        Ok(Self { envelope, pins, run_id: run.token("runId")?, subject: run.text("subject")?.to_owned() })
    }
}

/// A parsed revocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRevokeRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// The data account and the manager's epoch.
    pub pins: Pins,
    /// The run.
    pub run_id: RunId,
    /// Why, for people.
    pub reason: String,
}

impl RunRevokeRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::RunRevoke;
        let fields = Fields::of(kind.as_str(), Some(request))?;
        fields.literal("kind", kind.as_str())?;
        let fields = fields.closed(&members(&["revoke"]))?;
        let (envelope, pins) = common(&fields, kind)?;
        let revoke = fields.inner("revoke", "revoke")?.exactly(&["runId", "reason"])?;
        Ok(Self { envelope, pins, run_id: revoke.token("runId")?, reason: revoke.text("reason")?.to_owned() })
    }
}

/// A parsed submission: a run that its caller named, so that it may be asked for again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSubmissionRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// The data account and the manager's epoch.
    pub pins: Pins,
    /// The caller's name of the run.
    pub submission_id: SubmissionId,
    /// The run, if the id stands for none yet.
    pub run_id: RunId,
    /// The subject on which its caller asked; authorization reads it.
    pub subject: String,
}

impl RunSubmissionRequest {
    /// Reads a request in the order of the other run kinds; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::RunSubmission;
        let fields = Fields::of(kind.as_str(), Some(request))?.closed(&members(&["submission"]))?;
        let (envelope, pins) = common(&fields, kind)?;
        let submission =
            fields.inner("submission", "submission")?.exactly(&["submissionId", "runId", "subject"])?;
        Ok(Self {
            envelope,
            pins,
            submission_id: submission.token("submissionId")?,
            run_id: submission.token("runId")?,
            subject: submission.text("subject")?.to_owned(),
        })
    }
}

/// A parsed cancellation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCancelRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// The data account and the manager's epoch.
    pub pins: Pins,
    /// The run.
    pub run_id: RunId,
    /// The subject on which its caller asked; authorization reads it.
    pub subject: String,
}

impl RunCancelRequest {
    /// Reads a request in the order of the other run kinds; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::RunCancel;
        let fields = Fields::of(kind.as_str(), Some(request))?.closed(&members(&["cancel"]))?;
        let (envelope, pins) = common(&fields, kind)?;
        let cancel = fields.inner("cancel", "cancel")?.exactly(&["runId", "subject"])?;
        Ok(Self {
            envelope,
            pins,
            run_id: cancel.token("runId")?,
            subject: cancel.text("subject")?.to_owned(),
        })
    }
}

/// A driver's turn at a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The run.
    pub run_id: RunId,
    /// Under which takeover.
    pub takeover_id: Takeover,
    /// At which epoch, at least 1.
    pub epoch: u64,
    /// With which token, at least 1.
    pub fencing_token: u64,
    /// The driver's key.
    pub driver_id: Nkey<User>,
    /// The mediator's key, another one.
    pub mediator_id: Nkey<User>,
    /// The served `run-resume` subject that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<String>,
}

/// Which step of which run an operator answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answers {
    /// The run.
    pub run_id: RunId,
    /// The step.
    pub step_key: String,
    /// Whether it amends a settled answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub amend: bool,
}

/// An operator's credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorTurn {
    /// The operator's key.
    pub id: Nkey<User>,
    /// Under which takeover.
    pub takeover_id: Takeover,
    /// The run, unless a step is answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The step that is answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Answers>,
    /// The served `run-answer` subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<String>,
}

/// Whose turn it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// A driver's.
    Attempt(Attempt),
    /// An operator's.
    Operator(OperatorTurn),
}

/// A parsed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAttemptRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// The data account and the manager's epoch.
    pub pins: Pins,
    /// Whose turn.
    pub turn: Turn,
}

impl RunAttemptRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::RunAttempt;
        let fields = Fields::of(kind.as_str(), Some(request))?;
        fields.literal("kind", kind.as_str())?;
        let payload = match (fields.has("attempt"), fields.has("operator")) {
            (true, false) => "attempt",
            (false, true) => "operator",
            _ => return Err(fields.bad("attempt", "given, or operator, and not both")),
        };
        let fields = fields.closed(&members(&[payload]))?;
        let (envelope, pins) = common(&fields, kind)?;
        let turn = if payload == "attempt" {
            Turn::Attempt(Attempt::read(&fields)?)
        } else {
            Turn::Operator(OperatorTurn::read(&fields)?)
        };
        Ok(Self { envelope, pins, turn })
    }
}

fn served(fields: &Fields<'_>) -> Result<Option<String>, EpError> {
    fields.has("served").then(|| fields.bounded("served", MAX_STEP).map(str::to_owned)).transpose()
}

impl Attempt {
    pub(super) fn read(request: &Fields<'_>) -> Result<Self, EpError> {
        let fields = request.inner("attempt", "attempt")?.closed(&[
            "runId",
            "takeoverId",
            "epoch",
            "fencingToken",
            "driverId",
            "mediatorId",
            "served",
        ])?;
        let attempt = Self {
            run_id: fields.token("runId")?,
            takeover_id: fields.token("takeoverId")?,
            epoch: fields.integer("epoch", 1)?,
            fencing_token: fields.integer("fencingToken", 1)?,
            driver_id: fields.token("driverId")?,
            mediator_id: fields.token("mediatorId")?,
            served: served(&fields)?,
        };
        if attempt.driver_id == attempt.mediator_id {
            return Err(fields.bad("mediatorId", "another key than driverId"));
        }
        Ok(attempt)
    }
}

impl OperatorTurn {
    pub(super) fn read(request: &Fields<'_>) -> Result<Self, EpError> {
        let fields = request.inner("operator", "operator")?.closed(&[
            "id",
            "takeoverId",
            "runId",
            "answers",
            "served",
        ])?;
        let id = fields.token("id")?;
        let takeover_id = fields.token("takeoverId")?;
        let run_id = fields.has("runId").then(|| fields.token("runId")).transpose()?;
        let answers = fields.has("answers").then(|| Answers::read(&fields)).transpose()?;
        if answers.is_some() && run_id.is_some() {
            return Err(fields.bad("runId", "absent beside answers"));
        }
        let served = served(&fields)?;
        if served.is_some() && answers.is_none() {
            return Err(fields.bad("served", "absent without answers"));
        }
        Ok(Self { id, takeover_id, run_id, answers, served })
    }
}

impl Answers {
    fn read(operator: &Fields<'_>) -> Result<Self, EpError> {
        let fields = operator.inner("operator.answers", "answers")?.closed(&["runId", "stepKey", "amend"])?;
        let run_id = fields.token("runId")?;
        let step_key = fields.bounded("stepKey", MAX_STEP)?.to_owned();
        let amend = fields.has("amend");
        if amend && fields.value("amend") != Some(&EsValue::Bool(true)) {
            return Err(fields.bad("amend", "true, or absent"));
        }
        Ok(Self { run_id, step_key, amend })
    }
}
