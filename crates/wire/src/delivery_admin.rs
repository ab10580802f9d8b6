//! The delivery-admin rail: what the authority asks of the delivery daemon, and what it answers
//! (contract 01 §2 and §5, 03 §E and §G, 07 §9, 08 §7.4).
//!
//! A request is `{op, args?, from?}`, a reply `{ok, data?, error?}`: the older control shape, which this rail alone
//! still has. The sender is read from the subject; a `from` member is taken and ignored. Every other member, at every
//! level, is refused on both sides: a reply that could be misread must not authorize anything.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    rows::{PlaneTuple, compact, safe_uint},
    time::MAX_SAFE_INTEGER,
    token::{LifecycleUid, Principal, Sha256Hex},
};

/// Principals that one eviction may name.
pub const MAX_PRINCIPALS: usize = 256;
/// Largest request that is read, in bytes: a full batch is a quarter of it.
pub const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Largest reply that is sent, in bytes; a larger one becomes a refusal, never a part.
pub const MAX_REPLY_BYTES: usize = 512 * 1024;
/// How long a caller waits for a reply, in seconds.
pub const BUDGET_SECS: u64 = 15;
/// How long the lease row of a daemon that died outlives it, in seconds (contract 01 §4.3).
pub const LEASE_TTL_SECS: u64 = 30;
/// Key of the lease row of the one shard that is ever run, in the delivery bucket.
pub const LEASE_KEY: &str = "lease.0";

const MAX_HOLDER: usize = 256;
const MAX_STORE_TEXT: usize = 4096;

const PLANE_CONN_LIVENESS: &str = "planeConnLiveness";
const PRINCIPAL_LIVENESS: &str = "principalLiveness";
const EVICT_PRINCIPAL: &str = "evictPrincipal";
const EVICT_PRINCIPALS: &str = "evictPrincipals";
const LIFECYCLE_MEMBERSHIPS: &str = "lifecycleMemberships";
const RELOAD_STORE_IDENTITY: &str = "reloadStoreIdentity";
const RELOAD_CREDS: &str = "reloadCreds";

/// The two connections of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlaneQuery {
    /// The ledger scanner's.
    pub ledger: PlaneTuple,
    /// The records scanner's.
    pub records: PlaneTuple,
}

/// What is known of a connection or of a principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Liveness {
    /// It is there.
    Live,
    /// A complete sweep did not find it.
    Gone,
    /// Nobody can say.
    Unknown,
}

/// A request, past the door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminRequest {
    /// Are these two connections there?
    PlaneConnLiveness(PlaneQuery),
    /// Is anyone connected as this principal?
    PrincipalLiveness(Principal),
    /// End one principal's connections.
    EvictPrincipal(Principal),
    /// End those of 1 to [`MAX_PRINCIPALS`] principals, in one sweep. Each is named once.
    EvictPrincipals(Vec<Principal>),
    /// On which channels does exactly this incarnation hold a durable membership?
    LifecycleMemberships {
        /// The principal.
        principal: Principal,
        /// The incarnation.
        uid: LifecycleUid,
    },
    /// Which store do you read your credentials from, and do you hold the lease?
    ReloadStoreIdentity,
    /// Read them again.
    ReloadCreds(ExpectedCreds),
}

/// The generations that a renewal expects to be adopted: SHA-256 of each user JWT, lower hex.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExpectedCreds {
    /// Of `delivery.creds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Sha256Hex>,
    /// Of `membership-rw.creds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub membership: Option<Sha256Hex>,
}

/// One verdict of [`PlaneLiveness`], with the connection that it is on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnectionVerdict {
    /// What was asked about, echoed.
    pub tuple: PlaneTuple,
    /// The verdict.
    pub state: Liveness,
}

