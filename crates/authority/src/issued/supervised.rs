//! What a platform supervisor's manager holds, recorded once for each of its two duties (contract 05 §6.2, §17).
//!
//! The record is issued evidence that rests on no source and ends with the assignment. It is accepted under a token that is
//! derived from the assignment's coordinates, so that each later request finds it, confirms the same ceiling, and refuses
//! once it was retired.

use cotal_wire::{
    EpCode, EpError, Generation, InstanceId, LifecycleUid, Owner, Principal, SpaceToken, UnixSecs,
    grants::platform_supervisor_token,
    manager_authority::StandingRole,
    rows::{AcceptedRow, IssuedAuthorityRef, IssuedEvidence, IssuedPermissions},
};

use super::{session::IssuerSession, sources::HostSources, store::IssuedStore};

/// A duty of a manager that a platform supervises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupervisedDuty {
    principal: Principal,
    uid: LifecycleUid,
    token: Generation,
}

impl SupervisedDuty {
    /// The duties whose ceilings are recorded.
    pub const ROLES: [StandingRole; 2] = [StandingRole::Supervisor, StandingRole::Executor];

    /// The duty of this manager.
    pub fn of(owner: &Owner, instance: &InstanceId, uid: &LifecycleUid, role: StandingRole) -> Self {
        Self {
            principal: Principal::new(owner.clone(), role.actor(instance)),
            uid: uid.clone(),
            token: platform_supervisor_token(owner, instance, uid, role),
        }
    }

    /// What the accepted row of its token says was recorded.
    fn recorded(
        &self,
        space: &SpaceToken,
        row: Option<AcceptedRow>,
    ) -> Result<Option<IssuedAuthorityRef>, EpError> {
        match row {
            None => Ok(None),
            Some(AcceptedRow { authority }) if authority.is_of(space, &self.principal, &self.uid) => {
                Ok(Some(authority))
            }
            Some(_) => Err(EpError::permission_denied(
                "platform supervisor: what is recorded for this duty is another manager's",
            )),
        }
    }
}

impl IssuerSession {
    /// Refuses `permission-denied` when what was recorded for the duty was retired, or has expired. A duty for which nothing
    /// was recorded yet passes.
    pub async fn check_supervised(&self, duty: &SupervisedDuty, now: UnixSecs) -> Result<(), EpError> {
        let lease = self.enter().await?;
        let store = lease.store();
        match duty.recorded(store.space(), store.accepted_row(&duty.token).await?)? {
            None => Ok(()),
            Some(authority) => stands(store, &authority, now).await,
        }
    }

    /// Records the ceiling of the duty's first credential, until the assignment ends; at a later one the record must stand,
    /// and its ceiling be the same text.
    ///
    /// `permission-denied` when it stands no more, `failed-precondition` for another ceiling, `conflict` when another
    /// request records the duty at the same moment, `unavailable` when a write is ambiguous. Whatever refuses, the
    /// credential must not be handed out.
    pub async fn record_supervised(
        &self,
        duty: &SupervisedDuty,
        ceiling: IssuedPermissions,
        until: UnixSecs,
        now: UnixSecs,
    ) -> Result<(), EpError> {
        let lease = self.enter().await?;
        let store = lease.store();
        if let Some(authority) = duty.recorded(store.space(), store.accepted_row(&duty.token).await?)? {
            stands(store, &authority, now).await?;
            return store.confirm(&authority, &ceiling).await;
        }
        let authority = IssuedAuthorityRef {
            space: store.space().clone(),
            principal: duty.principal.clone(),
            uid: duty.uid.clone(),
            generation: Generation::mint(self.entropy()),
        };
        let evidence = IssuedEvidence::new(authority, Vec::new(), ceiling, Some(until))?;
        let staged = store.stage(evidence).await?;
        let (released, ()) = staged.release(async { Ok(()) }).await?;
        released.accept(&duty.token).await.map(drop)
    }

    /// Retires what was recorded for the duty; what was never recorded, or retired before, is no failure.
    pub async fn end_supervised(&self, duty: &SupervisedDuty) -> Result<(), EpError> {
        let lease = self.enter().await?;
        let store = lease.store();
        match duty.recorded(store.space(), store.accepted_row(&duty.token).await?)? {
            None => Ok(()),
            Some(authority) => store.retire(&authority).await.map(drop),
        }
    }
}

async fn stands(store: &IssuedStore, authority: &IssuedAuthorityRef, now: UnixSecs) -> Result<(), EpError> {
    let resolved = store.resolve(authority, &HostSources::without_ledger(store), now).await;
    resolved.map(drop).map_err(|refusal| match refusal.code {
        EpCode::PermissionDenied => EpError::permission_denied(
            "platform supervisor: the assignment has ended; nothing is issued under it",
        ),
        _ => refusal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_manager_recorded_is_not_taken_over() {
        let space = SpaceToken::parse("demo").unwrap();
        let owner = Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        let instance = InstanceId::parse(&"i".repeat(26)).unwrap();
        let uid = LifecycleUid::parse(&"l".repeat(26)).unwrap();
        let duty = SupervisedDuty::of(&owner, &instance, &uid, StandingRole::Executor);
        let own = IssuedAuthorityRef {
            space: space.clone(),
            principal: Principal::new(owner.clone(), StandingRole::Executor.actor(&instance)),
            uid,
            generation: Generation::parse(&"0".repeat(32)).unwrap(),
        };
        let recorded = |authority: &IssuedAuthorityRef| {
            duty.recorded(&space, Some(AcceptedRow { authority: authority.clone() }))
        };
        assert_eq!(duty.recorded(&space, None), Ok(None));
        assert_eq!(recorded(&own), Ok(Some(own.clone())));
        let foreign = [
            IssuedAuthorityRef { space: SpaceToken::parse("other").unwrap(), ..own.clone() },
            IssuedAuthorityRef {
                principal: Principal::new(owner, StandingRole::Supervisor.actor(&instance)),
                ..own.clone()
            },
            IssuedAuthorityRef { uid: LifecycleUid::parse(&"m".repeat(26)).unwrap(), ..own },
        ];
        for other in foreign {
            assert_eq!(recorded(&other).unwrap_err().code, EpCode::PermissionDenied, "{other}");
        }
    }
}
