//! What `manager-service-authority` answers: JWTs for keys that the manager made itself (contract 06 §4.5).
//!
//! The host writes it, the participant reads it; no seed is in it. An absent credential is absent authority.

use std::{collections::BTreeMap, fmt};

use serde::{Serialize, Serializer, ser::SerializeStruct};

use super::{
    HolderKind, Kind, Operation,
    envelope::{Identities, StandingActors, StandingRole, VERSION, version_and_kind},
    fields::Fields,
    service::{Payload, RenewedRun, RequestedRetirement, ServiceRequest},
    tokens::RequestId,
};
use crate::{
    endpoint_token::DigestRef,
    error::EpError,
    es_value::EsValue,
    grants::MAX_USER_JWT,
    time::{MAX_SAFE_INTEGER, UnixMillis, UnixSecs},
    token::{Account, Actor, InstanceId, LifecycleUid, Nkey, Owner},
};

/// What an answer can grant, in the order in which it stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CredentialName {
    /// Profile `remote-manager`, as the supervisor.
    Supervisor,
    /// Profile `remote-manager`, as the executor.
    Executor,
    /// Profile `endpoint-serve`.
    Serve,
    /// Profile `goal-writer`.
    GoalWriter,
    /// Profile `session-ledger`.
    SessionLedger,
    /// Profile `run-driver`.
    RunDriver,
    /// Profile `run-mediator`.
    RunMediator,
    /// Profile `session-serving`.
    SessionServing,
    /// Profile `retirement-requester`.
    RetirementRequester,
    /// Profile `transfer-reader`.
    TransferReader,
}

impl CredentialName {
    /// All ten, in order.
    pub const ALL: [Self; 10] = [
        Self::Supervisor,
        Self::Executor,
        Self::Serve,
        Self::GoalWriter,
        Self::SessionLedger,
        Self::RunDriver,
        Self::RunMediator,
        Self::SessionServing,
        Self::RetirementRequester,
        Self::TransferReader,
    ];

    /// The member that holds it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Supervisor => StandingRole::Supervisor.as_str(),
            Self::Executor => StandingRole::Executor.as_str(),
            Self::Serve => StandingRole::Serve.as_str(),
            Self::GoalWriter => StandingRole::GoalWriter.as_str(),
            Self::SessionLedger => StandingRole::SessionLedger.as_str(),
            Self::RunDriver => "runDriver",
            Self::RunMediator => "runMediator",
            Self::SessionServing => "sessionServing",
            Self::RetirementRequester => "retirementRequester",
            Self::TransferReader => "transferReader",
        }
    }

    /// The credential of a standing identity.
    pub const fn of_role(role: StandingRole) -> Self {
        match role {
            StandingRole::Supervisor => Self::Supervisor,
            StandingRole::Executor => Self::Executor,
            StandingRole::Serve => Self::Serve,
            StandingRole::GoalWriter => Self::GoalWriter,
            StandingRole::SessionLedger => Self::SessionLedger,
        }
    }
}

impl Operation {
    /// What its answer grants: all of these, and on the stock service nothing else (contract 06 §4.3).
    pub const fn grants(self) -> &'static [CredentialName] {
        use CredentialName as C;
        match self {
            Self::Prepare | Self::Renew => &[C::Supervisor, C::Executor],
            Self::Activate => &[C::Serve, C::GoalWriter, C::SessionLedger],
            Self::Session => &[C::SessionServing],
            Self::Retire => &[C::RetirementRequester],
            Self::RenewStandingBundle => {
                &[C::Supervisor, C::Executor, C::Serve, C::GoalWriter, C::SessionLedger]
            }
            Self::RenewRunDriver => &[C::RunDriver, C::RunMediator],
            Self::TransferReader => &[C::TransferReader],
        }
    }
}

/// A JWT that the account signed for a key of the manager's. Without the key's seed it opens nothing.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct IssuedJwt {
    /// Its text.
    pub jwt: String,
    /// When it ends.
    pub exp: UnixSecs,
}

impl fmt::Debug for IssuedJwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedJwt").field("exp", &self.exp).finish_non_exhaustive()
    }
}

/// What an answer grants, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials(BTreeMap<CredentialName, IssuedJwt>);

impl Credentials {
    /// These; `internal` when they are not what the operation grants (contract 06 §4.2 step 6).
    pub fn of(
        operation: Operation,
        issued: impl IntoIterator<Item = (CredentialName, IssuedJwt)>,
    ) -> Result<Self, EpError> {
        let issued: BTreeMap<_, _> = issued.into_iter().collect();
        let wanted = operation.grants();
        if issued.len() == wanted.len() && wanted.iter().all(|name| issued.contains_key(name)) {
            Ok(Self(issued))
        } else {
            Err(EpError::internal(format!(
                "{}: {} must grant exactly what it is for",
                Kind::Service.as_str(),
                operation.as_str()
            )))
        }
    }

    /// The credential of this name; none is absent authority.
    pub fn get(&self, name: CredentialName) -> Option<&IssuedJwt> {
        self.0.get(&name)
    }

