//! Why a participant's step did not come to its end.

use std::time::Duration;

use cotal_wire::{EpError, manager_authority::Unbound};

use super::{host::HostRefusal, identity::IdentityError};

/// Why a step did not come to its end. The sentence says what to do next; no variant holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The identity cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The host refused, or did not answer.
    #[error(transparent)]
    Host(#[from] HostRefusal),
    /// The host answered, and the answer is not bound to the request.
    #[error(
        "{0}; nothing of it is used: check that the URL is this space's auth service, and that both sides are of one version"
    )]
    Unbound(#[from] Unbound),
    /// The broker or the space's stores refused.
    #[error("{0}")]
    Space(#[from] EpError),
    /// A file of this machine cannot be used.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// What this machine holds does not fit together.
    #[error("{0}")]
    State(String),
}

impl RemoteError {
    /// How long a busy host asks to be left alone, if that is all that is wrong: the same request is served later.
    pub(super) fn busy_for(&self) -> Option<Duration> {
        match self {
            Self::Host(refusal) if refusal.is_busy() => {
                Some(Duration::from_secs(refusal.retry_after_secs.unwrap_or_default()))
            }
            _ => None,
        }
    }

    /// Whether the host began nothing: it was busy, and named when to come again.
    pub(super) fn is_turned_away(&self) -> bool {
        matches!(self, Self::Host(refusal) if refusal.is_busy() && refusal.retry_after_secs.is_some())
    }

    /// Whether another start of this manager has taken over, or its registration is gone: asking again in this
    /// incarnation cannot help.
    pub fn is_superseded(&self) -> bool {
        matches!(self, Self::Host(refusal) if refusal.is_superseded())
    }
}
