//! The platform's two doors over a real broker (contract 05 §16-17).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use cotal_auth::{
    Account, AssignmentState, AuthService, Clock, DerivedOwner, EpCode, EpError, InstanceId, LifecycleUid,
    Nkey, ObserveAssignment, PlatformAssignment, PlatformControl, PlatformError, PlatformSupervision,
    PlatformSupervisorDoor, Space, SupervisorAssignment, SystemClock, SystemEntropy, UnixSecs,
    start_auth_service,
};
use cotal_trust::{jwt::decode_verified, nkey::Seed};
use cotal_wire::{Owner, User};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::stage::{AT_LAST, Stage};

/// The five keys of a manager, and what its requests name.
struct Manager {
    instance: InstanceId,
    lifecycle: LifecycleUid,
    keys: [String; 5],
}

impl Manager {
    fn new() -> Self {
        Self {
            instance: InstanceId::mint(&SystemEntropy),
            lifecycle: LifecycleUid::mint(&SystemEntropy),
            keys: std::array::from_fn(|_| Seed::<User>::generate(&SystemEntropy).public().to_string()),
        }
    }

    /// The same manager with another supervisor.
    fn with_another_supervisor(&self) -> Self {
        let mut keys = self.keys.clone();
        keys[0] = Seed::<User>::generate(&SystemEntropy).public().to_string();
        Self { instance: self.instance.clone(), lifecycle: self.lifecycle.clone(), keys }
    }

    fn request(&self, operation: &str) -> Value {
        let names = ["supervisor", "executor", "serve", "goalWriter", "sessionLedger"];
        let keys = names.into_iter().zip(&self.keys);
        let identities: serde_json::Map<String, Value> =
            keys.map(|(name, key)| (name.to_owned(), json!({ "id": key }))).collect();
        let mut request = json!({
            "v": 1, "kind": "manager-service-authority", "operation": operation, "space": "demo", "actor": "cli",
            "instanceId": self.instance.as_str(), "managerLifecycleUid": self.lifecycle.as_str(),
            "requestId": "r".repeat(22), "identities": identities,
        });
        if operation != "prepare" {
            request["registrationProof"] = json!(format!("sha256:{}", "0".repeat(64)));
        }
        request
    }
}

/// A platform whose record the test writes.
struct Platform {
    admin: AtomicBool,
    assignment: Mutex<Option<SupervisorAssignment>>,
    sealed: AtomicBool,
    /// Told each time it is asked while it hangs: it answers nobody then.
    hangs: Option<Arc<Notify>>,
}

#[async_trait]
impl PlatformSupervision for Platform {
    async fn authorize_platform_admin(&self, _owner: &DerivedOwner) -> Result<bool, PlatformError> {
        Ok(self.admin.load(Ordering::SeqCst))
    }

    async fn observe_assignment(
        &self,
        _owner: &DerivedOwner,
    ) -> Result<Option<SupervisorAssignment>, PlatformError> {
        if let Some(asked) = &self.hangs {
            asked.notify_one();
            std::future::pending::<()>().await;
        }
        if self.sealed.load(Ordering::SeqCst) {
            return Err("the vault at 10.0.0.7 is sealed".into());
        }
        Ok(self.assignment.lock().clone())
    }
}

impl Platform {
    fn change(&self, change: impl FnOnce(&mut SupervisorAssignment)) {
        change(self.assignment.lock().as_mut().unwrap());
    }
}

struct House {
    service: AuthService,
    platform: Arc<Platform>,
    manager: Manager,
    owner: DerivedOwner,
    _stage: Stage,
}

impl House {
    /// Alice's manager, supervised for the next `secs` seconds.
    async fn supervised(secs: u64) -> Self {
        Self::supervised_by(secs, None).await
    }

