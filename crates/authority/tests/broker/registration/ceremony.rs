//! The ceremony: its order of checks, its writes, its crashes, and who wins.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_first_registration_commits_epoch_zero_and_each_later_start_fences_its_predecessor() {
    let rig = Rig::start().await;
    let journal = Failpoint::journal();
    let registry = rig.watched(&journal).await;
    let first = rig.register_own(&registry).await.unwrap();
    assert_eq!((first.epoch, &first.instance), (0, &rig.at.instance));
    let artifact = |nth: usize| registry.contracts().subject(rig.artifacts[nth].digest());
    let status = format!("svc.{}.{}.status", rig.at.endpoint, rig.at.instance);
    assert_eq!(
        journal.landed(),
        [
            artifact(0),
            artifact(1),
            rig.gate_key(),   // provisioned
            rig.gate_key(),   // frozen
            rig.govern_key(), // the slot
            rig.spec_key(),
            rig.gate_key(),   // reopened
            rig.govern_key(), // the slot released
            status.clone(),
        ]
    );
    assert_eq!(
        rig.gate().await,
        json!({
            "state": "open", "generation": 1, "processEpoch": 0, "nameAuthorityRevision": 0,
            "registrationRevision": first.registration_revision.0, "principal": rig.principal.key(),
        })
    );
    let ready = rig.world.json(&rig.world.records, &status).await;
    let revision = first.registration_revision.0;
    assert_eq!(ready, json!({ "epoch": 0, "state": "ready", "observedSpecRevision": revision }));
    mint(&registry, &first.grant, &rig.principal, "jwt of the first").await.unwrap();

    let second = rig.register_own(&rig.registry().await).await.unwrap();
    assert_eq!(second.epoch, 1);
    assert_eq!(rig.active_rows().await, 0, "the predecessor's credential is revoked");
    assert_eq!(code(mint(&registry, &first.grant, &rig.principal, "late").await), EpCode::Expired);
    mint(&registry, &second.grant, &rig.principal, "jwt of the second").await.unwrap();
    assert_eq!(rig.active_rows().await, 1);
    let third = rig.register_own(&rig.registry().await).await.unwrap();
    assert_eq!(third.epoch, 2);
    assert_eq!(third.grant.descriptor().to_value()["clusters"][0]["digest"], rig.cluster.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_that_is_not_the_gates_own_is_refused() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    rig.register_own(&registry).await.unwrap();
    let stranger = OwnEndpoint { principal: principal("stranger"), ..rig.own() };
    let refused = register_own_endpoint(&registry, &stranger, &SystemEntropy, &Sweeper::thorough()).await;
    assert_eq!(code(refused), EpCode::Conflict);
}

