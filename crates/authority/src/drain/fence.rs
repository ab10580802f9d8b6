//! Ends the connections that a cleaning opened, and proves it (contract 07 §6.3 "Fence").

use std::collections::BTreeSet;

use cotal_wire::{EpError, Principal};

use super::seats::Seat;
use crate::evict::{Evictor, evict_verified};

/// Retires every seat, then evicts every principal; every action runs, whatever the others come to.
///
/// A principal that is not verifiably gone is thrown first, then a seat that did not retire; both are `unavailable`.
pub(super) async fn fence(seats: Vec<Seat>, evictor: &dyn Evictor) -> Result<(), EpError> {
    let principals: BTreeSet<Principal> = seats.iter().map(|seat| seat.principal().clone()).collect();
    let mut unretired = None;
    for seat in seats {
        let principal = seat.principal().clone();
        if let Err(refusal) = seat.retire().await {
            unretired.get_or_insert((principal, refusal));
        }
    }
    evict_verified(evictor, &principals).await?;
    match unretired {
        None => Ok(()),
        Some((principal, refusal)) => {
            Err(EpError::unavailable(format!("fence: {principal} did not retire: {}", refusal.message)))
        }
    }
}
