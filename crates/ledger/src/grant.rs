//! Writing and removing rows (contract 04 §7.5, §7.6).
//!
//! A principal has a row in one space only. Without a lock, two grants that race check the other space before they
//! write and again after: whoever then sees the other takes its own row back. Both may lose; never do both stay.

use cotal_wire::{
    Actor, Clock, DerivedOwner, Entropy, LifecycleUid, Role, ScopeEntry, Sha256Hex, UnixMillis,
    channel::ChannelPattern,
};
use cotal_workspace::file;

use crate::{
    Ledger, LedgerError,
    envelope::{Boundary, split_parent},
    read::unreadable,
    row::{ActorRow, RowKind},
};

/// What an operator grants.
#[derive(Debug, Clone)]
pub struct GrantInput {
    /// Owner.
    pub owner: DerivedOwner,
    /// Actor.
    pub actor: Actor,
    /// Capabilities.
    pub scope: Vec<String>,
    /// Channel patterns it may read.
    pub allow_subscribe: Vec<String>,
    /// Channel patterns it may post to.
    pub allow_publish: Vec<String>,
    /// Role.
    pub role: Option<String>,
    /// Label.
    pub label: Option<String>,
    /// Parent.
    pub parent: Option<String>,
    /// Given, or freshly minted for an interactive row; required for a managed one.
    pub lifecycle_uid: Option<LifecycleUid>,
}

impl Ledger {
    /// Grants an interactive row (contract 04 §7.5). It replaces the whole row and, unless the uid is given, begins a
    /// new incarnation. It is not attenuated: the operator is the authority, and a parent is an audit link.
    pub fn grant_interactive(
        &self,
        input: &GrantInput,
        clock: &dyn Clock,
        entropy: &dyn Entropy,
    ) -> Result<ActorRow, LedgerError> {
        self.check_interactive(input)?;
        let uid = input.lifecycle_uid.clone().unwrap_or_else(|| LifecycleUid::mint(entropy));
        let row = input.row(Some(&uid), None, clock)?;
        self.write(RowKind::Interactive, &row)?;
        self.keep_unless(RowKind::Interactive, &row, self.refuse_if_managed(&row.owner, &row.actor))
    }

    /// The same, over the row that was read and whose incarnation is over (contract 04 §13.1); refused when another one
    /// stands there meanwhile. The caller holds a lock that every other such change of the name takes too.
    pub fn rotate_interactive(
        &self,
        expected: Option<&ActorRow>,
        input: &GrantInput,
        clock: &dyn Clock,
        entropy: &dyn Entropy,
    ) -> Result<ActorRow, LedgerError> {
        self.require_unchanged(expected, &input.owner, &input.actor)?;
        self.grant_interactive(input, clock, entropy)
    }

    /// Whether an interactive grant of this input would be accepted now. Nothing is written.
    pub fn check_interactive(&self, input: &GrantInput) -> Result<(), LedgerError> {
        input.check()?;
        self.refuse_if_managed(&input.owner, &input.actor)
    }

    /// Grants a managed row (contract 04 §7.6), within the envelope of its parent. An upsert rotates the secret.
    pub fn grant_managed(
        &self,
        input: &GrantInput,
        token_hash: &str,
        clock: &dyn Clock,
    ) -> Result<ActorRow, LedgerError> {
        let row = self.check_managed(input, token_hash, clock)?;
        self.write(RowKind::ManagedAgent, &row)?;
        self.keep_unless(RowKind::ManagedAgent, &row, self.refuse_if_interactive(&row.owner, &row.actor))
    }

    /// The row that a managed grant of this input would write now, or its refusal. Nothing is written.
    pub fn check_managed(
        &self,
        input: &GrantInput,
        token_hash: &str,
        clock: &dyn Clock,
    ) -> Result<ActorRow, LedgerError> {
        input.check()?;
        let hash =
            Sha256Hex::parse(token_hash).map_err(|e| refused(&format!("the agent secret's hash is {e}")))?;
        let row = input.row(input.lifecycle_uid.as_ref(), Some(&hash), clock)?;
        self.assert_within_spawner_grant(&row, Boundary::Spawn)?;
        self.refuse_if_interactive(&input.owner, &input.actor)?;
        if row.lifecycle_uid.is_none() {
            return Err(refused(&format!(
                "a managed grant of {} needs the lifecycle uid of its launch",
                row.key()
            )));
        }
        Ok(row)
    }

