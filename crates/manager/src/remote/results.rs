//! What is used of each kind's answer (contract 06 §4.5, §5-12), each bound to the request that it answers.

use std::collections::BTreeMap;

use cotal_trust::{
    creds::{self, Creds},
    idp::is_https_or_loopback,
    nkey::Seed,
};
use cotal_wire::{
    Account, ChannelPattern, DigestRef, Nkey, Owner, OwnerKind, Principal, Space, UnixMillis, User,
    es_value::EsValue,
    grants::runs::RunCaller,
    manager_authority::{
        AdminRequest, AdminResult, CredentialName, EnrollmentRequest, EnrollmentResult, Envelope,
        GoalIndexRequest, GoalIndexResult, HolderKind, HolderState, Incarnation, Kind, MANAGER_ENDPOINT,
        MaintenanceRequest, MaintenanceResult, Mended, Payload, PrepareRetirementRequest,
        PrepareRetirementResult, RemoteManagerAuthorityMaterial, RetainedAgentRequest, RetainedAgentResult,
        RetainedAuthority, RunAdmissionRequest, RunAdmissionResult, RunAttemptRequest, RunAttemptResult,
        RunCancelRequest, RunCredentials, RunRevocationResult, RunRevokeRequest, RunSubmissionRequest,
        RunSubmissionResult, RuntimeRequest, RuntimeResult, ServiceRequest, StandingRole, Turn, Unbound,
        serve_principal,
    },
    rows::{GoalIndexRow, RunAdmission},
};
use url::Url;
use zeroize::Zeroizing;

use super::binding::{Expected, Issued, bind_credential};

/// What earlier answers said of who this manager is. The first answer says it; each later one must agree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// The owner that the host derived from the sign-in.
    pub owner: Option<Owner>,
    /// The space's data account.
    pub account: Option<Nkey<Account>>,
}

/// What an operation of the manager's own lifecycle gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Material {
    /// The owner.
    pub owner: Owner,
    /// The space's data account.
    pub account: Nkey<Account>,
    /// When the host issued it.
    pub issued_at: UnixMillis,
    /// When the first of its credentials ends.
    pub expires_at: UnixMillis,
    /// The proof of the registration, of `activate` alone.
    pub next_proof: Option<DigestRef>,
    credentials: BTreeMap<CredentialName, Issued>,
}

impl Material {
    /// A credential with the seed that this side holds for it. `None` when the answer has none of that name.
    pub fn creds(&self, name: CredentialName, seed: &Seed<User>) -> Option<(Creds, &Issued)> {
        let issued = self.credentials.get(&name)?;
        Some((Creds { jwt: issued.jwt.clone(), seed: seed.clone() }, issued))
    }

    /// Every credential.
    pub fn credentials(&self) -> impl Iterator<Item = (CredentialName, &Issued)> {
        self.credentials.iter().map(|(name, issued)| (*name, issued))
    }
}

fn other(kind: Kind) -> Unbound {
    Unbound(format!("{}: it is the answer to another request", kind.as_str()))
}

/// Binds the answer to a request of the manager's own lifecycle.
pub fn bind_service(request: &ServiceRequest, known: &Known, answer: &EsValue) -> Result<Material, Unbound> {
    let answer = RemoteManagerAuthorityMaterial::parse(answer)?;
    let asked = RemoteManagerAuthorityMaterial::answer(
        request,
        &answer.owner,
        answer.issued_at,
        answer.next_registration_proof.clone(),
        answer.credentials.clone(),
    );
    if asked != answer {
        return Err(other(Kind::Service));
    }
    let owner = answer.owner;
    if known.owner.as_ref().is_some_and(|known| *known != owner) {
        return Err(Unbound("the owner is another one than before".into()));
    }
    if owner.kind() == OwnerKind::Local {
        return Err(Unbound("the owner is nobody who can sign in".into()));
    }
    let envelope = &request.envelope;
    let next_proof = answer.next_registration_proof;
    if next_proof.is_some() && next_proof == envelope.registration_proof {
        return Err(Unbound("nextRegistrationProof is the proof that was sent".into()));
    }
    let mut account = known.account.clone();
    let mut credentials = BTreeMap::new();
    for (name, entry) in answer.credentials.iter() {
        let (key, principal) = holder(request, name, &owner)
            .ok_or_else(|| Unbound(format!("nobody asked for the credential {}", name.as_str())))?;
        let expected = Expected { key, principal: &principal, account: account.as_ref() };
        let issued = bind_credential(name.as_str(), entry, &expected)?;
        account = Some(issued.account.clone());
        credentials.insert(name, issued);
    }
    let account = account.ok_or_else(|| Unbound("there is no credential in it".into()))?;
    let (issued_at, expires_at) = (answer.issued_at, answer.expires_at);
    Ok(Material { owner, account, issued_at, expires_at, next_proof, credentials })
}

