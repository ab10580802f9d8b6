//! Who connects: actors with secrets and the bearers that they exchange them for, and users that need no callout.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::jwt::claims_of;
use cotal_trust::{
    bearer::{BearerGrant, mint},
    bundle::DataAccount,
    creds::Creds,
    issuer::IssuerKeySet,
    jwt::{UserClaims, encode_user},
    nkey::Seed,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Actor, Clock, CredentialId, DerivedOwner, LifecycleUid, Permissions, Rules, Space};
use cotal_workspace::material::UserAuthMaterial;
use futures::{StreamExt, TryStreamExt, stream};

use crate::door::Door;

/// Actors of one owner: an owner's allowance is ten actors' worth (contract 04 §8.7).
const ACTORS_PER_OWNER: usize = 10;
/// Exchanges in flight while the population is made.
const EXCHANGES: usize = 8;

/// A space on disk, as far as a population stands on it.
#[derive(Clone)]
pub(crate) struct Ground {
    pub(crate) space: Space,
    pub(crate) state_dir: PathBuf,
    pub(crate) material: Arc<UserAuthMaterial>,
}

pub(crate) struct Population {
    pub(crate) members: Vec<Member>,
}

pub(crate) struct Member {
    pub(crate) owner: DerivedOwner,
    pub(crate) actor: Actor,
    pub(crate) uid: LifecycleUid,
    credential: CredentialId,
}

impl Member {
    /// Takes its row away: it may be retired now.
    pub(crate) fn revoke(&self, ground: &Ground) -> Result<()> {
        Ledger::at(&ground.state_dir).revoke_managed(&self.owner, &self.actor)?;
        Ok(())
    }
}

impl Population {
    /// Grants `count` managed actors and exchanges each secret once, so that every incarnation has its credential.
    pub(crate) async fn grant(ground: &Ground, door: &Door, crowd: &str, count: usize) -> Result<Self> {
        let ledger = Ledger::at(&ground.state_dir);
        let members = stream::iter(0..count)
            .map(|n| {
                let ledger = ledger.clone();
                async move {
                    let (owner, actor) =
                        (owner(ground, crowd, n / ACTORS_PER_OWNER)?, Actor::parse(&format!("agent{n}"))?);
                    let uid = LifecycleUid::mint(&SystemEntropy);
                    let (secret, hash) = mint_agent_secret(&SystemEntropy);
                    ledger.grant_managed(&input(&owner, &actor, &uid), &hash, &SystemClock)?;
                    let token = door.exchange(&owner, &actor, &secret).await?;
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
    pub(crate) fn bearers(&self, ground: &Ground) -> Result<Vec<String>> {
        self.bearers_by(&ground.material.issuer, ground)
    }

    /// The same under the space's own key id, signed by somebody else.
    pub(crate) fn forged_bearers(&self, ground: &Ground) -> Result<Vec<String>> {
        let stranger = IssuerKeySet::create(&ground.space, &SystemEntropy);
        let (good, other) = (self.bearers(ground)?, self.bearers_by(&stranger, ground)?);
        good.iter()
            .zip(&other)
            .map(|(good, other)| {
                let (signed, _) = good.rsplit_once('.').context("not a compact JWS")?;
                let (_, signature) = other.rsplit_once('.').context("not a compact JWS")?;
                Ok(format!("{signed}.{signature}"))
            })
            .collect()
    }

    fn bearers_by(&self, issuer: &IssuerKeySet, ground: &Ground) -> Result<Vec<String>> {
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
                Ok(mint(issuer, &ground.space, &grant, now)?.token.to_string())
            })
            .collect()
    }

    /// Takes every member's row away: they may be retired now.
    pub(crate) fn revoke(&self, ground: &Ground) -> Result<()> {
        self.members.iter().try_for_each(|member| member.revoke(ground))
    }

    /// Fills the ledger with rows that nobody connects as.
    pub(crate) fn pad(ground: &Ground, rows: usize) -> Result<()> {
        let dir = ground.state_dir.join("managed-actors");
        let owner = owner(ground, "pad", usize::MAX)?;
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

fn owner(ground: &Ground, crowd: &str, n: usize) -> Result<DerivedOwner> {
    Ok(ground.material.owner_secret.derive(&ground.material.idp.issuer, &format!("bench-{crowd}-{n}"))?)
}

fn input(owner: &DerivedOwner, actor: &Actor, uid: &LifecycleUid) -> GrantInput {
    GrantInput::new(owner.clone(), actor.clone())
        .scope(["spawn"])
        .allow_subscribe(["general", "team.>"])
        .allow_publish(["general"])
        .lifecycle_uid(uid.clone())
}

fn credential_of(token: &str) -> Result<CredentialId> {
    let claims = claims_of(token)?;
    Ok(CredentialId::parse(claims["act"]["credentialId"].as_str().context("no credential id")?)?)
}

/// A user of the data account that needs no callout.
pub(crate) fn static_user(account: &DataAccount) -> Creds {
    let seed = Seed::generate(&SystemEntropy);
    let claims = UserClaims {
        name: "floor".into(),
        subject: seed.public().clone(),
        issuer_account: account.account.clone(),
        permissions: Permissions {
            publish: Rules { allow: vec!["bench.>".into()], deny: vec![] },
            subscribe: Rules { allow: vec!["_INBOX_bench.>".into()], deny: vec![] },
        },
        tags: vec![],
        exp: None,
    };
    Creds { jwt: encode_user(&claims, &account.signing, SystemClock.now_secs()), seed }
}
