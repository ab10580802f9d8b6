//! Removing what an ended lifecycle left on the broker: its read ACL, its durables, its membership rows
//! (contract 07 §13).
//!
//! The ACL goes first. While it may stand, nothing else is touched: a reader that is still let in could otherwise join
//! anew what was just removed. Every removal is counted as what was observed, not as what was asked for.

mod account;
mod fence;
mod release;
mod remove;

use cotal_broker::{Connection, Connector, Lifetime};
use cotal_wire::{
    Actor, Channel, EpError, InfraRole, LifecycleUid, Owner, Principal, SpaceToken, TokenError,
    grants::{
        ROWS_BYTES,
        issued::{self, Ended},
    },
};

pub use account::{ConsumerCounts, DeprovisionError, Deprovisioned, RowCounts};
pub use fence::{AclFence, fence_lifecycle_acl};
pub use release::release_footprint;
pub use remove::deprovision_over;

/// Lifetime of a deprovisioner credential, in seconds (contract 01 §3.4).
const TTL_SECS: u64 = 300;

/// What one ended lifecycle may have left on the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    ended: Ended,
    channels: Vec<Channel>,
}

impl Footprint {
    /// The footprint of an incarnation, with its memberships of these channels; a channel named twice counts once.
    ///
    /// The list is the grant's concrete channels and the delivery daemon's inventory of the lifecycle, read after
    /// [`fence_lifecycle_acl`]. A pattern is no key of a membership, so its type refuses one.
    pub fn new(
        principal: Principal,
        uid: LifecycleUid,
        member_channels: impl IntoIterator<Item = Channel>,
    ) -> Self {
        let mut channels: Vec<Channel> = Vec::new();
        for channel in member_channels {
            if !channels.contains(&channel) {
                channels.push(channel);
            }
        }
        Self { ended: Ended { principal, uid }, channels }
    }

    /// Who ended.
    pub fn principal(&self) -> &Principal {
        &self.ended.principal
    }

    /// Which incarnation.
    pub fn uid(&self) -> &LifecycleUid {
        &self.ended.uid
    }

    /// The channels whose membership rows go.
    pub fn member_channels(&self) -> &[Channel] {
        &self.channels
    }

    /// The channels, in parts that one credential each can name.
    fn parts(&self, space: &SpaceToken) -> Vec<&[Channel]> {
        let names = cotal_wire::Names::new(space);
        let fixed = 2 * (names.members_bucket().len() + 64) + self.ended.principal.key().len() + 64;
        let mut parts = Vec::new();
        let (mut start, mut bytes) = (0, 0);
        for (at, channel) in self.channels.iter().enumerate() {
            let rows = 2 * (channel.as_str().len() + fixed);
            if at > start && bytes + rows > ROWS_BYTES {
                parts.push(&self.channels[start..at]);
                (start, bytes) = (at, 0);
            }
            bytes += rows;
        }
        parts.push(&self.channels[start..]);
        parts
    }
}

/// The principal of a deprovision target: `<owner>.<actor>`, or a bare static actor, whose owner is `local`
/// (contract 01 §1.3).
pub fn target_principal(target: &str) -> Result<Principal, TokenError> {
    if target.contains('.') {
        return Principal::parse_key(target);
    }
    Ok(Principal::new(Owner::local(), Actor::parse(target)?))
}

/// Removes a footprint over connections of its own, each pinned to exactly what it removes and drained at the end, and
/// says what became of every part.
///
/// A removal that did not succeed does not keep the rest from being tried; the error then carries the whole account,
/// and a repeat finishes what is left. A repeat after everything is gone reports no deletion.
pub async fn deprovision_agent(
    connector: &Connector,
    footprint: &Footprint,
) -> Result<Deprovisioned, DeprovisionError> {
    let space = connector.space().token();
    let mut removal = remove::Removal::of(&space, footprint);
    for (at, part) in footprint.parts(&space).into_iter().enumerate() {
        match open(connector, &footprint.ended, part).await {
            Ok(connection) => {
                if at == 0 {
                    removal.acl_and_durables(&connection).await;
                }
                removal.members(&connection, part).await;
                drained(&connection).await;
            }
            Err(refusal) if at == 0 => {
                return Err(DeprovisionError { account: Box::default(), cause: refusal });
            }
            Err(refusal) => removal.refuse_members(part, refusal),
        }
    }
    removal.into_account()
}

/// A deprovisioner connection: no reconnect, five seconds to connect.
async fn open(connector: &Connector, ended: &Ended, channels: &[Channel]) -> Result<Connection, EpError> {
    let space = connector.space();
    let token = space.token();
    let lifetime = Lifetime::OneShot { ttl_secs: TTL_SECS, principal: None };
    let grants = |inbox: &cotal_wire::ConnId| issued::deprovisioner(&token, ended, channels, inbox);
    connector.open(InfraRole::DEPROVISIONER.label(space), &grants, lifetime).await
}

/// What was removed is removed, whether or not the broker lets go of the connection in time.
async fn drained(connection: &Connection) {
    if let Err(refusal) = connection.close().await {
        tracing::warn!(%refusal, "deprovision: the connection did not end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footprint(channels: impl IntoIterator<Item = String>) -> Footprint {
        let channels = channels.into_iter().map(|channel| Channel::parse(&channel).unwrap());
        Footprint::new(
            Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice").unwrap(),
            LifecycleUid::parse(&"u".repeat(32)).unwrap(),
            channels,
        )
    }

    #[test]
    fn a_bare_target_is_a_static_actor() {
        assert_eq!(target_principal("manager").unwrap().key(), "local.manager");
        let derived = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice";
        assert_eq!(target_principal(derived).unwrap().key(), derived);
        for bad in ["", ".", "a.b", "a-b", "local.", "local.a.b"] {
            assert!(target_principal(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_channel_named_twice_is_examined_once() {
        let twice = footprint(["a", "b", "a"].map(str::to_owned));
        assert_eq!(twice.member_channels().len(), 2);
    }

    #[test]
    fn one_credential_names_no_more_channels_than_its_jwt_may_hold() {
        let space = SpaceToken::parse("main").unwrap();
        for (channels, longest) in [(vec![], 1), ((0..500).map(|n| format!("team.{n}")).collect(), 60)] {
            let all: Vec<String> = channels;
            let footprint = footprint(all.clone());
            let parts = footprint.parts(&space);
            assert!(parts.iter().all(|part| part.len() <= longest), "{:?}", parts.len());
            assert_eq!(parts.concat().len(), all.len());
        }
        let long: Vec<String> = (0..3).map(|n| format!("{n}{}", "a".repeat(4_000))).collect();
        let footprint = footprint(long);
        for part in footprint.parts(&space) {
            let rows = issued::deprovisioner(
                &space,
                &footprint.ended,
                part,
                &cotal_wire::ConnId::parse(&"U".repeat(56)).unwrap(),
            );
            let bytes: usize = rows.publish.allow.iter().map(|row| row.len() + 3).sum();
            assert!(bytes < 11_500, "{bytes}");
        }
    }
}
