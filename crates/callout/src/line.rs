//! The one log line of an answered request (contract 04 §8.7, seed "Callout deadlines").
//!
//! Every byte of a line is printable ASCII, whatever a space, a reason or a host is made of, so a line is one line
//! and its fields are found by splitting at spaces outside quotes.

use std::{fmt, time::Duration};

use cotal_wire::{Actor, DerivedOwner, Nkey, Space, User};

use crate::{
    denial::fold,
    progress::{Step, StepTimes},
};

/// How a request was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A user JWT was signed.
    Minted,
    /// A denial was signed.
    Denied {
        /// Its text.
        reason: String,
    },
    /// The deadline passed.
    Timeout {
        /// The step that the request was in.
        at: Step,
    },
    /// Admission refused it.
    Shed {
        /// How long the oldest waiting request had waited.
        waited: Duration,
        /// How many requests were waiting or in progress.
        ahead: usize,
    },
}

impl Outcome {
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Minted => "minted",
            Self::Denied { .. } => "denied",
            Self::Timeout { .. } => "timeout",
            Self::Shed { .. } => "shed",
        }
    }
}

/// The line of one answered request.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    /// How it was answered.
    pub outcome: Outcome,
    /// The space.
    pub space: &'a Space,
    /// The user key that the broker generated for this connect.
    pub user: &'a Nkey<User>,
    /// The broker's client id.
    pub cid: u64,
    /// Whose connect it is, once known (decision D5: left out before).
    pub principal: Option<(&'a DerivedOwner, &'a Actor)>,
    /// Time spent in each step.
    pub times: StepTimes,
    /// Receipt to answer.
    pub total: Duration,
    /// Above this total the line is a warning.
    pub slow: Duration,
}

impl Line<'_> {
    const fn level(&self) -> &'static str {
        let slow = self.total.as_millis() > self.slow.as_millis();
        if slow || matches!(self.outcome, Outcome::Timeout { .. } | Outcome::Shed { .. }) {
            "warn"
        } else {
            "info"
        }
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = Plain(self.space.as_str());
        write!(f, "auth callout: level={} outcome={} space={space}", self.level(), self.outcome.as_str())?;
        write!(f, " req={} cid={}", self.user, self.cid)?;
        if let Some((owner, actor)) = self.principal {
            write!(f, " owner={owner} actor={actor}")?;
        }
        for step in Step::ALL {
            write!(f, " {}_ms={}", step.as_str(), self.times.of(step).as_millis())?;
        }
        write!(f, " total_ms={}", self.total.as_millis())?;
        match &self.outcome {
            Outcome::Minted => Ok(()),
            Outcome::Denied { reason } => write!(f, " reason={}", Quoted(reason)),
            Outcome::Timeout { at } => write!(f, " at={}", at.as_str()),
            Outcome::Shed { waited, ahead } => write!(f, " waited_ms={} ahead={ahead}", waited.as_millis()),
        }
    }
}

/// The line of a request that gets no answer, and of anything else that has no outcome.
#[derive(Debug, Clone, Copy)]
pub struct Note<'a> {
    /// The space.
    pub space: &'a Space,
    /// What happened.
    pub what: &'a str,
}

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "auth callout: level=warn space={} {}", Plain(self.space.as_str()), fold(self.what))
    }
}

/// A value as it is when it is one plain word, else quoted: a space's name may hold anything.
struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\')) {
            f.write_str(self.0)
        } else {
            Quoted(self.0).fmt(f)
        }
    }
}