/// Each step mends the fault that the step before it was refused for.
#[tokio::test(flavor = "multi_thread")]
async fn a_registration_is_refused_in_the_contracts_order() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let stores = registry.stores();
    let on_demand = Activation { capacity: 1, max_restarts: None, restart_window_ms: None };
    let proposal = rig.spec().on_demand(on_demand);
    let other_name = ServiceSpec::new(
        &EndpointName::parse("com.example.other").unwrap(),
        &Owner::local(),
        vec![rig.cluster.clone()],
    )
    .unwrap();
    let someone = Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
    let (fine, nobody) = (names(), OwnName { owner: someone.clone(), ..names() });
    let sweeper = Sweeper::thorough();
    let this = op();
    let attempt = async |spec: &ServiceSpec, registrant: &Owner, names: &OwnName, sweep: usize| {
        let request = Registration {
            at: &rig.at,
            spec,
            registrant,
            op: &this,
            names,
            evictor: &sweeper,
            eviction_sweep: sweep,
        };
        code(register_service_instance(&registry, &request).await)
    };
    // 1: before anything is read.
    assert_eq!(attempt(&other_name, &someone, &nobody, 0).await, EpCode::Internal);
    assert_eq!(attempt(&proposal, &someone, &nobody, 0).await, EpCode::PermissionDenied);
    assert_eq!(attempt(&proposal, &Owner::local(), &nobody, 0).await, EpCode::Internal);
    // 2: the gate.
    assert_eq!(attempt(&proposal, &Owner::local(), &nobody, 1).await, EpCode::FailedPrecondition, "no gate");
    let retired = format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", op());
    rig.plant_gate("retired", 0, 0, &retired).await;
    assert_eq!(attempt(&proposal, &Owner::local(), &nobody, 1).await, EpCode::FailedPrecondition);
    for kind in ["registration", "takeover"] {
        let held = format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"{kind}\"}}", op());
        rig.plant_gate("frozen", 0, 0, &held).await;
        assert_eq!(attempt(&proposal, &Owner::local(), &nobody, 1).await, EpCode::Conflict, "{kind}");
    }
    rig.plant_gate("frozen", 0, 0, "").await;
    assert_eq!(attempt(&proposal, &Owner::local(), &nobody, 1).await, EpCode::Internal, "no op");
    // 5: every refusal of phase 1 reopens the gate one generation on.
    let moved = rig.gate_key();
    let with_names = |revision: u64| {
        format!(
            "{{\"state\":\"open\",\"generation\":0,\"processEpoch\":4,\"registrationRevision\":0,\
             \"nameAuthorityRevision\":{revision},\"principal\":\"{}\"}}",
            rig.principal
        )
    };
    rig.world.put(&rig.world.auth, &moved, &with_names(7)).await;
    let foreign =
        String::from_utf8(proposal.to_bytes()).unwrap().replace("\"local\"", &format!("\"{someone}\""));
    rig.world.put(&rig.world.records, &rig.spec_key(), &foreign).await;
    rig.world.put(&rig.world.records, &rig.govern_key(), "{}").await;
    let local = Owner::local();
    assert_eq!(attempt(&proposal, &local, &nobody, 1).await, EpCode::PermissionDenied, "the name");
    assert_eq!(rig.gate().await["generation"], 1);
    assert_eq!(attempt(&proposal, &local, &fine, 1).await, EpCode::Conflict, "the name authority's revision");
    assert_eq!(rig.gate().await["generation"], 2);
    rig.world.put(&rig.world.auth, &moved, &with_names(0)).await;
    assert_eq!(attempt(&proposal, &local, &fine, 1).await, EpCode::PermissionDenied, "the stored owner");
    rig.world.delete(&rig.world.records, &rig.spec_key()).await;
    assert_eq!(attempt(&proposal, &local, &fine, 1).await, EpCode::Internal, "the governance head");
    rig.world.delete(&rig.world.records, &rig.govern_key()).await;
    assert_eq!(attempt(&proposal, &local, &fine, 1).await, EpCode::FailedPrecondition, "its marker");
    let slot = |instance: &InstanceId, generation: u64| {
        json!({
            "commands": {"find": ["ai.cotal.guarded"]},
            "provisional": {"instanceId": instance, "generation": generation, "commands": {}},
        })
        .to_string()
    };
    rig.world.put(&rig.world.records, &rig.govern_key(), &slot(&rig.at.instance, 99)).await;
    assert_eq!(
        attempt(&proposal, &local, &fine, 1).await,
        EpCode::Internal,
        "our own slot, ahead of the gate"
    );
    let foreign = instance();
    rig.world.put(&rig.world.records, &rig.govern_key(), &slot(&foreign, 1)).await;
    assert_eq!(attempt(&proposal, &local, &fine, 1).await, EpCode::Unavailable, "its holder has no gate");
    rig.world.put(&rig.world.records, &rig.govern_key(), &slot(&rig.at.instance, 0)).await;
    assert_eq!(
        attempt(&proposal, &local, &fine, 1).await,
        EpCode::FailedPrecondition,
        "nothing is published"
    );
    publish(&registry, &rig.artifacts).await.unwrap();
    assert_eq!(
        attempt(&proposal, &local, &fine, 1).await,
        EpCode::FailedPrecondition,
        "not a journal command"
    );
    let plain = rig.spec();
    assert_eq!(
        attempt(&plain, &local, &fine, 1).await,
        EpCode::PermissionDenied,
        "a governed trait is dropped"
    );
    let before = rig.gate().await;
    let governed = cluster("find", "ephemeral", &["ai.cotal.guarded"]);
    publish(&registry, &governed).await.unwrap();
    let governed = spec_of(&closure(&governed));
    let done = register(&registry, &rig.at, &governed, &this).await.unwrap();
    assert_eq!(done.process_epoch, 5, "a tombstone counts as prior");
    let after = gate::observe(stores, &rig.at).await.unwrap().unwrap();
    assert_eq!(after, done.gate);
    assert_eq!(after.gate.coordinate().generation, before["generation"].as_u64().unwrap() + 1);
    assert_eq!(
        rig.world.text(&rig.world.records, &rig.govern_key()).await.unwrap(),
        "{\"commands\":{\"find\":[\"ai.cotal.guarded\"]}}"
    );
    assert!(sweeper.asked().is_empty(), "an empty family asks nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closure_that_is_no_single_cluster_registers_nothing() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    rig.ready(&registry).await;
    let twice = ServiceSpec::new(
        &EndpointName::parse(NAME).unwrap(),
        &Owner::local(),
        vec![rig.cluster.clone(), rig.cluster.clone()],
    );
    let document = rig.artifacts[0].clone();
    let manifest = |members: Value, root: &DigestRef| {
        Artifact::of(&json!({ "v": 1, "root": root, "members": members })).unwrap()
    };
    let with_members = manifest(json!([VOID_CLOSURE_DIGEST]), document.digest());
    let no_document = manifest(json!([]), &DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap());
    publish(&registry, &[with_members.clone(), no_document.clone()]).await.unwrap();
    for spec in [
        twice.unwrap(),
        spec_of(with_members.digest()),
        spec_of(no_document.digest()),
        spec_of(document.digest()),
    ] {
        assert_eq!(code(register(&registry, &rig.at, &spec, &op()).await), EpCode::FailedPrecondition);
    }
    let gate = rig.gate().await;
    assert_eq!((gate["state"].as_str(), gate["registrationRevision"].as_u64()), (Some("open"), Some(0)));
    register(&registry, &rig.at, &rig.spec(), &op()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_family_is_revoked_and_its_holders_proved_gone_sweep_by_sweep() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    rig.ready(&registry).await;
    for holder in ["a", "b", "c", "d", "e"] {
        rig.plant_credential(&format!("c-{holder}"), &principal(holder)).await;
    }
    rig.plant_credential("c-again", &principal("a")).await;
    let (this, sweeper) = (op(), Sweeper::but("d"));
    let refusal = register_with(&registry, &rig.at, &rig.spec(), &this, &sweeper).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable);
    assert_eq!(refusal.details[0]["opId"], this.as_str());
    assert!(refusal.message.contains("cotal reconcile-gate"), "{refusal}");
    assert_eq!(sweeper.asked(), [vec!["a", "b"], vec!["c", "d"]], "distinct, sorted, two at a time");
    assert_eq!(rig.active_rows().await, 0, "deny-new comes before kill-live");
    assert_eq!(rig.gate().await["state"], "frozen");
    let cursor = rig.world.json(&rig.world.auth, &rig.cursor_key()).await;
    assert_eq!(cursor["verified"], json!(["local.a", "local.b", "local.c"]));

    assert_eq!(code(register(&registry, &rig.at, &rig.spec(), &op()).await), EpCode::Conflict);
    sweeper.stays.lock().clear();
    sweeper.asked.lock().clear();
    let done = register_with(&rig.registry().await, &rig.at, &rig.spec(), &this, &sweeper).await.unwrap();
    assert_eq!(sweeper.asked(), [vec!["d", "e"]], "those that were proved gone are not asked for again");
    assert_eq!(done.process_epoch, 0);
    assert_eq!(rig.world.text(&rig.world.auth, &rig.cursor_key()).await, None, "the cursor is cleared");
}

