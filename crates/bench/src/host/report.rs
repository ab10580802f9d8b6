//! What `cotal-bench host` prints.

use serde::Serialize;

use crate::report::Machine;

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct HostReport {
    #[serde(flatten)]
    pub(crate) machine: Machine,
    pub(crate) lanes: usize,
    /// `GOGC` of the broker.
    pub(crate) broker_gogc: String,
    pub(crate) prepared_s: f64,
    pub(crate) rss_kib_per_lane: u64,
    pub(crate) rss_kib_each_more: u64,
    pub(crate) rss_kib_of_one: u64,
    pub(crate) ready_s: f64,
    pub(crate) idle_cpu_pct: f64,
    pub(crate) broker_idle_cpu_pct: f64,
    pub(crate) threads: u64,
    pub(crate) files: usize,
    pub(crate) lane_p50_ratio: f64,
    pub(crate) lane_p50_ms: f64,
    pub(crate) lone_p50_ms: f64,
    pub(crate) neighbour_p99_ratio: f64,
    pub(crate) neighbour: Neighbour,
    pub(crate) replica_rate_ratio: f64,
    pub(crate) replica: Replica,
    pub(crate) exchange_agent_per_s: f64,
    pub(crate) exchange_agent_p99_ms: f64,
    pub(crate) exchange_human_per_s: f64,
    pub(crate) exchange_human_p99_ms: f64,
    pub(crate) exchange: Arms,
}

/// Connects of one lane while another is stormed.
#[derive(Debug, Serialize)]
pub(crate) struct Neighbour {
    pub(crate) p99_ratio: f64,
    pub(crate) idle_p50_ms: f64,
    pub(crate) idle_p99_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) refused: usize,
    pub(crate) storm_per_s: f64,
    pub(crate) storm_refused: usize,
    pub(crate) floor_p99_ratio: f64,
    pub(crate) floor_idle_p99_ms: f64,
    pub(crate) floor_p99_ms: f64,
}

/// A storm, and who spent the processors on it; percent of one core.
#[derive(Debug, Serialize)]
pub(crate) struct StormCost {
    pub(crate) per_s: f64,
    pub(crate) refused: usize,
    pub(crate) broker_cpu_pct: f64,
    pub(crate) service_cpu_pct: f64,
}

impl StormCost {
    /// Of some that lasted equally long.
    pub(crate) fn mean(turns: &[Self]) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "a few turns")]
        let mean = |of: fn(&Self) -> f64| turns.iter().map(of).sum::<f64>() / turns.len() as f64;
        Self {
            per_s: mean(|turn| turn.per_s),
            refused: turns.iter().map(|turn| turn.refused).sum(),
            broker_cpu_pct: mean(|turn| turn.broker_cpu_pct),
            service_cpu_pct: mean(|turn| turn.service_cpu_pct),
        }
    }
}

/// A storm without and with a callout replica.
#[derive(Debug, Serialize)]
pub(crate) struct Replica {
    pub(crate) alone_per_s: f64,
    pub(crate) with_per_s: f64,
    pub(crate) alone: StormCost,
    pub(crate) with: StormCost,
}

/// Exchanges on the loopback face.
#[derive(Debug, Serialize)]
pub(crate) struct Arms {
    pub(crate) agent: Exchanges,
    pub(crate) human: Exchanges,
}

/// A load of exchanges.
#[derive(Debug, Serialize)]
pub(crate) struct Exchanges {
    pub(crate) total: usize,
    pub(crate) per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) refused: usize,
    pub(crate) service_cpu_pct: f64,
    pub(crate) broker_cpu_pct: f64,
}
