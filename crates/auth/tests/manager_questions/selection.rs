//! Contract 05 §5: every verdict, reached by a manager that is registered for real, at the exchange and at the connect.

use cotal_auth::{AuthService, AuthServiceArgs, start_auth_service};
use cotal_testkit::{manager::TestManager, raw::ConnectOutcome};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{Actor, InstanceId, Owner, Principal, manager_authority::Operation, names::epgate_key};
use cotal_workspace::instance_identity::{AUTH_INSTANCE_FILE, InstanceIdentity, MANAGER_INSTANCE_FILE};
use serde_json::{Value, json};

use super::{
    asking::ask,
    managers::Managers,
    stage::{Daemon, Stage, bearer_of, claims_of},
};

/// A service in front of a stage, asked as people ask.
struct Asked<'s> {
    stage: &'s Stage,
    service: AuthService,
}

impl<'s> Asked<'s> {
    async fn start(stage: &'s Stage) -> Self {
        Self { stage, service: start_auth_service(stage.inputs()).await.unwrap() }
    }

    async fn exchange(&self, body: &Value) -> (u16, Value) {
        self.stage.exchange(&self.service, body).await
    }

    /// What a person's exchange is bound to, or is told.
    async fn bound(&self, sub: &str, instance: Option<&InstanceId>) -> Result<String, String> {
        bound(&self.exchange(&caller(self.stage, sub, instance)).await)
    }

    async fn listed(&self, sub: &str) -> Vec<Value> {
        let body = self.stage.human(sub, "cli");
        let (status, answer) = self.stage.post_to(&self.service, "/manager-instances", &body).await;
        assert_eq!((status, &answer["v"]), (200, &json!(1)), "{answer}");
        answer["instances"].as_array().unwrap().clone()
    }
}

fn caller(stage: &Stage, sub: &str, instance: Option<&InstanceId>) -> Value {
    let mut body = stage.human(sub, "cli");
    body["view"] = json!("manager-caller");
    if let Some(instance) = instance {
        body["managerInstanceId"] = json!(instance);
    }
    body
}

fn bound((status, answer): &(u16, Value)) -> Result<String, String> {
    match status {
        200 => {
            let named = answer["managerInstanceId"].as_str().unwrap().to_owned();
            assert_eq!(
                claims_of(answer["token"].as_str().unwrap())["act"]["managerInstanceId"],
                named.as_str()
            );
            Ok(named)
        }
        401 => Err(answer["error"].as_str().unwrap().to_owned()),
        other => panic!("{other}: {answer}"),
    }
}

fn id(manager: &TestManager) -> &InstanceId {
    &manager.instance
}

