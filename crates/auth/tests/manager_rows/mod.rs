//! The rows of a manager, and of a session that it serves, as the manager writes them.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::Arc;

use cotal_broker::{
    Connection, Connector, Custody, Lifetime,
    kv::{Bucket, LeaderRead, WriteOutcome},
};
use cotal_trust::{
    bundle::DataAccount,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    ConnId, DerivedOwner, DigestRef, EndpointName, InstanceId, LifecycleUid, Owner, Permissions, Revision,
    Rules, SessionId, Space, UnixMillis,
    canonical::VOID_CLOSURE_DIGEST,
    names::session_key,
    rows::{ServiceSpec, ServiceStatus, StatusState},
};

/// What writes them: one connection that may do anything in the space.
pub(crate) struct Rows(Connection, Space);

/// A registered manager of an owner.
pub(crate) struct Manager {
    pub(crate) instance: InstanceId,
    pub(crate) epoch: u64,
    owner: DerivedOwner,
    revision: Revision,
}

/// A redeemed session of `<owner>.<actor>` at this incarnation.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) principal: String,
    pub(crate) uid: LifecycleUid,
    pub(crate) exp: UnixMillis,
}

fn everything(_: &ConnId) -> Permissions {
    let all = || Rules { allow: vec![">".to_owned()], deny: vec![] };
    Permissions { publish: all(), subscribe: all() }
}

impl Rows {
    pub(crate) async fn of(server: &str, space: &Space, account: DataAccount) -> Self {
        let connector = Connector::new(
            server,
            space.clone(),
            account,
            Custody::new(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        let label = format!("cotal:test-rows:{space}");
        Self(connector.open(label, &everything, Lifetime::Renewing).await.unwrap(), space.clone())
    }

    pub(crate) fn bucket(&self, kind: &str) -> Bucket {
        Bucket::new(&self.0, &format!("cotal_{kind}_{}", self.1.token()))
    }

    async fn put(&self, kind: &str, key: &str, value: Vec<u8>) -> Revision {
        let bucket = self.bucket(kind);
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

    /// Registers a manager of this owner, which serves at this epoch.
    pub(crate) async fn register(&self, owner: &DerivedOwner, epoch: u64) -> Manager {
        let instance = InstanceId::mint(&SystemEntropy);
        let name = EndpointName::parse("manager").unwrap();
        let digest = DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap();
        let spec = ServiceSpec::new(&name, &Owner::from(owner), vec![digest]).unwrap();
        let revision = self.put("records", &format!("svc.manager.{instance}.spec"), spec.to_bytes()).await;
        let status = ServiceStatus::new(epoch, StatusState::ready(), revision);
        self.put("records", &format!("svc.manager.{instance}.status"), status.to_bytes()).await;
        let manager = Manager { instance, epoch, owner: owner.clone(), revision };
        self.open_gate(&manager, epoch).await;
        manager
    }

    /// Its gate, open at this epoch.
    pub(crate) async fn open_gate(&self, manager: &Manager, epoch: u64) {
        let Manager { instance, owner, revision, .. } = manager;
        let row = format!(
            "{{\"state\":\"open\",\"generation\":1,\"processEpoch\":{epoch},\"registrationRevision\":{},\
             \"nameAuthorityRevision\":0,\"principal\":\"{owner}.manager_serve_{instance}\"}}",
            revision.0
        );
        self.put("auth", &format!("epgate.manager.{instance}"), row.into_bytes()).await;
    }

    /// The session's row, in this state, served by this manager.
    pub(crate) async fn session(&self, session: &Session, manager: &Manager, state: &str) {
        let Session { id, principal, uid, exp } = session;
        let Manager { instance, epoch, .. } = manager;
        let row = format!(
            "{{\"sessionId\":\"{id}\",\"endpoint\":\"manager\",\"serving\":{{\"instanceId\":\"{instance}\",\
             \"epoch\":{epoch}}},\"holder\":{{\"principal\":\"{principal}\",\"lifecycleUid\":\"{uid}\"}},\
             \"grantSig\":\"the-signature\",\"credCaller\":\"{uid}.{id}.c\",\
             \"credServing\":\"manager.{instance}.{id}.s\",\"revoked\":{{\"caller\":false,\"serving\":false}},\
             \"state\":\"{state}\",\"exp\":{}}}",
            exp.0
        );
        self.put("sessions", &session_key(id), row.into_bytes()).await;
    }
}
