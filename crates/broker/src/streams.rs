//! The configuration of every stream and bucket of a space (contract 01 §4.1, §7, 07 §12.4), every field explicit.

use cotal_wire::{SpaceToken, delivery_admin::LEASE_TTL_SECS, names::Names};
use serde_json::{Map, Value, json};

use crate::provision::Replicas;

pub(crate) type Config = Map<String, Value>;

const MILLIS: u64 = 1_000_000;
const SECONDS: u64 = 1_000 * MILLIS;
const HOURS: u64 = 3_600 * SECONDS;
const DAYS: u64 = 24 * HOURS;

/// Presence rows go this long after the last heartbeat.
const PRESENCE_TTL: u64 = 6 * SECONDS;
/// Delivery leases.
const DELIVERY_LEASE_TTL: u64 = LEASE_TTL_SECS * SECONDS;
/// Manager leases.
const MANAGER_LEASE_TTL: u64 = 10 * SECONDS;
const MEMBERSHIP_MAX_BYTES: u64 = 64 << 20;
const DUPLICATE_WINDOW: u64 = 120 * SECONDS;
/// How long the auth bucket keeps a deletion marker.
const MARKER_TTL: u64 = HOURS;

/// How many servers keep a stream.
const REPLICAS: &str = "num_replicas";

/// Fields that the TTL reconciliation owns.
const RECONCILED: &[&str] = &["max_age", "duplicate_window"];

/// A stream to create or verify.
pub(crate) struct StreamSpec {
    pub(crate) config: Config,
    pub(crate) verify: Verify,
}

/// What an existing stream is held to.
pub(crate) enum Verify {
    /// Every field, those apart that a later step reconciles.
    Exact,
    /// The fields that the contract states; the rest is not published.
    Facts(Vec<&'static str>),
}

/// An authority store: made as a KV bucket, hardened by one update, then verified.
pub(crate) struct StoreSpec {
    pub(crate) bucket: String,
    /// As the KV client creates it.
    pub(crate) created: Config,
    /// What the one update sets; empty for a store that needs none.
    pub(crate) hardening: Config,
    /// What must read back.
    pub(crate) verified: Config,
}

/// A bucket whose rows expire.
pub(crate) struct Expiring {
    pub(crate) bucket: String,
    pub(crate) max_age: u64,
}

impl StreamSpec {
    /// The same, kept on as many servers, and held to that where it is more than one.
    pub(crate) fn kept_on(mut self, replicas: Replicas) -> Self {
        self.config.insert(REPLICAS.into(), replicas.into());
        if let Verify::Facts(facts) = &mut self.verify
            && replicas != Replicas::ONE
        {
            facts.push(REPLICAS);
        }
        self
    }

    /// The fields that a later step reconciles instead of refusing: those of a bucket whose rows expire.
    pub(crate) fn reconciled(&self) -> &'static [&'static str] {
        if self.config.get("max_age").and_then(Value::as_u64) == Some(0) { &[] } else { RECONCILED }
    }
}

impl StoreSpec {
    /// The same, kept on as many servers. A space on one server is not asked how many keep it: an operator may have
    /// made them more.
    pub(crate) fn kept_on(mut self, replicas: Replicas) -> Self {
        if replicas != Replicas::ONE {
            self.created.insert(REPLICAS.into(), replicas.into());
            self.verified.insert(REPLICAS.into(), replicas.into());
        }
        self
    }
}

