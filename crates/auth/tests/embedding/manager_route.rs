//! `/manager-service-authority` and its verification door over the real dispatcher, store and ledger: of two broken rules the
//! earlier one answers, with the status of its face or door (contract 06 §2, §14.1).

use cotal_auth::{AuthService, PublicFaceRequest, start_auth_service};
use cotal_authority::registration::Registry;
use cotal_broker::Connection;
use cotal_testkit::{
    manager::{Proved, TestManager, unknown_proof},
    runs::run_id,
};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    Generation, LifecycleUid, OpId, Permissions, Principal, Revision, UnixMillis,
    manager_authority::{Gate, Kind, Operation, Proof, ROUTE, Rule as Row, Scope, Stock},
    rows::{IssuedAuthorityRef, IssuedPermissions, RunAdmission},
};
use serde_json::{Value, json};

use crate::stage::Stage;

const DOOR: &str = "/manager-service-authority/verify-enrollment";

/// Alice and bob supervise by `cli` and not by `web`. The manager is alice's.
struct Scene {
    stage: Stage,
    service: AuthService,
    manager: TestManager,
    proved: Proved,
    anything: Connection,
}

impl Scene {
    async fn start() -> Self {
        let stage = Stage::start().await;
        let face = PublicFaceRequest::on_port(0).behind_trusted_proxy(true);
        let service = start_auth_service(stage.inputs().public_face(face)).await.unwrap();
        let account = stage.space.material.data_account.clone();
        let anything = stage.space.anything().await.unwrap();
        stage.grant_human("alice", "cli", &["supervise"], &[">"]);
        stage.grant_human("alice", "web", &["spawn", "admin"], &[">"]);
        stage.grant_human("bob", "cli", &["supervise"], &[">"]);
        stage.grant_human("bob", "web", &["spawn", "admin"], &[">"]);
        let manager = TestManager::new(&stage.space.space, &account.account, stage.owner_of("alice"));
        let registry = Registry::bind(&anything, &stage.space.space).await.unwrap();
        let proved = manager.register_proved(&registry, &account).await.unwrap();
        Self { stage, service, manager, proved, anything }
    }

    /// Asks on the public face, as a peer that never asked before unless one is named.
    async fn ask_as(&self, sub: &str, request: &Value, peer: Option<&str>) -> (u16, Value) {
        let url = format!("{}{ROUTE}", self.service.public_url().unwrap());
        let peer = peer.map_or_else(|| self.stage.fresh_peer(), str::to_owned);
        let body = json!({ "idpToken": self.stage.idp.mint_token(sub, 600), "request": request });
        self.stage.post_from(&peer, &url, &body).await
    }

    async fn verify(&self, sub: &str, request: &Value) -> (u16, Value) {
        let body = json!({ "owner": self.stage.owner_of(sub).as_str(), "request": request });
        self.stage.post_to(&self.service, DOOR, &body).await
    }

    fn target(&self, sub: &str) -> Value {
        json!({ "owner": self.stage.owner_of(sub).as_str(), "actor": "scout", "lifecycleUid": "t".repeat(26) })
    }

    /// What a request of a kind that stands on the whole registration, at a `serveEpoch`, carries beside that.
    fn payload(&self, kind: Kind) -> Value {
        let op = OpId::managed_retirement(&LifecycleUid::parse(&"t".repeat(26)).unwrap());
        let target = self.target("alice");
        match kind {
            Kind::GoalIndexScan => json!({}),
            Kind::AdminAuthorization => json!({ "caller": target }),
            Kind::Enrollment => json!({ "target": { "actor": "scout", "tokenHash": "0".repeat(64) } }),
            Kind::PrepareRetirement => json!({ "target": target, "opId": op }),
            Kind::RetainedAgentValidation => {
                json!({ "target": target, "actorToken": "t", "sentinelCreds": "s" })
            }
            Kind::RuntimeCreate | Kind::RuntimeStatus => json!({ "target": target }),
            _ => panic!("{}: no request of it is known here", kind.as_str()),
        }
    }

    /// A good request of each of those kinds, but for the effect that it would have.
    fn requests(&self) -> Vec<(Kind, Value)> {
        let kinds = [
            Kind::GoalIndexScan,
            Kind::AdminAuthorization,
            Kind::Enrollment,
            Kind::PrepareRetirement,
            Kind::RetainedAgentValidation,
            Kind::RuntimeCreate,
            Kind::RuntimeStatus,
        ];
        kinds.map(|kind| (kind, self.manager.proved(kind, &self.proved, &self.payload(kind)))).into()
    }
}

