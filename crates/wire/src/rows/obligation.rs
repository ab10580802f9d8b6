//! Acceptance obligations `oblig.<targetUid|ep>.<endpoint>.<caller>.<id>` in the records bucket (contract 02 §6.1,
//! 07 §14): what an endpoint owes to a lifecycle, and must settle before that lifecycle may end.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::closed::{Closed, compact};
use crate::{
    acceptance::Acceptance,
    endpoint_token::{Command, DigestRef, EndpointToken},
    error::EpError,
    token::{LifecycleUid, OpId, Sha256Hex, TokenError, token},
};

const WHAT: &str = "obligation";
const PREFIX: &str = "oblig";
/// The target token of an obligation that binds no lifecycle.
const NO_TARGET: &str = "ep";
const POOL_ROUTE: &str = "pool.";

fn is_routed_pool(s: &str) -> bool {
    (1..=64).contains(&s.len())
        && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}

token!(
    /// A pool as a stored route spells it: wider than the pools that exist (contract 07 §14 against 02 §1).
    RoutedPool, "routed pool", is_routed_pool, "1 to 64 of a-z 0-9 - _"
);

/// Where an obligation is stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObligationKey {
    /// The lifecycle that it targets; `None` when it binds none.
    pub target: Option<LifecycleUid>,
    /// The endpoint that owes.
    pub endpoint: EndpointToken,
    /// Whose submission it is.
    pub acceptance: Acceptance,
}

/// How far an obligation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ObligationState {
    /// Reserved; no decision stands yet.
    Provisional,
    /// Accepted; its effect is owed.
    Accepted,
    /// Rejected; nothing is owed.
    Rejected,
    /// Its own commit is settled; nothing is owed.
    Terminal,
}

/// Where accepted work goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Route {
    /// The endpoint's effects executor.
    Effects,
    /// A work pool.
    Pool(RoutedPool),
}

/// What is owed, by the class of the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owed {
    /// The decision is a fact on the endpoint's journal.
    Epf(FactWork),
    /// The obligation is itself the decision, and carries its one record commit.
    SelfCommit(Commit),
}

/// Work whose decision is a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactWork {
    /// The submission's fingerprint.
    pub fingerprint: String,
    /// The submission's sequence in the journal.
    pub source_seq: u64,
    /// Where it goes once accepted.
    pub route: Route,
}

/// A record commit that acceptance promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The record's key, as stored: whoever applies it checks it.
    pub key: String,
    /// The revision that the commit builds on; 0 for a record that did not exist.
    pub base_revision: u64,
    /// What to write.
    pub value: CommitValue,
    /// The contract digest of what to write.
    pub digest: DigestRef,
}

/// The bytes of a commit, here or elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitValue {
    /// UTF-8 JSON.
    Inline(Vec<u8>),
    /// The key of an immutable policy record that holds them.
    Policy(String),
}

/// One obligation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obligation {
    state: ObligationState,
    op_id: OpId,
    mapping_revision: Option<u64>,
    policy_revision: Option<u64>,
    owed: Owed,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    state: ObligationState,
    decision: &'static str,
    op_id: &'a OpId,
    #[serde(skip_serializing_if = "Option::is_none")]
    mapping_revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_revision: Option<u64>,
    #[serde(flatten)]
    owed: OwedWire<'a>,
}

#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum OwedWire<'a> {
    Epf {
        fingerprint: &'a str,
        source_seq: u64,
        route: String,
    },
    SelfCommit {
        commit_key: &'a str,
        commit_base_revision: u64,
        commit_value: ValueWire<'a>,
        commit_digest: &'a DigestRef,
    },
}

#[derive(Serialize)]
#[serde(tag = "enc", rename_all = "lowercase")]
enum ValueWire<'a> {
    B64u { bytes: String },
    Ref { key: &'a str },
}

// === impl ObligationKey ===

impl ObligationKey {
    /// Reads the key that a row was found under; a key of another shape is `internal`.
    pub fn parse(key: &str) -> Result<Self, EpError> {
        let tokens: Vec<&str> = key.split('.').collect();
        let [PREFIX, target, endpoint, owner, actor, uid, id] = tokens.as_slice() else {
            return Err(EpError::internal(format!("the key of a stored {WHAT} has not its seven tokens")));
        };
        let target = match *target {
            NO_TARGET => Ok(None),
            uid => LifecycleUid::parse(uid).map(Some),
        };
        match (target, EndpointToken::parse(endpoint), Acceptance::of_tokens([owner, actor, uid, id])) {
            (Ok(target), Ok(endpoint), Some(acceptance)) => Ok(Self { target, endpoint, acceptance }),
            _ => Err(EpError::internal(format!(
                "the key of a stored {WHAT} holds a token outside its grammar"
            ))),
        }
    }

