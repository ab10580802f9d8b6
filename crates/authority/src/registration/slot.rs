//! The governance slot: registrations of the instances of one endpoint take turns (contract 02 §7.3 steps 5, 8, 9).
//!
//! A slot is stamped with the generation at which its holder's gate is frozen. The holder's gate reopens exactly one
//! generation later, however its registration ends; so a slot whose holder's gate is past the stamp was left behind, and
//! anybody may take it.

use cotal_broker::kv::WriteOutcome;
use cotal_wire::{
    EpCode, EpError, InstanceId, Revision,
    error::detail::FOREIGN_SLOT_HELD,
    names,
    rows::{GovernHead, SlotHolder},
};
use serde_json::json;

use super::{EndpointInstance, gate};
use crate::{
    store::{ambiguous, at_key, must_land, unsent},
    stores::AuthorityStores,
};

/// The condition of a slot whose holder has not ended its registration.
const IN_FLIGHT: &str = "in-flight";

/// A governance head as a leader read found it; an absent one is empty, at revision 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeadAt {
    pub(crate) head: GovernHead,
    pub(crate) revision: Revision,
}

// === deciding =================================================================================================

/// What the slot lets a registration do that holds its gate frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlotSeen {
    /// Free, or a leftover of ours.
    Free,
    /// Taken by an earlier run of the operation that holds the gate.
    Ours,
    /// Another instance's: its gate decides.
    Foreign(SlotHolder),
}

/// Looks at the slot as instance `us`, whose gate is frozen at `generation`. A slot of ours at this very generation can
/// only be of the operation that froze it, so it is ours when that is resumed, and impossible when it just began.
pub(crate) fn see_slot(
    head: &GovernHead,
    us: &InstanceId,
    generation: u64,
    resuming: bool,
) -> Result<SlotSeen, EpError> {
    let Some(slot) = head.provisional() else { return Ok(SlotSeen::Free) };
    if slot.holder.instance != *us {
        return Ok(SlotSeen::Foreign(slot.holder.clone()));
    }
    if slot.holder.generation < generation {
        return Ok(SlotSeen::Free);
    }
    if slot.holder.generation == generation && resuming {
        return Ok(SlotSeen::Ours);
    }
    Err(EpError::internal(
        "registration: the governance slot is stamped with a generation that this instance's gate has not left",
    ))
}

/// What was seen of the gate of a slot's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HolderSeen {
    /// It cannot be read, or there is none.
    Unreadable,
    /// It is garbled.
    Garbled,
    /// It stands at this generation.
    At(u64),
}

/// Whether a foreign slot may be taken: only when its holder's gate provably reopened past the stamp.
pub(crate) fn reclaim(slot: &SlotHolder, seen: HolderSeen) -> Result<(), EpError> {
    let (code, condition, why) = match seen {
        HolderSeen::At(generation) if generation > slot.generation => return Ok(()),
        HolderSeen::At(generation) if generation == slot.generation => {
            (EpCode::Conflict, IN_FLIGHT, "is registering now; retry when that has ended")
        }
        HolderSeen::At(_) => (EpCode::Unavailable, "behind", "has a gate that is behind the slot"),
        HolderSeen::Unreadable => (EpCode::Unavailable, "unreadable", "has a gate that cannot be read"),
        HolderSeen::Garbled => (EpCode::Unavailable, "garbled", "has a gate that is garbled"),
    };
    let message =
        format!("registration: the endpoint's governance slot is held by {}, which {why}", slot.instance);
    Err(EpError::new(code, message).with_detail(json!({
        "kind": FOREIGN_SLOT_HELD, "holderInstanceId": slot.instance, "condition": condition,
    })))
}

/// Whether the slot is this registration's own.
pub(crate) fn is_held(head: &GovernHead, us: &InstanceId, generation: u64) -> bool {
    head.provisional().is_some_and(|slot| slot.holder.instance == *us && slot.holder.generation == generation)
}

