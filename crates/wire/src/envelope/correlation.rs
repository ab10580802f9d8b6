//! Trace context that rides an envelope (contract 02 §4.1).

use serde::Serialize;

use super::fields::Fields;
use crate::error::EpError;

const MAX_TRACEPARENT: usize = 256;
const MAX_TRACESTATE: usize = 512;
const MAX_BAGGAGE: usize = 8192;

/// W3C trace context, checked and carried on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Correlation {
    /// `traceparent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// `tracestate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// `baggage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baggage: Option<String>,
}

impl Correlation {
    pub(super) fn parse(fields: &Fields<'_>) -> Result<Self, EpError> {
        let traceparent = fields.optional_text("traceparent")?;
        if traceparent.is_some_and(|s| !is_traceparent(s)) {
            return Err(fields.bad("traceparent", "a W3C traceparent of at most 256 bytes"));
        }
        let opaque = |member: &str, max: usize| {
            let Some(value) = fields.get(member) else { return Ok(None) };
            match value.as_str() {
                Some(s) if s.len() <= max && !s.chars().any(|c| c.is_ascii_control()) => {
                    Ok(Some(s.to_owned()))
                }
                _ => Err(fields.bad(member, "a short string without control characters")),
            }
        };
        Ok(Self {
            traceparent: traceparent.map(str::to_owned),
            tracestate: opaque("tracestate", MAX_TRACESTATE)?,
            baggage: opaque("baggage", MAX_BAGGAGE)?,
        })
    }
}

/// `<version>-<trace>-<parent>-<flags>`, lower-case hex, and an extension for versions after `00`.
fn is_traceparent(s: &str) -> bool {
    let hex =
        |s: &str, len: usize| s.len() == len && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let zero = |s: &str| s.bytes().all(|b| b == b'0');
    if s.len() > MAX_TRACEPARENT {
        return false;
    }
    let mut parts = s.splitn(5, '-');
    let (Some(version), Some(trace), Some(parent), Some(flags)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let tail_ok = match parts.next() {
        None => true,
        Some(tail) => version != "00" && !tail.is_empty() && tail.bytes().all(|b| (0x21..=0x7e).contains(&b)),
    };
    hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && !zero(trace)
        && hex(parent, 16)
        && !zero(parent)
        && hex(flags, 2)
        && tail_ok
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_the_w3c_form() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let parent = "b7ad6b7169203331";
        for (text, ok) in [
            (format!("00-{trace}-{parent}-01"), true),
            (format!("01-{trace}-{parent}-01-extra"), true),
            (format!("00-{trace}-{parent}-01-extra"), false),
            (format!("01-{trace}-{parent}-01-"), false),
            (format!("ff-{trace}-{parent}-01"), false),
            (format!("00-{}-{parent}-01", "0".repeat(32)), false),
            (format!("00-{trace}-{}-01", "0".repeat(16)), false),
            (format!("00-{}-{parent}-01", trace.to_uppercase()), false),
            (format!("00-{trace}-{parent}"), false),
            (format!("01-{trace}-{parent}-01-{}", "x".repeat(256)), false),
        ] {
            assert_eq!(is_traceparent(&text), ok, "{text}");
        }
    }
}
