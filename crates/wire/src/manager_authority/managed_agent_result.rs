//! What the kinds about a managed agent are answered (contract 06 §6-9). A host serializes these types; a participant
//! reads an answer closed, and binds it to what it had asked.

use std::{fmt, str::FromStr};

use serde::Serialize;

use super::{
    EnrollmentRequest, HolderKind, Kind, MAX_SENTINEL_CREDS, PrepareRetirementRequest, RetainedAgentRequest,
    RuntimeRequest,
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
fn result<'a>(value: &'a EsValue, kind: Kind, more: &[&'static str]) -> Result<Fields<'a>, EpError> {
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

// === a hosted runtime ===

/// Declares the words of one member, in the contract's order.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $word:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        pub enum $name {
            $($(#[$word_doc])* #[serde(rename = $text)] $word,)*
        }

        impl $name {
            /// Every word, in the contract's order.
            pub const ALL: &'static [Self] = &[$(Self::$word),*];

            /// The word as it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$word => $text,)* }
            }

            fn read(fields: &Fields<'_>, member: &str) -> Result<Self, EpError> {
                let word = fields.value(member).and_then(EsValue::as_text);
                Self::ALL
                    .iter()
                    .copied()
                    .find(|one| word == Some(one.as_str()))
                    .ok_or_else(|| fields.bad(member, concat!("one of", $(" ", $text),*)))
            }
        }
    };
}

words!(
    /// How far a hosted runtime has come.
    RuntimeState {
        /// It is set aside.
        Reserved = "reserved",
        /// It is being made.
        Creating = "creating",
        /// It is there.
        Bound = "bound",
        /// Nobody can say whether it was made.
        CreateUnknown = "create-unknown",
        /// It is going.
        Closing = "closing",
        /// It is gone.
        Closed = "closed",
    }
);
words!(
    /// Whether a hosted runtime answers.
    RuntimeReadiness {
        /// It does.
        Ready = "ready",
        /// It is there and does not yet.
        BoundNotReady = "bound-not-ready",
        /// There is none to ask.
        None = "none",
    }
);
words!(
    /// How far the retirement of a hosted agent has come.
    RetirementPhase {
        /// It is wanted.
        Intent = "intent",
        /// The runtime was let go.
        Released = "released",
        /// The lifecycle has ended.
        Retired = "retired",
        /// What it left is gone.
        Deprovisioned = "deprovisioned",
        /// All of it is over.
        Terminal = "terminal",
    }
);

/// What a host that runs agents itself answers about a runtime (contract 06 §8). The stock service never does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeResult {
    /// Whom it answers.
    #[serde(flatten)]
    pub echo: Echo,
    /// Of which agent.
    pub target: Incarnation,
    /// How far it has come.
    pub state: RuntimeState,
    /// Whether it answers.
    pub readiness: RuntimeReadiness,
    /// How far its retirement has come, once one has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retirement_phase: Option<RetirementPhase>,
}

impl RuntimeResult {
    /// Reads an answer to [`Kind::RuntimeCreate`] or [`Kind::RuntimeStatus`]; every refusal is `bad-request`.
    pub fn parse(answer: &EsValue, kind: Kind) -> Result<Self, EpError> {
        let fields = result(answer, kind, &["target", "state", "readiness", "retirementPhase"])?;
        let echo = Echo::read(&fields, kind)?;
        let target = Incarnation::read(&fields, "target", "target", HolderKind::Human)?;
        if target.owner != echo.owner {
            return Err(fields.bad("owner", "target.owner"));
        }
        let phase = fields.has("retirementPhase");
        Ok(Self {
            echo,
            target,
            state: RuntimeState::read(&fields, "state")?,
            readiness: RuntimeReadiness::read(&fields, "readiness")?,
            retirement_phase: phase.then(|| RetirementPhase::read(&fields, "retirementPhase")).transpose()?,
        })
    }

