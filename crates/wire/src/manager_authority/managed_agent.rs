//! The kinds about a managed agent: enrollment, preparing its retirement, a hosted runtime, and validating one that was
//! retained (contract 06 §6-9).

use std::num::NonZeroU32;

use serde::Serialize;

use super::{
    HolderKind, Kind,
    envelope::{Envelope, Incarnation, ProofMember, known},
    fields::Fields,
};
use crate::{
    channel::ChannelPattern,
    error::EpError,
    es_value::EsValue,
    token::{Actor, OpId, Role, ScopeEntry, Sha256Hex},
};

/// Most entries of each list of a target.
pub const MAX_LIST: usize = 64;
/// Most characters of a role, and of a capability.
const MAX_TOKEN: usize = 64;
/// Most UTF-16 units of a label.
pub const MAX_LABEL: NonZeroU32 = NonZeroU32::new(256).unwrap();
/// Most UTF-16 units of an actor token.
pub const MAX_ACTOR_TOKEN: NonZeroU32 = NonZeroU32::new(4096).unwrap();
/// Most UTF-16 units of sentinel credentials.
pub const MAX_SENTINEL_CREDS: NonZeroU32 = NonZeroU32::new(16_384).unwrap();

/// Whom to enrol. Lists that were not given are `None`; what they then mean is the host's (contract 06 §6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrollmentTarget {
    /// The agent's actor.
    pub actor: Actor,
    /// Its role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What it may do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<ScopeEntry>>,
    /// What it joins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscribe: Option<Vec<ChannelPattern>>,
    /// What it may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_subscribe: Option<Vec<ChannelPattern>>,
    /// What it may write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_publish: Option<Vec<ChannelPattern>>,
    /// SHA-256 of its standing token; the token itself never crosses. `None` in an intent alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_hash: Option<Sha256Hex>,
}

/// Whether a target names the digest of the agent's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenHash {
    Required,
    Unknown,
}

const TARGET: [&str; 7] =
    ["actor", "role", "label", "capabilities", "subscribe", "allowSubscribe", "allowPublish"];
const TOKEN_HASH: &str = "tokenHash";

impl EnrollmentTarget {
    pub(super) fn read(parent: &Fields<'_>, path: &'static str, hash: TokenHash) -> Result<Self, EpError> {
        let mut members = TARGET.to_vec();
        if hash == TokenHash::Required {
            members.push(TOKEN_HASH);
        }
        let fields = parent.inner(path, "target")?.closed(&members)?;
        let actor = fields.token("actor")?;
        let role = given(&fields, "role", |fields, member| {
            let role: Role = fields.token(member)?;
            if role.as_str().len() > MAX_TOKEN {
                return Err(fields.bad(member, &format!("a role of at most {MAX_TOKEN} characters")));
            }
            Ok(role)
        })?;
        let label =
            given(&fields, "label", |fields, member| fields.bounded(member, MAX_LABEL).map(str::to_owned))?;
        let capabilities = list(&fields, "capabilities", "capabilities", |text| {
            ScopeEntry::parse(text).ok().filter(|entry| entry.as_str().len() <= MAX_TOKEN)
        })?;
        let patterns =
            |member| list(&fields, member, "channel patterns", |text| ChannelPattern::parse(text).ok());
        let (subscribe, allow_subscribe, allow_publish) =
            (patterns("subscribe")?, patterns("allowSubscribe")?, patterns("allowPublish")?);
        let token_hash = match hash {
            TokenHash::Required => Some(fields.token(TOKEN_HASH)?),
            TokenHash::Unknown => None,
        };
        Ok(Self { actor, role, label, capabilities, subscribe, allow_subscribe, allow_publish, token_hash })
    }
}

fn given<'a, T>(
    fields: &Fields<'a>,
    member: &str,
    read: impl FnOnce(&Fields<'a>, &str) -> Result<T, EpError>,
) -> Result<Option<T>, EpError> {
    fields.has(member).then(|| read(fields, member)).transpose()
}

fn list<T>(
    fields: &Fields<'_>,
    member: &str,
    of: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<Vec<T>>, EpError> {
    given(fields, member, |fields, member| {
        let rule = format!("an array of at most {MAX_LIST} {of}");
        let items = fields.array(member, &rule)?;
        let read = || items.iter().map(|item| item.as_text().and_then(&parse)).collect::<Option<Vec<T>>>();
        (items.len() <= MAX_LIST).then(read).flatten().ok_or_else(|| fields.bad(member, &rule))
    })
}

/// A parsed enrollment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnrollmentRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// At which serving epoch.
    pub serve_epoch: u64,
    /// Whom to enrol.
    pub target: EnrollmentTarget,
}

