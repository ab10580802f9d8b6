//! What the exchange and the connect ask.

use cotal_ledger::{AGENT_EXCHANGE_REFUSAL, LedgerError, RowKind, hash_agent_secret};

use crate::house::{
    ALICE, BOB, Fixture, OTHER_UID, UID, actor, broken, child, claims, input, owner, refused, strings, uid,
};

#[test]
fn a_person_mints_only_for_an_interactive_row_with_an_incarnation() {
    let f = Fixture::new();
    refused(
        f.ledger.authorize_grant(&owner(ALICE), &actor("cli")),
        &format!("cotal actor grant cli --owner {ALICE}"),
    );
    f.managed(&input(ALICE, "w", "", "", "")).unwrap();
    refused(f.ledger.authorize_grant(&owner(ALICE), &actor("w")), "is a managed agent");
    let mut granted = child(ALICE, "cli", &format!("{BOB}.boss"), "spawn", "a", "b");
    granted.role = Some("default".into());
    granted.label = Some("Alice".into());
    f.interactive(&granted).unwrap();
    let grant = f.ledger.authorize_grant(&owner(ALICE), &actor("cli")).unwrap();
    assert_eq!(grant.lifecycle_uid.as_str(), UID);
    assert_eq!(grant.parent.as_ref().unwrap().key(), format!("{BOB}.boss"));
    assert_eq!((grant.role.as_deref(), grant.label.as_deref()), (Some("default"), Some("Alice")));
    assert_eq!(
        grant.regrant_command_with("admin"),
        format!(
            "cotal actor grant cli --owner {ALICE} --scope 'spawn,admin' --allow-subscribe 'a' --allow-publish 'b' \
             --role 'default' --label 'Alice'"
        )
    );
}

#[test]
fn a_row_from_before_incarnations_neither_mints_nor_connects() {
    let f = Fixture::new();
    let old = format!(
        r#"{{"ver":1,"owner":"{ALICE}","actor":"cli","scope":[],"allowSubscribe":[],"allowPublish":[],"grantedAt":""}}"#
    );
    f.plant(RowKind::Interactive, &format!("{ALICE}.cli"), old.as_bytes());
    refused(f.ledger.authorize_grant(&owner(ALICE), &actor("cli")), "no lifecycle uid");
    refused(f.ledger.authorize_connect(&claims(ALICE, "cli", &[], Some(UID))), "another incarnation");
    refused(f.ledger.resolve_acl(&claims(ALICE, "cli", &[], Some(UID))), "row of");
}

#[test]
fn every_unauthenticated_agent_refusal_is_one_sentence() {
    let f = Fixture::new();
    let secret = f.managed(&input(ALICE, "w", "", "", "")).unwrap();
    f.interactive(&input(ALICE, "cli", "", "", "")).unwrap();
    f.plant(RowKind::ManagedAgent, &format!("{ALICE}.broken"), b"{}");
    let hashless = format!(
        r#"{{"ver":1,"owner":"{ALICE}","actor":"h","scope":[],"allowSubscribe":[],"allowPublish":[],"grantedAt":""}}"#
    );
    f.plant(RowKind::ManagedAgent, &format!("{ALICE}.h"), hashless.as_bytes());
    let wrong = format!("{}x", &secret[..42]);
    let hash = hash_agent_secret(&secret);
    let cases = [
        (ALICE, "absent", secret.as_str()),
        (BOB, "w", &secret),
        (ALICE, "cli", &secret),
        (ALICE, "broken", &secret),
        (ALICE, "h", &secret),
        (ALICE, "w", ""),
        (ALICE, "w", &wrong),
        (ALICE, "w", &hash),
    ];
    for (of, name, token) in cases {
        let outcome = f.ledger.authorize_agent_exchange(&owner(of), &actor(name), token).map(|_| ());
        assert_eq!(outcome, Err(LedgerError::Refused(AGENT_EXCHANGE_REFUSAL.to_owned())), "{name}");
    }
    assert_eq!(
        f.ledger
            .authorize_agent_exchange(&owner(ALICE), &actor("w"), &secret)
            .unwrap()
            .lifecycle_uid
            .as_str(),
        UID
    );
}