    async fn supervised_by(secs: u64, hangs: Option<Arc<Notify>>) -> Self {
        let stage = Stage::start().await;
        let (manager, owner) = (Manager::new(), stage.owner_of("alice"));
        let assignment = SupervisorAssignment {
            owner: Owner::from(&owner),
            space: Space::parse("demo").unwrap(),
            account: stage.space.material.data_account.account.clone(),
            instance: manager.instance.clone(),
            lifecycle_uid: manager.lifecycle.clone(),
            revision: 1,
            ended: false,
            expires_at: UnixSecs(SystemClock.now_secs().0 + secs),
            scope: vec!["supervise".to_owned()],
        };
        let platform = Arc::new(Platform {
            admin: AtomicBool::new(true),
            assignment: Mutex::new(Some(assignment)),
            sealed: AtomicBool::new(false),
            hangs,
        });
        let inputs = stage.inputs().platform_supervisor(Arc::clone(&platform) as _);
        let service = start_auth_service(inputs).await.unwrap();
        Self { service, platform, manager, owner, _stage: stage }
    }

    async fn door(&self) -> Result<PlatformSupervisorDoor, EpError> {
        self.service.platform_supervisor().unwrap().authority(self.owner.clone()).await
    }

    async fn ask(&self, request: Value) -> Result<Value, EpError> {
        let envelope = json!({
            "v": 1, "kind": "platform-supervisor-authority", "owner": self.owner.as_str(), "assignmentRevision": 1,
            "request": request,
        });
        read(self.door().await?.request(envelope.to_string().as_bytes()).await)
    }

    async fn prepare(&self) -> Result<Value, EpError> {
        self.ask(self.manager.request("prepare")).await
    }

    async fn end(&self) -> Result<(), EpError> {
        self.service.platform_supervisor().unwrap().end_assignment(&self.owner).await
    }
}

/// An answer, for the tests that look into it.
fn read(answer: Result<Box<serde_json::value::RawValue>, EpError>) -> Result<Value, EpError> {
    answer.map(|answer| serde_json::from_str(answer.get()).unwrap())
}

fn code<T>(outcome: Result<T, EpError>) -> EpCode {
    outcome.err().expect("it refuses").code
}

#[tokio::test]
async fn every_credential_of_a_supervised_manager_ends_with_its_assignment() {
    let house = House::supervised(120).await;
    let until = house.platform.assignment.lock().as_ref().unwrap().expires_at.0;
    let material = house.prepare().await.unwrap();
    let credentials = material["credentials"].as_object().unwrap();
    assert_eq!(credentials.keys().collect::<std::collections::BTreeSet<_>>().len(), 2, "{credentials:?}");
    for (name, key) in [("supervisor", 0), ("executor", 1)] {
        let claims = decode_verified(credentials[name]["jwt"].as_str().unwrap()).unwrap();
        assert_eq!(claims["exp"], until, "{name}: the usual expiry is a day, or five minutes");
        assert_eq!(credentials[name]["exp"], until);
        assert_eq!(claims["sub"], house.manager.keys[key].as_str());
    }
    assert_eq!(material["owner"], house.owner.as_str());

    // The same again is confirmed; another key has another ceiling, and the record stands.
    house.prepare().await.unwrap();
    let other = house.manager.with_another_supervisor();
    assert_eq!(code(house.ask(other.request("prepare")).await), EpCode::FailedPrecondition);
    house.prepare().await.unwrap();
    house.service.close().await.unwrap();
}

