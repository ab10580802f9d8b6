//! Narrowing views: one session, one object, one manager (contract 01 §6.6 and §6.11).

use base64::{Engine as _, engine::general_purpose::URL_SAFE};

use super::{
    Capabilities, ConnectPrincipal, Issued, Permissions,
    endpoint_rows::{Caller, SPAWN_INSTANCE_READS},
    rows::{Space, direct_get, inbox},
};
use crate::{
    names::Names,
    token::{InstanceId, LifecycleUid, SessionEndpoint, SessionId, Sha256Hex},
};

/// The caller's side of one session's rail, and nothing else.
pub(super) fn session_caller(
    space: &Space,
    who: &ConnectPrincipal,
    endpoint: &SessionEndpoint,
    session: &SessionId,
    epoch: u64,
) -> Permissions {
    let rail = format!("{}.eps.{endpoint}.{session}.{epoch}", space.prefix);
    Permissions::allowing(vec![format!("{rail}.in")], vec![format!("{rail}.out"), inbox(&who.conn_id)])
}

/// The chunks and the metadata of one object of one manager's transfer store.
pub(super) fn transfer_writer(
    space: &Space,
    who: &ConnectPrincipal,
    instance: &InstanceId,
    hex: &Sha256Hex,
) -> Permissions {
    let bucket = space.names.transfer_bucket(instance);
    let stream = Names::object_stream(&bucket);
    let chunks = format!("$O.{bucket}.C.{hex}");
    let metadata = format!("$O.{bucket}.M.{}", URL_SAFE.encode(format!("sha256:{hex}")));
    Permissions::allowing(
        vec![chunks.clone(), metadata.clone(), direct_get(&stream, &chunks), direct_get(&stream, &metadata)],
        vec![inbox(&who.conn_id)],
    )
}

/// The caller's own manager commands, on one live instance's rail: no class rail, no scatter, no messaging.
pub(super) fn manager_caller(
    space: &Space,
    who: &ConnectPrincipal,
    uid: &LifecycleUid,
    instance: &InstanceId,
    capabilities: Capabilities,
    issued: Option<&Issued>,
) -> Permissions {
    let mut caller = Caller::new(space, &who.principal, uid, issued);
    caller.reply_rail();
    caller.describe_instance(instance);
    caller.contract_fetch();
    caller.accepted_read();
    caller.ask_manager_instance(instance, capabilities.commands());
    if capabilities.spawn {
        caller.ask_manager_instance(instance, SPAWN_INSTANCE_READS);
    }
    let caller = caller.into_rows();
    let subscribe = [inbox(&who.conn_id)].into_iter().chain(caller.subscribe.into_rows()).collect();
    Permissions::allowing(caller.publish.into_rows(), subscribe)
}
