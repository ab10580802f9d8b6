//! What an issued authority may publish and subscribe to, and what its ceiling permits (contract 03 §H.2).
//!
//! Three relations, each for one question. A pattern *matches* a concrete subject; a capability *covers* a filter when
//! it admits everything that the filter may match; two patterns *overlap* when some subject may match both. A deny
//! refuses whatever it overlaps, an allow admits only what one entry covers: what is unsure is refused.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value, json};

use super::closed::Closed;
use crate::{
    canonical::{self, CanonicalError},
    channel::{pattern_covers, subject_matches},
    error::EpError,
    grants::{Permissions, Rules},
    token::{TokenError, token},
};

/// One token of any value.
const ONE: &str = "*";
/// One or more trailing tokens.
const REST: &str = ">";

token!(
    /// A subject without wildcards.
    ConcreteSubject,
    "subject",
    is_concrete,
    "dot-separated non-empty tokens without whitespace, control characters or wildcards"
);
token!(
    /// A subject pattern of a permission list: `*` is a whole token, `>` the whole last one. Queue-qualified entries
    /// are no patterns.
    SubjectPattern,
    "subject pattern",
    is_pattern,
    "dot-separated non-empty tokens without whitespace or control characters, * a whole token and > the whole last one"
);

fn is_plain(token: &str) -> bool {
    !token.is_empty()
        && !token.chars().any(|c| c.is_whitespace() || c == '\u{feff}' || c < ' ' || c == '\u{7f}')
}

fn is_concrete(subject: &str) -> bool {
    subject.split('.').all(|token| is_plain(token) && !token.contains(['*', '>']))
}

fn is_pattern(pattern: &str) -> bool {
    let mut tokens = pattern.split('.').peekable();
    while let Some(token) = tokens.next() {
        let ok = match token {
            ONE => true,
            REST => tokens.peek().is_none(),
            plain => is_plain(plain) && !plain.contains(['*', '>']),
        };
        if !ok {
            return false;
        }
    }
    true
}

impl SubjectPattern {
    /// Whether the concrete subject is one of those that this pattern names.
    pub fn matches(&self, subject: &ConcreteSubject) -> bool {
        subject_matches(self.as_str(), subject.as_str())
    }

    /// Whether every subject that `filter` may match is matched by this pattern.
    pub fn covers(&self, filter: &Self) -> bool {
        pattern_covers(self.as_str(), filter.as_str())
    }

    /// Whether some subject may match both. `a.>` and `a` are held to overlap, though the broker matches no subject
    /// with both: a deny then errs on the refusing side.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.as_str().split('.'), other.as_str().split('.'));
        loop {
            match (a.next(), b.next()) {
                (None, None) | (Some(REST), _) | (_, Some(REST)) => return true,
                (None, _) | (_, None) => return false,
                (Some(ONE), _) | (_, Some(ONE)) => {}
                (Some(a), Some(b)) if a == b => {}
                _ => return false,
            }
        }
    }
}

/// What one direction allows before its denies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IssuedAllow {
    /// Everything.
    All,
    /// Nothing. No native grant is imported as this.
    None,
    /// What these patterns name, at least one.
    Patterns(Vec<SubjectPattern>),
}

/// One direction of an issued ceiling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedRules {
    allow: IssuedAllow,
    deny: Vec<SubjectPattern>,
}

/// The ceiling of an issued authority, in both directions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedPermissions {
    /// The publish direction.
    pub publish: IssuedRules,
    /// The subscribe direction.
    pub subscribe: IssuedRules,
}

// === impl IssuedRules ===

impl IssuedRules {
    /// A direction; a pattern list that names nothing is `bad-request`, because nothing is [`IssuedAllow::None`].
    pub fn new(allow: IssuedAllow, deny: Vec<SubjectPattern>) -> Result<Self, EpError> {
        if matches!(&allow, IssuedAllow::Patterns(patterns) if patterns.is_empty()) {
            return Err(EpError::bad_request(
                "issued permissions: a pattern list names at least one pattern",
            ));
        }
        Ok(Self { allow, deny })
    }

    /// What is allowed before the denies.
    pub fn allow(&self) -> &IssuedAllow {
        &self.allow
    }

    /// What is denied; a deny beats an allow.
    pub fn deny(&self) -> &[SubjectPattern] {
        &self.deny
    }

