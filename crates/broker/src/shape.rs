//! The shape proof of an authority store (contract 07 §1).
//!
//! Whoever binds an authority store proves first that nothing can make it forget: no mirror, no age, no cap, one
//! subject, on disk, and for the auth bucket no Direct Get.

use cotal_wire::{EpError, Names, SpaceToken};
use serde_json::{Map, Value};

use crate::{
    api::{self, ApiFailure, STREAM_NOT_FOUND},
    connection::Connection,
    streams,
};

/// Lets a message name its own end.
const MESSAGE_TTL_FLAG: &str = "allow_msg_ttl";

/// What a check found wrong: the field, and what it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drift {
    pub(crate) field: &'static str,
    pub(crate) rule: &'static str,
}

/// Proves a bucket's stream shape, in the contract's order; `allow_direct_false` for the auth bucket.
///
/// A store that is absent, refused or of another shape is `failed-precondition`, naming the field; no answer is
/// `unavailable`.
pub async fn prove_authority_store(
    connection: &Connection,
    bucket: &str,
    allow_direct_false: bool,
) -> Result<(), EpError> {
    let stream = format!("KV_{bucket}");
    let config = configuration(connection, &stream).await?;
    check(&config, bucket, allow_direct_false).map_err(|drift| drift.refuse(&stream))
}

/// An evidence store of issued authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvidenceStore {
    /// Evidence, attempts and their index: append-only.
    Issued,
    /// Accepted rows: create-only.
    Accepted,
    /// Run admissions, revocations and submissions: create-only (contract 03 §M).
    Admission,
}

/// Proves the shape of an evidence store (contract 03 §H.3): as [`prove_authority_store`], then every field that it was
/// hardened with, and that no message of it can expire by itself.
pub async fn prove_evidence_store(
    connection: &Connection,
    space: &SpaceToken,
    which: EvidenceStore,
) -> Result<(), EpError> {
    let [issued, accepted, admission, ..] = streams::evidence_stores(space);
    let spec = match which {
        EvidenceStore::Issued => issued,
        EvidenceStore::Accepted => accepted,
        EvidenceStore::Admission => admission,
    };
    let stream = Names::kv_stream(&spec.bucket);
    let config = configuration(connection, &stream).await?;
    check(&config, &spec.bucket, false).map_err(|drift| drift.refuse(&stream))?;
    if let Some(field) = hardening_drift(&config, &spec.verified) {
        return Err(drifted(&stream, field, "is not what the store was hardened with"));
    }
    Ok(())
}

/// The first field that does not read back as it was hardened. A flag that is left out is false.
pub(crate) fn hardening_drift<'a>(
    config: &Map<String, Value>,
    hardened: &'a Map<String, Value>,
) -> Option<&'a str> {
    let found = |field: &str| config.get(field).unwrap_or(&Value::Bool(false));
    if !hardened.contains_key(MESSAGE_TTL_FLAG) && found(MESSAGE_TTL_FLAG) != &Value::Bool(false) {
        return Some(MESSAGE_TTL_FLAG);
    }
    hardened.iter().find(|(field, value)| found(field) != *value).map(|(field, _)| field.as_str())
}

/// The configuration that STREAM.INFO answers.
async fn configuration(connection: &Connection, stream: &str) -> Result<Map<String, Value>, EpError> {
    let answer = api::ask(connection, &format!("STREAM.INFO.{stream}"), &Map::new()).await;
    match answer.map(|mut info| info.remove("config")) {
        Ok(Some(Value::Object(config))) => Ok(config),
        Ok(_) => Err(EpError::failed_precondition(format!("{stream}: STREAM.INFO has no configuration"))),
        Err(ApiFailure::Refused { err_code: STREAM_NOT_FOUND, .. }) => Err(EpError::failed_precondition(
            format!("{stream} is not provisioned; run: cotal up --user-auth"),
        )),
        Err(failure @ ApiFailure::Refused { .. }) => {
            Err(EpError::failed_precondition(format!("{stream} cannot be opened: {failure}")))
        }
        Err(failure) => Err(EpError::unavailable(format!("{stream} cannot be proved: {failure}"))),
    }
}

