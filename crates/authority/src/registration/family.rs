//! The credential family of an instance: listed, revoked, and its holders proved gone (contract 02 §3.7, 07 §11.8).

use std::collections::{BTreeMap, BTreeSet};

use cotal_broker::kv::{LeaderRead, WriteOutcome};
use cotal_wire::{
    EpError, OpId, Principal, Revision, names,
    rows::{CredentialKey, CredentialRow, CredentialState, RepairCursor},
};

use super::EndpointInstance;
use crate::{
    credential::revoke,
    evict::Evictor,
    store::{ambiguous, at_key, must_land, unsent},
    stores::AuthorityStores,
};

/// What proving the holders gone came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Containment {
    /// An earlier attempt under the same freeze proved these gone.
    pub(crate) before: BTreeSet<Principal>,
    /// This attempt did.
    pub(crate) now: BTreeSet<Principal>,
    /// These are not proved gone.
    pub(crate) remaining: BTreeSet<Principal>,
    /// Why not.
    pub(crate) note: Option<String>,
}

/// How the holders of a family are swept.
#[derive(Clone, Copy)]
pub(crate) struct Sweep<'a> {
    /// Who ends connections.
    pub(crate) evictor: &'a dyn Evictor,
    /// How many holders one request carries.
    pub(crate) most: usize,
    /// Whether the cursor is written before the first sweep too.
    pub(crate) begin: bool,
}

/// The cursor as it is stored.
struct CursorAt {
    cursor: RepairCursor,
    /// What a write of it is pinned to; `None` creates the row.
    revision: Option<Revision>,
    /// This very cursor is what is stored.
    begun: bool,
}

/// Every row of the family. A marker is passed over; a row that cannot be read refuses.
pub(crate) async fn list(
    stores: &AuthorityStores,
    at: &EndpointInstance,
) -> Result<Vec<CredentialRow>, EpError> {
    let filter = format!("epcred.{}.{}.>", at.endpoint, at.instance);
    if !stores.may_ask_info() {
        return walk(stores, &filter).await;
    }
    let mut rows = Vec::new();
    for key in stores.auth().keys(&filter).await? {
        if let LeaderRead::Value(entry) = stores.auth().leader_read(&key).await? {
            rows.push(at_key(&key, CredentialRow::parse(&key, &entry.value))?);
        }
    }
    Ok(rows)
}

/// The same by leader reads of one message after the other. A row that is written meanwhile is met again further on, and
/// its last value counts.
async fn walk(stores: &AuthorityStores, filter: &str) -> Result<Vec<CredentialRow>, EpError> {
    let mut rows = BTreeMap::new();
    let mut from = Revision(1);
    while let Some(stored) = stores.auth().next_under(filter, from).await? {
        from = Revision(stored.revision.0.saturating_add(1));
        match stored.value {
            Some(value) => {
                let row = at_key(&stored.key, CredentialRow::parse(&stored.key, &value))?;
                rows.insert(stored.key, row);
            }
            None => drop(rows.remove(&stored.key)),
        }
    }
    Ok(rows.into_values().collect())
}

/// Revokes every active row; returns the keys of those that were.
pub(crate) async fn revoke_active(
    stores: &AuthorityStores,
    rows: &[CredentialRow],
) -> Result<Vec<CredentialKey>, EpError> {
    let mut revoked = Vec::new();
    for row in rows.iter().filter(|row| row.state() == CredentialState::Active) {
        revoke(stores, row.key()).await?;
        revoked.push(row.key().clone());
    }
    Ok(revoked)
}

/// Evicts every holder that is not yet proved gone, a sweep at a time, and keeps what was proved after each. Stops at
/// the first sweep that proves less than it asked for.
pub(crate) async fn prove_gone(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    (op, token): (&OpId, Revision),
    holders: &BTreeSet<Principal>,
    sweep: Sweep<'_>,
) -> Result<Containment, EpError> {
    if holders.is_empty() {
        return Ok(Containment::default());
    }
    let mut stored = load_cursor(stores, at, (op, token), holders).await?;
    let before = stored.cursor.verified().clone();
    if sweep.begin && !stored.begun {
        stored = save_cursor(stores, at, stored).await?;
    }
    let mut now = BTreeSet::new();
    let mut note = None;
    loop {
        let next: BTreeSet<_> = stored.cursor.remaining().take(sweep.most.max(1)).cloned().collect();
        if next.is_empty() || note.is_some() {
            break;
        }
        let verdicts = sweep.evictor.evict(&next).await;
        let mut gone = BTreeSet::new();
        for holder in &next {
            match verdicts.iter().find(|verdict| verdict.principal == *holder) {
                Some(verdict) if verdict.verified_gone => {
                    gone.insert(holder.clone());
                }
                verdict => {
                    let why =
                        verdict.and_then(|verdict| verdict.note.as_deref()).unwrap_or("no verdict came");
                    note.get_or_insert_with(|| format!("{holder} is not verifiably gone ({why})"));
                }
            }
        }
        if !gone.is_empty() {
            stored.cursor = stored.cursor.verify(gone.clone());
            stored = save_cursor(stores, at, stored).await?;
            now.extend(gone);
        }
    }
    let remaining = stored.cursor.remaining().cloned().collect();
    Ok(Containment { before, now, remaining, note })
}

/// The stored cursor when it is of exactly this binding, else a fresh one in its place.
async fn load_cursor(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    (op, token): (&OpId, Revision),
    holders: &BTreeSet<Principal>,
) -> Result<CursorAt, EpError> {
    let key = names::eprepair_key(&at.endpoint, &at.instance);
    let fresh = || RepairCursor::begin(op, token, holders.clone());
    Ok(match stores.auth().leader_read(&key).await? {
        LeaderRead::Absent | LeaderRead::Marker(_) => {
            CursorAt { cursor: fresh(), revision: None, begun: false }
        }
        LeaderRead::Value(entry) => {
            let cursor = at_key(&key, RepairCursor::parse(&entry.value))?;
            let begun = cursor.is_of(op, token, holders);
            let cursor = if begun { cursor } else { fresh() };
            CursorAt { cursor, revision: Some(entry.revision), begun }
        }
    })
}

async fn save_cursor(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    stored: CursorAt,
) -> Result<CursorAt, EpError> {
    let key = names::eprepair_key(&at.endpoint, &at.instance);
    let bytes = stored.cursor.to_bytes();
    let outcome = match stored.revision {
        Some(revision) => stores.auth_store().update(&key, bytes, revision).await,
        None => stores.auth_store().create_over_marker(&key, bytes).await,
    };
    let revision = must_land(outcome, "repair cursor")?;
    Ok(CursorAt { revision: Some(revision), begun: true, ..stored })
}

/// Removes the cursor after the gate reopened. `Err` says why it was retained; a retained one is of a freeze that is
/// over, and so of nothing.
pub(crate) async fn clear_cursor(stores: &AuthorityStores, at: &EndpointInstance) -> Result<(), EpError> {
    let key = names::eprepair_key(&at.endpoint, &at.instance);
    let LeaderRead::Value(entry) = stores.auth().leader_read(&key).await? else { return Ok(()) };
    match stores.auth_store().delete(&key, entry.revision).await {
        WriteOutcome::Written(_) => Ok(()),
        WriteOutcome::Lost => Err(EpError::conflict("repair cursor: another repair moved it")),
        WriteOutcome::Ambiguous(why) => Err(ambiguous("repair cursor", &why)),
        WriteOutcome::Refused(why) => Err(unsent("repair cursor", &why)),
    }
}
