//! The platform's doors, and the incarnations of the host (contract 05 §15.3, §18).

use std::sync::Arc;

use async_trait::async_trait;
use cotal_auth::{
    Account, Actor, Artifact, AssignmentState, AuthService, AuthServiceInputs, Composition, EpCode, HostDoor,
    InstanceId, LifecycleUid, Nkey, ObserveAssignment, PlatformAssignment, PlatformControl, PlatformHost,
    Readiness, Space, SystemEntropy, start_auth_service,
};
use cotal_testkit::proxy::{Net, Proxy};
use cotal_wire::canonical::VOID_CLOSURE_DIGEST;
use futures::FutureExt as _;
use serde_json::{Value, json};

use crate::stage::{AT_LAST, Stage};

const HOST: &str = "com.example.host";

struct Assigns(Option<PlatformAssignment>);

#[async_trait]
impl ObserveAssignment for Assigns {
    async fn observe_assignment(
        &self,
        _space: &Space,
        _account: &Nkey<Account>,
    ) -> Result<Option<PlatformAssignment>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.clone())
    }
}

fn document() -> Value {
    json!({
        "urn": HOST, "revision": 1, "attributes": [], "events": [],
        "commands": [{
            "name": "ping", "class": "ephemeral", "targeted": false, "capability": "host.ping",
            "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
        }],
    })
}

fn platform() -> PlatformControl {
    PlatformControl::new(Arc::new(Assigns(None)))
}

fn with_host() -> PlatformControl {
    platform().host(PlatformHost::of_document(HOST, &document()).unwrap())
}

async fn started(stage: &Stage, platform: PlatformControl) -> AuthService {
    start_auth_service(stage.inputs().platform_control(platform)).await.unwrap()
}

fn door(service: &AuthService) -> HostDoor {
    service.host().expect("it was started with a host")
}

#[tokio::test]
async fn the_doors_are_there_with_the_inputs_that_open_them_and_not_otherwise() {
    let stage = Stage::start().await;
    let service = start_auth_service(stage.inputs()).await.unwrap();
    assert!(service.platform_control().is_none() && service.host().is_none());
    service.close().await.unwrap();
    let service = started(&stage, platform()).await;
    assert!(service.platform_control().is_some() && service.host().is_none());
    service.close().await.unwrap();
    let service = started(&stage, with_host()).await;
    assert!(service.platform_control().is_some() && service.host().is_some());
    service.close().await.unwrap();
}

#[tokio::test]
async fn each_start_of_the_host_is_one_epoch_on_and_fences_its_predecessor() {
    let stage = Stage::start().await;
    let service = started(&stage, with_host()).await;
    let (host, instance) = (door(&service), InstanceId::mint(&SystemEntropy));
    assert_eq!(host.observe_host_gate(&instance).await.unwrap(), None);
    assert_eq!(host.await_host_fence(&instance, 0).await.unwrap(), None, "an absent gate fences nobody in");

    let first = host.register_host_incarnation(&instance).await.unwrap();
    assert_eq!((first.process_epoch, &first.instance_id), (0, &instance), "0 serves like any other");
    let gate = host.observe_host_gate(&instance).await.unwrap().unwrap();
    assert!(gate.is_open());
    assert_eq!(gate.principal().key(), format!("local.host_serve_{instance}"), "nobody holds it");

    let fenced = tokio::spawn({
        let (host, instance) = (host.clone(), instance.clone());
        async move { host.await_host_fence(&instance, 0).await }
    });
    let second = host.register_host_incarnation(&instance).await.unwrap();
    assert_eq!(second.process_epoch, 1);
    let seen = tokio::time::timeout(AT_LAST, fenced).await.expect("it is told").unwrap().unwrap();
    assert_ne!(seen.map(|gate| (gate.is_open(), gate.coordinate().process_epoch)), Some((true, 0)));

    // Another process of the same host: its own context, the instance id that the host keeps.
    service.close().await.unwrap();
    let service = started(&stage, with_host()).await;
    let third = door(&service).register_host_incarnation(&instance).await.unwrap();
    assert_eq!(third.process_epoch, 2);
    let another = door(&service).register_host_incarnation(&InstanceId::mint(&SystemEntropy)).await.unwrap();
    assert_eq!(another.process_epoch, 0, "another instance begins its own count");
    service.close().await.unwrap();
    let ended = service.closed().await;
    let registrations = ended.iter().filter(|owned| owned.label == "cotal:host-registration:demo");
    let registrations: u64 = registrations.map(|owned| owned.count).sum();
    assert_eq!(registrations, 2);
    assert!(ended.iter().all(|owned| owned.ended), "{ended:?}");
}