/// The key that a request names for a credential, and the principal that it is to connect under.
fn holder<'r>(
    request: &'r ServiceRequest,
    name: CredentialName,
    owner: &Owner,
) -> Option<(&'r Nkey<User>, Principal)> {
    let envelope = &request.envelope;
    if let Some(role) = StandingRole::ALL.into_iter().find(|role| CredentialName::of_role(*role) == name) {
        let principal = Principal::new(owner.clone(), role.actor(&envelope.instance_id));
        return Some((envelope.identities.of(role), principal));
    }
    let serves = || serve_principal(owner, &envelope.instance_id);
    Some(match (name, &request.payload) {
        (CredentialName::SessionServing, Payload::Session(session)) => (&session.id, serves()),
        (CredentialName::RetirementRequester, Payload::Retirement(retirement)) => (&retirement.id, serves()),
        (CredentialName::TransferReader, Payload::Reader(reader)) => (&reader.id, serves()),
        (CredentialName::RunDriver, Payload::Run(_, run)) => {
            (&run.driver_id, RunCaller::of(&run.run_id, owner).principal)
        }
        (CredentialName::RunMediator, Payload::Run(_, run)) => {
            (&run.mediator_id, RunCaller::of(&run.run_id, owner).principal)
        }
        _ => return None,
    })
}

/// An agent that was enrolled, and how it gets in.
#[derive(Clone)]
pub struct Enrolled {
    /// Who it is; the host chose the lifecycle.
    pub agent: Incarnation,
    /// The space's sentinel.
    pub sentinel: Creds,
    /// The sentinel's text, as it is to be kept.
    pub sentinel_text: Zeroizing<String>,
    /// What it joins.
    pub subscribe: Vec<ChannelPattern>,
    /// What it may read.
    pub allow_subscribe: Vec<ChannelPattern>,
    /// What it may write.
    pub allow_publish: Vec<ChannelPattern>,
    /// Where it exchanges its secret for a bearer.
    pub exchange: Url,
    /// Whether the host reserved a runtime for it. For people alone.
    pub runtime_reserved: bool,
}

