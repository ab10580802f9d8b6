//! What `cotal-bench authority` prints.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    report::{Connects, Machine},
    tap::Sent,
};

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct AuthorityReport {
    #[serde(flatten)]
    pub(crate) machine: Machine,
    pub(crate) managers: usize,
    pub(crate) prepare_ms: f64,
    pub(crate) register_ms: f64,
    pub(crate) activate_ms: f64,
    pub(crate) enroll_ms: f64,
    pub(crate) enroll_round_trips: usize,
    pub(crate) enroll_requests: usize,
    pub(crate) enroll_requests_by_verb: BTreeMap<String, usize>,
    pub(crate) renew_ms: f64,
    pub(crate) renew_all_s: f64,
    pub(crate) renew_per_s: f64,
    pub(crate) connect_p99_ratio: f64,
    pub(crate) connects_alone: Connects,
    pub(crate) connects_during: Connects,
    pub(crate) scan_rows: usize,
    pub(crate) scan_s: f64,
    pub(crate) scan_rows_per_s: f64,
    pub(crate) selection_ratio: f64,
    pub(crate) selection: Selection,
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
    pub(super) round_trips: usize,
    pub(super) requests: Sent,
}

/// Many renewals at once beside a load of connects.
pub(super) struct Renewals {
    pub(super) one_ms: f64,
    pub(super) all_s: f64,
    pub(super) per_s: f64,
    pub(super) alone: Connects,
    pub(super) during: Connects,
}
