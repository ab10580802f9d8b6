//! `manager-service-authority`: the manager's own lifecycle (contract 06 §4.1).

use serde::Serialize;

use super::{
    HolderKind, Kind, Operation,
    envelope::{Envelope, Holder, Incarnation, ProofMember, StandingRole, known},
    fields::Fields,
    tokens::{RenewedTakeover, RunHolder, RunId},
};
use crate::{
    error::EpError,
    es_value::EsValue,
    time::UnixSecs,
    token::{Account, Nkey, OpId, User},
};

pub use crate::endpoint_token::MANAGER_ENDPOINT;

/// Most artifacts that a request of `activate` carries.
pub const MAX_ARTIFACTS: usize = 64;

/// The run whose driver is renewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewedRun {
    /// The run.
    pub run_id: RunId,
    /// Who holds it; ends in `.` and the takeover id.
    pub holder: RunHolder,
    /// Under which takeover.
    pub takeover_id: RenewedTakeover,
    /// At which epoch, at least 1.
    pub epoch: u64,
    /// With which token, at least 1.
    pub fencing_token: u64,
    /// The driver's key.
    pub driver_id: Nkey<User>,
    /// The mediator's key, another one.
    pub mediator_id: Nkey<User>,
}

/// The session that is to be served. Members beside these are not looked at on the route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedSession {
    /// The key that serves it.
    pub id: Nkey<User>,
    /// The session.
    pub session_id: String,
    /// Its pinned epoch.
    pub epoch: u64,
    /// When the session ends.
    pub exp: UnixSecs,
}

/// The retirement that a requester may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestedRetirement {
    /// The requester's key.
    pub id: Nkey<User>,
    /// Whom it retires.
    pub target: Incarnation,
    /// The one operation that does.
    pub op_id: OpId,
    /// The manager's serving epoch.
    pub serve_epoch: u64,
}

/// What an operation carries beside the envelope.
#[derive(Debug, Clone, PartialEq)]
pub enum Payload {
    /// `prepare`, `renew`: nothing.
    None,
    /// `activate`: the contract artifacts as parsed, 1 to [`MAX_ARTIFACTS`].
    Artifacts(Vec<EsValue>),
    /// `session`
    Session(ServedSession),
    /// `retire`
    Retirement(RequestedRetirement),
    /// `renewStandingBundle`
    Standing(Renewal),
    /// `renewRunDriver`
    Run(Renewal, RenewedRun),
    /// `transferReader`: the reader's key.
    Reader(Holder),
}

/// What both renewals pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The data account.
    pub account: Nkey<Account>,
    /// The manager's epoch.
    pub process_epoch: u64,
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceRequest {
    /// What is asked for.
    pub operation: Operation,
    /// Who asks.
    pub envelope: Envelope,
    /// What it carries.
    pub payload: Payload,
}

impl ServiceRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue, holder: HolderKind) -> Result<Self, EpError> {
        let fields = Fields::of(Kind::Service.as_str(), Some(request))?.closed(&known([
            "operation",
            "registrationProof",
            "session",
            "retirement",
            "contractArtifacts",
            "accountPublicKey",
            "processEpoch",
            "run",
            "transferReader",
        ]))?;
        let operation = fields
            .value("operation")
            .and_then(EsValue::as_text)
            .and_then(Operation::from_name)
            .ok_or_else(|| fields.bad("operation", "one of the eight of this kind"))?;
        let proof = if operation == Operation::Prepare { ProofMember::Absent } else { ProofMember::Required };
        let envelope = Envelope::read(&fields, Kind::Service, proof)?;
        let payload = Payload::read(&fields, operation, holder)?;
        Ok(Self { operation, envelope, payload })
    }

    /// Step 3 of contract 06 §4.2: the standing keys and those of the payload are all distinct. A session's key is not
    /// among them.
    pub fn check_distinct_keys(&self) -> Result<(), EpError> {
        let standing = StandingRole::ALL.iter().map(|role| self.envelope.identities.of(*role));
        let mut keys: Vec<&Nkey<User>> = standing.collect();
        match &self.payload {
            Payload::Retirement(retirement) => keys.push(&retirement.id),
            Payload::Reader(reader) => keys.push(&reader.id),
            Payload::Run(_, run) => keys.extend([&run.driver_id, &run.mediator_id]),
            Payload::None | Payload::Artifacts(_) | Payload::Session(_) | Payload::Standing(_) => {}
        }
        let count = keys.len();
        keys.sort();
        keys.dedup();
        if keys.len() == count {
            Ok(())
        } else {
            Err(EpError::bad_request(format!("{}: every key must be another one", Kind::Service.as_str())))
        }
    }
}