#[test]
fn an_agents_secret_is_checked_before_its_envelope() {
    let f = Fixture::new();
    f.interactive(&input(ALICE, "boss", "run", "", "")).unwrap();
    let secret = f.managed(&child(ALICE, "w", &format!("{ALICE}.boss"), "run", "", "")).unwrap();
    f.ledger.revoke_interactive(&owner(ALICE), &actor("boss")).unwrap();
    refused(f.ledger.authorize_agent_exchange(&owner(ALICE), &actor("w"), "wrong"), AGENT_EXCHANGE_REFUSAL);
    refused(
        f.ledger.authorize_agent_exchange(&owner(ALICE), &actor("w"), &secret),
        "revoked or never granted",
    );
}

#[test]
fn a_connect_is_denied_in_the_order_row_scope_incarnation() {
    let f = Fixture::new();
    let connect = |scope: &[&str], uid| f.ledger.authorize_connect(&claims(ALICE, "cli", scope, uid));
    refused(connect(&["admin"], None), "no row in the ledger");
    f.interactive(&input(ALICE, "cli", "spawn,run", "", "")).unwrap();
    refused(connect(&["spawn", "admin"], None), "scope \"admin\"");
    refused(connect(&["spawn"], None), "names no lifecycle uid");
    refused(connect(&["spawn"], Some(OTHER_UID)), "another incarnation");
    connect(&["run", "spawn"], Some(UID)).unwrap();
    connect(&[], Some(UID)).unwrap();
    f.ledger.revoke_interactive(&owner(ALICE), &actor("cli")).unwrap();
    refused(connect(&[], Some(UID)), "no row in the ledger");
}

#[test]
fn permissions_come_from_the_current_row() {
    let f = Fixture::new();
    let acl = |name: &str, uid| f.ledger.resolve_acl(&claims(ALICE, name, &[], uid));
    refused(acl("cli", Some(UID)), "no row in the ledger");
    f.interactive(&input(ALICE, "cli", "spawn", "a", "b")).unwrap();
    refused(acl("cli", None), "names no lifecycle uid");
    refused(acl("cli", Some(OTHER_UID)), "another incarnation");
    let now = acl("cli", Some(UID)).unwrap();
    assert_eq!((now.kind, now.parent_has_run), (RowKind::Interactive, false));
    assert_eq!(
        (now.scope, now.allow_subscribe, now.allow_publish),
        (strings("spawn"), strings("a"), strings("b"))
    );
}

#[test]
fn only_a_direct_parent_with_run_by_name_has_run() {
    let f = Fixture::new();
    for (name, scope, expected) in
        [("runner", "spawn,run", true), ("admin", "admin", false), ("plain", "spawn", false)]
    {
        f.interactive(&input(ALICE, name, scope, ">", ">")).unwrap();
        f.managed(&child(ALICE, &format!("of_{name}"), &format!("{ALICE}.{name}"), "", "", "")).unwrap();
        let of = format!("of_{name}");
        let acl = || f.ledger.resolve_acl(&claims(ALICE, &of, &[], Some(UID)));
        assert_eq!(acl().unwrap().parent_has_run, expected, "{name}");
        f.ledger.revoke_interactive(&owner(ALICE), &actor(name)).unwrap();
        assert!(!acl().unwrap().parent_has_run);
        f.plant(RowKind::Interactive, &format!("{ALICE}.{name}"), b"{}");
        broken(acl());
    }
}

#[test]
fn scope_and_liveness_are_read_from_either_space() {
    let f = Fixture::new();
    f.managed(&input(ALICE, "w", "", "a", "b")).unwrap();
    f.interactive(&input(ALICE, "cli", "spawn", "a", "b")).unwrap();
    assert_eq!(f.ledger.scope_of(&owner(ALICE), &actor("cli")).unwrap(), Some(strings("spawn")));
    assert_eq!(f.ledger.scope_of(&owner(ALICE), &actor("w")).unwrap(), Some(vec![]));
    assert_eq!(f.ledger.scope_of(&owner(BOB), &actor("w")).unwrap(), None);
    assert!(f.ledger.is_live(&owner(ALICE), &actor("w"), &uid(UID)).unwrap());
    assert!(!f.ledger.is_live(&owner(ALICE), &actor("w"), &uid(OTHER_UID)).unwrap());
    assert!(!f.ledger.is_live(&owner(BOB), &actor("w"), &uid(UID)).unwrap());
}