/// What a registration writes when it takes the slot.
const TAKING: &str = "registration: taking the governance slot";

/// Whose turn it was, when a registration was refused for not being first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutOfTurn {
    /// Another registration took the slot between the look and the write.
    Overtaken,
    /// This instance holds it, and its registration has not ended: it is running, or dead.
    HeldBy(InstanceId),
}

impl OutOfTurn {
    /// Whether a refused registration left everything as it was and is to be run again when the other one has ended.
    /// `None` is every other refusal.
    pub fn of(refusal: &EpError) -> Option<Self> {
        if refusal.code != EpCode::Conflict {
            return None;
        }
        if refusal.message.starts_with(TAKING) {
            return Some(Self::Overtaken);
        }
        let held = refusal
            .details
            .iter()
            .find(|detail| detail["kind"] == FOREIGN_SLOT_HELD && detail["condition"] == IN_FLIGHT)?;
        held["holderInstanceId"].as_str().and_then(|id| InstanceId::parse(id).ok()).map(Self::HeldBy)
    }
}

// === driving ==================================================================================================

/// Reads the head: `failed-precondition` on a marker, `internal` when it is garbled.
pub(crate) async fn read_head(stores: &AuthorityStores, at: &EndpointInstance) -> Result<HeadAt, EpError> {
    let key = names::govern_key(&at.endpoint);
    match stores.records_store().read(&key).await? {
        None => Ok(HeadAt { head: GovernHead::default(), revision: Revision(0) }),
        Some(entry) => {
            let head = at_key(&key, GovernHead::parse(&entry.value))?;
            Ok(HeadAt { head, revision: entry.revision })
        }
    }
}

/// Looks at the gate of a slot's holder.
pub(crate) async fn see_holder(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    slot: &SlotHolder,
) -> HolderSeen {
    let holder = EndpointInstance { endpoint: at.endpoint.clone(), instance: slot.instance.clone() };
    match gate::observe(stores, &holder).await {
        Ok(Some(seen)) => HolderSeen::At(seen.gate.coordinate().generation),
        Err(refusal) if refusal.code == EpCode::Internal => HolderSeen::Garbled,
        Ok(None) | Err(_) => HolderSeen::Unreadable,
    }
}

/// Takes the slot: lost to another registration is `conflict`, and [`OutOfTurn::Overtaken`].
pub(crate) async fn take(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    taken: GovernHead,
    read_at: Revision,
) -> Result<HeadAt, EpError> {
    write(stores, at, taken, read_at, TAKING).await
}

/// Writes the head, pinned to what was read: lost is `conflict`, ambiguous `unavailable`.
async fn write(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    head: GovernHead,
    read_at: Revision,
    what: &str,
) -> Result<HeadAt, EpError> {
    let key = names::govern_key(&at.endpoint);
    let outcome = stores.records_store().update(&key, head.to_bytes(), read_at).await;
    must_land(outcome, what).map(|revision| HeadAt { head, revision })
}

/// Records what the slot declares; the slot stays. A head that says so already is not written.
pub(crate) async fn promote(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    generation: u64,
) -> Result<HeadAt, EpError> {
    let HeadAt { head, revision } = read_head(stores, at).await?;
    if !is_held(&head, &at.instance, generation) {
        return Err(EpError::internal(
            "registration: the governance slot was lost while the gate was frozen",
        ));
    }
    let promoted = head.clone().promote();
    if promoted == head {
        return Ok(HeadAt { head, revision });
    }
    write(stores, at, promoted, revision, "recording the endpoint's governance").await
}

