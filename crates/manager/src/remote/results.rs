//! What is used of each kind's answer (contract 06 §4.5, §5-12), each bound to the request that it answers.

use std::collections::BTreeMap;

use cotal_trust::{
    creds::{self, Creds},
    idp::is_https_or_loopback,
    nkey::Seed,
};
use cotal_wire::{
    Account, Actor, ChannelPattern, DigestRef, LifecycleUid, Nkey, OpId, Owner, OwnerKind, Principal, Role,
    ScopeEntry, UnixMillis, User,
    es_value::{EsValue, within},
    manager_authority::{
        AdminRequest, EnrollmentRequest, GoalIndexRequest, Incarnation, Kind, MAX_SENTINEL_CREDS,
        MaintenanceRequest, Mend, Operation, Payload, PrepareRetirementRequest, RetainedAgentRequest,
        RunAdmissionRequest, RunAttemptRequest, RunRevokeRequest, RuntimeRequest, ServiceRequest,
        StandingRole, Turn, serve_principal,
    },
};
use url::Url;
use zeroize::Zeroizing;

use super::binding::{Bound, Expected, Issued, Unbound};

/// Longest note of a goal, in UTF-16 units (contract 08 §8.3).
const MAX_NOTE: std::num::NonZeroU32 = std::num::NonZeroU32::new(65_536).unwrap();

/// What earlier answers said of who this manager is. The first answer says it; each later one must agree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// The owner that the host derived from the sign-in.
    pub owner: Option<Owner>,
    /// The space's data account.
    pub account: Option<Nkey<Account>>,
}

/// A credential of an answer, by the member that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member {
    /// A standing one.
    Standing(StandingRole),
    /// `sessionServing`
    SessionServing,
    /// `retirementRequester`
    RetirementRequester,
    /// `runDriver`
    RunDriver,
    /// `runMediator`
    RunMediator,
    /// `transferReader`
    TransferReader,
    /// `driver`, of an attempt.
    Driver,
    /// `mediator`, of an attempt.
    Mediator,
    /// `operator`, of an attempt.
    Operator,
}

impl Member {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Standing(role) => role.as_str(),
            Self::SessionServing => "sessionServing",
            Self::RetirementRequester => "retirementRequester",
            Self::RunDriver => "runDriver",
            Self::RunMediator => "runMediator",
            Self::TransferReader => "transferReader",
            Self::Driver => "driver",
            Self::Mediator => "mediator",
            Self::Operator => "operator",
        }
    }
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
    credentials: BTreeMap<Member, Issued>,
}

impl Material {
    /// A credential with the seed that this side holds for it. `None` when the answer has none for that key.
    pub fn creds(&self, member: Member, seed: &Seed<User>) -> Option<(Creds, &Issued)> {
        let issued = self.credentials.get(&member)?;
        Some((Creds { jwt: issued.jwt.clone(), seed: seed.clone() }, issued))
    }

    /// Every credential.
    pub fn credentials(&self) -> impl Iterator<Item = (Member, &Issued)> {
        self.credentials.iter().map(|(member, issued)| (*member, issued))
    }
}

/// The roles whose credentials an operation gives; `None` when it gives one that is no standing one.
const fn standing(operation: Operation) -> Option<&'static [StandingRole]> {
    use StandingRole::{Executor, GoalWriter, Serve, SessionLedger, Supervisor};
    Some(match operation {
        Operation::Prepare | Operation::Renew => &[Supervisor, Executor],
        Operation::Activate => &[Serve, GoalWriter, SessionLedger],
        Operation::RenewStandingBundle => &StandingRole::ALL,
        Operation::Session | Operation::Retire | Operation::RenewRunDriver | Operation::TransferReader => {
            return None;
        }
    })
}

