//! Is it there? Pure verdicts on a sweep (contract 03 §E).

use cotal_broker::sys::{Coverage, Sweep};
use cotal_wire::{
    Principal,
    delivery_admin::{ConnectionVerdict, Liveness, PlaneLiveness, PlaneQuery, PrincipalLiveness},
    rows::PlaneTuple,
};

/// The verdict on a principal.
pub(crate) fn of_principal(principal: &Principal, sweep: &Sweep) -> PrincipalLiveness {
    let state = match &sweep.coverage {
        Coverage::Unsound(_) => Liveness::Unknown,
        _ if sweep.of(principal).next().is_some() => Liveness::Live,
        Coverage::Complete => Liveness::Gone,
        Coverage::Partial(_) => Liveness::Unknown,
    };
    PrincipalLiveness {
        principal: principal.clone(),
        state,
        sweep_complete: sweep.is_complete(),
        note: sweep.note().map(str::to_owned),
    }
}

/// The verdicts on the two connections of a claim.
pub(crate) fn of_plane(query: &PlaneQuery, sweep: &Sweep) -> PlaneLiveness {
    let verdict =
        |tuple: &PlaneTuple| ConnectionVerdict { tuple: tuple.clone(), state: of_tuple(tuple, sweep) };
    PlaneLiveness {
        ledger: verdict(&query.ledger),
        records: verdict(&query.records),
        sweep_complete: sweep.is_complete(),
        note: sweep.note().map(str::to_owned),
    }
}

fn of_tuple(tuple: &PlaneTuple, sweep: &Sweep) -> Liveness {
    if matches!(sweep.coverage, Coverage::Unsound(_)) {
        return Liveness::Unknown;
    }
    let mut contradicted = false;
    for seen in &sweep.connections {
        let at = seen.server_id == tuple.server_id() && seen.cid == tuple.cid();
        let is = seen.authorized_user.as_deref() == Some(tuple.user_nkey().as_str());
        match (at, is) {
            (true, true) => return Liveness::Live,
            (false, false) => {}
            // Another user under the pinned number, or the pinned user elsewhere: a scanner never reconnects.
            _ => contradicted = true,
        }
    }
    if contradicted || !sweep.is_complete() { Liveness::Unknown } else { Liveness::Gone }
}

#[cfg(test)]
mod tests {
    use cotal_broker::sys::Seen;
    use cotal_wire::{Nkey, User};

    use super::*;

    fn nkey(letter: char) -> Nkey<User> {
        Nkey::parse(&format!("U{}", letter.to_string().repeat(55))).unwrap()
    }

    fn tuple(server: &str, cid: u64, letter: char) -> PlaneTuple {
        PlaneTuple::new(server, cid, &nkey(letter)).unwrap()
    }

    fn seen(server: &str, cid: u64, letter: char) -> Seen {
        Seen {
            server_id: server.into(),
            cid,
            principal: Principal::parse_key("local.a").ok(),
            authorized_user: Some(nkey(letter).to_string()),
        }
    }

    fn partial() -> Coverage {
        Coverage::Partial("x".into())
    }

    #[test]
    fn gone_is_only_said_under_a_complete_sweep_and_live_under_any_sound_one() {
        let principal = Principal::parse_key("local.a").unwrap();
        let there = || vec![seen("N", 1, 'A')];
        for (connections, coverage, state) in [
            (there(), Coverage::Complete, Liveness::Live),
            (there(), partial(), Liveness::Live),
            (vec![], Coverage::Complete, Liveness::Gone),
            (vec![], partial(), Liveness::Unknown),
            (vec![], Coverage::Unsound("x".into()), Liveness::Unknown),
        ] {
            let sweep = Sweep { connections, coverage };
            let verdict = of_principal(&principal, &sweep);
            assert_eq!(verdict.state, state, "{sweep:?}");
            assert_eq!(verdict.sweep_complete, sweep.is_complete());
            assert_eq!(of_tuple(&tuple("N", 1, 'A'), &sweep), state, "{sweep:?}");
        }
    }

    #[test]
    fn a_connection_is_the_pinned_one_only_if_server_number_and_user_agree() {
        for (connections, state) in [
            (vec![seen("N", 1, 'A')], Liveness::Live),
            (vec![seen("N", 2, 'B'), seen("M", 1, 'B')], Liveness::Gone),
            (vec![seen("N", 1, 'B')], Liveness::Unknown),
            (vec![seen("M", 7, 'A')], Liveness::Unknown),
            (vec![seen("M", 7, 'A'), seen("N", 1, 'A')], Liveness::Live),
        ] {
            let sweep = Sweep { connections, coverage: Coverage::Complete };
            assert_eq!(of_tuple(&tuple("N", 1, 'A'), &sweep), state, "{sweep:?}");
        }
    }

    #[test]
    fn the_answer_echoes_what_was_asked() {
        let query = PlaneQuery { ledger: tuple("N", 1, 'A'), records: tuple("N", 2, 'B') };
        let sweep = Sweep { connections: vec![seen("N", 2, 'B')], coverage: Coverage::Complete };
        let answer = of_plane(&query, &sweep);
        assert_eq!((&answer.ledger.tuple, &answer.records.tuple), (&query.ledger, &query.records));
        assert_eq!((answer.ledger.state, answer.records.state), (Liveness::Gone, Liveness::Live));
        assert!(answer.sweep_complete && answer.note.is_none());
    }
}
