//! How a pool item ends: the terminal fact `wrk.<pool>.<caller>.<id>` (contract 02 §5, 07 §6.4).
//!
//! The chapters name its dispositions and leave its members open; those here are the public schema's. A terminal is
//! derived from a settled [`Lease`](crate::rows::Lease), which is why both speak of the same worker.

use serde::Serialize;
use serde_json::Value;

use super::{check_version, object};
use crate::{
    acceptance::Acceptance,
    canonical::canonical_json,
    endpoint_token::{Command, IdToken},
    error::EpError,
    rows::closed::{Closed, compact},
    time::UnixMillis,
    token::{LifecycleUid, OpId, Principal},
};

const WHAT: &str = "work terminal";

/// Who was given an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Owner and actor.
    pub principal: Principal,
    /// Its incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// The process epoch of an endpoint's instance; an agent has none.
    pub epoch: Option<u64>,
}

/// How an item ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Disposition {
    /// Its worker delivered.
    Committed {
        /// The item's sequence in the work stream, at least 1.
        source_seq: u64,
        /// The delivery that was committed, at least 1.
        attempt: u64,
        /// The lease's token, at least 1.
        fencing_token: u64,
        /// Who delivered.
        worker: Worker,
        /// What.
        outcome: Value,
    },
    /// Its horizon passed.
    Expired {
        /// The horizon.
        work_expiry: UnixMillis,
    },
    /// The incarnation that it was for retired.
    Retired {
        /// The operation.
        op_id: OpId,
        /// The incarnation.
        target_uid: LifecycleUid,
    },
}

/// The terminal fact of one item.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkTerminal {
    /// The pool.
    pub pool: Command,
    /// Whose submission.
    pub acceptance: Acceptance,
    /// How it ended.
    pub disposition: Disposition,
    /// When.
    pub ts: UnixMillis,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum WorkerWire<'a> {
    Agent { owner: &'a str, actor: &'a str, lifecycle_uid: &'a LifecycleUid },
    Endpoint { owner: &'a str, actor: &'a str, lifecycle_uid: &'a LifecycleUid, epoch: u64 },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallerWire<'a> {
    owner: &'a str,
    actor: &'a str,
    uid: &'a LifecycleUid,
    id: &'a IdToken,
}

#[derive(Serialize)]
struct Wire<'a> {
    v: u64,
    disposition: &'static str,
    pool: &'a Command,
    caller: CallerWire<'a>,
    #[serde(flatten)]
    own: OwnWire<'a>,
    ts: UnixMillis,
}

#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum OwnWire<'a> {
    Committed { source_seq: u64, attempt: u64, fencing_token: u64, worker: &'a Worker, outcome: &'a Value },
    Expired { work_expiry: UnixMillis },
    Retired { op_id: &'a OpId, target_uid: &'a LifecycleUid },
}

impl Worker {
    /// Reads the member `worker` of a row.
    pub(in crate::rows) fn of(row: &Closed) -> Result<Self, EpError> {
        let worker =
            object(row, "pool worker", "worker", &["kind", "owner", "actor", "lifecycleUid", "epoch"])?;
        let epoch = match (worker.text("kind")?, worker.has("epoch")) {
            ("agent", false) => None,
            ("endpoint", true) => Some(worker.uint("epoch")?),
            _ => return Err(worker.garbled("it is neither an agent nor an endpoint with its epoch")),
        };
        let principal = Principal::parse_key(&format!("{}.{}", worker.text("owner")?, worker.text("actor")?))
            .map_err(|_| worker.garbled("owner and actor must name a principal"))?;
        Ok(Self { principal, lifecycle_uid: worker.token("lifecycleUid")?, epoch })
    }
}

impl Serialize for Worker {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (owner, actor) = (self.principal.owner.as_str(), self.principal.actor.as_str());
        let lifecycle_uid = &self.lifecycle_uid;
        match self.epoch {
            None => WorkerWire::Agent { owner, actor, lifecycle_uid },
            Some(epoch) => WorkerWire::Endpoint { owner, actor, lifecycle_uid, epoch },
        }
        .serialize(serializer)
    }
}

impl Disposition {
    /// The wire word.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Committed { .. } => "committed",
            Self::Expired { .. } => "expired",
            Self::Retired { .. } => "retired",
        }
    }
}