/// The answer to [`AdminRequest::PlaneConnLiveness`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaneLiveness {
    /// The ledger scanner's.
    pub ledger: ConnectionVerdict,
    /// The records scanner's.
    pub records: ConnectionVerdict,
    /// Whether every server that there is answered in full.
    pub sweep_complete: bool,
    /// Why a verdict is inconclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The answer to [`AdminRequest::PrincipalLiveness`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PrincipalLiveness {
    /// Who was asked about, echoed.
    pub principal: Principal,
    /// The verdict.
    pub state: Liveness,
    /// Whether every server that there is answered in full.
    pub sweep_complete: bool,
    /// Why the verdict is inconclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What became of one principal's connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionResult {
    /// Who was to go, echoed.
    pub principal: Principal,
    /// Connections that were told to go.
    pub kicked: u64,
    /// Connections that the last sweep still found.
    pub remaining: u64,
    /// A complete sweep found none.
    pub verified_gone: bool,
    /// Whether the last sweep was complete.
    pub scan_complete: bool,
    /// Why it is not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The answer to [`AdminRequest::LifecycleMemberships`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memberships {
    /// Always true: a listing that is not complete is a refusal.
    pub complete: bool,
    /// The channels, sorted, each once.
    pub channels: Vec<String>,
}

/// Which store a process reads its credentials from: equal identities are one store (contract 08 §2.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum StoreIdentity {
    /// The store of a workspace root.
    Fs {
        /// The root.
        root: String,
        /// The random id that is kept in it, where it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
    /// A store that a host injected.
    Injected {
        /// The host's stable coordinate.
        coordinate: String,
    },
}

/// The answer to [`AdminRequest::ReloadStoreIdentity`]: the store, who answers, and that it holds the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreAnswer {
    /// The store.
    #[serde(flatten)]
    pub store: StoreIdentity,
    /// Who answers: to be compared with the holder in the lease row.
    pub answerer: String,
    /// Whether it holds the lease.
    pub holds_lease: bool,
}

/// What became of one credential at a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Adoption {
    /// SHA-256 of the user JWT that is now in use, lower hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Sha256Hex>,
    /// Whether the broker took a connection of it.
    pub broker_accepted: bool,
    /// Why there was nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// The answer to [`AdminRequest::ReloadCreds`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Of `delivery.creds`.
    pub delivery: Adoption,
    /// Of `membership-rw.creds`.
    pub membership: Adoption,
}

/// The lease row `lease.0`: `{holder, since, ready}` (contract 01 §4.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseRow {
    /// The holder's principal.
    pub holder: String,
    /// Since when, in milliseconds.
    pub since: u64,
    /// Whether its rail is bound.
    pub ready: bool,
}

/// A message of the rail that is refused: a sentence that repeats nothing of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AdminError(pub String);

// === impl AdminRequest ===

