//! Every permission template against a golden file, and what must hold of all of them (contract 01 §6).
//!
//! `COTAL_BLESS=1` rewrites the golden files; read each changed line against the chapter before committing it.

#![allow(clippy::unwrap_used, reason = "a test's own constants")]

use std::{fs, path::PathBuf};

use cotal_wire::{
    Account, Actor, ChannelPattern, Command, CommitKey, ConnId, DerivedOwner, EndpointToken, FactSubject,
    FactTopic, Generation, IdToken, InstanceId, KeySegment, LifecycleUid, Nkey, Owner, Permissions,
    Principal, Role, Rules, SessionEndpoint, SessionId, Sha256Hex, SpaceToken, View, WorkSubject,
    claims::{Act, SessionClaim, TransferWriterClaim},
    endpoint_subject::TargetTriple,
    grants::{
        AgentGrants, Capabilities, ConnectPrincipal, GrantError, InstrumentTier, Issued, Profile, barriers,
        delivery, drain,
        endpoint_serve::{ServeSurface, endpoint_serve, endpoint_serve_executor, registration_executor},
        infra,
        manager::{self, ManagerDuty},
        operator, permissions, rail, runs,
    },
    manager_authority::{RunId, Takeover},
    subject_matches,
    time::UnixSecs,
};
use cotal_wire::{Channel, grants::issued as issued_grants};

fn space() -> SpaceToken {
    SpaceToken::parse("main").unwrap()
}

fn conn() -> ConnId {
    ConnId::parse("ibx0123456789").unwrap()
}

fn owner() -> DerivedOwner {
    DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap()
}

fn who() -> ConnectPrincipal {
    ConnectPrincipal {
        principal: Principal::new(owner(), Actor::parse("alice").unwrap()),
        conn_id: conn(),
        lifecycle_uid: Some(LifecycleUid::parse("uuuuuuuuuuuuuuuuuuuuuuuuuu").unwrap()),
    }
}

fn session() -> SessionId {
    SessionId::parse(&"s".repeat(22)).unwrap()
}

fn segment() -> KeySegment {
    KeySegment::parse("k1").unwrap()
}

fn instance() -> InstanceId {
    InstanceId::parse("iiiiiiiiiiiiiiiiiiiiiiiiii").unwrap()
}

fn issued() -> Issued {
    Issued::for_connection(Generation::parse("0123456789abcdef0123456789abcdef").unwrap(), &conn())
}

fn ended() -> issued_grants::Ended {
    issued_grants::Ended { principal: who().principal, uid: who().lifecycle_uid.unwrap() }
}

fn channels() -> Vec<Channel> {
    ["general", "team.backend"].map(|channel| Channel::parse(channel).unwrap()).to_vec()
}

fn patterns(list: &[&str]) -> Vec<ChannelPattern> {
    ChannelPattern::parse_all(list).unwrap()
}

fn agent(capabilities: Capabilities) -> AgentGrants {
    AgentGrants {
        allow_subscribe: patterns(&["general", "team.>"]),
        allow_publish: patterns(&["general"]),
        capabilities,
        ..AgentGrants::default()
    }
}

fn caps(spawn: bool, run: bool, admin: bool) -> Capabilities {
    Capabilities { spawn, run, admin }
}

fn data_account() -> Nkey<Account> {
    Nkey::parse(&format!("A{}", "B".repeat(55))).unwrap()
}