#[tokio::test]
async fn the_supervisor_door_refuses_in_order_and_asks_the_platform_every_time() {
    let house = House::supervised(3_600).await;
    house.prepare().await.unwrap();
    let door = house.door().await.unwrap();

    assert_eq!(code(door.request(b"{").await), EpCode::BadRequest);
    assert_eq!(code(door.request(b"{}").await), EpCode::BadRequest);
    let mut foreign = json!({
        "v": 1, "kind": "platform-supervisor-authority", "owner": format!("u_{}", "b".repeat(26)),
        "assignmentRevision": 1, "request": house.manager.request("prepare"),
    });
    let refusal = door.request(foreign.to_string().as_bytes()).await.unwrap_err();
    assert!(refusal.message.contains("another user"), "{refusal}");
    foreign["more"] = json!(1);
    assert_eq!(
        code(door.request(foreign.to_string().as_bytes()).await),
        EpCode::BadRequest,
        "it is read first"
    );

    house.platform.sealed.store(true, Ordering::SeqCst);
    let refusal = house.prepare().await.unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable);
    assert!(!refusal.message.contains("10.0.0.7"), "{refusal}");
    house.platform.admin.store(false, Ordering::SeqCst);
    assert_eq!(code(house.door().await), EpCode::PermissionDenied);
    let envelope = json!({
        "v": 1, "kind": "platform-supervisor-authority", "owner": house.owner.as_str(), "assignmentRevision": 1,
        "request": house.manager.request("prepare"),
    });
    let refusal = door.request(envelope.to_string().as_bytes()).await.unwrap_err();
    assert!(refusal.message.contains("no administrator"), "an open door asks again: {refusal}");
    assert_eq!(code(house.end().await), EpCode::PermissionDenied);
    house.platform.admin.store(true, Ordering::SeqCst);
    house.platform.sealed.store(false, Ordering::SeqCst);

    for operation in ["session", "retire", "transferReader"] {
        let mut request = house.manager.request(operation);
        let key = Seed::<User>::generate(&SystemEntropy).public().to_string();
        match operation {
            "session" => {
                request["session"] =
                    json!({"id": key, "endpoint": "manager", "sessionId": "s", "epoch": 0, "exp": 1});
            }
            "retire" => {
                let uid = LifecycleUid::mint(&SystemEntropy);
                request["retirement"] = json!({
                    "id": key, "opId": cotal_wire::OpId::managed_retirement(&uid).as_str(), "serveEpoch": 0,
                    "target": {"owner": house.owner.as_str(), "actor": "scout", "lifecycleUid": uid.as_str()},
                });
            }
            _ => request["transferReader"] = json!({ "id": key }),
        }
        let refusal = house.ask(request).await.unwrap_err();
        assert_eq!(refusal.code, EpCode::PermissionDenied, "{operation}");
        assert!(refusal.message.contains("serves prepare, activate and the standing renewals"), "{refusal}");
    }
    house.platform.change(|assignment| assignment.revision = 2);
    assert_eq!(code(house.prepare().await), EpCode::PermissionDenied);
    *house.platform.assignment.lock() = None;
    assert_eq!(code(house.prepare().await), EpCode::PermissionDenied);
    house.service.close().await.unwrap();
    assert_eq!(code(house.door().await), EpCode::Unavailable);
    assert_eq!(code(door.request(b"{}").await), EpCode::Unavailable);
}

#[tokio::test]
async fn an_assignment_that_ended_issues_nothing_more_even_if_the_platform_forgets_that_it_did() {
    let house = House::supervised(3_600).await;
    house.prepare().await.unwrap();
    assert_eq!(code(house.end().await), EpCode::FailedPrecondition, "the platform's own record comes first");
    house.prepare().await.unwrap();

    house.platform.change(|assignment| assignment.ended = true);
    let refusal = house.prepare().await.unwrap_err();
    assert_eq!(refusal.code, EpCode::PermissionDenied);
    assert!(refusal.message.contains("has ended"), "{refusal}");
    house.end().await.unwrap();
    house.end().await.unwrap();

    house.platform.change(|assignment| assignment.ended = false);
    for operation in ["prepare", "renew"] {
        let refusal = house.ask(house.manager.request(operation)).await.unwrap_err();
        assert_eq!(refusal.code, EpCode::PermissionDenied, "{operation}");
        assert!(refusal.message.contains("has ended"), "{operation}: {refusal}");
    }
    house.service.close().await.unwrap();
}

#[tokio::test]
async fn an_assignment_that_nothing_was_issued_under_ends_too() {
    let house = House::supervised(3_600).await;
    house.platform.change(|assignment| assignment.ended = true);
    house.end().await.unwrap();
    house.platform.change(|assignment| assignment.ended = false);
    let refusal = house.prepare().await.unwrap_err();
    assert!(refusal.message.contains("has ended"), "its gate was born retired: {refusal}");
    house.service.close().await.unwrap();
}

