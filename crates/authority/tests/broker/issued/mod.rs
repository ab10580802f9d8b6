//! Issued authority over a real broker (contract 03 §H, 05 §13, 08 §4.3).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cotal_authority::issued::{IssuedStore, IssuerSession, SourceLiveness, UserCaller};
use cotal_broker::{Connection, Lifetime, kv::Bucket, provision::provision_space};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    ConnId, EpError, Generation, InfraRole, LifecycleUid, Names, Permissions, Rules, SpaceToken, UnixSecs,
    grants::{Issued, issued},
    rows::{IssuedAuthorityRef, IssuedEvidence, IssuedPermissions, SourceRef},
};
use serde_json::json;

use crate::harness::{World, eventually, principal};

mod loss;
mod session;
mod store;

/// A space whose stores are there, and the two buckets that issuances lie in.
struct House {
    world: World,
    issued: Bucket,
    accepted: Bucket,
}

impl House {
    async fn start() -> Self {
        let world = World::start().await;
        provision_space(&world.anything, &world.space).await.unwrap();
        let names = Names::new(&world.space.token());
        let issued = Bucket::new(&world.anything, &names.issued_bucket());
        let accepted = Bucket::new(&world.anything, &names.accepted_bucket());
        Self { world, issued, accepted }
    }

    async fn connection(&self) -> Connection {
        let token = self.world.space.token();
        let label = InfraRole::ISSUER.label(&self.world.space);
        let grants = |inbox: &ConnId| issued::issuer_session(&token, inbox);
        let lifetime = Lifetime::OneShot { ttl_secs: 300, principal: None };
        self.world.connector.open(label, &grants, lifetime).await.unwrap()
    }

    async fn store(&self) -> IssuedStore {
        IssuedStore::bind(&self.connection().await, &self.world.space).await.unwrap()
    }

    fn session(&self) -> IssuerSession {
        self.session_at(&self.world.server.url())
    }

    /// A session that dials this address of the broker.
    fn session_at(&self, url: &str) -> IssuerSession {
        IssuerSession::new(self.world.connector_at(url), Arc::new(SystemEntropy), 300).unwrap()
    }

    async fn attempt_state(&self, authority: &IssuedAuthorityRef) -> String {
        let attempt = self.world.json(&self.issued, &authority.attempt_key()).await;
        attempt["state"].as_str().unwrap().to_owned()
    }

    /// How many messages a key holds.
    async fn messages(&self, bucket: &Bucket, key: &str) -> u64 {
        let subject = Names::kv_subject(bucket.name(), key);
        let verb = format!("$JS.API.STREAM.INFO.{}", Names::kv_stream(bucket.name()));
        let body = json!({ "subjects_filter": subject }).to_string();
        let answer =
            self.world.anything.request(&verb, &[], body.into(), Duration::from_secs(10)).await.unwrap();
        let info: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        info["state"]["subjects"][subject].as_u64().unwrap_or(0)
    }

    /// Waits until this many issuer connections are left.
    async fn issuers_left(&self, left: u64) {
        eventually("the issuer connections have ended", async || self.issuer_connections().1 == left).await;
    }

    /// This room's issuer connections, and how many of them have not ended.
    fn issuer_connections(&self) -> (u64, u64) {
        let label = InfraRole::ISSUER.label(&self.world.space);
        let all = self.world.custody.connections();
        let ours = all.iter().filter(|row| row.label == label);
        let left = ours.clone().filter(|row| !row.ended).map(|row| row.count).sum();
        (ours.map(|row| row.count).sum(), left)
    }
}

fn space() -> SpaceToken {
    SpaceToken::parse("demo").unwrap()
}

fn authority(actor: &str, uid: &LifecycleUid) -> IssuedAuthorityRef {
    IssuedAuthorityRef {
        space: space(),
        principal: principal(actor),
        uid: uid.clone(),
        generation: Generation::mint(&SystemEntropy),
    }
}

fn source(actor: &str, uid: &LifecycleUid) -> SourceRef {
    SourceRef::actor_ledger(&space(), &principal(actor), uid)
}

fn ceiling(publish: &[&str]) -> IssuedPermissions {
    IssuedPermissions::of_grants(&grants(publish)).unwrap()
}

fn grants(publish: &[&str]) -> Permissions {
    let rules = |list: &[&str]| Rules { allow: list.iter().map(ToString::to_string).collect(), deny: vec![] };
    Permissions { publish: rules(publish), subscribe: rules(&["_INBOX_x.>"]) }
}

fn evidence(authority: &IssuedAuthorityRef, sources: &[&SourceRef], expires: Option<u64>) -> IssuedEvidence {
    let sources = sources.iter().map(|source| (*source).clone()).collect();
    IssuedEvidence::new(authority.clone(), sources, ceiling(&["a.>"]), expires.map(UnixSecs)).unwrap()
}

async fn release(store: &IssuedStore, evidence: IssuedEvidence) -> Result<IssuedAuthorityRef, EpError> {
    let (released, ()) = store.stage(evidence).await?.release(async { Ok(()) }).await?;
    Ok(released.authority().clone())
}

fn caller(actor: &str, uid: &LifecycleUid, nonce: &str) -> UserCaller {
    UserCaller { principal: principal(actor), uid: uid.clone(), conn_id: ConnId::parse(nonce).unwrap() }
}

fn accepted_token(nonce: &str) -> Generation {
    Issued::for_connection(Generation::mint(&SystemEntropy), &ConnId::parse(nonce).unwrap()).accepted
}

/// What a callout would build: rows with the generation in them, and the read of the accepted row.
fn mint(issued: &Issued) -> Permissions {
    let row = format!("cotal.demo.ep.v1.inst.manager.i.run-start.{}.*", issued.generation);
    grants(&[&row, &format!("accepted.{}", issued.accepted)])
}

async fn connect(session: &IssuerSession, caller: &UserCaller) -> Result<Permissions, EpError> {
    session.issue_user_caller(caller, |issued| Ok(mint(&issued))).await
}

/// A source that is what the test says, after it did what it must.
struct Says<F>(F);

#[async_trait]
impl<F: Fn() -> bool + Send + Sync> SourceLiveness for Says<F> {
    async fn is_live(&self, _: &SourceRef) -> Result<bool, EpError> {
        Ok((self.0)())
    }
}

fn all_live() -> Says<fn() -> bool> {
    Says(|| true)
}
