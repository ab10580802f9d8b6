//! The seam between the host's loop and what it serves in a space: a full service, or a callout replica.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use cotal_wire::Space;
use tokio_util::sync::CancellationToken;

use crate::handle::CloseError;

/// How long a host waits for one lane before it goes on without it (contract 10 §6.1), and a service that is told to stop
/// while it starts for its start.
pub(crate) const OPEN_PATIENCE: Duration = Duration::from_secs(30);
/// What is said of a start that is waited for no longer.
pub(crate) const UNENDED: &str = "its start did not end; what it holds is taken over by the next one";

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

/// What an opening steps over before anything of it answers, unless the host has barred it first: the space has left, or
/// its entry has changed. Whichever of the two comes first stands, so an opening that is barred never answers, and one
/// that has crossed is waited for and closed. Clones are one threshold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Threshold {
    first: Arc<OnceLock<First>>,
    asked: CancellationToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Crossed,
    Barred,
}

/// The threshold was barred: what is open of the opening is to be closed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Barred;

impl Threshold {
    /// Called right before the first thing starts that answers.
    pub(crate) fn cross(&self) -> Result<(), Barred> {
        match self.first.get_or_init(|| First::Crossed) {
            First::Crossed => Ok(()),
            First::Barred => Err(Barred),
        }
    }

    /// Nothing of the opening is to answer, if nothing does yet.
    pub(crate) fn bar(&self) {
        self.first.get_or_init(|| First::Barred);
        self.asked.cancel();
    }

    /// Whether the bar came first.
    pub(crate) fn is_barred(&self) -> bool {
        self.first.get() == Some(&First::Barred)
    }

    /// Resolves when the host has asked for the bar, whoever came first. Cancel safe.
    pub(crate) async fn asked(&self) {
        self.asked.cancelled().await;
    }

    /// What an opening reads before anything of it is open, for as long as it is wanted: a disk that hangs keeps no host
    /// which has asked for the bar.
    pub(crate) async fn unless_asked<T>(&self, reading: impl Future<Output = T>) -> Result<T, Barred> {
        tokio::select! {
            biased;
            read = reading => Ok(read),
            () = self.asked() => Err(Barred),
        }
    }
}

/// An open lane: one space, served. The host closes each lane that it was given, also one that ended by itself.
#[async_trait]
pub(crate) trait Lane: Send + Sync {
    /// Resolves when the lane has ended by itself: one sentence that says why. Cancel safe, and it resolves again.
    async fn ended(&self) -> String;

    /// Closes everything that the lane holds. One that failed may be tried again.
    async fn close(&self) -> Result<(), CloseError>;

    /// Whether it takes nothing in any more: no connect, no request. A close comes to that first, also one that then fails.
    fn takes_nothing_in(&self) -> bool;
}

/// Opens the lanes of one kind of host.
#[async_trait]
pub(crate) trait OpenLane: Send + Sync + 'static {
    /// What a manifest says of one space. A lane whose entry changed is closed and opened again.
    type Entry: Clone + Eq + Send + Sync + 'static;

    /// The space that an entry names.
    fn space<'e>(&self, entry: &'e Self::Entry) -> &'e Space;

    /// Opens a lane. It may take as long as it takes, and runs to its end: the host never starts a second one beside
    /// it, and closes the lane that comes of it when the space has left meanwhile. Before anything of it answers it
    /// crosses the threshold, and refuses when it cannot. A refusal leaves nothing open.
    async fn open(&self, entry: &Self::Entry, threshold: &Threshold) -> Result<Box<dyn Lane>, LaneRefusal>;
}