/// Binds the answer to a request of the manager's own lifecycle.
pub fn bind_service(request: &ServiceRequest, known: &Known, answer: &EsValue) -> Result<Material, Unbound> {
    let envelope = &request.envelope;
    let mut members = vec![
        "v",
        "kind",
        "operation",
        "space",
        "owner",
        "actor",
        "instanceId",
        "lifecycleUid",
        "requestId",
        "issuedAt",
        "expiresAt",
        "actors",
        "identities",
        "credentials",
    ];
    if envelope.registration_proof.is_some() {
        members.push("registrationProof");
    }
    match &request.payload {
        Payload::Standing(_) => members.extend(["accountPublicKey", "processEpoch"]),
        Payload::Run(..) => members.extend(["accountPublicKey", "processEpoch", "run"]),
        Payload::Retirement(_) => members.push("retirement"),
        Payload::None | Payload::Artifacts(_) | Payload::Session(_) | Payload::Reader(_) => {}
    }
    if request.operation == Operation::Activate {
        members.push("nextRegistrationProof");
    }
    let answer = Bound::answer(Kind::Service, answer)?.closed(&members, &[])?;
    answer.coordinates(Kind::Service, envelope, "lifecycleUid")?;
    answer.same("operation", &request.operation.as_str())?;
    if let Some(proof) = &envelope.registration_proof {
        answer.same("registrationProof", proof)?;
    }
    match &request.payload {
        Payload::Standing(renewal) | Payload::Run(renewal, _) => {
            answer.same("accountPublicKey", &renewal.account)?;
            answer.same("processEpoch", &renewal.process_epoch)?;
        }
        _ => {}
    }
    match &request.payload {
        Payload::Run(_, run) => answer.same("run", run)?,
        Payload::Retirement(retirement) => answer.same("retirement", retirement)?,
        _ => {}
    }
    answer.actors(envelope)?;
    answer.same("identities", &envelope.identities)?;
    let owner = owner(&answer, known)?;

    let next_proof = if request.operation == Operation::Activate {
        let next: DigestRef = answer.token("nextRegistrationProof")?;
        if Some(&next) == envelope.registration_proof.as_ref() {
            return Err(answer.unbound("nextRegistrationProof", "is the proof that was sent"));
        }
        Some(next)
    } else {
        None
    };

    let of_role = |role: StandingRole| {
        let principal = Principal::new(owner.clone(), role.actor(&envelope.instance_id));
        (Member::Standing(role), envelope.identities.of(role).clone(), principal)
    };
    let serves = || serve_principal(&owner, &envelope.instance_id);
    let expected: Vec<(Member, Nkey<User>, Principal)> = match (&request.payload, standing(request.operation))
    {
        (_, Some(roles)) => roles.iter().map(|role| of_role(*role)).collect(),
        (Payload::Session(session), None) => vec![(Member::SessionServing, session.id.clone(), serves())],
        (Payload::Retirement(retirement), None) => {
            vec![(Member::RetirementRequester, retirement.id.clone(), serves())]
        }
        (Payload::Reader(reader), None) => vec![(Member::TransferReader, reader.id.clone(), serves())],
        (Payload::Run(_, run), None) => {
            let caller = run_caller(&owner, run.run_id.as_str());
            vec![
                (Member::RunDriver, run.driver_id.clone(), caller.clone()),
                (Member::RunMediator, run.mediator_id.clone(), caller),
            ]
        }
        (_, None) => return Err(answer.unbound("operation", "has no credentials")),
    };
    let (credentials, account) = credentials(&answer, &expected, known)?;
    let issued_at = UnixMillis(answer.integer("issuedAt")?);
    let expires_at = answer.integer("expiresAt")?;
    let first = credentials.values().map(|issued| issued.exp).min();
    if first.map(|exp| exp.to_millis().0) != Some(expires_at) {
        return Err(answer.unbound("expiresAt", "is not when the first of its credentials ends"));
    }
    Ok(Material { owner, account, issued_at, expires_at: UnixMillis(expires_at), next_proof, credentials })
}

/// The principal under which a run is driven: it follows from the run's id and its owner (contract 01 §6.10, 03 §J).
fn run_caller(owner: &Owner, run_id: &str) -> Principal {
    let digest = cotal_wire::canonical::raw_digest(run_id.as_bytes());
    let hex = digest.hex();
    let actor = format!("wf_{}", &hex.as_str()[..12]);
    #[allow(clippy::expect_used, reason = "wf_ and twelve of 0-9 a-f")]
    let actor = Actor::parse(&actor).expect("a run caller's actor is an actor");
    Principal::new(owner.clone(), actor)
}

/// The owner of an answer: derived from a sign-in, and the same as ever.
fn owner(answer: &Bound<'_>, known: &Known) -> Result<Owner, Unbound> {
    let owner: Owner = answer.token("owner")?;
    match &known.owner {
        Some(known) if *known != owner => Err(answer.unbound("owner", "is another one than before")),
        None if owner.kind() == OwnerKind::Local => Err(answer.unbound("owner", "is nobody who can sign in")),
        _ => Ok(owner),
    }
}

