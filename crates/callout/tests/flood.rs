//! Floods of bearers that do not verify, at more than the callout can refuse: who gets in all the same.
//!
//! The log is slow here, which makes a denial cost the same on every machine and the flood a modest one for the broker.

#![allow(clippy::unwrap_used, reason = "a flood that cannot be made fails its test")]

mod house;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cotal_callout::{CalloutLimits, ConnectLimits};
use cotal_trust::{bearer, issuer::IssuerKeySet, system::SystemClock, system::SystemEntropy};
use cotal_wire::Clock;
use futures::future::join_all;
use house::{Ask, Granted, House, Plan};
use tokio::{net::TcpSocket, task::JoinSet};

/// What the log takes for the line of a denial.
const LINE: Duration = Duration::from_millis(60);
/// How many denials measure what can be refused.
const MEASURED: usize = 100;
/// How much more than that is offered.
const TIMES: f64 = 3.0;
/// The broker's timeout: twice the default, for machines that do something else as well.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Longer than a queue that fills at this rate takes until it sheds.
const LASTING: Duration = Duration::from_secs(6);
/// Where the test's users are, as the broker sees them.
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Another address of every Linux machine.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The default allowance of a host, none for principals, and few slots, so that denials in slots would be as slow as
/// denials without.
fn plan() -> Plan {
    let connect_limits = ConnectLimits {
        per_actor_per_minute: 100_000,
        per_owner_per_minute: 100_000,
        ..ConnectLimits::default()
    };
    let callout_limits =
        CalloutLimits { max_in_flight: 4, auth_timeout: TIMEOUT, ..CalloutLimits::default() };
    Plan { connect_limits, callout_limits, denial_takes: LINE, ..Plan::default() }
}

/// A bearer like every other, but for its signature, which another issuer made.
fn forged(house: &House, granted: &Granted) -> String {
    let good = house.bearer(granted, Ask::default());
    let stranger = IssuerKeySet::create(&house.material.space, &SystemEntropy);
    let other = house.bearer_by(&stranger, granted, Ask::default());
    let (signed, _) = good.rsplit_once('.').unwrap();
    let (_, signature) = other.rsplit_once('.').unwrap();
    let forged = format!("{signed}.{signature}");
    let now = SystemClock.now_secs();
    let refusal = bearer::validate(&forged, &house.issuer, &house.material.space, now).unwrap_err();
    assert!(refusal.signed_by.is_none(), "the host pays for it");
    forged
}

/// One connect of the flood, from `host`.
async fn knock(house: &House, bearer: &str, host: Ipv4Addr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(host), 0)).unwrap();
    let stream = socket.connect(house.address()).await.unwrap();
    let (client, _) = house.connect_over(stream, bearer, &house.nonce()).await;
    assert!(client.is_none(), "a forged bearer was let in");
}

/// Floods from `host` while users connect from [`HERE`], and expects each of them to get in.
async fn every_user_gets_in_while_a_flood_comes_from(host: Ipv4Addr) {
    let house = Arc::new(House::build("demo", plan()).await);
    let granted = house.grant("cli", &[], &["general"], &[]).await;
    let (good, forged) = (house.bearer(&granted, Ask::default()), forged(&house, &granted));

    let started = Instant::now();
    join_all((0..MEASURED).map(|_| knock(&house, &forged, host))).await;
    #[allow(clippy::cast_precision_loss, reason = "a count")]
    let rate = MEASURED as f64 / started.elapsed().as_secs_f64();

    let (over, connected) = (AtomicBool::new(false), AtomicUsize::new(0));
    let flood = async {
        let (started, mut knocks) = (Instant::now(), JoinSet::new());
        while started.elapsed() < LASTING {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            let due = (started.elapsed().as_secs_f64() * rate * TIMES) as usize;
            while knocks.len() < due {
                let (house, forged) = (Arc::clone(&house), forged.clone());
                knocks.spawn(async move { knock(&house, &forged, host).await });
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        over.store(true, Ordering::Relaxed);
        let sent = knocks.len();
        knocks.join_all().await;
        sent
    };
    let users = join_all((0..2).map(|_| async {
        while !over.load(Ordering::Relaxed) {
            let (client, outcome) = house.connect_as(&good, &house.nonce()).await;
            assert!(client.is_some(), "a verified user: {outcome:?}, {}", tally(&house));
            connected.fetch_add(1, Ordering::Relaxed);
        }
    }));
    let (sent, _) = tokio::join!(flood, users);
    let refused = house.count("denied") - MEASURED;
    assert!(
        refused < sent / 4 * 3,
        "{refused} of {sent} offered at 3 times {rate:.0}/s were refused: no flood"
    );
    println!("{sent} offered, {} users, {}", connected.load(Ordering::Relaxed), tally(&house));
    assert_eq!(house.count("minted"), connected.into_inner());
    Arc::into_inner(house).unwrap().close().await;
}

fn tally(house: &House) -> String {
    ["minted", "denied", "shed", "timeout"]
        .map(|outcome| format!("{outcome} {}", house.count(outcome)))
        .join(", ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_beyond_what_can_be_refused_starves_no_verified_user() {
    every_user_gets_in_while_a_flood_comes_from(ELSEWHERE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verified_user_is_never_refused_for_what_its_host_does() {
    every_user_gets_in_while_a_flood_comes_from(HERE).await;
}
