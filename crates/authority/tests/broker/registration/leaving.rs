//! Leaving the registry, and being repaired.

use super::*;

// #529: instances that were gone stayed registered.
#[tokio::test(flavor = "multi_thread")]
async fn a_deregistration_says_which_of_its_ends_it_came_to() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let stores = registry.stores();
    assert_eq!(deregister_instance(stores, &rig.at).await.unwrap(), Deregistration::Absent);
    let own = rig.register_own(&registry).await.unwrap();
    let generation = rig.gate().await["generation"].as_u64().unwrap();
    let slot = |generation: u64| {
        json!({
            "commands": {},
            "provisional": {"instanceId": rig.at.instance, "generation": generation, "commands": {}},
        })
        .to_string()
    };
    rig.world.put(&rig.world.records, &rig.govern_key(), &slot(generation)).await;
    assert_eq!(deregister_instance(stores, &rig.at).await.unwrap(), Deregistration::RegistrationInFlight);
    rig.world.put(&rig.world.records, &rig.govern_key(), &slot(generation + 1)).await;
    assert_eq!(code(deregister_instance(stores, &rig.at).await), EpCode::Unavailable);
    rig.world.put(&rig.world.records, &rig.govern_key(), &slot(generation - 1)).await;

    // Held after its status went, while another writer moves the spec.
    let failpoint = Failpoint::stop_after(1);
    let held = rig.watched(&failpoint).await;
    let (outcome, ()) = tokio::join!(deregister_instance(held.stores(), &rig.at), async {
        failpoint.reached().await;
        let spec = String::from_utf8(rig.spec().to_bytes()).unwrap();
        rig.world.put(&rig.world.records, &rig.spec_key(), &spec).await;
        failpoint.release();
    });
    assert_eq!(outcome.unwrap(), Deregistration::Superseded);

    let removed = deregister_instance(stores, &rig.at).await.unwrap();
    assert!(matches!(removed, Deregistration::Removed { status_revision: None, .. }), "{removed:?}");
    assert_eq!(deregister_instance(stores, &rig.at).await.unwrap(), Deregistration::Absent);
    assert_eq!(rig.gate().await["registrationRevision"].as_u64(), Some(own.registration_revision.0));
    assert_eq!(code(grant(&rig, &registry, 0).await), EpCode::FailedPrecondition);
    let next = rig.register_own(&registry).await.unwrap();
    assert_eq!(next.epoch, 1, "a tombstone counts as prior, and is written over");
    let removed = deregister_instance(stores, &rig.at).await.unwrap();
    assert!(matches!(removed, Deregistration::Removed { status_revision: Some(_), .. }), "{removed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_refuses_by_condition_and_changes_nothing_before_its_holder_is_gone() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let sweeper = Sweeper::thorough();
    let _provisioned = rig.world.stores().await;
    assert_eq!(condition(repair(&registry, &rig.at, Liveness::Gone, &sweeper).await), "no-gate");
    rig.ready(&registry).await;
    assert_eq!(condition(repair(&registry, &rig.at, Liveness::Gone, &sweeper).await), "not-frozen");
    let held = |kind: &str| format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"{kind}\"}}", "f".repeat(26));
    rig.plant_gate("frozen", 3, 0, &held("takeover")).await;
    assert_eq!(condition(repair(&registry, &rig.at, Liveness::Gone, &sweeper).await), "wrong-op-kind");
    rig.plant_gate("frozen", 3, 0, &held("registration")).await;
    rig.plant_credential("c1", &principal("a")).await;
    rig.plant_credential("c2", &principal("b")).await;
    for (liveness, want) in [
        (Liveness::Live, "holder-alive"),
        (Liveness::Unknown, "holder-unknown"),
        (Liveness::Unestablishable, "liveness-unestablishable"),
    ] {
        assert_eq!(condition(repair(&registry, &rig.at, liveness, &sweeper).await), want);
    }
    assert_eq!((rig.active_rows().await, sweeper.asked().len()), (2, 0), "nothing was changed");

    let stubborn = Sweeper::but("b");
    assert_eq!(condition(repair(&registry, &rig.at, Liveness::Gone, &stubborn).await), "eviction-unverified");
    assert_eq!(rig.gate().await["state"], "frozen");
    assert!(stubborn.asked().iter().all(|asked| asked.len() == 1), "one at a time");
    let first: Vec<_> = stubborn.asked().concat();
    stubborn.stays.lock().clear();
    stubborn.asked.lock().clear();
    let report = repair(&rig.registry().await, &rig.at, Liveness::Gone, &stubborn).await.unwrap();
    assert_eq!(report.holders.len(), 3, "the gate's principal and the rows'");
    assert_eq!(report.verified_before.len() + 1, first.len());
    assert_eq!(report.verified_before.len() + report.verified_now.len(), 3);
    assert!(report.remaining.is_empty() && report.cursor_deleted && !report.completed);
    assert_eq!((report.before.generation, report.after.generation, report.after.process_epoch), (3, 4, 0));
    assert_eq!((rig.active_rows().await, rig.gate().await["state"].as_str()), (0, Some("open")));

    // Raced: somebody else moves the gate between the cursor and the reopen.
    rig.plant_gate("frozen", 5, 0, &held("registration")).await;
    let failpoint = Failpoint::stop_after(1);
    let slow = rig.watched(&failpoint).await;
    let (outcome, ()) = tokio::join!(repair(&slow, &rig.at, Liveness::Gone, &stubborn), async {
        failpoint.reached().await;
        rig.plant_gate("frozen", 5, 0, &held("registration")).await;
        failpoint.release();
    });
    assert_eq!(condition(outcome), "raced");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_completes_a_registration_that_had_written_its_spec_and_undoes_one_that_had_not() {
    // The writes of a re-registration: freeze, slot, revocation, cursor, spec, governance, reopen, ...
    let mut ends = BTreeMap::new();
    for nth in 1..=6 {
        let rig = Rig::start().await;
        let governed = cluster("find", "ephemeral", &["ai.cotal.priced"]);
        let registry = rig.registry().await;
        let earlier = rig.register_own(&registry).await.unwrap();
        mint(&registry, &earlier.grant, &rig.principal, "jwt").await.unwrap();
        publish(&registry, &governed).await.unwrap();
        let failpoint = Failpoint::stop_after(nth);
        let dying = rig.watched(&failpoint).await;
        let (spec, this) = (spec_of(&closure(&governed)), op());
        tokio::select! {
            done = register(&dying, &rig.at, &spec, &this) => panic!("{done:?}"),
            () = failpoint.reached() => {}
        }
        let committed = failpoint.landed().contains(&rig.spec_key());
        let report =
            repair(&rig.registry().await, &rig.at, Liveness::Gone, &Sweeper::thorough()).await.unwrap();
        assert_eq!(report.completed, committed, "cut off after {nth}: {:?}", failpoint.landed());
        ends.insert(nth, report.completed);
        let gate = rig.gate().await;
        assert_eq!(gate["state"], "open");
        assert_eq!(gate["processEpoch"].as_u64(), Some(u64::from(committed)), "cut off after {nth}");
        assert_eq!(rig.active_rows().await, 0);
        let head = rig.world.json(&rig.world.records, &rig.govern_key()).await;
        assert_eq!(head["commands"].get("find").is_some(), committed, "cut off after {nth}: {head}");
        assert!(head.get("provisional").is_none(), "cut off after {nth}");
        if committed {
            let served = grant(&rig, &rig.registry().await, 1).await.unwrap();
            mint(&rig.registry().await, &served, &rig.principal, "after the repair").await.unwrap();
        }
        // The plain contract drops a trait that the completed one bound.
        let plain = rig.register_own(&rig.registry().await).await;
        assert_eq!(plain.err().map(|refusal| refusal.code), committed.then_some(EpCode::PermissionDenied));
    }
    assert_eq!(ends.values().filter(|completed| **completed).count(), 2, "{ends:?}");
}