/// A value in double quotes, folded, its quotes and backslashes escaped.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        f.write_char('"')?;
        for c in fold(self.0).chars() {
            if matches!(c, '"' | '\\') {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const USER: &str = "UABCDEFGHIJKLMNOPQRSTUVWXYZ234567ABCDEFGHIJKLMNOPQRSTUVW";

    struct Parts {
        space: Space,
        user: Nkey<User>,
        owner: DerivedOwner,
        actor: Actor,
    }

    fn parts(space: &str) -> Parts {
        Parts {
            space: Space::parse(space).unwrap(),
            user: Nkey::parse(USER).unwrap(),
            owner: DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap(),
            actor: Actor::parse("cli").unwrap(),
        }
    }

    fn line(parts: &Parts, outcome: Outcome, total_ms: u64, known: bool) -> String {
        let mut times = StepTimes::default();
        times.add(Step::Verify, Duration::from_millis(1));
        times.add(Step::Ledger, Duration::from_micros(2_999));
        times.add(Step::Sign, Duration::from_millis(1));
        Line {
            outcome,
            space: &parts.space,
            user: &parts.user,
            cid: 42,
            principal: known.then_some((&parts.owner, &parts.actor)),
            times,
            total: Duration::from_millis(total_ms),
            slow: Duration::from_millis(500),
        }
        .to_string()
    }

    /// Splits at spaces outside quotes, as an operator's tool would.
    fn fields(line: &str) -> Vec<(String, String)> {
        let rest = line.strip_prefix("auth callout: ").unwrap();
        let mut fields = Vec::new();
        let mut chars = rest.chars().peekable();
        while chars.peek().is_some() {
            let name: String = chars.by_ref().take_while(|c| *c != '=').collect();
            let mut value = String::new();
            if chars.peek() == Some(&'"') {
                chars.next();
                while let Some(c) = chars.next() {
                    match c {
                        '\\' => value.push(chars.next().unwrap()),
                        '"' => break,
                        c => value.push(c),
                    }
                }
                assert!(matches!(chars.next(), None | Some(' ')));
            } else {
                value = chars.by_ref().take_while(|c| *c != ' ').collect();
            }
            fields.push((name, value));
        }
        fields
    }

    #[test]
    fn a_minted_line_is_the_contracts_to_the_letter() {
        assert_eq!(
            line(&parts("demo"), Outcome::Minted, 4, true),
            format!(
                "auth callout: level=info outcome=minted space=demo req={USER} cid=42 \
                 owner=u_aaaaaaaaaaaaaaaaaaaaaaaaaa actor=cli queue_ms=0 verify_ms=1 ledger_ms=2 policy_ms=0 \
                 sign_ms=1 total_ms=4"
            )
        );
    }

    #[test]
    fn each_outcome_adds_its_own_fields_at_the_end() {
        let parts = parts("demo");
        let denied = line(&parts, Outcome::Denied { reason: "no".to_owned() }, 4, true);
        assert!(denied.ends_with(r#"total_ms=4 reason="no""#), "{denied}");
        let timeout = line(&parts, Outcome::Timeout { at: Step::Ledger }, 1_750, true);
        assert!(timeout.ends_with("total_ms=1750 at=ledger"), "{timeout}");
        let shed = Outcome::Shed { waited: Duration::from_millis(900), ahead: 70 };
        let shed = line(&parts, shed, 0, false);
        assert!(shed.ends_with("total_ms=0 waited_ms=900 ahead=70"), "{shed}");
    }

    #[test]
    fn owner_and_actor_are_left_out_before_they_are_known() {
        let denied = line(&parts("demo"), Outcome::Denied { reason: "no".to_owned() }, 4, false);
        assert!(denied.contains(" cid=42 queue_ms=0"), "{denied}");
    }

    #[test]
    fn a_line_warns_above_slow_and_for_timeout_and_shed() {
        let parts = parts("demo");
        let level = |outcome, total| line(&parts, outcome, total, true)[20..24].to_owned();
        assert_eq!(level(Outcome::Minted, 500), "info");
        assert_eq!(level(Outcome::Minted, 501), "warn");
        assert_eq!(level(Outcome::Denied { reason: String::new() }, 501), "warn");
        assert_eq!(level(Outcome::Timeout { at: Step::Queue }, 1), "warn");
        assert_eq!(level(Outcome::Shed { waited: Duration::ZERO, ahead: 0 }, 0), "warn");
    }

    proptest! {
        #[test]
        fn a_line_is_one_line_and_reads_back(space in "\\PC{1,20}|[ -~\\n\\t]{1,20}", reason in ".{0,100}|\\PC{0,100}|[ =\"\\\\\\n]{0,30}") {
            prop_assume!(Space::parse(&space).is_ok());
            let line = line(&parts(&space), Outcome::Denied { reason: reason.clone() }, 3, true);
            prop_assert!(line.bytes().all(|b| (0x20..=0x7e).contains(&b)));
            let fields = fields(&line);
            let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
            prop_assert_eq!(names, [
                "level", "outcome", "space", "req", "cid", "owner", "actor", "queue_ms", "verify_ms", "ledger_ms",
                "policy_ms", "sign_ms", "total_ms", "reason",
            ]);
            prop_assert_eq!(&fields[2].1, &fold(&space));
            prop_assert_eq!(&fields[13].1, &fold(&reason));
        }

        #[test]
        fn a_note_is_one_line(space in "\\PC{1,20}", what in ".{0,100}|\\PC{0,100}") {
            prop_assume!(Space::parse(&space).is_ok());
            let space = Space::parse(&space).unwrap();
            let note = Note { space: &space, what: &what }.to_string();
            prop_assert!(note.bytes().all(|b| (0x20..=0x7e).contains(&b)));
        }
    }
}
