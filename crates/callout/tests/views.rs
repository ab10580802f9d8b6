//! Views whose authority the actor's row does not hold, over a real broker: one session, one object, one manager, and the
//! pair that a manager's caller is issued (contract 04 §9, 03 §H.8).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod house;

use std::{sync::Arc, time::Duration};

use cotal_authority::failpoint::Failpoint;
use cotal_broker::kv::{Bucket, LeaderRead, WriteOutcome};
use cotal_callout::CalloutLimits;
use cotal_ledger::GrantInput;
use cotal_testkit::raw::{ConnectOutcome, RawClient};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Actor, Clock, ConnId, DigestRef, EndpointName, InstanceId, LifecycleUid, Owner, Principal, Revision,
    SessionClaim, SessionEndpoint, SessionId, Sha256Hex, TransferWriterClaim, UnixMillis, View,
    canonical::VOID_CLOSURE_DIGEST,
    grants::{self, Capabilities, ConnectPrincipal, Issued, Profile},
    names::{accepted_key, session_key},
    rows::{AcceptedRow, IssuedAuthorityRef, IssuedPermissions, ServiceSpec, ServiceStatus, StatusState},
};
use futures::future::join_all;
use house::{Ask, Granted, House, Plan, field, owner};

/// Writes this over whatever stands there.
async fn put(bucket: &Bucket, key: &str, value: Vec<u8>) -> Revision {
    let at = match bucket.leader_read(key).await.unwrap() {
        LeaderRead::Absent => Revision(0),
        LeaderRead::Marker(revision) => revision,
        LeaderRead::Value(entry) => entry.revision,
    };
    match bucket.put_pinned(key, value.into(), at).await {
        WriteOutcome::Written(revision) => revision,
        other => panic!("{key}: {other:?}"),
    }
}

/// A registered manager of the owner, as its rows say.
struct Manager {
    instance: InstanceId,
    epoch: u64,
    revision: Revision,
}

impl Manager {
    async fn register(house: &House, epoch: u64) -> Self {
        let instance = InstanceId::mint(&SystemEntropy);
        let mut manager = Self { instance, epoch, revision: Revision(0) };
        manager.revision = manager.write_spec(house, &Owner::from(owner())).await;
        manager.report(house, epoch).await;
        manager.open(house).await;
        manager
    }

    async fn write_spec(&self, house: &House, of: &Owner) -> Revision {
        let name = EndpointName::parse("manager").unwrap();
        let spec = ServiceSpec::new(&name, of, vec![DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap()]).unwrap();
        put(&house.bucket("records"), &format!("svc.manager.{}.spec", self.instance), spec.to_bytes()).await
    }

    async fn report(&self, house: &House, epoch: u64) {
        let status = ServiceStatus::new(epoch, StatusState::ready(), self.revision);
        let key = format!("svc.manager.{}.status", self.instance);
        put(&house.bucket("records"), &key, status.to_bytes()).await;
    }

    async fn gate(&self, house: &House, state: &str, principal: &str, epoch: u64) {
        let op = if state == "open" {
            String::new()
        } else {
            format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"registration\"}}", "f".repeat(26))
        };
        let row = format!(
            "{{\"state\":\"{state}\",\"generation\":1,\"processEpoch\":{epoch},\"registrationRevision\":{},\
             \"nameAuthorityRevision\":0,\"principal\":\"{principal}\"{op}}}",
            self.revision.0
        );
        put(&house.auth_bucket(), &format!("epgate.manager.{}", self.instance), row.into_bytes()).await;
    }

    fn principal(&self) -> String {
        format!("{}.manager_serve_{}", owner(), self.instance)
    }

    async fn open(&self, house: &House) {
        self.gate(house, "open", &self.principal(), self.epoch).await;
    }

    /// A bearer bound to this instance.
    fn bearer(&self, house: &House, granted: &Granted) -> String {
        let instance = self.instance.clone();
        house.pinned(granted, View::ManagerCaller, |grant| cotal_trust::bearer::BearerGrant {
            manager_instance_id: Some(instance),
            ..grant
        })
    }

    /// A request of this instance, as a caller without an issued pair, or with one, sends it.
    fn describe(&self, granted: &Granted, generation: Option<&str>) -> String {
        let Granted { owner, actor, uid, .. } = granted;
        match generation {
            None => format!("cotal.demo.ep.inst.manager.{}.describe.{owner}.{actor}.{uid}.n", self.instance),
            Some(generation) => format!(
                "cotal.demo.ep.v1.inst.manager.{}.describe.{owner}.{actor}.{uid}.{generation}.n",
                self.instance
            ),
        }
    }
}

