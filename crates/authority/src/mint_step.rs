//! What a mint does next, decided without I/O (contract 07 §4.5, 04 §10). The models run the same function.

use cotal_wire::{CredentialId, EpCode, rows::AgentGate};

/// What a mint has seen last.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seen<'a> {
    /// Its incarnation's gate, before anything was written.
    Gate(Option<&'a AgentGate>),
    /// What became of the touch of a gate that it pinned.
    Touch(Touched),
    /// What became of the stamp of the head; `None` when it stands.
    Stamp(Option<EpCode>),
    /// Whom the head names after a stamp of which nobody can say whether it landed; `None` is nobody, or no answer.
    Named(Option<&'a str>),
}

/// What became of a touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touched {
    /// The gate was still where staging had read it.
    Won,
    /// It had moved, or was gone.
    Moved,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MintStep {
    /// Nothing was written, and nothing is.
    Refuse,
    /// Write the row, active, pinned to that gate.
    WriteRow,
    /// The touch won: the credential is released. A root is stamped on the head next.
    Release,
    /// The credential is the incarnation's root.
    Root,
    /// Ask the head whether the stamp landed: to revoke the row at once could leave a head that names a revoked root.
    AskHead,
    /// Revoke the row: another writer came first.
    RevokeLost,
    /// Revoke the row, and say why the stamp failed.
    RevokeFailed,
    /// Leave the row as it is: unnamed by the head it opens nothing, and no bytes of it ever left.
    Leave,
}

/// The step that follows from what was seen. `own` is the credential that is minted.
pub(crate) fn mint_step(own: &CredentialId, seen: Seen<'_>) -> MintStep {
    match seen {
        Seen::Gate(Some(gate)) if gate.is_open() => MintStep::WriteRow,
        Seen::Gate(_) => MintStep::Refuse,
        Seen::Touch(Touched::Won) => MintStep::Release,
        Seen::Stamp(None) => MintStep::Root,
        Seen::Named(Some(named)) if named == own.as_str() => MintStep::Root,
        Seen::Stamp(Some(EpCode::Unavailable)) => MintStep::AskHead,
        Seen::Touch(Touched::Moved)
        | Seen::Stamp(Some(EpCode::PermissionDenied | EpCode::Conflict | EpCode::FailedPrecondition))
        | Seen::Named(Some(_)) => MintStep::RevokeLost,
        Seen::Stamp(Some(_)) => MintStep::RevokeFailed,
        Seen::Named(None) => MintStep::Leave,
    }
}
