//! A remote manager's own credentials, minted for keys that it made itself (contract 01 §6.6, §6.9; 06 §4.3).
//!
//! What serves the manager's endpoint is [`super::endpoint_serve::endpoint_serve`], and what has one managed agent retired
//! is [`super::rail::retirement_requester`]: both are any endpoint's.

use super::{
    Permissions,
    endpoint_serve::{auth_subjects, record_subjects},
    rows::{
        JS_FLOW_CONTROL, JS_INFO, Space, cons, cons_and_delete, consumer, direct_get, direct_get_by_body,
        inbox, message_get, stream_create, stream_info, stream_purge,
    },
};
use crate::{
    endpoint_token::{EndpointName, EndpointToken},
    manager_authority::StandingRole,
    names::{Names, manager_lease_key, session_key_filter},
    token::{ConnId, InstanceId, LOCAL_OWNER, Owner, OwnerKind, Principal, SessionId, SpaceToken},
};

/// Which of the two `remote-manager` credentials: they hold the same rows, under two actors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerDuty {
    /// Holds the manager's lease and its presence.
    Supervisor,
    /// Registers the manager's instance, and takes it out again.
    Executor,
}

impl ManagerDuty {
    /// The standing identity of this duty.
    pub const fn role(self) -> StandingRole {
        match self {
            Self::Supervisor => StandingRole::Supervisor,
            Self::Executor => StandingRole::Executor,
        }
    }

    /// Whom the credential connects: `manager_<instance>` or `manager_exec_<instance>` of the owner.
    pub fn principal(self, owner: &Owner, instance: &InstanceId) -> Principal {
        Principal::new(owner.clone(), self.role().actor(instance))
    }
}

/// `remote-manager`: the lease and the registration of ONE manager instance. It provisions nothing for an agent, because
/// no grant can be pinned to a part of a consumer's name (contract 01 §6.9).
pub fn remote_manager(
    space: &SpaceToken,
    owner: &Owner,
    instance: &InstanceId,
    duty: ManagerDuty,
    conn: &ConnId,
) -> Permissions {
    let space = Space::new(space);
    let Space { names, prefix, presence, manager, records, .. } = &space;
    let endpoint = EndpointName::manager().token();
    let (auth, artifacts) = (names.auth_stream(), names.epc_stream());
    let record_subjects = record_subjects(names, &endpoint, instance);

    let mut publish = vec![
        JS_INFO.to_owned(),
        stream_info(manager),
        message_get(manager),
        Names::kv_subject(&names.manager_bucket(), &manager_lease_key(instance)),
        space.own_presence(&duty.principal(owner, instance)),
        stream_info(presence),
    ];
    publish.extend(cons(presence));
    publish.push(JS_FLOW_CONTROL.to_owned());
    publish.extend(auth_subjects(names, &endpoint, instance));
    publish.extend(record_subjects.clone());
    publish.extend([
        format!("{prefix}.epc.*"),
        direct_get(&artifacts, &format!("{prefix}.epc.>")),
        direct_get_by_body(&artifacts),
        message_get(&auth),
    ]);
    publish.extend(cons_and_delete(&auth));
    publish.extend(record_subjects.iter().map(|subject| direct_get(records, subject)));
    publish.push(message_get(records));
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// `goal-writer`: the bind and terminal facts of an endpoint's goals, and the records of those goals, read where they
/// lead. No rail, no event, no other record kind. No published list has the rows (contract 12 D16).
///
/// A person's manager serves that person's callers, and those of the static mesh: the goals of other owners are not its own
/// to write. A platform's manager serves everybody.
pub fn goal_writer(
    space: &SpaceToken,
    endpoint: &EndpointToken,
    owner: &Owner,
    conn: &ConnId,
) -> Permissions {
    let names = Names::new(space);
    let callers = match owner.kind() {
        OwnerKind::Derived => vec![owner.as_str(), LOCAL_OWNER],
        OwnerKind::Platform | OwnerKind::Local => vec!["*"],
    };
    let mut publish = vec![JS_INFO.to_owned()];
    for caller in &callers {
        let facts = format!("{}.epf.{endpoint}.goal.{caller}.*.*.*", names.subject_prefix());
        publish.extend(["bind", "result"].map(|last| format!("{facts}.{last}")));
    }
    for caller in &callers {
        publish.extend(["goal", "goalidx", "goaleff"].map(|kind| {
            Names::kv_subject(&names.records_bucket(), &format!("{kind}.{endpoint}.{caller}.>"))
        }));
    }
    publish.extend([message_get(&names.epf_stream()), message_get(&names.records_stream())]);
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// `session-ledger`: the session rows, and no rail. It proves the store that it writes, as every ledger does; no published
/// list has the reads (contract 12 D16).
pub fn session_ledger(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let sessions = Names::new(space).sessions_bucket();
    let stream = Names::kv_stream(&sessions);
    let publish = vec![
        JS_INFO.to_owned(),
        Names::kv_subject(&sessions, session_key_filter()),
        stream_info(&stream),
        message_get(&stream),
    ];
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// `session-serving`: the serving side of one session's rail, and nothing else.
pub fn session_serving(
    space: &SpaceToken,
    endpoint: &EndpointToken,
    session: &SessionId,
    epoch: u64,
    conn: &ConnId,
) -> Permissions {
    let rail = format!("{}.eps.{endpoint}.{session}.{epoch}", Names::new(space).subject_prefix());
    Permissions::allowing(vec![format!("{rail}.out")], vec![format!("{rail}.in"), inbox(conn)])
}

/// `transfer-reader`: makes, reads and clears the transfer store of one manager instance. It writes no chunk of it.
pub fn transfer_reader(space: &SpaceToken, instance: &InstanceId, conn: &ConnId) -> Permissions {
    let bucket = Names::new(space).transfer_bucket(instance);
    let stream = Names::object_stream(&bucket);
    let publish = vec![
        stream_create(&stream),
        stream_info(&stream),
        consumer("CREATE", &stream, ">"),
        message_get(&stream),
        stream_purge(&stream),
        format!("$O.{bucket}.M.>"),
    ];
    Permissions::allowing(publish, vec![inbox(conn)])
}