fn profiles() -> Vec<(&'static str, Profile)> {
    let manager =
        |capabilities, issued| Profile::ManagerCaller { instance: instance(), capabilities, issued };
    let role = Some(Role::parse("reviewer").unwrap());
    vec![
        ("agent-bare", Profile::Agent(AgentGrants::default())),
        ("agent", Profile::Agent(agent(Capabilities::default()))),
        ("agent-role", Profile::Agent(AgentGrants { role, ..agent(Capabilities::default()) })),
        ("agent-spawn", Profile::Agent(agent(caps(true, false, false)))),
        ("agent-run", Profile::Agent(agent(caps(false, true, false)))),
        ("agent-admin", Profile::Agent(agent(caps(false, false, true)))),
        ("agent-all", Profile::Agent(agent(caps(true, true, true)))),
        (
            "agent-issued",
            Profile::Agent(AgentGrants { issued: Some(issued()), ..agent(caps(true, false, false)) }),
        ),
        ("observer", Profile::Observer),
        ("admin", Profile::Admin),
        ("probe", Profile::Probe),
        ("purger", Profile::Purger),
        ("channel-writer", Profile::ChannelWriter),
        ("channel-purger", Profile::ChannelPurger),
        ("operator", Profile::Operator),
        (
            "control-caller-privileged",
            Profile::ControlCaller { tier: InstrumentTier::Privileged, issued: None },
        ),
        ("control-caller-admin", Profile::ControlCaller { tier: InstrumentTier::Admin, issued: None }),
        ("deployer-view", Profile::Deployer { tier: InstrumentTier::Privileged, issued: None }),
        ("deployer-static", Profile::Deployer { tier: InstrumentTier::Admin, issued: None }),
        ("teardown", Profile::Teardown { transfers: vec![instance()] }),
        (
            "session-caller",
            Profile::SessionCaller {
                endpoint: SessionEndpoint::parse("manager").unwrap(),
                session: session(),
                epoch: 3,
            },
        ),
        (
            "transfer-writer",
            Profile::TransferWriter { instance: instance(), hex: Sha256Hex::parse(&"a".repeat(64)).unwrap() },
        ),
        ("manager-caller-bare", manager(Capabilities::default(), None)),
        ("manager-caller-spawn", manager(caps(true, false, false), None)),
        ("manager-caller-run", manager(caps(false, true, false), None)),
        ("manager-caller-issued", manager(caps(false, true, false), Some(issued()))),
    ]
}

fn endpoint() -> EndpointToken {
    EndpointToken::parse("com_x").unwrap()
}

fn pools() -> drain::Pools {
    let pools = ["builds", "tests"].map(|pool| Command::parse(pool).unwrap());
    drain::Pools::new(&endpoint(), &pools.into()).unwrap()
}

fn work_item() -> WorkSubject {
    let who = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu";
    WorkSubject::parse(&format!("cotal.main.epw.com_x.builds.{who}.r1")).unwrap()
}

fn completion() -> FactSubject {
    let WorkSubject { space, endpoint, acceptance, .. } = work_item();
    FactSubject { space, endpoint, topic: FactTopic::Effect(acceptance) }
}

fn templates() -> Vec<(&'static str, Permissions)> {
    let mut all: Vec<_> = profiles()
        .into_iter()
        .map(|(name, profile)| (name, permissions(&space(), &who(), &profile).unwrap()))
        .collect();
    all.extend([
        ("infra-connect-reader", infra::connect_reader(&space(), &conn())),
        ("infra-replica-store", infra::replica_store(&space(), &conn())),
        ("infra-authority-writer", infra::authority_writer(&space(), &conn())),
        ("infra-barrier-executor", infra::barrier_executor(&space(), &conn())),
        ("infra-ledger-scanner", infra::ledger_scanner(&space(), &conn())),
        ("infra-records-scanner", infra::records_scanner(&space(), &conn())),
        ("infra-provisioner", infra::provisioner(&space(), &conn())),
        ("barriers-session-pair", barriers::session_pair(&space(), &session(), &conn())),
        (
            "barriers-handle-revocation",
            barriers::handle_revocation(&space(), &segment(), &segment(), &conn()),
        ),
        ("issuer", issued_grants::issuer(&space(), &conn())),
        ("issuer-session", issued_grants::issuer_session(&space(), &conn())),
        ("deprovisioner", issued_grants::deprovisioner(&space(), &ended(), &[], &conn())),
        ("deprovisioner-members", issued_grants::deprovisioner(&space(), &ended(), &channels(), &conn())),
    ]);
    let (asker, account) = (Principal::parse_key("local.asker").unwrap(), data_account());
    all.extend([
        ("supervisor", delivery::supervisor(&space(), &asker, &conn())),
        ("endpoint-evictor", delivery::endpoint_evictor(&space(), &asker, &conn())),
        ("delivery", delivery::delivery(&space(), &conn())),
        ("membership-rw", delivery::membership_rw(&space(), &conn())),
        ("sys-membership-observer", delivery::membership_observer(&account)),
        ("sys-connection-evictor", delivery::connection_evictor()),
    ]);
    all.extend([
        ("drain-mediator", drain::mediator(&space(), &endpoint(), &conn())),
        ("drain-cleaner", drain::cleaner(&space(), &pools(), &conn())),
        ("drain-executor", drain::executor(&space(), &pools(), &conn())),
        (
            "drain-applier",
            drain::applier(&space(), &CommitKey::parse("cp.com_x.t1.status").unwrap(), &conn()),
        ),
        ("drain-reconciler", drain::reconciler(&work_item(), &conn())),
        ("drain-canceller", drain::canceller(&completion(), &conn())),
        ("operator-mapping", operator::mapping_reader(&space(), &conn())),
        ("operator-status", operator::delivery_lease_reader(&space(), &conn())),
        ("operator-renewal", operator::renewal_owner(&space(), &conn())),
    ]);
    all.extend(endpoint_templates());
    all.extend(manager_templates());
    all.extend(run_templates());
    all
}

