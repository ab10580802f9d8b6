//! Live, gone, unknown: of principals and of the plane's connections.

use cotal_authority::{
    claim_oracle::{ClaimOracle as _, ClaimTuples, Verdict},
    evict::Evictor as _,
    registration::{PrincipalLiveness as _, reconcile},
};
use cotal_broker::{Connection, Lifetime};
use cotal_delivery::CredsKind;
use cotal_wire::grants::infra;
use serde_json::json;

use crate::house::{House, eventually, principal};

/// A connection as a sealed scanner holds it.
async fn scanner(house: &House) -> Connection {
    let token = house.space.token();
    let grants = move |conn: &cotal_wire::ConnId| infra::ledger_scanner(&token, conn);
    house.connector.open("cotal:auth-scan:main".into(), &grants, Lifetime::PlaneOwned).await.unwrap()
}

#[tokio::test]
async fn a_principal_is_live_while_a_connection_of_it_is_there_and_gone_after() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let alice = principal("alice");
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Gone);
    let client = house.client(&alice).await;
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Live);
    assert_eq!(house.admin().principal_liveness(&principal("bob")).await, Verdict::Gone);
    drop(client);
    eventually("alice is gone", async || house.admin().principal_liveness(&alice).await == Verdict::Gone)
        .await;
}

#[tokio::test]
async fn the_planes_connections_are_told_apart_by_server_number_and_user() {
    let (mut server, house) = House::start().await;
    let daemon = house.daemon().await;
    let (ledger, records) = (scanner(&house).await, scanner(&house).await);
    let tuples =
        ClaimTuples { ledger: ledger.tuple().unwrap().clone(), records: records.tuple().unwrap().clone() };
    let both = house.admin().observe(&tuples).await;
    assert_eq!((both.ledger, both.records, both.sweep_complete), (Verdict::Live, Verdict::Live, true));

    ledger.close().await.unwrap();
    let one = house.admin().observe(&tuples).await;
    assert_eq!((one.ledger, one.records, one.sweep_complete), (Verdict::Gone, Verdict::Live, true));

    // Somebody else's user under the pinned number is no proof of anything.
    let mut swapped = tuples.clone();
    swapped.records.user_nkey = tuples.ledger.user_nkey.clone();
    let confused = house.admin().observe(&swapped).await;
    assert_eq!((confused.ledger, confused.records), (Verdict::Gone, Verdict::Unknown));

    // A server that restarted is another one: what was on the old is gone.
    daemon.stop().await;
    server.restart().await;
    eventually("the daemon starts again", async || house.try_daemon().await.is_ok()).await;
    let _daemon = house.daemon().await;
    let after = house.admin().observe(&tuples).await;
    assert_eq!((after.ledger, after.records, after.sweep_complete), (Verdict::Gone, Verdict::Gone, true));
}

#[tokio::test]
async fn without_a_daemon_everything_is_unknown() {
    let (_server, house) = House::start().await;
    let alice = principal("alice");
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Unknown);
    let held = scanner(&house).await;
    let tuples =
        ClaimTuples { ledger: held.tuple().unwrap().clone(), records: held.tuple().unwrap().clone() };
    let observation = house.admin().observe(&tuples).await;
    assert_eq!((observation.ledger, observation.records), (Verdict::Unknown, Verdict::Unknown));
    assert!(!observation.sweep_complete && observation.tuples == tuples);
    assert!(observation.note.unwrap().contains("cotal status"));

    let daemon = house.daemon().await;
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Gone);
    daemon.stop().await;
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Unknown, "a stopped rail");
}

#[tokio::test]
async fn an_observer_that_is_lost_later_leaves_everything_unknown() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let alice = principal("alice");
    house.store.remove(CredsKind::MembershipObserver);
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Unknown);
    let rotated = house.trust.rotate_system_account(
        &cotal_trust::system::SystemEntropy,
        cotal_wire::Clock::now_secs(&cotal_trust::system::SystemClock),
    );
    house.store.put(CredsKind::MembershipObserver, &house.observer_creds(&rotated.unwrap()));
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Unknown, "of another system account");
    house.store.put(CredsKind::MembershipObserver, &house.observer_creds(&house.trust));
    assert_eq!(house.admin().principal_liveness(&alice).await, Verdict::Gone);
}

