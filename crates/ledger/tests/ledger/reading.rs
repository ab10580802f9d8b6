//! Rows as they are read, and what lies there and is none.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use cotal_ledger::{AGENT_EXCHANGE_REFUSAL, ActorRow, Ledger, LedgerError, RowKind};
use proptest::prelude::*;

use crate::house::{ALICE, BOB, Fixture, UID, actor, broken, claims, input, owner, refused};

fn fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[test]
fn an_absent_ledger_has_no_rows_and_creates_nothing() {
    let f = Fixture::new();
    assert!(f.ledger.lookup(&owner(ALICE), &actor("cli")).unwrap().is_none());
    assert!(f.ledger.list().unwrap().is_empty());
    assert!(!f.ledger.revoke_interactive(&owner(ALICE), &actor("cli")).unwrap());
    assert_eq!(fs::read_dir(f.dir.path()).unwrap().count(), 0);
}

#[test]
fn a_grant_writes_a_private_row_that_reads_back() {
    let f = Fixture::new();
    let row = f.interactive(&input(ALICE, "cli", "spawn,role:default", ">", ">")).unwrap();
    assert_eq!(row.granted_at.as_deref(), Some("2026-01-02T03:04:05.006Z"));
    assert_eq!(f.ledger.read_interactive(&owner(ALICE), &actor("cli")).unwrap(), Some(row));
    let path = f.path(RowKind::Interactive, &format!("{ALICE}.cli"));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(!fs::read_to_string(&path).unwrap().ends_with('\n'));
}

#[test]
fn a_row_directory_that_is_a_symlink_a_file_or_a_pipe_authorises_nobody() {
    for kind in RowKind::ALL {
        for attack in ["symlink", "dangling", "file", "fifo"] {
            let f = Fixture::new();
            let good = Fixture::new();
            good.interactive(&input(ALICE, "cli", "admin", ">", ">")).unwrap();
            let dir = f.dir.path().join(kind.dir_name());
            match attack {
                "symlink" => symlink(good.dir.path().join("actors"), &dir).unwrap(),
                "dangling" => symlink(f.dir.path().join("nowhere"), &dir).unwrap(),
                "file" => fs::write(&dir, "x").unwrap(),
                _ => fifo(&dir),
            }
            broken(f.ledger.read(kind, ALICE, "cli"));
            broken(f.ledger.lookup(&owner(ALICE), &actor("cli")));
            broken(f.ledger.list());
            broken(f.interactive(&input(ALICE, "cli", "", "", "")));
        }
    }
}

#[test]
fn a_row_that_is_a_symlink_a_directory_or_a_pipe_authorises_nobody() {
    for attack in ["symlink", "dangling", "dir", "fifo"] {
        let f = Fixture::new();
        let good = Fixture::new();
        let key = format!("{ALICE}.cli");
        good.interactive(&input(ALICE, "cli", "admin", ">", ">")).unwrap();
        let path = f.path(RowKind::Interactive, &key);
        fs::create_dir(path.parent().unwrap()).unwrap();
        match attack {
            "symlink" => symlink(good.path(RowKind::Interactive, &key), &path).unwrap(),
            "dangling" => symlink(f.dir.path().join("nowhere"), &path).unwrap(),
            "dir" => fs::create_dir(&path).unwrap(),
            _ => fifo(&path),
        }
        broken(f.ledger.lookup(&owner(ALICE), &actor("cli")));
        broken(f.ledger.authorize_grant(&owner(ALICE), &actor("cli")));
        broken(f.ledger.authorize_connect(&claims(ALICE, "cli", &[], Some(UID))));
        broken(f.ledger.list());
        broken(f.interactive(&input(ALICE, "cli", "", "", "")));
    }
}

#[test]
fn a_row_under_another_name_is_nobodys() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "cli", "admin", ">", ">")).unwrap();
    let bytes = fs::read(f.path(RowKind::Interactive, &format!("{ALICE}.cli"))).unwrap();
    f.plant(RowKind::Interactive, &format!("{BOB}.cli"), &bytes);
    broken(f.ledger.read_interactive(&owner(BOB), &actor("cli")));
    broken(f.ledger.list());
}

