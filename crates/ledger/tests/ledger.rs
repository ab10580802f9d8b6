//! The ledger against a real directory: reads, grants, the envelope and the hooks (contract 04 §7).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
};

use cotal_ledger::{
    AGENT_EXCHANGE_REFUSAL, ActorRow, Boundary, GrantInput, Ledger, LedgerError, RowKind, hash_agent_secret,
    mint_agent_secret, regrant_command, shell_quote,
};
use cotal_wire::{
    Act, Actor, BearerClaims, Clock, DerivedOwner, Entropy, LifecycleUid, Sha256Hex, Space, UnixMillis,
    UnixSecs,
};
use proptest::prelude::*;

const ALICE: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const BOB: &str = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb";
const UID: &str = "00000000000000000000000001";
const OTHER_UID: &str = "00000000000000000000000002";

struct At(u64);

impl Clock for At {
    fn now_millis(&self) -> UnixMillis {
        UnixMillis(self.0)
    }
}

/// Distinct bytes at every call; nothing here needs to be unguessable.
#[derive(Default)]
struct Counter(AtomicU64);

impl Entropy for Counter {
    fn fill(&self, bytes: &mut [u8]) {
        let n = self.0.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = n[i % 8] ^ u8::try_from(i).unwrap();
        }
    }
}

const NOW: At = At(1_767_323_045_006);

struct Fixture {
    dir: tempfile::TempDir,
    ledger: Ledger,
    entropy: Counter,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(dir.path());
        Self { dir, ledger, entropy: Counter::default() }
    }

    fn path(&self, kind: RowKind, key: &str) -> PathBuf {
        self.dir.path().join(kind.dir_name()).join(format!("{key}.json"))
    }

    /// Puts bytes where a row would lie, past every check of the writer.
    fn plant(&self, kind: RowKind, key: &str, bytes: &[u8]) {
        let path = self.path(kind, key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn interactive(&self, input: &GrantInput) -> Result<ActorRow, LedgerError> {
        self.ledger.grant_interactive(input, &NOW, &self.entropy)
    }

    /// Grants a managed row and returns its secret.
    fn managed(&self, input: &GrantInput) -> Result<zeroize::Zeroizing<String>, LedgerError> {
        let (secret, hash) = mint_agent_secret(&self.entropy);
        self.ledger.grant_managed(input, &hash, &NOW).map(|_| secret)
    }
}

fn owner(s: &str) -> DerivedOwner {
    DerivedOwner::parse(s).unwrap()
}

fn actor(s: &str) -> Actor {
    Actor::parse(s).unwrap()
}

fn uid(s: &str) -> LifecycleUid {
    LifecycleUid::parse(s).unwrap()
}

fn strings(csv: &str) -> Vec<String> {
    csv.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

fn input(of: &str, name: &str, scope: &str, read: &str, post: &str) -> GrantInput {
    GrantInput {
        owner: owner(of),
        actor: actor(name),
        scope: strings(scope),
        allow_subscribe: strings(read),
        allow_publish: strings(post),
        role: None,
        label: None,
        parent: None,
        lifecycle_uid: Some(uid(UID)),
    }
}

fn child(of: &str, name: &str, parent: &str, scope: &str, read: &str, post: &str) -> GrantInput {
    GrantInput { parent: Some(parent.to_owned()), ..input(of, name, scope, read, post) }
}

fn claims(of: &str, name: &str, scope: &[&str], lifecycle: Option<&str>) -> BearerClaims {
    BearerClaims {
        owner: owner(of),
        space: Space::parse("demo").unwrap(),
        act: Act {
            owner: owner(of),
            actor: actor(name),
            scope: Some(scope.iter().map(|s| (*s).to_owned()).collect()),
            parent: None,
            lifecycle_uid: lifecycle.map(uid),
            credential_id: None,
            view: None,
            manager_instance_id: None,
            session: None,
            transfer_writer: None,
        },
        scope: Vec::new(),
        exp: UnixSecs(0),
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, LedgerError>, part: &str) {
    match result {
        Err(LedgerError::Refused(sentence)) => assert!(sentence.contains(part), "{sentence}"),
        other => panic!("wanted a refusal with {part:?}, got {other:?}"),
    }
}

#[track_caller]
fn broken<T: std::fmt::Debug>(result: Result<T, LedgerError>) {
    match result {
        Err(LedgerError::Broken(_)) => {}
        other => panic!("wanted a broken ledger, got {other:?}"),
    }
}

fn fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

// --- reading -------------------------------------------------------------------------------------------------------

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

// --- granting ------------------------------------------------------------------------------------------------------

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

// --- the envelope --------------------------------------------------------------------------------------------------

#[test]
fn a_child_may_hold_what_its_parent_holds_and_nothing_more() {
    let boss = format!("{ALICE}.boss");
    let cases = [
        ("spawn", "team.a", "team.a.x", Ok(())),
        ("", "", "", Ok(())),
        ("spawn,run", "team.a", "", Err("scope [\"run\"]")),
        ("supervise", "", "", Err("scope [\"supervise\"]")),
        ("", "team.>", "", Err("read [\"team.>\"]")),
        ("", "team.*", "", Ok(())),
        ("", "other", "", Err("read [\"other\"]")),
        ("", "", "team.b", Err("post [\"team.b\"]")),
        ("", "", "team.a", Err("post [\"team.a\"]")),
        ("run", "other", "other", Err("scope [\"run\"]; read [\"other\"]; post [\"other\"]")),
    ];
    for (scope, read, post, expected) in cases {
        let f = Fixture::new();
        f.interactive(&input(ALICE, "boss", "spawn,role:default", "team.*,log", "team.a.>")).unwrap();
        let outcome = f.managed(&child(ALICE, "w", &boss, scope, read, post)).map(|_| ());
        match expected {
            Ok(()) => outcome.unwrap(),
            Err(part) => refused(outcome, part),
        }
    }
}

#[test]
fn a_role_needs_the_parents_role_capability() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "boss", "role:default", "", "")).unwrap();
    let with_role = |role: &str| GrantInput {
        role: Some(role.into()),
        ..child(ALICE, "w", &format!("{ALICE}.boss"), "", "", "")
    };
    f.managed(&with_role("default")).unwrap();
    refused(f.managed(&with_role("other")), "scope [\"role:other\"]");
}

