//! The read-ACL row of a lifecycle in the ACL bucket (contract 01 §4.3).

use serde::Serialize;
use serde_json::Value;

use super::closed::{compact, safe_uint};
use crate::{channel::ChannelPattern, time::UnixMillis};

/// What a lifecycle may read. An empty list reads nothing; an absent row says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadAcl {
    allow_subscribe: Vec<String>,
    revision: u64,
    updated_at: UnixMillis,
}

impl ReadAcl {
    /// Reads a row; `None` for one that cannot be decoded, which says as little as an absent one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let row: Value = serde_json::from_slice(bytes).ok()?;
        let allow = row.get("allowSubscribe")?.as_array()?;
        Some(Self {
            allow_subscribe: allow
                .iter()
                .map(|entry| entry.as_str().map(str::to_owned))
                .collect::<Option<_>>()?,
            revision: safe_uint(row.get("revision")?)?,
            updated_at: UnixMillis(safe_uint(row.get("updatedAt")?)?),
        })
    }

    /// Whether it lets nothing be read.
    pub fn reads_nothing(&self) -> bool {
        self.allow_subscribe.is_empty()
    }

    /// The row that follows `before` and lets these be read: what a mint writes beside itself, ceiling or not. One that
    /// cannot be decoded counts for none.
    pub fn reissued(before: Option<&Self>, allow: &[ChannelPattern], now: UnixMillis) -> Self {
        let allow_subscribe = allow.iter().map(ToString::to_string).collect();
        Self { allow_subscribe, revision: Self::after(before), updated_at: now }
    }

    /// Whether it lets exactly these be read, in this order.
    pub fn reads_exactly(&self, allow: &[ChannelPattern]) -> bool {
        self.allow_subscribe.iter().map(String::as_str).eq(allow.iter().map(ChannelPattern::as_str))
    }

    fn after(before: Option<&Self>) -> u64 {
        before.map_or(0, |row| row.revision).saturating_add(1)
    }

    /// The row that follows `before` and lets nothing be read. One that cannot be decoded counts for none.
    pub fn fenced(before: Option<&Self>, now: UnixMillis) -> Self {
        Self::reissued(before, &[], now)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fenced_row_reads_nothing_and_counts_on() {
        let row = ReadAcl::parse(br#"{"allowSubscribe":["a.>"],"revision":4,"updatedAt":9}"#).unwrap();
        assert!(!row.reads_nothing());
        let fenced = ReadAcl::fenced(Some(&row), UnixMillis(10));
        assert_eq!(fenced.to_bytes(), br#"{"allowSubscribe":[],"revision":5,"updatedAt":10}"#);
        assert!(ReadAcl::parse(&fenced.to_bytes()).unwrap().reads_nothing());
        assert_eq!(ReadAcl::fenced(None, UnixMillis(10)).revision, 1);
    }

    #[test]
    fn a_reissued_row_replaces_the_list_and_counts_on() {
        let allow = ChannelPattern::parse_all(&["team.>", "general"]).unwrap();
        let first = ReadAcl::reissued(None, &allow, UnixMillis(7));
        assert_eq!(
            first.to_bytes(),
            br#"{"allowSubscribe":["team.>","general"],"revision":1,"updatedAt":7}"#
        );
        assert!(first.reads_exactly(&allow));
        assert!(!first.reads_exactly(&allow[..1]));
        let again = ReadAcl::reissued(Some(&first), &allow[..1], UnixMillis(8));
        assert_eq!(again.to_bytes(), br#"{"allowSubscribe":["team.>"],"revision":2,"updatedAt":8}"#);
    }

    #[test]
    fn a_row_that_cannot_be_decoded_is_none() {
        for bad in [
            &b""[..],
            b"[]",
            b"{}",
            br#"{"allowSubscribe":"a","revision":1,"updatedAt":1}"#,
            br#"{"allowSubscribe":[1],"revision":1,"updatedAt":1}"#,
            br#"{"allowSubscribe":[],"revision":-1,"updatedAt":1}"#,
            br#"{"allowSubscribe":[],"revision":1}"#,
        ] {
            assert_eq!(ReadAcl::parse(bad), None);
        }
    }
}
