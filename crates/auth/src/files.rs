//! Room for the files that a process keeps open: one that runs out of them can neither open a lane, read a ledger nor accept
//! a request.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What an open lane holds: seven connections, two listeners, its lock, and a request or two.
pub(crate) const OF_A_LANE: u64 = 12;
/// What the process holds beside its lanes, and what many requests at once take.
const BESIDE: u64 = 256;
/// A limit that leaves both faces of one space as many connections as each may have.
const PLENTY: u64 = 4_096;

/// Raises the process's limit as far as this many lanes and their faces need, or says in one sentence why it cannot: the
/// lanes must find room, the faces take what is left ([`for_faces`]).
pub(crate) fn make_room(lanes: usize) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    let Some(raised) = raised(&limit, lanes)? else { return Ok(()) };
    let files = raised.current;
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| format!("the limit of open files cannot be raised to {files:?}: {error}"))
}

/// How many connections all faces of this process may hold together beside so many lanes: half of its limit, and less when
/// the lanes need more than the other half.
pub(crate) fn for_faces(lanes: u64) -> u64 {
    left_by(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), lanes)
}

fn left_by(limit: u64, lanes: u64) -> u64 {
    let held = lanes.saturating_mul(OF_A_LANE).saturating_add(BESIDE / 2);
    // A limit too small for its lanes still leaves a door.
    limit.saturating_sub(held).max(limit / 8).min(limit / 2)
}

/// The limit that is to be set, `None` when there is room already.
fn raised(limit: &Rlimit, lanes: usize) -> Result<Option<Rlimit>, String> {
    let needed = u64::try_from(lanes).unwrap_or(u64::MAX).saturating_mul(OF_A_LANE).saturating_add(BESIDE);
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        return Err(format!(
            "{lanes} {} {needed} open files and this process may have {}: raise its hard limit (`ulimit -Hn`, or \
             LimitNOFILE= of a systemd unit), or serve some of them from another host",
            if lanes == 1 { "space needs" } else { "spaces need" },
            limit.maximum.unwrap_or_default()
        ));
    }
    // As much again for the faces, where the hard limit has it.
    let wanted = needed.saturating_mul(2).max(PLENTY).min(limit.maximum.unwrap_or(u64::MAX));
    let is_enough = limit.current.is_none_or(|current| current >= wanted);
    Ok((!is_enough).then_some(Rlimit { current: Some(wanted), maximum: limit.maximum }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(current: Option<u64>, maximum: Option<u64>) -> Rlimit {
        Rlimit { current, maximum }
    }

    #[test]
    fn a_soft_limit_is_raised_as_far_as_lanes_and_faces_need_and_never_lowered() {
        for (current, maximum, lanes, raised_to) in [
            (Some(1_024), Some(20_000), 1, Some(4_096)),
            (Some(1_024), Some(1_024), 64, None),
            (Some(1_024), Some(2_000), 65, Some(2_000)),
            (Some(8_192), Some(20_000), 64, None),
            (Some(1_024), Some(20_000), 1_000, Some(20_000)),
            (Some(1_024), None, 10_000, Some(240_512)),
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
        let why = raised(&limit(Some(64), Some(64)), 1).unwrap_err();
        assert!(why.contains("1 space needs 268 open files"), "{why}");
    }

    #[test]
    fn faces_never_take_what_the_lanes_need() {
        for (limit, lanes, left) in [
            (4_096, 1, 2_048),
            (1_024, 1, 512),
            (24_512, 1_000, 12_256),
            (20_000, 1_000, 7_872),
            (12_256, 1_000, 1_532),
            (64, 1, 8),
        ] {
            assert_eq!(left_by(limit, lanes), left, "{lanes} lanes within {limit}");
        }
        let lanes = 500;
        let most = raised(&limit(Some(1_024), None), lanes).unwrap().unwrap().current.unwrap();
        assert!(left_by(most, 500) + 500 * OF_A_LANE < most);
    }
}
