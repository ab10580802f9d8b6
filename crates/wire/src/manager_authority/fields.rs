//! Reading a closed request member by member, each refusal `bad-request` and naming what was wrong.

use std::{num::NonZeroU32, str::FromStr};

use crate::{
    error::EpError,
    es_value::{EsObject, EsValue, within},
    token::TokenError,
};

/// Longest part of an unknown member's name that a refusal repeats, in characters.
const ECHO: usize = 64;

/// An object of a request. `path` says where it stands, for refusals.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    path: &'static str,
    object: &'a EsObject,
}

impl<'a> Fields<'a> {
    pub(super) fn of(path: &'static str, value: Option<&'a EsValue>) -> Result<Self, EpError> {
        match value.and_then(EsValue::as_object) {
            Some(object) => Ok(Self { path, object }),
            None => Err(EpError::bad_request(format!("{path} must be a JSON object"))),
        }
    }

    pub(super) fn bad(&self, member: &str, rule: &str) -> EpError {
        EpError::bad_request(format!("{}: {member} must be {rule}", self.path))
    }

    fn token_error(&self, member: &str, error: TokenError) -> EpError {
        self.bad(member, &format!("a {}: {}", error.what, error.rule))
    }

    /// No member beside these.
    pub(super) fn closed(self, known: &[&str]) -> Result<Self, EpError> {
        match self.object.first_unknown(|key| known.contains(&key)) {
            None => Ok(self),
            Some(key) => {
                let shown: String = key.chars().take(ECHO).collect();
                let cut = if key.chars().nth(ECHO).is_some() { "..." } else { "" };
                Err(EpError::bad_request(format!("{}: unknown member {shown:?}{cut}", self.path)))
            }
        }
    }

    /// These members, each present, and no other.
    pub(super) fn exactly(self, members: &[&str]) -> Result<Self, EpError> {
        let this = self.closed(members)?;
        match members.iter().find(|member| !this.has(member)) {
            None => Ok(this),
            Some(missing) => Err(this.bad(missing, "present")),
        }
    }

    pub(super) fn has(&self, member: &str) -> bool {
        self.object.get(member).is_some()
    }

    pub(super) fn value(&self, member: &str) -> Option<&'a EsValue> {
        self.object.get(member)
    }

    /// The member is missing; a present `null` is refused too.
    pub(super) fn absent(&self, member: &str) -> Result<(), EpError> {
        if self.has(member) { Err(self.bad(member, "absent here")) } else { Ok(()) }
    }

    pub(super) fn inner(&self, path: &'static str, member: &str) -> Result<Fields<'a>, EpError> {
        Fields::of(path, self.value(member))
    }

    pub(super) fn text(&self, member: &str) -> Result<&'a str, EpError> {
        self.value(member)
            .and_then(EsValue::as_text)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| self.bad(member, "a non-empty string"))
    }

    /// A string, empty or not.
    pub(super) fn string(&self, member: &str) -> Result<&'a str, EpError> {
        self.value(member).and_then(EsValue::as_text).ok_or_else(|| self.bad(member, "a string"))
    }

    /// A string of 1 to `most` UTF-16 units.
    pub(super) fn bounded(&self, member: &str, most: NonZeroU32) -> Result<&'a str, EpError> {
        self.text(member)
            .ok()
            .filter(|text| within(text, most))
            .ok_or_else(|| self.bad(member, &format!("a string of 1 to {most} characters")))
    }

    pub(super) fn token<T: FromStr<Err = TokenError>>(&self, member: &str) -> Result<T, EpError> {
        self.text(member)?.parse().map_err(|error| self.token_error(member, error))
    }

    pub(super) fn literal(&self, member: &str, wanted: &str) -> Result<(), EpError> {
        if self.value(member).and_then(EsValue::as_text) == Some(wanted) {
            Ok(())
        } else {
            Err(self.bad(member, &format!("\"{wanted}\"")))
        }
    }

    /// A safe integer of at least `least`.
    pub(super) fn integer(&self, member: &str, least: u64) -> Result<u64, EpError> {
        self.value(member)
            .and_then(EsValue::as_safe_integer)
            .filter(|number| *number >= least)
            .ok_or_else(|| self.bad(member, &format!("an integer from {least} to 2^53 - 1")))
    }

    pub(super) fn flag(&self, member: &str) -> Result<bool, EpError> {
        match self.value(member) {
            Some(EsValue::Bool(flag)) => Ok(*flag),
            _ => Err(self.bad(member, "true or false")),
        }
    }

    pub(super) fn array(&self, member: &str, rule: &str) -> Result<&'a [EsValue], EpError> {
        self.value(member).and_then(EsValue::as_array).ok_or_else(|| self.bad(member, rule))
    }
}