    /// The filter of every obligation of a lifecycle, at one endpoint or at all.
    pub fn filter(target: Option<&LifecycleUid>, endpoint: Option<&EndpointToken>) -> String {
        let target = target.map_or("*", LifecycleUid::as_str);
        match endpoint {
            Some(endpoint) => format!("{PREFIX}.{target}.{endpoint}.>"),
            None => format!("{PREFIX}.{target}.>"),
        }
    }
}

impl fmt::Display for ObligationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = self.target.as_ref().map_or(NO_TARGET, LifecycleUid::as_str);
        write!(f, "{PREFIX}.{target}.{}.{}", self.endpoint, self.acceptance)
    }
}

// === impl ObligationState ===

impl ObligationState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Provisional, Self::Accepted, Self::Rejected, Self::Terminal];

    /// The wire word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provisional => "provisional",
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Terminal => "terminal",
        }
    }

    /// Whether something may still be owed.
    pub const fn is_owed(self) -> bool {
        matches!(self, Self::Provisional | Self::Accepted)
    }
}

impl fmt::Display for ObligationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Route ===

impl Route {
    /// The route of a pool.
    pub fn pool(pool: &Command) -> Self {
        Self::Pool(RoutedPool(pool.as_str().into()))
    }

    /// The pool, when the route is one that exists: `internal` for a spelling that no pool has.
    pub fn as_pool(&self) -> Result<Option<Command>, EpError> {
        match self {
            Self::Effects => Ok(None),
            Self::Pool(pool) => Command::parse(pool.as_str()).map(Some).map_err(|error| {
                EpError::internal(format!("a stored {WHAT} is garbled: its route is {error}"))
            }),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Effects => f.write_str("effects"),
            Self::Pool(pool) => write!(f, "{POOL_ROUTE}{pool}"),
        }
    }
}

impl FromStr for Route {
    type Err = TokenError;

    fn from_str(s: &str) -> Result<Self, TokenError> {
        match (s, s.strip_prefix(POOL_ROUTE)) {
            ("effects", _) => Ok(Self::Effects),
            (_, Some(pool)) => RoutedPool::parse(pool).map(Self::Pool),
            _ => Err(TokenError { what: "route", rule: "effects, or pool. and a pool" }),
        }
    }
}

// === impl Obligation ===

impl Obligation {
    /// An obligation at birth, `provisional`. `failed-precondition` when it binds neither a mapping nor a policy.
    pub fn provisional(
        op_id: &OpId,
        mapping_revision: Option<u64>,
        policy_revision: Option<u64>,
        owed: Owed,
    ) -> Result<Self, EpError> {
        if mapping_revision.is_none() && policy_revision.is_none() {
            return Err(EpError::failed_precondition("an obligation binds a mapping or a policy revision"));
        }
        Ok(Self {
            state: ObligationState::Provisional,
            op_id: op_id.clone(),
            mapping_revision,
            policy_revision,
            owed,
        })
    }

