//! Grants, re-grants and revocations, and the line of a re-grant.

use std::{fs, sync::Barrier};

use cotal_ledger::{
    AGENT_EXCHANGE_REFUSAL, ActorRow, GrantInput, LedgerError, hash_agent_secret, regrant_command,
    shell_quote,
};
use cotal_wire::{LifecycleUid, Sha256Hex};
use proptest::prelude::*;

use crate::house::{
    ALICE, Fixture, NOW, OTHER_UID, UID, actor, child, input, owner, plain_row, refused, strings, uid,
};

#[test]
fn a_grant_refuses_each_bad_input_and_writes_nothing() {
    let good = || input(ALICE, "cli", "spawn", "a.>", "a.b");
    let cases: Vec<(&str, GrantInput)> = vec![
        ("parent", GrantInput { parent: Some("cli".into()), ..good() }),
        ("parent", GrantInput { parent: Some(format!("{ALICE}.a.b")), ..good() }),
        ("parent", GrantInput { parent: Some("local.boss".into()), ..good() }),
        ("read entry", GrantInput { allow_subscribe: strings("a,b..c"), ..good() }),
        ("read entry", GrantInput { allow_subscribe: vec![String::new()], ..good() }),
        ("post entry", GrantInput { allow_publish: strings("a.>.b"), ..good() }),
        ("post entry", GrantInput { allow_publish: strings("a b"), ..good() }),
        ("scope entry", GrantInput { scope: strings("spawn,role.x"), ..good() }),
        ("scope entry", GrantInput { scope: vec![String::new()], ..good() }),
        ("role", GrantInput { role: Some("a.b".into()), ..good() }),
        ("role", GrantInput { role: Some(String::new()), ..good() }),
    ];
    for (part, bad) in cases {
        let f = Fixture::new();
        refused(f.interactive(&bad), part);
        refused(f.managed(&bad), part);
        assert_eq!(fs::read_dir(f.dir.path()).unwrap().count(), 0, "{part}");
    }
}

#[test]
fn grant_checks_come_in_the_order_of_the_contract() {
    // Interactive: input, then the managed space.
    let f = Fixture::new();
    f.managed(&input(ALICE, "w", "", "", "")).unwrap();
    let mut bad = input(ALICE, "w", "a.b", "..", "");
    bad.parent = Some("x".into());
    bad.role = Some(".".into());
    refused(f.interactive(&bad), "parent");
    bad.parent = None;
    refused(f.interactive(&bad), "read entry");
    bad.allow_subscribe.clear();
    refused(f.interactive(&bad), "scope entry");
    bad.scope.clear();
    refused(f.interactive(&bad), "role");
    bad.role = None;
    refused(f.interactive(&bad), "is a managed agent");

    // Managed: input, hash, envelope, shadow, uid.
    let f = Fixture::new();
    f.interactive(&input(ALICE, "w", "", "", "")).unwrap();
    let mut bad = child(ALICE, "w", &format!("{ALICE}.boss"), "a.b", "", "");
    bad.lifecycle_uid = None;
    refused(f.ledger.grant_managed(&bad, "no hash", &NOW), "scope entry");
    bad.scope.clear();
    refused(f.ledger.grant_managed(&bad, "no hash", &NOW), "hash");
    let hash = hash_agent_secret("s");
    refused(f.ledger.grant_managed(&bad, &hash, &NOW), "revoked or never granted");
    f.interactive(&input(ALICE, "boss", "", "", "")).unwrap();
    refused(f.ledger.grant_managed(&bad, &hash, &NOW), "would shadow");
    f.ledger.revoke_interactive(&owner(ALICE), &actor("w")).unwrap();
    refused(f.ledger.grant_managed(&bad, &hash, &NOW), "lifecycle uid");
    bad.lifecycle_uid = Some(uid(UID));
    f.ledger.grant_managed(&bad, &hash, &NOW).unwrap();
}

#[test]
fn a_regrant_replaces_the_whole_row_and_rotates_the_incarnation() {
    let f = Fixture::new();
    let mut first = input(ALICE, "cli", "spawn", ">", ">");
    first.label = Some("Alice".into());
    first.lifecycle_uid = None;
    let first = f.interactive(&first).unwrap();
    let mut second = input(ALICE, "cli", "", "a", "");
    second.lifecycle_uid = None;
    let second = f.interactive(&second).unwrap();
    assert_ne!(first.lifecycle_uid, second.lifecycle_uid);
    assert_eq!(f.ledger.read_interactive(&owner(ALICE), &actor("cli")).unwrap(), Some(second.clone()));
    assert_eq!((second.label, second.scope), (None, vec![]));
}

#[test]
fn a_managed_regrant_rotates_the_secret() {
    let f = Fixture::new();
    let old = f.managed(&input(ALICE, "w", "", "", "")).unwrap();
    let new = f.managed(&input(ALICE, "w", "", "", "")).unwrap();
    refused(f.ledger.authorize_agent_exchange(&owner(ALICE), &actor("w"), &old), AGENT_EXCHANGE_REFUSAL);
    f.ledger.authorize_agent_exchange(&owner(ALICE), &actor("w"), &new).unwrap();
}

