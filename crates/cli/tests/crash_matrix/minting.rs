//! Mint ceremonies that no door leads to: from a capability handle, of a serving endpoint, and of issued authority.

use anyhow::{Result, ensure};
use async_trait::async_trait;
use cotal_authority::{
    AuthorityStores, Plane,
    credential::StagedCredential,
    issued::{retire_lifecycle_issuance, with_issuer_session},
    registration::{
        mint_serve_credential,
        own::plane_principal,
        serve::{ServeCredential, credential_id_of},
    },
};
use cotal_broker::{Connector, Lifetime};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{
    Clock, CredentialId, EndpointName, Generation, KeySegment, LifecycleUid, Names, Nkey, Permissions,
    Principal, Rules, UnixMillis, UnixSecs, User,
    grants::{endpoint_serve, infra},
    names,
    rows::{CredentialRow, IssuedAuthorityRef, IssuedEvidence, IssuedPermissions, SourceMember, SourceRef},
};
use serde_json::json;

use crate::{
    child::{Act, Operation},
    house::House,
    journal::hold_to,
    member::Member,
};

/// In the year 2096.
const FAR_AWAY: UnixMillis = UnixMillis(4_000_000_000_000);
/// The key that every handle here is issued by.
pub(crate) const ISSUER: &str = "k1";

#[allow(clippy::unwrap_used, reason = "a constant of the grammar")]
pub(crate) fn issuer() -> KeySegment {
    KeySegment::parse(ISSUER).unwrap()
}

fn one_shot() -> Lifetime {
    Lifetime::OneShot { ttl_secs: 60, principal: None }
}

// === from a handle ============================================================================================

/// A credential that derives from a capability handle: its row, its lineage, and a touch of both gates.
pub(crate) struct FromHandle;

pub(crate) async fn mint_from_handle(
    connector: &Connector,
    principal: &Principal,
    uid: &LifecycleUid,
    issuer: &KeySegment,
    id: &KeySegment,
) -> Result<()> {
    let chain = vec![SourceMember::Root, SourceMember::Handle { issuer_key: issuer.clone(), id: id.clone() }];
    // The same bytes each time: a credential of that id is minted once.
    let row = CredentialRow::agent(uid, &CredentialId::parse("derived")?, principal, chain, FAR_AWAY)?;
    // The plane's own writer may touch no source gate: who mints from a handle is granted that one gate.
    let (token, gate) = (connector.space().token(), names::srcgate_key(issuer, id));
    let gate = Names::kv_subject(&Names::new(&token).auth_bucket(), &gate);
    let grants = |inbox: &_| {
        let mut grants = infra::authority_writer(&token, inbox);
        grants.publish.allow.push(gate.clone());
        grants
    };
    let connection = connector.open("cotal:test:mint".into(), &grants, one_shot()).await?;
    let stores = AuthorityStores::bind(&connection, connector.space()).await?;
    StagedCredential::stage(&stores, row).await?.finalize().await?;
    Ok(connection.close().await?)
}

#[async_trait]
impl Operation for FromHandle {
    fn name(&self) -> &'static str {
        "mint from a handle"
    }

    type Case = (Member, KeySegment);

    async fn prepare(&self, house: &House, actor: &str) -> Result<Self::Case> {
        let member = Member::grant(house, actor)?;
        member.enters(house).await?;
        let gate = json!({ "issuerKeyId": ISSUER, "id": actor, "state": "open" });
        house.put(&house.auth, &format!("srcgate.{ISSUER}.{actor}"), gate.to_string()).await?;
        Ok((member, KeySegment::parse(actor)?))
    }

    fn act(&self, (member, id): &Self::Case) -> Act {
        let (principal, uid) = (member.principal(), member.uid.clone());
        Act::MintFromHandle { principal, uid, issuer: issuer(), id: id.clone() }
    }

    fn owns(&self, (member, id): &Self::Case, key: &str) -> bool {
        member.owns(key) || key == format!("srcgate.{ISSUER}.{id}")
    }

    fn check_writes(&self, _: &Self::Case, written: &[String]) -> Result<()> {
        // The rows once; a gate is touched by each run that came so far.
        hold_to(written, &[("cred.", 1..=1), ("bysrc.", 1..=1), ("gate.", 1..=2), ("srcgate.", 1..=2)])
    }

    async fn check(&self, house: &House, (member, id): &Self::Case) -> Result<()> {
        member.stands(house, None).await?;
        let row = house.json(&house.auth, &format!("cred.{}.derived", member.uid)).await?;
        ensure!(row["state"] == "active", "the credential: {row}");
        let index = house.json(&house.auth, &format!("bysrc.{ISSUER}.{id}.{}.derived", member.uid)).await?;
        ensure!(index["ref"] == format!("cred.{}.derived", member.uid), "its lineage: {index}");
        Ok(())
    }
}

// === of a serving endpoint ====================================================================================