    /// Whether one concrete subject is within the ceiling.
    pub fn permits_subject(&self, subject: &ConcreteSubject) -> bool {
        !self.deny.iter().any(|deny| deny.matches(subject))
            && match &self.allow {
                IssuedAllow::All => true,
                IssuedAllow::None => false,
                IssuedAllow::Patterns(patterns) => patterns.iter().any(|allow| allow.matches(subject)),
            }
    }

    /// Whether everything that a filter may match is within the ceiling, by one single entry of it.
    pub fn permits_filter(&self, filter: &SubjectPattern) -> bool {
        !self.deny.iter().any(|deny| deny.overlaps(filter))
            && match &self.allow {
                IssuedAllow::All => true,
                IssuedAllow::None => false,
                IssuedAllow::Patterns(patterns) => patterns.iter().any(|allow| allow.covers(filter)),
            }
    }

    /// A direction of a native grant: no allow list, or an empty one, is everything.
    fn of_native<A: AsRef<str>>(allow: &[A], deny: &[A]) -> Result<Self, EpError> {
        let patterns = |list: &[A]| -> Result<Vec<SubjectPattern>, EpError> {
            list.iter().map(|entry| SubjectPattern::parse(entry.as_ref()).map_err(|e| foreign(&e))).collect()
        };
        let allow = if allow.is_empty() { IssuedAllow::All } else { IssuedAllow::Patterns(patterns(allow)?) };
        Ok(Self { allow, deny: patterns(deny)? })
    }

    fn parse(value: &Value) -> Result<Self, EpError> {
        const WHAT: &str = "issued permission direction";
        let rules = Closed::of(WHAT, value.clone(), &["allow", "deny"])?;
        let allow = rules.value("allow").cloned().unwrap_or_default();
        let allow = Closed::of("issued permission allow", allow, &["mode", "patterns"])?;
        let mode = allow.text("mode")?;
        if allow.has("patterns") != (mode == "patterns") {
            return Err(allow.garbled("patterns are named in the mode patterns, and only there"));
        }
        let allow = match mode {
            "all" => IssuedAllow::All,
            "none" => IssuedAllow::None,
            "patterns" => match read_patterns(&allow, "patterns")? {
                patterns if patterns.is_empty() => return Err(allow.garbled("it names no pattern")),
                patterns => IssuedAllow::Patterns(patterns),
            },
            _ => return Err(allow.garbled("its mode is not all, none or patterns")),
        };
        Ok(Self { allow, deny: read_patterns(&rules, "deny")? })
    }

    fn to_value(&self) -> Value {
        let allow = match &self.allow {
            IssuedAllow::All => json!({ "mode": "all" }),
            IssuedAllow::None => json!({ "mode": "none" }),
            IssuedAllow::Patterns(patterns) => json!({ "mode": "patterns", "patterns": patterns }),
        };
        json!({ "allow": allow, "deny": self.deny })
    }
}

fn read_patterns(row: &Closed, member: &str) -> Result<Vec<SubjectPattern>, EpError> {
    row.array(member)?
        .iter()
        .map(|entry| entry.as_str().and_then(|text| SubjectPattern::from_str(text).ok()))
        .collect::<Option<_>>()
        .ok_or_else(|| row.garbled("an entry is not a subject pattern"))
}

fn foreign(error: &TokenError) -> EpError {
    EpError::bad_request(format!("issued permissions: an entry of the native grant is {error}"))
}

// === impl IssuedPermissions ===

impl IssuedPermissions {
    /// Imports the permissions that a user JWT is minted with, entries in the order given. An entry that is no subject
    /// pattern, a queue-qualified one included, is `bad-request`.
    pub fn of_grants(permissions: &Permissions) -> Result<Self, EpError> {
        let direction = |rules: &Rules| IssuedRules::of_native(&rules.allow, &rules.deny);
        Ok(Self { publish: direction(&permissions.publish)?, subscribe: direction(&permissions.subscribe)? })
    }

    /// Imports the native JWT fragment `{pub?, sub?}`, closed at both depths: `resp` and any other member refuse.
    pub fn of_native(fragment: &Value) -> Result<Self, EpError> {
        let fragment = native_object(fragment, &["pub", "sub"])?;
        let direction = |name: &str| {
            let Some(rules) = fragment.get(name) else { return IssuedRules::of_native::<String>(&[], &[]) };
            let rules = native_object(rules, &["allow", "deny"])?;
            IssuedRules::of_native(&native_list(rules, "allow")?, &native_list(rules, "deny")?)
        };
        Ok(Self { publish: direction("pub")?, subscribe: direction("sub")? })
    }

