//! What the kinds about runs are answered with (contract 06 §12, 10 §3.5): printed by the host, read by the participant.
//!
//! An answer is closed. Reading one says that it has its shape, and nothing about whether it is the answer to what was asked:
//! whoever asked compares its coordinates.

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{
    Kind,
    envelope::{Envelope, Identities, VERSION, version_and_kind},
    fields::Fields,
    material::IssuedJwt,
    runs::{Attempt, OperatorTurn, Turn},
    service::Renewal,
    tokens::{RequestId, RunId, SubmissionId},
};
use crate::{
    endpoint_token::DigestRef,
    error::EpError,
    es_value::EsValue,
    grants::MAX_USER_JWT,
    rows::{RunAdmission, RunRevocation},
    time::{Revision, UnixSecs},
    token::{Account, Actor, InstanceId, LifecycleUid, Nkey, Owner},
};

/// The answer to an admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAdmissionResult {
    /// Whose answer it is.
    pub request_id: RequestId,
    /// The run.
    pub run_id: RunId,
    /// The revision at which the admission stands.
    pub revision: Revision,
    /// As it stands.
    pub admission: RunAdmission,
}

/// The answer to a submission. Its run is the id's, which need not be the one that was proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSubmissionResult {
    /// Whose answer it is.
    pub request_id: RequestId,
    /// The caller's name of the run.
    pub submission_id: SubmissionId,
    /// The run.
    pub run_id: RunId,
    /// The revision at which the admission stands.
    pub revision: Revision,
    /// As it stands.
    pub admission: RunAdmission,
    /// Whether this very request bound the id to the run.
    pub created: bool,
}

/// The answer to a revocation, and to a cancellation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRevocationResult {
    /// Whose answer it is.
    pub request_id: RequestId,
    /// The run.
    pub run_id: RunId,
    /// The marker as it stands: the first one's, whoever wrote it.
    pub revocation: RunRevocation,
}

/// What an attempt is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunCredentials {
    /// A driver's turn.
    Attempt {
        /// As it was asked for.
        attempt: Attempt,
        /// For its `driverId`.
        driver: IssuedJwt,
        /// For its `mediatorId`.
        mediator: IssuedJwt,
    },
    /// An operator's.
    Operator {
        /// As it was asked for.
        turn: OperatorTurn,
        /// For its `id`.
        operator: IssuedJwt,
    },
}

/// The answer to an attempt: the whole request again, and what was signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAttemptResult {
    /// The space.
    pub space: String,
    /// Whose manager it is.
    pub owner: Owner,
    /// The actor that asked.
    pub actor: Actor,
    /// The manager's instance.
    pub instance_id: InstanceId,
    /// Its lifecycle.
    pub manager_lifecycle_uid: LifecycleUid,
    /// Whose answer it is.
    pub request_id: RequestId,
    /// The proof of the request.
    pub registration_proof: DigestRef,
    /// The data account and the epoch of the request.
    pub pins: Renewal,
    /// The five standing identities of the request.
    pub identities: Identities,
    /// Turn and credentials.
    pub credentials: RunCredentials,
}

const HEAD: [&str; 3] = ["v", "kind", "requestId"];