    /// Every credential, in order.
    pub fn iter(&self) -> impl Iterator<Item = (CredentialName, &IssuedJwt)> {
        self.0.iter().map(|(name, issued)| (*name, issued))
    }

    /// When the first of them ends.
    fn first_expiry(&self) -> UnixMillis {
        let secs = self.0.values().map(|issued| issued.exp.0).min().unwrap_or(0);
        UnixMillis(secs.saturating_mul(1000))
    }
}

impl Serialize for Credentials {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, issued)| (name.as_str(), issued)))
    }
}

/// The answer to a [`ServiceRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteManagerAuthorityMaterial {
    /// What was asked for.
    pub operation: Operation,
    /// The space.
    pub space: String,
    /// The owner that the host derived.
    pub owner: Owner,
    /// The interactive actor that asked.
    pub actor: Actor,
    /// The manager's instance.
    pub instance_id: InstanceId,
    /// The manager's lifecycle.
    pub lifecycle_uid: LifecycleUid,
    /// Which request this answers.
    pub request_id: RequestId,
    /// The proof that the request carried.
    pub registration_proof: Option<DigestRef>,
    /// Data account and epoch, of a renewal.
    pub renewal: Option<super::Renewal>,
    /// The run whose driver is renewed.
    pub run: Option<RenewedRun>,
    /// The retirement that may be asked for.
    pub retirement: Option<RequestedRetirement>,
    /// When the host issued it.
    pub issued_at: UnixMillis,
    /// When the first of its credentials ends.
    pub expires_at: UnixMillis,
    /// Whom the five standing identities connect as.
    pub actors: StandingActors,
    /// The five standing identities.
    pub identities: Identities,
    /// What proves the registration that was just activated, from then on.
    pub next_registration_proof: Option<DigestRef>,
    /// What is granted.
    pub credentials: Credentials,
}

impl RemoteManagerAuthorityMaterial {
    /// The answer to a request: its coordinates, and what was minted for it. `next` is the proof that follows an
    /// activation.
    pub fn answer(
        request: &ServiceRequest,
        owner: &Owner,
        issued_at: UnixMillis,
        next: Option<DigestRef>,
        credentials: Credentials,
    ) -> Self {
        let envelope = &request.envelope;
        let (renewal, run, retirement) = match &request.payload {
            Payload::Standing(renewal) => (Some(renewal.clone()), None, None),
            Payload::Run(renewal, run) => (Some(renewal.clone()), Some(run.clone()), None),
            Payload::Retirement(retirement) => (None, None, Some(retirement.clone())),
            Payload::None | Payload::Artifacts(_) | Payload::Session(_) | Payload::Reader(_) => {
                (None, None, None)
            }
        };
        Self {
            operation: request.operation,
            space: envelope.space.clone(),
            owner: owner.clone(),
            actor: envelope.actor.clone(),
            instance_id: envelope.instance_id.clone(),
            lifecycle_uid: envelope.manager_lifecycle_uid.clone(),
            request_id: envelope.request_id.clone(),
            registration_proof: envelope.registration_proof.clone(),
            renewal,
            run,
            retirement,
            issued_at,
            expires_at: credentials.first_expiry(),
            actors: StandingActors::of(&envelope.instance_id),
            identities: envelope.identities.clone(),
            next_registration_proof: next,
            credentials,
        }
    }

    /// Reads an answer. It is closed: a member that this does not know, a credential that the operation does not grant,
    /// and a bound that is not that of its credentials are all refused (`bad-request`). Whether it answers the request
    /// that was sent is the reader's to compare: every member is public.
    pub fn parse(answer: &EsValue) -> Result<Self, EpError> {
        let fields = Fields::of("the material", Some(answer))?.closed(&MEMBERS)?;
        version_and_kind(&fields, Kind::Service)?;
        let operation = fields
            .value("operation")
            .and_then(EsValue::as_text)
            .and_then(Operation::from_name)
            .ok_or_else(|| fields.bad("operation", "one of the eight of this kind"))?;
        let space = fields.text("space")?.to_owned();
        let (owner, actor) = (fields.token("owner")?, fields.token("actor")?);
        let instance_id: InstanceId = fields.token("instanceId")?;
        let (lifecycle_uid, request_id) = (fields.token("lifecycleUid")?, fields.token("requestId")?);
        let registration_proof = only(&fields, "registrationProof", operation != Operation::Prepare, || {
            fields.token("registrationProof")
        })?;
        let renews = matches!(operation, Operation::RenewStandingBundle | Operation::RenewRunDriver);
        let account: Option<Nkey<Account>> =
            only(&fields, "accountPublicKey", renews, || fields.token("accountPublicKey"))?;
        let epoch = only(&fields, "processEpoch", renews, || fields.integer("processEpoch", 0))?;
        let renewal =
            account.zip(epoch).map(|(account, process_epoch)| super::Renewal { account, process_epoch });
        let run = only(&fields, "run", operation == Operation::RenewRunDriver, || RenewedRun::read(&fields))?;
        let retirement = only(&fields, "retirement", operation == Operation::Retire, || {
            // Whose agents a holder may name, the host has decided.
            RequestedRetirement::read(&fields, HolderKind::Platform)
        })?;
        let issued_at = UnixMillis(fields.integer("issuedAt", 0)?);
        let expires_at = UnixMillis(fields.integer("expiresAt", 0)?);
        let actors = StandingActors::of(&instance_id);
        read_actors(&fields, &actors)?;
        let identities = Identities::read(&fields)?;
        let next_registration_proof =
            only(&fields, "nextRegistrationProof", operation == Operation::Activate, || {
                fields.token("nextRegistrationProof")
            })?;
        let credentials = read_credentials(&fields, operation)?;
        if expires_at != credentials.first_expiry() {
            return Err(fields.bad("expiresAt", "when the first of the credentials ends"));
        }
        Ok(Self {
            operation,
            space,
            owner,
            actor,
            instance_id,
            lifecycle_uid,
            request_id,
            registration_proof,
            renewal,
            run,
            retirement,
            issued_at,
            expires_at,
            actors,
            identities,
            next_registration_proof,
            credentials,
        })
    }
}

