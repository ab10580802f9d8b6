//! Streams and buckets of a space (contract 01 §4, 07 §12.4): created when absent, then always verified.

use cotal_wire::{EpError, Space, names::Names};
use serde_json::Value;

use crate::{
    api::{self, ApiFailure, STREAM_NAME_IN_USE},
    broker_floor::require_broker_floor,
    connection::Connection,
    shape,
    streams::{self, Config, Expiring, StoreSpec, StreamSpec, Verify},
};

/// How many servers of the broker's cluster keep a copy of each stream: one, unless the broker is a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas(u8);

impl Replicas {
    /// A broker that is one server.
    pub const ONE: Self = Self(1);
    /// The most that a broker keeps.
    pub const MOST: u8 = 5;

    /// Reads a number of copies: 1 to [`Self::MOST`].
    pub fn new(copies: u8) -> Result<Self, EpError> {
        if (1..=Self::MOST).contains(&copies) {
            return Ok(Self(copies));
        }
        Err(EpError::bad_request(format!("a stream is kept on 1 to {} servers, not on {copies}", Self::MOST)))
    }
}

impl Default for Replicas {
    fn default() -> Self {
        Self::ONE
    }
}

impl From<Replicas> for Value {
    fn from(replicas: Replicas) -> Self {
        replicas.0.into()
    }
}

/// Creates or verifies every stream and bucket of a space on a broker of one server; see [`provision_replicated`].
pub async fn provision_space(provisioner: &Connection, space: &Space) -> Result<(), EpError> {
    provision_replicated(provisioner, space, Replicas::ONE).await
}

/// Creates or verifies every stream and bucket of a space, in setup order, each kept on as many servers; drift refuses.
///
/// Message streams, messaging buckets, authority stores, endpoint-plane streams, and last the lifetimes of the three
/// buckets whose rows expire, which are brought to what they must be. The connection needs the `provisioner` grant.
pub async fn provision_replicated(
    provisioner: &Connection,
    space: &Space,
    replicas: Replicas,
) -> Result<(), EpError> {
    require_broker_floor(provisioner)?;
    let names = Names::new(&space.token());
    for spec in streams::message_streams(&names).into_iter().chain(streams::messaging_buckets(&names)) {
        ensure_stream(provisioner, &spec.kept_on(replicas)).await?;
    }
    let (authority, evidence) =
        (streams::authority_stores(names.space()), streams::evidence_stores(names.space()));
    for store in authority.into_iter().chain(evidence) {
        ensure_store(provisioner, &store.kept_on(replicas)).await?;
    }
    for spec in streams::endpoint_streams(&names) {
        ensure_stream(provisioner, &spec.kept_on(replicas)).await?;
    }
    for expiring in streams::expiring_buckets(&names) {
        reconcile_ttl(provisioner, &expiring).await?;
    }
    Ok(())
}

/// Creates if absent, then always verifies, both authority stores (contract 07 §12.4).
pub async fn ensure_authority_stores(writer: &Connection, space: &Space) -> Result<(), EpError> {
    for store in streams::authority_stores(&space.token()) {
        ensure_store(writer, &store).await?;
    }
    Ok(())
}

/// How far the authority stores of a space have come: the last sequence of each, `None` for one that is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthorityStores {
    /// The records store.
    pub records: Option<u64>,
    /// The auth store.
    pub auth: Option<u64>,
}

/// Looks at both authority stores and creates neither: whoever provisions decides first whether an absent one is new or
/// lost. The connection needs the `provisioner` grant.
pub async fn look_at_authority_stores(
    provisioner: &Connection,
    space: &Space,
) -> Result<AuthorityStores, EpError> {
    let names = Names::new(&space.token());
    let last_seq = async |stream: String| Ok(read(provisioner, &stream).await?.map(|found| found.last_seq));
    Ok(AuthorityStores {
        records: last_seq(names.records_stream()).await?,
        auth: last_seq(names.auth_stream()).await?,
    })
}

async fn ensure_stream(connection: &Connection, spec: &StreamSpec) -> Result<(), EpError> {
    let stream = name_of(&spec.config);
    let found = if let Some(found) = read(connection, stream).await? {
        found.config
    } else {
        create(connection, &spec.config).await?;
        read_back(connection, stream).await?.config
    };
    let drift = match &spec.verify {
        Verify::Exact => streams::first_drift(&spec.config, &found, spec.reconciled()),
        Verify::Facts(facts) => {
            let stated = |config: &Config| {
                config.iter().filter(|(field, _)| facts.contains(&field.as_str())).map(owned).collect()
            };
            streams::first_drift(&stated(&spec.config), &stated(&found), &[])
        }
    };
    drift.map_or(Ok(()), |field| Err(drifted(stream, &field)))
}

