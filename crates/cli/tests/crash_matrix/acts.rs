//! Barriers and the deprovisioning, as a child runs them.

use anyhow::{Result, ensure};
use async_trait::async_trait;
use cotal_authority::deprovision::Footprint;
use cotal_broker::durable;
use cotal_trust::system::SystemEntropy;
use cotal_wire::{
    Channel, KeySegment, LifecycleUid, OpId, Principal,
    names::{dlv_consumer, dm_consumer, lifecycle_subject_key, member_key},
};
use serde_json::json;

use crate::{
    child::{Act, Operation},
    house::House,
    journal::hold_to,
    member::{Member, Session},
    minting::{ISSUER, issuer},
};

const CHANNELS: [&str; 2] = ["general", "team.backend"];

/// What an incarnation of [`Deprovision`] may have left.
pub(crate) fn footprint(principal: &Principal, uid: &LifecycleUid) -> Result<Footprint> {
    let channels = CHANNELS.map(Channel::parse).into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Footprint::new(principal.clone(), uid.clone(), channels))
}

/// A successor takes an incarnation over.
pub(crate) struct Takeover;

#[async_trait]
impl Operation for Takeover {
    fn name(&self) -> &'static str {
        "takeover"
    }

    type Case = (Member, OpId, Session);

    async fn prepare(&self, house: &House, actor: &str) -> Result<Self::Case> {
        let member = Member::grant(house, actor)?;
        member.enters(house).await?;
        let session = Session::plant(house, &member).await?;
        Ok((member, OpId::mint(&SystemEntropy), session))
    }

    fn act(&self, (member, op, _): &Self::Case) -> Act {
        Act::TakeOver { op: op.clone(), principal: member.principal(), uid: member.uid.clone() }
    }

    fn owns(&self, (member, op, session): &Self::Case, key: &str) -> bool {
        member.owns(key) || key.contains(op.as_str()) || session.owns(key)
    }

    fn check_writes(&self, _: &Self::Case, written: &[String]) -> Result<()> {
        hold_to(
            written,
            &[
                ("stage.", 1..=1),
                ("gate.", 2..=2),
                ("cred.", 1..=1),
                ("session.", 2..=2),
                ("epcred.", 1..=1),
                ("lifecycle.", 1..=1),
            ],
        )
    }

    async fn check(&self, house: &House, (member, op, session): &Self::Case) -> Result<()> {
        member.stands(house, None).await?;
        let (head, gate) = (member.head(house).await?, member.gate(house).await?);
        ensure!(head["processEpoch"] == 2 && head["lastTakeoverOpId"] == op.as_str(), "the head: {head}");
        ensure!(head.get("currentCredentialId").is_none(), "the root goes with its epoch: {head}");
        ensure!(gate["generation"] == 2, "the gate: {gate}");
        session.has_ended(house).await?;
        member.nothing_is_active(house).await
    }

    async fn check_live(&self, house: &House, (member, ..): &Self::Case) -> Result<()> {
        member.enters(house).await
    }
}

/// A capability handle is revoked, and what was minted from it.
pub(crate) struct RevokeHandle;

#[async_trait]
impl Operation for RevokeHandle {
    fn name(&self) -> &'static str {
        "handle revocation"
    }

    type Case = (KeySegment, Vec<LifecycleUid>);

    async fn prepare(&self, house: &House, actor: &str) -> Result<Self::Case> {
        let gate = json!({ "issuerKeyId": ISSUER, "id": actor, "state": "open" });
        house.put(&house.auth, &format!("srcgate.{ISSUER}.{actor}"), gate.to_string()).await?;
        let mut holders = Vec::new();
        for name in ["x", "y"] {
            let member = Member::grant(house, &format!("{actor}{name}"))?;
            let uid = member.uid.clone();
            let row = json!({
                "credentialId": "c1", "holderPrincipal": member.principal().key(), "lifecycleUid": uid,
                "sourceChain": ["root", format!("handle.{ISSUER}.{actor}")], "state": "active", "exp": 9,
            });
            house.put(&house.auth, &format!("cred.{uid}.c1"), row.to_string()).await?;
            let index = json!({ "ref": format!("cred.{uid}.c1") });
            house.put(&house.auth, &format!("bysrc.{ISSUER}.{actor}.{uid}.c1"), index.to_string()).await?;
            holders.push(uid);
        }
        Ok((KeySegment::parse(actor)?, holders))
    }

    fn act(&self, (id, _): &Self::Case) -> Act {
        Act::RevokeHandle { issuer: issuer(), id: id.clone() }
    }

    fn owns(&self, (id, holders): &Self::Case, key: &str) -> bool {
        key == format!("srcgate.{ISSUER}.{id}") || holders.iter().any(|uid| key.contains(uid.as_str()))
    }

    fn check_writes(&self, _: &Self::Case, written: &[String]) -> Result<()> {
        hold_to(written, &[("srcgate.", 1..=1), ("cred.", 1..=1)])
    }

    async fn check(&self, house: &House, (id, holders): &Self::Case) -> Result<()> {
        let gate = house.json(&house.auth, &format!("srcgate.{ISSUER}.{id}")).await?;
        ensure!(gate["state"] == "frozen", "the handle: {gate}");
        for uid in holders {
            let row = house.json(&house.auth, &format!("cred.{uid}.c1")).await?;
            ensure!(row["state"] == "revoked", "cred.{uid}.c1: {row}");
        }
        Ok(())
    }
}

