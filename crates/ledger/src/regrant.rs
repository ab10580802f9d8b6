//! The command line that mends a refusal (contract 04 §7.7).

use cotal_wire::{Actor, DerivedOwner};
use cotal_workspace::printed::shell_quote;

use crate::row::ActorRow;

/// The re-grant command line that refusals print (contract 04 §7.7).
pub fn regrant_command(row: &ActorRow) -> String {
    RegrantLine {
        owner: &row.owner,
        actor: &row.actor,
        scope: &row.scope,
        allow_subscribe: &row.allow_subscribe,
        allow_publish: &row.allow_publish,
        role: row.role.as_deref(),
        label: row.label.as_deref(),
    }
    .render()
}

/// What a re-grant names: the whole row, because a grant replaces the whole row.
pub(crate) struct RegrantLine<'a> {
    pub(crate) owner: &'a DerivedOwner,
    pub(crate) actor: &'a Actor,
    pub(crate) scope: &'a [String],
    pub(crate) allow_subscribe: &'a [String],
    pub(crate) allow_publish: &'a [String],
    pub(crate) role: Option<&'a str>,
    pub(crate) label: Option<&'a str>,
}

impl RegrantLine<'_> {
    pub(crate) fn render(&self) -> String {
        let list = |entries: &[String]| shell_quote(&entries.join(","));
        let mut line = format!(
            "cotal actor grant {} --owner {} --scope {} --allow-subscribe {} --allow-publish {}",
            self.actor,
            self.owner,
            list(self.scope),
            list(self.allow_subscribe),
            list(self.allow_publish)
        );
        for (flag, value) in [("--role", self.role), ("--label", self.label)] {
            if let Some(value) = value {
                line.extend([" ", flag, " ", &shell_quote(value)]);
            }
        }
        line
    }
}
