//! A manager and a session that it serves, and what was issued to its callers.

use cotal_authority::issued::retire_lifecycle_issuance;
use cotal_broker::{Custody, kv::LeaderRead};
use cotal_testkit::{
    raw::{ConnectOutcome, RawClient},
    rows::{Rows, ServedSession, ServingManager},
};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Clock, ConnId, Principal, SessionClaim, SessionEndpoint, SessionId, View,
    grants::{ConnectPrincipal, Issued},
    names::accepted_key,
    rows::{AcceptedRow, IssuedAuthorityRef, SourceRef},
};

use crate::house::{Granted, House, owner};

pub(crate) fn rows(house: &House) -> Rows {
    Rows::over(&house.admin, &house.material.space)
}

/// A registered manager of the owner.
pub(crate) async fn registered(house: &House, epoch: u64) -> ServingManager {
    ServingManager::register(&rows(house), owner(), epoch).await.unwrap()
}

/// A bearer bound to this manager.
pub(crate) fn bearer_of(house: &House, granted: &Granted, manager: &ServingManager) -> String {
    let instance = manager.instance.clone();
    house.pinned(granted, View::ManagerCaller, |grant| cotal_trust::bearer::BearerGrant {
        manager_instance_id: Some(instance),
        ..grant
    })
}

/// A request of this manager, as a caller without an issued pair, or with one, sends it.
pub(crate) fn describe(manager: &ServingManager, granted: &Granted, generation: Option<&str>) -> String {
    let (Granted { owner, actor, uid, .. }, instance) = (granted, &manager.instance);
    match generation {
        None => format!("cotal.demo.ep.inst.manager.{instance}.describe.{owner}.{actor}.{uid}.n"),
        Some(generation) => {
            format!("cotal.demo.ep.v1.inst.manager.{instance}.describe.{owner}.{actor}.{uid}.{generation}.n")
        }
    }
}

impl Granted {
    /// As whom it connects under this nonce.
    pub(crate) fn connects(&self, nonce: &str) -> ConnectPrincipal {
        ConnectPrincipal {
            principal: Principal::new(&self.owner, self.actor.clone()),
            conn_id: ConnId::parse(nonce).unwrap(),
            lifecycle_uid: Some(self.uid.clone()),
        }
    }
}

/// What the accepted row of this nonce names.
pub(crate) async fn accepted(house: &House, nonce: &str) -> Option<IssuedAuthorityRef> {
    let conn = ConnId::parse(nonce).unwrap();
    let token = Issued::for_connection(cotal_wire::Generation::mint(&SystemEntropy), &conn).accepted;
    match house.bucket("accepted").leader_read(&accepted_key(&token)).await.unwrap() {
        LeaderRead::Value(entry) => Some(AcceptedRow::parse(&entry.value).unwrap().authority),
        LeaderRead::Absent => None,
        LeaderRead::Marker(_) => panic!("an accepted row is never deleted"),
    }
}

pub(crate) async fn keys(house: &House, filter: &str) -> Vec<String> {
    house.bucket("issued").keys(filter).await.unwrap()
}

pub(crate) async fn state(house: &House, authority: &IssuedAuthorityRef) -> String {
    let row = house.bucket("issued").read_authority(&authority.attempt_key()).await.unwrap().unwrap();
    let row: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
    row["state"].as_str().unwrap().to_owned()
}

/// How many attempts are in this state.
pub(crate) async fn attempts(house: &House, wanted: &str) -> usize {
    let mut found = 0;
    for key in keys(house, "attempt.v1.>").await {
        let key = &key[key.find("attempt.").unwrap()..];
        let row = house.bucket("issued").read_authority(key).await.unwrap().unwrap();
        let row: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
        found += usize::from(row["state"] == wanted);
    }
    found
}

/// Ends what was issued to an actor, as the end of its lifecycle does; how much that was.
pub(crate) async fn end_issuance(house: &House, granted: &Granted) -> u64 {
    let material = &house.material;
    let principal = Principal::new(&granted.owner, granted.actor.clone());
    let source = SourceRef::actor_ledger(&material.space.token(), &principal, &granted.uid);
    let connector = material.connector(&house.server.url(), &Custody::new());
    retire_lifecycle_issuance(&connector, &source).await.unwrap()
}

pub(crate) async fn connected(house: &House, bearer: &str, nonce: &str) -> RawClient {
    let (client, outcome) = house.connect_as(bearer, nonce).await;
    assert_eq!(outcome, ConnectOutcome::Connected, "{:#?}", house.lines());
    client.unwrap()
}

/// A redeemed session of the caller with a manager.
pub(crate) fn session_of(letter: char, granted: &Granted, manager: &ServingManager) -> ServedSession {
    ServedSession {
        id: SessionId::parse(&letter.to_string().repeat(43)).unwrap(),
        instance: manager.instance.clone(),
        epoch: manager.epoch,
        holder: Principal::new(&granted.owner, granted.actor.clone()),
        uid: granted.uid.clone(),
        exp: SystemClock.now_millis().plus(3_600_500),
    }
}

/// A bearer of this session.
pub(crate) fn session_bearer(house: &House, granted: &Granted, session: &ServedSession) -> String {
    let claim = SessionClaim {
        endpoint: SessionEndpoint::parse("manager").unwrap(),
        session_id: session.id.clone(),
        epoch: session.epoch,
        exp: session.exp.to_secs(),
    };
    house.pinned(granted, View::SessionCaller, |grant| cotal_trust::bearer::BearerGrant {
        session: Some(claim),
        ..grant
    })
}
