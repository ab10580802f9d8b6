//! One daemon a space.

use std::{sync::Arc, time::Duration};

use cotal_broker::kv::LeaderRead;
use cotal_delivery::{Delivery, DeliveryInputs, Ended, StartRefusal};
use cotal_trust::system::SystemClock;
use cotal_wire::{
    Clock, UnixMillis,
    delivery_admin::{LEASE_KEY, LeaseRow},
};

use crate::house::{House, eventually};

async fn row(house: &House) -> Option<LeaseRow> {
    match house.bucket(&house.names().delivery_bucket()).leader_read(LEASE_KEY).await.unwrap() {
        LeaderRead::Value(entry) => Some(LeaseRow::parse(&entry.value).unwrap()),
        LeaderRead::Absent | LeaderRead::Marker(_) => None,
    }
}

#[tokio::test]
async fn a_second_daemon_is_refused_while_the_first_holds_the_lease() {
    let (_server, house) = House::start().await;
    let first = house.daemon().await;
    let held = row(&house).await.unwrap();
    assert_eq!((held.holder.as_str(), held.ready), (first.holder().key().as_str(), true));
    // The same credential makes no second holder.
    let Err(StartRefusal::LeaseHeld { holder }) = house.try_daemon().await else { panic!("two daemons") };
    assert_eq!(holder, held.holder);

    assert_eq!(first.stop().await, Ended::Stopped);
    assert_eq!(row(&house).await, None, "a daemon that stops gives the lease up");
    let second = house.daemon().await;
    let answer = house.admin().store_identity().await.unwrap();
    assert_eq!((answer.answerer, answer.holds_lease), (second.holder().key(), true));
}

/// A clock that stands still.
#[derive(Debug)]
struct Stopped(UnixMillis);

impl Clock for Stopped {
    fn now_millis(&self) -> UnixMillis {
        self.0
    }
}

/// Their rows say the same: the credential and the millisecond are one.
#[tokio::test]
async fn of_two_daemons_of_one_credential_that_begin_in_one_millisecond_one_holds_the_lease() {
    let (_server, house) = House::start().await;
    let clock = Arc::new(Stopped(SystemClock.now_millis()));
    let start = || Delivery::start(DeliveryInputs { clock: clock.clone(), ..house.inputs() });
    let (first, second) = tokio::join!(start(), start());
    let (held, refused): (Vec<_>, Vec<_>) = [first, second].into_iter().partition(Result::is_ok);
    assert_eq!(held.len(), 1, "two daemons");
    assert!(refused.into_iter().all(|start| matches!(start, Err(StartRefusal::LeaseHeld { .. }))));
    assert!(row(&house).await.unwrap().ready);
}

// #367, #368: a start after a death was refused until a lease had lapsed.
#[tokio::test]
async fn a_dead_holders_lease_lapses_and_is_taken_over() {
    let (_server, mut house) = House::start().await;
    house.lease_ttl(Duration::from_secs(2)).await;
    // A row that a dead process left behind.
    let dead = LeaseRow { holder: "local.dead".into(), since: 1, ready: true };
    let text = String::from_utf8(dead.to_bytes()).unwrap();
    house.put(&house.names().delivery_bucket(), LEASE_KEY, &text).await;
    assert!(
        matches!(house.try_daemon().await, Err(StartRefusal::LeaseHeld { holder }) if holder == "local.dead")
    );
    house.timing.lease_wait = Duration::from_secs(10);
    let daemon = house.daemon().await;
    assert_eq!(row(&house).await.unwrap().holder, daemon.holder().key());
    // It is renewed: well past its life it is still there.
    let since = row(&house).await.unwrap().since;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(row(&house).await.unwrap().since, since);
}

#[tokio::test]
async fn a_daemon_whose_lease_was_taken_ends() {
    let (_server, mut house) = House::start().await;
    house.lease_ttl(Duration::from_secs(2)).await;
    let daemon = house.daemon().await;
    let other = LeaseRow { holder: "local.other".into(), since: 1, ready: true };
    let text = String::from_utf8(other.to_bytes()).unwrap();
    house.put(&house.names().delivery_bucket(), LEASE_KEY, &text).await;
    let Ended::LeaseLost(why) = daemon.ended().await else { panic!("it ended otherwise") };
    assert!(why.contains("local.other"), "{why}");
    assert_eq!(
        row(&house).await.map(|row| row.holder),
        Some("local.other".into()),
        "it is left to its holder"
    );
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_never_written_over() {
    let (_server, mut house) = House::start().await;
    house.lease_ttl(Duration::from_secs(2)).await;
    let bucket = house.names().delivery_bucket();
    house.put(&bucket, LEASE_KEY, "{}").await;
    let refusal = house.try_daemon().await.err().unwrap();
    assert!(refusal.to_string().contains("cannot be read"), "{refusal}");
    eventually("the garbled row lapses", async || house.try_daemon().await.is_ok()).await;
}

#[tokio::test]
async fn a_lease_that_lapsed_is_taken_again_by_its_own_daemon() {
    let (_server, mut house) = House::start().await;
    house.lease_ttl(Duration::from_secs(2)).await;
    let daemon = house.daemon().await;
    house.delete(&house.names().delivery_bucket(), LEASE_KEY).await;
    eventually("it is back", async || {
        row(&house).await.is_some_and(|row| row.holder == daemon.holder().key())
    })
    .await;
}