    /// Reads a stored row.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        const MEMBERS: [&str; 12] = [
            "state",
            "decision",
            "opId",
            "mappingRevision",
            "policyRevision",
            "fingerprint",
            "sourceSeq",
            "route",
            "commitKey",
            "commitBaseRevision",
            "commitValue",
            "commitDigest",
        ];
        let row = Closed::parse(WHAT, bytes, &MEMBERS)?;
        let state = row.text("state")?;
        let state = ObligationState::ALL
            .into_iter()
            .find(|known| known.as_str() == state)
            .ok_or_else(|| row.garbled("its state is not one that the contract knows"))?;
        let decision = row.text("decision")?;
        let op_id = row.token("opId")?;
        let mapping_revision = row.optional("mappingRevision", Closed::uint)?;
        let policy_revision = row.optional("policyRevision", Closed::uint)?;
        if mapping_revision.is_none() && policy_revision.is_none() {
            return Err(row.garbled("it binds neither a mapping nor a policy revision"));
        }
        let (fact, commit) = (&MEMBERS[5..8], &MEMBERS[8..]);
        let (owed, foreign) = match decision {
            "epf" => (Owed::Epf(FactWork::of(&row)?), commit),
            "self" => (Owed::SelfCommit(Commit::of(&row)?), fact),
            _ => return Err(row.garbled("its decision is neither epf nor self")),
        };
        if foreign.iter().any(|member| row.has(member)) {
            return Err(row.garbled("it has a member of the other class"));
        }
        Ok(Self { state, op_id, mapping_revision, policy_revision, owed })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire {
            state: self.state,
            decision: self.decision(),
            op_id: &self.op_id,
            mapping_revision: self.mapping_revision,
            policy_revision: self.policy_revision,
            owed: match &self.owed {
                Owed::Epf(work) => OwedWire::Epf {
                    fingerprint: &work.fingerprint,
                    source_seq: work.source_seq,
                    route: work.route.to_string(),
                },
                Owed::SelfCommit(commit) => OwedWire::SelfCommit {
                    commit_key: &commit.key,
                    commit_base_revision: commit.base_revision,
                    commit_value: match &commit.value {
                        CommitValue::Inline(bytes) => {
                            ValueWire::B64u { bytes: URL_SAFE_NO_PAD.encode(bytes) }
                        }
                        CommitValue::Policy(key) => ValueWire::Ref { key },
                    },
                    commit_digest: &commit.digest,
                },
            },
        })
    }

    /// How far it is.
    pub fn state(&self) -> ObligationState {
        self.state
    }

    /// What is owed.
    pub fn owed(&self) -> &Owed {
        &self.owed
    }

    /// The operation that wrote it.
    pub fn op_id(&self) -> &OpId {
        &self.op_id
    }

    /// The head revision of the target lifecycle that it was admitted under.
    pub fn mapping_revision(&self) -> Option<u64> {
        self.mapping_revision
    }

    /// The policy revision that it was admitted under.
    pub fn policy_revision(&self) -> Option<u64> {
        self.policy_revision
    }

    /// `epf` or `self`.
    pub const fn decision(&self) -> &'static str {
        match self.owed {
            Owed::Epf(_) => "epf",
            Owed::SelfCommit(_) => "self",
        }
    }

    /// `provisional` to `accepted`; `failed-precondition` from any other state.
    pub fn accept(self) -> Result<Self, EpError> {
        self.step(ObligationState::Provisional, ObligationState::Accepted)
    }

    /// `provisional` to `rejected`; `failed-precondition` from any other state.
    pub fn reject(self) -> Result<Self, EpError> {
        self.step(ObligationState::Provisional, ObligationState::Rejected)
    }

    /// `accepted` to `terminal`; `failed-precondition` from any other state.
    pub fn terminate(self) -> Result<Self, EpError> {
        self.step(ObligationState::Accepted, ObligationState::Terminal)
    }

    fn step(self, from: ObligationState, to: ObligationState) -> Result<Self, EpError> {
        if self.state != from {
            return Err(EpError::failed_precondition(format!(
                "an obligation that is {} does not become {to}",
                self.state
            )));
        }
        Ok(Self { state: to, ..self })
    }
}

impl FactWork {
    fn of(row: &Closed) -> Result<Self, EpError> {
        Ok(Self {
            fingerprint: row.non_empty("fingerprint")?.to_owned(),
            source_seq: row.uint("sourceSeq")?,
            route: row.token("route")?,
        })
    }
}

impl Commit {
    fn of(row: &Closed) -> Result<Self, EpError> {
        let key = row.non_empty("commitKey")?.to_owned();
        let base_revision = row.uint("commitBaseRevision")?;
        let value = row.value("commitValue").ok_or_else(|| row.garbled("its commitValue is missing"))?;
        let value = Closed::of("obligation commitValue", value.clone(), &["enc", "bytes", "key"])?;
        let value = match (value.text("enc")?, value.has("bytes"), value.has("key")) {
            ("b64u", true, false) => CommitValue::Inline(inline(&value)?),
            ("ref", false, true) => {
                let key = value.text("key")?;
                if !is_policy_key(key) {
                    return Err(value.garbled("its key is not that of a policy record"));
                }
                CommitValue::Policy(key.to_owned())
            }
            _ => return Err(value.garbled("it is neither b64u with bytes nor ref with a key")),
        };
        Ok(Self { key, base_revision, value, digest: row.token("commitDigest")? })
    }
}

