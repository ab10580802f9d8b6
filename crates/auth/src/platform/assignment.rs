//! Which manager instance a platform has assigned to a context (contract 06 §14.2).

use async_trait::async_trait;
use cotal_wire::{Account, EpError, InstanceId, LifecycleUid, Nkey, Space};

/// What a platform has assigned: at most one to an account, and never cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformAssignment {
    /// The space.
    pub space: Space,
    /// Its data account.
    pub account_public_key: Nkey<Account>,
    /// The manager instance.
    pub instance_id: InstanceId,
    /// The assignment's lifecycle.
    pub lifecycle_uid: LifecycleUid,
    /// The instance that held it before.
    pub predecessor_instance_id: Option<InstanceId>,
    /// Counts the changes of this assignment.
    pub assignment_revision: u64,
    /// Whether it stands.
    pub state: AssignmentState,
}

/// Whether an assignment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssignmentState {
    /// It stands.
    Assigned,
    /// It was taken back.
    Revoked,
}

/// Reads the platform's own record of assignments. The service asks at every use, so that a revocation is seen at once.
#[async_trait]
pub trait ObserveAssignment: Send + Sync {
    /// The assignment of this account now, or `None`. What the error says is logged and told to no caller.
    async fn observe_assignment(
        &self,
        space: &Space,
        account: &Nkey<Account>,
    ) -> Result<Option<PlatformAssignment>, Box<dyn std::error::Error + Send + Sync>>;
}

/// Reads the assignment fresh. `unavailable` when it cannot be read; `permission-denied` when there is none, it was taken
/// back, or it is another context's.
pub(super) async fn current(
    observer: &dyn ObserveAssignment,
    space: &Space,
    account: &Nkey<Account>,
) -> Result<PlatformAssignment, EpError> {
    let seen = observer.observe_assignment(space, account).await.map_err(|error| {
        tracing::error!(%space, %error, "the platform's assignment cannot be read");
        EpError::unavailable("the platform's assignment cannot be read; retry")
    })?;
    match seen {
        Some(assignment) if assignment.state != AssignmentState::Assigned => {
            Err(EpError::permission_denied("the platform has taken this account's assignment back"))
        }
        Some(assignment) if assignment.space == *space && assignment.account_public_key == *account => {
            Ok(assignment)
        }
        Some(_) => Err(EpError::permission_denied("the platform's assignment is another context's")),
        None => Err(EpError::permission_denied("the platform assigns no manager to this account")),
    }
}

#[cfg(test)]
mod tests {
    use cotal_trust::{nkey::Seed, system::SystemEntropy};
    use cotal_wire::EpCode;

    use super::*;

    struct Says(Result<Option<PlatformAssignment>, &'static str>);

    #[async_trait]
    impl ObserveAssignment for Says {
        async fn observe_assignment(
            &self,
            _space: &Space,
            _account: &Nkey<Account>,
        ) -> Result<Option<PlatformAssignment>, Box<dyn std::error::Error + Send + Sync>> {
            self.0.clone().map_err(Into::into)
        }
    }

    #[tokio::test]
    async fn only_a_standing_assignment_of_this_very_context_is_one() {
        let account = || Seed::<Account>::generate(&SystemEntropy).public().clone();
        let (space, own) = (Space::parse("demo").unwrap(), account());
        let good = PlatformAssignment {
            space: space.clone(),
            account_public_key: own.clone(),
            instance_id: InstanceId::mint(&SystemEntropy),
            lifecycle_uid: LifecycleUid::mint(&SystemEntropy),
            predecessor_instance_id: None,
            assignment_revision: 0,
            state: AssignmentState::Assigned,
        };
        assert_eq!(current(&Says(Ok(Some(good.clone()))), &space, &own).await, Ok(good.clone()));
        let denied = [
            None,
            Some(PlatformAssignment { state: AssignmentState::Revoked, ..good.clone() }),
            Some(PlatformAssignment { space: Space::parse("other").unwrap(), ..good.clone() }),
            Some(PlatformAssignment { account_public_key: account(), ..good }),
        ];
        for said in denied {
            let refusal = current(&Says(Ok(said)), &space, &own).await.unwrap_err();
            assert_eq!(refusal.code, EpCode::PermissionDenied);
        }
        let refusal = current(&Says(Err("the vault at 10.0.0.7 is sealed")), &space, &own).await.unwrap_err();
        assert_eq!(refusal.code, EpCode::Unavailable);
        assert!(!refusal.message.contains("10.0.0.7"), "{refusal}");
    }
}