    /// Reads the stored form: closed at every depth.
    pub(super) fn parse(value: &Value) -> Result<Self, EpError> {
        let both = Closed::of("issued permission set", value.clone(), &["publish", "subscribe"])?;
        let direction = |name: &str| {
            let rules = both.value(name).ok_or_else(|| both.garbled("it names both directions"))?;
            IssuedRules::parse(rules)
        };
        Ok(Self { publish: direction("publish")?, subscribe: direction("subscribe")? })
    }

    /// The stored form.
    pub fn to_value(&self) -> Value {
        json!({ "publish": self.publish.to_value(), "subscribe": self.subscribe.to_value() })
    }

    /// Whether two ceilings are the same text, the order of their entries included.
    pub fn is_same_text(&self, other: &Self) -> Result<bool, CanonicalError> {
        Ok(canonical::canonical_json(&self.to_value())? == canonical::canonical_json(&other.to_value())?)
    }
}

fn native_object<'a>(value: &'a Value, members: &[&str]) -> Result<&'a Map<String, Value>, EpError> {
    value.as_object().filter(|object| object.keys().all(|key| members.contains(&key.as_str()))).ok_or_else(
        || {
            EpError::bad_request(format!(
                "issued permissions: a native grant is an object of {} and nothing else",
                members.join(" and ")
            ))
        },
    )
}