fn manager_endpoint() -> EndpointToken {
    EndpointToken::parse("manager").unwrap()
}

fn manager_templates() -> Vec<(&'static str, Permissions)> {
    let (endpoint, owner) = (manager_endpoint(), owner().into());
    let platform = Owner::parse(&format!("p_{}", "a".repeat(26))).unwrap();
    let remote = |duty| manager::remote_manager(&space(), &owner, &instance(), duty, &conn());
    vec![
        ("remote-manager-supervisor", remote(ManagerDuty::Supervisor)),
        ("remote-manager-executor", remote(ManagerDuty::Executor)),
        ("goal-writer", manager::goal_writer(&space(), &endpoint, &owner, &conn())),
        ("goal-writer-platform", manager::goal_writer(&space(), &endpoint, &platform, &conn())),
        ("session-ledger", manager::session_ledger(&space(), &conn())),
        ("session-serving", manager::session_serving(&space(), &endpoint, &session(), 3, &conn())),
        ("transfer-reader", manager::transfer_reader(&space(), &instance(), &conn())),
        ("infra-remote-manager-issuer", infra::remote_manager_issuer(&space(), &conn())),
    ]
}

fn run() -> RunId {
    RunId::parse("run-0123456789abcdef0123456789abcdef").unwrap()
}

fn takeover() -> Takeover {
    Takeover::parse("0123456789abcdef").unwrap()
}

fn run_pin() -> runs::RunPin {
    runs::RunPin {
        endpoint: manager_endpoint(),
        run: run(),
        owner: owner().into(),
        takeover: takeover(),
        instance: instance(),
        epoch: 3,
    }
}

fn run_templates() -> Vec<(&'static str, Permissions)> {
    let operator = |run: Option<RunId>, answers: Option<&str>| {
        let answers = answers.map(|token| IdToken::parse(token).unwrap());
        let pin = runs::OperatorPin { endpoint: manager_endpoint(), takeover: takeover(), run, answers };
        runs::run_operator(&space(), &pin, &conn())
    };
    let admitter = |submission: Option<&str>| {
        let submission = submission.map(|digest| Sha256Hex::parse(digest).unwrap());
        let pin = runs::AdmitterPin { endpoint: manager_endpoint(), run: run(), submission };
        runs::run_admitter(&space(), &pin, &conn())
    };
    vec![
        ("run-driver", runs::run_driver(&space(), &run_pin(), &conn())),
        ("run-mediator", runs::run_mediator(&space(), &run_pin(), &conn())),
        ("run-operator", operator(None, None)),
        ("run-operator-run", operator(Some(run()), None)),
        ("run-operator-answer", operator(Some(run()), Some("token1"))),
        ("run-admitter", admitter(None)),
        ("run-admitter-submission", admitter(Some(&"a".repeat(64)))),
    ]
}

fn surface(commands: &[&str], journal: bool, pools: &[&str]) -> ServeSurface {
    let all = |names: &[&str]| names.iter().map(|name| Command::parse(name).unwrap()).collect();
    ServeSurface {
        endpoint: EndpointToken::parse("com_example_search").unwrap(),
        instance: instance(),
        epoch: 3,
        commands: all(commands),
        journal,
        pools: all(pools),
    }
}

fn endpoint_templates() -> Vec<(&'static str, Permissions)> {
    let auth = EndpointToken::parse("auth").unwrap();
    vec![
        ("endpoint-serve", endpoint_serve(&space(), &conn(), &surface(&["find", "describe"], false, &[]))),
        ("endpoint-serve-journal", endpoint_serve(&space(), &conn(), &surface(&[], true, &["fast", "slow"]))),
        ("endpoint-serve-executor", endpoint_serve_executor(&space(), &conn(), &auth, &instance())),
        ("infra-registration-executor", registration_executor(&space(), &conn(), &auth, &instance())),
        ("infra-auth-listener", rail::auth_listener(&space(), &conn(), &instance(), 3)),
        ("retirement-requester", requester()),
    ]
}

