//! The daemon from start to end.

use crate::inputs::{DeliveryInputs, StartRefusal};
use cotal_wire::Principal;

/// A running daemon. Dropped, it stops without releasing its lease.
pub struct Delivery {}

/// How a daemon ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop, and released its lease.
    Stopped,
    /// Another holder has the lease, or the lease could not be renewed within its life.
    LeaseLost(String),
    /// The broker was away for too long, or takes the daemon's credential no more.
    BrokerGone(String),
}

#[allow(clippy::unused_async, unused_variables)]
impl Delivery {
    /// Starts: checks the credentials, sees itself through the observer, takes the lease, binds the rail, and says
    /// ready in the lease row. When this returns, the rail answers.
    pub async fn start(inputs: DeliveryInputs) -> Result<Self, StartRefusal> {
        todo!()
    }

    /// Who answers: the principal of the delivery credential, also the holder in the lease row.
    pub fn holder(&self) -> &Principal {
        todo!()
    }

    /// Resolves when the daemon has ended.
    pub async fn ended(&self) -> Ended {
        todo!()
    }

    /// Stops answering, releases the lease, closes.
    pub async fn stop(&self) -> Ended {
        todo!()
    }
}
