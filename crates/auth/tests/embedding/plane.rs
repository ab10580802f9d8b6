//! An authority plane without a service around it.

use std::time::Duration;

use cotal_auth::{
    Actor, AuthAuthorityPlane, Composition, EpCode, LifecycleUid, OpenAuthAuthorityPlaneOptions, Principal,
    SpaceAt, StartError, SystemEntropy, open_auth_authority_plane,
};

use crate::stage::Stage;

async fn opened(stage: &Stage) -> Result<AuthAuthorityPlane, StartError> {
    let root = stage.space.root.space_dir(&stage.space.space);
    let account = stage.space.account.data_account();
    let at = SpaceAt::new(stage.space.space.clone(), stage.space.server.url());
    let options = OpenAuthAuthorityPlaneOptions::new(at, account, root)
        .composition(Composition::new().standing_renewable_ttl_seconds(600))
        .claim_patience(Duration::ZERO);
    open_auth_authority_plane(options).await
}

#[tokio::test]
async fn a_plane_alone_is_claimed_mints_and_is_given_back() {
    let stage = Stage::start().await;
    let plane = opened(&stage).await.unwrap();
    assert_eq!(plane.standing_renewable_ttl_seconds(), 600);
    let (owner, actor) = (stage.owner_of("alice"), Actor::parse("cli").unwrap());
    let uid = LifecycleUid::mint(&SystemEntropy);
    let first = plane.plane().mint_connect_credential(&owner, &actor, &uid).await.unwrap();
    assert_eq!(plane.plane().mint_connect_credential(&owner, &actor, &uid).await.unwrap(), first);

    let refused = opened(&stage).await.err().expect("one process owns a plane");
    let StartError::Plane(refusal) = &refused else { panic!("{refused}") };
    assert_eq!(refusal.details[0]["kind"], "ai.cotal.auth.plane-claim-refused", "{refusal}");

    let clone = plane.clone();
    let (one, two) = tokio::join!(plane.close(), clone.close());
    one.unwrap();
    two.unwrap();
    assert!(plane.closed().await.iter().all(|owned| owned.ended));
    let principal = Principal::new(&owner, actor);
    let refusal = plane.plane().activate_managed(&principal, &uid).await.unwrap_err();
    assert_eq!(refusal.error.code, EpCode::Unavailable);

    let again = opened(&stage).await.expect("the claim was given back");
    drop((plane, clone));
    again.close().await.unwrap();
}

#[tokio::test]
async fn a_plane_that_is_dropped_is_given_back() {
    let stage = Stage::start().await;
    let plane = opened(&stage).await.unwrap();
    let custody = plane.clone();
    // The last handle closes it; until then a clone is the same plane.
    drop(plane);
    assert!(custody.plane().check_open().is_ok());
    let inner = std::sync::Arc::clone(custody.plane());
    drop(custody);
    while inner.check_open().is_ok() {
        tokio::task::yield_now().await;
    }
    let again = tokio::time::timeout(crate::stage::AT_LAST, async {
        loop {
            if let Ok(plane) = opened(&stage).await {
                return plane;
            }
        }
    });
    again.await.expect("its claim is free again").close().await.unwrap();
}
