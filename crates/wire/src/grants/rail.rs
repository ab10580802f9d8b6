//! The auth endpoint rail: its listener, and who asks it to retire somebody (contract 05 §11.2, 03 §A).

use std::collections::BTreeSet;

use super::{
    Permissions,
    endpoint_rows::Caller,
    endpoint_serve::{ServeSurface, endpoint_serve},
    rows::{JS_INFO, Space, inbox, message_get},
};
use crate::{
    endpoint_subject::TargetTriple,
    endpoint_token::{Command, EndpointName},
    names::Names,
    token::{ConnId, InstanceId, LifecycleUid, Principal, SpaceToken},
};

/// The auth rail's listener, `cotal:auth-admin:<space>`: serves as endpoint `auth`, and reads the auth store, where the
/// gate of a requester is. It writes no store.
pub fn auth_listener(space: &SpaceToken, conn: &ConnId, instance: &InstanceId, epoch: u64) -> Permissions {
    let surface = ServeSurface {
        endpoint: EndpointName::auth().token(),
        instance: instance.clone(),
        epoch,
        commands: BTreeSet::from([Command::retire_lifecycle()]),
        journal: false,
        pools: BTreeSet::new(),
    };
    let mut permissions = endpoint_serve(space, conn, &surface);
    permissions.publish.allow.extend([JS_INFO.to_owned(), message_get(&Names::new(space).auth_stream())]);
    permissions
}

/// `retirement-requester`, of a host that minted an agent and now has it retired: this one command on this one
/// incarnation, and what it takes to learn how to ask. One a request, for five minutes.
pub fn retirement_requester(
    space: &SpaceToken,
    caller: &Principal,
    uid: &LifecycleUid,
    conn: &ConnId,
    target: &TargetTriple,
) -> Permissions {
    let space = Space::new(space);
    let mut rows = Caller::new(&space, caller, uid, None);
    rows.retire(target);
    rows.describe_everywhere();
    rows.contract_fetch();
    rows.reply_rail();
    let rows = rows.into_rows();
    let mut subscribe = rows.subscribe.into_rows();
    subscribe.push(inbox(conn));
    Permissions::allowing(rows.publish.into_rows(), subscribe)
}
