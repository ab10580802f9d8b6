//! The incarnation behind a name: which one the broker's records hold active, how it is retired before its row changes,
//! and how what may still be connected is ended (contract 04 §13.1, 05 §7.1-7.2).

use std::{collections::BTreeSet, path::Path, time::Duration};

use cotal_authority::{
    delivery_admin::DeliveryAdmin,
    evict::{Eviction, Evictor as _},
    head::MappingReader,
};
use cotal_broker::{Connector, connector::Lifetime};
use cotal_wire::{
    ConnId, EpError, InfraRole, LifecycleUid, Principal, Space, delivery_admin::BUDGET_SECS,
    grants::operator, rows::HeadState,
};
use cotal_workspace::printed::{at, at_state_dir};
use serde_json::{Value, json};

use crate::{
    context::Context,
    lifecycle_door::{Door, LifecycleDoors, NotRetired, RETIRED_WITHIN, Retired},
    outcome::{CliError, Outcome},
    progress::{if_slow, within},
    space_broker::{self, ONE_SHOT_SECS},
};

/// How long one eviction takes at most.
const EVICTED_WITHIN: Duration = Duration::from_secs(BUDGET_SECS);

/// What the broker's records say of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadSeen {
    /// Every incarnation of it, if there was one, is over.
    Free,
    /// This incarnation is active, or its retirement has begun.
    Taken(LifecycleUid),
    /// It could not be asked, and why. `None`: no broker of the space is known here, so that there was none to ask.
    Unseen(Option<String>),
}

/// One incarnation that must be over before the row may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Predecessor {
    /// The incarnation.
    pub uid: LifecycleUid,
    door: Door,
}

/// A predecessor that is over.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The incarnation.
    pub uid: LifecycleUid,
    /// How it stands.
    pub how: Retired,
}

/// Looks the name up in the broker's records, without a change.
pub async fn look(ctx: &Context, space: &Space, principal: &Principal) -> Result<HeadSeen, CliError> {
    let Some(connector) = space_broker::connector(ctx, space)? else { return Ok(HeadSeen::Unseen(None)) };
    Ok(match mapping(&connector, principal).await {
        Ok(seen) => seen,
        Err(refusal) => HeadSeen::Unseen(Some(refusal.message)),
    })
}

async fn mapping(connector: &Connector, principal: &Principal) -> Result<HeadSeen, EpError> {
    let (space, token) = (connector.space(), connector.space().token());
    let grants = move |conn: &ConnId| operator::mapping_reader(&token, conn);
    let lifetime = Lifetime::OneShot { ttl_secs: ONE_SHOT_SECS, principal: None };
    let connection = connector.open(InfraRole::OPERATOR_MAPPING.label(space), &grants, lifetime).await?;
    let found = async {
        let reader = MappingReader::bind(&connection, space).await?;
        reader.mapping(principal).await
    }
    .await;
    // What was read stands, however the connection ends.
    let _ = connection.close().await;
    Ok(match found? {
        Some(at) if *at.head.state() != HeadState::Retired => {
            HeadSeen::Taken(at.head.lifecycle_uid().clone())
        }
        _ => HeadSeen::Free,
    })
}

/// What must be over before the row of a name may change, in order: an incarnation that is active without its row, then
/// the row's own.
pub fn predecessors(row: Option<&LifecycleUid>, head: &HeadSeen) -> Vec<Predecessor> {
    let orphan = match head {
        HeadSeen::Taken(uid) if row != Some(uid) => Some((uid, Door::Managed)),
        _ => None,
    };
    let own = row.map(|uid| (uid, Door::Interactive));
    orphan.into_iter().chain(own).map(|(uid, door)| Predecessor { uid: uid.clone(), door }).collect()
}

/// Whether another incarnation may be active once the row has changed: a person's first exchange may have begun the one
/// that the door had found nothing of, or the name was never seen. Where the door has ended the active one, a name has
/// no other.
pub fn in_doubt(ended: &[Ended], before: &HeadSeen) -> bool {
    let one = |how: Retired| ended.iter().any(|ended| ended.how == how);
    one(Retired::NotStarted) || (matches!(before, HeadSeen::Unseen(Some(_))) && !one(Retired::Retired))
}

/// What must be over after all: an incarnation that is active and is not the one that was just granted.
pub fn latecomers(granted: Option<&LifecycleUid>, head: &HeadSeen) -> Vec<Predecessor> {
    match head {
        HeadSeen::Taken(uid) if granted == Some(uid) => Vec::new(),
        head => predecessors(None, head),
    }
}