/// Exactly the expected credentials, all of one account.
fn credentials(
    answer: &Bound<'_>,
    expected: &[(Member, Nkey<User>, Principal)],
    known: &Known,
) -> Result<(BTreeMap<Member, Issued>, Nkey<Account>), Unbound> {
    let names: Vec<&str> = expected.iter().map(|(member, ..)| member.as_str()).collect();
    let entries = answer.inner("credentials", "credentials")?.closed(&names, &[])?;
    let mut account = known.account.clone();
    let mut credentials = BTreeMap::new();
    for (member, key, principal) in expected {
        let wanted = Expected { key, principal: principal.clone(), account: account.as_ref() };
        let issued = entries.issued(member.as_str(), &wanted)?;
        account = Some(issued.account.clone());
        credentials.insert(*member, issued);
    }
    let account = account.ok_or_else(|| answer.unbound("credentials", "are none"))?;
    Ok((credentials, account))
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

/// Binds the answer to an enrollment (contract 06 §6).
pub fn bind_enrollment(
    request: &EnrollmentRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<Enrolled, Unbound> {
    let kind = Kind::Enrollment;
    let answer = Bound::answer(kind, answer)?.closed(
        &[
            "v",
            "kind",
            "space",
            "owner",
            "actor",
            "instanceId",
            "managerLifecycleUid",
            "requestId",
            "registrationProof",
            "serveEpoch",
            "material",
        ],
        &["runtimeIntent"],
    )?;
    answer.coordinates(kind, &request.envelope, "managerLifecycleUid")?;
    answer.same("owner", owner)?;
    answer.same("registrationProof", &request.envelope.registration_proof)?;
    answer.same("serveEpoch", &request.serve_epoch)?;
    let runtime_reserved = answer.has("runtimeIntent");
    if runtime_reserved {
        let intent = answer.inner("runtimeIntent", "runtimeIntent")?.closed(&["state"], &[])?;
        intent.same("state", &"reserved")?;
    }
    let material = answer.inner("material", "material")?.closed(
        &[
            "owner",
            "actor",
            "lifecycleUid",
            "sentinelCreds",
            "subscribe",
            "allowSubscribe",
            "allowPublish",
            "agentBearerExchangeUrl",
        ],
        &[],
    )?;
    material.same("owner", owner)?;
    material.same("actor", &request.target.actor)?;
    let lifecycle_uid: LifecycleUid = material.token("lifecycleUid")?;
    let text = material.text("sentinelCreds")?;
    if !within(text, MAX_SENTINEL_CREDS) {
        return Err(material.unbound("sentinelCreds", "is longer than creds are, or empty"));
    }
    let sentinel = creds::parse(text).map_err(|why| material.unbound("sentinelCreds", &why.to_string()))?;
    material.same("subscribe", &request.target.subscribe.clone().unwrap_or_default())?;
    let exchange = Url::parse(material.text("agentBearerExchangeUrl")?)
        .ok()
        .filter(|url| is_https_or_loopback(url) && url.username().is_empty() && url.password().is_none())
        .ok_or_else(|| {
            material.unbound("agentBearerExchangeUrl", "is not https (or http on a loopback IP literal)")
        })?;
    Ok(Enrolled {
        agent: Incarnation { owner: owner.clone(), actor: request.target.actor.clone(), lifecycle_uid },
        sentinel,
        sentinel_text: Zeroizing::new(text.to_owned()),
        subscribe: material.tokens("subscribe")?,
        allow_subscribe: material.tokens("allowSubscribe")?,
        allow_publish: material.tokens("allowPublish")?,
        exchange,
        runtime_reserved,
    })
}

/// Binds the answer to a preparation: there is nothing in it but that it is done (contract 06 §7).
pub fn bind_prepare_retirement(
    request: &PrepareRetirementRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<(), Unbound> {
    let kind = Kind::PrepareRetirement;
    let answer = Bound::answer(kind, answer)?.closed(
        &[
            "v",
            "kind",
            "space",
            "owner",
            "actor",
            "instanceId",
            "managerLifecycleUid",
            "requestId",
            "target",
            "opId",
            "prepared",
        ],
        &[],
    )?;
    answer.coordinates(kind, &request.envelope, "managerLifecycleUid")?;
    answer.same("owner", owner)?;
    answer.same("target", &request.target)?;
    answer.same("opId", &request.op_id)?;
    answer.same("prepared", &true)
}

/// What a retained agent may do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedAuthority {
    /// Its capabilities.
    pub scope: Vec<ScopeEntry>,
    /// What it may read.
    pub allow_subscribe: Vec<ChannelPattern>,
    /// What it may write.
    pub allow_publish: Vec<ChannelPattern>,
    /// Its role.
    pub role: Option<Role>,
    /// Who spawned it, `<owner>.<actor>`.
    pub parent: Option<String>,
}

/// Binds the answer to a validation (contract 06 §9).
pub fn bind_retained(
    request: &RetainedAgentRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<RetainedAuthority, Unbound> {
    let kind = Kind::RetainedAgentValidation;
    let answer = Bound::answer(kind, answer)?.closed(
        &[
            "v",
            "kind",
            "space",
            "owner",
            "actor",
            "instanceId",
            "managerLifecycleUid",
            "requestId",
            "registrationProof",
            "serveEpoch",
            "target",
            "authority",
        ],
        &[],
    )?;
    answer.coordinates(kind, &request.envelope, "managerLifecycleUid")?;
    answer.same("owner", owner)?;
    answer.same("registrationProof", &request.envelope.registration_proof)?;
    answer.same("serveEpoch", &request.serve_epoch)?;
    answer.same("target", &request.target)?;
    let authority = answer.inner("authority", "authority")?.closed(
        &["owner", "actor", "lifecycleUid", "scope", "allowSubscribe", "allowPublish"],
        &["role", "parent"],
    )?;
    authority.same("owner", &request.target.owner)?;
    authority.same("actor", &request.target.actor)?;
    authority.same("lifecycleUid", &request.target.lifecycle_uid)?;
    Ok(RetainedAuthority {
        scope: authority.tokens("scope")?,
        allow_subscribe: authority.tokens("allowSubscribe")?,
        allow_publish: authority.tokens("allowPublish")?,
        role: authority.has("role").then(|| authority.token("role")).transpose()?,
        parent: authority.has("parent").then(|| authority.text("parent").map(str::to_owned)).transpose()?,
    })
}

/// A row of the goal index (contract 06 §10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoalEntry {
    /// Who asked for the goal.
    pub by: Incarnation,
    /// The goal.
    pub goal_id: String,
    /// The manager instance that took it.
    pub instance: String,
    /// The agent that it became, if it did.
    pub allocated: Option<Allocated>,
    /// What is noted of it.
    pub note: Option<String>,
}

/// The agent of a goal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocated {
    /// Its name.
    pub name: String,
    /// Its actor.
    pub actor: String,
    /// Its lifecycle.
    pub uid: String,
    /// When it is to be ready, in Unix milliseconds.
    pub readiness_deadline_ms: Option<u64>,
}

/// Binds the answer to a goal index scan: rows of this owner's manager goals alone.
pub fn bind_goal_index(
    request: &GoalIndexRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<Vec<GoalEntry>, Unbound> {
    let kind = Kind::GoalIndexScan;
    let answer = Bound::answer(kind, answer)?.closed(
        &[
            "v",
            "kind",
            "space",
            "owner",
            "actor",
            "instanceId",
            "managerLifecycleUid",
            "requestId",
            "registrationProof",
            "serveEpoch",
            "entries",
        ],
        &[],
    )?;
    answer.coordinates(kind, &request.envelope, "managerLifecycleUid")?;
    answer.same("owner", owner)?;
    answer.same("registrationProof", &request.envelope.registration_proof)?;
    answer.same("serveEpoch", &request.serve_epoch)?;
    answer.each("entries", "entries", |row| {
        let row =
            row.closed(&["v", "endpoint", "owner", "actor", "uid", "goalId", "iid"], &["allocated", "note"])?;
        row.same("v", &1)?;
        row.same("endpoint", &"manager")?;
        row.same("owner", owner)?;
        let note = row.has("note").then(|| row.text("note")).transpose()?;
        if note.is_some_and(|note| !note.is_empty() && !within(note, MAX_NOTE)) {
            return Err(row.unbound("note", "is longer than a note"));
        }
        Ok(GoalEntry {
            by: Incarnation {
                owner: owner.clone(),
                actor: row.token("actor")?,
                lifecycle_uid: row.token("uid")?,
            },
            goal_id: row.text("goalId")?.to_owned(),
            instance: row.text("iid")?.to_owned(),
            allocated: row.has("allocated").then(|| allocated(&row)).transpose()?,
            note: note.map(str::to_owned),
        })
    })
}

fn allocated(row: &Bound<'_>) -> Result<Allocated, Unbound> {
    let allocated = row
        .inner("entries.allocated", "allocated")?
        .closed(&["name", "actor", "uid"], &["readinessDeadlineMs"])?;
    let deadline =
        allocated.has("readinessDeadlineMs").then(|| allocated.integer("readinessDeadlineMs")).transpose()?;
    if deadline == Some(0) {
        return Err(allocated.unbound("readinessDeadlineMs", "is not positive"));
    }
    Ok(Allocated {
        name: allocated.text("name")?.to_owned(),
        actor: allocated.text("actor")?.to_owned(),
        uid: allocated.text("uid")?.to_owned(),
        readiness_deadline_ms: deadline,
    })
}

/// Binds the answer to an admin question: the whole request, the owner, and one boolean (contract 06 §11).
pub fn bind_admin(request: &AdminRequest, owner: &Owner, answer: &EsValue) -> Result<bool, Unbound> {
    let kind = Kind::AdminAuthorization;
    let answer = Bound::answer(kind, answer)?.closed(
        &[
            "v",
            "kind",
            "space",
            "actor",
            "instanceId",
            "managerLifecycleUid",
            "requestId",
            "registrationProof",
            "serveEpoch",
            "caller",
            "identities",
            "owner",
            "authorized",
        ],
        &[],
    )?;
    answer.coordinates(kind, &request.envelope, "managerLifecycleUid")?;
    answer.same("owner", owner)?;
    answer.same("registrationProof", &request.envelope.registration_proof)?;
    answer.same("serveEpoch", &request.serve_epoch)?;
    answer.same("identities", &request.envelope.identities)?;
    answer.same("caller", &request.caller)?;
    answer.boolean("authorized")
}

/// What an eviction of one principal came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionVerdict {
    /// The principal, as it was asked for.
    pub principal: String,
    /// Connections that were told to go.
    pub kicked: u64,
    /// Connections at the last look.
    pub remaining: u64,
    /// The one answer that counts.
    pub verified_gone: bool,
    /// Whether every server was heard.
    pub scan_complete: bool,
    /// Why it is not verified.
    pub note: Option<String>,
}

/// What maintenance came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mended {
    /// One verdict for each principal, in the order of the request.
    Evicted(Vec<EvictionVerdict>),
    /// The gate reopened at this generation.
    Reconciled(u64),
}

