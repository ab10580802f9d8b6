//! Every template of the contract, as it is built for one and the same holder.

use cotal_wire::{
    Account, Actor, Channel, ChannelPattern, Command, CommitKey, ConnId, DerivedOwner, EndpointToken,
    FactSubject, FactTopic, Generation, IdToken, InstanceId, KeySegment, LifecycleUid, Nkey, Owner,
    Permissions, Principal, Role, Rules, SessionEndpoint, SessionId, Sha256Hex, SpaceToken, WorkSubject,
    endpoint_subject::TargetTriple,
    grants::{
        AgentGrants, Capabilities, ConnectPrincipal, InstrumentTier, Issued, Profile, barriers, delivery,
        drain,
        endpoint_serve::{ServeSurface, endpoint_serve, endpoint_serve_executor, registration_executor},
        infra, issued as issued_grants,
        manager::{self, ManagerDuty},
        operator, permissions, rail, runs,
    },
    manager_authority::{RunId, Takeover},
    subject_matches,
};

pub(crate) fn space() -> SpaceToken {
    SpaceToken::parse("main").unwrap()
}

pub(crate) fn conn() -> ConnId {
    ConnId::parse("ibx0123456789").unwrap()
}

pub(crate) fn owner() -> DerivedOwner {
    DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap()
}

pub(crate) fn who() -> ConnectPrincipal {
    ConnectPrincipal {
        principal: Principal::new(owner(), Actor::parse("alice").unwrap()),
        conn_id: conn(),
        lifecycle_uid: Some(LifecycleUid::parse("uuuuuuuuuuuuuuuuuuuuuuuuuu").unwrap()),
    }
}

pub(crate) fn session() -> SessionId {
    SessionId::parse(&"s".repeat(22)).unwrap()
}

fn segment() -> KeySegment {
    KeySegment::parse("k1").unwrap()
}

pub(crate) fn instance() -> InstanceId {
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

pub(crate) fn profiles() -> Vec<(&'static str, Profile)> {
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

pub(crate) fn templates() -> Vec<(&'static str, Permissions)> {
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

pub(crate) fn run() -> RunId {
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

/// One of them, by its name.
pub(crate) fn template(wanted: &str) -> Permissions {
    templates().into_iter().find(|(name, _)| *name == wanted).unwrap().1
}

/// Whether a direction admits a subject.
pub(crate) fn may(rules: &Rules, subject: &str) -> bool {
    rules.allow.iter().any(|row| subject_matches(row, subject))
}