/// Retires each of them through the auth service that runs here, or says what is known of the first that is not over.
/// `unchanged` says what then still stands.
pub async fn retire(
    ctx: &Context,
    state_dir: &Path,
    log: &Path,
    principal: &Principal,
    predecessors: &[Predecessor],
    unchanged: &str,
) -> Result<Vec<Ended>, CliError> {
    if predecessors.is_empty() {
        return Ok(Vec::new());
    }
    let doors = LifecycleDoors::of(state_dir).map_err(|e| {
        CliError::Undone(
            format!(
                "{e}. Its incarnation is retired by the auth service before anything changes: {unchanged}"
            ),
            Outcome::NotExecuted,
        )
    })?;
    let mut ended = Vec::new();
    for Predecessor { uid, door } in predecessors {
        let waits = within(&format!("waiting for the auth service to retire {principal}"), RETIRED_WITHIN);
        match if_slow(ctx, &waits, doors.retire(*door, principal, uid)).await {
            Ok(how) => ended.push(Ended { uid: uid.clone(), how }),
            Err(NotRetired::NotExecuted(why)) => {
                return Err(CliError::Undone(
                    format!(
                        "incarnation {uid} of {principal} was not retired, and nothing happened to it ({why}): \
                         {unchanged}. Mend what it says, then run this command again"
                    ),
                    Outcome::NotExecuted,
                ));
            }
            Err(NotRetired::Unknown(why)) => {
                return Err(CliError::Undone(
                    format!(
                        "whether incarnation {uid} of {principal} was retired is unknown ({why}): its retirement may \
                         have begun, and {unchanged}. See {} and `cotal status{}`, then run this command again: it goes \
                         on from where the retirement stands",
                        log.display(),
                        at_state_dir(state_dir)
                    ),
                    Outcome::Unknown,
                ));
            }
        }
    }
    Ok(ended)
}

/// Ends what of a principal may still be connected, as well as it can be done now. `None` when nobody could be asked.
pub async fn evict(
    ctx: &Context,
    space: &Space,
    principal: &Principal,
) -> Result<Option<Eviction>, CliError> {
    let Some(connector) = space_broker::connector(ctx, space)? else { return Ok(None) };
    let asked = BTreeSet::from([principal.clone()]);
    let admin = DeliveryAdmin::new(connector);
    let waits = within("waiting for the delivery daemon to end live connections", EVICTED_WITHIN);
    Ok(if_slow(ctx, &waits, admin.evict(&asked)).await.into_iter().next())
}

/// One sentence of what was retired.
pub fn retired_sentence(ended: &Ended) -> String {
    let Ended { uid, how } = ended;
    match how {
        Retired::Retired => {
            format!("Incarnation {uid} is retired: its bearers are void and its connections were ended.")
        }
        Retired::AlreadyRetired => format!("Incarnation {uid} had been retired before."),
        Retired::NotStarted => format!("Incarnation {uid} had never connected: there was nothing to retire."),
    }
}

/// What was done before the last look at live connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// A new incarnation was granted; doing it again would end that one.
    Grant,
    /// The grant was taken away; doing it again only looks again.
    Revoke,
}

/// One sentence of what the last look at live connections came to.
pub fn eviction_sentence(space: &Space, eviction: Option<&Eviction>, after: After) -> String {
    let Some(Eviction { kicked, remaining, verified_gone, note, .. }) = eviction else {
        return "Live connections were not looked at: no broker of the space is known here.".to_owned();
    };
    if *verified_gone {
        return format!("Live connections: {kicked} more ended now, {remaining} left (verified).");
    }
    let why = note.as_deref().map(|note| format!(": {note}")).unwrap_or_default();
    let next = match after {
        After::Grant => {
            "Nothing more connects as the old incarnation, and what is left of it ends with its bearer, 15 minutes at \
             most. There is nothing to repeat: the same command again would end the new incarnation"
                .to_owned()
        }
        After::Revoke => format!(
            "Nothing new can connect; what is left ends with its bearer, 15 minutes at most. Once `cotal status{}` shows \
             the delivery daemon ready, run this command again: it looks again",
            at(space)
        ),
    };
    format!("Live connections: {kicked} more ended now, {remaining} seen left, not verified{why}. {next}.")
}

/// The document of what was retired.
pub fn retired_document(ended: &[Ended]) -> Value {
    ended.iter().map(|Ended { uid, how }| json!({ "lifecycleUid": uid, "outcome": how })).collect()
}