impl AdminRequest {
    /// The verb.
    pub const fn op(&self) -> &'static str {
        match self {
            Self::PlaneConnLiveness(_) => PLANE_CONN_LIVENESS,
            Self::PrincipalLiveness(_) => PRINCIPAL_LIVENESS,
            Self::EvictPrincipal(_) => EVICT_PRINCIPAL,
            Self::EvictPrincipals(_) => EVICT_PRINCIPALS,
            Self::LifecycleMemberships { .. } => LIFECYCLE_MEMBERSHIPS,
            Self::ReloadStoreIdentity => RELOAD_STORE_IDENTITY,
            Self::ReloadCreds(_) => RELOAD_CREDS,
        }
    }

    /// The request as it is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let args = match self {
            Self::PlaneConnLiveness(query) => json!({ "query": query }),
            Self::PrincipalLiveness(principal) | Self::EvictPrincipal(principal) => {
                json!({ "principal": principal })
            }
            Self::EvictPrincipals(principals) => json!({ "principals": principals }),
            Self::LifecycleMemberships { principal, uid } => {
                json!({ "principal": principal, "lifecycleUid": uid })
            }
            Self::ReloadStoreIdentity => json!({}),
            Self::ReloadCreds(expected) => json!({ "expected": expected }),
        };
        compact(&json!({ "op": self.op(), "args": args }))
    }

    /// Reads a request: size, then shape, then the verb, then its arguments.
    pub fn parse(bytes: &[u8]) -> Result<Self, AdminError> {
        if bytes.len() > MAX_REQUEST_BYTES {
            return Err(AdminError(format!("the request is larger than {MAX_REQUEST_BYTES} bytes")));
        }
        let request: Value =
            serde_json::from_slice(bytes).map_err(|_| AdminError("the request is not JSON".into()))?;
        let request = Closed::of("request", &request, &["op", "args", "from"])?;
        let op = request.text("op")?;
        let none = Value::Object(Map::new());
        let args = request.get("args").unwrap_or(&none);
        let args = |members| Closed::of("args", args, members);
        match op {
            PLANE_CONN_LIVENESS => {
                let args = args(&["query"])?;
                let query = Closed::of("args.query", args.need("query")?, &["ledger", "records"])?;
                Ok(Self::PlaneConnLiveness(PlaneQuery {
                    ledger: read_tuple(query.need("ledger")?)?,
                    records: read_tuple(query.need("records")?)?,
                }))
            }
            PRINCIPAL_LIVENESS => Ok(Self::PrincipalLiveness(args(&["principal"])?.principal("principal")?)),
            EVICT_PRINCIPAL => Ok(Self::EvictPrincipal(args(&["principal"])?.principal("principal")?)),
            EVICT_PRINCIPALS => {
                let args = args(&["principals"])?;
                let listed =
                    args.need("principals")?.as_array().ok_or_else(|| args.bad("principals", "a list"))?;
                if listed.is_empty() || listed.len() > MAX_PRINCIPALS {
                    return Err(args.bad("principals", &format!("1 to {MAX_PRINCIPALS} principals")));
                }
                let principals: Vec<Principal> = listed
                    .iter()
                    .map(|one| one.as_str().and_then(|text| Principal::parse_key(text).ok()))
                    .collect::<Option<_>>()
                    .ok_or_else(|| args.bad("principals", "principals in dot form"))?;
                if principals.iter().collect::<BTreeSet<_>>().len() != principals.len() {
                    return Err(args.bad("principals", "principals that are each named once"));
                }
                Ok(Self::EvictPrincipals(principals))
            }
            LIFECYCLE_MEMBERSHIPS => {
                let args = args(&["principal", "lifecycleUid"])?;
                let principal = args.principal("principal")?;
                let uid = LifecycleUid::parse(args.text("lifecycleUid")?)
                    .map_err(|_| args.bad("lifecycleUid", "a lifecycle uid"))?;
                Ok(Self::LifecycleMemberships { principal, uid })
            }
            RELOAD_STORE_IDENTITY => args(&[]).map(|_| Self::ReloadStoreIdentity),
            RELOAD_CREDS => {
                let args = args(&["expected"])?;
                let Some(expected) = args.get("expected") else {
                    return Ok(Self::ReloadCreds(ExpectedCreds::default()));
                };
                let expected = Closed::of("args.expected", expected, &["delivery", "membership"])?;
                Ok(Self::ReloadCreds(ExpectedCreds {
                    delivery: expected.fingerprint("delivery")?,
                    membership: expected.fingerprint("membership")?,
                }))
            }
            _ => Err(AdminError("the request's op is not one that this rail serves".into())),
        }
    }
}

// === replies ===

/// A reply that carries data.
pub fn answer<T: Serialize>(data: &T) -> Vec<u8> {
    compact(&json!({ "ok": true, "data": data }))
}

/// A reply that refuses.
pub fn refuse(error: &str) -> Vec<u8> {
    compact(&json!({ "ok": false, "error": error }))
}

/// Reads a reply: its data, or its refusal as an error.
pub fn parse_reply(bytes: &[u8]) -> Result<Value, AdminError> {
    let garbled = |why: &str| AdminError(format!("the delivery daemon's reply is garbled: {why}"));
    let reply: Value = serde_json::from_slice(bytes).map_err(|_| garbled("it is not JSON"))?;
    let reply = Closed::of("reply", &reply, &["ok", "data", "error"])?;
    match reply.get("ok").and_then(Value::as_bool) {
        Some(true) if reply.get("error").is_none() => Ok(reply.get("data").cloned().unwrap_or(Value::Null)),
        Some(true) => Err(garbled("it is ok and carries an error")),
        Some(false) => {
            let error = reply.get("error").and_then(Value::as_str).unwrap_or("no reason is given");
            let error: String = error.chars().filter(|c| !c.is_control()).take(512).collect();
            Err(AdminError(format!("the delivery daemon refused: {error}")))
        }
        None => Err(garbled("ok must be true or false")),
    }
}

