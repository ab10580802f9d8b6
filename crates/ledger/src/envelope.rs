//! The delegation envelope: a managed row may never hold more than the one that spawned it (contract 04 §7.7).

use std::{collections::HashSet, fmt};

use cotal_wire::{Actor, DerivedOwner, channel::pattern_in_allow, view::SCOPE_ADMIN};

use crate::{
    Ledger, LedgerError,
    regrant::RegrantLine,
    row::{ActorRow, RowKind, TaggedRow},
};

/// What stands before the command that widens a parent, at the end of the refusal that names it.
pub const WIDEN_WITH: &str = "Widen the parent with: ";

/// Where the envelope is checked. It decides the wording only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// A managed row is being authored.
    Spawn,
    /// An agent secret, or a session, is being exchanged.
    Exchange,
}

impl Boundary {
    const fn refusal(self) -> &'static str {
        match self {
            Self::Spawn => "refusing to spawn",
            Self::Exchange => "refusing the exchange of",
        }
    }
}

/// What a child holds beyond its parent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Excess {
    /// Capabilities, a role's `role:<role>` included.
    scope: Vec<String>,
    subscribe: Vec<String>,
    publish: Vec<String>,
}

impl Excess {
    fn of(child: &ActorRow, parent: &ActorRow) -> Self {
        let role = child.role.as_ref().map(|role| format!("role:{role}"));
        let mut scope: Vec<String> =
            child.scope.iter().chain(&role).filter(|s| !parent.has_scope(s)).cloned().collect();
        let mut seen = HashSet::new();
        scope.retain(|s| seen.insert(s.clone()));
        let beyond = |list: &[String], cap: &[String]| {
            list.iter().filter(|pattern| !pattern_in_allow(cap, pattern)).cloned().collect()
        };
        Self {
            scope,
            subscribe: beyond(&child.allow_subscribe, &parent.allow_subscribe),
            publish: beyond(&child.allow_publish, &parent.allow_publish),
        }
    }

    fn is_empty(&self) -> bool {
        self.scope.is_empty() && self.subscribe.is_empty() && self.publish.is_empty()
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [("scope", &self.scope), ("read", &self.subscribe), ("post", &self.publish)];
        for (i, (name, list)) in lists.into_iter().filter(|(_, list)| !list.is_empty()).enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{name} {list:?}")?;
        }
        Ok(())
    }
}

impl Ledger {
    /// Walks the whole parent chain of a row and refuses at the first child that holds more than its parent
    /// (contract 04 §7.7). A parent with `admin` accepts the whole row and ends the walk; so does a row without a
    /// parent. There is no depth limit: a chain that returns to itself is refused, every other one ends.
    pub fn assert_within_spawner_grant(&self, row: &ActorRow, boundary: Boundary) -> Result<(), LedgerError> {
        let mut seen = HashSet::from([row.key()]);
        let mut child = row.clone();
        while let Some(parent_key) = child.parent.take() {
            let (owner, actor) = parse_parent(&child, &parent_key)?;
            if !seen.insert(parent_key.clone()) {
                return Err(refuse(
                    boundary,
                    row,
                    &format!(
                        "its parent chain returns to {parent_key}; revoke one of the rows of that cycle"
                    ),
                ));
            }
            let Some(parent) = self.lookup(&owner, &actor)? else {
                return Err(refuse(
                    boundary,
                    row,
                    &format!(
                        "its parent {parent_key} was revoked or never granted; grant the parent again first"
                    ),
                ));
            };
            if parent.row.has_scope(SCOPE_ADMIN) {
                return Ok(());
            }
            if child.owner != parent.row.owner {
                return Err(refuse(
                    boundary,
                    row,
                    &format!("its parent {parent_key} belongs to another owner and is no admin"),
                ));
            }
            let excess = Excess::of(&child, &parent.row);
            if !excess.is_empty() {
                let reason = format!(
                    "{} holds more than its parent {parent_key}: {excess}. {}",
                    child.key(),
                    remedy(&parent, &excess)
                );
                return Err(refuse(boundary, row, &reason));
            }
            child = parent.row;
        }
        Ok(())
    }
}

/// The two halves of a stored parent link: a derived owner and an actor, with exactly one dot (contract 04 §7.2).
pub(crate) fn parse_parent(row: &ActorRow, parent: &str) -> Result<(DerivedOwner, Actor), LedgerError> {
    split_parent(parent).ok_or_else(|| {
        LedgerError::Broken(format!(
            "ledger: the row of {} has a malformed parent; grant it again",
            row.key()
        ))
    })
}

/// [`parse_parent`] without a row to blame.
pub(crate) fn split_parent(parent: &str) -> Option<(DerivedOwner, Actor)> {
    let (owner, actor) = parent.split_once('.')?;
    Some((DerivedOwner::parse(owner).ok()?, Actor::parse(actor).ok()?))
}

fn refuse(boundary: Boundary, row: &ActorRow, reason: &str) -> LedgerError {
    LedgerError::Refused(format!("{} {}: {reason}", boundary.refusal(), row.key()))
}

/// How an operator widens the parent by exactly the excess.
fn remedy(parent: &TaggedRow, excess: &Excess) -> String {
    let row = &parent.row;
    if parent.kind == RowKind::ManagedAgent {
        return format!("Spawn {} again with a grant that holds these, or narrow the child", row.key());
    }
    let widen = |list: &[String], more: &[String]| [list, more].concat();
    let command = RegrantLine {
        owner: &row.owner,
        actor: &row.actor,
        scope: &widen(&row.scope, &excess.scope),
        allow_subscribe: &widen(&row.allow_subscribe, &excess.subscribe),
        allow_publish: &widen(&row.allow_publish, &excess.publish),
        role: row.role.as_deref(),
        label: row.label.as_deref(),
    }
    .render();
    format!("{WIDEN_WITH}{command}")
}
