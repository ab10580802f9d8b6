//! The actor ledger: who may do what in a space (contract 04 §7).
//!
//! One JSON file a row; the directory is the row's kind. Every read is fresh and fails closed. There is no lock and
//! no cache: a revoke bites at the next exchange and the next connect.
use std::path::{Path, PathBuf};
use cotal_wire::{Actor, BearerClaims, Clock, DerivedOwner, Entropy, LifecycleUid, Principal};

/// Which directory a row lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowKind {
    /// Granted by an operator, exchanged with an IdP proof.
    Interactive,
    /// Granted at spawn or enrollment, exchanged with an agent secret.
    ManagedAgent,
}

/// One ledger row as it was read (contract 04 §7.2).
#[derive(Debug, Clone)]
pub struct ActorRow {
    /// The owner.
    pub owner: DerivedOwner,
    /// The actor.
    pub actor: Actor,
    /// Capabilities.
    pub scope: Vec<String>,
    /// Channel patterns it may read.
    pub allow_subscribe: Vec<String>,
    /// Channel patterns it may post to.
    pub allow_publish: Vec<String>,
    /// Role.
    pub role: Option<String>,
    /// Parent link, as stored.
    pub parent: Option<String>,
    /// Display label.
    pub label: Option<String>,
    /// SHA-256 of the agent secret, managed rows only.
    pub token_hash: Option<String>,
    /// The incarnation.
    pub lifecycle_uid: Option<String>,
    /// When it was granted, ISO.
    pub granted_at: String,
}

/// A row and its kind.
#[derive(Debug, Clone)]
pub struct TaggedRow {
    /// The kind.
    pub kind: RowKind,
    /// The row.
    pub row: ActorRow,
}

/// Why the ledger refused. `Broken` is trusted state that cannot be read; `Refused` is a decision.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A decision, with the sentence for the caller.
    #[error("{0}")]
    Refused(String),
    /// A row or directory that cannot be trusted; the sentence names the file, never its content.
    #[error("{0}")]
    Broken(String),
}

/// What an exchange may sign (contract 04 §4.3, §7.8). Only the ledger's hooks build one.
#[derive(Debug, Clone)]
pub struct AuthorizedGrant {
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
    pub parent: Option<Principal>,
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
}

/// The ACL that a connect's permissions are built from (contract 04 §7.8 `ledgerAclResolver`).
#[derive(Debug, Clone)]
pub struct Acl {
    /// Channel patterns it may read.
    pub allow_subscribe: Vec<String>,
    /// Channel patterns it may post to.
    pub allow_publish: Vec<String>,
    /// Role.
    pub role: Option<String>,
    /// The bearer's lifecycle uid, equal to the row's.
    pub lifecycle_uid: LifecycleUid,
    /// The row's current scope.
    pub scope: Vec<String>,
    /// The row's kind.
    pub kind: RowKind,
    /// Whether the row's direct parent currently holds `run`.
    pub parent_has_run: bool,
}

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

/// The ledger of one space: `<state dir>/actors` and `<state dir>/managed-actors`.
#[derive(Debug, Clone)]
pub struct Ledger { _state_dir: PathBuf }

impl Ledger {
    /// The ledger under a state directory; nothing is created or read.
    pub fn at(state_dir: impl AsRef<Path>) -> Self { Self { _state_dir: state_dir.as_ref().to_owned() } }
    /// One interactive row.
    pub fn read_interactive(&self, _owner: &DerivedOwner, _actor: &Actor) -> Result<Option<ActorRow>, LedgerError> { todo!() }
    /// One managed row.
    pub fn read_managed(&self, _owner: &DerivedOwner, _actor: &Actor) -> Result<Option<ActorRow>, LedgerError> { todo!() }
    /// Unified lookup; a principal in both spaces is an error.
    pub fn lookup(&self, _owner: &DerivedOwner, _actor: &Actor) -> Result<Option<TaggedRow>, LedgerError> { todo!() }
    /// Every row, interactive first; one broken row fails the whole listing.
    pub fn list(&self) -> Result<Vec<TaggedRow>, LedgerError> { todo!() }
    /// Grants an interactive row (contract 04 §7.5).
    pub fn grant_interactive(&self, _input: &GrantInput, _clock: &dyn Clock, _entropy: &dyn Entropy) -> Result<ActorRow, LedgerError> { todo!() }
    /// Grants a managed row (contract 04 §7.6).
    pub fn grant_managed(&self, _input: &GrantInput, _token_hash: &str, _clock: &dyn Clock) -> Result<ActorRow, LedgerError> { todo!() }
    /// Deletes an interactive row; `false` when absent.
    pub fn revoke_interactive(&self, _owner: &DerivedOwner, _actor: &Actor) -> Result<bool, LedgerError> { todo!() }
    /// Deletes a managed row; `false` when absent.
    pub fn revoke_managed(&self, _owner: &DerivedOwner, _actor: &Actor) -> Result<bool, LedgerError> { todo!() }
    /// Human mint boundary.
    pub fn authorize_grant(&self, _owner: &DerivedOwner, _actor: &Actor) -> Result<AuthorizedGrant, LedgerError> { todo!() }
    /// Agent mint boundary; constant-time, one sentence for every unauthenticated refusal.
    pub fn authorize_agent_exchange(&self, _owner: &DerivedOwner, _actor: &Actor, _token: &str) -> Result<AuthorizedGrant, LedgerError> { todo!() }
    /// Connect boundary, file arm (contract 04 §7.8 `ledgerAuthorizeConnect`).
    pub fn authorize_connect(&self, _claims: &BearerClaims) -> Result<(), LedgerError> { todo!() }
    /// Permission build boundary.
    pub fn resolve_acl(&self, _claims: &BearerClaims) -> Result<Acl, LedgerError> { todo!() }
}

/// The re-grant command line that refusals print (contract 04 §7.7).
pub fn regrant_command(_row: &ActorRow) -> String { todo!() }
/// A fresh agent secret (43 characters) and its stored hash (contract 04 §7.6).
pub fn mint_agent_secret(_entropy: &dyn Entropy) -> (zeroize::Zeroizing<String>, String) { todo!() }
