//! Deprovisioning over a real broker, with the durables and rows that an agent leaves (contract 07 §13).

use std::time::Duration;

use cotal_authority::deprovision::{
    AclFence, ConsumerCounts, DeprovisionError, Deprovisioned, Footprint, RowCounts, deprovision_agent,
    deprovision_over, fence_lifecycle_acl,
};
use cotal_broker::{
    Lifetime, durable,
    kv::{Bucket, LeaderRead},
    provision::provision_space,
};
use cotal_trust::system::SystemClock;
use cotal_wire::{
    Channel, ConnId, EpCode, InfraRole, LifecycleUid, Names,
    grants::issued::{self, Ended},
    names::{dlv_consumer, dm_consumer, lifecycle_subject_key, member_key},
};
use serde_json::{Value, json};

use crate::{
    harness::{TestClock, World, eventually, principal, uid},
    tap::{Stop, Tap},
};

const CHANNELS: [&str; 2] = ["general", "team.backend"];

struct House {
    world: World,
    names: Names,
    acl: Bucket,
    members: Bucket,
}

impl House {
    async fn start() -> Self {
        let world = World::start().await;
        provision_space(&world.anything, &world.space).await.unwrap();
        let names = Names::new(&world.space.token());
        let acl = Bucket::new(&world.anything, &names.acl_bucket());
        let members = Bucket::new(&world.anything, &names.members_bucket());
        Self { world, names, acl, members }
    }

    async fn api(&self, verb: &str, body: &Value) -> Value {
        let subject = format!("$JS.API.{verb}");
        let answer = self
            .world
            .anything
            .request(&subject, &[], body.to_string().into(), Duration::from_secs(10))
            .await
            .unwrap();
        serde_json::from_slice(&answer.payload).unwrap()
    }

    fn durables(&self, uid: &LifecycleUid) -> [(String, String); 2] {
        [
            (self.names.dm_stream(), dm_consumer(&principal("alice"), uid)),
            (self.names.dlv_stream(), dlv_consumer(&principal("alice"), uid)),
        ]
    }

    /// Everything that an agent leaves: both durables, its ACL row, and its memberships.
    async fn plant(&self, uid: &LifecycleUid) {
        for (stream, name) in self.durables(uid) {
            let config = json!({ "durable_name": name, "ack_policy": "explicit" });
            let body = json!({ "stream_name": stream, "config": config });
            let answer = self.api(&format!("CONSUMER.DURABLE.CREATE.{stream}.{name}"), &body).await;
            assert_eq!(answer.get("error"), None, "{answer}");
        }
        let acl = "{\"allowSubscribe\":[\"general\"],\"revision\":3,\"updatedAt\":9}";
        self.world.put(&self.acl, &acl_key(uid), acl).await;
        for channel in CHANNELS {
            self.world.put(&self.members, &member(channel, uid), "{}").await;
        }
    }

    /// Which of the five parts still stand: ACL, DM, DLV, memberships.
    async fn stands(&self, uid: &LifecycleUid) -> Vec<bool> {
        let mut stands = vec![self.world.text(&self.acl, &acl_key(uid)).await.is_some()];
        for (stream, name) in self.durables(uid) {
            stands.push(durable::exists(&self.world.anything, &stream, &name).await.unwrap());
        }
        for channel in CHANNELS {
            stands.push(self.world.text(&self.members, &member(channel, uid)).await.is_some());
        }
        stands
    }

    /// No deprovisioner connection is left.
    async fn drained(&self) {
        let label = InfraRole::DEPROVISIONER.label(&self.world.space);
        eventually("the deprovisioner connections have ended", async || {
            self.world.custody.connections().iter().all(|row| row.label != label || row.ended)
        })
        .await;
    }
}

fn acl_key(uid: &LifecycleUid) -> String {
    lifecycle_subject_key(&principal("alice"), uid)
}

fn member(channel: &str, uid: &LifecycleUid) -> String {
    member_key(&Channel::parse(channel).unwrap(), &principal("alice"), uid)
}

fn footprint(uid: &LifecycleUid, channels: &[&str]) -> Footprint {
    let channels = channels.iter().map(|channel| Channel::parse(channel).unwrap());
    Footprint::new(principal("alice"), uid.clone(), channels)
}