/// Binds the answer to maintenance (contract 06 §5).
pub fn bind_maintenance(
    request: &MaintenanceRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<Mended, Unbound> {
    let kind = Kind::Maintenance;
    let mut members = vec![
        "v",
        "kind",
        "operation",
        "space",
        "owner",
        "actor",
        "instanceId",
        "managerLifecycleUid",
        "requestId",
        "identities",
        "targetInstanceId",
    ];
    members.extend(match &request.mend {
        Mend::Evict(_) => &["principals", "evictions"][..],
        Mend::Reconcile => &["reconciliation"][..],
    });
    let answer = Bound::answer(kind, answer)?.closed(&members, &[])?;
    answer.coordinates(kind, &request.envelope, "managerLifecycleUid")?;
    answer.same("operation", &request.mend.operation())?;
    answer.same("owner", owner)?;
    answer.same("identities", &request.envelope.identities)?;
    answer.same("targetInstanceId", &request.target_instance_id)?;
    match &request.mend {
        Mend::Evict(principals) => {
            answer.same("principals", principals)?;
            let verdicts = answer.each("evictions", "evictions", |verdict| {
                let verdict = verdict.closed(
                    &["principal", "kicked", "remaining", "verifiedGone", "scanComplete"],
                    &["note"],
                )?;
                Ok(EvictionVerdict {
                    principal: verdict.text("principal")?.to_owned(),
                    kicked: verdict.integer("kicked")?,
                    remaining: verdict.integer("remaining")?,
                    verified_gone: verdict.boolean("verifiedGone")?,
                    scan_complete: verdict.boolean("scanComplete")?,
                    note: verdict.has("note").then(|| verdict.text("note").map(str::to_owned)).transpose()?,
                })
            })?;
            let in_order = verdicts.len() == principals.len()
                && verdicts.iter().zip(principals).all(|(verdict, asked)| verdict.principal == *asked);
            if !in_order {
                return Err(answer.unbound("evictions", "are of other principals than were asked for"));
            }
            // Gone means that nothing remained of it, at a look that heard everyone.
            if verdicts.iter().any(|verdict| verdict.verified_gone && verdict.remaining > 0) {
                return Err(answer.unbound("evictions", "call one gone that remained"));
            }
            Ok(Mended::Evicted(verdicts))
        }
        Mend::Reconcile => {
            let report = answer.inner("reconciliation", "reconciliation")?.closed(
                &[
                    "endpoint",
                    "instanceId",
                    "holderPrincipal",
                    "opId",
                    "freezeToken",
                    "before",
                    "liveness",
                    "familyRows",
                    "revoked",
                    "evicted",
                    "reopenedAtGeneration",
                ],
                &[],
            )?;
            report.same("endpoint", &"manager")?;
            report.same("instanceId", &request.target_instance_id)?;
            report.text("holderPrincipal")?;
            report.token::<OpId>("opId")?;
            // A revision of the store, which the contract prints as a number or as text.
            report.integer("freezeToken").or_else(|_| report.text("freezeToken").map(|_| 0))?;
            let before = report.inner("reconciliation.before", "before")?.closed(
                &["generation", "processEpoch", "registrationRevision", "nameAuthorityRevision"],
                &[],
            )?;
            for member in ["generation", "processEpoch", "registrationRevision", "nameAuthorityRevision"] {
                before.integer(member)?;
            }
            let liveness =
                report.inner("reconciliation.liveness", "liveness")?.closed(&["state", "detail"], &[])?;
            liveness.same("state", &"gone")?;
            liveness.text("detail")?;
            report.integer("familyRows")?;
            report.texts("revoked")?;
            report.texts("evicted")?;
            let reopened = report.integer("reopenedAtGeneration")?;
            if reopened <= before.integer("generation")? {
                return Err(report.unbound("reopenedAtGeneration", "is not past the frozen one"));
            }
            Ok(Mended::Reconciled(reopened))
        }
    }
}

/// How a hosted runtime is (contract 06 §8). For people; nothing is decided by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeState {
    /// `reserved`, `creating`, `bound`, `create-unknown`, `closing` or `closed`.
    pub state: String,
    /// `ready`, `bound-not-ready` or `none`.
    pub readiness: String,
    /// `intent`, `released`, `retired`, `deprovisioned` or `terminal`.
    pub retirement_phase: Option<String>,
}