fn closed<'a>(kind: Kind, answer: &'a EsValue, more: &[&'static str]) -> Result<Fields<'a>, EpError> {
    let members: Vec<_> = HEAD.into_iter().chain(more.iter().copied()).collect();
    let fields = Fields::of(kind.as_str(), Some(answer))?.exactly(&members)?;
    version_and_kind(&fields, kind)?;
    Ok(fields)
}

fn head<S: Serializer>(
    serializer: S,
    kind: Kind,
    request_id: &RequestId,
    more: usize,
) -> Result<S::SerializeMap, S::Error> {
    let mut map = serializer.serialize_map(Some(HEAD.len() + more))?;
    map.serialize_entry("v", &VERSION)?;
    map.serialize_entry("kind", kind.as_str())?;
    map.serialize_entry("requestId", request_id)?;
    Ok(map)
}

/// A row within an answer: garbled is the answer's fault, and not the store's.
fn row<T>(
    fields: &Fields<'_>,
    member: &'static str,
    read: impl FnOnce(serde_json::Value) -> Result<T, EpError>,
) -> Result<T, EpError> {
    let refuse = || fields.bad(member, "the row that the contract describes");
    let text = fields.value(member).ok_or_else(refuse)?.stringify();
    serde_json::from_str(&text).ok().and_then(|value| read(value).ok()).ok_or_else(refuse)
}

fn revision(fields: &Fields<'_>) -> Result<Revision, EpError> {
    fields.integer("revision", 1).map(Revision)
}

fn admission_of(fields: &Fields<'_>, run: &RunId) -> Result<RunAdmission, EpError> {
    let admission = row(fields, "admission", RunAdmission::of_value)?;
    if admission.run() == run { Ok(admission) } else { Err(fields.bad("admission", "of the same run")) }
}

// === impl RunAdmissionResult ===

impl RunAdmissionResult {
    /// Reads an answer; `bad-request` for anything outside its closed shape.
    pub fn parse(answer: &EsValue) -> Result<Self, EpError> {
        let fields = closed(Kind::RunAdmission, answer, &["runId", "revision", "admission"])?;
        let run_id = fields.token("runId")?;
        Ok(Self {
            request_id: fields.token("requestId")?,
            revision: revision(&fields)?,
            admission: admission_of(&fields, &run_id)?,
            run_id,
        })
    }
}

impl Serialize for RunAdmissionResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = head(serializer, Kind::RunAdmission, &self.request_id, 3)?;
        map.serialize_entry("runId", &self.run_id)?;
        map.serialize_entry("revision", &self.revision.0)?;
        map.serialize_entry("admission", &self.admission.to_value())?;
        map.end()
    }
}

// === impl RunSubmissionResult ===

impl RunSubmissionResult {
    /// Reads an answer; `bad-request` for anything outside its closed shape.
    pub fn parse(answer: &EsValue) -> Result<Self, EpError> {
        let more = ["submissionId", "runId", "revision", "admission", "created"];
        let fields = closed(Kind::RunSubmission, answer, &more)?;
        let run_id = fields.token("runId")?;
        let created = match fields.value("created") {
            Some(EsValue::Bool(created)) => *created,
            _ => return Err(fields.bad("created", "true or false")),
        };
        Ok(Self {
            request_id: fields.token("requestId")?,
            submission_id: fields.token("submissionId")?,
            revision: revision(&fields)?,
            admission: admission_of(&fields, &run_id)?,
            run_id,
            created,
        })
    }
}

impl Serialize for RunSubmissionResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = head(serializer, Kind::RunSubmission, &self.request_id, 5)?;
        map.serialize_entry("submissionId", &self.submission_id)?;
        map.serialize_entry("runId", &self.run_id)?;
        map.serialize_entry("revision", &self.revision.0)?;
        map.serialize_entry("admission", &self.admission.to_value())?;
        map.serialize_entry("created", &self.created)?;
        map.end()
    }
}

// === impl RunRevocationResult ===

impl RunRevocationResult {
    /// Reads the answer to a revocation; `bad-request` for anything outside its closed shape.
    pub fn parse_revoke(answer: &EsValue) -> Result<Self, EpError> {
        Self::parse(Kind::RunRevoke, answer)
    }

    /// Reads the answer to a cancellation; `bad-request` for anything outside its closed shape.
    pub fn parse_cancel(answer: &EsValue) -> Result<Self, EpError> {
        Self::parse(Kind::RunCancel, answer)
    }

    fn parse(kind: Kind, answer: &EsValue) -> Result<Self, EpError> {
        let fields = closed(kind, answer, &["runId", "revocation"])?;
        let run_id: RunId = fields.token("runId")?;
        let revocation = row(&fields, "revocation", RunRevocation::of_value)?;
        if revocation.run != run_id {
            return Err(fields.bad("revocation", "of the same run"));
        }
        Ok(Self { request_id: fields.token("requestId")?, run_id, revocation })
    }

    /// The answer to a revocation.
    pub fn of_revoke(&self) -> impl Serialize + '_ {
        OfKind(Kind::RunRevoke, self)
    }

    /// The answer to a cancellation.
    pub fn of_cancel(&self) -> impl Serialize + '_ {
        OfKind(Kind::RunCancel, self)
    }
}

