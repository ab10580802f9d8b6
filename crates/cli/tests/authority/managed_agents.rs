//! Managed agents over the real service: enrolled by a manager that holds no signer, connected, retired, and the name is
//! free again (contract 06 §6-9).

use std::time::Duration;

use cotal_authority::{rail::contract::AuthContract, registration::Registry};
use cotal_broker::{Connection, Connector, Custody, Lifetime, durable, kv::Bucket};
use cotal_ledger::{ActorRow, GrantInput, Ledger, hash_agent_secret};
use cotal_testkit::{
    daemons::DAEMON_WITHIN,
    manager::{Proved, TestManager},
    process::Process,
    raw::RawClient,
};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, ConnId, DerivedOwner, LifecycleUid, Names, OpId, Permissions, Principal, Rules,
    endpoint_subject::TargetTriple,
    envelope::EndpointReply,
    es_value::EsValue,
    grants::rail,
    manager_authority::{
        AgentMaterial, EnrollmentResult, HolderKind, Kind, PrepareRetirementResult, RetainedAgentResult,
    },
    names::{dlv_consumer, dm_consumer, lifecycle_subject_key},
};
use cotal_workspace::material::Discovery;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::house::{House, assert_gone};

const WITHIN: Duration = Duration::from_secs(60);
/// Who supervises.
const SUB: &str = "alice";

/// A space whose service has a public face, a person who supervises, and their registered manager.
struct Scene {
    house: House,
    service: Process,
    discovery: Discovery,
    owner: DerivedOwner,
    anything: Connection,
    manager: TestManager,
    proved: Proved,
}

impl Scene {
    async fn start(name: &str) -> Self {
        let house = House::start(name).await;
        let (service, discovery) = house.seat.ready_public_auth_service(&house.url()).await.unwrap();
        let connector = Connector::new(
            &house.url(),
            house.space.space.clone(),
            house.space.material.data_account.clone(),
            Custody::new(),
            std::sync::Arc::new(SystemClock),
            std::sync::Arc::new(SystemEntropy),
        );
        let all = || Rules { allow: vec![">".to_owned()], deny: Vec::new() };
        let grants = |_: &ConnId| Permissions { publish: all(), subscribe: all() };
        let lifetime = Lifetime::OneShot { ttl_secs: 600, principal: None };
        let anything = connector.open("anything".into(), &grants, lifetime).await.unwrap();
        let owner = house.caller.owner_of(&house, SUB);
        let (space, account) = (&house.space.space, &house.space.material.data_account);
        let manager = TestManager::new(space, &account.account, &owner);
        let registry = Registry::bind(&anything, space).await.unwrap();
        let proved = manager.register_proved(&registry, account).await.unwrap();
        let scene = Self { house, service, discovery, owner, anything, manager, proved };
        scene.grant(SUB, "cli", &["supervise"]);
        scene
    }

    async fn registry(&self) -> Registry {
        Registry::bind(&self.anything, &self.house.space.space).await.unwrap()
    }

    /// As a restart of the manager does: another revision, the next epoch.
    async fn register_again(&mut self) {
        let account = &self.house.space.material.data_account;
        self.proved = self.manager.register_proved(&self.registry().await, account).await.unwrap();
    }

    /// As a restart does of a manager that died while it registered.
    async fn resume(&mut self, op: &OpId) {
        let registered = self.manager.resume(&self.registry().await, op).await.unwrap();
        let account = &self.house.space.material.data_account;
        self.proved = self.manager.proved_at(account, registered.gate.gate.coordinate());
    }

    fn request(&self, kind: Kind, more: &Value) -> Value {
        self.manager.proved(kind, &self.proved, more)
    }

    fn ledger(&self) -> Ledger {
        Ledger::at(&self.house.seat.state_dir)
    }

    fn grant(&self, sub: &str, actor: &str, scope: &[&str]) {
        let input =
            GrantInput::new(self.house.caller.owner_of(&self.house, sub), Actor::parse(actor).unwrap())
                .scope(scope)
                .allow_subscribe(["general", "team.>"])
                .allow_publish(["general"]);
        self.ledger().grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
    }

    fn row(&self, actor: &str) -> Option<ActorRow> {
        self.ledger().read_managed(&self.owner, &Actor::parse(actor).unwrap()).unwrap()
    }

    /// Asks on the public face, as a machine does that has no capability.
    async fn ask(&self, sub: &str, request: &Value) -> (u16, Value) {
        let url = format!("{}/manager-service-authority", self.public_url());
        let body = json!({ "idpToken": self.house.caller.idp_token(sub), "request": request });
        self.house.caller.post_to(&url, None, &body).await.expect("it answers")
    }

