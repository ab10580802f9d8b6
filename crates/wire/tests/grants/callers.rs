//! Those who come with a bearer: agents, views, callers of a manager.

use cotal_wire::{
    Actor, SessionEndpoint, SessionId, Sha256Hex, View,
    claims::{Act, SessionClaim, TransferWriterClaim},
    grants::{AgentGrants, ConnectPrincipal, GrantError, Profile, permissions},
    subject_matches,
    time::UnixSecs,
};

use crate::templates::{instance, may, owner, profiles, space, template, templates, who};

#[test]
fn an_agent_reads_and_writes_its_own_lists_and_nothing_else() {
    let permissions = template("agent");
    let own = who().principal.key();
    assert!(may(&permissions.publish, &format!("cotal.main.chat.{own}.general")));
    assert!(!may(&permissions.publish, &format!("cotal.main.chat.{own}.team.x")));
    assert!(!may(&permissions.publish, "cotal.main.chat.local.mallory.general"), "no other sender");
    assert!(may(&permissions.subscribe, "cotal.main.chat.local.bob.team.x"));
    assert!(!may(&permissions.subscribe, "cotal.main.chat.local.bob.secret"));
    for stream in ["DM_main", "TASK_main", "DLV_main"] {
        for subject in [
            format!("$JS.API.CONSUMER.CREATE.{stream}"),
            format!("$JS.API.CONSUMER.CREATE.{stream}.x.y"),
            format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.x"),
        ] {
            assert!(permissions.publish.deny.iter().any(|row| subject_matches(row, &subject)), "{subject}");
        }
    }
}

#[test]
fn an_issued_caller_holds_only_rows_of_the_versioned_rail() {
    for (name, permissions) in templates() {
        let rows = permissions.publish.allow.iter().chain(&permissions.subscribe.allow);
        let (mut legacy, mut versioned) = (0, 0);
        for row in rows {
            versioned += usize::from(row.starts_with("cotal.main.ep.v1."));
            legacy += usize::from(row.starts_with("cotal.main.ep.") && !row.starts_with("cotal.main.ep.v1."));
        }
        if name.ends_with("-issued") {
            assert!(versioned > 0 && legacy == 0, "{name}");
        } else if name == "infra-remote-manager-issuer" {
            assert!(0 < legacy && legacy < versioned, "{name}: it hears no start on the older rail");
        } else if name == "infra-auth-listener"
            || (name.starts_with("endpoint-serve") && !name.ends_with("executor"))
        {
            assert_eq!(versioned, legacy, "{name}: an endpoint serves both rails");
        } else {
            assert_eq!(versioned, 0, "{name}");
        }
    }
}

#[test]
fn a_manager_caller_has_no_class_scatter_or_messaging_row() {
    for (name, permissions) in templates() {
        if name.starts_with("manager-caller") {
            for row in &permissions.publish.allow {
                assert!(
                    row.contains(".inst.manager.") || row.starts_with("$JS.API.DIRECT.GET."),
                    "{name}: {row}"
                );
            }
        }
    }
}

#[test]
fn a_lifecycle_keyed_profile_refuses_without_a_lifecycle() {
    let nobody = ConnectPrincipal { lifecycle_uid: None, ..who() };
    for (name, profile) in profiles() {
        let keyed = ["agent", "control-caller", "deployer", "teardown", "manager-caller"];
        let refused = permissions(&space(), &nobody, &profile).is_err();
        assert_eq!(refused, keyed.iter().any(|prefix| name.starts_with(prefix)), "{name}");
    }
}

#[test]
fn a_channel_outside_the_policy_check_builds_no_agent() {
    for bad in ["", "a..b", "a.>.b", "a b"] {
        assert!(AgentGrants::of_row(&[bad], &[], None, &[]).is_err(), "{bad:?}");
        assert!(AgentGrants::of_row(&[], &[bad], None, &[]).is_err(), "{bad:?}");
    }
    assert!(AgentGrants::of_row(&["a"], &[], Some("no role"), &[]).is_err());
    assert!(
        AgentGrants::of_row(&["a"], &["b.*"], Some("role"), &["spawn", "role:role"])
            .unwrap()
            .capabilities
            .spawn
    );
}

#[test]
fn a_view_is_its_profile_and_carries_its_own_pins() {
    let act = Act {
        owner: owner(),
        actor: Actor::parse("alice").unwrap(),
        scope: Some(vec!["spawn".to_owned()]),
        parent: None,
        lifecycle_uid: who().lifecycle_uid,
        credential_id: None,
        view: None,
        manager_instance_id: Some(instance()),
        session: Some(SessionClaim {
            endpoint: SessionEndpoint::parse("manager").unwrap(),
            session_id: SessionId::parse(&"s".repeat(22)).unwrap(),
            epoch: 1,
            exp: UnixSecs(1),
        }),
        transfer_writer: Some(TransferWriterClaim {
            instance_id: instance(),
            hex: Sha256Hex::parse(&"a".repeat(64)).unwrap(),
        }),
    };
    for view in View::ALL {
        match Profile::of_view(view, &act) {
            Ok(profile) => assert_eq!(profile.name(), view.as_str()),
            Err(GrantError::NotAConnectProfile(name, _)) => {
                assert!(["manager-service", "service-endpoint"].contains(&name));
            }
            Err(other) => unreachable!("{view}: {other}"),
        }
    }
    let bare = Act { manager_instance_id: None, session: None, transfer_writer: None, ..act };
    for view in [View::ManagerCaller, View::SessionCaller, View::TransferWriter] {
        assert_eq!(Profile::of_view(view, &bare), Err(GrantError::NoPin(view.as_str())));
    }
}
