//! Connect limits (contract 04 §8.7): token buckets per actor, owner and host; in memory, per process and space.
use std::sync::Arc;
use cotal_wire::{Actor, Clock, DerivedOwner};

/// Allowances a minute (decision D12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectLimits {
    /// Per `owner.actor`, default 60.
    pub per_actor_per_minute: u32,
    /// Per owner, default 600.
    pub per_owner_per_minute: u32,
    /// Per client host of bearers that do not verify, default 60.
    pub per_host_per_minute: u32,
}

impl Default for ConnectLimits {
    fn default() -> Self { Self { per_actor_per_minute: 60, per_owner_per_minute: 600, per_host_per_minute: 60 } }
}

/// Which bucket ran out, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitedBucket {
    /// The actor's own.
    Actor {
        /// Whole seconds until one token is back, at least 1.
        retry_after_secs: u64,
    },
    /// The owner's, which every actor of the owner draws on.
    Owner {
        /// Whole seconds until one token is back, at least 1.
        retry_after_secs: u64,
    },
    /// The client host's.
    Host {
        /// Whole seconds until one token is back, at least 1.
        retry_after_secs: u64,
    },
}

/// The buckets of one space in one process. Bounded memory: a full bucket is forgotten.
pub struct Limiter { _private: () }

impl Limiter {
    /// Fresh, full buckets.
    pub fn new(_limits: ConnectLimits, _clock: Arc<dyn Clock>) -> Self { todo!() }
    /// Charges actor and owner together, or neither.
    pub fn charge_principal(&self, _owner: &DerivedOwner, _actor: &Actor) -> Result<(), LimitedBucket> { todo!() }
    /// Charges the host.
    pub fn charge_host(&self, _host: &str) -> Result<(), LimitedBucket> { todo!() }
    /// Whether the actor or its owner is limited now; spends nothing (the exchange asks this).
    pub fn check_principal(&self, _owner: &DerivedOwner, _actor: &Actor) -> Result<(), LimitedBucket> { todo!() }
}
