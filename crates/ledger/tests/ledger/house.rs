//! A ledger in a directory of its own, and what is granted in it.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use cotal_ledger::{ActorRow, GrantInput, Ledger, LedgerError, RowKind, mint_agent_secret};
use cotal_wire::{
    Act, Actor, BearerClaims, Clock, DerivedOwner, Entropy, LifecycleUid, Space, UnixMillis, UnixSecs,
};

pub(crate) const ALICE: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
pub(crate) const BOB: &str = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb";
pub(crate) const UID: &str = "00000000000000000000000001";
pub(crate) const OTHER_UID: &str = "00000000000000000000000002";

pub(crate) struct At(u64);

impl Clock for At {
    fn now_millis(&self) -> UnixMillis {
        UnixMillis(self.0)
    }
}

/// Distinct bytes at every call; nothing here needs to be unguessable.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Entropy for Counter {
    fn fill(&self, bytes: &mut [u8]) {
        let n = self.0.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = n[i % 8] ^ u8::try_from(i).unwrap();
        }
    }
}

pub(crate) const NOW: At = At(1_767_323_045_006);

pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) ledger: Ledger,
    pub(crate) entropy: Counter,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(dir.path());
        Self { dir, ledger, entropy: Counter::default() }
    }

    pub(crate) fn path(&self, kind: RowKind, key: &str) -> PathBuf {
        self.dir.path().join(kind.dir_name()).join(format!("{key}.json"))
    }

    /// Puts bytes where a row would lie, past every check of the writer.
    pub(crate) fn plant(&self, kind: RowKind, key: &str, bytes: &[u8]) {
        let path = self.path(kind, key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub(crate) fn interactive(&self, input: &GrantInput) -> Result<ActorRow, LedgerError> {
        self.ledger.grant_interactive(input, &NOW, &self.entropy)
    }

    /// Grants a managed row and returns its secret.
    pub(crate) fn managed(&self, input: &GrantInput) -> Result<zeroize::Zeroizing<String>, LedgerError> {
        let (secret, hash) = mint_agent_secret(&self.entropy);
        self.ledger.grant_managed(input, &hash, &NOW).map(|_| secret)
    }
}

pub(crate) fn owner(s: &str) -> DerivedOwner {
    DerivedOwner::parse(s).unwrap()
}

pub(crate) fn actor(s: &str) -> Actor {
    Actor::parse(s).unwrap()
}

pub(crate) fn uid(s: &str) -> LifecycleUid {
    LifecycleUid::parse(s).unwrap()
}

pub(crate) fn strings(csv: &str) -> Vec<String> {
    csv.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

pub(crate) fn input(of: &str, name: &str, scope: &str, read: &str, post: &str) -> GrantInput {
    GrantInput::new(owner(of), actor(name))
        .scope(strings(scope))
        .allow_subscribe(strings(read))
        .allow_publish(strings(post))
        .lifecycle_uid(uid(UID))
}

pub(crate) fn child(of: &str, name: &str, parent: &str, scope: &str, read: &str, post: &str) -> GrantInput {
    GrantInput { parent: Some(parent.to_owned()), ..input(of, name, scope, read, post) }
}

pub(crate) fn claims(of: &str, name: &str, scope: &[&str], lifecycle: Option<&str>) -> BearerClaims {
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
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, LedgerError>, part: &str) {
    match result {
        Err(LedgerError::Refused(sentence)) => assert!(sentence.contains(part), "{sentence}"),
        other => panic!("wanted a refusal with {part:?}, got {other:?}"),
    }
}

#[track_caller]
pub(crate) fn broken<T: std::fmt::Debug>(result: Result<T, LedgerError>) {
    match result {
        Err(LedgerError::Broken(_)) => {}
        other => panic!("wanted a broken ledger, got {other:?}"),
    }
}

pub(crate) fn plain_row(name: &str) -> ActorRow {
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
