//! Verified eviction: what a barrier asks for, and the one answer that counts (contract 07 §9, 01 §5).

use std::collections::BTreeSet;

use async_trait::async_trait;
use cotal_wire::{EpError, Principal};

/// What an eviction of one principal came to. Only [`Eviction::verified_gone`] counts; everything else, the rail being
/// unreachable included, is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// The principal that was asked for.
    pub principal: Principal,
    /// Connections that were told to go.
    pub kicked: u64,
    /// Connections that were still there at the last look.
    pub remaining: u64,
    /// A complete re-scan found none.
    pub verified_gone: bool,
    /// Whether the last scan heard every server.
    pub scan_complete: bool,
    /// Why it is not verified, for the operator.
    pub note: Option<String>,
}

impl Eviction {
    /// The answer of a rail that could not say (contract 07 §9 "Mapping").
    pub fn unverified(principal: &Principal, note: impl Into<String>) -> Self {
        Self {
            principal: principal.clone(),
            kicked: 0,
            remaining: 0,
            verified_gone: false,
            scan_complete: false,
            note: Some(note.into()),
        }
    }
}

/// Ends every live connection of principals, and proves it.
#[async_trait]
pub trait Evictor: Send + Sync {
    /// One verdict for each principal, in ascending order. It never fails: what cannot be said is not verified.
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction>;
}

/// Evicts all of them, or refuses `unavailable` naming the first that is not verifiably gone.
pub async fn evict_verified(
    evictor: &dyn Evictor,
    principals: &BTreeSet<Principal>,
) -> Result<Vec<Principal>, EpError> {
    let verdicts = evictor.evict(principals).await;
    for principal in principals {
        let verdict = verdicts.iter().find(|verdict| verdict.principal == *principal);
        if !verdict.is_some_and(|verdict| verdict.verified_gone) {
            let note = verdict.and_then(|verdict| verdict.note.as_deref()).unwrap_or("no verdict came");
            return Err(EpError::unavailable(format!(
                "eviction: {principal} is not verifiably gone ({note}); the barrier stays as it is, retry once the \
                 delivery daemon answers"
            )));
        }
    }
    Ok(principals.iter().cloned().collect())
}
