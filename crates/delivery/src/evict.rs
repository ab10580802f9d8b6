//! Ends the connections of principals, and proves the end (contract 01 §5).
//!
//! Only called after the principals can no longer connect: what is closed here does not come back.

use std::collections::{BTreeMap, BTreeSet};

use cotal_broker::sys::{Coverage, Evictor, Seen, Sweep};
use cotal_wire::{Principal, delivery_admin::EvictionResult};
use futures::{StreamExt, stream};

use crate::system::System;

/// Rounds of kicks, each followed by a sweep.
const ROUNDS: u32 = 3;
/// Kicks on their way at once.
const KICKS_AT_ONCE: usize = 16;

/// The connections that were told to go, by principal.
type Kicked = BTreeMap<Principal, BTreeSet<(String, u64)>>;

/// One result for each principal, in the order given. The error says why nothing at all could be done.
pub(crate) async fn evict(system: &System, principals: &[Principal]) -> Result<Vec<EvictionResult>, String> {
    let creds = system.credentials().evictor().await?.ok_or(
        "this space has no credential that closes connections; stop the broker and run `cotal up --rotate-sys`",
    )?;
    let observer = system.observer().await?;
    let mut kicked = Kicked::new();
    let mut sweep = observer.sweep(&system.known).await;
    let mut trouble = None;
    let mut evictor: Option<Evictor> = None;
    for _ in 0..ROUNDS {
        let targets = targets(principals, &sweep);
        if targets.is_empty() {
            break;
        }
        let evictor = match &evictor {
            Some(evictor) => evictor,
            None => match system.evictor(&creds).await {
                Ok(opened) => evictor.insert(opened),
                Err(why) => {
                    trouble = Some(why);
                    break;
                }
            },
        };
        trouble = kick_all(evictor, targets, &mut kicked).await;
        sweep = observer.sweep(&system.known).await;
    }
    Ok(principals.iter().map(|principal| conclude(principal, &kicked, &sweep, trouble.as_deref())).collect())
}

/// Whom to kick: nobody after an unsound sweep, which may show what is not there.
fn targets(principals: &[Principal], sweep: &Sweep) -> Vec<(Principal, Seen)> {
    if matches!(sweep.coverage, Coverage::Unsound(_)) {
        return Vec::new();
    }
    let named: BTreeSet<&Principal> = principals.iter().collect();
    let of = |seen: &Seen| {
        let principal = seen.principal.as_ref().filter(|one| named.contains(one))?;
        Some((principal.clone(), seen.clone()))
    };
    sweep.connections.iter().filter_map(of).collect()
}

/// Kicks them all; the last trouble, if there was any.
async fn kick_all(evictor: &Evictor, targets: Vec<(Principal, Seen)>, kicked: &mut Kicked) -> Option<String> {
    let mut kicks = stream::iter(targets)
        .map(|(principal, seen)| async move {
            let outcome = evictor.kick(&seen).await;
            (principal, seen, outcome)
        })
        .buffer_unordered(KICKS_AT_ONCE);
    let mut trouble = None;
    while let Some((principal, seen, outcome)) = kicks.next().await {
        match outcome {
            Ok(()) => {
                kicked.entry(principal).or_default().insert((seen.server_id, seen.cid));
            }
            Err(why) => trouble = Some(why),
        }
    }
    trouble
}

/// What the last sweep proves of one principal.
fn conclude(principal: &Principal, kicked: &Kicked, last: &Sweep, trouble: Option<&str>) -> EvictionResult {
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let remaining = count(last.of(principal).count());
    let verified_gone = last.is_complete() && remaining == 0;
    let note = (!verified_gone)
        .then(|| last.note().or(trouble).unwrap_or("connections come back, or do not close").to_owned());
    EvictionResult {
        principal: principal.clone(),
        kicked: count(kicked.get(principal).map_or(0, BTreeSet::len)),
        remaining,
        verified_gone,
        scan_complete: last.is_complete(),
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(actor: &str) -> Principal {
        Principal::parse_key(&format!("local.{actor}")).unwrap()
    }

    fn sweep(actors: &[&str], coverage: Coverage) -> Sweep {
        let connections = actors.iter().zip(1..).map(|(actor, cid)| Seen {
            server_id: "N".into(),
            cid,
            principal: Some(principal(actor)),
            authorized_user: None,
        });
        Sweep { connections: connections.collect(), coverage }
    }

    #[test]
    fn an_unsound_sweep_kicks_nobody_and_an_incomplete_one_kicks_whom_it_found() {
        let asked = [principal("a"), principal("b")];
        let unsound = sweep(&["a"], Coverage::Unsound("x".into()));
        assert!(targets(&asked, &unsound).is_empty());
        let partial = sweep(&["a", "c", "a"], Coverage::Partial("x".into()));
        assert_eq!(targets(&asked, &partial).len(), 2);
    }

    #[test]
    fn only_a_complete_sweep_that_found_none_verifies() {
        let kicked =
            Kicked::from([(principal("a"), BTreeSet::from([("N".to_owned(), 1), ("N".to_owned(), 2)]))]);
        for (actors, coverage, expected) in [
            (&[][..], Coverage::Complete, (2, 0, true, true, None)),
            (&["b"], Coverage::Complete, (2, 0, true, true, None)),
            (&["a"], Coverage::Complete, (2, 1, false, true, Some("t"))),
            (&[], Coverage::Partial("p".into()), (2, 0, false, false, Some("p"))),
            (&[], Coverage::Unsound("u".into()), (2, 0, false, false, Some("u"))),
        ] {
            let sweep = sweep(actors, coverage);
            let result = conclude(&principal("a"), &kicked, &sweep, Some("t"));
            let got = (
                result.kicked,
                result.remaining,
                result.verified_gone,
                result.scan_complete,
                result.note.as_deref(),
            );
            assert_eq!(got, expected, "{sweep:?}");
        }
    }
}
