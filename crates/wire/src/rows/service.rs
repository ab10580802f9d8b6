//! Service instances: `svc.<e>.<instance>.spec` and `.status` in the records bucket (contract 02 §7.1, 07 §11.1).
//!
//! Unlike every other row these two are open: members that this version does not know are kept and carried on.

use std::{collections::BTreeSet, fmt};

use serde::Serialize;
use serde_json::{Map, Value};

use super::closed::{Closed, compact, safe_uint};
use crate::{
    endpoint_token::{DigestRef, EndpointName, EndpointToken},
    error::EpError,
    time::Revision,
    token::Owner,
};

const SPEC: &str = "service spec";
const STATUS: &str = "service status";
const DEFAULT_MAX_RESTARTS: u64 = 3;
const DEFAULT_RESTART_WINDOW_MS: u64 = 60_000;
const ON_DEMAND: &str = "on-demand";
/// The one protocol version that is implemented.
const PROTOCOL: u64 = 1;

/// How an endpoint is started on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activation {
    /// How many instances at most.
    pub capacity: u64,
    /// Restarts within the window; 3 unless said.
    pub max_restarts: Option<u64>,
    /// The window, in milliseconds; 60 000 unless said.
    pub restart_window_ms: Option<u64>,
}

/// What an instance registered.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceSpec {
    endpoint: EndpointName,
    owner: Owner,
    endpoint_type: Option<String>,
    cluster_digests: Vec<DigestRef>,
    activation: Option<Activation>,
    rest: Map<String, Value>,
}

/// The word of a status. Three are known; others are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusState(Box<str>);

/// One restart, as the supervisor counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SupervisorRestart {
    /// When, in milliseconds.
    pub t: u64,
    /// The epoch that it ended.
    pub epoch: u64,
}

/// What an instance, or its supervisor, says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceStatus {
    epoch: u64,
    state: StatusState,
    observed_spec_revision: Revision,
    rest: Map<String, Value>,
    restarts: Option<Vec<SupervisorRestart>>,
    retired_at: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec<'a> {
    endpoint: &'a EndpointName,
    owner: &'a Owner,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint_type: Option<&'a str>,
    cluster_digests: &'a [DigestRef],
    protocol: Protocol,
    #[serde(skip_serializing_if = "Option::is_none")]
    activation: Option<WireActivation>,
    #[serde(flatten)]
    rest: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct Protocol {
    v: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireActivation {
    mode: &'static str,
    capacity: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_restarts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_window_ms: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus<'a> {
    epoch: u64,
    state: &'a str,
    observed_spec_revision: Revision,
    #[serde(flatten)]
    rest: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restarts: Option<&'a [SupervisorRestart]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retired_at: Option<u64>,
}

// === impl Activation ===

impl Activation {
    /// Restarts within the window.
    pub fn max_restarts(&self) -> u64 {
        self.max_restarts.unwrap_or(DEFAULT_MAX_RESTARTS)
    }

    /// The window, in milliseconds.
    pub fn restart_window_ms(&self) -> u64 {
        self.restart_window_ms.unwrap_or(DEFAULT_RESTART_WINDOW_MS)
    }

    fn parse(value: &Value) -> Result<Self, EpError> {
        let row = Closed::of(
            "service activation",
            value.clone(),
            &["mode", "capacity", "maxRestarts", "restartWindowMs"],
        )?;
        if row.text("mode")? != ON_DEMAND {
            return Err(row.garbled("its mode is not on-demand"));
        }
        Ok(Self {
            capacity: row.positive("capacity")?,
            max_restarts: row.optional("maxRestarts", Closed::positive)?,
            restart_window_ms: row.optional("restartWindowMs", Closed::positive)?,
        })
    }
}

// === impl ServiceSpec ===

impl ServiceSpec {
    /// A spec. It names at least one cluster, each once.
    pub fn new(
        endpoint: &EndpointName,
        owner: &Owner,
        cluster_digests: Vec<DigestRef>,
    ) -> Result<Self, EpError> {
        if cluster_digests.is_empty() {
            return Err(EpError::internal("a service spec names at least one cluster"));
        }
        Ok(Self {
            endpoint: endpoint.clone(),
            owner: owner.clone(),
            endpoint_type: None,
            cluster_digests,
            activation: None,
            rest: Map::new(),
        })
    }

    /// The same spec with a type.
    #[must_use]
    pub fn of_type(self, endpoint_type: &str) -> Self {
        Self { endpoint_type: Some(endpoint_type.to_owned()), ..self }
    }

    /// The same spec, started on demand.
    #[must_use]
    pub fn on_demand(self, activation: Activation) -> Self {
        Self { activation: Some(activation), ..self }
    }

    /// Reads the spec stored under a key of this endpoint.
    pub fn parse(endpoint: &EndpointToken, bytes: &[u8]) -> Result<Self, EpError> {
        let (row, mut rest) = open(SPEC, bytes)?;
        let name = EndpointName::parse(row.text("endpoint")?)
            .map_err(|_| row.garbled("its endpoint is not an endpoint name"))?;
        if name.token() != *endpoint {
            return Err(row.garbled("it is of another endpoint than its key"));
        }
        let owner = row.token("owner")?;
        let endpoint_type = row.optional("endpointType", Closed::text)?.map(str::to_owned);
        let cluster_digests: Option<Vec<_>> = row
            .array("clusterDigests")?
            .iter()
            .map(|digest| digest.as_str().and_then(|text| DigestRef::parse(text).ok()))
            .collect();
        let cluster_digests = cluster_digests
            .filter(|digests| !digests.is_empty())
            .ok_or_else(|| row.garbled("its clusterDigests are not a non-empty list of digests"))?;
        let protocol = row.value("protocol").and_then(Value::as_object);
        let version = |protocol: &Map<String, Value>| protocol.get("v").and_then(safe_uint);
        if protocol.is_none_or(|protocol| protocol.len() != 1 || version(protocol) != Some(PROTOCOL)) {
            return Err(row.garbled("its protocol is not version 1"));
        }
        let activation = row.value("activation").map(Activation::parse).transpose()?;
        for known in ["endpoint", "owner", "endpointType", "clusterDigests", "protocol", "activation"] {
            rest.remove(known);
        }
        Ok(Self { endpoint: name, owner, endpoint_type, cluster_digests, activation, rest })
    }

    /// The bytes of this row, unknown members last.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&WireSpec {
            endpoint: &self.endpoint,
            owner: &self.owner,
            endpoint_type: self.endpoint_type.as_deref(),
            cluster_digests: &self.cluster_digests,
            protocol: Protocol { v: PROTOCOL },
            activation: self.activation.map(|activation| WireActivation {
                mode: ON_DEMAND,
                capacity: activation.capacity,
                max_restarts: activation.max_restarts,
                restart_window_ms: activation.restart_window_ms,
            }),
            rest: &self.rest,
        })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &EndpointName {
        &self.endpoint
    }

    /// Who answers for the instance.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The type, for people.
    pub fn endpoint_type(&self) -> Option<&str> {
        self.endpoint_type.as_deref()
    }

    /// The closure digests of its clusters.
    pub fn cluster_digests(&self) -> &[DigestRef] {
        &self.cluster_digests
    }

    /// How it is started on demand, if it is.
    pub fn activation(&self) -> Option<&Activation> {
        self.activation.as_ref()
    }
}