#[test]
fn a_refused_excess_prints_the_command_that_widens_the_parent_by_it() {
    let f = Fixture::new();
    let mut boss = input(ALICE, "boss", "spawn", "a", "");
    boss.label = Some("it's mine".into());
    boss.role = Some("lead".into());
    f.interactive(&boss).unwrap();
    let mut w = child(ALICE, "w", &format!("{ALICE}.boss"), "run", "b.>", "c");
    w.role = Some("worker".into());
    refused(
        f.managed(&w),
        &format!(
            "Widen the parent with: cotal actor grant boss --owner {ALICE} --scope 'spawn,run,role:worker' \
             --allow-subscribe 'a,b.>' --allow-publish 'c' --role 'lead' --label 'it'\\''s mine'"
        ),
    );
}

#[test]
fn an_admin_parent_accepts_everything_whoever_owns_it_and_ends_the_walk() {
    let f = Fixture::new();
    // The admin's own parent does not exist, and is never looked at.
    let mut admin = input(BOB, "root", "admin", "", "");
    admin.parent = Some(format!("{BOB}.gone"));
    f.interactive(&admin).unwrap();
    f.managed(&child(ALICE, "w", &format!("{BOB}.root"), "run,supervise", ">", ">")).unwrap();
}

#[test]
fn a_parent_of_another_owner_that_is_no_admin_refuses() {
    let f = Fixture::new();
    f.interactive(&input(BOB, "boss", "spawn", ">", ">")).unwrap();
    refused(f.managed(&child(ALICE, "w", &format!("{BOB}.boss"), "", "", "")), "another owner");
}

