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
use cotal_authority::registration::{Registered, Registry};
use cotal_broker::{CredsConnector, Custody};
use cotal_testkit::{
    manager::{TestManager, unknown_proof},
    raw::{ConnectOutcome, RawClient},
};
use cotal_trust::{creds, jwt::decode_verified, nkey::Seed};
use cotal_wire::{
    Owner, User,
    manager_authority::{CredentialName, Operation, StandingRole},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::stage::{AT_LAST, Stage};

/// Alice's manager, or the platform's own.
fn manager_of(stage: &Stage, owner: impl Into<Owner>) -> TestManager {
    TestManager::new(&stage.space.space, &stage.space.material.data_account.account, owner)
}

fn prepare(manager: &TestManager) -> Value {
    manager.request(Operation::Prepare, &json!({}))
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
    manager: TestManager,
    owner: DerivedOwner,
    stage: Stage,
}

impl House {
    /// Alice's manager, supervised for the next `secs` seconds.
    async fn supervised(secs: u64) -> Self {
        Self::supervised_by(secs, None).await
    }

    async fn supervised_by(secs: u64, hangs: Option<Arc<Notify>>) -> Self {
        let stage = Stage::start().await;
        let owner = stage.owner_of("alice");
        let manager = manager_of(&stage, &owner);
        let assignment = SupervisorAssignment {
            owner: Owner::from(&owner),
            space: Space::parse("demo").unwrap(),
            account: stage.space.material.data_account.account.clone(),
            instance: manager.instance.clone(),
            lifecycle_uid: manager.uid.clone(),
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
        Self { service, platform, manager, owner, stage }
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
        self.ask(prepare(&self.manager)).await
    }

    /// With the executor's creds, and nothing else.
    async fn register_with(&self, executor: &str) -> Registered {
        let connector = CredsConnector::new(&self.stage.space.server.url(), Custody::new());
        let executor = creds::parse(executor).unwrap();
        let connection = connector.open_once("cotal:test:manager".into(), &executor, None).await.unwrap();
        let registry = Registry::of_participant(&connection, &self.stage.space.space);
        let registered = self.manager.register(&registry).await.unwrap();
        connection.close().await.unwrap();
        registered
    }

    async fn connects(&self, creds: &str) {
        let (_, outcome) = RawClient::connect(&self.stage.space.server.url(), Some(creds), None, None).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
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
    for role in [StandingRole::Supervisor, StandingRole::Executor] {
        let name = role.as_str();
        let claims = decode_verified(credentials[name]["jwt"].as_str().unwrap()).unwrap();
        assert_eq!(claims["exp"], until, "{name}: the usual expiry is a day, or five minutes");
        assert_eq!(credentials[name]["exp"], until);
        assert_eq!(claims["sub"], house.manager.key(role).public().as_str());
    }
    assert_eq!(material["owner"], house.owner.as_str());

    // The same again is confirmed; another key has another ceiling, and the record stands.
    house.prepare().await.unwrap();
    let mut other = prepare(&house.manager);
    other["identities"]["supervisor"]["id"] = json!(Seed::<User>::generate(&SystemEntropy).public());
    assert_eq!(code(house.ask(other).await), EpCode::FailedPrecondition);
    house.prepare().await.unwrap();
    house.service.close().await.unwrap();
}

#[tokio::test]
async fn a_supervised_manager_registers_is_activated_and_renewed_and_nothing_of_it_outlives_its_assignment() {
    let house = House::supervised(120).await;
    let until = house.platform.assignment.lock().as_ref().unwrap().expires_at.0;
    let granted = async |answer: &Value, roles: &[StandingRole]| {
        assert_eq!(answer["credentials"].as_object().unwrap().len(), roles.len(), "{answer}");
        for role in roles {
            let issued = &answer["credentials"][role.as_str()];
            let claims = decode_verified(issued["jwt"].as_str().unwrap()).unwrap();
            assert_eq!(claims["sub"], house.manager.key(*role).public().as_str());
            assert_eq!(claims["exp"], issued["exp"]);
            // Two of one second are told apart by an earlier end.
            assert!((until - 3..=until).contains(&issued["exp"].as_u64().unwrap()), "{}", role.as_str());
            house.connects(&house.manager.creds(answer, CredentialName::of_role(*role))).await;
        }
    };

    let prepared = house.prepare().await.unwrap();
    let refusal = house.ask(house.manager.request(Operation::Activate, &json!({}))).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::FailedPrecondition, "not registered yet: {refusal}");
    let executor = house.manager.creds(&prepared, CredentialName::Executor);
    let registered = house.register_with(&executor).await;
    let activated = house.ask(house.manager.request(Operation::Activate, &json!({}))).await.unwrap();
    granted(&activated, &[StandingRole::Serve, StandingRole::GoalWriter, StandingRole::SessionLedger]).await;

    let renewal = |epoch: u64, proof: &Value| {
        let more = json!({ "registrationProof": proof, "processEpoch": epoch });
        house.manager.request(Operation::RenewStandingBundle, &more)
    };
    let proof = &activated["nextRegistrationProof"];
    let renewed = house.ask(renewal(registered.process_epoch, proof)).await.unwrap();
    granted(&renewed, &StandingRole::ALL).await;
    assert_eq!(renewed["owner"], house.owner.as_str());
    let refusal = house.ask(renewal(registered.process_epoch + 1, proof)).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::Conflict, "an epoch that is not served: {refusal}");
    let refusal = house.ask(renewal(registered.process_epoch, &unknown_proof())).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::PermissionDenied, "{refusal}");

    // The end of the assignment is the end of it all.
    house.platform.change(|assignment| assignment.ended = true);
    house.end().await.unwrap();
    house.platform.change(|assignment| assignment.ended = false);
    for request in
        [renewal(registered.process_epoch, proof), house.manager.request(Operation::Activate, &json!({}))]
    {
        let refusal = house.ask(request).await.unwrap_err();
        assert_eq!(refusal.code, EpCode::PermissionDenied, "{refusal}");
        assert!(refusal.message.contains("has ended"), "{refusal}");
    }
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
        "assignmentRevision": 1, "request": prepare(&house.manager),
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
        "request": prepare(&house.manager),
    });
    let refusal = door.request(envelope.to_string().as_bytes()).await.unwrap_err();
    assert!(refusal.message.contains("no administrator"), "an open door asks again: {refusal}");
    assert_eq!(code(house.end().await), EpCode::PermissionDenied);
    house.platform.admin.store(true, Ordering::SeqCst);
    house.platform.sealed.store(false, Ordering::SeqCst);

    let (key, uid) = (house.manager.one_shot().public(), LifecycleUid::mint(&SystemEntropy));
    let target = json!({ "owner": house.owner.as_str(), "actor": "scout", "lifecycleUid": uid });
    let op = cotal_wire::OpId::managed_retirement(&uid);
    for (operation, more) in [
        (
            Operation::Session,
            json!({ "session": {"id": key, "endpoint": "manager", "sessionId": "s", "epoch": 0, "exp": 1} }),
        ),
        (
            Operation::Retire,
            json!({ "retirement": {"id": key, "opId": op, "serveEpoch": 0, "target": target} }),
        ),
        (Operation::TransferReader, json!({})),
    ] {
        let (request, operation) = (house.manager.request(operation, &more), operation.as_str());
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
    for operation in [Operation::Prepare, Operation::Activate, Operation::Renew] {
        let refusal = house.ask(house.manager.request(operation, &json!({}))).await.unwrap_err();
        let operation = operation.as_str();
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
    let account = stage.space.material.data_account.account.clone();
    let owner = stage.space.material.owner_secret.platform_control_owner(&stage.space.space, &account);
    let manager = manager_of(&stage, owner.clone());
    let assignment = PlatformAssignment {
        space: Space::parse("demo").unwrap(),
        account_public_key: account.clone(),
        instance_id: manager.instance.clone(),
        lifecycle_uid: manager.uid.clone(),
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

    let good = envelope(prepare(&manager));
    let material = ask(good.clone()).await.unwrap();
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