/// Canonical unpadded base64url of UTF-8 JSON, and nothing that decodes to the same.
fn inline(value: &Closed) -> Result<Vec<u8>, EpError> {
    let text = value.text("bytes")?;
    URL_SAFE_NO_PAD
        .decode(text)
        .ok()
        .filter(|bytes| URL_SAFE_NO_PAD.encode(bytes) == text)
        .filter(|bytes| serde_json::from_slice::<serde_json::Value>(bytes).is_ok())
        .ok_or_else(|| value.garbled("its bytes are not canonical base64url of JSON"))
}

/// `policy.<endpoint>.<64 hex>`.
fn is_policy_key(key: &str) -> bool {
    let mut tokens = key.split('.');
    let policy = tokens.next() == Some("policy")
        && tokens.next().is_some_and(|endpoint| !endpoint.is_empty())
        && tokens.next().is_some_and(|hex| Sha256Hex::parse(hex).is_ok());
    policy && tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{canonical::raw_digest, error::EpCode, token::Principal};

    const UID: &str = "tttttttttttttttttttttttttt";
    const KEY: &str = "oblig.tttttttttttttttttttttttttt.com_x.local.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu.r1";

    fn op() -> OpId {
        OpId::parse(&"f".repeat(26)).unwrap()
    }

    fn epf(route: &str) -> Obligation {
        let work =
            FactWork { fingerprint: "sha256:ab".to_owned(), source_seq: 7, route: route.parse().unwrap() };
        Obligation::provisional(&op(), Some(3), None, Owed::Epf(work)).unwrap()
    }

    fn own(value: CommitValue) -> Obligation {
        let commit = Commit {
            key: "cp.com_x.t1.status".to_owned(),
            base_revision: 0,
            value,
            digest: raw_digest(b"{}"),
        };
        Obligation::provisional(&op(), None, Some(4), Owed::SelfCommit(commit)).unwrap()
    }

    fn text(row: &Obligation) -> String {
        String::from_utf8(row.to_bytes()).unwrap()
    }

    #[test]
    fn both_classes_have_these_bytes_and_read_back() {
        assert_eq!(
            text(&epf("pool.builds")),
            "{\"state\":\"provisional\",\"decision\":\"epf\",\"opId\":\"ffffffffffffffffffffffffff\",\
             \"mappingRevision\":3,\"fingerprint\":\"sha256:ab\",\"sourceSeq\":7,\"route\":\"pool.builds\"}"
        );
        let inline = own(CommitValue::Inline(b"{}".to_vec()));
        assert_eq!(
            text(&inline),
            "{\"state\":\"provisional\",\"decision\":\"self\",\"opId\":\"ffffffffffffffffffffffffff\",\
             \"policyRevision\":4,\"commitKey\":\"cp.com_x.t1.status\",\"commitBaseRevision\":0,\
             \"commitValue\":{\"enc\":\"b64u\",\"bytes\":\"e30\"},\"commitDigest\":\
             \"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\"}"
        );
        let policy = own(CommitValue::Policy(format!("policy.com_x.{}", "a".repeat(64))));
        for row in [epf("effects"), epf("pool.a_b"), inline, policy] {
            for row in [row.clone(), row.clone().accept().unwrap(), row.clone().reject().unwrap()] {
                assert_eq!(Obligation::parse(&row.to_bytes()).unwrap(), row);
            }
        }
    }

    #[test]
    fn a_key_reads_back_and_an_inexact_one_is_internal() {
        let key = ObligationKey::parse(KEY).unwrap();
        assert_eq!(key.to_string(), KEY);
        assert_eq!(key.acceptance.caller.principal, Principal::parse_key("local.alice").unwrap());
        assert_eq!(ObligationKey::filter(key.target.as_ref(), None), format!("oblig.{UID}.>"));
        assert_eq!(ObligationKey::filter(None, Some(&key.endpoint)), "oblig.*.com_x.>");
        let untargeted = KEY.replace(UID, "ep");
        assert_eq!(ObligationKey::parse(&untargeted).unwrap().to_string(), untargeted);
        for bad in [
            "oblig".to_owned(),
            format!("{KEY}.more"),
            KEY.replace(".r1", ""),
            KEY.replace("oblig", "lease"),
            KEY.replace(UID, "short"),
            KEY.replace("com_x", "-x"),
            KEY.replace("alice", "al-ice"),
            KEY.replace("local", "nobody"),
        ] {
            assert_eq!(ObligationKey::parse(&bad).unwrap_err().code, EpCode::Internal, "{bad}");
        }
    }

    #[test]
    fn an_obligation_only_moves_forward() {
        for row in [epf("effects"), own(CommitValue::Inline(b"1".to_vec()))] {
            let accepted = row.clone().accept().unwrap();
            let rejected = row.clone().reject().unwrap();
            let terminal = accepted.clone().terminate().unwrap();
            assert_eq!(terminal.state(), ObligationState::Terminal);
            assert!(row.state().is_owed() && accepted.state().is_owed());
            assert!(!rejected.state().is_owed() && !terminal.state().is_owed());
            for refused in [
                row.terminate(),
                accepted.clone().accept(),
                accepted.reject(),
                rejected.clone().accept(),
                rejected.clone().reject(),
                rejected.terminate(),
                terminal.clone().accept(),
                terminal.clone().reject(),
                terminal.terminate(),
            ] {
                assert_eq!(refused.unwrap_err().code, EpCode::FailedPrecondition);
            }
        }
    }

    #[test]
    fn an_obligation_of_nothing_is_not_written() {
        let work = FactWork { fingerprint: "x".to_owned(), source_seq: 0, route: Route::Effects };
        let refused = Obligation::provisional(&op(), None, None, Owed::Epf(work)).unwrap_err();
        assert_eq!(refused.code, EpCode::FailedPrecondition);
    }

    #[test]
    fn a_garbled_row_is_internal() {
        let (epf, own) = (text(&epf("effects")), text(&own(CommitValue::Inline(b"{}".to_vec()))));
        let value = |value: &str| own.replace("{\"enc\":\"b64u\",\"bytes\":\"e30\"}", value);
        for bad in [
            String::new(),
            "[]".to_owned(),
            epf.replace("provisional", "open"),
            epf.replace("\"epf\"", "\"self\""),
            epf.replace("\"epf\"", "\"other\""),
            epf.replace("\"mappingRevision\":3,", ""),
            epf.replace("\"mappingRevision\":3", "\"mappingRevision\":-1"),
            epf.replace("\"mappingRevision\":3", "\"mappingRevision\":null"),
            epf.replace("sha256:ab", ""),
            epf.replace("\"sourceSeq\":7", "\"sourceSeq\":1.5"),
            epf.replace("effects", "pool."),
            epf.replace("effects", "pool.A"),
            epf.replace("effects", &format!("pool.{}", "a".repeat(65))),
            epf.replace("effects", "other"),
            epf.replace(&"f".repeat(26), "f"),
            epf.replace("\"route\"", "\"more\":1,\"route\""),
            epf.replace("\"route\"", "\"commitKey\":\"goal\",\"route\""),
            own.replace("\"self\"", "\"epf\""),
            own.replace("\"commitKey\"", "\"route\":\"effects\",\"commitKey\""),
            own.replace("cp.com_x.t1.status", ""),
            own.replace("\"commitBaseRevision\":0", "\"commitBaseRevision\":\"0\""),
            own.replace("sha256:4413", "4413"),
            value("null"),
            value("{\"enc\":\"b64u\",\"bytes\":\"e30=\"}"),
            value("{\"enc\":\"b64u\",\"bytes\":\"e31\"}"),
            value("{\"enc\":\"b64u\",\"bytes\":\"e3s\"}"),
            value("{\"enc\":\"b64u\",\"bytes\":\"e30\",\"key\":\"x\"}"),
            value("{\"enc\":\"ref\",\"key\":\"policy.com_x.ab\"}"),
            value(&format!("{{\"enc\":\"ref\",\"key\":\"policy..{}\"}}", "a".repeat(64))),
            value(&format!("{{\"enc\":\"ref\",\"key\":\"policy.a.b.{}\"}}", "a".repeat(64))),
            value(&format!("{{\"enc\":\"ref\",\"key\":\"govern.a.{}\"}}", "a".repeat(64))),
            value("{\"enc\":\"hex\",\"bytes\":\"7b7d\"}"),
        ] {
            assert_eq!(Obligation::parse(bad.as_bytes()).unwrap_err().code, EpCode::Internal, "{bad}");
        }
    }

    #[test]
    fn a_route_that_no_pool_has_is_stored_and_not_followed() {
        assert_eq!("pool.builds".parse::<Route>().unwrap().as_pool().unwrap().unwrap().as_str(), "builds");
        assert_eq!(Route::Effects.as_pool(), Ok(None));
        let wide: Route = "pool.a_b".parse().unwrap();
        assert_eq!(wide.as_pool().unwrap_err().code, EpCode::Internal);
        assert_eq!(Route::pool(&Command::parse("a-b").unwrap()).to_string(), "pool.a-b");
    }
}
