//! A broker of every supported version accepts what is minted here: operator, account and user JWTs, in the rendered
//! configuration. `cargo xtask test` runs this file on each version.

use std::sync::Arc;

use cotal_broker::{Connector, Custody, Lifetime, provision};
use cotal_testkit::{
    raw::{ConnectOutcome, RawClient},
    space::TestSpace,
};
use cotal_trust::{
    creds::{self, Creds},
    jwt::{UserClaims, encode_user},
    nkey::Seed,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Clock, Permissions, Rules, grants::infra};

#[tokio::test]
async fn a_broker_accepts_operator_account_and_user_jwts_minted_here() {
    let space = TestSpace::start("minted", "http://127.0.0.1:9/api/auth").await;
    let user = |sign: &Seed<cotal_wire::Account>| {
        let seed = Seed::generate(&SystemEntropy);
        let claims = UserClaims {
            name: "witness".into(),
            subject: seed.public().clone(),
            issuer_account: space.material.data_account.account.clone(),
            permissions: Permissions {
                publish: Rules { allow: vec!["witness.>".into()], deny: vec![] },
                subscribe: Rules { allow: vec!["_INBOX_witness.>".into()], deny: vec![] },
            },
            tags: vec![],
            exp: None,
        };
        creds::format(&Creds { jwt: encode_user(&claims, sign, SystemClock.now_secs()), seed })
    };
    let ours = user(&space.material.data_account.signing);
    let (client, outcome) =
        RawClient::connect(&space.server.url(), Some(&ours), None, Some("witness-1")).await;
    assert_eq!(outcome, ConnectOutcome::Connected);
    let mut client = client.unwrap();
    client.try_publish("witness.a", b"x").await.expect("the JWT's own permissions hold");
    client.try_publish("elsewhere", b"x").await.expect_err("and nothing else does");

    // The broker really verifies: the same user signed by a stranger's key is refused.
    let strangers = user(&Seed::generate(&SystemEntropy));
    let (_, outcome) =
        RawClient::connect(&space.server.url(), Some(&strangers), None, Some("witness-2")).await;
    assert!(matches!(outcome, ConnectOutcome::Refused(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_broker_lets_a_self_minted_provisioner_make_the_space() {
    let space = TestSpace::start("minted", "http://127.0.0.1:9/api/auth").await;
    let connector = Connector::new(
        &space.server.url(),
        space.space.clone(),
        space.material.data_account.clone(),
        Custody::new(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    );
    let token = space.space.token();
    let one_shot = Lifetime::OneShot { ttl_secs: 300, principal: None };
    let provisioner = connector
        .open("cotal:provisioner:minted".into(), &|conn| infra::provisioner(&token, conn), one_shot)
        .await
        .unwrap();
    provision::provision_space(&provisioner, &space.space).await.unwrap();
    provision::provision_space(&provisioner, &space.space).await.expect("a second run changes nothing");
    provisioner.close().await.unwrap();
}
