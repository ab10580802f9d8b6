//! On whose account a manager's request is decided (contract 06 §2.2).

use cotal_wire::{
    Account, EpError, InstanceId, LifecycleUid, Nkey, Owner, OwnerKind, Space, UnixSecs,
    manager_authority::{ADMIN, HolderKind, SPAWN, SUPERVISE, Scope},
};

/// What a host's platform says of one manager at the moment that it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The space.
    pub space: Space,
    /// The data account.
    pub account: Nkey<Account>,
    /// The manager's instance.
    pub instance: InstanceId,
    /// The manager's lifecycle.
    pub lifecycle_uid: LifecycleUid,
    /// Its revision: a changed assignment has another.
    pub revision: u64,
    /// Whether it stands.
    pub assigned: bool,
}

/// Who asks. Only the routes and doors build one, from what they proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A person who signed in, with the capabilities of the actor's row as just read.
    Human {
        /// Derived from the sign-in.
        owner: Owner,
        /// The row's scope: nothing in the request can add to it.
        scope: Vec<String>,
    },
    /// The platform, for a manager that it assigned. It never carries a scope.
    Platform {
        /// The platform's owner.
        owner: Owner,
        /// The assignment, as just read.
        assignment: Assignment,
    },
    /// The platform, in the name of the user whose manager it supervises (contract 05 §17). It supervises, and may do
    /// nothing else.
    Supervisor {
        /// The user.
        owner: Owner,
        /// The assigned instance.
        instance: InstanceId,
        /// When the assignment ends: see [`Holder::not_after`].
        until: UnixSecs,
    },
}

impl Holder {
    /// The owner that the request acts for.
    pub fn owner(&self) -> &Owner {
        match self {
            Self::Human { owner, .. } | Self::Platform { owner, .. } | Self::Supervisor { owner, .. } => {
                owner
            }
        }
    }

    /// How its requests are read.
    pub fn kind(&self) -> HolderKind {
        match self {
            Self::Human { .. } | Self::Supervisor { .. } => HolderKind::Human,
            Self::Platform { .. } => HolderKind::Platform,
        }
    }

    /// The end of the assignment that the holder acts under, when it has one: nothing that is signed for it expires later.
    pub fn not_after(&self) -> Option<UnixSecs> {
        match self {
            Self::Human { .. } | Self::Platform { .. } => None,
            Self::Supervisor { until, .. } => Some(*until),
        }
    }

    /// Whether the row holds a capability. No capability implies another.
    pub fn has(&self, capability: &str) -> bool {
        matches!(self, Self::Human { scope, .. } if scope.iter().any(|held| held == capability))
    }

    /// Whether the holder has what a request asks for by the table of kinds (contract 06 §2.2, §16). A run's owner is told
    /// by the run: here only an admin may end one.
    pub fn may_ask(&self, scope: Scope, instance: &str) -> Result<(), EpError> {
        match (scope, scope.capability()) {
            (Scope::Supervise, _) => self.may_supervise(instance),
            (_, Some(needed)) if !self.has(needed) => {
                Err(EpError::permission_denied(format!("the actor's grant has no scope \"{needed}\"")))
            }
            _ => Ok(()),
        }
    }

    /// The holder rule: a person needs `supervise`, a platform the assignment of just this instance.
    fn may_supervise(&self, instance: &str) -> Result<(), EpError> {
        match self {
            Self::Human { .. } if self.has(SUPERVISE) => Ok(()),
            Self::Human { .. } => Err(EpError::permission_denied(format!(
                "the actor's grant has no scope \"{SUPERVISE}\", which neither \"{SPAWN}\" nor \"{ADMIN}\" implies"
            ))),
            Self::Platform { owner, assignment }
                if owner.kind() == OwnerKind::Platform
                    && assignment.assigned
                    && assignment.instance.as_str() == instance =>
            {
                Ok(())
            }
            Self::Supervisor { owner, instance: assigned, .. }
                if owner.kind() == OwnerKind::Derived && assigned.as_str() == instance =>
            {
                Ok(())
            }
            Self::Platform { .. } | Self::Supervisor { .. } => {
                Err(EpError::permission_denied("the platform has not assigned this manager instance"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::EpCode;

    use super::*;

    #[test]
    fn a_supervisor_has_its_instance_and_nothing_past_its_assignment() {
        let (owner, instance) = (
            Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap(),
            InstanceId::parse(&"a".repeat(26)).unwrap(),
        );
        let holder = Holder::Supervisor { owner, instance: instance.clone(), until: UnixSecs(100) };
        assert!(holder.may_ask(Scope::Supervise, instance.as_str()).is_ok());
        assert_eq!(
            holder.may_ask(Scope::Supervise, &"b".repeat(26)).unwrap_err().code,
            EpCode::PermissionDenied
        );
        assert!(![SUPERVISE, ADMIN, SPAWN].iter().any(|scope| holder.has(scope)), "it carries no scope");
        assert_eq!(holder.kind(), HolderKind::Human, "it acts for a user");
        assert_eq!(holder.not_after(), Some(UnixSecs(100)));
        let person = Holder::Human { owner: holder.owner().clone(), scope: vec![] };
        assert_eq!(person.not_after(), None);
    }

    #[test]
    fn supervise_is_literal_and_a_platform_needs_its_assignment() {
        let owner = Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        let platform = Owner::parse("p_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        let instance = InstanceId::parse(&"a".repeat(26)).unwrap();
        let human = |scope: &[&str]| Holder::Human {
            owner: owner.clone(),
            scope: scope.iter().map(ToString::to_string).collect(),
        };
        let assigned = |owner: &Owner, instance: &InstanceId, assigned: bool| Holder::Platform {
            owner: owner.clone(),
            assignment: Assignment {
                space: Space::parse("main").unwrap(),
                account: Nkey::parse(&format!("A{}", "A".repeat(55))).unwrap(),
                instance: instance.clone(),
                lifecycle_uid: LifecycleUid::parse(&"b".repeat(26)).unwrap(),
                revision: 1,
                assigned,
            },
        };
        let other = InstanceId::parse(&"c".repeat(26)).unwrap();
        for (holder, ok) in [
            (human(&[SUPERVISE]), true),
            (human(&["spawn", "admin", "run"]), false),
            (human(&["supervise:x", "SUPERVISE"]), false),
            (human(&[]), false),
            (assigned(&platform, &instance, true), true),
            (assigned(&platform, &instance, false), false),
            (assigned(&platform, &other, true), false),
            (assigned(&owner, &instance, true), false),
        ] {
            let verdict = holder.may_ask(Scope::Supervise, instance.as_str());
            assert_eq!(verdict.is_ok(), ok, "{holder:?}");
            assert!(verdict.err().is_none_or(|refusal| refusal.code == EpCode::PermissionDenied));
        }
    }

    #[test]
    fn each_scope_of_the_table_asks_for_its_own_word_and_no_other() {
        let owner = Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        let words = [SUPERVISE, SPAWN, ADMIN];
        for scope in [Scope::None, Scope::Supervise, Scope::Spawn, Scope::RunOwnerOrAdmin] {
            for word in words {
                let holder = Holder::Human { owner: owner.clone(), scope: vec![word.to_owned()] };
                let may = holder.may_ask(scope, &"a".repeat(26)).is_ok();
                assert_eq!(may, scope.capability().is_none_or(|needed| needed == word), "{scope:?}: {word}");
            }
        }
    }
}