fn requester() -> Permissions {
    let host = Principal::parse_key("local.host").unwrap();
    let uid = LifecycleUid::parse(&"h".repeat(26)).unwrap();
    let target = TargetTriple {
        principal: who().principal,
        lifecycle_uid: LifecycleUid::parse(&"u".repeat(26)).unwrap(),
    };
    rail::retirement_requester(&space(), &host, &uid, &conn(), &target)
}

fn render(permissions: &Permissions) -> String {
    let direction = |rules: &Rules| {
        let mut object = serde_json::Map::new();
        for (name, list) in [("allow", &rules.allow), ("deny", &rules.deny)] {
            if !list.is_empty() {
                object.insert(name.to_owned(), list.clone().into());
            }
        }
        object
    };
    let value = serde_json::json!({
        "pub": direction(&permissions.publish),
        "sub": direction(&permissions.subscribe),
    });
    serde_json::to_string_pretty(&value).unwrap() + "\n"
}

#[test]
fn every_template_is_its_golden_file() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("COTAL_BLESS").is_some();
    for (name, permissions) in templates() {
        let path = dir.join(format!("{name}.json"));
        let rendered = render(&permissions);
        if bless {
            fs::write(&path, &rendered).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(rendered, golden, "{name}: regenerate with COTAL_BLESS=1, then read the difference");
    }
    let files = fs::read_dir(&dir).unwrap().count();
    assert_eq!(files, templates().len(), "a golden file without a template");
}

#[test]
fn no_direction_is_left_unrestricted() {
    for (name, permissions) in templates() {
        for rules in [&permissions.publish, &permissions.subscribe] {
            assert!(!rules.allow.is_empty() || rules.deny == [">"], "{name}");
        }
    }
}

#[test]
fn only_the_agent_and_the_probe_carry_denies() {
    for (name, permissions) in templates() {
        let denies = permissions.publish.deny.len();
        let want = match name {
            "probe" => 1,
            name if name.starts_with("agent") => 9,
            _ => 0,
        };
        assert_eq!((denies, permissions.subscribe.deny.len()), (want, 0), "{name}");
    }
}

#[test]
fn no_template_repeats_a_row_or_names_a_space_wide_wildcard() {
    for (name, permissions) in templates() {
        for rules in [&permissions.publish, &permissions.subscribe] {
            let mut rows = rules.allow.clone();
            rows.sort();
            rows.dedup();
            assert_eq!(rows.len(), rules.allow.len(), "{name}");
            for row in &rules.allow {
                let broad = [">", "*", "$JS.>", "$JS.API.>", "$KV.>", "cotal.main.>", "_INBOX.>", "$SYS.>"];
                // The contract's own row: in the system account there is nobody whose replies it could read.
                let evictor = name == "sys-connection-evictor" && row == "_INBOX.>";
                assert!(evictor || !broad.contains(&row.as_str()), "{name}: {row}");
            }
        }
    }
}

#[test]
fn everyone_of_a_space_hears_its_own_inbox_and_nobody_elses() {
    for (name, permissions) in templates().into_iter().filter(|(name, _)| !name.starts_with("sys-")) {
        let hears =
            |subject: &str| permissions.subscribe.allow.iter().any(|row| subject_matches(row, subject));
        assert!(hears("_INBOX_ibx0123456789.x"), "{name}");
        assert!(!hears("_INBOX_other0123456.x") && !hears("_INBOX.x"), "{name}");
    }
}

#[test]
fn only_the_observer_and_the_evictor_reach_the_system_account() {
    for (name, permissions) in templates() {
        let rows = permissions.publish.allow.iter().chain(&permissions.subscribe.allow);
        let system = rows.filter(|row| row.starts_with("$SYS.")).count();
        assert_eq!(system > 0, name.starts_with("sys-"), "{name}");
        if name.starts_with("sys-") {
            let alien = |row: &&String| {
                row.starts_with("cotal.") || row.starts_with("$JS.") || row.starts_with("$KV.")
            };
            assert!(!permissions.publish.allow.iter().any(|row| alien(&row)), "{name}");
        }
    }
}

