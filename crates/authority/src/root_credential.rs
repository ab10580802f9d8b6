//! One root credential per incarnation (contract 04 §10, 02 §3.5).

use cotal_wire::{
    Clock, CredentialId, Entropy, EpCode, EpError, LifecycleUid, Principal, UnixMillis,
    rows::{CredentialRow, CredentialState, SourceMember},
};

use crate::{
    activation::activate_at_uid,
    credential::{StagedCredential, read_row, revoke},
    head::{GRANT_AGAIN, read_head, stamp_root},
    mint_step::{MintStep, Seen, mint_step},
    stores::AuthorityStores,
};

/// Lifetime of a root credential, in milliseconds: 90 days.
pub const ROOT_CREDENTIAL_TTL_MS: u64 = 90 * 24 * 60 * 60 * 1000;

/// How often a lost race is run again.
const ATTEMPTS: usize = 3;

/// Ensures and returns the incarnation's root credential id; durable before it returns.
///
/// An incarnation has one root, so this is two reads once it is there. The first call activates the lifecycle at
/// `uid`, mints, and stamps the head LAST; a call that is cut off in between leaves at most a row that no connect
/// accepts, for the head does not name it.
pub async fn ensure_root_credential(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
    manager_instance: &str,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
) -> Result<CredentialId, EpError> {
    if let Some(id) = stamped_root(stores, principal, uid, clock).await? {
        return Ok(id);
    }
    let _turn = stores.mint_turn(uid).await;
    for _ in 0..ATTEMPTS {
        if let Some(id) = stamped_root(stores, principal, uid, clock).await? {
            return Ok(id);
        }
        activate_at_uid(stores, principal, uid, manager_instance, entropy).await?;
        match mint_root(stores, principal, uid, clock, entropy).await? {
            Minted::Root(id) => return Ok(id),
            Minted::LostRace => {}
        }
    }
    Err(EpError::unavailable("root credential: other mints of this incarnation kept winning; retry"))
}

/// The root that the head names, once its row is proved usable.
async fn stamped_root(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
    clock: &dyn Clock,
) -> Result<Option<CredentialId>, EpError> {
    let head = read_head(stores.records(), principal).await?.filter(|at| at.head.is_active_at(uid));
    let Some(named) = head.as_ref().and_then(|at| at.head.current_credential_id()) else { return Ok(None) };
    let id = named_root(named)?;
    let row = read_row(stores.auth(), uid, &id).await?;
    check_root_row(row.as_ref().map(|(row, _)| row), principal, uid, clock.now_millis())?;
    Ok(Some(id))
}

/// The credential that a head names.
pub(crate) fn named_root(named: &str) -> Result<CredentialId, EpError> {
    CredentialId::parse(named)
        .map_err(|_| EpError::internal("root credential: the head names what is no credential id"))
}

/// Whether a stamped root may be handed out again, in the order of contract 04 §10.
pub(crate) fn check_root_row(
    row: Option<&CredentialRow>,
    principal: &Principal,
    uid: &LifecycleUid,
    now: UnixMillis,
) -> Result<(), EpError> {
    let Some(row) = row else {
        return Err(EpError::internal("root credential: the head names a credential that has no row"));
    };
    if row.state() != CredentialState::Active {
        return Err(EpError::permission_denied(format!("root credential: it was revoked; {GRANT_AGAIN}")));
    }
    if row.holder() != principal || row.lifecycle_uid() != Some(uid) {
        return Err(EpError::internal("root credential: the row under the head's id is another holder's"));
    }
    if row.expires_at() <= now {
        return Err(EpError::permission_denied(format!("root credential: it has expired; {GRANT_AGAIN}")));
    }
    Ok(())
}

enum Minted {
    Root(CredentialId),
    /// Another mint, or another writer of the head, was first; nothing of ours is left active.
    LostRace,
}

/// Stages, finalizes and stamps one new root.
async fn mint_root(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
) -> Result<Minted, EpError> {
    // Read before any gate is: see `stamp_root`.
    let head = read_head(stores.records(), principal).await?.filter(|at| at.head.is_active_at(uid));
    let Some(head) = head else { return Ok(Minted::LostRace) };
    let id = CredentialId::mint_root(entropy);
    let exp = clock.now_millis().plus(ROOT_CREDENTIAL_TTL_MS);
    let row = CredentialRow::agent(uid, &id, principal, vec![SourceMember::Root], exp)?;
    let key = row.key().clone();
    let staged = StagedCredential::stage(stores, row).await?;
    match staged.finalize().await {
        Ok(_) => {}
        // The gate was touched by a sibling's mint or closed by a barrier: the next pass tells which.
        Err(lost) if lost.code == EpCode::PermissionDenied => return Ok(Minted::LostRace),
        Err(refusal) => return Err(refusal),
    }
    let Err(refusal) = stamp_root(stores, head, uid, &id).await else { return Ok(Minted::Root(id)) };
    let mut step = mint_step(&id, Seen::Stamp(Some(refusal.code)));
    if step == MintStep::AskHead {
        let asked = read_head(stores.records(), principal).await.ok().flatten();
        let named = asked.as_ref().and_then(|at| at.head.current_credential_id());
        step = mint_step(&id, Seen::Named(named));
    }
    match step {
        MintStep::Root => Ok(Minted::Root(id)),
        MintStep::RevokeLost => revoke(stores, &key).await.map(|()| Minted::LostRace),
        MintStep::RevokeFailed => revoke(stores, &key).await.and(Err(refusal)),
        _ => Err(refusal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(actor: &str) -> Principal {
        Principal::parse_key(&format!("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.{actor}")).unwrap()
    }

    fn uid(c: char) -> LifecycleUid {
        LifecycleUid::parse(&c.to_string().repeat(26)).unwrap()
    }

    /// Each case mends the first fault of the case before it.
    #[test]
    fn a_stamped_root_is_checked_in_the_contracts_order() {
        let id = CredentialId::parse("c1").unwrap();
        let end = UnixMillis(1_000);
        let active =
            CredentialRow::agent(&uid('a'), &id, &principal("alice"), vec![SourceMember::Root], end).unwrap();
        let revoked = active.clone().revoke();
        for (row, who, at, code) in [
            (None, "bob", 'b', EpCode::Internal),
            (Some(&revoked), "bob", 'b', EpCode::PermissionDenied),
            (Some(&active), "bob", 'b', EpCode::Internal),
            (Some(&active), "alice", 'b', EpCode::Internal),
            (Some(&active), "alice", 'a', EpCode::PermissionDenied),
        ] {
            let refusal = check_root_row(row, &principal(who), &uid(at), end).unwrap_err();
            assert_eq!(refusal.code, code);
            assert_eq!(refusal.message.ends_with(GRANT_AGAIN), code == EpCode::PermissionDenied, "{refusal}");
        }
        assert_eq!(check_root_row(Some(&active), &principal("alice"), &uid('a'), UnixMillis(999)), Ok(()));
    }

    #[test]
    fn a_root_lives_ninety_days_in_milliseconds() {
        assert_eq!(ROOT_CREDENTIAL_TTL_MS, 7_776_000_000);
    }
}
