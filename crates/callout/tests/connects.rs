//! Connects through a real broker: what is minted, what is denied, and in which order.

mod house;

use std::{sync::Arc, time::Duration};

use cotal_callout::{CalloutLimits, ConnectLimits, denial::GRANT_CHANGED};
use cotal_ledger::GrantInput;
use cotal_testkit::raw::ConnectOutcome;
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Actor, LifecycleUid, View};
use futures::future::join_all;
use house::{Ask, House, Plan, field};
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
async fn a_minted_connect_may_do_exactly_what_its_template_says() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general", "team.>"], &["general"]).await;
    let nonce = house.nonce();
    let (client, outcome) = house.connect_as(&house.bearer(&granted, Ask::default()), &nonce).await;
    assert_eq!(outcome, ConnectOutcome::Connected, "{:?}\n{}", house.lines(), house.server.log());
    let mut client = client.unwrap();
    let me = format!("{}.{}", granted.owner, granted.actor);

    for allowed in [
        format!("cotal.demo.chat.{me}.general"),
        format!("cotal.demo.inst.{}.other.{me}", granted.owner),
        format!("$KV.cotal_presence_demo.{me}"),
    ] {
        assert_eq!(client.try_publish(&allowed, b"x").await, Ok(()), "{allowed}");
    }
    for refused in [
        format!("cotal.demo.chat.{me}.secret"),
        format!("cotal.demo.chat.{}.other.general", granted.owner),
        "$KV.cotal_auth_demo.plane".to_owned(),
        "$JS.API.STREAM.DELETE.KV_cotal_auth_demo".to_owned(),
        "$SYS.REQ.USER.AUTH".to_owned(),
    ] {
        let violation = client.try_publish(&refused, b"x").await.expect_err(&refused);
        assert!(violation.contains("Permissions Violation"), "{refused}: {violation}");
    }
    for allowed in [
        format!("_INBOX_{nonce}.>"),
        "cotal.demo.chat.*.*.general".to_owned(),
        "cotal.demo.chat.*.*.team.>".to_owned(),
    ] {
        assert_eq!(client.try_subscribe(&allowed, None).await, Ok(()), "{allowed}");
    }
    for refused in
        ["_INBOX_other-nonce.>", "_INBOX.>", "cotal.demo.chat.>", "cotal.demo.chat.*.*.secret", ">", "$SYS.>"]
    {
        let violation = client.try_subscribe(refused, None).await.expect_err(refused);
        assert!(violation.contains("Permissions Violation"), "{refused}: {violation}");
    }

    house.answered(1).await;
    let lines = house.lines();
    let line = lines.iter().find(|line| line.contains(" outcome=minted ")).unwrap();
    assert_eq!(field(line, "owner").as_deref(), Some(granted.owner.as_str()));
    assert_eq!(field(line, "actor").as_deref(), Some("cli"));
    assert_eq!(house.issuance_rows().await, 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_issuance_row_is_the_minted_jwts_own() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &["admin"], &[], &[]).await;
    let ask = Ask { view: Some(View::ChannelPurger), age: 1 };
    let mut client = house.connect(&house.bearer(&granted, ask)).await.expect("minted");
    assert_eq!(client.try_publish("$JS.API.STREAM.PURGE.CHAT_demo", b"").await, Ok(()));
    assert!(client.try_publish("$JS.API.STREAM.PURGE.DM_demo", b"").await.is_err());

    let key = house.auth_bucket().keys("natkey.>").await.unwrap().remove(0);
    let key = key[key.find("natkey.").unwrap()..].to_owned();
    let row = house.auth_bucket().read_authority(&key).await.unwrap().unwrap();
    let row: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
    assert_eq!(row["view"], "channel-purger");
    assert_eq!(row["credentialId"], granted.credential.as_str());
    assert_eq!(row["lifecycleUid"], granted.uid.as_str());
    let (iat, exp) = (row["iat"].as_u64().unwrap(), row["exp"].as_u64().unwrap());
    assert_eq!(exp - iat, 899, "exp is the bearer's, iat is the mint's");
    house.answered(1).await;
    let line = &house.lines().into_iter().find(|line| line.contains(" outcome=minted ")).unwrap();
    assert_eq!(format!("natkey.{}", field(line, "req").unwrap()), key);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_breaks_two_rules_is_denied_by_the_earlier() {
    let house = House::build("demo", Plan::patient()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let good = house.bearer(&granted, Ask::default());
    let bad_name = "no nonce";

    // Rule 7 before 8: there is no bearer to verify.
    assert!(house.denied("", bad_name).await.starts_with("no bearer"));
    // Rule 8 before 9 and 10.
    assert!(house.denied("a.b.c", bad_name).await.starts_with("bearer: "));
    // The file arm before the credential arm: neither exists for this incarnation.
    let mut stranger = granted.clone();
    stranger.uid = LifecycleUid::parse("abcdefghijklmnopqrstuvwxyz").unwrap();
    let stale = house.bearer(&stranger, Ask::default());
    assert!(house.denied(&stale, bad_name).await.starts_with("actor ledger: "));
    // The credential arm before the nonce.
    let mut unissued = granted.clone();
    unissued.credential = cotal_wire::CredentialId::parse("never-issued").unwrap();
    let unissued = house.bearer(&unissued, Ask::default());
    assert!(house.denied(&unissued, bad_name).await.starts_with("credential: "));
    // The nonce before the permissions.
    let view = house.bearer(&granted, Ask { view: Some(View::Deployer), age: 0 });
    assert!(house.denied(&view, bad_name).await.starts_with("no inbox nonce"));
    assert!(house.denied(&view, "good-nonce").await.starts_with("permissions: "));
    // Each of these left no row.
    assert_eq!(house.issuance_rows().await, 0);
    assert!(house.connect(&good).await.is_some());
    assert_eq!(house.issuance_rows().await, 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_ledger_row_denies_the_next_connect() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    assert!(house.connect(&bearer).await.is_some());
    assert!(house.ledger.revoke_interactive(&granted.owner, &granted.actor).unwrap());
    assert!(house.denied(&bearer, &house.nonce()).await.starts_with("actor ledger: "));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capability_that_was_taken_back_denies_the_next_connect() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let mut more = granted.clone();
    more.scope = vec!["admin".to_owned()];
    let bearer = house.bearer(&more, Ask { view: Some(View::Admin), age: 0 });
    assert!(house.denied(&bearer, &house.nonce()).await.starts_with("actor ledger: "));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_credential_row_denies_the_next_connect() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    assert!(house.connect(&bearer).await.is_some());

    let bucket = house.auth_bucket();
    let key = format!("cred.{}.{}", granted.uid, granted.credential);
    let entry = bucket.read_authority(&key).await.unwrap().expect("the credential row");
    let text = std::str::from_utf8(&entry.value).unwrap();
    assert!(text.contains(r#""state":"active""#), "{text}");
    let revoked = text.replace(r#""state":"active""#, r#""state":"revoked""#);
    let outcome = bucket.put_pinned(&key, revoked.into_bytes().into(), entry.revision).await;
    assert!(matches!(outcome, cotal_broker::kv::WriteOutcome::Written(_)), "{outcome:?}");

    assert!(house.denied(&bearer, &house.nonce()).await.starts_with("credential: "));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_bearer_is_denied_and_still_charged_to_its_actor() {
    let limits = ConnectLimits { per_actor_per_minute: 2, ..ConnectLimits::default() };
    let house = House::build("demo", Plan { connect_limits: limits, ..Plan::default() }).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let expired = house.bearer(&granted, Ask { age: 1_000, ..Ask::default() });
    for _ in 0..2 {
        assert!(house.denied(&expired, &house.nonce()).await.starts_with("bearer: "));
    }
    // The actor's own, good bearer pays for the expired ones.
    let good = house.bearer(&granted, Ask::default());
    let reason = house.denied(&good, &house.nonce()).await;
    assert!(
        reason.starts_with("RATE_LIMITED retry-after ") && reason.contains(granted.owner.as_str()),
        "{reason}"
    );
    let lines = house.lines();
    let line = lines.last().unwrap();
    assert_eq!(field(line, "actor").as_deref(), Some("cli"));
    // Limited before the ledger is read: a row that is gone changes nothing.
    house.ledger.revoke_interactive(&granted.owner, &granted.actor).unwrap();
    assert!(house.denied(&good, &house.nonce()).await.starts_with("RATE_LIMITED "));
    assert!(house.limiter.check_principal(&granted.owner, &granted.actor).is_err());
    assert!(house.limiter.check_principal(&granted.owner, &Actor::parse("other").unwrap()).is_ok());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bearer_in_its_last_seconds_of_tolerance_is_minted_nothing() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let late = house.bearer(&granted, Ask { age: 902, ..Ask::default() });
    assert_eq!(house.denied(&late, &house.nonce()).await, "the bearer has expired: exchange for a new one");
    assert_eq!(house.issuance_rows().await, 0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_limited_by_host_and_a_verified_user_of_that_host_is_not() {
    let plan = Plan { connect_limits: ConnectLimits::default(), ..Plan::patient() };
    let house = Arc::new(House::build("demo", plan).await);
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let good = house.bearer(&granted, Ask::default());
    let rows = house.issuance_rows().await;

    let garbage = join_all((0..400).map(|n| {
        let house = Arc::clone(&house);
        async move { house.connect(&format!("garbage.{n}.garbage")).await.is_some() }
    }));
    let users = join_all((0..20).map(|_| house.connect(&good)));
    let (garbage, users) = tokio::join!(garbage, users);
    assert!(garbage.into_iter().all(|connected| !connected));
    assert!(users.iter().all(Option::is_some), "{:#?}", house.lines());
    house.answered(420).await;

    let lines = house.lines();
    let limited = lines.iter().filter(|line| line.contains("reason=\"RATE_LIMITED retry-after ")).count();
    assert!(limited >= 300, "{limited}");
    assert!(lines.iter().all(|line| !line.contains("RATE_LIMITED") || line.contains(" host 127.0.0.1")));
    assert_eq!(house.issuance_rows().await, rows + 20);
    Arc::into_inner(house).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_and_fifty_six_connects_at_once_are_all_minted_with_one_row_each() {
    let house = House::build("demo", Plan::patient()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    let outcomes =
        join_all((0..256).map(|_| async { house.connect_as(&bearer, &house.nonce()).await })).await;
    let minted = outcomes.iter().filter(|(client, _)| client.is_some()).count();
    house.answered(256).await;
    assert_eq!(house.lines().iter().filter(|line| line.contains(" outcome=")).count(), 256, "one line each");
    assert_eq!(house.count("minted"), minted);
    assert_eq!(house.issuance_rows().await, minted);
    assert_eq!(minted, 256, "{:#?}", house.lines());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_callout_has_answered_what_it_took_and_answers_no_more() {
    // Short enough to wait for: whoever is not answered is refused by the broker then.
    const PATIENT: Duration = Duration::from_secs(4);
    let limits = CalloutLimits { auth_timeout: PATIENT, ..CalloutLimits::default() };
    let house = House::build("demo", Plan { callout_limits: limits, ..Plan::patient() }).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    let connects = join_all((0..64).map(|_| house.connect(&bearer)));
    let (clients, ()) = tokio::join!(connects, async {
        while house.count("minted") < 8 {
            tokio::task::yield_now().await;
        }
        house.callout.stop().await;
        house.callout.stop().await;
    });
    house.callout.ended().await;
    let reached = clients.iter().flatten().count();
    let lines = house.lines();
    let minted = lines.iter().filter(|line| line.contains(" outcome=minted "));
    let took: Vec<u64> = minted.map(|line| field(line, "total_ms").unwrap().parse().unwrap()).collect();
    // Of one that took long, on a machine that stood still meanwhile, the broker may have heard too late.
    let soon = took.iter().filter(|ms| u128::from(**ms) < PATIENT.as_millis() / 2).count();
    assert!(took.len() >= 8 && (soon..=took.len()).contains(&reached), "{reached} were let in: {took:?}");
    let lines = lines.len();
    assert!(house.connect(&bearer).await.is_none());
    assert_eq!(house.lines().len(), lines);
}

/// It has nobody to hand its answers to, and waits for nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_callout_stops_without_its_broker() {
    const AT_LAST: Duration = Duration::from_secs(20);
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    house.connect(&house.bearer(&granted, Ask::default())).await.expect("minted");
    house.server.pause();
    timeout(AT_LAST, house.callout.stop()).await.expect("a broker that does not answer");
    house.server.resume();

    let mut house = House::build("demo", Plan::default()).await;
    house.server.kill();
    timeout(AT_LAST, house.callout.stop()).await.expect("a broker that is gone");
    house.server.start_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_line_carries_a_bearer() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let good = house.bearer(&granted, Ask::default());
    let mut forged = good.clone();
    forged.replace_range(good.len() - 4.., "AAAA");
    house.connect(&good).await.expect("minted");
    house.denied(&forged, &house.nonce()).await;
    house.denied(&good, "x\" reason=\"y").await;
    let parts: Vec<_> = good.split('.').chain(forged.split('.')).collect();
    for text in house.lines().into_iter().chain([house.server.log()]) {
        assert!(parts.iter().all(|part| !text.contains(part)), "{text}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_revoked_after_the_checks_is_seen_by_the_recheck_and_the_record_stays() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    // The callout reads the clock to verify, then again for `iat`: past every check, before the record.
    let (ledger, revoked) = (house.ledger.clone(), granted.clone());
    house.clock.at_reading(2, move || {
        ledger.revoke_interactive(&revoked.owner, &revoked.actor).unwrap();
    });
    let reason = house.denied(&bearer, &house.nonce()).await;
    let (prefix, why) =
        ("revoked while connecting: permissions: ", "it has no row in the ledger: it was revoked");
    assert!(reason.starts_with(prefix) && reason.contains(why), "{reason}");
    assert_eq!(house.issuance_rows().await, 1, "the row of a connect that was denied last stays");
    assert_eq!(house.count("minted"), 0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_narrowed_after_the_checks_is_seen_by_the_recheck() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general", "secrets"], &["general"]).await;
    let bearer = house.bearer(&granted, Ask::default());
    let (ledger, row) = (house.ledger.clone(), granted.clone());
    house.clock.at_reading(2, move || {
        // A re-grant that keeps the incarnation and the capabilities: only the lists tell.
        let narrower = GrantInput::new(row.owner.clone(), row.actor.clone())
            .allow_subscribe(["general"])
            .allow_publish(["general"])
            .lifecycle_uid(row.uid.clone());
        ledger.grant_interactive(&narrower, &SystemClock, &SystemEntropy).unwrap();
    });
    let reason = house.denied(&bearer, &house.nonce()).await;
    assert_eq!(reason, format!("revoked while connecting: {GRANT_CHANGED}"));
    assert_eq!(house.count("minted"), 0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_reader_denies_every_connect() {
    let house = House::build("demo", Plan::default()).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    house.plane.reader().close().await.unwrap();
    assert!(house.denied(&bearer, &house.nonce()).await.starts_with("credential: "));
    house.callout.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_listed_gets_no_answer_and_one_line() {
    let listed = Some(vec!["NOBODY".to_owned()]);
    let house = House::build("demo", Plan { expected_server_ids: listed, ..Plan::default() }).await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    assert!(house.connect(&house.bearer(&granted, Ask::default())).await.is_none());
    let lines = house.lines();
    assert!(lines.iter().all(|line| !line.contains(" outcome=")), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains("dropped a request of a server")).count(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_queue_group_and_answer_each_connect_once() {
    let house = House::build("demo", Plan::patient()).await;
    let replica = house.start_callout().await;
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let bearer = house.bearer(&granted, Ask::default());
    let clients = join_all((0..32).map(|_| house.connect(&bearer))).await;
    assert_eq!(clients.iter().flatten().count(), 32);
    house.answered(32).await;
    assert_eq!(house.count("minted"), 32);
    replica.stop().await;
    assert!(house.connect(&bearer).await.is_some(), "the other goes on");
    assert_eq!(house.issuance_rows().await, 33);
    house.close().await;
}
