//! What the kinds about a managed agent are answered (contract 06 §6-9). A host serializes these types; a participant
//! reads an answer closed, and binds it to what it had asked.

#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr};

use serde::Serialize;

use super::{
    EnrollmentRequest, HolderKind, Kind, MAX_SENTINEL_CREDS, PrepareRetirementRequest, RetainedAgentRequest,
    echo::{ECHO, Echo, Unbound},
    envelope::Incarnation,
    fields::Fields,
};
use crate::{
    channel::ChannelPattern,
    endpoint_token::DigestRef,
    error::EpError,
    es_value::EsValue,
    token::{Actor, LifecycleUid, OpId, Owner, Principal, Role, TokenError},
};

/// A closed result of a kind, whose members are those of the echo and these.
pub(super) fn result<'a>(
    value: &'a EsValue,
    kind: Kind,
    more: &[&'static str],
) -> Result<Fields<'a>, EpError> {
    let members: Vec<&str> = ECHO.iter().chain(more).copied().collect();
    Fields::of(kind.as_str(), Some(value))?.closed(&members)
}

fn strings<T: FromStr<Err = TokenError>>(fields: &Fields<'_>, member: &str) -> Result<Vec<T>, EpError> {
    const RULE: &str = "an array of strings within their grammar";
    let items = fields.array(member, RULE)?.iter();
    items
        .map(|item| item.as_text().and_then(|text| text.parse().ok()))
        .collect::<Option<_>>()
        .ok_or_else(|| fields.bad(member, RULE))
}

fn optional<T: FromStr<Err = TokenError>>(fields: &Fields<'_>, member: &str) -> Result<Option<T>, EpError> {
    fields.has(member).then(|| fields.token(member)).transpose()
}

// === enrollment ===

/// What an enrolled agent starts with: whom it is, what it may read and write, and where it exchanges its token.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentMaterial {
    /// Its owner.
    pub owner: Owner,
    /// Its actor.
    pub actor: Actor,
    /// Its incarnation, minted by the host.
    pub lifecycle_uid: LifecycleUid,
    /// The sentinel credentials of the space.
    pub sentinel_creds: String,
    /// What it joins, as asked for.
    pub subscribe: Vec<ChannelPattern>,
    /// What it may read, as granted.
    pub allow_subscribe: Vec<ChannelPattern>,
    /// What it may write, as granted.
    pub allow_publish: Vec<ChannelPattern>,
    /// The base of the public face.
    pub agent_bearer_exchange_url: String,
}

/// Without the sentinel, which is a credential.
impl fmt::Debug for AgentMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentMaterial")
            .field("owner", &self.owner)
            .field("actor", &self.actor)
            .field("lifecycle_uid", &self.lifecycle_uid)
            .field("subscribe", &self.subscribe)
            .field("allow_subscribe", &self.allow_subscribe)
            .field("allow_publish", &self.allow_publish)
            .field("agent_bearer_exchange_url", &self.agent_bearer_exchange_url)
            .finish_non_exhaustive()
    }
}

impl AgentMaterial {
    /// Its principal.
    pub fn principal(&self) -> Principal {
        Principal::new(self.owner.clone(), self.actor.clone())
    }

    pub(super) fn read(parent: &Fields<'_>) -> Result<Self, EpError> {
        let fields = parent.inner("material", "material")?.exactly(&[
            "owner",
            "actor",
            "lifecycleUid",
            "sentinelCreds",
            "subscribe",
            "allowSubscribe",
            "allowPublish",
            "agentBearerExchangeUrl",
        ])?;
        Ok(Self {
            owner: fields.token("owner")?,
            actor: fields.token("actor")?,
            lifecycle_uid: fields.token("lifecycleUid")?,
            sentinel_creds: fields.bounded("sentinelCreds", MAX_SENTINEL_CREDS)?.to_owned(),
            subscribe: strings(&fields, "subscribe")?,
            allow_subscribe: strings(&fields, "allowSubscribe")?,
            allow_publish: strings(&fields, "allowPublish")?,
            agent_bearer_exchange_url: fields.text("agentBearerExchangeUrl")?.to_owned(),
        })
    }
}