/// A spec that an earlier, repaired operation had still on its way: completed under the slot of another, what it declares
/// would never be recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_repair_does_not_complete_a_spec_that_declares_something_else_than_its_slot() {
    for (slot, spec) in [(&["ai.cotal.priced"][..], &[][..]), (&[], &["ai.cotal.priced"])] {
        let rig = Rig::start().await;
        let registry = rig.registry().await;
        rig.register_own(&registry).await.unwrap();
        let (proposed, late) = (cluster("find", "ephemeral", slot), cluster("find", "ephemeral", spec));
        publish(&registry, &proposed).await.unwrap();
        publish(&registry, &late).await.unwrap();
        // Frozen, and the slot is taken.
        let failpoint = Failpoint::stop_after(2);
        let dying = rig.watched(&failpoint).await;
        let (proposed, this) = (spec_of(&closure(&proposed)), op());
        tokio::select! {
            done = register(&dying, &rig.at, &proposed, &this) => panic!("{done:?}"),
            () = failpoint.reached() => {}
        }
        let late = String::from_utf8(spec_of(&closure(&late)).to_bytes()).unwrap();
        rig.world.put(&rig.world.records, &rig.spec_key(), &late).await;
        let report =
            repair(&rig.registry().await, &rig.at, Liveness::Gone, &Sweeper::thorough()).await.unwrap();
        assert!(!report.completed, "slot {slot:?}, spec {spec:?}");
        let gate = rig.gate().await;
        assert_eq!((&gate["state"], &gate["processEpoch"]), (&json!("open"), &json!(0)));
        let head = rig.world.json(&rig.world.records, &rig.govern_key()).await;
        assert!(head["commands"].get("find").is_none() && head.get("provisional").is_none(), "{head}");
        // The next start registers over it.
        rig.register_own(&rig.registry().await).await.unwrap();
    }
}

// #529: a scatter waited its full deadline for instances that were gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_scatter_waits_for_the_instances_that_stand_when_it_begins() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let (stores, endpoint) = (registry.stores(), &rig.at.endpoint);
    assert_eq!(code(freeze_scatter(stores, endpoint).await), EpCode::FailedPrecondition, "there is none");
    rig.register_own(&registry).await.unwrap();
    assert_eq!(freeze_scatter(stores, endpoint).await.unwrap(), std::slice::from_ref(&rig.at.instance));

    let second = EndpointInstance { endpoint: endpoint.clone(), instance: instance() };
    let own = OwnEndpoint { instance: second.instance.clone(), ..rig.own() };
    register_own_endpoint(&rig.registry_of(&second).await, &own, &SystemEntropy, &Sweeper::thorough())
        .await
        .unwrap();
    let mut both = [rig.at.instance.clone(), second.instance.clone()];
    both.sort();
    assert_eq!(freeze_scatter(stores, endpoint).await.unwrap(), both);

    deregister_instance(stores, &rig.at).await.unwrap();
    assert_eq!(freeze_scatter(stores, endpoint).await.unwrap(), std::slice::from_ref(&second.instance));
    let status = names::service_status_key(endpoint, &second.instance);
    rig.world.put(&rig.world.records, &status, "{}").await;
    assert_eq!(
        code(freeze_scatter(stores, endpoint).await),
        EpCode::FailedPrecondition,
        "nobody is left out"
    );
}