    fn public_url(&self) -> &str {
        self.discovery.public_url.as_deref().unwrap()
    }

    fn enrollment(&self, actor: &str, token: &str) -> Value {
        let target = json!({
            "actor": actor, "subscribe": ["general"], "allowSubscribe": ["general", "team.*"],
            "allowPublish": ["general"], "tokenHash": hash_agent_secret(token),
        });
        self.request(Kind::Enrollment, &json!({ "target": target }))
    }

    async fn enroll(&self, actor: &str, token: &str) -> AgentMaterial {
        let request = self.enrollment(actor, token);
        let (status, answer) = self.ask(SUB, &request).await;
        assert_eq!(status, 200, "{answer}");
        let result = EnrollmentResult::parse(&es(&answer)).unwrap();
        assert_eq!(result.echo.owner.as_str(), self.owner.as_str());
        for echoed in
            ["actor", "instanceId", "managerLifecycleUid", "requestId", "registrationProof", "serveEpoch"]
        {
            assert_eq!(answer[echoed], request[echoed], "{echoed}");
        }
        result.material
    }

    fn preparation(&self, actor: &str, uid: &LifecycleUid) -> Value {
        let more = json!({ "target": self.target(actor, uid), "opId": OpId::managed_retirement(uid) });
        self.request(Kind::PrepareRetirement, &more)
    }

    fn target(&self, actor: &str, uid: &LifecycleUid) -> Value {
        json!({ "owner": self.owner, "actor": actor, "lifecycleUid": uid })
    }

    fn validation(&self, material: &AgentMaterial, token: &str) -> Value {
        let target = self.target(material.actor.as_str(), &material.lifecycle_uid);
        let more = json!({ "target": target, "actorToken": token, "sentinelCreds": material.sentinel_creds });
        self.request(Kind::RetainedAgentValidation, &more)
    }

    /// Exchanges the agent's token where the material says, and connects with what the material holds.
    async fn enters(&self, material: &AgentMaterial, token: &str) -> RawClient {
        let (status, answer) = self.exchange(material, token).await;
        assert_eq!(status, 200, "{answer}");
        let bearer = answer["token"].as_str().unwrap();
        let (client, outcome) = RawClient::connect(
            &self.house.url(),
            Some(&material.sentinel_creds),
            Some(bearer),
            Some("nonce-0123456789"),
        )
        .await;
        client.unwrap_or_else(|| panic!("the broker refused an enrolled agent: {outcome:?}"))
    }

    async fn exchange(&self, material: &AgentMaterial, token: &str) -> (u16, Value) {
        let body = json!({ "owner": material.owner, "actor": material.actor, "actorToken": token });
        let url = format!("{}/exchange", material.agent_bearer_exchange_url);
        self.house.caller.post_to(&url, None, &body).await.expect("it answers")
    }

    /// Which parts of a footprint stand: unicast, delivery, ACL, and a membership of each of these channels.
    async fn stands(&self, material: &AgentMaterial, channels: &[&str]) -> Vec<bool> {
        let names = Names::new(&self.house.space.space.token());
        let (of, uid) = (material.principal(), &material.lifecycle_uid);
        let live = async |bucket: String, key: &str| {
            let bucket = Bucket::new(&self.anything, &bucket);
            matches!(bucket.leader_read(key).await.unwrap(), cotal_broker::kv::LeaderRead::Value(_))
        };
        let key = lifecycle_subject_key(&of, uid);
        let mut stands = vec![
            durable::exists(&self.anything, &names.dm_stream(), &dm_consumer(&of, uid)).await.unwrap(),
            durable::exists(&self.anything, &names.dlv_stream(), &dlv_consumer(&of, uid)).await.unwrap(),
            live(names.acl_bucket(), &key).await,
        ];
        for channel in channels {
            stands.push(live(names.members_bucket(), &format!("{channel}/{key}")).await);
        }
        stands
    }

    /// The agent joined these channels.
    async fn joined(&self, material: &AgentMaterial, channels: &[&str]) {
        let bucket = Names::new(&self.house.space.space.token()).members_bucket();
        let key = lifecycle_subject_key(&material.principal(), &material.lifecycle_uid);
        for channel in channels {
            let subject = Names::kv_subject(&bucket, &format!("{channel}/{key}"));
            let answer = self.anything.request(&subject, &[], "{}".into(), WITHIN).await.unwrap();
            let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
            assert!(answer["seq"].is_u64(), "{answer}");
        }
    }