const STATES: [&str; 6] = ["reserved", "creating", "bound", "create-unknown", "closing", "closed"];
const READINESS: [&str; 3] = ["ready", "bound-not-ready", "none"];
const PHASES: [&str; 5] = ["intent", "released", "retired", "deprovisioned", "terminal"];

/// Binds a host's answer about a hosted runtime. A stock service refuses both kinds.
pub fn bind_runtime(
    kind: Kind,
    request: &RuntimeRequest,
    owner: &Owner,
    answer: &EsValue,
) -> Result<RuntimeState, Unbound> {
    let answer = Bound::answer(kind, answer)?.closed(
        &[
            "v",
            "kind",
            "space",
            "owner",
            "actor",
            "instanceId",
            "managerLifecycleUid",
            "requestId",
            "target",
            "state",
            "readiness",
        ],
        &["retirementPhase"],
    )?;
    answer.coordinates(kind, &request.envelope, "managerLifecycleUid")?;
    answer.same("owner", owner)?;
    answer.same("owner", &request.target.owner)?;
    answer.same("target", &request.target)?;
    let word = |member: &str, words: &[&str]| {
        let said = answer.text(member)?;
        if words.contains(&said) {
            Ok(said.to_owned())
        } else {
            Err(answer.unbound(member, "is no word of this contract"))
        }
    };
    Ok(RuntimeState {
        state: word("state", &STATES)?,
        readiness: word("readiness", &READINESS)?,
        retirement_phase: answer
            .has("retirementPhase")
            .then(|| word("retirementPhase", &PHASES))
            .transpose()?,
    })
}

