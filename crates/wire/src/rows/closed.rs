//! Reading a closed JSON object and printing a compact one.

use std::str::FromStr;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{error::EpError, time::MAX_SAFE_INTEGER};

/// A JSON object whose members are all known. Errors name the row and the member, never a stored value.
pub(super) struct Closed {
    what: &'static str,
    members: Map<String, Value>,
}

impl Closed {
    /// Bytes, then object, then unknown members: the first three steps of every row's parse order.
    pub(super) fn parse(what: &'static str, bytes: &[u8], members: &[&str]) -> Result<Self, EpError> {
        let value = serde_json::from_slice(bytes)
            .map_err(|_| EpError::internal(format!("a stored {what} is not valid JSON")))?;
        Self::of(what, value, members)
    }

    pub(super) fn of(what: &'static str, value: Value, members: &[&str]) -> Result<Self, EpError> {
        let Value::Object(object) = value else {
            return Err(EpError::internal(format!("a stored {what} is not a JSON object")));
        };
        if object.keys().any(|key| !members.contains(&key.as_str())) {
            return Err(EpError::internal(format!(
                "a stored {what} has a member that its schema does not know"
            )));
        }
        Ok(Self { what, members: object })
    }

    pub(super) fn garbled(&self, rule: &str) -> EpError {
        EpError::internal(format!("a stored {} is garbled: {rule}", self.what))
    }

    fn bad(&self, member: &str, rule: &str) -> EpError {
        EpError::internal(format!("a stored {} is garbled: {member} must be {rule}", self.what))
    }

    pub(super) fn has(&self, member: &str) -> bool {
        self.members.contains_key(member)
    }

    pub(super) fn text(&self, member: &str) -> Result<&str, EpError> {
        self.members.get(member).and_then(Value::as_str).ok_or_else(|| self.bad(member, "a string"))
    }

    pub(super) fn non_empty(&self, member: &str) -> Result<&str, EpError> {
        self.text(member).ok().filter(|s| !s.is_empty()).ok_or_else(|| self.bad(member, "a non-empty string"))
    }

    pub(super) fn optional<'a, T>(
        &'a self,
        member: &str,
        read: impl FnOnce(&'a Self, &str) -> Result<T, EpError>,
    ) -> Result<Option<T>, EpError> {
        if self.has(member) { read(self, member).map(Some) } else { Ok(None) }
    }

    pub(super) fn uint(&self, member: &str) -> Result<u64, EpError> {
        self.members
            .get(member)
            .and_then(safe_uint)
            .ok_or_else(|| self.bad(member, "an integer from 0 to 2^53 - 1"))
    }

    pub(super) fn positive(&self, member: &str) -> Result<u64, EpError> {
        self.uint(member)
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| self.bad(member, "an integer from 1 to 2^53 - 1"))
    }

    pub(super) fn token<T: FromStr>(&self, member: &str) -> Result<T, EpError> {
        self.text(member)?.parse().map_err(|_| self.bad(member, "a valid token"))
    }

    pub(super) fn array(&self, member: &str) -> Result<&[Value], EpError> {
        self.members
            .get(member)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .ok_or_else(|| self.bad(member, "an array"))
    }

    pub(super) fn value(&self, member: &str) -> Option<&Value> {
        self.members.get(member)
    }
}

/// A number as ECMAScript would call it a safe non-negative integer, however it was spelled.
pub(crate) fn safe_uint(value: &Value) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be integral and in range"
    )]
    #[expect(clippy::cast_precision_loss, reason = "2^53 - 1 is exact in a double")]
    let from_double =
        |n: f64| (n.fract() == 0.0 && (0.0..=MAX_SAFE_INTEGER as f64).contains(&n)).then_some(n as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(from_double)).filter(|n| *n <= MAX_SAFE_INTEGER)
}

/// Compact JSON, members in the order of the struct.
#[expect(clippy::expect_used, reason = "plain data with string keys always serialises to a Vec")]
pub(crate) fn compact<T: Serialize>(row: &T) -> Vec<u8> {
    serde_json::to_vec(row).expect("plain data serialises")
}