/// A list of the fragment; a member that is there and is no list refuses, `null` included.
fn native_list(rules: &Map<String, Value>, member: &str) -> Result<Vec<String>, EpError> {
    let Some(list) = rules.get(member) else { return Ok(Vec::new()) };
    list.as_array()
        .and_then(|list| list.iter().map(|entry| entry.as_str().map(str::to_owned)).collect())
        .ok_or_else(|| {
            EpError::bad_request(format!("issued permissions: {member} must be a list of subjects"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EpCode;

    fn p(s: &str) -> SubjectPattern {
        SubjectPattern::parse(s).unwrap()
    }

    fn rules(allow: &[&str], deny: &[&str]) -> IssuedRules {
        IssuedRules::of_native(allow, deny).unwrap()
    }

    #[test]
    fn a_wildcard_is_a_whole_token_and_rest_the_last_one() {
        for ok in ["a", "a.b", "*", ">", "a.*.b", "a.>", "$JS.API.INFO", "_INBOX_x.>", "a/b=c", "ä.b"] {
            assert!(SubjectPattern::parse(ok).is_ok(), "{ok:?}");
        }
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a b",
            "a\tb",
            "a\u{1}",
            "a\u{7f}",
            "a\u{a0}b",
            "a\u{feff}",
            "a*",
            "*a",
            "a>",
            ">.a",
            "a.>.b",
            "ep.one queue",
        ] {
            assert!(SubjectPattern::parse(bad).is_err(), "{bad:?}");
            assert!(ConcreteSubject::parse(bad).is_err(), "{bad:?}");
        }
        for wild in ["*", ">", "a.*", "a.>"] {
            assert!(ConcreteSubject::parse(wild).is_err(), "{wild:?}");
        }
    }

    #[test]
    fn covering_is_decided_token_by_token() {
        for (cap, filter, want) in [
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
            ("a.b.c", "a.b", false),
        ] {
            assert_eq!(p(cap).covers(&p(filter)), want, "{cap} {filter}");
        }
    }

    #[test]
    fn overlap_is_symmetric_and_errs_towards_refusing() {
        for (a, b, want) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a.>", "a", true),
            ("a.>", "b", false),
            ("a.>", "a.b.c", true),
            ("*", "a", true),
            ("*", "a.b", false),
            ("a.*", "*.b", true),
            ("a.*.c", "a.b.d", false),
            ("a.b", "a.b.c", false),
            (">", "a", true),
        ] {
            assert_eq!(p(a).overlaps(&p(b)), want, "{a} {b}");
            assert_eq!(p(b).overlaps(&p(a)), want, "{b} {a}");
        }
    }

    #[test]
    fn a_deny_beats_an_allow_for_subjects_and_for_filters() {
        let subject = |s: &str| ConcreteSubject::parse(s).unwrap();
        let all = rules(&[], &["a.x"]);
        assert!(all.permits_subject(&subject("a.b")) && !all.permits_subject(&subject("a.x")));
        assert!(all.permits_filter(&p("b.>")));
        assert!(!all.permits_filter(&p("a.*")), "a filter that a deny overlaps");

        let some = rules(&["a.*", "b.>"], &["b.x.>"]);
        for (s, want) in
            [("a.b", true), ("a.b.c", false), ("b", false), ("b.y", true), ("b.x", true), ("b.x.y", false)]
        {
            assert_eq!(some.permits_subject(&subject(s)), want, "{s}");
        }
        for (f, want) in [("a.*", true), ("a.>", false), ("b.y.>", true), ("b.*.z", false), ("c", false)] {
            assert_eq!(some.permits_filter(&p(f)), want, "{f}");
        }
        let union = rules(&["a.*", "a.*.>"], &[]);
        assert!(!union.permits_filter(&p("a.>")), "no union of entries is considered");

        let none = IssuedRules::new(IssuedAllow::None, vec![]).unwrap();
        assert!(!none.permits_subject(&subject("a")) && !none.permits_filter(&p("a")));
        assert!(IssuedRules::new(IssuedAllow::Patterns(vec![]), vec![]).is_err());
    }

    #[test]
    fn a_native_grant_that_names_nothing_allows_everything() {
        let everything = IssuedRules { allow: IssuedAllow::All, deny: vec![] };
        for fragment in [json!({}), json!({"pub": {}}), json!({"pub": {"allow": []}, "sub": {"deny": []}})] {
            let imported = IssuedPermissions::of_native(&fragment).unwrap();
            assert_eq!((&imported.publish, &imported.subscribe), (&everything, &everything), "{fragment}");
        }
        let imported =
            IssuedPermissions::of_native(&json!({"pub": {"allow": ["b", "a"], "deny": ["c.>"]}})).unwrap();
        assert_eq!(
            imported.to_value(),
            json!({
                "publish": { "allow": { "mode": "patterns", "patterns": ["b", "a"] }, "deny": ["c.>"] },
                "subscribe": { "allow": { "mode": "all" }, "deny": [] },
            })
        );
        let grants = Permissions {
            publish: Rules { allow: vec!["b".into(), "a".into()], deny: vec!["c.>".into()] },
            subscribe: Rules::default(),
        };
        assert_eq!(IssuedPermissions::of_grants(&grants).unwrap(), imported);
    }

    #[test]
    fn a_native_grant_is_closed_and_never_queue_qualified() {
        for fragment in [
            json!(null),
            json!([]),
            json!({"resp": {}}),
            json!({"pub": null}),
            json!({"pub": {"allow": null}}),
            json!({"pub": {"allow": "a"}}),
            json!({"pub": {"allow": [1]}}),
            json!({"pub": {"allow": ["a"], "resp": 1}}),
            json!({"sub": {"allow": ["a queue"]}}),
            json!({"sub": {"deny": [""]}}),
        ] {
            assert_eq!(
                IssuedPermissions::of_native(&fragment).unwrap_err().code,
                EpCode::BadRequest,
                "{fragment}"
            );
        }
    }

    #[test]
    fn the_stored_form_is_closed_at_every_depth() {
        let good = json!({
            "publish": { "allow": { "mode": "patterns", "patterns": ["a"] }, "deny": [] },
            "subscribe": { "allow": { "mode": "none" }, "deny": ["b.*"] },
        });
        assert_eq!(IssuedPermissions::parse(&good).unwrap().to_value(), good);
        let with = |allow: Value| json!({ "publish": { "allow": allow, "deny": [] }, "subscribe": good["subscribe"] });
        for bad in [
            json!({}),
            json!({ "publish": good["publish"] }),
            json!({ "publish": good["publish"], "subscribe": good["subscribe"], "more": 1 }),
            json!({ "publish": { "allow": { "mode": "all" } }, "subscribe": good["subscribe"] }),
            json!({ "publish": { "deny": [] }, "subscribe": good["subscribe"] }),
            with(json!({ "mode": "some" })),
            with(json!({ "mode": "all", "patterns": ["a"] })),
            with(json!({ "mode": "patterns" })),
            with(json!({ "mode": "patterns", "patterns": [] })),
            with(json!({ "mode": "patterns", "patterns": ["a b"] })),
            with(json!({ "mode": "patterns", "patterns": [1] })),
            with(json!("all")),
        ] {
            assert_eq!(IssuedPermissions::parse(&bad).unwrap_err().code, EpCode::Internal, "{bad}");
        }
    }
}