fn object(value: Value) -> Config {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn base(name: &str, subjects: &[String], overrides: Value) -> Config {
    let mut config = object(json!({
        "name": name,
        "subjects": subjects,
        "retention": "limits",
        "storage": "file",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "discard": "old",
        REPLICAS: 1,
        "no_ack": false,
        "duplicate_window": DUPLICATE_WINDOW,
        "compression": "none",
        "allow_direct": false,
        "mirror_direct": false,
        "discard_new_per_subject": false,
        "allow_rollup_hdrs": false,
        "deny_delete": false,
        "deny_purge": false,
        "sealed": false,
        "consumer_limits": {},
    }));
    config.extend(object(overrides));
    config
}

/// A bucket as the ordinary KV client creates it.
fn kv(bucket: &str, overrides: Value) -> Config {
    let mut config = base(
        &Names::kv_stream(bucket),
        &[Names::kv_subject(bucket, ">")],
        json!({ "max_msgs_per_subject": 1, "discard": "new", "allow_rollup_hdrs": true, "allow_direct": true }),
    );
    config.extend(object(overrides));
    config
}

/// The five message streams, in setup order.
pub(crate) fn message_streams(names: &Names) -> Vec<StreamSpec> {
    let prefix = names.subject_prefix();
    let stream = |name: String, kind: &str, overrides| StreamSpec {
        config: base(&name, &[format!("{prefix}.{kind}.>")], overrides),
        verify: Verify::Exact,
    };
    let handoff = || json!({ "max_msgs_per_subject": 1000, "duplicate_window": 7200 * SECONDS });
    vec![
        stream(names.chat_stream(), "chat", json!({ "max_msgs_per_subject": 1000, "allow_direct": true })),
        stream(names.dm_stream(), "inst", json!({})),
        stream(names.task_stream(), "svc", json!({ "retention": "workqueue" })),
        stream(names.inbox_stream(), "dinbox", handoff()),
        stream(names.dlv_stream(), "dlv", handoff()),
    ]
}

/// The buckets whose rows expire.
pub(crate) fn expiring_buckets(names: &Names) -> [Expiring; 3] {
    [
        Expiring { bucket: names.presence_bucket(), max_age: PRESENCE_TTL },
        Expiring { bucket: names.delivery_bucket(), max_age: DELIVERY_LEASE_TTL },
        Expiring { bucket: names.manager_bucket(), max_age: MANAGER_LEASE_TTL },
    ]
}

/// The messaging plane's buckets, in setup order.
pub(crate) fn messaging_buckets(names: &Names) -> Vec<StreamSpec> {
    let expiring = expiring_buckets(names);
    let overrides = |bucket: &str| {
        if let Some(Expiring { max_age, .. }) = expiring.iter().find(|expiring| expiring.bucket == bucket) {
            json!({ "max_age": max_age, "duplicate_window": DUPLICATE_WINDOW.min(*max_age) })
        } else if bucket == names.membership_bucket() {
            json!({ "max_bytes": MEMBERSHIP_MAX_BYTES })
        } else {
            json!({})
        }
    };
    let spec = |bucket: String| StreamSpec { config: kv(&bucket, overrides(&bucket)), verify: Verify::Exact };
    names.messaging_buckets().map(spec).into()
}

/// The endpoint plane's streams, in the order of contract 01 §7.
pub(crate) fn endpoint_streams(names: &Names) -> Vec<StreamSpec> {
    const LIMITED: &[&str] = &["subjects", "retention", "storage", "max_age"];
    let prefix = names.subject_prefix();
    let stream = |name: String, tails: &[&str], overrides, facts: &[&'static str]| {
        let subjects: Vec<String> = tails.iter().map(|tail| format!("{prefix}.{tail}")).collect();
        StreamSpec { config: base(&name, &subjects, overrides), verify: Verify::Facts(facts.to_vec()) }
    };
    let a_day = || json!({ "max_age": 24 * HOURS });
    vec![
        stream(
            names.epj_stream(),
            &["epj.>"],
            json!({ "max_age": 24 * HOURS, "duplicate_window": 100 * MILLIS }),
            &["subjects", "retention", "storage", "max_age", "duplicate_window"],
        ),
        stream(
            names.epf_stream(),
            &["epf.>"],
            json!({ "allow_direct": true }),
            &["subjects", "retention", "storage", "allow_direct"],
        ),
        stream(names.epe_stream(), &["epe.>"], a_day(), LIMITED),
        stream(
            names.ept_req_stream(),
            &["ept.*.*.*.*.schedule"],
            json!({ "max_age": 24 * HOURS, "allow_msg_schedules": false }),
            &["subjects", "retention", "storage", "max_age", "allow_msg_schedules"],
        ),
        stream(names.epr_stream(), &["epr.>"], a_day(), LIMITED),
        stream(
            names.ept_stream(),
            &["ept.*.*.*.*.armed", "ept.*.*.*.*.fire"],
            json!({ "max_age": 31 * DAYS, "allow_msg_schedules": true }),
            &["subjects", "retention", "storage", "max_age", "allow_msg_schedules"],
        ),
        stream(
            names.epw_stream(),
            &["epw.>"],
            json!({ "retention": "workqueue" }),
            &["subjects", "retention", "storage", "allow_direct"],
        ),
        stream(
            names.epc_stream(),
            &["epc.>"],
            json!({
                "max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": true,
                "allow_direct": true, "deny_delete": true, "deny_purge": true,
            }),
            &[
                "subjects",
                "retention",
                "storage",
                "max_age",
                "max_msgs",
                "max_bytes",
                "max_msgs_per_subject",
                "discard",
                "discard_new_per_subject",
                "allow_direct",
                "deny_delete",
                "deny_purge",
            ],
        ),
        stream(
            names.wfj_stream(),
            &["wfj.*"],
            json!({}),
            &["subjects", "retention", "storage", "max_age", "max_msgs", "max_bytes", "allow_direct"],
        ),
    ]
}

fn store(bucket: String, created: Value, hardening: Value, also_verified: Value) -> StoreSpec {
    let hardening = object(hardening);
    let created = kv(&bucket, created);
    let mut verified = hardening.clone();
    verified.insert("allow_direct".into(), created["allow_direct"].clone());
    verified.extend(object(also_verified));
    StoreSpec { bucket, created, hardening, verified }
}

/// A store of the auth bucket's shape: leader reads only, per-key TTLs, markers kept an hour.
fn leader_read_store(bucket: String) -> StoreSpec {
    store(
        bucket,
        json!({ "allow_direct": false, "allow_msg_ttl": true, "subject_delete_marker_ttl": MARKER_TTL }),
        json!({}),
        json!({ "allow_msg_ttl": true }),
    )
}

/// Records and auth: what every authority boot ensures (contract 07 §12.4).
pub(crate) fn authority_stores(space: &SpaceToken) -> [StoreSpec; 2] {
    let names = Names::new(space);
    let flags = json!({ "allow_rollup_hdrs": false, "deny_delete": true, "deny_purge": true });
    [
        store(names.records_bucket(), json!({ "allow_direct": true }), flags, json!({})),
        leader_read_store(names.auth_bucket()),
    ]
}

/// Issued, accepted, admission and sessions: what provisioning ensures besides (contract 01 §7).
pub(crate) fn evidence_stores(space: &SpaceToken) -> [StoreSpec; 4] {
    let names = Names::new(space);
    let append_only = json!({
        "allow_rollup_hdrs": false, "deny_delete": true, "deny_purge": true, "max_msgs_per_subject": -1,
    });
    let create_only = json!({
        "allow_rollup_hdrs": false, "deny_delete": true, "deny_purge": true, "max_msgs_per_subject": 1,
        "discard": "new", "discard_new_per_subject": true,
    });
    // One message per subject with discard new; the per-subject discard is stated for the accepted store alone.
    let one_per_subject = json!({
        "allow_rollup_hdrs": false, "deny_delete": true, "deny_purge": true, "max_msgs_per_subject": 1,
        "discard": "new",
    });
    [
        store(names.issued_bucket(), json!({ "allow_direct": false }), append_only, json!({})),
        store(names.accepted_bucket(), json!({ "allow_direct": true }), create_only, json!({})),
        store(names.admission_bucket(), json!({ "allow_direct": false }), one_per_subject, json!({})),
        leader_read_store(names.sessions_bucket()),
    ]
}

/// What differs between a wanted and a found configuration, if anything: a field of either that the other does not
/// share. A field that the broker leaves out, or that this table does not know, must be inert. Metadata of the broker
/// itself is none of ours.
pub(crate) fn first_drift(wanted: &Config, found: &Config, except: &[&str]) -> Option<String> {
    let fields = wanted.keys().chain(found.keys());
    fields
        .filter(|field| !except.contains(&field.as_str()))
        .find(|field| !agrees(field, wanted, found))
        .cloned()
}

fn agrees(field: &str, wanted: &Config, found: &Config) -> bool {
    match (wanted.get(field), found.get(field)) {
        (Some(wanted), Some(found)) => wanted == found || (is_inert(wanted) && is_inert(found)),
        (None, Some(Value::Object(metadata))) if field == "metadata" => {
            metadata.iter().all(|(key, value)| key.starts_with("_nats.") && value.is_string())
        }
        (Some(one), None) | (None, Some(one)) => is_inert(one),
        (None, None) => true,
    }
}

fn is_inert(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotal_wire::Space;

    fn names() -> Names {
        Names::new(&Space::parse("main").unwrap().token())
    }

    #[test]
    fn setup_order_is_the_contracts() {
        let of = |specs: Vec<StreamSpec>| -> Vec<String> {
            specs.iter().map(|spec| spec.config["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            of(message_streams(&names())),
            ["CHAT_main", "DM_main", "TASK_main", "INBOX_main", "DLV_main"]
        );
        assert_eq!(
            of(messaging_buckets(&names())),
            ["presence", "channels", "members", "acl", "membership", "delivery", "manager"]
                .map(|bucket| format!("KV_cotal_{bucket}_main"))
        );
        assert_eq!(of(endpoint_streams(&names())), names().endpoint_streams());
        let stores = authority_stores(names().space()).map(|store| store.bucket);
        assert_eq!(stores, ["cotal_records_main", "cotal_auth_main"]);
    }

    #[test]
    fn every_base_field_is_explicit_in_every_configuration() {
        let fields = base("x", &[], json!({}));
        let all = message_streams(&names())
            .into_iter()
            .chain(messaging_buckets(&names()))
            .chain(endpoint_streams(&names()))
            .map(|spec| spec.config)
            .chain(authority_stores(names().space()).into_iter().map(|store| store.created));
        for config in all {
            assert!(fields.keys().all(|field| config.contains_key(field)), "{config:?}");
        }
    }

    #[test]
    fn a_field_that_is_inert_agrees_with_absence_and_anything_else_is_drift() {
        let wanted = object(json!({ "a": 1, "b": false, "c": {} }));
        let drift = |found: Value| first_drift(&wanted, &object(found), &["skipped"]);
        assert_eq!(drift(json!({ "a": 1 })), None);
        assert_eq!(drift(json!({ "a": 1, "b": null, "d": 0, "e": "", "f": [] })), None);
        assert_eq!(drift(json!({ "a": 1, "metadata": { "_nats.ver": "2" }, "skipped": 7 })), None);
        assert_eq!(drift(json!({ "a": 2 })).as_deref(), Some("a"));
        assert_eq!(drift(json!({})).as_deref(), Some("a"));
        assert_eq!(drift(json!({ "a": 1, "b": true })).as_deref(), Some("b"));
        assert_eq!(drift(json!({ "a": 1, "new_thing": true })).as_deref(), Some("new_thing"));
        assert_eq!(drift(json!({ "a": 1, "metadata": { "owner": "x" } })).as_deref(), Some("metadata"));
    }
}