#[test]
fn revoking_removes_the_row_once() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "cli", "", "", "")).unwrap();
    f.managed(&input(ALICE, "w", "", "", "")).unwrap();
    assert!(!f.ledger.revoke_interactive(&owner(ALICE), &actor("w")).unwrap());
    assert!(f.ledger.revoke_interactive(&owner(ALICE), &actor("cli")).unwrap());
    assert!(!f.ledger.revoke_interactive(&owner(ALICE), &actor("cli")).unwrap());
    assert!(f.ledger.revoke_managed(&owner(ALICE), &actor("w")).unwrap());
    assert!(f.ledger.list().unwrap().is_empty());
}

#[test]
fn racing_grants_of_both_kinds_leave_at_most_one_row() {
    let f = Fixture::new();
    for round in 0..40 {
        let name = format!("actor_{round}");
        let start = Barrier::new(4);
        let kept: usize = std::thread::scope(|scope| {
            let grants: Vec<_> = (0..4)
                .map(|i| {
                    let (f, start, name) = (&f, &start, &name);
                    scope.spawn(move || {
                        let input = GrantInput {
                            lifecycle_uid: Some(LifecycleUid::mint(&f.entropy)),
                            ..input(ALICE, name, "", "", "")
                        };
                        start.wait();
                        if i % 2 == 0 { f.interactive(&input).is_ok() } else { f.managed(&input).is_ok() }
                    })
                })
                .collect();
            grants.into_iter().map(|grant| usize::from(grant.join().unwrap())).sum()
        });
        // The listing fails on a principal that is in both spaces.
        let rows = f.ledger.list().unwrap().into_iter().filter(|t| t.row.actor.as_str() == name).count();
        assert!(rows <= 1 && (rows == 0 || kept >= 1), "round {round}: {rows} rows, {kept} grants reported");
    }
}

#[test]
fn a_row_that_was_changed_since_it_was_read_is_neither_rotated_nor_deleted() {
    let f = Fixture::new();
    let rotate = |expected: Option<&ActorRow>| {
        let next = if expected.is_some() { "b" } else { "a" };
        let lifecycle_uid = Some(uid(&next.repeat(26)));
        let grant = GrantInput { lifecycle_uid, ..input(ALICE, "cli", "", "general", "general") };
        f.ledger.rotate_interactive(expected, &grant, &NOW, &f.entropy)
    };
    let changed = |refused: LedgerError| {
        assert!(refused.to_string().contains("changed by somebody else"), "{refused}");
    };
    let first = rotate(None).unwrap();
    changed(rotate(None).unwrap_err());
    let second = rotate(Some(&first)).unwrap();
    assert_ne!(first.lifecycle_uid, second.lifecycle_uid);
    changed(rotate(Some(&first)).unwrap_err());
    changed(f.ledger.revoke_expected_interactive(&first).unwrap_err());
    assert_eq!(f.ledger.read_interactive(&first.owner, &first.actor).unwrap(), Some(second.clone()));
    f.ledger.revoke_expected_interactive(&second).unwrap();
    changed(f.ledger.revoke_expected_interactive(&second).unwrap_err());
    changed(rotate(Some(&second)).unwrap_err());
}

#[test]
fn a_managed_row_is_revoked_at_its_own_incarnation_alone() {
    let f = Fixture::new();
    f.managed(&input(ALICE, "w", "", "a", "b")).unwrap();
    let revoke = |at: &str| f.ledger.revoke_managed_at(&owner(ALICE), &actor("w"), &uid(at)).unwrap();
    assert!(!revoke(OTHER_UID), "a row of another incarnation is somebody else's");
    assert!(f.ledger.read_managed(&owner(ALICE), &actor("w")).unwrap().is_some());
    assert!(revoke(UID));
    assert!(!revoke(UID), "a second one finds nothing");
}

#[test]
fn a_managed_grant_that_is_only_checked_writes_nothing() {
    let f = Fixture::new();
    let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let parent = format!("{ALICE}.cli");
    f.interactive(&input(ALICE, "cli", "", "a", "b")).unwrap();
    let checked = f.ledger.check_managed(&child(ALICE, "w", &parent, "", "a", "b"), hash, &NOW).unwrap();
    assert!(checked.holds_secret_of(&Sha256Hex::parse(hash).unwrap()));
    assert!(!checked.holds_secret_of(&Sha256Hex::parse(&"0".repeat(64)).unwrap()));
    refused(f.ledger.check_managed(&child(ALICE, "w", &parent, "", "a,z", "b"), hash, &NOW), "holds more");
    assert_eq!(f.ledger.read_managed(&owner(ALICE), &actor("w")).unwrap(), None);
}

#[test]
fn a_regrant_line_names_the_whole_row_and_an_empty_scope() {
    assert_eq!(
        regrant_command(&plain_row("cli")),
        format!("cotal actor grant cli --owner {ALICE} --scope '' --allow-subscribe '' --allow-publish ''")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_quoted_value_is_one_word_of_a_posix_shell(value in "[^\\x00]{0,40}") {
        let echoed = std::process::Command::new("sh")
            .args(["-c", &format!("printf %s {}", shell_quote(&value))])
            .output()
            .unwrap();
        prop_assert_eq!(String::from_utf8(echoed.stdout).unwrap(), value);
    }
}
