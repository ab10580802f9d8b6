//! Runs: admitted, attempted, submitted, revoked and cancelled (contract 06 §12, 10 §3).
//!
//! [`cotal_authority::manager::runs`] decides, each kind in its own order; here is what it reads, and what is signed.

mod observer;
mod turn;
mod world;

use cotal_authority::manager::{Holder, runs};
use cotal_wire::{EpError, es_value::EsValue};

pub(crate) use observer::RunObserver;
pub(super) use turn::sign_pair;

use self::world::World;
use super::Parts;
use crate::manager::{Answer, print};

/// `manager-run-admission`: a run that its manager was asked to start may run, under the authority of who asked.
pub(super) async fn admit(parts: &Parts, holder: &Holder, request: &EsValue) -> Result<Answer, EpError> {
    let world = World { parts };
    print(&runs::admit(&world, parts.lifecycle_host(), holder, request).await?)
}

/// `manager-run-submission`: the same, under an id of the caller's own that may be asked for again.
pub(super) async fn submit(parts: &Parts, holder: &Holder, request: &EsValue) -> Result<Answer, EpError> {
    let world = World { parts };
    print(&runs::submit(&world, parts.lifecycle_host(), holder, request).await?)
}

/// `manager-run-cancel`: ends a run for the caller of a request that its manager serves.
pub(super) async fn cancel(parts: &Parts, holder: &Holder, request: &EsValue) -> Result<Answer, EpError> {
    let world = World { parts };
    print(&runs::cancel(&world, parts.lifecycle_host(), holder, request).await?.of_cancel())
}

/// `manager-run-revoke`: ends a run for its owner, or for an admin.
pub(super) async fn revoke(parts: &Parts, holder: &Holder, request: &EsValue) -> Result<Answer, EpError> {
    let world = World { parts };
    print(&runs::revoke(&world, parts.lifecycle_host(), holder, request).await?.of_revoke())
}

/// `manager-run-attempt`: the credentials of a driver's next attempt, or of an operator's turn.
pub(super) async fn attempt(parts: &Parts, holder: &Holder, request: &EsValue) -> Result<Answer, EpError> {
    let world = World { parts };
    let granted = runs::decide_attempt(&world, parts.lifecycle_host(), holder, request).await?;
    print(&turn::sign(parts, holder, &granted)?)
}
