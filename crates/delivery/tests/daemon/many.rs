//! More connections than one page holds.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use cotal_authority::{claim_oracle::Verdict, evict::Evictor as _};
use cotal_testkit::raw::{ConnectOutcome, RawClient};
use cotal_wire::{
    Principal,
    delivery_admin::{AdminRequest, Liveness, PrincipalLiveness, parse_reply},
    grants::delivery::{OBSERVER_INBOX, connections_subject},
};
use futures::{StreamExt, stream};

use crate::house::{House, eventually, principal};

/// Clients of one principal.
async fn crowd(house: &House, creds: &str, count: usize) -> Vec<RawClient> {
    stream::iter(0..count).map(|_| one_more(house, creds)).buffer_unordered(32).collect().await
}

async fn one_more(house: &House, creds: &str) -> RawClient {
    let (client, outcome) = RawClient::connect(&house.urls, Some(creds), None, None).await;
    assert_eq!(outcome, ConnectOutcome::Connected);
    client.unwrap()
}

#[tokio::test]
async fn a_principal_on_the_second_page_is_seen_and_ended() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let crowd = crowd(&house, &house.agent_creds(&principal("crowd")), 1_030).await;
    let last = principal("last");
    let mut client = house.client(&last).await;
    let admin = house.admin();
    assert_eq!(admin.principal_liveness(&last).await, Verdict::Live);
    let nobody = principal("nobody");
    eventually("nobody is gone", async || admin.principal_liveness(&nobody).await == Verdict::Gone).await;
    let eviction = admin.evict(&[last.clone()].into()).await.remove(0);
    assert!(eviction.verified_gone && eviction.kicked == 1, "{eviction:?}");
    client.ended().await;
    let eviction = admin.evict(&[principal("crowd")].into()).await.remove(0);
    assert!(eviction.verified_gone && eviction.kicked == 1_030, "{eviction:?}");
    drop(crowd);
}

/// The verdict of a complete sweep on this principal. A machine that is busy may let the observer wait for longer than
/// it does; whatever else leaves a sweep incomplete is a failure.
async fn seen(house: &House, principal: &Principal) -> Liveness {
    let asks = "cotal.main.ctl.delivery-admin.local.tester";
    loop {
        let request = Bytes::from(AdminRequest::PrincipalLiveness(principal.clone()).to_bytes());
        let reply = format!("{asks}.reply.1");
        let answer = house.anything.request_at(asks, &reply, request, Duration::from_secs(20)).await.unwrap();
        match parse_reply(&answer.payload) {
            Ok(data) => {
                let answer = PrincipalLiveness::read(&data).unwrap();
                if answer.sweep_complete {
                    return answer.state;
                }
                let why = answer.note.unwrap();
                assert!(why.contains("within 2 s"), "{why}");
            }
            Err(refusal) => assert!(refusal.0.contains("in time"), "{refusal:?}"),
        }
    }
}

/// How many pages each sweep has asked for, by the nonce that its questions are answered under.
async fn pages_asked(watcher: &mut RawClient) -> BTreeMap<String, usize> {
    watcher.ping().await.unwrap();
    let mut asked = BTreeMap::new();
    while let Some(question) = watcher.take_message() {
        let reply = question.reply.unwrap();
        let sweep = reply.strip_prefix(&format!("{OBSERVER_INBOX}.evict.")).unwrap();
        let (nonce, _) = sweep.split_once('.').unwrap();
        *asked.entry(nonce.to_owned()).or_default() += 1;
    }
    asked
}

/// Pages of 1,024 connections that 2,200 of them fill, each with the end of the one before.
const PAGES: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_come_and_go_all_the_time_spoil_no_sweep() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let creds = house.agent_creds(&principal("crowd"));
    let mut oldest: VecDeque<RawClient> = crowd(&house, &creds, 1_200).await.into();
    let amid = principal("amid");
    let mut client = house.client(&amid).await;
    oldest.extend(crowd(&house, &creds, 1_000).await);
    let last = principal("last");
    let _client = house.client(&last).await;

    let mut left = 0;
    let churning = async {
        loop {
            // First in, first out, as the ends of bearers are: every departure is one from the first page.
            oldest.push_back(one_more(&house, &creds).await);
            drop(oldest.pop_front());
            left += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let mut watcher = house.system_client_at(&house.urls).await;
    watcher.try_subscribe(&connections_subject(house.account.account.public()), None).await.unwrap();
    let asking = async {
        for _ in 0..2 {
            assert_eq!(seen(&house, &last).await, Liveness::Live);
            assert_eq!(seen(&house, &amid).await, Liveness::Live);
            assert_eq!(seen(&house, &principal("nobody")).await, Liveness::Gone);
        }
        let eviction = house.admin().evict(&[amid.clone()].into()).await.remove(0);
        assert!(eviction.verified_gone && eviction.kicked == 1, "{eviction:?}");
        client.ended().await;
    };
    tokio::select! {
        () = asking => {}
        () = churning => unreachable!("it never ends"),
    }
    assert!(left > 16, "there was churn: {left} left");
    let asked = pages_asked(&mut watcher).await;
    assert!(asked.len() >= 8, "six questions, and an eviction between two sweeps: {asked:?}");
    assert!(asked.values().all(|pages| *pages <= 2 * PAGES), "none is asked for again and again: {asked:?}");
}
