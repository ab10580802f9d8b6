//! The exact-pool cleaner and the fence after it (contract 07 §6.3 phase 7, §6.4).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cotal_authority::{
    drain::{Cleaned, Drain},
    evict::Evictor,
    failpoint::Failpoint,
};
use cotal_wire::{Command, EpCode, EpError, OpDuty};
use serde_json::json;

use crate::{
    harness::code,
    owing::{CALLER, CALLER_UID, HORIZON, NOW, Owing, PAST, POOL, Witness, endpoint, pool},
};

async fn clean(owing: &Owing, drain: &Drain, evictor: &dyn Evictor) -> Result<Cleaned, EpError> {
    let pools = BTreeSet::from([pool()]);
    let mut cleaned = drain.clean(&owing.retiring, &endpoint(), &pools, evictor).await?;
    Ok(cleaned.remove(&pool()).unwrap())
}

/// An item with its acceptance.
async fn plant(owing: &Owing, id: &str, acceptance: &serde_json::Value) {
    owing.plant_fact(&owing.decision_subject(id), acceptance).await;
    owing.plant_item(id).await;
}

fn expired(owing: &Owing, id: &str) -> serde_json::Value {
    let mut fact = owing.accepted_for_another(id, "pool.builds");
    fact["workExpiry"] = json!(PAST);
    fact
}