impl EnrollmentRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let members = known(["registrationProof", "serveEpoch", "target"]);
        let fields = Fields::of(Kind::Enrollment.as_str(), Some(request))?.closed(&members)?;
        let envelope = Envelope::read(&fields, Kind::Enrollment, ProofMember::Required)?;
        let serve_epoch = fields.integer("serveEpoch", 0)?;
        let target = EnrollmentTarget::read(&fields, "target", TokenHash::Required)?;
        Ok(Self { envelope, serve_epoch, target })
    }
}

/// A parsed preparation of a retirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrepareRetirementRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// At which serving epoch.
    pub serve_epoch: u64,
    /// Whose grant and footprint go.
    pub target: Incarnation,
    /// The one operation that retires it.
    pub op_id: OpId,
}

impl PrepareRetirementRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let members = known(["registrationProof", "serveEpoch", "target", "opId"]);
        let fields = Fields::of(Kind::PrepareRetirement.as_str(), Some(request))?.closed(&members)?;
        let envelope = Envelope::read(&fields, Kind::PrepareRetirement, ProofMember::Required)?;
        let serve_epoch = fields.integer("serveEpoch", 0)?;
        let target = Incarnation::read(&fields, "target", "target", HolderKind::Human)?;
        let op_id: OpId = fields.token("opId")?;
        if op_id != OpId::managed_retirement(&target.lifecycle_uid) {
            return Err(fields.bad("opId", "the retirement operation of target.lifecycleUid"));
        }
        Ok(Self { envelope, serve_epoch, target, op_id })
    }
}

/// A parsed request about a hosted runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// At which serving epoch.
    pub serve_epoch: u64,
    /// Of which agent.
    pub target: Incarnation,
}

impl RuntimeRequest {
    /// Reads a request of [`Kind::RuntimeCreate`] or [`Kind::RuntimeStatus`] in the contract's order; every refusal is
    /// `bad-request`.
    pub fn parse(request: &EsValue, kind: Kind) -> Result<Self, EpError> {
        let members = known(["registrationProof", "serveEpoch", "target"]);
        let fields = Fields::of(kind.as_str(), Some(request))?.closed(&members)?;
        let envelope = Envelope::read(&fields, kind, ProofMember::Required)?;
        let serve_epoch = fields.integer("serveEpoch", 0)?;
        let target = Incarnation::read(&fields, "target", "target", HolderKind::Human)?;
        Ok(Self { envelope, serve_epoch, target })
    }
}

/// A parsed validation of a retained agent. Both texts are secrets: [`std::fmt::Debug`] leaves them out.
#[derive(Clone, PartialEq, Eq)]
pub struct RetainedAgentRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// At which serving epoch.
    pub serve_epoch: u64,
    /// Which agent.
    pub target: Incarnation,
    /// The agent's standing token.
    pub actor_token: String,
    /// The sentinel credentials that it holds.
    pub sentinel_creds: String,
}

impl std::fmt::Debug for RetainedAgentRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetainedAgentRequest")
            .field("envelope", &self.envelope)
            .field("serve_epoch", &self.serve_epoch)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl RetainedAgentRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue, holder: HolderKind) -> Result<Self, EpError> {
        let members = known(["registrationProof", "serveEpoch", "target", "actorToken", "sentinelCreds"]);
        let fields = Fields::of(Kind::RetainedAgentValidation.as_str(), Some(request))?.closed(&members)?;
        let envelope = Envelope::read(&fields, Kind::RetainedAgentValidation, ProofMember::Required)?;
        fields.text("actorToken")?;
        fields.text("sentinelCreds")?;
        let actor_token = fields.bounded("actorToken", MAX_ACTOR_TOKEN)?.to_owned();
        let sentinel_creds = fields.bounded("sentinelCreds", MAX_SENTINEL_CREDS)?.to_owned();
        let serve_epoch = fields.integer("serveEpoch", 0)?;
        let target = Incarnation::read(&fields, "target", "target", holder)?;
        Ok(Self { envelope, serve_epoch, target, actor_token, sentinel_creds })
    }
}
