//! The authority plane on three servers that keep three copies of everything, one of them killed at a bad moment.

use std::{sync::Arc, time::Duration};

use cotal_authority::{
    Plane, PlaneInputs,
    claim_oracle::{ClaimOracle as _, Verdict},
    plane::{NATIVE_ISSUANCE_PRUNE, PlaneIdentity},
    plane_claim::{self, ClaimHold, ClaimRefusal},
    retirement::{Retirement, RetirementReport},
    scanner::{LedgerCandidate, RecordsCandidate},
    stores::AuthorityStores,
};
use cotal_broker::{
    kv::LeaderRead,
    provision::{Replicas, provision_replicated},
};
use cotal_delivery::Delivery;
use cotal_testkit::{
    broker::{NatsCluster, NatsServer},
    raw::RawClient,
};
use cotal_trust::{
    nkey::Seed,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{EpCode, EpError, InstanceId, LifecycleUid, Names, OpId, Principal, User, names};
use futures::future::join_all;
use serde_json::Value;

use crate::house::{House, Trust, eventually, principal};

/// Everything is kept on all of them: any two can go on.
const SERVERS: usize = 3;
/// How long a start asks after a predecessor of whom nobody can say anything.
const BRIEFLY: Duration = Duration::from_secs(1);

struct Cluster {
    servers: NatsCluster,
    house: House,
    identity: PlaneIdentity,
}

impl Cluster {
    /// A provisioned space.
    async fn start() -> Self {
        let trust = Trust::new();
        let servers = NatsCluster::start(SERVERS, |port, store| trust.config(port, store, &[])).await;
        let house = House::on(trust, &servers.urls(), 3).await;
        let copies = Replicas::new(3).unwrap();
        eventually("the space is provisioned", async || {
            match provision_replicated(&house.anything, &house.space, copies).await {
                Ok(()) => true,
                // A leader is still being elected.
                Err(refusal) if refusal.code == EpCode::Unavailable => false,
                Err(refusal) => panic!("{refusal}"),
            }
        })
        .await;
        let identity = PlaneIdentity {
            instance: InstanceId::mint(&SystemEntropy),
            serve: Seed::<User>::generate(&SystemEntropy).public().clone(),
        };
        Self { servers, house, identity }
    }

    /// As a start of the auth service opens it: over all servers.
    async fn try_plane(&self) -> Result<Arc<Plane>, EpError> {
        Plane::open(PlaneInputs {
            connector: self.house.connector.clone(),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            identity: self.identity.clone(),
            native_issuance_prune: NATIVE_ISSUANCE_PRUNE,
            claim_patience: BRIEFLY,
            past: None,
        })
        .await
    }

    /// Started again until it opens: a store may be without a leader for a moment.
    async fn plane(&self) -> Arc<Plane> {
        let mut plane = None;
        eventually("the plane opens", async || match self.try_plane().await {
            Ok(opened) => {
                plane = Some(opened);
                true
            }
            Err(refusal) => {
                assert_eq!(refusal.code, EpCode::Unavailable, "{refusal}");
                false
            }
        })
        .await;
        plane.unwrap()
    }

    /// Why a start is refused once every store answers it.
    async fn refused(&self) -> ClaimRefusal {
        let mut why = None;
        eventually("the claim is refused", async || {
            why = ClaimRefusal::of(&self.try_plane().await.err().expect("it does not open"));
            why.is_some()
        })
        .await;
        why.unwrap()
    }

    async fn daemon(&self) -> Delivery {
        let mut daemon = None;
        eventually("the delivery daemon starts", async || {
            daemon = self.house.try_daemon().await.ok();
            daemon.is_some()
        })
        .await;
        daemon.unwrap()
    }

    /// Which server each scanner of a claim is on.
    async fn scanners_on(&self, claim: &ClaimHold) -> [usize; 2] {
        let ids = join_all(self.servers.servers.iter().map(async |server| {
            let client = self.house.client_at(&server.url(), &principal("prober")).await;
            client.info()["server_id"].as_str().unwrap().to_owned()
        }))
        .await;
        let at = |id: &str| ids.iter().position(|one| one == id).unwrap();
        let tuples = claim.tuples();
        [at(&tuples.ledger.server_id), at(&tuples.records.server_id)]
    }

    /// An active lifecycle with a live connection on every server.
    async fn agent(&self, plane: &Plane, actor: &str) -> Agent {
        let (principal, uid) = (principal(actor), LifecycleUid::mint(&SystemEntropy));
        plane.activate_managed(&principal, &uid).await.unwrap();
        let urls: Vec<String> = self.servers.servers.iter().map(NatsServer::url).collect();
        let clients = join_all(urls.iter().map(|url| self.house.client_at(url, &principal))).await;
        Agent { principal, uid, clients }
    }

    /// What the head of an alias says its lifecycle is.
    async fn head(&self, agent: &Agent) -> String {
        let key = names::head_key(&agent.principal);
        let bucket = self.house.bucket(&self.house.names().records_bucket());
        let mut state = String::new();
        eventually("the head is read", async || {
            let Ok(LeaderRead::Value(entry)) = bucket.leader_read(&key).await else { return false };
            let row: Value = serde_json::from_slice(&entry.value).unwrap();
            row["state"].as_str().unwrap().clone_into(&mut state);
            true
        })
        .await;
        state
    }

    /// Freezes a retirement where it can go no further: nobody answers who is connected.
    async fn begin(&self, plane: &Plane, agent: &Agent) {
        let failure = plane.retire_managed(&agent.principal, &agent.uid).await.unwrap_err();
        assert_eq!((failure.error.code, failure.began), (EpCode::Unavailable, true), "{}", failure.error);
        assert_eq!(self.head(agent).await, "retiring");
    }

    /// Asks until it is over.
    async fn finish(&self, plane: &Plane, agent: &Agent) -> RetirementReport {
        let mut ended = None;
        eventually("the retirement ends", async || {
            match plane.retire_managed(&agent.principal, &agent.uid).await {
                Ok(Retirement::Retired { op, report }) => {
                    assert_eq!(op, OpId::managed_retirement(&agent.uid), "the operation that began");
                    ended = Some(report);
                    true
                }
                Ok(other) => panic!("{other:?}"),
                // A store may be without a leader, and then not even the head is read.
                Err(failure) => {
                    assert_eq!(failure.error.code, EpCode::Unavailable, "{}", failure.error);
                    false
                }
            }
        })
        .await;
        assert_eq!(self.head(agent).await, "retired");
        ended.unwrap()
    }
}

/// A lifecycle and its connections, one a server.
struct Agent {
    principal: Principal,
    uid: LifecycleUid,
    clients: Vec<RawClient>,
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_every_stream_is_kept_on_as_many_servers_as_were_asked_for() {
    let cluster = Cluster::start().await;
    let (house, names) = (&cluster.house, cluster.house.names());
    let buckets = names.authority_buckets().map(|bucket| Names::kv_stream(&bucket));
    let streams = names.message_streams().into_iter().chain(names.endpoint_streams()).chain(buckets);
    for stream in streams {
        let info = house.api(&format!("STREAM.INFO.{stream}"), &Value::Null).await;
        assert_eq!(info["config"]["num_replicas"], 3, "{stream}");
    }
    for (copies, drifted) in [(1, true), (2, true), (3, false)] {
        let again =
            provision_replicated(&house.anything, &house.space, Replicas::new(copies).unwrap()).await.err();
        assert_eq!(again.as_ref().is_some_and(|refusal| refusal.message.contains("num_replicas")), drifted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_a_claim_is_held_given_back_and_taken_from_a_holder_that_died() {
    let cluster = Cluster::start().await;
    let _daemon = cluster.daemon().await;
    let first = cluster.plane().await;
    assert_eq!(cluster.refused().await, ClaimRefusal::LivePeer);
    first.check_open().unwrap();
    first.close().await.unwrap();
    let second = cluster.plane().await;
    assert_eq!(second.claim().row().generation, 2);
    second.close().await.unwrap();

    // A holder that dies gives nothing back: its connections end, and that is all.
    let house = &cluster.house;
    let stores = AuthorityStores::bind(&house.anything, &house.space).await.unwrap();
    let ledger = LedgerCandidate::open(&house.connector).await.unwrap();
    let records = RecordsCandidate::open(&house.connector).await.unwrap();
    let admin = house.admin();
    let dead =
        plane_claim::acquire(&stores, &ledger, &records, &admin, &SystemClock, &SystemEntropy).await.unwrap();
    assert_eq!(cluster.refused().await, ClaimRefusal::LivePeer);
    ledger.connection().close().await.unwrap();
    records.connection().close().await.unwrap();
    eventually("the holder is gone", async || {
        let seen = admin.observe(dead.tuples()).await;
        seen.sweep_complete && [seen.ledger, seen.records].iter().all(|one| *one == Verdict::Gone)
    })
    .await;
    let third = cluster.plane().await;
    assert_eq!(third.claim().row().generation, 4);
    third.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_a_retirement_ends_only_when_no_server_that_may_have_the_agent_is_silent() {
    let mut cluster = Cluster::start().await;
    let daemon = cluster.daemon().await;
    let plane = cluster.plane().await;
    let on = cluster.scanners_on(plane.claim()).await;
    let lost = (0..SERVERS).find(|server| !on.contains(server)).unwrap();
    let mut agents = Vec::new();
    for actor in ["whole", "back", "forgotten"] {
        agents.push(cluster.agent(&plane, actor).await);
    }
    let [whole, mut back, mut forgotten]: [Agent; 3] = agents.try_into().ok().unwrap();

    // Every server answers.
    let report = cluster.finish(&plane, &whole).await;
    assert!(report.evicted.contains(&whole.principal));
    for mut client in whole.clients {
        client.ended().await;
    }

    // One is lost behind the freeze, before anybody could be evicted.
    daemon.stop().await;
    cluster.begin(&plane, &back).await;
    cluster.begin(&plane, &forgotten).await;
    cluster.servers.servers[lost].kill();
    let daemon = cluster.daemon().await;
    for agent in [&mut back, &mut forgotten] {
        let mut refusal = String::new();
        eventually("who can be seen is evicted", async || {
            let failure = plane.retire_managed(&agent.principal, &agent.uid).await.unwrap_err();
            assert_eq!(failure.error.code, EpCode::Unavailable, "{}", failure.error);
            if refusal != failure.error.message {
                refusal = failure.error.message;
                println!("n{} is silent: {refusal}", lost + 1);
            }
            let mut still = 0;
            for client in agent.clients.iter_mut().enumerate().filter(|(n, _)| *n != lost) {
                still += usize::from(client.1.ping().await.is_ok());
            }
            failure.began && still == 0
        })
        .await;
        assert_eq!(cluster.head(agent).await, "retiring", "nothing is retired that may be connected");
    }
    plane.check_open().unwrap();

    // It is back, and its connections are not.
    cluster.servers.servers[lost].start_again().await;
    cluster.finish(&plane, &back).await;

    // It leaves for good: an operator takes it out of the meta group.
    let lost_name = format!("n{}", lost + 1);
    cluster.servers.servers[lost].kill();
    eventually("the loss is seen", async || {
        let failure = plane.retire_managed(&forgotten.principal, &forgotten.uid).await;
        matches!(failure, Err(failure) if failure.began)
    })
    .await;
    cluster.house.remove_peer_at(&cluster.servers.servers[on[0]].url(), &lost_name).await;
    cluster.finish(&plane, &forgotten).await;

    plane.close().await.unwrap();
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_a_plane_whose_scanner_was_on_a_lost_server_is_fenced_and_the_next_start_resumes_it() {
    let mut cluster = Cluster::start().await;
    let plane = cluster.plane().await;
    let [lost, _] = cluster.scanners_on(plane.claim()).await;
    let agent = cluster.agent(&plane, "bob").await;
    cluster.begin(&plane, &agent).await;

    cluster.servers.servers[lost].kill();
    let why = tokio::time::timeout(Duration::from_secs(30), plane.fenced()).await.unwrap();
    assert!(why.contains("scanner connection"), "{why}");
    let refused = plane.retire_managed(&agent.principal, &agent.uid).await.unwrap_err();
    assert!(!refused.began, "a fenced plane begins nothing");

    // Its scanner may live on the server that is silent: the next start waits, and takes nothing.
    let daemon = cluster.daemon().await;
    assert_eq!(cluster.refused().await, ClaimRefusal::Unknown);
    assert_eq!(cluster.head(&agent).await, "retiring");

    cluster.servers.servers[lost].start_again().await;
    let next = cluster.plane().await;
    let op = OpId::managed_retirement(&agent.uid);
    if !next.boot().resumed.contains(&op) {
        // The server that came back was not yet seen by all when the boot asked: the plane ends it then, or who asks first.
        eventually("the retirement ends", async || {
            let ended = next.retire_managed(&agent.principal, &agent.uid).await;
            if let Err(failure) = &ended {
                assert_eq!(failure.error.code, EpCode::Unavailable, "{}", failure.error);
            }
            ended.is_ok()
        })
        .await;
    }
    assert_eq!(cluster.head(&agent).await, "retired");
    let again = next.retire_managed(&agent.principal, &agent.uid).await;
    assert_eq!(again.unwrap(), Retirement::AlreadyRetired);
    // Whoever was fenced and lingered gives nothing back that is another's by now.
    let late = plane.close().await.unwrap_err();
    assert_eq!(ClaimRefusal::of(&late), Some(ClaimRefusal::Lost), "{late}");
    next.check_open().unwrap();
    next.close().await.unwrap();
    daemon.stop().await;
}
