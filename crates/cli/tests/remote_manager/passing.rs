//! What passes by itself: another manager's registration, a host that is busy or away. A participant waits for it, holds what it
//! has, and owes what it could not renew.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use cotal_manager::remote::{
    Participant, Prepared, RemoteError,
    standing::{Renewal, Standing, debt_file},
};
use cotal_testkit::proxy::{Net, Proxy};
use cotal_trust::{idp::http_client, system::SystemClock};
use cotal_wire::{
    Clock as _,
    manager_authority::{ROUTE, StandingRole},
};
use cotal_workspace::root::Root;
use futures::future::{join_all, try_join_all};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::house::{Host, PATIENCE, activated};

/// Managers that begin at once.
const AT_ONCE: usize = 8;

fn held(standing: &Standing) -> [String; 5] {
    StandingRole::ALL.map(|role| standing.creds(role).unwrap().current().jwt)
}

/// Two credentials of one second may be one text.
async fn next_second() {
    let now = SystemClock.now_secs();
    while SystemClock.now_secs() <= now {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

// === registrations ============================================================================================

#[tokio::test(flavor = "multi_thread")]
async fn managers_that_register_at_once_take_turns_and_each_of_them_is_registered() {
    let host = Host::start().await;
    let face = host.face();
    let roots: Vec<_> = (0..AT_ONCE).map(|_| tempfile::tempdir().unwrap()).collect();
    for epoch in 0..2 {
        let prepared =
            roots.iter().map(|root| Participant::open(host.setup(root.path(), &face)).unwrap().prepare());
        let prepared = try_join_all(prepared).await.unwrap();
        let registered = join_all(prepared.into_iter().map(Prepared::register)).await;
        for registered in registered {
            let registered = registered.unwrap();
            assert_eq!(registered.epoch(), epoch);
            registered.activate().await.unwrap();
        }
    }
    host.service.close().await.unwrap();
}

// === renewals =================================================================================================

/// In front of a host: turns requests away while it is told to, one with 503, the next with 429; and names when to come again,
/// if it is told to.
struct Front {
    host: String,
    http: reqwest::Client,
    asked: AtomicUsize,
    to_turn_away: AtomicUsize,
    names_when: AtomicBool,
}

impl Front {
    async fn before(host: &Host) -> (Arc<Self>, String) {
        let host = format!("{}{ROUTE}", host.face().trim_end_matches('/'));
        let http = http_client(PATIENCE).unwrap();
        let front = Arc::new(Self {
            host,
            http,
            asked: AtomicUsize::default(),
            to_turn_away: AtomicUsize::default(),
            names_when: AtomicBool::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = Router::new().route(ROUTE, post(Self::answer)).with_state(Arc::clone(&front));
        tokio::spawn(async move { axum::serve(listener, served).await });
        (front, url)
    }

    async fn answer(State(front): State<Arc<Self>>, body: Bytes) -> Response {
        let asked = front.asked.fetch_add(1, Ordering::SeqCst);
        let turned =
            front.to_turn_away.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        let json = [(header::CONTENT_TYPE, "application/json")];
        if turned.is_ok() {
            let busy = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS];
            let when = front.names_when.load(Ordering::SeqCst).then_some([(header::RETRY_AFTER, "1")]);
            return (busy[asked % 2], json, when, "{\"error\":\"busy - retry shortly\"}").into_response();
        }
        let answer = front.http.post(&front.host).header(header::CONTENT_TYPE, "application/json").body(body);
        let answer = answer.send().await.unwrap();
        (answer.status(), json, answer.bytes().await.unwrap()).into_response()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_a_busy_host_turns_away_is_repeated_until_it_is_served() {
    let host = Host::start().await;
    let (front, face) = Front::before(&host).await;
    let dir = tempfile::tempdir().unwrap();
    let active = activated(host.setup(dir.path(), &face)).await;
    let standing = active.standing();
    let file = debt_file(&Root::at(dir.path()), &host.space.space);

    let good = held(standing);
    next_second().await;
    front.asked.store(0, Ordering::SeqCst);
    front.to_turn_away.store(4, Ordering::SeqCst);
    standing.renew_early().await.unwrap();
    assert_eq!(front.asked.load(Ordering::SeqCst), 5, "four times in vain");
    assert!(held(standing).iter().zip(&good).all(|(new, old)| new != old), "all five");
    assert!(standing.debt().is_none() && !file.exists(), "nothing is owed");

    // While it goes on, each is held, and it is owed.
    let good = held(standing);
    next_second().await;
    front.to_turn_away.store(usize::MAX, Ordering::SeqCst);
    let renewing = renewing(standing);
    until(|| standing.debt().is_some() && file.exists()).await;
    assert!(standing.debt().is_some_and(|debt| debt.reason.contains("host")));
    assert_eq!(held(standing), good, "every last-good credential stays");
    front.to_turn_away.store(0, Ordering::SeqCst);
    renewing.await.unwrap().unwrap();
    assert!(standing.debt().is_none() && !file.exists(), "it is paid");
    assert!(held(standing).iter().zip(&good).all(|(new, old)| new != old), "all five");

    // A refusal that is final is told at once.
    front.asked.store(0, Ordering::SeqCst);
    host.grant(&["spawn"]);
    standing.renew_early().await.unwrap_err();
    assert_eq!(front.asked.load(Ordering::SeqCst), 1);
    assert!(standing.debt().is_some() && file.exists());
    host.grant(&["supervise", "spawn"]);

    // One that only names when to come again has begun nothing: that is on disk once it is told.
    standing.renew_early().await.unwrap();
    front.names_when.store(true, Ordering::SeqCst);
    front.to_turn_away.store(usize::MAX, Ordering::SeqCst);
    let renewing = self::renewing(standing);
    until(|| standing.debt().is_some()).await;
    assert!(!file.exists());
    standing.stop();
    renewing.await.unwrap().unwrap_err();
    assert!(standing.debt().is_some() && file.exists());
    front.to_turn_away.store(0, Ordering::SeqCst);
    assert!(active.goodbye(None).await.unwrap());
    host.service.close().await.unwrap();
}

/// Renews beside the test.
fn renewing(standing: &Arc<Standing>) -> JoinHandle<Result<(), RemoteError>> {
    let standing = Arc::clone(standing);
    tokio::spawn(async move { standing.renew_early().await.map(drop) })
}

async fn until(so: impl Fn() -> bool) {
    let wait = async {
        while !so() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_fails_keeps_every_credential_and_is_owed_until_one_succeeds() {
    let host = Host::start().await;
    let face = host.face();
    let port = face.rsplit_once(':').unwrap().1.trim_end_matches('/').parse().unwrap();
    let proxy = Proxy::start(port).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let face = proxy.url().replace("nats://", "http://");
    let active = activated(host.setup(dir.path(), &face)).await;
    let endpoint = active.serve().await.unwrap();
    let standing = active.standing();
    let file = debt_file(&Root::at(dir.path()), &host.space.space);

    let good = held(standing);
    proxy.set(Net::Cut);
    standing.renew_early().await.unwrap_err();
    let debt = standing.debt().expect("it is owed");
    assert_eq!((debt.process_epoch, debt.unadopted_subjects.len()), (active.current().epoch, 5), "{debt:?}");
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["reason"], debt.reason);
    assert_eq!(held(standing), good, "every last-good credential stays");

    proxy.set(Net::Up);
    next_second().await;
    // Nothing is skipped while it is owed, however healthy the five are.
    assert!(matches!(standing.renew().await.unwrap(), Renewal::Adopted(_)));
    assert!(standing.debt().is_none() && !file.exists(), "it is paid");
    assert!(held(standing).iter().zip(&good).all(|(new, old)| new != old), "all five, or none");
    // Nobody is asked while all five are healthy, which is for two seconds here.
    let mut skipped = false;
    for _ in 0..5 {
        proxy.set(Net::Up);
        standing.renew_early().await.unwrap();
        proxy.set(Net::Cut);
        skipped = matches!(standing.renew().await, Ok(Renewal::Skipped));
        if skipped {
            break;
        }
    }
    assert!(skipped);
    proxy.set(Net::Up);
    assert!(active.goodbye(Some(endpoint)).await.unwrap());
    host.service.close().await.unwrap();
}