impl Payload {
    /// Artifacts, renewal pair, run, session, retirement, transfer reader; each absent unless its operation needs it.
    fn read(fields: &Fields<'_>, operation: Operation, holder: HolderKind) -> Result<Self, EpError> {
        let mut payload = Self::None;
        if operation == Operation::Activate {
            let rule = format!("an array of 1 to {MAX_ARTIFACTS} artifacts");
            let artifacts = fields.array("contractArtifacts", &rule)?;
            if !(1..=MAX_ARTIFACTS).contains(&artifacts.len()) {
                return Err(fields.bad("contractArtifacts", &rule));
            }
            payload = Self::Artifacts(artifacts.to_vec());
        } else {
            fields.absent("contractArtifacts")?;
        }
        let renewal = if matches!(operation, Operation::RenewStandingBundle | Operation::RenewRunDriver) {
            Some(Renewal {
                account: fields.token("accountPublicKey")?,
                process_epoch: fields.integer("processEpoch", 0)?,
            })
        } else {
            fields.absent("accountPublicKey")?;
            fields.absent("processEpoch")?;
            None
        };
        match (renewal, operation) {
            (Some(renewal), Operation::RenewRunDriver) => {
                payload = Self::Run(renewal, RenewedRun::read(fields)?);
            }
            (renewal, _) => {
                fields.absent("run")?;
                if let Some(renewal) = renewal {
                    payload = Self::Standing(renewal);
                }
            }
        }
        if operation == Operation::Session {
            payload = Self::Session(ServedSession::read(fields)?);
        } else {
            fields.absent("session")?;
        }
        if operation == Operation::Retire {
            payload = Self::Retirement(RequestedRetirement::read(fields, holder)?);
        } else {
            fields.absent("retirement")?;
        }
        if operation == Operation::TransferReader {
            let reader = fields.inner("transferReader", "transferReader")?.exactly(&["id"])?;
            payload = Self::Reader(Holder { id: reader.token("id")? });
        } else {
            fields.absent("transferReader")?;
        }
        Ok(payload)
    }
}

impl RenewedRun {
    pub(super) fn read(request: &Fields<'_>) -> Result<Self, EpError> {
        let fields = request.inner("run", "run")?.exactly(&[
            "runId",
            "holder",
            "takeoverId",
            "epoch",
            "fencingToken",
            "driverId",
            "mediatorId",
        ])?;
        let run = Self {
            run_id: fields.token("runId")?,
            holder: fields.token("holder")?,
            takeover_id: fields.token("takeoverId")?,
            epoch: fields.integer("epoch", 1)?,
            fencing_token: fields.integer("fencingToken", 1)?,
            driver_id: fields.token("driverId")?,
            mediator_id: fields.token("mediatorId")?,
        };
        let of_takeover = run
            .holder
            .as_str()
            .strip_suffix(run.takeover_id.as_str())
            .is_some_and(|rest| rest.ends_with('.'));
        if !of_takeover {
            return Err(fields.bad("holder", "a holder that ends in \".\" and takeoverId"));
        }
        if run.driver_id == run.mediator_id {
            return Err(fields.bad("mediatorId", "another key than driverId"));
        }
        Ok(run)
    }
}

impl ServedSession {
    fn read(request: &Fields<'_>) -> Result<Self, EpError> {
        let fields = request.inner("session", "session")?;
        let id = fields.token("id")?;
        fields.literal("endpoint", MANAGER_ENDPOINT)?;
        Ok(Self {
            id,
            session_id: fields.text("sessionId")?.to_owned(),
            epoch: fields.integer("epoch", 0)?,
            exp: UnixSecs(fields.integer("exp", 1)?),
        })
    }
}

impl RequestedRetirement {
    pub(super) fn read(request: &Fields<'_>, holder: HolderKind) -> Result<Self, EpError> {
        let fields =
            request.inner("retirement", "retirement")?.exactly(&["id", "target", "opId", "serveEpoch"])?;
        let id = fields.token("id")?;
        let target =
            fields.inner("retirement.target", "target")?.exactly(&["owner", "actor", "lifecycleUid"])?;
        let serve_epoch = fields.integer("serveEpoch", 0)?;
        let lifecycle_uid = target.token("lifecycleUid")?;
        let op_id: OpId = fields.token("opId")?;
        if op_id != OpId::managed_retirement(&lifecycle_uid) {
            return Err(fields.bad("opId", "the retirement operation of target.lifecycleUid"));
        }
        let owner = super::envelope::target_owner(&target, holder)?;
        let target = Incarnation { owner, actor: target.token("actor")?, lifecycle_uid };
        Ok(Self { id, target, op_id, serve_epoch })
    }
}