/// A manager that nobody registered, and a run of somebody else's that was admitted on it all the same.
struct Unregistered<'a> {
    scene: &'a Scene,
    manager: TestManager,
    run: String,
}

impl<'a> Unregistered<'a> {
    async fn on(scene: &'a Scene) -> Self {
        let stage = &scene.stage;
        let account = stage.space.account.data_account().account;
        let manager = TestManager::new(&stage.space.space, &account, stage.owner_of("alice"));
        let (space, run) = (stage.space.space.token(), run_id());
        let caller = IssuedAuthorityRef {
            space: space.clone(),
            principal: Principal::parse_key(&format!("{}.cli", stage.owner_of("bob"))).unwrap(),
            uid: LifecycleUid::mint(&SystemEntropy),
            generation: Generation::mint(&SystemEntropy),
        };
        let admission = RunAdmission::issued(
            &manager.endpoint().token(),
            &run,
            &manager.instance,
            (caller, Revision(1)),
            IssuedPermissions::of_grants(&Permissions::default()).unwrap(),
            UnixMillis(1),
        );
        stage.rows().await.put("admission", &admission.key(), admission.to_bytes()).await.unwrap();
        Self { scene, manager, run: run.to_string() }
    }

    fn lifecycle(&self, operation: Operation) -> Value {
        let (key, other) = (self.manager.one_shot().public(), self.manager.other().public());
        let target = LifecycleUid::parse(&"t".repeat(26)).unwrap();
        let takeover = "0".repeat(16);
        let more = match operation {
            Operation::Session => {
                json!({ "session": {
                    "id": key, "endpoint": "manager", "sessionId": "s".repeat(22), "epoch": 0, "exp": 4_000_000_000_u64,
                } })
            }
            Operation::Retire => json!({ "retirement": {
                "id": key, "target": self.scene.target("alice"), "opId": OpId::managed_retirement(&target),
                "serveEpoch": 0,
            } }),
            Operation::RenewStandingBundle => json!({ "processEpoch": 0 }),
            Operation::RenewRunDriver => json!({ "processEpoch": 0, "run": {
                "runId": self.run, "holder": format!("{key}.{takeover}"), "takeoverId": takeover, "epoch": 1,
                "fencingToken": 1, "driverId": key, "mediatorId": other,
            } }),
            Operation::Prepare | Operation::Activate | Operation::Renew | Operation::TransferReader => {
                json!({})
            }
        };
        self.manager.request(operation, &more)
    }

    /// A request of a kind that the stock service serves, and what the table says of it: one for each operation.
    fn requests(&self, kind: Kind) -> Vec<(Value, Row)> {
        let Some(rule) = kind.rule() else {
            return Operation::ALL.map(|operation| (self.lifecycle(operation), operation.rule())).into();
        };
        let (run, subject) = (&self.run, "cotal.demo");
        let more = match kind {
            Kind::RunAdmission => json!({ "run": { "runId": run, "subject": subject } }),
            Kind::RunSubmission => {
                json!({ "submission": { "submissionId": "n", "runId": run, "subject": subject } })
            }
            Kind::RunCancel => json!({ "cancel": { "runId": run, "subject": subject } }),
            Kind::RunRevoke => json!({ "revoke": { "runId": run, "reason": "twice" } }),
            Kind::RunAttempt => json!({ "operator": {
                "id": self.manager.one_shot().public(), "takeoverId": "t", "runId": run,
            } }),
            Kind::Maintenance => {
                json!({ "operation": "reconcile-registration", "targetInstanceId": self.manager.instance })
            }
            other => self.scene.payload(other),
        };
        let nothing = Proved { epoch: 0, proof: unknown_proof() };
        let request = match rule.proof {
            Proof::None => self.manager.unproved(kind, &more),
            _ => self.manager.proved(kind, &nothing, &more),
        };
        vec![(request, rule)]
    }
}

/// A rule, how it is broken, and how it is told: on the route, and at the door.
struct Rule {
    says: &'static str,
    /// Who asks instead of alice.
    sub: Option<&'static str>,
    change: fn(&mut Value),
    route: u16,
    door: u16,
}

