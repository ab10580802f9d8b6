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

const MINTED: &str = "minted";
const DENIED: &str = "denied";
const TIMEOUT: &str = "timeout";
const SHED: &str = "shed";

impl Outcome {
    /// The word of `outcome=`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Minted => MINTED,
            Self::Denied { .. } => DENIED,
            Self::Timeout { .. } => TIMEOUT,
            Self::Shed { .. } => SHED,
        }
    }
}

/// What every line begins with.
const PREFIX: &str = "auth callout: ";
/// A host of many spaces puts `[<space>] ` before that (contract 08 §5).
const LANE: char = '[';
/// What ends the name of the lane.
const LANE_THEN_PREFIX: &str = "] auth callout: ";
const INFO: &str = "info";
const WARN: &str = "warn";

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
    /// Whose connect it is, once known (contract 12 D5: left out before).
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
            WARN
        } else {
            INFO
        }
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = Plain(self.space.as_str());
        write!(f, "{PREFIX}level={} outcome={} space={space}", self.level(), self.outcome.as_str())?;
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
    /// Whether somebody should look. One that does not warn is not read back: it is no event of a connect.
    pub warns: bool,
    /// The space.
    pub space: &'a Space,
    /// What happened.
    pub what: &'a str,
}

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = if self.warns { WARN } else { INFO };
        write!(f, "{PREFIX}level={level} space={} {}", Plain(self.space.as_str()), fold(self.what))
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

// === reading back =============================================================================================

/// A line as it is read back from a log. Nobody vouches for a log: what is not of the grammar is no line, and every
/// text in here is printable ASCII and bounded, whatever the file held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The line of an answered request.
    Answered(Box<Answered>),
    /// A [`Note`] that warns.
    Note {
        /// The space, folded.
        space: String,
        /// What happened.
        what: String,
    },
}

/// What the [`Line`] of an answered request says, with its times in whole milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// Whether it is a warning.
    pub warns: bool,
    /// How it was answered.
    pub outcome: Outcome,
    /// The space, folded.
    pub space: String,
    /// The user key that the broker generated for this connect.
    pub user: Nkey<User>,
    /// The broker's client id.
    pub cid: u64,
    /// Whose connect it was, when that was known.
    pub principal: Option<(DerivedOwner, Actor)>,
    /// Time spent in each step.
    pub times: StepTimes,
    /// Receipt to answer.
    pub total: Duration,
}

impl Said {
    /// Reads a line; `None` when it is not the callout's.
    pub fn parse(line: &str) -> Option<Self> {
        let rest = match line.strip_prefix(LANE) {
            // The name may hold the bracket itself: what ends it is the bracket that the line follows.
            Some(lane) => lane.split_once(LANE_THEN_PREFIX)?.1,
            None => line.strip_prefix(PREFIX)?,
        };
        let mut fields = Fields(rest);
        let warns = match fields.take("level")?.as_str() {
            WARN => true,
            INFO => false,
            _ => return None,
        };
        match fields.take("outcome") {
            Some(outcome) => {
                Answered::parse(warns, &outcome, fields).map(|line| Self::Answered(Box::new(line)))
            }
            None if warns => Some(Self::Note { space: fields.take("space")?, what: fold(fields.0) }),
            None => None,
        }
    }

    /// The space, folded.
    pub fn space(&self) -> &str {
        match self {
            Self::Answered(answered) => &answered.space,
            Self::Note { space, .. } => space,
        }
    }
}

impl Answered {
    fn parse(warns: bool, outcome: &str, mut fields: Fields<'_>) -> Option<Self> {
        let space = fields.take("space")?;
        let user = Nkey::parse(&fields.take("req")?).ok()?;
        let cid = fields.take("cid")?.parse().ok()?;
        let principal = match fields.take("owner") {
            Some(owner) => {
                Some((DerivedOwner::parse(&owner).ok()?, Actor::parse(&fields.take("actor")?).ok()?))
            }
            None => None,
        };
        let mut times = StepTimes::default();
        for step in Step::ALL {
            times.add(step, fields.millis(&format!("{}_ms", step.as_str()))?);
        }
        let total = fields.millis("total_ms")?;
        let outcome = match outcome {
            MINTED => Outcome::Minted,
            DENIED => Outcome::Denied { reason: fields.take("reason")? },
            TIMEOUT => {
                let at = fields.take("at")?;
                Outcome::Timeout { at: Step::ALL.into_iter().find(|step| step.as_str() == at)? }
            }
            SHED => Outcome::Shed {
                waited: fields.millis("waited_ms")?,
                ahead: fields.take("ahead")?.parse().ok()?,
            },
            _ => return None,
        };
        fields.0.is_empty().then_some(Self { warns, outcome, space, user, cid, principal, times, total })
    }
}

