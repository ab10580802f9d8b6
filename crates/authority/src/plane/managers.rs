//! What the plane enumerates about managers, each time through a sealed scanner and under its claim: the goals of one owner,
//! and who holds credentials of one instance (contract 05 §8.7; 06 §5, §10).

use std::collections::BTreeSet;

use cotal_wire::{EndpointName, EpError, InstanceId, Owner, Principal, rows::GoalIndexRow};

use super::Plane;
use crate::manager::family_holders;

impl Plane {
    /// The goals of one owner, each row parsed: a marker is `failed-precondition`, a row that is garbled or another's
    /// `internal`.
    pub async fn goal_index(&self, owner: &Owner) -> Result<Vec<GoalIndexRow>, EpError> {
        self.fence.check()?;
        let goals = self.barriers.deps().records.goal_index(owner).await?;
        self.fence.check()?;
        Ok(goals)
    }

    /// Everybody who holds, or held, a credential of this manager instance: a marker is `failed-precondition`, a row of
    /// another family `internal`.
    pub async fn manager_family(&self, instance: &InstanceId) -> Result<BTreeSet<Principal>, EpError> {
        self.fence.check()?;
        let manager = EndpointName::manager().token();
        let rows = self.barriers.deps().ledger.endpoint_family(&manager, instance).await?;
        family_holders(instance, &rows)
    }
}
