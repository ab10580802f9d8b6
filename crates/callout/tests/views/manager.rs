//! `manager-caller`: one manager, and the pair that its caller is issued.

use cotal_ledger::GrantInput;
use cotal_testkit::{privilege::Privilege, rows::ServingManager};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, ConnId, InstanceId, LifecycleUid, View,
    grants::{self, Capabilities, Issued, Profile},
    names::accepted_key,
    rows::IssuedPermissions,
};

use crate::{
    house::{Ask, Granted, House, Plan, owner},
    serving::{
        accepted, attempts, bearer_of, connected, describe, end_issuance, keys, registered, rows,
        session_bearer, session_of, state,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn a_managers_caller_is_issued_a_pair_once_a_nonce_and_signed_exactly_that() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["spawn"], &["general"], &["general"]).await;
    let manager = registered(&house, 3).await;
    let bearer = bearer_of(&house, &granted, &manager);
    assert_eq!(house.issuers(), (0, 0), "nobody has dialled yet");

    let mut client = connected(&house, &bearer, "nonce-issued-1").await;
    let authority = accepted(&house, "nonce-issued-1").await.expect("the accepted row");
    assert_eq!(state(&house, &authority).await, "active");
    let generation = &authority.generation;
    let conn_id = ConnId::parse("nonce-issued-1").unwrap();
    let issued = Issued::for_connection(generation.clone(), &conn_id);
    let profile = Profile::ManagerCaller {
        instance: manager.instance.clone(),
        capabilities: Capabilities::of_scope(&["spawn"]),
        issued: Some(issued.clone()),
    };
    let who = granted.connects("nonce-issued-1");
    let signed = grants::permissions(&house.material.space.token(), &who, &profile).unwrap();
    let Granted { owner, actor, uid, .. } = &granted;
    let instance = &manager.instance;
    let rail = format!("cotal.demo.ep.v1.inst.manager.{instance}");
    let caller = format!("{owner}.{actor}.{uid}.{generation}");
    let stranger = format!("{owner}.other.{uid}.{generation}");
    let elsewhere = InstanceId::mint(&SystemEntropy);
    let accepted_row = format!("$KV.cotal_accepted_demo.{}", accepted_key(&issued.accepted));
    let privilege = Privilege {
        name: "manager-caller",
        publishes: format!(
            "{rail}.describe.{caller}.n
             {rail}.spawn.{caller}.n
             {rail}.despawn.owner.{owner}.{caller}.n
             {rail}.attach.owner.{owner}.{caller}.n
             {rail}.define-persona.{caller}.n
             {rail}.inspect.{caller}.n
             {rail}.status.{caller}.n
             {rail}.models.{caller}.n
             {rail}.resolve-cwd.{caller}.n
             $JS.API.DIRECT.GET.EPC_demo.cotal.demo.epc.x
             $JS.API.DIRECT.GET.KV_cotal_accepted_demo.{accepted_row}"
        ),
        hears: format!(
            "_INBOX_nonce-issued-1.>
             cotal.demo.ep.v1.reply.*.*.*.{caller}.*
             cotal.demo.epe.manager.*.*.goal.{owner}.{actor}.{uid}.>"
        ),
        never_publishes: format!(
            "{}
             {}
             {rail}.describe.{stranger}.n
             {rail}.despawn.owner.local.{caller}.n
             {rail}.run-start.{caller}.n
             cotal.demo.ep.v1.inst.manager.{elsewhere}.describe.{caller}.n
             cotal.demo.ep.v1.one.manager.spawn.{caller}.n
             {accepted_row}
             cotal.demo.chat.{owner}.{actor}.general
             $JS.API.STREAM.MSG.GET.KV_cotal_accepted_demo
             $JS.API.INFO",
            describe(&manager, &granted, None),
            describe(&manager, &granted, Some(&"0".repeat(32))),
        ),
        never_hears: format!(
            "cotal.demo.ep.v1.reply.*.*.*.{stranger}.*
             {rail}.>
             cotal.demo.epe.manager.>
             cotal.demo.chat.>
             _INBOX.>"
        ),
    };
    privilege.hold(&mut client, &signed).await;

    // The evidence is the ceiling that was signed, and it rests on the actor's row alone.
    let evidence = house.bucket("issued").first_authority(&authority.evidence_key()).await.unwrap().unwrap();
    let evidence = cotal_wire::rows::IssuedEvidence::parse(&evidence.value).unwrap();
    let ceiling = IssuedPermissions::of_grants(&signed).unwrap();
    assert_eq!(evidence.permissions().is_same_text(&ceiling), Ok(true));
    let sources: Vec<_> = evidence.sources().iter().map(|source| source.key().to_owned()).collect();
    assert_eq!(sources, [format!("actor.{}.cli.{}", granted.owner, granted.uid)]);

    // Again under the same nonce: the same generation. Under another: another.
    let mut again = connected(&house, &bearer, "nonce-issued-1").await;
    again.try_publish(&describe(&manager, &granted, Some(generation.as_str())), b"").await.unwrap();
    assert_eq!(keys(&house, "v1.>").await.len(), 1, "it was confirmed");
    connected(&house, &bearer, "nonce-issued-2").await;
    assert_ne!(accepted(&house, "nonce-issued-2").await.unwrap().generation, authority.generation);
    assert_eq!((keys(&house, "v1.>").await.len(), attempts(&house, "active").await), (2, 2));
    assert_eq!(house.issuers(), (1, 1), "one connection for all of it");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_that_holds_anothers_pair_or_another_ceiling_refuses() {
    let house = House::build("demo", Plan::with_callers()).await;
    let alice = house.grant("cli", &["spawn"], &["general"], &[]).await;
    let other = house.grant("other", &["spawn"], &["general"], &[]).await;
    let (first, second) = (registered(&house, 0).await, registered(&house, 0).await);
    connected(&house, &bearer_of(&house, &alice, &first), "nonce-issued-1").await;
    let held = accepted(&house, "nonce-issued-1").await.unwrap();

    let reason = house.denied(&bearer_of(&house, &other, &first), "nonce-issued-1").await;
    assert!(reason.starts_with("permissions: ") && reason.contains("another caller's issuance"), "{reason}");
    // Another manager is another ceiling: the client needs another nonce.
    let reason = house.denied(&bearer_of(&house, &alice, &second), "nonce-issued-1").await;
    assert!(reason.contains("the ceiling is another one than was issued"), "{reason}");
    assert_eq!(accepted(&house, "nonce-issued-1").await.unwrap(), held);
    assert_eq!((keys(&house, "v1.>").await.len(), attempts(&house, "active").await), (1, 1));
    connected(&house, &bearer_of(&house, &alice, &second), "nonce-issued-2").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_does_not_serve_the_owner_refuses_in_order_and_nothing_is_issued() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let mut manager = registered(&house, 3).await;
    let bearer = bearer_of(&house, &granted, &manager);
    let unregistered = ServingManager::unheard(owner(), 0);
    let says = async |bearer: &str, instance: &InstanceId, verdict: &str| {
        let reason = house.denied(bearer, &house.nonce()).await;
        let expected =
            format!("permissions: manager instance {instance} is {verdict} at the permission mint");
        assert_eq!(reason, expected);
    };
    says(&bearer_of(&house, &granted, &unregistered), &unregistered.instance, "unknown").await;
    let foreign = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb.manager_serve_x";
    // Frozen and foreign at once: the earlier check speaks.
    manager.gate(&rows(&house), "frozen", foreign, 3).await.unwrap();
    says(&bearer, &manager.instance, "not open").await;
    manager.gate(&rows(&house), "open", foreign, 3).await.unwrap();
    says(&bearer, &manager.instance, "not this owner's").await;
    manager.gate(&rows(&house), "open", &manager.principal(), 4).await.unwrap();
    says(&bearer, &manager.instance, "not registered").await;
    manager.report(&rows(&house), 4).await.unwrap();
    manager.write_spec(&rows(&house)).await.unwrap();
    says(&bearer, &manager.instance, "not registered").await;
    manager.epoch = 4;
    manager.report(&rows(&house), 4).await.unwrap();
    manager.open(&rows(&house)).await.unwrap();
    assert!(keys(&house, ">").await.is_empty() && house.issuers() == (0, 0));
    assert_eq!(house.issuance_rows().await, 0);
    connected(&house, &bearer, "nonce-issued-1").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_issued_a_pair_only_while_it_and_its_parent_may_run() {
    let house = House::build("demo", Plan::with_callers()).await;
    let manager = registered(&house, 0).await;
    let grant = |scope: &[&str], actor: &str| {
        let uid = LifecycleUid::mint(&SystemEntropy);
        GrantInput::new(owner(), Actor::parse(actor).unwrap()).scope(scope).lifecycle_uid(uid)
    };
    for (nth, (parent_scope, scope, issued)) in [
        (&["spawn", "run"][..], &["run"][..], true),
        (&["spawn", "run"], &[], false),
        (&["admin", "spawn"], &["run"], false),
        (&["admin", "spawn"], &[], false),
    ]
    .into_iter()
    .enumerate()
    {
        let (parent, actor) = (format!("boss{nth}"), format!("agent{nth}"));
        house.ledger.grant_interactive(&grant(parent_scope, &parent), &SystemClock, &SystemEntropy).unwrap();
        let (_, hash) = cotal_ledger::mint_agent_secret(&SystemEntropy);
        let input = grant(scope, &actor).parent(format!("{}.{parent}", owner()));
        let uid = input.lifecycle_uid.clone().unwrap();
        house.ledger.grant_managed(&input, &hash, &SystemClock).unwrap();
        let actor = Actor::parse(&actor).unwrap();
        let credential = house.plane.mint_connect_credential(&owner(), &actor, &uid).await.unwrap();
        let granted = Granted { owner: owner(), actor, scope: input.scope, uid, credential };
        let nonce = format!("nonce-agent-{nth}");
        let mut client = connected(&house, &bearer_of(&house, &granted, &manager), &nonce).await;
        let pair = accepted(&house, &nonce).await;
        assert_eq!(pair.is_some(), issued, "{parent_scope:?} {scope:?}");
        let legacy = client.try_publish(&describe(&manager, &granted, None), b"").await;
        assert_eq!(legacy.is_ok(), !issued, "{parent_scope:?} {scope:?}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_that_needs_no_pair_dials_no_issuer_and_writes_nothing_of_one() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["spawn", "admin"], &["general"], &[]).await;
    for view in [None, Some(View::Admin), Some(View::Deployer), Some(View::ChannelWriter), Some(View::Purger)]
    {
        let bearer = house.bearer(&granted, Ask { view, age: 0 });
        assert!(house.connect(&bearer).await.is_some(), "{view:?}");
    }
    assert_eq!(house.issuers(), (0, 0));
    assert!(keys(&house, ">").await.is_empty());
    assert!(house.bucket("accepted").keys(">").await.unwrap().is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callout_that_nobody_answers_for_refuses_the_views_that_need_an_answer() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = registered(&house, 0).await;
    let reason = house.denied(&bearer_of(&house, &granted, &manager), &house.nonce()).await;
    assert!(reason.contains("manager-caller needs a manager authorizer"), "{reason}");
    let session = session_of('s', &granted, &manager);
    let reason = house.denied(&session_bearer(&house, &granted, &session), &house.nonce()).await;
    assert!(reason.contains("session-caller needs a session verifier"), "{reason}");
    house.close().await;
}

/// A name of a space that is no subject token (contract 03 §H.1).
#[tokio::test(flavor = "multi_thread")]
async fn a_space_in_which_nothing_can_be_issued_refuses_the_caller_that_needs_it() {
    let house = House::build("de mo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = registered(&house, 0).await;
    let reason = house.denied(&bearer_of(&house, &granted, &manager), &house.nonce()).await;
    assert!(reason.contains("nothing can be issued in it"), "{reason}");
    assert!(house.connect(&house.bearer(&granted, Ask::default())).await.is_some());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_issued_ends_with_its_actor_and_its_nonce_is_issued_nothing_again() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
    let manager = registered(&house, 0).await;
    let bearer = bearer_of(&house, &granted, &manager);
    for nonce in ["nonce-issued-1", "nonce-issued-2"] {
        connected(&house, &bearer, nonce).await;
    }
    let ended = end_issuance(&house, &granted).await;
    assert_eq!((ended, attempts(&house, "revoked").await), (2, 2));
    let reason = house.denied(&bearer, "nonce-issued-1").await;
    assert!(reason.contains("it is not active"), "{reason}");
    house.close().await;
}
