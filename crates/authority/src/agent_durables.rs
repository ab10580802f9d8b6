//! What a managed agent finds on the broker when it first connects: its two durables, its read ACL, and its role's
//! durable (contract 01 §4.4). What goes again is [`crate::deprovision`]'s.

use cotal_broker::{
    Connection, Connector, Lifetime,
    durable::{self, Durable},
    kv::{Bucket, LeaderRead, WriteOutcome},
    stream,
};
use cotal_wire::{
    Clock, ConnId, EpError, InfraRole, LifecycleUid, Names, Principal, Revision, Role,
    channel::{ChannelPattern, pattern_in_allow},
    grants::infra,
    names::{dlv_consumer, dm_consumer, lifecycle_subject_key, role_consumer},
    rows::ReadAcl,
    subject::Subjects,
};

use crate::store::{Store, ambiguous, unsent};

/// Lifetime of a provisioner credential, in seconds (contract 01 §3.4).
const TTL_SECS: u64 = 300;
/// How often the read ACL is read and written against writers that keep winning (contract 01 §4.3).
const ATTEMPTS: usize = 5;

/// What one incarnation is provisioned with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentDurables {
    principal: Principal,
    uid: LifecycleUid,
    allow_subscribe: Vec<ChannelPattern>,
    role: Option<Role>,
}

impl AgentDurables {
    /// The durables of an incarnation that joins `subscribe` and may read `allow_subscribe`; each of the first must be
    /// covered by the second, else `permission-denied`.
    ///
    /// The contract takes an empty `allow_subscribe` for `subscribe` itself. Here it stays empty: the row would let in
    /// what the grant does not.
    pub fn new(
        principal: Principal,
        uid: LifecycleUid,
        subscribe: &[ChannelPattern],
        allow_subscribe: Vec<ChannelPattern>,
        role: Option<Role>,
    ) -> Result<Self, EpError> {
        match subscribe.iter().find(|entry| !pattern_in_allow(&allow_subscribe, entry.as_str())) {
            None => Ok(Self { principal, uid, allow_subscribe, role }),
            Some(entry) => Err(EpError::permission_denied(format!(
                "subscribe names {entry}, which allowSubscribe does not cover; add it there, or leave it out"
            ))),
        }
    }

    /// The consumers, in the order of their making; the unicast one begins behind `frontier`.
    fn consumers(&self, names: &Names, subjects: &Subjects, frontier: Revision) -> [Durable; 2] {
        let unicast = Durable {
            stream: names.dm_stream(),
            name: dm_consumer(&self.principal, &self.uid),
            filter: subjects.unicast_filter(&self.principal),
            after: frontier,
        };
        let delivery = Durable {
            stream: names.dlv_stream(),
            name: dlv_consumer(&self.principal, &self.uid),
            filter: names.dlv_subject(&self.principal, &self.uid),
            after: Revision(0),
        };
        [unicast, delivery]
    }
}

/// Makes what is missing, over a provisioner connection of its own that is closed in any case. Asked again, it keeps what
/// stands: the unicast durable begins where it first began.
///
/// The order is the contract's: unicast, delivery, read ACL, role. What was made before a refusal stays; the caller
/// removes it, or asks again.
pub async fn provision_agent(
    connector: &Connector,
    clock: &dyn Clock,
    durables: &AgentDurables,
) -> Result<(), EpError> {
    let space = connector.space();
    let token = space.token();
    let grants = |inbox: &ConnId| infra::provisioner(&token, inbox);
    let lifetime = Lifetime::OneShot { ttl_secs: TTL_SECS, principal: None };
    let connection = connector.open(InfraRole::PROVISIONER.label(space), &grants, lifetime).await?;
    let (names, subjects) = (Names::new(&token), Subjects::new(&token));
    let provisioned = provision_over(&connection, &names, &subjects, clock, durables).await;
    if let Err(refusal) = connection.close().await {
        tracing::warn!(%refusal, "provisioning an agent: the connection did not end");
    }
    provisioned
}

