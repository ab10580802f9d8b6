//! The rows of a manager that serves, and of a session of its, written as the manager would: for tests of those who read them,
//! who must get over rows too that no ceremony leaves. A manager that registers is a [`crate::manager::TestManager`].

use anyhow::{Result, bail};
use cotal_broker::{
    Connection,
    kv::{Bucket, LeaderRead, WriteOutcome},
};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    DigestRef, EndpointName, InstanceId, LifecycleUid, Owner, Principal, Revision, SessionId, Space,
    SpaceToken, UnixMillis,
    canonical::VOID_CLOSURE_DIGEST,
    manager_authority::serve_principal,
    names::{epgate_key, session_key},
    rows::{ServiceSpec, ServiceStatus, StatusState},
};
use serde_json::json;

/// What writes them: a connection that may write all stores of a space.
#[derive(Clone)]
pub struct Rows {
    connection: Connection,
    space: SpaceToken,
}

/// A manager of an owner, as its rows say.
#[derive(Clone)]
pub struct ServingManager {
    /// Its instance.
    pub instance: InstanceId,
    /// The epoch that it serves at.
    pub epoch: u64,
    /// The revision of its spec.
    pub revision: Revision,
    owner: Owner,
}

/// A redeemed session that a manager serves, as its row says.
#[derive(Clone)]
pub struct ServedSession {
    /// Its id.
    pub id: SessionId,
    /// Who serves it.
    pub instance: InstanceId,
    /// At which epoch.
    pub epoch: u64,
    /// Who holds it.
    pub holder: Principal,
    /// At which incarnation.
    pub uid: LifecycleUid,
    /// Until when.
    pub exp: UnixMillis,
}

impl Rows {
    /// Over this connection.
    pub fn over(connection: &Connection, space: &Space) -> Self {
        Self { connection: connection.clone(), space: space.token() }
    }

    /// The space's bucket of this kind.
    pub fn bucket(&self, kind: &str) -> Bucket {
        Bucket::new(&self.connection, &format!("cotal_{kind}_{}", self.space))
    }

    /// Writes this over whatever stands there.
    pub async fn put(&self, kind: &str, key: &str, value: Vec<u8>) -> Result<Revision> {
        let bucket = self.bucket(kind);
        let at = match bucket.leader_read(key).await? {
            LeaderRead::Absent => Revision(0),
            LeaderRead::Marker(revision) => revision,
            LeaderRead::Value(entry) => entry.revision,
        };
        match bucket.put_pinned(key, value.into(), at).await {
            WriteOutcome::Written(revision) => Ok(revision),
            other => bail!("{key}: {other:?}"),
        }
    }
}

impl ServingManager {
    /// Nobody has heard of it yet.
    pub fn unheard(owner: impl Into<Owner>, epoch: u64) -> Self {
        let instance = InstanceId::mint(&SystemEntropy);
        Self { instance, epoch, revision: Revision(0), owner: owner.into() }
    }

    /// One that is registered and says that it serves.
    pub async fn register(rows: &Rows, owner: impl Into<Owner>, epoch: u64) -> Result<Self> {
        let mut manager = Self::unheard(owner, epoch);
        manager.write_spec(rows).await?;
        manager.report(rows, epoch).await?;
        manager.open(rows).await?;
        Ok(manager)
    }

    /// Its spec, once more; the gate and the status are of the one before.
    pub async fn write_spec(&mut self, rows: &Rows) -> Result<()> {
        let spec = ServiceSpec::new(
            &EndpointName::manager(),
            &self.owner,
            vec![DigestRef::parse(VOID_CLOSURE_DIGEST)?],
        )?;
        let key = format!("svc.manager.{}.spec", self.instance);
        self.revision = rows.put("records", &key, spec.to_bytes()).await?;
        Ok(())
    }

    /// Says that it serves at an epoch.
    pub async fn report(&self, rows: &Rows, epoch: u64) -> Result<()> {
        let status = ServiceStatus::new(epoch, StatusState::ready(), self.revision);
        let key = format!("svc.manager.{}.status", self.instance);
        rows.put("records", &key, status.to_bytes()).await?;
        Ok(())
    }

    /// Its gate, in this state, of this principal, at this epoch.
    pub async fn gate(&self, rows: &Rows, state: &str, of: &str, epoch: u64) -> Result<()> {
        let mut row = json!({
            "state": state, "generation": 1, "processEpoch": epoch,
            "registrationRevision": self.revision.0, "nameAuthorityRevision": 0, "principal": of,
        });
        if state != "open" {
            let kind = if state == "retired" { "retirement" } else { "registration" };
            row["op"] = json!({ "opId": "f".repeat(26), "kind": kind });
        }
        let key = epgate_key(&EndpointName::manager().token(), &self.instance);
        rows.put("auth", &key, row.to_string().into()).await?;
        Ok(())
    }

    /// Its gate, open at this epoch.
    pub async fn open_at(&self, rows: &Rows, epoch: u64) -> Result<()> {
        self.gate(rows, "open", &self.principal(), epoch).await
    }

    /// Its gate, open at its own epoch.
    pub async fn open(&self, rows: &Rows) -> Result<()> {
        self.open_at(rows, self.epoch).await
    }

    /// Who serves it.
    pub fn principal(&self) -> String {
        serve_principal(&self.owner, &self.instance).key()
    }
}

impl ServedSession {
    /// Its row, in this state.
    pub async fn write(&self, rows: &Rows, state: &str) -> Result<()> {
        let Self { id, instance, epoch, holder, uid, exp } = self;
        let row = json!({
            "sessionId": id, "endpoint": "manager", "serving": { "instanceId": instance, "epoch": epoch },
            "holder": { "principal": holder.key(), "lifecycleUid": uid }, "grantSig": "the-signature",
            "credCaller": format!("{uid}.{id}.c"), "credServing": format!("manager.{instance}.{id}.s"),
            "revoked": { "caller": false, "serving": false }, "state": state, "exp": exp.0,
        });
        rows.put("sessions", &session_key(id), row.to_string().into()).await?;
        Ok(())
    }
}
