//! Actors with secrets, and the bearers that they exchange them for.

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::space::TestSpace;
use cotal_trust::{
    bearer::{BearerGrant, mint},
    issuer::IssuerKeySet,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Actor, Clock, CredentialId, DerivedOwner, LifecycleUid};
use futures::{StreamExt, TryStreamExt, stream};

use crate::service::Service;

/// Actors of one owner: an owner's allowance is ten actors' worth (contract 04 §8.7).
const ACTORS_PER_OWNER: usize = 10;
/// Exchanges in flight while the population is made.
const EXCHANGES: usize = 8;

pub(crate) struct Population {
    members: Vec<Member>,
}

struct Member {
    owner: DerivedOwner,
    actor: Actor,
    uid: LifecycleUid,
    credential: CredentialId,
}

impl Population {
    /// Grants `count` managed actors and exchanges each secret once, so that every incarnation has its credential.
    pub(crate) async fn grant(space: &TestSpace, service: &Service, count: usize) -> Result<Self> {
        let ledger = Ledger::at(&space.state_dir);
        let members = stream::iter(0..count)
            .map(|n| {
                let ledger = ledger.clone();
                async move {
                    let (owner, actor) =
                        (owner(space, n / ACTORS_PER_OWNER)?, Actor::parse(&format!("agent{n}"))?);
                    let uid = LifecycleUid::mint(&SystemEntropy);
                    let (secret, hash) = mint_agent_secret(&SystemEntropy);
                    ledger.grant_managed(&input(&owner, &actor, &uid), &hash, &SystemClock)?;
                    let token = service.exchange(&owner, &actor, &secret).await?;
                    let credential = credential_of(&token)?;
                    anyhow::Ok(Member { owner, actor, uid, credential })
                }
            })
            .buffer_unordered(EXCHANGES)
            .try_collect()
            .await?;
        Ok(Self { members })
    }

    /// A fresh bearer of every member, signed with the space's own key so that none expires in mid-run.
    pub(crate) fn bearers(&mut self, space: &TestSpace) -> Result<Vec<String>> {
        self.bearers_by(&space.material.issuer, space)
    }

    /// The same under the space's own key id, signed by somebody else.
    pub(crate) fn forged_bearers(&mut self, space: &TestSpace) -> Result<Vec<String>> {
        let stranger = IssuerKeySet::create(&space.space, &SystemEntropy);
        let (good, other) = (self.bearers(space)?, self.bearers_by(&stranger, space)?);
        good.iter()
            .zip(&other)
            .map(|(good, other)| {
                let (signed, _) = good.rsplit_once('.').context("not a compact JWS")?;
                let (_, signature) = other.rsplit_once('.').context("not a compact JWS")?;
                Ok(format!("{signed}.{signature}"))
            })
            .collect()
    }

    fn bearers_by(&self, issuer: &IssuerKeySet, space: &TestSpace) -> Result<Vec<String>> {
        let now = SystemClock.now_secs();
        self.members
            .iter()
            .map(|m| {
                let grant = BearerGrant {
                    owner: m.owner.clone(),
                    actor: m.actor.clone(),
                    scope: Some(vec!["spawn".into()]),
                    parent: None,
                    lifecycle_uid: m.uid.clone(),
                    credential_id: m.credential.clone(),
                    view: None,
                    manager_instance_id: None,
                    session: None,
                    transfer_writer: None,
                    ttl_secs: None,
                    not_after: None,
                };
                Ok(mint(issuer, &space.space, &grant, now)?.token.to_string())
            })
            .collect()
    }

    /// Fills the ledger with rows that nobody connects as.
    pub(crate) fn pad(space: &TestSpace, rows: usize) -> Result<()> {
        let dir = space.state_dir.join("managed-actors");
        let owner = owner(space, usize::MAX)?;
        for n in 0..rows {
            let uid = LifecycleUid::mint(&SystemEntropy);
            let row = format!(
                "{{\n  \"ver\": 1,\n  \"owner\": \"{owner}\",\n  \"actor\": \"pad{n}\",\n  \"scope\": [],\n  \"allowSubscribe\": [],\n  \"allowPublish\": [],\n  \"tokenHash\": \"{n:064x}\",\n  \"lifecycleUid\": \"{uid}\",\n  \"grantedAt\": \"2026-01-01T00:00:00.000Z\"\n}}"
            );
            std::fs::write(dir.join(format!("{owner}.pad{n}.json")), row)?;
        }
        Ok(())
    }
}

fn owner(space: &TestSpace, n: usize) -> Result<DerivedOwner> {
    Ok(space.material.owner_secret.derive(&space.material.idp.issuer, &format!("bench-{n}"))?)
}

fn input(owner: &DerivedOwner, actor: &Actor, uid: &LifecycleUid) -> GrantInput {
    GrantInput {
        owner: owner.clone(),
        actor: actor.clone(),
        scope: vec!["spawn".into()],
        allow_subscribe: vec!["general".into(), "team.>".into()],
        allow_publish: vec!["general".into()],
        role: None,
        label: None,
        parent: None,
        lifecycle_uid: Some(uid.clone()),
    }
}

fn credential_of(token: &str) -> Result<CredentialId> {
    let payload = token.split('.').nth(1).context("not a compact JWS")?;
    let claims: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?;
    Ok(CredentialId::parse(claims["act"]["credentialId"].as_str().context("no credential id")?)?)
}
