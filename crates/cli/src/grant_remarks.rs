//! What a grant may hold by contract, and hardly ever should: it is written as it was asked for, and told.
//!
//! The vocabulary of scopes is open (contract 04 §7.2), because a platform may read words of its own; and the parent of a
//! person's actor is a link for whoever audits (§7.5). So neither is refused. A word that was mistyped grants nothing all
//! the same, and a parent that is not there has every agent below the actor refused.

use cotal_ledger::Ledger;
use cotal_wire::{
    Actor, DerivedOwner, Principal,
    view::{SCOPE_ADMIN, SCOPE_RUN, SCOPE_SPAWN, SCOPE_SUPERVISE},
};

use crate::terminal::printable;

/// The words that something here reads.
const KNOWN: [&str; 4] = [SCOPE_SPAWN, SCOPE_ADMIN, SCOPE_SUPERVISE, SCOPE_RUN];
/// What a word begins with that lets an actor hand a role on.
const ROLE: &str = "role:";

/// A sentence for each word of a scope that nothing here reads.
pub fn of_scope(scope: &[String]) -> Vec<String> {
    let unread = scope.iter().filter(|word| !is_known(word));
    unread
        .map(|word| {
            let meant = meant(word).map(|meant| format!(" (did you mean {meant}?)")).unwrap_or_default();
            format!(
                "Nothing here reads the scope word \"{}\"{meant}: unless a platform of yours does, it grants nothing. \
                 Known are {}, {ROLE}<role>.",
                printable(word),
                KNOWN.join(", ")
            )
        })
        .collect()
}

/// A sentence about a parent that does not stand behind its child now; `parent` has the shape of one.
pub fn of_parent(ledger: &Ledger, parent: &str, child: &Principal) -> Option<String> {
    let (owner, actor) = parent.split_once('.')?;
    let (owner, actor) = (DerivedOwner::parse(owner).ok()?, Actor::parse(actor).ok()?);
    let why = if Principal::new(&owner, actor.clone()) == *child {
        "is the actor itself".to_owned()
    } else {
        match ledger.lookup(&owner, &actor) {
            Ok(Some(_)) => return None,
            Ok(None) => "is not granted in this space".to_owned(),
            Err(error) => format!("does not read ({error})"),
        }
    };
    Some(format!(
        "The parent {parent} {why}: {child} itself gets in, and every agent below it is refused as long as that is so."
    ))
}

fn is_known(word: &str) -> bool {
    KNOWN.contains(&word) || word.strip_prefix(ROLE).is_some_and(|role| !role.is_empty())
}

/// The known word that is as good as this one: a typing error away, or the same in other letters.
fn meant(word: &str) -> Option<String> {
    let lower = word.to_ascii_lowercase();
    if let Some(role) = lower.strip_prefix("role") {
        let role = role.trim_start_matches(['s', ':', '-', '_']);
        return Some(format!("{ROLE}{}", if role.is_empty() { "<role>" } else { role }));
    }
    let far = |known: &&str| strsim::osa_distance(&lower, known);
    let nearest = KNOWN.into_iter().min_by_key(far)?;
    (far(&nearest) <= nearest.len().div_ceil(4)).then(|| nearest.to_owned())
}

#[cfg(test)]
mod tests {
    use cotal_ledger::GrantInput;
    use cotal_trust::system::{SystemClock, SystemEntropy};
    use cotal_workspace::file;

    use super::*;

    fn told(word: &str) -> String {
        of_scope(&[word.to_owned()]).concat()
    }

    #[test]
    fn a_scope_word_that_nothing_reads_is_told_with_those_that_something_does() {
        for known in ["spawn", "admin", "supervise", "run", "role:default"] {
            assert_eq!(told(known), "");
        }
        for (word, meant) in [
            ("supervice", "supervise"),
            ("Supervise", "supervise"),
            ("superviser", "supervise"),
            ("spwan", "spawn"),
            ("admn", "admin"),
            ("role", "role:<role>"),
            ("role_default", "role:default"),
        ] {
            let told = told(word);
            assert!(told.contains(&format!("\"{word}\" (did you mean {meant}?)")), "{told}");
        }
        for other in ["billing", "acme:read", "read", "gun-run"] {
            let told = told(other);
            assert!(told.contains("it grants nothing") && !told.contains("did you mean"), "{told}");
            assert!(told.contains("spawn, admin, supervise, run, role:<role>"), "{told}");
        }
        let two = of_scope(&["x".to_owned(), "spawn".to_owned(), "y".to_owned()]);
        assert_eq!(two.len(), 2);
    }

    #[test]
    fn a_parent_that_is_not_granted_or_is_the_child_itself_is_told() {
        let tmp = tempfile::tempdir().unwrap();
        let state = tmp.path().join("space.6d");
        file::ensure_private_dir(&state).unwrap();
        let ledger = Ledger::at(&state);
        let owner = DerivedOwner::parse(&format!("u_{}", "a".repeat(26))).unwrap();
        let named = |actor: &str| Principal::new(&owner, Actor::parse(actor).unwrap());
        let (child, parent) = (named("child"), named("boss"));
        let told = |parent: &Principal| of_parent(&ledger, &parent.key(), &child);
        assert!(told(&parent).unwrap().contains("is not granted in this space"));
        assert!(told(&child).unwrap().contains("is the actor itself"));
        let input = GrantInput::new(owner.clone(), Actor::parse("boss").unwrap());
        ledger.grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
        assert_eq!(told(&parent), None);
    }
}