// === impl StatusState ===

impl StatusState {
    /// Reads a status word: `^[a-z][a-z0-9-]{0,31}$`.
    pub fn parse(word: &str) -> Option<Self> {
        let ok = word.len() <= 32
            && word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        ok.then(|| Self(word.into()))
    }

    /// It serves.
    pub fn ready() -> Self {
        Self("ready".into())
    }

    /// It ended in order.
    pub fn exited() -> Self {
        Self("exited".into())
    }

    /// It was given up: terminal, and a supervisor's word alone.
    pub fn escalated() -> Self {
        Self("escalated".into())
    }

    /// Whether it was given up.
    pub fn is_escalated(&self) -> bool {
        *self == Self::escalated()
    }

    /// The wire word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StatusState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl ServiceStatus ===

impl ServiceStatus {
    /// A status without supervisor fields.
    pub fn new(epoch: u64, state: StatusState, observed_spec_revision: Revision) -> Self {
        Self { epoch, state, observed_spec_revision, rest: Map::new(), restarts: None, retired_at: None }
    }

    /// The same status with further members. Those that the schema knows are not replaced.
    #[must_use]
    pub fn with(mut self, members: Map<String, Value>) -> Self {
        let own = ["epoch", "state", "observedSpecRevision", "restarts", "retiredAt"];
        self.rest.extend(members.into_iter().filter(|(name, _)| !own.contains(&name.as_str())));
        self
    }

    /// The same status with what a supervisor says.
    #[must_use]
    pub fn supervised(self, restarts: Option<Vec<SupervisorRestart>>, retired_at: Option<u64>) -> Self {
        Self { restarts, retired_at, ..self }
    }