impl Liveness {
    fn read(of: &Closed<'_>) -> Result<Self, AdminError> {
        match of.text("state")? {
            "live" => Ok(Self::Live),
            "gone" => Ok(Self::Gone),
            "unknown" => Ok(Self::Unknown),
            _ => Err(of.bad("state", "live, gone or unknown")),
        }
    }
}

impl PlaneLiveness {
    /// Reads the answer, closed at every level. What was echoed, and whether `gone` agrees with the sweep, is the
    /// caller's to check.
    pub fn read(value: &Value) -> Result<Self, AdminError> {
        let result = Closed::of("result", value, &["ledger", "records", "sweepComplete", "note"])?;
        let verdict = |member| {
            let verdict = Closed::of("verdict", result.need(member)?, &["tuple", "state"])?;
            let tuple = read_tuple(verdict.need("tuple")?)?;
            Ok(ConnectionVerdict { tuple, state: Liveness::read(&verdict)? })
        };
        Ok(Self {
            ledger: verdict("ledger")?,
            records: verdict("records")?,
            sweep_complete: result.flag("sweepComplete")?,
            note: result.note()?,
        })
    }
}

impl PrincipalLiveness {
    /// Reads the answer, closed.
    pub fn read(value: &Value) -> Result<Self, AdminError> {
        let result = Closed::of("result", value, &["principal", "state", "sweepComplete", "note"])?;
        Ok(Self {
            principal: result.principal("principal")?,
            state: Liveness::read(&result)?,
            sweep_complete: result.flag("sweepComplete")?,
            note: result.note()?,
        })
    }
}

impl EvictionResult {
    /// Reads one result, closed.
    pub fn read(value: &Value) -> Result<Self, AdminError> {
        let members = ["principal", "kicked", "remaining", "verifiedGone", "scanComplete", "note"];
        let result = Closed::of("result", value, &members)?;
        Ok(Self {
            principal: result.principal("principal")?,
            kicked: result.uint("kicked")?,
            remaining: result.uint("remaining")?,
            verified_gone: result.flag("verifiedGone")?,
            scan_complete: result.flag("scanComplete")?,
            note: result.note()?,
        })
    }
}

impl Memberships {
    /// Reads the answer, closed; one that is not complete is refused.
    pub fn read(value: &Value) -> Result<Self, AdminError> {
        let result = Closed::of("result", value, &["complete", "channels"])?;
        if !result.flag("complete")? {
            return Err(AdminError("the delivery daemon's listing is not complete".into()));
        }
        let channels = result.need("channels")?.as_array().and_then(|listed| {
            listed.iter().map(|one| one.as_str().map(str::to_owned)).collect::<Option<BTreeSet<_>>>()
        });
        let channels = channels.ok_or_else(|| result.bad("channels", "a list of channels"))?;
        if channels.contains("") {
            return Err(result.bad("channels", "a list of channels"));
        }
        Ok(Self { complete: true, channels: channels.into_iter().collect() })
    }
}

impl StoreAnswer {
    /// Reads the answer, closed.
    pub fn read(value: &Value) -> Result<Self, AdminError> {
        let members = ["kind", "root", "id", "coordinate", "answerer", "holdsLease"];
        let result = Closed::of("result", value, &members)?;
        let text = |member: &str| result.bounded(member, MAX_STORE_TEXT).map(str::to_owned);
        let store = match (result.text("kind")?, result.get("coordinate").is_some()) {
            ("fs", false) => {
                let id = result.get("id").map(|_| text("id")).transpose()?;
                StoreIdentity::Fs { root: text("root")?, id }
            }
            ("injected", true) if result.get("root").is_none() && result.get("id").is_none() => {
                StoreIdentity::Injected { coordinate: text("coordinate")? }
            }
            _ => return Err(result.bad("kind", "fs with a root, or injected with a coordinate")),
        };
        let answerer = result.bounded("answerer", MAX_HOLDER)?.to_owned();
        Ok(Self { store, answerer, holds_lease: result.flag("holdsLease")? })
    }
}

