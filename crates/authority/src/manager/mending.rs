//! Whom the repair of a manager's gate looks for, and whom it ends.
//!
//! Both are told by rows that the manager itself may write as it likes: the gate's principal and the holders of its family. So
//! what they name is believed of the instance's own actors alone.

use std::collections::BTreeSet;

use async_trait::async_trait;
use cotal_wire::{
    InstanceId, Owner, Principal,
    manager_authority::{StandingRole, serve_principal},
};

use crate::{
    evict::{Eviction, Evictor},
    registration::{PrincipalLiveness, reconcile::Liveness},
};

/// Whether it is one of the five actors of a manager instance, whoever's. Nobody else has an actor of its name.
pub(super) fn is_actor_of(principal: &Principal, instance: &InstanceId) -> bool {
    StandingRole::ALL.iter().any(|role| principal.actor == role.actor(instance))
}

/// A rail that sees and ends connections, as the repair of one manager instance may use it.
#[derive(Debug)]
pub struct OfInstance<'a, R> {
    /// The rail.
    pub rail: &'a R,
    /// The instance that is mended.
    pub instance: &'a InstanceId,
    /// Whose the instance is, when it is itself that asks: then its executor is connected, and need not be gone.
    pub itself: Option<&'a Owner>,
}

impl<R> OfInstance<'_, R> {
    /// Who registers an instance whose gate names this principal: a remote manager's own executor, unless it is that who asks.
    fn registrant(&self, principal: &Principal) -> Option<Principal> {
        let remote = *principal == serve_principal(&principal.owner, self.instance);
        (remote && self.itself != Some(&principal.owner))
            .then(|| Principal::new(principal.owner.clone(), StandingRole::Executor.actor(self.instance)))
    }
}

#[async_trait]
impl<R: PrincipalLiveness> PrincipalLiveness for OfInstance<'_, R> {
    /// A remote manager that registers again is connected as its executor alone: who served before was ended.
    async fn liveness(&self, principal: &Principal) -> Liveness {
        let seen = self.rail.liveness(principal).await;
        match self.registrant(principal) {
            Some(executor) if seen == Liveness::Gone => self.rail.liveness(&executor).await,
            _ => seen,
        }
    }
}

#[async_trait]
impl<R: Evictor + PrincipalLiveness> Evictor for OfInstance<'_, R> {
    /// Ends the instance's own actors. Anybody else must be gone already.
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let (own, others): (BTreeSet<_>, BTreeSet<_>) =
            principals.iter().cloned().partition(|principal| is_actor_of(principal, self.instance));
        let mut verdicts = if own.is_empty() { Vec::new() } else { self.rail.evict(&own).await };
        for principal in others {
            let seen = self.rail.liveness(&principal).await;
            verdicts.push(not_its_own(principal, seen));
        }
        verdicts.sort_by(|one, other| one.principal.cmp(&other.principal));
        verdicts
    }
}

fn not_its_own(principal: Principal, seen: Liveness) -> Eviction {
    let why = match seen {
        Liveness::Gone => {
            return Eviction {
                principal,
                kicked: 0,
                remaining: 0,
                verified_gone: true,
                scan_complete: true,
                note: None,
            };
        }
        Liveness::Live => "it is connected, and is no actor of the instance; stop its process first",
        Liveness::Unknown => "not every server could be asked for it",
        Liveness::Unestablishable => "the delivery daemon does not answer",
    };
    Eviction::unverified(&principal, why)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::manager::fixtures::{INSTANCE, OTHER_INSTANCE, OTHER_OWNER, OWNER, instance, owner};

    /// Who is connected; whoever is kicked is not.
    struct Rail(Mutex<BTreeSet<Principal>>);

    #[async_trait]
    impl PrincipalLiveness for Rail {
        async fn liveness(&self, principal: &Principal) -> Liveness {
            if self.0.lock().contains(principal) { Liveness::Live } else { Liveness::Gone }
        }
    }

    #[async_trait]
    impl Evictor for Rail {
        async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
            self.0.lock().retain(|one| !principals.contains(one));
            principals.iter().map(|one| not_its_own(one.clone(), Liveness::Gone)).collect()
        }
    }

    fn principals(keys: &[&str]) -> BTreeSet<Principal> {
        keys.iter().map(|key| Principal::parse_key(key).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_repair_ends_the_instances_own_actors_and_nobody_else_whom_its_rows_name() {
        let target = instance(INSTANCE);
        let own = [format!("{OWNER}.manager_serve_{INSTANCE}"), format!("{OWNER}.manager_goal_{INSTANCE}")];
        let others = [
            format!("{OTHER_OWNER}.manager_serve_{OTHER_INSTANCE}"),
            format!("{OTHER_OWNER}.worker"),
            format!("local.U{}", "A".repeat(55)),
        ];
        let named: Vec<&str> = own.iter().chain(&others).map(String::as_str).collect();
        let named = principals(&named);
        let rail = Rail(Mutex::new(named.clone()));
        let seen = OfInstance { rail: &rail, instance: &target, itself: None };
        let verdicts = seen.evict(&named).await;
        assert_eq!(
            verdicts.iter().map(|one| &one.principal).collect::<Vec<_>>(),
            named.iter().collect::<Vec<_>>()
        );
        for verdict in &verdicts {
            let is_own = own.contains(&verdict.principal.key());
            assert_eq!(
                (verdict.verified_gone, verdict.note.is_none()),
                (is_own, is_own),
                "{}",
                verdict.principal
            );
        }
        let stay: Vec<&str> = others.iter().map(String::as_str).collect();
        assert_eq!(*rail.0.lock(), principals(&stay));
        // Those who are gone are as good as ended: a dead local manager's other actors, for one.
        rail.0.lock().clear();
        assert!(seen.evict(&named).await.iter().all(|one| one.verified_gone));
    }

    #[tokio::test]
    async fn a_registration_that_runs_is_alive_to_everybody_but_itself() {
        let target = instance(INSTANCE);
        let serve = Principal::parse_key(&format!("{OWNER}.manager_serve_{INSTANCE}")).unwrap();
        let rail = Rail(Mutex::new(principals(&[&format!("{OWNER}.manager_exec_{INSTANCE}")])));
        let (own, other) = (owner(OWNER), owner(OTHER_OWNER));
        for (itself, expected) in
            [(None, Liveness::Live), (Some(&other), Liveness::Live), (Some(&own), Liveness::Gone)]
        {
            let seen = OfInstance { rail: &rail, instance: &target, itself };
            assert_eq!(seen.liveness(&serve).await, expected, "{itself:?}");
        }
        let local = Principal::parse_key(&format!("local.U{}", "A".repeat(55))).unwrap();
        let seen = OfInstance { rail: &rail, instance: &target, itself: None };
        assert_eq!(
            seen.liveness(&local).await,
            Liveness::Gone,
            "a manager of the static mesh has no executor"
        );
        rail.0.lock().clear();
        assert_eq!(seen.liveness(&serve).await, Liveness::Gone);
    }
}
