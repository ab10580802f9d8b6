//! A barrier over the real daemon: it ends when the connections have, and waits behind its gate while nobody can say.

use std::sync::Arc;

use async_trait::async_trait;
use cotal_authority::{
    AuthorityStores,
    barrier::BarrierDeps,
    claim_oracle::{ClaimObservation, ClaimOracle, ClaimTuples},
    drain::Drain,
    plane_claim,
    root_credential::ensure_root_credential,
    scanner::{LedgerCandidate, RecordsCandidate},
    takeover::{resume_takeover, take_over},
};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{EpCode, LifecycleUid, OpId, names};

use crate::house::{House, principal};

/// Nobody is asked: the claim is fresh.
struct NoOracle;

#[async_trait]
impl ClaimOracle for NoOracle {
    async fn observe(&self, tuples: &ClaimTuples) -> ClaimObservation {
        ClaimObservation::unknown(tuples, "not asked")
    }
}

async fn deps(house: &House) -> BarrierDeps {
    let stores = AuthorityStores::ensure(&house.anything, &house.space).await.unwrap();
    let ledger = LedgerCandidate::open(&house.connector).await.unwrap();
    let records = RecordsCandidate::open(&house.connector).await.unwrap();
    let hold = plane_claim::acquire(&stores, &ledger, &records, &NoOracle, &SystemClock, &SystemEntropy)
        .await
        .unwrap();
    let records = Arc::new(records.activate(&hold).unwrap());
    BarrierDeps {
        stores,
        ledger: Arc::new(ledger.activate(&hold).unwrap()),
        records: records.clone(),
        evictor: Arc::new(house.admin()),
        sessions: None,
        drain: Arc::new(Drain::new(house.connector.clone(), records, Arc::new(SystemClock))),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_waits_frozen_for_the_daemon_and_ends_once_the_connections_have() {
    let (_server, house) = House::start().await;
    let deps = deps(&house).await;
    let (alice, bob) = (principal("alice"), principal("bob"));
    let (uid, op) = (LifecycleUid::mint(&SystemEntropy), OpId::mint(&SystemEntropy));
    ensure_root_credential(&deps.stores, &alice, &uid, "m", &SystemClock, &SystemEntropy).await.unwrap();
    let (mut of_alice, mut of_bob) = (house.client(&alice).await, house.client(&bob).await);

    let refusal = take_over(&deps, &op, &alice, &uid).await.unwrap_err();
    assert_eq!(refusal.code, EpCode::Unavailable, "no daemon answers");
    let gate = deps.stores.auth().read_authority(&names::gate_key(&uid)).await.unwrap().unwrap();
    assert!(std::str::from_utf8(&gate.value).unwrap().contains("\"frozen\""));
    of_alice.ping().await.unwrap();

    let daemon = house.daemon().await;
    let report = resume_takeover(&deps, &op).await.unwrap();
    assert_eq!((report.to_epoch, report.evicted), (2, vec![alice]));
    of_alice.ended().await;
    of_bob.ping().await.unwrap();
    daemon.stop().await;
}
