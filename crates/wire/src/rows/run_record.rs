//! The record of a run: what it was started with, and how it stands (contract 03 §L, 02 §6).
//!
//! Its driver writes both halves. This service only reads them, through the leader: whether a run may be attempted again,
//! and whether it still runs under the coordinates that a renewal names.

use serde_json::Value;

use super::closed::Closed;
use crate::{error::EpError, manager_authority::RunId, time::Revision};

const SPEC: &str = "run spec";
const STATUS: &str = "run status";
const VERSION: u64 = 1;

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// A driver executes it.
    Running,
    /// Its driver let go of it; it has no result, and may be taken over.
    Released,
    /// It ended with a result.
    Completed,
    /// It ended without one.
    Failed,
}

/// The driver's own report of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStatus {
    /// How it stands.
    pub state: RunState,
    /// Who holds it: a key of the driver's manager, a dot, and the takeover id.
    pub holder: String,
    /// How often it was taken up, at least 1.
    pub epoch: u64,
    /// Which holder may write, at least 1.
    pub fencing_token: u64,
    /// The spec that it was written under.
    pub observed_spec_revision: Revision,
}

/// Reads the spec stored under a key of this run; what it pins is the driver's business.
pub fn check_run_spec(run: &RunId, bytes: &[u8]) -> Result<(), EpError> {
    let row = Closed::parse(SPEC, bytes, &["v", "run", "pins", "createdAt", "forkedFrom"])?;
    if row.uint("v")? != VERSION {
        return Err(row.garbled("its version is not 1"));
    }
    if row.token::<RunId>("run")? != *run {
        return Err(row.garbled("it is of another run than its key"));
    }
    if !row.value("pins").is_some_and(Value::is_object) {
        return Err(row.garbled("its pins are no object"));
    }
    Ok(())
}

impl RunState {
    /// The state's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Released => "released",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// Whether nothing runs of it any more, ever.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

impl RunStatus {
    /// Reads a status row; garbled is `internal`.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let members =
            ["v", "observedSpecRevision", "state", "holder", "epoch", "fencingToken", "journalHigh", "at"];
        let row = Closed::parse(STATUS, bytes, &members)?;
        if row.uint("v")? != VERSION {
            return Err(row.garbled("its version is not 1"));
        }
        let state = match row.text("state")? {
            "running" => RunState::Running,
            "released" => RunState::Released,
            "completed" => RunState::Completed,
            "failed" => RunState::Failed,
            _ => return Err(row.garbled("its state is unknown")),
        };
        row.uint("journalHigh")?;
        Ok(Self {
            state,
            holder: row.non_empty("holder")?.to_owned(),
            epoch: row.positive("epoch")?,
            fencing_token: row.positive("fencingToken")?,
            observed_spec_revision: Revision(row.uint("observedSpecRevision")?),
        })
    }

    /// The holder's key and takeover id: its two sides of the last dot (contract 03 §K.2).
    pub fn holder_parts(&self) -> Option<(&str, &str)> {
        self.holder.rsplit_once('.')
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> RunId {
        RunId::parse(&format!("run-{}", "a".repeat(32))).unwrap()
    }

    fn status() -> Value {
        json!({
            "v": 1, "observedSpecRevision": 4, "state": "running", "holder": "UKEY.0123456789abcdef", "epoch": 2,
            "fencingToken": 3, "journalHigh": 0, "at": 7,
        })
    }

    fn parse(value: &Value) -> Result<RunStatus, EpError> {
        RunStatus::parse(value.to_string().as_bytes())
    }

    #[test]
    fn a_status_reads_in_every_state() {
        for (word, state, ends) in [
            ("running", RunState::Running, false),
            ("released", RunState::Released, false),
            ("completed", RunState::Completed, true),
            ("failed", RunState::Failed, true),
        ] {
            let mut row = status();
            row["state"] = json!(word);
            let parsed = parse(&row).unwrap();
            assert_eq!(
                (parsed.state, parsed.state.as_str(), parsed.state.is_terminal()),
                (state, word, ends)
            );
            assert_eq!((parsed.epoch, parsed.fencing_token, parsed.observed_spec_revision.0), (2, 3, 4));
            assert_eq!(parsed.holder_parts(), Some(("UKEY", "0123456789abcdef")));
        }
    }

    #[test]
    fn a_garbled_status_is_refused() {
        for (member, bad) in [
            ("v", json!(2)),
            ("state", json!("paused")),
            ("holder", json!("")),
            ("epoch", json!(0)),
            ("fencingToken", json!(0)),
            ("fencingToken", json!("1")),
            ("journalHigh", json!(-1)),
            ("observedSpecRevision", json!(null)),
            ("more", json!(1)),
        ] {
            let mut row = status();
            row[member] = bad.clone();
            assert!(parse(&row).is_err(), "{member} {bad}");
        }
        let mut row = status();
        row["holder"] = json!("nodot");
        assert_eq!(parse(&row).unwrap().holder_parts(), None);
    }

    #[test]
    fn a_spec_is_of_its_run() {
        let good = json!({ "v": 1, "run": run(), "pins": {}, "createdAt": 1 });
        let check = |row: &Value| check_run_spec(&run(), row.to_string().as_bytes());
        check(&good).unwrap();
        for (member, bad) in
            [("v", json!(2)), ("run", json!("run-1")), ("pins", json!([])), ("more", json!(1))]
        {
            let mut row = good.clone();
            row[member] = bad;
            assert!(check(&row).is_err(), "{member}");
        }
    }
}