struct OfKind<'a>(Kind, &'a RunRevocationResult);

impl Serialize for OfKind<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(kind, result) = self;
        let mut map = head(serializer, *kind, &result.request_id, 2)?;
        map.serialize_entry("runId", &result.run_id)?;
        map.serialize_entry("revocation", &result.revocation.to_value())?;
        map.end()
    }
}

// === impl RunAttemptResult ===

fn jwt(credentials: &Fields<'_>, member: &'static str) -> Result<IssuedJwt, EpError> {
    let fields = credentials.inner("credentials", member)?.exactly(&["jwt", "exp"])?;
    let text = fields.text("jwt")?;
    if text.len() > MAX_USER_JWT {
        return Err(fields.bad("jwt", "no longer than a user's may be"));
    }
    Ok(IssuedJwt { jwt: text.to_owned(), exp: UnixSecs(fields.integer("exp", 1)?) })
}

impl RunAttemptResult {
    /// The answer to a request, with what was signed for it. `None` when the proof is missing, which its parser excludes.
    pub fn of(
        envelope: &Envelope,
        owner: &Owner,
        pins: &Renewal,
        credentials: RunCredentials,
    ) -> Option<Self> {
        Some(Self {
            space: envelope.space.clone(),
            owner: owner.clone(),
            actor: envelope.actor.clone(),
            instance_id: envelope.instance_id.clone(),
            manager_lifecycle_uid: envelope.manager_lifecycle_uid.clone(),
            request_id: envelope.request_id.clone(),
            registration_proof: envelope.registration_proof.clone()?,
            pins: pins.clone(),
            identities: envelope.identities.clone(),
            credentials,
        })
    }

    /// The turn that was asked for.
    pub fn turn(&self) -> Turn {
        match &self.credentials {
            RunCredentials::Attempt { attempt, .. } => Turn::Attempt(attempt.clone()),
            RunCredentials::Operator { turn, .. } => Turn::Operator(turn.clone()),
        }
    }

    /// Reads an answer; `bad-request` for anything outside its closed shape.
    pub fn parse(answer: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::RunAttempt;
        let fields = Fields::of(kind.as_str(), Some(answer))?;
        let payload = if fields.has("operator") { "operator" } else { "attempt" };
        let fields = fields.exactly(&[
            "v",
            "kind",
            "space",
            "owner",
            "actor",
            "instanceId",
            "managerLifecycleUid",
            "requestId",
            "registrationProof",
            "accountPublicKey",
            "processEpoch",
            "identities",
            payload,
            "credentials",
        ])?;
        version_and_kind(&fields, kind)?;
        let credentials = fields.inner("credentials", "credentials")?;
        let credentials = if payload == "attempt" {
            let credentials = credentials.exactly(&["driver", "mediator"])?;
            RunCredentials::Attempt {
                attempt: Attempt::read(&fields)?,
                driver: jwt(&credentials, "driver")?,
                mediator: jwt(&credentials, "mediator")?,
            }
        } else {
            let credentials = credentials.exactly(&["operator"])?;
            RunCredentials::Operator {
                turn: OperatorTurn::read(&fields)?,
                operator: jwt(&credentials, "operator")?,
            }
        };
        Ok(Self {
            space: fields.text("space")?.to_owned(),
            owner: fields.token("owner")?,
            actor: fields.token("actor")?,
            instance_id: fields.token("instanceId")?,
            manager_lifecycle_uid: fields.token("managerLifecycleUid")?,
            request_id: fields.token("requestId")?,
            registration_proof: fields.token("registrationProof")?,
            pins: Renewal {
                account: fields.token::<Nkey<Account>>("accountPublicKey")?,
                process_epoch: fields.integer("processEpoch", 0)?,
            },
            identities: Identities::read(&fields)?,
            credentials,
        })
    }
}

