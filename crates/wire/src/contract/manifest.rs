//! A closure's manifest: `{v:1, root, members}` (contract 02 §8).

use serde::Serialize;
use serde_json::Value;

use super::{Artifact, invalid};
use crate::{endpoint_token::DigestRef, error::EpError};

/// Most members of a closure, the root not counted.
pub const MAX_MEMBERS: usize = 64;

/// Which documents belong together. Members ascend strictly; the root is among them only when something refers back
/// to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Manifest {
    members: Vec<DigestRef>,
    root: DigestRef,
    v: u8,
}

impl Manifest {
    /// The manifest of a document that refers to nothing.
    pub fn of_root(root: DigestRef) -> Self {
        Self { members: Vec::new(), root, v: 1 }
    }

    /// Reads a manifest; `contract-invalid` for anything outside its closed schema.
    pub fn parse(document: &Value) -> Result<Self, EpError> {
        let bad = |rule: &str| invalid(format!("closure manifest: {rule}"));
        let members = document.as_object().ok_or_else(|| bad("it is not an object"))?;
        if members.keys().any(|name| !["v", "root", "members"].contains(&name.as_str())) {
            return Err(bad("it has a member that its schema does not know"));
        }
        if members.get("v").and_then(Value::as_f64) != Some(1.0) {
            return Err(bad("its version is not 1"));
        }
        let digest = |value: &Value| value.as_str().and_then(|text| DigestRef::parse(text).ok());
        let root = members.get("root").and_then(digest).ok_or_else(|| bad("its root is no digest"))?;
        let listed = members.get("members").and_then(Value::as_array);
        let listed: Option<Vec<_>> = listed.and_then(|list| list.iter().map(digest).collect());
        let listed = listed.ok_or_else(|| bad("its members are not a list of digests"))?;
        if listed.len() > MAX_MEMBERS {
            return Err(bad("it has more than 64 members"));
        }
        if !listed.is_sorted_by(|a, b| a < b) {
            return Err(bad("its members do not ascend strictly"));
        }
        Ok(Self { members: listed, root, v: 1 })
    }

    /// Its artifact, whose digest is the closure's.
    pub fn artifact(&self) -> Result<Artifact, EpError> {
        let value = serde_json::to_value(self).map_err(|_| invalid("closure manifest: not JSON"))?;
        Artifact::of(&value)
    }

    /// The document that the closure is of.
    pub fn root(&self) -> &DigestRef {
        &self.root
    }

    /// What the root reaches.
    pub fn members(&self) -> &[DigestRef] {
        &self.members
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::EpCode;

    fn digest(n: usize) -> String {
        format!("sha256:{n:064x}")
    }

    #[test]
    fn a_manifest_is_closed_and_ascends() {
        let good = json!({"v": 1, "root": digest(9), "members": [digest(1), digest(2)]});
        let manifest = Manifest::parse(&good).unwrap();
        assert_eq!((manifest.root().as_str(), manifest.members().len()), (digest(9).as_str(), 2));
        assert_eq!(manifest.artifact().unwrap().document().unwrap(), good);
        let many = |n: usize| (0..n).map(digest).collect::<Vec<_>>();
        assert!(Manifest::parse(&json!({"v": 1, "root": digest(9), "members": many(64)})).is_ok());
        for bad in [
            json!([]),
            json!({"v": 2, "root": digest(9), "members": []}),
            json!({"v": 1, "members": []}),
            json!({"v": 1, "root": digest(9)}),
            json!({"v": 1, "root": "0".repeat(64), "members": []}),
            json!({"v": 1, "root": digest(9), "members": [digest(2), digest(1)]}),
            json!({"v": 1, "root": digest(9), "members": [digest(1), digest(1)]}),
            json!({"v": 1, "root": digest(9), "members": [1]}),
            json!({"v": 1, "root": digest(9), "members": many(65)}),
            json!({"v": 1, "root": digest(9), "members": [], "x": 1}),
        ] {
            assert_eq!(Manifest::parse(&bad).unwrap_err().code, EpCode::ContractInvalid, "{bad}");
        }
    }
}
