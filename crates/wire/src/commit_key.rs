//! The record keys that an accepted commit may write (contract 07 §8 "Applier", §12.2).

use std::fmt;

use crate::{
    acceptance::Acceptance,
    endpoint_token::{EndpointToken, IdToken},
    error::EpError,
};

/// Longest commit key, in characters.
pub const MAX_COMMIT_KEY: usize = 512;

/// The key of a half of a record whose registered writer is the commit path: today `goal` and `cp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitKey(Box<str>);

impl CommitKey {
    /// Reads a commit key; `permission-denied` for every other record, kind and spelling, in the contract's order:
    /// length, kind, token count, half, qualifiers.
    pub fn parse(key: &str) -> Result<Self, EpError> {
        let refuse = |why: &str| Err(EpError::permission_denied(format!("commit: {why}")));
        if key.is_empty() || key.len() > MAX_COMMIT_KEY {
            return refuse("its key has not 1 to 512 characters");
        }
        let tokens: Vec<&str> = key.split('.').collect();
        let (kind, rest) = tokens.split_first().map_or(("", &[][..]), |(kind, rest)| (*kind, rest));
        let qualifiers = match kind {
            "goal" => 5,
            "cp" => 2,
            _ => return refuse("its key is of no record kind that a commit writes"),
        };
        let Some((half, qualified)) = rest.split_last().filter(|(_, q)| q.len() == qualifiers) else {
            return refuse("its key has not as many tokens as its record kind");
        };
        if !matches!(*half, "spec" | "status") {
            return refuse("its key names neither the spec nor the status of its record");
        }
        let valid = match qualified {
            [endpoint, owner, actor, uid, goal] => {
                EndpointToken::parse(endpoint).is_ok()
                    && Acceptance::of_tokens([owner, actor, uid, goal]).is_some()
            }
            [endpoint, token] => EndpointToken::parse(endpoint).is_ok() && IdToken::parse(token).is_ok(),
            _ => false,
        };
        if valid { Ok(Self(key.into())) } else { refuse("its key holds a token outside its grammar") }
    }

    /// The key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CommitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    const GOAL: &str = "goal.com_x.local.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu.g1.status";

    #[test]
    fn both_halves_of_goals_and_checkpoints_may_be_committed() {
        for key in [GOAL, &GOAL.replace("status", "spec"), "cp.com_x.t1.spec", "cp.com_x.t1.status"] {
            assert_eq!(CommitKey::parse(key).unwrap().as_str(), key);
        }
    }

    #[test]
    fn no_authority_record_and_no_other_writers_record_is_committed() {
        for (key, why) in [
            (String::new(), "512"),
            (format!("cp.com_x.{}.spec", "t".repeat(512)), "512"),
            ("lifecycle.local.alice".to_owned(), "kind"),
            ("oblig.ep.com_x.local.alice.u.r".to_owned(), "kind"),
            ("uid.u".to_owned(), "kind"),
            ("govern.com_x".to_owned(), "kind"),
            ("policy.com_x.h".to_owned(), "kind"),
            ("frontier.u".to_owned(), "kind"),
            ("svc.com_x.i.status".to_owned(), "kind"),
            ("lease.com_x.p.local.alice.u.r.spec".to_owned(), "kind"),
            ("goalidx.com_x.local.alice.u.g".to_owned(), "kind"),
            ("goal".to_owned(), "as many"),
            (GOAL.replace(".status", ""), "as many"),
            (format!("{GOAL}.status"), "as many"),
            (GOAL.replace("status", "value"), "neither"),
            (GOAL.replace("com_x", "-x"), "grammar"),
            (GOAL.replace("alice", "*"), "grammar"),
            (GOAL.replace("g1", ">"), "grammar"),
            ("cp.com_x.t 1.spec".to_owned(), "grammar"),
            ("cp..t1.spec".to_owned(), "grammar"),
        ] {
            let refused = CommitKey::parse(&key).unwrap_err();
            assert_eq!(refused.code, EpCode::PermissionDenied, "{key}");
            assert!(refused.message.contains(why), "{key}: {refused}");
        }
    }
}