/// The serving credential of endpoint `auth`. A run that was cut off leaves a row that the next start revokes.
pub(crate) struct Serve;

pub(crate) async fn mint_serve(plane: &Plane, connector: &Connector, serve: &Nkey<User>) -> Result<()> {
    let registration = plane.registration();
    let (token, endpoint) = (connector.space().token(), EndpointName::auth().token());
    let connection = connector
        .open(
            "cotal:test:serve".into(),
            &|inbox| endpoint_serve::registration_executor(&token, inbox, &endpoint, &registration.instance),
            one_shot(),
        )
        .await?;
    let stores = AuthorityStores::bind(&connection, connector.space()).await?;
    let credential = ServeCredential {
        id: credential_id_of(LifecycleUid::mint(&SystemEntropy).as_str())?,
        source_chain: vec![SourceMember::Root],
        exp: UnixSecs(SystemClock.now_secs().0 + 3600),
    };
    mint_serve_credential(&stores, &registration.grant, &plane_principal(serve)?, credential).await?;
    Ok(connection.close().await?)
}

#[async_trait]
impl Operation for Serve {
    fn name(&self) -> &'static str {
        "serve mint"
    }

    type Case = ();

    async fn prepare(&self, _: &House, _: &str) -> Result<()> {
        Ok(())
    }

    fn act(&self, (): &()) -> Act {
        Act::MintServe
    }

    fn owns(&self, (): &(), key: &str) -> bool {
        key.starts_with("epcred.auth.") || key.starts_with("epgate.auth.")
    }

    fn check_writes(&self, (): &(), written: &[String]) -> Result<()> {
        // A start between two runs revokes what the first one staged, and moves the gate twice.
        hold_to(written, &[("epcred.", 1..=2), ("epgate.", 1..=4)])
    }

    async fn check(&self, house: &House, (): &()) -> Result<()> {
        let mut active = Vec::new();
        for key in house.auth.keys("epcred.auth.>").await? {
            if house.json(&house.auth, &key).await?["state"] == "active" {
                active.push(key);
            }
        }
        ensure!(active.len() == 1, "of one start there is one credential: {active:?}");
        Ok(())
    }
}

// === issued authority =========================================================================================

/// An issuance of a lifecycle: staged, released, accepted. One that was cut off is never resumed: the next one is
/// another generation, and both end with their source.
pub(crate) struct Issue;

pub(crate) async fn issue(connector: &Connector, principal: &Principal, uid: &LifecycleUid) -> Result<()> {
    let all = || Rules { allow: vec!["a.>".into()], deny: vec![] };
    let permissions = IssuedPermissions::of_grants(&Permissions { publish: all(), subscribe: all() })?;
    with_issuer_session(connector, async |store| {
        let authority = IssuedAuthorityRef {
            space: store.space().clone(),
            principal: principal.clone(),
            uid: uid.clone(),
            generation: Generation::mint(&SystemEntropy),
        };
        let sources = vec![SourceRef::actor_ledger(store.space(), principal, uid)];
        let evidence = IssuedEvidence::new(authority, sources, permissions, None)?;
        let (released, ()) = store.stage(evidence).await?.release(async { Ok(()) }).await?;
        released.accept(&Generation::mint(&SystemEntropy)).await
    })
    .await?;
    Ok(())
}

/// Nothing that was issued to this incarnation resolves any more. One that was cut off before its index row stays
/// `prepared`: it never resolves, and its source leads nowhere.
pub(crate) async fn none_is_live(house: &House, member: &Member) -> Result<()> {
    let issued = house.bucket(&house.names().issued_bucket());
    let owned = |key: &String| key.starts_with("attempt.") && key.contains(member.uid.as_str());
    for key in issued.keys("attempt.>").await?.into_iter().filter(owned) {
        let attempt = house.json(&issued, &key).await?;
        ensure!(attempt["state"] != "active", "{key} is live: {attempt}");
    }
    Ok(())
}

#[async_trait]
impl Operation for Issue {
    fn name(&self) -> &'static str {
        "issued authority: stage, release, accept"
    }

    type Case = Member;

    async fn prepare(&self, house: &House, actor: &str) -> Result<Member> {
        Member::grant(house, actor)
    }

    fn act(&self, member: &Member) -> Act {
        Act::Issue { principal: member.principal(), uid: member.uid.clone() }
    }

    fn owns(&self, _: &Member, _: &str) -> bool {
        // The child opens no plane: all that it writes is this.
        true
    }

    fn check_writes(&self, _: &Member, written: &[String]) -> Result<()> {
        // Prepared and active; everything else is created once.
        hold_to(written, &[("attempt.", 1..=2), ("accepted.", 1..=1), ("", 1..=1)])
    }

    async fn check(&self, house: &House, member: &Member) -> Result<()> {
        let source =
            SourceRef::actor_ledger(&house.names().space().clone(), &member.principal(), &member.uid);
        retire_lifecycle_issuance(&house.connector(), &source).await?;
        none_is_live(house, member).await
    }
}
