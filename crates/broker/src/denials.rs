//! What the broker refused for lack of permission.
//!
//! The broker answers a forbidden PUB or SUB with an error line of the connection, not of the request. Each is kept
//! here until the one that waits on that very subject claims it, or the next flush reports it.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Older ones are forgotten: they were already logged.
const KEPT: usize = 64;

/// Which direction was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Publish,
    Subscribe,
}

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) direction: Direction,
    pub(crate) subject: String,
}

/// Between an inbox and the number of a flush that nobody may answer: its refusal is the answer.
pub(crate) const FLUSH: &str = ".flush.";

impl Denial {
    /// Whether it is how a flush was answered, which is nothing to report.
    pub(crate) fn answers_a_flush(&self) -> bool {
        self.subject.contains(FLUSH)
    }
}

/// The refusals of one connection that nobody claimed yet.
pub(crate) struct Denials {
    unclaimed: Mutex<VecDeque<Denial>>,
    count: watch::Sender<u64>,
}

impl Denials {
    pub(crate) fn new() -> Self {
        Self { unclaimed: Mutex::new(VecDeque::new()), count: watch::Sender::new(0) }
    }

    /// Wakes at each report after this call.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    pub(crate) fn report(&self, denial: Denial) {
        let mut unclaimed = self.unclaimed.lock();
        if unclaimed.len() == KEPT {
            unclaimed.pop_front();
        }
        unclaimed.push_back(denial);
        drop(unclaimed);
        self.count.send_modify(|count| *count += 1);
    }

    /// Takes one refusal of this subject, if there is any.
    pub(crate) fn claim(&self, direction: Option<Direction>, subject: &str) -> bool {
        let mut unclaimed = self.unclaimed.lock();
        let found = unclaimed.iter().position(|denial| {
            direction.is_none_or(|direction| direction == denial.direction) && denial.subject == subject
        });
        found.and_then(|at| unclaimed.remove(at)).is_some()
    }

    /// Takes all of them.
    pub(crate) fn take(&self) -> Vec<Denial> {
        self.unclaimed.lock().drain(..).collect()
    }
}

/// Reads `Permissions Violation for Publish to "<subject>"` and its like for subscriptions.
pub(crate) fn parse_denial(text: &str) -> Option<Denial> {
    let rest = strip_prefix_ignoring_case(text, "permissions violation for ")?;
    let (direction, rest) = if let Some(rest) = strip_prefix_ignoring_case(rest, "publish to ") {
        (Direction::Publish, rest)
    } else {
        (Direction::Subscribe, strip_prefix_ignoring_case(rest, "subscription to ")?)
    };
    let subject = rest.strip_prefix('"')?.split('"').next()?;
    Some(Denial { direction, subject: subject.to_owned() })
}

fn strip_prefix_ignoring_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_with_its_direction_and_subject() {
        let publish = parse_denial("Permissions Violation for Publish to \"$KV.a.b\"");
        assert_eq!(publish, Some(Denial { direction: Direction::Publish, subject: "$KV.a.b".into() }));
        let queue = parse_denial("Permissions Violation for Subscription to \"x.>\" using queue \"q\"");
        assert_eq!(queue, Some(Denial { direction: Direction::Subscribe, subject: "x.>".into() }));
        for other in
            ["", "Stale Connection", "Permissions Violation for Publish to x", "Permissions Violation"]
        {
            assert_eq!(parse_denial(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_refusal_is_claimed_once_and_by_its_own_subject() {
        let denials = Denials::new();
        denials.report(Denial { direction: Direction::Publish, subject: "a".into() });
        assert!(!denials.claim(Some(Direction::Publish), "b"));
        assert!(!denials.claim(Some(Direction::Subscribe), "a"));
        assert!(denials.claim(Some(Direction::Publish), "a"));
        assert!(!denials.claim(Some(Direction::Publish), "a"));
    }

    #[test]
    fn refusals_that_nobody_claims_stay_bounded() {
        let denials = Denials::new();
        for n in 0..3 * KEPT {
            denials.report(Denial { direction: Direction::Publish, subject: n.to_string() });
        }
        assert_eq!(denials.take().len(), KEPT);
    }
}