fn leased(state: &str, rest: &serde_json::Value) -> String {
    let mut lease = json!({
        "v": 1, "state": state, "sourceSeq": 1, "attempt": 2,
        "worker": { "kind": "agent", "owner": "local", "actor": "worker", "lifecycleUid": CALLER_UID },
        "fencingToken": 2, "leaseDeadline": NOW * 1000 + 5, "workExpiry": HORIZON,
    });
    lease.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    lease.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_brought_to_quiescence_and_both_principals_are_fenced() {
    let owing = Owing::start().await;
    owing.provision_pool(json!({})).await;
    plant(&owing, "settled", &owing.accepted_for_another("settled", "pool.builds")).await;
    owing.plant_fact(&owing.terminal_subject("settled"), &owing.expired("settled")).await;
    plant(&owing, "dead", &expired(&owing, "dead")).await;
    plant(&owing, "ours", &owing.accepted("ours", "pool.builds")).await;
    plant(&owing, "leased", &owing.accepted("leased", "pool.builds")).await;
    owing.world.put(&owing.world.records, &owing.lease_key("leased"), &leased("leased", &json!({}))).await;
    plant(&owing, "committed", &owing.accepted("committed", "pool.builds")).await;
    let committed = json!({ "disposition": "committed", "outcome": { "n": 1 }, "committedTs": 8 });
    owing
        .world
        .put(&owing.world.records, &owing.lease_key("committed"), &leased("settled", &committed))
        .await;

    let evictor = Witness::saying(true);
    let cleaned = clean(&owing, &owing.drain(), &evictor).await.unwrap();
    assert_eq!(cleaned, Cleaned { acked_terminal: 2, settled_expired: 1, settled_retired: 2 });
    for id in ["settled", "dead", "ours", "leased", "committed"] {
        assert_eq!(owing.item(id).await, None, "{id} is acknowledged");
    }
    let terminal = async |id: &str| owing.fact(&owing.terminal_subject(id)).await.unwrap();
    assert_eq!(terminal("settled").await, owing.expired("settled"));
    assert_eq!(terminal("dead").await["workExpiry"], json!(PAST));
    for id in ["ours", "leased"] {
        let fact = terminal(id).await;
        assert_eq!(
            (&fact["disposition"], &fact["opId"], &fact["targetUid"], &fact["ts"]),
            (&json!("retired"), &json!(owing.retiring.op), &json!(owing.retiring.uid), &json!(NOW * 1000))
        );
    }
    assert_eq!(terminal("committed").await["outcome"], json!({ "n": 1 }));
    let lease = owing.world.json(&owing.world.records, &owing.lease_key("leased")).await;
    assert_eq!((&lease["disposition"], &lease["worker"]["actor"]), (&json!("retired"), &json!("worker")));
    let lease = owing.world.json(&owing.world.records, &owing.lease_key("ours")).await;
    assert_eq!((&lease["fencingToken"], lease.get("worker")), (&json!(0), None));
    let both = [OpDuty::Cleaner, OpDuty::Executor].map(|duty| duty.principal(&owing.retiring.op));
    assert_eq!(*evictor.asked.lock(), [BTreeSet::from(both)]);
    owing.assert_all_ended().await;

    assert_eq!(clean(&owing, &owing.drain(), &evictor).await.unwrap(), Cleaned::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cleaning_of_nothing_or_in_haste_is_refused_before_anybody_connects() {
    let owing = Owing::start().await;
    let evictor = Witness::saying(true);
    let none = owing.drain().clean(&owing.retiring, &endpoint(), &BTreeSet::new(), &evictor).await;
    assert_eq!(code(none), EpCode::FailedPrecondition);
    let hasty = owing.drain().with_pace(Duration::from_millis(999), 10);
    assert_eq!(code(clean(&owing, &hasty, &evictor).await), EpCode::FailedPrecondition);
    assert!(evictor.asked.lock().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_of_another_shape_is_not_cleaned_and_the_fence_runs_all_the_same() {
    let owing = Owing::start().await;
    let evictor = Witness::saying(true);
    assert_eq!(code(clean(&owing, &owing.drain(), &evictor).await), EpCode::FailedPrecondition, "absent");
    owing.provision_pool(json!({ "max_deliver": 3 })).await;
    assert_eq!(code(clean(&owing, &owing.drain(), &evictor).await), EpCode::FailedPrecondition);
    assert_eq!(evictor.asked.lock().len(), 2);
    let unproved = Witness::saying(false);
    assert_eq!(code(clean(&owing, &owing.drain(), &unproved).await), EpCode::Unavailable, "the fence first");
    owing.assert_all_ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_that_is_not_verified_fails_a_cleaning_that_succeeded() {
    let owing = Owing::start().await;
    owing.provision_pool(json!({})).await;
    plant(&owing, "ours", &owing.accepted("ours", "pool.builds")).await;
    let refused = clean(&owing, &owing.drain(), &Witness::saying(false)).await.unwrap_err();
    assert_eq!(refused.code, EpCode::Unavailable);
    assert!(refused.message.contains("the witness's note"), "{refused}");
    assert_eq!(owing.item("ours").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_cannot_open_leaves_no_cleaner_behind() {
    let owing = Owing::start().await;
    owing.provision_pool(json!({})).await;
    let mut info = owing.api("STREAM.INFO.KV_cotal_records_demo", &json!({})).await;
    info["config"]["max_msgs"] = json!(1_000_000);
    owing.api("STREAM.UPDATE.KV_cotal_records_demo", &info["config"]).await;
    let evictor = Witness::saying(true);
    assert_eq!(code(clean(&owing, &owing.drain(), &evictor).await), EpCode::FailedPrecondition);
    let cleaner = OpDuty::Cleaner.principal(&owing.retiring.op);
    assert_eq!(*evictor.asked.lock(), [BTreeSet::from([cleaner])]);
    owing.assert_all_ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_item_of_another_target_blocks_and_is_named() {
    let owing = Owing::start().await;
    owing.provision_pool(json!({})).await;
    plant(&owing, "ours", &owing.accepted("ours", "pool.builds")).await;
    plant(&owing, "theirs", &owing.accepted_for_another("theirs", "pool.builds")).await;
    let evictor = Witness::saying(true);
    let refused = clean(&owing, &owing.drain(), &evictor).await.unwrap_err();
    assert_eq!(refused.code, EpCode::Unavailable);
    assert!(refused.message.contains(&owing.item_subject("theirs")), "{refused}");
    assert!(refused.message.contains("after 2 passes"), "{refused}");
    assert!(owing.item("theirs").await.is_some());
    assert_eq!(owing.item("ours").await, None);
    assert_eq!(owing.fact(&owing.terminal_subject("theirs")).await, None);
    assert_eq!(evictor.asked.lock().len(), 1);

    // Its horizon passes, and it blocks no more.
    owing.clock.set(HORIZON / 1000);
    let drain = owing.drain().with_pace(Duration::from_secs(1), 5);
    let cleaned = clean(&owing, &drain, &evictor).await.unwrap();
    assert_eq!(cleaned, Cleaned { settled_expired: 1, ..Cleaned::default() });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_rests_on_nothing_is_internal_and_stays() {
    let mut owing = Owing::start().await;
    let stream = "EPW_demo";
    for n in 0..6 {
        owing.renew();
        owing.provision_pool(json!({})).await;
        let id = "a";
        match n {
            0 => owing.plant_item(id).await,
            1 => plant(&owing, id, &owing.rejected(id)).await,
            2 => plant(&owing, id, &owing.accepted(id, "effects")).await,
            3 => owing.plant_item_at("cotal.demo.epw.com_x.builds.too.short").await,
            4 => {
                let stranger = format!("cotal.demo.epw.com_x.builds.nobody.caller.{CALLER_UID}.r1");
                owing.plant_item_at(&stranger).await;
            }
            _ => {
                plant(&owing, id, &owing.accepted(id, "pool.builds")).await;
                owing.plant_fact(&owing.terminal_subject(id), &owing.expired("another")).await;
            }
        }
        let refused = clean(&owing, &owing.drain(), &Witness::saying(true)).await;
        assert_eq!(code(refused), EpCode::Internal, "{n}");
        let purged = owing.api(&format!("STREAM.PURGE.{stream}"), &json!({})).await;
        assert_eq!(purged["purged"], 1, "{n}: the item stayed");
        owing.api(&format!("CONSUMER.DELETE.{stream}.pool_com_x_{POOL}"), &json!({})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_its_acceptance_does_not_allow_is_refused() {
    use EpCode::{Conflict, FailedPrecondition, Internal, PermissionDenied};

    let mut owing = Owing::start().await;
    owing.provision_pool(json!({})).await;
    let records = owing.world.records.clone();
    let mut refusals = Vec::new();
    for n in 0..5 {
        owing.renew();
        let (id, key) = ("a", owing.lease_key("a"));
        match n {
            // Accepted for another pool than the one that it lies in.
            0 => plant(&owing, id, &owing.accepted(id, "pool.tests")).await,
            // Our incarnation under another name.
            1 => {
                let mut fact = owing.accepted(id, "pool.builds");
                fact["target"]["actor"] = json!("carol");
                fact["request"]["target"]["actor"] = json!("carol");
                plant(&owing, id, &fact).await;
            }
            2 => {
                plant(&owing, id, &owing.accepted(id, "pool.builds")).await;
                let lease = leased("leased", &json!({ "workExpiry": HORIZON + 1 }));
                owing.world.put(&records, &key, &lease).await;
            }
            3 => {
                plant(&owing, id, &owing.accepted(id, "pool.builds")).await;
                owing.world.put(&records, &key, "{}").await;
            }
            _ => {
                plant(&owing, id, &owing.accepted(id, "pool.builds")).await;
                owing.world.delete(&records, &key).await;
            }
        }
        refusals.push(code(clean(&owing, &owing.drain(), &Witness::saying(true)).await));
        assert!(owing.item(id).await.is_some());
        assert_eq!(owing.fact(&owing.terminal_subject(id)).await, None);
        owing.api("STREAM.PURGE.EPW_demo", &json!({})).await;
    }
    assert_eq!(refusals, [PermissionDenied, PermissionDenied, Conflict, Internal, FailedPrecondition]);
}

/// Starts a cleaning and waits until it is held after its `nth` write.
async fn held(
    owing: &Owing,
    nth: usize,
) -> (Arc<Failpoint>, tokio::task::JoinHandle<Result<Cleaned, EpError>>) {
    let failpoint = Failpoint::stop_after(nth);
    let drain = owing.watched(&failpoint);
    let retiring = owing.retiring.clone();
    let cleaning = tokio::spawn(async move {
        let pools: BTreeSet<Command> = [pool()].into();
        let cleaned = drain.clean(&retiring, &endpoint(), &pools, &Witness::saying(true)).await?;
        Ok(cleaned[&pool()])
    });
    failpoint.reached().await;
    (failpoint, cleaning)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cleaning_that_dies_after_any_write_is_finished_by_the_next() {
    let mut owing = Owing::start().await;
    owing.provision_pool(json!({})).await;
    for nth in 1..=4 {
        owing.renew();
        plant(&owing, "ours", &owing.accepted("ours", "pool.builds")).await;
        plant(&owing, "dead", &expired(&owing, "dead")).await;
        let (_failpoint, cleaning) = held(&owing, nth).await;
        cleaning.abort();
        assert!(cleaning.await.unwrap_err().is_cancelled());
        let drain = owing.drain().with_pace(Duration::from_secs(1), 5);
        clean(&owing, &drain, &Witness::saying(true)).await.unwrap();
        for (id, disposition) in [("ours", "retired"), ("dead", "expired")] {
            assert_eq!(owing.item(id).await, None, "{nth}");
            let fact = owing.fact(&owing.terminal_subject(id)).await.unwrap();
            assert_eq!(fact["disposition"], disposition);
            assert_eq!(fact["ts"], json!(NOW * 1000));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_cleaning_of_one_operation_is_refused_while_the_first_runs() {
    let owing = Owing::start().await;
    owing.provision_pool(json!({})).await;
    plant(&owing, "ours", &owing.accepted("ours", "pool.builds")).await;
    let failpoint = Failpoint::stop_after(1);
    let drain = owing.watched(&failpoint);
    let (first, retiring) = (drain.clone(), owing.retiring.clone());
    let cleaning = tokio::spawn(async move {
        first.clean(&retiring, &endpoint(), &[pool()].into(), &Witness::saying(true)).await
    });
    failpoint.reached().await;
    let evictor = Witness::saying(true);
    assert_eq!(code(clean(&owing, &drain, &evictor).await), EpCode::FailedPrecondition);
    assert!(evictor.asked.lock().is_empty(), "the first one's connections are not the second's to end");
    failpoint.release();
    cleaning.await.unwrap().unwrap();
    assert_eq!(clean(&owing, &drain, &evictor).await.unwrap(), Cleaned::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_landed_first_stands_when_the_lease_says_the_same() {
    let mut owing = Owing::start().await;
    owing.provision_pool(json!({})).await;
    for same in [true, false] {
        owing.renew();
        plant(&owing, "ours", &owing.accepted("ours", "pool.builds")).await;
        // Held after the lease is settled, before the terminal is written.
        let (failpoint, cleaning) = held(&owing, 1).await;
        let caller = CALLER.split_once('.').unwrap();
        let theirs = json!({
            "ts": NOW * 1000, "v": 1, "disposition": "retired", "pool": POOL,
            "caller": { "owner": caller.0, "actor": caller.1, "uid": CALLER_UID, "id": owing.id("ours") },
            "targetUid": owing.retiring.uid, "opId": owing.retiring.op,
        });
        let theirs = if same { theirs } else { owing.expired("ours") };
        owing.plant_fact(&owing.terminal_subject("ours"), &theirs).await;
        failpoint.release();
        let cleaned = cleaning.await.unwrap();
        if same {
            assert_eq!(cleaned.unwrap(), Cleaned { settled_retired: 1, ..Cleaned::default() });
        } else {
            assert_eq!(code(cleaned), EpCode::Internal);
            assert!(owing.item("ours").await.is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn items_of_several_fetches_are_cleaned() {
    let owing = Owing::start().await;
    owing.provision_pool(json!({})).await;
    for n in 0..70 {
        let id = format!("n{n}");
        plant(&owing, &id, &owing.accepted(&id, "pool.builds")).await;
    }
    let cleaned = clean(&owing, &owing.drain(), &Witness::saying(true)).await.unwrap();
    assert_eq!(cleaned, Cleaned { settled_retired: 70, ..Cleaned::default() });
}
