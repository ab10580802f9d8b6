//! Re-signed credentials are taken over, and nothing else is.

use cotal_authority::claim_oracle::Verdict;
use cotal_delivery::CredsKind;
use cotal_trust::{
    creds,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Clock, Sha256Hex, Space, UnixSecs,
    delivery_admin::{ExpectedCreds, StoreIdentity},
};
use sha2::{Digest, Sha256};

use crate::house::{House, eventually, principal};

fn fingerprint(text: &str) -> Sha256Hex {
    let jwt = creds::parse(text).unwrap().jwt;
    Sha256Hex::parse(&hex::encode(Sha256::digest(jwt.as_bytes()))).unwrap()
}

fn expecting(delivery: Option<&str>, membership: Option<&str>) -> ExpectedCreds {
    ExpectedCreds { delivery: delivery.map(fingerprint), membership: membership.map(fingerprint) }
}

fn in_secs(secs: u64) -> UnixSecs {
    SystemClock.now_secs().plus(secs)
}

#[tokio::test]
async fn a_daemon_names_its_store_and_adopts_the_generation_that_is_expected() {
    let (_server, house) = House::start().await;
    let daemon = house.daemon().await;
    let admin = house.admin();
    let answer = admin.store_identity().await.unwrap();
    assert_eq!(answer.store, StoreIdentity::Fs { root: "root".into(), id: None });
    assert_eq!((answer.answerer, answer.holds_lease), (daemon.holder().key(), true));

    let idle = admin.reload_creds(&ExpectedCreds::default()).await.unwrap();
    assert_eq!(idle.delivery.skipped.as_deref(), Some("already in use"));
    assert!(!idle.membership.broker_accepted);

    let first = house.store.get(CredsKind::Delivery);
    let renewed = house.resigned(CredsKind::Delivery, in_secs(7_200));
    let refusal = admin.reload_creds(&expecting(Some(&renewed), None)).await.unwrap_err();
    assert!(refusal.message.contains("not of the expected generation"), "{refusal}");

    house.store.put(CredsKind::Delivery, &renewed);
    let rw = house.resigned(CredsKind::MembershipRw, in_secs(7_200));
    house.store.put(CredsKind::MembershipRw, &rw);
    let done = admin.reload_creds(&expecting(Some(&renewed), Some(&rw))).await.unwrap();
    assert_eq!(done.delivery.fingerprint, Some(fingerprint(&renewed)));
    assert!(done.delivery.broker_accepted && done.delivery.skipped.is_none(), "{done:?}");
    assert_eq!(
        (done.membership.fingerprint, done.membership.broker_accepted),
        (Some(fingerprint(&rw)), true)
    );
    let stale = admin.reload_creds(&expecting(Some(&first), None)).await.unwrap_err();
    assert!(stale.message.contains("not of the expected generation"), "{stale}");
}

#[tokio::test]
async fn a_credential_that_the_broker_refuses_or_that_is_anothers_changes_nothing() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let admin = house.admin();
    let good = house.store.get(CredsKind::Delivery);
    for (bad, why) in [
        ("torn".to_owned(), "delivery.creds"),
        (house.delivery_creds(None), "another user"),
        (house.resigned(CredsKind::Delivery, UnixSecs(1)), "has expired"),
        (forged(&house), "does not take"),
    ] {
        house.store.put(CredsKind::Delivery, &bad);
        let refusal = admin.reload_creds(&ExpectedCreds::default()).await.unwrap_err();
        assert!(refusal.message.contains(why), "{refusal} should say {why:?}");
    }
    house.store.put(CredsKind::Delivery, &good);
    assert!(admin.reload_creds(&ExpectedCreds::default()).await.is_ok());
}

/// The same user, signed by a key that the account does not name.
fn forged(house: &House) -> String {
    let broker = &house.trust;
    let space = Space::parse("main").unwrap();
    let stranger = cotal_trust::bundle::SpaceAccount::create(broker, &space, &SystemEntropy, in_secs(0));
    let old = creds::parse(&house.store.get(CredsKind::Delivery)).unwrap();
    let claims = cotal_trust::jwt::UserClaims {
        name: "delivery".into(),
        subject: old.seed.public().clone(),
        issuer_account: house.account.account.public().clone(),
        permissions: cotal_wire::Permissions::default(),
        tags: Vec::new(),
        exp: None,
    };
    let jwt = cotal_trust::jwt::encode_user(&claims, &stranger.data_account().signing, in_secs(0));
    creds::format(&creds::Creds { jwt, seed: old.seed }).to_string()
}

#[tokio::test]
async fn a_credential_that_expires_is_followed_by_the_adopted_one_without_a_restart() {
    let (_server, house) = House::start().await;
    let short = house.resigned(CredsKind::Delivery, in_secs(4));
    house.store.put(CredsKind::Delivery, &short);
    let daemon = house.daemon().await;
    let renewed = house.resigned(CredsKind::Delivery, in_secs(7_200));
    house.store.put(CredsKind::Delivery, &renewed);
    house.admin().reload_creds(&expecting(Some(&renewed), None)).await.unwrap();
    // The broker cuts the first one's session; the next presents the second.
    let expired = in_secs(5);
    eventually("the first has expired", async || SystemClock.now_secs() > expired).await;
    eventually("the rail answers", async || {
        house.admin().principal_liveness(&principal("alice")).await == Verdict::Gone
    })
    .await;
    daemon.stop().await;
}

// #457: a credential that nobody renewed in time.
#[tokio::test]
async fn the_daemon_re_reads_its_store_at_three_quarters_of_the_credentials_life() {
    let (_server, house) = House::start().await;
    let short = house.resigned(CredsKind::Delivery, in_secs(4));
    house.store.put(CredsKind::Delivery, &short);
    let _daemon = house.daemon().await;
    let renewed = house.resigned(CredsKind::Delivery, in_secs(7_200));
    house.store.put(CredsKind::Delivery, &renewed);
    let expired = in_secs(5);
    eventually("the first has expired", async || SystemClock.now_secs() > expired).await;
    eventually("the rail answers", async || {
        house.admin().principal_liveness(&principal("alice")).await == Verdict::Gone
    })
    .await;
}
