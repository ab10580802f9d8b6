#[path = "../../../tests/house/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of whole hosts, which use the rest")]
mod house;
#[path = "../../../tests/tap/mod.rs"]
mod tap;

use cotal_testkit::{raw::RawClient, spaces::AUTH_TIMEOUT_SECS};
use cotal_wire::Names;
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};

use self::{
    house::{AT_LAST, House, eventually, manifest_of},
    tap::Tap,
};
use super::*;
use crate::{
    composition::Composition,
    host::{Host, manifest::parse_auth_host_manifest},
};

/// A host of full lanes that dial `servers`, in this process.
struct Running {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), DaemonError>>,
}

impl Running {
    fn start(
        house: &House,
        servers: &str,
        composition: &Composition,
        callout_limits: CalloutLimits,
        callout_log: CalloutLog,
    ) -> Self {
        let lanes = FullLanes {
            root: house.spaces.root.clone(),
            store: Arc::new(house.spaces.store.clone()),
            servers: Servers::parse(servers).unwrap(),
            composition: composition.check().unwrap(),
            callout_limits,
            crowd: Crowd::of_this_machine(),
            hold: None,
            callout_log,
            announce: Arc::new(|_| ()),
        };
        let host = Host {
            manifest: house.manifest(),
            parse: parse_auth_host_manifest,
            servers: servers.to_owned(),
            announce: Arc::new(|_| ()),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let told = async { drop(stopped.await) };
        Self { stop, ended: tokio::spawn(host.run(lanes, stream::pending().boxed(), told)) }
    }

    async fn stop(self) {
        drop(self.stop);
        self.ended.await.unwrap().unwrap();
    }
}

async fn both_answer(house: &House) {
    eventually("both answer", async || ["acme", "zoo"].iter().all(|space| house.discovery(space).is_some()))
        .await;
}

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
    let limits =
        CalloutLimits { auth_timeout: Duration::from_secs(10), max_in_flight: 1, ..CalloutLimits::default() };
    let log: CalloutLog = Arc::new(move |line| said.lock().push(line.to_owned()));
    let host = Running::start(&house, &tap.url(), &Composition::new(), limits, log);
    both_answer(&house).await;
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
    host.stop().await;
}

/// What a running lane does with a store that does not read any more: it ends, and its end is nobody else's.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_whose_store_turns_corrupt_while_it_runs_ends_alone_and_opens_once_it_is_mended() {
    let house = House::start(&["acme", "zoo"]).await;
    house.write(&manifest_of(&["acme", "zoo"]));
    let (server, zoo) = (house.spaces.server.url(), house.spaces.of("zoo"));
    let limits =
        CalloutLimits { auth_timeout: Duration::from_secs(AUTH_TIMEOUT_SECS), ..CalloutLimits::default() };
    // The cleanup of issuance rows reads each of them: here a moment after the last one.
    let composition = Composition::new().native_issuance_prune(Duration::from_millis(100));
    let host = Running::start(&house, &server, &composition, limits, Arc::new(|_| ()));
    both_answer(&house).await;
    let (of_acme, of_zoo) = (house.bearer("acme", "alice").await, house.bearer("zoo", "zoe").await);
    house.connected("acme", &of_acme).await;
    house.connected("zoo", &of_zoo).await;
    let untouched = house.discovery("acme").unwrap().cap;

    let names = Names::new(&zoo.space.token());
    let store = zoo.anything(&server).await.unwrap();
    let corrupt = Names::kv_subject(&names.auth_bucket(), "natkey.x");
    store.request(&corrupt, &[], "{}".into(), AT_LAST).await.unwrap();
    eventually("its lane says ready to nobody", async || house.discovery("zoo").is_none()).await;
    house.refused("zoo", Some(&of_zoo)).await;
    house.connected("acme", &of_acme).await;

    let purge = format!("$JS.API.STREAM.PURGE.{}", names.auth_stream());
    store.request(&purge, &[], json!({"filter": corrupt}).to_string().into(), AT_LAST).await.unwrap();
    eventually("it opens", async || house.discovery("zoo").is_some()).await;
    house.connected("zoo", &of_zoo).await;
    house.connected("acme", &of_acme).await;
    assert_eq!(*house.discovery("acme").unwrap().cap, *untouched, "its lane is the one that it was");
    host.stop().await;
}