    /// Reads a stored status.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let (row, mut rest) = open(STATUS, bytes)?;
        let epoch = row.uint("epoch")?;
        let state =
            StatusState::parse(row.text("state")?).ok_or_else(|| row.garbled("its state is no word"))?;
        let observed_spec_revision = Revision(row.uint("observedSpecRevision")?);
        let restarts = row
            .value("restarts")
            .map(|value| restarts(value).ok_or_else(|| row.garbled("its restarts are not a list of them")))
            .transpose()?;
        let retired_at = row.optional("retiredAt", Closed::uint)?;
        if retired_at.is_some() && !state.is_escalated() {
            return Err(row.garbled("only an escalated status carries retiredAt"));
        }
        for known in ["epoch", "state", "observedSpecRevision", "restarts", "retiredAt"] {
            rest.remove(known);
        }
        Ok(Self { epoch, state, observed_spec_revision, rest, restarts, retired_at })
    }

    /// The bytes of this row, the supervisor's members last.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&WireStatus {
            epoch: self.epoch,
            state: self.state.as_str(),
            observed_spec_revision: self.observed_spec_revision,
            rest: &self.rest,
            restarts: self.restarts.as_deref(),
            retired_at: self.retired_at,
        })
    }

    /// The process epoch that says it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What it says.
    pub fn state(&self) -> &StatusState {
        &self.state
    }

    /// The revision of the spec that it was said under.
    pub fn observed_spec_revision(&self) -> Revision {
        self.observed_spec_revision
    }

    /// The supervisor's restarts.
    pub fn restarts(&self) -> Option<&[SupervisorRestart]> {
        self.restarts.as_deref()
    }

    /// When the supervisor gave it up, in milliseconds.
    pub fn retired_at(&self) -> Option<u64> {
        self.retired_at
    }

    /// The same status with the supervisor's fields of `stored` where it has none of its own.
    #[must_use]
    pub fn carry_supervisor_fields(self, stored: &Self) -> Self {
        let restarts = self.restarts.or_else(|| stored.restarts.clone());
        let retired_at = self.retired_at.or(if self.state.is_escalated() { stored.retired_at } else { None });
        Self { restarts, retired_at, ..self }
    }

    /// The same status without the supervisor's fields.
    #[must_use]
    pub fn without_supervisor_fields(self) -> Self {
        Self { restarts: None, retired_at: None, ..self }
    }
}

/// An object of which only the known members are checked, and all its members.
fn open(what: &'static str, bytes: &[u8]) -> Result<(Closed, Map<String, Value>), EpError> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|_| EpError::internal(format!("a stored {what} is not valid JSON")))?;
    let members = value.as_object().cloned().unwrap_or_default();
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    Ok((Closed::of(what, value, &names)?, members))
}

