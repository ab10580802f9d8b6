//! The actor ledger: who may do what in a space (contract 04 §7).
//!
//! One JSON file a row; the directory is the row's kind. Every read is fresh and fails closed. There is no lock and
//! no cache: a revoke bites at the next exchange and the next connect. The cost of a read does not depend on how many
//! rows there are (contract 12 D19); only [`Ledger::list`] looks at more than the rows that it is asked about.
//!
//! This room decides from rows alone. It retires no lifecycle, knows no credential and opens no connection.

mod envelope;
mod grant;
mod hooks;
mod read;
mod regrant;
mod row;
mod secret;

use std::path::{Path, PathBuf};

pub use cotal_workspace::printed::shell_quote;
pub use envelope::{Boundary, WIDEN_WITH};
pub use grant::GrantInput;
pub use hooks::{AGENT_EXCHANGE_REFUSAL, Acl, AuthorizedGrant};
pub use regrant::regrant_command;
pub use row::{ActorRow, RowKind, TaggedRow};
pub use secret::{hash_agent_secret, mint_agent_secret};

/// The door of the fuzz target: a row's bytes, without the file around them.
#[cfg(fuzzing)]
pub mod fuzzing {
    use super::{ActorRow, RowKind};

    /// Reads a row; the refusal's sentence as it stands after the file's name.
    pub fn parse_row(bytes: &[u8], kind: RowKind) -> Result<ActorRow, String> {
        ActorRow::parse(bytes, kind).map_err(|error| error.to_string())
    }

    /// The bytes of a row's file.
    pub fn row_document(row: &ActorRow, kind: RowKind) -> Vec<u8> {
        row.to_document(kind).unwrap_or_default()
    }
}

/// Why the ledger refused. `Broken` is trusted state that cannot be read; `Refused` is a decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// A decision, with the sentence for the caller.
    #[error("{0}")]
    Refused(String),
    /// A row or directory that cannot be trusted; the sentence names the file, never its content.
    #[error("{0}")]
    Broken(String),
}

/// The ledger of one space: `<state dir>/actors` and `<state dir>/managed-actors`.
#[derive(Debug, Clone)]
pub struct Ledger {
    state_dir: PathBuf,
    interactive: PathBuf,
    managed: PathBuf,
}

impl Ledger {
    /// The ledger under a state directory; nothing is created or read.
    pub fn at(state_dir: impl AsRef<Path>) -> Self {
        let dir = state_dir.as_ref();
        Self {
            state_dir: dir.to_owned(),
            interactive: dir.join(RowKind::Interactive.dir_name()),
            managed: dir.join(RowKind::ManagedAgent.dir_name()),
        }
    }

    /// The state directory that this ledger lies in.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The directory of one kind of rows.
    fn dir(&self, kind: RowKind) -> &Path {
        match kind {
            RowKind::Interactive => &self.interactive,
            RowKind::ManagedAgent => &self.managed,
        }
    }
}
