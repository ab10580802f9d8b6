//! Channels, channel patterns, and how patterns match and cover one another (contract 01 §2.1, 04 §7.4).
//!
//! Three relations are kept apart on purpose: a pattern *matches* a concrete channel ([`subject_matches`]), a list
//! *admits* a concrete channel ([`channel_in_allow`]), and one pattern *covers* another ([`pattern_covers`]), which
//! is what delegation needs. They take `&str`, because stored lists are compared as they stand.

use std::{collections::HashSet, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::token::{TokenError, is_segment, token};

/// Longest channel or channel pattern, in characters (contract 01 §2.1).
pub const MAX_CHANNEL_LENGTH: usize = 4096;

/// One token of any value.
const ONE: &str = "*";
/// One or more trailing tokens.
const REST: &str = ">";

fn is_pattern(s: &str) -> bool {
    if s.len() > MAX_CHANNEL_LENGTH {
        return false;
    }
    let mut segments = s.split('.').peekable();
    while let Some(segment) = segments.next() {
        let ok =
            if segment == REST { segments.peek().is_none() } else { segment == ONE || is_segment(segment) };
        if !ok {
            return false;
        }
    }
    true
}

fn is_channel(s: &str) -> bool {
    s.len() <= MAX_CHANNEL_LENGTH && s.split('.').all(is_segment)
}

token!(
    /// A channel pattern that passed the policy check (contract 01 §2.1): what an ACL may hold.
    ChannelPattern,
    "channel pattern",
    is_pattern,
    "dot-separated segments of A-Z a-z 0-9 _ - or *, with > only as the last, at most 4096 characters"
);
token!(
    /// A concrete channel: a pattern without wildcards. What may be published to, and joined.
    Channel, "channel", is_channel, "dot-separated segments of A-Z a-z 0-9 _ -, at most 4096 characters"
);

impl ChannelPattern {
    /// Reads every entry of a list, refusing the first that is not a channel pattern.
    pub fn parse_all<S: AsRef<str>>(list: &[S]) -> Result<Vec<Self>, TokenError> {
        list.iter().map(|s| Self::parse(s.as_ref())).collect()
    }

    /// This pattern as a concrete channel, or `None` when it has a wildcard.
    pub fn as_channel(&self) -> Option<Channel> {
        Channel::parse(self.as_str()).ok()
    }
}

impl From<Channel> for ChannelPattern {
    fn from(channel: Channel) -> Self {
        Self(channel.0)
    }
}

/// Whether a NATS subject pattern matches a subject: `*` is one token, `>` one or more trailing tokens, so that
/// `a.>` does not match `a` (contract 01 §2). A `>` that is not last matches nothing.
pub fn subject_matches(pattern: &str, subject: &str) -> bool {
    let mut pattern = pattern.split('.');
    let mut subject = subject.split('.');
    loop {
        match (pattern.next(), subject.next()) {
            (Some(REST), Some(_)) => return pattern.next().is_none(),
            (Some(ONE), Some(_)) => {}
            (Some(p), Some(s)) if p == s => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// Whether some entry of `allow` matches the concrete channel.
pub fn channel_in_allow<S: AsRef<str>>(allow: &[S], channel: &str) -> bool {
    allow.iter().any(|entry| subject_matches(entry.as_ref(), channel))
}

/// Whether every channel that `pattern` matches is matched by `cap` (contract 01 §2.1, delegation cover).
pub fn pattern_covers(cap: &str, pattern: &str) -> bool {
    if has_inner_rest(cap) || has_inner_rest(pattern) {
        return false;
    }
    let mut cap = cap.split('.');
    let mut pattern = pattern.split('.');
    loop {
        match (cap.next(), pattern.next()) {
            (Some(REST), other) => return other.is_some(),
            (Some(_), None | Some(REST)) | (None, Some(_)) => return false,
            (Some(ONE), Some(_)) => {}
            (Some(_), Some(ONE)) => return false,
            (Some(c), Some(p)) if c == p => {}
            (Some(_), Some(_)) => return false,
            (None, None) => return true,
        }
    }
}

/// Whether ONE entry of `allow` covers the pattern. The union of several entries is not considered.
pub fn pattern_in_allow<S: AsRef<str>>(allow: &[S], pattern: &str) -> bool {
    allow.iter().any(|cap| pattern_covers(cap.as_ref(), pattern))
}

/// The filters of a multi-filter consumer without overlaps: exact duplicates go, and so does a subject that another
/// one covers. `review` and `review.>` do not overlap, and both stay (contract 01 §2.1).
pub fn collapse_overlaps<S: AsRef<str>>(subjects: &[S]) -> Vec<String> {
    let mut seen = HashSet::new();
    let unique: Vec<&str> = subjects.iter().map(AsRef::as_ref).filter(|s| seen.insert(*s)).collect();
    unique
        .iter()
        .filter(|subject| !unique.iter().any(|other| other != *subject && pattern_covers(other, subject)))
        .map(|s| (*s).to_owned())
        .collect()
}

/// Mentions as they stand on the wire: trimmed, lower case, no empty one, each once in order of first occurrence
/// (contract 01 §2.1). An empty result means that the field is omitted.
pub fn canonical_mentions<S: AsRef<str>>(mentions: &[S]) -> Vec<String> {
    let mut seen = HashSet::new();
    mentions
        .iter()
        .map(|m| m.as_ref().trim().to_lowercase())
        .filter(|m| !m.is_empty() && seen.insert(m.clone()))
        .collect()
}

fn has_inner_rest(pattern: &str) -> bool {
    pattern.rsplit('.').skip(1).any(|segment| segment == REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_check_never_rewrites_and_admits_rest_only_last() {
        for ok in ["a", "a.b", "*", ">", "a.*", "a.*.b", "a.>", "*.>", "A-b_9", &"a".repeat(4096)] {
            assert_eq!(ChannelPattern::parse(ok).unwrap().as_str(), ok);
        }
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            ">.a",
            "a.>.b",
            "a b",
            " a",
            "a*",
            "a>",
            "ä",
            "**",
            "=defaults",
            &"a".repeat(4097),
        ] {
            assert!(ChannelPattern::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_concrete_channel_has_no_wildcard() {
        assert!(Channel::parse("team.backend").is_ok());
        for bad in ["*", ">", "a.*", "a.>", "", "a..b"] {
            assert!(Channel::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(ChannelPattern::parse("a.b").unwrap().as_channel(), Some(Channel::parse("a.b").unwrap()));
        assert_eq!(ChannelPattern::parse("a.*").unwrap().as_channel(), None);
    }

    #[test]
    fn subjects_match_as_the_broker_matches_them() {
        for (pattern, subject, want) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a.>", "a", false),
            ("a.>", "a.b", true),
            ("a.>", "a.b.c", true),
            (">", "a", true),
            ("*", "a", true),
            ("*", "a.b", false),
            ("a.*.c", "a.b.c", true),
            ("a.>.c", "a.b.c", false),
            ("a.b", "a", false),
        ] {
            assert_eq!(subject_matches(pattern, subject), want, "{pattern} {subject}");
        }
    }

    #[test]
    fn covering_is_decided_pattern_against_pattern() {
        for (cap, pattern, want) in [
            (">", ">", true),
            (">", "a.*", true),
            ("a.>", "a", false),
            ("a.>", "a.>", true),
            ("a.>", "a.*.>", true),
            ("a.*", "a.b", true),
            ("a.*", "a.*", true),
            ("a.*", "a.>", false),
            ("a.b", "a.*", false),
            ("*", ">", false),
            ("a.b", "a.b", true),
            ("a.b", "a.b.c", false),
            ("a.>.b", "a.c.b", false),
            (">", "a.>.b", false),
        ] {
            assert_eq!(pattern_covers(cap, pattern), want, "{cap} {pattern}");
        }
        assert!(!pattern_in_allow(&["a.*", "a.*.>"], "a.>"), "a union of entries is not considered");
        assert!(pattern_in_allow(&["x", "a.>"], "a.*"));
    }

    #[test]
    fn overlapping_filters_collapse_and_neighbours_stay() {
        assert_eq!(collapse_overlaps(&["review", "review.>"]), ["review", "review.>"]);
        assert_eq!(collapse_overlaps(&["a.b", "a.>", "a.b", "c"]), ["a.>", "c"]);
        assert_eq!(collapse_overlaps(&["*", ">"]), [">"]);
    }

    #[test]
    fn mentions_are_canonical() {
        assert_eq!(canonical_mentions(&[" Bob ", "", "alice", "BOB", "  "]), ["bob", "alice"]);
        assert!(canonical_mentions(&[" "]).is_empty());
    }
}
