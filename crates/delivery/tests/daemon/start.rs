//! What a daemon refuses to start with, and what it ends with.

use std::time::Duration;

use cotal_delivery::{CredsKind, Ended, StartRefusal};
use cotal_wire::UnixSecs;

use crate::house::{House, Trust};

async fn refused(house: &House) -> String {
    match house.try_daemon().await {
        Err(StartRefusal::Credential(why)) => why,
        Err(other) => panic!("refused otherwise: {other}"),
        Ok(_) => panic!("it started"),
    }
}

#[tokio::test]
async fn a_credential_that_is_missing_torn_expired_or_anothers_refuses_the_start() {
    let (_server, house) = House::start().await;
    let other = Trust::new();
    let elsewhere = House { account: other.account, trust: other.trust, ..copy(&house) };
    for which in [CredsKind::Delivery, CredsKind::MembershipObserver] {
        let good = house.store.get(which);
        house.store.remove(which);
        assert!(refused(&house).await.contains("is missing"), "{which:?}");
        house.store.put(which, &good[..good.len() / 2]);
        assert!(refused(&house).await.starts_with(which.as_str()), "{which:?}");
        let foreign = match which {
            CredsKind::Delivery => elsewhere.delivery_creds(None),
            _ => elsewhere.observer_creds(&elsewhere.trust),
        };
        house.store.put(which, &foreign);
        let why = refused(&house).await;
        assert!(why.contains("another account") || why.contains("does not see"), "{which:?}: {why}");
        house.store.put(which, &good);
    }
    house.store.put(CredsKind::Delivery, &house.delivery_creds(Some(UnixSecs(1))));
    assert!(refused(&house).await.contains("has expired"));
    house.store.put(CredsKind::Delivery, &house.delivery_creds(None));
    house.store.put(CredsKind::ConnectionEvictor, "torn");
    assert!(refused(&house).await.starts_with("connection-evictor.creds"));
    house.store.remove(CredsKind::ConnectionEvictor);
    house.daemon().await.stop().await;
}

/// The same house, to be changed.
fn copy(house: &House) -> House {
    let trust = Trust { trust: house.trust.clone(), account: house.account.clone() };
    House {
        trust: trust.trust,
        account: trust.account,
        space: house.space.clone(),
        store: house.store.clone(),
        urls: house.urls.clone(),
        timing: house.timing,
        connector: house.connector.clone(),
        anything: house.anything.clone(),
    }
}

#[tokio::test]
async fn an_observer_of_a_rotated_system_account_refuses_the_start() {
    let (_server, house) = House::start().await;
    let clock = cotal_wire::Clock::now_secs(&cotal_trust::system::SystemClock);
    let rotated = house.trust.rotate_system_account(&cotal_trust::system::SystemEntropy, clock).unwrap();
    house.store.put(CredsKind::MembershipObserver, &house.observer_creds(&rotated));
    assert!(house.try_daemon().await.is_err());
}

#[tokio::test]
async fn a_daemon_ends_when_its_broker_is_gone_and_rides_out_a_short_absence() {
    let (mut server, mut house) = House::start().await;
    house.timing.broker_probe = Duration::from_millis(200);
    house.timing.broker_gone = Duration::from_secs(3);
    let daemon = house.daemon().await;
    server.restart().await;
    let alice = crate::house::principal("alice");
    crate::house::eventually("the rail answers again", async || {
        house.admin().principal_liveness(&alice).await == cotal_authority::claim_oracle::Verdict::Gone
    })
    .await;
    // The one of the start. What looks at the broker five times a second asks what its grant admits.
    assert!(server.log().matches(".flush.").count() <= 1, "{}", server.log());
    server.kill();
    let Ended::BrokerGone(why) = daemon.ended().await else { panic!("it ended otherwise") };
    assert!(why.contains("has not answered"), "{why}");
}

#[tokio::test]
async fn a_broker_that_hangs_is_gone_too() {
    let (server, mut house) = House::start().await;
    house.timing.broker_probe = Duration::from_millis(200);
    house.timing.broker_gone = Duration::from_secs(1);
    let daemon = house.daemon().await;
    server.pause();
    assert!(matches!(daemon.ended().await, Ended::BrokerGone(_)));
    server.resume();
}
