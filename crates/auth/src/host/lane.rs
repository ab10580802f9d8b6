//! The seam between the host's loop and what it serves in a space: a full service, or a callout replica.

use async_trait::async_trait;
use cotal_wire::Space;

use crate::handle::CloseError;

/// Why a lane did not open: one sentence, without the space's name, which the host puts before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LaneRefusal(pub String);

impl LaneRefusal {
    /// The refusal that an error tells.
    pub(crate) fn of(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// An open lane: one space, served. The host closes each lane that it was given, also one that ended by itself.
#[async_trait]
pub(crate) trait Lane: Send + Sync {
    /// Resolves when the lane has ended by itself: one sentence that says why. Cancel safe, and it resolves again.
    async fn ended(&self) -> String;

    /// Closes everything that the lane holds. One that failed may be tried again.
    async fn close(&self) -> Result<(), CloseError>;
}

/// Opens the lanes of one kind of host.
#[async_trait]
pub(crate) trait OpenLane: Send + Sync + 'static {
    /// What a manifest says of one space. A lane whose entry changed is closed and opened again.
    type Entry: Clone + Eq + Send + Sync + 'static;

    /// The space that an entry names.
    fn space<'e>(&self, entry: &'e Self::Entry) -> &'e Space;

    /// Opens a lane. It may take as long as it takes, and runs to its end: the host never starts a second one beside
    /// it, and closes the lane that comes of it when the space has left meanwhile. A refusal leaves nothing open.
    async fn open(&self, entry: &Self::Entry) -> Result<Box<dyn Lane>, LaneRefusal>;
}
