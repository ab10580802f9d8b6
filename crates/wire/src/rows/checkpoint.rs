//! How a checkpoint stands: `cp.<e>.<token>.status` in the records bucket (contract 02 §11).

use super::closed::Closed;
use crate::error::EpError;

/// A checkpoint's status, as far as it decides who may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointStatus {
    /// Nobody has answered, and its deadline has not come.
    Waiting,
    /// It was resumed; `answered` by a recorded answer, which alone can be amended.
    Resumed {
        /// Whether it names the accepted answer.
        answered: bool,
    },
    /// Its deadline came first.
    Expired,
}

impl CheckpointStatus {
    /// Reads a status row; garbled is `internal`.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        const MEMBERS: [&str; 8] = [
            "state",
            "deadlineGeneration",
            "deadline",
            "observedSpecRevision",
            "settledGeneration",
            "settledHolder",
            "settledTs",
            "settledAnswerId",
        ];
        let row = Closed::parse("checkpoint status", bytes, &MEMBERS)?;
        let state = row.text("state")?;
        let generation = row.positive("deadlineGeneration")?;
        row.uint("deadline")?;
        row.positive("observedSpecRevision")?;
        let settled = ["settledGeneration", "settledHolder", "settledTs", "settledAnswerId"];
        if state == "waiting" {
            return if settled.iter().any(|member| row.has(member)) {
                Err(row.garbled("it waits and is settled"))
            } else {
                Ok(Self::Waiting)
            };
        }
        if row.positive("settledGeneration")? != generation {
            return Err(row.garbled("it was settled under another deadline than it has"));
        }
        row.uint("settledTs")?;
        match state {
            "resumed" if row.has("settledHolder") => {
                let answer = row.optional("settledAnswerId", Closed::non_empty)?;
                Ok(Self::Resumed { answered: answer.is_some() })
            }
            "resumed" => Err(row.garbled("it was resumed by nobody")),
            "expired" if row.has("settledHolder") || row.has("settledAnswerId") => {
                Err(row.garbled("it expired and was resumed"))
            }
            "expired" => Ok(Self::Expired),
            _ => Err(row.garbled("its state is unknown")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(state: &str, more: &Value) -> Vec<u8> {
        let mut row =
            json!({ "state": state, "deadlineGeneration": 2, "deadline": 9, "observedSpecRevision": 1 });
        for (member, value) in more.as_object().unwrap() {
            row[member] = value.clone();
        }
        row.to_string().into_bytes()
    }

    #[test]
    fn a_status_is_waiting_resumed_or_expired() {
        let settled = json!({ "settledGeneration": 2, "settledTs": 5, "settledHolder": { "id": "manager" } });
        let mut answered = settled.clone();
        answered["settledAnswerId"] = json!("a1");
        let expired = json!({ "settledGeneration": 2, "settledTs": 5 });
        for (state, more, want) in [
            ("waiting", json!({}), Some(CheckpointStatus::Waiting)),
            ("resumed", settled.clone(), Some(CheckpointStatus::Resumed { answered: false })),
            ("resumed", answered.clone(), Some(CheckpointStatus::Resumed { answered: true })),
            ("expired", expired.clone(), Some(CheckpointStatus::Expired)),
            ("waiting", expired.clone(), None),
            ("resumed", expired.clone(), None),
            ("resumed", json!({}), None),
            ("expired", settled, None),
            ("expired", json!({ "settledGeneration": 1, "settledTs": 5 }), None),
            ("paused", expired, None),
            ("waiting", json!({ "more": 1 }), None),
        ] {
            assert_eq!(CheckpointStatus::parse(&row(state, &more)).ok(), want, "{state} {more}");
        }
    }
}