/// What a host that runs agents itself says beside the material. It is shown to people and is no authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum RuntimeIntent {
    /// A runtime is reserved for the agent.
    Reserved,
}

impl RuntimeIntent {
    pub(super) fn read(parent: &Fields<'_>) -> Result<Option<Self>, EpError> {
        if !parent.has("runtimeIntent") {
            return Ok(None);
        }
        let fields = parent.inner("runtimeIntent", "runtimeIntent")?.exactly(&["state"])?;
        fields.literal("state", "reserved")?;
        Ok(Some(Self::Reserved))
    }
}

/// What an enrollment is answered (contract 06 §6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrollmentResult {
    /// Whom it answers.
    #[serde(flatten)]
    pub echo: Echo,
    /// The proof of the request.
    pub registration_proof: Option<DigestRef>,
    /// The epoch of the request.
    pub serve_epoch: u64,
    /// What the agent starts with.
    pub material: AgentMaterial,
    /// Set by hosts that run agents themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_intent: Option<RuntimeIntent>,
}

impl EnrollmentResult {
    /// The answer to a request of this owner.
    pub fn answer(request: &EnrollmentRequest, owner: &Owner, material: AgentMaterial) -> Self {
        Self {
            echo: Echo::of(Kind::Enrollment, &request.envelope, owner),
            registration_proof: request.envelope.registration_proof.clone(),
            serve_epoch: request.serve_epoch,
            material,
            runtime_intent: None,
        }
    }

    /// Reads an answer; every refusal is `bad-request`.
    pub fn parse(answer: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::Enrollment;
        let fields = result(answer, kind, &["registrationProof", "serveEpoch", "material", "runtimeIntent"])?;
        Ok(Self {
            echo: Echo::read(&fields, kind)?,
            registration_proof: Some(fields.token("registrationProof")?),
            serve_epoch: fields.integer("serveEpoch", 0)?,
            material: AgentMaterial::read(&fields)?,
            runtime_intent: RuntimeIntent::read(&fields)?,
        })
    }

    /// Reads the answer to this request of this owner: every coordinate is the request's, and the agent is the one that
    /// was asked for. Its lists are the host's: what it was granted.
    pub fn bind(answer: &EsValue, request: &EnrollmentRequest, owner: &Owner) -> Result<Self, Unbound> {
        let answer = Self::parse(answer)?;
        let asked = Self::answer(request, owner, answer.material.clone());
        let material = &answer.material;
        let bound = asked == Self { runtime_intent: None, ..answer.clone() }
            && material.owner == *owner
            && material.actor == request.target.actor
            && material.subscribe == request.target.subscribe.clone().unwrap_or_default();
        if bound { Ok(answer) } else { Err(Unbound::other(Kind::Enrollment)) }
    }
}

// === preparing a retirement ===

/// What a preparation is answered, whether or not this call found anything left to do (contract 06 §7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PrepareRetirementResult {
    /// Whom it answers.
    #[serde(flatten)]
    pub echo: Echo,
    /// Whose grant and footprint are gone.
    pub target: Incarnation,
    /// The one operation that retires it.
    pub op_id: OpId,
    /// Only ever `true`.
    prepared: bool,
}

impl PrepareRetirementResult {
    /// The answer to a request of this owner.
    pub fn answer(request: &PrepareRetirementRequest, owner: &Owner) -> Self {
        Self {
            echo: Echo::of(Kind::PrepareRetirement, &request.envelope, owner),
            target: request.target.clone(),
            op_id: request.op_id.clone(),
            prepared: true,
        }
    }

    /// Reads an answer; every refusal is `bad-request`.
    pub fn parse(answer: &EsValue) -> Result<Self, EpError> {
        let kind = Kind::PrepareRetirement;
        let fields = result(answer, kind, &["target", "opId", "prepared"])?;
        let echo = Echo::read(&fields, kind)?;
        let target = Incarnation::read(&fields, "target", "target", HolderKind::Human)?;
        let op_id = fields.token("opId")?;
        if fields.value("prepared") != Some(&EsValue::Bool(true)) {
            return Err(fields.bad("prepared", "true"));
        }
        Ok(Self { echo, target, op_id, prepared: true })
    }

