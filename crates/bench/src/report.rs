//! What every report says alike: of the machine, and of a load of connects.

use anyhow::Result;
use serde::Serialize;

use crate::loadgen::Measured;

/// What everything was measured on.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    /// The version of the broker under test, such as `2.15.1`.
    pub(crate) broker: String,
}

impl Machine {
    pub(crate) fn here() -> Result<Self> {
        let binary = cotal_testkit::broker::nats_server_binary();
        let output = std::process::Command::new(binary).arg("-v").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let broker = text.trim().rsplit('v').next().unwrap_or_default().to_owned();
        Ok(Self { cores: std::thread::available_parallelism()?.get(), broker })
    }
}

/// A steady load of connects.
#[derive(Debug, Serialize)]
pub(crate) struct Connects {
    pub(crate) total: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) refused: usize,
}

impl Connects {
    pub(crate) fn of(measured: &Measured) -> Self {
        let Measured { total, p50_ms, p99_ms, refused, .. } = *measured;
        Self { total, p50_ms, p99_ms, refused }
    }
}