async fn provision_over(
    connection: &Connection,
    names: &Names,
    subjects: &Subjects,
    clock: &dyn Clock,
    durables: &AgentDurables,
) -> Result<(), EpError> {
    let frontier = stream::last_sequence(connection, &names.dm_stream()).await?;
    for consumer in durables.consumers(names, subjects, frontier) {
        ensure(connection, &consumer).await?;
    }
    let acl = Store::new(Bucket::new(connection, &names.acl_bucket()));
    reissue(&acl, clock, durables).await?;
    if let Some(role) = &durables.role {
        let shared = Durable {
            stream: names.task_stream(),
            name: role_consumer(role),
            filter: subjects.anycast_filter(role),
            after: Revision(0),
        };
        ensure(connection, &shared).await?;
    }
    Ok(())
}

async fn ensure(connection: &Connection, consumer: &Durable) -> Result<(), EpError> {
    let ensured = durable::ensure(connection, consumer).await?;
    if ensured == durable::Ensured::AsAsked {
        crate::landed(&consumer.name);
    }
    tracing::debug!(consumer = consumer.name, ?ensured, "provisioned");
    Ok(())
}

/// Writes the read ACL of the incarnation, whatever it said before; one that says just this is left alone.
async fn reissue(acl: &Store, clock: &dyn Clock, durables: &AgentDurables) -> Result<(), EpError> {
    let key = lifecycle_subject_key(&durables.principal, &durables.uid);
    for _ in 0..ATTEMPTS {
        let (before, revision) = match acl.bucket().direct_read(&key).await? {
            LeaderRead::Absent => (None, Revision(0)),
            LeaderRead::Marker(revision) => (None, revision),
            LeaderRead::Value(entry) => (ReadAcl::parse(&entry.value), entry.revision),
        };
        if before.as_ref().is_some_and(|row| row.reads_exactly(&durables.allow_subscribe)) {
            return Ok(());
        }
        let row = ReadAcl::reissued(before.as_ref(), &durables.allow_subscribe, clock.now_millis());
        match acl.update(&key, row.to_bytes(), revision).await {
            WriteOutcome::Written(_) => return Ok(()),
            WriteOutcome::Lost => {}
            WriteOutcome::Ambiguous(why) => return Err(ambiguous("read ACL", &why)),
            WriteOutcome::Refused(why) => return Err(unsent("read ACL", &why)),
        }
    }
    Err(EpError::conflict("read ACL: another writer kept moving the row; enroll again"))
}

#[cfg(test)]
mod tests {
    use cotal_wire::{EpCode, SpaceToken};

    use super::*;

    fn patterns(list: &[&str]) -> Vec<ChannelPattern> {
        ChannelPattern::parse_all(list).unwrap()
    }

    fn durables(subscribe: &[&str], allow: &[&str]) -> Result<AgentDurables, EpError> {
        AgentDurables::new(
            Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.worker").unwrap(),
            LifecycleUid::parse(&"v".repeat(26)).unwrap(),
            &patterns(subscribe),
            patterns(allow),
            None,
        )
    }

    #[test]
    fn what_is_joined_is_within_what_may_be_read() {
        for (subscribe, allow, ok) in [
            (&[][..], &[][..], true),
            (&["general"], &["general"], true),
            (&["team.a", "team.*"], &["team.>"], true),
            (&["general"], &[], false),
            (&["team.>"], &["team.*"], false),
            (&["general", "other"], &["general"], false),
        ] {
            let made = durables(subscribe, allow);
            assert_eq!(made.is_ok(), ok, "{subscribe:?} within {allow:?}");
            assert!(made.err().is_none_or(|refusal| refusal.code == EpCode::PermissionDenied));
        }
    }

    #[test]
    fn the_durables_read_what_is_the_incarnations_alone() {
        let space = SpaceToken::parse("demo").unwrap();
        let uid = "v".repeat(26);
        let of = durables(&[], &[]).unwrap();
        let [unicast, delivery] = of.consumers(&Names::new(&space), &Subjects::new(&space), Revision(4));
        assert_eq!((unicast.stream.as_str(), unicast.after), ("DM_demo", Revision(4)));
        assert_eq!(unicast.name, format!("dm_u_aaaaaaaaaaaaaaaaaaaaaaaaaa-worker-{uid}"));
        assert_eq!(unicast.filter, "cotal.demo.inst.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.worker.>");
        assert_eq!((delivery.stream.as_str(), delivery.after), ("DLV_demo", Revision(0)));
        assert_eq!(delivery.name, format!("dlv_u_aaaaaaaaaaaaaaaaaaaaaaaaaa-worker-{uid}"));
        assert_eq!(delivery.filter, format!("cotal.demo.dlv.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.worker.{uid}"));
    }
}