    /// Deletes an interactive row; `false` when absent.
    pub fn revoke_interactive(&self, owner: &DerivedOwner, actor: &Actor) -> Result<bool, LedgerError> {
        self.remove(RowKind::Interactive, owner, actor)
    }

    /// Deletes the interactive row that was read and whose incarnation is over, by the rules of
    /// [`Self::rotate_interactive`].
    pub fn revoke_expected_interactive(&self, expected: &ActorRow) -> Result<(), LedgerError> {
        self.require_unchanged(Some(expected), &expected.owner, &expected.actor)?;
        self.revoke_interactive(&expected.owner, &expected.actor).map(drop)
    }

    /// Deletes a managed row; `false` when absent.
    pub fn revoke_managed(&self, owner: &DerivedOwner, actor: &Actor) -> Result<bool, LedgerError> {
        self.remove(RowKind::ManagedAgent, owner, actor)
    }

    /// Deletes the managed row of this incarnation; `false` when the name has no row, or one of another incarnation,
    /// which stays. The caller holds the turn that every other writer of the name's managed row takes too.
    pub fn revoke_managed_at(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        uid: &LifecycleUid,
    ) -> Result<bool, LedgerError> {
        match self.read_managed(owner, actor)? {
            Some(row) if row.is_at(uid) => self.revoke_managed(owner, actor),
            Some(_) | None => Ok(false),
        }
    }

    fn require_unchanged(
        &self,
        expected: Option<&ActorRow>,
        owner: &DerivedOwner,
        actor: &Actor,
    ) -> Result<(), LedgerError> {
        if self.read_interactive(owner, actor)?.as_ref() == expected {
            return Ok(());
        }
        Err(refused(&format!(
            "the row of {owner}.{actor} was changed by somebody else meanwhile and stays as it is: look at `cotal actor \
             list`, then run the command again"
        )))
    }

    fn refuse_if_managed(&self, owner: &DerivedOwner, actor: &Actor) -> Result<(), LedgerError> {
        match self.read_managed(owner, actor)? {
            Some(row) => Err(refused(&format!(
                "{} is a managed agent: choose another actor name, or stop the agent first",
                row.key()
            ))),
            None => Ok(()),
        }
    }

    fn refuse_if_interactive(&self, owner: &DerivedOwner, actor: &Actor) -> Result<(), LedgerError> {
        match self.read_interactive(owner, actor)? {
            Some(row) => Err(refused(&format!(
                "{} is granted to a person: a managed agent of that name would shadow the grant; choose another \
                 actor name, or revoke the grant first",
                row.key()
            ))),
            None => Ok(()),
        }
    }

    /// Keeps the row that was just written, or takes it back when the other space is not known to be free.
    fn keep_unless(
        &self,
        kind: RowKind,
        row: &ActorRow,
        other_space: Result<(), LedgerError>,
    ) -> Result<ActorRow, LedgerError> {
        let Err(refusal) = other_space else { return Ok(row.clone()) };
        // A row of another incarnation is somebody else's later write, and not ours to take back.
        if self.read(kind, &row.owner, &row.actor)?.is_some_and(|now| now.lifecycle_uid == row.lifecycle_uid)
        {
            self.remove(kind, &row.owner, &row.actor)?;
        }
        Err(refusal)
    }

    fn write(&self, kind: RowKind, row: &ActorRow) -> Result<(), LedgerError> {
        let path = self.path(kind, &row.owner, &row.actor)?;
        let document = row.to_document(kind).map_err(|e| {
            LedgerError::Broken(format!("ledger: the row of {} cannot be encoded: {e}", row.key()))
        })?;
        if document.len() as u64 > file::MAX_FILE_BYTES {
            return Err(refused(&format!("the row of {} would be too long to be read back", row.key())));
        }
        file::ensure_private_dir(self.dir(kind)).map_err(|e| unreadable(self.dir(kind), &e))?;
        file::write_atomic(&path, &document).map_err(|e| unreadable(&path, &e))
    }

