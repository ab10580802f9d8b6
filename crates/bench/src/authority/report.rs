//! What `cotal-bench authority` prints.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::loadgen::Measured;

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct AuthorityReport {
    pub(crate) cores: usize,
    pub(crate) broker: String,
    pub(crate) managers: usize,
    pub(crate) prepare_ms: f64,
    pub(crate) register_ms: f64,
    pub(crate) activate_ms: f64,
    pub(crate) enroll_ms: f64,
    pub(crate) enroll_round_trips: u64,
    pub(crate) enroll_requests_by_verb: BTreeMap<String, u64>,
    pub(crate) renew_ms: f64,
    pub(crate) renew_all_s: f64,
    pub(crate) renew_per_s: f64,
    pub(crate) renew_busy: usize,
    pub(crate) connect_p99_ratio: f64,
    pub(crate) connects_alone: Connects,
    pub(crate) connects_during: Connects,
    pub(crate) scan_rows: usize,
    pub(crate) scan_s: f64,
    pub(crate) scan_rows_per_s: f64,
    pub(crate) selection_ratio: f64,
    pub(crate) selection: Selection,
}

/// A steady load of connects.
#[derive(Debug, Serialize)]
pub(crate) struct Connects {
    pub(crate) total: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) refused: usize,
}

/// The list of an owner's managers, among others'.
#[derive(Debug, Serialize)]
pub(crate) struct Selection {
    pub(crate) few: usize,
    pub(crate) few_ms: f64,
    pub(crate) many: usize,
    pub(crate) many_ms: f64,
}

/// One manager after another, to its activation, in milliseconds.
pub(super) struct Beginnings {
    pub(super) prepare: f64,
    pub(super) register: f64,
    pub(super) activate: f64,
}

/// Enrollments, one after another.
pub(super) struct Enrollments {
    pub(super) ms: f64,
    pub(super) requests: BTreeMap<String, u64>,
}

/// Many renewals at once beside a load of connects.
pub(super) struct Renewals {
    pub(super) one_ms: f64,
    pub(super) all_s: f64,
    pub(super) per_s: f64,
    pub(super) busy: usize,
    pub(super) alone: Connects,
    pub(super) during: Connects,
}

impl Connects {
    pub(super) fn of(measured: &Measured) -> Self {
        Self {
            total: measured.total,
            p50_ms: measured.p50_ms,
            p99_ms: measured.p99_ms,
            refused: measured.refused,
        }
    }
}
