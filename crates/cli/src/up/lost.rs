//! What a space cannot be brought up without once it has existed (contract 04 §6.2, §6.3).
//!
//! A first run makes its files in one order: the trust records, the pin of the identity provider, the owner secret, what
//! comes after it; the ledger's rows come last of all. A run that was killed leaves a beginning of that order. So a file
//! that is missing before one that is there was lost; with a fresh one in its place everybody would be somebody else, or
//! the broker would keep nothing of theirs. The broker's store is made after all of that: a root that has one and no operator has
//! lost the whole of `auth`. Issuer keys, callout account and service keys are made again, as the contract has it: nobody's owner hangs on
//! them.

use std::{io::ErrorKind, path::Path};

use cotal_ledger::{Ledger, shell_quote};
use cotal_trust::idp::IdpPin;
use cotal_wire::Space;
use cotal_workspace::{
    material::{IDP_FILE, OWNER_SECRET_FILE, Standing},
    root::space_segment,
    secret_store::FsSecretStore,
    trust_files,
};

use super::{idp::Choice, mesh::Mesh};
use crate::{context::Context, outcome::CliError, space_daemons};

/// What stands of a space.
#[derive(Clone, Copy)]
struct Kept {
    /// `auth/broker.json`.
    broker: bool,
    /// `auth/account.<key>.json`.
    account: bool,
    /// The material.
    material: Standing,
    /// A row of the ledger.
    granted: bool,
    /// Something in the broker's store, which is the operator's: it is made after all that the first space needs.
    store: bool,
    /// A run of this space that came to its end, as this machine remembers.
    came_up: bool,
}

/// What was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    Broker,
    Account,
    Pin,
    OwnerSecret,
}

impl Kept {
    async fn of(ctx: &Context, space: &Space, state_dir: &Path, mesh: &Mesh) -> Result<Self, CliError> {
        let material = Standing::of(&FsSecretStore::open(&ctx.root)?, state_dir, space).await;
        Ok(Self {
            broker: trust_files::load_broker(&ctx.root)?.is_some(),
            account: trust_files::load_account(&ctx.root, space)?.is_some(),
            material,
            // A row that does not read is a row.
            granted: Ledger::at(state_dir).list().map_or(true, |rows| !rows.is_empty()),
            store: holds_something(&space_daemons::broker_store_dir(&ctx.root))?,
            came_up: mesh.idp_url().is_some(),
        })
    }

    /// In the order in which a first run makes them.
    fn lost(self) -> Vec<Lost> {
        let orphaned = self.store && !self.broker;
        let after_secret = self.material.after_owner_secret || self.granted || orphaned && self.came_up;
        let after_pin = self.material.owner_secret == Some(true) || after_secret;
        let after_account = self.material.pin == Some(true) || after_pin;
        [
            // Beside the account alone a broker's record is refused by the rule of the trust files.
            (!self.broker && !self.account && after_account || orphaned, Lost::Broker),
            (!self.account && after_account, Lost::Account),
            (self.material.pin == Some(false) && after_pin, Lost::Pin),
            (self.material.owner_secret == Some(false) && after_secret, Lost::OwnerSecret),
        ]
        .into_iter()
        .filter_map(|(lost, what)| lost.then_some(what))
        .collect()
    }
}

impl Lost {
    fn named(self, space: &Space) -> String {
        let segment = space_segment(space);
        match self {
            Self::Broker => "its operator (auth/broker.json)".to_owned(),
            Self::Account => format!("its account record (auth/{})", trust_files::account_file(space)),
            Self::Pin => format!("the pin of its identity provider (auth/{segment}/{IDP_FILE})"),
            Self::OwnerSecret => format!("its owner secret (auth/{segment}/{OWNER_SECRET_FILE})"),
        }
    }
}

/// Refuses a space that has lost what cannot be made again. Answers the URL of a lost pin, as this machine remembers it,
/// when the command line names the provider anew; before anything is written.
pub(super) async fn refuse<'a>(
    ctx: &Context,
    space: &Space,
    state_dir: &Path,
    choice: &Choice,
    mesh: &'a Mesh,
) -> Result<Option<&'a str>, CliError> {
    let mut lost = Kept::of(ctx, space, state_dir, mesh).await?.lost();
    let pin_lost = lost.contains(&Lost::Pin);
    let was = mesh.idp_url().filter(|_| pin_lost);
    if names_it_again(choice, was) {
        lost.retain(|what| *what != Lost::Pin);
    }
    if lost.is_empty() {
        Ok(was)
    } else {
        Err(CliError::failed(refusal(space, &lost, was, mesh.dev_idp().is_some())))
    }
}

/// Whether a directory is there and not empty.
fn holds_something(dir: &Path) -> Result<bool, CliError> {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(CliError::failed(format!("{} cannot be read: {error}", dir.display()))),
    }
}

/// Whether the command line names the provider that a lost pin named. A pin is never changed (contract 04 §6.3), so
/// another issuer than the remembered one does not.
fn names_it_again(choice: &Choice, was: Option<&str>) -> bool {
    match (choice, was) {
        (Choice::Pinned, _) => false,
        (_, None) => true,
        (Choice::Development { .. }, Some(was)) => space_daemons::dev_idp_port(was).is_some(),
        (Choice::Url(url), Some(was)) => match (IdpPin::from_url(url), IdpPin::from_url(was)) {
            (Ok(url), Ok(was)) => url.issuer == was.issuer,
            // No provider's URL: the pin's own reader tells that better.
            _ => true,
        },
    }
}