#[test]
fn only_who_asks_the_delivery_daemon_may_and_only_the_daemon_answers() {
    for (name, permissions) in templates() {
        let may = |rules: &Rules, subject: &str| rules.allow.iter().any(|row| subject_matches(row, subject));
        let request = "cotal.main.ctl.delivery-admin.local.asker";
        let (reply, foreign) =
            (format!("{request}.reply.n"), "cotal.main.ctl.delivery-admin.local.other.reply.n");
        let asks = may(&permissions.publish, request);
        assert_eq!(asks, ["supervisor", "endpoint-evictor"].contains(&name), "{name}");
        assert_eq!(may(&permissions.subscribe, &reply), asks, "{name}");
        assert!(!may(&permissions.subscribe, foreign), "{name}");
        assert_eq!(may(&permissions.publish, &reply), name == "delivery", "{name}");
        assert_eq!(may(&permissions.subscribe, request), name == "delivery", "{name}");
    }
}

#[test]
fn only_the_writer_and_the_barrier_write_authority_rows_and_a_replica_only_issuance_rows() {
    let subjects = [
        "$KV.cotal_auth_main.gate.uuuuuuuuuuuuuuuuuuuuuuuuuu",
        "$KV.cotal_auth_main.natkey.U",
        "$KV.cotal_auth_main.plane",
        "$KV.cotal_records_main.lifecycle.o.a",
    ];
    for (name, permissions) in templates() {
        let writes: Vec<bool> = subjects
            .iter()
            .map(|subject| permissions.publish.allow.iter().any(|row| subject_matches(row, subject)))
            .collect();
        let want = match name {
            "infra-authority-writer" => [true, true, false, true],
            "infra-replica-store" => [false, true, false, false],
            "infra-barrier-executor" => [true, false, true, true],
            _ => [false; 4],
        };
        assert_eq!(writes, want, "{name}");
    }
}

#[test]
fn a_replica_creates_no_store_and_enumerates_nothing() {
    let replica = infra::replica_store(&space(), &conn());
    let may = |subject: &str| replica.publish.allow.iter().any(|row| subject_matches(row, subject));
    for subject in [
        "$JS.API.STREAM.CREATE.KV_cotal_auth_main",
        "$JS.API.STREAM.UPDATE.KV_cotal_auth_main",
        "$JS.API.STREAM.PURGE.KV_cotal_auth_main",
        "$JS.API.STREAM.MSG.DELETE.KV_cotal_auth_main",
        "$JS.API.CONSUMER.CREATE.KV_cotal_auth_main",
        "$JS.API.STREAM.MSG.GET.KV_cotal_records_main",
        "$JS.API.STREAM.MSG.GET.KV_cotal_issued_main",
        "$KV.cotal_auth_main.svcadmit",
        "$KV.cotal_auth_main.natkey.U.x",
        "$KV.cotal_issued_main.v1.x",
    ] {
        assert!(!may(subject), "{subject}");
    }
    assert!(!replica.publish.allow.iter().any(|row| row.starts_with("cotal.") || row.contains("CONSUMER")));
}