/// Answers every request of the rail with what `answer` makes of it; nothing, when it makes nothing.
async fn impostor(
    house: &House,
    answer: impl Fn(&serde_json::Value) -> Option<serde_json::Value> + Send + 'static,
) {
    let mut requests = house.anything.subscribe("cotal.main.ctl.delivery-admin.*.*", None).await.unwrap();
    house.anything.flush().await.unwrap();
    let connection = house.anything.clone();
    tokio::spawn(async move {
        while let Some(message) = requests.next().await {
            let request = serde_json::from_slice(&message.payload).unwrap();
            if let Some(answer) = answer(&request) {
                let reply = message.reply.unwrap();
                connection.publish(&reply, &[], answer.to_string().into()).await.unwrap();
            }
        }
    });
}

#[tokio::test]
async fn an_answer_that_is_anothers_or_contradicts_itself_proves_nothing() {
    let (_server, house) = House::start().await;
    let (alice, bob) = (principal("alice"), principal("bob"));
    let bobs = bob.key();
    impostor(&house, move |request| {
        Some(match request["op"].as_str().unwrap() {
            // Whoever is asked about, bob is gone.
            "principalLiveness" => {
                json!({ "ok": true, "data": { "principal": bobs, "state": "gone", "sweepComplete": true } })
            }
            "evictPrincipal" => json!({
                "ok": true,
                "data": {
                    "principal": bobs, "kicked": 0, "remaining": 0, "verifiedGone": true, "scanComplete": false,
                },
            }),
            "evictPrincipals" => json!({ "ok": true, "data": [] }),
            "planeConnLiveness" => {
                let of = |role: &str| json!({ "tuple": request["args"]["query"][role], "state": "gone" });
                let data = json!({ "ledger": of("ledger"), "records": of("records"), "sweepComplete": false });
                json!({ "ok": true, "data": data })
            }
            _ => json!({ "ok": false, "error": "no\u{1b}[31m" }),
        })
    })
    .await;
    let admin = house.admin();
    assert_eq!(admin.principal_liveness(&bob).await, Verdict::Gone);
    assert_eq!(admin.principal_liveness(&alice).await, Verdict::Unknown);
    for principals in [vec![&alice], vec![&bob], vec![&alice, &bob]] {
        let asked = principals.into_iter().cloned().collect();
        for eviction in admin.evict(&asked).await {
            assert!(!eviction.verified_gone && eviction.note.is_some(), "{eviction:?}");
        }
    }
    let held = scanner(&house).await;
    let tuples =
        ClaimTuples { ledger: held.tuple().unwrap().clone(), records: held.tuple().unwrap().clone() };
    let observation = admin.observe(&tuples).await;
    assert_eq!((observation.ledger, observation.records), (Verdict::Unknown, Verdict::Unknown));
    let refusal = admin.store_identity().await.unwrap_err();
    assert!(!refusal.message.contains('\u{1b}'), "{refusal:?}");
}

#[tokio::test]
async fn a_rail_that_hangs_is_given_up_within_the_budget() {
    let (_server, house) = House::start().await;
    impostor(&house, |_| None).await;
    let began = std::time::Instant::now();
    let refusal = house.admin().challenge().await.unwrap_err();
    assert!(refusal.message.contains("cotal status"), "{refusal}");
    let took = began.elapsed().as_secs();
    assert!((4..9).contains(&took), "{took} s");
}

#[tokio::test]
async fn a_rail_that_nobody_hears_is_told_from_one_that_answers_what_cannot_be_used() {
    let (_server, house) = House::start().await;
    let (admin, alice) = (house.admin(), principal("alice"));
    assert_eq!(admin.challenge().await, Ok(None), "nobody is there");
    assert!(admin.store_identity().await.unwrap_err().message.contains("nobody hears"));
    assert_eq!(admin.liveness(&alice).await, reconcile::Liveness::Unestablishable);
    impostor(&house, |_| Some(json!({ "ok": true, "data": {} }))).await;
    admin.challenge().await.unwrap_err();
    assert_eq!(admin.liveness(&alice).await, reconcile::Liveness::Unestablishable);
    assert_eq!(admin.principal_liveness(&alice).await, Verdict::Unknown);
}
