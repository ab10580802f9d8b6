//! The commands that mend a refusal, each exactly as it is to be typed.

use cotal_ledger::{ActorRow, AuthorizedGrant, regrant_command, shell_quote};
use cotal_wire::{Actor, DerivedOwner, Space};

/// The commands of one space.
pub(super) struct Mend<'a> {
    space: &'a Space,
}

impl<'a> Mend<'a> {
    pub(super) fn of(space: &'a Space) -> Self {
        Self { space }
    }

    /// Brings up whatever is down, and makes whatever is missing.
    pub(super) fn up(&self) -> String {
        format!("cotal up --user-auth{}", self.at())
    }

    /// A first pin.
    pub(super) fn pin(&self) -> String {
        format!("cotal up --user-auth{} --idp <auth base URL>", self.at())
    }

    /// The narrowest useful grant.
    pub(super) fn grant(&self, owner: &DerivedOwner, actor: &Actor) -> String {
        format!(
            "cotal actor grant {actor} --owner {owner} --scope '' --allow-subscribe general --allow-publish general{}",
            self.at()
        )
    }

    /// The same grant again: it retires the incarnation and begins a new one.
    pub(super) fn regrant(&self, row: &ActorRow) -> String {
        format!("{}{}", regrant_command(row), self.at())
    }

    /// The same grant, one capability wider.
    pub(super) fn widen(&self, grant: &AuthorizedGrant, capability: &str) -> String {
        format!("{}{}", grant.regrant_command_with(capability), self.at())
    }

    /// Takes a row away that cannot be read, and grants anew.
    pub(super) fn replace(&self, owner: &DerivedOwner, actor: &Actor) -> String {
        format!("{} && {}", self.revoke(owner, actor), self.grant(owner, actor))
    }

    /// Ends an incarnation, also one whose end was begun.
    pub(super) fn revoke(&self, owner: &DerivedOwner, actor: &Actor) -> String {
        format!("cotal actor revoke {actor} --owner {owner}{}", self.at())
    }

    /// A command that another room printed, for this space.
    pub(super) fn here(&self, command: &str) -> String {
        format!("{command}{}", self.at())
    }

    /// Whether a provider publishes its keys.
    pub(super) fn fetch(uri: &str) -> String {
        format!("curl -fsS {}", word(uri))
    }

    /// Every command takes a space of any name.
    fn at(&self) -> String {
        format!(" --space {}", word(self.space.as_str()))
    }
}

/// A value as one word of a shell.
fn word(value: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':');
    if !value.is_empty() && !value.starts_with('-') && value.bytes().all(plain) {
        value.to_owned()
    } else {
        shell_quote(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_names_its_space_as_one_word() {
        for (space, at) in [("main", " --space main"), ("o'hara & co", r" --space 'o'\''hara & co'")] {
            let space = Space::parse(space).unwrap();
            let mend = Mend::of(&space);
            let owner = DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
            let actor = Actor::parse("cli").unwrap();
            assert_eq!(mend.up(), format!("cotal up --user-auth{at}"));
            assert!(mend.grant(&owner, &actor).ends_with(at));
            assert_eq!(mend.replace(&owner, &actor).matches(at).count(), 2);
        }
    }
}
