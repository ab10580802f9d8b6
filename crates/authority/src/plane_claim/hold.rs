//! A held claim: the guard of every scan, the fence, and the release (contract 05 §8.5).

use std::sync::Arc;

use cotal_broker::kv::WriteOutcome;
use cotal_wire::{EpError, Space, names::PLANE_KEY, rows::PlaneClaim};
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;

use super::{
    decide::{ReleaseStep, decide_held, decide_release},
    read,
    refusal::ClaimRefusal,
};
use crate::{claim_oracle::ClaimTuples, stores::AuthorityStores};

/// Where the guard stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    /// Do not enumerate.
    Before,
    /// Discard what was enumerated.
    After,
    /// Use what was enumerated on nobody: an eviction is by principal, and would reach a successor.
    BeforeEviction,
}

/// The claim of this process on a space's plane. Only [`super::acquire`] makes one.
pub struct ClaimHold {
    stores: AuthorityStores,
    own: PlaneClaim,
    tuples: ClaimTuples,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    fenced: Option<String>,
    /// From the end of scans or the first release on, whatever became of it.
    releasing: bool,
    /// The release in flight, or the one that succeeded.
    release: Option<Release>,
}

type Release = Shared<BoxFuture<'static, Result<(), EpError>>>;

impl ClaimHold {
    pub(super) fn new(stores: AuthorityStores, own: PlaneClaim, tuples: ClaimTuples) -> Arc<Self> {
        Arc::new(Self { stores, own, tuples, state: Mutex::default() })
    }

    /// The space.
    pub fn space(&self) -> &Space {
        self.stores.space()
    }

    /// The pinned connections.
    pub fn tuples(&self) -> &ClaimTuples {
        &self.tuples
    }

    /// The row as it was written.
    pub fn row(&self) -> &PlaneClaim {
        &self.own
    }

    /// Trips the guard for good. The first reason stays.
    pub fn fence(&self, reason: &str) {
        self.state.lock().fenced.get_or_insert_with(|| reason.to_owned());
    }

    /// The reason of the first [`Self::fence`].
    pub fn fenced(&self) -> Option<String> {
        self.state.lock().fenced.clone()
    }

    /// From here on every guard refuses, as it does once the claim is being released: who closes says so before it waits
    /// for what still runs under the claim.
    pub fn end_scans(&self) {
        self.state.lock().releasing = true;
    }

    /// The part of the guard that asks nobody: neither fenced nor at its end.
    pub(crate) fn check(&self) -> Result<(), EpError> {
        let state = self.state.lock();
        if let Some(reason) = &state.fenced {
            return Err(ClaimRefusal::Fenced.refuse(reason.clone()));
        }
        if state.releasing {
            return Err(ClaimRefusal::Released
                .refuse(format!("the authority plane of space {} is being released", self.space())));
        }
        Ok(())
    }

    /// The guard: fenced, then releasing, then a fresh read that must find this very claim, held. A failed read is
    /// `unavailable`; every other refusal is a [`ClaimRefusal`].
    pub async fn assert_held(&self, when: When) -> Result<(), EpError> {
        self.check()?;
        let found = read(self.stores.auth()).await?;
        // What happened while it was read counts.
        self.check()?;
        if decide_held(&found, &self.own) {
            return Ok(());
        }
        let space = self.space();
        let then = match when {
            When::Before => "nothing is enumerated",
            When::After => "what was enumerated is discarded",
            When::BeforeEviction => "nobody is evicted",
        };
        Err(self.lost(&format!("the authority plane of space {space} is no longer this process's; {then}")))
    }

    fn lost(&self, message: &str) -> EpError {
        tracing::error!(space = %self.space(), generation = self.own.generation, "auth-plane: the claim is lost");
        ClaimRefusal::Lost.refuse(message)
    }

    /// Releases the claim. The scanners must be closed before.
    ///
    /// Calls share one flight, and its success. A failure is forgotten, so that a later call tries again: that helps
    /// only with `release-unreachable`. `lost` means that the row is another's, and it was left as it is.
    pub async fn release(self: &Arc<Self>) -> Result<(), EpError> {
        let flight = {
            let mut state = self.state.lock();
            state.releasing = true;
            state.release.get_or_insert_with(|| self.launch()).clone()
        };
        flight.await
    }

    /// A flight goes on when every caller is gone, as a write that was sent does.
    fn launch(self: &Arc<Self>) -> Release {
        let hold = self.clone();
        let flight = tokio::spawn(async move {
            let outcome = hold.release_once().await;
            if outcome.is_err() {
                hold.state.lock().release = None;
            }
            outcome
        });
        let landed = async {
            flight.await.unwrap_or_else(|_| {
                Err(ClaimRefusal::ReleaseUnreachable
                    .refuse("the release of the plane claim was cut off; retry"))
            })
        };
        landed.boxed().shared()
    }

    async fn release_once(&self) -> Result<(), EpError> {
        let unreachable = |why: String| {
            ClaimRefusal::ReleaseUnreachable.refuse(format!(
                "the plane claim of space {} could not be released ({why}); the close can be retried",
                self.space()
            ))
        };
        let found = read(self.stores.auth()).await.map_err(|refusal| unreachable(refusal.message))?;
        let (row, over) = match decide_release(&found, &self.own) {
            ReleaseStep::Done => return Ok(()),
            ReleaseStep::Write { row, over } => (row, over),
            ReleaseStep::Lost => {
                return Err(self.lost(&format!(
                    "the plane claim of space {} is no longer this process's; it is left as it is",
                    self.space()
                )));
            }
        };
        match self.stores.auth_store().update(PLANE_KEY, row.to_bytes(), over).await {
            WriteOutcome::Written(_) => {
                tracing::info!(space = %self.space(), generation = row.generation, "auth-plane: the claim is released");
                Ok(())
            }
            WriteOutcome::Lost => Err(unreachable("another writer moved it".to_owned())),
            WriteOutcome::Ambiguous(why) | WriteOutcome::Refused(why) => Err(unreachable(why)),
        }
    }
}

impl std::fmt::Debug for ClaimHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClaimHold({}, generation {})", self.space(), self.own.generation)
    }
}