#[tokio::test]
async fn a_wait_for_a_fence_ends_with_the_context_and_takes_no_epoch_that_there_cannot_be() {
    let stage = Stage::start().await;
    let service = started(&stage, with_host()).await;
    let (host, instance) = (door(&service), InstanceId::mint(&SystemEntropy));
    for bad in [1 << 53, u64::MAX] {
        assert_eq!(host.await_host_fence(&instance, bad).await.unwrap_err().code, EpCode::BadRequest);
    }
    let registered = host.register_host_incarnation(&instance).await.unwrap();
    let waiting = tokio::spawn({
        let (host, instance) = (host.clone(), instance.clone());
        async move { host.await_host_fence(&instance, registered.process_epoch).await }
    });
    tokio::task::yield_now().await;
    service.close().await.unwrap();
    assert_eq!(service.readiness(), Readiness::Draining);
    let told = tokio::time::timeout(AT_LAST, waiting).await.expect("it is told").unwrap();
    assert_eq!(told.unwrap_err().code, EpCode::Unavailable, "nobody can say any more");
    assert_eq!(host.observe_host_gate(&instance).await.unwrap_err().code, EpCode::Unavailable);
    assert_eq!(host.register_host_incarnation(&instance).await.unwrap_err().code, EpCode::Unavailable);
}

/// The broker cannot be reached from before `begun` is called until a close has begun; what it asks once is dropped.
async fn closed_over<T>(stage: &Stage, platform: PlatformControl, begun: impl AsyncFnOnce(AuthService) -> T) {
    let proxy = Proxy::start(stage.space.server.port()).await.unwrap();
    let inputs = AuthServiceInputs::new(stage.hosted_dialling(&proxy.url())).platform_control(platform);
    let service = start_auth_service(inputs).await.unwrap();
    proxy.set(Net::Stalled);
    assert!(begun(service.clone()).now_or_never().is_none(), "it ended without a broker");
    let closing = tokio::spawn({
        let service = service.clone();
        async move { service.close().await }
    });
    while service.readiness() != Readiness::Draining {
        tokio::task::yield_now().await;
    }
    proxy.set(Net::Up);
    closing.await.unwrap().unwrap();
    assert!(service.closed().await.iter().all(|owned| owned.ended));
}

#[tokio::test]
async fn a_registration_whose_caller_went_away_ends_before_the_context_does() {
    let stage = Stage::start().await;
    let instance = InstanceId::mint(&SystemEntropy);
    closed_over(&stage, with_host(), async |service| {
        door(&service).register_host_incarnation(&instance).await
    })
    .await;
    let service = started(&stage, with_host()).await;
    let next = door(&service).register_host_incarnation(&instance).await.unwrap();
    assert_eq!(next.process_epoch, 1, "what was begun was ended");
    service.close().await.unwrap();
}

#[tokio::test]
async fn an_activation_whose_caller_went_away_ends_before_the_context_does() {
    let stage = Stage::start().await;
    let (owner, actor) = (stage.owner_of("alice"), Actor::parse("worker").unwrap());
    let [uid, other] = [(); 2].map(|()| LifecycleUid::mint(&SystemEntropy));
    closed_over(&stage, platform(), async |service| {
        let control = service.platform_control().unwrap();
        control.activate_managed_lifecycle(&owner, &actor, &uid).await
    })
    .await;
    let service = started(&stage, platform()).await;
    let control = service.platform_control().unwrap();
    let refusal = control.activate_managed_lifecycle(&owner, &actor, &other).await.unwrap_err();
    assert_eq!(refusal.error.code, EpCode::AlreadyExists, "{}", refusal.error);
    control.activate_managed_lifecycle(&owner, &actor, &uid).await.unwrap();
    service.close().await.unwrap();
}