/// What the accepted row of this nonce names.
async fn accepted(house: &House, nonce: &str) -> Option<IssuedAuthorityRef> {
    let conn = ConnId::parse(nonce).unwrap();
    let token = Issued::for_connection(cotal_wire::Generation::mint(&SystemEntropy), &conn).accepted;
    match house.bucket("accepted").leader_read(&accepted_key(&token)).await.unwrap() {
        LeaderRead::Value(entry) => Some(AcceptedRow::parse(&entry.value).unwrap().authority),
        LeaderRead::Absent => None,
        LeaderRead::Marker(_) => panic!("an accepted row is never deleted"),
    }
}

async fn keys(house: &House, filter: &str) -> Vec<String> {
    house.bucket("issued").keys(filter).await.unwrap()
}

async fn state(house: &House, authority: &IssuedAuthorityRef) -> String {
    let row = house.bucket("issued").read_authority(&authority.attempt_key()).await.unwrap().unwrap();
    let row: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
    row["state"].as_str().unwrap().to_owned()
}

/// How many attempts are in this state.
async fn attempts(house: &House, wanted: &str) -> usize {
    let mut found = 0;
    for key in keys(house, "attempt.v1.>").await {
        let key = &key[key.find("attempt.").unwrap()..];
        let row = house.bucket("issued").read_authority(key).await.unwrap().unwrap();
        let row: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
        found += usize::from(row["state"] == wanted);
    }
    found
}

async fn connected(house: &House, bearer: &str, nonce: &str) -> RawClient {
    let (client, outcome) = house.connect_as(bearer, nonce).await;
    assert_eq!(outcome, ConnectOutcome::Connected, "{:#?}", house.lines());
    client.unwrap()
}

// === manager-caller ===========================================================================================

