//! The lease of a pool item, `lease.<endpoint>.<pool>.<caller>.<id>.spec` in the records bucket (contract 02 §5).
//!
//! One key decides about one item: who works on it now, and, once settled, how it ended. A commit, a redelivery, an
//! expiry and a retirement all contend on its revision; the terminal fact is derived from the winner. The chapters
//! leave its members open; those here are the public schema's.

use serde::Serialize;
use serde_json::Value;

use super::{
    closed::{Closed, compact},
    facts::{Disposition, WorkTerminal, Worker},
};
use crate::{
    acceptance::Acceptance,
    endpoint_token::{Command, EndpointToken},
    error::EpError,
    time::UnixMillis,
    token::{LifecycleUid, OpId},
};

const WHAT: &str = "lease";

/// Which item a lease is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ItemRef {
    /// The endpoint whose pool it is.
    pub endpoint: EndpointToken,
    /// The pool.
    pub pool: Command,
    /// Whose submission.
    pub acceptance: Acceptance,
}

/// The standing of one item.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    source_seq: u64,
    attempt: u64,
    worker: Option<Worker>,
    fencing_token: u64,
    deadline: UnixMillis,
    work_expiry: UnixMillis,
    settled: Option<Settled>,
}

#[derive(Debug, Clone, PartialEq)]
struct Settled {
    how: How,
    at: UnixMillis,
}

#[derive(Debug, Clone, PartialEq)]
enum How {
    Committed { outcome: Value },
    Expired,
    Retired { op_id: OpId, target_uid: LifecycleUid },
}

/// What a settlement makes of an item that nobody committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// Its horizon passed.
    Expired,
    /// The incarnation that it was for retires.
    Retired {
        /// The operation.
        op_id: OpId,
        /// The incarnation.
        target_uid: LifecycleUid,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    v: u64,
    state: &'static str,
    source_seq: u64,
    attempt: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a Worker>,
    fencing_token: u64,
    lease_deadline: UnixMillis,
    work_expiry: UnixMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    disposition: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    op_id: Option<&'a OpId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_uid: Option<&'a LifecycleUid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    committed_ts: Option<UnixMillis>,
}

impl ItemRef {
    /// The key of the item's lease.
    pub fn lease_key(&self) -> String {
        format!("{WHAT}.{}.{}.{}.spec", self.endpoint, self.pool, self.acceptance)
    }
}

impl Lease {
    /// A settlement of an item that was never leased: no worker, zeros where a delivery would have counted.
    pub fn never_leased(work_expiry: UnixMillis, settlement: Settlement, now: UnixMillis) -> Self {
        Self {
            source_seq: 0,
            attempt: 0,
            worker: None,
            fencing_token: 0,
            deadline: work_expiry,
            work_expiry,
            settled: Some(Settled { how: settlement.into(), at: now }),
        }
    }

    /// A worker's assignment.
    pub fn leased(
        source_seq: u64,
        attempt: u64,
        worker: Worker,
        fencing_token: u64,
        deadline: UnixMillis,
        work_expiry: UnixMillis,
    ) -> Self {
        let worker = Some(worker);
        Self { source_seq, attempt, worker, fencing_token, deadline, work_expiry, settled: None }
    }

