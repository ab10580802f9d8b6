//! Many spaces in one process, over a real broker and a real IdP: each is served by a lane of its own, and what happens
//! to one happens to no other.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod house;

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use cotal_auth::AuthServiceArgs;
use cotal_ledger::Ledger;
use cotal_testkit::{
    raw::RawClient,
    rows::{Rows, ServedSession, ServingManager},
};
use cotal_trust::system::SystemClock;
use cotal_wire::{Actor, Clock as _, LifecycleUid, Principal, SessionId, names::Names};
use serde_json::{Value, json};

use house::{AT_LAST, House, eventually, manifest_of, timed};

#[tokio::test(flavor = "multi_thread")]
async fn each_space_of_a_manifest_is_served_until_its_entry_goes_and_the_others_do_not_notice() {
    let house = House::start(&["acme", "zoo"]).await;
    house.write(&manifest_of(&["acme", "zoo"]));
    let host = house.host().await;
    assert!(host.said("auth-service: 2 of 2 spaces answer on 127.0.0.1:"), "{:?}", host.lines());
    assert!(
        host.said("[acme] auth-service: space \"acme\" on ")
            && host.said("[zoo] auth-service: space \"zoo\" on ")
    );
    house.applied(&manifest_of(&["acme", "zoo"])).await;
    let acme = house.discovery("acme").unwrap();
    assert_ne!(*acme.cap, *house.discovery("zoo").unwrap().cap);
    let (of_acme, of_zoo) = (house.bearer("acme", "alice").await, house.bearer("zoo", "zoe").await);
    house.connected("acme", &of_acme).await;
    house.connected("zoo", &of_zoo).await;

    house.write(&manifest_of(&["acme"]));
    house.applied(&manifest_of(&["acme"])).await;
    assert!(house.discovery("zoo").is_none(), "a closed lane says ready to nobody");
    house.connected("acme", &of_acme).await;
    assert_eq!(*house.discovery("acme").unwrap().cap, *acme.cap, "its lane was not touched");
    house.refused("zoo", Some(&of_zoo)).await;

    // A changed entry is another lane; so is one that comes back.
    let changed =
        json!({"version": 2, "spaces": [{"space": "acme", "exchangePublicPort": 0}, {"space": "zoo"}]});
    house.write(&changed.to_string());
    house.applied(&changed.to_string()).await;
    eventually("both answer again", async || {
        house.discovery("zoo").is_some()
            && house.discovery("acme").is_some_and(|discovery| discovery.public_url.is_some())
    })
    .await;
    assert_ne!(*house.discovery("acme").unwrap().cap, *acme.cap);
    house.connected("zoo", &of_zoo).await;
    house.connected("acme", &of_acme).await;

    host.stop().await.unwrap();
    assert!(house.discovery("acme").is_none() && house.discovery("zoo").is_none());
    house.refused("acme", Some(&of_acme)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_does_not_parse_whole_changes_nothing() {
    let house = House::start(&["acme"]).await;
    house.write("{}");
    let refused = house.run_to_its_end(AuthServiceArgs::default()).await;
    assert!(refused.ends_with("spaces.json: version is missing; write 2"), "{refused}");
    assert!(house.acknowledged().is_none());

    let good = manifest_of(&["acme"]);
    house.write(&good);
    let host = house.host().await;
    let cap = house.discovery("acme").unwrap().cap;
    for bad in [
        "",
        "{",
        r#"{"version": 2, "spaces": []}"#,
        r#"{"version": 2, "spaces": [{"space": "acme"}, {"space": 1}]}"#,
    ] {
        house.write(bad);
    }
    // The host has read past the bad ones once it has taken this one over.
    let spaced = format!("{good}\n");
    house.write(&spaced);
    house.applied(&spaced).await;
    assert_eq!(*house.discovery("acme").unwrap().cap, *cap, "the lane is the one it was");
    host.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_one_host_follows_refuses_every_other_until_that_one_has_ended() {
    let house = House::start(&["acme"]).await;
    let lock = house.spaces.scratch().join("spaces.json.lock");
    house.write(&manifest_of(&["acme"]));
    std::os::unix::fs::symlink(house.spaces.scratch().join("elsewhere"), &lock).unwrap();
    let refused = house.run_to_its_end(AuthServiceArgs::default()).await;
    assert!(refused.contains("the manifest's lock "), "{refused}");
    std::fs::remove_file(&lock).unwrap();

    let host = house.host().await;
    assert_eq!(std::fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
    for callout_only in [false, true] {
        let refused =
            house.run_to_its_end(AuthServiceArgs { callout_only, ..AuthServiceArgs::default() }).await;
        assert!(
            refused.starts_with("auth-service: another host already follows ")
                && refused.contains("give each host a copy of its own"),
            "{refused}"
        );
    }
    house.connected("acme", &house.bearer("acme", "alice").await).await;
    host.stop().await.unwrap();
    house.host().await.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_that_cannot_be_served_is_named_and_retried_and_the_others_are_served() {
    let house = House::start(&["acme"]).await;
    let manifest = json!({"version": 2, "spaces": [
        {"space": "acme"}, {"space": "ghost"}, {"space": "hosting", "serviceEndpoints": true},
    ]});
    house.write(&manifest.to_string());
    let host = house.host().await;
    let expected =
        "auth-service: 1 of 3 spaces answer; retried every 5 s: \"ghost\", \"hosting\" on 127.0.0.1:";
    assert!(host.said(expected), "{:?}", host.lines());
    house.connected("acme", &house.bearer("acme", "alice").await).await;
    house.applied(&manifest.to_string()).await;
    host.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_one_space_works_in_another() {
    let house = House::start(&["acme", "zoo"]).await;
    house.write(&manifest_of(&["acme", "zoo"]));
    let host = house.host().await;
    let (of_acme, of_zoo) = (house.bearer("acme", "alice").await, house.bearer("zoo", "alice").await);
    let (acme, zoo) = (house.discovery("acme").unwrap(), house.discovery("zoo").unwrap());

    // Bearers, with either space's sentinel creds.
    house.refused("zoo", Some(&of_acme)).await;
    house.refused("acme", Some(&of_zoo)).await;

    // Capabilities, at every door of the loopback face.
    for (url, cap) in [(&acme.url, &zoo.cap), (&zoo.url, &acme.cap)] {
        for door in [
            "exchange",
            "manager-service-authority",
            "manager-instances",
            "interactive-lifecycle/retire",
            "managed-lifecycle/retire",
            "managed-lifecycle/activate",
            "manager-service-authority/verify-enrollment",
        ] {
            let (status, answer) =
                house.post(&format!("{url}/{door}"), Some(cap), &house.human("alice")).await;
            assert_eq!(status, 401, "{door}: {answer}");
        }
    }

    // Grants and agents' secrets: each space has its own ledger and its own owners.
    house.grant("acme", "only-acme");
    let (status, answer) = house.exchange("zoo", &house.human("only-acme")).await;
    assert_eq!(status, 401, "{answer}");
    assert_ne!(house.owner("acme", "alice"), house.owner("zoo", "alice"));
    let agent = house.grant_agent("acme", "alice", "worker");
    assert_eq!(house.exchange("acme", &agent).await.0, 200);
    assert_eq!(house.exchange("zoo", &agent).await.0, 401);

    // A redeemed session, shown at the other space by the very same person, who has the same actor there.
    let alice = house.owner("acme", "alice");
    let in_acme = house.spaces.of("acme");
    let anything = in_acme.anything(&house.spaces.server.url()).await.unwrap();
    let rows = Rows::over(&anything, &in_acme.space);
    let manager = ServingManager::register(&rows, &alice, 2).await.unwrap();
    let row = Ledger::at(&in_acme.state_dir)
        .read_interactive(&alice, &Actor::parse("cli").unwrap())
        .unwrap()
        .unwrap();
    let session = ServedSession {
        id: SessionId::parse(&"s".repeat(43)).unwrap(),
        instance: manager.instance.clone(),
        epoch: manager.epoch,
        holder: Principal::new(&alice, Actor::parse("cli").unwrap()),
        uid: LifecycleUid::parse(row.lifecycle_uid.as_deref().unwrap()).unwrap(),
        exp: SystemClock.now_millis().plus(3_600_500),
    };
    session.write(&rows, "active").await.unwrap();
    let mut ask = house.human("alice");
    ask["view"] = json!("session-caller");
    ask["sessionGrant"] = json!({
        "v": 1, "endpoint": "manager", "sessionId": session.id, "sig": "the-signature",
        "serving": {"instanceId": manager.instance, "epoch": 2},
    });
    let (status, answer) = house.exchange("zoo", &ask).await;
    assert_eq!(
        (status, &answer["error"]),
        (401, &json!("session redemption refused: there is no such session"))
    );
    let (status, answer) = house.exchange("acme", &ask).await;
    assert_eq!(status, 200, "{answer}");
    let of_session = answer["token"].as_str().unwrap().to_owned();
    house.refused("zoo", Some(&of_session)).await;
    let mut rail = house.connected("acme", &of_session).await;
    let end = |space: &str| format!("cotal.{space}.eps.manager.{}.2.in", session.id);
    rail.try_publish(&end("acme"), b"").await.expect("the session's own rail");
    rail.try_publish(&end("zoo"), b"").await.expect_err("no grant of acme names zoo");

    // Requests: what is published in one space arrives in that space alone, whatever its subject.
    let owner = house.owner("acme", "alice");
    let subject = format!("cotal.acme.chat.{owner}.cli.general");
    let everything = house.spaces.of("zoo").anything(&house.spaces.server.url()).await.unwrap();
    let mut listener = everything.subscribe(">", None).await.unwrap();
    let mut speaker = house.connected("acme", &of_acme).await;
    speaker.try_publish(&subject, b"in acme").await.unwrap();
    let mut in_zoo = house.connected("zoo", &of_zoo).await;
    in_zoo.try_publish(&subject, b"in zoo").await.expect_err("no grant of zoo names acme");
    let own = format!("cotal.zoo.chat.{}.cli.general", house.owner("zoo", "alice"));
    in_zoo.try_publish(&own, b"in zoo").await.unwrap();
    let heard = timed(async {
        loop {
            let message = listener.next().await.unwrap();
            assert_ne!(message.payload.as_ref(), b"in acme");
            if message.payload.as_ref() == b"in zoo" {
                return message.subject.clone();
            }
        }
    });
    assert_eq!(heard.await, own);

    // Callout requests: a second member of acme's callout group sees none of zoo's.
    let creds = house.spaces.of("acme").material.callout.callout_creds.to_string();
    let url = house.spaces.server.url();
    let mut spy = RawClient::connect(&url, Some(&creds), None, None).await.0.unwrap();
    spy.try_subscribe("$SYS.REQ.USER.AUTH", Some("cotal-auth-callout")).await.unwrap();
    for _ in 0..20 {
        house.connected("zoo", &of_zoo).await;
    }
    spy.ping().await.unwrap();
    assert_eq!(spy.take_message(), None, "a request of zoo arrived in acme's account");
    host.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_whose_broker_account_is_gone_stops_alone_and_its_entry_can_be_taken_out() {
    let house = House::start(&["acme", "zoo"]).await;
    house.write(&manifest_of(&["acme", "zoo"]));
    let host = house.host().await;
    let (of_acme, of_zoo) = (house.bearer("acme", "alice").await, house.bearer("zoo", "zoe").await);
    let cap = house.discovery("acme").unwrap().cap;
    house.spaces.admit_only(|space| space.as_str() == "acme").await;
    eventually("the lane is closed", async || house.discovery("zoo").is_none()).await;
    house.connected("acme", &of_acme).await;
    house.refused("zoo", Some(&of_zoo)).await;

    // Its claim cannot be given back any more; whoever waits for its end is told all the same.
    house.write(&manifest_of(&["acme"]));
    house.applied(&manifest_of(&["acme"])).await;
    house.connected("acme", &of_acme).await;
    assert_eq!(*house.discovery("acme").unwrap().cap, *cap, "the other lane never ended");
    let unclosed = host.stop().await.unwrap_err().to_string();
    assert!(unclosed.starts_with("auth-service: [zoo] the context did not close: "), "{unclosed}");
    assert!(house.discovery("acme").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_lane_of_a_broker_that_was_restarted_comes_back_by_itself() {
    let mut house = House::start(&["acme", "zoo"]).await;
    house.write(&manifest_of(&["acme", "zoo"]));
    let host = house.host().await;
    let bearers = [("acme", house.bearer("acme", "alice").await), ("zoo", house.bearer("zoo", "zoe").await)];
    let caps = ["acme", "zoo"].map(|space| house.discovery(space).unwrap().cap);
    house.spaces.server.restart().await;
    eventually("both lanes are others", async || {
        ["acme", "zoo"]
            .iter()
            .zip(&caps)
            .all(|(space, cap)| house.discovery(space).is_some_and(|discovery| *discovery.cap != **cap))
    })
    .await;
    for (space, bearer) in &bearers {
        house.connected(space, bearer).await;
    }
    host.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_with_a_corrupt_store_is_closed_alone_and_opens_once_it_is_mended() {
    let house = House::start(&["acme", "zoo"]).await;
    let zoo = house.spaces.of("zoo");
    let store = zoo.anything(&house.spaces.server.url()).await.unwrap();
    let corrupt = Names::kv_subject(&Names::new(&zoo.space.token()).auth_bucket(), "natkey.x");
    store.request(&corrupt, &[], "{}".into(), AT_LAST).await.unwrap();
    house.write(&manifest_of(&["acme", "zoo"]));
    let host = house.host().await;
    assert!(
        host.said("auth-service: 1 of 2 spaces answer; retried every 5 s: \"zoo\""),
        "{:?}",
        host.lines()
    );
    let of_acme = house.bearer("acme", "alice").await;
    house.connected("acme", &of_acme).await;

    let stream = Names::new(&zoo.space.token()).auth_stream();
    let purge = json!({"filter": corrupt}).to_string();
    store.request(&format!("$JS.API.STREAM.PURGE.{stream}"), &[], purge.into(), AT_LAST).await.unwrap();
    eventually("the lane opens", async || house.discovery("zoo").is_some()).await;
    let of_zoo = house.bearer("zoo", "zoe").await;
    house.connected("zoo", &of_zoo).await;

    // A store that vanishes under a running lane: nothing of it is minted any more, and the other one mints.
    store.request(&format!("$JS.API.STREAM.DELETE.{stream}"), &[], "".into(), AT_LAST).await.unwrap();
    house.refused("zoo", Some(&of_zoo)).await;
    house.connected("acme", &of_acme).await;
    drop(host);
}

/// 500 edits while people connect to a space that none of them names differently.
#[tokio::test(flavor = "multi_thread")]
async fn any_run_of_edits_converges_to_the_acknowledgment_and_refuses_nobody_in_a_lane_that_it_leaves_alone()
{
    const EDITS: u32 = 500;
    const ACKNOWLEDGED_EVERY: u32 = 100;
    let house = House::start(&["calm", "b", "c"]).await;
    house.write(&manifest_of(&["calm"]));
    let host = house.host().await;
    let cap = house.discovery("calm").unwrap().cap;
    // Enough people that nobody meets a connect limit.
    let mut bearers = Vec::new();
    for person in 0..24 {
        bearers.push(house.bearer("calm", &format!("person{person}")).await);
    }
    let (edited, is_edited) = tokio::sync::watch::channel(false);
    let load = async {
        let mut connects = 0u32;
        while !*is_edited.borrow() {
            for bearer in &bearers {
                house.connected("calm", bearer).await;
                connects += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        connects
    };
    let edits = async {
        let mut random = fastrand_of(7);
        for edit in 1..=EDITS {
            let manifest = edit_of(&mut random);
            house.write(&manifest);
            if edit % ACKNOWLEDGED_EVERY == 0 {
                let whole = json!({"version": 2, "spaces": [{"space": "calm"}, entry_of("b", &mut random)]});
                house.write(&whole.to_string());
                house.applied(&whole.to_string()).await;
            } else {
                // Of edits that come closer together than the host looks, it sees some: both are tried.
                tokio::time::sleep(Duration::from_millis(u64::from(random() % 20))).await;
            }
        }
        house.write(&manifest_of(&["c", "calm"]));
        house.applied(&manifest_of(&["c", "calm"])).await;
        eventually("the lanes are as the manifest says", async || {
            house.discovery("c").is_some() && house.discovery("b").is_none()
        })
        .await;
        edited.send_replace(true);
    };
    let (connects, ()) = tokio::join!(load, edits);
    assert!(connects >= 24, "{connects} connects were made beside the edits");
    assert_eq!(*house.discovery("calm").unwrap().cap, *cap, "its lane was never touched");
    house.connected("c", &house.bearer("c", "carol").await).await;
    host.stop().await.unwrap();
}

/// The same numbers at every run.
fn fastrand_of(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    }
}

fn entry_of(space: &str, random: &mut impl FnMut() -> u32) -> Value {
    match random() % 3 {
        0 => json!({"space": space}),
        1 => json!({"space": space, "exchangePublicPort": 0}),
        _ => json!({"space": space, "exchangePublicPort": 0, "exchangeTrustedProxy": true}),
    }
}

/// A manifest that says of `calm` what the first one said, or one that is none.
fn edit_of(random: &mut impl FnMut() -> u32) -> String {
    let mut entries = vec![json!({"space": "calm"})];
    for space in ["b", "c", "ghost"] {
        if random().is_multiple_of(2) {
            let at = random() as usize % (entries.len() + 1);
            entries.insert(at, entry_of(space, random));
        }
    }
    let text = json!({"version": 2, "spaces": entries}).to_string();
    match random() % 10 {
        0 => text[..text.len() / 2].to_owned(),
        1 => json!({"version": 2, "spaces": [{"space": "b"}, {"space": "b"}]}).to_string(),
        2 => format!("{text}\n"),
        _ => text,
    }
}