/// As an exchange answers that is bound to it.
#[allow(clippy::unnecessary_wraps, reason = "compared with an answer that may be a refusal")]
fn live(manager: &TestManager) -> Result<String, String> {
    Ok(id(manager).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_instance_is_bound_to_as_a_candidate_and_told_what_else_it_is() {
    let stage = Stage::start().await;
    for sub in ["alice", "bob"] {
        stage.grant_human(sub, "cli", &["spawn"], &["general"]);
    }
    let (asked, managers) = (Asked::start(&stage).await, Managers::of(&stage));
    let manager = managers.unheard(stage.owner_of("alice"));
    let told = async |sub: &str| asked.bound(sub, Some(id(&manager))).await;
    let is = |verdict: &str| Err(format!("manager instance {} is {verdict}", id(&manager)));

    assert_eq!(told("alice").await, is("unknown"));
    managers.provision(&manager).await;
    assert_eq!(told("alice").await, is("not registered"), "a gate alone");
    assert_eq!(told("bob").await, is("not this owner's"), "whose it is comes before how it is");
    let registered = managers.register(&manager).await;
    assert_eq!(told("alice").await, is("not registered"), "it has not reported");
    managers.report(&manager, &registered).await;
    assert_eq!(told("alice").await, live(&manager));
    assert_eq!(told("bob").await, is("not this owner's"));

    let registered = managers.register(&manager).await;
    assert_eq!(told("alice").await, is("not registered"), "its report is of an earlier epoch");
    managers.report(&manager, &registered).await;
    assert_eq!(told("alice").await, live(&manager));
    managers.deregister(&manager).await;
    assert_eq!(told("alice").await, is("not registered"), "it was taken out of the registry");
    managers.serve(&manager).await;
    let other = managers.live(&stage.owner_of("alice")).await;
    managers.freeze(&manager).await;
    assert_eq!(told("alice").await, is("not open"));
    assert_eq!(told("bob").await, is("not open"), "whether it is open comes before whose it is");

    managers.retire(&stage, &other).await;
    assert_eq!(
        asked.bound("alice", Some(id(&other))).await,
        Err(format!("manager instance {} is not open", id(&other)))
    );
    let mut malformed = caller(&stage, "alice", None);
    malformed["managerInstanceId"] = json!("no lifecycle token");
    assert_eq!(asked.exchange(&malformed).await.0, 401);
    asked.service.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_one_live_manager_of_the_owners_own_is_selected_whatever_others_have() {
    let stage = Stage::start().await;
    for sub in ["alice", "bob", "carol"] {
        stage.grant_human(sub, "cli", &["spawn"], &["general"]);
    }
    let agent = stage.grant_agent("alice", "cli", "worker", &["general"]);
    let (asked, managers) = (Asked::start(&stage).await, Managers::of(&stage));
    let alice = stage.owner_of("alice");
    let none = |owner: &str| {
        Err(format!(
            "manager-caller selection found no manager candidate for owner {owner}; start one with `cotal manager start`"
        ))
    };
    assert_eq!(asked.bound("alice", None).await, none(alice.as_str()));

    let first = managers.live(&alice).await;
    let bobs = [managers.live(&stage.owner_of("bob")).await, managers.live(&stage.owner_of("bob")).await];
    assert_eq!(asked.bound("alice", None).await, live(&first));
    assert_eq!(asked.bound("carol", None).await, none(stage.owner_of("carol").as_str()));
    let two = asked.bound("bob", None).await.unwrap_err();
    assert!(
        two.starts_with("manager-caller selection found 2 live remote manager candidates for owner "),
        "{two}"
    );
    for one in &bobs {
        assert_eq!(asked.bound("bob", Some(id(one))).await, live(one), "named, it is no question");
    }

    let mut body = agent.clone();
    body["view"] = json!("manager-caller");
    assert_eq!(bound(&asked.exchange(&body).await), live(&first), "an agent's secret selects for its owner");

    // One that is gone does not count, and does not stand in the way.
    let second = managers.live(&alice).await;
    assert!(asked.bound("alice", None).await.unwrap_err().contains("found 2 live"));
    managers.deregister(&second).await;
    assert_eq!(asked.bound("alice", None).await, live(&first));
    managers.freeze(&first).await;
    let gone = asked.bound("alice", None).await.unwrap_err();
    assert_eq!(
        gone,
        format!(
            "the remote manager for owner {alice} is unavailable (2 gates, none live); pass managerInstanceId to select an \
             instance explicitly rather than falling through to the local manager"
        )
    );

    let mut ids = [id(&first).to_string(), id(&second).to_string()];
    ids.sort();
    let listed = asked.listed("alice").await;
    let states = |id: &str| listed.iter().find(|one| one["instanceId"] == id).unwrap().clone();
    assert_eq!(listed.iter().map(|one| one["instanceId"].as_str().unwrap()).collect::<Vec<_>>(), ids);
    assert_eq!(states(id(&first).as_str())["state"], "not open");
    assert_eq!(states(id(&second).as_str())["state"], "not registered");
    assert!(listed.iter().all(|one| one["local"] == false));
    assert_eq!(asked.listed("bob").await.len(), 2);
    assert_eq!(asked.listed("carol").await, Vec::<Value>::new());
    asked.service.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_connects_to_its_manager_alone_and_only_while_it_serves() {
    let stage = Stage::start().await;
    for sub in ["alice", "bob"] {
        stage.grant_human(sub, "cli", &["spawn"], &["general"]);
    }
    let (asked, managers) = (Asked::start(&stage).await, Managers::of(&stage));
    let mine = managers.live(&stage.owner_of("alice")).await;
    let bobs = managers.live(&stage.owner_of("bob")).await;
    let bearer = bearer_of(asked.exchange(&caller(&stage, "alice", None)).await);

    let mut nonces = 0..;
    let mut connect = async || {
        let nonce = format!("manager-caller-{:04}", nonces.next().unwrap());
        stage.connect_named(Some(&bearer), &nonce).await
    };
    let (client, outcome) = connect().await;
    assert_eq!(outcome, ConnectOutcome::Connected);
    let mut client = client.unwrap();
    let owner = stage.owner_of("alice");
    for other in [id(&bobs).as_str(), &"x".repeat(26)] {
        let foreign = format!("cotal.demo.ep.inst.manager.{other}.describe.{owner}.cli.uid.nonce");
        client.try_publish(&foreign, b"{}").await.expect_err("another instance's rail");
    }
    client
        .try_publish(&format!("cotal.demo.chat.{owner}.cli.general"), b"x")
        .await
        .expect_err("no messaging");
    drop(client);

    // It re-registers between the exchange and the connect: refused until it has reported again.
    let registered = managers.register(&mine).await;
    assert!(matches!(connect().await.1, ConnectOutcome::Refused(_)), "registered, and not reported");
    managers.report(&mine, &registered).await;
    assert_eq!(connect().await.1, ConnectOutcome::Connected, "the same instance, one epoch on");
    // It dies while it registers.
    managers.freeze(&mine).await;
    assert!(matches!(connect().await.1, ConnectOutcome::Refused(_)), "frozen");

    // It goes for good.
    let bearer = bearer_of(asked.exchange(&caller(&stage, "bob", None)).await);
    assert_eq!(stage.connect_named(Some(&bearer), "manager-caller-bob-1").await.1, ConnectOutcome::Connected);
    managers.deregister(&bobs).await;
    assert!(matches!(
        stage.connect_named(Some(&bearer), "manager-caller-bob-2").await.1,
        ConnectOutcome::Refused(_)
    ));
    asked.service.close().await.unwrap();
}

/// Makes the local manager of the stage's root, registered and serving.
async fn local(stage: &Stage, managers: &Managers) -> TestManager {
    let dir = stage.space.root.space_dir(&stage.space.space);
    let scratch = tempfile::tempdir().unwrap();
    let identity = InstanceIdentity::load_or_create(scratch.path(), &SystemEntropy).unwrap();
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(scratch.path().join(AUTH_INSTANCE_FILE), dir.join(MANAGER_INSTANCE_FILE)).unwrap();
    let serve = Principal::new(Owner::local(), Actor::parse(identity.serve.public().as_str()).unwrap());
    let manager = managers.unheard(Owner::local()).served_by(identity.instance.clone(), serve);
    managers.serve(&manager).await;
    manager
}

async fn daemon_bound(daemon: &Daemon, body: &Value) -> Result<String, String> {
    bound(&daemon.exchange(body).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_own_manager_serves_who_has_none_and_never_takes_the_place_of_a_dead_one() {
    let stage = Stage::start().await;
    for sub in ["alice", "bob"] {
        stage.grant_human(sub, "cli", &["spawn"], &["general"]);
    }
    let managers = Managers::of(&stage);
    let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
    let ask = async |sub: &str| daemon_bound(&daemon, &caller(&stage, sub, None)).await;
    assert!(ask("alice").await.is_err());
    let hosts = local(&stage, &managers).await;
    assert_eq!(ask("alice").await, live(&hosts), "its identity is read at each exchange");
    let alices = managers.live(&stage.owner_of("alice")).await;
    assert_eq!(ask("alice").await, live(&alices), "her own comes first");
    assert_eq!(ask("bob").await, live(&hosts));
    managers.deregister(&alices).await;
    assert!(ask("alice").await.unwrap_err().contains("(1 gate, none live)"));
    let named = caller(&stage, "alice", Some(id(&hosts)));
    assert_eq!(daemon_bound(&daemon, &named).await, live(&hosts), "she may still name it");

    // The bearer connects to the host's manager, and to it alone.
    stage.connected(&bearer_of(daemon.exchange(&named).await)).await;
    std::fs::remove_file(stage.space.root.space_dir(&stage.space.space).join(MANAGER_INSTANCE_FILE)).unwrap();
    assert!(ask("bob").await.is_err(), "a host that has no manager any more");
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn local_primary_binds_people_to_the_hosts_manager_or_to_nothing() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &["spawn"], &["general"]);
    let agent = stage.grant_agent("alice", "cli", "worker", &["general"]);
    let managers = Managers::of(&stage);
    let alices = managers.live(&stage.owner_of("alice")).await;
    let daemon = Daemon::start_choosing(&stage, AuthServiceArgs::default(), Some("local-primary")).await;
    let ask =
        async |instance: Option<&InstanceId>| daemon_bound(&daemon, &caller(&stage, "alice", instance)).await;
    let refusal = ask(None).await.unwrap_err();
    assert!(refusal.contains("has none"), "absent, no remote one takes its place: {refusal}");
    let hosts = local(&stage, &managers).await;
    assert_eq!(ask(None).await, live(&hosts), "though hers is live");
    assert_eq!(ask(Some(id(&alices))).await, live(&alices), "a named instance wins");
    let mut body = agent.clone();
    body["view"] = json!("manager-caller");
    assert_eq!(bound(&daemon.exchange(&body).await), live(&alices), "an agent's secret is not affected");
    managers.deregister(&hosts).await;
    let refusal = ask(None).await.unwrap_err();
    assert!(refusal.ends_with(&format!("manager instance {} is not registered", id(&hosts))), "{refusal}");
    let file = stage.space.root.space_dir(&stage.space.space).join(MANAGER_INSTANCE_FILE);
    std::fs::write(&file, "{}").unwrap();
    assert!(ask(None).await.is_err(), "unreadable");
    daemon.stop().await.unwrap();
}

/// Gate, spec and status of an instance are its registrant's to write; whose it is, is not.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_was_prepared_for_one_owner_is_nobody_elses_whatever_its_rows_say() {
    let stage = Stage::start().await;
    for sub in ["alice", "bob"] {
        stage.grant_human(sub, "cli", &["spawn", "supervise"], &["general"]);
    }
    let (asked, managers) = (Asked::start(&stage).await, Managers::of(&stage));
    let alice = stage.owner_of("alice");
    let prepare = async |sub: &str, manager: &TestManager| {
        ask(&stage, &asked.service, sub, &manager.request(Operation::Prepare, &json!({}))).await
    };
    let none = Err(format!(
        "manager-caller selection found no manager candidate for owner {alice}; start one with `cotal manager start`"
    ));
    let bobs = managers.unheard(stage.owner_of("bob"));
    let (status, answer) = prepare("bob", &bobs).await;
    assert_eq!(status, 200, "{answer}");
    let mut forged = managers.unheard(&alice);
    forged.instance = bobs.instance.clone();
    let (status, answer) = prepare("alice", &forged).await;
    assert_eq!(status, 403, "it is bob's: {answer}");

    managers.serve(&forged).await;
    assert_eq!(asked.bound("alice", None).await, none);
    let not_hers = Err(format!("manager instance {} is not this owner's", id(&forged)));
    assert_eq!(asked.bound("alice", Some(id(&forged))).await, not_hers);
    assert_eq!(asked.listed("alice").await, Vec::<Value>::new());
    managers.retire(&stage, &forged).await;
    assert_eq!(asked.bound("alice", None).await, none, "nor is she told that one of hers is not there");
    assert_eq!(asked.bound("alice", Some(id(&forged))).await, not_hers);

    // Her own, which nobody can take before she has registered it either.
    let hers = managers.unheard(&alice);
    let (status, answer) = prepare("alice", &hers).await;
    assert_eq!(status, 200, "{answer}");
    let mut taken = managers.unheard(stage.owner_of("bob"));
    taken.instance = hers.instance.clone();
    let (status, answer) = prepare("bob", &taken).await;
    assert_eq!(status, 403, "{answer}");
    managers.serve(&hers).await;
    assert_eq!(asked.bound("alice", None).await, live(&hers));
    let (status, answer) = prepare("alice", &hers).await;
    assert_eq!(status, 200, "again: {answer}");

    // What cannot be read is nobody's, and refuses nobody.
    let key = epgate_key(&bobs.at().endpoint, &InstanceId::mint(&SystemEntropy));
    stage.rows().await.put("auth", &key, b"{}".to_vec()).await.unwrap();
    assert_eq!(asked.bound("alice", None).await, live(&hers));
    assert_eq!(asked.listed("alice").await.len(), 1);
    asked.service.close().await.unwrap();
}
