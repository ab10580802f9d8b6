//! What `cotal-bench retire` prints.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::{Connects, Machine};

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct RetireReport {
    #[serde(flatten)]
    pub(crate) machine: Machine,
    pub(crate) round_trips: u64,
    pub(crate) requests: usize,
    pub(crate) requests_by_verb: BTreeMap<String, usize>,
    pub(crate) kv_update_ms: f64,
    pub(crate) retire_ms: f64,
    pub(crate) retire_to_update: f64,
    pub(crate) retire_live_ms: f64,
    pub(crate) revoke_live_ms: Option<f64>,
    pub(crate) connect_p99_ratio: f64,
    pub(crate) in_flight: usize,
    pub(crate) retired: usize,
    pub(crate) retire_per_s: f64,
    pub(crate) connects_alone: Connects,
    pub(crate) connects_during: Connects,
    pub(crate) boot_ratio: f64,
    pub(crate) boot: Boot,
}

/// Boots, each to its readiness.
#[derive(Debug, Serialize)]
pub(crate) struct Boot {
    pub(crate) none_ms: f64,
    pub(crate) past_ms: f64,
    /// The first of those boots, which finds no note of them.
    pub(crate) past_first_ms: f64,
    /// Completed retirements that were written besides those of this run.
    pub(crate) past: usize,
}

/// Many retirements beside a load of connects.
pub(super) struct Crowd {
    pub(super) alone: Connects,
    pub(super) during: Connects,
    pub(super) in_flight: usize,
    pub(super) retired: usize,
    pub(super) retire_per_s: f64,
}
