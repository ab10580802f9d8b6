//! Serving: what is authorized and minted, and by what it is fenced.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn serving_is_authorized_in_the_contracts_order() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let someone = Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
    let (fine, nobody) = (names(), OwnName { owner: someone.clone(), ..names() });
    let pools = BTreeSet::from([Command::parse("fast").unwrap()]);
    let ask = async |epoch: u64, owner: &Owner, names: &OwnName, pools: &BTreeSet<Command>| {
        authorize_serve_grant(&registry, &ServeRequest { at: &rig.at, owner, epoch, pools, names }).await
    };
    let local = Owner::local();
    assert_eq!(code(ask(1 << 53, &someone, &nobody, &pools).await), EpCode::Internal);
    assert_eq!(code(ask(7, &someone, &nobody, &pools).await), EpCode::FailedPrecondition, "not registered");
    let missing = spec_of(&DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap());
    let put = async |spec: &ServiceSpec| {
        let text = String::from_utf8(spec.to_bytes()).unwrap();
        rig.world.put(&rig.world.records, &rig.spec_key(), &text).await;
    };
    put(&missing).await;
    assert_eq!(code(ask(7, &someone, &nobody, &pools).await), EpCode::PermissionDenied, "the owner");
    assert_eq!(code(ask(7, &local, &nobody, &pools).await), EpCode::PermissionDenied, "the name");
    assert_eq!(code(ask(7, &local, &fine, &pools).await), EpCode::FailedPrecondition, "no artifact");
    publish(&registry, &rig.artifacts).await.unwrap();
    put(&spec_of(rig.artifacts[0].digest())).await;
    assert_eq!(code(ask(7, &local, &fine, &pools).await), EpCode::Internal, "not a manifest");
    let name = EndpointName::parse(NAME).unwrap();
    put(&ServiceSpec::new(&name, &local, vec![rig.cluster.clone(), rig.cluster.clone()]).unwrap()).await;
    assert_eq!(code(ask(7, &local, &fine, &pools).await), EpCode::Internal, "a command twice");
    put(&rig.spec()).await;
    assert_eq!(
        code(ask(7, &local, &fine, &pools).await),
        EpCode::FailedPrecondition,
        "pools without a journal"
    );
    let none = BTreeSet::new();
    assert_eq!(code(ask(7, &local, &fine, &none).await), EpCode::Expired, "no gate");
    rig.plant_gate("open", 1, 1, "").await;
    assert_eq!(code(ask(7, &local, &fine, &none).await), EpCode::Expired, "another epoch");
    let granted = ask(0, &local, &fine, &none).await.unwrap();
    let surface = granted.surface();
    let commands: Vec<_> = surface.commands.iter().map(Command::as_str).collect();
    assert_eq!((commands, surface.epoch, surface.journal), (vec!["find"], 0, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serve_mint_is_fenced_by_the_gate_that_it_was_authorized_at() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let done = registered(&rig, &registry).await;
    let granted = grant(&rig, &registry, done.process_epoch).await.unwrap();
    assert_eq!(code(mint(&registry, &granted, &principal("other"), "j").await), EpCode::PermissionDenied);
    let stranger = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.a").unwrap();
    assert_eq!(code(mint(&registry, &granted, &stranger, "j").await), EpCode::PermissionDenied);
    let long = ServeCredential {
        id: cotal_wire::CredentialId::parse(&"a".repeat(129)).unwrap(),
        source_chain: vec![SourceMember::Root],
        exp: UnixSecs(9),
    };
    let refused = mint_serve_credential(registry.stores(), &granted, &rig.principal, long).await;
    assert_eq!(code(refused), EpCode::Internal);
    assert_eq!(rig.active_rows().await, 0);

    // Held after its row is staged, while a later registration takes over.
    let failpoint = Failpoint::stop_after(1);
    let held = rig.watched(&failpoint).await;
    let late = async {
        let outcome = mint(&held, &granted, &rig.principal, "held").await;
        assert_eq!(code(outcome), EpCode::Expired);
    };
    let meanwhile = async {
        failpoint.reached().await;
        register(&rig.registry().await, &rig.at, &rig.spec(), &op()).await.unwrap();
        failpoint.release();
    };
    tokio::join!(late, meanwhile);
    assert_eq!(rig.active_rows().await, 0, "its row is revoked");
    assert_eq!(code(mint(&registry, &granted, &rig.principal, "later").await), EpCode::Expired);
    let row = rig.world.auth.keys(&format!("epcred.{}.>", rig.at.endpoint)).await.unwrap();
    let row = rig.world.json(&rig.world.auth, &row[0]).await;
    assert_eq!((row["state"].as_str(), row["endpoint"].as_str()), (Some("revoked"), Some(NAME)));
    assert_eq!(row["holderPrincipal"], rig.principal.key());
}

#[tokio::test(flavor = "multi_thread")]
async fn siblings_wait_out_each_others_touches_and_lose_to_a_registration() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    registered(&rig, &registry).await;
    let observed = gate::observe(registry.stores(), &rig.at).await.unwrap().unwrap();
    let name = EndpointName::parse(NAME).unwrap();
    let row = |nth: usize| {
        let id = credential_id_of(&format!("jwt {nth}")).unwrap();
        let holder = principal(&format!("sibling{nth}"));
        CredentialRow::endpoint(&name, &rig.at.instance, &id, &holder, UnixSecs(9)).unwrap()
    };
    let issued = futures::future::join_all(
        (0..8).map(|nth| issue_sibling(registry.stores(), &rig.at, &observed, row(nth))),
    )
    .await;
    assert!(issued.iter().all(Result::is_ok), "{issued:?}");
    assert_eq!(rig.active_rows().await, 8);

    let sweeper = Sweeper::thorough();
    register_with(&registry, &rig.at, &rig.spec(), &op(), &sweeper).await.unwrap();
    assert_eq!(sweeper.asked().concat().len(), 8, "each sibling is evicted as itself");
    assert_eq!(rig.active_rows().await, 0);
    let late = issue_sibling(registry.stores(), &rig.at, &observed, row(9)).await;
    assert_eq!(code(late), EpCode::Expired);
    assert_eq!(rig.active_rows().await, 0, "its row is revoked");
    let frozen = format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"registration\"}}", op());
    rig.plant_gate("frozen", 1, 1, &frozen).await;
    let closed = gate::observe(registry.stores(), &rig.at).await.unwrap().unwrap();
    assert_eq!(code(issue_sibling(registry.stores(), &rig.at, &closed, row(10)).await), EpCode::Expired);
    let keys = rig.world.auth.keys(&format!("epcred.{}.>", rig.at.endpoint)).await.unwrap();
    assert_eq!(keys.len(), 9, "a gate that was not open stages nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_fenced_by_the_epoch_of_the_gate() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let first = registered(&rig, &registry).await;
    let say = async |epoch: u64, state: StatusState, observed: Revision| {
        let write = StatusWrite {
            at: &rig.at,
            writer_epoch: epoch,
            status: ServiceStatus::new(epoch, state, observed),
            supervisor: false,
            expected: None,
        };
        write_status(registry.stores(), write).await
    };
    let at_first = say(0, StatusState::ready(), first.registration_revision).await.unwrap();
    let second = register(&registry, &rig.at, &rig.spec(), &op()).await.unwrap();
    assert_eq!(code(say(0, StatusState::exited(), first.registration_revision).await), EpCode::Expired);
    let at_second = say(1, StatusState::ready(), second.registration_revision).await.unwrap();
    assert!(at_second > at_first);
    let beyond = Revision(second.registration_revision.0 + 100);
    assert_eq!(code(say(1, StatusState::ready(), beyond).await), EpCode::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_released_for_a_mint_that_failed_is_taken_back_and_the_refusal_stays() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let done = registered(&rig, &registry).await;
    let granted = grant(&rig, &registry, done.process_epoch).await.unwrap();
    let credential = |jwt: &str| ServeCredential {
        id: credential_id_of(jwt).unwrap(),
        source_chain: vec![SourceMember::Root],
        exp: UnixSecs(9),
    };
    let stores = registry.stores();
    let released = mint_serve_credential(stores, &granted, &rig.principal, credential("j")).await.unwrap();
    let seen = gate::observe(stores, &rig.at).await.unwrap().unwrap();
    let (name, id) = (EndpointName::parse(NAME).unwrap(), credential_id_of("s").unwrap());
    let row =
        CredentialRow::endpoint(&name, &rig.at.instance, &id, &principal("sibling"), UnixSecs(9)).unwrap();
    let sibling = issue_sibling(stores, &rig.at, &seen, row).await.unwrap();
    assert_eq!(rig.active_rows().await, 2);
    let refusal = EpError::unavailable("the third one failed");
    assert_eq!(withdraw(stores, &[released, sibling], refusal.clone()).await, refusal);
    assert_eq!(rig.active_rows().await, 0);
    // The same credential is not minted again: its row says for ever that it is revoked.
    let again = mint_serve_credential(stores, &granted, &rig.principal, credential("j")).await;
    assert_eq!(code(again.map(|_| ())), EpCode::Conflict);
}

/// One key, one grant, one second: the same bytes, under one row.
#[tokio::test(flavor = "multi_thread")]
async fn a_mint_that_loses_leaves_what_an_identical_one_has_handed_out() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let done = registered(&rig, &registry).await;
    let granted = grant(&rig, &registry, done.process_epoch).await.unwrap();
    mint(&registry, &granted, &rig.principal, "j").await.unwrap();
    assert_eq!(rig.active_rows().await, 1);

    let stores = registry.stores();
    let now = gate::observe(stores, &rig.at).await.unwrap().unwrap();
    let name = EndpointName::parse(NAME).unwrap();
    let row = || {
        let id = credential_id_of("s").unwrap();
        CredentialRow::endpoint(&name, &rig.at.instance, &id, &principal("sibling"), UnixSecs(9)).unwrap()
    };
    let handed_out = issue_sibling(stores, &rig.at, &now, row()).await.unwrap();
    let stale = GateAt { gate: EndpointGate::provisioned(&rig.principal), revision: now.revision };
    assert_eq!(code(issue_sibling(stores, &rig.at, &stale, row()).await), EpCode::Expired);
    assert_eq!(rig.active_rows().await, 2);

    let again = issue_sibling(stores, &rig.at, &now, row()).await.unwrap();
    let refusal = EpError::unavailable("what came after it failed");
    assert_eq!(withdraw(stores, &[again], refusal.clone()).await, refusal);
    assert_eq!(rig.active_rows().await, 2, "it is the other one's to take back");
    assert_eq!(withdraw(stores, &[handed_out], refusal.clone()).await, refusal);
    assert_eq!(rig.active_rows().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_can_be_narrowed_to_one_cluster() {
    let rig = Rig::start().await;
    let registry = rig.registry().await;
    let done = registered(&rig, &registry).await;
    let granted = grant(&rig, &registry, done.process_epoch).await.unwrap();
    assert_eq!(granted.clone().of_cluster(NAME).map(|one| one.surface()), Some(granted.surface()));
    assert_eq!(granted.of_cluster("com.example.other").map(|one| one.surface()), None);
}