    fn remove(&self, kind: RowKind, owner: &DerivedOwner, actor: &Actor) -> Result<bool, LedgerError> {
        let path = self.path(kind, owner, actor)?;
        file::remove_if_present(&path).map_err(|e| unreadable(&path, &e))
    }
}

impl GrantInput {
    /// A grant of nothing yet, to nobody's child. What it is to hold is added, and checked where it is granted.
    #[must_use]
    pub const fn new(owner: DerivedOwner, actor: Actor) -> Self {
        Self {
            owner,
            actor,
            scope: Vec::new(),
            allow_subscribe: Vec::new(),
            allow_publish: Vec::new(),
            role: None,
            label: None,
            parent: None,
            lifecycle_uid: None,
        }
    }

    /// These capabilities, and no others.
    #[must_use]
    pub fn scope(self, entries: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self { scope: texts(entries), ..self }
    }

    /// It may read these channel patterns, and no others.
    #[must_use]
    pub fn allow_subscribe(self, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self { allow_subscribe: texts(patterns), ..self }
    }

    /// It may post to these channel patterns, and no others.
    #[must_use]
    pub fn allow_publish(self, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self { allow_publish: texts(patterns), ..self }
    }

    /// The child of this actor, `<owner>.<actor>`.
    #[must_use]
    pub fn parent(self, parent: impl Into<String>) -> Self {
        Self { parent: Some(parent.into()), ..self }
    }

    /// At this incarnation.
    #[must_use]
    pub fn lifecycle_uid(self, uid: LifecycleUid) -> Self {
        Self { lifecycle_uid: Some(uid), ..self }
    }

    /// The input asserts, in order: parent, channels, scope entries, role (contract 04 §7.5 step 1).
    fn check(&self) -> Result<(), LedgerError> {
        if self.parent.as_deref().is_some_and(|parent| split_parent(parent).is_none()) {
            return Err(refused("the parent must be <owner>.<actor> with a derived owner (u_…)"));
        }
        for (flag, list) in [("read", &self.allow_subscribe), ("post", &self.allow_publish)] {
            for entry in list {
                ChannelPattern::parse(entry)
                    .map_err(|e| refused(&format!("{flag} entry {entry:?} is {e}")))?;
            }
        }
        for entry in &self.scope {
            ScopeEntry::parse(entry).map_err(|e| refused(&format!("scope entry {entry:?} is {e}")))?;
        }
        if let Some(role) = &self.role {
            Role::parse(role).map_err(|e| refused(&format!("role {role:?} is {e}")))?;
        }
        Ok(())
    }

    fn row(
        &self,
        uid: Option<&LifecycleUid>,
        token_hash: Option<&Sha256Hex>,
        clock: &dyn Clock,
    ) -> Result<ActorRow, LedgerError> {
        Ok(ActorRow {
            owner: self.owner.clone(),
            actor: self.actor.clone(),
            scope: self.scope.clone(),
            allow_subscribe: self.allow_subscribe.clone(),
            allow_publish: self.allow_publish.clone(),
            role: self.role.clone(),
            parent: self.parent.clone(),
            label: self.label.clone(),
            token_hash: token_hash.map(|hash| hash.as_str().to_owned()),
            lifecycle_uid: uid.map(|uid| uid.as_str().to_owned()),
            granted_at: Some(iso_millis(clock.now_millis())?),
        })
    }
}

fn texts(list: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<String> {
    list.into_iter().map(|text| text.as_ref().to_owned()).collect()
}

fn refused(sentence: &str) -> LedgerError {
    LedgerError::Refused(sentence.to_owned())
}

/// `2026-01-02T03:04:05.006Z`, as ECMAScript's `toISOString` writes it.
fn iso_millis(now: UnixMillis) -> Result<String, LedgerError> {
    i64::try_from(now.0)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map(|at| format!("{at:.3}"))
        .ok_or_else(|| LedgerError::Broken("ledger: the clock shows no date that can be written".to_owned()))
}
