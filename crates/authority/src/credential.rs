//! Credential rows and the mint ceremony of the agent family: stage, finalize, release (contract 07 §4).
//!
//! The order is typestate. [`StagedCredential`] is built by [`StagedCredential::stage`] alone, and only its
//! [`finalize`](StagedCredential::finalize) yields a [`ReleasedCredential`], which is what says that the bytes of a
//! credential may leave the process. A read is never a fence: what finalize proves, it proves by touching every gate
//! that staging looked at, so that a freeze and a mint cannot both win.

use std::collections::BTreeMap;

use cotal_broker::kv::{Bucket, LeaderRead, WriteOutcome};
use cotal_wire::{
    CredentialId, EpError, LifecycleUid, Revision, names,
    rows::{BySource, CredentialKey, CredentialRow, CredentialState, SourceGate, SourceMember},
};

use crate::{
    gate,
    mint_step::{MintStep, Seen, Touched, mint_step},
    store::{Store, ambiguous, at_key, unsent},
    stores::AuthorityStores,
};

/// How often a revoke mark is tried before it is `unavailable`.
const REVOKE_ATTEMPTS: usize = 4;

/// A gate that staging read: it must still be at this revision when the mint finalizes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pin {
    key: String,
    revision: Revision,
}

/// A credential whose row is written and whose gates are not yet fenced. Nothing of it may leave the process.
#[must_use = "a staged credential is worth nothing until it is finalized"]
pub struct StagedCredential {
    stores: AuthorityStores,
    row: CredentialRow,
    created: Created,
    pins: Vec<Pin>,
}

/// Whose a row is that now stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Created {
    /// This call wrote it: nobody else has anything to do with it.
    Here,
    /// The very same bytes stood there, and what they stand for may be in use.
    Before,
}

/// A credential that won its fence: its row is active and every gate it was staged under was still open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleasedCredential {
    row: CredentialRow,
}

impl StagedCredential {
    /// Checks the row's holder and gates, then writes it `active` with its lineage rows (contract 07 §4.5 "Stage").
    ///
    /// Refusals in order: `failed-precondition` for a row outside the grammar; `permission-denied` for an unreserved
    /// uid, a foreign holder, an absent or closed gate, an absent or frozen source gate; `conflict` for foreign bytes
    /// under the row's key; `unavailable` for an ambiguous write.
    pub async fn stage(stores: &AuthorityStores, row: CredentialRow) -> Result<Self, EpError> {
        let uid = check_stageable(&row)?.clone();

        let Some((reservation, _)) = gate::read_reservation(stores, &uid).await? else {
            return Err(EpError::permission_denied("mint: the lifecycle uid was never reserved"));
        };
        if !reservation.is_for(row.holder()) {
            return Err(EpError::permission_denied(
                "mint: the holder is not whom the lifecycle uid is reserved for",
            ));
        }

        let gate = gate::read_gate(stores, &uid)
            .await?
            .filter(|at| mint_step(row.credential_id(), Seen::Gate(Some(&at.gate))) == MintStep::WriteRow);
        let Some(gate) = gate else {
            return Err(EpError::permission_denied("mint: the incarnation's issuance gate is not open"));
        };
        let mut pins = vec![Pin { key: names::gate_key(&uid), revision: gate.revision }];
        let mut lineage = Vec::new();
        for member in row.source_chain() {
            let SourceMember::Handle { issuer_key, id } = member else { continue };
            let key = names::srcgate_key(issuer_key, id);
            let Some(entry) = stores.auth_store().read(&key).await? else {
                return Err(EpError::permission_denied("mint: the source handle has no gate"));
            };
            if !at_key(&key, SourceGate::parse(issuer_key, id, &entry.value))?.is_open() {
                return Err(EpError::permission_denied("mint: the source handle was revoked"));
            }
            pins.push(Pin { key, revision: entry.revision });
            lineage.push(names::bysrc_key(issuer_key, id, &uid, row.credential_id()));
        }

        let what = "mint: credential row";
        let created = create_same(stores.auth_store(), &row.key().to_string(), row.to_bytes(), what).await?;
        for index in lineage {
            let reference = BySource::of(&row).to_bytes();
            create_same(stores.auth_store(), &index, reference, "mint: lineage row").await?;
        }
        Ok(Self { stores: stores.clone(), row, created, pins })
    }