/// Every member, in the order in which the host writes them.
const MEMBERS: [&str; 20] = [
    "v",
    "kind",
    "operation",
    "space",
    "owner",
    "actor",
    "instanceId",
    "lifecycleUid",
    "requestId",
    "registrationProof",
    "accountPublicKey",
    "processEpoch",
    "run",
    "retirement",
    "issuedAt",
    "expiresAt",
    "actors",
    "identities",
    "nextRegistrationProof",
    "credentials",
];

impl Serialize for RemoteManagerAuthorityMaterial {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("RemoteManagerAuthorityMaterial", MEMBERS.len())?;
        out.serialize_field("v", &VERSION)?;
        out.serialize_field("kind", Kind::Service.as_str())?;
        out.serialize_field("operation", self.operation.as_str())?;
        out.serialize_field("space", &self.space)?;
        out.serialize_field("owner", &self.owner)?;
        out.serialize_field("actor", &self.actor)?;
        out.serialize_field("instanceId", &self.instance_id)?;
        out.serialize_field("lifecycleUid", &self.lifecycle_uid)?;
        out.serialize_field("requestId", &self.request_id)?;
        if let Some(proof) = &self.registration_proof {
            out.serialize_field("registrationProof", proof)?;
        }
        if let Some(renewal) = &self.renewal {
            out.serialize_field("accountPublicKey", &renewal.account)?;
            out.serialize_field("processEpoch", &renewal.process_epoch)?;
        }
        if let Some(run) = &self.run {
            out.serialize_field("run", run)?;
        }
        if let Some(retirement) = &self.retirement {
            out.serialize_field("retirement", retirement)?;
        }
        out.serialize_field("issuedAt", &self.issued_at)?;
        out.serialize_field("expiresAt", &self.expires_at)?;
        out.serialize_field("actors", &self.actors)?;
        out.serialize_field("identities", &self.identities)?;
        if let Some(next) = &self.next_registration_proof {
            out.serialize_field("nextRegistrationProof", next)?;
        }
        out.serialize_field("credentials", &self.credentials)?;
        out.end()
    }
}

/// A member that stands where it must, and nowhere else.
fn only<T>(
    fields: &Fields<'_>,
    member: &str,
    here: bool,
    read: impl FnOnce() -> Result<T, EpError>,
) -> Result<Option<T>, EpError> {
    if here { read().map(Some) } else { fields.absent(member).map(|()| None) }
}

/// The actors are derived from the instance; what else an answer says of them is refused.
fn read_actors(answer: &Fields<'_>, wanted: &StandingActors) -> Result<(), EpError> {
    let names = StandingRole::ALL.map(StandingRole::as_str);
    let fields = answer.inner("actors", "actors")?.exactly(&names)?;
    let StandingActors { supervisor, executor, serve, goal_writer, session_ledger } = wanted;
    for (name, actor) in names.iter().zip([supervisor, executor, serve, goal_writer, session_ledger]) {
        fields.literal(name, actor.as_str())?;
    }
    Ok(())
}

fn read_credentials(answer: &Fields<'_>, operation: Operation) -> Result<Credentials, EpError> {
    let wanted = operation.grants();
    let names: Vec<&str> = wanted.iter().map(|name| name.as_str()).collect();
    let fields = answer.inner("credentials", "credentials")?.exactly(&names)?;
    let issued: Result<Vec<_>, EpError> = wanted
        .iter()
        .map(|name| {
            let one =
                fields.inner("credentials: each credential", name.as_str())?.exactly(&["jwt", "exp"])?;
            let jwt = one.text("jwt")?;
            if jwt.len() > MAX_USER_JWT {
                return Err(one.bad("jwt", &format!("at most {MAX_USER_JWT} bytes")));
            }
            let exp = one.integer("exp", 1)?;
            if exp > MAX_SAFE_INTEGER / 1000 {
                return Err(one.bad("exp", "a time in seconds"));
            }
            Ok((*name, IssuedJwt { jwt: jwt.to_owned(), exp: UnixSecs(exp) }))
        })
        .collect();
    Credentials::of(operation, issued?)
}
