//! Three servers, one of which is sometimes not there.

use cotal_authority::{claim_oracle::Verdict, evict::Evictor as _};
use cotal_testkit::broker::NatsCluster;

use crate::house::{House, Trust, eventually, principal};

#[tokio::test]
async fn in_a_cluster_gone_needs_an_answer_of_every_server_that_it_is_known_to_have() {
    let trust = Trust::new();
    let mut cluster = NatsCluster::start(3, |port, store| trust.config(port, store, &[])).await;
    let urls = cluster.urls();
    let house = House::on(trust, &urls, 3).await;
    let _daemon = house.daemon().await;
    let admin = house.admin();
    let (alice, bob) = (principal("alice"), principal("bob"));

    // Whoever is on whichever server is seen, and ended.
    let mut far = house.client_at(&cluster.servers[1].url(), &alice).await;
    eventually("alice is live", async || admin.principal_liveness(&alice).await == Verdict::Live).await;
    let eviction = admin.evict(&[alice.clone()].into()).await.remove(0);
    assert!(eviction.verified_gone && eviction.kicked == 1, "{eviction:?}");
    far.ended().await;
    assert_eq!(admin.principal_liveness(&bob).await, Verdict::Gone);

    // A server that is down may have him.
    cluster.servers[2].kill();
    eventually("bob is unknown", async || admin.principal_liveness(&bob).await == Verdict::Unknown).await;
    let mut there = house.client_at(&cluster.servers[1].url(), &bob).await;
    eventually("bob is live", async || admin.principal_liveness(&bob).await == Verdict::Live).await;
    let eviction = admin.evict(&[bob.clone()].into()).await.remove(0);
    assert!(!eviction.verified_gone && !eviction.scan_complete, "{eviction:?}");
    assert_eq!((eviction.kicked, eviction.remaining), (1, 0), "who was found goes all the same");
    let note = eviction.note.unwrap();
    assert!(note.contains("n3") || note.contains("leader"), "{note}");
    there.ended().await;
    assert_eq!(admin.principal_liveness(&bob).await, Verdict::Unknown);

    // It is back, and had nobody.
    cluster.servers[2].start_again().await;
    eventually("bob is gone", async || admin.principal_liveness(&bob).await == Verdict::Gone).await;

    // It leaves for good: an operator removes it from the meta group.
    cluster.servers[2].kill();
    eventually("bob is unknown", async || admin.principal_liveness(&bob).await == Verdict::Unknown).await;
    house.remove_peer("n3").await;
    eventually("bob is gone", async || admin.principal_liveness(&bob).await == Verdict::Gone).await;
}
