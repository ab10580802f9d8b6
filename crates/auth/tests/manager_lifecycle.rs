//! A remote manager's lifecycle over a real broker: it holds keys of its own and asks over HTTP; what it is granted is tried
//! at the broker (contract 06 §4).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod stage;

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use cotal_auth::AuthServiceArgs;
use cotal_authority::{
    evict::{Eviction, Evictor},
    registration::{
        EndpointInstance, OwnName, Registered, Registration, Registry, gate, own::publish,
        register::EVICTION_SWEEP, register_service_instance,
    },
};
use cotal_broker::{Connection, Connector, Custody, kv::Bucket};
use cotal_testkit::{
    manager::TestManager,
    raw::{ConnectOutcome, RawClient},
};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    EpError, LifecycleUid, Names, OpId, Owner, Principal,
    es_value::EsValue,
    manager_authority::{
        CredentialName, Operation, RemoteManagerAuthorityMaterial, StandingRole, serve_principal,
    },
    rows::ServiceSpec,
};
use serde_json::{Value, json};

use stage::{Daemon, Stage, claims_of};

const PERSON: &str = "alice";
const SESSION: &str = "ssssssssssssssssssssss";

/// A service, a person who may supervise, and that person's manager.
struct Rig {
    stage: Stage,
    daemon: Daemon,
    manager: TestManager,
}

impl Rig {
    async fn start() -> Self {
        let stage = Stage::start().await;
        let daemon = Daemon::start(&stage, AuthServiceArgs::default()).await;
        stage.grant_human(PERSON, "cli", &["supervise"], &["general"]);
        let manager = manager_of(&stage, PERSON);
        Self { stage, daemon, manager }
    }

    async fn send(&self, sub: &str, request: &Value) -> (u16, Value) {
        let body = json!({ "idpToken": self.stage.idp.mint_token(sub, 600), "request": request });
        let url = format!("{}/manager-service-authority", self.daemon.discovery.url);
        self.daemon.post(&url, Some(&self.daemon.discovery.cap), &body).await
    }

    async fn ask(&self, operation: Operation, more: Value) -> (u16, Value) {
        self.send(PERSON, &self.manager.request(operation, &more)).await
    }

    /// An answer that must come; it reads back as the closed material.
    async fn granted(&self, operation: Operation, more: Value) -> Value {
        let (status, answer) = self.ask(operation, more).await;
        assert_eq!(status, 200, "{}: {answer}", operation.as_str());
        let material =
            RemoteManagerAuthorityMaterial::parse(&EsValue::parse(answer.to_string().as_bytes()).unwrap());
        let material = material.unwrap_or_else(|error| panic!("{}: {error}", operation.as_str()));
        assert_eq!(material.operation, operation);
        assert_eq!(material.owner, self.manager.owner);
        assert_eq!(material.instance_id, self.manager.instance);
        for (name, issued) in material.credentials.iter() {
            assert_eq!(claims_of(&issued.jwt)["exp"], json!(issued.exp), "{}", name.as_str());
        }
        answer
    }

    fn at(&self) -> EndpointInstance {
        EndpointInstance {
            endpoint: self.manager.endpoint().token(),
            instance: self.manager.instance.clone(),
        }
    }