/// In the contract's order.
fn rules() -> Vec<Rule> {
    let rule = |says, change, route, door| Rule { says, sub: None, change, route, door };
    vec![
        rule("unknown member", |request| request["more"] = json!(1), 403, 400),
        rule("another space", |request| request["space"] = json!("other"), 403, 403),
        rule("has no scope \"supervise\"", |request| request["actor"] = json!("web"), 403, 403),
        rule("not open", |request| request["instanceId"] = json!("j".repeat(26)), 403, 412),
        Rule { sub: Some("bob"), ..rule("registered by another principal", |_| {}, 403, 403) },
        rule("has registered again since", |request| request["serveEpoch"] = json!(7), 409, 409),
        rule(
            "the registration proof is not",
            |request| request["registrationProof"] = json!(format!("sha256:{}", "1".repeat(64))),
            403,
            403,
        ),
    ]
}

fn said(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn of_two_rules_that_a_request_breaks_the_earlier_one_answers_over_http() {
    let scene = Scene::start().await;
    for (kind, good) in scene.requests() {
        let runtime = matches!(kind, Kind::RuntimeCreate | Kind::RuntimeStatus);
        let about_agents = runtime || matches!(kind, Kind::Enrollment | Kind::PrepareRetirement);
        let rules = rules();
        for (at, first) in rules.iter().enumerate() {
            for second in std::iter::once(None).chain(rules[at + 1..].iter().map(Some)) {
                let sub = first.sub.or(second.and_then(|second| second.sub)).unwrap_or("alice");
                let mut request = good.clone();
                if sub == "bob" && request["target"].get("owner").is_some() {
                    // A foreign target is another rule, which has a test of its own.
                    request["target"] = scene.target("bob");
                }
                second.inspect(|second| (second.change)(&mut request));
                (first.change)(&mut request);
                let what = format!("{} and {:?}", first.says, second.map(|second| second.says));
                if !runtime {
                    let (status, answer) = scene.ask_as(sub, &request, None).await;
                    assert_eq!(status, first.route, "{kind:?}: {what}: {answer}");
                    assert!(said(&answer).contains(first.says), "{kind:?}: {what}: {answer}");
                }
                if about_agents {
                    let (status, answer) = scene.verify(sub, &request).await;
                    assert_eq!(status, first.door, "{kind:?} at the door: {what}: {answer}");
                    assert!(said(&answer).contains(first.says), "{kind:?} at the door: {what}: {answer}");
                }
            }
        }
    }
    scene.service.close().await.unwrap();
}

#[tokio::test]
async fn the_door_decides_the_four_kinds_and_writes_nothing() {
    let mut scene = Scene::start().await;
    for (kind, request) in scene.requests() {
        let (status, answer) = scene.verify("alice", &request).await;
        let owner = scene.stage.owner_of("alice");
        let instance = scene.manager.instance.as_str();
        let wanted = match kind {
            Kind::Enrollment | Kind::PrepareRetirement => {
                json!({ "authorized": true, "owner": owner.as_str(), "actor": "scout", "instanceId": instance, "serveEpoch": 0 })
            }
            Kind::RuntimeCreate | Kind::RuntimeStatus => json!({
                "authorized": true, "owner": owner.as_str(), "actor": "cli", "instanceId": instance,
                "target": scene.target("alice"),
            }),
            _ => {
                assert_eq!(status, 400, "{kind:?}: {answer}");
                continue;
            }
        };
        assert_eq!((status, answer), (200, wanted), "{kind:?}");
    }
    let scout = cotal_wire::Actor::parse("scout").unwrap();
    assert_eq!(scene.stage.ledger.read_managed(&scene.stage.owner_of("alice"), &scout).unwrap(), None);

    // A registration anew makes what was good stale, and a frozen gate makes everything wait.
    let (_, stale) = scene.requests().remove(2);
    let registry = Registry::bind(&scene.anything, &scene.stage.space.space).await.unwrap();
    let account = &scene.stage.space.material.data_account;
    scene.proved = scene.manager.register_proved(&registry, account).await.unwrap();
    assert_eq!(scene.verify("alice", &stale).await.0, 409);
    assert_eq!(scene.ask_as("alice", &stale, None).await.0, 409);
    let (_, fresh) = scene.requests().remove(2);
    assert_eq!(scene.verify("alice", &fresh).await.0, 200);
    scene.manager.freeze(&registry).await.unwrap();
    assert_eq!(scene.verify("alice", &fresh).await.0, 412);
    assert_eq!(scene.ask_as("alice", &fresh, None).await.0, 403);
    scene.service.close().await.unwrap();
}

#[tokio::test]
async fn what_a_host_must_intercept_is_refused_unread_and_what_names_no_kind_is_the_lifecycles() {
    let scene = Scene::start().await;
    for kind in
        [Kind::RuntimeCreate, Kind::RuntimeStatus, Kind::DelegatedIntent, Kind::DelegatedIntentExecution]
    {
        let unread = json!({ "kind": kind.as_str(), "actor": "cli", "anything": [1] });
        let (status, answer) = scene.ask_as("alice", &unread, None).await;
        assert_eq!(status, 403, "{kind:?}: {answer}");
        assert!(said(&answer).contains("does not intercept it"), "{kind:?}: {answer}");
        let (status, answer) = scene.ask_as("carol", &unread, None).await;
        assert!(status == 403 && said(&answer).contains("is not granted"), "the row comes first: {answer}");
    }
    for nothing in [
        json!({ "actor": "cli" }),
        json!({ "actor": "cli", "kind": "x" }),
        json!({ "actor": "cli", "kind": 1 }),
    ] {
        let (status, answer) = scene.ask_as("alice", &nothing, None).await;
        assert_eq!(status, 403);
        assert!(said(&answer).starts_with("manager-service-authority: operation must be"), "{answer}");
    }
    scene.service.close().await.unwrap();
}

#[tokio::test]
async fn what_the_table_of_kinds_says_is_what_the_dispatcher_and_the_door_do() {
    let scene = Scene::start().await;
    let unregistered = Unregistered::on(&scene).await;
    for kind in Kind::ALL {
        let named = json!({ "kind": kind.as_str(), "actor": "cli" });
        let (status, answer) = scene.verify("alice", &named).await;
        let decides = !said(&answer).contains("the four kinds about managed agents alone");
        assert_eq!((status, decides), (400, kind.is_of_managed_agent()), "{}: {answer}", kind.as_str());
        if kind.stock() != Stock::Serves {
            let (status, answer) = scene.ask_as("alice", &named, None).await;
            let refused = status == 403 && said(&answer).contains("does not intercept it");
            assert!(refused, "{}: {answer}", kind.as_str());
            continue;
        }
        for (mut request, rule) in unregistered.requests(kind) {
            let what = format!("{} {}", kind.as_str(), request["operation"]);
            // One of them has just what the row asks for, and the other everything else.
            let (holds, lacks) = match rule.scope {
                Scope::Supervise => ("cli", "web"),
                Scope::RunOwnerOrAdmin => ("web", "cli"),
                other => panic!("{what}: nothing here holds {other:?}"),
            };
            request["actor"] = json!(lacks);
            let (status, answer) = scene.ask_as("alice", &request, None).await;
            let refused = status == 403 && said(&answer).contains(rule.scope.capability().unwrap());
            assert!(refused, "{what}: {answer}");
            request["actor"] = json!(holds);
            let (status, answer) = scene.ask_as("alice", &request, None).await;
            match rule.gate {
                Gate::NotRead | Gate::AbsentOrOwn => assert_eq!(status, 200, "{what}: {answer}"),
                _ => assert!(status == 403 && said(&answer).contains("regist"), "{what}: {answer}"),
            }
        }
    }
    scene.service.close().await.unwrap();
}

#[tokio::test]
async fn a_real_refusal_counts_once_and_a_real_answer_never() {
    let scene = Scene::start().await;
    let (_, good) = scene.requests().remove(0);
    let mut stale = good.clone();
    stale["serveEpoch"] = json!(7);
    let peer = Some("10.9.9.9");
    for n in 0..29 {
        assert_eq!(scene.ask_as("alice", &stale, peer).await.0, 409, "{n}");
        let (status, answer) = scene.ask_as("alice", &good, peer).await;
        assert_eq!(status, 200, "{n}: {answer}");
    }
    assert_eq!(scene.ask_as("alice", &stale, peer).await.0, 409, "the 30th");
    assert_eq!(scene.ask_as("alice", &stale, peer).await.0, 429, "the 31st");
    assert_eq!(scene.ask_as("alice", &good, peer).await.0, 200, "over a full budget");
    assert_eq!(scene.ask_as("alice", &stale, None).await.0, 409, "another peer has its own");
    scene.service.close().await.unwrap();
}