    /// Asks the auth rail, as the manager with a requester's grant for just this target.
    async fn retire_on_the_rail(&self, material: &AgentMaterial) -> EndpointReply {
        let (space, serve) = (self.house.space.space.token(), self.manager.serving());
        let (uid, target) = (&self.manager.uid, &material.lifecycle_uid);
        let triple = TargetTriple { principal: material.principal(), lifecycle_uid: target.clone() };
        let connector = Connector::new(
            &self.house.url(),
            self.house.space.space.clone(),
            self.house.space.material.data_account.clone(),
            Custody::new(),
            std::sync::Arc::new(SystemClock),
            std::sync::Arc::new(SystemEntropy),
        );
        let grants = |conn: &ConnId| rail::retirement_requester(&space, &serve, uid, conn, &triple);
        let lifetime = Lifetime::OneShot { ttl_secs: 300, principal: Some(serve.clone()) };
        let requester = connector.open("requester".into(), &grants, lifetime).await.unwrap();

        let contract = AuthContract::new().unwrap();
        let body = json!({
            "v": 1, "id": "r1",
            "op": {
                "endpoint": "auth", "command": "retire-lifecycle",
                "inputDigest": contract.input_digest(), "outputDigest": contract.output_digest(),
            },
            "class": "ephemeral", "replyExpected": true, "deadlineMs": 60_000,
            "target": self.target(material.actor.as_str(), target),
            "args": {
                "opId": OpId::managed_retirement(target), "serveEndpoint": "manager",
                "serveInstanceId": self.manager.instance, "serveEpoch": self.proved.epoch,
            },
            "from": { "id": serve, "name": "manager" },
        });
        let mut answers = requester
            .subscribe(&format!("cotal.{space}.ep.reply.*.*.*.{serve}.{uid}.*"), None)
            .await
            .unwrap();
        let nonce = LifecycleUid::mint(&SystemEntropy);
        let subject = format!(
            "cotal.{space}.ep.one.auth.retire-lifecycle.handle.{}.{}.{target}.{serve}.{uid}.{nonce}",
            material.owner, material.actor
        );
        requester.publish(&subject, &[], body.to_string().into()).await.unwrap();
        requester.flush().await.unwrap();
        let answer = tokio::time::timeout(WITHIN * 2, answers.next()).await.expect("an answer").unwrap();
        EndpointReply::parse(&answer.payload).unwrap()
    }

    /// Nothing of any agent was ever written.
    async fn is_untouched(&self) {
        let agents = self.house.seat.state_dir.join("managed-actors");
        let rows = std::fs::read_dir(agents).map(Iterator::count).unwrap_or_default();
        assert_eq!(rows, 0, "somebody was enrolled");
        let dm = Names::new(&self.house.space.space.token()).dm_stream();
        let info = self.anything.request(&format!("$JS.API.STREAM.INFO.{dm}"), &[], "".into(), WITHIN).await;
        let info: Value = serde_json::from_slice(&info.unwrap().payload).unwrap();
        assert_eq!(info["state"]["consumer_count"], 0);
    }
}

