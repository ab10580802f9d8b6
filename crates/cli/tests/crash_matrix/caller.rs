//! The connect of a manager's caller, which is issued a pair before it is answered (contract 03 §H.8).

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_broker::kv::LeaderRead;
use cotal_trust::{
    bearer::{self, BearerGrant},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Clock, CredentialId, DigestRef, EndpointName, InstanceId, LifecycleUid, Owner, View,
    canonical::VOID_CLOSURE_DIGEST,
    manager_authority::serve_principal,
    rows::{ServiceSpec, ServiceStatus, StatusState},
};
use serde_json::Value;

use crate::{
    Row,
    house::House,
    journal::{Allowed, hold_to},
    member::Member,
};

/// What an uncut connect writes: evidence, attempt, index, activation, accepted row, issuance row.
const UNCUT: Allowed<'_> = &[
    ("v1.", 1..=1),
    ("attempt.v1.", 2..=2),
    ("bysource.v1.", 1..=1),
    ("accepted.v1.", 1..=1),
    ("natkey.", 1..=1),
];
/// What the connect that was cut off and the one after it write together. Each generation is issued once; the nonce is
/// accepted once.
const TOGETHER: Allowed<'_> = &[
    ("v1.", 1..=1),
    ("attempt.v1.", 1..=2),
    ("bysource.v1.", 1..=1),
    ("accepted.v1.", 1..=1),
    ("natkey.", 1..=1),
];

/// The service is killed after each write of such a connect; its client comes back under the same name.
pub(crate) async fn row() -> Result<Row> {
    let house = House::start("caller").await?;
    house.journal.arm(0)?;
    let mut service = house.start_service().await?;
    let member = Member::grant(&house, "caller")?;
    member.hand_to_person(&house)?;
    let login = house.ok("/exchange", &member.login_body(&house)).await?;
    let login = login["token"].as_str().context("no token")?;
    let instance = register(&house, &member).await?;
    let bearer = bound(&house, &member, &instance, login)?;

    let mark = house.journal.len()?;
    let nonce = LifecycleUid::mint(&SystemEntropy);
    drop(house.connect_as(&bearer, nonce.as_str()).await?);
    let uncut = house.journal.since(mark)?;
    ensure!(!uncut.is_empty(), "no journal was kept: the binary has no failpoints");
    hold_to(&uncut, UNCUT)?;

    for nth in 1..=uncut.len() {
        let context = |what: &str| format!("{what}, killed after write {nth} of {uncut:?}");
        let nonce = LifecycleUid::mint(&SystemEntropy);
        let mark = house.journal.len()?;
        service.arm(&house.journal, nth)?;
        let refused = house.connect_as(&bearer, nonce.as_str()).await;
        ensure!(refused.is_err(), context("it was admitted by a service that died before its answer"));
        service.is_killed().await?;
        let cut = house.journal.since(mark)?;
        ensure!(cut.len() == nth, context("it wrote more than that"));

        house.journal.arm(0)?;
        service = house.start_service().await?;
        let again = house.journal.len()?;
        drop(house.connect_as(&bearer, nonce.as_str()).await.with_context(|| context("it comes back"))?);
        let written = house.journal.since(again)?;
        let together: Vec<_> = cut.iter().chain(&written).cloned().collect();
        hold_to(&together, TOGETHER).with_context(|| context("both together"))?;
        is_held_once(&house, &together).await.with_context(|| context("what the nonce holds"))?;
    }
    Ok(Row {
        operation: "connect of a manager's caller",
        writes: uncut.len(),
        kills: uncut.len(),
        resumed: uncut.len(),
    })
}

/// One accepted row, whose generation is active; no other generation was accepted.
async fn is_held_once(house: &House, written: &[String]) -> Result<()> {
    let names = house.names();
    let accepted: Vec<_> = written.iter().filter(|key| key.starts_with("accepted.v1.")).collect();
    let [accepted] = &accepted[..] else { anyhow::bail!("accepted {} times", accepted.len()) };
    let row = house.json(&house.bucket(&names.accepted_bucket()), accepted).await?;
    let generation = row["ref"]["generation"].as_str().context("a generation")?;
    let attempt = written.iter().find(|key| key.starts_with("attempt.v1.") && key.ends_with(generation));
    let attempt = house.json(&house.bucket(&names.issued_bucket()), attempt.context("its attempt")?).await?;
    ensure!(attempt["state"] == "active", "{attempt}");
    Ok(())
}

/// A manager of the member's owner, as it stands in the stores.
async fn register(house: &House, member: &Member) -> Result<InstanceId> {
    let instance = InstanceId::mint(&SystemEntropy);
    let owner = Owner::from(&member.owner);
    let name = EndpointName::parse("manager")?;
    let spec = ServiceSpec::new(&name, &owner, vec![DigestRef::parse(VOID_CLOSURE_DIGEST)?])?;
    let key = format!("svc.manager.{instance}.spec");
    house.put(&house.records, &key, spec.to_bytes()).await?;
    let LeaderRead::Value(stored) = house.records.leader_read(&key).await? else {
        anyhow::bail!("{key} is not there")
    };
    let status = ServiceStatus::new(0, StatusState::ready(), stored.revision);
    house.put(&house.records, &format!("svc.manager.{instance}.status"), status.to_bytes()).await?;
    let gate = format!(
        "{{\"state\":\"open\",\"generation\":1,\"processEpoch\":0,\"registrationRevision\":{},\
         \"nameAuthorityRevision\":0,\"principal\":\"{}\"}}",
        stored.revision.0,
        serve_principal(&owner, &instance)
    );
    house.put(&house.auth, &format!("epgate.manager.{instance}"), gate).await?;
    Ok(instance)
}

/// A bearer that is bound to this instance, with the root credential of the person's login.
fn bound(house: &House, member: &Member, instance: &InstanceId, login: &str) -> Result<String> {
    let claims = URL_SAFE_NO_PAD.decode(login.split('.').nth(1).context("no compact JWS")?)?;
    let claims: Value = serde_json::from_slice(&claims)?;
    let credential = claims["act"]["credentialId"].as_str().context("a root credential")?;
    let grant = BearerGrant {
        owner: member.owner.clone(),
        actor: member.actor.clone(),
        scope: Some(Vec::new()),
        parent: None,
        lifecycle_uid: member.uid.clone(),
        credential_id: CredentialId::parse(credential)?,
        view: Some(View::ManagerCaller),
        manager_instance_id: Some(instance.clone()),
        session: None,
        transfer_writer: None,
        ttl_secs: None,
        not_after: None,
    };
    let issuer = &house.space.material.issuer;
    Ok(bearer::mint(issuer, &house.space.space, &grant, SystemClock.now_secs())?.token.to_string())
}