impl Adoption {
    fn read(value: &Value) -> Result<Self, AdminError> {
        let adoption = Closed::of("adoption", value, &["fingerprint", "brokerAccepted", "skipped"])?;
        Ok(Self {
            fingerprint: adoption.fingerprint("fingerprint")?,
            broker_accepted: adoption.flag("brokerAccepted")?,
            skipped: adoption
                .get("skipped")
                .map(|_| adoption.text("skipped").map(str::to_owned))
                .transpose()?,
        })
    }
}

impl Reloaded {
    /// Reads the answer, closed.
    pub fn read(value: &Value) -> Result<Self, AdminError> {
        let result = Closed::of("result", value, &["delivery", "membership"])?;
        Ok(Self {
            delivery: Adoption::read(result.need("delivery")?)?,
            membership: Adoption::read(result.need("membership")?)?,
        })
    }
}

impl LeaseRow {
    /// The row as it is written.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(self)
    }

    /// Reads a stored row, closed.
    pub fn parse(bytes: &[u8]) -> Result<Self, AdminError> {
        let row: Value = serde_json::from_slice(bytes)
            .map_err(|_| AdminError("the stored delivery lease is not JSON".into()))?;
        let row = Closed::of("delivery lease", &row, &["holder", "since", "ready"])?;
        Ok(Self {
            holder: row.bounded("holder", MAX_HOLDER)?.to_owned(),
            since: row.uint("since")?,
            ready: row.flag("ready")?,
        })
    }
}

fn read_tuple(value: &Value) -> Result<PlaneTuple, AdminError> {
    PlaneTuple::parse(value)
        .map_err(|_| AdminError("a connection must be exactly serverId, cid and userNkey, each valid".into()))
}

// === closed objects ===

struct Closed<'a> {
    what: &'static str,
    members: &'a Map<String, Value>,
}

impl<'a> Closed<'a> {
    fn of(what: &'static str, value: &'a Value, known: &[&str]) -> Result<Self, AdminError> {
        let members = value.as_object().ok_or_else(|| AdminError(format!("{what} must be an object")))?;
        if members.keys().any(|key| !known.contains(&key.as_str())) {
            return Err(AdminError(format!("{what} has a member that this rail does not know")));
        }
        Ok(Self { what, members })
    }

    fn bad(&self, member: &str, rule: &str) -> AdminError {
        AdminError(format!("{}: {member} must be {rule}", self.what))
    }

    fn get(&self, member: &str) -> Option<&'a Value> {
        self.members.get(member)
    }

    fn need(&self, member: &str) -> Result<&'a Value, AdminError> {
        self.get(member).ok_or_else(|| AdminError(format!("{}: {member} is missing", self.what)))
    }

    fn text(&self, member: &str) -> Result<&'a str, AdminError> {
        self.need(member)?.as_str().ok_or_else(|| self.bad(member, "a string"))
    }

    fn bounded(&self, member: &str, longest: usize) -> Result<&'a str, AdminError> {
        let text = self.text(member)?;
        if text.is_empty() || text.chars().count() > longest {
            return Err(self.bad(member, &format!("1 to {longest} characters")));
        }
        Ok(text)
    }

    fn uint(&self, member: &str) -> Result<u64, AdminError> {
        safe_uint(self.need(member)?)
            .ok_or_else(|| self.bad(member, &format!("an integer from 0 to {MAX_SAFE_INTEGER}")))
    }

    fn flag(&self, member: &str) -> Result<bool, AdminError> {
        self.need(member)?.as_bool().ok_or_else(|| self.bad(member, "true or false"))
    }

    fn principal(&self, member: &str) -> Result<Principal, AdminError> {
        Principal::parse_key(self.text(member)?).map_err(|_| self.bad(member, "a principal in dot form"))
    }

    fn fingerprint(&self, member: &str) -> Result<Option<Sha256Hex>, AdminError> {
        if self.get(member).is_none() {
            return Ok(None);
        }
        Sha256Hex::parse(self.text(member)?).map(Some).map_err(|_| self.bad(member, "a SHA-256 in lower hex"))
    }

    fn note(&self) -> Result<Option<String>, AdminError> {
        self.get("note").map(|_| self.text("note").map(str::to_owned)).transpose()
    }
}
