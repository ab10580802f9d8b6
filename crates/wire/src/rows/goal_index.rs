//! Goal index rows `goalidx.<endpoint>.<owner>.<actor>.<uid>.<goal>` in the records bucket (contract 05 §8.7, 06 §10).

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::closed::Closed;
use crate::error::EpError;

const WHAT: &str = "goal index row";
const VERSION: u64 = 1;

/// A running goal, as the manager's index lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoalIndexRow {
    /// The endpoint's token.
    pub endpoint: String,
    /// Who asked.
    pub owner: String,
    /// As which actor.
    pub actor: String,
    /// In which incarnation.
    pub uid: String,
    /// The goal.
    pub goal_id: String,
    /// The manager instance that runs it.
    pub iid: String,
    /// What was allocated to it, if anything.
    pub allocated: Option<Allocated>,
}

/// An agent that a goal has allocated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocated {
    /// Its name.
    pub name: String,
    /// Its actor.
    pub actor: String,
    /// Its incarnation.
    pub uid: String,
    /// Until when it must be ready, in milliseconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_deadline_ms: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    v: u64,
    endpoint: &'a str,
    owner: &'a str,
    actor: &'a str,
    uid: &'a str,
    goal_id: &'a str,
    iid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocated: Option<&'a Allocated>,
}

impl Serialize for GoalIndexRow {
    /// As it is stored, and as a scan answers it.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { endpoint, owner, actor, uid, goal_id, iid, allocated } = self;
        let allocated = allocated.as_ref();
        Wire { v: VERSION, endpoint, owner, actor, uid, goal_id, iid, allocated }.serialize(serializer)
    }
}

impl GoalIndexRow {
    /// Reads the row stored under `key`, whose qualifiers must be the row's own.
    pub fn parse(key: &str, bytes: &[u8]) -> Result<Self, EpError> {
        const MEMBERS: [&str; 8] = ["v", "endpoint", "owner", "actor", "uid", "goalId", "iid", "allocated"];
        let row = Closed::parse(WHAT, bytes, &MEMBERS)?;
        if row.uint("v")? != VERSION {
            return Err(row.garbled("its version is not 1"));
        }
        let text = |member: &str| row.text(member).map(str::to_owned);
        let parsed = Self {
            endpoint: text("endpoint")?,
            owner: text("owner")?,
            actor: text("actor")?,
            uid: text("uid")?,
            goal_id: text("goalId")?,
            iid: text("iid")?,
            allocated: row.value("allocated").map(Allocated::of).transpose()?,
        };
        let Self { endpoint, owner, actor, uid, goal_id, .. } = &parsed;
        if key != format!("goalidx.{endpoint}.{owner}.{actor}.{uid}.{goal_id}") {
            return Err(row.garbled("it is stored under another key"));
        }
        Ok(parsed)
    }
}

impl Allocated {
    fn of(value: &Value) -> Result<Self, EpError> {
        let members = ["name", "actor", "uid", "readinessDeadlineMs"];
        let row = Closed::of("goal index allocation", value.clone(), &members)?;
        let text = |member: &str| row.text(member).map(str::to_owned);
        Ok(Self {
            name: text("name")?,
            actor: text("actor")?,
            uid: text("uid")?,
            readiness_deadline_ms: row.optional("readinessDeadlineMs", Closed::positive)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "goalidx.manager.u_x.alice.uid1.g1";
    const ROW: &str = r#"{"v":1,"endpoint":"manager","owner":"u_x","actor":"alice","uid":"uid1","goalId":"g1","iid":"i","allocated":{"name":"n","actor":"a","uid":"u","readinessDeadlineMs":5}}"#;

    #[test]
    fn a_row_reads_with_and_without_its_allocation() {
        let row = GoalIndexRow::parse(KEY, ROW.as_bytes()).unwrap();
        assert_eq!((row.endpoint.as_str(), row.goal_id.as_str(), row.iid.as_str()), ("manager", "g1", "i"));
        assert_eq!(serde_json::to_string(&row).unwrap(), ROW);
        assert_eq!(row.allocated.unwrap().readiness_deadline_ms, Some(5));
        let open = ROW.replace(",\"readinessDeadlineMs\":5", "");
        let row = GoalIndexRow::parse(KEY, open.as_bytes()).unwrap();
        assert_eq!(row.allocated.unwrap().readiness_deadline_ms, None);
        let (bare, _) = ROW.split_once(",\"allocated\"").unwrap();
        let bare = format!("{bare}}}");
        let row = GoalIndexRow::parse(KEY, bare.as_bytes()).unwrap();
        assert_eq!((serde_json::to_string(&row).unwrap(), row.allocated), (bare, None));
    }

    #[test]
    fn a_garbled_row_is_internal() {
        for bad in [
            String::new(),
            "[]".to_owned(),
            ROW.replace("\"v\":1", "\"v\":2"),
            ROW.replace("\"v\":1", "\"v\":1,\"more\":1"),
            ROW.replace("\"g1\"", "\"g2\""),
            ROW.replace("\"manager\"", "\"other\""),
            ROW.replace("\"uid1\"", "7"),
            ROW.replace("\"iid\":\"i\",", ""),
            ROW.replace("\"readinessDeadlineMs\":5", "\"readinessDeadlineMs\":0"),
            ROW.replace("\"readinessDeadlineMs\":5", "\"more\":5"),
            ROW.replace("\"name\":\"n\",", ""),
        ] {
            let refusal = GoalIndexRow::parse(KEY, bad.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, crate::EpCode::Internal, "{bad}");
        }
    }
}