/// What is left of a line: `name=value` pairs, a space between two.
struct Fields<'a>(&'a str);

impl Fields<'_> {
    /// The value of the next field when it has this name, folded; otherwise the field stays where it is.
    fn take(&mut self, name: &str) -> Option<String> {
        let value = self.0.strip_prefix(name)?.strip_prefix('=')?;
        let (value, rest) = if let Some(quoted) = value.strip_prefix('"') {
            unquote(quoted)?
        } else {
            let end = value.find(' ').unwrap_or(value.len());
            (value[..end].to_owned(), &value[end..])
        };
        // A space stands between two fields, and nowhere else.
        self.0 = match rest.strip_prefix(' ') {
            Some(next) => next,
            None if rest.is_empty() => rest,
            None => return None,
        };
        Some(fold(&value))
    }

    fn millis(&mut self, name: &str) -> Option<Duration> {
        self.take(name)?.parse().ok().map(Duration::from_millis)
    }
}

/// The text up to the closing quote, its escapes undone, and what follows the quote.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((text, &quoted[at + 1..])),
            '\\' => text.push(chars.next()?.1),
            c => text.push(c),
        }
    }
    None
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

    fn read(line: &str) -> Answered {
        match Said::parse(line) {
            Some(Said::Answered(answered)) => *answered,
            other => panic!("{line}: {other:?}"),
        }
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

    #[test]
    fn a_line_of_a_lane_is_the_same_line() {
        let plain = line(&parts("demo"), Outcome::Denied { reason: "no".to_owned() }, 4, true);
        assert!(Said::parse(&plain).is_some());
        assert_eq!(Said::parse(&format!("[demo] {plain}")), Said::parse(&plain));
        assert_eq!(Said::parse(&format!("[demo]{plain}")), None);
    }

    #[test]
    fn what_is_not_of_the_grammar_is_no_line() {
        let good = line(&parts("demo"), Outcome::Denied { reason: "no".to_owned() }, 4, true);
        assert!(Said::parse(&good).is_some());
        for (was, is) in [
            ("auth callout: ", "auth callout:"),
            ("level=info", "level=debug"),
            ("outcome=denied", "outcome=denied "),
            ("outcome=denied", "outcome=granted"),
            ("outcome=denied", "outcome=minted"),
            ("req=U", "req=A"),
            ("cid=42", "cid=-42"),
            (" actor=cli", ""),
            ("queue_ms=0 ", ""),
            ("sign_ms=1", "sign_ms=x"),
            ("reason=\"no\"", "reason=\"no"),
            ("reason=\"no\"", "reason=\"no\"x"),
            ("reason=\"no\"", "reason=\"no\" more=1"),
        ] {
            let bad = good.replacen(was, is, 1);
            assert_ne!(bad, good, "{was}");
            assert_eq!(Said::parse(&bad), None, "{bad}");
        }
        assert_eq!(Said::parse("2026-01-02T03:04:05Z INFO cotal_auth: started"), None);
    }

    #[test]
    fn a_forged_line_reads_back_without_its_escapes() {
        let good = line(&parts("demo"), Outcome::Denied { reason: "no".to_owned() }, 4, true);
        let forged = good.replacen("\"no\"", "\"\u{1b}[2J\u{7}\u{202e}gone\"", 1);
        assert_eq!(read(&forged).outcome, Outcome::Denied { reason: "?[2J??gone".to_owned() });
        let note = "auth callout: level=warn space=\u{1b}]0;x\u{7} \u{1b}[31mred";
        let read = Said::Note { space: "?]0;x?".to_owned(), what: "?[31mred".to_owned() };
        assert_eq!(Said::parse(note), Some(read));
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            Just(Outcome::Minted),
            ".{0,100}|\\PC{0,100}|[ =\"\\\\\\n]{0,30}".prop_map(|reason| Outcome::Denied { reason }),
            prop::sample::select(Step::ALL.to_vec()).prop_map(|at| Outcome::Timeout { at }),
            (any::<u32>(), any::<u32>()).prop_map(|(waited, ahead)| Outcome::Shed {
                waited: Duration::from_millis(waited.into()),
                ahead: ahead as usize,
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_line_is_one_line_and_reads_back_as_what_was_printed(
            space in "\\PC{1,20}|[ -~\\n\\t]{1,20}|[a\\[\\] ]{1,12}",
            outcome in any_outcome(),
            (cid, total, slow) in any::<(u64, u32, u32)>(),
            spent in any::<[u32; 5]>(),
            known in any::<bool>(),
        ) {
            prop_assume!(Space::parse(&space).is_ok());
            let parts = parts(&space);
            let mut times = StepTimes::default();
            for (step, spent) in Step::ALL.into_iter().zip(spent) {
                times.add(step, Duration::from_millis(spent.into()));
            }
            let (total, slow) = (Duration::from_millis(total.into()), Duration::from_millis(slow.into()));
            let line = Line {
                outcome: outcome.clone(),
                space: &parts.space,
                user: &parts.user,
                cid,
                principal: known.then_some((&parts.owner, &parts.actor)),
                times,
                total,
                slow,
            };
            let printed = line.to_string();
            prop_assert!(printed.bytes().all(|b| (0x20..=0x7e).contains(&b)));
            prop_assert_eq!(Said::parse(&format!("[{space}] {printed}")), Said::parse(&printed));
            let outcome = match outcome {
                Outcome::Denied { reason } => Outcome::Denied { reason: fold(&reason) },
                outcome => outcome,
            };
            let answered = Answered {
                warns: line.level() == WARN,
                outcome,
                space: fold(&space),
                user: parts.user.clone(),
                cid,
                principal: known.then(|| (parts.owner.clone(), parts.actor.clone())),
                times,
                total,
            };
            prop_assert_eq!(read(&printed), answered);
        }

        #[test]
        fn a_note_is_one_line_and_reads_back(space in "\\PC{1,20}", what in ".{0,100}|\\PC{0,100}") {
            prop_assume!(Space::parse(&space).is_ok());
            let space = Space::parse(&space).unwrap();
            let calm = Note { warns: false, space: &space, what: &what }.to_string();
            prop_assert!(calm.starts_with("auth callout: level=info space="));
            let note = Note { warns: true, space: &space, what: &what }.to_string();
            prop_assert!(note.bytes().all(|b| (0x20..=0x7e).contains(&b)));
            let read = Said::Note { space: fold(space.as_str()), what: fold(&what) };
            prop_assert_eq!(Said::parse(&note), Some(read));
        }

        #[test]
        fn whatever_a_log_holds_reads_as_printable_text_or_not_at_all(
            text in ".{0,200}|\\PC{0,200}", at in 0usize..400, known in any::<bool>(),
        ) {
            let printed = line(&parts("demo"), Outcome::Denied { reason: text.clone() }, 3, known);
            let cut = printed.get(..at.min(printed.len())).unwrap_or_default();
            for line in [text.clone(), format!("{PREFIX}{text}"), format!("{cut}{text}"), format!("{printed}{text}")] {
                let printable = |text: &str| text.bytes().all(|b| (0x20..=0x7e).contains(&b));
                match Said::parse(&line) {
                    Some(Said::Note { space, what }) => prop_assert!(printable(&space) && printable(&what)),
                    Some(Said::Answered(answered)) => {
                        prop_assert!(printable(&answered.space));
                        if let Outcome::Denied { reason } = &answered.outcome {
                            prop_assert!(printable(reason));
                        }
                    }
                    None => {}
                }
            }
        }
    }
}
