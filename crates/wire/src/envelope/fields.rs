//! Reading members of an envelope. Errors name the member and its rule, never the value.

use std::str::FromStr;

use serde_json::{Map, Value};

use super::ENVELOPE_VERSION;
use crate::{
    error::{EpCode, EpError},
    rows::safe_uint,
};

/// One object of an envelope, and where it stands.
pub(super) struct Fields<'a> {
    at: &'static str,
    members: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(at: &'static str, value: &'a Value) -> Result<Self, EpError> {
        match value {
            Value::Object(members) => Ok(Self { at, members }),
            _ => Err(EpError::bad_request(format!("{at} must be a JSON object"))),
        }
    }

    pub(super) fn bad(&self, member: &str, rule: &str) -> EpError {
        EpError::bad_request(format!("{}.{member} must be {rule}", self.at))
    }

    /// The version, which is checked before anything else of an envelope.
    pub(super) fn version(&self) -> Result<(), EpError> {
        if self.members.get("v").and_then(safe_uint) == Some(ENVELOPE_VERSION) {
            Ok(())
        } else {
            Err(EpError::new(EpCode::UnsupportedVersion, format!("{}.v must be 1", self.at)))
        }
    }

    pub(super) fn get(&self, member: &str) -> Option<&'a Value> {
        self.members.get(member)
    }

    pub(super) fn object(&self, at: &'static str, member: &str) -> Result<Fields<'a>, EpError> {
        Self::of(at, self.get(member).unwrap_or(&Value::Null))
    }

    pub(super) fn text(&self, member: &str) -> Result<&'a str, EpError> {
        self.get(member)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| self.bad(member, "a non-empty string"))
    }

    pub(super) fn optional_text(&self, member: &str) -> Result<Option<&'a str>, EpError> {
        self.get(member).map(|_| self.text(member)).transpose()
    }

    pub(super) fn token<T: FromStr>(&self, member: &str) -> Result<T, EpError> {
        self.text(member)?.parse().map_err(|_| self.bad(member, "a valid token"))
    }

    pub(super) fn optional_token<T: FromStr>(&self, member: &str) -> Result<Option<T>, EpError> {
        self.get(member).map(|_| self.token(member)).transpose()
    }

    pub(super) fn flag(&self, member: &str) -> Result<bool, EpError> {
        self.get(member).and_then(Value::as_bool).ok_or_else(|| self.bad(member, "true or false"))
    }

    pub(super) fn uint(&self, member: &str) -> Result<u64, EpError> {
        self.get(member).and_then(safe_uint).ok_or_else(|| self.bad(member, "an integer from 0 to 2^53 - 1"))
    }

    pub(super) fn optional_uint(&self, member: &str) -> Result<Option<u64>, EpError> {
        self.get(member).map(|_| self.uint(member)).transpose()
    }
}