fn es(value: &Value) -> EsValue {
    EsValue::parse(value.to_string().as_bytes()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enrolled_agent_comes_in_and_its_name_is_free_again_once_it_is_retired() {
    let scene = Scene::start("agents").await;
    let _delivery = scene.house.delivery().await;
    let material = scene.enroll("worker", "token").await;
    assert_eq!(material.agent_bearer_exchange_url, scene.public_url());
    assert_eq!(*scene.house.space.material.callout.sentinel_creds, material.sentinel_creds);
    assert_eq!(scene.enroll("worker", "token").await, material, "the same request again");
    assert_eq!(scene.stands(&material, &[]).await, [true; 3]);

    let mut client = scene.enters(&material, "token").await;
    let chat = format!("cotal.agents.chat.{}.general", material.principal());
    client.try_publish(&chat, b"hello").await.expect("its grant covers it");
    let (status, answer) = scene.ask(SUB, &scene.enrollment("worker", "another")).await;
    assert_eq!(status, 409, "another lifecycle holds the name: {answer}");

    // The inventory finds what a pattern let in.
    let channels = ["general", "team.a"];
    scene.joined(&material, &channels).await;
    let preparation = scene.preparation("worker", &material.lifecycle_uid);
    for _ in 0..2 {
        let (status, answer) = scene.ask(SUB, &preparation).await;
        assert_eq!(status, 200, "{answer}");
        PrepareRetirementResult::parse(&es(&answer)).unwrap();
        assert_eq!((&answer["opId"], &answer["target"]), (&preparation["opId"], &preparation["target"]));
    }
    assert_eq!(scene.row("worker"), None);
    assert_eq!(scene.stands(&material, &channels).await, [false; 5]);
    assert_eq!(scene.exchange(&material, "token").await.0, 401);
    client.ping().await.expect("the barrier ends what lives, a preparation does not");

    let reply = scene.retire_on_the_rail(&material).await;
    let retired = reply.result.unwrap_or_else(|refusal| panic!("{refusal:?}")).expect("a result");
    assert_eq!((&retired["retired"], &retired["opId"]), (&json!(true), &preparation["opId"]));
    assert_gone(&mut client).await;

    let next = scene.enroll("worker", "another").await;
    assert_ne!(next.lifecycle_uid, material.lifecycle_uid);
    let mut client = scene.enters(&next, "another").await;
    client.ping().await.unwrap();
    // What is asked about the one before touches no successor.
    let (status, answer) = scene.ask(SUB, &preparation).await;
    assert_eq!(status, 200, "{answer}");
    assert!(scene.row("worker").unwrap().is_at(&next.lifecycle_uid));
    assert_eq!(scene.stands(&next, &[]).await, [true; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_supervise_gets_nothing() {
    let mut scene = Scene::start("nobody").await;
    scene.grant(SUB, "helper", &["spawn", "admin", "run"]);
    scene.grant("bob", "cli", &["supervise"]);
    let request = |scene: &Scene| scene.enrollment("worker", "token");
    let changed = |scene: &Scene, member: &str, value: Value| {
        let mut request = request(scene);
        request[member] = value;
        request
    };
    let refused = async |scene: &Scene, what: &str, sub: &str, request: Value, wanted: u16| {
        let (status, answer) = scene.ask(sub, &request).await;
        assert_eq!(status, wanted, "{what}: {answer}");
        assert!(answer["error"].is_string(), "{what}: {answer}");
        scene.is_untouched().await;
    };
    let proof = |scene: &Scene| request(scene)["registrationProof"].clone();

    refused(&scene, "spawn and admin", SUB, changed(&scene, "actor", json!("helper")), 403).await;
    refused(&scene, "nobody's actor", SUB, changed(&scene, "actor", json!("ghost")), 403).await;
    refused(&scene, "another owner's manager", "bob", request(&scene), 403).await;
    refused(&scene, "another space", SUB, changed(&scene, "space", json!("other")), 403).await;
    let zeros = json!(format!("sha256:{}", "0".repeat(64)));
    refused(&scene, "no proof", SUB, changed(&scene, "registrationProof", zeros), 403).await;
    refused(&scene, "an unknown field", SUB, changed(&scene, "lifecycleUid", json!("a".repeat(26))), 403)
        .await;

    let before = (request(&scene), proof(&scene));
    scene.register_again().await;
    refused(&scene, "a stale epoch", SUB, before.0, 409).await;
    refused(&scene, "a replayed proof", SUB, changed(&scene, "registrationProof", before.1), 403).await;
    let op = scene.manager.freeze(&scene.registry().await).await.unwrap();
    refused(&scene, "a frozen gate", SUB, request(&scene), 403).await;

    scene.resume(&op).await;
    let cli = Actor::parse("cli").unwrap();
    assert!(scene.ledger().revoke_interactive(&scene.owner, &cli).unwrap());
    refused(&scene, "a revoked actor", SUB, request(&scene), 403).await;
    scene.grant(SUB, "cli", &["supervise"]);
    scene.enroll("worker", "token").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_enrollments_of_one_name_at_once_make_one_agent() {
    let scene = Scene::start("race").await;
    let requests = ["one", "two", "one", "two"].map(|token| scene.enrollment("worker", token));
    let answers = join_all(requests.iter().map(|request| scene.ask(SUB, request))).await;
    let uids: Vec<_> = answers.iter().filter(|(status, _)| *status == 200).collect();
    assert_eq!(uids.len(), 2, "{answers:?}");
    assert_eq!(uids[0].1["material"], uids[1].1["material"]);
    assert_eq!(answers.iter().filter(|(status, _)| *status == 409).count(), 2, "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preparation_waits_for_the_delivery_daemon_with_the_grant_in_hand() {
    let scene = Scene::start("waits").await;
    let mut delivery = scene.house.delivery().await;
    let material = scene.enroll("worker", "token").await;
    scene.joined(&material, &["general", "team.a"]).await;
    assert!(delivery.terminate(DAEMON_WITHIN).await.unwrap().success());

    let preparation = scene.preparation("worker", &material.lifecycle_uid);
    let (status, answer) = scene.ask(SUB, &preparation).await;
    assert_eq!(status, 403, "{answer}");
    assert!(scene.row("worker").unwrap().is_at(&material.lifecycle_uid));
    assert_eq!(scene.stands(&material, &["general", "team.a"]).await, [false, false, false, false, true]);

    let _delivery = scene.house.delivery().await;
    let (status, answer) = scene.ask(SUB, &preparation).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(scene.row("worker"), None);
    assert_eq!(scene.stands(&material, &["general", "team.a"]).await, [false; 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retained_agent_is_validated_by_its_secrets_and_its_incarnation() {
    let scene = Scene::start("retained").await;
    let material = scene.enroll("worker", "token").await;
    let request = scene.validation(&material, "token");
    let (status, answer) = scene.ask(SUB, &request).await;
    assert_eq!(status, 200, "{answer}");
    let result = RetainedAgentResult::parse(&es(&answer), HolderKind::Human).unwrap();
    assert_eq!(result.target.lifecycle_uid, material.lifecycle_uid);
    assert_eq!(result.authority.allow_subscribe, material.allow_subscribe);
    assert_eq!(result.authority.parent, Some(Principal::new(&scene.owner, Actor::parse("cli").unwrap())));
    let text = answer.to_string();
    assert!(!text.contains("\"token\"") && !text.contains(&hash_agent_secret("token")), "{text}");

    let with = |member: &str, value: Value| {
        let mut request = request.clone();
        request[member] = value;
        request
    };
    let other = LifecycleUid::mint(&SystemEntropy);
    for (what, request, wanted) in [
        ("another token", scene.validation(&material, "another"), 403),
        ("another sentinel", with("sentinelCreds", json!("creds")), 403),
        ("another incarnation", with("target", scene.target("worker", &other)), 409),
        ("nobody", with("target", scene.target("nobody", &other)), 403),
    ] {
        let (status, answer) = scene.ask(SUB, &request).await;
        assert_eq!(status, wanted, "{what}: {answer}");
    }
    drop(scene.service);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verification_door_decides_all_four_kinds_and_writes_nothing() {
    let mut scene = Scene::start("verify").await;
    let uid = LifecycleUid::mint(&SystemEntropy);
    let verify = async |scene: &Scene, owner: &str, request: &Value| {
        let url = format!("{}/manager-service-authority/verify-enrollment", scene.discovery.url);
        let body = json!({ "owner": owner, "request": request });
        let cap = scene.discovery.cap.as_str();
        scene.house.caller.post_to(&url, Some(cap), &body).await.expect("it answers")
    };
    let owner = scene.owner.to_string();
    let runtime =
        |scene: &Scene, kind| scene.request(kind, &json!({ "target": scene.target("worker", &uid) }));
    let requests = |scene: &Scene| {
        [
            scene.enrollment("worker", "token"),
            scene.preparation("worker", &uid),
            runtime(scene, Kind::RuntimeCreate),
            runtime(scene, Kind::RuntimeStatus),
        ]
    };
    for request in requests(&scene) {
        let kind = request["kind"].as_str().unwrap();
        let (status, answer) = verify(&scene, &owner, &request).await;
        assert_eq!(status, 200, "{kind}: {answer}");
        assert_eq!((&answer["authorized"], &answer["owner"]), (&json!(true), &json!(owner)));
        assert_eq!(answer["instanceId"], json!(scene.manager.instance));
        let hosted = kind.contains("runtime");
        assert_eq!(answer["actor"], if hosted { "cli" } else { "worker" }, "{kind}");
        assert_eq!(answer["target"].is_object(), hosted, "{kind}: {answer}");
        assert_eq!(answer["serveEpoch"].is_u64(), !hosted, "{kind}: {answer}");
        // The route itself has no host that would run anything.
        if hosted {
            assert_eq!(scene.ask(SUB, &request).await.0, 403, "{kind}");
        }
    }
    scene.register_again().await;
    let stale = requests(&scene);
    scene.register_again().await;
    for request in stale {
        let (status, answer) = verify(&scene, &owner, &request).await;
        assert_eq!(status, 409, "{}: {answer}", request["kind"]);
    }
    scene.manager.freeze(&scene.registry().await).await.unwrap();
    for request in requests(&scene) {
        let (status, answer) = verify(&scene, &owner, &request).await;
        assert_eq!(status, 412, "{}: {answer}", request["kind"]);
        let bob = scene.house.caller.owner_of(&scene.house, "bob").to_string();
        let (status, answer) = verify(&scene, &bob, &request).await;
        assert_eq!(status, 403, "{}: {answer}", request["kind"]);
    }
    scene.is_untouched().await;
}
