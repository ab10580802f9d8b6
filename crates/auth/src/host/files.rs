//! Room for the files that lanes keep open: a process that runs out of them can neither open a lane nor accept a request.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What an open lane holds: seven connections, two listeners, its lock, and a request or two.
const OF_A_LANE: u64 = 12;
/// What the process holds beside its lanes, and what many requests at once take.
const BESIDE: u64 = 256;

/// Raises the process's limit as far as this many lanes need, or says in one sentence why it cannot.
pub(super) fn make_room(lanes: usize) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    let Some(raised) = raised(&limit, lanes)? else { return Ok(()) };
    let files = raised.current;
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| format!("the limit of open files cannot be raised to {files:?}: {error}"))
}

/// The limit that is to be set, `None` when there is room already.
fn raised(limit: &Rlimit, lanes: usize) -> Result<Option<Rlimit>, String> {
    let needed = u64::try_from(lanes).unwrap_or(u64::MAX).saturating_mul(OF_A_LANE).saturating_add(BESIDE);
    let within = |limit: Option<u64>| limit.is_none_or(|limit| needed <= limit);
    if within(limit.current) {
        return Ok(None);
    }
    if within(limit.maximum) {
        return Ok(Some(Rlimit { current: Some(needed), maximum: limit.maximum }));
    }
    Err(format!(
        "{lanes} spaces need {needed} open files and this process may have {}: raise its hard limit (`ulimit -Hn`, or \
         LimitNOFILE= of a systemd unit), or serve some of them from another host",
        limit.maximum.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(current: Option<u64>, maximum: Option<u64>) -> Rlimit {
        Rlimit { current, maximum }
    }

    #[test]
    fn a_soft_limit_is_raised_as_far_as_is_needed_and_never_lowered() {
        for (current, maximum, lanes, raised_to) in [
            (Some(1_024), Some(20_000), 64, None),
            (Some(1_024), Some(20_000), 65, Some(1_036)),
            (Some(1_024), Some(20_000), 1_000, Some(12_256)),
            (Some(1_024), None, 10_000, Some(120_256)),
            (None, None, 10_000, None),
        ] {
            let raised = raised(&limit(current, maximum), lanes).unwrap();
            assert_eq!(raised.as_ref().map(|raised| raised.current), raised_to.map(Some), "{lanes}");
            assert!(raised.is_none_or(|raised| raised.maximum == maximum));
        }
    }

    #[test]
    fn more_lanes_than_the_hard_limit_has_room_for_are_refused_with_the_number() {
        let why = raised(&limit(Some(1_024), Some(4_096)), 1_000).unwrap_err();
        assert!(why.contains("1000 spaces need 12256 open files and this process may have 4096"), "{why}");
    }
}
