//! A registered manager and a session that it serves, as their rows say, and what was issued to its callers.

use cotal_broker::kv::{Bucket, LeaderRead, WriteOutcome};
use cotal_testkit::raw::{ConnectOutcome, RawClient};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Clock, ConnId, DigestRef, EndpointName, InstanceId, LifecycleUid, Owner, Principal, Revision,
    SessionClaim, SessionEndpoint, SessionId, UnixMillis, View,
    canonical::VOID_CLOSURE_DIGEST,
    grants::{ConnectPrincipal, Issued},
    names::{accepted_key, session_key},
    rows::{AcceptedRow, IssuedAuthorityRef, ServiceSpec, ServiceStatus, StatusState},
};

use crate::house::{Granted, House, owner};

/// Writes this over whatever stands there.
pub(crate) async fn put(bucket: &Bucket, key: &str, value: Vec<u8>) -> Revision {
    let at = match bucket.leader_read(key).await.unwrap() {
        LeaderRead::Absent => Revision(0),
        LeaderRead::Marker(revision) => revision,
        LeaderRead::Value(entry) => entry.revision,
    };
    match bucket.put_pinned(key, value.into(), at).await {
        WriteOutcome::Written(revision) => revision,
        other => panic!("{key}: {other:?}"),
    }
}

/// A registered manager of the owner, as its rows say.
pub(crate) struct Manager {
    pub(crate) instance: InstanceId,
    pub(crate) epoch: u64,
    pub(crate) revision: Revision,
}

impl Manager {
    pub(crate) async fn register(house: &House, epoch: u64) -> Self {
        let instance = InstanceId::mint(&SystemEntropy);
        let mut manager = Self { instance, epoch, revision: Revision(0) };
        manager.revision = manager.write_spec(house, &Owner::from(owner())).await;
        manager.report(house, epoch).await;
        manager.open(house).await;
        manager
    }

    pub(crate) async fn write_spec(&self, house: &House, of: &Owner) -> Revision {
        let name = EndpointName::parse("manager").unwrap();
        let spec = ServiceSpec::new(&name, of, vec![DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap()]).unwrap();
        put(&house.bucket("records"), &format!("svc.manager.{}.spec", self.instance), spec.to_bytes()).await
    }

    pub(crate) async fn report(&self, house: &House, epoch: u64) {
        let status = ServiceStatus::new(epoch, StatusState::ready(), self.revision);
        let key = format!("svc.manager.{}.status", self.instance);
        put(&house.bucket("records"), &key, status.to_bytes()).await;
    }

    pub(crate) async fn gate(&self, house: &House, state: &str, principal: &str, epoch: u64) {
        let op = if state == "open" {
            String::new()
        } else {
            format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"registration\"}}", "f".repeat(26))
        };
        let row = format!(
            "{{\"state\":\"{state}\",\"generation\":1,\"processEpoch\":{epoch},\"registrationRevision\":{},\
             \"nameAuthorityRevision\":0,\"principal\":\"{principal}\"{op}}}",
            self.revision.0
        );
        put(&house.auth_bucket(), &format!("epgate.manager.{}", self.instance), row.into_bytes()).await;
    }

    pub(crate) fn principal(&self) -> String {
        format!("{}.manager_serve_{}", owner(), self.instance)
    }

    pub(crate) async fn open(&self, house: &House) {
        self.gate(house, "open", &self.principal(), self.epoch).await;
    }

    /// A bearer bound to this instance.
    pub(crate) fn bearer(&self, house: &House, granted: &Granted) -> String {
        let instance = self.instance.clone();
        house.pinned(granted, View::ManagerCaller, |grant| cotal_trust::bearer::BearerGrant {
            manager_instance_id: Some(instance),
            ..grant
        })
    }

    /// A request of this instance, as a caller without an issued pair, or with one, sends it.
    pub(crate) fn describe(&self, granted: &Granted, generation: Option<&str>) -> String {
        let Granted { owner, actor, uid, .. } = granted;
        match generation {
            None => format!("cotal.demo.ep.inst.manager.{}.describe.{owner}.{actor}.{uid}.n", self.instance),
            Some(generation) => format!(
                "cotal.demo.ep.v1.inst.manager.{}.describe.{owner}.{actor}.{uid}.{generation}.n",
                self.instance
            ),
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

pub(crate) async fn connected(house: &House, bearer: &str, nonce: &str) -> RawClient {
    let (client, outcome) = house.connect_as(bearer, nonce).await;
    assert_eq!(outcome, ConnectOutcome::Connected, "{:#?}", house.lines());
    client.unwrap()
}

/// A redeemed session of the caller with a manager.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) instance: InstanceId,
    pub(crate) holder: String,
    pub(crate) uid: LifecycleUid,
    pub(crate) epoch: u64,
    pub(crate) exp: UnixMillis,
}

impl Session {
    pub(crate) fn new(letter: char, granted: &Granted, manager: &Manager) -> Self {
        Self {
            id: SessionId::parse(&letter.to_string().repeat(43)).unwrap(),
            instance: manager.instance.clone(),
            holder: format!("{}.{}", granted.owner, granted.actor),
            uid: granted.uid.clone(),
            epoch: manager.epoch,
            exp: SystemClock.now_millis().plus(3_600_500),
        }
    }

    pub(crate) async fn write(&self, house: &House, state: &str) {
        let Self { id, instance, holder, uid, epoch, exp } = self;
        let row = format!(
            "{{\"sessionId\":\"{id}\",\"endpoint\":\"manager\",\"serving\":{{\"instanceId\":\"{instance}\",\
             \"epoch\":{epoch}}},\"holder\":{{\"principal\":\"{holder}\",\"lifecycleUid\":\"{uid}\"}},\
             \"grantSig\":\"sig\",\"credCaller\":\"{uid}.{id}.c\",\"credServing\":\"manager.{instance}.{id}.s\",\
             \"revoked\":{{\"caller\":false,\"serving\":false}},\"state\":\"{state}\",\"exp\":{}}}",
            exp.0
        );
        put(&house.bucket("sessions"), &session_key(id), row.into_bytes()).await;
    }

    pub(crate) fn claim(&self) -> SessionClaim {
        SessionClaim {
            endpoint: SessionEndpoint::parse("manager").unwrap(),
            session_id: self.id.clone(),
            epoch: self.epoch,
            exp: self.exp.to_secs(),
        }
    }

    pub(crate) fn bearer(&self, house: &House, granted: &Granted) -> String {
        let claim = self.claim();
        house.pinned(granted, View::SessionCaller, |grant| cotal_trust::bearer::BearerGrant {
            session: Some(claim),
            ..grant
        })
    }

    pub(crate) fn rail(&self, end: &str) -> String {
        format!("cotal.demo.eps.manager.{}.{}.{end}", self.id, self.epoch)
    }
}
