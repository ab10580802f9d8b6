//! The decisions of the kinds that only ask (contract 06 §10-11).

use cotal_ledger::ActorRow;
use cotal_wire::{
    EpError, LifecycleUid, OwnerKind,
    manager_authority::{ADMIN, AdminRequest, GoalIndexRequest, Kind},
    rows::EndpointGate,
};

use super::{
    Holder, Host,
    registration::{CurrentManager, check_current},
};

/// A scan that may run, over the goals of the holder's own owner alone.
pub fn decide_goal_index_scan(
    host: Host<'_>,
    holder: &Holder,
    request: &GoalIndexRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.asked(Kind::GoalIndexScan, holder, &request.envelope)?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// A question about an admin that may be answered; the answer is [`is_admin`]'s.
pub fn decide_admin_authorization(
    host: Host<'_>,
    holder: &Holder,
    request: &AdminRequest,
    gate: Option<&EndpointGate>,
) -> Result<CurrentManager, EpError> {
    host.asked(Kind::AdminAuthorization, holder, &request.envelope)?;
    check_current(gate, &request.envelope, Some(request.serve_epoch), holder.owner(), host.proof)
}

/// The one boolean. `row` is the caller's row of either kind, read fresh; an unreadable ledger never comes so far.
///
/// Absent, revoked, narrowed, foreign-owner and stale-lifecycle callers are no admins, and nobody is for a platform.
pub fn is_admin(holder: &Holder, request: &AdminRequest, row: Option<&ActorRow>) -> bool {
    let Holder::Human { owner, .. } = holder else { return false };
    let caller = &request.caller;
    caller.owner == *owner
        && caller.owner.kind() == OwnerKind::Derived
        && row.is_some_and(|row| {
            row.lifecycle_uid.as_deref().map(LifecycleUid::parse) == Some(Ok(caller.lifecycle_uid.clone()))
                && row.has_scope(ADMIN)
        })
}

#[cfg(test)]
mod tests {
    use cotal_wire::{Actor, DerivedOwner, EpCode, EpError};
    use serde_json::{Value, json};

    use super::*;
    use crate::manager::fixtures::{
        Check, EPOCH, OTHER_OWNER, OWNER, PLATFORM, UID, World, human, prove_order, registration_checks,
    };

    fn scan() -> World {
        World::of(Kind::GoalIndexScan, json!({ "serveEpoch": EPOCH }))
    }

    fn decide_scan(world: &World) -> Result<(), EpError> {
        let request = world.parsed(GoalIndexRequest::parse, |request| &request.envelope);
        decide_goal_index_scan(world.host(), &world.holder, &request, world.gate().as_ref()).map(drop)
    }

    fn question(caller: &Value) -> World {
        World::of(Kind::AdminAuthorization, json!({ "serveEpoch": EPOCH, "caller": caller }))
    }

    fn caller(owner: &str) -> Value {
        json!({ "owner": owner, "actor": "ops", "lifecycleUid": UID })
    }

    fn asked(world: &World) -> AdminRequest {
        world.parsed(|request| AdminRequest::parse(request, world.holder.kind()), |request| &request.envelope)
    }

    fn decide_admin(world: &World) -> Result<(), EpError> {
        let request = asked(world);
        decide_admin_authorization(world.host(), &world.holder, &request, world.gate().as_ref()).map(drop)
    }

    /// Space, holder, then the current registration.
    fn checks(holder: Check<World>) -> Vec<Check<World>> {
        let space = Check(
            "space",
            |world: &mut World| world.request["space"] = json!("other"),
            EpCode::PermissionDenied,
        );
        [space, holder].into_iter().chain(registration_checks()).collect()
    }

    #[test]
    fn a_question_stands_on_space_scope_and_registration_in_this_order() {
        let person = || {
            Check(
                "scope",
                |world: &mut World| world.holder = human(OWNER, &["spawn", "admin"]),
                EpCode::PermissionDenied,
            )
        };
        prove_order(&scan(), &checks(person()), decide_scan);
        prove_order(&question(&caller(OWNER)), &checks(person()), decide_admin);
        let platform = || {
            let revoke = |world: &mut World| {
                if let Holder::Platform { assignment, .. } = &mut world.holder {
                    assignment.assigned = false;
                }
            };
            Check("assignment", revoke, EpCode::PermissionDenied)
        };
        prove_order(&scan().platform(), &checks(platform()), decide_scan);
        prove_order(&question(&caller(OWNER)).platform(), &checks(platform()), decide_admin);
    }

    #[test]
    fn without_a_gate_a_question_is_refused_for_the_want_of_it_and_epoch_zero_is_an_epoch() {
        type Decide = fn(&World) -> Result<(), EpError>;
        let asked: [(World, Decide); 2] = [(scan(), decide_scan), (question(&caller(OWNER)), decide_admin)];
        for (mut world, decide) in asked {
            world.gate.there = false;
            assert_eq!(decide(&world).unwrap_err().code, EpCode::FailedPrecondition);
            world.gate.there = true;
            world.gate.epoch = 0;
            assert_eq!(decide(&world).unwrap_err().code, EpCode::Conflict);
            world.request["serveEpoch"] = json!(0);
            assert_eq!(decide(&world), Ok(()));
        }
    }

    fn row(scope: &[&str], uid: Option<&str>) -> ActorRow {
        ActorRow {
            owner: DerivedOwner::parse(OWNER).unwrap(),
            actor: Actor::parse("ops").unwrap(),
            scope: scope.iter().map(ToString::to_string).collect(),
            allow_subscribe: Vec::new(),
            allow_publish: Vec::new(),
            role: None,
            parent: None,
            label: None,
            token_hash: None,
            lifecycle_uid: uid.map(str::to_owned),
            granted_at: None,
        }
    }

    #[test]
    fn an_admin_is_the_managers_own_owners_current_row_with_the_scope() {
        let world = question(&caller(OWNER));
        let request = asked(&world);
        let is = |row: Option<ActorRow>| is_admin(&world.holder, &request, row.as_ref());
        assert!(is(Some(row(&["spawn", "admin"], Some(UID)))));
        for (what, row) in [
            ("absent or revoked", None),
            ("narrowed", Some(row(&["spawn", "supervise"], Some(UID)))),
            ("a word that only looks like it", Some(row(&["administrator", "role:admin"], Some(UID)))),
            ("another incarnation", Some(row(&["admin"], Some(&"m".repeat(26))))),
            ("of no incarnation", Some(row(&["admin"], None))),
        ] {
            assert!(!is(row), "{what}");
        }
        let good = row(&["admin"], Some(UID));
        let foreign = question(&caller(OTHER_OWNER));
        assert!(!is_admin(&foreign.holder, &asked(&foreign), Some(&good)), "another owner's caller");
        let platform = question(&caller(PLATFORM)).platform();
        assert!(!is_admin(&platform.holder, &asked(&platform), Some(&good)), "nobody is for a platform");
        let platforms_user = question(&caller(OWNER)).platform();
        assert!(!is_admin(&platforms_user.holder, &asked(&platforms_user), Some(&good)));
    }
}