impl std::fmt::Debug for Enrolled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enrolled").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// Binds the answer to an enrollment (contract 06 §6). The sentinel must be creds, and the exchange a place where a secret
/// may go.
pub fn bind_enrollment(
    request: &EnrollmentRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<Enrolled, Unbound> {
    let EnrollmentResult { material, runtime_intent, .. } = EnrollmentResult::bind(answer, request, owner)?;
    let sentinel_text = Zeroizing::new(material.sentinel_creds);
    let sentinel =
        creds::parse(&sentinel_text).map_err(|why| Unbound(format!("the sentinel is of no use: {why}")))?;
    let exchange = Url::parse(&material.agent_bearer_exchange_url)
        .ok()
        .filter(|url| is_https_or_loopback(url) && url.username().is_empty() && url.password().is_none())
        .ok_or_else(|| {
            Unbound("agentBearerExchangeUrl is not https (or http on a loopback IP literal)".into())
        })?;
    Ok(Enrolled {
        agent: Incarnation {
            owner: material.owner,
            actor: material.actor,
            lifecycle_uid: material.lifecycle_uid,
        },
        sentinel,
        sentinel_text,
        subscribe: material.subscribe,
        allow_subscribe: material.allow_subscribe,
        allow_publish: material.allow_publish,
        exchange,
        runtime_reserved: runtime_intent.is_some(),
    })
}

/// Binds the answer to a preparation: there is nothing in it but that it is done (contract 06 §7).
pub fn bind_prepare_retirement(
    request: &PrepareRetirementRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<(), Unbound> {
    PrepareRetirementResult::bind(answer, request, owner).map(drop)
}

/// Binds the answer to a validation: what the agent may do now (contract 06 §9).
pub fn bind_retained(
    request: &RetainedAgentRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<RetainedAuthority, Unbound> {
    RetainedAgentResult::bind(answer, request, owner, HolderKind::Human).map(|result| result.authority)
}

/// Binds the answer to a goal index scan: rows of this owner's manager goals alone.
pub fn bind_goal_index(
    request: &GoalIndexRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<Vec<GoalIndexRow>, Unbound> {
    GoalIndexResult::bind(answer, request, owner).map(|result| result.entries)
}

/// Binds the answer to an admin question: the whole request, the owner, and one boolean (contract 06 §11).
pub fn bind_admin(request: &AdminRequest, owner: &Owner, answer: &EsValue) -> Result<bool, Unbound> {
    AdminResult::bind(answer, request, owner, HolderKind::Human)
}

/// Binds the answer to maintenance (contract 06 §5). A gate is repaired only behind a holder that is gone, and reopens one
/// generation on at the least.
pub fn bind_maintenance(
    request: &MaintenanceRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<Mended, Unbound> {
    let mended = MaintenanceResult::bind(answer, request, owner)?;
    if let Mended::Reconciled(report) = &mended
        && (report.liveness.state != HolderState::Gone
            || report.reopened_at_generation <= report.before.generation)
    {
        return Err(Unbound("the reconciliation reopened a gate whose holder was not gone".into()));
    }
    Ok(mended)
}

/// Binds a host's answer about a hosted runtime. A stock service refuses both kinds.
pub fn bind_runtime(
    kind: Kind,
    request: &RuntimeRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<RuntimeResult, Unbound> {
    RuntimeResult::bind(answer, kind, request, owner)
}

/// Binds the answer to a run's admission (contract 06 §12.1).
pub fn bind_run_admission(
    request: &RunAdmissionRequest,
    answer: &EsValue,
) -> Result<RunAdmissionResult, Unbound> {
    let answer = RunAdmissionResult::parse(answer)?;
    let bound = answer.request_id == request.envelope.request_id
        && answer.run_id == request.run_id
        && admits_here(&answer.admission, &request.envelope);
    if bound { Ok(answer) } else { Err(other(Kind::RunAdmission)) }
}

/// Whether a run was admitted on the manager that asks, in its space.
fn admits_here(admission: &RunAdmission, envelope: &Envelope) -> bool {
    Space::parse(&envelope.space).is_ok_and(|space| space.token() == *admission.space())
        && *admission.instance() == envelope.instance_id
        && admission.endpoint().as_str() == MANAGER_ENDPOINT
}

/// Binds the answer to a keyed submission. The run is the one that its caller's name stands for, which may be an earlier one.
pub fn bind_run_submission(
    request: &RunSubmissionRequest,
    answer: &EsValue,
) -> Result<RunSubmissionResult, Unbound> {
    let answer = RunSubmissionResult::parse(answer)?;
    let bound = answer.request_id == request.envelope.request_id
        && answer.submission_id == request.submission_id
        && admits_here(&answer.admission, &request.envelope)
        && (answer.run_id == request.run_id || !answer.created);
    if bound { Ok(answer) } else { Err(other(Kind::RunSubmission)) }
}

/// Binds the answer to a cancellation: a marker, perhaps an earlier one.
pub fn bind_run_cancel(request: &RunCancelRequest, answer: &EsValue) -> Result<(), Unbound> {
    let answer = RunRevocationResult::parse_cancel(answer)?;
    let bound = answer.request_id == request.envelope.request_id && answer.run_id == request.run_id;
    if bound { Ok(()) } else { Err(other(Kind::RunCancel)) }
}

/// What a turn at a run gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnMaterial {
    /// A driver's turn.
    Attempt {
        /// The driver's.
        driver: Issued,
        /// The mediator's.
        mediator: Issued,
    },
    /// An operator's turn.
    Operator(Issued),
}

/// Binds the answer to an attempt or an operator's turn (contract 06 §12.2). Whoever asked for the run, its credentials are
/// the manager's owner's.
pub fn bind_run_attempt(
    request: &RunAttemptRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<TurnMaterial, Unbound> {
    let answer = RunAttemptResult::parse(answer)?;
    let envelope = &request.envelope;
    let asked = RunAttemptResult::of(envelope, owner, &request.pins, answer.credentials.clone());
    if asked.as_ref() != Some(&answer) || answer.turn() != request.turn {
        return Err(other(Kind::RunAttempt));
    }
    let account = Some(&request.pins.account);
    Ok(match (&answer.credentials, &request.turn) {
        (RunCredentials::Attempt { driver, mediator, .. }, Turn::Attempt(attempt)) => {
            let principal = &RunCaller::of(&attempt.run_id, owner).principal;
            let expected = |key| Expected { key, principal, account };
            TurnMaterial::Attempt {
                driver: bind_credential("driver", driver, &expected(&attempt.driver_id))?,
                mediator: bind_credential("mediator", mediator, &expected(&attempt.mediator_id))?,
            }
        }
        (RunCredentials::Operator { operator, .. }, Turn::Operator(turn)) => {
            let principal = &Principal::new(owner.clone(), envelope.actor.clone());
            let expected = Expected { key: &turn.id, principal, account };
            TurnMaterial::Operator(bind_credential("operator", operator, &expected)?)
        }
        _ => return Err(other(Kind::RunAttempt)),
    })
}

/// Binds the answer to a run's revocation: a marker, perhaps an earlier one (contract 06 §12.4).
pub fn bind_run_revoke(request: &RunRevokeRequest, answer: &EsValue) -> Result<(), Unbound> {
    let answer = RunRevocationResult::parse_revoke(answer)?;
    let bound = answer.request_id == request.envelope.request_id && answer.run_id == request.run_id;
    if bound { Ok(()) } else { Err(other(Kind::RunRevoke)) }
}