/// Restarts with unique epochs.
fn restarts(value: &Value) -> Option<Vec<SupervisorRestart>> {
    let mut epochs = BTreeSet::new();
    value
        .as_array()?
        .iter()
        .map(|one| {
            let t = one.get("t").and_then(safe_uint)?;
            let epoch = one.get("epoch").and_then(safe_uint)?;
            epochs.insert(epoch).then_some(SupervisorRestart { t, epoch })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{canonical::VOID_CLOSURE_DIGEST, error::EpCode};

    fn endpoint() -> EndpointName {
        EndpointName::parse("com.example.search").unwrap()
    }

    fn spec() -> ServiceSpec {
        let digest = DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap();
        ServiceSpec::new(&endpoint(), &Owner::local(), vec![digest]).unwrap()
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_spec_says_what_it_registers() {
        let plain = format!(
            "{{\"endpoint\":\"com.example.search\",\"owner\":\"local\",\"clusterDigests\":[\"{VOID_CLOSURE_DIGEST}\"],\
             \"protocol\":{{\"v\":1}}}}"
        );
        assert_eq!(text(spec().to_bytes()), plain);
        let on_demand = Activation { capacity: 2, max_restarts: None, restart_window_ms: Some(5) };
        let full = spec().of_type("search").on_demand(on_demand);
        assert_eq!(
            text(full.to_bytes()),
            plain.replace("\"clusterDigests\"", "\"endpointType\":\"search\",\"clusterDigests\"").replace(
                "{\"v\":1}",
                "{\"v\":1},\"activation\":{\"mode\":\"on-demand\",\"capacity\":2,\"restartWindowMs\":5}",
            ),
        );
        for one in [spec(), full] {
            assert_eq!(ServiceSpec::parse(&endpoint().token(), &one.to_bytes()).unwrap(), one);
        }
        assert_eq!((on_demand.max_restarts(), on_demand.restart_window_ms()), (3, 5));
        assert_eq!(
            ServiceSpec::new(&endpoint(), &Owner::local(), vec![]).unwrap_err().code,
            EpCode::Internal
        );
    }

    #[test]
    fn members_of_a_later_version_are_kept() {
        let good = text(spec().to_bytes());
        let later = good.replace("{\"v\":1}", "{\"v\":1},\"effect\":\"read\"");
        assert_eq!(
            text(ServiceSpec::parse(&endpoint().token(), later.as_bytes()).unwrap().to_bytes()),
            later
        );
        let status = "{\"epoch\":3,\"state\":\"ready\",\"observedSpecRevision\":9,\"load\":0.5}";
        assert_eq!(text(ServiceStatus::parse(status.as_bytes()).unwrap().to_bytes()), status);
    }

    #[test]
    fn a_garbled_spec_is_internal() {
        let good = text(
            spec()
                .on_demand(Activation { capacity: 1, max_restarts: None, restart_window_ms: None })
                .to_bytes(),
        );
        let digests = format!("[\"{VOID_CLOSURE_DIGEST}\"]");
        let bare = VOID_CLOSURE_DIGEST.trim_start_matches("sha256:");
        for bytes in [
            String::new(),
            "[]".to_owned(),
            "{}".to_owned(),
            good.replace("com.example.search", "com.example.other"),
            good.replace("com.example.search", "Com"),
            good.replace("local", "bob"),
            good.replace("local", "u_x"),
            good.replace(&digests, "[]"),
            good.replace(&digests, "[1]"),
            good.replace(VOID_CLOSURE_DIGEST, bare),
            good.replace("{\"v\":1}", "{\"v\":2}"),
            good.replace("{\"v\":1}", "{}"),
            good.replace("{\"v\":1}", "1"),
            good.replace("\"owner\"", "\"endpointType\":7,\"owner\""),
            good.replace("on-demand", "always"),
            good.replace("\"capacity\":1", "\"capacity\":0"),
            good.replace("\"capacity\":1", "\"capacity\":1.5"),
            good.replace("\"capacity\":1", "\"capacity\":1,\"maxRestarts\":0"),
            good.replace("\"capacity\":1", "\"capacity\":1,\"minimum\":0"),
            good.replace("\"capacity\":1", "\"maxRestarts\":1"),
        ] {
            let parsed = ServiceSpec::parse(&endpoint().token(), bytes.as_bytes());
            assert_eq!(parsed.unwrap_err().code, EpCode::Internal, "{bytes}");
        }
    }

    #[test]
    fn a_status_carries_the_supervisors_fields_forward() {
        let restarts = vec![SupervisorRestart { t: 1, epoch: 0 }, SupervisorRestart { t: 2, epoch: 1 }];
        let stored = ServiceStatus::new(1, StatusState::escalated(), Revision(4))
            .supervised(Some(restarts.clone()), Some(9));
        assert_eq!(
            text(stored.to_bytes()),
            "{\"epoch\":1,\"state\":\"escalated\",\"observedSpecRevision\":4,\
             \"restarts\":[{\"t\":1,\"epoch\":0},{\"t\":2,\"epoch\":1}],\"retiredAt\":9}",
        );
        assert_eq!(ServiceStatus::parse(&stored.to_bytes()).unwrap(), stored);
        let next = ServiceStatus::new(2, StatusState::ready(), Revision(5)).carry_supervisor_fields(&stored);
        assert_eq!((next.restarts(), next.retired_at()), (Some(restarts.as_slice()), None));
        assert_eq!(next.without_supervisor_fields().restarts(), None);
    }

    #[test]
    fn a_garbled_status_is_internal() {
        let good = "{\"epoch\":1,\"state\":\"escalated\",\"observedSpecRevision\":4,\"restarts\":[{\"t\":1,\"epoch\":0}],\"retiredAt\":9}";
        assert!(ServiceStatus::parse(good.as_bytes()).is_ok());
        for bytes in [
            String::new(),
            "[]".to_owned(),
            good.replace("\"epoch\":1,", ""),
            good.replace("\"epoch\":1,", "\"epoch\":-1,"),
            good.replace("escalated", "Ready"),
            good.replace("escalated", "ready"),
            good.replace("escalated", &format!("a{}", "b".repeat(32))),
            good.replace("escalated", ""),
            good.replace("escalated", "-a"),
            good.replace("\"observedSpecRevision\":4,", ""),
            good.replace("[{\"t\":1,\"epoch\":0}]", "{}"),
            good.replace("[{\"t\":1,\"epoch\":0}]", "[{\"t\":1,\"epoch\":0},{\"t\":2,\"epoch\":0}]"),
            good.replace("[{\"t\":1,\"epoch\":0}]", "[{\"t\":1}]"),
            good.replace("\"retiredAt\":9", "\"retiredAt\":\"9\""),
        ] {
            assert_eq!(ServiceStatus::parse(bytes.as_bytes()).unwrap_err().code, EpCode::Internal, "{bytes}");
        }
    }
}