/// Gives the slot up after the gate reopened, if it still is ours. `Err` says why it stays behind: the next
/// registration takes it all the same.
pub(crate) async fn release(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    generation: u64,
) -> Result<(), EpError> {
    let HeadAt { head, revision } = read_head(stores, at).await?;
    if !is_held(&head, &at.instance, generation) {
        return Ok(());
    }
    let key = names::govern_key(&at.endpoint);
    match stores.records_store().update(&key, head.release().to_bytes(), revision).await {
        // Lost: the gate has reopened, so another registration may have taken it.
        WriteOutcome::Written(_) | WriteOutcome::Lost => Ok(()),
        WriteOutcome::Ambiguous(why) => Err(ambiguous("releasing the governance slot", &why)),
        WriteOutcome::Refused(why) => Err(unsent("releasing the governance slot", &why)),
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::rows::Governed;

    use super::*;

    fn id(c: char) -> InstanceId {
        InstanceId::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn held(by: char, generation: u64) -> GovernHead {
        GovernHead::default().take(SlotHolder { instance: id(by), generation }, &Governed::new())
    }

    #[test]
    fn a_slot_is_free_a_leftover_resumed_foreign_or_impossible() {
        let see = |head: &GovernHead, resuming| see_slot(head, &id('a'), 5, resuming);
        for resuming in [false, true] {
            assert_eq!(see(&GovernHead::default(), resuming), Ok(SlotSeen::Free));
            assert_eq!(see(&held('a', 4), resuming), Ok(SlotSeen::Free), "an orphan of ours");
            assert!(matches!(see(&held('b', 5), resuming), Ok(SlotSeen::Foreign(_))));
            assert_eq!(see(&held('a', 6), resuming).unwrap_err().code, EpCode::Internal);
        }
        assert_eq!(see(&held('a', 5), true), Ok(SlotSeen::Ours));
        assert_eq!(see(&held('a', 5), false).unwrap_err().code, EpCode::Internal);
    }

    #[test]
    fn a_registration_is_out_of_turn_when_overtaken_or_while_the_holder_is_in_flight() {
        let lost = must_land(WriteOutcome::Lost, TAKING).unwrap_err();
        assert_eq!(OutOfTurn::of(&lost), Some(OutOfTurn::Overtaken));
        let unsure = must_land(WriteOutcome::Ambiguous("no answer".into()), TAKING).unwrap_err();
        assert_eq!(OutOfTurn::of(&unsure), None, "nobody knows whether it is taken");
        let slot = SlotHolder { instance: id('b'), generation: 5 };
        let held = |seen| OutOfTurn::of(&reclaim(&slot, seen).unwrap_err());
        assert_eq!(held(HolderSeen::At(5)), Some(OutOfTurn::HeldBy(id('b'))));
        for other in [HolderSeen::At(4), HolderSeen::Unreadable, HolderSeen::Garbled] {
            assert_eq!(held(other), None, "{other:?}");
        }
        let promoted = must_land(WriteOutcome::Lost, "recording the endpoint's governance").unwrap_err();
        assert_eq!(OutOfTurn::of(&promoted), None, "every other conflict is final");
        assert_eq!(OutOfTurn::of(&EpError::conflict("moved")), None);
    }

    // #1393, #1419.
    #[test]
    fn a_foreign_slot_is_taken_only_past_its_stamp() {
        let slot = SlotHolder { instance: id('b'), generation: 5 };
        assert_eq!(reclaim(&slot, HolderSeen::At(6)), Ok(()));
        for (seen, code, condition) in [
            (HolderSeen::At(5), EpCode::Conflict, "in-flight"),
            (HolderSeen::At(4), EpCode::Unavailable, "behind"),
            (HolderSeen::Unreadable, EpCode::Unavailable, "unreadable"),
            (HolderSeen::Garbled, EpCode::Unavailable, "garbled"),
        ] {
            let refusal = reclaim(&slot, seen).unwrap_err();
            assert_eq!(refusal.code, code, "{condition}");
            let detail = json!({
                "kind": "ai.cotal.ep.foreign-slot-held", "holderInstanceId": id('b'), "condition": condition,
            });
            assert_eq!(refusal.details, [detail]);
        }
    }
}