#[test]
fn an_agent_reads_and_writes_its_own_lists_and_nothing_else() {
    let (_, permissions) = templates().into_iter().find(|(name, _)| *name == "agent").unwrap();
    let may = |rules: &Rules, subject: &str| rules.allow.iter().any(|row| subject_matches(row, subject));
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
fn a_retirement_requester_may_retire_one_incarnation_and_nobody_else() {
    let requester = requester();
    let may = |subject: &str| requester.publish.allow.iter().any(|row| subject_matches(row, subject));
    let (uid, host) = ("u".repeat(26), format!("local.host.{}", "h".repeat(26)));
    let ask = |command: &str, target: &str, caller: &str| {
        format!("cotal.main.ep.one.auth.{command}.handle.{target}.{caller}.n1")
    };
    let target = format!("{}.{uid}", who().principal);
    assert!(may(&ask("retire-lifecycle", &target, &host)));
    for refused in [
        ask("retire-lifecycle", &format!("{}.{}", who().principal, "v".repeat(26)), &host),
        ask("retire-lifecycle", &format!("local.other.{uid}"), &host),
        ask("retire-lifecycle", &target, &format!("local.other.{}", "h".repeat(26))),
        ask("other", &target, &host),
        format!("cotal.main.ep.one.auth.retire-lifecycle.any.local.{host}.n1"),
        "$KV.cotal_auth_main.gate.x".to_owned(),
    ] {
        assert!(!may(&refused), "{refused}");
    }
}

#[test]
fn the_auth_listener_serves_reads_one_store_and_writes_none() {
    let listener = rail::auth_listener(&space(), &conn(), &instance(), 3);
    let beyond_serving: Vec<&String> =
        listener.publish.allow.iter().filter(|row| !row.starts_with("cotal.main.ep")).collect();
    assert_eq!(beyond_serving, ["$JS.API.INFO", "$JS.API.STREAM.MSG.GET.KV_cotal_auth_main"]);
    let class: Vec<&String> = listener.subscribe.allow.iter().filter(|row| row.contains(".one.")).collect();
    assert_eq!(class.len(), 4);
    assert!(class.iter().all(|row| row.ends_with("> auth")), "the class rail is heard in the group alone");
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

#[test]
fn an_instance_serves_its_own_commands_under_its_own_epoch_and_nothing_else() {
    let (_, served) = endpoint_templates().into_iter().find(|(name, _)| *name == "endpoint-serve").unwrap();
    let may = |rules: &Rules, subject: &str| rules.allow.iter().any(|row| subject_matches(row, subject));
    let at = |epoch: u64| format!("cotal.main.ep.reply.com_example_search.{}.{epoch}.o.a.u.n", instance());
    assert!(may(&served.publish, &at(3)) && !may(&served.publish, &at(4)));
    assert!(
        !served.publish.allow.iter().any(|row| row.starts_with("$JS")),
        "nothing to bind, nothing to ask"
    );
    // The class rail is granted in the queue group alone.
    assert!(!may(&served.subscribe, "cotal.main.ep.one.com_example_search.find.o.a.u.n"));
    assert!(
        served
            .subscribe
            .allow
            .contains(&"cotal.main.ep.one.com_example_search.find.> com_example_search".to_owned())
    );
    assert!(may(&served.subscribe, "cotal.main.ep.all.com_example_search.describe.o.a.u.n"));
    assert!(!may(&served.subscribe, "cotal.main.ep.all.com_example_search.other.o.a.u.n"));
}

#[test]
fn a_registration_executor_touches_one_instance_and_creates_no_consumer() {
    let (_, executor) =
        endpoint_templates().into_iter().find(|(name, _)| *name == "infra-registration-executor").unwrap();
    let may = |subject: &str| executor.publish.allow.iter().any(|row| subject_matches(row, subject));
    let (own, other) = (instance(), "j".repeat(26));
    assert!(may(&format!("$KV.cotal_auth_main.epgate.auth.{own}")));
    assert!(may(&format!("$KV.cotal_auth_main.epcred.auth.{own}.c1")));
    assert!(!may(&format!("$KV.cotal_auth_main.epgate.auth.{other}")));
    assert!(!may(&format!("$KV.cotal_auth_main.epgate.manager.{own}")));
    assert!(!may("$KV.cotal_records_main.govern.manager"));
    assert!(!executor.publish.allow.iter().any(|row| row.contains("CONSUMER")));
}

fn template(wanted: &str) -> Permissions {
    templates().into_iter().find(|(name, _)| *name == wanted).unwrap().1
}

fn may(rules: &Rules, subject: &str) -> bool {
    rules.allow.iter().any(|row| subject_matches(row, subject))
}

#[test]
fn a_remote_manager_reaches_its_own_registration_and_no_other() {
    let (own, other) = (instance(), "j".repeat(26));
    for (name, actor) in
        [("remote-manager-supervisor", "manager_"), ("remote-manager-executor", "manager_exec_")]
    {
        let manager = template(name);
        let presence = |actor: &str| format!("$KV.cotal_presence_main.{}.{actor}", owner());
        for granted in [
            format!("$KV.cotal_manager_main.lease.{own}"),
            presence(&format!("{actor}{own}")),
            format!("$KV.cotal_auth_main.epgate.manager.{own}"),
            format!("$KV.cotal_auth_main.epcred.manager.{own}.c1"),
            format!("$KV.cotal_records_main.svc.manager.{own}.spec"),
            "$KV.cotal_records_main.govern.manager".to_owned(),
        ] {
            assert!(may(&manager.publish, &granted), "{name}: {granted}");
        }
        for refused in [
            format!("$KV.cotal_manager_main.lease.{other}"),
            "$KV.cotal_manager_main.renewal".to_owned(),
            presence("alice"),
            format!("$KV.cotal_auth_main.epgate.manager.{other}"),
            format!("$KV.cotal_auth_main.epgate.auth.{own}"),
            format!("$KV.cotal_auth_main.epcred.manager.{other}.c1"),
            "$KV.cotal_auth_main.plane".to_owned(),
            format!("$KV.cotal_records_main.svc.manager.{other}.spec"),
            "$KV.cotal_records_main.govern.auth".to_owned(),
            "$KV.cotal_records_main.lifecycle.o.a".to_owned(),
            "$JS.API.CONSUMER.CREATE.KV_cotal_records_main.x".to_owned(),
            "$JS.API.CONSUMER.CREATE.DM_main.dm_x".to_owned(),
            "cotal.main.ctl.delivery-admin.local.x".to_owned(),
            format!("cotal.main.ep.reply.manager.{own}.0.o.a.u.n"),
        ] {
            assert!(!may(&manager.publish, &refused), "{name}: {refused}");
        }
    }
}

#[test]
fn the_duties_of_a_serving_manager_hold_no_row_of_each_other() {
    let (goal, ledger, serving) =
        (template("goal-writer"), template("session-ledger"), template("session-serving"));
    let (own, stranger) = (owner().as_str().to_owned(), format!("u_{}", "z".repeat(26)));
    let fact = |endpoint: &str, last: &str| format!("cotal.main.epf.{endpoint}.goal.{own}.a.u.g1.{last}");
    let row = |kind: &str, caller: &str| format!("$KV.cotal_records_main.{kind}.manager.{caller}.a.u.g1");
    let platforms = template("goal-writer-platform");
    for caller in [own.as_str(), "local"] {
        for kind in ["goal", "goalidx", "goaleff"] {
            assert!(may(&goal.publish, &row(kind, caller)) && !may(&goal.publish, &row(kind, &stranger)));
            assert!(
                may(&platforms.publish, &row(kind, caller)) && may(&platforms.publish, &row(kind, &stranger))
            );
        }
    }
    assert!(may(&goal.publish, &fact("manager", "bind")) && may(&goal.publish, &fact("manager", "result")));
    for refused in [
        format!("cotal.main.epf.manager.goal.{stranger}.a.u.g1.bind"),
        format!("cotal.main.epf.manager.goal.{stranger}.a.u.g1.result"),
        fact("other", "bind"),
        fact("manager", "x"),
        format!("cotal.main.epf.manager.dec.{own}.a.u.r1"),
        "cotal.main.epe.manager.i.0.goal.o.a.u.g1.x".to_owned(),
        "$KV.cotal_records_main.goal.other.o.a.u.g1.spec".to_owned(),
        "$KV.cotal_records_main.epname.manager.n".to_owned(),
        "$KV.cotal_sessions_main.session.s".to_owned(),
    ] {
        assert!(!may(&goal.publish, &refused), "{refused}");
    }
    let rail = |session: &SessionId, epoch: u64, way: &str| {
        format!("cotal.main.eps.manager.{session}.{epoch}.{way}")
    };
    let (own, other) = (session(), SessionId::parse(&"t".repeat(22)).unwrap());
    assert!(may(&ledger.publish, &format!("$KV.cotal_sessions_main.session.{own}")));
    for refused in [
        "$KV.cotal_sessions_main.chat.o.s".to_owned(),
        "$KV.cotal_sessions_main.session.a.b".to_owned(),
        "$KV.cotal_auth_main.session.s".to_owned(),
        rail(&own, 3, "in"),
        rail(&own, 3, "out"),
        "$JS.API.CONSUMER.CREATE.KV_cotal_sessions_main.x".to_owned(),
    ] {
        assert!(!may(&ledger.publish, &refused), "{refused}");
    }
    assert!(may(&serving.publish, &rail(&own, 3, "out")) && may(&serving.subscribe, &rail(&own, 3, "in")));
    for refused in
        [rail(&own, 3, "in"), rail(&own, 4, "out"), rail(&other, 3, "out"), "$JS.API.INFO".to_owned()]
    {
        assert!(!may(&serving.publish, &refused), "{refused}");
    }
    for refused in [rail(&own, 3, "out"), rail(&own, 4, "in"), rail(&other, 3, "in")] {
        assert!(!may(&serving.subscribe, &refused), "{refused}");
    }
}

#[test]
fn a_transfer_reader_clears_one_store_and_fills_none() {
    let reader = template("transfer-reader");
    let (own, other) =
        (format!("cotal_xfer_main_{}", instance()), format!("cotal_xfer_main_{}", "j".repeat(26)));
    assert!(may(&reader.publish, &format!("$JS.API.STREAM.PURGE.OBJ_{own}")));
    for refused in [
        format!("$O.{own}.C.x"),
        format!("$O.{other}.M.x"),
        format!("$JS.API.STREAM.DELETE.OBJ_{own}"),
        format!("$JS.API.STREAM.UPDATE.OBJ_{own}"),
        format!("$JS.API.STREAM.PURGE.OBJ_{other}"),
        format!("$JS.API.STREAM.MSG.GET.OBJ_{other}"),
        "$JS.API.STREAM.MSG.GET.OBJ_cotal_artifacts_main".to_owned(),
    ] {
        assert!(!may(&reader.publish, &refused), "{refused}");
    }
    for (name, permissions) in templates() {
        let names = permissions.publish.allow.iter().any(|row| row.contains("cotal_xfer_"));
        assert_eq!(names, ["transfer-reader", "transfer-writer", "teardown"].contains(&name), "{name}");
    }
}

#[test]
fn a_runs_credentials_name_that_run_and_only_its_driver_appends() {
    let other = "run-ffffffffffffffffffffffffffffffff";
    let own = run();
    let journal = |run: &str| format!("cotal.main.wfj.{run}");
    let replay = |run: &str, takeover: &str, filter: &str| {
        format!("$JS.API.CONSUMER.CREATE.WFJ_main.wfj_{run}_{takeover}.cotal.main.wfj.{filter}")
    };
    let run_names = ["run-driver", "run-mediator", "run-operator-run", "run-operator-answer"];
    for (name, permissions) in templates() {
        let appends = may(&permissions.publish, &journal(own.as_str()));
        assert_eq!(appends, name == "run-driver", "{name}");
        let replays = may(&permissions.publish, &replay(own.as_str(), "0123456789abcdef", own.as_str()));
        assert_eq!(replays, run_names.contains(&name), "{name}");
        for refused in [
            journal(other),
            replay(other, "0123456789abcdef", other),
            replay(own.as_str(), "ffffffffffffffff", own.as_str()),
            replay(own.as_str(), "0123456789abcdef", other),
            format!("$KV.cotal_records_main.run.manager.{other}.status"),
            format!("$KV.cotal_admission_main.admission.v1.manager.{other}"),
        ] {
            assert!(!may(&permissions.publish, &refused), "{name}: {refused}");
        }
        let admits =
            may(&permissions.publish, &format!("$KV.cotal_admission_main.admission.v1.manager.{own}"));
        assert_eq!(admits, name.starts_with("run-admitter"), "{name}");
    }
}

#[test]
fn an_operator_answers_the_one_checkpoint_that_was_read_for_it() {
    let (looks, answers) = (template("run-operator-run"), template("run-operator-answer"));
    let record = |kind: &str, token: &str| format!("$KV.cotal_records_main.{kind}.manager.{token}.x");
    for kind in ["answer", "cp"] {
        assert!(may(&answers.publish, &record(kind, "token1")));
        assert!(!may(&answers.publish, &record(kind, "token2")), "{kind}");
        assert!(!may(&looks.publish, &record(kind, "token1")), "{kind}");
    }
    assert!(may(&answers.publish, "cotal.main.epf.manager.cp.token1"));
    assert!(!may(&answers.publish, "cotal.main.epf.manager.cp.token2"));
}

#[test]
fn the_issuer_answers_nobody_and_writes_rows_of_endpoint_families_alone() {
    let issuer = template("infra-remote-manager-issuer");
    let writes: Vec<&String> =
        issuer.publish.allow.iter().filter(|row| !row.starts_with("$JS.API.")).collect();
    assert_eq!(writes, ["$KV.cotal_auth_main.epgate.>", "$KV.cotal_auth_main.epcred.>"]);
    let caller = "u_a.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu.n1";
    let issued = "u_a.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu.g1.n1";
    for heard in [
        format!("cotal.main.ep.v1.one.manager.run-start.{issued}"),
        format!("cotal.main.ep.inst.manager.{}.run-answer.self.{caller}", instance()),
        format!("cotal.main.ep.v1.inst.manager.{}.run-cancel.{issued}", instance()),
    ] {
        assert!(may(&issuer.subscribe, &heard), "{heard}");
    }
    for deaf in [
        format!("cotal.main.ep.one.manager.spawn.{caller}"),
        format!("cotal.main.ep.one.manager.run-start.{caller}"),
        format!("cotal.main.ep.v1.one.manager.run-cancel.{issued}"),
        format!("cotal.main.ep.one.auth.run-start.{caller}"),
        "cotal.main.chat.o.a.general".to_owned(),
    ] {
        assert!(!may(&issuer.subscribe, &deaf), "{deaf}");
    }
}