    /// Reads a stored lease.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        const MEMBERS: [&str; 13] = [
            "v",
            "state",
            "sourceSeq",
            "attempt",
            "worker",
            "fencingToken",
            "leaseDeadline",
            "workExpiry",
            "disposition",
            "outcome",
            "opId",
            "targetUid",
            "committedTs",
        ];
        let row = Closed::parse(WHAT, bytes, &MEMBERS)?;
        if row.uint("v")? != 1 {
            return Err(row.garbled("its version is not 1"));
        }
        let state = row.text("state")?;
        let lease = Self {
            source_seq: row.uint("sourceSeq")?,
            attempt: row.uint("attempt")?,
            worker: if row.has("worker") { Some(Worker::of(&row)?) } else { None },
            fencing_token: row.uint("fencingToken")?,
            deadline: UnixMillis(row.uint("leaseDeadline")?),
            work_expiry: UnixMillis(row.uint("workExpiry")?),
            settled: match state {
                "leased" => None,
                "settled" => Some(Settled::of(&row)?),
                _ => return Err(row.garbled("its state is neither leased nor settled")),
            },
        };
        if lease.settled.is_none() && MEMBERS[8..].iter().any(|member| row.has(member)) {
            return Err(row.garbled("an item that is leased has no settlement"));
        }
        let delivered = [lease.source_seq, lease.attempt, lease.fencing_token].iter().all(|n| *n > 0);
        let committed = matches!(lease.settled, Some(Settled { how: How::Committed { .. }, .. }));
        match &lease.worker {
            None if lease.settled.is_none() || committed => Err(row.garbled("its worker is missing")),
            Some(_) if !delivered => Err(row.garbled("what a worker had was delivered and fenced")),
            _ => Ok(lease),
        }
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        let how = self.settled.as_ref().map(|settled| &settled.how);
        let (outcome, retired) = match how {
            Some(How::Committed { outcome }) => (Some(outcome), None),
            Some(How::Retired { op_id, target_uid }) => (None, Some((op_id, target_uid))),
            Some(How::Expired) | None => (None, None),
        };
        compact(&Wire {
            v: 1,
            state: if self.settled.is_some() { "settled" } else { "leased" },
            source_seq: self.source_seq,
            attempt: self.attempt,
            worker: self.worker.as_ref(),
            fencing_token: self.fencing_token,
            lease_deadline: self.deadline,
            work_expiry: self.work_expiry,
            disposition: how.map(How::as_str),
            outcome,
            op_id: retired.map(|(op_id, _)| op_id),
            target_uid: retired.map(|(_, target_uid)| target_uid),
            committed_ts: self.settled.as_ref().map(|settled| settled.at),
        })
    }

    /// When the item is dead; fixed at acceptance.
    pub fn work_expiry(&self) -> UnixMillis {
        self.work_expiry
    }

    /// Settles an item that is still leased, keeping who had it; a settled one stays as it is.
    #[must_use]
    pub fn settle(self, settlement: Settlement, now: UnixMillis) -> Self {
        let settled = self.settled.or_else(|| Some(Settled { how: settlement.into(), at: now }));
        Self { settled, ..self }
    }

    /// The terminal fact that a settled lease stands for; `None` while it is leased.
    pub fn terminal(&self, item: &ItemRef) -> Option<WorkTerminal> {
        let settled = self.settled.as_ref()?;
        let disposition = match &settled.how {
            How::Committed { outcome } => Disposition::Committed {
                source_seq: self.source_seq,
                attempt: self.attempt,
                fencing_token: self.fencing_token,
                worker: self.worker.clone()?,
                outcome: outcome.clone(),
            },
            How::Expired => Disposition::Expired { work_expiry: self.work_expiry },
            How::Retired { op_id, target_uid } => {
                Disposition::Retired { op_id: op_id.clone(), target_uid: target_uid.clone() }
            }
        };
        Some(WorkTerminal {
            pool: item.pool.clone(),
            acceptance: item.acceptance.clone(),
            disposition,
            ts: settled.at,
        })
    }
}

impl Settled {
    fn of(row: &Closed) -> Result<Self, EpError> {
        let disposition = row.text("disposition")?;
        let outcome = row.value("outcome");
        let binds = row.has("opId") || row.has("targetUid");
        let how = match (disposition, outcome, binds) {
            ("committed", Some(outcome), false) => How::Committed { outcome: outcome.clone() },
            ("expired", None, false) => How::Expired,
            ("retired", None, true) => {
                How::Retired { op_id: row.token("opId")?, target_uid: row.token("targetUid")? }
            }
            _ => return Err(row.garbled("its disposition does not have the members that it carries")),
        };
        Ok(Self { how, at: UnixMillis(row.uint("committedTs")?) })
    }
}

impl How {
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Committed { .. } => "committed",
            Self::Expired => "expired",
            Self::Retired { .. } => "retired",
        }
    }
}

