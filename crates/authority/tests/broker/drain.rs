//! The drain of one endpoint's obligations under a target (contract 07 §14, §8).

use cotal_authority::{
    drain::{Drained, repair_principals},
    failpoint::Failpoint,
};
use cotal_wire::{
    EpCode,
    canonical::is_canonical,
    rows::{Commit, CommitValue},
};
use serde_json::json;

use crate::{
    harness::code,
    owing::{
        CALLER, CALLER_UID, ENDPOINT, FINGERPRINT, NOW, Owing, commit, endpoint, epf, goal_subject, own,
    },
};

fn drained(passes: u32, provisional: u64, own: u64, epf: u64) -> Drained {
    Drained { passes, settled_provisional: provisional, recovered_self: own, reconciled_accepted_epf: epf }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecided_submission_is_rejected_for_good() {
    let owing = Owing::start().await;
    owing.oblige("a", &epf("effects")).await;
    owing.oblige("b", &own(commit("cp.com_x.t.status", 0, "{}"))).await;
    let drain = owing.drain();
    let result = drain.drain(&owing.retiring, &endpoint()).await.unwrap();
    assert_eq!(result, drained(2, 2, 0, 0));
    for id in ["a", "b"] {
        assert_eq!(owing.state(id).await, "rejected");
    }
    let fact = owing.fact(&owing.decision_subject("a")).await.unwrap();
    assert_eq!(fact["error"]["code"], "failed-precondition");
    assert!(fact["error"]["detail"].as_str().unwrap().contains(owing.retiring.uid.as_str()));
    assert_eq!((&fact["fingerprint"], &fact["sourceSeq"]), (&json!(FINGERPRINT), &json!(7)));
    assert_eq!(fact["ts"], json!(NOW * 1000));
    assert_eq!(owing.world.text(&owing.world.records, "cp.com_x.t.status").await, None);
    assert_eq!(drain.drain(&owing.retiring, &endpoint()).await.unwrap(), drained(1, 0, 0, 0));
    owing.assert_all_ended().await;
    let repairers = repair_principals(&owing.retiring.op).map(|p| p.key());
    assert!(repairers[0].starts_with("local.epapl_") && repairers[2].starts_with("local.epcan_"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decided_submission_is_followed_and_its_owed_effect_cancelled() {
    let owing = Owing::start().await;
    for id in ["a", "b"] {
        owing.oblige(id, &epf("effects")).await;
    }
    owing.plant_fact(&owing.decision_subject("a"), &owing.accepted("a", "effects")).await;
    owing.plant_fact(&owing.decision_subject("b"), &owing.rejected("b")).await;
    let result = owing.drain().drain(&owing.retiring, &endpoint()).await.unwrap();
    assert_eq!(result, drained(2, 2, 0, 1));
    assert_eq!((owing.state("a").await, owing.state("b").await), ("accepted".into(), "rejected".into()));
    let effect = owing.fact(&owing.effect_subject("a")).await.unwrap();
    assert_eq!(effect["outcome"], "cancelled");
    assert_eq!(effect["cancelled"]["opId"], json!(owing.retiring.op));
    assert_eq!(effect["cancelled"]["target"]["lifecycleUid"], json!(owing.retiring.uid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_of_another_submission_settles_nothing() {
    let mut owing = Owing::start().await;
    let other = cotal_wire::canonical::VOID_CLOSURE_DIGEST;
    for (accept, pointer, value) in [
        (false, "/fingerprint", json!(other)),
        (false, "/sourceSeq", json!(8)),
        (false, "/route", json!("pool.other")),
        (true, "/fingerprint", json!(other)),
        (true, "/sourceSeq", json!(8)),
        (true, "/id", json!("another")),
        (true, "/caller/lifecycleUid", json!("d".repeat(26))),
    ] {
        owing.renew();
        let row = if accept { epf("effects").accept().unwrap() } else { epf("effects") };
        owing.oblige("a", &row).await;
        let mut fact = owing.accepted("a", "effects");
        *fact.pointer_mut(pointer).unwrap() = value;
        if pointer == "/route" {
            fact["workExpiry"] = json!(9);
        }
        owing.plant_fact(&owing.decision_subject("a"), &fact).await;
        let refused = owing.drain().drain(&owing.retiring, &endpoint()).await;
        assert_eq!(code(refused), EpCode::Internal, "{pointer}");
        assert_eq!(owing.state("a").await, row.state().as_str());
        assert_eq!(owing.fact(&owing.effect_subject("a")).await, None);
    }
    // An accepted row without an acceptance, and one whose submission was rejected.
    for fact in [false, true] {
        owing.renew();
        owing.oblige("a", &epf("effects").accept().unwrap()).await;
        if fact {
            owing.plant_fact(&owing.decision_subject("a"), &owing.rejected("a")).await;
        }
        assert_eq!(code(owing.drain().drain(&owing.retiring, &endpoint()).await), EpCode::Internal);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_commit_has_landed_or_is_applied_or_is_superseded() {
    let owing = Owing::start().await;
    let records = &owing.world.records;
    let policy = "{\"allow\":true}";
    let policy_digest = cotal_wire::canonical::raw_digest(policy.as_bytes());
    let policy_key = format!("policy.com_x.{}", policy_digest.as_str().trim_start_matches("sha256:"));
    owing.world.put(records, &policy_key, policy).await;
    let landed = owing.world.put(records, "cp.com_x.landed.status", "{ \"n\": 1 }").await;
    let based = owing.world.put(records, "cp.com_x.based.spec", "{\"n\":0}").await;
    let moved = owing.world.put(records, "cp.com_x.moved.spec", "{\"n\":0}").await;
    owing.world.put(records, "cp.com_x.moved.spec", "{\"n\":9}").await;
    let goal = format!("goal.com_x.{CALLER}.{CALLER_UID}.g1.status");
    for (id, commit) in [
        ("absent", commit("cp.com_x.fresh.spec", 0, "{\"n\":1}")),
        ("based", commit("cp.com_x.based.spec", based.0, "{\"n\":1}")),
        ("gone", commit("cp.com_x.gone.spec", 5, "{\"n\":1}")),
        ("landed", commit("cp.com_x.landed.status", landed.0, "{\"n\":1}")),
        ("moved", commit("cp.com_x.moved.spec", moved.0, "{\"n\":1}")),
        (
            "policy",
            Commit {
                key: goal.clone(),
                base_revision: 0,
                value: CommitValue::Policy(policy_key),
                digest: policy_digest,
            },
        ),
    ] {
        owing.oblige(id, &own(commit).accept().unwrap()).await;
    }
    let result = owing.drain().drain(&owing.retiring, &endpoint()).await.unwrap();
    assert_eq!(result, drained(2, 0, 6, 0));
    for id in ["absent", "based", "gone", "landed", "moved", "policy"] {
        assert_eq!(owing.state(id).await, "terminal", "{id}");
    }
    for (key, text) in [
        ("cp.com_x.fresh.spec", Some("{\"n\":1}")),
        ("cp.com_x.based.spec", Some("{\"n\":1}")),
        ("cp.com_x.gone.spec", None),
        ("cp.com_x.landed.status", Some("{ \"n\": 1 }")),
        ("cp.com_x.moved.spec", Some("{\"n\":9}")),
        (&goal, Some(policy)),
    ] {
        assert_eq!(owing.world.text(records, key).await.as_deref(), text, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_may_not_be_applied_stays_owed() {
    let mut owing = Owing::start().await;
    let head = "lifecycle.local.eve";
    let policy = CommitValue::Policy(format!("policy.com_x.{}", "a".repeat(64)));
    let honest = commit("cp.com_x.t.spec", 0, "{}");
    for (commit, want) in [
        (commit(head, 0, "{}"), EpCode::PermissionDenied),
        (commit("svc.com_x.i.status", 0, "{}"), EpCode::PermissionDenied),
        (commit("cp.com_x.*.spec", 0, "{}"), EpCode::PermissionDenied),
        (commit("cp.com_x.t.value", 0, "{}"), EpCode::PermissionDenied),
        (Commit { value: CommitValue::Inline(b"[]".to_vec()), ..honest.clone() }, EpCode::Internal),
        (Commit { value: policy, ..honest.clone() }, EpCode::Internal),
    ] {
        owing.renew();
        owing.oblige("a", &own(commit.clone()).accept().unwrap()).await;
        let refused = owing.drain().drain(&owing.retiring, &endpoint()).await;
        assert_eq!(code(refused), want, "{commit:?}");
        assert_eq!(owing.state("a").await, "accepted");
    }
    assert_eq!(owing.world.text(&owing.world.records, head).await, None);

    owing.renew();
    owing.world.put(&owing.world.records, "cp.com_x.bad.spec", "not json").await;
    owing.oblige("a", &own(commit("cp.com_x.bad.spec", 1, "{}")).accept().unwrap()).await;
    assert_eq!(code(owing.drain().drain(&owing.retiring, &endpoint()).await), EpCode::Internal);
    owing.assert_all_ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_effects_are_left_when_complete_and_cancelled_when_not() {
    let owing = Owing::start().await;
    let goal = |id: &str, goal: &str| {
        let mut fact = owing.accepted(id, "effects");
        fact["request"]["goalId"] = json!(goal);
        fact
    };
    let nothing = cotal_wire::canonical::contract_digest(&serde_json::Value::Null).unwrap();
    let reached = json!({
        "v": 1, "goalId": "reached", "fingerprint": FINGERPRINT, "state": "succeeded", "outcomeDigest": nothing, "ts": 1,
    });
    for (id, fact) in [
        ("ran", owing.accepted("ran", "effects")),
        ("owed", owing.accepted("owed", "effects")),
        ("goal-done", goal("goal-done", "reached")),
        ("goal-owed", goal("goal-owed", "missed")),
    ] {
        owing.oblige(id, &epf("effects").accept().unwrap()).await;
        owing.plant_fact(&owing.decision_subject(id), &fact).await;
    }
    owing.plant_fact(&owing.effect_subject("ran"), &owing.ran("ran")).await;
    owing.plant_fact(&goal_subject("reached"), &reached).await;
    let result = owing.drain().drain(&owing.retiring, &endpoint()).await.unwrap();
    assert_eq!(result, drained(1, 0, 0, 4));
    assert_eq!(owing.fact(&owing.effect_subject("ran")).await.unwrap()["outcome"], "ran");
    assert_eq!(owing.fact(&owing.effect_subject("owed")).await.unwrap()["outcome"], "cancelled");
    assert_eq!(owing.fact(&goal_subject("reached")).await.unwrap()["state"], "succeeded");
    let missed = owing.fact(&goal_subject("missed")).await.unwrap();
    assert_eq!(missed["state"], "cancelled");
    assert_eq!(missed["data"]["cancelledBy"]["opId"], json!(owing.retiring.op));
    assert_eq!(owing.fact(&owing.effect_subject("goal-owed")).await, None);
    assert_eq!(owing.state("owed").await, "accepted", "a route is verified, and stays accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_of_another_target_and_foreign_completions_are_refused() {
    let mut owing = Owing::start().await;
    let untargeted = |owing: &Owing| {
        let mut fact = owing.accepted("a", "effects");
        fact.as_object_mut().unwrap().remove("target");
        fact["request"].as_object_mut().unwrap().remove("target");
        fact
    };
    for (n, want) in [(0, EpCode::PermissionDenied), (1, EpCode::FailedPrecondition), (2, EpCode::Internal)] {
        owing.renew();
        owing.oblige("a", &epf("effects").accept().unwrap()).await;
        let fact = match n {
            0 => untargeted(&owing),
            1 => owing.accepted_for_another("a", "effects"),
            _ => owing.accepted("a", "effects"),
        };
        owing.plant_fact(&owing.decision_subject("a"), &fact).await;
        if n == 2 {
            let mut foreign = owing.ran("a");
            foreign["sourceSeq"] = json!(8);
            owing.plant_fact(&owing.effect_subject("a"), &foreign).await;
        }
        assert_eq!(code(owing.drain().drain(&owing.retiring, &endpoint()).await), want);
        if n < 2 {
            assert_eq!(owing.fact(&owing.effect_subject("a")).await, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_pool_work_is_settled_or_alive_or_enqueued_again() {
    let owing = Owing::start().await;
    for id in ["settled", "alive", "lost"] {
        owing.oblige(id, &epf("pool.builds").accept().unwrap()).await;
        owing.plant_fact(&owing.decision_subject(id), &owing.accepted(id, "pool.builds")).await;
    }
    owing.plant_fact(&owing.terminal_subject("settled"), &owing.expired("settled")).await;
    owing.plant_item("alive").await;
    let result = owing.drain().drain(&owing.retiring, &endpoint()).await.unwrap();
    assert_eq!(result, drained(1, 0, 0, 3));
    assert_eq!(owing.item("settled").await, None);
    assert_eq!(owing.item("alive").await.unwrap(), "{}");
    let item = owing.item("lost").await.unwrap();
    assert!(is_canonical(&item));
    let item: serde_json::Value = serde_json::from_slice(&item).unwrap();
    assert_eq!(item["request"]["id"], json!(owing.id("lost")));
    assert_eq!((item["sourceSeq"].as_u64(), item.as_object().unwrap().len()), (Some(7), 7));

    owing.oblige("garbled", &epf("pool.builds").accept().unwrap()).await;
    owing.plant_fact(&owing.decision_subject("garbled"), &owing.accepted("garbled", "pool.builds")).await;
    owing.plant_fact(&owing.terminal_subject("garbled"), &owing.expired("another")).await;
    assert_eq!(code(owing.drain().drain(&owing.retiring, &endpoint()).await), EpCode::Internal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_refuses_before_anything_moves() {
    let mut owing = Owing::start().await;
    let records = owing.world.records.clone();
    for (n, want) in [(0, EpCode::FailedPrecondition), (1, EpCode::Internal), (2, EpCode::PermissionDenied)] {
        owing.renew();
        owing.oblige("a", &epf("effects").reject().unwrap()).await;
        let after = owing.key("b");
        match n {
            0 => owing.world.delete(&records, &after).await,
            1 => {
                owing.world.put(&records, &after, "{}").await;
            }
            _ => {
                let text = String::from_utf8(epf("effects").to_bytes()).unwrap();
                owing.world.put(&records, &format!("{after}.more"), &text).await;
            }
        }
        assert_eq!(code(owing.drain().drain(&owing.retiring, &endpoint()).await), want, "{n}");
        assert_eq!(owing.state("a").await, "rejected");
        owing.assert_all_ended().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_endpoints_own_obligations_of_the_target_are_drained() {
    let owing = Owing::start().await;
    let elsewhere = owing.key("a").replace(ENDPOINT, "com_y");
    let others = owing.key("a").replace(owing.retiring.uid.as_str(), &"z".repeat(26));
    let text = String::from_utf8(epf("effects").to_bytes()).unwrap();
    for key in [&elsewhere, &others] {
        owing.world.put(&owing.world.records, key, &text).await;
    }
    assert_eq!(owing.drain().drain(&owing.retiring, &endpoint()).await.unwrap(), drained(1, 0, 0, 0));
    for key in [&elsewhere, &others] {
        assert_eq!(owing.world.json(&owing.world.records, key).await["state"], "provisional");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drifted_records_store_opens_no_mediator() {
    let owing = Owing::start().await;
    let mut info = owing.api("STREAM.INFO.KV_cotal_records_demo", &json!({})).await;
    info["config"]["max_msgs"] = json!(1_000_000);
    owing.api("STREAM.UPDATE.KV_cotal_records_demo", &info["config"]).await;
    let refused = owing.drain().drain(&owing.retiring, &endpoint()).await;
    assert_eq!(code(refused), EpCode::FailedPrecondition);
    owing.assert_all_ended().await;
}

/// One of each: seven writes.
async fn plant_one_of_each(owing: &Owing) {
    owing.oblige("a", &epf("effects")).await;
    owing.oblige("b", &own(commit("cp.com_x.b.spec", 0, "{}"))).await;
    let key = format!("cp.com_x.{}.spec", owing.id("c"));
    owing.oblige("c", &own(commit(&key, 0, "{\"n\":1}")).accept().unwrap()).await;
    owing.oblige("d", &epf("effects").accept().unwrap()).await;
    owing.plant_fact(&owing.decision_subject("d"), &owing.accepted("d", "effects")).await;
    owing.oblige("e", &epf("pool.builds").accept().unwrap()).await;
    owing.plant_fact(&owing.decision_subject("e"), &owing.accepted("e", "pool.builds")).await;
}

async fn assert_one_of_each_is_drained(owing: &Owing) {
    let states =
        [("a", "rejected"), ("b", "rejected"), ("c", "terminal"), ("d", "accepted"), ("e", "accepted")];
    for (id, state) in states {
        assert_eq!(owing.state(id).await, state, "{id}");
    }
    let key = format!("cp.com_x.{}.spec", owing.id("c"));
    assert_eq!(owing.world.text(&owing.world.records, &key).await.unwrap(), "{\"n\":1}");
    assert_eq!(owing.fact(&owing.decision_subject("a")).await.unwrap()["decision"], "rejected");
    assert_eq!(owing.fact(&owing.effect_subject("d")).await.unwrap()["outcome"], "cancelled");
    assert!(owing.item("e").await.is_some());
}

const WRITES: usize = 7;

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_dies_after_any_write_is_finished_by_the_next() {
    let mut owing = Owing::start().await;
    let journal = Failpoint::journal();
    plant_one_of_each(&owing).await;
    owing.watched(&journal).drain(&owing.retiring, &endpoint()).await.unwrap();
    assert_one_of_each_is_drained(&owing).await;
    assert_eq!(
        journal.landed(),
        [
            owing.decision_subject("a"),
            owing.key("a"),
            owing.key("b"),
            format!("cp.com_x.{}.spec", owing.id("c")),
            owing.key("c"),
            owing.effect_subject("d"),
            owing.item_subject("e"),
        ]
    );
    for nth in 1..=WRITES {
        owing.renew();
        plant_one_of_each(&owing).await;
        let failpoint = Failpoint::stop_after(nth);
        let drain = owing.watched(&failpoint);
        let retiring = owing.retiring.clone();
        let held = tokio::spawn(async move { drain.drain(&retiring, &endpoint()).await });
        failpoint.reached().await;
        held.abort();
        assert!(held.await.unwrap_err().is_cancelled());
        owing.drain().drain(&owing.retiring, &endpoint()).await.unwrap();
        assert_one_of_each_is_drained(&owing).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_unavailable_and_found_by_the_next() {
    let mut owing = Owing::start().await;
    for nth in 1..=WRITES {
        owing.renew();
        plant_one_of_each(&owing).await;
        let drain = owing.watched(&Failpoint::forget_answer_of(nth));
        assert_eq!(code(drain.drain(&owing.retiring, &endpoint()).await), EpCode::Unavailable, "{nth}");
        drain.drain(&owing.retiring, &endpoint()).await.unwrap();
        assert_one_of_each_is_drained(&owing).await;
        owing.assert_all_ended().await;
    }
}

/// Holds a drain after its first write, lets `meanwhile` move a row that was enumerated before, and goes on.
async fn race(owing: &Owing, meanwhile: impl AsyncFnOnce()) -> Result<Drained, cotal_wire::EpError> {
    let failpoint = Failpoint::stop_after(1);
    let drain = owing.watched(&failpoint);
    let retiring = owing.retiring.clone();
    let held = tokio::spawn(async move { drain.drain(&retiring, &endpoint()).await });
    failpoint.reached().await;
    meanwhile().await;
    failpoint.release();
    held.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_another_writer_settles_meanwhile_is_settled() {
    let mut owing = Owing::start().await;
    let first = own(commit("cp.com_x.z.spec", 0, "{}"));

    // Provisional, and accepted meanwhile: its commit is then recovered.
    let key = format!("cp.com_x.{}.spec", owing.id("b"));
    let second = own(commit(&key, 0, "{\"n\":1}"));
    owing.oblige("a", &first).await;
    owing.oblige("b", &second).await;
    let accepted = second.clone().accept().unwrap();
    let result = race(&owing, async || {
        owing.oblige("b", &accepted).await;
    })
    .await
    .unwrap();
    assert_eq!(result, drained(3, 2, 1, 0));
    assert_eq!(owing.world.text(&owing.world.records, &key).await.unwrap(), "{\"n\":1}");

    // Provisional, and rewritten as provisional: nobody settled it.
    owing.renew();
    owing.oblige("a", &first).await;
    owing.oblige("b", &first).await;
    let result = race(&owing, async || {
        owing.oblige("b", &first).await;
    })
    .await;
    assert_eq!(code(result), EpCode::Conflict);

    // Accepted with its commit, and ended, or rewritten, meanwhile.
    for ended in [true, false] {
        owing.renew();
        let accepted = own(commit("cp.com_x.z.spec", 9, "{}")).accept().unwrap();
        owing.oblige("a", &first).await;
        owing.oblige("b", &accepted).await;
        let next = if ended { accepted.clone().terminate().unwrap() } else { accepted.clone() };
        race(&owing, async || {
            owing.oblige("b", &next).await;
        })
        .await
        .unwrap();
        assert_eq!(owing.state("b").await, "terminal");
    }

    // Accepted, and no longer so: an impossible move.
    owing.renew();
    let accepted = own(commit("cp.com_x.z.spec", 9, "{}")).accept().unwrap();
    owing.oblige("a", &first).await;
    owing.oblige("b", &accepted).await;
    let back = own(commit("cp.com_x.z.spec", 9, "{}"));
    assert_eq!(
        code(
            race(&owing, async || {
                owing.oblige("b", &back).await;
            })
            .await
        ),
        EpCode::Internal
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_never_settled_against_its_fact() {
    let mut owing = Owing::start().await;
    for (meanwhile, ok) in
        [(epf("effects").reject().unwrap(), true), (epf("effects").accept().unwrap(), false)]
    {
        owing.renew();
        owing.oblige("a", &epf("effects")).await;
        // The first write is the rejection fact.
        let result = race(&owing, async || {
            owing.oblige("a", &meanwhile).await;
        })
        .await;
        if ok {
            assert_eq!(result.unwrap().settled_provisional, 1);
        } else {
            assert_eq!(code(result), EpCode::Internal);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_that_is_decided_meanwhile_follows_its_decision() {
    let owing = Owing::start().await;
    owing.oblige("a", &own(commit("cp.com_x.z.spec", 0, "{}"))).await;
    owing.oblige("b", &epf("effects")).await;
    let result = race(&owing, async || {
        owing.plant_fact(&owing.decision_subject("b"), &owing.accepted("b", "effects")).await;
    })
    .await
    .unwrap();
    assert_eq!(result, drained(2, 2, 0, 1));
    assert_eq!(owing.state("b").await, "accepted");
}