    /// Touches every pinned key in ascending order (contract 07 §4.5 "Finalize").
    ///
    /// A gate that moved since it was staged loses the mint: the row that it wrote is marked revoked and the refusal is
    /// `permission-denied`. An ambiguous touch is `unavailable` and leaves the row `active`: no bytes of it ever left. So
    /// does a mint that dies between its row and its touch, even one whose row landed after the incarnation was retired:
    /// such a row is named by nothing and held by nobody.
    pub async fn finalize(self) -> Result<ReleasedCredential, EpError> {
        for (key, revision) in distinct_pins(&self.pins)? {
            let touched = touch(self.stores.auth_store(), key, revision).await?;
            if mint_step(self.row.credential_id(), Seen::Touch(touched)) != MintStep::Release {
                if self.created == Created::Here {
                    revoke(&self.stores, self.row.key()).await?;
                }
                return Err(EpError::permission_denied(
                    "mint: an issuance gate moved while the credential was minted; it is not handed out",
                ));
            }
        }
        Ok(ReleasedCredential { row: self.row })
    }
}

impl ReleasedCredential {
    /// The row, as stored.
    pub fn row(&self) -> &CredentialRow {
        &self.row
    }
}

/// The distinct pins in ascending key order, the one order in which every minter touches: of two mints over the same
/// gates the one that wins the first key wins them all.
fn distinct_pins(pins: &[Pin]) -> Result<BTreeMap<&str, Revision>, EpError> {
    let mut distinct = BTreeMap::new();
    for pin in pins {
        if distinct.insert(pin.key.as_str(), pin.revision).is_some_and(|before| before != pin.revision) {
            return Err(EpError::internal("mint: one gate was read at two revisions"));
        }
    }
    if distinct.is_empty() {
        return Err(EpError::internal("mint: nothing was pinned"));
    }
    Ok(distinct)
}

/// What the types do not already say about a row of the agent family.
fn check_stageable(row: &CredentialRow) -> Result<&LifecycleUid, EpError> {
    let Some(uid) = row.lifecycle_uid() else {
        return Err(EpError::failed_precondition("mint: an agent credential names no endpoint"));
    };
    if row.state() != CredentialState::Active {
        return Err(EpError::failed_precondition("mint: a credential is born active"));
    }
    Ok(uid)
}

/// Rewrites the same bytes at the same revision.
async fn touch(store: &Store, key: &str, pinned: Revision) -> Result<Touched, EpError> {
    let LeaderRead::Value(entry) = store.bucket().leader_read(key).await? else { return Ok(Touched::Moved) };
    if entry.revision != pinned {
        return Ok(Touched::Moved);
    }
    match store.update(key, entry.value, pinned).await {
        WriteOutcome::Written(_) => Ok(Touched::Won),
        WriteOutcome::Lost => Ok(Touched::Moved),
        WriteOutcome::Ambiguous(why) => Err(ambiguous("mint: touching the gate", &why)),
        WriteOutcome::Refused(why) => Err(unsent("mint: touching the gate", &why)),
    }
}

/// Byte-idempotent create (contract 07 §4.4): what is there already must be the very same bytes. Says whether they were.
pub(crate) async fn create_same(
    store: &Store,
    key: &str,
    value: Vec<u8>,
    what: &str,
) -> Result<Created, EpError> {
    match store.create_over_marker(key, value.clone()).await {
        WriteOutcome::Written(_) => Ok(Created::Here),
        WriteOutcome::Lost => match store.read(key).await? {
            Some(there) if there.value == value => Ok(Created::Before),
            _ => Err(EpError::conflict(format!("{what}: other bytes are stored under this key"))),
        },
        WriteOutcome::Ambiguous(why) => Err(ambiguous(what, &why)),
        WriteOutcome::Refused(why) => Err(unsent(what, &why)),
    }
}