#[test]
fn a_cycle_is_refused_and_any_other_depth_is_walked() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "p0", "spawn", ">", ">")).unwrap();
    for i in 1..60 {
        let parent = format!("{ALICE}.p{}", i - 1);
        f.managed(&child(ALICE, &format!("p{i}"), &parent, "spawn", ">", ">")).unwrap();
    }
    refused(
        f.managed(&child(ALICE, "self", &format!("{ALICE}.self"), "", "", "")),
        "parent chain returns to",
    );
    // The root of the chain becomes a child of its last link.
    f.ledger.revoke_interactive(&owner(ALICE), &actor("p0")).unwrap();
    refused(
        f.managed(&child(ALICE, "p0", &format!("{ALICE}.p59"), "spawn", ">", ">")),
        "parent chain returns to",
    );
}

#[test]
fn the_whole_chain_is_walked_at_every_exchange() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "boss", "spawn,run", ">", ">")).unwrap();
    f.managed(&child(ALICE, "mid", &format!("{ALICE}.boss"), "spawn,run", ">", ">")).unwrap();
    let secret = f.managed(&child(ALICE, "leaf", &format!("{ALICE}.mid"), "run", "a", "a")).unwrap();
    let exchange = || f.ledger.authorize_agent_exchange(&owner(ALICE), &actor("leaf"), &secret);
    exchange().unwrap();
    // The leaf is within its parent still; its parent is no longer within the root.
    f.interactive(&input(ALICE, "boss", "spawn", ">", ">")).unwrap();
    refused(exchange(), "mid holds more than its parent");
    f.ledger.revoke_interactive(&owner(ALICE), &actor("boss")).unwrap();
    refused(exchange(), "revoked or never granted");
    f.plant(RowKind::Interactive, &format!("{ALICE}.boss"), b"{}");
    broken(exchange());
}

#[test]
fn a_managed_parents_remedy_is_to_spawn_it_again() {
    let f = Fixture::new();
    f.managed(&input(ALICE, "mid", "", "", "")).unwrap();
    refused(
        f.managed(&child(ALICE, "w", &format!("{ALICE}.mid"), "run", "", "")),
        "Spawn u_aaaaaaaaaaaaaaaaaaaaaaaaaa.mid again",
    );
}

#[test]
fn a_missing_parent_is_refused_before_its_owner_is_compared_and_a_cycle_before_that() {
    let f = Fixture::new();
    refused(f.managed(&child(ALICE, "w", &format!("{BOB}.gone"), "", "", "")), "revoked or never granted");
    // Both the own key and a missing row: the cycle is told.
    let row = ActorRow { parent: Some(format!("{ALICE}.w")), ..plain_row("w") };
    refused(f.ledger.assert_within_spawner_grant(&row, Boundary::Exchange), "refusing the exchange of");
}

fn plain_row(name: &str) -> ActorRow {
    ActorRow {
        owner: owner(ALICE),
        actor: actor(name),
        scope: vec![],
        allow_subscribe: vec![],
        allow_publish: vec![],
        role: None,
        parent: None,
        label: None,
        token_hash: None,
        lifecycle_uid: None,
        granted_at: None,
    }
}

// --- the hooks -----------------------------------------------------------------------------------------------------