/// A platform whose record never answers: a close waits for neither door, and both are told.
#[tokio::test]
async fn a_platform_that_does_not_answer_holds_no_close_up() {
    let asked = Arc::new(Notify::new());
    let house = House::supervised_by(120, Some(Arc::clone(&asked))).await;
    let (request, end) = (house.prepare(), house.end());
    let closing = async {
        asked.notified().await;
        asked.notified().await;
        house.service.close().await
    };
    let all = async { tokio::join!(request, end, closing) };
    let (request, end, closed) = tokio::time::timeout(AT_LAST, all).await.expect("the close ends");
    closed.unwrap();
    assert_eq!((code(request), code(end)), (EpCode::Unavailable, EpCode::Unavailable));
}

/// A caller that asked and never looks again has begun nothing: there is nothing to wait for.
#[tokio::test]
async fn an_end_that_nobody_waits_for_any_more_holds_no_close_up_before_it_has_begun() {
    let house = House::supervised_by(120, Some(Arc::default())).await;
    let mut end = std::pin::pin!(house.end());
    assert!(futures::poll!(&mut end).is_pending());
    let closed = tokio::time::timeout(AT_LAST, house.service.close()).await;
    closed.expect("the close ends").unwrap();
}

struct Assigns(Mutex<Option<PlatformAssignment>>);

#[async_trait]
impl ObserveAssignment for Assigns {
    async fn observe_assignment(
        &self,
        _space: &Space,
        _account: &Nkey<Account>,
    ) -> Result<Option<PlatformAssignment>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.lock().clone())
    }
}

/// What is wrong with an envelope, and how it comes to be so.
type Change = (&'static str, fn(&mut Value));

#[tokio::test]
async fn the_platforms_own_manager_is_served_under_its_assignment_alone() {
    let stage = Stage::start().await;
    let manager = Manager::new();
    let account = stage.space.material.data_account.account.clone();
    let assignment = PlatformAssignment {
        space: Space::parse("demo").unwrap(),
        account_public_key: account.clone(),
        instance_id: manager.instance.clone(),
        lifecycle_uid: manager.lifecycle.clone(),
        predecessor_instance_id: Some(InstanceId::mint(&SystemEntropy)),
        assignment_revision: 4,
        state: AssignmentState::Assigned,
    };
    let assigns = Arc::new(Assigns(Mutex::new(Some(assignment.clone()))));
    let inputs = stage.inputs().platform_control(PlatformControl::new(Arc::clone(&assigns) as _));
    let service = start_auth_service(inputs).await.unwrap();
    let door = service.platform_control().unwrap();
    let envelope = |request: Value| {
        json!({
            "v": 1, "kind": "platform-control-authority", "space": "demo", "accountPublicKey": account.as_str(),
            "assignmentRevision": 4, "request": request,
        })
    };
    let ask = async |envelope: Value| read(door.authority(envelope.to_string().as_bytes()).await);

    let good = envelope(manager.request("prepare"));
    let material = ask(good.clone()).await.unwrap();
    let owner = stage.space.material.owner_secret.platform_control_owner(&assignment.space, &account);
    assert_eq!(material["owner"], owner.as_str());
    assert_eq!(material["credentials"].as_object().unwrap().len(), 2);

    let mut managed = good.clone();
    managed["request"]["kind"] = json!("manager-managed-agent-enrollment");
    assert_eq!(code(ask(managed).await), EpCode::Unimplemented);
    let denied: [Change; 5] = [
        ("space", |envelope| envelope["space"] = json!("other")),
        ("revision", |envelope| envelope["assignmentRevision"] = json!(5)),
        ("instance", |envelope| envelope["request"]["instanceId"] = json!("j".repeat(26))),
        ("lifecycle", |envelope| envelope["request"]["managerLifecycleUid"] = json!("m".repeat(26))),
        ("inner space", |envelope| envelope["request"]["space"] = json!("other")),
    ];
    for (what, change) in denied {
        let mut broken = good.clone();
        change(&mut broken);
        assert_eq!(code(ask(broken).await), EpCode::PermissionDenied, "{what}");
    }
    *assigns.0.lock() = Some(PlatformAssignment { state: AssignmentState::Revoked, ..assignment });
    assert_eq!(code(ask(good.clone()).await), EpCode::PermissionDenied);
    *assigns.0.lock() = None;
    assert_eq!(code(ask(good).await), EpCode::PermissionDenied);
    service.close().await.unwrap();
}
