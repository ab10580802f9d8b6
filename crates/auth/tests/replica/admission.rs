//! Inputs that are not the space's, and a space that no replica may serve.

use cotal_auth::{
    AuthServiceArgs, CalloutLimits, CalloutReplica, HostedSpace, SpaceAt, StartError,
    admits_service_endpoints,
};
use cotal_wire::EpCode;

use crate::{
    house::{admission, open_admission},
    stage::{Stage, error_of},
    tap::Tap,
};

#[tokio::test]
async fn a_space_that_admits_service_endpoints_is_refused_over_one_connection_that_is_closed_again() {
    let stage = Stage::start().await;
    let (space, url) = (stage.space.space.clone(), stage.space.server.url());
    let store = stage.injected();
    let admits = async || admits_service_endpoints(&space, &url, &*store).await;
    assert!(!admits().await.unwrap());
    open_admission(&stage.rows().await, admission()).await;
    assert!(admits().await.unwrap());

    let tap = Tap::start(stage.space.server.port()).await;
    let refusal = CalloutReplica::start(stage.hosted_dialling(&tap.url())).await.err().unwrap();
    assert!(matches!(refusal, StartError::ServiceEndpoints));
    let dialled: Vec<_> = tap.presented().into_iter().map(|user| user.name).collect();
    assert_eq!(dialled, ["cotal:auth-replica-store:demo"]);

    let args = AuthServiceArgs { callout_only: true, ..AuthServiceArgs::default() };
    let says = error_of(&stage, args).await;
    assert!(says.starts_with("auth-service: this space admits service endpoints"), "{says}");
}

#[tokio::test]
async fn an_admission_that_nobody_can_read_is_an_error_and_no_answer() {
    let mut stage = Stage::start().await;
    let (space, url) = (stage.space.space.clone(), stage.space.server.url());
    let stranger = cotal_wire::Space::parse("stranger").unwrap();
    let missing = admits_service_endpoints(&stranger, &url, &*stage.injected()).await.unwrap_err();
    assert!(missing.to_string().contains("lacks user-auth material (service keys)"), "{missing}");
    let input = admits_service_endpoints(&space, "http://x", &*stage.injected()).await;
    assert!(matches!(input, Err(StartError::Input(_))));

    open_admission(&stage.rows().await, b"{}".to_vec()).await;
    let garbled = admits_service_endpoints(&space, &url, &*stage.injected()).await;
    assert!(
        matches!(&garbled, Err(StartError::Stores(error)) if error.code == EpCode::Internal),
        "{garbled:?}"
    );
    assert!(matches!(CalloutReplica::start(stage.hosted()).await, Err(StartError::Stores(_))));

    stage.space.server.kill();
    let gone = admits_service_endpoints(&space, &url, &*stage.injected()).await;
    assert!(matches!(&gone, Err(StartError::Stores(error)) if error.code == EpCode::Unavailable), "{gone:?}");
}

#[tokio::test]
async fn inputs_that_are_not_this_spaces_are_refused_before_anything_is_dialled() {
    let (stage, other) = (Stage::start().await, Stage::start().await);
    let tap = Tap::start(stage.space.server.port()).await;
    let url = tap.url();
    let refused = async |hosted| CalloutReplica::start(hosted).await.err().unwrap().to_string();
    let with = |context, servers: &str, coordinate: &str| stage.hosted_as(context, servers, coordinate);
    assert!(refused(with(stage.context(), "http://x", "test-store")).await.contains("servers"));
    assert!(refused(with(stage.context(), &url, "other")).await.contains("storeIdentity"));
    assert!(refused(with(other.context(), &url, "test-store")).await.contains("data account"));
    let nothing_at_once = CalloutLimits { max_in_flight: 0, ..CalloutLimits::default() };
    let hosted = stage.hosted_dialling(&url).callout_limits(nothing_at_once);
    assert!(refused(hosted).await.contains("calloutLimits: "));
    let in_dir = |dir: &std::path::Path| {
        let at = SpaceAt::new(stage.space.space.clone(), &url);
        HostedSpace::new(stage.context(), at, stage.injected(), "test-store", dir)
    };
    assert!(refused(in_dir(&stage.space.state_dir.join("nowhere"))).await.contains("actor ledger"));
    assert!(refused(in_dir("".as_ref())).await.contains("stateDir"));
    assert!(tap.presented().is_empty());
}