fn refusal(space: &Space, lost: &[Lost], was: Option<&str>, development: bool) -> String {
    let names: Vec<_> = lost.iter().map(|what| what.named(space)).collect();
    let it = if lost.len() == 1 { "it" } else { "them" };
    // Without its operator the root can have no other one.
    let elsewhere = if lost.contains(&Lost::Broker) { "," } else { ", under another --space or" };
    let provider = match (lost.contains(&Lost::Pin), was) {
        (false, _) => String::new(),
        (true, None) => {
            "; the identity provider can be named again instead, with --idp <the auth base URL that it \
                         had> or --dev-idp: another one would make every person somebody else"
                .to_owned()
        }
        (true, Some(was)) if development => {
            format!("; the identity provider, {was}, can be named again instead, with --dev-idp")
        }
        (true, Some(was)) => {
            format!("; the identity provider can be named again instead, with --idp {}", shell_quote(was))
        }
    };
    format!(
        "space {:?} has existed before and has lost {}, which cannot be made again: restore {it} \
         from a backup, then run this command again{provider}; or start a new space{elsewhere} in another directory",
        space.as_str(),
        names.join(" and "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTERNAL: &str = "https://id.example/api/auth";
    const DEVELOPMENT: &str = "http://127.0.0.1:4780/api/auth";

    /// What stands, as a letter each: broker, account, pin, owner secret, what comes after it, ledger; the broker's store,
    /// and what the machine remembers.
    fn kept(letters: &str) -> Kept {
        let has = |letter| letters.contains(letter);
        let material =
            Standing { pin: Some(has('p')), owner_secret: Some(has('o')), after_owner_secret: has('x') };
        Kept {
            broker: has('b'),
            account: has('a'),
            material,
            granted: has('l'),
            store: has('s'),
            came_up: has('m'),
        }
    }

    #[test]
    fn a_first_run_that_was_killed_anywhere_has_lost_nothing() {
        let order = "bapoxsml";
        for cut in 0..=order.len() {
            assert_eq!(kept(&order[..cut]).lost(), [], "{}", &order[..cut]);
        }
    }

    #[test]
    fn a_file_that_is_missing_before_one_that_is_there_was_lost() {
        for (letters, lost) in [
            ("bapxl", vec![Lost::OwnerSecret]),
            ("bapx", vec![Lost::OwnerSecret]),
            ("bapl", vec![Lost::OwnerSecret]),
            ("baoxl", vec![Lost::Pin]),
            ("bao", vec![Lost::Pin]),
            ("bal", vec![Lost::Pin, Lost::OwnerSecret]),
            ("bpoxl", vec![Lost::Account]),
            ("bp", vec![Lost::Account]),
            ("poxl", vec![Lost::Broker, Lost::Account]),
            ("apoxl", vec![]),
            ("l", vec![Lost::Broker, Lost::Account, Lost::Pin, Lost::OwnerSecret]),
            ("sm", vec![Lost::Broker, Lost::Account, Lost::Pin, Lost::OwnerSecret]),
            // Which spaces it had is not known.
            ("s", vec![Lost::Broker]),
            ("apoxls", vec![Lost::Broker]),
            // The root's first space, and a second one.
            ("m", vec![]),
            ("bs", vec![]),
        ] {
            assert_eq!(kept(letters).lost(), lost, "{letters}");
        }
    }

    #[test]
    fn what_cannot_be_examined_is_neither_there_nor_lost() {
        let unread = |letters| Kept {
            material: Standing { pin: None, owner_secret: None, ..kept(letters).material },
            ..kept(letters)
        };
        assert_eq!(unread("").lost(), []);
        assert_eq!(unread("baxl").lost(), []);
    }

    #[test]
    fn a_lost_pin_is_named_again_by_its_own_issuer_alone() {
        let url = |text: &str| Choice::Url(text.to_owned().into());
        let development = Choice::Development { auto_approve: false };
        for (choice, was, again) in [
            (&Choice::Pinned, None, false),
            (&Choice::Pinned, Some(DEVELOPMENT), false),
            (&development, None, true),
            (&development, Some(DEVELOPMENT), true),
            (&development, Some(EXTERNAL), false),
            (&url(EXTERNAL), None, true),
            (&url(EXTERNAL), Some(EXTERNAL), true),
            (&url("https://id.example/other"), Some(EXTERNAL), true),
            (&url("https://other.example/api/auth"), Some(EXTERNAL), false),
            (&url(EXTERNAL), Some(DEVELOPMENT), false),
            (&url("ftp://x"), Some(EXTERNAL), true),
        ] {
            assert_eq!(names_it_again(choice, was), again, "{choice:?} {was:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_files_and_every_way_out() {
        let space = Space::parse("main").unwrap();
        let told = refusal(&space, &[Lost::Pin, Lost::OwnerSecret], Some(EXTERNAL), false);
        for part in
            ["idp.json", "owner-secret.json", "restore them", "--idp 'https://id.example", "new space"]
        {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(refusal(&space, &[Lost::Pin], Some(DEVELOPMENT), true).contains("with --dev-idp"));
        let told = refusal(&space, &[Lost::Account], None, false);
        assert!(told.contains("auth/account.6d61696e.json") && !told.contains("--idp"), "{told}");
    }
}
