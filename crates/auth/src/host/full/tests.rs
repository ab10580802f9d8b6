#[path = "../../../tests/house/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of whole hosts, which use the rest")]
mod house;
#[path = "../../../tests/tap/mod.rs"]
mod tap;

use cotal_testkit::raw::RawClient;
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinSet};

use self::{
    house::{House, eventually, manifest_of},
    tap::Tap,
};
use super::*;
use crate::{
    composition::Composition,
    host::{Host, manifest::parse_auth_host_manifest},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_full_in_one_lane_sheds_there_and_holds_no_connect_of_another_up() {
    let house = House::start(&["acme", "zoo"]).await;
    let tap = Tap::start(house.spaces.server.port()).await;
    house.write(&manifest_of(&["acme", "zoo"]));
    let lines = Arc::new(Mutex::new(Vec::<String>::new()));
    let said = Arc::clone(&lines);
    let shed = |lane: &str| {
        lines.lock().iter().filter(|line| line.starts_with(lane) && line.contains(" outcome=shed ")).count()
    };
    let lanes = FullLanes {
        root: house.spaces.root.clone(),
        store: Arc::new(house.spaces.store.clone()),
        servers: Servers::parse(&tap.url()).unwrap(),
        composition: Composition::new().check().unwrap(),
        callout_limits: CalloutLimits {
            auth_timeout: Duration::from_secs(10),
            max_in_flight: 1,
            ..CalloutLimits::default()
        },
        crowd: Crowd::of_this_machine(),
        hold: None,
        callout_log: Arc::new(move |line| said.lock().push(line.to_owned())),
        announce: Arc::new(|_| ()),
    };
    let host = Host {
        manifest: house.manifest(),
        parse: parse_auth_host_manifest,
        servers: tap.url(),
        announce: Arc::new(|_| ()),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(host.run(lanes, stream::pending().boxed(), async { drop(stopped.await) }));
    eventually("both answer", async || ["acme", "zoo"].iter().all(|space| house.discovery(space).is_some()))
        .await;
    let (of_acme, of_zoo) = (house.bearer("acme", "alice").await, house.bearer("zoo", "zoe").await);

    // One connect of zoo is in progress for as long as its reads hang, and the others queue up behind it.
    tap.hold("cotal:auth-reader:zoo");
    let sentinel = house.spaces.of("zoo").material.callout.sentinel_creds.to_string();
    let mut flood = JoinSet::new();
    let until = tokio::time::Instant::now() + house::AT_LAST;
    while shed("[zoo] ") < 3 {
        assert!(tokio::time::Instant::now() < until, "it does not shed: {:?}", lines.lock());
        let (url, sentinel, bearer) = (house.spaces.server.url(), sentinel.clone(), of_zoo.clone());
        flood.spawn(async move { RawClient::connect(&url, Some(&sentinel), Some(&bearer), None).await.1 });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for _ in 0..20 {
        house.connected("acme", &of_acme).await;
    }
    assert_eq!(shed("[acme] "), 0);
    tap.heal();
    flood.join_all().await;
    drop(stop);
    running.await.unwrap().unwrap();
}