    /// Reads the answer to this request of this owner: every coordinate is the request's.
    pub fn bind(
        answer: &EsValue,
        request: &PrepareRetirementRequest,
        owner: &Owner,
    ) -> Result<Self, Unbound> {
        let answer = Self::parse(answer)?;
        if answer == Self::answer(request, owner) {
            Ok(answer)
        } else {
            Err(Unbound::other(Kind::PrepareRetirement))
        }
    }
}

// === a retained agent ===

/// What a retained agent may do now. Nothing in it is a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetainedAuthority {
    /// Its owner.
    pub owner: Owner,
    /// Its actor.
    pub actor: Actor,
    /// Its incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// Its capabilities.
    pub scope: Vec<String>,
    /// What it may read.
    pub allow_subscribe: Vec<ChannelPattern>,
    /// What it may write.
    pub allow_publish: Vec<ChannelPattern>,
    /// Its role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Who spawned it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Principal>,
}

impl RetainedAuthority {
    fn read(parent: &Fields<'_>) -> Result<Self, EpError> {
        const RULE: &str = "an array of strings";
        let fields = parent.inner("authority", "authority")?.closed(&[
            "owner",
            "actor",
            "lifecycleUid",
            "scope",
            "allowSubscribe",
            "allowPublish",
            "role",
            "parent",
        ])?;
        let scope = fields.array("scope", RULE)?.iter().map(|entry| entry.as_text().map(str::to_owned));
        Ok(Self {
            owner: fields.token("owner")?,
            actor: fields.token("actor")?,
            lifecycle_uid: fields.token("lifecycleUid")?,
            scope: scope.collect::<Option<_>>().ok_or_else(|| fields.bad("scope", RULE))?,
            allow_subscribe: strings(&fields, "allowSubscribe")?,
            allow_publish: strings(&fields, "allowPublish")?,
            role: optional(&fields, "role")?,
            parent: optional(&fields, "parent")?,
        })
    }
}

/// What a validation of a retained agent is answered (contract 06 §9).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetainedAgentResult {
    /// Whom it answers.
    #[serde(flatten)]
    pub echo: Echo,
    /// The proof of the request.
    pub registration_proof: Option<DigestRef>,
    /// The epoch of the request.
    pub serve_epoch: u64,
    /// Which agent.
    pub target: Incarnation,
    /// What it may do now.
    pub authority: RetainedAuthority,
}

impl RetainedAgentResult {
    /// The answer to a request of this owner.
    pub fn answer(request: &RetainedAgentRequest, owner: &Owner, authority: RetainedAuthority) -> Self {
        Self {
            echo: Echo::of(Kind::RetainedAgentValidation, &request.envelope, owner),
            registration_proof: request.envelope.registration_proof.clone(),
            serve_epoch: request.serve_epoch,
            target: request.target.clone(),
            authority,
        }
    }

    /// Reads an answer; every refusal is `bad-request`.
    pub fn parse(answer: &EsValue, holder: HolderKind) -> Result<Self, EpError> {
        let kind = Kind::RetainedAgentValidation;
        let fields = result(answer, kind, &["registrationProof", "serveEpoch", "target", "authority"])?;
        Ok(Self {
            echo: Echo::read(&fields, kind)?,
            registration_proof: Some(fields.token("registrationProof")?),
            serve_epoch: fields.integer("serveEpoch", 0)?,
            target: Incarnation::read(&fields, "target", "target", holder)?,
            authority: RetainedAuthority::read(&fields)?,
        })
    }

    /// Reads the answer to this request of this owner: every coordinate is the request's, and the authority is the
    /// target's.
    pub fn bind(
        answer: &EsValue,
        request: &RetainedAgentRequest,
        owner: &Owner,
        holder: HolderKind,
    ) -> Result<Self, Unbound> {
        let answer = Self::parse(answer, holder)?;
        let (of, target) = (&answer.authority, &answer.target);
        let own = (&of.owner, &of.actor, &of.lifecycle_uid)
            == (&target.owner, &target.actor, &target.lifecycle_uid);
        let bound = own && answer == Self::answer(request, owner, answer.authority.clone());
        if bound { Ok(answer) } else { Err(Unbound::other(Kind::RetainedAgentValidation)) }
    }
}