#[tokio::test]
async fn a_contract_that_is_not_there_whole_registers_nothing() {
    let stage = Stage::start().await;
    let [cluster, manifest] = Artifact::closed(&document()).unwrap();
    let incomplete = PlatformHost::new(HOST, manifest.digest().clone(), [cluster]);
    let service = started(&stage, platform().host(incomplete)).await;
    let instance = InstanceId::mint(&SystemEntropy);
    let refusal = door(&service).register_host_incarnation(&instance).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::FailedPrecondition, "{refusal}");
    assert_eq!(door(&service).observe_host_gate(&instance).await.unwrap(), None);
    service.close().await.unwrap();
}

#[tokio::test]
async fn a_platform_activates_one_exact_lifecycle_and_sees_the_gates_of_managers() {
    let stage = Stage::start().await;
    let service = started(&stage, platform()).await;
    let control = service.platform_control().unwrap();
    let (owner, actor) = (stage.owner_of("alice"), Actor::parse("worker").unwrap());
    let uid = LifecycleUid::mint(&SystemEntropy);
    for _ in 0..2 {
        control.activate_managed_lifecycle(&owner, &actor, &uid).await.unwrap();
    }
    let other = LifecycleUid::mint(&SystemEntropy);
    let refusal = control.activate_managed_lifecycle(&owner, &actor, &other).await.unwrap_err();
    assert_eq!(refusal.error.code, EpCode::AlreadyExists, "{}", refusal.error);
    assert_eq!(control.observe_manager_gate(&InstanceId::mint(&SystemEntropy)).await.unwrap(), None);
    assert_eq!(control.assignment().await.unwrap_err().code, EpCode::PermissionDenied);

    service.close().await.unwrap();
    let refusal = control.activate_managed_lifecycle(&owner, &actor, &uid).await.unwrap_err();
    assert_eq!((refusal.error.code, refusal.began), (EpCode::Unavailable, false));
    assert_eq!(control.assignment().await.unwrap_err().code, EpCode::Unavailable);
}

#[tokio::test]
async fn an_assignment_of_this_very_context_is_read_at_every_use() {
    let stage = Stage::start().await;
    let assignment = PlatformAssignment {
        space: stage.space.space.clone(),
        account_public_key: stage.space.account.data_account().account,
        instance_id: InstanceId::mint(&SystemEntropy),
        lifecycle_uid: LifecycleUid::mint(&SystemEntropy),
        predecessor_instance_id: None,
        assignment_revision: 3,
        state: AssignmentState::Assigned,
    };
    let platform = PlatformControl::new(Arc::new(Assigns(Some(assignment.clone()))));
    let service = started(&stage, platform).await;
    assert_eq!(service.platform_control().unwrap().assignment().await, Ok(assignment));
    service.close().await.unwrap();
}

#[tokio::test]
async fn a_hosted_context_keeps_who_its_plane_is_in_the_injected_store() {
    let stage = Stage::start().await;
    let filed = stage.space.state_dir.join("auth-instance.json");
    for _ in 0..2 {
        let service = start_auth_service(stage.inputs()).await.unwrap();
        assert!(!filed.exists());
        service.close().await.unwrap();
    }
    let key = cotal_workspace::instance_identity::auth_instance_key(&stage.space.space);
    let stored = cotal_auth::SecretStore::get(&stage.space.store, &key).await.unwrap();
    assert!(stored.is_some());
}

#[tokio::test]
async fn a_local_primary_without_a_local_manager_refuses_an_unpinned_caller() {
    let stage = Stage::start().await;
    stage.grant_human("alice", "cli", &[], &["general"]);
    let composition = Composition::new().interactive_manager_selection("local-primary");
    let inputs = stage.inputs().composition(composition);
    let service = start_auth_service(inputs).await.unwrap();
    assert_eq!(
        service.interactive_manager_selection(),
        Some(cotal_auth::InteractiveManagerSelection::LocalPrimary)
    );
    let mut body = stage.human("alice", "cli");
    body["view"] = json!("manager-caller");
    let (status, answer) = stage.exchange(&service, &body).await;
    assert_eq!(status, 401, "{answer}");
    let (status, answer) = stage.exchange(&service, &stage.human("alice", "cli")).await;
    assert_eq!(status, 200, "every other exchange is as it was: {answer}");
    service.close().await.unwrap();
}