// #457: a restart found its gate frozen by itself, and so did every restart after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_cut_off_after_any_write_is_resumed_by_the_next_one() {
    let journal = Failpoint::journal();
    let rig = Rig::start().await;
    rig.register_own(&rig.watched(&journal).await).await.unwrap();
    let writes = journal.landed().len();
    for again in [false, true] {
        // A later start publishes and provisions nothing, and revokes one row, keeps a cursor and clears it instead.
        for nth in 1..=writes {
            let rig = Rig::start().await;
            if again {
                let earlier = rig.register_own(&rig.registry().await).await.unwrap();
                mint(&rig.registry().await, &earlier.grant, &rig.principal, "jwt").await.unwrap();
            }
            let failpoint = Failpoint::stop_after(nth);
            let registry = rig.watched(&failpoint).await;
            tokio::select! {
                done = rig.register_own(&registry) => panic!("{nth} of {writes} writes: {done:?}"),
                () = failpoint.reached() => {}
            }
            let registry = rig.registry().await;
            let resumed = rig.register_own(&registry).await.unwrap();
            let gate = rig.gate().await;
            assert_eq!(gate["state"], "open", "cut off after {nth}");
            assert_eq!(gate["processEpoch"].as_u64(), Some(resumed.epoch));
            assert_eq!(gate["registrationRevision"].as_u64(), Some(resumed.registration_revision.0));
            // Whoever was cut off after its gate reopened had registered; the next start is one on.
            let base = u64::from(again);
            assert!(
                (base..=base + 1).contains(&resumed.epoch),
                "cut off after {nth}: epoch {}",
                resumed.epoch
            );
            assert_eq!(rig.active_rows().await, 0);
            mint(&registry, &resumed.grant, &rig.principal, "jwt of the resumed").await.unwrap();
            let head = rig.world.json(&rig.world.records, &rig.govern_key()).await;
            assert!(head.get("provisional").is_none(), "cut off after {nth}: {head}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_leaves_what_the_next_start_ends() {
    for nth in 1..=9 {
        let rig = Rig::start().await;
        let failpoint = Failpoint::forget_answer_of(nth);
        let lost = rig.register_own(&rig.watched(&failpoint).await).await;
        if let Err(refusal) = &lost {
            assert!(
                [EpCode::Unavailable, EpCode::Conflict].contains(&refusal.code),
                "answer {nth} was lost: {refusal}"
            );
        }
        let next = rig.register_own(&rig.registry().await).await.unwrap();
        assert_eq!(rig.gate().await["processEpoch"].as_u64(), Some(next.epoch), "answer {nth} was lost");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_operation_that_proposes_another_spec_writes_its_own() {
    let rig = Rig::start().await;
    let failpoint = Failpoint::stop_after(3);
    let watched = rig.registry().await;
    rig.ready(&watched).await;
    failpoint.arm(watched.stores());
    let (this, spec) = (op(), rig.spec());
    tokio::select! {
        done = register(&watched, &rig.at, &spec, &this) => panic!("{done:?}"),
        () = failpoint.reached() => {}
    }
    assert!(rig.world.text(&rig.world.records, &rig.spec_key()).await.is_some(), "the spec is written");
    let newer = rig.spec().of_type("newer");
    let done = register(&rig.registry().await, &rig.at, &newer, &this).await.unwrap();
    assert_eq!(done.process_epoch, 0, "still the first one");
    assert_eq!(rig.world.json(&rig.world.records, &rig.spec_key()).await["endpointType"], "newer");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_registrations_of_one_instance_one_commits_and_no_epoch_is_given_twice() {
    let rig = Rig::start().await;
    rig.ready(&rig.registry().await).await;
    let (one, two) = (rig.registry().await, rig.registry().await);
    let (spec, this, that) = (rig.spec(), op(), op());
    let (a, b) = tokio::join!(register(&one, &rig.at, &spec, &this), register(&two, &rig.at, &spec, &that));
    let mut epochs = BTreeSet::new();
    for outcome in [a, b] {
        match outcome {
            Ok(done) => assert!(epochs.insert(done.process_epoch)),
            Err(refusal) => assert_eq!(refusal.code, EpCode::Conflict, "{refusal}"),
        }
    }
    assert!(!epochs.is_empty());
    assert_eq!(rig.gate().await["processEpoch"].as_u64(), epochs.last().copied());
}

// #1393, #1419: an instance that had stopped kept the slot for ever.
#[tokio::test(flavor = "multi_thread")]
async fn instances_of_one_endpoint_take_turns_and_reclaim_a_slot_only_past_its_stamp() {
    let rig = Rig::start().await;
    let failpoint = Failpoint::stop_after(2);
    let held = rig.registry().await;
    rig.ready(&held).await;
    failpoint.arm(held.stores());
    let other = EndpointInstance { endpoint: rig.at.endpoint.clone(), instance: instance() };
    let other_registry = rig.registry_of(&other).await;
    gate::provision(other_registry.stores(), &other, &principal("other")).await.unwrap();
    let (this, that, spec) = (op(), op(), rig.spec());
    tokio::select! {
        done = register(&held, &rig.at, &spec, &this) => panic!("{done:?}"),
        () = failpoint.reached() => {}
    }
    // It stopped with the slot taken and its gate frozen.
    let refusal = register(&other_registry, &other, &spec, &that).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::Conflict);
    assert_eq!(
        refusal.details[0],
        json!({
            "kind": "ai.cotal.ep.foreign-slot-held", "holderInstanceId": rig.at.instance,
            "condition": "in-flight",
        })
    );
    let repaired =
        repair(&rig.registry().await, &rig.at, Liveness::Gone, &Sweeper::thorough()).await.unwrap();
    assert!(!repaired.completed);
    // As a holder that stopped before it gave the slot up: its gate has reopened past the stamp.
    let stale = json!({
        "commands": {}, "provisional": {"instanceId": rig.at.instance, "generation": 0, "commands": {}},
    });
    rig.world.put(&rig.world.records, &rig.govern_key(), &stale.to_string()).await;
    register(&other_registry, &other, &spec, &that).await.unwrap();
    assert_eq!(rig.world.text(&rig.world.records, &rig.govern_key()).await.unwrap(), "{\"commands\":{}}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incarnation_that_nobody_serves_commits_its_epoch_and_writes_no_status() {
    let rig = Rig::start().await;
    let journal = Failpoint::journal();
    let first = rig.register_incarnation(&rig.watched(&journal).await).await.unwrap();
    assert_eq!(first.process_epoch, 0);
    let status = format!("svc.{}.{}.status", rig.at.endpoint, rig.at.instance);
    assert!(!journal.landed().contains(&status) && journal.landed().contains(&rig.spec_key()));
    assert_eq!(rig.gate().await["registrationRevision"].as_u64(), Some(first.registration_revision.0));
    for epoch in 1..=2 {
        let next = rig.register_incarnation(&rig.registry().await).await.unwrap();
        assert_eq!(next.process_epoch, epoch, "each start is one on, and fences its predecessor");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incarnation_that_a_later_start_overtakes_before_it_looks_back_is_a_conflict() {
    let journal = Failpoint::journal();
    let rig = Rig::start().await;
    rig.register_incarnation(&rig.watched(&journal).await).await.unwrap();
    let rig = Rig::start().await;
    // Held after its last write: the gate stands where it left it, and it has not looked back yet.
    let failpoint = Failpoint::stop_after(journal.landed().len());
    let registry = rig.watched(&failpoint).await;
    let earlier = rig.register_incarnation(&registry);
    tokio::pin!(earlier);
    tokio::select! {
        done = earlier.as_mut() => panic!("{done:?}"),
        () = failpoint.reached() => {}
    }
    let later = rig.register_incarnation(&rig.registry().await).await.unwrap();
    assert_eq!(later.process_epoch, 1);
    failpoint.release();
    assert_eq!(code(earlier.await), EpCode::Conflict);
    assert_eq!(rig.gate().await["processEpoch"], 1, "and the later one stands");
}