#[test]
fn a_sentence_about_a_broken_row_names_the_file_and_not_its_content() {
    let f = Fixture::new();
    f.plant(RowKind::Interactive, &format!("{ALICE}.cli"), b"{\"ver\":1,\"hidden-content\"");
    let Err(LedgerError::Broken(sentence)) = f.ledger.lookup(&owner(ALICE), &actor("cli")) else { panic!() };
    assert!(sentence.contains(&format!("{ALICE}.cli.json")) && !sentence.contains("hidden"), "{sentence}");
}

#[test]
fn a_principal_in_both_spaces_is_an_error_everywhere_it_is_looked_up() {
    let f = Fixture::new();
    let g = Fixture::new();
    f.interactive(&input(ALICE, "cli", "", "", "")).unwrap();
    g.managed(&input(ALICE, "cli", "", "", "")).unwrap();
    let key = format!("{ALICE}.cli");
    f.plant(RowKind::ManagedAgent, &key, &fs::read(g.path(RowKind::ManagedAgent, &key)).unwrap());
    broken(f.ledger.lookup(&owner(ALICE), &actor("cli")));
    broken(f.ledger.list());
    broken(f.ledger.authorize_connect(&claims(ALICE, "cli", &[], Some(UID))));
    broken(f.ledger.resolve_acl(&claims(ALICE, "cli", &[], Some(UID))));
}

#[test]
fn a_listing_is_interactive_first_then_managed_each_sorted_and_skips_what_is_no_row() {
    let f = Fixture::new();
    f.managed(&input(ALICE, "a_worker", "", "", "")).unwrap();
    f.interactive(&input(BOB, "cli", "", "", "")).unwrap();
    f.interactive(&input(ALICE, "web", "", "", "")).unwrap();
    fs::write(f.dir.path().join("actors").join(format!("{ALICE}.web.json.17.tmp")), "half").unwrap();
    let rows: Vec<_> = f.ledger.list().unwrap().into_iter().map(|t| (t.kind.as_str(), t.row.key())).collect();
    assert_eq!(
        rows,
        [
            ("interactive", format!("{ALICE}.web")),
            ("interactive", format!("{BOB}.cli")),
            ("managed-agent", format!("{ALICE}.a_worker")),
        ]
    );
}

#[test]
fn one_broken_row_fails_the_whole_listing_but_no_other_lookup() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "cli", "", "", "")).unwrap();
    f.plant(RowKind::Interactive, &format!("{BOB}.cli"), b"{}");
    broken(f.ledger.list());
    assert!(f.ledger.lookup(&owner(ALICE), &actor("cli")).unwrap().is_some());
}

#[test]
fn an_actor_that_no_file_can_be_named_after_is_refused_not_broken() {
    let f = Fixture::new();
    let long = "a".repeat(5000);
    refused(f.ledger.authorize_grant(&owner(ALICE), &actor(&long)), "too long");
    refused(f.interactive(&input(ALICE, &long, "", "", "")), "too long");
    refused(f.ledger.authorize_agent_exchange(&owner(ALICE), &actor(&long), "x"), AGENT_EXCHANGE_REFUSAL);
}

trait ReadKind {
    fn read(&self, kind: RowKind, owner: &str, actor: &str) -> Result<Option<ActorRow>, LedgerError>;
}

impl ReadKind for Ledger {
    fn read(&self, kind: RowKind, of: &str, name: &str) -> Result<Option<ActorRow>, LedgerError> {
        match kind {
            RowKind::Interactive => self.read_interactive(&owner(of), &actor(name)),
            RowKind::ManagedAgent => self.read_managed(&owner(of), &actor(name)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_in_a_row_file_never_authorise(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let f = Fixture::new();
        for kind in RowKind::ALL {
            f.plant(kind, &format!("{ALICE}.cli"), &bytes);
            prop_assert!(f.ledger.read(kind, ALICE, "cli").is_err());
        }
        prop_assert!(f.ledger.authorize_grant(&owner(ALICE), &actor("cli")).is_err());
        prop_assert!(f.ledger.authorize_agent_exchange(&owner(ALICE), &actor("cli"), "").is_err());
        prop_assert!(f.ledger.authorize_connect(&claims(ALICE, "cli", &[], Some(UID))).is_err());
        prop_assert!(f.ledger.resolve_acl(&claims(ALICE, "cli", &[], Some(UID))).is_err());
    }
}
