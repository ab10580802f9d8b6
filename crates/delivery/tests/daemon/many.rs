//! More connections than one page holds.

use cotal_authority::{claim_oracle::Verdict, evict::Evictor as _};
use cotal_testkit::raw::{ConnectOutcome, RawClient};
use futures::{StreamExt, stream};

use crate::house::{House, eventually, principal};

#[tokio::test]
async fn a_principal_on_the_second_page_is_seen_and_ended() {
    let (_server, house) = House::start().await;
    let _daemon = house.daemon().await;
    let crowd = house.agent_creds(&principal("crowd"));
    let crowd: Vec<RawClient> = stream::iter(0..1_030)
        .map(|_| async {
            let (client, outcome) = RawClient::connect(&house.urls, Some(&crowd), None, None).await;
            assert_eq!(outcome, ConnectOutcome::Connected);
            client.unwrap()
        })
        .buffer_unordered(32)
        .collect()
        .await;
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
