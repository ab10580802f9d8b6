//! The listener of the auth endpoint rail (contract 05 §11.2).

use std::collections::BTreeSet;

use super::{
    Permissions,
    endpoint_serve::{ServeSurface, endpoint_serve},
    rows::{JS_INFO, message_get},
};
use crate::{
    endpoint_token::{Command, EndpointName},
    names::Names,
    token::{ConnId, InstanceId, SpaceToken},
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