    /// Reads the answer to this request of this kind and owner: every coordinate is the request's.
    pub fn bind(
        answer: &EsValue,
        kind: Kind,
        request: &RuntimeRequest,
        owner: &Owner,
    ) -> Result<Self, Unbound> {
        let answer = Self::parse(answer, kind)?;
        let bound =
            answer.echo == Echo::of(kind, &request.envelope, owner) && answer.target == request.target;
        if bound { Ok(answer) } else { Err(Unbound::other(kind)) }
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const UID: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn es(value: &Value) -> EsValue {
        EsValue::parse(value.to_string().as_bytes()).unwrap()
    }

    fn request(kind: Kind, more: &Value) -> Value {
        let id = |letter: &str| json!({ "id": format!("U{}", letter.repeat(55)) });
        let mut request = json!({
            "v": 1, "kind": kind.as_str(), "space": "main", "actor": "cli", "instanceId": "a".repeat(26),
            "managerLifecycleUid": "c".repeat(26), "requestId": "r".repeat(22),
            "registrationProof": format!("sha256:{}", "0".repeat(64)), "serveEpoch": 3,
            "identities": {
                "supervisor": id("A"), "executor": id("B"), "serve": id("C"), "goalWriter": id("D"),
                "sessionLedger": id("E"),
            },
        });
        for (member, value) in more.as_object().unwrap() {
            request[member] = value.clone();
        }
        request
    }

    fn owner() -> Owner {
        Owner::parse(OWNER).unwrap()
    }

    fn target() -> Value {
        json!({ "owner": OWNER, "actor": "worker", "lifecycleUid": UID })
    }

    fn enrollment() -> (EnrollmentRequest, EnrollmentResult) {
        let target = json!({ "target": { "actor": "worker", "tokenHash": "0".repeat(64) } });
        let request = EnrollmentRequest::parse(&es(&request(Kind::Enrollment, &target))).unwrap();
        let material = AgentMaterial {
            owner: owner(),
            actor: Actor::parse("worker").unwrap(),
            lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
            sentinel_creds: "creds".to_owned(),
            subscribe: vec![],
            allow_subscribe: ChannelPattern::parse_all(&["team.>"]).unwrap(),
            allow_publish: vec![],
            agent_bearer_exchange_url: "https://auth.example".to_owned(),
        };
        let result = EnrollmentResult::answer(&request, &owner(), material);
        (request, result)
    }

    fn preparation() -> PrepareRetirementResult {
        let op = OpId::managed_retirement(&LifecycleUid::parse(UID).unwrap());
        let more = json!({ "target": target(), "opId": op });
        let request = PrepareRetirementRequest::parse(&es(&request(Kind::PrepareRetirement, &more))).unwrap();
        PrepareRetirementResult::answer(&request, &owner())
    }

    fn retained() -> RetainedAgentResult {
        let more = json!({ "target": target(), "actorToken": "t", "sentinelCreds": "s" });
        let request = es(&request(Kind::RetainedAgentValidation, &more));
        let request = RetainedAgentRequest::parse(&request, HolderKind::Human).unwrap();
        let authority = RetainedAuthority {
            owner: owner(),
            actor: Actor::parse("worker").unwrap(),
            lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
            scope: vec!["spawn".to_owned()],
            allow_subscribe: vec![],
            allow_publish: vec![],
            role: None,
            parent: Some(Principal::parse_key(&format!("{OWNER}.cli")).unwrap()),
        };
        RetainedAgentResult::answer(&request, &owner(), authority)
    }

    const ECHOED: &str = "\"space\":\"main\",\"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"actor\":\"cli\",\
        \"instanceId\":\"aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"managerLifecycleUid\":\"cccccccccccccccccccccccccc\",\
        \"requestId\":\"rrrrrrrrrrrrrrrrrrrrrr\"";
    const AGENT: &str = "\"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"actor\":\"worker\",\
        \"lifecycleUid\":\"bbbbbbbbbbbbbbbbbbbbbbbbbb\"";

    #[test]
    fn results_are_written_in_the_contracts_order_and_read_back() {
        let proof = format!("sha256:{}", "0".repeat(64));
        let (_, enrolled) = enrollment();
        let text = serde_json::to_string(&enrolled).unwrap();
        assert_eq!(
            text,
            format!(
                "{{\"v\":1,\"kind\":\"manager-managed-agent-enrollment\",{ECHOED},\"registrationProof\":\"{proof}\",\
                 \"serveEpoch\":3,\"material\":{{{AGENT},\"sentinelCreds\":\"creds\",\"subscribe\":[],\
                 \"allowSubscribe\":[\"team.>\"],\"allowPublish\":[],\
                 \"agentBearerExchangeUrl\":\"https://auth.example\"}}}}"
            )
        );
        assert_eq!(EnrollmentResult::parse(&EsValue::parse(text.as_bytes()).unwrap()).unwrap(), enrolled);

        let text = serde_json::to_string(&preparation()).unwrap();
        let op = OpId::managed_retirement(&LifecycleUid::parse(UID).unwrap());
        assert_eq!(
            text,
            format!(
                "{{\"v\":1,\"kind\":\"manager-managed-agent-prepare-retirement\",{ECHOED},\"target\":{{{AGENT}}},\
                 \"opId\":\"{op}\",\"prepared\":true}}"
            )
        );
        let read = PrepareRetirementResult::parse(&EsValue::parse(text.as_bytes()).unwrap());
        assert_eq!(read.unwrap(), preparation());

        let text = serde_json::to_string(&retained()).unwrap();
        assert_eq!(
            text,
            format!(
                "{{\"v\":1,\"kind\":\"manager-retained-agent-validation\",{ECHOED},\"registrationProof\":\"{proof}\",\
                 \"serveEpoch\":3,\"target\":{{{AGENT}}},\"authority\":{{{AGENT},\"scope\":[\"spawn\"],\
                 \"allowSubscribe\":[],\"allowPublish\":[],\"parent\":\"{OWNER}.cli\"}}}}"
            )
        );
        let read = RetainedAgentResult::parse(&EsValue::parse(text.as_bytes()).unwrap(), HolderKind::Human);
        assert_eq!(read.unwrap(), retained());
    }

    #[test]
    fn a_reserved_runtime_is_shown_and_nothing_else_is() {
        let (_, mut enrolled) = enrollment();
        enrolled.runtime_intent = Some(RuntimeIntent::Reserved);
        let mut answer = serde_json::to_value(&enrolled).unwrap();
        assert_eq!(answer["runtimeIntent"], json!({ "state": "reserved" }));
        assert_eq!(EnrollmentResult::parse(&es(&answer)).unwrap(), enrolled);
        for bad in
            [json!(null), json!({}), json!({ "state": "bound" }), json!({ "state": "reserved", "at": 1 })]
        {
            answer["runtimeIntent"] = bad.clone();
            assert!(EnrollmentResult::parse(&es(&answer)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_runtime_is_one_of_the_contracts_words_and_its_target_is_its_owners() {
        let mut answer = json!({
            "v": 1, "kind": "manager-managed-agent-runtime-status", "space": "main", "owner": OWNER, "actor": "cli",
            "instanceId": "a".repeat(26), "managerLifecycleUid": "c".repeat(26), "requestId": "r".repeat(22),
            "target": target(), "state": "create-unknown", "readiness": "bound-not-ready",
        });
        let parse = |answer: &Value| RuntimeResult::parse(&es(answer), Kind::RuntimeStatus);
        let read = parse(&answer).unwrap();
        assert_eq!((read.state, read.retirement_phase), (RuntimeState::CreateUnknown, None));
        assert_eq!(serde_json::to_value(&read).unwrap(), answer);
        answer["retirementPhase"] = json!("deprovisioned");
        assert_eq!(parse(&answer).unwrap().retirement_phase, Some(RetirementPhase::Deprovisioned));
        assert!(RuntimeResult::parse(&es(&answer), Kind::RuntimeCreate).is_err(), "another kind's answer");
        let mut foreign = answer.clone();
        foreign["owner"] = json!("u_bbbbbbbbbbbbbbbbbbbbbbbbbb");
        assert!(parse(&foreign).is_err());
        for (member, bad) in [("state", "Bound"), ("readiness", ""), ("retirementPhase", "over")] {
            let mut answer = answer.clone();
            answer[member] = json!(bad);
            assert!(parse(&answer).is_err(), "{member}: {bad}");
        }
    }

    /// Every member that is missing, `null`, of another type, or one too many is refused.
    #[test]
    fn a_result_is_closed() {
        type Parse = fn(&EsValue) -> Result<(), EpError>;
        let (_, enrolled) = enrollment();
        let results: [(&str, Value, Parse); 3] = [
            ("enrollment", serde_json::to_value(enrolled).unwrap(), |es| {
                EnrollmentResult::parse(es).map(drop)
            }),
            ("preparation", serde_json::to_value(preparation()).unwrap(), |es| {
                PrepareRetirementResult::parse(es).map(drop)
            }),
            ("validation", serde_json::to_value(retained()).unwrap(), |es| {
                RetainedAgentResult::parse(es, HolderKind::Human).map(drop)
            }),
        ];
        for (what, result, parse) in results {
            parse(&es(&result)).unwrap();
            for path in ["", "/material", "/authority", "/target"] {
                let Some(object) = result.pointer(path).and_then(Value::as_object).cloned() else { continue };
                for member in object.keys().map(String::as_str).chain(["more"]) {
                    for bad in [None, Some(Value::Null), Some(json!(7.5)), Some(json!({}))] {
                        let mut broken = result.clone();
                        let at = broken.pointer_mut(path).unwrap().as_object_mut().unwrap();
                        let changed = match &bad {
                            None => at.remove(member).is_some() && member != "parent",
                            Some(bad) => {
                                at.insert(member.to_owned(), bad.clone());
                                true
                            }
                        };
                        if changed {
                            let refused = parse(&es(&broken)).is_err();
                            assert!(refused, "{what}{path}: {member} as {bad:?} is read");
                        }
                    }
                }
            }
        }
    }

    /// An answer in which any one thing was changed is the answer to nothing.
    #[test]
    fn an_answer_is_bound_to_every_coordinate_of_its_request() {
        let (request, enrolled) = enrollment();
        let answer = serde_json::to_value(&enrolled).unwrap();
        assert_eq!(EnrollmentResult::bind(&es(&answer), &request, &owner()).unwrap(), enrolled);
        let other = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb";
        for (path, other) in [
            ("/space", json!("other")),
            ("/owner", json!(other)),
            ("/actor", json!("other")),
            ("/instanceId", json!("d".repeat(26))),
            ("/managerLifecycleUid", json!("d".repeat(26))),
            ("/requestId", json!("s".repeat(22))),
            ("/registrationProof", json!(format!("sha256:{}", "1".repeat(64)))),
            ("/serveEpoch", json!(4)),
            ("/material/owner", json!(other)),
            ("/material/actor", json!("other")),
            ("/material/subscribe", json!(["general"])),
        ] {
            let mut changed = answer.clone();
            *changed.pointer_mut(path).unwrap() = other;
            assert!(EnrollmentResult::bind(&es(&changed), &request, &owner()).is_err(), "{path}");
        }
        assert!(EnrollmentResult::bind(&es(&answer), &request, &Owner::parse(other).unwrap()).is_err());
    }

    #[test]
    fn the_sentinel_is_not_printed() {
        let (_, enrolled) = enrollment();
        assert!(!format!("{enrolled:?}").contains("creds\""), "{enrolled:?}");
    }
}
