//! The cursor of an interrupted repair, `eprepair.<e>.<instance>` in the auth bucket (contract 02 §3.7).
//!
//! It says which holders an eviction has already proved gone, and is worth something only for exactly the operation,
//! the freeze and the set of holders that it names.

use std::collections::BTreeSet;

use serde::Serialize;

use super::closed::{Closed, compact};
use crate::{
    error::EpError,
    time::Revision,
    token::{OpId, Principal},
};

const WHAT: &str = "repair cursor";

/// How far the eviction of a family has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairCursor {
    op: OpId,
    freeze_token: Revision,
    holders: BTreeSet<Principal>,
    verified: BTreeSet<Principal>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    v: u8,
    op_id: &'a OpId,
    freeze_token: Revision,
    holders: &'a BTreeSet<Principal>,
    verified: &'a BTreeSet<Principal>,
}

impl RepairCursor {
    /// A cursor before the first eviction.
    pub fn begin(op: &OpId, freeze_token: Revision, holders: BTreeSet<Principal>) -> Self {
        Self { op: op.clone(), freeze_token, holders, verified: BTreeSet::new() }
    }

    /// Reads a stored cursor.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse(WHAT, bytes, &["v", "opId", "freezeToken", "holders", "verified"])?;
        if row.uint("v")? != 1 {
            return Err(row.garbled("its version is not 1"));
        }
        let op = row.token("opId")?;
        let freeze_token = Revision(row.positive("freezeToken")?);
        let holders = principals(&row, "holders")?;
        let verified = principals(&row, "verified")?;
        if !verified.is_subset(&holders) {
            return Err(row.garbled("it verified a principal that is no holder"));
        }
        Ok(Self { op, freeze_token, holders, verified })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire {
            v: 1,
            op_id: &self.op,
            freeze_token: self.freeze_token,
            holders: &self.holders,
            verified: &self.verified,
        })
    }

    /// Whether this cursor is of exactly this operation, freeze and set of holders.
    pub fn is_of(&self, op: &OpId, freeze_token: Revision, holders: &BTreeSet<Principal>) -> bool {
        self.op == *op && self.freeze_token == freeze_token && self.holders == *holders
    }

    /// Who is proved gone.
    pub fn verified(&self) -> &BTreeSet<Principal> {
        &self.verified
    }

    /// Who is not yet proved gone, in ascending order.
    pub fn remaining(&self) -> impl Iterator<Item = &Principal> {
        self.holders.difference(&self.verified)
    }

    /// The same cursor with these holders proved gone; others are not added.
    #[must_use]
    pub fn verify(mut self, gone: impl IntoIterator<Item = Principal>) -> Self {
        self.verified.extend(gone.into_iter().filter(|principal| self.holders.contains(principal)));
        self
    }
}

/// Strictly ascending principals. Owners are equally long or differ early, so that this order is the order of the
/// written principals too.
fn principals(row: &Closed, member: &str) -> Result<BTreeSet<Principal>, EpError> {
    let mut sorted = BTreeSet::new();
    for value in row.array(member)? {
        let principal = value
            .as_str()
            .and_then(|text| Principal::parse_key(text).ok())
            .ok_or_else(|| row.garbled("a holder is not a principal"))?;
        if sorted.last().is_some_and(|last| *last >= principal) {
            return Err(row.garbled("its holders are not strictly ascending"));
        }
        sorted.insert(principal);
    }
    Ok(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    fn op() -> OpId {
        OpId::parse(&"f".repeat(26)).unwrap()
    }

    fn of(actors: &[&str]) -> BTreeSet<Principal> {
        actors.iter().map(|actor| Principal::parse_key(&format!("local.{actor}")).unwrap()).collect()
    }

    #[test]
    fn a_cursor_has_these_bytes() {
        let cursor = RepairCursor::begin(&op(), Revision(12), of(&["b", "a"])).verify(of(&["a", "z"]));
        let bytes = cursor.to_bytes();
        assert_eq!(
            String::from_utf8(bytes.clone()).unwrap(),
            format!(
                "{{\"v\":1,\"opId\":\"{}\",\"freezeToken\":12,\"holders\":[\"local.a\",\"local.b\"],\
                 \"verified\":[\"local.a\"]}}",
                op()
            )
        );
        assert_eq!(RepairCursor::parse(&bytes).unwrap(), cursor);
        assert_eq!(cursor.remaining().collect::<Vec<_>>(), of(&["b"]).iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_cursor_is_of_its_whole_binding_or_of_nothing() {
        let cursor = RepairCursor::begin(&op(), Revision(12), of(&["a"]));
        let other = OpId::parse(&"g".repeat(26)).unwrap();
        assert!(cursor.is_of(&op(), Revision(12), &of(&["a"])));
        assert!(!cursor.is_of(&other, Revision(12), &of(&["a"])));
        assert!(!cursor.is_of(&op(), Revision(13), &of(&["a"])));
        assert!(!cursor.is_of(&op(), Revision(12), &of(&["a", "b"])));
        assert!(!cursor.is_of(&op(), Revision(12), &of(&[])));
    }

    #[test]
    fn a_garbled_cursor_is_internal() {
        let good =
            String::from_utf8(RepairCursor::begin(&op(), Revision(1), of(&["a", "b"])).to_bytes()).unwrap();
        for bytes in [
            String::new(),
            "[]".to_owned(),
            good.replace("\"v\":1", "\"v\":2"),
            good.replace("\"freezeToken\":1", "\"freezeToken\":0"),
            good.replace(op().as_str(), "short"),
            good.replace("[\"local.a\",\"local.b\"]", "[\"local.b\",\"local.a\"]"),
            good.replace("[\"local.a\",\"local.b\"]", "[\"local.a\",\"local.a\"]"),
            good.replace("[\"local.a\",\"local.b\"]", "[\"a\"]"),
            good.replace("[\"local.a\",\"local.b\"]", "[1]"),
            good.replace("\"verified\":[]", "\"verified\":[\"local.c\"]"),
            good.replace("\"verified\":[]", "\"verified\":null"),
            good.replace("\"v\":1", "\"v\":1,\"endpoint\":\"auth\""),
        ] {
            assert_eq!(RepairCursor::parse(bytes.as_bytes()).unwrap_err().code, EpCode::Internal, "{bytes}");
        }
    }
}