/// Binds the answer to a run's admission; the revision at which it stands (contract 06 §12.1).
pub fn bind_run_admission(request: &RunAdmissionRequest, answer: &EsValue) -> Result<u64, Unbound> {
    let kind = Kind::RunAdmission;
    let answer = Bound::answer(kind, answer)?
        .closed(&["v", "kind", "requestId", "runId", "revision", "admission"], &[])?;
    answer.same("v", &1)?;
    answer.same("kind", &kind.as_str())?;
    answer.same("requestId", &request.envelope.request_id)?;
    answer.same("runId", &request.run_id)?;
    let admission = answer.inner("admission", "admission")?.closed(
        &[
            "version",
            "space",
            "endpoint",
            "runId",
            "instanceId",
            "caller",
            "ceiling",
            "provenance",
            "admittedAt",
        ],
        &[],
    )?;
    admission.same("version", &1)?;
    admission.same("space", &request.envelope.space)?;
    admission.same("endpoint", &"manager")?;
    admission.same("runId", &request.run_id)?;
    admission.same("instanceId", &request.envelope.instance_id)?;
    admission.integer("admittedAt")?;
    match answer.integer("revision")? {
        0 => Err(answer.unbound("revision", "is none")),
        revision => Ok(revision),
    }
}

/// What a turn at a run gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnMaterial {
    credentials: BTreeMap<Member, Issued>,
}

