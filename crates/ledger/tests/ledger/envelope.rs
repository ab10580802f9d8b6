//! What a child may hold of its parent's grant.

use cotal_ledger::{ActorRow, Boundary, GrantInput, RowKind};

use crate::house::{ALICE, BOB, Fixture, actor, broken, child, input, owner, plain_row, refused};

#[test]
fn a_child_may_hold_what_its_parent_holds_and_nothing_more() {
    let boss = format!("{ALICE}.boss");
    let cases = [
        ("spawn", "team.a", "team.a.x", Ok(())),
        ("", "", "", Ok(())),
        ("spawn,run", "team.a", "", Err("scope [\"run\"]")),
        ("supervise", "", "", Err("scope [\"supervise\"]")),
        ("", "team.>", "", Err("read [\"team.>\"]")),
        ("", "team.*", "", Ok(())),
        ("", "other", "", Err("read [\"other\"]")),
        ("", "", "team.b", Err("post [\"team.b\"]")),
        ("", "", "team.a", Err("post [\"team.a\"]")),
        ("run", "other", "other", Err("scope [\"run\"]; read [\"other\"]; post [\"other\"]")),
    ];
    for (scope, read, post, expected) in cases {
        let f = Fixture::new();
        f.interactive(&input(ALICE, "boss", "spawn,role:default", "team.*,log", "team.a.>")).unwrap();
        let outcome = f.managed(&child(ALICE, "w", &boss, scope, read, post)).map(|_| ());
        match expected {
            Ok(()) => outcome.unwrap(),
            Err(part) => refused(outcome, part),
        }
    }
}

#[test]
fn a_role_needs_the_parents_role_capability() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "boss", "role:default", "", "")).unwrap();
    let with_role = |role: &str| GrantInput {
        role: Some(role.into()),
        ..child(ALICE, "w", &format!("{ALICE}.boss"), "", "", "")
    };
    f.managed(&with_role("default")).unwrap();
    refused(f.managed(&with_role("other")), "scope [\"role:other\"]");
}

#[test]
fn a_refused_excess_prints_the_command_that_widens_the_parent_by_it() {
    let f = Fixture::new();
    let mut boss = input(ALICE, "boss", "spawn", "a", "");
    boss.label = Some("it's mine".into());
    boss.role = Some("lead".into());
    f.interactive(&boss).unwrap();
    let mut w = child(ALICE, "w", &format!("{ALICE}.boss"), "run", "b.>", "c");
    w.role = Some("worker".into());
    refused(
        f.managed(&w),
        &format!(
            "Widen the parent with: cotal actor grant boss --owner {ALICE} --scope 'spawn,run,role:worker' \
             --allow-subscribe 'a,b.>' --allow-publish 'c' --role 'lead' --label 'it'\\''s mine'"
        ),
    );
}

#[test]
fn an_admin_parent_accepts_everything_whoever_owns_it_and_ends_the_walk() {
    let f = Fixture::new();
    // The admin's own parent does not exist, and is never looked at.
    let mut admin = input(BOB, "root", "admin", "", "");
    admin.parent = Some(format!("{BOB}.gone"));
    f.interactive(&admin).unwrap();
    f.managed(&child(ALICE, "w", &format!("{BOB}.root"), "run,supervise", ">", ">")).unwrap();
}

#[test]
fn a_parent_of_another_owner_that_is_no_admin_refuses() {
    let f = Fixture::new();
    f.interactive(&input(BOB, "boss", "spawn", ">", ">")).unwrap();
    refused(f.managed(&child(ALICE, "w", &format!("{BOB}.boss"), "", "", "")), "another owner");
}

#[test]
fn a_cycle_is_refused_and_any_other_depth_is_walked() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "p0", "spawn", ">", ">")).unwrap();
    for i in 1..60 {
        let parent = format!("{ALICE}.p{}", i - 1);
        f.managed(&child(ALICE, &format!("p{i}"), &parent, "spawn", ">", ">")).unwrap();
    }
    refused(
        f.managed(&child(ALICE, "self", &format!("{ALICE}.self"), "", "", "")),
        "parent chain returns to",
    );
    // The root of the chain becomes a child of its last link.
    f.ledger.revoke_interactive(&owner(ALICE), &actor("p0")).unwrap();
    refused(
        f.managed(&child(ALICE, "p0", &format!("{ALICE}.p59"), "spawn", ">", ">")),
        "parent chain returns to",
    );
}

#[test]
fn the_whole_chain_is_walked_at_every_exchange() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "boss", "spawn,run", ">", ">")).unwrap();
    f.managed(&child(ALICE, "mid", &format!("{ALICE}.boss"), "spawn,run", ">", ">")).unwrap();
    let secret = f.managed(&child(ALICE, "leaf", &format!("{ALICE}.mid"), "run", "a", "a")).unwrap();
    let exchange = || f.ledger.authorize_agent_exchange(&owner(ALICE), &actor("leaf"), &secret);
    exchange().unwrap();
    // The leaf is within its parent still; its parent is no longer within the root.
    f.interactive(&input(ALICE, "boss", "spawn", ">", ">")).unwrap();
    refused(exchange(), "mid holds more than its parent");
    f.ledger.revoke_interactive(&owner(ALICE), &actor("boss")).unwrap();
    refused(exchange(), "revoked or never granted");
    f.plant(RowKind::Interactive, &format!("{ALICE}.boss"), b"{}");
    broken(exchange());
}

#[test]
fn a_managed_parents_remedy_is_to_spawn_it_again() {
    let f = Fixture::new();
    f.managed(&input(ALICE, "mid", "", "", "")).unwrap();
    refused(
        f.managed(&child(ALICE, "w", &format!("{ALICE}.mid"), "run", "", "")),
        "Spawn u_aaaaaaaaaaaaaaaaaaaaaaaaaa.mid again",
    );
}

#[test]
fn a_missing_parent_is_refused_before_its_owner_is_compared_and_a_cycle_before_that() {
    let f = Fixture::new();
    refused(f.managed(&child(ALICE, "w", &format!("{BOB}.gone"), "", "", "")), "revoked or never granted");
    // Both the own key and a missing row: the cycle is told.
    let row = ActorRow { parent: Some(format!("{ALICE}.w")), ..plain_row("w") };
    refused(f.ledger.assert_within_spawner_grant(&row, Boundary::Exchange), "refusing the exchange of");
}
