//! What `cotal-bench connect` prints.

use serde::Serialize;

use crate::{loadgen::Measured, progress, report::Machine};

/// One closed loop.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) kind: &'static str,
    pub(crate) in_flight: usize,
    pub(crate) total: usize,
    pub(crate) per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) refused: usize,
}

impl Run {
    pub(crate) fn new(kind: &'static str, in_flight: usize, m: Measured) -> Self {
        progress(&format!(
            "{kind:>8} {in_flight:>4} in flight: {:>7.0}/s  p50 {:>7.1} ms  p99 {:>7.1} ms  refused {}",
            m.per_s, m.p50_ms, m.p99_ms, m.refused
        ));
        Self {
            kind,
            in_flight,
            total: m.total,
            per_s: m.per_s,
            p50_ms: m.p50_ms,
            p99_ms: m.p99_ms,
            refused: m.refused,
        }
    }
}

/// Bearers that nobody can verify, beside people whose bearers can be.
#[derive(Debug, Serialize)]
pub(crate) struct Flood {
    /// As a multiple of what is refused when the flood comes alone.
    pub(crate) times: f64,
    pub(crate) offered_per_s: f64,
    pub(crate) refused: usize,
    pub(crate) verified_total: usize,
    pub(crate) verified_refused: usize,
    pub(crate) verified_rate_ratio: f64,
}

/// Offered more than can be served.
#[derive(Debug, Serialize)]
pub(crate) struct Storm {
    /// `max_connections` of the broker; `None` is its default.
    pub(crate) broker_max_connections: Option<u64>,
    pub(crate) offered_per_s: f64,
    pub(crate) offered: usize,
    pub(crate) connected_per_s: f64,
    pub(crate) best_per_s: f64,
    pub(crate) kept_ratio: f64,
    pub(crate) minted: usize,
    pub(crate) shed: usize,
    pub(crate) timeout: usize,
    pub(crate) denied: usize,
    pub(crate) p50_after_ms: f64,
}

/// What only the long run measures.
#[derive(Debug, Serialize)]
pub(crate) struct Extra {
    pub(crate) service_rss_kib_after_all: u64,
    pub(crate) ledger_100k_rate_ratio: f64,
    pub(crate) floods: Vec<Flood>,
    pub(crate) crowd: Run,
    pub(crate) crowd_kept_ratio: f64,
    pub(crate) storm: Storm,
    pub(crate) storm_at_unbounded_broker: Storm,
}

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct ConnectReport {
    #[serde(flatten)]
    pub(crate) machine: Machine,
    pub(crate) runs: Vec<Run>,
    pub(crate) service_rss_kib: u64,
    pub(crate) ratios: Vec<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) extra: Option<Extra>,
}

/// The service against the callout that checks nothing, at one width.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) in_flight: usize,
    pub(crate) rate_to_bare: f64,
    pub(crate) p50_to_bare: f64,
}

/// The ratios of every width that both kinds ran at.
pub(crate) fn ratios(runs: &[Run]) -> Vec<Ratio> {
    let of = |kind: &'static str| runs.iter().filter(move |r| r.kind == kind);
    of("bare")
        .zip(of("service"))
        .map(|(bare, service)| Ratio {
            in_flight: bare.in_flight,
            rate_to_bare: service.per_s / bare.per_s,
            p50_to_bare: service.p50_ms / bare.p50_ms,
        })
        .collect()
}