#[tokio::test(flavor = "multi_thread")]
async fn a_managers_caller_is_issued_a_pair_once_a_nonce_and_signed_exactly_that() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["spawn"], &["general"], &["general"]).await;
    let manager = Manager::register(&house, 3).await;
    let bearer = manager.bearer(&house, &granted);
    assert_eq!(house.issuers(), (0, 0), "nobody has dialled yet");

    let mut client = connected(&house, &bearer, "nonce-issued-1").await;
    let authority = accepted(&house, "nonce-issued-1").await.expect("the accepted row");
    assert_eq!(state(&house, &authority).await, "active");
    let generation = authority.generation.to_string();
    let other = "0".repeat(32);
    client.try_publish(&manager.describe(&granted, Some(&generation)), b"").await.unwrap();
    for denied in [
        manager.describe(&granted, None),
        manager.describe(&granted, Some(&other)),
        "cotal.demo.chat.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli.general".to_owned(),
    ] {
        assert!(client.try_publish(&denied, b"").await.is_err(), "{denied}");
    }

    // The evidence is the ceiling that was signed, and it rests on the actor's row alone.
    let evidence = house.bucket("issued").first_authority(&authority.evidence_key()).await.unwrap().unwrap();
    let evidence = cotal_wire::rows::IssuedEvidence::parse(&evidence.value).unwrap();
    let conn_id = ConnId::parse("nonce-issued-1").unwrap();
    let issued = Issued::for_connection(authority.generation.clone(), &conn_id);
    let principal = Principal::new(&granted.owner, granted.actor.clone());
    let who = ConnectPrincipal { principal, conn_id, lifecycle_uid: Some(granted.uid.clone()) };
    let profile = Profile::ManagerCaller {
        instance: manager.instance.clone(),
        capabilities: Capabilities::of_scope(&["spawn"]),
        issued: Some(issued),
    };
    let signed = grants::permissions(&house.material.space.token(), &who, &profile).unwrap();
    let ceiling = IssuedPermissions::of_grants(&signed).unwrap();
    assert_eq!(evidence.permissions().is_same_text(&ceiling), Ok(true));
    let sources: Vec<_> = evidence.sources().iter().map(|source| source.key().to_owned()).collect();
    assert_eq!(sources, [format!("actor.{}.cli.{}", granted.owner, granted.uid)]);

    // Again under the same nonce: the same generation. Under another: another.
    let mut again = connected(&house, &bearer, "nonce-issued-1").await;
    again.try_publish(&manager.describe(&granted, Some(&generation)), b"").await.unwrap();
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
    let (first, second) = (Manager::register(&house, 0).await, Manager::register(&house, 0).await);
    connected(&house, &first.bearer(&house, &alice), "nonce-issued-1").await;
    let held = accepted(&house, "nonce-issued-1").await.unwrap();

    let reason = house.denied(&first.bearer(&house, &other), "nonce-issued-1").await;
    assert!(reason.starts_with("permissions: ") && reason.contains("another caller's issuance"), "{reason}");
    // Another manager is another ceiling: the client needs another nonce.
    let reason = house.denied(&second.bearer(&house, &alice), "nonce-issued-1").await;
    assert!(reason.contains("the ceiling is another one than was issued"), "{reason}");
    assert_eq!(accepted(&house, "nonce-issued-1").await.unwrap(), held);
    assert_eq!((keys(&house, "v1.>").await.len(), attempts(&house, "active").await), (1, 1));
    connected(&house, &second.bearer(&house, &alice), "nonce-issued-2").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_does_not_serve_the_owner_refuses_in_order_and_nothing_is_issued() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = Manager::register(&house, 3).await;
    let bearer = manager.bearer(&house, &granted);
    let unregistered =
        Manager { instance: InstanceId::mint(&SystemEntropy), epoch: 0, revision: Revision(0) };
    let says = async |bearer: &str, instance: &InstanceId, verdict: &str| {
        let reason = house.denied(bearer, &house.nonce()).await;
        let expected =
            format!("permissions: manager instance {instance} is {verdict} at the permission mint");
        assert_eq!(reason, expected);
    };
    says(&unregistered.bearer(&house, &granted), &unregistered.instance, "unknown").await;
    let foreign = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb.manager_serve_x";
    // Frozen and foreign at once: the earlier check speaks.
    manager.gate(&house, "frozen", foreign, 3).await;
    says(&bearer, &manager.instance, "not open").await;
    manager.gate(&house, "open", foreign, 3).await;
    says(&bearer, &manager.instance, "not this owner's").await;
    manager.gate(&house, "open", &manager.principal(), 4).await;
    says(&bearer, &manager.instance, "not registered").await;
    manager.report(&house, 4).await;
    let spec = manager.write_spec(&house, &Owner::from(owner())).await;
    says(&bearer, &manager.instance, "not registered").await;
    let manager = Manager { revision: spec, epoch: 4, ..manager };
    manager.report(&house, 4).await;
    manager.open(&house).await;
    assert!(keys(&house, ">").await.is_empty() && house.issuers() == (0, 0));
    assert_eq!(house.issuance_rows().await, 0);
    connected(&house, &bearer, "nonce-issued-1").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_issued_a_pair_only_while_it_and_its_parent_may_run() {
    let house = House::build("demo", Plan::with_callers()).await;
    let manager = Manager::register(&house, 0).await;
    let grant = |scope: &[&str], actor: &str, parent: Option<&str>| GrantInput {
        owner: owner(),
        actor: Actor::parse(actor).unwrap(),
        scope: scope.iter().map(|scope| (*scope).to_owned()).collect(),
        allow_subscribe: vec![],
        allow_publish: vec![],
        role: None,
        label: None,
        parent: parent.map(|parent| format!("{}.{parent}", owner())),
        lifecycle_uid: Some(LifecycleUid::mint(&SystemEntropy)),
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
        house
            .ledger
            .grant_interactive(&grant(parent_scope, &parent, None), &SystemClock, &SystemEntropy)
            .unwrap();
        let (_, hash) = cotal_ledger::mint_agent_secret(&SystemEntropy);
        let input = grant(scope, &actor, Some(&parent));
        let uid = input.lifecycle_uid.clone().unwrap();
        house.ledger.grant_managed(&input, &hash, &SystemClock).unwrap();
        let actor = Actor::parse(&actor).unwrap();
        let credential = house.plane.mint_connect_credential(&owner(), &actor, &uid).await.unwrap();
        let granted = Granted { owner: owner(), actor, scope: input.scope, uid, credential };
        let nonce = format!("nonce-agent-{nth}");
        let mut client = connected(&house, &manager.bearer(&house, &granted), &nonce).await;
        let pair = accepted(&house, &nonce).await;
        assert_eq!(pair.is_some(), issued, "{parent_scope:?} {scope:?}");
        let legacy = client.try_publish(&manager.describe(&granted, None), b"").await;
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
    let manager = Manager::register(&house, 0).await;
    let reason = house.denied(&manager.bearer(&house, &granted), &house.nonce()).await;
    assert!(reason.contains("manager-caller needs a manager authorizer"), "{reason}");
    let session = Session::new('s', &granted, &manager);
    let reason = house.denied(&session.bearer(&house, &granted), &house.nonce()).await;
    assert!(reason.contains("session-caller needs a session verifier"), "{reason}");
    house.close().await;
}

/// A connect that the deadline cuts while its pair is being issued, held after each of its writes; the client comes back
/// under the same nonce, and only then the first one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_loses_no_issuance_and_a_late_one_doubles_none() {
    // Evidence, attempt, index, activation, accepted row: before its activation, before and after its acceptance.
    for nth in [2, 4, 5] {
        let failpoint = Failpoint::stop_after(nth);
        let limits = CalloutLimits { auth_timeout: Duration::from_secs(6), ..CalloutLimits::default() };
        let plan = Plan {
            callers: true,
            watch: Some(failpoint.clone()).into(),
            callout_limits: limits,
            ..Plan::patient()
        };
        let house = House::build("demo", plan).await;
        let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
        let manager = Manager::register(&house, 0).await;
        let bearer = manager.bearer(&house, &granted);

        let (client, outcome) = house.connect_as(&bearer, "nonce-issued-1").await;
        assert!(client.is_none(), "{outcome:?}");
        failpoint.reached().await;
        house.answered(1).await;
        assert_eq!(house.count("timeout"), 1, "{:#?}", house.lines());
        assert!(house.lines().iter().any(|line| field(line, "at").as_deref() == Some("policy")));
        assert_eq!(house.issuance_rows().await, 0);

        let mut client = connected(&house, &bearer, "nonce-issued-1").await;
        let held = accepted(&house, "nonce-issued-1").await.unwrap();
        failpoint.release();
        // What was cut off has ended when its slot is free: a stop waits for that.
        house.callout.stop().await;
        assert_eq!(accepted(&house, "nonce-issued-1").await.unwrap(), held, "{nth}");
        let generation = held.generation.to_string();
        client.try_publish(&manager.describe(&granted, Some(&generation)), b"").await.unwrap();
        assert_eq!(state(&house, &held).await, "active");
        assert_eq!(attempts(&house, "active").await, 1, "after write {nth}");
        assert_eq!(house.issuance_rows().await, 1, "nothing was signed for the one that was cut off");
        house.plane.close().await.unwrap();
    }
}