    /// Connects as the manager does: with creds of the key that it made.
    async fn connection(&self, creds: &str) -> Connection {
        let connector = Connector::new(
            &self.stage.space.server.url(),
            self.stage.space.space.clone(),
            // What opens creds signs nothing: any account's would do.
            self.stage.space.material.data_account.clone(),
            Custody::new(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        connector.open_creds("cotal:test:manager".into(), creds).await.unwrap()
    }

    /// Registers with the executor's credential and nothing else.
    async fn register(&self, prepared: &Value) -> Result<Registered, EpError> {
        let creds = self.manager.creds(prepared, CredentialName::Executor);
        let connection = self.connection(&creds).await;
        let registry = Registry::of_participant(&connection, &self.stage.space.space);
        let (at, owner) = (self.at(), self.manager.owner.clone());
        let artifacts = self.manager.artifacts();
        publish(&registry, &artifacts).await?;
        let serving = serve_principal(&owner, &self.manager.instance);
        if gate::observe(registry.stores(), &at).await?.is_none() {
            gate::provision(registry.stores(), &at, &serving).await?;
        }
        let name = self.manager.endpoint();
        let spec = ServiceSpec::new(&name, &owner, vec![artifacts[1].digest().clone()])?;
        let names = OwnName { name, owner: owner.clone() };
        let registration = Registration {
            at: &at,
            spec: &spec,
            registrant: &owner,
            op: &OpId::mint(&SystemEntropy),
            names: &names,
            evictor: &Gone,
            eviction_sweep: EVICTION_SWEEP,
        };
        let registered = register_service_instance(&registry, &registration).await;
        connection.close().await?;
        registered
    }

    /// Prepares, registers, activates.
    async fn activated(&self) -> Activated {
        let prepared = self.granted(Operation::Prepare, json!({})).await;
        let registered = self.register(&prepared).await.unwrap();
        let answer = self.granted(Operation::Activate, json!({})).await;
        let proof = answer["nextRegistrationProof"].clone();
        Activated { prepared, registered, answer, proof }
    }

    /// The rows of the family: holder and state, by key.
    async fn family(&self) -> Vec<(String, String)> {
        let connection = self.stage.space.jetstream("family").await.unwrap();
        let auth = Bucket::new(&connection, &Names::new(&self.stage.space.space.token()).auth_bucket());
        let filter = format!("epcred.manager.{}.>", self.manager.instance);
        let mut rows = Vec::new();
        for key in auth.keys(&filter).await.unwrap() {
            let cotal_broker::kv::LeaderRead::Value(entry) = auth.leader_read(&key).await.unwrap() else {
                continue;
            };
            let row: Value = serde_json::from_slice(&entry.value).unwrap();
            let text = |member: &str| row[member].as_str().unwrap().to_owned();
            rows.push((text("holderPrincipal"), text("state")));
        }
        rows.sort();
        rows
    }

    async fn connected(&self, creds: &str) -> RawClient {
        let url = self.stage.space.server.url();
        let (client, outcome) = RawClient::connect(&url, Some(creds), None, None).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
        client.unwrap()
    }
}

/// What a manager has once it is activated.
struct Activated {
    prepared: Value,
    registered: Registered,
    answer: Value,
    proof: Value,
}

/// Nobody of the tests serves: whoever is asked about is gone.
struct Gone;

#[async_trait]
impl Evictor for Gone {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let gone = |one: &Principal| Eviction {
            verified_gone: true,
            scan_complete: true,
            note: None,
            ..Eviction::unverified(one, "")
        };
        principals.iter().map(gone).collect()
    }
}

fn manager_of(stage: &Stage, sub: &str) -> TestManager {
    let account = stage.space.account.data_account().account;
    TestManager::new(&stage.space.space, &account, &stage.owner_of(sub))
}

fn session(id: &str, exp: u64) -> Value {
    json!({ "session": { "id": id, "endpoint": "manager", "sessionId": SESSION, "epoch": 0, "exp": exp } })
}

fn retirement(rig: &Rig, owner: &Owner, serve_epoch: u64) -> Value {
    let uid = LifecycleUid::parse(&"u".repeat(26)).unwrap();
    json!({ "retirement": {
        "id": rig.manager.one_shot().public(), "opId": OpId::managed_retirement(&uid), "serveEpoch": serve_epoch,
        "target": { "owner": owner, "actor": "worker", "lifecycleUid": uid },
    } })
}

fn renewal(proof: &Value, epoch: u64) -> Value {
    json!({ "registrationProof": proof, "processEpoch": epoch })
}

fn seconds_from_now(exp: &Value) -> i64 {
    let now = i64::try_from(cotal_wire::Clock::now_secs(&SystemClock).0).unwrap();
    exp.as_i64().unwrap() - now
}

// === the lifecycle ============================================================================================

#[tokio::test]
async fn a_keyless_manager_is_prepared_registers_is_activated_and_renewed() {
    let rig = Rig::start().await;
    let (status, answer) = rig.ask(Operation::Activate, json!({})).await;
    assert_eq!(status, 403, "before there is a registration: {answer}");

    let Activated { prepared, registered, answer: activated, proof } = rig.activated().await;
    assert_eq!(registered.process_epoch, 0, "the first registration commits epoch 0");
    for (name, ttl) in [(CredentialName::Supervisor, 86_400), (CredentialName::Executor, 300)] {
        let left = seconds_from_now(&prepared["credentials"][name.as_str()]["exp"]);
        assert!((ttl - 60..=ttl).contains(&left), "{}: {left}", name.as_str());
    }
    let owner = &rig.manager.owner;
    // Renewals of one second are one credential: who holds how many is not told apart here.
    let holders = async || {
        let rows = rig.family().await.into_iter().map(|(holder, state)| format!("{holder} {state}"));
        rows.collect::<BTreeSet<_>>()
    };
    let all = |state: &str| {
        let duties = [StandingRole::GoalWriter, StandingRole::Serve, StandingRole::SessionLedger];
        let holder = |role: StandingRole| format!("{owner}.{} {state}", role.actor(&rig.manager.instance));
        duties.map(holder).into_iter().collect::<BTreeSet<_>>()
    };
    assert_eq!(
        (rig.family().await.len(), holders().await),
        (3, all("active")),
        "each row names its own holder"
    );

    // It serves: what is asked of the class reaches it, and its answer reaches the asker.
    let mut serving = rig.connected(&rig.manager.creds(&activated, CredentialName::Serve)).await;
    serving.try_subscribe("cotal.demo.ep.one.manager.status.>", Some("manager")).await.unwrap();

    rig.granted(Operation::Renew, json!({ "registrationProof": proof })).await;
    let renewed = rig.granted(Operation::RenewStandingBundle, renewal(&proof, 0)).await;
    assert_eq!(renewed["processEpoch"], 0);
    assert!(renewed.get("nextRegistrationProof").is_none(), "the proof stands while the registration does");
    assert_eq!(holders().await, all("active"), "a renewal is ledgered as the first one was");
    serving.ping().await.expect("a renewal ends nobody");
    let mut again = rig.connected(&rig.manager.creds(&renewed, CredentialName::Serve)).await;
    again
        .try_subscribe("cotal.demo.ep.inst.manager.x.status.>", None)
        .await
        .expect_err("of another instance");

    let id = rig.manager.one_shot().public().to_string();
    let soon = cotal_wire::Clock::now_secs(&SystemClock).0 + 90;
    let served = rig.granted(Operation::Session, session(&id, soon)).await;
    assert_eq!(served["credentials"]["sessionServing"]["exp"], soon, "no longer than its session");
    let far = rig.granted(Operation::Session, session(&id, soon + 1_000_000)).await;
    let left = seconds_from_now(&far["credentials"]["sessionServing"]["exp"]);
    assert!((86_340..=86_400).contains(&left), "no longer than a day: {left}");
    rig.granted(Operation::Retire, retirement(&rig, owner, 0)).await;
    rig.granted(Operation::TransferReader, json!({})).await;

    // A second registration: epoch 1. What the first one was granted is revoked, what it proved proves nothing.
    let second = rig.register(&prepared).await.unwrap();
    assert_eq!(second.process_epoch, 1);
    assert_eq!(holders().await, all("revoked"));
    let next = rig.granted(Operation::Activate, json!({})).await["nextRegistrationProof"].clone();
    rig.granted(Operation::RenewStandingBundle, renewal(&next, 1)).await;
    let both = all("active").union(&all("revoked")).cloned().collect::<BTreeSet<_>>();
    assert_eq!(holders().await, both, "what is active is of the second registration alone");
    rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn every_stale_coordinate_is_refused_after_a_re_registration() {
    let rig = Rig::start().await;
    let Activated { prepared, proof, .. } = rig.activated().await;
    rig.register(&prepared).await.unwrap();
    let next = rig.granted(Operation::Activate, json!({})).await["nextRegistrationProof"].clone();
    let owner = rig.manager.owner.clone();

    for (what, operation, more, status) in [
        ("epoch before proof", Operation::RenewStandingBundle, renewal(&proof, 0), 409),
        ("stale epoch", Operation::RenewStandingBundle, renewal(&next, 0), 409),
        ("future epoch", Operation::RenewStandingBundle, renewal(&next, 2), 409),
        ("stale proof", Operation::RenewStandingBundle, renewal(&proof, 1), 403),
        ("stale proof", Operation::Renew, json!({ "registrationProof": proof }), 403),
        ("stale epoch", Operation::Retire, retirement(&rig, &owner, 0), 409),
        ("another owner's agent", Operation::Retire, retirement(&rig, &stranger(), 1), 403),
        (
            "the proof of another kind",
            Operation::Session,
            {
                let mut more = session(&rig.manager.one_shot().public().to_string(), u64::from(u32::MAX));
                more["registrationProof"] = next.clone();
                more
            },
            403,
        ),
        (
            "another account",
            Operation::RenewStandingBundle,
            json!({ "registrationProof": next, "processEpoch": 1, "accountPublicKey": format!("A{}", "A".repeat(55)) }),
            403,
        ),
        ("another space", Operation::Prepare, json!({ "space": "other" }), 403),
        (
            "another lifecycle",
            Operation::Renew,
            json!({
                "registrationProof": next, "managerLifecycleUid": LifecycleUid::mint(&SystemEntropy),
            }),
            403,
        ),
        ("another actor", Operation::Renew, json!({ "registrationProof": next, "actor": "web" }), 403),
        (
            "another instance",
            Operation::Renew,
            json!({
                "registrationProof": next, "instanceId": LifecycleUid::mint(&SystemEntropy),
            }),
            403,
        ),
        (
            "another contract",
            Operation::Activate,
            json!({ "contractArtifacts": [{ "urn": "ai.cotal.other" }] }),
            403,
        ),
    ] {
        let (got, answer) = rig.ask(operation, more).await;
        assert_eq!(got, status, "{}: {what}: {answer}", operation.as_str());
    }
    let mut cluster = rig.manager.cluster();
    cluster["commands"][0]["name"] = json!("despawn");
    let (status, answer) = rig.ask(Operation::Activate, json!({ "contractArtifacts": [cluster] })).await;
    assert_eq!(status, 403, "a cluster that is not registered: {answer}");
    // And everything that is current is granted.
    rig.granted(Operation::RenewStandingBundle, renewal(&next, 1)).await;
    rig.granted(Operation::Retire, retirement(&rig, &owner, 1)).await;
    rig.daemon.stop().await.unwrap();
}

fn stranger() -> Owner {
    Owner::parse(&format!("u_{}", "z".repeat(26))).unwrap()
}

#[tokio::test]
async fn a_stranger_an_unsupervising_actor_and_a_revoked_one_get_nothing_and_leave_nothing() {
    let rig = Rig::start().await;
    let Activated { proof, .. } = rig.activated().await;
    let rows = rig.family().await;

    // Another person names the same instance, and proves it as its own: the gate is not theirs.
    rig.stage.grant_human("bob", "cli", &["supervise"], &[]);
    let mut theirs = manager_of(&rig.stage, "bob");
    theirs.instance = rig.manager.instance.clone();
    theirs.uid = rig.manager.uid.clone();
    for (operation, more) in [
        (Operation::Activate, json!({})),
        (Operation::Renew, json!({ "registrationProof": proof })),
        (Operation::RenewStandingBundle, renewal(&proof, 0)),
        (Operation::TransferReader, json!({})),
    ] {
        let (status, answer) = rig.send("bob", &theirs.request(operation, &more)).await;
        assert_eq!(status, 403, "{}: {answer}", operation.as_str());
    }
    // `spawn` and `admin` supervise nothing.
    rig.stage.grant_human("carol", "cli", &["spawn", "admin", "run"], &[]);
    let hers = manager_of(&rig.stage, "carol");
    let (status, answer) = rig.send("carol", &hers.request(Operation::Prepare, &json!({}))).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("supervise"), "{answer}");

    rig.stage.revoke_human(PERSON, "cli");
    for (operation, more) in [
        (Operation::Prepare, json!({})),
        (Operation::Activate, json!({})),
        (Operation::RenewStandingBundle, renewal(&proof, 0)),
    ] {
        let (status, answer) = rig.ask(operation, more).await;
        assert_eq!(status, 403, "{}: {answer}", operation.as_str());
    }
    assert_eq!(rig.family().await, rows, "a refusal stages nothing");
    rig.daemon.stop().await.unwrap();
}

// === what a credential may do =================================================================================

/// What one credential may do at the broker, and what it may not.
struct Privilege {
    name: CredentialName,
    publishes: Vec<String>,
    hears: Vec<(String, Option<&'static str>)>,
    never_publishes: Vec<String>,
    never_hears: Vec<(String, Option<&'static str>)>,
}

impl Privilege {
    async fn hold(self, rig: &Rig, answer: &Value) {
        let creds = rig.manager.creds(answer, self.name);
        let name = self.name.as_str();
        assert!(
            self.never_publishes.len() + self.never_hears.len() >= 10,
            "{name}: ten things that it may not"
        );
        let mut client = rig.connected(&creds).await;
        for subject in &self.publishes {
            let published = client.try_publish(subject, b"").await;
            assert!(published.is_ok(), "{name} publishes {subject}: {published:?}");
        }
        for (subject, queue) in &self.hears {
            let heard = client.try_subscribe(subject, *queue).await;
            assert!(heard.is_ok(), "{name} hears {subject}: {heard:?}");
        }
        for subject in &self.never_publishes {
            assert!(client.try_publish(subject, b"").await.is_err(), "{name} published {subject}");
        }
        for (subject, queue) in &self.never_hears {
            assert!(client.try_subscribe(subject, *queue).await.is_err(), "{name} hears {subject}");
        }
    }
}

fn plain(subjects: &[&str]) -> Vec<(String, Option<&'static str>)> {
    subjects.iter().map(|subject| ((*subject).to_owned(), None)).collect()
}

fn strings(subjects: &[String]) -> Vec<String> {
    subjects.to_vec()
}

#[tokio::test]
async fn each_credential_reaches_what_it_is_for_and_nothing_else() {
    let rig = Rig::start().await;
    let Activated { prepared, answer: activated, .. } = rig.activated().await;
    let id = rig.manager.one_shot().public().to_string();
    let soon = cotal_wire::Clock::now_secs(&SystemClock).0 + 600;
    let session = rig.granted(Operation::Session, session(&id, soon)).await;
    let retire = rig.granted(Operation::Retire, retirement(&rig, &rig.manager.owner, 0)).await;
    let reader = rig.granted(Operation::TransferReader, json!({})).await;

    let (iid, owner) = (rig.manager.instance.as_str(), rig.manager.owner.as_str());
    let other = "j".repeat(26);
    let own_inbox = |role: StandingRole| format!("_INBOX_{}.>", rig.manager.key(role).public());
    let one_shot_inbox = format!("_INBOX_{}.>", rig.manager.one_shot().public());
    // Nothing of this is anybody's here: no agent's rail, no store of others, no wildcard.
    let nobody = |more: &[String]| {
        let mut all: Vec<String> = [
            format!("cotal.demo.chat.{owner}.cli.general"),
            format!("cotal.demo.ctl.delivery-admin.{owner}.manager_{iid}"),
            format!("$KV.cotal_auth_demo.epgate.manager.{other}"),
            "$KV.cotal_auth_demo.plane".to_owned(),
            format!("$KV.cotal_auth_demo.gate.{other}"),
            format!("$KV.cotal_records_demo.lifecycle.{owner}.cli"),
            "$JS.API.STREAM.DELETE.CHAT_demo".to_owned(),
            "$JS.API.STREAM.LIST".to_owned(),
            "$JS.API.CONSUMER.CREATE.DM_demo.x.y".to_owned(),
            "$KV.cotal_issued_demo.v1.x".to_owned(),
        ]
        .to_vec();
        all.extend(strings(more));
        all
    };
    let deaf = plain(&["cotal.demo.>", "cotal.demo.chat.>", "_INBOX.>", "$KV.>", "cotal.demo.inst.>"]);

    for (name, role) in [
        (CredentialName::Supervisor, StandingRole::Supervisor),
        (CredentialName::Executor, StandingRole::Executor),
    ] {
        let actor = role.actor(&rig.manager.instance);
        Privilege {
            name,
            publishes: strings(&[
                "$JS.API.INFO".to_owned(),
                format!("$KV.cotal_manager_demo.lease.{iid}"),
                format!("$KV.cotal_presence_demo.{owner}.{actor}"),
                "$JS.API.STREAM.MSG.GET.KV_cotal_auth_demo".to_owned(),
                format!("$JS.API.DIRECT.GET.EPC_demo.cotal.demo.epc.{}", "0".repeat(64)),
            ]),
            hears: vec![(own_inbox(role), None)],
            never_publishes: nobody(&strings(&[
                "$KV.cotal_manager_demo.renewal".to_owned(),
                format!("$KV.cotal_manager_demo.lease.{other}"),
                format!("$KV.cotal_presence_demo.{owner}.cli"),
                format!("$KV.cotal_records_demo.svc.manager.{other}.spec"),
                format!("cotal.demo.ep.reply.manager.{iid}.0.o.a.u.n"),
                "$JS.API.CONSUMER.CREATE.KV_cotal_records_demo.x".to_owned(),
            ])),
            never_hears: deaf.clone(),
        }
        .hold(&rig, &prepared)
        .await;
    }
    Privilege {
        name: CredentialName::Serve,
        publishes: strings(&[
            format!("cotal.demo.ep.reply.manager.{iid}.0.o.a.u.n"),
            format!("cotal.demo.epe.manager.{iid}.0.goal.o.a.u.g.x"),
            format!("cotal.demo.ept.manager.{iid}.0.t1.schedule"),
        ]),
        hears: vec![
            ("cotal.demo.ep.one.manager.spawn.>".to_owned(), Some("manager")),
            ("cotal.demo.ep.v1.one.manager.run-start.>".to_owned(), Some("manager")),
            ("cotal.demo.ep.all.manager.status.>".to_owned(), None),
            (format!("cotal.demo.ep.inst.manager.{iid}.describe.>"), None),
            (own_inbox(StandingRole::Serve), None),
        ],
        never_publishes: nobody(&strings(&[
            format!("cotal.demo.ep.reply.manager.{iid}.1.o.a.u.n"),
            format!("cotal.demo.ep.reply.manager.{other}.0.o.a.u.n"),
            format!("cotal.demo.ep.one.manager.spawn.{owner}.cli.u.n"),
            format!("$KV.cotal_auth_demo.epgate.manager.{iid}"),
            "cotal.demo.epf.manager.goal.o.a.u.g.bind".to_owned(),
        ])),
        never_hears: {
            let mut all = deaf.clone();
            all.push(("cotal.demo.ep.one.manager.spawn.>".to_owned(), None));
            all.push(("cotal.demo.ep.one.manager.purge.>".to_owned(), Some("manager")));
            all.push(("cotal.demo.ep.one.auth.>".to_owned(), Some("auth")));
            all.push((format!("cotal.demo.ep.inst.manager.{other}.spawn.>"), None));
            all
        },
    }
    .hold(&rig, &activated)
    .await;
    Privilege {
        name: CredentialName::GoalWriter,
        publishes: strings(&[
            "cotal.demo.epf.manager.goal.o.a.u.g.bind".to_owned(),
            "cotal.demo.epf.manager.goal.o.a.u.g.result".to_owned(),
            "$KV.cotal_records_demo.goalidx.manager.o.a.u.g".to_owned(),
            "$JS.API.STREAM.MSG.GET.EPF_demo".to_owned(),
        ]),
        hears: vec![(own_inbox(StandingRole::GoalWriter), None)],
        never_publishes: nobody(&strings(&[
            "cotal.demo.epf.auth.goal.o.a.u.g.bind".to_owned(),
            "cotal.demo.epf.manager.dec.o.a.u.r".to_owned(),
            format!("cotal.demo.ep.reply.manager.{iid}.0.o.a.u.n"),
            "$KV.cotal_sessions_demo.session.s".to_owned(),
        ])),
        never_hears: deaf.clone(),
    }
    .hold(&rig, &activated)
    .await;
    Privilege {
        name: CredentialName::SessionLedger,
        publishes: strings(&[
            "$KV.cotal_sessions_demo.session.s".to_owned(),
            "$JS.API.STREAM.MSG.GET.KV_cotal_sessions_demo".to_owned(),
        ]),
        hears: vec![(own_inbox(StandingRole::SessionLedger), None)],
        never_publishes: nobody(&strings(&[
            "$KV.cotal_sessions_demo.chat.o.s".to_owned(),
            "$KV.cotal_auth_demo.session.s".to_owned(),
            format!("cotal.demo.eps.manager.{SESSION}.0.out"),
            format!("cotal.demo.ep.reply.manager.{iid}.0.o.a.u.n"),
        ])),
        never_hears: deaf.clone(),
    }
    .hold(&rig, &activated)
    .await;
    Privilege {
        name: CredentialName::SessionServing,
        publishes: strings(&[format!("cotal.demo.eps.manager.{SESSION}.0.out")]),
        hears: vec![(format!("cotal.demo.eps.manager.{SESSION}.0.in"), None), (one_shot_inbox.clone(), None)],
        never_publishes: nobody(&strings(&[
            format!("cotal.demo.eps.manager.{SESSION}.0.in"),
            format!("cotal.demo.eps.manager.{SESSION}.1.out"),
            format!("cotal.demo.eps.manager.{}.0.out", "t".repeat(22)),
            "$JS.API.INFO".to_owned(),
        ])),
        never_hears: {
            let mut all = deaf.clone();
            all.push((format!("cotal.demo.eps.manager.{SESSION}.0.out"), None));
            all.push(("cotal.demo.eps.>".to_owned(), None));
            all
        },
    }
    .hold(&rig, &session)
    .await;
    let (target, uid) = (format!("{owner}.worker.{}", "u".repeat(26)), &rig.manager.uid);
    let caller = format!("{owner}.manager_serve_{iid}.{uid}");
    Privilege {
        name: CredentialName::RetirementRequester,
        publishes: strings(&[
            format!("cotal.demo.ep.one.auth.retire-lifecycle.handle.{target}.{caller}.nonce"),
            format!("cotal.demo.ep.one.auth.describe.{caller}.nonce"),
        ]),
        hears: vec![(format!("cotal.demo.ep.reply.*.*.*.{caller}.*"), None), (one_shot_inbox.clone(), None)],
        never_publishes: nobody(&strings(&[
            format!(
                "cotal.demo.ep.one.auth.retire-lifecycle.handle.{owner}.other.{}.{caller}.n",
                "u".repeat(26)
            ),
            format!("cotal.demo.ep.one.auth.retire-lifecycle.handle.{owner}.worker.{other}.{caller}.n"),
            format!("cotal.demo.ep.one.auth.retire-lifecycle.handle.{target}.{owner}.cli.{uid}.n"),
            format!("cotal.demo.ep.one.manager.spawn.{caller}.n"),
        ])),
        never_hears: deaf.clone(),
    }
    .hold(&rig, &retire)
    .await;
    Privilege {
        name: CredentialName::TransferReader,
        publishes: strings(&[
            format!("$JS.API.STREAM.INFO.OBJ_cotal_xfer_demo_{iid}"),
            format!("$O.cotal_xfer_demo_{iid}.M.x"),
        ]),
        hears: vec![(one_shot_inbox, None)],
        never_publishes: nobody(&strings(&[
            format!("$O.cotal_xfer_demo_{iid}.C.x"),
            format!("$O.cotal_xfer_demo_{other}.M.x"),
            format!("$JS.API.STREAM.DELETE.OBJ_cotal_xfer_demo_{iid}"),
            format!("$JS.API.STREAM.INFO.OBJ_cotal_xfer_demo_{other}"),
            "$JS.API.STREAM.INFO.OBJ_cotal_artifacts_demo".to_owned(),
        ])),
        never_hears: deaf,
    }
    .hold(&rig, &reader)
    .await;
    rig.daemon.stop().await.unwrap();
}