#[test]
fn a_person_mints_only_for_an_interactive_row_with_an_incarnation() {
    let f = Fixture::new();
    refused(
        f.ledger.authorize_grant(&owner(ALICE), &actor("cli")),
        &format!("cotal actor grant cli --owner {ALICE}"),
    );
    f.managed(&input(ALICE, "w", "", "", "")).unwrap();
    refused(f.ledger.authorize_grant(&owner(ALICE), &actor("w")), "is a managed agent");
    let mut granted = child(ALICE, "cli", &format!("{BOB}.boss"), "spawn", "a", "b");
    granted.role = Some("default".into());
    granted.label = Some("Alice".into());
    f.interactive(&granted).unwrap();
    let grant = f.ledger.authorize_grant(&owner(ALICE), &actor("cli")).unwrap();
    assert_eq!(grant.lifecycle_uid.as_str(), UID);
    assert_eq!(grant.parent.as_ref().unwrap().key(), format!("{BOB}.boss"));
    assert_eq!((grant.role.as_deref(), grant.label.as_deref()), (Some("default"), Some("Alice")));
    assert_eq!(
        grant.regrant_command_with("admin"),
        format!(
            "cotal actor grant cli --owner {ALICE} --scope 'spawn,admin' --allow-subscribe 'a' --allow-publish 'b' \
             --role 'default' --label 'Alice'"
        )
    );
}

#[test]
fn a_row_from_before_incarnations_neither_mints_nor_connects() {
    let f = Fixture::new();
    let old = format!(
        r#"{{"ver":1,"owner":"{ALICE}","actor":"cli","scope":[],"allowSubscribe":[],"allowPublish":[],"grantedAt":""}}"#
    );
    f.plant(RowKind::Interactive, &format!("{ALICE}.cli"), old.as_bytes());
    refused(f.ledger.authorize_grant(&owner(ALICE), &actor("cli")), "no lifecycle uid");
    refused(f.ledger.authorize_connect(&claims(ALICE, "cli", &[], Some(UID))), "another incarnation");
    refused(f.ledger.resolve_acl(&claims(ALICE, "cli", &[], Some(UID))), "row of");
}

#[test]
fn every_unauthenticated_agent_refusal_is_one_sentence() {
    let f = Fixture::new();
    let secret = f.managed(&input(ALICE, "w", "", "", "")).unwrap();
    f.interactive(&input(ALICE, "cli", "", "", "")).unwrap();
    f.plant(RowKind::ManagedAgent, &format!("{ALICE}.broken"), b"{}");
    let hashless = format!(
        r#"{{"ver":1,"owner":"{ALICE}","actor":"h","scope":[],"allowSubscribe":[],"allowPublish":[],"grantedAt":""}}"#
    );
    f.plant(RowKind::ManagedAgent, &format!("{ALICE}.h"), hashless.as_bytes());
    let wrong = format!("{}x", &secret[..42]);
    let hash = hash_agent_secret(&secret);
    let cases = [
        (ALICE, "absent", secret.as_str()),
        (BOB, "w", &secret),
        (ALICE, "cli", &secret),
        (ALICE, "broken", &secret),
        (ALICE, "h", &secret),
        (ALICE, "w", ""),
        (ALICE, "w", &wrong),
        (ALICE, "w", &hash),
    ];
    for (of, name, token) in cases {
        let outcome = f.ledger.authorize_agent_exchange(&owner(of), &actor(name), token).map(|_| ());
        assert_eq!(outcome, Err(LedgerError::Refused(AGENT_EXCHANGE_REFUSAL.to_owned())), "{name}");
    }
    assert_eq!(
        f.ledger
            .authorize_agent_exchange(&owner(ALICE), &actor("w"), &secret)
            .unwrap()
            .lifecycle_uid
            .as_str(),
        UID
    );
}

#[test]
fn an_agents_secret_is_checked_before_its_envelope() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "boss", "run", "", "")).unwrap();
    let secret = f.managed(&child(ALICE, "w", &format!("{ALICE}.boss"), "run", "", "")).unwrap();
    f.ledger.revoke_interactive(&owner(ALICE), &actor("boss")).unwrap();
    refused(f.ledger.authorize_agent_exchange(&owner(ALICE), &actor("w"), "wrong"), AGENT_EXCHANGE_REFUSAL);
    refused(
        f.ledger.authorize_agent_exchange(&owner(ALICE), &actor("w"), &secret),
        "revoked or never granted",
    );
}