/// What an ended lifecycle left on the broker is removed, after the fence of its read ACL.
pub(crate) struct Deprovision;

#[async_trait]
impl Operation for Deprovision {
    fn name(&self) -> &'static str {
        "deprovision"
    }

    type Case = Member;

    async fn prepare(&self, house: &House, actor: &str) -> Result<Member> {
        let member = Member::grant(house, actor)?;
        let (names, principal) = (house.names(), member.principal());
        for (stream, name) in [
            (names.dm_stream(), dm_consumer(&principal, &member.uid)),
            (names.dlv_stream(), dlv_consumer(&principal, &member.uid)),
        ] {
            let config = json!({ "durable_name": name, "ack_policy": "explicit" });
            let body = json!({ "stream_name": stream, "config": config }).to_string();
            let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}");
            let answer = house.connection().request(&subject, &[], body.into(), crate::house::WITHIN).await?;
            let answer: serde_json::Value = serde_json::from_slice(&answer.payload)?;
            ensure!(answer.get("error").is_none(), "{name}: {answer}");
        }
        let acl = json!({ "allowSubscribe": ["general"], "revision": 3, "updatedAt": 9 });
        let key = lifecycle_subject_key(&principal, &member.uid);
        house.put(&house.bucket(&names.acl_bucket()), &key, acl.to_string()).await?;
        for channel in CHANNELS {
            let key = member_key(&Channel::parse(channel)?, &principal, &member.uid);
            house.put(&house.bucket(&names.members_bucket()), &key, "{}").await?;
        }
        Ok(member)
    }

    fn act(&self, member: &Member) -> Act {
        Act::Deprovision { principal: member.principal(), uid: member.uid.clone() }
    }

    fn owns(&self, member: &Member, key: &str) -> bool {
        key.contains(member.uid.as_str())
    }

    fn check_writes(&self, member: &Member, written: &[String]) -> Result<()> {
        // The ACL is narrowed and purged. A purge is pinned to what it found, a marker of an earlier purge included.
        let acl = lifecycle_subject_key(&member.principal(), &member.uid);
        let (dm, dlv) =
            (dm_consumer(&member.principal(), &member.uid), dlv_consumer(&member.principal(), &member.uid));
        hold_to(written, &[(&acl, 2..=3), (&dm, 1..=1), (&dlv, 1..=1), ("", 1..=2)])
    }

    async fn check(&self, house: &House, member: &Member) -> Result<()> {
        let (names, principal) = (house.names(), member.principal());
        for (stream, name) in [
            (names.dm_stream(), dm_consumer(&principal, &member.uid)),
            (names.dlv_stream(), dlv_consumer(&principal, &member.uid)),
        ] {
            ensure!(!durable::exists(house.connection(), &stream, &name).await?, "{name} is left");
        }
        let acl = house.bucket(&names.acl_bucket());
        let row = house.json(&acl, &lifecycle_subject_key(&principal, &member.uid)).await?;
        ensure!(row.is_null(), "the read ACL is left: {row}");
        for channel in CHANNELS {
            let key = member_key(&Channel::parse(channel)?, &principal, &member.uid);
            let row = house.json(&house.bucket(&names.members_bucket()), &key).await?;
            ensure!(row.is_null(), "{key} is left: {row}");
        }
        Ok(())
    }
}