impl From<Settlement> for How {
    fn from(settlement: Settlement) -> Self {
        match settlement {
            Settlement::Expired => Self::Expired,
            Settlement::Retired { op_id, target_uid } => Self::Retired { op_id, target_uid },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::EpCode, token::Principal};

    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";

    fn item() -> ItemRef {
        ItemRef {
            endpoint: EndpointToken::parse("com_x").unwrap(),
            pool: Command::parse("builds").unwrap(),
            acceptance: Acceptance::of_tokens(["local", "alice", UID, "r1"]).unwrap(),
        }
    }

    fn retired() -> Settlement {
        Settlement::Retired {
            op_id: OpId::parse(&"f".repeat(26)).unwrap(),
            target_uid: LifecycleUid::parse(UID).unwrap(),
        }
    }

    fn leased() -> Lease {
        let worker = Worker {
            principal: Principal::parse_key("local.worker").unwrap(),
            lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
            epoch: None,
        };
        Lease::leased(1, 2, worker, 3, UnixMillis(40), UnixMillis(50))
    }

    fn text(lease: &Lease) -> String {
        String::from_utf8(lease.to_bytes()).unwrap()
    }

    #[test]
    fn a_lease_has_these_bytes_and_reads_back() {
        let worker = format!(
            "\"worker\":{{\"kind\":\"agent\",\"owner\":\"local\",\"actor\":\"worker\",\"lifecycleUid\":\"{UID}\"}}"
        );
        assert_eq!(
            text(&leased()),
            format!(
                "{{\"v\":1,\"state\":\"leased\",\"sourceSeq\":1,\"attempt\":2,{worker},\"fencingToken\":3,\
                 \"leaseDeadline\":40,\"workExpiry\":50}}"
            )
        );
        assert_eq!(
            text(&Lease::never_leased(UnixMillis(50), retired(), UnixMillis(60))),
            format!(
                "{{\"v\":1,\"state\":\"settled\",\"sourceSeq\":0,\"attempt\":0,\"fencingToken\":0,\"leaseDeadline\":50,\
                 \"workExpiry\":50,\"disposition\":\"retired\",\"opId\":\"{}\",\"targetUid\":\"{UID}\",\
                 \"committedTs\":60}}",
                "f".repeat(26)
            )
        );
        let committed = format!(
            "{{\"v\":1,\"state\":\"settled\",\"sourceSeq\":1,\"attempt\":2,{worker},\"fencingToken\":3,\
             \"leaseDeadline\":40,\"workExpiry\":50,\"disposition\":\"committed\",\"outcome\":null,\"committedTs\":45}}"
        );
        for lease in [
            leased(),
            leased().settle(Settlement::Expired, UnixMillis(60)),
            leased().settle(retired(), UnixMillis(60)),
            Lease::never_leased(UnixMillis(50), Settlement::Expired, UnixMillis(60)),
            Lease::parse(committed.as_bytes()).unwrap(),
        ] {
            assert_eq!(Lease::parse(&lease.to_bytes()).unwrap(), lease);
            let terminal = lease.terminal(&item());
            assert_eq!(terminal.is_some(), lease.settled.is_some());
            if let Some(terminal) = terminal {
                let read = WorkTerminal::parse(&item().pool, &item().acceptance, &terminal.to_bytes());
                assert_eq!(read.unwrap(), terminal);
            }
        }
    }

    #[test]
    fn the_first_settlement_stands() {
        let expired = leased().settle(Settlement::Expired, UnixMillis(60));
        assert_eq!(expired.clone().settle(retired(), UnixMillis(70)), expired);
        assert_eq!(
            expired.terminal(&item()).unwrap().disposition,
            Disposition::Expired { work_expiry: UnixMillis(50) }
        );
    }

    #[test]
    fn a_garbled_lease_is_internal() {
        let leased = text(&leased());
        let expired = text(&self::leased().settle(Settlement::Expired, UnixMillis(60)));
        let retired = text(&Lease::never_leased(UnixMillis(50), retired(), UnixMillis(60)));
        for bad in [
            String::new(),
            "[]".to_owned(),
            leased.replace("\"v\":1", "\"v\":2"),
            leased.replace("leased", "idle"),
            leased.replace("leased", "settled"),
            leased.replace("\"attempt\":2", "\"attempt\":0"),
            leased.replace("\"fencingToken\":3", "\"fencingToken\":-1"),
            leased.replace("\"workExpiry\":50", "\"workExpiry\":50,\"committedTs\":1"),
            leased.replace("\"workExpiry\":50", "\"workExpiry\":50,\"more\":1"),
            leased.replace("\"worker\":{", "\"worker\":{\"more\":1,"),
            expired.replace(",\"committedTs\":60", ""),
            expired.replace("\"expired\"", "\"committed\""),
            expired.replace("\"expired\"", "\"retired\""),
            expired.replace("\"expired\"", "\"lost\""),
            expired.replace("\"committedTs\"", "\"outcome\":1,\"committedTs\""),
            retired.replace("\"retired\"", "\"expired\""),
            retired.replace("\"retired\"", "\"committed\""),
            retired.replace(&"f".repeat(26), "f"),
        ] {
            assert_eq!(Lease::parse(bad.as_bytes()).unwrap_err().code, EpCode::Internal, "{bad}");
        }
    }

    #[test]
    fn a_lease_lies_under_its_item() {
        assert_eq!(item().lease_key(), format!("lease.com_x.builds.local.alice.{UID}.r1.spec"));
    }
}