#[test]
fn a_connect_is_denied_in_the_order_row_scope_incarnation() {
    let f = Fixture::new();
    let connect = |scope: &[&str], uid| f.ledger.authorize_connect(&claims(ALICE, "cli", scope, uid));
    refused(connect(&["admin"], None), "no row in the ledger");
    f.interactive(&input(ALICE, "cli", "spawn,run", "", "")).unwrap();
    refused(connect(&["spawn", "admin"], None), "scope \"admin\"");
    refused(connect(&["spawn"], None), "names no lifecycle uid");
    refused(connect(&["spawn"], Some(OTHER_UID)), "another incarnation");
    connect(&["run", "spawn"], Some(UID)).unwrap();
    connect(&[], Some(UID)).unwrap();
    f.ledger.revoke_interactive(&owner(ALICE), &actor("cli")).unwrap();
    refused(connect(&[], Some(UID)), "no row in the ledger");
}

#[test]
fn permissions_come_from_the_current_row() {
    let f = Fixture::new();
    let acl = |name: &str, uid| f.ledger.resolve_acl(&claims(ALICE, name, &[], uid));
    refused(acl("cli", Some(UID)), "no row in the ledger");
    f.interactive(&input(ALICE, "cli", "spawn", "a", "b")).unwrap();
    refused(acl("cli", None), "names no lifecycle uid");
    refused(acl("cli", Some(OTHER_UID)), "another incarnation");
    let now = acl("cli", Some(UID)).unwrap();
    assert_eq!((now.kind, now.parent_has_run), (RowKind::Interactive, false));
    assert_eq!(
        (now.scope, now.allow_subscribe, now.allow_publish),
        (strings("spawn"), strings("a"), strings("b"))
    );
}

#[test]
fn only_a_direct_parent_with_run_by_name_has_run() {
    let f = Fixture::new();
    for (name, scope, expected) in
        [("runner", "spawn,run", true), ("admin", "admin", false), ("plain", "spawn", false)]
    {
        f.interactive(&input(ALICE, name, scope, ">", ">")).unwrap();
        f.managed(&child(ALICE, &format!("of_{name}"), &format!("{ALICE}.{name}"), "", "", "")).unwrap();
        let of = format!("of_{name}");
        let acl = || f.ledger.resolve_acl(&claims(ALICE, &of, &[], Some(UID)));
        assert_eq!(acl().unwrap().parent_has_run, expected, "{name}");
        f.ledger.revoke_interactive(&owner(ALICE), &actor(name)).unwrap();
        assert!(!acl().unwrap().parent_has_run);
        f.plant(RowKind::Interactive, &format!("{ALICE}.{name}"), b"{}");
        broken(acl());
    }
}

#[test]
fn scope_and_liveness_are_read_from_either_space() {
    let f = Fixture::new();
    f.managed(&input(ALICE, "w", "", "a", "b")).unwrap();
    f.interactive(&input(ALICE, "cli", "spawn", "a", "b")).unwrap();
    assert_eq!(f.ledger.scope_of(&owner(ALICE), &actor("cli")).unwrap(), Some(strings("spawn")));
    assert_eq!(f.ledger.scope_of(&owner(ALICE), &actor("w")).unwrap(), Some(vec![]));
    assert_eq!(f.ledger.scope_of(&owner(BOB), &actor("w")).unwrap(), None);
    assert!(f.ledger.is_live(&owner(ALICE), &actor("w"), &uid(UID)).unwrap());
    assert!(!f.ledger.is_live(&owner(ALICE), &actor("w"), &uid(OTHER_UID)).unwrap());
    assert!(!f.ledger.is_live(&owner(BOB), &actor("w"), &uid(UID)).unwrap());
}

// --- the re-grant line ---------------------------------------------------------------------------------------------

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
