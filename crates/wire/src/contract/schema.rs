//! The profile of contract schemas: JSON Schema 2020-12 within bounds, referring only inside itself or to other
//! artifacts by digest (contract 02 §8.2).

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Artifact, MAX_MEMBERS, invalid};
use crate::{endpoint_token::DigestRef, error::EpError};

/// Deepest nesting of a schema document.
pub const MAX_SCHEMA_DEPTH: usize = 32;
/// What a reference to another artifact starts with.
const REFERENCE_PREFIX: &str = "cotal:";

/// Checks a schema against the profile and returns the artifacts that it refers to; `contract-invalid` otherwise.
pub fn check_schema(schema: &Value) -> Result<BTreeSet<DigestRef>, EpError> {
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        return Err(invalid("schema: it is neither an object nor true nor false"));
    }
    Artifact::of(schema)?;
    let mut references = BTreeSet::new();
    walk(schema, 1, &mut references)?;
    if references.len() > MAX_MEMBERS {
        return Err(invalid("schema: it refers to more than 64 artifacts"));
    }
    Ok(references)
}

fn walk(value: &Value, depth: usize, references: &mut BTreeSet<DigestRef>) -> Result<(), EpError> {
    let nested: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Object(members) => {
            for name in ["$ref", "$dynamicRef"] {
                if let Some(reference) = members.get(name) {
                    references.extend(referred(reference)?);
                }
            }
            Box::new(members.values())
        }
        Value::Array(items) => Box::new(items.iter()),
        _ => return Ok(()),
    };
    if depth > MAX_SCHEMA_DEPTH {
        return Err(invalid("schema: it is nested deeper than 32 levels"));
    }
    for value in nested {
        walk(value, depth + 1, references)?;
    }
    Ok(())
}

/// The artifact that a reference leads to, or `None` for one within the document.
fn referred(reference: &Value) -> Result<Option<DigestRef>, EpError> {
    let bad =
        || invalid("schema: a $ref must start with # or be cotal:sha256:<hex>, with or without a fragment");
    let text = reference.as_str().ok_or_else(bad)?;
    if text.starts_with('#') {
        return Ok(None);
    }
    let rest = text.strip_prefix(REFERENCE_PREFIX).ok_or_else(bad)?;
    let digest = rest.split_once('#').map_or(rest, |(digest, _)| digest);
    DigestRef::parse(digest).map(Some).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{canonical::VOID_SCHEMA_DIGEST, error::EpCode};

    #[test]
    fn references_stay_inside_or_name_an_artifact_by_digest() {
        let schema = json!({
            "$ref": "#/definitions/a",
            "items": [{"$ref": format!("cotal:{VOID_SCHEMA_DIGEST}")}],
            "not": {"$dynamicRef": format!("cotal:{VOID_SCHEMA_DIGEST}#/x")},
        });
        assert_eq!(check_schema(&schema).unwrap().len(), 1);
        assert!(
            check_schema(&json!({"type": "null"})).unwrap().is_empty() && check_schema(&json!(true)).is_ok()
        );
        for reference in
            ["", "other.json", "https://example.com/s", "cotal:abc", &format!("COTAL:{VOID_SCHEMA_DIGEST}")]
        {
            let refusal = check_schema(&json!({"allOf": [{"$ref": reference}]})).unwrap_err();
            assert_eq!(refusal.code, EpCode::ContractInvalid, "{reference}");
        }
        assert!(check_schema(&json!({"$ref": 1})).is_err() && check_schema(&json!(1)).is_err());
    }

    #[test]
    fn a_schema_nests_at_most_thirty_two_levels() {
        let nest = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({ "not": inner }));
        assert!(check_schema(&nest(MAX_SCHEMA_DEPTH)).is_ok());
        assert!(check_schema(&nest(MAX_SCHEMA_DEPTH + 1)).is_err());
    }
}