async fn ensure_store(connection: &Connection, store: &StoreSpec) -> Result<(), EpError> {
    let stream = name_of(&store.created);
    let found = match read(connection, stream).await? {
        // Whoever was cut short between the two steps left a store that no row ever reached.
        Some(found)
            if found.last_seq == 0
                && !store.hardening.is_empty()
                && streams::first_drift(&store.created, &found.config, &[]).is_none() =>
        {
            harden(connection, store, found.config).await?
        }
        Some(found) => found.config,
        None => {
            create(connection, &store.created).await?;
            let created = read_back(connection, stream).await?.config;
            harden(connection, store, created).await?
        }
    };
    shape::check(&found, &store.bucket, false).map_err(|drift| drift.refuse(stream))?;
    let read_back =
        |field: &&String| found.get(*field).unwrap_or(&Value::Bool(false)) != &store.verified[*field];
    store.verified.keys().find(read_back).map_or(Ok(()), |field| Err(drifted(stream, field)))
}

/// The one update of a fresh store, and what it reads back.
async fn harden(connection: &Connection, store: &StoreSpec, created: Config) -> Result<Config, EpError> {
    if store.hardening.is_empty() {
        return Ok(created);
    }
    let stream = name_of(&store.created);
    let mut hardened = created;
    hardened.extend(store.hardening.clone());
    update(connection, &hardened).await?;
    Ok(read_back(connection, stream).await?.config)
}

async fn reconcile_ttl(connection: &Connection, expiring: &Expiring) -> Result<(), EpError> {
    let stream = Names::kv_stream(&expiring.bucket);
    let mut config = read_back(connection, &stream).await?.config;
    let wanted = expiring.max_age;
    let nanos = |config: &Config, field: &str| config.get(field).and_then(Value::as_u64).unwrap_or_default();
    if nanos(&config, "max_age") == wanted {
        return Ok(());
    }
    let window = match nanos(&config, "duplicate_window") {
        0 => wanted,
        existing => existing.min(wanted),
    };
    config.insert("max_age".into(), wanted.into());
    config.insert("duplicate_window".into(), window.into());
    update(connection, &config).await?;
    let applied = read_back(connection, &stream).await?.config;
    if nanos(&applied, "max_age") == wanted { Ok(()) } else { Err(drifted(&stream, "max_age")) }
}

struct Found {
    config: Config,
    last_seq: u64,
}

async fn read(connection: &Connection, stream: &str) -> Result<Option<Found>, EpError> {
    let failed = |why: &str| EpError::unavailable(format!("{stream}: STREAM.INFO failed: {why}"));
    match api::ask(connection, &format!("STREAM.INFO.{stream}"), &Config::new()).await {
        Ok(mut info) => {
            let last_seq = info.get("state").and_then(|state| state.get("last_seq")).and_then(Value::as_u64);
            match (info.remove("config"), last_seq) {
                (Some(Value::Object(config)), Some(last_seq)) => Ok(Some(Found { config, last_seq })),
                _ => Err(failed("the answer is garbled")),
            }
        }
        Err(ApiFailure::Refused { err_code: api::STREAM_NOT_FOUND, .. }) => Ok(None),
        Err(failure) => Err(failed(&failure.to_string())),
    }
}

async fn read_back(connection: &Connection, stream: &str) -> Result<Found, EpError> {
    read(connection, stream)
        .await?
        .ok_or_else(|| EpError::unavailable(format!("{stream} vanished while it was provisioned")))
}

async fn create(connection: &Connection, config: &Config) -> Result<(), EpError> {
    let stream = name_of(config);
    match api::ask(connection, &format!("STREAM.CREATE.{stream}"), config).await {
        // Another provisioner was first; what it made is verified like any other.
        Ok(_) | Err(ApiFailure::Refused { err_code: STREAM_NAME_IN_USE, .. }) => Ok(()),
        Err(failure) => Err(EpError::unavailable(format!("{stream}: STREAM.CREATE failed: {failure}"))),
    }
}

async fn update(connection: &Connection, config: &Config) -> Result<(), EpError> {
    let stream = name_of(config);
    match api::ask(connection, &format!("STREAM.UPDATE.{stream}"), config).await {
        Ok(_) => Ok(()),
        Err(failure) => Err(EpError::unavailable(format!("{stream}: STREAM.UPDATE failed: {failure}"))),
    }
}

fn name_of(config: &Config) -> &str {
    config.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn owned((field, value): (&String, &Value)) -> (String, Value) {
    (field.clone(), value.clone())
}

fn drifted(stream: &str, field: &str) -> EpError {
    shape::drifted(stream, field, "is not what the space was provisioned with")
}