/// The checks, in order.
pub(crate) fn check(
    config: &Map<String, Value>,
    bucket: &str,
    allow_direct_false: bool,
) -> Result<(), Drift> {
    let drift = |field, rule| Err(Drift { field, rule });
    let at_least =
        |field: &str, least: i64| config.get(field).and_then(Value::as_i64).is_some_and(|n| n >= least);

    if config.get("mirror").is_some_and(|mirror| !mirror.is_null()) {
        return drift("mirror", "must be absent: the store is the primary");
    }
    if config.get("sources").and_then(Value::as_array).is_some_and(|sources| !sources.is_empty()) {
        return drift("sources", "must be empty: the store is the primary");
    }
    if config.get("retention").and_then(Value::as_str).is_some_and(|retention| retention != "limits") {
        return drift("retention", "must be limits");
    }
    if at_least("max_age", 1) {
        return drift("max_age", "must be 0: no row expires by age");
    }
    if at_least("max_msgs", 0) {
        return drift("max_msgs", "must be -1");
    }
    if at_least("max_bytes", 0) {
        return drift("max_bytes", "must be -1");
    }
    let subject = format!("$KV.{bucket}.>");
    if config
        .get("subjects")
        .and_then(Value::as_array)
        .is_none_or(|all| all.as_slice() != [Value::from(subject)])
    {
        return drift("subjects", "must be exactly the bucket's own");
    }
    if config.get("storage").and_then(Value::as_str) != Some("file") {
        return drift("storage", "must be file");
    }
    if allow_direct_false && config.get("allow_direct") != Some(&Value::Bool(false)) {
        return drift("allow_direct", "must be false: every read goes to the leader");
    }
    Ok(())
}

impl Drift {
    /// The refusal.
    pub(crate) fn refuse(self, stream: &str) -> EpError {
        drifted(stream, self.field, self.rule)
    }
}

/// The refusal of a store whose `field` is not what it must be.
pub(crate) fn drifted(stream: &str, field: &str, rule: &str) -> EpError {
    EpError::failed_precondition(format!(
        "{stream}: {field} {rule}; a drifted stream is never adopted: restore its configuration, or remove it and \
         provision the space again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good() -> Map<String, Value> {
        let config = json!({
            "retention": "limits", "max_age": 0, "max_msgs": -1, "max_bytes": -1, "subjects": ["$KV.b.>"],
            "storage": "file", "allow_direct": false,
        });
        config.as_object().unwrap().clone()
    }

    /// One drift for each check, in the contract's order.
    fn drifts() -> Vec<(&'static str, Value)> {
        vec![
            ("mirror", json!({ "name": "KV_other" })),
            ("sources", json!([{ "name": "KV_other" }])),
            ("retention", json!("workqueue")),
            ("max_age", json!(1)),
            ("max_msgs", json!(0)),
            ("max_bytes", json!(1_000_000)),
            ("subjects", json!(["$KV.b.>", "x"])),
            ("storage", json!("memory")),
            ("allow_direct", json!(true)),
        ]
    }

    #[test]
    fn a_good_shape_is_proved_and_absent_limits_are_no_limits() {
        assert_eq!(check(&good(), "b", true), Ok(()));
        let mut bare = good();
        for absent in ["retention", "max_age", "max_msgs", "max_bytes"] {
            bare.remove(absent);
        }
        bare.insert("mirror".into(), Value::Null);
        bare.insert("sources".into(), json!([]));
        assert_eq!(check(&bare, "b", true), Ok(()));
    }

    #[test]
    fn each_drift_is_refused_by_its_own_check() {
        for (field, value) in drifts() {
            let mut config = good();
            config.insert(field.into(), value);
            assert_eq!(check(&config, "b", true).map_err(|drift| drift.field), Err(field));
        }
        for absent in ["subjects", "storage", "allow_direct"] {
            let mut config = good();
            config.remove(absent);
            assert_eq!(check(&config, "b", true).map_err(|drift| drift.field), Err(absent));
        }
    }

    #[test]
    fn of_several_drifts_the_earlier_check_refuses() {
        let drifts = drifts();
        for first in 0..drifts.len() {
            let mut config = good();
            for (field, value) in &drifts[first..] {
                config.insert((*field).into(), value.clone());
            }
            assert_eq!(check(&config, "b", true).map_err(|drift| drift.field), Err(drifts[first].0));
        }
    }

    #[test]
    fn direct_get_is_the_auth_buckets_check_only() {
        let mut config = good();
        config.insert("allow_direct".into(), json!(true));
        assert_eq!(check(&config, "b", false), Ok(()));
        assert!(check(&config, "other", false).is_err());
    }
}