/// The document of an eviction.
pub fn eviction_document(eviction: Option<&Eviction>) -> Value {
    eviction.map_or(Value::Null, |eviction| {
        let mut document = json!({
            "kicked": eviction.kicked,
            "remaining": eviction.remaining,
            "verifiedGone": eviction.verified_gone,
            "scanComplete": eviction.scan_complete,
        });
        if let Some(note) = &eviction.note {
            document["note"] = note.as_str().into();
        }
        document
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(last: char) -> LifecycleUid {
        LifecycleUid::parse(&format!("0123456789abcdefghijklmno{last}")).unwrap()
    }

    #[test]
    fn an_incarnation_without_its_row_is_over_before_the_rows_own() {
        let of = |row: Option<char>, head: HeadSeen| -> Vec<(LifecycleUid, Door)> {
            let row = row.map(uid);
            predecessors(row.as_ref(), &head).into_iter().map(|p| (p.uid, p.door)).collect()
        };
        let unseen = || HeadSeen::Unseen(Some("down".into()));
        for head in [HeadSeen::Free, unseen(), HeadSeen::Unseen(None)] {
            assert_eq!(of(None, head.clone()), []);
            assert_eq!(of(Some('a'), head), [(uid('a'), Door::Interactive)]);
        }
        assert_eq!(of(None, HeadSeen::Taken(uid('a'))), [(uid('a'), Door::Managed)]);
        assert_eq!(of(Some('a'), HeadSeen::Taken(uid('a'))), [(uid('a'), Door::Interactive)]);
        assert_eq!(
            of(Some('b'), HeadSeen::Taken(uid('a'))),
            [(uid('a'), Door::Managed), (uid('b'), Door::Interactive)]
        );
    }

    #[test]
    fn what_may_have_begun_in_between_is_looked_for_again_and_the_new_incarnation_is_welcome() {
        let ended = |hows: &[Retired]| -> Vec<_> {
            hows.iter().map(|how| Ended { uid: uid('a'), how: *how }).collect()
        };
        let unseen = HeadSeen::Unseen(Some("down".into()));
        for (hows, before, doubt) in [
            (&[][..], HeadSeen::Free, false),
            (&[], HeadSeen::Unseen(None), false),
            (&[], unseen.clone(), true),
            (&[Retired::NotStarted], HeadSeen::Free, true),
            (&[Retired::Retired, Retired::NotStarted], HeadSeen::Taken(uid('a')), true),
            (&[Retired::Retired], HeadSeen::Taken(uid('a')), false),
            (&[Retired::Retired], unseen.clone(), false),
            (&[Retired::AlreadyRetired], unseen.clone(), true),
            (&[Retired::AlreadyRetired], HeadSeen::Free, false),
        ] {
            assert_eq!(in_doubt(&ended(hows), &before), doubt, "{hows:?} {before:?}");
        }
        let late = |granted: Option<char>, head: HeadSeen| {
            let granted = granted.map(uid);
            latecomers(granted.as_ref(), &head).into_iter().map(|p| (p.uid, p.door)).collect::<Vec<_>>()
        };
        assert_eq!(late(Some('b'), HeadSeen::Taken(uid('b'))), []);
        assert_eq!(late(Some('b'), HeadSeen::Taken(uid('a'))), [(uid('a'), Door::Managed)]);
        assert_eq!(late(None, HeadSeen::Taken(uid('a'))), [(uid('a'), Door::Managed)]);
        assert_eq!(late(None, HeadSeen::Free), []);
        assert_eq!(late(None, unseen), []);
    }

    #[test]
    fn only_a_verified_eviction_says_that_none_is_left() {
        let principal = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli").unwrap();
        let space = Space::parse("q").unwrap();
        let gone = Eviction { verified_gone: true, kicked: 2, ..Eviction::unverified(&principal, "") };
        assert!(
            eviction_sentence(&space, Some(&gone), After::Revoke)
                .contains("2 more ended now, 0 left (verified)")
        );
        let none = Eviction { kicked: 0, ..gone };
        assert_eq!(
            eviction_sentence(&space, Some(&none), After::Grant),
            "Live connections: 0 more ended now, 0 left (verified)."
        );
        let left = Eviction { remaining: 1, ..Eviction::unverified(&principal, "no responder") };
        let told = eviction_sentence(&space, Some(&left), After::Revoke);
        assert!(told.contains("1 seen left, not verified: no responder"), "{told}");
        assert!(
            told.contains("run this command again") && told.contains("`cotal status --space 'q'`"),
            "{told}"
        );
        // What would end the incarnation that was just granted is never asked for.
        let told = eviction_sentence(&space, Some(&left), After::Grant);
        assert!(told.contains("not verified") && !told.contains("run this command again"), "{told}");
        assert!(eviction_sentence(&space, None, After::Revoke).contains("not looked at"));
        assert_eq!(eviction_document(Some(&left))["verifiedGone"], false);
        assert_eq!(eviction_document(None), Value::Null);
    }
}