impl Serialize for RunAttemptResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Pair<'a> {
            driver: &'a IssuedJwt,
            mediator: &'a IssuedJwt,
        }
        #[derive(Serialize)]
        struct One<'a> {
            operator: &'a IssuedJwt,
        }
        let mut map = serializer.serialize_map(Some(14))?;
        map.serialize_entry("v", &VERSION)?;
        map.serialize_entry("kind", Kind::RunAttempt.as_str())?;
        map.serialize_entry("space", &self.space)?;
        map.serialize_entry("owner", &self.owner)?;
        map.serialize_entry("actor", &self.actor)?;
        map.serialize_entry("instanceId", &self.instance_id)?;
        map.serialize_entry("managerLifecycleUid", &self.manager_lifecycle_uid)?;
        map.serialize_entry("requestId", &self.request_id)?;
        map.serialize_entry("registrationProof", &self.registration_proof)?;
        map.serialize_entry("accountPublicKey", &self.pins.account)?;
        map.serialize_entry("processEpoch", &self.pins.process_epoch)?;
        map.serialize_entry("identities", &self.identities)?;
        match &self.credentials {
            RunCredentials::Attempt { attempt, driver, mediator } => {
                map.serialize_entry("attempt", attempt)?;
                map.serialize_entry("credentials", &Pair { driver, mediator })?;
            }
            RunCredentials::Operator { turn, operator } => {
                map.serialize_entry("operator", turn)?;
                map.serialize_entry("credentials", &One { operator })?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        EpCode,
        endpoint_token::{EndpointToken, Generation},
        grants::Permissions,
        manager_authority::RunAttemptRequest,
        rows::{IssuedAuthorityRef, IssuedPermissions},
        time::UnixMillis,
        token::{Principal, SpaceToken},
    };

    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn run() -> RunId {
        RunId::parse(&format!("run-{}", "a".repeat(32))).unwrap()
    }

    fn request_id() -> RequestId {
        RequestId::parse(&"r".repeat(22)).unwrap()
    }

    fn admission() -> RunAdmission {
        let authority = IssuedAuthorityRef {
            space: SpaceToken::parse("main").unwrap(),
            principal: Principal::parse_key(&format!("{OWNER}.alice")).unwrap(),
            uid: LifecycleUid::parse(UID).unwrap(),
            generation: Generation::parse(&"0".repeat(32)).unwrap(),
        };
        RunAdmission::issued(
            &EndpointToken::parse("manager").unwrap(),
            &run(),
            &InstanceId::parse(&"i".repeat(26)).unwrap(),
            (authority, Revision(7)),
            IssuedPermissions::of_grants(&Permissions::default()).unwrap(),
            UnixMillis(5),
        )
    }

    fn revocation() -> RunRevocation {
        RunRevocation { run: run(), by: "a.b".into(), reason: "why".into(), revoked_at: UnixMillis(5) }
    }

    fn es(value: &Value) -> EsValue {
        EsValue::parse(value.to_string().as_bytes()).unwrap()
    }

    /// The text that a host prints, its members in their order.
    fn text(result: &impl Serialize) -> String {
        serde_json::to_string(result).unwrap()
    }

    fn value(result: &impl Serialize) -> Value {
        serde_json::to_value(result).unwrap()
    }

    /// Reads back, and refuses each member that is missing, another, or more.
    fn is_closed<T: std::fmt::Debug + PartialEq>(
        good: &Value,
        result: &T,
        read: impl Fn(&EsValue) -> Result<T, EpError>,
    ) {
        assert_eq!(read(&es(good)).as_ref(), Ok(result));
        let refused = |broken: &Value| {
            let refusal = read(&es(broken)).expect_err(&broken.to_string());
            assert_eq!(refusal.code, EpCode::BadRequest, "{refusal}");
        };
        let mut more = good.clone();
        more["more"] = json!(1);
        refused(&more);
        for member in good.as_object().unwrap().keys() {
            let mut broken = good.clone();
            broken.as_object_mut().unwrap().remove(member);
            refused(&broken);
            broken[member] = json!(null);
            refused(&broken);
        }
        refused(&json!([]));
    }

    #[test]
    fn an_admission_is_answered_as_it_stands_and_reads_back() {
        let result = RunAdmissionResult {
            request_id: request_id(),
            run_id: run(),
            revision: Revision(9),
            admission: admission(),
        };
        let head = format!(
            "{{\"v\":1,\"kind\":\"manager-run-admission\",\"requestId\":\"{}\",\"runId\":\"{}\",\"revision\":9,",
            "r".repeat(22),
            run()
        );
        assert!(text(&result).starts_with(&head), "{}", text(&result));
        is_closed(&value(&result), &result, RunAdmissionResult::parse);
        let mut other = value(&result);
        other["runId"] = json!(format!("run-{}", "b".repeat(32)));
        assert!(RunAdmissionResult::parse(&es(&other)).is_err(), "the admission is of another run");
    }

    #[test]
    fn a_submission_says_whether_it_bound_its_id() {
        for created in [true, false] {
            let result = RunSubmissionResult {
                request_id: request_id(),
                submission_id: SubmissionId::parse("nightly").unwrap(),
                run_id: run(),
                revision: Revision(9),
                admission: admission(),
                created,
            };
            assert!(text(&result).ends_with(&format!("\"created\":{created}}}")), "{}", text(&result));
            is_closed(&value(&result), &result, RunSubmissionResult::parse);
        }
    }

    #[test]
    fn a_revocation_and_a_cancellation_differ_in_their_kind_alone() {
        let result =
            RunRevocationResult { request_id: request_id(), run_id: run(), revocation: revocation() };
        is_closed(&value(&result.of_revoke()), &result, RunRevocationResult::parse_revoke);
        is_closed(&value(&result.of_cancel()), &result, RunRevocationResult::parse_cancel);
        let revoked = es(&value(&result.of_revoke()));
        assert!(RunRevocationResult::parse_cancel(&revoked).is_err(), "it answers another question");
    }

    #[test]
    fn an_attempt_echoes_its_whole_request_and_names_its_credentials() {
        let key = |letter: &str| format!("U{}", letter.repeat(55));
        let holder = |letter: &str| json!({ "id": key(letter) });
        let request = |payload: (&str, Value)| {
            let mut request = json!({
                "v": 1, "kind": "manager-run-attempt", "space": "main", "actor": "cli", "instanceId": "i".repeat(26),
                "managerLifecycleUid": UID, "requestId": "r".repeat(22),
                "registrationProof": format!("sha256:{}", "0".repeat(64)),
                "accountPublicKey": format!("A{}", "A".repeat(55)), "processEpoch": 3,
                "identities": {
                    "supervisor": holder("A"), "executor": holder("B"), "serve": holder("C"),
                    "goalWriter": holder("D"), "sessionLedger": holder("E"),
                },
            });
            request[payload.0] = payload.1;
            RunAttemptRequest::parse(&es(&request)).unwrap()
        };
        let owner = Owner::parse(OWNER).unwrap();
        let jwt = |text: &str| IssuedJwt { jwt: text.into(), exp: UnixSecs(8) };
        let attempt = json!({
            "runId": run(), "takeoverId": "t", "epoch": 1, "fencingToken": 1, "driverId": key("F"),
            "mediatorId": key("G"),
        });
        let operator = json!({
            "id": key("F"), "takeoverId": "t", "answers": { "runId": run(), "stepKey": "s", "amend": true },
            "served": "x",
        });
        for (member, payload) in [("attempt", attempt), ("operator", operator)] {
            let request = request((member, payload.clone()));
            let credentials = match request.turn.clone() {
                Turn::Attempt(attempt) => {
                    RunCredentials::Attempt { attempt, driver: jwt("d"), mediator: jwt("m") }
                }
                Turn::Operator(turn) => RunCredentials::Operator { turn, operator: jwt("o") },
            };
            let result = RunAttemptResult::of(&request.envelope, &owner, &request.pins, credentials).unwrap();
            assert_eq!(result.turn(), request.turn);
            let printed = value(&result);
            assert_eq!(printed[member], payload, "as it was asked for");
            is_closed(&printed, &result, RunAttemptResult::parse);
            let wanted: &[&str] = if member == "attempt" { &["driver", "mediator"] } else { &["operator"] };
            let mut named: Vec<_> = printed["credentials"].as_object().unwrap().keys().collect();
            named.sort();
            assert_eq!(named, wanted);
            let mut long = printed;
            long["credentials"][wanted[0]]["jwt"] = json!("x".repeat(MAX_USER_JWT + 1));
            assert!(RunAttemptResult::parse(&es(&long)).is_err());
        }
    }
}