impl TurnMaterial {
    /// A credential with the seed that this side holds for it.
    pub fn creds(&self, member: Member, seed: &Seed<User>) -> Option<Creds> {
        let issued = self.credentials.get(&member)?;
        Some(Creds { jwt: issued.jwt.clone(), seed: seed.clone() })
    }
}

/// Binds the answer to an attempt or an operator's turn (contract 06 §12.2). `run_owner` is the admission's caller owner.
pub fn bind_run_attempt(
    request: &RunAttemptRequest,
    owner: &Owner,
    run_owner: &Owner,
    answer: &EsValue,
) -> Result<TurnMaterial, Unbound> {
    let kind = Kind::RunAttempt;
    let payload = match &request.turn {
        Turn::Attempt(_) => "attempt",
        Turn::Operator(_) => "operator",
    };
    let answer = Bound::answer(kind, answer)?.closed(
        &[
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
        ],
        &[],
    )?;
    let envelope = &request.envelope;
    answer.coordinates(kind, envelope, "managerLifecycleUid")?;
    answer.same("owner", owner)?;
    answer.same("registrationProof", &envelope.registration_proof)?;
    answer.same("accountPublicKey", &request.pins.account)?;
    answer.same("processEpoch", &request.pins.process_epoch)?;
    answer.same("identities", &envelope.identities)?;
    let expected = match &request.turn {
        Turn::Attempt(attempt) => {
            answer.same(payload, attempt)?;
            let caller = run_caller(run_owner, attempt.run_id.as_str());
            vec![
                (Member::Driver, attempt.driver_id.clone(), caller.clone()),
                (Member::Mediator, attempt.mediator_id.clone(), caller),
            ]
        }
        Turn::Operator(operator) => {
            answer.same(payload, operator)?;
            let principal = Principal::new(owner.clone(), envelope.actor.clone());
            vec![(Member::Operator, operator.id.clone(), principal)]
        }
    };
    let known = Known { owner: None, account: Some(request.pins.account.clone()) };
    let (credentials, _) = credentials(&answer, &expected, &known)?;
    Ok(TurnMaterial { credentials })
}

/// Binds the answer to a run's revocation: a marker, perhaps an earlier one (contract 06 §12.4).
pub fn bind_run_revoke(request: &RunRevokeRequest, answer: &EsValue) -> Result<(), Unbound> {
    let kind = Kind::RunRevoke;
    let answer =
        Bound::answer(kind, answer)?.closed(&["v", "kind", "requestId", "runId", "revocation"], &[])?;
    answer.same("v", &1)?;
    answer.same("kind", &kind.as_str())?;
    answer.same("requestId", &request.envelope.request_id)?;
    answer.same("runId", &request.run_id)?;
    let marker = answer
        .inner("revocation", "revocation")?
        .closed(&["version", "runId", "by", "reason", "revokedAt"], &[])?;
    marker.same("version", &1)?;
    marker.same("runId", &request.run_id)?;
    marker.text("by")?;
    marker.text("reason")?;
    marker.integer("revokedAt").map(drop)
}
