//! More connections than one page holds.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use cotal_authority::{claim_oracle::Verdict, evict::Evictor as _};
use cotal_testkit::raw::{ConnectOutcome, RawClient};
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

#[tokio::test]
async fn clients_that_come_and_go_all_the_time_spoil_no_sweep() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let admin = house.admin();
    let creds = house.agent_creds(&principal("crowd"));
    let mut oldest: VecDeque<RawClient> = crowd(&house, &creds, 1_200).await.into();
    let amid = principal("amid");
    let mut client = house.client(&amid).await;
    oldest.extend(crowd(&house, &creds, 1_000).await);
    let last = principal("last");
    let _client = house.client(&last).await;

    let mut gone = 0;
    let churning = async {
        loop {
            // First in, first out, as the ends of bearers are: every departure is one from the first page.
            let arriving = crowd(&house, &creds, 8).await;
            oldest.drain(..arriving.len());
            gone += arriving.len();
            oldest.extend(arriving);
            // Never all of the first page: whoever is asked about must not be the oldest.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let began = Instant::now();
    let asking = async {
        for _ in 0..5 {
            assert_eq!(admin.principal_liveness(&last).await, Verdict::Live);
            assert_eq!(admin.principal_liveness(&amid).await, Verdict::Live);
            assert_eq!(admin.principal_liveness(&principal("nobody")).await, Verdict::Gone);
        }
        let eviction = admin.evict(&[amid.clone()].into()).await.remove(0);
        assert!(eviction.verified_gone && eviction.kicked == 1, "{eviction:?}");
        client.ended().await;
    };
    tokio::select! {
        () = asking => {}
        () = churning => unreachable!("it never ends"),
    }
    let took = began.elapsed();
    assert!(gone > 16, "there was churn: {gone} left");
    assert!(took < Duration::from_secs(30), "seventeen sweeps took {took:?}");
}
