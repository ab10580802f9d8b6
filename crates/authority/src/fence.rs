//! The fence of a plane: once tripped, or once closing began, nothing of the plane answers (contract 05 §8.9).

use std::sync::{Arc, OnceLock};

use cotal_wire::EpError;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::plane_claim::ClaimHold;

/// Why a plane no longer answers. Shared by everything that the plane hands out.
#[derive(Debug)]
pub(crate) struct Fence {
    closing: Mutex<bool>,
    reason: watch::Sender<Option<String>>,
    /// The claim that is fenced with it.
    claim: OnceLock<Arc<ClaimHold>>,
}

impl Fence {
    pub(crate) fn new() -> Self {
        Self { closing: Mutex::new(false), reason: watch::Sender::new(None), claim: OnceLock::new() }
    }

    /// From here on a trip fences this claim too, so that no scan outlives it.
    pub(crate) fn guard(&self, claim: Arc<ClaimHold>) {
        let _ = self.claim.set(claim);
    }

    /// Trips the fence. The first reason stays; a trip while closing says nothing new and is not recorded.
    /// Returns whether this call tripped it.
    pub(crate) fn trip(&self, reason: &str) -> bool {
        let closing = self.closing.lock();
        if *closing {
            return false;
        }
        self.reason.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(reason.to_owned());
                if let Some(claim) = self.claim.get() {
                    claim.fence(reason);
                }
            }
            first
        })
    }

    /// From here on every operation is refused, and no later failure counts as a fence.
    pub(crate) fn begin_closing(&self) {
        *self.closing.lock() = true;
    }

    /// Whether closing began.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.lock()
    }

    /// Refuses `unavailable` once tripped or closing. The reason is for the operator's log, not for a caller.
    pub(crate) fn check(&self) -> Result<(), EpError> {
        if *self.closing.lock() || self.reason.borrow().is_some() {
            return Err(EpError::unavailable(
                "the authority plane is momentarily unavailable; retry once it has reopened",
            ));
        }
        Ok(())
    }

    /// Resolves with the first reason; never when the fence is not tripped.
    pub(crate) async fn tripped(&self) -> String {
        let mut reason = self.reason.subscribe();
        loop {
            if let Some(text) = reason.borrow_and_update().clone() {
                return text;
            }
            if reason.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::EpCode;

    use super::*;

    #[tokio::test]
    async fn the_first_reason_stays() {
        let fence = Fence::new();
        assert!(fence.check().is_ok());
        assert!(fence.trip("first"));
        assert!(!fence.trip("second"));
        assert_eq!(fence.tripped().await, "first");
        let refusal = fence.check().unwrap_err();
        assert_eq!(refusal.code, EpCode::Unavailable);
        assert!(!refusal.message.contains("first"), "the reason is not for callers");
    }

    #[test]
    fn a_failure_while_closing_is_not_a_fence() {
        let fence = Fence::new();
        fence.begin_closing();
        assert!(!fence.trip("late"));
        assert_eq!(fence.check().unwrap_err().code, EpCode::Unavailable);
        assert!(fence.reason.borrow().is_none());
    }
}