/// Reads one agent credential row: `failed-precondition` on a marker, `internal` on a garbled row.
pub(crate) async fn read_row(
    bucket: &Bucket,
    uid: &LifecycleUid,
    id: &CredentialId,
) -> Result<Option<(CredentialRow, Revision)>, EpError> {
    let key = names::cred_key(uid, id);
    let Some(entry) = bucket.read_authority(&key).await? else { return Ok(None) };
    Ok(Some((at_key(&key, CredentialRow::parse(&key, &entry.value))?, entry.revision)))
}

/// Marks a credential row of either family revoked (contract 07 §4.4 "revoke mark"); a revoked one stays as it is.
pub async fn revoke(stores: &AuthorityStores, key: &CredentialKey) -> Result<(), EpError> {
    let store = stores.auth_store();
    match read_ledger_row(store, &key.to_string()).await? {
        Some(at) => revoke_row(store, at).await.map(drop),
        None => Err(no_row()),
    }
}

/// A credential row of either family, and the revision that it was read at.
pub(crate) type RowAt = (CredentialRow, Revision);

/// Reads a ledger row by its key: `failed-precondition` on a marker, `internal` on a garbled row.
pub(crate) async fn read_ledger_row(store: &Store, key: &str) -> Result<Option<RowAt>, EpError> {
    let Some(entry) = store.read(key).await? else { return Ok(None) };
    Ok(Some((at_key(key, CredentialRow::parse(key, &entry.value))?, entry.revision)))
}

/// Marks a row revoked from where it was read; when it moved meanwhile it is read again. Says whether this call made
/// the transition.
pub(crate) async fn revoke_row(store: &Store, seen: RowAt) -> Result<bool, EpError> {
    let key = seen.0.key().to_string();
    let mut seen = Some(seen);
    for _ in 0..REVOKE_ATTEMPTS {
        let at = match seen.take() {
            Some(at) => at,
            None => read_ledger_row(store, &key).await?.ok_or_else(no_row)?,
        };
        let (row, revision) = at;
        if row.state() == CredentialState::Revoked {
            return Ok(false);
        }
        match store.update(&key, row.revoke().to_bytes(), revision).await {
            WriteOutcome::Written(_) => return Ok(true),
            WriteOutcome::Lost => {}
            WriteOutcome::Ambiguous(why) => return Err(ambiguous("revoke", &why)),
            WriteOutcome::Refused(why) => return Err(unsent("revoke", &why)),
        }
    }
    Err(EpError::unavailable("revoke: the credential row kept moving; retry"))
}

fn no_row() -> EpError {
    EpError::failed_precondition("revoke: there is no such credential row")
}

#[cfg(test)]
mod tests {
    use cotal_wire::EpCode;

    use super::*;

    fn pin(key: &str, revision: u64) -> Pin {
        Pin { key: key.to_owned(), revision: Revision(revision) }
    }

    #[test]
    fn pins_are_touched_once_each_in_ascending_order() {
        let pins = [pin("srcgate.k.b", 4), pin("gate.u", 9), pin("srcgate.k.a", 2), pin("srcgate.k.b", 4)];
        let touched: Vec<_> = distinct_pins(&pins).unwrap().into_iter().collect();
        assert_eq!(
            touched,
            [("gate.u", Revision(9)), ("srcgate.k.a", Revision(2)), ("srcgate.k.b", Revision(4))]
        );
    }

    #[test]
    fn a_torn_or_empty_pin_set_is_a_broken_invariant() {
        assert_eq!(distinct_pins(&[]).unwrap_err().code, EpCode::Internal);
        assert_eq!(distinct_pins(&[pin("gate.u", 1), pin("gate.u", 2)]).unwrap_err().code, EpCode::Internal);
    }
}
