//! What retiring a lifecycle answers, to a door, to the rail and to a host (contract 05 §7.1-7.2, §12; 07 §6).

use std::collections::BTreeMap;

use cotal_wire::{EpError, OpId, Principal};

use crate::drain::Cleaned;

/// A retirement that ran to its end (contract 07 §6.2). A resume that found everything done has zeros and empties.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetirementReport {
    /// Credential rows that this run revoked.
    pub revoked_rows: u64,
    /// Principals that were verified gone.
    pub evicted: Vec<Principal>,
    /// Endpoint tokens whose obligations were drained.
    pub drained_endpoints: Vec<String>,
    /// What cleaning each `<endpoint>/<pool>` came to.
    pub cleaned: BTreeMap<String, Cleaned>,
    /// The last sequence of each frontier stream.
    pub frontiers: BTreeMap<String, u64>,
}

/// How a request to retire ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retirement {
    /// No head stands at this incarnation.
    NotStarted,
    /// It was retired before.
    AlreadyRetired,
    /// The barrier ran to its end.
    Retired {
        /// The operation.
        op: OpId,
        /// What it did.
        report: RetirementReport,
    },
}

/// Why a request to retire did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetirementFailure {
    /// The refusal.
    pub error: EpError,
    /// Whether the barrier may have begun. `false` is the contract's `outcome: "not-executed"`; `true` is «unknown».
    pub began: bool,
}