impl WorkTerminal {
    /// Reads the terminal of this item.
    pub fn parse(pool: &Command, acceptance: &Acceptance, bytes: &[u8]) -> Result<Self, EpError> {
        const COMMON: [&str; 5] = ["v", "disposition", "pool", "caller", "ts"];
        const COMMITTED: [&str; 5] = ["sourceSeq", "attempt", "fencingToken", "worker", "outcome"];
        const EXPIRED: [&str; 1] = ["workExpiry"];
        const RETIRED: [&str; 2] = ["opId", "targetUid"];
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|_| EpError::internal(format!("a stored {WHAT} is not valid JSON")))?;
        let own: &[&str] = match value.get("disposition").and_then(Value::as_str) {
            Some("committed") => &COMMITTED,
            Some("expired") => &EXPIRED,
            Some("retired") => &RETIRED,
            _ => &[],
        };
        let fact = Closed::of(WHAT, value, &[&COMMON, own].concat())?;
        check_version(&fact)?;
        if fact.text("pool")? != pool.as_str() {
            return Err(fact.garbled("it names another pool than its subject"));
        }
        let caller = object(&fact, "work terminal caller", "caller", &["owner", "actor", "uid", "id"])?;
        let tokens = [caller.text("owner")?, caller.text("actor")?, caller.text("uid")?, caller.text("id")?];
        if Acceptance::of_tokens(tokens).as_ref() != Some(acceptance) {
            return Err(fact.garbled("it names another submission than its subject"));
        }
        let disposition = match fact.text("disposition")? {
            "committed" => Disposition::Committed {
                source_seq: fact.positive("sourceSeq")?,
                attempt: fact.positive("attempt")?,
                fencing_token: fact.positive("fencingToken")?,
                worker: Worker::of(&fact)?,
                outcome: fact
                    .value("outcome")
                    .cloned()
                    .ok_or_else(|| fact.garbled("what was committed has an outcome"))?,
            },
            "expired" => Disposition::Expired { work_expiry: UnixMillis(fact.uint("workExpiry")?) },
            "retired" => {
                Disposition::Retired { op_id: fact.token("opId")?, target_uid: fact.token("targetUid")? }
            }
            _ => return Err(fact.garbled("its disposition is not committed, expired or retired")),
        };
        let ts = UnixMillis(fact.uint("ts")?);
        Ok(Self { pool: pool.clone(), acceptance: acceptance.clone(), disposition, ts })
    }

    /// The fact's exact bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let caller = &self.acceptance.caller;
        compact(&Wire {
            v: 1,
            disposition: self.disposition.as_str(),
            pool: &self.pool,
            caller: CallerWire {
                owner: caller.principal.owner.as_str(),
                actor: caller.principal.actor.as_str(),
                uid: &caller.lifecycle_uid,
                id: &self.acceptance.id,
            },
            own: match &self.disposition {
                Disposition::Committed { source_seq, attempt, fencing_token, worker, outcome } => {
                    OwnWire::Committed {
                        source_seq: *source_seq,
                        attempt: *attempt,
                        fencing_token: *fencing_token,
                        worker,
                        outcome,
                    }
                }
                Disposition::Expired { work_expiry } => OwnWire::Expired { work_expiry: *work_expiry },
                Disposition::Retired { op_id, target_uid } => OwnWire::Retired { op_id, target_uid },
            },
            ts: self.ts,
        })
    }

    /// Whether both say the same, as canonical JSON has it.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        let canonical = |fact: &Self| {
            serde_json::from_slice(&fact.to_bytes()).ok().and_then(|v: Value| canonical_json(&v).ok())
        };
        canonical(self).is_some_and(|text| canonical(other) == Some(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
    const TARGET: &str = "tttttttttttttttttttttttttt";

    fn pool() -> Command {
        Command::parse("builds").unwrap()
    }

    fn acceptance() -> Acceptance {
        Acceptance::of_tokens(["local", "alice", UID, "r1"]).unwrap()
    }

    fn terminal(disposition: Disposition) -> WorkTerminal {
        WorkTerminal { pool: pool(), acceptance: acceptance(), disposition, ts: UnixMillis(9) }
    }

    fn committed(epoch: Option<u64>) -> Disposition {
        Disposition::Committed {
            source_seq: 1,
            attempt: 2,
            fencing_token: 3,
            worker: Worker {
                principal: Principal::parse_key("local.worker").unwrap(),
                lifecycle_uid: LifecycleUid::parse(TARGET).unwrap(),
                epoch,
            },
            outcome: serde_json::json!({ "n": 1 }),
        }
    }

    fn retired() -> Disposition {
        Disposition::Retired {
            op_id: OpId::parse(&"f".repeat(26)).unwrap(),
            target_uid: LifecycleUid::parse(TARGET).unwrap(),
        }
    }

    #[test]
    fn every_disposition_has_these_bytes_and_reads_back() {
        let caller = format!(
            "\"pool\":\"builds\",\"caller\":{{\"owner\":\"local\",\"actor\":\"alice\",\"uid\":\"{UID}\",\"id\":\"r1\"}}"
        );
        let worker = format!("\"owner\":\"local\",\"actor\":\"worker\",\"lifecycleUid\":\"{TARGET}\"");
        for (disposition, word, own) in [
            (
                committed(None),
                "committed",
                format!(
                    "\"sourceSeq\":1,\"attempt\":2,\"fencingToken\":3,\"worker\":{{\"kind\":\"agent\",{worker}}},\
                     \"outcome\":{{\"n\":1}}"
                ),
            ),
            (
                committed(Some(0)),
                "committed",
                format!(
                    "\"sourceSeq\":1,\"attempt\":2,\"fencingToken\":3,\"worker\":{{\"kind\":\"endpoint\",{worker},\
                     \"epoch\":0}},\"outcome\":{{\"n\":1}}"
                ),
            ),
            (Disposition::Expired { work_expiry: UnixMillis(5) }, "expired", "\"workExpiry\":5".to_owned()),
            (retired(), "retired", format!("\"opId\":\"{}\",\"targetUid\":\"{TARGET}\"", "f".repeat(26))),
        ] {
            let fact = terminal(disposition);
            let text = String::from_utf8(fact.to_bytes()).unwrap();
            assert_eq!(text, format!("{{\"v\":1,\"disposition\":\"{word}\",{caller},{own},\"ts\":9}}"));
            let read = WorkTerminal::parse(&pool(), &acceptance(), text.as_bytes()).unwrap();
            assert!(read == fact && read.says_the_same_as(&fact));
        }
        let expired = terminal(Disposition::Expired { work_expiry: UnixMillis(5) });
        assert!(!expired.says_the_same_as(&terminal(retired())));
    }

    #[test]
    fn a_garbled_or_misplaced_terminal_is_internal() {
        let text = |disposition| String::from_utf8(terminal(disposition).to_bytes()).unwrap();
        let (expired, endpoint) =
            (text(Disposition::Expired { work_expiry: UnixMillis(5) }), text(committed(Some(1))));
        let (agent, retired) = (text(committed(None)), text(retired()));
        for bad in [
            String::new(),
            "[]".to_owned(),
            expired.replace("\"v\":1", "\"v\":2"),
            expired.replace("expired", "lost"),
            expired.replace("expired", "retired"),
            expired.replace("builds", "other"),
            expired.replace("alice", "bob"),
            expired.replace("\"r1\"", "\"r2\""),
            expired.replace("\"id\":\"r1\"", "\"id\":\"r1\",\"more\":1"),
            expired.replace("\"workExpiry\":5", "\"workExpiry\":-5"),
            expired.replace("\"ts\":9", "\"ts\":\"9\""),
            expired.replace("\"ts\":9", "\"opId\":\"x\",\"ts\":9"),
            agent.replace("\"attempt\":2", "\"attempt\":0"),
            agent.replace(",\"outcome\":{\"n\":1}", ""),
            agent.replace("\"agent\"", "\"endpoint\""),
            agent.replace("\"agent\"", "\"ghost\""),
            endpoint.replace("\"endpoint\"", "\"agent\""),
            endpoint.replace("\"epoch\":1", "\"epoch\":1.5"),
            retired.replace(&"f".repeat(26), "f"),
            retired.replace(TARGET, "t"),
        ] {
            let read = WorkTerminal::parse(&pool(), &acceptance(), bad.as_bytes());
            assert_eq!(read.unwrap_err().code, EpCode::Internal, "{bad}");
        }
    }
}