/// Killed after each of its writes: the issuing task is gone, as with its process, and a replica answers the client.
#[tokio::test(flavor = "multi_thread")]
async fn a_callout_that_is_killed_between_any_two_writes_leaves_a_nonce_that_connects_again() {
    for nth in 1..=5 {
        let failpoint = Failpoint::stop_after(nth);
        let plan = Plan { callers: true, watch: Some(failpoint.clone()).into(), ..Plan::patient() };
        let house = House::build("demo", plan).await;
        let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
        let manager = Manager::register(&house, 0).await;
        let bearer = manager.bearer(&house, &granted);
        let house = Arc::new(house);
        let first = tokio::spawn({
            let (house, bearer) = (house.clone(), bearer.clone());
            async move { house.connect_as(&bearer, "nonce-issued-1").await.0.is_some() }
        });
        failpoint.reached().await;
        // Only the replica takes connects from here on; the first one's client has gone away.
        let replica = house.start_callout().await;
        first.abort();
        let stopping = tokio::spawn({
            let house = house.clone();
            async move { house.callout.stop().await }
        });
        let mut minted = None;
        while minted.is_none() {
            minted = house.connect_as(&bearer, "nonce-issued-1").await.0;
        }
        let held = accepted(&house, "nonce-issued-1").await.unwrap();
        let generation = held.generation.to_string();
        let describe = manager.describe(&granted, Some(&generation));
        minted.unwrap().try_publish(&describe, b"").await.unwrap();
        assert_eq!(state(&house, &held).await, "active");

        // Whatever the kill left behind, the end of the lifecycle ends.
        let principal = Principal::new(&granted.owner, granted.actor.clone());
        let source = cotal_wire::rows::SourceRef::actor_ledger(&held.space, &principal, &granted.uid);
        let connector = cotal_broker::Connector::new(
            &house.server.url(),
            house.material.space.clone(),
            house.material.account.data_account(),
            cotal_broker::Custody::new(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        cotal_authority::issued::retire_lifecycle_issuance(&connector, &source).await.unwrap();
        assert_eq!(attempts(&house, "active").await, 0, "after write {nth}");
        let reason = house.denied(&bearer, "nonce-issued-1").await;
        assert!(reason.contains("it is not active"), "{reason}");
        assert_eq!(accepted(&house, "nonce-issued-1").await.unwrap(), held, "the nonce stays taken");
        stopping.abort();
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connects_at_once_under_one_nonce_share_one_pair_and_every_other_attempt_has_ended() {
    let house = House::build("demo", Plan::with_callers()).await;
    let replica = house.start_callout().await;
    let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
    let manager = Manager::register(&house, 0).await;
    let bearer = manager.bearer(&house, &granted);
    let outcomes = join_all((0..24).map(|_| house.connect_as(&bearer, "nonce-issued-1"))).await;
    let minted = outcomes.iter().filter(|(client, _)| client.is_some()).count();
    house.answered(24).await;
    assert!(minted >= 1);
    // On a busy machine somebody may wait too long for a turn, and then holds nothing either.
    let told = ["holds another issuance", "too many connects are being issued"];
    let lines = house.lines();
    let turned_away = lines.iter().filter(|line| told.iter().any(|told| line.contains(told))).count();
    assert_eq!(minted + turned_away, 24, "{:#?}", house.lines());
    let held = accepted(&house, "nonce-issued-1").await.unwrap();
    assert_eq!(state(&house, &held).await, "active");
    assert_eq!(attempts(&house, "active").await, 1);
    assert_eq!(attempts(&house, "prepared").await, 0);
    connected(&house, &bearer, "nonce-issued-1").await;
    replica.stop().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_issued_connects_is_issued_over_one_connection_and_plain_ones_go_on_beside_it() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
    let manager = Manager::register(&house, 0).await;
    let (bound, plain) = (manager.bearer(&house, &granted), house.bearer(&granted, Ask::default()));
    let issued = join_all((0..128).map(|_| house.connect(&bound)));
    let plain = join_all((0..32).map(|_| house.connect(&plain)));
    let (issued, plain) = futures::join!(issued, plain);
    assert_eq!(plain.iter().flatten().count(), 32, "{:#?}", house.lines());
    let minted = issued.iter().flatten().count();
    house.answered(160).await;
    // Whoever found no turn in time is told so, and holds nothing.
    let turned_away =
        house.lines().iter().filter(|line| line.contains("too many connects are being issued")).count();
    assert_eq!(minted + turned_away, 128, "{:#?}", house.lines());
    assert!(minted > 0);
    assert_eq!((keys(&house, "v1.>").await.len(), attempts(&house, "active").await), (minted, minted));
    assert_eq!(house.issuers(), (1, 1));
    house.close().await;
}

/// One turn in all, and it is held: nobody else is issued anything, and whoever needs nothing of it connects.
#[tokio::test(flavor = "multi_thread")]
async fn an_issuance_that_hangs_holds_up_issued_connects_alone() {
    let failpoint = Failpoint::stop_after(1);
    let limits = CalloutLimits { max_in_flight: 3, ..Plan::patient().callout_limits };
    let plan = Plan {
        callers: true,
        watch: Some(failpoint.clone()).into(),
        callout_limits: limits,
        ..Plan::patient()
    };
    let house = Arc::new(House::build("demo", plan).await);
    let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
    let manager = Manager::register(&house, 0).await;
    let (bound, plain) = (manager.bearer(&house, &granted), house.bearer(&granted, Ask::default()));
    let hanging = tokio::spawn({
        let (house, bound) = (house.clone(), bound.clone());
        async move { house.connect_as(&bound, "nonce-hanging").await.0.is_some() }
    });
    failpoint.reached().await;
    let reason = house.denied(&bound, &house.nonce()).await;
    assert_eq!(reason, "permissions: too many connects are being issued authority at once; connect again");
    assert!(house.connect(&plain).await.is_some());
    failpoint.release();
    assert!(hanging.await.unwrap(), "and what hung is signed when it goes on");
    assert!(house.connect(&bound).await.is_some());
    Arc::into_inner(house).unwrap().close().await;
}

/// A name of a space that is no subject token (contract 03 §H.1).
#[tokio::test(flavor = "multi_thread")]
async fn a_space_in_which_nothing_can_be_issued_refuses_the_caller_that_needs_it() {
    let house = House::build("de mo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = Manager::register(&house, 0).await;
    let reason = house.denied(&manager.bearer(&house, &granted), &house.nonce()).await;
    assert!(reason.contains("nothing can be issued in it"), "{reason}");
    assert!(house.connect(&house.bearer(&granted, Ask::default())).await.is_some());
    house.close().await;
}

// === session-caller ===========================================================================================

/// A redeemed session of the caller with a manager.
struct Session {
    id: SessionId,
    instance: InstanceId,
    holder: String,
    uid: LifecycleUid,
    epoch: u64,
    exp: UnixMillis,
}

impl Session {
    fn new(letter: char, granted: &Granted, manager: &Manager) -> Self {
        Self {
            id: SessionId::parse(&letter.to_string().repeat(43)).unwrap(),
            instance: manager.instance.clone(),
            holder: format!("{}.{}", granted.owner, granted.actor),
            uid: granted.uid.clone(),
            epoch: manager.epoch,
            exp: SystemClock.now_millis().plus(3_600_500),
        }
    }

    async fn write(&self, house: &House, state: &str) {
        let Self { id, instance, holder, uid, epoch, exp } = self;
        let row = format!(
            "{{\"sessionId\":\"{id}\",\"endpoint\":\"manager\",\"serving\":{{\"instanceId\":\"{instance}\",\
             \"epoch\":{epoch}}},\"holder\":{{\"principal\":\"{holder}\",\"lifecycleUid\":\"{uid}\"}},\
             \"grantSig\":\"sig\",\"credCaller\":\"{uid}.{id}.c\",\"credServing\":\"manager.{instance}.{id}.s\",\
             \"revoked\":{{\"caller\":false,\"serving\":false}},\"state\":\"{state}\",\"exp\":{}}}",
            exp.0
        );
        put(&house.bucket("sessions"), &session_key(id), row.into_bytes()).await;
    }

    fn claim(&self) -> SessionClaim {
        SessionClaim {
            endpoint: SessionEndpoint::parse("manager").unwrap(),
            session_id: self.id.clone(),
            epoch: self.epoch,
            exp: self.exp.to_secs(),
        }
    }

    fn bearer(&self, house: &House, granted: &Granted) -> String {
        let claim = self.claim();
        house.pinned(granted, View::SessionCaller, |grant| cotal_trust::bearer::BearerGrant {
            session: Some(claim),
            ..grant
        })
    }

    fn rail(&self, end: &str) -> String {
        format!("cotal.demo.eps.manager.{}.{}.{end}", self.id, self.epoch)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_caller_gets_its_session_until_the_session_ends_and_nothing_else() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["spawn"], &["general"], &["general"]).await;
    let manager = Manager::register(&house, 3).await;
    let session = Session::new('s', &granted, &manager);
    session.write(&house, "active").await;
    let mut client = connected(&house, &session.bearer(&house, &granted), &house.nonce()).await;
    client.try_publish(&session.rail("in"), b"").await.unwrap();
    client.try_subscribe(&session.rail("out"), None).await.unwrap();
    for denied in [
        session.rail("out"),
        "cotal.demo.chat.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli.general".to_owned(),
        manager.describe(&granted, None),
        "$JS.API.INFO".to_owned(),
    ] {
        assert!(client.try_publish(&denied, b"").await.is_err(), "{denied}");
    }
    assert!(client.try_subscribe(&session.rail("in"), None).await.is_err());
    // The JWT lives as long as the session, not as the bearer; the issuance row says so.
    let key = house.auth_bucket().keys("natkey.>").await.unwrap().remove(0);
    let key = &key[key.find("natkey.").unwrap()..];
    let row = house.auth_bucket().read_authority(key).await.unwrap().unwrap();
    let row: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
    assert_eq!(row["view"], "session-caller");
    assert_eq!(row["exp"].as_u64(), Some(session.exp.to_secs().0));
    assert_eq!(house.issuers(), (0, 0), "a session needs no pair");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_promises_years_is_signed_a_day() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = Manager::register(&house, 0).await;
    let session = Session {
        exp: SystemClock.now_millis().plus(400 * 86_400_000),
        ..Session::new('s', &granted, &manager)
    };
    session.write(&house, "active").await;
    connected(&house, &session.bearer(&house, &granted), &house.nonce()).await;
    let key = house.auth_bucket().keys("natkey.>").await.unwrap().remove(0);
    let key = &key[key.find("natkey.").unwrap()..];
    let row = house.auth_bucket().read_authority(key).await.unwrap().unwrap();
    let row: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
    assert_eq!(row["exp"].as_u64().unwrap() - row["iat"].as_u64().unwrap(), 86_400);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ended_or_is_not_the_callers_refuses_the_connect_in_order() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = Manager::register(&house, 3).await;
    let session = Session::new('s', &granted, &manager);
    let bearer = session.bearer(&house, &granted);
    let says = async |why: &str| {
        let reason = house.denied(&bearer, &house.nonce()).await;
        assert_eq!(reason, format!("permissions: session redemption refused: {why}"));
    };
    // Each case mends the first fault of the case before it.
    says("there is no such session").await;
    let past = SystemClock.now_millis();
    let mut wrong = Session {
        holder: "u_bbbbbbbbbbbbbbbbbbbbbbbbbb.cli".to_owned(),
        uid: LifecycleUid::mint(&SystemEntropy),
        epoch: 4,
        exp: past,
        ..Session::new('s', &granted, &manager)
    };
    for state in ["issuing", "closed", "expired", "superseded", "retired"] {
        wrong.write(&house, state).await;
        says("the session is not active").await;
    }
    wrong.write(&house, "active").await;
    says("another principal holds the session").await;
    wrong.holder.clone_from(&session.holder);
    wrong.write(&house, "active").await;
    says("another incarnation holds the session").await;
    wrong.uid.clone_from(&session.uid);
    wrong.write(&house, "active").await;
    says("another epoch serves the session").await;
    wrong.epoch = session.epoch;
    wrong.write(&house, "active").await;
    says("the session has expired").await;
    // Another end than the bearer was signed for.
    wrong.exp = session.exp.plus(1_000);
    wrong.write(&house, "active").await;
    let reason = house.denied(&bearer, &house.nonce()).await;
    assert!(reason.contains("the session's end is another one"), "{reason}");
    session.write(&house, "active").await;
    connected(&house, &bearer, &house.nonce()).await;

    // The manager that serves it.
    manager.gate(&house, "frozen", &manager.principal(), 3).await;
    says("the manager that serves the session is not open").await;
    manager.gate(&house, "open", &manager.principal(), 4).await;
    says("the manager that serves the session is not registered").await;
    manager.report(&house, 4).await;
    says("the manager that serves the session has registered again since").await;
    manager.report(&house, 3).await;
    manager.open(&house).await;
    connected(&house, &bearer, &house.nonce()).await;
    // Deleted is absent.
    let sessions = house.bucket("sessions");
    let at = sessions.read_authority(&session_key(&session.id)).await.unwrap().unwrap().revision;
    let deleted = sessions.delete_pinned(&session_key(&session.id), at).await;
    assert!(matches!(deleted, WriteOutcome::Written(_)), "{deleted:?}");
    says("there is no such session").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_retired_while_its_holder_connects_is_seen_by_the_recheck() {
    let house = Arc::new(House::build("demo", Plan::with_callers()).await);
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = Manager::register(&house, 0).await;
    let session = Session::new('s', &granted, &manager);
    session.write(&house, "active").await;
    let bearer = session.bearer(&house, &granted);
    // Past every check, before the record: the reading for `iat`.
    house.clock.at_reading(2, {
        let (house, session) = (house.clone(), Session::new('s', &granted, &manager));
        move || {
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(session.write(&house, "retired"));
            });
        }
    });
    let reason = house.denied(&bearer, &house.nonce()).await;
    assert_eq!(
        reason,
        "revoked while connecting: permissions: session redemption refused: the session is not active"
    );
    assert_eq!(house.count("minted"), 0);
    house.callout.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sessions_store_of_another_shape_admits_no_session_and_every_other_connect() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let manager = Manager::register(&house, 0).await;
    let session = Session::new('s', &granted, &manager);
    session.write(&house, "active").await;
    let ask = async |verb: &str, body: String| {
        let subject = format!("$JS.API.STREAM.{verb}.KV_cotal_sessions_demo");
        let answer = house.admin.request(&subject, &[], body.into(), Duration::from_secs(10)).await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&answer.payload).unwrap()
    };
    let mut info = ask("INFO", String::new()).await;
    info["config"]["allow_direct"] = true.into();
    ask("UPDATE", info["config"].to_string()).await;
    let reason = house.denied(&session.bearer(&house, &granted), &house.nonce()).await;
    assert!(reason.contains("KV_cotal_sessions_demo"), "{reason}");
    ask("DELETE", String::new()).await;
    let reason = house.denied(&session.bearer(&house, &granted), &house.nonce()).await;
    assert!(reason.contains("KV_cotal_sessions_demo"), "{reason}");
    assert!(house.connect(&house.bearer(&granted, Ask::default())).await.is_some());
    house.close().await;
}

// === transfer-writer ==========================================================================================

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_writer_writes_its_one_object_and_nothing_beside_it() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["admin"], &["general"], &["general"]).await;
    let (instance, other) = (InstanceId::mint(&SystemEntropy), InstanceId::mint(&SystemEntropy));
    let (hex, else_hex) = ("ab".repeat(32), "cd".repeat(32));
    let object = TransferWriterClaim { instance_id: instance.clone(), hex: Sha256Hex::parse(&hex).unwrap() };
    let bearer = house.pinned(&granted, View::TransferWriter, |grant| cotal_trust::bearer::BearerGrant {
        transfer_writer: Some(object),
        ..grant
    });
    let mut client = connected(&house, &bearer, &house.nonce()).await;
    let chunk = |instance: &InstanceId, hex: &str| format!("$O.cotal_xfer_demo_{instance}.C.{hex}");
    client.try_publish(&chunk(&instance, &hex), b"").await.unwrap();
    for denied in [
        chunk(&instance, &else_hex),
        chunk(&other, &hex),
        format!("$JS.API.STREAM.PURGE.OBJ_cotal_xfer_demo_{instance}"),
        format!("$JS.API.STREAM.CREATE.OBJ_cotal_xfer_demo_{instance}"),
        "$JS.API.INFO".to_owned(),
        "cotal.demo.chat.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli.general".to_owned(),
    ] {
        assert!(client.try_publish(&denied, b"").await.is_err(), "{denied}");
    }
    // Taken back with its capability, as every view.
    let mut less = granted.clone();
    less.scope = vec![];
    let object = TransferWriterClaim { instance_id: instance, hex: Sha256Hex::parse(&hex).unwrap() };
    let bearer = house.pinned(&less, View::TransferWriter, |grant| cotal_trust::bearer::BearerGrant {
        transfer_writer: Some(object),
        ..grant
    });
    let reason = house.denied(&bearer, &house.nonce()).await;
    assert_eq!(reason, "permissions: the view transfer-writer needs the capability admin");
    house.close().await;
}

// === the end of a source ======================================================================================

#[tokio::test(flavor = "multi_thread")]
async fn what_was_issued_ends_with_its_actor_and_its_nonce_is_issued_nothing_again() {
    let house = House::build("demo", Plan::with_callers()).await;
    let granted = house.grant("cli", &["spawn"], &["general"], &[]).await;
    let manager = Manager::register(&house, 0).await;
    let bearer = manager.bearer(&house, &granted);
    for nonce in ["nonce-issued-1", "nonce-issued-2"] {
        connected(&house, &bearer, nonce).await;
    }
    let principal = Principal::new(&granted.owner, granted.actor.clone());
    let source =
        cotal_wire::rows::SourceRef::actor_ledger(&house.material.space.token(), &principal, &granted.uid);
    let connector = cotal_broker::Connector::new(
        &house.server.url(),
        house.material.space.clone(),
        house.material.account.data_account(),
        cotal_broker::Custody::new(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    );
    let ended = cotal_authority::issued::retire_lifecycle_issuance(&connector, &source).await.unwrap();
    assert_eq!((ended, attempts(&house, "revoked").await), (2, 2));
    let reason = house.denied(&bearer, "nonce-issued-1").await;
    assert!(reason.contains("it is not active"), "{reason}");
    house.close().await;
}
