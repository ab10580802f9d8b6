//! Subjects of facts and of pool items (contract 02 §2.3).

use std::fmt;

use crate::{
    acceptance::Acceptance,
    endpoint_subject::MAX_ENDPOINT_SUBJECT,
    endpoint_token::{Command, EndpointToken},
    subject::ROOT,
    token::SpaceToken,
};

/// A fact: `cotal.<space>.epf.<endpoint>.<topic>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactSubject {
    /// The space's token.
    pub space: SpaceToken,
    /// The endpoint that the fact is about.
    pub endpoint: EndpointToken,
    /// What it says.
    pub topic: FactTopic,
}

/// The reserved fact topics that settle accepted work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactTopic {
    /// `dec.<caller>.<id>`: accepted or rejected.
    Decision(Acceptance),
    /// `eff.<caller>.<id>`: an effect ran, or was cancelled.
    Effect(Acceptance),
    /// `goal.<caller>.<goalId>.result`: how a goal ended.
    GoalResult(Acceptance),
    /// `wrk.<pool>.<caller>.<id>`: how a pool item ended.
    WorkTerminal(Command, Acceptance),
}

/// A pool item: `cotal.<space>.epw.<endpoint>.<pool>.<caller>.<id>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkSubject {
    /// The space's token.
    pub space: SpaceToken,
    /// The endpoint whose pool it is.
    pub endpoint: EndpointToken,
    /// The pool.
    pub pool: Command,
    /// Whose submission it carries out.
    pub acceptance: Acceptance,
}

impl FactSubject {
    /// Reads the subject of a settling fact; `None` for every other topic and plane.
    pub fn parse(subject: &str) -> Option<Self> {
        let tokens = tokens(subject)?;
        let [root, space, "epf", endpoint, topic @ ..] = tokens.as_slice() else { return None };
        let topic = match topic {
            ["dec", o, a, u, id] => FactTopic::Decision(Acceptance::of_tokens([o, a, u, id])?),
            ["eff", o, a, u, id] => FactTopic::Effect(Acceptance::of_tokens([o, a, u, id])?),
            ["goal", o, a, u, goal, "result"] => {
                FactTopic::GoalResult(Acceptance::of_tokens([o, a, u, goal])?)
            }
            ["wrk", pool, o, a, u, id] => {
                FactTopic::WorkTerminal(Command::parse(pool).ok()?, Acceptance::of_tokens([o, a, u, id])?)
            }
            _ => return None,
        };
        let (space, endpoint) = plane(root, space, endpoint)?;
        Some(Self { space, endpoint, topic })
    }
}

impl fmt::Display for FactSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ROOT}.{}.epf.{}.{}", self.space, self.endpoint, self.topic)
    }
}

impl fmt::Display for FactTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decision(request) => write!(f, "dec.{request}"),
            Self::Effect(request) => write!(f, "eff.{request}"),
            Self::GoalResult(goal) => write!(f, "goal.{goal}.result"),
            Self::WorkTerminal(pool, request) => write!(f, "wrk.{pool}.{request}"),
        }
    }
}

impl WorkSubject {
    /// Reads an item's subject.
    pub fn parse(subject: &str) -> Option<Self> {
        let tokens = tokens(subject)?;
        let [root, space, "epw", endpoint, pool, o, a, u, id] = tokens.as_slice() else { return None };
        let (space, endpoint) = plane(root, space, endpoint)?;
        let pool = Command::parse(pool).ok()?;
        Some(Self { space, endpoint, pool, acceptance: Acceptance::of_tokens([o, a, u, id])? })
    }

    /// What the pool's durable filters by (contract 07 §6.4 «the pool's filter»).
    pub fn filter(space: &SpaceToken, endpoint: &EndpointToken, pool: &Command) -> String {
        format!("{ROOT}.{space}.epw.{endpoint}.{pool}.>")
    }
}

impl fmt::Display for WorkSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ROOT}.{}.epw.{}.{}.{}", self.space, self.endpoint, self.pool, self.acceptance)
    }
}

fn tokens(subject: &str) -> Option<Vec<&str>> {
    (subject.len() <= MAX_ENDPOINT_SUBJECT).then(|| subject.split('.').collect())
}

fn plane(root: &str, space: &str, endpoint: &str) -> Option<(SpaceToken, EndpointToken)> {
    (root == ROOT).then_some(())?;
    Some((SpaceToken::parse(space).ok()?, EndpointToken::parse(endpoint).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu";

    #[test]
    fn every_settling_topic_reads_back() {
        for topic in [
            format!("dec.{WHO}.r1"),
            format!("eff.{WHO}.r1"),
            format!("goal.{WHO}.g1.result"),
            format!("wrk.builds.{WHO}.r1"),
        ] {
            let subject = format!("cotal.main.epf.com_x.{topic}");
            assert_eq!(FactSubject::parse(&subject).unwrap().to_string(), subject);
        }
        let item = format!("cotal.main.epw.com_x.builds.{WHO}.r1");
        let parsed = WorkSubject::parse(&item).unwrap();
        assert_eq!((parsed.to_string(), item.split('.').count()), (item, 9));
        assert_eq!(
            WorkSubject::filter(&parsed.space, &parsed.endpoint, &parsed.pool),
            "cotal.main.epw.com_x.builds.>"
        );
    }

    #[test]
    fn an_inexact_subject_is_nobodys_fact_and_no_item() {
        for bad in [
            format!("cotal.main.epf.com_x.goal.{WHO}.g1.bind"),
            format!("cotal.main.epf.com_x.dec.{WHO}"),
            format!("cotal.main.epf.com_x.dec.{WHO}.r1.more"),
            format!("cotal.main.epf.com.x.dec.{WHO}.r1"),
            format!("other.main.epf.com_x.dec.{WHO}.r1"),
            format!("cotal.main.epe.com_x.dec.{WHO}.r1"),
            format!("cotal.main.epf.com_x.wrk.a_b.{WHO}.r1"),
            format!("cotal.main.epf.com_x.dec.{}.r1", WHO.replace("alice", "*")),
            format!("cotal.main.epf.com_x.dec.{}.r1", WHO.replace("alice", &"a".repeat(65))),
            "cotal.main.epf.com_x.cp.t1".to_owned(),
            String::new(),
        ] {
            assert_eq!(FactSubject::parse(&bad), None, "{bad}");
        }
        for bad in [
            format!("cotal.main.epw.com_x.builds.{WHO}"),
            format!("cotal.main.epw.com_x.builds.{WHO}.r1.more"),
            format!("cotal.main.epw.com_x.builds.{WHO}.>"),
            format!("cotal.main.epf.com_x.builds.{WHO}.r1"),
            format!("cotal.main.epw.com_x.{}.{WHO}.r1", "b".repeat(33)),
        ] {
            assert_eq!(WorkSubject::parse(&bad), None, "{bad}");
        }
    }
}