fn rows(examined: u64) -> RowCounts {
    RowCounts { examined, ..RowCounts::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_of_one_lifecycle_goes_and_a_repeat_deletes_nothing() {
    let house = House::start().await;
    let (ended, other) = (uid(), uid());
    house.plant(&ended).await;
    house.plant(&other).await;
    let footprint = footprint(&ended, &CHANNELS);

    let account = deprovision_agent(&house.world.connector, &footprint).await.unwrap();
    assert_eq!(
        account,
        Deprovisioned {
            consumers: ConsumerCounts { examined: 2, acknowledged: 2, disappeared: 2, ..Default::default() },
            acls: RowCounts { deleted: 1, ..rows(1) },
            members: RowCounts { deleted: 2, ..rows(2) },
        }
    );
    assert_eq!((account.deleted(), account.examined(), account.refused()), (None, 5, 0));
    assert_eq!(house.stands(&ended).await, [false; 5]);
    assert_eq!(house.stands(&other).await, [true; 5], "another incarnation of the same actor");

    let again = deprovision_agent(&house.world.connector, &footprint).await.unwrap();
    assert_eq!(
        again,
        Deprovisioned {
            consumers: ConsumerCounts { examined: 2, absent: 2, ..Default::default() },
            acls: RowCounts { absent: 1, ..rows(1) },
            members: RowCounts { absent: 2, ..rows(2) },
        }
    );
    assert_eq!((again.deleted(), again.absent()), (Some(0), 5));
    house.drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lifecycle_without_memberships_needs_no_members_bucket() {
    let house = House::start().await;
    let ended = uid();
    house.plant(&ended).await;
    let stream = Names::kv_stream(house.members.name());
    house.api(&format!("STREAM.DELETE.{stream}"), &json!({})).await;
    deprovision_agent(&house.world.connector, &footprint(&ended, &[])).await.unwrap();

    let error = deprovision_agent(&house.world.connector, &footprint(&ended, &CHANNELS)).await.unwrap_err();
    assert_eq!(error.account.members, RowCounts { refused: 2, ..rows(2) });
    assert_eq!(error.account.refused(), 2, "the rest was examined all the same");
    assert_eq!(error.account.absent(), 3);
    assert!(error.to_string().contains("2 of 5 parts"), "{error}");
    house.drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_narrows_the_acl_once_and_writes_no_row_that_is_not_there() {
    let house = House::start().await;
    let (ended, nobody) = (uid(), uid());
    house.plant(&ended).await;
    let fence = async |uid: &LifecycleUid| {
        fence_lifecycle_acl(&house.world.connector, &*TestClock::at(10), &principal("alice"), uid)
            .await
            .unwrap()
    };
    assert_eq!(fence(&ended).await, AclFence::Narrowed);
    let row = house.world.text(&house.acl, &acl_key(&ended)).await.unwrap();
    assert_eq!(row, "{\"allowSubscribe\":[],\"revision\":4,\"updatedAt\":10000}");
    assert_eq!(fence(&ended).await, AclFence::Stood);
    assert_eq!(fence(&nobody).await, AclFence::Absent);
    assert_eq!(house.acl.leader_read(&acl_key(&nobody)).await.unwrap(), LeaderRead::Absent);
    assert_eq!(house.stands(&ended).await, [true; 5], "a fence removes nothing");

    house.world.put(&house.acl, &acl_key(&nobody), "garbled").await;
    assert_eq!(fence(&nobody).await, AclFence::Narrowed);
    let row = house.world.text(&house.acl, &acl_key(&nobody)).await.unwrap();
    assert_eq!(row, "{\"allowSubscribe\":[],\"revision\":1,\"updatedAt\":10000}");

    // What the fence narrowed is a live row for the removal that follows.
    let account = deprovision_agent(&house.world.connector, &footprint(&ended, &CHANNELS)).await.unwrap();
    assert_eq!(account.acls, RowCounts { deleted: 1, ..rows(1) });
    assert_eq!(fence(&ended).await, AclFence::Absent, "a marker is no row");
    house.drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_removes_in_between_has_disappeared_and_is_no_deletion() {
    let house = House::start().await;
    let tap = Tap::before(house.world.server.port()).await;
    let connector = house.world.connector_at(tap.url());
    let ended = uid();

    // Between INFO and DELETE of the unicast durable.
    house.plant(&ended).await;
    tap.stop("CONSUMER.DELETE.DM_", Stop::Before);
    let races = async {
        tap.reached().await;
        let [(stream, name), _] = house.durables(&ended);
        assert_eq!(
            durable::remove(&house.world.anything, &stream, &name).await.unwrap(),
            durable::Removal::Acknowledged
        );
        tap.release();
    };
    let all = footprint(&ended, &CHANNELS);
    let (account, ()) = tokio::join!(deprovision_agent(&connector, &all), races);
    let consumers = ConsumerCounts { examined: 2, acknowledged: 1, disappeared: 2, ..Default::default() };
    assert_eq!(account.unwrap().consumers, consumers);

    // Between the read of a row and its purge, a competing purge.
    for (key, bucket) in [(acl_key(&ended), &house.acl), (member("general", &ended), &house.members)] {
        house.plant(&ended).await;
        tap.stop(&format!("HPUB $KV.{}.{key} ", bucket.name()), Stop::Before);
        let races = async {
            tap.reached().await;
            house.world.delete(bucket, &key).await;
            tap.release();
        };
        let (account, ()) = tokio::join!(deprovision_agent(&connector, &all), races);
        let account = account.unwrap();
        let (counts, deleted) = if bucket.name() == house.acl.name() {
            (account.acls, RowCounts { disappeared: 1, ..rows(1) })
        } else {
            (account.members, RowCounts { deleted: 1, disappeared: 1, ..rows(2) })
        };
        assert_eq!(counts, deleted, "{key}");
        assert_eq!(house.stands(&ended).await, [false; 5]);
    }
    house.drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_written_anew_refuses_and_behind_a_live_acl_nothing_is_touched() {
    let house = House::start().await;
    let tap = Tap::before(house.world.server.port()).await;
    let connector = house.world.connector_at(tap.url());
    let ended = uid();
    house.plant(&ended).await;
    let all = footprint(&ended, &CHANNELS);

    let key = acl_key(&ended);
    tap.stop(&format!("HPUB $KV.{}.{key} ", house.acl.name()), Stop::Before);
    let races = async {
        tap.reached().await;
        house
            .world
            .put(&house.acl, &key, "{\"allowSubscribe\":[\"x\"],\"revision\":9,\"updatedAt\":9}")
            .await;
        tap.release();
    };
    let (refused, ()) = tokio::join!(deprovision_agent(&connector, &all), races);
    let DeprovisionError { account, cause } = refused.unwrap_err();
    let account = *account;
    assert_eq!(cause.code, EpCode::Conflict);
    assert_eq!(
        account,
        Deprovisioned {
            consumers: ConsumerCounts { examined: 2, refused: 2, ..Default::default() },
            acls: RowCounts { refused: 1, ..rows(1) },
            members: RowCounts { refused: 2, ..rows(2) },
        }
    );
    assert_eq!((account.deleted(), account.refused()), (Some(0), 5));
    assert_eq!(house.stands(&ended).await, [true; 5]);

    let key = member("general", &ended);
    tap.stop(&format!("HPUB $KV.{}.{key} ", house.members.name()), Stop::Before);
    let races = async {
        tap.reached().await;
        house.world.put(&house.members, &key, "{}").await;
        tap.release();
    };
    let (refused, ()) = tokio::join!(deprovision_agent(&connector, &all), races);
    let account = refused.unwrap_err().account;
    assert_eq!(account.members, RowCounts { deleted: 1, refused: 1, ..rows(2) });
    assert_eq!(house.stands(&ended).await, [false, false, false, true, false]);
    deprovision_agent(&connector, &all).await.unwrap();
    assert_eq!(house.stands(&ended).await, [false; 5], "a repeat finishes it");
    house.drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_removal_is_refused_and_the_rest_goes_on() {
    let house = House::start().await;
    let ended = uid();
    house.plant(&ended).await;
    let space = house.world.space.token();
    let all = footprint(&ended, &CHANNELS);
    let grants = |inbox: &ConnId| {
        let pinned = Ended { principal: principal("alice"), uid: ended.clone() };
        let mut grants = issued::deprovisioner(&space, &pinned, all.member_channels(), inbox);
        grants.publish.allow.retain(|row| !row.contains("CONSUMER.DELETE.DLV"));
        grants
    };
    let lifetime = Lifetime::OneShot { ttl_secs: 60, principal: None };
    let connection =
        house.world.connector.open("cotal:deprovisioner:demo".to_owned(), &grants, lifetime).await.unwrap();
    let DeprovisionError { account, cause } = deprovision_over(&connection, &space, &all).await.unwrap_err();
    assert_eq!(cause.code, EpCode::PermissionDenied);
    let consumers =
        ConsumerCounts { examined: 2, refused: 1, acknowledged: 1, disappeared: 1, ..Default::default() };
    assert_eq!(account.consumers, consumers);
    assert_eq!((account.acls.deleted, account.members.deleted), (1, 2));
    assert_eq!(house.stands(&ended).await, [false, false, true, false, false]);

    // A credential of one lifecycle removes nothing of another.
    let other = uid();
    house.plant(&other).await;
    let foreign = deprovision_over(&connection, &space, &footprint(&other, &CHANNELS)).await.unwrap_err();
    assert_eq!(foreign.account.refused(), 5);
    assert_eq!(house.stands(&other).await, [true; 5]);
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_channels_than_one_credential_can_name_go_all_the_same() {
    let house = House::start().await;
    let ended = uid();
    house.plant(&ended).await;
    let channels: Vec<String> = (0..200).map(|n| format!("team.channel-{n}")).collect();
    for channel in channels.iter().step_by(50) {
        house.world.put(&house.members, &member(channel, &ended), "{}").await;
    }
    let channels: Vec<&str> = channels.iter().map(String::as_str).collect();
    let account = deprovision_agent(&house.world.connector, &footprint(&ended, &channels)).await.unwrap();
    assert_eq!(account.members, RowCounts { deleted: 4, absent: 196, ..rows(200) });
    assert_eq!(account.acls.examined, 1);
    house.drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_broker_is_an_error_with_an_empty_account() {
    let mut house = House::start().await;
    let ended = uid();
    house.world.server.kill();
    let error = deprovision_agent(&house.world.connector, &footprint(&ended, &CHANNELS)).await.unwrap_err();
    assert_eq!(*error.account, Deprovisioned::default());
    assert_eq!(error.cause.code, EpCode::Unavailable);
    let fenced = fence_lifecycle_acl(&house.world.connector, &SystemClock, &principal("alice"), &ended)
        .await
        .unwrap_err();
    assert_eq!(fenced.code, EpCode::Unavailable);
}
